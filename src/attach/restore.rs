//! Returning a device to the host and restoring it: from the pod, or from where the kernel put it when the pod's
//! namespace ended.
//!
//! DEL, the rollback of ADD, GC, `reap` and the recovery in the next ADD all use this. Every step looks at the present
//! state first, so it can be repeated after an interruption.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::record::{Original, Owed, Record, Records, What};
use super::{driver, host_address, infiniband, lost, rdma, stacked, userspace, vf};
use crate::error::all_of;
use crate::netlink::link::{self, Link, Move, parse_mac};
use crate::netlink::{Socket, address, rule};
use crate::netns::{Keeper, Netns, NetnsId};
use crate::node::Node;
use crate::sysfs::{self, DeviceId, Function};
use crate::{calls, fail, files, watchdog};

/// The kernel takes a namespace apart after its last user is gone, so its NICs come back some moments later. A driver
/// that makes its netdev anew takes as long.
const PATIENCE: Duration = Duration::from_millis(500);

/// Where the device is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is on the host, or does not exist any more. What could not be restored is owed.
    OnHost(Vec<Owed>),
    /// It is neither in the pod nor on the host: something keeps the dead namespace.
    Missing,
}

/// Moves the device of `record` to the host and restores it. Every step is tried. An error means that the device is
/// still in the pod.
pub fn device(record: &Record, records: &Records, node: &Node) -> Result<Outcome> {
    watchdog::step(|| format!("returning {} to the host", record.device.id));
    let mut host = Socket::open()?;
    let mut owed = Vec::new();
    let is_of_this_boot = record.boot_id == files::boot_id()?;
    if is_of_this_boot && (record.device.link.is_some() || record.is_chained()) {
        if let Some(netns) = open_if_same(&record.netns)? {
            take_from_pod(record, &netns, &mut host, &mut owed)?;
        }
    }
    // One that the pod put into a namespace of its own comes back with that one's end, under a name of the pod's choice.
    if is_of_this_boot && !record.is_chained() && owed.iter().all(|one| one.what != What::Rdma) {
        owe(&mut owed, What::Rdma, rdma::wait_for(record, node));
    }
    match on_host(record, records, node, &mut host)? {
        Some(left) => {
            // Its driver was bound again, and the RDMA device that the pod has kept is no more.
            if record.bind.is_some() && !left.iter().any(|one| matches!(one.what, What::Vf | What::Reset)) {
                owed.retain(|one| one.what != What::Rdma);
            }
            owed.extend(left);
        }
        None => return Ok(Outcome::Missing),
    }
    Ok(Outcome::OnHost(owed))
}

