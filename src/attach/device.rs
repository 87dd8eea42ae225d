//! Which device the configuration means, and whether it may be taken from the host.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::config::{NetConf, Selector};
use super::record::Home;
use crate::netlink::link::{self, Link};
use crate::netlink::{Socket, address, route};
use crate::node::Node;
use crate::sysfs::{self, DeviceId, Function, Pf};
use crate::{fail, failure};

/// A device of the host that can be attached.
#[derive(Clone, Debug)]
pub struct Device {
    /// What is put on record.
    pub home: Home,
    function: Option<Function>,
    pf: Option<Pf>,
}

impl Device {
    /// `VF 0000:3b:00.2 (ens1f0v0)`: for messages.
    pub fn describe(&self) -> String {
        let kind = match &self.function {
            Some(function) if function.is_vf() => "VF ",
            Some(_) => "function ",
            None => "netdev ",
        };
        match &self.home.link {
            Some(link) if link.name != self.home.id => format!("{kind}{} ({})", self.home.id, link.name),
            _ => format!("{kind}{}", self.home.id),
        }
    }

    /// The number of the VF and its PF, for a VF.
    pub fn vf(&self) -> Option<(u32, &Pf)> {
        let function = self.function.as_ref().filter(|function| function.is_vf())?;
        function.vf_number().zip(self.pf.as_ref())
    }

    /// Does it have VFs?
    pub fn has_vfs(&self) -> bool {
        self.function.as_ref().is_some_and(|function| function.vf_count() > 0)
    }

    /// Names of its RDMA devices.
    pub fn rdma_devices(&self) -> Vec<String> {
        self.function.as_ref().map(Function::rdma_devices).unwrap_or_default()
    }
}

/// The device that `selector` means, if the host has it now: a pod may.
pub fn find(selector: &Selector, node: &Node, host: &mut Socket) -> Result<Option<Device>> {
    let sysfs = &node.sysfs_root;
    let function = match &selector.id {
        Some(id) => Some(find_function(sysfs, id)?),
        None => None,
    };
    if let Some(function) = function.as_ref().filter(|function| function.is_userspace()) {
        let home = home(sysfs, Some(function), None)?;
        return Ok(Some(Device { pf: function.pf(sysfs)?, function: Some(function.clone()), home }));
    }
    let Some(link) = find_link(selector, function.as_ref(), sysfs, host)? else { return Ok(None) };
    let function = match function {
        Some(function) => Some(function),
        None => Function::of_netdev(sysfs, &link.name)?,
    };
    let pf = function.as_ref().map(|function| function.pf(sysfs)).transpose()?.flatten();
    Ok(Some(Device { home: home(sysfs, function.as_ref(), Some(link))?, function, pf }))
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

/// The netdev that every given selector means; they must agree.
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
        if link.is_none() && function.driver().is_none() {
            fail!(InvalidConfig, "{} has no driver, so no netdev: bind one", function.id);
        }
        candidates.push((function.id.clone(), link));
    }
    if let Some(name) = &selector.device {
        candidates.push((format!("device {name}"), by_any_name(host, name)?));
    }
    if let Some(mac) = &selector.hwaddr {
        let mut links = link::all(host)?.into_iter().filter(|link| link.mac == *mac && !link.loopback);
        let found = links.next();
        // VLANs and macvlans have the MAC of what they are on.
        if let (Some(one), Some(other)) = (&found, links.next()) {
            fail!(InvalidConfig, "hwaddr {mac} is that of {} and of {}", one.name, other.name);
        }
        candidates.push((format!("hwaddr {mac}"), found));
    }
    if let Some(path) = &selector.kernelpath {
        let name = sysfs::netdev_at(sysfs, path)?;
        let link = name.map(|name| link::by_name(host, &name)).transpose()?.flatten();
        candidates.push((format!("kernelpath {path}"), link));
    }
    let mut candidates = candidates.into_iter();
    let Some((first, link)) = candidates.next() else { return Ok(None) };
    for (other, candidate) in candidates {
        if let (Some(link), Some(candidate)) = (&link, &candidate)
            && link.index != candidate.index
        {
            fail!(
                InvalidConfig,
                "{first} is {} and {other} is {}: the configuration means two devices",
                link.name,
                candidate.name
            );
        }
    }
    Ok(link)
}

/// By name, or by an altname, which may be too long for the kernel's look-up by name.
fn by_any_name(host: &mut Socket, name: &str) -> Result<Option<Link>> {
    if name.len() <= 15 {
        return link::by_name(host, name);
    }
    Ok(link::all(host)?.into_iter().find(|link| link.altnames.iter().any(|altname| altname == name)))
}

fn home(sysfs: &Path, function: Option<&Function>, link: Option<Link>) -> Result<Home> {
    // A function may have several netdevs (representors, two ports): only one of them goes by its address.
    let is_the_netdev = match (function, &link) {
        (Some(function), Some(link)) => function.netdev()?.is_none_or(|name| name == link.name),
        _ => true,
    };
    let pci_id = function.map(|function| function.id.clone());
    let name = link.as_ref().map(|link| link.name.clone());
    let id = pci_id.clone().filter(|_| is_the_netdev).or(name).context("a device without id and name")?;
    let pf = function.map(|function| function.pf(sysfs)).transpose()?.flatten().map(|pf| pf.address);
    Ok(Home { id, pci_id, pf, link })
}

