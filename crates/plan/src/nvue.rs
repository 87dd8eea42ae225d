//! NVUE commands of Cumulus Linux for the hosts' side of the leaves, in a file for each leaf.
//!
//! The commands, and the ones that are left out, follow NVIDIA's documentation of Cumulus Linux,
//! below docs.nvidia.com/networking-ethernet-software:
//!
//! | page | says |
//! | --- | --- |
//! | `nvue-reference/Set-and-Unset-Commands/Interface` | `description`, `link mtu` and `ip address` since 5.0 |
//! | `cumulus-linux/Whats-New/New-and-Changed-NVUE-Commands` (5.15) | `ip address` became `ipv4 address` and `ipv6 address`, and `ip vrf` became `vrf` |
//! | `cumulus-linux/Layer-3/VRFs/Virtual-Routing-and-Forwarding-VRF` | `vrf NAME table auto`, `interface PORT ip vrf NAME` |
//! | `nvue-reference/Set-and-Unset-Commands/Neighbor-Discovery` | a port advertises itself as a router only if a command says so; `enable off` meant on up to 5.4, and is `state disabled` today: no command, for none means the same everywhere |
//! | `cumulus-linux/Layer-3/Address-Resolution-Protocol-ARP` | `arp_ignore` is such by default that a port answers for its own address only; NVUE has no command for it |
//! | `cumulus-linux/Layer-1-and-Switch-Ports/Interface-Configuration-and-Management` | a description has 256 characters at most, no apostrophes |
//! | `cumulus-linux/System-Configuration/NVIDIA-User-Experience-NVUE/NVUE-CLI` | `link mtu` takes 552 to 9216 |

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::Result;
use ipnet::IpNet;

use crate::natural::{Chunk, chunks};
use crate::plan::{Cable, File, Link, Plan, Pool, refused};
use rail_cni::fault::Fault;

/// The largest MTU of a port, in bytes. Hosts and tunnels must use less.
const MTU: u32 = 9216;

const HEAD: &str = "\
# Commands are those of Cumulus Linux up to 5.14. From 5.15 on it is `ipv4 address`, `ipv6 address` and `vrf`:
#   sed -E 's/ ip address ([0-9.]+\\/)/ ipv4 address \\1/; s/ ip address / ipv6 address /; s/ ip vrf / vrf /'
# Ports that are split are so already, and none of them advertises itself as a router, which is the default.
";

const OF_VRFS: &str = "\
# The links of these VRFs to the spines are not in this plan.
";

/// A leaf's port and the other end of its cable.
#[derive(Default)]
struct Port<'a> {
    node_name: &'a str,
    interface: Option<&'a str>,
    vrf: Option<&'a str>,
    /// The addresses of the port, with the names of their pools.
    addresses: Vec<(IpNet, &'a str)>,
}

/// Ports by the name of their leaf and by their own, in natural order.
type Leaves<'a> = BTreeMap<&'a str, BTreeMap<Vec<Chunk<'a>>, (&'a str, Port<'a>)>>;

