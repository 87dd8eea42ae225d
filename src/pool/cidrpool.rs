//! NVIDIA's CIDRPool: the prefix that its spec gives to each node. Meaning and limits are those of
//! nv-ipam's webhook (cidrpool_validate.go), and stricter where the webhook lets mistakes reach the
//! fabric.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::allocation::{self, Allocation, IpVersion, Range, To, address, bits};
use super::is_name;
use crate::cni::Keys;
use crate::fault::Fault;

/// The fields of a spec that a network configuration can have.
pub const SPEC_KEYS: [&str; 8] = [
    "cidr",
    "perNodeNetworkPrefix",
    "gatewayIndex",
    "staticAllocations",
    "routes",
    "exclusions",
    "perNodeExclusions",
    "defaultGateway",
];

/// The keys of the objects in the lists of a spec.
pub const LIST_KEYS: [(&str, &Keys); 4] = [
    (
        "staticAllocations",
        &Keys::flat(&[&["nodeName", "prefix", "gateway"]]),
    ),
    ("routes", &Keys::flat(&[&["dst"]])),
    ("exclusions", &Keys::flat(&[&["startIP", "endIP"]])),
    (
        "perNodeExclusions",
        &Keys::flat(&[&["startIndex", "endIndex"]]),
    ),
];

/// `spec` of a CIDRPool, as written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The prefix that contains those of all nodes.
    pub cidr: String,
    /// The length of each node's prefix, in bits.
    pub per_node_network_prefix: i64,
    /// The gateway of a row that names none: its distance from the first address of the row's
    /// prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway_index: Option<i64>,
    /// The prefixes of the nodes.
    #[serde(
        default,
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub static_allocations: Vec<Row>,
    /// Destinations that the node's gateway leads to.
    #[serde(
        default,
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub routes: Vec<RouteTo>,
    /// Addresses that no pod may have.
    #[serde(
        default,
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub exclusions: Vec<AddressRange>,
    /// Addresses that no pod may have, by their distance from the first address of a node's prefix.
    #[serde(
        default,
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub per_node_exclusions: Vec<IndexRange>,
    /// Left out with a warning: a rail carries no default route.
    #[serde(
        default,
        deserialize_with = "null_is_empty",
        skip_serializing_if = "is_default"
    )]
    pub default_gateway: bool,
    /// Left out with a warning: only nv-ipam's controller uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<Value>,
    /// Whether gateways are outside of the prefixes of their rows. No CIDRPool can be so, only the
    /// pool of a plan.
    #[serde(skip)]
    pub is_unnumbered: bool,
}

/// One entry of `staticAllocations`, or of `status.allocations`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Row {
    /// The name of the node; empty where the prefix is only reserved.
    #[serde(
        default,
        deserialize_with = "null_is_empty",
        skip_serializing_if = "String::is_empty"
    )]
    pub node_name: String,
    /// The address of the leaf port; empty where `gatewayIndex` gives it.
    #[serde(
        default,
        deserialize_with = "null_is_empty",
        skip_serializing_if = "String::is_empty"
    )]
    pub gateway: String,
    /// The prefix of the node.
    pub prefix: String,
}

/// An entry of `routes`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteTo {
    /// The prefix that the route leads to.
    pub dst: String,
}

/// Addresses, both ends included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressRange {
    /// The first address.
    #[serde(rename = "startIP")]
    pub start: String,
    /// The last address.
    #[serde(rename = "endIP")]
    pub end: String,
}

/// Addresses by their distance from the first address of a node's prefix, both ends included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IndexRange {
    /// The first index, from 0.
    pub start_index: i64,
    /// The last index.
    pub end_index: i64,
}

/// Go writes empty lists as null.
fn null_is_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The nodes whose allocations a plan has. All rows are checked in any case, but an allocation
/// repeats what the pool says for all nodes: a pool of many rows and many exclusions is small, and
/// all of its allocations together are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// All nodes.
    All,
    /// This node.
    Node(&'a str),
    /// None: only faults and warnings.
    None,
}

/// The allocations of a valid pool.
#[derive(Debug, Default)]
pub struct Plan {
    /// By the name of the node, as far as they are wanted.
    pub allocations: BTreeMap<String, Allocation>,
    /// Warnings about the pool itself.
    pub warnings: Vec<Fault>,
}

impl Spec {
    /// Whether the pool leaves every choice to nv-ipam's controller.
    pub fn is_dynamic(&self) -> bool {
        self.static_allocations
            .iter()
            .all(|row| row.node_name.is_empty())
    }

