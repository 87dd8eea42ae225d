//! netplan files of the hosts: a fabric that was addressed by hand is read from them, and a plan is
//! written as them.
//!
//! `files` finds the files of each host, `host` finds the rails among its interfaces, `pools` makes
//! pools of the rails of all hosts. An
//! interface is written with the addresses, routes and MTU of the plan, and with the other keys
//! that its file had.

mod files;
mod host;
mod pools;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use anyhow::Result;
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use crate::plan::{Cable, Ethernet, File, Plan, Pool, refused};
use crate::refusal::Doubt;
use crate::yaml;
use files::{Found, Host};
use host::Notes;
pub use host::{network, of_this_host};
use rail_cni::fault::{Fault, Place};

/// The plan of hosts. A path is a host's file `NODE.yaml`, or a directory with such files and with
/// directories of hosts (`NODE/*.yaml`, `NODE/etc/netplan/*.yaml`). `host_read` is called after each
/// host, with the number of all.
pub fn read(paths: &[String], mut host_read: impl FnMut(usize)) -> Result<Plan> {
    let Found { hosts, ignored } = files::find(paths).map_err(refused)?;
    let (mut notes, mut rails) = (Notes::default(), Vec::new());
    let total = hosts.len();
    for (name, files) in hosts {
        let host = Host::read(name, &files, &mut notes.faults);
        let lost_before = notes.lost_rails.len();
        let host_rails = host::rails(&host, &mut notes);
        if host_rails.is_empty() && notes.lost_rails.len() == lost_before {
            let file = files.into_iter().next().unwrap_or_default();
            let fault = Fault::whole("the host has no rails").at(Place::file(file));
            notes.lost_rails.push(fault);
        }
        rails.extend(host_rails);
        host_read(total);
    }
    let mut plan = pools::plan(rails, &mut notes);
    if plan.pools.is_empty() && notes.faults.is_empty() {
        let problem = "no interface is a rail: a rail has a prefix of its own, and a route to the network of all rails by a \
                       gateway in it; \"source\": \"host\" serves other hosts as they are (docs/host-addresses.md)";
        notes
            .faults
            .push(Fault::whole(problem).at(Place::file(paths.join(", "))));
        let reasons = notes.warnings();
        notes.faults.extend(reasons.into_iter().map(Fault::whole));
        notes.faults.append(&mut notes.lost_rails);
    }
    for lost in &notes.lost_rails {
        let is_told = notes.faults.iter().any(|fault| fault.place == lost.place);
        if !plan.pools.is_empty() && !is_told {
            plan.doubts.push(Doubt::MissingRail, || lost.clone());
        }
    }
    plan.warnings = notes.warnings();
    if let Some(first) = ignored.first() {
        let others = if ignored.len() > 1 {
            format!(" and {} others", ignored.len() - 1)
        } else {
            String::new()
        };
        plan.warnings.push(format!(
            "{first}{others}: left out, because netplan reads *.yaml"
        ));
    }
    if !notes.faults.is_empty() {
        return Err(refused(notes.faults));
    }
    only_what_is_not_planned(&mut plan)?;
    Ok(plan)
}

/// A file for each node.
pub fn write(plan: &Plan) -> Result<Vec<File>> {
    let has_inet6 = |pool: &Pool| {
        pool.is_ipv4()
            && pool
                .spec
                .static_allocations
                .iter()
                .any(|row| row.gateway.contains(':'))
    };
    plan.refuse_pools(
        has_inet6,
        "netplan has no IPv4 routes by an IPv6 gateway: rail-cni sets them in pods, from --to store",
    )?;
    let file = |(node_name, interfaces): (&str, Vec<Interface<'_>>)| {
        let mut text = "network:\n  version: 2\n  ethernets:\n".to_owned();
        for interface in interfaces {
            let Interface { id, kept, .. } = interface;
            let mut keys = interface.keys();
            keys.extend(kept.cloned().unwrap_or_default());
            text.push_str(&format!("    {}:\n", yaml::scalar(id)));
            yaml::write(&mut text, &Value::Object(keys), 6);
        }
        File {
            name: format!("{node_name}.yaml"),
            text,
        }
    };
    Ok(interfaces(plan)?.into_iter().map(file).collect())
}

/// An interface of a node in the plan.
struct Interface<'a> {
    id: &'a str,
    addresses: Vec<IpNet>,
    routes: Vec<Value>,
    mtu: Option<u32>,
    kept: Option<&'a Map<String, Value>>,
}

impl Interface<'_> {
    /// The keys that the plan gives it.
    fn keys(&self) -> Map<String, Value> {
        let mut keys = Map::new();
        keys.insert(
            "addresses".to_owned(),
            self.addresses.iter().map(IpNet::to_string).collect(),
        );
        if !self.routes.is_empty() {
            keys.insert("routes".to_owned(), Value::from(self.routes.clone()));
        }
        if let Some(mtu) = self.mtu {
            keys.insert("mtu".to_owned(), mtu.into());
        }
        keys
    }
}

