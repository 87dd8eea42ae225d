use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

pub fn allocation(prefix: &str, gateway: Option<&str>, exclusions: &[(&str, &str)]) -> Allocation {
    let range = |(start, end): &(&str, &str)| Range {
        start: start.parse().unwrap(),
        end: end.parse().unwrap(),
    };
    Allocation {
        version: NUMBERED,
        prefix: prefix.parse().unwrap(),
        gateway: gateway.map(|gateway| gateway.parse().unwrap()),
        rail: None,
        routes: vec![],
        exclusions: exclusions.iter().map(range).collect(),
        leaf_ports: vec![],
    }
}

fn first(prefix: &str, gateway: Option<&str>, exclusions: &[(&str, &str)]) -> Option<String> {
    allocation(prefix, gateway, exclusions)
        .first_free(|_| false)
        .map(|address| address.to_string())
}

#[test]
fn a_point_to_point_prefix_gives_the_side_that_is_not_the_switch() {
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        first("172.16.1.60/31", Some("172.16.1.61"), &[]),
        some("172.16.1.60")
    );
    assert_eq!(
        first("172.16.1.60/31", Some("172.16.1.60"), &[]),
        some("172.16.1.61")
    );
    assert_eq!(first("fd00::/127", Some("fd00::1"), &[]), some("fd00::"));
    assert_eq!(first("10.0.0.7/32", None, &[]), some("10.0.0.7"));
    assert_eq!(first("10.0.0.7/32", Some("10.0.0.7"), &[]), None);
    assert_eq!(first("fd00::7/128", None, &[]), some("fd00::7"));
}

#[test]
fn a_large_prefix_keeps_its_special_addresses_and_is_not_walked() {
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        first("10.0.0.0/30", Some("10.0.0.1"), &[]),
        some("10.0.0.2")
    );
    assert_eq!(
        first("10.0.0.0/30", None, &[("10.0.0.1", "10.0.0.2")]),
        None
    );
    assert_eq!(first("fd00::/64", Some("fd00::2"), &[]), some("fd00::1"));
    assert_eq!(
        first("fd00::/64", None, &[("fd00::", "fd00::ffff:ffff:ffff")]),
        some("fd00::1:0:0:0")
    );
    assert_eq!(
        first(
            "fd00::/64",
            None,
            &[("fd00::", "fd00::ffff:ffff:ffff:ffff")]
        ),
        None
    );
    assert_eq!(
        first(
            "::/0",
            None,
            &[("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")]
        ),
        None
    );
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
        let version = IpVersion::of(base);
        let at = |index: u32| address(first + u128::from(index) % size, version);
        let range = |(start, length): &(u32, u32)| {
            let start = u128::from(*start) % size;
            let end = (start + u128::from(*length)).min(size - 1);
            Range { start: address(first + start, version), end: address(first + end, version) }
        };
        let allocation = Allocation {
            version: NUMBERED, prefix, gateway: gateway.map(at), rail: None, routes: vec![],
            exclusions: excluded.iter().map(range).collect(), leaf_ports: vec![],
        };
        let held: BTreeSet<IpAddr> = held.into_iter().map(at).collect();
        let naive = (0..size).map(|index| address(first + index, version)).find(|address| {
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

#[test]
fn what_is_excluded_besides_the_gateway_makes_no_difference_to_pods() {
    let of = |prefix: &str, gateway: &str, excluded: &[(&str, &str)]| {
        allocation(prefix, Some(gateway), excluded)
    };
    let same = |one: &Allocation, other: &Allocation| {
        one.gives_the_same(other) && other.gives_the_same(one)
    };
    let plain = of("10.0.0.4/31", "10.0.0.5", &[]);
    assert!(same(
        &plain,
        &of("10.0.0.4/31", "10.0.0.5", &[("10.0.0.5", "10.0.0.5")])
    ));
    assert!(!same(
        &plain,
        &of("10.0.0.4/31", "10.0.0.5", &[("10.0.0.4", "10.0.0.4")])
    ));
    assert!(!same(&plain, &of("10.0.0.4/31", "10.0.0.4", &[])));
    assert!(!same(&plain, &of("10.0.0.6/31", "10.0.0.7", &[])));
    let wide = of("10.0.0.0/8", "10.0.0.1", &[]);
    assert!(same(&wide, &wide.clone()));
    assert!(!same(
        &wide,
        &of("10.0.0.0/8", "10.0.0.1", &[("10.0.0.1", "10.0.0.1")])
    ));
}
