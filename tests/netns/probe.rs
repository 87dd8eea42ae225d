//! `gatewayProbe` (docs/configuration.md): a rail in the wrong leaf port fails the pod at its
//! start, or is told of.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Host, pf_address, rail, skip, vf_address, with};

/// The rails 0 and 1 in both families, in ports of one leaf that answers as Cumulus Linux does.
fn two_rails(test: &str) -> Option<Host> {
    let host = Host::new(test)?;
    for number in [0, 1] {
        host.add_rail(number);
        host.make_vf(number, "mlx5_core");
        host.plan(
            &format!("rail-{number}-v6"),
            &format!("fd0{number}::/64"),
            &format!("fd0{number}::2"),
            &[],
        );
        give_v6(&host, number, number);
    }
    answer_for(&host, 1);
    Some(host)
}

/// 0: for the addresses of all ports, as Linux does. 1: for those of the port, as Cumulus Linux
/// does.
fn answer_for(host: &Host, arp_ignore: u8) {
    let leaf = Path::new("/run/netns").join(host.leaf());
    host.set_sysctl(&leaf, "ipv4/conf/all/arp_ignore", &arp_ignore.to_string());
}

fn give_v6(host: &Host, of: u8, port: u8) {
    host.ip(&format!(
        "-n {} addr add fd0{of}::2/64 dev leaf{port} nodad",
        host.leaf()
    ));
}

/// Both families of [`Host::swap_cables`].
fn swap(host: &Host, is_swapped: bool) {
    host.swap_cables(is_swapped);
    for port in [0, 1] {
        give_v6(host, if is_swapped { 1 - port } else { port }, port);
    }
}

/// The rail 0 with its gateways asked.
fn asking(mode: &str, pools: &str) -> Value {
    let ipam = json!({"type": "rail-ipam", "pool": pools});
    with(
        rail(0),
        json!({"gatewayProbe": mode, "gatewayProbeTimeout": "300ms", "ipam": ipam}),
    )
}

fn patient(config: Value) -> Value {
    with(config, json!({"gatewayProbeTimeout": "20s"}))
}

const POOLS: [&str; 3] = ["rail-0", "rail-0-v6", "rail-0,rail-0-v6"];

fn check(host: &Host, pod: &Path, config: &Value, added: &Value) -> crate::harness::Ran {
    host.cni(
        "CHECK",
        "c1",
        pod,
        &with(config.clone(), json!({"prevResult": added})),
    )
}

