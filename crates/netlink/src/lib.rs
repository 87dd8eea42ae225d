//! Requests to the kernel over a synchronous netlink socket: links and VFs, addresses, routes,
//! rules, neighbours, traffic filters, RDMA devices, ethtool, DCB and devlink.
//!
//! Every request ends with an answer or an error: errors that end a dump, interrupted dumps,
//! acknowledgements that were lost, and a kernel that does not answer are all told. A change that a
//! busy driver refuses is made again for a while. Attributes that this crate does not know are kept
//! where something is saved and set again.
//!
//! A socket stays in the namespace in which it was opened: one opened on the host and one in the pod
//! need no further setns.
//!
//! | module | content |
//! | --- | --- |
//! | [`link`], [`carriers`] | netdevs, changes of their carriers |
//! | [`address`], [`route`], [`rule`], [`neighbour`] | IP |
//! | [`vf`], [`stacked`], [`tunables`], [`devconf`] | settings of VFs, netdevs on others, settings of netdevs, sysctls of an interface |
//! | [`filter`], [`dcb`] | traffic filters, priorities |
//! | [`rdma`], [`devlink`], [`ethtool`] | RDMA devices, devlink, ethtool |
//! | `generic` | generic netlink, for the families of devlink and ethtool |
//! | [`saved`] | addresses and routes of a netdev that are saved and restored |
//!
//! ```
//! use rail_netlink::{Socket, link};
//!
//! fn main() -> anyhow::Result<()> {
//!     let mut socket = Socket::open()?;
//!     let lo = link::by_name(&mut socket, "lo")?.expect("every namespace has it");
//!     assert_eq!((lo.index.get(), lo.kind), (1, None));
//!     Ok(())
//! }
//! ```

pub mod address;
pub mod carriers;
pub mod dcb;
pub mod devconf;
pub mod devlink;
pub mod ethtool;
pub mod filter;
mod generic;
pub mod link;
pub mod neighbour;
pub mod rdma;
pub mod route;
pub mod rule;
pub mod saved;
pub mod stacked;
pub mod tunables;
pub mod vf;

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLA_F_NESTED, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_DUMP,
    NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable, NlaBuffer, NlasIterator,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket as RawSocket, SocketAddr};
use nix::errno::Errno;
use nix::libc::MSG_TRUNC;
use nix::sys::socket::{setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike as _};

/// Size of the receive buffer. It is larger than any message: one attribute, such as the list of a
/// PF's VFs, can have 64 KiB. A dump comes in datagrams as large as the buffer allows, up to 32 KiB
/// (netlink_dump), and fewer datagrams are interrupted less often.
const ROOM: usize = 96 << 10;
/// Time for an answer. The kernel answers within microseconds, or after the process that holds the
/// RTNL lock.
const PATIENCE_SECONDS: i64 = 30;
/// Time for which a change is repeated while the kernel answers EBUSY: a driver does so while it
/// resets (iavf after a change of VLAN, MAC or trust), or while other changes of the PF are under
/// way.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
const BUSY: [Errno; 4] = [Errno::EBUSY, Errno::EAGAIN, Errno::EINTR, Errno::ENOBUFS];
/// Time for which an interrupted dump is repeated; IPv6 DAD alone interrupts dumps.
const DUMP_PATIENCE: Duration = Duration::from_secs(5);
/// Patience with a dump whose caller accepts a part of it: a pod can make and remove links without
/// end.
const GLANCE_PATIENCE: Duration = Duration::from_millis(100);
/// Most objects that a dump keeps: a pod can have a million routes, links or addresses in its own
/// namespace, and a call has 16 MiB of memory.
const MAX_KEPT: usize = 8192;
/// Pause before the second try; it doubles with every further try.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The pause between tries and the deadline of all tries together.
struct Tries {
    deadline: Instant,
    pause: Duration,
}

impl Tries {
    fn within(patience: Duration) -> Tries {
        Tries {
            deadline: Instant::now() + patience,
            pause: SHORTEST_PAUSE,
        }
    }

    /// Waits before the next try; `false` when the deadline has passed.
    fn wait(&mut self) -> bool {
        if Instant::now() + self.pause > self.deadline {
            return false;
        }
        std::thread::sleep(self.pause);
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
        true
    }
}

/// An error that the kernel answered with.
#[derive(Debug)]
pub struct Error {
    /// The error number.
    pub errno: Errno,
    what: String,
    /// The kernel's own message, where it sent one.
    extended: Option<String>,
}

