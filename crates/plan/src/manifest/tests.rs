use super::*;
use crate::document;
use crate::plan::Cable;
use crate::scheme::{Family, HostLink, Mode, Polarity, Scheme, Tiers};
use proptest::prelude::*;

fn read_text(text: &str) -> Result<Plan> {
    read(&document::parse("pools", text.as_bytes())?)
}

fn written(plan: &Plan) -> String {
    plan.pools
        .iter()
        .map(|pool| format!("---\n{}", super::text(pool, &ports(pool))))
        .collect()
}

/// The rail of the deployment that the project came from, as NVIDIA's script made it there.
#[test]
fn the_published_pool_reads_as_planned_and_writes_as_read() {
    let text = std::fs::read_to_string("../../conf/pools/spectrum-x.yaml").unwrap();
    let plan = read_text(&text).unwrap();
    let again = read_text(&written(&plan)).unwrap();
    assert_eq!(written(&plan), written(&again));
    for (ours, theirs) in plan.pools.iter().zip(&again.pools) {
        assert_eq!(ours.spec, theirs.spec);
    }
}

#[test]
fn a_pool_that_nv_ipam_filled_becomes_a_plan() {
    let text = "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata: {name: r, namespace: n}\n\
        spec: {cidr: 10.0.0.0/8, perNodeNetworkPrefix: 31, gatewayIndex: 1, nodeSelector: {a: [b]}, \
        staticAllocations: [{nodeName: b, prefix: 10.0.0.2/31}]}\n\
        status: {allocations: [{nodeName: a, prefix: 10.0.0.0/31, gateway: 10.0.0.1}, \
        {nodeName: b, prefix: 10.0.0.2/31, gateway: 10.0.0.3}]}\n";
    let plan = read_text(text).unwrap();
    assert_eq!(
        written(&plan),
        "---\napiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata:\n  name: r\n  namespace: \"n\"\n\
         spec:\n  cidr: 10.0.0.0/8\n  gatewayIndex: 1\n  perNodeNetworkPrefix: 31\n  nodeSelector: {\"a\":[\"b\"]}\n  \
         staticAllocations:\n  - nodeName: a\n    prefix: 10.0.0.0/31\n    gateway: 10.0.0.1\n  - nodeName: b\n    \
         prefix: 10.0.0.2/31\n"
    );
}

/// Operators write the same into each pool.
#[test]
fn warnings_that_all_pools_have_are_one_line() {
    let pool = |rail: u8| {
        format!(
            "---\napiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata: {{name: r{rail}}}\nspec: {{cidr: 10.{rail}.0.0/16, \
             perNodeNetworkPrefix: 31, nodeSelector: {{a: [b]}}, staticAllocations: [{{nodeName: b, prefix: 10.{rail}.0.2/31}}]}}\n"
        )
    };
    let plan = read_text(&(0..10).map(pool).collect::<String>()).unwrap();
    let [warning] = &plan.warnings[..] else {
        panic!("{:?}", plan.warnings)
    };
    assert!(
        warning.starts_with("pools:5: CIDRPool r0: spec.nodeSelector: "),
        "{warning}"
    );
    assert!(warning.contains("9 others"), "{warning}");
}

#[test]
fn a_number_of_a_rail_that_is_none_is_refused_with_its_line() {
    let text = |rail: &str| {
        format!(
            "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata:\n  name: r\n  annotations:\n    \
             rail-cni/rail: {rail}\nspec: {{cidr: 10.0.0.0/8, perNodeNetworkPrefix: 31,\n  \
             staticAllocations: [{{nodeName: b, prefix: 10.0.0.2/31}}]}}\n"
        )
    };
    assert_eq!(read_text(&text("\"7\"")).unwrap().pools[0].rail, Some(7));
    for bad in [
        "7",
        "\"x\"",
        "\"256\"",
        "[]",
        "\"128\"",
        "\"120\"\n    rail-cni/plane: \"1\"",
    ] {
        let error = read_text(&text(bad)).unwrap_err().to_string();
        assert!(
            error.starts_with("pools:6: CIDRPool r: metadata.annotations.rail-cni/rail: "),
            "{error}"
        );
    }
    assert_eq!(
        read_text(&text("\"119\"\n    rail-cni/plane: \"1\""))
            .unwrap()
            .pools[0]
            .number(),
        Some(127)
    );
}

