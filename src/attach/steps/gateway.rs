//! `gatewayProbe`: does the leaf port at the other end of the cable have the address that the plan gave it?
//!
//! The kernel asks by ARP or neighbour discovery, and the answer appears in its neighbour table.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddrV6, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use nix::sys::socket::{setsockopt, sockopt::BindToDevice};

use serde::{Deserialize, Serialize};

use super::rail::Rail;
use crate::attach::context::{Cx, Pod};
use crate::cni::AddResult;
use crate::device::Device;
use crate::netconf::NetConf;
use crate::node::Node;
use crate::pool::store;
use crate::{fail, failure};
use rail_netlink::Socket;
use rail_netlink::link::{self, Link};
use rail_netlink::neighbour::{self, State};

/// The pauses before a gateway is asked again: first a short one, for a carrier that is just coming, then twice as long
/// each time. The kernel by itself would wait a second.
const FIRST_ROUND: Duration = Duration::from_millis(1);
const LONGEST_ROUND: Duration = Duration::from_millis(100);
/// How long other gateways have for an answer when the rail's own one is silent.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_millis(300);
/// A VF has its carrier some milliseconds after it is up (2 to 15 with igbvf), where its PF has one.
const PATIENCE_WITH_CARRIER: Duration = Duration::from_millis(100);
/// The pauses between two looks at the neighbour table.
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Refuses a probe through a device without a netdev.
pub fn refuse_userspace(conf: &NetConf, device: &Device) -> Result<()> {
    if device.original.link.is_some() {
        return Ok(());
    }
    conf.or_warn(
        conf.probe,
        failure!(
            UnsupportedField,
            "gatewayProbe: a program in user space has {}, so the kernel cannot ask its gateway: remove the \
            key",
            device.describe()
        ),
    )
}

/// The gateways that ADD asks, and CHECK asks again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Gateways {
    /// Those that must answer.
    pub gateways: Vec<IpAddr>,
    /// How long they have for that, all together.
    pub timeout: Duration,
}

/// The gateways to ask.
pub fn plan(conf: &NetConf, rail: &Rail, leased: &AddResult) -> Result<Option<Gateways>> {
    let Some(wanted) = &conf.probe else { return Ok(None) };
    let gateways = gateways(rail, leased);
    if gateways.is_empty() {
        conf.or_warn(
            conf.probe,
            failure!(InvalidConfig, "gatewayProbe: neither the IPAM plugin nor a route names a gateway"),
        )?;
        return Ok(None);
    }
    for net in &rail.addresses {
        if !gateways.iter().any(|gateway| gateway.is_ipv4() == net.addr().is_ipv4()) {
            log::warn!("gatewayProbe: {net} has no gateway that could be asked");
        }
    }
    Ok(Some(Gateways { gateways, timeout: wanted.timeout }))
}

impl Gateways {
    /// Asks them through the rail in the pod. An error names those that did not answer.
    pub fn apply(&self, cx: &mut Cx<'_>) -> Result<()> {
        self.ask(cx)?;
        let Some(link) = cx.link_in_pod() else { return Ok(()) };
        let addresses = cx.facts.addresses.clone();
        announce_ipv4(&mut cx.pod()?.socket, &link, &addresses, &self.gateways);
        Ok(())
    }

    /// The same in CHECK. A rail that is down asks no gateway.
    pub fn check(&self, cx: &mut Cx<'_>) -> Vec<String> {
        if cx.link_in_pod().is_none_or(|link| !link.up) {
            return Vec::new();
        }
        self.ask(cx).err().map(|error| format!("{error:#}")).into_iter().collect()
    }

    /// Asks them. An error names those that did not answer, with the leaf port of the plan, and the gateway that answers in
    /// their place.
    fn ask(&self, cx: &mut Cx<'_>) -> Result<()> {
        let Some(link) = cx.link_in_pod() else { return Ok(()) };
        let (node, addresses) = (cx.node, cx.facts.addresses.clone());
        let (id, pf) = (cx.owner.device.id.clone(), cx.owner.device.pf.clone());
        let pod = cx.pod()?;
        let gateways = self.gateways.iter().map(|gateway| Gateway::new(*gateway, pod, &link, &addresses));
        let gateways = gateways.collect();
        let silent = wait(&mut pod.socket, &link, gateways, self.timeout)?;
        if silent.is_empty() {
            return Ok(());
        }
        let now = link::by_index(&mut pod.socket, link.index)?.context("the rail vanished from the pod")?;
        let pf = pf.map_or_else(String::new, |pf| format!(" of PF {pf}"));
        let (place, timeout) = (format!("{} ({id}{pf})", now.name), self.timeout);
        let named: Vec<_> =
            silent.iter().map(|gateway| (gateway, with_port(*gateway, node, &addresses))).collect();
        if !now.carrier {
            fail!(
                GatewaySilent,
                "{place} has no carrier within {timeout:?}, so gateway {} cannot be asked: is the cable plugged in, and \
                 the leaf port up?",
                named.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(" and ")
            );
        }
        let told = named.iter().map(|(gateway, name)| {
            let how = if gateway.is_ipv4() { "ARP" } else { "ND" };
            format!("gateway {name} did not answer {how}")
        });
        let told = told.collect::<Vec<_>>().join(" and ");
        if let Some((pool, gateway, prefix)) = who_answers(pod, &link, &addresses, node, &self.gateways) {
            fail!(
                GatewaySilent,
                "{told} on {place} within {timeout:?}, and {}, the gateway of the pool {pool}, answers there: this NIC's \
                 cable is in that leaf port",
                with_port(gateway, node, &[prefix])
            );
        }
        fail!(
            GatewaySilent,
            "{told} on {place} within {timeout:?}: is the cable in the leaf port that has this address?"
        )
    }
}

