//! The neighbour table: which addresses have answered on a link. The kernel itself sends the
//! requests, with ARP or neighbour discovery.
//!
//! ```
//! use rail_netlink::{Socket, link, neighbour};
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut socket = Socket::open()?;
//! let lo = link::by_name(&mut socket, "lo")?.expect("every namespace has it");
//! let state = neighbour::state(&mut socket, lo.index, "192.0.2.1".parse()?)?;
//! assert_eq!(state, neighbour::State::None);
//! # Ok(())
//! # }
//! ```

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::AddressFamily;
pub use netlink_packet_route::neighbour::NeighbourState as State;
use netlink_packet_route::neighbour::{
    NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourHeader, NeighbourMessage,
};
use nix::errno::Errno;
use nix::libc::{RTM_DELNEIGH, RTM_GETNEIGH, RTM_NEWNEIGH};

use super::link::Index;
use super::{Error, Message, Socket};

/// The state of `address` in the table of the link with this index; [`State::None`] when there is
/// no entry.
pub fn state(socket: &mut Socket, index: Index, address: IpAddr) -> Result<State> {
    let what = || format!("cannot look up the neighbour {address}");
    let message = Message::new(RTM_GETNEIGH, &message(index, address));
    let Some(reply) = socket.get(message, &[Errno::ENOENT], &what())? else {
        return Ok(State::None);
    };
    let header = reply.decode(NeighbourHeader::parse);
    header
        .map(|header| header.state)
        .with_context(|| format!("{}: the kernel's answer cannot be parsed", what()))
}

/// Removes the entry for `address`.
pub fn forget(socket: &mut Socket, index: Index, address: IpAddr) -> Result<()> {
    let message = Message::new(RTM_DELNEIGH, &message(index, address));
    let removed = socket.change(message, 0, || {
        format!("cannot remove the neighbour {address}")
    });
    removed.or_else(|error| {
        if Error::is(&error, Errno::ENOENT) {
            Ok(())
        } else {
            Err(error)
        }
    })
}

/// Makes the kernel send a request for `address` to everybody on the link, if there is no entry for
/// it.
pub fn ask(socket: &mut Socket, index: Index, address: IpAddr) -> Result<()> {
    let mut message = message(index, address);
    message.header.flags = NeighbourFlags::Use;
    let message = Message::new(RTM_NEWNEIGH, &message);
    socket.change(message, NLM_F_CREATE, || {
        format!("cannot make the kernel look for the neighbour {address}")
    })
}

/// Makes the kernel send a request for `address`, and again whenever there is no answer or the last
/// one is old, as long as the entry exists: also when the carrier comes only later
/// (NTF_EXT_MANAGED, since Linux 5.16). Older kernels ask once.
pub fn keep_asking(socket: &mut Socket, index: Index, address: IpAddr) -> Result<()> {
    let mut message = message(index, address);
    message.header.flags = NeighbourFlags::Use;
    message
        .attributes
        .push(NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed));
    let message = Message::new(RTM_NEWNEIGH, &message);
    socket.change(message, NLM_F_CREATE, || {
        format!("cannot make the kernel ask for the neighbour {address}")
    })
}

/// Makes the kernel ask the known owner of `address` whether it is still there. Traffic to the
/// address goes on.
pub fn confirm(socket: &mut Socket, index: Index, address: IpAddr) -> Result<()> {
    let mut message = message(index, address);
    message.header.state = State::Probe;
    let message = Message::new(RTM_NEWNEIGH, &message);
    socket.change(message, 0, || {
        format!("cannot make the kernel confirm the neighbour {address}")
    })
}

/// The request for `address` on the link with this index.
pub fn message(index: Index, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    message.header.ifindex = index.get();
    message.attributes = vec![NeighbourAttribute::Destination(address.into())];
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::Emitable as _;

    /// struct ndmsg and NDA_DST, include/uapi/linux/neighbour.h.
    #[test]
    fn a_question_is_these_bytes() {
        let mut question = message(Index::MIN.saturating_add(4), IpAddr::from([172, 16, 0, 1]));
        question.header.flags = NeighbourFlags::Use;
        let mut bytes = vec![0; question.buffer_len()];
        question.emit(&mut bytes);
        let header = [2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 1, 0];
        assert_eq!(bytes, [&header[..], &[8, 0, 1, 0, 172, 16, 0, 1]].concat());
    }
}
