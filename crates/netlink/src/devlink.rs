//! Reads the driver's report about a function over devlink (include/uapi/linux/devlink.h): whether
//! it does RoCE, and the mode of its switch. Changes nothing.
//!
//! ```
//! use rail_netlink::devlink::Devlink;
//!
//! # fn main() -> anyhow::Result<()> {
//! if let Some(mut devlink) = Devlink::open()? {
//!     let modes = devlink.modes("0000:00:00.0")?;
//!     println!("RoCE: {:?}, switchdev: {:?}", modes.roce, modes.is_switchdev);
//! }
//! # Ok(())
//! # }
//! ```

use anyhow::Result;
use netlink_packet_core::DefaultNla;

use super::generic::{self, HEADER_LEN};
use super::{Message, Socket, attributes};

const CMD_ESWITCH_GET: u8 = 29;
const CMD_PARAM_GET: u8 = 38;
const ATTR_BUS_NAME: u16 = 1;
const ATTR_DEV_NAME: u16 = 2;
const ATTR_ESWITCH_MODE: u16 = 25;
const ATTR_PARAM: u16 = 80;
const ATTR_PARAM_NAME: u16 = 81;
const ATTR_PARAM_VALUES_LIST: u16 = 84;
const ATTR_PARAM_VALUE: u16 = 85;
const ATTR_PARAM_VALUE_DATA: u16 = 86;
const ATTR_PARAM_VALUE_CMODE: u16 = 87;

/// A socket to devlink.
#[derive(Debug)]
pub struct Devlink {
    socket: Socket,
    family: u16,
}

/// The report about a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// `enable_roce`, and when a new value takes effect, as `devlink` names it; `None` if it is not
    /// reported.
    pub roce: Option<(bool, &'static str)>,
    /// Whether the switch is in switchdev mode; `None` if it is not reported, as for a VF.
    pub is_switchdev: Option<bool>,
}

impl Devlink {
    /// Opens a socket in the namespace of this thread; `None` if the kernel has no devlink.
    pub fn open() -> Result<Option<Devlink>> {
        Ok(generic::open("devlink")?.map(|(socket, family)| Devlink::over(socket, family)))
    }

    /// Talks over a socket of generic netlink, in which the family has this number.
    pub fn over(socket: Socket, family: u16) -> Devlink {
        Devlink { socket, family }
    }

    /// Reads the modes of the PCI function at `address`.
    pub fn modes(&mut self, address: &str) -> Result<Modes> {
        let requests =
            [CMD_PARAM_GET, CMD_ESWITCH_GET].map(|command| request(self.family, command, address));
        let replies = self.socket.get_each(&requests)?;
        let payload = |at: usize| Some(&replies.get(at)?.as_ref()?.payload[..]);
        Ok(Modes {
            roce: payload(0).and_then(roce),
            is_switchdev: payload(1).and_then(is_switchdev),
        })
    }
}

fn request(family: u16, command: u8, address: &str) -> Message {
    let text = |kind, text: &str| DefaultNla::new(kind, [text.as_bytes(), b"\0"].concat());
    let mut attributes = vec![text(ATTR_BUS_NAME, "pci"), text(ATTR_DEV_NAME, address)];
    if command == CMD_PARAM_GET {
        attributes.push(text(ATTR_PARAM_NAME, "enable_roce"));
    }
    Message::raw(family, &[command, 1, 0, 0], &attributes)
}

fn find(bytes: &[u8], kind: u16) -> Option<Vec<u8>> {
    Some(
        attributes(bytes)
            .find(|one| one.kind() == kind)?
            .value()
            .to_vec(),
    )
}

fn roce(payload: &[u8]) -> Option<(bool, &'static str)> {
    let parameter = find(payload.get(HEADER_LEN..)?, ATTR_PARAM)?;
    let value = find(&find(&parameter, ATTR_PARAM_VALUES_LIST)?, ATTR_PARAM_VALUE)?;
    let mode = match find(&value, ATTR_PARAM_VALUE_CMODE)?[..] {
        [0] => "runtime",
        [1] => "driverinit",
        _ => "permanent",
    };
    // A boolean is a flag: true if the attribute is there.
    Some((find(&value, ATTR_PARAM_VALUE_DATA).is_some(), mode))
}

fn is_switchdev(payload: &[u8]) -> Option<bool> {
    let mode = find(payload.get(HEADER_LEN..)?, ATTR_ESWITCH_MODE)?;
    Some(u16::from_ne_bytes(mode.try_into().ok()?) == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: [u8; 28] = *b"\x08\0\x01\0pci\0\x11\0\x02\x000000:3b:00.0\0\0\0\0";

    /// Numbers from devlink.h.
    #[test]
    fn a_request_is_these_bytes() {
        let message = request(0x15, CMD_PARAM_GET, "0000:3b:00.0");
        assert_eq!(message.kind, 0x15);
        let name = b"\x10\0\x51\0enable_roce\0";
        assert_eq!(
            message.payload,
            [&[38, 1, 0, 0][..], &DEVICE, name].concat()
        );
        let message = request(0x15, CMD_ESWITCH_GET, "0000:3b:00.0");
        assert_eq!(message.payload, [&[29, 1, 0, 0][..], &DEVICE].concat());
    }

    /// A parameter as devlink_nl_param_fill writes it: name, generic, type, and a list of one
    /// value.
    fn parameter(is_on: bool) -> Vec<u8> {
        let flag: &[u8] = if is_on { &[4, 0, 86, 0] } else { &[] };
        let value = [flag, &[5, 0, 87, 0, 1, 0, 0, 0]].concat();
        let nest = |kind: u8, inner: &[u8]| {
            [
                &[u8::try_from(inner.len() + 4).unwrap(), 0, kind, 0x80][..],
                inner,
            ]
            .concat()
        };
        let head = b"\x10\0\x51\0enable_roce\0\x04\0\x52\0\x05\0\x53\0\x06\0\0\0";
        let all = nest(80, &[&head[..], &nest(84, &nest(85, &value))].concat());
        [&[38, 1, 0, 0][..], &DEVICE, &all].concat()
    }

    #[test]
    fn replies_are_read() {
        assert_eq!(roce(&parameter(true)), Some((true, "driverinit")));
        assert_eq!(roce(&parameter(false)), Some((false, "driverinit")));
        let eswitch =
            |mode: u8| [&[29, 1, 0, 0][..], &DEVICE, &[6, 0, 25, 0, mode, 0, 0, 0]].concat();
        assert_eq!(is_switchdev(&eswitch(1)), Some(true));
        assert_eq!(is_switchdev(&eswitch(0)), Some(false));
        assert_eq!((roce(&[38]), is_switchdev(&[])), (None, None));
    }
}
