//! CIDRPool manifests, read in the forms that people and kubectl write, and written for nv-ipam and
//! `railctl import`.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use serde_json::{Value, json};

use crate::document::{Document, Part};
use crate::plan::{Cable, File, Plan, Pool, is_object_name, leaf_ports, refused};
use crate::rails;
use crate::yaml::scalar;
use rail_cni::fail;
use rail_cni::fault::{Fault, Place, some_of, with_others};
use rail_cni::nearest::nearest;
use rail_cni::node::MAX_RAIL;
use rail_cni::pool::cidrpool::{Row, Spec, Wanted};
use rail_cni::pool::{self, allocation, is_name};

const API_VERSION: &str = "nv-ipam.nvidia.com/v1alpha1";
/// nv-ipam reads the pools of its own namespace; this is where NVIDIA's network operator puts it.
const NAMESPACE: &str = "nvidia-network-operator";
/// Annotations for what nv-ipam has no fields for. The name of a pool does not say the rail: there
/// are fabrics whose rail 0 is `rail-1`.
const RAIL: &str = "rail-cni/rail";
const PLANE: &str = "rail-cni/plane";
/// The leaf ports of the cables: a line for each node, `NODE: LEAF PORT`, with those of other
/// planes behind commas.
const LEAF_PORTS: &str = "rail-cni/leaf-ports";
/// The bytes that the annotations of an object can have. `kubectl apply` keeps the whole object in
/// one of them, unless the API server applies it.
const MAX_ANNOTATIONS: usize = 256 << 10;
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The bytes that etcd takes in a request (1.5 MiB, the default of `--max-request-bytes`).
const MAX_OBJECT: usize = 3 << 19;

/// The plan of the CIDRPools in these documents. One error has all faults of all of them.
pub fn read(documents: &[Document]) -> Result<Plan> {
    let mut found = Found::default();
    for document in documents {
        found.pools_in(document.root());
    }
    let Found {
        manifests,
        mut faults,
        others,
    } = found;
    let mut warnings = Vec::new();
    // Files of operators have namespaces and networks beside the pools.
    let is_left_out = |fault: Fault| Fault {
        problem: format!("{}, and is left out", fault.problem),
        ..fault
    };
    if manifests.is_empty() && faults.is_empty() {
        faults.extend(others);
    } else {
        warnings.extend(others.into_iter().map(is_left_out));
    }
    let mut plan = Plan::default();
    for manifest in manifests {
        let Manifest {
            name,
            ref spec,
            ref status,
            ..
        } = manifest;
        if spec.is_dynamic() && status.is_empty() {
            let problem =
                "has no staticAllocations, so nv-ipam chooses the prefixes when nodes join";
            let remedy = format!(
                "read the prefixes that it chose: `kubectl get cidrpool {name} -o yaml` prints them in \
                 status.allocations"
            );
            faults.push(manifest.locate(Fault::new("spec", problem).remedy(remedy)));
            continue;
        }
        match spec.plan("spec", status, Wanted::None) {
            Ok(checked) => {
                warnings.extend(
                    checked
                        .warnings
                        .into_iter()
                        .map(|warning| manifest.locate(warning)),
                );
                if plan.pools.iter().any(|pool| pool.name == name) {
                    faults.push(
                        manifest.locate(Fault::new("metadata.name", "two pools have this name")),
                    );
                }
                plan.pools.push(manifest.pool());
            }
            Err(more) => faults.extend(more.into_iter().map(|fault| manifest.locate(fault))),
        }
    }
    if !faults.is_empty() {
        return Err(refused(faults));
    }
    plan.warnings.extend(alike(warnings));
    if let Some(names) = not_of_nodes(&plan) {
        plan.warnings.push(format!(
            "{names}: they get their addresses only if nodeName in node.json says so"
        ));
    }
    rails::number(&mut plan);
    plan.pools
        .sort_by_cached_key(|pool| (pool.rail, pool.plane, pool.name.clone()));
    Ok(plan)
}

