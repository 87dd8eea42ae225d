use super::*;
use crate::attach::record::to_json;

/// A record of the version before, with `more`.
fn old(more: Value) -> Record {
    let mut record = json!({
        "version": 1, "bootId": "b", "phase": "attached", "network": "rail-0", "containerID": "c", "ifname": "net1",
        "netns": {"path": "/n", "dev": 1, "ino": 1, "created": 1, "folder": [1, 2]}, "since": "2026-11-24T00:00:00Z",
        "device": {"id": "0000:01:10.0", "link": link()},
        "applied": {"mac": "", "addresses": [], "routes": [], "rules": []},
    });
    record
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    parse(record.to_string().as_bytes()).unwrap()
}

fn link() -> Value {
    json!({"index": 3, "name": "ens1f0v0", "altnames": [], "mtu": 9000, "max_mtu": 9978, "min_mtu": 68,
        "mac": "02:00:00:00:00:01", "permanent_mac": null, "up": false, "master": null, "kind": null,
        "parent": "0000:01:10.0", "loopback": false})
}

/// The names of the steps, each with a letter for how far it is.
fn shown(record: &Record) -> String {
    let letter = |state: &State| match state {
        State::Planned => "p",
        State::Done => "d",
        State::Undone => "u",
        State::Failed(_) => "f",
    };
    let steps = record
        .steps
        .iter()
        .map(|step| format!("{}:{}", step.change.name(), letter(&step.state)));
    steps.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_record_of_the_version_before_is_read_as_its_steps() {
    let debt = |what: &str| json!({"owed": [{"what": what, "why": "x"}], "tries": 3, "since": "s", "next": 9});
    let ipam = json!({"type": "rail-ipam", "config": "{}", "args": "", "path": ["/opt"]});
    let vf = json!({"pf": "0000:01:00.0", "number": 1, "wanted": {"trust": true}, "before": {}});
    let moved = json!([{"index": 4, "name": "mlx5_4"}]);
    let bind = json!({"driver": "mlx5_core", "rdma": ["mlx5_4"], "guids": [7]});
    for (more, steps) in [
        (json!({}), "netdev:d links:d move:d rail:d"),
        (json!({"phase": "adding"}), "netdev:p links:p move:p rail:p"),
        (
            json!({"phase": "missing"}),
            "netdev:d links:d move:f rail:d",
        ),
        (
            json!({"ipam": ipam}),
            "lease:d netdev:d links:d move:d rail:d",
        ),
        (
            json!({"ipam": ipam, "debt": debt("ipam")}),
            "lease:f netdev:u links:u move:u rail:u",
        ),
        (
            json!({"ipam": ipam, "debt": debt("idle")}),
            "lease:u netdev:u links:f move:u rail:u",
        ),
        (
            json!({"rdma": moved, "bind": bind, "debt": debt("device")}),
            "netdev:f rdma:f links:u driver:f move:u rail:u",
        ),
        (
            json!({"rdma": moved, "reset": true, "pkey": 5, "deviceInfo": "/d"}),
            "netdev:d rdma:d reset:d links:d move:d rail:d pkey:d device-info:d",
        ),
        (
            json!({"vf": vf, "debt": debt("vf")}),
            "netdev:u vf:f links:u move:u rail:u",
        ),
    ] {
        let record = old(more.clone());
        assert_eq!(shown(&record), steps, "{more}");
        // It is written in the present form, and read again as it is.
        let written = to_json(&record).unwrap();
        assert_eq!(to_json(&parse(&written).unwrap()).unwrap(), written);
    }
    let owed = old(json!({"ipam": ipam, "debt": debt("ipam")}));
    let failed = owed.left().next().unwrap().failed();
    assert_eq!(
        (failed.why.as_str(), failed.tries, failed.since.as_str()),
        ("x", 3, "s")
    );
    let chained =
        old(json!({"ifname": "net1 (rdma)", "device": {"id": "0000:01:10.0"}, "rdma": moved}));
    assert_eq!(
        (chained.owner.ifname.as_str(), chained.owner.is_rdma_alone()),
        ("net1", true)
    );
    assert!(old(json!({"containerID": "rebuilt-5"})).owner.rebuilt);
    let later = json!({"version": 3}).to_string();
    assert!(
        parse(later.as_bytes())
            .unwrap_err()
            .to_string()
            .contains("version 3")
    );
}

/// `chosen` is the name that the pod before has given the device, and that another device keeps it
/// from losing.
#[test]
fn what_is_bound_again_gets_the_name_of_before_the_pod_that_renamed_it() {
    let bind = |names: &[&str]| json!({"driver": "mlx5_core", "rdma": names, "guids": []});
    let moved = json!([{"index": 4, "name": "mlx5_4"}]);
    let owing = |what: &str| json!({"owed": [{"what": what, "why": "x"}]});
    for (left, after) in [
        (json!({"rdma": moved, "debt": owing("device")}), "mlx5_4"),
        (
            json!({"rdmaRenamed": {"index": 4, "before": "mlx5_4", "wanted": "x"}, "debt": owing("device")}),
            "mlx5_4",
        ),
        (
            json!({"bind": bind(&["mlx5_4"]), "debt": owing("device")}),
            "mlx5_4",
        ),
        (json!({"rdma": moved}), "mlx5_4"),
        // It had its name back, and the operator has given it this one since.
        (json!({"rdma": moved, "debt": owing("reset")}), "chosen"),
        (json!({"debt": owing("device")}), "chosen"),
    ] {
        let mut now = old(json!({"bind": bind(&["chosen"])}));
        now.inherit(&old(left.clone()));
        assert_eq!(now.driver().unwrap().rdma, [after], "{left}");
    }
}

#[test]
fn steps_are_in_the_order_of_add_however_they_were_planned() {
    let mut record = old(json!({}));
    record.steps.clear();
    for change in [
        Change::Move,
        Change::DeviceInfo("/d".into()),
        Change::Links,
        Change::Pkey(1),
        Change::Reset,
    ] {
        record.plan(change);
    }
    assert_eq!(
        shown(&record),
        "reset:p links:p move:p pkey:p device-info:p"
    );
    assert!(!record.is_attached());
}
