//! The rails of this pod, from the aliases of its interfaces and from sysfs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use anyhow::Result;
use ipnet::IpNet;

use rail_cni::cni::{is_identifier, is_netdev_name};
use rail_cni::device::alias::Alias;
use rail_cni::failure;
use rail_cni::node::Node;
use rail_cni::sysfs::{DeviceId, Function};
use rail_netlink::link::{self, Link};
use rail_netlink::route::{self, MAIN};
use rail_netlink::{Socket, address, tunables};

/// The value of `--rails`.
pub type Numbers = BTreeSet<u8>;

/// Parses `0-7,9`.
pub fn parse_rails(text: &str) -> Result<Numbers, String> {
    let wrong = || format!("{text:?} is not a list of rails, such as 0-7 or 0,2,4");
    let number = |text: &str| text.parse::<u8>().map_err(|_| wrong());
    let mut all = Numbers::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(wrong());
        }
        all.extend(first..=last);
    }
    Ok(all)
}

/// The rails of this pod.
#[derive(Debug)]
pub struct Pod {
    /// Its rails, by number and plane.
    pub rails: Vec<Rail>,
    /// The interface of its default route, by which pods find each other: usually eth0.
    pub interface: Option<String>,
    /// Gaps in the knowledge, a sentence each.
    pub unknown: Vec<String>,
    /// All RDMA ports that its processes see, also those of no rail: by name and number.
    pub ports: Vec<(String, u32)>,
}

/// A rail of this pod.
#[derive(Debug)]
pub struct Rail {
    /// The name of the interface as it is now.
    pub interface: String,
    /// The alias that rail-cni set.
    pub alias: Alias,
    /// Its addresses, but for link-local ones.
    pub addresses: Vec<IpNet>,
    /// Its RDMA device.
    pub port: Option<Port>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name of the device: a word.
    pub device: String,
    /// Number of the port, from 1 on.
    pub number: u32,
    /// Index of the RoCE v2 GID of the first address.
    pub gid: Option<u32>,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device, self.number)
    }
}

impl Pod {
    /// Looks at the network namespace of this process.
    pub fn look(node: &Node) -> Result<Pod> {
        let socket = &mut Socket::open()?;
        let mut pod = Pod {
            rails: Vec::new(),
            interface: None,
            unknown: Vec::new(),
            ports: visible_ports(&node.sysfs_root),
        };
        let links = link::all(socket)?;
        for link in links.iter().filter(|link| !link.loopback) {
            let alias = tunables::read(socket, link.index)?
                .into_iter()
                .find(|(name, _)| *name == "alias");
            let Some((_, text)) = alias.filter(|(_, text)| text.starts_with("rail ")) else {
                continue;
            };
            match Alias::parse(&text) {
                // The kernel lets a name have quotes, commas and more.
                Some(alias) if is_netdev_name(&link.name) => {
                    let addresses = address::all(socket, link.index)?
                        .into_iter()
                        .filter(|one| !one.is_link_local());
                    let addresses = addresses.map(|one| one.net).collect();
                    let mut rail = Rail {
                        interface: link.name.clone(),
                        alias,
                        addresses,
                        port: None,
                    };
                    rail.port = rail
                        .find_port(link, node)
                        .map_err(|why| pod.unknown.push(why))
                        .ok();
                    pod.rails.push(rail);
                }
                Some(_) => pod.unknown.push(format!(
                    "{}: omitted, because libraries would misread this name",
                    link.name
                )),
                None => pod.unknown.push(format!(
                    "{}: omitted, because rail-cni did not write its alias",
                    link.name
                )),
            }
        }
        pod.rails.sort_by_key(|rail| rail.place());
        for port in pod.rails.iter().filter_map(|rail| rail.port.as_ref()) {
            let port = (port.device.clone(), port.number);
            if !pod.ports.contains(&port) {
                pod.ports.push(port);
            }
        }
        pod.interface = default_interface(&links, socket)?
            .filter(|name| pod.rails.iter().all(|rail| rail.interface != *name));
        Ok(pod)
    }

