//! Resources, from whoever offers them to the networks that need them: device plugins, policies of
//! the SR-IOV Network Operator, node.json, and the prefixes of the pools.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::operators::prefixed;
use super::{Context, Finding, Lint, OUR_IPAM, OURS, Severity};
use rail_cni::fault::{Fault, Place};
use rail_cni::nearest::nearest;
use rail_cni::node::Node;
use rail_cni::pool::cidrpool::{Row, SPEC_KEYS, Spec, Wanted};
use rail_plan::document::Part;

/// The largest number of addresses that is counted: more than any PF has VFs.
const MAX_ADDRESSES: usize = 512;
/// The default prefix of the shared RDMA device plugin.
const SHARED_PREFIX: &str = "rdma";

/// A resource that a device plugin offers.
#[derive(Debug)]
struct Offer {
    place: Place,
    /// Kind and name of the object, such as `SriovNetworkNodePolicy rail-0`.
    source: String,
    resource: String,
    /// False if the prefix is a setting of the operator, which no file has.
    is_prefix_known: bool,
    /// The number of VFs on each node.
    vfs: Option<u64>,
    is_switchdev: bool,
}

/// A network with a resource.
#[derive(Debug)]
struct Demand {
    place: Place,
    network: String,
    of: usize,
    resource: String,
    is_prefix_known: bool,
    /// Whether its VFs must be of a PF in legacy mode.
    needs_legacy: bool,
    /// The pools of its addresses.
    pools: Vec<String>,
    /// The addresses per node of a pool that the network itself has.
    addresses: Option<usize>,
}

/// The resources of all files.
#[derive(Debug, Default)]
pub(super) struct Resources {
    offers: Vec<Offer>,
    demands: Vec<Demand>,
    /// Resources of the shared RDMA device plugin.
    shared: BTreeSet<String>,
    /// The number of addresses for pods on each node, by pool.
    addresses: BTreeMap<String, usize>,
    /// The rails of a node.json, with its position and the number of VFs of each.
    nodes: Vec<(Place, Node)>,
    /// Names of PFs.
    pub(super) pfs: BTreeSet<String>,
    /// Networks that the VfConfig of a resource claim names.
    claimed: BTreeSet<String>,
    /// Networks without a resource, which only a claim can give a device.
    pub(super) without: Vec<(String, Finding)>,
}

/// Whether two names of resources are the same but for prefix, case and separators: an operator
/// takes no hyphen.
fn is_alike(one: &str, other: &str) -> bool {
    plain(one) == plain(other)
}

fn plain(resource: &str) -> String {
    let name = without_prefix(resource).to_ascii_lowercase();
    name.replace(['-', '.'], "_")
}

fn without_prefix(resource: &str) -> &str {
    resource.rsplit('/').next().unwrap_or_default()
}

impl Offer {
    fn is_for(&self, demand: &Demand) -> bool {
        if self.is_prefix_known && demand.is_prefix_known {
            self.resource == demand.resource
        } else {
            without_prefix(&self.resource) == without_prefix(&demand.resource)
        }
    }
}

impl Lint {
    /// A SriovNetworkNodePolicy: the VFs of its PFs, as one resource.
    pub(super) fn policy_offers(&mut self, part: Part, name: &str) {
        let Some(resource) = part.text("spec.resourceName") else {
            return;
        };
        let selected = |key: &str| -> Vec<&str> {
            let list = part.get(&format!("spec.nicSelector.{key}"));
            let items = list.into_iter().flat_map(Part::items);
            items.filter_map(|item| item.value.as_str()).collect()
        };
        let names = selected("pfNames");
        let addresses = selected("rootDevices");
        for pf in &names {
            let pf = pf.split('#').next().unwrap_or_default();
            self.resources.pfs.insert(pf.to_owned());
        }
        let each = part
            .get("spec.numVfs")
            .and_then(|number| number.value.as_u64());
        let pfs = if names.is_empty() { addresses } else { names };
        let vfs = each.map(|each| {
            if pfs.is_empty() {
                each
            } else {
                pfs.iter().map(|pf| vfs_of_range(pf).unwrap_or(each)).sum()
            }
        });
        self.resources.offers.push(Offer {
            place: part.place("spec.numVfs"),
            source: format!("SriovNetworkNodePolicy {name}"),
            resource: prefixed(part, resource),
            is_prefix_known: resource.contains('/'),
            vfs,
            is_switchdev: part.text("spec.eSwitchMode") == Some("switchdev"),
        });
    }

