//! `rail-cni doctor`: is this node ready for pods with rails? Each check says what it saw, and what to do. What
//! cannot be told is skipped by name, never silently.

mod networks;
mod node;
mod pools;
mod rails;
mod routes;
mod runtimes;

use std::fmt;
use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::inventory::{Inventory, Rail};
use crate::output::{self, Output};
use crate::watchdog;

/// What a check came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It cannot be told; the text says why.
    Skip,
    /// Pods start all the same, or most of them.
    Warn,
    /// A pod with this rail, or with any, would not start or not work.
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A failure must catch the eye also where there are no colours.
        f.write_str(match self {
            Verdict::Ok => "ok",
            Verdict::Skip => "skip",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        })
    }
}

/// One line of the answer.
#[derive(Debug)]
pub struct Check {
    name: &'static str,
    verdict: Verdict,
    rail: Option<u8>,
    text: String,
    remedy: Option<String>,
}

impl Check {
    fn new(verdict: Verdict, name: &'static str, text: impl Into<String>) -> Check {
        Check { name, verdict, rail: None, text: text.into(), remedy: None }
    }

    fn ok(name: &'static str, text: impl Into<String>) -> Check {
        Check::new(Verdict::Ok, name, text)
    }

    fn skip(name: &'static str, why: impl Into<String>) -> Check {
        Check::new(Verdict::Skip, name, why)
    }

    fn warn(name: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { remedy: Some(remedy.into()), ..Check::new(Verdict::Warn, name, text) }
    }

    fn fail(name: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { remedy: Some(remedy.into()), ..Check::new(Verdict::Fail, name, text) }
    }

    fn on(self, rail: &Rail) -> Check {
        Check { text: format!("{}: {}", rail.title(), self.text), rail: rail.rail, ..self }
    }

    fn json(&self) -> Value {
        let verdict = self.verdict.to_string().to_ascii_lowercase();
        json!({"check": self.name, "verdict": verdict, "rail": self.rail, "text": self.text, "remedy": self.remedy})
    }
}

/// What was found so far, in the order of the answer.
#[derive(Debug, Default)]
struct Findings(Vec<Check>);

impl Findings {
    fn add(&mut self, check: Check) {
        self.0.push(check);
    }

    /// One line for all of a kind, unless there is a line about one of them.
    fn ok_unless_told(&mut self, name: &'static str, text: impl Into<String>) {
        if !self.0.iter().any(|check| check.name == name) {
            self.add(Check::ok(name, text));
        }
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.0.iter().filter(|check| check.verdict == verdict).count()
    }
}

/// Checks the node, for networks with this MTU where none is known here; the exit status is 1 when a check failed.
pub fn doctor(mtu: u32, output: Output) -> Result<ExitCode> {
    let mut found = Findings::default();
    let node = node::configuration(&mut found);
    watchdog::allow(node.call_timeout());
    node::programs(&mut found);
    watchdog::step(|| "the check log".to_owned());
    node::log(&node, &mut found);
    watchdog::step(|| "the checks run and store".to_owned());
    node::folders(&node, &mut found);
    node::host(&mut found);
    watchdog::step(|| "looking at devices and records".to_owned());
    match Inventory::take(&node) {
        Ok(inventory) => {
            let networks = networks::known(Path::new(runtimes::CONFIGURATIONS), &inventory);
            rails::check(&node, &inventory, &networks, mtu, &mut found);
            watchdog::step(|| "the checks pools and leases".to_owned());
            pools::check(&node, &inventory, &networks, &mut found);
        }
        Err(error) => {
            found.add(Check::fail(
                "inventory",
                format!("{error:#}"),
                "mend that; rails and pools were not looked at",
            ));
        }
    }
    watchdog::step(|| "the checks runtime and net.d".to_owned());
    runtimes::check(&mut found);

    let name = node.name().unwrap_or_default();
    output::print(&match output {
        Output::Json => output::pretty(&found.json(&name)),
        Output::Table => found.text(&name, has_colours()),
    })?;
    Ok(if found.count(Verdict::Fail) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// no-color.org
fn has_colours() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

impl Findings {
    fn text(&self, node_name: &str, has_colours: bool) -> String {
        let width = self.0.iter().map(|check| check.name.len()).max().unwrap_or_default();
        let mut text = output::printable(&format!("node {node_name}")) + "\n\n";
        for Check { name, verdict, text: what, remedy, .. } in &self.0 {
            let colour = match verdict {
                _ if !has_colours => None,
                Verdict::Ok => Some(32),
                Verdict::Skip => Some(36),
                Verdict::Warn => Some(33),
                Verdict::Fail => Some(31),
            };
            let verdict = format!("{:<4}", verdict.to_string());
            text +=
                &colour.map_or_else(|| verdict.clone(), |colour| format!("\x1b[{colour}m{verdict}\x1b[0m"));
            let line = match remedy {
                Some(remedy) => format!("  {name:<width$}  {what} -> {remedy}"),
                None => format!("  {name:<width$}  {what}"),
            };
            text += &(output::printable(&line) + "\n");
        }
        let (failed, warned) = (self.count(Verdict::Fail), self.count(Verdict::Warn));
        let (skipped, ok) = (self.count(Verdict::Skip), self.count(Verdict::Ok));
        let ready = if failed == 0 { "ready" } else { "not ready" };
        text + &format!("\n{ready}: {ok} ok, {warned} warnings, {failed} failed, {skipped} skipped\n")
    }

    /// The form is documented in docs/operations.md: keys and checks may be added, and none changes its meaning.
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

/// `1 VF`, `2 VFs`.
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Findings {
        Findings(vec![
            Check::ok("folders", "both are there"),
            Check {
                rail: Some(3),
                ..Check::fail("pf-link", "ens3f0 is \x1b[2Jdown", "`ip link set ens3f0 up`")
            },
            Check::skip("rdma", "this kernel has no RDMA"),
        ])
    }

    #[test]
    fn a_check_is_a_line_without_control_characters_but_its_colour() {
        let text = "node n1\n\nok    folders  both are there\nFAIL  pf-link  ens3f0 is ?[2Jdown -> `ip link set ens3f0 up`\n\
            skip  rdma     this kernel has no RDMA\n\nnot ready: 1 ok, 0 warnings, 1 failed, 1 skipped\n";
        assert_eq!(found().text("n1", false), text);
        assert!(found().text("n1", true).contains("\n\x1b[31mFAIL\x1b[0m  pf-link  ens3f0 is ?[2Jdown"));
    }

    #[test]
    fn the_json_has_every_check() {
        let json = found().json("n1");
        assert_eq!((&json["ready"], &json["counts"]["fail"]), (&json!(false), &json!(1)));
        assert_eq!(
            json["checks"][1],
            json!({"check": "pf-link", "verdict": "fail", "rail": 3, "text": "ens3f0 is \u{1b}[2Jdown",
                "remedy": "`ip link set ens3f0 up`"})
        );
    }
}
