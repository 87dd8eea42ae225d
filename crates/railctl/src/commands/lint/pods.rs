//! Pods and what makes pods: whether they ask for a device for each network, and for a network for
//! each device.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Lint, Severity, number_in};
use crate::commands::env::variables;
use rail_cni::fault::{Fault, Place};
use rail_plan::document::Part;

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// The network that takes the place of the cluster's own.
const DEFAULT: &str = "v1.multus-cni.io/default-network";

/// Variables that `railctl env` writes into nccl.conf.
const IN_NCCL_CONF: [&str; 4] = [
    variables::HCA,
    variables::SOCKET_IFNAME,
    variables::GID_INDEX,
    variables::ADDRESS_FAMILY,
];
/// The label of deploy/label, which adds networks and nccl.conf to a pod.
const LABEL: &str = "rail-cni/rails";

/// A pod, or the template of one.
#[derive(Debug)]
pub(super) struct Pod {
    place: Place,
    name: String,
    /// Namespace, or nothing, and name of each network, in order.
    networks: Vec<(String, String)>,
    /// The extended resources of all containers.
    resources: BTreeMap<String, u64>,
    has_claims: bool,
    may_lock: bool,
    is_in_host_netns: bool,
    has_label: bool,
    /// Whether a file of NCCL is mounted.
    has_nccl_conf: bool,
    /// Variables of NCCL that the pod sets itself.
    variables: Vec<Setting>,
}

/// A variable of a container.
#[derive(Debug)]
struct Setting {
    place: Place,
    name: String,
    value: String,
}

/// The owner of pods.
#[derive(Clone, Copy)]
struct Owner<'a> {
    name: &'a str,
    namespace: &'a str,
    /// The annotations of a pod whose own part has none.
    annotations: Option<Part<'a>>,
    labels: Option<Part<'a>>,
    is_laid_over_presets: bool,
}

/// Marks of the `spec` of a pod in an object: a list of containers, or one. Argo has `container`
/// and `script`, KServe a `model`.
const IN_POD: [&str; 4] = ["containers", "container", "script", "model"];
/// Keys that are laid over pods defined elsewhere.
const PARTS: [&str; 4] = [
    "extraPodSpec",
    "podTemplateOverrides",
    "patchStrategicMerge",
    "patchesJson6902",
];

