//! DEL: the device returns to the host, the address is free, and what fails stays pending. Every
//! step is tried, even if an earlier one failed; `undo` has what DEL shares with the rollback of an
//! ADD, GC, `reap`, and an ADD of a dead pod's device.
//!
//! 1. Read only network name, container and interface; errors in the rest of the configuration do
//!    not matter.
//! 2. Lock the attachment, which waits for an ADD that its runtime gave up. Read the record or its
//!    copy; lock the device.
//! 3. Remove the device-info file, and find the device, in the recorded namespace or on the host
//!    (`locate`).
//! 4. Undo the steps in the pod. If the device is still in the pod, DEL fails; if something keeps
//!    its namespace, record and lease stay.
//! 5. Undo the steps on the host.
//! 6. Move the record to `pending/`: the device is free. Then call the IPAM plugin's DEL, and
//!    remove the record if nothing remains.
//! 7. Write the time of the DEL to the attachment's lock file, so that an earlier ADD does not
//!    continue, and retry pending steps of other attachments.

use std::path::Path;

use anyhow::Result;
use ipnet::IpNet;

use super::ipam::{Ipam, PATIENCE};
use super::locate::Place;
use super::locks::AttachmentLock;
use super::owner::Key;
use super::record::Record;
use super::records::Records;
use super::started::started;
use super::steps::lease::IpamLease;
use super::undo::Ended;
use super::{chained, heal, pending, rebuild};
use crate::calls;
use crate::cni::{Attachment, Command, Network};
use crate::error::{self, Code};
use crate::netconf::Outline;
use crate::netns::Netns;
use crate::node::Node;
use rail_netlink::all_of;

/// DEL needs only the key of the attachment: everything else is in its record, or gone.
pub fn del(network: &Network, attachment: &Attachment, path: Option<&Path>) -> Result<()> {
    let node = started(Node::load_lenient(), network);
    let outline = Outline::of(network);
    let ipam = outline.ipam(&node.policy).unwrap_or_else(|error| {
        log::warn!("{error:#}");
        None
    });
    let command = Command::Del(attachment.clone(), path.map(Path::to_owned));
    let delete = || {
        let Some(name) = ipam else { return Ok(()) };
        Ipam::for_network(name, network, &network.stdin, &node)?.run(&command)
    };

    let records = Records::open_for_del(&node)?;
    let key = chained::key(network, attachment);
    let (lock, record) = lock_and_find(records.as_ref(), &key)?;
    let (_rebuilt, record) = rebuild::or_rebuilt(records.as_ref(), record, attachment, path)?;
    let done = match (&records, record) {
        (Some(records), Some(record)) => {
            // The configuration may name another IPAM by now than the one that ADD used: that one
            // gets a DEL too.
            let is_of_add = record
                .find::<IpamLease>()
                .map(|of_add| of_add.r#type.as_str())
                == ipam;
            let done = recorded(record, records, &node);
            if !is_of_add {
                delete().unwrap_or_else(|error| log::warn!("{error:#}: ADD did not use it"));
            }
            done
        }
        _ => {
            // DEL of what was never added succeeds, whatever its configuration contains.
            // The netdev is another plugin's where only the RDMA device is ours.
            let path = path.filter(|_| !outline.is_chained);
            let done = give_back_unrecorded(network, attachment, path, records.as_ref(), &node);
            log::info!("there is no record of it");
            delete().unwrap_or_else(|error| {
                log::warn!("{error:#}: there is no record of {attachment}")
            });
            let removed = records
                .as_ref()
                .map_or(Ok(()), |records| unrecorded(records, &key, &node));
            // An empty result counts only if the search was in the right place.
            all_of([done, removed, node.confirm_nothing(path)])
        }
    };
    // Housekeeping for later calls must not fail this one, for example on a full /run.
    let left = lock.map_or(Ok(()), |mut lock| lock.set_deleted());
    if let Some(records) = &records {
        let aside = [
            left,
            pending::retry_due(records, &node),
            records.locks.prune(),
        ];
        all_of(aside).unwrap_or_else(|error| log::warn!("{error:#}"));
    }
    done
}

/// The record, with the lock of the attachment. Without a record and without a lock, as on a
/// read-only /run, there is nothing to guard.
fn lock_and_find(
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

fn recorded(record: Record, records: &Records, node: &Node) -> Result<()> {
    calls::rail(record.owner.rail);
    let addresses = record.facts().addresses;
    crate::log::addresses(addresses.iter().map(IpNet::addr));
    let ended = heal::end(records, record, node)?;
    // Steps that are left were logged when they failed.
    if !ended.record.is_left_of_device() {
        log::info!("{}", what_became_of(&ended, &addresses));
    }
    Ok(())
}

/// Ends the pending steps and half-written files of an earlier DEL of the attachment.
fn unrecorded(records: &Records, key: &Key, node: &Node) -> Result<()> {
    pending::retry_own(records, node, key, PATIENCE)?;
    records.remove_half_written(key)
}

/// The outcome of DEL for the log, by where the device was seen.
fn what_became_of(ended: &Ended, addresses: &[IpNet]) -> String {
    let owner = &ended.record.owner;
    let (id, since) = (&owner.device.id, &owner.since);
    if owner.is_rdma_alone() {
        return format!("the RDMA device of {id} is as it was; attached since {since}");
    }
    let place = match &ended.place {
        Place::Host(link) => format!("returned to the host as {}", link.name),
        Place::UserSpace => "is on the host, with its driver for user space".to_owned(),
        Place::Unbound => "is on the host, without a driver".to_owned(),
        Place::Gone => "is gone from the node".to_owned(),
        Place::Pod(_) | Place::Missing => "has not returned".to_owned(),
    };
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let addresses = if addresses.is_empty() {
        String::new()
    } else {
        format!(", {}", addresses.join(" and "))
    };
    format!("{id} {place}{addresses}; attached since {since}")
}

/// DEL without a record: the device is found by its PCI address, if the runtime still knows that.
fn give_back_unrecorded(
    network: &Network,
    attachment: &Attachment,
    path: Option<&Path>,
    records: Option<&Records>,
    node: &Node,
) -> Result<()> {
    let Some(netns) = path.and_then(|path| Netns::open(path).ok()) else {
        return Ok(());
    };
    match network.device_id(&attachment.ifname) {
        Some(id) if !netns.is(&Netns::current()?)? => {
            rebuild::give_back_unrecorded(&netns, &id, &attachment.ifname, records, node)
        }
        _ => Ok(()),
    }
}
