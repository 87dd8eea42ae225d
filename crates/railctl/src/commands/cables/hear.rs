//! Listens for LLDP on a netdev, by a packet socket that hears nothing else.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::os::fd::IntoRawFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use pnet_datalink::{Channel, ChannelType, Config, DataLinkReceiver, NetworkInterface};

use super::lldp::{self, Neighbour};
use rail_netlink::link::Link;

/// The EtherType.
const LLDP: u16 = 0x88cc;
/// Longest time between two looks at the deadline.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// The group addresses that LLDP is sent to (IEEE 802.1AB, 7.1): nearest bridge, nearest non-TPMR
/// bridge, nearest customer bridge. A switch does not forward the first, and the others seldom.
const GROUPS: [[u8; 6]; 3] = [
    [0x01, 0x80, 0xc2, 0, 0, 0x0e],
    [0x01, 0x80, 0xc2, 0, 0, 0x03],
    [0x01, 0x80, 0xc2, 0, 0, 0x00],
];

/// The outcome of listening.
#[derive(Debug)]
pub enum Heard {
    /// The only neighbour that announced itself.
    Neighbour(Neighbour),
    /// Two different announcements on one port: one of them may be forged.
    Two(Box<[Neighbour; 2]>),
    /// None; with what was wrong with the last frame, if one came.
    Nobody(Option<&'static str>),
    /// None, because the device went.
    Lost(String),
}

/// Listens to the neighbour of `link` until `deadline`, or until a second one speaks. Frames from
/// `vf_macs` come from pods of this node, which share the wire with the PF.
pub fn neighbour(link: &Link, vf_macs: &HashSet<Vec<u8>>, deadline: Instant) -> Result<Heard> {
    let mut receiver = open(link)
        .with_context(|| format!("cannot listen on {}: run this command as root", link.name))?;
    let mut unread = None;
    let mut first: Option<Neighbour> = None;
    while Instant::now() < deadline {
        match receiver.next() {
            Ok(frame) => {
                let Some(pdu) = pdu(frame, vf_macs) else {
                    continue;
                };
                let neighbour = match lldp::parse(pdu) {
                    Ok(Some(neighbour)) => neighbour,
                    Ok(None) => continue,
                    Err(why) => {
                        unread = Some(why);
                        continue;
                    }
                };
                match first.take() {
                    Some(other) if other != neighbour => {
                        return Ok(Heard::Two(Box::new([other, neighbour])));
                    }
                    _ => first = Some(neighbour),
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(error) => return Ok(Heard::Lost(error.to_string())),
        }
    }
    Ok(first.map_or(Heard::Nobody(unread), Heard::Neighbour))
}

/// The LLDPDU of a frame that a leaf can have sent: to a group address of LLDP, and not from a VF of
/// this node.
fn pdu<'a>(frame: &'a [u8], vf_macs: &HashSet<Vec<u8>>) -> Option<&'a [u8]> {
    let (destination, rest) = frame.split_first_chunk::<6>()?;
    let (source, rest) = rest.split_first_chunk::<6>()?;
    let (_ether_type, pdu) = rest.split_first_chunk::<2>()?;
    let is_from_leaf = GROUPS.contains(destination) && !vf_macs.contains(&source[..]);
    is_from_leaf.then_some(pdu)
}

/// The frames come with their Ethernet header. The socket has no protocol before it is bound: one that has hears all netdevs until then. What a
/// NIC lets pass is for addresses that somebody has asked for, and LLDP is sent to one that nobody
/// has, so the device is promiscuous while the socket is open: the kernel ends that with the
/// socket, however this process ends.
fn open(link: &Link) -> Result<Box<dyn DataLinkReceiver>> {
    let socket = socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let interface = NetworkInterface {
        name: link.name.clone(),
        description: String::new(),
        index: link.index.get(),
        mac: None,
        ips: Vec::new(),
        flags: 0,
    };
    let config = Config {
        channel_type: ChannelType::Layer3(LLDP),
        read_timeout: Some(LONGEST_WAIT),
        promiscuous: true,
        socket_fd: Some(socket.into_raw_fd()),
        ..Config::default()
    };
    match pnet_datalink::channel(&interface, config)? {
        Channel::Ethernet(_, receiver) => Ok(receiver),
        _ => bail!("the library opened another kind of channel"),
    }
}
