//! Links of one namespace that are stacked on a link of another: a pod's macvlan on the host's NIC.
//!
//! No request lists them. Whoever knows a namespace can search it ([`on`]); whether there is any at
//! all that takes frames of a link, wherever it is, the kernel tells when it is asked for one more
//! ([`receiver`]).
//!
//! ```
//! use rail_netlink::{Socket, link, stacked};
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut socket = Socket::open()?;
//! let lo = link::by_name(&mut socket, "lo")?.expect("every namespace has it");
//! // Only Ethernet devices have one.
//! assert_eq!(stacked::receiver(&mut socket, &lo)?, stacked::Receiver::Unknown);
//! # Ok(())
//! # }
//! ```

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _};
use std::time::{Duration, Instant};

use anyhow::Result;
use netlink_packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkPayload, parse_i32,
    parse_string, parse_u32,
};
use netlink_packet_route::link::{
    LinkAttribute, LinkExtentMask, LinkHeader, LinkMessage, MacVlanMode,
};
use nix::errno::Errno;
use nix::libc::{
    IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINK, IFLA_LINK_NETNSID, IFLA_LINKINFO,
    RTM_DELLINK, RTM_GETLINK, RTM_GETNSID, RTM_NEWLINK, RTM_SETLINK,
};

use rtnetlink::{LinkMacVlan, LinkUnspec};

use super::link::{HEADER_LEN, Index, Link, name, parse_mac};
use super::{Answer, Error, Message, Socket, attributes, errno_of, nest, unguessable};

/// Kinds that refer to another link without being stacked on it: the other link is their peer.
const PAIRS: [&str; 3] = ["veth", "netkit", "vxcan"];
// include/uapi/linux/net_namespace.h.
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
// include/uapi/linux/if_link.h.
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_PROTOCOL: u16 = 5;
/// Bytes of an Ethernet address.
const ETHERNET: usize = 6;
/// The largest MTU that a VLAN can be asked for.
const ALL_OF_16_BITS: u32 = 0xffff;
/// 802.1Q and 802.1ad.
const VLAN_PROTOCOLS: [u16; 2] = [0x8100, 0x88a8];
/// As many requests as the socket has room for answers.
const VLAN_BATCH: usize = 128;

/// All ids that a VLAN can have: 4095 is reserved.
pub const VLANS: Range<u16> = 0..4095;
/// The id that leads into a network without VLANs: switches and hosts take its frames for untagged
/// ones.
pub const NO_VLAN: Range<u16> = 0..1;

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

/// The first receiver of a link's frames, before its own namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// No link, in no namespace.
    Nobody,
    /// A macvlan or macvtap, one of those of which the kernel allows one (ipvlan, macsec, bridge,
    /// bond, team, openvswitch), or the VLAN that was asked for.
    Somebody,
    /// The kernel does not say: this one has no macvlan, or the link is not of Ethernet.
    Unknown,
}

