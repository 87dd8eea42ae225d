//! `minPlanes`: a pod starts while enough planes of its rail have a carrier.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::harness::{Host, rail, with};

/// Rail 0 with four planes, which are the rails 0, 8, 16 and 24 with the PFs plane0 to plane3. The
/// pod's device is vf0, which node.json has beside plane0.
fn host(test: &str) -> Option<(Host, PathBuf)> {
    let host = Host::new(test)?;
    host.add_rail(0);
    let leaf = host.leaf();
    let mut rails = vec![
        json!({"rail": 0, "pf": "vf0"}),
        json!({"rail": 1, "pf": "other"}),
    ];
    for plane in 0..4 {
        host.ip(&format!(
            "link add plane{plane} type veth peer name port{plane} netns {leaf}"
        ));
        host.ip(&format!("link set plane{plane} up"));
        set(&host, plane, "up");
        rails.push(json!({"rail": 8 * plane, "pf": format!("plane{plane}")}));
    }
    host.set_node(json!({ "rails": rails }));
    let pod = host.add_netns("pod");
    Some((host, pod))
}

/// The leaf port of a plane.
fn set(host: &Host, plane: u8, state: &str) {
    host.ip(&format!("-n {} link set port{plane} {state}", host.leaf()));
}

fn config(min: u8) -> Value {
    with(rail(0), json!({ "minPlanes": min }))
}

#[test]
fn too_few_planes_refuse_the_pod_and_are_named() {
    let Some((host, pod)) = host("planes::min") else {
        return;
    };
    let before = host.snapshot();
    for min in 1..=4 {
        let ran = host.cni("ADD", "c1", &pod, &config(min)).ok();
        assert!(!ran.stderr.contains("carrier"), "{ran:?}");
        host.cni("DEL", "c1", &pod, &config(min)).ok();
    }
    set(&host, 1, "down");
    host.ip("link set plane3 down");
    let error = host.cni("ADD", "c1", &pod, &config(3)).error(11);
    let told = error["msg"].as_str().unwrap();
    for part in [
        "rail 0",
        "2 of 4",
        "minPlanes",
        "plane 1 (rail 8, PF plane1)",
        "plane 3 (rail 24, PF plane3)",
    ] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    let ran = host.cni("ADD", "c1", &pod, &config(2)).ok();
    assert!(ran.stderr.contains("2 of 4 planes"), "{ran:?}");
    host.cni("DEL", "c1", &pod, &config(2)).ok();
    host.ip("link set plane3 up");
    set(&host, 1, "up");
    assert_eq!(host.snapshot()["links"], before["links"]);
    assert!(host.records().is_empty() && host.leases().is_empty());
}

/// The plane's own cable is the one that is broken.
#[test]
fn the_gateway_of_a_plane_without_a_carrier_is_not_asked() {
    let Some((host, pod)) = host("planes::probe") else {
        return;
    };
    set(&host, 0, "down");
    let leaf = host.leaf();
    host.ip(&format!("-n {leaf} link set leaf0 down"));
    let asking = |more: Value| {
        with(
            with(
                rail(0),
                json!({"gatewayProbe": "require", "gatewayProbeTimeout": "100ms"}),
            ),
            more,
        )
    };
    host.cni("ADD", "c1", &pod, &asking(json!({}))).error(101);
    let config = asking(json!({"minPlanes": 3}));
    let result = host.cni("ADD", "c1", &pod, &config).ok().json();
    host.cni(
        "CHECK",
        "c1",
        &pod,
        &with(config.clone(), json!({ "prevResult": result })),
    )
    .ok();
    let status = host.call("", "", &pod).args(&["status"]).run(&json!({}));
    assert!(
        golden::has(&status.stdout, "3 of …4 planes…minPlanes 3"),
        "{status:?}"
    );
    // Doctor knows the network by its pods.
    let verdict = || {
        let doctor = host
            .call("", "", &pod)
            .args(&["doctor", "--output", "json"])
            .run(&json!({}))
            .json();
        let is_it = |check: &&Value| {
            check["check"] == "pf-link" && check["text"].as_str().unwrap().contains("plane0")
        };
        doctor["checks"]
            .as_array()
            .unwrap()
            .iter()
            .find(is_it)
            .unwrap()["verdict"]
            .clone()
    };
    assert_eq!(verdict(), "warn");
    host.cni("DEL", "c1", &pod, &config).ok();
    assert_eq!(verdict(), "fail");
}

/// A pod that has the PF itself shows its carrier.
#[test]
fn a_plane_that_a_pod_has_counts() {
    let Some((host, pod)) = host("planes::in_pod") else {
        return;
    };
    host.plan("rail-8", "172.18.0.0/31", "172.18.0.1", &[]);
    let plane = with(rail(8), json!({"device": "plane1", "minPlanes": 4}));
    host.call("ADD", "c1", &pod).ifname("net2").run(&plane).ok();
    host.cni("ADD", "c1", &pod, &config(4)).ok();
    host.cni("DEL", "c1", &pod, &config(4)).ok();
    host.ip_in(&pod, "link set net2 down");
    host.cni("ADD", "c1", &pod, &config(4)).error(11);
    host.call("DEL", "c1", &pod).ifname("net2").run(&plane).ok();
}

#[test]
fn more_planes_than_node_json_has_are_refused() {
    let Some((host, pod)) = host("planes::bad") else {
        return;
    };
    let error = host.cni("ADD", "c1", &pod, &config(5)).error(7);
    assert!(error["msg"].as_str().unwrap().contains("rail 0"), "{error}");
    for min in [json!(0), json!(17), json!("2")] {
        host.cni(
            "ADD",
            "c1",
            &pod,
            &with(rail(0), json!({ "minPlanes": min })),
        )
        .error(7);
    }
}
