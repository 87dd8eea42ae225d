//! Who has which device. An attachment of which only the record is left, because its DEL never came or its
//! ADD was killed, is undone here, by whoever comes across it.

use anyhow::Result;

use super::config::NetConf;
use super::debt;
use super::device::{self, Device};
use super::giveback::{self, Outcome};
use super::lost;
use super::record::{AttachmentLock, DeviceLock, Phase, Record, Records};
use crate::cni::Attachment;
use crate::error::{self, Code, all_of};
use crate::fail;
use crate::netlink::Socket;
use crate::netns::{Life, Netns};
use crate::node::Node;
use crate::sysfs::DeviceId;

/// How often ADD looks for its device again after it has put something right.
const MAX_TRIES: u32 = 4;

/// A device that is nobody's, and stays so while this is kept.
#[derive(Debug)]
pub struct Claim {
    /// It.
    pub device: Device,
    /// Held.
    pub lock: DeviceLock,
    /// The attachment that found the device in its first state, where that could not be put back since.
    pub left: Option<Record>,
}

/// Finds the device and makes sure that it is nobody's. What a lost DEL left is put right on the way.
pub fn claim(
    records: &Records,
    conf: &NetConf,
    attachment: &Attachment,
    node: &Node,
    host: &mut Socket,
) -> Result<Claim> {
    for _ in 0..MAX_TRIES {
        let found = device::find(&conf.selector, node, host)?;
        let Some(found) = found.filter(|found| !is_what_is_left(found, conf, records)) else {
            settle_absent(records, conf, node)?;
            continue;
        };
        let id = found.home.id.clone();
        let mut lock = records.lock_device(&id)?;
        // Somebody may have taken it while we waited.
        let now = device::find(&conf.selector, node, host)?;
        let Some(now) = now.filter(|now| now.home.id == id) else { continue };
        let claims = records.claims_on(&id, &mut lock, Some(attachment))?;
        if claims.is_empty() {
            let left = match debt::take_over(records, &id, node, host)? {
                debt::Found::Untouched => return Ok(Claim { device: now, lock, left: None }),
                debt::Found::PutRight => None,
                debt::Found::Left(left) => Some(*left),
            };
            // Its name may be another now, and its index.
            let Some(device) = device::find(&conf.selector, node, host)? else { continue };
            return Ok(Claim { device, lock, left });
        }
        drop(lock);
        for claim in claims {
            // A netdev that is on the host is nobody's; a device without one is its owner's while that lives.
            if now.home.link.is_none() && claim.phase != Phase::Returned {
                refuse_living(&claim, &now.describe())?;
            }
            settle_other(records, &claim, node)?;
        }
    }
    fail!(TryAgain, "the device {} is not to be had: others keep taking it", conf.selector)
}

/// Is it the second port of a function whose first one somebody has? By the function's address the first is meant.
fn is_what_is_left(found: &Device, conf: &NetConf, records: &Records) -> bool {
    let meant = conf.selector.id.as_ref().map(DeviceId::as_str).filter(|id| *id != found.home.id);
    meant.is_some_and(|id| records.named(id).is_ok_and(|claims| !claims.is_empty()))
}

/// Fails while the pod of `claim` has what it claims, or may have it.
fn refuse_living(claim: &Record, what: &str) -> Result<()> {
    match claim.life()? {
        Life::Dead => Ok(()),
        Life::Alive => fail!(TryAgain, "{what} is attached to {}", claim.holder()),
        Life::Unknown(why) => fail!(
            TryAgain,
            "{what} was attached to {}, and whether that lives cannot be told: {why}. If it is gone: \
             `rail-cni reap --force {}`",
            claim.holder(),
            claim.container_id
        ),
    }
}