/// The nodes in the order of their names, their interfaces in the order of the pools. Both families
/// of a rail have one interface.
fn interfaces(plan: &Plan) -> Result<Vec<(&str, Vec<Interface<'_>>)>> {
    let mut nodes: Vec<(&str, Vec<Interface<'_>>)> = plan
        .nodes()
        .into_iter()
        .map(|node_name| (node_name, Vec::new()))
        .collect();
    let places: HashMap<&str, usize> = nodes
        .iter()
        .enumerate()
        .map(|(place, (node_name, _))| (*node_name, place))
        .collect();
    let (mut faults, mut told) = (Vec::new(), HashSet::new());
    for pool in &plan.pools {
        for link in pool.links()? {
            let of_node = places
                .get(link.node_name)
                .and_then(|place| nodes.get_mut(*place));
            let Some((node_name, interfaces)) = of_node else {
                continue;
            };
            let (id, cable) = match interface_of(link.cables) {
                Ok(found) => found,
                Err(fault) => {
                    // Both families of a rail have the same cables.
                    if pool.rail.is_none()
                        || told.insert((link.node_name.to_owned(), pool.number()))
                    {
                        faults.push(fault.of(format!("node {node_name} in pool {}", pool.name)));
                    }
                    continue;
                }
            };
            let place = interfaces
                .iter()
                .position(|one| one.id == id)
                .unwrap_or(interfaces.len());
            if place == interfaces.len() {
                let kept = cable.netplan.as_ref().map(|ethernet| &*ethernet.keys);
                let (addresses, routes) = (Vec::new(), Vec::new());
                interfaces.push(Interface {
                    id,
                    addresses,
                    routes,
                    mtu: cable.mtu,
                    kept,
                });
            }
            let Some(interface) = interfaces.get_mut(place) else {
                continue;
            };
            interface.addresses.push(IpNet::new_assert(
                link.host,
                link.allocation.prefix.prefix_len(),
            ));
            if let Some(via) = link.allocation.gateway {
                let is_unnumbered = pool.spec.is_unnumbered;
                let route = |to: &rail_cni::pool::To| match is_unnumbered {
                    true => json!({"to": to.dst, "via": via, "on-link": true}),
                    false => json!({"to": to.dst, "via": via}),
                };
                interface
                    .routes
                    .extend(link.allocation.routes.iter().map(route));
            }
        }
    }
    if faults.is_empty() {
        Ok(nodes)
    } else {
        Err(refused(faults))
    }
}

/// The interface of a row, by its key in netplan files. An address is on one interface.
fn interface_of(cables: &[Cable]) -> Result<(&str, &Cable), Fault> {
    let mut found: Option<(&str, &Cable)> = None;
    for cable in cables {
        let id = cable
            .netplan
            .as_ref()
            .map(|ethernet| &ethernet.id)
            .or(cable.interface.as_ref());
        match (id, found) {
            (None, _) => (),
            (Some(id), None) => found = Some((id, cable)),
            (Some(id), Some((other, _))) if id == other => (),
            (Some(id), Some((other, _))) => {
                let problem = "it has a cable to each plane, so its address would be on";
                return Err(Fault::whole(format!("{problem} {other} or on {id}")));
            }
        }
    }
    found.ok_or_else(|| {
        let remedy = "topology.json, or `hostInterface` of a fabric file do, CIDRPools do not";
        Fault::whole("no source says which interface it is").remedy(remedy)
    })
}

/// Removes from the kept keys those that the plan would write by itself.
fn only_what_is_not_planned(plan: &mut Plan) -> Result<()> {
    let mut planned: HashMap<(String, String), Map<String, Value>> = HashMap::new();
    for (node_name, interfaces) in interfaces(plan)? {
        for interface in interfaces {
            planned.insert(
                (node_name.to_owned(), interface.id.to_owned()),
                interface.keys(),
            );
        }
    }
    for Pool { spec, cables, .. } in &mut plan.pools {
        for (row, cables) in spec.static_allocations.iter().zip(cables) {
            for cable in cables {
                let Some(Ethernet { id, keys }) = cable.netplan.as_deref_mut() else {
                    continue;
                };
                if let Some(planned) = planned.get(&(row.node_name.clone(), id.clone())) {
                    Rc::make_mut(keys).retain(|key, value| planned.get(key) != Some(value));
                }
                if keys.is_empty() && cable.interface.as_ref() == Some(id) {
                    cable.netplan = None;
                }
            }
        }
    }
    Ok(())
}
