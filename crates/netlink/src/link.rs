//! Links: reading what the kernel says about a netdev, changing it, and moving it to another
//! namespace.
//!
//! ```
//! use rail_netlink::{Socket, link};
//!
//! # fn main() -> anyhow::Result<()> {
//! for link in link::all(&mut Socket::open()?)? {
//!     println!("{}: {}, MTU {}", link.index.get(), link.name, link.mtu);
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd as _};

use anyhow::{Context as _, Result};
use netlink_packet_core::{
    DefaultNla, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, parse_string, parse_u32,
};
use netlink_packet_route::link::{
    LinkAttribute, LinkExtentMask, LinkFlags, LinkHeader, LinkMessage, Prop,
};
use nix::errno::Errno;
use nix::libc::{
    IFLA_ADDRESS, IFLA_ALT_IFNAME, IFLA_IFALIAS, IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINK,
    IFLA_LINK_NETNSID, IFLA_LINKINFO, IFLA_MASTER, IFLA_MAX_MTU, IFLA_MIN_MTU, IFLA_MTU,
    IFLA_PARENT_DEV_NAME, IFLA_PERM_ADDRESS, IFLA_PROP_LIST, IFLA_STATS64, IFLA_XDP, RTM_DELLINK,
    RTM_GETLINK, RTM_NEWLINK, RTM_SETLINK,
};
use rtnetlink::LinkUnspec;
use serde::{Deserialize, Serialize};

use super::{Error, Message, Socket, attributes, nest, unguessable};
use crate::all_of;

/// Index of a link in its namespace. It is never 0: a request with index 0 and a name acts on the
/// link of that name, so a move "to net1" would move the host's own net1.
pub type Index = NonZeroU32;

// include/uapi/linux/rtnetlink.h; libc does not have them.
const RTM_NEWLINKPROP: u16 = 108;
const RTM_DELLINKPROP: u16 = 109;
/// A name and an altname, each with a terminating zero.
const IFNAMSIZ: usize = 16;
const ALTIFNAMSIZ: usize = 128;
/// Bytes of the hardware address of an InfiniBand netdev (include/linux/if_infiniband.h).
const INFINIBAND_ALEN: usize = 20;
/// sizeof(struct ifinfomsg).
pub const HEADER_LEN: usize = 16;
/// Prefix of the names that the kernel gives to links, and of [`free_name`]'s.
pub const FREE_NAME: &str = "dev";

/// A netdev, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Index in the namespace of the socket.
    pub index: Index,
    /// Name of the link.
    pub name: String,
    /// Further names, up to 128 bytes each.
    pub altnames: Vec<String>,
    /// Altnames that are no text. Only a tenant gives such names, so they are on no record.
    #[serde(skip)]
    pub unreadable: Vec<Vec<u8>>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Largest MTU that the driver accepts, in bytes; 0 if it does not report one.
    pub max_mtu: u32,
    /// Smallest MTU that the driver accepts, in bytes.
    pub min_mtu: u32,
    /// Hardware address in use, such as `02:00:00:00:00:01`.
    pub mac: String,
    /// Hardware address that the device was made with; virtual devices have none.
    pub permanent_mac: Option<String>,
    /// Whether the link is administratively up.
    pub up: bool,
    /// Whether the link has a carrier. A link that is down never has one.
    #[serde(default)]
    pub carrier: bool,
    /// Index of the link that this one is stacked on, in the same namespace.
    #[serde(default)]
    pub lower: Option<u32>,
    /// Index of the bridge, bond or OVS datapath that the link belongs to.
    pub master: Option<u32>,
    /// Kind of a virtual device, such as `veth`; `None` for a NIC.
    pub kind: Option<String>,
    /// Name of the device on its bus: for a VF, its PCI address.
    pub parent: Option<String>,
    /// Whether it is the loopback device.
    pub loopback: bool,
    /// Whether an XDP program is attached.
    #[serde(default)]
    pub xdp: bool,
}

impl Link {
    /// Whether it is an InfiniBand netdev (IPoIB), whose address the kernel does not let anyone set
    /// as a whole.
    pub fn is_infiniband(&self) -> bool {
        guid(&self.mac).is_some()
    }

