use super::*;
use crate::document;
use crate::plan::tests::lines;
use golden::has;
use proptest::prelude::*;
use std::collections::BTreeSet;

pub(super) fn plan_of(yaml: &str) -> Result<Plan, Vec<String>> {
    let [document] = &document::parse("fabric.yaml", yaml.as_bytes()).unwrap()[..] else {
        panic!("one")
    };
    let mut plan = plan(document.root(), 0).map_err(lines)?;
    plan.check().map_err(lines)?;
    Ok(plan)
}

fn of_files(files: &[&str]) -> Result<Plan, String> {
    let documents: Vec<_> = files
        .iter()
        .flat_map(|yaml| document::parse("fabric.yaml", yaml.as_bytes()).unwrap())
        .collect();
    read(&documents).map_err(|error| format!("{error:#}"))
}

#[test]
fn fabrics_of_one_node_have_rails_of_their_own() {
    const STORAGE: &str = "fabric: l3-p2p\naddress: 10.50.{rail}.{host*2}\npolarity: leaf-odd\nroutes: [10.50.0.0/16]\n\
        rails: 2\nsus: 1\nhostsPerSU: 2\nnodeName: w{node}\nhostInterface: sto{rail}\n";
    let compute = small("hostInterface: eth{rail}");
    let with = |more: &str| of_files(&[&compute, &format!("{STORAGE}{more}\n")]);
    let named = |plan: &Plan| -> Vec<(String, Option<u8>)> {
        plan.pools
            .iter()
            .map(|pool| (pool.name.clone(), pool.number()))
            .collect()
    };
    let mut plan = with("poolName: storage-{rail}").unwrap();
    let expected = [
        ("rail-0", 0),
        ("rail-1", 1),
        ("storage-0", 2),
        ("storage-1", 3),
    ];
    assert_eq!(
        named(&plan),
        expected.map(|(name, rail)| (name.to_owned(), Some(rail)))
    );
    plan.check().unwrap();
    assert!(
        !plan
            .warnings
            .iter()
            .any(|warning| warning.contains("of node w0")),
        "{:?}",
        plan.warnings
    );
    let plan = with("firstRail: 16").unwrap();
    assert_eq!(
        named(&plan)[2..],
        [
            ("rail-16".to_owned(), Some(16)),
            ("rail-17".to_owned(), Some(17))
        ]
    );
    let mut plan = with("firstRail: 1\npoolName: storage-{rail}").unwrap();
    plan.check().unwrap();
    assert!(
        plan.warnings
            .iter()
            .any(|warning| warning.contains("rail 1 of node w0"))
    );
    for (more, told) in [
        ("firstRail: 127", "firstRail: …128"),
        ("firstRail: 128", "firstRail: 128…0 to 127"),
        ("poolName: a/{rail}", "poolName: \"a/0\""),
    ] {
        let error = with(more).unwrap_err();
        assert!(has(&error, told), "{error}");
        golden::says("plan", &format!("fabric files: {more}"), error);
    }
    let error = of_files(&[&compute, &STORAGE.replace("sto{rail}", "eth{rail}")]).unwrap_err();
    assert!(error.contains("eth0 of w0"), "{error}");
    golden::says(
        "plan",
        "fabric files: another file",
        of_files(&[&compute, "a: 1\n"]).unwrap_err(),
    );
}

