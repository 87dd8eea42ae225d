//! Repairs the traces of dead pods before an ADD claims its device: attachments whose DEL never
//! came or whose ADD was killed, pending steps, a device under another name. GC and DEL end
//! attachments by the same functions.

use anyhow::Result;

use super::away;
use super::locate::Place;
use super::owner::{Key, Part};
use super::record::Record;
use super::records::{Listed, Records};
use super::state::{self, State};
use super::steps::rdma::Rdma;
use super::steps::vf;
use super::undo::{self, LeaseReturn};
use super::{pending, rebuild};
use crate::device::{self, Device};
use crate::netconf::NetConf;
use crate::netns::{Life, Sandbox};
use crate::node::Node;
use crate::sysfs::DeviceId;
use crate::{calls, fail, failure};
use rail_netlink::Socket;

/// Why a device cannot be had.
#[derive(Debug)]
pub enum Refused {
    /// A pod has it, this error says.
    Held(anyhow::Error),
    /// Something else.
    Other(anyhow::Error),
}

/// The ADD that wants a device.
#[derive(Debug)]
pub struct Claimant<'a> {
    /// Its attachment.
    pub key: &'a Key,
    /// Its network, which says which device it means.
    pub conf: &'a NetConf,
    /// Its sandbox. An older one of the same pod gives way.
    pub sandbox: Sandbox<'a>,
    /// The node.
    pub node: &'a Node,
}

impl From<anyhow::Error> for Refused {
    fn from(error: anyhow::Error) -> Refused {
        Refused::Other(error)
    }
}

impl Refused {
    /// The error that ADD answers with.
    pub fn into_error(self) -> anyhow::Error {
        match self {
            Refused::Held(error) | Refused::Other(error) => error,
        }
    }
}

/// Puts right what an earlier ADD for the same key left. Fails while that attachment lives.
pub fn own_attachment(
    records: &Records,
    listed: &Listed,
    key: &Key,
    node: &Node,
    host: &mut Socket,
) -> Result<()> {
    let Some(record) = records.on_file_in(listed, key)? else {
        if listed.has_pending_of(key) {
            return pending::retry_own(records, node, key, pending::ASIDE);
        }
        return Ok(());
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
        _ => end(records, record, node).map(drop),
    }
}

/// Ends attachments of dead pods whose RDMA device has the name that this network wants. Living
/// pods are left alone.
pub fn rdma_name(conf: &NetConf, own: &Key, records: &Records, node: &Node) -> Result<()> {
    let Some(wanted) = &conf.rdma_name else {
        return Ok(());
    };
    for record in records.all()?.0 {
        let renamed = record.find::<Rdma>().and_then(|rdma| rdma.renamed.as_ref());
        let has_it = renamed.is_some_and(|renamed| renamed.wanted.as_ref() == Some(wanted));
        if has_it && record.owner.key() != *own && record.owner.life()? == Life::Dead {
            end_unless_alive(records, &record, node)?;
        }
    }
    Ok(())
}

/// Puts right what is left on the device that the network means, and finds it on the host. `None`
/// if it is not there yet although something was put right. Fails while a pod has the device, or
/// may have it.
pub fn device(
    records: &Records,
    listed: &Listed,
    claimant: &Claimant,
    host: &mut Socket,
) -> Result<Option<Device>, Refused> {
    let Some(device) = find(records, claimant, host)? else {
        let healed = absent_device(records, claimant, host);
        // Another call may have given it its name back, and removed its record, between two looks.
        let device = find(records, claimant, host)?;
        return match healed {
            Err(refused) if device.is_none() => Err(refused),
            _ => Ok(device),
        };
    };
    let id = device.original.id.clone();
    let claims = records.claims_in(listed, &id, claimant.key)?;
    if claims.is_empty() && !listed.has_pending_on(&id) {
        return Ok(Some(device));
    }
    for claim in claims {
        if end_if_replaced(records, &claim, claimant)? {
            continue;
        }
        // A netdev that is on the host belongs to no pod; a device without one belongs to its pod
        // while that lives.
        if device.original.link.is_none() {
            refuse_living(&claim, &device.describe())?;
        }
        end_if_left_over(records, &claim, claimant.node)?;
    }
    retry_pending(&id, records, claimant)?;
    Ok(find(records, claimant, host)?)
}

