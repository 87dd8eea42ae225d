//! The store: `NODE/POOL.json` below storeDir, one small file for each node in each pool, so that
//! the cost of an ADD does not depend on the number of nodes. `NODE/leaf-ports` has the leaf ports
//! of the cables, if the plan has them; an older rail-ipam ignores that file, and ADD reads it only
//! to tell the pod.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::allocation::{self, Allocation, LeafPort};
use super::rail_in;
use crate::error::{self, Code};
use crate::failure;
use crate::files::Dir;
use crate::nearest::by_distance;
use crate::node::Node;

/// The file of the leaf ports of a node. Its name is without `.json`, by which an older rail-ipam
/// knows pools.
pub const LEAF_PORTS: &str = "leaf-ports";
/// A file that exists while a process writes the store, or after one was killed.
pub const UNFINISHED: &str = ".unfinished";
/// Prefix of the name of a file that closes a node: the plan may have given its prefixes to another
/// one. The rest is the name of the node, and the content says why. It is not in the node's
/// directory, which each plan replaces.
const CLOSED: &str = ".closed.";
/// Longest such text in messages, in bytes.
const LONGEST_REASON: usize = 1024;
/// A message about a large store looks at this many nodes.
const MOST_LISTED: usize = 10_000;

/// The allocations of `node_name` in `pools`, all of one plan. The error for a missing one names
/// similar nodes.
pub fn load(node: &Node, node_name: &str, pools: &[String]) -> Result<Vec<Allocation>> {
    let store = Store::open(node)?;
    let found = store.find(node_name, pools)?;
    let or_missing =
        |(pool, found): (&String, Found)| found?.ok_or_else(|| store.missing(node_name, pool));
    pools.iter().zip(found).map(or_missing).collect()
}

/// The pools of a rail in which `node_name` has an allocation, all of one plan. A damaged file of a
/// pool that may be of this rail is an error.
pub fn of_rail(node: &Node, node_name: &str, rail: u64) -> Result<Vec<(String, Allocation)>> {
    let all = Store::open(node)?.everything(node_name)?;
    let named: BTreeSet<_> = all.keys().filter_map(|pool| rail_in(pool)).collect();
    let said =
        |found: &Result<Option<Allocation>>| found.as_ref().ok().and_then(|one| one.as_ref()?.rail);
    let differs = |(pool, found): (&String, &Result<Option<Allocation>>)| {
        said(found).is_some_and(|rail| rail_in(pool) != Some(rail))
    };
    // Names that count from 1 are ambiguous. Others tell a rail as long as they agree with what the
    // plan says of any.
    let by_name = named.contains(&0) && !all.iter().any(differs);
    let mut pools = Vec::new();
    for (pool, found) in all {
        let in_name = rail_in(&pool);
        match found {
            Ok(Some(one)) => {
                let of = one.rail.or(in_name.filter(|_| by_name));
                pools.extend((of.map(u64::from) == Some(rail)).then_some((pool, one)));
            }
            Err(error) if in_name.is_none_or(|of| u64::from(of) == rail) => return Err(error),
            Ok(None) | Err(_) => (),
        }
    }
    Ok(pools)
}

/// The leaf ports behind `gateway`, a neighbour of this node, such as `leaf-su0-r0 swp2`. `None` if
/// the plan has none. Where all leaves have the same gateway, the `addresses` of the rail say which
/// of them it is.
pub fn peer_of(node: &Node, gateway: IpAddr, addresses: &[IpNet]) -> Option<String> {
    let mut of_gateway = allocations(node);
    of_gateway.retain(|(_, one)| one.gateway == Some(gateway) && !one.leaf_ports.is_empty());
    let has = |one: &Allocation| addresses.iter().any(|net| one.prefix.contains(&net.addr()));
    let of_rail = of_gateway.iter().find(|(_, one)| has(one));
    let only = if of_gateway.len() == 1 {
        of_gateway.first()
    } else {
        None
    };
    of_rail
        .or(only)
        .map(|(_, one)| allocation::join(&one.leaf_ports))
}

/// The leaf ports behind `gateway`, from the file of leaf ports alone, however many pools the node
/// has. Empty if the plan does not say them, if several leaves have this gateway, or if the file
/// cannot be read: it is only for people and jobs.
pub fn leaf_ports_of(node: &Node, gateway: IpAddr) -> Vec<LeafPort> {
    let all = || -> Result<BTreeMap<String, OfPool>> {
        let folder = Store::open(node)?.folder(&super::node_name(node)?)?;
        Ok(folder
            .map(|folder| read_leaf_ports(&folder))
            .transpose()?
            .unwrap_or_default())
    };
    let all = all().unwrap_or_default();
    let mut of_gateway = all.into_values().filter(|one| one.gateway == Some(gateway));
    match (of_gateway.next(), of_gateway.next()) {
        (Some(one), None) => one.ports,
        _ => Vec::new(),
    }
}

