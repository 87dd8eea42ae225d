//! Policy rules of a namespace: `from ADDRESS lookup TABLE`.
//!
//! ```
//! use rail_netlink::{Socket, rule};
//!
//! # fn main() -> anyhow::Result<()> {
//! let (rules, _) = rule::all(&mut Socket::open()?)?;
//! println!("{} rules of the kind that this module makes", rules.len());
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

/// The rules of both families that match nothing but the source, and the tables of all rules.
pub fn all(socket: &mut Socket) -> Result<(Vec<Rule>, Vec<u32>)> {
    let (mut rules, mut tables) = (Vec::new(), Vec::new());
    for message in dump(socket)? {
        let table = table(&message);
        let (mut from, mut priority) = (None, 0);
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Source(addr) => from = Some(*addr),
                RuleAttribute::Priority(number) => priority = *number,
                _ => (),
            }
        }
        tables.push(table);
        rules.extend(from.map(|from| Rule {
            from,
            table,
            priority,
        }));
    }
    Ok((rules, tables))
}

/// The tables of the rules of both families that hold for what they do not match (`ip rule add not
/// ...`).
pub fn inverted(socket: &mut Socket) -> Result<Vec<u32>> {
    let is_inverted = |message: &&RuleMessage| message.header.flags.contains(RuleFlags::Invert);
    Ok(dump(socket)?
        .iter()
        .filter(is_inverted)
        .map(table)
        .collect())
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
    Ok(dump(socket)?
        .iter()
        .map(|message| (table(message), source(message)))
        .collect())
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

fn dump(socket: &mut Socket) -> Result<Vec<RuleMessage>> {
    let mut all = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = RuleMessage::default();
        message.header.family = family;
        let message = Message::new(RTM_GETRULE, &message);
        let absent = [Errno::EOPNOTSUPP, Errno::EAFNOSUPPORT];
        let replies = socket.dump(&message, &absent, "cannot list rules")?;
        all.extend(
            replies
                .iter()
                .filter_map(|reply| reply.decode(RuleMessage::parse)),
        );
    }
    Ok(all)
}
