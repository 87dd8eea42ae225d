//! NVIDIA's Spectrum-X address scheme, which computes a prefix from a place in the fabric.
//!
//! The formulas are those of NVIDIA's k8s-launch-kit
//! (`pkg/networkoperatorplugin/spectrumx/addressing.go`); all numbers count from 0.
//!
//! | tiers, mode | first octet | second | third | rail | all rails |
//! | --- | --- | --- | --- | --- | --- |
//! | 2, none | 172 | `16 \| rail<<1` | su | /15 | /12 |
//! | 2, swplb or hwplb | 172 | `16 \| plane<<2 \| rail>>2` | `(rail&3)<<6 \| su` | /18 | /14, per plane |
//! | 3, none | 10 | `rail<<5 \| pod` | su | /11 | /8 |
//! | 3, swplb or hwplb | 10 | `plane<<6 \| rail<<3 \| pod>>2` | `(pod&3)<<6 \| su` | /13 | /10, per plane |
//!
//! The last octet is `host<<1` for the even side of the link. IPv6 is `fd02:00PP:RRDD:SSHH::/64`
//! with plane, rail, pod, SU and host; /40 is a rail, /32 a plane, /24 all planes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Deserialize;

use super::{Formula, HostLink, Key, Last, Mode, Origin, Planes, Polarity, Rows, byte};
use crate::plan::{Cable, Plan, Position};
use rail_cni::fault::Fault;
use rail_cni::pool::allocation::IpVersion;
use rail_cni::pool::cidrpool::{IndexRange, RouteTo, Spec};

/// The number of switch tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
pub enum Tiers {
    /// Leaves and spines.
    #[serde(rename = "2")]
    #[value(name = "2")]
    Two,
    /// Leaves, spines, and a core between pods.
    #[serde(rename = "3")]
    #[value(name = "3")]
    Three,
}

/// The address family of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// A /31 each.
    Ipv4,
    /// A /64 each.
    Ipv6,
    /// Both; the IPv6 pools have names that end in `-v6`.
    Dual,
}

/// A scheme with its choices made.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// The number of switch tiers.
    pub tiers: Tiers,
    /// The spread of traffic over planes.
    pub mode: Mode,
    /// The addresses that links have.
    pub family: Family,
    /// The first octet of IPv4 addresses; see [`is_first_octet`].
    pub first_octet: u8,
    /// The switch's side of a link.
    pub polarity: Polarity,
}

/// Whether IPv4 addresses of hosts can begin with it: 127 is the host itself, and from 224 on none
/// is of one host.
pub fn is_first_octet(octet: u8) -> bool {
    matches!(octet, 1..=126 | 128..=223)
}

impl Scheme {
    /// NVIDIA's first octet.
    pub fn usual_first_octet(tiers: Tiers) -> u8 {
        match tiers {
            Tiers::Two => 172,
            Tiers::Three => 10,
        }
    }

    /// The plan of these links: see [`Formula::plan`].
    pub fn plan(
        &self,
        links: impl IntoIterator<Item = HostLink>,
        origin: &dyn Fn(usize) -> Origin,
    ) -> Result<Plan, Vec<Fault>> {
        Formula::SpectrumX(self).plan(links, origin)
    }

