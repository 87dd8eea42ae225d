//! One plugin's configuration: what ADD refuses, and what ADD takes and nobody means.

use std::collections::BTreeSet;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::{Context, Lint, OUR_IPAM, OURS, RESOURCE, Rail};
use crate::attach::config::{self, NetConf};
use crate::cni::keys::{TWICE, below};
use crate::cni::{Args, Attachment, Dns, Keys, Network, Route, Version};
use crate::document::{Document, Part};
use crate::ipam;
use crate::nearest::nearest;
use crate::node::Node;

/// Capabilities that other plugins serve (CONVENTIONS.md).
const OTHER_CAPABILITIES: [&str; 6] =
    ["portMappings", "ipRanges", "bandwidth", "dns", "aliases", "cgroupPath"];
const SELECTORS: [&str; 5] = ["deviceID", "pciBusID", "device", "hwaddr", "kernelpath"];
/// A device for configurations that leave it to the runtime. It is never looked at.
const SOME_DEVICE: &str = "0000:00:00.1";

impl Lint {
    /// One configuration of rail-cni.
    pub(super) fn plugin(&mut self, plugin: Part, context: &Context, version: Version) {
        let Context { name, nad, resource, in_list, .. } = context;
        let name = name.as_str();
        let ours = self.spelt(plugin, name, &config::NETWORK);
        let both = self.spelt(ours.root(), name, &ipam::config::NETWORK);
        let plugin = both.root();
        self.keys(plugin, name, "", config::is_known, &config::known());
        self.keys_at(plugin, name, "dns", &Dns::KEYS);
        self.keys_at(plugin, name, "args.cni", &config::ARGS);
        for at in 0..plugin.get("routes").map_or(0, |routes| routes.items().count()) {
            self.keys_at(plugin, name, &format!("routes[{at}]"), &Route::KEYS);
        }
        for key in ["runtimeConfig", "prevResult"].into_iter().filter(|key| plugin.get(key).is_some()) {
            self.warning(plugin, name, format!("{key}: is for the runtime to write"));
        }
        for key in ["cniVersion", "cniVersions", "name"] {
            if *in_list && plugin.get(key).is_some() {
                self.warning(
                    plugin,
                    name,
                    format!("{key}: is not looked at in a plugin: that of the list counts"),
                );
            }
        }
        if plugin.text("logFile").is_some_and(|file| !file.is_empty()) {
            let message =
                "logFile: counts only where the node's node.json has it: as log.file, or in log.dir";
            self.warning(plugin, name, message.to_owned());
        }

        let is_set = |key: &&str| plugin.text(key).is_some_and(|text| !text.is_empty());
        let names_a_device = SELECTORS.iter().any(is_set) || plugin.get("runtimeConfig.deviceID").is_some();
        let declares = |key: &str| {
            let capabilities = plugin.get("capabilities");
            capabilities.and_then(|all| all.get(key)).is_some_and(|one| *one.value == true)
        };
        self.capabilities(plugin, context, names_a_device);
        if let Some(nad) = nad.filter(|_| !names_a_device && resource.is_none()) {
            let message = format!(
                "metadata.annotations: no {RESOURCE}: Multus gives a device only to networks with a resource, and \
                 this one names none itself"
            );
            self.error(nad, name, message);
        }
        let gets_a_device = nad.is_some() || declares("deviceID");
        self.refused(plugin, context, version, gets_a_device && !names_a_device);
        self.values(plugin, name);
        let pools = self.ipam(plugin, context, version).unwrap_or_default();
        self.leads_to(plugin, name, &["routes", "ipam.routes"], "ipam.cidr");
        let rail = plugin.get("rail").and_then(|rail| rail.value.as_u64());
        self.rails.push(Rail {
            place: plugin.place("rail"),
            network: name.to_owned(),
            of: self.of,
            name: context.unique().to_owned(),
            cluster: context.cluster.clone(),
            namespace: context.namespace.clone(),
            rail,
            pools,
            resource: resource.map(str::to_owned),
        });
    }

    /// The same with the keys spelt as they are known. Go's plugins, and ours, take any letter case; people and
    /// their tools do not see that it is the same key.
    pub(super) fn spelt(&mut self, plugin: Part, name: &str, keys: &'static Keys) -> Document {
        let mut seen = BTreeSet::new();
        plugin.respelt(&mut |part, path, key| {
            let known = keys.at(path).spelt(key);
            let (given, spelt) = (below(path, key), below(path, known.unwrap_or(key)));
            if given != spelt {
                self.warning(part, name, format!("{given}: is written {}", known.unwrap_or(key)));
            }
            if !part.value.is_null() && !seen.insert(spelt.clone()) {
                self.error(part, name, format!("{spelt}: {TWICE}"));
            }
            known.unwrap_or(key).to_owned()
        })
    }

