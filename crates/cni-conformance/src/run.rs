//! Runs the checks of a plugin, several at a time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::checks::{Basis, Check, Level, Profile};
use crate::replay::{About, Replay};
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
    /// How binding it is to this plugin.
    pub level: Level,
    /// Who asks it of this plugin.
    pub profile: Profile,
    /// What is asked.
    pub asks: &'static str,
    /// What the specification says, if it does.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub says: &'static str,
    /// Where it says so.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// Why it is asked though no text demands it, or how else the text can be read.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub why: &'static str,
    /// What became of it.
    pub outcome: Outcome,
    /// What was seen, or why it was left out.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub seen: String,
    /// What the description says of it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub known: String,
    /// Of a failure: the last command before it was seen.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub show: String,
    /// Of a failure: a script of bash that shows it again, alone.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub replay: String,
}

/// All that was found out of a plugin.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What the description calls it.
    pub plugin: String,
    /// Its executable.
    pub program: String,
    /// The newest version of the specification that it claims: the one that it is judged by.
    pub specification: String,
    /// In the order of the specification.
    pub checks: Vec<Judged>,
    /// What is wrong with the description: it hides more than it should, or is out of date.
    pub warnings: Vec<String>,
    /// Why the plugin cannot be executed, or its description cannot be followed.
    #[serde(skip)]
    pub fault: Option<String>,
    /// Why its plainest ADD fails, if it does.
    #[serde(skip)]
    pub refusal: Option<String>,
    /// If that succeeds, but not for as many attachments at once as the checks have: for how many,
    /// and why not for more.
    #[serde(skip)]
    pub few: Option<(usize, String)>,
}

impl Report {
    /// How many checks of this level have this outcome.
    pub fn count(&self, level: Option<Level>, outcome: Outcome) -> usize {
        let of_level = |one: &&Judged| level.is_none_or(|level| one.level == level);
        self.checks
            .iter()
            .filter(of_level)
            .filter(|one| one.outcome == outcome)
            .count()
    }

