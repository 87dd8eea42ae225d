//! The RDMA devices of a rail. In exclusive mode they move with the netdev, and before it in both directions: a driver
//! may refuse, and the host's inventory looks when the netdev appears (dranet#177).

pub(crate) mod gid;
mod name;
pub(super) mod pkey;
pub(crate) mod qos;

use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::errno::Errno;

use super::config::{NetConf, Rdma};
use super::device::Device;
use super::record::{Qos, RdmaRenamed, Record, Records, What};
use crate::error::all_of;
use crate::every_netns::{self, Seen, Which};
use crate::netlink::{Error, Socket, rdma};
use crate::netns::Netns;
use crate::node::Node;
use crate::sysfs::{DeviceId, Function, Mounted};
use crate::watchdog::{self, SearchTime};
use crate::{fail, files};

use name::is_listed;
pub use name::{recover_name, restore_names_made_anew};

/// How long RDMA devices may take on their way back from a namespace that has ended.
const PATIENCE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(10);

/// What ADD does with the RDMA devices of a rail.
#[derive(Debug, Default)]
pub struct Changes {
    /// Names of the devices that the pod will see.
    pub names: Vec<String>,
    /// The devices that must move.
    pub moving: Vec<rdma::Device>,
    /// The device that gets another name.
    pub renamed: Option<RdmaRenamed>,
    /// The ToS and the traffic class that the device gets.
    pub qos: Option<Qos>,
}

/// RDMA devices of a function that are in another namespace.
#[derive(Clone, Debug)]
pub struct Away {
    /// PCI address or auxiliary name of the function.
    pub id: String,
    /// Names of the RDMA devices.
    pub names: Vec<String>,
    /// A path that leads to the namespace.
    pub netns: PathBuf,
}

impl Away {
    /// Where they are, for people.
    pub fn describe(&self) -> String {
        let (names, netns) = (self.names.join(" and "), self.netns.display());
        format!("its RDMA device {names} is in the namespace {netns}")
    }
}

/// Decides what to do with the device's RDMA devices, and refuses what is not possible.
pub fn prepare(conf: &NetConf, device: &Device, node: &Node) -> Result<Changes> {
    let what = device.describe();
    let is_required = conf.rdma == Rdma::Required;
    let names = match device.rdma_devices() {
        Err(error) if !is_required => {
            log::warn!("{what} is attached without RDMA: {error:#}");
            Vec::new()
        }
        names => names?,
    };
    // Opening the socket makes a kernel without RDMA search for the module.
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
    let mut changes = Changes::default();
    match &mut socket {
        _ if conf.rdma == Rdma::Off && is_exclusive => (),
        Some(socket) if is_exclusive && !names.is_empty() => {
            changes.moving = rdma::named(socket, &names)?;
            if changes.moving.len() < names.len() {
                let count = changes.moving.len();
                fail!(
                    UnsupportedField,
                    "rdma: {what} has the RDMA devices {names:?}, and the host sees {count} of them"
                );
            }
            for device in &changes.moving {
                refuse_in_use(socket, device, &what)?;
            }
        }
        _ if names.is_empty() => without_device(conf, device, is_exclusive, node)?,
        _ => (),
    }
    if conf.rdma != Rdma::Off || !is_exclusive {
        changes.names = names;
    }
    changes.qos = qos::prepare(conf, &what, device.function(), &changes.names, node)?;
    name::prepare(conf, &what, socket.as_mut(), &mut changes)?;
    gid::refuse_without_device(conf, &what, &changes)?;
    Ok(changes)
}

/// Refuses a device that a program has open: with the move, the kernel takes it from the program.
fn refuse_in_use(socket: &mut Socket, device: &rdma::Device, what: &str) -> Result<()> {
    let Some(id) = rdma::users(socket, device.index)?.into_iter().next() else { return Ok(()) };
    let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
    fail!(
        TryAgain,
        "rdma: the RDMA device {} of {what} must move to the pod, and process {id} ({}) has it open: end that first",
        device.name,
        name.trim()
    )
}

