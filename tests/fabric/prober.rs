//! Asks every rail from every rail: what the fabric test runs in each pod.
//!
//! `prober listen` answers TCP connections with the address that they come from. `prober probe` reads lines of
//! standard input and prints each with its verdict, `ok HOPS` or `failed REASON`:
//!
//! ```text
//! LABEL KIND INTERFACE SOURCE DESTINATION
//! ```
//!
//! | kind | |
//! | --- | --- |
//! | `device` | an ICMP echo whose socket is bound to INTERFACE, as `ping -I net1` |
//! | `source` | bound to SOURCE, as `ping -I 172.16.0.0` |
//! | `jumbo` | bound to SOURCE, 9000 bytes that may not be fragmented, as `ping -M do -s 8972` |
//! | `tcp` | a TCP connection bound to SOURCE |
//! | `tcp-device` | bound to SOURCE and INTERFACE |
//! | `unbound` | an ICMP echo bound to nothing |
//!
//! HOPS are the routers that the answer crossed; `-` for TCP, whose packets the kernel keeps to itself.

use std::fmt;
use std::io::{IoSliceMut, Read as _, Write as _, stdin, stdout};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use nix::sys::socket::sockopt::{BindToDevice, Ipv4RecvTtl, Ipv6RecvHopLimit};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, Timeout};
use rustix::net::{AddressFamily, SocketType, bind, connect, ipproto, send, socket};

const PORT: u16 = 7000;
/// For an answer; a fabric in one kernel answers within a millisecond.
const PATIENCE: Duration = Duration::from_secs(2);
/// TCP asks again by itself, after one second and three.
const PATIENCE_TCP: Duration = Duration::from_secs(5);
/// At once. Those of one rail share its queue of packets that wait for the leaf's MAC.
const WORKERS: usize = 256;
const TTL: i32 = 64;
const JUMBO: usize = 9000;

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("listen") => listen(),
        Some("probe") => probe_all(),
        _ => bail!("usage: prober listen | probe"),
    }
}

/// Prints a line when it is ready.
fn listen() -> Result<()> {
    // With room for all who come at once: std's has it for 128.
    let socket = socket(AddressFamily::INET6, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), PORT))?;
    rustix::net::listen(&socket, 4096)?;
    let listener = TcpListener::from(socket);
    writeln!(stdout(), "listening")?;
    for stream in listener.incoming() {
        let mut stream = stream?;
        let peer = stream.peer_addr()?.ip().to_canonical();
        // Who hangs up early is counted where it was asked.
        let _ = stream.write_all(peer.to_string().as_bytes());
    }
    Ok(())
}

fn probe_all() -> Result<()> {
    let mut text = String::new();
    stdin().read_to_string(&mut text)?;
    let probes = text.lines().map(str::parse).collect::<Result<Vec<Probe>>>()?;
    let next = AtomicUsize::new(0);
    let out = Mutex::new(String::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS.min(probes.len()) {
            scope.spawn(|| {
                while let Some(probe) = probes.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let line = match probe.run() {
                        Ok(Some(hops)) => format!("{} ok {hops}\n", probe.line),
                        Ok(None) => format!("{} ok -\n", probe.line),
                        Err(error) => format!("{} failed {error}\n", probe.line),
                    };
                    if let Ok(mut out) = out.lock() {
                        out.push_str(&line);
                    }
                }
            });
        }
    });
    let out = out.into_inner()?;
    stdout().write_all(out.as_bytes())?;
    Ok(())
}

struct Probe {
    line: String,
    kind: Kind,
    interface: String,
    source: IpAddr,
    destination: IpAddr,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Device,
    Source,
    Jumbo,
    Tcp,
    TcpDevice,
    Unbound,
}

