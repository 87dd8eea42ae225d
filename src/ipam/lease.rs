//! Leases. Each is a file `ADDRESS@KEY.json` below `leases/NODE/POOL/` of the run directory, where
//! KEY is a hash of the holder. So one listing has all addresses and keys that are held, and a file
//! is opened only if its content matters.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rail_netlink::{Socket, address};
use serde::{Deserialize, Serialize};

use super::emptied::{self, FOLDER};
use crate::cni::{Attachment, Network};
use crate::files::{self, Dir, Lock};
use crate::netns::{Keeper, Life, Netns, NetnsId};
use crate::node::Node;
use crate::pool::Allocation;
use crate::sysfs::{DeviceId, Function};
use crate::{fail, failure};

/// The directory of leases that were rebuilt, beside that: nothing says of which pool they are.
const REBUILT: &str = "rebuilt";
const LOCK: &str = "lock";
/// An ADD holds the lock for less than a millisecond.
const PATIENCE: Duration = Duration::from_secs(10);
const VERSION: u32 = 1;

/// The request of an ADD to a pool.
#[derive(Debug)]
pub struct Ask {
    pool: String,
    /// The allocation of this node.
    pub allocation: Allocation,
    requested: Option<IpAddr>,
}

impl Ask {
    /// Makes a request for each pool, with the requested address in its prefix.
    pub fn all(
        pools: Vec<String>,
        allocations: Vec<Allocation>,
        requested: &[(IpAddr, Option<u8>)],
    ) -> Result<Vec<Ask>> {
        let mut asks: Vec<Ask> = pools
            .into_iter()
            .zip(allocations)
            .map(|(pool, allocation)| Ask {
                pool,
                allocation,
                requested: None,
            })
            .collect();
        for (address, length) in requested {
            let prefixes: Vec<_> = asks
                .iter()
                .map(|ask| ask.allocation.prefix.to_string())
                .collect();
            let Some(ask) = asks
                .iter_mut()
                .find(|ask| ask.allocation.prefix.contains(address))
            else {
                fail!(
                    InvalidConfig,
                    "requested address {address} is outside of this node's prefix {}",
                    prefixes.join(" and ")
                );
            };
            let Ask {
                pool,
                allocation,
                requested,
            } = ask;
            if let Err(why) = allocation.check_host(*address) {
                fail!(
                    InvalidConfig,
                    "pool {pool}: requested address {address} {why}"
                );
            }
            let (ours, whole) = (
                allocation.prefix.prefix_len(),
                allocation.prefix.max_prefix_len(),
            );
            if let Some(length) = length.filter(|length| *length != ours && *length != whole) {
                fail!(
                    InvalidConfig,
                    "pool {pool}: requested address {address}/{length} does not have the pool's prefix length, /{ours}"
                );
            }
            if let Some(other) = requested.replace(*address).filter(|other| other != address) {
                fail!(
                    InvalidConfig,
                    "pool {pool}: {other} and {address} are requested, and a pool gives one address"
                );
            }
        }
        Ok(asks)
    }
}

/// The holder of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The name of the network.
    pub network: String,
    /// The container, CNI_CONTAINERID.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The interface, CNI_IFNAME.
    pub ifname: String,
    /// The network namespace; `None` if there was none at ADD. Then the holder is never dead, and
    /// DEL or the list of GC ends the lease.
    netns: Option<NetnsId>,
    /// The pod as `namespace/name`, for messages.
    pub pod: Option<String>,
    /// PCI address or auxiliary name of the device that has the address, if the network says which:
    /// while it has not come back from the pod, it may still answer for the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    /// What a lease of a resource claim has besides; see [`Claim`] for the meaning of the other
    /// fields then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
}

impl Holder {
    /// The holder that this call is for.
    pub fn new(
        network: &Network,
        attachment: &Attachment,
        netns: Option<NetnsId>,
    ) -> Result<Holder> {
        Ok(Holder {
            network: network.name.clone(),
            container_id: attachment.container_id.clone(),
            ifname: attachment.ifname.clone(),
            netns,
            pod: network.args.pod(),
            device: network
                .device_id(&attachment.ifname)
                .map(|id| id.as_str().to_owned()),
            claim: None,
        })
    }

