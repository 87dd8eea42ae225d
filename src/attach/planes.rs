//! `minPlanes`: with `swplb` each plane of a rail is a network of its own, with the number rail + 8
//! * plane. A cable that is broken stops one plane, and the pod may start on the others.

use anyhow::Result;

use super::locate;
use super::records::Records;
use crate::fail;
use crate::netconf::NetConf;
use crate::netns::Netns;
use crate::node::Node;
use crate::pool::{RAILS, is_same_rail};
use crate::sysfs::{DeviceId, Function};
use rail_netlink::Socket;
use rail_netlink::link;

/// A plane of a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plane {
    /// The number of its network.
    rail: u8,
    /// The PF in node.json.
    pf: String,
    carrier: bool,
}

impl Plane {
    fn describe(&self) -> String {
        format!(
            "plane {} (rail {}, PF {})",
            self.rail / RAILS,
            self.rail,
            self.pf
        )
    }
}

/// Refuses a pod while too few planes of its rail have a carrier. If there are enough, and that of
/// `conf` has none, its gateway is not asked.
pub fn check(conf: &mut NetConf, node: &Node, records: &Records, host: &mut Socket) -> Result<()> {
    let Some(min) = conf.min_planes else {
        return Ok(());
    };
    let Some(rail) = conf.rail else {
        fail!(
            InvalidConfig,
            "minPlanes: the rail is not known: set `rail`"
        );
    };
    let mut planes: Vec<Plane> = Vec::new();
    for one in node.rails.iter().filter(|one| is_same_rail(one.rail, rail)) {
        let carrier = has_carrier(&one.pf, node, records, host)?;
        match planes.iter_mut().find(|plane| plane.rail == one.rail) {
            Some(plane) => plane.carrier |= carrier,
            None => planes.push(Plane {
                rail: one.rail,
                pf: one.pf.clone(),
                carrier,
            }),
        }
    }
    let (all, lost): (_, Vec<_>) = (
        planes.len(),
        planes.iter().filter(|plane| !plane.carrier).collect(),
    );
    if all < usize::from(min) {
        let first = rail % RAILS;
        fail!(
            InvalidConfig,
            "minPlanes: {min}, and node.json lists {all} planes of rail {first}"
        );
    }
    if lost.is_empty() {
        return Ok(());
    }
    let (up, named) = (
        all - lost.len(),
        lost.iter()
            .map(|plane| plane.describe())
            .collect::<Vec<_>>()
            .join(", "),
    );
    if up < usize::from(min) {
        fail!(
            TryAgain,
            "{up} of {all} planes have a carrier, and minPlanes is {min}: {named} has none: check cable and leaf port"
        );
    }
    log::warn!(
        "{up} of {all} planes of rail {} have a carrier: {named} has none",
        rail % RAILS
    );
    if lost.iter().any(|plane| plane.rail == rail) {
        conf.probe = None;
    }
    Ok(())
}

/// Whether a PF has a carrier, on the host or in the pod that has it. One that is down has none.
fn has_carrier(pf: &str, node: &Node, records: &Records, host: &mut Socket) -> Result<bool> {
    let function = DeviceId::parse(pf)
        .map(|id| Function::find(&node.sysfs_root, &id))
        .transpose()?
        .flatten();
    let name = match &function {
        Some(function) => function.netdev()?,
        None => Some(pf.to_owned()),
    };
    if let Some(link) = name
        .map(|name| link::by_name(host, &name))
        .transpose()?
        .flatten()
    {
        return Ok(link.carrier);
    }
    let Some(record) = records
        .all()?
        .0
        .into_iter()
        .find(|record| record.owner.device.is_pf(pf))
    else {
        return Ok(false);
    };
    let owner = &record.owner;
    let in_pod = || {
        locate::in_pod(
            owner,
            &mut Netns::open(&owner.netns.path)?.run(Socket::open)?,
        )
    };
    Ok(in_pod().ok().flatten().is_some_and(|link| link.carrier))
}
