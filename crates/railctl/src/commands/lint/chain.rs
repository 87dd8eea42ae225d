//! Converts a chain of other plugins to rail-cni: which plugins go, which stay, and which keys
//! change their place.

use serde_json::{Map, Value, json};

use super::{Context, OUR_IPAM, OURS, is_like_ours};
use rail_cni::fault::Fault;
use rail_cni::netconf;
use rail_cni::node::VF_KEYS;
use rail_plan::document::Part;

/// Keys of tuning that rail-cni has, too.
const OF_TUNING: [&str; 2] = ["mtu", "mac"];
/// Keys of rdma-cni that rail-cni has, too.
const OF_RDMA: [&str; 2] = ["rdmaQoS", "rdmaDeviceName"];
/// Keys of amd-host-device that say where a route goes, which the host's own routes say here.
const OF_AMD: [&str; 2] = ["nexthopNetAddrOffset", "routeDstPrefixLen"];

/// Keys of any plugin.
const OF_ANY: [&str; 8] = [
    "type",
    "name",
    "cniVersion",
    "mode",
    "capabilities",
    "runtimeConfig",
    "prevResult",
    "args",
];

/// Plugins that people chain behind these, and why they go.
const REPLACED: [(&str, &str); 6] = [
    (
        "sbr",
        "rail-cni makes rules and tables itself (routing), and sbr would move them: remove it",
    ),
    (
        "vrf",
        "a rail has a table of its own, and vrf would take its routes away, and every CHECK would fail: remove it",
    ),
    (
        "rdma",
        "rail-cni moves RDMA devices itself (rdma), and rdma-cni would refuse one that is already there: remove it",
    ),
    (
        "coordinator",
        "rail-cni makes rules and tables itself (routing), and coordinator would make others: remove it",
    ),
    (
        "route-override",
        "rail-cni makes the routes of a rail itself (routes) and no default route, and route-override would change them: \
         remove it",
    ),
    (
        "rail",
        "rail-cni makes the routes and rules of a rail itself (routing): remove it",
    ),
];

/// The plugins of a network as they are with rail-cni, and what is to be known of the change.
pub(super) struct Chain {
    pub(super) plugins: Vec<Map<String, Value>>,
    /// The plugin that attaches the device, if it is ours.
    pub(super) whole: Option<usize>,
    pub(super) notes: Vec<Fault>,
    /// Reasons for which ADD or CHECK of the present network fails.
    pub(super) faults: Vec<Fault>,
}

/// Rewrites a chain with a plugin of ours, or one like ours. A plugin that attaches otherwise (ovs)
/// stays.
pub(super) fn chain(plugins: &[Part], context: &Context) -> Chain {
    let mut chain = Chain {
        plugins: Vec::new(),
        whole: None,
        notes: Vec::new(),
        faults: Vec::new(),
    };
    for plugin in plugins {
        let kind = plugin.text("type").unwrap_or_default();
        match (kind, chain.whole) {
            (kind, None) if kind == OURS || is_like_ours(kind) => chain.main(*plugin, context),
            ("tuning", Some(at)) => chain.tuning(*plugin, at),
            (kind, Some(at)) if REPLACED.iter().any(|(other, _)| *other == kind) => {
                let is_ours = plugins.iter().any(|one| one.text("type") == Some(OURS));
                chain.replaced(*plugin, at, is_ours)
            }
            ("rdma", None) if !chain.plugins.is_empty() => chain.behind(*plugin),
            ("rail", None) if !chain.plugins.is_empty() => chain.note(
                *plugin,
                "type",
                "rail: OVS-CNI and the Spectrum-X operator's daemon need it: see docs/roce.md",
            ),
            _ => chain
                .plugins
                .push(plugin.value.as_object().cloned().unwrap_or_default()),
        }
    }
    for plugin in &mut chain.plugins {
        pool(plugin, plugins, &mut chain.notes);
    }
    chain
}

impl Chain {
    fn note(&mut self, plugin: Part, path: &str, problem: impl Into<String>) {
        self.notes.push(plugin.fault(path, problem));
    }

