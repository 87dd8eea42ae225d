//! The rail inside the pod: addresses, sysctls, routes, rules.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use ipnet::IpNet;
use nix::errno::Errno;

use serde::{Deserialize, Serialize};

use crate::attach::context::Cx;
use crate::attach::locate::Place;
use crate::attach::step::{Asked, Made, Others, Phase, Step, UndoneAt};
use crate::cluster_networks::{is_of_links, overlap};
use crate::cni::{self, AddResult};
use crate::netconf::{NetConf, Routing, check_route};
use crate::{fail, failure, neighbours, node, watchdog};
use rail_netlink::address::Address;
use rail_netlink::all_of;
use rail_netlink::link::{self, Link};
use rail_netlink::route::{MAIN, Route};
use rail_netlink::rule::Rule;
use rail_netlink::{Error, Socket, address, route, rule};

/// The metric of rail 0's routes in the main table, and the priority of its rule; those of other
/// rails count likewise.
const FIRST_METRIC: u32 = 1000;
/// Distance from the first table at which networks without `rail` look for a free one: behind all
/// rails and the kernel's tables.
const FIRST_FREE: u32 = 900;
/// Most addresses and routes of a rail. Every call reads the records of all pods: a tenant's must
/// not be megabytes.
const MAX_ROUTES: usize = 1000;

/// The rail's state in the pod: CHECK compares with it, DEL undoes it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Rail {
    /// The MTU that was requested, in bytes.
    pub mtu: Option<u32>,
    /// Addresses with their prefixes.
    pub addresses: Vec<IpNet>,
    /// Routes, in all tables.
    pub routes: Vec<Route>,
    /// Rules: unlike routes, they stay when the device goes.
    pub rules: Vec<Rule>,
}

impl Step for Rail {
    fn describe(&self) -> &'static str {
        "its rules in the pod"
    }

    fn undone_at(&self) -> UndoneAt {
        UndoneAt::Pod
    }

    fn phase() -> Phase {
        Phase::AfterLease
    }

    /// Plans the rail's state in the pod, and compares it with the pod.
    fn plan(asked: &Asked<'_>, cx: &mut Cx<'_>) -> Result<Option<Rail>> {
        if asked.device.original.link.is_none() {
            return Ok(None);
        }
        let (conf, leased) = (asked.conf, asked.leased);
        let rails = asked.others.interfaces();
        let slot = match conf.rail {
            Some(rail) if conf.routing == Routing::SourceBased => {
                own_slot(conf, rail, &rails, asked.others, &mut cx.pod()?.socket)?
            }
            rail => rail.map(u32::from),
        };
        if slot.is_none() {
            // Until the routes are there: another network of this pod must not choose the same.
            cx.table_lock = Some(cx.locks.netns(&cx.owner.netns)?);
        }
        let rail = plan(conf, leased, slot, &mut cx.pod()?.socket)?;
        check_routes(&rail, &rails, cx)?;
        Ok(Some(rail))
    }

    fn make(&mut self, asked: &Asked<'_>, made: &mut Made, cx: &mut Cx<'_>) -> Result<()> {
        self.apply(asked.conf, cx)?;
        cx.table_lock = None;
        made.turn = None;
        made.up_since = Instant::now();
        watchdog::step(|| "asking the gateway".to_owned());
        if cx.facts.asks_gateways {
            return Ok(());
        }
        self.announce(asked.leased, cx)
    }

    /// Removes the rules, which stay in the pod when the device leaves, and the addresses where it
    /// does not leave.
    fn undo(&self, cx: &mut Cx<'_>) -> Result<()> {
        let is_pod_the_host = cx.is_pod_the_host()?;
        let link = cx.link_in_pod().filter(|_| is_pod_the_host);
        let Some(pod) = &mut cx.pod else {
            return Ok(());
        };
        let mut done = Vec::new();
        for rule in &self.rules {
            done.push(rule::remove(&mut pod.socket, rule));
        }
        if let Some(link) = link {
            for net in &self.addresses {
                done.push(address::remove(&mut pod.socket, &link, *net));
            }
        }
        all_of(done)
    }

    fn check(&self, previous: &AddResult, cx: &mut Cx<'_>) -> Result<Vec<String>> {
        self.differences(previous, cx)
    }
}

