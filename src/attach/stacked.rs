//! What is stacked on a device of the host from within another namespace: a pod's macvlan would be on the wire of
//! the device's next pod. sysfs shows only what is in the device's own namespace (netdev_adjacent_sysfs_add), and
//! no call asks the kernel the other way round, so every namespace is entered and asked.
//!
//! At a pod's end they are all looked at, those too of which there is only a process: what the pod left on its rail is
//! removed. At ADD those that the runtime has mounted are, for each costs about as much as one netlink request; those of
//! processes cost a look at every process of the node as well, and only a device that is up can have something there that
//! carries traffic and is nobody's who had it from us.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::every_netns::{self, Seen, Which};
use crate::fail;
use crate::netlink::Socket;
use crate::netlink::link::Link;
use crate::netlink::stacked::{self, Stacked};
use crate::netns::Netns;

/// Pods can make namespaces without end: the look at them must not keep the next pod, nor this one's end for long.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_AT_THE_END: Duration = Duration::from_secs(5);

/// Somebody's link on ours.
#[derive(Debug)]
pub struct Upper {
    /// The link.
    pub link: Stacked,
    /// How its namespace can be reached.
    pub netns: PathBuf,
}

/// A link in another namespace that is stacked on `link`.
pub fn elsewhere(link: &Link) -> Result<Option<Upper>> {
    let mut found = None;
    let which = if link.up { Which::All } else { Which::Mounted };
    let seen = look(link, which, PATIENCE, |_, upper, path| {
        found = Some(Upper { link: upper, netns: path.to_owned() });
        Ok(Next::Enough)
    })?;
    if seen == Seen::Part {
        log::warn!("{}: not every namespace could be asked what is stacked on it", link.name);
    }
    Ok(found)
}

/// Removes what a pod has put on `link`, which it had, from wherever: the next pod must neither share its rail with it
/// nor be kept from it. A pod's end can wait for every process of the node to be looked at.
pub fn remove_elsewhere(link: &Link) -> Result<()> {
    let seen = look(link, Which::All, PATIENCE_AT_THE_END, |socket, upper, path| {
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
        fail!(Internal, "{}: not every namespace could be asked what is stacked on it", link.name);
    }
    Ok(())
}

/// Shows every link of another namespace that is stacked on `link`.
fn look(
    link: &Link,
    which: Which,
    patience: Duration,
    mut found: impl FnMut(&mut Socket, Stacked, &Path) -> Result<Next> + Send,
) -> Result<Seen> {
    let home = Netns::current()?;
    let deadline = Instant::now() + patience;
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

/// Where the look goes on after a link was found.
enum Next {
    /// In the same namespace: it may have another one.
    Again,
    Enough,
}