    /// Whether the link is certainly another port than the one whose permanent MAC was `before`.
    pub fn is_not_port(&self, before: Option<&str>) -> bool {
        match (&self.permanent_mac, before) {
            (Some(now), Some(before)) => !is_same_mac(now, before),
            _ => false,
        }
    }

    /// Whether the link disappears with its namespace. The kernel moves every other link back to
    /// the initial namespace: the non-virtual ones, and the kinds with `netns_refund`, which stand
    /// for hardware (default_device_exit_net).
    pub fn dies_with_namespace(&self) -> bool {
        const REFUNDED: [&str; 3] = ["ipoib", "dsa", "can"];
        self.kind
            .as_deref()
            .is_some_and(|kind| !REFUNDED.contains(&kind))
    }
}

/// The link whose name is `name`, or whose altname is, if it is no longer than a name.
pub fn by_name(socket: &mut Socket, name: &str) -> Result<Option<Link>> {
    // No link has such a name; one that is no text is read as a longer one.
    if name.len() >= IFNAMSIZ {
        return Ok(None);
    }
    let mut message = request();
    message
        .attributes
        .push(LinkAttribute::IfName(name.to_owned()));
    get(
        socket,
        message,
        &[Errno::ENODEV],
        &format!("cannot look up the link {name}"),
    )
}

/// The link that has `name` as its name or as one of its altnames, which may be longer than a name.
pub fn by_any_name(socket: &mut Socket, name: &str) -> Result<Option<Link>> {
    if name.len() < IFNAMSIZ {
        return by_name(socket, name);
    }
    if name.len() >= ALTIFNAMSIZ {
        return Ok(None);
    }
    let mut message = request();
    let value = [name.as_bytes(), &[0]].concat();
    message
        .attributes
        .push(LinkAttribute::Other(DefaultNla::new(
            IFLA_ALT_IFNAME,
            value,
        )));
    // A kernel before 5.5 has no altnames.
    let absent = [Errno::ENODEV, Errno::EINVAL, Errno::EOPNOTSUPP];
    get(
        socket,
        message,
        &absent,
        &format!("cannot look up the link {name}"),
    )
}

/// The link with this index.
pub fn by_index(socket: &mut Socket, index: Index) -> Result<Option<Link>> {
    let mut message = request();
    message.header.index = index.get();
    get(
        socket,
        message,
        &[Errno::ENODEV],
        &format!("cannot look up the link with index {index}"),
    )
}

/// All links of the namespace.
pub fn all(socket: &mut Socket) -> Result<Vec<Link>> {
    let message = Message::new(RTM_GETLINK, &request());
    socket.dump(&message, &[], "cannot list links", parse)
}

/// The links of a namespace in which a pod may make and remove links all the time. A link that
/// stays is always in the list if it is wanted, unless the kernel itself loses count.
pub fn seen(socket: &mut Socket, is_wanted: impl Fn(&Link) -> bool) -> Result<Vec<Link>> {
    let message = Message::new(RTM_GETLINK, &request());
    let read = |reply: &Message| parse(reply).filter(|link| is_wanted(link));
    socket.glance(&message, &[], "cannot list links", read)
}

