//! Keys of JSON objects, matched in any letter case as Go's encoding/json does, because network
//! configurations are written for Go programs. [`read`] returns the keys that a program knows in
//! that program's spelling.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// The keys that a program knows of an object.
#[derive(Debug)]
pub struct Keys {
    /// The keys, in the program's spelling.
    pub names: &'static [&'static [&'static str]],
    /// For keys whose value is an object or a list of objects: the keys of these objects.
    pub inside: &'static [(&'static str, &'static Keys)],
}

/// The fault of an object that has the same key twice.
pub const TWICE: &str = "the key appears twice (upper and lower case are the same)";

/// For an object whose keys are data, or are not known.
pub static ANY: Keys = Keys {
    names: &[],
    inside: &[],
};

impl Keys {
    /// The keys of an object that contains no other objects.
    pub const fn flat(names: &'static [&'static [&'static str]]) -> Keys {
        Keys { names, inside: &[] }
    }

    /// The program's spelling of `key`; `None` if the key is unknown.
    pub fn spelt(&self, key: &str) -> Option<&'static str> {
        self.names.iter().find_map(|names| canonical(key, names))
    }

    /// The keys of the object at `path`, such as `routes[0]` or `args.cni`.
    pub fn at(&'static self, path: &str) -> &'static Keys {
        let parts = path.split('.').filter(|part| !part.is_empty());
        parts.fold(self, |keys, part| {
            keys.inside(part.split('[').next().unwrap_or_default())
        })
    }

    fn inside(&self, key: &str) -> &'static Keys {
        self.inside
            .iter()
            .find(|(name, _)| *name == key)
            .map_or(&ANY, |(_, keys)| keys)
    }
}

/// The one of `names` that Go's decoder would match with `key`.
fn canonical(key: &str, names: &[&'static str]) -> Option<&'static str> {
    // Two letters outside of ASCII fold to one inside (encoding/json, fold.go).
    let folded = |letter: char| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        letter => letter.to_ascii_lowercase(),
    };
    let same = |name: &&str| name.chars().map(folded).eq(key.chars().map(folded));
    names
        .iter()
        .copied()
        .find(|name| *name == key)
        .or_else(|| names.iter().copied().find(same))
}

/// Values and members that are kept of an object. Whatever shape a text has, what is made of it is
/// a few MiB.
const MOST_VALUES: usize = 16_384;

/// The result of [`read`] for an object.
#[derive(Debug, Default)]
pub struct Members {
    /// The members. Where the program knows keys, any other one has `true`, or null if that is its
    /// value. A value that cannot be read, because it is nested too deeply or has too many parts,
    /// is an empty list, which no key can have.
    pub object: Map<String, Value>,
    /// The fault of the first member that has one. Of two with the same key the last one counts.
    pub fault: Option<String>,
}

/// Reads one JSON object.
pub fn read(text: &[u8], keys: &'static Keys) -> serde_json::Result<Members> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let members = json.deserialize_map(Whole(keys))?;
    json.end()?;
    Ok(members)
}

/// The members of the whole object. serde_json skips over a raw value without recursion, so one
/// that is nested deeply does not prevent reading the others.
struct Whole(&'static Keys);

impl<'de> Visitor<'de> for Whole {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let mut object = Map::new();
        let mut state = State {
            fault: None,
            left: MOST_VALUES,
        };
        while let Some((key, raw)) = from.next_entry::<String, &RawValue>()? {
            let spelt = self.0.spelt(&key);
            let key = spelt.unwrap_or(&key);
            let path = Path {
                above: None,
                part: Part::Key(key),
            };
            let left = state.left;
            let seed = Seed {
                path: &path,
                keys: self.0.inside(key),
                state: &mut state,
            };
            let value = seed.deserialize(&mut serde_json::Deserializer::from_str(raw.get()));
            let mut value = value.unwrap_or_else(|error| {
                let whole = error.to_string();
                let problem = whole.split(" at line ").next().unwrap_or_default();
                state
                    .fault
                    .get_or_insert_with(|| format!("{path}: {problem}"));
                Value::Array(Vec::new())
            });
            if spelt.is_none() && !self.0.names.is_empty() {
                let Some(left) = left.checked_sub(1) else {
                    continue;
                };
                state.left = left;
                value = if value.is_null() {
                    Value::Null
                } else {
                    Value::Bool(true)
                };
            }
            put(&mut object, &path, value, &mut state);
        }
        Ok(Members {
            object,
            fault: state.fault,
        })
    }
}

/// The state of the whole object so far.
struct State {
    fault: Option<String>,
    /// Number of values that may still be kept.
    left: usize,
}

impl State {
    fn take<E: serde::de::Error>(&mut self) -> Result<(), E> {
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            E::custom(format_args!(
                "more than {MOST_VALUES} values: a large pool belongs in the store"
            ))
        })?;
        Ok(())
    }
}

