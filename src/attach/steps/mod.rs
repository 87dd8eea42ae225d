//! The changes that ADD makes, a file each, in the order in which ADD makes them. Each has four
//! acts: plan, which looks and refuses and changes nothing; apply; undo, which looks at the present
//! state first, so that it can be repeated after an interruption; and check.

pub mod driver;
pub mod gateway;
pub mod gids;
pub mod guid;
pub mod host_addresses;
pub mod lease;
pub mod links;
pub mod moved;
pub mod netdev;
pub mod pkey;
pub mod rail;
pub mod rdma;
pub mod reset;
pub mod vf;

use std::path::PathBuf;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::context::{Bound, Cx};
use super::ipam::PATIENCE;
use crate::cni::AddResult;
use crate::device::info;
use crate::node::Node;
use gateway::Gateways;
use gids::Gids;
use host_addresses::HostAddresses;
use lease::Lease;
use netdev::Netdev;
use rail::Rail;
use rail_netlink::Socket;
use rail_netlink::vf::VfState;
use rdma::Rdma;
use vf::Vf;

/// A change that ADD makes, with what there was before.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// An address is taken from the IPAM.
    Lease(Lease),
    /// The addresses that the host has on the device leave it.
    HostAddresses(HostAddresses),
    /// The MAC that the PF reports of a VF follows what the VF gives itself: it is restored after
    /// the netdev.
    VfMac(Vf),
    /// Name, MTU, MAC, altnames, sysctls and settings of the netdev are the pod's to change.
    Netdev(Netdev),
    /// The PF sets its VF.
    Vf(Vf),
    /// RDMA devices get a name and a quality of service, and move to the pod.
    Rdma(Rdma),
    /// The device is reset when it returns to the host.
    Reset,
    /// The pod may stack links on the device.
    Links,
    /// The device may be left with another driver.
    Driver(Bound),
    /// The netdev moves to the pod.
    Move,
    /// Sysctls, addresses, routes and rules are set in the pod.
    Rail(Rail),
    /// The gateways are asked.
    Gateways(Gateways),
    /// The GIDs of the addresses are waited for.
    Gids(Gids),
    /// The P_Key is waited for.
    Pkey(u16),
    /// The device-info file is written.
    DeviceInfo(PathBuf),
}

/// The order in which ADD makes the changes. They are undone in the other order.
const ORDER: [&str; 15] = [
    "lease",
    "host-addresses",
    "vf-mac",
    "netdev",
    "vf",
    "rdma",
    "reset",
    "links",
    "driver",
    "move",
    "rail",
    "gateways",
    "gids",
    "pkey",
    "device-info",
];

/// Where a change is undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the pod.
    Pod,
    /// On the host, on the device: the next attachment of the device takes over what could not be
    /// undone.
    Device,
    /// Apart from both.
    Apart,
    /// Nothing is to be undone.
    Nowhere,
}

impl Change {
    /// Its name in messages.
    pub fn describe(&self) -> &'static str {
        let [description, _] = self.names();
        description
    }

    fn names(&self) -> [&'static str; 2] {
        match self {
            Change::Lease(_) => ["the DEL of its IPAM", "lease"],
            Change::HostAddresses(_) => ["the host's addresses on its device", "host-addresses"],
            Change::VfMac(_) => ["the MAC of its VF", "vf-mac"],
            Change::Netdev(_) => ["the settings of its netdev", "netdev"],
            Change::Vf(_) => ["the settings of its VF", "vf"],
            Change::Rdma(_) => ["its RDMA device", "rdma"],
            Change::Reset => ["the reset of its device", "reset"],
            Change::Links => ["its links on the device", "links"],
            Change::Driver(_) => ["the driver of its device", "driver"],
            Change::Move => ["the return of its device", "move"],
            Change::Rail(_) => ["its rules in the pod", "rail"],
            Change::Gateways(_) => ["its gateways", "gateways"],
            Change::Gids(_) => ["its GIDs", "gids"],
            Change::Pkey(_) => ["its P_Key", "pkey"],
            Change::DeviceInfo(_) => ["its device-info file", "device-info"],
        }
    }

    /// Its name in files and for programs, as serde has it.
    pub fn name(&self) -> &'static str {
        let [_, name] = self.names();
        name
    }

    /// Its place among the steps of an ADD.
    pub fn rank(&self) -> usize {
        ORDER
            .iter()
            .position(|name| *name == self.name())
            .unwrap_or(ORDER.len())
    }

    /// Where it is undone.
    pub fn place(&self) -> Place {
        match self {
            Change::Move | Change::Rail(_) => Place::Pod,
            Change::HostAddresses(_)
            | Change::VfMac(_)
            | Change::Netdev(_)
            | Change::Vf(_)
            | Change::Rdma(_)
            | Change::Reset
            | Change::Links
            | Change::Driver(_) => Place::Device,
            Change::Lease(_) | Change::DeviceInfo(_) => Place::Apart,
            Change::Gateways(_) | Change::Gids(_) | Change::Pkey(_) => Place::Nowhere,
        }
    }

    /// Undoes it. A lease is undone by itself, because that can take long.
    pub fn undo(&self, cx: &mut Cx<'_>) -> Result<()> {
        match self {
            Change::Lease(lease) => lease.undo(&cx.owner, cx.node, PATIENCE),
            Change::HostAddresses(step) => step.undo(cx),
            Change::VfMac(step) | Change::Vf(step) => step.undo(cx),
            Change::Netdev(step) => step.undo(cx),
            Change::Rdma(step) => step.undo(cx),
            Change::Reset => reset::undo(cx),
            Change::Links => links::undo(cx),
            Change::Driver(bound) => driver::undo(bound, cx),
            Change::Move => moved::undo(cx),
            Change::Rail(step) => step.undo(cx),
            Change::Gateways(_) | Change::Gids(_) | Change::Pkey(_) => Ok(()),
            Change::DeviceInfo(path) => {
                info::remove(path, &cx.owner.device, &cx.owner.attachment())
            }
        }
    }

    /// What is not as ADD made it.
    pub fn check(&self, previous: &AddResult, cx: &mut Cx<'_>) -> Result<Vec<String>> {
        match self {
            Change::Vf(step) => step.check(cx),
            Change::Rdma(step) => step.check(cx),
            Change::Move if cx.link_in_pod().is_none() => Ok(vec![format!(
                "the device {} is not in the pod",
                cx.owner.device.id
            )]),
            Change::Rail(step) => step.check(previous, cx),
            Change::Gateways(step) => Ok(step.check(cx)),
            Change::Gids(step) => step.check(cx),
            Change::Pkey(pkey) => Ok(pkey::difference(*pkey, cx)?.into_iter().collect()),
            Change::Lease(_)
            | Change::HostAddresses(_)
            | Change::VfMac(_)
            | Change::Netdev(_)
            | Change::Reset
            | Change::Links
            | Change::Driver(_)
            | Change::Move
            | Change::DeviceInfo(_) => Ok(Vec::new()),
        }
    }

    /// What of it keeps the next tenant apart from the last, and is still as the last one left it:
    /// until that is undone, the device is not handed out. `None` where nothing is. `next` is what
    /// the next network sets of its VF.
    pub fn isolation_left(&self, next: &VfState, node: &Node, host: &mut Socket) -> Option<String> {
        match self {
            Change::Vf(step) | Change::VfMac(step) => {
                let left = step.isolation_left(next, node, host);
                (!left.is_empty()).then(|| left.join(", "))
            }
            Change::Links | Change::Driver(_) => Some(self.describe().to_owned()),
            _ => None,
        }
    }
}
