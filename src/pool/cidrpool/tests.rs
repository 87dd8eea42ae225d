use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn plan(spec: Value) -> Result<Plan, Vec<Fault>> {
    serde_json::from_value::<Spec>(spec)
        .unwrap()
        .plan("spec", &[], Wanted::All)
}

fn with(change: impl Fn(&mut Value)) -> Value {
    let mut spec = json!({
        "cidr": "172.16.0.0/15", "gatewayIndex": 0, "perNodeNetworkPrefix": 31,
        "routes": [{"dst": "172.16.0.0/15"}, {"dst": "172.16.0.0/12"}],
        "staticAllocations": [
            {"nodeName": "worker-gpu-62", "prefix": "172.16.1.60/31", "gateway": "172.16.1.61"},
            {"nodeName": "worker-gpu-63", "prefix": "172.16.1.62/31", "gateway": "172.16.1.63"},
            {"prefix": "172.16.1.0/31"}],
    });
    change(&mut spec);
    spec
}

#[test]
fn the_deployment_gets_what_it_was_planned() {
    let plan = plan(with(|_| ())).unwrap();
    assert_eq!(
        plan.allocations.keys().collect::<Vec<_>>(),
        ["worker-gpu-62", "worker-gpu-63"]
    );
    let ours = &plan.allocations["worker-gpu-62"];
    assert_eq!(ours.gateway.unwrap().to_string(), "172.16.1.61");
    assert_eq!(
        ours.first_free(|_| false).unwrap().to_string(),
        "172.16.1.60"
    );
    let routes: Vec<_> = ours.routes.iter().map(|to| to.dst.to_string()).collect();
    assert_eq!(routes, ["172.16.0.0/15", "172.16.0.0/12"]);
    assert!(plan.warnings.is_empty());
}

#[test]
fn without_a_gateway_of_its_own_a_row_has_that_of_the_index() {
    let spec = |index: u32, prefix: &str| {
        json!({"cidr": "10.0.0.0/8", "gatewayIndex": index, "perNodeNetworkPrefix": 24,
            "staticAllocations": [{"nodeName": "n", "prefix": prefix}]})
    };
    let gateway = |spec| {
        plan(spec).unwrap().allocations["n"]
            .gateway
            .unwrap()
            .to_string()
    };
    assert_eq!(gateway(spec(1, "10.0.7.0/24")), "10.0.7.1");
    assert_eq!(gateway(spec(254, "10.0.7.0/24")), "10.0.7.254");
    assert!(plan(spec(0, "10.0.7.0/24")).is_err());
    assert!(plan(spec(255, "10.0.7.0/24")).is_err());
}

