//! Links of one namespace that are stacked on a link of another: a pod's macvlan on the host's NIC.

use std::os::fd::{AsFd, AsRawFd as _};
use std::time::Duration;

use anyhow::Result;
use netlink_packet_core::{parse_i32, parse_string, parse_u32};
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkHeader, LinkMessage};
use nix::errno::Errno;
use nix::libc::{
    IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINK, IFLA_LINK_NETNSID, IFLA_LINKINFO, RTM_DELLINK, RTM_GETLINK,
    RTM_GETNSID,
};

use rtnetlink::LinkUnspec;

use super::link::{HEADER_LEN, Index, name};
use super::{Message, Socket, attributes};

/// Kinds that refer to another link without being stacked on it: the other link is their peer.
const PAIRS: [&str; 3] = ["veth", "netkit", "vxcan"];
// include/uapi/linux/net_namespace.h.
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;

/// A link that is stacked on another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stacked {
    /// Index of the link in its namespace.
    pub index: Index,
    /// Name of the link.
    pub name: String,
    /// Kind of the link, such as `macvlan`.
    pub kind: String,
}

/// Finds a link in the socket's namespace that is stacked on the link with this index in the namespace `home`.
pub fn on(socket: &mut Socket, index: Index, home: &impl AsFd) -> Result<Option<Stacked>> {
    let found: Vec<_> = candidates(socket, index)?;
    if found.is_empty() {
        return Ok(None);
    }
    // The number that `home` has in the socket's namespace; the stacked link made the kernel assign it.
    let number = number_of(socket, home)?;
    Ok(found.into_iter().find(|(_, netns)| Some(*netns) == number).map(|(link, _)| link))
}

/// Removes the link. The socket must be in its namespace.
pub fn remove(socket: &mut Socket, link: &Stacked) -> Result<()> {
    let message = LinkUnspec::new_with_index(link.index.get()).build();
    socket.change(Message::new(RTM_DELLINK, &message), 0, || format!("cannot remove {}", link.name))
}

/// The links that are stacked on a link with this index in any other namespace, each with the number of that
/// namespace.
fn candidates(socket: &mut Socket, index: Index) -> Result<Vec<(Stacked, i32)>> {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    // A pod that adds and removes links all the time in its own namespace must not delay the caller.
    let message = Message::new(RTM_GETLINK, &message);
    let (replies, _) = socket.dump_within(Duration::ZERO, &message, &[], "cannot list links")?;
    Ok(replies.iter().filter_map(|reply| parse(reply, index)).collect())
}

fn parse(reply: &Message, index: Index) -> Option<(Stacked, i32)> {
    let own = Index::new(LinkHeader::parse(&reply.payload).ok()?.index)?;
    let mut link = Stacked { index: own, name: String::new(), kind: String::new() };
    let (mut lower, mut netns) = (None, None);
    for attribute in attributes(reply.payload.get(HEADER_LEN..)?) {
        let value = attribute.value();
        match attribute.kind() {
            IFLA_IFNAME => link.name = name(value),
            IFLA_LINK => lower = parse_u32(value).ok(),
            IFLA_LINK_NETNSID => netns = parse_i32(value).ok(),
            IFLA_LINKINFO => {
                let kind = attributes(value).find(|info| info.kind() == IFLA_INFO_KIND);
                link.kind = kind.and_then(|info| parse_string(info.value()).ok()).unwrap_or_default();
            }
            _ => (),
        }
    }
    let is_on_it = lower == Some(index.get()) && !PAIRS.contains(&link.kind.as_str());
    netns.filter(|_| is_on_it).map(|netns| (link, netns))
}

fn number_of(socket: &mut Socket, netns: &impl AsFd) -> Result<Option<i32>> {
    let fd = u32::try_from(netns.as_fd().as_raw_fd())?;
    // struct rtgenmsg with padding, and one attribute.
    let mut payload = vec![0; 4];
    payload.extend([8_u16, NETNSA_FD].map(u16::to_ne_bytes).concat());
    payload.extend(fd.to_ne_bytes());
    let message = Message { kind: RTM_GETNSID, payload };
    let absent = [Errno::EINVAL, Errno::ENOENT];
    let Some(reply) = socket.get(message, &absent, "cannot look up a namespace")? else { return Ok(None) };
    let number = attributes(reply.payload.get(4..).unwrap_or_default()).find(|one| one.kind() == NETNSA_NSID);
    Ok(number.and_then(|number| parse_i32(number.value()).ok()))
}
