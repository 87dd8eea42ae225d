//! docs/cni-contract.md, item 51: SIGKILL before each system call. What holds before a call holds after the one before
//! it.

use super::{Check, Quality, check};
use crate::description::Kind;
use crate::ensure;
use crate::world::{Stop, Traced, World};

pub const CHECKS: &[Check] = &[
    check(
        "killed_add_is_put_right",
        &[51, 123],
        Quality,
        "after an ADD that was killed at any system call, DEL succeeds, the host is as before, and an ADD succeeds",
        killed_add_is_put_right,
    ),
    check(
        "killed_del_is_put_right",
        &[51, 123],
        Quality,
        "after a DEL that was killed at any system call, DEL succeeds, the host is as before, and an ADD succeeds",
        killed_del_is_put_right,
    ),
    check(
        "killed_add_is_added_again",
        &[51, 121],
        Quality,
        "after an ADD that was killed at any system call, and without a DEL, another pod's ADD of another device succeeds",
        killed_add_is_added_again,
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

fn is_allowed() -> Result<(), Stop> {
    let status = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if status.trim() == "3" { Err(Stop::LeftOut("ptrace is not allowed here".to_owned())) } else { Ok(()) }
}

/// Kills `verb` at each point of the sample in a world of its own, where `aftermath` judges.
fn sweep(
    world: &World<'_>,
    verb: &str,
    aftermath: impl Fn(&World<'_>, &Traced) -> Result<(), Stop> + Sync,
) -> Result<(), Stop> {
    is_allowed()?;
    let once = |world: &World<'_>, victim: Option<usize>| -> Result<Traced, Stop> {
        let one = world.attachment(0)?;
        world.baseline()?;
        let call =
            if verb == "DEL" { world.del_call(&one, &world.add(&one)?) } else { world.call(verb, &one) };
        world.traced(&call, victim)
    };
    let whole = once(world, None)?;
    if whole.status != 0 {
        return Err(Stop::LeftOut(format!(
            "{verb} fails: exit status {}, {}",
            whole.status,
            whole.stdout.trim()
        )));
    }
    let points = sample(world, whole.calls);
    let (mut kills, mut failures, mut left_out) = (0, Vec::new(), Vec::new());
    for victim in &points {
        let (verdict, steps) = World::with(world.settings, |world| {
            let traced = once(world, Some(*victim))?;
            // A shorter run than the first one has no such call.
            if traced.killed.is_none() { Ok(0) } else { aftermath(world, &traced).map(|()| 1) }
        });
        match verdict {
            Ok(count) => kills += count,
            Err(Stop::LeftOut(reason) | Stop::Unusable(reason)) => {
                left_out.push(format!("call {victim} of {}: {reason}", whole.calls))
            }
            Err(Stop::Fails(seen)) => {
                if failures.is_empty() {
                    world.take_over(steps);
                }
                failures.push(format!("call {victim} of {}: {seen}", whole.calls));
            }
        }
    }
    let first = failures.first().cloned().unwrap_or_default();
    ensure!(failures.is_empty(), "killed before {first} ({} of {} kills)", failures.len(), points.len());
    // What could not be judged hides no failure, and is no success.
    match left_out.into_iter().next() {
        Some(reason) => Err(Stop::LeftOut(reason)),
        None if kills == 0 => Err(Stop::LeftOut("no system call was met".to_owned())),
        None => Ok(()),
    }
}

fn is_put_right(world: &World<'_>, traced: &Traced) -> Result<(), Stop> {
    let killed = traced.killed.as_deref().unwrap_or_default();
    let one = world.again(0)?;
    let before = world.kept_baseline();
    let ran = world.run(&world.call("DEL", &one))?;
    ensure!(ran.status == 0, "{killed}: DEL: {}", ran.told());
    world.is_as(&before, &format!("{killed}, then DEL"))?;
    // A meta plugin may leave the pod as it is.
    if world.description().kind != Kind::Meta {
        let ran = world.run(&world.call("ADD", &one))?;
        ensure!(ran.status == 0, "{killed}, then DEL: ADD: {}", ran.told());
        world.del(&one, &ran.result().map_err(Stop::Fails)?)?;
        world.is_as(&before, &format!("{killed}, then DEL, ADD, DEL"))?;
    }
    Ok(())
}

fn killed_add_is_put_right(world: &World<'_>) -> Result<(), Stop> {
    sweep(world, "ADD", is_put_right)
}

fn killed_del_is_put_right(world: &World<'_>) -> Result<(), Stop> {
    sweep(world, "DEL", is_put_right)
}

fn killed_add_is_added_again(world: &World<'_>) -> Result<(), Stop> {
    sweep(world, "ADD", |world, traced| {
        let killed = traced.killed.as_deref().unwrap_or_default();
        let other = world.attachment(1)?;
        let ran = world.run(&world.call("ADD", &other))?;
        ensure!(ran.status == 0, "{killed}: ADD of another pod: {}", ran.told());
        Ok(())
    })
}
