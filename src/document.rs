//! Files that people write, YAML or JSON: what is in them, and in which line each value stands.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;

use nix::fcntl::OFlag;
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// A topology of 8,192 nodes with eight rails has 90 MB.
const MAX_FILE: usize = 256 << 20;
/// What the values of a file may take, about; a page of YAML aliases could fill any memory.
const MAX_MEMORY: usize = 1 << 30;
/// No honest text makes more of itself: YAML's shortest object has four bytes.
const MEMORY_PER_BYTE: usize = 256;
/// How deep values may stand inside each other; serde_json's limit as well.
const MAX_DEPTH: usize = 127;

/// One document of a file: JSON has one, YAML any number.
#[derive(Clone, Debug)]
pub struct Document {
    /// As the user named it.
    pub file: String,
    /// What is in it.
    pub value: Value,
    /// JSON, which a container runtime reads, or YAML.
    pub is_json: bool,
    lines: Lines,
}

/// The line of a value and of all in it. Of what an object holds, the line of the key.
#[derive(Clone, Debug, Default)]
struct Lines {
    line: u32,
    /// Where the text of a literal block scalar (`key: |`) begins; 0 for others, whose lines are folded or escaped.
    text: u32,
    /// In the order of the list or of the object's sorted keys.
    inside: Box<[Lines]>,
}

/// A file that was read and not parsed.
#[derive(Clone, Debug)]
pub struct Text {
    /// As the user named it.
    pub file: String,
    /// All of it.
    pub bytes: Vec<u8>,
}

impl Text {
    /// Reads a file, `-` for stdin.
    pub fn read(file: &str) -> Result<Text, Fault> {
        let shown = if file == "-" { "stdin" } else { file };
        let bytes = bytes(file).map_err(|error| Fault::at(0, 0, error.to_string()).of(shown))?;
        Ok(Text { file: shown.to_owned(), bytes })
    }

    /// Parses JSON without the list `list` of the root, or of an object in the root: `take` gets its items one
    /// after the other, with their numbers, and they are not kept. So a list may be longer than memory has room for.
    pub fn without(&self, list: &str, take: &mut dyn FnMut(usize, Part<'_>)) -> Result<Document, Fault> {
        let mut aside = Aside { file: &self.file, list, take };
        let parsed = checked(&self.bytes).and_then(|text| json(text, Some(&mut aside)));
        let (value, lines) = parsed.map_err(|fault| fault.of(&self.file))?;
        Ok(Document { file: self.file.clone(), value, is_json: true, lines })
    }
}

/// Reads and parses a file, `-` for stdin.
pub fn read(file: &str) -> Result<Vec<Document>, Fault> {
    let text = Text::read(file)?;
    parse(&text.file, &text.bytes)
}

/// Reads several files, and tells what is wrong with any of them.
pub fn read_all(files: &[String]) -> Result<Vec<Document>, anyhow::Error> {
    parse_all(&read_texts(files)?)
}

/// Reads several files, and tells which of them cannot be.
pub fn read_texts(files: &[String]) -> Result<Vec<Text>, anyhow::Error> {
    let (mut texts, mut faults) = (Vec::new(), Vec::new());
    for file in files {
        match Text::read(file) {
            Ok(text) => texts.push(text),
            Err(error) => faults.push(error.to_string()),
        }
    }
    if !faults.is_empty() {
        crate::fail!(InvalidConfig, "{}", faults.join("; "));
    }
    Ok(texts)
}

/// Parses several files, and tells what is wrong with any of them.
pub fn parse_all(texts: &[Text]) -> Result<Vec<Document>, anyhow::Error> {
    let (mut documents, mut faults) = (Vec::new(), Vec::new());
    for Text { file, bytes } in texts {
        match parse(file, bytes) {
            Ok(none) if none.is_empty() => faults.push(format!("{file}: nothing in it")),
            Ok(some) => documents.extend(some),
            Err(error) => faults.push(error.to_string()),
        }
    }
    if !faults.is_empty() {
        crate::fail!(InvalidConfig, "{}", faults.join("; "));
    }
    Ok(documents)
}

/// Parses what a file has: one document of JSON, or any number of YAML. Empty ones are left out.
pub fn parse(file: &str, text: &[u8]) -> Result<Vec<Document>, Fault> {
    let (documents, is_json) = documents(text).map_err(|fault| fault.of(file))?;
    let named = |(value, lines)| Document { file: file.to_owned(), value, is_json, lines };
    Ok(documents.into_iter().map(named).collect())
}

/// A value of a document, which knows its lines.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    file: &'a str,
    /// The value.
    pub value: &'a Value,
    lines: &'a Lines,
}

/// Where something stands: `pools.yaml:17`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// As the user named it.
    pub file: String,
    /// From 1; 0: the file as a whole.
    pub line: u32,
    /// From 1; 0: not known.
    pub column: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        let mut known = [self.line, self.column].into_iter().take_while(|number| *number != 0);
        known.try_for_each(|number| write!(f, ":{number}"))
    }
}

/// What is wrong with a file, or with a value of it.
#[derive(Debug)]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// What; begins with the path of the value, if there is one.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

impl std::error::Error for Fault {}