#[test]
fn every_fault_is_told_with_its_place() {
    type Change<'a> = &'a dyn Fn(&mut Value);
    let cases: [(&str, Change<'_>); 21] = [
        ("spec.cidr: 172.16.0.1/15…172.16.0.0/15", &|v| {
            v["cidr"] = json!("172.16.0.1/15")
        }),
        ("spec.cidr: \"x\"", &|v| v["cidr"] = json!("x")),
        ("spec.perNodeNetworkPrefix: 14…15 to 32", &|v| {
            v["perNodeNetworkPrefix"] = json!(14)
        }),
        ("spec.perNodeNetworkPrefix: -1", &|v| {
            v["perNodeNetworkPrefix"] = json!(-1)
        }),
        ("spec.gatewayIndex:", &|v| v["gatewayIndex"] = json!(2)),
        ("spec.gatewayIndex: -1", &|v| v["gatewayIndex"] = json!(-1)),
        ("spec.routes:", &|v| v["gatewayIndex"] = json!(null)),
        ("spec.routes[1].dst: \"x\"", &|v| {
            v["routes"][1]["dst"] = json!("x")
        }),
        ("spec.routes[0].dst: fd00::/8", &|v| {
            v["routes"][0]["dst"] = json!("fd00::/8")
        }),
        ("staticAllocations[0].prefix: 172.16.1.61/31", &|v| {
            v["staticAllocations"][0]["prefix"] = json!("172.16.1.61/31");
        }),
        ("[0].prefix: 10.0.0.0/31", &|v| {
            v["staticAllocations"][0]["prefix"] = json!("10.0.0.0/31")
        }),
        ("[0].prefix: 172.16.1.60/30", &|v| {
            v["staticAllocations"][0]["prefix"] = json!("172.16.1.60/30")
        }),
        ("[0].prefix: fd00::/31", &|v| {
            v["staticAllocations"][0]["prefix"] = json!("fd00::/31")
        }),
        ("[0].gateway: 172.16.1.63", &|v| {
            v["staticAllocations"][0]["gateway"] = json!("172.16.1.63")
        }),
        ("[0].gateway: \"x\"…IP", &|v| {
            v["staticAllocations"][0]["gateway"] = json!("x")
        }),
        ("[1].nodeName:…worker-gpu-62", &|v| {
            v["staticAllocations"][1]["nodeName"] = json!("worker-gpu-62")
        }),
        ("[2].prefix: 172.16.1.60/31", &|v| {
            v["staticAllocations"][2]["prefix"] = json!("172.16.1.60/31")
        }),
        ("[0].nodeName: \"../x\"", &|v| {
            v["staticAllocations"][0]["nodeName"] = json!("../x")
        }),
        ("exclusions[0]: endIP", &|v| {
            v["exclusions"] = json!([{"startIP": "172.16.0.9", "endIP": "172.16.0.8"}])
        }),
        ("exclusions[0].endIP: 10.0.0.1", &|v| {
            v["exclusions"] = json!([{"startIP": "172.16.0.9", "endIP": "10.0.0.1"}])
        }),
        ("perNodeExclusions[0]:…0 to 2", &|v| {
            v["perNodeExclusions"] = json!([{"startIndex": 0, "endIndex": 2}])
        }),
    ];
    let mut said = Vec::new();
    for (expected, change) in cases {
        let faults = plan(with(change)).unwrap_err();
        let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert!(
            faults.iter().any(|fault| golden::has(fault, expected)),
            "{expected}: {faults:?}"
        );
        said.extend(faults);
    }
    golden::says("plugins", "a pool: faults", said.join("\n"));
}

#[test]
fn a_fault_makes_no_second_one() {
    let told = |spec: Value, status: Value| -> Vec<String> {
        let status: Vec<Row> = serde_json::from_value(status).unwrap();
        let faults = serde_json::from_value::<Spec>(spec)
            .unwrap()
            .plan("spec", &status, Wanted::All)
            .unwrap_err();
        faults.iter().map(ToString::to_string).collect()
    };
    let twice = with(|v| v["staticAllocations"][1] = v["staticAllocations"][0].clone());
    let faults = told(twice, json!([]));
    assert!(
        faults.len() == 1 && faults[0].starts_with("spec.staticAllocations[1]: "),
        "{faults:?}"
    );
    for part in ["worker-gpu-62", "172.16.1.60/31", "staticAllocations[0]"] {
        assert!(faults[0].contains(part), "{part}: {faults:?}");
    }
    // The former prefix of a node with a bad row is not compared with gatewayIndex.
    let bad = with(|v| v["staticAllocations"][0]["prefix"] = json!("172.16.1.61/31"));
    let status = json!([{"nodeName": "worker-gpu-62", "prefix": "172.16.1.60/31", "gateway": "172.16.1.61"}]);
    assert_eq!(told(bad, status).len(), 1);
}

#[test]
fn two_spellings_of_a_prefix_are_the_same_prefix() {
    let faults = plan(
        json!({"cidr": "fd00::/64", "perNodeNetworkPrefix": 127, "staticAllocations": [
        {"nodeName": "a", "prefix": "fd00::/127"}, {"nodeName": "b", "prefix": "fd00:0:0::/127"}]}),
    );
    assert!(
        faults.unwrap_err()[0]
            .to_string()
            .contains("staticAllocations[0]")
    );
}

#[test]
fn a_row_without_an_address_for_a_pod_is_refused() {
    let swapped = with(|v| {
        v["perNodeExclusions"] = json!([{"startIndex": 1, "endIndex": 1}]);
        v["staticAllocations"][0]["gateway"] = json!("172.16.1.60");
    });
    assert!(
        plan(swapped).unwrap_err()[0]
            .to_string()
            .contains("172.16.1.60/31")
    );
    let only = json!({"cidr": "10.0.0.0/24", "perNodeNetworkPrefix": 32,
        "staticAllocations": [{"nodeName": "a", "prefix": "10.0.0.1/32", "gateway": "10.0.0.1"}]});
    let fault = plan(only).unwrap_err()[0].to_string();
    golden::says("plugins", "a prefix without an address for pods", &fault);
    assert!(fault.contains("10.0.0.1/32"), "{fault}");
}

#[test]
fn default_routes_are_left_out_with_a_warning() {
    let plan = plan(with(|v| {
        v["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "172.16.9.9/12"}]);
        v["defaultGateway"] = json!(true);
    }));
    let plan = plan.unwrap();
    assert_eq!(
        plan.allocations["worker-gpu-62"].routes,
        [To {
            dst: "172.16.0.0/12".parse().unwrap()
        }]
    );
    assert_eq!(plan.warnings.len(), 3);
}

#[test]
fn exclusions_are_cut_to_the_node_and_merged() {
    let plan = plan(
        json!({"cidr": "10.0.0.0/16", "perNodeNetworkPrefix": 24, "exclusions": [
        {"startIP": "10.0.0.0", "endIP": "10.0.1.9"}, {"startIP": "10.0.1.5", "endIP": "10.0.1.19"},
        {"startIP": "10.0.9.0", "endIP": "10.0.9.1"}],
        "perNodeExclusions": [{"startIndex": 20, "endIndex": 29}, {"startIndex": 200, "endIndex": 255}],
        "staticAllocations": [{"nodeName": "a", "prefix": "10.0.1.0/24"}]}),
    );
    let exclusions = &plan.unwrap().allocations["a"].exclusions;
    let shown: Vec<_> = exclusions
        .iter()
        .map(|range| format!("{}-{}", range.start, range.end))
        .collect();
    assert_eq!(shown, ["10.0.1.0-10.0.1.29", "10.0.1.200-10.0.1.255"]);
}

#[test]
fn a_plan_has_the_allocations_that_are_wanted_and_the_faults_of_all_rows() {
    let plan = |change: &dyn Fn(&mut Value), wanted| {
        serde_json::from_value::<Spec>(with(change))
            .unwrap()
            .plan("spec", &[], wanted)
    };
    let all = plan(&|_| (), Wanted::All).unwrap().allocations;
    let one = plan(&|_| (), Wanted::Node("worker-gpu-63"))
        .unwrap()
        .allocations;
    assert_eq!(
        one.into_iter().collect::<Vec<_>>(),
        [all.into_iter().nth(1).unwrap()]
    );
    for wanted in [Wanted::None, Wanted::Node("worker-gpu-6")] {
        assert!(plan(&|_| (), wanted).unwrap().allocations.is_empty());
        let faults = plan(
            &|v| v["staticAllocations"][0]["prefix"] = json!("x"),
            wanted,
        )
        .unwrap_err();
        assert_eq!(faults.len(), 1, "{faults:?}");
    }
}

/// The takeover of a running cluster.
#[test]
fn what_nv_ipam_chose_by_itself_is_taken_from_the_status() {
    let spec = with(|v| v["gatewayIndex"] = json!(1));
    let spec: Spec = serde_json::from_value(spec).unwrap();
    let rows = |rows: Value| -> Vec<Row> { serde_json::from_value(rows).unwrap() };
    let status = rows(
        json!([{"nodeName": "w", "prefix": "172.16.9.0/31", "gateway": "172.16.9.1"},
        {"nodeName": "worker-gpu-62", "prefix": "172.16.1.60/31", "gateway": "172.16.1.61"},
        {"nodeName": "worker-gpu-63", "prefix": "172.16.7.0/31", "gateway": "172.16.7.1"}]),
    );
    let plan = spec.plan("spec", &status, Wanted::All).unwrap();
    assert_eq!(plan.allocations.len(), 3);
    assert_eq!(plan.allocations["w"].prefix.to_string(), "172.16.9.0/31");
    assert_eq!(
        plan.allocations["worker-gpu-63"].prefix.to_string(),
        "172.16.1.62/31"
    );
    for bad in [
        json!([{"nodeName": "w", "prefix": "172.16.9.0/31", "gateway": "172.16.9.0"}]),
        json!([{"nodeName": "w", "prefix": "172.16.1.0/31", "gateway": "172.16.1.1"}]),
        json!([{"prefix": "172.16.9.0/31", "gateway": "172.16.9.1"}]),
        json!([{"nodeName": "w", "prefix": "172.16.9.0/31", "gateway": "172.16.9.1"},
            {"nodeName": "w", "prefix": "172.16.9.2/31", "gateway": "172.16.9.3"}]),
    ] {
        assert!(
            spec.plan("spec", &rows(bad.clone()), Wanted::All).is_err(),
            "{bad}"
        );
    }
}

proptest! {
    /// Compared with what each address is by itself.
    #[test]
    fn an_address_is_excluded_if_any_exclusion_has_it(
        of_pool in proptest::collection::vec((0u8..64, 0u8..8), 0..8),
        of_node in proptest::collection::vec((0u8..16, 0u8..4), 0..6),
        gateway in 1u8..15,
    ) {
        let exclusions: Vec<_> = of_pool
            .iter()
            .map(|(start, more)| json!({"startIP": format!("10.0.0.{start}"), "endIP": format!("10.0.0.{}", start + more)}))
            .collect();
        let indexes: Vec<_> = of_node
            .iter()
            .map(|(start, more)| json!({"startIndex": start, "endIndex": (start + more).min(15)}))
            .collect();
        let spec: Spec = serde_json::from_value(json!({"cidr": "10.0.0.0/24", "perNodeNetworkPrefix": 28,
            "gatewayIndex": gateway, "exclusions": exclusions, "perNodeExclusions": indexes,
            "staticAllocations": [{"nodeName": "n", "prefix": "10.0.0.16/28"}]})).unwrap();
        let is_excluded = |index: u8| {
            of_pool.iter().any(|(start, more)| (*start..=start + more).contains(&(16 + index)))
                || of_node.iter().any(|(start, more)| (*start..=start + more).contains(&index))
        };
        let free: Vec<u8> = (1..15).filter(|index| *index != gateway && !is_excluded(*index)).collect();
        match spec.plan("spec", &[], Wanted::All) {
            Err(_) => prop_assert!(free.is_empty(), "{free:?}"),
            Ok(plan) => {
                let ranges = &plan.allocations["n"].exclusions;
                for index in 0..16 {
                    let address = IpAddr::from([10, 0, 0, 16 + index]);
                    let has = ranges.iter().filter(|range| range.contains(address)).count();
                    prop_assert_eq!(has, usize::from(is_excluded(index)), "{} in {:?}", address, ranges);
                }
                prop_assert!(ranges.windows(2).all(|two| bits(two[0].end) + 1 < bits(two[1].start)));
                prop_assert!(!free.is_empty());
            }
        }
    }

    #[test]
    fn no_pool_makes_it_panic(
        cidr in "([0-9]{1,3}\\.0\\.0\\.0|[0-9a-f:]{2,9})/[0-9]{1,3}", length in -1i64..130,
        index in proptest::option::of(-1i64..1 << 33), start in -1i64..300, end in i64::MIN..i64::MAX,
        prefix in "([0-9]{1,3}\\.0\\.0\\.0|[0-9a-f:]{2,9})/[0-9]{1,3}",
    ) {
        let _ = plan(json!({"cidr": cidr, "perNodeNetworkPrefix": length, "gatewayIndex": index,
            "perNodeExclusions": [{"startIndex": start, "endIndex": end}, {"startIndex": 0, "endIndex": end}],
            "staticAllocations": [{"nodeName": "a", "prefix": prefix}, {"nodeName": "b", "prefix": cidr}]}));
    }
}
