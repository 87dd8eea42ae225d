//! tests/contract-items, items 115 to 120: rail-ipam alone, and as the IPAM of other plugins.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{self, Call, Host, Ran, UPSTREAM, skip, with};

/// A network whose pool is `pool`.
fn network(pool: &str) -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "any", "ipam": {"type": "rail-ipam", "pool": pool}})
}

/// Like [`network`], with the pool in the configuration: `node-1` has `prefix` of `cidr`.
fn inline(cidr: &str, prefix: &str, gateway: &str, more: Value) -> Value {
    let length: u8 = prefix.split_once('/').unwrap().1.parse().unwrap();
    let row = json!({"nodeName": "node-1", "prefix": prefix, "gateway": gateway});
    let ipam = json!({"type": "rail-ipam", "cidr": cidr, "perNodeNetworkPrefix": length, "staticAllocations": [row]});
    with(network("inline"), json!({ "ipam": with(ipam, more) }))
}

struct Pool {
    host: Host,
    pod: PathBuf,
}

impl Pool {
    /// A node without anything planned, and a pod.
    fn new(test: &str) -> Option<Pool> {
        let host = Host::new(test)?;
        let pod = host.add_netns("pod");
        Some(Pool { host, pod })
    }

    /// Pool `p` with an allocation of any shape.
    fn allocate(&self, pool: &str, allocation: Value) {
        let dir = self.host.path("store/node-1");
        fs::create_dir_all(&dir).unwrap();
        let allocation = with(json!({"version": 1}), allocation);
        fs::write(dir.join(format!("{pool}.json")), allocation.to_string()).unwrap();
    }

    fn call(&self, verb: &str, container: &str) -> Call {
        self.host.call(verb, container, &self.pod).ipam()
    }

    /// The addresses that ADD gave.
    #[track_caller]
    fn add(&self, container: &str, config: &Value) -> Vec<String> {
        addresses(&self.call("ADD", container).run(config).ok())
    }

    #[track_caller]
    fn del(&self, container: &str, config: &Value) {
        assert_eq!(self.call("DEL", container).run(config).ok().stdout, "");
    }

    /// ADD must be refused with this code and text, and nothing be held that was not.
    #[track_caller]
    fn refused(&self, config: &Value, code: u32, text: &str) {
        let before = self.host.leases();
        let error = self.call("ADD", "refused").run(config).error(code);
        assert!(
            error["msg"].as_str().unwrap().contains(text),
            "no {text:?} in {error}"
        );
        assert_eq!(self.host.leases(), before);
    }
}

fn addresses(added: &Ran) -> Vec<String> {
    let json = added.json();
    json["ips"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ip| ip["address"].as_str().unwrap().to_owned())
        .collect()
}

/// tests/contract-items, items 116, 120: the lowest free host address, never the gateway; then
/// error 11.
#[test]
fn prefixes_of_every_length_give_their_host_addresses_in_order() {
    let shapes: [(&str, Option<&str>, &[&str]); 11] = [
        ("172.16.1.60/31", Some("172.16.1.61"), &["172.16.1.60/31"]),
        ("172.16.1.60/31", Some("172.16.1.60"), &["172.16.1.61/31"]),
        (
            "172.16.1.60/31",
            None,
            &["172.16.1.60/31", "172.16.1.61/31"],
        ),
        ("10.0.0.0/30", Some("10.0.0.1"), &["10.0.0.2/30"]),
        ("10.0.0.0/30", Some("10.0.0.2"), &["10.0.0.1/30"]),
        (
            "10.0.0.8/29",
            Some("10.0.0.9"),
            &[
                "10.0.0.10/29",
                "10.0.0.11/29",
                "10.0.0.12/29",
                "10.0.0.13/29",
                "10.0.0.14/29",
            ],
        ),
        ("10.0.0.7/32", None, &["10.0.0.7/32"]),
        ("fd00::/127", Some("fd00::1"), &["fd00::/127"]),
        ("fd00::/127", Some("fd00::"), &["fd00::1/127"]),
        ("fd00::7/128", None, &["fd00::7/128"]),
        (
            "fd00::/126",
            Some("fd00::1"),
            &["fd00::2/126", "fd00::3/126"],
        ),
    ];
    let Some(pool) = Pool::new("ipam::shapes") else {
        return;
    };
    for (prefix, gateway, expected) in shapes {
        pool.allocate("p", json!({"prefix": prefix, "gateway": gateway}));
        let config = network("p");
        pool.call("STATUS", "").run(&config).ok();
        for (n, address) in expected.iter().enumerate() {
            let result = pool.call("ADD", &format!("c{n}")).run(&config).ok().json();
            let mut ip = json!({ "address": address });
            if let Some(gateway) = gateway {
                ip["gateway"] = json!(gateway);
            }
            assert_eq!(result, json!({"cniVersion": "1.1.0", "ips": [ip]}));
        }
        pool.refused(&config, 11, "container c0");
        pool.call("STATUS", "").run(&config).ok();
        // A released address is given out again.
        pool.del("c0", &config);
        assert_eq!(pool.add("next", &config), [expected[0]]);
        pool.del("next", &config);
        (1..expected.len()).for_each(|n| pool.del(&format!("c{n}"), &config));
        assert!(pool.host.leases().is_empty());
    }
}