impl Fault {
    fn at(line: u32, column: u32, problem: String) -> Fault {
        Fault { place: Place { file: String::new(), line, column }, problem }
    }

    fn of(mut self, file: &str) -> Fault {
        file.clone_into(&mut self.place.file);
        self
    }
}

/// `FILE:LINE, FILE:LINE: ` of where these texts stand, the first two; nothing when they are nowhere. Looks at
/// everything: for messages only.
pub fn places(documents: &[Document], texts: &[&str]) -> String {
    let mut lines: Vec<(&str, u32)> = Vec::new();
    for document in documents {
        let mut parts = vec![document.root()];
        while let Some(part) = parts.pop() {
            parts.extend(part.items());
            parts.extend(part.entries().map(|(_, part)| part));
            if part.value.as_str().is_some_and(|text| texts.contains(&text)) {
                lines.push((part.file, part.lines.line));
            }
        }
    }
    lines.sort_unstable();
    lines.dedup();
    let shown: Vec<_> = lines.iter().take(2).map(|(file, line)| format!("{file}:{line}")).collect();
    if shown.is_empty() { String::new() } else { format!("{}: ", shown.join(", ")) }
}

impl Document {
    /// All of it.
    pub fn root(&self) -> Part<'_> {
        Part { file: &self.file, value: &self.value, lines: &self.lines }
    }
}

impl<'a> Part<'a> {
    /// Where the value at `path` stands, such as `spec.routes[0].dst`; or this value, for "". What is not there is
    /// missing in what would hold it. What follows a colon and a space is not looked at, so this places a message
    /// that begins with its path. Keys may have dots.
    pub fn place(self, path: &str) -> Place {
        let path = path.split(": ").next().unwrap_or_default();
        Place { file: self.file.to_owned(), line: self.follow(path).0.lines.line, column: 0 }
    }

    /// A fault of the value with whose path `problem` begins.
    pub fn fault(self, problem: String) -> Fault {
        Fault { place: self.place(&problem), problem }
    }

    /// The value at `path`; `None` when there is none.
    pub fn get(self, path: &str) -> Option<Part<'a>> {
        let (part, rest) = self.follow(path);
        rest.is_empty().then_some(part)
    }

    /// The text at `path`.
    pub fn text(self, path: &str) -> Option<&'a str> {
        self.get(path)?.value.as_str()
    }

    /// The values of a list; none of anything else.
    pub fn items(self) -> impl Iterator<Item = Part<'a>> {
        let list = self.value.as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().zip(&self.lines.inside).map(move |(value, lines)| Part { value, lines, ..self })
    }

    /// The keys and values of an object; none of anything else.
    pub fn entries(self) -> impl Iterator<Item = (&'a str, Part<'a>)> {
        let entries = self.value.as_object().into_iter().flatten();
        let part = move |value, lines| Part { file: self.file, value, lines };
        entries.zip(&self.lines.inside).map(move |((key, value), lines)| (key.as_str(), part(value, lines)))
    }

    /// The value at `path` as a `T`; null when there is none.
    pub fn decode<T: DeserializeOwned>(self, path: &str) -> Result<T, Fault> {
        let value = self.get(path).map_or(&Value::Null, |part| part.value);
        serde_path_to_error::deserialize(value).map_err(|error| {
            let inner = error.path().to_string();
            let dot = if path.is_empty() || inner.starts_with('[') { "" } else { "." };
            let path = if inner == "." { path.to_owned() } else { format!("{path}{dot}{inner}") };
            let colon = if path.is_empty() { "" } else { ": " };
            Fault { place: self.place(&path), problem: format!("{path}{colon}{}", error.inner()) }
        })
    }

    /// The JSON that this text holds, such as `spec.config` of a NetworkAttachmentDefinition. Its lines are exact
    /// when it was written as a literal block (`|`); else all are the line where the text begins.
    pub fn json(self) -> Result<Document, Fault> {
        let Lines { line, text, .. } = *self.lines;
        let line = |inner: u32| if text == 0 { line } else { (text + inner).saturating_sub(1) };
        match json(self.value.as_str().unwrap_or_default(), None) {
            Ok((value, mut lines)) => {
                lines.each(&mut |place| *place = line(*place));
                Ok(Document { file: self.file.to_owned(), value, is_json: true, lines })
            }
            Err(Fault { place, problem }) => Err(Fault::at(line(place.line), 0, problem).of(self.file)),
        }
    }

    /// A copy whose keys are what `spell` makes of them: it is told the value, the path of what holds it, and the
    /// key. Of two keys that become one, one is kept that is not null.
    pub fn respelt(self, spell: &mut dyn FnMut(Part<'a>, &str, &str) -> String) -> Document {
        let (value, lines) = self.placed("", spell);
        Document { file: self.file.to_owned(), value, is_json: true, lines }
    }

    fn placed(self, path: &str, spell: &mut dyn FnMut(Part<'a>, &str, &str) -> String) -> Placed {
        let line = self.lines.line;
        if self.value.is_object() {
            let dot = if path.is_empty() { "" } else { "." };
            let mut entries = BTreeMap::new();
            for (key, part) in self.entries() {
                let key = spell(part, path, key);
                let below = format!("{path}{dot}{key}");
                if !part.value.is_null() || !entries.contains_key(&key) {
                    entries.insert(key, part.placed(&below, spell));
                }
            }
            return object(entries, line);
        }
        if !self.value.is_array() {
            return (self.value.clone(), self.lines.clone());
        }
        let items = self.items().enumerate().map(|(at, item)| item.placed(&format!("{path}[{at}]"), spell));
        let (values, lines): (Vec<Value>, Vec<Lines>) = items.unzip();
        (values.into(), Lines::of(line, lines))
    }

    /// Follows `path` as far as it leads; with what is left of it.
    fn follow(mut self, path: &str) -> (Part<'a>, &str) {
        let mut rest = path;
        while let Some((index, after)) = step(self.value, rest) {
            let value = match self.value {
                Value::Array(list) => list.get(index),
                Value::Object(object) => object.values().nth(index),
                _ => None,
            };
            let (Some(value), Some(lines)) = (value, self.lines.inside.get(index)) else { break };
            (self, rest) = (Part { value, lines, ..self }, after);
        }
        (self, rest)
    }
}

/// Which of the values in `value` a path goes to, and how it goes on; of keys that fit, the longest.
fn step<'a>(value: &Value, path: &'a str) -> Option<(usize, &'a str)> {
    match value {
        Value::Array(_) => {
            let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
            Some((index.parse().ok()?, rest.strip_prefix('.').unwrap_or(rest)))
        }
        Value::Object(object) if !path.is_empty() => {
            let mut ends = path.match_indices(['.', '[']).map(|(end, _)| end).chain([path.len()]);
            let end = ends.rfind(|end| object.contains_key(&path[..*end]))?;
            let index = object.keys().position(|key| *key == path[..end])?;
            let rest = &path[end..];
            Some((index, rest.strip_prefix('.').unwrap_or(rest)))
        }
        _ => None,
    }
}