    /// A resource that an operator makes together with its network.
    pub(super) fn operator_offers(&mut self, part: Part, source: String, resource: &str) {
        self.resources.offers.push(Offer {
            place: part.place(""),
            source,
            resource: resource.to_owned(),
            is_prefix_known: true,
            vfs: None,
            is_switchdev: false,
        });
    }

    /// The configuration of a device plugin, SR-IOV or shared. False for other JSON.
    pub(super) fn device_plugin(&mut self, config: Part, source: &str) -> bool {
        if let Some(list) = config.get("configList") {
            for item in list.items() {
                let prefix = item.text("resourcePrefix").unwrap_or(SHARED_PREFIX);
                let name = item.text("resourceName").unwrap_or_default();
                self.resources.shared.insert(format!("{prefix}/{name}"));
            }
            return true;
        }
        let Some(list) = config.get("resourceList") else {
            return false;
        };
        for item in list.items() {
            let Some(name) = item.text("resourceName") else {
                continue;
            };
            // A list of selectors is a union.
            let selectors = item.get("selectors");
            let unions = selectors.into_iter().flat_map(Part::items);
            for selector in selectors.into_iter().chain(unions) {
                let names = selector.get("pfNames").into_iter().flat_map(Part::items);
                for pf in names.filter_map(|pf| pf.value.as_str()) {
                    let pf = pf.split('#').next().unwrap_or_default();
                    self.resources.pfs.insert(pf.to_owned());
                }
            }
            let prefix = item.text("resourcePrefix").filter(|one| !one.is_empty());
            self.resources.offers.push(Offer {
                place: item.place("resourceName"),
                source: source.to_owned(),
                resource: format!("{}/{name}", prefix.unwrap_or("intel.com")),
                is_prefix_known: prefix.is_some(),
                vfs: None,
                is_switchdev: false,
            });
        }
        true
    }

    /// A ConfigMap, which may have the configuration of a device plugin. False for others.
    pub(super) fn config_map(&mut self, part: Part, name: &str) -> bool {
        let mut is_read = false;
        for (_, text) in part.get("data").into_iter().flat_map(Part::entries) {
            if let Ok(document) = text.json() {
                let source = format!("ConfigMap {name}");
                is_read |= self.device_plugin(document.root(), &source);
            }
        }
        is_read
    }

    /// A node.json, which ADD reads on the node.
    pub(super) fn node_json(&mut self, part: Part) {
        let place = part.place("");
        let text = part.value.to_string();
        match Node::parse(Path::new(&place.file), text.as_bytes()) {
            Ok(node) => {
                let pfs = node.rails.iter().map(|rail| rail.pf.clone());
                self.resources.pfs.extend(pfs);
                if self.node.cluster_networks.is_empty() {
                    self.node.cluster_networks = node.cluster_networks.clone();
                }
                self.resources.nodes.push((place, node));
            }
            Err(error) => self.fault("", Fault::whole(format!("{error:#}")).at(place)),
        }
        self.noted += 1;
    }

    /// A resource claim or its template, whose parameters may name a network.
    pub(super) fn claim(&mut self, part: Part) {
        if let Some(name) = part.text("netAttachDefName") {
            self.resources.claimed.insert(name.to_owned());
        }
        let inner = part.entries().map(|(_, inner)| inner).chain(part.items());
        for inner in inner.filter(|inner| inner.value.is_object() || inner.value.is_array()) {
            self.claim(inner);
        }
    }

    /// The addresses that a CIDRPool has for the pods of a node.
    pub(super) fn pool_holds(&mut self, name: &str, spec: Part) {
        let count = spec.value.as_object().and_then(addresses_per_node);
        if let Some(count) = count {
            self.resources.addresses.insert(name.to_owned(), count);
        }
    }

    /// A network with a resource, with what it needs.
    pub(super) fn demand(&mut self, nad: Part, plugins: &[Part], context: &Context) {
        let Some(resource) = context.resource else {
            return;
        };
        let mut pools = Vec::new();
        let mut addresses = None;
        let mut needs_legacy = false;
        for plugin in plugins {
            let kind = plugin.text("type").unwrap_or_default();
            let is_whole = kind == OURS && plugin.text("mode") != Some("rdma");
            needs_legacy |= is_whole || kind == "sriov" || kind == "ib-sriov";
            let ipam = plugin.get("ipam");
            let ipam_kind = plugin.text("ipam.type").unwrap_or_default();
            if let Some(ipam) = ipam.filter(|_| [OUR_IPAM, "nv-ipam"].contains(&ipam_kind)) {
                let given = ["pool", "poolName"].iter().find_map(|key| ipam.text(key));
                let names = given.into_iter().flat_map(|names| names.split(','));
                pools.extend(names.map(|name| name.trim().to_owned()));
                addresses = ipam.value.as_object().and_then(addresses_per_node);
            }
        }
        self.resources.demands.push(Demand {
            place: nad.place("metadata.annotations"),
            network: context.name.clone(),
            of: self.of,
            resource: resource.to_owned(),
            is_prefix_known: self.made_by.is_none(),
            needs_legacy,
            pools,
            addresses,
        });
    }

