//! Links in other namespaces that are stacked on a device of the host: a pod's macvlan would be on
//! the wire of the device's next pod. sysfs shows only links in the device's own namespace
//! (netdev_adjacent_sysfs_add). Whether any link takes the device's frames the kernel tells
//! ([`rail_netlink::stacked::receiver`]), wherever that is hidden. Which it is, no request tells:
//! the namespaces are searched for it, only then.
//!
//! A VLAN takes no frames but those with its tag, and is not told: each of its 8,190 possible ones
//! has to be asked for ([`rail_netlink::stacked::vlan`]). A pod's end does so, and an ADD of a
//! device that is up, which a VLAN in use needs. An ADD of any other asks for those alone that lead
//! into the network without VLANs.

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;

use crate::every_netns::{self, Seen, Which};
use crate::fail;
use crate::netns::Netns;
use crate::watchdog;
use rail_netlink::Socket;
use rail_netlink::link::{self, Index, Link};
use rail_netlink::stacked::{self, NO_VLAN, Receiver, Stacked};

/// Present where the kernel has VLANs, whether as a module or not (vlan_proc_init).
const VLANS: &str = "/proc/net/vlan";

/// The share of the call's time for the question for VLANs.
const PART: u32 = 18;
/// The share of a search through the namespaces: a pod waits for its start, and its end, or a
/// person, can wait longer. Pods can make any number of namespaces.
const SEARCH: u32 = 180;
const LONG_SEARCH: u32 = 36;

/// Refuses a device on which a link of another namespace is stacked. One that takes its frames and
/// is not found refuses the move into the pod, when nobody can make another: see
/// `attach/steps/moved.rs`.
pub fn refuse(what: &str, link: &Link, host: &mut Socket) -> Result<()> {
    let receiver = receiver(link, vlans_in_use(link.up), host)?;
    let Some(which) = where_to_look(receiver, link.up) else {
        return Ok(());
    };
    let mut found = None;
    let seen = look(link, which, SEARCH, |_, uppers, path| {
        found = uppers
            .into_iter()
            .next()
            .map(|upper| (upper, path.to_owned()));
        Ok(ControlFlow::Break(Seen::All))
    })?;
    if let Some((upper, netns)) = found {
        let (name, kind, netns) = (upper.name, upper.kind, netns.display());
        fail!(
            InvalidConfig,
            "{what} is in use: {name} ({kind}) is stacked on it, in the namespace {netns}"
        );
    }
    if receiver == Receiver::Somebody {
        log::warn!("{what}: its frames go to a namespace that cannot be found");
    } else if seen == Seen::Part {
        log::warn!(
            "{what}: the search for links stacked on it ended before every namespace was examined"
        );
    }
    Ok(())
}

/// Removes the links that a pod stacked on `link` in whatever namespace, so that the next pod
/// neither shares its rail with them nor is refused because of them. A pod's end may wait for a
/// search through every process of the node. Fails where one is left, or may be.
pub fn remove_elsewhere(link: &Link, host: &mut Socket) -> Result<()> {
    let Some(which) = where_to_look(receiver(link, stacked::VLANS, host)?, true) else {
        return Ok(());
    };
    let seen = look(link, which, LONG_SEARCH, |socket, uppers, path| {
        let names: Vec<_> = uppers
            .iter()
            .map(|upper| &*upper.name)
            .take(SHOWN)
            .collect();
        let (name, count, path) = (&link.name, uppers.len(), path.display());
        log::warn!(
            "removing {count} links that {path} has stacked on {name}: {}",
            names.join(", ")
        );
        let indices: Vec<_> = uppers.iter().map(|upper| upper.index).collect();
        stacked::remove(socket, &indices)?;
        Ok(ControlFlow::Continue(()))
    })?;
    match (seen, receiver(link, stacked::VLANS, host)?) {
        (_, Receiver::Somebody) => {
            fail!(
                Internal,
                "{}: a link in another namespace takes its frames, and cannot be found",
                link.name
            )
        }
        (Seen::Part, _) => fail!(
            Internal,
            "{}: the search for links stacked on it ended before every namespace was examined",
            link.name
        ),
        (Seen::All, _) => Ok(()),
    }
}

/// The namespaces that may have a link stacked on a device; `None` where it is certain that none
/// has.
fn where_to_look(receiver: Receiver, may_carry_vlans: bool) -> Option<Which> {
    match receiver {
        Receiver::Somebody => Some(Which::Kept),
        Receiver::Unknown if may_carry_vlans => Some(Which::All),
        Receiver::Unknown => Some(Which::Mounted),
        Receiver::Nobody => None,
    }
}

/// Finds the receiver of the frames of a device whose use is about to begin, when no link outside
/// of the pod can be added any more. `was_up`: on the host.
pub fn receiver_in_pod(link: &Link, was_up: bool, pod: &mut Socket) -> Result<Receiver> {
    receiver(link, vlans_in_use(was_up), pod)
}

