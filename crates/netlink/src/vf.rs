//! The settings of a PF's VFs, as the PF's driver keeps them: the `vf N` lines of `ip link show`.
//!
//! ```
//! use rail_netlink::{Socket, link, vf};
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut socket = Socket::open()?;
//! let lo = link::by_name(&mut socket, "lo")?.expect("every namespace has it");
//! assert_eq!(vf::state(&mut socket, lo.index, 0)?, vf::Report::NoSuchVf);
//! # Ok(())
//! # }
//! ```

use anyhow::Result;
use netlink_packet_core::NlaBuffer;
use netlink_packet_route::link::{
    LinkAttribute, LinkExtentMask, LinkMessage, LinkVfInfo, VfInfo, VfInfoGuid, VfInfoLinkState,
    VfInfoMac, VfInfoRate, VfInfoSpoofCheck, VfInfoTrust, VfLinkState, VfVlan, VfVlanInfo,
    VlanProtocol,
};
use nix::errno::Errno;
use nix::libc::{IFLA_VFINFO_LIST, RTM_GETLINK, RTM_SETLINK};
use rtnetlink::LinkUnspec;
use serde::{Deserialize, Serialize};

use super::link::{HEADER_LEN, Index, format_mac, parse_mac};
use super::{Error, Message, Socket, attributes};

// include/uapi/linux/if_link.h; libc does not have them.
const IFLA_VF_INFO: u16 = 1;
const IFLA_VF_MAC: u16 = 1;
const IFLA_VF_VLAN: u16 = 2;
const IFLA_VF_SPOOFCHK: u16 = 4;
const IFLA_VF_LINK_STATE: u16 = 5;
const IFLA_VF_RATE: u16 = 6;
const IFLA_VF_TRUST: u16 = 9;
const IFLA_VF_IB_NODE_GUID: u16 = 10;
const IFLA_VF_IB_PORT_GUID: u16 = 11;
const IFLA_VF_VLAN_LIST: u16 = 12;
const IFLA_VF_VLAN_INFO: u16 = 1;
/// ETH_P_8021Q and ETH_P_8021AD.
const DOT1Q: u16 = 0x8100;
const DOT1AD: u16 = 0x88a8;

/// Settings of a VF. `None` means that a value was not requested, or that the driver does not
/// report it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VfState {
    /// Administrative MAC; all zero if the VF chooses its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// VLAN tag of all the VF's traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vlan>,
    /// Minimum and maximum transmit rate in Mbit/s; 0 means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<(u32, u32)>,
    /// Whether the NIC drops frames with another source MAC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spoofchk: Option<bool>,
    /// Whether the VF may be promiscuous and change its MAC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<bool>,
    /// The link state that the VF sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_state: Option<LinkState>,
    /// InfiniBand GUID of the VF's node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_guid: Option<u64>,
    /// InfiniBand GUID of the VF's port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_guid: Option<u64>,
}

/// A VLAN tag that the PF adds to a VF's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vlan {
    /// VLAN id, 1 to 4094; 0 means no tag.
    pub id: u16,
    /// Priority, 0 to 7.
    pub qos: u8,
    /// Whether the EtherType of the tag is that of 802.1ad, and not of 802.1Q.
    pub is_dot1ad: bool,
}

/// The link state that a VF sees, IFLA_VF_LINK_STATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// Follows the PF's.
    Auto,
    /// Always up.
    Enable,
    /// Always down.
    Disable,
}

impl VfState {
    /// The settings that are set, each alone under its key, with the names and in the order of
    /// sriov-cni.
    pub fn settings(&self) -> Vec<(&'static str, VfState)> {
        let none = VfState::default;
        let each = [
            (
                "vlan",
                VfState {
                    vlan: self.vlan,
                    ..none()
                },
            ),
            (
                "mac",
                VfState {
                    mac: self.mac.clone(),
                    ..none()
                },
            ),
            (
                "min_tx_rate/max_tx_rate",
                VfState {
                    rate: self.rate,
                    ..none()
                },
            ),
            (
                "spoofchk",
                VfState {
                    spoofchk: self.spoofchk,
                    ..none()
                },
            ),
            (
                "trust",
                VfState {
                    trust: self.trust,
                    ..none()
                },
            ),
            (
                "link_state",
                VfState {
                    link_state: self.link_state,
                    ..none()
                },
            ),
            (
                "infinibandGUID of the node",
                VfState {
                    node_guid: self.node_guid,
                    ..none()
                },
            ),
            (
                "infinibandGUID of the port",
                VfState {
                    port_guid: self.port_guid,
                    ..none()
                },
            ),
        ];
        each.into_iter().filter(|(_, one)| *one != none()).collect()
    }

