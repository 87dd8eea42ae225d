//! The calls of the plugins as metrics and Events, beside the loop of the agent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::calls::{Call, Tail};
use crate::events::{Events, Notice};
use crate::serve::Shared;
use crate::text::{clean, error_text, log};

/// Time between reads of the file of calls.
const CALLS_INTERVAL: Duration = Duration::from_secs(1);
/// Pods with a known UID.
const MAX_UIDS: usize = 4096;

/// UIDs of pods, from the calls of the plugins. `kubectl describe pod` shows only Events with the
/// UID.
pub(super) type Uids = Arc<Mutex<HashMap<String, String>>>;

pub(super) fn uid_of(uids: &Uids, pod: &str) -> Option<String> {
    uids.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(pod)
        .cloned()
}

/// The Event of a pod for a call; `None` if the call is not worth one.
fn notice_of(call: &Call) -> Option<Notice> {
    let pod = call.pod.as_ref()?;
    // rail-cni reports an error of rail-ipam as its own, with the same text.
    if call.plugin != "rail-cni" {
        return None;
    }
    let has_failed = call.code != 0;
    let reason = match call.verb.as_str() {
        _ if !has_failed && call.restored.is_empty() => return None,
        _ if !has_failed => "RailHealed",
        "ADD" => "RailRefused",
        "CHECK" => "RailDiffers",
        "DEL" => "RailNotReturned",
        _ => return None,
    };
    let message = if has_failed {
        call.message.clone().unwrap_or_default()
    } else {
        call.restored.join("; ")
    };
    let interface = call.interface.as_deref().unwrap_or("-");
    Some(Notice {
        pod: Some((pod.clone(), call.pod_uid.clone())),
        is_warning: has_failed,
        reason,
        action: clean(&format!("{} {interface}", call.verb)),
        note: format!("{}: {message}", describe(call)),
    })
}

/// Rail, network and interface of a call, as far as it names them.
fn describe(call: &Call) -> String {
    let mut parts = Vec::new();
    if let Some(rail) = call.rail {
        parts.push(format!("rail {rail}"));
    }
    match &call.network {
        Some(network) => parts.push(format!("network {network}")),
        None => parts.push(call.plugin.clone()),
    }
    if let Some(interface) = &call.interface {
        parts.push(format!("interface {interface}"));
    }
    parts.join(", ")
}

/// Reads the calls of the plugins for as long as the agent runs.
pub(super) async fn read_calls(
    mut tail: Tail,
    shared: Shared,
    notices: mpsc::Sender<Notice>,
    uids: Uids,
) {
    let mut told = None;
    loop {
        match tail.read() {
            Ok(calls) => {
                for call in &calls {
                    shared.with(|metrics| {
                        metrics.count(call);
                        metrics.refusals.count(call, Instant::now());
                    });
                    if let (Some(pod), Some(uid)) = (&call.pod, &call.pod_uid) {
                        let mut uids = uids.lock().unwrap_or_else(PoisonError::into_inner);
                        if uids.len() >= MAX_UIDS {
                            uids.clear();
                        }
                        uids.insert(pod.clone(), uid.clone());
                    }
                    if notice_of(call).is_some_and(|one| notices.try_send(one).is_err()) {
                        shared.with(|metrics| metrics.events_dropped += 1);
                    }
                }
                told = None;
            }
            Err(error) => {
                let text = error_text(&error);
                if told.as_ref() != Some(&text) {
                    log("warn", &text);
                    told = Some(text);
                }
            }
        }
        tokio::time::sleep(CALLS_INTERVAL).await;
    }
}

pub(super) async fn send_events(
    mut events: Events,
    mut waiting: mpsc::Receiver<Notice>,
    shared: Shared,
) {
    while let Some(notice) = waiting.recv().await {
        if !events.send(&notice).await {
            shared.with(|metrics| metrics.events_dropped += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_told_of_refused_and_healed_rails_alone() {
        let call = |verb: &str, code, restored: &[&str]| Call {
            plugin: "rail-cni".to_owned(),
            verb: verb.to_owned(),
            code,
            network: Some("rail-3".to_owned()),
            rail: Some(3),
            interface: Some("net4".to_owned()),
            pod: Some("ai/trainer-0".to_owned()),
            pod_uid: Some("uid".to_owned()),
            message: (code != 0).then(|| "no device".to_owned()),
            restored: restored.iter().map(|one| (*one).to_owned()).collect(),
            ..Call::default()
        };
        let refused = notice_of(&call("ADD", 11, &[])).unwrap();
        assert_eq!((refused.reason, refused.is_warning), ("RailRefused", true));
        assert_eq!(
            refused.note,
            "rail 3, network rail-3, interface net4: no device"
        );
        assert_eq!(
            refused.pod,
            Some(("ai/trainer-0".to_owned(), Some("uid".to_owned())))
        );
        let healed = notice_of(&call(
            "ADD",
            0,
            &["ens1f0v0 was left behind by pod x: restoring it"],
        ))
        .unwrap();
        assert_eq!((healed.reason, healed.is_warning), ("RailHealed", false));
        assert!(notice_of(&call("ADD", 0, &[])).is_none());
        assert!(notice_of(&call("DEL", 0, &[])).is_none());
        assert!(notice_of(&call("STATUS", 50, &[])).is_none());
        assert!(
            notice_of(&Call {
                plugin: "rail-ipam".to_owned(),
                ..call("ADD", 11, &[])
            })
            .is_none()
        );
        assert!(
            notice_of(&Call {
                pod: None,
                ..call("ADD", 11, &[])
            })
            .is_none()
        );
    }
}
