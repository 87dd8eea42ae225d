//! Checks which versions of CNI the callers support, by the version of libcni in their executables,
//! which Go writes into each of them.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::Value;

use super::{Check, Findings, Verdict, count};
use rail_cni::files;

/// Runtimes and Multus, with their usual paths.
const CALLERS: [(&str, &[&str]); 3] = [
    (
        "containerd",
        &["/usr/bin/containerd", "/usr/local/bin/containerd"],
    ),
    (
        "crio",
        &[
            "/usr/bin/crio",
            "/usr/local/bin/crio",
            "/usr/libexec/crio/crio",
        ],
    ),
    (
        MULTUS,
        &[
            "/opt/cni/bin/multus",
            "/opt/cni/bin/multus-shim",
            "/usr/libexec/cni/multus",
        ],
    ),
];
const MULTUS: &str = "multus";
/// The directory in which runtimes look for networks.
pub const CONFIGURATIONS: &str = "/etc/cni/net.d";
/// Module, tab and version follow each other, as `go version -m` shows them.
const MODULE: &[u8] = b"github.com/containernetworking/cni\t";
/// The longest version that is looked for.
const LONGEST: usize = 64;
/// The traces of libcni in a program whose build left out the versions, as Debian's do: the name of
/// a function, and of a package since CNI 1.0; and a key that libcni knows since CNI 1.1.
const LIBRARY: &[u8] = b"github.com/containernetworking/cni/libcni.";
const SINCE_1_0: &[u8] = b"github.com/containernetworking/cni/pkg/types/100.";
const SINCE_1_1: &[u8] = b"disableGC";

/// Reports the versions of CNI that each caller supports.
pub fn check(found: &mut Findings) {
    let name = "runtime";
    let mut old = None;
    for (caller, places) in CALLERS {
        let Some(path) = places.iter().map(Path::new).find(|path| path.is_file()) else {
            continue;
        };
        let what = format!("{caller} ({})", path.display());
        let libcni = libcni_of(path);
        if let Ok(Some(version)) = &libcni {
            if caller != MULTUS && ["v1.0", "v1.1"].iter().any(|old| version.starts_with(old)) {
                old = Some(format!("{caller} with libcni {version}"));
            }
        }
        found.add(match libcni {
            Err(error) => Check::skip(name, format!("{what} cannot be read: {error:#}")),
            Ok(None) => Check::skip(
                name,
                format!("{what} does not contain the version of libcni, as a Go program would"),
            ),
            Ok(Some(version)) => judged(name, &what, &version),
        });
    }
    if !found.0.iter().any(|check| check.name == name) {
        found.add(Check::skip(
            name,
            "there is no containerd, crio or multus in the usual places",
        ));
    }
    configurations(Path::new(CONFIGURATIONS), old.as_deref(), found);
}

/// libcni 1.2.0 is the first version with CNI 1.1, that is GC and STATUS; so was its first release
/// candidate, which Multus 4.1 contains. 1.0 and 1.1 support CNI 1.0.0.
fn judged(name: &'static str, what: &str, version: &str) -> Check {
    let mut parts = version
        .trim_start_matches('v')
        .split(['.', '-', '+'])
        .map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else {
        return Check::skip(name, format!("{what}: libcni {version:?} is not a version"));
    };
    match (major, minor) {
        (0, _) => Check::fail(
            name,
            format!(
                "{what}: libcni {version} supports CNI up to 0.4.0, and refuses networks with 1.0.0"
            ),
            "set \"cniVersion\": \"0.4.0\" in the networks, or install a newer version",
        ),
        (1, 0 | 1) => Check::ok(
            name,
            format!(
                "{what}: libcni {version} supports CNI up to 1.0.0, without GC and STATUS: networks need \
                 \"cniVersion\": \"1.0.0\" with \"cniVersions\", as in conf/nads.yaml"
            ),
        ),
        _ => Check::ok(
            name,
            format!("{what}: libcni {version} supports CNI up to 1.1.0"),
        ),
    }
}

