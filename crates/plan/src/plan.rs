//! The plan with its checks: pools of rows, and what the sources say of each node.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;

use anyhow::Result;
use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::refusal::{Doubt, Doubts, Refusal};
use rail_cni::fail;
use rail_cni::fault::{Fault, Place, SHOWN, few, some_of};
use rail_cni::pool::cidrpool::{self, Spec, Wanted};
use rail_cni::pool::{self, Allocation, LeafPort};

/// The leaf ports of these cables. A port without its leaf is left out, because it could not be
/// found.
pub(crate) fn leaf_ports(cables: &[Cable]) -> Vec<LeafPort> {
    let port = |cable: &Cable| {
        Some(LeafPort {
            leaf: cable.leaf.clone()?,
            port: cable.port.clone(),
        })
    };
    cables.iter().filter_map(port).collect()
}

/// All rails of a fabric.
#[derive(Debug, Default)]
pub struct Plan {
    /// In the order of rail, plane and family.
    pub pools: Vec<Pool>,
    /// Messages about what was left out and what looks like a mistake.
    pub warnings: Vec<String>,
    /// Doubts: each refuses the plan unless it is allowed.
    pub doubts: Doubts,
    /// The cluster's own networks, if the source names them.
    pub cluster_networks: Vec<IpNet>,
    /// The positions of nodes that the source lists by name, for messages about them.
    pub listed: BTreeMap<String, Place>,
    /// The pod and the SU of each node, if the source has them.
    pub positions: BTreeMap<String, Position>,
    /// Nodes of the plan, each with the node that it replaces.
    pub replaces: BTreeMap<String, String>,
    /// Whether the addresses follow from patterns, which have no `firstOctet`.
    pub is_patterned: bool,
}

/// The addressing of a rail (and plane) in one family.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The name that networks use.
    pub name: String,
    /// The rail, counted from 0, if the source has it.
    pub rail: Option<u8>,
    /// The plane, counted from 0, if the mode is `swplb`.
    pub plane: Option<u8>,
    /// Whether the NIC has all planes of the rail behind one VF, which is mode `hwplb`.
    pub is_hwplb: bool,
    /// The Kubernetes namespace of the CIDRPool, if the source has it.
    pub namespace: Option<String>,
    /// The spec of the CIDRPool; `staticAllocations` are the rows of the plan, in the order of
    /// their prefixes.
    pub spec: Spec,
    /// The cables of each row, in the order of the rows: one, or with `hwplb` one to each plane.
    /// Empty if the source has none.
    pub cables: Vec<Vec<Cable>>,
    /// The position of each row, in the order of the rows. Empty if the source compares the
    /// prefixes of all pools itself.
    pub places: Vec<Place>,
}

/// The place of a node in the fabric. Both numbers count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The pod of the fabric.
    pub pod: u64,
    /// The SU in its pod.
    pub su: u64,
}

/// Both ends of a link between a node and its leaf, as far as the source has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cable {
    /// The node's netdev.
    pub interface: Option<String>,
    /// The MTU of that netdev, in bytes.
    pub mtu: Option<u32>,
    /// The name of the leaf.
    pub leaf: Option<String>,
    /// The leaf's port.
    pub port: Option<String>,
    /// The VRF of that port; none is the switch's default VRF.
    pub vrf: Option<String>,
    /// The other keys of the interface in a netplan file.
    pub netplan: Option<Box<Ethernet>>,
}

/// The part of an interface in a netplan file that the plan does not model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ethernet {
    /// Its key below `ethernets`, which is the name of the netdev unless the file has another.
    pub id: String,
    /// The keys that the plan would not write by itself.
    pub keys: Rc<Map<String, Value>>,
}

/// A node's end of a rail, as ADD would find it.
#[derive(Clone, Debug)]
pub struct Link<'a> {
    /// The name of the node.
    pub node_name: &'a str,
    /// Its prefix, gateway and routes.
    pub allocation: Allocation,
    /// The address of the host, which is the first that a pod gets.
    pub host: IpAddr,
    /// One cable, or with `hwplb` one to each plane. Empty if the source has none.
    pub cables: &'a [Cable],
}

/// The allocations of each pool by the name of the node, by the name of the pool.
pub type Pools = BTreeMap<String, BTreeMap<String, Allocation>>;

/// A file of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Without a directory.
    pub name: String,
    /// The whole content.
    pub text: String,
}

/// A row of a pool.
#[derive(Clone, Copy)]
struct Given<'a> {
    prefix: IpNet,
    pool: &'a Pool,
    index: usize,
    row: &'a cidrpool::Row,
}

