//! Who has which device. An attachment of which only the record is left, because its DEL never came or its
//! ADD was killed, is undone here, by whoever comes across it.

use anyhow::Result;

use super::config::NetConf;
use super::device::{self, Device};
use super::devinfo;
use super::giveback::{self, Outcome};
use super::record::{AttachmentLock, DeviceLock, Phase, Record, Records};
use crate::cni::{self, Attachment, Code, Delegate, all_of};
use crate::fail;
use crate::netlink::Socket;
use crate::netns::Netns;
use crate::node::Node;
use crate::sysfs::DeviceId;

/// How often ADD looks for its device again after it has put something right.
const MAX_TRIES: u32 = 4;

/// Finds the device and makes sure that it is nobody's. What a lost DEL left is put right on the way.
pub fn claim(
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
    fail!(TryAgain, "the device {} is not to be had: others keep taking it", conf.selector)
}

/// A PF whose VFs pods have is not moved away under them: no VF could be set back through it.
pub fn refuse_pf_of_attached_vfs(records: &Records, device: &Device) -> Result<()> {
    if !device.has_vfs() {
        return Ok(());
    }
    let (all, _) = records.all()?;
    let is_below = |record: &&Record| record.device.pf.is_some() && record.device.pf == device.home.pci_id;
    for record in all.iter().filter(is_below).filter(|record| record.device.id != device.home.id) {
        if holds_its_device(record)? {
            let (what, vf) = (device.describe(), &record.device.id);
            fail!(TryAgain, "{what} is the PF of {vf}, which is attached to {}", record.holder());
        }
    }
    Ok(())
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
        fail!(InvalidConfig, "the host has no device {selector}");
    }
    for claim in claims {
        if holds_its_device(claim)? {
            fail!(TryAgain, "device {} is attached to {}", claim.device.id, claim.holder());
        }
        settle_other(records, claim, node)?;
    }
    Ok(())
}

/// What an earlier ADD for the same key left: an error while it lives, undone if it was cut off.
pub fn settle_own(records: &Records, attachment: &Attachment, node: &Node) -> Result<()> {
    let Some(record) = records.on_file(attachment)? else { return Ok(()) };
    if holds_its_device(&record)? {
        fail!(InvalidConfig, "{attachment} already has {}: a second ADD needs a DEL first", record.device.id);
    }
    settle(records, &record, node)
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

/// Undoes an attachment that the runtime does not know any more, unless it lives or somebody is at work on it.
pub fn collect(records: &Records, record: &Record, node: &Node) -> Result<()> {
    let attachment = record.attachment();
    let Some(_lock) = records.try_lock(&attachment)? else { return Ok(()) };
    let Some(record) = records.find(&attachment)? else { return Ok(()) };
    if holds_its_device(&record)? {
        log::warn!("GC keeps {attachment}: its namespace lives");
        return Ok(());
    }
    settle(records, &record, node)
}

/// Undoes an attachment whose lock is held, from its record alone.
pub fn settle(records: &Records, record: &Record, node: &Node) -> Result<()> {
    let mut claim = records.lock_device(&record.device.id)?;
    let delegate = record.ipam.as_ref().map(|recorded| recorded.delegate(record));
    undo(record, records, &mut claim, node, delegate)
}

/// Undoes whatever was done of `record`. Every step is tried; while one fails, the record stays and says what
/// is still to be done.
pub fn undo<'a>(
    record: &Record,
    records: &Records,
    claim: &mut DeviceLock,
    node: &Node,
    delegates: impl IntoIterator<Item = Result<Delegate<'a>>>,
) -> Result<()> {
    let device = giveback::give_back(record, records, node);
    let info = record.device_info.as_deref().map_or(Ok(()), devinfo::remove);
    let released = all_of(delegates.into_iter().map(|delegate| delegate?.run("DEL")));
    let is_all_given_back = info.is_ok() && released.is_ok();
    let left = |phase| Record { phase, ..record.clone() };
    let filed = match &device {
        Ok(Outcome::Home) if is_all_given_back => records.remove(&record.attachment(), Some(claim)),
        Ok(Outcome::Home) => records.write(&left(Phase::Returned), claim),
        Ok(Outcome::Missing) => records.write(&left(Phase::Missing), claim),
        Err(_) => Ok(()),
    };
    all_of([device.map(drop), info, released, filed])
}

/// The record, with the lock of the attachment. Where no lock can be had and nothing is on record, as on a
/// read-only /run, there is nothing to guard either.
pub fn lock_and_find(
    records: Option<&Records>,
    attachment: &Attachment,
) -> Result<(Option<AttachmentLock>, Option<Record>)> {
    let Some(records) = records else { return Ok((None, None)) };
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

/// Does the namespace of the record live, with the device? It may be where we cannot see it, in a namespace
/// that the pod made: then it is not on the host.
pub fn holds_its_device(record: &Record) -> Result<bool> {
    if record.phase != Phase::Attached || !record.netns_is_alive()? {
        return Ok(false);
    }
    let netns = Netns::open(&record.netns.path)?;
    let mut pod = netns.run(Socket::open)?;
    Ok(record.device.link.is_none()
        || giveback::find_in_pod(record, &mut pod)?.is_some()
        || giveback::find_on_host(record, &mut Socket::open()?)?.is_none())
}