fn containers(part: Part<'_>) -> Vec<Part<'_>> {
    let is_container = |one: &Part| {
        ["image", "resources"]
            .iter()
            .any(|key| one.get(key).is_some())
    };
    let given = IN_POD.iter().filter_map(|key| part.get(key));
    let each = given.flat_map(|one| {
        if one.value.is_array() {
            one.items().collect()
        } else {
            vec![one]
        }
    });
    each.filter(is_container).collect()
}

impl Lint {
    /// Notes the pods in an object: itself, or anywhere in it, whatever its kind is.
    pub(super) fn pods(&mut self, part: Part, name: &str) {
        let text = |path| part.text(path).unwrap_or_default();
        // Argo gives pods `podMetadata`, and not what the workflow itself has.
        let annotations = part
            .get("metadata.annotations")
            .filter(|_| !text("kind").contains("Workflow"));
        let is_laid_over_presets = text("apiVersion").starts_with("serving.kserve.io/");
        let namespace = text("metadata.namespace");
        self.pods_below(
            part,
            Owner {
                name,
                namespace,
                annotations,
                labels: None,
                is_laid_over_presets,
            },
        );
    }

    fn pods_below<'a>(&mut self, part: Part<'a>, owner: Owner<'a>) {
        let is_whole = |spec: &Part| {
            spec.get("containers")
                .is_some_and(|all| all.value.is_array())
        };
        if let Some(spec) = part.get("spec").filter(is_whole) {
            // A template inherits nothing.
            return self.pod(
                spec,
                Owner {
                    annotations: part.get("metadata.annotations"),
                    labels: part.get("metadata.labels"),
                    ..owner
                },
            );
        }
        let own = [
            "metadata.annotations",
            "podMetadata.annotations",
            "annotations",
        ]
        .iter()
        .find_map(|path| part.get(path));
        // The object's own annotations are known.
        let own = own.filter(|all| part.get("kind").is_none() && all.value.is_object());
        let owner = Owner {
            annotations: own.or(owner.annotations),
            ..owner
        };
        if !containers(part).is_empty() {
            self.pod(part, owner);
        }
        let below = part
            .entries()
            .filter(|(key, _)| !IN_POD.contains(key) && !PARTS.contains(key))
            .map(|(_, inner)| inner)
            .chain(part.items());
        for inner in below.filter(|inner| inner.value.is_object() || inner.value.is_array()) {
            self.pods_below(inner, owner);
        }
    }

    /// `part` is what a pod's `spec` is.
    fn pod(&mut self, part: Part, owner: Owner) {
        let Owner {
            name, namespace, ..
        } = owner;
        let annotation = |key: &str| {
            owner
                .annotations
                .and_then(|all| all.get(key))
                .filter(|given| !given.value.is_null())
        };
        let mut all = Vec::new();
        for key in [DEFAULT, NETWORKS] {
            match annotation(key).map_or(Some(Vec::new()), |given| networks(given, namespace)) {
                Some(networks) => all.extend(networks),
                None => {
                    let problem = "must be comma-separated names, or a list of objects with a name";
                    let place =
                        annotation(key).map_or_else(|| part.place(""), |given| given.place(""));
                    let fault =
                        Fault::new(format!("metadata.annotations.{key}"), problem).at(place);
                    return self.fault(name, fault);
                }
            }
        }
        let mut resources = BTreeMap::new();
        let mut of_init: BTreeMap<String, u64> = BTreeMap::new();
        // KServe lays what it has here over presets, which may allow it.
        let mut may_lock = owner.is_laid_over_presets;
        let of = |list: &str| {
            part.get(list)
                .into_iter()
                .flat_map(Part::items)
                .collect::<Vec<_>>()
        };
        for container in of("initContainers") {
            for (resource, count) in devices(container) {
                let most = of_init.entry(resource.to_owned()).or_insert(0);
                *most = count.max(*most);
            }
        }
        for container in containers(part) {
            let security = container.get("securityContext");
            let is_on = |path: &str| {
                security
                    .and_then(|of| of.get(path))
                    .is_some_and(|on| *on.value == true)
            };
            let adds = security
                .and_then(|of| of.get("capabilities.add"))
                .into_iter()
                .flat_map(Part::items);
            let locks = |one: Part| {
                matches!(
                    one.value.as_str(),
                    Some("IPC_LOCK" | "CAP_IPC_LOCK" | "ALL")
                )
            };
            may_lock |= is_on("privileged") || adds.into_iter().any(locks);
            for (resource, count) in devices(container) {
                *resources.entry(resource.to_owned()).or_insert(0) += count;
            }
        }
        // Containers that run one after the other have the same devices.
        for (resource, count) in of_init {
            let all = resources.entry(resource).or_insert(0);
            *all = count.max(*all);
        }
        let place = match annotation(NETWORKS) {
            Some(annotation) => annotation.place(""),
            None => part.place("containers"),
        };
        let has_claims = part.get("resourceClaims").is_some();
        let is_in_host_netns = part.get("hostNetwork").is_some_and(|on| *on.value == true);
        let has_label = owner.labels.is_some_and(|all| all.get(LABEL).is_some());
        let mut has_nccl_conf = false;
        let mut variables = Vec::new();
        for container in containers(part) {
            let mounts = container.get("volumeMounts").into_iter();
            for mount in mounts.flat_map(Part::items) {
                let path = mount.text("mountPath").unwrap_or_default();
                has_nccl_conf |= path.ends_with("/nccl.conf") || path.ends_with("/rccl.conf");
            }
            variables.extend(nccl_settings(container));
        }
        self.pods.push(Pod {
            place,
            name: name.to_owned(),
            networks: all,
            resources,
            has_claims,
            may_lock,
            is_in_host_netns,
            has_label,
            has_nccl_conf,
            variables,
        });
    }

    /// Compares pods with the networks, when all files are read.
    pub(super) fn compare_pods(&mut self) {
        for pod in std::mem::take(&mut self.pods) {
            if pod.is_in_host_netns && (pod.has_label || !pod.networks.is_empty()) {
                let problem = "hostNetwork: true: a pod in the host's network namespace gets no network: remove one of the two";
                let fault = Fault::new("hostNetwork", problem).at(pod.place.clone());
                self.say(Severity::Error, &pod.name, fault);
                continue;
            }
            for resource in pod.resources.keys() {
                if let Some(problem) = self.resources.misnamed(resource) {
                    let fault = Fault::new("", problem).at(pod.place.clone());
                    self.say(Severity::Error, &pod.name, fault);
                }
            }
            for problem in self.of_pod(&pod) {
                let fault = Fault::new("", problem).at(pod.place.clone());
                self.say(Severity::Warning, &pod.name, fault);
            }
            for setting in &pod.variables {
                if let Some(problem) = self.of_setting(&pod, setting) {
                    let fault = Fault::new(&setting.name, problem).at(setting.place.clone());
                    self.say(Severity::Warning, &pod.name, fault);
                }
            }
        }
    }

    /// The fault of a variable of NCCL, if it has one.
    fn of_setting(&self, pod: &Pod, setting: &Setting) -> Option<String> {
        let Setting { name, value, .. } = setting;
        if pod.has_label || pod.has_nccl_conf {
            return Some(format!(
                "{value:?} takes precedence over nccl.conf, which has the rails of this pod: remove the variable"
            ));
        }
        if pod.networks.is_empty() {
            return None;
        }
        let entries = value.trim_start_matches(['^', '=']).split(',');
        let mut names = entries.map(|entry| entry.split(':').next().unwrap_or_default());
        let is_of_host = |entry: &str| match name.as_str() {
            // mlx5_0 of the host is a PF, mlx5 means all.
            variables::HCA => {
                let is_numbered = entry.ends_with(|last: char| last.is_ascii_digit());
                is_numbered && !["mlx4", "mlx5"].contains(&entry)
            }
            variables::SOCKET_IFNAME => self.resources.pfs.contains(entry),
            _ => false,
        };
        let device = names.find(|entry| is_of_host(entry))?;
        Some(format!(
            "{device} is a device of the host, and a pod's rails are VFs, whose names differ from node to node: let \
             `railctl env` set the variable (docs/jobs.md)"
        ))
    }

    /// The resource of a network, if the network is known and has one. A manifest without a
    /// namespace may be of any.
    fn resource_of(&self, namespace: &str, name: &str) -> Option<Option<&str>> {
        let is_meant = |(of, one): &(String, String)| {
            one == name && (namespace.is_empty() || of.is_empty() || of == namespace)
        };
        let (_, resource) = self.nads.iter().find(|(key, _)| is_meant(key))?;
        Some(resource.as_deref())
    }

    fn of_pod(&self, pod: &Pod) -> Vec<String> {
        let mut problems = Vec::new();
        // Devices that the networks of the pod take, by resource; of unknown networks the number
        // alone is known.
        let (mut wanted, mut unknown): (BTreeMap<&str, u64>, u64) = (BTreeMap::new(), 0);
        for (namespace, name) in &pod.networks {
            match self.resource_of(namespace, name) {
                Some(Some(resource)) => *wanted.entry(resource).or_insert(0) += 1,
                Some(None) => (),
                None => unknown += 1,
            }
        }
        for (resource, count) in wanted.iter().filter(|_| !pod.has_claims) {
            let has = pod.resources.get(*resource).copied().unwrap_or(0);
            if has != *count {
                let what = if has < *count {
                    "ADD finds no device for the others"
                } else {
                    "the others stay unused"
                };
                problems.push(format!(
                    "{count} networks of {resource}, and {has} of that resource: {what}"
                ));
            }
        }
        let is_of_networks = |resource: &str| {
            self.nads.values().flatten().any(|known| known == resource)
                || number_in(resource).is_some()
        };
        let devices: u64 = pod
            .resources
            .iter()
            .filter(|(resource, _)| {
                !wanted.contains_key(resource.as_str())
                    && (!is_of_gpu(resource) || is_of_networks(resource))
            })
            .map(|(_, count)| count)
            .sum();
        if unknown > devices && !pod.has_claims {
            problems.push(format!(
                "{unknown} networks that are not in these files, and {devices} devices of other resources: each network with \
                 a resource needs one of it"
            ));
        }
        let idle: Vec<_> = pod
            .resources
            .keys()
            .filter(|resource| {
                unknown == 0 && !wanted.contains_key(resource.as_str()) && is_of_networks(resource)
            })
            .map(String::as_str)
            .collect();
        if !idle.is_empty() {
            problems.push(format!(
                "asks for {}, and for no network of it: the device stays on the host",
                idle.join(", ")
            ));
        }
        let is_rdma = !pod.networks.is_empty()
            && (!wanted.is_empty()
                || pod
                    .resources
                    .keys()
                    .any(|one| is_of_networks(one) || is_of_rdma(one)));
        if is_rdma && !pod.may_lock {
            problems.push(
                "no container may lock memory: RDMA needs capabilities.add: [IPC_LOCK], or a runtime without a limit of \
                 locked memory (memlock)"
                    .to_owned(),
            );
        }
        problems
    }
}

