//! Runs a plugin while the kernel refuses one kind of change, and nothing else.
//!
//! `refuser COUNT WHAT COMMAND...` has the exit status of COMMAND, and appends a line to the file
//! COUNT for each message that failed with EIO:
//!
//! | what | refused |
//! | --- | --- |
//! | `vlan=0`, `mac=02:00:00:00:00:01`, `spoofchk=1`, `trust=0`, `rate=0` | a PF that sets this value for a VF; the rate is the maximum |
//! | `rdma` | a move of an RDMA device out of another namespace than this one |
#![allow(clippy::unwrap_used, clippy::panic, clippy::exit)]

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::process::{Command, exit};

use nix::errno::Errno;
use nix::libc;
use nix::unistd::Pid;

use tracer::{Fate, Point, WAITING};

#[path = "../netns/tracer.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod tracer;

// include/uapi/linux/if_link.h and rdma_netlink.h; libc does not have them.
const IFLA_VF_INFO: u16 = 1;
const IFLA_VF_MAC: u16 = 1;
const IFLA_VF_SPOOFCHK: u16 = 4;
const IFLA_VF_RATE: u16 = 6;
const IFLA_VF_TRUST: u16 = 9;
const IFLA_VF_VLAN_LIST: u16 = 12;
const RDMA_NLDEV_CMD_SET: u16 = (5 << 10) | 2;
const RDMA_NLDEV_NET_NS_FD: u16 = 68;

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [count, what, command @ ..] = &arguments[..] else {
        panic!("usage: refuser COUNT WHAT COMMAND...")
    };
    let mut count = OpenOptions::new()
        .append(true)
        .create(true)
        .open(count)
        .unwrap();
    let first = Command::new(WAITING[0])
        .args(&WAITING[1..])
        .args(command)
        .spawn()
        .unwrap();
    let ended = tracer::follow(Pid::from_raw(i32::try_from(first.id()).unwrap()), |point| {
        if !is_meant(what, &point) {
            return Fate::Made;
        }
        writeln!(count, "{what}").unwrap();
        Fate::Fails(Errno::EIO)
    });
    exit(ended.status)
}

fn is_meant(what: &str, point: &Point) -> bool {
    let Some(sent) = point.sent() else {
        return false;
    };
    let Some(kind) = sent
        .get(4..6)
        .map(|kind| u16::from_ne_bytes([kind[0], kind[1]]))
    else {
        return false;
    };
    match what.split_once('=') {
        None if what == "rdma" => {
            let moves = attributes(&sent[16..])
                .iter()
                .any(|(kind, _)| *kind == RDMA_NLDEV_NET_NS_FD);
            let netns = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
            kind == RDMA_NLDEV_CMD_SET && moves && netns(&point.pid.to_string()) != netns("self")
        }
        Some((key, value)) => kind == libc::RTM_SETLINK && sets(&sent[32..], key, value),
        None => panic!("{what} is nothing to refuse"),
    }
}

/// Does a message with these attributes set `key` of a VF to `value`?
fn sets(message: &[u8], key: &str, value: &str) -> bool {
    let of = |message, wanted| {
        attributes(message)
            .into_iter()
            .filter(move |(kind, _)| *kind == wanted)
    };
    // Each has the number of the VF first.
    let (kind, word) = match key {
        "mac" => (IFLA_VF_MAC, 1),
        "vlan" => (IFLA_VF_VLAN_LIST, 2),
        "spoofchk" => (IFLA_VF_SPOOFCHK, 1),
        "trust" => (IFLA_VF_TRUST, 1),
        "rate" => (IFLA_VF_RATE, 2),
        _ => panic!("{key} is nothing to refuse"),
    };
    let infos = of(message, libc::IFLA_VFINFO_LIST).flat_map(|(_, list)| of(list, IFLA_VF_INFO));
    let mut settings = infos.flat_map(|(_, info)| of(info, kind));
    settings.any(|(_, setting)| match key {
        "mac" => {
            let mac = value
                .split(':')
                .map(|byte| u8::from_str_radix(byte, 16).unwrap());
            setting.get(4..10) == Some(&mac.collect::<Vec<_>>())
        }
        _ => {
            setting.get(4 * word..4 * word + 4)
                == Some(&value.parse::<u32>().unwrap().to_ne_bytes())
        }
    })
}

/// Kind and value of each netlink attribute.
fn attributes(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let Some(header) = rest.get(..4) {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        let Some(value) = rest.get(4..length) else {
            break;
        };
        found.push((kind, value));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}