/// A large prefix holds many pods, and is not walked.
#[test]
fn large_prefixes_serve_many() {
    let Some(pool) = Pool::new("ipam::large") else {
        return;
    };
    for (prefix, gateway, first) in [
        ("10.0.0.0/24", "10.0.0.1", "10.0.0."),
        ("fd00::/64", "fd00::1", "fd00::"),
    ] {
        pool.allocate("p", json!({"prefix": prefix, "gateway": gateway}));
        let length = prefix.split_once('/').unwrap().1;
        for n in 2..12 {
            let expected = if prefix.starts_with("10") {
                format!("{first}{n}/{length}")
            } else {
                format!("{first}{n:x}/{length}")
            };
            assert_eq!(pool.add(&format!("c{n}"), &network("p")), [expected]);
        }
        (2..12).for_each(|n| pool.del(&format!("c{n}"), &network("p")));
    }
}

/// tests/contract-items, item 116: routes by the gateway, and no default route.
#[test]
fn the_routes_of_the_pool_lead_through_its_gateway() {
    let Some(pool) = Pool::new("ipam::routes") else {
        return;
    };
    let routes = json!([{"dst": "172.16.0.0/15"}, {"dst": "172.16.0.0/12"}]);
    pool.allocate(
        "p",
        json!({"prefix": "172.16.1.60/31", "gateway": "172.16.1.61", "routes": routes}),
    );
    let added = pool.call("ADD", "c1").run(&network("p")).ok().json();
    assert_eq!(
        added["routes"],
        json!([{"dst": "172.16.0.0/15", "gw": "172.16.1.61"}, {"dst": "172.16.0.0/12", "gw": "172.16.1.61"}])
    );
    pool.del("c1", &network("p"));
    let config = inline(
        "10.0.0.0/16",
        "10.0.0.0/31",
        "10.0.0.1",
        json!({"defaultGateway": true, "gatewayIndex": 1, "routes": [{"dst": "10.0.0.0/8"}]}),
    );
    let ran = pool.call("ADD", "c1").run(&config).ok();
    assert_eq!(
        ran.json()["routes"],
        json!([{"dst": "10.0.0.0/8", "gw": "10.0.0.1"}])
    );
    assert!(ran.stderr.contains("warn"), "{ran:?}");
}

/// Excluded addresses, in the store and inline, of the pool and of each node.
#[test]
fn excluded_addresses_are_given_to_nobody() {
    let Some(pool) = Pool::new("ipam::exclusions") else {
        return;
    };
    let range = |start: &str, end: &str| json!([{"startIP": start, "endIP": end}]);
    pool.allocate(
        "p",
        json!({"prefix": "10.0.0.0/24", "gateway": "10.0.0.1", "exclusions": range("10.0.0.2", "10.0.0.9")}),
    );
    assert_eq!(pool.add("c1", &network("p")), ["10.0.0.10/24"]);
    pool.refused(
        &with(
            network("p"),
            json!({"runtimeConfig": {"ips": ["10.0.0.5"]}}),
        ),
        7,
        "10.0.0.5",
    );
    for (more, expected) in [
        (
            json!({"exclusions": range("10.1.0.1", "10.1.0.20")}),
            "10.1.0.21/24",
        ),
        (
            json!({"perNodeExclusions": [{"startIndex": 1, "endIndex": 5}]}),
            "10.1.0.6/24",
        ),
        (
            json!({"exclusions": range("10.1.0.2", "10.1.0.3"), "perNodeExclusions": [{"startIndex": 4, "endIndex": 4}]}),
            "10.1.0.1/24",
        ),
    ] {
        let config = inline("10.1.0.0/16", "10.1.0.0/24", "10.1.0.254", more);
        assert_eq!(pool.add("inline", &config), [expected]);
        pool.del("inline", &config);
    }
    pool.allocate(
        "full",
        json!({"prefix": "10.2.0.0/31", "gateway": "10.2.0.1", "exclusions": range("10.2.0.0", "10.2.0.0")}),
    );
    pool.refused(&network("full"), 7, "10.2.0.0/31");
    pool.call("STATUS", "").run(&network("full")).error(50);
}

/// A network of 1.5 MiB is small: what it makes rail-ipam take as root must be, too.
#[test]
fn a_pool_of_many_rows_and_exclusions_costs_no_more_memory_than_its_text() {
    let Some(pool) = Pool::new("ipam::many_rows") else {
        return;
    };
    let rows = (0..1500).map(|row| match row {
        1234 => json!({"nodeName": "node-1", "prefix": "fd00:0:0:4d2::/64"}),
        _ => json!({"nodeName": format!("n{row}"), "prefix": format!("fd00:0:0:{row:x}::/64")}),
    });
    // None touches another, so that they do not become one.
    let exclusions = (0..1500).map(|index| json!({"startIndex": 2 * index, "endIndex": 2 * index}));
    let routes = (0..1500).map(|net| json!({ "dst": format!("fd01:0:0:{net:x}::/64") }));
    let more = json!({"gatewayIndex": 1, "staticAllocations": rows.collect::<Vec<_>>(),
        "perNodeExclusions": exclusions.collect::<Vec<_>>(), "routes": routes.collect::<Vec<_>>()});
    let config = inline("fd00::/48", "fd00:0:0:4d2::/64", "fd00:0:0:4d2::1", more);
    let within = |verb: &str| {
        pool.call(verb, "c")
            .under(&["prlimit", "--data=60000000", "--"])
            .run(&config)
    };
    let added = within("ADD").ok();
    assert_eq!(addresses(&added), ["fd00:0:0:4d2::3/64"]);
    within("STATUS").ok();
    within("DEL").ok();
}

