//! YAML 1.2, as far as JSON can have it.

use std::collections::{BTreeMap, HashMap};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError};
use serde_json::Value;

use super::budget::{Budget, MAX_DEPTH, copied, depth, weight};
use super::{Lines, Placed, fault_at, number, object};
use crate::fault::Fault;

/// A list or an object whose end has not come yet.
struct Open {
    line: u32,
    anchor: usize,
    so_far: SoFar,
}

enum SoFar {
    List(Vec<Value>, Vec<Lines>),
    /// With the key whose value comes next.
    Object(BTreeMap<String, Placed>, Option<(String, u32)>),
}

/// Parses the documents of a text. `yes` and `010` are texts, as in YAML 1.2.
pub(super) fn yaml(text: &str) -> Result<Vec<Placed>, Fault> {
    let at = |mark: &Marker, problem: &str| {
        fault_at(number(mark.line()), number(mark.col() + 1), format!("YAML: {problem}"))
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
            return Err(fault("tags (!) are not read: write the value without its tag"));
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
                        return Err(fault(&format!("the key {text:?} is given twice")));
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
                None => {
                    return Err(fault("an alias of a key, or inside the value that it names, is not read"));
                }
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