/// The device that the network means, on the host. A function's address means its first port: if a
/// pod has that, the second port is not meant.
pub fn find(records: &Records, claimant: &Claimant, host: &mut Socket) -> Result<Option<Device>> {
    let selector = &claimant.conf.selector;
    let Some(device) = device::find(selector, claimant.node, host)? else {
        return Ok(None);
    };
    let Some(meant) = selector.id.as_ref().map(DeviceId::as_str) else {
        return Ok(Some(device));
    };
    let is_other_port = meant != device.original.id && !records.named(meant)?.is_empty();
    Ok((!is_other_port).then_some(device))
}

/// The device is not on the host under its name: a pod has it, or the kernel returned it under
/// another name when a pod's namespace ended, or it does not exist.
fn absent_device(records: &Records, claimant: &Claimant, host: &mut Socket) -> Result<(), Refused> {
    let node = claimant.node;
    let (mut claims, _) = records.all()?;
    claims.retain(|record| is_meant(record, claimant.conf));
    if claims.is_empty() {
        return absent_without_claim(records, claimant);
    }
    for claim in &claims {
        if end_if_replaced(records, claim, claimant)? {
            continue;
        }
        let id = &claim.owner.device.id;
        match state::of(claim, node, host)? {
            State::Live(_) | State::Elsewhere => {
                let holder = claim.owner.describe();
                let error = failure!(TryAgain, "device {id} is attached to {holder}");
                return Err(Refused::Held(error));
            }
            State::Unknown(_) => refuse_living(claim, &format!("device {id}"))?,
            _ => end_if_left_over(records, claim, node)?,
        }
        refuse_missing(records, claim)?;
    }
    Ok(())
}

/// Fails if the namespace of this attachment is gone, and its device has still not come back.
/// Reads the record again: the attempt to end the attachment may have changed or removed it.
fn refuse_missing(records: &Records, claim: &Record) -> Result<()> {
    let id = &claim.owner.device.id;
    for record in records.named(id)? {
        if record.owner.key() == claim.owner.key() && record.is_missing() {
            fail!(
                TryAgain,
                "device {id} has not returned from {}, whose network namespace is gone: {}",
                claim.owner.describe(),
                away::how_to_end(&claim.owner, records)
            );
        }
    }
    Ok(())
}

/// No attachment has the device. It may be on the host under another name, of an attachment that
/// has ended; its own name may be free by now.
fn absent_without_claim(records: &Records, claimant: &Claimant) -> Result<(), Refused> {
    let Claimant { conf, node, .. } = claimant;
    let selector = &conf.selector;
    let mut ended = records.pending()?.into_iter().map(|pending| pending.record);
    let left = ended.find(|record| is_meant(record, conf) && record.is_left_of_device());
    let Some(record) = left else {
        if let Some(id) = &selector.id {
            rebuild::refuse(id, node)?;
            if device::is_unbound(id, node) {
                let what = id.as_str();
                let error = failure!(
                    InvalidConfig,
                    "{what} has no driver, so no netdev: bind one"
                );
                return Err(error.into());
            }
        }
        return Err(failure!(InvalidConfig, "the host has no device {selector}").into());
    };
    let id = &record.owner.device.id;
    let Some(previous) = retry_pending(id, records, claimant)? else {
        return Ok(());
    };
    // Another plugin may have attached it since.
    let pci_id = previous.owner.device.pci_id.as_deref();
    if let Some(function) = pci_id.and_then(DeviceId::parse) {
        rebuild::refuse(&function, node)?;
    }
    let step = previous.left().find(|step| step.is_of_device());
    let why = step.map(|step| step.failed().why).unwrap_or_default();
    let holder = previous.owner.describe();
    let error = failure!(
        TryAgain,
        "{selector} is the device {id}, which {holder} left behind: {why}"
    );
    Err(error.into())
}

/// Retries the pending steps of a device. Returns the attachment of which some are left.
fn retry_pending(id: &str, records: &Records, claimant: &Claimant) -> Result<Option<Record>> {
    let _lock = records.locks.device(id)?;
    let next = vf::wanted(claimant.conf);
    pending::settle(records, id, Part::Whole, &next, claimant.node)
}

