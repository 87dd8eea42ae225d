//! Objects of which an operator makes networks, or which belong to networks: what each becomes with rail-cni.

use serde_json::{Map, Value, json};

use super::{Lint, OUR_IPAM, RESOURCE, Severity};
use crate::document::Part;

/// Prefixes of the SR-IOV Network Operator's resources: upstream's default, and NVIDIA's.
const PREFIXES: [&str; 2] = ["openshift.io", "nvidia.com"];

/// A network that an operator makes.
struct Made {
    name: String,
    namespace: Option<String>,
    resource: Option<String>,
    /// The plugins, as the operator writes them.
    plugins: Vec<Value>,
    /// What the operator takes away together with its object.
    also: &'static str,
}

impl Lint {
    /// Reads an object of an operator. False for kinds that have nothing to do with rails.
    pub(super) fn of_operator(&mut self, part: Part, kind: &str) -> bool {
        let group = part.text("apiVersion").unwrap_or_default().split('/').next().unwrap_or_default();
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
        for Made { name, namespace, resource, plugins, also } in made {
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
            if let (Some(config), nad) = (document.root().get("config"), document.root().get("nad")) {
                self.begin();
                self.made_by = Some((kind.to_owned(), also));
                self.network(config, nad);
                self.made_by = None;
                self.of = 0;
            }
        }
        true
    }

    /// JSON in a text of the object. Wrong JSON is an error, and read as nothing.
    fn json_in(&mut self, part: Part, path: &str) -> Option<Value> {
        let text =
            part.get(path).filter(|text| text.value.as_str().is_some_and(|text| !text.trim().is_empty()))?;
        match text.json() {
            Ok(document) => Some(document.value),
            Err(fault) => {
                let name = part.text("metadata.name").unwrap_or_default().to_owned();
                self.fault(&name, rail_cni::fault::Fault { path: path.to_owned(), ..fault });
                None
            }
        }
    }

