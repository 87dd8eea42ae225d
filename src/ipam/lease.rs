//! Leases: below `leases/NODE/POOL/` of the run folder, one file for each,
//! named `ADDRESS@KEY.json`, KEY being the hash of who holds it. So one listing
//! tells which addresses and which keys are held, whatever their number, and a
//! file is opened only where something hangs on it.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::allocation::Allocation;
use crate::cni::{Attachment, Network};
use crate::files::{self, Dir, Lock};
use crate::netns::NetnsId;
use crate::node::Node;
use crate::{fail, failure};

const FOLDER: &str = "leases";
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
    /// Its namespace; `None` when it could not be looked at, and then it counts as alive.
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
        let Holder { network: ours, container_id, ifname, .. } = self;
        (ours.as_str(), container_id, ifname) == (network, &attachment.container_id, &attachment.ifname)
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
    /// Is it certain that nobody uses the address any more? Another boot ended every namespace.
    pub fn is_dead(&self) -> Result<bool> {
        let is_gone = |netns: &NetnsId| !netns.is_alive();
        Ok(self.boot_id != files::boot_id()? || self.holder.netns.as_ref().is_some_and(is_gone))
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
    key: String,
    name: String,
}

impl Entry {
    fn parse(name: String) -> Option<Entry> {
        let (address, key) = name.strip_suffix(".json")?.split_once('@')?;
        Some(Entry { address: address.parse().ok()?, key: key.to_owned(), name })
    }
}

