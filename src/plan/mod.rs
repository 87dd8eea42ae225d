//! The plan of a fabric: which prefix each node has on each rail, and in which leaf port its cable is.
//!
//! A plan is a list of pools as NVIDIA's CIDRPools describe them. It is read from what an operator has, checked
//! as a whole, and written as what somebody needs; the store, which ADD reads, is one of these.

pub mod csv;
pub mod fabric;
pub mod manifest;
pub mod nads;
pub mod netplan;
pub mod networks;
pub mod nics;
pub mod nvue;
pub mod pattern;
pub mod refusal;
pub mod scheme;
pub mod topology;
pub mod yaml;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::rc::Rc;

use anyhow::Result;
use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::document::{self, Document};
use crate::fail;
use crate::pool::cidrpool::{self, SHOWN, Spec, few, some_of};
use crate::pool::{self, Allocation, LeafPort};
use refusal::{Doubt, Doubts, Refusal};

/// A port without its leaf tells nobody where to look.
fn leaf_ports(cables: &[Cable]) -> Vec<LeafPort> {
    let port = |cable: &Cable| Some(LeafPort { leaf: cable.leaf.clone()?, port: cable.port.clone() });
    cables.iter().filter_map(port).collect()
}

/// All rails of a fabric.
#[derive(Debug, Default)]
pub struct Plan {
    /// In the order of rail, plane and family.
    pub pools: Vec<Pool>,
    /// For people: what was left out, what looks like a mistake.
    pub warnings: Vec<String>,
    /// What refuses it, unless it is meant.
    pub doubts: Doubts,
    /// The cluster's own networks, if the source says them.
    pub cluster_networks: Vec<IpNet>,
    /// What it was read from, for the lines of what is found wrong with the whole.
    pub sources: Vec<Document>,
    /// A node of the plan, and the one whose place it took.
    pub replaces: BTreeMap<String, String>,
}

/// The addressing of a rail (and plane) in one family.
#[derive(Clone, Debug)]
pub struct Pool {
    /// As networks name it.
    pub name: String,
    /// Counted from 0, if the source says it.
    pub rail: Option<u8>,
    /// With `swplb`, the plane that the pool is of.
    pub plane: Option<u8>,
    /// In which nv-ipam looks for it, if the source says it.
    pub namespace: Option<String>,
    /// What nv-ipam would read; `staticAllocations` are the rows of the plan, in the order of their prefixes.
    pub spec: Spec,
    /// The cables of each row, in the order of the rows: one, or with `hwplb` one to each plane. Empty: the source
    /// knows of none.
    pub cables: Vec<Vec<Cable>>,
}

/// Both ends of a link between a node and its leaf, as far as the source says them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cable {
    /// The node's netdev.
    pub interface: Option<String>,
    /// MTU of that netdev.
    pub mtu: Option<u32>,
    /// Name of the leaf.
    pub leaf: Option<String>,
    /// The leaf's port.
    pub port: Option<String>,
    /// What a netplan file says of the interface beside that.
    pub netplan: Option<Box<Ethernet>>,
}

/// An interface of a netplan file: what the plan has no words for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ethernet {
    /// Its key below `ethernets`; the name of the netdev, if nothing else is said.
    pub id: String,
    /// The keys that the plan would not write like this by itself.
    pub keys: Rc<Map<String, Value>>,
}

/// A node's end of a rail, as ADD would find it.
#[derive(Clone, Debug)]
pub struct Link<'a> {
    /// The node.
    pub node_name: &'a str,
    /// Its prefix, gateway and routes.
    pub allocation: Allocation,
    /// The address of the host, which is the first that pods get.
    pub host: IpAddr,
    /// One, or with `hwplb` one to each plane. Empty: the source knows of none.
    pub cables: &'a [Cable],
}

/// What each pool, by its name, gives to each node.
pub type Pools = BTreeMap<String, BTreeMap<String, Allocation>>;

/// A file of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Without a folder.
    pub name: String,
    /// All of it.
    pub text: String,
}

impl Plan {
    /// What is wrong with the plan as a whole, and what looks wrong, which goes to the doubts and warnings. A source
    /// has told the faults of its own files by then, with their lines.
    ///
    /// Returns what every pool gives to its nodes, as the store has it.
    pub fn check(&mut self) -> Result<Pools, Vec<String>> {
        let (mut faults, mut pools) = (Vec::new(), Pools::new());
        let mut names = BTreeSet::new();
        let mut prefixes: HashMap<IpNet, (&cidrpool::Row, &str)> = HashMap::new();
        let mut pools_of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for pool in &self.pools {
            let name = pool.name.as_str();
            if !names.insert(name) {
                faults.push(format!("pool {name}: it is there twice"));
            }
            match pool.spec.plan("spec", &[]) {
                Ok(mut checked) => {
                    for (row, cables) in pool.rows() {
                        if let Some(allocation) = checked.allocations.get_mut(&row.node_name) {
                            allocation.leaf_ports = leaf_ports(cables);
                        }
                    }
                    checked.allocations.values_mut().for_each(|allocation| allocation.rail = pool.number());
                    pools.insert(pool.name.clone(), checked.allocations);
                }
                Err(more) => {
                    faults.extend(more.iter().map(|fault| format!("pool {name}: {fault}")));
                    continue;
                }
            }
            for row in &pool.spec.static_allocations {
                let Ok(prefix) = row.prefix.parse::<IpNet>() else { continue };
                let node_name = row.node_name.as_str();
                if let Some((row_before, other)) = prefixes.insert(prefix, (row, name)) {
                    let node = &row_before.node_name;
                    let places = document::places(&self.sources, &[&row_before.prefix, &row.prefix]);
                    faults.push(format!(
                        "{places}pool {name}: node {node_name}: {prefix} is also the prefix of node {node} in pool \
                         {other}"
                    ));
                }
                if !node_name.is_empty() {
                    pools_of.entry(node_name).or_default().push(name);
                }
            }
        }
        // A source that knows of cables has said it with their lines, or what it comes from.
        let is_told = [Doubt::MissingRail, Doubt::SecondLink, Doubt::OtherRail];
        if !is_told.into_iter().any(|doubt| self.doubts.has(doubt)) {
            incomplete(&names, &pools_of, &mut self.doubts);
        }
        self.warnings.extend(alike(pools_of.keys().copied(), &self.sources));
        if faults.is_empty() { Ok(pools) } else { Err(faults) }
    }