/// A PF whose VFs pods have is not moved away under them: no VF could be set back through it.
pub fn refuse_pf_of_attached_vfs(records: &Records, device: &Device, node: &Node) -> Result<()> {
    if !device.has_vfs() {
        return Ok(());
    }
    let (all, _) = records.all()?;
    let is_below = |record: &&Record| record.device.pf.is_some() && record.device.pf == device.home.pci_id;
    for record in all.iter().filter(is_below).filter(|record| record.device.id != device.home.id) {
        if holding(record, node)? != Holding::Nothing {
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
        let mut debts = records.debts()?.into_iter().map(|debt| debt.record);
        let Some(debtor) = debts.find(|record| is_meant(&record) && record.owes_device()) else {
            selector.id.as_ref().map_or(Ok(()), |id| lost::refuse(id, node))?;
            fail!(InvalidConfig, "the host has no device {selector}");
        };
        // Under another name, perhaps, which may be free by now.
        let id = &debtor.device.id;
        let _lock = records.lock_device(id)?;
        if let debt::Found::Left(left) = debt::take_over(records, id, node, &mut Socket::open()?)? {
            let why = left.owed().into_iter().find(|owed| owed.what.is_of_device()).map(|owed| owed.why);
            fail!(
                TryAgain,
                "{selector} is the device {id}, which {} left: {}",
                left.holder(),
                why.unwrap_or_default()
            );
        }
        return Ok(());
    }
    for claim in claims {
        match holding(claim, node)? {
            Holding::Device => {
                fail!(TryAgain, "device {} is attached to {}", claim.device.id, claim.holder());
            }
            Holding::Unknown(_) if !is_on_host(claim, node)? => {
                refuse_living(claim, &format!("device {}", claim.device.id))?;
            }
            Holding::Nothing | Holding::Unknown(_) => settle_other(records, claim, node)?,
        }
        // Its namespace is gone, and still it has not come back.
        let now = records.named(&claim.device.id)?;
        if now.iter().any(|now| now.attachment() == claim.attachment() && now.phase == Phase::Missing) {
            fail!(
                TryAgain,
                "device {} has not come back from {}, whose network namespace is gone: {}",
                claim.device.id,
                claim.holder(),
                giveback::how_to_end(claim)
            );
        }
    }
    Ok(())
}

/// What an earlier ADD for the same key left: an error while it lives, undone if it was cut off.
pub fn settle_own(records: &Records, attachment: &Attachment, node: &Node) -> Result<()> {
    let Some(record) = records.on_file(attachment)? else {
        return debt::pay_own(records, node, attachment, debt::ASIDE);
    };
    match holding(&record, node)? {
        Holding::Device => {
            let device = &record.device.id;
            fail!(InvalidConfig, "{attachment} already has {device}: a second ADD needs a DEL first")
        }
        Holding::Unknown(_) => refuse_living(&record, &record.device.id),
        Holding::Nothing => settle(records, &record, node),
    }
}

/// Takes home the device of an attachment of which only the record is left. Its ADD or DEL may be under way: then that
/// goes first. What else is owed is not waited for.
fn settle_other(records: &Records, claim: &Record, node: &Node) -> Result<()> {
    let _lock = records.lock(&claim.attachment())?;
    let Some(record) = records.find(&claim.attachment())?.filter(|now| now.device.id == claim.device.id)
    else {
        return Ok(());
    };
    match holding(&record, node)? {
        Holding::Nothing => (),
        // Whatever became of its pod, that has not got it.
        Holding::Unknown(_) if is_on_host(&record, node)? => (),
        Holding::Device | Holding::Unknown(_) => return Ok(()),
    }
    log::warn!("{} was left by {}: it is put right", record.device.id, record.holder());
    let mut lock = records.lock_device(&record.device.id)?;
    match giveback::give_back(&record, records, node)? {
        Outcome::Home(faults) => {
            let debt = records.owe(&record, &mut lock)?;
            debt::note(debt, faults, records)
        }
        Outcome::Missing => records.write(&Record { phase: Phase::Missing, ..record }, &mut lock),
    }
}

fn is_on_host(record: &Record, node: &Node) -> Result<bool> {
    Ok(giveback::find_on_host(record, node, &mut Socket::open()?)?.is_some())
}

/// Undoes an attachment that the runtime does not know any more, unless it lives or somebody is at work on it.
pub fn collect(records: &Records, record: &Record, node: &Node) -> Result<()> {
    let attachment = record.attachment();
    let Some(_lock) = records.try_lock(&attachment)? else { return Ok(()) };
    let Some(record) = records.find(&attachment)? else { return Ok(()) };
    match holding(&record, node)? {
        Holding::Nothing => settle(records, &record, node),
        Holding::Device => {
            log::warn!("GC keeps {attachment}: its namespace lives");
            Ok(())
        }
        Holding::Unknown(why) => {
            log::warn!("GC keeps {attachment}: whether its namespace lives cannot be told: {why}");
            Ok(())
        }
    }
}

/// Undoes an attachment whose lock is held, from its record alone.
pub fn settle(records: &Records, record: &Record, node: &Node) -> Result<()> {
    let claim = records.lock_device(&record.device.id)?;
    undo(record, records, claim, node)
}

/// Undoes whatever was done of `record`; every step is tried. Its device is free as soon as it is home, and what
/// could not be done then is a debt. An error means that the device is still in the pod, or that nothing could be
/// put on file.
pub fn undo(record: &Record, records: &Records, mut claim: DeviceLock, node: &Node) -> Result<()> {
    let filed = match giveback::give_back(record, records, node) {
        Ok(Outcome::Home(faults)) => {
            let owes_nothing = record.ipam.is_none() && record.device_info.is_none() && faults.is_empty();
            if owes_nothing {
                return records.remove(&record.attachment(), Some(&mut claim));
            }
            match records.owe(record, &mut claim) {
                Ok(mut debt) => {
                    drop(claim);
                    return debt::pay_first(&mut debt, faults, records);
                }
                Err(error) => Err(error),
            }
        }
        Ok(Outcome::Missing) => {
            log::warn!("{} has not come back from {}", record.device.id, record.holder());
            let filed = records.write(&Record { phase: Phase::Missing, ..record.clone() }, &mut claim);
            debt::pay_without_device(record).unwrap_or_else(|error| log::warn!("{error:#}"));
            return filed;
        }
        Err(error) => Err(error),
    };
    drop(claim);
    all_of([filed, debt::pay_without_device(record)])
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
        Err(error) if error::code_of(&error) == Code::TryAgain as u32 => Err(error),
        Err(error) => match records.find(attachment)? {
            Some(_) => Err(error),
            None => {
                log::warn!("{error:#}");
                Ok((None, None))
            }
        },
    }
}