/// Refuses a pod that has an interface with this name or altname.
pub fn refuse_name_in_use(pod: &mut Socket, name: &str) -> Result<()> {
    if let Some(link) = link::by_name(pod, name)? {
        let altname_of = if link.name == name {
            String::new()
        } else {
            format!(" (an altname of {})", link.name)
        };
        fail!(
            InvalidConfig,
            "the pod already has an interface {name}{altname_of}"
        );
    }
    Ok(())
}

/// The number by which table, priority and metric of rail `rail` count in this pod: the rail's own.
/// `None` where another has it: a second NIC of the rail, as in pods with a compute and a storage
/// fabric that both begin at rail 0, or a network before the rails, because plugins such as sbr
/// number tables from where ours begin. `rails` are the interfaces of the pod's other rails.
fn own_slot(
    conf: &NetConf,
    rail: u8,
    rails: &[String],
    others: &dyn Others,
    pod: &mut Socket,
) -> Result<Option<u32>> {
    let slot = u32::from(rail);
    let table = conf.first_table + slot;
    for (index, route) in &route::matching(pod, Some(table), |_| true)? {
        let Some(link) = link::by_index(pod, *index)? else {
            continue;
        };
        let name = &link.name;
        if !rails.contains(name) {
            log::warn!(
                "rail {rail} takes a table from {} on: {name} has the route {route} in {table}",
                conf.first_table + FIRST_FREE
            );
            return Ok(None);
        }
        if others.rail_of(name)? == Some(rail) {
            log::info!("{name} is of rail {rail}, too: each has a table of its own");
            return Ok(None);
        }
        fail!(
            InvalidConfig,
            "table {table} of the pod, which is this rail's, has the route {route} of the rail {name}: does a plugin such as \
             sbr follow rail-cni in the network of {name}? Remove it there: rail-cni makes the tables"
        );
    }
    Ok(Some(slot))
}

/// Plans the rail's state in the pod, by the configuration and the IPAM's result. `own_slot` is the
/// slot of a rail that has its own.
pub fn plan(
    conf: &NetConf,
    leased: &AddResult,
    own_slot: Option<u32>,
    pod: &mut Socket,
) -> Result<Rail> {
    refuse_impossible(conf, leased)?;
    let addresses: Vec<IpNet> = leased.ips.iter().map(|ip| ip.address).collect();
    let slot = match own_slot {
        Some(slot) => slot,
        None if addresses.is_empty() => FIRST_FREE,
        None => free_slot(conf.first_table, pod)?,
    };
    let (table, metric) = (conf.first_table + slot, FIRST_METRIC + slot);
    let (mut routes, mut rules) = (Vec::new(), Vec::new());
    if conf.routing == Routing::SourceBased {
        // Without it, packets that the rule sends to this table would not reach the neighbours on
        // the link.
        let nets = addresses
            .iter()
            .rev()
            .filter(|net| net.prefix_len() < net.max_prefix_len());
        routes.extend(nets.map(|net| Route::new(net.trunc(), table)));
        rules.extend(addresses.iter().map(|net| Rule {
            from: net.addr(),
            table,
            priority: metric,
        }));
    }
    // A route that both the pool and the network give is one route, and the network's takes
    // precedence.
    let is_of_pool_alone = |of_pool: &&cni::Route| {
        let key = |route: &cni::Route| {
            (
                route.dst.trunc(),
                route.table.unwrap_or(0),
                route.priority.unwrap_or(0),
            )
        };
        conf.routes.iter().all(|route| key(route) != key(of_pool))
    };
    for wanted in leased
        .routes
        .iter()
        .filter(is_of_pool_alone)
        .chain(&conf.routes)
    {
        check_route(wanted, "routes of the IPAM")?;
        routes.extend(routes_for(wanted, conf.routing, leased, (table, metric))?);
    }
    Ok(Rail {
        mtu: conf.mtu,
        addresses,
        routes: each_once(routes)?,
        rules,
    })
}