/// A network, which a tenant may have written, takes nothing of what was planned.
#[test]
fn a_pool_in_a_network_takes_neither_name_nor_addresses_of_the_plan() {
    let Some(pool) = Pool::new("ipam::beside") else {
        return;
    };
    let route = json!([{"dst": "172.16.0.0/12"}]);
    pool.allocate(
        "rail-0",
        json!({"prefix": "10.0.0.60/31", "gateway": "10.0.0.61", "routes": route}),
    );
    pool.allocate(
        "rail-0-v6",
        json!({"prefix": "fd00:10::/127", "gateway": "fd00:10::1"}),
    );
    let of = |cidr: &str, prefix: &str, gateway: &str| inline(cidr, prefix, gateway, json!({}));
    let free = of("10.9.0.0/16", "10.9.0.0/31", "10.9.0.1");
    let mut named = free.clone();
    named["ipam"]["pool"] = json!("rail-0");
    let refused: [(&Value, &[&str]); 6] = [
        (&named, &["pool rail-0 "]),
        (
            &of("10.0.0.0/16", "10.0.0.60/31", "10.0.0.61"),
            &[
                "pool net: 10.0.0.60/31 overlaps 10.0.0.60/31",
                "pool rail-0:",
            ],
        ),
        (
            &of("10.0.0.0/16", "10.0.0.0/24", "10.0.0.1"),
            &["10.0.0.0/24 overlaps 10.0.0.60/31", "pool rail-0:"],
        ),
        (
            &of("172.20.0.0/16", "172.20.0.0/31", "172.20.0.1"),
            &["overlaps 172.16.0.0/12, the fabric", "pool rail-0:"],
        ),
        (
            &of("172.0.0.0/7", "172.0.0.0/8", "172.0.0.1"),
            &["overlaps 172.16.0.0/12, the fabric", "pool rail-0:"],
        ),
        (
            &of("fd00:10::/64", "fd00:10::/120", "fd00:10::9"),
            &["overlaps fd00:10::/127", "pool rail-0-v6:"],
        ),
    ];
    for (config, told) in refused {
        told.iter().for_each(|told| pool.refused(config, 7, told));
        pool.call("STATUS", "").run(config).error(50);
    }
    assert_eq!(pool.add("c1", &free), ["10.9.0.0/31"]);
    // DEL asks neither plan nor policy.
    pool.allocate(
        "later",
        json!({"prefix": "10.9.0.0/24", "gateway": "10.9.0.1"}),
    );
    pool.refused(&free, 7, "later");
    pool.del("c1", &free);
    // Another node's plan is none of ours.
    pool.host.set_node(json!({"nodeName": "node-2"}));
    let text = free.to_string().replace("node-1", "node-2");
    assert_eq!(
        pool.add("c1", &serde_json::from_str(&text).unwrap()),
        ["10.9.0.0/31"]
    );
    pool.host
        .set_node(json!({"nodeName": "node-2", "policy": {"inlinePools": false}}));
    pool.del("c1", &free);
    assert!(pool.host.leases().is_empty());
}

/// Whether there are such pools at all is the operator's choice.
#[test]
fn pools_in_networks_can_be_forbidden() {
    let Some(pool) = Pool::new("ipam::forbidden") else {
        return;
    };
    let config = inline("10.9.0.0/16", "10.9.0.0/31", "10.9.0.1", json!({}));
    pool.allocate(
        "p",
        json!({"prefix": "172.16.0.0/31", "gateway": "172.16.0.1"}),
    );
    pool.add("c1", &config);
    pool.host
        .set_node(json!({"policy": {"inlinePools": false}}));
    pool.refused(&config, 7, "policy.inlinePools");
    pool.call("STATUS", "").run(&config).error(50);
    pool.add("planned", &network("p"));
    pool.del("c1", &config);
    pool.host.set_node(json!({"policy": {"inlinePools": true}}));
    pool.add("c1", &config);
}

/// cloud-init, DHCP or rail-agent gives the node another name, and a plan its pools: no address of
/// a running pod is assigned again, and its DEL releases it.
#[test]
fn an_address_is_the_nodes_whatever_node_and_pool_are_called() {
    let Some(pool) = Pool::new("ipam::renamed") else {
        return;
    };
    let shape = json!({"prefix": "172.16.0.0/31", "gateway": "172.16.0.1"});
    pool.allocate("p", shape);
    pool.add("c1", &network("p"));
    let store = pool.host.path("store");
    fs::create_dir(store.join("node-2")).unwrap();
    fs::copy(store.join("node-1/p.json"), store.join("node-2/q.json")).unwrap();
    pool.host.set_node(json!({"nodeName": "node-2"}));
    pool.refused(&network("q"), 11, "172.16.0.0 is held by");
    pool.del("c1", &network("p"));
    pool.add("c2", &network("q"));
    pool.del("c2", &network("q"));
    assert!(pool.host.leases().is_empty());
}

/// tests/contract-items, items 117, 121.
#[test]
fn adds_and_dels_of_the_last_lease_at_the_same_time_all_succeed() {
    let Some(pool) = Pool::new("ipam::churn") else {
        return;
    };
    let pools = ["a", "b", "c", "d"];
    for (n, name) in pools.iter().enumerate() {
        pool.allocate(
            name,
            json!({"prefix": format!("172.16.{n}.0/31"), "gateway": format!("172.16.{n}.1")}),
        );
    }
    let life = |name: &str, mut adds: Vec<Call>| {
        for call in adds.iter_mut() {
            let config = network(name);
            call.run(&config).ok();
            call.clone().var("CNI_COMMAND", "DEL").run(&config).ok();
        }
    };
    std::thread::scope(|scope| {
        for name in pools {
            let calls = (0..40)
                .map(|n| pool.call("ADD", &format!("{name}{n}")))
                .collect();
            scope.spawn(move || life(name, calls));
        }
    });
    assert!(pool.host.leases().is_empty());
}

