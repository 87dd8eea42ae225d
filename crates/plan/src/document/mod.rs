//! Files that people write, YAML or JSON: their values, and the line of each value.

mod budget;
mod json;
mod part;
mod yaml;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nix::fcntl::OFlag;
use serde_json::Value;

use json::{Aside, json};
use rail_cni::fault::{Fault, Place, some_of};
use yaml::yaml;

pub use part::Part;

/// A topology of 8,192 nodes with eight rails has 90 MB.
const MAX_FILE: usize = 256 << 20;

/// One document of a file: JSON has one, YAML any number.
#[derive(Clone, Debug)]
pub struct Document {
    /// The file as the user named it.
    pub file: String,
    /// The content.
    pub value: Value,
    /// The language that it was written in.
    pub format: Format,
    lines: Lines,
}

/// The language of a document. Container runtimes read JSON only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The text begins with a brace or a bracket.
    Json,
    /// Any other text.
    Yaml,
}

/// The lines of a value and of all values in it, counted from 1. A value of an object has the line
/// of its key.
#[derive(Clone, Debug, Default)]
struct Lines {
    line: u32,
    /// The first line of the text of a literal block scalar (`key: |`); 0 for others, whose lines
    /// are folded or escaped.
    text: u32,
    /// The lines of its items, in the order of the list or of the object's sorted keys.
    inside: Box<[Lines]>,
}

/// A file that was read and not parsed.
#[derive(Clone, Debug)]
pub struct Text {
    /// The file as the user named it.
    pub file: String,
    /// The whole content.
    pub bytes: Vec<u8>,
}

impl Text {
    /// Reads a file, `-` for stdin.
    pub fn read(file: &str) -> Result<Text, Fault> {
        let shown = if file == "-" { "stdin" } else { file };
        let bytes = read_bytes(file)
            .map_err(|error| Fault::whole(error.to_string()).at(Place::file(shown)))?;
        Ok(Text {
            file: shown.to_owned(),
            bytes,
        })
    }

    /// Parses JSON without the list `list` of the root, or of an object in the root: `take` gets
    /// its items one after the other, with their numbers, and they are not kept. So a list may be
    /// longer than memory has room for.
    pub fn without(
        &self,
        list: &str,
        take: &mut dyn FnMut(usize, Part<'_>),
    ) -> Result<Document, Fault> {
        let mut aside = Aside {
            file: &self.file,
            list,
            take,
        };
        let parsed = checked(&self.bytes).and_then(|text| json(text, Some(&mut aside)));
        let (value, lines) = parsed.map_err(|fault| in_file(fault, &self.file))?;
        Ok(Document {
            file: self.file.clone(),
            value,
            format: Format::Json,
            lines,
        })
    }
}

/// The files with one of these extensions in a directory and below, in the order of their names.
/// Links to directories are left out, and hidden entries: .git, the versions of a mounted ConfigMap,
/// the locks of an editor.
pub fn files_below(directory: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, Fault> {
    let unreadable = |error: io::Error| {
        Fault::whole(error.to_string()).at(Place::file(directory.display().to_string()))
    };
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        entries.push(entry.map_err(unreadable)?);
    }
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.path();
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if is_hidden {
            continue;
        }
        if entry.file_type().map_err(unreadable)?.is_dir() {
            files.extend(files_below(&path, extensions)?);
        } else if has_extension(&path, extensions) && !path.is_dir() {
            files.push(path);
        }
    }
    Ok(files)
}

/// Whether the name of the file ends in a dot and one of these extensions.
pub fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| extensions.contains(&extension))
}

/// The paths, with the YAML and JSON files below a directory in its place. Fails for a directory
/// without any.
pub fn with_files_below(paths: &[String]) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for path in paths {
        if !Path::new(path).is_dir() {
            files.push(path.clone());
            continue;
        }
        let below = files_below(Path::new(path), &["json", "yaml", "yml"])
            .or_else(|fault| rail_cni::fail!(InvalidConfig, "{fault}"))?;
        if below.is_empty() {
            rail_cni::fail!(
                InvalidConfig,
                "{path}: no .json, .yaml or .yml in this directory"
            );
        }
        for file in below {
            files.push(file.display().to_string());
        }
    }
    Ok(files)
}

/// Reads and parses a file, `-` for stdin.
pub fn read(file: &str) -> Result<Vec<Document>, Fault> {
    let text = Text::read(file)?;
    parse(&text.file, &text.bytes)
}

/// Reads and parses several files. One error names everything that is wrong with any of them.
pub fn read_all(files: &[String]) -> Result<Vec<Document>> {
    parse_all(&read_texts(files)?)
}

/// Reads several files. One error names all that cannot be read.
pub fn read_texts(files: &[String]) -> Result<Vec<Text>> {
    let mut texts = Vec::new();
    let mut faults = Vec::new();
    for file in files {
        match Text::read(file) {
            Ok(text) => texts.push(text),
            Err(fault) => faults.push(fault),
        }
    }
    if !faults.is_empty() {
        rail_cni::fail!(InvalidConfig, "{}", some_of(&faults));
    }
    Ok(texts)
}

/// Parses several files. One error names everything that is wrong with any of them.
pub fn parse_all(texts: &[Text]) -> Result<Vec<Document>> {
    let mut documents = Vec::new();
    let mut faults = Vec::new();
    for Text { file, bytes } in texts {
        match parse(file, bytes) {
            Ok(parsed) if parsed.is_empty() => {
                faults.push(Fault::whole("the file is empty").at(Place::file(file)))
            }
            Ok(parsed) => documents.extend(parsed),
            Err(fault) => faults.push(fault),
        }
    }
    if !faults.is_empty() {
        rail_cni::fail!(InvalidConfig, "{}", some_of(&faults));
    }
    Ok(documents)
}

