//! NetworkAttachmentDefinitions: a network for each rail, or with `swplb` for each rail and plane.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use ipnet::IpNet;
use serde_json::json;

use super::scheme::place_of;
use super::{File, Plan, Pool, yaml};
use crate::fail;
use crate::pool::rail_in;

/// Of pods, where no source says what their hosts have: below the 9216 of the leaves.
const MTU: u32 = 9000;
/// The largest `rail` of a network.
const MAX_RAIL: u8 = 127;

const HEAD: &str = "\
# The networks of the plan: kubectl apply -f. Each has a resource of its own, so that the device plugin can only hand
# out a VF of that rail's PF.
";

/// One file; a network has the name of its (IPv4) pool.
pub fn write(plan: &mut Plan) -> Result<Vec<File>> {
    number(plan);
    let mut text = HEAD.to_owned();
    for pools in networks(plan) {
        text.push_str(&network(&pools)?);
    }
    Ok(vec![File { name: "nads.yaml".to_owned(), text }])
}

/// Where no source says the rails: those of the formulas, if they made all addresses, or else of the names, if these
/// count from 0. A name that counts from 1 may mean either.
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
        "no source says which rail a pool is, so `rail` of the networks comes from the {from} of the pools: {}",
        shown.join(", ")
    ));
}

/// Rail and plane of each pool, if all are known and no two of a family are the same.
fn unique(plan: &Plan, rails: Option<Vec<(u8, u8)>>) -> Option<Vec<(u8, u8)>> {
    let rails = rails?;
    let all: BTreeSet<_> = plan.pools.iter().map(Pool::is_ipv4).zip(&rails).collect();
    (!rails.is_empty() && all.len() == rails.len()).then_some(rails)
}

/// Where the formulas have all prefixes of the pool.
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
        "nothing says which rail {} is, so the network has no `rail`, and ADD cannot tell when a device of another \
         rail comes: say it in the CIDRPool (`kubectl annotate cidrpool {first} rail-cni/rail=0` for the first rail)",
        names.join(", ")
    ))
}

/// The pools of each network: both families of a rail, IPv4 first. What is not clear stays apart.
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

