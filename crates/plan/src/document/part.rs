//! A value of a document: how it is found by its path, and its line.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::json::json;
use super::{Document, Format, Lines, Placed, object, of_template};
use rail_cni::fault::{Fault, Place};

/// A value of a document, which knows its lines.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    pub(super) file: &'a str,
    /// The value.
    pub value: &'a Value,
    pub(super) lines: &'a Lines,
}

impl<'a> Part<'a> {
    /// The position of the value at `path`, such as `spec.routes[0].dst`, or of this value for "".
    /// A value that is missing has the position of the object that would hold it. Keys may have
    /// dots.
    pub fn place(self, path: &str) -> Place {
        Place {
            file: self.file.to_owned(),
            line: self.follow(path).0.lines.line,
            column: 0,
        }
    }

    /// A fault of the value at `path`.
    pub fn fault(self, path: &str, problem: impl Into<String>) -> Fault {
        Fault::new(path, problem).at(self.place(path))
    }

    /// Adds the position to a fault whose path begins at this value.
    pub fn locate(self, fault: Fault) -> Fault {
        let place = self.place(&fault.path);
        fault.at(place)
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
        list.iter()
            .zip(&self.lines.inside)
            .map(move |(value, lines)| Part {
                value,
                lines,
                ..self
            })
    }

    /// The keys and values of an object; none of anything else.
    pub fn entries(self) -> impl Iterator<Item = (&'a str, Part<'a>)> {
        let entries = self.value.as_object().into_iter().flatten();
        let part = move |value, lines| Part {
            file: self.file,
            value,
            lines,
        };
        entries
            .zip(&self.lines.inside)
            .map(move |((key, value), lines)| (key.as_str(), part(value, lines)))
    }

    /// The value at `path` as a `T`; null when there is none.
    pub fn decode<T: DeserializeOwned>(self, path: &str) -> Result<T, Fault> {
        let value = self.get(path).map_or(&Value::Null, |part| part.value);
        serde_path_to_error::deserialize(value).map_err(|error| {
            let inner = error.path().to_string();
            let dot = if path.is_empty() || inner.starts_with('[') {
                ""
            } else {
                "."
            };
            let path = if inner == "." {
                path.to_owned()
            } else {
                format!("{path}{dot}{inner}")
            };
            self.fault(&path, error.inner().to_string())
        })
    }

    /// The JSON that this text holds, such as `spec.config` of a NetworkAttachmentDefinition. Its
    /// lines are exact if it was written as a literal block (`|`); otherwise all have the line
    /// where the text begins.
    pub fn json(self) -> Result<Document, Fault> {
        let Lines { line, text, .. } = *self.lines;
        let line = |inner: u32| {
            if text == 0 {
                line
            } else {
                (text + inner).saturating_sub(1)
            }
        };
        match json(self.value.as_str().unwrap_or_default(), None) {
            Ok((value, mut lines)) => {
                lines.each(&mut |place| *place = line(*place));
                Ok(Document {
                    file: self.file.to_owned(),
                    value,
                    format: Format::Json,
                    lines,
                })
            }
            Err(mut fault) => {
                fault.place = Place {
                    line: line(fault.place.line),
                    ..Place::file(self.file)
                };
                Err(of_template(fault, self.value.as_str().unwrap_or_default()))
            }
        }
    }

    /// Another value in the place of this one: all of it has this line.
    pub fn instead(self, value: Value) -> Document {
        let lines = Lines::all(self.lines.line, &value);
        Document {
            file: self.file.to_owned(),
            value,
            format: Format::Json,
            lines,
        }
    }

    /// A copy whose keys are what `spell` makes of them. `spell` gets the value, the path of the
    /// object that holds it, and the key. Of two keys that become one, the copy keeps one that is
    /// not null.
    pub fn respelt(self, spell: &mut dyn FnMut(Part<'a>, &str, &str) -> String) -> Document {
        let (value, lines) = self.placed("", spell);
        Document {
            file: self.file.to_owned(),
            value,
            format: Format::Json,
            lines,
        }
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
        let items = self
            .items()
            .enumerate()
            .map(|(at, item)| item.placed(&format!("{path}[{at}]"), spell));
        let (values, lines): (Vec<Value>, Vec<Lines>) = items.unzip();
        (values.into(), Lines::of(line, lines))
    }

    /// Follows `path` as far as it leads, and returns the rest of it.
    fn follow(mut self, path: &str) -> (Part<'a>, &str) {
        let mut rest = path;
        while let Some((index, after)) = step(self.value, rest) {
            let value = match self.value {
                Value::Array(list) => list.get(index),
                Value::Object(object) => object.values().nth(index),
                _ => None,
            };
            let (Some(value), Some(lines)) = (value, self.lines.inside.get(index)) else {
                break;
            };
            (self, rest) = (
                Part {
                    value,
                    lines,
                    ..self
                },
                after,
            );
        }
        (self, rest)
    }
}

/// The index of the value in `value` that a path leads to, and the rest of the path. The longest
/// key that fits counts.
fn step<'a>(value: &Value, path: &'a str) -> Option<(usize, &'a str)> {
    match value {
        Value::Array(_) => {
            let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
            Some((index.parse().ok()?, rest.strip_prefix('.').unwrap_or(rest)))
        }
        Value::Object(object) if !path.is_empty() => {
            let mut ends = path
                .match_indices(['.', '['])
                .map(|(end, _)| end)
                .chain([path.len()]);
            let end = ends.rfind(|end| object.contains_key(&path[..*end]))?;
            let index = object.keys().position(|key| *key == path[..end])?;
            let rest = &path[end..];
            Some((index, rest.strip_prefix('.').unwrap_or(rest)))
        }
        _ => None,
    }
}

impl Lines {
    pub(super) fn of(line: u32, inside: Vec<Lines>) -> Lines {
        Lines {
            line,
            text: 0,
            inside: inside.into(),
        }
    }

    fn all(line: u32, value: &Value) -> Lines {
        let inside: Vec<Lines> = match value {
            Value::Array(list) => list.iter().map(|inner| Lines::all(line, inner)).collect(),
            Value::Object(object) => object
                .values()
                .map(|inner| Lines::all(line, inner))
                .collect(),
            _ => Vec::new(),
        };
        Lines::of(line, inside)
    }

    pub(super) fn each(&mut self, change: &mut impl FnMut(&mut u32)) {
        change(&mut self.line);
        for inner in &mut self.inside {
            inner.each(change);
        }
    }
}
