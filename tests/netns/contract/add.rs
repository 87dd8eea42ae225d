//! tests/contract-items, items 45 to 50: ADD.

use std::path::Path;

use serde_json::{Value, json};

use super::{Bench, config, for_both};
use crate::harness::{Host, rail, with};

/// The state of a namespace that must not change by itself: links, addresses, routes, rules;
/// without the kernel's own of IPv6.
fn state(host: &Host, netns: Option<&Path>) -> Value {
    let see = |args: &str| host.json(netns, args);
    let links = see("addr show");
    let links = links.as_array().unwrap().iter().map(|link| {
        let addresses = link["addr_info"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|address| address["scope"] != "link");
        let addresses: Vec<_> = addresses.map(|address| &address["local"]).collect();
        json!([
            link["ifname"],
            link["address"],
            link["mtu"],
            link["altnames"],
            addresses
        ])
    });
    let links: Vec<_> = links.collect();
    let static6 = "-6 route show table all proto static";
    json!([
        links,
        see("-4 route show table all"),
        see(static6),
        see("rule"),
        see("-6 rule")
    ])
}

/// tests/contract-items, items 45, 49: one interface of exactly that name; the host loses the
/// device and nothing else.
#[test]
fn add_makes_the_interface_and_touches_nothing_else() {
    let Some(bench) = Bench::cni("add::only") else {
        return;
    };
    let before = bench.host.snapshot();
    let routes = |host: &Host| {
        json!([
            host.json(None, "route show table all"),
            host.json(None, "rule")
        ])
    };
    let routes_before = routes(&bench.host);
    bench.call("ADD").ifname("rail-zero").run(&config()).ok();
    let names = bench.host.json(Some(&bench.pod), "link show");
    let names: Vec<_> = names
        .as_array()
        .unwrap()
        .iter()
        .map(|link| &link["ifname"])
        .collect();
    assert_eq!(names, ["lo", "rail-zero"]);
    let mut links = before["links"].clone();
    links.as_object_mut().unwrap().remove("vf0");
    assert_eq!(bench.host.snapshot()["links"], links);
    assert_eq!(routes(&bench.host), routes_before);
}

/// tests/contract-items, item 46, and sriov-cni, whose rollback destroys the interface that was
/// there.
#[test]
fn a_name_that_the_pod_has_is_refused_and_its_interface_untouched() {
    let Some(bench) = Bench::cni("add::taken") else {
        return;
    };
    for make in [
        "link add net1 type veth peer name peer1",
        "link add net1 type bridge",
        "link add other type veth peer name net1",
        "link add named type veth peer name peer1",
    ] {
        bench.host.ip_in(&bench.pod, make);
        if make.contains("named") {
            bench
                .host
                .ip_in(&bench.pod, "link property add dev named altname net1");
        }
        let (before, pod) = (bench.host.snapshot(), state(&bench.host, Some(&bench.pod)));
        let error = bench.call("ADD").run(&config()).error(7);
        assert!(error["msg"].as_str().unwrap().contains("net1"), "{error}");
        assert_eq!(
            (bench.host.snapshot(), state(&bench.host, Some(&bench.pod))),
            (before, pod.clone()),
            "{make}"
        );
        // Multus sends a DEL for what failed.
        bench.call("DEL").run(&config()).ok();
        assert_eq!(state(&bench.host, Some(&bench.pod)), pod, "{make}");
        bench.host.ip_in(&bench.pod, "link del net1");
    }
}

/// tests/contract-items, item 47.
#[test]
fn a_second_add_of_the_same_is_an_error_and_the_first_lives_on() {
    for_both("add::twice", |bench| {
        let config = bench.added(&config());
        let pod = state(&bench.host, Some(&bench.pod));
        let second = bench.call("ADD").run(&super::config());
        assert_eq!(second.status, 1, "{second:?}");
        assert_eq!(state(&bench.host, Some(&bench.pod)), pod);
        bench.call("CHECK").run(&config).ok();
        // An equal key with another device is no way round.
        bench.host.add_rail(1);
        if bench.program == "rail-cni" {
            bench.call("ADD").run(&rail(1)).error(7);
            bench.call("CHECK").run(&config).ok();
        }
    });
}

