//! Names of the tracked files, the listing of the root, and the first command of CI.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::column;
use crate::files::{blocks, in_backquotes, read};

/// Names that Windows reserves for devices, with any extension.
const RESERVED: [&str; 22] = [
    "con", "prn", "aux", "nul", "com1", "com2", "com3", "com4", "com5", "com6", "com7", "com8",
    "com9", "lpt1", "lpt2", "lpt3", "lpt4", "lpt5", "lpt6", "lpt7", "lpt8", "lpt9",
];

/// Paths of all tracked files; `None` outside of a git checkout.
fn tracked_files() -> Option<Vec<String>> {
    let root = env!("CARGO_MANIFEST_DIR");
    if !std::path::Path::new(root).join(".git").exists() {
        eprintln!("skipped: {root} is not a git checkout");
        return None;
    }
    let output = Command::new("git")
        .args(["-c", &format!("safe.directory={root}"), "-C", root])
        .args(["ls-files", "-z"])
        .output()
        .expect("git is needed to list the tracked files: scripts/test packages installs it");
    assert!(output.status.success(), "{output:?}");
    let paths = String::from_utf8(output.stdout).expect("a tracked name is not UTF-8");
    Some(paths.split_terminator('\0').map(str::to_owned).collect())
}

/// Reasons why a path cannot be checked out everywhere.
fn faults_of_names(paths: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut spellings: BTreeMap<String, String> = BTreeMap::new();
    for path in paths {
        let mut end = 0;
        for name in path.split('/') {
            let portable = |c: char| c.is_ascii_alphanumeric() || "._+@=-".contains(c);
            if name.is_empty() || !name.chars().all(portable) {
                faults.push(format!("{path:?}: a character that is not portable"));
            }
            let stem = name.split('.').next().unwrap_or_default();
            if RESERVED.contains(&stem.to_ascii_lowercase().as_str()) {
                faults.push(format!("{path:?}: {stem} is a device of Windows"));
            }
            if name.ends_with('.') {
                faults.push(format!("{path:?}: Windows drops a full stop at the end"));
            }
            // Directories, too: `Docs/a` and `docs/b` are in one directory on Windows and macOS.
            end += name.len();
            let place = &path[..end];
            let spelling = spellings
                .entry(place.to_ascii_lowercase())
                .or_insert_with(|| place.to_owned());
            if spelling != place {
                faults.push(format!("{path:?}: differs from {spelling:?} by case only"));
            }
            end += 1;
        }
    }
    faults
}

#[test]
fn every_tracked_name_can_be_checked_out_everywhere() {
    if let Some(paths) = tracked_files() {
        assert_eq!(faults_of_names(&paths), Vec::<String>::new());
    }
}

#[test]
fn names_that_some_system_refuses_are_found() {
    for path in [
        "ar :: |",
        "a b",
        "docs/a:b",
        "a\\b",
        "caf\u{e9}",
        "src/aux.rs",
        "NUL",
        "com1.txt",
        "conf/x.",
        "tab\there",
        "*",
    ] {
        let faults = faults_of_names(&[path.to_owned()]);
        assert!(!faults.is_empty(), "{path:?} was accepted");
    }
    let both = ["docs/One.md".to_owned(), "Docs/two.md".to_owned()];
    assert_eq!(faults_of_names(&both).len(), 1);
    let none = [".cargo/deny.toml".to_owned(), "a-b_c+d@e=f.1".to_owned()];
    assert_eq!(faults_of_names(&none), Vec::<String>::new());
}

#[test]
fn the_root_has_what_the_architecture_lists() {
    let Some(paths) = tracked_files() else {
        return;
    };
    let mut entries = BTreeSet::new();
    for path in &paths {
        match path.split_once('/') {
            Some((directory, _)) => entries.insert(format!("{directory}/")),
            None => entries.insert(path.clone()),
        };
    }
    let mut listed = BTreeSet::new();
    for cell in column(&read("ARCHITECTURE.md"), "## The root", 1) {
        for name in in_backquotes(&cell) {
            assert!(listed.insert(name.clone()), "{name} is listed twice");
        }
    }
    assert_eq!(entries, listed);
}

/// A failure that a newcomer would see is one of CI, too.
#[test]
fn ci_begins_with_the_test_command_of_the_readme() {
    let mut shown = None;
    for block in blocks(&read("README.md"), "console") {
        for line in block.lines() {
            let command = line.split('#').next().unwrap_or_default().trim();
            if command.starts_with("$ scripts/test") {
                shown = command.strip_prefix("$ ").map(str::to_owned);
            }
        }
    }
    let shown = shown.expect("README.md shows no scripts/test");
    let script = read(".ci/run");
    let first = script
        .lines()
        .find(|line| line.trim_start().starts_with("scripts/"));
    assert_eq!(first, Some(shown.as_str()));
}