/// tests/contract-items, item 119: runtimeConfig.ips over args.cni.ips over CNI_ARGS IP; with or
/// without a prefix.
#[test]
fn the_requested_address_of_the_highest_source_is_given() {
    let Some(pool) = Pool::new("ipam::requested") else {
        return;
    };
    pool.allocate("p", json!({"prefix": "10.0.0.0/24", "gateway": "10.0.0.1"}));
    pool.allocate("six", json!({"prefix": "fd00::/64", "gateway": "fd00::1"}));
    let ask = |more: Value, args: &str, expected: &[&str]| {
        let names = if expected.len() == 2 { "p,six" } else { "p" };
        let config = with(network(names), more);
        let ran = pool
            .call("ADD", "c1")
            .var("CNI_ARGS", args)
            .run(&config)
            .ok();
        assert_eq!(addresses(&ran), expected);
        pool.del("c1", &config);
    };
    let runtime = json!({"ips": ["10.0.0.33/24"]});
    let args = json!({"cni": {"ips": ["10.0.0.44"]}});
    ask(
        json!({"runtimeConfig": runtime, "args": args}),
        "IP=10.0.0.55",
        &["10.0.0.33/24"],
    );
    ask(json!({ "args": args }), "IP=10.0.0.55", &["10.0.0.44/24"]);
    ask(json!({}), "IgnoreUnknown=1;IP=10.0.0.55", &["10.0.0.55/24"]);
    ask(json!({}), "IP=10.0.0.55/24", &["10.0.0.55/24"]);
    ask(
        json!({"runtimeConfig": {"IPs": null, "ips": []}}),
        "IP=",
        &["10.0.0.2/24"],
    );
    // Multus writes a list, of both families in any order.
    ask(
        json!({}),
        "IP=fd00::77,10.0.0.55",
        &["10.0.0.55/24", "fd00::77/64"],
    );
    ask(
        json!({"runtimeConfig": {"ips": ["fd00::77/64"]}}),
        "",
        &["10.0.0.2/24", "fd00::77/64"],
    );

    for (address, code) in [
        ("10.0.0.1", 7),
        ("10.0.0.0", 7),
        ("10.0.0.255", 7),
        ("10.0.1.2", 7),
        ("fd00::5", 7),
        ("10.0.0.5/16", 7),
        ("nonsense", 7),
        ("10.0.0.300", 7),
    ] {
        pool.refused(
            &with(network("p"), json!({"runtimeConfig": {"ips": [address]}})),
            code,
            address.split('/').next().unwrap(),
        );
    }
    pool.add(
        "c1",
        &with(
            network("p"),
            json!({"runtimeConfig": {"ips": ["10.0.0.5"]}}),
        ),
    );
    pool.refused(
        &with(
            network("p"),
            json!({"runtimeConfig": {"ips": ["10.0.0.5"]}}),
        ),
        11,
        "container c1",
    );
    pool.refused(
        &with(
            network("p"),
            json!({"runtimeConfig": {"ips": ["10.0.0.6", "10.0.0.7"]}}),
        ),
        7,
        "10.0.0.7",
    );
}

/// Both or none: half an address would be a rail that works in one family.
#[test]
fn two_pools_give_both_or_nothing() {
    let Some(pool) = Pool::new("ipam::two") else {
        return;
    };
    pool.allocate(
        "four",
        json!({"prefix": "172.16.0.0/31", "gateway": "172.16.0.1"}),
    );
    pool.allocate("six", json!({"prefix": "fd00::/127", "gateway": "fd00::1"}));
    assert_eq!(
        pool.add("c1", &network("four,six")),
        ["172.16.0.0/31", "fd00::/127"]
    );
    assert_eq!(pool.host.leases().len(), 2);
    pool.refused(&network("six"), 11, "c1");
    pool.del("c1", &network("four,six"));
    for blocked in ["four", "six"] {
        pool.add("holder", &network(blocked));
        pool.refused(&network("four,six"), 11, "holder");
        pool.refused(&network("six,four"), 11, "holder");
        assert_eq!(pool.host.leases().len(), 1);
        pool.del("holder", &network(blocked));
    }
    pool.refused(&network("four,absent"), 7, "absent");
    assert!(pool.host.leases().is_empty());
}

/// No address is invented, for no leaf would answer for it; near misses are named.
#[test]
fn a_node_without_an_allocation_gets_none() {
    let Some(pool) = Pool::new("ipam::none") else {
        return;
    };
    pool.refused(&network("p"), 7, "node-1");
    for (name, file, told) in [
        ("Node-1", "node-1", "node-1"),
        ("node-1.example.com", "node-1", "node-1"),
        ("node-1", "NODE-1.local", "NODE-1.local"),
    ] {
        let _ = fs::remove_dir_all(pool.host.path("store"));
        fs::create_dir_all(pool.host.path(&format!("store/{file}"))).unwrap();
        fs::write(pool.host.path(&format!("store/{file}/p.json")), "{}").unwrap();
        pool.host.set_node(json!({ "nodeName": name }));
        pool.refused(&network("p"), 7, told);
        pool.call("STATUS", "").run(&network("p")).error(50);
    }
    let _ = fs::remove_dir_all(pool.host.path("store"));
    pool.host.set_node(json!({}));
    for damage in [
        "",
        "{",
        "[]",
        r#"{"version": 9}"#,
        r#"{"version": 1, "prefix": "10.0.0.1/24"}"#,
    ] {
        fs::create_dir_all(pool.host.path("store/node-1")).unwrap();
        fs::write(pool.host.path("store/node-1/p.json"), damage).unwrap();
        pool.refused(&network("p"), 6, "p.json");
    }
}