/// The version of libcni in a Go executable. `v1.0` stands for all that support CNI 1.0.0 only,
/// where the executable has no versions.
fn libcni_of(path: &Path) -> Result<Option<String>> {
    let mut version = None;
    scan(path, |window, is_end| {
        version = find_version(window, is_end);
        version.is_some()
    })?;
    if version.is_some() {
        return Ok(version);
    }
    let (mut is_library, mut knows_1_0, mut knows_1_1) = (false, false, false);
    scan(path, |window, _| {
        let has = |text: &[u8]| window.windows(text.len()).any(|part| part == text);
        is_library = is_library || has(LIBRARY);
        knows_1_0 = knows_1_0 || has(SINCE_1_0);
        knows_1_1 = knows_1_1 || has(SINCE_1_1);
        knows_1_1
    })?;
    Ok((is_library && knows_1_0 && !knows_1_1).then(|| "v1.0".to_owned()))
}

/// Shows a file to `is_done` in overlapping parts, until it is; and whether the part is the last
/// one.
fn scan(path: &Path, mut is_done: impl FnMut(&[u8], bool) -> bool) -> Result<()> {
    const CHUNK: usize = 1 << 20;
    let mut file = File::open(path)?;
    let mut window: Vec<u8> = Vec::new();
    loop {
        let kept = window.len();
        window.resize(kept + CHUNK, 0);
        let count = file.read(&mut window[kept..])?;
        window.truncate(kept + count);
        let is_end = count == 0;
        if is_done(&window, is_end) || is_end {
            return Ok(());
        }
        // Keep what may continue in the next chunk.
        window.drain(..window.len().saturating_sub(MODULE.len() + LONGEST));
    }
}

fn find_version(window: &[u8], is_end: bool) -> Option<String> {
    let mut rest = window;
    // The last byte of the module's text is rarer than its first.
    while let Some(tab) = rest.iter().position(|byte| *byte == b'\t') {
        let (before, after) = rest.split_at(tab + 1);
        if before.ends_with(MODULE) {
            let length = after.iter().position(|byte| !byte.is_ascii_graphic());
            // The chunk ends within the version: the next one has all of it.
            if let Some(length) = length
                .or(is_end.then_some(after.len()))
                .filter(|length| *length > 0)
            {
                return Some(String::from_utf8_lossy(&after[..length.min(LONGEST)]).into_owned());
            }
        }
        rest = after;
    }
    None
}

/// The files in `directory` that a runtime reads.
pub fn configurations_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<_> = fs::read_dir(directory)?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    paths.retain(|path| {
        path.extension()
            .and_then(|end| end.to_str())
            .is_some_and(|end| ["conf", "conflist", "json"].contains(&end))
    });
    paths.sort();
    Ok(paths)
}

