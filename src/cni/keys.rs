//! Keys of JSON objects, matched in any letter case as Go's encoding/json does, because network configurations
//! are written for Go programs. [`read`] returns the keys that a program knows in that program's spelling.

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
static ANY: Keys = Keys { names: &[], inside: &[] };

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
        parts.fold(self, |keys, part| keys.inside(part.split('[').next().unwrap_or_default()))
    }

    fn inside(&self, key: &str) -> &'static Keys {
        self.inside.iter().find(|(name, _)| *name == key).map_or(&ANY, |(_, keys)| keys)
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
    names.iter().copied().find(|name| *name == key).or_else(|| names.iter().copied().find(same))
}

/// Reads one JSON object, and returns it with the faults of its members. Of two members with the same key the
/// object has the last one. A member that cannot be read, because it is nested too deeply, is an empty list in
/// the object, which is no valid value of any key.
pub fn read(text: &[u8], keys: &'static Keys) -> serde_json::Result<(Map<String, Value>, Vec<String>)> {
    let mut faults = Vec::new();
    let mut json = serde_json::Deserializer::from_slice(text);
    let object = json.deserialize_map(Members { keys, faults: &mut faults })?;
    json.end()?;
    Ok((object, faults))
}

/// The members of the whole object. serde_json skips over a raw value without recursion, so one that is nested
/// deeply does not prevent reading the others.
struct Members<'a> {
    keys: &'static Keys,
    faults: &'a mut Vec<String>,
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let mut object = Map::new();
        while let Some((key, raw)) = from.next_entry::<String, &RawValue>()? {
            let key = self.keys.spelt(&key).map_or(key, str::to_owned);
            let seed = Seed { path: key.clone(), keys: self.keys.inside(&key), faults: &mut *self.faults };
            let value = seed.deserialize(&mut serde_json::Deserializer::from_slice(raw.get().as_bytes()));
            let value = value.unwrap_or_else(|error| {
                let whole = error.to_string();
                let problem = whole.split(" at line ").next().unwrap_or_default();
                self.faults.push(format!("{key}: {problem}"));
                Value::Array(Vec::new())
            });
            put(&mut object, key, value, "", self.faults);
        }
        Ok(object)
    }
}

/// Adds a member to `object`, which may have the key already. Null counts as absent, because go-cni writes null
/// for what it does not have.
fn put(object: &mut Map<String, Value>, key: String, value: Value, path: &str, faults: &mut Vec<String>) {
    let is_set = object.get(&key).is_some_and(|before| !before.is_null());
    match (is_set, value.is_null()) {
        (true, true) => return,
        (true, false) => faults.push(format!("{}: {TWICE}", below(path, &key))),
        (false, _) => (),
    }
    object.insert(key, value);
}