/// Does the selector mean the device of this record?
fn is_meant(record: &Record, conf: &NetConf) -> bool {
    let selector = &conf.selector;
    let device = &record.owner.device;
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

/// Ends an attachment of which only the record is left. If its ADD or DEL is under way, that ends
/// first. Its lease is not waited for.
pub fn end_if_left_over(records: &Records, claim: &Record, node: &Node) -> Result<()> {
    let key = claim.owner.key();
    let _lock = records.locks.attachment(&key)?;
    let Some(record) = records.find(&key)? else {
        return Ok(());
    };
    if record.owner.device.id != claim.owner.device.id {
        return Ok(());
    }
    if !state::of(&record, node, &mut Socket::open()?)?.is_free() {
        return Ok(());
    }
    let (id, holder) = (&record.owner.device.id, record.owner.describe());
    calls::restored(format!("{id} was left behind by {holder}: restoring it"));
    let lock = records.locks.device(id)?;
    undo::end(record, records, lock, LeaseReturn::Later, node).map(drop)
}

/// Ends an attachment of an older sandbox of the claimant's pod, as its DEL would: the runtime made
/// another sandbox without one. Returns whether it is such an attachment.
fn end_if_replaced(records: &Records, claim: &Record, claimant: &Claimant) -> Result<bool> {
    if !claim.owner.sandbox().is_replaced_by(&claimant.sandbox) {
        return Ok(false);
    }
    let key = claim.owner.key();
    let _lock = records.locks.attachment(&key)?;
    if let Some(record) = records.find(&key)? {
        let id = &record.owner.device.id;
        let holder = record.owner.describe();
        calls::restored(format!(
            "{id} is taken from {holder}: an older sandbox of this pod"
        ));
        end(records, record, claimant.node)?;
    }
    Ok(true)
}

/// Undoes an attachment that the runtime does not know any more, unless its pod lives or a call is
/// at work on it.
pub fn end_unless_alive(records: &Records, record: &Record, node: &Node) -> Result<()> {
    let key = record.owner.key();
    let Some(_lock) = records.locks.try_attachment(&key)? else {
        return Ok(());
    };
    let Some(record) = records.find(&key)? else {
        return Ok(());
    };
    match state::of(&record, node, &mut Socket::open()?)? {
        State::Live(_) | State::Elsewhere | State::Lost => {
            log::warn!("GC keeps {key}: its namespace is alive");
        }
        State::Unknown(why) => {
            log::warn!("GC keeps {key}: cannot tell whether its namespace is alive: {why}");
        }
        _ => return end(records, record, node).map(drop),
    }
    Ok(())
}

/// Ends an attachment whose lock is held, from its record alone.
pub fn end(records: &Records, record: Record, node: &Node) -> Result<undo::Ended> {
    let claim = records.locks.device(&record.owner.device.id)?;
    undo::end(record, records, claim, LeaseReturn::Now, node)
}

/// Ends attachments of pods that are gone, or cannot be seen, whose device has come back to the
/// host, and those of older sandboxes of this pod, so that their addresses are free. Returns
/// whether any did.
pub fn returned_devices(records: &Records, sandbox: &Sandbox, node: &Node) -> Result<bool> {
    let mut host = Socket::open()?;
    let mut is_any = false;
    for record in records.all()?.0 {
        let is_replaced = record.owner.sandbox().is_replaced_by(sandbox);
        let is_unseen = matches!(record.owner.life()?, Life::Unknown(_));
        if !record.is_missing() && !is_unseen && !is_replaced {
            continue;
        }
        // Neither is waited for: this ADD holds a device.
        let Some(_lock) = records.locks.try_attachment(&record.owner.key())? else {
            continue;
        };
        let Some(device) = records.locks.try_device(&record.owner.device.id)? else {
            continue;
        };
        let state = state::of(&record, node, &mut host)?;
        if is_replaced || matches!(state, State::Missing | State::OnHost) {
            let ended = undo::end(record, records, device, LeaseReturn::Now, node)?;
            is_any |= ended.place != Place::Missing;
        }
    }
    Ok(is_any)
}