/// The variables of a container that nccl.conf may have.
fn nccl_settings(container: Part<'_>) -> Vec<Setting> {
    let mut settings = Vec::new();
    for variable in container.get("env").into_iter().flat_map(Part::items) {
        let name = variable.text("name").unwrap_or_default();
        let Some(value) = variable.text("value") else {
            continue;
        };
        if IN_NCCL_CONF.contains(&name) {
            settings.push(Setting {
                place: variable.place("name"),
                name: name.to_owned(),
                value: value.to_owned(),
            });
        }
    }
    settings
}

/// The extended resources of a container. Of these the request is the limit.
fn devices(container: Part<'_>) -> Vec<(&str, u64)> {
    let all = container
        .get("resources.limits")
        .or(container.get("resources.requests"));
    let extended = all
        .into_iter()
        .flat_map(Part::entries)
        .filter(|(key, _)| key.contains('/'));
    let number = |count: Part| {
        count
            .value
            .as_u64()
            .or(count.value.as_str().and_then(|text| text.parse().ok()))
    };
    extended
        .map(|(resource, count)| (resource, number(count).unwrap_or(0)))
        .collect()
}

/// Whether a resource such as `nvidia.com/gpu.shared` or `amd.com/gpu` is one of GPUs. `x/gpu1rdma`
/// is a NIC beside one.
fn is_of_gpu(resource: &str) -> bool {
    let lower = resource.to_ascii_lowercase();
    lower
        .split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| ["gpu", "gpus", "vgpu", "mig"].contains(&word))
}

/// Whether a resource such as `rdma/hca_shared` or `openshift.io/roce_p0` says that it is for RDMA.
fn is_of_rdma(resource: &str) -> bool {
    ["rdma", "roce", "infiniband"]
        .iter()
        .any(|word| resource.to_ascii_lowercase().contains(word))
}

/// The networks of the annotation: `ns/name@net1, other`, or a JSON list of objects.
fn networks(annotation: Part, namespace: &str) -> Option<Vec<(String, String)>> {
    let text = annotation.value.as_str()?.trim();
    // As Multus tells the two forms apart.
    if text.contains(['[', '{', '"']) {
        let list: Vec<Value> = serde_json::from_str(text).ok()?;
        let one = |one: Value| {
            let namespace = one["namespace"].as_str().unwrap_or(namespace).to_owned();
            Some((namespace, one["name"].as_str()?.to_owned()))
        };
        return list.into_iter().map(one).collect();
    }
    let names = text
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let one = |name: &str| {
        let name = name.split('@').next().unwrap_or_default();
        let (namespace, name) = name.split_once('/').unwrap_or((namespace, name));
        (namespace.to_owned(), name.to_owned())
    };
    Some(names.map(one).collect())
}
