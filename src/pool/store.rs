//! The store, `NODE/POOL.json` below storeDir: one small file for each node in
//! each pool, so that an ADD costs the same however many nodes are planned.
//! Beside them, in `NODE/leaf-ports`, stands in which ports the cables end, if the
//! plan knows: an older rail-ipam passes over that file, and so does ADD.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::allocation::{self, Allocation, LeafPort};
use crate::failure;
use crate::files::Dir;
use crate::nearest::by_distance;
use crate::node::Node;
use crate::progress::Progress;

const LOCK: &str = ".lock";
/// Without `.json`, by which an older rail-ipam knows pools.
const LEAF_PORTS: &str = "leaf-ports";
/// A file that is there while somebody writes, or when he was killed.
const UNFINISHED: &str = ".unfinished";
/// What a name begins with that is not a node's yet, or not any more.
const NEW: &str = ".new.";
/// Nodes of a large store that are looked at for a message.
const MOST_LISTED: usize = 10_000;
const PATIENCE: Duration = Duration::from_secs(10);

/// The allocations of `node_name` in `pools`, all of one plan; there being none is an error that helps.
pub fn load(node: &Node, node_name: &str, pools: &[String]) -> Result<Vec<Allocation>> {
    let store = Store::open(node)?;
    let found = store.find(node_name, pools)?;
    let or_missing = |(pool, found): (&String, Found)| found?.ok_or_else(|| store.missing(node_name, pool));
    pools.iter().zip(found).map(or_missing).collect()
}

/// The leaf ports behind `gateway`, a neighbour of this node: `leaf-su0-r0 swp2`. Where the plan knows none,
/// nothing.
pub fn peer_of(node: &Node, gateway: IpAddr) -> Option<String> {
    let of_gateway = |one: &Allocation| one.gateway == Some(gateway) && !one.leaf_ports.is_empty();
    let (_, allocation) = allocations(node).into_iter().find(|(_, one)| of_gateway(one))?;
    Some(allocation::join(&allocation.leaf_ports))
}

/// What this node has, by pool. Where the store cannot be read, nothing: it is asked for errors that have another
/// cause.
pub fn allocations(node: &Node) -> Vec<(String, Allocation)> {
    let all = || -> Result<Vec<(String, Allocation)>> {
        let all = Store::open(node)?.everything(&super::node_name(node)?)?;
        Ok(all.into_iter().filter_map(|(pool, found)| Some((pool, found.ok()??))).collect())
    };
    all().unwrap_or_default()
}

/// The gateways of this node, by pool.
pub fn gateways(node: &Node) -> Vec<(String, IpAddr)> {
    allocations(node).into_iter().filter_map(|(pool, one)| Some((pool, one.gateway?))).collect()
}

/// What a file says, if it is there.
pub type Found = Result<Option<Allocation>>;

/// The store, open. One that was never written has nothing.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    root: Option<Dir>,
}

impl Store {
    /// Opens it to be read.
    pub fn open(node: &Node) -> Result<Store> {
        let path = node.store_dir.clone();
        match Dir::open(&path) {
            Ok(root) => Ok(Store { path, root: Some(root) }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Store { path, root: None }),
            Err(error) => Err(error).with_context(|| format!("cannot open {}", path.display())),
        }
    }

    /// Every node that has a folder, sorted.
    pub fn nodes(&self) -> Result<Vec<String>> {
        let mut nodes = self.root.as_ref().map(Dir::names).transpose()?.unwrap_or_default();
        nodes.retain(|name| super::is_name(name));
        nodes.sort();
        Ok(nodes)
    }

