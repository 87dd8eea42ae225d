//! The plan of this node: its source, its hold by a rollout, its way to the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde_json::Value;

use super::args::PlanFrom;
use super::state::Agent;
use crate::host::{ProgramOutput, RAILCTL};
use crate::ready::{self, Plan};
use crate::report::{Obstacle, Refused, Show};
use crate::revision;
use crate::rollout;
use crate::runtime::jittered;
use crate::text::{error_text, log};
use crate::watch::{self, Seen};

/// Time until an unchanged plan is written again, in case of edits in the store.
const RESYNC_INTERVAL: Duration = Duration::from_secs(600);
/// Passes without a plan until the condition says so: a restart of the agent does not change it.
const LOOKS_UNTIL_NOT_READ: u32 = 3;
/// Lines of a refusal in a condition.
const CONDITION_MAX_LINES: usize = 4;

/// A plan for railctl.
struct Source {
    text: Vec<u8>,
    /// Arguments for a list of all prefixes and their nodes, which refuse no more than `arguments`.
    csv: &'static [&'static str],
    arguments: &'static [&'static str],
    /// The option that writes nothing.
    dry: &'static str,
}

impl Agent {
    /// Writes the plan to the store, unless it is there already.
    pub(super) async fn apply_plan(&mut self) {
        if let Some(plan) = self.next_plan().await {
            self.report_plan(&plan);
            self.plan = plan;
        }
    }

    /// Writes the plan of the present input. `None` if that is not due, or if there is no input.
    async fn next_plan(&mut self) -> Option<Plan> {
        match self.plan_source() {
            None if self.args.plan_from == PlanFrom::None => {
                let text = "rail-agent does not write the store (--plan-from=none)";
                Some(Plan::Current(text.to_owned()))
            }
            None => {
                if ready::is_unknown(&self.plan) {
                    self.looks_without_plan = self.looks_without_plan.saturating_add(1);
                    self.plan = self.unread_plan();
                }
                None
            }
            Some(Err(why)) => {
                // The plan from before is judged anew when it is back.
                self.last_input = None;
                Some(Plan::Refused(format!("{why}; the store stays as it is")))
            }
            Some(Ok(source)) => {
                let is_not_due = match &self.last_input {
                    Some((text, due)) => *text == source.text && Instant::now() < *due,
                    None => false,
                };
                if is_not_due {
                    return None;
                }
                let plan = self.write_plan(&source).await;
                if let Plan::Current(_) = plan {
                    self.revision.plan = Some(revision::plan(&source.text));
                }
                let again = match plan {
                    Plan::Current(_) => jittered(RESYNC_INTERVAL),
                    _ => self.retry_interval(),
                };
                self.last_input = Some((source.text, Instant::now() + again));
                Some(plan)
            }
        }
    }

    /// Reports the plan's state in the log and by Events, and keeps whether it names this node.
    fn report_plan(&mut self, plan: &Plan) {
        let is_new = *plan != self.plan;
        match plan {
            Plan::HeldBack(text) => {
                if is_new {
                    self.report_on_node("PlanHeldBack", text);
                }
                self.log_change("plan", Some(text.clone()));
            }
            Plan::Waits(text) => self.log_change("plan", Some(text.clone())),
            Plan::NotNamed(text) | Plan::Refused(text) => {
                if is_new {
                    self.report_on_node("PlanRefused", text);
                }
                self.log_change("plan", Some(text.clone()));
            }
            _ => self.log_change("plan", None),
        }
        match plan {
            Plan::NotNamed(_) => self.is_named = Some(false),
            Plan::Current(_) | Plan::HeldBack(_) | Plan::Waits(_) => self.is_named = Some(true),
            _ => (),
        }
    }

    /// The plan; `None` while it is not known.
    fn plan_source(&mut self) -> Option<Result<Source, String>> {
        match self.args.plan_from {
            PlanFrom::None => None,
            PlanFrom::ConfigMap => {
                let text = self.config.as_ref()?.get("fabric.yaml");
                Some(match text {
                    Some(text) => Ok(Source {
                        text: text.clone().into_bytes(),
                        csv: &["plan", "-", "--from", "fabric", "--to", "csv"],
                        arguments: &["plan", "-", "--from", "fabric", "--to", "store"],
                        dry: "--diff",
                    }),
                    None => Err(format!(
                        "there is no ConfigMap {} for this cluster that has a key fabric.yaml",
                        self.args.config_map
                    )),
                })
            }
            PlanFrom::Cidrpools => match &*self.pools.as_mut()?.borrow_and_update() {
                Seen::Nothing | Seen::Unread(_) => None,
                Seen::TooLarge => Some(Err(format!(
                    "the CIDRPools have more than {} MiB of text, so this agent keeps none of them: remove those that are \
                     not of the plan, or limit who writes them; it reads them again within 11 minutes, or when it starts",
                    watch::MAX_POOL_BYTES >> 20
                ))),
                Seen::NoSuchKind => Some(Err(
                    "this cluster has no CIDRPools: apply nv-ipam's CRD, or run the agent with --plan-from config-map"
                        .to_owned(),
                )),
                Seen::All(pools) if pools.is_empty() => Some(Err(match &self.args.cidrpools_namespace {
                    Some(name) => {
                        format!("there is no CIDRPool in the namespace {name}, which --cidrpools-namespace names")
                    }
                    None => "there is no CIDRPool in this cluster".to_owned(),
                })),
                Seen::All(pools) => Some(Ok(Source {
                    text: list(pools.values()),
                    csv: &[
                        "plan",
                        "-",
                        "--from",
                        "cidrpool",
                        "--allow",
                        "missing-rail,cluster-networks",
                        "--to",
                        "csv",
                    ],
                    arguments: &["import", "-"],
                    dry: "--dry-run",
                })),
            },
        }
    }

