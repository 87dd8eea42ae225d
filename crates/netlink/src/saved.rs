//! Addresses, routes and permanent neighbours of a link, saved as the kernel reports them. What is
//! set again has all of its attributes, also those that this program does not know.
//!
//! ```
//! use rail_netlink::{Socket, link, saved};
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut socket = Socket::open()?;
//! let lo = link::by_name(&mut socket, "lo")?.expect("every namespace has it");
//! for address in saved::addresses(&mut socket, lo.index)? {
//!     println!("{:?}", address.address());
//! }
//! # Ok(())
//! # }
//! ```

use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;
use std::time::Duration;

use anyhow::Result;
use netlink_packet_core::{
    DefaultNla, NLA_TYPE_MASK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Parseable as _,
};
use netlink_packet_route::address::AddressMessage;
use nix::errno::Errno;
use nix::libc::{
    AF_INET, AF_INET6, IFA_CACHEINFO, IFA_F_DADFAILED, IFA_F_NODAD, IFA_F_TEMPORARY, IFA_FLAGS,
    NDA_DST, NUD_PERMANENT, RT_TABLE_LOCAL, RTA_CACHEINFO, RTA_DST, RTA_GATEWAY, RTA_MULTIPATH,
    RTA_OIF, RTA_PREFSRC, RTA_PRIORITY, RTA_TABLE, RTA_VIA, RTM_GETADDR, RTM_GETNEIGH,
    RTM_GETROUTE, RTM_NEWADDR, RTM_NEWNEIGH, RTM_NEWROUTE, RTN_UNICAST, RTPROT_KERNEL,
};
use serde::{Deserialize, Serialize};

use super::address::{self, Address};
use super::link::{Index, Link};
use super::route::{self, HEADER_LEN as ROUTE_HEADER, Route};
use super::{Error, Message, Socket};

// struct ifaddrmsg: family, prefix length, flags, scope, index.
const ADDRESS_HEADER: usize = 8;
const ADDRESS_INDEX: Range<usize> = 4..8;
// struct rtmsg: family, two prefix lengths, TOS, table, protocol, scope, type, flags.
const ROUTE_PROTOCOL: usize = 5;
const ROUTE_TYPE: usize = 7;
// include/uapi/linux/rtnetlink.h.
const RTPROT_RA: u8 = 9;
const ROUTE_FLAGS: Range<usize> = 8..12;
// struct ndmsg: family, padding, index, state, flags, type.
const NEIGHBOUR_HEADER: usize = 12;
const NEIGHBOUR_INDEX: Range<usize> = 4..8;
const NEIGHBOUR_STATE: Range<usize> = 8..10;

// include/uapi/linux/rtnetlink.h and neighbour.h; libc does not have them.
const RTA_EXPIRES: u16 = 23;
const RTA_NH_ID: u16 = 30;
const RTNH_F_ONLINK: u32 = 4;
const NDA_IFINDEX: u16 = 8;
/// The unit of `rta_expires`: USER_HZ, the same on every architecture with NICs.
const TICKS: i32 = 100;
/// A lifetime without end.
const FOREVER: u32 = u32::MAX;

/// One message. A record has it in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Saved(Vec<u8>);

impl From<Saved> for String {
    fn from(saved: Saved) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble & 15)]);
        saved
            .0
            .iter()
            .flat_map(|byte| [digit(byte >> 4), digit(*byte)])
            .collect()
    }
}

impl TryFrom<String> for Saved {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Saved, &'static str> {
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
        bytes
            .filter(|_| text.len() % 2 == 0)
            .map(Saved)
            .ok_or("is not hexadecimal")
    }
}

/// The remaining lifetime of an address or a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Forever,
    Seconds(u32),
    Nothing,
}

impl Left {
    fn after(seconds: u32, age: Duration) -> Left {
        match seconds.checked_sub(u32::try_from(age.as_secs()).unwrap_or(u32::MAX)) {
            _ if seconds == FOREVER => Left::Forever,
            Some(left @ 1..) => Left::Seconds(left),
            _ => Left::Nothing,
        }
    }

    fn as_u32(self) -> u32 {
        match self {
            Left::Forever => FOREVER,
            Left::Seconds(left) => left,
            Left::Nothing => 0,
        }
    }
}

impl Saved {
    /// Finds the value of an attribute.
    fn place(&self, header: usize, kind: u16) -> Option<Range<usize>> {
        let mut at = header;
        let u16_at = |at: usize| Some(u16::from_ne_bytes(self.0.get(at..at + 2)?.try_into().ok()?));
        loop {
            let (length, found) = (usize::from(u16_at(at)?), u16_at(at + 2)? & NLA_TYPE_MASK);
            if length < 4 || at + length > self.0.len() {
                return None;
            }
            if found == kind {
                return Some(at + 4..at + length);
            }
            at += length.next_multiple_of(4);
        }
    }