fn all_in(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn an_add_passes_where_the_gateways_answer() {
    let Some(host) = two_rails("probe::answer") else {
        return;
    };
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    for pools in POOLS {
        let config = patient(asking("require", pools));
        let added = host.cni("ADD", "c1", &pod, &config).ok();
        assert!(!added.stderr.contains(" warn "), "{pools}: {added:?}");
        check(&host, &pod, &config, &added.json()).ok();
        host.cni("DEL", "c1", &pod, &config).ok();
        assert_eq!(host.snapshot(), before, "{pools}");
    }
}

/// Two leaf ports swapped.
#[test]
fn a_required_gateway_that_is_silent_fails_the_add_and_nothing_is_left() {
    let Some(host) = two_rails("probe::require") else {
        return;
    };
    swap(&host, true);
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    let (vf, pf) = (vf_address(0), pf_address(0));
    for (pools, gateways) in POOLS.iter().zip([
        &["172.16.0.1 "][..],
        &["fd00::2 "],
        &["172.16.0.1 ", "fd00::2 "],
    ]) {
        let failed = host.cni("ADD", "c1", &pod, &asking("require", pools));
        let msg = failed.error(101)["msg"].to_string();
        all_in(&msg, &["rail 0: gateway ", "net1", &vf, &pf, "300ms"]);
        all_in(&msg, gateways);
        assert_eq!(host.snapshot(), before, "{pools}");
        assert_eq!(
            host.ip_in(&pod, "-o link show").lines().count(),
            1,
            "{pools}"
        );
        assert_eq!(host.ip_in(&pod, "rule list").lines().count(), 3, "{pools}");
    }
}

/// And CHECK finds the cable, before and after it is put right.
#[test]
fn a_wanted_gateway_that_is_silent_is_logged_and_found_by_check() {
    let Some(host) = two_rails("probe::warn") else {
        return;
    };
    swap(&host, true);
    let pod = host.add_netns("pod");
    let config = asking("warn", POOLS[2]);
    let added = host.cni("ADD", "c1", &pod, &config).ok();
    let parts = ["gateway 172.16.0.1 ", "gateway fd00::2 ", "net1"];
    all_in(&added.stderr, &[" warn ", "rail 0: "]);
    all_in(&added.stderr, &parts);
    let added = added.json();
    let msg = check(&host, &pod, &config, &added).error(100)["msg"].to_string();
    all_in(&msg, &parts);

    swap(&host, false);
    // The timeout of ADD counts, which a busy machine may not meet.
    let mut passed = check(&host, &pod, &config, &added);
    for _ in 0..20 {
        if passed.status != 0 {
            passed = check(&host, &pod, &config, &added);
        }
    }
    passed.ok();
    host.cni("DEL", "c1", &pod, &config).ok();
}

/// The plan knows in which port of which leaf the cable should be; a store of 0.1.0 does not.
#[test]
fn a_silent_gateway_is_told_with_its_leaf_port() {
    let Some(host) = two_rails("probe::leaf") else {
        return;
    };
    swap(&host, true);
    let pod = host.add_netns("pod");
    let ports = |pool: &str, gateway: &str, port: &str| {
        let port = json!({"leaf": "leaf-su0-r0", "port": port});
        (
            pool.to_owned(),
            json!({"gateway": gateway, "ports": [port]}),
        )
    };
    let both = [
        ports("rail-0", "172.16.0.1", "swp2"),
        ports("rail-0-v6", "fd00::2", "swp3"),
    ];
    let both = Value::Object(both.into_iter().collect());
    std::fs::write(host.path("store/node-1/leaf-ports"), both.to_string()).unwrap();
    let parts = [
        "gateway 172.16.0.1 (leaf-su0-r0 swp2)",
        "gateway fd00::2 (leaf-su0-r0 swp3)",
    ];
    let failed = host.cni("ADD", "c1", &pod, &asking("require", POOLS[2]));
    all_in(&failed.error(101)["msg"].to_string(), &parts);
    let config = asking("warn", POOLS[2]);
    let added = host.cni("ADD", "c1", &pod, &config).ok().json();
    all_in(
        &check(&host, &pod, &config, &added).error(100)["msg"].to_string(),
        &parts,
    );
    host.cni("DEL", "c1", &pod, &config).ok();
}

/// A neighbour that the pod has learnt from the right cable is no answer of the wrong one.
#[test]
fn an_answer_of_before_does_not_count() {
    let Some(host) = two_rails("probe::before") else {
        return;
    };
    let pod = host.add_netns("pod");
    let config = asking("warn", POOLS[2]);
    let added = host.cni("ADD", "c1", &pod, &config).ok().json();
    for gateway in ["172.16.0.1", "fd00::2"] {
        let ping = host.run_in(&pod, &format!("ping -c1 -W5 {gateway}"));
        assert_eq!(ping.status, 0, "{ping:?}");
    }
    swap(&host, true);
    let msg = check(&host, &pod, &config, &added).error(100)["msg"].to_string();
    all_in(&msg, &["gateway 172.16.0.1", "gateway fd00::2"]);
}

/// The entry that traffic uses is not removed: it keeps its mark.
#[test]
fn check_of_a_pod_that_runs_forgets_no_gateway_that_answers() {
    let Some(host) = two_rails("probe::gentle") else {
        return;
    };
    let pod = host.add_netns("pod");
    let config = patient(asking("require", POOLS[2]));
    let added = host.cni("ADD", "c1", &pod, &config).ok().json();
    let leaf = Path::new("/run/netns").join(host.leaf());
    let mac = host.json(Some(&leaf), "link show leaf0")[0]["address"]
        .as_str()
        .unwrap()
        .to_owned();
    for state in ["stale", "reachable", "delay", "probe"] {
        for gateway in ["172.16.0.1", "fd00::2"] {
            let entry = format!("{gateway} lladdr {mac} dev net1 nud {state} protocol static");
            host.ip_in(&pod, &format!("neigh replace {entry}"));
        }
        check(&host, &pod, &config, &added).ok();
        let after = host.ip_in(&pod, "neigh show dev net1 nud reachable");
        assert_eq!(after.matches("proto static").count(), 2, "{state}: {after}");
    }
}

/// An entry of the pod is neither believed nor removed.
#[test]
fn a_permanent_neighbour_stays() {
    let Some(host) = two_rails("probe::permanent") else {
        return;
    };
    let pod = host.add_netns("pod");
    let config = asking("require", "rail-0");
    let added = host
        .cni("ADD", "c1", &pod, &patient(config.clone()))
        .ok()
        .json();
    host.ip_in(
        &pod,
        "neigh replace 172.16.0.1 lladdr 02:00:00:00:00:01 nud permanent dev net1",
    );
    let checked = check(&host, &pod, &config, &added).ok();
    all_in(&checked.stderr, &["permanent neighbour 172.16.0.1"]);
    assert!(
        host.ip_in(&pod, "neigh show dev net1")
            .contains("02:00:00:00:00:01 PERMANENT")
    );
}

/// Linux answers for any of its addresses on any port, so ARP cannot tell the ports of such a leaf
/// apart. ND can.
#[test]
fn a_leaf_that_answers_on_any_port_is_found_with_nd_alone() {
    let Some(host) = two_rails("probe::any_port") else {
        return;
    };
    answer_for(&host, 0);
    swap(&host, true);
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &patient(asking("require", "rail-0")))
        .ok();
    host.cni("DEL", "c1", &pod, &asking("require", "rail-0"))
        .ok();
    let config = with(
        asking("require", POOLS[2]),
        json!({"gatewayProbeTimeout": "3s"}),
    );
    let msg = host.cni("ADD", "c1", &pod, &config).error(101)["msg"].to_string();
    assert!(
        msg.contains("fd00::2") && !msg.contains("172.16.0.1"),
        "{msg}"
    );
}

