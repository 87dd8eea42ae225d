//! What a pool gives to a node, and which of its addresses pods can have.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::failure;

/// Version of the store's files.
pub const VERSION: u32 = 1;

/// The prefix of a node in a pool; in this form it stands in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocation {
    /// Of this form.
    pub version: u32,
    /// Without host bits.
    pub prefix: IpNet,
    /// The leaf port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Counted from 0, where the plan says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<u8>,
    /// By the gateway, in the order of the pool; never a default route.
    #[serde(default)]
    pub routes: Vec<To>,
    /// Addresses that no pod gets.
    #[serde(default)]
    pub exclusions: Vec<Range>,
    /// Where the cable ends: one, or with `hwplb` one on each plane. It is for messages alone and stands in a file
    /// of its own: rail-ipam 0.1.0 refuses a key that it does not know.
    #[serde(skip)]
    pub leaf_ports: Vec<LeafPort>,
}

/// A port of a leaf, as the plan names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafPort {
    /// Name of the leaf.
    pub leaf: String,
    /// Its port, if the plan says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
}

/// Several, as people and manifests have them: `leaf-1 swp2, leaf-2 swp2`.
pub fn join(ports: &[LeafPort]) -> String {
    ports.iter().map(LeafPort::to_string).collect::<Vec<_>>().join(", ")
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

/// Destination of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct To {
    /// Without host bits.
    pub dst: IpNet,
}

/// Addresses from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The first.
    #[serde(rename = "startIP")]
    pub start: IpAddr,
    /// The last.
    #[serde(rename = "endIP")]
    pub end: IpAddr,
}

impl Allocation {
    /// What is wrong with it, where a plan or a hand at the store made a mistake.
    pub fn check(&self) -> Result<(), String> {
        let Allocation { prefix, gateway, .. } = self;
        let is_ours = |address: IpAddr| address.is_ipv4() == self.is_ipv4();
        if *prefix != prefix.trunc() {
            return Err(format!("prefix: {prefix} has host bits set, the prefix is {}", prefix.trunc()));
        }
        if let Some(gateway) = gateway {
            if !prefix.contains(gateway) {
                return Err(format!("gateway: {gateway} is outside of the prefix {prefix}"));
            }
            let is_edge = *gateway == prefix.network() || *gateway == prefix.broadcast();
            if self.is_ipv4() && prefix.prefix_len() < 31 && is_edge {
                return Err(format!("gateway: {gateway} is network or broadcast address of {prefix}"));
            }
        }
        for (index, To { dst }) in self.routes.iter().enumerate() {
            if dst.prefix_len() == 0 {
                return Err(format!("routes[{index}].dst: {dst}: a rail carries no default route"));
            }
            if !is_ours(dst.addr()) || *dst != dst.trunc() {
                return Err(format!(
                    "routes[{index}].dst: {dst} has host bits set or is of the other family"
                ));
            }
        }
        for (index, Range { start, end }) in self.exclusions.iter().enumerate() {
            if !is_ours(*start) || !is_ours(*end) || start > end {
                return Err(format!("exclusions[{index}]: {start} to {end} is no range in {prefix}"));
            }
        }
        Ok(())
    }

    /// Manifests do not say where cables end: what the plan before said of the same link holds.
    pub fn keep_leaf_ports_of(&mut self, before: &Allocation) {
        if self.leaf_ports.is_empty() && self.gateway == before.gateway {
            self.leaf_ports.clone_from(&before.leaf_ports);
        }
    }

    /// Of which family?
    pub fn is_ipv4(&self) -> bool {
        self.prefix.addr().is_ipv4()
    }

    /// The lowest address that a pod can have and that is not `held`. Exclusions are passed in one step, an
    /// IPv6 prefix is too large to be walked.
    pub fn first_free(&self, held: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let (mut at, last) = self.hosts();
        while at <= last {
            let address = address(at, self.is_ipv4());
            match self.exclusions.iter().filter(|range| range.contains(address)).map(|range| range.end).max()
            {
                Some(end) => at = bits(end).checked_add(1)?,
                None if Some(address) == self.gateway || held(address) => at = at.checked_add(1)?,
                None => return Some(address),
            }
        }
        None
    }

    /// Why a pod cannot have `address`, whoever holds it.
    pub fn check_host(&self, address: IpAddr) -> Result<(), String> {
        let prefix = self.prefix;
        if !prefix.contains(&address) {
            return Err(format!("is outside of this node's prefix {prefix}"));
        }
        if Some(address) == self.gateway {
            return Err(format!("is the gateway of {prefix}, the switch has it"));
        }
        let (first, last) = self.hosts();
        if !(first..=last).contains(&bits(address)) {
            let what = if self.is_ipv4() { "network or broadcast" } else { "subnet-router anycast" };
            return Err(format!("is the {what} address of {prefix}"));
        }
        if let Some(Range { start, end }) = self.exclusions.iter().find(|range| range.contains(address)) {
            return Err(format!("is excluded ({start} to {end})"));
        }
        Ok(())
    }

    /// The error for an allocation that has no address for anybody.
    pub fn no_host(&self, pool: &str) -> anyhow::Error {
        failure!(
            InvalidConfig,
            "pool {pool}: every address of {} is the gateway or excluded: correct the plan",
            self.prefix
        )
    }