/// The kernel's counters of errors and discards of a link, by their names, and of lost carriers
/// (`carrier_down`); empty if the link is gone.
pub fn faults(socket: &mut Socket, index: Index) -> Result<BTreeMap<&'static str, u64>> {
    /// IFLA_CARRIER_DOWN_COUNT.
    const CARRIER_DOWN_COUNT: u16 = 48;
    /// The places in struct rtnl_link_stats64.
    const COUNTERS: [(usize, &str); 10] = [
        (4, "rx_errors"),
        (5, "tx_errors"),
        (6, "rx_dropped"),
        (7, "tx_dropped"),
        (10, "rx_length_errors"),
        (12, "rx_crc_errors"),
        (13, "rx_frame_errors"),
        (14, "rx_fifo_errors"),
        (15, "rx_missed_errors"),
        (17, "tx_carrier_errors"),
    ];
    let mut message = LinkMessage::default();
    message.header.index = index.get();
    let what = format!("cannot read the counters of the link with index {index}");
    let Some(reply) = socket.get(Message::new(RTM_GETLINK, &message), &[Errno::ENODEV], &what)?
    else {
        return Ok(BTreeMap::new());
    };
    let told = reply.payload.get(HEADER_LEN..).unwrap_or_default();
    let downs = attributes(told).find(|one| one.kind() == CARRIER_DOWN_COUNT);
    let downs = downs
        .and_then(|one| one.value().try_into().ok())
        .map(u32::from_ne_bytes);
    let values: Vec<u64> = attributes(told)
        .filter(|one| one.kind() == IFLA_STATS64)
        .flat_map(|one| {
            one.value()
                .chunks_exact(8)
                .map(|raw| raw.try_into().map(u64::from_ne_bytes))
                .collect::<Vec<_>>()
        })
        .collect::<Result<_, _>>()?;
    let counted = COUNTERS
        .iter()
        .filter_map(|(at, name)| Some((*name, *values.get(*at)?)));
    Ok(counted
        .chain(downs.map(|downs| ("carrier_down", downs.into())))
        .collect())
}

/// A request without statistics, and without the VFs of a PF, which take milliseconds and may not
/// fit into the answer.
fn request() -> LinkMessage {
    let mut message = LinkMessage::default();
    message
        .attributes
        .push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    message
}

fn get(
    socket: &mut Socket,
    message: LinkMessage,
    absent: &[Errno],
    what: &str,
) -> Result<Option<Link>> {
    let reply = socket.get(Message::new(RTM_GETLINK, &message), absent, what)?;
    reply
        .map(|reply| {
            parse(&reply).with_context(|| format!("{what}: the kernel's answer cannot be parsed"))
        })
        .transpose()
}

/// Reads only the attributes that are used, one by one: a malformed or unknown attribute, from an
/// exotic driver or a later kernel, must not hide the link.
pub(crate) fn parse(reply: &Message) -> Option<Link> {
    let header = LinkHeader::parse(&reply.payload).ok()?;
    let mut link = Link {
        index: NonZeroU32::new(header.index)?,
        name: String::new(),
        altnames: Vec::new(),
        unreadable: Vec::new(),
        mtu: 0,
        max_mtu: 0,
        min_mtu: 0,
        mac: String::new(),
        permanent_mac: None,
        up: header.flags.contains(LinkFlags::Up),
        carrier: header.flags.contains(LinkFlags::LowerUp),
        lower: None,
        master: None,
        kind: None,
        parent: None,
        loopback: header.flags.contains(LinkFlags::Loopback),
        xdp: false,
    };
    let mut is_elsewhere = false;
    for attribute in attributes(reply.payload.get(HEADER_LEN..)?) {
        let value = attribute.value();
        match attribute.kind() {
            IFLA_IFNAME => link.name = name(value),
            IFLA_MTU => link.mtu = parse_u32(value).ok()?,
            IFLA_MAX_MTU => link.max_mtu = parse_u32(value).unwrap_or(0),
            IFLA_MIN_MTU => link.min_mtu = parse_u32(value).unwrap_or(0),
            IFLA_ADDRESS => link.mac = format_mac(value),
            IFLA_PERM_ADDRESS => link.permanent_mac = Some(format_mac(value)),
            IFLA_LINK => link.lower = parse_u32(value).ok(),
            IFLA_LINK_NETNSID => is_elsewhere = true,
            IFLA_MASTER => link.master = parse_u32(value).ok(),
            IFLA_PARENT_DEV_NAME => link.parent = parse_string(value).ok(),
            IFLA_XDP => link.xdp = has_xdp(value),
            IFLA_PROP_LIST => {
                for prop in attributes(value).filter(|prop| prop.kind() == IFLA_ALT_IFNAME) {
                    match parse_string(prop.value()) {
                        Ok(name) => link.altnames.push(name),
                        Err(_) => link.unreadable.push(prop.value().to_owned()),
                    }
                }
            }
            IFLA_LINKINFO => {
                let kind = attributes(value).find(|info| info.kind() == IFLA_INFO_KIND);
                link.kind = kind.and_then(|info| parse_string(info.value()).ok());
            }
            _ => (),
        }
    }
    link.lower = link.lower.filter(|_| !is_elsewhere);
    Some(link)
}

