//! The rail inside the pod: addresses, sysctls, routes, rules.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use anyhow::Result;
use ipnet::IpNet;
use nix::errno::Errno;

use super::config::{NetConf, Routing, check_route};
use super::record::{Applied, Record, Records};
use crate::cluster_networks::overlap;
use crate::cni::{self, AddResult, Attachment};
use crate::netlink::link::{self, Link};
use crate::netlink::route::{MAIN, Route};
use crate::netlink::rule::Rule;
use crate::netlink::{Error, Socket, address, route, rule};
use crate::node::{self, Node};
use crate::{fail, failure};

/// The table of rail 0; rules and metrics count likewise.
const FIRST_TABLE: u32 = 100;
/// The metric of rail 0's routes in the main table, and the priority of its rule.
const FIRST_METRIC: u32 = 1000;
/// Where networks without `rail` look for a free table: behind all rails and the kernel's tables.
const FIRST_FREE: u32 = 900;
/// Most addresses and routes of a rail. Every call reads the records of all pods: a tenant's must not be megabytes.
const MAX_ROUTES: usize = 1000;

/// Refuses a pod that has an interface with this name or altname.
pub fn refuse_name_in_use(pod: &mut Socket, name: &str) -> Result<()> {
    if let Some(link) = link::by_name(pod, name)? {
        let other = if link.name == name { String::new() } else { format!(" (an altname of {})", link.name) };
        fail!(InvalidConfig, "the pod already has an interface {name}{other}");
    }
    Ok(())
}

/// Which of the device's altnames are in use in the pod. The kernel refuses the move for each.
pub fn clashing_altnames(pod: &mut Socket, device: &Link, name: &str) -> Result<Vec<String>> {
    let mut taken = Vec::new();
    for altname in &device.altnames {
        if altname == name || link::by_any_name(pod, altname)?.is_some() {
            taken.push(altname.clone());
        }
    }
    Ok(taken)
}

/// What the rail will be in the pod, by the configuration and the IPAM's result.
pub fn prepare(conf: &NetConf, original: &Link, leased: &AddResult, pod: &mut Socket) -> Result<Applied> {
    let all = leased.ips.len() + leased.routes.len() + conf.routes.len();
    if all > MAX_ROUTES {
        fail!(InvalidConfig, "{all} addresses and routes, and a rail can have {MAX_ROUTES}: combine them");
    }
    let addresses: Vec<IpNet> = leased.ips.iter().map(|ip| ip.address).collect();
    for ip in &leased.ips {
        let address = ip.address.addr();
        if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
            fail!(InvalidConfig, "the IPAM gave {}, which no interface can have", ip.address);
        }
        if ip.address.prefix_len() == 0 {
            fail!(InvalidConfig, "the IPAM gave {}: its network would be a default route", ip.address);
        }
        if ip.gateway == Some(address) {
            fail!(InvalidConfig, "the IPAM gave {} with itself as its gateway", ip.address);
        }
    }
    let slot = match conf.rail {
        Some(rail) => u32::from(rail),
        None if addresses.is_empty() => FIRST_FREE,
        None => free_slot(pod)?,
    };
    let (table, metric) = (FIRST_TABLE + slot, FIRST_METRIC + slot);

    let is_source_based = conf.routing == Routing::SourceBased;
    let mut routes = Vec::new();
    // A route that both the pool and the network give is one route, and the network's takes precedence.
    let is_of_pool_alone = |of_pool: &&cni::Route| {
        let key =
            |route: &cni::Route| (route.dst.trunc(), route.table.unwrap_or(0), route.priority.unwrap_or(0));
        conf.routes.iter().all(|route| key(route) != key(of_pool))
    };
    for wanted in leased.routes.iter().filter(is_of_pool_alone).chain(&conf.routes) {
        check_route(wanted, "routes of the IPAM")?;
        if wanted.is_default() {
            log::warn!("{} is left out: a rail never has the default route", wanted.dst);
            continue;
        }
        // Networks written for sriov-cni often have it. The address makes that route, and a second one could not be added.
        let is_own =
            |net: &IpNet| net.prefix_len() < net.max_prefix_len() && net.trunc() == wanted.dst.trunc();
        if wanted.table.is_none_or(|table| table == 0) && addresses.iter().any(is_own) {
            log::info!("{} is the rail's own network: its hosts are reached without a gateway", wanted.dst);
            continue;
        }
        let mut route = resolve(wanted, leased)?;
        // The configuration asks for this table, so there is no copy in another one.
        if wanted.table.is_some_and(|table| table != 0) {
            routes.push(route);
            continue;
        }
        // The same in both tables: where a destination has two routes, their order must not depend on the sender.
        if route.metric == 0 {
            route.metric = metric;
        }
        if is_source_based && !addresses.is_empty() {
            routes.push(Route { table, ..route.clone() });
        }
        routes.push(route);
    }
    let mut rules = Vec::new();
    if is_source_based {
        for net in &addresses {
            // Without it, packets that the rule sends to this table would not reach the neighbours on the link.
            if net.prefix_len() < net.max_prefix_len() {
                routes.insert(0, Route::new(net.trunc(), table));
            }
            rules.push(Rule { from: net.addr(), table, priority: metric });
        }
    }
    let mut once: Vec<Route> = Vec::new();
    for route in routes {
        let key = |route: &Route| (route.dst, route.table, route.metric);
        match once.iter().find(|other| key(other) == key(&route)) {
            None => once.push(route),
            Some(same) if *same == route => (),
            // To the kernel, too, they would be one.
            Some(other) => {
                fail!(InvalidConfig, "{other} and {route}: give one of these routes another priority")
            }
        }
    }
    let routes = once;
    let mac = conf.mac.as_deref().map_or_else(|| original.mac.clone(), link::format_mac);
    Ok(Applied { index: 0, mtu: conf.mtu, mac, addresses, routes, rules })
}