/// One wrong row in a NAD, and a job hangs without a message.
#[test]
fn the_pool_of_another_rail_is_refused() {
    let Some(pool) = Pool::new("ipam::rail") else {
        return;
    };
    pool.allocate(
        "rail-4",
        json!({"prefix": "172.24.0.0/31", "gateway": "172.24.0.1", "rail": 4}),
    );
    let of_rail = |rail: u8| with(network("rail-4"), json!({ "rail": rail }));
    pool.refused(&of_rail(3), 7, "pool rail-4 ");
    pool.call("STATUS", "").run(&of_rail(3)).error(50);
    assert_eq!(pool.add("pod", &of_rail(4)), ["172.24.0.0/31"]);
    pool.del("pod", &of_rail(3));
    // A network without a rail, as older NADs are, gets an address of the pool.
    assert_eq!(pool.add("pod", &network("rail-4")), ["172.24.0.0/31"]);
}

/// One network serves all rails: rail-cni says which one a device is on.
#[test]
fn without_a_pool_the_rail_tells_the_pools_of_both_families() {
    let Some(pool) = Pool::new("ipam::rail_tells") else {
        return;
    };
    let plan = |name: &str, prefix: &str, gateway: &str, rail: Value| {
        pool.allocate(
            name,
            json!({"prefix": prefix, "gateway": gateway, "rail": rail}),
        );
    };
    plan("gpu-a-v6", "fd00::/127", "fd00::1", json!(1));
    plan("gpu-b", "172.18.0.0/31", "172.18.0.1", json!(1));
    plan("gpu-c", "172.20.0.0/31", "172.20.0.1", json!(2));
    plan("net", "10.0.0.0/31", "10.0.0.1", json!(null));
    let of = |rail: u8| json!({"cniVersion": "1.1.0", "name": "net", "type": "any", "rail": rail, "ipam": {"type": "rail-ipam"}});
    assert_eq!(pool.add("c1", &of(1)), ["172.18.0.0/31", "fd00::/127"]);
    assert_eq!(pool.add("c2", &of(2)), ["172.20.0.0/31"]);
    let result = pool.call("ADD", "c3").run(&of(3)).ok().json();
    assert_eq!(
        result["ips"][0]["address"], "10.0.0.0/31",
        "the pool of the network's name is of no rail"
    );
    pool.call("CHECK", "c3")
        .run(&with(of(3), json!({ "prevResult": result })))
        .ok();
    pool.call("STATUS", "").run(&of(1)).ok();
    let stranger = |rail: u8| with(of(rail), json!({"name": "rails"}));
    pool.refused(&stranger(3), 7, "rail 3");
    pool.call("STATUS", "").run(&stranger(3)).error(50);
    plan("storage", "10.1.0.0/31", "10.1.0.1", json!(2));
    pool.del("c2", &of(2));
    pool.refused(&of(2), 7, "gpu-c");
    pool.allocate("rail-2-old", json!({"prefix": "nonsense"}));
    pool.refused(&of(2), 6, "rail-2-old.json");
    pool.del("c1", &of(1));
    assert_eq!(
        pool.add("c1", &of(1)).len(),
        2,
        "what is damaged is of another rail"
    );
}

/// Names that count from 1 mean either rail: none is guessed.
#[test]
fn names_tell_the_rail_only_if_they_count_from_0_and_no_pool_contradicts() {
    let Some(pool) = Pool::new("ipam::rail_names") else {
        return;
    };
    pool.allocate(
        "rail-1",
        json!({"prefix": "172.18.0.0/31", "gateway": "172.18.0.1"}),
    );
    let network = json!({"cniVersion": "1.1.0", "name": "rails", "type": "any", "rail": 1, "ipam": {"type": "rail-ipam"}});
    pool.refused(&network, 7, "rail 1");
    pool.allocate(
        "rail-0",
        json!({"prefix": "172.16.0.0/31", "gateway": "172.16.0.1"}),
    );
    assert_eq!(pool.add("c1", &network), ["172.18.0.0/31"]);
    pool.del("c1", &network);
    let with_rail =
        |rail| json!({"prefix": "172.16.0.0/31", "gateway": "172.16.0.1", "rail": rail});
    pool.allocate("rail-0", with_rail(0));
    assert_eq!(pool.add("c1", &network), ["172.18.0.0/31"]);
    pool.del("c1", &network);
    pool.allocate("rail-0", with_rail(3));
    pool.refused(&network, 7, "rail 1");
}

/// tests/contract-items, items 117, 121: 64 at once, one address.
#[test]
fn of_64_for_one_address_one_wins_and_the_others_learn_who() {
    let Some(pool) = Pool::new("ipam::parallel") else {
        return;
    };
    pool.allocate(
        "p",
        json!({"prefix": "172.16.0.0/31", "gateway": "172.16.0.1"}),
    );
    let children: Vec<_> = (0..64)
        .map(|n| {
            let mut child = pool
                .call("ADD", &format!("c{n}"))
                .command()
                .spawn()
                .unwrap();
            std::io::Write::write_all(
                child.stdin.as_mut().unwrap(),
                network("p").to_string().as_bytes(),
            )
            .unwrap();
            child
        })
        .collect();
    let ran: Vec<Ran> = children
        .into_iter()
        .map(|child| child.wait_with_output().unwrap().into())
        .collect();
    let (won, lost): (Vec<_>, Vec<_>) =
        ran.iter().enumerate().partition(|(_, ran)| ran.status == 0);
    assert_eq!((won.len(), lost.len()), (1, 63));
    let holder = format!("net1 of pod default/pod (container c{})", won[0].0);
    for (_, ran) in lost {
        let error = ran.error(11);
        assert!(error["msg"].as_str().unwrap().contains(&holder), "{error}");
    }
}

