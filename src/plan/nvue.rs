//! The hosts' side of the leaves as NVUE commands of Cumulus Linux, a file for each leaf.
//!
//! What is left out, and why (NVIDIA's documentation of Cumulus Linux, below
//! docs.nvidia.com/networking-ethernet-software):
//!
//! | page | says |
//! | --- | --- |
//! | `nvue-reference/Set-and-Unset-Commands/Interface` | `description`, `link mtu` and `ip address` since 5.0 |
//! | `cumulus-linux/Whats-New/New-and-Changed-NVUE-Commands` (5.15) | `ip address` became `ipv4 address` and `ipv6 address` |
//! | `nvue-reference/Set-and-Unset-Commands/Neighbor-Discovery` | a port advertises itself as a router only where it is told to; `enable off` meant on up to 5.4, and is `state disabled` today: no command, for none means the same everywhere |
//! | `cumulus-linux/Layer-3/Address-Resolution-Protocol-ARP` | `arp_ignore` is such by default that a port answers for its own address only; NVUE has no command for it |
//! | `cumulus-linux/Layer-1-and-Switch-Ports/Interface-Configuration-and-Management` | a description has 256 characters at most, no apostrophes |
//! | `cumulus-linux/System-Configuration/NVIDIA-User-Experience-NVUE/NVUE-CLI` | `link mtu` takes 552 to 9216 |

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use ipnet::IpNet;

use super::{Cable, File, Link, Plan, Pool, refused};

/// The most that a port takes: what hosts and tunnels use must be less.
const MTU: u32 = 9216;

const HEAD: &str = "\
# Addresses are written as Cumulus Linux up to 5.14 takes them; from 5.15 on it is `ipv4 address` and `ipv6 address`:
#   sed -E 's/ ip address ([0-9.]+\\/)/ ipv4 address \\1/; s/ ip address / ipv6 address /'
# Ports that are split are so already, and none of them advertises itself as a router, which is the default.
";

/// A leaf's port, and what is at its other end.
#[derive(Default)]
struct Port<'a> {
    node_name: &'a str,
    interface: Option<&'a str>,
    /// With the pools that they are of.
    addresses: Vec<(IpNet, &'a str)>,
}

/// By the name of the leaf and of the port, in the order in which people count.
type Leaves<'a> = BTreeMap<&'a str, BTreeMap<Vec<Chunk<'a>>, (&'a str, Port<'a>)>>;

/// A file for each leaf.
pub fn write(plan: &Plan) -> Result<Vec<File>> {
    let mut leaves = Leaves::new();
    let mut faults = Vec::new();
    for pool in &plan.pools {
        for link in pool.links()? {
            if let Err(fault) = place(&mut leaves, pool, &link) {
                faults.push(format!("node {} in pool {}: {fault}", link.node_name, pool.name));
            }
        }
    }
    faults.extend(leaves.iter().flat_map(|(leaf, ports)| twice(leaf, ports.values())));
    if !faults.is_empty() {
        return Err(refused(&faults));
    }
    let file = |(leaf, ports): (&str, BTreeMap<_, (&str, Port<'_>)>)| File {
        name: format!("{leaf}.nvue"),
        text: text(leaf, ports.into_values()),
    };
    Ok(leaves.into_iter().map(file).collect())
}

/// Puts the link's gateway on the ports that its cables are in.
fn place<'a>(leaves: &mut Leaves<'a>, pool: &'a Pool, link: &Link<'a>) -> Result<(), String> {
    let Some(gateway) = link.allocation.gateway else {
        return Err("it has no gateway, which would be the address of the leaf's port".to_owned());
    };
    let address = IpNet::new_assert(gateway, link.allocation.prefix.prefix_len());
    if link.cables.is_empty() {
        return Err(unknown());
    }
    for Cable { interface, mtu, leaf, port, .. } in link.cables {
        let (Some(leaf), Some(port)) = (leaf, port) else { return Err(unknown()) };
        if let Some(mtu) = mtu.filter(|mtu| *mtu > MTU) {
            return Err(format!("its interface has MTU {mtu}, and the leaf's port {MTU} at most"));
        }
        let (_, there) = leaves.entry(leaf).or_default().entry(chunks(port)).or_insert_with(|| {
            let interface = interface.as_deref();
            (port, Port { node_name: link.node_name, interface, addresses: Vec::new() })
        });
        if there.node_name != link.node_name {
            return Err(format!("port {port} of {leaf} has the cable of node {}", there.node_name));
        }
        let same_family = |(other, _): &&(IpNet, &str)| other.addr().is_ipv4() == gateway.is_ipv4();
        if let Some((other, name)) = there.addresses.iter().find(same_family) {
            return Err(format!("port {port} of {leaf} has {other} of pool {name} already"));
        }
        there.addresses.push((address, &pool.name));
    }
    Ok(())
}

fn unknown() -> String {
    "nothing says in which port of which leaf its cable is: topology.json does, or `leafName` and `leafPort` of a \
     fabric file; CIDRPools and netplan files do not"
        .to_owned()
}

/// An address on two ports of a leaf: the leaf would use one of them.
fn twice<'a>(leaf: &str, ports: impl Iterator<Item = &'a (&'a str, Port<'a>)>) -> Vec<String> {
    let (mut seen, mut faults) = (HashMap::new(), Vec::new());
    for (name, port) in ports {
        for (address, pool) in &port.addresses {
            if let Some(other) = seen.insert(address, name) {
                faults.push(format!(
                    "node {} in pool {pool}: {address} would be on the ports {other} and {name} of {leaf}",
                    port.node_name
                ));
            }
        }
    }
    faults
}

