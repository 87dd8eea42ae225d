//! The `ipam` section of a network configuration: which pools, from where, and
//! which addresses were asked for.

use std::net::IpAddr;

use anyhow::Result;
use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::cluster_networks::overlap;
use crate::cni::{GC_KEYS, Keys, Network};
use crate::node::Node;
use crate::pool::allocation::Allocation;
use crate::pool::cidrpool::{self, Plan, Spec};
use crate::pool::is_name;
use crate::pool::store::{self, Store};
use crate::{fail, failure};

/// The keys of a section that names pools; [`cidrpool::SPEC_KEYS`] are those of one that is a pool.
pub const KEYS: [&str; 4] = ["type", "pool", "poolName", "poolType"];

/// All that is read of a network configuration.
pub const NETWORK: Keys = Keys {
    names: &[
        &["cniVersion", "name", "rail", "ipam", "runtimeConfig", "args", "prevResult"],
        &["logLevel", "logFile"],
        &GC_KEYS,
    ],
    inside: &[
        ("ipam", &Keys { names: &[&KEYS, &cidrpool::SPEC_KEYS], inside: &cidrpool::LIST_KEYS }),
        ("runtimeConfig", &Keys::flat(&[&["ips"]])),
        ("args", &Keys { names: &[&["cni"]], inside: &[("cni", &Keys::flat(&[&["ips"]]))] }),
    ],
};

/// The section, checked.
#[derive(Debug)]
pub struct Config {
    /// One or two, of different names.
    pub pools: Vec<String>,
    /// The pool itself, where it is not in the store.
    inline: Option<Spec>,
    /// The rail that rail-cni attaches, to be compared with what the pools were planned for.
    rail: Option<u64>,
}

impl Config {
    /// Reads `{"pool": "rail-0"}`, nv-ipam's `{"poolName": "rail-0", "poolType": "cidrpool"}`, or the fields of
    /// a CIDRPool's spec. Without a name, the network's is the pool's.
    pub fn parse(network: &Network) -> Result<Config> {
        let section = match network.get(&["ipam"]) {
            Some(Value::Object(section)) => section,
            Some(_) => fail!(InvalidConfig, "ipam: not a JSON object"),
            None => fail!(InvalidConfig, "ipam is missing: {{\"type\": \"rail-ipam\", \"pool\": NAME}}"),
        };
        let names = match (text(network, "pool")?, text(network, "poolName")?) {
            (Some(one), Some(other)) if one != other => {
                fail!(InvalidConfig, "ipam.pool {one:?} and ipam.poolName {other:?} differ: give one")
            }
            (Some(names), _) | (None, Some(names)) => names,
            (None, None) => &network.name,
        };
        let pools = pool_names(names)?;
        if let Some(kind) = text(network, "poolType")?.filter(|kind| !kind.eq_ignore_ascii_case("cidrpool")) {
            fail!(InvalidConfig, "ipam.poolType {kind:?}: only pools of type cidrpool are served");
        }
        let inline = inline(section)?;
        if inline.is_some() && pools.len() > 1 {
            fail!(InvalidConfig, "ipam: two pools ({names}) must be in the store, cidr describes one");
        }
        for key in section.keys().filter(|key| !is_known(key)) {
            log::warn!("ipam.{key}: unknown key, ignored");
        }
        let rail = network.get(&["rail"]).and_then(Value::as_u64);
        Ok(Config { pools, inline, rail })
    }

    /// What the pool in place gives to all nodes, or all that is wrong with it; `None`: it is in the store.
    pub fn plan(&self) -> Option<Result<Plan, Vec<String>>> {
        self.inline.as_ref().map(|spec| spec.plan("ipam", &[]))
    }

    /// What each pool gives to this node, in the order of the pools.
    pub fn allocations(&self, node: &Node, node_name: &str) -> Result<Vec<Allocation>> {
        let Some(plan) = self.plan() else {
            let allocations = store::load(node, node_name, &self.pools)?;
            for (pool, allocation) in self.pools.iter().zip(&allocations) {
                self.refuse_other_rail(pool, allocation.rail)?;
            }
            return Ok(allocations);
        };
        let pool = &self.pools[0];
        let mut plan =
            plan.map_err(|faults| failure!(InvalidConfig, "pool {pool}: {}", cidrpool::some_of(&faults)))?;
        for warning in &plan.warnings {
            log::warn!("pool {pool}: {warning}");
        }
        match plan.allocations.remove(node_name) {
            Some(allocation) => {
                beside_the_plan(node, node_name, pool, &allocation)?;
                Ok(vec![allocation])
            }
            None => fail!(
                InvalidConfig,
                "node {node_name:?} has no prefix in ipam.staticAllocations of pool {pool}{}",
                store::near_hint(node_name, plan.allocations.keys().map(String::as_str), "the pool")
            ),
        }
    }
}

