use super::*;
use golden::has;

const TWO: Scheme = Scheme {
    tiers: Tiers::Two,
    mode: Mode::None,
    family: Family::Ipv4,
    first_octet: 172,
    polarity: Polarity::LeafOdd,
};

fn link(node_name: &str, plane: u64, rail: u64, pod: u64, su: u64, host: u64) -> HostLink {
    HostLink {
        node_name: node_name.into(),
        plane,
        rail,
        pod,
        su,
        host,
        cable: Cable::default(),
    }
}

fn plan(scheme: Scheme, links: &[HostLink]) -> Result<Plan, Vec<String>> {
    use crate::plan::tests::{lines, origin};
    let mut plan = scheme.plan(links.to_vec(), &origin).map_err(lines)?;
    plan.check().map_err(lines)?;
    Ok(plan)
}

/// Name, cidr, routes, prefix and gateway of a link's first pool.
fn shown(scheme: Scheme, link: HostLink) -> String {
    let plan = plan(scheme, &[link]).unwrap();
    let Pool { name, spec, .. } = &plan.pools[0];
    let routes: Vec<_> = spec.routes.iter().map(|to| to.dst.as_str()).collect();
    let Row {
        prefix, gateway, ..
    } = &spec.static_allocations[0];
    format!(
        "{name} {} {} {prefix} {gateway}",
        spec.cidr,
        routes.join(",")
    )
}

/// The corners of each row of the table above, as `addressing.go` computes them.
#[test]
fn the_formulas_are_nvidias() {
    let three = Scheme {
        tiers: Tiers::Three,
        first_octet: 10,
        ..TWO
    };
    for (scheme, link, expected) in [
        (
            TWO,
            link("w", 0, 0, 0, 1, 30),
            "rail-0 172.16.0.0/15 172.16.0.0/15,172.16.0.0/12 172.16.1.60/31 172.16.1.61",
        ),
        (
            TWO,
            link("w", 0, 7, 0, 63, 127),
            "rail-7 172.30.0.0/15 172.30.0.0/15,172.16.0.0/12 172.30.63.254/31 172.30.63.255",
        ),
        (
            Scheme {
                mode: Mode::Swplb,
                ..TWO
            },
            link("w", 1, 1, 0, 0, 0),
            "rail-1-plane-1 172.20.64.0/18 172.20.64.0/18,172.20.0.0/14 172.20.64.0/31 172.20.64.1",
        ),
        (
            Scheme {
                mode: Mode::Swplb,
                ..TWO
            },
            link("w", 3, 7, 0, 63, 127),
            "rail-7-plane-3 172.29.192.0/18 172.29.192.0/18,172.28.0.0/14 172.29.255.254/31 172.29.255.255",
        ),
        (
            Scheme {
                mode: Mode::Hwplb,
                ..TWO
            },
            link("w", 3, 5, 0, 2, 1),
            "rail-5 172.17.64.0/18 172.17.64.0/18,172.16.0.0/14 172.17.66.2/31 172.17.66.3",
        ),
        (
            three,
            link("w", 0, 7, 31, 255, 127),
            "rail-7 10.224.0.0/11 10.224.0.0/11,10.0.0.0/8 10.255.255.254/31 10.255.255.255",
        ),
        (
            Scheme {
                mode: Mode::Hwplb,
                ..three
            },
            link("compute-a", 0, 0, 2, 3, 0),
            "rail-0 10.0.0.0/13 10.0.0.0/13,10.0.0.0/10 10.0.131.0/31 10.0.131.1",
        ),
        (
            Scheme {
                mode: Mode::Swplb,
                ..three
            },
            link("w", 3, 7, 31, 63, 127),
            "rail-7-plane-3 10.248.0.0/13 10.248.0.0/13,10.192.0.0/10 10.255.255.254/31 10.255.255.255",
        ),
        (
            Scheme {
                polarity: Polarity::LeafEven,
                first_octet: 10,
                ..TWO
            },
            link("w", 0, 0, 0, 1, 30),
            "rail-0 10.16.0.0/15 10.16.0.0/15,10.16.0.0/12 10.16.1.60/31 10.16.1.60",
        ),
        (
            Scheme {
                family: Family::Ipv6,
                ..TWO
            },
            link("w", 0, 7, 0, 1, 30),
            "rail-7 fd02:0:700::/40 fd02::/32 fd02:0:700:11e::/64 fd02:0:700:11e::2",
        ),
        (
            Scheme {
                family: Family::Ipv6,
                mode: Mode::Swplb,
                tiers: Tiers::Three,
                ..TWO
            },
            link("w", 2, 7, 4, 1, 255),
            "rail-7-plane-2 fd02:2:700::/40 fd02::/24 fd02:2:704:1ff::/64 fd02:2:704:1ff::2",
        ),
    ] {
        assert_eq!(shown(scheme, link), expected);
    }
}

