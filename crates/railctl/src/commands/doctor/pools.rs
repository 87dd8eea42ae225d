//! Checks of addresses: what the plan allocates to this node, and its leases.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use anyhow::Result;

use super::networks::Network;
use super::node::has_ipv6;
use super::{Check, Findings, count, routes};
use crate::commands::inventory::{Attached, Inventory};
use rail_cni::attach::attachments::Attachment;
use rail_cni::files;
use rail_cni::ipam::lease::{Holder, Lease};
use rail_cni::ipam::table;
use rail_cni::netns::Life;
use rail_cni::node::Node;
use rail_cni::pool::store::{Store, refuse_closed};
use rail_cni::pool::{Allocation, rail_in};

/// Number of other nodes in the store whose pools are compared with this node's; a large store is
/// not read completely.
const OTHER_NODES: usize = 200;
/// Clocks are set in steps; a smaller difference than this does no harm.
const STEP: Duration = Duration::from_secs(60);

/// Makes all checks of this file.
pub fn check(node: &Node, inventory: &Inventory, networks: &[Network], found: &mut Findings) {
    let node_name = match rail_cni::pool::node_name(node) {
        Ok(name) => name,
        Err(error) => {
            return found.add(Check::fail(
                "pools",
                format!("{error:#}"),
                "set nodeName in node.json",
            ));
        }
    };
    let pools = pools(node, &node_name, inventory, found).unwrap_or_else(|error| {
        found.add(Check::fail(
            "pools",
            format!("{error:#}"),
            "correct that: until then no ADD gets an address",
        ));
        BTreeMap::new()
    });
    routes::check(node, &pools, inventory, networks, found);
    if let Err(error) = leases(node, &node_name, &pools, inventory, found) {
        found.add(Check::fail(
            "leases",
            format!("{error:#}"),
            "correct that: until then ADDs in that pool fail",
        ));
    }
}

/// Whether the plan has closed this node. `railctl wait` does not ask: what opens the node may only
/// start after it.
pub fn check_closed(node: &Node, found: &mut Findings) {
    let Ok(node_name) = rail_cni::pool::node_name(node) else {
        return;
    };
    if let Err(error) = refuse_closed(node, &node_name) {
        let remedy = "add this node to the plan, which rail-agent, `railctl plan` or `railctl import` \
            writes";
        found.add(Check::fail("pools", format!("{error:#}"), remedy));
    }
}

/// Checks the allocations of this node, and returns them by pool.
fn pools(
    node: &Node,
    node_name: &str,
    inventory: &Inventory,
    found: &mut Findings,
) -> Result<BTreeMap<String, Allocation>> {
    let name = "pools";
    let mut pools = BTreeMap::new();
    let store = Store::open(node)?;
    let ours = store.pools(node_name)?;
    if store.is_unfinished() {
        let text = "a plan is being written to the store, or a write was interrupted: some nodes may still have the previous plan";
        found.add(Check::warn(
            name,
            text,
            "if this lasts longer than a minute, write the plan again",
        ));
    }
    for (pool, allocation) in ours.iter().zip(store.find(node_name, &ours)?) {
        match allocation {
            Ok(Some(allocation)) => drop(pools.insert(pool.clone(), allocation)),
            Ok(None) => (),
            Err(error) => {
                found.add(Check::fail(
                    name,
                    format!("pool {pool}: {error:#}"),
                    "run `railctl import` for it again",
                ));
            }
        }
    }
    let mut others = store.some_nodes(OTHER_NODES + 2);
    let near = store.near(node_name);
    if ours.is_empty() && !node.rails.is_empty() && !node.rails.iter().any(|rail| rail.pool) {
        found.add(Check::skip(
            name,
            "node.json leaves the addresses of all rails to another IPAM plugin",
        ));
        return Ok(pools);
    }
    if ours.is_empty() {
        let text = format!("node {node_name} has no allocation in any pool");
        let file = rail_cni::node::path();
        found.add(match &near[..] {
            [] => {
                let others = store.some_names(node_name);
                let others = others.map_or_else(String::new, |some| format!(", but the store has {some}"));
                let remedy = "run `railctl import` with its plan, or correct nodeName in node.json";
                Check::fail(name, text + &others, remedy)
            }
            [one] => {
                let text = format!("{text}, but the store has a directory {one}: names must match exactly");
                let remedy = format!(
                    "if that is this node, set `\"nodeName\": \"{one}\"` in {}; else correct the plan",
                    file.display()
                );
                Check::fail(name, text, remedy)
            }
            some => {
                let remedy = "names must match exactly: correct the plan, or nodeName in node.json";
                Check::fail(
                    name,
                    format!("{text}, but the store has the directories {}", some.join(", ")),
                    remedy,
                )
            }
        });
        return Ok(pools);
    }
    // A pool in which other nodes have an allocation, but this node has none.
    let mut lacking: BTreeMap<String, Vec<String>> = BTreeMap::new();
    others.retain(|other| other != node_name);
    for other in others.iter().take(OTHER_NODES) {
        for pool in store
            .pools(other)?
            .into_iter()
            .filter(|pool| !ours.contains(pool))
        {
            lacking.entry(pool).or_default().push(other.clone());
        }
    }
    for (pool, mut who) in lacking {
        let hint = near.iter().find(|near| who.contains(near));
        let hint = hint.map_or_else(String::new, |near| {
            format!("; is this node called {near} in the plan?")
        });
        who.truncate(3);
        let text = format!(
            "node {node_name} is not in pool {pool}, which {} has{hint}",
            who.join(", ")
        );
        found.add(Check::fail(
            name,
            text,
            "correct the plan, and run `railctl import`",
        ));
    }
    for (pool, allocation) in &pools {
        if allocation.first_free(|_| false).is_none() {
            let text = format!("{:#}", allocation.no_host(pool));
            found.add(Check::fail(
                name,
                text,
                "correct the plan, and run `railctl import`",
            ));
        }
        let overlaps = |other: &Allocation| {
            let (one, other) = (allocation.prefix, other.prefix);
            one.contains(&other.network()) || other.contains(&one.network())
        };
        for (other, _) in pools
            .iter()
            .filter(|(other, that)| *other > pool && overlaps(that))
        {
            let text = format!("pools {pool} and {other} overlap at {}", allocation.prefix);
            found.add(Check::fail(
                name,
                text,
                "correct the plan: two rails would have the same address",
            ));
        }
        if !allocation.is_ipv4() && !has_ipv6() {
            let text = format!("pool {pool} is IPv6, but this kernel has no IPv6");
            found.add(Check::fail(name, text, "boot without ipv6.disable=1"));
        }
    }
    rails_without_pool(node, &pools, inventory, found);
    let all: Vec<_> = pools.keys().map(String::as_str).collect();
    let mut text = format!(
        "node {node_name} has {}: {}",
        count(all.len(), "allocation"),
        all.join(", ")
    );
    if others.len() > OTHER_NODES {
        text += &format!("; compared with {OTHER_NODES} of the other nodes in the store");
    }
    found.ok_unless_reported(name, text);
    Ok(pools)
}