impl Config {
    /// An address of another rail would be taken by the pod and by no leaf.
    fn refuse_other_rail(&self, pool: &str, planned: Option<u8>) -> Result<()> {
        match (self.rail, planned) {
            (Some(rail), Some(planned)) if rail != u64::from(planned) => fail!(
                InvalidConfig,
                "pool {pool} was planned for rail {planned}, the network is rail {rail}: check ipam.pool and rail"
            ),
            _ => Ok(()),
        }
    }
}

/// Who writes a network is not who planned the fabric: a pool in place takes neither the name nor the addresses
/// of what this node has in the store, nor those that its planned routes lead to.
fn beside_the_plan(node: &Node, node_name: &str, pool: &str, allocation: &Allocation) -> Result<()> {
    if !node.policy.inline_pools {
        fail!(
            InvalidConfig,
            "pool {pool}: policy.inlinePools of node.json allows no pool in a network: name one of the store"
        );
    }
    let store = Store::open(node)?;
    let planned = store.pools(node_name)?;
    if planned.iter().any(|planned| planned == pool) {
        fail!(
            InvalidConfig,
            "pool {pool} is planned, and ipam describes another one: leave out cidr and staticAllocations, or \
             give ipam.pool another name"
        );
    }
    let prefix = allocation.prefix;
    for (name, found) in planned.iter().zip(store.find(node_name, &planned)?) {
        let Some(planned) = found? else { continue };
        let destinations = planned.routes.iter().map(|route| route.dst);
        if let Some(taken) =
            [planned.prefix].into_iter().chain(destinations).find(|net| overlap(*net, prefix))
        {
            let what =
                if taken == planned.prefix { "this node's prefix" } else { "the fabric that it leads to" };
            fail!(
                InvalidConfig,
                "pool {pool}: {prefix} overlaps {taken}, {what} in the planned pool {name}: choose others"
            );
        }
    }
    Ok(())
}

/// Addresses that were asked for. A source hides those below it (CONVENTIONS.md: `args.cni.ips` over CNI_ARGS).
pub fn requested(network: &Network) -> Result<Vec<(IpAddr, Option<u8>)>> {
    for path in [["runtimeConfig", "ips"].as_slice(), &["args", "cni", "ips"]] {
        let Some(value) = network.get(path) else { continue };
        let path = path.join(".");
        let Value::Array(list) = value else { fail!(InvalidConfig, "{path}: not a list of addresses") };
        let texts = list.iter().map(|value| {
            value.as_str().ok_or_else(|| failure!(InvalidConfig, "{path}: {value} is not a string"))
        });
        let texts = texts.collect::<Result<Vec<_>>>()?;
        if !texts.is_empty() {
            return texts.into_iter().map(|text| parse_address(&path, text)).collect();
        }
    }
    // Thin Multus writes a list here.
    let list = network.args.get("IP").unwrap_or_default();
    let texts = list.split(',').map(str::trim).filter(|text| !text.is_empty());
    texts.map(|text| parse_address("CNI_ARGS IP", text)).collect()
}

/// With or without the length of its prefix.
fn parse_address(path: &str, text: &str) -> Result<(IpAddr, Option<u8>)> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((address, None));
    }
    match text.parse::<IpNet>() {
        Ok(net) => Ok((net.addr(), Some(net.prefix_len()))),
        Err(_) => fail!(InvalidConfig, "{path}: {text:?} is not an IP address"),
    }
}

fn pool_names(names: &str) -> Result<Vec<String>> {
    let pools: Vec<String> = names.split(',').map(|name| name.trim().to_owned()).collect();
    if let Some(bad) = pools.iter().find(|name| !is_name(name)) {
        fail!(InvalidConfig, "ipam.pool: {bad:?} is no name of a pool (letters, digits, '-', '_', '.')");
    }
    match pools.as_slice() {
        [_] => Ok(pools),
        [one, other] if one != other => Ok(pools),
        [_, _] => fail!(InvalidConfig, "ipam.pool: {names:?} names the same pool twice"),
        _ => fail!(InvalidConfig, "ipam.pool: {names:?} names more than two pools"),
    }
}

