//! Links in other namespaces that are stacked on a device of the host: a pod's macvlan would be on the wire of the
//! device's next pod. sysfs shows only links in the device's own namespace (netdev_adjacent_sysfs_add). Whether any link
//! takes the device's frames the kernel tells ([`rail_netlink::stacked::receiver`]), wherever that is hidden. Which it is,
//! no request tells: the namespaces are searched for it, only then.
//!
//! A VLAN takes no frames but those with its tag, and is not told. One that is in use needs the device up, and one that
//! the pod left is removed at its end: where the kernel has VLANs at all, the namespaces are searched for these.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use crate::every_netns::{self, Seen, Which};
use crate::fail;
use crate::netns::Netns;
use crate::watchdog::{self, SearchTime};
use rail_netlink::Socket;
use rail_netlink::link::Link;
use rail_netlink::stacked::{self, Receiver, Stacked};

/// Present where the kernel has VLANs, whether as a module or not (vlan_proc_init).
const VLANS: &str = "/proc/net/vlan";

/// Refuses a device on which a link of another namespace is stacked. One that takes its frames and is not found refuses the
/// move into the pod, when nobody can make another: see [`crate::attach::steps::moved`].
pub fn refuse(what: &str, link: &Link, host: &mut Socket) -> Result<()> {
    let receiver = stacked::receiver(host, link)?;
    let Some(which) = where_to_look(receiver, link.up) else { return Ok(()) };
    let mut found = None;
    let seen = look(link, which, SearchTime::Short, |_, uppers, path| {
        found = uppers.into_iter().next().map(|upper| (upper, path.to_owned()));
        Ok(ControlFlow::Break(Seen::All))
    })?;
    if let Some((upper, netns)) = found {
        let (name, kind, netns) = (upper.name, upper.kind, netns.display());
        fail!(InvalidConfig, "{what} is in use: {name} ({kind}) is stacked on it, in the namespace {netns}");
    }
    if receiver == Receiver::Somebody {
        log::warn!("{what}: its frames go to a namespace that cannot be found");
    } else if seen == Seen::Part {
        log::warn!("{what}: the search for links stacked on it ended before every namespace was examined");
    }
    Ok(())
}

/// Removes the links that a pod stacked on `link` in whatever namespace, so that the next pod neither shares its rail
/// with them nor is refused because of them. A pod's end may wait for a search through every process of the node. Fails
/// where one is left, or may be.
pub fn remove_elsewhere(link: &Link, host: &mut Socket) -> Result<()> {
    // A VLAN that the pod left may be on the device although that is down by now.
    let Some(which) = where_to_look(stacked::receiver(host, link)?, true) else { return Ok(()) };
    let seen = look(link, which, SearchTime::Long, |socket, uppers, path| {
        let names: Vec<_> = uppers.iter().map(|upper| &*upper.name).take(SHOWN).collect();
        let (name, count, path) = (&link.name, uppers.len(), path.display());
        log::warn!("removing {count} links that {path} has stacked on {name}: {}", names.join(", "));
        let indices: Vec<_> = uppers.iter().map(|upper| upper.index).collect();
        stacked::remove(socket, &indices)?;
        Ok(ControlFlow::Continue(()))
    })?;
    match (seen, stacked::receiver(host, link)?) {
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

/// Which namespaces may have a link that is stacked on a device; `None` where it is certain that none has.
fn where_to_look(receiver: Receiver, may_carry_vlans: bool) -> Option<Which> {
    match receiver {
        Receiver::Somebody => Some(Which::Kept),
        Receiver::Unknown if may_carry_vlans => Some(Which::All),
        Receiver::Unknown => Some(Which::Mounted),
        Receiver::Nobody => (may_carry_vlans && Path::new(VLANS).exists()).then_some(Which::All),
    }
}

/// How many links of a namespace are named in the log.
const SHOWN: usize = 3;

/// Calls `found` with the links of each other namespace that are stacked on `link`.
fn look(
    link: &Link,
    which: Which,
    time: SearchTime,
    mut found: impl FnMut(&mut Socket, Vec<Stacked>, &Path) -> Result<ControlFlow<Seen>>,
) -> Result<Seen> {
    let home = Netns::current()?;
    let deadline = watchdog::search_until(time);
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
