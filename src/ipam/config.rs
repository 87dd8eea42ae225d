//! The `ipam` section of a network configuration: the pools, where they are, and the requested
//! addresses.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde::de::value::MapDeserializer;
use serde_json::{Map, Value};

use crate::cluster_networks::overlap;
use crate::cni::{self, GC_KEYS, Keys, Network};
use crate::fault::{Fault, some_of};
use crate::node::Node;
use crate::pool::allocation::Allocation;
use crate::pool::cidrpool::{self, Spec, Wanted};
use crate::pool::is_name;
use crate::pool::store::{self, Store};
use crate::{fail, failure};

/// The keys of a section that names pools; a section that is a pool has [`cidrpool::SPEC_KEYS`].
pub const KEYS: [&str; 5] = ["type", "source", "pool", "poolName", "poolType"];

/// All keys of a network configuration that rail-ipam reads.
pub const NETWORK: Keys = Keys {
    names: &[
        &[
            "cniVersion",
            "name",
            "type",
            "rail",
            "ipam",
            "runtimeConfig",
            "args",
            "prevResult",
        ],
        // The device that gets the address.
        &["deviceID", "pciBusID"],
        &["logLevel", "logFile"],
        &GC_KEYS,
    ],
    inside: &[
        (
            "ipam",
            &Keys {
                names: &[&KEYS, &cidrpool::SPEC_KEYS],
                inside: &cidrpool::LIST_KEYS,
            },
        ),
        ("runtimeConfig", &Keys::flat(&[&["ips", "deviceID"]])),
        (
            "args",
            &Keys {
                names: &[&["cni"]],
                inside: &[("cni", &Keys::flat(&[&["ips"]]))],
            },
        ),
    ],
};

/// The section, parsed and checked.
#[derive(Debug)]
pub struct Config {
    /// The names of one or two pools. Empty if the rail determines the pools, or else the network's
    /// name.
    pub pools: Vec<String>,
    /// The name of the network.
    network: String,
    /// The pool itself, if the section has it.
    inline: Option<Spec>,
    /// The rail that rail-cni attaches: it determines the pools, or is compared with the rail that
    /// they were planned for.
    rail: Option<u64>,
}

impl Config {
    /// Reads `{"pool": "rail-0"}`, nv-ipam's `{"poolName": "rail-0", "poolType": "cidrpool"}`, or
    /// the fields of a CIDRPool's spec.
    pub fn parse(network: &Network) -> Result<Config> {
        refuse_type(network, OsStr::new("rail-ipam"))?;
        let section = match network.get(&["ipam"]) {
            Some(Value::Object(section)) => section,
            Some(_) => return wrong("ipam", "is not a JSON object"),
            None => {
                return wrong(
                    "ipam",
                    "is missing: {\"type\": \"rail-ipam\", \"pool\": NAME}",
                );
            }
        };
        if text(network, "source")?.is_some() {
            let problem = "works only with rail-cni, which attaches the device: with another plugin, name a pool";
            return wrong("ipam.source", problem);
        }
        let names = pool_key(network)?;
        let inline = inline(section)?;
        let pools = match names {
            Some(names) => pool_names(names)?,
            None if inline.is_some() => pool_names(&network.name)?,
            None => Vec::new(),
        };
        refuse_pool_type(network)?;
        if inline.is_some() && pools.len() > 1 {
            let problem = format!(
                "two pools ({}) must be in the store: these keys describe only one",
                pools.join(",")
            );
            return wrong("ipam", problem);
        }
        cni::warn_of_unknown("ipam", section.keys().filter(|key| !is_known(key)));
        let rail = network.get(&["rail"]).and_then(Value::as_u64);
        Ok(Config {
            pools,
            network: network.name.clone(),
            inline,
            rail,
        })
    }

    /// The warnings about an inline pool, or all of its faults; `None` for pools in the store.
    pub fn check(&self) -> Option<Result<Vec<Fault>, Vec<Fault>>> {
        let plan = self.inline.as_ref()?.plan("ipam", &[], Wanted::None);
        Some(plan.map(|plan| plan.warnings))
    }