/// An address of the dead is taken over, for DEL may never have come; one of the living is not.
#[test]
fn an_address_is_taken_over_from_the_dead_only() {
    let Some(pool) = Pool::new("ipam::takeover") else {
        return;
    };
    pool.allocate(
        "p",
        json!({"prefix": "172.16.0.0/31", "gateway": "172.16.0.1"}),
    );
    let config = network("p");
    let old = pool.host.add_netns("old");
    let add =
        |container: &str, netns: &Path| pool.host.call("ADD", container, netns).ipam().run(&config);
    add("old", &old).ok();
    let error = add("new", &pool.pod).error(11);
    let msg = error["msg"].as_str().unwrap();
    assert!(
        [
            "172.16.0.0",
            "net1",
            "default/pod",
            "container old",
            "since 20"
        ]
        .iter()
        .all(|part| msg.contains(part)),
        "{msg}"
    );

    pool.host.delete_netns(&old);
    pool.call("STATUS", "").run(&config).ok();
    let taken = add("new", &pool.pod).ok();
    assert_eq!(addresses(&taken), ["172.16.0.0/31"]);
    assert!(
        taken.stderr.contains("taken over") && taken.stderr.contains("old"),
        "{taken:?}"
    );
    // The late DEL of the dead leaves it alone.
    pool.del("old", &config);
    assert_eq!(pool.host.leases().len(), 1);

    // Another namespace under the same path is not the same.
    let again = pool.host.add_netns("old");
    pool.del("new", &config);
    add("old", &again).ok();
    pool.host.delete_netns(&again);
    pool.host.add_netns("old");
    add("new", &pool.pod).ok();
    pool.del("new", &config);

    // A lease of another boot is dead, whatever its path says.
    add("old", &pool.pod).ok();
    let [file] = &pool.host.leases()[..] else {
        panic!()
    };
    let lease: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let other_boot = with(
        lease,
        json!({"bootId": "00000000-0000-0000-0000-000000000000"}),
    );
    fs::write(file, other_boot.to_string()).unwrap();
    add("new", &pool.pod).ok();
    pool.del("new", &config);

    // A lease without a namespace that could be looked at is never dead.
    pool.host
        .call("ADD", "blind", Path::new("/nonexistent/netns"))
        .ipam()
        .run(&config)
        .ok();
    add("new", &pool.pod).error(11);
}

/// A namespace without a path lives on while a process is in it, and its NIC answers for the
/// address.
#[test]
fn an_address_in_a_namespace_that_a_process_keeps_is_not_taken_over() {
    let Some(pool) = Pool::new("ipam::kept") else {
        return;
    };
    pool.allocate(
        "p",
        json!({"prefix": "172.16.0.0/31", "gateway": "172.16.0.1"}),
    );
    let old = pool.host.add_netns("old");
    let add = |container: &str, netns: &Path| {
        pool.host
            .call("ADD", container, netns)
            .ipam()
            .run(&network("p"))
    };
    add("old", &old).ok();
    pool.host.ip_in(&old, "addr add 172.16.0.0/31 dev lo");
    let keeper = harness::Sleeper::new(Some(&old));
    pool.host.delete_netns(&old);
    let error = add("new", &pool.pod).error(11);
    assert!(
        error["msg"]
            .as_str()
            .unwrap()
            .contains(&format!("process {} ", keeper.pid())),
        "{error}"
    );
    drop(keeper);
    add("new", &pool.pod).ok();
}

/// tests/contract-items, item 120: no second address for the same key; but a sandbox that was made
/// anew gets it.
#[test]
fn a_second_add_of_the_same_is_an_error() {
    let Some(pool) = Pool::new("ipam::twice") else {
        return;
    };
    pool.allocate("p", json!({"prefix": "10.0.0.0/24", "gateway": "10.0.0.1"}));
    pool.add("c1", &network("p"));
    let error = pool.call("ADD", "c1").run(&network("p")).error(11);
    assert!(
        error["msg"].as_str().unwrap().contains("10.0.0.2"),
        "{error}"
    );
    assert_eq!(pool.host.leases().len(), 1);
    // Another interface, another network: other keys.
    pool.call("ADD", "c1")
        .ifname("net2")
        .run(&network("p"))
        .ok();
    pool.call("ADD", "c1")
        .run(&with(network("p"), json!({"name": "other"})))
        .ok();
    assert_eq!(pool.host.leases().len(), 3);
    // tests/contract-items, item 85.
    pool.del("c1", &network("p"));
    assert_eq!(pool.host.leases().len(), 2);
}

/// tests/contract-items, items 118, 115: nothing but the key.
#[test]
fn del_needs_neither_pool_nor_store_nor_namespace_nor_the_name_of_the_node() {
    let Some(pool) = Pool::new("ipam::del") else {
        return;
    };
    let shape = json!({"prefix": "172.16.0.0/31", "gateway": "172.16.0.1"});
    let config = network("p");
    let no_ipam = with(config.clone(), json!({ "ipam": null }));
    let changes: [(&str, &dyn Fn(), &Value); 9] = [
        (
            "store gone",
            &|| fs::remove_dir_all(pool.host.path("store")).unwrap(),
            &config,
        ),
        (
            "allocation damaged",
            &|| fs::write(pool.host.path("store/node-1/p.json"), "x").unwrap(),
            &config,
        ),
        (
            "prefix changed",
            &|| pool.allocate("p", json!({"prefix": "10.9.0.0/31"})),
            &config,
        ),
        ("other pool", &|| (), &network("other")),
        ("pool of a bad name", &|| (), &network("../p")),
        ("no IPAM", &|| (), &no_ipam),
        (
            "node renamed",
            &|| pool.host.set_node(json!({"nodeName": "renamed"})),
            &config,
        ),
        (
            "node name invalid",
            &|| pool.host.set_node(json!({"nodeName": "a/b"})),
            &config,
        ),
        (
            "node.json has a new key",
            &|| pool.host.set_node(json!({"unheardOf": 1})),
            &config,
        ),
    ];
    for (what, change, del_config) in changes {
        pool.host.set_node(json!({}));
        pool.allocate("p", shape.clone());
        pool.add("c1", &config);
        change();
        for netns in ["", "/nonexistent"] {
            pool.call("DEL", "c1")
                .var("CNI_NETNS", netns)
                .without("CNI_ARGS")
                .run(del_config)
                .ok();
            assert!(pool.host.leases().is_empty(), "{what}");
        }
    }
}