/// Checks that each rail of node.json has a pool, as far as the pools say which rail they are for.
fn rails_without_pool(
    node: &Node,
    pools: &BTreeMap<String, Allocation>,
    inventory: &Inventory,
    found: &mut Findings,
) {
    let name = "pools";
    let of: Vec<Option<u8>> = pools
        .iter()
        .map(|(pool, allocation)| allocation.rail.or_else(|| rail_in(pool)))
        .collect();
    let listed: BTreeSet<u8> = inventory
        .rails
        .iter()
        .filter_map(|rail| rail.rail)
        .collect();
    let has = |rail: u8| of.contains(&Some(rail));
    let both: Vec<_> = pools
        .iter()
        .filter_map(|(pool, one)| Some((pool, one.rail?, rail_in(pool)?)))
        .collect();
    // All pools may count from 1, for example.
    let shift = |(_, planned, named): &(&String, u8, u8)| i16::from(*named) - i16::from(*planned);
    let is_alike = both.windows(2).all(|two| shift(&two[0]) == shift(&two[1])) && both.len() > 1;
    for (pool, planned, named) in both.iter().filter(|one| shift(one) != 0 && !is_alike) {
        let text = format!(
            "pool {pool} is planned for rail {planned}: a network of rail {named} with it is refused"
        );
        found.add(Check::fail(
            name,
            text,
            "correct the name of the pool or the plan, and import it",
        ));
    }
    for (pool, allocation) in pools {
        if let Some(rail) = allocation
            .rail
            .filter(|rail| !listed.is_empty() && !listed.contains(rail))
        {
            let text = format!(
                "pool {pool} is planned for rail {rail}, which node.json does not list: its pods are refused"
            );
            found.add(Check::fail(
                name,
                text,
                "add the rail to node.json, or correct the plan",
            ));
        }
    }
    let expected: BTreeSet<u8> = node
        .rails
        .iter()
        .filter(|rail| rail.pool)
        .map(|one| one.rail)
        .collect();
    let missing: Vec<_> = expected
        .iter()
        .filter(|rail| !has(**rail))
        .map(u8::to_string)
        .collect();
    if missing.is_empty() {
        return;
    }
    let rails = format!(
        "rail{} {}",
        if missing.len() == 1 { "" } else { "s" },
        missing.join(", ")
    );
    found.add(if of.contains(&None) {
        Check::skip(
            name,
            format!("no pool names {rails}, but some pools do not name their rail"),
        )
    } else {
        Check::fail(
            name,
            format!("there is no pool for {rails}"),
            "run `railctl import` with its plan, or correct node.json; with another IPAM plugin, `\"pool\": false` there",
        )
    });
}

