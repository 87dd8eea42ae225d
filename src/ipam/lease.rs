//! Leases: below `leases/NODE/POOL/` of the run folder, one file for each,
//! named `ADDRESS@KEY.json`, KEY being the hash of who holds it. So one listing
//! tells which addresses and which keys are held, whatever their number, and a
//! file is opened only where something hangs on it.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::living::{self, Living};
use crate::cni::{Attachment, Network};
use crate::files::{self, Dir, Lock};
use crate::netns::{Life, NetnsId};
use crate::node::Node;
use crate::pool::Allocation;
use crate::{fail, failure};

/// In the run folder.
pub const FOLDER: &str = "leases";
const LOCK: &str = "lock";
/// An ADD holds the lock for less than a millisecond.
const PATIENCE: Duration = Duration::from_secs(10);
const VERSION: u32 = 1;

/// What an ADD wants of a pool.
#[derive(Debug)]
pub struct Ask {
    pool: String,
    /// What the pool gives to this node.
    pub allocation: Allocation,
    requested: Option<IpAddr>,
}

impl Ask {
    /// One for each pool, with the address that was requested of it.
    pub fn all(
        pools: Vec<String>,
        allocations: Vec<Allocation>,
        requested: &[(IpAddr, Option<u8>)],
    ) -> Result<Vec<Ask>> {
        let mut asks: Vec<Ask> = pools
            .into_iter()
            .zip(allocations)
            .map(|(pool, allocation)| Ask { pool, allocation, requested: None })
            .collect();
        for (address, length) in requested {
            let prefixes: Vec<_> = asks.iter().map(|ask| ask.allocation.prefix.to_string()).collect();
            let Some(ask) = asks.iter_mut().find(|ask| ask.allocation.prefix.contains(address)) else {
                fail!(
                    InvalidConfig,
                    "requested address {address} is outside of this node's prefix {}",
                    prefixes.join(" and ")
                );
            };
            let Ask { pool, allocation, requested } = ask;
            if let Err(why) = allocation.check_host(*address) {
                fail!(InvalidConfig, "pool {pool}: requested address {address} {why}");
            }
            let (ours, whole) = (allocation.prefix.prefix_len(), allocation.prefix.max_prefix_len());
            if let Some(length) = length.filter(|length| *length != ours && *length != whole) {
                fail!(
                    InvalidConfig,
                    "pool {pool}: requested address {address}/{length}: it comes as /{ours}"
                );
            }
            if let Some(other) = requested.replace(*address).filter(|other| other != address) {
                fail!(InvalidConfig, "pool {pool}: {other} and {address} requested, it gives one");
            }
        }
        Ok(asks)
    }
}

/// Who has a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Name of the network.
    pub network: String,
    /// CNI_CONTAINERID.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// CNI_IFNAME.
    pub ifname: String,
    /// Its namespace; `None` when there was none at ADD: it is never dead, and goes with DEL or by GC's list.
    netns: Option<NetnsId>,
    /// `namespace/name`, for people.
    pub pod: Option<String>,
}

impl Holder {
    /// Who this call is for.
    pub fn new(network: &Network, attachment: &Attachment, netns: Option<NetnsId>) -> Result<Holder> {
        Ok(Holder {
            network: network.name.clone(),
            container_id: attachment.container_id.clone(),
            ifname: attachment.ifname.clone(),
            netns,
            pod: network.args.pod(),
        })
    }

    fn key(&self) -> String {
        files::hash(&[&self.network, &self.container_id, &self.ifname])
    }

    fn is(&self, network: &str, attachment: &Attachment) -> bool {
        self.network == network && self.is_of(attachment)
    }

    /// In whatever network.
    fn is_of(&self, attachment: &Attachment) -> bool {
        (&self.container_id, &self.ifname) == (&attachment.container_id, &attachment.ifname)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Holder { container_id, ifname, pod, .. } = self;
        match pod {
            Some(pod) => write!(f, "{ifname} of pod {pod} (container {container_id})"),
            None => write!(f, "{ifname} of container {container_id}"),
        }
    }
}

/// How leases of this attachment are named.
pub fn key(network: &str, attachment: &Attachment) -> String {
    files::hash(&[network, &attachment.container_id, &attachment.ifname])
}

/// The content of a lease's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    version: u32,
    #[serde(rename = "bootId")]
    boot_id: String,
    /// Who has it.
    #[serde(flatten)]
    pub holder: Holder,
    /// What is held.
    pub address: IpAddr,
    /// RFC 3339, for people.
    pub since: String,
}

