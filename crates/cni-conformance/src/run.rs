//! Runs the checks of a plugin, several at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike as _};
use serde::Serialize;
use serde_json::Value;

use crate::call::Ran;
use crate::check::{Basis, Check, Harm, Level, Profile};
use crate::description::Kind;
use crate::look::ip;
use crate::replay::{About, Replay};
use crate::sandbox;
use crate::settings::{Settings, Stop};
use crate::value::{SHOWN, cut, plain};
use crate::world::World;

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
    /// What a failure costs.
    pub harm: Harm,
    /// Who asks it of this plugin.
    pub profile: Profile,
    /// What is asked.
    pub asks: &'static str,
    /// What the specification says, if it does.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub says: &'static str,
    /// The tags of the specification whose text binds it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tags: String,
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

/// Which failures count: those of this level or a more binding one, and those of this harm or a
/// worse one, whatever their level.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// The least binding level.
    pub level: Level,
    /// The least harm; `None` if it has no influence.
    pub harm: Option<Harm>,
}

impl Gate {
    /// Whether a failure of a check of this level and harm counts.
    pub fn covers(self, level: Level, harm: Harm) -> bool {
        level <= self.level || self.harm.is_some_and(|least| harm <= least)
    }

    /// Whether this is a failure that counts.
    pub fn counts(self, judged: &Judged) -> bool {
        judged.outcome == Outcome::Fail && self.covers(judged.level, judged.harm)
    }
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
    /// Why nothing that matters could be judged though ADD succeeds, if so.
    #[serde(skip)]
    pub unjudged: Option<String>,
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
    /// How the plainest ADD went; why it fails, if it does.
    refusal: Option<String>,
    /// Did it change what is compared?
    changes: bool,
    /// Did its DEL succeed?
    dels: bool,
    /// Did the calls mostly wait, and not compute?
    waits: bool,
}

/// The time that ended children of this process computed.
fn computed() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else {
        return Duration::ZERO;
    };
    let micros = |time: TimeVal| u64::try_from(time.num_microseconds()).unwrap_or_default();
    Duration::from_micros(micros(usage.user_time()) + micros(usage.system_time()))
}

fn reason(stop: Stop) -> String {
    match stop {
        Stop::Fails(why) | Stop::Hung(why) | Stop::LeftOut(why) | Stop::Unusable(why) => why,
    }
}

/// Asks VERSION, and makes and deletes the plainest attachment.
fn tried(world: &World<'_>) -> Result<Tried, Stop> {
    let begun = Instant::now();
    let computed_before = computed();
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
    let first = world.of_version(first, description.newest());
    let before = world.state()?;
    let pod = world.pod_state(&first)?;
    let ran = world.run(&world.call("ADD", &first));
    let added = ran.and_then(|ran| added(&ran));
    let mut tried = Tried {
        versions,
        refusal: None,
        changes: false,
        dels: true,
        waits: false,
    };
    match added {
        Ok(result) => {
            tried.changes = world.state()? != before || world.pod_state(&first)? != pod;
            let ran = world.run(&world.del_call(&first, &result));
            tried.dels = ran.is_ok_and(|ran| ran.status == 0);
        }
        Err(stop) => tried.refusal = Some(reason(stop)),
    }
    let wall = begun.elapsed();
    let busy = computed().saturating_sub(computed_before);
    tried.waits = wall > Duration::from_secs(1) && busy < wall / 3;
    Ok(tried)
}

/// The result of an ADD.
fn added(ran: &Ran) -> Result<Value, Stop> {
    if ran.status == 0 {
        return ran.result().map_err(Stop::Fails);
    }
    let text = format!("its ADD fails: {}", ran.told());
    // Above that, a signal ended it.
    Err(if ran.status > 128 {
        Stop::Fails(text)
    } else {
        Stop::LeftOut(text)
    })
}

/// How many attachments there can be at once, up to `most`, and why not more. There is no DEL
/// between them: what a plugin loses from one life to the next must not look like a pool that is
/// small from the beginning, for then no check would tell.
fn capacity(settings: &Settings, most: usize) -> Option<(usize, String)> {
    let (found, _) = World::with_patience(settings, |world| {
        let mut calls = Vec::new();
        let mut refusal = None;
        while calls.len() < most {
            let one = world.attachment(calls.len())?;
            let ran = world.run(&world.call("ADD", &one));
            match ran.and_then(|ran| added(&ran)) {
                Ok(result) => calls.push(world.del_call(&one, &result)),
                // One that crashes, prints garbage or does not end does not say that nothing is
                // left: the checks are asked.
                Err(Stop::Fails(_) | Stop::Hung(_)) if !calls.is_empty() => break,
                Err(stop) => {
                    refusal = Some((calls.len(), reason(stop)));
                    break;
                }
            }
        }
        let _ = world.at_once(&calls);
        Ok(refusal)
    });
    found.ok().flatten()
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
    /// Did the calls mostly wait?
    waits: bool,
}

