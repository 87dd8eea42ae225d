//! Links that get or lose their carrier, as the kernel tells of them.
//!
//! ```no_run
//! use rail_netlink::carriers::{News, Watch};
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut watch = Watch::open()?;
//! loop {
//!     match watch.wait()? {
//!         News::Of(links) => println!("changed: {}", links.join(", ")),
//!         News::Lost => println!("some link may have changed"),
//!     }
//! }
//! # }
//! ```

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use netlink_packet_core::NetlinkPayload;
use nix::libc::{RTM_DELLINK, RTM_NEWLINK, RTNLGRP_LINK};
use nix::sys::socket::{setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike as _};

use crate::link::{self, Index, Link};
use crate::{Message, Socket};

/// The family of messages about the links themselves, in the first byte of struct ifinfomsg.
const AF_UNSPEC: u8 = 0;

/// A watch of the carriers in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
    known: HashMap<Index, bool>,
}

/// The kernel's next news of carriers.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// The names of links that have got or lost their carrier, or are gone.
    Of(Vec<String>),
    /// The kernel dropped messages, because they were not read in time.
    Lost,
}

impl Watch {
    /// Listens from now on.
    pub fn open() -> Result<Watch> {
        let mut socket = Socket::open()?;
        let listen = || -> Result<()> {
            socket.raw.add_membership(RTNLGRP_LINK)?;
            setsockopt(&socket.raw, ReceiveTimeout, &TimeVal::seconds(0))?;
            Ok(())
        };
        listen().context("cannot listen to the changes of links")?;
        // A message has the number of the request, of any process, that made the change.
        socket.awaited = 0..u32::MAX;
        let mut watch = Watch {
            socket,
            known: HashMap::new(),
        };
        watch.learn()?;
        Ok(watch)
    }

    /// Waits for news.
    pub fn wait(&mut self) -> Result<News> {
        loop {
            let Some(received) = self.socket.datagram()? else {
                self.learn()?;
                return Ok(News::Lost);
            };
            let mut changed = Vec::new();
            for (_, payload) in received {
                if let NetlinkPayload::InnerMessage(message) = payload {
                    changed.extend(self.change(&message));
                }
            }
            if !changed.is_empty() {
                return Ok(News::Of(changed));
            }
        }
    }

    /// Reads the carriers of all links.
    fn learn(&mut self) -> Result<()> {
        let links = link::all(&mut Socket::open()?)?;
        let carrier_of = |link: Link| (link.index, link.carrier);
        self.known = links.into_iter().map(carrier_of).collect();
        Ok(())
    }

    /// The name of the link, if the message tells of another carrier than the known one.
    fn change(&mut self, message: &Message) -> Option<String> {
        // A bridge tells of its ports in messages of its own family.
        if message.payload.first() != Some(&AF_UNSPEC) {
            return None;
        }
        let link = link::parse(message)?;
        let is_news = match message.kind {
            RTM_NEWLINK => {
                let before = self.known.insert(link.index, link.carrier);
                before.is_some_and(|before| before != link.carrier)
            }
            RTM_DELLINK => self.known.remove(&link.index).is_some(),
            _ => false,
        };
        is_news.then_some(link.name)
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::AddressFamily;
    use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};

    use super::*;

    #[test]
    fn a_link_that_gets_or_loses_its_carrier_or_goes_is_news_and_a_new_one_is_not() {
        let mut watch = Watch::open().unwrap();
        let mut told = |kind, family, flags| {
            let mut message = LinkMessage::default();
            message.header.interface_family = family;
            message.header.index = u32::MAX;
            message.header.flags = flags;
            message.attributes = vec![LinkAttribute::IfName("pf0".to_owned())];
            watch.change(&Message::new(kind, &message)).is_some()
        };
        let unspec = AddressFamily::Unspec;
        let up = LinkFlags::Up | LinkFlags::LowerUp;
        assert!(!told(RTM_NEWLINK, unspec, LinkFlags::Up), "it is new");
        assert!(told(RTM_NEWLINK, unspec, up));
        assert!(!told(RTM_NEWLINK, unspec, up | LinkFlags::Promisc));
        assert!(!told(RTM_DELLINK, AddressFamily::Bridge, up));
        assert!(told(RTM_NEWLINK, unspec, LinkFlags::Up));
        assert!(told(RTM_DELLINK, unspec, LinkFlags::Up));
        assert!(!told(RTM_DELLINK, unspec, LinkFlags::Up));
    }
}