impl Lease {
    /// What can be told of who has it. Another boot ended every namespace.
    pub fn life(&self) -> Result<Life> {
        if self.boot_id != files::boot_id()? {
            return Ok(Life::Dead);
        }
        let nothing = || Life::Unknown("no namespace was there at its ADD".to_owned());
        Ok(self.holder.netns.as_ref().map_or_else(nothing, NetnsId::life))
    }

    /// Is it certain that nobody uses the address any more?
    pub fn is_dead(&self) -> Result<bool> {
        Ok(self.life()? == Life::Dead)
    }

    fn file_name(&self) -> String {
        format!("{}@{}.json", self.address, self.holder.key())
    }
}

/// What the name of a lease's file says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// What is held.
    pub address: IpAddr,
    name: String,
}

impl Entry {
    fn of(name: &str) -> Option<Entry> {
        let (address, _) = parts(name)?;
        Some(Entry { address, name: name.to_owned() })
    }

    /// Not stored, for there may be thousands of entries.
    fn key(&self) -> &str {
        parts(&self.name).map_or("", |(_, key)| key)
    }
}

/// Address and key in the name of a lease's file.
fn parts(name: &str) -> Option<(IpAddr, &str)> {
    let (address, key) = name.strip_suffix(".json")?.split_once('@')?;
    Some((address.parse().ok()?, key))
}

/// Leases for all of `asks`, or none: with the addresses in the order of the asks.
pub fn take(node: &Node, node_name: &str, asks: &[Ask], holder: &Holder) -> Result<Vec<IpAddr>> {
    let prefixes: Vec<_> = asks.iter().map(|ask| ask.allocation.prefix).collect();
    let living = living::within(node, &prefixes)?;
    let (folders, _locks) = lock_all(node, node_name, asks)?;
    let mut choices = Vec::new();
    for (folder, ask) in folders.iter().zip(asks) {
        choices.push(folder.choose(ask, holder, &living)?);
    }

    let boot_id = files::boot_id()?.to_owned();
    let mut taken: Vec<(&Folder, Lease)> = Vec::new();
    for (folder, Choice { address, dead }) in folders.iter().zip(choices) {
        let lease = Lease {
            version: VERSION,
            boot_id: boot_id.clone(),
            holder: holder.clone(),
            address,
            since: files::now(),
        };
        let written = folder.bury(&dead).and_then(|()| folder.write(&lease));
        if let Err(error) = written {
            for (folder, lease) in taken {
                if let Err(error) = folder.dir.remove(&lease.file_name()) {
                    log::error!("pool {}: cannot give {} back: {error:#}", folder.pool, lease.address);
                }
            }
            return Err(error);
        }
        taken.push((folder, lease));
    }
    Ok(taken.into_iter().map(|(_, lease)| lease.address).collect())
}

/// The folders of all pools, locked. Another process may remove a folder with its last lease before we have its
/// lock: then all are made again.
fn lock_all(node: &Node, node_name: &str, asks: &[Ask]) -> Result<(Vec<Folder>, Vec<Lock>)> {
    const TURNS: usize = 100;
    let root = Rc::new(node.run(FOLDER)?);
    for _ in 0..TURNS {
        let made = asks.iter().map(|ask| Folder::create(&root, node_name, &ask.pool)).collect();
        let folders: Vec<Folder> = match made {
            Err(error) if files::is_not_found(&error) => continue,
            made => made?,
        };
        // In one order in every process, so that no two wait for each other.
        let mut in_order: Vec<_> = folders.iter().collect();
        in_order.sort_by_key(|folder| &folder.pool);
        let locks: Option<Vec<Lock>> = in_order.into_iter().map(Folder::lock).collect::<Result<_>>()?;
        if let Some(locks) = locks {
            return Ok((folders, locks));
        }
    }
    fail!(TryAgain, "{}: others keep removing the folders of the pools", root.path().display())
}

/// Gives back what the attachment holds, in whatever pool and under whatever name of the node; tells whether it
/// held anything. Without the name of the network, which only a DEL can lack, in every network.
pub fn release(node: &Node, network: &str, attachment: &Attachment) -> Result<bool> {
    let key = key(network, attachment);
    let mut held_any = false;
    let mut tidy = Tidy::default();
    for_each_folder(node, |folder| {
        // Waits for an ADD that its runtime gave up.
        let lock = folder.lock();
        // Nobody is writing while we have the lock: what is half-written is a killed ADD's.
        let (mut held, mut others) = (Vec::new(), 0);
        let mut look = |name: &str| match parts(name) {
            Some((_, of)) if network.is_empty() || of == key => held.extend(Entry::of(name)),
            _ => others += usize::from(name != LOCK),
        };
        if !matches!(lock, Ok(Some(_))) || folder.dir.remove_half_written("", &mut look).is_err() {
            folder.dir.visit(look)?;
        }
        held.sort();
        held.dedup();
        if held.is_empty() && !matches!(lock, Ok(Some(_))) {
            return Ok(());
        }
        let lock = lock?.with_context(|| format!("cannot lock {}", folder.dir.path().display()))?;
        for entry in held {
            if is_to_be_given_back(folder, &entry, network, attachment) {
                folder.remove(&entry)?;
                held_any = true;
                crate::log::addresses([entry.address]);
                log::info!("pool {}: {} is free again", folder.pool, entry.address);
            } else {
                others += 1;
            }
        }
        if others == 0 {
            tidy.remove_empty(folder, lock);
        }
        Ok(())
    })?;
    Ok(held_any)
}

