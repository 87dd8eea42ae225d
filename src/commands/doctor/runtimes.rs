//! What the callers know of CNI: the version of libcni in their executables, which Go writes into each as text.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::Value;

use super::{Check, Findings};
use crate::files;

/// Runtimes, and Multus, in the usual places.
const CALLERS: [(&str, &[&str]); 3] = [
    ("containerd", &["/usr/bin/containerd", "/usr/local/bin/containerd"]),
    ("crio", &["/usr/bin/crio", "/usr/local/bin/crio", "/usr/libexec/crio/crio"]),
    ("multus", &["/opt/cni/bin/multus", "/opt/cni/bin/multus-shim", "/usr/libexec/cni/multus"]),
];
/// Where runtimes look for networks.
pub const CONFIGURATIONS: &str = "/etc/cni/net.d";
/// As `go version -m` shows it: module, tab, version.
const MODULE: &[u8] = b"github.com/containernetworking/cni\t";

/// Says which versions of CNI each caller speaks, and what follows.
pub fn check(found: &mut Findings) {
    let name = "runtime";
    for (caller, places) in CALLERS {
        let Some(path) = places.iter().map(Path::new).find(|path| path.is_file()) else { continue };
        let what = format!("{caller} ({})", path.display());
        found.add(match libcni_of(path) {
            Err(error) => Check::skip(name, format!("{what}: cannot be read: {error:#}")),
            Ok(None) => Check::skip(name, format!("{what}: does not tell its libcni, as a Go program would")),
            Ok(Some(version)) => judged(name, &what, &version),
        });
    }
    if !found.0.iter().any(|check| check.name == name) {
        found.add(Check::skip(name, "no containerd, crio or multus in the usual places"));
    }
    configurations(Path::new(CONFIGURATIONS), found);
}

/// libcni 1.2.0 is the first with CNI 1.1: GC and STATUS. 1.0 and 1.1 have CNI 1.0.0.
fn judged(name: &'static str, what: &str, version: &str) -> Check {
    let is_early = version.trim_start_matches('v').starts_with("1.2.0-");
    let mut parts = version.trim_start_matches('v').split(['.', '-', '+']).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else {
        return Check::skip(name, format!("{what}: libcni {version:?} is no version"));
    };
    match (major, minor) {
        (0, _) => Check::fail(
            name,
            format!("{what}: libcni {version} speaks CNI up to 0.4.0, and refuses networks of 1.0.0"),
            "networks with \"cniVersion\": \"0.4.0\", or a newer one",
        ),
        (1, 0 | 1) | (1, 2) if is_early || minor < 2 => Check::ok(
            name,
            format!(
                "{what}: libcni {version} speaks CNI up to 1.0.0, without GC and STATUS: networks need \
                 \"cniVersion\": \"1.0.0\" with \"cniVersions\", as conf/nads.yaml has it"
            ),
        ),
        _ => Check::ok(name, format!("{what}: libcni {version} speaks CNI up to 1.1.0")),
    }
}

/// The version of libcni in a Go executable.
fn libcni_of(path: &Path) -> Result<Option<String>> {
    const CHUNK: usize = 1 << 20;
    const LONGEST: usize = 64;
    let mut file = File::open(path)?;
    let mut window: Vec<u8> = Vec::new();
    loop {
        let kept = window.len();
        window.resize(kept + CHUNK, 0);
        let count = file.read(&mut window[kept..])?;
        window.truncate(kept + count);
        let is_end = count == 0;
        if let Some(version) = find_version(&window, is_end) {
            return Ok(Some(version));
        }
        if is_end {
            return Ok(None);
        }
        // What may go on in the next chunk.
        window.drain(..window.len().saturating_sub(MODULE.len() + LONGEST));
    }
}