impl Error {
    /// Whether `error` is the kernel's `errno`.
    pub fn is(error: &anyhow::Error, errno: Errno) -> bool {
        error
            .downcast_ref::<Error>()
            .is_some_and(|error| error.errno == errno)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.extended {
            Some(text) => write!(f, "{}: {} ({text})", self.what, self.errno.desc()),
            None => write!(f, "{}: {}", self.what, self.errno.desc()),
        }
    }
}

impl std::error::Error for Error {}

/// A message of which only the type is decoded here. The library's enum of all rtnetlink messages
/// would add the code for each of them, half a megabyte, and one message of a newer kernel would
/// make a whole dump fail.
#[derive(Clone, Debug)]
struct Message {
    /// The type, RTM_*.
    kind: u16,
    payload: Vec<u8>,
}

impl Message {
    /// A request of the type `kind`.
    fn new(kind: u16, body: &impl Emitable) -> Message {
        // The memory is zeroed, because the library does not write the end of some names.
        let mut payload = vec![0; body.buffer_len()];
        body.emit(&mut payload);
        Message { kind, payload }
    }

    /// A request that no crate can build, from a header and attributes.
    fn raw(kind: u16, header: &[u8], attributes: &[DefaultNla]) -> Message {
        let mut payload = header.to_vec();
        payload.resize(header.len() + attributes.buffer_len(), 0);
        attributes.emit(&mut payload[header.len()..]);
        Message { kind, payload }
    }

    /// Parses the payload of a reply; `None`, with a line in the log, if it cannot be parsed.
    fn decode<T>(&self, parse: impl Fn(&[u8]) -> Result<T, DecodeError>) -> Option<T> {
        let parsed = parse(&self.payload);
        parsed
            .map_err(|error| {
                log::warn!(
                    "a netlink message of type {} is ignored, because it cannot be parsed: {error}",
                    self.kind
                )
            })
            .ok()
    }
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.payload.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.payload);
    }
}

impl NetlinkDeserializable for Message {
    type Error = std::convert::Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Message, Self::Error> {
        Ok(Message {
            kind: header.message_type,
            payload: payload.to_vec(),
        })
    }
}

/// A netlink socket in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    raw: RawSocket,
    /// The last datagram.
    buffer: Vec<u8>,
    /// The sequence numbers of the last requests.
    awaited: std::ops::Range<u32>,
}

impl Socket {
    /// Opens an rtnetlink socket in the namespace of this thread.
    pub fn open() -> Result<Socket> {
        Socket::open_protocol(NETLINK_ROUTE)
    }

    fn open_protocol(protocol: isize) -> Result<Socket> {
        let open = || -> io::Result<RawSocket> {
            let mut raw = RawSocket::new(protocol)?;
            raw.bind_auto()?;
            raw.connect(&SocketAddr::new(0, 0))?;
            // Errors with a message, errors that do not echo the request, and filters in dumps.
            raw.set_ext_ack(true)?;
            raw.set_cap_ack(true)?;
            raw.set_netlink_get_strict_chk(true)?;
            setsockopt(&raw, ReceiveTimeout, &TimeVal::seconds(PATIENCE_SECONDS))?;
            Ok(raw)
        };
        Ok(Socket::over(
            open().context("cannot open a netlink socket")?,
        ))
    }

    /// Talks over a socket that is connected: to the kernel, or to a program that answers in its
    /// place. The first request has the sequence number 1.
    pub fn over(raw: RawSocket) -> Socket {
        Socket {
            raw,
            buffer: Vec::with_capacity(ROOM),
            awaited: 1..1,
        }
    }

    /// Makes a change, and returns when the kernel has made it. While the kernel answers EBUSY, the
    /// request is repeated. The error begins with `what`.
    fn change(
        &mut self,
        message: Message,
        flags: u16,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        // The generic part is small, because the compiler makes a copy of it for each caller.
        match self.change_patiently(&message, flags)? {
            None => Ok(()),
            Some(refusal) => Err(refused(what(), refusal)),
        }
    }

    /// Makes a change like [`Socket::change`], but does not repeat it on EBUSY, for requests where
    /// EBUSY is final.
    fn change_once(&mut self, message: &Message, what: impl FnOnce() -> String) -> Result<()> {
        match self.try_change(message, 0)? {
            Answer::Ended(Some(refusal)) => Err(refused(what(), refusal)),
            Answer::Lost => Err(refused(what(), LOST)),
            Answer::Ended(None) | Answer::Replies(_) => Ok(()),
        }
    }

