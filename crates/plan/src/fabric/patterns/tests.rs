use crate::fabric::tests::{plan_of, rows};
use golden::has;
use ipnet::IpNet;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Two rails, two SUs of two hosts.
fn of(kind: &str, more: &str) -> String {
    format!("fabric: {kind}\nrails: 2\nsus: 2\nhostsPerSU: 2\nnodeName: w{{node}}\n{more}")
}

fn p2p(more: &str) -> String {
    of(
        "l3-p2p",
        &format!("polarity: leaf-even\nroutes: [10.0.0.0/8]\n{more}"),
    )
}

fn unnumbered(more: &str) -> String {
    of("unnumbered", &format!("routes: [10.0.0.0/8]\n{more}"))
}

/// The first link of each server of both stripes, and the last one, as Juniper's tables have them.
#[test]
fn junipers_addresses_come_out() {
    let plan = plan_of(include_str!("../../../../../conf/fabric-juniper.yaml")).unwrap();
    assert_eq!(
        (plan.pools.len(), plan.nodes().len(), plan.warnings.len()),
        (8, 32, 0)
    );
    // Row, prefix and leaf; the NIC has the other address.
    for (rail, row, expected) in [
        (0, 0, "server-1 10.200.0.0/31 10.200.0.0"),
        (1, 0, "server-1 10.200.0.2/31 10.200.0.2"),
        (7, 0, "server-1 10.200.0.14/31 10.200.0.14"),
        (0, 1, "server-2 10.200.0.16/31 10.200.0.16"),
        (1, 1, "server-2 10.200.0.18/31 10.200.0.18"),
        (0, 16, "server-17 10.200.1.0/31 10.200.1.0"),
    ] {
        assert_eq!(rows(&plan, rail)[row], expected);
    }
    let links = plan.pools[0].links().unwrap();
    assert_eq!(links[1].host.to_string(), "10.200.0.17");
    let cable = &links[1].cables[0];
    assert_eq!(
        (cable.leaf.as_deref(), cable.port.as_deref()),
        (Some("stripe1-leaf1"), Some("et-0/0/1:0"))
    );
}

#[test]
fn amds_addresses_come_out() {
    let plan = plan_of(include_str!("../../../../../conf/fabric-amd.yaml")).unwrap();
    for (rail, host, leaf) in [(0, 201, 200), (1, 203, 202), (4, 209, 208), (5, 211, 210)] {
        let links = plan.pools[rail].links().unwrap();
        let found = (
            links[0].host.to_string(),
            links[0].allocation.gateway.unwrap().to_string(),
        );
        assert_eq!(
            found,
            (format!("192.168.1.{host}"), format!("192.168.1.{leaf}"))
        );
    }
}

#[test]
fn the_unnumbered_example_has_one_next_hop_for_all() {
    let plan = plan_of(include_str!("../../../../../conf/fabric-unnumbered.yaml")).unwrap();
    assert_eq!(
        (plan.pools.len(), plan.nodes().len(), plan.warnings.len()),
        (8, 64, 0)
    );
    assert_eq!(rows(&plan, 7)[63], "worker-gpu-63 10.71.1.32/32 fe80::1");
    let spec = &plan.pools[7].spec;
    let routes: Vec<_> = spec.routes.iter().map(|to| to.dst.as_str()).collect();
    assert_eq!(
        (spec.cidr.as_str(), routes),
        ("10.71.0.0/16", vec!["10.71.0.0/16", "10.64.0.0/13"])
    );
    assert_eq!(plan.pools[7].links().unwrap()[63].allocation.version, 2);
}