/// The allocations of this node, by pool. Empty if the store cannot be read, because this is for
/// messages about errors with another cause.
pub fn allocations(node: &Node) -> Vec<(String, Allocation)> {
    let all = || -> Result<Vec<(String, Allocation)>> {
        let all = Store::open(node)?.everything(&super::node_name(node)?)?;
        Ok(all
            .into_iter()
            .filter_map(|(pool, found)| Some((pool, found.ok()??)))
            .collect())
    };
    all().unwrap_or_default()
}

/// The name of the file that closes a node to new leases.
pub fn closed_name(node_name: &str) -> String {
    format!("{CLOSED}{node_name}")
}

/// Fails if `node_name` is closed. The same call succeeds when it is open again.
pub fn refuse_closed(node: &Node, node_name: &str) -> Result<()> {
    let Some(why) = Store::open(node)?.closed(node_name)? else {
        return Ok(());
    };
    let file = node.store_dir.join(closed_name(node_name));
    Err(failure!(
        TryAgain,
        "node {node_name:?} takes no new pods with rails: {why} (to open it, write a plan that names it; this \
         is recorded in {})",
        file.display()
    ))
}

/// Whether `error` says that a file of the store is damaged, and not that it cannot be read.
pub fn is_damage(error: &anyhow::Error) -> bool {
    error::code_of(error) == Code::Decode as u32
}

/// The content of a file, if it exists.
pub type Found = Result<Option<Allocation>>;

/// An open store. A store that was never written is empty.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    root: Option<Dir>,
}

