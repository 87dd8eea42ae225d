//! Devices that a pod has without a record: someone emptied the run directory while the pod lived,
//! or another plugin attached them. DEL returns them by their PCI address, or by the record that
//! `railctl reap --rebuild` made.

use std::path::Path;

use anyhow::Result;

use super::locate;
use super::locks::AttachmentLock;
use super::owner::Key;
use super::record::Record;
use super::records::Records;
use crate::cni::Attachment;
use crate::device;
use crate::netns::{Netns, NetnsId};
use crate::node::Node;
use crate::sysfs::{DeviceId, Function};
use crate::{calls, fail};
use rail_netlink::Socket;
use rail_netlink::link::{self, Link, Move};

/// The key of a rebuilt record: the runtime's own is not known.
pub fn key_in(netns: &NetnsId, ifname: &str) -> Key {
    let container_id = format!("rebuilt-{}", netns.ino);
    Key::whole(&Attachment {
        container_id,
        ifname: ifname.to_owned(),
    })
}

/// Fails when the device is on the host without its netdev, which another network namespace may
/// have.
pub fn refuse(id: &DeviceId, node: &Node) -> Result<()> {
    let Some(function) = Function::find(&node.sysfs_root, id)? else {
        return Ok(());
    };
    if device::is_away(&function)? {
        fail!(
            TryAgain,
            "{} has no netdev on the host, and there is no record of it: a pod may have it, which `railctl status` finds",
            function.id
        );
    }
    Ok(())
}

/// The usual name of a device. For a VF it is udev's, made of its PF and its number; for another
/// device an altname, because altnames move with it; otherwise the name that it has.
pub fn usual_name(id: &DeviceId, link: &Link, node: &Node) -> Result<String> {
    /// IFNAMSIZ without the zero at its end (linux/if.h).
    const LONGEST: usize = 15;
    let function = Function::find(&node.sysfs_root, id)?;
    let pf = function
        .as_ref()
        .map(|function| function.pf(&node.sysfs_root))
        .transpose()?
        .flatten();
    let number = function.as_ref().and_then(Function::vf_number);
    let of_vf = number
        .zip(pf.and_then(|pf| pf.netdev))
        .map(|(number, pf)| format!("{pf}v{number}"));
    let mut names = of_vf.into_iter().chain(link.altnames.iter().cloned());
    Ok(names
        .find(|name| name.len() <= LONGEST)
        .unwrap_or_else(|| link.name.clone()))
}

/// `record`, or the rebuilt record of what `attachment` has in the namespace at `netns`, with its
/// lock.
pub fn or_rebuilt(
    records: Option<&Records>,
    record: Option<Record>,
    attachment: &Attachment,
    netns: Option<&Path>,
) -> Result<(Option<AttachmentLock>, Option<Record>)> {
    let (None, Some(records), Some(netns)) = (&record, records, netns) else {
        return Ok((None, record));
    };
    let Some(id) = NetnsId::of(netns).ok().flatten() else {
        return Ok((None, None));
    };
    let rebuilt = key_in(&id, &attachment.ifname);
    if records.on_file(&rebuilt)?.is_none() {
        return Ok((None, None));
    }
    let lock = records.locks.attachment(&rebuilt)?;
    let record = records.on_file(&rebuilt)?;
    let is_it = |record: &Record| {
        let netns = &record.owner.netns;
        record.owner.rebuilt && (netns.dev, netns.ino) == (id.dev, id.ino)
    };
    Ok((Some(lock), record.filter(is_it)))
}

/// Returns a device without a record from a living pod; its PCI address alone is known. On the host
/// it gets its usual name, or else a free one. DEL needs this after /run was emptied, or after
/// another plugin's ADD. The path of the namespace may lead to another pod's by now: a device that
/// is on record stays where it is.
pub fn give_back_unrecorded(
    netns: &Netns,
    id: &DeviceId,
    ifname: &str,
    records: Option<&Records>,
    node: &Node,
) -> Result<()> {
    let mut pod = netns.run(Socket::open)?;
    let ours = |link: &Link| link.parent.as_deref() == Some(id.as_str());
    let Some(link) = link::by_name(&mut pod, ifname)?.filter(ours) else {
        return Ok(());
    };
    let _lock = records
        .map(|records| records.locks.device(id.as_str()))
        .transpose()?;
    if let Some(holder) = records.map_or(Ok(None), |records| holder_of(id, records))? {
        log::warn!("{} stays in the pod: {holder} has it", id.as_str());
        return Ok(());
    }
    let mut host = Socket::open()?;
    let usual = usual_name(id, &link, node)?;
    let is_free = usual != link.name && link::by_name(&mut host, &usual)?.is_none();
    let name = if is_free { usual } else { link::free_name() };
    for altname in locate::clashing(&link, &mut host)? {
        link::remove_altname(&mut pod, &link, &altname)?;
    }
    link::move_to(
        &mut pod,
        &link,
        &Netns::current()?,
        &Move {
            name: &name,
            ..Move::default()
        },
    )?;
    calls::restored(format!(
        "{} was in the pod as {ifname} without a record: it is on the host as {name}",
        id.as_str()
    ));
    Ok(())
}

/// The attachment on record that has the device, for messages.
fn holder_of(id: &DeviceId, records: &Records) -> Result<Option<String>> {
    let (attached, _) = records.all()?;
    let holder = attached.into_iter().find(|record| {
        let device = &record.owner.device;
        device.id == id.as_str() || device.pci_id.as_deref() == Some(id.as_str())
    });
    Ok(holder.map(|record| record.owner.describe()))
}