/// The path to a value. It is written only for a fault: keys may be long, and lists too.
struct Path<'a> {
    above: Option<&'a Path<'a>>,
    part: Part<'a>,
}

enum Part<'a> {
    Key(&'a str),
    Index(usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(above) = self.above {
            above.fmt(f)?;
        }
        match self.part {
            Part::Key(key) if self.above.is_some() => write!(f, ".{key}"),
            Part::Key(key) => f.write_str(key),
            Part::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// Adds the member at `path` to `object`, which may have the key already. Null counts as absent,
/// because go-cni writes null for what it does not have.
fn put(object: &mut Map<String, Value>, path: &Path<'_>, value: Value, state: &mut State) {
    let Part::Key(key) = path.part else { return };
    let is_set = object.get(key).is_some_and(|before| !before.is_null());
    if is_set && value.is_null() {
        return;
    }
    if is_set {
        state
            .fault
            .get_or_insert_with(|| format!("{path}: {TWICE}"));
    }
    object.insert(key.to_owned(), value);
}

/// The path of `key` in the object at `path`.
pub fn below(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// Builds the value at `path`.
struct Seed<'a> {
    path: &'a Path<'a>,
    keys: &'static Keys,
    state: &'a mut State,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        self.state.take()?;
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let Seed { path, keys, state } = self;
        let mut list = Vec::new();
        loop {
            let path = Path {
                above: Some(path),
                part: Part::Index(list.len()),
            };
            let Some(item) = from.next_element_seed(Seed {
                path: &path,
                keys,
                state: &mut *state,
            })?
            else {
                break;
            };
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let Seed { path, keys, state } = self;
        let mut object = Map::new();
        while let Some(key) = from.next_key::<String>()? {
            let key = keys.spelt(&key).unwrap_or(&key);
            let path = Path {
                above: Some(path),
                part: Part::Key(key),
            };
            let seed = Seed {
                path: &path,
                keys: keys.inside(key),
                state: &mut *state,
            };
            let value = from.next_value_seed(seed)?;
            put(&mut object, &path, value, state);
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    static KNOWN: Keys = Keys {
        names: &[&["vlan", "link_state"], &["routes", "args", "data"]],
        inside: &[
            ("routes", &Keys::flat(&[&["dst"]])),
            (
                "args",
                &Keys {
                    names: &[&["cni"]],
                    inside: &[("cni", &Keys::flat(&[&["mac"]]))],
                },
            ),
        ],
    };

    /// The value, and its fault.
    fn parsed(text: &str) -> (Value, String) {
        let Members { object, fault } = read(text.as_bytes(), &KNOWN).unwrap();
        (object.into(), fault.unwrap_or_default())
    }

    /// sriov-cni reads `"Vlan": 5`: a change of the type alone must not drop it.
    #[test]
    fn a_known_key_means_the_same_in_any_letter_case() {
        let text = r#"{"Vlan": 5, "LIN\u212a_\u017ftate": "on", "Routes": [{"DST": 1}, 7], "ARGS": {"CNI": {"Mac": "x", "Other": 1}}}"#;
        let spelt = json!({"vlan": 5, "link_state": "on", "routes": [{"dst": 1}, 7], "args": {"cni": {"mac": "x", "Other": 1}}});
        assert_eq!(parsed(text), (spelt, String::new()));
        // Null is absent, and hides nothing.
        assert_eq!(
            parsed(r#"{"VLAN": null, "vlan": 5, "Vlan": null}"#),
            (json!({"vlan": 5}), String::new())
        );
        // Of maps the keys are data.
        let data = r#"{"data": {"Vlan": 1, "vlan": 2}, "Data2": {"a": 1}, "n": null}"#;
        let kept = json!({"data": {"Vlan": 1, "vlan": 2}, "Data2": true, "n": null});
        assert_eq!(parsed(data), (kept, String::new()));
    }

    #[test]
    fn a_key_that_appears_twice_is_reported_with_its_place_and_the_last_counts() {
        for (text, read, place) in [
            (r#"{"vlan": 5, "vlan": 6}"#, json!({"vlan": 6}), "vlan: "),
            (r#"{"vlan": 5, "VLAN": 6}"#, json!({"vlan": 6}), "vlan: "),
            (r#"{"x": 5, "x": 6}"#, json!({"x": true}), "x: "),
            (
                r#"{"routes": [{}, {"dst": 1, "Dst": 2}]}"#,
                json!({"routes": [{}, {"dst": 2}]}),
                "routes[1].dst: ",
            ),
            (
                r#"{"args": {"cni": {"mac": 1}, "CNI": {}}}"#,
                json!({"args": {"cni": {}}}),
                "args.cni: ",
            ),
            (
                r#"{"data": {"a": [{"b": 1, "b": 2}]}}"#,
                json!({"data": {"a": [{"b": 2}]}}),
                "data.a[0].b: ",
            ),
        ] {
            let (object, fault) = parsed(text);
            assert_eq!(object, read, "{text}");
            assert!(fault.starts_with(place), "{text}: {fault}");
        }
    }

    /// serde_json stops at 128 levels.
    #[test]
    fn a_value_that_is_nested_too_deeply_keeps_no_other_from_being_read() {
        let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        for (text, place) in [
            (format!(r#"{{"data": {deep}, "vlan": 5}}"#), "data: "),
            (
                format!(r#"{{"vlan": 5, "data": {{"a": {deep}}}}}"#),
                "data: ",
            ),
            (r#"{"vlan": 5, "data": 1e999}"#.to_owned(), "data: "),
        ] {
            let (object, fault) = parsed(&text);
            assert!(
                object == json!({"vlan": 5, "data": []}) && fault.starts_with(place),
                "{object} {fault}"
            );
        }
        let (object, fault) = parsed(&format!(r#"{{"x": {deep}, "vlan": 5}}"#));
        assert!(
            object == json!({"vlan": 5, "x": true}) && fault.starts_with("x: "),
            "{object} {fault}"
        );
        for wrong in ["[]", "", "{\"a\": 1} x", "{\"a\": [}", "{\"a\": \"\u{1}\"}"] {
            assert!(read(wrong.as_bytes(), &KNOWN).is_err(), "{wrong}");
        }
        assert!(read(b"{\"a\": \"\xff\"}", &KNOWN).is_err());
    }

    /// A parsed text is much larger than the text: an object with one member takes 0.6 KiB.
    #[test]
    fn what_has_too_many_values_is_no_value_and_keeps_no_other_from_being_read() {
        let many = |count: usize| format!("[{}0]", r#"{"a":0},"#.repeat(count));
        let (object, fault) = parsed(&format!(r#"{{"data": {}, "vlan": 5}}"#, many(8_190)));
        assert_eq!(
            (object["data"].as_array().unwrap().len(), fault),
            (8_191, String::new())
        );
        let (object, fault) = parsed(&format!(r#"{{"vlan": 5, "data": {}}}"#, many(8_192)));
        assert_eq!(object, json!({"vlan": 5, "data": []}));
        assert!(fault.starts_with("data: "), "{fault}");
        // An unknown key takes no room from later ones.
        let (object, fault) = parsed(&format!(r#"{{"x": {}, "vlan": 5}}"#, many(8_192)));
        assert_eq!(object, json!({"x": true, "vlan": 5}));
        assert!(fault.starts_with("x: "), "{fault}");
    }

    proptest! {
        #[test]
        fn what_has_no_key_of_ours_is_read_as_serde_json_reads_it(text in "[\\[\\]{}\":,0-9a-cE.tru e\\\\-]{0,40}") {
            let text = format!("{{\"data\": {text}}}");
            match (read(text.as_bytes(), &KNOWN), serde_json::from_str::<Map<String, Value>>(&text)) {
                (Ok(Members { object, fault }), Ok(other)) => {
                    prop_assert_eq!(object, other);
                    prop_assert!(fault.iter().all(|fault| fault.contains("appears twice")));
                }
                (Ok(Members { fault, .. }), Err(error)) => prop_assert!(fault.is_some(), "{}: {}", text, error),
                (Err(_), other) => prop_assert!(other.is_err(), "{}", text),
            }
        }
    }
}
