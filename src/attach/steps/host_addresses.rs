//! `"source": "host"`: the host has a rail's addresses on the device, by netplan, DHCP or a router.
//! They go into the pod with it, and are restored when it is on the host again: addresses, routes
//! and permanent neighbours. Rules stay on the host all the time, because they do not depend on the
//! device.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::links;
use crate::attach::context::Cx;
use crate::attach::step::{Asked, Step, UndoneAt};
use crate::cluster_networks::is_of_links;
use crate::cni::{self, AddResult, Ip};
use crate::{fail, failure, files};
use rail_netlink::address::Address;
use rail_netlink::all_of;
use rail_netlink::link::Index;
use rail_netlink::link::Link;
use rail_netlink::route::{self, MAIN, Route};
use rail_netlink::saved::{self, Saved};
use rail_netlink::{Socket, rule};

/// The kernel's own tables besides `main`: `default` and `local`.
const OF_THE_KERNEL: [u32; 2] = [253, 255];
/// A prefix up to this length is a default route: two routes of length 1 are one as well.
const DEFAULT_LEN: u8 = 1;
/// The host's addresses, routes and neighbours on the device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostAddresses {
    addresses: Vec<Saved>,
    routes: Vec<Saved>,
    neighbours: Vec<Saved>,
    /// Time of the copy, in milliseconds since boot: lifetimes count from then on.
    at: u64,
}

impl Step for HostAddresses {
    fn describe(&self) -> &'static str {
        "the host's addresses on its device"
    }

    fn undone_at(&self) -> UndoneAt {
        UndoneAt::Device
    }

    /// Reads the host's addresses on the device. Empty where an earlier attachment has not given
    /// the host its addresses back: those of its record are inherited.
    fn plan(asked: &Asked<'_>, cx: &mut Cx<'_>) -> Result<Option<HostAddresses>> {
        if !asked.conf.is_of_host {
            return Ok(None);
        }
        let what = asked.device.describe();
        let Some(link) = asked.device.original.link.clone() else {
            fail!(
                InvalidConfig,
                "ipam.source: {what} has no netdev, so the host has no address on it"
            );
        };
        if cx.is_pod_the_host()? {
            fail!(
                InvalidConfig,
                "ipam.source: the pod has the host's network namespace"
            );
        }
        if asked.inherits_host_addresses && !links::has_address(&link, &mut cx.host)? {
            return Ok(Some(HostAddresses::default()));
        }
        HostAddresses::take(&what, &link, &mut cx.host).map(Some)
    }

    /// Restores addresses, then routes and neighbours, which need them, on the device, which is on
    /// the host and as it was. What the host has by now stays.
    fn undo(&self, cx: &mut Cx<'_>) -> Result<()> {
        match cx.at_home() {
            Some(link) => self.restore(&link, &mut cx.host),
            None => Ok(()),
        }
    }
}

impl HostAddresses {
    /// Reads what the host has on `link`. Fails if the host would lose more than the rail with it.
    pub fn take(what: &str, link: &Link, host: &mut Socket) -> Result<HostAddresses> {
        let needed = |why: String| failure!(InvalidConfig, "{what} is in use by the host: {why}");
        let saved = HostAddresses {
            addresses: saved::addresses(host, link.index)?,
            routes: saved::routes(host, link.index)?,
            neighbours: saved::neighbours(host, link.index)?,
            at: u64::try_from(files::since_boot().as_millis()).unwrap_or(u64::MAX),
        };
        let addresses: Vec<IpAddr> = saved.of_rail().map(|net| net.addr()).collect();
        if addresses.is_empty() {
            return Err(failure!(
                InvalidConfig,
                "ipam.source: {what} has no address on the host: configure it there, or name a pool"
            ));
        }
        if let Some(route) = saved.default_of_host(link, host)? {
            return Err(needed(format!(
                "it carries the default route {route}: only a rail can go into a pod"
            )));
        }
        if let Some(route) = saved.routes.iter().find(|route| route.is_by_nexthops()) {
            let route = route.describe();
            return Err(needed(format!(
                "the route {route} has several next hops, or a nexthop object"
            )));
        }
        let inverted = rule::inverted(host)?;
        let is_own = |table: u32| table != MAIN && !OF_THE_KERNEL.contains(&table);
        if let Some(route) = saved
            .routes
            .iter()
            .find(|route| is_own(route.table()) && inverted.contains(&route.table()))
        {
            let table = route.table();
            return Err(needed(format!(
                "a rule with \"not\" leads to its table {table}"
            )));
        }
        if let Some(route) = saved::route_from(host, link.index, &addresses)? {
            return Err(needed(format!(
                "the route {route}, by another link, has its address as source"
            )));
        }
        if let Some(route) = saved
            .routes
            .iter()
            .find(|route| route.is_unicast() && route.route().is_none())
        {
            return Err(needed(format!(
                "its route {} is of a kind that is not known",
                route.describe()
            )));
        }
        Ok(saved)
    }

