//! NVIDIA's CIDRPool: what its spec gives to each node, with the meaning and the
//! limits of nv-ipam's webhook (cidrpool_validate.go), and more strictly where
//! that lets mistakes reach the fabric.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::allocation::{self, Allocation, Range, To, address, bits};
use super::is_name;
use crate::cni::Keys;

/// Fields of a spec that can stand in a network configuration.
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

/// The keys of what stands in the lists of these.
pub const LIST_KEYS: [(&str, &Keys); 4] = [
    ("staticAllocations", &Keys::flat(&[&["nodeName", "prefix", "gateway"]])),
    ("routes", &Keys::flat(&[&["dst"]])),
    ("exclusions", &Keys::flat(&[&["startIP", "endIP"]])),
    ("perNodeExclusions", &Keys::flat(&[&["startIndex", "endIndex"]])),
];

/// `spec` of a CIDRPool, as written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// What all nodes' prefixes are part of.
    pub cidr: String,
    /// Length of a node's prefix.
    pub per_node_network_prefix: i64,
    /// The gateway of a row that names none, counted from the first address of its prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway_index: Option<i64>,
    /// Who has which prefix.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub static_allocations: Vec<Row>,
    /// By the node's gateway.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteTo>,
    /// Addresses that no pod gets.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub exclusions: Vec<AddressRange>,
    /// The same, counted from the first address of a node's prefix.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub per_node_exclusions: Vec<IndexRange>,
    /// Refused politely: a rail carries no default route.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "is_default")]
    pub default_gateway: bool,
    /// nv-ipam's controller looks at it; here the rows alone decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<Value>,
}

/// One entry of `staticAllocations`, or of `status.allocations`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Row {
    /// Empty: the prefix is reserved.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// The leaf port; empty: what `gatewayIndex` gives.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "String::is_empty")]
    pub gateway: String,
    /// The node's.
    pub prefix: String,
}

/// Destination of a route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteTo {
    /// Destination.
    pub dst: String,
}

/// Addresses, both ends included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressRange {
    /// The first.
    #[serde(rename = "startIP")]
    pub start: String,
    /// The last.
    #[serde(rename = "endIP")]
    pub end: String,
}

/// Addresses by their place in a node's prefix, both ends included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IndexRange {
    /// The first.
    pub start_index: i64,
    /// The last.
    pub end_index: i64,
}

/// Go writes empty lists as null.
fn null_is_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What a valid pool gives.
#[derive(Debug, Default)]
pub struct Plan {
    /// By the name of the node.
    pub allocations: BTreeMap<String, Allocation>,
    /// What was left out.
    pub warnings: Vec<String>,
}

impl Spec {
    /// Does it leave every choice to nv-ipam's controller?
    pub fn is_dynamic(&self) -> bool {
        self.static_allocations.iter().all(|row| row.node_name.is_empty())
    }

    /// The allocation of every node in `staticAllocations`, and of those in `status` that it does not name:
    /// nv-ipam's controller chose theirs. `path` is where the spec stands; all faults are told at once.
    pub fn plan(&self, path: &str, status: &[Row]) -> Result<Plan, Vec<String>> {
        let mut faults = Vec::new();
        let mut plan = Plan::default();
        let Some(shape) = self.shape(path, &mut faults, &mut plan.warnings) else { return Err(faults) };

        let mut nodes = HashMap::new();
        let mut prefixes = HashMap::new();
        for (index, row) in self.static_allocations.iter().enumerate() {
            let path = format!("{path}.staticAllocations[{index}]");
            let Some(found) = shape.allocation(&path, row, &mut faults) else { continue };
            if let Some(other) = prefixes.insert(found.prefix, index) {
                faults.push(format!(
                    "{path}.prefix: {} is also the prefix of staticAllocations[{other}]",
                    found.prefix
                ));
            }
            if row.node_name.is_empty() {
                continue;
            }
            if let Some(other) = nodes.insert(row.node_name.as_str(), index) {
                faults.push(format!(
                    "{path}.nodeName: node {} is also in staticAllocations[{other}]",
                    row.node_name
                ));
            }
            if let Some(fault) = unusable(&path, &found) {
                faults.push(fault);
            }
            plan.allocations.insert(row.node_name.clone(), found);
        }

        for (index, row) in status.iter().enumerate() {
            let path = format!("status.allocations[{index}]");
            let Some(found) = shape.allocation(&path, row, &mut faults) else { continue };
            let Row { node_name, prefix, .. } = row;
            match plan.allocations.get(node_name) {
                Some(planned) if planned.prefix == found.prefix => continue,
                // nv-ipam's controller will see it the same way.
                Some(planned) if nodes.contains_key(node_name.as_str()) => {
                    plan.warnings.push(format!(
                        "{path}: node {node_name} had {prefix}, staticAllocations gives it {}",
                        planned.prefix
                    ));
                    continue;
                }
                Some(_) => faults.push(format!("{path}.nodeName: node {node_name} is there twice")),
                None if node_name.is_empty() => faults.push(format!("{path}.nodeName: is empty")),
                None => (),
            }
            if prefixes.insert(found.prefix, index).is_some() {
                faults.push(format!("{path}.prefix: {prefix} is also the prefix of another node"));
            }
            if found.gateway != shape.gateway_of(found.prefix) {
                faults.push(format!("{path}.gateway: {:?} is not what gatewayIndex gives", row.gateway));
            }
            if let Some(fault) = unusable(&path, &found) {
                faults.push(fault);
            }
            plan.allocations.insert(node_name.clone(), found);
        }
        if faults.is_empty() { Ok(plan) } else { Err(faults) }
    }