fn text<'a>(leaf: &str, ports: impl Iterator<Item = (&'a str, Port<'a>)>) -> String {
    let mut text = format!("# {leaf}: the ports of hosts\n{HEAD}");
    for (name, Port { node_name, interface, addresses }) in ports {
        let mut set = |what: &str| text.push_str(&format!("nv set interface {name} {what}\n"));
        let end = interface.map(|interface| format!(":{interface}")).unwrap_or_default();
        set(&format!("description {node_name}{end}"));
        set(&format!("link mtu {MTU}"));
        for (address, _) in addresses {
            set(&format!("ip address {address}"));
        }
    }
    text.push_str("# nv config apply\n");
    text
}

/// A part of a name: `swp2` stands before `swp10`.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Chunk<'a> {
    /// The value first, then the digits, for `01` is not `1`.
    Number(u64, &'a str),
    Text(&'a str),
}

fn chunks(mut name: &str) -> Vec<Chunk<'_>> {
    let mut chunks = Vec::new();
    while let Some(first) = name.chars().next() {
        let is_number = first.is_ascii_digit();
        let end = name.find(|c: char| c.is_ascii_digit() != is_number).unwrap_or(name.len());
        let (chunk, rest) = name.split_at(end);
        chunks.push(match chunk.parse() {
            Ok(number) if is_number => Chunk::Number(number, chunk),
            _ => Chunk::Text(chunk),
        });
        name = rest;
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::scheme::{Family, HostLink, Mode};
    use crate::plan::tests::{cabled, plan};

    fn written(mode: Mode, family: Family, links: &[HostLink]) -> Result<Vec<File>> {
        write(&plan(mode, family, links))
    }

    #[test]
    fn the_commands_of_a_leaf_are_these() {
        let files = written(Mode::None, Family::Dual, &cabled()).unwrap();
        let names: Vec<_> = files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["leaf-su1-r1.nvue", "leaf-su1-r2.nvue", "leaf-su2-r1.nvue", "leaf-su2-r2.nvue"]);
        let expected = format!(
            "# leaf-su2-r1: the ports of hosts\n{HEAD}\
             nv set interface swp31s0 description worker-gpu-62:rail0\n\
             nv set interface swp31s0 link mtu 9216\n\
             nv set interface swp31s0 ip address 172.16.1.61/31\n\
             nv set interface swp31s0 ip address fd02:0:0:11e::2/64\n\
             # nv config apply\n"
        );
        assert_eq!(files[2].text, expected);
    }

    #[test]
    fn ports_are_in_the_order_in_which_people_count() {
        let mut ports = ["swp10", "swp2s1", "swp2s0", "swp2", "swp1", "swp01", "Ethernet1/10", "Ethernet1/9"];
        ports.sort_by_cached_key(|port| chunks(port));
        assert_eq!(
            ports,
            ["Ethernet1/9", "Ethernet1/10", "swp01", "swp1", "swp2", "swp2s0", "swp2s1", "swp10"]
        );
    }

    /// With `hwplb` the leaf of each plane has the same address, each on its own link to the NIC.
    #[test]
    fn each_plane_has_its_leaf() {
        let mut links = cabled();
        links.truncate(1);
        links.push(HostLink { plane: 1, ..links[0].clone() });
        links[1].cable.leaf = Some("leaf-p2-su1-r1".into());
        let files = written(Mode::Hwplb, Family::Ipv4, &links).unwrap();
        assert_eq!(files.len(), 2);
        assert!(files.iter().all(|file| file.text.contains("swp1s0 ip address 172.16.0.1/31\n")));
        links[1].cable.leaf = links[0].cable.leaf.clone();
        links[1].cable.port = Some("swp1s1".into());
        let error = written(Mode::Hwplb, Family::Ipv4, &links).unwrap_err().to_string();
        assert!(
            error.contains("172.16.0.1/31 would be on the ports swp1s0 and swp1s1 of leaf-su1-r1"),
            "{error}"
        );
    }

    #[test]
    fn a_row_without_a_port_is_told_with_node_and_pool() {
        let mut links = cabled();
        links[0].cable.port = None;
        links[3].cable = Cable::default();
        let error = written(Mode::None, Family::Ipv4, &links).unwrap_err().to_string();
        assert!(
            error.contains("\n  node worker-gpu-0 in pool rail-0: nothing says in which port"),
            "{error}"
        );
        assert!(error.contains("\n  node worker-gpu-62 in pool rail-1: nothing says"), "{error}");
        assert!(error.contains("topology.json does"), "{error}");
    }

    #[test]
    fn a_port_has_one_cable_and_no_more_mtu_than_it_can() {
        let mut plan = plan(Mode::None, Family::Ipv4, &cabled());
        plan.pools[0].cables[1] = plan.pools[0].cables[0].clone();
        plan.pools[1].cables[0] = plan.pools[0].cables[0].clone();
        plan.pools[1].cables[1][0].mtu = Some(9600);
        let error = write(&plan).unwrap_err().to_string();
        for told in [
            "node worker-gpu-62 in pool rail-0: port swp1s0 of leaf-su1-r1 has the cable of node worker-gpu-0",
            "node worker-gpu-0 in pool rail-1: port swp1s0 of leaf-su1-r1 has 172.16.0.1/31 of pool rail-0 already",
            "node worker-gpu-62 in pool rail-1: its interface has MTU 9600",
        ] {
            assert!(error.contains(told), "{told}: {error}");
        }
    }
}
