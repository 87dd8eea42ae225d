//! `gatewayProbe`: does the leaf port at the other end of the cable have the address that the plan
//! gave it?

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::attach::context::Cx;
use crate::attach::step::{Asked, Made, Phase, Step, UndoneAt};
use crate::cni::AddResult;
use crate::device::Device;
use crate::neighbours;
use crate::netconf::NetConf;
use crate::netns::Pod;
use crate::node::Node;
use crate::pool::store;
use crate::{fail, failure};
use rail_netlink::link::{self, Link};
use rail_netlink::neighbour::{self, State};

/// Time for an answer of other gateways when the rail's own one is silent.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_millis(300);
/// Refuses a probe through a device without a netdev.
pub fn refuse_userspace(conf: &NetConf, device: &Device) -> Result<()> {
    if device.original.link.is_some() {
        return Ok(());
    }
    conf.or_warn(
        conf.probe,
        failure!(
            UnsupportedField,
            "gatewayProbe: {} has a userspace driver, so the kernel cannot probe its gateway: remove the key",
            device.describe()
        ),
    )
}

/// The gateways that ADD asks, and CHECK asks again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Gateways {
    /// The gateways that must answer.
    pub gateways: Vec<IpAddr>,
    /// Time for all of their answers together.
    pub timeout: Duration,
}

impl Step for Gateways {
    fn describe(&self) -> &'static str {
        "its gateways"
    }

    fn undone_at(&self) -> UndoneAt {
        UndoneAt::Nowhere
    }

    fn phase() -> Phase {
        Phase::AfterLease
    }

    fn plan(asked: &Asked<'_>, cx: &mut Cx<'_>) -> Result<Option<Gateways>> {
        let Some(wanted) = &asked.conf.probe else {
            return Ok(None);
        };
        if asked.device.original.link.is_none() {
            return Ok(None);
        }
        let of_addresses = asked.leased.ips.iter().filter_map(|ip| ip.gateway);
        let gateways = neighbours::sorted(of_addresses.chain(cx.facts.next_hops.clone()));
        if gateways.is_empty() {
            let error = failure!(
                InvalidConfig,
                "gatewayProbe: neither the IPAM plugin nor a route names a gateway"
            );
            asked.conf.or_warn(asked.conf.probe, error)?;
            return Ok(None);
        }
        for net in &cx.facts.addresses {
            let is_of_family = |gateway: &IpAddr| gateway.is_ipv4() == net.addr().is_ipv4();
            if !gateways.iter().any(is_of_family) {
                log::warn!("gatewayProbe: {net} has no gateway that could be asked");
            }
        }
        Ok(Some(Gateways {
            gateways,
            timeout: wanted.timeout,
        }))
    }

    /// Asks the gateways through the rail in the pod. An error names those that did not answer.
    fn make(&mut self, asked: &Asked<'_>, _made: &mut Made, cx: &mut Cx<'_>) -> Result<()> {
        self.ask_and_announce(cx)
            .or_else(|error| asked.conf.or_warn(asked.conf.probe, error))
    }

    fn undo(&self, _cx: &mut Cx<'_>) -> Result<()> {
        Ok(())
    }

    /// Asks the gateways again. A rail that is down asks none.
    fn check(&self, _previous: &AddResult, cx: &mut Cx<'_>) -> Result<Vec<String>> {
        if cx.link_in_pod().is_none_or(|link| !link.up) {
            return Ok(Vec::new());
        }
        let silent = self.ask(cx).err();
        Ok(silent
            .map(|error| format!("{error:#}"))
            .into_iter()
            .collect())
    }
}

impl Gateways {
    fn ask_and_announce(&self, cx: &mut Cx<'_>) -> Result<()> {
        self.ask(cx)?;
        let Some(link) = cx.link_in_pod() else {
            return Ok(());
        };
        let addresses = cx.facts.addresses.clone();
        let pod = &mut cx.pod()?.socket;
        neighbours::announce_ipv4(&link, &addresses, &self.gateways, pod);
        Ok(())
    }

