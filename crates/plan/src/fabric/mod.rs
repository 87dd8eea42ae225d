//! A fabric in a page of YAML, for people without a topology.json: the number of its rails, SUs and
//! hosts, and the patterns of their names. docs/planning.md explains the keys, conf/fabric.yaml is
//! an example.
//!
//! [`is_fabric`] knows such a file by its content, [`read`] makes a plan of it, `keys` and
//! `patterns` parse it. The links are made one by one, so a page that describes a million nodes
//! takes no more memory than their plan.

mod keys;
mod patterns;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use anyhow::Result;
use ipnet::IpNet;
use serde_json::Value;

use crate::document::{Document, Part};
use crate::pattern::Pattern;
use crate::plan::{Cable, Plan, Pool, refused};
use crate::scheme::{Formula, HostLink, MAX_FAULTS, Origin, Patterns, Scheme};
use rail_cni::fault::{Fault, Place};
use rail_cni::node::MAX_RAIL;
use rail_cni::pool::is_name;

/// Whether the file is such a file.
pub fn is_fabric(value: &Value) -> bool {
    value.get("fabric").is_some()
}

/// The plan of fabric files. Several ones are fabrics of the same nodes, such as compute and
/// storage: the rails of each follow those of the one before, unless it has `firstRail`.
pub fn read(documents: &[Document]) -> Result<Plan> {
    let (mut all, mut faults) = (Plan::default(), Vec::new());
    for document in documents {
        let next = all
            .pools
            .iter()
            .filter_map(Pool::number)
            .max()
            .map_or(0, |last| last.saturating_add(1));
        if !is_fabric(&document.value) {
            faults.push(
                document
                    .root()
                    .fault("fabric", "is missing: this is not a fabric file"),
            );
            continue;
        }
        match plan(document.root(), next) {
            Ok(plan) => add(&mut all, plan),
            Err(more) => faults.extend(more),
        }
    }
    if documents.len() > 1 && faults.is_empty() {
        faults = ends_of_two(&all);
    }
    if faults.is_empty() {
        Ok(all)
    } else {
        Err(refused(faults))
    }
}

/// Adds another fabric to a plan.
fn add(all: &mut Plan, plan: Plan) {
    let Plan {
        pools,
        warnings,
        cluster_networks,
        listed,
        positions,
        replaces,
        is_patterned,
        doubts: _,
    } = plan;
    all.pools.extend(pools);
    all.warnings.extend(warnings);
    all.cluster_networks.extend(cluster_networks);
    all.listed.extend(listed);
    for (node_name, position) in positions {
        all.positions.entry(node_name).or_insert(position);
    }
    all.replaces.extend(replaces);
    all.is_patterned |= is_patterned;
}

/// Interfaces of nodes, and ports of leaves, that two fabrics have. Within each one they were
/// compared before.
fn ends_of_two(plan: &Plan) -> Vec<Fault> {
    let mut ends: HashMap<(&str, &str), &Pool> = HashMap::new();
    let mut faults = Vec::new();
    for pool in &plan.pools {
        for (row, cables) in pool.rows() {
            let of_node = cables
                .iter()
                .filter_map(|cable| cable.interface.as_deref())
                .map(|end| (row.node_name.as_str(), end));
            let of_leaf = cables
                .iter()
                .filter_map(|cable| cable.leaf.as_deref().zip(cable.port.as_deref()));
            for (name, end) in of_node.chain(of_leaf) {
                let other = *ends.entry((name, end)).or_insert(pool);
                if other.number() != pool.number() && faults.len() < MAX_FAULTS {
                    let problem = format!(
                        "{end} of {name} is also on rail {}",
                        other.number().unwrap_or_default()
                    );
                    faults.push(Fault::whole(problem).of(format!("pool {}", pool.name)));
                }
            }
        }
    }
    faults
}

/// The plan of a file whose rails begin with `next`, unless it has `firstRail`.
fn plan(document: Part<'_>, next: u8) -> Result<Plan, Vec<Fault>> {
    let fabric = keys::parse(document)?;
    let (off_pattern, warnings) = fabric.names(document).map_err(|fault| vec![fault])?;
    // Each key was checked by itself. Links can only be wrong in what their patterns make.
    let (formula, key, path) = match &fabric.addressing {
        Addressing::SpectrumX(scheme) => {
            (Formula::SpectrumX(scheme), "leafName", "leafName, leafPort")
        }
        Addressing::Patterns(patterns) => (
            Formula::Patterns(patterns),
            "address",
            "address, leafName, leafPort",
        ),
    };
    let origin = |number: usize| {
        let (node, rail) = fabric.node_and_rail(&off_pattern, number);
        Origin {
            place: document.place(key),
            subject: format!("node {node}, rail {rail}"),
            path: path.to_owned(),
        }
    };
    let of_key = |fault: Fault| {
        if fault.path == "routes" {
            document.locate(fault)
        } else {
            fault
        }
    };
    let mut plan = formula
        .plan(fabric.links(&off_pattern), &origin)
        .map_err(|faults| faults.into_iter().map(of_key).collect::<Vec<_>>())?;
    plan.warnings.extend(warnings.iter().map(Fault::to_string));
    fabric.number(document, next, &mut plan)?;
    let Fabric {
        addressing,
        replaces,
        cluster_networks,
        listed,
        ..
    } = fabric;
    let is_patterned = matches!(addressing, Addressing::Patterns(_));
    Ok(Plan {
        replaces,
        cluster_networks,
        listed,
        is_patterned,
        ..plan
    })
}

