//! Families of generic netlink (include/uapi/linux/genetlink.h): each has a number that the kernel
//! gives out at run time.

use anyhow::Result;
use netlink_packet_core::DefaultNla;
use netlink_sys::protocols::NETLINK_GENERIC;
use nix::errno::Errno;

use super::{Message, Socket, attributes};

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// sizeof(struct genlmsghdr).
pub const HEADER_LEN: usize = 4;

/// Opens a socket in the namespace of this thread, and looks up the number of the family; `None` if
/// the kernel does not have the family.
pub fn open(family: &str) -> Result<Option<(Socket, u16)>> {
    let mut socket = Socket::open_protocol(NETLINK_GENERIC)?;
    let name = DefaultNla::new(CTRL_ATTR_FAMILY_NAME, [family.as_bytes(), b"\0"].concat());
    let message = Message::raw(GENL_ID_CTRL, &[CTRL_CMD_GETFAMILY, 1, 0, 0], &[name]);
    let reply = socket.get(
        message,
        &[Errno::ENOENT],
        &format!("cannot look up {family}'s netlink family"),
    )?;
    let id = reply
        .as_ref()
        .and_then(|reply| reply.payload.get(HEADER_LEN..))
        .and_then(|payload| {
            let id = attributes(payload).find(|one| one.kind() == CTRL_ATTR_FAMILY_ID)?;
            Some(u16::from_ne_bytes(id.value().try_into().ok()?))
        });
    Ok(id.map(|id| (socket, id)))
}