    /// A device of a resource claim.
    pub fn of_claim(device: &Attachment, claim: Claim, pod: Option<String>) -> Holder {
        Holder {
            network: OF_CLAIMS.to_owned(),
            container_id: device.container_id.clone(),
            ifname: device.ifname.clone(),
            netns: None,
            pod,
            device: None,
            claim: Some(claim),
        }
    }

    /// The device, unless it is back on the host, gone from the node, or in a later lease.
    fn device_away(&self, node: &Node) -> Result<Option<&str>> {
        let Some(id) = self.device.as_deref().and_then(DeviceId::parse) else {
            return Ok(None);
        };
        let Some(function) = Function::find(&node.sysfs_root, &id)? else {
            return Ok(None);
        };
        let can_come_back = function.driver().is_some() && !function.is_userspace();
        if !can_come_back || !function.netdevs()?.is_empty() || self.is_succeeded(node)? {
            return Ok(None);
        }
        Ok(self.device.as_deref())
    }

    /// Whether a living pod has a lease for the device: it got the device after this one.
    fn is_succeeded(&self, node: &Node) -> Result<bool> {
        let mut is_succeeded = false;
        for_each_folder(node, |folder| {
            for entry in folder.entries()? {
                let Ok(Some(Lease { holder, .. })) = folder.read(&entry) else {
                    continue;
                };
                let is_alive = holder
                    .netns
                    .as_ref()
                    .is_some_and(|netns| netns.life() == Life::Alive);
                is_succeeded |= holder.device == self.device && is_alive;
            }
            Ok(())
        })?;
        Ok(is_succeeded)
    }

    fn key(&self) -> String {
        files::hash(&[&self.network, &self.container_id, &self.ifname])
    }

    fn is(&self, network: &str, attachment: &Attachment) -> bool {
        self.network == network && self.is_of(attachment)
    }

    /// Whether it is this attachment, in any network.
    fn is_of(&self, attachment: &Attachment) -> bool {
        (&self.container_id, &self.ifname) == (&attachment.container_id, &attachment.ifname)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Holder {
            container_id,
            ifname,
            pod,
            claim,
            ..
        } = self;
        match (claim, pod) {
            (Some(claim), pod) => {
                let name = claim
                    .name
                    .as_ref()
                    .map_or_else(String::new, |name| format!("{name}, "));
                let pod = pod
                    .as_ref()
                    .map_or_else(String::new, |pod| format!(" of pod {pod}"));
                write!(
                    f,
                    "device {ifname}{pod} (resource claim {name}UID {container_id})"
                )
            }
            (None, Some(pod)) => write!(f, "{ifname} of pod {pod} (container {container_id})"),
            (None, None) => write!(f, "{ifname} of container {container_id}"),
        }
    }
}

/// What a lease of a claim has in place of the network. No network has this name, so no GC means
/// it.
pub const OF_CLAIMS: &str = "@claim";

/// The part of a claim's lease that others do not have. Of the other fields, the container is the
/// UID of the claim, and the interface is the device as its driver names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The claim as `namespace/name`, if the driver told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The PCI address of the device.
    pub function: String,
}

impl Claim {
    /// Why a pod may still have the device, and with it the address. The kernel removes the
    /// addresses of a device that changes its namespace, so a device on the host has none of a pod.
    /// A pod cannot pretend this, as it could an address.
    pub fn is_away(&self, node: &Node) -> Result<Option<String>> {
        let function =
            DeviceId::parse(&self.function).map(|id| Function::find(&node.sysfs_root, &id));
        let Some(function) = function.transpose()?.flatten() else {
            return Ok(None);
        };
        let is_here =
            function.netdev()?.is_some() || function.driver().is_none() || function.is_userspace();
        Ok((!is_here).then(|| {
            format!(
                "a pod still has {}, which is not on the host",
                self.function
            )
        }))
    }
}

/// The key in the file names of this attachment's leases.
pub fn key(network: &str, attachment: &Attachment) -> String {
    files::hash(&[network, &attachment.container_id, &attachment.ifname])
}

