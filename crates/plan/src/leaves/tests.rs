use super::*;
use crate::plan::Cable;
use crate::plan::tests::{cabled, checked};
use crate::scheme::{Family, HostLink, Mode};
use golden::has;

const CUMULUS: System = System {
    name: "Cumulus Linux",
    max_mtu: 9216,
    is_port: |name| name.starts_with("swp"),
    ports: "swp1",
    vrf_prefix: "",
};

fn error(mode: Mode, family: Family, links: &[HostLink]) -> String {
    let (plan, pools) = checked(mode, family, links);
    let error = Leaves::new(&plan, &pools, None).unwrap_err();
    error.to_string()
}

#[test]
fn a_port_has_its_node_and_the_addresses_of_both_families() {
    let (plan, pools) = checked(Mode::None, Family::Dual, &cabled());
    let leaves = Leaves::new(&plan, &pools, None).unwrap();
    let names: Vec<_> = leaves.iter().map(|leaf| leaf.name).collect();
    assert_eq!(
        names,
        ["leaf-su1-r1", "leaf-su1-r2", "leaf-su2-r1", "leaf-su2-r2"]
    );
    let leaf = leaves.iter().nth(3).unwrap();
    assert_eq!(leaf.ports.len(), 1);
    let port = &leaf.ports[0];
    assert_eq!((port.port, port.node), ("swp31s0", "worker-gpu-62"));
    assert_eq!((port.rail, port.plane), (Some(1), None));
    let families: Vec<_> = port.addresses.iter().map(|row| row.family).collect();
    assert_eq!(families, ["ipv4", "ipv6"]);
}

#[test]
fn ports_are_in_the_order_in_which_people_count() {
    let mut links = cabled();
    links.truncate(2);
    for (link, port) in links.iter_mut().zip(["swp10", "swp2"]) {
        link.cable.leaf = Some("leaf".into());
        link.cable.port = Some(port.into());
    }
    let (plan, pools) = checked(Mode::None, Family::Ipv4, &links);
    let leaves = Leaves::new(&plan, &pools, None).unwrap();
    let leaf = leaves.iter().next().unwrap();
    let ports: Vec<_> = leaf.ports.iter().map(|port| port.port).collect();
    assert_eq!(ports, ["swp2", "swp10"]);
}

/// With `hwplb` the leaf of each plane has the same address, each on its own link to the NIC.
#[test]
fn planes_share_an_address_only_on_different_leaves() {
    let mut links = cabled();
    links.truncate(1);
    links.push(HostLink {
        plane: 1,
        ..links[0].clone()
    });
    links[1].cable.leaf = Some("leaf-p2-su1-r1".into());
    let (plan, pools) = checked(Mode::Hwplb, Family::Ipv4, &links);
    assert_eq!(Leaves::new(&plan, &pools, None).unwrap().iter().count(), 2);
    links[1].cable.leaf = links[0].cable.leaf.clone();
    links[1].cable.port = Some("swp1s1".into());
    let error = error(Mode::Hwplb, Family::Ipv4, &links);
    assert!(has(&error, "swp1s0…swp1s1…leaf-su1-r1"), "{error}");
}

#[test]
fn a_node_without_a_leaf_port_is_named_with_its_pool() {
    let mut links = cabled();
    links[0].cable.port = None;
    links[3].cable = Cable::default();
    let error = error(Mode::None, Family::Ipv4, &links);
    for subject in [
        "\n  node worker-gpu-0 in pool rail-0: ",
        "\n  node worker-gpu-62 in pool rail-1: ",
        "topology.json, or",
    ] {
        assert!(error.contains(subject), "{subject}: {error}");
    }
}

#[test]
fn a_rail_without_leaf_ports_is_one_fault_for_both_families() {
    let mut links = cabled();
    links[0].cable.port = None;
    let error = error(Mode::None, Family::Dual, &links);
    assert_eq!(error.matches("no source says").count(), 1, "{error}");
}

#[test]
fn a_port_has_one_cable_and_no_more_mtu_than_it_can() {
    let (mut plan, pools) = checked(Mode::None, Family::Ipv4, &cabled());
    plan.pools[0].cables[1] = plan.pools[0].cables[0].clone();
    plan.pools[1].cables[0] = plan.pools[0].cables[0].clone();
    plan.pools[1].cables[1][0].mtu = Some(9600);
    let error = Leaves::new(&plan, &pools, Some(&CUMULUS)).unwrap_err();
    let error = error.to_string();
    golden::says("plan", "--to nvue: ports with two cables", &error);
    for facts in [
        "node worker-gpu-62 in pool rail-0: …swp1s0 of leaf-su1-r1…node worker-gpu-0",
        "node worker-gpu-0 in pool rail-1: …swp1s0 of leaf-su1-r1…172.16.0.1/31",
        "node worker-gpu-62 in pool rail-1: …MTU 9600",
    ] {
        assert!(
            error.lines().any(|line| has(line, facts)),
            "{facts}: {error}"
        );
    }
}