    /// Why the plan has not been read since the agent started.
    fn unread_plan(&self) -> Plan {
        let why = match self.args.plan_from {
            PlanFrom::Cidrpools => self
                .pools
                .as_ref()
                .and_then(|pools| pools.borrow().unread()),
            _ => self.config_map.borrow().unread(),
        };
        let plan = |why| {
            Plan::Unread(format!(
                "the cluster's plan has not been read since rail-agent started, and the store stays as it is: {why}"
            ))
        };
        // An answer that tells to ask later is no error for a while.
        let is_silent = self.looks_without_plan >= LOOKS_UNTIL_NOT_READ;
        let why =
            why.or_else(|| is_silent.then(|| "the API server has not sent it yet".to_owned()));
        why.map_or(Plan::Unknown, plan)
    }

    async fn write_plan(&mut self, source: &Source) -> Plan {
        if let Some(plan) = self.hold_back(source).await {
            return plan;
        }
        let output = match self.run_plan(source, None).await {
            Ok(output) => output,
            Err(error) => return Plan::Refused(error_text(&error)),
        };
        if !output.is_success {
            // A plan that could not be written may name this node or not.
            let judged = self
                .run_plan(source, Some(source.dry))
                .await
                .ok()
                .filter(|dry| dry.is_success);
            let is_named = judged.map(|dry| named_pools(&counts(&report(&dry))) > 0);
            return refusal(&self.args.node, &Refused::of(&output), is_named);
        }
        let mut written = report(&output);
        let counts = counts(&written);
        if counts.keys().any(|change| change != "same") {
            let shown: Vec<_> = counts
                .iter()
                .map(|(change, count)| format!("{count} {change}"))
                .collect();
            log(
                "info",
                &format!("wrote the plan to the store: {}", shown.join(", ")),
            );
            self.note_change();
            self.doctor_due = Instant::now();
        }
        let pools = named_pools(&counts);
        let warnings: Vec<_> = written["warnings"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let warnings = warnings.join("; ");
        if pools == 0 {
            let store = match counts.is_empty() {
                true => "its store stays as it is",
                false => {
                    "its prefixes were removed from its store, because another node replaces it"
                }
            };
            return not_named(&self.args.node, store, &warnings);
        }
        // The warnings of the next look are equal.
        if !warnings.is_empty() && self.plan_warnings != warnings {
            log("warn", &format!("railctl warns of the plan: {warnings}"));
        }
        self.plan_warnings.clone_from(&warnings);
        let place = written["places"][self.args.node.as_str()].take();
        self.place = Some(serde_json::from_value(place).unwrap_or_default());
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        self.shared.with(|metrics| metrics.plan_written = Some(now));
        let more = if warnings.is_empty() {
            warnings
        } else {
            format!("; railctl warns: {warnings}")
        };
        Plan::Current(format!(
            "the store has this node's prefixes in {pools} pools, as planned{more}"
        ))
    }

    /// The rollout's hold on a plan that changes this node's prefixes. A node without prefixes, or
    /// without a place in the plan, is not held back.
    async fn hold_back(&mut self, source: &Source) -> Option<Plan> {
        let why = self.rollout_hold.clone()?;
        let show = match self.railctl_json::<Show>(&["leases"]).await {
            Ok(show) if show.pools.iter().any(|pool| pool.prefix.is_some()) => show,
            Ok(_) => return None,
            Err(error) => return Some(Plan::Refused(error_text(&error))),
        };
        let dry = self
            .run_plan(source, Some(source.dry))
            .await
            .ok()
            .filter(|dry| dry.is_success)?;
        let counts = counts(&report(&dry));
        if named_pools(&counts) == 0 || counts.keys().all(|change| change == "same") {
            return None;
        }
        let program = self.args.plugins_dir.join(RAILCTL);
        let taken = match self.host.run(&program, source.csv, &source.text).await {
            Ok(output) if output.is_success => {
                rollout::taken(&output.stdout, &self.args.node, &show)
            }
            Ok(output) => Some(format!(
                "the owner of its prefixes is unknown: {}",
                output.stderr.trim()
            )),
            Err(error) => Some(error_text(&error)),
        };
        Some(match taken {
            Some(taken) => Plan::HeldBack(format!("in the new plan {taken}, and {why}")),
            None => Plan::Waits(format!(
                "the plan has other prefixes for this node, and {why}"
            )),
        })
    }

    /// Runs railctl with a plan; with `dry` it writes nothing.
    async fn run_plan(&self, source: &Source, dry: Option<&str>) -> Result<ProgramOutput> {
        let arguments: Vec<&str> = source.arguments.iter().copied().chain(dry).collect();
        self.run_railctl(&arguments, &source.text).await
    }
}

/// The CIDRPools as a list for railctl.
fn list<'a>(pools: impl Iterator<Item = &'a Arc<str>>) -> Vec<u8> {
    let items: Vec<&str> = pools.map(|text| &**text).collect();
    format!(
        r#"{{"apiVersion": "v1", "kind": "List", "items": [{}]}}"#,
        items.join(",")
    )
    .into_bytes()
}