    /// Every node, sorted.
    pub fn nodes(&self) -> BTreeSet<&str> {
        let rows = self.pools.iter().flat_map(|pool| &pool.spec.static_allocations);
        rows.map(|row| row.node_name.as_str()).filter(|name| !name.is_empty()).collect()
    }
}

impl Pool {
    /// Can the pool's name be that of a CIDRPool or a network in Kubernetes?
    pub fn check_object_name(&self) -> Result<()> {
        let name = &self.name;
        if !is_object_name(name) {
            fail!(
                InvalidConfig,
                "pool {name}: Kubernetes takes small letters, digits, - and . in names: give it another one"
            );
        }
        Ok(())
    }

    /// Rows with their cables.
    pub fn rows(&self) -> impl Iterator<Item = (&cidrpool::Row, &[Cable])> {
        let cables = self.cables.iter().map(Vec::as_slice).chain(std::iter::repeat([].as_slice()));
        self.spec.static_allocations.iter().zip(cables)
    }

    /// `rail` of its network.
    pub fn number(&self) -> Option<u8> {
        Some(pool::number(self.rail?, self.plane))
    }

    /// Of which family? By the cidr, that has been checked.
    pub fn is_ipv4(&self) -> bool {
        !self.spec.cidr.contains(':')
    }

    /// The rows that are a node's, in their order.
    pub fn links(&self) -> Result<Vec<Link<'_>>> {
        let mut allocations = match self.spec.plan("spec", &[]) {
            Ok(checked) => checked.allocations,
            Err(faults) => fail!(InvalidConfig, "pool {}: {}", self.name, some_of(&faults)),
        };
        let links = self.rows().filter_map(|(row, cables)| {
            let allocation = allocations.remove(&row.node_name)?;
            let host = allocation.first_free(|_| false)?;
            Some(Link { node_name: &row.node_name, allocation, host, cables })
        });
        Ok(links.collect())
    }
}

/// RFC 1123, as Kubernetes checks it.
fn is_object_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let ends = [label.bytes().next(), label.bytes().next_back()];
        ends.iter().all(|end| end.is_some_and(is_inner))
            && label.bytes().all(|byte| is_inner(byte) || byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// One error for all faults.
pub fn refused(faults: &[String]) -> anyhow::Error {
    Refusal::from(faults.to_vec()).into()
}

/// A job holds all rails of a node: one that lacks a pool will stop there.
fn incomplete(pools: &BTreeSet<&str>, pools_of: &BTreeMap<&str, Vec<&str>>, doubts: &mut Doubts) {
    for (node_name, has) in pools_of.iter().filter(|(_, has)| has.len() < pools.len()) {
        doubts.push(Doubt::MissingRail, || {
            let lacks: Vec<_> = pools.iter().filter(|pool| !has.contains(pool)).copied().collect();
            format!("node {node_name} has nothing in {}: add it there", lacks.join(", "))
        });
    }
}

/// Names are exact. Two that differ only in letter case or domain are one node, most likely.
fn alike<'a>(nodes: impl Iterator<Item = &'a str>, sources: &[Document]) -> Vec<String> {
    let mut seen: HashMap<String, &str> = HashMap::new();
    let mut found = Vec::new();
    for name in nodes {
        let short = name.split('.').next().unwrap_or_default().to_ascii_lowercase();
        if let Some(other) = seen.insert(short, name) {
            let places =
                if found.len() < SHOWN { document::places(sources, &[other, name]) } else { String::new() };
            found.push(format!(
                "{places}nodes {other} and {name} differ only in letter case or domain: are they one?"
            ));
        }
    }
    few(found)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::scheme::{Family, HostLink, Mode, Polarity, Scheme, Tiers};
    use super::*;

    /// Two nodes of two SUs, two rails.
    pub fn cabled() -> Vec<HostLink> {
        let places = [("worker-gpu-0", 0, 0), ("worker-gpu-62", 1, 30)];
        let link = |(node_name, su, host): (&str, u64, u64), rail: u64| HostLink {
            node_name: node_name.into(),
            plane: 0,
            rail,
            pod: 0,
            su,
            host,
            cable: Cable {
                interface: Some(format!("rail{rail}")),
                mtu: Some(9000),
                leaf: Some(format!("leaf-su{}-r{}", su + 1, rail + 1)),
                port: Some(format!("swp{}s0", host + 1)),
                netplan: None,
            },
        };
        (0..2).flat_map(|rail| places.map(|place| link(place, rail))).collect()
    }

    /// The plan of these links with two tiers, checked.
    pub fn plan(mode: Mode, family: Family, links: &[HostLink]) -> Plan {
        let scheme =
            Scheme { tiers: Tiers::Two, mode, family, first_octet: 172, polarity: Polarity::LeafOdd };
        let mut plan = scheme.plan(links.to_vec(), &|number| format!("links[{number}]")).unwrap();
        plan.check().unwrap();
        plan
    }
}
