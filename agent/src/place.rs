//! Where the node is in the fabric, as labels: the leaf switches of its rails, by which a scheduler keeps a job below
//! one leaf. They come from the node's store, so they are those of the plan that pods use.

use std::collections::BTreeMap;

use crate::report::{Pool, Show};

/// The part of a label's pattern that stands for the number of the tier.
const TIER: &str = "{tier}";

/// The labels of this node. `pattern` is the key, in which `{tier}` is 1 for the leaf; with an empty pattern there are
/// none.
///
/// In a rail-optimised fabric each rail has a leaf of its own, and nodes that share one share all of them: the leaf of
/// the lowest rail names the group. A fabric whose plan names no leaves has no labels.
pub fn labels(show: &Show, pattern: &str) -> BTreeMap<String, String> {
    let mut leaves: Vec<(u8, &str, &str)> = show
        .pools
        .iter()
        .filter_map(|pool| {
            let Pool { pool: name, rail, leaf_ports, .. } = pool;
            let leaf = leaf_ports.as_ref()?.first()?.leaf.as_str();
            Some((rail.or_else(|| rail_cni::pool::rail_in(name)).unwrap_or(u8::MAX), name.as_str(), leaf))
        })
        .collect();
    leaves.sort_unstable();
    let Some((_, _, leaf)) = leaves.first().filter(|_| !pattern.is_empty()) else { return BTreeMap::new() };
    BTreeMap::from([(key(pattern, 1), value(leaf))])
}

fn key(pattern: &str, tier: u8) -> String {
    pattern.replace(TIER, &tier.to_string())
}

/// The name of a switch as the value of a label: at most 63 letters, digits, `-`, `_` and `.`, no such sign at an end.
fn value(name: &str) -> String {
    let is_sign = |c: char| !c.is_ascii_alphanumeric();
    let clean: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
    let start = clean.trim_matches(is_sign);
    start[..start.len().min(63)].trim_end_matches(is_sign).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::LeafPort;

    fn pool(name: &str, rail: Option<u8>, leaf: &str) -> Pool {
        let leaf_ports = Some(vec![LeafPort { leaf: leaf.to_owned() }]);
        Pool { pool: name.to_owned(), rail, leaf_ports, ..Pool::default() }
    }

    #[test]
    fn the_leaf_of_the_lowest_rail_names_the_group() {
        let pools =
            vec![pool("rail-10", Some(10), "leaf-9"), pool("rail-2", None, "leaf-su01-r3"), Pool::default()];
        let labels = labels(&Show { pools }, "fabric.topograph.run/tier-{tier}");
        assert_eq!(
            labels,
            BTreeMap::from([("fabric.topograph.run/tier-1".to_owned(), "leaf-su01-r3".to_owned())])
        );
    }

    #[test]
    fn without_a_leaf_or_a_pattern_there_is_no_label() {
        let show = Show { pools: vec![Pool::default()] };
        assert!(labels(&show, "a/tier-{tier}").is_empty());
        assert!(labels(&Show { pools: vec![pool("rail-0", None, "leaf")] }, "").is_empty());
    }

    #[test]
    fn the_name_of_a_switch_becomes_the_value_of_a_label() {
        assert_eq!(value("leaf 1/a"), "leaf_1_a");
        assert_eq!(value("_x-"), "x");
        assert_eq!(value(&format!("{}.b", "a".repeat(62))), "a".repeat(62));
    }
}