/// The first question is lost, and after the third the kernel by itself has given up.
#[test]
fn a_carrier_that_comes_late_is_waited_for() {
    let Some(host) = two_rails("probe::late") else {
        return;
    };
    let leaf = host.leaf();
    for (pools, seconds) in POOLS.into_iter().zip(["0.3", "0.3", "4"]) {
        let pod = host.add_netns(&format!("pod{}", pools.len()));
        host.ip(&format!("-n {leaf} link set leaf0 down"));
        // The address of IPv6 went with the link.
        let late = format!(
            "sleep {seconds}; ip -n {leaf} link set leaf0 up; ip -n {leaf} addr add fd00::2/64 dev leaf0 nodad"
        );
        let mut switch = Command::new("sh").args(["-c", &late]).spawn().unwrap();
        let config = patient(asking("require", pools));
        let added = host.cni("ADD", "c1", &pod, &config);
        assert!(switch.wait().unwrap().success());
        added.ok();
        host.cni("DEL", "c1", &pod, &config).ok();
    }
}

/// The kernel's own question would come from there, a second or two after the carrier.
#[test]
fn nd_needs_no_link_local_address() {
    let Some(host) = two_rails("probe::link_local") else {
        return;
    };
    let pod = host.add_netns("pod");
    let none = json!({"sysctl": {"net.ipv6.conf.IFNAME.addr_gen_mode": "1"}});
    host.cni(
        "ADD",
        "c1",
        &pod,
        &patient(with(asking("require", "rail-0-v6"), none)),
    )
    .ok();
    assert!(!host.ip_in(&pod, "addr show dev net1").contains("fe80"));
}

#[test]
fn a_missing_carrier_is_told_from_a_missing_answer() {
    let Some(host) = two_rails("probe::carrier") else {
        return;
    };
    host.ip(&format!("-n {} link set leaf0 down", host.leaf()));
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    let msg = host
        .cni("ADD", "c1", &pod, &asking("require", POOLS[2]))
        .error(101)["msg"]
        .to_string();
    all_in(
        &msg,
        &[
            "rail 0: net1",
            &vf_address(0),
            "no carrier",
            "172.16.0.1 and fd00::2",
            "plugged in",
        ],
    );
    assert!(!msg.contains("answer"), "{msg}");
    assert_eq!(host.snapshot(), before);
}

