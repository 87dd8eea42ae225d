//! Whether the rails of this node can be used, and what follows from it: a condition, a label, and the taint that keeps
//! pods away.

use std::time::Duration;

use crate::report::{Doctor, Show, Status};
use crate::text::clean;

/// The type of the condition that says whether pods with rails can start.
pub const READY: &str = "RailsReady";
/// The type of the condition that says whether node.json and the store are what the cluster's objects say.
pub const CURRENT: &str = "RailsPlanCurrent";
// Reasons of it, by which the next agent knows what this one knew.
const WRITTEN: &str = "Written";
const HELD_BACK: &str = "HeldBack";
const REFUSED: &str = "Refused";
const NOT_NAMED: &str = "NotNamed";
/// A rail is away for so long before new pods are kept away: a link that flaps moves no pod.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A condition of the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub kind: &'static str,
    /// True or False.
    pub is_true: bool,
    /// One word in CamelCase.
    pub reason: String,
    /// What was found, and what to do.
    pub message: String,
}

/// What is known of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// The agent has not yet heard of the API server.
    Unknown,
    /// The API server has not given it so far, and says why.
    Unread(String),
    /// It is not the agent's business, or it is in the store.
    Current(String),
    /// It names this node, and would take addresses from running pods, so the store stays as it is.
    HeldBack(String),
    /// It does not name this node: what the store has may be another node's by now.
    NotNamed(String),
    /// It is wrong, so the store or node.json stays as it is.
    Refused(String),
}

/// The condition [`READY`].
pub fn rails_ready(doctor: &Result<Doctor, String>) -> Condition {
    let (is_true, reason, message) = match doctor {
        Err(why) => (false, "DoctorDidNotRun".to_owned(), why.clone()),
        Ok(doctor) => {
            let fails: Vec<_> = doctor.checks.iter().filter(|check| check.verdict == "fail").collect();
            let warnings = doctor.checks.iter().filter(|check| check.verdict == "warn").count();
            match fails.first() {
                _ if doctor.ready => {
                    let message =
                        format!("pods with rails can start; `railctl doctor` has {warnings} warnings");
                    (true, "DoctorPassed".to_owned(), message)
                }
                Some(first) => {
                    let told = fails.iter().map(|check| match &check.remedy {
                        Some(remedy) => format!("{}: {} -> {remedy}", check.check, check.text),
                        None => format!("{}: {}", check.check, check.text),
                    });
                    (false, camel(&first.check), told.collect::<Vec<_>>().join("; "))
                }
                None => (
                    false,
                    "DoctorFailed".to_owned(),
                    "`railctl doctor` named no check that failed".to_owned(),
                ),
            }
        }
    };
    Condition { kind: READY, is_true, reason, message: clean(&message) }
}

/// The condition [`READY`] of a node without node.json, whatever the doctor says: the plugins would work without the policy
/// that its class may have.
pub fn without_node_json(what_to_do: &str) -> Condition {
    let message = clean(&format!("there is no /etc/rail-cni/node.json on this node: {what_to_do}"));
    Condition { kind: READY, is_true: false, reason: "NoNodeJson".to_owned(), message }
}

/// The condition [`READY`] of a node on which a plugin cannot be run.
pub fn without_plugins(why: &str) -> Condition {
    Condition { kind: READY, is_true: false, reason: "PluginDidNotRun".to_owned(), message: clean(why) }
}

/// The condition [`READY`] of a node whose store the plan has closed to new pods: rail-ipam refuses them.
pub fn closed_by_plan(why: &str) -> Condition {
    Condition { kind: READY, is_true: false, reason: "ClosedByPlan".to_owned(), message: clean(why) }
}