impl FromStr for Probe {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Probe> {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, kind, interface, source, destination] = words[..] else { bail!("not five words: {line:?}") };
        let kind = match kind {
            "device" => Kind::Device,
            "source" => Kind::Source,
            "jumbo" => Kind::Jumbo,
            "tcp" => Kind::Tcp,
            "tcp-device" => Kind::TcpDevice,
            "unbound" => Kind::Unbound,
            _ => bail!("no such kind: {kind}"),
        };
        let (source, destination) = (source.parse()?, destination.parse()?);
        Ok(Probe { line: line.to_owned(), kind, interface: interface.to_owned(), source, destination })
    }
}

impl Probe {
    /// The hops, where they can be seen.
    fn run(&self) -> Result<Option<i32>, Failure> {
        match self.kind {
            Kind::Tcp | Kind::TcpDevice => self.connect().map(|()| None),
            _ => self.echo().map(Some),
        }
    }

    fn connect(&self) -> Result<(), Failure> {
        let socket = self.socket(SocketType::STREAM)?;
        connect(&socket, &SocketAddr::new(self.destination, PORT))?;
        let mut answer = String::new();
        TcpStream::from(socket).read_to_string(&mut answer)?;
        if answer == self.source.to_string() { Ok(()) } else { Err(Failure(format!("seen-as:{answer}"))) }
    }

    fn echo(&self) -> Result<i32, Failure> {
        let socket = self.socket(SocketType::DGRAM)?;
        let header = if self.source.is_ipv4() { 20 } else { 40 };
        let mut request = vec![0; if self.kind == Kind::Jumbo { JUMBO - header } else { 64 }];
        if self.source.is_ipv4() {
            setsockopt(&socket, Ipv4RecvTtl, &true)?;
            sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?;
            request[0] = 8;
        } else {
            setsockopt(&socket, Ipv6RecvHopLimit, &true)?;
            sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO)?;
            request[0] = 128;
        }
        // Connected, it takes answers of this address alone.
        connect(&socket, &SocketAddr::new(self.destination, 0))?;
        send(&socket, &request, rustix::net::SendFlags::empty())?;

        let mut answer = vec![0; JUMBO];
        let mut space = nix::cmsg_space!(i32);
        let mut parts = [IoSliceMut::new(&mut answer)];
        let got =
            recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty())?;
        if got.bytes != request.len() {
            return Err(Failure(format!("{}-of-{}-bytes", got.bytes, request.len())));
        }
        let hops = got.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::Ipv4Ttl(left) | ControlMessageOwned::Ipv6HopLimit(left) => Some(TTL - left),
            _ => None,
        });
        hops.ok_or_else(|| Failure("no-ttl".into()))
    }

    fn socket(&self, what: SocketType) -> Result<OwnedFd, Failure> {
        let (family, icmp) = match self.source {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
        };
        let socket = socket(family, what, (what == SocketType::DGRAM).then_some(icmp))?;
        let patience = if what == SocketType::STREAM { PATIENCE_TCP } else { PATIENCE };
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
        if matches!(self.kind, Kind::Device | Kind::TcpDevice) {
            setsockopt(&socket, BindToDevice, &self.interface.as_str().into())?;
        }
        if matches!(self.kind, Kind::Source | Kind::Jumbo | Kind::Tcp | Kind::TcpDevice) {
            bind(&socket, &SocketAddr::new(self.source, 0))?;
        }
        Ok(socket)
    }
}

/// Why, in one word: the lines are for awk.
struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<nix::errno::Errno> for Failure {
    fn from(error: nix::errno::Errno) -> Failure {
        use nix::errno::Errno;
        Failure(match error {
            // Of a socket with a deadline: EINPROGRESS is connect's.
            Errno::EAGAIN | Errno::EINPROGRESS => "no-answer".into(),
            Errno::EHOSTUNREACH => "unreachable".into(),
            Errno::EMSGSIZE => "too-long".into(),
            other => format!("{other:?}"),
        })
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(error: rustix::io::Errno) -> Failure {
        nix::errno::Errno::from_raw(error.raw_os_error()).into()
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        nix::errno::Errno::from_raw(error.raw_os_error().unwrap_or(0)).into()
    }
}
