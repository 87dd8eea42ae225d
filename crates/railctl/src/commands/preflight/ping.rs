//! An ICMP echo of a given size, from an address and an interface, that no router may fragment.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::socket::{setsockopt, sockopt::BindToDevice};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketType, bind, connect, ipproto, recv, send, socket,
};

use super::ending::Ending;

/// The first packet may be lost while a leaf on the way asks for a MAC.
const TRIES: u8 = 3;
/// Time limit for each answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// Before the next try, if the kernel refused to send at once.
const PAUSE: Duration = Duration::from_millis(200);

/// The source of packets.
#[derive(Clone, Debug)]
pub struct From<'a> {
    /// The interface.
    pub ifname: &'a str,
    /// Its address.
    pub address: IpAddr,
}

/// Lets this process use ICMP sockets in the namespace of this thread, where by default no group
/// may.
pub fn permit() -> Result<()> {
    let (path, group) = (
        "/proc/sys/net/ipv4/ping_group_range",
        nix::unistd::getegid(),
    );
    std::fs::write(path, format!("{group} {group}")).with_context(|| format!("cannot write {path}"))
}

/// Asks `to` with packets of `bytes`, IP header included. The error is that of the last try. Nobody
/// is asked any more when the end is near.
pub fn ping(from: &From<'_>, to: IpAddr, bytes: usize, ending: &Ending) -> io::Result<()> {
    let mut last = Ok(());
    for _ in 0..TRIES {
        if ending.is_near() {
            break;
        }
        last = try_ping(from, to, bytes);
        match &last {
            Ok(()) => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            Err(_) => sleep(PAUSE),
        }
    }
    last
}

fn try_ping(from: &From<'_>, to: IpAddr, bytes: usize) -> io::Result<()> {
    let socket = open(from)?;
    // The kernel numbers the echoes, and computes checksums. A connected socket takes answers of
    // this address alone.
    connect(&socket, &SocketAddr::new(to, 0))?;
    let (header, kind) = if to.is_ipv4() { (20, 8) } else { (40, 128) };
    let mut packet = vec![0; bytes.saturating_sub(header).max(8)];
    packet[0] = kind;
    send(&socket, &packet, SendFlags::empty())?;
    let mut answer = vec![0; packet.len()];
    recv(&socket, &mut answer[..], RecvFlags::empty())?;
    Ok(())
}

fn open(from: &From<'_>) -> io::Result<OwnedFd> {
    let (family, icmp) = match from.address {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    let socket = socket(family, SocketType::DGRAM, Some(icmp))?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    setsockopt(&socket, BindToDevice, &from.ifname.into())?;
    bind(&socket, &SocketAddr::new(from.address, 0))?;
    if from.address.is_ipv4() {
        sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?;
    } else {
        sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO)?;
    }
    Ok(socket)
}
