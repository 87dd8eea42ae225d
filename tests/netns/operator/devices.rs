//! `railctl devices`: what a device plugin offers is what ADD accepts.

use serde_json::{Value, json};

use super::{run, two_rails};
use crate::harness::{Host, pf_address, rail, vf_address, with};

/// Rail, state and whether there is a problem, of each device.
fn devices(host: &Host) -> Vec<(u64, String, bool)> {
    let shown = run(host, &["devices", "--output", "json"]).json();
    let one = |one: &Value| {
        (
            one["rail"].as_u64().unwrap(),
            one["state"].as_str().unwrap().to_owned(),
            one["problem"].is_string(),
        )
    };
    shown["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(one)
        .collect()
}

fn states(all: &[(u64, &str, bool)]) -> Vec<(u64, String, bool)> {
    all.iter()
        .map(|(rail, state, has_problem)| (*rail, (*state).to_owned(), *has_problem))
        .collect()
}

#[test]
fn the_vfs_of_the_rails_are_free_or_with_pods_and_what_add_refuses_is_refused() {
    let Some(host) = two_rails("operator::devices") else {
        return;
    };
    let shown = run(&host, &["devices", "--output", "json"]).ok().json();
    assert_eq!(
        shown["devices"][1],
        json!({"device": vf_address(1), "rail": 1, "pf": pf_address(1), "isVf": true, "numaNode": null, "link": "up",
            "state": "free", "problem": null, "files": []})
    );
    let pod = host.add_netns("pod");
    host.cni(
        "ADD",
        "a",
        &pod,
        &with(rail(0), json!({"deviceID": vf_address(0)})),
    )
    .ok();
    assert_eq!(
        devices(&host),
        states(&[(0, "held", false), (1, "free", false)])
    );
    host.ip("addr add 10.9.0.1/24 dev vf1");
    let ran = run(&host, &["devices"]);
    assert!(
        ran.status == 1 && ran.stdout.contains("10.9.0.1/24"),
        "{ran:?}"
    );
    assert_eq!(
        devices(&host),
        states(&[(0, "held", false), (1, "refused", true)])
    );
    let other = host.add_netns("other");
    let refused = host.cni(
        "ADD",
        "b",
        &other,
        &with(rail(1), json!({"deviceID": vf_address(1)})),
    );
    assert_ne!(refused.status, 0, "ADD takes it");
}

#[test]
fn what_node_json_does_not_hand_out_is_no_device() {
    let Some(host) = two_rails("operator::devices_excluded") else {
        return;
    };
    let rails = json!([{"rail": 0, "pf": pf_address(0)}, {"rail": 1, "pf": pf_address(1)}]);
    let pod = host.add_netns("pod");
    for policy in [json!({"rails": [1]}), json!({"pfs": [pf_address(1)]})] {
        host.set_node(json!({"rails": rails, "policy": policy}));
        let shown = run(&host, &["devices", "--output", "json"]).ok().json();
        assert_eq!(devices(&host), states(&[(1, "free", false)]), "{policy}");
        assert_eq!(shown["excluded"][0]["device"], vf_address(0), "{shown}");
        let refused = host.cni(
            "ADD",
            "a",
            &pod,
            &with(rail(0), json!({"deviceID": vf_address(0)})),
        );
        assert_ne!(refused.status, 0, "ADD takes it: {policy}");
    }
    // Without rails nobody knows which device is of which.
    host.set_node(json!({}));
    assert!(devices(&host).is_empty());
}
