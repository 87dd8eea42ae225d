//! Finds the device of an attachment: once, and again after a step has moved it or made it anew.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::owner::Owner;
use crate::every_netns::{self, Seen, Which};
use crate::netns::{Keeper, Netns, NetnsId};
use crate::node::Node;
use crate::sysfs::{self, Function};
use crate::watchdog;
use rail_netlink::Socket;
use rail_netlink::link::{self, Link};

/// The kernel takes a namespace apart after its last user is gone, so its NICs come back some
/// moments later. A driver that makes its netdev anew takes as long.
const PATIENCE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(10);
/// The share of a call's time limit for a search: pods can make any number of namespaces.
const SEARCH: u32 = 36;

/// The place of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In its pod, as this link.
    Pod(Link),
    /// On the host, as this link.
    Host(Link),
    /// On the host, with a driver that makes no netdev: a program in user space has it, or may take
    /// it.
    UserSpace,
    /// On the host, without a driver.
    Unbound,
    /// It exists, and its netdev is neither in the pod nor on the host: another namespace has it, or
    /// something keeps the pod's.
    Missing,
    /// The node does not have it any more.
    Gone,
}

/// Finds the device of `owner`. `pod` is a socket of its namespace, while that is alive.
pub fn locate(
    owner: &Owner,
    function: Option<&Function>,
    node: &Node,
    pod: Option<&mut Socket>,
    host: &mut Socket,
) -> Result<Place> {
    let Some(original) = &owner.device.link else {
        return Ok(match function {
            None => Place::Gone,
            Some(function) if function.driver().is_none() => Place::Unbound,
            Some(_) => Place::UserSpace,
        });
    };
    if let Some(link) = pod.map(|pod| in_pod(owner, pod)).transpose()?.flatten() {
        return Ok(Place::Pod(link));
    }
    if let Some(link) = on_host(owner, function, node, host)? {
        return Ok(Place::Host(link));
    }
    if original.dies_with_namespace() {
        return if is_elsewhere(owner, original)? {
            Ok(Place::Missing)
        } else {
            no_netdev(function, Place::Gone)
        };
    }
    no_netdev(function, Place::Missing)
}

/// A VF ends with its PF's driver or with sriov_numvfs; without a driver, or with one for programs
/// in user space, no netdev can come back.
fn no_netdev(function: Option<&Function>, otherwise: Place) -> Result<Place> {
    Ok(match function.filter(|function| function.exists()) {
        None => Place::Gone,
        Some(function) if function.driver().is_none() => Place::Unbound,
        Some(function) if function.is_userspace() => Place::UserSpace,
        Some(_) => otherwise,
    })
}

/// Whether a veth or macvlan that is neither in its pod nor on the host is there still: it ends with
/// its namespace, which a process may keep without the path that was recorded; or the pod has given
/// the device to another one.
fn is_elsewhere(owner: &Owner, original: &Link) -> Result<bool> {
    if !owner.is_of_this_boot()? {
        return Ok(false);
    }
    let sightings = search(&[owner], Which::Mounted)?;
    if sightings.iter().any(Option::is_some) {
        return Ok(true);
    }
    // The kernel gives the inode number of a namespace that is gone to the next one, so each is
    // looked into. In the pod's own, the device has the MAC that its network set.
    let has_it = |keeper: &Keeper| {
        let find = || {
            let mut socket = Netns::open(&keeper.path)?.run(Socket::open)?;
            link::seen(&mut socket, |link| is_same_device(link, original, owner))
        };
        find().is_ok_and(|links| !links.is_empty())
    };
    Ok(owner.netns.keepers().iter().any(has_it))
}

/// A device in a namespace other than the host's.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// The netdev there.
    pub link: Link,
    /// A path that leads to the namespace.
    pub netns: PathBuf,
}

