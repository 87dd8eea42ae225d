//! `rdmaQoS`: the lossless queue of a fabric is chosen by the DSCP of a packet. Connections by the RDMA CM get theirs from
//! the default ToS of the RDMA device, in configfs; the driver of MLNX_OFED can give one traffic class to all connections
//! of a port. The kernel forgets the default ToS when the device moves to another namespace (cma_remove_one), so it is set
//! there; the traffic class is the driver's, and stays.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::data::{Class, Qos, Rdma, function_in_pod};
use super::name::is_listed;

use crate::attach::context::Cx;
use crate::fail;
use crate::netconf::{NetConf, RdmaQos};
use crate::node::Node;
use crate::sysfs::{Function, Mounted};
use rail_netlink::all_of;

impl Qos {
    /// Takes over from an earlier attachment what it could not restore.
    pub fn inherit(&mut self, previous: &Qos) {
        for (now, previous) in [(&mut self.tos, &previous.tos), (&mut self.tc, &previous.tc)] {
            if let Some(previous) = previous {
                now.get_or_insert_default().before.clone_from(&previous.before);
            }
        }
        self.groups.clone_from(&previous.groups);
    }
}

/// What is missing on this node fails the ADD, or is in the log.
fn or_warn(wanted: RdmaQos, key: &str, why: &str) -> Result<()> {
    if wanted.required {
        fail!(UnsupportedField, "rdmaQoS.{key}: {why}");
    }
    log::warn!("rdmaQoS.{key} is not set: {why}");
    Ok(())
}

/// What is set of the RDMA devices `names` of `function`. Nothing changes.
pub fn plan(
    conf: &NetConf,
    what: &str,
    function: Option<&Function>,
    names: &[String],
    node: &Node,
) -> Result<Option<Qos>> {
    let Some(wanted) = conf.rdma_qos else { return Ok(None) };
    let (Some(function), [name]) = (function.filter(|function| function.has_roce()), names) else {
        fail!(
            UnsupportedField,
            "rdmaQoS: {what} has {} RDMA devices here, and the key is for exactly one, with RoCE: remove it",
            names.len()
        );
    };
    let mut qos = Qos::default();
    if wanted.tos.is_some() {
        match Cm::open(node) {
            Ok(cm) => {
                qos.tos = Some(Class { wanted: wanted.tos, before: Vec::new() });
                let later = [Some(name), conf.rdma_name.as_ref()].into_iter().flatten();
                qos.groups = later.filter(|name| cm.has_group(name)).cloned().collect();
            }
            Err(why) => or_warn(wanted, "tos", &why)?,
        }
    }
    if wanted.tc.is_some() {
        let files = function.traffic_classes(name)?;
        if files.is_empty() {
            or_warn(wanted, "tc", "the driver has no tc/1/traffic_class: only MLNX_OFED's driver has it")?;
        } else {
            let before = files.iter().map(|(port, file)| Ok((*port, traffic_class(file)?)));
            qos.tc = Some(Class { wanted: wanted.tc, before: before.collect::<Result<_>>()? });
        }
    }
    Ok((qos != Qos::default()).then_some(qos))
}

/// Notes the default ToS as it is. To read it, a group is made in configfs: so this comes after the record is on file.
pub fn note(step: &mut Rdma, conf: &NetConf, cx: &Cx<'_>) -> Result<()> {
    // Before the device is looked for: a pod can choose a name that no folder can list.
    if wanted_of(step, |qos| &qos.tos).is_none() {
        return Ok(());
    }
    let Some(name) = only_device(cx.function.as_ref())? else { return Ok(()) };
    let cm = match Cm::open(cx.node) {
        Ok(cm) => cm,
        Err(why) => fail!(TryAgain, "rdmaQoS.tos: {why}"),
    };
    let Some(qos) = &mut step.qos else { return Ok(()) };
    let Some(tos) = qos.tos.as_mut().filter(|tos| tos.before.is_empty()) else { return Ok(()) };
    match cm.read(&name) {
        Ok(before) => tos.before = before,
        Err(error) => {
            qos.tos = None;
            let why = format!("the RDMA CM does not serve {name}: {error}");
            or_warn(conf.rdma_qos.unwrap_or_default(), "tos", &why)?;
        }
    }
    Ok(())
}

/// Sets the traffic class, while the device is on the host.
pub fn set_tc(step: &Rdma, cx: &Cx<'_>) -> Result<()> {
    let Some(wanted) = wanted_of(step, |qos| &qos.tc) else { return Ok(()) };
    let (Some(function), Some(name)) = (&cx.function, only_device(cx.function.as_ref())?) else {
        return gone(cx);
    };
    let mut files = function.traffic_classes(&name)?.into_iter();
    files.try_for_each(|(_, file)| write(&file, wanted.into()))
}

