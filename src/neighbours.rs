//! Asks neighbours through a link of a pod: the kernel does so by ARP or neighbour discovery, and
//! the answer appears in its neighbour table.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddrV6, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use ipnet::IpNet;
use nix::sys::socket::{setsockopt, sockopt::BindToDevice};

use crate::netns::Pod;
use rail_netlink::Socket;
use rail_netlink::link::{self, Link};
use rail_netlink::neighbour::{self, State};

/// The pauses before a neighbour is asked again: first a short one, for a carrier that is just
/// coming, then twice as long each time. The kernel by itself would wait a second.
const FIRST_ROUND: Duration = Duration::from_millis(1);
const LONGEST_ROUND: Duration = Duration::from_millis(100);
/// A VF has its carrier some milliseconds after it is up (2 to 15 with igbvf), where its PF has
/// one.
const PATIENCE_WITH_CARRIER: Duration = Duration::from_millis(100);
/// The pauses between two looks at the neighbour table.
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// The neighbour entry before it is asked for.
enum First {
    Unknown,
    /// The pod runs already, or the neighbour itself asked for our address.
    Known,
    /// Someone wrote it. We must not remove it, and the kernel sends no request while it is there.
    Permanent,
}

/// Asks all `addresses` and waits for answers; returns those that did not answer within `timeout`.
/// `from`: the addresses of `link`, which is in the pod.
pub fn silent(
    addresses: &[IpAddr],
    from: &[IpNet],
    timeout: Duration,
    link: &Link,
    pod: &mut Pod,
) -> Result<Vec<IpAddr>> {
    let all: Vec<_> = addresses
        .iter()
        .map(|address| Neighbour::new(*address, from, link, pod))
        .collect();
    let pod = &mut pod.socket;
    let (mut silent, mut round) = (Vec::new(), FIRST_ROUND);
    for one in all {
        match one.ask_first(pod, link)? {
            First::Unknown => silent.push(one),
            First::Known => {
                silent.push(one);
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
        for one in silent {
            if neighbour::state(pod, link.index, one.address)? != State::Reachable {
                left.push(one);
            }
        }
        silent = left;
        if silent.is_empty() || start.elapsed() >= timeout {
            return Ok(silent.into_iter().map(|one| one.address).collect());
        }
        if Instant::now() < next {
            sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
            continue;
        }
        for one in &silent {
            one.ask(pod, link)?;
        }
        round = (round * 2).min(LONGEST_ROUND);
        (next, pause) = (Instant::now() + round, SHORTEST_PAUSE);
    }
}

/// Asks without waiting for an answer: a neighbour learns from the question which MAC has the
/// address now. `arp_notify` and `ndisc_notify` tell it when the link comes up, and where the
/// carrier comes later, as with VFs, that is lost. So a carrier that is just coming is waited for;
/// when it comes later still, as of a leaf port that trains for seconds, the kernel is left to ask
/// until there is an answer.
pub fn tell(addresses: &[IpAddr], from: &[IpNet], link: &Link, pod: &mut Pod) {
    let (start, mut pause) = (Instant::now(), SHORTEST_PAUSE);
    let mut has_carrier = || {
        !link::by_index(&mut pod.socket, link.index)
            .is_ok_and(|now| now.is_some_and(|now| !now.carrier))
    };
    while !addresses.is_empty() && !has_carrier() && start.elapsed() < PATIENCE_WITH_CARRIER {
        sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    let is_late = !addresses.is_empty() && !has_carrier();
    for address in addresses {
        let asked = if is_late {
            neighbour::keep_asking(&mut pod.socket, link.index, *address)
        } else {
            Neighbour::new(*address, from, link, pod).tell(&mut pod.socket, link)
        };
        asked.unwrap_or_else(|error| log::warn!("{error:#}"));
    }
}

struct Neighbour {
    address: IpAddr,
    /// For IPv6: a socket that is bound to the link and to its address.
    socket: Option<UdpSocket>,
}

impl Neighbour {
    fn new(address: IpAddr, from: &[IpNet], link: &Link, pod: &Pod) -> Neighbour {
        let of_family = |net: &&IpNet| address.is_ipv6() && net.addr().is_ipv6();
        let mut ours = from.iter().filter(of_family);
        let socket = ours
            .clone()
            .find(|net| net.contains(&address))
            .or_else(|| ours.next())
            .and_then(|net| {
                let opened = pod.netns.run(|| {
                    let socket = UdpSocket::bind((net.addr(), 0))?;
                    setsockopt(&socket, BindToDevice, &OsString::from(&link.name))?;
                    Ok(socket)
                });
                opened
                    .inspect_err(|error| {
                        log::warn!("cannot ask {address} from {}: {error:#}", net.addr())
                    })
                    .ok()
            });
        Neighbour { address, socket }
    }

    fn ask_first(&self, pod: &mut Socket, link: &Link) -> Result<First> {
        match neighbour::state(pod, link.index, self.address)? {
            State::Permanent | State::Noarp => {
                log::warn!(
                    "{} has a permanent neighbour {}: it is not asked",
                    link.name,
                    self.address
                );
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
        // For a packet the kernel asks from the packet's address, which works at once. Else it does
        // so from the link-local one (net/ipv6/ndisc.c), which comes up to two seconds after the
        // carrier.
        if let (Some(socket), IpAddr::V6(address)) = (&self.socket, self.address) {
            let discard = SocketAddrV6::new(address, 9, 0, link.index.get());
            // Without a route to the neighbour itself, the next line asks.
            let _ = socket.send_to(&[], discard);
        }
        neighbour::ask(pod, link.index, self.address)
    }
}

/// Asks for the rail's own IPv4 addresses where no gateway of IPv4 is asked: as a gratuitous ARP,
/// the question itself tells the leaf which MAC has the address.
pub fn announce_ipv4(link: &Link, addresses: &[IpNet], gateways: &[IpAddr], pod: &mut Socket) {
    if gateways.is_empty() || gateways.iter().any(IpAddr::is_ipv4) {
        return;
    }
    for address in addresses.iter().map(IpNet::addr).filter(IpAddr::is_ipv4) {
        if let Err(error) = neighbour::ask(pod, link.index, address) {
            log::warn!("{error:#}");
        }
    }
}

/// The gateways in order, each once.
pub fn sorted(gateways: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let all: BTreeSet<_> = gateways
        .filter(|gateway| !gateway.is_unspecified())
        .collect();
    all.into_iter().collect()
}
