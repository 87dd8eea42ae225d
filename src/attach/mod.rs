//! rail-cni: a device of the host becomes an interface of a pod, and everything goes back.

mod cli;
mod config;
mod device;
mod devinfo;
mod giveback;
mod pod;
mod record;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

pub use cli::run as cli;

use crate::cni::{self, AddResult, Attachment, Code, Delegate, Network, Plugin};
use crate::netlink::Socket;
use crate::netlink::link::{self, Link, Move};
use crate::netns::{Netns, NetnsId};
use crate::node::Node;
use crate::sysfs::DeviceId;
use crate::{fail, failure, files};
use config::NetConf;
use device::Device;
use giveback::Outcome;
use record::{AttachmentLock, DeviceLock, Phase, Record, Records};

/// How often ADD looks for its device again after it has put something right.
const MAX_TRIES: u32 = 4;

/// The plugin.
#[derive(Debug)]
pub struct Attach;

impl Plugin for Attach {
    const NAME: &str = "rail-cni";

    /// Everything that can be refused is refused first; then the record; then what the record describes.
    fn add(&self, network: &Network, attachment: &Attachment, path: &Path) -> Result<AddResult> {
        let node = Node::load()?;
        node.start_log(network);
        let conf = NetConf::parse(network, attachment, &node)?;
        let previous = network.previous()?.unwrap_or_default();
        let netns = Netns::open(path)?;
        refuse_own_namespace(&netns)?;
        let ipam = conf
            .ipam
            .as_deref()
            .map(|name| Delegate::find(name, &network.path, &network.stdin))
            .transpose()?;
        let mut pod = netns.run(Socket::open)?;
        let mut host = Socket::open()?;

        let records = Records::open(&node)?;
        let mut lock = records.lock(attachment)?;
        lock.refuse_if_deleted()?;
        settle_own(&records, attachment, &node)?;
        pod::refuse_name_in_use(&mut pod, &attachment.ifname)?;
        let (device, mut claim) = claim(&records, &conf, attachment, &node, &mut host)?;
        device::check(&device, &conf, &node, &network.name, &mut host)?;

        let mut record = new_record(network, attachment, path, &conf, &device)?;
        records.write(&record, &mut claim)?;
        let attached = (|| {
            let leased = lease(network, &conf, ipam.as_ref())?;
            record.applied = match &device.home.link {
                Some(_) => pod::plan(&conf, &leased, &mut pod)?,
                // A program in user space will own the address.
                None => record::Applied::default(),
            };
            records.write(&record, &mut claim)?;
            let link = match &device.home.link {
                Some(home) => Some(move_in(home, &conf, &mut record, &netns, &mut host, &mut pod)?),
                None => None,
            };
            if let Some(path) = &conf.device_info {
                devinfo::write(path, &device)?;
            }
            record.phase = Phase::Attached;
            records.write(&record, &mut claim)?;
            log::info!("{} is {} of the pod", device.describe(), attachment.ifname);
            Ok(previous.merged_with(result(&conf, &record, link.as_ref(), leased, path)))
        })();
        attached.map_err(|error: anyhow::Error| {
            match undo(&record, &records, &mut claim, &node, ipam.as_ref()) {
                Ok(()) => error,
                // The record is kept: DEL, the next ADD or `reap` go on from here.
                Err(left) => {
                    log::error!("undoing ADD failed: {left:#}");
                    error
                }
            }
        })
    }

