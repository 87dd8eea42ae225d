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
            prop::collection::btree_map(key, inner, 0..4).prop_map(|map| map.into_iter().collect()),
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
