//! The rows of the plan by leaf and port, checked for what a leaf cannot have.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use anyhow::Result;
use ipnet::IpNet;
use serde::Serialize;

use crate::cables::{self, Row};
use crate::natural;
use crate::plan::{Plan, Pool, Pools, refused};
use rail_cni::fault::Fault;

/// The limits of a switch's operating system.
#[derive(Debug)]
pub struct System {
    /// Its name in messages.
    pub name: &'static str,
    /// The largest MTU of a port, in bytes.
    pub max_mtu: u32,
    /// Whether it has ports with this name.
    pub is_port: fn(&str) -> bool,
    /// The form of such names, in messages.
    pub ports: &'static str,
    /// The beginning of the names of all its VRFs.
    pub vrf_prefix: &'static str,
}

/// A leaf and its ports with cables to hosts.
#[derive(Debug)]
pub struct Leaf<'a> {
    /// The name of the leaf.
    pub name: &'a str,
    /// In the order in which people count: `swp2` before `swp10`.
    pub ports: Vec<Port<'a>>,
}

/// A leaf's port and its cable. Templates have the members under these names.
#[derive(Debug, Serialize)]
pub struct Port<'a> {
    /// The name of the port.
    pub port: &'a str,
    /// The VRF of the port; none is the switch's default VRF.
    pub vrf: Option<&'a str>,
    /// The name of the node.
    pub node: &'a str,
    /// The netdev of the node.
    pub interface: Option<&'a str>,
    /// The MTU of that netdev, in bytes.
    pub mtu: Option<u32>,
    /// The rail, from 0.
    pub rail: Option<u8>,
    /// The plane of the rail, from 0; none if the rail has no planes.
    pub plane: Option<u8>,
    /// A row for each family, with the addresses of both ends.
    pub addresses: &'a [Row<'a>],
}

/// The rows of a plan, sorted by leaf and port.
#[derive(Debug)]
pub struct Leaves<'a> {
    rows: Vec<Row<'a>>,
}

impl<'a> Leaves<'a> {
    /// Groups and checks the rows of a plan. The pools are those of [`Plan::check`].
    ///
    /// # Errors
    ///
    /// Names each node without a leaf port, each row without the address of the leaf, each port with
    /// two cables, each address on two ports of a leaf, and what the system cannot have.
    pub fn new(plan: &'a Plan, pools: &Pools, system: Option<&System>) -> Result<Leaves<'a>> {
        plan.refuse_pools(
            Pool::is_unnumbered,
            "an unnumbered port has no address; its leaf reaches the hosts by BGP or by routes: use --to csv for them",
        )?;
        let mut rows = cables::rows(plan, pools);
        // The sort is stable: the rows of a port stay in the order of the pools.
        rows.sort_by(compare);
        let leaves = Leaves { rows };
        let faults = leaves.faults(system);
        if !faults.is_empty() {
            return Err(refused(faults));
        }
        Ok(leaves)
    }

    /// The leaves in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = Leaf<'_>> {
        self.rows.chunk_by(is_same_leaf).filter_map(Leaf::new)
    }

    fn faults(&self, system: Option<&System>) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut uncabled_rails = HashSet::new();
        for leaf_rows in self.rows.chunk_by(is_same_leaf) {
            for port_rows in leaf_rows.chunk_by(is_same_port) {
                for (number, row) in port_rows.iter().enumerate() {
                    // Both families of a rail have the same cables.
                    let is_cabled = row.leaf.is_some() && row.port.is_some();
                    let rail = (row.node, row.rail, row.plane);
                    if !is_cabled && row.rail.is_some() && !uncabled_rails.insert(rail) {
                        continue;
                    }
                    if let Err(fault) = check(row, &port_rows[..number], system) {
                        faults.push(fault.of(subject(row)));
                    }
                }
            }
            faults.append(&mut shared_addresses(leaf_rows));
        }
        faults
    }
}

impl<'a> Leaf<'a> {
    /// The leaf of these rows; none if they name no leaf or port.
    fn new(rows: &'a [Row<'a>]) -> Option<Leaf<'a>> {
        let name = rows.first()?.leaf?;
        let mut ports = Vec::new();
        for rows in rows.chunk_by(is_same_port) {
            let cable = rows.first()?;
            ports.push(Port {
                port: cable.port?,
                vrf: cable.vrf,
                node: cable.node,
                interface: cable.interface,
                mtu: cable.mtu,
                rail: cable.rail,
                plane: cable.plane,
                addresses: rows,
            });
        }
        Some(Leaf { name, ports })
    }
}

