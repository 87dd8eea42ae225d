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
    /// If that succeeds, but not for as many attachments at once as the checks have: for how many, and why not for more.
    #[serde(skip)]
    pub few: Option<(usize, String)>,
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
    /// How many attachments there were at once.
    had: usize,
    /// Why ADD fails for one more, if it does.
    refusal: Option<String>,
}

/// Asks VERSION, and makes the plainest attachments, each in a pod of its own, until `most` are there or one fails. Without
/// a DEL between them: what a plugin loses from one life to the next must not look like a pool that is small from the
/// beginning, for then no check would tell.
fn tried(world: &World<'_>, most: usize) -> Result<Tried, Stop> {
    let first = world.attachment(0)?;
    let answer = match world.run(&world.call("VERSION", &first)) {
        Ok(ran) => ran.result().unwrap_or_default(),
        Err(unusable @ Stop::Unusable(_)) => return Err(unusable),
        Err(_) => Value::Null,
    };
    let versions = answer["supportedVersions"].as_array().into_iter().flatten();
    let versions: Vec<_> = versions.filter_map(|version| version.as_str().map(str::to_owned)).collect();
    // The plainest ADD is of a version that the checks ask for.
    let mut description = world.description().clone();
    description.serves(&versions);
    let made = |n: usize| {
        let one = if n == 0 { first.clone() } else { world.attachment(n)? };
        let one = world.of_version(one, description.newest());
        let ran = world.run(&world.call("ADD", &one))?;
        if ran.status != 0 {
            // Above that, a signal ended it.
            let stop = if ran.status > 128 { Stop::Fails } else { Stop::LeftOut };
            return Err(stop(format!("its ADD fails: {}", ran.told())));
        }
        let result = ran.result().map_err(Stop::Fails)?;
        Ok((one, result))
    };
    let (mut had, mut refusal) = (Vec::new(), None);
    while had.len() < most {
        match made(had.len()) {
            Ok(one) => had.push(one),
            // One that crashes, prints garbage or does not end does not say that nothing is left: the checks are asked.
            Err(Stop::Fails(_)) if !had.is_empty() => break,
            Err(Stop::Fails(reason) | Stop::LeftOut(reason) | Stop::Unusable(reason)) => {
                refusal = Some(reason);
                break;
            }
        }
    }
    // If one hangs, the others are not waited for.
    let _ = had.iter().try_for_each(|(one, result)| world.run(&world.del_call(one, result)).map(drop));
    Ok(Tried { versions, had: had.len(), refusal })
}

/// Runs `checks`, `jobs` at a time. The calling thread must have no children that others wait for.
pub fn judge(settings: &Settings, checks: &[Check], jobs: usize) -> Report {
    let needs = &settings.description.needs;
    let (needed, _) = World::with(settings, |_| {
        needs.iter().try_for_each(|line| ip(line).map(drop).map_err(Stop::LeftOut))
    });
    let mut settings = settings.clone();
    let most = checks.iter().map(|check| check.attachments).max().unwrap_or(1);
    let (mut reason, mut fault, mut few) = (None, None, None);
    match needed {
        Err(Stop::LeftOut(why) | Stop::Fails(why) | Stop::Unusable(why)) => reason = Some(why),
        Ok(()) => match World::with(&settings, |world| tried(world, most)).0 {
            Ok(tried) => {
                settings.description.serves(&tried.versions);
                settings.adds = tried.had > 0;
                few = tried.refusal.map(|refusal| (tried.had, refusal));
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
    let fault = Mutex::new(fault);
    let results: Vec<Mutex<Option<Judged>>> = checks.iter().map(|_| Mutex::new(None)).collect();
    let worker = || {
        while let Some((check, result)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            checks.get(at).zip(results.get(at))
        } {
            let judged = match reason.clone().or_else(|| lacks(check, few.as_ref())) {
                Some(reason) => judged(check, settings, Err(Stop::LeftOut(reason)), Vec::new()),
                None => {
                    let (verdict, steps) = World::with(settings, check.run);
                    if let (Err(Stop::Unusable(why)), Ok(mut fault)) = (&verdict, fault.lock()) {
                        fault.get_or_insert_with(|| format!("{}: {why}", check.name));
                    }
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
    let (few, refusal) = match few {
        Some((0, refusal)) => (None, Some(refusal)),
        few => (few, None),
    };
    Report {
        plugin: settings.description.name.clone(),
        program: settings.program.display().to_string(),
        checks,
        fault: fault.into_inner().ok().flatten(),
        refusal,
        few,
    }
}

/// Why a check is left out that has more attachments at once than there could be, if so. One that has a single attachment
/// finds out itself.
fn lacks(check: &Check, few: Option<&(usize, String)>) -> Option<String> {
    let (had, refusal) = few?;
    let asked = check.attachments;
    (asked > 1 && asked > *had)
        .then(|| format!("it needs {asked} attachments at once, and there could be {had}: {refusal}"))
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
