//! `railctl doctor`: checks whether this node is ready for pods with rails. Each check reports what
//! it saw and what to do. A check that cannot be made is reported as skipped.

mod infiniband;
mod moves;
mod networks;
mod node;
mod order;
mod pools;
mod rails;
mod rdma;
mod roce;
mod routes;
mod runtimes;
mod wait;

use std::fmt;
use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::inventory::{Inventory, Rail};
use super::{count, root};
use crate::output::{self, Finding, Output};
use rail_cni::node::Node;
use rail_cni::watchdog;

pub use rails::{Offer, devices, offer};
pub use wait::{Needs, wait};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// All is well.
    Ok,
    /// The check could not be made; the text says why.
    Skip,
    /// Pods still start, or most of them do.
    Warn,
    /// A pod with this rail, or with any rail, does not start or does not work.
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A failure must be visible without colours.
        f.write_str(match self {
            Verdict::Ok => "ok",
            Verdict::Skip => "skip",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        })
    }
}

/// One line of the output.
#[derive(Debug)]
pub struct Check {
    name: &'static str,
    verdict: Verdict,
    rail: Option<u8>,
    /// The rail or PF, with which the text begins; empty for the node as a whole.
    subject: String,
    text: String,
    remedy: Option<String>,
}

impl Check {
    fn new(verdict: Verdict, name: &'static str, text: impl Into<String>) -> Check {
        Check {
            name,
            verdict,
            rail: None,
            subject: String::new(),
            text: text.into(),
            remedy: None,
        }
    }

    fn ok(name: &'static str, text: impl Into<String>) -> Check {
        Check::new(Verdict::Ok, name, text)
    }

    fn skip(name: &'static str, why: impl Into<String>) -> Check {
        Check::new(Verdict::Skip, name, why)
    }

    fn warn(name: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check {
            remedy: Some(remedy.into()),
            ..Check::new(Verdict::Warn, name, text)
        }
    }

    fn fail(name: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check {
            remedy: Some(remedy.into()),
            ..Check::new(Verdict::Fail, name, text)
        }
    }

    fn on(self, rail: &Rail) -> Check {
        Check {
            text: format!("{}: {}", rail.title(), self.text),
            subject: rail.title(),
            rail: rail.rail,
            ..self
        }
    }

    fn for_people(&self) -> Finding {
        let title = format!("{}: ", self.subject);
        let text = self.text.strip_prefix(&title).unwrap_or(&self.text);
        Finding {
            kind: format!("{:<4}", self.verdict.to_string()),
            place: self.name.to_owned(),
            subject: self.subject.clone(),
            text: text.to_owned(),
            remedy: self.remedy.clone(),
        }
    }

    fn json(&self) -> Value {
        let verdict = self.verdict.to_string().to_ascii_lowercase();
        json!({"check": self.name, "verdict": verdict, "rail": self.rail, "text": self.text, "remedy": self.remedy})
    }
}

/// The results so far, in the order of the output.
#[derive(Debug, Default)]
struct Findings(Vec<Check>);

impl Findings {
    fn add(&mut self, check: Check) {
        self.0.push(check);
    }

    /// Adds one line for all objects of a check, unless the check has a line already.
    fn ok_unless_reported(&mut self, name: &'static str, text: impl Into<String>) {
        if !self.0.iter().any(|check| check.name == name) {
            self.add(Check::ok(name, text));
        }
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.0
            .iter()
            .filter(|check| check.verdict == verdict)
            .count()
    }
}