    /// Sends the change; `None` when it was made.
    fn change_patiently(&mut self, message: &Message, flags: u16) -> Result<Option<Refusal>> {
        let mut tries = Tries::within(BUSY_PATIENCE);
        let (mut is_lost, mut busy) = (false, None);
        loop {
            match self.try_change(message, flags)? {
                Answer::Lost if tries.wait() => is_lost = true,
                Answer::Lost => return Ok(Some(LOST)),
                Answer::Ended(Some(refusal)) if BUSY.contains(&refusal.0) && tries.wait() => {
                    busy = Some(refusal)
                }
                // A move is made in parts: here the link has moved, and a later part was refused.
                Answer::Ended(Some((Errno::ENODEV, _))) if busy.is_some() => return Ok(busy),
                // The change was made, but the answer was lost.
                Answer::Ended(Some((Errno::EEXIST, _))) if is_lost => return Ok(None),
                Answer::Ended(refusal) => return Ok(refusal),
                Answer::Replies(_) => return Ok(None),
            }
        }
    }

    fn try_change(&mut self, message: &Message, flags: u16) -> Result<Answer> {
        self.send(
            std::slice::from_ref(message),
            NLM_F_REQUEST | NLM_F_ACK | flags,
        )?;
        match self.receive()? {
            Answer::Replies(_) => {
                anyhow::bail!("the kernel sent data instead of an acknowledgement")
            }
            answer => Ok(answer),
        }
    }

    /// Requests one object; `None` when the kernel answers with one of `absent`, which mean that
    /// there is no such object.
    fn get(&mut self, message: Message, absent: &[Errno], what: &str) -> Result<Option<Message>> {
        let mut tries = Tries::within(BUSY_PATIENCE);
        loop {
            self.send(std::slice::from_ref(&message), NLM_F_REQUEST)?;
            match self.receive()? {
                Answer::Replies(replies) => return Ok(replies.into_iter().next()),
                Answer::Ended(Some((errno, _))) if absent.contains(&errno) => return Ok(None),
                Answer::Ended(Some((errno, _))) if BUSY.contains(&errno) && tries.wait() => (),
                Answer::Lost if tries.wait() => (),
                Answer::Ended(Some(refusal)) => return Err(refused(what.to_owned(), refusal)),
                Answer::Ended(None) => return Ok(None),
                Answer::Lost => return Err(refused(what.to_owned(), LOST)),
            }
        }
    }

    /// Requests one object each with `requests`, which go to the kernel in one datagram. The answer
    /// has `None` for each request that the kernel refuses.
    fn get_each(&mut self, messages: &[Message]) -> Result<Vec<Option<Message>>> {
        let replies = self.answers(messages, NLM_F_REQUEST)?.into_iter();
        let inner = |payload| {
            if let NetlinkPayload::InnerMessage(reply) = payload {
                Some(reply)
            } else {
                None
            }
        };
        Ok(replies.map(|payload| payload.and_then(inner)).collect())
    }

    /// The answer to each of these requests, which go to the kernel in one datagram; `None` for one
    /// that was lost.
    fn answers(
        &mut self,
        messages: &[Message],
        flags: u16,
    ) -> Result<Vec<Option<NetlinkPayload<Message>>>> {
        self.send(messages, flags)?;
        let first = self.awaited.start;
        let mut answers: Vec<_> = messages.iter().map(|_| None).collect();
        let mut missing = messages.len();
        while missing > 0 {
            // The kernel drops a request if it has no memory left for the answer.
            let Some(received) = self.datagram()? else {
                break;
            };
            for (header, payload) in received {
                let number = usize::try_from(header.sequence_number.wrapping_sub(first))?;
                if let Some(answer) = answers.get_mut(number) {
                    *answer = Some(payload);
                }
                missing = missing.saturating_sub(1);
            }
        }
        Ok(answers)
    }

    /// Requests all objects that match, and keeps what `read` makes of each reply. Fails if they
    /// keep changing while they are read.
    fn dump<T: IntoIterator>(
        &mut self,
        message: &Message,
        absent: &[Errno],
        what: &str,
        read: impl FnMut(&Message) -> T,
    ) -> Result<Vec<T::Item>> {
        match self.dump_within(DUMP_PATIENCE, message, absent, what, read)? {
            (all, Seen::All) => Ok(all),
            (_, Seen::Part) => anyhow::bail!("{what}: they kept changing during the read; retry"),
        }
    }

    /// Requests all objects that match. If they keep changing while they are read, it returns those
    /// that it saw, for callers that a pod might otherwise delay.
    fn glance<T: IntoIterator>(
        &mut self,
        message: &Message,
        absent: &[Errno],
        what: &str,
        read: impl FnMut(&Message) -> T,
    ) -> Result<Vec<T::Item>> {
        self.dump_within(GLANCE_PATIENCE, message, absent, what, read)
            .map(|(seen, _)| seen)
    }

