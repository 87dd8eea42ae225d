//! Which attachment has which device. An attachment of which only the record is left, because its DEL never came or
//! its ADD was killed, is undone here by the next call that meets it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::config::NetConf;
use super::debt::{self, Heir};
use super::device::{self, Device};
use super::lost;
use super::record::{AttachmentLock, DeviceLock, Phase, Record, Records};
use super::restore::{self, Outcome};
use crate::cni::Attachment;
use crate::error::{self, Code, all_of};
use crate::netlink::Socket;
use crate::netns::{Life, Netns};
use crate::node::Node;
use crate::sysfs::DeviceId;
use crate::{calls, fail, failure};

/// How often ADD looks for its device again after it has restored something.
const MAX_TRIES: u32 = 4;

/// How long ADD waits for a pod that has the device, and may be ending: after a forced delete, the kubelet gives the
/// device to the next pod before the runtime has stopped the last one. Shorter than its next try takes, 11 s.
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
    /// An earlier attachment whose changes of the device could not be undone: its record has the original state.
    pub left: Option<Record>,
}

/// Finds the device and makes sure that no attachment has it. What a lost DEL left is restored on the way.
pub fn claim(
    records: &Records,
    conf: &NetConf,
    attachment: &Attachment,
    node: &Node,
    host: &mut Socket,
) -> Result<Claim> {
    let began = Instant::now();
    loop {
        match try_claim(records, conf, attachment, node, host) {
            Err(Refused::Held(_)) if began.elapsed() < ENDING => sleep(Duration::from_millis(50)),
            tried => return tried.map_err(Refused::into_error),
        }
    }
}