impl Lines {
    fn of(line: u32, inside: Vec<Lines>) -> Lines {
        Lines { line, text: 0, inside: inside.into() }
    }

    fn each(&mut self, change: &mut impl FnMut(&mut u32)) {
        change(&mut self.line);
        for inner in &mut self.inside {
            inner.each(change);
        }
    }
}

/// The bytes of a regular file, `-` for stdin.
fn bytes(file: &str) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let limit = MAX_FILE as u64 + 1;
    if file == "-" {
        io::stdin().lock().take(limit).read_to_end(&mut text)?;
    } else {
        // A FIFO would let us wait for a writer for ever.
        let opened = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(file)?;
        if !opened.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        opened.take(limit).read_to_end(&mut text)?;
    }
    if text.len() > MAX_FILE {
        return Err(io::Error::other(format!("larger than {} MiB", MAX_FILE >> 20)));
    }
    Ok(text)
}

type Placed = (Value, Lines);

fn documents(text: &[u8]) -> Result<(Vec<Placed>, bool), Fault> {
    let text = checked(text)?;
    if text.trim_start().starts_with(['{', '[']) {
        return json(text, None).map(|document| (vec![document], true));
    }
    yaml(text).map(|documents| (documents, false))
}

/// Is it text at all?
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
    Err(Fault::at(number(line.count()), number(column + 1), problem.to_owned()))
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Counts what the values of a text take.
struct Budget {
    left: usize,
    all: usize,
}

impl Budget {
    fn of(text: &str) -> Budget {
        let all = text.len().saturating_mul(MEMORY_PER_BYTE).saturating_add(1 << 16).min(MAX_MEMORY);
        Budget { left: all, all }
    }

    fn spend(&mut self, size: usize) -> Result<(), String> {
        match self.left.checked_sub(size) {
            Some(left) => self.left = left,
            None if self.all < MAX_MEMORY => {
                return Err("aliases make more of this file than it holds".into());
            }
            None => {
                return Err(format!("its values would take more than {} MiB of memory", MAX_MEMORY >> 20));
            }
        }
        Ok(())
    }
}