/// tests/contract-items, item 50, and host-device, which leaves the device in the pod: whatever
/// fails, all goes back.
#[test]
fn an_add_that_fails_leaves_nothing() {
    let Some(bench) = Bench::cni("add::rollback") else {
        return;
    };
    let Bench { host, pod, .. } = &bench;
    host.ip("link property add dev vf0 altname enp1s0v0");
    host.ip("link set vf0 mtu 1400");
    std::fs::write(host.path("devinfo"), "a file where a folder is to be").unwrap();
    host.make_vf(0, "mlx5_core");
    // A route of another interface with the metric of the rail.
    host.ip_in(pod, "link add other type veth peer name peer1");
    host.ip_in(pod, "link set peer1 up");
    host.ip_in(pod, "link set other up");
    host.ip_in(pod, "route add 10.77.0.0/16 dev other metric 1000");
    host.add_plugin(
        "fails",
        r#"[ $CNI_COMMAND = ADD ] && echo '{"code": 120, "msg": "no"}' && exit 1; exit 0"#,
    );
    host.add_plugin("garbage", "[ $CNI_COMMAND = ADD ] && echo garbage; exit 0");
    host.add_plugin(
        "nothing",
        r#"[ $CNI_COMMAND = ADD ] && echo '{"cniVersion": "1.1.0", "ips": []}'; exit 0"#,
    );
    host.add_plugin(
        "impossible",
        r#"[ $CNI_COMMAND = ADD ] && echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24"}, {"address": "ff02::1/64"}]}'; exit 0"#,
    );
    let before = host.snapshot();
    let pod_before = state(host, Some(pod));
    let devinfo = json!({ "CNIDeviceInfoFile": host.path("devinfo/file") });
    for (what, more) in [
        ("IPAM fails", json!({"ipam": {"type": "fails"}})),
        ("IPAM prints garbage", json!({"ipam": {"type": "garbage"}})),
        ("IPAM gives nothing", json!({"ipam": {"type": "nothing"}})),
        ("IPAM is absent", json!({"ipam": {"type": "absent"}})),
        (
            "IPAM gives nonsense",
            json!({"ipam": {"type": "impossible"}}),
        ),
        (
            "no allocation",
            json!({"ipam": {"type": "rail-ipam", "pool": "rail-9"}}),
        ),
        (
            "route is there",
            json!({"routes": [{"dst": "10.77.0.0/16"}]}),
        ),
        (
            "gateway that is not on the link",
            json!({"routes": [{"dst": "10.1.0.0/16"}, {"dst": "10.0.0.0/8", "gw": "10.99.0.1"}]}),
        ),
        (
            "sysctl that is not there",
            json!({"sysctl": {"net.ipv4.conf.IFNAME.unheard_of": "1"}}),
        ),
        (
            "sysctl value",
            json!({"sysctl": {"net.ipv4.conf.IFNAME.rp_filter": "x"}}),
        ),
        ("device-info", json!({ "runtimeConfig": devinfo })),
    ] {
        let config = with(config(), more);
        let failed = bench.call("ADD").run(&config);
        assert_eq!(failed.status, 1, "{what}: {failed:?}");
        assert!(
            failed.json()["msg"]
                .as_str()
                .is_some_and(|msg| !msg.is_empty()),
            "{what}: {failed:?}"
        );
        assert_eq!(host.snapshot(), before, "{what}: {failed:?}");
        assert_eq!(state(host, Some(pod)), pod_before, "{what}");
        bench
            .call("DEL")
            .run(&with(
                super::config(),
                json!({"ipam": {"type": "rail-ipam", "pool": "rail-0"}}),
            ))
            .ok();
        assert_eq!(host.snapshot(), before, "{what}, after DEL");
    }
    bench.call("ADD").run(&config()).ok();
}

