//! Compares the rails of node.json's PFs with other evidence. Rails that are swapped there look
//! like devices of the wrong resource.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use serde_json::{Value, json};

use rail_cni::files;
use rail_cni::node::Node;
use rail_cni::pool::{rail_in, store};
use rail_cni::sysfs::{DeviceId, Function};
use rail_netlink::link;
use rail_netlink::{Socket, address};
use rail_plan::netplan;

/// The directory of this host's netplan files.
const NETPLAN: &str = "/etc/netplan";
/// The kubelet's list of devices, by resource.
const KUBELET: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

/// A rail that has another PF in node.json than elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slip {
    /// The rail.
    pub rail: u8,
    /// As node.json has it.
    pub listed: String,
    /// PCI address of the other one.
    pub expected: String,
    /// The source of the evidence, as `the address 172.16.0.0 of ens1f0`.
    pub by: String,
}

impl fmt::Display for Slip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Slip {
            rail,
            listed,
            expected,
            by,
        } = self;
        write!(
            f,
            "node.json has {listed} for rail {rail}, and by {by} it is {expected}"
        )
    }
}

/// Evidence that a PF belongs to a rail.
#[derive(Clone, Debug)]
struct Evidence {
    rail: u8,
    /// PCI address.
    pf: String,
    by: String,
}

/// Rails whose PF is another one by the plan's addresses on this host or by the devices of the
/// rail's resource; where neither tells of a rail, by the order of the PCI addresses.
pub fn slips(node: &Node) -> Vec<Slip> {
    let listed = listed(node);
    let mut evidence = by_addresses(node);
    evidence.extend(by_resources(node, Path::new(KUBELET)));
    let order = if node.rails_in_pci_order {
        by_pci(&listed)
    } else {
        Vec::new()
    };
    judge(&listed, evidence, order)
}

/// The rails of node.json whose PF is there: rail, as it is written, PCI address.
fn listed(node: &Node) -> Vec<(u8, String, String)> {
    let address = |pf: &str| {
        let found = match DeviceId::parse(pf) {
            Some(id) => Function::find(&node.sysfs_root, &id),
            None => Function::of_netdev(&node.sysfs_root, pf),
        };
        Some(found.ok().flatten()?.id)
    };
    node.rails
        .iter()
        .filter_map(|one| Some((one.rail, one.pf.clone(), address(&one.pf)?)))
        .collect()
}

fn judge(
    listed: &[(u8, String, String)],
    evidence: Vec<Evidence>,
    order: Vec<Evidence>,
) -> Vec<Slip> {
    let known: BTreeSet<u8> = evidence.iter().map(|one| one.rail).collect();
    let order = order.into_iter().filter(|one| !known.contains(&one.rail));
    let mut slips: Vec<Slip> = Vec::new();
    for Evidence { rail, pf, by } in evidence.into_iter().chain(order) {
        let ours: Vec<_> = listed
            .iter()
            .filter(|(listed, ..)| *listed == rail)
            .collect();
        let is_told = slips
            .iter()
            .any(|slip| (slip.rail, &slip.expected) == (rail, &pf));
        if let ([(_, listed, _)], false) = (
            &ours[..],
            is_told || ours.iter().any(|(.., one)| *one == pf),
        ) {
            slips.push(Slip {
                rail,
                listed: listed.clone(),
                expected: pf,
                by,
            });
        }
    }
    slips
}

/// Empty where a rail has two PFs, or a PF two rails: then they do not count alike.
fn by_pci(listed: &[(u8, String, String)]) -> Vec<Evidence> {
    let rails: BTreeSet<u8> = listed.iter().map(|(rail, ..)| *rail).collect();
    // A domain can have more digits than another.
    let pfs: BTreeSet<(usize, &String)> = listed.iter().map(|(.., pf)| (pf.len(), pf)).collect();
    if rails.len() != listed.len() || pfs.len() != listed.len() {
        return Vec::new();
    }
    let by = || "the order of the PCI addresses".to_owned();
    rails
        .into_iter()
        .zip(pfs)
        .map(|(rail, (_, pf))| Evidence {
            rail,
            pf: pf.clone(),
            by: by(),
        })
        .collect()
}