    /// The pools, each with the allocation of this node: in the order in which they are named, or
    /// IPv4 first.
    pub fn allocations(&self, node: &Node, node_name: &str) -> Result<Vec<(String, Allocation)>> {
        let Some(spec) = &self.inline else {
            let planned = self.planned(node, node_name)?;
            for (pool, allocation) in &planned {
                self.refuse_other_rail(pool, allocation.rail)?;
            }
            return Ok(planned);
        };
        let pool = &self.pools[0];
        if !node.policy.inline_pools {
            fail!(
                InvalidConfig,
                "pool {pool}: policy.inlinePools of node.json forbids pools in networks: name a pool of the store"
            );
        }
        let plan = spec.plan("ipam", &[], Wanted::Node(node_name));
        let mut plan =
            plan.map_err(|faults| failure!(InvalidConfig, "pool {pool}: {}", some_of(&faults)))?;
        for warning in &plan.warnings {
            log::warn!("pool {pool}: {warning}");
        }
        match plan.allocations.remove(node_name) {
            Some(allocation) => {
                beside_the_plan(node, node_name, pool, &allocation)?;
                Ok(vec![(pool.clone(), allocation)])
            }
            None => {
                let named = spec
                    .static_allocations
                    .iter()
                    .map(|row| row.node_name.as_str());
                fail!(
                    InvalidConfig,
                    "node {node_name:?} has no prefix in ipam.staticAllocations of pool {pool}{}",
                    store::near_hint(node_name, named.filter(|name| !name.is_empty()), "the pool")
                )
            }
        }
    }
}

impl Config {
    /// Whether the store still has these allocations. Those of an inline pool do not change.
    pub fn is_current(
        &self,
        node: &Node,
        node_name: &str,
        planned: &[(String, Allocation)],
    ) -> Result<bool> {
        Ok(self.inline.is_some() || self.planned(node, node_name)? == planned)
    }

    /// Fails if the plan has closed this node to new leases of the store.
    pub fn refuse_closed(&self, node: &Node, node_name: &str) -> Result<()> {
        if self.inline.is_some() {
            Ok(())
        } else {
            store::refuse_closed(node, node_name)
        }
    }

    /// The allocations that an ADD of this network may use on this node: with neither pool nor
    /// rail, the device is not known yet, and its rail can be any of the node's.
    pub fn all_allocations(
        &self,
        node: &Node,
        node_name: &str,
    ) -> Result<Vec<(String, Allocation)>> {
        if !self.pools.is_empty() || self.rail.is_some() || node.rails.is_empty() {
            return self.allocations(node, node_name);
        }
        let rails: BTreeSet<u64> = node.rails.iter().map(|pf| pf.rail.into()).collect();
        let mut allocations = Vec::new();
        for rail in rails {
            allocations.extend(self.of_rail(node, node_name, rail)?);
        }
        Ok(allocations)
    }

    fn planned(&self, node: &Node, node_name: &str) -> Result<Vec<(String, Allocation)>> {
        let pools = match (self.pools.as_slice(), self.rail) {
            ([], Some(rail)) => return self.of_rail(node, node_name, rail),
            ([], None) => std::slice::from_ref(&self.network),
            (named, _) => named,
        };
        let allocations = store::load(node, node_name, pools)?;
        Ok(pools.iter().cloned().zip(allocations).collect())
    }

