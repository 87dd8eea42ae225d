//! CIDRPool manifests: read as people and kubectl write them, written for nv-ipam and for `rail-ipam import`.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use serde_json::Value;

use super::yaml::scalar;
use super::{Cable, File, Plan, Pool, is_object_name, leaf_ports, refused};
use crate::document::{Document, Fault, Part};
use crate::fail;
use crate::pool::cidrpool::{Row, Spec, some_of};
use crate::pool::{allocation, is_name};

const API_VERSION: &str = "nv-ipam.nvidia.com/v1alpha1";
/// nv-ipam reads the pools of its own namespace; this is where NVIDIA's network operator puts it.
const NAMESPACE: &str = "nvidia-network-operator";
/// Annotations that say what nv-ipam has no fields for. A name says nothing: there are fabrics whose rail 0 is
/// `rail-1`.
const RAIL: &str = "rail-cni/rail";
const PLANE: &str = "rail-cni/plane";
/// Where the cables end: a line for each node, `NODE: LEAF PORT`, and behind a comma those of other planes.
const LEAF_PORTS: &str = "rail-cni/leaf-ports";
/// What the annotations of an object have room for; `kubectl apply` keeps the whole object in one of them.
const MAX_ANNOTATIONS: usize = 256 << 10;
/// etcd takes requests of 1.5 MiB at most (its default, `--max-request-bytes`).
const MAX_OBJECT: usize = 3 << 19;

/// The CIDRPools of these documents. All faults of all of them make one error.
pub fn read(documents: &[Document]) -> Result<Plan> {
    let (mut manifests, mut faults) = (Vec::new(), Vec::new());
    for document in documents {
        pools_in(document.root(), &mut manifests, &mut faults);
    }
    let mut plan = Plan::default();
    for manifest in manifests {
        let Manifest { name, ref spec, ref status, .. } = manifest;
        if spec.is_dynamic() && status.is_empty() {
            faults.push(manifest.at(&format!(
                "spec: it has no staticAllocations, so nv-ipam chooses the prefixes as nodes come: read what it \
                 chose, `kubectl get cidrpool {name} -o yaml` shows it in status.allocations"
            )));
            continue;
        }
        match spec.plan("spec", status) {
            Ok(checked) => {
                plan.warnings.extend(checked.warnings.iter().map(|warning| manifest.at(warning)));
                if plan.pools.iter().any(|pool| pool.name == name) {
                    faults.push(manifest.at("metadata.name: this pool is there twice"));
                }
                plan.pools.push(manifest.pool());
            }
            Err(more) => faults.extend(more.iter().map(|fault| manifest.at(fault))),
        }
    }
    if !faults.is_empty() {
        return Err(refused(&faults));
    }
    if let Some(names) = not_of_nodes(&plan) {
        plan.warnings
            .push(format!("{names}: they get their addresses only if nodeName in node.json says so"));
    }
    plan.pools.sort_by_cached_key(|pool| (pool.rail, pool.plane, pool.name.clone()));
    Ok(plan)
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
    /// A message that begins with its path, with file, line and name before it.
    fn at(&self, fault: &str) -> String {
        format!("{}: CIDRPool {}: {fault}", self.part.place(fault), self.name)
    }

    /// What nv-ipam chose becomes what is planned.
    fn pool(self) -> Pool {
        let mut spec = self.spec;
        let named: HashSet<String> =
            spec.static_allocations.iter().map(|row| row.node_name.clone()).collect();
        let chosen = self.status.into_iter().filter(|row| !named.contains(&row.node_name));
        spec.static_allocations.extend(chosen);
        let prefix = |row: &Row| row.prefix.parse::<ipnet::IpNet>().ok();
        spec.static_allocations.sort_by_cached_key(prefix);
        let mut of_node = self.cables;
        let cables = match of_node.is_empty() {
            true => Vec::new(),
            false => {
                let rows = spec.static_allocations.iter();
                rows.map(|row| of_node.remove(&row.node_name).unwrap_or_default()).collect()
            }
        };
        let namespace = self.part.text("metadata.namespace").map(str::to_owned);
        Pool { name: self.name.to_owned(), rail: self.rail, plane: self.plane, namespace, spec, cables }
    }
}