impl Store {
    /// Opens the store for reading.
    pub fn open(node: &Node) -> Result<Store> {
        let path = node.store_dir.clone();
        match Dir::open(&path) {
            Ok(root) => Ok(Store {
                path,
                root: Some(root),
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Store { path, root: None }),
            Err(error) => Err(error).with_context(|| format!("cannot open {}", path.display())),
        }
    }

    /// All nodes that have a directory, sorted.
    pub fn nodes(&self) -> Result<Vec<String>> {
        let mut nodes = self
            .root
            .as_ref()
            .map(Dir::names)
            .transpose()?
            .unwrap_or_default();
        nodes.retain(|name| super::is_name(name));
        nodes.sort();
        Ok(nodes)
    }

    /// Why no new lease may come from the allocations of `node_name`; `None` if they are its own. A
    /// file that cannot be read is an error, and so nothing comes from them either.
    pub fn closed(&self, node_name: &str) -> Result<Option<String>> {
        let read = self
            .root
            .as_ref()
            .map(|root| root.read(&closed_name(node_name)))
            .transpose()?
            .flatten();
        let text = read.map(|content| {
            let start = content.get(..LONGEST_REASON).unwrap_or(&content);
            String::from_utf8_lossy(start)
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        });
        Ok(text)
    }

    /// At most `most` nodes, in no order. A large store has a million.
    pub fn some_nodes(&self, most: usize) -> Vec<String> {
        let entries = std::fs::read_dir(&self.path)
            .into_iter()
            .flatten()
            .flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter(|name| super::is_name(name))
            .take(most)
            .collect()
    }

    /// Whether a write is in progress or was interrupted: some nodes may have the previous plan.
    pub fn is_unfinished(&self) -> bool {
        self.path.join(UNFINISHED).exists()
    }

    /// The pools that have an allocation for `node_name`, sorted.
    pub fn pools(&self, node_name: &str) -> Result<Vec<String>> {
        let names = self
            .of_one_plan(node_name, |_| false, Dir::names)?
            .unwrap_or_default();
        let mut pools: Vec<_> = names
            .iter()
            .filter_map(|name| name.strip_suffix(".json"))
            .map(str::to_owned)
            .collect();
        pools.sort();
        Ok(pools)
    }

    /// The allocation of `node_name` in each of `pools`, all of one plan.
    pub fn find(&self, node_name: &str, pools: &[impl AsRef<str>]) -> Result<Vec<Found>> {
        let is_whole = |found: &Vec<Found>| found.iter().all(|found| matches!(found, Ok(Some(_))));
        let read = |folder: &Dir| {
            Ok(pools
                .iter()
                .map(|pool| read(folder, pool.as_ref()))
                .collect())
        };
        let found = self.of_one_plan(node_name, is_whole, read)?;
        Ok(found.unwrap_or_else(|| pools.iter().map(|_| Ok(None)).collect()))
    }

    /// All allocations of `node_name`, by pool, with their leaf ports; all of one plan.
    pub fn everything(&self, node_name: &str) -> Result<BTreeMap<String, Found>> {
        Ok(self
            .of_one_plan(node_name, |_| false, everything_in)?
            .unwrap_or_default())
    }

    /// Reads from the directory of `node_name`, with `read`; `None` if there is none. A directory
    /// that is replaced loses its files only later: a value that `is_whole` refuses may be of one
    /// that was replaced meanwhile, and is read again from the new one.
    fn of_one_plan<T>(
        &self,
        node_name: &str,
        is_whole: impl Fn(&T) -> bool,
        read: impl Fn(&Dir) -> Result<T>,
    ) -> Result<Option<T>> {
        // Each further turn means that another plan was written just now.
        const TURNS: usize = 100;
        let mut turn = 0;
        loop {
            turn += 1;
            let Some(folder) = self.folder(node_name)? else {
                return Ok(None);
            };
            let found = read(&folder);
            let is_done = found.as_ref().is_ok_and(&is_whole)
                || self
                    .root
                    .as_ref()
                    .is_none_or(|root| root.names_still(node_name, &folder));
            if is_done || turn == TURNS {
                return found.map(Some);
            }
        }
    }

    fn folder(&self, node_name: &str) -> Result<Option<Dir>> {
        Ok(self
            .root
            .as_ref()
            .map(|root| root.sub(node_name))
            .transpose()?
            .flatten())
    }

    /// The error for a node without an allocation, with names that may be meant.
    fn missing(&self, node_name: &str, pool: &str) -> anyhow::Error {
        let hint = match self.pools(node_name) {
            Ok(mut pools) if !pools.is_empty() => {
                pools.truncate(20);
                format!(": it has one in {}", pools.join(", "))
            }
            _ => self.hint(node_name),
        };
        let file = self.path.join(node_name).join(file_name(pool));
        failure!(
            InvalidConfig,
            "node {node_name:?} has no allocation in pool {pool:?} ({} is absent){hint}",
            file.display()
        )
    }

    /// A hint for a node that has no allocation in the store.
    pub fn hint(&self, wanted: &str) -> String {
        near_hint(
            wanted,
            self.likely(wanted).iter().map(String::as_str),
            "the store",
        )
    }

    /// Nodes whose names differ from `wanted` in letter case or domain only.
    pub fn near(&self, wanted: &str) -> Vec<String> {
        near_misses(wanted, self.likely(wanted).iter().map(String::as_str))
    }

    /// Some nodes of the store, those with a name like `wanted` first.
    pub fn some_names(&self, wanted: &str) -> Option<String> {
        some_names(wanted, self.likely(wanted).iter().map(String::as_str))
    }

    /// Lists a part of the store, and looks up likely names with the domains that the part has.
    fn likely(&self, wanted: &str) -> BTreeSet<String> {
        let mut listed = self.some_nodes(MOST_LISTED);
        // A directory may have been emptied since the last call, or belong to another process.
        listed.retain(|name| name != wanted);
        let likely = likely_names(wanted, listed.iter().map(String::as_str));
        let is_there = |name: &String| super::is_name(name) && self.path.join(name).is_dir();
        listed
            .into_iter()
            .chain(likely.into_iter().filter(is_there))
            .collect()
    }
}

fn everything_in(folder: &Dir) -> Result<BTreeMap<String, Found>> {
    let names = folder.names()?;
    let has_leaf_ports = names.iter().any(|name| name == LEAF_PORTS);
    let mut leaf_ports = if has_leaf_ports {
        read_leaf_ports(folder)?
    } else {
        BTreeMap::new()
    };
    let mut all = BTreeMap::new();
    for pool in names.iter().filter_map(|name| name.strip_suffix(".json")) {
        let mut found = read(folder, pool);
        if let (Ok(Some(allocation)), Some(of_pool)) = (&mut found, leaf_ports.remove(pool)) {
            if allocation.gateway == of_pool.gateway {
                allocation.leaf_ports = of_pool.ports;
            }
        }
        all.insert(pool.to_owned(), found);
    }
    Ok(all)
}

/// The leaf ports of a node in a pool. An older rail-ipam writes only the allocation; if its
/// gateway is another one, these leaf ports are of an older plan.
#[derive(Debug, Serialize, Deserialize)]
pub struct OfPool {
    /// The gateway that the ports lead to.
    pub gateway: Option<IpAddr>,
    /// The leaf ports.
    pub ports: Vec<LeafPort>,
}

/// The leaf ports of a node, by pool. Empty if the file is damaged: only messages use it, and the
/// next plan writes it again.
pub fn read_leaf_ports(folder: &Dir) -> Result<BTreeMap<String, OfPool>> {
    let content = folder.read(LEAF_PORTS)?.unwrap_or_default();
    Ok(serde_json::from_slice(&content).unwrap_or_default())
}

/// The allocation of a pool in the directory of a node.
fn read(folder: &Dir, pool: &str) -> Found {
    let name = file_name(pool);
    let Some(content) = folder.read(&name)? else {
        return Ok(None);
    };
    parse(&content).map(Some).map_err(|why| {
        let file = folder.path().join(&name);
        failure!(Decode, "{}: {why}", file.display())
    })
}

/// The name of a pool's file in the directory of a node.
pub fn file_name(pool: &str) -> String {
    format!("{pool}.json")
}

/// Parses a file. A file that is cut short or empty is damaged, and never means that there is no
/// allocation: nv-ipam takes an empty store for a new one, and gives addresses in use a second
/// time.
fn parse(content: &[u8]) -> Result<Allocation, String> {
    let damaged = |why: String| format!("{why}: the file is damaged: import the pool again");

    let mut json = serde_json::Deserializer::from_slice(content);
    let read = serde_path_to_error::deserialize::<_, Allocation>(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let at = if [".", "?"].contains(&path.as_str()) {
            String::new()
        } else {
            format!("{path}: ")
        };
        format!("{at}{}", error.inner())
    });
    let version = |version: u32| {
        format!(
            "version {version} is newer than version {} of this rail-ipam: install a newer one",
            allocation::UNNUMBERED
        )
    };
    match read.and_then(|allocation| {
        json.end()
            .map_err(|error| error.to_string())
            .map(|()| allocation)
    }) {
        Ok(allocation)
            if !(allocation::NUMBERED..=allocation::UNNUMBERED).contains(&allocation.version) =>
        {
            Err(version(allocation.version))
        }
        Ok(allocation) => allocation
            .check()
            .map(|()| allocation)
            .map_err(|fault| damaged(fault.to_string())),
        Err(why) => {
            let value = serde_json::from_slice::<serde_json::Value>(content).unwrap_or_default();
            let other = value["version"]
                .as_u64()
                .and_then(|version| u32::try_from(version).ok());
            let other = other.filter(|other| *other > allocation::UNNUMBERED);
            Err(other.map_or_else(|| damaged(why), version))
        }
    }
}