/// What a value takes by itself, place included.
fn weight(value: &Value) -> usize {
    const VALUE: usize = size_of::<Value>() + size_of::<Lines>();
    VALUE
        + match value {
            Value::String(text) => text.len() + 16,
            // A map has room for eleven entries at once.
            Value::Object(object) if !object.is_empty() => {
                640 + object.keys().map(|key| key.len() + VALUE).sum::<usize>()
            }
            _ => 0,
        }
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

// ---- YAML ----

/// A list or an object that is not complete.
struct Open {
    line: u32,
    anchor: usize,
    so_far: SoFar,
}

enum SoFar {
    List(Vec<Value>, Vec<Lines>),
    /// With the key whose value is awaited.
    Object(BTreeMap<String, Placed>, Option<(String, u32)>),
}

/// YAML 1.2, what of it can be JSON. `yes` and `010` are texts.
fn yaml(text: &str) -> Result<Vec<Placed>, Fault> {
    let at = |mark: &Marker, problem: &str| {
        Fault::at(number(mark.line()), number(mark.col() + 1), format!("YAML: {problem}"))
    };
    let scan = |error: ScanError| at(error.marker(), error.info());
    let mut budget = Budget::of(text);
    let mut documents = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    let mut anchors: HashMap<usize, Placed> = HashMap::new();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(scan)?;
        let fault = |problem: &str| at(&span.start, problem);
        let line = number(span.start.line());
        let awaits_key = matches!(open.last(), Some(Open { so_far: SoFar::Object(_, None), .. }));
        if let Event::Scalar(.., Some(_))
        | Event::SequenceStart(_, Some(_))
        | Event::MappingStart(_, Some(_)) = &event
        {
            return Err(fault("tags (!) are not read: write the value without"));
        }
        let (mut placed, anchor) = match event {
            Event::SequenceStart(..) | Event::MappingStart(..) if awaits_key => {
                return Err(fault("a list or an object as a key is not read"));
            }
            Event::SequenceStart(..) | Event::MappingStart(..) if open.len() >= MAX_DEPTH => {
                return Err(fault(&format!("more than {MAX_DEPTH} values inside each other")));
            }
            Event::SequenceStart(anchor, _) => {
                open.push(Open { line, anchor, so_far: SoFar::List(Vec::new(), Vec::new()) });
                continue;
            }
            Event::MappingStart(anchor, _) => {
                open.push(Open { line, anchor, so_far: SoFar::Object(BTreeMap::new(), None) });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(Open { line, anchor, so_far: SoFar::List(values, lines) }) => {
                    ((values.into(), Lines::of(line, lines)), anchor)
                }
                Some(Open { line, anchor, so_far: SoFar::Object(entries, _) }) => {
                    (object(entries, line), anchor)
                }
                None => continue,
            },
            Event::Scalar(text, style, anchor, _) => {
                if let Some(Open { so_far: SoFar::Object(entries, key @ None), .. }) = open.last_mut() {
                    if text == "<<" && style == ScalarStyle::Plain {
                        return Err(fault("merge keys (<<) are not read: write the keys out"));
                    }
                    if entries.contains_key(text.as_ref()) {
                        return Err(fault(&format!("the key {text:?} stands twice")));
                    }
                    *key = Some((text.into_owned(), line));
                    continue;
                }
                // The span of a block begins with its first line that is not empty.
                let empty = text.len() - text.trim_start_matches('\n').len();
                let begins = if style == ScalarStyle::Literal { line - number(empty).min(line) } else { 0 };
                let value = if style == ScalarStyle::Plain { plain(&text) } else { Value::from(text) };
                ((value, Lines { line, text: begins, inside: Box::default() }), anchor)
            }
            Event::Alias(_) if awaits_key => return Err(fault("an alias as a key is not read")),
            Event::Alias(anchor) => match anchors.get(&anchor) {
                Some(placed) => {
                    copied(placed, &mut budget).map_err(|problem| fault(&problem))?;
                    if open.len() + depth(&placed.0) > MAX_DEPTH {
                        return Err(fault(&format!("more than {MAX_DEPTH} values inside each other")));
                    }
                    (placed.clone(), 0)
                }
                None => return Err(fault("an alias of a key, or inside of what it stands for, is not read")),
            },
            Event::DocumentStart(_) => {
                anchors.clear();
                continue;
            }
            _ => continue,
        };
        budget.spend(weight(&placed.0)).map_err(|problem| fault(&problem))?;
        if anchor != 0 {
            copied(&placed, &mut budget).map_err(|problem| fault(&problem))?;
            anchors.insert(anchor, placed.clone());
        }
        match open.last_mut().map(|open| &mut open.so_far) {
            Some(SoFar::List(values, lines)) => {
                values.push(placed.0);
                lines.push(placed.1);
            }
            Some(SoFar::Object(entries, key)) => {
                if let Some((key, line)) = key.take() {
                    placed.1.line = line;
                    entries.insert(key, placed);
                }
            }
            None if placed.0.is_null() => (),
            None => documents.push(placed),
        }
    }
    Ok(documents)
}

/// Pays for a copy of a value.
fn copied(placed: &Placed, budget: &mut Budget) -> Result<(), String> {
    fn whole(value: &Value) -> usize {
        weight(value)
            + match value {
                Value::Array(list) => list.iter().map(whole).sum(),
                Value::Object(object) => object.values().map(whole).sum(),
                _ => 0,
            }
    }
    budget.spend(whole(&placed.0))
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(object) => 1 + object.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// A scalar without quotes, by YAML 1.2's core schema.
fn plain(text: &str) -> Value {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let radix = |prefix, radix| {
        digits.strip_prefix(prefix).and_then(|digits| u64::from_str_radix(digits, radix).ok())
    };
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => true.into(),
        "false" | "False" | "FALSE" => false.into(),
        _ if !digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') => text.into(),
        // 010 is 8 in YAML 1.1, which kubectl reads, and 10 in 1.2.
        _ if digits.len() > 1
            && digits.starts_with('0')
            && digits.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            text.into()
        }
        _ if text == digits && radix("0x", 16).or(radix("0o", 8)).is_some() => {
            radix("0x", 16).or(radix("0o", 8)).into()
        }
        _ => {
            if let Ok(number) = text.parse::<i64>() {
                return number.into();
            }
            if let Ok(number) = text.parse::<u64>() {
                return number.into();
            }
            let number = text.parse::<f64>().ok().and_then(serde_json::Number::from_f64);
            number.map_or_else(|| text.into(), Value::Number)
        }
    }
}

