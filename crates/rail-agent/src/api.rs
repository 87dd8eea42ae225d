//! The Kubernetes API: this node's labels, taint and conditions, and Events.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, NodeCondition, ObjectReference, Taint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, GetParams, Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Config, ResourceExt as _};
use serde_json::{Value, json};

use crate::preflight;
use crate::ready::{self, Condition};
use crate::rollout;
use crate::text::{clean, say};

/// What the agent calls itself in Events and as field manager.
pub const NAME: &str = "rail-agent";
/// A request that takes longer has failed. A watch has no such limit.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// A connection on which nothing comes for so long is dead. The API server ends a watch after 290
/// s.
const SILENCE: Duration = Duration::from_secs(330);

/// The names of labels and taints of the Node.
#[derive(Clone, Debug, Args)]
pub struct Names {
    /// Label that is true while pods with rails can start, else false; empty: none
    #[arg(long, value_name = "KEY", default_value = "rail-cni/ready")]
    pub ready_label: String,
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

/// Connects to the API server that KUBECONFIG or the pod's service account names. Nothing is sent
/// yet.
pub async fn client() -> Result<Client> {
    let config = Config::infer()
        .await
        .context("this pod has no service account, and KUBECONFIG names no file")?;
    connect(config, SILENCE)
}

/// A list, and the start of a watch, have no limit of their own: an API server that takes the
/// connection and says nothing would be waited for as long as the agent runs.
pub fn connect(mut config: Config, silence: Duration) -> Result<Client> {
    config.read_timeout = Some(silence);
    Client::try_from(config).context("the API server's address or certificate is wrong")
}

/// Waits for a request.
pub async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T> {
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(answer) => answer.map_err(explained),
        Err(_) => bail!(
            "the API server did not answer within {} s",
            PATIENCE.as_secs()
        ),
    }
}

/// The error with all of its causes, which kube's own text leaves out.
pub fn explained(error: impl std::error::Error) -> anyhow::Error {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    let hint = if text.contains("certificate") || text.contains("UnknownIssuer") {
        " (the certificate of the API server is not that of the service account's ca.crt, or of KUBECONFIG)"
    } else if text.contains("403") || text.contains("orbidden") {
        " (apply the ClusterRole and Role of deploy/)"
    } else {
        ""
    };
    anyhow::anyhow!("{text}{hint}")
}

/// The UID of the namespace kube-system, which identifies a cluster.
pub async fn cluster_uid(client: &Client) -> Result<String> {
    let namespace = within(Api::<Namespace>::all(client.clone()).get("kube-system")).await?;
    namespace
        .metadata
        .uid
        .context("the namespace kube-system has no UID")
}

/// The Node as the API server has it in memory: a question about what is stored now would go to
/// etcd. It is asked after a write that failed, in case the watch is silent.
pub async fn node(client: &Client, name: &str) -> Result<Node> {
    within(Api::<Node>::all(client.clone()).get_with(name, &GetParams::any())).await
}

/// The version of the Node, which grows with each change of anything in the cluster.
pub fn version(node: &Node) -> Option<u64> {
    node.metadata.resource_version.as_ref()?.parse().ok()
}

/// Whether a copy of the Node is older than another one. A watch may tell late of what the answer
/// to a write has said.
pub fn is_older(node: &Node, than: &Node) -> bool {
    version(node)
        .zip(version(than))
        .is_some_and(|(this, that)| this < that)
}

/// What of the Node the agent acts on, so that a change of it needs a look at once. The kubelet
/// writes the status all the time.
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

/// The annotation of a Node whose taint the agent removed. The taint returns to no other.
const HAD_TAINT: &str = "rail-cni/had-taint";
/// The annotation with the labels that the agent wrote, as JSON. Others, too, write labels for the
/// place of a node: the agent removes and replaces only what it wrote itself.
const LABELS: &str = "rail-cni/labels";

/// Whether the Node had the taint when the agent came.
pub fn had_taint(node: &Node, key: &str) -> bool {
    node.metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(HAD_TAINT))
        .is_some_and(|had| had == key)
}

/// The labels that the agent wrote, and that are there as it wrote them.
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

/// The change of labels that makes the Node as it should be; `None` if it is so already. Of the
/// labels that the agent wrote before, those that are not in `labels` are removed.
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

/// The change of the taint with this key; `None` if there is none.
///
/// The resource version is in it, because a list such as that of the taints is replaced as a whole.
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

