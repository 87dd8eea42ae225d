//! Schemes compute the prefix of a link from its place in the fabric: [`spectrum_x`] by NVIDIA's
//! formulas, [`patterns`] by those of a fabric file. This module has the common part: links are
//! put into pools one by one, and those that exclude each other are found. All numbers count from
//! 0.

pub mod patterns;
pub mod spectrum_x;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash as _;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use crate::plan::{Cable, Plan, Pool, Position};
use rail_cni::cni::is_netdev_name;
use rail_cni::fault::{Fault, Place};
use rail_cni::pool::allocation::IpVersion;
use rail_cni::pool::cidrpool::Row;
use rail_cni::pool::is_name;

pub use patterns::Patterns;
pub use spectrum_x::{Family, Scheme, Tiers, is_first_octet, place_of, position_of};

/// Reading stops at this many faults, because a pattern or an attribute that is wrong everywhere
/// makes millions.
pub(super) const MAX_FAULTS: usize = 1000;

/// The spread of traffic over planes.
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

/// The switch's side of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Polarity {
    /// NVIDIA: the leaf has the odd IPv4 address, ::2 in IPv6.
    LeafOdd,
    /// Others (Juniper, AMD): the leaf has the even IPv4 address; in IPv6 ::1, the host ::2.
    LeafEven,
}

/// The formulas for the prefixes of a plan.
#[derive(Clone, Copy, Debug)]
pub enum Formula<'a> {
    /// NVIDIA's formulas.
    SpectrumX(&'a Scheme),
    /// The patterns of a fabric file.
    Patterns(&'a Patterns),
}

/// A link between a host and its leaf, by its place in the fabric.
#[derive(Clone, Debug)]
pub struct HostLink {
    /// The name that the node has in Kubernetes.
    pub node_name: String,
    /// The plane, 0 to 3.
    pub plane: u64,
    /// The rail, from 0. [`Last`] bounds this and the next three.
    pub rail: u64,
    /// The pod of the fabric; 0 with two tiers.
    pub pod: u64,
    /// The SU in its pod.
    pub su: u64,
    /// The index of the host in its SU.
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

/// The place of a link in its source, for messages.
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
        let Origin {
            place,
            subject,
            path,
        } = self;
        Fault::new(path, problem).at(place).of(subject)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Origin {
            place,
            subject,
            path,
        } = self;
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

/// The number of planes that the links of a plan have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planes {
    One,
    Several,
}

#[derive(Default)]
struct Rows {
    /// By prefix, which is the order of the rows.
    by_prefix: BTreeMap<IpNet, Found>,
    of_node: HashMap<String, IpNet>,
}

struct Found {
    node_name: String,
    gateway: IpAddr,
    cables: Vec<Cable>,
    /// The number of the first link.
    first: usize,
}

impl Formula<'_> {
    /// The plan of these links. `origin` says where the source has the link with a number, counted
    /// from 0.
    pub fn plan(
        self,
        links: impl IntoIterator<Item = HostLink>,
        origin: &dyn Fn(usize) -> Origin,
    ) -> Result<Plan, Vec<Fault>> {
        let mut builder = Builder::new(self, origin);
        for (number, link) in links.into_iter().enumerate() {
            if builder.faults.len() >= MAX_FAULTS {
                builder
                    .faults
                    .push(origin(number).fault("too many faults: reading stopped here"));
                break;
            }
            builder.add(number, &link);
        }
        builder.plan()
    }

    /// The families that each link has addresses of.
    fn versions(self) -> &'static [IpVersion] {
        match self {
            Formula::SpectrumX(scheme) => scheme.versions(),
            Formula::Patterns(patterns) => patterns.versions(),
        }
    }

    fn mode(self) -> Mode {
        match self {
            Formula::SpectrumX(scheme) => scheme.mode,
            Formula::Patterns(patterns) => patterns.mode,
        }
    }

    /// Fails if the address has no room for a field, or if a name cannot be one.
    fn check(self, link: &HostLink) -> Result<(), Vec<Fault>> {
        let mut faults = match self {
            Formula::SpectrumX(scheme) => scheme.outside_of(link),
            Formula::Patterns(_) => Vec::new(),
        };
        if !is_name(&link.node_name) {
            faults.push(Fault::whole(format!(
                "{:?} is not a valid name of a node",
                link.node_name
            )));
        }
        faults.extend(link.cable.faults().into_iter().flatten().map(Fault::whole));
        if faults.is_empty() {
            Ok(())
        } else {
            Err(faults)
        }
    }

    fn key(self, link: &HostLink, version: IpVersion) -> Key {
        let plane = if self.mode() == Mode::Swplb {
            byte(link.plane)
        } else {
            0
        };
        Key {
            rail: byte(link.rail),
            plane,
            version,
        }
    }

    /// The prefix and the gateway of a link, or why it has none.
    fn ends(self, link: &HostLink, version: IpVersion) -> Result<(IpNet, IpAddr), String> {
        match self {
            Formula::SpectrumX(scheme) => Ok(scheme.ends(link, version)),
            Formula::Patterns(patterns) => patterns.ends(link, version),
        }
    }

    fn pool(self, key: Key, rows: Rows, planes: Planes) -> Result<Pool, Fault> {
        let Key {
            rail,
            plane,
            version,
        } = key;
        let mut name = format!("rail-{rail}");
        if self.mode() == Mode::Swplb {
            name.push_str(&format!("-plane-{plane}"));
        }
        if version == IpVersion::V6 && self.versions().len() > 1 {
            name.push_str("-v6");
        }
        let mut spec = match self {
            Formula::SpectrumX(scheme) => scheme.spec(&rows, version, planes),
            Formula::Patterns(patterns) => patterns
                .spec(&rows, key)
                .map_err(|fault| fault.of(format!("pool {name}")))?,
        };
        let mut cables = Vec::with_capacity(rows.by_prefix.len());
        spec.static_allocations.reserve_exact(rows.by_prefix.len());
        for (
            prefix,
            Found {
                node_name,
                gateway,
                cables: of_row,
                ..
            },
        ) in rows.by_prefix
        {
            let (gateway, prefix) = (gateway.to_string(), prefix.to_string());
            spec.static_allocations.push(Row {
                node_name,
                gateway,
                prefix,
            });
            cables.push(of_row);
        }
        Ok(Pool {
            name,
            rail: Some(rail),
            plane: (self.mode() == Mode::Swplb).then_some(plane),
            is_hwplb: self.mode() == Mode::Hwplb,
            namespace: None,
            spec,
            cables,
            places: Vec::new(),
        })
    }
}

