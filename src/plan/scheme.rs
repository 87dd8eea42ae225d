//! NVIDIA's Spectrum-X address scheme: from a place in the fabric to a prefix.
//!
//! The formulas are those of NVIDIA's k8s-launch-kit (`pkg/networkoperatorplugin/spectrumx/addressing.go`); all
//! numbers count from 0.
//!
//! | tiers, mode | first octet | second | third | rail | all rails |
//! | --- | --- | --- | --- | --- | --- |
//! | 2, none | 172 | `16 \| rail<<1` | su | /15 | /12 |
//! | 2, swplb or hwplb | 172 | `16 \| plane<<2 \| rail>>2` | `(rail&3)<<6 \| su` | /18 | /14, per plane |
//! | 3, none | 10 | `rail<<5 \| pod` | su | /11 | /8 |
//! | 3, swplb or hwplb | 10 | `plane<<6 \| rail<<3 \| pod>>2` | `(pod&3)<<6 \| su` | /13 | /10, per plane |
//!
//! The last octet is `host<<1` for the even side of the link. IPv6 is `fd02:00PP:RRDD:SSHH::/64` with plane, rail,
//! pod, SU and host; /40 is a rail, /32 a plane, /24 all planes.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Deserialize;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::{Cable, Plan, Pool};
use crate::cni::is_netdev_name;
use crate::pool::cidrpool::{IndexRange, RouteTo, Row, Spec};
use crate::pool::is_name;

/// Faults in detail; a pattern or an attribute that is wrong everywhere has millions.
pub(super) const MAX_FAULTS: usize = 1000;

/// Tiers of switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
pub enum Tiers {
    /// Leaves and spines.
    #[serde(rename = "2")]
    #[value(name = "2")]
    Two,
    /// Leaves, spines, and a core between pods.
    #[serde(rename = "3")]
    #[value(name = "3")]
    Three,
}

/// How traffic is spread over planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// One plane.
    None,
    /// By software: each plane is a network of its own, with a pool per rail and plane.
    Swplb,
    /// By the NIC: one pool per rail, in the address layout of planes.
    Hwplb,
}

/// Which addresses links have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// A /31 each.
    Ipv4,
    /// A /64 each.
    Ipv6,
    /// Both; the IPv6 pools have names that end in `-v6`.
    Dual,
}

/// Which side of a link is the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Polarity {
    /// NVIDIA: the leaf has the odd IPv4 address, ::2 in IPv6.
    LeafOdd,
    /// Others (Juniper, AMD): the leaf has the even IPv4 address; in IPv6 ::1, the host ::2.
    LeafEven,
}

/// A scheme with its choices made.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// Of switches.
    pub tiers: Tiers,
    /// Of planes.
    pub mode: Mode,
    /// Of addresses.
    pub family: Family,
    /// Of IPv4 addresses.
    pub first_octet: u8,
    /// Of links.
    pub polarity: Polarity,
}

/// A link between a host and its leaf, by its place in the fabric.
#[derive(Clone, Debug)]
pub struct HostLink {
    /// The node, by the name that Kubernetes knows it by.
    pub node_name: String,
    /// 0 to 3.
    pub plane: u64,
    /// 0 to 7.
    pub rail: u64,
    /// 0 to 31; 0 with two tiers.
    pub pod: u64,
    /// 0 to 63, or 255.
    pub su: u64,
    /// Index of the host in its SU, 0 to 127.
    pub host: u64,
    /// The ends of it.
    pub cable: Cable,
}

/// The last value of each field that an address has room for.
#[derive(Clone, Copy, Debug)]
pub struct Last {
    /// Of rails.
    pub rail: u64,
    /// Of hosts in an SU.
    pub host: u64,
    /// Of SUs in a pod.
    pub su: u64,
    /// Of pods.
    pub pod: u64,
    /// Of planes.
    pub plane: u64,
}