fn find_version(window: &[u8], is_end: bool) -> Option<String> {
    let mut rest = window;
    // The last byte of it is rarer than the first.
    while let Some(tab) = rest.iter().position(|byte| *byte == b'\t') {
        let (before, after) = rest.split_at(tab + 1);
        if before.ends_with(MODULE) {
            let length = after.iter().position(|byte| !byte.is_ascii_graphic());
            // Cut off by the chunk: the next one has all of it.
            if let Some(length) = length.or(is_end.then_some(after.len())).filter(|length| *length > 0) {
                return Some(String::from_utf8_lossy(&after[..length.min(64)]).into_owned());
            }
        }
        rest = after;
    }
    None
}

/// The files that a runtime reads.
pub fn configurations_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<_> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| {
        path.extension()
            .and_then(|end| end.to_str())
            .is_some_and(|end| ["conf", "conflist", "json"].contains(&end))
    });
    paths.sort();
    Ok(paths)
}

/// The runtime's own networks: those of ours among them, and Multus'.
fn configurations(folder: &Path, found: &mut Findings) {
    let name = "net.d";
    let paths = match configurations_in(folder) {
        Ok(paths) => paths,
        Err(error) => {
            found.add(Check::skip(name, format!("cannot list {}: {error}", folder.display())));
            return;
        }
    };
    let mut told = Vec::new();
    for path in &paths {
        let shown = path.display();
        let Ok(Value::Object(network)) =
            files::read(path).map(|text| serde_json::from_slice(&text).unwrap_or_default())
        else {
            found.add(Check::warn(
                name,
                format!("{shown} is not one JSON object"),
                "the runtime passes it over: mend it",
            ));
            continue;
        };
        let plugins = network.get("plugins").and_then(Value::as_array).cloned();
        let plugins = plugins.unwrap_or_else(|| vec![Value::Object(network.clone())]);
        let has = |wanted: &str| {
            let is = |plugin: &Value| plugin["type"].as_str().is_some_and(|kind| kind.starts_with(wanted));
            plugins.iter().any(is)
        };
        for kind in ["multus", "rail-cni"].into_iter().filter(|kind| has(kind)) {
            let version =
                network.get("cniVersion").and_then(Value::as_str).unwrap_or("0.1.0, as it has none");
            told.push(format!("{shown}: {kind}, cniVersion {version}"));
        }
    }
    if told.is_empty() {
        told.push(format!("{}: {} networks, none of multus or rail-cni", folder.display(), paths.len()));
    }
    told.into_iter().for_each(|text| found.add(Check::ok(name, text)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Verdict;

    #[test]
    fn the_version_is_found_wherever_it_stands() {
        let text = b"dep\tgithub.com/containernetworking/cni\tv1.3.0\th1:abc=\n";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("containerd");
        // At the end of the first chunk, over it, and behind it.
        for before in [0, (1 << 20) - 60, (1 << 20) - 44, (1 << 20) - 10, (1 << 20) + 5] {
            let mut content = vec![b'\t'; before];
            content.extend(text);
            fs::write(&path, &content).unwrap();
            assert_eq!(libcni_of(&path).unwrap().as_deref(), Some("v1.3.0"), "{before}");
        }
        fs::write(&path, "github.com/containernetworking/cni/pkg\tv9").unwrap();
        assert_eq!(libcni_of(&path).unwrap(), None);
        fs::write(&path, "github.com/containernetworking/cni\tv1.2.3").unwrap();
        assert_eq!(libcni_of(&path).unwrap().as_deref(), Some("v1.2.3"));
    }

    #[test]
    fn each_libcni_has_its_newest_version() {
        for (version, verdict, newest) in [
            ("v1.3.0", Verdict::Ok, "up to 1.1.0"),
            ("v1.2.0", Verdict::Ok, "up to 1.1.0"),
            ("v1.2.0-rc1", Verdict::Ok, "up to 1.0.0"),
            ("v1.1.2", Verdict::Ok, "up to 1.0.0"),
            ("v0.8.1", Verdict::Fail, "up to 0.4.0"),
            ("(devel)", Verdict::Skip, "no version"),
        ] {
            let check = judged("runtime", "containerd", version);
            assert_eq!(check.verdict, verdict, "{version}");
            assert!(check.text.contains(newest), "{version}: {}", check.text);
        }
    }
}
