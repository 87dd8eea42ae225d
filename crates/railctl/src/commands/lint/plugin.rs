//! The configuration of one plugin: what ADD refuses, and what ADD takes and hardly anybody
//! intends.

use std::collections::BTreeSet;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::{Context, Finding, Lint, OUR_IPAM, OURS, RESOURCE, Rail, Severity, chain, is_misspelt};
use rail_cni::cni::keys::{TWICE, below};
use rail_cni::cni::{Args, Attachment, Dns, Keys, Network, Route, Strictness, Version};
use rail_cni::fault::Fault;
use rail_cni::ipam;
use rail_cni::nearest::nearest;
use rail_cni::netconf::{self, NetConf};
use rail_plan::document::{Document, Part};

/// Capabilities of other plugins (CONVENTIONS.md of the CNI specification).
const OTHER_CAPABILITIES: [&str; 6] = [
    "portMappings",
    "ipRanges",
    "bandwidth",
    "dns",
    "aliases",
    "cgroupPath",
];
pub(super) const SELECTORS: [&str; 5] = ["deviceID", "pciBusID", "device", "hwaddr", "kernelpath"];
/// A device for configurations that leave it to the runtime. Nothing opens it.
const SOME_DEVICE: &str = "0000:00:00.1";

impl Lint {
    /// One configuration of rail-cni.
    pub(super) fn plugin(&mut self, plugin: Part, context: &Context, version: Version) {
        let Context {
            name,
            nad,
            resource,
            in_list,
            ..
        } = context;
        let name = name.as_str();
        let ours = self.spelt(plugin, name, &netconf::NETWORK);
        let both = self.spelt(ours.root(), name, &ipam::config::NETWORK);
        let plugin = both.root();
        self.written(plugin, name);
        for key in ["cniVersion", "cniVersions", "name"] {
            if *in_list && plugin.get(key).is_some() {
                self.warning(
                    plugin,
                    name,
                    key,
                    "has no effect in a plugin: the list's counts",
                );
            }
        }
        if plugin.text("logFile").is_some_and(|file| !file.is_empty()) {
            let problem =
                "has an effect only if node.json has it as log.file, or its directory as log.dir";
            self.warning(plugin, name, "logFile", problem);
        }

        let is_set = |key: &&str| plugin.text(key).is_some_and(|text| !text.is_empty());
        let names_a_device =
            SELECTORS.iter().any(is_set) || plugin.get("runtimeConfig.deviceID").is_some();
        let is_misspelt = SELECTORS
            .iter()
            .any(|key| is_misspelt(plugin, key, &netconf::known()));
        let has_device = names_a_device || is_misspelt;
        let declares = |key: &str| {
            let capabilities = plugin.get("capabilities");
            capabilities
                .and_then(|all| all.get(key))
                .is_some_and(|one| *one.value == true)
        };
        self.capabilities(plugin, context, has_device);
        if let Some(nad) = nad.filter(|_| !has_device && resource.is_none()) {
            let problem = format!(
                "no {RESOURCE}: Multus gives a device only to networks with a resource, and this one names no device \
                 itself"
            );
            let (severity, problem) = if *in_list {
                (Severity::Error, problem)
            } else {
                let right = "right for dra-driver-sriov, which gives it the device of a claim";
                (Severity::Warning, format!("{problem}; {right}"))
            };
            let finding = Finding {
                severity,
                network: name.to_owned(),
                of: self.of,
                fault: nad.fault("metadata.annotations", problem),
            };
            let unique = context.unique().to_owned();
            self.resources.without.push((unique, finding));
        }
        let gets_a_device = nad.is_some() || declares("deviceID") || is_misspelt;
        self.refused(plugin, context, version, gets_a_device && !names_a_device);
        self.values(plugin, name);
        // `refused` reports what such a section may not have.
        let is_of_host = plugin.text("ipam.type") == Some(OUR_IPAM)
            && plugin
                .text("ipam.source")
                .is_some_and(|source| !source.is_empty());
        let pools = (!is_of_host)
            .then(|| self.ipam(plugin, context, version))
            .flatten()
            .unwrap_or_default();
        self.leads_to(plugin, name, &["routes", "ipam.routes"], &["ipam.cidr"]);
        self.hands_out(plugin, context);
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

    /// One configuration of rail-cni for the RDMA device alone, behind another plugin.
    pub(super) fn chained(&mut self, plugin: Part, context: &Context, version: Version) {
        let spelt = self.spelt(plugin, &context.name, &netconf::NETWORK);
        self.written(spelt.root(), &context.name);
        self.refused(spelt.root(), context, version, false);
    }

    /// Checks that the keys are those that ADD knows.
    fn written(&mut self, plugin: Part, name: &str) {
        self.keys(plugin, name, "", netconf::is_known, &netconf::known());
        self.keys_at(plugin, name, "dns", &Dns::KEYS);
        self.keys_at(plugin, name, "rdmaQoS", netconf::QOS_KEYS);
        self.keys_at(plugin, name, "args.cni", &netconf::ARGS);
        for at in 0..plugin
            .get("routes")
            .map_or(0, |routes| routes.items().count())
        {
            self.keys_at(plugin, name, &format!("routes[{at}]"), &Route::KEYS);
        }
        for key in ["runtimeConfig", "prevResult"]
            .into_iter()
            .filter(|key| plugin.get(key).is_some())
        {
            self.warning(plugin, name, key, "is written by the runtime: remove it");
        }
    }

    /// A copy whose keys have the usual letter case. Go's plugins and these take any letter case,
    /// but people and their tools do not see that two spellings are one key.
    pub(super) fn spelt(&mut self, plugin: Part, name: &str, keys: &'static Keys) -> Document {
        let mut seen = BTreeSet::new();
        plugin.respelt(&mut |part, path, key| {
            let known = keys.at(path).spelt(key);
            let (given, spelt) = (below(path, key), below(path, known.unwrap_or(key)));
            if given != spelt {
                let problem = format!("is written {}", known.unwrap_or(key));
                self.say(
                    Severity::Warning,
                    name,
                    Fault::new(given, problem).at(part.place("")),
                );
            }
            if !part.value.is_null() && !seen.insert(spelt.clone()) {
                self.fault(name, Fault::new(spelt, TWICE).at(part.place("")));
            }
            known.unwrap_or(key).to_owned()
        })
    }

    /// Finds all that ADD refuses with ADD's own parser, which stops at the first fault: the key of
    /// each fault is removed, and the rest is parsed again.
    fn refused(&mut self, plugin: Part, context: &Context, version: Version, gets_a_device: bool) {
        // Without one of these keys the others mean something else.
        const TOGETHER: [&[&str]; 3] = [
            &SELECTORS,
            &["vlan", "vlanQoS", "vlanProto"],
            &["min_tx_rate", "max_tx_rate"],
        ];
        let name = context.name.as_str();
        let mut map = as_handed_over(plugin, context, version);
        if gets_a_device {
            map.insert("deviceID".to_owned(), SOME_DEVICE.into());
        }
        let attachment = Attachment {
            container_id: "lint".to_owned(),
            ifname: ifname_in(plugin),
        };
        if attachment.ifname != DEFAULT_IFNAME {
            let problem = format!("names {}: IFNAME works in any pod", attachment.ifname);
            self.warning(plugin, name, "sysctl", problem);
        }
        for _ in 0..=map.len() {
            let Ok(network) = parse(&map) else { return };
            let Err(error) = NetConf::parse(&network, &attachment, &self.node) else {
                return;
            };
            let mut fault = refusal(plugin, &error);
            let path = fault.path.clone();
            if path
                .strip_prefix("sysctl.")
                .is_some_and(|key| !chain::is_of_the_rail(key))
            {
                fault = fault.remedy(
                    "in a tuning plugin behind rail-cni, or in securityContext.sysctls of the pod; rail-cni sets arp_ignore, \
                     arp_announce and rp_filter of each rail itself",
                );
            }
            self.fault(name, fault);
            let key = path.split(['.', '[']).next().unwrap_or_default();
            let group = TOGETHER
                .into_iter()
                .find(|group| group.contains(&key))
                .unwrap_or(&[key])
                .to_vec();
            let gone = group.iter().filter_map(|key| map.remove(*key)).count();
            if gone == 0 || SELECTORS.contains(&key) {
                let before = map.insert("deviceID".to_owned(), SOME_DEVICE.into());
                if before.is_some() {
                    return;
                }
            }
        }
    }

    /// Warns of what ADD takes and hardly anybody intends.
    fn values(&mut self, plugin: Part, name: &str) {
        let is_missing = |key: &str| !is_misspelt(plugin, key, &netconf::known());
        // Such a network is one for all rails: without a rail of the device no pool is found, and
        // ADD says so.
        let takes_any = plugin.text("ipam.type") == Some(OUR_IPAM)
            && plugin.get("ipam").is_some_and(|ipam| {
                ipam.entries()
                    .all(|(key, _)| key.eq_ignore_ascii_case("type"))
            });
        let is_null = plugin.get("rail").is_none_or(|rail| rail.value.is_null());
        if is_null && !takes_any && is_missing("rail") {
            let problem = "is missing: the device's PF in node.json determines it; if node.json lists no rails, no PF is \
                           checked, and any free routing table is used";
            self.warning(plugin, name, "rail", problem);
        }
        let mtu = plugin.get("mtu").filter(|mtu| !mtu.value.is_null());
        let mtu = match mtu.map_or(Some(0), |mtu| mtu.value.as_u64()) {
            Some(0) => {
                is_missing("mtu").then(|| "is missing: the device keeps the one it has".to_owned())
            }
            Some(mtu @ ..1500) => Some(format!("{mtu} is less than any Ethernet has")),
            Some(mtu @ 9217..) => Some(format!("{mtu} is more than most switches carry")),
            Some(_) | None => None,
        };
        if let Some(problem) = mtu {
            self.warning(plugin, name, "mtu", format!("{problem}; rails have 9000"));
        }
        self.default_routes(plugin, name, "routes");
        if plugin.text("ipam.type").is_none_or(str::is_empty) && is_missing("ipam") {
            self.warning(
                plugin,
                name,
                "ipam",
                "is missing: the rail has no address and no routes",
            );
        }
    }

    pub(super) fn default_routes(&mut self, plugin: Part, name: &str, path: &str) {
        let Some(routes) = plugin.get(path) else {
            return;
        };
        for (at, route) in routes.items().enumerate() {
            let dst = route
                .text("dst")
                .and_then(|dst| dst.parse::<ipnet::IpNet>().ok());
            if let Some(dst) = dst.filter(|dst| dst.prefix_len() == 0) {
                let problem = format!(
                    "{dst} never goes into the main table, only into the rail's own: the pod's default route stays with eth0"
                );
                self.warning(plugin, name, &format!("{path}[{at}].dst"), problem);
            }
        }
    }

    /// Checks the `ipam` section, and returns the pools of one for rail-ipam.
    pub(super) fn ipam(
        &mut self,
        plugin: Part,
        context: &Context,
        version: Version,
    ) -> Option<Vec<String>> {
        let name = context.name.as_str();
        let kind = plugin.text("ipam.type").filter(|kind| !kind.is_empty())?;
        if kind != OUR_IPAM {
            match nearest(kind, [OUR_IPAM, OURS]) {
                // `refused` reports it.
                Some(_) => (),
                None => self.default_routes(plugin, name, "ipam.routes"),
            }
            return None;
        }
        let all: Vec<&str> = ipam::config::KEYS
            .iter()
            .chain(&rail_cni::pool::cidrpool::SPEC_KEYS)
            .copied()
            .collect();
        if let Some(section) = plugin.get("ipam") {
            self.keys(section, name, "ipam.", ipam::config::is_known, &all);
        }
        let network = parse(&as_handed_over(plugin, context, version)).ok()?;
        if let Err(error) = ipam::config::requested(&network) {
            self.fault(name, refusal(plugin, &error));
        }
        let config = match ipam::config::Config::parse(&network) {
            Ok(config) => config,
            Err(error) => {
                self.fault(name, refusal(plugin, &error));
                return None;
            }
        };
        match config.check() {
            None => (),
            Some(Ok(warnings)) => {
                for warning in warnings {
                    self.say(Severity::Warning, name, plugin.locate(warning));
                }
            }
            Some(Err(faults)) => faults
                .into_iter()
                .for_each(|fault| self.fault(name, plugin.locate(fault))),
        }
        Some(config.pools)
    }

    /// Checks the capabilities: without one, the runtime drops the value without a message.
    fn capabilities(&mut self, plugin: Part, context: &Context, names_a_device: bool) {
        let name = context.name.as_str();
        let declared = plugin
            .get("capabilities")
            .filter(|all| !all.value.is_null());
        if let Some(all) = declared.filter(|all| !all.value.is_object()) {
            return self.error(
                plugin,
                name,
                "capabilities",
                format!("{} is not an object", all.value),
            );
        }
        for (key, one) in declared.into_iter().flat_map(Part::entries) {
            let path = format!("capabilities.{key}");
            if !one.value.is_boolean() {
                self.error(
                    plugin,
                    name,
                    &path,
                    format!("{} is neither true nor false", one.value),
                );
            } else if OTHER_CAPABILITIES.contains(&key) {
                self.warning(
                    plugin,
                    name,
                    &path,
                    format!("has no effect: {OURS} does not use it"),
                );
            } else if !netconf::CAPABILITIES.contains(&key) {
                self.unknown(one, name, &path, &netconf::CAPABILITIES);
            }
        }
        let is_on = |key: &str| {
            declared
                .and_then(|all| all.get(key))
                .is_some_and(|one| *one.value == true)
        };
        let lost = [
            ("deviceID", "runtimeConfig.deviceID"),
            ("mac", "a MAC that a pod asks for"),
            ("ips", "an address that a pod asks for"),
            ("CNIDeviceInfoFile", "the request for a device-info file"),
        ];
        let lost: Vec<_> = lost
            .into_iter()
            .filter(|(key, _)| !is_on(key) && (!names_a_device || matches!(*key, "mac" | "ips")))
            .filter(|(key, _)| {
                !declared.is_some_and(|all| is_misspelt(all, key, &netconf::CAPABILITIES))
            })
            .collect();
        // Other runtimes have no such requests.
        if context.nad.is_some()
            && !lost.is_empty()
            && !is_misspelt(plugin, "capabilities", &netconf::known())
        {
            let keys: Vec<_> = lost
                .iter()
                .map(|(key, _)| format!("{key:?}: true"))
                .collect();
            let what: Vec<_> = lost.iter().map(|(_, what)| *what).collect();
            let problem = format!(
                "without {} these never arrive: {}",
                keys.join(", "),
                what.join(", ")
            );
            self.warning(plugin, name, "capabilities", problem);
        }
    }
}

/// A configuration as a plugin reads it.
pub fn parse(map: &Map<String, Value>) -> Result<Network> {
    static KEYS: Keys = Keys {
        names: &[],
        inside: &[],
    };
    Network::parse(
        json!(map).to_string().into(),
        Args::default(),
        vec![],
        &KEYS,
        Strictness::Strict,
    )
}

/// The fault of an error of a plugin's parser, with its position. An error that is no [`Fault`] is
/// of the plugin as a whole.
fn refusal(plugin: Part, error: &anyhow::Error) -> Fault {
    if let Some(fault) = error.downcast_ref::<Fault>() {
        // The line of the file says which network it is.
        return plugin.locate(Fault {
            subject: String::new(),
            ..fault.clone()
        });
    }
    Fault::whole(format!("{error:#}")).at(plugin.place(""))
}

/// The configuration of a plugin in the form that a runtime passes on.
fn as_handed_over(plugin: Part, context: &Context, version: Version) -> Map<String, Value> {
    let mut map = plugin.value.as_object().cloned().unwrap_or_default();
    map.insert("cniVersion".to_owned(), version.as_str().into());
    if context.in_list || (context.nad.is_some() && plugin.text("name").is_none_or(str::is_empty)) {
        map.insert("name".to_owned(), context.name.clone().into());
    }
    map
}

const DEFAULT_IFNAME: &str = "net1";

/// The interface that the sysctl keys name, if Multus can make it. Such keys work with no other
/// interface.
fn ifname_in(plugin: Part) -> String {
    let keys = plugin
        .get("sysctl")
        .into_iter()
        .flat_map(Part::entries)
        .map(|(key, _)| key);
    let mut names = keys.filter_map(|key| key.split(['.', '/']).nth(3));
    let is_net = |name: &&str| {
        name.strip_prefix("net").is_some_and(|number| {
            !number.is_empty()
                && number.len() < 4
                && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    names.find(is_net).unwrap_or(DEFAULT_IFNAME).to_owned()
}