/// tests/contract-items, item 118: a lease that cannot be read is given back by its name.
#[test]
fn del_gives_back_a_lease_that_cannot_be_read() {
    let Some(pool) = Pool::new("ipam::damaged") else {
        return;
    };
    pool.allocate(
        "p",
        json!({"prefix": "172.16.0.0/31", "gateway": "172.16.0.1"}),
    );
    for damage in ["", "{", "\u{0}", "{}", "[]"] {
        pool.add("c1", &network("p"));
        let [file] = &pool.host.leases()[..] else {
            panic!()
        };
        fs::write(file, damage).unwrap();
        // Its holder is unknown: nobody else gets it.
        pool.refused(&network("p"), 11, "172.16.0.0");
        pool.del("c2", &network("p"));
        assert_eq!(pool.host.leases().len(), 1);
        pool.del("c1", &network("p"));
        assert!(pool.host.leases().is_empty(), "{damage:?}");
    }
}

/// tests/contract-items, item 118: prevResult, lease and allocation agree, or CHECK says how not.
#[test]
fn check_compares_result_lease_and_allocation() {
    let Some(pool) = Pool::new("ipam::check") else {
        return;
    };
    let shape = json!({"prefix": "10.0.0.0/24", "gateway": "10.0.0.1"});
    pool.allocate("p", shape.clone());
    let result = pool.call("ADD", "c1").run(&network("p")).ok().json();
    let check = |previous: &Value| {
        pool.call("CHECK", "c1")
            .run(&with(network("p"), json!({ "prevResult": previous })))
    };
    assert_eq!(check(&result).ok().stdout, "");
    // Additions by other plugins.
    let mut more = result.clone();
    more["ips"]
        .as_array_mut()
        .unwrap()
        .insert(0, json!({"address": "10.9.0.2/24"}));
    check(&more).ok();

    for (change, text) in [
        (
            json!({"address": "10.0.0.3/24", "gateway": "10.0.0.1"}),
            "10.0.0.2",
        ),
        (
            json!({"address": "10.0.0.2/16", "gateway": "10.0.0.1"}),
            "/16",
        ),
        (
            json!({"address": "10.0.0.2/24", "gateway": "10.0.0.9"}),
            "10.0.0.9",
        ),
        (json!({"address": "10.0.0.2/24"}), "gateway"),
    ] {
        let error = check(&with(result.clone(), json!({"ips": [change]}))).error(100);
        assert!(
            error["msg"].as_str().unwrap().contains(text),
            "{text}: {error}"
        );
    }
    pool.allocate("p", json!({"prefix": "10.9.0.0/24", "gateway": "10.9.0.1"}));
    check(&result).error(100);
    pool.allocate("p", shape);
    check(&result).ok();
    pool.del("c1", &network("p"));
    check(&result).error(100);
}

/// tests/contract-items, items 96, 120, but for an exhausted pool (docs/design-notes.md,
/// departures).
#[test]
fn status_fails_with_50_where_no_add_could_be_served() {
    let Some(pool) = Pool::new("ipam::status") else {
        return;
    };
    let status = |config: &Value| pool.call("STATUS", "").run(config);
    status(&network("p")).error(50);
    pool.allocate(
        "p",
        json!({"prefix": "172.16.0.0/31", "gateway": "172.16.0.1"}),
    );
    status(&network("p")).ok();
    status(&network("p,absent")).error(50);
    fs::write(pool.host.path("file"), "").unwrap();
    pool.host
        .set_node(json!({"runDir": pool.host.path("file")}));
    status(&network("p")).error(50);
    pool.host
        .set_node(json!({"storeDir": pool.host.path("file")}));
    status(&network("p")).error(50);
    pool.host.set_node(json!({}));
    assert!(!pool.host.path("run").exists(), "STATUS writes nothing");
}

