//! What a PF sets for its VF: asked for by the network, put on record before, restored afterwards.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::errno::Errno;

use super::config::NetConf;
use super::device::Device;
use super::record::{Record, Records, VfRecord, What};
use crate::error::all_of;
use crate::netlink::link::{self, Link, format_mac};
use crate::netlink::vf::{self, Report, VfState};
use crate::netlink::{Error, Socket};
use crate::node::Node;
use crate::sysfs::{DeviceId, Function};
use crate::{fail, failure, files};

/// How long a VF may be in a reset, in which its PF does not report it.
const IN_RESET: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// What ADD will set, decided before anything changes.
#[derive(Debug)]
pub struct Changes {
    /// What is recorded.
    pub record: VfRecord,
    /// The settings that an earlier attachment left, with their original values, and that attachment.
    stale: Vec<(&'static str, VfState)>,
    left_by: Option<String>,
}

/// What must be set for `device`, and what its PF reports now; refused where no PF can set it. `left` is an earlier
/// attachment of the device whose settings could not be restored: its record has the original ones.
pub fn prepare(
    conf: &NetConf,
    device: &Device,
    left: Option<&Record>,
    node: &Node,
    host: &mut Socket,
) -> Result<Option<Changes>> {
    let mut wanted = conf.vf.clone();
    let what = device.describe();
    let Some((number, pf)) = device.vf() else {
        if let Some(key) = conf.vf_keys.first() {
            fail!(UnsupportedField, "{key} is set through a PF, and {what} is no VF");
        }
        return Ok(None);
    };
    // One that the netdev has already needs no word of the PF, unless it is an earlier pod's.
    let has = device.original.link.as_ref().map(|link| link.mac.as_str()).filter(|_| left.is_none());
    wanted.mac = conf.mac.as_deref().map(format_mac).filter(|mac| has != Some(mac));
    let link = pf.netdev.as_ref().map(|name| link::by_name(host, name)).transpose()?.flatten();
    let owing = left.filter(|left| left.owes(What::Vf) && left.vf.is_some());
    // If nothing is to be set, it need not be known.
    let is_patient = !conf.vf_keys.is_empty() || owing.is_some();
    let ask = |link: &Link| match is_patient {
        true => report(link, &pf.address, number, node, host).map_err(|error| match conf.vf_keys.first() {
            Some(key) => error.context(*key),
            None => error,
        }),
        false => vf::state(host, link.index, number),
    };
    let now = match link.as_ref().map(ask).transpose()? {
        None | Some(Report::NoSuchVf | Report::Silent) => None,
        Some(Report::Known(state)) => Some(state),
        // Some IB drivers cannot answer for many VFs (sriov-network-operator#1021): then only what the network sets is
        // restored.
        Some(Report::TooLong) => {
            log::warn!(
                "the PF {} cannot report so many VFs: settings made by others are not restored",
                pf.address
            );
            Some(VfState::default())
        }
    };
    let (Some(link), Some(mut now)) = (link, now) else {
        // A MAC can be set on the VF itself, too.
        if let Some(key) = conf.vf_keys.first() {
            fail!(UnsupportedField, "{key}: the PF {} of {what} does not report its VF {number}", pf.address);
        }
        if let Some(left) = owing {
            fail!(
                TryAgain,
                "{what} still has settings of {}, and its PF {} cannot be asked: is its netdev on the host?",
                left.holder(),
                pf.address
            );
        }
        return Ok(None);
    };
    // There it is the PF's own address.
    now.mac = now.mac.filter(|_| !link.is_infiniband());
    if let Some((min, max)) = wanted.rate {
        if let Some(speed) = pf.netdev.as_ref().and_then(|name| speed(node, name)) {
            if min.max(max) > speed {
                fail!(
                    InvalidConfig,
                    "max_tx_rate: {} Mbit/s is more than the {speed} of the PF's link",
                    min.max(max)
                );
            }
        }
    }
    let first = owing.and_then(|left| left.vf.as_ref()).filter(|first| first.pf == pf.address);
    let mut before = first.map_or_else(|| now.clone(), |first| first.before.over(&now));
    wanted.rate = wanted.rate.map(|rate| with_kept_rate(rate, before.rate)).transpose()?;
    let stale = differing(&before, &now, |key, one| {
        // What the network itself wants is set in any case.
        one.masked_by(&wanted) == VfState::default() && (key != MAC || first.is_some())
    });
    // A device reports a GUID of zero before it has one, and does not accept it (ib-sriov-cni).
    if wanted.port_guid.is_some() {
        // The VF itself tells what the PF cannot report.
        let told = device.function().and_then(|function| function.node_guids().first().copied());
        for guid in [&mut before.node_guid, &mut before.port_guid] {
            *guid = guid.or(told).map(|guid| if guid == 0 { u64::MAX } else { guid });
        }
    }
    let record = VfRecord { pf: pf.address.clone(), number, wanted, before };
    Ok(Some(Changes { record, stale, left_by: left.map(Record::holder) }))
}

/// Both rates are set at once. The one that the network does not give (0) remains as it was: a network that may set
/// the minimum must not lift the operator's maximum.
fn with_kept_rate((min, max): (u32, u32), before: Option<(u32, u32)>) -> Result<(u32, u32)> {
    let (old_min, old_max) = match before {
        Some(before) => before,
        None if max == 0 => {
            fail!(
                UnsupportedField,
                "min_tx_rate: the PF does not report the VF's maximum: set max_tx_rate too"
            )
        }
        None => (0, 0),
    };
    let (min, max) = (if min == 0 { old_min } else { min }, if max == 0 { old_max } else { max });
    if max != 0 && min > max {
        fail!(
            InvalidConfig,
            "the VF would have a min_tx_rate of {min} and a max_tx_rate of {max} Mbit/s: it has {old_min} and {old_max} \
             now, and the network sets only one of them"
        );
    }
    Ok((min, max))
}

impl Changes {
    /// Whether there is anything to set.
    pub fn is_something(&self) -> bool {
        !self.stale.is_empty() || self.record.wanted != VfState::default()
    }
}

/// The settings of `was` that differ from `now`, of those that are `meant`.
fn differing(
    was: &VfState,
    now: &VfState,
    mut meant: impl FnMut(&str, &VfState) -> bool,
) -> Vec<(&'static str, VfState)> {
    let mut differs = |(key, one): &(&'static str, VfState)| now.masked_by(one) != *one && meant(key, one);
    was.settings().into_iter().filter(|one| differs(one)).collect()
}

/// What the PF reports of its VF, once the VF is no longer being reset. Fails if the PF says nothing of a VF that it has.
fn report(pf: &Link, address: &str, number: u32, node: &Node, host: &mut Socket) -> Result<Report> {
    let begun = Instant::now();
    loop {
        let report = report_now(pf, address, number, node, host)?;
        if report != Report::Silent {
            return Ok(report);
        }
        if begun.elapsed() > IN_RESET {
            let name = &pf.name;
            fail!(
                TryAgain,
                "the PF {name} ({address}) does not report its VF {number} now: is {name} up? Where the NIC is a DPU's, it \
                 never does"
            );
        }
        sleep(PAUSE);
    }
}

/// The same, without patience: [`Report::Silent`] means that there is such a VF.
fn report_now(pf: &Link, address: &str, number: u32, node: &Node, host: &mut Socket) -> Result<Report> {
    let virtfn = node.sysfs_root.join(format!("bus/pci/devices/{address}/virtfn{number}"));
    Ok(match vf::state(host, pf.index, number)? {
        Report::Silent if !virtfn.exists() => Report::NoSuchVf,
        report => report,
    })
}

/// As [`VfState::settings`] calls it.
const MAC: &str = "mac";

/// Settings that keep tenants apart: whose network a VF is in, whom it can claim to be, what it may listen to.
fn isolates(setting: &VfState) -> bool {
    let VfState { mac, vlan, spoofchk, trust, node_guid, port_guid, .. } = setting;
    mac.is_some()
        || vlan.is_some()
        || spoofchk.is_some()
        || trust.is_some()
        || node_guid.is_some()
        || port_guid.is_some()
}

/// Whether the VF still has such a setting of a pod that is gone. ADD refuses the VF while it cannot be restored.
pub fn owes_isolation(record: &Record, node: &Node, host: &mut Socket) -> bool {
    // After a reboot nothing is owed.
    let is_of_this_boot = files::boot_id().is_ok_and(|id| id == record.boot_id);
    let may_owe = is_of_this_boot && record.owes(What::Vf);
    let Some(vf) = record.vf.as_ref().filter(|_| may_owe) else { return false };
    let pf = pf_link(vf, node, host);
    let now = pf.and_then(|pf| pf.map(|pf| report_now(&pf, &vf.pf, vf.number, node, host)).transpose());
    match now {
        Ok(None | Some(Report::NoSuchVf)) => false,
        Ok(Some(Report::Known(now))) => !differing(&vf.before, &now, |_, one| isolates(one)).is_empty(),
        // It is not known: it may have what the network set.
        Ok(Some(Report::Silent | Report::TooLong)) | Err(_) => {
            set_by_pod(vf).settings().iter().any(|(_, one)| isolates(one))
        }
    }
}

/// Which settings the pod's network made. Of a rebuilt record that is not known: all that were known before may be.
fn set_by_pod(vf: &VfRecord) -> &VfState {
    if vf.wanted == VfState::default() { &vf.before } else { &vf.wanted }
}

/// The MAC that the PF prescribes to a VF whose driver is in user space: only the PF knows it.
pub fn prescribed_mac(device: &Device, host: &mut Socket) -> Result<Option<String>> {
    let Some((number, pf)) = device.vf() else { return Ok(None) };
    let link = pf.netdev.as_ref().map(|name| link::by_name(host, name)).transpose()?.flatten();
    let state = match link.map(|link| vf::state(host, link.index, number)).transpose()? {
        Some(Report::Known(state)) => state,
        _ => return Ok(None),
    };
    Ok(state.mac.filter(|mac| mac.bytes().any(|byte| !b"0:".contains(&byte))))
}

/// The speed of the PF's link in Mbit/s, while it is up.
fn speed(node: &Node, pf: &str) -> Option<u32> {
    let text = fs::read_to_string(node.sysfs_root.join("class/net").join(pf).join("speed")).ok()?;
    text.trim().parse().ok().filter(|speed| *speed > 0)
}

/// Restores what an earlier attachment left, then sets what the network wants. The former must not fail for settings
/// that keep tenants apart: the next one would be in the VLAN of the last, or could forge its MAC.
pub fn apply(changes: &Changes, records: &Records, node: &Node, host: &mut Socket) -> Result<()> {
    let Changes { record: vf, stale, left_by } = changes;
    if !changes.is_something() {
        return Ok(());
    }
    let _lock = records.lock_pf(&vf.pf)?;
    let Some(pf) = pf_link(vf, node, host)? else { fail!(Internal, "the PF {} vanished", vf.pf) };
    for (key, was) in stale {
        let Err(error) = vf::set(host, pf.index, &pf.name, vf.number, was) else { continue };
        if isolates(was) {
            let (number, left_by) = (vf.number, left_by.as_deref().unwrap_or("an earlier pod"));
            fail!(
                TryAgain,
                "the {key} of VF {number} of the PF {} ({}) is still that of {left_by}, and cannot be restored: {error:#}; \
                 `ip link set {} vf {number} {}`, then this works",
                pf.name,
                vf.pf,
                pf.name,
                was.as_arguments()
            );
        }
        log::warn!("{error:#}: it stays as an earlier pod had it");
    }
    vf::set(host, pf.index, &pf.name, vf.number, &vf.wanted).map_err(|error| {
        // Drivers support different settings, and different values of them.
        let unknown = [Errno::EOPNOTSUPP, Errno::EPROTONOSUPPORT, Errno::EINVAL, Errno::ERANGE];
        let is_unknown = unknown.into_iter().any(|errno| Error::is(&error, errno));
        if is_unknown { failure!(UnsupportedField, "{error:#}") } else { error }
    })
}

/// Restores what the PF reported before ADD, whether the network or an operator changed it since. Returns whether the
/// MAC is left to [`restore_mac`].
pub fn restore(record: &Record, records: &Records, node: &Node, host: &mut Socket) -> Result<bool> {
    let Some(vf) = &record.vf else { return Ok(false) };
    let mut is_mac_left = false;
    put_back(vf, records, node, host, |key, _| {
        let is_left = key == MAC && vf.wanted.mac.is_none();
        is_mac_left |= is_left;
        !is_left
    })?;
    Ok(is_mac_left)
}

/// Restores the MAC of a VF whose network set none. Some drivers report the MAC that the VF gave itself: it differs only
/// once the netdev is restored. igb forbids the VF to change any MAC that is set here.
pub fn restore_mac(record: &Record, records: &Records, node: &Node, host: &mut Socket) -> Result<()> {
    record.vf.as_ref().map_or(Ok(()), |vf| put_back(vf, records, node, host, |key, _| key == MAC))
}

/// Whether the network set the MAC through the PF.
pub fn has_mac(record: &Record) -> bool {
    record.vf.as_ref().is_some_and(|vf| vf.wanted.mac.is_some())
}

/// Restores the settings that are `meant`. A PF or VF that is gone has none. Settings that have not changed are not
/// touched, because some drivers reset the VF at every change.
fn put_back(
    vf: &VfRecord,
    records: &Records,
    node: &Node,
    host: &mut Socket,
    mut meant: impl FnMut(&str, &VfState) -> bool,
) -> Result<()> {
    let Some(pf) = pf_link(vf, node, host)? else { return Ok(()) };
    let changed = match report(&pf, &vf.pf, vf.number, node, host)? {
        Report::NoSuchVf | Report::Silent => return Ok(()),
        Report::Known(now) => differing(&vf.before, &now, meant),
        // The present values are not known: restore what the network set.
        Report::TooLong => {
            let set = vf.before.masked_by(set_by_pod(vf)).settings();
            set.into_iter().filter(|(key, one)| meant(key, one)).collect()
        }
    };
    if changed.is_empty() {
        return Ok(());
    }
    let _lock = records.lock_pf(&vf.pf)?;
    all_of(changed.iter().map(|(_, one)| vf::set(host, pf.index, &pf.name, vf.number, one)))
}

/// What CHECK finds: settings that differ from what ADD made.
pub fn differences(record: &Record, node: &Node, host: &mut Socket) -> Result<Vec<String>> {
    let Some(vf) = &record.vf else { return Ok(Vec::new()) };
    let Some(pf) = pf_link(vf, node, host)? else { return Ok(vec![format!("the PF {} is gone", vf.pf)]) };
    let now = match vf::state(host, pf.index, vf.number)? {
        Report::Known(now) => now,
        Report::NoSuchVf => return Ok(vec![format!("the PF {} has no VF {}", pf.name, vf.number)]),
        Report::Silent | Report::TooLong => {
            log::warn!(
                "the PF {} does not report its VF {}: its settings are not compared",
                pf.name,
                vf.number
            );
            return Ok(Vec::new());
        }
    };
    let wanted = differing(&vf.wanted, &now, |_, _| true);
    Ok(wanted
        .iter()
        .map(|(key, one)| format!("{key} of the VF is {}, not {one}", now.masked_by(one)))
        .collect())
}

/// The PF's netdev, under whatever name it has by now; `None` when the PF is gone, and its VFs with it.
fn pf_link(vf: &VfRecord, node: &Node, host: &mut Socket) -> Result<Option<Link>> {
    let Some(id) = DeviceId::parse(&vf.pf) else { return Ok(None) };
    let Some(function) = Function::find(&node.sysfs_root, &id)? else { return Ok(None) };
    let link = function.netdev()?.map(|name| link::by_name(host, &name)).transpose()?.flatten();
    if link.is_none() {
        fail!(
            Internal,
            "the PF {} has no netdev on the host, so nothing can be set for its VF {}",
            vf.pf,
            vf.number
        );
    }
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_the_network_does_not_give_remains() {
        let kept = |wanted, before| with_kept_rate(wanted, before).ok();
        assert_eq!(kept((10, 0), Some((0, 300))), Some((10, 300)), "the operator's maximum is not lifted");
        assert_eq!(kept((0, 200), Some((50, 300))), Some((50, 200)));
        assert_eq!(kept((10, 20), Some((50, 300))), Some((10, 20)));
        assert_eq!(kept((10, 0), Some((0, 0))), Some((10, 0)));
        assert_eq!(kept((0, 200), None), Some((0, 200)));
        assert_eq!(kept((400, 0), Some((0, 300))), None, "more than the maximum that remains");
        assert_eq!(kept((0, 40), Some((50, 300))), None, "less than the minimum that remains");
        assert_eq!(kept((10, 0), None), None, "a maximum that nobody knows is not lifted");
    }
}