/// Finds it out, and completes the settings.
fn find_out(settings: &mut Settings) -> Known {
    let needs = &settings.description.needs;
    let (needed, _) = World::with(settings, |_| {
        for line in needs {
            ip(line).map_err(Stop::LeftOut)?;
        }
        Ok(())
    });
    if let Err(stop) = needed {
        return Known {
            reason: Some(reason(stop)),
            ..Known::default()
        };
    }
    let tried = match World::with_patience(settings, tried).0 {
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
    settings.changes = tried.changes;
    settings.dels = tried.dels;
    Known {
        refusal: tried.refusal,
        waits: tried.waits,
        ..Known::default()
    }
}

/// What is told while the checks run.
struct Progress<'a> {
    plugin: &'a str,
    total: usize,
    is_quiet: bool,
    done: AtomicUsize,
    failed: AtomicUsize,
    running: Mutex<BTreeSet<&'static str>>,
}

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

impl Progress<'_> {
    fn line(&self, text: &str) {
        if !self.is_quiet {
            let _ = writeln!(
                std::io::stderr(),
                "cni-conformance: {}: {text}",
                self.plugin
            );
        }
    }

    fn begin(&self, name: &'static str) {
        if let Ok(mut running) = self.running.lock() {
            running.insert(name);
        }
    }

    fn end(&self, judged: &Judged, gate: Gate) {
        self.done.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut running) = self.running.lock() {
            running.remove(judged.name);
        }
        if gate.counts(judged) {
            self.failed.fetch_add(1, Ordering::Relaxed);
            self.line(&format!(
                "FAIL {} ({}) {}",
                judged.level, judged.harm, judged.name
            ));
        }
    }

    fn tell(&self) {
        const NAMED: usize = 4;
        let Ok(running) = self.running.lock() else {
            return;
        };
        let names: Vec<_> = running.iter().take(NAMED).copied().collect();
        let more = match running.len().saturating_sub(NAMED) {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        let done = self.done.load(Ordering::Relaxed);
        let failed = self.failed.load(Ordering::Relaxed);
        self.line(&format!(
            "{done} of {} checks, {failed} failures that count; now {}{more}",
            self.total,
            names.join(", ")
        ));
    }
}

/// How plugins are judged.
#[derive(Clone, Copy, Debug)]
pub struct Manner<'a> {
    /// Who asks.
    pub profiles: &'a [Profile],
    /// Which failures count. A check whose failure counts is asked whatever its profile.
    pub gate: Gate,
    /// How many checks run at a time; by default, as many as suit the processors and the plugin.
    pub jobs: Option<usize>,
    /// Is progress not told?
    pub is_quiet: bool,
    /// Failures whose cause is not the plugin's, by check.
    pub excused: &'a BTreeMap<String, String>,
}

impl Manner<'_> {
    fn job_count(&self, waits: bool) -> usize {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let by_default = if waits {
            16 * processors
        } else {
            4 * processors
        };
        self.jobs.unwrap_or(by_default).clamp(1, 64)
    }
}

/// The checks that no worker has taken, as indexes, the next one last.
struct Queue {
    /// Those of one attachment.
    single: Vec<usize>,
    /// Those that need to know how many attachments there can be. They take longest.
    several: Vec<usize>,
}

impl Queue {
    /// What the specification demands comes first, and what costs most.
    fn new(checks: &[&Check], newest: &str) -> Queue {
        let mut order: Vec<usize> = (0..checks.len()).collect();
        order.sort_by_key(|at| (checks[*at].level_in(newest), checks[*at].harm));
        order.reverse();
        let (several, single) = order
            .into_iter()
            .partition(|at| checks[*at].attachments > 1);
        Queue { single, several }
    }

    fn take(&mut self, is_capacity_known: bool) -> Option<usize> {
        if is_capacity_known {
            self.several.pop().or_else(|| self.single.pop())
        } else {
            self.single.pop().or_else(|| self.several.pop())
        }
    }
}