#[test]
fn every_length_and_polarity_has_its_ends() {
    for (address, more, ends) in [
        (
            "10.0.{rail}.{su*4}+{host*2}",
            "polarity: leaf-odd",
            "10.0.1.6/31 leaf 10.0.1.7 host 10.0.1.6",
        ),
        (
            "10.0.{rail}.{su*4}+{host*2}",
            "polarity: leaf-even",
            "10.0.1.6/31 leaf 10.0.1.6 host 10.0.1.7",
        ),
        (
            "10.0.{rail}.{su*8}+{host*4}",
            "prefixLength: 30\npolarity: leaf-odd",
            "10.0.1.12/30 leaf 10.0.1.13 host 10.0.1.14",
        ),
        (
            "10.0.{rail}.{su*8}+{host*4}",
            "prefixLength: 30\npolarity: leaf-even",
            "10.0.1.12/30 leaf 10.0.1.14 host 10.0.1.13",
        ),
        (
            "'fd00:{rail}:{su}::{host*2}'",
            "prefixLength: 127\npolarity: leaf-odd",
            "fd00:1:1::2/127 leaf fd00:1:1::3 host fd00:1:1::2",
        ),
        (
            "'fd00:{rail}:{su}::{host*2}'",
            "polarity: leaf-even",
            "fd00:1:1::2/127 leaf fd00:1:1::2 host fd00:1:1::3",
        ),
    ] {
        let text = of(
            "l3-p2p",
            &format!("address: {address}\n{more}\nroutes: [10.0.0.0/8, 'fd00::/16']"),
        );
        let plan = plan_of(&text).unwrap();
        let links = plan.pools[1].links().unwrap();
        let (last, leaf) = (&links[3], links[3].allocation.gateway.unwrap());
        assert_eq!(
            format!("{} leaf {leaf} host {}", last.allocation.prefix, last.host),
            ends,
            "{more}"
        );
        // For nv-ipam: a node without a row gets no address.
        assert_eq!(plan.pools[1].spec.per_node_exclusions.len(), 1);
    }
}

#[test]
fn both_families_and_planes_have_pools_of_their_own() {
    let names = |text: &str| -> Vec<String> {
        plan_of(text)
            .unwrap()
            .pools
            .iter()
            .map(|pool| pool.name.clone())
            .collect()
    };
    let both = "address: ['fd00:{rail}::{su*32}', '10.{rail}.{su}.{host}']";
    let both = unnumbered(&format!("{both}\ngateway: [fe80::1, 10.255.0.1]"))
        .replace("[10.0.0.0/8]", "[10.0.0.0/8, 'fd00::/16']");
    let both = both.replace("{su*32}", "{su}{host}");
    assert_eq!(names(&both), ["rail-0", "rail-0-v6", "rail-1", "rail-1-v6"]);
    let planes = p2p("mode: swplb\nplanes: 2\naddress: 10.{plane}.{rail}.{su*4}+{host*2}");
    assert_eq!(
        names(&planes),
        [
            "rail-0-plane-0",
            "rail-0-plane-1",
            "rail-1-plane-0",
            "rail-1-plane-1"
        ]
    );
    let hwplb = p2p(
        "mode: hwplb\nplanes: 2\naddress: 10.0.{rail}.{su*4}+{host*2}\nleafName: l{plane}\nleafPort: p{su}-{host}-{rail}\nleafVrf: p{plane}",
    );
    let plan = plan_of(&hwplb).unwrap();
    let vrfs: Vec<_> = plan.pools[1].cables[3]
        .iter()
        .filter_map(|cable| cable.vrf.as_deref())
        .collect();
    assert_eq!(vrfs, ["p0", "p1"]);
}

