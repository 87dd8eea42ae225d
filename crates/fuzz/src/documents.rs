//! Input from people: YAML, JSON, and networks.

use rail_cni::log::printable;
use rail_cni::node::Node;
use rail_plan::document::{Part, parse};
use railctl::commands::lint::Lint;
use railctl::output::Output;
use serde::Deserialize as _;
use serde_json::Value;

use crate::directory::Directory;
use crate::input::parts;
use crate::judge;

/// A file of any kind, which another parser reads alike if both read it at all.
pub fn yaml(data: &[u8]) {
    let documents = match parse("f", data) {
        Ok(documents) => documents,
        Err(fault) => {
            assert_eq!(fault.place.file, "f");
            let (line, lines) = (fault.place.line as usize, lines(data));
            assert!(line <= lines, "line {line} of {lines}: {fault}");
            return judge::message(&fault.message());
        }
    };
    let lines = lines(data);
    for document in &documents {
        walk(document.root(), lines, 0);
    }
    let Ok(text) = std::str::from_utf8(data) else {
        panic!("not UTF-8, and read")
    };
    let ours: Vec<_> = documents
        .into_iter()
        .map(|document| document.value)
        .collect();
    if text
        .trim_start_matches('\u{feff}')
        .trim_start()
        .starts_with(['{', '['])
    {
        let theirs: Value =
            serde_json::from_str(text.trim_start_matches('\u{feff}')).expect("JSON");
        assert_eq!(ours, [theirs]);
        return;
    }
    // Numbers that JSON does not have: they are texts here, and null there, like an empty document.
    if [".inf", ".nan"]
        .iter()
        .any(|number| text.to_ascii_lowercase().contains(number))
    {
        return;
    }
    // In YAML 1.2 the name of an anchor has any letters, and a plain scalar in brackets may begin
    // with a question mark. The other parser reads 1.1. It adds the end of the last line to a
    // block, also to one that is a key.
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_,[]{}".contains(letter);
    let is_anchor = |word: &str| {
        word.strip_prefix(['&', '*'])
            .is_some_and(|name| !name.chars().all(is_letter))
    };
    let asks = |begin: &str| text.contains(begin);
    if text.split_ascii_whitespace().any(is_anchor)
        || ["[?", "{?", ",?", " ?", "? >", "? |"].into_iter().any(asks)
    {
        return;
    }
    // The parser that is used here reads more as part of a block: the line behind a carriage return
    // without a line feed, and all that follows a block which is a document of its own. Nothing
    // reads a text instead of an object.
    let is_block = |line: &str| {
        line.trim_start_matches("---")
            .trim_start()
            .starts_with(['>', '|'])
    };
    if text.replace("\r\n", "\n").contains('\r') || text.lines().any(is_block) {
        return;
    }
    // A byte order mark at the begin of a line is part of a plain scalar there, and of nothing
    // here.
    if text.trim_start_matches('\u{feff}').contains('\u{feff}') {
        return;
    }
    let theirs: Result<Vec<_>, _> = yaml_serde::Deserializer::from_str(text)
        .map(Value::deserialize)
        .collect();
    if let Ok(theirs) = theirs {
        let theirs: Vec<_> = theirs
            .into_iter()
            .filter(|value| !value.is_null())
            .collect();
        assert!(
            alike(&Value::from(ours.clone()), &Value::from(theirs.clone())),
            "{ours:?}\n{theirs:?}"
        );
    }
}

/// The number of lines, with the one behind the last: YAML takes a carriage return for the end of a
/// line, too.
fn lines(data: &[u8]) -> usize {
    data.iter()
        .filter(|byte| matches!(byte, b'\n' | b'\r'))
        .count()
        + 2
}

/// Every value has a line of the file.
fn walk(part: Part<'_>, lines: usize, depth: usize) {
    assert!(depth < 200);
    let place = part.place("");
    assert!(
        (1..=lines).contains(&(place.line as usize)),
        "line {} of {lines}",
        place.line
    );
    part.items().for_each(|item| walk(item, lines, depth + 1));
    part.entries()
        .for_each(|(_, entry)| walk(entry, lines, depth + 1));
    if part.value.is_string() {
        if let Ok(inner) = part.json() {
            assert!(inner.root().place("").line >= place.line.min(1));
        }
    }
}

/// Compares all but scalars, of which YAML 1.1 and 1.2 think differently.
fn alike(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len()
                && ours
                    .iter()
                    .zip(theirs)
                    .all(|(one, other)| alike(one, other))
        }
        (Value::Object(ours), Value::Object(theirs)) => {
            ours.len() == theirs.len()
                && ours
                    .iter()
                    .zip(theirs)
                    .all(|(one, other)| one.0 == other.0 && alike(one.1, other.1))
        }
        // Of a block, the last line of a file may lack its end.
        (Value::String(ours), Value::String(theirs)) => {
            ours == theirs || *ours == format!("{theirs}\n")
        }
        (Value::Array(_) | Value::Object(_), _) | (_, Value::Array(_) | Value::Object(_)) => false,
        // 010, 0x1F, 1_000, .inf and the like.
        (ours, theirs) => {
            ours == theirs || ours.is_number() || theirs.is_number() || ours.is_string()
        }
    }
}

/// Parts: the networks of a cluster that are NADs, and a file of a runtime.
pub fn networks(data: &[u8]) {
    let parts = parts(data, 2);
    let directory = Directory::new();
    let files: Vec<_> = ["nads.yaml", "10-rail.conflist"]
        .iter()
        .zip(&parts)
        .map(|(name, part)| directory.write(name, part))
        .collect();
    let mut node = Node::default();
    node.cluster_networks = vec!["10.96.0.0/12".parse().expect("a network")];
    let lint = Lint::of(&files, node.clone());
    let text = lint.text(Output::Table);
    for line in text.lines() {
        assert_eq!(printable(line), line);
    }
    let told: Value = serde_json::from_str(&lint.text(Output::Json)).expect("JSON");
    let findings = told["findings"].as_array().expect("a list");
    // The last line has the numbers.
    assert_eq!(text.lines().count(), findings.len() + 1, "{text}");
    for finding in findings {
        let file = finding["file"].as_str().expect("a file");
        let at = files
            .iter()
            .position(|one| one == file)
            .unwrap_or_else(|| panic!("no such file: {finding}"));
        let lines = lines(parts[at]) as u64;
        assert!(
            finding["line"]
                .as_u64()
                .is_none_or(|line| (1..=lines).contains(&line)),
            "{finding}"
        );
        assert!(!finding["message"].as_str().expect("a text").is_empty());
    }
    let again = Lint::of(&files, node);
    assert_eq!(again.text(Output::Table), text);
}