    /// Asks them. An error names those that did not answer, with the leaf port of the plan, and the
    /// gateway that answers in their place.
    fn ask(&self, cx: &mut Cx<'_>) -> Result<()> {
        let Some(link) = cx.link_in_pod() else {
            return Ok(());
        };
        let (node, addresses) = (cx.node, cx.facts.addresses.clone());
        let (id, pf) = (cx.owner.device.id.clone(), cx.owner.device.pf.clone());
        let pod = cx.pod()?;
        let silent = neighbours::silent(&self.gateways, &addresses, self.timeout, &link, pod)?;
        if silent.is_empty() {
            return Ok(());
        }
        let now = link::by_index(&mut pod.socket, link.index)?
            .context("the rail vanished from the pod")?;
        let pf = pf.map_or_else(String::new, |pf| format!(" of PF {pf}"));
        let (place, timeout) = (format!("{} ({id}{pf})", now.name), self.timeout);
        let named: Vec<_> = silent
            .iter()
            .map(|gateway| (gateway, with_port(*gateway, node, &addresses)))
            .collect();
        if !now.carrier {
            fail!(
                GatewaySilent,
                "{place} has no carrier within {timeout:?}, so gateway {} cannot be asked: is the cable plugged in, and \
                 the leaf port up?",
                named
                    .iter()
                    .map(|(_, name)| name.as_str())
                    .collect::<Vec<_>>()
                    .join(" and ")
            );
        }
        let silent = named.iter().map(|(gateway, name)| {
            let how = if gateway.is_ipv4() { "ARP" } else { "ND" };
            format!("gateway {name} did not answer {how}")
        });
        let silent = silent.collect::<Vec<_>>().join(" and ");
        if let Some((pool, gateway, prefix)) =
            who_answers(pod, &link, &addresses, node, &self.gateways)
        {
            fail!(
                GatewaySilent,
                "{silent} on {place} within {timeout:?}, and {}, the gateway of the pool {pool}, answers there: this NIC's \
                 cable is in that leaf port",
                with_port(gateway, node, &[prefix])
            );
        }
        fail!(
            GatewaySilent,
            "{silent} on {place} within {timeout:?}: is the cable in the leaf port that has this address?"
        )
    }
}

/// `172.16.0.1 (leaf-su0-r0 swp2)`, where the plan names the port.
fn with_port(gateway: IpAddr, node: &Node, addresses: &[IpNet]) -> String {
    store::peer_of(node, gateway, addresses)
        .map_or_else(|| gateway.to_string(), |port| format!("{gateway} ({port})"))
}

/// Finds this node's other gateway at the end of the cable, with its pool and the node's prefix
/// there: two cables may be swapped. This only completes an error message, so failures here are
/// ignored.
fn who_answers(
    pod: &mut Pod,
    link: &Link,
    addresses: &[IpNet],
    node: &Node,
    ours: &[IpAddr],
) -> Option<(String, IpAddr, IpNet)> {
    let mut others: Vec<(String, IpAddr, IpNet)> = Vec::new();
    let all = store::allocations(node);
    for (pool, allocation) in &all {
        let Some(gateway) = allocation.gateway else {
            continue;
        };
        // A gateway that several leaves have says nothing about the cable.
        if all
            .iter()
            .filter(|(_, one)| one.gateway == Some(gateway))
            .count()
            > 1
        {
            continue;
        }
        let is_unknown = neighbour::state(&mut pod.socket, link.index, gateway)
            .is_ok_and(|state| state == State::None);
        if is_unknown && !ours.contains(&gateway) {
            others.push((pool.clone(), gateway, allocation.prefix));
        }
    }
    let asked: Vec<_> = others.iter().map(|(_, other, _)| *other).collect();
    let silent = neighbours::silent(&asked, addresses, PATIENCE_WITH_OTHERS, link, pod);
    for (_, other, _) in &others {
        let _ = neighbour::forget(&mut pod.socket, link.index, *other);
    }
    let silent = silent.ok()?;
    others
        .into_iter()
        .find(|(_, other, _)| !silent.contains(other))
}
