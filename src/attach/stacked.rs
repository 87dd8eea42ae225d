//! Links in other namespaces that are stacked on a device of the host: a pod's macvlan would be on the wire of the
//! device's next pod. sysfs shows only links in the device's own namespace (netdev_adjacent_sysfs_add), and no request
//! asks the kernel the other way round, so every namespace is entered and searched.
//!
//! At a pod's end all namespaces are searched, also those that only a process keeps: what the pod left on its rail is
//! removed. At ADD only the namespaces that the runtime has mounted are searched, at the cost of about one netlink
//! request each. The namespaces of processes, which cost a look at every process of the node, are added when the device
//! is up: only then can a link on it carry traffic without having come from a pod of ours.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;

use crate::every_netns::{self, Seen, Which};
use crate::fail;
use crate::netns::Netns;
use crate::watchdog::{self, SearchTime};
use rail_netlink::Socket;
use rail_netlink::link::Link;
use rail_netlink::stacked::{self, Stacked};

/// A link that is stacked on our device.
#[derive(Debug)]
pub struct Upper {
    /// The link.
    pub link: Stacked,
    /// A path that leads to its namespace.
    pub netns: PathBuf,
}

/// A link in another namespace that is stacked on `link`.
pub fn elsewhere(link: &Link) -> Result<Option<Upper>> {
    let mut found = None;
    let which = if link.up { Which::All } else { Which::Mounted };
    let seen = look(link, which, SearchTime::Short, |_, upper, path| {
        found = Some(Upper { link: upper, netns: path.to_owned() });
        Ok(Next::Enough)
    })?;
    if seen == Seen::Part {
        log::warn!(
            "{}: the search for links stacked on it ended before every namespace was examined",
            link.name
        );
    }
    Ok(found)
}

/// Removes the links that a pod stacked on `link` in whatever namespace, so that the next pod neither shares its rail
/// with them nor is refused because of them. A pod's end may wait for a search through every process of the node.
pub fn remove_elsewhere(link: &Link) -> Result<()> {
    let seen = look(link, Which::All, SearchTime::Long, |socket, upper, path| {
        log::warn!(
            "{} ({}) is stacked on {}, in {}: removed",
            upper.name,
            upper.kind,
            link.name,
            path.display()
        );
        stacked::remove(socket, &upper)?;
        Ok(Next::Again)
    })?;
    if seen == Seen::Part {
        fail!(
            Internal,
            "{}: the search for links stacked on it ended before every namespace was examined",
            link.name
        );
    }
    Ok(())
}

/// Calls `found` with every link of another namespace that is stacked on `link`.
fn look(
    link: &Link,
    which: Which,
    time: SearchTime,
    mut found: impl FnMut(&mut Socket, Stacked, &Path) -> Result<Next> + Send,
) -> Result<Seen> {
    let home = Netns::current()?;
    let deadline = watchdog::search_until(time);
    every_netns::visit(which, deadline, |socket, path| {
        loop {
            if Instant::now() > deadline {
                return Ok(ControlFlow::Break(Seen::Part));
            }
            match stacked::on(socket, link.index, &home) {
                Ok(Some(upper)) => match found(socket, upper, path)? {
                    Next::Again => (),
                    Next::Enough => return Ok(ControlFlow::Break(Seen::All)),
                },
                Ok(None) => return Ok(ControlFlow::Continue(())),
                Err(error) => {
                    log::debug!("{} cannot be asked: {error:#}", path.display());
                    return Ok(ControlFlow::Continue(()));
                }
            }
        }
    })
}

/// Where the search continues after a link was found.
enum Next {
    /// In the same namespace, which may have another one.
    Again,
    Enough,
}