/// Finds the CIDRPools: the value itself, a list, or what `kubectl get -o yaml` makes of several.
fn pools_in<'a>(part: Part<'a>, found: &mut Vec<Manifest<'a>>, faults: &mut Vec<String>) {
    let place = part.place("");
    match (part.value, part.text("kind")) {
        (Value::Array(_), _) => part.items().for_each(|item| pools_in(item, found, faults)),
        (Value::Object(_), Some("List" | "CIDRPoolList")) => match part.get("items") {
            Some(items) if items.value.is_array() => pools_in(items, found, faults),
            _ => faults.push(format!("{}: items: not a list", part.place("items"))),
        },
        (Value::Object(_), Some("CIDRPool")) => match manifest(part) {
            Ok(manifest) => found.push(manifest),
            Err(fault) => faults.push(fault.to_string()),
        },
        (Value::Object(_), Some(other)) => {
            faults.push(format!("{}: kind {other:?} is no CIDRPool", part.place("kind")));
        }
        (Value::Object(_), None) => faults.push(format!("{place}: no kind: CIDRPool")),
        (other, _) => {
            let shown: String = other.to_string().chars().take(40).collect();
            faults.push(format!("{place}: {shown} is no CIDRPool"));
        }
    }
}

fn manifest(part: Part<'_>) -> Result<Manifest<'_>, Fault> {
    let wrong = |problem: String| part.fault(problem);
    let name = match part.text("metadata.name") {
        Some(name) if is_name(name) => name,
        Some(name) => return Err(wrong(format!("metadata.name: {name:?} is no name of a pool"))),
        None => return Err(wrong("metadata.name: is missing".to_owned())),
    };
    let within = |fault: Fault| Fault { problem: format!("CIDRPool {name}: {}", fault.problem), ..fault };
    match part.text("apiVersion") {
        Some(API_VERSION) => (),
        other => {
            let other = other.unwrap_or("none");
            return Err(within(wrong(format!("apiVersion: {other} is not {API_VERSION}"))));
        }
    }
    let number = |key: &str| {
        let path = format!("metadata.annotations.{key}");
        let Some(given) = part.get(&path) else { return Ok(None) };
        let number = given.value.as_str().and_then(|text| text.parse::<u8>().ok());
        number
            .map(Some)
            .ok_or_else(|| within(wrong(format!("{path}: {} is no number in quotes", given.value))))
    };
    let (rail, plane) = (number(RAIL)?, number(PLANE)?);
    let path = format!("metadata.annotations.{LEAF_PORTS}");
    let cables = cables(part.text(&path).unwrap_or_default())
        .map_err(|why| within(part.fault(format!("{path}: {why}"))))?;
    let spec = part.decode("spec").map_err(within)?;
    let status: Option<Vec<Row>> = part.decode("status.allocations").map_err(within)?;
    Ok(Manifest { part, name, rail, plane, cables, spec, status: status.unwrap_or_default() })
}

/// What [`LEAF_PORTS`] says, by node.
fn cables(text: &str) -> Result<HashMap<String, Vec<Cable>>, String> {
    let mut found = HashMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let wrong = |why: &str| format!("{line:?}: {why}");
        let Some((node_name, ends)) = line.split_once(": ") else {
            return Err(wrong("is not NODE: LEAF PORT"));
        };
        let mut cables = Vec::new();
        for end in ends.split(", ") {
            let (leaf, port) = end.split_once(' ').map_or((end, None), |(leaf, port)| (leaf, Some(port)));
            let cable = Cable { leaf: Some(leaf.into()), port: port.map(str::to_owned), ..Cable::default() };
            if let Some(fault) = cable.faults().into_iter().flatten().next() {
                return Err(wrong(&fault));
            }
            cables.push(cable);
        }
        if found.insert(node_name.trim().to_owned(), cables).is_some() {
            return Err(wrong("this node is there twice"));
        }
    }
    Ok(found)
}

/// Names that no node of a cluster can have, if there are any.
fn not_of_nodes(plan: &Plan) -> Option<String> {
    let names: Vec<_> =
        plan.nodes().into_iter().filter(|name| !is_object_name(name)).map(str::to_owned).collect();
    (!names.is_empty()).then(|| {
        format!("no node of Kubernetes can be called {} (small letters, digits, - and .)", some_of(&names))
    })
}

