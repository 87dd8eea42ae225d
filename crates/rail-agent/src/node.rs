//! The Node object of this node: its labels, taint and conditions.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, GetParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::api::{NAME, client, within};
use crate::preflight;
use crate::ready::{self, Condition};
use crate::runtime::runtime;

/// Label that is true while pods with rails can start, else false.
pub const READY_LABEL: &str = "rail-cni/ready";
/// Label of the operator with the class of the node: class C has the key node.C.json.
pub const CLASS_LABEL: &str = "rail-cni/node-class";

/// The names of other labels and of the taint.
#[derive(Clone, Debug, Args)]
pub struct Names {
    /// Taint (NoSchedule) for a node whose rails fail or that the plan closes; empty: none
    #[arg(long, value_name = "KEY", default_value = "rail-cni/not-ready")]
    pub taint: String,
    /// Label for the node's place in the fabric; {tier} is 1 for leaf switches, 2 for the SU, 3 for
    /// the pod; empty: none
    #[arg(
        long,
        value_name = "PATTERN",
        default_value = "fabric.topograph.run/tier-{tier}"
    )]
    pub tier_label: String,
}

/// Reads the Node from the API server's cache; a consistent read would go to etcd. Needed after a
/// failed write, in case the watch is silent.
pub async fn node(client: &Client, name: &str) -> Result<Node> {
    within(Api::<Node>::all(client.clone()).get_with(name, &GetParams::any())).await
}

/// The version of the Node, which grows with each change of anything in the cluster.
pub fn version(node: &Node) -> Option<u64> {
    node.metadata.resource_version.as_ref()?.parse().ok()
}

/// Whether a copy of the Node is older than another one. The watch may be behind the answer to a
/// write.
pub fn is_older(node: &Node, than: &Node) -> bool {
    version(node)
        .zip(version(than))
        .is_some_and(|(this, that)| this < that)
}

/// The parts of the Node that the agent acts on at once. The status is not one of them, which the
/// kubelet writes all the time.
pub fn concerns(node: &Node) -> impl PartialEq + use<'_> {
    let annotations = node.metadata.annotations.iter().flatten();
    let own: Vec<_> = annotations
        .filter(|(key, _)| key.starts_with("rail-cni/"))
        .collect();
    let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable);
    (
        node.metadata.labels.as_ref(),
        own,
        taints(node),
        unschedulable,
    )
}

/// The value of a label of the Node.
pub fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// The reason of a condition of the Node.
pub fn reason<'a>(node: &'a Node, kind: &str) -> Option<&'a str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == kind)?
        .reason
        .as_deref()
}

/// Annotation of a Node whose taint the agent removed. Only such a Node gets the taint again.
const HAD_TAINT: &str = "rail-cni/had-taint";
/// Annotation with the labels that the agent wrote, as JSON. It removes and replaces only these,
/// because other programs write labels for the place of a node, too.
const LABELS: &str = "rail-cni/labels";

/// Whether the Node had the taint when the agent came.
pub fn had_taint(node: &Node, key: &str) -> bool {
    node.metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(HAD_TAINT))
        .is_some_and(|had| had == key)
}

/// The labels that the agent wrote and that are unchanged.
pub fn own_labels(node: &Node) -> BTreeMap<String, String> {
    let text = node
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(LABELS));
    let mut own: BTreeMap<String, String> = text
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    own.retain(|key, value| label(node, key) == Some(value));
    own
}

/// Whether somebody else wrote this label.
pub fn is_foreign(node: &Node, key: &str) -> bool {
    label(node, key).is_some() && !own_labels(node).contains_key(key)
}

/// Whether the Node has a taint with this key.
pub fn has_taint(node: &Node, key: &str) -> bool {
    taints(node).iter().any(|taint| taint.key == key)
}

fn taints(node: &Node) -> &[Taint] {
    node.spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default()
}

/// The patch for these labels, or `None` if the Node has them. The agent's own labels that are not
/// in `labels` are removed.
pub fn label_change(node: &Node, labels: &BTreeMap<String, String>) -> Option<Value> {
    let mut change = json!({});
    for (label, value) in labels {
        if self::label(node, label) != Some(value) {
            change["metadata"]["labels"][label] = json!(value);
        }
    }
    for label in own_labels(node)
        .keys()
        .filter(|label| !labels.contains_key(*label))
    {
        change["metadata"]["labels"][label] = Value::Null;
    }
    let written = (!labels.is_empty()).then(|| json!(labels).to_string());
    if node
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(LABELS))
        != written.as_ref()
    {
        change["metadata"]["annotations"][LABELS] = json!(written);
    }
    (change != json!({})).then_some(change)
}