/// The faults of a CIDRPool for which `plan` and `import` refuse it.
pub fn faults(part: Part<'_>) -> Vec<Fault> {
    match manifest(part) {
        Ok(manifest) => {
            let faults = manifest
                .spec
                .plan("spec", &manifest.status, Wanted::None)
                .err()
                .unwrap_or_default();
            faults.into_iter().map(|fault| part.locate(fault)).collect()
        }
        Err(fault) => vec![fault],
    }
}

/// A line for each kind of warning: the pools of a cluster are alike.
fn alike(warnings: Vec<Fault>) -> Vec<String> {
    let mut kinds: Vec<(Fault, usize)> = Vec::new();
    for warning in warnings {
        let is_alike = |(one, _): &&mut (Fault, usize)| {
            (&one.path, &one.problem) == (&warning.path, &warning.problem)
        };
        match kinds.iter_mut().find(is_alike) {
            Some((_, count)) => *count += 1,
            None => kinds.push((warning, 1)),
        }
    }
    kinds
        .into_iter()
        .map(|(first, count)| with_others(&first, count))
        .collect()
}

/// A CIDRPool, parsed.
struct Manifest<'a> {
    part: Part<'a>,
    name: &'a str,
    rail: Option<u8>,
    plane: Option<u8>,
    cables: HashMap<String, Vec<Cable>>,
    spec: Spec,
    status: Vec<Row>,
}

impl Manifest<'_> {
    /// Adds the position and the name of the pool to a fault.
    fn locate(&self, fault: Fault) -> Fault {
        self.part
            .locate(fault)
            .of(format!("CIDRPool {}", self.name))
    }

    /// The pool, with the prefixes that nv-ipam chose as planned ones.
    fn pool(self) -> Pool {
        let mut spec = self.spec;
        let named: HashSet<String> = spec
            .static_allocations
            .iter()
            .map(|row| row.node_name.clone())
            .collect();
        let places = |path: &str| -> Vec<Place> {
            let items = self.part.get(path).into_iter().flat_map(Part::items);
            items.map(|row| row.place("prefix")).collect()
        };
        let planned = std::mem::take(&mut spec.static_allocations).into_iter();
        let chosen = self.status.into_iter().zip(places("status.allocations"));
        let chosen = chosen.filter(|(row, _)| !named.contains(&row.node_name));
        let mut rows: Vec<_> = planned
            .zip(places("spec.staticAllocations"))
            .chain(chosen)
            .collect();
        rows.sort_by_cached_key(|(row, _)| row.prefix.parse::<ipnet::IpNet>().ok());
        let places;
        (spec.static_allocations, places) = rows.into_iter().unzip();
        let mut of_node = self.cables;
        let cables: Vec<Vec<Cable>> = match of_node.is_empty() {
            true => Vec::new(),
            false => {
                let rows = spec.static_allocations.iter();
                rows.map(|row| of_node.remove(&row.node_name).unwrap_or_default())
                    .collect()
            }
        };
        let namespace = self.part.text("metadata.namespace").map(str::to_owned);
        let (rail, plane) = (self.rail, self.plane);
        Pool {
            name: self.name.to_owned(),
            rail,
            plane,
            is_hwplb: cables.iter().any(|of_row| of_row.len() > 1),
            namespace,
            spec,
            cables,
            places,
        }
    }
}

/// The content of documents.
#[derive(Default)]
struct Found<'a> {
    manifests: Vec<Manifest<'a>>,
    faults: Vec<Fault>,
    /// Objects that are no CIDRPools.
    others: Vec<Fault>,
}