/// What an attachment still has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holding {
    /// Its namespace lives, with the device. It may be where we cannot see it, in a namespace that the pod made: then
    /// it is not on the host.
    Device,
    /// Its namespace is gone, or its device is on the host, or its ADD never ended.
    Nothing,
    /// Why that cannot be told. Nothing is taken then.
    Unknown(String),
}

/// Looks at the namespace of the record, and into it.
pub fn holding(record: &Record, node: &Node) -> Result<Holding> {
    match (record.life()?, record.phase) {
        (Life::Dead, _) | (_, Phase::Returned) | (Life::Alive, Phase::Adding) => return Ok(Holding::Nothing),
        (Life::Unknown(why), _) => return Ok(Holding::Unknown(why)),
        (Life::Alive, _) => (),
    }
    let look = || -> Result<bool> {
        let netns = Netns::open(&record.netns.path)?;
        let mut pod = netns.run(Socket::open)?;
        Ok(record.device.link.is_none()
            || giveback::find_in_pod(record, &mut pod)?.is_some()
            || giveback::find_on_host(record, node, &mut Socket::open()?)?.is_none())
    };
    Ok(match look() {
        Ok(true) => Holding::Device,
        Ok(false) => Holding::Nothing,
        Err(error) => Holding::Unknown(format!("{error:#}")),
    })
}
