//! The distance between nodes, for schedulers: the nodes of a leaf group have the same leaves, so
//! their packets reach each other without a spine. Above the leaf groups are SUs, pods, and the
//! whole fabric.

use std::collections::BTreeMap;

use anyhow::Result;
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use crate::natural;
use crate::plan::{Plan, Pool, Position};
use crate::scheme::position_of;
use rail_cni::fail;

/// Nodes that have leaves in common. If the source names no leaves: the nodes of an SU.
#[derive(Debug)]
pub struct Group<'a> {
    /// A name that no other group has.
    pub name: String,
    /// The pod and the SU, if they are known.
    pub position: Option<Position>,
    /// In natural order.
    pub leaves: Vec<&'a str>,
    /// In natural order.
    pub nodes: Vec<&'a str>,
}

/// A leaf group, or what is above it.
#[derive(Debug)]
pub struct Switch<'a> {
    /// The name, of at most 64 characters.
    pub name: String,
    /// The distance of its nodes: 1 in a leaf group, 4 in the whole fabric at most.
    pub tier: usize,
    /// Its direct children.
    pub below: Below<'a>,
}

/// The children of a switch.
#[derive(Debug)]
pub enum Below<'a> {
    /// The nodes of a leaf group, in natural order.
    Nodes(Vec<&'a str>),
    /// Other switches, by their names.
    Switches(Vec<String>),
}

/// The leaf groups, by pod and SU, and in an SU by their first node.
pub fn groups(plan: &Plan) -> Vec<Group<'_>> {
    let mut leaves_of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (row, cables) in plan.pools.iter().flat_map(Pool::rows) {
        if !row.node_name.is_empty() {
            let leaves = leaves_of.entry(&row.node_name).or_default();
            leaves.extend(cables.iter().filter_map(|cable| cable.leaf.as_deref()));
        }
    }
    let by_address = if plan.positions.is_empty() {
        of_addresses(plan)
    } else {
        None
    };
    let positions = by_address.as_ref().unwrap_or(&plan.positions);
    let mut nodes_at: BTreeMap<Option<Position>, Vec<&str>> = BTreeMap::new();
    for node_name in leaves_of.keys() {
        nodes_at
            .entry(positions.get(*node_name).copied())
            .or_default()
            .push(node_name);
    }
    let has_pods = has_pods(nodes_at.keys().copied());
    let mut groups = Vec::new();
    for (position, mut nodes) in nodes_at {
        natural::sort(&mut nodes);
        let su = position.map(|position| su_name(position, has_pods));
        let from = groups.len();
        connected(&nodes, &leaves_of, position, &mut groups);
        let is_alone = groups.len() == from + 1;
        for group in groups.iter_mut().skip(from) {
            natural::sort(&mut group.leaves);
            let of_leaf = group.leaves.first().copied().unwrap_or("without-leaf");
            group.name = match &su {
                Some(su) if is_alone => su.clone(),
                Some(su) => format!("{su}-{of_leaf}"),
                None => of_leaf.to_owned(),
            };
        }
    }
    groups
}

fn has_pods(mut positions: impl Iterator<Item = Option<Position>>) -> bool {
    positions.any(|position| position.is_some_and(|position| position.pod > 0))
}

fn su_name(Position { pod, su }: Position, has_pods: bool) -> String {
    if has_pods {
        format!("pod{pod}-su{su}")
    } else {
        format!("su{su}")
    }
}

fn pod_name(pod: u64) -> String {
    format!("pod{pod}")
}

/// Divides the nodes of an SU into those that have leaves in common, directly or through other
/// nodes. Those without leaves are together.
fn connected<'a>(
    nodes: &[&'a str],
    leaves_of: &BTreeMap<&'a str, Vec<&'a str>>,
    position: Option<Position>,
    groups: &mut Vec<Group<'a>>,
) {
    fn root(parents: &[usize], mut number: usize) -> usize {
        while let Some(parent) = parents.get(number).filter(|parent| **parent != number) {
            number = *parent;
        }
        number
    }
    let mut parents: Vec<usize> = (0..nodes.len()).collect();
    let mut of_leaf: BTreeMap<&str, usize> = BTreeMap::new();
    let leaves = |node: &str| leaves_of.get(node).map(Vec::as_slice).unwrap_or_default();
    for (number, node) in nodes.iter().enumerate() {
        let none: &[&str] = if leaves(node).is_empty() { &[""] } else { &[] };
        for leaf in leaves(node).iter().chain(none) {
            let one = root(&parents, *of_leaf.entry(leaf).or_insert(number));
            let other = root(&parents, number);
            // The first node of a group is its root, so that groups are in the order of their first
            // nodes.
            if let Some(parent) = parents.get_mut(one.max(other)) {
                *parent = one.min(other);
            }
        }
    }
    let mut group_of: Vec<usize> = Vec::with_capacity(nodes.len());
    for (number, node) in nodes.iter().enumerate() {
        let at = match group_of.get(root(&parents, number)) {
            Some(at) => *at,
            None => {
                groups.push(Group {
                    name: String::new(),
                    position,
                    leaves: Vec::new(),
                    nodes: Vec::new(),
                });
                groups.len() - 1
            }
        };
        group_of.push(at);
        if let Some(group) = groups.get_mut(at) {
            group.nodes.push(node);
        }
    }
    for (leaf, number) in of_leaf {
        let group = group_of.get(number).and_then(|at| groups.get_mut(*at));
        if let Some(group) = group.filter(|_| !leaf.is_empty()) {
            group.leaves.push(leaf);
        }
    }
}