/// `172.16.0.1 (leaf-su0-r0 swp2)`, where the plan names the port.
fn with_port(gateway: IpAddr, node: &Node, addresses: &[IpNet]) -> String {
    store::peer_of(node, gateway, addresses)
        .map_or_else(|| gateway.to_string(), |port| format!("{gateway} ({port})"))
}

/// Which of this node's other gateways is at the end of the cable, with its pool and the node's prefix there: two cables
/// may be swapped. This only completes an error message, so failures here are ignored.
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
        let Some(gateway) = allocation.gateway else { continue };
        // A gateway that several leaves have says nothing about the cable.
        if all.iter().filter(|(_, one)| one.gateway == Some(gateway)).count() > 1 {
            continue;
        }
        let is_unknown =
            neighbour::state(&mut pod.socket, link.index, gateway).is_ok_and(|state| state == State::None);
        if is_unknown && !ours.contains(&gateway) {
            others.push((pool.clone(), gateway, allocation.prefix));
        }
    }
    let gateways = others.iter().map(|(_, other, _)| Gateway::new(*other, pod, link, addresses)).collect();
    let silent = wait(&mut pod.socket, link, gateways, PATIENCE_WITH_OTHERS);
    for (_, other, _) in &others {
        let _ = neighbour::forget(&mut pod.socket, link.index, *other);
    }
    let silent = silent.ok()?;
    others.into_iter().find(|(_, other, _)| !silent.contains(other))
}

/// The gateways of an attachment whose network has no probe: those of its routes and its allocations.
pub fn of(rail: &Rail, node: &Node, timeout: Duration) -> Gateways {
    let has = |prefix: IpNet| rail.addresses.iter().any(|net| prefix.contains(&net.addr()));
    let planned = store::allocations(node).into_iter().filter(|(_, allocation)| has(allocation.prefix));
    let of_routes = rail.routes.iter().filter_map(|route| route.gateway);
    let of_plan = planned.filter_map(|(_, allocation)| allocation.gateway);
    Gateways { gateways: sorted(of_routes.chain(of_plan)), timeout }
}