/// The condition [`CURRENT`]; none before anything is known. Its reason also says for the next agent what [`was_named`] reads.
pub fn plan_current(plan: &Plan, is_named: Option<bool>) -> Option<Condition> {
    let (is_true, reason, message) = match plan {
        Plan::Unknown => return None,
        Plan::Current(message) => (true, WRITTEN, message),
        Plan::HeldBack(message) => (false, HELD_BACK, message),
        Plan::Unread(message) => (false, "NotRead", message),
        Plan::NotNamed(message) | Plan::Refused(message) => match is_named {
            Some(true) => (false, REFUSED, message),
            Some(false) => (false, NOT_NAMED, message),
            None => (false, "NotJudged", message),
        },
    };
    Some(Condition { kind: CURRENT, is_true, reason: reason.to_owned(), message: clean(message) })
}

/// Whether the last plan that could be judged named the node, by the reason of its condition [`CURRENT`]; `None` if nobody
/// knows, as on a node that was registered anew.
pub fn was_named(reason: &str) -> Option<bool> {
    match reason {
        WRITTEN | HELD_BACK | REFUSED => Some(true),
        NOT_NAMED => Some(false),
        _ => None,
    }
}

/// `pf-link` becomes `PfLink`: the reason of a condition is one word.
fn camel(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut camel = String::new();
    for word in words {
        let (first, rest) = word.split_at(1);
        camel.push_str(&first.to_ascii_uppercase());
        camel.push_str(rest);
    }
    if camel.starts_with(|c: char| c.is_ascii_uppercase()) { camel } else { format!("Check{camel}") }
}

/// Whether pods may come to a node whose rails are there. Not before the plan is known, and only if the last one that could
/// be judged names this node: else another one may have its prefixes. A node without prefixes takes none from others. Without
/// an answer of railctl, nobody knows whether it has any.
pub fn may_open(plan: &Plan, is_named: Option<bool>, show: Option<&Show>) -> bool {
    !is_unknown(plan) && (is_named == Some(true) || !has_prefixes(show))
}

/// Why the plan closes the store to new pods: the prefixes there may be another node's by now, or the plan has others for this
/// node. `None` if it does not say so: what was closed stays so until a plan that names the node is written.
pub fn closes<'a>(plan: &'a Plan, is_named: Option<bool>, show: Option<&Show>) -> Option<&'a str> {
    match plan {
        Plan::HeldBack(why) => Some(why),
        Plan::NotNamed(why) | Plan::Refused(why) if is_named == Some(false) && has_prefixes(show) => {
            Some(why)
        }
        _ => None,
    }
}

fn has_prefixes(show: Option<&Show>) -> bool {
    show.is_none_or(|show| show.pools.iter().any(|pool| pool.prefix.is_some()))
}

/// Whether the plan was not read since the agent began.
pub fn is_unknown(plan: &Plan) -> bool {
    matches!(plan, Plan::Unknown | Plan::Unread(_))
}

/// What to do with the taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taint {
    /// It stays as it is.
    Keep,
    /// It is taken away: pods may come.
    Remove,
    /// It is put back: no pod may come.
    Add,
}

/// Whether the taint goes or comes. It comes with a plan that [closes](closes) the node; running pods do not mind. It goes as
/// soon as the rails are there and [pods may come](may_open). It comes back when they were away for [`PATIENCE`] and no pod
/// has a rail, as after a reboot; while pods run, the condition alone says it. A node that never had it, such as one without
/// rails, is not closed for that.
pub fn taint(
    has_taint: bool,
    had_taint: bool,
    is_ready: bool,
    may_open: bool,
    is_closed: bool,
    away_for: Duration,
    known: Option<(&Status, &Show)>,
) -> Taint {
    match (has_taint, is_ready) {
        (false, _) if is_closed => Taint::Add,
        (true, true) if may_open => Taint::Remove,
        (false, false) if had_taint && away_for >= PATIENCE => {
            // Without an answer of the plugins nobody knows whether pods have rails.
            if known.is_some_and(|(status, show)| is_idle(status, show)) { Taint::Add } else { Taint::Keep }
        }
        _ => Taint::Keep,
    }
}