    /// What holds for every node; `None` when so much is wrong that rows cannot be judged.
    fn shape(&self, path: &str, faults: &mut Vec<String>, warnings: &mut Vec<String>) -> Option<Shape> {
        let cidr = match self.cidr.parse::<IpNet>() {
            Ok(cidr) if cidr == cidr.trunc() => cidr,
            Ok(cidr) => {
                faults.push(format!(
                    "{path}.cidr: {cidr}: network prefix has host bits set, {} is meant?",
                    cidr.trunc()
                ));
                return None;
            }
            Err(_) => {
                faults.push(format!("{path}.cidr: {:?} is invalid cidr", self.cidr));
                return None;
            }
        };
        let length = self.per_node_network_prefix;
        let (shortest, longest) = (cidr.prefix_len().max(1), cidr.max_prefix_len());
        let length = u8::try_from(length).ok().filter(|length| (shortest..=longest).contains(length));
        let Some(length) = length else {
            let given = self.per_node_network_prefix;
            faults.push(format!(
                "{path}.perNodeNetworkPrefix: {given} is not {shortest} to {longest}, which {cidr} allows"
            ));
            return None;
        };
        let last_index = (1u128 << (longest - length).min(127)) - 1;

        let gateway_index = self.gateway_index.map(|index| u128::try_from(index).unwrap_or(u128::MAX));
        if let Some(index) = self.gateway_index {
            // nv-ipam: the network address is a gateway only where hosts can have it; an int32.
            let (first, last) = match longest - length {
                0 | 1 => (0, last_index),
                _ if cidr.addr().is_ipv4() => (1, last_index - 1),
                _ => (1, last_index),
            };
            let last = last.min(0x7fff_ffff);
            if !gateway_index.is_some_and(|index| (first..=last).contains(&index)) {
                faults.push(format!(
                    "{path}.gatewayIndex: {index}: gateway index is outside of the node prefix ({first} to {last})"
                ));
                return None;
            }
        } else if !self.routes.is_empty() || self.default_gateway {
            faults.push(format!(
                "{path}.routes: cannot be set if gatewayIndex is not set; a gateway in staticAllocations wins over it"
            ));
        }
        if self.default_gateway {
            warnings.push(format!("{path}.defaultGateway: left out, a rail carries no default route"));
        }
        if self.node_selector.is_some() {
            warnings.push(format!("{path}.nodeSelector: not looked at, the rows alone decide"));
        }

        let mut shape =
            Shape { cidr, length, gateway_index, routes: vec![], exclusions: vec![], indexes: vec![] };
        for (index, route) in self.routes.iter().enumerate() {
            let path = format!("{path}.routes[{index}].dst");
            match route.dst.parse::<IpNet>() {
                Err(_) => faults.push(format!("{path}: {:?} is invalid subnet", route.dst)),
                Ok(dst) if dst.addr().is_ipv4() != cidr.addr().is_ipv4() => {
                    faults.push(format!("{path}: {dst} is not same address family as {cidr}"));
                }
                Ok(dst) if dst.prefix_len() == 0 => {
                    warnings.push(format!("{path}: {dst}: left out, a rail carries no default route"));
                }
                Ok(dst) => {
                    if dst != dst.trunc() {
                        warnings.push(format!("{path}: {dst} has host bits set, taken as {}", dst.trunc()));
                    }
                    let to = To { dst: dst.trunc() };
                    if !shape.routes.contains(&to) {
                        shape.routes.push(to);
                    }
                }
            }
        }
        for (index, range) in self.exclusions.iter().enumerate() {
            let path = format!("{path}.exclusions[{index}]");
            let mut end_of = |key: &str, text: &str| match text.parse::<IpAddr>() {
                Ok(address) if cidr.contains(&address) => Some(bits(address)),
                Ok(address) => {
                    faults.push(format!("{path}.{key}: {address} is not part of the {cidr} subnet"));
                    None
                }
                Err(_) => {
                    faults.push(format!("{path}.{key}: {text:?} is invalid IP address"));
                    None
                }
            };
            match (end_of("startIP", &range.start), end_of("endIP", &range.end)) {
                (Some(start), Some(end)) if start > end => {
                    faults.push(format!("{path}: endIP should be equal or greater than startIP"));
                }
                (Some(start), Some(end)) => shape.exclusions.push((start, end)),
                _ => (),
            }
        }
        for (index, range) in self.per_node_exclusions.iter().enumerate() {
            let ends = (u128::try_from(range.start_index), u128::try_from(range.end_index));
            match ends {
                (Ok(start), Ok(end)) if start <= end && end <= last_index => shape.indexes.push((start, end)),
                _ => faults.push(format!(
                    "{path}.perNodeExclusions[{index}]: {} to {}: index is outside of the per-node subnet range (max: {last_index})",
                    range.start_index, range.end_index
                )),
            }
        }
        Some(shape)
    }
}

