//! Pools: a pool is the addressing of one rail, and each node has a prefix of it, its allocation.
//! Planning writes allocations to the store, and rail-ipam reads them there when it leases
//! addresses.

pub mod allocation;
pub mod cidrpool;
pub mod store;

use anyhow::Result;

use crate::cni::is_identifier;
use crate::fail;
use crate::node::Node;

pub use allocation::{Allocation, LeafPort, To};

/// This node's name, which must be safe as the name of a directory.
pub fn node_name(node: &Node) -> Result<String> {
    let name = node.name()?;
    if !is_name(&name) {
        fail!(
            InvalidConfig,
            "the host name {name:?} is not a valid name of a node: set nodeName in node.json"
        );
    }
    Ok(name)
}

/// Whether `name` can be that of a node or a pool. Both become names of files, which have at most
/// 255 bytes.
pub fn is_name(name: &str) -> bool {
    is_identifier(name) && name.len() <= 200
}

/// The `rail` in the name of a pool, such as `rail-3`, `rail3-v6` or `rail-3-plane-1`, if the plan
/// does not say it.
pub fn rail_in(pool: &str) -> Option<u8> {
    Some(number(number_after("rail", pool)?, plane_in(pool)))
}

/// The plane in the name of a pool or network, such as `rail-3-plane-1`.
pub fn plane_in(name: &str) -> Option<u8> {
    number_after("plane", name)
}

fn number_after(word: &str, name: &str) -> Option<u8> {
    let lower = name.to_ascii_lowercase();
    let (_, after) = lower.split_once(word)?;
    let after = after.trim_start_matches(['-', '_', '.']);
    after
        .split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

/// A plane's network has the number rail + 8 * plane.
pub const RAILS: u8 = 8;

/// Do both numbers mean planes of one rail?
pub fn is_same_rail(one: u8, other: u8) -> bool {
    one % RAILS == other % RAILS
}

/// The `rail` of a network. Each plane of a rail is a network of its own, with a routing table of
/// its own in the pod, so the rails of plane 1 count from 8.
pub fn number(rail: u8, plane: Option<u8>) -> u8 {
    rail.saturating_add(plane.unwrap_or(0).saturating_mul(RAILS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pools_may_tell_the_rail() {
        for (pool, rail) in [
            ("rail-3", Some(3)),
            ("rail3-v6", Some(3)),
            ("su1_Rail_12", Some(12)),
            ("pool-3", None),
            ("rail", None),
            ("rail-0-plane-1", Some(8)),
            ("rail-7-plane-3-v6", Some(31)),
        ] {
            assert_eq!(rail_in(pool), rail, "{pool}");
        }
    }
}
