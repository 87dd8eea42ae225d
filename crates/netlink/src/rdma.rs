//! RDMA devices over RDMA netlink (include/uapi/rdma/rdma_netlink.h): no crate has it.
//!
//! In the shared mode, the default, every namespace sees every RDMA device. In the exclusive mode a
//! device is in one namespace, and does not follow its netdev there.
//!
//! ```
//! use rail_netlink::rdma;
//!
//! # fn main() -> anyhow::Result<()> {
//! // None: this kernel has no RDMA.
//! if let Some(mut socket) = rdma::open()? {
//!     println!("a namespace has its own devices: {}", rdma::is_exclusive(&mut socket)?);
//! }
//! # Ok(())
//! # }
//! ```

use std::os::fd::{AsFd, AsRawFd as _};

use anyhow::Result;
use netlink_packet_core::{DefaultNla, NlasIterator};
use netlink_sys::protocols::NETLINK_RDMA;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::{Message, Socket};

/// RDMA_NL_NLDEV: the client that a message is for is in the upper bits of its type.
const NLDEV: u16 = 5 << 10;
const CMD_GET: u16 = NLDEV | 1;
const CMD_SET: u16 = NLDEV | 2;
const CMD_SYS_GET: u16 = NLDEV | 6;
const CMD_RES_CTX_GET: u16 = NLDEV | 22;
const ATTR_DEV_INDEX: u16 = 1;
const ATTR_DEV_NAME: u16 = 2;
const ATTR_SYS_NETNS_MODE: u16 = 66;
const ATTR_NET_NS_FD: u16 = 68;
const ATTR_RES_PID: u16 = 28;
const ATTR_RES_CTX: u16 = 86;
const ATTR_RES_CTX_ENTRY: u16 = 87;
/// Limit of the dumps of the list.
const MAX_DUMPS: u32 = 16;

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Equal in every namespace.
    pub index: u32,
    /// `mlx5_3`.
    pub name: String,
}

/// Opens a socket to the RDMA subsystem in the namespace of this thread; `None` where the kernel
/// has none.
pub fn open() -> Result<Option<Socket>> {
    match Socket::open_protocol(NETLINK_RDMA) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) => match error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::raw_os_error)
        {
            Some(errno) if errno == Errno::EPROTONOSUPPORT as i32 => Ok(None),
            _ => Err(error),
        },
    }
}

/// Is each RDMA device in one namespace only? (`rdma system show`)
pub fn is_exclusive(socket: &mut Socket) -> Result<bool> {
    // A kernel before 5.2 does not know the request, nor the exclusive mode.
    let absent = [Errno::EINVAL, Errno::EOPNOTSUPP];
    let reply = socket.get(
        Message::raw(CMD_SYS_GET, &[], &[]),
        &absent,
        "cannot read the RDMA mode",
    )?;
    let mode = reply
        .as_ref()
        .and_then(|reply| value(&reply.payload, ATTR_SYS_NETNS_MODE));
    // 0: exclusive, 1: shared.
    Ok(mode.is_some_and(|mode| mode.first() == Some(&0)))
}

/// The devices of the socket's namespace among `names`. The kernel's dump goes on by count
/// (nldev_get_dumpit): it leaves one out when another one leaves meanwhile. So it is taken again
/// while one of them is missing.
pub fn named(socket: &mut Socket, names: &[String]) -> Result<Vec<Device>> {
    let mut found: Vec<Device> = Vec::new();
    for _ in 0..MAX_DUMPS {
        for device in dump(socket)? {
            if names.contains(&device.name) && !found.contains(&device) {
                found.push(device);
            }
        }
        if found.len() >= names.len() {
            break;
        }
    }
    Ok(found)
}

/// Has the socket's namespace any RDMA device?
pub fn is_any(socket: &mut Socket) -> Result<bool> {
    Ok(!dump(socket)?.is_empty())
}

fn dump(socket: &mut Socket) -> Result<Vec<Device>> {
    socket.dump(
        &Message::raw(CMD_GET, &[], &[]),
        &[],
        "cannot list RDMA devices",
        parse,
    )
}

fn parse(reply: &Message) -> Option<Device> {
    let index = value(&reply.payload, ATTR_DEV_INDEX)?
        .get(..4)?
        .try_into()
        .ok()?;
    let name = String::from_utf8_lossy(value(&reply.payload, ATTR_DEV_NAME)?);
    Some(Device {
        index: u32::from_ne_bytes(index),
        name: name.trim_end_matches('\0').to_owned(),
    })
}

