//! Objects of which an operator makes networks, or which belong to networks: what each becomes with
//! rail-cni.

use serde_json::{Map, Value, json};

use super::{Lint, OUR_IPAM, RESOURCE, Severity};
use rail_cni::nearest::nearest;
use rail_plan::document::Part;

/// Prefixes of the SR-IOV Network Operator's resources: upstream's default, and NVIDIA's.
const PREFIXES: [&str; 2] = ["openshift.io", "nvidia.com"];

const POLICY: &str = "it also makes the VFs, behind OVS: a SriovNetworkNodePolicy with eSwitchMode legacy and this resource \
                      takes its place";
const CLAIMED: &str = "it also makes the VFs, behind OVS, and a claim's devices (draEnabled): a SriovNetworkNodePolicy with \
                       eSwitchMode legacy takes its place, and pods ask for this resource instead of a claim";

/// A network that an operator makes.
pub(super) struct Made {
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    pub(super) resource: Option<String>,
    /// The plugins, as the operator writes them.
    pub(super) plugins: Vec<Value>,
    /// Keys that the operator removes together with its object.
    pub(super) also: &'static str,
}

impl Lint {
    /// Reads an object of an operator. False for kinds that have nothing to do with rails.
    pub(super) fn of_operator(&mut self, part: Part, kind: &str) -> bool {
        let group = part
            .text("apiVersion")
            .unwrap_or_default()
            .split('/')
            .next()
            .unwrap_or_default();
        let made = match kind {
            "SriovNetwork" => self.sriov(part, "sriov"),
            "SriovIBNetwork" => self.sriov(part, "ib-sriov"),
            "OVSNetwork" => self.sriov(part, "ovs"),
            "HostDeviceNetwork" => self.host_device(part),
            "SpectrumXRailPoolConfig" => self.spectrum_x(part),
            "SpiderMultusConfig" => self.spider(part),
            "Network" if group == "operator.openshift.io" => self.openshift(part),
            _ => return self.beside(part, kind, group),
        };
        self.annotated(part, part.text("metadata.name").unwrap_or_default());
        for Made {
            name,
            namespace,
            resource,
            plugins,
            also,
        } in made
        {
            let mut metadata = json!({"name": name, "namespace": namespace});
            if let Some(resource) = resource {
                metadata["annotations"] = json!({ RESOURCE: resource });
            }
            let config = match plugins.as_slice() {
                [list] if list.get("plugins").is_some() => list.clone(),
                _ => json!({"cniVersion": "1.0.0", "name": name, "plugins": plugins}),
            };
            let place = part.get("kind").unwrap_or(part);
            let document = place.instead(json!({"nad": {"metadata": metadata}, "config": config}));
            if let (Some(config), nad) = (document.root().get("config"), document.root().get("nad"))
            {
                self.begin();
                self.made_by = Some((kind.to_owned(), also));
                self.network(config, nad);
                self.made_by = None;
                self.of = 0;
            }
        }
        true
    }

    /// JSON in a text of the object. Another value and wrong JSON are errors, and read as nothing.
    pub(super) fn json_in(&mut self, part: Part, path: &str) -> Option<Value> {
        let text = self.text_in(part, path)?;
        match text.json() {
            Ok(document) => Some(document.value),
            Err(fault) => {
                let name = part.text("metadata.name").unwrap_or_default().to_owned();
                self.fault(
                    &name,
                    rail_cni::fault::Fault {
                        path: path.to_owned(),
                        ..fault
                    },
                );
                None
            }
        }
    }

