//! The addresses of fabrics that are not NVIDIA's, by the patterns of a fabric file. A link has a
//! prefix of its own (`l3-p2p`), or it is unnumbered: the host has an address alone, and the
//! gateway is on the link without a prefix.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::{HostLink, Key, Mode, Polarity, Rows};
use crate::pattern::Pattern;
use rail_cni::fault::Fault;
use rail_cni::pool::allocation::{IpVersion, address, bits};
use rail_cni::pool::cidrpool::{IndexRange, RouteTo, Spec};

/// The addresses of all links.
#[derive(Clone, Debug)]
pub struct Patterns {
    /// The spread of traffic over planes.
    pub mode: Mode,
    /// IPv4, IPv6, or both in this order.
    pub families: Vec<Addresses>,
    /// The destinations of each rail, with a length; of pod, SU and host they use none.
    pub routes: Vec<Pattern<2>>,
}

/// The addresses of all links in one family.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// The family.
    pub version: IpVersion,
    /// The first address of the link's prefix, or the address of an unnumbered host, by pod, SU,
    /// host, rail and plane.
    pub address: Pattern<5>,
    /// The leaf's end of a link.
    pub leaf: Leaf,
}

/// The leaf's end of a link.
#[derive(Clone, Debug)]
pub enum Leaf {
    /// In the prefix of the link.
    Numbered {
        /// The length of the prefix: 16 to 31, or 127.
        length: u8,
        /// The leaf's side of a link.
        polarity: Polarity,
    },
    /// At an address of its own, by the same numbers as the host's.
    Unnumbered(Pattern<5>),
}

impl Patterns {
    /// The families that each link has addresses of.
    pub(super) fn versions(&self) -> &'static [IpVersion] {
        match self.families.as_slice() {
            [_, _, ..] => &[IpVersion::V4, IpVersion::V6],
            [one] if one.version == IpVersion::V6 => &[IpVersion::V6],
            _ => &[IpVersion::V4],
        }
    }

    /// The prefix and the gateway of a link, or why it has none.
    pub(super) fn ends(
        &self,
        link: &HostLink,
        version: IpVersion,
    ) -> Result<(IpNet, IpAddr), String> {
        let Some(Addresses { address, leaf, .. }) = self.of(version) else {
            return Err("there is no pattern for this family".to_owned());
        };
        let numbers = [link.pod, link.su, link.host, link.rail, link.plane];
        let first = unicast(&address.render(&numbers))?;
        match leaf {
            Leaf::Numbered { length, polarity } => {
                let prefix =
                    IpNet::new(first, *length).map_err(|_| format!("{first} has no /{length}"))?;
                if prefix != prefix.trunc() {
                    let start = prefix.network();
                    return Err(format!(
                        "{first} is not the first address of a /{length}, which begins at {start}: did you \
                            mean {{host*{}}}?",
                        1u32 << (prefix.max_prefix_len() - length)
                    ));
                }
                let (_, index) = sides(*length, *polarity);
                Ok((
                    prefix,
                    self::address(bits(first) + u128::from(index), version),
                ))
            }
            Leaf::Unnumbered(gateway) => {
                let gateway = unicast(&gateway.render(&numbers))?;
                let is_next_hop = match gateway {
                    IpAddr::V6(v6) => version == IpVersion::V6 || v6.is_unicast_link_local(),
                    IpAddr::V4(_) => version == IpVersion::V4,
                };
                if !is_next_hop {
                    return Err(format!(
                        "the gateway {gateway} is of another address family than {first}; only fe80::/10 can be the \
                         gateway of IPv4"
                    ));
                }
                Ok((IpNet::from(first), gateway))
            }
        }
    }

    /// The pool of these rows, without them. Fails if no route contains them all.
    pub(super) fn spec(&self, rows: &Rows, key: Key) -> Result<Spec, Fault> {
        let routes = self.routes_of(key);
        let holds = |route: &&IpNet| rows.by_prefix.keys().all(|prefix| route.contains(prefix));
        let Some(cidr) = routes
            .iter()
            .filter(holds)
            .max_by_key(|route| route.prefix_len())
        else {
            let first = rows
                .by_prefix
                .keys()
                .next()
                .map(IpNet::to_string)
                .unwrap_or_default();
            let problem = "no route contains all prefixes of the rail, such as";
            return Err(Fault::new("routes", format!("{problem} {first}"))
                .remedy("the nodes must reach each other"));
        };
        let mut spec = Spec {
            cidr: cidr.to_string(),
            per_node_network_prefix: i64::from(cidr.max_prefix_len()),
            gateway_index: None,
            static_allocations: Vec::new(),
            routes: routes
                .iter()
                .map(|dst| RouteTo {
                    dst: dst.to_string(),
                })
                .collect(),
            exclusions: Vec::new(),
            per_node_exclusions: Vec::new(),
            default_gateway: false,
            node_selector: None,
            is_unnumbered: true,
        };
        if let Some(Leaf::Numbered { length, polarity }) = self.of(key.version).map(|of| &of.leaf) {
            // As in NVIDIA's pools, a node without a row gets no address of nv-ipam.
            let (host, leaf) = sides(*length, *polarity);
            let leaf = i64::from(leaf);
            spec.is_unnumbered = false;
            spec.per_node_network_prefix = i64::from(*length);
            spec.gateway_index = Some(i64::from(host));
            spec.per_node_exclusions = vec![IndexRange {
                start_index: leaf,
                end_index: leaf,
            }];
        }
        Ok(spec)
    }

    fn of(&self, version: IpVersion) -> Option<&Addresses> {
        self.families
            .iter()
            .find(|family| family.version == version)
    }

    /// The routes of a pool, each once.
    fn routes_of(
        &self,
        Key {
            rail,
            plane,
            version,
        }: Key,
    ) -> Vec<IpNet> {
        let mut found = Vec::new();
        for pattern in &self.routes {
            let route = network(&pattern.render(&[rail.into(), plane.into()]));
            found.extend(
                route.ok().filter(|route| {
                    IpVersion::of(route.addr()) == version && !found.contains(route)
                }),
            );
        }
        found
    }
}

