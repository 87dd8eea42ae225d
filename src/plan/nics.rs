//! Which NIC is which rail, for those who hand out devices: a node.json for each host, and the resources of the
//! SR-IOV device plugin.
//!
//! Sources know names of netdevs. PCI addresses, which stay when names change, no source knows, so that they are
//! not written: what is written says names, and a warning says so.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::json;

use super::{File, Plan, Pool, nads, refused};

/// `NODE.json` for each node: its rails, in the order of the plan.
pub fn node_json(plan: &mut Plan) -> Result<Vec<File>> {
    let mut nodes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut faults = Vec::new();
    for pools in nads::networks(plan) {
        for (node_name, rail, pf) in pfs(&pools, &mut faults) {
            let line = format!("    {{\"rail\": {rail}, \"pf\": {}}}", json!(pf));
            let lines = nodes.entry(node_name).or_default();
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    if !faults.is_empty() {
        return Err(refused(&faults));
    }
    let file = |(node_name, rails): (&str, Vec<String>)| File {
        name: format!("{node_name}.json"),
        text: format!(
            "{{\n  \"nodeName\": {},\n  \"rails\": [\n{}\n  ]\n}}\n",
            json!(node_name),
            rails.join(",\n")
        ),
    };
    let files = nodes.into_iter().map(file).collect();
    plan.warnings.push(
        "`pf` is the name of a netdev, for no source knows PCI addresses, which stay when names change: `rail-cni \
         status` on the node shows them; nothing but names and rails is in these files"
            .to_owned(),
    );
    Ok(files)
}

/// One file: a resource for each network of `nads`, with the PFs of that rail on any host.
pub fn device_plugin(plan: &mut Plan) -> Result<Vec<File>> {
    let (mut resources, mut faults) = (Vec::new(), Vec::new());
    let mut rails: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for pools in nads::networks(plan) {
        let Some(first) = pools.first() else { continue };
        first.check_object_name()?;
        let mut names: Vec<&str> = Vec::new();
        for (node_name, _, pf) in pfs(&pools, &mut faults) {
            if !names.contains(&pf) {
                names.push(pf);
            }
            let (other, on) = *rails.entry(pf).or_insert((&first.name, node_name));
            if other != first.name {
                faults.push(format!(
                    "{pf} is of {other} on node {on} and of {} on node {node_name}: one configuration would give the one \
                     for the other: plan these nodes apart, for a configuration of each (the device plugin takes one \
                     by node)",
                    first.name
                ));
            }
        }
        names.sort_unstable();
        let selectors = json!({"pfNames": names});
        resources.push(format!(
            "    {{\n      \"resourcePrefix\": \"nvidia.com\",\n      \"resourceName\": {},\n      \"deviceType\": \
             \"netDevice\",\n      \"selectors\": {{\"pfNames\": {}, \"isRdma\": true}}\n    }}",
            json!(first.name),
            selectors["pfNames"]
        ));
    }
    if !faults.is_empty() {
        return Err(refused(&faults));
    }
    plan.warnings.push(
        "the resources are told by the names of PFs (pfNames), for no source knows PCI addresses, which would be \
         rootDevices and stay when names change"
            .to_owned(),
    );
    let text = format!("{{\n  \"resourceList\": [\n{}\n  ]\n}}\n", resources.join(",\n"));
    Ok(vec![File { name: "device-plugin.json".to_owned(), text }])
}

/// Node, number of the rail, and PF of each cable of a network; both families have the same.
fn pfs<'a>(pools: &[&'a Pool], faults: &mut Vec<String>) -> Vec<(&'a str, u8, &'a str)> {
    let mut found = Vec::new();
    for pool in pools {
        let Some(rail) = pool.number() else {
            faults.push(format!("pool {}: nothing says which rail it is", pool.name));
            continue;
        };
        for (row, cables) in pool.rows().filter(|(row, _)| !row.node_name.is_empty()) {
            let before = found.len();
            let names = cables.iter().filter_map(|cable| cable.interface.as_deref());
            found.extend(names.map(|name| (row.node_name.as_str(), rail, name)));
            if found.len() == before {
                faults.push(format!(
                    "node {} in pool {}: nothing says which NIC it is: topology.json does, or `hostInterface` of a \
                     fabric file, or netplan files; CIDRPools do not",
                    row.node_name, pool.name
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::scheme::{Family, HostLink, Mode};
    use crate::plan::tests::{cabled, plan};

    fn texts(files: Result<Vec<File>>) -> Vec<(String, String)> {
        files.unwrap().into_iter().map(|file| (file.name, file.text)).collect()
    }

    #[test]
    fn a_node_json_has_the_rails_of_its_host_in_their_order() {
        let files = texts(node_json(&mut plan(Mode::None, Family::Dual, &cabled())));
        assert_eq!(
            files[0],
            (
                "worker-gpu-0.json".to_owned(),
                "{\n  \"nodeName\": \"worker-gpu-0\",\n  \"rails\": [\n    {\"rail\": 0, \"pf\": \"rail0\"},\n    \
                 {\"rail\": 1, \"pf\": \"rail1\"}\n  ]\n}\n"
                    .to_owned()
            )
        );
        assert_eq!(files.len(), 2);
        for (_, text) in &files {
            let node: crate::node::Node = serde_json::from_str(text).unwrap();
            assert_eq!(node.rails.len(), 2);
        }
        // Planes are rails of their own.
        let mut links = cabled();
        let cable = super::super::Cable { interface: Some("rail0p1".into()), ..links[0].cable.clone() };
        links.push(HostLink { plane: 1, cable, ..links[0].clone() });
        links[4].cable.leaf = Some("leaf-p1".into());
        let files = texts(node_json(&mut plan(Mode::Swplb, Family::Ipv4, &links)));
        assert!(files[0].1.contains("{\"rail\": 8, \"pf\": \"rail0p1\"}"), "{}", files[0].1);
    }

    /// In the form of the example.
    #[test]
    fn the_device_plugin_gets_a_resource_for_each_network() {
        let text = texts(device_plugin(&mut plan(Mode::None, Family::Dual, &cabled()))).remove(0).1;
        let example = include_str!("../../conf/device-plugin.json");
        let mut example: serde_json::Value = serde_json::from_str(example).unwrap();
        let resources = example["resourceList"].as_array_mut().unwrap();
        resources.truncate(2);
        for (rail, resource) in resources.iter_mut().enumerate() {
            resource["selectors"] = json!({"pfNames": [format!("rail{rail}")], "isRdma": true});
        }
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), example);
        let mut links = cabled();
        links[1].cable.interface = Some("ens1".into());
        let text = texts(device_plugin(&mut plan(Mode::None, Family::Ipv4, &links))).remove(0).1;
        assert!(
            text.contains("\"selectors\": {\"pfNames\": [\"ens1\",\"rail0\"], \"isRdma\": true}"),
            "{text}"
        );
    }

    #[test]
    fn what_is_not_known_is_told_and_not_made_up() {
        let mut links = cabled();
        links[3].cable.interface = None;
        for write in [node_json, device_plugin] {
            let error = write(&mut plan(Mode::None, Family::Ipv4, &links)).unwrap_err().to_string();
            assert!(
                error.starts_with("node worker-gpu-62 in pool rail-1: nothing says which NIC it is"),
                "{error}"
            );
            let mut known = plan(Mode::None, Family::Ipv4, &cabled());
            write(&mut known).unwrap();
            assert!(known.warnings[0].contains("no source knows PCI addresses"), "{:?}", known.warnings);
            known.pools[0].rail = None;
            assert!(
                write(&mut known).unwrap_err().to_string().contains("pool rail-0: nothing says which rail")
            );
        }
        // rail0 of one host is rail1 of another.
        let mut links = cabled();
        links[1].cable.interface = Some("rail1".into());
        links[3].cable.interface = Some("rail0".into());
        let error = device_plugin(&mut plan(Mode::None, Family::Ipv4, &links)).unwrap_err().to_string();
        assert!(
            error.contains("rail1 is of rail-0 on node worker-gpu-62 and of rail-1 on node worker-gpu-0"),
            "{error}"
        );
        assert_eq!(node_json(&mut plan(Mode::None, Family::Ipv4, &links)).unwrap().len(), 2);
    }
}