#[test]
fn patterns_have_rails_and_prefixes_as_hosts_have_them() {
    let of = |rails: u64, more: &str| {
        plan_of(&format!(
            "fabric: l3-p2p\naddress: 172.{{rail+16}}.{{host+1}}.0\nprefixLength: 24\nroutes: [\"172.{{rail+16}}.0.0/16\", 172.0.0.0/8]\n\
             sus: 1\nhostsPerSU: 2\nnodeName: n{{node}}\nrails: {rails}\n{more}\n"
        ))
    };
    let plan = of(16, "polarity: leaf-odd").unwrap();
    assert_eq!((plan.pools.len(), plan.pools[15].number()), (16, Some(15)));
    let link = |plan: &Plan| {
        let links = plan.pools[9].links().unwrap();
        (
            links[1].allocation.gateway.unwrap().to_string(),
            links[1].host.to_string(),
        )
    };
    assert_eq!(link(&plan), ("172.25.2.1".into(), "172.25.2.2".into()));
    assert_eq!(
        link(&of(16, "polarity: leaf-even").unwrap()),
        ("172.25.2.2".into(), "172.25.2.1".into())
    );
    assert!(of(33, "polarity: leaf-odd").unwrap_err()[0].contains("rails: 33 "));
    assert!(
        of(9, "polarity: leaf-odd\nmode: swplb\nplanes: 2").unwrap_err()[0].contains("rails: 9 ")
    );
}

/// Two rails, two SUs of two hosts, and what is added.
fn small(more: &str) -> String {
    format!("fabric: spectrum-x\nrails: 2\nsus: 2\nhostsPerSU: 2\nnodeName: w{{node}}\n{more}")
}

pub(super) fn rows(plan: &Plan, pool: usize) -> Vec<String> {
    let rows = plan.pools[pool].spec.static_allocations.iter();
    rows.map(|row| format!("{} {} {}", row.node_name, row.prefix, row.gateway))
        .collect()
}

/// A VRF's name has 15 characters, and only those that the plan makes must fit.
#[test]
fn the_name_of_a_vrf_is_as_long_as_the_fabric_makes_it() {
    let patterns = include_str!("../../../../conf/fabric-amd.yaml");
    let given = |more: &str| plan_of(&format!("{patterns}{more}\n"));
    let vrfs = |plan: Plan| -> BTreeSet<String> {
        plan.pools
            .iter()
            .flat_map(|pool| pool.cables.iter().flatten())
            .filter_map(|cable| cable.vrf.clone())
            .collect()
    };
    let made = vrfs(given("leafVrf: tenant-s{su}-h{host}").unwrap());
    assert!(
        made.contains("tenant-s0-h0") && made.iter().all(|name| name.len() <= 15),
        "{made:?}"
    );
    let faults = given("leafVrf: tenant-su{su}-host{host}").unwrap_err();
    assert!(
        faults[0].contains("leafVrf: ") && !faults[0].contains("65535"),
        "{faults:?}"
    );
    let faults = given("leafVrf: a-tenant-of-this-fabric").unwrap_err();
    assert!(
        faults[0].contains("leafVrf: \"a-tenant-of-this-fabric\""),
        "{faults:?}"
    );
}

/// The deployment that the project came from: 64 nodes, two SUs of 32, eight rails.
#[test]
fn the_example_is_the_deployment() {
    let plan = plan_of(include_str!("../../../../conf/fabric.yaml")).unwrap();
    assert_eq!(
        (plan.pools.len(), plan.nodes().len(), plan.warnings.len()),
        (8, 64, 0)
    );
    let rail = &plan.pools[0];
    assert_eq!(
        (rail.name.as_str(), rail.spec.cidr.as_str()),
        ("rail-0", "172.16.0.0/15")
    );
    let routes: Vec<_> = rail.spec.routes.iter().map(|to| to.dst.as_str()).collect();
    assert_eq!(routes, ["172.16.0.0/15", "172.16.0.0/12"]);
    assert_eq!(
        rows(&plan, 0)[62],
        "worker-gpu-62 172.16.1.60/31 172.16.1.61"
    );
    assert_eq!(
        rows(&plan, 7)[63],
        "worker-gpu-63 172.30.1.62/31 172.30.1.63"
    );
    let cable = Cable {
        interface: Some("eth_r0".into()),
        mtu: Some(9216),
        leaf: Some("leaf-su02-r1".into()),
        port: Some("swp16s0".into()),
        vrf: None,
        netplan: None,
    };
    assert_eq!(rail.cables[62], [cable]);
}