    /// A default route that the host needs. It does not need one in a table to which only rules
    /// from the device's own addresses lead, as hosts with several uplinks have it; nor one that a
    /// router advertised, if another link has one.
    fn default_of_host(&self, link: &Link, host: &mut Socket) -> Result<Option<String>> {
        let mut defaults: Vec<&Saved> = self
            .routes
            .iter()
            .filter(|route| route.prefix_len() <= DEFAULT_LEN)
            .collect();
        if defaults.is_empty() {
            return Ok(None);
        }
        let nets: Vec<IpNet> = self.of_rail().collect();
        let is_own = |source: &Option<IpNet>| {
            source.is_some_and(|from| nets.iter().any(|net| net.contains(&from)))
        };
        let rules = rule::sources(host)?;
        let all = route::matching(host, Some(MAIN), |route| route.dst.prefix_len() == 0)?;
        defaults.retain(|default| {
            let sources = || rules.iter().filter(|(table, _)| *table == default.table());
            let is_of_address =
                sources().count() > 0 && sources().all(|(_, source)| is_own(source));
            let is_v4 = default
                .route()
                .is_none_or(|route| route.dst.addr().is_ipv4());
            let is_other = |(index, route): &(Index, Route)| {
                *index != link.index && route.dst.addr().is_ipv4() == is_v4
            };
            let is_kept_up = default.is_by_router() && all.iter().any(is_other);
            !(is_of_address || is_kept_up)
        });
        Ok(defaults.first().map(|default| default.describe()))
    }

    /// The addresses of the rail that are still valid, without link-local ones, and those that
    /// another host has.
    fn of_rail(&self) -> impl Iterator<Item = IpNet> {
        let usable = |address: &Address| !address.is_link_local() && !address.duplicate;
        let age = files::since_boot().saturating_sub(Duration::from_millis(self.at));
        let valid = self.addresses.iter().filter(move |one| !one.is_over(age));
        valid
            .filter_map(Saved::address)
            .filter(usable)
            .map(|address| address.net)
    }

    /// Whether one of the rail's addresses has a lifetime, as DHCP and routers give it.
    pub fn is_dynamic(&self) -> bool {
        let is_link_local =
            |one: &Saved| one.address().is_none_or(|address| address.is_link_local());
        self.addresses
            .iter()
            .any(|one| one.is_dynamic() && !is_link_local(one))
    }

    /// The equivalent of an IPAM plugin's answer: the addresses with their gateways, and the routes
    /// of all tables, of which the rail makes its own.
    pub fn lease(&self) -> AddResult {
        let mut routes: Vec<(u32, Route)> = Vec::new();
        // A router on the rail gives the host a default route, and no pod.
        let is_for_pods =
            |one: &&Saved| one.is_unicast() && !(one.is_by_router() && one.prefix_len() == 0);
        for one in self.routes.iter().filter(is_for_pods) {
            routes.extend(one.route().map(|route| (one.metric(), route)));
        }
        // Of two routes to one destination, the host uses the first.
        routes.sort_by_key(|(metric, _)| *metric);
        let nets: Vec<IpNet> = self.of_rail().collect();
        let mut leased = AddResult::default();
        for (_, route) in &routes {
            let is_of_address =
                route.gateway.is_none() && nets.iter().any(|net| net.trunc() == route.dst);
            let is_new = leased.routes.iter().all(|other| other.dst != route.dst);
            if is_new && !is_of_address && !is_of_links(route.dst) {
                let Route {
                    dst,
                    gateway,
                    mtu,
                    advmss,
                    ..
                } = *route;
                // Without a next hop it would get the gateway of the rail.
                let on_link = if dst.addr().is_ipv4() {
                    [0; 4].into()
                } else {
                    [0_u16; 8].into()
                };
                let gw = Some(gateway.unwrap_or(on_link));
                leased.routes.push(cni::Route {
                    gw,
                    mtu,
                    advmss,
                    ..cni::Route::to(dst)
                });
            }
        }
        let gateway_of = |net: &IpNet| {
            let is_its = |gw: &IpAddr| {
                gw.is_ipv4() == net.addr().is_ipv4()
                    && (net.contains(gw) || net.prefix_len() == net.max_prefix_len())
            };
            routes
                .iter()
                .filter_map(|(_, route)| route.gateway)
                .find(is_its)
                .or_else(|| other_end(net))
        };
        leased.ips = nets
            .iter()
            .map(|net| Ip {
                address: *net,
                gateway: gateway_of(net),
                interface: None,
            })
            .collect();
        leased
    }

    /// Sets the permanent neighbours on the device in the pod. Without one, the pod asks for it.
    pub fn set_neighbours(&self, pod: &mut Socket, link: &Link) {
        for error in self
            .neighbours
            .iter()
            .filter_map(|one| one.set_neighbour(pod, link).err())
        {
            log::warn!("{error:#}");
        }
    }

    fn restore(&self, link: &Link, host: &mut Socket) -> Result<()> {
        let age = files::since_boot().saturating_sub(Duration::from_millis(self.at));
        let (mut done, mut is_expired) = (Vec::new(), false);
        for one in &self.addresses {
            match one.set_address(host, link, age) {
                Ok(true) => (),
                Ok(false) => {
                    let net = one
                        .address()
                        .map_or_else(String::new, |address| address.net.to_string());
                    log::warn!(
                        "{} does not get {net} back: its lifetime has expired",
                        link.name
                    );
                    is_expired = true;
                }
                Err(error) => done.push(Err(error)),
            }
        }
        let (on_link, others): (Vec<_>, Vec<_>) =
            self.routes.iter().partition(|route| route.is_on_link());
        // Of a link that is down there were none.
        for one in on_link.into_iter().chain(others) {
            match one.set_route(host, link, age) {
                // Its gateway may have been on the link by that address.
                Err(error) if is_expired => log::warn!("{error:#}"),
                set => done.push(set),
            }
        }
        done.extend(
            self.neighbours
                .iter()
                .map(|one| one.set_neighbour(host, link)),
        );
        all_of(done)
    }
}

/// The other address of a /31 or /127, which has no more than two.
fn other_end(net: &IpNet) -> Option<IpAddr> {
    if net.prefix_len() + 1 != net.max_prefix_len() {
        return None;
    }
    net.hosts().find(|address| *address != net.addr())
}