/// A pool without its rows.
struct Shape {
    cidr: IpNet,
    length: u8,
    gateway_index: Option<u128>,
    routes: Vec<To>,
    exclusions: Vec<(u128, u128)>,
    indexes: Vec<(u128, u128)>,
}

impl Shape {
    fn allocation(&self, path: &str, row: &Row, faults: &mut Vec<String>) -> Option<Allocation> {
        let before = faults.len();
        if !row.node_name.is_empty() && !is_name(&row.node_name) {
            faults.push(format!("{path}.nodeName: {:?} is no name of a node", row.node_name));
        }
        let Shape { cidr, length, .. } = self;
        let wrong = |why: String| format!("{path}.prefix: {}: {why}", row.prefix);
        let prefix = match row.prefix.parse::<IpNet>() {
            Err(_) => Err("is not a valid network prefix".to_owned()),
            Ok(prefix) if prefix != prefix.trunc() => {
                Err(format!("network prefix has host bits set, {} is meant?", prefix.trunc()))
            }
            Ok(prefix) if prefix.addr().is_ipv4() != cidr.addr().is_ipv4() => {
                Err(format!("ip family doesn't match the pool cidr {cidr}"))
            }
            Ok(prefix) if !cidr.contains(&prefix) => {
                Err(format!("prefix is not part of the pool cidr {cidr}"))
            }
            Ok(prefix) if prefix.prefix_len() != *length => {
                Err(format!("prefix size doesn't match perNodeNetworkPrefix {length}"))
            }
            Ok(prefix) => Ok(prefix),
        };
        let prefix = prefix.map_err(|why| faults.push(wrong(why))).ok()?;
        let gateway = match row.gateway.as_str() {
            "" => self.gateway_of(prefix),
            text => match text.parse::<IpAddr>() {
                Ok(gateway) => Some(gateway),
                Err(_) => {
                    faults.push(format!("{path}.gateway: {text:?} is not a valid IP"));
                    return None;
                }
            },
        };
        let allocation = Allocation {
            version: allocation::VERSION,
            prefix,
            gateway,
            rail: None,
            routes: self.routes.clone(),
            exclusions: self.exclusions_in(prefix),
            leaf_ports: Vec::new(),
        };
        if let Err(why) = allocation.check() {
            faults.push(format!("{path}.{why}"));
        }
        (faults.len() == before).then_some(allocation)
    }

    fn gateway_of(&self, prefix: IpNet) -> Option<IpAddr> {
        let index = self.gateway_index?;
        Some(address(bits(prefix.network()).checked_add(index)?, prefix.addr().is_ipv4()))
    }

