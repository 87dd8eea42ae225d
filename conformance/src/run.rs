//! Runs the checks of a plugin, several at a time.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::checks::{Check, Level};
use crate::sandbox;
use crate::world::{SHOWN, Settings, Stop, World, cut, ip, plain};

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
    /// Why the plugin cannot be executed, or its description cannot be followed.
    #[serde(skip)]
    pub fault: Option<String>,
    /// Why its plainest ADD fails, if it does.
    #[serde(skip)]
    pub refusal: Option<String>,
}

impl Report {
    /// How many checks of this level have this outcome.
    pub fn count(&self, level: Option<Level>, outcome: Outcome) -> usize {
        let of_level = |one: &&Judged| level.is_none_or(|level| one.level == level);
        self.checks.iter().filter(of_level).filter(|one| one.outcome == outcome).count()
    }

    /// Was the plugin asked anything?
    pub fn is_asked(&self) -> bool {
        self.checks.iter().any(|one| one.outcome != Outcome::LeftOut)
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

/// What has to be known of a plugin before it is judged.
struct Tried {
    /// The versions that VERSION tells.
    versions: Vec<String>,
    /// Why ADD fails, if it does.
    refusal: Option<String>,
}

/// Asks VERSION, and makes the plainest attachment.
fn tried(world: &World<'_>) -> Result<Tried, Stop> {
    let one = world.attachment(0)?;
    let answer = match world.run(&world.call("VERSION", &one)) {
        Ok(ran) => ran.result().unwrap_or_default(),
        Err(unusable @ Stop::Unusable(_)) => return Err(unusable),
        Err(_) => Value::Null,
    };
    let versions = answer["supportedVersions"].as_array().into_iter().flatten();
    let versions = versions.filter_map(|version| version.as_str().map(str::to_owned)).collect();
    let refusal = match world.add(&one) {
        Ok(result) => {
            let _ = world.run(&world.del_call(&one, &result));
            None
        }
        Err(Stop::Fails(reason) | Stop::LeftOut(reason) | Stop::Unusable(reason)) => Some(reason),
    };
    Ok(Tried { versions, refusal })
}

/// Runs `checks`, `jobs` at a time. The calling thread must have no children that others wait for.
pub fn judge(settings: &Settings, checks: &[Check], jobs: usize) -> Report {
    let needs = &settings.description.needs;
    let (needed, _) = World::with(settings, |_| {
        needs.iter().try_for_each(|line| ip(line).map(drop).map_err(Stop::LeftOut))
    });
    let mut settings = settings.clone();
    let (mut reason, mut fault, mut refusal) = (None, None, None);
    match needed {
        Err(Stop::LeftOut(why) | Stop::Fails(why) | Stop::Unusable(why)) => reason = Some(why),
        Ok(()) => match World::with(&settings, tried).0 {
            Ok(tried) => {
                settings.description.serves(&tried.versions);
                settings.adds = tried.refusal.is_none();
                refusal = tried.refusal;
            }
            Err(Stop::Unusable(why)) => {
                reason = Some(why.clone());
                fault = Some(why);
            }
            // Each check says it.
            Err(Stop::LeftOut(_) | Stop::Fails(_)) => {}
        },
    }
    let settings = &settings;
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
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(worker)).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            sandbox::reap();
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let checks = results.into_iter().filter_map(|one| one.into_inner().ok().flatten()).collect();
    Report {
        plugin: settings.description.name.clone(),
        program: settings.program.display().to_string(),
        checks,
        fault,
        refusal,
    }
}

fn judged(check: &Check, settings: &Settings, verdict: Result<(), Stop>, steps: Vec<String>) -> Judged {
    let Check { name, items, level, asks, .. } = *check;
    let known = settings.description.known.get(name).cloned().unwrap_or_default();
    // A result of a plugin may be long, and have anything in it.
    let shown = |text: &str| plain(&cut(text, 5 * SHOWN));
    let (outcome, seen, steps) = match verdict {
        Ok(()) => (Outcome::Pass, String::new(), Vec::new()),
        Err(Stop::LeftOut(reason) | Stop::Unusable(reason)) => (Outcome::LeftOut, shown(&reason), Vec::new()),
        Err(Stop::Fails(seen)) if known.is_empty() => (Outcome::Fail, shown(&seen), steps),
        Err(Stop::Fails(seen)) => (Outcome::Known, shown(&seen), steps),
    };
    let known = if outcome == Outcome::Known { known } else { String::new() };
    Judged { name, items, level, asks, outcome, seen, known, steps }
}
