use serde_json::{Value, json};

use super::*;
use crate::attach::steps::NAMES;
use crate::attach::steps::device_info::DeviceInfo;
use crate::attach::steps::links::Links;
use crate::attach::steps::pkey::Pkey;

/// A record with these steps, each with its state.
fn record(steps: &[(Value, Value)]) -> Record {
    let steps: Vec<_> = steps
        .iter()
        .map(|(change, state)| json!({"change": change, "state": state}))
        .collect();
    let netns = json!({"path": "/run/netns/a", "dev": 1, "ino": 2, "created": 3, "folder": [4, 5]});
    let owner = json!({
        "network": "n", "containerID": "c", "ifname": "net1", "netns": netns, "bootId": "b",
        "since": "s", "device": {"id": "0000:01:10.0", "siblings": false},
    });
    let json = json!({"version": 2, "owner": owner, "steps": steps});
    Record::parse(json.to_string().as_bytes()).unwrap()
}

fn done(change: Value) -> (Value, Value) {
    (change, json!("done"))
}

fn failed(change: Value) -> (Value, Value) {
    (change, json!({"failed": {"why": "x", "tries": 1}}))
}

/// The steps of every kind, as living pods have them on file.
fn every_step() -> Vec<Value> {
    let vf = json!({"pf": "0000:01:00.0", "number": 1, "wanted": {}, "before": {}});
    let lease = json!({"type": "static", "config": "{}", "args": "", "path": ["/opt/cni/bin"], "mayHold": true});
    vec![
        json!({ "lease": lease }),
        json!({"host-addresses": {"addresses": [], "routes": [], "neighbours": [], "at": 0}}),
        json!({ "vf-mac": vf }),
        json!({"netdev": {"settings": {"alias": ""}, "sysctls": {}}}),
        json!({ "vf": vf }),
        json!({"rdma": {"names": ["mlx5_4"]}}),
        json!("reset"),
        json!("links"),
        json!({"driver": {"driver": "mlx5_core", "rdma": [], "guids": [], "again": false}}),
        json!("move"),
        json!({"rail": {"mtu": 9000, "addresses": ["172.16.0.0/31"], "routes": [], "rules": []}}),
        json!({"gateways": {"gateways": ["172.16.0.1"], "timeout": {"secs": 1, "nanos": 0}}}),
        json!({"gids": {"found": []}}),
        json!({"pkey": 5}),
        json!({"device-info": "/d"}),
    ]
}

#[test]
fn every_step_keeps_its_form_on_disk() {
    let mut names = Vec::new();
    for step in every_step() {
        let record = record(&[done(step.clone())]);
        let written: Value = serde_json::from_slice(&to_json(&record).unwrap()).unwrap();
        let change = &written["steps"][0]["change"];
        let name = record.steps[0].change.name();
        names.push(name);
        let named = change
            .as_str()
            .or_else(|| change.as_object()?.keys().next().map(String::as_str));
        assert_eq!(named, Some(name), "{step}");
        match step.get("vf").or(step.get("vf-mac")) {
            // The settings that are not known are written as null.
            Some(_) => assert_eq!(change[name]["pf"], "0000:01:00.0"),
            None => assert_eq!(*change, step),
        }
    }
    assert_eq!(names, NAMES);
}

#[test]
fn steps_are_in_the_order_of_add_however_they_were_planned() {
    let mut record = record(&[]);
    record.plan(Move);
    record.plan(DeviceInfo("/d".into()));
    record.plan(Links);
    record.plan(Pkey(1));
    record.plan(Reset);
    let names: Vec<_> = record.steps.iter().map(|step| step.change.name()).collect();
    assert_eq!(names, ["reset", "links", "move", "pkey", "device-info"]);
    assert!(!record.is_attached());
}

#[test]
fn a_record_of_another_version_is_refused() {
    for (json, version) in [
        (json!({"version": 1}), "version 1"),
        (json!({"version": 3}), "version 3"),
        (json!({}), "no version"),
    ] {
        let error = Record::parse(json.to_string().as_bytes()).unwrap_err();
        assert!(error.to_string().contains(version), "{error}");
    }
}

/// `chosen` is the name that the pod before has given the device, and that another device keeps it
/// from losing.
#[test]
fn what_is_bound_again_gets_the_name_of_before_the_pod_that_renamed_it() {
    let driver =
        |names: &[&str]| json!({"driver": {"driver": "mlx5_core", "rdma": names, "again": true}});
    let moving = json!({"rdma": {"moving": [{"index": 4, "name": "mlx5_4"}]}});
    let renamed = json!({"rdma": {"renamed": {"index": 4, "before": "mlx5_4", "wanted": "x"}}});
    let netdev = json!({"netdev": {}});
    let undone = |change: &Value| (change.clone(), json!("undone"));
    for (left, name) in [
        (
            vec![failed(netdev.clone()), failed(moving.clone())],
            "mlx5_4",
        ),
        (vec![failed(netdev.clone()), failed(renamed)], "mlx5_4"),
        (
            vec![failed(netdev.clone()), failed(driver(&["mlx5_4"]))],
            "mlx5_4",
        ),
        (vec![done(netdev.clone()), done(moving.clone())], "mlx5_4"),
        // It had its name back, and the operator has given it this one since.
        (
            vec![undone(&netdev), undone(&moving), failed(json!("reset"))],
            "chosen",
        ),
        (vec![failed(netdev.clone())], "chosen"),
    ] {
        let mut now = record(&[done(netdev.clone()), done(driver(&["chosen"]))]);
        now.inherit(&record(&left));
        assert_eq!(now.find::<Driver>().unwrap().0.rdma, [name], "{left:?}");
    }
}
