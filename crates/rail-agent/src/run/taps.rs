//! Rails of running pods whose frames another namespace takes.

use std::collections::BTreeSet;

use crate::events::Notice;
use crate::report::{Attachment, Tap};
use crate::text::clean;

/// The reason of the Events.
const REASON: &str = "RailTapped";

/// A tapped rail: container, interface, and the pod that taps it.
pub(super) type Seen = BTreeSet<(String, String, Option<String>)>;

/// The rails that are tapped at this look.
pub(super) fn seen(attachments: &[Attachment]) -> Seen {
    let mut seen = Seen::new();
    for attachment in attachments {
        if let Some(tap) = &attachment.tapped {
            seen.insert(key(attachment, tap));
        }
    }
    seen
}

fn key(attachment: &Attachment, tap: &Tap) -> (String, String, Option<String>) {
    (
        attachment.container.clone(),
        attachment.ifname.clone(),
        tap.pod.clone(),
    )
}

/// Events about the rails that are tapped since the last look: of the Node, the pod, and the pod that
/// taps it. The UIDs of the pods are not filled in.
pub(super) fn notices(before: &Seen, attachments: &[Attachment]) -> Vec<Notice> {
    let mut notices = Vec::new();
    for attachment in attachments {
        let Some(tap) = &attachment.tapped else {
            continue;
        };
        if before.contains(&key(attachment, tap)) {
            continue;
        }
        let note = describe(attachment, tap);
        let pods = [attachment.pod.clone(), tap.pod.clone()];
        for pod in [None]
            .into_iter()
            .chain(pods.into_iter().flatten().map(Some))
        {
            notices.push(Notice {
                pod: pod.map(|pod| (pod, None)),
                is_warning: true,
                reason: REASON,
                action: clean(&format!("Watch {}", attachment.ifname)),
                note: note.clone(),
            });
        }
    }
    notices
}

fn describe(attachment: &Attachment, tap: &Tap) -> String {
    let by = match (tap, &tap.pod) {
        (_, Some(pod)) => format!("pod {pod}"),
        (
            Tap {
                netns: Some(netns), ..
            },
            None,
        ) => format!("the namespace {netns}"),
        (Tap { link: Some(_), .. }, None) => "the namespace of the node".to_owned(),
        _ => "a namespace that cannot be found".to_owned(),
    };
    format!(
        "{} is tapped: a link in {by} takes its frames (`railctl status`)",
        attachment.title()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tapped(by: Option<&str>) -> Attachment {
        Attachment {
            rail: Some(3),
            state: "tapped".to_owned(),
            pod: Some("ai/trainer".to_owned()),
            container: "c".to_owned(),
            ifname: "net4".to_owned(),
            tapped: Some(Tap {
                pod: by.map(str::to_owned),
                ..Tap::default()
            }),
            ..Attachment::default()
        }
    }

    #[test]
    fn node_and_both_pods_are_told_once_of_a_tap() {
        let about = |before: &Seen, attachment: &Attachment| {
            let notices = notices(before, std::slice::from_ref(attachment));
            let pods = notices.into_iter().map(|one| one.pod.map(|(pod, _)| pod));
            pods.collect::<Vec<_>>()
        };
        let victim = Some("ai/trainer".to_owned());
        let unknown = tapped(None);
        assert_eq!(about(&Seen::new(), &unknown), [None, victim.clone()]);
        let before = seen(std::slice::from_ref(&unknown));
        assert_eq!(about(&before, &unknown), []);

        let known = tapped(Some("dev/curious"));
        let curious = Some("dev/curious".to_owned());
        assert_eq!(about(&before, &known), [None, victim, curious]);
        let live = Attachment {
            tapped: None,
            ..tapped(None)
        };
        assert_eq!(about(&Seen::new(), &live), []);
    }

    #[test]
    fn the_event_says_who_taps_the_rail() {
        let note = |attachment: &Attachment| {
            notices(&Seen::new(), std::slice::from_ref(attachment))[0]
                .note
                .clone()
        };
        assert_eq!(
            note(&tapped(Some("dev/curious"))),
            "net4 of rail 3 of pod ai/trainer is tapped: a link in pod dev/curious takes its frames (`railctl status`)"
        );
        assert!(note(&tapped(None)).contains("in a namespace that cannot be found takes"));
    }
}