/// The path of `key` in the object at `path`.
pub fn below(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Builds the value at `path`.
struct Seed<'a> {
    path: String,
    keys: &'static Keys,
    faults: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
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
        let Seed { path, keys, faults } = self;
        let mut list = Vec::new();
        loop {
            let path = format!("{path}[{}]", list.len());
            let Some(item) = from.next_element_seed(Seed { path, keys, faults: &mut *faults })? else {
                break;
            };
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let Seed { path, keys, faults } = self;
        let mut object = Map::new();
        while let Some(key) = from.next_key::<String>()? {
            let key = keys.spelt(&key).map_or(key, str::to_owned);
            let seed = Seed { path: below(&path, &key), keys: keys.inside(&key), faults: &mut *faults };
            let value = from.next_value_seed(seed)?;
            put(&mut object, key, value, &path, faults);
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
            ("args", &Keys { names: &[&["cni"]], inside: &[("cni", &Keys::flat(&[&["mac"]]))] }),
        ],
    };

    /// What is read, and what is wrong with it.
    fn parsed(text: &str) -> (Value, String) {
        let (object, faults) = read(text.as_bytes(), &KNOWN).unwrap();
        (object.into(), faults.join("; "))
    }

    /// sriov-cni reads `"Vlan": 5`: a change of the type alone must not drop it.
    #[test]
    fn a_known_key_means_the_same_in_any_letter_case() {
        let text = r#"{"Vlan": 5, "LIN\u212a_\u017ftate": "on", "Routes": [{"DST": 1}, 7], "ARGS": {"CNI": {"Mac": "x", "Other": 1}}}"#;
        let spelt = json!({"vlan": 5, "link_state": "on", "routes": [{"dst": 1}, 7], "args": {"cni": {"mac": "x", "Other": 1}}});
        assert_eq!(parsed(text), (spelt, String::new()));
        // Null is absent, and hides nothing.
        assert_eq!(parsed(r#"{"VLAN": null, "vlan": 5, "Vlan": null}"#), (json!({"vlan": 5}), String::new()));
        // Of maps the keys are data.
        let data = r#"{"data": {"Vlan": 1, "vlan": 2}, "Data2": 1}"#;
        assert_eq!(parsed(data), (serde_json::from_str(data).unwrap(), String::new()));
    }

    #[test]
    fn a_key_that_appears_twice_is_reported_with_its_place_and_the_last_counts() {
        for (text, read, place) in [
            (r#"{"vlan": 5, "vlan": 6}"#, json!({"vlan": 6}), "vlan: "),
            (r#"{"vlan": 5, "VLAN": 6}"#, json!({"vlan": 6}), "vlan: "),
            (r#"{"x": 5, "x": 6}"#, json!({"x": 6}), "x: "),
            (
                r#"{"routes": [{}, {"dst": 1, "Dst": 2}]}"#,
                json!({"routes": [{}, {"dst": 2}]}),
                "routes[1].dst: ",
            ),
            (r#"{"args": {"cni": {"mac": 1}, "CNI": {}}}"#, json!({"args": {"cni": {}}}), "args.cni: "),
            (r#"{"data": {"a": [{"b": 1, "b": 2}]}}"#, json!({"data": {"a": [{"b": 2}]}}), "data.a[0].b: "),
        ] {
            let (object, fault) = parsed(text);
            assert_eq!(object, read, "{text}");
            assert!(fault.starts_with(&format!("{place}the key appears twice")), "{text}: {fault}");
        }
    }

    /// serde_json stops at 128 levels.
    #[test]
    fn a_value_that_is_nested_too_deeply_keeps_no_other_from_being_read() {
        let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        for (text, place) in [
            (format!(r#"{{"x": {deep}, "vlan": 5}}"#), "x: recursion limit exceeded"),
            (format!(r#"{{"vlan": 5, "x": {{"a": {deep}}}}}"#), "x: recursion limit exceeded"),
            (r#"{"vlan": 5, "x": 1e999}"#.to_owned(), "x: number out of range"),
        ] {
            assert_eq!(parsed(&text), (json!({"vlan": 5, "x": []}), place.to_owned()));
        }
        for wrong in ["[]", "", "{\"a\": 1} x", "{\"a\": [}", "{\"a\": \"\u{1}\"}"] {
            assert!(read(wrong.as_bytes(), &KNOWN).is_err(), "{wrong}");
        }
        assert!(read(b"{\"a\": \"\xff\"}", &KNOWN).is_err());
    }

    proptest! {
        #[test]
        fn what_has_no_key_of_ours_is_read_as_serde_json_reads_it(text in "[\\[\\]{}\":,0-9a-cE.tru e\\\\-]{0,40}") {
            let text = format!("{{\"x\": {text}}}");
            match (read(text.as_bytes(), &ANY), serde_json::from_str::<Map<String, Value>>(&text)) {
                (Ok((object, faults)), Ok(other)) => {
                    prop_assert_eq!(object, other);
                    prop_assert!(faults.iter().all(|fault| fault.contains("appears twice")));
                }
                (Ok((_, faults)), Err(error)) => prop_assert!(!faults.is_empty(), "{}: {}", text, error),
                (Err(_), other) => prop_assert!(other.is_err(), "{}", text),
            }
        }
    }
}
