//! tests/contract-items, items 94 to 105: STATUS and GC.

use std::fs;

use serde_json::{Value, json};

use super::{Bench, config, for_both};
use crate::harness::{Host, rail, with};

/// tests/contract-items, items 94, 96, 97: and it leaves nothing behind, not even a folder.
#[test]
fn status_tells_whether_an_add_can_be_served_and_writes_nothing() {
    for_both("status::ready", |bench| {
        let status = |more: Value| bench.call("STATUS").run(&with(config(), more));
        for ready in [
            json!({}),
            json!({"device": null}),
            json!({"device": "not-yet-there"}),
            json!({"prevResult": null}),
        ] {
            assert_eq!(status(ready).ok().stdout, "");
        }
        assert!(!bench.host.path("run").exists());

        let refused = |more: Value, word: &str| {
            let error = status(more).error(50);
            assert!(
                error["msg"].as_str().unwrap().contains(word),
                "{word}: {error}"
            );
        };
        refused(
            json!({"ipam": {"type": "rail-ipam", "pool": "rail-7"}}),
            "rail-7",
        );
        bench.host.set_node(json!({"nodeName": "node-2"}));
        refused(json!({}), "node-2");
        bench.host.set_node(json!({"runDir": "/proc/self/nothing"}));
        refused(json!({}), "/proc");
        bench.host.set_node(json!({}));
        // The only address of the pool is in use: a node that were not ready for it would lose the
        // pod.
        bench.call("ADD").run(&config()).ok();
        status(json!({})).ok();
        bench.call("DEL").run(&config()).ok();
    });
}

/// tests/contract-items, item 96.
#[test]
fn status_knows_the_rails_of_the_node() {
    let Some(bench) = Bench::cni("status::rails") else {
        return;
    };
    bench.host.make_vf(0, "mlx5_core");
    let status = || bench.call("STATUS").run(&config());
    bench
        .host
        .set_node(json!({"rails": [{"rail": 0, "pf": "0000:01:00.0"}]}));
    status().ok();
    bench
        .host
        .set_node(json!({"rails": [{"rail": 0, "pf": "0000:99:00.0"}]}));
    assert!(
        status().error(50)["msg"]
            .as_str()
            .unwrap()
            .contains("0000:99:00.0")
    );
    bench
        .host
        .set_node(json!({"rails": [{"rail": 1, "pf": "0000:01:00.0"}]}));
    assert!(
        status().error(50)["msg"]
            .as_str()
            .unwrap()
            .contains("rail 0")
    );
}

/// tests/contract-items, item 96: containerd asks again and again, also while a pod has the PF,
/// whose name the host has not.
#[test]
fn a_node_whose_pf_a_pod_has_is_ready() {
    let Some(bench) = Bench::cni("status::pf_in_pod") else {
        return;
    };
    let host = &bench.host;
    fs::create_dir_all(host.path("sys/class/net/vf0")).unwrap();
    host.set_node(json!({"rails": [{"rail": 0, "pf": "vf0"}]}));
    let status = || bench.call("STATUS").run(&config());
    status().ok();
    bench.call("ADD").run(&config()).ok();
    fs::remove_dir(host.path("sys/class/net/vf0")).unwrap();
    status().ok();
    bench.call("DEL").run(&config()).ok();
    assert!(status().error(50)["msg"].as_str().unwrap().contains("vf0"));
}

/// tests/contract-items, item 94: no ADD can succeed there.
#[test]
fn a_node_without_the_ipam_plugin_is_not_ready() {
    let Some(bench) = Bench::cni("status::ipam") else {
        return;
    };
    bench
        .call("STATUS")
        .run(&with(config(), json!({"ipam": {"type": "absent"}})))
        .error(50);
}

/// A network with attachments whose namespaces are gone, one whose namespace lives, and one of
/// another network.
struct Left {
    host: Host,
    program: &'static str,
}

impl Left {
    fn new(test: &str, program: &'static str) -> Option<Left> {
        let host = Host::new(test)?;
        host.plan("rail-0", "10.0.0.0/24", "10.0.0.1", &[]);
        let left = Left { host, program };
        for (container, network) in [
            ("dead-1", "net"),
            ("dead-2", "net"),
            ("alive", "net"),
            ("dead-other", "other"),
        ] {
            let pod = left.host.add_netns(container);
            left.host.ip(&format!(
                "link add {container} type veth peer name p-{container}"
            ));
            left.call("ADD", container)
                .run(&left.config(network, container))
                .ok();
            if container != "alive" {
                left.host.delete_netns(&pod);
            }
        }
        assert_eq!(left.held(), ["alive", "dead-1", "dead-2", "dead-other"]);
        Some(left)
    }

    fn config(&self, network: &str, device: &str) -> Value {
        with(
            rail(0),
            json!({"name": network, "device": device, "rail": null, "mtu": 1500}),
        )
    }

    fn call(&self, verb: &str, container: &str) -> crate::harness::Call {
        let pod = format!("/run/netns/{}-{container}", self.host.id);
        let call = self.host.call(verb, container, pod.as_ref());
        if self.program == "rail-ipam" {
            call.ipam()
        } else {
            call
        }
    }

    fn gc(&self, more: Value) -> crate::harness::Ran {
        let call = self.call("GC", "").var("CNI_NETNS", "").ifname("");
        call.run(&with(self.config("net", ""), more))
    }