/// Names that are near misses of `wanted`, with the domains of `known` names.
fn likely_names<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    const DOMAINS: usize = 16;
    let mut domains = BTreeSet::from([""]);
    for name in known {
        if domains.len() < DOMAINS {
            domains.insert(name.find('.').map_or("", |dot| &name[dot..]));
        }
    }
    let host = wanted.split('.').next().unwrap_or_default();
    let mut capital = host.to_ascii_lowercase();
    if let Some(first) = capital.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let hosts = [
        host.to_owned(),
        host.to_ascii_lowercase(),
        host.to_ascii_uppercase(),
        capital,
    ];
    let mut likely: BTreeSet<String> = hosts
        .iter()
        .flat_map(|host| domains.iter().map(move |domain| format!("{host}{domain}")))
        .collect();
    likely.insert(wanted.to_ascii_lowercase());
    likely.remove(wanted);
    likely
}

/// Names that differ from `wanted` in letter case or domain only.
pub fn near_misses<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let host = |name: &str| {
        name.split('.')
            .next()
            .unwrap_or_default()
            .to_ascii_lowercase()
    };
    let is_near = |name: &&str| *name != wanted && host(name) == host(wanted);
    let mut near: Vec<_> = names.filter(is_near).take(3).map(str::to_owned).collect();
    near.sort();
    near
}

/// A hint for a node that is not among `names`, which `whose` ("the plan") has: a near miss, or
/// else some of them.
pub fn near_hint<'a>(
    wanted: &str,
    names: impl Iterator<Item = &'a str> + Clone,
    whose: &str,
) -> String {
    match near_misses(wanted, names.clone()).as_slice() {
        [] => {
            let given = "assign one with `railctl plan` or `railctl import`";
            match some_names(wanted, names) {
                None => format!(": {given}"),
                Some(some) => {
                    format!(": {whose} has {some}; {given}, or correct nodeName in node.json")
                }
            }
        }
        near => format!(
            ": did you mean {}? Names are exact: correct the plan, or nodeName in node.json",
            near.join(", ")
        ),
    }
}

/// The names that differ least from `wanted`, and the number of the others.
fn some_names<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    const SHOWN: usize = 10;
    let all = by_distance(wanted, names);
    let some = all
        .iter()
        .take(SHOWN)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    match all.len().checked_sub(SHOWN) {
        _ if all.is_empty() => None,
        None | Some(0) => Some(some),
        // Only so many were listed.
        Some(_) if all.len() >= MOST_LISTED => Some(format!("{some} and thousands more")),
        Some(more) => Some(format!("{some} and {more} more")),
    }
}

#[cfg(test)]
mod tests;
