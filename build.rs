//! Gives rail-cni and rail-ipam one GNU build ID, by which rail-cni recognises the rail-ipam of its
//! own build (src/cni/build_id.rs). The ID is a hash of everything that decides their behaviour:
//! sources, locked dependencies, target, profile, flags, compiler and commit. It does not depend on
//! the folder of the checkout, so the same commit and compiler give the same bytes.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

/// Files and folders of the sources, in the root of the repository.
const SOURCES: [&str; 6] = [
    "build.rs",
    "Cargo.lock",
    "Cargo.toml",
    "src",
    "crates/netlink/Cargo.toml",
    "crates/netlink/src",
];
/// Variables of Cargo with settings of the profile. CARGO_CFG_* have the others: target, features,
/// panic, debug assertions.
const PROFILE: [&str; 3] = ["DEBUG", "OPT_LEVEL", "PROFILE"];
/// The commit that scripts/build names in `--version`.
const COMMIT: &str = "RAIL_CNI_COMMIT";

fn main() -> Result<(), Box<dyn Error>> {
    let mut parts = BTreeMap::new();
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
        read_all(&root, Path::new(source), &mut parts)?;
    }
    println!("cargo:rerun-if-env-changed={COMMIT}");
    for (name, value) in std::env::vars() {
        let is_setting = name.starts_with("CARGO_CFG_")
            || name.starts_with("CARGO_PROFILE_")
            || PROFILE.contains(&name.as_str())
            || name == COMMIT;
        if is_setting {
            parts.insert(name, value.into_bytes());
        }
    }
    parts.insert("flags".to_owned(), flags().into_bytes());
    parts.insert("compiler".to_owned(), compiler()?.into_bytes());

    let mut hasher = SipHasher13::new();
    for (name, content) in &parts {
        for bytes in [name.as_bytes(), content.as_slice()] {
            hasher.write_u64(bytes.len() as u64);
            hasher.write(bytes);
        }
    }
    let id = format!("{:032x}", hasher.finish128().as_u128());
    println!("cargo:rustc-env=RAIL_CNI_BUILD_ID={id}");
    if std::env::var("CARGO_CFG_TARGET_OS")? == "linux" {
        let prefix = if is_bare_linker() { "" } else { "-Wl," };
        println!("cargo:rustc-link-arg-bins={prefix}--build-id=0x{id}");
    }
    Ok(())
}

/// Adds the content of every file at or below `path`, which is relative to `root`.
fn read_all(
    root: &Path,
    path: &Path,
    parts: &mut BTreeMap<String, Vec<u8>>,
) -> Result<(), Box<dyn Error>> {
    let absolute = root.join(path);
    if !absolute.is_dir() {
        let content =
            fs::read(&absolute).map_err(|error| format!("{}: {error}", path.display()))?;
        parts.insert(path.display().to_string(), content);
        return Ok(());
    }
    for entry in fs::read_dir(&absolute)? {
        read_all(root, &path.join(entry?.file_name()), parts)?;
    }
    Ok(())
}

/// The flags for rustc, without those that name a path: they differ between checkouts, and have no
/// influence on what the executables do.
fn flags() -> String {
    let encoded = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let without_paths: Vec<_> = encoded
        .split('\u{1f}')
        .filter(|flag| !flag.contains('/'))
        .collect();
    without_paths.join(" ")
}

/// Version and commit of the compiler, without the machine that it runs on.
fn compiler() -> Result<String, Box<dyn Error>> {
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .arg("-vV")
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let lines: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with("host:"))
        .collect();
    Ok(lines.join("\n"))
}

/// Whether Cargo was told to use a linker that is no C compiler and so takes its options without
/// `-Wl,`.
fn is_bare_linker() -> bool {
    let linker = PathBuf::from(std::env::var_os("RUSTC_LINKER").unwrap_or_default());
    let name = linker.file_stem().unwrap_or_default().to_string_lossy();
    name == "ld" || name.ends_with("-ld") || name.ends_with("lld")
}
