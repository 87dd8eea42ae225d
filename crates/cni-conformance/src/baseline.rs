//! What an earlier run saw, to tell what is new.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::checks::{CHECK_SET, RETIRED};
use crate::run::{Outcome, Report};

/// A report in JSON: of each plugin and check, did it fail?
#[derive(Debug)]
pub struct Baseline {
    check_set: u64,
    outcomes: BTreeMap<(String, String), String>,
}

impl Baseline {
    /// Reads one; the error says what is wrong.
    pub fn read(path: &Path) -> Result<Baseline, String> {
        let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = fs::read(path).map_err(|error| told(&error))?;
        let report: Value = serde_json::from_slice(&text).map_err(|error| told(&error))?;
        Baseline::of(&report)
            .ok_or_else(|| told(&"expected a report of --format json with a checkSet"))
    }

    fn of(report: &Value) -> Option<Baseline> {
        let mut outcomes = BTreeMap::new();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        for plugin in report["plugins"].as_array()? {
            for one in plugin["checks"].as_array()? {
                let key = (text(&plugin["plugin"])?, text(&one["name"])?);
                outcomes.insert(key, text(&one["outcome"])?);
            }
        }
        Some(Baseline {
            check_set: report["checkSet"].as_u64()?,
            outcomes,
        })
    }

    fn outcome(&self, plugin: &str, check: &str) -> Option<&str> {
        self.outcomes
            .get(&(plugin.to_owned(), check.to_owned()))
            .map(String::as_str)
    }

    /// Did the check fail?
    pub fn has_failure(&self, plugin: &str, check: &str) -> bool {
        self.outcome(plugin, check) == Some("fail")
    }

    /// What is new, mended or gone, a line for each.
    pub fn compared(&self, reports: &[Report]) -> String {
        let mut text = String::new();
        if self.check_set != u64::from(CHECK_SET) {
            let _ = writeln!(
                text,
                "baseline: of check set {}, and this one is {CHECK_SET}",
                self.check_set
            );
        }
        for report in reports {
            let plugin = &report.plugin;
            for one in &report.checks {
                let fails = one.outcome == Outcome::Fail;
                let what = match (self.outcome(plugin, one.name), one.outcome) {
                    (None, Outcome::Fail) => "new check, which fails",
                    (Some(old), _) if old != "fail" && fails => "new failure",
                    (Some("fail"), Outcome::Pass | Outcome::Known) => "mended",
                    (Some("fail"), Outcome::LeftOut) => "failed, and is left out",
                    _ => continue,
                };
                let _ = writeln!(
                    text,
                    "baseline: {plugin}: {what}: {} {}",
                    one.level, one.name
                );
            }
            let is_here = |name: &str| report.checks.iter().any(|one| one.name == name);
            let old = self
                .outcomes
                .keys()
                .filter(|(other, name)| other == plugin && !is_here(name));
            for (_, name) in old {
                let what = if RETIRED.contains(&name.as_str()) {
                    "there is no such check any more"
                } else {
                    "not asked"
                };
                let _ = writeln!(text, "baseline: {plugin}: gone: {name}: {what}");
            }
        }
        text
    }
}

/// The library whose failures are none of a plugin that is built on it.
#[derive(Deserialize)]
struct Library {
    /// What the executable of such a plugin contains.
    contains: String,
    /// The reason, by check.
    checks: BTreeMap<String, String>,
}

/// The failures of libcni's skel, with the reason, if this executable is built on it. No author of
/// a plugin can mend them.
pub fn of_skel(program: &Path) -> Result<BTreeMap<String, String>, String> {
    let told = |error: &dyn std::fmt::Display| format!("{}: {error}", program.display());
    let library: Library =
        serde_json::from_str(include_str!("skel.json")).map_err(|error| told(&error))?;
    let bytes = fs::read(program).map_err(|error| told(&error))?;
    if String::from_utf8_lossy(&bytes).contains(&library.contains) {
        Ok(library.checks)
    } else {
        Ok(BTreeMap::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Harm, Level, Profile};
    use crate::run::Judged;
    use serde_json::json;

    fn judged(name: &'static str, outcome: Outcome) -> Judged {
        Judged {
            name,
            level: Level::Must,
            harm: Harm::Cosmetic,
            profile: Profile::Spec,
            asks: "",
            says: "",
            tags: String::new(),
            address: String::new(),
            why: "",
            outcome,
            seen: String::new(),
            known: String::new(),
            show: String::new(),
            replay: String::new(),
        }
    }

    #[test]
    fn new_mended_and_gone_are_told() {
        let old = |name: &str, outcome: &str| json!({"name": name, "outcome": outcome});
        let checks = [
            old("a", "pass"),
            old("b", "fail"),
            old("c", "fail"),
            old("gc_asks_the_ipam", "pass"),
        ];
        let old = json!({"checkSet": 1, "plugins": [{"plugin": "x", "checks": checks}]});
        let baseline = Baseline::of(&old).unwrap();
        let report = Report {
            plugin: "x".to_owned(),
            program: String::new(),
            specification: "1.1.0".to_owned(),
            checks: vec![
                judged("a", Outcome::Fail),
                judged("b", Outcome::Pass),
                judged("c", Outcome::Fail),
                judged("d", Outcome::Fail),
                judged("e", Outcome::Pass),
            ],
            warnings: Vec::new(),
            fault: None,
            refusal: None,
            unjudged: None,
            few: None,
        };
        let text = baseline.compared(&[report]);
        let lines: Vec<_> = text
            .lines()
            .skip(1)
            .map(|line| line.trim_start_matches("baseline: x: "))
            .collect();
        let expected = [
            "new failure: MUST a",
            "mended: MUST b",
            "new check, which fails: MUST d",
            "gone: gc_asks_the_ipam: there is no such check any more",
        ];
        assert_eq!(lines, expected);
        assert!(baseline.has_failure("x", "c") && !baseline.has_failure("x", "a"));
        assert!(Baseline::of(&json!({"plugins": []})).is_none());
    }
}
