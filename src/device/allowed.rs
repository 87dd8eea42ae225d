//! Whether the device may be taken from the host: by the rail's PF, the node's policy, what the
//! network asks, and what the host itself needs.

use std::net::IpAddr;

use anyhow::Result;
use ipnet::IpNet;

use super::{Device, bpf, stacked, userspace, without_netdev};
use crate::netconf::NetConf;
use crate::node::{self, Node};
use crate::sysfs::{self, DeviceId, Function};
use crate::{fail, failure};
use rail_netlink::link::{self, Link};
use rail_netlink::route::Route;
use rail_netlink::{Socket, address, devconf, filter, route};

/// Refuses a device that is not this rail's, or that the node's policy excludes.
pub fn check_allowed(device: &Device, conf: &NetConf, node: &Node, network: &str) -> Result<()> {
    check_rail(device, conf, node, network)?;
    node.policy.check_device(&device.judged())
}

/// Refuses a device that is not this rail's, that the node's policy excludes, that cannot do what
/// is asked, or that the host itself needs.
pub fn check(
    device: &Device,
    conf: &NetConf,
    node: &Node,
    network: &str,
    host: &mut Socket,
) -> Result<()> {
    check_allowed(device, conf, node, network)?;
    if conf.reset_on_del && !device.function.as_ref().is_some_and(Function::has_flr) {
        let what = device.describe();
        fail!(
            UnsupportedField,
            "resetOnDel: {what} has no function-level reset (reset_method in sysfs)"
        );
    }
    let Some(link) = &device.original.link else {
        if let Some(function) = &device.function {
            userspace::refuse_held(&device.describe(), function)?;
        }
        if conf.mtu.is_some() {
            log::info!(
                "mtu is left to the program that drives {what}",
                what = device.describe()
            );
        }
        return Ok(());
    };
    check_mtu(device, link, conf, node, host)?;
    if conf
        .mac
        .as_ref()
        .is_some_and(|mac| mac.len() != link.mac.split(':').count())
    {
        fail!(
            InvalidConfig,
            "mac: {} has addresses of another length",
            link.name
        );
    }
    let what = device.describe();
    refuse_what_the_host_needs(&what, link, node, host)?;
    match conf.is_of_host {
        false => refuse_addresses(&what, link, host),
        true if node.policy.host_addresses => Ok(()),
        true => fail!(
            InvalidConfig,
            "ipam.source: this node's policy keeps the host's addresses on the host: policy.hostAddresses of node.json \
             allows it"
        ),
    }
}

/// Is the device's PF `pf` of node.json?
fn is_on(device: &Device, pf: &str) -> bool {
    match (&device.pf, &device.original.link) {
        (Some(ours), _) => ours.is(pf),
        (None, Some(link)) => link.name == pf,
        (None, None) => false,
    }
}

/// Whether the host has the PF `pf` of node.json, by its address or by the name of its netdev.
pub fn pf_is_on_host(pf: &str, node: &Node) -> Result<bool> {
    match DeviceId::parse(pf) {
        Some(id) => Ok(Function::find(&node.sysfs_root, &id)?.is_some()),
        None => Ok(node.sysfs_root.join("class/net").join(pf).exists()),
    }
}

/// The rails that node.json lists the device's PF for.
fn rails_of(device: &Device, node: &Node) -> Vec<u8> {
    let mut rails: Vec<_> = node
        .rails
        .iter()
        .filter(|one| is_on(device, &one.pf))
        .map(|one| one.rail)
        .collect();
    rails.sort_unstable();
    rails.dedup();
    rails
}

/// The rail of the device's PF, for a network that names none; `None` where node.json lists no
/// rails.
pub fn rail_of(device: &Device, node: &Node) -> Option<u8> {
    match rails_of(device, node)[..] {
        [rail] => Some(rail),
        _ => None,
    }
}

/// The rail of a function that this node hands out, as ADD judges it for a network that names no
/// rail. Fails with ADD's reason, whether a pod has the function or not.
pub fn handed_out(function: &Function, node: &Node) -> Result<u8> {
    let device = without_netdev(function.clone(), node)?;
    let rail = check_own_rail(&device, node)?;
    node.policy.check_device(&device.judged())?;
    Ok(rail)
}