/// Refuses routes that take the cluster's networks away from the pod: the pod reaches them by the default route of eth0,
/// and every other route is longer than that. An overlap with another network of the pod is logged, unless that is
/// another rail, which shares the fabric. The rail's own table must have no routes of others.
pub fn check_routes(record: &Record, node: &Node, records: &Records, pod: &mut Socket) -> Result<()> {
    let applied = &record.applied;
    if applied.routes.is_empty() {
        return Ok(());
    }
    let rails = records.ifnames_of(&record.container_id)?;
    let all = route::all(pod)?;
    let is_own_table = |table| applied.rules.iter().any(|rule| rule.table == table);
    for (index, route) in all.iter().filter(|(_, route)| is_own_table(route.table)) {
        let Some(link) = link::by_index(pod, *index)? else { continue };
        let other = Attachment { container_id: record.container_id.clone(), ifname: link.name };
        let is_rail = rails.contains(&other.ifname);
        let other_rail = if is_rail { records.find(&other)?.and_then(|other| other.rail) } else { None };
        if other_rail != record.rail || !is_rail {
            fail!(
                InvalidConfig,
                "table {} of the pod, which is this rail's, has the route {route} of {}: does a plugin such as sbr \
                 follow rail-cni in that network? Remove it there: rail-cni makes the tables",
                route.table,
                other.ifname
            );
        }
    }
    // The rail's own table matters only for packets from the rail's address.
    let ours: Vec<_> = applied.routes.iter().filter(|route| route.table == MAIN).collect();
    let theirs = all.iter().filter(|(_, route)| route.table == MAIN && route.dst.prefix_len() > 0);
    let theirs: Vec<_> = theirs.filter(|(_, route)| !is_of_links(route.dst)).collect();
    for network in &node.cluster_networks {
        let is_kept = |ours: &Route| {
            let is_longer = |theirs: &Route| {
                theirs.dst.contains(network) && theirs.dst.prefix_len() > ours.dst.prefix_len()
            };
            theirs.iter().any(|(_, theirs)| is_longer(theirs))
        };
        if let Some(route) = ours.iter().find(|ours| overlap(ours.dst, *network) && !is_kept(ours)) {
            fail!(
                InvalidConfig,
                "the route {route} takes {network} away from the pod, which is the cluster's (clusterNetworks of {}): \
                 without it the pod has no Services or no DNS. Plan the fabric with other addresses",
                node::path().display()
            );
        }
    }
    for (index, other) in theirs {
        let Some(route) = ours.iter().find(|ours| overlap(ours.dst, other.dst)) else { continue };
        let name = link::by_index(pod, *index)?.map(|link| link.name).unwrap_or_default();
        if !rails.contains(&name) {
            log::warn!("the route {route} overlaps {}, which the pod has by {name}", other.dst);
        }
    }
    Ok(())
}

/// Whether every link has such a route.
pub fn is_of_links(dst: IpNet) -> bool {
    match dst {
        IpNet::V4(net) => net.addr().is_link_local(),
        IpNet::V6(net) => net.addr().is_unicast_link_local() || net.addr().is_multicast(),
    }
}

