//! docs/cni-contract.md, items 117 and 121 to 123: calls at the same time.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Check, Must, Quality, check};
use crate::call::Call;
use crate::description::Kind;
use crate::ensure;
use crate::world::{Attachment, Stop, World};

pub const CHECKS: &[Check] = &[
    check(
        "adds_at_the_same_time",
        &[121, 123],
        Must,
        "eight ADDs of eight pods at the same time succeed, and their DELs",
        adds_at_the_same_time,
    )
    .with_attachments(COUNT),
    check(
        "addresses_are_had_by_one",
        &[117],
        Must,
        "eight ADDs at the same time get eight addresses",
        addresses_are_had_by_one,
    )
    .with_attachments(COUNT),
    check(
        "adds_of_one_pod_at_the_same_time",
        &[122],
        Quality,
        "eight ADDs of one pod at the same time succeed, and their DELs: containerd does not wait",
        adds_of_one_pod_at_the_same_time,
    )
    .with_attachments(COUNT),
    check(
        "dels_at_the_same_time",
        &[76, 105],
        Quality,
        "eight DELs of one attachment at the same time succeed",
        dels_at_the_same_time,
    ),
    check(
        "add_and_del_at_the_same_time",
        &[83],
        Quality,
        "after an ADD and a DEL of one attachment at the same time, a DEL succeeds and the host is as before",
        add_and_del_at_the_same_time,
    ),
];

const COUNT: usize = 8;

fn all_at_once(world: &World<'_>, attachments: &[Attachment]) -> Result<Vec<Value>, Stop> {
    let calls: Vec<Call> = attachments.iter().map(|one| world.call("ADD", one)).collect();
    let mut results = Vec::new();
    for ran in world.at_once(&calls)? {
        ensure!(ran.status == 0, "an ADD failed: {}", ran.told());
        results.push(ran.result().map_err(Stop::Fails)?);
    }
    Ok(results)
}

fn del_all(world: &World<'_>, attachments: &[Attachment], results: &[Value]) -> Result<(), Stop> {
    let calls: Vec<Call> =
        attachments.iter().zip(results).map(|(one, result)| world.del_call(one, result)).collect();
    for ran in world.at_once(&calls)? {
        ensure!(ran.status == 0, "a DEL failed: {}", ran.told());
    }
    Ok(())
}

fn pods(world: &World<'_>) -> Result<Vec<Attachment>, Stop> {
    (0..COUNT).map(|n| world.attachment(n)).collect()
}

fn adds_at_the_same_time(world: &World<'_>) -> Result<(), Stop> {
    let attachments = pods(world)?;
    let before = world.baseline()?;
    let results = all_at_once(world, &attachments)?;
    del_all(world, &attachments, &results)?;
    world.is_as(&before, "after ADDs and DELs")
}

fn addresses_are_had_by_one(world: &World<'_>) -> Result<(), Stop> {
    world.keeps_leases()?;
    world.only(&[Kind::Ipam])?;
    let attachments = pods(world)?;
    for _ in 0..3 {
        let results = all_at_once(world, &attachments)?;
        let addresses: Vec<_> =
            results.iter().map(|result| result["ips"][0]["address"].to_string()).collect();
        let distinct: BTreeSet<_> = addresses.iter().collect();
        ensure!(distinct.len() == COUNT, "the addresses are {}", addresses.join(", "));
        del_all(world, &attachments, &results)?;
    }
    Ok(())
}

fn adds_of_one_pod_at_the_same_time(world: &World<'_>) -> Result<(), Stop> {
    let mut attachments = vec![world.attachment(0)?];
    for n in 1..COUNT {
        attachments.push(world.attachment_in(n, "c0", &format!("net{}", n + 1))?);
    }
    let before = world.baseline()?;
    let results = all_at_once(world, &attachments)?;
    del_all(world, &attachments, &results)?;
    world.is_as(&before, "after ADDs and DELs")
}

fn dels_at_the_same_time(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let before = world.baseline()?;
    let result = world.add(&one)?;
    let calls: Vec<Call> = (0..COUNT).map(|_| world.del_call(&one, &result)).collect();
    for ran in world.at_once(&calls)? {
        ensure!(ran.status == 0, "a DEL failed: {}", ran.told());
    }
    world.is_as(&before, "after the DELs")
}

/// A runtime that gave up an ADD sends the DEL while the ADD still runs.
fn add_and_del_at_the_same_time(world: &World<'_>) -> Result<(), Stop> {
    for round in 0..4 {
        let one = world.attachment(round)?;
        let before = world.baseline_of(90 + round)?;
        let calls = [world.call("ADD", &one), world.call("DEL", &one)];
        world.at_once(&calls)?;
        let ran = world.run(&world.call("DEL", &one))?;
        ensure!(ran.status == 0, "the DEL after both: {}", ran.told());
        world.is_as(&before, "after the last DEL")?;
    }
    Ok(())
}