    /// Compares networks with resources, when all files are read.
    pub(super) fn compare_resources(&mut self) {
        let mut resources = std::mem::take(&mut self.resources);
        for (network, mut finding) in std::mem::take(&mut resources.without) {
            if !resources.claimed.contains(&network) {
                self.findings.push(finding);
            } else if finding.severity == Severity::Error {
                finding.fault.problem =
                    "is the network of a claim, and dra-driver-sriov reads only networks of one plugin: \
                     `railctl plan --to nads --single` writes them"
                        .to_owned();
                self.findings.push(finding);
            }
        }
        for demand in &resources.demands {
            for (severity, path, fault) in resources.faults_of(demand) {
                let fault = Fault { path, ..fault };
                self.findings.push(Finding {
                    severity,
                    network: demand.network.clone(),
                    of: demand.of,
                    fault,
                });
            }
        }
        self.resources = resources;
    }

    /// Compares the rails of networks with node.json, and the VFs with the addresses.
    pub(super) fn compare_nodes(&mut self) {
        let mut findings = Vec::new();
        for (place, node) in &self.resources.nodes {
            let known: Vec<u64> = node.rails.iter().map(|rail| rail.rail.into()).collect();
            for rail in &self.rails {
                let Some(number) = rail.rail.filter(|_| !known.is_empty()) else {
                    continue;
                };
                let mut add = |severity, place: &Place, path: &str, problem: String| {
                    findings.push(Finding {
                        severity,
                        network: rail.network.clone(),
                        of: rail.of,
                        fault: Fault::new(path, problem).at(place.clone()),
                    });
                };
                let Some(pf) = node.rails.iter().find(|pf| u64::from(pf.rail) == number) else {
                    let problem = format!(
                        "{number} is none of the rails {known:?} of the node.json in {}: ADD refuses it",
                        place.file
                    );
                    add(Severity::Error, &rail.place, "rail", problem);
                    continue;
                };
                let vfs = node.vfs_of(pf).map_or(0, |vfs| usize::from(vfs.number));
                let counts = rail.pools.iter().filter_map(|pool| {
                    let count = self.resources.addresses.get(pool)?;
                    Some((*count, pool))
                });
                if let Some((count, pool)) = counts.min().filter(|(count, _)| *count < vfs) {
                    let problem = too_many(vfs, &rail.network, pool, count);
                    add(Severity::Warning, place, "vfs.number", problem);
                }
            }
        }
        self.findings.extend(findings);
    }
}

impl Resources {
    /// Severity, key and fault of the resource of a network.
    fn faults_of(&self, demand: &Demand) -> Vec<(Severity, String, Fault)> {
        const ANNOTATIONS: &str = "metadata.annotations";
        let mut faults = Vec::new();
        let resource = &demand.resource;
        let fault = |problem: String| Fault::whole(problem).at(demand.place.clone());
        if self.shared.contains(resource) {
            let problem = format!(
                "{resource} is of the shared RDMA device plugin, which hands out no device: a resource of the SR-IOV device \
                 plugin, or of a SriovNetworkNodePolicy"
            );
            faults.push((Severity::Error, ANNOTATIONS.to_owned(), fault(problem)));
            return faults;
        }
        let offers: Vec<&Offer> = self
            .offers
            .iter()
            .filter(|offer| offer.is_for(demand))
            .collect();
        if offers.is_empty() {
            if !self.offers.is_empty() {
                let (severity, problem) = self.nobody_offers(resource);
                faults.push((severity, ANNOTATIONS.to_owned(), fault(problem)));
            } else if resource.split('/').next() == Some(SHARED_PREFIX) {
                let problem = format!(
                    "{SHARED_PREFIX}/ is the default prefix of the shared RDMA device plugin, which hands out no device: right \
                     if the SR-IOV device plugin offers {resource}"
                );
                faults.push((Severity::Warning, ANNOTATIONS.to_owned(), fault(problem)));
            }
        }
        for offer in &offers {
            if offer.is_switchdev && demand.needs_legacy {
                let problem = format!(
                    "{} ({}) puts the PFs of {resource} into switchdev, where packets of a VF end at its representor: \
                     eSwitchMode: legacy, or OVS-CNI with rail-cni behind it in `mode: rdma`",
                    offer.source, offer.place
                );
                faults.push((Severity::Error, ANNOTATIONS.to_owned(), fault(problem)));
            }
            let pools = demand.pools.iter().filter_map(|pool| {
                let count = self.addresses.get(pool)?;
                Some((*count, pool.as_str()))
            });
            let own = demand.addresses.map(|count| (count, "in the network"));
            let vfs = usize::try_from(offer.vfs.unwrap_or(0)).unwrap_or(usize::MAX);
            if let Some((count, pool)) = pools.chain(own).min().filter(|(count, _)| *count < vfs) {
                let problem = too_many(vfs, &demand.network, pool, count);
                let fault = Fault::whole(problem).at(offer.place.clone());
                faults.push((Severity::Warning, "spec.numVfs".to_owned(), fault));
            }
        }
        faults
    }

