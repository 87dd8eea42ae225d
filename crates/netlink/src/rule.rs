//! Policy rules of a namespace: `from ADDRESS lookup TABLE`.
//!
//! ```
//! use rail_netlink::{Socket, rule};
//!
//! # fn main() -> anyhow::Result<()> {
//! rule::each(&mut Socket::open()?, |table, priority| {
//!     println!("{priority}: lookup {table}");
//! })?;
//! # Ok(())
//! # }
//! ```

use std::net::IpAddr;

use anyhow::Result;
use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, Parseable as _};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::RouteProtocol;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use nix::errno::Errno;
use nix::libc::{RTM_DELRULE, RTM_GETRULE, RTM_NEWRULE};
use serde::{Deserialize, Serialize};

use super::{Error, Message, Socket};

/// A rule by which packets from one address use one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The source address.
    pub from: IpAddr,
    /// The routing table.
    pub table: u32,
    /// Priority: the kernel tries rules in ascending order.
    pub priority: u32,
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "from {} lookup {}", self.from, self.table)
    }
}

/// Adds `rule`, unless an equal rule exists: that one can only be stale, of an attachment whose
/// record was lost.
pub fn add(socket: &mut Socket, rule: &Rule) -> Result<()> {
    let message = Message::new(RTM_NEWRULE, &message(rule));
    let added = socket.change(message, NLM_F_CREATE | NLM_F_EXCL, || {
        format!("cannot add the rule {rule}")
    });
    added.or_else(|error| {
        if Error::is(&error, Errno::EEXIST) {
            Ok(())
        } else {
            Err(error)
        }
    })
}

/// Removes `rule`. It is no error if the rule does not exist.
pub fn remove(socket: &mut Socket, rule: &Rule) -> Result<()> {
    let message = Message::new(RTM_DELRULE, &message(rule));
    let removed = socket.change(message, 0, || format!("cannot remove the rule {rule}"));
    // EAFNOSUPPORT: without IPv6 there is no rule for it either.
    removed.or_else(|error| {
        let absent = Error::is(&error, Errno::ENOENT) || Error::is(&error, Errno::EAFNOSUPPORT);
        if absent { Ok(()) } else { Err(error) }
    })
}

/// The request for `rule`.
pub fn message(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    (message.header.family, message.header.src_len) = match rule.from {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Source(rule.from),
        RuleAttribute::Table(rule.table),
        RuleAttribute::Priority(rule.priority),
        RuleAttribute::Protocol(RouteProtocol::Static),
    ];
    message
}

/// Shows table and priority of each rule of both families to `visitor`: more than once if the
/// kernel interrupts the list.
pub fn each(socket: &mut Socket, mut visitor: impl FnMut(u32, u32)) -> Result<()> {
    let kept = dump(socket, |message| -> Option<()> {
        visitor(table(message), priority(message));
        None
    });
    kept.map(drop)
}

/// The rules of `wanted` that the namespace has, however many others it has.
pub fn present(socket: &mut Socket, wanted: &[Rule]) -> Result<Vec<Rule>> {
    dump(socket, |message| {
        parse(message).filter(|rule| wanted.contains(rule))
    })
}

/// `None` where the rule does not match a source.
fn parse(message: &RuleMessage) -> Option<Rule> {
    let mut from = message.attributes.iter().filter_map(|attribute| {
        if let RuleAttribute::Source(address) = attribute {
            Some(*address)
        } else {
            None
        }
    });
    Some(Rule {
        from: from.next()?,
        table: table(message),
        priority: priority(message),
    })
}

/// The tables of the rules of both families that hold for what they do not match (`ip rule add not
/// ...`).
pub fn inverted(socket: &mut Socket) -> Result<Vec<u32>> {
    dump(socket, |message| {
        let is_inverted = message.header.flags.contains(RuleFlags::Invert);
        is_inverted.then(|| table(message))
    })
}

/// The tables of all rules of both families, each with the source prefix to which its rule is
/// limited; `None` where a rule holds for other packets as well.
pub fn sources(socket: &mut Socket) -> Result<Vec<(u32, Option<IpNet>)>> {
    let source = |message: &RuleMessage| {
        let is_from = !message.header.flags.contains(RuleFlags::Invert);
        let from = message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                RuleAttribute::Source(from) => Some(*from),
                _ => None,
            });
        from.filter(|_| is_from)
            .and_then(|from| IpNet::new(from, message.header.src_len).ok())
    };
    dump(socket, |message| Some((table(message), source(message))))
}

fn table(message: &RuleMessage) -> u32 {
    let number = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::Table(number) => Some(*number),
            _ => None,
        });
    number.unwrap_or_else(|| u32::from(message.header.table))
}

fn priority(message: &RuleMessage) -> u32 {
    let number = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::Priority(number) => Some(*number),
            _ => None,
        });
    number.unwrap_or_default()
}

fn dump<T>(socket: &mut Socket, mut read: impl FnMut(&RuleMessage) -> Option<T>) -> Result<Vec<T>> {
    let mut all = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = RuleMessage::default();
        message.header.family = family;
        let message = Message::new(RTM_GETRULE, &message);
        let absent = [Errno::EOPNOTSUPP, Errno::EAFNOSUPPORT];
        let of_family = socket.dump(&message, &absent, "cannot list rules", |reply| {
            reply
                .decode(RuleMessage::parse)
                .as_ref()
                .and_then(&mut read)
        })?;
        all.extend(of_family);
    }
    Ok(all)
}
