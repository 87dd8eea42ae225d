//! The RDMA devices of a rail. In the exclusive mode they go with the netdev, both ways before it: a driver may
//! refuse, and the host's inventory looks when the netdev appears (dranet#177).

pub(crate) mod gid;
mod name;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::config::{NetConf, Rdma};
use super::device::Device;
use super::record::{RdmaRenamed, Record, Records, What};
use crate::error::all_of;
use crate::every_netns::{self, Seen, Which};
use crate::fail;
use crate::netlink::{Socket, rdma};
use crate::netns::Netns;
use crate::node::Node;
use crate::sysfs::{DeviceId, Function, Mounted};

pub use name::{restore_names, settle_dead};

/// For namespaces of which there are only processes.
const PATIENCE: Duration = Duration::from_millis(500);

/// What becomes of the RDMA devices of a rail.
#[derive(Debug, Default)]
pub struct Plan {
    /// Names of those that the pod will see.
    pub names: Vec<String>,
    /// Those that have to move.
    pub moving: Vec<rdma::Device>,
    /// The one that gets another name.
    pub renamed: Option<RdmaRenamed>,
}

/// RDMA devices of a function that are in somebody's namespace.
#[derive(Clone, Debug)]
pub struct Away {
    /// PCI address or auxiliary name of the function.
    pub id: String,
    /// Their names.
    pub names: Vec<String>,
    /// Leads to the namespace.
    pub netns: PathBuf,
}

impl Away {
    /// Where they are, for people.
    pub fn told(&self) -> String {
        let (names, netns) = (self.names.join(" and "), self.netns.display());
        format!("its RDMA device {names} is in the namespace {netns}")
    }
}

/// Decides it, and refuses what cannot be.
pub fn prepare(conf: &NetConf, device: &Device, node: &Node) -> Result<Plan> {
    let names = device.rdma_devices();
    let what = device.describe();
    let is_required = conf.rdma == Rdma::Required;
    // To open the socket makes a kernel without RDMA look for the module.
    let has_rdma = is_required || node.sysfs_root.join("class/infiniband").exists() || !names.is_empty();
    let mut socket = if has_rdma { rdma::open()? } else { None };
    let is_exclusive = socket.as_mut().map(rdma::is_exclusive).transpose()?.unwrap_or(false);
    if is_required && socket.is_none() {
        fail!(UnsupportedField, "rdma: required, and this kernel has no RDMA");
    }
    if is_required && !is_exclusive {
        fail!(
            UnsupportedField,
            "rdma: required, and the system is in shared mode: `rdma system set netns exclusive`, before any pod starts"
        );
    }
    let mut plan = Plan::default();
    match &mut socket {
        _ if conf.rdma == Rdma::Off && is_exclusive => (),
        Some(socket) if is_exclusive && !names.is_empty() => {
            plan.moving = rdma::named(socket, &names)?;
            if plan.moving.len() < names.len() {
                let count = plan.moving.len();
                fail!(
                    UnsupportedField,
                    "rdma: {what} has the RDMA devices {names:?}, and the host sees {count} of them"
                );
            }
        }
        _ if names.is_empty() => without_device(conf, device, is_exclusive, node)?,
        _ => (),
    }
    if conf.rdma != Rdma::Off || !is_exclusive {
        plan.names = names;
    }
    name::plan(conf, &what, socket.as_mut(), &mut plan)?;
    gid::refuse_without_device(conf, &what, &plan)?;
    Ok(plan)
}

/// The host sees no RDMA device of the function: another namespace may have it.
fn without_device(conf: &NetConf, device: &Device, is_exclusive: bool, node: &Node) -> Result<()> {
    let what = device.describe();
    let is_required = conf.rdma == Rdma::Required;
    let which = if is_required { Which::All } else { Which::Mounted };
    let functions: Vec<_> = device.function().into_iter().filter(|_| is_exclusive).collect();
    if let Some(away) = find_away(&functions, which)?.first() {
        let told = away.told();
        if is_required {
            fail!(
                TryAgain,
                "rdma: required, and {what} has none on the host: {told}: end that pod, or move it back"
            );
        }
        log::warn!("rdma: {what} is attached without RDMA: {told}; NCCL will use TCP on this rail");
    } else if is_required {
        fail!(
            UnsupportedField,
            "rdma: required, and {what} has no RDMA device: is the driver's RDMA module loaded?"
        );
    } else if conf.rdma == Rdma::Auto && device.pf_has_rdma(&node.sysfs_root) {
        log::warn!(
            "rdma: {what} has no RDMA device here, and its PF has one: NCCL will use TCP on this rail"
        );
    }
    Ok(())
}

