//! Checks whether the routes of the rails cover networks that a pod must reach by eth0: those of
//! the cluster and of the node.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use serde_json::Value;

use super::networks::Network;
use super::runtimes::{CONFIGURATIONS, configurations_in};
use super::{Check, Findings};
use crate::commands::inventory::Inventory;
use rail_cni::cluster_networks::is_of_links;
use rail_cni::cluster_networks::overlap;
use rail_cni::files;
use rail_cni::node::Node;
use rail_cni::pool::Allocation;
use rail_netlink::route::{self, MAIN, Route};
use rail_netlink::{Socket, link};
use rail_plan::document;

/// Has the address of the cluster's DNS, which is in the network of Services.
const KUBELET: &str = "/var/lib/kubelet/config.yaml";
const FLANNEL: &str = "/run/flannel/subnet.env";

/// A network that a pod reaches by eth0.
struct Known {
    network: IpNet,
    /// The network's kind, for messages.
    of: String,
}

/// Compares the prefixes and routes of this node's pools, and of the networks that are known here,
/// with the networks of the cluster and of the node.
pub fn check(
    node: &Node,
    pools: &BTreeMap<String, Allocation>,
    inventory: &Inventory,
    networks: &[Network],
    found: &mut Findings,
) {
    let name = "routes";
    let prefixes = pools.iter().map(|(pool, one)| {
        (
            format!("the prefix {} of pool {pool}", one.prefix),
            one.prefix,
        )
    });
    let of_pools = pools.iter().flat_map(|(pool, one)| {
        one.routes
            .iter()
            .map(move |to| (format!("the route {} of pool {pool}", to.dst), to.dst))
    });
    let of_networks = networks.iter().flat_map(|network| {
        network.routes.iter().map(|dst| {
            (
                format!("the route {dst} of the network {}", network.name),
                *dst,
            )
        })
    });
    // ADD leaves out default routes.
    let ours: Vec<_> = of_pools
        .chain(of_networks)
        .chain(prefixes)
        .filter(|(_, dst)| dst.prefix_len() > 0)
        .collect();
    let covering = |network: IpNet| ours.iter().find(|(_, dst)| overlap(*dst, network));
    for network in &node.cluster_networks {
        if let Some((what, _)) = covering(*network) {
            let text =
                format!("{what} covers {network} of clusterNetworks: every ADD with it is refused");
            found.add(Check::fail(
                name,
                text,
                "plan the fabric with other addresses",
            ));
        }
    }
    let detected = detected();
    for Known { network, of } in &detected {
        let is_configured = node
            .cluster_networks
            .iter()
            .any(|named| overlap(*named, *network));
        if let Some((what, _)) = covering(*network).filter(|_| !is_configured) {
            let text =
                format!("{what} covers {network}, {of}: pods of that rail cannot reach it by eth0");
            let remedy = "plan the fabric with other addresses; with clusterNetworks in node.json, ADD refuses such routes";
            found.add(Check::fail(name, text, remedy));
        }
    }
    for Known { network, of } in host_networks(inventory) {
        if let Some((what, _)) = covering(network) {
            let text =
                format!("{what} covers {network}, {of}: pods of that rail do not reach it by eth0");
            found.add(Check::warn(
                name,
                text,
                "plan the fabric with other addresses, unless that is intended",
            ));
        }
    }
    if node.cluster_networks.is_empty() && detected.is_empty() && !ours.is_empty() {
        let text = "the networks of Services and pods are not known on this node";
        return found.add(Check::skip(
            name,
            format!("{text}: set clusterNetworks in node.json"),
        ));
    }
    found.ok_unless_reported(
        name,
        format!(
            "none of the {} routes of rails covers a network of the cluster",
            ours.len()
        ),
    );
}

