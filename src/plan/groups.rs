//! Which nodes are close to each other, for those who place jobs: the nodes of a leaf group have the same leaves, so
//! their packets reach each other without a spine. Above the leaf groups are SUs, pods, and the whole fabric.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::Result;
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::natural::chunks;
use super::scheme::position_of;
use super::{Plan, Pool, Position};
use crate::fail;

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
    /// How far its nodes are apart: 1 in a leaf group, 4 in the whole fabric at most.
    pub tier: usize,
    /// What is directly below it.
    pub below: Below<'a>,
}

/// What a switch contains.
#[derive(Debug)]
pub enum Below<'a> {
    /// The nodes of a leaf group, in natural order.
    Nodes(Vec<&'a str>),
    /// Other switches, by their names.
    Switches(Vec<String>),
}

/// The leaf groups, by pod, SU and name.
pub fn groups(plan: &Plan) -> Vec<Group<'_>> {
    let mut leaves_of: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (row, cables) in plan.pools.iter().flat_map(Pool::rows).filter(|(row, _)| !row.node_name.is_empty()) {
        let leaves = leaves_of.entry(&row.node_name).or_default();
        leaves.extend(cables.iter().filter_map(|cable| cable.leaf.as_deref()));
    }
    let by_address = if plan.positions.is_empty() { of_addresses(plan) } else { None };
    let positions = by_address.as_ref().unwrap_or(&plan.positions);
    let mut nodes_at: BTreeMap<Option<Position>, Vec<&str>> = BTreeMap::new();
    for node_name in leaves_of.keys() {
        nodes_at.entry(positions.get(*node_name).copied()).or_default().push(node_name);
    }
    let has_pods = positions.values().any(|position| position.pod > 0);
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (position, nodes) in nodes_at {
        let in_su = position.map(|Position { pod, su }| match has_pods {
            true => format!("pod{pod}-su{su}"),
            false => format!("su{su}"),
        });
        let mut found = connected(&nodes, &leaves_of);
        let is_alone = found.len() == 1;
        for (leaves, nodes) in &mut found {
            leaves.sort_by_cached_key(|name| chunks(name));
            nodes.sort_by_cached_key(|name| chunks(name));
        }
        found.sort_by_cached_key(|(leaves, _)| leaves.first().map(|leaf| chunks(leaf)));
        groups.extend(found.into_iter().map(|(leaves, nodes)| {
            let of_leaf = leaves.first().copied().unwrap_or("without-leaf");
            let name = match (&in_su, is_alone) {
                (Some(su), true) => su.clone(),
                (Some(su), false) => format!("{su}-{of_leaf}"),
                (None, _) => of_leaf.to_owned(),
            };
            Group { name, position, leaves, nodes }
        }));
    }
    groups
}

/// Divides nodes into those that have leaves in common, directly or through other nodes. Those without leaves are
/// together.
fn connected<'a>(
    nodes: &[&'a str],
    leaves_of: &BTreeMap<&'a str, BTreeSet<&'a str>>,
) -> Vec<(Vec<&'a str>, Vec<&'a str>)> {
    fn root(parents: &[usize], mut number: usize) -> usize {
        while let Some(parent) = parents.get(number).filter(|parent| **parent != number) {
            number = *parent;
        }
        number
    }
    let mut parents: Vec<usize> = (0..nodes.len()).collect();
    let mut of_leaf: HashMap<&str, usize> = HashMap::new();
    let no_leaves = BTreeSet::new();
    let leaves = |node: &str| leaves_of.get(node).unwrap_or(&no_leaves);
    for (number, node) in nodes.iter().enumerate() {
        let none = leaves(node).is_empty().then_some("");
        for leaf in leaves(node).iter().copied().chain(none) {
            let other = root(&parents, *of_leaf.entry(leaf).or_insert(number));
            let own = root(&parents, number);
            if let Some(parent) = parents.get_mut(own) {
                *parent = other;
            }
        }
    }
    let mut found: BTreeMap<usize, (BTreeSet<&str>, Vec<&str>)> = BTreeMap::new();
    for (number, node) in nodes.iter().enumerate() {
        let (of_group, nodes) = found.entry(root(&parents, number)).or_default();
        of_group.extend(leaves(node));
        nodes.push(node);
    }
    found.into_values().map(|(leaves, nodes)| (leaves.into_iter().collect(), nodes)).collect()
}