    /// All that ADD refuses, by ADD's own parser: what it refuses first is taken away, and it is asked again.
    fn refused(&mut self, plugin: Part, context: &Context, version: Version, gets_a_device: bool) {
        // Without one of them the others mean something else.
        const TOGETHER: [&[&str]; 3] =
            [&SELECTORS, &["vlan", "vlanQoS", "vlanProto"], &["min_tx_rate", "max_tx_rate"]];
        let name = context.name.as_str();
        let mut map = as_handed_over(plugin, context, version);
        if gets_a_device {
            map.insert("deviceID".to_owned(), SOME_DEVICE.into());
        }
        let attachment = Attachment { container_id: "lint".to_owned(), ifname: ifname_in(plugin) };
        if attachment.ifname != DEFAULT_IFNAME {
            let message = format!("sysctl: names {}: IFNAME fits any pod", attachment.ifname);
            self.warning(plugin, name, message);
        }
        for _ in 0..=map.len() {
            let Ok(network) = parse(&map) else { return };
            let Err(error) = NetConf::parse(&network, &attachment, &Node::default()) else { return };
            let message = format!("{error:#}");
            let message = message.strip_prefix(&format!("network {name}: ")).unwrap_or(&message);
            self.error(plugin, name, message.to_owned());
            let key = message.split(['.', ':', '[', ' ']).next().unwrap_or_default();
            let group = TOGETHER.into_iter().find(|group| group.contains(&key)).unwrap_or(&[key]).to_vec();
            let gone = group.iter().filter_map(|key| map.remove(*key)).count();
            if gone == 0 || SELECTORS.contains(&key) {
                let before = map.insert("deviceID".to_owned(), SOME_DEVICE.into());
                if before.is_some() {
                    return;
                }
            }
        }
    }

    /// What ADD takes and nobody means.
    fn values(&mut self, plugin: Part, name: &str) {
        if plugin.get("rail").is_none_or(|rail| rail.value.is_null()) {
            let message = "rail: is missing: no PF is checked, and the routing table is a free one";
            self.warning(plugin, name, message.to_owned());
        }
        let mtu = plugin.get("mtu").filter(|mtu| !mtu.value.is_null());
        match mtu.map_or(Some(0), |mtu| mtu.value.as_u64()) {
            Some(0) => {
                let message = "mtu: is missing: the device keeps the one it has; rails have 9000";
                self.warning(plugin, name, message.to_owned());
            }
            Some(mtu @ ..1500) => {
                self.warning(
                    plugin,
                    name,
                    format!("mtu: {mtu} is less than any Ethernet has; rails have 9000"),
                );
            }
            Some(mtu @ 9217..) => {
                self.warning(
                    plugin,
                    name,
                    format!("mtu: {mtu} is more than most switches carry; rails have 9000"),
                );
            }
            Some(_) | None => (),
        }
        self.default_routes(plugin, name, "routes");
        if plugin.text("ipam.type").is_none_or(str::is_empty) {
            let message = "ipam: is missing: the rail has no address and no routes";
            self.warning(plugin, name, message.to_owned());
        }
    }

    fn default_routes(&mut self, plugin: Part, name: &str, path: &str) {
        let Some(routes) = plugin.get(path) else { return };
        for (at, route) in routes.items().enumerate() {
            let dst = route.text("dst").and_then(|dst| dst.parse::<ipnet::IpNet>().ok());
            if let Some(dst) = dst.filter(|dst| dst.prefix_len() == 0) {
                let message =
                    format!("{path}[{at}].dst: {dst} is left out: a rail never has the default route");
                self.warning(plugin, name, message);
            }
        }
    }