/// The networks of the cluster that files of kubelet and of network plugins contain.
fn detected() -> Vec<Known> {
    let mut known = Vec::new();
    if let Ok(documents) = document::read(KUBELET) {
        let dns = documents
            .first()
            .and_then(|document| document.root().get("clusterDNS"));
        let addresses = dns
            .and_then(|dns| dns.value.as_array().cloned())
            .unwrap_or_default();
        let addresses = addresses
            .iter()
            .filter_map(|one| one.as_str()?.parse::<IpAddr>().ok());
        known.extend(addresses.map(|dns| Known {
            network: dns.into(),
            of: format!("the cluster's DNS ({KUBELET})"),
        }));
    }
    for path in configurations_in(Path::new(CONFIGURATIONS)).unwrap_or_default() {
        let of = || format!("the pods' network ({})", path.display());
        let text = files::read(&path).unwrap_or_default();
        let mut subnets = Vec::new();
        collect(
            &serde_json::from_slice(&text).unwrap_or_default(),
            &mut subnets,
        );
        known.extend(
            subnets
                .into_iter()
                .map(|network| Known { network, of: of() }),
        );
    }
    let flannel = fs::read_to_string(FLANNEL).unwrap_or_default();
    let networks = flannel
        .lines()
        .filter_map(|line| line.split_once('='))
        .filter(|(key, _)| key.ends_with("NETWORK"));
    let networks = networks
        .flat_map(|(_, value)| value.split(','))
        .filter_map(|net| net.parse().ok());
    known.extend(networks.map(|network| Known {
        network,
        of: format!("the pods' network ({FLANNEL})"),
    }));
    known
}

/// Collects `subnet` of host-local, bridge and flannel at any depth, but not in the networks of
/// rail-cni.
fn collect(config: &Value, subnets: &mut Vec<IpNet>) {
    match config {
        Value::Object(object) if object.get("type").is_some_and(|kind| kind == "rail-cni") => (),
        Value::Object(object) => {
            let subnet = object
                .get("subnet")
                .and_then(Value::as_str)
                .and_then(|text| text.parse().ok());
            subnets.extend(subnet.map(|subnet: IpNet| subnet.trunc()));
            object.values().for_each(|value| collect(value, subnets));
        }
        Value::Array(list) => list.iter().for_each(|value| collect(value, subnets)),
        _ => (),
    }
}

/// The networks to which the node itself has routes, except rails and the default route; none if
/// the routes cannot be read.
fn host_networks(inventory: &Inventory) -> Vec<Known> {
    read_host_networks(inventory).unwrap_or_default()
}

fn read_host_networks(inventory: &Inventory) -> anyhow::Result<Vec<Known>> {
    let mut rail_links = Vec::new();
    for rail in &inventory.rails {
        rail_links.extend(&rail.link);
        for vf in &rail.vfs {
            rail_links.extend(&vf.link);
        }
    }
    let mut host = Socket::open()?;
    let links = link::all(&mut host)?;
    let mut networks: Vec<Known> = Vec::new();
    let is_network = |route: &Route| route.dst.prefix_len() > 0 && !is_of_links(route.dst);
    for (index, route) in route::matching(&mut host, Some(MAIN), is_network)? {
        let is_of_rail = rail_links.iter().any(|link| link.index == index);
        let is_listed = networks.iter().any(|listed| listed.network == route.dst);
        if is_of_rail || is_listed {
            continue;
        }
        let link = links.iter().find(|link| link.index == index);
        let link_name = link.map_or("", |link| link.name.as_str());
        networks.push(Known {
            network: route.dst,
            of: format!("to which the node has a route by {link_name}"),
        });
    }
    Ok(networks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn subnets_are_found_wherever_a_plugin_has_them() {
        let mut subnets = Vec::new();
        collect(
            &json!({"type": "multus", "delegates": [{"plugins": [
                {"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.1.7/24"}]]}},
                {"type": "calico", "ipam": {"subnet": "usePodCidr"}},
                {"type": "rail-cni", "ipam": {"type": "host-local", "subnet": "172.16.0.0/31"}},
            ]}], "subnet": "fd00::/64"}),
            &mut subnets,
        );
        let shown: Vec<_> = subnets.iter().map(IpNet::to_string).collect();
        assert_eq!(shown, ["fd00::/64", "10.244.1.0/24"]);
    }
}