fn report(output: &ProgramOutput) -> Value {
    serde_json::from_str(&output.stdout).unwrap_or_default()
}

/// The number of this node's pools by the change that the plan makes to them.
fn counts(report: &Value) -> BTreeMap<String, u64> {
    serde_json::from_value(report["counts"].clone()).unwrap_or_default()
}

/// The number of pools with a prefix for this node in the plan.
fn named_pools(counts: &BTreeMap<String, u64>) -> u64 {
    counts
        .iter()
        .filter(|(change, _)| *change != "removed")
        .map(|(_, count)| count)
        .sum()
}

/// The state of a plan without this node. Its store stays, so that a mistake in the plan ends no
/// pod, unless the plan names a replacement. But another node may have its prefixes by now.
fn not_named(node: &str, store: &str, message: &str) -> Plan {
    let details = if message.is_empty() {
        String::new()
    } else {
        format!("; railctl says: {message}")
    };
    Plan::NotNamed(format!(
        "the plan of the cluster does not name this node {node}, and {store}: name it in the plan, or uninstall rail-cni \
         from it, because the plan may give its prefixes to other nodes{details}"
    ))
}

/// Maps railctl's refusal to a plan state. `is_named` is `None` if the plan could not be compared.
fn refusal(node: &str, refused: &Refused, is_named: Option<bool>) -> Plan {
    let texts = |obstacles: &[Obstacle]| {
        obstacles
            .iter()
            .map(|one| one.text.clone())
            .collect::<Vec<_>>()
    };
    let holders = texts(&refused.leases).join("; ");
    let lines = refused.message.lines().map(|line| line.trim().to_owned());
    let text = lines
        .chain(texts(&refused.taken))
        .take(CONDITION_MAX_LINES)
        .collect::<Vec<_>>()
        .join("; ");
    match (is_named, refused.leases.is_empty()) {
        (Some(true), false) => Plan::HeldBack(format!(
            "the new plan waits until these pods have ended: {holders}"
        )),
        (Some(false), false) => not_named(
            node,
            "its prefixes stay in its store until the pods that have them end",
            &holders,
        ),
        (Some(false), true) => not_named(node, "its store stays as it is", &text),
        _ => Plan::Refused(format!(
            "the plan is refused, and the store stays as it is: {text}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_plan_that_hurts_pods_is_held_back_and_names_them() {
        let said = |stdout: Value, stderr: &str| {
            Refused::of(&ProgramOutput {
                is_success: false,
                stdout: stdout.to_string(),
                stderr: stderr.to_owned(),
            })
        };
        let refusal = |refused: &Refused, is_named| refusal("n", refused, is_named);
        let held = said(
            json!({"refused": {"reason": "held", "message": "no", "leases": [{"pod": "a/b", "text": "a/b has it"}]}}),
            "",
        );
        let Plan::HeldBack(text) = refusal(&held, Some(true)) else {
            panic!()
        };
        assert!(text.ends_with(": a/b has it"), "{text}");
        let wrong = said(
            json!({"refused": {"reason": "invalid", "message": "2 faults:\n  x\n  y"}}),
            "",
        );
        let Plan::Refused(text) = refusal(&wrong, None) else {
            panic!()
        };
        assert!(text.ends_with(": 2 faults:; x; y"), "{text}");
        let taken = json!({"refused": {"reason": "taken", "message": "no", "taken": [{"text": "b has it"}]}});
        let Plan::Refused(text) = refusal(&said(taken, ""), Some(true)) else {
            panic!()
        };
        assert!(text.ends_with(": no; b has it"), "{text}");
        // Another process has the store: no pod does.
        let locked = said(
            json!({"refused": {"reason": "held", "message": "locked"}}),
            "",
        );
        assert!(matches!(refusal(&locked, Some(true)), Plan::Refused(_)));
        let Plan::Refused(text) = refusal(&said(Value::Null, "killed"), None) else {
            panic!()
        };
        assert!(text.ends_with(": killed"), "{text}");
        // A plan that does not name the node does not wait for its pods, and neither does one that
        // could not be compared.
        for (refused, told) in [(&held, "a/b has it"), (&wrong, "x; y")] {
            let Plan::NotNamed(text) = refusal(refused, Some(false)) else {
                panic!()
            };
            assert!(text.contains("node n") && text.ends_with(told), "{text}");
            assert!(matches!(refusal(refused, None), Plan::Refused(_)));
        }
        assert!(matches!(refusal(&wrong, Some(true)), Plan::Refused(_)));
    }
}
