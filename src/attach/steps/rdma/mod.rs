//! The RDMA devices of a rail. In exclusive mode they move with the netdev, and before it in both
//! directions: a driver may refuse, and the host's inventory looks when the netdev appears
//! (dranet#177).

mod data;
mod name;
pub mod qos;

use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::errno::Errno;

use crate::attach::context::Cx;
use crate::attach::step::{Asked, Made, Step, UndoneAt};
use crate::cni::AddResult;
use crate::device::Device;
use crate::fail;
use crate::netconf::{self, NetConf};
use crate::netns::Netns;
use crate::node::Node;
use crate::sysfs::Function;
use rail_netlink::all_of;
use rail_netlink::{Error, Socket, rdma};

use data::Renamed;
pub use data::{Rdma, function_in_pod};
pub use name::restore_names_made_anew;

/// Patience with RDMA devices on their way back from a namespace that has ended.
const PATIENCE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(10);

impl Step for Rdma {
    fn describe(&self) -> &'static str {
        "its RDMA device"
    }

    fn undone_at(&self) -> UndoneAt {
        UndoneAt::Device
    }

    fn plan(asked: &Asked<'_>, cx: &mut Cx<'_>) -> Result<Option<Rdma>> {
        let rdma = plan(asked.conf, asked.device, cx.node)?;
        let is_needed = rdma.is_something() || !rdma.names.is_empty();
        Ok(is_needed.then_some(rdma))
    }

    /// After the driver was bound again, the RDMA devices are others, and udev may rename them
    /// while they are looked up. To read the default ToS, a group is made in configfs, so that
    /// comes after the record is on file.
    fn refresh(&mut self, asked: &Asked<'_>, cx: &mut Cx<'_>) -> Result<bool> {
        let planned = self.clone();
        let driver = cx.facts.driver.as_ref();
        if driver.is_some_and(|bound| !bound.guids.is_empty()) {
            let again = || plan(asked.conf, asked.device, cx.node);
            *self = again().or_else(|_| again())?;
        }
        qos::note(self, asked.conf, cx)?;
        Ok(*self != planned)
    }

    fn make(&mut self, _asked: &Asked<'_>, made: &mut Made, cx: &mut Cx<'_>) -> Result<()> {
        self.apply(cx)?;
        made.is_anew |= !self.moving.is_empty();
        Ok(())
    }

    /// Takes the devices back where the pod still has them, and restores what ADD or the pod
    /// changed of them. The names come first: the settings are found by them.
    fn undo(&self, cx: &mut Cx<'_>) -> Result<()> {
        let taken = if self.is_away()? {
            take_back(&self.moving, cx)
        } else {
            Ok(())
        };
        // A device that the pod put into a namespace of its own comes back when that namespace
        // ends, under a name of the pod's choice.
        let back = taken.and_then(|()| self.wait_for(cx));
        all_of([back, self.restore(cx)])
    }

    fn check(&self, _previous: &AddResult, cx: &mut Cx<'_>) -> Result<Vec<String>> {
        self.differences(cx)
    }
}

