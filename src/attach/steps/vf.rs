//! The settings of a VF by its PF: asked for by the network, put on record before, restored
//! afterwards.

use anyhow::Result;
use nix::errno::Errno;

use serde::{Deserialize, Serialize};

use super::guid;
use crate::attach::context::Cx;
use crate::attach::step::{Asked, Made, Step, UndoneAt};
use crate::cni::AddResult;
use crate::device::Device;
use crate::device::pf::{self, VfSettings};
use crate::netconf::NetConf;
use crate::node::Node;
use crate::{fail, failure, watchdog};
use rail_netlink::all_of;
use rail_netlink::link::{self, Link, format_mac};
use rail_netlink::vf::{self, Report, VfState};
use rail_netlink::{Error, Socket};

/// The settings of a VF, without the MAC that [`super::vf_mac`] restores.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Vf(pub VfSettings);

impl Step for Vf {
    fn describe(&self) -> &'static str {
        "the settings of its VF"
    }

    fn undone_at(&self) -> UndoneAt {
        UndoneAt::Device
    }

    fn plan(asked: &Asked<'_>, cx: &mut Cx<'_>) -> Result<Option<Vf>> {
        let settings = settings(asked, cx)?;
        Ok(settings.map(|mut settings| {
            if settings.wanted.mac.is_none() {
                settings.before.mac = None;
            }
            Vf(settings)
        }))
    }

    fn make(&mut self, asked: &Asked<'_>, made: &mut Made, cx: &mut Cx<'_>) -> Result<()> {
        watchdog::step(|| format!("setting what the PF sets for {}", cx.owner.device.id));
        self.apply(cx)?;
        made.is_anew |= self.is_something();
        if cx.owner.device.link.is_none() {
            // A program in user space has the device, and will own the address.
            let mac = pf::prescribed_mac(asked.device, &mut cx.host)?;
            cx.owner.inside.mac = mac.unwrap_or_default();
        }
        Ok(())
    }

    fn undo(&self, cx: &mut Cx<'_>) -> Result<()> {
        restore(&self.0, cx)
    }

    fn check(&self, _previous: &AddResult, cx: &mut Cx<'_>) -> Result<Vec<String>> {
        self.differences(cx)
    }

    fn isolation_left(&self, next: &VfState, node: &Node, host: &mut Socket) -> Option<String> {
        isolation_left(&self.0, next, node, host)
    }
}

/// The settings of the VF, and the PF's report before; the PF is asked once in an ADD.
pub fn settings(asked: &Asked<'_>, cx: &mut Cx<'_>) -> Result<Option<VfSettings>> {
    if let Some(settings) = asked.vf.get() {
        return Ok(settings.clone());
    }
    let settings = read_settings(asked.conf, asked.device, asked.vf_before.as_ref(), cx)?;
    Ok(asked.vf.get_or_init(|| settings).clone())
}

/// Reads the settings that `device` needs and the PF's present report; refuses them where no PF can
/// set them. `previous` has the original settings that an earlier attachment could not restore.
fn read_settings(
    conf: &NetConf,
    device: &Device,
    previous: Option<&VfSettings>,
    cx: &mut Cx<'_>,
) -> Result<Option<VfSettings>> {
    let what = device.describe();
    let Some((number, pf)) = device.vf() else {
        if let Some(key) = conf.vf_keys.first() {
            fail!(
                UnsupportedField,
                "{key} is set through a PF, and {what} is not a VF"
            );
        }
        return Ok(None);
    };
    let mut wanted = wanted(conf);
    // A MAC that the netdev has already needs no request to the PF, unless it is an earlier pod's.
    let has = device
        .original
        .link
        .as_ref()
        .map(|link| link.mac.as_str())
        .filter(|_| previous.is_none());
    wanted.mac = wanted.mac.filter(|mac| has != Some(mac));
    let link = pf
        .netdev
        .as_ref()
        .map(|name| link::by_name(&mut cx.host, name))
        .transpose()?
        .flatten();
    let now = match &link {
        Some(link) => now(conf, link, &pf.address, number, cx)?,
        None => None,
    };
    let (Some(link), Some(mut now)) = (link, now) else {
        // A MAC can be set on the VF itself, too.
        if let Some(key) = conf.vf_keys.first() {
            fail!(
                UnsupportedField,
                "{key}: the PF {} of {what} does not report its VF {number}",
                pf.address
            );
        }
        return Ok(None);
    };
    // There it is the PF's own address.
    if link.is_infiniband() {
        now.mac = None;
    }
    if let (Some((min, max)), Some(name)) = (wanted.rate, &pf.netdev) {
        refuse_rate_above(pf::speed(cx.node, name), min.max(max))?;
    }
    let first = previous.filter(|first| first.pf == pf.address);
    let mut before = first.map_or_else(|| now.clone(), |first| first.before.over(&now));
    wanted.rate = wanted
        .rate
        .map(|rate| with_kept_rate(rate, before.rate))
        .transpose()?;
    // A device reports a GUID of zero before it has one, and does not accept it (ib-sriov-cni).
    if wanted.port_guid.is_some() {
        // The VF itself tells what the PF cannot report.
        let own = device
            .function()
            .and_then(|function| function.node_guids().first().copied());
        for guid in [&mut before.node_guid, &mut before.port_guid] {
            *guid = guid
                .or(own)
                .map(|guid| if guid == 0 { u64::MAX } else { guid });
        }
    }
    Ok(Some(VfSettings {
        pf: pf.address.clone(),
        pf_permanent_mac: link.permanent_mac,
        number,
        wanted,
        before,
    }))
}

