//! NVIDIA's Spectrum-X address scheme, which computes a prefix from a place in the fabric.
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
use std::fmt;
use std::hash::Hash as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Deserialize;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::{Cable, Plan, Pool};
use crate::cni::is_netdev_name;
use crate::fault::{Fault, Place};
use crate::pool::allocation::IpVersion;
use crate::pool::cidrpool::{IndexRange, RouteTo, Row, Spec};
use crate::pool::is_name;

/// Reading stops at this many faults, because a pattern or an attribute that is wrong everywhere makes millions.
pub(super) const MAX_FAULTS: usize = 1000;

/// The number of switch tiers.
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
    /// The number of switch tiers.
    pub tiers: Tiers,
    /// How traffic is spread over planes.
    pub mode: Mode,
    /// The addresses that links have.
    pub family: Family,
    /// The first octet of IPv4 addresses, 1 to 223.
    pub first_octet: u8,
    /// Which side of a link is the switch.
    pub polarity: Polarity,
}

/// A link between a host and its leaf, by its place in the fabric.
#[derive(Clone, Debug)]
pub struct HostLink {
    /// The name that the node has in Kubernetes.
    pub node_name: String,
    /// The plane, 0 to 3.
    pub plane: u64,
    /// The rail, 0 to 7.
    pub rail: u64,
    /// The pod of the fabric, 0 to 31; 0 with two tiers.
    pub pod: u64,
    /// The SU in its pod, 0 to 63 or 0 to 255: see [`Scheme::last`].
    pub su: u64,
    /// The index of the host in its SU, 0 to 127.
    pub host: u64,
    /// The names of both ends.
    pub cable: Cable,
}

/// The last value of each field that an address has room for.
#[derive(Clone, Copy, Debug)]
pub struct Last {
    /// The last rail.
    pub rail: u64,
    /// The last host of an SU.
    pub host: u64,
    /// The last SU of a pod.
    pub su: u64,
    /// The last pod.
    pub pod: u64,
    /// The last plane.
    pub plane: u64,
}

/// Where a source has a link, for messages about it.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The position in the file.
    pub place: Place,
    /// The node and the rail, where the path is that of a pattern for all links.
    pub subject: String,
    /// The key.
    pub path: String,
}

impl Origin {
    /// A fault of the link.
    pub fn fault(self, problem: impl Into<String>) -> Fault {
        let Origin { place, subject, path } = self;
        Fault::new(path, problem).at(place).of(subject)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Origin { place, subject, path } = self;
        let parts = [place.to_string(), subject.clone(), path.clone()];
        let given: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        f.write_str(&given.join(": "))
    }
}

/// The links of a pool: those of one rail, with `swplb` of one plane, in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    rail: u8,
    plane: u8,
    version: IpVersion,
}

/// How many planes the links of a plan have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planes {
    One,
    Several,
}

#[derive(Default)]
struct Rows {
    /// Node, cables and the number of the first link, by prefix, which is the order of the rows.
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

    /// The plan of these links. `origin` says where the source has the link with a number, counted from 0.
    pub fn plan(
        &self,
        links: impl IntoIterator<Item = HostLink>,
        origin: &dyn Fn(usize) -> Origin,
    ) -> Result<Plan, Vec<Fault>> {
        let mut builder = Builder::new(self, origin);
        for (number, link) in links.into_iter().enumerate() {
            if builder.faults.len() >= MAX_FAULTS {
                builder.faults.push(origin(number).fault("too many faults: reading stopped here"));
                break;
            }
            builder.add(number, &link);
        }
        builder.plan()
    }

