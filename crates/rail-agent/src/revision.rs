//! The revisions of the plugins, of node.json and of the plan on a node, as labels: a rollout is
//! seen by `kubectl get nodes -L`.

use std::collections::BTreeMap;

use rail_cni::files::hash;
use serde_json::Value;

use crate::place;

const VERSION: &str = "rail-cni/version";
const NODE_JSON: &str = "rail-cni/node-json";
const PLAN: &str = "rail-cni/plan";
/// The digits of a hash in a label.
const DIGITS: usize = 10;

/// The known revisions. An unknown one stays as the label has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revision {
    /// The version of the installed rail-cni, by its own word.
    pub version: Option<String>,
    /// The hash of node.json.
    pub node_json: Option<String>,
    /// The hash of the cluster's plan that the store has.
    pub plan: Option<String>,
}

impl Revision {
    /// The labels, with those of `own` for what is not known.
    pub fn labels(&self, own: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let all = [
            (VERSION, &self.version),
            (NODE_JSON, &self.node_json),
            (PLAN, &self.plan),
        ];
        let known = |(key, value): (&str, &Option<String>)| {
            let value = value.as_ref().or_else(|| own.get(key))?;
            Some((key.to_owned(), value.clone()))
        };
        all.into_iter().filter_map(known).collect()
    }
}

/// `rail-cni 0.2.0 (06e5261b3831, changed)` becomes `0.2.0_06e5261b3831_changed`.
pub fn version(said: &str) -> Option<String> {
    let (_, version) = said.trim().split_once(' ')?;
    let words = version
        .split(|c: char| " (),".contains(c))
        .filter(|word| !word.is_empty());
    Some(place::value(&words.collect::<Vec<_>>().join("_"))).filter(|value| !value.is_empty())
}

/// The hash of node.json, which is the same on all nodes of a class: without the name of the node.
pub fn node_json(text: &str) -> Option<String> {
    let mut object: Value = serde_json::from_str(text).ok()?;
    object.as_object_mut()?.remove("nodeName");
    Some(short(&object.to_string()))
}

/// The hash of a plan.
pub fn plan(text: &[u8]) -> String {
    short(&String::from_utf8_lossy(text))
}

fn short(text: &str) -> String {
    hash(&[text])[..DIGITS].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_with_the_same_content_have_the_same_labels() {
        let of = |name: &str, more: &str| {
            node_json(&format!(r#"{{"nodeName": "{name}"{more}}}"#)).unwrap()
        };
        assert_eq!(of("a", ""), of("b", ""));
        assert_ne!(of("a", ""), of("a", r#", "rails": []"#));
        assert_eq!((node_json("{"), node_json("[]")), (None, None));
        assert_ne!(plan(b"a"), plan(b"b"));
        assert_eq!(plan(b"a").len(), DIGITS);
    }

    #[test]
    fn a_version_is_the_value_of_a_label() {
        for (said, expected) in [
            (
                "rail-cni 0.2.0 (06e5261b3831, changed)\n",
                Some("0.2.0_06e5261b3831_changed"),
            ),
            ("rail-cni 0.2.0 (06e5261b3831)", Some("0.2.0_06e5261b3831")),
            ("rail-cni 0.1.0", Some("0.1.0")),
            ("rail-cni ()", None),
            ("rail-cni", None),
        ] {
            assert_eq!(version(said).as_deref(), expected, "{said}");
        }
    }

    #[test]
    fn what_is_not_known_stays_as_it_was() {
        let own = BTreeMap::from([
            (PLAN.to_owned(), "old".to_owned()),
            ("other".to_owned(), "x".to_owned()),
        ]);
        let known = Revision {
            version: Some("1".to_owned()),
            ..Revision::default()
        };
        let labels = known.labels(&own);
        let expected = BTreeMap::from([
            (PLAN.to_owned(), "old".to_owned()),
            (VERSION.to_owned(), "1".to_owned()),
        ]);
        assert_eq!(labels, expected);
    }
}
