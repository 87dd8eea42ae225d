//! What a PF sets for its VF: asked for by the network, put on record before, restored afterwards.

use std::fs;

use anyhow::Result;
use nix::errno::Errno;

use super::config::NetConf;
use super::device::Device;
use super::record::{Record, Records, VfRecord};
use crate::cni::all_of;
use crate::netlink::link::{self, Link, format_mac, parse_mac};
use crate::netlink::vf::{self, VfState};
use crate::netlink::{Error, Socket};
use crate::node::Node;
use crate::sysfs::{DeviceId, Function};
use crate::{fail, failure};

/// What is to be set for `device`; refused where no PF can set it. The PF is not asked when nothing is wanted,
/// for the answer has all its VFs and takes milliseconds.
pub fn plan(conf: &NetConf, device: &Device, node: &Node, host: &mut Socket) -> Result<Option<VfRecord>> {
    let mut wanted = conf.vf.clone();
    let what = device.describe();
    let Some((number, pf)) = device.vf() else {
        if let Some(key) = conf.vf_keys.first() {
            fail!(UnsupportedField, "{key} is set through a PF, and {what} is no VF");
        }
        return Ok(None);
    };
    wanted.mac = conf.mac.as_deref().map(format_mac);
    if wanted == VfState::default() {
        return Ok(None);
    }
    let link = pf.netdev.as_ref().map(|name| link::by_name(host, name)).transpose()?.flatten();
    let before = link.as_ref().map(|link| vf::state(host, link.index, number)).transpose();
    let before = match before {
        // Some IB drivers cannot answer for many VFs (sriov-network-operator#1021): then nothing is restored
        // but what can be set without knowing.
        Err(error) if Error::is(&error, Errno::EMSGSIZE) => {
            log::warn!("{error:#}: the settings of VF {number} will not be restored");
            Some(VfState::default())
        }
        before => before?.flatten(),
    };
    let (Some(_), Some(before)) = (link, before) else {
        // The MAC can be set on the VF itself too.
        if let Some(key) = conf.vf_keys.first() {
            fail!(UnsupportedField, "{key}: the PF {} of {what} does not report its VF {number}", pf.address);
        }
        return Ok(None);
    };
    if let Some((min, max)) = wanted.rate
        && let Some(speed) = pf.netdev.as_ref().and_then(|name| speed(node, name))
        && min.max(max) > speed
    {
        fail!(
            InvalidConfig,
            "max_tx_rate: {} Mbit/s is more than the {speed} of the PF's link",
            min.max(max)
        );
    }
    let mut before = before.masked_by(&wanted);
    // No device takes a GUID of zero back, which is what it reports before it has one (ib-sriov-cni).
    for guid in [&mut before.node_guid, &mut before.port_guid] {
        *guid = guid.map(|guid| if guid == 0 { u64::MAX } else { guid });
    }
    Ok(Some(VfRecord { pf: pf.address.clone(), number, wanted, before }))
}

/// The MAC that the PF prescribes to a VF whose driver is in user space: nobody else can tell it.
pub fn prescribed_mac(device: &Device, host: &mut Socket) -> Result<Option<String>> {
    let Some((number, pf)) = device.vf() else { return Ok(None) };
    let link = pf.netdev.as_ref().map(|name| link::by_name(host, name)).transpose()?.flatten();
    let state = link.map(|link| vf::state(host, link.index, number)).transpose()?.flatten();
    Ok(state.and_then(|state| state.mac).filter(|mac| mac.bytes().any(|byte| !b"0:".contains(&byte))))
}

/// Mbit/s, while the link is up.
fn speed(node: &Node, pf: &str) -> Option<u32> {
    let text = fs::read_to_string(node.sysfs_root.join("class/net").join(pf).join("speed")).ok()?;
    text.trim().parse().ok().filter(|speed| *speed > 0)
}

/// Sets what is wanted.
pub fn apply(vf: &VfRecord, records: &Records, node: &Node, host: &mut Socket) -> Result<()> {
    let _lock = records.lock_pf(&vf.pf)?;
    let Some(pf) = pf_link(vf, node, host)? else { fail!(Internal, "the PF {} vanished", vf.pf) };
    vf::set(host, pf.index, &pf.name, vf.number, &vf.wanted).map_err(|error| {
        // Drivers know different settings, and within them different values.
        let unknown = [Errno::EOPNOTSUPP, Errno::EPROTONOSUPPORT, Errno::EINVAL, Errno::ERANGE];
        let is_unknown = unknown.into_iter().any(|errno| Error::is(&error, errno));
        if is_unknown { failure!(UnsupportedField, "{error:#}") } else { error }
    })
}

/// Fails when an IPoIB device still has another GUID than the one that was set: mlx5's take it when their driver
/// is bound, and a pod with the old one would have no partition.
pub fn refuse_guid_not_taken(vf: &VfRecord, link: &Link, host: &mut Socket) -> Result<()> {
    let Some(guid) = vf.wanted.port_guid else { return Ok(()) };
    let now = link::by_index(host, link.index)?.and_then(|link| parse_mac(&link.mac)).unwrap_or_default();
    // IPoIB: 4 bytes of flags and queue pair, 16 of GID, whose second half is the port's GUID.
    if now.len() == 20 && now[12..] != guid.to_be_bytes() {
        let what = &link.name;
        fail!(UnsupportedField, "infinibandGUID: {what} does not take it before its driver is bound again");
    }
    Ok(())
}

/// Sets back what was reported before. A PF or VF that is gone has nothing to restore.
pub fn restore(record: &Record, records: &Records, node: &Node, host: &mut Socket) -> Result<()> {
    let Some(vf) = &record.vf else { return Ok(()) };
    let _lock = records.lock_pf(&vf.pf)?;
    let Some(pf) = pf_link(vf, node, host)? else { return Ok(()) };
    let Some(now) = vf::state(host, pf.index, vf.number)? else { return Ok(()) };
    // What is as it was is not touched, for some drivers reset the VF at every change.
    let changed = vf.before.settings().into_iter().filter(|(_, one)| now.masked_by(one) != *one);
    all_of(changed.map(|(_, one)| vf::set(host, pf.index, &pf.name, vf.number, &one)))
}

/// What CHECK finds: settings that are not what ADD made.
pub fn differences(record: &Record, node: &Node, host: &mut Socket) -> Result<Vec<String>> {
    let Some(vf) = &record.vf else { return Ok(Vec::new()) };
    let Some(pf) = pf_link(vf, node, host)? else { return Ok(vec![format!("the PF {} is gone", vf.pf)]) };
    let Some(now) = vf::state(host, pf.index, vf.number)? else {
        return Ok(vec![format!("the PF {} has no VF {}", pf.name, vf.number)]);
    };
    let wanted = vf.wanted.settings().into_iter().filter(|(_, one)| now.masked_by(one) != *one);
    Ok(wanted.map(|(key, one)| format!("{key} of the VF is {}, not {}", now.masked_by(&one), one)).collect())
}

/// The PF's netdev, under whatever name it has by now.
fn pf_link(vf: &VfRecord, node: &Node, host: &mut Socket) -> Result<Option<Link>> {
    let Some(id) = DeviceId::parse(&vf.pf) else { return Ok(None) };
    let function = Function::find(&node.sysfs_root, &id)?;
    let name = function.map(|function| function.netdev()).transpose()?.flatten();
    Ok(name.map(|name| link::by_name(host, &name)).transpose()?.flatten())
}
