//! The devices of the host: which one a network means, whether the host can do without it, and what
//! a pod can change of it.

pub mod alias;
pub mod allowed;
pub mod bpf;
pub mod gid;
pub mod info;
mod original;
pub mod pf;
pub mod settings;
pub mod stacked;
pub mod userspace;

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::netconf::{NetConf, Selector};
use crate::netns::Netns;
use crate::node::{Judged, Node};
use crate::sysfs::{self, DeviceId, Function, Mounted, Pf};
use crate::{fail, failure};
use rail_netlink::Socket;
use rail_netlink::link::{self, Link};

pub use original::Original;

/// A device of the host that can be attached.
#[derive(Clone, Debug)]
pub struct Device {
    /// The device as it is, for the record.
    pub original: Original,
    function: Option<Function>,
    pf: Option<Pf>,
    /// The kind of the netdev, if it is no port of a function.
    kind: Option<String>,
}

impl Device {
    /// `VF 0000:3b:00.2 (ens1f0v0)`: for messages.
    pub fn describe(&self) -> String {
        let kind = match &self.function {
            _ if self.kind.is_some() => "netdev ",
            Some(function) if function.is_vf() => "VF ",
            Some(_) => "function ",
            None => "netdev ",
        };
        match &self.original.link {
            Some(link) if link.name != self.original.id => {
                format!("{kind}{} ({})", self.original.id, link.name)
            }
            _ => format!("{kind}{}", self.original.id),
        }
    }

    /// The number of the VF and its PF, for a VF.
    pub fn vf(&self) -> Option<(u32, &Pf)> {
        let function = self.function.as_ref().filter(|function| function.is_vf())?;
        function.vf_number().zip(self.pf.as_ref())
    }

    /// Whether it is a PF with VFs.
    pub fn has_vfs(&self) -> bool {
        self.kind.is_none()
            && self
                .function
                .as_ref()
                .is_some_and(|function| function.vf_count() > 0)
    }

    /// Has its PF RDMA devices? Then it should have one as well.
    pub fn pf_has_rdma(&self, sysfs: &Path) -> bool {
        let pf = self.pf.as_ref().and_then(|pf| DeviceId::parse(&pf.address));
        let pf = pf.and_then(|id| Function::find(sysfs, &id).ok().flatten());
        pf.is_some_and(|pf| !pf.rdma_devices().is_empty())
    }

    fn judged(&self) -> Judged<'_> {
        let (function, pf, kind) = (
            self.function.as_ref(),
            self.pf.as_ref(),
            self.kind.as_deref(),
        );
        Judged {
            what: self.describe(),
            function,
            pf,
            kind,
        }
    }

    /// The function on its bus.
    pub fn function(&self) -> Option<&Function> {
        self.function.as_ref()
    }

    /// Names of its RDMA devices, those that the host sees.
    pub fn rdma_devices(&self) -> Result<Vec<String>> {
        self.function
            .as_ref()
            .map_or_else(|| Ok(Vec::new()), Function::list_rdma_devices)
    }
}

/// The function whose netdev another plugin has moved to a pod.
pub fn without_netdev(function: Function, node: &Node) -> Result<Device> {
    let pf = function.pf(&node.sysfs_root)?;
    let original = original(&node.sysfs_root, Some(&function), pf.as_ref(), None)?;
    Ok(Device {
        pf,
        function: Some(function),
        original,
        kind: None,
    })
}

/// The function whose netdev the pod has as `ifname`. No other may be meant: a network that could
/// choose its device would take another pod's.
pub fn behind(ifname: &str, netns: &Netns, conf: &NetConf, node: &Node) -> Result<Function> {
    let mounted = netns.run(Mounted::here)?;
    let root = mounted.path();
    let id = sysfs::device_of(&root, ifname);
    let in_pod = id
        .map(|id| Function::find(&root, &id))
        .transpose()?
        .flatten();
    let in_pod = in_pod.filter(|function| function.has_port(&root, ifname).unwrap_or(false));
    let Some(in_pod) = in_pod else {
        let what = if root.join("class/net").join(ifname).exists() {
            "is not a PCI or auxiliary device"
        } else {
            "does not exist"
        };
        fail!(
            InvalidConfig,
            "mode rdma: {ifname} {what} in the pod: has a plugin before this one attached a VF?"
        );
    };
    if let Some(id) = conf
        .selector
        .id
        .as_ref()
        .filter(|id| id.as_str() != in_pod.id)
    {
        fail!(
            InvalidConfig,
            "deviceID: the network names {}, but {ifname} in the pod is {}: check the plugin before this one",
            id.as_str(),
            in_pod.id
        );
    }
    let host = in_pod.seen_in(&node.sysfs_root);
    if host.exists() && !host.netdevs()?.is_empty() {
        fail!(
            InvalidConfig,
            "mode rdma: {} has a port on the host, too, so its RDMA device is not that of {ifname} alone",
            in_pod.id
        );
    }
    host.exists()
        .then_some(host)
        .ok_or_else(|| failure!(TryAgain, "the host has no device {}", in_pod.id))
}

