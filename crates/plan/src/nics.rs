//! The NIC of each rail, for device plugins: a node.json for each host, and the resources of the
//! SR-IOV device plugin, or of the operator that makes the VFs too.
//!
//! Sources have names of netdevs and no PCI addresses, which stay when names change. So these files
//! have names, and a warning says so.

use std::collections::{BTreeMap, HashSet};

use anyhow::Result;
use ipnet::IpNet;
use serde_json::json;

use crate::nads::{self, Networks};
use crate::plan::{File, Plan, Pool, refused};
use crate::yaml;
use rail_cni::fail;
use rail_cni::fault::Fault;

/// `NODE.json` for each node: its rails in the order of the plan, the cluster's networks, and a
/// policy for VFs.
pub fn node_json(plan: &mut Plan) -> Result<Vec<File>> {
    nads::refuse_hwplb(plan)?;
    let mut nodes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut faults = Vec::new();
    for pools in nads::of_rails(plan) {
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
    let cluster_networks = cluster_networks_line(&plan.cluster_networks);
    let mut files = Vec::new();
    for (node_name, rails) in nodes {
        let rails = rails.join(",\n");
        let name = json!(node_name);
        files.push(File {
            name: format!("{node_name}.json"),
            text: format!(
                "{{\n  \"nodeName\": {name},\n  \"rails\": [\n{rails}\n  ],\n{cluster_networks}  {POLICY}\n}}\n"
            ),
        });
    }
    plan.warnings.push(
        "`pf` is the name of a netdev, because no source has PCI addresses, which stay when names change: `railctl \
         status` on the node prints them"
            .to_owned(),
    );
    plan.warnings.push(
        "the policy allows VFs only, and no VF settings (`vfKeys`) by networks: where pods get whole NICs, remove \
         `vfsOnly`"
            .to_owned(),
    );
    Ok(files)
}

/// The policy of a node whose pods get VFs as the operator set them.
const POLICY: &str = r#""policy": {"vfsOnly": true, "vfKeys": []}"#;

/// The key `clusterNetworks` with its comma; empty if no source has these networks, because an
/// empty list would look like knowledge.
fn cluster_networks_line(cluster_networks: &[IpNet]) -> String {
    if cluster_networks.is_empty() {
        return String::new();
    }
    let mut prefixes = Vec::new();
    for network in cluster_networks {
        prefixes.push(json!(network).to_string());
    }
    format!("  \"clusterNetworks\": [{}],\n", prefixes.join(", "))
}

/// One file: a resource for each network, with the PFs of its rails on any host.
pub fn device_plugin(plan: &mut Plan, networks: &Networks) -> Result<Vec<File>> {
    let mut resources = Vec::new();
    for Resource { resource, pfs, .. } in resources_of(plan, networks)? {
        let (prefix, name) = resource.split_once('/').unwrap_or_default();
        let selectors = json!({ "pfNames": pfs });
        resources.push(format!(
            "    {{\n      \"resourcePrefix\": {},\n      \"resourceName\": {},\n      \"deviceType\": \
             \"netDevice\",\n      \"selectors\": {{\"pfNames\": {}, \"isRdma\": true}}\n    }}",
            json!(prefix),
            json!(name),
            selectors["pfNames"]
        ));
    }
    plan.warnings.push(
        "the resources select PFs by name (pfNames), because no source has PCI addresses (rootDevices), which stay \
         when names change"
            .to_owned(),
    );
    let text = format!(
        "{{\n  \"resourceList\": [\n{}\n  ]\n}}\n",
        resources.join(",\n")
    );
    Ok(vec![File {
        name: "device-plugin.json".to_owned(),
        text,
    }])
}

/// The namespace of NVIDIA's operator, which the SR-IOV Network Operator shares with it.
const OPERATOR: &str = "nvidia-network-operator";

/// One file: a SriovNetworkNodePolicy for each network, by which the operator makes the VFs and
/// their resource.
pub fn sriov_node_policy(
    plan: &mut Plan,
    networks: &Networks,
    namespace: Option<&str>,
) -> Result<Vec<File>> {
    let mut text = "\
# The VFs of the rails, and their resources, for the SR-IOV Network Operator: kubectl apply -f. Each pod with a rail takes a VF:
# numVfs is how many of them a node runs at once. A /31 has one address for a pod, so one. The prefix of the resources is that
# of the operator (RESOURCE_PREFIX).
"
    .to_owned();
    let mut renamed = None;
    for Resource {
        name,
        resource,
        pfs,
        mtu,
    } in resources_of(plan, networks)?
    {
        let (prefix, of_policy) = resource.split_once('/').unwrap_or_default();
        let is_taken = |name: &str| {
            name.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        if !is_taken(of_policy) && networks.resource.is_some() {
            fail!(
                InvalidConfig,
                "--resource: the operator takes no other than letters, digits and _ for the name of a resource, not \
                 {of_policy:?}"
            );
        }
        let of_policy = of_policy.replace(['-', '.'], "_");
        if of_policy != name {
            renamed.get_or_insert(format!("{prefix}/{of_policy}"));
        }
        text.push_str(&policy(
            &name,
            &of_policy,
            namespace.unwrap_or(OPERATOR),
            &pfs,
            mtu,
        ));
    }
    if let Some(first) = renamed.filter(|_| networks.resource.is_none()) {
        plan.warnings.push(format!(
            "the operator takes no - in the name of a resource: the first is {first}, and so on; write the networks with \
             the same names (`--to nads --resource 'nvidia.com/rail_{{rail}}'`)"
        ));
    }
    Ok(vec![File {
        name: "sriov-node-policy.yaml".to_owned(),
        text,
    }])
}

/// The SriovNetworkNodePolicy of a rail: one VF of each of its PFs.
fn policy(name: &str, resource: &str, namespace: &str, pfs: &[String], mtu: u32) -> String {
    let name = yaml::scalar(name);
    let namespace = yaml::scalar(namespace);
    let resource = yaml::scalar(resource);
    let pfs = json!(pfs);
    format!(
        "---
apiVersion: sriovnetwork.openshift.io/v1
kind: SriovNetworkNodePolicy
metadata:
  name: {name}
  namespace: {namespace}
spec:
  resourceName: {resource}
  nodeSelector:
    feature.node.kubernetes.io/network-sriov.capable: \"true\"
  numVfs: 1
  mtu: {mtu}
  nicSelector:
    pfNames: {pfs}
  deviceType: netdevice
  isRdma: true
"
    )
}

/// The resource of a network, and the PFs whose VFs it has.
struct Resource {
    name: String,
    resource: String,
    pfs: Vec<String>,
    mtu: u32,
}

fn resources_of(plan: &Plan, networks: &Networks) -> Result<Vec<Resource>> {
    let (mut resources, mut faults) = (Vec::new(), Vec::new());
    let mut rails: BTreeMap<String, (String, String)> = BTreeMap::new();
    for network in networks.networks(plan)? {
        let mut names: Vec<String> = Vec::new();
        for (node_name, _, pf) in pfs(&network.pools, &mut faults) {
            if !names.iter().any(|name| name == pf) {
                names.push(pf.to_owned());
            }
            let of = (network.name.to_owned(), node_name.to_owned());
            let (other, on) = rails.entry(pf.to_owned()).or_insert(of);
            if other != network.name {
                let problem = format!(
                    "{pf} is of {other} on node {on} and of {} on node {node_name}, so one configuration would give \
                     a VF of the wrong rail",
                    network.name
                );
                let remedy =
                    "plan these nodes apart: each node can have a configuration of its own";
                faults.push(Fault::whole(problem).remedy(remedy));
            }
        }
        names.sort_unstable();
        let mtu = network.mtu();
        resources.push(Resource {
            name: network.name.to_owned(),
            resource: network.resource,
            pfs: names,
            mtu,
        });
    }
    if faults.is_empty() {
        Ok(resources)
    } else {
        Err(refused(faults))
    }
}

/// The node, the number of the rail, and the PF of each cable of a network; both families have the
/// same.
fn pfs<'a>(pools: &[&'a Pool], faults: &mut Vec<Fault>) -> Vec<(&'a str, u8, &'a str)> {
    let mut found = Vec::new();
    let mut told: HashSet<&str> = HashSet::new();
    for pool in pools {
        let Some(rail) = pool.number() else {
            faults.push(
                Fault::whole("no source says which rail it is").of(format!("pool {}", pool.name)),
            );
            continue;
        };
        for (row, cables) in pool.rows().filter(|(row, _)| !row.node_name.is_empty()) {
            let before = found.len();
            let names = cables.iter().filter_map(|cable| cable.interface.as_deref());
            found.extend(names.map(|name| (row.node_name.as_str(), rail, name)));
            if found.len() == before && told.insert(&row.node_name) {
                let of = format!("node {} in pool {}", row.node_name, pool.name);
                let remedy = "topology.json, `hostInterface` of a fabric file and netplan files do, CIDRPools do not";
                faults.push(
                    Fault::whole("no source says which NIC it is")
                        .of(of)
                        .remedy(remedy),
                );
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
