//! Upstream's plugins beside ours, called by cnitool: meta plugins behind rail-cni, IPAM plugins
//! below it, and rail-ipam below other main plugins.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::node::{self, Node, executable, ip, json_of, on_a_node, text_of, vf_address, write};

fn rail() -> Value {
    json!({"type": "rail-cni", "rail": 0, "mtu": 9000, "device": "vf0", "ipam": {"type": "rail-ipam", "pool": "rail-0"}})
}

/// Writes the only network, of these plugins, and makes the pod.
fn add_network(node: &Node, plugins: &[Value]) {
    let network = json!({"cniVersion": "1.1.0", "name": "rail-0", "plugins": plugins});
    write("/etc/cni/net.d/20-rail-0.conflist", network.to_string());
    node.add_pod("trainer");
}

fn call(verb: &str) -> Output {
    cnitool(verb, "rail-0", "net1")
}

fn cnitool(verb: &str, network: &str, ifname: &str) -> Output {
    let variables = BTreeMap::from([
        ("CNI_PATH", "/opt/cni/bin".to_owned()),
        ("CNI_IFNAME", ifname.to_owned()),
        ("NETCONFPATH", "/etc/cni/net.d".to_owned()),
    ]);
    node::run(
        Command::new(executable("cnitool", "cnitool")).args([verb, network, "/run/netns/trainer"]),
        &variables,
        "",
    )
}

#[track_caller]
fn succeeds(verb: &str) {
    let output = call(verb);
    assert!(output.status.success(), "{verb}: {}", text_of(&output));
}

/// A chain with `meta` behind rail-cni: ADD, CHECK and DEL, between which `look` looks.
fn behind(test: &str, meta: Value, look: impl FnOnce(&Node)) {
    on_a_node(test, &["cnitool", "plugins"], |node| {
        add_network(node, &[rail(), meta]);
        let result = json_of(&call("add"));
        assert_eq!(
            result["ips"][0]["address"],
            json!(node.addresses[0].0),
            "{result}"
        );
        node.has_rail("trainer", 0, "net1");
        node.reaches_leaf("trainer", 0, "net1");
        look(node);
        succeeds("del");
        node.is_as_before();
        succeeds("del");
    });
}

#[test]
fn tuning_runs_behind_a_rail() {
    let tuning = json!({"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.log_martians": "1"}});
    behind("upstream::tuning_runs_behind_a_rail", tuning, |_| {
        succeeds("check");
        let value = ip("netns exec trainer cat /proc/sys/net/ipv4/conf/net1/log_martians");
        assert_eq!(value.trim(), "1");
    });
}

#[test]
fn portmap_without_ports_runs_behind_a_rail() {
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    behind(
        "upstream::portmap_without_ports_runs_behind_a_rail",
        portmap,
        |_| {},
    );
}

#[test]
fn bandwidth_without_limits_runs_behind_a_rail() {
    let bandwidth = json!({"type": "bandwidth", "capabilities": {"bandwidth": true}});
    behind(
        "upstream::bandwidth_without_limits_runs_behind_a_rail",
        bandwidth,
        |_| {},
    );
}

/// It wants the end of a veth on the host, where a VF has none.
#[test]
fn bandwidth_with_limits_is_refused_and_nothing_is_left() {
    on_a_node(
        "upstream::bandwidth_with_limits_is_refused_and_nothing_is_left",
        &["cnitool", "plugins"],
        |node| {
            let limits =
                json!({"type": "bandwidth", "ingressRate": 1_000_000, "ingressBurst": 1_000_000});
            add_network(node, &[rail(), limits]);
            let output = call("add");
            assert!(
                !output.status.success() && text_of(&output).contains("type=\"bandwidth\""),
                "{}",
                text_of(&output)
            );
            succeeds("del");
            node.is_as_before();
        },
    );
}

/// It takes the first table without rules, which is the next rail's.
#[test]
fn a_rail_whose_table_sbr_took_is_refused() {
    on_a_node(
        "upstream::a_rail_whose_table_sbr_took_is_refused",
        &["cnitool", "plugins"],
        |node| {
            add_network(node, &[rail(), json!({"type": "sbr"})]);
            json_of(&call("add"));
            let mut next = rail();
            (next["rail"], next["device"], next["ipam"]["pool"]) =
                (json!(1), json!("vf1"), json!("rail-1"));
            let network = json!({"cniVersion": "1.1.0", "name": "rail-1", "plugins": [next]});
            write("/etc/cni/net.d/21-rail-1.conflist", network.to_string());
            let output = cnitool("add", "rail-1", "net2");
            assert!(
                !output.status.success() && text_of(&output).contains("sbr"),
                "{}",
                text_of(&output)
            );
            succeeds("del");
            node.is_as_before();
        },
    );
}

/// An IPAM of upstream's below rail-cni.
fn below(test: &str, ipam: Value) {
    on_a_node(test, &["cnitool", "plugins"], |node| {
        let mut rail = rail();
        rail["ipam"] = ipam;
        add_network(node, &[rail]);
        let result = json_of(&call("add"));
        assert_eq!(
            result["ips"][0]["address"],
            json!(node.addresses[0].0),
            "{result}"
        );
        node.has_rail("trainer", 0, "net1");
        node.reaches_leaf("trainer", 0, "net1");
        succeeds("check");
        succeeds("del");
        node.is_as_before();
        succeeds("del");
    });
}

#[test]
fn static_serves_a_rail() {
    let address = json!([{"address": "172.16.0.0/31", "gateway": "172.16.0.1"}]);
    below(
        "upstream::static_serves_a_rail",
        json!({"type": "static", "addresses": address}),
    );
}