/// The settings that a network asks for its VF.
pub fn wanted(conf: &NetConf) -> VfState {
    VfState {
        mac: conf.mac.as_deref().map(format_mac),
        ..conf.vf.clone()
    }
}

/// Reads the PF's report of the VF before anything is set.
fn now(
    conf: &NetConf,
    link: &Link,
    pf: &str,
    number: u32,
    cx: &mut Cx<'_>,
) -> Result<Option<VfState>> {
    // Without anything to set, the report may be missing.
    let report = match conf.vf_keys.first() {
        Some(key) => pf::report(link, pf, number, cx.node, &mut cx.host)
            .map_err(|error| error.context(*key))?,
        None => vf::state(&mut cx.host, link.index, number)?,
    };
    Ok(match report {
        Report::NoSuchVf | Report::Silent => None,
        Report::Known(state) => Some(state),
        // Some IB drivers cannot answer for many VFs (sriov-network-operator#1021): then only what
        // the network sets is restored.
        Report::TooLong => {
            log::warn!(
                "the PF {pf} cannot report so many VFs: settings made by others are not restored"
            );
            Some(VfState::default())
        }
    })
}

fn refuse_rate_above(speed: Option<u32>, rate: u32) -> Result<()> {
    match speed {
        Some(speed) if rate > speed => {
            fail!(
                InvalidConfig,
                "max_tx_rate: {rate} Mbit/s is more than the {speed} of the PF's link"
            )
        }
        _ => Ok(()),
    }
}

/// Both rates are set at once. The one that the network does not give (0) remains as it was: a
/// network that may set the minimum must not lift the operator's maximum.
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
    let (min, max) = (
        if min == 0 { old_min } else { min },
        if max == 0 { old_max } else { max },
    );
    if max != 0 && min > max {
        fail!(
            InvalidConfig,
            "the VF would have a min_tx_rate of {min} and a max_tx_rate of {max} Mbit/s: it has {old_min} and {old_max} \
             now, and the network sets only one of them"
        );
    }
    Ok((min, max))
}

