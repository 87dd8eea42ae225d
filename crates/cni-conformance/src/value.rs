//! Configurations, results and texts that the checks make of others.

use serde_json::{Value, json};

/// `value` with `text` made of each of its texts.
pub fn map_texts(value: &Value, text: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(one) => Value::String(text(one)),
        Value::Array(list) => list.iter().map(|one| map_texts(one, text)).collect(),
        Value::Object(map) => map
            .iter()
            .map(|(key, one)| (text(key), map_texts(one, text)))
            .collect(),
        other => other.clone(),
    }
}

/// `conf` with a key set.
pub fn with(conf: &Value, key: &str, value: Value) -> Value {
    let mut conf = conf.clone();
    conf[key] = value;
    conf
}

/// What a stand-in does that answers ADD with this result, and is silent else.
pub fn answer(result: &Value) -> String {
    format!(
        "[ $CNI_COMMAND = ADD ] && echo {}; exit 0",
        quoted(&result.to_string())
    )
}

/// A result of interfaces, addresses and routes in the form of `version`.
pub fn result_of(result: &Value, version: &str) -> Value {
    let empty = Vec::new();
    let list = |key: &str| result[key].as_array().unwrap_or(&empty);
    let family = |one: &Value, key: &str| {
        if one[key].as_str().is_some_and(|text| text.contains(':')) {
            "6"
        } else {
            "4"
        }
    };
    let mut made = json!({"cniVersion": version});
    if ["0.1.0", "0.2.0"].contains(&version) {
        for (key, wanted) in [("ip4", "4"), ("ip6", "6")] {
            let first = list("ips")
                .iter()
                .find(|one| family(one, "address") == wanted);
            if let Some(first) = first {
                let routes: Vec<_> = list("routes")
                    .iter()
                    .filter(|route| family(route, "dst") == wanted)
                    .collect();
                made[key] =
                    json!({"ip": first["address"], "gateway": first["gateway"], "routes": routes});
            }
        }
        return made;
    }
    for key in ["interfaces", "routes", "dns"] {
        if !result[key].is_null() {
            made[key] = result[key].clone();
        }
    }
    let is_old = version < "1";
    made["ips"] = list("ips")
        .iter()
        .map(|one| {
            if is_old {
                with(one, "version", json!(family(one, "address")))
            } else {
                one.clone()
            }
        })
        .collect();
    made
}

/// How many characters of what a plugin prints are shown.
pub const SHOWN: usize = 400;

/// The first characters of a text.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// `text` without characters that a terminal takes for orders.
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_control() && c != '\n' && c != '\t' {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}

/// A word of a shell.
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,;".contains(c);
    if !text.is_empty() && text.chars().all(|c| is_plain(c) && c != ';') {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}