/// Refuses more than a record can keep, and addresses that no rail can have.
fn refuse_impossible(conf: &NetConf, leased: &AddResult) -> Result<()> {
    let all = leased.ips.len() + leased.routes.len() + conf.routes.len();
    if all > MAX_ROUTES {
        fail!(
            InvalidConfig,
            "{all} addresses and routes, and a rail can have {MAX_ROUTES}: combine them"
        );
    }
    for ip in &leased.ips {
        let address = ip.address.addr();
        if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
            fail!(
                InvalidConfig,
                "the IPAM gave {}, which no interface can have",
                ip.address
            );
        }
        if ip.address.prefix_len() == 0 {
            fail!(
                InvalidConfig,
                "the IPAM gave {}: its network would be a default route",
                ip.address
            );
        }
        if ip.gateway == Some(address) {
            fail!(
                InvalidConfig,
                "the IPAM returned {} as both address and gateway",
                ip.address
            );
        }
    }
    Ok(())
}

/// The routes of the kernel that a route of the configuration or the IPAM means: in the main table
/// and the rail's own, or in the one that it names. A default route is in the rail's own table, or
/// left out.
fn routes_for(
    wanted: &cni::Route,
    routing: Routing,
    leased: &AddResult,
    (table, metric): (u32, u32),
) -> Result<Vec<Route>> {
    let is_source_based = routing == Routing::SourceBased;
    let names_table = wanted.table.is_some_and(|table| table != 0);
    let mut addresses = leased.ips.iter().map(|ip| ip.address);
    // Networks written for sriov-cni often have it. The address makes that route, and a second one
    // could not be added.
    let is_own =
        |net: IpNet| net.prefix_len() < net.max_prefix_len() && net.trunc() == wanted.dst.trunc();
    if !names_table && !wanted.is_default() && addresses.clone().any(is_own) {
        log::info!(
            "{} is the rail's own network: its hosts are reached without a gateway",
            wanted.dst
        );
        return Ok(Vec::new());
    }
    let route = resolve(wanted, leased)?;
    // Both tables have equal metrics: where a destination has two routes, their order must not
    // depend on the sender.
    let with_metric = Route {
        metric: if route.metric == 0 {
            metric
        } else {
            route.metric
        },
        ..route.clone()
    };
    let of_rail = Route {
        table,
        ..with_metric.clone()
    };
    if wanted.is_default() {
        let is_of_family = |net: IpNet| net.addr().is_ipv4() == wanted.dst.addr().is_ipv4();
        if is_source_based && !names_table && route.gateway.is_some() && addresses.any(is_of_family)
        {
            log::info!(
                "{} is in table {table} alone, for packets from the rail's address",
                wanted.dst
            );
            return Ok(vec![of_rail]);
        }
        log::warn!(
            "{} is left out: the pod's default route is eth0's",
            wanted.dst
        );
        return Ok(Vec::new());
    }
    Ok(match is_source_based && !leased.ips.is_empty() {
        _ if names_table => vec![route],
        true => vec![of_rail, with_metric],
        false => vec![with_metric],
    })
}

/// Each route once. Two that differ although the kernel would take them for one are refused.
fn each_once(routes: Vec<Route>) -> Result<Vec<Route>> {
    let mut once: Vec<Route> = Vec::new();
    for route in routes {
        let key = |route: &Route| (route.dst, route.table, route.metric);
        match once.iter().find(|other| key(other) == key(&route)) {
            None => once.push(route),
            Some(same) if *same == route => (),
            Some(other) => {
                fail!(
                    InvalidConfig,
                    "{other} and {route}: give one of these routes another priority"
                )
            }
        }
    }
    Ok(once)
}