    /// The settings of `self`, and those of `other` where `self` has none.
    #[must_use]
    pub fn over(&self, other: &VfState) -> VfState {
        VfState {
            mac: self.mac.clone().or_else(|| other.mac.clone()),
            vlan: self.vlan.or(other.vlan),
            rate: self.rate.or(other.rate),
            spoofchk: self.spoofchk.or(other.spoofchk),
            trust: self.trust.or(other.trust),
            link_state: self.link_state.or(other.link_state),
            node_guid: self.node_guid.or(other.node_guid),
            port_guid: self.port_guid.or(other.port_guid),
        }
    }

    /// The settings as arguments of `ip link set PF vf N`.
    pub fn as_arguments(&self) -> String {
        let on = |on: bool| if on { "on" } else { "off" };
        let vlan = self.vlan.map(|vlan| {
            let proto = if vlan.is_dot1ad { " proto 802.1ad" } else { "" };
            format!("vlan {} qos {}{proto}", vlan.id, vlan.qos)
        });
        let parts = [
            self.mac.as_ref().map(|mac| format!("mac {mac}")),
            vlan,
            self.rate
                .map(|(min, max)| format!("min_tx_rate {min} max_tx_rate {max}")),
            self.spoofchk.map(|value| format!("spoofchk {}", on(value))),
            self.trust.map(|value| format!("trust {}", on(value))),
            self.node_guid
                .map(|guid| format!("node_guid {}", format_mac(&guid.to_be_bytes()))),
            self.port_guid
                .map(|guid| format!("port_guid {}", format_mac(&guid.to_be_bytes()))),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// The settings of `self` that are also set in `mask`.
    #[must_use]
    pub fn masked_by(&self, mask: &VfState) -> VfState {
        VfState {
            mac: self.mac.clone().filter(|_| mask.mac.is_some()),
            vlan: self.vlan.filter(|_| mask.vlan.is_some()),
            rate: self.rate.filter(|_| mask.rate.is_some()),
            spoofchk: self.spoofchk.filter(|_| mask.spoofchk.is_some()),
            trust: self.trust.filter(|_| mask.trust.is_some()),
            link_state: self.link_state.filter(|_| mask.link_state.is_some()),
            node_guid: self.node_guid.filter(|_| mask.node_guid.is_some()),
            port_guid: self.port_guid.filter(|_| mask.port_guid.is_some()),
        }
    }
}

/// The settings as `ip link` shows them, for messages.
impl std::fmt::Display for VfState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let on = |on: bool| if on { "on" } else { "off" };
        let vlan = self.vlan.map(|vlan| {
            let proto = if vlan.is_dot1ad { " 802.1ad" } else { "" };
            format!("{} qos {}{proto}", vlan.id, vlan.qos)
        });
        let link_state = self.link_state.map(|state| match state {
            LinkState::Auto => "auto",
            LinkState::Enable => "enable",
            LinkState::Disable => "disable",
        });
        let parts = [
            self.mac.clone(),
            vlan,
            self.rate.map(|(min, max)| format!("{min}/{max} Mbit/s")),
            self.spoofchk.map(|value| on(value).to_owned()),
            self.trust.map(|value| on(value).to_owned()),
            link_state.map(str::to_owned),
            self.node_guid.map(|guid| format_mac(&guid.to_be_bytes())),
            self.port_guid.map(|guid| format_mac(&guid.to_be_bytes())),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        f.write_str(if parts.is_empty() { "unknown" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

/// The report of a PF about one of its VFs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The VF's settings.
    Known(VfState),
    /// The PF has no such VF, or a driver that reports none.
    NoSuchVf,
    /// The PF's driver has nothing to say of this VF: there is none, or it is being reset (ice,
    /// i40e), or the PF is down (bnxt). The kernel leaves a VF out of the list whose driver answers
    /// with an error (rtnl_fill_vfinfo).
    Silent,
    /// The list of all VFs does not fit into a message (sriov-network-operator#1021, InfiniBand
    /// drivers): settings can be made, but they cannot be read.
    TooLong,
}

impl Report {
    /// The settings, if they are known.
    pub fn known(self) -> Option<VfState> {
        match self {
            Report::Known(state) => Some(state),
            Report::NoSuchVf | Report::Silent | Report::TooLong => None,
        }
    }
}

/// Reads what the PF with this index reports about its VF `number`. The answer has all VFs of the
/// PF, some 300 bytes each, and is read completely, whatever its size.
pub fn state(socket: &mut Socket, pf: Index, number: u32) -> Result<Report> {
    let mut message = LinkMessage::default();
    message.header.index = pf.get();
    let mask = vec![LinkExtentMask::Vf, LinkExtentMask::SkipStats];
    message.attributes.push(LinkAttribute::ExtMask(mask));
    let message = Message::new(RTM_GETLINK, &message);
    let reply = match socket.get(message, &[Errno::ENODEV], "cannot read the VFs of the PF") {
        // rtnl_fill_ifinfo: the list is one attribute, which has at most 64 KiB.
        Err(error) if Error::is(&error, Errno::EMSGSIZE) => return Ok(Report::TooLong),
        reply => reply?,
    };
    let payload = reply
        .as_ref()
        .and_then(|reply| reply.payload.get(HEADER_LEN..))
        .unwrap_or_default();
    let list = attributes(payload).find(|attribute| kind(attribute) == IFLA_VFINFO_LIST);
    let Some(list) = list else {
        return Ok(Report::NoSuchVf);
    };
    let state = infos(list.value())
        .into_iter()
        .find(|(vf, _)| *vf == number);
    Ok(state.map_or(Report::Silent, |(_, state)| Report::Known(state)))
}

fn infos(list: &[u8]) -> Vec<(u32, VfState)> {
    attributes(list)
        .filter(|info| kind(info) == IFLA_VF_INFO)
        .filter_map(|info| parse(info.value()))
        .collect()
}

/// Parses the structures of if_link.h. The library takes "not supported", which is all bits set,
/// for `off`; to restore that would change the VF.
fn parse(info: &[u8]) -> Option<(u32, VfState)> {
    let word = |value: &[u8], at: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(
            value.get(4 * at..4 * at + 4)?.try_into().ok()?,
        ))
    };
    let switch = |value: &[u8]| match word(value, 1)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    };
    let mut number = None;
    let mut state = VfState::default();
    for attribute in attributes(info) {
        let value = attribute.value();
        match kind(&attribute) {
            // struct ifla_vf_mac: the number of the VF, and 32 bytes, of which Ethernet uses 6.
            IFLA_VF_MAC => {
                number = word(value, 0);
                state.mac = value.get(4..10).map(format_mac);
            }
            IFLA_VF_VLAN => {
                state.vlan = state.vlan.or(vlan(word(value, 1)?, word(value, 2)?, DOT1Q))
            }
            IFLA_VF_VLAN_LIST => {
                for one in attributes(value).filter(|one| kind(one) == IFLA_VF_VLAN_INFO) {
                    let proto = one
                        .value()
                        .get(12..14)
                        .and_then(|bytes| bytes.try_into().ok());
                    let proto = proto.map_or(DOT1Q, u16::from_be_bytes);
                    state.vlan = vlan(word(one.value(), 1)?, word(one.value(), 2)?, proto);
                }
            }
            IFLA_VF_RATE => state.rate = word(value, 1).zip(word(value, 2)),
            IFLA_VF_SPOOFCHK => state.spoofchk = switch(value),
            IFLA_VF_TRUST => state.trust = switch(value),
            // struct ifla_vf_guid: the GUID is aligned to 8 bytes.
            IFLA_VF_IB_NODE_GUID => state.node_guid = guid(value),
            IFLA_VF_IB_PORT_GUID => state.port_guid = guid(value),
            IFLA_VF_LINK_STATE => {
                state.link_state = match word(value, 1)? {
                    0 => Some(LinkState::Auto),
                    1 => Some(LinkState::Enable),
                    2 => Some(LinkState::Disable),
                    _ => None,
                }
            }
            _ => (),
        }
    }
    Some((number?, state))
}

fn guid(value: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(value.get(8..16)?.try_into().ok()?))
}

