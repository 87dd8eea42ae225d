//! `rdmaQoS`: the lossless queue of a fabric is chosen by the DSCP of a packet. Connections by the
//! RDMA CM get theirs from the default ToS of the RDMA device, in configfs; the driver of MLNX_OFED
//! can give one traffic class to all connections of a port. The kernel forgets the default ToS when
//! the device moves to another namespace (cma_remove_one), so it is set there; the traffic class is
//! the driver's, and stays.

use anyhow::{Context as _, Result};

use super::data::{Class, Qos, Rdma, function_in_pod};
use crate::attach::context::Cx;
use crate::fail;
use crate::netconf::{NetConf, RdmaQos};
use crate::node::Node;
use crate::rdma_cm::{Cm, is_listed, set_traffic_class, traffic_class};
use crate::sysfs::Function;
use rail_netlink::all_of;

impl Qos {
    /// Takes over from an earlier attachment what it could not restore.
    pub fn inherit(&mut self, previous: &Qos) {
        for (now, previous) in [(&mut self.tos, &previous.tos), (&mut self.tc, &previous.tc)] {
            if let Some(previous) = previous {
                now.get_or_insert_default()
                    .before
                    .clone_from(&previous.before);
            }
        }
        self.groups.clone_from(&previous.groups);
    }
}

/// Reports a setting that this node lacks: fails the ADD, or logs it.
fn or_warn(wanted: RdmaQos, key: &str, why: &str) -> Result<()> {
    if wanted.required {
        fail!(UnsupportedField, "rdmaQoS.{key}: {why}");
    }
    log::warn!("rdmaQoS.{key} is not set: {why}");
    Ok(())
}

/// Plans the settings of the RDMA devices `names` of `function`. Nothing changes.
pub fn plan(
    conf: &NetConf,
    what: &str,
    function: Option<&Function>,
    names: &[String],
    node: &Node,
) -> Result<Option<Qos>> {
    let Some(wanted) = conf.rdma_qos else {
        return Ok(None);
    };
    let function = function.filter(|function| function.roce_devices() > 0);
    let (Some(function), [name]) = (function, names) else {
        fail!(
            UnsupportedField,
            "rdmaQoS: {what} has {} RDMA devices here, and the key is for exactly one, with RoCE: remove it",
            names.len()
        );
    };
    let mut qos = Qos::default();
    if wanted.tos.is_some() {
        match Cm::open(&node.sysfs_root) {
            Ok(cm) => {
                qos.tos = Some(Class {
                    wanted: wanted.tos,
                    before: Vec::new(),
                });
                // The device has one of these names when the ToS is set.
                for name in [Some(name), conf.rdma_name.as_ref()].into_iter().flatten() {
                    if cm.has_group(name) {
                        qos.groups.push(name.clone());
                    }
                }
            }
            Err(why) => or_warn(wanted, "tos", &why)?,
        }
    }
    if wanted.tc.is_some() {
        let files = function.traffic_classes(name)?;
        if files.is_empty() {
            or_warn(
                wanted,
                "tc",
                "the driver has no tc/1/traffic_class: only MLNX_OFED's driver has it",
            )?;
        } else {
            let mut before = Vec::new();
            for (port, file) in &files {
                before.push((*port, traffic_class(file)?));
            }
            qos.tc = Some(Class {
                wanted: wanted.tc,
                before,
            });
        }
    }
    Ok((qos != Qos::default()).then_some(qos))
}