/// The first number whose table, rule priority and metric are free in the pod.
fn free_slot(pod: &mut Socket) -> Result<u32> {
    let routes = route::all(pod)?;
    let (rules, mut tables) = rule::all(pod)?;
    tables.extend(routes.iter().map(|(_, route)| route.table));
    let mut used: BTreeSet<u32> =
        tables.into_iter().filter_map(|table| table.checked_sub(FIRST_TABLE)).collect();
    used.extend(routes.iter().filter_map(|(_, route)| route.metric.checked_sub(FIRST_METRIC)));
    used.extend(rules.iter().filter_map(|rule| rule.priority.checked_sub(FIRST_METRIC)));
    let free = (FIRST_FREE..FIRST_FREE + 10_000).find(|slot| !used.contains(slot));
    free.ok_or_else(|| failure!(Internal, "the pod has no free routing table"))
}

/// A route with its next hop: the one that is configured, or else the gateway of the address.
fn resolve(wanted: &cni::Route, leased: &AddResult) -> Result<Route> {
    let is_v4 = wanted.dst.addr().is_ipv4();
    let mut ips = leased.ips.iter().filter(|ip| ip.address.addr().is_ipv4() == is_v4);
    let gateway = wanted.gw.or_else(|| ips.find_map(|ip| ip.gateway)).filter(|gw| !gw.is_unspecified());
    if let Some(gateway) = gateway.filter(|gateway| leased.ips.iter().any(|ip| ip.address.addr() == *gateway))
    {
        fail!(InvalidConfig, "the route to {} leads to the pod's own address {gateway}", wanted.dst);
    }
    // With host addresses (/32, /128) the gateway is on the link although no prefix contains it. An IPv6 gateway of an
    // IPv4 route can even be the only IPv6 address of the rail.
    let is_onlink = |gateway: IpAddr| {
        let mut ours = leased.ips.iter().map(|ip| ip.address);
        let is_of_family = |net: &IpNet| net.addr().is_ipv4() == gateway.is_ipv4();
        (gateway.is_ipv4() != is_v4 || ours.clone().any(|net| is_of_family(&net)))
            && ours.all(|net| !is_of_family(&net) || net.prefix_len() == net.max_prefix_len())
            && !is_link_local(gateway)
    };
    Ok(Route {
        gateway,
        onlink: gateway.is_some_and(is_onlink),
        metric: wanted.priority.unwrap_or(0),
        mtu: wanted.mtu,
        advmss: wanted.advmss,
        scope: wanted.scope,
        ..Route::new(wanted.dst.trunc(), wanted.table.filter(|table| *table != 0).unwrap_or(MAIN))
    })
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Sets the sysctls of the interface. Only inside the pod's namespace, see [`crate::netns::Netns::run`].
pub fn set_sysctls(conf: &NetConf, applied: &Applied, ifname: &str) -> Result<()> {
    let has_v6 = applied.addresses.iter().any(|net| net.addr().is_ipv6());
    let is_via_v6 = applied.routes.iter().filter_map(|route| route.gateway).any(|gateway| gateway.is_ipv6());
    let rail = [
        // The kernel announces the address when the link comes up with its carrier; see probe::announce for later ones.
        ("ipv4", "arp_notify", "1"),
        // Eight rails in one pod must each answer and ask for their own address only.
        ("ipv4", "arp_ignore", "1"),
        ("ipv4", "arp_announce", "2"),
        // Loose: the larger of this and `all` counts, so it also wins over a strict host.
        ("ipv4", "rp_filter", "2"),
        // A router on the rail must not hand out a default route.
        ("ipv6", "accept_ra", "0"),
        ("ipv6", "ndisc_notify", "1"),
        // The link-local address works while duplicate detection runs.
        ("ipv6", "optimistic_dad", "1"),
        ("ipv6", "use_optimistic", "1"),
    ];
    let v6_only = [
        ("ipv6", "disable_ipv6", "0"),
        // A link that goes down and up keeps its address, as in IPv4.
        ("ipv6", "keep_addr_on_down", "1"),
    ];
    // Such a rail asks for its gateway from the link-local address, which otherwise is not used for one to two seconds,
    // while the kernel looks for a duplicate.
    let via_v6_only = [("ipv6", "accept_dad", "0")];
    let v6_only = v6_only.iter().filter(|_| has_v6 || is_via_v6);
    let via_v6_only = via_v6_only.iter().filter(|_| is_via_v6 && !has_v6);
    for (family, key, value) in rail.iter().chain(v6_only).chain(via_v6_only) {
        let path = Path::new("/proc/sys/net").join(family).join("conf").join(ifname).join(key);
        match std::fs::write(&path, value) {
            // No IPv6, or a kernel without optimistic DAD.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && *family == "ipv6" => (),
            Err(error) => fail!(Io, "cannot set {}: {error}", path.display()),
            Ok(()) => (),
        }
    }
    for (path, value) in &conf.sysctls {
        let path = Path::new("/proc/sys").join(path);
        std::fs::write(&path, value).map_err(|error| {
            failure!(InvalidConfig, "sysctl: cannot set {} to {value:?}: {error}", path.display())
        })?;
    }
    Ok(())
}

/// Sets addresses, the link up, routes and rules. In this order each step finds what it needs, and the kernel announces
/// the addresses when the link comes up.
pub fn configure(pod: &mut Socket, link: &Link, applied: &Applied) -> Result<()> {
    for net in &applied.addresses {
        address::add(pod, link, *net)?;
    }
    link::set_up(pod, link)?;
    for route in &applied.routes {
        route::add(pod, link.index, route).map_err(|error| explain(error, route))?;
    }
    for rule in &applied.rules {
        rule::add(pod, rule)?;
    }
    Ok(())
}

/// Says which part of the configuration or of the IPAM's result the kernel refused.
fn explain(error: anyhow::Error, route: &Route) -> anyhow::Error {
    if Error::is(&error, Errno::EEXIST) {
        let metric = route.metric;
        return failure!(
            InvalidConfig,
            "{error:#}: another interface of the pod has it with the same metric, {metric}. Do two networks have \
             the same rail?"
        );
    }
    let is_config = [Errno::ENETUNREACH, Errno::EHOSTUNREACH, Errno::EINVAL];
    if is_config.into_iter().any(|errno| Error::is(&error, errno)) {
        return failure!(InvalidConfig, "{error:#}: is the gateway on the rail's link?");
    }
    error
}

/// Compares the pod with the record; every difference is one line.
pub fn differences(
    pod: &mut Socket,
    link: &Link,
    record: &Record,
    previous: &AddResult,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let applied = &record.applied;
    if link.name != record.ifname {
        found.push(format!("its name is {}", link.name));
    }
    if !link.up {
        found.push("it is down".to_owned());
    }
    if let Some(mtu) = applied.mtu.filter(|mtu| *mtu != link.mtu) {
        found.push(format!("its MTU is {}, not {mtu}", link.mtu));
    }
    // A later plugin of the chain may have set another MAC, and said so.
    let said = previous.interfaces.iter().filter(|interface| interface.name == record.ifname);
    let mut macs = said.map(|interface| interface.mac.as_str()).chain([applied.mac.as_str()]);
    if !macs.any(|mac| link::is_same_mac(&mac.to_ascii_lowercase(), &link.mac)) {
        found.push(format!("its MAC is {}, not {}", link.mac, applied.mac));
    }
    let addresses = address::all(pod, link.index)?;
    for net in &applied.addresses {
        match addresses.iter().find(|address| address.net == *net) {
            None => found.push(format!("the address {net} is gone")),
            Some(address) if address.duplicate => {
                found.push(format!("the address {net} is in use elsewhere"))
            }
            Some(_) => (),
        }
    }
    let routes = route::through(pod, link.index)?;
    for wanted in &applied.routes {
        if !routes.iter().any(|route| wanted.is_same_path(route)) {
            // One of another metric is another route.
            let metric = match wanted.metric {
                0 => String::new(),
                metric => format!(" metric {metric}"),
            };
            found.push(format!("the route {wanted}{metric} is gone"));
        }
    }
    // Multus adds one when a pod asks for it, and it is in prevResult then.
    if !previous.routes.iter().any(cni::Route::is_default)
        && routes.iter().any(|route| route.dst.prefix_len() == 0 && route.table == MAIN)
    {
        found.push("it carries a default route".to_owned());
    }
    if !applied.rules.is_empty() {
        let (rules, _) = rule::all(pod)?;
        found.extend(
            applied
                .rules
                .iter()
                .filter(|rule| !rules.contains(rule))
                .map(|rule| format!("the rule {rule} is gone")),
        );
    }
    Ok(found)
}
