//! The RDMA devices of a rail. In the exclusive mode they go with the netdev, both ways before it: a driver may
//! refuse, and the host's inventory looks when the netdev appears (dranet#177).

use anyhow::Result;

use super::config::{NetConf, Rdma};
use super::device::Device;
use super::record::Record;
use crate::fail;
use crate::netlink::rdma;
use crate::netns::Netns;

/// The RDMA devices that have to move.
pub fn plan(conf: &NetConf, device: &Device) -> Result<Vec<rdma::Device>> {
    let names = device.rdma_devices();
    if conf.rdma == Rdma::Off || (conf.rdma == Rdma::Auto && names.is_empty()) {
        return Ok(Vec::new());
    }
    let what = device.describe();
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
    let Some(mut pod) = netns.run(rdma::open)? else { return Ok(()) };
    let host = Netns::current()?;
    for device in of_pod(record, &mut pod)? {
        rdma::move_to(&mut pod, &device, &host)?;
    }
    Ok(())
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

/// By index, which no namespace changes: the pod may have renamed them.
fn of_pod(record: &Record, pod: &mut crate::netlink::Socket) -> Result<Vec<rdma::Device>> {
    let mut devices = rdma::devices(pod)?;
    devices.retain(|device| record.rdma.iter().any(|ours| ours.index == device.index));
    Ok(devices)
}
