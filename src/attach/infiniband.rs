//! The GUID of an InfiniBand VF. The PF's driver keeps it, and the VF's driver reads it once, when it is bound. So a GUID
//! that a network requests needs the VF's driver to be [bound again](driver), and so does its restoration.

use anyhow::Result;

use super::config::{IB_APP, NetConf, Rdma};
use super::device::Device;
use super::record::{Bind, Record, Records, What};
use super::{driver, restore};
use crate::cni::Network;
use crate::fail;
use crate::netlink::Socket;
use crate::netlink::link::{self, Link, format_mac};
use crate::node::Node;
use crate::sysfs::Function;

/// What a port reports to which nobody gave a GUID; the second is what the PF's driver takes for it.
pub const NO_GUIDS: [u64; 2] = [0, u64::MAX];

/// Fails until ib-kubernetes has chosen the GUID and told the subnet manager.
pub fn refuse_unconfigured(conf: &NetConf, network: &Network) -> Result<()> {
    if !conf.ib_kubernetes {
        return Ok(());
    }
    if network.get(&["args", "cni", IB_APP]).and_then(|value| value.as_str()) != Some("configured") {
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

/// Decides whether the driver must be bound again, and refuses what is not possible. `guid` is requested; `left` is an
/// earlier attachment of the device whose GUID could not be taken away.
pub fn prepare(
    conf: &NetConf,
    device: &Device,
    guid: Option<u64>,
    left: Option<&Record>,
) -> Result<Option<Bind>> {
    // A program in user space takes the GUID when it starts.
    let (Some(function), Some(link)) = (device.function(), &device.original.link) else { return Ok(None) };
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
    let owing = left.filter(|left| left.owes(What::Vf));
    let mut bind = match owing.and_then(|left| left.bind.clone()) {
        Some(bind) => bind,
        None => driver::bound_to(function),
    };
    let was_left = !bind.guids.is_empty();
    let is_due = is_due(&now, guid, &bind);
    bind.guids.extend(guid.filter(|_| is_due || was_left));
    if is_due {
        refuse(device, function)?;
    }
    Ok((is_due || was_left).then_some(bind))
}

/// Refuses a device whose driver cannot be bound again, or not without others.
fn refuse(device: &Device, function: &Function) -> Result<()> {
    let what = device.describe();
    if !function.is_vf() {
        fail!(UnsupportedField, "infinibandGUID: {what} is no VF, and a PF keeps its GUID");
    }
    driver::refuse("infinibandGUID", device, function)?;
    if function.list_rdma_devices()?.is_empty() {
        fail!(
            TryAgain,
            "infinibandGUID: the RDMA device of {what} is not on the host, and would be taken from where it is: \
             `rail-cni doctor` says where"
        );
    }
    Ok(())
}

/// The GUIDs that the function's RDMA devices have, and that of its netdev. The former cannot be changed by a pod.
fn guids(function: &Function, link: &Link) -> Vec<u64> {
    let mut guids = function.node_guids();
    guids.extend(link::guid(&link.mac));
    guids
}

/// Does the function have another GUID than the one that is wanted, or, where none is, that of an earlier pod?
fn is_due(now: &[u64], wanted: Option<u64>, bind: &Bind) -> bool {
    now.iter().any(|guid| wanted.map_or(bind.guids.contains(guid), |wanted| wanted != *guid))
}

/// Binds the driver again where the VF has not taken its GUID from the PF yet.
pub fn take(record: &Record, records: &Records, node: &Node, host: &mut Socket) -> Result<()> {
    let wanted = record.vf.as_ref().and_then(|vf| vf.wanted.port_guid);
    match &record.bind {
        Some(bind) => exchange(record, bind, wanted, records, node, host).map(drop),
        None => Ok(()),
    }
}

/// Takes the pod's GUID away from the VF, once the PF has the former one. Returns the netdev if it was made anew.
pub fn give_back(record: &Record, records: &Records, node: &Node, host: &mut Socket) -> Result<Option<Link>> {
    let Some(bind) = &record.bind else { return Ok(None) };
    let link = exchange(record, bind, None, records, node, host)?;
    // Also after a call that was ended in between.
    driver::restore_rdma_names(record, node);
    Ok(link)
}

/// Unbinds and binds the driver if the VF has another GUID than it should.
fn exchange(
    record: &Record,
    bind: &Bind,
    wanted: Option<u64>,
    records: &Records,
    node: &Node,
    host: &mut Socket,
) -> Result<Option<Link>> {
    let id = &record.device.id;
    let Some(function) = record.device.function(node)? else { return Ok(None) };
    let mut look = || -> Result<(Option<Link>, Vec<u64>)> {
        let link = restore::find_on_host(record, node, host)?;
        let now = link.as_ref().map(|link| guids(&function, link)).unwrap_or_default();
        Ok((link, now))
    };
    // A netdev that is not on the host is in a pod, and the driver would take it from there.
    let (Some(_), now) = look()? else { return Ok(None) };
    if !is_due(&now, wanted, bind) {
        return Ok(None);
    }
    driver::bind_again(record, bind, &function, |_| Ok(()), records, node, host)?;
    let Some(link) = restore::find_on_host(record, node, host)? else {
        fail!(TryAgain, "{id} lost its netdev right after its driver was bound again");
    };
    let now = guids(&function, &link);
    if now.is_empty() || is_due(&now, wanted, bind) {
        let now: Vec<_> = now.iter().map(|guid| format_mac(&guid.to_be_bytes())).collect();
        let wanted =
            wanted.map_or_else(|| "that of the host".to_owned(), |guid| format_mac(&guid.to_be_bytes()));
        fail!(
            UnsupportedField,
            "infinibandGUID: {id} has the GUID {} after its driver was bound again, and not {wanted}",
            now.join(" and ")
        );
    }
    Ok(Some(link))
}