/// Whether another namespace takes the frames of a rail in use. A process with CAP_NET_ADMIN and the
/// number of the node's namespace can make a macvlan on it at any time. Links of the pod itself are
/// its own business, and hide others.
pub fn is_tapped(link: &Link, pod: &mut Socket) -> Result<bool> {
    if link.master.is_some() || stacked::receiver(pod, link)? != Receiver::Somebody {
        return Ok(false);
    }
    Ok(of_namespace(link, pod)?.is_empty())
}

/// A link that takes the frames of a rail in another namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tap {
    /// The link.
    pub link: Stacked,
    /// A path that leads to its namespace; `None` for the caller's, which is the host's.
    pub netns: Option<PathBuf>,
}

/// Finds a tap of each rail, given by its index and its namespace. None is found in a namespace that
/// is out of sight, or that the search does not reach in time.
pub fn taps(rails: &[(Index, Netns)]) -> Result<Vec<Option<Tap>>> {
    let mut taps = vec![None; rails.len()];
    if rails.is_empty() || look_for_taps(rails, &mut taps, &mut Socket::open()?, None)? {
        return Ok(taps);
    }
    let deadline = Instant::now() + watchdog::part(SEARCH);
    every_netns::visit(Which::Kept, deadline, |socket, path| {
        match look_for_taps(rails, &mut taps, socket, Some(path)) {
            Ok(true) => return Ok(ControlFlow::Break(Seen::All)),
            Ok(false) => (),
            Err(error) => log::debug!("{} cannot be asked: {error:#}", path.display()),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(taps)
}

/// Looks into one namespace for the taps that are still to be found. Returns whether all are.
fn look_for_taps(
    rails: &[(Index, Netns)],
    taps: &mut [Option<Tap>],
    socket: &mut Socket,
    netns: Option<&Path>,
) -> Result<bool> {
    for ((index, home), tap) in rails.iter().zip(taps.iter_mut()) {
        if tap.is_some() {
            continue;
        }
        let uppers = stacked::on(socket, *index, home)?;
        *tap = uppers.into_iter().next().map(|link| Tap {
            link,
            netns: netns.map(Path::to_owned),
        });
    }
    Ok(taps.iter().all(Option::is_some))
}

/// The links in the namespace of `link` itself that are stacked on it.
pub fn of_namespace(link: &Link, socket: &mut Socket) -> Result<Vec<Link>> {
    const STACKED: [&str; 6] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"];
    let is_stacked = |upper: &Link| {
        let kind = upper.kind.as_deref().unwrap_or_default();
        upper.lower == Some(link.index.get()) && STACKED.contains(&kind)
    };
    link::seen(socket, is_stacked)
}

/// The VLANs that an ADD asks about.
fn vlans_in_use(is_up: bool) -> Range<u16> {
    if is_up { stacked::VLANS } else { NO_VLAN }
}

/// Finds the receiver of a device's frames, with the tags of these VLANs or with none.
fn receiver(link: &Link, vlans: Range<u16>, socket: &mut Socket) -> Result<Receiver> {
    let untagged = stacked::receiver(socket, link)?;
    // The question would load the kernel's module.
    if untagged == Receiver::Somebody || !Path::new(VLANS).exists() {
        return Ok(untagged);
    }
    let deadline = Instant::now() + watchdog::part(PART);
    let Some(tagged) = stacked::vlan(socket, link, vlans, deadline)? else {
        fail!(
            TryAgain,
            "{}: the kernel was too busy to tell whether a VLAN is on it",
            link.name
        )
    };
    Ok(if tagged == Receiver::Nobody {
        untagged
    } else {
        tagged
    })
}

/// Number of links of a namespace that the log names.
const SHOWN: usize = 3;

/// Calls `found` with the links of each other namespace that are stacked on `link`.
fn look(
    link: &Link,
    which: Which,
    part: u32,
    mut found: impl FnMut(&mut Socket, Vec<Stacked>, &Path) -> Result<ControlFlow<Seen>>,
) -> Result<Seen> {
    let home = Netns::current()?;
    let deadline = Instant::now() + watchdog::part(part);
    every_netns::visit(which, deadline, |socket, path| {
        // Until there is none: who has one link can make others on it, also now.
        loop {
            match stacked::on(socket, link.index, &home) {
                Ok(uppers) if uppers.is_empty() => return Ok(ControlFlow::Continue(())),
                Ok(_) if Instant::now() > deadline => return Ok(ControlFlow::Break(Seen::Part)),
                Ok(uppers) => {
                    if let Some(seen) = found(socket, uppers, path)?.break_value() {
                        return Ok(ControlFlow::Break(seen));
                    }
                }
                Err(error) => {
                    log::debug!("{} cannot be asked: {error:#}", path.display());
                    return Ok(ControlFlow::Continue(()));
                }
            }
        }
    })
}