/// Leases for all of `asks`, or none: with the addresses in the order of the asks.
pub fn take(node: &Node, node_name: &str, asks: &[Ask], holder: &Holder) -> Result<Vec<IpAddr>> {
    let folders =
        asks.iter().map(|ask| Folder::create(node, node_name, &ask.pool)).collect::<Result<Vec<_>>>()?;
    // In one order in every process, so that no two wait for each other.
    let mut in_order: Vec<_> = folders.iter().collect();
    in_order.sort_by_key(|folder| &folder.pool);
    let _locks = in_order.into_iter().map(Folder::lock).collect::<Result<Vec<_>>>()?;

    let mut choices = Vec::new();
    for (folder, ask) in folders.iter().zip(asks) {
        folder.dir.remove_half_written("")?;
        choices.push(folder.choose(ask, holder)?);
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

/// Gives back what the attachment holds, in whatever pool and under whatever name of the node.
pub fn release(node: &Node, network: &str, attachment: &Attachment) -> Result<()> {
    let key = key(network, attachment);
    for_each_folder(node, |folder| {
        // Waits for an ADD that its runtime gave up.
        let lock = folder.lock();
        let held: Vec<_> = folder.entries()?.into_iter().filter(|entry| entry.key == key).collect();
        if held.is_empty() {
            return Ok(());
        }
        let _lock = lock?;
        for entry in held {
            // The name alone is enough for a file that cannot be read.
            let is_ours =
                |lease: Option<Lease>| lease.is_none_or(|lease| lease.holder.is(network, attachment));
            if folder.read(&entry).map_or(true, is_ours) {
                folder.remove(&entry)?;
                log::info!("pool {}: {attachment} gave {} back", folder.pool, entry.address);
            }
        }
        Ok(())
    })
}

/// Gives back what `network` holds beside `keep`, but nothing whose namespace is provably alive: runtimes list
/// what they know of, which is not all that there is (contract, trap 13).
pub fn collect(node: &Node, network: &str, keep: &HashSet<String>) -> Result<()> {
    for_each_folder(node, |folder| {
        let _lock = folder.lock()?;
        for entry in folder.entries()?.into_iter().filter(|entry| !keep.contains(&entry.key)) {
            let Folder { pool, .. } = folder;
            match folder.read(&entry) {
                Err(why) => log::warn!("pool {pool}: {} is kept: {why}", entry.address),
                Ok(None) => (),
                Ok(Some(lease)) if lease.holder.network != network => (),
                Ok(Some(lease)) if lease.holder.netns.is_some() && !lease.is_dead()? => {
                    log::warn!("pool {pool}: {} is kept: {} is alive", entry.address, lease.holder);
                }
                Ok(Some(lease)) => {
                    folder.remove(&entry)?;
                    log::info!("pool {pool}: {} taken back from {}", entry.address, lease.holder);
                }
            }
        }
        Ok(())
    })
}

/// Works on every folder there is; tells the first error after all were tried.
pub fn for_each_folder(node: &Node, mut work: impl FnMut(&Folder) -> Result<()>) -> Result<()> {
    let mut errors = Vec::new();
    let Some(root) = node.existing_run(FOLDER)? else { return Ok(()) };
    for node_name in sorted(root.names()?) {
        let of_node = match folder_in(&root, &node_name) {
            Ok(Some(of_node)) => of_node,
            Ok(None) => continue,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        for pool in sorted(of_node.names()?) {
            let folder = folder_in(&of_node, &pool)
                .map(|dir| dir.map(|dir| Folder { dir, node_name: node_name.clone(), pool: pool.clone() }));
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
    /// Whose.
    pub node_name: String,
    /// Of which pool.
    pub pool: String,
}

impl Folder {
    fn create(node: &Node, node_name: &str, pool: &str) -> Result<Folder> {
        let dir = node.run(FOLDER)?.create_sub(node_name)?.create_sub(pool)?;
        Ok(Folder { dir, node_name: node_name.to_owned(), pool: pool.to_owned() })
    }

    /// The folder, if it is there.
    pub fn existing(node: &Node, node_name: &str, pool: &str) -> Result<Option<Folder>> {
        let Some(root) = node.existing_run(FOLDER)? else { return Ok(None) };
        let Some(of_node) = root.sub(node_name)? else { return Ok(None) };
        let dir = of_node.sub(pool)?;
        Ok(dir.map(|dir| Folder { dir, node_name: node_name.to_owned(), pool: pool.to_owned() }))
    }

    /// Excludes every other process that changes this pool's leases.
    pub fn lock(&self) -> Result<Lock> {
        self.dir.lock(LOCK, PATIENCE)
    }

    /// What is held, in the order of the addresses.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries: Vec<_> = self.dir.names()?.into_iter().filter_map(Entry::parse).collect();
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
        for entry in self.entries()?.iter().filter(|entry| entry.key == key) {
            match self.read(entry) {
                Ok(Some(lease)) if lease.holder.is(network, attachment) => return Ok(Some(lease)),
                Ok(_) => (),
                Err(why) => fail!(CheckFailed, "pool {}: {why}", self.pool),
            }
        }
        Ok(None)
    }

    /// Fails when no address could be had now.
    pub fn serves(&self, allocation: &Allocation) -> Result<()> {
        self.any_address(allocation, &self.entries()?).map(|_| ())
    }

    /// Removes an entry.
    pub fn remove(&self, entry: &Entry) -> Result<()> {
        self.dir.remove(&entry.name)
    }

    fn write(&self, lease: &Lease) -> Result<()> {
        self.dir.write(&lease.file_name(), &serde_json::to_vec(lease)?, false)
    }

    /// The address that `holder` can have.
    fn choose(&self, ask: &Ask, holder: &Holder) -> Result<Choice> {
        let Folder { pool, .. } = self;
        let (own, others): (Vec<_>, Vec<_>) = {
            let key = holder.key();
            self.entries()?.into_iter().partition(|entry| entry.key == key)
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
            None => self.any_address(&ask.allocation, &others)?,
            Some(address) => match self.dead_holders(address, &others)? {
                Ok(dead) => Choice { address, dead },
                Err(alive) => fail!(TryAgain, "pool {pool}: requested address {alive}"),
            },
        };
        choice.dead.append(&mut stale);
        Ok(choice)
    }

    /// The lowest free address; without one, the first whose holder is dead.
    fn any_address(&self, allocation: &Allocation, entries: &[Entry]) -> Result<Choice> {
        let Folder { pool, .. } = self;
        let held: HashSet<IpAddr> = entries.iter().map(|entry| entry.address).collect();
        if let Some(address) = allocation.first_free(|address| held.contains(&address)) {
            return Ok(Choice { address, dead: Vec::new() });
        }
        let mut held: Vec<_> =
            held.into_iter().filter(|address| allocation.check_host(*address).is_ok()).collect();
        held.sort();
        let mut first = None;
        for address in &held {
            match self.dead_holders(*address, entries)? {
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
    ) -> Result<Result<Vec<(Entry, Lease)>, String>> {
        let mut dead = Vec::new();
        for entry in entries.iter().filter(|entry| entry.address == address) {
            match self.read(entry) {
                Ok(None) => (),
                Ok(Some(lease)) if lease.is_dead()? => dead.push((entry.clone(), lease)),
                Ok(Some(Lease { holder, since, .. })) => {
                    return Ok(Err(format!(
                        "{address} is held by {holder} since {since}: delete that pod or, if it is gone, \
                         `rail-ipam release --address {address} --force`"
                    )));
                }
                Err(why) => return Ok(Err(format!("{address} is held: {why}"))),
            }
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
