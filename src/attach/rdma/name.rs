//! `rdmaDeviceName`: programs find the RDMA device of a rail under a name that does not depend on the node. The kernel
//! has each name once, over all namespaces.

use anyhow::{Context as _, Result};

use super::Plan;
use crate::attach::claim;
use crate::attach::config::NetConf;
use crate::attach::record::{RdmaRenamed, Record, Records};
use crate::cni::Attachment;
use crate::error::all_of;
use crate::fail;
use crate::netlink::{Socket, rdma};
use crate::netns::{Life, Netns};
use crate::node::Node;
use crate::sysfs::{DeviceId, Function};

/// Adds the new name to `plan`.
pub fn plan(conf: &NetConf, what: &str, socket: Option<&mut Socket>, plan: &mut Plan) -> Result<()> {
    let Some(wanted) = &conf.rdma_name else { return Ok(()) };
    let (Some(socket), [before]) = (socket, &plan.names[..]) else {
        let count = plan.names.len();
        fail!(
            UnsupportedField,
            "rdmaDeviceName: {what} has {count} RDMA devices here, and one can have the name: leave the key out"
        );
    };
    if before == wanted {
        return Ok(());
    }
    let Some(device) = rdma::named(socket, &plan.names)?.pop() else {
        fail!(TryAgain, "rdmaDeviceName: {what} had the RDMA device {before}, which is gone");
    };
    plan.renamed = Some(RdmaRenamed { index: device.index, before: device.name, wanted: wanted.clone() });
    plan.names = vec![wanted.clone()];
    Ok(())
}

/// Undoes attachments of dead pods that have the name which this network wants. One that lives is left alone.
pub fn settle_dead(conf: &NetConf, own: &Attachment, records: &Records, node: &Node) -> Result<()> {
    let Some(wanted) = &conf.rdma_name else { return Ok(()) };
    let (all, _) = records.all()?;
    let has_it = |record: &&Record| {
        record.attachment() != *own && record.rdma_renamed.as_ref().is_some_and(|one| one.wanted == *wanted)
    };
    for record in all.iter().filter(has_it) {
        if record.life()? == Life::Dead {
            claim::collect(records, record, node)?;
        }
    }
    Ok(())
}

/// Gives it the name, on the host.
pub fn give(record: &Record, host: &mut Socket) -> Result<()> {
    let Some(RdmaRenamed { index, before, wanted }) = &record.rdma_renamed else { return Ok(()) };
    rdma::rename(host, *index, wanted).with_context(|| {
        format!(
            "rdmaDeviceName: cannot name {before} {wanted}; each name exists once on a node, over all pods: \
             `rail-cni status` shows which pod has it"
        )
    })
}

/// The names that they had, where the pod or ADD gave them others: those on the host, wherever they come from. An index
/// is given again when a device is gone, so each must still be the function's.
pub fn restore_names(record: &Record, node: &Node) -> Result<()> {
    let mut were: Vec<_> = record.rdma.iter().map(|device| (device.index, &device.name)).collect();
    were.extend(record.rdma_renamed.iter().map(|one| (one.index, &one.before)));
    let Some(mut host) = (if were.is_empty() { None } else { rdma::open()? }) else { return Ok(()) };
    let id = record.device.pci_id.as_deref().and_then(DeviceId::parse);
    let function = id.map(|id| Function::find(&node.sysfs_root, &id)).transpose()?.flatten();
    let mut restore = |index: u32, before: &String| match rdma::by_index(&mut host, index)? {
        Some(now) if now.name != *before && is_of(function.as_ref(), &now) => {
            rdma::rename(&mut host, index, before)
        }
        _ => Ok(()),
    };
    all_of(were.into_iter().map(|(index, before)| restore(index, before)))
}

fn is_of(function: Option<&Function>, device: &rdma::Device) -> bool {
    // A name that a pod has made of `../x` or `..` is in no listing of sysfs, and no program of the host gives such.
    let is_listed = |name: &str| !name.contains('/') && name != "." && name != "..";
    !is_listed(&device.name)
        || function.is_some_and(|function| function.rdma_devices().contains(&device.name))
}

/// What CHECK finds.
pub fn difference(record: &Record, netns: &Netns) -> Result<Option<String>> {
    let Some(RdmaRenamed { index, wanted, .. }) = &record.rdma_renamed else { return Ok(None) };
    let Some(mut pod) = netns.run(rdma::open)? else { return Ok(None) };
    Ok(match rdma::by_index(&mut pod, *index)? {
        Some(now) if now.name == *wanted => None,
        Some(now) => Some(format!("the RDMA device {wanted} has the name {}", now.name)),
        None => Some(format!("the RDMA device {wanted} is not in the pod")),
    })
}