    /// The plugin that attaches the device.
    fn main(&mut self, plugin: Part, context: &Context) {
        let kind = plugin.text("type").unwrap_or_default();
        let spelt = plugin.respelt(&mut |_, path, key| {
            netconf::NETWORK
                .at(path)
                .spelt(key)
                .unwrap_or(key)
                .to_owned()
        });
        let mut main = spelt.value.as_object().cloned().unwrap_or_default();
        if kind != OURS {
            // `mode` of another plugin means something else.
            main.retain(|key, _| netconf::is_known(key) && key != "mode");
            // Multus and the operators write a VLAN of 0 for none.
            main.retain(|key, value| key != "vlan" || value.as_u64() != Some(0));
            if !main.contains_key("vlan") {
                main.retain(|key, _| key != "vlanQoS" && key != "vlanProto");
            }
        }
        if kind == "amd-host-device" && main.get("ipam").is_none_or(|ipam| ipam == &json!({})) {
            main.insert(
                "ipam".to_owned(),
                json!({"type": OUR_IPAM, "source": "host"}),
            );
            let problem = "takes the addresses that the NIC has on the host: node.json needs \"policy\": \
                           {\"hostAddresses\": true}";
            self.note(plugin, "ipam", problem);
        }
        for key in OF_AMD.iter().filter(|key| plugin.get(key).is_some()) {
            let problem = "rail-cni has no such key: the pod gets the routes that the NIC has on the host, or those of `routes`";
            self.note(plugin, key, problem);
        }
        if kind == "ib-sriov"
            && plugin
                .get("rdmaIsolation")
                .is_some_and(|on| *on.value == true)
        {
            main.insert("rdma".to_owned(), "required".into());
        }
        let is_on = |path: &str| plugin.get(path).is_some_and(|on| *on.value == true);
        if kind == "ib-sriov"
            && (is_on("ibKubernetesEnabled") || is_on("capabilities.infinibandGUID"))
        {
            let problem = "ib-sriov: ib-kubernetes knows no other type: it stays, and /opt/cni/bin/ib-sriov is a link to rail-cni";
            self.note(plugin, "type", problem);
        } else {
            main.insert("type".to_owned(), OURS.into());
        }
        let refused = VF_KEYS
            .iter()
            .filter(|key| main.contains_key(**key))
            .copied()
            .collect::<Vec<_>>();
        if kind != OURS && !refused.is_empty() {
            let problem = format!(
                "{kind}: the shipped node.json lets no network set {}: list the allowed keys in \
                    policy.vfKeys",
                refused.join(", ")
            );
            self.note(plugin, "type", problem);
        }
        if context.nad.is_some() {
            let all = ["deviceID", "mac", "ips", "CNIDeviceInfoFile"]
                .map(|key| (key.to_owned(), Value::from(true)));
            let given = main
                .get("capabilities")
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default();
            let given = given
                .into_iter()
                .filter(|(key, _)| netconf::CAPABILITIES.contains(&key.as_str()));
            main.insert(
                "capabilities".to_owned(),
                all.into_iter().chain(given).collect::<Map<_, _>>().into(),
            );
        }
        self.whole = Some(self.plugins.len());
        self.plugins.push(main);
    }

    /// Keys of tuning that rail-cni has move to it. The others stay.
    fn tuning(&mut self, plugin: Part, at: usize) {
        let mut left = plugin.value.as_object().cloned().unwrap_or_default();
        let (mut moved, mut kept) = (Vec::new(), Vec::new());
        let main = &mut self.plugins[at];
        for key in OF_TUNING {
            if let Some(value) = left.remove(key) {
                main.entry(key.to_owned()).or_insert(value);
                moved.push(key.to_owned());
            }
        }
        if let Some(Value::Object(sysctl)) = left.remove("sysctl") {
            let (own, others): (Map<_, _>, Map<_, _>) =
                sysctl.into_iter().partition(|(key, _)| is_of_the_rail(key));
            moved.extend(own.keys().cloned());
            kept.extend(others.keys().cloned());
            if !own.is_empty() {
                let given = main.entry("sysctl".to_owned()).or_insert_with(|| json!({}));
                given
                    .as_object_mut()
                    .into_iter()
                    .for_each(|given| given.extend(own.clone()));
            }
            if !others.is_empty() {
                left.insert("sysctl".to_owned(), others.into());
            }
        }
        kept.extend(
            ["promisc", "allmulti", "txQLen"]
                .into_iter()
                .filter(|key| left.contains_key(*key))
                .map(str::to_owned),
        );
        let stays = !kept.is_empty();
        let problem = match (moved.is_empty(), stays) {
            (false, true) => Some(format!(
                "tuning: move {} to rail-cni, and keep tuning behind it for {}",
                moved.join(", "),
                kept.join(", ")
            )),
            (false, false) => Some(format!(
                "tuning: move {} to rail-cni, and remove it",
                moved.join(", ")
            )),
            (true, false) => Some("tuning: sets nothing: remove it".to_owned()),
            (true, true) => None,
        };
        if stays {
            self.plugins.push(left);
        }
        if let Some(problem) = problem {
            self.note(plugin, "type", problem);
        }
    }