/// The patch for the taint with this key, or `None` if it stays. It has the resource version,
/// because a patch replaces the whole list of taints.
pub fn taint_change(node: &Node, taint: ready::Taint, key: &str) -> Option<Value> {
    let mut change = json!({});
    let mut new: Vec<Value> = taints(node)
        .iter()
        .filter(|taint| taint.key != key)
        .map(|taint| json!(taint))
        .collect();
    match taint {
        ready::Taint::Keep => return None,
        ready::Taint::Remove => {
            change["spec"]["taints"] = json!(new);
            change["metadata"]["annotations"][HAD_TAINT] = json!(key);
        }
        ready::Taint::Add => {
            new.push(json!({"key": key, "effect": "NoSchedule"}));
            change["spec"]["taints"] = json!(new);
        }
    }
    change["metadata"]["resourceVersion"] = json!(node.metadata.resource_version);
    Some(change)
}

/// Sets the taint, unless the Node has it.
pub async fn add_taint(client: &Client, name: &str, key: &str) -> Result<()> {
    let node = within(Api::<Node>::all(client.clone()).get(name)).await?;
    match taint_change(&node, ready::Taint::Add, key).filter(|_| !has_taint(&node, key)) {
        Some(change) => patch(client, name, &change).await.map(drop),
        None => Ok(()),
    }
}

/// Applies a patch of labels or taints. Returns the Node with its new resource version.
pub async fn patch(client: &Client, name: &str, change: &Value) -> Result<Node> {
    let params = PatchParams {
        field_manager: Some(NAME.to_owned()),
        ..PatchParams::default()
    };
    within(Api::<Node>::all(client.clone()).patch(name, &params, &Patch::Merge(change))).await
}

/// The conditions to write: those that differ, and those whose heartbeat is old.
pub fn missing(
    node: &Node,
    wanted: &[Condition],
    now: Timestamp,
    heartbeat: Duration,
) -> Vec<NodeCondition> {
    let there = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let missing = wanted.iter().filter_map(|wanted| {
        let status = if wanted.is_true { "True" } else { "False" };
        let old = there.iter().find(|old| old.type_ == wanted.kind);
        let is_young = |time: &Time| now.duration_since(time.0).unsigned_abs() < heartbeat;
        let is_same = old.is_some_and(|old| {
            old.status == status
                && old.reason.as_deref() == Some(&wanted.reason)
                && old.message.as_deref() == Some(&wanted.message)
                && old.last_heartbeat_time.as_ref().is_some_and(is_young)
        });
        let since = old
            .filter(|old| old.status == status)
            .and_then(|old| old.last_transition_time.clone());
        (!is_same).then(|| NodeCondition {
            type_: wanted.kind.to_owned(),
            status: status.to_owned(),
            reason: Some(wanted.reason.clone()),
            message: Some(wanted.message.clone()),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: Some(since.unwrap_or(Time(now))),
        })
    });
    missing.collect()
}

/// Writes conditions of the Node; those of other types stay. Returns the Node with its new resource
/// version.
pub async fn patch_conditions(client: &Client, name: &str, conditions: &Value) -> Result<Node> {
    let change = json!({"status": {"conditions": conditions}});
    let params = PatchParams::default();
    within(Api::<Node>::all(client.clone()).patch_status(name, &params, &Patch::Strategic(&change)))
        .await
}

/// The patch that removes a condition.
pub fn without(kind: &str) -> Value {
    json!({"type": kind, "$patch": "delete"})
}

/// Removes the agent's labels and conditions from the Node.
pub fn forget(name: &str) -> Result<()> {
    runtime()?.block_on(async { forget_with(&client().await?, name).await })
}

/// Like [`forget`], with an open client.
pub async fn forget_with(client: &Client, name: &str) -> Result<()> {
    let node = within(Api::<Node>::all(client.clone()).get(name)).await?;
    // The taint stays: whether pods with rails can start is unknown.
    let mut change = label_change(&node, &BTreeMap::new()).unwrap_or_else(|| json!({}));
    change["metadata"]["labels"][READY_LABEL] = Value::Null;
    change["metadata"]["annotations"][HAD_TAINT] = Value::Null;
    patch(client, name, &change).await?;
    let gone = [ready::READY, ready::CURRENT, preflight::KIND].map(without);
    patch_conditions(client, name, &json!(gone)).await.map(drop)
}