/// Searches namespaces other than the host's for the devices of `owners`.
pub fn search(owners: &[&Owner], which: Which) -> Result<Vec<Option<Sighting>>> {
    let mut sightings = vec![None; owners.len()];
    let deadline = Instant::now() + watchdog::part(SEARCH);
    every_netns::visit(which, deadline, |socket, netns| {
        let is_any = |link: &Link| owners.iter().any(|owner| is_sighting(link, owner));
        // A namespace that ends meanwhile has no device of a pod.
        for link in link::seen(socket, is_any).unwrap_or_default() {
            for (owner, sighting) in owners.iter().zip(&mut sightings) {
                if sighting.is_none() && is_sighting(&link, owner) {
                    *sighting = Some(Sighting {
                        link: link.clone(),
                        netns: netns.to_owned(),
                    });
                }
            }
        }
        let is_done = sightings.iter().all(Option::is_some);
        Ok(if is_done {
            ControlFlow::Break(Seen::All)
        } else {
            ControlFlow::Continue(())
        })
    })?;
    Ok(sightings)
}

/// Whether `link`, in another namespace than the pod's, is the device of `owner`. A pod can change
/// name and MAC before it gives its rail away; the function of the bus stays. A virtual device has
/// none, and a MAC that a network sets may be that of others: with it, the index decides.
fn is_sighting(link: &Link, owner: &Owner) -> bool {
    let Some(original) = &owner.device.link else {
        return false;
    };
    if link.parent != original.parent || link.kind != original.kind {
        return false;
    }
    match &original.parent {
        Some(_) if !owner.device.siblings => true,
        Some(_) => is_same_device(link, original, owner),
        None => {
            let is_at_index = link.index.get() == owner.inside.index;
            link.mac == original.mac || link.mac == owner.inside.mac && is_at_index
        }
    }
}

/// Like [`locate`], with patience for a device that is about to appear on the host.
pub fn await_home(
    owner: &Owner,
    function: Option<&Function>,
    node: &Node,
    host: &mut Socket,
) -> Result<Place> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let place = locate(owner, function, node, None, host)?;
        if place != Place::Missing || Instant::now() > deadline {
            return Ok(place);
        }
        sleep(PAUSE);
    }
}

/// Finds the device in its pod, under whatever name: the index that it got there is proof enough.
/// An ADD that was killed in between did not learn the index.
pub fn in_pod(owner: &Owner, pod: &mut Socket) -> Result<Option<Link>> {
    let Some(original) = &owner.device.link else {
        return Ok(None);
    };
    let is_ours = |link: &Link| {
        let by_index = link.index.get() == owner.inside.index;
        let same_kind = link.parent == original.parent && link.kind == original.kind;
        (same_kind && by_index) || is_same_device(link, original, owner)
    };
    match likely(owner, &[&owner.ifname, &original.name], pod)?
        .into_iter()
        .find(is_ours)
    {
        None => Ok(link::seen(pod, is_ours)?.into_iter().next()),
        found => Ok(found),
    }
}

/// Finds the device on the host, under whatever name.
pub fn on_host(
    owner: &Owner,
    function: Option<&Function>,
    node: &Node,
    host: &mut Socket,
) -> Result<Option<Link>> {
    let Some(original) = &owner.device.link else {
        return Ok(None);
    };
    let is_ours = |link: &Link| is_same_device(link, original, owner);
    let found = likely(owner, &[&original.name, &owner.ifname], host)?
        .into_iter()
        .find(is_ours);
    if found.is_some() {
        return Ok(found);
    }
    let Some(function) = function.filter(|function| function.exists()) else {
        return Ok(link::seen(host, is_ours)?.into_iter().next());
    };
    let mut of_function = Vec::new();
    for name in function.netdevs()? {
        let is_its_port = match (owner.device.port, sysfs::port_of(&node.sysfs_root, &name)) {
            (Some(original), Some(now)) => original == now,
            _ => true,
        };
        if is_its_port {
            of_function.extend(link::by_name(host, &name)?);
        }
    }
    if let Some(found) = of_function.iter().find(|link| is_ours(link)) {
        return Ok(Some(found.clone()));
    }
    // A driver that made its netdev anew gave it another index, and perhaps another MAC. If the
    // function has one netdev, it is that one; links that are stacked on it, as the children of an
    // IPoIB device, have a lower link.
    // A virtual link has no place on a bus: one of another kind may have taken the name since sysfs
    // was read.
    let is_of_its_kind = |link: &Link| original.kind.is_none() || link.kind == original.kind;
    of_function.retain(|link| {
        link.lower == original.lower && link.parent == original.parent && is_of_its_kind(link)
    });
    if !owner.device.siblings && of_function.len() == 1 {
        return Ok(of_function.pop());
    }
    Ok(link::seen(host, is_ours)?.into_iter().next())
}