/// Restores the device, under whatever name it has on the host, and returns what is still owed of that; `None` when
/// it is not on the host.
pub fn on_host(
    record: &Record,
    records: &Records,
    node: &Node,
    host: &mut Socket,
) -> Result<Option<Vec<Owed>>> {
    let mut owed = Vec::new();
    // After a reboot neither the namespace nor the old settings exist any more.
    if record.boot_id != files::boot_id()? {
        return Ok(Some(owed));
    }
    if let Err(error) = refuse_held(record, node) {
        return Ok(Some(waiting(record, &error)));
    }
    let Some(original) = &record.device.link else {
        if record.owes(What::Reset) {
            owe(&mut owed, What::Reset, reset(record, records, node, host));
        }
        owe(&mut owed, What::Device, rdma::restore(record, node));
        owe(&mut owed, What::Vf, settings(record, records, node, host));
        return Ok(Some(owed));
    };
    let bound = match owes_settings(record) {
        true => driver::bind(record, records, node, host),
        false => Ok(()),
    };
    match &bound {
        // Nothing can be tried, a reset least of all.
        Err(error) if is_unbound(record, node)? => {
            return Ok(Some(all_of_device(record, &format!("{error:#}"))));
        }
        _ => owe(&mut owed, What::Vf, bound),
    }
    let Some(mut link) = wait_for(record, node, host)? else {
        if is_to_come_back(original, record, node)? {
            return Ok(None);
        }
        owe(&mut owed, What::Device, rdma::restore(record, node));
        owe(&mut owed, What::Vf, settings(record, records, node, host));
        return Ok(Some(owed));
    };
    // It never left, or has returned before: what is stacked on it is the host's.
    let is_as_it_was = is_as_it_was(&link, original, host)?;
    if !host_address::is_in_use(record, &link, is_as_it_was, host)? {
        // Once the pod's use has ended, what is stacked on the device is not the pod's.
        let is_of_pod = record.owes(What::Idle);
        if link.up && (is_of_pod || record.owes(What::Reset) || !is_as_it_was) {
            let what = if is_of_pod { What::Idle } else { What::Device };
            owe(&mut owed, what, link::set_down(host, &link));
        }
        if is_of_pod {
            owe(&mut owed, What::Idle, stacked::remove_elsewhere(&link));
        }
    }
    if record.owes(What::Reset) {
        let done = reset(record, records, node, host);
        match (wait_for(record, node, host)?, done) {
            (Some(anew), done) => {
                link = anew;
                owe(&mut owed, What::Reset, done);
            }
            // Its driver could not be bound again.
            (None, Err(error)) => return Ok(Some(all_of_device(record, &format!("{error:#}")))),
            (None, Ok(())) => return Ok(None),
        }
    }
    // A namespace that ends returns its RDMA devices first (rdma_dev_exit_net), then its netdevs.
    owe(&mut owed, What::Device, rdma::restore(record, node));
    // Not while the pod has it: without its VLAN it would be on another network for a moment. But before the MAC, which
    // a VF may not change while its PF prescribes another.
    let settings = settings(record, records, node, host);
    let is_mac_left = *settings.as_ref().unwrap_or(&false);
    let give_back = |_| match owes_settings(record) {
        true => infiniband::give_back(record, records, node, host),
        false => Ok(None),
    };
    let given_back = settings.and_then(give_back);
    if let Ok(Some(anew)) = &given_back {
        link = anew.clone();
    }
    owe(&mut owed, What::Vf, given_back);
    // sysfs has the settings of a device below its name.
    if link.name.contains(char::REPLACEMENT_CHARACTER) {
        match give_text(&link, host) {
            Ok(named) => link = named,
            Err(error) => owe(&mut owed, What::Device, Err::<(), _>(error)),
        }
    }
    restore_link(&link, original, record, node, host, &mut owed);
    if is_mac_left {
        owe(&mut owed, What::Vf, vf::restore_mac(record, records, node, host));
    }
    if let Some(of_host) = record.host.as_ref().filter(|_| record.owes(What::HostAddresses)) {
        owe(&mut owed, What::HostAddresses, of_host.restore(&link, host));
    }
    Ok(Some(owed))
}

/// Fails while a virtual machine, or another program in user space, has the function. A reset would tear it out of its
/// hands, and the pod's settings may be its own by now.
fn refuse_held(record: &Record, node: &Node) -> Result<()> {
    match record.device.function(node)?.filter(Function::is_userspace) {
        Some(function) => userspace::refuse_held(&record.device.id, &function),
        None => Ok(()),
    }
}

/// Everything that is owed of a device that somebody uses by now.
pub fn waiting(record: &Record, why: &anyhow::Error) -> Vec<Owed> {
    all_of_device(record, &format!("it waits until nothing uses the device: {why:#}"))
}

/// The same for another reason.
pub fn all_of_device(record: &Record, why: &str) -> Vec<Owed> {
    let mut owed = record.owed();
    owed.retain(|owed| owed.what.is_of_device());
    owed.iter_mut().for_each(|owed| why.clone_into(&mut owed.why));
    owed
}

/// Whether the VF may have settings of the pod. Once they are restored, what the PF says is somebody else's; a reset may make
/// it forget.
fn owes_settings(record: &Record) -> bool {
    record.owes(What::Vf) || record.owes(What::Reset)
}

/// The settings of the VF. Returns whether its MAC is left.
fn settings(record: &Record, records: &Records, node: &Node, host: &mut Socket) -> Result<bool> {
    if owes_settings(record) { vf::restore(record, records, node, host) } else { Ok(false) }
}

/// Whether a link of the host has MTU, MAC and state as they were, and the name, or another netdev has that.
fn is_as_it_was(link: &Link, was: &Link, host: &mut Socket) -> Result<bool> {
    let can_be_renamed = link.name != was.name && link::by_name(host, &was.name)?.is_none();
    Ok(!can_be_renamed && (was.mtu, &was.mac, was.up) == (link.mtu, &link.mac, link.up))
}

/// Notes what could not be done.
fn owe<T>(owed: &mut Vec<Owed>, what: What, done: Result<T>) {
    if let Err(error) = done {
        owed.push(Owed { what, why: format!("{error:#}") });
    }
}