fn vlan(id: u32, qos: u32, proto: u16) -> Option<Vlan> {
    let is_dot1ad = proto == DOT1AD;
    Some(Vlan {
        id: id.try_into().ok()?,
        qos: qos.try_into().ok()?,
        is_dot1ad,
    })
}

fn kind(attribute: &NlaBuffer<&[u8]>) -> u16 {
    attribute.kind()
}

/// Makes the settings `wanted` on VF `number` of the PF, one attribute per request, so that an
/// error names the setting.
pub fn set(
    socket: &mut Socket,
    pf: Index,
    pf_name: &str,
    number: u32,
    wanted: &VfState,
) -> Result<()> {
    for (key, one) in wanted.settings() {
        let message = Message::new(RTM_SETLINK, &message(pf, number, &one));
        socket.change(message, 0, || {
            format!("{key}: the PF {pf_name} refuses {one} for its VF {number}")
        })?;
    }
    Ok(())
}

/// The request for one setting.
pub fn message(pf: Index, number: u32, wanted: &VfState) -> LinkMessage {
    let mac = wanted
        .mac
        .as_deref()
        .and_then(parse_mac)
        .map(|mac| VfInfo::Mac(VfInfoMac::new(number, &mac)));
    let vlan = wanted.vlan.map(|vlan| {
        let protocol = if vlan.is_dot1ad {
            VlanProtocol::Ieee8021Ad
        } else {
            VlanProtocol::Ieee8021Q
        };
        let info = VfVlanInfo::new(number, u32::from(vlan.id), u32::from(vlan.qos), protocol);
        VfInfo::VlanList(vec![VfVlan::Info(info)])
    });
    let rate = wanted
        .rate
        .map(|(min, max)| VfInfo::Rate(VfInfoRate::new(number, min, max)));
    let spoofchk = wanted
        .spoofchk
        .map(|on| VfInfo::SpoofCheck(VfInfoSpoofCheck::new(number, on)));
    let trust = wanted
        .trust
        .map(|on| VfInfo::Trust(VfInfoTrust::new(number, on)));
    let link_state = wanted.link_state.map(|state| {
        let state = match state {
            LinkState::Auto => VfLinkState::Auto,
            LinkState::Enable => VfLinkState::Enable,
            LinkState::Disable => VfLinkState::Disable,
        };
        VfInfo::LinkState(VfInfoLinkState::new(number, state))
    });
    let node_guid = wanted
        .node_guid
        .map(|guid| VfInfo::IbNodeGuid(VfInfoGuid::new(number, guid)));
    let port_guid = wanted
        .port_guid
        .map(|guid| VfInfo::IbPortGuid(VfInfoGuid::new(number, guid)));
    let all = [
        mac, vlan, rate, spoofchk, trust, link_state, node_guid, port_guid,
    ];
    let infos = all.into_iter().flatten().collect();
    let mut message = LinkUnspec::new_with_index(pf.get()).build();
    message
        .attributes
        .push(LinkAttribute::VfInfoList(vec![LinkVfInfo(infos)]));
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::Emitable as _;

    /// A setting is read in the form in which it is sent: the kernel's structures are equal both
    /// ways but for the VLAN, which has a second form.
    #[test]
    fn settings_are_read_as_they_are_written() {
        let wanted = VfState {
            mac: Some("02:00:00:00:00:07".into()),
            vlan: Some(Vlan {
                id: 100,
                qos: 3,
                is_dot1ad: true,
            }),
            rate: Some((100, 1000)),
            spoofchk: Some(false),
            trust: Some(true),
            link_state: Some(LinkState::Disable),
            node_guid: Some(0x0011_2233_4455_6677),
            port_guid: Some(0x0011_2233_4455_6678),
        };
        let mut bytes = vec![0; message(Index::MIN, 5, &wanted).buffer_len()];
        message(Index::MIN, 5, &wanted).emit(&mut bytes);
        let list = attributes(&bytes[HEADER_LEN..])
            .find(|one| kind(one) == IFLA_VFINFO_LIST)
            .unwrap();
        assert_eq!(infos(list.value()), [(5, wanted)]);
    }

    /// A driver without spoof checking reports all bits set (rust-netlink takes that for off).
    #[test]
    fn what_a_driver_does_not_know_is_not_a_setting() {
        let mut bytes = vec![12, 0, 4, 0];
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend(u32::MAX.to_ne_bytes());
        assert_eq!(IFLA_VF_SPOOFCHK, 4);
        let mac = [&[40, 0, 1, 0, 7, 0, 0, 0][..], &[0; 32]].concat();
        let (number, state) = parse(&[bytes, mac].concat()).unwrap();
        assert_eq!(
            (number, state.spoofchk, state.mac.as_deref()),
            (7, None, Some("00:00:00:00:00:00"))
        );
    }
}
