//! `minPlanes`: with `swplb` each plane of a rail is a network of its own, with the number rail + 8
//! * plane. A cable that is broken stops one plane, and the pod may start on the others.

use anyhow::Result;

use super::locate;
use super::owner::Owner;
use super::records::Records;
use crate::fail;
use crate::netconf::NetConf;
use crate::netns::Netns;
use crate::node::Node;
use crate::pool::{RAILS, is_same_rail};
use crate::sysfs::{DeviceId, Function};
use rail_netlink::Socket;
use rail_netlink::link::{self, Link};

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

/// Refuses a pod while too few planes of its rail have a carrier. Returns whether the gateway can
/// be probed: not if the plane of this network is one without a carrier.
pub fn check(conf: &NetConf, node: &Node, records: &Records, host: &mut Socket) -> Result<bool> {
    let Some(min) = conf.min_planes else {
        return Ok(true);
    };
    let Some(rail) = conf.rail else {
        fail!(
            InvalidConfig,
            "minPlanes: the rail is not known: set `rail`"
        );
    };
    let mut planes: Vec<Plane> = Vec::new();
    for node_rail in &node.rails {
        if !is_same_rail(node_rail.rail, rail) {
            continue;
        }
        let carrier = has_carrier(&node_rail.pf, node, records, host)?;
        match planes.iter_mut().find(|plane| plane.rail == node_rail.rail) {
            Some(plane) => plane.carrier |= carrier,
            None => planes.push(Plane {
                rail: node_rail.rail,
                pf: node_rail.pf.clone(),
                carrier,
            }),
        }
    }
    let all = planes.len();
    let lost: Vec<&Plane> = planes.iter().filter(|plane| !plane.carrier).collect();
    if all < usize::from(min) {
        let first = rail % RAILS;
        fail!(
            InvalidConfig,
            "minPlanes: {min}, and node.json lists {all} planes of rail {first}"
        );
    }
    if lost.is_empty() {
        return Ok(true);
    }
    let up = all - lost.len();
    let lost_names: Vec<String> = lost.iter().map(|plane| plane.describe()).collect();
    let named = lost_names.join(", ");
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
    Ok(!lost.iter().any(|plane| plane.rail == rail))
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
    if let Some(name) = name {
        if let Some(link) = link::by_name(host, &name)? {
            return Ok(link.carrier);
        }
    }
    let (records, _) = records.all()?;
    let Some(record) = records.iter().find(|record| record.owner.device.is_pf(pf)) else {
        return Ok(false);
    };
    match link_in_pod(&record.owner) {
        Ok(Some(link)) => Ok(link.carrier),
        Ok(None) | Err(_) => Ok(false),
    }
}

/// The netdev in the pod that has the device.
fn link_in_pod(owner: &Owner) -> Result<Option<Link>> {
    let netns = Netns::open(&owner.netns.path)?;
    locate::in_pod(owner, &mut netns.run(Socket::open)?)
}