/// Whether it is certain that no pod has a rail: neither one on record, nor one whose record is lost, nor one of a resource
/// claim or behind another plugin, which have leases alone.
fn is_idle(status: &Status, show: &Show) -> bool {
    let is_on_record = status.attachments.iter().any(|one| one.is_alive());
    let is_unknown = status.emptied || !status.lost.is_empty() || !status.unreadable.is_empty();
    let leases = || show.pools.iter().flat_map(|pool| &pool.leases);
    !is_on_record && !is_unknown && leases().all(|lease| lease.state == "dead")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Attachment, Check, Lease, Pool};

    fn doctor(verdicts: &[(&str, &str)]) -> Doctor {
        let checks = verdicts.iter().map(|(check, verdict)| Check {
            check: (*check).to_owned(),
            verdict: (*verdict).to_owned(),
            text: format!("the {check}"),
            remedy: (*verdict == "fail").then(|| "mend it".to_owned()),
            ..Check::default()
        });
        Doctor { ready: !verdicts.iter().any(|(_, verdict)| *verdict == "fail"), checks: checks.collect() }
    }

    #[test]
    fn the_condition_names_the_first_check_that_failed_and_what_to_do_about_all() {
        let ready = rails_ready(&Ok(doctor(&[("pf", "ok"), ("vfs", "warn")])));
        assert!(
            ready.is_true && ready.reason == "DoctorPassed" && ready.message.contains("1 warnings"),
            "{ready:?}"
        );
        let lost = rails_ready(&Ok(doctor(&[("pf-link", "fail"), ("vfs", "ok"), ("pools", "fail")])));
        assert_eq!((lost.is_true, lost.reason.as_str()), (false, "PfLink"));
        assert_eq!(lost.message, "pf-link: the pf-link -> mend it; pools: the pools -> mend it");
        let none = rails_ready(&Err("no rail-cni in /opt/cni/bin".to_owned()));
        assert_eq!((none.is_true, none.reason.as_str()), (false, "DoctorDidNotRun"));
        assert_eq!(camel("net.d"), "NetD");
        assert_eq!(camel("0-x"), "Check0X");
    }

    #[test]
    fn the_taint_goes_when_the_rails_are_there_and_never_comes_back_under_running_pods() {
        let with = |state: &str| Status {
            attachments: vec![Attachment { state: state.to_owned(), ..Attachment::default() }],
            ..Status::default()
        };
        let (now, long) = (Duration::ZERO, PATIENCE);
        let idle = Status::default();
        let none = Show::default();
        let taint = |has, ready, away, status: Option<&Status>| {
            super::taint(has, true, ready, true, false, away, status.map(|status| (status, &none)))
        };
        assert_eq!(taint(true, true, now, None), Taint::Remove);
        assert_eq!(taint(true, false, long, Some(&idle)), Taint::Keep);
        assert_eq!(taint(false, true, now, Some(&idle)), Taint::Keep);
        assert_eq!(taint(false, false, long, Some(&idle)), Taint::Add);
        assert_eq!(
            super::taint(false, false, false, true, false, long, Some((&idle, &none))),
            Taint::Keep,
            "it never had one"
        );
        assert_eq!(taint(false, false, long, Some(&with("dead"))), Taint::Add);
        // A flap; running pods; nobody knows.
        assert_eq!(taint(false, false, now, Some(&idle)), Taint::Keep);
        for state in ["live", "busy", "unknown", "elsewhere", "on-host"] {
            assert_eq!(taint(false, false, long, Some(&with(state))), Taint::Keep, "{state}");
        }
        assert_eq!(taint(false, false, long, None), Taint::Keep);
        // Pods may have what is on no record.
        for unknown in [
            Status { lost: vec![serde_json::json!({})], ..Status::default() },
            Status { unreadable: vec!["x.json".to_owned()], ..Status::default() },
            Status { emptied: true, ..Status::default() },
        ] {
            assert_eq!(taint(false, false, long, Some(&unknown)), Taint::Keep, "{unknown:?}");
        }
        // Those of resource claims, and behind other plugins, have leases alone.
        for (state, expected) in [("live", Taint::Keep), ("unknown", Taint::Keep), ("dead", Taint::Add)] {
            let lease = Lease { state: state.to_owned(), ..Lease::default() };
            let show = Show { pools: vec![Pool { leases: vec![lease], ..Pool::default() }] };
            assert_eq!(
                super::taint(false, true, false, true, false, long, Some((&idle, &show))),
                expected,
                "{state}"
            );
        }
        // A plan that does not open the node brings no taint, and one that closes it does, under running pods too.
        for has in [true, false] {
            assert_eq!(super::taint(has, true, true, false, false, long, Some((&idle, &none))), Taint::Keep);
        }
        for had in [true, false] {
            let live = with("live");
            assert_eq!(super::taint(false, had, false, true, true, now, Some((&live, &none))), Taint::Add);
        }
        assert_eq!(super::taint(true, true, false, true, true, long, None), Taint::Keep);
    }

    #[test]
    fn a_plan_closes_a_node_that_it_does_not_name_or_has_other_prefixes_for() {
        let with = |prefix: Option<&str>| Show {
            pools: vec![Pool { prefix: prefix.map(str::to_owned), ..Pool::default() }],
        };
        let (old, none) = (with(Some("172.16.0.0/31")), with(None));
        let (held, away) = (Plan::HeldBack("h".to_owned()), Plan::NotNamed("n".to_owned()));
        let refused = Plan::Refused("r".to_owned());
        for show in [Some(&old), None] {
            assert_eq!(closes(&held, Some(true), show), Some("h"));
            assert_eq!(closes(&away, Some(false), show), Some("n"));
            assert_eq!(closes(&refused, Some(false), show), Some("r"));
            for is_named in [Some(true), None] {
                assert_eq!(closes(&refused, is_named, show), None, "nobody knows");
            }
        }
        assert_eq!(closes(&away, Some(false), Some(&none)), None, "it takes nothing from others");
        for quiet in [Plan::Unknown, Plan::Unread(String::new()), Plan::Current(String::new())] {
            assert_eq!(closes(&quiet, Some(false), Some(&old)), None, "{quiet:?}");
        }
    }

    #[test]
    fn a_node_is_opened_by_a_plan_that_names_it_or_if_it_has_no_prefixes() {
        let with = |prefix: Option<&str>| Show {
            pools: vec![Pool { prefix: prefix.map(str::to_owned), ..Pool::default() }],
        };
        let (old, none) = (with(Some("172.16.0.0/31")), with(None));
        for unknown in [Plan::Unknown, Plan::Unread("403".to_owned())] {
            for show in [Some(&old), Some(&none), None] {
                assert!(!may_open(&unknown, Some(true), show), "{unknown:?}");
            }
        }
        let (not_named, refused) = (Plan::NotNamed(String::new()), Plan::Refused(String::new()));
        for (plan, is_named) in [(&not_named, Some(false)), (&refused, Some(false)), (&refused, None)] {
            assert!(!may_open(plan, is_named, Some(&old)) && !may_open(plan, is_named, None), "{plan:?}");
            assert!(may_open(plan, is_named, Some(&none)), "{plan:?}");
            // The next agent knows it, too.
            assert_eq!(was_named(&plan_current(plan, is_named).unwrap().reason), is_named, "{plan:?}");
        }
        for plan in [Plan::Current(String::new()), Plan::HeldBack(String::new()), refused] {
            assert!(may_open(&plan, Some(true), Some(&old)), "{plan:?}");
            assert_eq!(was_named(&plan_current(&plan, Some(true)).unwrap().reason), Some(true), "{plan:?}");
        }
    }
}
