//! SpiderMultusConfig of Spiderpool: the network that its controller makes of it.

use serde_json::{Map, Value, json};

use super::Lint;
use super::operators::Made;
use rail_plan::document::Part;

const SPEC: [&str; 14] = [
    "cniType",
    "macvlan",
    "ipvlan",
    "sriov",
    "ibsriov",
    "hostDevice",
    "ovs",
    "ipoib",
    "enableCoordinator",
    "coordinator",
    "disableIPAM",
    "ipam",
    "chainCNIJsonData",
    "customCNI",
];

/// A kind of network: its `cniType`, the section with its keys, and those keys with the names that
/// the plugin has for them.
struct Kind {
    plugin: &'static str,
    section: &'static str,
    keys: &'static [(&'static str, &'static str)],
}

/// The kinds that give a pod a device of its own.
const KINDS: [Kind; 4] = [
    Kind {
        plugin: "sriov",
        section: "sriov",
        keys: &[
            ("vlanID", "vlan"),
            ("minTxRateMbps", "min_tx_rate"),
            ("maxTxRateMbps", "max_tx_rate"),
        ],
    },
    Kind {
        plugin: "ib-sriov",
        section: "ibsriov",
        keys: &[
            ("pkey", "pkey"),
            ("linkState", "link_state"),
            ("rdmaIsolation", "rdmaIsolation"),
            ("ibKubernetesEnabled", "ibKubernetesEnabled"),
            ("enableIbKubernetes", "ibKubernetesEnabled"),
        ],
    },
    Kind {
        plugin: "host-device",
        section: "hostDevice",
        keys: &[
            ("deviceName", "device"),
            ("hwAddr", "hwaddr"),
            ("kernelPath", "kernelpath"),
            ("pciAddr", "pciBusID"),
        ],
    },
    Kind {
        plugin: "custom",
        section: "custom",
        keys: &[],
    },
];

impl Lint {
    /// The network of a SpiderMultusConfig; none where it shares an interface of the host.
    pub(super) fn spider(&mut self, part: Part) -> Vec<Made> {
        let name = part
            .get("metadata.annotations")
            .and_then(|all| all.text("multus.spidernet.io/cr-name"));
        let name = name
            .or(part.text("metadata.name"))
            .unwrap_or_default()
            .to_owned();
        let given = part.text("spec.cniType").unwrap_or("custom");
        let Some(kind) = KINDS.iter().find(|kind| kind.plugin == given) else {
            let problem = format!(
                "SpiderMultusConfig: {given} shares an interface of the host between pods, and rail-cni hands out whole \
                 devices: sriov with a resource of VFs first"
            );
            self.warning(part, &name, "spec.cniType", problem);
            return Vec::new();
        };
        let of_section = |key: &str| {
            part.get(&format!("spec.{}.{key}", kind.section))
                .map(|of| of.value.clone())
        };
        self.warn_of_lost_keys(part, &name, "spec", &SPEC);
        let others = ["resourceName", "ippools", "enableRdma", "rdmaIsolation"];
        let known: Vec<_> = kind
            .keys
            .iter()
            .map(|(key, _)| *key)
            .chain(others)
            .collect();
        self.warn_of_lost_keys(part, &name, &format!("spec.{}", kind.section), &known);
        let mut plugins = match kind.plugin {
            "custom" => self.json_in(part, "spec.customCNI").into_iter().collect(),
            _ => vec![main(part, kind)],
        };
        let is_on = |key: &str| of_section(key) == Some(true.into());
        if kind.plugin == "sriov" && (is_on("enableRdma") || is_on("rdmaIsolation")) {
            plugins.push(json!({"type": "rdma"}));
        }
        let count = part
            .get("spec.chainCNIJsonData")
            .map_or(0, |all| all.items().count());
        plugins.extend(
            (0..count).filter_map(|at| self.json_in(part, &format!("spec.chainCNIJsonData[{at}]"))),
        );
        if kind.plugin != "custom"
            && part
                .get("spec.enableCoordinator")
                .is_none_or(|on| *on.value != false)
        {
            let mut coordinator = json!({"type": "coordinator"});
            let keys = part
                .get("spec.coordinator")
                .and_then(|of| of.value.as_object());
            if let Some(coordinator) = coordinator.as_object_mut() {
                coordinator.extend(keys.cloned().unwrap_or_default());
            }
            plugins.push(coordinator);
        }
        let resource = of_section("resourceName").and_then(|name| name.as_str().map(str::to_owned));
        let namespace = part.text("metadata.namespace").map(str::to_owned);
        vec![Made {
            name,
            namespace,
            resource,
            plugins,
            also: "",
        }]
    }
}

/// The plugin that attaches the device, with the defaults of the object's definition.
fn main(part: Part, kind: &Kind) -> Value {
    let mut main = Map::from_iter([("type".to_owned(), Value::from(kind.plugin))]);
    if kind.plugin == "ib-sriov" {
        main.extend([
            ("link_state".to_owned(), "enable".into()),
            ("rdmaIsolation".to_owned(), true.into()),
        ]);
    }
    let section = part.get("spec").and_then(|spec| spec.get(kind.section));
    for (key, meant) in kind.keys {
        let given = section
            .and_then(|of| of.get(key))
            .filter(|given| !given.value.is_null());
        main.extend(given.map(|given| ((*meant).to_owned(), given.value.clone())));
    }
    let is = |path: &str, value: bool| part.get(path).is_some_and(|on| *on.value == value);
    let has_ipam = match part.get("spec.ipam.enabled") {
        Some(on) => *on.value != false,
        None => !is("spec.disableIPAM", true),
    };
    if has_ipam {
        let mut ipam = json!({"type": "spiderpool"});
        let pools = [
            ("ipv4", "default_ipv4_ippool"),
            ("ipv6", "default_ipv6_ippool"),
            ("matchMasterSubnet", "match_master_subnet"),
        ];
        for (key, meant) in pools {
            let given = section
                .and_then(|of| of.get("ippools"))
                .and_then(|pools| pools.get(key));
            if let Some(given) = given.filter(|given| !given.value.is_null()) {
                ipam[meant] = given.value.clone();
            }
        }
        main.insert("ipam".to_owned(), ipam);
    }
    main.into()
}