fn try_claim(
    records: &Records,
    conf: &NetConf,
    attachment: &Attachment,
    node: &Node,
    host: &mut Socket,
) -> Result<Claim, Refused> {
    for _ in 0..MAX_TRIES {
        let found = device::find(&conf.selector, node, host)?;
        let Some(found) = found.filter(|found| !is_what_is_left(found, conf, records)) else {
            if let Err(refused) = recover_absent(records, conf, node) {
                // Another call may have given it its name back, and removed its record, between the two looks.
                let now = device::find(&conf.selector, node, host)?;
                if now.is_none_or(|now| is_what_is_left(&now, conf, records)) {
                    return Err(refused);
                }
            }
            continue;
        };
        let id = found.original.id.clone();
        let mut lock = records.lock_device(&id)?;
        // Somebody may have taken it while we waited.
        let now = device::find(&conf.selector, node, host)?;
        let Some(now) = now.filter(|now| now.original.id == id) else { continue };
        let claims = records.claims_on(&id, &mut lock, Some(attachment))?;
        if claims.is_empty() {
            let left = match debt::take_over(records, &id, Heir::OfDevice, node, host)? {
                debt::Found::Untouched => return Ok(Claim { device: now, lock, left: None }),
                debt::Found::Restored => None,
                debt::Found::Stale(left) => Some(*left),
            };
            // Its name and its index may have changed.
            let Some(device) = device::find(&conf.selector, node, host)? else { continue };
            return Ok(Claim { device, lock, left });
        }
        drop(lock);
        for claim in claims {
            // A netdev that is on the host belongs to no pod; a device without one belongs to its pod while that lives.
            if now.original.link.is_none() && claim.phase != Phase::Returned {
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

/// Is it the second port of a function whose first port is attached? The function's address means the first.
fn is_what_is_left(found: &Device, conf: &NetConf, records: &Records) -> bool {
    let meant = conf.selector.id.as_ref().map(DeviceId::as_str).filter(|id| *id != found.original.id);
    meant.is_some_and(|id| records.named(id).is_ok_and(|claims| !claims.is_empty()))
}

/// Fails while the pod of `claim` has the device, or may have it.
fn refuse_living(claim: &Record, what: &str) -> Result<(), Refused> {
    let holder = claim.holder();
    match claim.life()? {
        Life::Dead => Ok(()),
        Life::Alive => Err(Refused::Held(failure!(TryAgain, "{what} is attached to {holder}"))),
        Life::Unknown(why) => Err(Refused::Other(failure!(
            TryAgain,
            "{what} was attached to {holder}, and it is not known whether that pod is alive: {why}. If it is gone: \
             `rail-cni reap --force {}`",
            claim.container_id
        ))),
    }
}

/// Refuses a PF whose VFs are attached to pods: without it on the host, their settings could not be restored.
pub fn refuse_pf_of_attached_vfs(records: &Records, device: &Device, node: &Node) -> Result<()> {
    if !device.has_vfs() {
        return Ok(());
    }
    let (all, _) = records.all()?;
    let is_below =
        |record: &&Record| record.device.pf.is_some() && record.device.pf == device.original.pci_id;
    for record in all.iter().filter(is_below).filter(|record| record.device.id != device.original.id) {
        // Of an ADD that is under way there is only the record, with its lock held.
        let is_begun = record.phase == Phase::Adding && records.is_busy(&record.attachment())?;
        if is_begun || holding(record, node)? != Holding::Nothing {
            let (what, vf) = (device.describe(), &record.device.id);
            fail!(TryAgain, "{what} is the PF of {vf}, which is attached to {}", record.holder());
        }
    }
    Ok(())
}

/// The device is not on the host under its name. Either a pod has it, or the kernel returned it under another name
/// when a pod's namespace ended, or it does not exist.
fn recover_absent(records: &Records, conf: &NetConf, node: &Node) -> Result<(), Refused> {
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
            if let Some(id) = selector.id.as_ref().filter(|id| device::is_unbound(id, node)) {
                let what = id.as_str();
                return Err(failure!(InvalidConfig, "{what} has no driver, so no netdev: bind one").into());
            }
            return Err(failure!(InvalidConfig, "the host has no device {selector}").into());
        };
        // It may be here under another name, and its own name may be free by now.
        let id = &debtor.device.id;
        let _lock = records.lock_device(id)?;
        if let debt::Found::Stale(left) =
            debt::take_over(records, id, Heir::OfDevice, node, &mut Socket::open()?)?
        {
            // Another plugin may have attached it since. That a driver which was bound again has made no netdev, is said by
            // what is owed.
            let is_said =
                |error: &anyhow::Error| left.bind.is_some() && error::code_of(error) != Code::TryAgain as u32;
            let function = left.device.pci_id.as_deref().and_then(DeviceId::parse);
            let refused = function.map_or(Ok(()), |function| lost::refuse(&function, node));
            refused.or_else(|error| if is_said(&error) { Ok(()) } else { Err(error) })?;
            let why = left.owed().into_iter().find(|owed| owed.what.is_of_device()).map(|owed| owed.why);
            let why = why.unwrap_or_default();
            let holder = left.holder();
            let error =
                failure!(TryAgain, "{selector} is the device {id}, which {holder} left behind: {why}");
            return Err(error.into());
        }
        return Ok(());
    }
    for claim in claims {
        match holding(claim, node)? {
            Holding::Device => {
                let (id, holder) = (&claim.device.id, claim.holder());
                return Err(Refused::Held(failure!(TryAgain, "device {id} is attached to {holder}")));
            }
            Holding::Unknown(_) if !is_on_host(claim, node)? => {
                refuse_living(claim, &format!("device {}", claim.device.id))?;
            }
            Holding::Nothing | Holding::Unknown(_) => recover_other(records, claim, node)?,
        }
        // Its namespace is gone, and the device has still not come back.
        let now = records.named(&claim.device.id)?;
        if now.iter().any(|now| now.attachment() == claim.attachment() && now.phase == Phase::Missing) {
            let error = failure!(
                TryAgain,
                "device {} has not come back from {}, whose network namespace is gone: {}",
                claim.device.id,
                claim.holder(),
                restore::how_to_end(claim)
            );
            return Err(error.into());
        }
    }
    Ok(())
}

/// Recovers what an earlier ADD for the same key left: an error while its pod lives, undone if it was killed.
pub fn recover_own(records: &Records, attachment: &Attachment, node: &Node) -> Result<()> {
    let Some(record) = records.on_file(attachment)? else {
        return debt::pay_own(records, node, attachment, debt::ASIDE);
    };
    match holding(&record, node)? {
        Holding::Device => {
            let device = &record.device.id;
            fail!(InvalidConfig, "{attachment} already has {device}: a second ADD needs a DEL first")
        }
        Holding::Unknown(_) => refuse_living(&record, &record.device.id).map_err(Refused::into_error),
        Holding::Nothing => recover(records, &record, node),
    }
}

/// Restores the device of an attachment of which only the record is left. If its ADD or DEL is under way, that ends
/// first. Other debts of the attachment are not waited for.
pub fn recover_other(records: &Records, claim: &Record, node: &Node) -> Result<()> {
    let _lock = records.lock(&claim.attachment())?;
    let Some(record) = records.find(&claim.attachment())?.filter(|now| now.device.id == claim.device.id)
    else {
        return Ok(());
    };
    match holding(&record, node)? {
        Holding::Nothing => (),
        // Whatever became of its pod, the pod does not have the device.
        Holding::Unknown(_) if is_on_host(&record, node)? => (),
        Holding::Device | Holding::Unknown(_) => return Ok(()),
    }
    calls::restored(format!("{} was left behind by {}: restoring it", record.device.id, record.holder()));
    let mut lock = records.lock_device(&record.device.id)?;
    match restore::device(&record, records, node)? {
        Outcome::OnHost(faults) => {
            let debt = records.owe(&record, &mut lock)?;
            debt::note(debt, faults, records)
        }
        Outcome::Missing => records.write(&Record { phase: Phase::Missing, ..record }, &mut lock),
    }
}

fn is_on_host(record: &Record, node: &Node) -> Result<bool> {
    Ok(restore::find_on_host(record, node, &mut Socket::open()?)?.is_some())
}

/// Undoes an attachment that the runtime does not know any more, unless its pod lives or a call is at work on it.
pub fn collect(records: &Records, record: &Record, node: &Node) -> Result<()> {
    let attachment = record.attachment();
    let Some(_lock) = records.try_lock(&attachment)? else { return Ok(()) };
    let Some(record) = records.find(&attachment)? else { return Ok(()) };
    match holding(&record, node)? {
        Holding::Nothing => recover(records, &record, node),
        Holding::Device => {
            log::warn!("GC keeps {attachment}: its namespace is alive");
            Ok(())
        }
        Holding::Unknown(why) => {
            log::warn!("GC keeps {attachment}: it is not known whether its namespace is alive: {why}");
            Ok(())
        }
    }
}

/// Undoes an attachment whose lock is held, from its record alone.
pub fn recover(records: &Records, record: &Record, node: &Node) -> Result<()> {
    let claim = records.lock_device(&record.device.id)?;
    undo(record, records, claim, node)
}

/// Undoes whatever was done of `record`; every step is tried. The device is free as soon as it is on the host, and
/// what could not be undone by then becomes a debt. An error means that the device is still in the pod, or that the
/// debt could not be written.
pub fn undo(record: &Record, records: &Records, mut claim: DeviceLock, node: &Node) -> Result<()> {
    let filed = match restore::device(record, records, node) {
        Ok(Outcome::OnHost(faults)) => {
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

/// The record, with the lock of the attachment. Without a record and without a lock, as on a read-only /run, there is
/// nothing to guard.
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

/// Whether an attachment still has its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holding {
    /// Its namespace lives and has the device. A device in a namespace that the pod made cannot be seen from here, but
    /// then it is not on the host either.
    Device,
    /// Its namespace is gone, or its device is on the host, or its ADD never ended.
    Nothing,
    /// It is not known, for this reason. Then nothing is taken from the pod.
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
        if record.is_chained() {
            return restore::has_netdev_on_host(record, node).map(|it_has| !it_has);
        }
        Ok(record.device.link.is_none()
            || restore::find_in_pod(record, &mut pod)?.is_some()
            || (restore::find_on_host(record, node, &mut Socket::open()?)?.is_none()
                && !restore::is_unbound(record, node)?))
    };
    Ok(match look() {
        Ok(true) => Holding::Device,
        Ok(false) => Holding::Nothing,
        Err(error) => Holding::Unknown(format!("{error:#}")),
    })
}