/// Writes to the ConfigMap that this node stops the rollout, unless it has changed meanwhile.
pub async fn pause(client: &Client, map: &ConfigMap, node: &str) -> Result<()> {
    let (name, namespace) = (map.name_any(), map.namespace().unwrap_or_default());
    let annotations = BTreeMap::from([(rollout::PAUSED, node)]);
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

/// Applies a change of labels or taints. Returns the Node, which has another resource version now.
pub async fn patch(client: &Client, name: &str, change: &Value) -> Result<Node> {
    let params = PatchParams {
        field_manager: Some(NAME.to_owned()),
        ..PatchParams::default()
    };
    within(Api::<Node>::all(client.clone()).patch(name, &params, &Patch::Merge(change))).await
}

/// The conditions that the Node should have and has not. A condition that is only old is one of
/// them: its heartbeat shows that the agent lives.
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

/// Writes conditions of the Node. Others stay, because the key of that list is the type. Returns
/// the Node, which has another resource version now.
pub async fn patch_conditions(client: &Client, name: &str, conditions: &Value) -> Result<Node> {
    let change = json!({"status": {"conditions": conditions}});
    let params = PatchParams::default();
    within(Api::<Node>::all(client.clone()).patch_status(name, &params, &Patch::Strategic(&change)))
        .await
}

/// What removes a condition.
pub fn without(kind: &str) -> Value {
    json!({"type": kind, "$patch": "delete"})
}

/// Removes from the Node what the agent wrote.
pub fn forget(name: &str, names: &Names) -> Result<()> {
    runtime()?.block_on(async { forget_with(&client().await?, name, names).await })
}

/// The same with a client that is there.
pub async fn forget_with(client: &Client, name: &str, names: &Names) -> Result<()> {
    let node = within(Api::<Node>::all(client.clone()).get(name)).await?;
    // The taint stays: nobody knows whether pods with rails can start.
    let mut change = label_change(&node, &BTreeMap::new()).unwrap_or_else(|| json!({}));
    if !names.ready_label.is_empty() {
        change["metadata"]["labels"][&names.ready_label] = Value::Null;
    }
    change["metadata"]["annotations"][HAD_TAINT] = Value::Null;
    patch(client, name, &change).await?;
    let gone = [ready::READY, ready::CURRENT, preflight::KIND].map(without);
    patch_conditions(client, name, &json!(gone)).await.map(drop)
}

/// Whether no other agent comes to this node: its DaemonSet was deleted, or has another node
/// selector. A pod that is replaced ends in the same way, and the node must not be taken away from
/// schedulers for that.
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

/// A runtime with one thread.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

/// Waits for SIGTERM or SIGINT.
pub fn until_stopped() -> Result<()> {
    runtime()?.block_on(stopped())
}

/// The same within a runtime.
pub async fn stopped() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    tokio::select! {
        _ = term.recv() => (),
        _ = int.recv() => (),
    }
    Ok(())
}

/// Something to tell about a pod or the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// The pod as `namespace/name`, and its UID where it is known; `None`: this node.
    pub pod: Option<(String, Option<String>)>,
    /// Whether something is wrong.
    pub is_warning: bool,
    /// One word in CamelCase.
    pub reason: &'static str,
    /// What the agent saw, so that the rails of a pod have Events of their own.
    pub action: String,
    /// The text.
    pub note: String,
}

/// Sends Events, and never so many that they are a burden: each once in five minutes, and a few in
/// a minute.
pub struct Events {
    recorder: Recorder,
    node: ObjectReference,
    limit: Limit,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl Events {
    /// For this node; `pod` is the agent's own.
    pub fn new(client: Client, node: &str, pod: Option<&str>) -> Events {
        let reporter = Reporter {
            controller: NAME.to_owned(),
            instance: Some(pod.unwrap_or(node).to_owned()),
        };
        // The UID of a Node in Events is its name, as the kubelet has it.
        let node = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: Some(node.to_owned()),
            ..ObjectReference::default()
        };
        Events {
            recorder: Recorder::new(client, reporter),
            node,
            limit: Limit::default(),
        }
    }