/// The content of a lease's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    version: u32,
    #[serde(rename = "bootId")]
    boot_id: String,
    /// The holder.
    #[serde(flatten)]
    pub holder: Holder,
    /// The address that is held.
    pub address: IpAddr,
    /// The time of ADD (RFC 3339), for messages.
    pub since: String,
}

impl Lease {
    /// Whether the holder lives. A reboot ends every namespace, and the kubelet prepares each claim
    /// again. Until then the lease of a claim ends with the claim, which has no namespace when it
    /// is made. A namespace without a path may live on, kept by a process: the device tells, and
    /// without one the processes do.
    pub fn life(&self, node: &Node) -> Result<Life> {
        if self.boot_id != files::boot_id()? {
            return Ok(Life::Dead);
        }
        if self.holder.claim.is_some() {
            return Ok(Life::Alive);
        }
        let nothing = || Life::Unknown("it had no namespace at ADD".to_owned());
        let life = self
            .holder
            .netns
            .as_ref()
            .map_or_else(nothing, NetnsId::life);
        if life == Life::Dead && self.holder.device.is_some() {
            if let Some(device) = self.holder.device_away(node)? {
                return Ok(Life::Unknown(format!(
                    "its device {device} has not returned: a process keeps its namespace (`lsns -t net`)"
                )));
            }
        } else if life == Life::Dead {
            match self.keeper() {
                Ok(None) => (),
                Ok(Some(Keeper { id, name, .. })) => {
                    let why = format!(
                        "process {id} ({name}) keeps its namespace, where the address still is"
                    );
                    return Ok(Life::Unknown(why));
                }
                Err(error) => {
                    return Ok(Life::Unknown(format!(
                        "cannot find the process that keeps its namespace: \
                        {error}"
                    )));
                }
            }
        }
        Ok(life)
    }

    /// A process that keeps the holder's namespace, with the address, although its path is gone.
    /// The kernel gives the inode number of a namespace that ended to the next one, so it is looked
    /// into.
    fn keeper(&self) -> io::Result<Option<Keeper>> {
        let Some(netns) = self.holder.netns.clone() else {
            return Ok(None);
        };
        let wanted = self.address;
        let has_address = move |keeper: &Keeper| {
            let addresses =
                || address::in_namespace(&mut Netns::open(&keeper.path)?.run(Socket::open)?);
            addresses().is_ok_and(|all| all.iter().any(|(_, one)| one.net.addr() == wanted))
        };
        Ok(netns.keepers().into_iter().find(has_address))
    }

    /// Whether the address is certainly unused.
    pub fn is_dead(&self, node: &Node) -> Result<bool> {
        Ok(self.life(node)? == Life::Dead)
    }

    fn file_name(&self) -> String {
        format!("{}@{}.json", self.address, self.holder.key())
    }
}

/// The file of a lease, as far as its name describes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The address that is held.
    pub address: IpAddr,
    name: String,
}

impl Entry {
    fn of(name: &str) -> Option<Entry> {
        let (address, _) = parts(name)?;
        Some(Entry {
            address,
            name: name.to_owned(),
        })
    }

    /// The key, which is not a field because there may be thousands of entries.
    fn key(&self) -> &str {
        parts(&self.name).map_or("", |(_, key)| key)
    }
}

/// The address and the key in the name of a lease's file.
fn parts(name: &str) -> Option<(IpAddr, &str)> {
    let (address, key) = name.strip_suffix(".json")?.split_once('@')?;
    Some((address.parse().ok()?, key))
}

