//! Writes YAML: a value has one form, and no text looks like a number to another reader.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde_json::Value;

/// Appends `value` on lines of its own, indented by `depth` spaces.
pub fn write(text: &mut String, value: &Value, depth: usize) {
    let indent = " ".repeat(depth);
    match value {
        Value::Object(object) if !object.is_empty() => {
            for (key, inner) in object {
                let _ = write!(text, "{indent}{}:", scalar(key));
                follow(text, inner, depth);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for inner in list {
                let from = text.len();
                match inner {
                    // `- key: value`, the other keys below the first.
                    Value::Object(object) if !object.is_empty() => {
                        write(text, inner, depth + 2);
                        text.replace_range(from + depth..from + depth + 1, "-");
                    }
                    _ => {
                        let _ = write!(text, "{indent}-");
                        follow(text, inner, depth);
                    }
                }
            }
        }
        _ => {
            let _ = writeln!(text, "{indent}{}", flat(value));
        }
    }
}

/// Appends the value behind `key:` or `-`.
fn follow(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(object) if !object.is_empty() => {
            text.push('\n');
            write(text, value, depth + 2);
        }
        Value::Array(list) if !list.is_empty() => {
            text.push('\n');
            write(text, value, depth + 2);
        }
        _ => {
            let _ = writeln!(text, " {}", flat(value));
        }
    }
}

fn flat(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => scalar(text),
        other => other.to_string().into(),
    }
}

/// A text in one line, in quotes if a reader could take it for something else, such as `yes`,
/// `1_000`, `12:30:45` and dates in YAML 1.1.
pub fn scalar(text: &str) -> Cow<'_, str> {
    const WORDS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    let is_word = WORDS.iter().any(|word| word.eq_ignore_ascii_case(text));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./-".contains(&byte);
    // An IPv4 address or prefix is no number in any YAML: three dots.
    let begins = |first: char| first.is_ascii_alphabetic() || first == '/';
    let is_address = text.bytes().filter(|byte| *byte == b'.').count() == 3
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || b"./".contains(&byte));
    if !is_word && text.bytes().all(is_plain) && (text.starts_with(begins) || is_address) {
        return text.into();
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            // No reader has to take these as they are.
            c if c.is_control()
                || matches!(
                    c,
                    '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
                ) =>
            {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn one_value_has_one_form() {
        let value = json!({"a": {"b": [1, "x y", {"c": true, "d": []}, [2, {}], {}]}, "e": null, "f: g": "",
            "h": ["172.16.0.1/31", "fd02::1/64", "yes", "0x1", "/sys/x", "1.2", "q\"\\\n\u{7f}"]});
        let mut text = String::new();
        write(&mut text, &value, 2);
        let expected = r#"  a:
    b:
      - 1
      - "x y"
      - c: true
        d: []
      -
        - 2
        - {}
      - {}
  e: null
  "f: g": ""
  h:
    - 172.16.0.1/31
    - "fd02::1/64"
    - "yes"
    - "0x1"
    - /sys/x
    - "1.2"
    - "q\"\\\n\u007f"
"#;
        assert_eq!(text, expected);
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<Option<bool>>().prop_map(|value| json!(value)),
            any::<i64>().prop_map(|value| json!(value)),
            any::<String>().prop_map(|value| json!(value)),
            "[-+0-9a-fA-Fxeo:._~<>|&*!%@#?{}\\[\\], ]{0,6}".prop_map(|value| json!(value)),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            let key = prop_oneof![any::<String>(), "[-~<a-z0-9:#. ]{0,4}"];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(key, inner, 0..4)
                    .prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        /// Also by libyaml, which netplan uses.
        #[test]
        fn what_is_written_is_read_again(value in value()) {
            let mut text = String::new();
            write(&mut text, &json!({"value": value}), 0);
            let documents = document::parse("f", text.as_bytes());
            let documents = documents.unwrap_or_else(|error| panic!("{error}: {text}"));
            prop_assert_eq!(&documents[0].root().value["value"], &value, "{}", text);
            let other: Value = yaml_serde::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            prop_assert_eq!(&other["value"], &value, "{}", text);
        }
    }
}