/// Netplan files and netdevs of a host that was addressed for its rails: a PF with an address of a
/// rail's prefix.
fn by_addresses(node: &Node) -> Vec<Evidence> {
    let mut found: Vec<(String, IpAddr, &str)> = Vec::new();
    let of_netplan = netplan::of_this_host(Path::new(NETPLAN)).into_iter();
    found.extend(of_netplan.map(|(netdev, address)| (netdev, address, " in /etc/netplan")));
    if let Ok(mut host) = Socket::open() {
        let is_port = |link: &link::Link| matches!(Function::of_netdev(&node.sysfs_root, &link.name), Ok(Some(function)) if !function.is_vf());
        for link in link::all(&mut host)
            .unwrap_or_default()
            .into_iter()
            .filter(is_port)
        {
            let addresses = address::all(&mut host, link.index)
                .unwrap_or_default()
                .into_iter();
            found.extend(addresses.map(|address| (link.name.clone(), address.net.addr(), "")));
        }
    }
    let mut evidence = Vec::new();
    for (pool, allocation) in store::allocations(node) {
        let Some(rail) = allocation.rail.or_else(|| rail_in(&pool)) else {
            continue;
        };
        for (netdev, address, place) in found
            .iter()
            .filter(|(_, it, _)| allocation.prefix.contains(it))
        {
            let function = Function::of_netdev(&node.sysfs_root, netdev).ok().flatten();
            if let Some(pf) = function.filter(|function| !function.is_vf()) {
                let by = format!("the address {address} of {netdev}{place}");
                evidence.push(Evidence {
                    rail,
                    pf: pf.id,
                    by,
                });
            }
        }
    }
    evidence
}

/// Resources with a rail in their names, `nvidia.com/rail-0`. They count from 1 where they have one
/// number more than node.json, and not its first.
fn by_resources(node: &Node, checkpoint: &Path) -> Vec<Evidence> {
    let text = files::read(checkpoint).unwrap_or_default();
    let json: Value = serde_json::from_slice(&text).unwrap_or_default();
    let registered = json
        .pointer("/Data/RegisteredDevices")
        .and_then(Value::as_object);
    let numbered: Vec<_> = registered
        .into_iter()
        .flatten()
        .filter_map(|(name, devices)| {
            Some((
                name,
                rail_in(name.rsplit('/').next()?)?,
                devices.as_array()?,
            ))
        })
        .collect();
    let has = |rail: Option<u8>| {
        rail.is_some_and(|rail| numbered.iter().any(|(_, number, _)| *number == rail))
    };
    let rails = || node.rails.iter().map(|one| one.rail);
    let is_from_1 = !has(rails().min()) && has(rails().max().and_then(|last| last.checked_add(1)));
    let mut evidence: Vec<Evidence> = Vec::new();
    for (name, number, devices) in numbered {
        for id in devices
            .iter()
            .filter_map(|id| DeviceId::parse(id.as_str()?))
        {
            let pf = Function::find(&node.sysfs_root, &id).ok().flatten();
            let pf = pf.and_then(|function| function.pf(&node.sysfs_root).ok().flatten());
            let (Some(pf), Some(rail)) = (pf, number.checked_sub(is_from_1.into())) else {
                continue;
            };
            if !evidence
                .iter()
                .any(|one| one.rail == rail && one.pf == pf.address)
            {
                let by = format!("the resource {name}, which has {},", id.as_str());
                evidence.push(Evidence {
                    rail,
                    pf: pf.address,
                    by,
                });
            }
        }
    }
    evidence
}

/// The list of node.json without these slips, as it can be written there.
pub fn corrected(node: &Node, slips: &[Slip]) -> String {
    let rows = node.rails.iter().map(|one| {
        let slip = slips.iter().find(|slip| slip.rail == one.rail);
        (
            one.rail,
            slip.map_or(one.pf.as_str(), |slip| slip.expected.as_str()),
        )
    });
    rows_of(rows)
}

/// The list of node.json in the order of the PCI addresses, where one PF is listed twice and one
/// other is `free`.
pub fn completed(node: &Node, free: &[String]) -> Option<String> {
    let [free] = free else { return None };
    let rails: BTreeSet<u8> = node.rails.iter().map(|one| one.rail).collect();
    let listed: BTreeSet<String> = listed(node).into_iter().map(|(.., pf)| pf).collect();
    let pfs: BTreeSet<(usize, &String)> = listed
        .iter()
        .chain([free])
        .map(|pf| (pf.len(), pf))
        .collect();
    let is_whole =
        node.rails_in_pci_order && rails.len() == node.rails.len() && pfs.len() == rails.len();
    is_whole.then(|| {
        rows_of(
            rails
                .into_iter()
                .zip(pfs.into_iter().map(|(_, pf)| pf.as_str())),
        )
    })
}