/// A file for each pool.
pub fn write(plan: &mut Plan) -> Result<Vec<File>> {
    let mut files = Vec::new();
    if let Some(names) = not_of_nodes(plan) {
        fail!(InvalidConfig, "{names}, and nv-ipam looks for the node's name there: correct the plan");
    }
    for pool in &plan.pools {
        pool.check_object_name()?;
        let (ports, mut text) = (ports(pool), text(pool, ""));
        if ports.len() + text.len() + ports.len() > MAX_ANNOTATIONS {
            plan.warnings.push(format!(
                "pool {}: the annotation {LEAF_PORTS} is left out: with it, annotations would have more than {} KiB, \
                 and Kubernetes takes no more",
                pool.name,
                MAX_ANNOTATIONS >> 10
            ));
        } else if !ports.is_empty() {
            text = self::text(pool, &ports);
        }
        if text.len() > MAX_OBJECT {
            plan.warnings.push(format!(
                "pool {}: {} nodes make {} KiB, and etcd takes 1536: the Kubernetes API will refuse it, `rail-ipam \
                 import` will not",
                pool.name,
                pool.spec.static_allocations.len(),
                text.len() >> 10
            ));
        }
        files.push(File { name: format!("{}.yaml", pool.name), text });
    }
    Ok(files)
}

/// What [`LEAF_PORTS`] says of the pool.
fn ports(pool: &Pool) -> String {
    let lines = pool.rows().map(|(row, cables)| (row, leaf_ports(cables)));
    let lines = lines.filter(|(row, ports)| !row.node_name.is_empty() && !ports.is_empty());
    lines.map(|(row, ports)| format!("{}: {}\n", row.node_name, allocation::join(&ports))).collect()
}

