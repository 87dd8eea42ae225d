//! Leases of resource claims. A DRA driver such as DRANET prepares the device of a claim before the
//! pod has a sandbox, so there is no namespace by which to tell whether the holder lives. Such a
//! lease belongs to the claim, and whoever made it releases it: nothing else takes it over while
//! this boot lasts.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use anyhow::Result;

use super::lease::{self, Ask, Claim, Holder};
use super::{assign, table};
use crate::cni::Attachment;
use crate::node::{Judged, Node};
use crate::pool::store::{self, Store};
use crate::pool::{Allocation, node_name, rail_in};
use crate::sysfs::{DeviceId, Function};
use crate::{fail, failure};

/// A driver's request for a device.
#[derive(Debug)]
pub struct Request {
    /// UID of the claim, and name of the device.
    pub device: Attachment,
    /// The rest of the lease.
    pub claim: Claim,
    /// The pod as `namespace/name`, for messages.
    pub pod: Option<String>,
    /// Pools, or none for those of the rail that the device is on.
    pub pools: Vec<String>,
    /// The addresses that the claim requests.
    pub requested: Vec<(IpAddr, Option<u8>)>,
}

/// The addresses of a device.
#[derive(Debug)]
pub struct Given {
    /// The rail that the device is on, where node.json lists rails.
    pub rail: Option<u8>,
    /// In each pool: its name, its allocation, the address, and for each route whether another rail
    /// has it, too.
    pub addresses: Vec<(String, Allocation, IpAddr, Vec<bool>)>,
}

/// Leases addresses to a device of a claim, or returns those that it has.
pub fn take(node: &Node, request: Request) -> Result<Given> {
    let node_name = node_name(node)?;
    let function = function(node, &request.claim)?;
    let rail = rail_of(node, &function)?;
    check_policy(node, &function, rail)?;
    let holder = Holder::of_claim(&request.device, request.claim.clone(), request.pod);
    // Each further turn means that another plan was written just now.
    let (all, pools, asks, addresses) = loop {
        let all = allocations(node, &node_name, &request.pools, rail)?;
        let pools = pools(&all, &request.pools, rail, &node_name)?;
        let planned = pools
            .iter()
            .filter_map(|pool| all.get(pool).cloned())
            .collect();
        let asks = Ask::all(pools.clone(), planned, &request.requested)?;
        let held = table::held_by(node, lease::OF_CLAIMS, &request.device)?;
        let is_held = |pool: &String| held.iter().any(|lease| lease.pool == *pool);
        // A claim that is prepared again may be that of a running pod, which has the device.
        if !pools.iter().all(is_held) {
            store::refuse_closed(node, &node_name)?;
            if let Some(why) = request.claim.is_away(node)? {
                fail!(TryAgain, "{why}");
            }
        }
        let is_current = || Ok(allocations(node, &node_name, &request.pools, rail)? == all);
        if let Some(addresses) = assign::take(node, &node_name, &asks, &holder, is_current)? {
            break (all, pools, asks, addresses);
        }
    };
    let given = pools
        .iter()
        .zip(asks)
        .zip(addresses)
        .map(|((pool, ask), address)| {
            let is_shared = |dst| {
                all.iter()
                    .any(|(other, one)| !pools.contains(other) && one.leads_to(dst))
            };
            let shared = ask
                .allocation
                .routes
                .iter()
                .map(|route| is_shared(route.dst))
                .collect();
            (pool.clone(), ask.allocation, address, shared)
        });
    Ok(Given {
        rail,
        addresses: given.collect(),
    })
}

/// PCI addresses of the devices that claims hold. A claim that has ended counts until its lease is
/// released, which is refused while a pod has the device: until then, the device does not look lost.
pub fn devices(node: &Node) -> Result<HashSet<String>> {
    let mut devices = HashSet::new();
    for (_, lease) in table::read_all(node)? {
        // `doctor` and `railctl leases` report a lease that cannot be read.
        let Ok(lease) = lease else { continue };
        if !lease.is_dead(node)? {
            devices.extend(lease.holder.claim.map(|claim| claim.function));
        }
    }
    Ok(devices)
}

