//! Whether the rails of this node can be used, and what follows from it: a condition, a label, and
//! the taint that keeps pods away.

use std::time::{Duration, Instant};

use crate::report::{Doctor, Show, Status};
use crate::text::clean;

/// The type of the condition that says whether pods with rails can start.
pub const READY: &str = "RailsReady";
/// The type of the condition that says whether node.json and the store are what the cluster's
/// objects say.
pub const CURRENT: &str = "RailsPlanCurrent";
// Reasons of it, by which the next agent knows what this one knew.
const WRITTEN: &str = "Written";
const HELD_BACK: &str = "HeldBack";
const WAITS: &str = "Waits";
const REFUSED: &str = "Refused";
const NOT_NAMED: &str = "NotNamed";
/// The reason of [`READY`], and of the Event, while the carrier of a rail comes and goes.
pub const FLAPPING: &str = "RailFlapping";
/// The reason of [`READY`] by the doctor's check of the same name.
const LINK: &str = "PfLink";

/// A condition of the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub kind: &'static str,
    /// True or False.
    pub is_true: bool,
    /// One word in CamelCase.
    pub reason: String,
    /// The finding and its remedy.
    pub message: String,
}

/// The state of the plan.
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
    /// It is another than the store's, and the rollout has not come to this node.
    Waits(String),
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
            let fails: Vec<_> = doctor
                .checks
                .iter()
                .filter(|check| check.verdict == "fail")
                .collect();
            let warnings = doctor
                .checks
                .iter()
                .filter(|check| check.verdict == "warn")
                .count();
            match fails.first() {
                _ if doctor.ready => {
                    let message = format!(
                        "pods with rails can start; `railctl doctor` has {warnings} warnings"
                    );
                    (true, "DoctorPassed".to_owned(), message)
                }
                Some(first) => {
                    let told = fails.iter().map(|check| match &check.remedy {
                        Some(remedy) => format!("{}: {} -> {remedy}", check.check, check.text),
                        None => format!("{}: {}", check.check, check.text),
                    });
                    (
                        false,
                        camel(&first.check),
                        told.collect::<Vec<_>>().join("; "),
                    )
                }
                None => (
                    false,
                    "DoctorFailed".to_owned(),
                    "`railctl doctor` named no check that failed".to_owned(),
                ),
            }
        }
    };
    Condition {
        kind: READY,
        is_true,
        reason,
        message: clean(&message),
    }
}

impl Condition {
    /// Says besides what is no reason to keep pods away.
    #[must_use]
    pub fn with(mut self, also: Option<String>) -> Condition {
        if let Some(also) = also {
            self.message = clean(&format!("{}; {also}", self.message));
        }
        self
    }
}

/// The condition [`READY`] of a node without node.json, whatever the doctor says: the plugins would
/// work without the policy that its class may have.
pub fn without_node_json(what_to_do: &str) -> Condition {
    let message = clean(&format!(
        "there is no /etc/rail-cni/node.json on this node: {what_to_do}"
    ));
    Condition {
        kind: READY,
        is_true: false,
        reason: "NoNodeJson".to_owned(),
        message,
    }
}

/// The condition [`READY`] of a node on which a plugin cannot be run.
pub fn without_plugins(why: &str) -> Condition {
    Condition {
        kind: READY,
        is_true: false,
        reason: "PluginDidNotRun".to_owned(),
        message: clean(why),
    }
}

/// The condition [`READY`] of a node whose store the plan has closed to new pods: rail-ipam refuses
/// them.
pub fn closed_by_plan(why: &str) -> Condition {
    Condition {
        kind: READY,
        is_true: false,
        reason: "ClosedByPlan".to_owned(),
        message: clean(why),
    }
}

/// The condition [`READY`] of a node that refuses pods although the doctor finds nothing wrong.
pub fn refusing(what: &str) -> Condition {
    Condition {
        kind: READY,
        is_true: false,
        reason: "PodsRefused".to_owned(),
        message: clean(what),
    }
}

impl Condition {
    /// The condition with the rails that flap as its reason. Their link may be there or away at
    /// this moment; other faults remain the reason.
    #[must_use]
    pub fn or_flapping(self, flapping: Option<String>) -> Condition {
        let is_about_links = self.is_true || self.reason == LINK;
        match flapping.filter(|_| is_about_links) {
            Some(message) => Condition {
                kind: READY,
                is_true: false,
                reason: FLAPPING.to_owned(),
                message: clean(&message),
            },
            None => self,
        }
    }
}