// ---- JSON ----

fn json(text: &str, aside: Option<&mut Aside<'_>>) -> Result<Placed, Fault> {
    let line = Cell::new(1);
    let mut json = serde_json::Deserializer::from_reader(Counted { left: text.as_bytes(), line: &line });
    let mut budget = Budget::of(text);
    let read = Seed { line: &line, budget: &mut budget, aside: aside.map(|aside| (Level::Root, aside)) }
        .deserialize(&mut json)
        .and_then(|placed| json.end().map(|()| placed));
    read.map_err(|error| {
        let whole = error.to_string();
        let problem = whole.rsplit_once(" at line ").map_or(whole.as_str(), |(problem, _)| problem);
        Fault::at(number(error.line()), number(error.column()), format!("JSON: {problem}"))
    })
}

/// Counts lines. serde_json takes single bytes and looks one ahead at most, which is the first of the value that
/// it turns to: then the count is that value's line.
struct Counted<'a> {
    left: &'a [u8],
    line: &'a Cell<u32>,
}

impl Read for Counted<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let (Some((first, left)), Some(to)) = (self.left.split_first(), to.first_mut()) else { return Ok(0) };
        if *first == b'\n' {
            self.line.set(self.line.get() + 1);
        }
        self.left = left;
        *to = *first;
        Ok(1)
    }
}

/// A list whose items are not kept.
struct Aside<'a> {
    file: &'a str,
    list: &'a str,
    take: &'a mut dyn FnMut(usize, Part<'_>),
}

/// What a value is on the way to such a list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    InRoot,
    List,
}

/// Builds a value, and knows the line in which it begins.
struct Seed<'a, 'b> {
    line: &'a Cell<u32>,
    budget: &'a mut Budget,
    aside: Option<(Level, &'a mut Aside<'b>)>,
}

struct Builder<'a, 'b> {
    begins: u32,
    seed: Seed<'a, 'b>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Placed;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Placed, D::Error> {
        from.deserialize_any(Builder { begins: self.line.get(), seed: self })
    }
}

impl Builder<'_, '_> {
    fn leaf<E: serde::de::Error>(self, value: Value) -> Result<Placed, E> {
        self.seed.budget.spend(weight(&value)).map_err(E::custom)?;
        Ok((value, Lines::of(self.begins, Vec::new())))
    }
}

