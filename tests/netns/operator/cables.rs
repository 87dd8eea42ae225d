//! `railctl cables`: leaves say by LLDP who they are.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use pnet_datalink::{Channel, Config, NetworkInterface};
use rail_cni::netns::Netns;
use rail_netlink::{Socket, link};
use serde_json::{Value, json};
use std::fs;
use std::os::fd::IntoRawFd as _;

use super::two_rails;
use crate::harness::{self, Host, Ran, run};

/// A frame: addresses, EtherType, and the TLVs of chassis, port and TTL, then name and end.
fn frame(chassis: &[u8], port: &[u8], ttl: u16, name: Option<&str>) -> Vec<u8> {
    let tlv = |kind: u16, value: &[u8]| {
        [
            &(kind << 9 | u16::try_from(value.len()).unwrap()).to_be_bytes(),
            value,
        ]
        .concat()
    };
    let name = name.map_or(Vec::new(), |name| tlv(5, name.as_bytes()));
    let head = b"\x01\x80\xc2\x00\x00\x0e\x02\x00\x00\x00\x00\x01\x88\xcc".to_vec();
    [
        head,
        tlv(1, chassis),
        tlv(2, port),
        tlv(3, &ttl.to_be_bytes()),
        name,
        tlv(0, b""),
    ]
    .concat()
}

pub fn leaf(name: &str, port: &str) -> Vec<u8> {
    frame(
        b"\x04\x02\0\0\0\0\x09",
        &[b"\x05", port.as_bytes()].concat(),
        120,
        Some(name),
    )
}

/// The leaf ports of the plan, by rail.
pub fn plan(host: &Host, ports: &[(u8, &str, &str)]) {
    let of = |rail: u8, leaf: &str, port: &str| json!({"gateway": format!("172.{}.0.1", 16 + 2 * rail), "ports": [{"leaf": leaf, "port": port}]});
    let all: BTreeMap<String, Value> = ports
        .iter()
        .map(|(rail, leaf, port)| (format!("rail-{rail}"), of(*rail, leaf, port)))
        .collect();
    fs::write(host.path("store/node-1/leaf-ports"), json!(all).to_string()).unwrap();
}

fn cables(host: &Host, args: &[&str], sent: &[(&str, Vec<u8>)]) -> Ran {
    railctl(host, &[&["cables"], args].concat(), sent)
}

/// Runs the command while the other ends of these PFs send these frames, again and again.
pub fn railctl(host: &Host, args: &[&str], sent: &[(&str, Vec<u8>)]) -> Ran {
    let is_done = AtomicBool::new(false);
    let peers: Vec<_> = sent
        .iter()
        .map(|(pf, frame)| (peer_of(host, pf), frame))
        .collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let netns = Netns::open(&Path::new("/run/netns").join(host.leaf())).unwrap();
            let send = || {
                let mut channels: Vec<_> = peers
                    .iter()
                    .map(|(index, frame)| (open(*index), *frame))
                    .collect();
                while !is_done.load(Ordering::Relaxed) {
                    for (channel, frame) in &mut channels {
                        channel.send_to(frame, None).unwrap().unwrap();
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
                Ok(())
            };
            netns.run(send).unwrap();
        });
        let mut command = Command::new(harness::railctl());
        command
            .args(args)
            .env("RAIL_CNI_NODE_CONFIG", host.path("node.json"));
        command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let ran = run(command, b"");
        is_done.store(true, Ordering::Relaxed);
        ran
    })
}

fn open(index: u32) -> Box<dyn pnet_datalink::DataLinkSender> {
    let interface = NetworkInterface {
        name: String::new(),
        description: String::new(),
        index,
        mac: None,
        ips: vec![],
        flags: 0,
    };
    let fd = socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap()
    .into_raw_fd();
    let config = Config {
        promiscuous: false,
        socket_fd: Some(fd),
        ..Config::default()
    };
    match pnet_datalink::channel(&interface, config).unwrap() {
        Channel::Ethernet(sender, _) => sender,
        _ => panic!("another kind"),
    }
}

/// The index, in the leaf's namespace, of the other end of a veth of the host.
fn peer_of(host: &Host, name: &str) -> u32 {
    let ours = link::by_name(&mut Socket::open().unwrap(), name)
        .unwrap()
        .unwrap()
        .index
        .get();
    let links = host.json(
        Some(&Path::new("/run/netns").join(host.leaf())),
        "link show",
    );
    let peer = links
        .as_array()
        .unwrap()
        .iter()
        .find(|link| link["link_index"] == ours);
    u32::try_from(peer.unwrap()["ifindex"].as_u64().unwrap()).unwrap()
}

fn states(ran: &Ran) -> Vec<(Value, Value)> {
    let all = ran.json();
    all["cables"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["state"].clone(), one["swapWith"].clone()))
        .collect()
}

const JSON: [&str; 4] = ["--timeout", "2", "--output", "json"];