/// Where the RDMA devices of these functions are, of those that are in a namespace which can be seen from here.
pub fn find_away(functions: &[&Function], which: Which) -> Result<Vec<Away>> {
    let mut found = Vec::new();
    if functions.is_empty() {
        return Ok(found);
    }
    every_netns::visit(which, Instant::now() + PATIENCE, |_, netns| {
        // Most have none, and that is seen without a mount.
        if rdma::open()?.as_mut().map(rdma::is_any).transpose()?.unwrap_or(false) {
            let sysfs = Mounted::here()?;
            for function in functions {
                let names = function.seen_in(&sysfs.path()).rdma_devices();
                if !names.is_empty() {
                    found.push(Away { id: function.id.clone(), names, netns: netns.to_owned() });
                }
            }
        }
        let is_done = found.len() >= functions.len();
        Ok(if is_done { ControlFlow::Break(Seen::All) } else { ControlFlow::Continue(()) })
    })?;
    Ok(found)
}

/// Where they are required: fails while a pod still has them that has given up the device itself.
pub fn refuse_owed(conf: &NetConf, device: &Device, records: &Records) -> Result<()> {
    if conf.rdma != Rdma::Required || !device.rdma_devices().is_empty() {
        return Ok(());
    }
    let owes = |record: &Record| record.owed().iter().any(|owed| owed.what == What::Rdma);
    match records.debts_of(&device.original.id)?.into_iter().find(|debt| owes(&debt.record)) {
        None => Ok(()),
        Some(debt) => fail!(
            TryAgain,
            "rdma: required, and the RDMA device of {} is still in {}: `rail-cni reap` takes it home, or that pod's end",
            device.describe(),
            debt.record.holder()
        ),
    }
}

/// Names them and moves them to the pod.
pub fn move_in(record: &Record, netns: &Netns) -> Result<()> {
    if record.rdma.is_empty() && record.rdma_renamed.is_none() {
        return Ok(());
    }
    let Some(mut socket) = rdma::open()? else { return Ok(()) };
    name::give(record, &mut socket)?;
    record.rdma.iter().try_for_each(|device| rdma::move_to(&mut socket, device, netns))
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

/// What CHECK finds of the devices, by the name of the netdev in the pod.
pub fn differences(record: &Record, netns: &Netns, ifname: &str, node: &Node) -> Result<Vec<String>> {
    let mut found = Vec::new();
    if !record.rdma.is_empty() {
        let there = match netns.run(rdma::open)? {
            Some(mut pod) => of_pod(record, &mut pod)?,
            None => Vec::new(),
        };
        let missing = record.rdma.iter().filter(|device| !there.iter().any(|one| one.index == device.index));
        found.extend(missing.map(|device| format!("the RDMA device {} is not in the pod", device.name)));
        if !found.is_empty() {
            return Ok(found);
        }
    }
    found.extend(name::difference(record, netns)?);
    found.extend(gid::differences(record, netns, ifname, node)?);
    Ok(found)
}

/// Names of the devices of the record that the pod has.
pub fn names_in_pod(record: &Record, netns: &Netns) -> Result<Vec<String>> {
    let Some(mut pod) = netns.run(rdma::open)?.filter(|_| !record.rdma.is_empty()) else {
        return Ok(Vec::new());
    };
    Ok(of_pod(record, &mut pod)?.into_iter().map(|device| device.name).collect())
}

/// By index, which no namespace changes: the pod may have renamed them. Each is one question, for a list leaves one out
/// when another one leaves meanwhile.
fn of_pod(record: &Record, pod: &mut Socket) -> Result<Vec<rdma::Device>> {
    let mut there = Vec::new();
    for device in &record.rdma {
        there.extend(rdma::by_index(pod, device.index)?);
    }
    Ok(there)
}

/// The function of the record, in the sysfs of the namespace that has its RDMA devices while the pod has the device.
/// The mount must be kept as long as the function is looked at.
fn function_of(record: &Record, netns: &Netns, node: &Node) -> Result<Option<(Function, Option<Mounted>)>> {
    let Some(id) = record.device.pci_id.as_deref().and_then(DeviceId::parse) else { return Ok(None) };
    let mounted = if record.rdma.is_empty() { None } else { Some(netns.run(Mounted::here)?) };
    let root = mounted.as_ref().map_or_else(|| node.sysfs_root.clone(), Mounted::path);
    Ok(Function::find(&root, &id)?.map(|function| (function, mounted)))
}