/// Takes leases for all of `asks`, or none. Returns the addresses in the order of the asks; `None`
/// if `is_current` says that their allocations are those of an old plan by now: whoever writes a
/// plan has the locks meanwhile. What a device of a claim holds already, it keeps: the kubelet
/// prepares a claim as often as it likes.
pub fn take(
    node: &Node,
    node_name: &str,
    asks: &[Ask],
    holder: &Holder,
    is_current: impl FnOnce() -> Result<bool>,
) -> Result<Option<Vec<IpAddr>>> {
    emptied::begin(node)?;
    let rebuilt = Folder::rebuilt(node)?;
    let pools: Vec<_> = asks.iter().map(|ask| ask.pool.as_str()).collect();
    let (folders, _locks) = lock_all(node, node_name, &pools)?;
    if !is_current()? {
        return Ok(None);
    }
    let mut choices = Vec::new();
    for (folder, ask) in folders.iter().zip(asks) {
        choices.push(folder.choose(ask, holder, rebuilt.as_ref(), node)?);
    }

    let boot_id = files::boot_id()?.to_owned();
    let mut taken: Vec<(&Folder, Lease)> = Vec::new();
    let addresses = choices.iter().map(|choice| choice.address).collect();
    for (
        folder,
        Choice {
            address,
            dead,
            is_held,
        },
    ) in folders.iter().zip(choices)
    {
        if is_held {
            continue;
        }
        let lease = Lease {
            version: VERSION,
            boot_id: boot_id.clone(),
            holder: holder.clone(),
            address,
            since: files::now(),
        };
        let written = remove_dead(&dead).and_then(|()| folder.write(&lease));
        if let Err(error) = written {
            for (folder, lease) in taken {
                if let Err(error) = folder.dir.remove(&lease.file_name()) {
                    log::error!(
                        "pool {}: cannot release {}: {error:#}",
                        folder.pool,
                        lease.address
                    );
                }
            }
            return Err(error);
        }
        taken.push((folder, lease));
    }
    Ok(Some(addresses))
}

/// The locked pools of a node: no lease is taken there while this exists.
#[derive(Debug)]
pub struct Held(Vec<(Folder, Lock)>);

/// Locks the directories of these pools, which must be as many as ADD can wait for.
pub fn hold(node: &Node, node_name: &str, pools: &[&str]) -> Result<Held> {
    let (mut folders, locks) = lock_all(node, node_name, pools)?;
    // As the locks are.
    folders.sort_by(|one, other| one.pool.cmp(&other.pool));
    Ok(Held(folders.into_iter().zip(locks).collect()))
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut tidy = Tidy::default();
        for (folder, lock) in self.0.drain(..) {
            if folder.entries().is_ok_and(|entries| entries.is_empty()) {
                tidy.remove_empty(&folder, lock);
            }
        }
    }
}

/// Locks the directories of all pools; the locks are in the order of their names. Another process
/// may remove a directory with its last lease before its lock is ours; then all are created again.
fn lock_all(node: &Node, node_name: &str, pools: &[&str]) -> Result<(Vec<Folder>, Vec<Lock>)> {
    const TURNS: usize = 100;
    let root = Rc::new(node.run(FOLDER)?);
    for _ in 0..TURNS {
        let made = pools
            .iter()
            .map(|pool| Folder::create(&root, node_name, pool))
            .collect();
        let folders: Vec<Folder> = match made {
            Err(error) if files::is_not_found(&error) => continue,
            made => made?,
        };
        // The same order in every process, so that no two wait for each other.
        let mut in_order: Vec<_> = folders.iter().collect();
        in_order.sort_by_key(|folder| &folder.pool);
        let locks: Option<Vec<Lock>> = in_order
            .into_iter()
            .map(Folder::lock)
            .collect::<Result<_>>()?;
        if let Some(locks) = locks {
            return Ok((folders, locks));
        }
    }
    fail!(
        TryAgain,
        "{}: other calls keep removing the directories of the pools; retry",
        root.path().display()
    )
}

