//! Filters of tc that see every frame of a link: the data path of some CNI plugins, such as Cilium.
//!
//! ```
//! use rail_netlink::{Socket, filter, link};
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut socket = Socket::open()?;
//! let lo = link::by_name(&mut socket, "lo")?.expect("every namespace has it");
//! assert_eq!(filter::on(&mut socket, lo.index)?, None);
//! # Ok(())
//! # }
//! ```

use anyhow::Result;
use netlink_packet_core::parse_string;
use nix::errno::Errno;
use nix::libc::RTM_GETTFILTER;

use super::attributes;
use super::link::Index;
use super::{Message, Socket};

// include/uapi/linux/pkt_sched.h and rtnetlink.h: TC_H_CLSACT with TC_H_MIN_INGRESS and
// TC_H_MIN_EGRESS. The older qdisc `ingress` has the first handle as well.
const HOOKS: [(u32, &str); 2] = [(0xffff_fff2, "ingress"), (0xffff_fff3, "egress")];
const TCA_KIND: u16 = 1;
/// sizeof(struct tcmsg).
const HEADER_LEN: usize = 20;

/// A tc filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Kind of the filter, such as `bpf` or `flower`.
    pub kind: String,
    /// `ingress` or `egress`.
    pub hook: &'static str,
}

/// Returns a filter on the link with this index, if there is any.
pub fn on(socket: &mut Socket, index: Index) -> Result<Option<Filter>> {
    for (parent, hook) in HOOKS {
        // A kernel without filters answers EOPNOTSUPP.
        let absent = [Errno::ENODEV, Errno::EOPNOTSUPP, Errno::EINVAL];
        let read = |reply: &Message| {
            let all = reply.payload.get(HEADER_LEN..).unwrap_or_default();
            let kind = attributes(all).find(|attribute| attribute.kind() == TCA_KIND);
            let kind = kind.and_then(|kind| parse_string(kind.value()).ok());
            Some(kind.unwrap_or_default())
        };
        let message = message(index, parent);
        let kinds = socket.dump(&message, &absent, "cannot list filters", read)?;
        if let Some(kind) = kinds.into_iter().next() {
            return Ok(Some(Filter { kind, hook }));
        }
    }
    Ok(None)
}

/// struct tcmsg: family and padding, ifindex, handle, parent, info.
fn message(index: Index, parent: u32) -> Message {
    let payload = [0, index.get(), 0, parent, 0]
        .map(u32::to_ne_bytes)
        .concat();
    Message {
        kind: RTM_GETTFILTER,
        payload,
    }
}