#[test]
fn every_mode_has_its_pools() {
    let shown = |more: &str| {
        let plan = plan_of(&small(more)).unwrap();
        let last = |pool: usize| rows(&plan, pool).pop().unwrap();
        let names: Vec<_> = plan.pools.iter().map(|pool| pool.name.clone()).collect();
        format!("{}: {}", names.join(" "), last(plan.pools.len() - 1))
    };
    for (more, expected) in [
        ("", "rail-0 rail-1: w3 172.18.1.2/31 172.18.1.3"),
        (
            "polarity: leaf-even\nfirstOctet: 10",
            "rail-0 rail-1: w3 10.18.1.2/31 10.18.1.2",
        ),
        (
            "mode: swplb\nplanes: 2",
            "rail-0-plane-0 rail-0-plane-1 rail-1-plane-0 rail-1-plane-1: w3 172.20.65.2/31 172.20.65.3",
        ),
        (
            "mode: hwplb\nplanes: 4",
            "rail-0 rail-1: w3 172.16.65.2/31 172.16.65.3",
        ),
        (
            "tiers: 3\npods: 2",
            "rail-0 rail-1: w7 10.33.1.2/31 10.33.1.3",
        ),
        (
            "tiers: 3\npods: 5\nmode: swplb\nplanes: 2",
            "rail-0-plane-0 rail-0-plane-1 rail-1-plane-0 rail-1-plane-1: w19 10.73.1.2/31 10.73.1.3",
        ),
        (
            "tiers: 3\npods: 2\nmode: hwplb\nplanes: 2",
            "rail-0 rail-1: w7 10.8.65.2/31 10.8.65.3",
        ),
        (
            "family: ipv6",
            "rail-0 rail-1: w3 fd02:0:100:101::/64 fd02:0:100:101::2",
        ),
        (
            "family: dual",
            "rail-0 rail-0-v6 rail-1 rail-1-v6: w3 fd02:0:100:101::/64 fd02:0:100:101::2",
        ),
    ] {
        assert_eq!(shown(more), expected, "{more}");
    }
}

/// One more SU in one pod; who is called by pod and SU keeps his address.
#[test]
fn pods_have_as_many_sus_as_they_have() {
    let of = |sus: &str, pods: &str| {
        let text = small(&format!("tiers: 3\n{pods}")).replace("sus: 2", sus);
        plan_of(&text.replace("w{node}", "p{pod}s{su}h{host}-{node}")).unwrap()
    };
    let plan = of("sus: [1, 3, 2]", "");
    assert_eq!(
        rows(&plan, 0),
        [
            "p0s0h0-0 10.0.0.0/31 10.0.0.1",
            "p0s0h1-1 10.0.0.2/31 10.0.0.3",
            "p1s0h0-2 10.1.0.0/31 10.1.0.1",
            "p1s0h1-3 10.1.0.2/31 10.1.0.3",
            "p1s1h0-4 10.1.1.0/31 10.1.1.1",
            "p1s1h1-5 10.1.1.2/31 10.1.1.3",
            "p1s2h0-6 10.1.2.0/31 10.1.2.1",
            "p1s2h1-7 10.1.2.2/31 10.1.2.3",
            "p2s0h0-8 10.2.0.0/31 10.2.0.1",
            "p2s0h1-9 10.2.0.2/31 10.2.0.3",
            "p2s1h0-10 10.2.1.0/31 10.2.1.1",
            "p2s1h1-11 10.2.1.2/31 10.2.1.3",
        ]
    );
    assert_eq!(
        rows(&of("sus: [2, 2]", ""), 1),
        rows(&of("sus: 2", "pods: 2"), 1)
    );
    assert_eq!(
        rows(&of("sus: [2, 2]", "pods: 2"), 1),
        rows(&of("sus: 2", "pods: 2"), 1)
    );
    let listed = "nodes:\n- {name: x, pod: 1, su: 2, host: 1}";
    let plan = of("sus: [1, 3]", listed);
    assert_eq!(rows(&plan, 0).last().unwrap(), "x 10.1.2.2/31 10.1.2.3");
    assert_eq!(plan.nodes().len(), 8);
}

