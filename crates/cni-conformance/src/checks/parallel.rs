//! Calls at the same time.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::call::Call;
use crate::check::{Check, Harm, extra, must, quality, spec};
use crate::description::Kind;
use crate::ensure;
use crate::settings::Stop;
use crate::world::{Attachment, World};

/// The heading of the specification.
const ORDER: &str = "lifecycle--ordering";

pub const CHECKS: &[Check] = &[
    spec(
        "adds_at_the_same_time",
        "eight simultaneous ADDs of eight pods succeed, and so do their DELs",
        &[must(
            "1.0.0",
            ORDER,
            "Plugins must handle being executed concurrently across different containers.",
        )],
        adds_at_the_same_time,
    )
    .harm(Harm::Pod)
    .with_attachments(COUNT),
    extra(
        "adds_at_the_same_time_leave_nothing",
        "after eight simultaneous ADDs and their DELs, the host is as before",
        "nobody finds what one of many pods left behind",
        adds_at_the_same_time_leave_nothing,
    )
    .harm(Harm::Leak)
    .with_attachments(COUNT),
    spec(
        "addresses_are_had_by_one",
        "eight simultaneous ADDs get eight addresses, if successive ones do",
        &[must(
            "1.0.0",
            ORDER,
            "If necessary, they must implement locking on shared resources (e.g. IPAM databases).",
        )],
        addresses_are_had_by_one,
    )
    .harm(Harm::Address)
    .with_attachments(COUNT),
    quality(
        "leases_differ",
        "pods that live at once have different addresses, unless the description says that the plugin is stateless",
        "no sentence says it in so many words, and a network does not work otherwise",
        leases_differ,
    )
    .harm(Harm::Address)
    .with_attachments(3),
    quality(
        "adds_of_one_pod_at_the_same_time",
        "eight simultaneous ADDs of one pod succeed, and so do their DELs",
        "a runtime must not do this, but containerd does",
        adds_of_one_pod_at_the_same_time,
    )
    .with_attachments(COUNT),
    quality(
        "dels_at_the_same_time",
        "eight simultaneous DELs of one attachment succeed",
        "a runtime must not do this, but a restarted one does not know of the first",
        dels_at_the_same_time,
    ),
    quality(
        "add_and_del_at_the_same_time",
        "after a simultaneous ADD and DEL of one attachment, a DEL succeeds and the host is as before",
        "a runtime must not do this, but one that gives up on an ADD sends the DEL while it still runs",
        add_and_del_at_the_same_time,
    ),
];

const COUNT: usize = 8;

fn all_at_once(world: &World<'_>, attachments: &[Attachment]) -> Result<Vec<Value>, Stop> {
    let calls: Vec<Call> = attachments
        .iter()
        .map(|one| world.call("ADD", one))
        .collect();
    let mut results = Vec::new();
    for ran in world.at_once(&calls)? {
        ensure!(
            world,
            ran.status == 0,
            "all_succeeded",
            "an ADD failed: {}",
            ran.told()
        );
        results.push(world.object(&ran)?);
    }
    Ok(results)
}

fn del_all(world: &World<'_>, attachments: &[Attachment], results: &[Value]) -> Result<(), Stop> {
    let calls: Vec<Call> = attachments
        .iter()
        .zip(results)
        .map(|(one, result)| world.del_call(one, result))
        .collect();
    for ran in world.at_once(&calls)? {
        ensure!(
            world,
            ran.status == 0,
            "all_succeeded",
            "a DEL failed: {}",
            ran.told()
        );
    }
    Ok(())
}

fn pods(world: &World<'_>) -> Result<Vec<Attachment>, Stop> {
    (0..COUNT).map(|n| world.attachment(n)).collect()
}

/// The same one after another works, and each DEL makes room again: what fails then, fails because
/// of the others.
fn one_after_another(world: &World<'_>, attachments: &[Attachment]) -> Result<Vec<Value>, Stop> {
    let results: Vec<_> = attachments
        .iter()
        .map(|one| world.add(one))
        .collect::<Result<_, _>>()?;
    for (one, result) in attachments.iter().zip(&results) {
        world.deleted(one, result)?;
    }
    Ok(results)
}

/// Pods that are added and deleted one after another, and those that are to be at once: a pod of a
/// meta plugin is used once.
fn tried(world: &World<'_>) -> Result<Vec<Attachment>, Stop> {
    let attachments = pods(world)?;
    one_after_another(world, &attachments)?;
    if world.description().kind != Kind::Meta {
        one_after_another(world, &attachments)?;
        return Ok(attachments);
    }
    (0..COUNT).map(|n| world.attachment(40 + n)).collect()
}

