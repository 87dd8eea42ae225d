//! Routes of a namespace.
//!
//! ```
//! use rail_netlink::{Socket, link, route};
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut socket = Socket::open()?;
//! let lo = link::by_name(&mut socket, "lo")?.expect("every namespace has it");
//! for route in route::through(&mut socket, lo.index, |_| true)? {
//!     println!("{} of table {}", route.dst, route.table);
//! }
//! # Ok(())
//! # }
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NlaBuffer, parse_u32};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteScope, RouteType, RouteVia,
};
use nix::errno::Errno;
use nix::libc::{
    RTA_DST, RTA_GATEWAY, RTA_METRICS, RTA_MULTIPATH, RTA_OIF, RTA_PRIORITY, RTA_TABLE, RTA_VIA,
    RTM_GETROUTE, RTM_NEWROUTE,
};
use rtnetlink::RouteMessageBuilder;
use serde::{Deserialize, Serialize};

use super::link::Index;
use super::{Message, Socket, attributes};

/// The main table, RT_TABLE_MAIN.
pub const MAIN: u32 = 254;
/// sizeof(struct rtmsg).
pub const HEADER_LEN: usize = 12;
// include/uapi/linux/rtnetlink.h: within RTA_METRICS.
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;

/// A route through one link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination.
    pub dst: IpNet,
    /// Next hop; `None` if the destination is on the link. An IPv4 route can have an IPv6 next hop
    /// (Linux 5.2).
    pub gateway: Option<IpAddr>,
    /// Whether the next hop is on the link although no prefix of the host covers it.
    pub onlink: bool,
    /// Routing table.
    pub table: u32,
    /// Priority: the smaller one wins. With 0 the kernel chooses, for IPv6 1024.
    pub metric: u32,
    /// Path MTU in bytes.
    pub mtu: Option<u32>,
    /// TCP MSS to announce, in bytes.
    pub advmss: Option<u32>,
    /// Scope, as in rtnetlink(7). The default is link without a gateway, else universe.
    pub scope: Option<u8>,
}

impl Route {
    /// A route to `dst` in `table`, without further attributes.
    pub fn new(dst: IpNet, table: u32) -> Route {
        Route {
            dst,
            gateway: None,
            onlink: false,
            table,
            metric: 0,
            mtu: None,
            advmss: None,
            scope: None,
        }
    }

    /// Whether both routes lead the same way, as far as the kernel reports it.
    pub fn is_same_path(&self, other: &Route) -> bool {
        (self.dst.trunc(), self.gateway, self.table)
            == (other.dst.trunc(), other.gateway, other.table)
            && (self.metric == 0 || self.metric == other.metric)
    }

    /// Whether `other` is this route after a plugin such as sbr moved it to another table: with
    /// the same destination and gateway.
    pub fn is_moved_to(&self, other: &Route) -> bool {
        self.dst.trunc() == other.dst.trunc() && self.gateway == other.gateway
    }
}

impl std::fmt::Display for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.dst)?;
        if let Some(gateway) = self.gateway {
            let inet6 = if gateway.is_ipv6() && self.dst.addr().is_ipv4() {
                "inet6 "
            } else {
                ""
            };
            write!(f, " via {inet6}{gateway}")?;
        }
        if self.table != MAIN {
            write!(f, " table {}", self.table)?;
        }
        Ok(())
    }
}

/// Adds `route` through the link with this index. An equal route through any link is an error
/// (EEXIST).
pub fn add(socket: &mut Socket, index: Index, route: &Route) -> Result<()> {
    let message = Message::new(RTM_NEWROUTE, &message(index, route));
    socket.change(message, NLM_F_CREATE | NLM_F_EXCL, || {
        format!("cannot add the route {route}")
    })
}

/// The request for `route`.
pub fn message(index: Index, route: &Route) -> RouteMessage {
    // The two builders have no common trait.
    macro_rules! build {
        ($family:ty, $variant:ident, $addr:expr) => {{
            let mut builder = RouteMessageBuilder::<$family>::new()
                .destination_prefix($addr, route.dst.prefix_len())
                .output_interface(index.get())
                .table_id(route.table);
            if let Some(IpAddr::$variant(gateway)) = route.gateway {
                builder = builder.gateway(gateway);
            }
            if route.onlink {
                builder = builder.onlink();
            }
            if route.metric != 0 {
                builder = builder.priority(route.metric);
            }
            builder
                .scope(match (route.scope, route.gateway) {
                    (Some(scope), _) => RouteScope::from(scope),
                    (None, None) => RouteScope::Link,
                    (None, Some(_)) => RouteScope::Universe,
                })
                .build()
        }};
    }
    let mut message = match route.dst.trunc().addr() {
        IpAddr::V4(addr) => build!(Ipv4Addr, V4, addr),
        IpAddr::V6(addr) => build!(Ipv6Addr, V6, addr),
    };
    let metrics: Vec<_> = route
        .mtu
        .map(RouteMetric::Mtu)
        .into_iter()
        .chain(route.advmss.map(RouteMetric::Advmss))
        .collect();
    if !metrics.is_empty() {
        message.attributes.push(RouteAttribute::Metrics(metrics));
    }
    if let (IpNet::V4(_), Some(IpAddr::V6(gateway))) = (route.dst, route.gateway) {
        message
            .attributes
            .push(RouteAttribute::Via(RouteVia::Inet6(gateway)));
    }
    message
}

