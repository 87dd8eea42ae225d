//! The end of the pod's use of the netdev: it goes down, and what would see the packets of the next
//! pod is removed: links that the pod stacked on it, in whatever namespace, and BPF programs. Until
//! that is done the device is not handed out again. A device of which something cannot be found or
//! removed gets its driver bound again, where it has one of its own.

use anyhow::Result;

use crate::attach::context::Cx;
use crate::attach::step::{Asked, Step, UndoneAt};
use crate::device::{bpf, stacked};
use crate::node::Node;
use rail_netlink::link::{self, Link};
use rail_netlink::vf::VfState;
use rail_netlink::{Socket, address, all_of};

use super::bind;

/// The pod may stack links on the netdev.
#[derive(Debug)]
pub struct Links;

impl Step for Links {
    fn describe(&self) -> &'static str {
        "its links on the device"
    }

    fn undone_at(&self) -> UndoneAt {
        UndoneAt::Device
    }

    fn plan(asked: &Asked<'_>, _cx: &mut Cx<'_>) -> Result<Option<Links>> {
        Ok(asked.device.original.link.as_ref().map(|_| Links))
    }

    fn undo(&self, cx: &mut Cx<'_>) -> Result<()> {
        end_use(cx)
    }

    fn isolation_left(&self, _next: &VfState, _node: &Node, _host: &mut Socket) -> Option<String> {
        Some(self.describe().to_owned())
    }
}

/// Ends the use of the device, which is on the host.
fn end_use(cx: &mut Cx<'_>) -> Result<()> {
    let (Some(link), Some(original)) = (cx.at_home(), cx.owner.device.link.clone()) else {
        return Ok(());
    };
    // It never left, or has returned before: what is stacked on it is the host's.
    if cx.facts.is_of_host
        && is_as_it_was(&link, &original, &mut cx.host)?
        && has_address(&link, &mut cx.host)?
    {
        return Ok(());
    }
    let down = if link.up {
        link::set_down(&mut cx.host, &link)
    } else {
        Ok(())
    };
    // First: a program limits the MTU.
    let programs = bpf::remove(&link, &mut cx.host);
    let removed = all_of([programs, stacked::remove_elsewhere(&link, &mut cx.host)]);
    all_of([down, removed.or_else(|error| end_with_driver(error, cx))])
}

/// Binds the driver again, which ends all links that are still on the netdev, in whatever
/// namespace.
fn end_with_driver(left: anyhow::Error, cx: &mut Cx<'_>) -> Result<()> {
    let Some(bound) = bind::alone(cx) else {
        return Err(left);
    };
    log::warn!(
        "{left:#}: the driver of {} is bound again",
        cx.owner.device.id
    );
    bind::bind_again(&bound, |_| Ok(()), cx)
}

/// Whether a link of the host has MTU, MAC and state as they were, and the name, or another netdev
/// has that.
pub fn is_as_it_was(link: &Link, was: &Link, host: &mut Socket) -> Result<bool> {
    let can_be_renamed = link.name != was.name && link::by_name(host, &was.name)?.is_none();
    Ok(!can_be_renamed && (was.mtu, &was.mac, was.up) == (link.mtu, &link.mac, link.up))
}

/// Whether the host has an address on `link`, besides link-local ones.
pub fn has_address(link: &Link, host: &mut Socket) -> Result<bool> {
    Ok(address::all(host, link.index)?
        .iter()
        .any(|address| !address.is_link_local()))
}
