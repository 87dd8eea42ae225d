//! Events about pods and this node.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use crate::api::{NAME, within};
use crate::text::{clean, log};

/// The content of an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The pod as `namespace/name`, and its UID where it is known; `None`: this node.
    pub pod: Option<(String, Option<String>)>,
    /// Whether something is wrong.
    pub is_warning: bool,
    /// One word in CamelCase.
    pub reason: &'static str,
    /// The observed action, so that each rail of a pod has Events of its own.
    pub action: String,
    /// The text.
    pub note: String,
}

/// Sends Events, within limits: the same one once in five minutes, and 40 in a minute.
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
    pub async fn send(&mut self, news: &Notice) -> bool {
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
            log(
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

/// Whether an Event is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Send,
    /// It was sent a short time ago.
    Repeated,
    TooMany,
}

/// The limits of Events.
#[derive(Debug, Default)]
struct Limit {
    /// The time of each try, and its Event unless the API server refused it.
    sent: VecDeque<(Instant, Option<Notice>)>,
}

impl Limit {
    const SAME: Duration = Duration::from_secs(300);
    const MINUTE: Duration = Duration::from_secs(60);
    const IN_A_MINUTE: usize = 40;

    fn judge(&mut self, news: &Notice, now: Instant) -> Verdict {
        while self
            .sent
            .front()
            .is_some_and(|(then, _)| now.duration_since(*then) >= Self::SAME)
        {
            self.sent.pop_front();
        }
        let is_same = |other: &Notice| {
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

    /// Lets the last Event be sent again. It still counts for the limit of a minute.
    fn was_not_sent(&mut self) {
        if let Some((_, news)) = self.sent.back_mut() {
            *news = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_few() {
        let mut limit = Limit::default();
        let now = Instant::now();
        let news = |pod: usize, reason: &'static str| Notice {
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