/// Reports the runtime's own networks of rail-cni and Multus. `old`: the runtime, if it supports
/// CNI 1.0.0 only.
fn configurations(directory: &Path, old: Option<&str>, found: &mut Findings) {
    let name = "net.d";
    let paths = match configurations_in(directory) {
        Ok(paths) => paths,
        Err(error) => {
            found.add(Check::skip(
                name,
                format!("cannot list {}: {error}", directory.display()),
            ));
            return;
        }
    };
    let mut lines = Vec::new();
    for path in &paths {
        let shown = path.display();
        let Ok(Value::Object(network)) =
            files::read(path).map(|text| serde_json::from_slice(&text).unwrap_or_default())
        else {
            found.add(Check::warn(
                name,
                format!("{shown} is not one JSON object"),
                "correct the file: the runtime ignores it",
            ));
            continue;
        };
        let plugins = network.get("plugins").and_then(Value::as_array).cloned();
        let plugins = plugins.unwrap_or_else(|| vec![Value::Object(network.clone())]);
        let has = |wanted: &str| {
            let is = |plugin: &Value| {
                plugin["type"]
                    .as_str()
                    .is_some_and(|kind| kind.starts_with(wanted))
            };
            plugins.iter().any(is)
        };
        for kind in [MULTUS, "rail-cni"].into_iter().filter(|kind| has(kind)) {
            let version = network
                .get("cniVersion")
                .and_then(Value::as_str)
                .unwrap_or("0.1.0, because it has none");
            if let (MULTUS, "1.1.0", Some(old)) = (kind, version, old) {
                let text = format!(
                    "{shown}: multus has cniVersion 1.1.0, and {old} cannot convert its results: every DEL of a pod \
                     fails, and its rails stay in use"
                );
                let remedy = format!("in {shown}, set \"cniVersion\": \"1.0.0\"");
                found.add(Check::fail(name, text, remedy));
                continue;
            }
            lines.push(format!("{shown}: {kind}, cniVersion {version}"));
        }
    }
    if lines.is_empty()
        && !found
            .0
            .iter()
            .any(|check| check.name == name && check.verdict == Verdict::Fail)
    {
        lines.push(format!(
            "{}: {}, none for multus or rail-cni",
            directory.display(),
            count(paths.len(), "network")
        ));
    }
    lines
        .into_iter()
        .for_each(|text| found.add(Check::ok(name, text)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_wherever_it_is() {
        let text = b"dep\tgithub.com/containernetworking/cni\tv1.3.0\th1:abc=\n";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("containerd");
        // At the end of the first chunk, over it, and behind it.
        for before in [
            0,
            (1 << 20) - 60,
            (1 << 20) - 44,
            (1 << 20) - 10,
            (1 << 20) + 5,
        ] {
            let mut content = vec![b'\t'; before];
            content.extend(text);
            fs::write(&path, &content).unwrap();
            assert_eq!(
                libcni_of(&path).unwrap().as_deref(),
                Some("v1.3.0"),
                "{before}"
            );
        }
        fs::write(&path, "github.com/containernetworking/cni/pkg\tv9").unwrap();
        assert_eq!(libcni_of(&path).unwrap(), None);
        fs::write(&path, "github.com/containernetworking/cni\tv1.2.3").unwrap();
        assert_eq!(libcni_of(&path).unwrap().as_deref(), Some("v1.2.3"));
    }

    #[test]
    fn a_libcni_without_version_is_known_by_what_it_contains() {
        let cni = "github.com/containernetworking/cni";
        let (library, since_1_0) = (
            format!("{cni}/libcni.(*CNIConfig)"),
            format!("{cni}/pkg/types/100.x"),
        );
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("containerd");
        for (parts, expected) in [
            (vec![library.as_str(), &since_1_0], Some("v1.0")),
            (vec![&library, &since_1_0, "disableGC"], None),
            (vec![&library], None),
            (vec![&since_1_0], None),
        ] {
            // Over the end of the first chunk.
            let text = format!("{}{}", " ".repeat((1 << 20) - 20), parts.join("\n"));
            fs::write(&path, text).unwrap();
            assert_eq!(libcni_of(&path).unwrap().as_deref(), expected, "{parts:?}");
        }
    }

    #[test]
    fn each_libcni_has_its_newest_version() {
        for (version, verdict, newest) in [
            ("v1.3.0", Verdict::Ok, "up to 1.1.0"),
            ("v1.2.0", Verdict::Ok, "up to 1.1.0"),
            ("v1.2.0-rc1", Verdict::Ok, "up to 1.1.0"),
            ("v1.1.2", Verdict::Ok, "up to 1.0.0"),
            ("v1.0", Verdict::Ok, "up to 1.0.0"),
            ("v0.8.1", Verdict::Fail, "up to 0.4.0"),
            ("(devel)", Verdict::Skip, "(devel)"),
        ] {
            let check = judged("runtime", "containerd", version);
            assert_eq!(check.verdict, verdict, "{version}");
            assert!(check.text.contains(newest), "{version}: {}", check.text);
        }
    }
}
