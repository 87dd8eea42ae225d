//! Netlink: another program answers in the place of the kernel, whatever the input says.

use std::fs::File;
use std::num::NonZeroU32;
use std::time::Duration;

use ipnet::IpNet;
use netlink_sys::{Socket as Raw, SocketAddr};
use rail_netlink::devlink::Devlink;
use rail_netlink::ethtool::Ethtool;
use rail_netlink::link::Link;
use rail_netlink::route::Route;
use rail_netlink::rule::Rule;
use rail_netlink::{
    Socket, address, dcb, filter, link, neighbour, rdma, route, rule, saved, stacked, tunables, vf,
};
use serde_json::json;

use crate::input::choice;
use crate::judge;

/// For messages between processes: both ends are ours.
const NETLINK_USERSOCK: isize = 2;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const EEXIST: i32 = -17;
/// Of an address that is to be removed.
const EADDRNOTAVAIL: i32 = -99;
/// EINVAL, EOPNOTSUPP, ENOENT, ENODEV, EAFNOSUPPORT: for some lists they mean that there is none.
const ABSENT: [i32; 5] = [-22, -95, -2, -19, -97];
/// After each answer of EBUSY the request is repeated, later each time.
const MOST_DATAGRAMS: usize = 5;

/// The facts by which answers are judged.
#[derive(Default)]
struct Sent {
    /// The request was acknowledged, or its object was there.
    acknowledged: bool,
    /// A message that ends a dump.
    ended: bool,
}

/// Reads the number of the request; whether headers are repaired so that the messages are read; and
/// then datagrams, each behind its length.
pub fn netlink(data: &[u8]) {
    let [request, repair, rest @ ..] = data else {
        return;
    };
    let [mut ours, mut theirs] =
        [(); 2].map(|()| Raw::new(NETLINK_USERSOCK).expect("a socket between processes"));
    let at = ours.bind_auto().expect("a port");
    let peer = theirs.bind_auto().expect("a port");
    ours.connect(&SocketAddr::new(peer.port_number(), 0))
        .expect("a peer");
    // An answer that is missing is an error at once, and not after half a minute.
    ours.set_non_blocking(true).expect("a flag");
    theirs.set_non_blocking(true).expect("a flag");
    let mut sent = Sent::default();
    for mut datagram in datagrams(rest) {
        if choice(&[*repair], 0, 2) == 0 {
            self::repair(&mut datagram);
        }
        look(&datagram, &mut sent);
        if !datagram.is_empty() {
            theirs.send_to(&datagram, &at, 0).expect("room for it");
        }
    }
    ask(usize::from(*request), Socket::over(ours), &sent);
}

fn datagrams(mut rest: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let ([low, high, more @ ..], true) = (rest, all.len() < MOST_DATAGRAMS) {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
        all.push(more[..length].to_vec());
        rest = &more[length..];
    }
    all
}

/// Gives each message the sequence number of the first request, and a length that ends in the
/// datagram.
fn repair(datagram: &mut [u8]) {
    let mut at = 0;
    while at + 16 <= datagram.len() {
        let left = datagram.len() - at;
        let length =
            u32::from_ne_bytes(datagram[at..at + 4].try_into().expect("four bytes")) as usize;
        let length = length.clamp(16, left);
        datagram[at..at + 4].copy_from_slice(&(length as u32).to_ne_bytes());
        datagram[at + 8..at + 12].copy_from_slice(&1u32.to_ne_bytes());
        at += length.next_multiple_of(4);
    }
}

/// Looks for what alone may end a change or a dump in success, wherever it stands.
fn look(datagram: &[u8], sent: &mut Sent) {
    let mut at = 0;
    while let Some(header) = datagram.get(at..at + 16) {
        let length = u32::from_ne_bytes(header[..4].try_into().expect("four bytes")) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        // Bytes behind a message without a code belong to the next one.
        let code = datagram.get(at + 16..at + 20).filter(|_| length >= 20);
        let code = code.map(|code| i32::from_ne_bytes(code.try_into().expect("four")));
        let is_good = code.is_none_or(|code| code == 0 || ABSENT.contains(&code));
        sent.ended |= [NLMSG_ERROR, NLMSG_DONE].contains(&kind) && is_good;
        sent.acknowledged |=
            kind == NLMSG_ERROR && matches!(code, Some(0 | EEXIST | EADDRNOTAVAIL));
        at += length.max(16).next_multiple_of(4);
    }
}

fn text(error: &anyhow::Error) {
    assert!(!format!("{error:#}").is_empty());
}

/// A list is whole only if the kernel said that it ends.
fn list<T: std::fmt::Debug>(answer: anyhow::Result<T>, sent: &Sent) -> Option<T> {
    match answer {
        Ok(all) => {
            assert!(sent.ended, "a list without an end: {all:?}");
            Some(all)
        }
        Err(error) => {
            text(&error);
            None
        }
    }
}

fn one<T>(answer: anyhow::Result<T>) -> Option<T> {
    answer.map_err(|error| text(&error)).ok()
}

/// A change is made only if the kernel said so.
fn change(answer: anyhow::Result<()>, sent: &Sent) {
    match answer {
        Ok(()) => assert!(sent.acknowledged, "a change that nobody acknowledged"),
        Err(error) => text(&error),
    }
}