    /// The allocations of the nodes in `staticAllocations`, and of those that are only in `status`,
    /// whose prefix nv-ipam's controller chose. `path` is the path of the spec. The error has all
    /// faults.
    pub fn plan(&self, path: &str, status: &[Row], wanted: Wanted<'_>) -> Result<Plan, Vec<Fault>> {
        let mut checked = Checked::new(wanted);
        let Some(shape) = self.shape(path, &mut checked) else {
            return Err(checked.faults);
        };
        self.static_rows(path, &shape, &mut checked);
        self.status_rows(status, &shape, &mut checked);
        let Checked {
            allocations,
            warnings,
            faults,
            ..
        } = checked;
        if faults.is_empty() {
            Ok(Plan {
                allocations,
                warnings,
            })
        } else {
            Err(faults)
        }
    }

    fn static_rows<'a>(&'a self, path: &str, shape: &Shape, checked: &mut Checked<'a>) {
        let mut nodes = HashMap::new();
        for (index, row) in self.static_allocations.iter().enumerate() {
            let path = format!("{path}.staticAllocations[{index}]");
            let Row {
                node_name, prefix, ..
            } = row;
            let Some(found) = shape.link(&path, row, &mut checked.faults) else {
                continue;
            };
            let same_prefix = checked.prefixes.insert(found.prefix, index);
            let same_node = if node_name.is_empty() {
                None
            } else {
                nodes.insert(node_name.as_str(), index)
            };
            match (same_prefix, same_node) {
                (Some(one), Some(other)) if one == other => {
                    let problem = format!(
                        "node {node_name} and {prefix} are also in staticAllocations[{one}]"
                    );
                    checked.faults.push(Fault::new(path, problem));
                    continue;
                }
                (prefix, node) => {
                    checked.faults.extend(prefix.map(|other| {
                        let problem = format!(
                            "{} is also the prefix of staticAllocations[{other}]",
                            found.prefix
                        );
                        Fault::new(format!("{path}.prefix"), problem)
                    }));
                    checked.faults.extend(node.map(|other| {
                        let problem =
                            format!("node {node_name} is also in staticAllocations[{other}]");
                        Fault::new(format!("{path}.nodeName"), problem)
                    }));
                }
            }
            if !node_name.is_empty() {
                checked.faults.extend(shape.unusable(&path, &found));
                checked.insert(node_name, found, shape);
            }
        }
    }

    fn status_rows<'a>(&self, status: &'a [Row], shape: &Shape, checked: &mut Checked<'a>) {
        // A row with a fault counts too: what its node had before is no second fault.
        let planned: HashSet<&str> = self
            .static_allocations
            .iter()
            .map(|row| row.node_name.as_str())
            .collect();
        for (index, row) in status.iter().enumerate() {
            let path = format!("status.allocations[{index}]");
            let Row {
                node_name,
                prefix,
                gateway,
            } = row;
            let of = |key: &str| format!("{path}.{key}");
            if !node_name.is_empty() && planned.contains(node_name.as_str()) {
                // nv-ipam's controller will see it the same way.
                if let Some(other) = checked.nodes.get(node_name.as_str()) {
                    if prefix.parse().is_ok_and(|prefix: IpNet| prefix != *other) {
                        let problem = format!(
                            "node {node_name} had {prefix}, staticAllocations gives it {other}"
                        );
                        checked.warnings.push(Fault::new(path, problem));
                    }
                }
                continue;
            }
            let Some(found) = shape.link(&path, row, &mut checked.faults) else {
                continue;
            };
            let fault = if node_name.is_empty() {
                Some(Fault::new(of("nodeName"), "is empty"))
            } else if checked.nodes.contains_key(node_name.as_str()) {
                Some(Fault::new(
                    of("nodeName"),
                    format!("node {node_name} is given twice"),
                ))
            } else if checked.prefixes.insert(found.prefix, index).is_some() {
                Some(Fault::new(
                    of("prefix"),
                    format!("{prefix} is also the prefix of another node"),
                ))
            } else if found.gateway != shape.gateway_of(found.prefix) {
                Some(Fault::new(
                    of("gateway"),
                    format!("{gateway:?} is not the gateway that gatewayIndex gives"),
                ))
            } else {
                shape.unusable(&path, &found)
            };
            checked.faults.extend(fault);
            checked.insert(node_name, found, shape);
        }
    }

    /// The shape that every node shares; `None` where so much is wrong that rows cannot be judged.
    fn shape(&self, path: &str, checked: &mut Checked<'_>) -> Option<Shape> {
        let of = |key: &str| format!("{path}.{key}");
        let (cidr, length) = match self.lengths(path) {
            Ok(lengths) => lengths,
            Err(fault) => {
                checked.faults.push(fault);
                return None;
            }
        };
        let host_bits = cidr.max_prefix_len() - length;
        let last_index = (1u128 << host_bits.min(127)) - 1;

        let gateway_index = self
            .gateway_index
            .map(|index| u128::try_from(index).unwrap_or(u128::MAX));
        if let Some(index) = self.gateway_index {
            // nv-ipam: the network address is a gateway only where hosts can have it; an int32.
            let (first, last) = match host_bits {
                0 | 1 => (0, last_index),
                _ if cidr.addr().is_ipv4() => (1, last_index - 1),
                _ => (1, last_index),
            };
            let last = last.min(0x7fff_ffff);
            if !gateway_index.is_some_and(|index| (first..=last).contains(&index)) {
                let problem = format!(
                    "{index} is outside of the prefix of a node, which has {first} to {last}"
                );
                checked.faults.push(Fault::new(of("gatewayIndex"), problem));
                return None;
            }
        } else if (!self.routes.is_empty() || self.default_gateway) && !self.is_unnumbered {
            let problem =
                "routes need gatewayIndex; a gateway in staticAllocations takes precedence over it";
            checked.faults.push(Fault::new(of("routes"), problem));
        }
        if self.default_gateway {
            let problem = "is left out: a rail carries no default route";
            checked
                .warnings
                .push(Fault::new(of("defaultGateway"), problem));
        }
        if self.node_selector.is_some() {
            let problem = "is left out: staticAllocations alone says which nodes have a prefix";
            checked
                .warnings
                .push(Fault::new(of("nodeSelector"), problem));
        }

        let mut shape = Shape {
            cidr,
            length,
            gateway_index,
            routes: vec![],
            exclusions: vec![],
            indexes: vec![],
            is_unnumbered: self.is_unnumbered,
        };
        self.add_routes(path, &mut shape, checked);
        self.add_exclusions(path, &mut shape, checked);
        self.add_indexes(path, last_index, &mut shape, checked);
        merge(&mut shape.exclusions);
        merge(&mut shape.indexes);
        Some(shape)
    }

    /// The indexes that no node gives, which are at most `last`.
    fn add_indexes(&self, path: &str, last: u128, shape: &mut Shape, checked: &mut Checked<'_>) {
        for (index, range) in self.per_node_exclusions.iter().enumerate() {
            let IndexRange {
                start_index,
                end_index,
            } = range;
            match (u128::try_from(*start_index), u128::try_from(*end_index)) {
                (Ok(start), Ok(end)) if start <= end && end <= last => {
                    shape.indexes.push((start, end))
                }
                _ => checked.faults.push(Fault::new(
                    format!("{path}.perNodeExclusions[{index}]"),
                    format!("{start_index} to {end_index} is not a range within 0 to {last}"),
                )),
            }
        }
    }

    /// The pool's prefix, and the length of each node's.
    fn lengths(&self, path: &str) -> Result<(IpNet, u8), Fault> {
        let wrong = |problem: String| Fault::new(format!("{path}.cidr"), problem);
        let cidr = match self.cidr.parse::<IpNet>() {
            Ok(cidr) if cidr == cidr.trunc() => cidr,
            Ok(cidr) => return Err(wrong(host_bits_set(cidr))),
            Err(_) => return Err(wrong(format!("{:?} is not a prefix", self.cidr))),
        };
        let (shortest, longest) = (cidr.prefix_len().max(1), cidr.max_prefix_len());
        let given = self.per_node_network_prefix;
        let length = u8::try_from(given)
            .ok()
            .filter(|length| (shortest..=longest).contains(length));
        let outside = || {
            let problem =
                format!("{given} is not {shortest} to {longest}, the lengths that fit {cidr}");
            Fault::new(format!("{path}.perNodeNetworkPrefix"), problem)
        };
        Ok((cidr, length.ok_or_else(outside)?))
    }

    fn add_routes(&self, path: &str, shape: &mut Shape, checked: &mut Checked<'_>) {
        let Shape { cidr, .. } = *shape;
        let mut seen = HashSet::new();
        for (index, route) in self.routes.iter().enumerate() {
            let of_dst =
                |problem: String| Fault::new(format!("{path}.routes[{index}].dst"), problem);
            match route.dst.parse::<IpNet>() {
                Err(_) => checked
                    .faults
                    .push(of_dst(format!("{:?} is not a prefix", route.dst))),
                Ok(dst) if dst.addr().is_ipv4() != cidr.addr().is_ipv4() => {
                    checked.faults.push(of_dst(format!(
                        "{dst} is not of the address family of {cidr}"
                    )));
                }
                Ok(dst) if dst.prefix_len() == 0 => {
                    let problem = format!("{dst} is left out: a rail carries no default route");
                    checked.warnings.push(of_dst(problem));
                }
                Ok(dst) => {
                    if dst != dst.trunc() {
                        let problem = format!("{dst} has host bits set: using {}", dst.trunc());
                        checked.warnings.push(of_dst(problem));
                    }
                    if seen.insert(dst.trunc()) {
                        shape.routes.push(To { dst: dst.trunc() });
                    }
                }
            }
        }
    }

    fn add_exclusions(&self, path: &str, shape: &mut Shape, checked: &mut Checked<'_>) {
        let Shape { cidr, .. } = *shape;
        for (index, range) in self.exclusions.iter().enumerate() {
            let path = format!("{path}.exclusions[{index}]");
            let mut end_of = |key: &str, text: &str| {
                let problem = match text.parse::<IpAddr>() {
                    Ok(address) if cidr.contains(&address) => return Some(bits(address)),
                    Ok(address) => format!("{address} is outside of the pool's cidr {cidr}"),
                    Err(_) => format!("{text:?} is not an IP address"),
                };
                checked
                    .faults
                    .push(Fault::new(format!("{path}.{key}"), problem));
                None
            };
            match (end_of("startIP", &range.start), end_of("endIP", &range.end)) {
                (Some(start), Some(end)) if start > end => {
                    checked
                        .faults
                        .push(Fault::new(path, "endIP must not be lower than startIP"));
                }
                (Some(start), Some(end)) => shape.exclusions.push((start, end)),
                _ => (),
            }
        }
    }
}