/// The unicast routes of all tables and both families, each with the index of its link.
pub fn all(socket: &mut Socket) -> Result<Vec<(Index, Route)>> {
    matching(socket, None, |_| true)
}

/// The wanted unicast routes of both families, of all tables or of this one, however many others
/// the namespace has.
pub fn matching(
    socket: &mut Socket,
    table: Option<u32>,
    is_wanted: impl Fn(&Route) -> bool,
) -> Result<Vec<(Index, Route)>> {
    let filter = table.map(RouteAttribute::Table);
    dump(socket, filter, |_, route| {
        table.is_none_or(|table| route.table == table) && is_wanted(route)
    })
}

/// Shows each unicast route of both families, of whatever table, to `visitor`: more than once if
/// the kernel interrupts the list.
pub fn each(socket: &mut Socket, mut visitor: impl FnMut(&Route)) -> Result<()> {
    let kept = dump(socket, None, |_, route| {
        visitor(route);
        false
    });
    kept.map(drop)
}

/// The wanted routes through the link with this index.
pub fn through(
    socket: &mut Socket,
    index: Index,
    is_wanted: impl Fn(&Route) -> bool,
) -> Result<Vec<Route>> {
    let filter = Some(RouteAttribute::Oif(index.get()));
    let routes = dump(socket, filter, |through, route| {
        through == index && is_wanted(route)
    })?;
    Ok(routes.into_iter().map(|(_, route)| route).collect())
}

/// The wanted routes of both families. Older kernels do not apply the filter.
fn dump(
    socket: &mut Socket,
    filter: Option<RouteAttribute>,
    mut is_wanted: impl FnMut(Index, &Route) -> bool,
) -> Result<Vec<(Index, Route)>> {
    // A kernel without IPv6 answers EOPNOTSUPP; a filter on a link or table that does not exist
    // makes it answer ENODEV or ENOENT.
    let absent = [
        Errno::ENODEV,
        Errno::ENOENT,
        Errno::EOPNOTSUPP,
        Errno::EAFNOSUPPORT,
    ];
    let mut routes = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        message.attributes.extend(filter.clone());
        let message = Message::new(RTM_GETROUTE, &message);
        let of_family = socket.dump(&message, &absent, "cannot list routes", |reply| {
            let mut hops = parse(&reply.payload);
            hops.retain(|(index, route)| is_wanted(*index, route));
            hops
        })?;
        routes.extend(of_family);
    }
    Ok(routes)
}

/// Returns one entry per next hop. Local, broadcast and blackhole routes lead through no link and
/// are left out. Only the attributes that are used are read: an encapsulation that nobody here
/// knows must not hide the route.
pub(super) fn parse(payload: &[u8]) -> Vec<(Index, Route)> {
    let Ok(header) = RouteHeader::parse(payload) else {
        return Vec::new();
    };
    let any = match header.address_family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return Vec::new(),
    };
    let Ok(dst) = IpNet::new(any, header.destination_prefix_length) else {
        return Vec::new();
    };
    if header.kind != RouteType::Unicast {
        return Vec::new();
    }
    let mut route = Route::new(dst, u32::from(header.table));
    let (mut oif, mut hops) = (None, Vec::new());
    for attribute in attributes(payload.get(HEADER_LEN..).unwrap_or_default()) {
        let value = attribute.value();
        match attribute.kind() {
            RTA_DST => {
                route.dst = ip(value)
                    .and_then(|addr| IpNet::new(addr, dst.prefix_len()).ok())
                    .unwrap_or(dst)
            }
            RTA_GATEWAY | RTA_VIA => route.gateway = gateway(&attribute),
            RTA_TABLE => route.table = parse_u32(value).unwrap_or(route.table),
            RTA_PRIORITY => route.metric = parse_u32(value).unwrap_or_default(),
            RTA_OIF => oif = parse_u32(value).ok().and_then(Index::new),
            RTA_MULTIPATH => hops = next_hops(value),
            RTA_METRICS => {
                for metric in attributes(value) {
                    match metric.kind() {
                        RTAX_MTU => route.mtu = parse_u32(metric.value()).ok(),
                        RTAX_ADVMSS => route.advmss = parse_u32(metric.value()).ok(),
                        _ => (),
                    }
                }
            }
            _ => (),
        }
    }
    let mut all: Vec<_> = hops
        .into_iter()
        .map(|(index, gateway)| {
            (
                index,
                Route {
                    gateway,
                    ..route.clone()
                },
            )
        })
        .collect();
    all.extend(oif.map(|index| (index, route)));
    all
}