/// A name from the kernel, which takes any bytes but a few (dev_valid_name). One that is no text
/// must not hide the link: a tenant can give it. It is shown with replacement characters, and names
/// nothing: the link has its index.
pub fn name(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned()
}

/// Whether an XDP program is attached, from IFLA_XDP. Mode 0 means none; the others say who runs
/// it.
fn has_xdp(value: &[u8]) -> bool {
    const IFLA_XDP_ATTACHED: u16 = 2;
    attributes(value).any(|one| {
        one.kind() == IFLA_XDP_ATTACHED && one.value().first().is_some_and(|mode| *mode != 0)
    })
}

/// The text of a hardware address, such as `02:00:00:00:00:01`; on InfiniBand it has 20 bytes.
pub fn format_mac(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .join(":")
}

/// The bytes of a hardware address, with `:` or `-` between them.
pub fn parse_mac(text: &str) -> Option<Vec<u8>> {
    let byte = |part: &str| {
        let is_hex = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| u8::from_str_radix(part, 16).ok()).flatten()
    };
    text.split([':', '-']).map(byte).collect()
}

/// The GUID of the port in the address of an InfiniBand netdev: 4 bytes of flags and queue pair,
/// then the GID, whose second half it is.
pub fn guid(mac: &str) -> Option<u64> {
    let bytes = parse_mac(mac).filter(|bytes| bytes.len() == INFINIBAND_ALEN)?;
    Some(u64::from_be_bytes(bytes.get(12..)?.try_into().ok()?))
}

/// Whether a shell takes `name` as one word, and `ip` takes it as a name: tenants choose the names of
/// links, and people copy commands from messages.
pub fn is_plain_name(name: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    !name.starts_with('-') && name.chars().all(is_plain)
}

/// Do both addresses mean the same port? On InfiniBand the queue pair is another one in each netdev
/// that the driver makes, and the subnet manager chooses the first half of the GID.
pub fn is_same_mac(one: &str, other: &str) -> bool {
    one == other || guid(one).is_some_and(|one| one != 0 && guid(other) == Some(one))
}

/// The changes to a link by its move.
#[derive(Clone, Debug, Default)]
pub struct Move<'a> {
    /// Name in the other namespace.
    pub name: &'a str,
    /// MTU in bytes; `None` keeps it.
    pub mtu: Option<u32>,
    /// Hardware address; `None` keeps it.
    pub mac: Option<&'a [u8]>,
    /// Alias, of at most 255 bytes; empty removes it, and `None` keeps it.
    pub alias: Option<&'a str>,
}

/// The one message that moves a link to the namespace `to`. The kernel performs its parts in this
/// order: namespace, address, MTU, name, alias (net/core/rtnetlink.c, do_setlink). It stops at the
/// first part that fails, so after an error the link may be in either namespace.
pub fn move_message(index: Index, to: &impl AsFd, change: &Move<'_>) -> LinkMessage {
    let mut message = LinkUnspec::new_with_index(index.get())
        .setns_by_fd(to.as_fd().as_raw_fd())
        .name(change.name.to_owned());
    if let Some(mtu) = change.mtu {
        message = message.mtu(mtu);
    }
    if let Some(mac) = change.mac {
        message = message.address(mac.to_vec());
    }
    let mut message = message.build();
    if let Some(alias) = change.alias {
        let alias = DefaultNla::new(IFLA_IFALIAS, alias.as_bytes().to_vec());
        message.attributes.push(LinkAttribute::Other(alias));
    }
    message
}

/// Moves a link to the namespace `to`; see [`move_message`].
pub fn move_to(socket: &mut Socket, link: &Link, to: &impl AsFd, change: &Move<'_>) -> Result<()> {
    let message = move_message(link.index, to, change);
    socket.change(Message::new(RTM_SETLINK, &message), 0, || {
        let mtu = change
            .mtu
            .map_or_else(String::new, |mtu| format!(" with MTU {mtu}"));
        format!(
            "cannot move {} to the other namespace as {}{mtu}",
            link.name, change.name
        )
    })
}