/// With `hwplb` a NIC has all planes behind one netdev.
#[test]
fn cables_are_named_by_patterns() {
    let planes = "planes: 2\nleafName: leaf-p{plane+1}-su{su+1:03}-r{rail+1}\nleafPort: swp{host/2+1}s{host%2}\n";
    let hwplb = plan_of(&small(&format!(
        "mode: hwplb\n{planes}hostInterface: eth_r{{rail}}"
    )))
    .unwrap();
    let cables: Vec<_> = hwplb.pools[1].cables[3]
        .iter()
        .map(|cable| {
            let text = |text: &Option<String>| text.clone().unwrap();
            format!(
                "{} {} {}",
                text(&cable.interface),
                text(&cable.leaf),
                text(&cable.port)
            )
        })
        .collect();
    assert_eq!(
        cables,
        [
            "eth_r1 leaf-p1-su002-r2 swp1s1",
            "eth_r1 leaf-p2-su002-r2 swp1s1"
        ]
    );
    let listed =
        format!("mode: swplb\n{planes}hostInterface: [\"ens1f{{plane}}\", \"ens9f{{plane}}\"]");
    let swplb = plan_of(&small(&listed)).unwrap();
    assert_eq!(
        swplb.pools[3].cables[0][0].interface.as_deref(),
        Some("ens9f1")
    );
    assert_eq!(plan_of(&small("")).unwrap().pools[0].cables[0], []);
}

#[test]
fn the_list_of_nodes_wins_over_the_pattern() {
    let listed = "nodes:\n- {name: other, su: 0, host: 1}\n- {name: w2, su: 3, host: 127}\n";
    let faults = plan_of(&small(listed)).unwrap_err();
    assert!(
        faults.len() == 1 && has(&faults[0], "fabric.yaml:8: nodes[1].su: 3 …0 to 1"),
        "{faults:?}"
    );
    let listed = "nodes:\n- {name: other, su: 0, host: 1}\n- {name: w2, su: 1, host: 127}\n";
    let plan = plan_of(&small(listed)).unwrap();
    assert_eq!(
        rows(&plan, 0),
        [
            "w0 172.16.0.0/31 172.16.0.1",
            "other 172.16.0.2/31 172.16.0.3",
            "w3 172.16.1.2/31 172.16.1.3",
            "w2 172.16.1.254/31 172.16.1.255"
        ]
    );
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    let swapped = "nodes:\n- {name: w1, su: 1, host: 1}\n- {name: w3, su: 0, host: 1}\n";
    let plan = plan_of(&small(swapped)).unwrap();
    assert_eq!(rows(&plan, 0)[1], "w3 172.16.0.2/31 172.16.0.3");
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    let moved = plan_of(&small("nodes:\n- {name: w1, su: 1, host: 1}\n")).unwrap();
    golden::says(
        "plan",
        "fabric file: a node on the place of another",
        moved.warnings.join("\n"),
    );
    assert!(
        moved.warnings.len() == 1
            && has(&moved.warnings[0], "fabric.yaml:7: nodes[0]: node w1 … w3")
    );
}

#[test]
fn a_list_of_nodes_needs_no_pattern() {
    let plan = plan_of(
        "fabric: spectrum-x\ntiers: 3\nrails: 1\nnodes:\n\
         - {name: alpha.example, pod: 1, su: 0, host: 0}\n- {name: beta, pod: 0, su: 255, host: 127}\n",
    );
    let plan = plan.unwrap();
    assert_eq!(
        rows(&plan, 0),
        [
            "beta 10.0.255.254/31 10.0.255.255",
            "alpha.example 10.1.0.0/31 10.1.0.1"
        ]
    );
}