/// Checks the rail of a network that names none: node.json must list the device's PF for one rail,
/// and allow it.
fn check_own_rail(device: &Device, node: &Node) -> Result<u8> {
    let what = device.describe();
    let rails = rails_of(device, node);
    let pf = device.pf.as_ref().map_or("no PF", |pf| pf.address.as_str());
    let [rail] = rails[..] else {
        if rails.is_empty() {
            fail!(
                InvalidConfig,
                "{what} ({pf}) is not on a rail of node.json, and this node hands out no other devices"
            );
        }
        fail!(
            InvalidConfig,
            "{what} is on the rails {rails:?} of node.json ({pf}): say which as `rail`"
        );
    };
    node.policy.check_rail(&what, Some(rail))?;
    Ok(rail)
}

/// The rail's PF according to node.json.
fn check_rail(device: &Device, conf: &NetConf, node: &Node, network: &str) -> Result<()> {
    if node.rails.is_empty() {
        return Ok(());
    }
    let Some(rail) = conf.rail else {
        return check_own_rail(device, node).map(drop);
    };
    let expected: Vec<_> = node
        .rails
        .iter()
        .filter(|one| one.rail == rail)
        .map(|one| one.pf.as_str())
        .collect();
    if expected.is_empty() {
        let known: Vec<_> = node.rails.iter().map(|one| one.rail).collect();
        fail!(
            InvalidConfig,
            "node.json lists the rails {known:?} and not {rail}"
        );
    }
    if expected.iter().any(|pf| is_on(device, pf)) {
        return Ok(());
    }
    let what = device.describe();
    let other = node.rails.iter().find(|one| is_on(device, &one.pf));
    let absent: Vec<_> = expected
        .iter()
        .copied()
        .filter(|pf| !pf_is_on_host(pf, node).unwrap_or(true))
        .collect();
    if other.is_none() && !absent.is_empty() {
        fail!(
            InvalidConfig,
            "the host has no PF {}, which {} names for rail {rail}: repair the NIC, or correct `rails` there ({what} was \
             given)",
            absent.join(" and no PF "),
            node::path().display()
        );
    }
    let Some(pf) = &device.pf else {
        fail!(
            InvalidConfig,
            "{what} is not on the rail's PF {}",
            expected.join(" or ")
        );
    };
    let other = other.map_or_else(
        || "no rail of node.json".to_owned(),
        |other| format!("rail {}", other.rail),
    );
    if node
        .rails
        .iter()
        .any(|one| one.rail != rail && expected.contains(&one.pf.as_str()))
    {
        fail!(
            InvalidConfig,
            "node.json has {} for rail {rail} and for another rail, and {what} belongs to PF {}: correct `rails` in {}",
            expected.join(" and "),
            pf.address,
            node::path().display()
        );
    }
    fail!(
        InvalidConfig,
        "{what} belongs to PF {} ({other}), and node.json has {} for rail {rail}: correct the resource of network {network}, \
         or `rails` in {}; `railctl doctor` says which",
        pf.address,
        expected.join(" and "),
        node::path().display()
    )
}

/// An InfiniBand packet of 4096 bytes without the header of IPoIB.
const DATAGRAM_MTU: u32 = 4092;