/// Moves a device that the socket's namespace has to the namespace `to`. The kernel compares with
/// the namespace of the calling thread, not with the socket's (ib_device_set_netns_put): out of a
/// pod it moves only inside of a thread that has entered the namespace.
pub fn move_to(socket: &mut Socket, device: &Device, to: &impl AsFd) -> Result<()> {
    socket.change(move_message(device, to), 0, || {
        format!(
            "cannot move the RDMA device {} to the other namespace",
            device.name
        )
    })
}

/// The device with this index, if the socket's namespace has it.
pub fn by_index(socket: &mut Socket, index: u32) -> Result<Option<Device>> {
    // nldev_get_doit says so of what is not in this namespace.
    let absent = [Errno::EINVAL];
    let request = Message::raw(CMD_GET, &[], &[word(ATTR_DEV_INDEX, index)]);
    let reply = socket.get(request, &absent, "cannot inspect an RDMA device")?;
    Ok(reply.as_ref().and_then(parse))
}

/// Gives the device with this index, which the socket's namespace has, the name `name`. Names are
/// unique over all namespaces: EEXIST where another device has it (ib_device_rename).
pub fn rename(socket: &mut Socket, index: u32, name: &str) -> Result<()> {
    let attribute = DefaultNla::new(ATTR_DEV_NAME, [name.as_bytes(), b"\0"].concat());
    let message = Message::raw(CMD_SET, &[], &[word(ATTR_DEV_INDEX, index), attribute]);
    socket.change(message, 0, || {
        format!("cannot give an RDMA device the name {name}")
    })
}

/// The ids of the processes that have the device open; none where the kernel does not tell (before
/// 5.14).
pub fn users(socket: &mut Socket, index: u32) -> Result<Vec<u32>> {
    let absent = [Errno::EINVAL, Errno::EOPNOTSUPP];
    let request = Message::raw(CMD_RES_CTX_GET, &[], &[word(ATTR_DEV_INDEX, index)]);
    let what = "cannot list who has an RDMA device open";
    socket.dump(&request, &absent, what, |reply| {
        let mut users = Vec::new();
        let contexts = value(&reply.payload, ATTR_RES_CTX).unwrap_or_default();
        for context in NlasIterator::new(contexts)
            .flatten()
            .filter(|one| one.kind() == ATTR_RES_CTX_ENTRY)
        {
            let id = value(context.value(), ATTR_RES_PID).and_then(|id| id.try_into().ok());
            users.extend(id.map(u32::from_ne_bytes));
        }
        users
    })
}

fn move_message(device: &Device, to: &impl AsFd) -> Message {
    let to = DefaultNla::new(
        ATTR_NET_NS_FD,
        to.as_fd().as_raw_fd().to_ne_bytes().to_vec(),
    );
    Message::raw(CMD_SET, &[], &[word(ATTR_DEV_INDEX, device.index), to])
}

fn word(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

fn value(payload: &[u8], kind: u16) -> Option<&[u8]> {
    // A borrow of the payload, not of the iterator's item.
    let mut rest = payload;
    for attribute in NlasIterator::new(payload) {
        let attribute = attribute.ok()?;
        let length = usize::from(attribute.length());
        if attribute.kind() == kind {
            return rest.get(4..length);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attribute numbers and type from rdma_netlink.h: RDMA_NLDEV_CMD_SET with DEV_INDEX and
    /// NET_NS_FD.
    #[test]
    fn a_move_names_device_and_namespace() {
        let device = Device {
            index: 3,
            name: "mlx5_3".into(),
        };
        let null = std::fs::File::open("/dev/null").unwrap();
        let message = move_message(&device, &null);
        let fd = u8::try_from(null.as_fd().as_raw_fd()).unwrap();
        assert_eq!(message.kind, 0x1402);
        assert_eq!(
            message.payload,
            [8, 0, 1, 0, 3, 0, 0, 0, 8, 0, 68, 0, fd, 0, 0, 0]
        );
        assert_eq!(
            value(&message.payload, ATTR_NET_NS_FD),
            Some(&[fd, 0, 0, 0][..])
        );
    }
}