    /// A text of the object, if it is not empty. Another value is an error.
    fn text_in<'a>(&mut self, part: Part<'a>, path: &str) -> Option<Part<'a>> {
        let text = part.get(path).filter(|given| !given.value.is_null())?;
        if !text.value.is_string() {
            let name = part.text("metadata.name").unwrap_or_default();
            self.error(
                part,
                name,
                path,
                "is not a text, and the operator takes JSON in a text",
            );
        }
        Some(text).filter(|text| {
            text.value
                .as_str()
                .is_some_and(|text| !text.trim().is_empty())
        })
    }

    /// Warns of the set keys of the object at `path` that the network cannot express.
    pub(super) fn warn_of_lost_keys(&mut self, part: Part, name: &str, path: &str, known: &[&str]) {
        let given = part.get(path).into_iter().flat_map(Part::entries);
        let is_set = |value: &Value| !value.is_null() && *value != "";
        for (key, _) in given.filter(|(key, inner)| !known.contains(key) && is_set(inner.value)) {
            let problem = match nearest(key, known.iter().copied()) {
                Some(meant) => format!("unknown key, and lost: did you mean {meant}?"),
                None => "unknown key: the network that replaces it ignores it".to_owned(),
            };
            self.warning(part, name, &format!("{path}.{key}"), problem);
        }
    }

    /// Objects with commas between them, as in `metaPlugins`.
    fn objects_in(&mut self, part: Part, path: &str) -> Vec<Value> {
        let Some(text) = self
            .text_in(part, path)
            .and_then(|text| text.value.as_str())
        else {
            return Vec::new();
        };
        let list = format!("[{}]", text.trim().trim_end_matches(','));
        serde_json::from_str(&list).unwrap_or_else(|error| {
            let name = part.text("metadata.name").unwrap_or_default();
            self.error(part, name, path, format!("JSON: {error}"));
            Vec::new()
        })
    }

    /// SriovNetwork, SriovIBNetwork and OVSNetwork of the SR-IOV Network Operator.
    fn sriov(&mut self, part: Part, plugin: &str) -> Vec<Made> {
        // The key of the object, and that of the plugin.
        const KEYS: [(&str, &str); 14] = [
            ("vlan", "vlan"),
            ("vlanQoS", "vlanQoS"),
            ("vlanProto", "vlanProto"),
            ("spoofChk", "spoofchk"),
            ("trust", "trust"),
            ("linkState", "link_state"),
            ("minTxRate", "min_tx_rate"),
            ("maxTxRate", "max_tx_rate"),
            ("logLevel", "logLevel"),
            ("logFile", "logFile"),
            ("bridge", "bridge"),
            ("trunk", "trunk"),
            ("interfaceType", "interface_type"),
            ("mtu", "mtu"),
        ];
        let others = [
            "resourceName",
            "networkNamespace",
            "capabilities",
            "ipam",
            "metaPlugins",
        ];
        let known: Vec<_> = KEYS.iter().map(|(key, _)| *key).chain(others).collect();
        self.warn_of_lost_keys(
            part,
            part.text("metadata.name").unwrap_or_default(),
            "spec",
            &known,
        );
        let mut main = Map::new();
        main.insert("type".to_owned(), plugin.into());
        for (key, meant) in KEYS {
            let given = part.get("spec").and_then(|spec| spec.get(key));
            if let Some(given) = given.filter(|given| !given.value.is_null() && *given.value != "")
            {
                // YAML reads `off` without quotes as a text here, and kubectl as `false`.
                main.insert(meant.to_owned(), given.value.clone());
            }
        }
        if let Some(capabilities) = self.json_in(part, "spec.capabilities") {
            main.insert("capabilities".to_owned(), capabilities);
        }
        main.extend(
            self.json_in(part, "spec.ipam")
                .filter(|ipam| *ipam != json!({}))
                .map(|ipam| ("ipam".to_owned(), ipam)),
        );
        let mut plugins = vec![Value::from(main)];
        plugins.extend(self.objects_in(part, "spec.metaPlugins"));
        let resource = given(part, "spec.resourceName").map(|name| prefixed(part, name));
        let guessed = "the resource has the prefix of the operator (RESOURCE_PREFIX)";
        vec![Made {
            name: part.text("metadata.name").unwrap_or_default().to_owned(),
            namespace: given(part, "spec.networkNamespace")
                .or(given(part, "metadata.namespace"))
                .map(str::to_owned),
            resource,
            plugins,
            also: if part
                .text("spec.resourceName")
                .is_some_and(|name| name.contains('/'))
            {
                ""
            } else {
                guessed
            },
        }]
    }

    /// HostDeviceNetwork of NVIDIA's Network Operator.
    fn host_device(&mut self, part: Part) -> Vec<Made> {
        let name = part.text("metadata.name").unwrap_or_default();
        self.warn_of_lost_keys(
            part,
            name,
            "spec",
            &["networkNamespace", "resourceName", "ipam"],
        );
        let mut main = json!({"type": "host-device"});
        if let Some(ipam) = self.json_in(part, "spec.ipam") {
            main["ipam"] = ipam;
        }
        let full = |name: &str| {
            if name.contains('/') {
                name.to_owned()
            } else {
                format!("nvidia.com/{name}")
            }
        };
        vec![Made {
            name: name.to_owned(),
            namespace: given(part, "spec.networkNamespace")
                .or(Some("default"))
                .map(str::to_owned),
            resource: given(part, "spec.resourceName").map(full),
            plugins: vec![main],
            also: "",
        }]
    }

    /// SpectrumXRailPoolConfig of NVIDIA's Spectrum-X operator: a network and a resource for each
    /// entry, which OVS attaches.
    fn spectrum_x(&mut self, part: Part) -> Vec<Made> {
        let name = part.text("metadata.name").unwrap_or_default();
        let Some(rails) = part
            .get("spec.railTopology")
            .filter(|rails| rails.items().next().is_some())
        else {
            self.note(
                part,
                name,
                "spec",
                "has no railTopology and makes no network: nothing replaces it",
            );
            return Vec::new();
        };
        const SPEC: [&str; 7] = [
            "draEnabled",
            "vfStateFollow",
            "nodeSelector",
            "maxUnavailable",
            "networkNamespace",
            "numVfs",
            "railTopology",
        ];
        self.warn_of_lost_keys(part, name, "spec", &SPEC);
        let has_claims = part
            .get("spec.draEnabled")
            .is_none_or(|on| *on.value != false);
        let mut all = Vec::new();
        for (at, rail) in rails.items().enumerate() {
            let known = [
                "name",
                "nicSelector",
                "cidrPoolRef",
                "ipam",
                "mtu",
                "swPlane",
            ];
            self.warn_of_lost_keys(part, name, &format!("spec.railTopology[{at}]"), &known);
            let of_rail = rail.text("name").unwrap_or_default().to_owned();
            let pfs = rail
                .get("nicSelector.pfNames")
                .map_or(0, |pfs| pfs.items().count());
            if pfs > 1 {
                let problem = format!(
                    "{of_rail} has {pfs} PFs, over which OVS spreads the traffic of one VF (hwplb): rail-cni attaches a VF of \
                     one PF, so this rail stays with the operator"
                );
                self.warning(
                    part,
                    name,
                    &format!("spec.railTopology[{at}].nicSelector"),
                    problem,
                );
                continue;
            }
            let mut main = json!({"type": "sriov", "mtu": rail.get("mtu").map(|mtu| mtu.value)});
            let ipam = self.json_in(rail, "ipam");
            main["ipam"] = match (ipam, rail.text("cidrPoolRef")) {
                (Some(ipam), _) => ipam,
                (None, Some(pool)) => {
                    json!({"type": "nv-ipam", "poolType": "cidrpool", "poolName": pool})
                }
                (None, None) => Value::Null,
            };
            if let Some(main) = main.as_object_mut() {
                main.retain(|_, value| !value.is_null());
            }
            let source = format!("SpectrumXRailPoolConfig {name}");
            self.operator_offers(rail, source, &format!("nvidia.com/{of_rail}"));
            all.push(Made {
                resource: Some(format!("nvidia.com/{of_rail}")),
                name: of_rail,
                namespace: given(part, "spec.networkNamespace").map(str::to_owned),
                plugins: vec![main],
                also: if has_claims { CLAIMED } else { POLICY },
            });
        }
        all
    }

    /// The additional networks of OpenShift's Cluster Network Operator.
    fn openshift(&mut self, part: Part) -> Vec<Made> {
        let mut all = Vec::new();
        for network in part
            .get("spec.additionalNetworks")
            .into_iter()
            .flat_map(Part::items)
        {
            let plugins = self.json_in(network, "rawCNIConfig").into_iter().collect();
            let text = |key| network.text(key).map(str::to_owned);
            all.push(Made {
                name: text("name").unwrap_or_default(),
                namespace: text("namespace"),
                resource: None,
                plugins,
                also: "remove it from spec.additionalNetworks",
            });
        }
        all
    }

    /// Objects that make no network.
    fn beside(&mut self, part: Part, kind: &str, group: &str) -> bool {
        let name = part.text("metadata.name").unwrap_or_default();
        match (kind, group) {
            ("MacvlanNetwork", _) => {
                let problem = "MacvlanNetwork: macvlan shares the PF between pods, and rail-cni hands out whole devices: VFs of \
                               that PF with a resource first, then a network as in conf/migration/macvlan-whereabouts.yaml";
                self.warning(part, name, "kind", problem);
            }
            ("IPoIBNetwork", _) => {
                let problem = "IPoIBNetwork: a child of the PF's IPoIB interface has no device of its own that rail-cni could \
                               hand out: VFs with ib-sriov (docs/infiniband.md), or keep it, with rail-ipam as its IPAM";
                self.warning(part, name, "kind", problem);
            }
            ("MultiNicNetwork", _) => {
                let problem = "MultiNicNetwork: one network of all NICs of a node, with addresses of its own daemon: \
                               `railctl plan --to nads --one` writes one for all rails";
                self.warning(part, name, "kind", problem);
            }
            ("GKENetworkParamSet", _) => {
                let problem = "GKENetworkParamSet: GKE attaches these NICs itself, without Multus: nothing of it is for rail-cni";
                self.note(part, name, "kind", problem);
            }
            ("NodeNetworkConfigurationPolicy", _) => {
                let problem = "NodeNetworkConfigurationPolicy: it configures NICs of the host: take those of the rails out of it, \
                               or give them into pods with their addresses (docs/host-addresses.md)";
                self.note(part, name, "kind", problem);
            }
            ("SriovNetworkPoolConfig", _) if part.text("spec.rdmaMode") == Some("shared") => {
                let problem = "is shared, so each pod sees the RDMA devices of all: rail-cni moves a device only if it is exclusive";
                self.warning(part, name, "spec.rdmaMode", problem);
            }
            ("NetworkConfig", "amd.com") => {
                self.note(
                    part,
                    name,
                    "kind",
                    "NetworkConfig: stays as it is: drivers, device plugin and Multus",
                );
            }
            ("IPPool", "nv-ipam.nvidia.com") => self.block_pool(part, name),
            ("IPPool" | "NodeSlicePool", "whereabouts.cni.cncf.io") => {
                let problem = "whereabouts stays the IPAM plugin of its networks, which rail-cni calls as any other";
                self.note(part, name, "kind", problem);
            }
            ("SpiderIPPool", _) => {
                self.leads_to(part, name, &[], &["spec.subnet"]);
                let problem = "SpiderIPPool: Spiderpool stays the IPAM plugin of its networks, which rail-cni calls as any other";
                self.note(part, name, "kind", problem);
            }
            ("NicClusterPolicy", _) => self.nic_cluster_policy(part, name),
            ("SriovNetworkNodePolicy", _) => {
                self.policy_offers(part, name);
                if let (Some(resource), Some(mtu)) = (
                    part.text("spec.resourceName"),
                    part.get("spec.mtu").and_then(|mtu| mtu.value.as_u64()),
                ) {
                    self.mtus.insert(prefixed(part, resource), mtu);
                }
                if part.text("spec.deviceType") == Some("vfio-pci") {
                    let problem =
                        "vfio-pci: its VFs have no interface, so a network of them has no mtu";
                    self.note(part, name, "spec.deviceType", problem);
                    self.userspace.extend(
                        part.text("spec.resourceName")
                            .map(|name| prefixed(part, name)),
                    );
                }
                self.note(
                    part,
                    name,
                    "kind",
                    "SriovNetworkNodePolicy: stays as it is: it makes the VFs and their resource",
                );
            }
            _ => return false,
        }
        self.noted += 1;
        true
    }

    fn block_pool(&mut self, part: Part, name: &str) {
        self.leads_to(part, name, &["spec.routes"], &["spec.subnet"]);
        let subnet: Option<ipnet::IpNet> = part
            .text("spec.subnet")
            .and_then(|subnet| subnet.parse().ok());
        let size = part
            .get("spec.perNodeBlockSize")
            .and_then(|size| size.value.as_u64());
        let instead = match (subnet, size.filter(|size| (1..1 << 32).contains(size))) {
            (Some(subnet), Some(size)) => {
                let bits = u64::BITS - (size - 1).leading_zeros();
                let length = u32::from(subnet.max_prefix_len()).saturating_sub(bits);
                format!(
                    "a CIDRPool with cidr: {} and perNodeNetworkPrefix: {length}",
                    subnet.trunc()
                )
            }
            _ => "a CIDRPool".to_owned(),
        };
        let problem = format!(
            "IPPool: rail-ipam reads CIDRPools, whose nodes have a prefix of their own: keep nv-ipam for its networks, or \
             write {instead}, as in conf/migration/flat-pools.yaml; the addresses change"
        );
        self.warning(part, name, "kind", problem);
    }

    fn nic_cluster_policy(&mut self, part: Part, name: &str) {
        for plugin in ["rdmaSharedDevicePlugin", "sriovDevicePlugin"] {
            let Some(config) = part.get(&format!("spec.{plugin}.config")) else {
                continue;
            };
            match config.json() {
                Ok(config) => {
                    self.device_plugin(config.root(), &format!("NicClusterPolicy {name}"));
                }
                Err(fault) => {
                    let path = format!("spec.{plugin}.config");
                    self.fault(name, rail_cni::fault::Fault { path, ..fault });
                }
            }
        }
        if part.get("spec.rdmaSharedDevicePlugin").is_some() {
            let problem = "the shared RDMA device plugin gives a pod the right to use RDMA, and no device: networks of rail-cni \
                           need a resource of sriovDevicePlugin, or of a SriovNetworkNodePolicy";
            self.warning(part, name, "spec.rdmaSharedDevicePlugin", problem);
        }
        let nv_ipam = if part.get("spec.nvIpam").is_some() {
            "; nvIpam goes with the last network that calls it"
        } else {
            ""
        };
        self.note(
            part,
            name,
            "kind",
            format!("NicClusterPolicy: stays as it is: drivers, device plugin and Multus{nv_ipam}"),
        );
    }

    fn note(&mut self, part: Part, network: &str, path: &str, problem: impl Into<String>) {
        self.say(Severity::Note, network, part.fault(path, problem));
    }
}

/// The text at `path`, if it is not empty.
fn given<'a>(part: Part<'a>, path: &str) -> Option<&'a str> {
    part.text(path).filter(|text| !text.is_empty())
}

/// The name of a resource with the prefix that the SR-IOV Network Operator puts before it.
pub(super) fn prefixed(part: Part, name: &str) -> String {
    if name.contains('/') {
        return name.to_owned();
    }
    let of_nvidia = part
        .text("metadata.namespace")
        .is_some_and(|namespace| namespace.contains("nvidia"));
    format!("{}/{name}", PREFIXES[usize::from(of_nvidia)])
}

/// Whether a plugin's `ipam` is ours.
pub(super) fn has_our_ipam(plugin: &Map<String, Value>) -> bool {
    plugin.get("ipam").and_then(|ipam| ipam.get("type")) == Some(&json!(OUR_IPAM))
}