    fn u32_at(&self, range: Range<usize>) -> Option<u32> {
        Some(u32::from_ne_bytes(self.0.get(range)?.try_into().ok()?))
    }

    fn number(&self, header: usize, kind: u16) -> Option<u32> {
        self.u32_at(self.place(header, kind)?)
    }

    fn set(&mut self, range: Range<usize>, value: u32) {
        if let Some(place) = self.0.get_mut(range).filter(|place| place.len() == 4) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
    }

    fn set_number(&mut self, header: usize, kind: u16, value: u32) {
        if let Some(place) = self.place(header, kind) {
            self.set(place, value);
        }
    }

    fn family(&self) -> i32 {
        self.0.first().map_or(0, |family| i32::from(*family))
    }

    fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or_default()
    }

    fn address_in(&self, header: usize, kind: u16) -> Option<IpAddr> {
        let bytes = self.0.get(self.place(header, kind)?)?;
        match bytes.len() {
            4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
            _ => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        }
    }

    fn message(self, kind: u16) -> Message {
        Message {
            kind,
            payload: self.0,
        }
    }
}

/// The wanted part of a dump of both families, as it came.
fn dump(
    socket: &mut Socket,
    kind: u16,
    header: usize,
    filter: Option<(u16, Index)>,
    is_wanted: impl Fn(&Saved) -> bool,
) -> Result<Vec<Saved>> {
    let mut all = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let mut bytes = vec![0; header];
        bytes[0] = u8::try_from(family)?;
        let attributes: Vec<_> = filter
            .iter()
            .map(|(kind, index)| DefaultNla::new(*kind, index.get().to_ne_bytes().to_vec()))
            .collect();
        // A kernel without IPv6 answers EOPNOTSUPP or EAFNOSUPPORT.
        let absent = [Errno::ENODEV, Errno::EOPNOTSUPP, Errno::EAFNOSUPPORT];
        let message = Message::raw(kind, &bytes, &attributes);
        let what = "cannot list what the host has on the device";
        let read = |reply: &Message| {
            let saved = Saved(reply.payload.clone());
            (saved.family() == family && is_wanted(&saved)).then_some(saved)
        };
        all.extend(socket.dump(&message, &absent, what, read)?);
    }
    Ok(all)
}

/// Reports an error, unless the object is there already.
fn unless_there(done: Result<()>) -> Result<()> {
    done.or_else(|error| {
        if Error::is(&error, Errno::EEXIST) {
            Ok(())
        } else {
            Err(error)
        }
    })
}

/// The addresses of the link with this index, in the order in which they were set. Temporary ones
/// of IPv6 are left out: only the kernel makes them.
pub fn addresses(socket: &mut Socket, index: Index) -> Result<Vec<Saved>> {
    let is_ours = |one: &Saved| one.u32_at(ADDRESS_INDEX) == Some(index.get());
    let is_temporary = |one: &Saved| one.family() == AF_INET6 && one.flags() & IFA_F_TEMPORARY != 0;
    let is_wanted = |one: &Saved| is_ours(one) && !is_temporary(one);
    dump(socket, RTM_GETADDR, ADDRESS_HEADER, None, is_wanted)
}

/// An address.
impl Saved {
    /// The address; `None` if it cannot be parsed.
    pub fn address(&self) -> Option<Address> {
        address::parse(&AddressMessage::parse(&self.0[..]).ok()?)
    }

    /// Whether it has a lifetime, as DHCP and routers give them.
    pub fn is_dynamic(&self) -> bool {
        self.lifetime(0, Duration::ZERO) != Left::Forever
            && self.lifetime(4, Duration::ZERO) != Left::Forever
    }

    /// Whether its lifetime has ended, `age` after it was saved.
    pub fn is_over(&self, age: Duration) -> bool {
        self.lifetime(4, age) == Left::Nothing
    }