/// Checks the node, with `mtu` where no network of a rail is known here; with `needs_rdma`, also
/// what only RDMA needs. The exit status is 1 when a check failed.
pub fn doctor(mtu: u32, needs_rdma: bool, output: Output) -> Result<ExitCode> {
    let mut found = Findings::default();
    let node = node::configuration(&mut found);
    watchdog::allow(node.call_timeout());
    node::programs(&mut found);
    with_root(&["log"], &mut found, |found| {
        watchdog::step(|| "the check log".to_owned());
        node::log(&node, found);
    });
    node::confined(&node, &mut found);
    with_root(&["run", "store"], &mut found, |found| {
        watchdog::step(|| "the checks run and store".to_owned());
        node::directories(&node, found);
    });
    node::host(&mut found);
    with_root(&["move"], &mut found, |found| {
        watchdog::step(|| "the check move".to_owned());
        moves::check(found);
    });
    let of_devices = ["pf", "vfs", "rdma", "pools", "leases", "records", "tapped"];
    with_root(&of_devices, &mut found, |found| {
        devices_and_pools(&node, mtu, needs_rdma, found);
    });
    watchdog::step(|| "the checks runtime and net.d".to_owned());
    runtimes::check(&mut found);

    let name = node.name().unwrap_or_default();
    output::print(&match output {
        Output::Json => output::pretty(&found.json(&name)),
        Output::Table => found.text(&name, has_colours()),
    })?;
    Ok(if found.count(Verdict::Fail) == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the checks `names`, of what only root can see; for another user, skips each.
fn with_root(names: &[&'static str], found: &mut Findings, checks: impl FnOnce(&mut Findings)) {
    if root::is_root() {
        return checks(found);
    }
    for name in names {
        found.add(Check::skip(name, root::NEEDS_ROOT));
    }
}

/// Checks the rails, their devices and attachments, and their pools.
fn devices_and_pools(node: &Node, mtu: u32, needs_rdma: bool, found: &mut Findings) {
    watchdog::step(|| "reading devices and records".to_owned());
    let inventory = match Inventory::take(node) {
        Ok(inventory) => inventory,
        Err(error) => {
            let remedy = "correct that; rails and pools were not checked";
            found.add(Check::fail("inventory", format!("{error:#}"), remedy));
            return;
        }
    };
    let networks = networks::known(Path::new(runtimes::CONFIGURATIONS), &inventory);
    rails::check(node, &inventory, &networks, mtu, found);
    rdma::check(node, &inventory, &networks, needs_rdma, found);
    roce::check(node, &inventory, found);
    watchdog::step(|| "the checks pools and leases".to_owned());
    pools::check(node, &inventory, &networks, found);
    pools::check_closed(node, found);
}

/// Whether to print colours, following no-color.org.
fn has_colours() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// The colour of a verdict on a terminal.
fn colour(verdict: &str) -> Option<u8> {
    match verdict.trim() {
        "ok" => Some(32),
        "skip" => Some(36),
        "warn" => Some(33),
        "FAIL" => Some(31),
        _ => None,
    }
}

impl Findings {
    fn text(&self, node_name: &str, has_colours: bool) -> String {
        let width = self
            .0
            .iter()
            .map(|check| check.name.len())
            .max()
            .unwrap_or_default();
        let mut report = rail_cni::log::printable(&format!("node {node_name}")) + "\n\n";
        let indent = " ".repeat(width + 8);
        let findings = self.0.iter().map(Check::for_people).collect();
        for finding in output::merged(findings, "rail") {
            let Finding {
                kind: verdict,
                place: name,
                subject,
                mut text,
                remedy,
            } = finding;
            if !subject.is_empty() {
                text = format!("{subject}: {text}");
            }
            if let Some(remedy) = remedy {
                text += &format!(" -> {remedy}");
            }
            let line = format!("{verdict}  {name:<width$}  {text}");
            let line = output::indented_line(&line, &indent);
            match colour(&verdict).filter(|_| has_colours) {
                Some(colour) => {
                    let coloured = format!("\x1b[{colour}m{verdict}\x1b[0m");
                    report += &line.replacen(&verdict, &coloured, 1);
                }
                None => report += &line,
            }
        }
        let (failed, warned) = (self.count(Verdict::Fail), self.count(Verdict::Warn));
        let (skipped, ok) = (self.count(Verdict::Skip), self.count(Verdict::Ok));
        let ready = if failed == 0 { "ready" } else { "not ready" };
        report
            + &format!(
                "\n{ready}: {ok} ok, {}, {failed} failed, {skipped} skipped\n",
                count(warned, "warning")
            )
    }

    /// The help of the verb lists these keys: keys and checks may be added, but none may change its
    /// meaning.
    fn json(&self, node_name: &str) -> Value {
        json!({
            "node": node_name,
            "ready": self.count(Verdict::Fail) == 0,
            "counts": {"ok": self.count(Verdict::Ok), "warn": self.count(Verdict::Warn),
                "fail": self.count(Verdict::Fail), "skip": self.count(Verdict::Skip)},
            "checks": self.0.iter().map(Check::json).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Findings {
        Findings(vec![
            Check::ok("devices", "both are there"),
            Check {
                rail: Some(3),
                ..Check::fail(
                    "pf-link",
                    "ens3f0 is \x1b[2Jdown",
                    "`ip link set ens3f0 up`",
                )
            },
            Check::skip("rdma", "this kernel has no RDMA"),
        ])
    }

    #[test]
    fn a_check_is_a_line_without_control_characters_but_its_colour() {
        let text = "node n1\n\nok    devices  both are there\nFAIL  pf-link  ens3f0 is ?[2Jdown -> `ip link set ens3f0 up`\n\
            skip  rdma     this kernel has no RDMA\n\nnot ready: 1 ok, 0 warnings, 1 failed, 1 skipped\n";
        assert_eq!(found().text("n1", false), text);
        assert!(
            found()
                .text("n1", true)
                .contains("\n\x1b[31mFAIL\x1b[0m  pf-link  ens3f0 is ?[2Jdown")
        );
    }

    #[test]
    fn the_json_has_every_check() {
        let json = found().json("n1");
        assert_eq!(
            (&json["ready"], &json["counts"]["fail"]),
            (&json!(false), &json!(1))
        );
        assert_eq!(
            json["checks"][1],
            json!({"check": "pf-link", "verdict": "fail", "rail": 3, "text": "ens3f0 is \u{1b}[2Jdown",
                "remedy": "`ip link set ens3f0 up`"})
        );
    }
}