impl<'a> Found<'a> {
    /// Finds the CIDRPools: the value itself, a list, or several as `kubectl get -o yaml` prints
    /// them.
    fn pools_in(&mut self, part: Part<'a>) {
        match (part.value, part.text("kind")) {
            (Value::Array(_), _) => part.items().for_each(|item| self.pools_in(item)),
            (Value::Object(_), Some("List" | "CIDRPoolList")) => match part.get("items") {
                Some(items) if items.value.is_array() => self.pools_in(items),
                _ => self.faults.push(part.fault("items", "is not a list")),
            },
            (Value::Object(_), Some("CIDRPool")) => match manifest(part) {
                Ok(manifest) => self.manifests.push(manifest),
                Err(fault) => self.faults.push(fault),
            },
            (Value::Object(_), Some(other)) => {
                let fault = part.fault("kind", format!("{other:?} is not CIDRPool"));
                if nearest(other, ["CIDRPool"]).is_some() {
                    return self.faults.push(fault);
                }
                let version = part.text("apiVersion").unwrap_or_default();
                let group = version.split('.').next().unwrap_or_default();
                self.others.push(match group {
                    "nv-ipam" | "spiderpool" | "whereabouts" => {
                        fault.remedy("`railctl lint` says what becomes of it")
                    }
                    "wiring" => fault.remedy("describe the fabric in a fabric file"),
                    _ => fault,
                });
            }
            (Value::Object(_), None) => {
                self.faults.push(part.fault("kind", "is missing: CIDRPool"))
            }
            (other, _) => {
                let shown: String = other.to_string().chars().take(40).collect();
                self.faults
                    .push(part.fault("", format!("{shown} is not a CIDRPool")));
            }
        }
    }
}

/// Whether a document may have CIDRPools: it is an object of Kubernetes, or a list.
pub fn is_manifest(value: &Value) -> bool {
    value.is_array() || value.get("kind").is_some()
}

fn manifest(part: Part<'_>) -> Result<Manifest<'_>, Fault> {
    const NAME: &str = "metadata.name";
    let name = match part.text(NAME) {
        Some(name) if is_name(name) => name,
        Some(name) => {
            return Err(part.fault(NAME, format!("{name:?} is not a valid name of a pool")));
        }
        None => return Err(part.fault(NAME, "is missing")),
    };
    parse(part, name).map_err(|fault| fault.of(format!("CIDRPool {name}")))
}

fn parse<'a>(part: Part<'a>, name: &'a str) -> Result<Manifest<'a>, Fault> {
    let version = part.text("apiVersion").unwrap_or("none");
    if version != API_VERSION {
        return Err(part.fault("apiVersion", format!("{version} is not {API_VERSION}")));
    }
    let number = |key: &str| {
        let path = format!("metadata.annotations.{key}");
        let Some(given) = part.get(&path) else {
            return Ok(None);
        };
        let number = given
            .value
            .as_str()
            .and_then(|text| text.parse::<u8>().ok());
        number.map(Some).ok_or_else(|| {
            part.fault(
                &path,
                format!("{} is not a number in quotes, 0 to 255", given.value),
            )
        })
    };
    let (rail, plane) = (number(RAIL)?, number(PLANE)?);
    let last = MAX_RAIL;
    if let Some(number) = rail
        .map(|rail| pool::number(rail, plane))
        .filter(|number| *number > last)
    {
        let path = format!("metadata.annotations.{RAIL}");
        let problem = format!(
            "the network's rail would be {number} (rail + 8 * plane), and the last is {last}"
        );
        return Err(part.fault(&path, problem));
    }
    let path = format!("metadata.annotations.{LEAF_PORTS}");
    let cables = cables(part.text(&path).unwrap_or_default())
        .map_err(|problem| part.fault(&path, problem))?;
    let spec = part.decode("spec")?;
    let status: Option<Vec<Row>> = part.decode("status.allocations")?;
    Ok(Manifest {
        part,
        name,
        rail,
        plane,
        cables,
        spec,
        status: status.unwrap_or_default(),
    })
}

/// The cables in [`LEAF_PORTS`], by node.
fn cables(text: &str) -> Result<HashMap<String, Vec<Cable>>, String> {
    let mut found = HashMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let wrong = |why: &str| format!("{line:?}: {why}");
        let Some((node_name, ends)) = line.split_once(": ") else {
            return Err(wrong("is not NODE: LEAF PORT"));
        };
        let mut cables = Vec::new();
        for end in ends.split(", ") {
            let (leaf, port) = end
                .split_once(' ')
                .map_or((end, None), |(leaf, port)| (leaf, Some(port)));
            let cable = Cable {
                leaf: Some(leaf.into()),
                port: port.map(str::to_owned),
                ..Cable::default()
            };
            if let Some(fault) = cable.faults().into_iter().flatten().next() {
                return Err(wrong(&fault));
            }
            cables.push(cable);
        }
        if found.insert(node_name.trim().to_owned(), cables).is_some() {
            return Err(wrong("the node is given twice"));
        }
    }
    Ok(found)
}