    /// Some of them, in no order, for what need not be complete: a large store has a million.
    pub fn some_nodes(&self, most: usize) -> Vec<String> {
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| super::is_name(name)).take(most).collect()
    }

    /// The pools that have something for `node_name`, sorted.
    pub fn pools(&self, node_name: &str) -> Result<Vec<String>> {
        let names = self.folder(node_name)?.map(|folder| folder.names()).transpose()?.unwrap_or_default();
        let mut pools: Vec<_> =
            names.iter().filter_map(|name| name.strip_suffix(".json")).map(str::to_owned).collect();
        pools.sort();
        Ok(pools)
    }

    /// What `node_name` has in each of `pools`, all of one plan: the files are read in one folder, and a folder
    /// that another took the place of loses its files only after that.
    pub fn find(&self, node_name: &str, pools: &[impl AsRef<str>]) -> Result<Vec<Found>> {
        // Each turn more is another plan that was written just now.
        const TURNS: usize = 100;
        let nothing = || pools.iter().map(|_| Ok(None)).collect();
        let mut found = nothing();
        for _ in 0..TURNS {
            let Some(folder) = self.folder(node_name)? else { return Ok(nothing()) };
            found = pools.iter().map(|pool| read(&folder, pool.as_ref())).collect();
            let is_whole = found.iter().all(|found| matches!(found, Ok(Some(_))));
            if is_whole || self.root.as_ref().is_none_or(|root| root.names_still(node_name, &folder)) {
                break;
            }
        }
        Ok(found)
    }

    /// All that `node_name` has, by pool, with the leaf ports.
    pub fn everything(&self, node_name: &str) -> Result<BTreeMap<String, Found>> {
        let Some(folder) = self.folder(node_name)? else { return Ok(BTreeMap::new()) };
        let names = folder.names()?;
        let has_leaf_ports = names.iter().any(|name| name == LEAF_PORTS);
        let mut leaf_ports = if has_leaf_ports { read_leaf_ports(&folder) } else { BTreeMap::new() };
        let mut all = BTreeMap::new();
        for pool in names.iter().filter_map(|name| name.strip_suffix(".json")) {
            let mut found = read(&folder, pool);
            if let (Ok(Some(allocation)), Some(of_pool)) = (&mut found, leaf_ports.remove(pool))
                && allocation.gateway == of_pool.gateway
            {
                allocation.leaf_ports = of_pool.ports;
            }
            all.insert(pool.to_owned(), found);
        }
        Ok(all)
    }

    fn folder(&self, node_name: &str) -> Result<Option<Dir>> {
        Ok(self.root.as_ref().map(|root| root.sub(node_name)).transpose()?.flatten())
    }

    /// The error for a node without an allocation: nothing is given, and the reader is told what may be meant.
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

    /// What to do about a node that has nothing here.
    pub fn hint(&self, wanted: &str) -> String {
        near_hint(wanted, self.likely(wanted).iter().map(String::as_str), "the store")
    }

    /// Nodes that may be meant by `wanted`.
    pub fn near(&self, wanted: &str) -> Vec<String> {
        near_misses(wanted, self.likely(wanted).iter().map(String::as_str))
    }

    /// Nodes that there are, those with a name like `wanted` first.
    pub fn some_names(&self, wanted: &str) -> Option<String> {
        some_names(wanted, self.likely(wanted).iter().map(String::as_str))
    }

    /// Of a large store only a part is listed; it tells which domains there are, and the likely names are looked
    /// up.
    fn likely(&self, wanted: &str) -> BTreeSet<String> {
        let mut listed = self.some_nodes(MOST_LISTED);
        // A folder that went empty between two calls, or that somebody made.
        listed.retain(|name| name != wanted);
        let likely = likely_names(wanted, listed.iter().map(String::as_str));
        let is_there = |name: &String| super::is_name(name) && self.path.join(name).is_dir();
        listed.into_iter().chain(likely.into_iter().filter(is_there)).collect()
    }
}

/// What the store shall say of a node in a pool; without an allocation, nothing.
#[derive(Debug)]
pub struct Change<'a> {
    /// Whose.
    pub node_name: &'a str,
    /// In which pool.
    pub pool: &'a str,
    /// What it shall have.
    pub allocation: Option<&'a Allocation>,
}