impl<'de> Visitor<'de> for Builder<'_, '_> {
    type Value = Placed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Placed, E> {
        self.leaf(value.into())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Placed, E> {
        self.leaf(value.into())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Placed, E> {
        self.leaf(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Placed, E> {
        self.leaf(value.into())
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Placed, E> {
        self.leaf(value.into())
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Placed, E> {
        self.leaf(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Placed, A::Error> {
        let Builder { begins, seed: Seed { line, budget, aside } } = self;
        if let Some((Level::List, aside)) = aside {
            let (all, mut number) = (budget.left, 0);
            while let Some((value, lines)) = from.next_element_seed(Seed { line, budget, aside: None })? {
                budget.left = all;
                (aside.take)(number, Part { file: aside.file, value: &value, lines: &lines });
                number += 1;
            }
            return Ok((Value::Array(Vec::new()), Lines::of(begins, Vec::new())));
        }
        let (mut values, mut lines) = (Vec::new(), Vec::new());
        while let Some((value, place)) = from.next_element_seed(Seed { line, budget, aside: None })? {
            values.push(value);
            lines.push(place);
        }
        let list = (values.into(), Lines::of(begins, lines));
        budget.spend(weight(&list.0)).map_err(A::Error::custom)?;
        Ok(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Placed, A::Error> {
        let Builder { begins, seed: Seed { line, budget, mut aside } } = self;
        let mut entries = BTreeMap::new();
        while let Some(key) = from.next_key::<String>()? {
            let at = line.get();
            if entries.contains_key(&key) {
                return Err(A::Error::custom(format!("the key {key:?} stands twice")));
            }
            let inner = aside.as_mut().and_then(|(level, aside)| match *level {
                Level::List => None,
                _ if key == aside.list => Some((Level::List, &mut **aside)),
                Level::Root => Some((Level::InRoot, &mut **aside)),
                Level::InRoot => None,
            });
            let (value, mut place) = from.next_value_seed(Seed { line, budget, aside: inner })?;
            place.line = at;
            entries.insert(key, (value, place));
        }
        let object = object(entries, begins);
        budget.spend(weight(&object.0)).map_err(A::Error::custom)?;
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize as _;
    use serde_json::json;

    fn values(text: &str) -> Vec<Value> {
        parse("f", text.as_bytes()).unwrap().into_iter().map(|document| document.value).collect()
    }

    fn one(text: &str) -> Document {
        parse("f", text.as_bytes()).unwrap().remove(0)
    }

    fn error(text: impl AsRef<[u8]>) -> String {
        parse("f", text.as_ref()).unwrap_err().to_string()
    }

    #[test]
    fn every_value_has_its_line() {
        let yaml = "# a comment\n---\nz:\n  y: 1\n  \"x.example.com/w\": [a,\n    b]\nlist:\n- k: 1\n  l: 2\n-\n  k: 3\n\
                    ...\n--- # next\nspec:\n    config: 1\n";
        let json = "\n{\n \"z\": {\n  \"y\": 1\n ,\"x.example.com/w\": [\"a\",\n\"b\"]},\n \"list\":[\n {\"k\":1,\n \"l\"\n:\n2},\n{\n\"k\": 3}\n]}\n";
        for (text, expected) in
            [(yaml, [3, 4, 5, 5, 6, 7, 8, 8, 9, 11, 11]), (json, [3, 4, 5, 5, 6, 7, 8, 8, 9, 12, 13])]
        {
            let document = one(text);
            let paths = [
                "z",
                "z.y",
                "z.x.example.com/w",
                "z.x.example.com/w[0]",
                "z.x.example.com/w[1]",
                "list",
                "list[0]",
                "list[0].k",
                "list[0].l",
                "list[1]",
                "list[1].k",
            ];
            for (path, line) in paths.into_iter().zip(expected) {
                assert!(document.root().get(path).is_some(), "{path}");
                assert_eq!(document.root().place(path).line, line, "{path}: {text}");
            }
        }
        let second = &parse("f", yaml.as_bytes()).unwrap()[1];
        assert_eq!(second.root().place("spec.config").to_string(), "f:15");
        assert_eq!(second.root().place("spec.missing.more: a message").line, 14);
        assert_eq!(second.root().place("spec.config: a. [message").line, 15);
        assert!(second.root().get("spec.missing").is_none());
        assert_eq!(second.root().get("spec").unwrap().place("config").line, 15);
    }

    #[test]
    fn parts_know_their_lines() {
        let document = one("a:\n- b: 1\n- b: x\n  c: 2\n");
        let items: Vec<_> = document.root().get("a").unwrap().items().collect();
        assert_eq!(items[1].place("c").line, 4);
        let entries: Vec<_> = items[1].entries().map(|(key, part)| (key, part.place("").line)).collect();
        assert_eq!(entries, [("b", 3), ("c", 4)]);
        let list = |path| document.root().decode::<Vec<BTreeMap<String, u8>>>(path).unwrap_err().to_string();
        assert!(list("a").starts_with("f:3: a[1].b: invalid type: string"), "{}", list("a"));
        assert!(list("d").starts_with("f:1: d: invalid type: null"), "{}", list("d"));
        let inner = items[1].decode::<bool>("").unwrap_err().to_string();
        assert!(inner.starts_with("f:3: invalid type: map"), "{inner}");
    }

    #[test]
    fn json_in_a_text_has_the_lines_of_the_file() {
        let json = "{ \"name\": \"r\",\n  \"mtu\": 9000,\n  \"bad\": }";
        let block = |style: &str| format!("spec:\n  config: {style}\n    {}\n", json.replace('\n', "\n    "));
        for (text, line) in [
            (block("|"), 5),
            (block("|-"), 5),
            (block("|\n"), 6),
            (block(">"), 2),
            (format!("spec:\n  config: '{}'", json.replace('\n', "\n    ")), 2),
            (format!("spec:\n  config:\n    |\n    {}", json.replace('\n', "\n    ")), 6),
            (json!({"spec": {"config": json}}).to_string(), 1),
        ] {
            let document = one(&text);
            let config = document.root().get("spec.config").unwrap();
            let fault = config.json().unwrap_err().to_string();
            assert!(fault.starts_with(&format!("f:{line}: JSON: expected value")), "{fault}: {text}");
            let document = one(&text.replace("bad\": ", "bad\": 1").replace("bad\\\": ", "bad\\\": 1"));
            let inner = document.root().get("spec.config").unwrap().json().unwrap();
            assert_eq!(inner.root().place("bad").line, line, "{text}");
            assert_eq!(inner.value["mtu"], 9000);
        }
    }

    #[test]
    fn scalars_are_those_of_yaml_1_2() {
        let yaml = "[yes, no, on, ~, null, '', true, False, 1, -1, +1, 0, 010, 0x1F, 0o17, 1.5, -1e3, .5, 1., .inf, \
                    18446744073709551615, 0.0.0.0/0, '::/0', 02:00:00:00:00:01, 172.16.0.0/31, 1_000, 2026-01-01, \
                    \"1\", 'true', -, -x, ., fd00::1, =, !]";
        let yaml = yaml.replace(", !]", "]").replace(" -,", "");
        let expected = json!([
            "yes",
            "no",
            "on",
            null,
            null,
            "",
            true,
            false,
            1,
            -1,
            1,
            0,
            "010",
            31,
            15,
            1.5,
            -1000.0,
            0.5,
            1.0,
            ".inf",
            18_446_744_073_709_551_615_u64,
            "0.0.0.0/0",
            "::/0",
            "02:00:00:00:00:01",
            "172.16.0.0/31",
            "1_000",
            "2026-01-01",
            "1",
            "true",
            "-x",
            ".",
            "fd00::1",
            "="
        ]);
        assert_eq!(values(&format!("- {yaml}")), [json!([expected])]);
        assert_eq!(values("a: !!str 1\n".replace("!!str ", "").as_str()), [json!({"a": 1})]);
        assert_eq!(values("1: a\n~: b\n"), [json!({"1": "a", "~": "b"})]);
        assert_eq!(
            values("a: |\n  x\n  y\nb: >-\n  x\n  y\nc: \"\\u00e4\\n\"\nd:\n"),
            [json!({"a": "x\ny\n", "b": "x y", "c": "ä\n", "d": null})]
        );
    }

    #[test]
    fn documents_line_ends_and_marks() {
        assert_eq!(
            values("a: 1\n---\n---\n# nothing\n---\nb: 2\n...\n---\n{c: 3}"),
            [json!({"a": 1}), json!({"b": 2}), json!({"c": 3})]
        );
        for text in [
            "\u{feff}a: 1\n",
            "\r\na: 1\r\n",
            "%YAML 1.2\n---\na: 1\n",
            "\u{feff}{\"a\": 1}",
            " {\"a\":\r\n1 }",
        ] {
            assert_eq!(values(text), [json!({"a": 1})], "{text:?}");
        }
        assert_eq!(one("a: 1\r\nb: 2\r\n").root().place("b").line, 2);
        assert_eq!(values(""), [] as [Value; 0]);
        assert_eq!(values("# nothing\n"), [] as [Value; 0]);
        let twice = one("a: &x {k: 1}\nb: *x\nc:\n- *x\n");
        assert_eq!(twice.value, json!({"a": {"k": 1}, "b": {"k": 1}, "c": [{"k": 1}]}));
        assert_eq!((twice.root().place("b").line, twice.root().place("b.k").line), (2, 1));
    }

    #[test]
    fn what_cannot_be_read_is_told_with_line_and_column() {
        let text = "apiVersion: v1\nspec:\n  a: [1,\n  b: 2\n";
        for (text, told) in [
            (text.to_owned(), "f:4:3: YAML: "),
            ("a:\n\tb: 1\n".to_owned(), "f:2:"),
            ("a: 1\n b: 2\n".to_owned(), "f:2:"),
            ("a: 'x\n".to_owned(), "f:1:4: YAML: "),
            ("a: 1\nb: 2\na: 3\n".to_owned(), "f:3:1: YAML: the key \"a\" stands twice"),
            ("{\"a\": 1,\n \"a\": 2}".to_owned(), "f:2:5: JSON: the key \"a\" stands twice"),
            ("x:\n  <<: *a\n".to_owned(), "f:2:3: YAML: merge keys (<<) are not read"),
            ("x: *a\n".to_owned(), "f:1:4: YAML: "),
            ("x: &a [*a]\n".to_owned(), "f:1:8: YAML: an alias of a key, or inside of what"),
            ("x: !!binary aGk=\n".to_owned(), "f:1:4: YAML: tags (!) are not read"),
            ("x: !secret y\n".to_owned(), "f:1:4: YAML: tags (!)"),
            ("[a, b]: c\n".to_owned(), "f:1:"),
            ("? [a, b]\n: c\n".to_owned(), "f:1:3: YAML: a list or an object as a key"),
            ("{\"a\": [1, 2\n".to_owned(), "f:2: JSON: EOF while parsing"),
            ("{\n\"a\": tru }".to_owned(), "f:2:9: JSON: expected ident"),
            ("{\"a\": 1}\n{\"b\": 1}\n".to_owned(), "f:2:1: JSON: trailing characters"),
            ("a: 1\nb: \0\n".to_owned(), "f:2:4: neither YAML nor JSON: a NUL byte"),
        ] {
            let error = error(&text);
            assert!(error.starts_with("f:") && error.contains(told), "{told}: {error}");
        }
        for (bytes, told) in [
            (&b"\x7fELF\x02\x01\x01\0\0\0\0\0"[..], "f:1:8: neither YAML nor JSON: a NUL byte"),
            (b"\x1f\x8b\x08\0\0", "f:1:2: neither YAML nor JSON: not UTF-8"),
            (b"\xff\xfea\0:\0", "f:1:1: this is UTF-16"),
            (b"a: 1\nb: \xe4\n", "f:2:4: neither YAML nor JSON: not UTF-8"),
        ] {
            assert_eq!(&error(bytes)[..told.len()], told);
        }
    }

    #[test]
    fn aliases_depth_and_size_do_no_harm() {
        let mut laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..12 {
            let alias = vec![format!("*a{}", level - 1); 10].join(",");
            laughs.push_str(&format!("a{level}: &a{level} [{alias}]\n"));
        }
        let wide = format!("a: &a [{}]\nb: [{}]\n", "x,".repeat(3000), "*a,".repeat(3000));
        let mut deep = "a0: &a0 [x]\n".to_owned();
        for level in 1..200 {
            deep.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
        }
        for text in [
            laughs,
            wide,
            deep,
            "[".repeat(5_000_000),
            format!("a: {}", "[".repeat(5_000_000)),
            format!("a: {}", "{a: ".repeat(1_000_000)),
            format!("a: {}", "{? ".repeat(1_000_000)),
            "- ".repeat(1_000_000),
            "? ".repeat(1_000_000),
            "a: &a ".repeat(100_000),
            (0..2000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect(),
        ] {
            error(text);
        }
        let many = "- {}\n".repeat(1000);
        assert_eq!(values(&many)[0].as_array().unwrap().len(), 1000);
    }

    #[test]
    fn only_regular_files_are_read() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name).display().to_string();
        nix::unistd::mkfifo(temp.path().join("fifo").as_path(), nix::sys::stat::Mode::S_IRWXU).unwrap();
        File::create(at("large")).unwrap().set_len(MAX_FILE as u64 + 1).unwrap();
        for (file, told) in [
            (at("missing"), "No such file"),
            (at(""), "not a regular file"),
            (at("fifo"), "not a regular file"),
            (at("large"), "larger than 256 MiB"),
            ("/dev/zero".to_owned(), "not a regular file"),
        ] {
            let error = read(&file).unwrap_err().to_string();
            assert!(error.starts_with(&file) && error.contains(told), "{error}");
        }
    }

    /// YAML as people write it.
    fn written() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[ -~ä]{0,12}".prop_map(Value::from),
            "[a-z\n :#]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map("[a-z. /]{1,8}", inner, 0..5)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn a_list_is_taken_item_by_item_and_not_kept() {
        let text = |json: &str| Text { file: "t.json".into(), bytes: json.as_bytes().to_vec() };
        let taken = |json: &str| {
            let mut taken = Vec::new();
            let document = text(json).without("links", &mut |number, part| {
                taken.push(format!("{} {number} {}", part.place(""), part.value));
            });
            (document.unwrap().value, taken)
        };
        let (rest, items) = taken("{\"a\": [1],\n\"links\": [[1],\n{\"links\": [2]}], \"b\": 3}");
        assert_eq!(rest, json!({"a": [1], "links": [], "b": 3}));
        assert_eq!(items, ["t.json:2 0 [1]", "t.json:3 1 {\"links\":[2]}"]);
        let (rest, items) = taken("{\"content\": {\"links\": [1, 2], \"x\": {\"links\": [3]}}}");
        assert_eq!(rest, json!({"content": {"links": [], "x": {"links": [3]}}}));
        assert_eq!(items, ["t.json:1 0 1", "t.json:1 1 2"]);
        for other in ["{\"links\": {\"links\": [1]}}", "[{\"links\": [1]}]", "[[1]]", "1", "{\"links\": 1}"] {
            let (rest, items) = taken(other);
            assert_eq!((rest, items), (serde_json::from_str(other).unwrap(), vec![]), "{other}");
        }
        let fault = text("{\"links\": [1,\n2").without("links", &mut |_, _| ()).unwrap_err();
        assert_eq!(fault.to_string(), "t.json:2:1: JSON: EOF while parsing a list");
    }

    /// Every value whose key or text stands in a line of its own is said to be there.
    fn compare(part: Part, text: &[&str], path: &str) {
        for (key, inner) in part.entries() {
            let line = inner.place("").line;
            assert!(text[line as usize - 1].contains(key), "{path}.{key}: {line}: {text:?}");
            compare(inner, text, &format!("{path}.{key}"));
        }
        for (index, inner) in part.items().enumerate() {
            compare(inner, text, &format!("{path}[{index}]"));
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[-\\[\\]{}:,&*!|>?'\"#%@ a-c0-9\n\t\r]{0,80}", bytes: Vec<u8>) {
            let _ = parse("f", text.as_bytes());
            let _ = parse("f", &bytes);
        }

        #[test]
        fn what_is_written_is_read(value in written()) {
            let wrapped = json!({"value": value});
            let json = serde_json::to_string_pretty(&wrapped).unwrap();
            prop_assert_eq!(&one(&json).value, &wrapped);
            let lines: Vec<&str> = json.lines().collect();
            compare(one(&json).root(), &lines, "");
            let yaml = yaml_serde::to_string(&wrapped).unwrap();
            let document = one(&yaml);
            prop_assert_eq!(&document.value, &wrapped, "{}", yaml);
            compare(document.root(), &yaml.lines().collect::<Vec<_>>(), "");
            // JSON is YAML.
            prop_assert_eq!(&one(&format!("---\n{json}")).value, &wrapped);
        }

        #[test]
        fn what_another_parser_reads_is_read_alike(text in "([ ]{0,4}(- )?([a-c]|'[a-c ]'|\"[a-c]\"|[1-9]{1,3})?(: |:|, )?(\\[[a-c1, ]{0,4}\\]|\\{[a-c]: [a-c1]\\}|[a-c]{1,3})?( #[a-c])?\n){1,6}") {
            let other = yaml_serde::Deserializer::from_str(&text).map(Value::deserialize).collect::<Result<Vec<_>, _>>();
            let ours = parse("f", text.as_bytes());
            if let (Ok(other), Ok(ours)) = (other, ours) {
                let other: Vec<_> = other.into_iter().filter(|value| !value.is_null()).collect();
                let ours: Vec<_> = ours.into_iter().map(|document| document.value).collect();
                prop_assert_eq!(ours, other, "{}", text);
            }
        }
    }
}