    /// The parts of the exclusions that lie in `prefix`, sorted, those that touch made one. An exclusion that
    /// begins before the prefix and ends behind it covers it (nv-ipam forgets that one), and two may overlap
    /// (there every ADD fails).
    fn exclusions_in(&self, prefix: IpNet) -> Vec<Range> {
        let (first, last) = (bits(prefix.network()), bits(prefix.broadcast()));
        let of_pool = self.exclusions.iter().map(|(start, end)| (*start.max(&first), *end.min(&last)));
        let of_node = self.indexes.iter().map(|(start, end)| (first + start, first + end));
        let mut ranges: Vec<_> = of_pool.chain(of_node).filter(|(start, end)| start <= end).collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, kept| {
            let touch = next.0 <= kept.1.saturating_add(1);
            if touch {
                kept.1 = kept.1.max(next.1);
            }
            touch
        });
        let is_ipv4 = prefix.addr().is_ipv4();
        let range = |(start, end)| Range { start: address(start, is_ipv4), end: address(end, is_ipv4) };
        ranges.into_iter().map(range).collect()
    }
}

/// A plan with no address for a pod is a mistake that would show only when a job starts.
fn unusable(path: &str, allocation: &Allocation) -> Option<String> {
    let Allocation { prefix, gateway, .. } = allocation;
    let gateway = gateway.map_or_else(|| "none".to_owned(), |gateway| gateway.to_string());
    allocation.first_free(|_| false).is_none().then(|| {
        format!("{path}: {prefix} with gateway {gateway} and the exclusions has no address left for a pod")
    })
}

/// Ten lines tell a mistake as well as ten thousand.
pub const SHOWN: usize = 10;

/// The first ones, and how many more there are.
pub fn few(mut warnings: Vec<String>) -> Vec<String> {
    if warnings.len() > SHOWN {
        let more = warnings.len() - SHOWN;
        warnings.truncate(SHOWN);
        warnings.push(format!("and {more} more of these"));
    }
    warnings
}