/// The place of a host. All numbers count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Spot {
    pod: u64,
    su: u64,
    host: u64,
}

/// The nodes whose names follow a pattern.
#[derive(Debug)]
struct Grid {
    name: Pattern<4>,
    /// The number of SUs in each pod.
    sus: Vec<u64>,
    /// The number of hosts in an SU.
    hosts: u64,
}

/// The input of the address formulas.
#[derive(Debug)]
enum Addressing {
    SpectrumX(Scheme),
    Patterns(Patterns),
}

#[derive(Debug)]
struct Fabric {
    addressing: Addressing,
    rails: u64,
    /// The number of the first rail, which is 0 in patterns.
    first_rail: Option<u8>,
    pool_name: Option<Pattern<2>>,
    planes: u64,
    grid: Option<Grid>,
    /// The nodes that the file lists.
    nodes: Vec<(String, Spot)>,
    /// The places of the nodes in the file.
    listed: BTreeMap<String, Place>,
    /// Nodes, each with the node that it replaces.
    replaces: BTreeMap<String, String>,
    /// The names of the hosts' interfaces: one pattern for all rails, or one for each.
    interfaces: Vec<Pattern<2>>,
    leaf: Option<Pattern<5>>,
    port: Option<Pattern<5>>,
    vrf: Option<Pattern<5>>,
    mtu: Option<u32>,
    cluster_networks: Vec<IpNet>,
}

impl Grid {
    fn len(&self) -> u64 {
        self.sus.iter().sum::<u64>() * self.hosts
    }

    /// The place of the nth node.
    fn spot(&self, node: u64) -> Spot {
        let mut su = node / self.hosts;
        let mut pod = 0;
        for sus in &self.sus {
            if su < *sus {
                break;
            }
            su -= sus;
            pod += 1;
        }
        Spot {
            pod,
            su,
            host: node % self.hosts,
        }
    }

    fn number(&self, Spot { pod, su, host }: Spot) -> Option<u64> {
        let pod = usize::try_from(pod).ok()?;
        let is_inside = su < *self.sus.get(pod)? && host < self.hosts;
        is_inside.then(|| (self.sus.iter().take(pod).sum::<u64>() + su) * self.hosts + host)
    }

    fn name(&self, node: u64) -> String {
        let Spot { pod, su, host } = self.spot(node);
        self.name.render(&[node, pod, su, host])
    }
}

impl Fabric {
    /// Gives the pools their names, and their rails the numbers that they have beside other
    /// fabrics.
    fn number(&self, document: Part<'_>, next: u8, plan: &mut Plan) -> Result<(), Vec<Fault>> {
        let first = self.first_rail.unwrap_or(next);
        for pool in &mut plan.pools {
            let (rail, plane) = (pool.rail.unwrap_or(0), pool.plane);
            let suffix = if pool.name.ends_with("-v6") {
                "-v6"
            } else {
                ""
            };
            pool.rail = Some(rail.saturating_add(first));
            if pool.number().is_some_and(|number| number > MAX_RAIL) {
                let problem = format!(
                    "the last rail would be {}, and {MAX_RAIL} is the last",
                    first + rail
                );
                return Err(vec![document.fault("firstRail", problem)]);
            }
            if let Some(pattern) = &self.pool_name {
                pool.name = pattern.render(&[rail.into(), plane.unwrap_or(0).into()]) + suffix;
            } else if first > 0 {
                let plane = plane.map_or(String::new(), |plane| format!("-plane-{plane}"));
                pool.name = format!("rail-{}{plane}{suffix}", rail.saturating_add(first));
            }
        }
        Ok(())
    }

