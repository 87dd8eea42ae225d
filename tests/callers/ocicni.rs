//! ocicni, the library of CRI-O: it attaches a pod to eight networks of /etc/cni/net.d, without
//! Multus.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output};
use std::time::Instant;

use serde_json::{Value, json};

use crate::node::{
    self, Node, RAILS, documents, executable, ip, json_of, on_a_node, text_of, write,
};

const CALLER: &str = "ocicni-0.4.3";

/// The networks of conf/nads.yaml as files, with the device's name: no device plugin chooses one
/// here.
fn add_networks() {
    for (rail, nad) in RAILS.zip(documents("conf/nads.yaml")) {
        let mut config: Value =
            serde_json::from_str(nad["spec"]["config"].as_str().unwrap()).unwrap();
        config["plugins"][0]["device"] = json!(format!("vf{rail}"));
        write(
            format!("/etc/cni/net.d/20-rail-{rail}.conflist"),
            config.to_string(),
        );
    }
}

fn command(verb: &str, id: &str) -> Command {
    let mut command = Command::new(executable(CALLER, "callers"));
    command.args([verb, id, &format!("/run/netns/{id}")]);
    command.args(RAILS.map(|rail| format!("rail-{rail}=net{}", rail + 1)));
    command
}

fn call(verb: &str, id: &str) -> Output {
    node::run(&mut command(verb, id), &BTreeMap::new(), "")
}

#[track_caller]
fn ends(node: &Node, id: &str) {
    for _ in 0..2 {
        let output = call("down", id);
        assert!(output.status.success(), "{}", text_of(&output));
        node.is_as_before();
    }
}

#[test]
fn a_pod_gets_eight_networks() {
    on_a_node("ocicni::a_pod_gets_eight_networks", &[CALLER], |node| {
        add_networks();
        node.add_pod("trainer");
        let results = json_of(&call("up", "trainer"));
        for rail in RAILS {
            let (result, ifname) = (&results[usize::from(rail)], format!("net{}", rail + 1));
            assert_eq!(result["cniVersion"], "1.1.0", "{result}");
            assert_eq!(
                result["ips"][0]["address"],
                json!(node.addresses[usize::from(rail)].0),
                "{result}"
            );
            node.has_rail("trainer", rail, &ifname);
            node.reaches_leaf("trainer", rail, &ifname);
        }
        ends(node, "trainer");
    });
}

#[test]
fn ten_pods_in_a_row_get_eight_networks() {
    on_a_node(
        "ocicni::ten_pods_in_a_row_get_eight_networks",
        &[CALLER],
        |node| {
            add_networks();
            let (mut up, mut down) = (Vec::new(), Vec::new());
            for time in 0..10 {
                let id = format!("trainer-{time}");
                node.add_pod(&id);
                let begin = Instant::now();
                json_of(&call("up", &id));
                up.push(begin.elapsed());
                node.has_rail(&id, 7, "net8");
                let begin = Instant::now();
                let output = call("down", &id);
                down.push(begin.elapsed());
                assert!(output.status.success(), "{}", text_of(&output));
                node.is_as_before();
            }
            node::record_times(&format!("{CALLER}, eight rails without eth0"), &up, &down);
        },
    );
}

#[test]
fn nothing_is_left_of_a_pod_that_fails_at_rail_4() {
    on_a_node(
        "ocicni::nothing_is_left_of_a_pod_that_fails_at_rail_4",
        &[CALLER],
        |node| {
            add_networks();
            fs::remove_file(node.allocation(4)).unwrap();
            node.add_pod("trainer");
            let output = call("up", "trainer");
            assert!(
                !output.status.success() && text_of(&output).contains("rail-4"),
                "{}",
                text_of(&output)
            );
            ends(node, "trainer");
            assert_eq!(ip("-n trainer -br link show type veth"), "");
        },
    );
}

#[test]
fn nothing_is_left_of_a_pod_whose_runtime_is_killed() {
    on_a_node(
        "ocicni::nothing_is_left_of_a_pod_whose_runtime_is_killed",
        &[CALLER],
        |node| {
            const TIMES: u32 = 8;
            add_networks();
            node.add_pod("measure");
            let begin = Instant::now();
            json_of(&call("up", "measure"));
            let whole = begin.elapsed();
            ends(node, "measure");
            for time in 0..TIMES {
                let id = format!("trainer-{time}");
                node.add_pod(&id);
                let child = node::start(&mut command("up", &id), &BTreeMap::new(), "");
                node::kill_after(child, whole * time / TIMES, time % 2 == 0);
                ends(node, &id);
            }
        },
    );
}