/// A pool's links: of one rail, with `swplb` of one plane, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    rail: u8,
    plane: u8,
    is_v6: bool,
}

#[derive(Default)]
struct Rows {
    /// By prefix, which is the order of the rows.
    by_prefix: BTreeMap<IpNet, (String, Vec<Cable>, usize)>,
    of_node: HashMap<String, IpNet>,
}

impl Scheme {
    /// NVIDIA's first octet.
    pub fn usual_first_octet(tiers: Tiers) -> u8 {
        match tiers {
            Tiers::Two => 172,
            Tiers::Three => 10,
        }
    }

    /// The plan of these links. Faults are told with the place of their link, which `place` knows by its number.
    pub fn plan(
        &self,
        links: impl IntoIterator<Item = HostLink>,
        place: &dyn Fn(usize) -> String,
    ) -> Result<Plan, Vec<String>> {
        let mut faults = Vec::new();
        let mut pools: BTreeMap<Key, Rows> = BTreeMap::new();
        let mut several_planes = false;
        let (mut ports, mut interfaces) = (HashMap::new(), HashMap::new());
        for (number, link) in links.into_iter().enumerate() {
            if faults.len() >= MAX_FAULTS {
                faults.push(format!("{}: what follows was not looked at", place(number)));
                break;
            }
            if let Err(more) = self.check(&link) {
                faults.extend(more.iter().map(|fault| format!("{}: {fault}", place(number))));
                continue;
            }
            several_planes |= link.plane > 0;
            let Cable { interface, leaf, port, .. } = &link.cable;
            if let (Some(leaf), Some(port)) = (leaf, port)
                && let Some(first) = ports.insert(hash(leaf, port), number)
            {
                let (at, first) = (place(number), place(first));
                faults.push(format!(
                    "{at}: port {port} of {leaf} has another cable ({first}): correct the port of one"
                ));
            }
            let on = self.key(&link, false);
            if let Some(interface) = interface
                && let Some((first, other)) =
                    interfaces.insert(hash(&link.node_name, interface), (number, on))
                && other != on
            {
                let (at, first, node_name) = (place(number), place(first), &link.node_name);
                faults.push(format!(
                    "{at}: interface {interface} of node {node_name} is also on rail {} ({first})",
                    other.rail
                ));
            }
            let families: &[bool] = match self.family {
                Family::Ipv4 => &[false],
                Family::Ipv6 => &[true],
                Family::Dual => &[false, true],
            };
            for is_v6 in families {
                let key = self.key(&link, *is_v6);
                let prefix = if *is_v6 { self.prefix_v6(&link) } else { self.prefix_v4(&link) };
                let rows = pools.entry(key).or_default();
                let name = &link.node_name;
                match rows.of_node.insert(name.clone(), prefix) {
                    Some(other) if other != prefix => {
                        faults.push(format!(
                            "{}: node {name} has {other} on rail {} by another link, and {prefix} by this one",
                            place(number),
                            key.rail
                        ));
                        continue;
                    }
                    _ => (),
                }
                let entry = rows.by_prefix.entry(prefix);
                let (node, cables, first) = entry.or_insert_with(|| (name.clone(), Vec::new(), number));
                if node != name {
                    let (at, first) = (place(number), place(*first));
                    faults.push(format!(
                        "{at}: node {name} is in the place of node {node} ({first}): both would have {prefix}"
                    ));
                    continue;
                }
                if link.cable != Cable::default() && !cables.contains(&link.cable) {
                    // A row has one, as a rule, and a Vec would take room for four.
                    cables.reserve_exact(1);
                    cables.push(link.cable.clone());
                }
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let pools = pools.into_iter().map(|(key, rows)| self.pool(key, rows, several_planes)).collect();
        Ok(Plan { pools, ..Plan::default() })
    }

    /// What an address of this scheme has room for.
    pub fn last(&self) -> Last {
        let is_v4 = self.family != Family::Ipv6;
        let su = match (is_v4, self.tiers, self.mode) {
            (true, Tiers::Three, Mode::None) | (false, ..) => 255,
            (true, ..) => 63,
        };
        let pod = match (self.tiers, is_v4) {
            (Tiers::Two, _) => 0,
            (Tiers::Three, true) => 31,
            (Tiers::Three, false) => 255,
        };
        Last { rail: 7, host: if is_v4 { 127 } else { 255 }, su, pod, plane: 3 }
    }

    /// Why `value` of a field that counts from 0 is too much.
    pub fn outside(&self, field: &str, value: u64, last: u64) -> String {
        match (field, self.tiers) {
            ("pod", Tiers::Two) => {
                format!("{value} is not 0: two tiers of switches have one pod; several take three (tiers 3)")
            }
            _ => format!("{value} is not 0 to {last}, which these tiers, mode and family have room for"),
        }
    }

    fn check(&self, link: &HostLink) -> Result<(), Vec<String>> {
        let last = self.last();
        let fields = [
            ("rail", link.rail, last.rail),
            ("host", link.host, last.host),
            ("su", link.su, last.su),
            ("pod", link.pod, last.pod),
            ("plane", link.plane, last.plane),
        ];
        let mut faults: Vec<_> = fields
            .into_iter()
            .filter(|(_, value, last)| value > last)
            .map(|(field, value, last)| format!("{field} {}", self.outside(field, value, last)))
            .collect();
        if !is_name(&link.node_name) {
            faults.push(format!("{:?} is no name of a node", link.node_name));
        }
        faults.extend(link.cable.faults().into_iter().flatten());
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    fn key(&self, link: &HostLink, is_v6: bool) -> Key {
        let plane = if self.mode == Mode::Swplb { byte(link.plane) } else { 0 };
        Key { rail: byte(link.rail), plane, is_v6 }
    }

    /// By the table above; [`Scheme::check`] has seen the fields.
    fn prefix_v4(&self, link: &HostLink) -> IpNet {
        let Key { rail, plane, .. } = self.key(link, false);
        let (pod, su) = (byte(link.pod), byte(link.su));
        let (second, third) = match (self.tiers, self.mode) {
            (Tiers::Two, Mode::None) => (16 | rail << 1, su),
            (Tiers::Two, _) => (16 | plane << 2 | rail >> 2, (rail & 3) << 6 | su),
            (Tiers::Three, Mode::None) => (rail << 5 | pod, su),
            (Tiers::Three, _) => (plane << 6 | rail << 3 | pod >> 2, (pod & 3) << 6 | su),
        };
        let even = Ipv4Addr::new(self.first_octet, second, third, byte(link.host) << 1);
        IpNet::V4(Ipv4Net::new_assert(even, 31))
    }

    fn prefix_v6(&self, link: &HostLink) -> IpNet {
        let Key { rail, plane, .. } = self.key(link, true);
        let pair = |high: u8, low: u8| u16::from(high) << 8 | u16::from(low);
        let (third, fourth) = (pair(rail, byte(link.pod)), pair(byte(link.su), byte(link.host)));
        let net = Ipv6Addr::new(0xfd02, u16::from(plane), third, fourth, 0, 0, 0, 0);
        IpNet::V6(Ipv6Net::new_assert(net, 64))
    }

    /// Prefix lengths of a rail and of what its hosts route to it.
    fn lengths(&self, is_v6: bool, several_planes: bool) -> (u8, u8) {
        match (is_v6, self.tiers, self.mode) {
            (true, ..) => (40, if several_planes { 24 } else { 32 }),
            (false, Tiers::Two, Mode::None) => (15, 12),
            (false, Tiers::Two, _) => (18, 14),
            (false, Tiers::Three, Mode::None) => (11, 8),
            (false, Tiers::Three, _) => (13, 10),
        }
    }

    fn pool(&self, key: Key, rows: Rows, several_planes: bool) -> Pool {
        let Key { rail, plane, is_v6 } = key;
        // Where the two sides are, counted from the first address of the prefix.
        let leaf = match (self.polarity, is_v6) {
            (Polarity::LeafOdd, false) | (Polarity::LeafEven, true) => 1,
            (Polarity::LeafOdd, true) => 2,
            (Polarity::LeafEven, false) => 0,
        };
        let (rail_length, all_length) = self.lengths(is_v6, several_planes);
        let first = rows.by_prefix.keys().next().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpNet::network);
        let net = |length| IpNet::new_assert(first, length).trunc();
        let routes = if is_v6 { vec![net(all_length)] } else { vec![net(rail_length), net(all_length)] };
        let count = rows.by_prefix.len();
        let (mut static_allocations, mut cables) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (prefix, (node_name, of_row, _)) in rows.by_prefix {
            let gateway = nth(prefix, leaf).to_string();
            static_allocations.push(Row { node_name, gateway, prefix: prefix.to_string() });
            cables.push(of_row);
        }
        let mut name = format!("rail-{rail}");
        if self.mode == Mode::Swplb {
            name.push_str(&format!("-plane-{plane}"));
        }
        if is_v6 && self.family == Family::Dual {
            name.push_str("-v6");
        }
        Pool {
            name,
            rail: Some(rail),
            plane: (self.mode == Mode::Swplb).then_some(plane),
            namespace: None,
            spec: Spec {
                cidr: net(rail_length).to_string(),
                per_node_network_prefix: if is_v6 { 64 } else { 31 },
                // nv-ipam wants an index beside routes; the rows say the gateway. On a /31 the index is the host's
                // side and the leaf's side is excluded: a node that no row names then gets nothing, where it would
                // otherwise get an address with both sides swapped.
                gateway_index: Some(if is_v6 { leaf } else { 1 - leaf }),
                static_allocations,
                routes: routes.into_iter().map(|dst| RouteTo { dst: dst.to_string() }).collect(),
                exclusions: Vec::new(),
                per_node_exclusions: vec![IndexRange { start_index: leaf, end_index: leaf }],
                default_gateway: false,
                node_selector: None,
            },
            cables,
        }
    }
}

impl Cable {
    /// What is wrong with the names of interface, leaf and port: they become words of commands and of files, and
    /// need no quotes in any.
    pub fn faults(&self) -> [Option<String>; 3] {
        let Cable { interface, leaf, port, .. } = self;
        let is_port = |name: &str| {
            name.starts_with(|first: char| first.is_ascii_alphanumeric())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-/:".contains(&byte))
        };
        let wrong = |name: &Option<String>, is_good: &dyn Fn(&str) -> bool, what: &str| {
            name.as_ref().filter(|name| !is_good(name)).map(|name| format!("{name:?} is no name of {what}"))
        };
        [
            wrong(interface, &is_netdev_name, "a netdev"),
            wrong(leaf, &is_name, "a leaf"),
            wrong(port, &is_port, "a switch port"),
        ]
    }
}

/// Where the formulas put a prefix: rail, plane and the prefix of the rail, when the hosts' route to all rails has
/// this length. It tells tiers and planes; the rest is tried.
pub fn place_of(prefix: IpNet, all_length: u8) -> Option<(u8, u8, IpNet)> {
    let mut scheme = Scheme {
        tiers: Tiers::Three,
        mode: Mode::Swplb,
        family: Family::Ipv4,
        first_octet: 0,
        polarity: Polarity::LeafOdd,
    };
    let mut link = HostLink {
        // Any name; only numbers are looked at.
        node_name: "node".to_owned(),
        plane: 0,
        rail: 0,
        pod: 0,
        su: 0,
        host: 0,
        cable: Cable::default(),
    };
    let made = match prefix.addr() {
        IpAddr::V4(address) => {
            let [first, second, third, last] = address.octets().map(u64::from);
            (scheme.first_octet, link.host) = (byte(first), last >> 1);
            (link.plane, link.rail, link.pod, link.su) = match all_length {
                12 => (0, second >> 1 & 7, 0, third),
                14 => (second >> 2 & 3, (second & 1) << 2 | third >> 6, 0, third & 63),
                8 => (0, second >> 5, second & 31, third),
                10 => (second >> 6, second >> 3 & 7, (second & 7) << 2 | third >> 6, third & 63),
                _ => return None,
            };
            scheme.tiers = if matches!(all_length, 12 | 14) { Tiers::Two } else { Tiers::Three };
            scheme.mode = if matches!(all_length, 12 | 8) { Mode::None } else { Mode::Swplb };
            scheme.prefix_v4(&link)
        }
        IpAddr::V6(address) => {
            let [_, plane, third, fourth, ..] = address.segments().map(u64::from);
            scheme.family = Family::Ipv6;
            (link.plane, link.rail, link.pod) = (plane, third >> 8, third & 255);
            (link.su, link.host) = (fourth >> 8, fourth & 255);
            matches!(all_length, 24 | 32).then_some(())?;
            scheme.prefix_v6(&link)
        }
    };
    scheme.check(&link).ok().filter(|()| made == prefix)?;
    let (length, _) = scheme.lengths(!prefix.addr().is_ipv4(), false);
    Some((byte(link.rail), byte(link.plane), IpNet::new_assert(made.addr(), length).trunc()))
}

/// 128 bits in place of two names, of which a million would take the memory of the plan once more.
fn hash(one: &str, other: &str) -> u128 {
    let mut hasher = SipHasher13::new();
    (one, other).hash(&mut hasher);
    hasher.finish128().as_u128()
}

/// After [`Scheme::check`], nothing is cut off.
fn byte(value: u64) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}

fn nth(prefix: IpNet, index: i64) -> IpAddr {
    let index = u8::try_from(index).unwrap_or(0);
    match prefix.network() {
        IpAddr::V4(net) => Ipv4Addr::from_bits(net.to_bits() | u32::from(index)).into(),
        IpAddr::V6(net) => Ipv6Addr::from_bits(net.to_bits() | u128::from(index)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Scheme = Scheme {
        tiers: Tiers::Two,
        mode: Mode::None,
        family: Family::Ipv4,
        first_octet: 172,
        polarity: Polarity::LeafOdd,
    };

    fn link(node_name: &str, plane: u64, rail: u64, pod: u64, su: u64, host: u64) -> HostLink {
        HostLink { node_name: node_name.into(), plane, rail, pod, su, host, cable: Cable::default() }
    }

    fn plan(scheme: Scheme, links: &[HostLink]) -> Result<Plan, Vec<String>> {
        let mut plan = scheme.plan(links.to_vec(), &|number| format!("links[{number}]"))?;
        plan.check()?;
        Ok(plan)
    }

    /// Name, cidr, routes, prefix and gateway of a link's first pool.
    fn shown(scheme: Scheme, link: HostLink) -> String {
        let plan = plan(scheme, &[link]).unwrap();
        let Pool { name, spec, .. } = &plan.pools[0];
        let routes: Vec<_> = spec.routes.iter().map(|to| to.dst.as_str()).collect();
        let Row { prefix, gateway, .. } = &spec.static_allocations[0];
        format!("{name} {} {} {prefix} {gateway}", spec.cidr, routes.join(","))
    }

    /// The corners of each row of the table above, as `addressing.go` computes them.
    #[test]
    fn the_formulas_are_nvidias() {
        let three = Scheme { tiers: Tiers::Three, first_octet: 10, ..TWO };
        for (scheme, link, expected) in [
            (
                TWO,
                link("w", 0, 0, 0, 1, 30),
                "rail-0 172.16.0.0/15 172.16.0.0/15,172.16.0.0/12 172.16.1.60/31 172.16.1.61",
            ),
            (
                TWO,
                link("w", 0, 7, 0, 63, 127),
                "rail-7 172.30.0.0/15 172.30.0.0/15,172.16.0.0/12 172.30.63.254/31 172.30.63.255",
            ),
            (
                Scheme { mode: Mode::Swplb, ..TWO },
                link("w", 1, 1, 0, 0, 0),
                "rail-1-plane-1 172.20.64.0/18 172.20.64.0/18,172.20.0.0/14 172.20.64.0/31 172.20.64.1",
            ),
            (
                Scheme { mode: Mode::Swplb, ..TWO },
                link("w", 3, 7, 0, 63, 127),
                "rail-7-plane-3 172.29.192.0/18 172.29.192.0/18,172.28.0.0/14 172.29.255.254/31 172.29.255.255",
            ),
            (
                Scheme { mode: Mode::Hwplb, ..TWO },
                link("w", 3, 5, 0, 2, 1),
                "rail-5 172.17.64.0/18 172.17.64.0/18,172.16.0.0/14 172.17.66.2/31 172.17.66.3",
            ),
            (
                three,
                link("w", 0, 7, 31, 255, 127),
                "rail-7 10.224.0.0/11 10.224.0.0/11,10.0.0.0/8 10.255.255.254/31 10.255.255.255",
            ),
            (
                Scheme { mode: Mode::Hwplb, ..three },
                link("compute-a", 0, 0, 2, 3, 0),
                "rail-0 10.0.0.0/13 10.0.0.0/13,10.0.0.0/10 10.0.131.0/31 10.0.131.1",
            ),
            (
                Scheme { mode: Mode::Swplb, ..three },
                link("w", 3, 7, 31, 63, 127),
                "rail-7-plane-3 10.248.0.0/13 10.248.0.0/13,10.192.0.0/10 10.255.255.254/31 10.255.255.255",
            ),
            (
                Scheme { polarity: Polarity::LeafEven, first_octet: 10, ..TWO },
                link("w", 0, 0, 0, 1, 30),
                "rail-0 10.16.0.0/15 10.16.0.0/15,10.16.0.0/12 10.16.1.60/31 10.16.1.60",
            ),
            (
                Scheme { family: Family::Ipv6, ..TWO },
                link("w", 0, 7, 0, 1, 30),
                "rail-7 fd02:0:700::/40 fd02::/32 fd02:0:700:11e::/64 fd02:0:700:11e::2",
            ),
            (
                Scheme { family: Family::Ipv6, mode: Mode::Swplb, tiers: Tiers::Three, ..TWO },
                link("w", 2, 7, 4, 1, 255),
                "rail-7-plane-2 fd02:2:700::/40 fd02::/24 fd02:2:704:1ff::/64 fd02:2:704:1ff::2",
            ),
        ] {
            assert_eq!(shown(scheme, link), expected);
        }
    }

    #[test]
    fn pods_get_the_side_that_the_leaf_does_not_have() {
        for (polarity, v4, v6) in
            [(Polarity::LeafOdd, "172.16.0.0", "fd02::1"), (Polarity::LeafEven, "172.16.0.1", "fd02::2")]
        {
            let scheme = Scheme { family: Family::Dual, polarity, ..TWO };
            let plan = plan(scheme, &[link("w", 0, 0, 0, 0, 0)]).unwrap();
            let names: Vec<_> = plan.pools.iter().map(|pool| pool.name.as_str()).collect();
            assert_eq!(names, ["rail-0", "rail-0-v6"]);
            for (pool, address) in plan.pools.iter().zip([v4, v6]) {
                let allocations = pool.spec.plan("spec", &[]).unwrap().allocations;
                assert_eq!(allocations["w"].first_free(|_| false).unwrap().to_string(), address);
            }
        }
    }

    #[test]
    fn every_limit_is_told_with_its_field() {
        let three = Scheme { tiers: Tiers::Three, ..TWO };
        let v6 = Scheme { family: Family::Ipv6, ..three };
        for (scheme, link, told) in [
            (TWO, link("w", 0, 8, 0, 0, 0), "links[0]: rail 8 is not 0 to 7"),
            (TWO, link("w", 0, 0, 0, 0, 128), "host 128 is not 0 to 127"),
            (TWO, link("w", 0, 0, 0, 64, 0), "su 64 is not 0 to 63"),
            (TWO, link("w", 0, 0, 1, 0, 0), "pod 1 is not 0: two tiers of switches have one pod"),
            (Scheme { mode: Mode::Swplb, ..TWO }, link("w", 4, 0, 0, 0, 0), "plane 4 is not 0 to 3"),
            (three, link("w", 0, 0, 0, 256, 0), "su 256 is not 0 to 255"),
            (three, link("w", 0, 0, 32, 0, 0), "pod 32 is not 0 to 31"),
            (Scheme { mode: Mode::Hwplb, ..three }, link("w", 0, 0, 0, 64, 0), "su 64 is not 0 to 63"),
            (v6, link("w", 0, 0, 256, 0, 0), "pod 256 is not 0 to 255"),
            (v6, link("w", 0, 0, 0, 0, 256), "host 256 is not 0 to 255"),
            (TWO, link("../w", 0, 0, 0, 0, 0), "\"../w\" is no name of a node"),
            (TWO, link("w", 0, u64::MAX, 0, 0, 0), "rail 18446744073709551615"),
        ] {
            let faults = plan(scheme, &[link]).unwrap_err();
            assert!(faults[0].contains(told), "{told}: {faults:?}");
        }
    }

    #[test]
    fn two_nodes_in_one_place_and_one_node_in_two_are_refused() {
        let faults = plan(TWO, &[link("a", 0, 0, 0, 0, 0), link("b", 0, 0, 0, 0, 0)]).unwrap_err();
        assert!(faults[0].contains(
            "links[1]: node b is in the place of node a (links[0]): both would have 172.16.0.0/31"
        ));
        let faults = plan(TWO, &[link("a", 0, 0, 0, 0, 0), link("a", 0, 0, 0, 1, 0)]).unwrap_err();
        assert!(
            faults[0].contains("links[1]: node a has 172.16.0.0/31 on rail 0 by another link"),
            "{faults:?}"
        );
    }

    /// With `hwplb` a NIC has a cable to a leaf of each plane, and one address.
    #[test]
    fn cables_of_one_address_stay_together() {
        let cabled = |plane| HostLink {
            cable: Cable { leaf: Some(format!("leaf-p{plane}")), ..Cable::default() },
            ..link("w", plane, 0, 0, 0, 0)
        };
        let both = [cabled(0), cabled(1)];
        let plan_of = |mode| plan(Scheme { mode, ..TWO }, &both).unwrap();
        assert_eq!(plan_of(Mode::Hwplb).pools[0].cables[0].len(), 2);
        assert_eq!(plan_of(Mode::Swplb).pools.len(), 2);
        assert_eq!(plan_of(Mode::None).pools[0].cables[0].len(), 2);
    }

    /// With the length of the route to all rails, a prefix tells where it is.
    #[test]
    fn a_prefix_tells_its_place() {
        let mut tried = 0;
        for (tiers, mode, family) in [Tiers::Two, Tiers::Three].into_iter().flat_map(|tiers| {
            [Mode::None, Mode::Swplb].into_iter().flat_map(move |mode| {
                [Family::Ipv4, Family::Ipv6].into_iter().map(move |family| (tiers, mode, family))
            })
        }) {
            let scheme = Scheme { tiers, mode, family, ..TWO };
            for seed in 0..2000_u64 {
                let [plane, rail, pod, su, host] = [4, 8, 32, 256, 128].map(|room| seed * 7919 / room % room);
                let plane = if mode == Mode::None { 0 } else { plane };
                let Ok(plan) = plan(scheme, &[link("w", plane, rail, pod, su, host)]) else { continue };
                tried += 1;
                let Pool { rail, plane, spec, .. } = &plan.pools[0];
                let all: IpNet = spec.routes.last().unwrap().dst.parse().unwrap();
                let prefix = spec.static_allocations[0].prefix.parse().unwrap();
                let place = (rail.unwrap(), plane.unwrap_or(0), spec.cidr.parse().unwrap());
                assert_eq!(place_of(prefix, all.prefix_len()), Some(place), "{prefix} {all}");
            }
        }
        assert!(tried > 1000, "{tried}");
        for (prefix, length) in [
            ("172.17.0.0/31", 12),
            ("172.16.64.0/31", 12),
            ("172.18.0.0/31", 14),
            ("172.16.0.0/30", 12),
            ("172.16.0.0/31", 16),
            ("fd03::/64", 32),
            ("fd02:4::/64", 24),
            ("fd02:0:800::/64", 32),
            ("fd02::/127", 32),
        ] {
            assert_eq!(place_of(prefix.parse().unwrap(), length), None, "{prefix}");
        }
    }

    /// One row too many in a table of cables, and a switch port is configured twice.
    #[test]
    fn an_end_of_a_cable_is_there_once() {
        let cabled = |node: &str, rail, interface: &str, port: &str| HostLink {
            cable: Cable {
                interface: Some(interface.into()),
                leaf: Some("leaf".into()),
                port: Some(port.into()),
                ..Cable::default()
            },
            ..link(node, 0, rail, 0, 0, if node == "a" { 0 } else { 1 })
        };
        let faults = plan(TWO, &[cabled("a", 0, "r0", "swp1"), cabled("b", 0, "r0", "swp1")]).unwrap_err();
        assert_eq!(
            faults,
            ["links[1]: port swp1 of leaf has another cable (links[0]): correct the port of one"]
        );
        let faults = plan(TWO, &[cabled("a", 0, "r0", "swp1"), cabled("a", 1, "r0", "swp2")]).unwrap_err();
        assert_eq!(faults, ["links[1]: interface r0 of node a is also on rail 0 (links[0])"]);
        assert!(plan(TWO, &[cabled("a", 0, "r0", "swp1"), cabled("a", 1, "r1", "swp2")]).is_ok());
    }

    #[test]
    fn names_of_ends_are_words() {
        let cable = |interface: &str, leaf: &str, port: &str| Cable {
            interface: Some(interface.into()),
            leaf: Some(leaf.into()),
            port: Some(port.into()),
            ..Cable::default()
        };
        assert_eq!(cable("enp1s0f0np0", "leaf-1.dc", "Ethernet1/1:2").faults(), [None, None, None]);
        for (cable, told) in [
            (cable("sixteen-bytes-xx", "l", "p"), "\"sixteen-bytes-xx\" is no name of a netdev"),
            (cable("e;reboot", "l", "p"), "netdev"),
            (cable("e", "../l", "p"), "\"../l\" is no name of a leaf"),
            (cable("e", "l", "swp1 $(reboot)"), "is no name of a switch port"),
            (cable("e", "l", "/swp1"), "switch port"),
        ] {
            assert!(cable.faults().into_iter().flatten().any(|fault| fault.contains(told)), "{told}");
        }
    }

    #[test]
    fn nodes_that_look_like_one_and_nodes_without_a_rail_are_told() {
        let links = [link("w1", 0, 0, 0, 0, 0), link("W1.example", 0, 0, 0, 0, 1), link("w1", 0, 1, 0, 0, 0)];
        let Plan { warnings, doubts, .. } = plan(TWO, &links).unwrap();
        assert_eq!(doubts.into_warnings(), ["node W1.example has nothing in rail-1: add it there"]);
        assert!(warnings.iter().any(|it| it.contains("W1.example and w1 differ only")), "{warnings:?}");
    }
}
