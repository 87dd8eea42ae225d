//! The least cost of an attachment: a program that leaves a pod as rail-cni leaves it, and gives
//! the device back, in as few requests as the kernel needs. It reads no configuration, asks
//! nothing, records nothing and checks nothing.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use nix::sched::{CloneFlags, setns};
use rail_netlink::link::{self, Link, Move};
use rail_netlink::route::{self, MAIN, Route};
use rail_netlink::rule::{self, Rule};
use rail_netlink::{Socket, address};

use crate::bed;

/// The argument with which this executable is that program: `--floor ADD|DEL RAIL POD IFNAME
/// [ROUTE...]`.
pub const FLOOR: &str = "--floor";

/// The sysctls of an interface that rail-cni sets, written here again: what is measured must not
/// change its own measure.
const SYSCTLS: [(&str, &str, &str); 8] = [
    ("ipv4", "arp_notify", "1"),
    ("ipv4", "arp_ignore", "1"),
    ("ipv4", "arp_announce", "2"),
    ("ipv4", "rp_filter", "2"),
    ("ipv6", "accept_ra", "0"),
    ("ipv6", "ndisc_notify", "1"),
    ("ipv6", "optimistic_dad", "1"),
    ("ipv6", "use_optimistic", "1"),
];

/// Does what the arguments say.
pub fn run(arguments: &[String]) -> Result<()> {
    let [verb, rail, pod, ifname, routes @ ..] = arguments else {
        bail!("{FLOOR} ADD|DEL RAIL POD IFNAME [ROUTE...]")
    };
    let rail: u8 = rail.parse().context("RAIL")?;
    let pod = File::open(bed::netns(pod))?;
    let rule = Rule {
        from: format!("10.{rail}.0.0").parse()?,
        table: 100 + u32::from(rail),
        priority: 1000 + u32::from(rail),
    };
    match verb.as_str() {
        "ADD" => add(rail, &pod, ifname, &rule, routes),
        "DEL" => del(rail, &pod, ifname, &rule),
        _ => bail!("{verb} is neither ADD nor DEL"),
    }
}

fn add(rail: u8, pod: &File, ifname: &str, rule: &Rule, routes: &[String]) -> Result<()> {
    let mut host = Socket::open()?;
    let device = found(&mut host, &format!("dev{rail}"))?;
    setns(pod, CloneFlags::CLONE_NEWNET)?;
    let mut inside = Socket::open()?;
    let alias = format!("rail {rail} network rail-{rail}");
    let change = Move {
        name: ifname,
        mtu: Some(9000),
        mac: None,
        alias: Some(&alias),
    };
    link::move_to(&mut host, &device, pod, &change)?;
    let netdev = found(&mut inside, ifname)?;
    for (family, name, value) in SYSCTLS {
        fs::write(
            Path::new("/proc/sys/net")
                .join(family)
                .join("conf")
                .join(ifname)
                .join(name),
            value,
        )?;
    }
    address::add(&mut inside, &netdev, format!("10.{rail}.0.0/31").parse()?)?;
    link::set_up(&mut inside, &netdev)?;
    route::add(
        &mut inside,
        netdev.index,
        &Route::new(format!("10.{rail}.0.0/31").parse()?, rule.table),
    )?;
    for dst in routes {
        for table in [rule.table, MAIN] {
            let gateway = Some(format!("10.{rail}.0.1").parse()?);
            let route = Route {
                gateway,
                metric: rule.priority,
                ..Route::new(dst.parse()?, table)
            };
            route::add(&mut inside, netdev.index, &route)?;
        }
    }
    rule::add(&mut inside, rule)
}

/// The addresses and routes end with the move.
fn del(rail: u8, pod: &File, ifname: &str, rule: &Rule) -> Result<()> {
    let host = File::open(bed::netns("host"))?;
    setns(pod, CloneFlags::CLONE_NEWNET)?;
    let mut inside = Socket::open()?;
    let netdev = found(&mut inside, ifname)?;
    let change = Move {
        name: &format!("dev{rail}"),
        mtu: Some(1500),
        mac: None,
        alias: Some(""),
    };
    link::move_to(&mut inside, &netdev, &host, &change)?;
    rule::remove(&mut inside, rule)
}

fn found(socket: &mut Socket, name: &str) -> Result<Link> {
    link::by_name(socket, name)?.with_context(|| format!("there is no {name}"))
}