/// Waits for the device on the host, where it may appear some moments later.
pub fn wait_for(record: &Record, node: &Node, host: &mut Socket) -> Result<Option<Link>> {
    let dies = record.device.link.as_ref().is_some_and(Link::dies_with_namespace);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = find_on_host(record, node, host)?;
        if found.is_some() || dies || Instant::now() > deadline || !exists(&record.device, node)? {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether the device of a pod that is gone is missing: it exists, and is not on the host.
pub fn is_away(record: &Record, node: &Node, host: &mut Socket) -> Result<bool> {
    let Some(original) = &record.device.link else { return Ok(false) };
    Ok(is_to_come_back(original, record, node)? && find_on_host(record, node, host)?.is_none())
}

/// Whether the device will come back. A veth or macvlan ends with its namespace, a VF with its PF's driver or with
/// sriov_numvfs.
fn is_to_come_back(original: &Link, record: &Record, node: &Node) -> Result<bool> {
    Ok(!original.dies_with_namespace() && exists(&record.device, node)?)
}

/// The reset that the network asked for. The driver of a VF is away meanwhile.
fn reset(record: &Record, records: &Records, node: &Node, host: &mut Socket) -> Result<()> {
    match (record.device.function(node)?, &record.bind) {
        (Some(function), Some(bind)) if function.driver().is_some() && !function.is_userspace() => {
            driver::bind_again(record, bind, &function, Function::flr, records, node, host)
        }
        (Some(function), _) => function.flr(),
        (None, _) => Ok(()),
    }
}

/// Opens the namespace of the record, unless its path now leads to another one, to none, or to another kind of file.
/// An error means that it exists and cannot be examined.
pub fn open_if_same(id: &NetnsId) -> Result<Option<Netns>> {
    let is_same = || -> Result<bool> {
        let now = NetnsId::of(&id.path).with_context(|| format!("cannot look at {}", id.path.display()))?;
        Ok(now.as_ref() == Some(id))
    };
    if !is_same()? {
        return Ok(None);
    }
    // It may have ended between the two looks.
    Netns::open(&id.path).map(Some).or_else(|error| if is_same()? { Err(error) } else { Ok(None) })
}

/// Takes rules, RDMA devices and the device itself from the pod; a failure of one does not leave the others there.
fn take_from_pod(record: &Record, netns: &Netns, host: &mut Socket, owed: &mut Vec<Owed>) -> Result<()> {
    let mut pod = netns.run(Socket::open)?;
    owe(owed, What::Rules, remove_rules(record, &mut pod));
    owe(owed, What::Rdma, rdma::take_back(record, netns));
    let Some(link) = find_in_pod(record, &mut pod)? else { return Ok(()) };
    // The move removes the addresses. With CNI_NETNS_OVERRIDE there is no move.
    if netns.is(&Netns::current()?)? {
        let addresses = record.applied.addresses.iter();
        owe(owed, What::Device, all_of(addresses.map(|net| address::remove(host, &link, *net))));
        // Kernels before 6.2 rename no link that is up.
        owe(owed, What::Device, link::set_down(host, &link));
    }
    remove_stacked(&mut pod, &link);
    move_home(record, &link, &mut pod, host)
}

/// Removes the rules of the rail. Unlike routes, rules stay when the device leaves.
pub fn remove_rules(record: &Record, pod: &mut Socket) -> Result<()> {
    all_of(record.applied.rules.iter().map(|rule| rule::remove(pod, rule)))
}

/// Removes the links that the pod stacked on the device: a macvlan keeps its lower device even over namespaces. A pod
/// that makes and removes links without a pause must not delay its own end, so only what one listing shows is removed.
fn remove_stacked(pod: &mut Socket, link: &Link) {
    const STACKED: [&str; 6] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"];
    let is_stacked = |upper: &Link| {
        upper.lower == Some(link.index.get())
            && upper.kind.as_deref().is_some_and(|kind| STACKED.contains(&kind))
    };
    let mut remove = || -> Result<()> {
        let uppers = link::seen(pod)?;
        all_of(uppers.iter().filter(|upper| is_stacked(upper)).map(|upper| link::remove(pod, upper)))
    };
    remove().unwrap_or_else(|error| log::warn!("{error:#}"));
}

/// Moves the device to the host with one message: name, MTU and MAC as they were.
pub fn move_home(record: &Record, link: &Link, pod: &mut Socket, host: &mut Socket) -> Result<()> {
    let Some(original) = &record.device.link else { return Ok(()) };
    let host_ns = Netns::current()?;
    let is_set = original.mac != link.mac && !vf::has_mac(record) && !link.is_infiniband();
    let mac = parse_mac(&original.mac).filter(|_| is_set);
    let mtu = Some(original.mtu).filter(|mtu| *mtu != link.mtu);
    // Another netdev may have the name by now. The device must leave the pod all the same.
    let name = match link::by_name(host, &original.name)? {
        None => original.name.clone(),
        Some(_) => free_name(host, link)?,
    };
    // Two of them clash unseen.
    link::remove_unreadable(pod, link).unwrap_or_else(|error| log::warn!("{error:#}"));
    for altname in clashing(link, host)? {
        // If it stays, the move fails, and is tried again below.
        link::remove_altname(pod, link, &altname).unwrap_or_else(|error| log::warn!("{error:#}"));
    }
    let moved = link::move_to(pod, link, &host_ns, &Move { name: &name, mtu, mac: mac.as_deref() });
    // The message is not atomic: what counts is where the device is. The rest is restored on the host.
    if moved.is_err() && find_in_pod(record, pod)?.is_some() {
        // Try again without the parts that a driver may refuse.
        link::move_to(pod, link, &host_ns, &Move { name: &free_name(host, link)?, mtu: None, mac: None })?;
    }
    Ok(())
}

/// The kernel calls a device whose name is taken by this, followed by its index.
const KERNEL_NAME: &str = "dev";

/// A name that no netdev of the host has.
fn free_name(host: &mut Socket, link: &Link) -> Result<String> {
    for number in u32::from(link.index)..u32::from(link.index).saturating_add(1000) {
        let name = format!("{KERNEL_NAME}{number}");
        if link::by_name(host, &name)?.is_none() {
            return Ok(name);
        }
    }
    fail!(Internal, "the host has no free name for {}", link.name)
}

/// Which altnames of `link` another netdev of the host has: the kernel refuses the move for each.
fn clashing(link: &Link, host: &mut Socket) -> Result<Vec<String>> {
    let mut taken = Vec::new();
    for name in &link.altnames {
        if link::by_any_name(host, name)?.is_some() {
            taken.push(name.clone());
        }
    }
    Ok(taken)
}

/// Finds the device of `record` in its pod, under whatever name: the index that it got there is proof enough. An ADD
/// that was killed in between did not learn the index.
pub fn find_in_pod(record: &Record, pod: &mut Socket) -> Result<Option<Link>> {
    let Some(original) = &record.device.link else { return Ok(None) };
    let is_ours = |link: &Link| {
        let by_index = link.index.get() == record.applied.index;
        let same_kind = link.parent == original.parent && link.kind == original.kind;
        (same_kind && by_index) || is_same_device(link, original, record)
    };
    match likely(record, &[&record.ifname, &original.name], pod)?.into_iter().find(is_ours) {
        None => Ok(link::seen(pod)?.into_iter().find(is_ours)),
        found => Ok(found),
    }
}

/// The advice for a device that stays in a namespace without a path.
pub fn how_to_end(record: &Record) -> String {
    let (original, applied) = (record.device.link.as_ref(), &record.applied);
    let is_ours = |link: &Link| {
        original.is_some_and(|original| {
            link.parent == original.parent && (link.mac == original.mac || link.mac == applied.mac)
        })
    };
    let has_it = |keeper: &Keeper| {
        let find = || link::seen(&mut Netns::open(&keeper.path)?.run(Socket::open)?);
        find().is_ok_and(|links| links.iter().any(is_ours))
    };
    let mut keepers = record.netns.keepers();
    keepers.retain(has_it);
    if keepers.is_empty() {
        return "a process keeps it open (`lsns -t net`); end that, and `rail-cni reap`".to_owned();
    }
    let named: Vec<_> = keepers.iter().map(|one| format!("{} ({})", one.id, one.name)).collect();
    let ids: Vec<_> = keepers.iter().map(|one| one.id.to_string()).collect();
    format!("process {} keeps it open: `kill {}`, then `rail-cni reap`", named.join(", "), ids.join(" "))
}

/// Finds the device of `record` on the host, under whatever name.
pub fn find_on_host(record: &Record, node: &Node, host: &mut Socket) -> Result<Option<Link>> {
    let Some(original) = &record.device.link else { return Ok(None) };
    let is_ours = |link: &Link| is_same_device(link, original, record);
    let found = likely(record, &[&original.name, &record.ifname], host)?.into_iter().find(is_ours);
    if found.is_some() {
        return Ok(found);
    }
    let Some(function) = record.device.function(node)? else {
        return Ok(link::seen(host)?.into_iter().find(is_ours));
    };
    let mut of_function = Vec::new();
    for name in function.netdevs()? {
        let is_its_port = match (record.device.port, sysfs::port_of(&node.sysfs_root, &name)) {
            (Some(original), Some(now)) => original == now,
            _ => true,
        };
        of_function.extend(link::by_name(host, &name)?.filter(|_| is_its_port));
    }
    if let Some(found) = of_function.iter().find(|link| is_ours(link)) {
        return Ok(Some(found.clone()));
    }
    // A driver that made its netdev anew gave it another index, and perhaps another MAC. If the function has one netdev,
    // it is that one; links that are stacked on it, as the children of an IPoIB device, have a lower link.
    of_function.retain(|link| link.lower == original.lower && link.parent == original.parent);
    if !record.device.siblings && of_function.len() == 1 {
        return Ok(of_function.pop());
    }
    Ok(link::seen(host)?.into_iter().find(is_ours))
}

/// The links that `record` most likely means. Each is one request, while the kernel's list of all links is never
/// complete where links come and go all the time. The index comes first: a pod can give the device's name and MAC to a
/// link of its own.
fn likely(record: &Record, names: &[&String], socket: &mut Socket) -> Result<Vec<Link>> {
    let mut found = Vec::new();
    let indexes =
        [record.applied.index, record.device.link.as_ref().map_or(0, |original| original.index.get())];
    for index in indexes.into_iter().filter_map(link::Index::new) {
        found.extend(link::by_index(socket, index)?);
    }
    for name in names {
        found.extend(link::by_name(socket, name)?);
    }
    Ok(found)
}

/// Whether `link`, in whichever namespace, is the device that was recorded. Its name alone is no proof.
fn is_same_device(link: &Link, original: &Link, record: &Record) -> bool {
    if link.parent != original.parent || link.kind != original.kind {
        return false;
    }
    let permanent =
        link.permanent_mac.as_ref().zip(original.permanent_mac.as_ref()).map(|(one, other)| one == other);
    let same_mac =
        link::is_same_mac(&link.mac, &original.mac) || link::is_same_mac(&link.mac, &record.applied.mac);
    let same_index = link.index == original.index || link.index.get() == record.applied.index;
    // The kernel gives another index or name where the device's own is taken.
    let by_name =
        link.name == original.name || link.name == record.ifname || link.name.starts_with(KERNEL_NAME);
    match (&original.parent, permanent) {
        // Ports of one function differ by their MACs; their indexes may be exchanged on the way.
        (Some(_), permanent) if record.device.siblings => permanent.unwrap_or(same_mac),
        // The permanent MAC of a VF may change: igbvf takes for it what its PF says at each reset.
        (Some(_), permanent) => same_index || same_mac || permanent == Some(true),
        (None, Some(permanent)) => permanent,
        (None, None) => same_mac && (same_index || by_name),
    }
}

/// Whether the device exists at all. A netdev without a bus that is in neither namespace is gone.
fn exists(device: &Original, node: &Node) -> Result<bool> {
    // If it is unbound, or bound to a driver without netdevs, there is nothing to come back.
    let function = device.function(node)?;
    Ok(function.is_some_and(|function| function.driver().is_some() && !function.is_userspace()))
}

/// Has the host a netdev of the record's function? Then no pod has it.
pub fn has_netdev_on_host(record: &Record, node: &Node) -> Result<bool> {
    let function = record.device.function(node)?;
    Ok(function.map(|function| function.netdev()).transpose()?.flatten().is_some())
}

/// Has the device no driver, because a call was ended while it bound that again? Then the netdev is nowhere.
pub fn is_unbound(record: &Record, node: &Node) -> Result<bool> {
    let function = record.device.function(node)?.filter(|_| record.bind.is_some());
    Ok(function.is_some_and(|function| function.driver().is_none()))
}

/// Names a device whose pod has given it a name that is no text.
fn give_text(link: &Link, host: &mut Socket) -> Result<Link> {
    let name = free_name(host, link)?;
    link::set_name(host, link, &name)?;
    Ok(Link { name, ..link.clone() })
}

/// Restores a link of the host, which is down: name, MTU, MAC, altnames, all that a pod can change, and up.
fn restore_link(
    link: &Link,
    original: &Link,
    record: &Record,
    node: &Node,
    host: &mut Socket,
    owed: &mut Vec<Owed>,
) {
    let mut steps = Vec::new();
    // These come first: an XDP program limits the MTU, and sysfs has the device under its present name.
    if let Some(settings) = &record.settings {
        steps.extend(settings.restore(link, &node.sysfs_root, host));
    }
    // An altname that the pod gave must not stay: the next pod may have the same one already.
    steps.push(link::remove_unreadable(host, link));
    for altname in
        link.altnames.iter().filter(|name| !original.altnames.contains(name) && **name != original.name)
    {
        steps.push(link::remove_altname(host, link, altname));
    }
    if link.name != original.name {
        steps.push(rename(link, original, host));
    }
    if link.mtu != original.mtu {
        steps.push(link::set_mtu(host, link, original.mtu));
    }
    // sysctls are found by the name, and below an MTU of 1280 there are none of IPv6. They come before anything sets the
    // link up.
    if let Some(of_host) = record.host.as_ref().filter(|_| record.owes(What::HostAddresses)) {
        let now = link::by_index(host, link.index);
        let set = now.and_then(|now| now.map_or(Ok(()), |now| of_host.restore_sysctls(&now)));
        owe(owed, What::HostAddresses, set);
    }
    // That of an InfiniBand netdev comes from the hardware.
    if link.mac != original.mac && !link.is_infiniband() {
        if let Some(mac) = parse_mac(&original.mac) {
            steps.push(set_mac(host, link, &mac));
        }
    }
    for altname in original.altnames.iter().filter(|name| !link.altnames.contains(*name)) {
        steps.push(link::add_altname(host, link, altname));
    }
    if original.up {
        steps.push(link::set_up(host, link));
    }
    let done = all_of(steps).with_context(|| format!("{} is on the host, but not as it was", link.name));
    owe(owed, What::Device, done);
}

/// Sets the MAC. A VF that is not trusted cannot while the PF prescribes one, but takes that when it comes up.
fn set_mac(host: &mut Socket, link: &Link, mac: &[u8]) -> Result<()> {
    let refused = match link::set_mac(host, link, mac) {
        Err(error) if link.parent.is_some() => error,
        done => return done,
    };
    link::set_up(host, link)?;
    // A device that stays up looks as if somebody used it.
    link::set_down(host, link).or_else(|_| link::set_down(host, link))?;
    let now = link::by_index(host, link.index)?;
    let has_it = now.is_some_and(|now| parse_mac(&now.mac).as_deref() == Some(mac));
    if has_it { Ok(()) } else { Err(refused) }
}

fn rename(link: &Link, original: &Link, host: &mut Socket) -> Result<()> {
    if let Some(other) = link::by_name(host, &original.name)?.filter(|other| other.index != link.index) {
        fail!(
            Internal,
            "{} cannot get its name {} back, because another device has it (index {}): rename that one",
            link.name,
            original.name,
            other.index
        );
    }
    // udev may have given it its old name as an altname.
    if link.altnames.contains(&original.name) {
        link::remove_altname(host, link, &original.name)?;
    }
    link::set_name(host, link, &original.name)
}

/// Returns a device without a record from a living pod; its PCI address alone is known. On the host it gets its usual
/// name, or else a free one. DEL needs this after /run was emptied, or after another plugin's ADD.
pub fn unrecorded(netns: &Netns, id: &DeviceId, ifname: &str, node: &Node) -> Result<bool> {
    let mut pod = netns.run(Socket::open)?;
    let ours = |link: &Link| link.parent.as_deref() == Some(id.as_str());
    let Some(link) = link::by_name(&mut pod, ifname)?.filter(ours) else { return Ok(false) };
    let mut host = Socket::open()?;
    let usual = lost::usual_name(id, &link, node)?;
    let is_free = usual != link.name && link::by_name(&mut host, &usual)?.is_none();
    let name = if is_free { usual } else { free_name(&mut host, &link)? };
    for altname in clashing(&link, &mut host)? {
        link::remove_altname(&mut pod, &link, &altname)?;
    }
    link::move_to(&mut pod, &link, &Netns::current()?, &Move { name: &name, mtu: None, mac: None })?;
    calls::restored(format!(
        "{} was in the pod as {ifname} without a record: it is on the host as {name}",
        id.as_str()
    ));
    Ok(true)
}