    /// Sets the address on `link`, `age` after it was saved, without duplicate address detection:
    /// the device had it all the time. One that failed the detection gets it again. Returns whether
    /// it was still valid.
    pub fn set_address(&self, socket: &mut Socket, link: &Link, age: Duration) -> Result<bool> {
        if self.is_over(age) {
            return Ok(false);
        }
        let (preferred, valid) = (self.lifetime(0, age), self.lifetime(4, age));
        let mut again = self.clone();
        again.set(ADDRESS_INDEX, link.index.get());
        if let Some(place) = self.place(ADDRESS_HEADER, IFA_CACHEINFO) {
            again.set(place.start..place.start + 4, preferred.as_u32());
            again.set(place.start + 4..place.start + 8, valid.as_u32());
        }
        let what = || {
            let net = self
                .address()
                .map_or_else(String::new, |address| format!(" {}", address.net));
            format!("cannot set the address{net} of {} again", link.name)
        };
        let flags = self.flags();
        if self.family() != AF_INET6 || flags & (IFA_F_NODAD | IFA_F_DADFAILED) != 0 {
            let added = socket.change(again.message(RTM_NEWADDR), NLM_F_CREATE | NLM_F_EXCL, what);
            return unless_there(added).map(|()| true);
        }
        let mut nodad = again.clone();
        nodad.set_number(ADDRESS_HEADER, IFA_FLAGS, flags | IFA_F_NODAD);
        match socket.change(nodad.message(RTM_NEWADDR), NLM_F_CREATE | NLM_F_EXCL, what) {
            // It may have a newer lifetime by now.
            Err(error) if Error::is(&error, Errno::EEXIST) => {
                return self.clear_nodad(socket, link, what).map(|()| true);
            }
            made => made?,
        }
        // The flag would stay, and later detections would be left out as well.
        socket
            .change(again.message(RTM_NEWADDR), NLM_F_REPLACE, what)
            .map(|()| true)
    }

    /// Takes the flag off the address that `link` has: a call that was killed left it there.
    fn clear_nodad(
        &self,
        socket: &mut Socket,
        link: &Link,
        what: impl Fn() -> String,
    ) -> Result<()> {
        let ours = self.address().map(|address| address.net);
        let mut all = addresses(socket, link.index)?.into_iter();
        let is_it = |one: &Saved| one.address().map(|address| address.net) == ours;
        let Some(mut now) = all.find(|one| is_it(one) && one.flags() & IFA_F_NODAD != 0) else {
            return Ok(());
        };
        now.set_number(ADDRESS_HEADER, IFA_FLAGS, now.flags() & !IFA_F_NODAD);
        socket.change(now.message(RTM_NEWADDR), NLM_F_REPLACE, what)
    }

    fn flags(&self) -> u32 {
        self.number(ADDRESS_HEADER, IFA_FLAGS).unwrap_or_default()
    }

    /// struct ifa_cacheinfo: preferred, valid.
    fn lifetime(&self, at: usize, age: Duration) -> Left {
        let place = self
            .place(ADDRESS_HEADER, IFA_CACHEINFO)
            .map(|place| place.start + at..place.start + at + 4);
        Left::after(
            place
                .and_then(|place| self.u32_at(place))
                .unwrap_or(FOREVER),
            age,
        )
    }
}

/// The routes of all tables that lead through the link with this index, without those that the
/// kernel itself keeps in the table `local`.
pub fn routes(socket: &mut Socket, index: Index) -> Result<Vec<Saved>> {
    let filter = Some((RTA_OIF, index));
    let is_wanted = |one: &Saved| one.is_through(index) && !one.is_local_of_kernel();
    dump(socket, RTM_GETROUTE, ROUTE_HEADER, filter, is_wanted)
}

/// A route that does not lead through the link with this index, and whose source address is one of
/// `addresses`, as text: the kernel removes it, or its source, together with the address.
pub fn route_from(
    socket: &mut Socket,
    index: Index,
    addresses: &[IpAddr],
) -> Result<Option<String>> {
    let is_one = |one: &Saved| {
        let source = one.address_in(ROUTE_HEADER, RTA_PREFSRC);
        source.is_some_and(|source| addresses.contains(&source))
            && one.number(ROUTE_HEADER, RTA_OIF) != Some(index.get())
            && !one.is_local_of_kernel()
    };
    let all = dump(socket, RTM_GETROUTE, ROUTE_HEADER, None, is_one)?;
    Ok(all.first().map(Saved::describe))
}

/// A route.
impl Saved {
    /// A route of several next hops, or of a nexthop object, which cannot be set again from one
    /// link's part of it.
    pub fn is_by_nexthops(&self) -> bool {
        [RTA_MULTIPATH, RTA_NH_ID]
            .into_iter()
            .any(|kind| self.place(ROUTE_HEADER, kind).is_some())
    }

    /// The length of the destination's prefix.
    pub fn prefix_len(&self) -> u8 {
        self.byte(1)
    }

    /// Its table.
    pub fn table(&self) -> u32 {
        self.number(ROUTE_HEADER, RTA_TABLE)
            .unwrap_or_else(|| u32::from(self.byte(4)))
    }

    /// Whether the kernel made it of a router advertisement.
    pub fn is_by_router(&self) -> bool {
        self.byte(ROUTE_PROTOCOL) == RTPROT_RA
    }

    /// Its metric; with 0 it takes precedence.
    pub fn metric(&self) -> u32 {
        self.number(ROUTE_HEADER, RTA_PRIORITY).unwrap_or_default()
    }