    /// A plugin that goes: its keys move to rail-cni, or are named.
    fn replaced(&mut self, plugin: Part, at: usize, is_ours: bool) {
        let kind = plugin.text("type").unwrap_or_default();
        let mut why = REPLACED
            .iter()
            .find(|(other, _)| *other == kind)
            .map(|(_, why)| (*why).to_owned())
            .unwrap_or_default();
        let (mut moved, mut lost) = (Vec::new(), Vec::new());
        let of_any = |key: &str| OF_ANY.contains(&key) || (kind == "sbr" && key == "table");
        for (key, part) in plugin
            .entries()
            .filter(|(key, part)| !of_any(key) && !part.value.is_null())
        {
            if (kind, key) == ("route-override", "addroutes") {
                add_routes(&mut self.plugins[at], part);
                moved.push("routes");
                continue;
            }
            let own = match (kind, key) {
                ("rdma", key) if OF_RDMA.contains(&key) => Some((key, part.value.clone())),
                ("coordinator", "detectGateway") if *part.value == true => {
                    Some(("gatewayProbe", "require".into()))
                }
                _ => None,
            };
            match own {
                Some((meant, value)) => {
                    self.plugins[at].entry(meant.to_owned()).or_insert(value);
                    moved.push(meant);
                }
                None => lost.push(key),
            }
        }
        if !moved.is_empty() {
            why = format!("{why}, and move {} to rail-cni", moved.join(", "));
        }
        if !lost.is_empty() {
            why = format!("{why}; rail-cni has nothing for {}", lost.join(", "));
        }
        if kind == "sbr" && plugin.get("table").is_some() {
            why.push_str("; the table follows from `rail`");
        }
        if kind == "sbr" && add_default_route(&mut self.plugins[at]) {
            why.push_str(", and give rail-cni the default route of its table (routes)");
        }
        let keeps_rdma = self.plugins[at].get("rdma") == Some(&json!("off"));
        let fault = plugin.fault("type", format!("{kind}: {why}"));
        if is_ours && (kind == "vrf" || (kind == "rdma" && !keeps_rdma)) {
            self.faults.push(fault);
        } else {
            self.notes.push(fault);
        }
    }

    /// rdma-cni behind a plugin that stays.
    fn behind(&mut self, plugin: Part) {
        let mut rdma = plugin.value.as_object().cloned().unwrap_or_default();
        rdma.insert("type".to_owned(), OURS.into());
        rdma.insert("mode".to_owned(), "rdma".into());
        self.plugins.push(rdma);
    }
}

fn add_routes(main: &mut Map<String, Value>, more: Part) {
    let routes = main.entry("routes".to_owned()).or_insert_with(|| json!([]));
    routes
        .as_array_mut()
        .into_iter()
        .for_each(|routes| routes.extend(more.items().map(|one| one.value.clone())));
}

/// sbr's table has a default route by the gateway of the address, whatever the network says:
/// without one, what the pod sends from the rail's address to elsewhere would leave by eth0.
/// Returns whether it was missing.
fn add_default_route(main: &mut Map<String, Value>) -> bool {
    const DEFAULT: &str = "0.0.0.0/0";
    let has_it = |routes: Option<&Value>| {
        let routes = routes.and_then(Value::as_array).into_iter().flatten();
        routes
            .clone()
            .any(|route| route.get("dst").is_some_and(|dst| dst == DEFAULT))
    };
    if has_it(main.get("routes")) || has_it(main.get("ipam").and_then(|ipam| ipam.get("routes"))) {
        return false;
    }
    let routes = main.entry("routes".to_owned()).or_insert_with(|| json!([]));
    routes
        .as_array_mut()
        .map(|routes| routes.push(json!({"dst": DEFAULT})))
        .is_some()
}

/// nv-ipam with a CIDRPool becomes rail-ipam.
fn pool(plugin: &mut Map<String, Value>, parts: &[Part], notes: &mut Vec<Fault>) {
    let Some(ipam) = plugin.get_mut("ipam").and_then(Value::as_object_mut) else {
        return;
    };
    if ipam.get("type") != Some(&json!("nv-ipam")) {
        return;
    }
    let name = ipam
        .get("poolName")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let part = parts
        .iter()
        .find(|part| part.text("ipam.type") == Some("nv-ipam"));
    let problem = if ipam.get("poolType").and_then(Value::as_str) == Some("cidrpool") {
        *ipam = [("type", OUR_IPAM), ("pool", name.as_str())]
            .map(|(key, value)| (key.to_owned(), value.into()))
            .into_iter()
            .collect();
        format!(
            "{name}: the CIDRPool is imported on each node (`railctl import`), or by rail-agent"
        )
    } else {
        format!(
            "{name} is an IPPool, which rail-ipam does not support: keep nv-ipam, or replace it by a CIDRPool with a block \
             for each node, and give the network a route to the whole subnet"
        )
    };
    if let Some(part) = part {
        notes.push(part.fault("ipam", problem));
    }
}

/// Whether a key of `sysctl` is one that rail-cni sets: one of its own interface.
pub(super) fn is_of_the_rail(key: &str) -> bool {
    let separator = if key.contains('/') { '/' } else { '.' };
    let parts: Vec<&str> = key.split(separator).collect();
    matches!(
        parts.as_slice(),
        ["net", "ipv4" | "ipv6", "conf" | "neigh", "IFNAME", _]
    )
}
