//! The RDMA devices of a rail. In the exclusive mode they go with the netdev, both ways before it: a driver may
//! refuse, and the host's inventory looks when the netdev appears (dranet#177).

use anyhow::Result;

use super::config::{NetConf, Rdma};
use super::device::Device;
use super::record::{Record, Records, What};
use crate::error::all_of;
use crate::fail;
use crate::netlink::rdma;
use crate::netns::Netns;
use crate::node::Node;

/// The RDMA devices that have to move.
pub fn plan(conf: &NetConf, device: &Device, node: &Node) -> Result<Vec<rdma::Device>> {
    let names = device.rdma_devices();
    let what = device.describe();
    if conf.rdma == Rdma::Auto && names.is_empty() && device.pf_has_rdma(&node.sysfs_root) {
        log::warn!(
            "rdma: {what} has no RDMA device here, and its PF has one: NCCL will use TCP on this rail"
        );
    }
    if conf.rdma == Rdma::Off || (conf.rdma == Rdma::Auto && names.is_empty()) {
        return Ok(Vec::new());
    }
    let socket = rdma::open()?;
    let is_required = conf.rdma == Rdma::Required;
    let Some(mut socket) = socket else {
        return if is_required {
            fail!(UnsupportedField, "rdma: required, and this kernel has no RDMA")
        } else {
            Ok(Vec::new())
        };
    };
    if !rdma::is_exclusive(&mut socket)? {
        if is_required {
            fail!(
                UnsupportedField,
                "rdma: required, and the system is in shared mode: `rdma system set netns exclusive`, before any pod starts"
            );
        }
        return Ok(Vec::new());
    }
    let mut devices = rdma::devices(&mut socket)?;
    devices.retain(|one| names.contains(&one.name));
    if devices.len() < names.len() || (is_required && devices.is_empty()) {
        fail!(
            UnsupportedField,
            "rdma: {what} has the RDMA devices {names:?}, and the host sees {} of them",
            devices.len()
        );
    }
    Ok(devices)
}

/// Where they are required: fails while a pod still has them that has given up the device itself.
pub fn refuse_owed(conf: &NetConf, device: &Device, records: &Records) -> Result<()> {
    if conf.rdma != Rdma::Required || !device.rdma_devices().is_empty() {
        return Ok(());
    }
    let owes = |record: &Record| record.owed().iter().any(|owed| owed.what == What::Rdma);
    match records.debts_of(&device.home.id)?.into_iter().find(|debt| owes(&debt.record)) {
        None => Ok(()),
        Some(debt) => fail!(
            TryAgain,
            "rdma: required, and the RDMA device of {} is still in {}: `rail-cni reap` takes it home, or that pod's end",
            device.describe(),
            debt.record.holder()
        ),
    }
}

/// Moves them to the pod.
pub fn move_in(devices: &[rdma::Device], netns: &Netns) -> Result<()> {
    let Some(mut socket) = (if devices.is_empty() { None } else { rdma::open()? }) else { return Ok(()) };
    devices.iter().try_for_each(|device| rdma::move_to(&mut socket, device, netns))
}

/// Takes those that are in the pod back to the host. When the namespace dies, the kernel does it.
pub fn take_back(record: &Record, netns: &Netns) -> Result<()> {
    if record.rdma.is_empty() {
        return Ok(());
    }
    let host = Netns::current()?;
    // From inside: the kernel compares with the namespace of the calling thread, not with the socket's
    // (ib_device_set_netns_put in drivers/infiniband/core/device.c).
    netns.run(|| {
        let Some(mut pod) = rdma::open()? else { return Ok(()) };
        let ours = of_pod(record, &mut pod)?;
        all_of(ours.iter().map(|device| rdma::move_to(&mut pod, device, &host)))
    })
}

/// The names that they had, where the pod gave them others: those on the host, wherever they come from.
pub fn restore_names(record: &Record) -> Result<()> {
    let Some(mut host) = (if record.rdma.is_empty() { None } else { rdma::open()? }) else { return Ok(()) };
    let mut restore = |device: &rdma::Device| match rdma::by_index(&mut host, device.index)? {
        Some(now) if now.name != device.name => rdma::rename(&mut host, device),
        _ => Ok(()),
    };
    all_of(record.rdma.iter().map(&mut restore))
}

/// What CHECK finds.
pub fn differences(record: &Record, netns: &Netns) -> Result<Vec<String>> {
    if record.rdma.is_empty() {
        return Ok(Vec::new());
    }
    let there = match netns.run(rdma::open)? {
        Some(mut pod) => of_pod(record, &mut pod)?,
        None => Vec::new(),
    };
    let missing = record.rdma.iter().filter(|device| !there.iter().any(|one| one.index == device.index));
    Ok(missing.map(|device| format!("the RDMA device {} is not in the pod", device.name)).collect())
}

/// By index, which no namespace changes: the pod may have renamed them. Each is one question, for a list leaves one out
/// when another one leaves meanwhile.
fn of_pod(record: &Record, pod: &mut crate::netlink::Socket) -> Result<Vec<rdma::Device>> {
    let mut there = Vec::new();
    for device in &record.rdma {
        there.extend(rdma::by_index(pod, device.index)?);
    }
    Ok(there)
}