    /// Whether packets are sent to the destination, and not dropped or taken for the host's own.
    pub fn is_unicast(&self) -> bool {
        self.byte(ROUTE_TYPE) == RTN_UNICAST
    }

    /// The route with the attributes that this program knows; `None` if it cannot be parsed.
    pub fn route(&self) -> Option<Route> {
        route::parse(&self.0).pop().map(|(_, route)| route)
    }

    /// For messages.
    pub fn describe(&self) -> String {
        if let Some(route) = self.route() {
            return route.to_string();
        }
        let dst = self.address_in(ROUTE_HEADER, RTA_DST);
        let dst = dst.map_or_else(
            || "default".to_owned(),
            |dst| format!("{dst}/{}", self.prefix_len()),
        );
        format!("{dst} table {}", self.table())
    }

    /// Whether the next hop is on the link, so that later routes can have their gateways behind it.
    pub fn is_on_link(&self) -> bool {
        [RTA_GATEWAY, RTA_VIA]
            .into_iter()
            .all(|kind| self.place(ROUTE_HEADER, kind).is_none())
    }

    /// Sets the route through `link`, which is up, `age` after it was saved.
    pub fn set_route(&self, socket: &mut Socket, link: &Link, age: Duration) -> Result<()> {
        let mut again = self.clone();
        again.set_number(ROUTE_HEADER, RTA_OIF, link.index.get());
        // The others say what became of the route, and the kernel refuses them.
        again.set(
            ROUTE_FLAGS,
            self.u32_at(ROUTE_FLAGS).unwrap_or_default() & RTNH_F_ONLINK,
        );
        match self.expires(age) {
            Left::Forever => (),
            Left::Nothing => return Ok(()),
            Left::Seconds(left) => {
                again
                    .0
                    .extend([8_u16, RTA_EXPIRES].map(u16::to_ne_bytes).concat());
                again.0.extend(left.to_ne_bytes());
            }
        }
        let added = socket.change(
            again.message(RTM_NEWROUTE),
            NLM_F_CREATE | NLM_F_EXCL,
            || {
                format!(
                    "cannot set the route {} of {} again",
                    self.describe(),
                    link.name
                )
            },
        );
        unless_there(added)
    }

    /// The third member of struct rta_cacheinfo, which IPv4 does not have.
    fn expires(&self, age: Duration) -> Left {
        let info = self.place(ROUTE_HEADER, RTA_CACHEINFO);
        let ticks = info
            .and_then(|info| self.u32_at(info.start + 8..info.start + 12))
            .unwrap_or_default();
        match i32::from_ne_bytes(ticks.to_ne_bytes()) {
            0 => Left::Forever,
            ticks => Left::after(u32::try_from(ticks / TICKS).unwrap_or_default(), age),
        }
    }

    fn is_through(&self, index: Index) -> bool {
        match self.number(ROUTE_HEADER, RTA_OIF) {
            Some(oif) => oif == index.get(),
            // The kernel's filter knows the interfaces of the legs; the caller refuses all of them.
            None => self.is_by_nexthops(),
        }
    }

    fn is_local_of_kernel(&self) -> bool {
        self.table() == u32::from(RT_TABLE_LOCAL) && self.byte(ROUTE_PROTOCOL) == RTPROT_KERNEL
    }
}

/// The permanent neighbours of the link with this index.
pub fn neighbours(socket: &mut Socket, index: Index) -> Result<Vec<Saved>> {
    let is_ours = |one: &Saved| {
        let state = one
            .0
            .get(NEIGHBOUR_STATE)
            .and_then(|state| Some(u16::from_ne_bytes(state.try_into().ok()?)));
        one.u32_at(NEIGHBOUR_INDEX) == Some(index.get()) && state == Some(NUD_PERMANENT)
    };
    let filter = Some((NDA_IFINDEX, index));
    dump(socket, RTM_GETNEIGH, NEIGHBOUR_HEADER, filter, is_ours)
}

/// A neighbour.
impl Saved {
    /// Its address.
    pub fn neighbour(&self) -> Option<IpAddr> {
        self.address_in(NEIGHBOUR_HEADER, NDA_DST)
    }

    /// Sets the neighbour on `link`, which is up.
    pub fn set_neighbour(&self, socket: &mut Socket, link: &Link) -> Result<()> {
        let mut again = self.clone();
        again.set(NEIGHBOUR_INDEX, link.index.get());
        socket.change(
            again.message(RTM_NEWNEIGH),
            NLM_F_CREATE | NLM_F_REPLACE,
            || {
                let address = self
                    .neighbour()
                    .map_or_else(String::new, |address| format!(" {address}"));
                format!("cannot set the neighbour{address} of {}", link.name)
            },
        )
    }
}