    /// The families that each link has addresses of.
    pub(super) fn versions(&self) -> &'static [IpVersion] {
        match self.family {
            Family::Ipv4 => &[IpVersion::V4],
            Family::Ipv6 => &[IpVersion::V6],
            Family::Dual => &[IpVersion::V4, IpVersion::V6],
        }
    }

    /// The last value of each field that an address of this scheme has room for.
    pub fn last(&self) -> Last {
        let is_v4 = self.family != Family::Ipv6;
        let su = match (is_v4, self.tiers, self.mode) {
            (true, Tiers::Three, Mode::None) | (false, ..) => 255,
            (true, ..) => 63,
        };
        let pod = match (self.tiers, is_v4) {
            (Tiers::Two, _) => 0,
            (Tiers::Three, true) => 31,
            (Tiers::Three, false) => 255,
        };
        Last {
            rail: 7,
            host: if is_v4 { 127 } else { 255 },
            su,
            pod,
            plane: 3,
        }
    }

    /// The problem of a field that counts from 0 and has `value`, more than `last`.
    pub fn outside(&self, field: &str, value: u64, last: u64) -> String {
        match (field, self.tiers) {
            ("pod", Tiers::Two) => {
                "must be 0 with two tiers; several pods need three tiers".to_owned()
            }
            _ => format!("{value} is not 0 to {last}, the range with these tiers, mode and family"),
        }
    }

    /// The fields that an address has no room for.
    pub(super) fn outside_of(&self, link: &HostLink) -> Vec<Fault> {
        let last = self.last();
        let fields = [
            ("rail", link.rail, last.rail),
            ("host", link.host, last.host),
            ("su", link.su, last.su),
            ("pod", link.pod, last.pod),
            ("plane", link.plane, last.plane),
        ];
        let outside = fields.into_iter().filter(|(_, value, last)| value > last);
        outside
            .map(|(field, value, last)| Fault::new(field, self.outside(field, value, last)))
            .collect()
    }

    /// The prefix and the gateway of a link, whose fields have been checked.
    pub(super) fn ends(&self, link: &HostLink, version: IpVersion) -> (IpNet, IpAddr) {
        let prefix = match version {
            IpVersion::V4 => self.prefix_v4(link),
            IpVersion::V6 => self.prefix_v6(link),
        };
        (prefix, nth(prefix, self.leaf(version)))
    }

    /// The leaf's side of a link, counted from the first address of the prefix.
    fn leaf(&self, version: IpVersion) -> i64 {
        match (self.polarity, version) {
            (Polarity::LeafOdd, IpVersion::V4) | (Polarity::LeafEven, IpVersion::V6) => 1,
            (Polarity::LeafOdd, IpVersion::V6) => 2,
            (Polarity::LeafEven, IpVersion::V4) => 0,
        }
    }

    fn key(&self, link: &HostLink, version: IpVersion) -> Key {
        Formula::SpectrumX(self).key(link, version)
    }

    /// The table at the top of this file.
    fn prefix_v4(&self, link: &HostLink) -> IpNet {
        let Key { rail, plane, .. } = self.key(link, IpVersion::V4);
        let (pod, su) = (byte(link.pod), byte(link.su));
        let (second, third) = match (self.tiers, self.mode) {
            (Tiers::Two, Mode::None) => (16 | rail << 1, su),
            (Tiers::Two, _) => (16 | plane << 2 | rail >> 2, (rail & 3) << 6 | su),
            (Tiers::Three, Mode::None) => (rail << 5 | pod, su),
            (Tiers::Three, _) => (plane << 6 | rail << 3 | pod >> 2, (pod & 3) << 6 | su),
        };
        let even = Ipv4Addr::new(self.first_octet, second, third, byte(link.host) << 1);
        IpNet::V4(Ipv4Net::new_assert(even, 31))
    }

    fn prefix_v6(&self, link: &HostLink) -> IpNet {
        let Key { rail, plane, .. } = self.key(link, IpVersion::V6);
        let pair = |high: u8, low: u8| u16::from(high) << 8 | u16::from(low);
        let (third, fourth) = (
            pair(rail, byte(link.pod)),
            pair(byte(link.su), byte(link.host)),
        );
        let net = Ipv6Addr::new(0xfd02, u16::from(plane), third, fourth, 0, 0, 0, 0);
        IpNet::V6(Ipv6Net::new_assert(net, 64))
    }

    /// The prefix lengths of a rail and of all rails, to which hosts have routes.
    fn lengths(&self, version: IpVersion, planes: Planes) -> (u8, u8) {
        match (version, self.tiers, self.mode) {
            (IpVersion::V6, ..) => (40, if planes == Planes::Several { 24 } else { 32 }),
            (IpVersion::V4, Tiers::Two, Mode::None) => (15, 12),
            (IpVersion::V4, Tiers::Two, _) => (18, 14),
            (IpVersion::V4, Tiers::Three, Mode::None) => (11, 8),
            (IpVersion::V4, Tiers::Three, _) => (13, 10),
        }
    }

    /// The pool of these rows, without them.
    pub(super) fn spec(&self, rows: &Rows, version: IpVersion, planes: Planes) -> Spec {
        let is_v6 = version == IpVersion::V6;
        let leaf = self.leaf(version);
        let (rail_length, all_length) = self.lengths(version, planes);
        let first = rows
            .by_prefix
            .keys()
            .next()
            .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpNet::network);
        let net = |length| IpNet::new_assert(first, length).trunc();
        let routes = if is_v6 {
            vec![net(all_length)]
        } else {
            vec![net(rail_length), net(all_length)]
        };
        Spec {
            cidr: net(rail_length).to_string(),
            per_node_network_prefix: if is_v6 { 64 } else { 31 },
            // nv-ipam needs an index for routes, although the rows have the gateway. On a /31 the
            // index is the host's side and the leaf's side is excluded: then a node without a row
            // gets no address, instead of one with both sides swapped.
            gateway_index: Some(if is_v6 { leaf } else { 1 - leaf }),
            static_allocations: Vec::new(),
            routes: routes
                .into_iter()
                .map(|dst| RouteTo {
                    dst: dst.to_string(),
                })
                .collect(),
            exclusions: Vec::new(),
            per_node_exclusions: vec![IndexRange {
                start_index: leaf,
                end_index: leaf,
            }],
            default_gateway: false,
            node_selector: None,
            is_unnumbered: false,
        }
    }
}