#[test]
fn every_fault_is_told_with_line_and_key() {
    let without = |key: &str| -> String {
        small("")
            .lines()
            .filter(|line| !line.starts_with(key))
            .map(|line| format!("{line}\n"))
            .collect()
    };
    let mut said = Vec::new();
    for (yaml, told) in [
        (small("tires: 3"), "fabric.yaml:6: tires:…tiers?"),
        (small("colour: red"), "fabric.yaml:6: colour:"),
        (small("tiers: 4"), "fabric.yaml:6: tiers:…2 or 3"),
        (small("tiers: two"), "fabric.yaml:6: tiers:…\"two\"…u64"),
        (small("mode: both"), "fabric.yaml:6: mode:…`both`…`none`…`swplb`"),
        (small("mode: swplb"), "fabric.yaml:1: planes:…1 to 4"),
        (small("mode: swplb\nplanes: 5"), "fabric.yaml:7: planes:…1 to 4"),
        (small("planes: 2"), "fabric.yaml:6: planes:"),
        (small("family: ipx"), "fabric.yaml:6: family:…`ipx`"),
        (small("firstOctet: 224"), "fabric.yaml:6: firstOctet: 224…127…1 to 223"),
        (small("firstOctet: 127"), "fabric.yaml:6: firstOctet: 127…127…1 to 223"),
        (small("polarity: odd"), "fabric.yaml:6: polarity:…`odd`"),
        (small("pods: 2"), "fabric.yaml:6: pods:"),
        (small("").replace("sus: 2", "sus: [2, 2]"), "fabric.yaml:3: sus:"),
        (small("").replace("sus: 2", "sus: []"), "fabric.yaml:3: sus:"),
        (
            small("tiers: 3\npods: 3").replace("sus: 2", "sus: [2, 2]"),
            "fabric.yaml:3: sus:",
        ),
        (small("tiers: 3").replace("sus: 2", "sus: [2, 0]"), "fabric.yaml:3: sus[1]:…1 to 256"),
        (small("tiers: 3").replace("sus: 2", "sus: [2, ~]"), "fabric.yaml:3: sus[1]:…1 to 256"),
        (small("clusterNetworks: [10.96.0.1/12]"), "fabric.yaml:6: clusterNetworks[0]: 10.96.0.1/12"),
        (small("clusterNetworks: 10.96.0.0/12"), "fabric.yaml:6: clusterNetworks:"),
        (
            small("nodes:\n- {name: x, su: 2, host: 0}"),
            "fabric.yaml:7: nodes[0].su:…0 to 1",
        ),
        (
            small("tiers: 3\npods: 2\nnodes:\n- {name: x, pod: 2, su: 0, host: 0}"),
            "fabric.yaml:9: nodes[0].pod:…0 to 1",
        ),
        (
            small("tiers: 3\nnodes:\n- {name: x, pod: 1, su: 2, host: 0}").replace("sus: 2", "sus: [3, 2]"),
            "fabric.yaml:8: nodes[0].su:…0 to 1",
        ),
        (
            small("nodes:\n- {name: x, pod: 1, su: 0, host: 0}"),
            "fabric.yaml:7: nodes[0].pod:",
        ),
        (small("mtu: 900"), "fabric.yaml:6: mtu: 900…1280 to 65535"),
        (small("nodes: w1"), "fabric.yaml:6: nodes:"),
        (small("nodes: [w1]"), "fabric.yaml:6: nodes[0]:"),
        (small("nodes:\n- {nome: w1, su: 0, host: 0}"), "fabric.yaml:7: nodes[0].nome:…name?"),
        (small("nodes:\n- {su: 0, host: 0}"), "fabric.yaml:7: nodes[0].name:"),
        (small("nodes:\n- {name: x, host: 0}"), "fabric.yaml:7: nodes[0].su:…0 to 63"),
        (small("nodes:\n- {name: x, su: 64, host: 0}"), "fabric.yaml:7: nodes[0].su: 64…0 to 63"),
        (small("nodes:\n- {name: x, su: 0, host: -1}"), "fabric.yaml:7: nodes[0].host:"),
        (small("nodes:\n- {name: ../x, su: 0, host: 0}"), "fabric.yaml:7: nodes[0].name: \"../x\""),
        (
            small("nodes:\n- {name: x, su: 0, host: 0}\n- {name: x, su: 0, host: 1}"),
            "fabric.yaml:8: nodes[1].name:…nodes[0]",
        ),
        (
            small("nodes:\n- {name: x, su: 0, host: 0}\n- {name: y, su: 0, host: 0}"),
            "fabric.yaml:8: nodes[1]:…nodes[0]",
        ),
        (small("tiers: 3\nnodes:\n- {name: x, su: 0, host: 0}"), "nodes[0].pod:…0 to 31"),
        (small("hostInterface: eth{rial}"), "hostInterface: {rial}…{rail}…{plane}…rail?"),
        (small("hostInterface: eth0"), "fabric.yaml:6: hostInterface: eth0"),
        (small("hostInterface: [eth0]"), "fabric.yaml:6: hostInterface:"),
        (small("hostInterface:\n- eth0\n- {}"), "fabric.yaml:8: hostInterface[1]:"),
        (small("hostInterface: eth {rail}"), "fabric.yaml:6: hostInterface: \"eth 0\""),
        (small("leafName: leaf/{su}"), "fabric.yaml:6: leafName: \"leaf/0\""),
        (small("leafPort: swp{host}; reboot"), "fabric.yaml:6: leafPort: \"swp0…reboot\""),
        (
            small("leafPort: swp{host}\nleafName: leaf-{su}"),
            "fabric.yaml:7:…w0…swp0…leaf-0",
        ),
        (
            small("leafPort: swp{host}\nleafName: leaf-{rail}\nnodes: [{name: x, su: 0, host: 0}]"),
            "w3…swp1…leaf-0…fabric.yaml:7…w1",
        ),
        (small("").replace("w{node}", "w{name}"), "fabric.yaml:5: nodeName: {name}…{node}…{pod}"),
        (small("").replace("w{node}", "w{"), "fabric.yaml:5: nodeName: \"w{\""),
        (small("").replace("w{node}", "../w{node}"), "fabric.yaml:5: nodeName: \"../w0\""),
        (
            small("").replace("w{node}", "w{host}"),
            "fabric.yaml:5: nodeName:…w0",
        ),
        (small("").replace("spectrum-x", "ib"), "fabric.yaml:1: fabric:…`ib`…`spectrum-x`…`l3-p2p`…`unnumbered`"),
        (small("").replace("rails: 2", "rails: 9"), "fabric.yaml:2: rails:…1 to 8"),
        (small("").replace("rails: 2", "rails: 0"), "fabric.yaml:2: rails:…1 to 8"),
        (small("").replace("sus: 2", "sus: 65"), "fabric.yaml:3: sus: 65…1 to 64"),
        (small("").replace("hostsPerSU: 2", "hostsPerSU: 129"), "fabric.yaml:4: hostsPerSU: 129…1 to 128"),
        (small("tiers: 3\npods: 33"), "fabric.yaml:7: pods: 33…1 to 32"),
        (without("rails"), "fabric.yaml:1: rails:…1 to 8"),
        (without("sus"), "fabric.yaml:1: sus:…1 to 64"),
        (without("nodeName"), "fabric.yaml:3: sus:"),
        ("fabric: spectrum-x\nrails: 1".into(), "nodeName:"),
        (
            "fabric: spectrum-x\nrails: 8\ntiers: 3\nfamily: ipv6\npods: 256\nsus: 256\nhostsPerSU: 256\nnodeName: w{node}".into(),
            "fabric.yaml:1: 16777216…8388608",
        ),
        ("- fabric".into(), "fabric.yaml:1:"),
    ] {
        let faults = plan_of(&yaml).unwrap_err();
        assert!(faults.iter().any(|fault| has(fault, told)), "{told}: {faults:#?}");
        said.extend(faults);
    }
    golden::says("plan", "fabric file: faults", said.join("\n"));
}