/// The gateway is on a VLAN of the leaf port, and the rail is a VLAN device.
#[test]
fn a_gateway_on_a_vlan_is_asked_with_the_tag() {
    let Some(host) = two_rails("probe::vlan") else {
        return;
    };
    let leaf = host.leaf();
    host.ip("link set vf0 mtu 9000 up");
    let words = "link add link vf0 name vlan0 type vlan id 100".split(' ');
    if !Command::new("ip")
        .args(words)
        .output()
        .unwrap()
        .status
        .success()
    {
        return skip("probe::vlan", "this kernel has no VLAN devices");
    }
    let config = |mode| with(asking(mode, POOLS[2]), json!({"device": "vlan0"}));
    let (one, other) = (host.add_netns("one"), host.add_netns("other"));
    // So far the addresses are on the port itself.
    let msg = host.cni("ADD", "c1", &one, &config("require")).error(101)["msg"].to_string();
    all_in(&msg, &["gateway 172.16.0.1", "gateway fd00::2"]);
    host.ip(&format!("-n {leaf} addr flush dev leaf0"));
    host.ip(&format!(
        "-n {leaf} link add link leaf0 name leaf0.100 type vlan id 100"
    ));
    host.ip(&format!("-n {leaf} addr add 172.16.0.1/31 dev leaf0.100"));
    host.ip(&format!(
        "-n {leaf} addr add fd00::2/64 dev leaf0.100 nodad"
    ));
    host.ip(&format!("-n {leaf} link set leaf0.100 up"));
    host.ip("link set vf0 up");
    host.cni("ADD", "c2", &other, &patient(config("require")))
        .ok();
    host.cni("DEL", "c2", &other, &config("require")).ok();
}

/// An address without a network on the link: no route leads to the gateway itself.
#[test]
fn a_gateway_outside_of_the_prefix_is_asked() {
    let Some(host) = two_rails("probe::host_address") else {
        return;
    };
    let pod = host.add_netns("pod");
    for (address, gateway) in [("172.16.0.0/32", "172.16.0.1"), ("fd00::1/128", "fd00::2")] {
        let config = patient(host.with_static(asking("require", "rail-0"), address, gateway));
        host.cni("ADD", "c1", &pod, &config).ok();
        host.cni("DEL", "c1", &pod, &config).ok();
    }
}

/// There is no netdev to ask through. What was asked for is never silently left out.
#[test]
fn a_userspace_driver_is_refused_where_an_answer_is_required() {
    let Some(host) = Host::new("probe::userspace") else {
        return;
    };
    host.add_rail(0);
    host.make_vf(0, "vfio-pci");
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    let config = |mode| {
        let id = vf_address(0);
        with(
            asking(mode, "rail-0"),
            json!({"device": "", "deviceID": id, "mtu": 0}),
        )
    };
    let msg = host.cni("ADD", "c1", &pod, &config("require")).error(2)["msg"].to_string();
    all_in(
        &msg,
        &["rail 0: ", &vf_address(0), "gatewayProbe", "userspace"],
    );
    assert_eq!(host.snapshot(), before);
    let added = host.cni("ADD", "c1", &pod, &config("warn")).ok();
    all_in(&added.stderr, &[" warn ", "gatewayProbe", "userspace"]);
    check(&host, &pod, &config("warn"), &added.json()).ok();
    host.cni("DEL", "c1", &pod, &config("warn")).ok();
}

#[test]
fn a_rail_without_a_gateway_is_refused_where_an_answer_is_required() {
    let Some(host) = two_rails("probe::none") else {
        return;
    };
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    host.add_static();
    let without = json!({"type": "static", "addresses": [{"address": "172.16.0.0/31"}]});
    for ipam in [json!({}), without] {
        let config = |mode| {
            with(
                asking(mode, "rail-0"),
                json!({"cniVersion": "1.0.0", "ipam": ipam.clone()}),
            )
        };
        let msg = host.cni("ADD", "c1", &pod, &config("require")).error(7)["msg"].to_string();
        all_in(&msg, &["rail 0: gatewayProbe", "gateway"]);
        assert_eq!(host.snapshot(), before);
        let added = host.cni("ADD", "c1", &pod, &config("warn")).ok();
        all_in(&added.stderr, &[" warn ", "gatewayProbe"]);
        check(&host, &pod, &config("warn"), &added.json()).ok();
        host.cni("DEL", "c1", &pod, &config("warn")).ok();
    }
}

#[test]
fn a_value_that_means_nothing_is_refused_with_its_key() {
    let Some(host) = Host::new("probe::values") else {
        return;
    };
    host.add_rail(0);
    let pod = host.add_netns("pod");
    for (key, value) in [
        ("gatewayProbe", json!("on")),
        ("gatewayProbe", json!(true)),
        ("gatewayProbeTimeout", json!("0s")),
        ("gatewayProbeTimeout", json!("31s")),
        ("gatewayProbeTimeout", json!("1")),
        ("gatewayProbeTimeout", json!("soon")),
        ("gatewayProbeTimeout", json!(1)),
    ] {
        let msg = host
            .cni("ADD", "c1", &pod, &with(rail(0), json!({key: value})))
            .error(7)["msg"]
            .to_string();
        all_in(&msg, &[key]);
    }
}