/// Link and gateway of each struct rtnexthop, which attributes follow.
fn next_hops(mut bytes: &[u8]) -> Vec<(Index, Option<IpAddr>)> {
    let mut hops = Vec::new();
    while let Some((head, _)) = bytes.split_first_chunk::<8>() {
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let index = Index::new(u32::from_ne_bytes([head[4], head[5], head[6], head[7]]));
        let Some(of_hop) = bytes.get(head.len()..length) else {
            break;
        };
        hops.extend(index.map(|index| (index, attributes(of_hop).find_map(|one| gateway(&one)))));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    hops
}

fn gateway(attribute: &NlaBuffer<&[u8]>) -> Option<IpAddr> {
    match attribute.kind() {
        RTA_GATEWAY => ip(attribute.value()),
        // struct rtvia: the family comes first.
        RTA_VIA => ip(attribute.value().get(2..)?),
        _ => None,
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::Emitable as _;

    /// RTA_VIA, struct rtvia: include/uapi/linux/rtnetlink.h.
    #[test]
    fn an_ipv4_route_has_its_ipv6_next_hop_in_these_bytes() {
        let index = Index::MIN.saturating_add(4);
        let route = Route {
            gateway: Some("fe80::1".parse().unwrap()),
            metric: 1000,
            ..Route::new("10.64.0.0/13".parse().unwrap(), MAIN)
        };
        let message = message(index, &route);
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        assert_eq!(bytes[0], 2, "AF_INET");
        let via = [&[22, 0, 18, 0, 10, 0, 0xfe, 0x80][..], &[0; 13], &[1, 0, 0]].concat();
        assert!(
            bytes.windows(via.len()).any(|part| part == via),
            "{bytes:?}"
        );
        assert!(
            !bytes.windows(4).any(|part| part == [8, 0, 5, 0]),
            "no RTA_GATEWAY: {bytes:?}"
        );
        let [(through, read)] = &parse(&bytes)[..] else {
            panic!("one route")
        };
        assert_eq!((*through, read), (index, &route));
        assert_eq!(read.to_string(), "10.64.0.0/13 via inet6 fe80::1");
    }

    /// CHECK after somebody replaced a route, and of a record of 0.1.0, which has no metric.
    #[test]
    fn a_route_of_another_metric_or_next_hop_or_table_is_another_one() {
        let wanted = |metric| Route {
            gateway: Some("172.16.0.1".parse().unwrap()),
            metric,
            ..Route::new("172.16.0.0/12".parse().unwrap(), 100)
        };
        let found = Route {
            mtu: Some(9000),
            ..wanted(1000)
        };
        assert!(wanted(1000).is_same_path(&found) && wanted(0).is_same_path(&found));
        let others = [
            wanted(1001),
            Route {
                gateway: None,
                ..wanted(1000)
            },
            Route {
                table: MAIN,
                ..wanted(1000)
            },
            Route {
                dst: "172.16.0.0/13".parse().unwrap(),
                ..wanted(1000)
            },
        ];
        for other in others {
            assert!(!other.is_same_path(&found), "{other:?}");
        }
        let moved = Route {
            table: 254,
            metric: 0,
            ..found.clone()
        };
        assert!(wanted(1000).is_moved_to(&moved));
        let of_other_gateway = Route {
            gateway: None,
            ..moved.clone()
        };
        assert!(!wanted(1000).is_moved_to(&of_other_gateway));
    }

    /// RTA_MULTIPATH, struct rtnexthop, and an RTA_ENCAP of a kind that there is not.
    #[test]
    fn each_next_hop_is_read_whatever_else_the_route_has() {
        let attribute = |kind: u16, value: &[u8]| {
            let length = u16::try_from(value.len() + 4).unwrap().to_ne_bytes();
            let mut bytes = [&length[..], &kind.to_ne_bytes(), value].concat();
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let hop = |index: u32, gateway: &[u8]| {
            let attributes = attribute(RTA_GATEWAY, gateway);
            let length = u16::try_from(8 + attributes.len()).unwrap().to_ne_bytes();
            [&length[..], &[0; 2], &index.to_ne_bytes(), &attributes].concat()
        };
        let header = [2, 12, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0];
        let hops = [hop(3, &[10, 0, 0, 1]), hop(4, &[10, 0, 0, 2]), vec![9, 0]].concat();
        let mtu = attribute(RTAX_MTU, &9000_u32.to_ne_bytes());
        let attributes = [
            attribute(21, &[0xff, 0xff]),
            attribute(22, &[7; 3]),
            attribute(RTA_DST, &[172, 16, 0, 0]),
            attribute(RTA_METRICS, &mtu),
            attribute(RTA_MULTIPATH, &hops),
        ];
        let read = parse(&[&header[..], &attributes.concat()].concat());
        let expected = |index: u32, gateway: &str| {
            let route = Route::new("172.16.0.0/12".parse().unwrap(), MAIN);
            let gateway = Some(gateway.parse().unwrap());
            (
                Index::new(index).unwrap(),
                Route {
                    gateway,
                    mtu: Some(9000),
                    ..route
                },
            )
        };
        assert_eq!(read, [expected(3, "10.0.0.1"), expected(4, "10.0.0.2")]);
        assert_eq!(parse(&header[..8]), []);
    }
}