    /// Keeps the first [`MAX_KEPT`] objects, and logs how many more there are.
    fn dump_within<T: IntoIterator>(
        &mut self,
        patience: Duration,
        message: &Message,
        absent: &[Errno],
        what: &str,
        mut read: impl FnMut(&Message) -> T,
    ) -> Result<(Vec<T::Item>, Seen)> {
        let mut all = Vec::new();
        let mut surplus = 0_usize;
        let seen = self.read_dump(patience, message, absent, what, &mut |step| {
            let Step::Reply(reply) = step else {
                all.clear();
                surplus = 0;
                return;
            };
            for object in read(reply) {
                if all.len() < MAX_KEPT {
                    all.push(object);
                } else {
                    surplus += 1;
                }
            }
        })?;
        if surplus > 0 {
            log::warn!("{what}: only the first {MAX_KEPT} are read, and {surplus} more are not");
        }
        Ok((all, seen))
    }

    fn read_dump(
        &mut self,
        patience: Duration,
        message: &Message,
        absent: &[Errno],
        what: &str,
        each: &mut dyn FnMut(Step<'_>),
    ) -> Result<Seen> {
        let mut tries = Tries::within(patience);
        loop {
            self.send(std::slice::from_ref(message), NLM_F_REQUEST | NLM_F_DUMP)?;
            each(Step::Start);
            match self.receive_dump(each)? {
                Dump::Ended => return Ok(Seen::All),
                Dump::Interrupted if tries.wait() => (),
                Dump::Interrupted => return Ok(Seen::Part),
                Dump::Failed((errno, _)) if absent.contains(&errno) => return Ok(Seen::All),
                Dump::Failed((errno, _)) if BUSY.contains(&errno) && tries.wait() => (),
                Dump::Failed(refusal) => return Err(refused(what.to_owned(), refusal)),
            }
        }
    }

    /// Sends the requests as one datagram.
    fn send(&mut self, messages: &[Message], flags: u16) -> Result<()> {
        let first = self.awaited.end;
        let mut bytes = Vec::new();
        for (number, message) in (first..).zip(messages) {
            let mut header = NetlinkHeader::default();
            (header.flags, header.sequence_number) = (flags, number);
            let mut message =
                NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message.clone()));
            message.finalize();
            let start = bytes.len();
            bytes.resize(start + message.buffer_len().next_multiple_of(4), 0);
            message.serialize(&mut bytes[start..]);
        }
        self.awaited = first..first.wrapping_add(u32::try_from(messages.len())?);
        let mut tries = Tries::within(BUSY_PATIENCE);
        loop {
            match self.raw.send(&bytes, 0) {
                Ok(_) => return Ok(()),
                Err(error) if is_busy(&error) && tries.wait() => (),
                Err(error) => return Err(error).context("cannot send to netlink"),
            }
        }
    }

    fn receive(&mut self) -> Result<Answer> {
        loop {
            let mut replies = Vec::new();
            let Some(received) = self.datagram()? else {
                return Ok(Answer::Lost);
            };
            for (header, payload) in received {
                match payload {
                    NetlinkPayload::InnerMessage(reply) => replies.push(reply),
                    NetlinkPayload::Error(error) => {
                        let refused = errno_of(error.raw_code()).map(|errno| {
                            // After the error code come the header of the request and then
                            // attributes.
                            let text = (header.flags & NLM_F_ACK_TLVS != 0)
                                .then(|| error.header.get(16..));
                            (errno, text.flatten().and_then(extended_text))
                        });
                        return Ok(Answer::Ended(refused));
                    }
                    _ => (),
                }
            }
            if !replies.is_empty() {
                return Ok(Answer::Replies(replies));
            }
        }
    }

    /// Reads a dump to its end, even if it has to be repeated: its rest would be taken for the
    /// beginning of the next one.
    fn receive_dump(&mut self, each: &mut dyn FnMut(Step<'_>)) -> Result<Dump> {
        let mut interrupted = false;
        loop {
            // Messages without room in the socket are missing from this dump.
            let Some(received) = self.datagram()? else {
                interrupted = true;
                continue;
            };
            for (header, payload) in received {
                interrupted |= header.flags & NLM_F_DUMP_INTR != 0;
                // The error of a dump is in its last message, which libraries often ignore.
                let (code, extended) = match payload {
                    NetlinkPayload::InnerMessage(reply) => {
                        each(Step::Reply(&reply));
                        continue;
                    }
                    NetlinkPayload::Done(done) => (done.code, extended_text(&done.extended_ack)),
                    NetlinkPayload::Error(error) => (error.raw_code(), None),
                    _ => continue,
                };
                return Ok(match errno_of(code) {
                    Some(errno) => Dump::Failed((errno, extended)),
                    None if interrupted => Dump::Interrupted,
                    None => Dump::Ended,
                });
            }
        }
    }

    /// The messages of one datagram that answer the last requests; `None` when the kernel dropped a
    /// message (netlink_overrun).
    fn datagram(&mut self) -> Result<Option<Vec<Received>>> {
        loop {
            self.buffer.clear();
            match self.raw.recv(&mut self.buffer, MSG_TRUNC) {
                Ok(length) if length > self.buffer.len() => {
                    anyhow::bail!("netlink sent {length} bytes, more than the buffer has")
                }
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => {
                    return Ok(None);
                }
                Err(error) => return Err(error).context("netlink did not answer"),
            }
        }
        let mut messages = Vec::new();
        let mut rest = &self.buffer[..];
        while rest.len() >= 16 {
            let message = NetlinkMessage::<Message>::deserialize(rest)
                .context("netlink sent a malformed message")?;
            let length = usize::try_from(message.header.length)?.max(16);
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            if self.awaited.contains(&message.header.sequence_number) {
                messages.push(message.into_parts());
            }
        }
        Ok(Some(messages))
    }
}