/// Refuses a device that is not this rail's, that the node's policy excludes, that cannot do what is asked,
/// or that the host itself needs.
pub fn check(device: &Device, conf: &NetConf, node: &Node, network: &str, host: &mut Socket) -> Result<()> {
    check_rail(device, conf, node, network)?;
    check_policy(device, node)?;
    let Some(link) = &device.home.link else {
        if conf.mtu.is_some() {
            log::info!("mtu is left to the program that drives {what}", what = device.describe());
        }
        return Ok(());
    };
    check_mtu(device, link, conf, host)?;
    if conf.mac.as_ref().is_some_and(|mac| mac.len() != link.mac.split(':').count()) {
        fail!(InvalidConfig, "mac: {} has addresses of another length", link.name);
    }
    refuse_what_the_host_needs(&device.describe(), link, node, host)
}

/// The rail's PF according to node.json.
fn check_rail(device: &Device, conf: &NetConf, node: &Node, network: &str) -> Result<()> {
    let Some(rail) = conf.rail.filter(|_| !node.rails.is_empty()) else { return Ok(()) };
    let expected: Vec<_> =
        node.rails.iter().filter(|one| one.rail == rail).map(|one| one.pf.as_str()).collect();
    if expected.is_empty() {
        let known: Vec<_> = node.rails.iter().map(|one| one.rail).collect();
        fail!(InvalidConfig, "node.json lists the rails {known:?} and not {rail}");
    }
    let is_on = |pf: &str| match (&device.pf, &device.home.link) {
        (Some(ours), _) => ours.is(pf),
        (None, Some(link)) => link.name == pf,
        (None, None) => false,
    };
    if expected.iter().any(|pf| is_on(pf)) {
        return Ok(());
    }
    let what = device.describe();
    let Some(pf) = &device.pf else {
        fail!(InvalidConfig, "{what} is not on the rail's PF {}", expected.join(" or "));
    };
    let other = node.rails.iter().find(|one| is_on(&one.pf));
    let other =
        other.map_or_else(|| "no rail of node.json".to_owned(), |other| format!("rail {}", other.rail));
    fail!(
        InvalidConfig,
        "{what} belongs to PF {} ({other}): check the resource of network {network}",
        pf.address
    )
}

fn check_policy(device: &Device, node: &Node) -> Result<()> {
    let policy = &node.policy;
    let what = device.describe();
    if policy.vfs_only && !device.function.as_ref().is_some_and(Function::is_vf) {
        fail!(InvalidConfig, "{what} is no VF: this node's policy allows VFs only");
    }
    if let Some(allowed) = &policy.pfs
        && !device.pf.as_ref().is_some_and(|pf| allowed.iter().any(|text| pf.is(text)))
    {
        fail!(InvalidConfig, "{what} is not on one of the PFs {allowed:?} of this node's policy");
    }
    if let Some(allowed) = &policy.drivers {
        let driver = device.function.as_ref().and_then(Function::driver);
        if !driver.as_ref().is_some_and(|driver| allowed.contains(driver)) {
            let driver = driver.as_deref().unwrap_or("no driver");
            fail!(InvalidConfig, "{what} has {driver}: this node's policy allows the drivers {allowed:?}");
        }
    }
    Ok(())
}

/// Frames larger than the PF's MTU do not pass it, whatever the VF says.
fn check_mtu(device: &Device, link: &Link, conf: &NetConf, host: &mut Socket) -> Result<()> {
    let Some(mtu) = conf.mtu else { return Ok(()) };
    if mtu < link.min_mtu || (link.max_mtu != 0 && mtu > link.max_mtu) {
        fail!(
            InvalidConfig,
            "mtu: {mtu} is outside of what {} takes, {} to {}",
            link.name,
            link.min_mtu,
            link.max_mtu
        );
    }
    let pf = device.pf.as_ref().and_then(|pf| pf.netdev.clone()).filter(|name| *name != link.name);
    let pf = pf.map(|name| link::by_name(host, &name)).transpose()?.flatten();
    if let Some(pf) = pf.filter(|pf| pf.mtu < mtu) {
        fail!(
            InvalidConfig,
            "mtu: {mtu} is more than the {} of the PF {}: raise that first",
            pf.mtu,
            pf.name
        );
    }
    Ok(())
}

/// A tenant may have written the configuration: it must not be able to take the node off the network.
pub fn refuse_what_the_host_needs(what: &str, link: &Link, node: &Node, host: &mut Socket) -> Result<()> {
    let needed = |why: String| failure!(InvalidConfig, "{what} is in use by the host: {why}");
    if link.loopback {
        return Err(needed("it is the loopback device".to_owned()));
    }
    if let Some(master) = link.master {
        let name = link::by_index(host, crate::netlink::link::Index::new(master).unwrap_or(link.index))?;
        let name = name.map_or_else(|| format!("index {master}"), |master| master.name);
        return Err(needed(format!("it is part of {name}")));
    }
    if matches!(link.kind.as_deref(), Some("bridge" | "bond" | "team" | "openvswitch" | "vrf")) {
        return Err(needed(format!("it is a {}", link.kind.as_deref().unwrap_or_default())));
    }
    if let Some(upper) = sysfs::upper_devices(&node.sysfs_root, &link.name)?.first() {
        return Err(needed(format!("{upper} is stacked on it")));
    }
    let addresses = address::all(host, link.index)?;
    if let Some(address) = addresses.iter().find(|address| !address.is_link_local()) {
        return Err(needed(format!(
            "it has the address {}: remove it from the host's configuration",
            address.net
        )));
    }
    if route::through(host, link.index)?.iter().any(|route| route.dst.prefix_len() == 0) {
        return Err(needed("it carries a default route".to_owned()));
    }
    Ok(())
}