    /// Sends one, unless it was sent already. Returns false if it is lost.
    pub async fn send(&mut self, news: &News) -> bool {
        match self.limit.judge(news, Instant::now()) {
            Verdict::Send => (),
            Verdict::Repeated => return true,
            Verdict::TooMany => return false,
        }
        let about = match &news.pod {
            None => self.node.clone(),
            Some((pod, uid)) => {
                let Some((namespace, name)) = pod.split_once('/') else {
                    return false;
                };
                ObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    namespace: Some(namespace.to_owned()),
                    name: Some(name.to_owned()),
                    uid: uid.clone(),
                    ..ObjectReference::default()
                }
            }
        };
        let event = Event {
            type_: if news.is_warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: news.reason.to_owned(),
            note: Some(clean(&news.note)),
            action: news.action.clone(),
            secondary: None,
        };
        if let Err(error) = within(self.recorder.publish(&event, &about)).await {
            self.limit.was_not_sent();
            say(
                "warn",
                &format!(
                    "the Event {} ({}) was not sent: {error:#}",
                    news.reason,
                    clean(&news.note)
                ),
            );
            return false;
        }
        true
    }
}

/// What becomes of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Send,
    /// It was sent a short time ago.
    Repeated,
    TooMany,
}

/// Which Events are sent.
#[derive(Debug, Default)]
struct Limit {
    /// When each was tried, and what it was, unless the API server did not take it.
    sent: VecDeque<(Instant, Option<News>)>,
}

impl Limit {
    const SAME: Duration = Duration::from_secs(300);
    const MINUTE: Duration = Duration::from_secs(60);
    const IN_A_MINUTE: usize = 40;

    fn judge(&mut self, news: &News, now: Instant) -> Verdict {
        while self
            .sent
            .front()
            .is_some_and(|(then, _)| now.duration_since(*then) >= Self::SAME)
        {
            self.sent.pop_front();
        }
        let is_same = |other: &News| {
            (&other.pod, other.reason, &other.action) == (&news.pod, news.reason, &news.action)
        };
        if self
            .sent
            .iter()
            .any(|(_, other)| other.as_ref().is_some_and(is_same))
        {
            return Verdict::Repeated;
        }
        let recent = self
            .sent
            .iter()
            .rev()
            .take_while(|(then, _)| now.duration_since(*then) < Self::MINUTE)
            .count();
        if recent >= Self::IN_A_MINUTE {
            return Verdict::TooMany;
        }
        self.sent.push_back((now, Some(news.clone())));
        Verdict::Send
    }

    /// The last one was not taken: it may be sent again. It counts as one of the minute all the
    /// same.
    fn was_not_sent(&mut self) {
        if let Some((_, news)) = self.sent.back_mut() {
            *news = None;
        }
    }
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

    #[test]
    fn events_are_few() {
        let mut limit = Limit::default();
        let now = Instant::now();
        let news = |pod: usize, reason: &'static str| News {
            pod: Some((format!("ns/pod-{pod}"), None)),
            is_warning: true,
            reason,
            action: "Add".to_owned(),
            note: String::new(),
        };
        let mut judge = |pod, reason, seconds| {
            limit.judge(&news(pod, reason), now + Duration::from_secs(seconds))
        };
        assert_eq!([judge(0, "A", 0), judge(0, "B", 0)], [Verdict::Send; 2]);
        assert_eq!(judge(0, "A", 299), Verdict::Repeated);
        assert_eq!(judge(0, "A", 300), Verdict::Send);
        let many: Vec<_> = (1..1000).map(|pod| judge(pod, "A", 1000)).collect();
        let of = |verdict| many.iter().filter(|one| **one == verdict).count();
        assert_eq!(
            (of(Verdict::Send), of(Verdict::TooMany)),
            (Limit::IN_A_MINUTE, 999 - Limit::IN_A_MINUTE)
        );
        assert_eq!(
            judge(1, "A", 1001),
            Verdict::Repeated,
            "it was sent, so nothing is lost"
        );
        assert!(limit.sent.len() <= Limit::IN_A_MINUTE);
        // An API server that takes none is not asked more often.
        let later = now + Duration::from_secs(2000);
        let tried = (0..1000).filter(|_| {
            let is_tried = limit.judge(&news(0, "A"), later) == Verdict::Send;
            limit.was_not_sent();
            is_tried
        });
        assert_eq!(tried.count(), Limit::IN_A_MINUTE);
        assert_eq!(
            limit.judge(&news(0, "A"), later + Limit::MINUTE),
            Verdict::Send
        );
        assert_eq!(
            limit.judge(&news(0, "A"), later + Limit::MINUTE),
            Verdict::Repeated
        );
    }
}