/// Both networks would have the same routing table and metric in a pod.
#[test]
fn two_pools_of_a_node_with_the_same_rail_are_told() {
    let pool = |name: &str, rail: &str, prefix: &str, node: &str| {
        format!(
            "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata:\n  name: {name}\n  annotations: \
             {{{rail}}}\nspec: {{cidr: {prefix}, perNodeNetworkPrefix: {bits},\n  staticAllocations: \
             [{{nodeName: {node}, prefix: {prefix}}}]}}\n---\n",
            bits = prefix.split('/').next_back().unwrap(),
        )
    };
    let third = "rail-cni/rail: \"3\"";
    let told = |other: String| {
        let mut plan = read_text(&(pool("one", third, "10.0.0.0/31", "b") + &other)).unwrap();
        plan.check().unwrap();
        plan.warnings
            .iter()
            .filter(|warning| warning.contains("rail 3 of node b"))
            .cloned()
            .collect::<Vec<_>>()
    };
    let same = told(pool("two", third, "10.0.0.2/31", "b"));
    assert!(
        same.len() == 1 && same[0].contains("one") && same[0].contains("two"),
        "{same:?}"
    );
    golden::says("plan", "CIDRPools: two of one rail", &same[0]);
    for (rail, prefix, node) in [
        (third, "10.0.0.2/31", "c"),
        (third, "fd00::/127", "b"),
        ("rail-cni/rail: \"4\"", "10.0.0.2/31", "b"),
        ("", "10.0.0.2/31", "b"),
    ] {
        assert!(
            told(pool("two", rail, prefix, node)).is_empty(),
            "{rail} {prefix} {node}"
        );
    }
}

/// `kubectl apply` of 3,072 nodes passed on a cluster, and failed with 3,200.
#[test]
fn pools_that_kubectl_alone_cannot_apply_are_told() {
    let warnings = |sus: u64| {
        let text = format!(
            "fabric: spectrum-x\nrails: 2\nsus: {sus}\nhostsPerSU: 128\nnodeName: worker-gpu-{{node}}\n\
             leafName: leaf-{{su}}-{{rail}}\nleafPort: swp{{host+1}}\n"
        );
        let mut plan =
            crate::fabric::read(&document::parse("f", text.as_bytes()).unwrap()[..1]).unwrap();
        let files = write(&mut plan, None).unwrap();
        let has_ports = files.iter().all(|file| file.text.contains(LEAF_PORTS));
        (has_ports, plan.warnings)
    };
    assert_eq!(warnings(8), (true, vec![]));
    let (has_ports, told) = warnings(24);
    assert!(!has_ports && told.len() == 1, "{told:?}");
    assert!(
        told[0].contains("rail-cni/leaf-ports") && told[0].contains("rail-0; rail-1: "),
        "{told:?}"
    );
    golden::says("plan", "CIDRPools: too many leaf ports", &told[0]);
    let (has_ports, told) = warnings(25);
    // The API server takes what kubectl has no room for.
    assert!(has_ports);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].contains("kubectl apply") && told[0].contains("rail-0; rail-1: "),
        "{told:?}"
    );
    assert!(told[0].contains("--server-side"), "{told:?}");
}

#[test]
fn a_namespace_takes_precedence_over_that_of_the_source() {
    let text = std::fs::read_to_string("../../conf/pools/spectrum-x.yaml").unwrap();
    let namespaces = |given| {
        let mut plan = read_text(&text).unwrap();
        let files = write(&mut plan, given).unwrap();
        let found = |file: &File| {
            document::parse("f", file.text.as_bytes()).unwrap()[0]
                .root()
                .text("metadata.namespace")
                .map(str::to_owned)
        };
        files
            .iter()
            .map(|file| found(file).unwrap())
            .collect::<HashSet<_>>()
    };
    assert_eq!(namespaces(None), HashSet::from([NAMESPACE.to_owned()]));
    assert_eq!(
        namespaces(Some("rails")),
        HashSet::from(["rails".to_owned()])
    );
}

proptest! {
    /// Plan, manifests, plan: nothing is lost, and what nv-ipam's rules refuse is never written.
    #[test]
    fn manifests_carry_the_whole_plan(
        spots in proptest::collection::btree_set((0u64..4, 0u64..8, 0u64..4, 0u64..8), 1..40),
        three in any::<bool>(), mode in 0..3usize, family in 0..3usize, even in any::<bool>(),
    ) {
        let scheme = Scheme {
            tiers: if three { Tiers::Three } else { Tiers::Two },
            mode: [Mode::None, Mode::Swplb, Mode::Hwplb][mode],
            family: [Family::Ipv4, Family::Ipv6, Family::Dual][family],
            first_octet: 172,
            polarity: if even { Polarity::LeafEven } else { Polarity::LeafOdd },
        };
        let links = spots.iter().map(|(plane, rail, su, host)| HostLink {
            node_name: format!("n{su}-{host}.True"), plane: *plane, rail: *rail, pod: 0, su: *su, host: *host,
            cable: Cable::default(),
        });
        let mut plan = scheme.plan(links, &crate::plan::tests::origin).unwrap();
        plan.check().unwrap();
        let again = read_text(&written(&plan)).unwrap();
        prop_assert_eq!(plan.pools.len(), again.pools.len());
        for (ours, theirs) in plan.pools.iter().zip(&again.pools) {
            prop_assert_eq!(&ours.spec, &theirs.spec);
            prop_assert_eq!((&ours.name, ours.rail, ours.plane), (&theirs.name, theirs.rail, theirs.plane));
        }
        prop_assert_eq!(written(&plan), written(&again));
    }

    #[test]
    fn every_text_is_read_as_the_text_it_was(text in "[ -~]{1,20}") {
        let document = document::parse("t", format!("a: {}\n", scalar(&text)).as_bytes()).unwrap();
        prop_assert_eq!(document[0].root().text("a"), Some(text.as_str()));
    }
}
