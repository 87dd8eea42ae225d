//! DEL: the device returns to the host, the address is free, and what fails is owed.

use std::path::Path;

use anyhow::Result;

use super::record::{DebtFile, Record, Records, What};
use super::{chained, claim, config, debt, lost, restore, started};
use crate::calls;
use crate::cni::{Attachment, Delegate, Network};
use crate::error::all_of;
use crate::netns::Netns;
use crate::node::Node;

/// DEL needs only the key of the attachment: everything else is in its record, or gone.
pub fn del(network: &Network, attachment: &Attachment, path: Option<&Path>) -> Result<()> {
    let node = started(Node::load_lenient()?, network);
    let ipam = config::ipam_of(network).unwrap_or_else(|error| {
        log::warn!("{error:#}");
        None
    });
    let delegate = ipam.map(|name| Delegate::find(name, &network.path, &network.stdin));

    let records = Records::open_for_del(&node)?;
    let is_chained = config::is_chained(network);
    let key = chained::key(network, attachment);
    let (lock, record) = claim::lock_and_find(records.as_ref(), &key)?;
    let (_rebuilt, record) = lost::or_rebuilt(records.as_ref(), record, &key, path)?;
    let done = match (&records, &record) {
        (Some(records), Some(record)) => {
            calls::rail(record.rail);
            crate::log::addresses(record.applied.addresses.iter().map(ipnet::IpNet::addr));
            let done = claim::recover(records, record, &node);
            if done.is_ok() && is_restored(records, record).unwrap_or(false) {
                log::info!("{}", what_became_of(record));
            }
            // The configuration may name another IPAM by now than the one that ADD used: that one gets a DEL too.
            if record.ipam.as_ref().map(|of_add| of_add.r#type.as_str()) != ipam {
                let told = delegate.map_or(Ok(()), |delegate| delegate?.run("DEL"));
                told.unwrap_or_else(|error| log::warn!("{error:#}: ADD did not use it"));
            }
            done
        }
        _ => {
            // DEL of what was never added succeeds, whatever its configuration contains.
            // The netdev is another plugin's where only the RDMA device is ours.
            let path = path.filter(|_| !is_chained);
            let done = give_back_unrecorded(network, attachment, path, &node);
            log::info!("there is no record of it");
            let told = delegate.map_or(Ok(()), |delegate| delegate?.run("DEL"));
            told.unwrap_or_else(|error| log::warn!("{error:#}: there is no record of {attachment}"));
            let removed = records.as_ref().map_or(Ok(()), |records| {
                debt::pay_own(records, &node, &key, debt::WHOLE)?;
                records.remove(&key, None)
            });
            // Where nothing is found, the search must have been in the right place.
            all_of([done, removed, node.check_place(path)])
        }
    };
    // What matters only for later calls must not fail this one, for example on a full /run.
    let left = lock.map_or(Ok(()), |mut lock| lock.set_deleted());
    if let Some(records) = &records {
        let aside = [left, debt::pay_due(records, &node), records.prune_locks()];
        all_of(aside).unwrap_or_else(|error| log::warn!("{error:#}"));
    }
    done
}

/// Whether nothing of the device is left to do. What is left was logged when it was noted.
fn is_restored(records: &Records, record: &Record) -> Result<bool> {
    let of = record.attachment();
    let owes = |debt: &DebtFile| debt.record.owes_device() || debt.record.owes(What::Rdma);
    Ok(records.on_file(&of)?.is_none() && !records.debts_by(&of)?.iter().any(owes))
}

/// What DEL did, for the log.
fn what_became_of(record: &Record) -> String {
    let Record { device, applied, since, .. } = record;
    if record.is_chained() {
        return format!("the RDMA device of {} is as it was; attached since {since}", device.id);
    }
    let name = device.link.as_ref().map_or(String::new(), |link| format!(" as {}", link.name));
    let addresses: Vec<_> = applied.addresses.iter().map(ToString::to_string).collect();
    let addresses =
        if addresses.is_empty() { String::new() } else { format!(", {}", addresses.join(" and ")) };
    format!("{} went back to the host{name}{addresses}; attached since {since}", device.id)
}

/// DEL without a record: the device is found by its PCI address, if the runtime still knows that.
fn give_back_unrecorded(
    network: &Network,
    attachment: &Attachment,
    path: Option<&Path>,
    node: &Node,
) -> Result<()> {
    let Some(netns) = path.and_then(|path| Netns::open(path).ok()) else { return Ok(()) };
    match config::device_of(network, &attachment.ifname) {
        Some(id) if !netns.is(&Netns::current()?)? => {
            restore::unrecorded(&netns, &id, &attachment.ifname, node).map(drop)
        }
        _ => Ok(()),
    }
}