#[test]
fn pods_get_the_side_that_the_leaf_does_not_have() {
    for (polarity, v4, v6) in [
        (Polarity::LeafOdd, "172.16.0.0", "fd02::1"),
        (Polarity::LeafEven, "172.16.0.1", "fd02::2"),
    ] {
        let scheme = Scheme {
            family: Family::Dual,
            polarity,
            ..TWO
        };
        let plan = plan(scheme, &[link("w", 0, 0, 0, 0, 0)]).unwrap();
        let names: Vec<_> = plan.pools.iter().map(|pool| pool.name.as_str()).collect();
        assert_eq!(names, ["rail-0", "rail-0-v6"]);
        for (pool, address) in plan.pools.iter().zip([v4, v6]) {
            let allocations = pool
                .spec
                .plan("spec", &[], rail_cni::pool::cidrpool::Wanted::All)
                .unwrap()
                .allocations;
            assert_eq!(
                allocations["w"].first_free(|_| false).unwrap().to_string(),
                address
            );
        }
    }
}

#[test]
fn every_limit_is_told_with_its_field() {
    let three = Scheme {
        tiers: Tiers::Three,
        ..TWO
    };
    let v6 = Scheme {
        family: Family::Ipv6,
        ..three
    };
    for (scheme, link, told) in [
        (TWO, link("w", 0, 8, 0, 0, 0), "links[0].rail: 8 …0 to 7"),
        (TWO, link("w", 0, 0, 0, 0, 128), "host: 128 …0 to 127"),
        (TWO, link("w", 0, 0, 0, 64, 0), "su: 64 …0 to 63"),
        (TWO, link("w", 0, 0, 1, 0, 0), "pod: "),
        (
            Scheme {
                mode: Mode::Swplb,
                ..TWO
            },
            link("w", 4, 0, 0, 0, 0),
            "plane: 4 …0 to 3",
        ),
        (three, link("w", 0, 0, 0, 256, 0), "su: 256 …0 to 255"),
        (three, link("w", 0, 0, 32, 0, 0), "pod: 32 …0 to 31"),
        (
            Scheme {
                mode: Mode::Hwplb,
                ..three
            },
            link("w", 0, 0, 0, 64, 0),
            "su: 64 …0 to 63",
        ),
        (v6, link("w", 0, 0, 256, 0, 0), "pod: 256 …0 to 255"),
        (v6, link("w", 0, 0, 0, 0, 256), "host: 256 …0 to 255"),
        (TWO, link("../w", 0, 0, 0, 0, 0), "\"../w\" "),
        (
            TWO,
            link("w", 0, u64::MAX, 0, 0, 0),
            "rail: 18446744073709551615",
        ),
    ] {
        let faults = plan(scheme, &[link]).unwrap_err();
        assert!(has(&faults[0], told), "{told}: {faults:?}");
    }
}

#[test]
fn two_nodes_in_one_place_and_one_node_in_two_are_refused() {
    let faults = plan(TWO, &[link("a", 0, 0, 0, 0, 0), link("b", 0, 0, 0, 0, 0)]).unwrap_err();
    assert!(faults[0].contains("links[1]: node b"));
    let dual = Scheme {
        family: Family::Dual,
        ..TWO
    };
    let faults = plan(dual, &[link("a", 0, 0, 0, 0, 0), link("b", 0, 0, 0, 0, 0)]).unwrap_err();
    assert_eq!(faults.len(), 1, "of both families one is told: {faults:?}");
    let faults = plan(TWO, &[link("a", 0, 0, 0, 0, 0), link("a", 0, 0, 0, 1, 0)]).unwrap_err();
    assert!(faults[0].contains("links[1]: node a"), "{faults:?}");
}

/// With `hwplb` a NIC has a cable to a leaf of each plane, and one address.
#[test]
fn cables_of_one_address_stay_together() {
    let cabled = |plane| HostLink {
        cable: Cable {
            leaf: Some(format!("leaf-p{plane}")),
            ..Cable::default()
        },
        ..link("w", plane, 0, 0, 0, 0)
    };
    let both = [cabled(0), cabled(1)];
    let plan_of = |mode| plan(Scheme { mode, ..TWO }, &both).unwrap();
    assert_eq!(plan_of(Mode::Hwplb).pools[0].cables[0].len(), 2);
    assert_eq!(plan_of(Mode::Swplb).pools.len(), 2);
    assert_eq!(plan_of(Mode::None).pools[0].cables[0].len(), 2);
}

