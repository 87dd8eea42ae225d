//! Giving a device back: from the pod, or from wherever the kernel put it when the pod's namespace died.
//!
//! DEL, the rollback of ADD, GC, `reap` and the healing of the next ADD all come here. Every step looks at
//! what is, so it can be taken again after it was interrupted.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::record::{Home, Record, Records};
use super::{rdma, vf};
use crate::cni::all_of;
use crate::netlink::link::{self, Link, Move, parse_mac};
use crate::netlink::{Socket, address, rule};
use crate::netns::{Netns, NetnsId};
use crate::node::Node;
use crate::sysfs::{DeviceId, Function};
use crate::{fail, files};

/// A namespace is taken apart after its last user is gone; its NICs are back some moments later.
const PATIENCE: Duration = Duration::from_millis(500);

/// Where the device is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// On the host and as it was, or it does not exist any more.
    Home,
    /// Neither in the pod nor on the host: something keeps the dead namespace.
    Missing,
}

/// Puts the device of `record` back to what it was.
pub fn give_back(record: &Record, records: &Records, node: &Node) -> Result<Outcome> {
    // After a reboot nothing of what is recorded is left: neither the namespace nor the old settings.
    if record.boot_id != files::boot_id()? {
        return Ok(Outcome::Home);
    }
    let mut host = Socket::open()?;
    let Some(was) = &record.device.link else {
        return vf::restore(record, records, node, &mut host).map(|()| Outcome::Home);
    };
    if let Some(netns) = open_if_same(&record.netns)? {
        take_from_pod(record, was, &netns, &mut host)?;
    }
    let dies_with_namespace = was.kind.is_some();
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(link) = find_on_host(record, &mut host)? {
            // Not while the pod has it: without its VLAN it would be on somebody else's network for a moment.
            // But before the MAC, which a VF may not change while its PF prescribes another.
            let settings = vf::restore(record, records, node, &mut host);
            all_of([settings, restore(&link, was, &mut host)])?;
            return Ok(Outcome::Home);
        }
        // A veth or macvlan dies with its namespace, a VF with its PF's driver or sriov_numvfs.
        if dies_with_namespace || !exists(&record.device, node)? {
            return vf::restore(record, records, node, &mut host).map(|()| Outcome::Home);
        }
        if Instant::now() > deadline {
            return Ok(Outcome::Missing);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The namespace of the record, unless its path names another one by now, or none.
pub fn open_if_same(id: &NetnsId) -> Result<Option<Netns>> {
    let same = NetnsId::of(&id.path).ok().flatten().is_some_and(|now| now == *id);
    if !same {
        return Ok(None);
    }
    // Gone between the two looks: then it is gone.
    Ok(Netns::open(&id.path).ok())
}

/// Takes rules, RDMA devices and the device itself from the pod; what fails does not keep the rest there.
fn take_from_pod(record: &Record, was: &Link, netns: &Netns, host: &mut Socket) -> Result<()> {
    let mut pod = netns.run(Socket::open)?;
    let rules: Vec<_> = record.applied.rules.iter().map(|rule| rule::remove(&mut pod, rule)).collect();
    let rdma = rdma::take_back(record, netns);
    let mut steps = rules;
    steps.push(rdma);
    if let Some(link) = find_in_pod(record, &mut pod)? {
        // The move takes the addresses away, but there is none with CNI_NETNS_OVERRIDE.
        if netns.is(&Netns::current()?)? {
            steps.extend(record.applied.addresses.iter().map(|net| address::remove(host, &link, *net)));
        }
        steps.extend(remove_stacked(&mut pod, &link)?);
        steps.push(move_home(record, &link, was, &mut pod, host));
    }
    all_of(steps)
}

/// What the pod has put on the device would hold it from there: a macvlan keeps its device over namespaces.
fn remove_stacked(pod: &mut Socket, link: &Link) -> Result<Vec<Result<()>>> {
    const STACKED: [&str; 5] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap"];
    let mut uppers = link::all(pod)?;
    uppers.retain(|upper| {
        upper.lower == Some(link.index.get())
            && upper.kind.as_deref().is_some_and(|kind| STACKED.contains(&kind))
    });
    Ok(uppers.iter().map(|upper| link::remove(pod, upper)).collect())
}

/// Moves the device to the host with one message: name, MTU and MAC as they were.
fn move_home(record: &Record, link: &Link, was: &Link, pod: &mut Socket, host: &mut Socket) -> Result<()> {
    let host_ns = Netns::current()?;
    let mac = parse_mac(&was.mac).filter(|_| was.mac != link.mac && record.vf.is_none());
    let mtu = Some(was.mtu).filter(|mtu| *mtu != link.mtu);
    // Somebody may have taken the name meanwhile. The device must leave the pod all the same.
    let name = match link::by_name(host, &was.name)? {
        None => was.name.clone(),
        Some(_) => free_name(host, link)?,
    };
    for altname in clashing(link, host)? {
        link::remove_altname(pod, link, &altname)?;
    }
    let moved = link::move_to(pod, link, &host_ns, &Move { name: &name, mtu, mac: mac.as_deref() });
    // The message is not atomic: what counts is where the device is. The rest is mended on the host.
    if moved.is_err() && find_in_pod(record, pod)?.is_some() {
        // Without the parts that a driver may refuse.
        link::move_to(pod, link, &host_ns, &Move { name: &free_name(host, link)?, mtu: None, mac: None })?;
    }
    Ok(())
}

/// What the kernel itself calls a device whose name is taken, with its index behind it.
const KERNEL_NAME: &str = "dev";

/// A name that nobody has.
fn free_name(host: &mut Socket, link: &Link) -> Result<String> {
    for number in u32::from(link.index)..u32::from(link.index).saturating_add(1000) {
        let name = format!("{KERNEL_NAME}{number}");
        if link::by_name(host, &name)?.is_none() {
            return Ok(name);
        }
    }
    fail!(Internal, "the host has no free name for {}", link.name)
}

fn clashing(link: &Link, host: &mut Socket) -> Result<Vec<String>> {
    if link.altnames.is_empty() {
        return Ok(Vec::new());
    }
    let others = link::all(host)?;
    let taken =
        |name: &String| others.iter().any(|other| other.name == *name || other.altnames.contains(name));
    Ok(link.altnames.iter().filter(|name| taken(name)).cloned().collect())
}

/// The device of `record` in its pod, where the index that it got there is proof enough; the pod may have
/// renamed it. An ADD that was killed in between did not learn the index.
pub fn find_in_pod(record: &Record, pod: &mut Socket) -> Result<Option<Link>> {
    let Some(was) = &record.device.link else { return Ok(None) };
    let is_ours = |link: &Link| {
        let by_index = link.index.get() == record.applied.index;
        let same_kind = link.parent == was.parent && link.kind == was.kind;
        (same_kind && by_index) || is_same_device(link, was, record)
    };
    if let Some(link) = link::by_name(pod, &record.ifname)?.filter(is_ours) {
        return Ok(Some(link));
    }
    Ok(link::all(pod)?.into_iter().find(is_ours))
}

/// The device of `record` on the host, under whatever name.
pub fn find_on_host(record: &Record, host: &mut Socket) -> Result<Option<Link>> {
    let Some(was) = &record.device.link else { return Ok(None) };
    let is_ours = |link: &Link| is_same_device(link, was, record);
    if let Some(link) = link::by_name(host, &was.name)?.filter(is_ours) {
        return Ok(Some(link));
    }
    let mut all = link::all(host)?;
    // The only netdev of a PCI function is its netdev, whatever became of index and MAC.
    let of_parent = all.iter().filter(|link| was.parent.is_some() && link.parent == was.parent).count();
    all.retain(|link| is_ours(link) || (of_parent == 1 && link.parent == was.parent));
    Ok(all.into_iter().next())
}

/// Is `link`, in whichever namespace, the device that was recorded? Never by its name alone.
fn is_same_device(link: &Link, was: &Link, record: &Record) -> bool {
    if link.parent != was.parent || link.kind != was.kind {
        return false;
    }
    let permanent =
        link.permanent_mac.as_ref().zip(was.permanent_mac.as_ref()).map(|(one, other)| one == other);
    let same_mac = link.mac == was.mac || link.mac == record.applied.mac;
    let same_index = link.index == was.index || link.index.get() == record.applied.index;
    // The kernel gives another index where its own is taken, and another name.
    let by_name = link.name == was.name || link.name == record.ifname || link.name.starts_with(KERNEL_NAME);
    match (&was.parent, permanent) {
        // A function has one netdev, or a few of different index and MAC. The permanent MAC of a VF may change:
        // igbvf takes for it what its PF says at each reset.
        (Some(_), permanent) => same_index || same_mac || permanent == Some(true),
        (None, Some(permanent)) => permanent,
        (None, None) => same_mac && (same_index || by_name),
    }
}

/// Does the device exist at all? A netdev without a bus that is neither here nor there is gone.
fn exists(device: &Home, node: &Node) -> Result<bool> {
    let Some(id) = device.pci_id.as_deref().and_then(DeviceId::parse) else { return Ok(false) };
    let function = Function::find(&node.sysfs_root, &id)?;
    // Unbound, or bound to a driver without netdevs: there is nothing to come back.
    Ok(function.is_some_and(|function| function.driver().is_some() && !function.is_userspace()))
}

/// Makes a link of the host what it was: down, with its name, MTU, MAC and altnames.
fn restore(link: &Link, was: &Link, host: &mut Socket) -> Result<()> {
    if link.up {
        link::set_down(host, link)?;
    }
    let mut steps = Vec::new();
    if link.name != was.name {
        steps.push(rename(link, was, host));
    }
    if link.mtu != was.mtu {
        steps.push(link::set_mtu(host, link, was.mtu));
    }
    if link.mac != was.mac
        && let Some(mac) = parse_mac(&was.mac)
    {
        steps.push(set_mac(host, link, &mac));
    }
    // A pod's own must not stay: the next pod may have no room for it.
    for altname in link.altnames.iter().filter(|name| !was.altnames.contains(name) && **name != was.name) {
        steps.push(link::remove_altname(host, link, altname));
    }
    for altname in was.altnames.iter().filter(|name| !link.altnames.contains(*name)) {
        steps.push(link::add_altname(host, link, altname));
    }
    all_of(steps).with_context(|| format!("{} is on the host, but not as it was", link.name))
}

/// A VF that is not trusted cannot set its MAC while the PF prescribes one, but takes that when it comes up.
fn set_mac(host: &mut Socket, link: &Link, mac: &[u8]) -> Result<()> {
    let refused = match link::set_mac(host, link, mac) {
        Err(error) if link.parent.is_some() => error,
        done => return done,
    };
    link::set_up(host, link)?;
    link::set_down(host, link)?;
    let now = link::by_index(host, link.index)?;
    let has_it = now.is_some_and(|now| parse_mac(&now.mac).as_deref() == Some(mac));
    if has_it { Ok(()) } else { Err(refused) }
}

fn rename(link: &Link, was: &Link, host: &mut Socket) -> Result<()> {
    if let Some(other) = link::by_name(host, &was.name)?.filter(|other| other.index != link.index) {
        fail!(
            Internal,
            "{} cannot have its name {} back, another device has it (index {}): rename that one",
            link.name,
            was.name,
            other.index
        );
    }
    // udev may have given it its old name as an altname.
    if link.altnames.contains(&was.name) {
        link::remove_altname(host, link, &was.name)?;
    }
    link::set_name(host, link, &was.name)
}

/// A device in a living pod of which nothing is on record, known by its PCI address alone: it goes back under
/// the name that the kernel would give it. For DELs after somebody emptied /run, or after another plugin's ADD.
pub fn give_back_unrecorded(netns: &Netns, id: &DeviceId, ifname: &str) -> Result<bool> {
    let mut pod = netns.run(Socket::open)?;
    let ours = |link: &Link| link.parent.as_deref() == Some(id.as_str());
    let Some(link) = link::by_name(&mut pod, ifname)?.filter(ours) else { return Ok(false) };
    let mut host = Socket::open()?;
    let name = free_name(&mut host, &link)?;
    for altname in clashing(&link, &mut host)? {
        link::remove_altname(&mut pod, &link, &altname)?;
    }
    link::move_to(&mut pod, &link, &Netns::current()?, &Move { name: &name, mtu: None, mac: None })?;
    log::warn!("{} was in the pod as {ifname} without a record: it is on the host as {name}", id.as_str());
    Ok(true)
}