/// A message about names that no node of a cluster can have, if there are any.
pub(super) fn not_of_nodes(plan: &Plan) -> Option<String> {
    let names: Vec<_> = plan
        .nodes()
        .into_iter()
        .filter(|name| !is_object_name(name))
        .map(str::to_owned)
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "{} cannot be the name of a Kubernetes node (lowercase letters, digits, - and .)",
            some_of(&names)
        )
    })
}

/// A file for each pool. `namespace` takes precedence over those of the source.
pub fn write(plan: &mut Plan, namespace: Option<&str>) -> Result<Vec<File>> {
    if let Some(name) = namespace {
        plan.pools
            .iter_mut()
            .for_each(|pool| pool.namespace = Some(name.to_owned()));
    }
    plan.refuse_pools(
        Pool::is_unnumbered,
        "nv-ipam takes a gateway in the node's prefix only, and unnumbered links have another: use --to store",
    )?;
    plan.refuse_pools(
        Pool::has_vrf,
        "a CIDRPool has no room for the VRF of a leaf port: remove leafVrf for this target",
    )?;
    let mut files = Vec::new();
    if let Some(names) = not_of_nodes(plan) {
        fail!(
            InvalidConfig,
            "{names}, and nv-ipam compares them with the names of the cluster's nodes: correct the plan"
        );
    }
    let (mut too_large, mut without_ports) = (Vec::new(), Vec::new());
    for pool in &plan.pools {
        pool.check_object_name()?;
        let mut ports = ports(pool);
        let is_too_large = applied(pool, "") > MAX_ANNOTATIONS;
        // A pool that only the API server can apply has nothing but the ports in its annotations.
        let annotated = if is_too_large {
            ports.len()
        } else {
            applied(pool, &ports)
        };
        if annotated > MAX_ANNOTATIONS && !ports.is_empty() {
            without_ports.push(pool.name.clone());
            ports.clear();
        }
        let text = text(pool, &ports);
        if text.len() > MAX_OBJECT {
            plan.warnings.push(format!(
                "pool {}: {} nodes make {} KiB, and etcd takes 1536: the Kubernetes API will refuse the pool, \
                 `railctl import` will not",
                pool.name,
                pool.spec.static_allocations.len(),
                text.len() >> 10
            ));
        } else if is_too_large {
            too_large.push(pool.name.clone());
        }
        files.push(File {
            name: format!("{}.yaml", pool.name),
            text,
        });
    }
    if !without_ports.is_empty() {
        plan.warnings.push(format!(
            "the annotation {LEAF_PORTS} is left out of {}: with it, the annotations would have more than the {} KiB that \
             Kubernetes takes",
            some_of(&without_ports),
            MAX_ANNOTATIONS >> 10
        ));
    }
    if !too_large.is_empty() {
        plan.warnings.push(format!(
            "too large for `kubectl apply`, which keeps a copy of each object in an annotation, where Kubernetes takes \
             {} KiB: {}: use `kubectl apply --server-side -f FILE`",
            MAX_ANNOTATIONS >> 10,
            some_of(&too_large)
        ));
    }
    Ok(files)
}

