//! The executables that are tested.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// rail-cni.
pub const RAIL_CNI: &str = env!("CARGO_BIN_EXE_rail-cni");

/// rail-ipam, which is a link to rail-cni beside it, as it is installed.
pub fn rail_ipam() -> &'static str {
    static PATH: LazyLock<String> = LazyLock::new(|| {
        let path = Path::new(RAIL_CNI).with_file_name("rail-ipam");
        // The folder may be another user's.
        if std::fs::read_link(&path).is_ok_and(|to| to == Path::new("rail-cni")) {
            return path.to_str().unwrap().to_owned();
        }
        // Other processes of tests use it meanwhile.
        let new = path.with_file_name(format!(".rail-ipam.{}", std::process::id()));
        let _ = std::fs::remove_file(&new);
        std::os::unix::fs::symlink("rail-cni", &new).unwrap();
        std::fs::rename(new, &path).unwrap();
        path.to_str().unwrap().to_owned()
    });
    &PATH
}

/// The tool for people, which is a package of its own beside the plugins.
pub fn railctl() -> PathBuf {
    let path = Path::new(RAIL_CNI).with_file_name("railctl");
    assert!(
        path.exists(),
        "no {}: run `cargo build --package railctl` first",
        path.display()
    );
    path
}
