//! The store: `NODE/POOL.json` below storeDir, one small file for each node in each pool, so that the cost of an ADD does
//! not depend on the number of nodes. `NODE/leaf-ports` has the leaf ports of the cables, if the plan has them; an older
//! rail-ipam ignores that file, and so does ADD.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::allocation::{self, Allocation, LeafPort};
use crate::error::{self, Code};
use crate::failure;
use crate::files::{self, Dir, Lock};
use crate::nearest::by_distance;
use crate::node::Node;
use crate::progress::Progress;

const LOCK: &str = ".lock";
/// The name is without `.json`, by which an older rail-ipam knows pools.
const LEAF_PORTS: &str = "leaf-ports";
/// A file that exists while a process writes the store, or after one was killed.
const UNFINISHED: &str = ".unfinished";
/// The prefix of a directory's name that is not a node's yet, or not any more.
const NEW: &str = ".new.";
/// A message about a large store looks at this many nodes.
const MOST_LISTED: usize = 10_000;
const PATIENCE: Duration = Duration::from_secs(10);

/// The allocations of `node_name` in `pools`, all of one plan. The error for a missing one names similar nodes.
pub fn load(node: &Node, node_name: &str, pools: &[String]) -> Result<Vec<Allocation>> {
    let store = Store::open(node)?;
    let found = store.find(node_name, pools)?;
    let or_missing = |(pool, found): (&String, Found)| found?.ok_or_else(|| store.missing(node_name, pool));
    pools.iter().zip(found).map(or_missing).collect()
}

/// The leaf ports behind `gateway`, a neighbour of this node, such as `leaf-su0-r0 swp2`. `None` if the plan has none.
/// Where all leaves have the same gateway, the `addresses` of the rail say which of them it is.
pub fn peer_of(node: &Node, gateway: IpAddr, addresses: &[IpNet]) -> Option<String> {
    let mut of_gateway = allocations(node);
    of_gateway.retain(|(_, one)| one.gateway == Some(gateway) && !one.leaf_ports.is_empty());
    let has = |one: &Allocation| addresses.iter().any(|net| one.prefix.contains(&net.addr()));
    let of_rail = of_gateway.iter().find(|(_, one)| has(one));
    let only = if of_gateway.len() == 1 { of_gateway.first() } else { None };
    of_rail.or(only).map(|(_, one)| allocation::join(&one.leaf_ports))
}