impl Given<'_> {
    /// A prefix that no node has is kept free, perhaps for another pool.
    fn is_reserved(&self) -> bool {
        self.row.node_name.is_empty()
    }

    fn place(&self) -> Option<&Place> {
        self.pool.places.get(self.index)
    }
}

impl fmt::Display for Given<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} in pool {}", self.row.node_name, self.pool.name)?;
        self.place().map_or(Ok(()), |place| write!(f, " ({place})"))
    }
}

impl Plan {
    /// Checks the plan as a whole. Doubts and warnings are added to the plan. A source has reported
    /// the faults of its own files before.
    ///
    /// Returns the allocations in the form of the store.
    pub fn check(&mut self) -> Result<Pools, Vec<Fault>> {
        let (mut faults, mut pools) = (Vec::new(), Pools::new());
        let mut names = BTreeSet::new();
        for pool in &self.pools {
            let name = pool.name.as_str();
            if !names.insert(name) {
                faults.push(Fault::whole("two pools have this name").of(format!("pool {name}")));
            }
            match pool.allocations() {
                Ok(allocations) => drop(pools.insert(pool.name.clone(), allocations)),
                Err(more) => faults.extend(
                    more.into_iter()
                        .map(|fault| fault.of(format!("pool {name}"))),
                ),
            }
        }
        faults.extend(self.shared_prefixes(&pools));
        faults.extend(self.hosts_as_gateways());
        // A source that has cables has doubts about missing ones with their lines already.
        let is_told = [Doubt::MissingRail, Doubt::SecondLink, Doubt::OtherRail];
        if !is_told.into_iter().any(|doubt| self.doubts.has(doubt)) {
            incomplete(&pools, &mut self.doubts);
        }
        let (alike, same_rail) = (self.alike(), self.same_rail());
        self.warnings.extend(alike);
        self.warnings.extend(same_rail);
        if faults.is_empty() {
            Ok(pools)
        } else {
            Err(faults)
        }
    }