    /// Was the plugin asked anything?
    pub fn is_asked(&self) -> bool {
        self.checks
            .iter()
            .any(|one| one.outcome != Outcome::LeftOut)
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
    /// Did the first ADD change what is compared?
    changes: bool,
    /// Did each DEL succeed?
    dels: bool,
}

/// Asks VERSION, and makes the plainest attachments, each in a pod of its own, until `most` are
/// there or one fails. Without a DEL between them: what a plugin loses from one life to the next
/// must not look like a pool that is small from the beginning, for then no check would tell.
fn tried(world: &World<'_>, most: usize) -> Result<Tried, Stop> {
    let first = world.attachment(0)?;
    let answer = match world.run(&world.call("VERSION", &first)) {
        Ok(ran) => ran.result().unwrap_or_default(),
        Err(unusable @ Stop::Unusable(_)) => return Err(unusable),
        Err(_) => Value::Null,
    };
    let versions = answer["supportedVersions"].as_array().into_iter().flatten();
    let versions: Vec<_> = versions
        .filter_map(|version| version.as_str().map(str::to_owned))
        .collect();
    // The plainest ADD is of a version that the checks ask for.
    let mut description = world.description().clone();
    description.serves(&versions);
    let made = |n: usize| {
        let one = if n == 0 {
            first.clone()
        } else {
            world.attachment(n)?
        };
        let one = world.of_version(one, description.newest());
        let ran = world.run(&world.call("ADD", &one))?;
        if ran.status != 0 {
            // Above that, a signal ended it.
            let stop = if ran.status > 128 {
                Stop::Fails
            } else {
                Stop::LeftOut
            };
            return Err(stop(format!("its ADD fails: {}", ran.told())));
        }
        let result = ran.result().map_err(Stop::Fails)?;
        Ok((one, result))
    };
    let (before, pod) = (world.state()?, world.pod_state(&first)?);
    let (mut had, mut refusal, mut changes) = (Vec::new(), None, false);
    while had.len() < most {
        match made(had.len()) {
            Ok(one) => {
                if had.is_empty() {
                    changes = world.state()? != before || world.pod_state(&first)? != pod;
                }
                had.push(one);
            }
            // One that crashes, prints garbage or does not end does not say that nothing is left:
            // the checks are asked.
            Err(Stop::Fails(_) | Stop::Hung(_)) if !had.is_empty() => break,
            Err(
                Stop::Fails(reason)
                | Stop::Hung(reason)
                | Stop::LeftOut(reason)
                | Stop::Unusable(reason),
            ) => {
                refusal = Some(reason);
                break;
            }
        }
    }
    // If one hangs, the others are not waited for.
    let mut ends = had
        .iter()
        .map(|(one, result)| world.run(&world.del_call(one, result)));
    let dels = ends.all(|ran| ran.is_ok_and(|ran| ran.status == 0));
    Ok(Tried {
        versions,
        had: had.len(),
        refusal,
        changes,
        dels,
    })
}

/// What is known before the checks are asked.
#[derive(Default)]
struct Known {
    /// Why none can be asked.
    reason: Option<String>,
    /// The same, if it is the fault of the plugin's executable or of its description.
    fault: Option<String>,
    /// Why its plainest ADD fails.
    refusal: Option<String>,
    /// How many attachments there can be, and why not more.
    few: Option<(usize, String)>,
}

/// Finds it out, and completes the settings.
fn find_out(settings: &mut Settings, most: usize) -> Known {
    let needs = &settings.description.needs;
    let (needed, _) = World::with(settings, |_| {
        needs
            .iter()
            .try_for_each(|line| ip(line).map(drop).map_err(Stop::LeftOut))
    });
    let told = |stop: Stop| match stop {
        Stop::Fails(why) | Stop::Hung(why) | Stop::LeftOut(why) | Stop::Unusable(why) => why,
    };
    if let Err(stop) = needed {
        return Known {
            reason: Some(told(stop)),
            ..Known::default()
        };
    }
    let tried = match World::with_patience(settings, |world| tried(world, most)).0 {
        Ok(tried) => tried,
        Err(Stop::Unusable(why)) => {
            return Known {
                reason: Some(why.clone()),
                fault: Some(why),
                ..Known::default()
            };
        }
        // Each check says it.
        Err(_) => return Known::default(),
    };
    settings.description.serves(&tried.versions);
    (settings.changes, settings.dels) = (tried.changes, tried.dels);
    match tried.refusal {
        Some(refusal) if tried.had == 0 => Known {
            refusal: Some(refusal),
            ..Known::default()
        },
        refusal => Known {
            few: refusal.map(|refusal| (tried.had, refusal)),
            ..Known::default()
        },
    }
}

/// Runs those of `checks` that are of these profiles for this plugin, `jobs` at a time. The calling
/// thread must have no children that others wait for.
pub fn judge(settings: &Settings, checks: &[Check], profiles: &[Profile], jobs: usize) -> Report {
    let mut settings = settings.clone();
    let most = checks
        .iter()
        .map(|check| check.attachments)
        .max()
        .unwrap_or(1);
    let known = find_out(&mut settings, most);
    let settings = &settings;
    let newest = settings.description.newest();
    let checks: Vec<&Check> = checks
        .iter()
        .filter(|check| profiles.contains(&check.profile_in(newest)))
        .collect();
    let (next, fault) = (AtomicUsize::new(0), Mutex::new(known.fault.clone()));
    let results: Vec<Mutex<Option<Judged>>> = checks.iter().map(|_| Mutex::new(None)).collect();
    let worker = || {
        while let Some((check, result)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            checks.get(at).zip(results.get(at))
        } {
            let (verdict, replay) = match lacks(check, &known) {
                Some(reason) => (Err(Stop::LeftOut(reason)), Replay::default()),
                None => World::with_patience(settings, check.run),
            };
            if let (Err(Stop::Unusable(why)), Ok(mut fault)) = (&verdict, fault.lock()) {
                fault.get_or_insert_with(|| format!("{}: {why}", check.name));
            }
            let judged = judged(check, settings, verdict, &replay);
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
    let checks: Vec<_> = results
        .into_iter()
        .filter_map(|one| one.into_inner().ok().flatten())
        .collect();
    Report {
        plugin: settings.description.name.clone(),
        program: settings.program.display().to_string(),
        specification: newest.to_owned(),
        warnings: warnings(settings, &checks),
        checks,
        fault: fault.into_inner().ok().flatten(),
        refusal: known.refusal,
        few: known.few,
    }
}

/// The check that alone is asked where no ADD succeeds.
const FIRST: &str = "add_succeeds";

/// Why a check is left out, if so: none can be asked, or it has more attachments at once than there
/// could be. One that has a single attachment finds out itself.
fn lacks(check: &Check, known: &Known) -> Option<String> {
    if known.reason.is_some() {
        return known.reason.clone();
    }
    if let Some(refusal) = known.refusal.as_ref().filter(|_| check.name != FIRST) {
        return Some(refusal.clone());
    }
    let (had, refusal) = known.few.as_ref()?;
    let asked = check.attachments;
    (asked > 1 && asked > *had).then(|| {
        format!("it needs {asked} attachments at once, and there could be {had}: {refusal}")
    })
}

/// What a description says that is not so, or that nobody can have meant.
fn warnings(settings: &Settings, checks: &[Judged]) -> Vec<String> {
    let description = &settings.description;
    let passes = |name: &String| {
        checks
            .iter()
            .any(|one| one.name == name && one.outcome == Outcome::Pass)
    };
    let mended = description.known.keys().filter(|name| passes(name));
    let mended = mended.map(|name| format!("known: {name} does not fail any more"));
    let broad = description
        .broad_stays()
        .map(|pattern| format!("stays: {pattern:?} hides what nobody has named"));
    mended.chain(broad).collect()
}

fn judged(
    check: &Check,
    settings: &Settings,
    verdict: Result<(), Stop>,
    replay: &Replay,
) -> Judged {
    let newest = settings.description.newest();
    let (basis, level) = (check.basis_in(newest), check.level_in(newest));
    let known = settings
        .description
        .known
        .get(check.name)
        .cloned()
        .unwrap_or_default();
    // A result of a plugin may be long, and have anything in it.
    let shown = |text: &str| plain(&cut(text, 5 * SHOWN));
    let (outcome, seen) = match verdict {
        Ok(()) => (Outcome::Pass, String::new()),
        Err(Stop::LeftOut(reason) | Stop::Unusable(reason)) => (Outcome::LeftOut, shown(&reason)),
        Err(Stop::Fails(seen) | Stop::Hung(seen)) if known.is_empty() => {
            (Outcome::Fail, shown(&seen))
        }
        Err(Stop::Fails(seen) | Stop::Hung(seen)) => (Outcome::Known, shown(&seen)),
    };
    let fails = matches!(outcome, Outcome::Fail | Outcome::Known);
    let about = About {
        check: check.name,
        level: &level.to_string(),
        asks: check.asks,
        seen: &seen,
    };
    Judged {
        name: check.name,
        level,
        profile: check.profile_in(newest),
        asks: check.asks,
        says: basis.map_or("", |basis| basis.text),
        address: basis.map(Basis::address).unwrap_or_default(),
        why: check.why,
        show: if fails {
            shown(&replay.last())
        } else {
            String::new()
        },
        replay: if fails {
            replay.script(settings, about)
        } else {
            String::new()
        },
        outcome,
        seen,
        known: if outcome == Outcome::Known {
            known
        } else {
            String::new()
        },
    }
}