    /// The families that each link has addresses of.
    fn versions(&self) -> &'static [IpVersion] {
        match self.family {
            Family::Ipv4 => &[IpVersion::V4],
            Family::Ipv6 => &[IpVersion::V6],
            Family::Dual => &[IpVersion::V4, IpVersion::V6],
        }
    }

    /// The last value of each field that an address of this scheme has room for.
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

    /// The problem of a field that counts from 0 and has `value`, more than `last`.
    pub fn outside(&self, field: &str, value: u64, last: u64) -> String {
        match (field, self.tiers) {
            ("pod", Tiers::Two) => "must be 0 with two tiers; several pods need three tiers".to_owned(),
            _ => format!("{value} is not 0 to {last}, the range with these tiers, mode and family"),
        }
    }

    /// Fails if the address has no room for a field, or if a name cannot be one.
    fn check(&self, link: &HostLink) -> Result<(), Vec<Fault>> {
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
            .map(|(field, value, last)| Fault::new(field, self.outside(field, value, last)))
            .collect();
        if !is_name(&link.node_name) {
            faults.push(Fault::whole(format!("{:?} is not a valid name of a node", link.node_name)));
        }
        faults.extend(link.cable.faults().into_iter().flatten().map(Fault::whole));
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    fn key(&self, link: &HostLink, version: IpVersion) -> Key {
        let plane = if self.mode == Mode::Swplb { byte(link.plane) } else { 0 };
        Key { rail: byte(link.rail), plane, version }
    }

    fn prefix(&self, link: &HostLink, version: IpVersion) -> IpNet {
        match version {
            IpVersion::V4 => self.prefix_v4(link),
            IpVersion::V6 => self.prefix_v6(link),
        }
    }

    /// The table at the top of this file. [`Scheme::check`] has checked the fields.
    fn prefix_v4(&self, link: &HostLink) -> IpNet {
        let Key { rail, plane, .. } = self.key(link, IpVersion::V4);
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
        let Key { rail, plane, .. } = self.key(link, IpVersion::V6);
        let pair = |high: u8, low: u8| u16::from(high) << 8 | u16::from(low);
        let (third, fourth) = (pair(rail, byte(link.pod)), pair(byte(link.su), byte(link.host)));
        let net = Ipv6Addr::new(0xfd02, u16::from(plane), third, fourth, 0, 0, 0, 0);
        IpNet::V6(Ipv6Net::new_assert(net, 64))
    }

    /// The prefix lengths of a rail and of all rails, to which hosts have routes.
    fn lengths(&self, version: IpVersion, planes: Planes) -> (u8, u8) {
        match (version, self.tiers, self.mode) {
            (IpVersion::V6, ..) => (40, if planes == Planes::Several { 24 } else { 32 }),
            (IpVersion::V4, Tiers::Two, Mode::None) => (15, 12),
            (IpVersion::V4, Tiers::Two, _) => (18, 14),
            (IpVersion::V4, Tiers::Three, Mode::None) => (11, 8),
            (IpVersion::V4, Tiers::Three, _) => (13, 10),
        }
    }

    fn pool(&self, key: Key, rows: Rows, planes: Planes) -> Pool {
        let Key { rail, plane, version } = key;
        let is_v6 = version == IpVersion::V6;
        // The leaf's side of a link, counted from the first address of the prefix.
        let leaf = match (self.polarity, version) {
            (Polarity::LeafOdd, IpVersion::V4) | (Polarity::LeafEven, IpVersion::V6) => 1,
            (Polarity::LeafOdd, IpVersion::V6) => 2,
            (Polarity::LeafEven, IpVersion::V4) => 0,
        };
        let (rail_length, all_length) = self.lengths(version, planes);
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
                // nv-ipam needs an index for routes, although the rows have the gateway. On a /31 the index is the
                // host's side and the leaf's side is excluded: then a node without a row gets no address, instead of
                // one with both sides swapped.
                gateway_index: Some(if is_v6 { leaf } else { 1 - leaf }),
                static_allocations,
                routes: routes.into_iter().map(|dst| RouteTo { dst: dst.to_string() }).collect(),
                exclusions: Vec::new(),
                per_node_exclusions: vec![IndexRange { start_index: leaf, end_index: leaf }],
                default_gateway: false,
                node_selector: None,
            },
            cables,
            places: Vec::new(),
        }
    }
}

/// Puts links into pools one by one, and finds those that exclude each other.
struct Builder<'a> {
    scheme: &'a Scheme,
    origin: &'a dyn Fn(usize) -> Origin,
    pools: BTreeMap<Key, Rows>,
    planes: Planes,
    /// The number of the link that has the port of a leaf.
    ports: HashMap<u128, usize>,
    /// The number of the first link that has the interface of a node, and its rail.
    interfaces: HashMap<u128, (usize, Key)>,
    faults: Vec<Fault>,
}