    /// Containers that still hold something.
    fn held(&self) -> Vec<String> {
        let mut held: Vec<_> = [self.host.leases(), self.host.records()]
            .concat()
            .iter()
            .map(|file| serde_json::from_slice::<Value>(&fs::read(file).unwrap()).unwrap())
            .map(|content| content.get("owner").cloned().unwrap_or(content))
            .map(|holder| holder["containerID"].as_str().unwrap().to_owned())
            .collect();
        held.sort();
        held.dedup();
        held
    }
}

fn for_both_left(test: &str, check: impl Fn(&Left)) {
    for program in ["rail-cni", "rail-ipam"] {
        let Some(left) = Left::new(test, program) else {
            return;
        };
        check(&left);
    }
}

/// tests/contract-items, items 99 to 101, 104: absent, null and empty lists mean the same; what
/// lives is kept.
#[test]
fn gc_without_a_list_gives_back_what_is_dead_of_this_network() {
    for list in [
        json!({}),
        json!({"cni.dev/valid-attachments": null}),
        json!({"cni.dev/valid-attachments": []}),
        json!({"cni.dev/valid-attachments": null, "cni.dev/attachments": []}),
        json!({"cni.dev/attachments": null}),
    ] {
        for_both_left("gc::none", |left| {
            let ran = left.gc(list.clone()).ok();
            assert_eq!(
                (ran.stdout.as_str(), left.held()),
                ("", vec!["alive".to_owned(), "dead-other".to_owned()]),
                "{list}"
            );
            assert!(
                ran.stderr.contains("alive"),
                "what is kept is told: {ran:?}"
            );
            // tests/contract-items, item 105: a second time.
            left.gc(list.clone()).ok();
            left.call("DEL", "dead-1")
                .run(&left.config("net", "dead-1"))
                .ok();
        });
    }
}

/// tests/contract-items, items 99, 100: under either name of the list.
#[test]
fn gc_keeps_what_is_listed() {
    let one = |container: &str, ifname: &str| json!([{"containerID": container, "ifname": ifname}]);
    for (list, kept) in [
        (
            json!({"cni.dev/valid-attachments": one("dead-1", "net1")}),
            true,
        ),
        (json!({"cni.dev/attachments": one("dead-1", "net1")}), true),
        (
            json!({"cni.dev/valid-attachments": one("dead-1", "net1"), "cni.dev/attachments": one("dead-1", "net1")}),
            true,
        ),
        (
            json!({"cni.dev/valid-attachments": one("dead-1", "net2")}),
            false,
        ),
        (
            json!({"cni.dev/valid-attachments": one("dead", "net1")}),
            false,
        ),
    ] {
        for_both_left("gc::list", |left| {
            left.gc(list.clone()).ok();
            let mut expected = vec!["alive", "dead-1", "dead-other"];
            expected.retain(|container| kept || *container != "dead-1");
            assert_eq!(left.held(), expected, "{list}");
        });
    }
}

/// tests/contract-items, item 99: a list that cannot be understood deletes nothing.
#[test]
fn gc_refuses_a_list_that_is_none() {
    for_both_left("gc::garbage", |left| {
        for bad in [
            json!("x"),
            json!({}),
            json!([1]),
            json!([{"containerID": "dead-1"}]),
            json!([{"containerID": 1, "ifname": "net1"}]),
        ] {
            left.gc(json!({ "cni.dev/valid-attachments": bad }))
                .error(6);
        }
        assert_eq!(left.held().len(), 4);
    });
}

/// tests/contract-items, items 102, 103: the IPAM gets the same bytes; whatever one part does, the
/// other is done.
#[test]
fn gc_goes_on_after_an_error_and_forwards_what_it_got() {
    let Some(left) = Left::new("gc::forward", "rail-cni") else {
        return;
    };
    left.host.add_plugin(
        "stand-in",
        r#"cat >$0.stdin; echo '{"code": 111, "msg": "no"}'; exit 1"#,
    );
    let list = json!({"cni.dev/valid-attachments": [], "cni.dev/attachments": [], "ipam": {"type": "stand-in"}});
    let config = with(left.config("net", ""), list);
    let error = left.call("GC", "").run(&config).error(111);
    assert_eq!(error["msg"], "no");
    assert_eq!(left.held(), ["alive", "dead-other"]);
    assert_eq!(
        fs::read_to_string(left.host.path("bin/stand-in.stdin")).unwrap(),
        config.to_string()
    );
}

/// tests/contract-items, item 104: nothing was ever attached here.
#[test]
fn gc_of_nothing_makes_nothing() {
    for_both("gc::nothing", |bench| {
        bench.call("GC").run(&config()).ok();
        assert!(!bench.host.path("run").exists());
    });
}

/// tests/contract-items, items 102, 103: one attachment whose files are damaged stops neither the
/// others nor the IPAM.
#[test]
fn gc_of_one_that_is_damaged_goes_on_with_the_others() {
    let Some(left) = Left::new("gc::damaged", "rail-cni") else {
        return;
    };
    left.host.add_plugin("stand-in", "touch $0.called");
    let lock = left.host.path("run/locks/attachment-dead-1:net1");
    fs::remove_file(&lock).unwrap();
    std::os::unix::fs::symlink("/dev/null", &lock).unwrap();
    assert_eq!(left.gc(json!({"ipam": {"type": "stand-in"}})).status, 1);
    assert_eq!(left.held(), ["alive", "dead-1", "dead-other"]);
    assert!(left.host.path("bin/stand-in.called").exists());
}