    /// Needs nothing but the key: everything else is on record, or gone.
    fn del(&self, network: &Network, attachment: &Attachment, path: Option<&Path>) -> Result<()> {
        let node = Node::load_lenient()?;
        node.start_log(network);
        let ipam = network.get(&["ipam", "type"]).and_then(serde_json::Value::as_str).unwrap_or_default();
        let ipam = Some(ipam).filter(|name| !name.is_empty() && config::check_plugin_name(name).is_ok());

        let records = Records::open(&node)?;
        let (lock, record) = lock_and_find(&records, attachment)?;
        let mut errors = Vec::new();
        let mut claim = None;
        if let Some(record) = &record {
            claim = Some(records.lock_device(&record.device.id)?);
        }
        let outcome = match &record {
            Some(record) => giveback::give_back(record, &node),
            None => give_back_unrecorded(network, attachment, path).map(|()| Outcome::Home),
        };
        let outcome = outcome.map_err(|error| errors.push(error)).ok();
        // The runtime's word first: its configuration may name another IPAM than the one that ADD used.
        if let Some(name) = ipam {
            let released =
                Delegate::find(name, &network.path, &network.stdin).and_then(|delegate| delegate.run("DEL"));
            errors.extend(released.err());
        }
        if let Some(recorded) = record.as_ref().and_then(|record| record.ipam.as_ref().zip(Some(record)))
            && ipam != Some(&recorded.0.r#type)
        {
            errors.extend(recorded.0.release(recorded.1).err());
        }
        errors.extend(
            settle_files(&records, attachment, record.as_ref(), outcome, errors.is_empty(), claim.as_mut())
                .err(),
        );
        // What is only for later calls must not fail this one, on a full /run for example.
        let left = lock.map_or(Ok(()), |mut lock| lock.set_deleted()).and_then(|()| records.prune_locks());
        left.unwrap_or_else(|error| log::warn!("{error:#}"));
        first_with_all(errors)
    }

    fn check(
        &self,
        network: &Network,
        attachment: &Attachment,
        path: &Path,
        previous: &AddResult,
    ) -> Result<()> {
        let node = Node::load()?;
        node.start_log(network);
        let mut found = Vec::new();
        let record = match Records::open_existing(&node)? {
            Some(records) => records.find(attachment)?,
            None => None,
        };
        match record {
            None => found.push("there is no record of it".to_owned()),
            Some(record) => found = compare(&record, attachment, path, previous)?,
        }
        let ipam = network.get(&["ipam", "type"]).and_then(serde_json::Value::as_str);
        if let Some(name) = ipam.filter(|name| !name.is_empty()) {
            config::check_plugin_name(name)?;
            let checked = Delegate::find(name, &network.path, &network.stdin)?.run("CHECK");
            if found.is_empty() {
                return checked;
            }
            found.extend(checked.err().map(|error| format!("IPAM: {error:#}")));
        }
        if found.is_empty() {
            return Ok(());
        }
        fail!(CheckFailed, "{attachment} is not what ADD made: {}", found.join("; "))
    }

    fn status(&self, network: &Network) -> Result<()> {
        let ready = (|| -> Result<()> {
            let node = Node::load()?;
            node.start_log(network);
            node.run_is_writable()?;
            let sysfs = node.sysfs_root.join("class/net");
            sysfs.metadata().with_context(|| format!("cannot read {}", sysfs.display()))?;
            rail_is_there(network, &node)
        })();
        ready.map_err(|error| failure!(NotAvailable, "{error:#}"))?;
        let ipam = network.get(&["ipam", "type"]).and_then(serde_json::Value::as_str);
        let Some(name) = ipam.filter(|name| !name.is_empty()) else { return Ok(()) };
        config::check_plugin_name(name)?;
        let delegate = Delegate::find(name, &network.path, &network.stdin);
        delegate.map_err(|error| failure!(NotAvailable, "{error:#}"))?.run("STATUS")
    }

    /// Gives back what the runtime does not know any more. Its list can be incomplete: CRI-O sends one for
    /// every file in its folder, while Multus made the attachments. So what lives is kept.
    fn gc(&self, network: &Network, keep: &[Attachment]) -> Result<()> {
        let node = Node::load()?;
        node.start_log(network);
        let mut errors = Vec::new();
        if let Some(records) = Records::open_existing(&node)? {
            let (all, _) = records.all()?;
            let ours = all.iter().filter(|record| record.network == network.name);
            for record in ours.filter(|record| !keep.contains(&record.attachment())) {
                // Somebody is at work on it.
                let Some(_lock) = records.try_lock(&record.attachment())? else { continue };
                let Some(record) = records.find(&record.attachment())? else { continue };
                match holds_its_device(&record) {
                    Ok(true) => {
                        log::warn!("GC keeps {}: its namespace lives and has the device", record.attachment())
                    }
                    Ok(false) => errors.extend(settle(&records, &record, &node).err()),
                    Err(error) => errors.push(error),
                }
            }
        }
        let ipam = network.get(&["ipam", "type"]).and_then(serde_json::Value::as_str);
        if let Some(name) = ipam.filter(|name| !name.is_empty()) {
            config::check_plugin_name(name)?;
            let collected =
                Delegate::find(name, &network.path, &network.stdin).and_then(|delegate| delegate.run("GC"));
            errors.extend(collected.err());
        }
        first_with_all(errors)
    }
}

/// A plugin that moved a device into its own namespace could not give it back.
fn refuse_own_namespace(netns: &Netns) -> Result<()> {
    let allowed = std::env::var("CNI_NETNS_OVERRIDE").unwrap_or_default();
    if !matches!(allowed.to_ascii_lowercase().as_str(), "1" | "true") && netns.is(&Netns::current()?)? {
        fail!(InvalidNetns, "plugin's netns and netns from CNI_NETNS should not be the same");
    }
    Ok(())
}

/// The record, with the lock of the attachment. Where no lock can be had and nothing is on record, as on a
/// read-only /run, there is nothing to guard either.
fn lock_and_find(
    records: &Records,
    attachment: &Attachment,
) -> Result<(Option<AttachmentLock>, Option<Record>)> {
    match records.lock(attachment) {
        Ok(lock) => Ok((Some(lock), records.find(attachment)?)),
        Err(error) if cni::code_of(&error) == Code::TryAgain as u32 => Err(error),
        Err(error) => match records.find(attachment)? {
            Some(_) => Err(error),
            None => {
                log::warn!("{error:#}");
                Ok((None, None))
            }
        },
    }
}

/// What an earlier ADD for the same key left: an error while it lives, undone if it was cut off.
fn settle_own(records: &Records, attachment: &Attachment, node: &Node) -> Result<()> {
    let Some(record) = records.find(attachment)? else { return Ok(()) };
    if record.phase == Phase::Attached && record.netns_is_alive()? {
        fail!(InvalidConfig, "{attachment} already has {}: a second ADD needs a DEL first", record.device.id);
    }
    settle(records, &record, node)
}

/// Finds the device and makes sure that it is nobody's. What a lost DEL left is put right on the way.
fn claim(
    records: &Records,
    conf: &NetConf,
    attachment: &Attachment,
    node: &Node,
    host: &mut Socket,
) -> Result<(Device, DeviceLock)> {
    for _ in 0..MAX_TRIES {
        let Some(found) = device::find(&conf.selector, node, host)? else {
            settle_absent(records, conf, node)?;
            continue;
        };
        let id = found.home.id.clone();
        let mut lock = records.lock_device(&id)?;
        // Somebody may have taken it while we waited.
        let now = device::find(&conf.selector, node, host)?;
        let Some(now) = now.filter(|now| now.home.id == id) else { continue };
        let claims = records.claims_on(&id, &mut lock, attachment)?;
        if claims.is_empty() {
            return Ok((now, lock));
        }
        drop(lock);
        for claim in claims {
            // A netdev that is on the host is nobody's; a device without one is its owner's while that lives.
            if now.home.link.is_none() && claim.netns_is_alive()? && claim.phase != Phase::Returned {
                fail!(TryAgain, "{} is attached to {}", now.describe(), claim.holder());
            }
            settle_other(records, &claim, node)?;
        }
    }
    fail!(TryAgain, "{}the device {} is not to be had: others keep taking it", conf.prefix(), conf.selector)
}

/// The device is not on the host. Either somebody has it, or a dead pod's namespace gave it back under
/// another name, or there is none.
fn settle_absent(records: &Records, conf: &NetConf, node: &Node) -> Result<()> {
    let selector = &conf.selector;
    let (all, _) = records.all()?;
    let is_meant = |record: &&Record| {
        let link = record.device.link.as_ref();
        let id = selector.id.as_ref().map(DeviceId::as_str);
        let by_id =
            id.is_some_and(|id| record.device.id == id || record.device.pci_id.as_deref() == Some(id));
        let name = selector.device.as_ref();
        let by_name = name
            .is_some_and(|name| link.is_some_and(|link| link.name == *name || link.altnames.contains(name)));
        let by_mac = selector.hwaddr.as_ref().is_some_and(|mac| link.is_some_and(|link| link.mac == *mac));
        by_id || by_name || by_mac
    };
    let mut claims = all.iter().filter(is_meant).peekable();
    if claims.peek().is_none() {
        fail!(InvalidConfig, "{}the host has no device {}", conf.prefix(), selector);
    }
    for claim in claims {
        if claim.phase == Phase::Attached && claim.netns_is_alive()? {
            let prefix = conf.prefix();
            fail!(TryAgain, "{prefix}device {} is attached to {}", claim.device.id, claim.holder());
        }
        settle_other(records, claim, node)?;
    }
    Ok(())
}

/// Undoes an attachment of which only the record is left. Its ADD or DEL may be under way: then that goes first.
fn settle_other(records: &Records, claim: &Record, node: &Node) -> Result<()> {
    let _lock = records.lock(&claim.attachment())?;
    let Some(record) = records.find(&claim.attachment())?.filter(|now| now.device.id == claim.device.id)
    else {
        return Ok(());
    };
    if holds_its_device(&record)? {
        return Ok(());
    }
    log::warn!("{} was left by {}: it is put right", record.device.id, record.holder());
    settle(records, &record, node)
}

/// Undoes an attachment whose lock is held, from its record alone.
fn settle(records: &Records, record: &Record, node: &Node) -> Result<()> {
    let mut claim = records.lock_device(&record.device.id)?;
    undo(record, records, &mut claim, node, None)
}

/// Undoes whatever was done of `record`. With `ipam` the call is this process's own, else the recorded one.
fn undo(
    record: &Record,
    records: &Records,
    claim: &mut DeviceLock,
    node: &Node,
    ipam: Option<&Delegate<'_>>,
) -> Result<()> {
    let mut errors = Vec::new();
    let outcome = giveback::give_back(record, node).map_err(|error| errors.push(error)).ok();
    let released = match (ipam, &record.ipam) {
        (Some(delegate), _) => delegate.run("DEL"),
        (None, Some(recorded)) => recorded.release(record),
        (None, None) => Ok(()),
    };
    errors.extend(released.err());
    let clean = errors.is_empty();
    errors
        .extend(settle_files(records, &record.attachment(), Some(record), outcome, clean, Some(claim)).err());
    first_with_all(errors)
}

/// The last step of giving back: the record goes, or says what is still to be done.
fn settle_files(
    records: &Records,
    attachment: &Attachment,
    record: Option<&Record>,
    outcome: Option<Outcome>,
    clean: bool,
    claim: Option<&mut DeviceLock>,
) -> Result<()> {
    if let Some(path) = record.and_then(|record| record.device_info.as_ref()) {
        devinfo::remove(path)?;
    }
    let phase = match (outcome, clean) {
        (Some(Outcome::Home), true) => return records.remove(attachment, claim),
        (Some(Outcome::Home), false) => Phase::Returned,
        (Some(Outcome::Missing), _) => Phase::Missing,
        (None, _) => return Ok(()),
    };
    match (record, claim) {
        (Some(record), Some(claim)) => records.write(&Record { phase, ..record.clone() }, claim),
        _ => Ok(()),
    }
}

/// DEL without a record: the device is known by its PCI address, if the runtime still knows that.
fn give_back_unrecorded(network: &Network, attachment: &Attachment, path: Option<&Path>) -> Result<()> {
    let Some(netns) = path.and_then(|path| Netns::open(path).ok()) else { return Ok(()) };
    let text =
        |path: &[&str]| network.get(path).and_then(serde_json::Value::as_str).and_then(DeviceId::parse);
    let previous = network.previous().ok().flatten();
    let said = previous.iter().flat_map(|result| &result.interfaces);
    let said = said
        .filter(|interface| interface.name == attachment.ifname)
        .find_map(|interface| interface.pci_id.as_deref());
    let id = text(&["runtimeConfig", "deviceID"])
        .or_else(|| text(&["deviceID"]))
        .or_else(|| text(&["pciBusID"]))
        .or_else(|| said.and_then(DeviceId::parse));
    match id {
        Some(id) if !netns.is(&Netns::current()?)? => {
            giveback::give_back_unrecorded(&netns, &id, &attachment.ifname).map(drop)
        }
        _ => Ok(()),
    }
}

fn new_record(
    network: &Network,
    attachment: &Attachment,
    path: &Path,
    conf: &NetConf,
    device: &Device,
) -> Result<Record> {
    let netns = NetnsId::of(path).ok().flatten();
    let ipam = conf.ipam.as_ref().map(|name| -> Result<record::Ipam> {
        Ok(record::Ipam {
            r#type: name.clone(),
            config: String::from_utf8(network.stdin.clone()).context("stdin is not UTF-8")?,
            args: network.args.raw.clone(),
            path: network.path.clone(),
        })
    });
    Ok(Record {
        version: 1,
        boot_id: files::boot_id()?.to_owned(),
        phase: Phase::Adding,
        network: network.name.clone(),
        container_id: attachment.container_id.clone(),
        ifname: attachment.ifname.clone(),
        pod: network.args.pod(),
        netns: netns.with_context(|| format!("{} vanished", path.display()))?,
        since: files::now(),
        rail: conf.rail,
        device: device.home.clone(),
        applied: record::Applied::default(),
        ipam: ipam.transpose()?,
        device_info: conf.device_info.clone(),
    })
}

/// The address comes first: while it is refused, nothing has moved.
fn lease(network: &Network, conf: &NetConf, ipam: Option<&Delegate<'_>>) -> Result<AddResult> {
    let Some(ipam) = ipam else { return Ok(AddResult::default()) };
    let leased = ipam.add(network.version)?;
    if leased.ips.is_empty() {
        let name = conf.ipam.as_deref().unwrap_or_default();
        fail!(InvalidConfig, "the IPAM plugin {name} gave no address");
    }
    Ok(leased)
}

/// Moves the device, then makes it a rail.
fn move_in(
    home: &Link,
    conf: &NetConf,
    record: &mut Record,
    netns: &Netns,
    host: &mut Socket,
    pod: &mut Socket,
) -> Result<Link> {
    for altname in pod::clashing_altnames(pod, home, &record.ifname)? {
        link::remove_altname(host, home, &altname)?;
    }
    let change = Move { name: &record.ifname, mtu: conf.mtu, mac: conf.mac.as_deref() };
    link::move_to(host, home, netns, &change)?;
    let moved = link::by_name(pod, &record.ifname)?;
    let moved = moved.filter(|link| link.parent == home.parent && link.kind == home.kind);
    let moved = moved.with_context(|| format!("{} vanished on its way to the pod", home.name))?;
    record.applied.index = moved.index.get();
    record.applied.mac.clone_from(&moved.mac);
    let applied = &record.applied;
    netns.run(|| pod::set_sysctls(conf, applied, &record.ifname))?;
    pod::configure(pod, &moved, applied)?;
    Ok(moved)
}

/// Only what was done.
fn result(conf: &NetConf, record: &Record, link: Option<&Link>, leased: AddResult, path: &Path) -> AddResult {
    let interface = cni::Interface {
        name: record.ifname.clone(),
        mac: link.map_or_else(String::new, |link| link.mac.clone()),
        mtu: link.map(|link| link.mtu),
        sandbox: path.to_string_lossy().into_owned(),
        pci_id: record.device.pci_id.clone(),
        socket_path: None,
    };
    let ips = leased.ips.into_iter().map(|ip| cni::Ip { interface: Some(0), ..ip }).collect();
    let is_own_table = |route: &crate::netlink::route::Route| {
        record.applied.rules.iter().any(|rule| rule.table == route.table)
    };
    let routes = record.applied.routes.iter().filter(|route| !is_own_table(route)).map(|route| cni::Route {
        dst: route.dst,
        gw: route.gateway,
        mtu: route.mtu,
        advmss: route.advmss,
        priority: Some(route.metric).filter(|metric| *metric != 0),
        table: Some(route.table).filter(|table| *table != crate::netlink::route::MAIN),
        scope: route.scope,
    });
    let routes = routes.collect();
    let dns = if conf.dns.is_empty() { leased.dns } else { conf.dns.clone() };
    AddResult { interfaces: vec![interface], ips, routes, dns }
}

/// Does the namespace of the record live, with the device? It may be where we cannot see it, in a namespace
/// that the pod made: then it is not on the host.
fn holds_its_device(record: &Record) -> Result<bool> {
    if record.phase != Phase::Attached || !record.netns_is_alive()? {
        return Ok(false);
    }
    let netns = Netns::open(&record.netns.path)?;
    let mut pod = netns.run(Socket::open)?;
    Ok(record.device.link.is_none()
        || giveback::find_in_pod(record, &mut pod)?.is_some()
        || giveback::find_on_host(record, &mut Socket::open()?)?.is_none())
}

fn compare(
    record: &Record,
    attachment: &Attachment,
    path: &Path,
    previous: &AddResult,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let netns = Netns::open(path)?;
    let sandbox_is = |text: &str| Path::new(text) == path || same_namespace(&PathBuf::from(text), path);
    let said =
        previous.interfaces.iter().find(|one| one.name == attachment.ifname && !one.sandbox.is_empty());
    match said {
        Some(interface) if sandbox_is(&interface.sandbox) => (),
        Some(interface) => found.push(format!("prevResult has it in {}", interface.sandbox)),
        // Results below 0.3.0 have no interfaces.
        None if previous.interfaces.is_empty() => (),
        None => found.push(format!("prevResult has no interface {}", attachment.ifname)),
    }
    if record.phase != Phase::Attached {
        found.push("its ADD was not finished".to_owned());
        return Ok(found);
    }
    if !same_namespace(&record.netns.path, path) {
        found.push(format!("it was attached to {}", record.netns.path.display()));
        return Ok(found);
    }
    if record.device.link.is_none() {
        return Ok(found);
    }
    let mut pod = netns.run(Socket::open)?;
    match giveback::find_in_pod(record, &mut pod)? {
        None => found.push(format!("the device {} is not in the pod", record.device.id)),
        Some(link) => found.extend(pod::differences(&mut pod, &link, record, previous)?),
    }
    Ok(found)
}

fn same_namespace(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| NetnsId::of(path).ok().flatten().map(|id| (id.dev, id.ino));
    id(one).is_some_and(|id_one| id(other) == Some(id_one))
}

/// Is the rail's PF on this node?
fn rail_is_there(network: &Network, node: &Node) -> Result<()> {
    let Some(rail) = network.get(&["rail"]).and_then(serde_json::Value::as_u64) else { return Ok(()) };
    let pfs: Vec<_> = node.rails.iter().filter(|one| u64::from(one.rail) == rail).collect();
    if pfs.is_empty() && !node.rails.is_empty() {
        fail!(NotAvailable, "rail {rail}: node.json does not list it");
    }
    for one in pfs {
        let there = match DeviceId::parse(&one.pf) {
            Some(id) => crate::sysfs::Function::find(&node.sysfs_root, &id)?.is_some(),
            None => node.sysfs_root.join("class/net").join(&one.pf).exists(),
        };
        if !there {
            fail!(NotAvailable, "rail {rail}: the node has no PF {}", one.pf);
        }
    }
    Ok(())
}

/// The first error, with the code it has, and what else went wrong.
fn first_with_all(errors: Vec<anyhow::Error>) -> Result<()> {
    let mut errors = errors.into_iter();
    let Some(first) = errors.next() else { return Ok(()) };
    let others: Vec<_> = errors.map(|error| format!("{error:#}")).collect();
    if others.is_empty() { Err(first) } else { Err(first.context(format!("{}; first", others.join("; ")))) }
}