/// The value of a bad key is unknown, and nothing that depends on it is a fault.
#[test]
fn a_fault_makes_no_second_one() {
    let listed = "fabric: spectrum-x\nrails: 1\n";
    for yaml in [
        format!("{listed}nodes:\n- {{name: ../x, su: 0, host: 0}}"),
        format!("{listed}nodes: w1"),
        format!("{listed}nodes:\n- {{nome: x, su: 0, host: 0}}"),
        format!("{listed}nodes:\n- {{name: x, sus: 0, host: 0}}"),
        format!("{listed}tiers: 4\nnodes:\n- {{name: x, su: 200, host: 0}}"),
        small("tiers: 4\npods: 2"),
        small("mode: both\nplanes: 2"),
        small("mod: swplb\nplanes: 2"),
        small("family: ipx").replace("sus: 2", "sus: 100"),
        small("hostInterface: [a, b, c]").replace("rails: 2", "rails: 9"),
        small("").replace("rails", "rials"),
        small("").replace("nodeName", "nodename"),
        small("nodes:\n- {name: x, replaces: w9}").replace("w{node}", "w{"),
        small("nodes:\n- {name: x, replaces: ../w}"),
        small("nodes:\n- {name: x, replaces: w3}").replace("sus: 2", "sus: 0"),
        small("nodes:\n- {name: x, su: 0, host: 0}\n- {name: x, su: 0, host: 0}"),
        small("family: dual\nleafName: l{rail}\nleafPort: p"),
    ] {
        let faults = plan_of(&yaml).unwrap_err();
        let count = if yaml.contains("leafPort: p") { 6 } else { 1 };
        assert_eq!(faults.len(), count, "{yaml}: {faults:#?}");
    }
}