/// The links that `owner` most likely means. Each is one request, while the kernel's list of all
/// links is never complete where links come and go all the time. The index comes first: a pod can
/// give the device's name and MAC to a link of its own.
fn likely(owner: &Owner, names: &[&String], socket: &mut Socket) -> Result<Vec<Link>> {
    let mut found = Vec::new();
    let original = owner
        .device
        .link
        .as_ref()
        .map_or(0, |original| original.index.get());
    for index in [owner.inside.index, original]
        .into_iter()
        .filter_map(link::Index::new)
    {
        found.extend(link::by_index(socket, index)?);
    }
    for name in names {
        found.extend(link::by_name(socket, name)?);
    }
    Ok(found)
}

/// Whether `link`, in whichever namespace, is the device that was recorded. Its name alone is no
/// proof.
fn is_same_device(link: &Link, original: &Link, owner: &Owner) -> bool {
    if link.parent != original.parent || link.kind != original.kind {
        return false;
    }
    let permanent = link
        .permanent_mac
        .as_ref()
        .zip(original.permanent_mac.as_ref())
        .map(|(one, other)| one == other);
    let same_mac = link::is_same_mac(&link.mac, &original.mac)
        || link::is_same_mac(&link.mac, &owner.inside.mac);
    let same_index = link.index == original.index || link.index.get() == owner.inside.index;
    // The kernel gives another index or name where the device's own is taken.
    let by_name = link.name == original.name
        || link.name == owner.ifname
        || link.name.starts_with(link::FREE_NAME);
    match (&original.parent, permanent) {
        // Ports of one function differ by their MACs; their indexes may be exchanged on the way.
        (Some(_), permanent) if owner.device.siblings => permanent.unwrap_or(same_mac),
        // The permanent MAC of a VF may change: igbvf takes for it what its PF says at each reset.
        (Some(_), permanent) => same_index || same_mac || permanent == Some(true),
        (None, Some(permanent)) => permanent,
        (None, None) => same_mac && (same_index || by_name),
    }
}

/// Opens the namespace that was recorded, unless its path now leads to another one, to none, or to
/// another kind of file. An error means that it exists and cannot be examined.
pub fn open_if_same(id: &NetnsId) -> Result<Option<Netns>> {
    let is_same = || -> Result<bool> {
        let now = NetnsId::of(&id.path)
            .with_context(|| format!("cannot look at {}", id.path.display()))?;
        Ok(now.as_ref() == Some(id))
    };
    if !is_same()? {
        return Ok(None);
    }
    // It may have ended between the two looks.
    Netns::open(&id.path)
        .map(Some)
        .or_else(|error| if is_same()? { Err(error) } else { Ok(None) })
}

/// The altnames of `link` that another netdev of the host has: the kernel refuses the move for
/// each.
pub fn clashing(link: &Link, host: &mut Socket) -> Result<Vec<String>> {
    let mut taken = Vec::new();
    for name in &link.altnames {
        if link::by_any_name(host, name)?.is_some() {
            taken.push(name.clone());
        }
    }
    Ok(taken)
}