/// Frames larger than the PF's MTU do not pass it, whatever the VF says.
fn check_mtu(
    device: &Device,
    link: &Link,
    conf: &NetConf,
    node: &Node,
    host: &mut Socket,
) -> Result<()> {
    let Some(mtu) = conf.mtu else { return Ok(()) };
    if link.is_infiniband() {
        let most = if sysfs::is_connected(&node.sysfs_root, &link.name) {
            link.max_mtu
        } else {
            DATAGRAM_MTU
        };
        if mtu > most {
            let name = &link.name;
            fail!(
                InvalidConfig,
                "mtu: {mtu} is more than InfiniBand netdevs have, {most} for {name} (2044 or 4092 in datagram mode, \
                 by the MTU of the fabric)"
            );
        }
        // The PF's own netdev may be in another mode.
        return Ok(());
    }
    if mtu < link.min_mtu || (link.max_mtu != 0 && mtu > link.max_mtu) {
        fail!(
            InvalidConfig,
            "mtu: {mtu} is outside of what {} takes, {} to {}",
            link.name,
            link.min_mtu,
            link.max_mtu
        );
    }
    let pf = device
        .pf
        .as_ref()
        .and_then(|pf| pf.netdev.clone())
        .filter(|name| *name != link.name);
    let pf = pf
        .map(|name| link::by_name(host, &name))
        .transpose()?
        .flatten();
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

/// A tenant may have written the configuration: it must not be able to take the node off the
/// network. Addresses and routes are left to [`refuse_addresses`] or the step `host-addresses`.
pub fn refuse_what_the_host_needs(
    what: &str,
    link: &Link,
    node: &Node,
    host: &mut Socket,
) -> Result<()> {
    refuse_parts(what, link, node, host)?;
    bpf::refuse(what, link)?;
    stacked::refuse(what, link, host)
}

/// Refuses a device for what no pod can leave on it when it comes back.
pub fn refuse_parts(what: &str, link: &Link, node: &Node, host: &mut Socket) -> Result<()> {
    let needed = |why: String| failure!(InvalidConfig, "{what} is in use by the host: {why}");
    if link.loopback {
        return Err(needed("it is the loopback device".to_owned()));
    }
    if let Some(master) = link.master {
        let name = link::by_index(
            host,
            rail_netlink::link::Index::new(master).unwrap_or(link.index),
        )?;
        let name = name.map_or_else(|| format!("index {master}"), |master| master.name);
        return Err(needed(format!("it is part of {name}")));
    }
    if matches!(
        link.kind.as_deref(),
        Some("bridge" | "bond" | "team" | "openvswitch" | "vrf")
    ) {
        return Err(needed(format!(
            "it is a {}",
            link.kind.as_deref().unwrap_or_default()
        )));
    }
    if let Some(upper) = sysfs::upper_devices(&node.sysfs_root, &link.name)?.first() {
        return Err(needed(format!("{upper} is stacked on it")));
    }
    if let Some(filter) = filter::on(host, link.index)? {
        let (name, kind) = (&link.name, &filter.kind);
        let hook = filter.hook;
        return Err(needed(format!(
            "it has a tc filter ({kind}): `tc filter show dev {name} {hook}`"
        )));
    }
    Ok(())
}

/// Refuses a device with addresses or routes of the host.
pub fn refuse_addresses(what: &str, link: &Link, host: &mut Socket) -> Result<()> {
    let needed = |why: String| failure!(InvalidConfig, "{what} is in use by the host: {why}");
    let addresses = address::all(host, link.index)?;
    if let Some(address) = addresses.iter().find(|address| !address.is_link_local()) {
        let (net, name) = (address.net, &link.name);
        return Err(needed(format!(
            "it has the address {net}: remove it from the host's configuration, and now with `ip addr del {net} dev {name}`"
        )));
    }
    let routes = route::through(host, link.index, |route| !is_of_the_kernel(route))?;
    if let Some(route) = routes
        .iter()
        .find(|route| route.dst.prefix_len() == 0)
        .or(routes.first())
    {
        let kind = if route.dst.prefix_len() == 0 {
            "default route"
        } else {
            "route"
        };
        let (ip, name) = (
            if route.dst.addr().is_ipv4() {
                "ip"
            } else {
                "ip -6"
            },
            &link.name,
        );
        let by_router =
            |gateway: IpAddr| matches!(gateway, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let accept_ra = devconf::read(host, link.index)?
            .get("ipv6/accept_ra")
            .copied();
        if route.gateway.is_some_and(by_router) && accept_ra.is_some_and(|accept_ra| accept_ra > 0)
        {
            return Err(needed(format!(
                "it carries the {kind} {route}, which router advertisements can bring: switch them off in the host's \
                 configuration, and now with `echo 0 >/proc/sys/net/ipv6/conf/{name}/accept_ra; ip -6 route del {route} dev \
                 {name}`"
            )));
        }
        return Err(needed(format!(
            "it carries the {kind} {route}: remove it from the host's configuration, and now with `{ip} route del {route} \
             dev {name}`"
        )));
    }
    Ok(())
}

/// Every link that is up, or was, may have these routes although no one set them.
fn is_of_the_kernel(route: &Route) -> bool {
    const LOCAL: u32 = 255;
    let is_own = match route.dst {
        IpNet::V4(net) => net.addr().is_link_local() && net.prefix_len() >= 16,
        IpNet::V6(net) => {
            let (addr, len) = (net.addr(), net.prefix_len());
            (addr.is_unicast_link_local() && len >= 64) || (addr.is_multicast() && len == 8)
        }
    };
    route.table == LOCAL || (is_own && route.gateway.is_none())
}
