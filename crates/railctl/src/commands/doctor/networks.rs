//! The networks that this node knows without an API server: those in the runtime's directory, and
//! those of its attachments.

use std::path::Path;

use ipnet::IpNet;
use serde_json::Value;

use super::runtimes::configurations_in;
use crate::commands::inventory::Inventory;
use rail_cni::files;
use rail_cni::netconf::RDMA_CNI;

/// The requirements of a network's ADD on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Name of the network.
    pub name: String,
    /// The key `rail`.
    pub rail: Option<u8>,
    /// The key `mtu`, in bytes.
    pub mtu: Option<u32>,
    /// The key `minPlanes`.
    pub min_planes: Option<u8>,
    /// Whether `rdma` is `required`.
    pub needs_rdma: bool,
    /// Destinations of the key `routes`.
    pub routes: Vec<IpNet>,
}

impl Network {
    /// Reads the configuration of one plugin, if it is rail-cni's. `lint` reports what is wrong in
    /// it.
    fn of(plugin: &Value, list: &Value) -> Option<Network> {
        let text =
            |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        if !["rail-cni", RDMA_CNI].contains(&text(plugin, "type")?.as_str()) {
            return None;
        }
        let number = |key: &str| plugin.get(key).and_then(Value::as_u64);
        let routes = plugin
            .get("routes")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        Some(Network {
            name: text(plugin, "name")
                .or_else(|| text(list, "name"))
                .unwrap_or_default(),
            rail: number("rail").and_then(|rail| rail.try_into().ok()),
            mtu: number("mtu")
                .and_then(|mtu| mtu.try_into().ok())
                .filter(|mtu| *mtu != 0),
            min_planes: number("minPlanes").and_then(|count| count.try_into().ok()),
            needs_rdma: text(plugin, "rdma").is_some_and(|rdma| rdma == "required"),
            routes: routes
                .filter_map(|route| text(route, "dst")?.parse().ok())
                .collect(),
        })
    }

    /// Whether the network may be for this rail. A network without `rail` may be for any.
    pub fn may_be_of(&self, rail: Option<u8>) -> bool {
        self.rail.is_none() || self.rail == rail
    }
}

/// All known networks, each one once.
pub fn known(directory: &Path, inventory: &Inventory) -> Vec<Network> {
    let mut networks = Vec::new();
    for path in configurations_in(directory).unwrap_or_default() {
        let text = files::read(&path).unwrap_or_default();
        let list: Value = serde_json::from_slice(&text).unwrap_or_default();
        let plugins = list.get("plugins").and_then(Value::as_array).cloned();
        let plugins = plugins.unwrap_or_else(|| vec![list.clone()]);
        networks.extend(
            plugins
                .iter()
                .filter_map(|plugin| Network::of(plugin, &list)),
        );
    }
    for one in &inventory.attachments {
        let Some(config) = one.record.ipam_config() else {
            continue;
        };
        let config: Value = serde_json::from_str(config).unwrap_or_default();
        networks.extend(Network::of(&config, &Value::Null));
    }
    let mut once: Vec<Network> = Vec::new();
    networks.into_iter().for_each(|network| {
        if !once.contains(&network) {
            once.push(network);
        }
    });
    once
}
