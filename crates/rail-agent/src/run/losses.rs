//! Rails that running pods lost: a driver that started anew made the netdev on the host.

use std::collections::BTreeSet;

use crate::events::Notice;
use crate::report::Attachment;
use crate::text::clean;

/// The reasons of the Events.
const LOST: &str = "RailLost";
const BACK: &str = "RailBack";

/// Attachments by container and interface.
pub(super) type Lost = BTreeSet<(String, String)>;

/// The rails that are lost at this look.
pub(super) fn lost(attachments: &[Attachment]) -> Lost {
    let lost = attachments.iter().filter(|one| one.is_lost());
    lost.map(key).collect()
}

fn key(attachment: &Attachment) -> (String, String) {
    (attachment.container.clone(), attachment.ifname.clone())
}

/// Events about the rails that were lost since the last look, or are in their pods again: of the
/// Node and of the pod. The UIDs of the pods are not filled in.
pub(super) fn notices(before: &Lost, attachments: &[Attachment]) -> Vec<Notice> {
    let mut notices = Vec::new();
    for attachment in attachments {
        let was_lost = before.contains(&key(attachment));
        let is_back = was_lost && attachment.is_in_pod();
        let is_new = !was_lost && attachment.is_lost();
        if !is_back && !is_new {
            continue;
        }
        let (reason, what) = if is_back {
            (BACK, "is in the pod again")
        } else {
            (
                LOST,
                "was lost: its device is on the host, because its driver started anew or the pod gave it away. \
                 Restart the pod",
            )
        };
        let pod = attachment.pod.clone().map(|pod| (pod, None));
        let about_pod = pod.is_some().then_some(pod);
        for pod in [None].into_iter().chain(about_pod) {
            notices.push(Notice {
                pod,
                is_warning: is_new,
                reason,
                action: clean(&format!("Watch {}", attachment.ifname)),
                note: format!("{} {what}", attachment.title()),
            });
        }
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_that_is_lost_and_back_is_told_once_each() {
        let one = |state: &str| {
            [Attachment {
                state: state.to_owned(),
                container: "c".to_owned(),
                ifname: "net4".to_owned(),
                rail: Some(3),
                pod: Some("ai/trainer-0".to_owned()),
                ..Attachment::default()
            }]
        };
        let reasons = |before: &Lost, state: &str| -> Vec<_> {
            let told = notices(before, &one(state));
            told.iter()
                .map(|notice| (notice.reason, notice.pod.is_some()))
                .collect()
        };
        let none = Lost::new();
        assert!(reasons(&none, "live").is_empty());
        assert_eq!(reasons(&none, "lost"), [(LOST, false), (LOST, true)]);
        let seen = lost(&one("lost"));
        assert!(reasons(&seen, "lost").is_empty());
        assert!(reasons(&seen, "busy").is_empty());
        assert_eq!(reasons(&seen, "live"), [(BACK, false), (BACK, true)]);
        let note = &notices(&none, &one("lost"))[0].note;
        assert!(
            note.starts_with("net4 of rail 3 of pod ai/trainer-0 was lost"),
            "{note}"
        );
    }
}