/// Decides what to do with the device's RDMA devices, and refuses what is not possible.
fn plan(conf: &NetConf, device: &Device, node: &Node) -> Result<Rdma> {
    let what = device.describe();
    let is_required = conf.rdma == netconf::Rdma::Required;
    let names = match device.rdma_devices() {
        Err(error) if !is_required => {
            log::warn!("{what} is attached without RDMA: {error:#}");
            Vec::new()
        }
        names => names?,
    };
    // Opening the socket makes a kernel without RDMA search for the module.
    let has_rdma =
        is_required || node.sysfs_root.join("class/infiniband").exists() || !names.is_empty();
    let mut socket = if has_rdma { rdma::open()? } else { None };
    let is_exclusive = socket
        .as_mut()
        .map(rdma::is_exclusive)
        .transpose()?
        .unwrap_or(false);
    if is_required && socket.is_none() {
        fail!(
            UnsupportedField,
            "rdma: required, and this kernel has no RDMA"
        );
    }
    if is_required && !is_exclusive {
        fail!(
            UnsupportedField,
            "rdma: required, and the system is in shared mode: `rdma system set netns exclusive`, before any pod starts"
        );
    }
    let mut changes = Rdma::default();
    match &mut socket {
        _ if conf.rdma == netconf::Rdma::Off && is_exclusive => (),
        Some(socket) if is_exclusive && !names.is_empty() => {
            changes.moving = rdma::named(socket, &names)?;
            if changes.moving.len() < names.len() {
                let count = changes.moving.len();
                fail!(
                    UnsupportedField,
                    "rdma: {what} has the RDMA devices {names:?}, but only {count} of them are on the host"
                );
            }
            for device in &changes.moving {
                refuse_in_use(socket, device, &what)?;
            }
        }
        _ if names.is_empty() => without_device(conf, device, is_exclusive, node)?,
        _ => (),
    }
    if conf.rdma != netconf::Rdma::Off || !is_exclusive {
        changes.names = names;
    }
    changes.qos = qos::plan(conf, &what, device.function(), &changes.names, node)?;
    name::plan(conf, &what, socket.as_mut(), &mut changes)?;
    if conf.gid.is_some_and(|gid| gid.required) && changes.names.is_empty() {
        fail!(
            UnsupportedField,
            "gid: require, and the pod gets no RDMA device of {what}"
        );
    }
    if conf.gid.is_some() && !changes.names.is_empty() {
        changes.roce_devices = device.function().map_or(0, Function::roce_devices);
    }
    Ok(changes)
}

/// Refuses a device that a program has open: with the move, the kernel takes it from the program.
fn refuse_in_use(socket: &mut Socket, device: &rdma::Device, what: &str) -> Result<()> {
    let Some(id) = rdma::users(socket, device.index)?.into_iter().next() else {
        return Ok(());
    };
    let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
    fail!(
        TryAgain,
        "rdma: the RDMA device {} of {what} must move to the pod, and process {id} ({}) has it open: end that first",
        device.name,
        name.trim()
    )
}

/// Waits until the function has `count` RDMA devices on the host, which its driver makes after the
/// netdev. Returns their names.
fn await_devices(
    count: usize,
    patience: Duration,
    id: &str,
    function: Option<&Function>,
) -> Result<Vec<String>> {
    let deadline = Instant::now() + patience;
    loop {
        let names = function.map_or_else(|| Ok(Vec::new()), Function::list_rdma_devices)?;
        if names.len() >= count {
            return Ok(names);
        }
        if Instant::now() > deadline {
            fail!(
                TryAgain,
                "{id} had {count} RDMA devices, and has {} on the host: its driver has not made them anew yet",
                names.len()
            );
        }
        sleep(PAUSE);
    }
}

/// The host sees no RDMA device of the function: another namespace may have it.
fn without_device(conf: &NetConf, device: &Device, is_exclusive: bool, node: &Node) -> Result<()> {
    let what = device.describe();
    let is_required = conf.rdma == netconf::Rdma::Required;
    let function = device.function().filter(|_| is_exclusive);
    let is_away = function
        .map(Function::has_rdma_somewhere)
        .transpose()?
        .unwrap_or(false);
    if is_required && is_away {
        fail!(
            TryAgain,
            "rdma: required, and the RDMA device of {what} is in another namespace: end the pod there (`railctl doctor` \
             says where), or move it back"
        );
    }
    if is_required {
        fail!(
            UnsupportedField,
            "rdma: required, and {what} has no RDMA device: is the driver's RDMA module loaded?"
        );
    }
    let why = match conf.rdma {
        _ if is_away => "its RDMA device is in another namespace (`railctl doctor` says where)",
        netconf::Rdma::Auto if device.pf_has_rdma(&node.sysfs_root) => {
            "it has no RDMA device here, although its PF has one"
        }
        _ => return Ok(()),
    };
    log::warn!("rdma: {what} is attached without RDMA: {why}; NCCL will use TCP on this rail");
    Ok(())
}

impl Rdma {
    /// Whether anything changes, so that anything is to be undone.
    fn is_something(&self) -> bool {
        !self.moving.is_empty() || self.renamed.is_some() || self.qos.is_some()
    }