/// Whether no agent will replace this one: its DaemonSet was deleted, or no longer selects this
/// node. A rolling update is not that, and must not take the node away from schedulers.
pub async fn is_removed(
    client: &Client,
    namespace: &str,
    name: &str,
    node: Option<&Node>,
) -> Result<bool> {
    let asked =
        within(Api::<DaemonSet>::namespaced(client.clone(), namespace).get_opt(name)).await?;
    let Some(set) = asked else { return Ok(true) };
    let pod = set.spec.and_then(|spec| spec.template.spec);
    let selector = pod.and_then(|pod| pod.node_selector).unwrap_or_default();
    let is_selected = |node: &Node| {
        selector
            .iter()
            .all(|(key, value)| label(node, key) == Some(value))
    };
    Ok(set.metadata.deletion_timestamp.is_some() || !node.is_none_or(is_selected))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_what_differs_is_changed_and_foreign_taints_stay() {
        let node = node(json!({
            "metadata": {"name": "n", "resourceVersion": "7", "labels": {"rail-cni/ready": "true", "t/1": "leaf-0"},
                "annotations": {"rail-cni/labels": r#"{"rail-cni/ready":"true","t/1":"leaf-0"}"#}},
            "spec": {"taints": [{"key": "other", "effect": "NoExecute"}, {"key": "k", "effect": "NoSchedule"}]}
        }));
        let labels = |ready: &str, tier: Option<&str>| {
            let tier = tier.map(|leaf| ("t/1".to_owned(), leaf.to_owned()));
            BTreeMap::from_iter(
                [("rail-cni/ready".to_owned(), ready.to_owned())]
                    .into_iter()
                    .chain(tier),
            )
        };
        assert_eq!(label_change(&node, &labels("true", Some("leaf-0"))), None);
        assert_eq!(
            label_change(&node, &labels("false", None)),
            Some(
                json!({"metadata": {"labels": {"rail-cni/ready": "false", "t/1": null},
                "annotations": {"rail-cni/labels": r#"{"rail-cni/ready":"false"}"#}}})
            )
        );
        let of = |taint| taint_change(&node, taint, "k");
        assert_eq!(of(ready::Taint::Keep), None);
        assert_eq!(
            of(ready::Taint::Remove),
            Some(
                json!({"metadata": {"resourceVersion": "7", "annotations": {"rail-cni/had-taint": "k"}},
                "spec": {"taints": [{"key": "other", "effect": "NoExecute"}]}})
            )
        );
        let added = of(ready::Taint::Add).unwrap();
        assert_eq!(added["spec"]["taints"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_label_that_the_agent_did_not_write_is_neither_removed_nor_called_its_own() {
        let with = |written: &str| {
            node(
                json!({"metadata": {"labels": {"t/1": "of-another"}, "annotations": {"rail-cni/labels": written}}}),
            )
        };
        for written in ["", "{}", "null", r#"{"t/1":"leaf-0"}"#] {
            assert!(
                own_labels(&with(written)).is_empty() && is_foreign(&with(written), "t/1"),
                "{written}"
            );
            let change = label_change(&with(written), &BTreeMap::new());
            assert_eq!(
                change,
                Some(json!({"metadata": {"annotations": {"rail-cni/labels": null}}}))
            );
        }
        let own = with(r#"{"t/1":"of-another"}"#);
        assert!(!is_foreign(&own, "t/1") && !is_foreign(&own, "t/2"));
        let change = label_change(&own, &BTreeMap::new()).unwrap();
        assert_eq!(change["metadata"]["labels"], json!({"t/1": null}));
    }

    #[test]
    fn a_condition_is_written_when_it_changes_and_when_its_heartbeat_is_old() {
        let at = |minute: i8| {
            Timestamp::UNIX_EPOCH + k8s_openapi::jiff::SignedDuration::from_mins(minute.into())
        };
        let wanted = Condition {
            kind: ready::READY,
            is_true: true,
            reason: "A".into(),
            message: "b".into(),
        };
        let node = node(json!({"status": {"conditions": [
            {"type": "RailsReady", "status": "True", "reason": "A", "message": "b",
                "lastHeartbeatTime": at(10).to_string(), "lastTransitionTime": at(1).to_string()}]}}));
        let of = |wanted: Condition, now| missing(&node, &[wanted], now, Duration::from_secs(300));
        assert!(of(wanted.clone(), at(14)).is_empty());
        let old = of(wanted.clone(), at(15));
        assert_eq!(old[0].last_transition_time.as_ref().unwrap().0, at(1));
        let lost = of(
            Condition {
                is_true: false,
                ..wanted
            },
            at(11),
        );
        assert_eq!(
            (
                lost[0].status.as_str(),
                lost[0].last_transition_time.as_ref().unwrap().0
            ),
            ("False", at(11))
        );
    }
}