/// Brings a link up.
pub fn set_up(socket: &mut Socket, link: &Link) -> Result<()> {
    let message = LinkUnspec::new_with_index(link.index.get()).up().build();
    set(socket, message, || format!("cannot bring {} up", link.name))
}

/// Takes a link down.
pub fn set_down(socket: &mut Socket, link: &Link) -> Result<()> {
    let message = LinkUnspec::new_with_index(link.index.get()).down().build();
    set(socket, message, || {
        format!("cannot take {} down", link.name)
    })
}

/// Renames a link, which must be down: kernels before 6.2 refuse to rename a link that is up.
pub fn set_name(socket: &mut Socket, link: &Link, name: &str) -> Result<()> {
    let message = LinkUnspec::new_with_index(link.index.get())
        .name(name.to_owned())
        .build();
    let set = set(socket, message, || {
        format!("cannot rename {} to {name}", link.name)
    });
    unless(set, socket, link, &|now| now.name == name)
}

/// A name for a link whose own is taken. No tenant can take it before: a pod can make links on the
/// node, and the 32,768 names that the kernel itself would try are few.
pub fn free_name() -> String {
    format!("{FREE_NAME}{}", unguessable())
}

/// Sets the MTU, in bytes.
pub fn set_mtu(socket: &mut Socket, link: &Link, mtu: u32) -> Result<()> {
    let message = LinkUnspec::new_with_index(link.index.get())
        .mtu(mtu)
        .build();
    let set = set(socket, message, || {
        format!("cannot set the MTU of {} to {mtu}", link.name)
    });
    unless(set, socket, link, &|now| now.mtu == mtu)
}

/// Sets the hardware address.
pub fn set_mac(socket: &mut Socket, link: &Link, mac: &[u8]) -> Result<()> {
    let wanted = format_mac(mac);
    let message = LinkUnspec::new_with_index(link.index.get())
        .address(mac.to_vec())
        .build();
    let set = set(socket, message, || {
        format!("cannot set the MAC of {} to {wanted}", link.name)
    });
    unless(set, socket, link, &|now| now.mac == wanted)
}

fn set(socket: &mut Socket, message: LinkMessage, what: impl FnOnce() -> String) -> Result<()> {
    socket.change(Message::new(RTM_SETLINK, &message), 0, what)
}

/// Ignores the refusal of a change if the link has the wanted value anyway: udev and others set
/// names at the same time.
fn unless(
    changed: Result<()>,
    socket: &mut Socket,
    link: &Link,
    is_so: &dyn Fn(&Link) -> bool,
) -> Result<()> {
    let Err(error) = changed else { return Ok(()) };
    if by_index(socket, link.index)?.is_some_and(|now| is_so(&now)) {
        Ok(())
    } else {
        Err(error)
    }
}

/// Makes a pair of virtual links, of which the kernel names the other one.
pub fn add_veth(socket: &mut Socket, name: &str) -> Result<()> {
    let kind = DefaultNla::new(IFLA_INFO_KIND, b"veth".to_vec());
    let name_of = DefaultNla::new(IFLA_IFNAME, [name.as_bytes(), b"\0"].concat());
    let message = Message::raw(
        RTM_NEWLINK,
        &[0; HEADER_LEN],
        &[name_of, nest(IFLA_LINKINFO, &[kind])],
    );
    socket.change(message, NLM_F_CREATE | NLM_F_EXCL, || {
        format!("cannot make a veth {name}")
    })
}

/// Removes a virtual link. It is no error if the link is gone.
pub fn remove(socket: &mut Socket, link: &Link) -> Result<()> {
    let message = LinkUnspec::new_with_index(link.index.get()).build();
    let removed = socket.change(Message::new(RTM_DELLINK, &message), 0, || {
        format!("cannot remove {}", link.name)
    });
    removed.or_else(|error| {
        if Error::is(&error, Errno::ENODEV) {
            Ok(())
        } else {
            Err(error)
        }
    })
}