/// The device that `selector` means, if it is on the host now.
pub fn find(selector: &Selector, node: &Node, host: &mut Socket) -> Result<Option<Device>> {
    let sysfs = &node.sysfs_root;
    let function = match &selector.id {
        Some(id) => Some(find_function(sysfs, id)?),
        None => None,
    };
    if let Some(function) = function.as_ref().filter(|function| function.is_userspace()) {
        return without_netdev(function.clone(), node).map(Some);
    }
    let Some(link) = find_link(selector, function.as_ref(), sysfs, host)? else {
        return Ok(None);
    };
    let function = match function {
        Some(function) => Some(function),
        None => Function::of_netdev(sysfs, &link.name)?,
    };
    let pf = function
        .as_ref()
        .map(|function| function.pf(sysfs))
        .transpose()?
        .flatten();
    let kind = kind(sysfs, function.as_ref(), &link)?;
    Ok(Some(Device {
        original: original(sysfs, function.as_ref(), pf.as_ref(), Some(link))?,
        function,
        pf,
        kind,
    }))
}

/// Is the function with this id there, but without a driver?
pub fn is_unbound(id: &DeviceId, node: &Node) -> bool {
    Function::find(&node.sysfs_root, id)
        .is_ok_and(|found| found.is_some_and(|one| one.driver().is_none()))
}

fn find_function(sysfs: &Path, id: &DeviceId) -> Result<Function> {
    let Some(function) = Function::find(sysfs, id)? else {
        fail!(
            InvalidConfig,
            "the host has no device {}: was it unplugged, or sriov_numvfs set to 0?",
            id.as_str()
        );
    };
    Ok(function)
}

/// The netdev that every given selector means; all must mean the same one.
fn find_link(
    selector: &Selector,
    function: Option<&Function>,
    sysfs: &Path,
    host: &mut Socket,
) -> Result<Option<Link>> {
    let mut candidates: Vec<(String, Option<Link>)> = Vec::new();
    if let Some(function) = function {
        let link = match function.netdev()? {
            Some(name) => link::by_name(host, &name)?,
            None => None,
        };
        candidates.push((function.id.clone(), link));
    }
    if let Some(name) = &selector.device {
        candidates.push((format!("device {name}"), link::by_any_name(host, name)?));
    }
    if let Some(mac) = &selector.hwaddr {
        let mut links = link::all(host)?
            .into_iter()
            .filter(|link| link.mac == *mac && !link.loopback);
        let found = links.next();
        // VLANs and macvlans have the MAC of what they are on.
        if let (Some(one), Some(other)) = (&found, links.next()) {
            fail!(
                InvalidConfig,
                "hwaddr {mac} belongs to both {} and {}",
                one.name,
                other.name
            );
        }
        candidates.push((format!("hwaddr {mac}"), found));
    }
    if let Some(path) = &selector.kernelpath {
        let name = sysfs::netdev_at(sysfs, path)?;
        let link = name
            .map(|name| link::by_name(host, &name))
            .transpose()?
            .flatten();
        candidates.push((format!("kernelpath {path}"), link));
    }
    let mut candidates = candidates.into_iter();
    let Some((first, link)) = candidates.next() else {
        return Ok(None);
    };
    for (other, candidate) in candidates {
        if let (Some(link), Some(candidate)) = (&link, &candidate) {
            if link.index != candidate.index {
                fail!(
                    InvalidConfig,
                    "{first} is {} and {other} is {}: the configuration names two devices",
                    link.name,
                    candidate.name
                );
            }
        }
    }
    Ok(link)
}

/// The kind of the netdev, if it is no port of the function.
fn kind(sysfs: &Path, function: Option<&Function>, link: &Link) -> Result<Option<String>> {
    if let Some(function) = function {
        if function.has_port(sysfs, &link.name)? {
            return Ok(None);
        }
    }
    let kind = match &link.kind {
        _ if link.loopback => Some("loopback".to_owned()),
        _ if sysfs::represents(sysfs, &link.name) => Some("representor".to_owned()),
        Some(kind) => Some(kind.clone()),
        None => sysfs::bus_of(sysfs, &link.name),
    };
    Ok(Some(kind.unwrap_or_else(|| "unknown".to_owned())))
}

fn original(
    sysfs: &Path,
    function: Option<&Function>,
    pf: Option<&Pf>,
    link: Option<Link>,
) -> Result<Original> {
    let netdevs = function
        .map(Function::netdevs)
        .transpose()?
        .unwrap_or_default();
    let name = link.as_ref().map(|link| link.name.clone());
    let number = netdevs
        .iter()
        .position(|netdev| Some(netdev) == name.as_ref());
    let port = name
        .as_ref()
        .filter(|_| number.is_some())
        .and_then(|name| sysfs::port_of(sysfs, name));
    // Only one netdev goes by the address of its function. The first that is left on the host may
    // not be it.
    let id = match (function, &name, port.unwrap_or(0)) {
        (Some(function), None, _) => Some(function.id.clone()),
        (Some(function), Some(_), 0) if number == Some(0) => Some(function.id.clone()),
        (Some(function), Some(_), port @ 1..) => Some(format!("{}-port{port}", function.id)),
        (_, name, _) => name.clone(),
    };
    Ok(Original {
        id: id.context("a device without id and name")?,
        pci_id: function.map(|function| function.id.clone()),
        pf: pf.map(|pf| pf.address.clone()),
        port,
        siblings: netdevs.len() > 1,
        link,
    })
}

/// Whether the netdev of a function is not on the host although its driver makes one.
pub fn is_away(function: &Function) -> Result<bool> {
    Ok(function.driver().is_some() && !function.is_userspace() && function.netdevs()?.is_empty())
}