/// Asks the next hops without waiting for an answer: a leaf learns from the question which MAC has the address now.
/// `arp_notify` and `ndisc_notify` tell it when the link comes up, and where the carrier comes later, as with VFs, that
/// is lost. So a carrier that is just coming is waited for; when it comes later still, as of a leaf port that trains for
/// seconds, the kernel is left to ask until there is an answer.
pub fn announce(rail: &Rail, leased: &AddResult, cx: &mut Cx<'_>) -> Result<()> {
    let Some(link) = cx.link_in_pod() else { return Ok(()) };
    let gateways = gateways(rail, leased);
    let pod = cx.pod()?;
    let (start, mut pause) = (Instant::now(), SHORTEST_PAUSE);
    let mut has_carrier =
        || !link::by_index(&mut pod.socket, link.index).is_ok_and(|now| now.is_some_and(|now| !now.carrier));
    while !gateways.is_empty() && !has_carrier() && start.elapsed() < PATIENCE_WITH_CARRIER {
        sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    let is_late = !gateways.is_empty() && !has_carrier();
    for address in &gateways {
        let told = if is_late {
            neighbour::keep_asking(&mut pod.socket, link.index, *address)
        } else {
            Gateway::new(*address, pod, &link, &rail.addresses).tell(&mut pod.socket, &link)
        };
        told.unwrap_or_else(|error| log::warn!("{error:#}"));
    }
    announce_ipv4(&mut pod.socket, &link, &rail.addresses, &gateways);
    Ok(())
}

/// From a question for its IPv6 address, a leaf learns nothing about the IPv4 addresses of the rail. A question for such
/// an address itself tells it, as a gratuitous ARP.
fn announce_ipv4(pod: &mut Socket, link: &Link, addresses: &[IpNet], gateways: &[IpAddr]) {
    if gateways.is_empty() || gateways.iter().any(IpAddr::is_ipv4) {
        return;
    }
    for address in addresses.iter().map(IpNet::addr).filter(IpAddr::is_ipv4) {
        let told = neighbour::ask(pod, link.index, address);
        told.unwrap_or_else(|error| log::warn!("{error:#}"));
    }
}

/// The gateways of the addresses, and the next hops of the routes.
fn gateways(rail: &Rail, leased: &AddResult) -> Vec<IpAddr> {
    let of_addresses = leased.ips.iter().filter_map(|ip| ip.gateway);
    let of_routes = rail.routes.iter().filter_map(|route| route.gateway);
    sorted(of_addresses.chain(of_routes))
}

fn sorted(gateways: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let all: BTreeSet<_> = gateways.filter(|gateway| !gateway.is_unspecified()).collect();
    all.into_iter().collect()
}

/// Waits for answers; returns the gateways that did not answer within `timeout`.
fn wait(pod: &mut Socket, link: &Link, gateways: Vec<Gateway>, timeout: Duration) -> Result<Vec<IpAddr>> {
    let (mut silent, mut round) = (Vec::new(), FIRST_ROUND);
    for gateway in gateways {
        match gateway.ask_first(pod, link)? {
            First::Unknown => silent.push(gateway),
            First::Known => {
                silent.push(gateway);
                // Only after that is the entry removed, which delays what the pod sends to it.
                round = timeout / 2;
            }
            First::Permanent => (),
        }
    }
    let start = Instant::now();
    let (mut next, mut pause) = (start + round, SHORTEST_PAUSE);
    loop {
        let mut left = Vec::new();
        for gateway in silent {
            if neighbour::state(pod, link.index, gateway.address)? != State::Reachable {
                left.push(gateway);
            }
        }
        silent = left;
        if silent.is_empty() || start.elapsed() >= timeout {
            return Ok(silent.into_iter().map(|gateway| gateway.address).collect());
        }
        if Instant::now() < next {
            sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
            continue;
        }
        for gateway in &silent {
            gateway.ask(pod, link)?;
        }
        round = (round * 2).min(LONGEST_ROUND);
        (next, pause) = (Instant::now() + round, SHORTEST_PAUSE);
    }
}

/// The neighbour entry of a gateway before it is asked.
enum First {
    Unknown,
    /// The pod runs already, or the gateway itself asked for our address.
    Known,
    /// Someone wrote it. We must not remove it, and the kernel sends no request while it is there.
    Permanent,
}

struct Gateway {
    address: IpAddr,
    /// For IPv6: a socket that is bound to the rail and to its address.
    socket: Option<UdpSocket>,
}

impl Gateway {
    fn new(address: IpAddr, pod: &Pod, link: &Link, addresses: &[IpNet]) -> Gateway {
        let of_family = |net: &&IpNet| address.is_ipv6() && net.addr().is_ipv6();
        let mut ours = addresses.iter().filter(of_family);
        let socket =
            ours.clone().find(|net| net.contains(&address)).or_else(|| ours.next()).and_then(|net| {
                let opened = pod.netns.run(|| {
                    let socket = UdpSocket::bind((net.addr(), 0))?;
                    setsockopt(&socket, BindToDevice, &OsString::from(&link.name))?;
                    Ok(socket)
                });
                opened
                    .inspect_err(|error| log::warn!("cannot ask {address} from {}: {error:#}", net.addr()))
                    .ok()
            });
        Gateway { address, socket }
    }

    fn ask_first(&self, pod: &mut Socket, link: &Link) -> Result<First> {
        match neighbour::state(pod, link.index, self.address)? {
            State::Permanent | State::Noarp => {
                log::warn!("{} has a permanent neighbour {}: it is not asked", link.name, self.address);
                Ok(First::Permanent)
            }
            State::Reachable | State::Stale | State::Delay | State::Probe
                if neighbour::confirm(pod, link.index, self.address).is_ok() =>
            {
                Ok(First::Known)
            }
            _ => self.ask(pod, link).map(|()| First::Unknown),
        }
    }

    fn ask(&self, pod: &mut Socket, link: &Link) -> Result<()> {
        // While the kernel waits for an answer, or believes an old one, it does not ask.
        neighbour::forget(pod, link.index, self.address)?;
        self.tell(pod, link)
    }

    /// Makes the kernel ask, unless it is asking already.
    fn tell(&self, pod: &mut Socket, link: &Link) -> Result<()> {
        // For a packet the kernel asks from the packet's address, which works at once. Else it does so from the
        // link-local one (net/ipv6/ndisc.c), which comes up to two seconds after the carrier.
        if let (Some(socket), IpAddr::V6(address)) = (&self.socket, self.address) {
            let discard = SocketAddrV6::new(address, 9, 0, link.index.get());
            // Without a route to the gateway itself, the next line asks.
            let _ = socket.send_to(&[], discard);
        }
        neighbour::ask(pod, link.index, self.address)
    }
}