fn adds_at_the_same_time(world: &World<'_>) -> Result<(), Stop> {
    let attachments = tried(world)?;
    let results = all_at_once(world, &attachments)?;
    del_all(world, &attachments, &results)
}

fn adds_at_the_same_time_leave_nothing(world: &World<'_>) -> Result<(), Stop> {
    world.changes()?;
    let attachments = tried(world)?;
    let before = world.baseline()?;
    let calls: Vec<Call> = attachments
        .iter()
        .map(|one| world.call("ADD", one))
        .collect();
    let results = world.at_once(&calls)?;
    let calls: Vec<Call> = attachments
        .iter()
        .zip(&results)
        .map(|(one, ran)| world.del_call(one, &ran.result().unwrap_or_default()))
        .collect();
    if results
        .iter()
        .chain(&world.at_once(&calls)?)
        .any(|ran| ran.status != 0)
    {
        return Err(Stop::LeftOut(
            "a call at the same time as others fails".to_owned(),
        ));
    }
    world.is_as(&before, "after ADDs and DELs")
}

fn addresses_are_had_by_one(world: &World<'_>) -> Result<(), Stop> {
    world.keeps_leases()?;
    world.only(&[Kind::Ipam])?;
    let attachments = pods(world)?;
    let of = |results: &[Value]| -> Vec<String> {
        results
            .iter()
            .map(|result| result["ips"][0]["address"].to_string())
            .collect()
    };
    let is_distinct =
        |addresses: &[String]| addresses.iter().collect::<BTreeSet<_>>().len() == COUNT;
    one_after_another(world, &attachments)?;
    let one_by_one = of(&one_after_another(world, &attachments)?);
    if !is_distinct(&one_by_one) {
        let one_by_one = one_by_one.join(", ");
        return Err(Stop::LeftOut(format!(
            "one after another, pods get these addresses: {one_by_one}"
        )));
    }
    for _ in 0..2 {
        let results = all_at_once(world, &attachments)?;
        let addresses = of(&results);
        let shell = "all_differ '.ips[0].address'";
        ensure!(
            world,
            is_distinct(&addresses),
            shell,
            "the addresses are {}",
            addresses.join(", ")
        );
        del_all(world, &attachments, &results)?;
    }
    Ok(())
}

fn leases_differ(world: &World<'_>) -> Result<(), Stop> {
    world.keeps_leases()?;
    world.only(&[Kind::Ipam])?;
    let mut holders: BTreeMap<String, String> = BTreeMap::new();
    for n in 0..3 {
        let one = world.attachment(n)?;
        let result = world.add(&one)?;
        if result["ips"][0].is_null() {
            return Err(Stop::LeftOut(format!("no address in {result}")));
        }
        for ip in result["ips"].as_array().into_iter().flatten() {
            let address = ip["address"].as_str().unwrap_or_default();
            let shell = format!("! answer '.ips[] | select(.address == \"{address}\")'");
            let other = holders.insert(address.to_owned(), one.container.clone());
            ensure!(
                world,
                other.is_none(),
                shell,
                "{address} was given to {} while {} has it; `stateless` of a description says that this is meant",
                one.container,
                other.unwrap_or_default()
            );
        }
    }
    Ok(())
}

fn adds_of_one_pod_at_the_same_time(world: &World<'_>) -> Result<(), Stop> {
    let mut attachments = vec![world.attachment(0)?];
    for n in 1..COUNT {
        attachments.push(world.attachment_in(n, "c0", &format!("net{}", n + 1))?);
    }
    let results = all_at_once(world, &attachments)?;
    del_all(world, &attachments, &results)
}

fn dels_at_the_same_time(world: &World<'_>) -> Result<(), Stop> {
    world.dels()?;
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    let calls: Vec<Call> = (0..COUNT).map(|_| world.del_call(&one, &result)).collect();
    for ran in world.at_once(&calls)? {
        ensure!(
            world,
            ran.status == 0,
            "all_succeeded",
            "a DEL failed: {}",
            ran.told()
        );
    }
    Ok(())
}

/// A runtime that gave up an ADD sends the DEL while the ADD still runs.
fn add_and_del_at_the_same_time(world: &World<'_>) -> Result<(), Stop> {
    world.changes()?;
    for round in 0..4 {
        let one = world.attachment(round)?;
        let before = world.baseline_of(90 + round)?;
        let calls = [world.call("ADD", &one), world.call("DEL", &one)];
        world.at_once(&calls)?;
        let ran = world.run(&world.call("DEL", &one))?;
        ensure!(
            world,
            ran.status == 0,
            "succeeded",
            "the DEL after both: {}",
            ran.told()
        );
        world.is_as(&before, "after the last DEL")?;
    }
    Ok(())
}
