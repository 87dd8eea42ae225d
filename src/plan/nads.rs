//! NetworkAttachmentDefinitions: a network for each rail, or with `swplb` for each rail and plane.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::json;

use super::{File, Plan, Pool, yaml};
use crate::fail;

/// Of pods, where no source says what their hosts have: below the 9216 of the leaves.
const MTU: u32 = 9000;
/// The largest `rail` of a network.
const MAX_RAIL: u8 = 127;

const HEAD: &str = "\
# The networks of the plan: kubectl apply -f. Each has a resource of its own, so that the device plugin can only hand
# out a VF of that rail's PF.
";

/// One file; a network has the name of its (IPv4) pool.
pub fn write(plan: &Plan) -> Result<Vec<File>> {
    let mut text = HEAD.to_owned();
    for pools in networks(plan) {
        text.push_str(&network(&pools)?);
    }
    Ok(vec![File { name: "nads.yaml".to_owned(), text }])
}

/// The pools of each network: both families of a rail, IPv4 first. What is not clear stays apart.
fn networks(plan: &Plan) -> Vec<Vec<&Pool>> {
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

    fn configs(plan: &Plan) -> Vec<(String, serde_json::Value)> {
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

    fn shown(plan: &Plan) -> Vec<String> {
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
        let written = write(&plan(Mode::None, Family::Ipv4, &links)).unwrap().remove(0).text;
        let example = include_str!("../../conf/nads.yaml");
        let from_the_first = |text: &str| text[text.find("---\n").unwrap()..].to_owned();
        assert_eq!(from_the_first(&written), from_the_first(example));
    }

    #[test]
    fn both_families_of_a_rail_are_one_network() {
        let plan = plan(Mode::None, Family::Dual, &cabled());
        assert_eq!(
            shown(&plan),
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
            shown(&plan),
            [
                "rail-0-plane-0 0 4000 \"rail-0-plane-0\"",
                "rail-0-plane-1 8 9000 \"rail-0-plane-1\"",
                "rail-1-plane-0 1 9000 \"rail-1-plane-0\""
            ]
        );
    }

    #[test]
    fn pools_without_a_rail_are_networks_without_one() {
        let mut plan = plan(Mode::None, Family::Dual, &cabled());
        for (pool, name) in plan.pools.iter_mut().zip(["gpu-a", "gpu-b", "7", "true"]) {
            (pool.rail, pool.name, pool.cables) = (None, name.into(), Vec::new());
        }
        let shown = shown(&plan);
        assert_eq!(
            shown,
            [
                "gpu-a null 9000 \"gpu-a\"",
                "7 null 9000 \"7\"",
                "gpu-b null 9000 \"gpu-b\"",
                "true null 9000 \"true\""
            ]
        );
    }

    #[test]
    fn names_that_kubernetes_refuses_are_refused() {
        for name in ["Rail-0", "rail_0", "rail.", "-rail", "a..b", ""] {
            let mut plan = plan(Mode::None, Family::Ipv4, &cabled());
            plan.pools[0].name = name.into();
            assert!(write(&plan).unwrap_err().to_string().contains("give it another one"), "{name}");
        }
        let mut plan = plan(Mode::None, Family::Ipv4, &cabled());
        plan.pools[0].rail = Some(255);
        assert!(write(&plan).unwrap_err().to_string().contains("127 is the last"));
    }
}