/// Of a file that cannot be read the name alone is enough, if the name of the network is in its key.
fn is_to_be_given_back(folder: &Folder, entry: &Entry, network: &str, attachment: &Attachment) -> bool {
    match folder.read(entry) {
        Ok(None) => true,
        Ok(Some(lease)) if network.is_empty() => lease.holder.is_of(attachment),
        Ok(Some(lease)) => lease.holder.is(network, attachment),
        Err(why) if network.is_empty() => {
            log::warn!("pool {}: {} is kept: {why}", folder.pool, entry.address);
            false
        }
        Err(_) => true,
    }
}

/// Removes folders of pools without leases: a DEL looks into every one, and inline pools come and go. 0.1.0 left
/// them, so there may be many, and a call removes only some.
#[derive(Debug, Default)]
pub struct Tidy {
    removed: usize,
}

impl Tidy {
    const MOST: usize = 1000;

    /// Removes the folder, with the lock that we hold. Who waits for it finds the lock file gone and takes
    /// another turn; who made it anew before the folder went keeps the folder.
    pub fn remove_empty(&mut self, folder: &Folder, lock: Lock) {
        if self.removed < Tidy::MOST && folder.dir.remove(LOCK).is_ok() {
            self.removed += 1;
            if folder.of_node.remove_empty(&folder.pool) {
                folder.root.remove_empty(&folder.node_name);
            }
        }
        drop(lock);
    }
}

/// Gives back what `network` holds beside `keep`, but nothing whose namespace is alive or cannot be judged:
/// CRI-O lists what it knows of, which leaves out what Multus attached under the same name. Of a lease without a
/// namespace the list is all that can be known.
pub fn collect(node: &Node, network: &str, keep: &HashSet<String>) -> Result<()> {
    let mut tidy = Tidy::default();
    for_each_folder(node, |folder| {
        let Some(lock) = folder.lock()? else { return Ok(()) };
        let Folder { pool, .. } = folder;
        let mut left = 0;
        for entry in folder.entries()? {
            left += 1;
            if keep.contains(entry.key()) {
                continue;
            }
            let lease = match folder.read(&entry) {
                Ok(Some(lease)) if lease.holder.network == network => lease,
                Ok(_) => continue,
                Err(why) => {
                    log::warn!("pool {pool}: {} is kept: {why}", entry.address);
                    continue;
                }
            };
            let (kept, holder) = (format!("pool {pool}: {} is kept", entry.address), &lease.holder);
            match lease.life()? {
                Life::Alive => log::warn!("{kept}: {holder} is alive"),
                Life::Unknown(why) if holder.netns.is_some() => {
                    log::warn!("{kept}: whether {holder} is alive cannot be told: {why}");
                }
                Life::Dead | Life::Unknown(_) => {
                    folder.remove(&entry)?;
                    left -= 1;
                    log::info!("pool {pool}: {} taken back from {holder}", entry.address);
                }
            }
        }
        if left == 0 {
            tidy.remove_empty(folder, lock);
        }
        Ok(())
    })
}