#[test]
fn every_fault_of_a_pattern_is_told() {
    let good = "address: 10.0.{rail}.{su*4}+{host*2}";
    let mut said = Vec::new();
    for (text, told) in [
        (p2p(""), "address:"),
        (of("l3-p2p", good), "polarity:…leaf-odd…leaf-even"),
        (
            of("l3-p2p", &format!("polarity: leaf-odd\n{good}")),
            "routes:",
        ),
        (
            p2p("address: 10.0.{rail}.{su*4}+{host}"),
            "10.0.0.1…/31…10.0.0.0…{host*2}?",
        ),
        (
            p2p("address: 10.4294967295+72.{host}.{rail}"),
            "10.4294967295+72.0.0…IP",
        ),
        (
            p2p("address: 10.0.{rail+255}.{host*2}"),
            "10.0.256.0…IP…256…255",
        ),
        (p2p("address: 10.0.{rail}"), "10.0.0…IP"),
        (p2p("address: 10.0.{rail}.{su}.0"), "10.0.0.0.0…IP"),
        (
            p2p("address: 10.0.{rial}.0"),
            "{rial}…{pod}…{su}…{host}…{rail}…{plane}…rail?",
        ),
        (p2p("address: 127.0.{rail}.{su*4}+{host*2}"), "127.0.0.0"),
        (
            p2p("address: 10.0.{rail}.{host*2}"),
            "w2…w0…fabric.yaml:8…w0…10.0.0.0/31",
        ),
        (
            p2p("address: 10.0.0.{su*4}+{host*2}"),
            "10.0.0.0/31…w0…rail-0",
        ),
        (
            p2p(&format!("{good}\nprefixLength: 15")),
            "prefixLength: 15…IPv4…16 to 31",
        ),
        (
            p2p("address: 'fd00:{rail}::{su}{host}0'\nprefixLength: 126"),
            "prefixLength: 126…127…IPv6",
        ),
        (p2p(&format!("{good}\ngateway: fe80::1")), "gateway:"),
        (p2p(&format!("{good}\ntiers: 2")), "tiers:"),
        (
            p2p(good).replace("10.0.0.0/8", "11.0.0.0/8"),
            "routes:…10.0.0.0/31",
        ),
        (
            p2p(good).replace("10.0.0.0/8", "0.0.0.0/0"),
            "routes[0]: 0.0.0.0/0:",
        ),
        (
            p2p(good).replace("10.0.0.0/8", "10.0.0.1/8"),
            "routes[0]: 10.0.0.1/8…10.0.0.0/8",
        ),
        (
            p2p(good).replace("10.0.0.0/8", "\"10.{host}.0.0/16\""),
            "{host}…{rail}…{plane}",
        ),
        (p2p(good).replace("[10.0.0.0/8]", "[]"), "routes:"),
        (
            p2p("mode: hwplb\nplanes: 2\naddress: 10.{plane}.{rail}.{su*4}+{host*2}"),
            "address:…{plane}",
        ),
        (
            p2p(&format!("{good}\nleafVrf: 0{{rail}}")),
            "leafVrf: \"01\"…VRF",
        ),
        (p2p("address: [10.0.0.0, 10.0.0.2]"), "address:"),
        (unnumbered("address: 10.{rail}.{su}.{host+1}"), "gateway:"),
        (
            unnumbered("address: 10.{rail}.{su}.{host+1}\ngateway: [fe80::1, 10.0.0.1]"),
            "gateway:",
        ),
        (
            unnumbered("address: 10.{rail}.{su}.{host+1}\ngateway: fd00::1"),
            "fe80::/10…IPv4",
        ),
        (
            unnumbered("address: 10.{rail}.{su}.{host+1}\ngateway: 10.0.1.1"),
            "10.0.1.1…w2…rail-0",
        ),
        (
            unnumbered("address: 10.{rail}.{su}.{host+1}\ngateway: 10.1.{su}.{host+1}"),
            "10.1.0.1…w0…rail-1",
        ),
        (
            unnumbered("address: 10.{rail}.{su}.{host+1}\ngateway: fe80::1\npolarity: leaf-odd"),
            "polarity:",
        ),
    ] {
        let faults = plan_of(&text).unwrap_err();
        assert!(
            faults.iter().any(|fault| has(fault, told)),
            "{told}: {faults:#?}\n{text}"
        );
        said.extend(faults);
    }
    golden::says("plan", "fabric file: faults of patterns", said.join("\n"));
}

proptest! {
    /// With any pattern, no two ends of links have one address, and each link has both in its
    /// prefix.
    #[test]
    fn the_ends_of_all_links_differ(
        rails in 1..=8u64, sus in 1..=4u64, hosts in 1..=8u64, length in 30..=31u8, is_odd: bool,
    ) {
        let size = 1u64 << (32 - length);
        let text = format!(
            "fabric: l3-p2p\nrails: {rails}\nsus: {sus}\nhostsPerSU: {hosts}\nnodeName: w{{node}}\n\
             prefixLength: {length}\npolarity: {}\nroutes: [10.0.0.0/8]\n\
             address: 10.{{su}}.{{rail}}.{{host*{size}}}",
            if is_odd { "leaf-odd" } else { "leaf-even" },
        );
        let plan = plan_of(&text).unwrap();
        let mut seen = BTreeSet::new();
        for pool in &plan.pools {
            for link in pool.links().unwrap() {
                let prefix: IpNet = link.allocation.prefix;
                let leaf = link.allocation.gateway.unwrap();
                let IpAddr::V4(v4) = leaf else { panic!("{leaf}") };
                prop_assert!(prefix.contains(&leaf) && prefix.contains(&link.host));
                prop_assert_eq!(v4.to_bits() % 2 == 1, is_odd);
                prop_assert!(seen.insert(leaf) && seen.insert(link.host), "{} {}", leaf, link.host);
            }
        }
        prop_assert_eq!(seen.len() as u64, rails * sus * hosts * 2);
    }
}