/// Puts links into pools one by one, and finds those that exclude each other.
struct Builder<'a> {
    formula: Formula<'a>,
    origin: &'a dyn Fn(usize) -> Origin,
    pools: BTreeMap<Key, Rows>,
    planes: Planes,
    positions: BTreeMap<String, Position>,
    /// The number of the link that has the port of a leaf.
    ports: HashMap<u128, usize>,
    /// The number of the first link that has the interface of a node, and its rail.
    interfaces: HashMap<u128, (usize, Key)>,
    faults: Vec<Fault>,
}

impl<'a> Builder<'a> {
    fn new(formula: Formula<'a>, origin: &'a dyn Fn(usize) -> Origin) -> Builder<'a> {
        Builder {
            formula,
            origin,
            pools: BTreeMap::new(),
            planes: Planes::One,
            positions: BTreeMap::new(),
            ports: HashMap::new(),
            interfaces: HashMap::new(),
            faults: Vec::new(),
        }
    }

    fn plan(self) -> Result<Plan, Vec<Fault>> {
        let Builder {
            formula,
            pools: of_key,
            planes,
            positions,
            mut faults,
            ..
        } = self;
        let mut pools = Vec::with_capacity(of_key.len());
        if faults.is_empty() {
            for (key, rows) in of_key {
                formula
                    .pool(key, rows, planes)
                    .map_or_else(|fault| faults.push(fault), |pool| pools.push(pool));
            }
        }
        if faults.is_empty() {
            Ok(Plan {
                pools,
                positions,
                ..Plan::default()
            })
        } else {
            Err(faults)
        }
    }

    fn fault(&mut self, number: usize, problem: String) {
        self.faults.push((self.origin)(number).fault(problem));
    }

    fn add(&mut self, number: usize, link: &HostLink) {
        if let Err(faults) = self.formula.check(link) {
            let origin = (self.origin)(number);
            self.faults.extend(faults.into_iter().map(
                |Fault {
                     path: field,
                     problem,
                     ..
                 }| {
                    let dot = if field.is_empty() || origin.path.is_empty() {
                        ""
                    } else {
                        "."
                    };
                    Origin {
                        path: format!("{}{dot}{field}", origin.path),
                        ..origin.clone()
                    }
                    .fault(problem)
                },
            ));
            return;
        }
        if link.plane > 0 {
            self.planes = Planes::Several;
        }
        // A node has many links, and its name is copied once.
        if !self.positions.contains_key(&link.node_name) {
            let HostLink { pod, su, .. } = *link;
            self.positions
                .insert(link.node_name.clone(), Position { pod, su });
        }
        self.claim_leaf_port(number, link);
        self.claim_interface(number, link);
        for version in self.formula.versions() {
            if let Err(problem) = self.add_row(number, link, *version) {
                // In the other family it would be the same.
                self.fault(number, problem);
                break;
            }
        }
    }

    /// A port of a leaf has one cable.
    fn claim_leaf_port(&mut self, number: usize, link: &HostLink) {
        let Cable {
            leaf: Some(leaf),
            port: Some(port),
            ..
        } = &link.cable
        else {
            return;
        };
        if let Some(first) = self.ports.insert(hash(leaf, port), number) {
            let first = (self.origin)(first);
            let problem = format!(
                "port {port} of {leaf} has another cable ({first}): correct one of the ports"
            );
            self.fault(number, problem);
        }
    }

    /// An interface of a node is on one rail.
    fn claim_interface(&mut self, number: usize, link: &HostLink) {
        let Some(interface) = &link.cable.interface else {
            return;
        };
        let (node_name, on) = (&link.node_name, self.formula.key(link, IpVersion::V4));
        match self
            .interfaces
            .insert(hash(node_name, interface), (number, on))
        {
            Some((first, other)) if other != on => {
                let (first, rail) = ((self.origin)(first), other.rail);
                let problem = format!(
                    "interface {interface} of node {node_name} is also on rail {rail} ({first})"
                );
                self.fault(number, problem);
            }
            _ => (),
        }
    }

    /// A node has one prefix in a pool, and a prefix has one node.
    fn add_row(
        &mut self,
        number: usize,
        link: &HostLink,
        version: IpVersion,
    ) -> Result<(), String> {
        let key = self.formula.key(link, version);
        let (prefix, gateway) = self.formula.ends(link, version)?;
        let rows = self.pools.entry(key).or_default();
        let name = &link.node_name;
        if let Some(other) = rows
            .of_node
            .insert(name.clone(), prefix)
            .filter(|other| *other != prefix)
        {
            return Err(format!(
                "node {name} has {other} on rail {} by another link, and {prefix} by this one",
                key.rail
            ));
        }
        let entry = rows.by_prefix.entry(prefix);
        let new = || Found {
            node_name: name.clone(),
            gateway,
            cables: Vec::new(),
            first: number,
        };
        let Found {
            node_name: node,
            cables,
            first,
            ..
        } = entry.or_insert_with(new);
        if node != name {
            let first = (self.origin)(*first);
            return Err(format!(
                "node {name} has the position of node {node} ({first}): both would have {prefix}"
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
    /// The faults of the names of interface, leaf, port and VRF, in this order. These names become
    /// words of commands and of files, where they must need no quotes.
    pub fn faults(&self) -> [Option<String>; 4] {
        let Cable {
            interface,
            leaf,
            port,
            vrf,
            ..
        } = self;
        let is_port = |name: &str| {
            name.starts_with(|first: char| first.is_ascii_alphanumeric())
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"_.-/:".contains(&byte))
        };
        // A VRF is a netdev of the switch. These two are always there: mgmt has the switch's own
        // port.
        let is_vrf = |name: &str| {
            name.starts_with(|first: char| first.is_ascii_alphabetic())
                && name.len() <= 15
                && !["default", "mgmt"].contains(&name)
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
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
            wrong(
                vrf,
                &is_vrf,
                "a VRF (15 letters, digits, _ and -; it begins with a letter, and is neither default nor mgmt)",
            ),
        ]
    }
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

#[cfg(test)]
mod tests;
