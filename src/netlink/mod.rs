//! The kernel's word on links, addresses, routes and rules: requests over a
//! synchronous socket that always ends in an answer or an error.
//!
//! A socket stays in the namespace that it was opened in, so the caller opens
//! one on the host and one in the pod and needs no further setns.

pub mod address;
pub mod link;
pub mod neighbour;
pub mod rdma;
pub mod route;
pub mod rule;
pub mod vf;

use std::fmt;
use std::io;

use anyhow::{Context as _, Result};
use netlink_packet_core::{
    DecodeError, Emitable, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket as RawSocket, SocketAddr};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike as _};

/// The kernel answers within microseconds, or after whoever holds the RTNL lock.
const PATIENCE_SECONDS: i64 = 30;
/// A dump is taken again when something changed meanwhile; IPv6 DAD alone does that.
const MAX_DUMPS: u32 = 5;

/// What the kernel said no with.
#[derive(Debug)]
pub struct Error {
    /// The reason.
    pub errno: Errno,
    what: String,
    /// The kernel's own sentence, where it has one.
    extended: Option<String>,
}

impl Error {
    /// Is `error` the kernel's `errno`?
    pub fn is(error: &anyhow::Error, errno: Errno) -> bool {
        error.downcast_ref::<Error>().is_some_and(|error| error.errno == errno)
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

/// A message of which only the kind is known here. The library's enum of all rtnetlink messages would bring
/// the code of every one of them, half a megabyte, and fail a whole dump for one message from a newer kernel.
#[derive(Clone, Debug)]
struct Message {
    /// RTM_*.
    kind: u16,
    payload: Vec<u8>,
}

impl Message {
    /// A request of `kind`.
    fn new(kind: u16, body: &impl Emitable) -> Message {
        // Zeroed memory: the library leaves the end of some names unwritten.
        let mut payload = vec![0; body.buffer_len()];
        body.emit(&mut payload);
        Message { kind, payload }
    }

    /// Reads the payload of a reply; one that is not understood is passed over, with a line in the log.
    fn decode<T>(&self, parse: impl Fn(&[u8]) -> Result<T, DecodeError>) -> Option<T> {
        let parsed = parse(&self.payload);
        parsed.map_err(|error| log::warn!("netlink message of type {} passed over: {error}", self.kind)).ok()
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
        Ok(Message { kind: header.message_type, payload: payload.to_vec() })
    }
}

/// A netlink socket, of the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    raw: RawSocket,
    sequence: u32,
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
            // Sentences instead of bare numbers; an error that does not echo the request; filters in dumps.
            raw.set_ext_ack(true)?;
            raw.set_cap_ack(true)?;
            raw.set_netlink_get_strict_chk(true)?;
            setsockopt(&raw, ReceiveTimeout, &TimeVal::seconds(PATIENCE_SECONDS))?;
            Ok(raw)
        };
        Ok(Socket { raw: open().context("cannot open a netlink socket")?, sequence: 0 })
    }

    /// A change: returns when the kernel has made it. `what` begins the error.
    fn change(&mut self, message: Message, flags: u16, what: impl FnOnce() -> String) -> Result<()> {
        self.send(message, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        match self.receive()? {
            Answer::Ended(None) => Ok(()),
            Answer::Ended(Some((errno, extended))) => {
                Err(anyhow::Error::new(Error { errno, what: what(), extended }))
            }
            Answer::Replies(_) => anyhow::bail!("{}: the kernel sent data instead of an answer", what()),
        }
    }

    /// One object; `None` when the kernel knows none such (`absent` are its numbers for that).
    fn get(&mut self, message: Message, absent: &[Errno], what: &str) -> Result<Option<Message>> {
        self.send(message, NLM_F_REQUEST)?;
        match self.receive()? {
            Answer::Replies(replies) => Ok(replies.into_iter().next()),
            Answer::Ended(Some((errno, _))) if absent.contains(&errno) => Ok(None),
            Answer::Ended(Some((errno, extended))) => {
                Err(anyhow::Error::new(Error { errno, what: what.to_owned(), extended }))
            }
            Answer::Ended(None) => Ok(None),
        }
    }

    /// All objects that match.
    fn dump(&mut self, message: &Message, absent: &[Errno], what: &str) -> Result<Vec<Message>> {
        for _ in 0..MAX_DUMPS {
            self.send(message.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
            let mut all = Vec::new();
            loop {
                match self.receive_dump(&mut all)? {
                    Dump::Continues => (),
                    Dump::Ended => return Ok(all),
                    Dump::Interrupted => break,
                    Dump::Failed(errno, _) if absent.contains(&errno) => return Ok(all),
                    Dump::Failed(errno, extended) => {
                        return Err(anyhow::Error::new(Error { errno, what: what.to_owned(), extended }));
                    }
                }
            }
        }
        anyhow::bail!("{what}: changed {MAX_DUMPS} times while it was read")
    }

    fn send(&mut self, message: Message, flags: u16) -> Result<()> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        (header.flags, header.sequence_number) = (flags, self.sequence);
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        loop {
            match self.raw.send(&bytes, 0) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error).context("cannot send to netlink"),
            }
        }
    }

    fn receive(&mut self) -> Result<Answer> {
        loop {
            let mut replies = Vec::new();
            for (header, payload) in self.datagram()? {
                match payload {
                    NetlinkPayload::InnerMessage(reply) => replies.push(reply),
                    NetlinkPayload::Error(error) => {
                        let refused = errno_of(error.raw_code()).map(|errno| {
                            // After the code: the header of the request, then attributes.
                            let text = (header.flags & NLM_F_ACK_TLVS != 0).then(|| error.header.get(16..));
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

    fn receive_dump(&mut self, all: &mut Vec<Message>) -> Result<Dump> {
        let mut interrupted = false;
        for (header, payload) in self.datagram()? {
            interrupted |= header.flags & NLM_F_DUMP_INTR != 0;
            match payload {
                NetlinkPayload::InnerMessage(reply) => all.push(reply),
                NetlinkPayload::Done(_) if interrupted => return Ok(Dump::Interrupted),
                // The error of a dump is in its last message, where libraries forget to look.
                NetlinkPayload::Done(done) => {
                    let failed = errno_of(done.code);
                    return Ok(failed.map_or(Dump::Ended, |errno| {
                        Dump::Failed(errno, extended_text(&done.extended_ack))
                    }));
                }
                NetlinkPayload::Error(error) => {
                    return Ok(
                        errno_of(error.raw_code()).map_or(Dump::Ended, |errno| Dump::Failed(errno, None))
                    );
                }
                _ => (),
            }
        }
        if interrupted {
            // The rest of this dump must be read, or it would be taken for the next one's.
            while !matches!(
                self.receive_dump(&mut Vec::new())?,
                Dump::Ended | Dump::Interrupted | Dump::Failed(..)
            ) {}
            return Ok(Dump::Interrupted);
        }
        Ok(Dump::Continues)
    }

    /// The messages of one datagram that answer the last request.
    fn datagram(&mut self) -> Result<Vec<(NetlinkHeader, NetlinkPayload<Message>)>> {
        let bytes = loop {
            match self.raw.recv_from_full() {
                Ok((bytes, _)) => break bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error).context("no answer from netlink"),
            }
        };
        let mut messages = Vec::new();
        let mut rest = &bytes[..];
        while rest.len() >= 16 {
            let message = NetlinkMessage::<Message>::deserialize(rest).context("netlink sent no message")?;
            let length = usize::try_from(message.header.length)?.max(16);
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            if message.header.sequence_number == self.sequence {
                messages.push(message.into_parts());
            }
        }
        Ok(messages)
    }
}

enum Answer {
    /// Made, or refused.
    Ended(Option<(Errno, Option<String>)>),
    Replies(Vec<Message>),
}

enum Dump {
    Continues,
    Ended,
    Interrupted,
    Failed(Errno, Option<String>),
}

/// Netlink's codes are negative error numbers.
fn errno_of(code: i32) -> Option<Errno> {
    (code != 0).then(|| Errno::from_raw(code.saturating_neg()))
}

/// NLMSGERR_ATTR_MSG, include/uapi/linux/netlink.h.
fn extended_text(attributes: &[u8]) -> Option<String> {
    const NLMSGERR_ATTR_MSG: u16 = 1;
    let mut all = NlasIterator::new(attributes).filter_map(Result::ok);
    let message = all.find(|attribute| attribute.kind() == NLMSGERR_ATTR_MSG)?;
    Some(String::from_utf8_lossy(message.value()).trim_end_matches('\0').to_owned())
}
