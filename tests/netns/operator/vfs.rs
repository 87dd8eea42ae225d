//! `railctl vfs`, as far as files can be a PF; tests/lab/vfs.sh has real ones.

use std::fs;

use serde_json::{Value, json};

use super::{files, run, two_rails};
use crate::harness::{Host, pf_address, rail, vf_address};

/// node.json asks for this on rail 0, and for one VF on rail 1.
fn ask(host: &Host, vfs: &Value) {
    host.set_node(json!({"vfs": {"number": 1}, "rails": [
        {"rail": 0, "pf": pf_address(0), "vfs": vfs}, {"rail": 1, "pf": pf_address(1)}]}));
}

/// State and reason of each rail.
fn states(json: &Value) -> Vec<(String, Value)> {
    let all = json["pfs"].as_array().unwrap().iter();
    all.map(|pf| {
        (
            pf["state"].as_str().unwrap().to_owned(),
            pf["reason"].clone(),
        )
    })
    .collect()
}

#[test]
fn what_differs_is_told_and_what_is_as_wanted_stays() {
    let Some(host) = two_rails("what_differs_is_told_and_what_is_as_wanted_stays") else {
        return;
    };
    ask(
        &host,
        &json!({"number": 1, "mtu": 9000, "driver": "netdev"}),
    );
    let before = (host.snapshot(), files(&host.path("sys")));
    let as_wanted = vec![("as-wanted".to_owned(), Value::Null); 2];
    for args in [
        &["vfs", "--output", "json"][..],
        &["vfs", "--check", "--output", "json"],
    ] {
        let ran = run(&host, args);
        assert_eq!(
            (ran.status, states(&ran.json())),
            (0, as_wanted.clone()),
            "{ran:?}"
        );
    }
    ask(&host, &json!({"number": 4, "mtu": 9500}));
    let ran = run(&host, &["vfs", "--check", "--output", "json"]);
    let json = ran.json();
    assert_eq!(ran.status, 1, "{ran:?}");
    let changes = json!([{"what": "mtu", "vf": null, "from": "9216", "to": "9500"},
        {"what": "number", "vf": null, "from": "1", "to": "4"}]);
    assert_eq!(
        (&json["pfs"][0]["state"], &json["pfs"][0]["changes"]),
        (&json!("differs"), &changes)
    );
    let ran = run(&host, &["vfs", "--check"]);
    assert!(
        ran.stdout.contains("number 1 -> 4") && ran.status == 1,
        "{ran:?}"
    );
    assert_eq!(before, (host.snapshot(), files(&host.path("sys"))));
}

/// A call that was killed left it so.
#[test]
fn a_vf_without_a_driver_gets_one_unless_somebody_means_that() {
    let Some(host) = two_rails("a_vf_without_a_driver_gets_one_unless_somebody_means_that") else {
        return;
    };
    ask(&host, &json!({"number": 1}));
    let of = |address: &str, name: &str| host.path("sys/devices").join(address).join(name);
    fs::remove_file(of(&vf_address(0), "driver")).unwrap();
    let seen = || {
        let ran = run(&host, &["vfs", "--check", "--output", "json"]);
        ran.json()["pfs"][0].clone()
    };
    let change = json!([{"what": "driver", "vf": vf_address(0), "from": "none", "to": "netdev"}]);
    assert_eq!(seen()["changes"], change);
    fs::write(of(&vf_address(0), "driver_override"), "vfio-pci\n").unwrap();
    assert_eq!(seen()["state"], "as-wanted");
    fs::write(of(&vf_address(0), "driver_override"), "(null)\n").unwrap();
    assert_eq!(seen()["state"], "differs");
    fs::write(of(&pf_address(0), "sriov_drivers_autoprobe"), "0\n").unwrap();
    assert_eq!(seen()["state"], "as-wanted");
}

#[test]
fn a_pf_with_vfs_that_somebody_has_is_left_alone() {
    let Some(host) = two_rails("a_pf_with_vfs_that_somebody_has_is_left_alone") else {
        return;
    };
    let pod = host.add_netns("pod");
    let network = crate::harness::with(rail(0), json!({"deviceID": vf_address(0)}));
    host.cni("ADD", "a", &pod, &network).ok();
    ask(&host, &json!({"number": 2}));
    let numvfs = host
        .path("sys/devices")
        .join(pf_address(0))
        .join("sriov_numvfs");
    let refused = |reason: &str, args: &[&str]| {
        let ran = run(&host, args);
        assert_eq!(
            (ran.status, states(&ran.json())[0].clone()),
            (1, ("refused".to_owned(), json!(reason))),
            "{ran:?}"
        );
        assert_eq!(fs::read_to_string(&numvfs).unwrap(), "1\n");
        ran.json()["pfs"][0]["problem"].as_str().unwrap().to_owned()
    };
    let told = refused("in-use", &["vfs", "--output", "json"]);
    assert!(
        told.contains(&vf_address(0)) && told.contains("drain"),
        "{told}"
    );
    // The pod's own VF is not judged.
    ask(
        &host,
        &json!({"number": 1, "driver": "vfio-pci", "trust": true}),
    );
    assert_eq!(run(&host, &["vfs", "--check"]).status, 0);
    host.cni("DEL", "a", &pod, &network).ok();
    ask(&host, &json!({"number": 2}));
    refused("not-drained", &["vfs", "--undrained", "--output", "json"]);
    ask(&host, &json!({"number": 9}));
    refused("too-many", &["vfs", "--output", "json"]);
    ask(&host, &json!({"number": 1, "driver": "vfio-pci"}));
    refused("no-vfio", &["vfs", "--output", "json"]);
    ask(&host, &json!({"number": 2}));
    host.ip("addr add 10.9.0.1/24 dev pf0");
    let told = refused("host-use", &["vfs", "--output", "json"]);
    assert!(told.contains("10.9.0.1/24"), "{told}");
}

#[test]
fn a_node_json_that_asks_for_nothing_or_for_a_pf_that_is_away_is_told() {
    let Some(host) =
        two_rails("a_node_json_that_asks_for_nothing_or_for_a_pf_that_is_away_is_told")
    else {
        return;
    };
    let ran = run(&host, &["vfs"]);
    assert!(
        ran.status == 1 && ran.stderr.contains("key `vfs`"),
        "{ran:?}"
    );
    assert_eq!(run(&host, &["vfs", "--number", "2"]).status, 2);
    host.set_node(json!({"vfs": {"number": 1}, "rails": [{"rail": 0, "pf": "0000:77:00.0"}, {"rail": 1, "pf": pf_address(1)}]}));
    let ran = run(&host, &["vfs", "--output", "json"]);
    let json = ran.json();
    assert_eq!(
        states(&json),
        [
            ("refused".to_owned(), json!("no-pf")),
            ("as-wanted".to_owned(), Value::Null)
        ]
    );
    assert_eq!(ran.status, 1);
}
