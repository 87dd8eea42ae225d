//! YAML 1.2, as far as JSON can have it, with what kubectl reads besides: quoted texts whose lines
//! begin at the left margin, and merge keys (`<<`).

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use granit_parser::{Event, Marker, Options, Parser, ScalarStyle, Tag};
use serde_json::Value;

use super::budget::{Budget, MAX_DEPTH, copied, depth, weight};
use super::{Lines, Placed, fault_at, number, object};
use rail_cni::fault::Fault;

/// A list or an object whose end has not come yet.
struct Open {
    line: u32,
    anchor: usize,
    so_far: SoFar,
}

enum SoFar {
    List(Vec<Value>, Vec<Lines>),
    Object(Object),
}

#[derive(Default)]
struct Object {
    entries: BTreeMap<String, Placed>,
    /// The key whose value comes next.
    key: Option<Key>,
    /// The objects of merge keys, in their order.
    merged: Vec<Placed>,
}

enum Key {
    Text(String, u32),
    Merge,
}

/// The state of the parser.
struct Reader {
    budget: Budget,
    documents: Vec<Placed>,
    open: Vec<Open>,
    anchors: HashMap<usize, Placed>,
}

/// Parses the documents of a text. `yes` and `010` are texts: YAML 1.1 and 1.2 disagree about them.
pub(super) fn yaml(text: &str) -> Result<Vec<Placed>, Fault> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    let mut reader = Reader {
        budget: Budget::of(text),
        documents: Vec::new(),
        open: Vec::new(),
        anchors: HashMap::new(),
    };
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| yaml_fault(error.marker(), &error.info()))?;
        let line = number(span.start.line());
        reader
            .take(event, line)
            .map_err(|problem| yaml_fault(&span.start, &problem))?;
    }
    Ok(reader.documents)
}

/// A fault at a mark of the parser, which counts columns from 0.
fn yaml_fault(mark: &Marker, problem: &str) -> Fault {
    let line = number(mark.line());
    let column = number(mark.col() + 1);
    fault_at(line, column, format!("YAML: {problem}"))
}

impl Reader {
    fn take(&mut self, event: Event, line: u32) -> Result<(), String> {
        let awaits_key = matches!(
            self.open.last(),
            Some(Open {
                so_far: SoFar::Object(Object { key: None, .. }),
                ..
            })
        );
        match event {
            Event::SequenceStart(..) | Event::MappingStart(..) if awaits_key => {
                Err("a key cannot be a list or an object".to_owned())
            }
            Event::SequenceStart(_, anchor, tag) => {
                refuse_tag(tag.as_deref(), &["seq"])?;
                self.begin(line, anchor, SoFar::List(Vec::new(), Vec::new()))
            }
            Event::MappingStart(_, anchor, tag) => {
                refuse_tag(tag.as_deref(), &["map"])?;
                self.begin(line, anchor, SoFar::Object(Object::default()))
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open {
                    line,
                    anchor,
                    so_far: SoFar::List(values, lines),
                }) => self.place((values.into(), Lines::of(line, lines)), anchor),
                Some(Open {
                    line,
                    anchor,
                    so_far: SoFar::Object(inner),
                }) => self.place(inner.end(line), anchor),
                None => Ok(()),
            },
            Event::Scalar(text, style, _, tag) if awaits_key => {
                refuse_tag(tag.as_deref(), &["str"])?;
                self.key(text, style, line)
            }
            Event::Scalar(text, style, anchor, tag) => {
                let placed = scalar(text, style, tag.as_deref(), line)?;
                self.place(placed, anchor)
            }
            Event::Alias(_) if awaits_key => Err("a key cannot be an alias".to_owned()),
            Event::Alias(anchor) => self.alias(anchor),
            Event::DocumentStart(..) => {
                self.anchors.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, line: u32, anchor: usize, so_far: SoFar) -> Result<(), String> {
        if self.open.len() >= MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} values inside each other"));
        }
        self.open.push(Open {
            line,
            anchor,
            so_far,
        });
        Ok(())
    }

    fn key(&mut self, text: Cow<str>, style: ScalarStyle, line: u32) -> Result<(), String> {
        let Some(Open {
            so_far: SoFar::Object(object),
            ..
        }) = self.open.last_mut()
        else {
            return Ok(());
        };
        if object.entries.contains_key(text.as_ref()) {
            return Err(format!("the key {text:?} is given twice"));
        }
        object.key = Some(match style {
            ScalarStyle::Plain if text == "<<" => Key::Merge,
            _ => Key::Text(text.into_owned(), line),
        });
        Ok(())
    }

    fn alias(&mut self, anchor: usize) -> Result<(), String> {
        let Some(placed) = self.anchors.get(&anchor) else {
            return Err("an alias of a key, or inside its own value, is not supported".to_owned());
        };
        copied(placed, &mut self.budget)?;
        if self.open.len() + depth(&placed.0) > MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} values inside each other"));
        }
        let placed = placed.clone();
        self.place(placed, 0)
    }

    /// Puts a whole value where it belongs.
    fn place(&mut self, mut placed: Placed, anchor: usize) -> Result<(), String> {
        self.budget.spend(weight(&placed.0))?;
        if anchor != 0 {
            copied(&placed, &mut self.budget)?;
            self.anchors.insert(anchor, placed.clone());
        }
        match self.open.last_mut().map(|open| &mut open.so_far) {
            Some(SoFar::List(values, lines)) => {
                values.push(placed.0);
                lines.push(placed.1);
            }
            Some(SoFar::Object(object)) => match object.key.take() {
                Some(Key::Text(key, line)) => {
                    placed.1.line = line;
                    object.entries.insert(key, placed);
                }
                Some(Key::Merge) => object.merge(placed)?,
                None => (),
            },
            None if placed.0.is_null() => (),
            None => self.documents.push(placed),
        }
        Ok(())
    }
}