impl<'a> Builder<'a> {
    fn new(scheme: &'a Scheme, origin: &'a dyn Fn(usize) -> Origin) -> Builder<'a> {
        Builder {
            scheme,
            origin,
            pools: BTreeMap::new(),
            planes: Planes::One,
            ports: HashMap::new(),
            interfaces: HashMap::new(),
            faults: Vec::new(),
        }
    }

    fn plan(self) -> Result<Plan, Vec<Fault>> {
        let Builder { scheme, pools, planes, faults, .. } = self;
        if !faults.is_empty() {
            return Err(faults);
        }
        let pools = pools.into_iter().map(|(key, rows)| scheme.pool(key, rows, planes)).collect();
        Ok(Plan { pools, ..Plan::default() })
    }

    fn fault(&mut self, number: usize, problem: String) {
        self.faults.push((self.origin)(number).fault(problem));
    }

    fn add(&mut self, number: usize, link: &HostLink) {
        if let Err(faults) = self.scheme.check(link) {
            let origin = (self.origin)(number);
            self.faults.extend(faults.into_iter().map(|Fault { path: field, problem, .. }| {
                let dot = if field.is_empty() || origin.path.is_empty() { "" } else { "." };
                Origin { path: format!("{}{dot}{field}", origin.path), ..origin.clone() }.fault(problem)
            }));
            return;
        }
        if link.plane > 0 {
            self.planes = Planes::Several;
        }
        self.claim_leaf_port(number, link);
        self.claim_interface(number, link);
        for version in self.scheme.versions() {
            if let Err(problem) = self.add_row(number, link, *version) {
                // In the other family it would be the same.
                self.fault(number, problem);
                break;
            }
        }
    }

    /// A port of a leaf has one cable.
    fn claim_leaf_port(&mut self, number: usize, link: &HostLink) {
        let Cable { leaf: Some(leaf), port: Some(port), .. } = &link.cable else { return };
        if let Some(first) = self.ports.insert(hash(leaf, port), number) {
            let first = (self.origin)(first);
            let problem =
                format!("port {port} of {leaf} has another cable ({first}): correct one of the ports");
            self.fault(number, problem);
        }
    }

    /// An interface of a node is on one rail.
    fn claim_interface(&mut self, number: usize, link: &HostLink) {
        let Some(interface) = &link.cable.interface else { return };
        let (node_name, on) = (&link.node_name, self.scheme.key(link, IpVersion::V4));
        match self.interfaces.insert(hash(node_name, interface), (number, on)) {
            Some((first, other)) if other != on => {
                let (first, rail) = ((self.origin)(first), other.rail);
                let problem =
                    format!("interface {interface} of node {node_name} is also on rail {rail} ({first})");
                self.fault(number, problem);
            }
            _ => (),
        }
    }

    /// A node has one prefix in a pool, and a prefix has one node.
    fn add_row(&mut self, number: usize, link: &HostLink, version: IpVersion) -> Result<(), String> {
        let key = self.scheme.key(link, version);
        let prefix = self.scheme.prefix(link, version);
        let rows = self.pools.entry(key).or_default();
        let name = &link.node_name;
        if let Some(other) = rows.of_node.insert(name.clone(), prefix).filter(|other| *other != prefix) {
            return Err(format!(
                "node {name} has {other} on rail {} by another link, and {prefix} by this one",
                key.rail
            ));
        }
        let entry = rows.by_prefix.entry(prefix);
        let (node, cables, first) = entry.or_insert_with(|| (name.clone(), Vec::new(), number));
        if node != name {
            let first = (self.origin)(*first);
            return Err(format!(
                "node {name} is in the place of node {node} ({first}): both would have {prefix}"
            ));
        }
        if link.cable != Cable::default() && !cables.contains(&link.cable) {
            // A row has one, as a rule, and a Vec would take room for four.
            cables.reserve_exact(1);
            cables.push(link.cable.clone());
        }
        Ok(())
    }
}

impl Cable {
    /// The faults of the names of interface, leaf and port, in this order. These names become words of commands and
    /// of files, where they must need no quotes.
    pub fn faults(&self) -> [Option<String>; 3] {
        let Cable { interface, leaf, port, .. } = self;
        let is_port = |name: &str| {
            name.starts_with(|first: char| first.is_ascii_alphanumeric())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-/:".contains(&byte))
        };
        let wrong = |name: &Option<String>, is_good: &dyn Fn(&str) -> bool, what: &str| {
            name.as_ref()
                .filter(|name| !is_good(name))
                .map(|name| format!("{name:?} is not a valid name of {what}"))
        };
        [
            wrong(interface, &is_netdev_name, "a netdev"),
            wrong(leaf, &is_name, "a leaf"),
            wrong(port, &is_port, "a switch port"),
        ]
    }
}

/// Where the formulas put a prefix: its rail, its plane and the prefix of the rail. `all_length` is the length of the
/// hosts' route to all rails, which says the number of tiers and whether there are planes.
pub fn place_of(prefix: IpNet, all_length: u8) -> Option<(u8, u8, IpNet)> {
    let mut scheme = Scheme {
        tiers: Tiers::Three,
        mode: Mode::Swplb,
        family: Family::Ipv4,
        first_octet: 0,
        polarity: Polarity::LeafOdd,
    };
    let mut link = HostLink {
        // Any name: the prefix follows from the numbers.
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
    let (length, _) = scheme.lengths(IpVersion::of(prefix.addr()), Planes::One);
    Some((byte(link.rail), byte(link.plane), IpNet::new_assert(made.addr(), length).trunc()))
}

/// 128 bits instead of two names, of which a million would take the memory of the plan once more.
fn hash(one: &str, other: &str) -> u128 {
    let mut hasher = SipHasher13::new();
    (one, other).hash(&mut hasher);
    hasher.finish128().as_u128()
}

/// The value as a byte; after [`Scheme::check`] it is one.
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
mod tests;
