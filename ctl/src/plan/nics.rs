//! The NIC of each rail, for those who hand out devices: a node.json for each host, and the resources of the SR-IOV
//! device plugin.
//!
//! Sources have names of netdevs and no PCI addresses, which stay when names change. So these files have names, and a
//! warning says so.

use std::collections::{BTreeMap, HashSet};

use anyhow::Result;
use serde_json::json;

use super::{File, Plan, Pool, nads, refused};
use rail_cni::fault::Fault;

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
        return Err(refused(faults));
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
        "`pf` is the name of a netdev, because no source has PCI addresses, which stay when names change: `rail-cni \
         status` on the node prints them; these files have names and rails only"
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
                let problem = format!(
                    "{pf} is of {other} on node {on} and of {} on node {node_name}, so one configuration would give \
                     a VF of the wrong rail",
                    first.name
                );
                let remedy = "plan these nodes apart: the device plugin takes a configuration for each node";
                faults.push(Fault::whole(problem).remedy(remedy));
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
        return Err(refused(faults));
    }
    plan.warnings.push(
        "the resources select PFs by name (pfNames), because no source has PCI addresses (rootDevices), which stay \
         when names change"
            .to_owned(),
    );
    let text = format!("{{\n  \"resourceList\": [\n{}\n  ]\n}}\n", resources.join(",\n"));
    Ok(vec![File { name: "device-plugin.json".to_owned(), text }])
}

/// The node, the number of the rail, and the PF of each cable of a network; both families have the same.
fn pfs<'a>(pools: &[&'a Pool], faults: &mut Vec<Fault>) -> Vec<(&'a str, u8, &'a str)> {
    let mut found = Vec::new();
    let mut told: HashSet<&str> = HashSet::new();
    for pool in pools {
        let Some(rail) = pool.number() else {
            faults.push(Fault::whole("no source says which rail it is").of(format!("pool {}", pool.name)));
            continue;
        };
        for (row, cables) in pool.rows().filter(|(row, _)| !row.node_name.is_empty()) {
            let before = found.len();
            let names = cables.iter().filter_map(|cable| cable.interface.as_deref());
            found.extend(names.map(|name| (row.node_name.as_str(), rail, name)));
            if found.len() == before && told.insert(&row.node_name) {
                let of = format!("node {} in pool {}", row.node_name, pool.name);
                let remedy =
                    "topology.json, `hostInterface` of a fabric file and netplan files do, CIDRPools do not";
                faults.push(Fault::whole("no source says which NIC it is").of(of).remedy(remedy));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
