//! Which attachment has which device. An attachment of which only the record is left, because its
//! DEL never came or its ADD was killed, is undone here by the next call that meets it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::locate::{self, Place};
use super::locks::{AttachmentLock, DeviceLock};
use super::owner::{Key, Part};
use super::record::Record;
use super::records::Records;
use super::state::{self, State};
use super::steps::vf;
use super::undo::{self, Lease};
use super::{pending, rebuild};
use crate::device::{self, Device};
use crate::error::{self, Code};
use crate::netconf::NetConf;
use crate::netns::Life;
use crate::node::Node;
use crate::sysfs::DeviceId;
use crate::{calls, fail, failure};
use rail_netlink::Socket;

/// How often ADD looks for its device again after it has restored something.
const MAX_TRIES: u32 = 4;

/// How long ADD waits for a pod that has the device, and may be ending: after a forced delete, the
/// kubelet gives the device to the next pod before the runtime has stopped the last one. Shorter
/// than its next try takes, 11 s.
const ENDING: Duration = Duration::from_secs(3);

/// Why a device cannot be claimed.
enum Refused {
    /// A pod has it, this error says.
    Held(anyhow::Error),
    /// Something else.
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Refused {
    fn from(error: anyhow::Error) -> Refused {
        Refused::Other(error)
    }
}

impl Refused {
    fn into_error(self) -> anyhow::Error {
        match self {
            Refused::Held(error) | Refused::Other(error) => error,
        }
    }
}

/// A device that no attachment has, and that none can claim while this is kept.
#[derive(Debug)]
pub struct Claim {
    /// The device.
    pub device: Device,
    /// Its lock, which is held.
    pub lock: DeviceLock,
    /// An earlier attachment whose changes of the device could not be undone: its record has the
    /// original state.
    pub previous: Option<Record>,
}

/// Finds the device and makes sure that no attachment has it. What a lost DEL left is restored on
/// the way.
pub fn claim(
    records: &Records,
    conf: &NetConf,
    key: &Key,
    node: &Node,
    host: &mut Socket,
) -> Result<Claim> {
    let began = Instant::now();
    loop {
        match try_claim(records, conf, key, node, host) {
            Err(Refused::Held(_)) if began.elapsed() < ENDING => sleep(Duration::from_millis(50)),
            tried => return tried.map_err(Refused::into_error),
        }
    }
}

fn try_claim(
    records: &Records,
    conf: &NetConf,
    key: &Key,
    node: &Node,
    host: &mut Socket,
) -> Result<Claim, Refused> {
    for _ in 0..MAX_TRIES {
        let found = device::find(&conf.selector, node, host)?;
        let Some(found) = found.filter(|found| !is_other_port(found, conf, records)) else {
            if let Err(refused) = recover_absent(records, conf, node, host) {
                // Another call may have given it its name back, and removed its record, between the
                // two looks.
                let now = device::find(&conf.selector, node, host)?;
                if now.is_none_or(|now| is_other_port(&now, conf, records)) {
                    return Err(refused);
                }
            }
            continue;
        };
        let id = found.original.id.clone();
        let mut lock = records.locks.device(&id)?;
        // Another call may have taken it while we waited.
        let now = device::find(&conf.selector, node, host)?;
        let Some(now) = now.filter(|now| now.original.id == id) else {
            continue;
        };
        let claims = records.claims_on(&id, &mut lock, Some(key))?;
        if claims.is_empty() {
            let settled = pending::settle(records, &id, Part::Whole, &vf::wanted(conf), node)?;
            if !settled.was_pending {
                return Ok(Claim {
                    device: now,
                    lock,
                    previous: None,
                });
            }
            // Its name and its index may have changed.
            let Some(device) = device::find(&conf.selector, node, host)? else {
                continue;
            };
            return Ok(Claim {
                device,
                lock,
                previous: settled.previous,
            });
        }
        drop(lock);
        for claim in claims {
            // A netdev that is on the host belongs to no pod; a device without one belongs to its
            // pod while that lives.
            if now.original.link.is_none() {
                refuse_living(&claim, &now.describe())?;
            }
            recover_other(records, &claim, node)?;
        }
    }
    Err(Refused::Other(failure!(
        TryAgain,
        "device {} is busy: other calls keep claiming it; retry",
        conf.selector
    )))
}

/// Is it the second port of a function whose first port is attached? The function's address means
/// the first.
fn is_other_port(found: &Device, conf: &NetConf, records: &Records) -> bool {
    let meant = conf
        .selector
        .id
        .as_ref()
        .map(DeviceId::as_str)
        .filter(|id| *id != found.original.id);
    meant.is_some_and(|id| records.named(id).is_ok_and(|claims| !claims.is_empty()))
}

/// Fails while the pod of `claim` has the device, or may have it.
fn refuse_living(claim: &Record, what: &str) -> Result<(), Refused> {
    let holder = claim.owner.describe();
    match claim.owner.life()? {
        Life::Dead => Ok(()),
        Life::Alive => Err(Refused::Held(failure!(
            TryAgain,
            "{what} is attached to {holder}"
        ))),
        Life::Unknown(why) => Err(Refused::Other(failure!(
            TryAgain,
            "{what} was attached to {holder}, and cannot tell whether that pod is \
                alive: {why}. If it is gone: \
             `railctl reap --force {}`",
            claim.owner.container_id
        ))),
    }
}

/// Refuses a PF whose VFs are attached to pods: without it on the host, their settings could not be
/// restored.
pub fn refuse_pf_of_attached_vfs(
    records: &Records,
    device: &Device,
    node: &Node,
    host: &mut Socket,
) -> Result<()> {
    if !device.has_vfs() {
        return Ok(());
    }
    for record in records.all()?.0 {
        let vf = &record.owner.device;
        if vf.pf.is_none() || vf.pf != device.original.pci_id || vf.id == device.original.id {
            continue;
        }
        // Of an ADD that is under way there is only the record, with its lock held.
        let is_begun = !record.is_attached() && records.locks.is_busy(&record.owner.key())?;
        if is_begun || !state::of(&record, node, host)?.is_left_over() {
            let (what, vf, holder) = (device.describe(), &vf.id, record.owner.describe());
            fail!(
                TryAgain,
                "{what} is the PF of {vf}, which is attached to {holder}"
            );
        }
    }
    Ok(())
}

/// Does the selector mean the device of this record?
fn is_meant(record: &Record, conf: &NetConf) -> bool {
    let (selector, device) = (&conf.selector, &record.owner.device);
    if let Some(id) = selector.id.as_ref().map(DeviceId::as_str) {
        if device.id == id || device.pci_id.as_deref() == Some(id) {
            return true;
        }
    }
    let Some(link) = &device.link else {
        return false;
    };
    selector
        .device
        .as_ref()
        .is_some_and(|name| link.name == *name || link.altnames.contains(name))
        || selector.hwaddr.as_ref().is_some_and(|mac| link.mac == *mac)
}

/// The device is not on the host under its name. Either a pod has it, or the kernel returned it
/// under another name when a pod's namespace ended, or it does not exist.
fn recover_absent(
    records: &Records,
    conf: &NetConf,
    node: &Node,
    host: &mut Socket,
) -> Result<(), Refused> {
    let (all, _) = records.all()?;
    let claims: Vec<_> = all.iter().filter(|record| is_meant(record, conf)).collect();
    if claims.is_empty() {
        return recover_pending(records, conf, node);
    }
    for claim in claims {
        let id = &claim.owner.device.id;
        match state::of(claim, node, host)? {
            State::Live(_) | State::Elsewhere => {
                let holder = claim.owner.describe();
                return Err(Refused::Held(failure!(
                    TryAgain,
                    "device {id} is attached to {holder}"
                )));
            }
            State::Unknown(_) if !is_on_host(claim, node, host)? => {
                refuse_living(claim, &format!("device {id}"))?;
            }
            _ => recover_other(records, claim, node)?,
        }
        // Its namespace is gone, and the device has still not come back.
        let mut now = records.named(id)?.into_iter();
        if now.any(|now| now.owner.key() == claim.owner.key() && now.is_missing()) {
            let error = failure!(
                TryAgain,
                "device {id} has not returned from {}, whose network namespace is gone: {}",
                claim.owner.describe(),
                locate::how_to_end(&claim.owner)
            );
            return Err(error.into());
        }
    }
    Ok(())
}

/// No attachment has the device. It may be on the host under another name, of an attachment that
/// has ended.
fn recover_pending(records: &Records, conf: &NetConf, node: &Node) -> Result<(), Refused> {
    let selector = &conf.selector;
    let mut ended = records.pending()?.into_iter().map(|pending| pending.record);
    let Some(record) = ended.find(|record| is_meant(record, conf) && record.is_left_of_device())
    else {
        let Some(id) = &selector.id else {
            return Err(failure!(InvalidConfig, "the host has no device {selector}").into());
        };
        rebuild::refuse(id, node)?;
        if device::is_unbound(id, node) {
            let what = id.as_str();
            return Err(failure!(
                InvalidConfig,
                "{what} has no driver, so no netdev: bind one"
            )
            .into());
        }
        return Err(failure!(InvalidConfig, "the host has no device {selector}").into());
    };
    // Its own name may be free by now.
    let id = &record.owner.device.id;
    let _lock = records.locks.device(id)?;
    let settled = pending::settle(records, id, Part::Whole, &vf::wanted(conf), node)?;
    let Some(previous) = settled.previous else {
        return Ok(());
    };
    // Another plugin may have attached it since.
    if let Some(function) = previous
        .owner
        .device
        .pci_id
        .as_deref()
        .and_then(DeviceId::parse)
    {
        rebuild::refuse(&function, node)?;
    }
    let why = previous
        .left()
        .find(|step| step.is_of_device())
        .map(|step| step.failed().why);
    let (why, holder) = (why.unwrap_or_default(), previous.owner.describe());
    Err(failure!(
        TryAgain,
        "{selector} is the device {id}, which {holder} left behind: {why}"
    )
    .into())
}

/// Recovers what an earlier ADD for the same key left: an error while its pod lives, undone if it
/// was killed.
pub fn recover_own(records: &Records, key: &Key, node: &Node, host: &mut Socket) -> Result<()> {
    let Some(record) = records.on_file(key)? else {
        return pending::retry_own(records, node, key, pending::ASIDE);
    };
    match state::of(&record, node, host)? {
        State::Live(_) | State::Elsewhere => {
            let device = &record.owner.device.id;
            fail!(
                InvalidConfig,
                "{key} already has {device}: a second ADD needs a DEL first"
            )
        }
        State::Unknown(_) => {
            refuse_living(&record, &record.owner.device.id).map_err(Refused::into_error)
        }
        _ => recover(records, record, node).map(drop),
    }
}

/// Restores the device of an attachment of which only the record is left. If its ADD or DEL is
/// under way, that ends first. Its lease is not waited for.
pub fn recover_other(records: &Records, claim: &Record, node: &Node) -> Result<()> {
    let key = claim.owner.key();
    let _lock = records.locks.attachment(&key)?;
    let Some(record) = records.find(&key)? else {
        return Ok(());
    };
    if record.owner.device.id != claim.owner.device.id {
        return Ok(());
    }
    let mut host = Socket::open()?;
    let is_left_over = match state::of(&record, node, &mut host)? {
        // Whatever became of its pod, the pod does not have the device.
        State::Unknown(_) => is_on_host(&record, node, &mut host)?,
        state => state.is_left_over(),
    };
    if !is_left_over {
        return Ok(());
    }
    let (id, holder) = (&record.owner.device.id, record.owner.describe());
    calls::restored(format!("{id} was left behind by {holder}: restoring it"));
    let lock = records.locks.device(id)?;
    undo::end(record, records, lock, Lease::Later, node).map(drop)
}

fn is_on_host(record: &Record, node: &Node, host: &mut Socket) -> Result<bool> {
    let function = record.owner.device.function(node)?;
    Ok(locate::on_host(&record.owner, function.as_ref(), node, host)?.is_some())
}

/// Undoes an attachment that the runtime does not know any more, unless its pod lives or a call is
/// at work on it.
pub fn collect(records: &Records, record: &Record, node: &Node) -> Result<()> {
    let key = record.owner.key();
    let Some(_lock) = records.locks.try_attachment(&key)? else {
        return Ok(());
    };
    let Some(record) = records.find(&key)? else {
        return Ok(());
    };
    match state::of(&record, node, &mut Socket::open()?)? {
        State::Live(_) | State::Elsewhere => log::warn!("GC keeps {key}: its namespace is alive"),
        State::Unknown(why) => {
            log::warn!("GC keeps {key}: cannot tell whether its namespace is alive: {why}");
        }
        _ => return recover(records, record, node).map(drop),
    }
    Ok(())
}

/// Undoes attachments of dead pods whose RDMA device has the name that this network wants. Living
/// pods are left alone.
pub fn recover_rdma_name(conf: &NetConf, own: &Key, records: &Records, node: &Node) -> Result<()> {
    let Some(wanted) = &conf.rdma_name else {
        return Ok(());
    };
    for record in records.all()?.0 {
        let renamed = record.rdma().and_then(|rdma| rdma.renamed.as_ref());
        let has_it = renamed.is_some_and(|renamed| renamed.wanted.as_ref() == Some(wanted));
        if has_it && record.owner.key() != *own && record.owner.life()? == Life::Dead {
            collect(records, &record, node)?;
        }
    }
    Ok(())
}

/// Undoes an attachment whose lock is held, from its record alone.
pub fn recover(records: &Records, record: Record, node: &Node) -> Result<undo::Ended> {
    let claim = records.locks.device(&record.owner.device.id)?;
    undo::end(record, records, claim, Lease::Now, node)
}

/// Ends attachments whose device had not come back and has by now, so that their addresses are
/// free. Returns whether any did.
pub fn recover_missing(records: &Records, node: &Node) -> Result<bool> {
    let mut is_any = false;
    for record in records.all()?.0.into_iter().filter(Record::is_missing) {
        // Neither is waited for: this ADD holds a device.
        let Some(_lock) = records.locks.try_attachment(&record.owner.key())? else {
            continue;
        };
        let Some(device) = records.locks.try_device(&record.owner.device.id)? else {
            continue;
        };
        if record.owner.life()? == Life::Dead {
            is_any |= undo::end(record, records, device, Lease::Now, node)?.place != Place::Missing;
        }
    }
    Ok(is_any)
}

/// The record, with the lock of the attachment. Without a record and without a lock, as on a
/// read-only /run, there is nothing to guard.
pub fn lock_and_find(
    records: Option<&Records>,
    key: &Key,
) -> Result<(Option<AttachmentLock>, Option<Record>)> {
    let Some(records) = records else {
        return Ok((None, None));
    };
    match records.locks.attachment(key) {
        Ok(lock) => Ok((Some(lock), records.find(key)?)),
        Err(error) if error::code_of(&error) == Code::TryAgain as u32 => Err(error),
        Err(error) => match records.find(key)? {
            Some(_) => Err(error),
            None => {
                log::warn!("{error:#}");
                Ok((None, None))
            }
        },
    }
}