/// Asks what takes the frames of `link`, in whatever namespace that is. It costs the kernel less
/// than 0.1 ms and changes nothing: the request is for a macvlan in mode passthru, which must be
/// the only receiver of its link, under a name that is taken. The kernel compares the receivers
/// first, with EINVAL or EBUSY, and the name last, with EEXIST (macvlan_common_newlink,
/// register_netdevice). A VLAN is no receiver: it sees only frames with its tag.
pub fn receiver(socket: &mut Socket, link: &Link) -> Result<Receiver> {
    // On a macvlan the question would be about its lower link.
    if matches!(link.kind.as_deref(), Some("macvlan" | "macvtap")) {
        return Ok(Receiver::Nobody);
    }
    if link.loopback || parse_mac(&link.mac).is_none_or(|mac| mac.len() != ETHERNET) {
        return Ok(Receiver::Unknown);
    }
    let mode = MacVlanMode::Passthrough;
    let mut message = LinkMacVlan::new(&link.name, link.index.get(), mode).build();
    // With an index the kernel does not look for a link of that name, which it would find. A tenant
    // cannot guess it.
    message.header.index = unguessable() | 1 << 30;
    let request = Message::new(RTM_NEWLINK, &message);
    Ok(
        match socket.try_change(&request, NLM_F_CREATE | NLM_F_EXCL)? {
            Answer::Ended(Some((Errno::EEXIST, _))) => Receiver::Nobody,
            Answer::Ended(Some((Errno::EINVAL | Errno::EBUSY, _))) => Receiver::Somebody,
            // It was renamed at this moment, so there is a macvlan now.
            Answer::Ended(None) => {
                let made = LinkUnspec::new_with_index(message.header.index).build();
                socket.change(Message::new(RTM_DELLINK, &made), 0, || {
                    format!("cannot remove {}", link.name)
                })?;
                Receiver::Nobody
            }
            Answer::Ended(Some(_)) | Answer::Lost | Answer::Replies(_) => Receiver::Unknown,
        },
    )
}

/// Asks whether a VLAN with one of these ids is on `link`, in whatever namespace that is, and
/// changes nothing. No request is about several, so each is asked for, with an MTU that no Ethernet
/// device has: the kernel refuses an id that is taken first, with EEXIST, and that MTU next, with
/// EINVAL (vlan_newlink). An id has two, by protocol, and all 8,190 take some 20 ms.
///
/// `None` if the deadline passes: each waits for whoever else changes links, which a pod can do
/// without end.
pub fn vlan(
    socket: &mut Socket,
    link: &Link,
    ids: Range<u16>,
    deadline: Instant,
) -> Result<Option<Receiver>> {
    if link.loopback || link.mtu >= ALL_OF_16_BITS {
        return Ok(Some(Receiver::Unknown));
    }
    // A VLAN that the kernel makes all the same is found by its index.
    let index = unguessable() | 1 << 30;
    let requests = VLAN_PROTOCOLS
        .iter()
        .flat_map(|protocol| ids.clone().map(|id| (*protocol, id)));
    let requests: Vec<_> = requests
        .map(|(protocol, id)| vlan_request(link.index, index, protocol, id))
        .collect();
    for batch in requests.chunks(VLAN_BATCH) {
        if Instant::now() > deadline {
            return Ok(None);
        }
        let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        for answer in socket.answers(batch, flags)? {
            let Some(NetlinkPayload::Error(refusal)) = answer else {
                return Ok(Some(Receiver::Unknown));
            };
            match errno_of(refusal.raw_code()) {
                Some(Errno::EINVAL) => (),
                Some(Errno::EEXIST) => return Ok(Some(Receiver::Somebody)),
                // The kernel has no VLANs, or none for this device.
                Some(Errno::EOPNOTSUPP) => return Ok(Some(Receiver::Nobody)),
                Some(_) => return Ok(Some(Receiver::Unknown)),
                None => {
                    let made = LinkUnspec::new_with_index(index).build();
                    let made = Message::new(RTM_DELLINK, &made);
                    socket.change(made, 0, || format!("cannot remove a VLAN of {}", link.name))?;
                    return Ok(Some(Receiver::Unknown));
                }
            }
        }
    }
    Ok(Some(Receiver::Nobody))
}

/// A VLAN with this id on the link `lower`.
fn vlan_request(lower: Index, index: u32, protocol: u16, id: u16) -> Message {
    let of_vlan = [
        DefaultNla::new(IFLA_VLAN_ID, id.to_ne_bytes().to_vec()),
        DefaultNla::new(IFLA_VLAN_PROTOCOL, protocol.to_be_bytes().to_vec()),
    ];
    let kind = [
        DefaultNla::new(IFLA_INFO_KIND, b"vlan\0".to_vec()),
        nest(IFLA_INFO_DATA, &of_vlan),
    ];
    let mut message = LinkUnspec::new_with_index(index).build();
    message.attributes.extend([
        LinkAttribute::Mtu(ALL_OF_16_BITS),
        LinkAttribute::Link(lower.get()),
        LinkAttribute::Other(nest(IFLA_LINKINFO, &kind)),
    ]);
    Message::new(RTM_NEWLINK, &message)
}