type Received = (NetlinkHeader, NetlinkPayload<Message>);

/// The kernel's error number and, where it sent one, its message.
type Refusal = (Errno, Option<String>);

enum Answer {
    /// The change was made, or was refused.
    Ended(Option<Refusal>),
    Replies(Vec<Message>),
    /// The kernel had no memory for the request, or the socket had no room.
    Lost,
}

/// It is not known whether the change was made.
const LOST: Refusal = (Errno::ENOBUFS, None);

fn refused(what: String, (errno, extended): Refusal) -> anyhow::Error {
    anyhow::Error::new(Error {
        errno,
        what,
        extended,
    })
}

/// Progress of a dump.
enum Step<'a> {
    /// A try begins; the replies of the one before are void.
    Start,
    Reply(&'a Message),
}

enum Dump {
    Ended,
    Interrupted,
    Failed(Refusal),
}

/// Whether a dump is complete.
enum Seen {
    All,
    Part,
}

fn is_busy(error: &io::Error) -> bool {
    error
        .raw_os_error()
        .is_some_and(|number| BUSY.contains(&Errno::from_raw(number)))
}

/// The error codes of netlink are negative error numbers.
fn errno_of(code: i32) -> Option<Errno> {
    (code != 0).then(|| Errno::from_raw(code.saturating_neg()))
}

/// NLMSGERR_ATTR_MSG of include/uapi/linux/netlink.h.
fn extended_text(attributes: &[u8]) -> Option<String> {
    const NLMSGERR_ATTR_MSG: u16 = 1;
    let mut all = NlasIterator::new(attributes).filter_map(Result::ok);
    let message = all.find(|attribute| attribute.kind() == NLMSGERR_ATTR_MSG)?;
    Some(
        String::from_utf8_lossy(message.value())
            .trim_end_matches('\0')
            .to_owned(),
    )
}

fn attributes(bytes: &[u8]) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
    NlasIterator::new(bytes).filter_map(Result::ok)
}

/// A number below 2^30 that no tenant guesses: the standard library seeds its hashers for that.
fn unguessable() -> u32 {
    let [first, second, third, fourth, ..] = RandomState::new().hash_one(()).to_ne_bytes();
    u32::from_ne_bytes([first, second, third, fourth]) >> 2
}

fn nest(kind: u16, attributes: &[DefaultNla]) -> DefaultNla {
    let mut value = vec![0; attributes.buffer_len()];
    attributes.emit(&mut value);
    DefaultNla::new(kind | NLA_F_NESTED, value)
}
/// The first error, with the others as its context: what is done although something before it
/// failed.
pub fn all_of(steps: impl IntoIterator<Item = anyhow::Result<()>>) -> anyhow::Result<()> {
    let mut errors = steps.into_iter().filter_map(Result::err);
    let Some(first) = errors.next() else {
        return Ok(());
    };
    let others: Vec<_> = errors.map(|error| format!("{error:#}")).collect();
    if others.is_empty() {
        Err(first)
    } else {
        Err(first.context(format!("{}; first", others.join("; "))))
    }
}