/// The pod and the SU of each node for which NVIDIA's formulas make the addresses, if they make all
/// of the plan.
fn of_addresses(plan: &Plan) -> Option<BTreeMap<String, Position>> {
    let mut positions = BTreeMap::new();
    for pool in &plan.pools {
        let routes = pool
            .spec
            .routes
            .iter()
            .filter_map(|to| to.dst.parse::<IpNet>().ok());
        let all_length = routes.map(|dst| dst.prefix_len()).min()?;
        for row in pool
            .spec
            .static_allocations
            .iter()
            .filter(|row| !row.node_name.is_empty())
        {
            let position = position_of(row.prefix.parse().ok()?, all_length)?;
            let first = *positions.entry(row.node_name.clone()).or_insert(position);
            (first == position).then_some(())?;
        }
    }
    Some(positions)
}

/// The leaf groups and what is above them: first all leaf groups, then all SUs, all pods, and the
/// fabric, as far as they contain more than one.
pub fn switches(plan: &Plan) -> Result<Vec<Switch<'_>>> {
    let groups = groups(plan);
    if groups
        .iter()
        .all(|group| group.position.is_none() && group.leaves.is_empty())
    {
        fail!(
            InvalidConfig,
            "no source says which nodes are close to each other: topology.json and fabric files do; CIDRPools do with \
             the annotation rail-cni/leaf-ports, or if NVIDIA's formulas made the addresses"
        );
    }
    let has_pods = has_pods(groups.iter().map(|group| group.position));
    let (mut all, mut sus, mut pods) = (Vec::new(), Vec::new(), Vec::new());
    // The names of what is in this SU, in this pod, and in the fabric.
    let (mut in_su, mut in_pod, mut top) = (Vec::new(), Vec::new(), Vec::new());
    let mut groups = groups.into_iter().peekable();
    while let Some(Group {
        name,
        position,
        nodes,
        ..
    }) = groups.next()
    {
        let next = groups.peek().and_then(|group| group.position);
        in_su.push(name.clone());
        all.push(Switch {
            name,
            tier: 1,
            below: Below::Nodes(nodes),
        });
        let Some(position) = position else {
            top.append(&mut in_su);
            continue;
        };
        if next != Some(position) {
            in_pod.push(above(&mut sus, 2, su_name(position, has_pods), &mut in_su));
        }
        if next.map(|next| next.pod) != Some(position.pod) {
            if has_pods {
                top.push(above(&mut pods, 3, pod_name(position.pod), &mut in_pod));
            } else {
                top.append(&mut in_pod);
            }
        }
    }
    all.append(&mut sus);
    all.append(&mut pods);
    above(&mut all, 4, "fabric".to_owned(), &mut top);
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for Switch { name, .. } in &all {
        if names.insert(name, 0).is_some() {
            fail!(
                InvalidConfig,
                "leaf {name} has the name of something else in the fabric: call it otherwise"
            );
        }
        if name.len() > 64 {
            fail!(
                InvalidConfig,
                "{name}: the name of a leaf group has more than 64 characters: shorten that of the leaf"
            );
        }
    }
    // Numbers without gaps: a fabric of two tiers has no pods.
    let (mut last, mut tier) = (0, 0);
    for switch in &mut all {
        if switch.tier > last {
            (last, tier) = (switch.tier, tier + 1);
        }
        switch.tier = tier;
    }
    Ok(all)
}

/// Adds a switch above those that are `below` it, which then is empty. One alone needs no switch.
/// Returns the name that stands for all of them.
fn above<'a>(
    switches: &mut Vec<Switch<'a>>,
    tier: usize,
    name: String,
    below: &mut Vec<String>,
) -> String {
    let below = std::mem::take(below);
    if let [only] = below.as_slice() {
        return only.clone();
    }
    switches.push(Switch {
        name: name.clone(),
        tier,
        below: Below::Switches(below),
    });
    name
}

/// The place of each node: its pod and SU, its leaves, and the names of what it is in, from the
/// leaf group to the fabric. Empty if the sources have no groups.
pub fn json(plan: &Plan) -> Value {
    let Ok(switches) = switches(plan) else {
        return json!({});
    };
    let mut places = Map::new();
    let groups = groups(plan);
    let has_pods = has_pods(groups.iter().map(|group| group.position));
    for Group {
        name,
        position,
        leaves,
        nodes,
    } in groups
    {
        let mut path = vec![name];
        // A switch precedes the one that contains it.
        for Switch { name, below, .. } in &switches {
            if let Below::Switches(below) = below {
                if path.last().is_some_and(|inner| below.contains(inner)) {
                    path.push(name.clone());
                }
            }
        }
        let pod_name = position.filter(|_| has_pods).map(|at| pod_name(at.pod));
        let place = json!({"pod": position.map(|at| at.pod), "su": position.map(|at| at.su), "podName": pod_name,
            "suName": position.map(|at| su_name(at, has_pods)), "leaves": leaves, "switches": path});
        places.extend(
            nodes
                .into_iter()
                .map(|node| (node.to_owned(), place.clone())),
        );
    }
    places.into()
}

#[cfg(test)]
mod tests;