/// Notes the default ToS as it is. To read it, a group is made in configfs: so this comes after the
/// record is on file.
pub fn note(step: &mut Rdma, conf: &NetConf, cx: &Cx<'_>) -> Result<()> {
    // Before the device is looked for: a pod can choose a name that no folder can list.
    if wanted_of(step, |qos| &qos.tos).is_none() {
        return Ok(());
    }
    let Some(name) = only_device(cx.function.as_ref())? else {
        return Ok(());
    };
    let cm = match Cm::open(&cx.node.sysfs_root) {
        Ok(cm) => cm,
        Err(why) => fail!(TryAgain, "rdmaQoS.tos: {why}"),
    };
    let Some(qos) = &mut step.qos else {
        return Ok(());
    };
    let Some(tos) = qos.tos.as_mut().filter(|tos| tos.before.is_empty()) else {
        return Ok(());
    };
    match cm.tos(&name) {
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
    let Some(wanted) = wanted_of(step, |qos| &qos.tc) else {
        return Ok(());
    };
    let (Some(function), Some(name)) = (&cx.function, only_device(cx.function.as_ref())?) else {
        return gone(cx);
    };
    let mut files = function.traffic_classes(&name)?.into_iter();
    files.try_for_each(|(_, file)| set_traffic_class(&file, wanted.into()))
}

/// Sets the default ToS of the device where it is by now.
pub fn set_tos(step: &Rdma, cx: &Cx<'_>) -> Result<()> {
    let Some(wanted) = wanted_of(step, |qos| &qos.tos) else {
        return Ok(());
    };
    let found = function_in_pod(cx)?;
    let Some(name) = only_device(found.as_ref().map(|(function, _)| function))? else {
        return gone(cx);
    };
    let cm = Cm::open(&cx.node.sysfs_root).map_err(anyhow::Error::msg)?;
    cm.set_tos(&name, wanted)
        .with_context(|| format!("rdmaQoS.tos: cannot give {name} the ToS {wanted}"))
}

/// Gives the device on the host the values that it had, and removes the groups that a killed call
/// left.
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
                done.push(if is_it {
                    Ok(())
                } else {
                    set_traffic_class(&file, *before)
                });
            }
        }
    }
    let Some(tos) = &qos.tos else {
        return all_of(done);
    };
    let cm = match Cm::find(&cx.node.sysfs_root) {
        Ok(Some(cm)) => cm,
        // With its module, its settings are gone.
        Ok(None) => return all_of(done),
        Err(why) => {
            // Without a former value, nothing was set.
            let is_set = !tos.before.is_empty();
            done.push(if is_set {
                Err(anyhow::Error::msg(why))
            } else {
                Ok(())
            });
            return all_of(done);
        }
    };
    if let Some(name) = name.as_ref().filter(|_| !tos.before.is_empty()) {
        let restored = cm.restore_tos(name, &tos.before);
        done.push(restored.with_context(|| format!("cannot restore the default ToS of {name}")));
    }
    let renamed = step
        .renamed
        .iter()
        .flat_map(|renamed| [Some(&renamed.before), renamed.wanted.as_ref()]);
    for name in name.iter().chain(renamed.flatten()) {
        if !qos.groups.contains(name) {
            cm.remove_group(name);
        }
    }
    all_of(done)
}

/// Compares both settings, for CHECK.
pub fn differences(step: &Rdma, cx: &Cx<'_>) -> Result<Vec<String>> {
    let mut found = Vec::new();
    if step.qos.is_none() {
        return Ok(found);
    }
    let Some((function, _mounted)) = function_in_pod(cx)? else {
        return Ok(found);
    };
    // `Rdma::check` reports that the device is missing.
    let Some(name) = only_device(Some(&function))? else {
        return Ok(found);
    };
    if let Some(wanted) = wanted_of(step, |qos| &qos.tc) {
        for (port, file) in function.traffic_classes(&name)? {
            let now = traffic_class(&file)?;
            if now != i16::from(wanted) {
                found.push(format!(
                    "port {port} of {name} has the traffic class {now} instead of {wanted}"
                ));
            }
        }
    }
    if let Some(wanted) = wanted_of(step, |qos| &qos.tos) {
        let cm = Cm::open(&cx.node.sysfs_root).map_err(anyhow::Error::msg)?;
        let now = cm
            .tos(&name)
            .with_context(|| format!("cannot read the default ToS of {name}"))?;
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
    let Some(function) = function else {
        return Ok(None);
    };
    let mut names = function.list_rdma_devices()?.into_iter();
    Ok(names
        .next()
        .filter(|name| names.next().is_none() && is_listed(name)))
}

fn gone(cx: &Cx<'_>) -> Result<()> {
    let id = &cx.owner.device.id;
    fail!(
        TryAgain,
        "rdmaQoS: the RDMA device of {id} is gone, or has a name that is not one"
    )
}