/// With the length of the route to all rails, a prefix tells where it is.
#[test]
fn a_prefix_tells_its_place() {
    let mut tried = 0;
    for (tiers, mode, family) in [Tiers::Two, Tiers::Three].into_iter().flat_map(|tiers| {
        [Mode::None, Mode::Swplb].into_iter().flat_map(move |mode| {
            [Family::Ipv4, Family::Ipv6]
                .into_iter()
                .map(move |family| (tiers, mode, family))
        })
    }) {
        let scheme = Scheme {
            tiers,
            mode,
            family,
            ..TWO
        };
        for seed in 0..2000_u64 {
            let [plane, rail, pod, su, host] =
                [4, 8, 32, 256, 128].map(|room| seed * 7919 / room % room);
            let plane = if mode == Mode::None { 0 } else { plane };
            let Ok(plan) = plan(scheme, &[link("w", plane, rail, pod, su, host)]) else {
                continue;
            };
            tried += 1;
            let Pool {
                rail, plane, spec, ..
            } = &plan.pools[0];
            let all: IpNet = spec.routes.last().unwrap().dst.parse().unwrap();
            let prefix = spec.static_allocations[0].prefix.parse().unwrap();
            let place = (
                rail.unwrap(),
                plane.unwrap_or(0),
                spec.cidr.parse().unwrap(),
            );
            assert_eq!(
                place_of(prefix, all.prefix_len()),
                Some(place),
                "{prefix} {all}"
            );
        }
    }
    assert!(tried > 1000, "{tried}");
    for (prefix, length) in [
        ("172.17.0.0/31", 12),
        ("172.16.64.0/31", 12),
        ("172.18.0.0/31", 14),
        ("172.16.0.0/30", 12),
        ("172.16.0.0/31", 16),
        ("fd03::/64", 32),
        ("fd02:4::/64", 24),
        ("fd02:0:800::/64", 32),
        ("fd02::/127", 32),
    ] {
        assert_eq!(place_of(prefix.parse().unwrap(), length), None, "{prefix}");
    }
}

/// One row too many in a table of cables, and a switch port is configured twice.
#[test]
fn an_end_of_a_cable_is_there_once() {
    let cabled = |node: &str, rail, interface: &str, port: &str| HostLink {
        cable: Cable {
            interface: Some(interface.into()),
            leaf: Some("leaf".into()),
            port: Some(port.into()),
            ..Cable::default()
        },
        ..link(node, 0, rail, 0, 0, if node == "a" { 0 } else { 1 })
    };
    let faults = plan(
        TWO,
        &[cabled("a", 0, "r0", "swp1"), cabled("b", 0, "r0", "swp1")],
    )
    .unwrap_err();
    assert!(
        faults.len() == 1 && has(&faults[0], "links[1]: …swp1 of leaf …links[0]"),
        "{faults:?}"
    );
    let faults = plan(
        TWO,
        &[cabled("a", 0, "r0", "swp1"), cabled("a", 1, "r0", "swp2")],
    )
    .unwrap_err();
    assert!(
        faults.len() == 1 && has(&faults[0], "links[1]: …r0 of node a …links[0]"),
        "{faults:?}"
    );
    assert!(
        plan(
            TWO,
            &[cabled("a", 0, "r0", "swp1"), cabled("a", 1, "r1", "swp2")]
        )
        .is_ok()
    );
}

#[test]
fn names_of_ends_are_words() {
    let cable = |interface: &str, leaf: &str, port: &str| Cable {
        interface: Some(interface.into()),
        leaf: Some(leaf.into()),
        port: Some(port.into()),
        ..Cable::default()
    };
    assert_eq!(
        cable("enp1s0f0np0", "leaf-1.dc", "Ethernet1/1:2").faults(),
        [None, None, None, None]
    );
    for (cable, told) in [
        (cable("sixteen-bytes-xx", "l", "p"), "\"sixteen-bytes-xx\""),
        (cable("e;reboot", "l", "p"), "netdev"),
        (cable("e", "../l", "p"), "\"../l\""),
        (cable("e", "l", "swp1 $(reboot)"), "swp1 $(reboot)"),
        (cable("e", "l", "/swp1"), "switch port"),
    ] {
        assert!(
            cable
                .faults()
                .into_iter()
                .flatten()
                .any(|fault| fault.contains(told)),
            "{told}"
        );
    }
}

/// Both are always there, and mgmt has the switch's own port.
#[test]
fn the_vrfs_of_the_switch_itself_are_no_tenants() {
    let fault = |vrf: &str| {
        let cable = Cable {
            vrf: Some(vrf.into()),
            ..Cable::default()
        };
        cable.faults().into_iter().flatten().next()
    };
    assert_eq!(
        ["red", "mgmt-2", "tenant-su12-h128"].map(|vrf| fault(vrf).is_some()),
        [false, false, true]
    );
    for vrf in ["mgmt", "default"] {
        assert!(fault(vrf).is_some_and(|fault| fault.contains(vrf)), "{vrf}");
    }
}

#[test]
fn nodes_that_look_like_one_and_nodes_without_a_rail_are_told() {
    let links = [
        link("w1", 0, 0, 0, 0, 0),
        link("W1.example", 0, 0, 0, 0, 1),
        link("w1", 0, 1, 0, 0, 0),
    ];
    let Plan {
        warnings, doubts, ..
    } = plan(TWO, &links).unwrap();
    let doubts = doubts.into_warnings();
    assert!(
        doubts.len() == 1 && has(&doubts[0], "node W1.example …rail-1"),
        "{doubts:?}"
    );
    golden::says("plan", "a node without a rail", &doubts[0]);
    assert!(
        warnings.iter().any(|it| it.contains("W1.example and w1")),
        "{warnings:?}"
    );
}