    /// Prefixes that two of these pools give, or that are a part of another one.
    fn shared_prefixes<'a>(&'a self, pools: &Pools) -> Vec<Fault> {
        let rows = |pool: &'a Pool| {
            let rows = pool.spec.static_allocations.iter().enumerate();
            rows.filter_map(move |(index, row)| {
                Some(Given {
                    prefix: row.prefix.parse().ok()?,
                    pool,
                    index,
                    row,
                })
            })
        };
        let pools = self
            .pools
            .iter()
            .filter(|pool| pools.contains_key(&pool.name));
        let mut all: Vec<_> = pools.flat_map(rows).collect();
        // Equal ones are neighbours then, in the order of the pools, and a wider one is right
        // before its parts.
        all.sort_by_key(|given| given.prefix);
        let (mut faults, mut last, mut wide) = (Vec::new(), None::<Given<'_>>, None::<Given<'_>>);
        for given in all {
            let Given { prefix, pool, .. } = given;
            let has_part = |wide: &Given<'_>| wide.prefix.contains(&prefix);
            let same = last.filter(|last| last.prefix == prefix);
            let same = same.map(|other| format!("{prefix} is also the prefix of {other}"));
            let outer = wide.filter(|wide| has_part(wide) && !given.is_reserved());
            let part = outer.map(|wide| {
                format!(
                    "{prefix} is a part of {}, the prefix of {wide}",
                    wide.prefix
                )
            });
            if let Some(problem) = same.or(part) {
                let fault = Fault::whole(problem)
                    .of(format!("pool {}: node {}", pool.name, given.row.node_name));
                faults.push(fault.at(given.place().cloned().unwrap_or_default()));
            }
            if !given.is_reserved() && wide.as_ref().is_none_or(|wide| !has_part(wide)) {
                wide = Some(given);
            }
            last = Some(given);
        }
        faults
    }

    /// Gateways of unnumbered links that are the address of a host, to which all packets of the
    /// rail would go.
    fn hosts_as_gateways(&self) -> Vec<Fault> {
        let pools: Vec<_> = self
            .pools
            .iter()
            .filter(|pool| pool.is_unnumbered())
            .collect();
        let rows = || {
            pools.iter().flat_map(|pool| {
                pool.spec
                    .static_allocations
                    .iter()
                    .map(move |row| (pool, row))
            })
        };
        let address =
            |row: &cidrpool::Row| row.prefix.parse().ok().map(|prefix: IpNet| prefix.addr());
        let hosts: HashMap<IpAddr, _> =
            rows().filter_map(|of| Some((address(of.1)?, of))).collect();
        let gateways: BTreeSet<_> = rows()
            .filter_map(|(pool, row)| Some((row.gateway.parse().ok()?, &pool.name)))
            .collect();
        let fault = |(gateway, of): (IpAddr, &String)| {
            let (pool, row) = hosts.get(&gateway)?;
            let problem = format!(
                "the gateway {gateway} is the address of node {} in pool {}",
                row.node_name, pool.name
            );
            Some(Fault::whole(problem).of(format!("pool {of}")))
        };
        gateways.into_iter().filter_map(fault).collect()
    }

    /// Fails, with the reason, if a target would lose a part of a pool.
    pub(crate) fn refuse_pools(&self, is_lost: impl Fn(&Pool) -> bool, why: &str) -> Result<()> {
        let lost = self.pools.iter().filter(|pool| is_lost(pool));
        let faults: Vec<_> = lost
            .map(|pool| Fault::whole(why).of(format!("pool {}", pool.name)))
            .collect();
        if faults.is_empty() {
            Ok(())
        } else {
            Err(refused(faults))
        }
    }

    /// Names are exact. Two that differ only in letter case or domain are one node, most likely.
    fn alike(&self) -> Vec<String> {
        let mut seen: HashMap<String, &str> = HashMap::new();
        let mut found = Vec::new();
        for name in self.nodes() {
            let short = name
                .split('.')
                .next()
                .unwrap_or_default()
                .to_ascii_lowercase();
            if let Some(other) = seen.insert(short, name) {
                found.push((other, name));
            }
        }
        let line = |(number, (other, name)): (usize, &(&str, &str))| {
            // A position is looked for only where it is shown.
            let at = |name: &str| (number < SHOWN).then(|| self.place_of(name)).flatten();
            let of = |name: &str| at(name).map_or_else(String::new, |place| format!(" ({place})"));
            let problem = format!(
                "nodes {other}{} and {name} differ only in letter case or domain",
                of(other)
            );
            Fault::whole(problem)
                .remedy("is it one node?")
                .at(at(name).unwrap_or_default())
                .to_string()
        };
        few(found.iter().enumerate().map(line).collect())
    }

    /// Two pools of a family that have the same rail on one node. A network without `pool` would
    /// get both.
    fn same_rail(&self) -> Vec<String> {
        let mut by_rail: BTreeMap<(u8, bool), Vec<&Pool>> = BTreeMap::new();
        for pool in &self.pools {
            if let Some(number) = pool.number() {
                by_rail
                    .entry((number, pool.is_ipv4()))
                    .or_default()
                    .push(pool);
            }
        }
        let mut found = Vec::new();
        for ((number, _), pools) in by_rail.iter().filter(|(_, pools)| pools.len() > 1) {
            let mut seen: HashMap<&str, &Pool> = HashMap::new();
            for (pool, row) in pools
                .iter()
                .flat_map(|pool| pool.rows().map(move |(row, _)| (*pool, row)))
            {
                let other = seen
                    .insert(&row.node_name, pool)
                    .filter(|_| !row.node_name.is_empty());
                if let Some(other) = other.filter(|other| other.name != pool.name) {
                    let problem = format!(
                        "rail {number} of node {} is in {} and in {}: jobs cannot tell them apart",
                        row.node_name, other.name, pool.name
                    );
                    found.push(problem);
                }
            }
        }
        few(found)
    }

    /// The position of a node in the source.
    fn place_of(&self, node_name: &str) -> Option<Place> {
        let in_pool = |pool: &Pool| {
            let rows = &pool.spec.static_allocations;
            let index = rows.iter().position(|row| row.node_name == node_name)?;
            pool.places.get(index).cloned()
        };
        self.listed
            .get(node_name)
            .cloned()
            .or_else(|| self.pools.iter().find_map(in_pool))
    }

    /// The names of all nodes, sorted.
    pub fn nodes(&self) -> BTreeSet<&str> {
        let rows = self
            .pools
            .iter()
            .flat_map(|pool| &pool.spec.static_allocations);
        rows.map(|row| row.node_name.as_str())
            .filter(|name| !name.is_empty())
            .collect()
    }
}

impl Pool {
    /// Fails if the pool's name cannot be that of a CIDRPool or a network in Kubernetes.
    pub fn check_object_name(&self) -> Result<()> {
        let name = &self.name;
        if !is_object_name(name) {
            fail!(
                InvalidConfig,
                "pool {name}: Kubernetes names have only lowercase letters, digits, - and \
                    .: rename the pool"
            );
        }
        Ok(())
    }

    /// The rows with their cables.
    pub fn rows(&self) -> impl Iterator<Item = (&cidrpool::Row, &[Cable])> {
        let cables = self
            .cables
            .iter()
            .map(Vec::as_slice)
            .chain(std::iter::repeat([].as_slice()));
        self.spec.static_allocations.iter().zip(cables)
    }