/// Refuses routes and addresses that take the cluster's networks away from the pod: the pod reaches
/// them by the default route of eth0, and every other route is longer than that, also the one to
/// the prefix of an address. An overlap with another network of the pod is logged, unless that is
/// another rail, which shares the fabric: `rails` are the interfaces of those.
fn check_routes(rail: &Rail, rails: &[String], cx: &mut Cx<'_>) -> Result<()> {
    if rail.routes.is_empty() && cx.node.cluster_networks.is_empty() {
        return Ok(());
    }
    let node = cx.node;
    let pod = &mut cx.pod()?.socket;
    // The rail's own table matters only for packets from the rail's address.
    let ours: Vec<_> = rail
        .routes
        .iter()
        .filter(|route| route.table == MAIN)
        .collect();
    // No other route of the pod changes what is decided here.
    let meets_rail = |other: &Route| {
        let is_met = ours.iter().any(|route| overlap(route.dst, other.dst))
            || rail.addresses.iter().any(|net| overlap(*net, other.dst));
        other.dst.prefix_len() > 0 && !is_of_links(other.dst) && is_met
    };
    let theirs = route::matching(pod, Some(MAIN), meets_rail)?;
    for network in &node.cluster_networks {
        let takes = |ours: IpNet| {
            let is_longer = |theirs: &Route| {
                theirs.dst.contains(network) && theirs.dst.prefix_len() > ours.prefix_len()
            };
            overlap(ours, *network) && !theirs.iter().any(|(_, theirs)| is_longer(theirs))
        };
        let route = ours
            .iter()
            .find(|ours| takes(ours.dst))
            .map(|route| format!("the route {route}"));
        let address = || rail.addresses.iter().find(|net| takes(net.trunc()));
        if let Some(what) = route.or_else(|| Some(format!("the address {}", address()?))) {
            fail!(
                InvalidConfig,
                "{what} would hide {network}, a network of the cluster (clusterNetworks of {}), from the pod, which \
                 needs it for Services or DNS: plan the fabric with other addresses",
                node::path().display()
            );
        }
    }
    for (index, other) in &theirs {
        let Some(route) = ours.iter().find(|ours| overlap(ours.dst, other.dst)) else {
            continue;
        };
        let name = link::by_index(pod, *index)?
            .map(|link| link.name)
            .unwrap_or_default();
        if !rails.contains(&name) {
            log::warn!(
                "the route {route} overlaps {}, which the pod has by {name}",
                other.dst
            );
        }
    }
    let covering = |address: IpAddr| {
        let len = |route: &Route| {
            if route.dst.contains(&address) {
                route.dst.prefix_len()
            } else {
                0
            }
        };
        let theirs = theirs
            .iter()
            .map(|(_, route)| len(route))
            .max()
            .unwrap_or_default();
        ours.iter().find(|ours| len(ours) > theirs)
    };
    warn_of_covered(covering, rails, pod)
}

/// Warns where the pod's answers leave by the rail although they are for its other networks: an
/// address of its own there, as a /32 of Calico, and the address by which this node asks the pod,
/// as the kubelet's probes do.
fn warn_of_covered<'a>(
    covering: impl Fn(IpAddr) -> Option<&'a &'a Route>,
    rails: &[String],
    pod: &mut Socket,
) -> Result<()> {
    // A pod has one or two besides those of its rails; whatever made more is not worth the time of
    // its start.
    const ASKED: usize = 64;
    let all = address::in_namespace(pod)?.into_iter();
    let all = all.filter(|(_, one)| !one.net.addr().is_loopback() && !one.is_link_local());
    for (index, one) in all.take(ASKED) {
        let address = one.net.addr();
        let name = link::by_index(pod, index)?
            .map(|link| link.name)
            .unwrap_or_default();
        if rails.contains(&name) {
            continue;
        }
        if let Some(route) = covering(address) {
            log::warn!(
                "the route {route} covers {address} of {name}: the pod reaches its peers there by the rail"
            );
        }
        if let Some((source, route)) =
            asked_from(address).and_then(|source| Some((source, covering(source)?)))
        {
            log::warn!(
                "the route {route} covers {source}, from which this node asks {address} of {name}, as the kubelet's probes do: \
                 the answers leave by the rail"
            );
        }
    }
    Ok(())
}

