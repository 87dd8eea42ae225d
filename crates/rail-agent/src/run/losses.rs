//! Rails that running pods lost: a driver that started anew made the netdev on the host. `railctl
//! reap --reattach` attaches them again.

use std::collections::BTreeMap;

use crate::events::Notice;
use crate::report::Attachment;
use crate::text::clean;

/// The reasons of the Events.
const LOST: &str = "RailLost";
const NOT_REATTACHED: &str = "RailNotReattached";
const BACK: &str = "RailBack";

/// The attachments at the last look, by container and interface.
pub(super) type Seen = BTreeMap<(String, String), Attachment>;

/// The attachments of this look.
pub(super) fn seen(attachments: &[Attachment]) -> Seen {
    let keyed = attachments.iter().map(|one| (key(one), one.clone()));
    keyed.collect()
}

fn key(attachment: &Attachment) -> (String, String) {
    (attachment.container.clone(), attachment.ifname.clone())
}

/// Whether a rail was lost since the last look.
pub(super) fn has_new_loss(before: &Seen, attachments: &[Attachment]) -> bool {
    let is_new = |one: &Attachment| {
        let last = before.get(&key(one));
        one.is_lost() && !last.is_some_and(Attachment::is_lost)
    };
    attachments.iter().any(is_new)
}

/// Events about the rails that were lost since the last look, could not be attached again, or are
/// in their pods again: of the Node and of the pod. The UIDs of the pods are not filled in.
pub(super) fn notices(before: &Seen, attachments: &[Attachment]) -> Vec<Notice> {
    let mut notices = Vec::new();
    for attachment in attachments {
        for (reason, what) in changes(before.get(&key(attachment)), attachment) {
            let pod = attachment.pod.clone().map(|pod| (pod, None));
            let about_pod = pod.is_some().then_some(pod);
            for pod in [None].into_iter().chain(about_pod) {
                notices.push(Notice {
                    pod,
                    is_warning: reason != BACK,
                    reason,
                    action: clean(&format!("Watch {}", attachment.ifname)),
                    note: format!("{} {what}", attachment.title()),
                });
            }
        }
    }
    notices
}

/// Reasons and texts of the changes since the last look. `before` is `None` for an attachment that
/// was not there then, or that this agent has not seen yet.
fn changes(before: Option<&Attachment>, now: &Attachment) -> Vec<(&'static str, String)> {
    let mut changes = Vec::new();
    let was_lost = before.is_some_and(Attachment::is_lost);
    if now.is_lost() && !was_lost {
        let why = "was lost: its device is on the host, because its driver started anew or the pod gave it away";
        changes.push((LOST, why.to_owned()));
    }
    if let Some(why) = now.why_not_back()
        && before.and_then(Attachment::why_not_back) != Some(why)
    {
        changes.push((
            NOT_REATTACHED,
            format!("could not be attached again: {why}"),
        ));
    }
    // Also a rail that was lost and came back between two looks.
    let is_reattached = before.is_some_and(|before| before.returns() < now.returns());
    if now.is_in_pod() && (was_lost || is_reattached) {
        changes.push((BACK, "is in the pod again".to_owned()));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Reattached;

    fn one(state: &str, times: u32, why_not: Option<&str>) -> [Attachment; 1] {
        [Attachment {
            state: state.to_owned(),
            container: "c".to_owned(),
            ifname: "net4".to_owned(),
            rail: Some(3),
            pod: Some("ai/trainer-0".to_owned()),
            reattached: Some(Reattached {
                times,
                why_not: why_not.map(str::to_owned),
            }),
            ..Attachment::default()
        }]
    }

    fn reasons(before: &Seen, now: &[Attachment]) -> Vec<(&'static str, bool)> {
        let told = notices(before, now);
        told.iter()
            .map(|notice| (notice.reason, notice.pod.is_some()))
            .collect()
    }

    #[test]
    fn a_rail_that_is_lost_and_back_is_told_once_each() {
        let none = Seen::new();
        assert!(reasons(&none, &one("live", 0, None)).is_empty());
        let lost = one("lost", 0, None);
        assert_eq!(reasons(&none, &lost), [(LOST, false), (LOST, true)]);
        assert!(has_new_loss(&none, &lost));
        let seen = seen(&lost);
        assert!(!has_new_loss(&seen, &lost));
        assert!(reasons(&seen, &lost).is_empty());
        assert!(reasons(&seen, &one("busy", 0, None)).is_empty());
        let back = one("live", 1, None);
        assert_eq!(reasons(&seen, &back), [(BACK, false), (BACK, true)]);
        let note = &notices(&none, &lost)[0].note;
        assert!(
            note.starts_with("net4 of rail 3 of pod ai/trainer-0 was lost"),
            "{note}"
        );
    }

    #[test]
    fn the_reason_of_a_rail_that_stays_lost_is_told_once() {
        let seen_lost = seen(&one("lost", 0, None));
        let refused = one("lost", 0, Some("its lease is gone"));
        let told = notices(&seen_lost, &refused);
        assert_eq!(told.len(), 2);
        assert!(told[0].note.ends_with("attached again: its lease is gone"));
        assert!(reasons(&seen(&refused), &refused).is_empty());
    }

    #[test]
    fn a_rail_that_came_back_between_two_looks_is_told() {
        let before = seen(&one("live", 1, None));
        let now = one("live", 2, None);
        assert_eq!(reasons(&before, &now), [(BACK, false), (BACK, true)]);
        assert!(reasons(&Seen::new(), &now).is_empty());
    }
}
