//! `lint --fix`: the networks as they are with rail-cni, for kubectl or for a runtime.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{Lint, OURS, number_in};
use rail_plan::yaml::scalar;

/// A network that rail-cni attaches.
#[derive(Debug)]
pub(super) struct Fixed {
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    /// Of a manifest; `None` for a file of a runtime.
    pub(super) metadata: Option<Map<String, Value>>,
    pub(super) resource: Option<String>,
    /// One plugin, and no list.
    pub(super) is_single: bool,
    /// The keys of the list beside `plugins`.
    pub(super) list: Map<String, Value>,
    pub(super) plugins: Vec<Map<String, Value>>,
    /// Conditions before a pod names it.
    pub(super) notes: Vec<String>,
    /// The comments of the document that it replaces.
    pub(super) comments: Vec<String>,
}

/// The comments of the YAML document that has this line, in order.
pub(super) fn comments(text: &str, line: u32) -> Vec<String> {
    let mut comments = Vec::new();
    for (number, written) in (1..).zip(text.lines()) {
        if written.starts_with("---") {
            if number > line {
                break;
            }
            comments.clear();
        }
        if let Some(comment) = comment(written) {
            comments.push(comment.to_owned());
        }
    }
    comments
}

/// The comment in a line, without its #: behind a blank, and outside of quotes.
fn comment(line: &str) -> Option<&str> {
    if let Some(comment) = line.trim_start().strip_prefix('#') {
        return Some(comment.trim());
    }
    for (at, _) in line.match_indices(" #") {
        let before = &line[..at];
        let is_quoted = ['"', '\'']
            .into_iter()
            .any(|quote| before.matches(quote).count() % 2 == 1);
        if !is_quoted {
            return Some(line[at + 2..].trim());
        }
    }
    None
}

impl Lint {
    /// All networks that rail-cni can attach.
    pub fn fixed(&mut self) -> String {
        let rails = rail_numbers(&self.fixed);
        for (fixed, rail) in self.fixed.iter_mut().zip(rails) {
            let mtu = fixed
                .resource
                .as_ref()
                .and_then(|resource| self.mtus.get(resource));
            let is_userspace = fixed
                .resource
                .as_ref()
                .is_some_and(|one| self.userspace.contains(one));
            let main = fixed
                .plugins
                .iter_mut()
                .find(|plugin| plugin.get("type") == Some(&json!(OURS)));
            let Some(main) = main.filter(|main| !main.contains_key("mode")) else {
                continue;
            };
            if let Some(rail) = rail {
                main.entry("rail".to_owned()).or_insert_with(|| rail.into());
            }
            // Such a VF has no interface, whose MTU could be set.
            if let Some(mtu) = mtu.filter(|_| !is_userspace) {
                main.entry("mtu".to_owned())
                    .or_insert_with(|| (*mtu).into());
            }
        }
        self.fixed.iter().map(Fixed::text).collect()
    }
}

/// The rail of each network, by the number in its name. None in a namespace without a rail 0, where
/// the names may count from 1.
fn rail_numbers(all: &[Fixed]) -> Vec<Option<i64>> {
    let mut numbers = Vec::new();
    let mut namespaces_from_0 = BTreeSet::new();
    for fixed in all {
        let number = number_in_name(fixed);
        if number == Some(0) {
            namespaces_from_0.insert(&fixed.namespace);
        }
        numbers.push(number);
    }
    for (fixed, number) in all.iter().zip(&mut numbers) {
        if !namespaces_from_0.contains(&fixed.namespace) {
            *number = None;
        }
    }
    numbers
}

/// The number in the name of the network's resource, or else in its own name.
fn number_in_name(fixed: &Fixed) -> Option<i64> {
    let in_resource = fixed.resource.as_deref().and_then(number_in);
    let (number, _) = in_resource.or_else(|| number_in(&fixed.name))?;
    Some(number)
}

impl Fixed {
    fn text(&self) -> String {
        let Some(metadata) = &self.metadata else {
            return self.config("") + "\n";
        };
        let mut text = "---\n".to_owned();
        for note in self.comments.iter().chain(&self.notes) {
            text.push_str(&format!("# {}\n", rail_cni::log::printable(note)));
        }
        text.push_str(
            "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n",
        );
        let keys = ["name", "namespace", "labels", "annotations"];
        for (key, value) in keys
            .into_iter()
            .filter_map(|key| metadata.get_key_value(key))
        {
            match value {
                Value::Object(inside) => {
                    text.push_str(&format!("  {}:\n", scalar(key)));
                    for (key, value) in inside {
                        text.push_str(&format!(
                            "    {}: {}\n",
                            scalar(key),
                            scalar(value.as_str().unwrap_or_default())
                        ));
                    }
                }
                value => text.push_str(&format!(
                    "  {}: {}\n",
                    scalar(key),
                    scalar(value.as_str().unwrap_or_default())
                )),
            }
        }
        text + &format!("spec:\n  config: |\n    {}\n", self.config("    "))
    }

    /// The configuration, whose lines but the first begin with `indent`.
    fn config(&self, indent: &str) -> String {
        let name = serde_json::to_string(&self.name).unwrap_or_default();
        let inner = format!("{indent}  ");
        if let ([plugin], true) = (self.plugins.as_slice(), self.is_single) {
            let lines = lines(plugin, &format!(",\n{inner}"));
            return format!(
                "{{\n{inner}\"cniVersion\": \"1.0.0\",\n{inner}\"name\": {name},\n{inner}{lines}\n{indent}}}"
            );
        }
        let more: String = self
            .list
            .iter()
            .map(|(key, value)| format!("{inner}{}: {},\n", json!(key), spaced(value)))
            .collect();
        let plugins: Vec<_> = self
            .plugins
            .iter()
            .map(|plugin| {
                format!(
                    "{inner}  {{\n{inner}    {}\n{inner}  }}",
                    lines(plugin, &format!(",\n{inner}    "))
                )
            })
            .collect();
        format!(
            "{{\n{inner}\"cniVersion\": \"1.0.0\",\n{inner}\"cniVersions\": [\"1.0.0\", \"1.1.0\"],\n{inner}\"name\": {name},\n{more}\
             {inner}\"plugins\": [\n{}\n{inner}]\n{indent}}}",
            plugins.join(",\n")
        )
    }
}

/// The keys of a plugin: what it is first, its IPAM last.
fn lines(plugin: &Map<String, Value>, between: &str) -> String {
    const FIRST: [&str; 4] = ["type", "mode", "rail", "mtu"];
    let rest = plugin
        .keys()
        .map(String::as_str)
        .filter(|key| !FIRST.contains(key) && *key != "ipam");
    let keys = FIRST.into_iter().chain(rest).chain(["ipam"]);
    let line = |key: &str| {
        plugin
            .get(key)
            .map(|value| format!("{}: {}", json!(key), spaced(value)))
    };
    keys.filter_map(line).collect::<Vec<_>>().join(between)
}

/// JSON in one line, as people write it.
pub(super) fn spaced(value: &Value) -> String {
    match value {
        Value::Array(list) => format!(
            "[{}]",
            list.iter().map(spaced).collect::<Vec<_>>().join(", ")
        ),
        Value::Object(object) => {
            let first = object.get_key_value("type").into_iter();
            let rest = object.iter().filter(|(key, _)| *key != "type");
            let all = first
                .chain(rest)
                .map(|(key, value)| format!("{}: {}", json!(key), spaced(value)));
            format!("{{{}}}", all.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}