/// Parses the text of a file: one document of JSON, or any number of YAML. Empty documents are left
/// out.
pub fn parse(file: &str, text: &[u8]) -> Result<Vec<Document>, Fault> {
    let is_strict = [".json", ".conf", ".conflist"]
        .iter()
        .any(|end| file.ends_with(end));
    let (documents, format) = documents(text, is_strict).map_err(|fault| in_file(fault, file))?;
    let named = |(value, lines)| Document {
        file: file.to_owned(),
        value,
        format,
        lines,
    };
    Ok(documents.into_iter().map(named).collect())
}

impl Document {
    /// The whole document.
    pub fn root(&self) -> Part<'_> {
        Part {
            file: &self.file,
            value: &self.value,
            lines: &self.lines,
        }
    }
}

/// Reads a regular file of at most [`MAX_FILE`] bytes, `-` for stdin.
fn read_bytes(file: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = MAX_FILE as u64 + 1;
    if file == "-" {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)?;
    } else {
        // Non-blocking: opening a FIFO would wait for a writer.
        let opened = File::options()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(file)?;
        if !opened.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        opened.take(limit).read_to_end(&mut bytes)?;
    }
    if bytes.len() > MAX_FILE {
        return Err(io::Error::other(format!(
            "larger than {} MiB",
            MAX_FILE >> 20
        )));
    }
    Ok(bytes)
}

/// A value with its lines.
type Placed = (Value, Lines);

/// Parses a text. One that begins like JSON may be YAML: with keys without quotes, or with several
/// documents. kubectl reads that, but most readers of a .json file do not: it is a fault if
/// `is_strict`.
fn documents(text: &[u8], is_strict: bool) -> Result<(Vec<Placed>, Format), Fault> {
    let text = checked(text)?;
    if is_ini(text) {
        let problem = "an INI file, such as those of systemd-networkd and NetworkManager, is not read: hosts have netplan files";
        return Err(fault_at(1, 1, problem.to_owned()));
    }
    let parsed = if text.trim_start().starts_with(['{', '[']) {
        match json(text, None) {
            Ok(document) => Ok((vec![document], Format::Json)),
            Err(fault) if is_strict || !is_flow(text) => Err(fault),
            // For a text that is no YAML either, the fault of the JSON is reported.
            Err(fault) => match yaml(text) {
                Ok(documents) => Ok((documents, Format::Yaml)),
                Err(_) => Err(fault),
            },
        }
    } else {
        yaml(text).map(|documents| (documents, Format::Yaml))
    };
    parsed.map_err(|fault| of_template(fault, text))
}

/// Whether the first key has no quotes, or a line separates two documents.
fn is_flow(text: &str) -> bool {
    let first = text.trim_start_matches(|one: char| one.is_whitespace() || "[{".contains(one));
    !first.starts_with(['"', '}', ']']) || text.lines().any(|line| line.starts_with("---"))
}

/// Whether the first line that is not empty and no comment is `[Section]`. A list of JSON has no
/// words without quotes.
fn is_ini(text: &str) -> bool {
    let first = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with(['#', ';']));
    let section = first
        .and_then(|line| line.strip_prefix('[')?.strip_suffix(']'))
        .unwrap_or_default();
    section.starts_with(|first: char| first.is_ascii_alphabetic())
        && section
            .chars()
            .all(|one| one.is_ascii_alphanumeric() || one == '-')
        && !["true", "false", "null"].contains(&section)
}

/// Says what to do with a text that Helm, Jinja or a shell is to make YAML or JSON of.
fn of_template(fault: Fault, text: &str) -> Fault {
    match ["{{", "{%", "${"]
        .into_iter()
        .find(|sign| text.contains(sign))
    {
        Some(sign) => fault.remedy(format!(
            "this may be a template ({sign}): read what its tool makes of it"
        )),
        None => fault,
    }
}

/// The bytes as text, without a byte order mark. Fails for binary files and for UTF-16.
fn checked(bytes: &[u8]) -> Result<&str, Fault> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let nul = bytes.iter().position(|byte| *byte == 0);
    let (end, problem) = match std::str::from_utf8(bytes) {
        _ if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") => {
            (0, "this is UTF-16: save it as UTF-8")
        }
        Err(error) if nul.is_none_or(|nul| nul > error.valid_up_to()) => {
            (error.valid_up_to(), "neither YAML nor JSON: not UTF-8")
        }
        Ok(text) if nul.is_none() => return Ok(text),
        _ => (nul.unwrap_or(0), "neither YAML nor JSON: a NUL byte"),
    };
    let before = &bytes[..end];
    let line = before.split(|byte| *byte == b'\n');
    let column = line.clone().next_back().map_or(0, <[u8]>::len);
    Err(fault_at(
        number(line.count()),
        number(column + 1),
        problem.to_owned(),
    ))
}

/// A fault of a text whose file is not known yet; the line and the column count from 1, and 0 is
/// unknown.
fn fault_at(line: u32, column: u32, problem: String) -> Fault {
    Fault::whole(problem).at(Place {
        file: String::new(),
        line,
        column,
    })
}

fn in_file(mut fault: Fault, file: &str) -> Fault {
    file.clone_into(&mut fault.place.file);
    fault
}

/// As a number of a line or a column, of which no file has more.
fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// An object from its entries. `Lines` has the order of `Map`: both are sorted.
fn object(entries: BTreeMap<String, Placed>, line: u32) -> Placed {
    let mut lines = Vec::with_capacity(entries.len());
    let values = entries.into_iter().map(|(key, (value, place))| {
        lines.push(place);
        (key, value)
    });
    let values = Value::Object(values.collect());
    (values, Lines::of(line, lines))
}

#[cfg(test)]
mod tests;