    /// The node's pools of this rail, one of a family; where none says that it is of this rail, the
    /// pool with the network's name.
    fn of_rail(
        &self,
        node: &Node,
        node_name: &str,
        rail: u64,
    ) -> Result<Vec<(String, Allocation)>> {
        let mut pools = store::of_rail(node, node_name, rail)?;
        pools.sort_by_key(|(_, allocation)| !allocation.is_ipv4());
        match pools.as_slice() {
            [] => {
                let allocations = store::load(node, node_name, std::slice::from_ref(&self.network));
                let allocations = allocations.with_context(|| {
                    failure!(
                        InvalidConfig,
                        "node {node_name:?} has no pool of rail {rail}"
                    )
                })?;
                Ok(std::iter::once(self.network.clone())
                    .zip(allocations)
                    .collect())
            }
            [(one, of_one), (other, of_other), ..]
                if of_one.is_ipv4() == of_other.is_ipv4() || pools.len() > 2 =>
            {
                fail!(
                    InvalidConfig,
                    "rail {rail} of node {node_name:?} has several pools of one address family, such as {one} and {other}: \
                     name one in ipam.pool"
                )
            }
            _ => Ok(pools),
        }
    }

    /// An address of another rail would be taken by the pod and by no leaf.
    fn refuse_other_rail(&self, pool: &str, planned: Option<u8>) -> Result<()> {
        match (self.rail, planned) {
            (Some(rail), Some(planned)) if rail != u64::from(planned) => fail!(
                InvalidConfig,
                "pool {pool} is planned for rail {planned}, but the network is for rail {rail}: check ipam.pool and rail"
            ),
            _ => Ok(()),
        }
    }
}

/// Fails if an inline pool takes the name or the addresses of a planned pool of this node, or
/// addresses that its planned routes lead to: a tenant may write networks, and only the operator
/// plans the fabric.
fn beside_the_plan(
    node: &Node,
    node_name: &str,
    pool: &str,
    allocation: &Allocation,
) -> Result<()> {
    let store = Store::open(node)?;
    let planned = store.pools(node_name)?;
    if planned.iter().any(|planned| planned == pool) {
        fail!(
            InvalidConfig,
            "pool {pool} is in the store, but ipam describes another pool of that name: remove cidr and \
             staticAllocations, or rename ipam.pool"
        );
    }
    let prefix = allocation.prefix;
    for (name, found) in planned.iter().zip(store.find(node_name, &planned)?) {
        let Some(planned) = found? else { continue };
        let destinations = planned.routes.iter().map(|route| route.dst);
        if let Some(taken) = [planned.prefix]
            .into_iter()
            .chain(destinations)
            .find(|net| overlap(*net, prefix))
        {
            let what = if taken == planned.prefix {
                "this node's prefix"
            } else {
                "the fabric that it leads to"
            };
            fail!(
                InvalidConfig,
                "pool {pool}: {prefix} overlaps {taken}, {what} in the planned pool {name}: choose others"
            );
        }
    }
    Ok(())
}

/// Refuses a network whose own type is `program`: rail-ipam by whatever name. Multus accepts a
/// result without an interface: such a network would give a pod addresses of rails that it does not
/// have, without any device that the pod has to ask for.
pub fn refuse_type(network: &Network, program: &OsStr) -> Result<()> {
    match network.get(&["type"]).and_then(Value::as_str) {
        Some(name) if name == program => wrong(
            "type",
            "rail-ipam attaches no device: name it as ipam.type of the plugin that does",
        ),
        _ => Ok(()),
    }
}

/// The requested addresses, each with its prefix length if the request has one. `runtimeConfig.ips`
/// takes precedence over `args.cni.ips`, which takes precedence over CNI_ARGS (CONVENTIONS.md of
/// the CNI specification).
pub fn requested(network: &Network) -> Result<Vec<(IpAddr, Option<u8>)>> {
    match network.get(&["runtimeConfig"]) {
        None | Some(Value::Object(_)) => (),
        Some(other) => return wrong("runtimeConfig", format!("{other} is not a JSON object")),
    }
    for path in [["runtimeConfig", "ips"].as_slice(), &["args", "cni", "ips"]] {
        let Some(value) = network.get(path) else {
            continue;
        };
        let path = path.join(".");
        let Value::Array(list) = value else {
            return wrong(&path, "is not a list of addresses");
        };
        let mut addresses = Vec::new();
        for value in list {
            let Some(text) = value.as_str() else {
                return wrong(&path, format!("{value} is not a string"));
            };
            addresses.push(parse_address(&path, text)?);
        }
        if !addresses.is_empty() {
            return Ok(addresses);
        }
    }
    // Thin Multus passes several addresses with commas between them.
    let list = network.args.get("IP").unwrap_or_default();
    let mut addresses = Vec::new();
    for text in list.split(',') {
        let text = text.trim();
        if !text.is_empty() {
            addresses.push(parse_address("CNI_ARGS IP", text)?);
        }
    }
    Ok(addresses)
}

