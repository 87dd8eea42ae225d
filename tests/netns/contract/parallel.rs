//! tests/contract-items, items 121 to 123: calls at the same time.

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
            std::io::Write::write_all(child.stdin.as_mut().unwrap(), config.to_string().as_bytes())
                .unwrap();
            child
        })
        .collect();
    let mut children = children;
    let stdins: Vec<_> = children
        .iter_mut()
        .map(|child| child.stdin.take())
        .collect();
    drop(stdins);
    children
        .into_iter()
        .map(|child| child.wait_with_output().unwrap().into())
        .collect()
}

/// tests/contract-items, items 121, 123: one device, or one address, is had by one.
#[test]
fn of_64_adds_for_one_device_one_wins_and_the_others_may_try_again() {
    for_both("parallel::one_device", |bench| {
        let pods: Vec<_> = (0..8)
            .map(|n| bench.host.add_netns(&format!("p{n}")))
            .collect();
        let calls: Vec<_> = (0..64)
            .map(|n| {
                let pod = pods[n % 8].to_str().unwrap();
                let call = bench
                    .call("ADD")
                    .var("CNI_CONTAINERID", &format!("c{n}"))
                    .var("CNI_NETNS", pod);
                (call.ifname(&format!("net{n}")), rail(0))
            })
            .collect();
        let (won, lost): (Vec<_>, Vec<_>) =
            at_once(&calls).into_iter().partition(|ran| ran.status == 0);
        assert_eq!((won.len(), lost.len()), (1, 63));
        for ran in &lost {
            ran.error(11);
        }
        assert_eq!(bench.host.leases().len(), 1);
        assert!(
            bench.host.records().len() <= 1,
            "{:?}",
            bench.host.records()
        );
        // Every one of them is deleted, and all is as it was.
        let dels: Vec<_> = calls
            .into_iter()
            .map(|(call, config)| (call.var("CNI_COMMAND", "DEL"), config))
            .collect();
        for ran in at_once(&dels) {
            ran.ok();
        }
        assert!(bench.host.leases().is_empty() && bench.host.records().is_empty());
        if bench.program == "rail-cni" {
            bench.host.ip("link show vf0");
        }
    });
}

/// tests/contract-items, item 122: without `rail` each takes a table of its own, also at the same
/// time.
#[test]
fn networks_without_rail_that_come_at_the_same_time_get_different_tables() {
    let Some(bench) = Bench::cni("parallel::tables") else {
        return;
    };
    (1..6).for_each(|rail| bench.host.add_rail(rail));
    let adds: Vec<_> = (0..6)
        .map(|n| {
            (
                bench.call("ADD").ifname(&format!("net{n}")),
                with(rail(n), json!({ "rail": null })),
            )
        })
        .collect();
    for ran in at_once(&adds) {
        ran.ok();
    }
    let rules = bench.host.json(Some(&bench.pod), "rule");
    let tables: std::collections::BTreeSet<_> = rules
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| rule["table"].to_string())
        .collect();
    assert_eq!(tables.len(), 6 + 3, "{rules}");
}