/// Writes a file for each leaf.
pub fn write(plan: &Plan) -> Result<Vec<File>> {
    plan.refuse_pools(
        Pool::is_unnumbered,
        "an unnumbered port has no address; its leaf reaches the hosts by BGP or by routes: use --to csv for them",
    )?;
    let mut leaves = Leaves::new();
    let mut faults = Vec::new();
    let mut unknown = BTreeSet::new();
    for pool in &plan.pools {
        for link in pool.links()? {
            if !link.cables.is_empty() && link.cables.iter().all(has_port) {
                let of = || format!("node {} in pool {}", link.node_name, pool.name);
                faults.extend(
                    place(&mut leaves, pool, &link)
                        .err()
                        .map(|fault| fault.of(of())),
                );
            // Both families of a rail have the same cables.
            } else if pool.rail.is_none()
                || unknown.insert((link.node_name.to_owned(), pool.number()))
            {
                let of = format!("node {} in pool {}", link.node_name, pool.name);
                faults.push(no_port().of(of));
            }
        }
    }
    faults.extend(
        leaves
            .iter()
            .flat_map(|(leaf, ports)| twice(leaf, ports.values())),
    );
    if !faults.is_empty() {
        return Err(refused(faults));
    }
    let file = |(leaf, ports): (&str, BTreeMap<_, (&str, Port<'_>)>)| File {
        name: format!("{leaf}.nvue"),
        text: text(leaf, ports.into_values()),
    };
    Ok(leaves.into_iter().map(file).collect())
}

fn has_port(cable: &Cable) -> bool {
    cable.leaf.is_some() && cable.port.is_some()
}

/// Puts the link's gateway on the ports of its cables.
fn place<'a>(leaves: &mut Leaves<'a>, pool: &'a Pool, link: &Link<'a>) -> Result<(), Fault> {
    let wrong = |problem: String| Err(Fault::whole(problem));
    let Some(gateway) = link.allocation.gateway else {
        return wrong(
            "it has no gateway, which would be the address of the leaf's port".to_owned(),
        );
    };
    let address = IpNet::new_assert(gateway, link.allocation.prefix.prefix_len());
    for Cable {
        interface,
        mtu,
        leaf,
        port,
        vrf,
        ..
    } in link.cables
    {
        let (Some(leaf), Some(port)) = (leaf, port) else {
            return Err(no_port());
        };
        if let Some(mtu) = mtu.filter(|mtu| *mtu > MTU) {
            return wrong(format!(
                "its interface has MTU {mtu}, and the leaf's port can have {MTU} at most"
            ));
        }
        if !is_port(port) {
            let problem =
                format!("port {port} of {leaf} is none of Cumulus Linux, such as swp1 or swp1s0");
            return Err(Fault::whole(problem).remedy("use --to csv for switches of other systems"));
        }
        let (_, there) = leaves
            .entry(leaf)
            .or_default()
            .entry(chunks(port))
            .or_insert_with(|| {
                let interface = interface.as_deref();
                let vrf = vrf.as_deref();
                (
                    port,
                    Port {
                        node_name: link.node_name,
                        interface,
                        vrf,
                        addresses: Vec::new(),
                    },
                )
            });
        if there.node_name != link.node_name {
            return wrong(format!(
                "port {port} of {leaf} has the cable of node {}",
                there.node_name
            ));
        }
        let same_family = |(other, _): &&(IpNet, &str)| other.addr().is_ipv4() == gateway.is_ipv4();
        if let Some((other, name)) = there.addresses.iter().find(same_family) {
            return wrong(format!(
                "port {port} of {leaf} has {other} of pool {name} already"
            ));
        }
        there.addresses.push((address, &pool.name));
    }
    Ok(())
}

/// A port has a number, counted from 1, and another one, counted from 0, if it is split. To NVUE,
/// swp1-2 and swp1,swp2 are two ports, and both would get the address.
fn is_port(name: &str) -> bool {
    let is_number = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_digit())
            && (text == "0" || !text.starts_with('0'))
    };
    let numbers = name.strip_prefix("swp").unwrap_or_default();
    let (port, split) = numbers.split_once('s').unwrap_or((numbers, "0"));
    port != "0" && is_number(port) && is_number(split)
}

fn no_port() -> Fault {
    let remedy = "topology.json, or `leafName` and `leafPort` of a fabric file do, CIDRPools and netplan files do not";
    Fault::whole("no source says which port of which leaf its cable is in").remedy(remedy)
}

/// Finds an address on two ports of a leaf, which would use only one of them.
fn twice<'a>(leaf: &str, ports: impl Iterator<Item = &'a (&'a str, Port<'a>)>) -> Vec<Fault> {
    let (mut seen, mut faults) = (HashMap::new(), Vec::new());
    for (name, port) in ports {
        for (address, pool) in &port.addresses {
            if let Some(other) = seen.insert(address, name) {
                let problem =
                    format!("{address} would be on the ports {other} and {name} of {leaf}");
                faults.push(
                    Fault::whole(problem).of(format!("node {} in pool {pool}", port.node_name)),
                );
            }
        }
    }
    faults
}

fn text<'a>(leaf: &str, ports: impl Iterator<Item = (&'a str, Port<'a>)>) -> String {
    let mut text = format!("# {leaf}: the ports of hosts\n{HEAD}");
    let ports: Vec<_> = ports.collect();
    let vrfs: BTreeSet<&str> = ports.iter().filter_map(|(_, port)| port.vrf).collect();
    if !vrfs.is_empty() {
        text.push_str(OF_VRFS);
    }
    vrfs.iter()
        .for_each(|vrf| text.push_str(&format!("nv set vrf {vrf} table auto\n")));
    for (
        name,
        Port {
            node_name,
            interface,
            vrf,
            addresses,
        },
    ) in ports
    {
        let mut set = |what: &str| text.push_str(&format!("nv set interface {name} {what}\n"));
        let end = interface
            .map(|interface| format!(":{interface}"))
            .unwrap_or_default();
        set(&format!("description {node_name}{end}"));
        set(&format!("link mtu {MTU}"));
        if let Some(vrf) = vrf {
            set(&format!("ip vrf {vrf}"));
        }
        for (address, _) in addresses {
            set(&format!("ip address {address}"));
        }
    }
    text.push_str("# nv config apply\n");
    text
}

#[cfg(test)]
mod tests;
