//! The executables of the release before beside ours, both ways, with a pod alive: RAIL_OLD is the
//! directory that scripts/old-release makes. Without it there is nothing to try, and each test says
//! that it was skipped.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::harness::{Call, Host, Ran, rail, skip, vf_address, with};

/// The build that makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Old,
    New,
}

use Who::{New, Old};

struct Both {
    host: Host,
    pod: PathBuf,
    next: PathBuf,
    old: PathBuf,
    before: Value,
}

impl Both {
    fn new(test: &str) -> Option<Both> {
        let test = &format!("skew::{test}");
        let Some(old) = std::env::var_os("RAIL_OLD") else {
            skip(
                test,
                "no executables of the release before: run scripts/test --nightly skew",
            );
            return None;
        };
        let host = Host::new(test)?;
        host.add_rail(0);
        host.make_vf(0, "mlx5_core");
        host.ip("link property add dev vf0 altname enp1s0v0");
        host.ip("link set vf0 mtu 1400");
        // The keys that the old one knows.
        let mut node: Value =
            serde_json::from_slice(&fs::read(host.path("node.json")).unwrap()).unwrap();
        for key in ["callTimeout", "policy"] {
            node.as_object_mut().unwrap().remove(key);
        }
        fs::write(host.path("node-old.json"), node.to_string()).unwrap();
        let (pod, next) = (host.add_netns("pod"), host.add_netns("next"));
        let before = host.snapshot();
        Some(Both {
            host,
            pod,
            next,
            old: old.into(),
            before,
        })
    }

    fn config(&self) -> Value {
        let info = json!({"CNIDeviceInfoFile": self.host.path("devinfo/info")});
        let more = json!({"device": null, "deviceID": vf_address(0), "mac": "02:00:00:00:00:77"});
        with(with(rail(0), more), json!({ "runtimeConfig": info }))
    }

    fn by(&self, who: Who, call: Call) -> Call {
        match who {
            Old => call
                .program(self.old.join("rail-cni"))
                .var("CNI_PATH", &self.old.display().to_string())
                .var(
                    "RAIL_CNI_NODE_CONFIG",
                    &self.host.path("node-old.json").display().to_string(),
                ),
            New => call,
        }
    }

    fn call(&self, who: Who, verb: &str) -> Ran {
        self.by(who, self.host.call(verb, "c1", &self.pod))
            .run(&self.config())
    }

    fn checked(&self, who: Who, added: &Value) -> Ran {
        let config = with(self.config(), json!({ "prevResult": added }));
        self.by(who, self.host.call("CHECK", "c1", &self.pod))
            .run(&config)
    }

    fn command(&self, who: Who, args: &[&str]) -> Ran {
        self.by(who, self.host.call("", "", &self.pod).args(args))
            .run(&Value::Null)
    }

    /// The device goes to the next pod, which `who` serves, and comes back.
    #[track_caller]
    fn serves_the_next(&self, who: Who) {
        let config = with(self.config(), json!({"mac": ""}));
        let call = |verb: &str| {
            self.by(who, self.host.call(verb, "c2", &self.next))
                .run(&config)
        };
        call("ADD").ok();
        call("DEL").ok();
        self.command(New, &["reap"]).ok();
        assert_eq!(self.host.snapshot(), self.before);
    }
}

/// An upgrade under a living pod: this version knows it, and ends it.
#[test]
fn a_pod_of_the_release_before_is_served() {
    let Some(both) = Both::new("pods") else {
        return;
    };
    let added = both.call(Old, "ADD").ok().json();
    both.checked(New, &added).ok();
    let shown = both.command(New, &["status", "--output", "json"]).json();
    assert_eq!(shown["attachments"][0]["state"], "live", "{shown}");
    // It takes nothing from the living.
    let all = json!({"cni.dev/valid-attachments": []});
    both.by(New, both.host.call("GC", "c1", &both.pod))
        .run(&with(both.config(), all))
        .ok();
    let reaped = both.command(New, &["reap"]);
    assert!(reaped.stdout.contains("1 in use"), "{reaped:?}");
    both.by(New, both.host.call("ADD", "c2", &both.next))
        .run(&both.config())
        .error(11);
    // The lease is in the table of this version by now, which the release before does not read.
    assert_eq!(both.checked(Old, &added).status, 1);
    for _ in 0..2 {
        both.call(New, "DEL").ok();
        assert_eq!(both.host.snapshot(), both.before);
    }
    both.serves_the_next(Old);
}

/// A step back under a living pod: the release before cannot read its record, and takes nothing
/// from it.
#[test]
fn the_release_before_leaves_a_pod_of_ours_alone() {
    let Some(both) = Both::new("back") else {
        return;
    };
    let added = both.call(New, "ADD").ok().json();
    assert_eq!(both.command(Old, &["reap"]).status, 1);
    assert_eq!(
        both.by(Old, both.host.call("ADD", "c2", &both.next))
            .run(&both.config())
            .status,
        1
    );
    both.checked(New, &added).ok();
    both.call(New, "DEL").ok();
    assert_eq!(both.host.snapshot(), both.before);
}

/// The pod died between the two releases.
#[test]
fn what_a_dead_pod_of_the_release_before_left_is_restored() {
    for is_told in [true, false] {
        let Some(both) = Both::new("dead") else {
            return;
        };
        both.call(Old, "ADD").ok();
        both.host.hand_back(&both.pod, "net1");
        if is_told {
            both.call(New, "DEL").ok();
            assert_eq!(both.host.snapshot(), both.before);
        }
        both.serves_the_next(New);
    }
}

/// The store that one wrote gives the other the same addresses.
#[test]
fn each_release_reads_the_store_of_the_other() {
    for (one, other) in [(Old, New), (New, Old)] {
        let Some(both) = Both::new("store") else {
            return;
        };
        let rows = json!([{"nodeName": "node-1", "prefix": "172.18.0.0/31"}]);
        let pool = json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "CIDRPool", "metadata": {"name": "rail-0"},
            "spec": {"cidr": "172.16.0.0/12", "perNodeNetworkPrefix": 31, "gatewayIndex": 1,
                "routes": [{"dst": "172.16.0.0/12"}], "staticAllocations": rows}});
        fs::write(both.host.path("pool.json"), pool.to_string()).unwrap();
        let ipam = |who: Who, args: &[&str]| {
            let call = both.host.call("", "", &both.pod).ipam();
            let call = both.by(who, call.args(args));
            let call = if who == Old {
                call.program(both.old.join("rail-ipam"))
            } else {
                call
            };
            call.run(&Value::Null)
        };
        let file = both.host.path("pool.json").display().to_string();
        ipam(one, &["import", &file]).ok();
        let again = ipam(other, &["import", &file]).ok();
        // Only this release writes of which rail a pool is.
        let is_same = again
            .stdout
            .lines()
            .any(|line| line.ends_with("172.16.0.0/12  changed (rail)"));
        assert!(is_same, "{one:?}: {again:?}");
        let added = both.call(other, "ADD").ok().json();
        assert_eq!(added["ips"][0]["address"], "172.18.0.0/31");
        assert_eq!(added["ips"][0]["gateway"], "172.18.0.1");
        both.call(other, "DEL").ok();
    }
}