/// Releases the leases of an attachment, in any pool and under any name of the node. Returns
/// whether there were any. Without the name of the network, which only a DEL can lack, it releases
/// those in every network.
pub fn release(node: &Node, network: &str, attachment: &Attachment) -> Result<bool> {
    let key = key(network, attachment);
    let mut held_any = false;
    let mut tidy = Tidy::default();
    for_each_folder(node, |folder| {
        // This waits for an ADD that its runtime gave up.
        let lock = folder.lock();
        // Nobody else writes under the lock: a half-written file is that of a killed ADD.
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

/// Whether a lease is one of the attachment. For a file that cannot be read, its name is enough if
/// the network's name is known and thus in the key.
fn is_to_be_given_back(
    folder: &Folder,
    entry: &Entry,
    network: &str,
    attachment: &Attachment,
) -> bool {
    match folder.read(entry) {
        Ok(None) => true,
        Ok(Some(lease)) if network.is_empty() => {
            lease.holder.claim.is_none() && lease.holder.is_of(attachment)
        }
        Ok(Some(lease)) => lease.holder.is(network, attachment),
        Err(why) if network.is_empty() => {
            log::warn!("pool {}: {} is kept: {why}", folder.pool, entry.address);
            false
        }
        Err(_) => true,
    }
}

/// Removes directories of pools without leases, because a DEL looks into every one, and inline
/// pools come and go. 0.1.0 left them, so there may be many, and a call removes only some.
#[derive(Debug, Default)]
pub struct Tidy {
    removed: usize,
}

impl Tidy {
    const MOST: usize = 1000;

    /// Removes the directory, under its lock. A process that waits for the lock finds the lock file
    /// gone and tries again; a process that creates the lock file again before the directory is
    /// removed keeps the directory.
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

/// Releases the leases of `network` that are not in `keep`, but none whose namespace lives or may
/// live: the list of CRI-O lacks what Multus attached under the same name. For a lease without a
/// namespace, the list decides.
pub fn collect(node: &Node, network: &str, keep: &HashSet<String>) -> Result<()> {
    let mut tidy = Tidy::default();
    for_each_folder(node, |folder| {
        let Some(lock) = folder.lock()? else {
            return Ok(());
        };
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
            let (kept, holder) = (
                format!("pool {pool}: {} is kept", entry.address),
                &lease.holder,
            );
            match lease.life(node)? {
                Life::Alive => log::warn!("{kept}: {holder} is alive"),
                Life::Unknown(why) if holder.netns.is_some() => {
                    log::warn!("{kept}: cannot tell whether {holder} is alive: {why}");
                }
                Life::Dead | Life::Unknown(_) => {
                    folder.remove(&entry)?;
                    left -= 1;
                    log::info!(
                        "pool {pool}: {} is released, which {holder} held",
                        entry.address
                    );
                }
            }
        }
        if left == 0 {
            tidy.remove_empty(folder, lock);
        }
        Ok(())
    })
}

/// Calls `work` for every directory. Returns the first error after all calls, and logs the others.
pub fn for_each_folder(node: &Node, mut work: impl FnMut(&Folder) -> Result<()>) -> Result<()> {
    let mut errors = Vec::new();
    let Some(root) = node.existing_run(FOLDER)?.map(Rc::new) else {
        return Ok(());
    };
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
    let Some(first) = errors.next() else {
        return Ok(());
    };
    for other in errors {
        log::error!("{other:#}");
    }
    Err(first)
}

/// The directory with this name. A link or a file of this name is not rail-ipam's: it is passed
/// over, because no lease is lost by that, and a DEL that failed for it would fail for ever.
fn folder_in(dir: &Dir, name: &str) -> Result<Option<Dir>> {
    dir.sub(name).or_else(|error| {
        let cause = error
            .chain()
            .find_map(|cause| cause.downcast_ref::<std::io::Error>());
        match cause.map(std::io::Error::kind) {
            Some(std::io::ErrorKind::NotADirectory) => {
                log::warn!(
                    "{} is not a directory: remove it",
                    dir.path().join(name).display()
                );
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

/// The lease of a dead holder, with its directory.
type Dead<'f> = (&'f Folder, Entry, Lease);

/// An address, and the leases of its dead holders.
struct Choice<'f> {
    address: IpAddr,
    dead: Vec<Dead<'f>>,
    /// Whether the holder, a claim, has the lease already.
    is_held: bool,
}

/// The leases of one pool on one node.
#[derive(Debug)]
pub struct Folder {
    dir: Dir,
    of_node: Rc<Dir>,
    root: Rc<Dir>,
    /// The name of the node.
    pub node_name: String,
    /// The name of the pool.
    pub pool: String,
}

impl Folder {
    fn new(dir: Dir, of_node: &Rc<Dir>, root: &Rc<Dir>, node_name: &str, pool: &str) -> Folder {
        let (of_node, root) = (of_node.clone(), root.clone());
        Folder {
            dir,
            of_node,
            root,
            node_name: node_name.to_owned(),
            pool: pool.to_owned(),
        }
    }

    fn create(root: &Rc<Dir>, node_name: &str, pool: &str) -> Result<Folder> {
        let of_node = Rc::new(root.create_sub(node_name)?);
        let dir = of_node.create_sub(pool)?;
        Ok(Folder::new(dir, &of_node, root, node_name, pool))
    }

    /// The directory, if it exists.
    pub fn existing(node: &Node, node_name: &str, pool: &str) -> Result<Option<Folder>> {
        let Some(root) = node.existing_run(FOLDER)?.map(Rc::new) else {
            return Ok(None);
        };
        let Some(of_node) = root.sub(node_name)?.map(Rc::new) else {
            return Ok(None);
        };
        let dir = of_node.sub(pool)?;
        Ok(dir.map(|dir| Folder::new(dir, &of_node, &root, node_name, pool)))
    }

    /// The leases that were rebuilt.
    fn rebuilt(node: &Node) -> Result<Option<Folder>> {
        let Some(run) = node.existing_run_dir()?.map(Rc::new) else {
            return Ok(None);
        };
        Ok(run
            .sub(REBUILT)?
            .map(|dir| Folder::new(dir, &run, &run, "", REBUILT)))
    }

    /// Excludes every other process that changes this pool's leases. `None` if the directory was
    /// removed meanwhile.
    pub fn lock(&self) -> Result<Option<Lock>> {
        match self.dir.lock(LOCK, PATIENCE) {
            Err(error) if files::is_not_found(&error) => Ok(None),
            locked => locked.map(Some),
        }
    }

    /// All leases, in the order of their addresses.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.dir.visit(|name| entries.extend(Entry::of(name)))?;
        entries.sort();
        Ok(entries)
    }

    /// The lease of an entry; `None` if it is gone by now. The error says why the file is damaged:
    /// leases are renamed into place, so rail-ipam never writes a file that is cut or does not
    /// match its name.
    pub fn read(&self, entry: &Entry) -> Result<Option<Lease>, String> {
        let file = self.dir.path().join(&entry.name);
        let damaged = |why: String| {
            format!(
                "{} cannot be read ({why}), so its holder is unknown: if no pod has the address, \
                 `railctl release --address {} --pool {}`",
                file.display(),
                entry.address,
                self.pool
            )
        };
        let Some(content) = self
            .dir
            .read(&entry.name)
            .map_err(|error| damaged(format!("{error:#}")))?
        else {
            return Ok(None);
        };
        let lease: Lease =
            serde_json::from_slice(&content).map_err(|error| damaged(error.to_string()))?;
        if lease.version != VERSION {
            return Err(damaged(format!("version {}", lease.version)));
        }
        if lease.file_name() != entry.name {
            return Err(damaged("it is about another lease".to_owned()));
        }
        Ok(Some(lease))
    }

    /// The lease of an attachment, in any state.
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

    /// Fails if no lease could be written. It is no failure if living pods hold every address: the
    /// runtime would call the node not ready, and after a while evict the pod that has the rail.
    pub fn serves(&self) -> Result<()> {
        self.dir.writable()
    }

    /// Removes an entry.
    pub fn remove(&self, entry: &Entry) -> Result<()> {
        self.dir.remove(&entry.name)
    }

    fn write(&self, lease: &Lease) -> Result<()> {
        self.dir
            .write(&lease.file_name(), &serde_json::to_vec(lease)?)
    }

    /// The address that `holder` can have, which nobody has by a lease of this pool, or by one that
    /// was rebuilt. The directory is locked.
    fn choose<'f>(
        &'f self,
        ask: &Ask,
        holder: &Holder,
        rebuilt: Option<&'f Folder>,
        node: &Node,
    ) -> Result<Choice<'f>> {
        let Folder { pool, .. } = self;
        let key = holder.key();
        // For other holders the addresses are enough, as long as one is free.
        let (mut own, mut held) = (Vec::new(), Vec::new());
        self.dir.remove_half_written("", |name| match parts(name) {
            Some((_, of)) if of == key => own.extend(Entry::of(name)),
            Some((address, _)) => held.push(address),
            None => (),
        })?;
        if let Some(rebuilt) = rebuilt {
            rebuilt
                .dir
                .visit(|name| held.extend(parts(name).map(|(address, _)| address)))?;
        }
        let others = || -> Result<Vec<(&'f Folder, Entry)>> {
            let mut all = Vec::new();
            for folder in std::iter::once(self).chain(rebuilt) {
                let others = folder
                    .entries()?
                    .into_iter()
                    .filter(|entry| entry.key() != key);
                all.extend(others.map(|entry| (folder, entry)));
            }
            Ok(all)
        };
        let mut stale = Vec::new();
        for entry in own {
            match self.read(&entry) {
                Err(why) => fail!(TryAgain, "pool {pool}: {} is held: {why}", entry.address),
                Ok(None) => (),
                Ok(Some(lease)) if lease.is_dead(node)? || lease.is_of_another_sandbox(holder) => {
                    stale.push((self, entry, lease));
                }
                Ok(Some(lease)) if lease.holder.claim.is_some() => {
                    lease
                        .is_as_asked(ask)
                        .map_err(|why| failure!(TryAgain, "pool {pool}: {why}"))?;
                    return Ok(Choice {
                        address: lease.address,
                        dead: Vec::new(),
                        is_held: true,
                    });
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
            None => self.any_address(&ask.allocation, held, others, node)?,
            Some(address) => match dead_holders(address, &others()?, node)? {
                Ok(dead) => Choice {
                    address,
                    dead,
                    is_held: false,
                },
                Err(alive) => fail!(TryAgain, "pool {pool}: requested address {alive}"),
            },
        };
        choice.dead.append(&mut stale);
        Ok(choice)
    }

    /// The lowest address that is not `held`; without one, the first whose holder is dead.
    fn any_address<'f>(
        &self,
        allocation: &Allocation,
        mut held: Vec<IpAddr>,
        others: impl FnOnce() -> Result<Vec<(&'f Folder, Entry)>>,
        node: &Node,
    ) -> Result<Choice<'f>> {
        let Folder { pool, .. } = self;
        held.sort_unstable();
        if let Some(address) = allocation.first_free(|address| held.binary_search(&address).is_ok())
        {
            return Ok(Choice {
                address,
                dead: Vec::new(),
                is_held: false,
            });
        }
        let entries = others()?;
        held.dedup();
        held.retain(|address| allocation.check_host(*address).is_ok());
        let mut first = None;
        for address in &held {
            match dead_holders(*address, &entries, node)? {
                Ok(dead) => {
                    return Ok(Choice {
                        address: *address,
                        dead,
                        is_held: false,
                    });
                }
                Err(alive) => first = first.or(Some(alive)),
            }
        }
        let Some(first) = first else {
            return Err(allocation.no_host(pool));
        };
        let more = match held.len() {
            1 => String::new(),
            count => format!("; the other {} addresses are held as well", count - 1),
        };
        Err(failure!(
            TryAgain,
            "pool {pool}: no address of {} is free: {first}{more}",
            allocation.prefix
        ))
    }
}

/// The leases of `address`, if all of them are dead; else a message with the holder and what to do.
fn dead_holders<'f>(
    address: IpAddr,
    entries: &[(&'f Folder, Entry)],
    node: &Node,
) -> Result<Result<Vec<Dead<'f>>, String>> {
    let mut dead = Vec::new();
    for (folder, entry) in entries.iter().filter(|(_, entry)| entry.address == address) {
        match folder.read(entry) {
            Ok(None) => (),
            Ok(Some(lease)) => {
                let unsure = match lease.life(node)? {
                    Life::Dead => {
                        dead.push((*folder, entry.clone(), lease));
                        continue;
                    }
                    Life::Alive => String::new(),
                    Life::Unknown(why) => format!(" (cannot tell whether it is alive: {why})"),
                };
                let (Lease { holder, since, .. }, pool) = (lease, &folder.pool);
                let held =
                    format!("{address} is held by {holder} since {since}{unsure}: delete that pod");
                return Ok(Err(match pool.as_str() {
                    REBUILT => held,
                    _ => format!(
                        "{held} or, if it is gone, `railctl release --address {address} --pool {pool} --force`"
                    ),
                }));
            }
            Err(why) => return Ok(Err(format!("{address} is held: {why}"))),
        }
    }
    Ok(Ok(dead))
}

/// Removes the leases of the dead.
fn remove_dead(dead: &[Dead<'_>]) -> Result<()> {
    for (folder, entry, lease) in dead {
        let Lease { holder, since, .. } = lease;
        log::warn!(
            "pool {}: {} taken over from {holder}, which is gone and held it since {since}",
            folder.pool,
            entry.address
        );
        folder.remove(entry)?;
    }
    Ok(())
}

/// An address that was found in a pod whose lease is gone.
#[derive(Clone, Debug)]
pub struct Found {
    /// The address.
    pub address: IpAddr,
    /// The name of the interface.
    pub ifname: String,
    /// Its namespace.
    pub netns: NetnsId,
}

/// The container of a rebuilt lease: the runtime's own is not known.
fn rebuilt_container(netns: &NetnsId) -> String {
    format!("rebuilt-{}", netns.ino)
}

/// Releases the rebuilt leases of an interface in this namespace. Returns whether there were any.
pub fn release_rebuilt(node: &Node, netns: &Path, ifname: &str) -> Result<bool> {
    let (Some(folder), Some(netns)) = (Folder::rebuilt(node)?, NetnsId::of(netns).ok().flatten())
    else {
        return Ok(false);
    };
    let attachment = Attachment {
        container_id: rebuilt_container(&netns),
        ifname: ifname.to_owned(),
    };
    let key = key("", &attachment);
    let mut held_any = false;
    for entry in folder
        .entries()?
        .into_iter()
        .filter(|entry| entry.key() == key)
    {
        folder.remove(&entry)?;
        held_any = true;
    }
    Ok(held_any)
}

/// Makes leases of addresses that were found.
pub fn rebuild(node: &Node, found: &[Found]) -> Result<()> {
    let dir = Dir::create(&node.run_dir)?.create_sub(REBUILT)?;
    for Found {
        address,
        ifname,
        netns,
    } in found
    {
        let holder = Holder {
            network: String::new(),
            container_id: rebuilt_container(netns),
            ifname: ifname.clone(),
            // The runtime knows which pod has this namespace.
            pod: Some(netns.path.display().to_string()),
            netns: Some(netns.clone()),
            device: None,
            claim: None,
        };
        let (boot_id, since) = (files::boot_id()?.to_owned(), files::now());
        let lease = Lease {
            version: VERSION,
            boot_id,
            holder,
            address: *address,
            since,
        };
        dir.write(&lease.file_name(), &serde_json::to_vec(&lease)?)?;
    }
    Ok(())
}

impl Lease {
    /// Whether a claim that asks again may keep the lease.
    fn is_as_asked(&self, ask: &Ask) -> Result<(), String> {
        let Lease {
            holder,
            address,
            since,
            ..
        } = self;
        let held = format!("{holder} holds {address} since {since}");
        if let Some(other) = ask.requested.filter(|other| other != address) {
            return Err(format!("{held}, and now requests {other}: delete its pod"));
        }
        ask.allocation.check_host(*address).map_err(|why| {
            format!(
                "{held}, which {why}: the plan changed after the claim got its address, so delete its pod"
            )
        })
    }

    /// The same attachment in a new namespace: the old sandbox was thrown away without a DEL.
    fn is_of_another_sandbox(&self, holder: &Holder) -> bool {
        match (&self.holder.netns, &holder.netns) {
            (Some(then), Some(now)) => {
                (then.dev, then.ino, then.created) != (now.dev, now.ino, now.created)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