/// Works on every folder there is; tells the first error after all were tried.
pub fn for_each_folder(node: &Node, mut work: impl FnMut(&Folder) -> Result<()>) -> Result<()> {
    let mut errors = Vec::new();
    let Some(root) = node.existing_run(FOLDER)?.map(Rc::new) else { return Ok(()) };
    for node_name in sorted(root.names()?) {
        let of_node = match folder_in(&root, &node_name) {
            Ok(Some(of_node)) => Rc::new(of_node),
            Ok(None) => continue,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        for pool in sorted(of_node.names()?) {
            let (root, of_node) = (&root, &of_node);
            let folder = folder_in(of_node, &pool)
                .map(|dir| dir.map(|dir| Folder::new(dir, of_node, root, &node_name, &pool)));
            match folder.and_then(|folder| folder.map_or(Ok(()), |folder| work(&folder))) {
                Ok(()) => (),
                Err(error) => errors.push(error),
            }
        }
    }
    let mut errors = errors.into_iter();
    let Some(first) = errors.next() else { return Ok(()) };
    for other in errors {
        log::error!("{other:#}");
    }
    Err(first)
}

/// A link or a file in the place of a folder was never ours: no lease is lost by passing it over, and a DEL
/// that failed for it would fail for ever.
fn folder_in(dir: &Dir, name: &str) -> Result<Option<Dir>> {
    dir.sub(name).or_else(|error| {
        let cause = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
        match cause.map(std::io::Error::kind) {
            Some(std::io::ErrorKind::NotADirectory) => {
                log::warn!("{} is no folder: remove it", dir.path().join(name).display());
                Ok(None)
            }
            _ => Err(error),
        }
    })
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

/// An address, and the dead who had it.
struct Choice {
    address: IpAddr,
    dead: Vec<(Entry, Lease)>,
}

/// The leases of one pool on one node.
#[derive(Debug)]
pub struct Folder {
    dir: Dir,
    of_node: Rc<Dir>,
    root: Rc<Dir>,
    /// Whose.
    pub node_name: String,
    /// Of which pool.
    pub pool: String,
}

impl Folder {
    fn new(dir: Dir, of_node: &Rc<Dir>, root: &Rc<Dir>, node_name: &str, pool: &str) -> Folder {
        let (of_node, root) = (of_node.clone(), root.clone());
        Folder { dir, of_node, root, node_name: node_name.to_owned(), pool: pool.to_owned() }
    }

    fn create(root: &Rc<Dir>, node_name: &str, pool: &str) -> Result<Folder> {
        let of_node = Rc::new(root.create_sub(node_name)?);
        let dir = of_node.create_sub(pool)?;
        Ok(Folder::new(dir, &of_node, root, node_name, pool))
    }

    /// The folder, if it is there.
    pub fn existing(node: &Node, node_name: &str, pool: &str) -> Result<Option<Folder>> {
        let Some(root) = node.existing_run(FOLDER)?.map(Rc::new) else { return Ok(None) };
        let Some(of_node) = root.sub(node_name)?.map(Rc::new) else { return Ok(None) };
        let dir = of_node.sub(pool)?;
        Ok(dir.map(|dir| Folder::new(dir, &of_node, &root, node_name, pool)))
    }

    /// Excludes every other process that changes this pool's leases. `None`: the folder was removed meanwhile.
    pub fn lock(&self) -> Result<Option<Lock>> {
        match self.dir.lock(LOCK, PATIENCE) {
            Err(error) if files::is_not_found(&error) => Ok(None),
            locked => locked.map(Some),
        }
    }

    /// What is held, in the order of the addresses.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.dir.visit(|name| entries.extend(Entry::of(name)))?;
        entries.sort();
        Ok(entries)
    }

    /// The lease of an entry; `None` when it is gone by now. The error says why the file cannot be believed:
    /// leases are renamed into place, so what is cut or does not match its name was not written by us.
    pub fn read(&self, entry: &Entry) -> Result<Option<Lease>, String> {
        let file = self.dir.path().join(&entry.name);
        let damaged = |why: String| {
            format!(
                "{} cannot be read ({why}), so its holder is unknown: if no pod has the address, \
                 `rail-ipam release --address {}`",
                file.display(),
                entry.address
            )
        };
        let Some(content) = self.dir.read(&entry.name).map_err(|error| damaged(format!("{error:#}")))? else {
            return Ok(None);
        };
        let lease: Lease = serde_json::from_slice(&content).map_err(|error| damaged(error.to_string()))?;
        match () {
            () if lease.version != VERSION => Err(damaged(format!("version {}", lease.version))),
            () if lease.file_name() != entry.name => Err(damaged("it is about another lease".to_owned())),
            () => Ok(Some(lease)),
        }
    }

    /// The lease of an attachment, whatever its state.
    pub fn held_by(&self, network: &str, attachment: &Attachment) -> Result<Option<Lease>> {
        let key = key(network, attachment);
        for entry in self.entries()?.iter().filter(|entry| entry.key() == key) {
            match self.read(entry) {
                Ok(Some(lease)) if lease.holder.is(network, attachment) => return Ok(Some(lease)),
                Ok(_) => (),
                Err(why) => fail!(CheckFailed, "pool {}: {why}", self.pool),
            }
        }
        Ok(None)
    }

    /// Fails when no lease could be written. That living pods hold every address is no failure: the runtime
    /// would call the node not ready for it, and after a while the pod that has the rail would be evicted.
    pub fn serves(&self) -> Result<()> {
        self.dir.writable()
    }

    /// Removes an entry.
    pub fn remove(&self, entry: &Entry) -> Result<()> {
        self.dir.remove(&entry.name)
    }

    fn write(&self, lease: &Lease) -> Result<()> {
        self.dir.write(&lease.file_name(), &serde_json::to_vec(lease)?, false)
    }

    /// The address that `holder` can have; none of those that are `living`. The folder is locked.
    fn choose(&self, ask: &Ask, holder: &Holder, living: &[Living]) -> Result<Choice> {
        let Folder { pool, .. } = self;
        let key = holder.key();
        // Of the others the addresses are enough, as long as one is free.
        let (mut own, mut held) = (Vec::new(), Vec::new());
        self.dir.remove_half_written("", |name| match parts(name) {
            Some((_, of)) if of == key => own.extend(Entry::of(name)),
            Some((address, _)) => held.push(address),
            None => (),
        })?;
        let others = || -> Result<Vec<Entry>> {
            Ok(self.entries()?.into_iter().filter(|entry| entry.key() != key).collect())
        };
        let mut stale = Vec::new();
        for entry in own {
            match self.read(&entry) {
                Err(why) => fail!(TryAgain, "pool {pool}: {} is held: {why}", entry.address),
                Ok(None) => (),
                Ok(Some(lease)) if lease.is_dead()? || lease.is_of_another_sandbox(holder) => {
                    stale.push((entry, lease));
                }
                Ok(Some(lease)) => fail!(
                    TryAgain,
                    "pool {pool}: {} already holds {} since {}: DEL comes before the next ADD",
                    lease.holder,
                    lease.address,
                    lease.since
                ),
            }
        }
        let mut choice = match ask.requested {
            None => self.any_address(&ask.allocation, held, others, living)?,
            Some(address) => match self.dead_holders(address, &others()?, living)? {
                Ok(dead) => Choice { address, dead },
                Err(alive) => fail!(TryAgain, "pool {pool}: requested address {alive}"),
            },
        };
        choice.dead.append(&mut stale);
        Ok(choice)
    }

    /// The lowest address that is not `held`; without one, the first whose holder is dead.
    fn any_address(
        &self,
        allocation: &Allocation,
        mut held: Vec<IpAddr>,
        others: impl FnOnce() -> Result<Vec<Entry>>,
        living: &[Living],
    ) -> Result<Choice> {
        let Folder { pool, .. } = self;
        held.extend(living.iter().map(|living| living.address));
        held.sort_unstable();
        if let Some(address) = allocation.first_free(|address| held.binary_search(&address).is_ok()) {
            return Ok(Choice { address, dead: Vec::new() });
        }
        let entries = others()?;
        held.dedup();
        held.retain(|address| allocation.check_host(*address).is_ok());
        let mut first = None;
        for address in &held {
            match self.dead_holders(*address, &entries, living)? {
                Ok(dead) => return Ok(Choice { address: *address, dead }),
                Err(alive) => first = first.or(Some(alive)),
            }
        }
        let Some(first) = first else { return Err(allocation.no_host(pool)) };
        let more = match held.len() {
            1 => String::new(),
            count => format!("; the other {} addresses are held as well", count - 1),
        };
        Err(failure!(TryAgain, "pool {pool}: no address of {} is free: {first}{more}", allocation.prefix))
    }

    /// The leases of `address`, if all of them are dead; else who holds it and what to do.
    fn dead_holders(
        &self,
        address: IpAddr,
        entries: &[Entry],
        living: &[Living],
    ) -> Result<Result<Vec<(Entry, Lease)>, String>> {
        let mut dead = Vec::new();
        for entry in entries.iter().filter(|entry| entry.address == address) {
            match self.read(entry) {
                Ok(None) => (),
                Ok(Some(lease)) => {
                    let unsure = match lease.life()? {
                        Life::Dead => {
                            dead.push((entry.clone(), lease));
                            continue;
                        }
                        Life::Alive => String::new(),
                        Life::Unknown(why) => format!(" (whether it is alive cannot be told: {why})"),
                    };
                    let Lease { holder, since, .. } = lease;
                    return Ok(Err(format!(
                        "{address} is held by {holder} since {since}{unsure}: delete that pod or, if it is \
                         gone, `rail-ipam release --address {address} --force`"
                    )));
                }
                Err(why) => return Ok(Err(format!("{address} is held: {why}"))),
            }
        }
        if let Some(living) = living.iter().find(|living| living.address == address) {
            return Ok(Err(format!(
                "{living}, and its lease was lost when the run folder was emptied: delete that pod"
            )));
        }
        Ok(Ok(dead))
    }

    /// Removes the leases of the dead.
    fn bury(&self, dead: &[(Entry, Lease)]) -> Result<()> {
        for (entry, lease) in dead {
            let Lease { holder, since, .. } = lease;
            log::warn!(
                "pool {}: {} taken over from {holder}, which is gone and held it since {since}",
                self.pool,
                entry.address
            );
            self.remove(entry)?;
        }
        Ok(())
    }
}

impl Lease {
    /// The same attachment in a new namespace: the old sandbox was thrown away without a DEL.
    fn is_of_another_sandbox(&self, holder: &Holder) -> bool {
        match (&self.holder.netns, &holder.netns) {
            (Some(then), Some(now)) => (then.dev, then.ino, then.created) != (now.dev, now.ino, now.created),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::allocation::tests::allocation;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    struct Bench {
        temp: tempfile::TempDir,
        node: Node,
    }

    /// A node with namespaces `a` to `d`: files, of which it cannot be told whether they live, until they are gone.
    fn bench() -> Bench {
        let temp = tempfile::tempdir().unwrap();
        let dirs = serde_json::json!({"storeDir": temp.path().join("s"), "runDir": temp.path().join("r")});
        for netns in ["a", "b", "c", "d"] {
            std::fs::write(temp.path().join(netns), "").unwrap();
        }
        Bench { node: serde_json::from_value(dirs).unwrap(), temp }
    }

    impl Bench {
        fn holder(&self, id: &str, netns: &str) -> Holder {
            Holder {
                network: "net".into(),
                container_id: id.into(),
                ifname: "net1".into(),
                netns: NetnsId::of(&self.temp.path().join(netns)).unwrap(),
                pod: Some(format!("default/{id}")),
            }
        }

        fn take(&self, pools: &[(&str, &str)], id: &str, netns: &str) -> Result<Vec<String>> {
            self.take_requested(pools, id, netns, &[])
        }

        fn take_requested(
            &self,
            pools: &[(&str, &str)],
            id: &str,
            netns: &str,
            requested: &[&str],
        ) -> Result<Vec<String>> {
            let names = pools.iter().map(|(name, _)| (*name).to_owned()).collect();
            let allocations = pools.iter().map(|(_, prefix)| allocation(prefix, None, &[])).collect();
            let requested: Vec<_> = requested.iter().map(|text| (text.parse().unwrap(), None)).collect();
            let asks = Ask::all(names, allocations, &requested)?;
            let taken = take(&self.node, "n", &asks, &self.holder(id, netns))?;
            Ok(taken.iter().map(ToString::to_string).collect())
        }

        fn release(&self, id: &str) {
            release(&self.node, "net", &attachment(id)).unwrap();
        }

        fn kill(&self, netns: &str) {
            std::fs::remove_file(self.temp.path().join(netns)).unwrap();
        }

        fn files(&self, pool: &str) -> Vec<std::path::PathBuf> {
            let dir = self.temp.path().join("r/leases/n").join(pool);
            let paths = std::fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
            paths.filter(|path| path.extension().is_some()).collect()
        }
    }

    fn attachment(id: &str) -> Attachment {
        Attachment { container_id: id.into(), ifname: "net1".into() }
    }

    const P: (&str, &str) = ("p", "10.0.0.0/31");
    const ONE: (&str, &str) = ("one", "10.0.0.1/32");

    #[test]
    fn an_address_is_held_until_it_is_given_back() {
        let bench = bench();
        assert_eq!(bench.take(&[P], "c1", "a").unwrap(), ["10.0.0.0"]);
        assert_eq!(bench.take(&[P], "c2", "b").unwrap(), ["10.0.0.1"]);
        let error = bench.take(&[P], "c3", "c").unwrap_err();
        assert_eq!(crate::error::code_of(&error), 11);
        let error = error.to_string();
        assert!(
            error.contains("10.0.0.0 is held by net1 of pod default/c1 (container c1) since 2"),
            "{error}"
        );
        assert!(error.contains("the other 1 addresses"), "{error}");
        bench.release("c1");
        bench.release("c1");
        assert_eq!(bench.take(&[P], "c3", "c").unwrap(), ["10.0.0.0"]);
    }

    #[test]
    fn what_the_dead_hold_is_taken_over() {
        let bench = bench();
        bench.take(&[ONE], "c1", "a").unwrap();
        assert!(bench.take(&[ONE], "c2", "b").is_err());
        bench.kill("a");
        assert_eq!(bench.take(&[ONE], "c2", "b").unwrap(), ["10.0.0.1"]);
        let [file] = bench.files("one").try_into().unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace(files::boot_id().unwrap(), "another-boot")).unwrap();
        assert_eq!(bench.take_requested(&[ONE], "c3", "c", &["10.0.0.1"]).unwrap(), ["10.0.0.1"]);
        // The late DEL of a dead one leaves its heir alone.
        bench.release("c2");
        assert_eq!(bench.files("one").len(), 1);
    }

    #[test]
    fn a_second_add_gets_nothing_unless_its_sandbox_is_new() {
        let bench = bench();
        bench.take(&[P], "c1", "a").unwrap();
        let error = bench.take(&[P], "c1", "a").unwrap_err().to_string();
        assert!(error.contains("already holds 10.0.0.0 since"), "{error}");
        assert_eq!(bench.take(&[P], "c1", "b").unwrap(), ["10.0.0.0"]);
        assert_eq!(bench.files("p").len(), 1);
    }

    #[test]
    fn two_pools_give_both_or_nothing() {
        let bench = bench();
        bench.take(&[ONE], "c1", "a").unwrap();
        for pools in [[P, ONE], [ONE, P]] {
            assert!(bench.take(&pools, "c2", "b").is_err());
            assert!(bench.files("p").is_empty());
        }
        bench.release("c1");
        assert_eq!(bench.take(&[P, ONE], "c2", "b").unwrap(), ["10.0.0.0", "10.0.0.1"]);
        bench.release("c2");
        assert!(bench.files("p").is_empty() && bench.files("one").is_empty());
    }

    #[test]
    fn a_requested_address_must_be_had_as_it_is() {
        let bench = bench();
        let ask = |requested: &[&str]| bench.take_requested(&[P], "c1", "a", requested);
        assert!(
            ask(&["10.0.0.2"]).unwrap_err().to_string().contains("outside of this node's prefix 10.0.0.0/31")
        );
        assert!(ask(&["10.0.0.0", "10.0.0.1"]).unwrap_err().to_string().contains("it gives one"));
        assert_eq!(ask(&["10.0.0.1"]).unwrap(), ["10.0.0.1"]);
        let error = bench.take_requested(&[P], "c2", "b", &["10.0.0.1"]).unwrap_err().to_string();
        assert!(error.contains("requested address 10.0.0.1 is held by"), "{error}");
        let wide = vec![allocation("10.0.0.0/24", Some("10.0.0.1"), &[("10.0.0.9", "10.0.0.9")])];
        for bad in [
            ("10.0.0.1", None),
            ("10.0.0.0", None),
            ("10.0.0.255", None),
            ("10.0.0.9", None),
            ("10.0.0.2", Some(31)),
        ] {
            let requested = [(bad.0.parse().unwrap(), bad.1)];
            let error = Ask::all(vec!["p".into()], wide.clone(), &requested).unwrap_err();
            assert_eq!(crate::error::code_of(&error), 7, "{bad:?}");
        }
    }

    #[test]
    fn a_damaged_file_holds_its_address_and_del_needs_only_its_name() {
        let bench = bench();
        bench.take(&[ONE], "c1", "a").unwrap();
        bench.kill("a");
        let [file] = bench.files("one").try_into().unwrap();
        let whole = std::fs::read_to_string(&file).unwrap();
        for damage in
            ["", "{", &whole[..100], &whole.replace("10.0.0.1", "10.0.0.2"), &whole.replace(":1,", ":2,")]
        {
            std::fs::write(&file, damage).unwrap();
            let error = bench.take(&[ONE], "c2", "b").unwrap_err();
            assert_eq!(crate::error::code_of(&error), 11);
            assert!(error.to_string().contains("`rail-ipam release --address 10.0.0.1`"), "{error}");
        }
        bench.release("c1");
        assert!(bench.files("one").is_empty());
    }

    #[test]
    fn gc_keeps_what_is_listed_or_alive_or_not_of_its_network() {
        let bench = bench();
        let net = ("p", "10.0.0.0/24");
        for (id, netns) in [("listed", "a"), ("alive", "b"), ("dead", "c"), ("unknown", "missing")] {
            bench.take(&[net], id, netns).unwrap();
        }
        let other = Holder { network: "other".into(), ..bench.holder("x", "c") };
        let ask = Ask { pool: "p".into(), allocation: allocation(net.1, None, &[]), requested: None };
        take(&bench.node, "n", &[ask], &other).unwrap();
        bench.kill("a");
        bench.kill("c");
        collect(&bench.node, "net", &HashSet::from([key("net", &attachment("listed"))])).unwrap();
        let texts: Vec<_> =
            bench.files("p").iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
        let left: Vec<_> = ["listed", "alive", "dead", "unknown", "\"x\""]
            .map(|id| texts.iter().any(|text| text.contains(id)))
            .into();
        assert_eq!(left, [true, true, false, false, true]);
    }

    /// A DEL whose `name` is of another type still names container and interface.
    #[test]
    fn without_the_name_of_the_network_all_of_the_attachment_is_given_back() {
        let bench = bench();
        bench.take(&[P, ONE], "c1", "a").unwrap();
        let other = Holder { network: "other".into(), ..bench.holder("c1", "a") };
        let two = allocation("10.0.1.0/31", None, &[]);
        let ask = |pool: &str| Ask { pool: pool.into(), allocation: two.clone(), requested: None };
        take(&bench.node, "n", &[ask("two")], &other).unwrap();
        take(&bench.node, "n", &[ask("two")], &bench.holder("c2", "b")).unwrap();
        let ifname = Attachment { ifname: "net2".into(), ..attachment("c1") };
        assert!(!release(&bench.node, "", &ifname).unwrap());
        assert!(release(&bench.node, "", &attachment("c1")).unwrap());
        assert!(!release(&bench.node, "", &attachment("c1")).unwrap());
        assert!(bench.files("p").is_empty() && bench.files("one").is_empty());
        let [left] = bench.files("two").try_into().unwrap();
        // Whose it is stands in the file alone.
        std::fs::write(&left, "").unwrap();
        assert!(!release(&bench.node, "", &attachment("c2")).unwrap());
        assert!(left.exists() && release(&bench.node, "net", &attachment("c2")).unwrap());
    }

    /// One DEL after an upgrade is not to pay for all that 0.1.0 left.
    #[test]
    fn a_call_removes_a_bounded_number_of_old_folders() {
        let bench = bench();
        let root = bench.temp.path().join("r/leases/n");
        for n in 0..Tidy::MOST + 10 {
            std::fs::create_dir_all(root.join(format!("p{n}"))).unwrap();
        }
        bench.release("c1");
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 10);
        bench.release("c1");
        assert!(!root.exists());
    }

    #[test]
    fn del_passes_over_what_is_no_folder_and_makes_none() {
        let bench = bench();
        bench.release("c1");
        assert!(!bench.temp.path().join("r").exists());
        bench.take(&[P], "c1", "a").unwrap();
        let leases = bench.temp.path().join("r/leases");
        std::fs::write(leases.join("file"), "").unwrap();
        std::os::unix::fs::symlink("/", leases.join("n/link")).unwrap();
        bench.release("c1");
        assert!(bench.files("p").is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Against a map from addresses to who holds them.
        #[test]
        fn the_folder_is_a_map(steps in proptest::collection::vec((0usize..4, 0usize..3), 1..40)) {
            let bench = bench();
            let mut model: BTreeMap<String, usize> = BTreeMap::new();
            for (who, what) in steps {
                let id = format!("c{who}");
                let netns = ["a", "b", "c", "d"][who];
                let path = bench.temp.path().join(netns);
                match what {
                    0 => {
                        let is_alive = |bench: &Bench, id: &str| -> bool {
                            let folder = Folder::existing(&bench.node, "n", "p").unwrap();
                            let lease = folder.and_then(|folder| folder.held_by("net", &attachment(id)).unwrap());
                            lease.is_some_and(|lease| !lease.is_dead().unwrap())
                        };
                        let had = is_alive(&bench, &id);
                        if !path.exists() {
                            std::fs::write(&path, "").unwrap();
                        }
                        let held: Vec<_> = model.iter().map(|(a, w)| (a.clone(), *w, is_alive(&bench, &format!("c{w}")))).collect();
                        match bench.take(&[P], &id, netns) {
                            Ok(address) => {
                                prop_assert!(!had);
                                let holder = held.iter().find(|(held, ..)| *held == address[0]);
                                prop_assert!(holder.is_none_or(|(_, holder, alive)| !alive || *holder == who));
                                model.retain(|_, holder| *holder != who);
                                model.insert(address[0].clone(), who);
                            }
                            Err(_) => prop_assert!(had || held.iter().filter(|(_, _, alive)| *alive).count() == 2),
                        }
                    }
                    1 => {
                        bench.release(&id);
                        model.retain(|_, holder| *holder != who);
                    }
                    _ => drop(std::fs::remove_file(&path)),
                }
                if Path::new(&bench.temp.path().join("r/leases/n/p")).exists() {
                    let folder = Folder::existing(&bench.node, "n", "p").unwrap().unwrap();
                    let listed: Vec<_> = folder.entries().unwrap().iter().map(|entry| entry.address.to_string()).collect();
                    prop_assert_eq!(listed, model.keys().cloned().collect::<Vec<_>>());
                }
            }
        }

        #[test]
        fn no_name_and_no_content_makes_it_panic(name in "[0-9a-f.:@/]{0,20}(\\.json)?", content: Vec<u8>) {
            if let Some(entry) = Entry::of(&name) {
                let bench = bench();
                let root = Rc::new(bench.node.run(FOLDER).unwrap());
                let folder = Folder::create(&root, "n", "p").unwrap();
                if !name.contains('/') {
                    folder.dir.write(&name, &content, false).unwrap();
                }
                prop_assert!(!matches!(folder.read(&entry), Ok(Some(_))));
            }
        }
    }
}