/// Adds an altname to a link, unless the link has it.
pub fn add_altname(socket: &mut Socket, link: &Link, name: &str) -> Result<()> {
    let flags = NLM_F_CREATE | NLM_F_EXCL | NLM_F_APPEND;
    let message = altname_message(link, Prop::AltIfName(name.to_owned()));
    let added = socket.change(Message::new(RTM_NEWLINKPROP, &message), flags, || {
        format!("cannot add the altname {name} to {}", link.name)
    });
    unless(added, socket, link, &|now| {
        now.altnames.iter().any(|altname| altname == name)
    })
}

/// Removes an altname from a link, if the link has it.
pub fn remove_altname(socket: &mut Socket, link: &Link, name: &str) -> Result<()> {
    let message = altname_message(link, Prop::AltIfName(name.to_owned()));
    let removed = socket.change(Message::new(RTM_DELLINKPROP, &message), 0, || {
        format!("cannot remove the altname {name} of {}", link.name)
    });
    unless(removed, socket, link, &|now| {
        now.altnames.iter().all(|altname| altname != name)
    })
}

/// Removes the altnames that are no text.
pub fn remove_unreadable(socket: &mut Socket, link: &Link) -> Result<()> {
    all_of(link.unreadable.iter().map(|name| {
        let message = altname_message(
            link,
            Prop::Other(DefaultNla::new(IFLA_ALT_IFNAME, name.clone())),
        );
        let removed = socket.change(Message::new(RTM_DELLINKPROP, &message), 0, || {
            format!(
                "cannot remove an altname of {} that is not UTF-8",
                link.name
            )
        });
        unless(removed, socket, link, &|now| !now.unreadable.contains(name))
    }))
}

fn altname_message(link: &Link, name: Prop) -> LinkMessage {
    let mut message = LinkUnspec::new_with_index(link.index.get()).build();
    message.attributes.push(LinkAttribute::PropList(vec![name]));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guid_of_an_infiniband_netdev_is_the_end_of_its_address() {
        let address =
            |queue_pair: &str, guid: &str| format!("{queue_pair}:fe:80:00:00:00:00:00:00:{guid}");
        let [ours, none] = ["02:00:00:00:00:00:00:01", "00:00:00:00:00:00:00:00"];
        let one = address("00:00:10:29", ours);
        assert_eq!(guid(&one), Some(0x0200_0000_0000_0001));
        assert_eq!(guid(ours), None);
        assert!(is_same_mac(&one, &address("20:00:18:86", ours)));
        assert!(!is_same_mac(
            &one,
            &address("00:00:10:29", "02:00:00:00:00:00:00:02")
        ));
        // Ports without a GUID are not all the same one.
        assert!(!is_same_mac(
            &address("00:00:10:29", none),
            &address("20:00:18:86", none)
        ));
    }

    #[test]
    fn another_permanent_mac_is_another_port() {
        let permanent = |mac: Option<&str>| {
            let mut message = LinkMessage::default();
            message.header.index = 1;
            let mut link = parse(&Message::new(RTM_GETLINK, &message)).unwrap();
            link.permanent_mac = mac.map(str::to_owned);
            link
        };
        let port = permanent(Some("02:00:00:00:00:01"));
        assert!(port.is_not_port(Some("02:00:00:00:00:02")));
        assert!(!port.is_not_port(Some("02:00:00:00:00:01")));
        assert!(!port.is_not_port(None));
        assert!(!permanent(None).is_not_port(Some("02:00:00:00:00:02")));
    }

    #[test]
    fn a_name_of_a_command_is_one_word_and_no_option() {
        for good in ["net1", "ens1f0v0", "mv-0_a.5"] {
            assert!(is_plain_name(good), "{good}");
        }
        for bad in ["a;reboot", "$(reboot)", "-all", "a b", "`x`", "a&", "é"] {
            assert!(!is_plain_name(bad), "{bad}");
        }
    }

    #[test]
    fn a_mac_is_two_hexadecimal_digits_each() {
        assert_eq!(
            parse_mac("02:aB:00-00-00:01"),
            Some(vec![2, 0xab, 0, 0, 0, 1])
        );
        for bad in ["", "02:+1", "2:00", "zz"] {
            assert_eq!(parse_mac(bad), None, "{bad:?}");
        }
    }
}
