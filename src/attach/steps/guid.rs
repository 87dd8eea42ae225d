//! The GUID of an InfiniBand VF. The PF's driver keeps it, and the VF's driver reads it once, when
//! it is bound. So a GUID that a network requests needs the VF's driver to be [bound
//! again](bind), and so does its restoration.

use anyhow::Result;

use super::bind;
use crate::attach::context::{Bound, Cx};
use crate::cni::Network;
use crate::device::Device;
use crate::device::gid::NO_GUIDS;
use crate::fail;
use crate::netconf::{IB_APP, NetConf, Rdma};
use crate::sysfs::Function;
use rail_netlink::link::{self, Link, format_mac};

/// Fails until ib-kubernetes has chosen the GUID and told the subnet manager.
pub fn refuse_unconfigured(conf: &NetConf, network: &Network) -> Result<()> {
    if !conf.ib_kubernetes {
        return Ok(());
    }
    if network
        .get(&["args", "cni", IB_APP])
        .and_then(|value| value.as_str())
        != Some("configured")
    {
        fail!(
            TryAgain,
            "ibKubernetesEnabled: ib-kubernetes has not configured this pod yet ({IB_APP} in cni-args): is it running?"
        );
    }
    if conf.vf.port_guid.is_none() {
        fail!(
            InvalidConfig,
            "ibKubernetesEnabled: ib-kubernetes gave no GUID: add \"infinibandGUID\": true to the network's capabilities"
        );
    }
    Ok(())
}

/// Decides whether the driver must be bound again for the GUID that the network wants, and refuses
/// what is not possible.
pub fn plan(conf: &NetConf, device: &Device, bound: &mut Bound) -> Result<()> {
    let guid = conf.vf.port_guid;
    // A program in user space takes the GUID when it starts.
    let (Some(function), Some(link)) = (device.function(), &device.original.link) else {
        return Ok(());
    };
    let now = guids(function, link);
    let is_without = || now.iter().any(|guid| NO_GUIDS.contains(guid));
    if guid.is_none() && function.has_infiniband() && is_without() {
        let problem = format!(
            "{} has no InfiniBand GUID: request one (infinibandGUID), or set one on the host (docs/infiniband.md)",
            device.describe()
        );
        if conf.rdma == Rdma::Required {
            fail!(UnsupportedField, "rdma: required, and {problem}");
        }
        log::warn!("{problem}");
    }
    if let Some(guid) = guid {
        if is_due(&now, Some(guid), bound) {
            refuse(device, function)?;
            bound.guids.push(guid);
            bound.again = true;
        }
    }
    Ok(())
}

/// Refuses a device whose driver cannot be bound again, or not without others.
fn refuse(device: &Device, function: &Function) -> Result<()> {
    let what = device.describe();
    if !function.is_vf() {
        fail!(
            UnsupportedField,
            "infinibandGUID: {what} is not a VF, and a PF keeps its GUID"
        );
    }
    bind::refuse("infinibandGUID", device, function)?;
    if function.list_rdma_devices()?.is_empty() {
        fail!(
            TryAgain,
            "infinibandGUID: the RDMA device of {what} is in another namespace, and setting a GUID would remove \
             it there: `railctl doctor` says which"
        );
    }
    Ok(())
}

/// The GUIDs that the function's RDMA devices have, and that of its netdev. The former cannot be
/// changed by a pod.
fn guids(function: &Function, link: &Link) -> Vec<u64> {
    let mut guids = function.node_guids();
    guids.extend(link::guid(&link.mac));
    guids
}

/// Does the function have another GUID than the one that is wanted, or, where none is, that of an
/// earlier pod?
fn is_due(now: &[u64], wanted: Option<u64>, bound: &Bound) -> bool {
    now.iter()
        .any(|guid| wanted.map_or(bound.guids.contains(guid), |wanted| wanted != *guid))
}

/// Binds the driver again where the VF has not taken its GUID from the PF yet.
pub fn take(wanted: Option<u64>, cx: &mut Cx<'_>) -> Result<()> {
    match cx.facts.driver.clone() {
        Some(bound) if !bound.guids.is_empty() => exchange(&bound, wanted, cx),
        _ => Ok(()),
    }
}

/// Takes the pod's GUID away from the VF, once the PF has the former one.
pub fn give_back(cx: &mut Cx<'_>) -> Result<()> {
    let Some(bound) = cx
        .facts
        .driver
        .clone()
        .filter(|bound| !bound.guids.is_empty())
    else {
        return Ok(());
    };
    exchange(&bound, None, cx)?;
    // Also after a call that was ended in between.
    bind::restore_rdma_names(&bound, cx);
    Ok(())
}

/// Unbinds and binds the driver if the VF has another GUID than it should.
fn exchange(bound: &Bound, wanted: Option<u64>, cx: &mut Cx<'_>) -> Result<()> {
    let now = |cx: &Cx<'_>| match (cx.at_home(), &cx.function) {
        (Some(link), Some(function)) => guids(function, &link),
        _ => Vec::new(),
    };
    // A netdev that is not on the host is in a pod, and the driver would take it from there.
    if cx.at_home().is_none() || !is_due(&now(cx), wanted, bound) {
        return Ok(());
    }
    bind::bind_again(bound, |_| Ok(()), cx)?;
    let now = now(cx);
    if now.is_empty() || is_due(&now, wanted, bound) {
        let now: Vec<_> = now
            .iter()
            .map(|guid| format_mac(&guid.to_be_bytes()))
            .collect();
        let wanted = wanted.map_or_else(
            || "that of the host".to_owned(),
            |guid| format_mac(&guid.to_be_bytes()),
        );
        fail!(
            UnsupportedField,
            "infinibandGUID: {} has the GUID {} instead of {wanted} after its driver was bound again",
            cx.owner.device.id,
            now.join(" and ")
        );
    }
    Ok(())
}