fn network(pools: &[&Pool]) -> Result<String> {
    let Some(first) = pools.first() else { return Ok(String::new()) };
    let name = &first.name;
    first.check_object_name()?;
    let names: Vec<_> = pools.iter().map(|pool| pool.name.as_str()).collect();
    let mtu = pools.iter().flat_map(|pool| pool.cables.iter().flatten()).filter_map(|cable| cable.mtu).min();
    let mut plugin = vec![("type", json!("rail-cni"))];
    if let Some(rail) = first.number() {
        if rail > MAX_RAIL {
            fail!(InvalidConfig, "pool {name}: as a network it would be rail {rail}, {MAX_RAIL} is the last");
        }
        plugin.push(("rail", json!(rail)));
    }
    plugin.push(("mtu", json!(mtu.unwrap_or(MTU))));
    let capabilities = r#"{"deviceID": true, "mac": true, "ips": true, "CNIDeviceInfoFile": true}"#;
    let plugin: Vec<_> =
        plugin.iter().map(|(key, value)| format!("          \"{key}\": {value},\n")).collect();
    Ok(format!(
        "---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata:
  name: {}
  annotations:
    k8s.v1.cni.cncf.io/resourceName: nvidia.com/{name}
spec:
  config: |
    {{
      \"cniVersion\": \"1.0.0\",
      \"cniVersions\": [\"1.0.0\", \"1.1.0\"],
      \"name\": \"{name}\",
      \"plugins\": [
        {{
{}          \"capabilities\": {capabilities},
          \"ipam\": {{\"type\": \"rail-ipam\", \"pool\": \"{}\"}}
        }}
      ]
    }}
",
        yaml::scalar(name),
        plugin.concat(),
        names.join(",")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;
    use crate::plan::Cable;
    use crate::plan::scheme::{Family, HostLink, Mode};
    use crate::plan::tests::{cabled, plan};

    fn configs(plan: &mut Plan) -> Vec<(String, serde_json::Value)> {
        let text = write(plan).unwrap().remove(0).text;
        let documents = document::parse("nads.yaml", text.as_bytes()).unwrap();
        let config = |document: &document::Document| {
            let root = document.root();
            let name = root.text("metadata.name").unwrap();
            let config = root.get("spec.config").unwrap().json().unwrap().root().value.clone();
            assert_eq!(config["name"], name);
            assert_eq!(
                root.text("metadata.annotations.k8s.v1.cni.cncf.io/resourceName").unwrap(),
                format!("nvidia.com/{name}")
            );
            (name.to_owned(), config["plugins"][0].clone())
        };
        documents.iter().map(config).collect()
    }

    fn shown(plan: &mut Plan) -> Vec<String> {
        let shown = |(name, plugin): (String, serde_json::Value)| {
            format!("{name} {} {} {}", plugin["rail"], plugin["mtu"], plugin["ipam"]["pool"])
        };
        configs(plan).into_iter().map(shown).collect()
    }

    /// The networks of conf/nads.yaml are those of a plan of eight rails.
    #[test]
    fn the_example_is_what_is_written() {
        let links: Vec<_> =
            (0..8).map(|rail| HostLink { rail, cable: Cable::default(), ..cabled().remove(0) }).collect();
        let written = write(&mut plan(Mode::None, Family::Ipv4, &links)).unwrap().remove(0).text;
        let example = include_str!("../../conf/nads.yaml");
        let from_the_first = |text: &str| text[text.find("---\n").unwrap()..].to_owned();
        assert_eq!(from_the_first(&written), from_the_first(example));
    }

    #[test]
    fn both_families_of_a_rail_are_one_network() {
        let mut plan = plan(Mode::None, Family::Dual, &cabled());
        assert_eq!(
            shown(&mut plan),
            ["rail-0 0 9000 \"rail-0,rail-0-v6\"", "rail-1 1 9000 \"rail-1,rail-1-v6\""]
        );
    }

    /// A pod with both has two routing tables: the tables are counted by `rail`.
    #[test]
    fn planes_of_a_rail_are_networks_with_numbers_of_their_own() {
        let mut links = cabled();
        links.push(HostLink { plane: 1, cable: Cable::default(), ..links[0].clone() });
        links[0].cable.mtu = Some(4000);
        let mut plan = plan(Mode::Swplb, Family::Ipv4, &links);
        // ADD compares the two numbers.
        assert_eq!(plan.check().unwrap()["rail-0-plane-1"]["worker-gpu-0"].rail, Some(8));
        assert_eq!(
            shown(&mut plan),
            [
                "rail-0-plane-0 0 4000 \"rail-0-plane-0\"",
                "rail-0-plane-1 8 9000 \"rail-0-plane-1\"",
                "rail-1-plane-0 1 9000 \"rail-1-plane-0\""
            ]
        );
    }

    #[test]
    fn pools_without_a_rail_get_the_one_of_their_addresses_or_names() {
        let unnamed = |names: [&str; 4]| {
            let mut plan = plan(Mode::None, Family::Dual, &cabled());
            for (pool, name) in plan.pools.iter_mut().zip(names) {
                (pool.rail, pool.name, pool.cables) = (None, name.into(), Vec::new());
            }
            plan
        };
        let mut plan = unnamed(["gpu-a", "7", "gpu-b", "true"]);
        assert_eq!(shown(&mut plan), ["gpu-a 0 9000 \"gpu-a,7\"", "gpu-b 1 9000 \"gpu-b,true\""]);
        assert!(
            plan.warnings[0].ends_with(
                "the addresses of the pools: gpu-a is rail 0, 7 is rail 0, gpu-b is rail 1, true is rail 1"
            ),
            "{:?}",
            plan.warnings
        );
        // Addresses go before names: this deployment counts from 1.
        let mut plan = unnamed(["rail-1", "rail-1-v6", "rail-2", "rail-2-v6"]);
        assert_eq!(
            shown(&mut plan),
            ["rail-1 0 9000 \"rail-1,rail-1-v6\"", "rail-2 1 9000 \"rail-2,rail-2-v6\""]
        );

        // Addresses that no formula makes.
        let other = |names: [&str; 4]| {
            let mut plan = unnamed(names);
            plan.pools.iter_mut().for_each(|pool| pool.spec.routes.clear());
            plan
        };
        let mut plan = other(["rail-1", "rail1-v6", "rail-0", "rail0-v6"]);
        assert_eq!(
            shown(&mut plan),
            ["rail-0 0 9000 \"rail-0,rail0-v6\"", "rail-1 1 9000 \"rail-1,rail1-v6\""]
        );
        assert!(plan.warnings[0].contains("the names of the pools: rail-1 is rail 1"), "{:?}", plan.warnings);
        for names in [
            ["rail-1", "rail-1-v6", "rail-2", "rail-2-v6"],
            ["a", "b", "c", "d"],
            ["rail-0", "rail-0-v6", "rail-0-b", "x"],
        ] {
            let mut plan = other(names);
            assert!(shown(&mut plan).iter().all(|network| network.contains(" null 9000 ")), "{names:?}");
            let told = &plan.warnings[0];
            assert!(told.contains(&format!("which rail {} is", names.join(", "))), "{told}");
            assert!(
                told.contains(&format!("kubectl annotate cidrpool {} rail-cni/rail=0", names[0])),
                "{told}"
            );
        }
        // One of several.
        let mut plan = other(["rail-0", "rail-0-v6", "rail-1", "rail-1-v6"]);
        plan.pools[0].rail = Some(0);
        assert_eq!(shown(&mut plan).iter().filter(|network| network.contains(" null ")).count(), 3);
        assert!(
            plan.warnings[0].contains("which rail rail-0-v6, rail-1, rail-1-v6 is"),
            "{:?}",
            plan.warnings
        );
    }

    #[test]
    fn names_that_kubernetes_refuses_are_refused() {
        for name in ["Rail-0", "rail_0", "rail.", "-rail", "a..b", ""] {
            let mut plan = plan(Mode::None, Family::Ipv4, &cabled());
            plan.pools[0].name = name.into();
            assert!(write(&mut plan).unwrap_err().to_string().contains("give it another one"), "{name}");
        }
        let mut plan = plan(Mode::None, Family::Ipv4, &cabled());
        plan.pools[0].rail = Some(255);
        assert!(write(&mut plan).unwrap_err().to_string().contains("127 is the last"));
    }
}