    /// The rails with these numbers, or all of them. Fails if one is missing, or if it is not clear
    /// which are meant.
    pub fn select(mut self, wanted: Option<&Numbers>) -> Result<Pod> {
        let is_wanted = |rail: &Rail| wanted.is_none_or(|wanted| wanted.contains(&rail.alias.rail));
        self.rails.retain(is_wanted);
        if self.rails.is_empty() {
            let of = wanted.map_or("", |_| " with one of these numbers");
            let mut unknown = self.unknown.into_iter().map(|why| format!(" ({why})"));
            return Err(failure!(
                InvalidConfig,
                "this network namespace has no rail{of}{}",
                unknown.next().unwrap_or_default()
            ));
        }
        let known: Numbers = self.rails.iter().map(|rail| rail.alias.rail).collect();
        let missing: Vec<String> = wanted
            .into_iter()
            .flatten()
            .filter(|number| !known.contains(number))
            .map(u8::to_string)
            .collect();
        if !missing.is_empty() {
            let rails = if missing.len() == 1 { "rail" } else { "rails" };
            return Err(failure!(
                InvalidConfig,
                "this network namespace has no {rails} {}: a job would run without: look at the pod's networks, or name the \
                    rails that it has with --rails",
                missing.join(", ")
            ));
        }
        let twice = self
            .rails
            .iter()
            .zip(self.rails.iter().skip(1))
            .find(|(one, next)| one.place() == next.place());
        if let Some((one, next)) = twice {
            let (first, second) = (&one.interface, &next.interface);
            return Err(failure!(
                InvalidConfig,
                "{first} and {second} are both rail {}: one of them belongs to another fabric, or its \
                    alias is wrong",
                one.alias.rail
            ));
        }
        let fabrics = self.fabrics();
        if wanted.is_none() && fabrics.len() > 1 {
            let fabrics: Vec<_> = fabrics
                .into_values()
                .map(|rails| rails.join(", "))
                .collect();
            return Err(failure!(
                InvalidConfig,
                "by the names of their networks, the rails belong to {} fabrics ({}): select the job's \
                    with --rails",
                fabrics.len(),
                fabrics.join("; ")
            ));
        }
        Ok(self)
    }

    /// The rails of each fabric. Networks of one fabric differ in numbers alone.
    fn fabrics(&self) -> BTreeMap<String, Vec<String>> {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for rail in &self.rails {
            let network = rail.alias.network.as_deref().unwrap_or_default();
            let fabric = network.replace(|letter: char| letter.is_ascii_digit(), "");
            all.entry(fabric)
                .or_default()
                .push(format!("{} {network}", rail.alias.rail));
        }
        all
    }
}

impl Rail {
    /// Its rail and plane, which distinguish it from those beside it.
    fn place(&self) -> (u8, Option<u8>) {
        (self.alias.rail, self.alias.plane)
    }

    /// Its RDMA device, or why that is not known.
    fn find_port(&self, link: &Link, node: &Node) -> Result<Port, String> {
        let (name, sysfs) = (&self.interface, &node.sysfs_root);
        let id = link.parent.as_deref().and_then(DeviceId::parse);
        let by_parent = id.and_then(|id| Function::find(sysfs, &id).ok().flatten());
        let function = by_parent.or_else(|| Function::of_netdev(sysfs, name).ok().flatten());
        let function = function.ok_or_else(|| {
            format!("{name}: its RDMA device is omitted, because sysfs does not show its device")
        })?;
        let as_gid = |net: &IpNet| -> Ipv6Addr {
            match net.addr() {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            }
        };
        let wanted: Vec<Ipv6Addr> = self.addresses.iter().map(as_gid).collect();
        let gids = function.gids(&wanted);
        let gid = wanted.iter().find_map(|wanted| {
            gids.iter()
                .find(|gid| gid.gid == *wanted && gid.netdev == *name)
        });
        let port = match gid {
            Some(gid) => Port {
                device: gid.device.clone(),
                number: gid.port,
                gid: Some(gid.index),
            },
            None => only_port(&function)
                .map_err(|why| format!("{name}: its RDMA device is omitted: {why}"))?,
        };
        // A program that may rename it can put a comma or a quote into it.
        if !is_identifier(&port.device) || port.device.len() >= 64 {
            return Err(format!(
                "{name}: its RDMA device {:?} is omitted, because libraries would misread the name",
                port.device
            ));
        }
        Ok(port)
    }
}