/// The address that this node has towards `address`, as the kernel chooses it. Nothing is sent.
fn asked_from(address: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if address.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((address, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The first number whose table, rule priority and metric are free in the pod.
fn free_slot(first_table: u32, pod: &mut Socket) -> Result<u32> {
    const SLOTS: Range<u32> = FIRST_FREE..FIRST_FREE + 10_000;
    let slots = |table: u32, priority: u32| {
        let of_table = table.checked_sub(first_table);
        let of_priority = priority.checked_sub(FIRST_METRIC);
        [of_table, of_priority]
            .into_iter()
            .flatten()
            .filter(|slot| SLOTS.contains(slot))
    };
    let mut used = BTreeSet::new();
    route::each(pod, |route| used.extend(slots(route.table, route.metric)))?;
    rule::each(pod, |table, priority| used.extend(slots(table, priority)))?;
    let free = SLOTS.into_iter().find(|slot| !used.contains(slot));
    free.ok_or_else(|| failure!(Internal, "the pod has no free routing table"))
}

/// A route with its next hop: the one that is configured, or else the gateway of the address.
fn resolve(wanted: &cni::Route, leased: &AddResult) -> Result<Route> {
    let is_v4 = wanted.dst.addr().is_ipv4();
    let mut ips = leased
        .ips
        .iter()
        .filter(|ip| ip.address.addr().is_ipv4() == is_v4);
    let gateway = wanted
        .gw
        .or_else(|| ips.find_map(|ip| ip.gateway))
        .filter(|gw| !gw.is_unspecified());
    if let Some(gateway) =
        gateway.filter(|gateway| leased.ips.iter().any(|ip| ip.address.addr() == *gateway))
    {
        fail!(
            InvalidConfig,
            "the route to {} leads to the pod's own address {gateway}",
            wanted.dst
        );
    }
    // With host addresses (/32, /128) the gateway is on the link although no prefix contains it. An
    // IPv6 gateway of an IPv4 route can even be the only IPv6 address of the rail.
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
        ..Route::new(
            wanted.dst.trunc(),
            wanted.table.filter(|table| *table != 0).unwrap_or(MAIN),
        )
    })
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Sets the sysctls of the interface. Only inside the pod's namespace, see
/// [`crate::netns::Netns::run`].
fn set_sysctls(conf: &NetConf, rail: &Rail, ifname: &str) -> Result<()> {
    let has_v6 = rail.addresses.iter().any(|net| net.addr().is_ipv6());
    let is_via_v6 = rail
        .routes
        .iter()
        .filter_map(|route| route.gateway)
        .any(|gateway| gateway.is_ipv6());
    let usual = [
        // The kernel announces the address when the link comes up with its carrier; see
        // `announce` for later ones.
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
    // Such a rail asks for its gateway from the link-local address, which otherwise is not used for
    // one to two seconds, while the kernel looks for a duplicate.
    let via_v6_only = [("ipv6", "accept_dad", "0")];
    let v6_only = v6_only.iter().filter(|_| has_v6 || is_via_v6);
    let via_v6_only = via_v6_only.iter().filter(|_| is_via_v6 && !has_v6);
    for (family, key, value) in usual.iter().chain(v6_only).chain(via_v6_only) {
        let path = Path::new("/proc/sys/net")
            .join(family)
            .join("conf")
            .join(ifname)
            .join(key);
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
            failure!(
                InvalidConfig,
                "sysctl: cannot set {} to {value:?}: {error}",
                path.display()
            )
        })?;
    }
    Ok(())
}

impl Rail {
    /// Makes the device in the pod a rail: sysctls and addresses, up, routes and rules. In this
    /// order each step finds what it needs, and the kernel announces the addresses when the link
    /// comes up.
    fn apply(&self, conf: &NetConf, cx: &mut Cx<'_>) -> Result<()> {
        // A program in user space has the device, and will own the address.
        let Some(link) = cx.link_in_pod() else {
            return Ok(());
        };
        // A VF may not be able to take a MAC that its PF prescribes until it comes up.
        let prescribed = conf.mac.as_deref().filter(|_| cx.facts.is_mac_by_pf);
        let (ifname, wanted) = (cx.owner.ifname.clone(), cx.owner.inside.mac.clone());
        let pod = cx.pod()?;
        let refused = prescribed.and_then(|mac| link::set_mac(&mut pod.socket, &link, mac).err());
        pod.netns.run(|| set_sysctls(conf, self, &ifname))?;
        let socket = &mut pod.socket;
        for net in &self.addresses {
            address::add(socket, &link, *net)?;
        }
        link::set_up(socket, &link)?;
        for route in &self.routes {
            route::add(socket, link.index, route).map_err(|error| explain(error, route))?;
        }
        for rule in &self.rules {
            rule::add(socket, rule)?;
        }
        if prescribed.is_none() {
            return Ok(());
        }
        let now = link::by_index(socket, link.index)?.unwrap_or(link);
        let has_it = now.mac == wanted;
        cx.place = Place::Pod(now);
        match refused {
            Some(error) if !has_it => Err(error),
            _ => Ok(()),
        }
    }

    /// Tells the next hops which MAC has the address now, without waiting for an answer.
    fn announce(&self, leased: &AddResult, cx: &mut Cx<'_>) -> Result<()> {
        let Some(link) = cx.link_in_pod() else {
            return Ok(());
        };
        let of_addresses = leased.ips.iter().filter_map(|ip| ip.gateway);
        let gateways = neighbours::sorted(of_addresses.chain(self.next_hops()));
        let pod = cx.pod()?;
        neighbours::tell(&gateways, &self.addresses, &link, pod);
        neighbours::announce_ipv4(&link, &self.addresses, &gateways, &mut pod.socket);
        Ok(())
    }

    /// The next hops of the routes.
    pub fn next_hops(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.routes.iter().filter_map(|route| route.gateway)
    }
}

/// A line for a link that has a master.
fn name_master(link: &Link, pod: &mut Socket) -> Result<Option<String>> {
    let Some(index) = link.master.and_then(link::Index::new) else {
        return Ok(None);
    };
    let master = link::by_index(pod, index)?;
    let name = master.map(|master| master.name).unwrap_or_default();
    Ok(Some(format!(
        "{name} is its master: a plugin such as vrf behind rail-cni takes its routes"
    )))
}

/// Names the part of the configuration or of the IPAM's result that the kernel refused.
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
        return failure!(
            InvalidConfig,
            "{error:#}: is the gateway on the rail's link?"
        );
    }
    error
}