/// The allocations of this node, by pool. Empty if the store cannot be read, because this is for messages about errors
/// with another cause.
pub fn allocations(node: &Node) -> Vec<(String, Allocation)> {
    let all = || -> Result<Vec<(String, Allocation)>> {
        let all = Store::open(node)?.everything(&super::node_name(node)?)?;
        Ok(all.into_iter().filter_map(|(pool, found)| Some((pool, found.ok()??))).collect())
    };
    all().unwrap_or_default()
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
            Ok(root) => Ok(Store { path, root: Some(root) }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Store { path, root: None }),
            Err(error) => Err(error).with_context(|| format!("cannot open {}", path.display())),
        }
    }

    /// All nodes that have a directory, sorted.
    pub fn nodes(&self) -> Result<Vec<String>> {
        let mut nodes = self.root.as_ref().map(Dir::names).transpose()?.unwrap_or_default();
        nodes.retain(|name| super::is_name(name));
        nodes.sort();
        Ok(nodes)
    }

    /// At most `most` nodes, in no order. A large store has a million.
    pub fn some_nodes(&self, most: usize) -> Vec<String> {
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| super::is_name(name)).take(most).collect()
    }

    /// Whether somebody writes the store, or was killed while he did: some nodes may have the plan from before.
    pub fn is_unfinished(&self) -> bool {
        self.path.join(UNFINISHED).exists()
    }

    /// The pools that have an allocation for `node_name`, sorted.
    pub fn pools(&self, node_name: &str) -> Result<Vec<String>> {
        let names = self.of_one_plan(node_name, |_| false, Dir::names)?.unwrap_or_default();
        let mut pools: Vec<_> =
            names.iter().filter_map(|name| name.strip_suffix(".json")).map(str::to_owned).collect();
        pools.sort();
        Ok(pools)
    }

    /// The allocation of `node_name` in each of `pools`, all of one plan.
    pub fn find(&self, node_name: &str, pools: &[impl AsRef<str>]) -> Result<Vec<Found>> {
        let is_whole = |found: &Vec<Found>| found.iter().all(|found| matches!(found, Ok(Some(_))));
        let read = |folder: &Dir| Ok(pools.iter().map(|pool| read(folder, pool.as_ref())).collect());
        let found = self.of_one_plan(node_name, is_whole, read)?;
        Ok(found.unwrap_or_else(|| pools.iter().map(|_| Ok(None)).collect()))
    }

    /// All allocations of `node_name`, by pool, with their leaf ports; all of one plan.
    pub fn everything(&self, node_name: &str) -> Result<BTreeMap<String, Found>> {
        Ok(self.of_one_plan(node_name, |_| false, everything_in)?.unwrap_or_default())
    }

    /// What `read` finds in the directory of `node_name`; `None` if there is none. A directory that is replaced loses its
    /// files only later: what is not whole, as `is_whole` says, may be of one that was replaced meanwhile, and is read again
    /// from the new one.
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
            let Some(folder) = self.folder(node_name)? else { return Ok(None) };
            let found = read(&folder);
            let is_done = found.as_ref().is_ok_and(&is_whole)
                || self.root.as_ref().is_none_or(|root| root.names_still(node_name, &folder));
            if is_done || turn == TURNS {
                return found.map(Some);
            }
        }
    }

    fn folder(&self, node_name: &str) -> Result<Option<Dir>> {
        Ok(self.root.as_ref().map(|root| root.sub(node_name)).transpose()?.flatten())
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
        near_hint(wanted, self.likely(wanted).iter().map(String::as_str), "the store")
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
        // A directory may be empty since the last call, or of somebody else.
        listed.retain(|name| name != wanted);
        let likely = likely_names(wanted, listed.iter().map(String::as_str));
        let is_there = |name: &String| super::is_name(name) && self.path.join(name).is_dir();
        listed.into_iter().chain(likely.into_iter().filter(is_there)).collect()
    }
}

fn everything_in(folder: &Dir) -> Result<BTreeMap<String, Found>> {
    let names = folder.names()?;
    let has_leaf_ports = names.iter().any(|name| name == LEAF_PORTS);
    let mut leaf_ports = if has_leaf_ports { read_leaf_ports(folder)? } else { BTreeMap::new() };
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

/// A change of the store.
#[derive(Debug)]
pub struct Change<'a> {
    /// The name of the node.
    pub node_name: &'a str,
    /// The name of the pool.
    pub pool: &'a str,
    /// The new allocation; `None` to remove it.
    pub allocation: Option<&'a Allocation>,
}

/// The right to write the store. Whoever has it compares a plan with the store, and writes what is different: between the
/// two nobody else writes.
#[derive(Debug)]
pub struct Writer {
    /// The directory, and its lock. It is no error that there is none as long as there is nothing to write.
    root: Result<(Dir, Lock)>,
    path: PathBuf,
}

impl Writer {
    /// Waits for other writers. Makes the directory if it is missing.
    pub fn new(node: &Node) -> Result<Writer> {
        let open = || -> Result<(Dir, Lock)> {
            let root = Dir::create(&node.store_dir)?;
            let lock = root.lock(LOCK, PATIENCE)?;
            Ok((root, lock))
        };
        match open() {
            Err(error) if error::code_of(&error) == Code::TryAgain as u32 => Err(error),
            root => Ok(Writer { root, path: node.store_dir.clone() }),
        }
    }
}