/// Runs those of `checks` that are asked of this plugin. The calling thread must have no children
/// that others wait for.
pub fn judge(settings: &Settings, checks: &[Check], manner: Manner<'_>) -> Report {
    let mut settings = settings.clone();
    let known = find_out(&mut settings);
    let settings = &settings;
    let newest = settings.description.newest();
    let is_asked = |check: &&Check| {
        let is_of_profile = manner.profiles.contains(&check.profile_in(newest));
        is_of_profile || manner.gate.covers(check.level_in(newest), check.harm)
    };
    let checks: Vec<&Check> = checks.iter().filter(is_asked).collect();
    let counts = checks.iter().map(|check| check.attachments);
    let most = counts.max().unwrap_or(1);
    let is_alone = known.reason.is_some() || known.refusal.is_some() || most == 1;
    let few: OnceLock<Option<(usize, String)>> = OnceLock::new();
    let find_few = || {
        few.get_or_init(|| {
            if is_alone {
                None
            } else {
                capacity(settings, most)
            }
        })
    };
    let queue = Mutex::new(Queue::new(&checks, newest));
    let take = || queue.lock().ok()?.take(few.get().is_some());
    let fault = Mutex::new(known.fault.clone());
    let results: Vec<Mutex<Option<Judged>>> = checks.iter().map(|_| Mutex::new(None)).collect();
    let progress = Progress {
        plugin: &settings.description.name,
        total: checks.len(),
        is_quiet: manner.is_quiet,
        done: AtomicUsize::new(0),
        failed: AtomicUsize::new(0),
        running: Mutex::default(),
    };
    let worker = || {
        while let Some(at) = take() {
            let check = checks[at];
            progress.begin(check.name);
            let few = if check.attachments > 1 {
                find_few().as_ref()
            } else {
                None
            };
            let (verdict, replay) = match lacks(check, &known, few) {
                Some(reason) => (Err(Stop::LeftOut(reason)), Replay::default()),
                None => World::with_patience(settings, check.run),
            };
            if let (Err(Stop::Unusable(why)), Ok(mut fault)) = (&verdict, fault.lock()) {
                fault.get_or_insert_with(|| format!("{}: {why}", check.name));
            }
            let judged = judged(check, settings, manner.excused, verdict, &replay);
            progress.end(&judged, manner.gate);
            if let Ok(mut result) = results[at].lock() {
                *result = Some(judged);
            }
        }
    };
    std::thread::scope(|scope| {
        let mut workers: Vec<_> = (0..manner.job_count(known.waits))
            .map(|_| scope.spawn(worker))
            .collect();
        workers.push(scope.spawn(|| {
            find_few();
        }));
        let mut told = Instant::now();
        while workers.iter().any(|worker| !worker.is_finished()) {
            sandbox::reap();
            std::thread::sleep(Duration::from_millis(10));
            if told.elapsed() > PROGRESS_INTERVAL {
                progress.tell();
                told = Instant::now();
            }
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
        unjudged: unjudged(settings, &known),
        checks,
        fault: fault.into_inner().ok().flatten(),
        refusal: known.refusal,
        few: few.into_inner().flatten(),
    }
}

/// Why nothing that matters could be judged, if so: a plugin that does nothing fails nothing.
fn unjudged(settings: &Settings, known: &Known) -> Option<String> {
    let description = &settings.description;
    let is_plain = known.reason.is_none() && known.refusal.is_none();
    let should_change = description.kind != Kind::Ipam && !description.stateless;
    (is_plain && should_change && !settings.changes).then(|| {
        "its ADD changes nothing that is compared, so nothing could be judged; `stateless` of a \
         description says that this is meant"
            .to_owned()
    })
}

/// The check that alone is asked where no ADD succeeds.
const FIRST: &str = "add_succeeds";

/// Why a check is left out, if so: none can be asked, or it has more attachments at once than there
/// could be. One that has a single attachment finds out itself.
fn lacks(check: &Check, known: &Known, few: Option<&(usize, String)>) -> Option<String> {
    if known.reason.is_some() {
        return known.reason.clone();
    }
    if let Some(refusal) = known.refusal.as_ref().filter(|_| check.name != FIRST) {
        return Some(refusal.clone());
    }
    let (had, refusal) = few?;
    let asked = check.attachments;
    (asked > *had).then(|| {
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
    excused: &BTreeMap<String, String>,
    verdict: Result<(), Stop>,
    replay: &Replay,
) -> Judged {
    let newest = settings.description.newest();
    let (basis, level) = (check.basis_in(newest), check.level_in(newest));
    let known = settings.description.known.get(check.name);
    let known = known.or_else(|| excused.get(check.name));
    let known = known.cloned().unwrap_or_default();
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
        harm: check.harm,
        profile: check.profile_in(newest),
        asks: check.asks,
        says: basis.map_or("", |basis| basis.text),
        tags: basis.map(|basis| basis.tags(newest)).unwrap_or_default(),
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
