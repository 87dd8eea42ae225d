//! The settings of a netdev besides name, MTU and MAC that `ip -details link` shows. CAP_NET_ADMIN
//! in the netdev's namespace is enough to change them, so a pod can, and a move to another
//! namespace resets none of them.
//!
//! ```
//! use rail_netlink::{Socket, link, tunables};
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut socket = Socket::open()?;
//! let lo = link::by_name(&mut socket, "lo")?.expect("every namespace has it");
//! for (name, value) in tunables::read(&mut socket, lo.index)? {
//!     println!("{name} {value}");
//! }
//! # Ok(())
//! # }
//! ```

use anyhow::Result;
use netlink_packet_core::DefaultNla;
use nix::errno::Errno;
use nix::libc::{
    IFF_ALLMULTI, IFF_AUTOMEDIA, IFF_DEBUG, IFF_DYNAMIC, IFF_MULTICAST, IFF_NOARP, IFF_NOTRAILERS,
    IFF_PORTSEL, IFF_PROMISC, IFLA_BROADCAST, IFLA_GROUP, IFLA_GSO_MAX_SEGS, IFLA_GSO_MAX_SIZE,
    IFLA_IFALIAS, IFLA_LINKMODE, IFLA_PROTO_DOWN, IFLA_PROTO_DOWN_REASON, IFLA_TXQLEN, IFLA_XDP,
    RTM_GETLINK, RTM_SETLINK,
};

use super::link::{HEADER_LEN, Index, Link, format_mac, parse_mac};
use super::{Error, Message, Socket, attributes, nest};

// include/uapi/linux/if_link.h; libc does not have them.
const IFLA_GRO_MAX_SIZE: u16 = 58;
const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
const IFLA_GRO_IPV4_MAX_SIZE: u16 = 64;
const IFLA_PROTO_DOWN_REASON_MASK: u16 = 1;
const IFLA_PROTO_DOWN_REASON_VALUE: u16 = 2;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_FLAGS: u16 = 3;

/// The flags that __dev_change_flags accepts from user space.
const FLAGS: [(i32, &str); 9] = [
    (IFF_DEBUG, "DEBUG"),
    (IFF_NOTRAILERS, "NOTRAILERS"),
    (IFF_NOARP, "NOARP"),
    (IFF_PROMISC, "PROMISC"),
    (IFF_ALLMULTI, "ALLMULTI"),
    (IFF_MULTICAST, "MULTICAST"),
    (IFF_PORTSEL, "PORTSEL"),
    (IFF_AUTOMEDIA, "AUTOMEDIA"),
    (IFF_DYNAMIC, "DYNAMIC"),
];

/// Numbers: attribute, length in bytes, name. The kernel sets the IPv4 size together with the other
/// one (netif_set_gso_max_size), so the IPv4 size is set after it.
const NUMBERS: [(u16, usize, &str); 9] = [
    (IFLA_TXQLEN, 4, "txqueuelen"),
    (IFLA_GROUP, 4, "group"),
    (IFLA_LINKMODE, 1, "mode"),
    (IFLA_PROTO_DOWN, 1, "protodown"),
    (IFLA_GSO_MAX_SEGS, 4, "gso_max_segs"),
    (IFLA_GSO_MAX_SIZE, 4, "gso_max_size"),
    (IFLA_GSO_IPV4_MAX_SIZE, 4, "gso_ipv4_max_size"),
    (IFLA_GRO_MAX_SIZE, 4, "gro_max_size"),
    (IFLA_GRO_IPV4_MAX_SIZE, 4, "gro_ipv4_max_size"),
];

/// The places where an XDP program runs: the attribute with the program's id, the flag to attach
/// and detach it there, and the name.
const XDP: [(u16, u32, &str); 3] = [
    (5, 1 << 2, "xdpdrv"),
    (6, 1 << 1, "xdpgeneric"),
    (7, 1 << 3, "xdpoffload"),
];

/// Reads every setting of the link with its value.
pub fn read(socket: &mut Socket, index: Index) -> Result<Vec<(&'static str, String)>> {
    let reply = ask(socket, index)?;
    Ok(reply.map(|reply| parse(&reply.payload)).unwrap_or_default())
}

