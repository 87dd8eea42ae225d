//! Data center bridging (include/uapi/linux/dcbnl.h, IEEE 802.1Q): which traffic a port keeps free
//! of loss. It is only read here. No crate has it.
//!
//! ```
//! use rail_netlink::{Socket, dcb};
//!
//! # fn main() -> anyhow::Result<()> {
//! // None: the driver of lo has no DCB.
//! assert!(dcb::read(&mut Socket::open()?, "lo")?.is_none());
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;

use anyhow::Result;
use netlink_packet_core::DefaultNla;
use nix::errno::Errno;
use nix::libc::RTM_GETDCB;

use super::{Message, Socket, attributes};

/// sizeof(struct dcbmsg).
const HEADER_LEN: usize = 4;
const CMD_IEEE_GET: u8 = 21;
const ATTR_IFNAME: u16 = 1;
const ATTR_IEEE: u16 = 13;
const ATTR_IEEE_PFC: u16 = 2;
const ATTR_IEEE_APP_TABLE: u16 = 3;
const ATTR_IEEE_APP: u16 = 1;
/// DCB_ATTR_DCB_APP_TRUST_TABLE, Linux 6.1.
const ATTR_APP_TRUST_TABLE: u16 = 11;
/// IEEE_8021QAZ_APP_SEL_DSCP.
const SELECTOR_DSCP: u8 = 5;

/// The report of a port's driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dcb {
    /// The priorities with priority flow control, as bits; `None` if the driver does not report
    /// them.
    pub pfc: Option<u8>,
    /// The priority of each DSCP that has an entry of its own.
    pub priorities: BTreeMap<u8, u8>,
    /// Whether the port takes a packet's priority from the DSCP. A driver without a list of what it
    /// trusts (mlx5, ice) does so as soon as a DSCP has an entry.
    pub trusts_dscp: bool,
}

/// Reads the settings of a netdev in the socket's namespace; `None` if the kernel or the driver has
/// no DCB.
pub fn read(socket: &mut Socket, netdev: &str) -> Result<Option<Dcb>> {
    let what = format!("cannot read the DCB settings of {netdev}");
    let reply = socket.get(request(netdev), &[Errno::EOPNOTSUPP], &what)?;
    Ok(reply.map(|reply| parse(&reply.payload)))
}

fn request(netdev: &str) -> Message {
    let name = DefaultNla::new(ATTR_IFNAME, [netdev.as_bytes(), b"\0"].concat());
    Message::raw(RTM_GETDCB, &[0, CMD_IEEE_GET, 0, 0], &[name])
}

fn parse(payload: &[u8]) -> Dcb {
    let mut found = Dcb::default();
    let mut trusted = None;
    let all = attributes(payload.get(HEADER_LEN..).unwrap_or_default());
    for ieee in all.filter(|one| one.kind() == ATTR_IEEE) {
        for one in attributes(ieee.value()) {
            match one.kind() {
                // struct ieee_pfc: the second byte is pfc_en.
                ATTR_IEEE_PFC => found.pfc = one.value().get(1).copied(),
                ATTR_IEEE_APP_TABLE => {
                    for app in attributes(one.value()).filter(|app| app.kind() == ATTR_IEEE_APP) {
                        // struct dcb_app: selector, priority, protocol. For a DSCP with several
                        // entries, the kernel takes the highest priority
                        // (dcb_ieee_getapp_dscp_prio_mask_map).
                        let &[SELECTOR_DSCP, priority, low, high] = app.value() else {
                            continue;
                        };
                        if let Ok(dscp) = u8::try_from(u16::from_ne_bytes([low, high])) {
                            let now = found.priorities.entry(dscp).or_default();
                            *now = priority.max(*now);
                        }
                    }
                }
                ATTR_APP_TRUST_TABLE => {
                    trusted =
                        Some(attributes(one.value()).any(|one| one.value() == [SELECTOR_DSCP]));
                }
                _ => (),
            }
        }
    }
    found.trusts_dscp = trusted.unwrap_or(!found.priorities.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that `dcb app show dev lo` of iproute2 6.1 sends, as strace shows them.
    #[test]
    fn a_request_is_these_bytes() {
        let message = request("lo");
        assert_eq!(message.kind, 78);
        assert_eq!(message.payload, [0, 21, 0, 0, 7, 0, 1, 0, b'l', b'o', 0, 0]);
    }

    /// A reply as dcbnl_ieee_fill writes it: IFNAME, then IEEE with `entries`.
    fn reply(entries: &[u8]) -> Vec<u8> {
        let length = u8::try_from(entries.len() + 4).unwrap();
        [
            &[
                0, 21, 0, 0, 7, 0, 1, 0, b'p', b'0', 0, 0, length, 0, 13, 0x80,
            ],
            entries,
        ]
        .concat()
    }

    /// struct ieee_pfc has 136 bytes: pfc_cap 8, pfc_en, mbc, delay, and two tables of eight
    /// counters.
    fn pfc(enabled: u8) -> Vec<u8> {
        [&[140, 0, 2, 0, 8, enabled][..], &[0; 134]].concat()
    }

    #[test]
    fn pfc_and_the_priorities_of_dscps_are_read() {
        // An entry of an Ethertype, and two of DSCP 24.
        let table = [
            28, 0, 3, 0x80, 8, 0, 1, 0, 1, 3, 0x06, 0x89, 8, 0, 1, 0, 5, 3, 24, 0, 8, 0, 1, 0, 5,
            2, 24, 0,
        ];
        let read = parse(&reply(&[&pfc(0b0000_1000)[..], &table].concat()));
        let priorities = BTreeMap::from([(24, 3)]);
        assert_eq!(
            read,
            Dcb {
                pfc: Some(8),
                priorities,
                trusts_dscp: true
            }
        );
        assert_eq!(parse(&reply(&[])), Dcb::default());
        assert_eq!(
            parse(&reply(&pfc(0))),
            Dcb {
                pfc: Some(0),
                ..Dcb::default()
            }
        );
        assert_eq!(parse(&[0]), Dcb::default());
    }

    #[test]
    fn a_list_of_what_is_trusted_counts_more_than_the_entries() {
        let table = [12, 0, 3, 0x80, 8, 0, 1, 0, 5, 3, 24, 0];
        // PCP alone (DCB_APP_SEL_PCP, 255), then PCP and DSCP.
        let pcp = [12, 0, 11, 0x80, 5, 0, 2, 0, 255, 0, 0, 0];
        let both = [
            20, 0, 11, 0x80, 5, 0, 2, 0, 255, 0, 0, 0, 5, 0, 1, 0, 5, 0, 0, 0,
        ];
        assert!(!parse(&reply(&[&table[..], &pcp].concat())).trusts_dscp);
        assert!(parse(&reply(&[&table[..], &both].concat())).trusts_dscp);
    }

    #[test]
    fn a_netdev_without_dcb_has_none() {
        assert_eq!(read(&mut Socket::open().unwrap(), "lo").unwrap(), None);
    }
}