/// The pod and the SU of each node for which NVIDIA's formulas make the addresses, if they make all of the plan.
fn of_addresses(plan: &Plan) -> Option<BTreeMap<String, Position>> {
    let mut positions = BTreeMap::new();
    for pool in &plan.pools {
        let routes = pool.spec.routes.iter().filter_map(|to| to.dst.parse::<IpNet>().ok());
        let all_length = routes.map(|dst| dst.prefix_len()).min()?;
        for row in pool.spec.static_allocations.iter().filter(|row| !row.node_name.is_empty()) {
            let position = position_of(row.prefix.parse().ok()?, all_length)?;
            let first = *positions.entry(row.node_name.clone()).or_insert(position);
            (first == position).then_some(())?;
        }
    }
    Some(positions)
}

/// The leaf groups and what is above them, from below: each is followed by what contains it. The last one contains all
/// nodes.
pub fn switches(plan: &Plan) -> Result<Vec<Switch<'_>>> {
    let groups = groups(plan);
    if groups.iter().all(|group| group.position.is_none() && group.leaves.is_empty()) {
        fail!(
            InvalidConfig,
            "no source says which nodes are close to each other: topology.json and fabric files do; CIDRPools do with \
             the annotation rail-cni/leaf-ports, or if NVIDIA's formulas made the addresses"
        );
    }
    let has_pods = groups.iter().filter_map(|group| group.position).any(|position| position.pod > 0);
    let mut all: Vec<Switch<'_>> = Vec::new();
    // The names of what is in each SU, each pod and the fabric, as far as there is more than one.
    let (mut sus, mut pods) = (BTreeMap::<Position, Vec<String>>::new(), BTreeMap::<u64, Vec<String>>::new());
    let mut top = Vec::new();
    for Group { name, position, nodes, .. } in groups {
        match position {
            Some(position) => sus.entry(position).or_default().push(name.clone()),
            None => top.push(name.clone()),
        }
        all.push(Switch { name, tier: 1, below: Below::Nodes(nodes) });
    }
    let mut above = |tier: usize, name: String, below: Vec<String>| match below.as_slice() {
        [only] => only.clone(),
        _ => {
            all.push(Switch { name: name.clone(), tier, below: Below::Switches(below) });
            name
        }
    };
    for (Position { pod, su }, below) in sus {
        let name = if has_pods { format!("pod{pod}-su{su}") } else { format!("su{su}") };
        pods.entry(pod).or_default().push(above(2, name, below));
    }
    for (pod, below) in pods {
        match has_pods {
            true => top.push(above(3, format!("pod{pod}"), below)),
            false => top.extend(below),
        }
    }
    above(4, "fabric".to_owned(), top);
    // Numbers without gaps: a fabric of two tiers has no pods.
    let tiers: BTreeSet<usize> = all.iter().map(|switch| switch.tier).collect();
    for switch in &mut all {
        switch.tier = tiers.range(..=switch.tier).count();
    }
    let mut names = BTreeSet::new();
    for Switch { name, .. } in &all {
        if !names.insert(name) {
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
    Ok(all)
}

/// The place of each node: its pod and SU, its leaves, and the names of what it is in, from the leaf group to the fabric.
/// Empty if no source says anything about it.
pub fn json(plan: &Plan) -> Value {
    let Ok(switches) = switches(plan) else { return json!({}) };
    let mut above: HashMap<&str, &str> = HashMap::new();
    for Switch { name, below, .. } in &switches {
        if let Below::Switches(below) = below {
            above.extend(below.iter().map(|inner| (inner.as_str(), name.as_str())));
        }
    }
    let mut places = Map::new();
    for Group { name, position, leaves, nodes } in groups(plan) {
        let path: Vec<&str> =
            std::iter::successors(Some(name.as_str()), |inner| above.get(inner).copied()).collect();
        let place = json!({"pod": position.map(|at| at.pod), "su": position.map(|at| at.su), "leaves": leaves,
            "switches": path});
        places.extend(nodes.into_iter().map(|node| (node.to_owned(), place.clone())));
    }
    places.into()
}

#[cfg(test)]
mod tests;