#[test]
fn all_faults_are_told_at_once() {
    let faults = plan_of(
        "fabric: spectrum-x\ntiers: 5\nrails: 9\nsus: 0\nhostsPerSU: 999\nnodeName: '{x}'\nmtu: 1",
    )
    .unwrap_err();
    let keys: Vec<_> = faults
        .iter()
        .filter_map(|fault| fault.split(": ").nth(1))
        .collect();
    assert_eq!(keys.len(), 4, "{faults:#?}");
    for key in ["tiers", "rails", "nodeName", "mtu"] {
        assert!(keys.contains(&key), "{key}: {faults:#?}");
    }
}

proptest! {
    #[test]
    fn no_fabric_makes_it_panic(
        lines in proptest::collection::vec(
            ("(tiers|mode|planes|family|rails|pods|sus|hostsPerSU|nodeName|nodes|leafName|leafPort|hostInterface|mtu|clusterNetworks|address|gateway|routes|polarity|prefixLength|leafVrf|x)",
             "([0-9]{1,3}|-1|1e9|18446744073709551615|none|swplb|ipv6|'w\\{(node|host|rail)[+*/%0-9]{0,3}\\}'|\\[[0-9,]{0,4}\\]|\\[\\{name: a, su: [0-9], host: [0-9]{1,3}\\}\\]|\\{\\}|~|leaf-even|127|'(10|fd00:)[.:+{}a-z*0-9]{0,12}'|\\['10.0.0.0/[0-9]{1,2}'\\])"),
            0..16),
    ) {
        let mut seen = std::collections::BTreeMap::new();
        seen.extend(lines);
        let text: String = seen.iter().map(|(key, value)| format!("{key}: {value}\n")).collect();
        for kind in ["spectrum-x", "l3-p2p", "unnumbered"] {
            let text = format!("fabric: {kind}\n{text}");
            let documents = document::parse("f", text.as_bytes()).unwrap_or_default();
            let _ = read(&documents);
        }
    }
}