/// The settings of `was` that differ from `now`, of those that are `meant`.
fn differing(
    was: &VfState,
    now: &VfState,
    mut meant: impl FnMut(&str, &VfState) -> bool,
) -> Vec<(&'static str, VfState)> {
    let mut differs =
        |(key, one): &(&'static str, VfState)| now.masked_by(one) != *one && meant(key, one);
    was.settings()
        .into_iter()
        .filter(|one| differs(one))
        .collect()
}

/// Settings that keep tenants apart: whose network a VF is in, whom it can claim to be, what it may
/// listen to.
fn isolates(setting: &VfState) -> bool {
    let VfState {
        mac,
        vlan,
        spoofchk,
        trust,
        node_guid,
        port_guid,
        ..
    } = setting;
    mac.is_some()
        || vlan.is_some()
        || spoofchk.is_some()
        || trust.is_some()
        || node_guid.is_some()
        || port_guid.is_some()
}

impl Vf {
    /// Whether anything is to be set.
    fn is_something(&self) -> bool {
        self.0.wanted != VfState::default()
    }

    /// Sets what the network wants, then lets the VF take its GUID.
    fn apply(&self, cx: &mut Cx<'_>) -> Result<()> {
        if !self.is_something() {
            return Ok(());
        }
        let VfSettings {
            pf, number, wanted, ..
        } = &self.0;
        {
            let _lock = cx.locks.pf(pf)?;
            let Some(link) = pf::link(pf, *number, cx.node, &mut cx.host)? else {
                fail!(Internal, "the PF {pf} vanished")
            };
            vf::set(&mut cx.host, link.index, &link.name, *number, wanted).map_err(|error| {
                // Drivers support different settings, and different values of them.
                let unknown = [
                    Errno::EOPNOTSUPP,
                    Errno::EPROTONOSUPPORT,
                    Errno::EINVAL,
                    Errno::ERANGE,
                ];
                let is_unknown = unknown.into_iter().any(|errno| Error::is(&error, errno));
                if is_unknown {
                    failure!(UnsupportedField, "{error:#}")
                } else {
                    error
                }
            })?;
        }
        guid::take(wanted.port_guid, cx)
    }

    /// Compares the settings with ADD's, for CHECK.
    fn differences(&self, cx: &mut Cx<'_>) -> Result<Vec<String>> {
        let settings = &self.0;
        let host = &mut cx.host;
        let Some(pf) = pf::link(&settings.pf, settings.number, cx.node, host)? else {
            return Ok(vec![format!("the PF {} is gone", settings.pf)]);
        };
        let now = match vf::state(host, pf.index, settings.number)? {
            Report::Known(now) => now,
            Report::NoSuchVf => {
                return Ok(vec![format!(
                    "the PF {} has no VF {}",
                    pf.name, settings.number
                )]);
            }
            Report::Silent | Report::TooLong => {
                log::warn!(
                    "the PF {} does not report its VF {}: its settings are not compared",
                    pf.name,
                    settings.number
                );
                return Ok(Vec::new());
            }
        };
        let wanted = differing(&settings.wanted, &now, |_, _| true);
        Ok(wanted
            .iter()
            .map(|(key, one)| format!("{key} of the VF is {}, not {one}", now.masked_by(one)))
            .collect())
    }
}

/// Restores what the PF reported before ADD, whether the network or an operator changed it since. A
/// PF or VF that is gone has none, and another card has its own. Settings that have not changed are
/// not touched, because some drivers reset the VF at every change.
pub fn restore(settings: &VfSettings, cx: &mut Cx<'_>) -> Result<()> {
    set_back(settings, cx)?;
    guid::give_back(cx)
}

fn set_back(settings: &VfSettings, cx: &mut Cx<'_>) -> Result<()> {
    let Some(pf) = pf::link(&settings.pf, settings.number, cx.node, &mut cx.host)? else {
        return Ok(());
    };
    if settings.is_of_another_card(&pf) {
        return Ok(());
    }
    let changed = match pf::report(&pf, &settings.pf, settings.number, cx.node, &mut cx.host)? {
        Report::NoSuchVf | Report::Silent => return Ok(()),
        Report::Known(now) => differing(&settings.before, &now, |_, _| true),
        // The present values are not known: restore what the network set.
        Report::TooLong => settings.before.masked_by(set_by_pod(settings)).settings(),
    };
    if changed.is_empty() {
        return Ok(());
    }
    let done = {
        let _lock = cx.locks.pf(&settings.pf)?;
        let host = &mut cx.host;
        all_of(
            changed
                .iter()
                .map(|(_, one)| vf::set(host, pf.index, &pf.name, settings.number, one)),
        )
    };
    // Its driver may have made the netdev anew.
    if cx.at_home().is_some() {
        cx.await_home()?;
    }
    done
}

/// The settings that the pod's network made. A rebuilt record does not tell them: there, every
/// setting that was known before may be one.
fn set_by_pod(settings: &VfSettings) -> &VfState {
    if settings.wanted == VfState::default() {
        &settings.before
    } else {
        &settings.wanted
    }
}

/// The settings that keep tenants apart and that the VF still has from a pod that is gone, with the
/// command that restores each. Settings that the next network makes itself (`next`) are left out.
pub fn isolation_left(
    settings: &VfSettings,
    next: &VfState,
    node: &Node,
    host: &mut Socket,
) -> Option<String> {
    let pf = pf::link(&settings.pf, settings.number, node, host);
    let now = pf.and_then(|pf| {
        pf.filter(|pf| !settings.is_of_another_card(pf))
            .map(|pf| pf::report_now(&pf, &settings.pf, settings.number, node, host))
            .transpose()
    });
    let mut left = match now {
        Ok(None | Some(Report::NoSuchVf)) => return None,
        Ok(Some(Report::Known(now))) => differing(&settings.before, &now, |_, one| isolates(one)),
        // It is not known: it may have what the network set.
        Ok(Some(Report::Silent | Report::TooLong)) | Err(_) => {
            let mut set = settings.before.masked_by(set_by_pod(settings)).settings();
            set.retain(|(_, one)| isolates(one));
            set
        }
    };
    left.retain(|(_, one)| one.masked_by(next) == VfState::default());
    let pf = pf::link(&settings.pf, settings.number, node, host)
        .ok()
        .flatten()
        .map_or_else(|| settings.pf.clone(), |pf| pf.name);
    let number = settings.number;
    let left: Vec<_> = left
        .iter()
        .map(|(key, was)| {
            format!(
                "the {key} of VF {number}: `ip link set {pf} vf {number} {}`",
                was.as_arguments()
            )
        })
        .collect();
    (!left.is_empty()).then(|| left.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_the_network_does_not_give_remains() {
        let kept = |wanted, before| with_kept_rate(wanted, before).ok();
        assert_eq!(
            kept((10, 0), Some((0, 300))),
            Some((10, 300)),
            "the operator's maximum is not lifted"
        );
        assert_eq!(kept((0, 200), Some((50, 300))), Some((50, 200)));
        assert_eq!(kept((10, 20), Some((50, 300))), Some((10, 20)));
        assert_eq!(kept((10, 0), Some((0, 0))), Some((10, 0)));
        assert_eq!(kept((0, 200), None), Some((0, 200)));
        assert_eq!(
            kept((400, 0), Some((0, 300))),
            None,
            "more than the maximum that remains"
        );
        assert_eq!(
            kept((0, 40), Some((50, 300))),
            None,
            "less than the minimum that remains"
        );
        assert_eq!(
            kept((10, 0), None),
            None,
            "a maximum that nobody knows is not lifted"
        );
    }
}