/// Makes all changes durable, or none. The changes of one node are next to each other.
///
/// The new directory of a node is complete before it replaces the old one in one step, so a reader has the old or the
/// new one. All nodes share two waits for the disk: one for each file would take minutes for a large fabric.
/// `agree` is asked right before the first of them is replaced, when nothing but the exchange is left to do. What it
/// returns is kept until all are, and not while the disk is waited for.
pub fn apply<G>(writer: Writer, changes: &[Change<'_>], agree: impl FnOnce() -> Result<G>) -> Result<()> {
    let is_unfinished = writer.path.join(UNFINISHED).exists();
    if changes.is_empty() && !is_unfinished {
        return agree().map(drop);
    }
    let (root, _lock) = writer.root?;
    if is_unfinished {
        let names = root.all_names()?;
        let names: Vec<_> = names.iter().filter_map(|name| name.strip_prefix(NEW)).collect();
        clear(&root, &names)?;
    }
    let of_node: Vec<_> = changes.chunk_by(|one, other| one.node_name == other.node_name).collect();
    let names: Vec<_> = of_node.iter().map(|changes| changes[0].node_name).collect();
    root.write_new(UNFINISHED, b"")?;
    let replaced = replace(&root, &of_node, agree);
    if let Err(error) = clear(&root, &names) {
        // The remains do no harm, and the next apply removes them.
        log::warn!("{error:#}");
    }
    replaced
}

fn replace<G>(root: &Dir, of_node: &[&[Change<'_>]], agree: impl FnOnce() -> Result<G>) -> Result<()> {
    let mut steps = Vec::with_capacity(of_node.len());
    let mut progress = Progress::new("writing nodes", of_node.len());
    for changes in of_node {
        steps.push((changes[0].node_name, prepare(root, changes)?));
        progress.step();
    }
    sync(root)?;
    let agreed = agree()?;
    progress = Progress::new("replacing nodes", steps.len());
    for (done, (name, step)) in steps.iter_mut().enumerate() {
        progress.step();
        let Err(error) = step.take(root, name) else { continue };
        // A directory is unchanged, unless its files were replaced one by one.
        let taken = if matches!(step, Step::FileByFile) { done + 1 } else { done };
        let undone = steps[..taken].iter().rev().try_for_each(|(name, step)| step.undo(root, name));
        return Err(match undone {
            Ok(()) => error,
            Err(why) => {
                let mixed = "some nodes have the new plan and some the old one: write the plan again";
                error.context(format!("{why:#}; {mixed}"))
            }
        });
    }
    drop(agreed);
    drop(progress);
    match steps.iter().filter(|(_, step)| matches!(step, Step::FileByFile)).count() {
        0 => (),
        count => log::warn!(
            "{}: this file system cannot exchange directories: {count} nodes were written file by file, and an ADD \
             at that moment may have read one pool of the old plan and one of the new",
            root.path().display()
        ),
    }
    sync(root)
}

fn sync(root: &Dir) -> Result<()> {
    let _progress = Progress::wait("waiting for the disk");
    root.sync()
}

/// How a node gets its new directory.
#[derive(Debug)]
enum Step {
    /// The node had no directory.
    Make,
    /// The directories are exchanged.
    Exchange,
    /// The directory has one file, and only this file is exchanged: a million nodes with one pool need no new
    /// directories.
    ExchangeFile(String),
    /// The directory is removed.
    Remove,
    /// There is no directory, before and after.
    Nothing,
    /// The files were replaced one by one, on a file system that cannot exchange directories.
    FileByFile,
}

/// Makes the new directory of a node, with the changes and with links to all other files of the old one.
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
    let mut leaf_ports = old.as_ref().map(read_leaf_ports).transpose()?.unwrap_or_default();
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
    if let (Some(only), true, [(file, content)]) = (only, kept.is_empty(), put.as_slice()) {
        if only == *file {
            make_new(root, &hidden, || root.write_new(&hidden, content))?;
            return Ok(Step::ExchangeFile(format!("{name}/{file}")));
        }
    }
    let step = match (&old, has_new) {
        (None, true) => Step::Make,
        (Some(_), true) => Step::Exchange,
        (Some(_), false) => {
            root.remove_any(&hidden)?; // as in make_new
            Step::Remove
        }
        (None, false) => Step::Nothing,
    };
    if has_new {
        make_new(root, &hidden, || root.make(&hidden))?;
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

/// Makes the entry `hidden`. A file system that loses its last changes in another order than that in which they were made
/// may have kept one of a killed writer without [`UNFINISHED`].
fn make_new(root: &Dir, hidden: &str, make: impl Fn() -> Result<()>) -> Result<()> {
    match make() {
        Err(error) if files::is_already_there(&error) => {
            root.remove_any(hidden)?;
            make()
        }
        made => made,
    }
}

fn content(of_file: &impl Serialize) -> Result<Vec<u8>> {
    let mut content = serde_json::to_vec(of_file)?;
    content.push(b'\n');
    Ok(content)
}

/// The leaf ports of a node in a pool. An older rail-ipam writes only the allocation; if its gateway is another one, these
/// leaf ports are of an older plan.
#[derive(Debug, Serialize, Deserialize)]
struct OfPool {
    gateway: Option<IpAddr>,
    ports: Vec<LeafPort>,
}

/// The leaf ports of a node, by pool. Empty if the file is damaged: only messages use it, and the next plan writes it
/// again.
fn read_leaf_ports(folder: &Dir) -> Result<BTreeMap<String, OfPool>> {
    let content = folder.read(LEAF_PORTS)?.unwrap_or_default();
    Ok(serde_json::from_slice(&content).unwrap_or_default())
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
        // EXDEV: overlayfs, for a directory that is not in the upper layer.
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

/// Moves the prepared files of a node, if there are any, into its directory, and removes all others there.
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

/// Removes the hidden directories of these nodes: old ones, or those of a killed writer. The caller has the lock.
fn clear(root: &Dir, names: &[&str]) -> Result<()> {
    let mut progress = Progress::new("removing old nodes", names.len());
    for name in names {
        root.remove_any(&hidden(name))?;
        progress.step();
    }
    root.remove(UNFINISHED)
}

/// The name of a node's directory before and after it is the node's. It has the same parent, because a directory that
/// stays in its parent is not written again when it is renamed.
fn hidden(node_name: &str) -> String {
    format!("{NEW}{node_name}")
}

/// The allocation of a pool in the directory of a node.
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

/// Parses a file. A file that is cut short or empty is damaged, and never means that there is no allocation: nv-ipam takes
/// an empty store for a new one, and gives addresses in use a second time.
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
            "version {version} is newer than version {} of this rail-ipam: install a newer one",
            allocation::UNNUMBERED
        )
    };
    match read.and_then(|allocation| json.end().map_err(|error| error.to_string()).map(|()| allocation)) {
        Ok(allocation) if !(allocation::NUMBERED..=allocation::UNNUMBERED).contains(&allocation.version) => {
            Err(version(allocation.version))
        }
        Ok(allocation) => allocation.check().map(|()| allocation).map_err(|fault| damaged(fault.to_string())),
        Err(why) => {
            let value = serde_json::from_slice::<serde_json::Value>(content).unwrap_or_default();
            let other = value["version"].as_u64().and_then(|version| u32::try_from(version).ok());
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
    let hosts = [host.to_owned(), host.to_ascii_lowercase(), host.to_ascii_uppercase(), capital];
    let mut likely: BTreeSet<String> =
        hosts.iter().flat_map(|host| domains.iter().map(move |domain| format!("{host}{domain}"))).collect();
    likely.insert(wanted.to_ascii_lowercase());
    likely.remove(wanted);
    likely
}

/// Names that differ from `wanted` in letter case or domain only.
pub fn near_misses<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let host = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_near = |name: &&str| *name != wanted && host(name) == host(wanted);
    let mut near: Vec<_> = names.filter(is_near).take(3).map(str::to_owned).collect();
    near.sort();
    near
}

/// A hint for a node that is not among `names`, which `whose` ("the plan") has: a near miss, or else some of them.
pub fn near_hint<'a>(wanted: &str, names: impl Iterator<Item = &'a str> + Clone, whose: &str) -> String {
    match near_misses(wanted, names.clone()).as_slice() {
        [] => {
            let given =
                "`rail-ipam plan` or `rail-ipam import` must give it one, because none is ever invented";
            match some_names(wanted, names) {
                None => format!(": {given}"),
                Some(some) => format!(": {whose} has {some}; {given}, or nodeName in node.json is wrong"),
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
    let some = all.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
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