/// STATUS says when this node is missing from a pool, and whom the plan may have meant.
#[test]
fn status_names_near_misses_of_a_node_that_is_missing() {
    let Some(pool) = Pool::new("ipam::near") else {
        return;
    };
    let status = || {
        pool.call("STATUS", "").run(&network("p")).error(50)["msg"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let store = pool.host.path("store");
    for (folder, named) in [
        ("node-2", false),
        ("Node-1", true),
        ("node-1.example.com", true),
        ("NODE-1.rack7", true),
    ] {
        fs::create_dir_all(store.join(folder)).unwrap();
        let message = status();
        assert!(message.contains("\"node-1\""), "{message}");
        assert_eq!(message.contains(&format!("{folder}?")), named, "{message}");
        fs::remove_dir(store.join(folder)).unwrap();
    }
    // A pool that an import removed is no near miss of itself.
    fs::create_dir_all(store.join("node-1")).unwrap();
    assert!(status().contains("`railctl import`"), "{}", status());
    fs::write(store.join("node-1/other.json"), "{}").unwrap();
    assert!(status().contains("other"), "{}", status());
}

/// nv-ipam's spelling, the network's name, and the pool in the configuration.
#[test]
fn a_pool_may_be_named_in_every_way() {
    let Some(pool) = Pool::new("ipam::spelling") else {
        return;
    };
    pool.allocate(
        "net",
        json!({"prefix": "172.16.0.0/31", "gateway": "172.16.0.1"}),
    );
    for ipam in [
        json!({"type": "rail-ipam", "pool": "net"}),
        json!({"type": "rail-ipam"}),
        json!({"type": "rail-ipam", "poolName": "net", "poolType": "cidrpool"}),
        json!({"type": "nv-ipam", "poolName": "net", "poolType": "CIDRPool", "confDir": "/etc", "daemonSocket": "x"}),
    ] {
        let config = with(network(""), json!({ "ipam": ipam }));
        assert_eq!(pool.add("c1", &config), ["172.16.0.0/31"], "{ipam}");
        pool.del("c1", &config);
    }
    let config = inline(
        "172.20.0.0/15",
        "172.20.0.6/31",
        "172.20.0.7",
        json!({"gatewayIndex": 1, "pool": "inline"}),
    );
    assert_eq!(pool.add("c1", &config), ["172.20.0.6/31"]);
    pool.del("c1", &config);
    pool.host.set_node(json!({"nodeName": "node-2"}));
    pool.refused(&config, 7, "node-2");
}

/// rail-ipam as the IPAM of upstream's plugins, which know versions up to 1.0.0.
#[test]
fn upstreams_plugins_take_our_addresses() {
    let Some(pool) = Pool::new("ipam::upstream") else {
        return;
    };
    let host = &pool.host;
    pool.allocate(
        "p",
        json!({"prefix": "10.0.0.0/24", "gateway": "10.0.0.1", "routes": [{"dst": "10.1.0.0/16"}]}),
    );
    host.ip("link add parent type veth peer name parent-peer");
    host.ip("link set parent up");
    for (plugin, more) in [
        ("macvlan", json!({"master": "parent"})),
        ("host-device", json!({"device": "parent-peer"})),
        ("bridge", json!({"bridge": "br9"})),
    ] {
        let program = Path::new(UPSTREAM).join(plugin);
        if !program.exists() {
            skip("ipam::upstream", &format!("no {}", program.display()));
            continue;
        }
        let config = with(
            with(network("p"), more),
            json!({"cniVersion": "1.0.0", "type": plugin}),
        );
        let call = |verb: &str| host.call(verb, plugin, &pool.pod).program(&program);
        let added = call("ADD").run(&config).ok().json();
        assert_eq!(
            added["ips"][0]["address"], "10.0.0.2/24",
            "{plugin}: {added}"
        );
        let route = host.json(Some(&pool.pod), "route show 10.1.0.0/16");
        assert_eq!(
            (&route[0]["gateway"], &route[0]["dev"]),
            (&json!("10.0.0.1"), &json!("net1")),
            "{plugin}"
        );
        call("CHECK")
            .run(&with(config.clone(), json!({ "prevResult": added })))
            .ok();
        call("DEL").run(&config).ok();
        assert!(host.leases().is_empty(), "{plugin}");
    }
}

/// A row of the deployment that the project came from: worker-gpu-62 has 172.16.1.60/31, the leaf
/// .61, and routes to rail and fabric.
#[test]
fn the_pool_of_the_seeds_is_imported() {
    let Some(pool) = Pool::new("ipam::import") else {
        return;
    };
    pool.host.set_node(json!({"nodeName": "worker-gpu-62"}));
    let manifest = "apiVersion: nv-ipam.nvidia.com/v1alpha1
kind: CIDRPool
metadata:
  name: rail-1
  namespace: nvidia-network-operator
spec:
  cidr: 172.16.0.0/15
  gatewayIndex: 0
  perNodeNetworkPrefix: 31
  routes:
  - dst: 172.16.0.0/15
  - dst: 172.16.0.0/12
  staticAllocations:
  - gateway: 172.16.0.1
    nodeName: worker-gpu-0
    prefix: 172.16.0.0/31
  - gateway: 172.16.1.61
    nodeName: worker-gpu-62
    prefix: 172.16.1.60/31
";
    let file = pool.host.path("rail-1.yaml");
    fs::write(&file, manifest).unwrap();
    let import = |args: &[&str]| -> Ran {
        let mut command = Command::new(harness::railctl());
        command
            .arg("import")
            .args(args)
            .arg(&file)
            .env("RAIL_CNI_NODE_CONFIG", pool.host.path("node.json"));
        command.output().unwrap().into()
    };
    pool.refused(&network("rail-1"), 7, "worker-gpu-62");
    import(&["--dry-run"]).ok();
    assert!(!pool.host.path("store").exists());
    import(&[]).ok();
    let stored = fs::read(pool.host.path("store/worker-gpu-62/rail-1.json")).unwrap();
    assert!(!pool.host.path("store/worker-gpu-0").exists());
    import(&[]).ok();
    assert_eq!(
        fs::read(pool.host.path("store/worker-gpu-62/rail-1.json")).unwrap(),
        stored
    );
    let added = pool.call("ADD", "c1").run(&network("rail-1")).ok().json();
    let (gw, ip) = (
        "172.16.1.61",
        json!({"address": "172.16.1.60/31", "gateway": "172.16.1.61"}),
    );
    let routes = json!([{"dst": "172.16.0.0/15", "gw": gw}, {"dst": "172.16.0.0/12", "gw": gw}]);
    assert_eq!(
        added,
        json!({"cniVersion": "1.1.0", "ips": [ip], "routes": routes})
    );
}
