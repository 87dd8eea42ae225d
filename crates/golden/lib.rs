//! The messages of the programs, word for word, in one file for each of them beside this one. A
//! test names a case and hands over the text; `RAIL_GOLDEN=write` writes what it gets instead of
//! comparing it. What has to be true of a text, its code, a name or an address in it, is the test's
//! to assert: a file that is rewritten asserts nothing.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "only tests call it, and a panic is how they fail"
)]

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;

use fs4::FileExt;

/// The line before a case.
const CASE: &str = "== ";

/// Compares `text` with the case `case` of `PROGRAM.txt`.
///
/// # Panics
///
/// Panics if they differ, or if the file cannot be read or written.
#[track_caller]
pub fn says(program: &str, case: &str, text: impl Display) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{program}.txt"));
    let case = case.trim_end();
    let text = without_directories(text.to_string().trim_end());
    if std::env::var("RAIL_GOLDEN").is_ok_and(|mode| mode == "write") {
        return write(&path, case, text);
    }
    let known = cases(&std::fs::read_to_string(&path).unwrap_or_default()).remove(case);
    assert!(
        known.as_ref() == Some(&text),
        "{program}: {case}\n--- {}\n{}\n--- now\n{text}\n--- if that is as it should be: RAIL_GOLDEN=write",
        path.display(),
        known.as_deref().unwrap_or("(no such case)")
    );
}

/// Whether a message has all of these facts, between which there is an ellipsis: `f.yaml:3: mtu:
/// 900…1280 to 65535`.
pub fn has(message: &str, facts: &str) -> bool {
    facts.split('…').all(|fact| message.contains(fact))
}

/// The text with `TMP` for each directory of `tempfile`, which every run names anew.
fn without_directories(text: &str) -> String {
    let start = format!("{}/.tmp", std::env::temp_dir().display());
    let mut parts = text.split(&start);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |before, part| {
        before + "TMP" + part.trim_start_matches(|c: char| c.is_alphanumeric())
    })
}

/// The file is locked, for other tests write their cases into it.
fn write(path: &Path, case: &str, text: String) {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap();
    FileExt::lock(&file).unwrap();
    let mut before = String::new();
    file.read_to_string(&mut before).unwrap();
    let mut cases = cases(&before);
    cases.insert(case.to_owned(), text);
    let after = cases
        .iter()
        .map(|(case, text)| format!("{CASE}{case}\n{text}\n"));
    replace(&mut file, &after.collect::<Vec<_>>().join("\n"));
}

fn replace(file: &mut File, text: &str) {
    file.set_len(0).unwrap();
    file.rewind().unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// The cases of a file, each with its text.
fn cases(text: &str) -> BTreeMap<String, String> {
    let mut cases = BTreeMap::new();
    let mut case = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix(CASE) {
            case = Some(name.to_owned());
            cases.insert(name.to_owned(), String::new());
        } else if let Some(text) = case.as_ref().and_then(|case| cases.get_mut(case)) {
            text.push_str(line);
            text.push('\n');
        }
    }
    cases
        .into_iter()
        .map(|(case, text): (String, String)| (case, text.trim_end().to_owned()))
        .collect()
}