    /// The `rail` of its network.
    pub fn number(&self) -> Option<u8> {
        Some(pool::number(self.rail?, self.plane))
    }

    /// Whether the pool is of IPv4, by its cidr, which has been checked.
    pub fn is_ipv4(&self) -> bool {
        !self.spec.cidr.contains(':')
    }

    /// Whether its links have no prefix.
    pub(crate) fn is_unnumbered(&self) -> bool {
        self.spec.is_unnumbered
    }

    /// Whether a leaf port of it is in a VRF.
    pub(crate) fn has_vrf(&self) -> bool {
        self.cables
            .iter()
            .flatten()
            .any(|cable| cable.vrf.is_some())
    }

    /// The allocation of each node, with its rail and its leaf ports.
    fn allocations(&self) -> Result<BTreeMap<String, Allocation>, Vec<Fault>> {
        let mut allocations = self.spec.plan("spec", &[], Wanted::All)?.allocations;
        for (row, cables) in self.rows() {
            if let Some(allocation) = allocations.get_mut(&row.node_name) {
                allocation.leaf_ports = leaf_ports(cables);
            }
        }
        allocations
            .values_mut()
            .for_each(|allocation| allocation.rail = self.number());
        Ok(allocations)
    }

    /// The rows that belong to a node, in their order.
    pub fn links(&self) -> Result<Vec<Link<'_>>> {
        let mut allocations = match self.allocations() {
            Ok(allocations) => allocations,
            Err(faults) => fail!(InvalidConfig, "pool {}: {}", self.name, some_of(&faults)),
        };
        let links = self.rows().filter_map(|(row, cables)| {
            let allocation = allocations.remove(&row.node_name)?;
            let host = allocation.first_free(|_| false)?;
            Some(Link {
                node_name: &row.node_name,
                allocation,
                host,
                cables,
            })
        });
        Ok(links.collect())
    }
}

/// Whether Kubernetes takes the name for an object: RFC 1123.
pub(crate) fn is_object_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let ends = [label.bytes().next(), label.bytes().next_back()];
        ends.iter().all(|end| end.is_some_and(is_inner))
            && label.bytes().all(|byte| is_inner(byte) || byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// Whether Kubernetes takes the name for a namespace: a label of RFC 1123.
pub fn is_namespace(name: &str) -> bool {
    name.len() <= 63 && !name.contains('.') && is_object_name(name)
}

/// One error for all faults.
pub fn refused(faults: Vec<Fault>) -> anyhow::Error {
    Refusal::from(faults).into()
}

/// A job holds all rails of a node, and will stop at one that lacks a pool.
fn incomplete(pools: &Pools, doubts: &mut Doubts) {
    let mut pools_of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (pool, allocations) in pools {
        allocations
            .keys()
            .for_each(|node_name| pools_of.entry(node_name).or_default().push(pool));
    }
    for (node_name, has) in pools_of.iter().filter(|(_, has)| has.len() < pools.len()) {
        doubts.push(Doubt::MissingRail, || {
            let lacks = pools
                .keys()
                .map(String::as_str)
                .filter(|pool| !has.contains(pool));
            let lacks = lacks.collect::<Vec<_>>().join(", ");
            Fault::whole(format!("node {node_name} has no prefix in {lacks}"))
                .remedy("add it there")
        });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::scheme::{Family, HostLink, Mode, Origin, Polarity, Scheme, Tiers};

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
                vrf: None,
                netplan: None,
            },
        };
        (0..2)
            .flat_map(|rail| places.map(|place| link(place, rail)))
            .collect()
    }

    /// The lines of these faults.
    pub fn lines(faults: Vec<Fault>) -> Vec<String> {
        faults.iter().map(ToString::to_string).collect()
    }

    /// `links[3]`.
    pub fn origin(number: usize) -> Origin {
        Origin {
            path: format!("links[{number}]"),
            ..Origin::default()
        }
    }

    /// The plan of these links with two tiers, checked.
    pub fn plan(mode: Mode, family: Family, links: &[HostLink]) -> Plan {
        checked(mode, family, links).0
    }

    /// Plan and allocations of these links, like [`plan`].
    pub fn checked(mode: Mode, family: Family, links: &[HostLink]) -> (Plan, Pools) {
        let scheme = Scheme {
            tiers: Tiers::Two,
            mode,
            family,
            first_octet: 172,
            polarity: Polarity::LeafOdd,
        };
        let mut plan = scheme.plan(links.to_vec(), &origin).unwrap();
        let pools = plan.check().unwrap();
        (plan, pools)
    }
}