/// The pool that has the address of this lease today, if that is another one than at ADD.
fn renamed_to<'a>(lease: &Lease, pools: &'a BTreeMap<String, Allocation>) -> Option<&'a str> {
    let (name, _) = pools
        .iter()
        .find(|(_, allocation)| allocation.prefix.contains(&lease.address))?;
    (*name != lease.pool && !lease.pool.is_empty()).then_some(name)
}

fn leases(
    node: &Node,
    node_name: &str,
    pools: &BTreeMap<String, Allocation>,
    inventory: &Inventory,
    found: &mut Findings,
) -> Result<()> {
    let name = "leases";
    let (mut dead, mut live, mut of_others) = (0, Vec::new(), 0);
    for (_, lease) in table::read_all(node)? {
        let lease = match lease {
            Ok(lease) => lease,
            Err(why) => {
                found.add(Check::fail(name, why, "no pod gets its address"));
                continue;
            }
        };
        let pool = &lease.pool;
        let life = lease.life(node)?;
        if life == Life::Dead {
            dead += 1;
            continue;
        }
        // The check `records` tells of a device that has not come back.
        let is_told = |one: &Attached| one.is_missing() && is_of(&lease, &one.record);
        let is_told = inventory.attachments.iter().any(is_told);
        if let (Life::Unknown(why), false) = (life, is_told) {
            let text = format!(
                "pool {pool}: {}: cannot tell whether {} is alive: {why}",
                lease.address, lease.holder
            );
            let remedy = format!(
                "if that pod is gone, run `railctl release --address {} --force`",
                lease.address
            );
            let text = text + "; no pod gets the address";
            found.add(Check::fail(name, text, remedy));
        }
        let what = || format!("pool {pool}: {} of {}", lease.address, lease.holder);
        if lease.node_name != node_name && !lease.node_name.is_empty() {
            let text = format!(
                "{} was leased when this node was named {}",
                what(),
                lease.node_name
            );
            found.add(Check::warn(
                name,
                text,
                "running pods need nothing; new ones need the plan under today's name",
            ));
        } else if let Some(now) = renamed_to(&lease, pools) {
            let text = format!("{} was leased before this pool was named {now}", what());
            found.add(Check::warn(
                name,
                text,
                "running pods need nothing, and the address is not given again before they end",
            ));
        } else if pools
            .get(pool)
            .is_some_and(|ours| !ours.prefix.contains(&lease.address))
        {
            let text = format!("{} is outside the current plan", what());
            found.add(Check::warn(
                name,
                text,
                "restart the pod, which keeps the address until it \
                    ends",
            ));
        }
        of_others += usize::from(
            !inventory
                .attachments
                .iter()
                .any(|one| is_of(&lease, &one.record)),
        );
        live.push(lease);
    }
    if dead > 0 {
        let text = format!("{} of pods that are gone", count(dead, "lease"));
        let remedy =
            "the next ADD takes over the address; to release it now, run `railctl release --dead`";
        found.add(Check::warn(name, text, remedy));
    }
    for one in inventory.attachments.iter().filter(|one| one.is_live()) {
        let record = &one.record;
        if record.is_by_rail_ipam() && !live.iter().any(|lease| is_of(lease, record)) {
            let text = format!("the address of {} has no lease", record.owner.describe());
            found.add(Check::fail(
                name,
                text,
                "restart the pod: another one may get the same address",
            ));
        }
    }
    let others = match of_others {
        0 => String::new(),
        some => format!(", {some} of attachments of another plugin"),
    };
    found.ok_unless_reported(
        name,
        format!(
            "{}, none of a pod that is gone{others}",
            count(live.len(), "lease")
        ),
    );
    clock(&live, inventory, found);
    Ok(())
}

fn is_of(lease: &Lease, record: &Attachment) -> bool {
    let (
        owner,
        Holder {
            network,
            container_id,
            ifname,
            ..
        },
    ) = (&record.owner, &lease.holder);
    (network, container_id, ifname) == (&owner.network, &owner.container_id, &owner.ifname)
}

/// Warns of a wrong clock.
fn clock(live: &[Lease], inventory: &Inventory, found: &mut Findings) {
    let now = SystemTime::now();
    let boot = now
        .checked_sub(files::since_boot())
        .unwrap_or(SystemTime::UNIX_EPOCH);
    let records = inventory.attachments.iter().filter(|one| one.is_live());
    let all: Vec<_> = live
        .iter()
        .map(|lease| lease.since.as_str())
        .chain(records.map(|one| one.record.owner.since.as_str()))
        .collect();
    let is_wrong = |since: &&&str| match humantime::parse_rfc3339(since) {
        Ok(since) => since > now + STEP || since + STEP < boot,
        Err(_) => true,
    };
    let wrong: Vec<_> = all.iter().filter(is_wrong).collect();
    if let Some(first) = wrong.first() {
        let text = format!(
            "{} of {} leases and records have a time in the future or before the boot, such as {first}: the clock was \
             changed",
            wrong.len(),
            all.len()
        );
        found.add(Check::warn(
            "clock",
            text,
            "set the clock before pods start; no decision depends on these times",
        ));
    }
}