/// Sets the default ToS of the device where it is by now.
pub fn set_tos(step: &Rdma, cx: &Cx<'_>) -> Result<()> {
    let Some(wanted) = wanted_of(step, |qos| &qos.tos) else { return Ok(()) };
    let found = function_in_pod(cx)?;
    let Some(name) = only_device(found.as_ref().map(|(function, _)| function))? else { return gone(cx) };
    let cm = Cm::open(cx.node).map_err(anyhow::Error::msg)?;
    let set = cm.in_group(&name, &mut |ports| {
        ports_in(ports)?.into_iter().try_for_each(|port| put(&tos_file(ports, port), wanted.into()))
    });
    set.with_context(|| format!("rdmaQoS.tos: cannot give {name} the ToS {wanted}"))
}

/// Gives the device on the host the values that it had, and removes the groups that a killed call left.
pub fn restore(step: &Rdma, cx: &Cx<'_>) -> Result<()> {
    let Some(qos) = &step.qos else { return Ok(()) };
    let function = &cx.function;
    // None where it is gone, or in another namespace: then nothing of it is here.
    let name = only_device(function.as_ref())?;
    let mut done = Vec::new();
    if let (Some(function), Some(name), Some(tc)) = (function, &name, &qos.tc) {
        let files = function.traffic_classes(name).unwrap_or_else(|error| {
            done.push(Err(error));
            Vec::new()
        });
        for (port, file) in files {
            if let Some((_, before)) = tc.before.iter().find(|(number, _)| *number == port) {
                let is_it = traffic_class(&file).is_ok_and(|now| now == *before);
                done.push(if is_it { Ok(()) } else { write(&file, *before) });
            }
        }
    }
    let Some(tos) = &qos.tos else { return all_of(done) };
    let cm = match Cm::find(cx.node) {
        Ok(Some(cm)) => cm,
        // With its module, what it was told is gone.
        Ok(None) => return all_of(done),
        Err(why) => {
            // Where nothing was noted, nothing was set.
            let is_set = !tos.before.is_empty();
            done.push(if is_set { Err(anyhow::Error::msg(why)) } else { Ok(()) });
            return all_of(done);
        }
    };
    if let Some(name) = name.as_ref().filter(|_| !tos.before.is_empty()) {
        let restored = cm.in_group(name, &mut |ports| {
            for (port, before) in &tos.before {
                let file = tos_file(ports, *port);
                if tos_in(&file)? != *before {
                    put(&file, *before)?;
                }
            }
            Ok(())
        });
        done.push(restored.with_context(|| format!("cannot restore the default ToS of {name}")));
    }
    let renamed = step.renamed.iter().flat_map(|renamed| [Some(&renamed.before), renamed.wanted.as_ref()]);
    for name in name.iter().chain(renamed.flatten()) {
        if !qos.groups.contains(name) {
            cm.remove_group(name);
        }
    }
    all_of(done)
}

/// What CHECK finds about both.
pub fn differences(step: &Rdma, cx: &Cx<'_>) -> Result<Vec<String>> {
    let mut found = Vec::new();
    if step.qos.is_none() {
        return Ok(found);
    }
    let Some((function, _mounted)) = function_in_pod(cx)? else { return Ok(found) };
    // That the device is missing is told elsewhere.
    let Some(name) = only_device(Some(&function))? else { return Ok(found) };
    if let Some(wanted) = wanted_of(step, |qos| &qos.tc) {
        for (port, file) in function.traffic_classes(&name)? {
            let now = traffic_class(&file)?;
            if now != i16::from(wanted) {
                found.push(format!("port {port} of {name} has the traffic class {now} instead of {wanted}"));
            }
        }
    }
    if let Some(wanted) = wanted_of(step, |qos| &qos.tos) {
        let cm = Cm::open(cx.node).map_err(anyhow::Error::msg)?;
        let now = cm.read(&name).with_context(|| format!("cannot read the default ToS of {name}"))?;
        let other = now.into_iter().filter(|(_, tos)| *tos != i16::from(wanted));
        found.extend(other.map(|(port, tos)| {
            format!("port {port} of {name} has the default ToS {tos} instead of {wanted}")
        }));
    }
    Ok(found)
}

fn wanted_of(step: &Rdma, which: impl Fn(&Qos) -> &Option<Class>) -> Option<u8> {
    which(step.qos.as_ref()?).as_ref()?.wanted
}

/// The name becomes part of a path that root writes to, and a pod can choose it.
fn only_device(function: Option<&Function>) -> Result<Option<String>> {
    let Some(function) = function else { return Ok(None) };
    let mut names = function.list_rdma_devices()?.into_iter();
    Ok(names.next().filter(|name| names.next().is_none() && is_listed(name)))
}

