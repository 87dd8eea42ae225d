//! Runs the checks of a plugin, several at a time.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use crate::checks::{Check, Level};
use crate::world::{Settings, Stop, World, ip};

/// What became of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It could not be asked.
    LeftOut,
    /// It holds.
    Pass,
    /// It does not hold, and the description says why.
    Known,
    /// It does not hold.
    Fail,
}

/// A check and what became of it.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// The name of the check.
    pub name: &'static str,
    /// Items of the contract.
    pub items: &'static [u32],
    /// How binding it is.
    pub level: Level,
    /// What is asked.
    pub asks: &'static str,
    /// What became of it.
    pub outcome: Outcome,
    /// What was seen, or why it was left out.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub seen: String,
    /// What the description says of it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub known: String,
    /// Of a failure: all that was done, as shell commands. docs/conformance.md has the shell for them. The last one shows it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<String>,
}

/// All that was found out of a plugin.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What the description calls it.
    pub plugin: String,
    /// Its executable.
    pub program: String,
    /// In the order of the contract.
    pub checks: Vec<Judged>,
}

impl Report {
    /// How many checks of this level have this outcome.
    pub fn count(&self, level: Option<Level>, outcome: Outcome) -> usize {
        let of_level = |one: &&Judged| level.is_none_or(|level| one.level == level);
        self.checks.iter().filter(of_level).filter(|one| one.outcome == outcome).count()
    }

    /// Each item of the contract with the worst outcome of its checks.
    pub fn items(&self) -> BTreeMap<u32, Outcome> {
        let mut items = BTreeMap::new();
        for judged in &self.checks {
            for item in judged.items {
                let worst = items.entry(*item).or_insert(judged.outcome);
                *worst = (*worst).max(judged.outcome);
            }
        }
        items
    }
}

/// Runs `checks`, `jobs` at a time.
pub fn judge(settings: &Settings, checks: &[Check], jobs: usize) -> Report {
    let needs = &settings.description.needs;
    let (needed, _) = World::with(settings, |_| {
        needs.iter().try_for_each(|line| ip(line).map(drop).map_err(Stop::LeftOut))
    });
    let reason = match needed {
        Err(Stop::LeftOut(reason) | Stop::Fails(reason)) => Some(reason),
        Ok(()) => None,
    };
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Judged>>> = checks.iter().map(|_| Mutex::new(None)).collect();
    let worker = || {
        while let Some((check, result)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            checks.get(at).zip(results.get(at))
        } {
            let judged = match &reason {
                Some(reason) => judged(check, settings, Err(Stop::LeftOut(reason.clone())), Vec::new()),
                None => {
                    let (verdict, steps) = World::with(settings, check.run);
                    judged(check, settings, verdict, steps)
                }
            };
            if let Ok(mut result) = result.lock() {
                *result = Some(judged);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(worker);
        }
    });
    let checks = results.into_iter().filter_map(|one| one.into_inner().ok().flatten()).collect();
    Report {
        plugin: settings.description.name.clone(),
        program: settings.program.display().to_string(),
        checks,
    }
}

fn judged(check: &Check, settings: &Settings, verdict: Result<(), Stop>, steps: Vec<String>) -> Judged {
    let Check { name, items, level, asks, .. } = *check;
    let known = settings.description.known.get(name).cloned().unwrap_or_default();
    let (outcome, seen, steps) = match verdict {
        Ok(()) => (Outcome::Pass, String::new(), Vec::new()),
        Err(Stop::LeftOut(reason)) => (Outcome::LeftOut, reason, Vec::new()),
        Err(Stop::Fails(seen)) if known.is_empty() => (Outcome::Fail, seen, steps),
        Err(Stop::Fails(seen)) => (Outcome::Known, seen, steps),
    };
    let known = if outcome == Outcome::Known { known } else { String::new() };
    Judged { name, items, level, asks, outcome, seen, known, steps }
}