impl Object {
    /// Notes the object, or the list of objects, of a merge key.
    fn merge(&mut self, placed: Placed) -> Result<(), String> {
        let all = match placed {
            (Value::Array(list), lines) => list.into_iter().zip(lines.inside).collect(),
            one => vec![one],
        };
        if !all.iter().all(|(value, _)| value.is_object()) {
            return Err("<<: neither an object nor a list of objects".to_owned());
        }
        self.merged.extend(all);
        Ok(())
    }

    /// Its own keys count, then those of the merged objects in their order.
    fn end(mut self, line: u32) -> Placed {
        for (value, lines) in self.merged {
            let Value::Object(inner) = value else {
                continue;
            };
            for ((key, value), lines) in inner.into_iter().zip(lines.inside) {
                self.entries.entry(key).or_insert((value, lines));
            }
        }
        object(self.entries, line)
    }
}

/// The name of a tag of YAML's own, such as `str` of `!!str`; nothing for a program's.
fn tag_name(tag: &Tag) -> Option<&str> {
    match (tag.handle(), tag.suffix()) {
        ("tag:yaml.org,2002:", name) => Some(name),
        // A scalar with the tag `!` is a text.
        ("", "!") | ("!", "") => Some("str"),
        _ => None,
    }
}

fn refuse_tag(tag: Option<&Tag>, allowed: &[&str]) -> Result<(), String> {
    if tag.is_some_and(|tag| tag_name(tag).is_none_or(|name| !allowed.contains(&name))) {
        return Err("tags (!) are not supported: remove this one".to_owned());
    }
    Ok(())
}

fn scalar(
    text: Cow<str>,
    style: ScalarStyle,
    tag: Option<&Tag>,
    line: u32,
) -> Result<Placed, String> {
    refuse_tag(tag, &["str", "int", "float", "bool", "null"])?;
    // The span of a block begins with its first line that is not empty.
    let empty = text.len() - text.trim_start_matches('\n').len();
    let begins = if style == ScalarStyle::Literal {
        line - number(empty).min(line)
    } else {
        0
    };
    let is_plain = match tag.and_then(tag_name) {
        Some(name) => name != "str",
        None => style == ScalarStyle::Plain,
    };
    let value = if is_plain {
        plain(&text)
    } else {
        Value::from(text)
    };
    Ok((
        value,
        Lines {
            line,
            text: begins,
            inside: Box::default(),
        },
    ))
}

/// A scalar without quotes, by YAML 1.2's core schema.
fn plain(text: &str) -> Value {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let radix = |prefix, radix| {
        digits
            .strip_prefix(prefix)
            .and_then(|digits| u64::from_str_radix(digits, radix).ok())
    };
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => true.into(),
        "false" | "False" | "FALSE" => false.into(),
        _ if !digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') => {
            text.into()
        }
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
            let number = text
                .parse::<f64>()
                .ok()
                .and_then(serde_json::Number::from_f64);
            number.map_or_else(|| text.into(), Value::Number)
        }
    }
}