fn rows_of<'a>(rows: impl Iterator<Item = (u8, &'a str)>) -> String {
    let rows = rows.map(|(rail, pf)| format!("{{\"rail\": {rail}, \"pf\": {}}}", json!(pf)));
    format!("\"rails\": [{}]", rows.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn listed(rails: &[(u8, &str)]) -> Vec<(u8, String, String)> {
        rails
            .iter()
            .map(|(rail, pf)| (*rail, (*pf).to_owned(), (*pf).to_owned()))
            .collect()
    }

    fn shown(listed: &[(u8, String, String)], evidence: &[(u8, &str)]) -> Vec<String> {
        let evidence = evidence.iter().map(|(rail, pf)| Evidence {
            rail: *rail,
            pf: (*pf).to_owned(),
            by: "the plan".to_owned(),
        });
        judge(listed, evidence.collect(), by_pci(listed))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn two_rails_that_are_swapped_are_two_slips() {
        let swapped = listed(&[
            (0, "0000:3c:00.0"),
            (1, "0000:1a:00.0"),
            (2, "10000:01:00.0"),
        ]);
        let told = shown(&swapped, &[]);
        golden::says(
            "doctor",
            "rail-order: by the PCI addresses",
            told.join("\n"),
        );
        assert_eq!(told.len(), 2, "{told:?}");
        for (slip, parts) in told.iter().zip([
            ["0000:3c:00.0 for rail 0", "0000:1a:00.0"],
            ["0000:1a:00.0 for rail 1", "0000:3c:00.0"],
        ]) {
            assert!(parts.iter().all(|part| slip.contains(part)), "{slip}");
        }
        assert!(shown(&listed(&[(0, "0000:1a:00.0"), (1, "0000:3c:00.0")]), &[]).is_empty());
        // They need not begin with 0, nor be all.
        assert!(shown(&listed(&[(5, "0000:3c:00.0"), (2, "0000:1a:00.0")]), &[]).is_empty());
        // Two ports, two rails: that is no order.
        assert!(
            shown(
                &listed(&[
                    (0, "0000:3c:00.0"),
                    (0, "0000:1a:00.0"),
                    (1, "0000:01:00.0")
                ]),
                &[]
            )
            .is_empty()
        );
        assert!(shown(&listed(&[(0, "0000:3c:00.0"), (1, "0000:3c:00.0")]), &[]).is_empty());
    }

    #[test]
    fn the_order_counts_where_nothing_else_tells() {
        let swapped = listed(&[(0, "0000:3c:00.0"), (1, "0000:1a:00.0")]);
        assert!(shown(&swapped, &[(0, "0000:3c:00.0"), (1, "0000:1a:00.0")]).is_empty());
        let told = shown(&listed(&[(0, "0000:1a:00.0")]), &[(0, "0000:3c:00.0")]);
        golden::says("doctor", "rail-order: by the plan", told.join("\n"));
        assert!(
            told.len() == 1 && told[0].ends_with("0000:3c:00.0"),
            "{told:?}"
        );
    }

    #[test]
    fn resources_tell_by_their_names() {
        let temp = tempfile::tempdir().unwrap();
        for id in ["0000:01:00.0", "0000:02:00.0"] {
            fs::create_dir_all(temp.path().join("bus/pci/devices").join(id)).unwrap();
        }
        let mut node = Node::default();
        node.sysfs_root = temp.path().to_owned();
        node.rails =
            serde_json::from_value(json!([{"rail": 0, "pf": "a"}, {"rail": 1, "pf": "b"}]))
                .unwrap();
        let file = temp.path().join("checkpoint");
        let told = |devices: Value| {
            fs::write(
                &file,
                json!({"Data": {"RegisteredDevices": devices}, "Checksum": 1}).to_string(),
            )
            .unwrap();
            let all = by_resources(&node, &file);
            all.into_iter()
                .map(|one| (one.rail, one.pf))
                .collect::<Vec<_>>()
        };
        let (first, second) = ("0000:01:00.0", "0000:02:00.0");
        let both = [(0, first.to_owned()), (1, second.to_owned())];
        assert_eq!(
            told(json!({"nvidia.com/rail-0": [first], "nvidia.com/rail-1": [second, second]})),
            both
        );
        assert_eq!(
            told(json!({"nvidia.com/rail_1": [first], "nvidia.com/rail_2": [second]})),
            both
        );
        // A rail whose device is not there yet does not change the count.
        assert_eq!(told(json!({"nvidia.com/rail-1": [second]})), both[1..]);
        assert!(
            told(json!({"nvidia.com/gpu": ["GPU-1"], "nvidia.com/rail-0": ["GPU-1"], "x/rail-7": null}))
                .is_empty()
        );
        assert!(by_resources(&node, Path::new("/nonexistent")).is_empty());
    }
}
