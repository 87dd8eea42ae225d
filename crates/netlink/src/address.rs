//! Addresses of a link.
//!
//! ```
//! use rail_netlink::{Socket, address, link};
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut socket = Socket::open()?;
//! let lo = link::by_name(&mut socket, "lo")?.expect("every namespace has it");
//! for address in address::all(&mut socket, lo.index)? {
//!     println!("{}, duplicate: {}", address.net, address.duplicate);
//! }
//! # Ok(())
//! # }
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use anyhow::Result;
use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, Parseable as _};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage,
};
use nix::errno::Errno;
use nix::libc::{RTM_DELADDR, RTM_GETADDR, RTM_NEWADDR};
use rtnetlink::AddressMessageBuilder;

use super::link::{Index, Link};
use super::{Error, Message, Socket};

/// An address that a link has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Address with prefix length.
    pub net: IpNet,
    /// Whether duplicate address detection failed: another host has the address, so the kernel does
    /// not use it.
    pub duplicate: bool,
}

impl Address {
    /// Whether the address is link-local; every interface has one of these.
    pub fn is_link_local(&self) -> bool {
        match self.net {
            IpNet::V4(net) => net.addr().is_link_local(),
            IpNet::V6(net) => net.addr().is_unicast_link_local(),
        }
    }
}

/// Adds the address `net` to `link`; for IPv4 also the broadcast address, where the prefix has one.
pub fn add(socket: &mut Socket, link: &Link, net: IpNet) -> Result<()> {
    let mut message = message(link, net);
    if net.addr().is_ipv6() {
        // The lease already makes the address unique. Even with optimistic duplicate detection, the
        // kernel receives nothing for an address until the detection ends, if the carrier comes
        // after it began.
        message
            .attributes
            .push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    socket.change(
        Message::new(RTM_NEWADDR, &message),
        NLM_F_CREATE | NLM_F_EXCL,
        || format!("cannot add the address {net} to {}", link.name),
    )
}

/// Removes the address from `link`. It is no error if the link does not have it.
pub fn remove(socket: &mut Socket, link: &Link, net: IpNet) -> Result<()> {
    let removed = socket.change(Message::new(RTM_DELADDR, &message(link, net)), 0, || {
        format!("cannot remove the address {net} from {}", link.name)
    });
    removed.or_else(|error| {
        if Error::is(&error, Errno::EADDRNOTAVAIL) {
            Ok(())
        } else {
            Err(error)
        }
    })
}

fn message(link: &Link, net: IpNet) -> AddressMessage {
    let index = link.index.get();
    match net.addr() {
        IpAddr::V4(v4) => AddressMessageBuilder::<Ipv4Addr>::new()
            .index(index)
            .address(v4, net.prefix_len())
            .build(),
        IpAddr::V6(v6) => AddressMessageBuilder::<Ipv6Addr>::new()
            .index(index)
            .address(v6, net.prefix_len())
            .build(),
    }
}

/// The addresses of the link with this index, of both families.
pub fn all(socket: &mut Socket, index: Index) -> Result<Vec<Address>> {
    matching(socket, index, |_| true)
}

/// The wanted addresses of the link with this index, however many others it has.
pub fn matching(
    socket: &mut Socket,
    index: Index,
    is_wanted: impl Fn(&Address) -> bool,
) -> Result<Vec<Address>> {
    let mut message = AddressMessage::default();
    message.header.index = index.get();
    let message = Message::new(RTM_GETADDR, &message);
    let read = |reply: &Message| {
        let message = reply.decode(AddressMessage::parse)?;
        // Kernels before 4.20 do not filter by index.
        if message.header.index != index.get() {
            return None;
        }
        parse(&message).filter(|address| is_wanted(address))
    };
    socket.dump(&message, &[Errno::ENODEV], "cannot list addresses", read)
}

/// The addresses of the namespace, or those that one dump saw: a pod that adds and removes
/// addresses all the time in its own namespace must not delay the caller.
pub fn in_namespace(socket: &mut Socket) -> Result<Vec<(Index, Address)>> {
    let message = Message::new(RTM_GETADDR, &AddressMessage::default());
    let read = |reply: &Message| {
        let message = reply.decode(AddressMessage::parse)?;
        Some((Index::new(message.header.index)?, parse(&message)?))
    };
    let what = "cannot list addresses";
    let (addresses, _) = socket.dump_within(Duration::ZERO, &message, &[], what, read)?;
    Ok(addresses)
}

pub(super) fn parse(message: &AddressMessage) -> Option<Address> {
    let mut address = None;
    for attribute in &message.attributes {
        match attribute {
            // On a point-to-point link, IFA_ADDRESS is the address of the other end.
            AddressAttribute::Local(local) => address = Some(*local),
            AddressAttribute::Address(other) => address = address.or(Some(*other)),
            _ => (),
        }
    }
    Some(Address {
        net: IpNet::new(address?, message.header.prefix_len).ok()?,
        duplicate: message.header.flags.contains(AddressHeaderFlags::Dadfailed),
    })
}