/// The port of a function that has one. A second one may be of another netdev.
fn only_port(function: &Function) -> Result<Port, String> {
    match &function.rdma_ports()[..] {
        [] => Err(format!("{} has no RDMA device here", function.id)),
        [only] => {
            let (device, number) = only.name.rsplit_once('/').ok_or("its port has no number")?;
            let number = number.parse().map_err(|_| "its port has no number")?;
            Ok(Port {
                device: device.to_owned(),
                number,
                gid: None,
            })
        }
        several => Err(format!(
            "{} has {} RDMA ports, and none has a GID of its addresses",
            function.id,
            several.len()
        )),
    }
}

/// The ports of all RDMA devices below /sys/class/infiniband.
fn visible_ports(sysfs: &Path) -> Vec<(String, u32)> {
    let mut ports = Vec::new();
    let devices = fs::read_dir(sysfs.join("class/infiniband"));
    for device in devices.into_iter().flatten().flatten() {
        let numbers = fs::read_dir(device.path().join("ports"));
        for number in numbers.into_iter().flatten().flatten() {
            let name = device.file_name().to_string_lossy().into_owned();
            if let Ok(number) = number.file_name().to_string_lossy().parse() {
                ports.push((name, number));
            }
        }
    }
    ports
}

/// The interface of the default route, if all of them have the same.
fn default_interface(links: &[Link], socket: &mut Socket) -> Result<Option<String>> {
    let defaults = route::matching(socket, Some(MAIN), |route| route.dst.prefix_len() == 0)?;
    let indexes: BTreeSet<_> = defaults.into_iter().map(|(index, _)| index).collect();
    let mut names = links
        .iter()
        .filter(|link| indexes.contains(&link.index) && is_netdev_name(&link.name));
    Ok(match (names.next(), indexes.len()) {
        (Some(link), 1) => Some(link.name.clone()),
        _ => None,
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A rail with this alias and the device `NAME:PORT`, if that is not empty.
    pub fn rail(alias: &str, address: &str, port: &str, gid: Option<u32>) -> Rail {
        let port = port.split_once(':');
        let port = port.map(|(device, number)| Port {
            device: device.to_owned(),
            number: number.parse().unwrap(),
            gid,
        });
        let alias = Alias::parse(alias).unwrap();
        Rail {
            interface: format!("net{}", alias.rail),
            alias,
            addresses: vec![address.parse().unwrap()],
            port,
        }
    }

    /// A pod whose default route is that of eth0.
    pub fn pod(rails: Vec<Rail>) -> Pod {
        let port = |rail: &Rail| {
            Some((
                rail.port.as_ref()?.device.clone(),
                rail.port.as_ref()?.number,
            ))
        };
        let ports = rails.iter().filter_map(port).collect();
        Pod {
            rails,
            interface: Some("eth0".to_owned()),
            unknown: Vec::new(),
            ports,
        }
    }

    fn of(aliases: &[&str]) -> Pod {
        pod(aliases
            .iter()
            .map(|alias| rail(alias, "10.0.0.0/31", "", None))
            .collect())
    }

    #[test]
    fn rails_are_listed_as_numbers_and_ranges() {
        assert_eq!(parse_rails("0-2,7").unwrap(), Numbers::from([0, 1, 2, 7]));
        for bad in ["", "a", "1-", "-1", "3-1", "0,", "256", "0 1"] {
            assert!(parse_rails(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn rails_that_cannot_be_told_apart_are_refused() {
        let two_fabrics = [
            "rail 0 network rail-0",
            "rail 1 network rail-1",
            "rail 8 network storage-8",
        ];
        let compute = parse_rails("0-1").unwrap();
        assert!(of(&two_fabrics).select(None).is_err());
        assert_eq!(
            of(&two_fabrics).select(Some(&compute)).unwrap().rails.len(),
            2
        );
        let planes = [
            "rail 0 plane 0 network rail-0-plane-0",
            "rail 0 plane 1 network rail-0-plane-1",
        ];
        assert_eq!(of(&planes).select(None).unwrap().rails.len(), 2);
        assert!(
            of(&["rail 0 network a", "rail 0 network a"])
                .select(None)
                .is_err()
        );
        assert!(of(&["rail 8"]).select(Some(&compute)).is_err());
        let missing = of(&["rail 0", "rail 2"]).select(Some(&parse_rails("0-3").unwrap()));
        assert!(missing.unwrap_err().to_string().contains("no rails 1, 3: "));
        assert!(of(&[]).select(None).is_err());
    }
}
