//! The place of the node in the fabric, as labels, by which a scheduler keeps a job below one leaf,
//! or in one SU or pod of the fabric. The leaf comes from the node's store, so it is that of the
//! plan that pods use. SU and pod are not in the store: railctl says them when it writes the plan.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::report::{Pool, Show};

/// The part of a label's pattern that stands for the number of the tier.
const TIER: &str = "{tier}";

/// The node's place in the plan, besides its leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Place {
    /// The SU. No other SU of the fabric has this name.
    pub su_name: Option<String>,
    /// The pod of the fabric, if it has pods.
    pub pod_name: Option<String>,
}

/// The labels of this node. `pattern` is the key, in which `{tier}` is 1 for the leaf, 2 for the SU
/// and 3 for the pod; with an empty pattern there are none. While the place is not known, the upper
/// ones are as they were among `own`.
///
/// In a rail-optimised fabric each rail has a leaf of its own, and nodes that share one share all
/// of them: the leaf of the lowest rail names the group. A fabric whose plan names no leaves has no
/// label for them.
pub fn labels(
    show: &Show,
    place: Option<&Place>,
    own: &BTreeMap<String, String>,
    pattern: &str,
) -> BTreeMap<String, String> {
    if pattern.is_empty() {
        return BTreeMap::new();
    }
    let mut leaves: Vec<(u8, &str, &str)> = show
        .pools
        .iter()
        .filter_map(|pool| {
            let Pool {
                pool: name,
                rail,
                leaf_ports,
                ..
            } = pool;
            let leaf = leaf_ports.as_ref()?.first()?.leaf.as_str();
            Some((
                rail.or_else(|| rail_cni::pool::rail_in(name))
                    .unwrap_or(u8::MAX),
                name.as_str(),
                leaf,
            ))
        })
        .collect();
    leaves.sort_unstable();
    let leaf = leaves.first().map(|(_, _, leaf)| value(leaf));
    let upper = |tier: u8, name: fn(&Place) -> Option<&str>| match place {
        Some(place) => name(place).map(value),
        None => own.get(&key(pattern, tier)).cloned(),
    };
    let values = [
        leaf,
        upper(2, |place| place.su_name.as_deref()),
        upper(3, |place| place.pod_name.as_deref()),
    ];
    let all = (1..)
        .zip(values)
        .filter_map(|(tier, value)| Some((key(pattern, tier), value?)));
    all.collect()
}

fn key(pattern: &str, tier: u8) -> String {
    pattern.replace(TIER, &tier.to_string())
}

/// The name of a switch as the value of a label: at most 63 letters, digits, `-`, `_` and `.`, no
/// such sign at an end.
pub fn value(name: &str) -> String {
    let is_sign = |c: char| !c.is_ascii_alphanumeric();
    let clean: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "-_.".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect();
    let start = clean.trim_matches(is_sign);
    start[..start.len().min(63)]
        .trim_end_matches(is_sign)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::LeafPort;

    fn pool(name: &str, rail: Option<u8>, leaf: &str) -> Pool {
        let leaf_ports = Some(vec![LeafPort {
            leaf: leaf.to_owned(),
            ..LeafPort::default()
        }]);
        Pool {
            pool: name.to_owned(),
            rail,
            leaf_ports,
            ..Pool::default()
        }
    }

    const PATTERN: &str = "fabric.topograph.run/tier-{tier}";

    fn shown(labels: &BTreeMap<String, String>) -> String {
        let pairs = labels.iter().map(|(key, value)| {
            format!(
                "{}={value}",
                key.trim_start_matches("fabric.topograph.run/")
            )
        });
        pairs.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_leaf_of_the_lowest_rail_names_the_group_and_su_and_pod_are_above_it() {
        let pools = vec![
            pool("rail-10", Some(10), "leaf-9"),
            pool("rail-2", None, "leaf-su01-r3"),
            Pool::default(),
        ];
        let show = Show { pools };
        let own = BTreeMap::from(
            ["tier-1", "tier-2"].map(|tier| (format!("fabric.topograph.run/{tier}"), "old".into())),
        );
        let unknown = shown(&labels(&show, None, &own, PATTERN));
        assert_eq!(
            unknown, "tier-1=leaf-su01-r3 tier-2=old",
            "the place is not known"
        );
        let place = |text: &str| serde_json::from_str::<Place>(text).unwrap();
        let of = |place| shown(&labels(&show, Some(&place), &own, PATTERN));
        let two_tiers =
            place(r#"{"su": 1, "pod": 0, "suName": "su1", "podName": null, "leaves": []}"#);
        assert_eq!(of(two_tiers), "tier-1=leaf-su01-r3 tier-2=su1");
        let three_tiers = place(r#"{"suName": "pod2-su1", "podName": "pod2"}"#);
        assert_eq!(
            of(three_tiers),
            "tier-1=leaf-su01-r3 tier-2=pod2-su1 tier-3=pod2"
        );
        assert_eq!(of(Place::default()), "tier-1=leaf-su01-r3");
    }

    #[test]
    fn without_a_leaf_or_a_pattern_there_is_no_label() {
        let show = Show {
            pools: vec![Pool::default()],
        };
        let none = BTreeMap::new();
        assert!(labels(&show, None, &none, PATTERN).is_empty());
        assert!(
            labels(
                &Show {
                    pools: vec![pool("rail-0", None, "leaf")]
                },
                None,
                &none,
                ""
            )
            .is_empty()
        );
    }

    #[test]
    fn the_name_of_a_switch_becomes_the_value_of_a_label() {
        assert_eq!(value("leaf 1/a"), "leaf_1_a");
        assert_eq!(value("_x-"), "x");
        assert_eq!(value(&format!("{}.b", "a".repeat(62))), "a".repeat(62));
    }
}