fn text(pool: &Pool, ports: &str) -> String {
    let Pool { name, rail, plane, namespace, spec, .. } = pool;
    let mut text = format!(
        "apiVersion: {API_VERSION}\nkind: CIDRPool\nmetadata:\n  name: {}\n  namespace: {}\n",
        scalar(name),
        scalar(namespace.as_deref().unwrap_or(NAMESPACE))
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
    line(format!("  perNodeNetworkPrefix: {}", spec.per_node_network_prefix));
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
        line(format!("  - startIP: {}\n    endIP: {}", scalar(&range.start), scalar(&range.end)));
    }
    if !spec.per_node_exclusions.is_empty() {
        line("  perNodeExclusions:".into());
    }
    for range in &spec.per_node_exclusions {
        line(format!("  - startIndex: {}\n    endIndex: {}", range.start_index, range.end_index));
    }
    if !spec.routes.is_empty() {
        line("  routes:".into());
    }
    for to in &spec.routes {
        line(format!("  - dst: {}", scalar(&to.dst)));
    }
    line("  staticAllocations:".into());
    for row in &spec.static_allocations {
        let fields = [("nodeName", &row.node_name), ("prefix", &row.prefix), ("gateway", &row.gateway)];
        let fields = fields.iter().filter(|(_, value)| !value.is_empty());
        let fields: Vec<_> = fields.map(|(key, value)| format!("{key}: {}", scalar(value))).collect();
        line(format!("  - {}", fields.join("\n    ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;
    use crate::plan::Cable;
    use crate::plan::scheme::{Family, HostLink, Mode, Polarity, Scheme, Tiers};
    use proptest::prelude::*;

    fn read_text(text: &str) -> Result<Plan> {
        read(&document::parse("pools", text.as_bytes())?)
    }

    fn written(plan: &Plan) -> String {
        plan.pools.iter().map(|pool| format!("---\n{}", super::text(pool, &ports(pool)))).collect()
    }

    /// The rail of the deployment that the project came from, as NVIDIA's script made it there.
    #[test]
    fn the_published_pool_reads_as_planned_and_writes_as_read() {
        let text = std::fs::read_to_string("conf/pools/spectrum-x.yaml").unwrap();
        let plan = read_text(&text).unwrap();
        let again = read_text(&written(&plan)).unwrap();
        assert_eq!(written(&plan), written(&again));
        for (ours, theirs) in plan.pools.iter().zip(&again.pools) {
            assert_eq!(ours.spec, theirs.spec);
        }
    }

    #[test]
    fn a_pool_that_nv_ipam_filled_becomes_a_plan() {
        let text = "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata: {name: r, namespace: n}\n\
            spec: {cidr: 10.0.0.0/8, perNodeNetworkPrefix: 31, gatewayIndex: 1, nodeSelector: {a: [b]}, \
            staticAllocations: [{nodeName: b, prefix: 10.0.0.2/31}]}\n\
            status: {allocations: [{nodeName: a, prefix: 10.0.0.0/31, gateway: 10.0.0.1}, \
            {nodeName: b, prefix: 10.0.0.2/31, gateway: 10.0.0.3}]}\n";
        let plan = read_text(text).unwrap();
        assert_eq!(
            written(&plan),
            "---\napiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata:\n  name: r\n  namespace: \"n\"\n\
             spec:\n  cidr: 10.0.0.0/8\n  gatewayIndex: 1\n  perNodeNetworkPrefix: 31\n  nodeSelector: {\"a\":[\"b\"]}\n  \
             staticAllocations:\n  - nodeName: a\n    prefix: 10.0.0.0/31\n    gateway: 10.0.0.1\n  - nodeName: b\n    \
             prefix: 10.0.0.2/31\n"
        );
    }

    #[test]
    fn a_number_of_a_rail_that_is_none_is_refused_with_its_line() {
        let text = |rail: &str| {
            format!(
                "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata:\n  name: r\n  annotations:\n    \
                 rail-cni/rail: {rail}\nspec: {{cidr: 10.0.0.0/8, perNodeNetworkPrefix: 31,\n  \
                 staticAllocations: [{{nodeName: b, prefix: 10.0.0.2/31}}]}}\n"
            )
        };
        assert_eq!(read_text(&text("\"7\"")).unwrap().pools[0].rail, Some(7));
        for bad in ["7", "\"x\"", "\"256\"", "[]"] {
            let error = read_text(&text(bad)).unwrap_err().to_string();
            assert!(
                error.starts_with("pools:6: CIDRPool r: metadata.annotations.rail-cni/rail: "),
                "{error}"
            );
        }
    }

    proptest! {
        /// Plan, manifests, plan: nothing is lost, and what nv-ipam's rules refuse is never written.
        #[test]
        fn manifests_carry_the_whole_plan(
            spots in proptest::collection::btree_set((0u64..4, 0u64..8, 0u64..4, 0u64..8), 1..40),
            three in any::<bool>(), mode in 0..3usize, family in 0..3usize, even in any::<bool>(),
        ) {
            let scheme = Scheme {
                tiers: if three { Tiers::Three } else { Tiers::Two },
                mode: [Mode::None, Mode::Swplb, Mode::Hwplb][mode],
                family: [Family::Ipv4, Family::Ipv6, Family::Dual][family],
                first_octet: 172,
                polarity: if even { Polarity::LeafEven } else { Polarity::LeafOdd },
            };
            let links = spots.iter().map(|(plane, rail, su, host)| HostLink {
                node_name: format!("n{su}-{host}.True"), plane: *plane, rail: *rail, pod: 0, su: *su, host: *host,
                cable: Cable::default(),
            });
            let mut plan = scheme.plan(links, &|number| number.to_string()).unwrap();
            plan.check().unwrap();
            let again = read_text(&written(&plan)).unwrap();
            prop_assert_eq!(plan.pools.len(), again.pools.len());
            for (ours, theirs) in plan.pools.iter().zip(&again.pools) {
                prop_assert_eq!(&ours.spec, &theirs.spec);
                prop_assert_eq!((&ours.name, ours.rail, ours.plane), (&theirs.name, theirs.rail, theirs.plane));
            }
            prop_assert_eq!(written(&plan), written(&again));
        }

        #[test]
        fn every_text_is_read_as_the_text_it_was(text in "[ -~]{1,20}") {
            let document = document::parse("t", format!("a: {}\n", scalar(&text)).as_bytes()).unwrap();
            prop_assert_eq!(document[0].root().text("a"), Some(text.as_str()));
        }
    }
}