fn ask(socket: &mut Socket, index: Index) -> Result<Option<Message>> {
    // Without statistics, RTEXT_FILTER_SKIP_STATS.
    let mask = DefaultNla::new(nix::libc::IFLA_EXT_MASK, (1u32 << 3).to_ne_bytes().to_vec());
    let message = Message::raw(RTM_GETLINK, &header(index, 0, 0), &[mask]);
    socket.get(
        message,
        &[Errno::ENODEV],
        "cannot read the settings of the link",
    )
}

fn parse(payload: &[u8]) -> Vec<(&'static str, String)> {
    let Some((header, rest)) = payload.split_at_checked(HEADER_LEN) else {
        return Vec::new();
    };
    let is_set = word(&header[8..12]).unwrap_or(0);
    let flags = FLAGS
        .iter()
        .filter(|(flag, _)| is_set & u32::from_ne_bytes(flag.to_ne_bytes()) != 0)
        .map(|(_, name)| *name);
    let mut found = vec![("flags", flags.collect::<Vec<_>>().join(","))];
    let mut alias = String::new();
    for attribute in attributes(rest) {
        let value = attribute.value();
        match attribute.kind() {
            IFLA_IFALIAS => {
                alias = String::from_utf8_lossy(value)
                    .trim_end_matches('\0')
                    .to_owned()
            }
            IFLA_BROADCAST => found.push(("broadcast", format_mac(value))),
            kind => {
                let number = NUMBERS.iter().find(|(number, ..)| *number == kind);
                found.extend(
                    number
                        .zip(word(value))
                        .map(|((.., name), value)| (*name, value.to_string())),
                );
            }
        }
    }
    found.push(("alias", alias));
    found
}

/// A number of 4 bytes, or of 1 byte.
fn word(value: &[u8]) -> Option<u32> {
    match value {
        [byte] => Some(u32::from(*byte)),
        _ => Some(u32::from_ne_bytes(value.get(..4)?.try_into().ok()?)),
    }
}

/// Sets the setting `name` to `wanted`.
pub fn set(
    socket: &mut Socket,
    link: &Link,
    name: &str,
    wanted: &dyn Fn(&str) -> Option<String>,
) -> Result<()> {
    let value = wanted(name).unwrap_or_default();
    let Some(message) = message(link.index, name, wanted) else {
        return Ok(());
    };
    socket.change(message, 0, || {
        format!("cannot set {name} of {} to {value:?}", link.name)
    })
}

fn message(index: Index, name: &str, wanted: &dyn Fn(&str) -> Option<String>) -> Option<Message> {
    let value = wanted(name)?;
    let mut flags = 0;
    let mut attributes = Vec::new();
    match name {
        "flags" => {
            let is_set = |name: &str| value.split(',').any(|one| one == name);
            flags = FLAGS
                .iter()
                .filter(|(_, name)| is_set(name))
                .fold(0, |all, (flag, _)| all | flag);
        }
        "alias" => attributes.push(DefaultNla::new(IFLA_IFALIAS, value.into_bytes())),
        "broadcast" => attributes.push(DefaultNla::new(IFLA_BROADCAST, parse_mac(&value)?)),
        _ => {
            // The kernel may refuse to clear protodown while there is a reason for it.
            if (name, value.as_str()) == ("protodown", "0") {
                let word = |kind, number: u32| DefaultNla::new(kind, number.to_ne_bytes().to_vec());
                let reasons = [
                    word(IFLA_PROTO_DOWN_REASON_MASK, u32::MAX),
                    word(IFLA_PROTO_DOWN_REASON_VALUE, 0),
                ];
                attributes.push(nest(IFLA_PROTO_DOWN_REASON, &reasons));
            }
            let of_ipv4 = name.replace("_max_", "_ipv4_max_");
            for (kind, length, other) in NUMBERS
                .iter()
                .filter(|(.., other)| *other == name || *other == of_ipv4)
            {
                let Some(number) = wanted(other).and_then(|text| text.parse::<u32>().ok()) else {
                    continue;
                };
                let bytes = if *length == 1 {
                    vec![u8::try_from(number).ok()?]
                } else {
                    number.to_ne_bytes().to_vec()
                };
                attributes.push(DefaultNla::new(*kind, bytes));
            }
        }
    }
    let change = if name == "flags" {
        FLAGS.iter().fold(0, |all, (flag, _)| all | flag)
    } else {
        0
    };
    Some(Message::raw(
        RTM_SETLINK,
        &header(index, flags, change),
        &attributes,
    ))
}