/// The fields of a CIDRPool's spec, if there are any.
fn inline(section: &Map<String, Value>) -> Result<Option<Spec>> {
    let fields: Map<String, Value> = section
        .iter()
        .filter(|(key, _)| cidrpool::SPEC_KEYS.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if fields.is_empty() {
        return Ok(None);
    }
    let spec = serde_path_to_error::deserialize(Value::Object(fields)).map_err(|error| {
        // "." is the section itself.
        let path = format!("ipam.{}", error.path());
        failure!(InvalidConfig, "{}: {}", path.trim_end_matches('.'), error.inner())
    })?;
    Ok(Some(spec))
}

/// Does `key` mean something in the section?
pub fn is_known(key: &str) -> bool {
    KEYS.contains(&key) || cidrpool::SPEC_KEYS.contains(&key)
}

fn text<'a>(network: &'a Network, key: &str) -> Result<Option<&'a str>> {
    match network.get(&["ipam", key]) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        Some(other) => fail!(InvalidConfig, "ipam.{key}: {other} is not a string"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::Args;
    use proptest::prelude::*;
    use serde_json::json;

    fn network(config: Value) -> Network {
        Network::parse(config.to_string().into_bytes(), Args::default(), vec![], &NETWORK, false).unwrap()
    }

    fn pools(ipam: Value) -> Result<Vec<String>> {
        Config::parse(&network(json!({"name": "net", "ipam": ipam}))).map(|config| config.pools)
    }

    #[test]
    fn a_pool_is_named_as_ours_or_as_nv_ipams_or_after_the_network() {
        assert_eq!(pools(json!({"type": "rail-ipam", "pool": "rail-0"})).unwrap(), ["rail-0"]);
        assert_eq!(pools(json!({"poolName": "rail-0", "poolType": "CIDRPool"})).unwrap(), ["rail-0"]);
        assert_eq!(pools(json!({"PoolName": "a", "pool": "a"})).unwrap(), ["a"]);
        assert_eq!(pools(json!({"type": "rail-ipam", "daemonSocket": "x"})).unwrap(), ["net"]);
        assert_eq!(pools(json!({"pool": "a, b"})).unwrap(), ["a", "b"]);
    }

    #[test]
    fn a_pool_that_cannot_be_meant_is_refused_with_code_7() {
        for ipam in [
            json!({"pool": "a", "poolName": "b"}),
            json!({"pool": "a", "poolType": "ippool"}),
            json!({"pool": "a,a"}),
            json!({"pool": "a,b,c"}),
            json!({"pool": "a,"}),
            json!({"pool": "../a"}),
            json!({"pool": "a".repeat(201)}),
            json!({"pool": 1}),
            json!({"pool": "a,b", "cidr": "10.0.0.0/8", "perNodeNetworkPrefix": 31}),
            json!({"cidr": "10.0.0.0/8"}),
            json!([]),
            json!(null),
        ] {
            let error = pools(ipam.clone()).unwrap_err();
            assert_eq!(crate::error::code_of(&error), 7, "{ipam}: {error:#}");
        }
    }

    #[test]
    fn keys_of_a_pool_in_place_are_taken_in_any_letter_case() {
        let config = |ipam: Value| Config::parse(&network(json!({"name": "net", "ipam": ipam}))).unwrap();
        let spelt = json!({"cidr": "10.0.0.0/24", "perNodeNetworkPrefix": 30, "gatewayIndex": 1,
            "routes": [{"dst": "10.0.0.0/8"}], "exclusions": [{"startIP": "10.0.0.2", "endIP": "10.0.0.2"}],
            "perNodeExclusions": [{"startIndex": 0, "endIndex": 0}],
            "staticAllocations": [{"nodeName": "a", "prefix": "10.0.0.0/30", "gateway": "10.0.0.1"}]});
        let otherwise = json!({"CIDR": "10.0.0.0/24", "PerNodeNetworkPrefix": 30, "gatewayindex": 1,
            "Routes": [{"Dst": "10.0.0.0/8"}], "Exclusions": [{"StartIP": "10.0.0.2", "ENDIP": "10.0.0.2"}],
            "PerNodeExclusions": [{"StartIndex": 0, "endindex": 0}],
            "staticallocations": [{"NodeName": "a", "Prefix": "10.0.0.0/30", "GATEWAY": "10.0.0.1"}]});
        assert_eq!(config(otherwise).inline, config(spelt).inline);
    }

    #[test]
    fn a_request_hides_those_below_it_and_odd_shapes_do_no_harm() {
        let ask = |config: Value| requested(&network(config)).map(|list| list.len());
        let both = json!({"name": "n", "runtimeConfig": {"IPs": ["10.0.0.1/31", "10.0.0.2"]},
            "args": {"cni": {"ips": ["10.0.0.9"]}}});
        assert_eq!(ask(both).unwrap(), 2);
        // nv-ipam's plugin panics on these.
        for args in [json!({}), json!({"other": 1}), json!({"cni": null}), json!({"cni": []}), json!(7)] {
            assert_eq!(ask(json!({"name": "n", "args": args})).unwrap(), 0);
        }
        assert_eq!(ask(json!({"name": "n", "runtimeConfig": {"ips": null}})).unwrap(), 0);
        for bad in [json!("10.0.0.1"), json!([1]), json!(["x"]), json!(["10.0.0.1/33"])] {
            assert!(ask(json!({"name": "n", "runtimeConfig": {"ips": bad}})).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_section_makes_it_panic(key in "(pool|poolName|poolType|cidr|routes|exclusions|staticAllocations)",
            value in "[\\[\\]{}\":,0-9a-z./ ]{0,40}", text: String) {
            let value = serde_json::from_str(&value).unwrap_or(Value::String(text));
            let _ = pools(json!({key: value, "perNodeNetworkPrefix": 31}));
        }
    }
}
