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
    /// The network that Spiderpool makes of a SpiderMultusConfig; none for a kind whose pods share
    /// an interface of the host.
    pub(super) fn spider(&mut self, part: Part) -> Vec<Made> {
        let annotations = part.get("metadata.annotations");
        let cr_name = annotations.and_then(|all| all.text("multus.spidernet.io/cr-name"));
        let name = cr_name
            .or(part.text("metadata.name"))
            .unwrap_or_default()
            .to_owned();
        let cni_type = part.text("spec.cniType").unwrap_or("custom");
        let Some(kind) = KINDS.iter().find(|kind| kind.plugin == cni_type) else {
            let problem = format!(
                "SpiderMultusConfig: {cni_type} shares an interface of the host between pods, and rail-cni hands out whole \
                 devices: sriov with a resource of VFs first"
            );
            self.warning(part, &name, "spec.cniType", problem);
            return Vec::new();
        };
        let section_path = format!("spec.{}", kind.section);
        let section = part.get(&section_path);
        let mut known_keys = Vec::new();
        for (key, _) in kind.keys {
            known_keys.push(*key);
        }
        known_keys.extend(["resourceName", "ippools", "enableRdma", "rdmaIsolation"]);
        self.warn_of_lost_keys(part, &name, "spec", &SPEC);
        self.warn_of_lost_keys(part, &name, &section_path, &known_keys);
        let mut plugins = Vec::new();
        if kind.plugin == "custom" {
            plugins.extend(self.json_in(part, "spec.customCNI"));
        } else {
            plugins.push(main(part, kind));
        }
        let has_rdma = is_on(section, "enableRdma") || is_on(section, "rdmaIsolation");
        if kind.plugin == "sriov" && has_rdma {
            plugins.push(json!({"type": "rdma"}));
        }
        if let Some(chained) = part.get("spec.chainCNIJsonData") {
            for index in 0..chained.items().count() {
                plugins.extend(self.json_in(part, &format!("spec.chainCNIJsonData[{index}]")));
            }
        }
        // Spiderpool adds it unless it is switched off.
        let has_coordinator = part
            .get("spec.enableCoordinator")
            .is_none_or(|on| *on.value != false);
        if kind.plugin != "custom" && has_coordinator {
            plugins.push(coordinator(part));
        }
        let resource = section.and_then(|section| section.text("resourceName"));
        vec![Made {
            name,
            namespace: part.text("metadata.namespace").map(str::to_owned),
            resource: resource.map(str::to_owned),
            plugins,
            also: "",
        }]
    }
}

/// Whether a key of the kind's section is true.
fn is_on(section: Option<Part>, key: &str) -> bool {
    let value = section.and_then(|section| section.get(key));
    value.is_some_and(|on| *on.value == true)
}

/// The coordinator of Spiderpool, with its keys in the manifest.
fn coordinator(part: Part) -> Value {
    let mut coordinator = Map::from_iter([("type".to_owned(), Value::from("coordinator"))]);
    let keys = part
        .get("spec.coordinator")
        .and_then(|keys| keys.value.as_object());
    if let Some(keys) = keys {
        coordinator.extend(keys.clone());
    }
    coordinator.into()
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