/// Detaches all XDP programs of the link. One that a bpf_link holds stays, and is an error.
pub fn detach_xdp(socket: &mut Socket, link: &Link) -> Result<()> {
    let Some(reply) = ask(socket, link.index)? else {
        return Ok(());
    };
    let rest = reply.payload.get(HEADER_LEN..).unwrap_or_default();
    let Some(attached) = attributes(rest).find(|one| one.kind() == IFLA_XDP) else {
        return Ok(());
    };
    let is_attached = |kind| attributes(attached.value()).any(|one| one.kind() == kind);
    for (_, flag, mode) in XDP.iter().filter(|(kind, ..)| is_attached(*kind)) {
        // EBUSY is final here: dev_xdp_attach does not detach a program that a bpf_link holds.
        let detached = socket.change_once(&xdp_message(link.index, *flag), || {
            format!("cannot detach the XDP program ({mode}) of {}", link.name)
        });
        detached.map_err(|error| {
            if !Error::is(&error, Errno::EBUSY) {
                return error;
            }
            error.context(
                "a bpf_link holds it: end the program that made it, or remove its pin (`bpftool link`)",
            )
        })?;
    }
    Ok(())
}

fn xdp_message(index: Index, flag: u32) -> Message {
    let fd = DefaultNla::new(IFLA_XDP_FD, (-1i32).to_ne_bytes().to_vec());
    let flags = DefaultNla::new(IFLA_XDP_FLAGS, flag.to_ne_bytes().to_vec());
    Message::raw(
        RTM_SETLINK,
        &header(index, 0, 0),
        &[nest(IFLA_XDP, &[fd, flags])],
    )
}

/// struct ifinfomsg.
fn header(index: Index, flags: i32, change: i32) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[4..8].copy_from_slice(&index.get().to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&change.to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_of(name: &str, all: &[(&str, &str)]) -> Vec<u8> {
        let wanted = |name: &str| {
            all.iter()
                .find(|(other, _)| *other == name)
                .map(|(_, value)| (*value).to_owned())
        };
        message(Index::MIN.saturating_add(4), name, &wanted)
            .unwrap()
            .payload
    }

    /// struct ifinfomsg, and attributes of if_link.h.
    #[test]
    fn a_setting_is_these_bytes() {
        let head = |flags: u16, change: u16| {
            let [flags, change] = [flags, change].map(u16::to_ne_bytes);
            [
                &[0, 0, 0, 0, 5, 0, 0, 0][..],
                &flags,
                &[0, 0],
                &change,
                &[0, 0],
            ]
            .concat()
        };
        assert_eq!(
            message_of("flags", &[("flags", "NOARP,MULTICAST")]),
            head(0x1080, 0xf3a4)
        );
        assert_eq!(
            message_of("alias", &[("alias", "")]),
            [&head(0, 0)[..], &[4, 0, 20, 0]].concat()
        );
        // The size for IPv4 follows the other one, so it is always said too.
        let sizes = [
            ("gso_max_size", "65536"),
            ("gso_ipv4_max_size", "4096"),
            ("gro_max_size", "1"),
        ];
        let both = [8, 0, 41, 0, 0, 0, 1, 0, 8, 0, 63, 0, 0, 16, 0, 0];
        assert_eq!(
            message_of("gso_max_size", &sizes),
            [&head(0, 0)[..], &both].concat()
        );
        let detach = [
            20, 0, 43, 0x80, 8, 0, 1, 0, 255, 255, 255, 255, 8, 0, 3, 0, 4, 0, 0, 0,
        ];
        assert_eq!(
            xdp_message(Index::MIN.saturating_add(4), 4).payload,
            [&head(0, 0)[..], &detach].concat()
        );
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let all = [
            ("txqueuelen", "7"),
            ("mode", "1"),
            ("alias", "mine"),
            ("broadcast", "ff:ff:ff:ff:ff:fe"),
        ];
        for (name, value) in all {
            let read = parse(&message_of(name, &all));
            assert!(read.contains(&(name, value.to_owned())), "{read:?}");
        }
        assert_eq!(parse(&[0; 3]), []);
    }
}