    /// Gives the devices their names, their ToS and their traffic class, and moves them to the pod.
    fn apply(&self, cx: &mut Cx<'_>) -> Result<()> {
        qos::set_tc(self, cx)?;
        let is_any = !self.moving.is_empty() || self.renamed.is_some();
        if let Some(mut socket) = if is_any { rdma::open()? } else { None } {
            if let Some(renamed) = &self.renamed {
                renamed.apply(&mut socket)?;
            }
            let _numbering = if self.moving.is_empty() {
                None
            } else {
                Some(cx.locks.binding()?)
            };
            let netns = &cx.pod()?.netns;
            for device in &self.moving {
                rdma::move_to(&mut socket, device, netns).map_err(explained)?;
            }
        }
        qos::set_tos(self, cx)
    }

    /// Restores devices that are on the host.
    pub fn restore(&self, cx: &Cx<'_>) -> Result<()> {
        all_of([name::restore(self, cx), qos::restore(self, cx)])
    }

    /// The kernel returns the devices of a namespace some moments after its end. One that its
    /// driver made anew meanwhile has another index, and one without a driver is gone: nothing is
    /// left to wait for.
    pub fn wait_for(&self, cx: &Cx<'_>) -> Result<()> {
        let is_any = !self.moving.is_empty();
        let Some(mut host) = (if is_any { rdma::open()? } else { None }) else {
            return Ok(());
        };
        let deadline = Instant::now() + PATIENCE;
        for device in &self.moving {
            while rdma::by_index(&mut host, device.index)?.is_none() {
                let is_to_come_back = cx.function.as_ref().is_some_and(|function| {
                    function.driver().is_some() && function.rdma_devices().len() < self.moving.len()
                });
                if !is_to_come_back {
                    break;
                }
                if Instant::now() > deadline {
                    let name = &device.name;
                    fail!(
                        TryAgain,
                        "the RDMA device {name} has not returned: another namespace of the pod may have it"
                    );
                }
                sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Whether a device that moved is not on the host.
    pub fn is_away(&self) -> Result<bool> {
        let is_any = !self.moving.is_empty();
        let Some(mut host) = (if is_any { rdma::open()? } else { None }) else {
            return Ok(false);
        };
        for device in &self.moving {
            if rdma::by_index(&mut host, device.index)?.is_none() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes over the indexes and names of the devices on the host, which their driver may have made
    /// anew. Fails if there are fewer than before, after the time of `patience`.
    pub fn renew(&mut self, conf: &NetConf, patience: Duration, cx: &Cx<'_>) -> Result<()> {
        let count_before = self.names.len().max(self.moving.len());
        if count_before == 0 {
            return Ok(());
        }
        let id = &cx.owner.device.id;
        let function = cx.function.as_ref();
        await_devices(count_before, patience, id, function)?;
        if let Some(bound) = &cx.facts.driver {
            restore_names_made_anew(bound, cx).unwrap_or_else(|error| log::warn!("{error:#}"));
        }
        let names = await_devices(count_before, Duration::ZERO, id, function)?;
        let is_any = !self.moving.is_empty() || self.renamed.is_some();
        if let Some(mut host) = if is_any { rdma::open()? } else { None } {
            let devices = rdma::named(&mut host, &names)?;
            if devices.len() < names.len() {
                fail!(TryAgain, "the RDMA devices of {id} are being renamed");
            }
            for (moving, device) in self.moving.iter_mut().zip(&devices) {
                refuse_in_use(&mut host, device, id)?;
                moving.index = device.index;
            }
            if let (Some(renamed), Some(device)) = (&mut self.renamed, devices.first()) {
                renamed.index = device.index;
            }
        }
        let renamed = self.renamed.as_ref();
        let wanted = renamed.and_then(|renamed| renamed.wanted.clone());
        self.names = wanted.map_or(names, |wanted| vec![wanted]);
        if conf.gid.is_some() {
            self.roce_devices = function.map_or(0, Function::roce_devices);
        }
        Ok(())
    }

    /// Takes over from an earlier attachment what it could not restore.
    pub fn inherit(&mut self, previous: &Rdma) {
        let names = previous
            .moving
            .iter()
            .map(|device| (device.index, &device.name));
        let renamed = previous
            .renamed
            .iter()
            .map(|renamed| (renamed.index, &renamed.before));
        for (index, name) in names.chain(renamed) {
            match self.moving.iter_mut().find(|device| device.index == index) {
                Some(moving) => moving.name.clone_from(name),
                None if self.renamed.is_some() => (),
                None => {
                    self.renamed = Some(Renamed {
                        index,
                        before: name.clone(),
                        wanted: None,
                    })
                }
            }
            if let Some(renamed) = self
                .renamed
                .as_mut()
                .filter(|renamed| renamed.index == index)
            {
                renamed.before.clone_from(name);
            }
        }
        if let Some(previous) = &previous.qos {
            self.qos.get_or_insert_default().inherit(previous);
        }
    }

    /// The names that the devices had on the host.
    pub fn names_before(&self) -> Vec<String> {
        let mut names: BTreeMap<u32, &String> = self
            .moving
            .iter()
            .map(|device| (device.index, &device.name))
            .collect();
        names.extend(
            self.renamed
                .iter()
                .map(|renamed| (renamed.index, &renamed.before)),
        );
        names.into_values().cloned().collect()
    }

    fn differences(&self, cx: &mut Cx<'_>) -> Result<Vec<String>> {
        let mut found = Vec::new();
        if !self.moving.is_empty() {
            let there = match cx.pod()?.netns.run(rdma::open)? {
                Some(mut pod) => of_pod(&self.moving, &mut pod)?,
                None => Vec::new(),
            };
            let missing = self
                .moving
                .iter()
                .filter(|device| !there.iter().any(|one| one.index == device.index));
            found.extend(
                missing.map(|device| format!("the RDMA device {} is not in the pod", device.name)),
            );
            if !found.is_empty() {
                return Ok(found);
            }
        }
        if let Some(renamed) = &self.renamed {
            found.extend(renamed.check(&cx.pod()?.netns)?);
        }
        found.extend(qos::differences(self, cx)?);
        Ok(found)
    }
}

/// Moves the devices from the pod to the host. When the namespace ends, the kernel does that.
pub fn take_back(moving: &[rdma::Device], cx: &mut Cx<'_>) -> Result<()> {
    let Some(pod) = cx.pod.as_ref().filter(|_| !moving.is_empty()) else {
        return Ok(());
    };
    let host = Netns::current()?;
    // A device that returns with another number is better than one that does not return.
    let numbering = cx.locks.binding();
    let _numbering = numbering.inspect_err(|error| log::warn!("{error:#}"));
    // The request must come from a thread in the pod's namespace: the kernel compares with that,
    // not with the socket's (ib_device_set_netns_put in drivers/infiniband/core/device.c).
    pod.netns.run(|| {
        let Some(mut pod) = rdma::open()? else {
            return Ok(());
        };
        let ours = of_pod(moving, &mut pod)?;
        all_of(
            ours.iter()
                .map(|device| rdma::move_to(&mut pod, device, &host)),
        )
    })
}

/// Did the devices end while the pod had them, with their driver's RDMA module, say? They may be
/// made anew at any time.
pub fn have_ended(function: Option<&Function>) -> Result<bool> {
    let has_any = function.map(Function::has_rdma_somewhere).transpose()?;
    Ok(!has_any.unwrap_or(false))
}

/// Not every driver can: rxe, and bnxt_re before a patch of April 2023.
fn explained(error: anyhow::Error) -> anyhow::Error {
    match Error::is(&error, Errno::EOPNOTSUPP) {
        true => error.context(
            "its driver cannot move an RDMA device to a pod: use a newer one, or \"rdma\": \"off\"",
        ),
        false => error,
    }
}

/// The names that devices of a pod have there.
pub fn names_in_pod(moving: &[rdma::Device], netns: &Netns) -> Result<Vec<String>> {
    if moving.is_empty() {
        return Ok(Vec::new());
    }
    let Some(mut pod) = netns.run(rdma::open)? else {
        return Ok(Vec::new());
    };
    Ok(of_pod(moving, &mut pod)?
        .into_iter()
        .map(|device| device.name)
        .collect())
}

/// The devices in the pod, by index, because the pod may have renamed them. Each is one request:
/// the kernel's list leaves a device out when another one moves away meanwhile.
fn of_pod(moving: &[rdma::Device], pod: &mut Socket) -> Result<Vec<rdma::Device>> {
    let mut there = Vec::new();
    for device in moving {
        there.extend(rdma::by_index(pod, device.index)?);
    }
    Ok(there)
}
