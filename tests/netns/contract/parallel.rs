//! docs/cni-contract.md, items 121 to 123: calls at the same time.

use serde_json::json;

use super::{Bench, for_both};
use crate::harness::{Call, Ran, rail, with};

/// Runs all of them at once.
fn at_once(calls: &[(Call, serde_json::Value)]) -> Vec<Ran> {
    let children: Vec<_> = calls
        .iter()
        .map(|(call, config)| {
            let mut child = call.command().spawn().unwrap();
            // Plugins read stdin to its end: none begins before all are started.
            std::io::Write::write_all(child.stdin.as_mut().unwrap(), config.to_string().as_bytes()).unwrap();
            child
        })
        .collect();
    let mut children = children;
    let stdins: Vec<_> = children.iter_mut().map(|child| child.stdin.take()).collect();
    drop(stdins);
    children.into_iter().map(|child| child.wait_with_output().unwrap().into()).collect()
}

/// Items 121, 123: one device, or one address, is had by one.
#[test]
fn of_64_adds_for_one_device_one_wins_and_the_others_may_try_again() {
    for_both("parallel::one_device", |bench| {
        let pods: Vec<_> = (0..8).map(|n| bench.host.add_netns(&format!("p{n}"))).collect();
        let calls: Vec<_> = (0..64)
            .map(|n| {
                let pod = pods[n % 8].to_str().unwrap();
                let call = bench.call("ADD").var("CNI_CONTAINERID", &format!("c{n}")).var("CNI_NETNS", pod);
                (call.ifname(&format!("net{n}")), rail(0))
            })
            .collect();
        let (won, lost): (Vec<_>, Vec<_>) = at_once(&calls).into_iter().partition(|ran| ran.status == 0);
        assert_eq!((won.len(), lost.len()), (1, 63));
        for ran in &lost {
            ran.error(11);
        }
        assert_eq!(bench.host.leases().len(), 1);
        assert!(bench.host.records().len() <= 1, "{:?}", bench.host.records());
        // Every one of them is deleted, and all is as it was.
        let dels: Vec<_> =
            calls.into_iter().map(|(call, config)| (call.var("CNI_COMMAND", "DEL"), config)).collect();
        for ran in at_once(&dels) {
            ran.ok();
        }
        assert!(bench.host.leases().is_empty() && bench.host.records().is_empty());
        if bench.program == "rail-cni" {
            bench.host.ip("link show vf0");
        }
    });
}

/// Item 121: different containers, a device and an address for each.
#[test]
fn parallel_adds_get_distinct_devices_and_addresses() {
    let Some(bench) = Bench::cni("parallel::distinct") else { return };
    bench.host.plan("wide", "10.8.0.0/24", "10.8.0.1", &[]);
    let calls: Vec<_> = (0..16)
        .map(|n| {
            let pod = bench.host.add_netns(&format!("p{n}"));
            bench.host.ip(&format!("link add d{n} type veth peer name q{n}"));
            let call = bench.call("ADD").var("CNI_CONTAINERID", &format!("c{n}"));
            let config = with(
                rail(0),
                json!({"device": format!("d{n}"), "ipam": {"type": "rail-ipam", "pool": "wide"}}),
            );
            (call.var("CNI_NETNS", pod.to_str().unwrap()), config)
        })
        .collect();
    for _ in 0..2 {
        let addresses =
            at_once(&calls).into_iter().map(|ran| ran.ok().json()["ips"][0]["address"].to_string());
        let distinct: std::collections::BTreeSet<_> = addresses.collect();
        assert_eq!(distinct.len(), 16);
        let dels: Vec<_> = calls
            .iter()
            .map(|(call, config)| (call.clone().var("CNI_COMMAND", "DEL"), config.clone()))
            .collect();
        for ran in at_once(&dels) {
            ran.ok();
        }
    }
    assert!(bench.host.leases().is_empty() && bench.host.records().is_empty());
}

/// Item 122: containerd attaches the networks of one pod in parallel.
#[test]
fn the_rails_of_one_pod_may_come_at_the_same_time() {
    for_both("parallel::one_pod", |bench| {
        (1..8).for_each(|rail| bench.host.add_rail(rail));
        let before = bench.host.snapshot();
        let call = |verb: &str, n: u8| (bench.call(verb).ifname(&format!("net{}", n + 1)), rail(n));
        let adds: Vec<_> = (0..8).map(|n| call("ADD", n)).collect();
        let results: Vec<_> = at_once(&adds).into_iter().map(|ran| ran.ok().json()).collect();
        for (n, result) in (0..8).zip(&results) {
            let (check, config) = call("CHECK", n);
            check.run(&with(config, json!({ "prevResult": result }))).ok();
        }
        let dels: Vec<_> = (0..8).map(|n| call("DEL", n)).collect();
        for ran in at_once(&dels) {
            ran.ok();
        }
        assert_eq!(bench.host.snapshot(), before);
    });
}

/// Item 122: without `rail` each takes a table of its own, also at the same time.
#[test]
fn networks_without_rail_that_come_at_the_same_time_get_different_tables() {
    let Some(bench) = Bench::cni("parallel::tables") else { return };
    (1..6).for_each(|rail| bench.host.add_rail(rail));
    let adds: Vec<_> = (0..6)
        .map(|n| (bench.call("ADD").ifname(&format!("net{n}")), with(rail(n), json!({ "rail": null }))))
        .collect();
    for ran in at_once(&adds) {
        ran.ok();
    }
    let rules = bench.host.json(Some(&bench.pod), "rule");
    let tables: std::collections::BTreeSet<_> =
        rules.as_array().unwrap().iter().map(|rule| rule["table"].to_string()).collect();
    assert_eq!(tables.len(), 6 + 3, "{rules}");
}

/// Items 75, 76, 105: DELs of one attachment at the same time.
#[test]
fn parallel_dels_of_one_attachment_all_succeed() {
    for_both("parallel::dels", |bench| {
        let before = bench.host.snapshot();
        bench.call("ADD").run(&rail(0)).ok();
        for ran in at_once(&vec![(bench.call("DEL"), rail(0)); 16]) {
            ran.ok();
        }
        assert_eq!(bench.host.snapshot(), before);
    });
}