/// tests/contract-items, item 50: the failed ADD of one rail leaves the others of the pod alone,
/// for Multus sends DEL for each by itself.
#[test]
fn a_failed_add_leaves_the_other_rails_of_the_pod() {
    let Some(bench) = Bench::cni("add::other") else {
        return;
    };
    bench.host.add_rail(1);
    let first = bench.added(&config());
    let pod = state(&bench.host, Some(&bench.pod));
    // One rail twice, without tables of their own: their routes clash.
    let clash = with(
        rail(1),
        json!({"rail": 0, "routes": [{"dst": "172.16.0.0/15"}], "routing": "destination-based"}),
    );
    let error = bench.call("ADD").ifname("net2").run(&clash).error(7);
    assert!(
        error["msg"].as_str().unwrap().contains("same rail"),
        "{error}"
    );
    assert_eq!(state(&bench.host, Some(&bench.pod)), pod);
    bench.call("DEL").ifname("net2").run(&clash).ok();
    bench.call("CHECK").run(&first).ok();
    bench.call("ADD").ifname("net2").run(&rail(1)).ok();
}

/// tests/contract-items, item 48: what was before us is kept, and its indexes too.
#[test]
fn a_previous_result_is_merged() {
    let Some(bench) = Bench::cni("add::chain") else {
        return;
    };
    let previous = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "br0", "mac": "02:00:00:00:00:0a"}, {"name": "eth0", "sandbox": bench.pod}],
        "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 1}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}],
        "dns": {"nameservers": ["10.0.0.10"]},
    });
    let result = bench
        .call("ADD")
        .run(&with(config(), json!({ "prevResult": previous })))
        .ok()
        .json();
    assert_eq!(result["interfaces"][0], previous["interfaces"][0]);
    assert_eq!(result["interfaces"][1], previous["interfaces"][1]);
    assert_eq!(result["interfaces"][2]["name"], "net1");
    assert_eq!(result["ips"][0], previous["ips"][0]);
    assert_eq!(
        result["ips"][1],
        json!({"address": "172.16.0.0/31", "gateway": "172.16.0.1", "interface": 2})
    );
    assert_eq!(result["routes"][0], previous["routes"][0]);
    assert_eq!(result["dns"], previous["dns"]);
    bench
        .call("CHECK")
        .run(&with(config(), json!({ "prevResult": result })))
        .ok();
}

/// tests/contract-items, item 71.
#[test]
fn a_previous_result_that_cannot_be_read_is_an_error_for_add_alone() {
    let Some(bench) = Bench::cni("add::prev_garbage") else {
        return;
    };
    let before = bench.host.snapshot();
    for bad in [
        json!("x"),
        json!([]),
        json!(7),
        json!({"cniVersion": "9.9.9"}),
        json!({"ips": [{"address": "10.0.0.1"}]}),
    ] {
        let config = with(config(), json!({ "prevResult": bad }));
        bench
            .call("ADD")
            .run(&config)
            .error(if bad["cniVersion"] == "9.9.9" { 1 } else { 6 });
        assert_eq!(bench.host.snapshot(), before, "{bad}");
        bench.call("ADD").run(&super::config()).ok();
        bench.call("DEL").run(&config).ok();
        assert_eq!(bench.host.snapshot(), before, "{bad}");
    }
    for lenient in [
        json!({}),
        json!(null),
        json!({"CNIVersion": "1.0.0", "ips": null, "dns": null, "x": [1]}),
        json!({"ips": []}),
    ] {
        bench
            .call("ADD")
            .run(&with(config(), json!({ "prevResult": lenient })))
            .ok();
        bench
            .call("DEL")
            .run(&with(config(), json!({ "prevResult": lenient })))
            .ok();
    }
}
