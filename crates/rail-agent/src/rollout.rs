//! A new node.json or plan goes to a share of the nodes: each finds out for itself whether that
//! includes it.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use rail_cni::files::hash;
use serde_json::json;

use crate::api::{NAME, within};
use crate::node;
use crate::report::Show;

/// The annotation of the ConfigMap with the share; without it, all nodes have everything at once.
const PERCENT: &str = "rail-cni/rollout-percent";
/// The annotation of the ConfigMap with the node that stopped the rollout.
const PAUSED: &str = "rail-cni/rollout-paused";
/// The label of nodes that are of every share, also of a rollout that is paused.
const FIRST: &str = "rail-cni/rollout-first";

/// Why this node keeps the node.json and plan that it has; `None` if it takes what the cluster
/// says.
pub fn waits(map: &ConfigMap, name: &str, node: Option<&Node>) -> Option<String> {
    let percent = map.annotations().get(PERCENT)?;
    if node.is_some_and(|node| node::label(node, FIRST).is_some()) {
        return None;
    }
    if let Some(by) = map.annotations().get(PAUSED) {
        return Some(format!(
            "the rollout is paused, because {by:?} was not ready after it ({PAUSED})"
        ));
    }
    let Ok(share @ 0..=100) = percent.trim().trim_end_matches('%').parse::<u64>() else {
        return Some(format!(
            "the annotation {PERCENT} {percent:?} is not a number from 0 to 100"
        ));
    };
    let place = place(name);
    let text = || {
        format!(
            "the rollout covers {share} % of the nodes ({PERCENT}), and this one from {place} % on"
        )
    };
    (place > share).then(text)
}

/// Whether there is a rollout that nobody has stopped.
pub fn can_pause(map: &ConfigMap) -> bool {
    map.annotations().contains_key(PERCENT) && !map.annotations().contains_key(PAUSED)
}

/// Pauses the rollout in the name of this node, unless the ConfigMap has changed meanwhile.
pub async fn pause(client: &Client, map: &ConfigMap, node: &str) -> Result<()> {
    let (name, namespace) = (map.name_any(), map.namespace().unwrap_or_default());
    let annotations = BTreeMap::from([(PAUSED, node)]);
    let change = json!({"metadata": {"annotations": annotations, "resourceVersion": map.metadata.resource_version}});
    let params = PatchParams {
        field_manager: Some(NAME.to_owned()),
        ..PatchParams::default()
    };
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &namespace);
    within(maps.patch(&name, &params, &Patch::Merge(change)))
        .await
        .map(drop)
}

/// The hundredth of the nodes in which this one is, from 1. All versions agree on it.
fn place(name: &str) -> u64 {
    u64::from_str_radix(&hash(&[name])[..8], 16).unwrap_or_default() % 100 + 1
}

/// The prefix of this node that a plan, as CSV, gives to another one.
pub fn taken(csv: &str, name: &str, show: &Show) -> Option<String> {
    let mut rows = csv.lines().map(|row| row.split(',').collect::<Vec<_>>());
    let columns = rows.next()?;
    let column = |name| columns.iter().position(|column| *column == name);
    let (node, prefix) = (column("node")?, column("prefix")?);
    rows.find_map(|row| {
        let (owner, prefix) = (*row.get(node)?, *row.get(prefix)?);
        let is_ours = show
            .pools
            .iter()
            .any(|pool| pool.prefix.as_deref() == Some(prefix));
        (is_ours && owner != name).then(|| format!("{prefix} belongs to {owner}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Pool;

    fn map(percent: &str) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.annotations_mut()
            .insert(PERCENT.to_owned(), percent.to_owned());
        map
    }

    #[test]
    fn each_share_has_the_nodes_of_a_smaller_one_and_100_has_all() {
        let names: Vec<_> = (0..1000)
            .map(|number| format!("worker-gpu-{number}"))
            .collect();
        let of = |percent: &str| -> Vec<_> {
            names
                .iter()
                .filter(|name| waits(&map(percent), name, None).is_none())
                .collect()
        };
        assert!(of("0").is_empty() && of("100").len() == 1000);
        assert!(of("x").is_empty() && of("101").is_empty() && of("-1").is_empty());
        let (few, more) = (of("5"), of("50%"));
        assert!(
            (20..100).contains(&few.len()) && (400..600).contains(&more.len()),
            "{few:?}"
        );
        assert!(few.iter().all(|name| more.contains(name)));
        assert!(waits(&ConfigMap::default(), "n", None).is_none());
        let mut first = Node::default();
        first.labels_mut().insert(FIRST.to_owned(), String::new());
        assert!(waits(&map("0"), "n", Some(&first)).is_none());
        assert!(waits(&map("0"), "n", Some(&Node::default())).is_some());
        let mut paused = map("100");
        assert!(can_pause(&paused) && !can_pause(&ConfigMap::default()));
        paused
            .annotations_mut()
            .insert(PAUSED.to_owned(), "a".to_owned());
        assert!(
            !can_pause(&paused)
                && waits(&paused, "n", None).is_some_and(|why| why.contains("\"a\""))
        );
        assert!(waits(&paused, "n", Some(&first)).is_none());
        // Of every version, or a rollout would jump with an upgrade.
        assert_eq!(place("worker-gpu-0"), 61);
    }

    #[test]
    fn a_prefix_that_the_plan_gives_to_another_node_is_found() {
        let pool = |prefix: &str| Pool {
            prefix: Some(prefix.to_owned()),
            ..Pool::default()
        };
        let show = Show {
            pools: vec![pool("10.0.0.0/31"), pool("10.0.1.0/31")],
        };
        let csv = "node,rail,prefix\na,0,10.0.0.0/31\nb,1,10.0.2.0/31\n";
        assert_eq!(taken(csv, "a", &show), None);
        assert_eq!(
            taken(csv, "b", &show).as_deref(),
            Some("10.0.0.0/31 belongs to a")
        );
        assert_eq!(taken("", "b", &show), None);
    }
}