    /// Checks the names of all nodes. Returns the numbers of those that are not where the pattern
    /// has them, sorted, and warnings.
    fn names(&self, document: Part<'_>) -> Result<(Vec<u64>, Vec<Fault>), Fault> {
        let Some(grid) = &self.grid else {
            return Ok((Vec::new(), Vec::new()));
        };
        let fault = |problem: String| Err(document.fault("nodeName", problem));
        let listed: HashMap<&str, Spot> = self
            .nodes
            .iter()
            .map(|(name, spot)| (name.as_str(), *spot))
            .collect();
        let taken: HashSet<u64> = self
            .nodes
            .iter()
            .filter_map(|(_, spot)| grid.number(*spot))
            .collect();
        let mut names = HashSet::new();
        let mut off_pattern = Vec::new();
        for node in 0..grid.len() {
            let name = grid.name(node);
            if !is_name(&name) {
                return fault(format!("{name:?} is not a valid name of a node"));
            }
            if taken.contains(&node) || listed.contains_key(name.as_str()) {
                off_pattern.push(node);
            }
            if let Some(name) = names.replace(name) {
                let first = (0..node)
                    .find(|first| grid.name(*first) == name)
                    .unwrap_or_default();
                let (first, second) = (grid.spot(first), grid.spot(node));
                return fault(format!("node {name} would be at {first} and at {second}"));
            }
        }
        let mut warnings = Vec::new();
        for (index, (name, spot)) in self.nodes.iter().enumerate() {
            let Some(displaced) = grid.number(*spot).map(|node| grid.name(node)) else {
                continue;
            };
            if names.contains(name) && !listed.contains_key(displaced.as_str()) {
                let problem =
                    format!("node {name} takes the position of {displaced}, which has none now");
                warnings.push(document.fault(&format!("nodes[{index}]"), problem));
            }
        }
        Ok((off_pattern, warnings))
    }

    /// The nodes by the pattern, then the listed ones.
    fn named<'a>(&'a self, off_pattern: &'a [u64]) -> impl Iterator<Item = (String, Spot)> + 'a {
        let by_pattern = self.grid.iter().flat_map(move |grid| {
            let numbers = (0..grid.len()).filter(|node| off_pattern.binary_search(node).is_err());
            numbers.map(|node| (grid.name(node), grid.spot(node)))
        });
        by_pattern.chain(self.nodes.iter().cloned())
    }

    /// The links of all nodes but those at `off_pattern`: node by node, and in each by rail and
    /// plane.
    fn links<'a>(&'a self, off_pattern: &'a [u64]) -> impl Iterator<Item = HostLink> + 'a {
        let on_rails =
            (0..self.rails).flat_map(move |rail| (0..self.planes).map(move |plane| (rail, plane)));
        self.named(off_pattern).flat_map(move |(node_name, spot)| {
            on_rails.clone().map(move |(rail, plane)| HostLink {
                node_name: node_name.clone(),
                plane,
                rail,
                pod: spot.pod,
                su: spot.su,
                host: spot.host,
                cable: self.cable(&spot, rail, plane),
            })
        })
    }

    /// The node and the rail of link `number` of [`Fabric::links`], for messages.
    fn node_and_rail(&self, off_pattern: &[u64], number: usize) -> (String, u64) {
        let links_per_node = self.rails * self.planes;
        let number = number as u64;
        let rail = number % links_per_node / self.planes;
        let mut node = number / links_per_node;
        // Positions off the pattern, in ascending order, have no links by it.
        for position in off_pattern {
            if *position <= node {
                node += 1;
            }
        }
        let grid_len = self.grid.as_ref().map_or(0, Grid::len);
        if let Some(grid) = &self.grid {
            if node < grid_len {
                return (grid.name(node), rail);
            }
        }
        let index = usize::try_from(node - grid_len).ok();
        let listed = index.and_then(|index| self.nodes.get(index));
        let name = listed.map(|(name, _)| name.clone()).unwrap_or_default();
        (name, rail)
    }

    fn cable(&self, Spot { pod, su, host }: &Spot, rail: u64, plane: u64) -> Cable {
        let interface = match self.interfaces.as_slice() {
            [one] => Some(one),
            several => usize::try_from(rail)
                .ok()
                .and_then(|rail| several.get(rail)),
        };
        let on_leaf = [*pod, *su, *host, rail, plane];
        Cable {
            interface: interface.map(|pattern| pattern.render(&[rail, plane])),
            mtu: self.mtu,
            leaf: self.leaf.as_ref().map(|pattern| pattern.render(&on_leaf)),
            port: self.port.as_ref().map(|pattern| pattern.render(&on_leaf)),
            vrf: self.vrf.as_ref().map(|pattern| pattern.render(&on_leaf)),
            netplan: None,
        }
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spot { pod, su, host } = self;
        write!(f, "pod {pod}, SU {su}, host {host}")
    }
}

#[cfg(test)]
mod tests;
