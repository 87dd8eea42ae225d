//! Listens for LLDP on a netdev, by a packet socket that hears nothing else.

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
/// How often the deadline is looked at.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// What was heard.
#[derive(Debug)]
pub enum Heard {
    /// The first neighbour that said who it is.
    Neighbour(Neighbour),
    /// None; with what was wrong with the last frame, if one came.
    Nobody(Option<&'static str>),
    /// None, because the device went.
    Lost(String),
}

/// Waits for the neighbour of `link` until `deadline`.
pub fn neighbour(link: &Link, deadline: Instant) -> Result<Heard> {
    let mut receiver = open(link)
        .with_context(|| format!("cannot listen on {}: run this command as root", link.name))?;
    let mut unread = None;
    while Instant::now() < deadline {
        match receiver.next() {
            Ok(pdu) => match lldp::parse(pdu) {
                Ok(Some(neighbour)) => return Ok(Heard::Neighbour(neighbour)),
                Ok(None) => (),
                Err(why) => unread = Some(why),
            },
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(error) => return Ok(Heard::Lost(error.to_string())),
        }
    }
    Ok(Heard::Nobody(unread))
}

/// The socket has no protocol before it is bound: one that has hears all netdevs until then. What a
/// NIC lets pass is for addresses that somebody has asked for, and LLDP is sent to one that nobody
/// has, so the device is promiscuous while the socket is open: the kernel ends that with the
/// socket, however this process ends.
fn open(link: &Link) -> Result<Box<dyn DataLinkReceiver>> {
    let socket = socket(
        AddressFamily::Packet,
        SockType::Datagram,
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