impl Rail {
    /// Its routes as the result of ADD has them: those of its own table are the rail's affair.
    pub fn in_result(&self) -> Vec<cni::Route> {
        let is_own_table = |route: &Route| self.rules.iter().any(|rule| rule.table == route.table);
        let others = self.routes.iter().filter(|route| !is_own_table(route));
        let in_result = others.map(|route| cni::Route {
            dst: route.dst,
            gw: route.gateway,
            mtu: route.mtu,
            advmss: route.advmss,
            priority: Some(route.metric).filter(|metric| *metric != 0),
            table: Some(route.table).filter(|table| *table != MAIN),
            scope: route.scope,
        });
        in_result.collect()
    }

    /// Compares the pod with what ADD made. One line per difference.
    fn differences(&self, previous: &AddResult, cx: &mut Cx<'_>) -> Result<Vec<String>> {
        let Some(link) = cx.link_in_pod() else {
            return Ok(Vec::new());
        };
        let mut differences = self.of_link(&link, previous, cx);
        let pod = &mut cx.pod()?.socket;
        differences.extend(self.address_differences(&link, pod)?);
        let routes = route::through(pod, link.index, |route| self.concerns(route))?;
        let missing_routes = self.missing_routes(&routes);
        if !missing_routes.is_empty() {
            differences.extend(missing_routes);
            differences.extend(name_master(&link, pod)?);
        }
        // Multus adds a default route that the pod requests, and prevResult has it then.
        let is_default_requested = previous.routes.iter().any(cni::Route::is_default);
        let has_default = routes
            .iter()
            .any(|route| route.dst.prefix_len() == 0 && route.table == MAIN);
        if has_default && !is_default_requested {
            differences.push("it carries a default route".to_owned());
        }
        if !self.rules.is_empty() {
            let rules = rule::present(pod, &self.rules)?;
            for rule in &self.rules {
                if !rules.contains(rule) {
                    differences.push(format!("the rule {rule} is gone"));
                }
            }
        }
        Ok(differences)
    }