/// Makes all changes, to stay, or none; those of one node stand in a row.
///
/// A node's new folder is made whole beside the old one and then takes its place, in one step: who reads has the
/// old or the new one. Two waits for the disk serve all nodes: one for each file would make minutes of a large
/// fabric.
pub fn apply(node: &Node, changes: &[Change<'_>]) -> Result<()> {
    let is_unfinished = || node.store_dir.join(UNFINISHED).exists();
    if changes.is_empty() && !is_unfinished() {
        return Ok(());
    }
    let root = Dir::create(&node.store_dir)?;
    let _lock = root.lock(LOCK, PATIENCE)?;
    if is_unfinished() {
        let names = root.all_names()?;
        let names: Vec<_> = names.iter().filter_map(|name| name.strip_prefix(NEW)).collect();
        clear(&root, &names)?;
    }
    let of_node: Vec<_> = changes.chunk_by(|one, other| one.node_name == other.node_name).collect();
    let names: Vec<_> = of_node.iter().map(|changes| changes[0].node_name).collect();
    root.write_new(UNFINISHED, b"")?;
    let replaced = replace(&root, &of_node);
    if let Err(error) = clear(&root, &names) {
        // It does no harm, and the next apply tries again.
        log::warn!("{error:#}");
    }
    replaced
}

fn replace(root: &Dir, of_node: &[&[Change<'_>]]) -> Result<()> {
    let mut steps = Vec::with_capacity(of_node.len());
    let mut progress = Progress::new("writing nodes", of_node.len());
    for changes in of_node {
        steps.push((changes[0].node_name, prepare(root, changes)?));
        progress.step();
    }
    sync(root)?;
    progress = Progress::new("replacing nodes", steps.len());
    for (done, (name, step)) in steps.iter_mut().enumerate() {
        progress.step();
        let Err(error) = step.take(root, name) else { continue };
        // A folder is as it was, unless its files went one by one.
        let taken = if matches!(step, Step::FileByFile) { done + 1 } else { done };
        let undone = steps[..taken].iter().rev().try_for_each(|(name, step)| step.undo(root, name));
        return Err(match undone {
            Ok(()) => error,
            Err(why) => {
                let mixed = "some nodes have the new plan and some the old one: import again";
                error.context(format!("{why:#}; {mixed}"))
            }
        });
    }
    drop(progress);
    match steps.iter().filter(|(_, step)| matches!(step, Step::FileByFile)).count() {
        0 => (),
        count => log::warn!(
            "{}: this file system cannot exchange folders: {count} nodes were written file by file, and an ADD at \
             that moment may have seen one pool of the old plan and one of the new",
            root.path().display()
        ),
    }
    sync(root)
}

fn sync(root: &Dir) -> Result<()> {
    let _progress = Progress::wait("waiting for the disk");
    root.sync()
}

/// How a node gets what was prepared.
#[derive(Debug)]
enum Step {
    /// It had no folder.
    Make,
    /// It has another one.
    Exchange,
    /// It has one with one file, which alone changes: a million nodes with a pool each need no new folders.
    ExchangeFile(String),
    /// It has one, and shall have none.
    Remove,
    /// It has none and shall have none.
    Nothing,
    /// It had another one, on a file system that cannot exchange folders.
    FileByFile,
}

/// Makes the folder that shall be the node's: what changes, and whatever else is in the old one.
fn prepare(root: &Dir, changes: &[Change<'_>]) -> Result<Step> {
    let name = changes[0].node_name;
    let old = root.sub(name)?;
    let mut kept = old.as_ref().map(Dir::names).transpose()?.unwrap_or_default();
    let files: Vec<_> = changes.iter().map(|change| file_name(change.pool)).collect();
    let only = match kept.as_slice() {
        [only] => Some(only.clone()),
        _ => None,
    };
    kept.retain(|name| name != LEAF_PORTS && !files.contains(name));
    let mut leaf_ports = old.as_ref().map(read_leaf_ports).unwrap_or_default();
    leaf_ports.retain(|pool, _| kept.contains(&file_name(pool)));
    let mut put = Vec::new();
    for (file, change) in files.into_iter().zip(changes) {
        let Some(allocation) = change.allocation else { continue };
        put.push((file, content(allocation)?));
        let Allocation { gateway, leaf_ports: ports, .. } = allocation;
        if !ports.is_empty() {
            let of_pool = OfPool { gateway: *gateway, ports: ports.clone() };
            leaf_ports.insert(change.pool.to_owned(), of_pool);
        }
    }
    if !leaf_ports.is_empty() {
        put.push((LEAF_PORTS.to_owned(), content(&leaf_ports)?));
    }
    let has_new = !kept.is_empty() || !put.is_empty();
    let hidden = hidden(name);
    if let (Some(only), true, [(file, content)]) = (only, kept.is_empty(), put.as_slice())
        && only == *file
    {
        root.write_new(&hidden, content)?;
        return Ok(Step::ExchangeFile(format!("{name}/{file}")));
    }
    let step = match (&old, has_new) {
        (None, true) => Step::Make,
        (Some(_), true) => Step::Exchange,
        (Some(_), false) => Step::Remove,
        (None, false) => Step::Nothing,
    };
    if has_new {
        root.make(&hidden)?;
    }
    for (file, content) in put {
        root.write_new(&format!("{hidden}/{file}"), &content)?;
    }
    if let (Some(old), false) = (old, kept.is_empty()) {
        let new = root.create_sub(&hidden)?;
        kept.iter().try_for_each(|name| old.link(name, &new))?;
    }
    Ok(step)
}

fn content(of_file: &impl Serialize) -> Result<Vec<u8>> {
    let mut content = serde_json::to_vec(of_file)?;
    content.push(b'\n');
    Ok(content)
}

/// The leaf ports of a node, by pool. The gateway tells whether they are of the same plan as the allocation, which
/// an older rail-ipam writes alone.
#[derive(Debug, Serialize, Deserialize)]
struct OfPool {
    gateway: Option<IpAddr>,
    ports: Vec<LeafPort>,
}

/// Damage costs a message two words, and the next plan writes the file again.
fn read_leaf_ports(folder: &Dir) -> BTreeMap<String, OfPool> {
    let content = folder.read(LEAF_PORTS).ok().flatten().unwrap_or_default();
    serde_json::from_slice(&content).unwrap_or_default()
}

impl Step {
    fn take(&mut self, root: &Dir, name: &str) -> Result<()> {
        let hidden = &hidden(name);
        let whole = match self {
            Step::Make => root.rename(hidden, root, name),
            Step::Remove => root.rename(name, root, hidden),
            Step::Exchange => root.exchange(hidden, name),
            Step::ExchangeFile(file) => root.exchange(hidden, file),
            Step::Nothing | Step::FileByFile => return Ok(()),
        };
        // EXDEV: overlayfs, for a folder that is not in the upper layer.
        let cannot = |error: &std::io::Error| {
            [Errno::EINVAL, Errno::EXDEV, Errno::ENOSYS, Errno::EOPNOTSUPP]
                .iter()
                .any(|errno| error.raw_os_error() == Some(*errno as i32))
        };
        match whole {
            Err(error) if !matches!(self, Step::Make) && cannot(&error) => {
                let done = match self {
                    Step::ExchangeFile(file) => move_file(root, hidden, root, file),
                    _ => file_by_file(root, name),
                };
                *self = Step::FileByFile;
                done
            }
            whole => whole.with_context(|| format!("cannot write {}", root.path().join(name).display())),
        }
    }

    fn undo(&self, root: &Dir, name: &str) -> Result<()> {
        let hidden = &hidden(name);
        let undone = match self {
            Step::Make => root.rename(name, root, hidden),
            Step::Remove => root.rename(hidden, root, name),
            Step::Exchange => root.exchange(hidden, name),
            Step::ExchangeFile(file) => root.exchange(hidden, file),
            Step::Nothing => return Ok(()),
            Step::FileByFile => Err(ErrorKind::Unsupported.into()),
        };
        undone.with_context(|| format!("cannot put {} back", root.path().join(name).display()))
    }
}

/// Moves what is prepared for a node, if anything, into its folder, and removes what else is there.
fn file_by_file(root: &Dir, name: &str) -> Result<()> {
    let Some(old) = root.sub(name)? else { return Ok(()) };
    let new = root.sub(&hidden(name))?;
    let names = new.as_ref().map(Dir::names).transpose()?.unwrap_or_default();
    for file in &names {
        if let Some(new) = &new {
            move_file(new, file, &old, file)?;
        }
    }
    for file in old.names()?.iter().filter(|file| !names.contains(file)) {
        old.remove(file)?;
    }
    if names.is_empty() { root.remove_any(name) } else { Ok(()) }
}

fn move_file(from: &Dir, name: &str, to: &Dir, new_name: &str) -> Result<()> {
    from.rename(name, to, new_name)
        .with_context(|| format!("cannot write {}", to.path().join(new_name).display()))
}

/// Removes what is hidden of these nodes: old ones, or what a killed writer left. Who holds the lock may.
fn clear(root: &Dir, names: &[&str]) -> Result<()> {
    let mut progress = Progress::new("removing what was", names.len());
    for name in names {
        root.remove_any(&hidden(name))?;
        progress.step();
    }
    root.remove(UNFINISHED)
}

/// A node's folder that is not its folder yet, or not any more. It is beside the folder, not in one for all of
/// them: a folder that stays in its parent is not written again when it is renamed.
fn hidden(node_name: &str) -> String {
    format!("{NEW}{node_name}")
}

/// The allocation in `folder`, a node's, of `pool`.
fn read(folder: &Dir, pool: &str) -> Found {
    let name = file_name(pool);
    let Some(content) = folder.read(&name)? else { return Ok(None) };
    parse(&content).map(Some).map_err(|why| {
        let file = folder.path().join(&name);
        failure!(Decode, "{}: {why}", file.display())
    })
}

fn file_name(pool: &str) -> String {
    format!("{pool}.json")
}

/// What a file says. One that is cut short or empty is damage, never the absence of an allocation: nv-ipam takes
/// a store of no bytes for a new one and gives addresses in use a second time.
fn parse(content: &[u8]) -> Result<Allocation, String> {
    let damaged = |why: String| format!("{why}: the file is damaged, import the pool again");

    let mut json = serde_json::Deserializer::from_slice(content);
    let read = serde_path_to_error::deserialize::<_, Allocation>(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let at = if [".", "?"].contains(&path.as_str()) { String::new() } else { format!("{path}: ") };
        format!("{at}{}", error.inner())
    });
    let version = |version: u32| {
        format!(
            "version {version}: this rail-ipam reads version {}, install a newer one",
            allocation::VERSION
        )
    };
    match read.and_then(|allocation| json.end().map_err(|error| error.to_string()).map(|()| allocation)) {
        Ok(allocation) if allocation.version != allocation::VERSION => Err(version(allocation.version)),
        Ok(allocation) => allocation.check().map(|()| allocation).map_err(damaged),
        Err(why) => {
            let value = serde_json::from_slice::<serde_json::Value>(content).unwrap_or_default();
            let other = value["version"].as_u64().and_then(|version| u32::try_from(version).ok());
            Err(other.filter(|other| *other != allocation::VERSION).map_or_else(|| damaged(why), version))
        }
    }
}

/// Names that would be near misses of `wanted`, with the domains of `known` names: a fabric's nodes are named
/// alike.
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
    let hosts = [host.to_owned(), host.to_ascii_lowercase(), host.to_ascii_uppercase(), capital];
    let mut likely: BTreeSet<String> =
        hosts.iter().flat_map(|host| domains.iter().map(move |domain| format!("{host}{domain}"))).collect();
    likely.insert(wanted.to_ascii_lowercase());
    likely.remove(wanted);
    likely
}

/// Names that differ from `wanted` in letter case or in the domain alone.
pub fn near_misses<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let host = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_near = |name: &&str| *name != wanted && host(name) == host(wanted);
    let mut near: Vec<_> = names.filter(is_near).take(3).map(str::to_owned).collect();
    near.sort();
    near
}

/// What to do about a node that is not there: one that is near in letter case or domain is meant, or else one of
/// those that `whose` ("the plan") has.
pub fn near_hint<'a>(wanted: &str, names: impl Iterator<Item = &'a str> + Clone, whose: &str) -> String {
    match near_misses(wanted, names.clone()).as_slice() {
        [] => {
            let given = "`rail-ipam plan` or `import` must give it one, for nothing is ever invented";
            match some_names(wanted, names) {
                None => format!(": {given}"),
                Some(some) => format!(": {whose} has {some}; {given}, or nodeName in node.json is wrong"),
            }
        }
        near => format!(
            ": did the plan mean it with {}? Names are exact: correct the plan, or nodeName in node.json",
            near.join(", ")
        ),
    }
}

