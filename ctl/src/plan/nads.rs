//! NetworkAttachmentDefinitions: one network for each rail, or with `swplb` for each rail and plane.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use ipnet::IpNet;

use super::scheme::place_of;
use super::{File, Plan, Pool, yaml};
use rail_cni::fail;
use rail_cni::node::MAX_RAIL;
use rail_cni::pool::rail_in;

/// The MTU of pods if no source says that of the hosts, in bytes: below the 9216 of the leaves.
const MTU: u32 = 9000;

const CAPABILITIES: &str =
    r#""capabilities": {"deviceID": true, "mac": true, "ips": true, "CNIDeviceInfoFile": true}"#;

const OF_LISTS: &str = "\
# The networks of the plan: kubectl apply -f. Each has a resource of its own, so that the device plugin can only hand
# out a VF of that rail's PF.
";

const OF_SINGLES: &str = "\
# The networks of the plan: kubectl apply -f. Each is one plugin and no list, as dra-driver-sriov reads it.
";

/// The form of the configuration in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A list with one plugin.
    List,
    /// The plugin alone, for a driver that reads no list.
    Single,
}

/// Writes one file. A network has the name of its (IPv4) pool. Without a namespace, kubectl chooses it.
pub fn write(plan: &mut Plan, form: Form, namespace: Option<&str>) -> Result<Vec<File>> {
    number(plan);
    let head = match form {
        Form::List => OF_LISTS,
        Form::Single => OF_SINGLES,
    };
    let mut text = head.to_owned();
    for pools in networks(plan) {
        text.push_str(&network(&pools, form, namespace)?);
    }
    Ok(vec![File { name: "nads.yaml".to_owned(), text }])
}

/// Numbers the rails if no source does: by the formulas if these made all addresses, or else by the names if these count
/// from 0. Names that count from 1 may mean either.
fn number(plan: &mut Plan) {
    if plan.pools.iter().any(|pool| pool.rail.is_some()) {
        let lacking: Vec<_> = plan.pools.iter().filter(|pool| pool.rail.is_none()).collect();
        plan.warnings.extend(unknown(&lacking));
        return;
    }
    let by_address = plan.pools.iter().map(of_addresses).collect();
    let by_name = plan.pools.iter().map(|pool| Some((rail_in(&pool.name)?, 0))).collect();
    let of_names = |rails: &Vec<(u8, u8)>| {
        let rails: BTreeSet<u8> = rails.iter().map(|(rail, _)| *rail).collect();
        rails.iter().zip(0..).all(|(rail, count)| *rail == count)
    };
    let (rails, from) = match (unique(plan, by_address), unique(plan, by_name).filter(of_names)) {
        (Some(rails), _) => (rails, "addresses"),
        (None, Some(rails)) => (rails, "names"),
        (None, None) => {
            let all: Vec<_> = plan.pools.iter().collect();
            plan.warnings.extend(unknown(&all));
            return;
        }
    };
    let has_planes = rails.iter().any(|(_, plane)| *plane > 0);
    for (pool, (rail, plane)) in plan.pools.iter_mut().zip(rails) {
        (pool.rail, pool.plane) = (Some(rail), has_planes.then_some(plane));
    }
    let shown =
        plan.pools.iter().filter_map(|pool| Some(format!("{} is rail {}", pool.name, pool.number()?)));
    let shown: Vec<_> = shown.collect();
    plan.warnings.push(format!(
        "no source says which rail a pool is, so `rail` of the networks follows from the {from} of the pools: {}",
        shown.join(", ")
    ));
}

/// The rail and the plane of each pool, if all are known and no two pools of a family have the same.
fn unique(plan: &Plan, rails: Option<Vec<(u8, u8)>>) -> Option<Vec<(u8, u8)>> {
    let rails = rails?;
    let all: BTreeSet<_> = plan.pools.iter().map(Pool::is_ipv4).zip(&rails).collect();
    (!rails.is_empty() && all.len() == rails.len()).then_some(rails)
}

