//! The files of the repository, as the tests of documents and of layers read them.

use std::fs;
use std::path::Path;

pub fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub fn files_below(folder: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(
                    path.strip_prefix(root)
                        .unwrap()
                        .to_str()
                        .unwrap()
                        .to_owned(),
                );
            }
        }
    }
    files.sort();
    files
}

pub fn source_files() -> Vec<String> {
    let mut files = [
        "src",
        "crates/railctl/src",
        "crates/plan/src",
        "crates/netlink/src",
    ]
    .map(files_below)
    .concat();
    files.retain(|file| file.ends_with(".rs"));
    files
}

/// Blocks of code of a language.
pub fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut inside = None;
    for line in text.lines() {
        match (line.trim().strip_prefix("```"), inside) {
            (Some(of), None) => {
                inside = Some(of == language);
                if of == language {
                    found.push(String::new());
                }
            }
            (Some(_), Some(_)) => inside = None,
            (None, Some(true)) => found.last_mut().unwrap().push_str(&format!("{line}\n")),
            _ => (),
        }
    }
    found
}

pub fn in_backquotes(cell: &str) -> Vec<String> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}