    /// Addresses that are gone, or in use elsewhere.
    fn address_differences(&self, link: &Link, pod: &mut Socket) -> Result<Vec<String>> {
        let is_of_rail = |address: &Address| self.addresses.contains(&address.net);
        let addresses = address::matching(pod, link.index, is_of_rail)?;
        let mut differences = Vec::new();
        for net in &self.addresses {
            match addresses.iter().find(|address| address.net == *net) {
                None => differences.push(format!("the address {net} is gone")),
                Some(address) if address.duplicate => {
                    differences.push(format!("the address {net} is in use elsewhere"))
                }
                Some(_) => (),
            }
        }
        Ok(differences)
    }

    /// Whether CHECK compares with this route of the rail's interface. The pod may have a million
    /// others.
    fn concerns(&self, route: &Route) -> bool {
        let is_default = route.dst.prefix_len() == 0 && route.table == MAIN;
        let mut wanted = self.routes.iter();
        is_default || wanted.any(|wanted| wanted.is_same_path(route) || wanted.is_moved_to(route))
    }

    /// Routes of the rail that are not among those of its interface.
    fn missing_routes(&self, routes: &[Route]) -> Vec<String> {
        let is_own = |route: &Route| self.routes.iter().any(|own| own.is_same_path(route));
        let mut missing = Vec::new();
        for wanted in &self.routes {
            // sbr behind this plugin moves routes to a table of its own.
            let is_there = routes.iter().any(|route| {
                wanted.is_same_path(route) || (wanted.is_moved_to(route) && !is_own(route))
            });
            if is_there {
                continue;
            }
            // With another metric it would be another route.
            let metric = match wanted.metric {
                0 => String::new(),
                metric => format!(" metric {metric}"),
            };
            missing.push(format!("the route {wanted}{metric} is gone"));
        }
        missing
    }

    fn of_link(&self, link: &Link, previous: &AddResult, cx: &Cx<'_>) -> Vec<String> {
        let mut found = Vec::new();
        let owner = &cx.owner;
        if link.name != owner.ifname {
            found.push(format!("its name is {}", link.name));
        }
        if !link.up {
            found.push("it is down".to_owned());
        }
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu != link.mtu) {
            found.push(format!("its MTU is {}, not {mtu}", link.mtu));
        }
        // A later plugin of the chain may have set another MAC, and said so.
        let said = previous
            .interfaces
            .iter()
            .filter(|interface| interface.name == owner.ifname);
        let mut macs = said
            .map(|interface| interface.mac.as_str())
            .chain([owner.inside.mac.as_str()]);
        if !macs.any(|mac| link::is_same_mac(&mac.to_ascii_lowercase(), &link.mac)) {
            found.push(format!("its MAC is {}, not {}", link.mac, owner.inside.mac));
        }
        found
    }
}