/// The rail and the plane for which the formulas make all prefixes of the pool.
fn of_addresses(pool: &Pool) -> Option<(u8, u8)> {
    let routes = pool.spec.routes.iter().filter_map(|to| to.dst.parse::<IpNet>().ok());
    let all_length = routes.map(|dst| dst.prefix_len()).min()?;
    let cidr: IpNet = pool.spec.cidr.parse().ok()?;
    let place =
        |prefix: &str| place_of(prefix.parse().ok()?, all_length).filter(|(.., of_rail)| *of_rail == cidr);
    let mut places = pool.spec.static_allocations.iter().map(|row| place(&row.prefix));
    let (rail, plane, _) = places.next()??;
    places
        .all(|place| place.is_some_and(|place| (place.0, place.1) == (rail, plane)))
        .then_some((rail, plane))
}

fn unknown(pools: &[&Pool]) -> Option<String> {
    let first = &pools.first()?.name;
    let names: Vec<_> = pools.iter().map(|pool| pool.name.as_str()).collect();
    Some(format!(
        "no source says which rail {} is, so the network has no `rail`, and ADD does not notice a device of another \
         rail: add it to the CIDRPool (`kubectl annotate cidrpool {first} rail-cni/rail=0` for the first rail)",
        names.join(", ")
    ))
}

/// The pools of each network: both families of a rail, IPv4 first. A pool of an unknown rail is a network of its own.
pub(super) fn networks(plan: &Plan) -> Vec<Vec<&Pool>> {
    let mut of_rail: BTreeMap<_, Vec<&Pool>> = BTreeMap::new();
    for pool in &plan.pools {
        of_rail.entry((pool.rail, pool.plane)).or_default().push(pool);
    }
    let both = |pools: &[&Pool]| matches!(pools, [one, other] if one.is_ipv4() != other.is_ipv4());
    let split = |((rail, _), mut pools): ((Option<u8>, _), Vec<_>)| {
        pools.sort_by_key(|pool: &&Pool| !pool.is_ipv4());
        if rail.is_some() && both(&pools) {
            vec![pools]
        } else {
            pools.into_iter().map(|pool| vec![pool]).collect()
        }
    };
    of_rail.into_iter().flat_map(split).collect()
}

fn network(pools: &[&Pool], form: Form, namespace: Option<&str>) -> Result<String> {
    let Some(first) = pools.first() else { return Ok(String::new()) };
    let name = &first.name;
    first.check_object_name()?;
    let names: Vec<_> = pools.iter().map(|pool| pool.name.as_str()).collect();
    let mtu = pools.iter().flat_map(|pool| pool.cables.iter().flatten()).filter_map(|cable| cable.mtu).min();
    let mut plugin = vec!["\"type\": \"rail-cni\"".to_owned()];
    if let Some(rail) = first.number() {
        if rail > MAX_RAIL {
            fail!(InvalidConfig, "pool {name}: its network would be rail {rail}, and the last is {MAX_RAIL}");
        }
        plugin.push(format!("\"rail\": {rail}"));
    }
    plugin.push(format!("\"mtu\": {}", mtu.unwrap_or(MTU)));
    plugin.push(CAPABILITIES.to_owned());
    plugin.push(format!("\"ipam\": {{\"type\": \"rail-ipam\", \"pool\": \"{}\"}}", names.join(",")));
    let lines = |indent: &str| plugin.join(&format!(",\n{indent}"));
    let config = match form {
        Form::List => format!(
            "      \"cniVersion\": \"1.0.0\",
      \"cniVersions\": [\"1.0.0\", \"1.1.0\"],
      \"name\": \"{name}\",
      \"plugins\": [
        {{
          {}
        }}
      ]
",
            lines("          ")
        ),
        Form::Single => format!(
            "      \"cniVersion\": \"1.0.0\",
      \"name\": \"{name}\",
      {}
",
            lines("      ")
        ),
    };
    let namespace = namespace.map(|name| format!("  namespace: {}\n", yaml::scalar(name)));
    Ok(format!(
        "---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata:
  name: {}
{}  annotations:
    k8s.v1.cni.cncf.io/resourceName: nvidia.com/{name}
spec:
  config: |
    {{
{config}    }}
",
        yaml::scalar(name),
        namespace.unwrap_or_default(),
    ))
}

#[cfg(test)]
mod tests;