/// Faults for one message: the first ones, and how many there are.
pub fn some_of(faults: &[String]) -> String {
    let shown = faults.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
    match faults.len().checked_sub(SHOWN) {
        None | Some(0) => shown,
        Some(more) => format!("{shown}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn plan(spec: Value) -> Result<Plan, Vec<String>> {
        serde_json::from_value::<Spec>(spec).unwrap().plan("spec", &[])
    }

    fn with(change: impl Fn(&mut Value)) -> Value {
        let mut spec = json!({
            "cidr": "172.16.0.0/15", "gatewayIndex": 0, "perNodeNetworkPrefix": 31,
            "routes": [{"dst": "172.16.0.0/15"}, {"dst": "172.16.0.0/12"}],
            "staticAllocations": [
                {"nodeName": "worker-gpu-62", "prefix": "172.16.1.60/31", "gateway": "172.16.1.61"},
                {"nodeName": "worker-gpu-63", "prefix": "172.16.1.62/31", "gateway": "172.16.1.63"},
                {"prefix": "172.16.1.0/31"}],
        });
        change(&mut spec);
        spec
    }

    #[test]
    fn the_deployment_gets_what_it_was_planned() {
        let plan = plan(with(|_| ())).unwrap();
        assert_eq!(plan.allocations.keys().collect::<Vec<_>>(), ["worker-gpu-62", "worker-gpu-63"]);
        let ours = &plan.allocations["worker-gpu-62"];
        assert_eq!(ours.gateway.unwrap().to_string(), "172.16.1.61");
        assert_eq!(ours.first_free(|_| false).unwrap().to_string(), "172.16.1.60");
        let routes: Vec<_> = ours.routes.iter().map(|to| to.dst.to_string()).collect();
        assert_eq!(routes, ["172.16.0.0/15", "172.16.0.0/12"]);
        assert!(plan.warnings.is_empty());
    }

    #[test]
    fn without_a_gateway_of_its_own_a_row_has_that_of_the_index() {
        let spec = |index: u32, prefix: &str| {
            json!({"cidr": "10.0.0.0/8", "gatewayIndex": index, "perNodeNetworkPrefix": 24,
                "staticAllocations": [{"nodeName": "n", "prefix": prefix}]})
        };
        let gateway = |spec| plan(spec).unwrap().allocations["n"].gateway.unwrap().to_string();
        assert_eq!(gateway(spec(1, "10.0.7.0/24")), "10.0.7.1");
        assert_eq!(gateway(spec(254, "10.0.7.0/24")), "10.0.7.254");
        assert!(plan(spec(0, "10.0.7.0/24")).is_err());
        assert!(plan(spec(255, "10.0.7.0/24")).is_err());
    }

    #[test]
    fn every_fault_is_told_with_its_place() {
        type Change<'a> = &'a dyn Fn(&mut Value);
        let cases: [(&str, Change<'_>); 21] = [
            ("spec.cidr: 172.16.0.1/15: network prefix has host bits set", &|v| {
                v["cidr"] = json!("172.16.0.1/15")
            }),
            ("spec.cidr: \"x\" is invalid cidr", &|v| v["cidr"] = json!("x")),
            ("spec.perNodeNetworkPrefix: 14 is not 15 to 32", &|v| v["perNodeNetworkPrefix"] = json!(14)),
            ("spec.perNodeNetworkPrefix: -1", &|v| v["perNodeNetworkPrefix"] = json!(-1)),
            ("spec.gatewayIndex: 2: gateway index is outside", &|v| v["gatewayIndex"] = json!(2)),
            ("spec.gatewayIndex: -1", &|v| v["gatewayIndex"] = json!(-1)),
            ("spec.routes: cannot be set if gatewayIndex is not set", &|v| v["gatewayIndex"] = json!(null)),
            ("spec.routes[1].dst: \"x\" is invalid subnet", &|v| v["routes"][1]["dst"] = json!("x")),
            ("spec.routes[0].dst: fd00::/8 is not same address family", &|v| {
                v["routes"][0]["dst"] = json!("fd00::/8")
            }),
            ("staticAllocations[0].prefix: 172.16.1.61/31: network prefix has host bits", &|v| {
                v["staticAllocations"][0]["prefix"] = json!("172.16.1.61/31");
            }),
            ("[0].prefix: 10.0.0.0/31: prefix is not part of", &|v| {
                v["staticAllocations"][0]["prefix"] = json!("10.0.0.0/31")
            }),
            ("[0].prefix: 172.16.1.60/30: prefix size", &|v| {
                v["staticAllocations"][0]["prefix"] = json!("172.16.1.60/30")
            }),
            ("[0].prefix: fd00::/31: ip family", &|v| {
                v["staticAllocations"][0]["prefix"] = json!("fd00::/31")
            }),
            ("[0].gateway: 172.16.1.63 is outside", &|v| {
                v["staticAllocations"][0]["gateway"] = json!("172.16.1.63")
            }),
            ("[0].gateway: \"x\" is not a valid IP", &|v| v["staticAllocations"][0]["gateway"] = json!("x")),
            ("[1].nodeName: node worker-gpu-62 is also in", &|v| {
                v["staticAllocations"][1]["nodeName"] = json!("worker-gpu-62")
            }),
            ("[2].prefix: 172.16.1.60/31 is also the prefix of", &|v| {
                v["staticAllocations"][2]["prefix"] = json!("172.16.1.60/31")
            }),
            ("[0].nodeName: \"../x\" is no name", &|v| v["staticAllocations"][0]["nodeName"] = json!("../x")),
            ("exclusions[0]: endIP should be", &|v| {
                v["exclusions"] = json!([{"startIP": "172.16.0.9", "endIP": "172.16.0.8"}])
            }),
            ("exclusions[0].endIP: 10.0.0.1 is not part", &|v| {
                v["exclusions"] = json!([{"startIP": "172.16.0.9", "endIP": "10.0.0.1"}])
            }),
            ("perNodeExclusions[0]: 0 to 2: index is outside", &|v| {
                v["perNodeExclusions"] = json!([{"startIndex": 0, "endIndex": 2}])
            }),
        ];
        for (expected, change) in cases {
            let faults = plan(with(change)).unwrap_err();
            assert!(faults.iter().any(|fault| fault.contains(expected)), "{expected}: {faults:?}");
        }
    }

    #[test]
    fn two_spellings_of_a_prefix_are_the_same_prefix() {
        let faults = plan(json!({"cidr": "fd00::/64", "perNodeNetworkPrefix": 127, "staticAllocations": [
            {"nodeName": "a", "prefix": "fd00::/127"}, {"nodeName": "b", "prefix": "fd00:0:0::/127"}]}));
        assert!(faults.unwrap_err()[0].contains("is also the prefix of staticAllocations[0]"));
    }

    #[test]
    fn a_row_without_an_address_for_a_pod_is_refused() {
        let swapped = with(|v| {
            v["perNodeExclusions"] = json!([{"startIndex": 1, "endIndex": 1}]);
            v["staticAllocations"][0]["gateway"] = json!("172.16.1.60");
        });
        assert!(plan(swapped).unwrap_err()[0].contains("has no address left for a pod"));
        let only = json!({"cidr": "10.0.0.0/24", "perNodeNetworkPrefix": 32,
            "staticAllocations": [{"nodeName": "a", "prefix": "10.0.0.1/32", "gateway": "10.0.0.1"}]});
        assert!(plan(only).unwrap_err()[0].contains("has no address left for a pod"));
    }

    #[test]
    fn default_routes_are_left_out_with_a_warning() {
        let plan = plan(with(|v| {
            v["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "172.16.9.9/12"}]);
            v["defaultGateway"] = json!(true);
        }));
        let plan = plan.unwrap();
        assert_eq!(plan.allocations["worker-gpu-62"].routes, [To { dst: "172.16.0.0/12".parse().unwrap() }]);
        assert_eq!(plan.warnings.len(), 3);
    }

    #[test]
    fn exclusions_are_cut_to_the_node_and_merged() {
        let plan = plan(json!({"cidr": "10.0.0.0/16", "perNodeNetworkPrefix": 24, "exclusions": [
            {"startIP": "10.0.0.0", "endIP": "10.0.1.9"}, {"startIP": "10.0.1.5", "endIP": "10.0.1.19"},
            {"startIP": "10.0.9.0", "endIP": "10.0.9.1"}],
            "perNodeExclusions": [{"startIndex": 20, "endIndex": 29}, {"startIndex": 200, "endIndex": 255}],
            "staticAllocations": [{"nodeName": "a", "prefix": "10.0.1.0/24"}]}));
        let exclusions = &plan.unwrap().allocations["a"].exclusions;
        let shown: Vec<_> = exclusions.iter().map(|range| format!("{}-{}", range.start, range.end)).collect();
        assert_eq!(shown, ["10.0.1.0-10.0.1.29", "10.0.1.200-10.0.1.255"]);
    }

    /// How a running cluster is taken over.
    #[test]
    fn what_nv_ipam_chose_by_itself_is_taken_from_the_status() {
        let spec = with(|v| v["gatewayIndex"] = json!(1));
        let spec: Spec = serde_json::from_value(spec).unwrap();
        let rows = |rows: Value| -> Vec<Row> { serde_json::from_value(rows).unwrap() };
        let status = rows(json!([{"nodeName": "w", "prefix": "172.16.9.0/31", "gateway": "172.16.9.1"},
            {"nodeName": "worker-gpu-62", "prefix": "172.16.1.60/31", "gateway": "172.16.1.61"},
            {"nodeName": "worker-gpu-63", "prefix": "172.16.7.0/31", "gateway": "172.16.7.1"}]));
        let plan = spec.plan("spec", &status).unwrap();
        assert_eq!(plan.allocations.len(), 3);
        assert_eq!(plan.allocations["w"].prefix.to_string(), "172.16.9.0/31");
        assert_eq!(plan.allocations["worker-gpu-63"].prefix.to_string(), "172.16.1.62/31");
        for bad in [
            json!([{"nodeName": "w", "prefix": "172.16.9.0/31", "gateway": "172.16.9.0"}]),
            json!([{"nodeName": "w", "prefix": "172.16.1.0/31", "gateway": "172.16.1.1"}]),
            json!([{"prefix": "172.16.9.0/31", "gateway": "172.16.9.1"}]),
            json!([{"nodeName": "w", "prefix": "172.16.9.0/31", "gateway": "172.16.9.1"},
                {"nodeName": "w", "prefix": "172.16.9.2/31", "gateway": "172.16.9.3"}]),
        ] {
            assert!(spec.plan("spec", &rows(bad.clone())).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_pool_makes_it_panic(
            cidr in "([0-9]{1,3}\\.0\\.0\\.0|[0-9a-f:]{2,9})/[0-9]{1,3}", length in -1i64..130,
            index in proptest::option::of(-1i64..1 << 33), start in -1i64..300, end in i64::MIN..i64::MAX,
            prefix in "([0-9]{1,3}\\.0\\.0\\.0|[0-9a-f:]{2,9})/[0-9]{1,3}",
        ) {
            let _ = plan(json!({"cidr": cidr, "perNodeNetworkPrefix": length, "gatewayIndex": index,
                "perNodeExclusions": [{"startIndex": start, "endIndex": end}, {"startIndex": 0, "endIndex": end}],
                "staticAllocations": [{"nodeName": "a", "prefix": prefix}, {"nodeName": "b", "prefix": cidr}]}));
        }
    }
}
