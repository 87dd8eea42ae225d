//! An allocation: the prefix that a pool gives to a node, and the addresses of it that pods can
//! have.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::failure;
use crate::fault::Fault;

/// The version of the store's files, which rail-ipam 0.1.0 reads.
pub const NUMBERED: u32 = 1;
/// The version for a link without a prefix of its own: the host has a /32 or /128, and the gateway
/// is outside of it.
pub const UNNUMBERED: u32 = 2;

/// The prefix of a node in a pool, in the form of the store's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocation {
    /// The version of this form: [`NUMBERED`] or [`UNNUMBERED`].
    pub version: u32,
    /// The node's prefix, without host bits.
    pub prefix: IpNet,
    /// The address of the leaf port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The rail, counted from 0, if the plan says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<u8>,
    /// Routes by the gateway, in the order of the pool; never a default route.
    #[serde(default)]
    pub routes: Vec<To>,
    /// Addresses that no pod may have.
    #[serde(default)]
    pub exclusions: Vec<Range>,
    /// The ends of the cable: one leaf port, or with `hwplb` one on each plane. Only messages use
    /// it, and the store has it in a file of its own, because rail-ipam 0.1.0 refuses a key that it
    /// does not know.
    #[serde(skip)]
    pub leaf_ports: Vec<LeafPort>,
}

/// A port of a leaf, as the plan names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafPort {
    /// The name of the leaf.
    pub leaf: String,
    /// The port, if the plan says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
}

/// Several leaf ports in the form of messages and manifests: `leaf-1 swp2, leaf-2 swp2`.
pub fn join(ports: &[LeafPort]) -> String {
    ports
        .iter()
        .map(LeafPort::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

impl fmt::Display for LeafPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeafPort { leaf, port } = self;
        match port {
            Some(port) => write!(f, "{leaf} {port}"),
            None => f.write_str(leaf),
        }
    }
}

/// A route by the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct To {
    /// The destination, without host bits.
    pub dst: IpNet,
}

/// Addresses from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The first address.
    #[serde(rename = "startIP")]
    pub start: IpAddr,
    /// The last address.
    #[serde(rename = "endIP")]
    pub end: IpAddr,
}

impl Allocation {
    /// Fails with the first fault of an allocation that a plan, or an editor of the store, made
    /// wrong.
    pub fn check(&self) -> Result<(), Fault> {
        let Allocation {
            prefix, gateway, ..
        } = self;
        let is_ours = |address: IpAddr| address.is_ipv4() == self.is_ipv4();
        if *prefix != prefix.trunc() {
            let problem = format!(
                "{prefix} has host bits set, the prefix is {}",
                prefix.trunc()
            );
            return Err(Fault::new("prefix", problem));
        }
        if let Some(gateway) = gateway {
            let wrong = |problem: String| Err(Fault::new("gateway", problem));
            if !prefix.contains(gateway) {
                let is_unnumbered = prefix.prefix_len() == prefix.max_prefix_len();
                if self.version != UNNUMBERED || !is_unnumbered {
                    return wrong(format!("{gateway} is outside of the prefix {prefix}"));
                }
                if let Some(why) = unusable_next_hop(*prefix, *gateway) {
                    return wrong(why);
                }
            }
            let is_edge = *gateway == prefix.network() || *gateway == prefix.broadcast();
            if self.is_ipv4() && prefix.prefix_len() < 31 && is_edge {
                return wrong(format!(
                    "{gateway} is the network or broadcast address of {prefix}"
                ));
            }
        }
        for (index, To { dst }) in self.routes.iter().enumerate() {
            let wrong = |problem: String| Err(Fault::new(format!("routes[{index}].dst"), problem));
            if dst.prefix_len() == 0 {
                return wrong(format!("{dst}: a rail carries no default route"));
            }
            if !is_ours(dst.addr()) || *dst != dst.trunc() {
                return wrong(format!(
                    "{dst} has host bits set or is of the other address family"
                ));
            }
        }
        for (index, Range { start, end }) in self.exclusions.iter().enumerate() {
            if !is_ours(*start) || !is_ours(*end) || start > end {
                let problem = format!("{start} to {end} is not a range in {prefix}");
                return Err(Fault::new(format!("exclusions[{index}]"), problem));
            }
        }
        Ok(())
    }

    /// Takes over the leaf ports of an earlier plan for the same link, because manifests do not say
    /// where cables end.
    pub fn keep_leaf_ports_of(&mut self, before: &Allocation) {
        let is_same_link = (self.prefix, self.gateway) == (before.prefix, before.gateway);
        if self.leaf_ports.is_empty() && is_same_link {
            self.leaf_ports.clone_from(&before.leaf_ports);
        }
    }

