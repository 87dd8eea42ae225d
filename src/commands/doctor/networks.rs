//! The networks that this node knows without asking an API server: those of the runtime's folder, and those that pods
//! were attached by.

use std::path::Path;

use ipnet::IpNet;
use serde_json::Value;

use super::runtimes::configurations_in;
use crate::commands::inventory::Inventory;
use crate::files;

/// What an ADD of the network asks of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Its name.
    pub name: String,
    /// `rail`.
    pub rail: Option<u8>,
    /// `mtu`.
    pub mtu: Option<u32>,
    /// `rdma: required`.
    pub needs_rdma: bool,
    /// `routes`.
    pub routes: Vec<IpNet>,
}

impl Network {
    /// Of one plugin's configuration, if it is ours. What is wrong in it is for lint.
    fn of(plugin: &Value, list: &Value) -> Option<Network> {
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        if text(plugin, "type")? != "rail-cni" {
            return None;
        }
        let number = |key: &str| plugin.get(key).and_then(Value::as_u64);
        let routes = plugin.get("routes").and_then(Value::as_array).into_iter().flatten();
        Some(Network {
            name: text(plugin, "name").or_else(|| text(list, "name")).unwrap_or_default(),
            rail: number("rail").and_then(|rail| rail.try_into().ok()),
            mtu: number("mtu").and_then(|mtu| mtu.try_into().ok()).filter(|mtu| *mtu != 0),
            needs_rdma: text(plugin, "rdma").is_some_and(|rdma| rdma == "required"),
            routes: routes.filter_map(|route| text(route, "dst")?.parse().ok()).collect(),
        })
    }

    /// Is it one of this rail's? One without `rail` may be.
    pub fn may_be_of(&self, rail: Option<u8>) -> bool {
        self.rail.is_none() || self.rail == rail
    }
}

/// All, each once.
pub fn known(folder: &Path, inventory: &Inventory) -> Vec<Network> {
    let mut networks = Vec::new();
    for path in configurations_in(folder).unwrap_or_default() {
        let text = files::read(&path).unwrap_or_default();
        let list: Value = serde_json::from_slice(&text).unwrap_or_default();
        let plugins = list.get("plugins").and_then(Value::as_array).cloned();
        let plugins = plugins.unwrap_or_else(|| vec![list.clone()]);
        networks.extend(plugins.iter().filter_map(|plugin| Network::of(plugin, &list)));
    }
    for one in &inventory.attachments {
        let Some(ipam) = &one.record.ipam else { continue };
        let config: Value = serde_json::from_str(&ipam.config).unwrap_or_default();
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