    /// First and last address that hosts can have. A /31 has two (RFC 3021), a /127 too (RFC 6164). In other
    /// IPv6 prefixes the lowest is the subnet-router anycast (RFC 4291, 2.6.1), and no address is a broadcast.
    fn hosts(&self) -> (u128, u128) {
        let (first, last) = (bits(self.prefix.network()), bits(self.prefix.broadcast()));
        match self.prefix.max_prefix_len() - self.prefix.prefix_len() {
            0 | 1 => (first, last),
            _ if self.is_ipv4() => (first + 1, last - 1),
            _ => (first + 1, last),
        }
    }
}

impl Range {
    /// Is `address`, of the same family, in it?
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

/// The address with the number `bits`.
pub fn address(bits: u128, is_ipv4: bool) -> IpAddr {
    match u32::try_from(bits) {
        Ok(bits) if is_ipv4 => Ipv4Addr::from(bits).into(),
        _ => Ipv6Addr::from(bits).into(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    pub fn allocation(prefix: &str, gateway: Option<&str>, exclusions: &[(&str, &str)]) -> Allocation {
        let range =
            |(start, end): &(&str, &str)| Range { start: start.parse().unwrap(), end: end.parse().unwrap() };
        Allocation {
            version: VERSION,
            prefix: prefix.parse().unwrap(),
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            rail: None,
            routes: vec![],
            exclusions: exclusions.iter().map(range).collect(),
            leaf_ports: vec![],
        }
    }

    fn first(prefix: &str, gateway: Option<&str>, exclusions: &[(&str, &str)]) -> Option<String> {
        allocation(prefix, gateway, exclusions).first_free(|_| false).map(|address| address.to_string())
    }

    #[test]
    fn a_point_to_point_prefix_gives_the_side_that_is_not_the_switch() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(first("172.16.1.60/31", Some("172.16.1.61"), &[]), some("172.16.1.60"));
        assert_eq!(first("172.16.1.60/31", Some("172.16.1.60"), &[]), some("172.16.1.61"));
        assert_eq!(first("fd00::/127", Some("fd00::1"), &[]), some("fd00::"));
        assert_eq!(first("10.0.0.7/32", None, &[]), some("10.0.0.7"));
        assert_eq!(first("10.0.0.7/32", Some("10.0.0.7"), &[]), None);
        assert_eq!(first("fd00::7/128", None, &[]), some("fd00::7"));
    }

    #[test]
    fn a_large_prefix_keeps_its_special_addresses_and_is_not_walked() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(first("10.0.0.0/30", Some("10.0.0.1"), &[]), some("10.0.0.2"));
        assert_eq!(first("10.0.0.0/30", None, &[("10.0.0.1", "10.0.0.2")]), None);
        assert_eq!(first("fd00::/64", Some("fd00::2"), &[]), some("fd00::1"));
        assert_eq!(first("fd00::/64", None, &[("fd00::", "fd00::ffff:ffff:ffff")]), some("fd00::1:0:0:0"));
        assert_eq!(first("fd00::/64", None, &[("fd00::", "fd00::ffff:ffff:ffff:ffff")]), None);
        assert_eq!(first("::/0", None, &[("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")]), None);
        assert_eq!(first("0.0.0.0/0", None, &[]), some("0.0.0.1"));
    }

    proptest! {
        /// Against every address of a small prefix, looked at one by one.
        #[test]
        fn the_lowest_address_that_may_be_had_is_found(
            is_v4: bool, host_bits in 0u8..7, seed: u32, gateway in proptest::option::of(0u32..64),
            held in proptest::collection::btree_set(0u32..64, 0..64),
            excluded in proptest::collection::vec((0u32..64, 0u32..8), 0..4),
        ) {
            let base: IpAddr = if is_v4 { Ipv4Addr::from(seed).into() } else { Ipv6Addr::from(u128::from(seed) << 64).into() };
            let prefix = IpNet::new(base, if is_v4 { 32 } else { 128 } - host_bits).unwrap().trunc();
            let (first, size) = (bits(prefix.network()), 1u128 << host_bits);
            let at = |index: u32| address(first + u128::from(index) % size, is_v4);
            let range = |(start, length): &(u32, u32)| {
                let start = u128::from(*start) % size;
                let end = (start + u128::from(*length)).min(size - 1);
                Range { start: address(first + start, is_v4), end: address(first + end, is_v4) }
            };
            let allocation = Allocation {
                version: VERSION, prefix, gateway: gateway.map(at), rail: None, routes: vec![],
                exclusions: excluded.iter().map(range).collect(), leaf_ports: vec![],
            };
            let held: BTreeSet<IpAddr> = held.into_iter().map(at).collect();
            let naive = (0..size).map(|index| address(first + index, is_v4)).find(|address| {
                let index = bits(*address) - first;
                let special = host_bits > 1 && (index == 0 || is_v4 && index == size - 1);
                !special && allocation.gateway != Some(*address) && !held.contains(address)
                    && !allocation.exclusions.iter().any(|range| range.start <= *address && *address <= range.end)
            });
            prop_assert_eq!(allocation.first_free(|address| held.contains(&address)), naive);
            if let Some(address) = naive {
                prop_assert!(allocation.check_host(address).is_ok());
            }
        }
    }
}