/// The bytes of the pool's annotations after `kubectl apply`, which adds the object as JSON.
fn applied(pool: &Pool, ports: &str) -> usize {
    let number = |key: &str, number: Option<u8>| {
        number.map_or(0, |number| key.len() + number.to_string().len())
    };
    let own = number(RAIL, pool.rail) + number(PLANE, pool.plane) + LEAF_PORTS.len() + ports.len();
    // In JSON each annotation has six signs more, and a line feed is two signs. A line feed ends
    // the object.
    let escapes = 3 * 6 + ports.lines().count();
    const OBJECT: &str = r#"{"apiVersion":"","kind":"CIDRPool","metadata":{"annotations":{},"name":"","namespace":""},"spec":}"#;
    let names = API_VERSION.len() + pool.name.len() + namespace(pool).len();
    let spec = json!(pool.spec).to_string();
    own + LAST_APPLIED.len() + OBJECT.len() + 1 + names + own + escapes + spec.len()
}

fn namespace(pool: &Pool) -> &str {
    pool.namespace.as_deref().unwrap_or(NAMESPACE)
}

/// The text of [`LEAF_PORTS`] for the pool.
fn ports(pool: &Pool) -> String {
    let lines = pool.rows().map(|(row, cables)| (row, leaf_ports(cables)));
    let lines = lines.filter(|(row, ports)| !row.node_name.is_empty() && !ports.is_empty());
    lines
        .map(|(row, ports)| format!("{}: {}\n", row.node_name, allocation::join(&ports)))
        .collect()
}

fn text(pool: &Pool, ports: &str) -> String {
    let Pool {
        name,
        rail,
        plane,
        spec,
        ..
    } = pool;
    let mut text = format!(
        "apiVersion: {API_VERSION}\nkind: CIDRPool\nmetadata:\n  name: {}\n  namespace: {}\n",
        scalar(name),
        scalar(namespace(pool))
    );
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    if rail.is_some() || plane.is_some() || !ports.is_empty() {
        line("  annotations:".into());
    }
    for (key, number) in [(RAIL, rail), (PLANE, plane)] {
        if let Some(number) = number {
            line(format!("    {key}: \"{number}\""));
        }
    }
    if !ports.is_empty() {
        line(format!("    {LEAF_PORTS}: |"));
    }
    ports.lines().for_each(|port| line(format!("      {port}")));
    line(format!("spec:\n  cidr: {}", scalar(&spec.cidr)));
    if let Some(index) = spec.gateway_index {
        line(format!("  gatewayIndex: {index}"));
    }
    line(format!(
        "  perNodeNetworkPrefix: {}",
        spec.per_node_network_prefix
    ));
    if spec.default_gateway {
        line("  defaultGateway: true".into());
    }
    if let Some(selector) = &spec.node_selector {
        // JSON is YAML.
        line(format!("  nodeSelector: {selector}"));
    }
    if !spec.exclusions.is_empty() {
        line("  exclusions:".into());
    }
    for range in &spec.exclusions {
        line(format!(
            "  - startIP: {}\n    endIP: {}",
            scalar(&range.start),
            scalar(&range.end)
        ));
    }
    if !spec.per_node_exclusions.is_empty() {
        line("  perNodeExclusions:".into());
    }
    for range in &spec.per_node_exclusions {
        line(format!(
            "  - startIndex: {}\n    endIndex: {}",
            range.start_index, range.end_index
        ));
    }
    if !spec.routes.is_empty() {
        line("  routes:".into());
    }
    for to in &spec.routes {
        line(format!("  - dst: {}", scalar(&to.dst)));
    }
    line("  staticAllocations:".into());
    for row in &spec.static_allocations {
        let fields = [
            ("nodeName", &row.node_name),
            ("prefix", &row.prefix),
            ("gateway", &row.gateway),
        ];
        let fields = fields.iter().filter(|(_, value)| !value.is_empty());
        let fields: Vec<_> = fields
            .map(|(key, value)| format!("{key}: {}", scalar(value)))
            .collect();
        line(format!("  - {}", fields.join("\n    ")));
    }
    text
}

#[cfg(test)]
mod tests;