/// The condition [`CURRENT`]; none before anything is known. Its reason also says for the next
/// agent what [`was_named`] reads.
pub fn plan_current(plan: &Plan, is_named: Option<bool>) -> Option<Condition> {
    let (is_true, reason, message) = match plan {
        Plan::Unknown => return None,
        Plan::Current(message) => (true, WRITTEN, message),
        Plan::HeldBack(message) => (false, HELD_BACK, message),
        Plan::Waits(message) => (false, WAITS, message),
        Plan::Unread(message) => (false, "NotRead", message),
        Plan::NotNamed(message) | Plan::Refused(message) => match is_named {
            Some(true) => (false, REFUSED, message),
            Some(false) => (false, NOT_NAMED, message),
            None => (false, "NotJudged", message),
        },
    };
    Some(Condition {
        kind: CURRENT,
        is_true,
        reason: reason.to_owned(),
        message: clean(message),
    })
}

/// Whether the last plan that could be judged named the node, by the reason of its condition
/// [`CURRENT`]; `None` if nobody knows, as on a node that was registered anew.
pub fn was_named(reason: &str) -> Option<bool> {
    match reason {
        WRITTEN | HELD_BACK | WAITS | REFUSED => Some(true),
        NOT_NAMED => Some(false),
        _ => None,
    }
}

/// `pf-link` becomes `PfLink`: the reason of a condition is one word.
fn camel(name: &str) -> String {
    let words = name
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty());
    let mut camel = String::new();
    for word in words {
        let (first, rest) = word.split_at(1);
        camel.push_str(&first.to_ascii_uppercase());
        camel.push_str(rest);
    }
    if camel.starts_with(|c: char| c.is_ascii_uppercase()) {
        camel
    } else {
        format!("Check{camel}")
    }
}

/// Whether pods may come to a node whose rails are there. Not before the plan is known, and only if
/// the last one that could be judged names this node: else another one may have its prefixes. A
/// node without prefixes takes none from others. Without an answer of railctl, nobody knows whether
/// it has any.
pub fn may_open(plan: &Plan, is_named: Option<bool>, show: Option<&Show>) -> bool {
    !is_unknown(plan) && (is_named == Some(true) || !has_prefixes(show))
}