/// The names that differ least from `wanted`, and how many more there are.
fn some_names<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    const SHOWN: usize = 10;
    let all = by_distance(wanted, names);
    let some = all.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match all.len().checked_sub(SHOWN) {
        _ if all.is_empty() => None,
        None | Some(0) => Some(some),
        // No more are looked at.
        Some(_) if all.len() >= MOST_LISTED => Some(format!("{some} and thousands more")),
        Some(more) => Some(format!("{some} and {more} more")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_file_reads_as_it_was_written() {
        let text = r#"{"version":1,"prefix":"172.16.1.60/31","gateway":"172.16.1.61","rail":0,"routes":[{"dst":"172.16.0.0/15"}],"exclusions":[{"startIP":"172.16.1.61","endIP":"172.16.1.61"}]}"#;
        let read = parse(text.as_bytes()).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }

    /// rail-ipam 0.1.0 reads the store with `parse`, which refuses keys that it does not know, and lists pools by
    /// their `.json`.
    #[test]
    fn a_gateway_tells_its_leaf_port_and_the_allocation_is_as_before() {
        let temp = tempfile::tempdir().unwrap();
        let dirs = serde_json::json!({"nodeName": "n", "storeDir": temp.path().join("store")});
        let node: Node = serde_json::from_value(dirs).unwrap();
        let port = |leaf: &str, port: &str| LeafPort { leaf: leaf.into(), port: Some(port.into()) };
        let (gateway, file) = ("172.16.0.3".parse().unwrap(), temp.path().join("store/n/rail-0.json"));
        assert_eq!(peer_of(&node, gateway), None);
        let mut ours = allocation::tests::allocation("172.16.0.2/31", Some("172.16.0.3"), &[]);
        let write = |allocation: Option<&Allocation>| {
            apply(&node, &[Change { node_name: "n", pool: "rail-0", allocation }]).unwrap();
        };
        write(Some(&ours));
        let before = std::fs::read(&file).unwrap();
        assert_eq!(peer_of(&node, gateway), None);
        for (ports, told) in [
            (vec![port("leaf-su0-r0", "swp2")], Some("leaf-su0-r0 swp2")),
            (vec![port("p0", "swp2"), port("p1", "swp2")], Some("p0 swp2, p1 swp2")),
            (vec![LeafPort { leaf: "leaf".into(), port: None }], Some("leaf")),
            (vec![], None),
            (vec![port("leaf-su0-r0", "swp2")], Some("leaf-su0-r0 swp2")),
        ] {
            ours.leaf_ports = ports;
            write(Some(&ours));
            assert_eq!(peer_of(&node, gateway).as_deref(), told);
            assert_eq!(std::fs::read(&file).unwrap(), before, "an older rail-ipam reads this");
            assert_eq!(Store::open(&node).unwrap().pools("n").unwrap(), ["rail-0"]);
        }
        assert_eq!(peer_of(&node, "172.16.0.1".parse().unwrap()), None);
        // An older rail-ipam writes another allocation and leaves the file beside it.
        let moved = allocation::tests::allocation("172.16.0.2/31", Some("172.16.0.2"), &[]);
        std::fs::write(&file, content(&moved).unwrap()).unwrap();
        assert_eq!(peer_of(&node, "172.16.0.2".parse().unwrap()), None);
        std::fs::write(file.with_file_name(LEAF_PORTS), "{").unwrap();
        write(Some(&ours));
        assert_eq!(peer_of(&node, gateway).as_deref(), Some("leaf-su0-r0 swp2"));
        write(None);
        assert!(!temp.path().join("store/n").exists());
    }

    #[test]
    fn damage_is_told_and_never_read_as_nothing() {
        let good = r#"{"version":1,"prefix":"172.16.1.60/31","gateway":"172.16.1.61"}"#;
        assert!(parse(good.as_bytes()).is_ok());
        for cut in 0..good.len() {
            assert!(parse(&good.as_bytes()[..cut]).unwrap_err().contains("line 1"), "{cut}");
        }
        for (from, to, told) in [
            ("60/31", "61/31", "host bits"),
            ("1.61", "1.62", "outside"),
            ("\"version\":1", "\"version\":2", "version 2"),
            ("\"version\":1", "\"version\":2,\"new\":1", "version 2"),
            ("\"version\":1", "\"x\":1", "unknown field `x`"),
            ("\"version\":1,", "", "version"),
            ("}", "} x", "trailing"),
            ("\"172.16.1.60/31\"", "7", "prefix: "),
            ("}", ",\"routes\":[{\"dst\":\"0.0.0.0/0\"}]}", "default route"),
            ("}", ",\"exclusions\":[{\"startIP\":\"::1\",\"endIP\":\"::2\"}]}", "exclusions[0]"),
        ] {
            let why = parse(good.replacen(from, to, 1).as_bytes()).unwrap_err();
            assert!(why.contains(told), "{told}: {why}");
        }
    }

    #[test]
    fn a_near_miss_differs_in_case_or_domain() {
        let names = ["worker-1", "worker-10", "WORKER-1.example.com"];
        assert_eq!(near_misses("Worker-1", names.into_iter()), ["WORKER-1.example.com", "worker-1"]);
        assert!(near_misses("worker-2", names.into_iter()).is_empty());
        assert_eq!(near_misses("worker-1", ["worker-1", "Worker-1"].into_iter()), ["Worker-1"]);
    }

    #[test]
    fn who_mistypes_a_name_sees_those_that_there_are() {
        let names: Vec<_> = (0..64).map(|node| format!("worker-gpu-{node}")).collect();
        let hint = |wanted: &str, count: usize| {
            near_hint(wanted, names.iter().take(count).map(String::as_str), "the store")
        };
        let told = hint("worker-gpu-64", 64);
        assert!(
            told.starts_with(
                ": the store has worker-gpu-4, worker-gpu-6, worker-gpu-14, worker-gpu-24, worker-gpu-34, worker-gpu-44, \
                 worker-gpu-46, worker-gpu-54, worker-gpu-60, worker-gpu-61 and 54 more; "
            ),
            "{told}"
        );
        assert!(hint("gpu-9", 2).starts_with(": the store has worker-gpu-0, worker-gpu-1; "));
        assert!(hint("WORKER-gpu-1", 2).starts_with(": did the plan mean it with worker-gpu-1?"));
        assert!(hint("x", 0).starts_with(": `rail-ipam plan` or `import` must"));
    }

    /// Of a store with more nodes than are listed.
    #[test]
    fn a_likely_name_is_of_a_known_domain_and_another_case() {
        let likely = |wanted: &str| likely_names(wanted, ["gpu-7.a.example", "gpu-8"].into_iter());
        for (wanted, expected) in [
            ("GPU-1", "gpu-1"),
            ("gpu-1", "GPU-1"),
            ("gpu-1", "Gpu-1"),
            ("gpu-1", "gpu-1.a.example"),
            ("GPU-1", "gpu-1.a.example"),
            ("gpu-1.a.example", "gpu-1"),
            ("gpu-1.b.example", "gpu-1.a.example"),
            ("gpu-1.B.example", "gpu-1.b.example"),
        ] {
            assert!(likely(wanted).contains(expected), "{wanted}: {expected}: {:?}", likely(wanted));
            assert!(!likely(wanted).contains(wanted));
        }
        assert!(likely("é").len() < 10 && likely("").len() < 10);
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }
}