#[test]
fn a_cable_is_compared_with_the_plan_and_a_swap_is_named() {
    let Some(host) = two_rails("cables::swap") else {
        return;
    };
    let is_promiscuous = || host.json(None, "link show pf0")[0]["promiscuity"] != json!(0);
    plan(&host, &[(0, "leaf-0", "swp7"), (1, "leaf-1", "swp7")]);
    let right = [
        ("pf0", leaf("leaf-0", "swp7")),
        ("pf1", leaf("leaf-1.example.com", "swp7")),
    ];
    let ran = cables(&host, &JSON, &right);
    assert_eq!(
        (ran.status, states(&ran)),
        (0, vec![(json!("right"), json!(null)); 2]),
        "{ran:?}"
    );
    let found = json!({"systemName": "leaf-0", "chassis": "02:00:00:00:00:09", "port": "swp7", "portDescription": null});
    assert_eq!(ran.json()["cables"][0]["found"], found);
    assert!(!is_promiscuous());
    let swapped = [
        ("pf0", leaf("leaf-1", "swp7")),
        ("pf1", leaf("leaf-0", "swp7")),
    ];
    let ran = cables(&host, &JSON, &swapped);
    assert_eq!(ran.status, 1);
    assert_eq!(
        states(&ran),
        [(json!("wrong"), json!(1)), (json!("wrong"), json!(0))]
    );
    let told = cables(&host, &["--timeout", "2"], &swapped).stdout;
    assert!(
        told.lines()
            .any(|line| ["rail 0", "leaf-1 swp7", "leaf-0 swp7", "rail 1"]
                .iter()
                .all(|part| line.contains(part))),
        "{told}"
    );
    let elsewhere = [
        ("pf0", leaf("leaf-0", "swp8")),
        ("pf1", leaf("leaf-1", "swp7")),
    ];
    let ran = cables(&host, &JSON, &elsewhere);
    assert_eq!(
        (ran.status, states(&ran)[0].clone()),
        (1, (json!("wrong"), json!(null)))
    );
}

/// A pod's VF shares the PF's wire: what it sends is not heard, unless it takes another MAC.
#[test]
fn a_pod_does_not_say_where_the_cable_ends() {
    let Some(host) = two_rails("cables::forged") else {
        return;
    };
    plan(&host, &[(0, "leaf-0", "swp7"), (1, "leaf-1", "swp7")]);
    let mac = host.json(None, "link show vf0")[0]["address"].clone();
    let mac = link::parse_mac(mac.as_str().unwrap()).unwrap();
    let forged = |destination: &[u8], source: &[u8]| {
        [destination, source, &leaf("leaf-1", "swp7")[12..]].concat()
    };
    let group = b"\x01\x80\xc2\x00\x00\x0e";
    let right = ("pf1", leaf("leaf-1", "swp7"));
    for (frame, state) in [
        (
            forged(b"\xff\xff\xff\xff\xff\xff", b"\x02\0\0\0\0\x02"),
            "right",
        ),
        (forged(group, &mac), "right"),
        (forged(group, b"\x02\0\0\0\0\x02"), "two-neighbours"),
    ] {
        let sent = [
            ("pf0", frame),
            ("pf0", leaf("leaf-0", "swp7")),
            right.clone(),
        ];
        let ran = cables(&host, &JSON, &sent);
        assert_eq!(states(&ran)[0].0, json!(state), "{ran:?}");
        assert_eq!(ran.status, i32::from(state != "right"));
    }
    let sent = [
        ("pf0", forged(group, b"\x02\0\0\0\0\x02")),
        ("pf0", leaf("leaf-0", "swp7")),
        right,
    ];
    let told = cables(&host, &["--timeout", "2"], &sent).stdout;
    assert!(told.contains("rail 0: two neighbours: "), "{told}");
}

/// A leaf that says only a MAC, one that leaves, one that says what cannot be read or nothing at
/// all, and a link that is down.
#[test]
fn what_cannot_be_compared_has_a_state_of_its_own() {
    let Some(host) = two_rails("cables::silent") else {
        return;
    };
    let mac = b"\x04\x02\0\0\0\0\x09";
    let of_mac = frame(mac, b"\x03\x02\0\0\0\0\x0a", 120, None);
    let right = ("pf1", leaf("leaf-1", "swp7"));
    let quick = ["--timeout", "1", "--output", "json"];
    let ran = cables(&host, &JSON, &[("pf0", of_mac.clone()), right.clone()]);
    assert_eq!(
        (ran.status, &states(&ran)[0].0),
        (0, &json!("unplanned")),
        "{ran:?}"
    );
    plan(&host, &[(0, "leaf-0", "swp7"), (1, "leaf-1", "swp7")]);
    let mut cut = leaf("leaf-0", "swp7");
    cut.truncate(25);
    let leaving = frame(mac, b"\x05swp7", 0, Some("leaf-0"));
    for (sent, args, state) in [
        (Some(of_mac), JSON, "unnamed"),
        (Some(leaving), quick, "silent"),
        (Some(cut), quick, "silent"),
        (None, quick, "silent"),
    ] {
        let sent: Vec<_> = sent
            .map(|frame| ("pf0", frame))
            .into_iter()
            .chain([right.clone()])
            .collect();
        let ran = cables(&host, &args, &sent);
        let states: Vec<_> = states(&ran).into_iter().map(|(state, _)| state).collect();
        assert_eq!(
            (ran.status, states),
            (1, vec![json!(state), json!("right")]),
            "{ran:?}"
        );
    }
    host.ip("link set pf0 down");
    let ran = cables(&host, &JSON, &[right]);
    assert_eq!(
        (ran.status, &states(&ran)[0].0),
        (1, &json!("no-link")),
        "{ran:?}"
    );
}