/// Finds all links in the socket's namespace that are stacked on the link with this index in the
/// namespace `home`.
pub fn on(socket: &mut Socket, index: Index, home: &impl AsFd) -> Result<Vec<Stacked>> {
    let mut found = candidates(socket, index)?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    // The number that `home` has in the socket's namespace; the stacked link made the kernel assign
    // it.
    let number = number_of(socket, home)?;
    found.retain(|(_, netns)| Some(*netns) == number);
    Ok(found.into_iter().map(|(link, _)| link).collect())
}

/// Removes the links with these indices. The socket must be in their namespace. The kernel waits
/// for all packets in flight once for each request that removes links, so they go with one, as a
/// group that nothing else is in.
pub fn remove(socket: &mut Socket, links: &[Index]) -> Result<()> {
    let group = unguessable() | 1;
    let in_group = |index: u32| {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::Group(group));
        message
    };
    for index in links {
        let message = Message::new(RTM_SETLINK, &in_group(index.get()));
        let set = socket.change(message, 0, || {
            format!("cannot put the link {} into a group", index.get())
        });
        // It may have gone by itself.
        set.or_else(unless_gone)?;
    }
    let message = Message::new(RTM_DELLINK, &in_group(0));
    let removed = socket.change(message, 0, || {
        format!("cannot remove {} stacked links", links.len())
    });
    removed.or_else(unless_gone)
}

fn unless_gone(error: anyhow::Error) -> Result<()> {
    if Error::is(&error, Errno::ENODEV) {
        Ok(())
    } else {
        Err(error)
    }
}

/// The links that are stacked on a link with this index in any other namespace, each with the
/// number of that namespace.
fn candidates(socket: &mut Socket, index: Index) -> Result<Vec<(Stacked, i32)>> {
    let mut message = LinkMessage::default();
    message
        .attributes
        .push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    // A pod that adds and removes links all the time in its own namespace must not delay the
    // caller.
    let message = Message::new(RTM_GETLINK, &message);
    let read = |reply: &Message| parse(reply, index);
    let what = "cannot list links";
    let (found, _) = socket.dump_within(Duration::ZERO, &message, &[], what, read)?;
    Ok(found)
}

fn parse(reply: &Message, index: Index) -> Option<(Stacked, i32)> {
    let own = Index::new(LinkHeader::parse(&reply.payload).ok()?.index)?;
    let mut link = Stacked {
        index: own,
        name: String::new(),
        kind: String::new(),
    };
    let (mut lower, mut netns) = (None, None);
    for attribute in attributes(reply.payload.get(HEADER_LEN..)?) {
        let value = attribute.value();
        match attribute.kind() {
            IFLA_IFNAME => link.name = name(value),
            IFLA_LINK => lower = parse_u32(value).ok(),
            IFLA_LINK_NETNSID => netns = parse_i32(value).ok(),
            IFLA_LINKINFO => {
                let kind = attributes(value).find(|info| info.kind() == IFLA_INFO_KIND);
                link.kind = kind
                    .and_then(|info| parse_string(info.value()).ok())
                    .unwrap_or_default();
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
    let message = Message {
        kind: RTM_GETNSID,
        payload,
    };
    let absent = [Errno::EINVAL, Errno::ENOENT];
    let Some(reply) = socket.get(message, &absent, "cannot look up a namespace")? else {
        return Ok(None);
    };
    let number = attributes(reply.payload.get(4..).unwrap_or_default())
        .find(|one| one.kind() == NETNSA_NSID);
    Ok(number.and_then(|number| parse_i32(number.value()).ok()))
}
