//! Times what a rail's way into a pod and back is made of, each part a netlink message of its own.
//!
//! `moves ROUNDS TEXT [DEVICE]` moves DEVICE, or a veth of its own, between this namespace and one
//! that it makes, and prints a line for each of [`PARTS`]: TEXT, the part and the lower quartile in
//! milliseconds, with tabs between them: whatever else the machine does makes a move longer, and
//! never shorter. The device ends as it was. scripts/bench-move makes tables of these lines.
#![allow(clippy::unwrap_used, clippy::panic, clippy::exit, clippy::print_stdout)]

use std::fs::File;
use std::time::Instant;

use rail_cni::netns;
use rail_netlink::Socket;
use rail_netlink::link::{self, Link, Move};

const POD: &str = "net1";
const JUMBO: u32 = 9000;

const PARTS: [&str; 13] = [
    "move in",
    "set up",
    "change the MTU while up",
    "set down",
    "change the MTU while down",
    "rename while down",
    "move back while down",
    "move back while up",
    "in: one message with move, MTU, name",
    "back, while up: one message with move, MTU, name",
    "in: MTU, name, then move",
    "in: move, then MTU, name",
    "back: down, then one message with move, MTU, name",
];

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (rounds, text, device) = match &arguments[..] {
        [rounds, text] => (rounds, text, None),
        [rounds, text, device] => (rounds, text, Some(device.as_str())),
        _ => panic!("usage: moves ROUNDS TEXT [DEVICE]"),
    };
    let here = File::open("/proc/self/ns/net").unwrap();
    let mut host = Socket::open().unwrap();
    let name = device.unwrap_or("moves0");
    if device.is_none() {
        link::add_veth(&mut host, name).unwrap();
        // Without a peer that is up there is no carrier, as a VF has one.
        let peer = find(&mut host, name)
            .lower
            .and_then(link::Index::new)
            .unwrap();
        let peer = link::by_index(&mut host, peer).unwrap().unwrap();
        link::set_up(&mut host, &peer).unwrap();
    }
    let original = find(&mut host, name);
    if original.up {
        link::set_down(&mut host, &original).unwrap();
    }
    let pod = netns::unnamed().unwrap();
    let mut road = Road {
        host,
        here,
        inside: Socket::open().unwrap(),
        pod,
        name,
        mtu: original.mtu,
    };
    let mut times = vec![Vec::new(); PARTS.len()];
    for round in 0..=rounds.parse().unwrap() {
        for (times, took) in times.iter_mut().zip(road.round()) {
            // The first round loads what is not in memory yet.
            if round > 0 {
                times.push(took);
            }
        }
    }
    if device.is_none() {
        link::remove(&mut road.host, &original).unwrap();
    } else if original.up {
        link::set_up(&mut road.host, &original).unwrap();
    }
    for (part, mut times) in PARTS.iter().zip(times) {
        times.sort_by(f64::total_cmp);
        println!("{text}\t{part}\t{:.1}", times[times.len() / 4]);
    }
}

/// A device between the host and a pod.
struct Road<'a> {
    host: Socket,
    here: File,
    inside: Socket,
    pod: File,
    name: &'a str,
    mtu: u32,
}

impl Road<'_> {
    /// The duration of each of [`PARTS`]. The device begins and ends on the host, down.
    fn round(&mut self) -> [f64; PARTS.len()] {
        // Part by part, each way in its turn.
        let moved_in = self.enters(self.name, None);
        let up = self.in_pod(self.name, link::set_up);
        let mtu_up = self.in_pod(self.name, |socket, link| link::set_mtu(socket, link, JUMBO));
        let down = self.in_pod(self.name, link::set_down);
        let mtu_down = self.in_pod(self.name, |socket, link| {
            link::set_mtu(socket, link, JUMBO - 1000)
        });
        let rename = self.in_pod(self.name, |socket, link| link::set_name(socket, link, POD));
        let back_down = self.returns(POD, POD, None);
        self.restore();

        self.enters(self.name, None);
        self.in_pod(self.name, link::set_up);
        let back_up = self.returns(self.name, self.name, None);

        // As rail-cni does it.
        let one_in = self.enters(POD, Some(JUMBO));
        self.in_pod(POD, link::set_up);
        let one_back = self.returns(POD, self.name, Some(self.mtu));

        // The name is free on the host, in this table only.
        let before = self.on_host(self.name, |socket, link| link::set_mtu(socket, link, JUMBO))
            + self.on_host(self.name, |socket, link| link::set_name(socket, link, POD));
        let before = before + self.enters_as(POD, POD, None);
        self.returns(POD, self.name, Some(self.mtu));

        let after = self.enters(self.name, None)
            + self.in_pod(self.name, |socket, link| link::set_mtu(socket, link, JUMBO))
            + self.in_pod(self.name, |socket, link| link::set_name(socket, link, POD));
        self.in_pod(POD, link::set_up);
        let down_back = self.in_pod(POD, link::set_down);
        let down_back = down_back + self.returns(POD, self.name, Some(self.mtu));
        [
            moved_in, up, mtu_up, down, mtu_down, rename, back_down, back_up, one_in, one_back,
            before, after, down_back,
        ]
    }

    fn restore(&mut self) {
        self.on_host(POD, |socket, link| link::set_name(socket, link, self.name));
        let mtu = self.mtu;
        self.on_host(self.name, |socket, link| link::set_mtu(socket, link, mtu));
    }

    fn enters(&mut self, name: &str, mtu: Option<u32>) -> f64 {
        self.enters_as(self.name, name, mtu)
    }

    fn enters_as(&mut self, from: &str, name: &str, mtu: Option<u32>) -> f64 {
        let link = find(&mut self.host, from);
        timed(|| {
            link::move_to(
                &mut self.host,
                &link,
                &self.pod,
                &Move {
                    name,
                    mtu,
                    ..Move::default()
                },
            )
        })
    }

    fn returns(&mut self, from: &str, name: &str, mtu: Option<u32>) -> f64 {
        let link = find(&mut self.inside, from);
        timed(|| {
            link::move_to(
                &mut self.inside,
                &link,
                &self.here,
                &Move {
                    name,
                    mtu,
                    ..Move::default()
                },
            )
        })
    }

    fn in_pod(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Socket, &Link) -> anyhow::Result<()>,
    ) -> f64 {
        let link = find(&mut self.inside, name);
        timed(|| change(&mut self.inside, &link))
    }

    fn on_host(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Socket, &Link) -> anyhow::Result<()>,
    ) -> f64 {
        let link = find(&mut self.host, name);
        timed(|| change(&mut self.host, &link))
    }
}

fn find(socket: &mut Socket, name: &str) -> Link {
    link::by_name(socket, name)
        .unwrap()
        .unwrap_or_else(|| panic!("no device {name}"))
}

fn timed(change: impl FnOnce() -> anyhow::Result<()>) -> f64 {
    let began = Instant::now();
    change().unwrap();
    began.elapsed().as_secs_f64() * 1000.0
}