fn ask(request: usize, mut socket: Socket, sent: &Sent) {
    if let 26 | 27 = request % 36 {
        return generic(request, socket);
    }
    let index = NonZeroU32::new(7).expect("not 0");
    let gateway = "172.16.0.1".parse().expect("an address");
    let net: IpNet = "172.16.0.0/31".parse().expect("a prefix");
    let socket = &mut socket;
    let names = ["mlx5_0".to_owned(), "mlx5_1".to_owned()];
    match request % 36 {
        0 => list(link::all(socket), sent)
            .into_iter()
            .flatten()
            .for_each(|link| of_link(&link)),
        1 => drop(list(link::seen(socket, |_| true), sent)),
        2 => one(link::by_name(socket, "ens1f0"))
            .flatten()
            .iter()
            .for_each(of_link),
        3 => drop(one(link::by_any_name(
            socket,
            "a-name-that-is-longer-than-others",
        ))),
        4 => drop(one(link::by_index(socket, index))),
        5 => drop(list(address::all(socket, index), sent)),
        6 => drop(list(address::in_namespace(socket), sent)),
        7 => list(route::all(socket), sent)
            .into_iter()
            .flatten()
            .for_each(|(_, route)| of_route(&route)),
        8 => drop(list(route::through(socket, index, |_| true), sent)),
        9 => drop(list(rule::each(socket, |_, _| ()), sent)),
        10 => drop(list(rule::inverted(socket), sent)),
        11 => drop(one(neighbour::state(socket, index, gateway))),
        12 => drop(
            one(vf::state(socket, index, 3))
                .and_then(vf::Report::known)
                .map(|state| {
                    assert!(!state.settings().is_empty() || state.as_arguments().is_empty());
                    vf::message(index, 3, &state)
                }),
        ),
        13 => drop(one(rdma::is_exclusive(socket))),
        14 => drop(one(rdma::named(socket, &names))),
        15 => drop(list(rdma::is_any(socket), sent)),
        16 => drop(one(rdma::by_index(socket, 1))),
        17 => drop(list(rdma::users(socket, 1), sent)),
        18 => of_saved(list(saved::addresses(socket, index), sent)),
        19 => of_saved(list(saved::routes(socket, index), sent)),
        20 => of_saved(list(saved::neighbours(socket, index), sent)),
        21 => drop(list(saved::route_from(socket, index, &[gateway]), sent)),
        22 => {
            let home = File::open("/proc/self/ns/net").expect("a namespace");
            drop(one(stacked::on(socket, index, &home)));
        }
        23 => drop(one(tunables::read(socket, index))),
        24 => drop(one(filter::on(socket, index))),
        25 => drop(one(dcb::read(socket, "ens1f0"))),
        28 => change(address::add(socket, &a_link(), net), sent),
        29 => change(address::remove(socket, &a_link(), net), sent),
        30 => change(route::add(socket, index, &Route::new(net, 254)), sent),
        31 => change(
            rule::add(
                socket,
                &Rule {
                    from: gateway,
                    table: 100,
                    priority: 1000,
                },
            ),
            sent,
        ),
        32 => change(link::set_mtu(socket, &a_link(), 9000), sent),
        33 => change(link::set_up(socket, &a_link()), sent),
        34 => change(link::add_altname(socket, &a_link(), "rail0"), sent),
        _ => (),
    }
}

/// Asks a family of generic netlink, which keeps its socket.
fn generic(request: usize, socket: Socket) {
    if request % 2 == 0 {
        drop(one(Ethtool::over(socket, 0x15).read(NonZeroU32::MIN)));
    } else {
        let _ = one(Devlink::over(socket, 0x15).modes("0000:3b:00.0"));
    }
}

fn a_link() -> Link {
    let link = json!({"index": 7, "name": "net1", "altnames": [], "mtu": 1500, "max_mtu": 0, "min_mtu": 0,
        "mac": "02:00:00:00:00:01", "permanent_mac": null, "up": true, "master": null, "kind": null,
        "parent": null, "loopback": false});
    serde_json::from_value(link).expect("a link")
}

/// A link goes into a record, and comes back.
fn of_link(link: &Link) {
    let text = serde_json::to_string(link).expect("a record");
    assert_eq!(
        &serde_json::from_str::<Link>(&text).expect("a record"),
        link
    );
    let _ = (link.is_infiniband(), link.dies_with_namespace());
}

fn of_route(route: &Route) {
    let text = serde_json::to_string(route).expect("a record");
    assert_eq!(
        &serde_json::from_str::<Route>(&text).expect("a record"),
        route
    );
    judge::message(&route.to_string());
    let _ = route::message(NonZeroU32::MIN, route);
}

fn of_saved(all: Option<Vec<saved::Saved>>) {
    all.into_iter().flatten().for_each(|one| saved(&one));
}

/// Calls every reader of a netlink message in a record, which came from the kernel, or from a file.
pub fn saved(one: &saved::Saved) {
    let _ = (
        one.address(),
        one.is_dynamic(),
        one.is_over(Duration::from_secs(60)),
        one.neighbour(),
    );
    let _ = (
        one.is_by_nexthops(),
        one.prefix_len(),
        one.table(),
        one.metric(),
        one.is_unicast(),
        one.is_on_link(),
    );
    let _ = one.route();
    assert!(!one.describe().is_empty());
}