fn host_bits_set(prefix: IpNet) -> String {
    format!(
        "{prefix} has host bits set: did you mean {}?",
        prefix.trunc()
    )
}

/// Sorts ranges; those that touch become one. Two exclusions may overlap, which makes every ADD of
/// nv-ipam fail.
fn merge(ranges: &mut Vec<(u128, u128)>) {
    ranges.sort_unstable();
    ranges.dedup_by(|next, kept| {
        let touch = next.0 <= kept.1.saturating_add(1);
        if touch {
            kept.1 = kept.1.max(next.1);
        }
        touch
    });
}

/// The knowledge of a pool while its rows are read.
struct Checked<'a> {
    wanted: Wanted<'a>,
    allocations: BTreeMap<String, Allocation>,
    /// The prefix of each node.
    nodes: HashMap<&'a str, IpNet>,
    /// The index of the row that has the prefix.
    prefixes: HashMap<IpNet, usize>,
    faults: Vec<Fault>,
    warnings: Vec<Fault>,
}

impl<'a> Checked<'a> {
    fn new(wanted: Wanted<'a>) -> Checked<'a> {
        Checked {
            wanted,
            allocations: BTreeMap::new(),
            nodes: HashMap::new(),
            prefixes: HashMap::new(),
            faults: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn insert(&mut self, node_name: &'a str, link: Allocation, shape: &Shape) {
        self.nodes.insert(node_name, link.prefix);
        if self.wanted == Wanted::All || self.wanted == Wanted::Node(node_name) {
            let exclusions = shape.exclusions_in(link.prefix).collect();
            let whole = Allocation {
                routes: shape.routes.clone(),
                exclusions,
                ..link
            };
            self.allocations.insert(node_name.to_owned(), whole);
        }
    }
}

/// A pool without its rows.
struct Shape {
    cidr: IpNet,
    length: u8,
    gateway_index: Option<u128>,
    routes: Vec<To>,
    /// First and last address, as numbers; sorted, and none touches another.
    exclusions: Vec<(u128, u128)>,
    /// First and last index in the prefix of a node, likewise.
    indexes: Vec<(u128, u128)>,
    is_unnumbered: bool,
}

impl Shape {
    /// The allocation of a row without what it has from the pool: routes and exclusions.
    fn link(&self, path: &str, row: &Row, faults: &mut Vec<Fault>) -> Option<Allocation> {
        let before = faults.len();
        let Shape { cidr, length, .. } = self;
        let mut wrong =
            |key: &str, problem: String| faults.push(Fault::new(format!("{path}.{key}"), problem));
        if !row.node_name.is_empty() && !is_name(&row.node_name) {
            wrong(
                "nodeName",
                format!("{:?} is not a valid name of a node", row.node_name),
            );
        }
        let prefix = match row.prefix.parse::<IpNet>() {
            Err(_) => Err(format!("{:?} is not a prefix", row.prefix)),
            Ok(prefix) if prefix != prefix.trunc() => Err(host_bits_set(prefix)),
            Ok(prefix) if prefix.addr().is_ipv4() != cidr.addr().is_ipv4() => Err(format!(
                "{prefix} is not of the address family of the pool's cidr {cidr}"
            )),
            Ok(prefix) if !cidr.contains(&prefix) => {
                Err(format!("{prefix} is outside of the pool's cidr {cidr}"))
            }
            Ok(prefix) if prefix.prefix_len() != *length => Err(format!(
                "{prefix} does not have the length of perNodeNetworkPrefix, {length}"
            )),
            Ok(prefix) => Ok(prefix),
        };
        let prefix = prefix.map_err(|problem| wrong("prefix", problem)).ok()?;
        let gateway = match row.gateway.as_str() {
            "" => self.gateway_of(prefix),
            text => match text.parse::<IpAddr>() {
                Ok(gateway) => Some(gateway),
                Err(_) => {
                    wrong("gateway", format!("{text:?} is not an IP address"));
                    return None;
                }
            },
        };
        let allocation = Allocation {
            version: if self.is_unnumbered {
                allocation::UNNUMBERED
            } else {
                allocation::NUMBERED
            },
            prefix,
            gateway,
            rail: None,
            routes: Vec::new(),
            exclusions: Vec::new(),
            leaf_ports: Vec::new(),
        };
        if let Err(Fault { path, problem, .. }) = allocation.check() {
            wrong(&path, problem);
        }
        (faults.len() == before).then_some(allocation)
    }

    fn gateway_of(&self, prefix: IpNet) -> Option<IpAddr> {
        let index = self.gateway_index?;
        Some(address(
            bits(prefix.network()).checked_add(index)?,
            IpVersion::of(prefix.addr()),
        ))
    }

    /// The parts of the exclusions that lie in `prefix`, sorted; ranges that touch become one. An
    /// exclusion that begins before the prefix and ends behind it covers the prefix, which nv-ipam
    /// forgets.
    fn exclusions_in(&self, prefix: IpNet) -> impl Iterator<Item = Range> {
        let (first, last) = (bits(prefix.network()), bits(prefix.broadcast()));
        let begin = self.exclusions.partition_point(|(_, end)| *end < first);
        let of_pool = self.exclusions[begin..]
            .iter()
            .take_while(move |(start, _)| *start <= last);
        let mut of_pool = of_pool
            .map(move |(start, end)| (*start.max(&first), *end.min(&last)))
            .peekable();
        let mut of_node = self
            .indexes
            .iter()
            .map(move |(start, end)| (first + start, first + end))
            .peekable();
        let mut next = move || match (of_pool.peek(), of_node.peek()) {
            (Some(one), Some(other)) if other < one => of_node.next(),
            (Some(_), _) => of_pool.next(),
            (None, _) => of_node.next(),
        };
        let mut behind = next();
        let merged = std::iter::from_fn(move || {
            let (start, mut end) = behind.take()?;
            while end < last {
                match next() {
                    Some(other) if other.0 <= end + 1 => end = end.max(other.1),
                    other => {
                        behind = other;
                        break;
                    }
                }
            }
            Some((start, end))
        });
        let version = IpVersion::of(prefix.addr());
        merged.map(move |(start, end)| Range {
            start: address(start, version),
            end: address(end, version),
        })
    }

    /// A plan with no address for a pod is a mistake that would show only when a job starts.
    fn unusable(&self, path: &str, link: &Allocation) -> Option<Fault> {
        // Between three ranges there are two gaps, and the gateway fills one of them at most.
        const ENOUGH: usize = 3;
        let exclusions = self.exclusions_in(link.prefix).take(ENOUGH).collect();
        let Allocation {
            prefix, gateway, ..
        } = link;
        let gateway = gateway.map_or_else(
            || "no gateway".to_owned(),
            |gateway| format!("gateway {gateway}"),
        );
        Allocation {
            exclusions,
            ..link.clone()
        }
        .first_free(|_| false)
        .is_none()
        .then(|| {
            let problem =
                format!("{prefix} with {gateway} and the exclusions has no address left for a pod");
            Fault::new(path, problem)
        })
    }
}

#[cfg(test)]
mod tests;