/// Reads rail and plane from a prefix of the formulas, and the prefix of the rail. `all_length` is
/// the length of the hosts' route to all rails, which says the number of tiers and whether there
/// are planes.
pub fn place_of(prefix: IpNet, all_length: u8) -> Option<(u8, u8, IpNet)> {
    let (link, of_rail) = link_of(prefix, all_length)?;
    Some((byte(link.rail), byte(link.plane), of_rail))
}

/// The pod and the SU for which the formulas make a prefix.
pub fn position_of(prefix: IpNet, all_length: u8) -> Option<Position> {
    let (HostLink { pod, su, .. }, _) = link_of(prefix, all_length)?;
    Some(Position { pod, su })
}

/// The link for which the formulas make a prefix, and the prefix of its rail.
fn link_of(prefix: IpNet, all_length: u8) -> Option<(HostLink, IpNet)> {
    let mut scheme = Scheme {
        tiers: Tiers::Three,
        mode: Mode::Swplb,
        family: Family::Ipv4,
        first_octet: 0,
        polarity: Polarity::LeafOdd,
    };
    let mut link = HostLink {
        // Any name: the prefix follows from the numbers.
        node_name: "node".to_owned(),
        plane: 0,
        rail: 0,
        pod: 0,
        su: 0,
        host: 0,
        cable: Cable::default(),
    };
    let made = match prefix.addr() {
        IpAddr::V4(address) => {
            let [first, second, third, last] = address.octets().map(u64::from);
            (scheme.first_octet, link.host) = (byte(first), last >> 1);
            (link.plane, link.rail, link.pod, link.su) = match all_length {
                12 => (0, second >> 1 & 7, 0, third),
                14 => (
                    second >> 2 & 3,
                    (second & 1) << 2 | third >> 6,
                    0,
                    third & 63,
                ),
                8 => (0, second >> 5, second & 31, third),
                10 => (
                    second >> 6,
                    second >> 3 & 7,
                    (second & 7) << 2 | third >> 6,
                    third & 63,
                ),
                _ => return None,
            };
            scheme.tiers = if matches!(all_length, 12 | 14) {
                Tiers::Two
            } else {
                Tiers::Three
            };
            scheme.mode = if matches!(all_length, 12 | 8) {
                Mode::None
            } else {
                Mode::Swplb
            };
            scheme.prefix_v4(&link)
        }
        IpAddr::V6(address) => {
            let [_, plane, third, fourth, ..] = address.segments().map(u64::from);
            scheme.family = Family::Ipv6;
            (link.plane, link.rail, link.pod) = (plane, third >> 8, third & 255);
            (link.su, link.host) = (fourth >> 8, fourth & 255);
            matches!(all_length, 24 | 32).then_some(())?;
            scheme.prefix_v6(&link)
        }
    };
    (scheme.outside_of(&link).is_empty() && made == prefix).then_some(())?;
    let (length, _) = scheme.lengths(IpVersion::of(prefix.addr()), Planes::One);
    Some((link, IpNet::new_assert(made.addr(), length).trunc()))
}

fn nth(prefix: IpNet, index: i64) -> IpAddr {
    let index = u8::try_from(index).unwrap_or(0);
    match prefix.network() {
        IpAddr::V4(net) => Ipv4Addr::from_bits(net.to_bits() | u32::from(index)).into(),
        IpAddr::V6(net) => Ipv6Addr::from_bits(net.to_bits() | u128::from(index)).into(),
    }
}