    /// The `ipam` section; the pools of ours.
    pub(super) fn ipam(&mut self, plugin: Part, context: &Context, version: Version) -> Option<Vec<String>> {
        let name = context.name.as_str();
        let kind = plugin.text("ipam.type").filter(|kind| !kind.is_empty())?;
        if kind != OUR_IPAM {
            match nearest(kind, [OUR_IPAM, OURS]) {
                // Told as what ADD refuses.
                _ if config::NO_IPAM.contains(&kind) => (),
                Some(_) => {
                    self.error(plugin, name, format!("ipam.type: {kind:?}: did you mean {OUR_IPAM}?"));
                }
                None => self.default_routes(plugin, name, "ipam.routes"),
            }
            return None;
        }
        let all: Vec<&str> =
            ipam::config::KEYS.iter().chain(&crate::pool::cidrpool::SPEC_KEYS).copied().collect();
        if let Some(section) = plugin.get("ipam") {
            self.keys(section, name, "ipam.", ipam::config::is_known, &all);
        }
        let network = parse(&as_handed_over(plugin, context, version)).ok()?;
        if let Err(error) = ipam::config::requested(&network) {
            self.error(plugin, name, format!("{error:#}"));
        }
        let config = match ipam::config::Config::parse(&network) {
            Ok(config) => config,
            Err(error) => {
                self.error(plugin, name, format!("{error:#}"));
                return None;
            }
        };
        match config.plan() {
            None => (),
            Some(Ok(plan)) => {
                plan.warnings.into_iter().for_each(|warning| self.warning(plugin, name, warning))
            }
            Some(Err(faults)) => faults.into_iter().for_each(|fault| self.error(plugin, name, fault)),
        }
        Some(config.pools)
    }

    /// What the runtime passes on, and what it drops without a word.
    fn capabilities(&mut self, plugin: Part, context: &Context, names_a_device: bool) {
        let name = context.name.as_str();
        let declared = plugin.get("capabilities").filter(|all| !all.value.is_null());
        if let Some(all) = declared.filter(|all| !all.value.is_object()) {
            return self.error(plugin, name, format!("capabilities: {} is no object", all.value));
        }
        for (key, one) in declared.into_iter().flat_map(Part::entries) {
            if !one.value.is_boolean() {
                self.error(
                    plugin,
                    name,
                    format!("capabilities.{key}: {} is neither true nor false", one.value),
                );
            } else if OTHER_CAPABILITIES.contains(&key) {
                self.warning(plugin, name, format!("capabilities.{key}: {OURS} makes nothing of it"));
            } else if !config::CAPABILITIES.contains(&key) {
                self.unknown(one, name, &format!("capabilities.{key}"), &config::CAPABILITIES);
            }
        }
        let is_on = |key: &str| declared.and_then(|all| all.get(key)).is_some_and(|one| *one.value == true);
        let lost = [
            ("deviceID", "runtimeConfig.deviceID"),
            ("mac", "a MAC that a pod asks for"),
            ("ips", "an address that a pod asks for"),
            ("CNIDeviceInfoFile", "the request for a device-info file"),
        ];
        let lost: Vec<_> = lost
            .into_iter()
            .filter(|(key, _)| !is_on(key) && (!names_a_device || matches!(*key, "mac" | "ips")))
            .collect();
        // Other runtimes have no such requests.
        if context.nad.is_some() && !lost.is_empty() {
            let keys: Vec<_> = lost.iter().map(|(key, _)| format!("{key:?}: true")).collect();
            let what: Vec<_> = lost.iter().map(|(_, what)| *what).collect();
            let message =
                format!("capabilities: without {} these never arrive: {}", keys.join(", "), what.join(", "));
            self.warning(plugin, name, message);
        }
    }
}

/// As a plugin reads what it is handed.
pub fn parse(map: &Map<String, Value>) -> Result<Network> {
    static KEYS: Keys = Keys { names: &[], inside: &[] };
    Network::parse(json!(map).to_string().into(), Args::default(), vec![], &KEYS, false)
}

/// A plugin's configuration as a runtime hands it over.
fn as_handed_over(plugin: Part, context: &Context, version: Version) -> Map<String, Value> {
    let mut map = plugin.value.as_object().cloned().unwrap_or_default();
    map.insert("cniVersion".to_owned(), version.as_str().into());
    if context.in_list || (context.nad.is_some() && plugin.text("name").is_none_or(str::is_empty)) {
        map.insert("name".to_owned(), context.name.clone().into());
    }
    map
}

const DEFAULT_IFNAME: &str = "net1";

/// The interface that sysctl keys name, where it is one that Multus makes; they fit no other.
fn ifname_in(plugin: Part) -> String {
    let keys = plugin.get("sysctl").into_iter().flat_map(Part::entries).map(|(key, _)| key);
    let mut names = keys.filter_map(|key| key.split(['.', '/']).nth(3));
    let is_net = |name: &&str| {
        name.strip_prefix("net").is_some_and(|number| {
            !number.is_empty() && number.len() < 4 && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    names.find(is_net).unwrap_or(DEFAULT_IFNAME).to_owned()
}