#[test]
fn host_local_serves_a_rail() {
    let range =
        json!([[{"subnet": "172.16.0.0/30", "rangeStart": "172.16.0.2", "gateway": "172.16.0.1"}]]);
    on_a_node(
        "upstream::host_local_serves_a_rail",
        &["cnitool", "plugins"],
        |node| {
            let mut rail = rail();
            rail["ipam"] = json!({"type": "host-local", "ranges": range});
            add_network(node, &[rail]);
            let result = json_of(&call("add"));
            assert_eq!(result["ips"][0]["address"], "172.16.0.2/30", "{result}");
            succeeds("check");
            assert!(Path::new("/var/lib/cni/networks/rail-0/172.16.0.2").exists());
            succeeds("del");
            node.is_as_before();
            assert!(!Path::new("/var/lib/cni/networks/rail-0/172.16.0.2").exists());
        },
    );
}

/// rail-ipam below another main plugin: the pod has the address of the rail, and gives it back.
fn serves(test: &str, mut main: Value) {
    on_a_node(test, &["cnitool", "plugins"], |node| {
        // Not every kernel has all kinds of links.
        let kind = main["type"].as_str().unwrap();
        if ["macvlan", "ipvlan"].contains(&kind) {
            let args = ["link", "add", "link", "vf0", "probe", "type", kind];
            let output = Command::new("ip").args(args).output().unwrap();
            if !output.status.success() {
                return node::skip(
                    test,
                    &format!("no {kind} in this kernel: {}", text_of(&output).trim()),
                );
            }
            ip("link delete probe");
        }
        ip("link set vf0 up");
        main["ipam"] = json!({"type": "rail-ipam", "pool": "rail-0"});
        add_network(node, &[main]);
        let result = json_of(&call("add"));
        assert_eq!(
            result["ips"][0]["address"],
            json!(node.addresses[0].0),
            "{result}"
        );
        let of_pod = ip("-n trainer -4 -br addr show dev net1");
        assert!(of_pod.contains(&node.addresses[0].0), "{of_pod}");
        assert_eq!(leases(), 1);
        succeeds("check");
        succeeds("del");
        assert_eq!(leases(), 0);
    });
}

fn leases() -> usize {
    let files = fs::read_dir("/run/rail-cni/leases")
        .into_iter()
        .flatten()
        .flatten();
    let is_lease = |name: &str| name.ends_with(".json");
    files
        .filter(|file| is_lease(&file.file_name().to_string_lossy()))
        .count()
}

#[test]
fn rail_ipam_serves_macvlan() {
    serves(
        "upstream::rail_ipam_serves_macvlan",
        json!({"type": "macvlan", "master": "vf0", "mode": "bridge"}),
    );
}

#[test]
fn rail_ipam_serves_ipvlan() {
    serves(
        "upstream::rail_ipam_serves_ipvlan",
        json!({"type": "ipvlan", "master": "vf0", "mode": "l2"}),
    );
}

#[test]
fn rail_ipam_serves_bridge() {
    serves(
        "upstream::rail_ipam_serves_bridge",
        json!({"type": "bridge", "bridge": "br0"}),
    );
}

#[test]
fn rail_ipam_serves_ptp() {
    serves("upstream::rail_ipam_serves_ptp", json!({"type": "ptp"}));
}

#[test]
fn rail_ipam_serves_host_device() {
    serves(
        "upstream::rail_ipam_serves_host_device",
        json!({"type": "host-device", "device": "vf0"}),
    );
}

/// ovs-cni passes on to its IPAM what it was called with: its own configuration, in CHECK and DEL
/// with the result of ADD if the runtime has it.
#[test]
fn rail_ipam_serves_ovs() {
    on_a_node("upstream::rail_ipam_serves_ovs", &[], |node| {
        let netns = node.add_pod("trainer");
        let network = json!({"cniVersion": "1.0.0", "name": "rail-0", "type": "ovs", "bridge": "br-rail-0", "mtu": 9000,
            "deviceID": vf_address(0), "ipam": {"type": "rail-ipam", "pool": "rail-0"}});
        let call = |verb: &str, before: Option<&Value>| {
            let mut network = network.clone();
            if let Some(result) = before {
                network["prevResult"] = result.clone();
            }
            let variables = BTreeMap::from([
                ("CNI_COMMAND", verb.to_owned()),
                ("CNI_CONTAINERID", "trainer-sandbox".to_owned()),
                ("CNI_NETNS", netns.clone()),
                ("CNI_IFNAME", "net1".to_owned()),
                ("CNI_PATH", "/opt/cni/bin".to_owned()),
            ]);
            node::run(
                &mut Command::new("/opt/cni/bin/rail-ipam"),
                &variables,
                &network.to_string(),
            )
        };
        // Its ADD fails after that of its IPAM: it calls DEL, and kubelet begins again.
        json_of(&call("ADD", None));
        let output = call("DEL", None);
        assert!(output.status.success(), "{}", text_of(&output));
        assert_eq!(leases(), 0);

        let ips = json_of(&call("ADD", None));
        assert_eq!(ips["cniVersion"], "1.0.0", "{ips}");
        assert_eq!(
            ips["ips"][0]["address"],
            json!(node.addresses[0].0),
            "{ips}"
        );
        assert_eq!(leases(), 1);
        let mut result = ips.clone();
        result["interfaces"] = json!([{"name": "net1", "sandbox": netns}]);
        result["ips"][0]["interface"] = json!(0);
        for (verb, left) in [("CHECK", 1), ("DEL", 0), ("DEL", 0)] {
            let output = call(verb, Some(&result));
            assert!(output.status.success(), "{verb}: {}", text_of(&output));
            assert_eq!(leases(), left, "{verb}");
        }
        let output = call("CHECK", Some(&result));
        assert!(
            !output.status.success(),
            "a lease that is not there: {}",
            text_of(&output)
        );
    });
}