/// The allocations of this node in the store. An unreadable file of another pool is no error.
fn allocations(
    node: &Node,
    node_name: &str,
    named: &[String],
    rail: Option<u8>,
) -> Result<BTreeMap<String, Allocation>> {
    let is_of_others = |pool: &String| match named {
        [] => rail_in(pool).is_some_and(|of| Some(of) != rail),
        named => !named.contains(pool),
    };
    let mut all = BTreeMap::new();
    for (pool, found) in Store::open(node)?.everything(node_name)? {
        match found {
            Ok(Some(allocation)) => drop(all.insert(pool, allocation)),
            Ok(None) => (),
            Err(error) if is_of_others(&pool) => log::warn!("{error:#}"),
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

fn function(node: &Node, claim: &Claim) -> Result<Function> {
    let Some(id @ DeviceId::Pci(_)) = DeviceId::parse(&claim.function) else {
        fail!(InvalidConfig, "{:?} is not a PCI address", claim.function)
    };
    let found = Function::find(&node.sysfs_root, &id)?;
    found.ok_or_else(|| failure!(InvalidConfig, "this node has no device {}", claim.function))
}

/// The rail that the device is on; `None` where node.json lists no rails.
fn rail_of(node: &Node, function: &Function) -> Result<Option<u8>> {
    if node.rails.is_empty() {
        return Ok(None);
    }
    let what = &function.id;
    let Some(pf) = function.pf(&node.sysfs_root)? else {
        fail!(InvalidConfig, "{what} has no PF")
    };
    let rails: Vec<_> = node
        .rails
        .iter()
        .filter(|one| pf.is(&one.pf))
        .map(|one| one.rail)
        .collect();
    match rails[..] {
        [rail] => Ok(Some(rail)),
        [] => fail!(
            InvalidConfig,
            "{what} ({}) is on no rail of node.json",
            pf.address
        ),
        _ => fail!(
            InvalidConfig,
            "{what} ({}) is on the rails {rails:?} of node.json",
            pf.address
        ),
    }
}

/// Applies node.json's policy for networks to claims.
fn check_policy(node: &Node, function: &Function, rail: Option<u8>) -> Result<()> {
    let pf = function.pf(&node.sysfs_root)?;
    node.policy.check_rail(&function.id, rail)?;
    let what = function.id.clone();
    node.policy.check_device(&Judged {
        what,
        function: Some(function),
        pf: pf.as_ref(),
        kind: None,
    })
}

/// The pools that are meant: those that are named, or those of the rail, at most one of each
/// family.
fn pools(
    all: &BTreeMap<String, Allocation>,
    named: &[String],
    rail: Option<u8>,
    node_name: &str,
) -> Result<Vec<String>> {
    let of = |pool: &String, allocation: &Allocation| allocation.rail.or_else(|| rail_in(pool));
    let list = |pools: Vec<&String>| {
        pools
            .into_iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let is_doubled = |pools: &[&String]| {
        let families: Vec<_> = pools
            .iter()
            .filter_map(|pool| all.get(*pool))
            .map(Allocation::is_ipv4)
            .collect();
        families.len() > 2
            || families
                .first()
                .is_some_and(|first| families[1..].contains(first))
    };
    if let Some(missing) = named.iter().find(|pool| !all.contains_key(*pool)) {
        let known = list(all.keys().collect());
        // The code by which `railctl lease` tells this from other mistakes.
        fail!(
            NotAvailable,
            "node {node_name:?} has no allocation in pool {missing:?}: it has one in {known}"
        );
    }
    for (pool, allocation) in named.iter().filter_map(|pool| all.get_key_value(pool)) {
        if let (Some(rail), Some(planned)) = (rail, of(pool, allocation)) {
            if rail != planned {
                fail!(
                    InvalidConfig,
                    "pool {pool} is for rail {planned}, but the device is on rail {rail}"
                );
            }
        }
    }
    let meant: Vec<&String> = match (named, rail) {
        ([], Some(rail)) => all
            .iter()
            .filter(|(pool, one)| of(pool, one) == Some(rail))
            .map(|(pool, _)| pool)
            .collect(),
        ([], None) => fail!(
            InvalidConfig,
            "node.json lists no rails, so the pool must be named"
        ),
        (named, _) => named.iter().collect(),
    };
    if meant.is_empty() {
        let rail = rail.unwrap_or_default();
        fail!(
            InvalidConfig,
            "there is no pool for rail {rail}: run `railctl import` with its plan"
        );
    }
    if is_doubled(&meant) {
        fail!(
            InvalidConfig,
            "the pools {} have the same address family: name one of them",
            list(meant)
        );
    }
    Ok(meant.into_iter().cloned().collect())
}

#[cfg(test)]
mod tests;