    /// Whether pods get the same addresses from both, whatever is excluded besides. Large prefixes
    /// are not walked.
    pub fn gives_the_same(&self, other: &Allocation) -> bool {
        const WALKED: u128 = 256;
        if (self.prefix, self.gateway) != (other.prefix, other.gateway) {
            return false;
        }
        let (first, last) = self.hosts();
        let gives = |of: &Allocation, at| {
            of.check_host(address(at, IpVersion::of(self.prefix.addr())))
                .is_ok()
        };
        self.exclusions == other.exclusions
            || (last.saturating_sub(first) < WALKED
                && (first..=last).all(|at| gives(self, at) == gives(other, at)))
    }

    /// Whether one of the routes has this destination.
    pub fn leads_to(&self, dst: IpNet) -> bool {
        self.routes.iter().any(|route| route.dst == dst)
    }

    /// Whether the prefix is of IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.prefix.addr().is_ipv4()
    }

    /// The lowest address that a pod can have and that is not `held`. An exclusion is passed in one
    /// step, because an IPv6 prefix is too large to be walked.
    pub fn first_free(&self, held: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let (mut at, last) = self.hosts();
        while at <= last {
            let address = address(at, IpVersion::of(self.prefix.addr()));
            match self
                .exclusions
                .iter()
                .filter(|range| range.contains(address))
                .map(|range| range.end)
                .max()
            {
                Some(end) => at = bits(end).checked_add(1)?,
                None if Some(address) == self.gateway || held(address) => at = at.checked_add(1)?,
                None => return Some(address),
            }
        }
        None
    }

    /// Fails with the reason if no pod can have `address`, whether or not it is held.
    pub fn check_host(&self, address: IpAddr) -> Result<(), String> {
        let prefix = self.prefix;
        if !prefix.contains(&address) {
            return Err(format!("is outside of this node's prefix {prefix}"));
        }
        if Some(address) == self.gateway {
            return Err(format!(
                "is the gateway of {prefix}, which is the switch's address"
            ));
        }
        let (first, last) = self.hosts();
        if !(first..=last).contains(&bits(address)) {
            let what = if self.is_ipv4() {
                "network or broadcast"
            } else {
                "subnet-router anycast"
            };
            return Err(format!("is the {what} address of {prefix}"));
        }
        for range in &self.exclusions {
            if range.contains(address) {
                let Range { start, end } = range;
                return Err(format!("is excluded ({start} to {end})"));
            }
        }
        Ok(())
    }

    /// The error for an allocation of which no pod can have an address.
    pub fn no_host(&self, pool: &str) -> anyhow::Error {
        failure!(
            InvalidConfig,
            "pool {pool}: every address of {} is the gateway or excluded: correct the plan",
            self.prefix
        )
    }

    /// First and last address that hosts can have. A /31 has two (RFC 3021), a /127 too (RFC 6164).
    /// In other IPv6 prefixes the lowest is the subnet-router anycast (RFC 4291, 2.6.1), and no
    /// address is a broadcast.
    fn hosts(&self) -> (u128, u128) {
        let (first, last) = (bits(self.prefix.network()), bits(self.prefix.broadcast()));
        match self.prefix.max_prefix_len() - self.prefix.prefix_len() {
            0 | 1 => (first, last),
            _ if self.is_ipv4() => (first + 1, last - 1),
            _ => (first + 1, last),
        }
    }
}

/// Why an address cannot be the gateway of an unnumbered link with this prefix.
fn unusable_next_hop(prefix: IpNet, gateway: IpAddr) -> Option<String> {
    let is_link_local = match gateway {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let is_of_family = gateway.is_ipv4() == prefix.addr().is_ipv4();
    if gateway.is_unspecified() || gateway.is_multicast() || gateway.is_loopback() {
        return Some(format!("{gateway} cannot be the address of a leaf"));
    }
    (!is_of_family && !is_link_local).then(|| {
        format!(
            "{gateway} is of another address family than {prefix}: only fe80::/10 can be the gateway of IPv4"
        )
    })
}

impl Range {
    /// Whether the range has `address`, which is of the same family.
    pub fn contains(&self, address: IpAddr) -> bool {
        (self.start..=self.end).contains(&address)
    }
}

/// An address as a number.
pub fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpVersion {
    /// The family of an address.
    pub fn of(address: IpAddr) -> IpVersion {
        if address.is_ipv4() {
            IpVersion::V4
        } else {
            IpVersion::V6
        }
    }
}

/// The address of this family with the number `bits`.
pub fn address(bits: u128, version: IpVersion) -> IpAddr {
    match u32::try_from(bits) {
        Ok(bits) if version == IpVersion::V4 => Ipv4Addr::from(bits).into(),
        _ => Ipv6Addr::from(bits).into(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