    /// A resource that no file offers. It is certainly a mistake if the files offer it in another
    /// spelling; otherwise, the files may not be all of the cluster's.
    fn nobody_offers(&self, resource: &str) -> (Severity, String) {
        let alike = self
            .offers
            .iter()
            .find(|offer| is_alike(&offer.resource, resource));
        if let Some(offer) = alike {
            let problem = format!(
                "nobody offers {resource}, and {} ({}) offers {}: one name in both, or no pod of this network is scheduled",
                offer.source, offer.place, offer.resource
            );
            return (Severity::Error, problem);
        }
        let names = self.offers.iter().map(|offer| offer.resource.as_str());
        let meant = nearest(resource, names)
            .map_or(String::new(), |meant| format!(": did you mean {meant}?"));
        let problem = format!(
            "nobody offers {resource} in these files, in which others are offered: no pod of this network is scheduled{meant}"
        );
        (Severity::Warning, problem)
    }

    /// Whether pods with this resource cannot be scheduled, because its name is another one here.
    pub(super) fn misnamed(&self, resource: &str) -> Option<String> {
        let is_offered = |offer: &&Offer| {
            offer.resource == resource
                || !offer.is_prefix_known
                    && without_prefix(&offer.resource) == without_prefix(resource)
        };
        let is_known = self.offers.iter().any(|offer| is_offered(&offer));
        let other = self
            .offers
            .iter()
            .find(|offer| is_alike(&offer.resource, resource))?;
        (!is_known).then(|| {
            format!(
                "asks for {resource}, which nobody offers: {} ({}) offers {}",
                other.source, other.place, other.resource
            )
        })
    }
}

fn too_many(vfs: usize, network: &str, pool: &str, count: usize) -> String {
    let addresses = if count == 1 { "address" } else { "addresses" };
    format!(
        "{vfs} VFs on a node for network {network}, and pool {pool} has {count} {addresses} for the pods of a node: ADD refuses \
         the pods beyond"
    )
}

/// The number of VFs of `eth0#0-3`.
fn vfs_of_range(pf: &str) -> Option<u64> {
    let (_, range) = pf.split_once('#')?;
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    Some(last.checked_sub(first)?.saturating_add(1))
}

/// The addresses that the first node of a pool has for pods; `None` if the pool is invalid.
fn addresses_per_node(given: &Map<String, Value>) -> Option<usize> {
    let mut keys = given.clone();
    keys.retain(|key, _| SPEC_KEYS.contains(&key.as_str()));
    let mut spec: Spec = serde_json::from_value(json!(keys)).ok()?;
    if spec.is_dynamic() {
        let cidr: ipnet::IpNet = spec.cidr.parse().ok()?;
        spec.exclusions.clear();
        spec.static_allocations = vec![Row {
            node_name: "node".to_owned(),
            gateway: String::new(),
            prefix: format!("{}/{}", cidr.network(), spec.per_node_network_prefix),
        }];
    }
    let named = |row: &&Row| !row.node_name.is_empty();
    let node = spec
        .static_allocations
        .iter()
        .find(named)?
        .node_name
        .clone();
    let plan = spec.plan("", &[], Wanted::Node(&node)).ok()?;
    let allocation = plan.allocations.get(&node)?;
    let held = RefCell::new(BTreeSet::new());
    while held.borrow().len() < MAX_ADDRESSES {
        let Some(address) = allocation.first_free(|address| held.borrow().contains(&address))
        else {
            break;
        };
        held.borrow_mut().insert(address);
    }
    Some(held.into_inner().len())
}
