//! The carriers of devices in pods.

use std::collections::HashMap;

use crate::report::Attachment;

/// The carrier of a device in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    Up,
    Down,
    /// None since it was first seen: a new link takes a while.
    NotYet,
}

/// The carriers of devices in pods, by container and interface.
pub(super) type Carriers = HashMap<(String, String), Carrier>;

/// The carrier of each device in a living pod, and the changes to report.
pub(super) fn carriers<'a>(
    before: &Carriers,
    attachments: &'a [Attachment],
) -> (Carriers, Vec<(&'a Attachment, bool)>) {
    let (mut links, mut changes) = (Carriers::new(), Vec::new());
    for one in attachments.iter().filter(|one| one.is_in_pod()) {
        let Some(link) = &one.link else { continue };
        let key = (one.container.clone(), one.ifname.clone());
        let now = match (before.get(&key), link == "up") {
            (_, true) => Carrier::Up,
            (None, false) => Carrier::NotYet,
            (Some(_), false) => Carrier::Down,
        };
        match (before.get(&key), now) {
            (Some(Carrier::Down), Carrier::Up) => changes.push((one, true)),
            (Some(Carrier::Up | Carrier::NotYet), Carrier::Down) => changes.push((one, false)),
            _ => (),
        }
        links.insert(key, now);
    }
    (links, changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_carrier_that_changes_under_a_pod_or_never_comes_is_told_once() {
        let one = |state: &str, link: &str| Attachment {
            state: state.to_owned(),
            link: Some(link.to_owned()),
            container: "c".to_owned(),
            ifname: "net1".to_owned(),
            ..Attachment::default()
        };
        let step = |before: &Carriers, attachment: Attachment| {
            let list = [attachment];
            let (links, changes) = carriers(before, &list);
            (
                links,
                changes.iter().map(|(_, is_up)| *is_up).collect::<Vec<_>>(),
            )
        };
        let (links, changes) = step(&Carriers::new(), one("live", "no-carrier"));
        assert!(changes.is_empty());
        let (soon, changes) = step(&links, one("live", "up"));
        assert!(changes.is_empty());
        let (_, changes) = step(&soon, one("live", "no-carrier"));
        assert_eq!(changes, [false]);
        // It starts on a rail without a cable.
        let (links, changes) = step(&links, one("live", "no-carrier"));
        assert_eq!(changes, [false]);
        let (links, changes) = step(&links, one("live", "no-carrier"));
        assert!(changes.is_empty());
        let (links, changes) = step(&links, one("live", "up"));
        assert_eq!(changes, [true]);
        let (links, changes) = step(&links, one("live", "down"));
        assert_eq!(changes, [false]);
        let (links, changes) = step(&links, one("live", "down"));
        assert!(changes.is_empty());
        let (links, changes) = step(&links, one("dead", "up"));
        assert!(changes.is_empty() && links.is_empty());
    }
}