fn gone(cx: &Cx<'_>) -> Result<()> {
    let id = &cx.owner.device.id;
    fail!(TryAgain, "rdmaQoS: the RDMA device of {id} is gone, or has a name that is not one")
}

fn write(file: &Path, value: i16) -> Result<()> {
    put(file, value).with_context(|| format!("cannot write {value} to {}", file.display()))
}

/// In one system call, so that a call that is killed has written all or nothing.
fn put(file: &Path, value: i16) -> io::Result<()> {
    File::options().write(true).open(file)?.write_all(format!("{value}\n").as_bytes())
}

/// The first line is `Global tclass=96`. Without it there is none, which is -1: other lines are rules for single peers.
fn traffic_class(file: &Path) -> Result<i16> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let first = text.lines().next().unwrap_or_default();
    Ok(first.strip_prefix("Global tclass=").unwrap_or(first).trim().parse().unwrap_or(-1))
}

fn tos_in(file: &Path) -> io::Result<i16> {
    fs::read_to_string(file)?
        .lines()
        .next()
        .unwrap_or_default()
        .parse::<u8>()
        .map(i16::from)
        .map_err(io::Error::other)
}

fn tos_file(ports: &Path, port: u32) -> PathBuf {
    ports.join(port.to_string()).join("default_roce_tos")
}

fn ports_in(ports: &Path) -> io::Result<Vec<u32>> {
    let names = fs::read_dir(ports)?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<io::Result<Vec<_>>>()?;
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    // A group of this kernel has at least one.
    if numbers.is_empty() { Err(ErrorKind::NotFound.into()) } else { Ok(numbers) }
}

/// The RDMA CM in configfs. A directory that is made there, with the name of an RDMA device, has the settings of that
/// device (make_cma_dev). It holds no reference to the device.
struct Cm {
    directory: PathBuf,
    /// Must live as long as the path.
    _mounted: Option<Mounted>,
}

impl Cm {
    /// Where configfs is mounted, or else in a mount at no path. An error is the reason for people.
    fn open(node: &Node) -> Result<Cm, String> {
        Cm::find(node)?.ok_or_else(|| {
            "configfs has no rdma_cm: run `modprobe rdma_cm` (CONFIG_INFINIBAND_ADDR_TRANS_CONFIGFS)"
                .to_owned()
        })
    }

    /// The same; `None` where configfs has no rdma_cm.
    fn find(node: &Node) -> Result<Option<Cm>, String> {
        let is_there = |directory: &Path| match directory.metadata() {
            Ok(found) => Ok(found.is_dir()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(format!("cannot inspect {}: {error}", directory.display())),
        };
        let directory = node.sysfs_root.join("kernel/config/rdma_cm");
        if is_there(&directory)? {
            return Ok(Some(Cm { directory, _mounted: None }));
        }
        let mounted = Mounted::configfs().map_err(|error| {
            format!("configfs is not mounted on /sys/kernel/config, and cannot be mounted: {error}")
        })?;
        let directory = mounted.path().join("rdma_cm");
        Ok(is_there(&directory)?.then_some(Cm { directory, _mounted: Some(mounted) }))
    }

    fn has_group(&self, name: &str) -> bool {
        is_listed(name) && self.directory.join(name).is_dir()
    }

    fn remove_group(&self, name: &str) {
        if is_listed(name) {
            // As a rule it is not there.
            fs::remove_dir(self.directory.join(name)).ok();
        }
    }

    /// The default ToS of each port.
    fn read(&self, name: &str) -> io::Result<Vec<(u32, i16)>> {
        let mut found = Vec::new();
        self.in_group(name, &mut |ports| {
            let read = ports_in(ports)?.into_iter().map(|port| Ok((port, tos_in(&tos_file(ports, port))?)));
            found = read.collect::<io::Result<_>>()?;
            Ok(())
        })?;
        Ok(found)
    }

    /// Does `work` in the directory `ports` of the group, which is made and removed where it is missing.
    fn in_group(&self, name: &str, work: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
        /// Another call, a CHECK for example, may remove the group that this one found.
        const MAX_TRIES: u32 = 16;
        if !is_listed(name) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let group = self.directory.join(name);
        let mut done = Ok(());
        for _ in 0..MAX_TRIES {
            let is_ours = match fs::create_dir(&group) {
                Ok(()) => true,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
                Err(error) => return Err(error),
            };
            done = work(&group.join("ports"));
            if is_ours {
                self.remove_group(name);
            }
            match &done {
                Err(error) if error.kind() == ErrorKind::NotFound => (),
                _ => break,
            }
        }
        done
    }
}