/// The indexes of the host and of the leaf in a prefix. One longer than /31 has a network and a
/// broadcast address besides.
fn sides(length: u8, polarity: Polarity) -> (u8, u8) {
    let other = if (16..=30).contains(&length) { 2 } else { 0 };
    match polarity {
        Polarity::LeafOdd => (other, 1),
        Polarity::LeafEven => (1, other),
    }
}

/// The address that a pattern has rendered. In IPv4, a part can be a sum:
/// `10.200.{su}.{rail*2}+{host*16}`.
fn parse(text: &str) -> Result<IpAddr, String> {
    let wrong = || format!("{text} is not an IP address");
    if text.contains(':') {
        return text
            .parse::<Ipv6Addr>()
            .map(IpAddr::V6)
            .map_err(|_| wrong());
    }
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next().ok_or_else(wrong)?;
        let mut sum: u32 = 0;
        for term in part.split('+') {
            let term: u32 = term.parse().map_err(|_| wrong())?;
            sum = sum.checked_add(term).ok_or_else(wrong)?;
        }
        *octet = u8::try_from(sum)
            .map_err(|_| format!("{text} is not an IP address: {sum} is more than 255"))?;
    }
    if parts.next().is_some() {
        return Err(wrong());
    }
    Ok(Ipv4Addr::from(octets).into())
}

/// The address of one end of a link.
fn unicast(text: &str) -> Result<IpAddr, String> {
    let address = parse(text)?;
    let is_reserved = match address {
        IpAddr::V4(v4) => matches!(v4.octets(), [0 | 127 | 240.., ..] | [169, 254, ..]),
        IpAddr::V6(v6) => v6.is_unspecified() || v6.is_loopback(),
    };
    if is_reserved || address.is_multicast() {
        return Err(format!(
            "{address} is not an address that a host or a leaf can have"
        ));
    }
    Ok(address)
}

/// The destination that a pattern of `routes` has rendered.
pub fn network(text: &str) -> Result<IpNet, String> {
    let wrong = || format!("{text} is not a prefix");
    let (address, length) = text.split_once('/').ok_or_else(wrong)?;
    let net =
        IpNet::new(parse(address)?, length.parse().map_err(|_| wrong())?).map_err(|_| wrong())?;
    if net.prefix_len() == 0 {
        return Err(format!("{net}: a rail carries no default route"));
    }
    if net != net.trunc() {
        return Err(format!(
            "{net} has host bits set: is {} meant?",
            net.trunc()
        ));
    }
    Ok(net)
}
