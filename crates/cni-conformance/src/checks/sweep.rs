//! SIGKILL before system calls: of the process that the runtime started, and of those that it
//! started itself.

use super::{Check, extra};
use crate::description::Kind;
use crate::ensure;
use crate::tracer::Who;
use crate::world::{Stop, Traced, World};

/// Why it is asked.
const OF_KILLS: &str = "runtimes kill plugins that they give up on, and a node without memory kills any process. A kill before one system call is a kill after the one before it";

pub const CHECKS: &[Check] = &[
    extra(
        "killed_add_is_put_right",
        "after an ADD killed at any system call, DEL succeeds, the host is as before, and ADD succeeds again",
        OF_KILLS,
        |world| sweep(world, "ADD", Who::Main, is_put_right),
    ),
    extra(
        "killed_child_of_add_is_put_right",
        "the same after an ADD of which a child process was killed",
        OF_KILLS,
        |world| sweep(world, "ADD", Who::Child, is_put_right),
    ),
    extra(
        "killed_del_is_put_right",
        "after a DEL killed at any system call, DEL succeeds, the host is as before, and ADD succeeds again",
        OF_KILLS,
        |world| sweep(world, "DEL", Who::Main, is_put_right),
    ),
    extra(
        "killed_child_of_del_is_put_right",
        "the same after a DEL of which a child process was killed",
        OF_KILLS,
        |world| sweep(world, "DEL", Who::Child, is_put_right),
    ),
    extra(
        "killed_add_is_added_again",
        "after an ADD killed at any system call, and without a DEL, another pod's ADD of another device succeeds",
        OF_KILLS,
        |world| sweep(world, "ADD", Who::Main, another_is_added),
    )
    .with_attachments(2),
];

/// Those of `calls` system calls that are tried.
fn sample(world: &World<'_>, calls: usize) -> Vec<usize> {
    match world.settings.sample {
        Some(count) if count < calls => (0..count).map(|at| 1 + at * calls / count).collect(),
        _ => (1..=calls).collect(),
    }
}

fn left_out<T>(reason: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::LeftOut(reason.into()))
}

fn is_allowed() -> Result<(), Stop> {
    let status = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if status.trim() == "3" {
        left_out("ptrace is not allowed here")
    } else {
        Ok(())
    }
}

type Aftermath = fn(&World<'_>, &str) -> Result<(), Stop>;

/// Kills `who` of `verb` at each point of the sample in a world of its own, where `aftermath`
/// judges. What is not as it should be without a kill is not asked with one.
fn sweep(world: &World<'_>, verb: &str, who: Who, aftermath: Aftermath) -> Result<(), Stop> {
    is_allowed()?;
    world.changes()?;
    let once = |world: &World<'_>, victim: Option<usize>| -> Result<Traced, Stop> {
        let one = world.attachment(0)?;
        world.baseline()?;
        let call = if verb == "DEL" {
            world.del_call(&one, &world.add(&one)?)
        } else {
            world.call(verb, &one)
        };
        world.traced(&call, victim.map(|victim| (who, victim)))
    };
    let whole = once(world, None)?;
    if whole.status != 0 {
        return left_out(format!(
            "{verb} fails: exit status {}, {}",
            whole.status,
            whole.stdout.trim()
        ));
    }
    let calls = whole.calls[who as usize];
    if calls == 0 {
        return left_out(format!("its {verb} starts no other process"));
    }
    match aftermath(world, "without a kill") {
        Ok(()) => (),
        Err(Stop::Fails(seen) | Stop::Hung(seen) | Stop::LeftOut(seen)) => return left_out(seen),
        Err(unusable) => return Err(unusable),
    }
    let points = sample(world, calls);
    let (mut kills, mut failures, mut others) = (0, Vec::new(), Vec::new());
    for victim in &points {
        let (verdict, _) = World::with_patience(world.settings, |world| {
            let traced = once(world, Some(*victim))?;
            // A shorter run than the first one has no such call.
            let Some(name) = traced.killed else {
                return Ok(0);
            };
            aftermath(world, &told(verb, who, &name, traced.status)).map(|()| 1)
        });
        let at = format!("call {victim} of {calls}");
        match verdict {
            Ok(count) => kills += count,
            Err(Stop::LeftOut(reason) | Stop::Unusable(reason)) => {
                others.push(format!("{at}: {reason}"))
            }
            Err(Stop::Fails(seen) | Stop::Hung(seen)) => failures.push(format!("{at}: {seen}")),
        }
    }
    let first = failures.first().cloned().unwrap_or_default();
    ensure!(
        world,
        failures.is_empty(),
        "",
        "before {first} ({} of {} kills)",
        failures.len(),
        points.len()
    );
    // What could not be judged hides no failure, and is no success.
    match others.into_iter().next() {
        Some(reason) => left_out(reason),
        None if kills == 0 => left_out("no system call was met"),
        None => Ok(()),
    }
}

/// Who was killed, and what became of the call.
fn told(verb: &str, who: Who, name: &str, status: i32) -> String {
    match who {
        Who::Main => format!("{verb} itself ({name}) was killed"),
        Who::Child if status > 128 => {
            format!(
                "{name}, which {verb} had started, was killed, and {verb} ended by signal {}",
                status - 128
            )
        }
        Who::Child => {
            format!(
                "{name}, which {verb} had started, was killed, and {verb} ended by itself with exit status {status}"
            )
        }
    }
}

fn is_put_right(world: &World<'_>, killed: &str) -> Result<(), Stop> {
    let one = world.again(0)?;
    let before = world.kept_baseline();
    let ran = world.run(&world.call("DEL", &one))?;
    ensure!(world, ran.status == 0, "", "{killed}: DEL: {}", ran.told());
    world.is_as(&before, &format!("{killed}, then DEL"))?;
    // A meta plugin may leave the pod as it is.
    if world.description().kind != Kind::Meta {
        let ran = world.run(&world.call("ADD", &one))?;
        ensure!(
            world,
            ran.status == 0,
            "",
            "{killed}, then DEL: ADD: {}",
            ran.told()
        );
        let result = world.object(&ran)?;
        world.del(&one, &result)?;
        world.is_as(&before, &format!("{killed}, then DEL, ADD, DEL"))?;
    }
    Ok(())
}

fn another_is_added(world: &World<'_>, killed: &str) -> Result<(), Stop> {
    let other = world.attachment(1)?;
    let ran = world.run(&world.call("ADD", &other))?;
    ensure!(
        world,
        ran.status == 0,
        "",
        "{killed}: ADD of another pod: {}",
        ran.told()
    );
    Ok(())
}