    /// Objects with commas between them, as in `metaPlugins`.
    fn objects_in(&mut self, part: Part, path: &str) -> Vec<Value> {
        let Some(text) = part.text(path).filter(|text| !text.trim().is_empty()) else { return Vec::new() };
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
        let mut main = Map::new();
        main.insert("type".to_owned(), plugin.into());
        for (key, meant) in KEYS {
            let given = part.get("spec").and_then(|spec| spec.get(key));
            if let Some(given) = given.filter(|given| !given.value.is_null() && *given.value != "") {
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
        let resource = part.text("spec.resourceName").map(|name| prefixed(part, name));
        let guessed = "the resource has the prefix of the operator (RESOURCE_PREFIX)";
        vec![Made {
            name: part.text("metadata.name").unwrap_or_default().to_owned(),
            namespace: part
                .text("spec.networkNamespace")
                .or(part.text("metadata.namespace"))
                .map(str::to_owned),
            resource,
            plugins,
            also: if part.text("spec.resourceName").is_some_and(|name| name.contains('/')) {
                ""
            } else {
                guessed
            },
        }]
    }

    /// HostDeviceNetwork of NVIDIA's Network Operator.
    fn host_device(&mut self, part: Part) -> Vec<Made> {
        let mut main = json!({"type": "host-device"});
        if let Some(ipam) = self.json_in(part, "spec.ipam") {
            main["ipam"] = ipam;
        }
        let full =
            |name: &str| if name.contains('/') { name.to_owned() } else { format!("nvidia.com/{name}") };
        vec![Made {
            name: part.text("metadata.name").unwrap_or_default().to_owned(),
            namespace: part.text("spec.networkNamespace").map(str::to_owned),
            resource: part.text("spec.resourceName").map(full),
            plugins: vec![main],
            also: "",
        }]
    }

    /// SpectrumXRailPoolConfig of NVIDIA's Spectrum-X operator: a network and a resource for each entry, which OVS
    /// attaches.
    fn spectrum_x(&mut self, part: Part) -> Vec<Made> {
        let name = part.text("metadata.name").unwrap_or_default();
        let Some(rails) = part.get("spec.railTopology").filter(|rails| rails.items().next().is_some()) else {
            self.note(
                part,
                name,
                "spec",
                "has no railTopology, so it makes no network: nothing takes its place",
            );
            return Vec::new();
        };
        let mut all = Vec::new();
        for (at, rail) in rails.items().enumerate() {
            let of_rail = rail.text("name").unwrap_or_default().to_owned();
            let pfs = rail.get("nicSelector.pfNames").map_or(0, |pfs| pfs.items().count());
            if pfs > 1 {
                let problem = format!(
                    "{of_rail} has {pfs} PFs, over which OVS spreads the traffic of one VF (hwplb): rail-cni attaches a VF of \
                     one PF, so this rail stays with the operator"
                );
                self.warning(part, name, &format!("spec.railTopology[{at}].nicSelector"), problem);
                continue;
            }
            let mut main = json!({"type": "sriov", "mtu": rail.get("mtu").map(|mtu| mtu.value)});
            let ipam = self.json_in(rail, "ipam");
            main["ipam"] = match (ipam, rail.text("cidrPoolRef")) {
                (Some(ipam), _) => ipam,
                (None, Some(pool)) => json!({"type": "nv-ipam", "poolType": "cidrpool", "poolName": pool}),
                (None, None) => Value::Null,
            };
            if let Some(main) = main.as_object_mut() {
                main.retain(|_, value| !value.is_null());
            }
            all.push(Made {
                resource: Some(format!("nvidia.com/{of_rail}")),
                name: of_rail,
                namespace: part.text("spec.networkNamespace").map(str::to_owned),
                plugins: vec![main],
                also: "it also makes the VFs, behind OVS: a SriovNetworkNodePolicy with eSwitchMode legacy and this \
                       resource takes its place",
            });
        }
        all
    }

    /// SpiderMultusConfig of Spiderpool.
    fn spider(&mut self, part: Part) -> Vec<Made> {
        let spec =
            |path: &str| part.get("spec").and_then(|spec| spec.get(path)).map(|part| part.value.clone());
        let kind = part.text("spec.cniType").unwrap_or_default();
        let name = part.get("metadata.annotations").and_then(|all| all.text("multus.spidernet.io/cr-name"));
        let name = name.or(part.text("metadata.name")).unwrap_or_default().to_owned();
        let (section, keys): (&str, &[(&str, &str)]) = match kind {
            "sriov" => (
                "sriov",
                &[("vlanID", "vlan"), ("minTxRateMbps", "min_tx_rate"), ("maxTxRateMbps", "max_tx_rate")],
            ),
            "ib-sriov" => (
                "ibsriov",
                &[
                    ("pkey", "pkey"),
                    ("linkState", "link_state"),
                    ("rdmaIsolation", "rdmaIsolation"),
                    ("ibKubernetesEnabled", "ibKubernetesEnabled"),
                ],
            ),
            "host-device" => (
                "hostDevice",
                &[
                    ("deviceName", "device"),
                    ("hwAddr", "hwaddr"),
                    ("kernelPath", "kernelpath"),
                    ("pciAddr", "pciBusID"),
                ],
            ),
            "custom" => ("custom", &[]),
            _ => {
                let problem = format!(
                    "SpiderMultusConfig: {kind} shares an interface of the host between pods, and rail-cni hands out whole \
                     devices: sriov with a resource of VFs first"
                );
                self.warning(part, &name, "spec.cniType", problem);
                return Vec::new();
            }
        };
        let mut main = Map::from_iter([("type".to_owned(), Value::from(kind))]);
        for (key, meant) in keys {
            main.extend(spec(&format!("{section}.{key}")).map(|value| ((*meant).to_owned(), value)));
        }
        if spec("disableIPAM") != Some(true.into()) {
            let mut ipam = json!({"type": "spiderpool"});
            for family in ["ipv4", "ipv6"] {
                if let Some(pools) = spec(&format!("{section}.ippools.{family}")) {
                    ipam[format!("default_{family}_ippool")] = pools;
                }
            }
            main.insert("ipam".to_owned(), ipam);
        }
        let mut plugins = vec![Value::from(main)];
        if kind == "custom" {
            plugins = self.json_in(part, "spec.customCNI").into_iter().collect();
        }
        if spec("sriov.enableRdma") == Some(true.into()) {
            plugins.push(json!({"type": "rdma"}));
        }
        if kind != "custom" && spec("enableCoordinator") != Some(false.into()) {
            plugins.push(json!({"type": "coordinator"}));
        }
        let resource =
            spec(&format!("{section}.resourceName")).and_then(|name| name.as_str().map(str::to_owned));
        let namespace = part.text("metadata.namespace").map(str::to_owned);
        vec![Made { name, namespace, resource, plugins, also: "" }]
    }

    /// The additional networks of OpenShift's Cluster Network Operator.
    fn openshift(&mut self, part: Part) -> Vec<Made> {
        let mut all = Vec::new();
        for network in part.get("spec.additionalNetworks").into_iter().flat_map(Part::items) {
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
            ("IPPool", "nv-ipam.nvidia.com") => self.block_pool(part, name),
            ("SpiderIPPool", _) => {
                self.leads_to(part, name, &[], &["spec.subnet"]);
                let problem = "SpiderIPPool: Spiderpool stays the IPAM plugin of its networks, which rail-cni calls as any other";
                self.note(part, name, "kind", problem);
            }
            ("NicClusterPolicy", _) => self.nic_cluster_policy(part, name),
            ("SriovNetworkNodePolicy", _) => {
                if let (Some(resource), Some(mtu)) =
                    (part.text("spec.resourceName"), part.get("spec.mtu").and_then(|mtu| mtu.value.as_u64()))
                {
                    self.mtus.insert(prefixed(part, resource), mtu);
                }
                if part.text("spec.deviceType") == Some("vfio-pci") {
                    let problem =
                        "vfio-pci: its VFs have no interface: a network of them needs \"userspace\": true";
                    self.note(part, name, "spec.deviceType", problem);
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
        let subnet: Option<ipnet::IpNet> = part.text("spec.subnet").and_then(|subnet| subnet.parse().ok());
        let size = part.get("spec.perNodeBlockSize").and_then(|size| size.value.as_u64());
        let instead = match (subnet, size.filter(|size| (1..1 << 32).contains(size))) {
            (Some(subnet), Some(size)) => {
                let bits = u64::BITS - (size - 1).leading_zeros();
                let length = u32::from(subnet.max_prefix_len()).saturating_sub(bits);
                format!("a CIDRPool with cidr: {} and perNodeNetworkPrefix: {length}", subnet.trunc())
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
        if let Some(config) = self.json_in(part, "spec.rdmaSharedDevicePlugin.config") {
            for one in config["configList"].as_array().into_iter().flatten() {
                let prefix = one["resourcePrefix"].as_str().unwrap_or("rdma");
                let resource = format!("{prefix}/{}", one["resourceName"].as_str().unwrap_or_default());
                self.shared.insert(resource);
            }
        }
        if part.get("spec.rdmaSharedDevicePlugin").is_some() {
            let problem = "the shared RDMA device plugin gives a pod the right to use RDMA, and no device: networks of rail-cni \
                           need a resource of sriovDevicePlugin, or of a SriovNetworkNodePolicy";
            self.warning(part, name, "spec.rdmaSharedDevicePlugin", problem);
        }
        if let Some(config) = part.get("spec.sriovDevicePlugin.config") {
            if let Err(fault) = config.json() {
                self.fault(
                    name,
                    rail_cni::fault::Fault { path: "spec.sriovDevicePlugin.config".to_owned(), ..fault },
                );
            }
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

/// The name of a resource with the prefix that the SR-IOV Network Operator puts before it.
fn prefixed(part: Part, name: &str) -> String {
    if name.contains('/') {
        return name.to_owned();
    }
    let of_nvidia = part.text("metadata.namespace").is_some_and(|namespace| namespace.contains("nvidia"));
    format!("{}/{name}", PREFIXES[usize::from(of_nvidia)])
}

/// Whether a plugin's `ipam` is ours.
pub(super) fn has_our_ipam(plugin: &Map<String, Value>) -> bool {
    plugin.get("ipam").and_then(|ipam| ipam.get("type")) == Some(&json!(OUR_IPAM))
}