/// Parses an address with or without the length of its prefix.
fn parse_address(path: &str, text: &str) -> Result<(IpAddr, Option<u8>)> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((address, None));
    }
    match text.parse::<IpNet>() {
        Ok(net) => Ok((net.addr(), Some(net.prefix_len()))),
        Err(_) => wrong(path, format!("{text:?} is not an IP address")),
    }
}

/// The value of `pool`, or of `poolName`, which means the same to nv-ipam.
fn pool_key(network: &Network) -> Result<Option<&str>> {
    let pool = text(network, "pool")?;
    let pool_name = text(network, "poolName")?;
    if let (Some(pool), Some(pool_name)) = (pool, pool_name) {
        if pool != pool_name {
            let problem =
                format!("{pool:?} and ipam.poolName {pool_name:?} differ: give one of them");
            return wrong("ipam.pool", problem);
        }
    }
    Ok(pool.or(pool_name))
}

/// Refuses nv-ipam's other type of pools.
fn refuse_pool_type(network: &Network) -> Result<()> {
    match text(network, "poolType")? {
        Some(kind) if !kind.eq_ignore_ascii_case("cidrpool") => wrong(
            "ipam.poolType",
            format!("{kind:?} is not cidrpool, the only type that rail-ipam supports"),
        ),
        _ => Ok(()),
    }
}

fn pool_names(names: &str) -> Result<Vec<String>> {
    let pools: Vec<String> = names
        .split(',')
        .map(|name| name.trim().to_owned())
        .collect();
    if let Some(bad) = pools.iter().find(|name| !is_name(name)) {
        let problem =
            format!("{bad:?} is not a valid name of a pool (letters, digits, '-', '_', '.')");
        return wrong("ipam.pool", problem);
    }
    match pools.as_slice() {
        [_] => Ok(pools),
        [one, other] if one != other => Ok(pools),
        [_, _] => wrong("ipam.pool", format!("{names:?} names the same pool twice")),
        _ => wrong("ipam.pool", format!("{names:?} names more than two pools")),
    }
}

/// The fields of a CIDRPool's spec, if there are any.
fn inline(section: &Map<String, Value>) -> Result<Option<Spec>> {
    let mut fields = section
        .iter()
        .map(|(key, value)| (key.as_str(), value))
        .filter(|(key, _)| cidrpool::SPEC_KEYS.contains(key))
        .peekable();
    if fields.peek().is_none() {
        return Ok(None);
    }
    let fields = MapDeserializer::<_, serde_json::Error>::new(fields);
    let spec = serde_path_to_error::deserialize(fields).map_err(|error| {
        // "." is the section itself.
        let path = format!("ipam.{}", error.path());
        Fault::new(path.trim_end_matches('.'), error.inner().to_string())
    })?;
    Ok(Some(spec))
}

/// Whether the section can have `key`.
pub fn is_known(key: &str) -> bool {
    KEYS.contains(&key) || cidrpool::SPEC_KEYS.contains(&key)
}

fn text<'a>(network: &'a Network, key: &str) -> Result<Option<&'a str>> {
    match network.get(&["ipam", key]) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        Some(other) => wrong(&format!("ipam.{key}"), format!("{other} is not a string")),
    }
}

fn wrong<T>(path: &str, problem: impl Into<String>) -> Result<T> {
    Err(Fault::new(path, problem).into())
}

#[cfg(test)]
mod tests;
