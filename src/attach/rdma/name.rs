//! `rdmaDeviceName`: programs find the RDMA device of a rail under a name that is the same on every node. The kernel has
//! each name only once, over all namespaces.

use anyhow::{Context as _, Result};

use super::Changes;
use crate::attach::claim;
use crate::attach::config::NetConf;
use crate::attach::record::{RdmaRenamed, Record, Records};
use crate::cni::Attachment;
use crate::error::all_of;
use crate::fail;
use crate::netlink::{Socket, rdma};
use crate::netns::{Life, Netns};
use crate::node::Node;
use crate::sysfs::Function;

/// Adds the new name to `changes`.
pub fn prepare(conf: &NetConf, what: &str, socket: Option<&mut Socket>, changes: &mut Changes) -> Result<()> {
    let Some(wanted) = &conf.rdma_name else { return Ok(()) };
    let (Some(socket), [before]) = (socket, &changes.names[..]) else {
        let count = changes.names.len();
        fail!(
            UnsupportedField,
            "rdmaDeviceName: {what} has {count} RDMA devices here, and the name is for exactly one: remove the key"
        );
    };
    if before == wanted {
        return Ok(());
    }
    let Some(device) = rdma::named(socket, &changes.names)?.pop() else {
        fail!(TryAgain, "rdmaDeviceName: {what} had the RDMA device {before}, which is gone");
    };
    changes.renamed = Some(RdmaRenamed { index: device.index, before: device.name, wanted: wanted.clone() });
    changes.names = vec![wanted.clone()];
    Ok(())
}

/// Undoes attachments of dead pods that have the name that this network wants. Living pods are left alone.
pub fn recover_name(conf: &NetConf, own: &Attachment, records: &Records, node: &Node) -> Result<()> {
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

/// Gives the device its name, while it is on the host.
pub fn give(record: &Record, host: &mut Socket) -> Result<()> {
    let Some(RdmaRenamed { index, before, wanted }) = &record.rdma_renamed else { return Ok(()) };
    if wanted.is_empty() {
        if let Some(now) = rdma::by_index(host, *index)?.filter(|now| now.name != *before) {
            log::warn!("the RDMA device {} has the name that an earlier pod left; it was {before}", now.name);
        }
        return Ok(());
    }
    rdma::rename(host, *index, wanted).with_context(|| {
        format!(
            "rdmaDeviceName: cannot name {before} {wanted}; each name exists once on a node, over all pods: \
             `rail-cni status` shows which pod has it"
        )
    })
}

/// Restores the names of devices that are on the host, whether the pod or ADD changed them. The kernel reuses the index
/// of a device that is gone, so each device must still belong to the function.
pub fn restore_names(record: &Record, node: &Node) -> Result<()> {
    let mut were: Vec<_> = record.rdma.iter().map(|device| (device.index, &device.name)).collect();
    were.extend(record.rdma_renamed.iter().map(|one| (one.index, &one.before)));
    let Some(mut host) = (if were.is_empty() { None } else { rdma::open()? }) else { return Ok(()) };
    let function = record.device.function(node)?;
    let mut restore = |index: u32, before: &String| match rdma::by_index(&mut host, index)? {
        Some(now) if now.name != *before && is_of(function.as_ref(), &now) => {
            rdma::rename(&mut host, index, before)
        }
        _ => Ok(()),
    };
    all_of(were.into_iter().map(|(index, before)| restore(index, before)))
}

/// Can sysfs list this name? A pod can choose one like `../x` or `..`, which no program of the host uses.
pub fn is_listed(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && name != "." && name != ".."
}

/// Gives the RDMA device of a driver that was bound again the name that it had: the kernel numbers devices by the order
/// in which drivers are bound.
pub fn restore_names_made_anew(record: &Record, node: &Node) -> Result<()> {
    let before = record.bind.as_ref().map(|bind| bind.rdma.as_slice()).unwrap_or_default();
    let function = record.device.function(node)?;
    let now = function.map(|function| function.list_rdma_devices()).transpose()?.unwrap_or_default();
    // Which of several is which cannot be told.
    let ([before], [now]) = (before, &now[..]) else { return Ok(()) };
    let Some(mut host) = (if before == now { None } else { rdma::open()? }) else { return Ok(()) };
    match rdma::named(&mut host, std::slice::from_ref(now))?.first() {
        Some(device) => rdma::rename(&mut host, device.index, before),
        None => Ok(()),
    }
}

fn is_of(function: Option<&Function>, device: &rdma::Device) -> bool {
    !is_listed(&device.name)
        || function.is_some_and(|function| function.rdma_devices().contains(&device.name))
}

/// What CHECK finds about the name.
pub fn difference(record: &Record, netns: &Netns) -> Result<Option<String>> {
    let renamed = record.rdma_renamed.as_ref().filter(|renamed| !renamed.wanted.is_empty());
    let Some(RdmaRenamed { index, wanted, .. }) = renamed else { return Ok(None) };
    let Some(mut pod) = netns.run(rdma::open)? else { return Ok(None) };
    Ok(match rdma::by_index(&mut pod, *index)? {
        Some(now) if now.name == *wanted => None,
        Some(now) => Some(format!("the RDMA device {wanted} has the name {}", now.name)),
        None => Some(format!("the RDMA device {wanted} is not in the pod")),
    })
}
