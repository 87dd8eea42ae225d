//! Asks every rail from every rail. A thread that is in a pod's network namespace asks all that the
//! pod has to ask, and the sockets of its own threads are in that namespace, too.

use std::fmt;
use std::io::{IoSliceMut, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::sockopt::{BindToDevice, Ipv4RecvTtl, Ipv6RecvHopLimit};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, Timeout};
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketType, bind, connect, ipproto, send, socket,
};

const PORT: u16 = 7000;
/// Time limit for an answer. A fabric in one kernel answers within a millisecond where nothing else
/// wants the processors. TCP sends its first packet again by itself, after one second and after
/// three.
const PATIENCE: Duration = Duration::from_secs(5);
/// Questions that are asked at once. Those of one rail share its queue of packets that wait for the
/// leaf's MAC.
const WORKERS: usize = 256;
/// The TTL that every packet starts with.
const TTL: i32 = 64;
/// Bytes of a jumbo frame's packet, its IP header included.
const JUMBO: usize = 9000;

/// The kind of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// An ICMP echo whose socket is bound to the interface, as `ping -I net1`.
    Device,
    /// A TCP connection bound to source address and interface.
    TcpDevice,
    /// An ICMP echo bound to the source address, as `ping -I 172.16.0.0`.
    Source,
    /// Bound to the source address, 9000 bytes that may not be fragmented, as `ping -M do -s 8972`.
    Jumbo,
    /// A TCP connection bound to the source address.
    Tcp,
    /// An ICMP echo bound to nothing.
    Unbound,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Device => "device",
            Kind::TcpDevice => "tcp-device",
            Kind::Source => "source",
            Kind::Jumbo => "jumbo",
            Kind::Tcp => "tcp",
            Kind::Unbound => "unbound",
        })
    }
}

/// One question.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Its kind.
    pub kind: Kind,
    /// The interface to bind to.
    pub interface: String,
    /// The address to bind to.
    pub source: IpAddr,
    /// The address that is asked.
    pub destination: IpAddr,
}

/// The routers that the answer crossed, `None` for TCP, whose packets the kernel keeps to itself;
/// or what failed.
pub type Answer = Result<Option<i32>, Failure>;

/// Why a question has no answer, in a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);

/// Answers TCP connections in the namespace in which it was made, each with the address that it
/// comes from. Dropping it ends it, and its hold on the namespace.
pub struct Listener {
    socket: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    pub fn new() -> Listener {
        // The queue has room for all that connect at once; that of std's listener has it for 128.
        let socket = socket(AddressFamily::INET6, SocketType::STREAM, None).unwrap();
        bind(
            &socket,
            &SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), PORT),
        )
        .unwrap();
        rustix::net::listen(&socket, 4096).unwrap();
        let socket = TcpListener::from(socket);
        let listener = socket.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            while let Ok((mut stream, peer)) = listener.accept() {
                // A client that hung up early has noted that itself.
                let _ = stream.write_all(peer.ip().to_canonical().to_string().as_bytes());
            }
        });
        Listener {
            socket,
            thread: Some(thread),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The thread's accept fails then.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Asks everything, and returns the answers in the order of the questions.
pub fn ask(probes: &[Probe]) -> Vec<Answer> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut answers = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(probe) = probes.get(index) else {
                return answers;
            };
            answers.push((index, probe.ask()));
        }
    };
    let mut answers: Vec<(usize, Answer)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS.min(probes.len()))
            .map(|_| scope.spawn(worker))
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap())
            .collect()
    });
    answers.sort_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

impl Probe {
    fn ask(&self) -> Answer {
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
        if answer == self.source.to_string() {
            Ok(())
        } else {
            Err(Failure(format!("seen-as:{answer}")))
        }
    }

    fn echo(&self) -> Result<i32, Failure> {
        let socket = self.socket(SocketType::DGRAM)?;
        let header = if self.source.is_ipv4() { 20 } else { 40 };
        let mut request = vec![
            0;
            if self.kind == Kind::Jumbo {
                JUMBO - header
            } else {
                64
            }
        ];
        if self.source.is_ipv4() {
            setsockopt(&socket, Ipv4RecvTtl, &true)?;
            sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?;
            request[0] = 8;
        } else {
            setsockopt(&socket, Ipv6RecvHopLimit, &true)?;
            sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO)?;
            request[0] = 128;
        }
        // A connected socket takes answers of this address alone.
        connect(&socket, &SocketAddr::new(self.destination, 0))?;
        send(&socket, &request, SendFlags::empty())?;

        let mut answer = vec![0; JUMBO];
        let mut space = nix::cmsg_space!(i32);
        let mut parts = [IoSliceMut::new(&mut answer)];
        let got = recvmsg::<SockaddrStorage>(
            socket.as_raw_fd(),
            &mut parts,
            Some(&mut space),
            MsgFlags::empty(),
        )?;
        if got.bytes != request.len() {
            return Err(Failure(format!("{}-of-{}-bytes", got.bytes, request.len())));
        }
        let hops = got.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::Ipv4Ttl(left) | ControlMessageOwned::Ipv6HopLimit(left) => {
                Some(TTL - left)
            }
            _ => None,
        });
        hops.ok_or_else(|| Failure("no-ttl".to_owned()))
    }

    fn socket(&self, what: SocketType) -> Result<OwnedFd, Failure> {
        let (family, icmp) = match self.source {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
        };
        let socket = socket(family, what, (what == SocketType::DGRAM).then_some(icmp))?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        if matches!(self.kind, Kind::Device | Kind::TcpDevice) {
            setsockopt(&socket, BindToDevice, &self.interface.as_str().into())?;
        }
        if matches!(
            self.kind,
            Kind::Source | Kind::Jumbo | Kind::Tcp | Kind::TcpDevice
        ) {
            bind(&socket, &SocketAddr::new(self.source, 0))?;
        }
        Ok(socket)
    }
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Failure {
        Failure(match error {
            // Of a socket with a deadline; EINPROGRESS is that of connect.
            Errno::EAGAIN | Errno::EINPROGRESS => "no-answer".to_owned(),
            Errno::EHOSTUNREACH => "unreachable".to_owned(),
            Errno::EMSGSIZE => "too-long".to_owned(),
            other => format!("{other:?}"),
        })
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(error: rustix::io::Errno) -> Failure {
        Errno::from_raw(error.raw_os_error()).into()
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Errno::from_raw(error.raw_os_error().unwrap_or(0)).into()
    }
}