/// The host sees no RDMA device of the function: another namespace may have it.
fn without_device(conf: &NetConf, device: &Device, is_exclusive: bool, node: &Node) -> Result<()> {
    let what = device.describe();
    let is_required = conf.rdma == Rdma::Required;
    let which = if is_required { Which::All } else { Which::Mounted };
    let functions: Vec<_> = device.function().into_iter().filter(|_| is_exclusive).collect();
    if let Some(away) = find_away(&functions, which, SearchTime::Short)?.first() {
        let place = away.describe();
        if is_required {
            fail!(
                TryAgain,
                "rdma: required, and {what} has none on the host: {place}: end that pod, or move it back"
            );
        }
        log::warn!("rdma: {what} is attached without RDMA: {place}; NCCL will use TCP on this rail");
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

/// Finds the RDMA devices of these functions in the namespaces that can be seen from here, as far as the time suffices.
pub fn find_away(functions: &[&Function], which: Which, time: SearchTime) -> Result<Vec<Away>> {
    let mut found = Vec::new();
    if functions.is_empty() {
        return Ok(found);
    }
    let deadline = watchdog::search_until(time);
    let seen = every_netns::visit(which, deadline, |_, netns| {
        if Instant::now() > deadline {
            return Ok(ControlFlow::Break(Seen::Part));
        }
        // Most namespaces have none, and seeing that needs no mount.
        if rdma::open()?.as_mut().map(rdma::is_any).transpose()?.unwrap_or(false) {
            let sysfs = Mounted::here()?;
            for function in functions {
                // A pod can choose a name that makes the folder unreadable.
                let listed = function.seen_in(&sysfs.path()).list_rdma_devices();
                let names = listed.unwrap_or_else(|_| vec!["with a name that cannot be listed".to_owned()]);
                if !names.is_empty() {
                    found.push(Away { id: function.id.clone(), names, netns: netns.to_owned() });
                }
            }
        }
        let is_done = found.len() >= functions.len();
        Ok(if is_done { ControlFlow::Break(Seen::All) } else { ControlFlow::Continue(()) })
    })?;
    if seen == Seen::Part {
        log::warn!("the search for RDMA devices ended before every namespace was examined");
    }
    Ok(found)
}

/// Restores RDMA devices that came back after their pod's DEL had given up waiting, as the next pod is to have them. Where
/// RDMA is required: fails while that pod still has them.
pub fn settle_owed(conf: &NetConf, device: &Device, records: &Records, node: &Node) -> Result<()> {
    let mut debts = records.debts_of(&device.original.id)?;
    let boot = files::boot_id()?;
    debts.retain(|debt| debt.record.owes(What::Rdma) && debt.record.boot_id == boot);
    for debt in &debts {
        restore_those_here(&debt.record, node).unwrap_or_else(|error| log::warn!("{error:#}"));
    }
    match debts.first() {
        Some(debt) if conf.rdma == Rdma::Required && device.rdma_devices()?.is_empty() => fail!(
            TryAgain,
            "rdma: required, and the RDMA device of {} is still in {}: run `rail-cni reap`, or end that pod",
            device.describe(),
            debt.record.holder()
        ),
        _ => Ok(()),
    }
}

/// Gives the devices their names, their ToS and their traffic class, and moves them to the pod.
pub fn move_in(record: &Record, netns: &Netns, node: &Node) -> Result<()> {
    qos::set_tc(record, node)?;
    let is_any = !record.rdma.is_empty() || record.rdma_renamed.is_some();
    if let Some(mut socket) = if is_any { rdma::open()? } else { None } {
        name::give(record, &mut socket)?;
        let mut moving = record.rdma.iter().map(|device| rdma::move_to(&mut socket, device, netns));
        moving.try_for_each(|moved| moved).map_err(explained)?;
    }
    qos::set_tos(record, netns, node)
}

/// Not every driver can: rxe, and bnxt_re before a patch of April 2023.
fn explained(error: anyhow::Error) -> anyhow::Error {
    match Error::is(&error, Errno::EOPNOTSUPP) {
        true => error
            .context("its driver cannot move an RDMA device to a pod: use a newer one, or \"rdma\": \"off\""),
        false => error,
    }
}

/// Restores what ADD or the pod changed of devices that are on the host. The names come first: the settings are found by
/// them.
pub fn restore(record: &Record, node: &Node) -> Result<()> {
    // With a netdev, that was waited for, and it comes back later than its RDMA device.
    if record.is_chained() {
        wait_for(record, node)?;
    }
    restore_those_here(record, node)
}

fn restore_those_here(record: &Record, node: &Node) -> Result<()> {
    all_of([name::restore_names(record, node), qos::restore(record, node)])
}

/// Moves the devices from the pod to the host. When the namespace ends, the kernel does that.
pub fn take_back(record: &Record, netns: &Netns) -> Result<()> {
    if record.rdma.is_empty() {
        return Ok(());
    }
    let host = Netns::current()?;
    // The request must come from a thread in the pod's namespace: the kernel compares with that, not with the socket's
    // (ib_device_set_netns_put in drivers/infiniband/core/device.c).
    netns.run(|| {
        let Some(mut pod) = rdma::open()? else { return Ok(()) };
        let ours = of_pod(record, &mut pod)?;
        all_of(ours.iter().map(|device| rdma::move_to(&mut pod, device, &host)))
    })
}

/// The kernel returns the devices of a namespace some moments after its end. One that its driver made anew meanwhile has
/// another index, and one without a driver is gone: nothing is left to wait for.
pub fn wait_for(record: &Record, node: &Node) -> Result<()> {
    let Some(mut host) = (if record.rdma.is_empty() { None } else { rdma::open()? }) else { return Ok(()) };
    let deadline = Instant::now() + PATIENCE;
    for device in &record.rdma {
        while rdma::by_index(&mut host, device.index)?.is_none() {
            let is_to_come_back = |function: Function| {
                function.driver().is_some() && function.rdma_devices().len() < record.rdma.len()
            };
            if !record.device.function(node)?.is_some_and(is_to_come_back) {
                break;
            }
            if Instant::now() > deadline {
                let name = &device.name;
                fail!(
                    TryAgain,
                    "the RDMA device {name} has not come back: another namespace of the pod may have it"
                );
            }
            sleep(PAUSE);
        }
    }
    Ok(())
}

/// Did the device end while the pod had it, with its driver's RDMA module, say? It may be made anew at any time.
pub fn has_ended(record: &Record, node: &Node) -> Result<bool> {
    let function = record.device.function(node)?;
    Ok(!function.map(|function| function.has_rdma_somewhere()).transpose()?.unwrap_or(false))
}

/// What CHECK finds about the devices. `ifname` is the present name of the netdev in the pod.
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
    found.extend(qos::differences(record, netns, node)?);
    found.extend(gid::differences(record, netns, ifname, node)?);
    found.extend(pkey::difference(record, netns, node)?);
    Ok(found)
}

/// The names that the record's devices have in the pod.
pub fn names_in_pod(record: &Record, netns: &Netns) -> Result<Vec<String>> {
    let Some(mut pod) = netns.run(rdma::open)?.filter(|_| !record.rdma.is_empty()) else {
        return Ok(Vec::new());
    };
    Ok(of_pod(record, &mut pod)?.into_iter().map(|device| device.name).collect())
}

/// The record's devices in the pod, by index, because the pod may have renamed them. Each is one request: the kernel's
/// list leaves a device out when another one moves away meanwhile.
fn of_pod(record: &Record, pod: &mut Socket) -> Result<Vec<rdma::Device>> {
    let mut there = Vec::new();
    for device in &record.rdma {
        there.extend(rdma::by_index(pod, device.index)?);
    }
    Ok(there)
}

/// The record's function in the sysfs of the namespace that has its RDMA devices. The mount must live as long as the
/// function is used.
fn function_of(record: &Record, netns: &Netns, node: &Node) -> Result<Option<(Function, Option<Mounted>)>> {
    let Some(id) = record.device.pci_id.as_deref().and_then(DeviceId::parse) else { return Ok(None) };
    let mounted = if record.rdma.is_empty() { None } else { Some(netns.run(Mounted::here)?) };
    let root = mounted.as_ref().map_or_else(|| node.sysfs_root.clone(), Mounted::path);
    Ok(Function::find(&root, &id)?.map(|function| (function, mounted)))
}
