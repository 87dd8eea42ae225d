//! Every target over its corpus, and over every input that ever showed a fault.
#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

use rail_fuzz::TARGETS;
use tempfile::TempDir;

/// The corpora, unpacked: a directory for each target.
fn corpora() -> TempDir {
    let unpacked = tempfile::tempdir().unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xzf")
        .arg(directory("corpus.tar.gz"))
        .arg("-C")
        .arg(unpacked.path());
    assert!(tar.status().unwrap().success());
    unpacked
}

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The files of a directory, if there is one.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn names(directory: &Path, ending: &str) -> BTreeSet<String> {
    let name = |file: PathBuf| {
        file.file_name()?
            .to_str()?
            .strip_suffix(ending)
            .map(str::to_owned)
    };
    files(directory).into_iter().filter_map(name).collect()
}

#[test]
fn nothing_of_the_corpora_shows_a_fault() {
    let corpora = corpora();
    let mut faults = Vec::new();
    for target in TARGETS {
        let inputs = [corpora.path(), &directory("crashes")].map(|of| files(&of.join(target.name)));
        assert!(!inputs[0].is_empty(), "{} has no corpus", target.name);
        for file in inputs.iter().flatten() {
            let data = fs::read(file).unwrap();
            if catch_unwind(AssertUnwindSafe(|| rail_fuzz::run(target.name, &data))).is_err() {
                faults.push(file.display().to_string());
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn every_target_has_an_executable_and_nothing_else_is_there() {
    let targets: BTreeSet<_> = TARGETS
        .iter()
        .map(|target| target.name.to_owned())
        .collect();
    assert_eq!(names(&directory("fuzz_targets"), ".rs"), targets);
    assert_eq!(names(corpora().path(), ""), targets);
    assert!(names(&directory("crashes"), "").is_subset(&targets));
    assert!(names(&directory("dictionaries"), ".dict").is_subset(&targets));
    let manifest = fs::read_to_string(directory("Cargo.toml")).unwrap();
    for target in TARGETS {
        assert!(
            manifest.contains(&format!("name = \"{}\"\n", target.name)),
            "{}",
            target.name
        );
        assert!(!target.what.is_empty());
        let source = fs::read_to_string(
            directory("fuzz_targets")
                .join(target.name)
                .with_extension("rs"),
        );
        assert!(
            source
                .unwrap()
                .contains(&format!("rail_fuzz::run(\"{}\", data)", target.name))
        );
    }
}