fn compare(row: &Row<'_>, other: &Row<'_>) -> Ordering {
    let by_leaf = row.leaf.cmp(&other.leaf);
    let port = row.port.unwrap_or_default();
    let other_port = other.port.unwrap_or_default();
    by_leaf.then_with(|| natural::compare(port, other_port))
}

fn is_same_leaf(row: &Row<'_>, next: &Row<'_>) -> bool {
    row.leaf == next.leaf
}

fn is_same_port(row: &Row<'_>, next: &Row<'_>) -> bool {
    row.port == next.port
}

/// Fails if the port cannot have the row besides the earlier ones, or the system cannot have it.
fn check(row: &Row<'_>, earlier_rows: &[Row<'_>], system: Option<&System>) -> Result<(), Fault> {
    let (Some(leaf), Some(port)) = (row.leaf, row.port) else {
        let remedy = "topology.json, or `leafName` and `leafPort` of a fabric file do, CIDRPools and netplan files do not";
        let problem = "no source says which port of which leaf its cable is in";
        return Err(Fault::whole(problem).remedy(remedy));
    };
    if row.gateway.is_none() {
        let problem = "it has no gateway, which would be the address of the leaf's port";
        return Err(Fault::whole(problem));
    }
    if let Some(system) = system {
        check_limits(row, leaf, port, system)?;
    }
    for earlier_row in earlier_rows {
        let node = earlier_row.node;
        if node != row.node {
            let problem = format!("port {port} of {leaf} has the cable of node {node}");
            return Err(Fault::whole(problem));
        }
        let address = leaf_address(earlier_row).filter(|_| earlier_row.family == row.family);
        if let Some(address) = address {
            let pool = earlier_row.pool;
            let problem = format!("port {port} of {leaf} has {address} of pool {pool} already");
            return Err(Fault::whole(problem));
        }
    }
    Ok(())
}

fn check_limits(row: &Row<'_>, leaf: &str, port: &str, system: &System) -> Result<(), Fault> {
    let System {
        name,
        max_mtu,
        is_port,
        ports,
        vrf_prefix,
    } = system;
    if let Some(mtu) = row.mtu.filter(|mtu| mtu > max_mtu) {
        return Err(Fault::whole(format!(
            "its interface has MTU {mtu}, and the leaf's port can have {max_mtu} at most"
        )));
    }
    if !is_port(port) {
        let problem = format!("port {port} of {leaf} is none of {name}, such as {ports}");
        let remedy =
            "name it as the switch does, or write a template for another system (--template)";
        return Err(Fault::whole(problem).remedy(remedy));
    }
    if let Some(vrf) = row.vrf.filter(|vrf| !vrf.starts_with(vrf_prefix)) {
        let problem = format!("VRF {vrf} of {leaf} is none of {name}");
        let remedy = format!("its name must begin with {vrf_prefix}");
        return Err(Fault::whole(problem).remedy(remedy));
    }
    Ok(())
}

/// Finds an address on two ports of a leaf, which would use only one of them.
fn shared_addresses(leaf_rows: &[Row<'_>]) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut ports_by_address = HashMap::new();
    for row in leaf_rows {
        let (Some(leaf), Some(port), Some(address)) = (row.leaf, row.port, leaf_address(row))
        else {
            continue;
        };
        match ports_by_address.insert(address, port) {
            Some(other_port) if other_port != port => {
                let problem =
                    format!("{address} would be on the ports {other_port} and {port} of {leaf}");
                faults.push(Fault::whole(problem).of(subject(row)));
            }
            _ => (),
        }
    }
    faults
}

/// The address of the leaf's port, with the length of the prefix.
fn leaf_address(row: &Row<'_>) -> Option<IpNet> {
    Some(IpNet::new_assert(row.gateway?, row.prefix_length))
}

fn subject(row: &Row<'_>) -> String {
    format!("node {} in pool {}", row.node, row.pool)
}

#[cfg(test)]
mod tests;