/// Why the plan closes the store to new pods: the prefixes there may be another node's by now, or
/// the plan has others for this node. `None` if it does not say so: what was closed stays so until
/// a plan that names the node is written.
pub fn closes<'a>(plan: &'a Plan, is_named: Option<bool>, show: Option<&Show>) -> Option<&'a str> {
    match plan {
        Plan::HeldBack(why) => Some(why),
        Plan::NotNamed(why) | Plan::Refused(why)
            if is_named == Some(false) && has_prefixes(show) =>
        {
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

/// The change to the taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taint {
    /// It stays as it is.
    Keep,
    /// It is taken away: pods may come.
    Remove,
    /// It is put back: no pod may come.
    Add,
}

/// Whether the rails are there or away, as far as new pods are concerned: away at once, and there
/// when they stay.
#[derive(Debug, Default)]
pub struct Steady {
    verdict: Option<bool>,
    /// The time of the verdict.
    judged: Option<Instant>,
    /// Since when each look says something else.
    since: Option<Instant>,
}

impl Steady {
    /// The verdict after a look at `now`; `None` before there is one. Rails that were there are
    /// away at the first look that misses them; they are back when all looks have seen them for as
    /// long as `patience`. At the beginning, rails need no time to be there, and `patience` to be
    /// away: links take a while to come up.
    pub fn look(&mut self, is_ready: bool, now: Instant, patience: Duration) -> Option<bool> {
        if self.verdict == Some(is_ready) {
            self.since = None;
            return self.verdict;
        }
        let since = *self.since.get_or_insert(now);
        let is_at_once = matches!((self.verdict, is_ready), (Some(true), false) | (None, true));
        if is_at_once || now.duration_since(since) >= patience {
            *self = Steady {
                verdict: Some(is_ready),
                judged: Some(now),
                since: None,
            };
        }
        self.verdict
    }

    /// The verdict of the last look.
    pub fn verdict(&self) -> Option<bool> {
        self.verdict
    }

    /// Whether the rails have been away for as long as `patience`.
    pub fn is_away_for(&self, patience: Duration, now: Instant) -> bool {
        let judged = self.judged.filter(|_| self.verdict == Some(false));
        judged.is_some_and(|judged| now.duration_since(judged) >= patience)
    }
}

/// The grounds of the taint.
#[derive(Clone, Copy, Debug)]
pub struct Grounds {
    /// Whether the plan [closes](closes) the node.
    pub is_closed: bool,
    /// Whether [the plan lets pods come](may_open).
    pub may_open: bool,
    /// Whether the rails are there at this moment.
    pub is_ready: bool,
    /// The answer of [`Steady`] to them.
    pub steady: Option<bool>,
    /// Whether the node has rails at all: it had the taint, or a PF of node.json was seen.
    pub has_rails: bool,
}

/// Whether the taint goes or comes. Running pods do not mind it. A node without rails is not closed
/// because it has none.
pub fn taint(has_taint: bool, of: Grounds) -> Taint {
    let is_away = of.steady == Some(false) && of.has_rails;
    let is_there = of.is_ready && of.steady == Some(true);
    match has_taint {
        false if of.is_closed || is_away => Taint::Add,
        true if !of.is_closed && is_there && of.may_open => Taint::Remove,
        _ => Taint::Keep,
    }
}

/// Whether a PF of node.json exists.
pub fn has_pf(status: &Status) -> bool {
    status.rails.iter().any(|rail| rail.pf.link != "missing")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Check, Pool};

    fn doctor(verdicts: &[(&str, &str)]) -> Doctor {
        let checks = verdicts.iter().map(|(check, verdict)| Check {
            check: (*check).to_owned(),
            verdict: (*verdict).to_owned(),
            text: format!("the {check}"),
            remedy: (*verdict == "fail").then(|| "mend it".to_owned()),
            ..Check::default()
        });
        Doctor {
            ready: !verdicts.iter().any(|(_, verdict)| *verdict == "fail"),
            checks: checks.collect(),
        }
    }

    #[test]
    fn the_condition_names_the_first_check_that_failed_and_what_to_do_about_all() {
        let ready = rails_ready(&Ok(doctor(&[("pf", "ok"), ("vfs", "warn")])));
        assert!(
            ready.is_true && ready.reason == "DoctorPassed" && ready.message.contains("1 warnings"),
            "{ready:?}"
        );
        let lost = rails_ready(&Ok(doctor(&[
            ("pf-link", "fail"),
            ("vfs", "ok"),
            ("pools", "fail"),
        ])));
        assert_eq!((lost.is_true, lost.reason.as_str()), (false, "PfLink"));
        assert_eq!(
            lost.message,
            "pf-link: the pf-link -> mend it; pools: the pools -> mend it"
        );
        let none = rails_ready(&Err("no rail-cni in /opt/cni/bin".to_owned()));
        assert_eq!(
            (none.is_true, none.reason.as_str()),
            (false, "DoctorDidNotRun")
        );
        assert_eq!(camel("net.d"), "NetD");
        assert_eq!(camel("0-x"), "Check0X");
    }

    const OPEN: Grounds = Grounds {
        is_closed: false,
        may_open: true,
        is_ready: true,
        steady: Some(true),
        has_rails: true,
    };

    #[test]
    fn the_taint_follows_the_plan_and_rails_that_stay_as_they_are() {
        let away = Grounds {
            is_ready: false,
            steady: Some(false),
            ..OPEN
        };
        for (has, of, expected) in [
            (true, OPEN, Taint::Remove),
            (false, OPEN, Taint::Keep),
            (false, away, Taint::Add),
            (true, away, Taint::Keep),
            // A flap, in both directions, and an agent that has just begun.
            (
                false,
                Grounds {
                    is_ready: false,
                    ..OPEN
                },
                Taint::Keep,
            ),
            (
                true,
                Grounds {
                    is_ready: false,
                    ..OPEN
                },
                Taint::Keep,
            ),
            (
                true,
                Grounds {
                    is_ready: true,
                    ..away
                },
                Taint::Keep,
            ),
            (
                false,
                Grounds {
                    is_ready: false,
                    steady: None,
                    ..OPEN
                },
                Taint::Keep,
            ),
            // A node that has no rails, and one whose plan is not known.
            (
                false,
                Grounds {
                    has_rails: false,
                    ..away
                },
                Taint::Keep,
            ),
            (
                true,
                Grounds {
                    may_open: false,
                    ..OPEN
                },
                Taint::Keep,
            ),
            (
                false,
                Grounds {
                    may_open: false,
                    ..OPEN
                },
                Taint::Keep,
            ),
            // A plan that closes the node.
            (
                false,
                Grounds {
                    is_closed: true,
                    ..OPEN
                },
                Taint::Add,
            ),
            (
                false,
                Grounds {
                    is_closed: true,
                    has_rails: false,
                    ..away
                },
                Taint::Add,
            ),
            (
                true,
                Grounds {
                    is_closed: true,
                    ..OPEN
                },
                Taint::Keep,
            ),
        ] {
            assert_eq!(taint(has, of), expected, "{has} {of:?}");
        }
        let with = |link: &str| Status {
            rails: vec![crate::report::Rail {
                pf: crate::report::Pf {
                    link: link.to_owned(),
                    ..Default::default()
                },
                ..Default::default()
            }],
            ..Status::default()
        };
        assert!(
            has_pf(&with("no-carrier")) && !has_pf(&with("missing")) && !has_pf(&Status::default())
        );
    }

    /// A look each ten seconds: `+` the link is there, `-` it is away; below, the verdict: `?`
    /// none, `1` there, `0` away.
    #[test]
    fn a_link_that_goes_is_away_at_once_and_back_when_it_stays() {
        for (looks, verdicts) in [
            ("+++", "111"),
            ("+-+++++++", "100000001"),
            ("+------++++++++", "100000000000011"),
            // It flaps: never there for a minute.
            ("+-----+-----+-----+", "1000000000000000000"),
            ("+-------+++++-+++++-+++++++", "100000000000000000000000001"),
            // An agent that begins: rails that come need no time, and those that are away are given
            // a minute.
            ("-----+", "?????1"),
            ("-------+", "??????00"),
            ("--+-----+", "??1000000"),
        ] {
            let begun = Instant::now();
            let mut steady = Steady::default();
            let told: String = (0u64..)
                .zip(looks.chars())
                .map(|(look, link)| {
                    let now = begun + Duration::from_secs(10 * look);
                    match steady.look(link == '+', now, Duration::from_secs(60)) {
                        None => '?',
                        Some(is_there) => {
                            if is_there {
                                '1'
                            } else {
                                '0'
                            }
                        }
                    }
                })
                .collect();
            assert_eq!(told, verdicts, "{looks}");
        }
        let (mut steady, now) = (Steady::default(), Instant::now());
        assert_eq!(
            steady.look(false, now, Duration::ZERO),
            Some(false),
            "without patience"
        );
        assert_eq!(steady.look(true, now, Duration::ZERO), Some(true));
        let minute = Duration::from_secs(60);
        assert!(!steady.is_away_for(Duration::ZERO, now), "it is there");
        steady.look(false, now, minute);
        assert!(!steady.is_away_for(minute, now + minute / 2));
        assert!(steady.is_away_for(minute, now + minute));
    }

    #[test]
    fn a_plan_closes_a_node_that_it_does_not_name_or_has_other_prefixes_for() {
        let with = |prefix: Option<&str>| Show {
            pools: vec![Pool {
                prefix: prefix.map(str::to_owned),
                ..Pool::default()
            }],
        };
        let (old, none) = (with(Some("172.16.0.0/31")), with(None));
        let (held, away) = (
            Plan::HeldBack("h".to_owned()),
            Plan::NotNamed("n".to_owned()),
        );
        let refused = Plan::Refused("r".to_owned());
        for show in [Some(&old), None] {
            assert_eq!(closes(&held, Some(true), show), Some("h"));
            assert_eq!(closes(&away, Some(false), show), Some("n"));
            assert_eq!(closes(&refused, Some(false), show), Some("r"));
            for is_named in [Some(true), None] {
                assert_eq!(closes(&refused, is_named, show), None, "nobody knows");
            }
        }
        assert_eq!(
            closes(&away, Some(false), Some(&none)),
            None,
            "it takes nothing from others"
        );
        for quiet in [
            Plan::Unknown,
            Plan::Unread(String::new()),
            Plan::Current(String::new()),
        ] {
            assert_eq!(closes(&quiet, Some(false), Some(&old)), None, "{quiet:?}");
        }
    }

    #[test]
    fn a_node_is_opened_by_a_plan_that_names_it_or_if_it_has_no_prefixes() {
        let with = |prefix: Option<&str>| Show {
            pools: vec![Pool {
                prefix: prefix.map(str::to_owned),
                ..Pool::default()
            }],
        };
        let (old, none) = (with(Some("172.16.0.0/31")), with(None));
        for unknown in [Plan::Unknown, Plan::Unread("403".to_owned())] {
            for show in [Some(&old), Some(&none), None] {
                assert!(!may_open(&unknown, Some(true), show), "{unknown:?}");
            }
        }
        let (not_named, refused) = (Plan::NotNamed(String::new()), Plan::Refused(String::new()));
        for (plan, is_named) in [
            (&not_named, Some(false)),
            (&refused, Some(false)),
            (&refused, None),
        ] {
            assert!(
                !may_open(plan, is_named, Some(&old)) && !may_open(plan, is_named, None),
                "{plan:?}"
            );
            assert!(may_open(plan, is_named, Some(&none)), "{plan:?}");
            // The next agent knows it, too.
            assert_eq!(
                was_named(&plan_current(plan, is_named).unwrap().reason),
                is_named,
                "{plan:?}"
            );
        }
        for plan in [
            Plan::Current(String::new()),
            Plan::HeldBack(String::new()),
            refused,
        ] {
            assert!(may_open(&plan, Some(true), Some(&old)), "{plan:?}");
            assert_eq!(
                was_named(&plan_current(&plan, Some(true)).unwrap().reason),
                Some(true),
                "{plan:?}"
            );
        }
    }
}
