//! Addresses, routes, rules and sysctls of several rails in one pod, as docs/routing.md has them.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Host, rail, with};

/// The far end of rail R: pool `far-R`, 172.(16+2R).0.2/31, on a veth `farR` to the same leaf.
fn add_far_rail(host: &Host, rail: u8) {
    let (second, leaf) = (16 + 2 * rail, host.leaf());
    let routes = [format!("172.{second}.0.0/15"), "172.16.0.0/12".to_owned()];
    let routes: Vec<_> = routes.iter().map(String::as_str).collect();
    host.plan(
        &format!("far-{rail}"),
        &format!("172.{second}.0.2/31"),
        &format!("172.{second}.0.3"),
        &routes,
    );
    host.ip(&format!(
        "link add far{rail} type veth peer name lfar{rail} netns {leaf}"
    ));
    host.ip(&format!(
        "-n {leaf} addr add 172.{second}.0.3/31 dev lfar{rail}"
    ));
    host.ip(&format!("-n {leaf} link set lfar{rail} mtu 9216 up"));
}

fn far(rail: u8) -> Value {
    let pool = format!("far-{rail}");
    let device = format!("far{rail}");
    with(
        crate::harness::rail(rail),
        json!({"device": device, "ipam": {"type": "rail-ipam", "pool": pool}}),
    )
}

fn net(rail: u8) -> String {
    format!("net{}", rail + 1)
}

fn attach(host: &Host, container: &str, pod: &Path, rail: u8, config: &Value) -> Value {
    host.call("ADD", container, pod)
        .ifname(&net(rail))
        .run(config)
        .ok()
        .json()
}

fn detach(host: &Host, container: &str, pod: &Path, rail: u8, config: &Value) {
    host.call("DEL", container, pod)
        .ifname(&net(rail))
        .run(config)
        .ok();
}

/// A host with rails 0 to `count`-1, whose leaf forwards.
fn fabric(test: &str, count: u8) -> Option<Host> {
    let host = Host::new(test)?;
    (0..count).for_each(|rail| host.add_rail(rail));
    let leaf = Path::new("/run/netns").join(host.leaf());
    host.set_sysctl(&leaf, "ipv4/ip_forward", "1");
    host.set_sysctl(&leaf, "ipv6/conf/all/forwarding", "1");
    Some(host)
}

/// Routes through `dev`, of both families, without what the kernel makes by itself.
fn routes_of(host: &Host, pod: &Path, dev: &str) -> Value {
    let see = |family: &str| {
        host.json(
            Some(pod),
            &format!("{family} route show table all proto static dev {dev}"),
        )
    };
    json!([see("-4"), see("-6")])
}

/// Eight rails in each of two pods: every pair of rails reaches each other by the rail of the
/// source, though the pod's filter is strict.
#[test]
fn every_rail_reaches_every_rail_by_its_own() {
    let Some(host) = fabric("routing::fabric", 8) else {
        return;
    };
    (0..8).for_each(|rail| add_far_rail(&host, rail));
    let before = host.snapshot();
    let (near_pod, far_pod) = (host.add_netns("near"), host.add_netns("far"));
    for pod in [&near_pod, &far_pod] {
        host.set_sysctl(pod, "ipv4/conf/all/rp_filter", "1");
    }
    for n in 0..8 {
        attach(&host, "near", &near_pod, n, &rail(n));
        attach(&host, "far", &far_pod, n, &far(n));
    }
    for from in 0..8u8 {
        let source = format!("172.{}.0.0", 16 + 2 * from);
        for to in 0..8u8 {
            let target = format!("172.{}.0.2", 16 + 2 * to);
            let way = host.json(
                Some(&near_pod),
                &format!("route get {target} from {source}"),
            );
            assert_eq!(way[0]["dev"], net(from), "{source} to {target}: {way}");
            let ping = host.run_in(&near_pod, &format!("ping -c1 -W3 -I {source} {target}"));
            assert_eq!(ping.status, 0, "{source} to {target}: {ping:?}");
            // Bound to the device, and not bound: the longest match.
            let ping = host.run_in(
                &near_pod,
                &format!("ping -c1 -W3 -I {} {target}", net(from)),
            );
            assert_eq!(ping.status, 0, "{source} to {target}: {ping:?}");
            let way = host.json(Some(&near_pod), &format!("route get {target}"));
            assert_eq!(way[0]["dev"], net(to), "unbound to {target}: {way}");
        }
        // The aggregate, by the first rail, in a fixed order.
        let way = host.json(Some(&near_pod), "route get 172.31.255.1");
        assert_eq!(way[0]["dev"], "net8", "172.30.0.0/15 is rail 7's: {way}");
    }
    let rules = host.json(Some(&near_pod), "rule");
    for n in 0..8u32 {
        let rule = json!({"priority": 1000 + n, "src": format!("172.{}.0.0", 16 + 2 * n), "table": (100 + n).to_string()});
        let is_it = |one: &Value| {
            ["priority", "src", "table"]
                .iter()
                .all(|key| one[key] == rule[key])
        };
        assert!(
            rules.as_array().unwrap().iter().any(is_it),
            "{rule} in {rules}"
        );
    }
    for n in 0..8 {
        detach(&host, "near", &near_pod, n, &rail(n));
        detach(&host, "far", &far_pod, n, &far(n));
    }
    assert_eq!(host.snapshot(), before);
    for family in ["-4", "-6"] {
        let rules = host.json(Some(&near_pod), &format!("{family} rule"));
        assert!(
            rules
                .as_array()
                .unwrap()
                .iter()
                .all(|rule| rule["protocol"] == "kernel"),
            "{rules}"
        );
    }
}

/// The aggregate that all rails share stands once for each rail, in the order of the rails, in both
/// families.
#[test]
fn the_aggregate_stands_once_for_each_rail() {
    let Some(host) = fabric("routing::aggregate", 3) else {
        return;
    };
    let pod = host.add_netns("pod");
    for n in [2, 0, 1] {
        host.plan(
            &format!("six-{n}"),
            &format!("fd00:{n}::/127"),
            &format!("fd00:{n}::1"),
            &["fd00::/16"],
        );
        let config = with(
            rail(n),
            json!({"ipam": {"type": "rail-ipam", "pool": format!("rail-{n},six-{n}")}}),
        );
        attach(&host, "c1", &pod, n, &config);
    }
    for (family, dst) in [("-4", "172.16.0.0/12"), ("-6", "fd00::/16")] {
        let routes = host.json(Some(&pod), &format!("{family} route show {dst} table main"));
        let found: Vec<_> = routes
            .as_array()
            .unwrap()
            .iter()
            .map(|route| {
                (
                    route["dev"].as_str(),
                    route["metric"].as_u64(),
                    route.get("nexthops"),
                )
            })
            .collect();
        let expected = [
            (Some("net1"), Some(1000), None),
            (Some("net2"), Some(1001), None),
            (Some("net3"), Some(1002), None),
        ];
        assert_eq!(found, expected, "{routes}");
        for n in 0..3 {
            let own = host.json(
                Some(&pod),
                &format!("{family} route show {dst} table {}", 100 + n),
            );
            assert_eq!(own[0]["dev"], net(n), "{own}");
        }
    }
}

/// IPv4, IPv6, and both at once.
#[test]
fn both_families_work_alone_and_together() {
    let Some(host) = fabric("routing::families", 1) else {
        return;
    };
    let leaf = Path::new("/run/netns").join(host.leaf());
    host.ip_in(&leaf, "addr add fd00::1/127 dev leaf0 nodad");
    host.plan("six", "fd00::/127", "fd00::1", &["fd00::/32"]);
    let before = host.snapshot();
    for pools in ["rail-0", "six", "rail-0,six"] {
        let pod = host.add_netns(&pools.replace(',', "-"));
        let config = with(
            rail(0),
            json!({"ipam": {"type": "rail-ipam", "pool": pools}}),
        );
        let added = attach(&host, "c1", &pod, 0, &config);
        for (pool, family, address, gateway) in [
            ("rail-0", "-4", "172.16.0.0", "172.16.0.1"),
            ("six", "-6", "fd00::", "fd00::1"),
        ] {
            let has = pools.contains(pool);
            let rules = host.json(Some(&pod), &format!("{family} rule"));
            assert_eq!(
                rules
                    .to_string()
                    .contains(&format!("\"src\":\"{address}\"")),
                has,
                "{pools}: {rules}"
            );
            if has {
                let ping = host.run_in(
                    &pod,
                    &format!("ping {family} -c1 -w5 -I {address} {gateway}"),
                );
                assert_eq!(ping.status, 0, "{pools}: {ping:?}");
            }
        }
        host.call("CHECK", "c1", &pod)
            .run(&with(config.clone(), json!({ "prevResult": added })))
            .ok();
        detach(&host, "c1", &pod, 0, &config);
        assert_eq!(host.snapshot(), before, "{pools}");
        assert!(
            !host
                .json(Some(&pod), "-6 rule")
                .to_string()
                .contains("fd00")
        );
    }
}

/// Duplicate detection takes a second or two, in which the address must work, though the
/// carrier comes late. Without a route in the table `local` it hears nobody.
#[test]
fn an_ipv6_address_is_heard_when_the_carrier_comes() {
    let Some(host) = fabric("routing::carrier", 1) else {
        return;
    };
    let leaf = Path::new("/run/netns").join(host.leaf());
    host.plan("six", "fd00::/127", "fd00::1", &[]);
    host.ip_in(&leaf, "link set leaf0 down");
    let pod = host.add_netns("pod");
    let config = with(
        rail(0),
        json!({"ipam": {"type": "rail-ipam", "pool": "six"}}),
    );
    attach(&host, "c1", &pod, 0, &config);
    // The kernel has begun with the address by now, and seen that there is no carrier.
    std::thread::sleep(std::time::Duration::from_millis(100));
    host.ip_in(&leaf, "link set leaf0 up");
    let local = host.ip_in(&pod, "-6 route show table local fd00::");
    assert!(local.contains("dev net1"), "{local:?}");
}

/// A leaf port that trains for seconds: it has to learn of the pod's MAC although the pod sends
/// nothing, and after the three seconds in which the kernel asks by itself.
#[test]
fn the_leaf_hears_of_a_pod_whose_carrier_comes_after_add() {
    let Some(host) = fabric("routing::late", 1) else {
        return;
    };
    let leaf = Path::new("/run/netns").join(host.leaf());
    host.ip_in(&leaf, "link set leaf0 down");
    let pod = host.add_netns("pod");
    let added = attach(&host, "c1", &pod, 0, &rail(0));
    std::thread::sleep(std::time::Duration::from_millis(3500));
    host.ip_in(&leaf, "link set leaf0 up");
    let mac = added["interfaces"][0]["mac"].as_str().unwrap();
    let heard = || {
        host.ip_in(&leaf, "neigh show 172.16.0.0 dev leaf0")
            .contains(mac)
    };
    // The kernel looks every five seconds (interval_probe_time_ms).
    let is_heard = (0..80).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        heard()
    });
    assert!(is_heard);
    detach(&host, "c1", &pod, 0, &rail(0));
}

/// The main table alone.
#[test]
fn destination_based_routing_makes_neither_rules_nor_tables() {
    let Some(host) = fabric("routing::destination", 2) else {
        return;
    };
    let pod = host.add_netns("pod");
    for n in 0..2 {
        let config = with(rail(n), json!({"routing": "destination-based"}));
        let added = attach(&host, "c1", &pod, n, &config);
        host.call("CHECK", "c1", &pod)
            .ifname(&net(n))
            .run(&with(config, json!({ "prevResult": added })))
            .ok();
    }
    let rules = host.json(Some(&pod), "rule");
    assert!(
        rules
            .as_array()
            .unwrap()
            .iter()
            .all(|rule| rule["protocol"] == "kernel"),
        "{rules}"
    );
    for n in 0..2 {
        let tables = routes_of(&host, &pod, &net(n)).to_string();
        assert!(
            tables.contains("172.16.0.0/12") && !tables.contains("\"table\":\"1"),
            "{tables}"
        );
    }
    assert_eq!(
        host.json(Some(&pod), "route get 172.18.5.5")[0]["dev"],
        "net2"
    );
}

/// tests/contract-items, item 59: from the configuration, from the IPAM, in both families and
/// spellings.
#[test]
fn a_rail_never_has_the_default_route() {
    let Some(host) = fabric("routing::default", 1) else {
        return;
    };
    let pod = host.add_netns("pod");
    // eth0 has it.
    host.ip_in(&pod, "link add eth0 type veth peer name eth0-peer");
    host.ip_in(&pod, "addr add 10.0.0.5/24 dev eth0");
    host.ip_in(&pod, "link set eth0-peer up");
    host.ip_in(&pod, "link set eth0 up");
    host.ip_in(&pod, "route add default via 10.0.0.1");
    host.add_plugin(
        "stand-in",
        r#"[ $CNI_COMMAND = ADD ] && echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.7.0.2/24", "gateway": "10.7.0.1"},
             {"address": "fd07::2/64", "gateway": "fd07::1"}], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fd07::1"},
             {"dst": "0.0.0.0/0", "table": 77}, {"dst": "10.9.0.0/16"}]}'; exit 0"#,
    );
    let configured = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "0.0.0.0/0", "gw": "172.16.0.1", "priority": 9}, {"dst": "10.8.0.0/16"}]);
    for more in [
        json!({ "routes": configured }),
        json!({"ipam": {"type": "stand-in"}}),
        json!({"ipam": {"type": "stand-in"}, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.8.0.0/16"}]}),
        json!({"ipam": {"type": "stand-in"}, "routing": "destination-based"}),
        json!({"ipam": {"type": "stand-in"}, "rail": null}),
    ] {
        let config = with(rail(0), more);
        let ran = host.cni("ADD", "c1", &pod, &config).ok();
        // The route of a family without an address, and the one with another table.
        assert!(
            ran.stderr.contains(" warn ") && ran.stderr.contains("/0 "),
            "{ran:?}"
        );
        let result = ran.json();
        assert!(!result["routes"].to_string().contains("/0\""), "{result}");
        for family in ["-4", "-6"] {
            let defaults = host.json(
                Some(&pod),
                &format!("{family} route show default table all"),
            );
            let defaults = defaults.as_array().unwrap();
            let through: Vec<_> = defaults
                .iter()
                .filter(|route| route["dev"] == "net1")
                .collect();
            assert!(
                through
                    .iter()
                    .all(|route| !["", "77"].contains(&route["table"].as_str().unwrap_or_default())),
                "{through:?}"
            );
            let is_own = config["routing"].is_null()
                && !(family == "-6" && config["ipam"]["type"] != "stand-in");
            assert_eq!(!through.is_empty(), is_own, "{through:?}");
        }
        assert_eq!(host.json(Some(&pod), "route get 8.8.8.8")[0]["dev"], "eth0");
        if config["routing"].is_null() {
            let address = result["ips"][0]["address"]
                .as_str()
                .unwrap()
                .split('/')
                .next()
                .unwrap();
            assert_eq!(
                host.json(Some(&pod), &format!("route get 8.8.8.8 from {address}"))[0]["dev"],
                "net1"
            );
        }
        host.cni(
            "CHECK",
            "c1",
            &pod,
            &with(config.clone(), json!({ "prevResult": result })),
        )
        .ok();
        host.cni("DEL", "c1", &pod, &config).ok();
        assert_eq!(host.json(Some(&pod), "route get 8.8.8.8")[0]["dev"], "eth0");
    }
}

/// A default route by the back door: the network of an address is a route too.
#[test]
fn an_address_whose_network_is_everything_is_refused() {
    let Some(host) = fabric("routing::default_net", 1) else {
        return;
    };
    let pod = host.add_netns("pod");
    let before = host.snapshot();
    for address in [
        "10.0.0.2/0",
        "fd00::2/0",
        "0.0.0.0/0",
        "0.0.0.0/24",
        "::/64",
    ] {
        let answer = json!({"cniVersion": "1.1.0", "ips": [{ "address": address }]});
        host.add_plugin(
            "stand-in",
            &format!("[ $CNI_COMMAND = ADD ] && echo '{answer}'; exit 0"),
        );
        let failed = host.cni(
            "ADD",
            "c1",
            &pod,
            &with(rail(0), json!({"ipam": {"type": "stand-in"}})),
        );
        assert_eq!(failed.status, 1, "{address}: {failed:?}");
        assert_eq!(host.snapshot(), before, "{address}");
    }
}

/// Eight equal IPv4 routes coexist in the main table and the last one wins: with host-device nobody
/// notices.
#[test]
fn two_rails_keep_their_own_routes_when_one_comes_or_goes() {
    let Some(host) = fabric("routing::two", 2) else {
        return;
    };
    let pod = host.add_netns("pod");
    let extra = |n: u8| with(rail(n), json!({"routes": [{"dst": "10.9.0.0/16"}]}));
    for (one, other) in [(0, 1), (1, 0)] {
        attach(&host, "c1", &pod, one, &extra(one));
        let alone = routes_of(&host, &pod, &net(one));
        let rules = host.json(Some(&pod), "rule");
        attach(&host, "c1", &pod, other, &extra(other));
        assert_eq!(routes_of(&host, &pod, &net(one)), alone);
        detach(&host, "c1", &pod, other, &extra(other));
        assert_eq!(routes_of(&host, &pod, &net(one)), alone);
        assert_eq!(host.json(Some(&pod), "rule"), rules);
        detach(&host, "c1", &pod, one, &extra(one));
    }
}

/// Each key of a route is what the kernel has.
#[test]
fn routes_have_the_keys_that_were_asked_for() {
    let Some(host) = fabric("routing::keys", 1) else {
        return;
    };
    let pod = host.add_netns("pod");
    let config = with(
        rail(0),
        json!({"routes": [
            {"dst": "10.1.0.0/16", "mtu": 4000, "advmss": 3900, "priority": 7},
            {"dst": "10.2.0.0/16", "gw": "172.16.0.1", "table": 77},
            {"dst": "10.4.0.0/16", "gw": "0.0.0.0", "scope": 253},
            {"dst": "10.5.9.9/16"},
        ]}),
    );
    let added = host.cni("ADD", "c1", &pod, &config).ok().json();
    let route = |dst: &str, table: &str| {
        host.json(Some(&pod), &format!("-N route show {dst} table {table}"))[0].clone()
    };
    for table in ["main", "100"] {
        let first = route("10.1.0.0/16", table);
        assert_eq!(
            (&first["metrics"][0]["mtu"], &first["metrics"][0]["advmss"]),
            (&json!(4000), &json!(3900)),
            "{first}"
        );
        assert_eq!(first["metric"], 7, "{first}");
        let direct = route("10.4.0.0/16", table);
        assert_eq!(
            (
                direct.get("gateway"),
                direct["scope"].to_string().trim_matches('"')
            ),
            (None, "253"),
            "{direct}"
        );
        assert_eq!(route("10.5.0.0/16", table)["gateway"], "172.16.0.1");
    }
    // A table of its own, and no copy.
    assert_eq!(route("10.2.0.0/16", "77")["gateway"], "172.16.0.1");
    assert_eq!(
        (route("10.2.0.0/16", "main"), route("10.2.0.0/16", "100")),
        (json!(null), json!(null))
    );
    host.cni(
        "CHECK",
        "c1",
        &pod,
        &with(config.clone(), json!({ "prevResult": added })),
    )
    .ok();
    for bad in [
        json!([{"dst": "fd00::/8", "gw": "10.0.0.1"}]),
        json!([{"dst": "10.0.0.0/8", "table": 255}]),
        json!([{"dst": "10.0.0.0"}]),
        json!([{"gw": "172.16.0.1"}]),
        json!([{"dst": "10.0.0.0/8", "gw": "x"}]),
        json!([{"dst": "10.0.0.0/8", "mtu": "x"}]),
        json!([{"dst": "10.0.0.0/8", "scope": 256}]),
        json!({}),
    ] {
        host.call("ADD", "c2", &pod)
            .ifname("net2")
            .run(&with(config.clone(), json!({ "routes": bad })))
            .error(7);
    }
}

/// One destination by two gateways: the smaller metric counts, in the rail's table too, also where
/// one has the default.
#[test]
fn a_destination_can_have_two_routes_of_different_priority() {
    let Some(host) = Host::new("routing::priorities") else {
        return;
    };
    host.add_rail(0);
    let pod = host.add_netns("pod");
    host.plan("flat", "10.71.0.0/16", "10.71.0.1", &[]);
    let before = host.snapshot();
    let by = |gateway: &str, priority: Option<u32>| {
        let mut route = json!({"dst": "10.9.0.0/16", "gw": gateway});
        if let Some(priority) = priority {
            route["priority"] = json!(priority);
        }
        route
    };
    let config = |first, second| {
        let routes = [by("10.71.0.1", first), by("10.71.0.9", second)];
        with(
            rail(0),
            json!({"ipam": {"type": "rail-ipam", "pool": "flat"}, "routes": routes}),
        )
    };
    for (first, second, metrics) in [
        (Some(10), Some(20), [10, 20]),
        (None, Some(500), [1000, 500]),
    ] {
        let added = host
            .cni("ADD", "c1", &pod, &config(first, second))
            .ok()
            .json();
        for table in ["main", "100"] {
            let shown = host.json(Some(&pod), &format!("route show 10.9.0.0/16 table {table}"));
            let has = |metric: u32, gateway: &str| {
                shown
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|route| route["metric"] == metric && route["gateway"] == gateway)
            };
            assert!(
                has(metrics[0], "10.71.0.1") && has(metrics[1], "10.71.0.9"),
                "{shown}"
            );
        }
        let of_pod = json!({ "prevResult": added });
        host.cni("CHECK", "c1", &pod, &with(config(first, second), of_pod))
            .ok();
        host.cni("DEL", "c1", &pod, &config(first, second)).ok();
    }
    // The kernel has room for one of them.
    let error = host
        .cni("ADD", "c1", &pod, &config(Some(10), Some(10)))
        .error(7);
    assert!(
        error["msg"].as_str().unwrap().contains("another priority"),
        "{error}"
    );
    assert_eq!(host.snapshot(), before);
}

/// A NAD of a megabyte has 20,000 routes. Their record would be read by each call of the node.
#[test]
fn more_routes_than_a_rail_can_have_are_refused() {
    let Some(host) = fabric("routing::many", 1) else {
        return;
    };
    let pod = host.add_netns("pod");
    let before = host.snapshot();
    let config = |count: u32| {
        let routes: Vec<_> = (0..count)
            .map(|n| json!({"dst": format!("10.{}.{}.0/24", n / 256, n % 256)}))
            .collect();
        with(rail(0), json!({ "routes": routes }))
    };
    // The pool has an address and two routes.
    let error = host.cni("ADD", "c1", &pod, &config(998)).error(7);
    let told = error["msg"].as_str().unwrap();
    assert!(told.contains("1001 "), "{told}");
    host.cni("DEL", "c1", &pod, &config(998)).ok();
    assert_eq!(host.snapshot(), before);
    host.cni("ADD", "c1", &pod, &config(997)).ok();
    host.cni("DEL", "c1", &pod, &config(997)).ok();
    assert_eq!(host.snapshot(), before);
}

/// The pool of a rail has its routes, and a network written before it had them names them too.
#[test]
fn a_route_of_pool_and_network_is_one_route_and_the_networks_word_counts() {
    let Some(host) = Host::new("routing::twice") else {
        return;
    };
    host.add_rail(0);
    let pod = host.add_netns("pod");
    let before = host.snapshot();
    let routes = json!([{"dst": "172.16.0.0/12"}, {"dst": "172.16.0.0/15", "mtu": 4200},
        {"dst": "172.16.0.0/12", "gw": "172.16.0.1"}]);
    let config = with(rail(0), json!({"routes": routes}));
    let added = host.cni("ADD", "c1", &pod, &config).ok().json();
    host.cni(
        "CHECK",
        "c1",
        &pod,
        &with(config.clone(), json!({ "prevResult": added })),
    )
    .ok();
    for table in ["main", "100"] {
        let shown = host.ip_in(&pod, &format!("-4 route show table {table} proto static"));
        assert_eq!(
            shown.matches("172.16.0.0/12 via 172.16.0.1").count(),
            1,
            "{shown}"
        );
        assert_eq!(
            shown.matches("172.16.0.0/15 via 172.16.0.1").count(),
            1,
            "{shown}"
        );
        assert!(shown.contains("mtu 4200"), "{shown}");
    }
    host.cni("DEL", "c1", &pod, &config).ok();
    assert_eq!(host.snapshot(), before);
}

/// As networks of sriov-cni with host-local often have it: the subnet, once more as a route.
#[test]
fn a_route_to_the_rails_own_network_stays_on_the_link() {
    let Some(host) = Host::new("routing::own") else {
        return;
    };
    host.add_rail(0);
    host.plan(
        "flat",
        "10.71.0.0/16",
        "10.71.0.1",
        &["10.71.0.0/16", "10.72.0.0/16"],
    );
    host.plan(
        "flat-v6",
        "fd71::/64",
        "fd71::1",
        &["fd71::/64", "fd72::/64"],
    );
    let pod = host.add_netns("pod");
    let before = host.snapshot();
    for routing in ["source-based", "destination-based"] {
        let ipam = json!({"type": "rail-ipam", "pool": "flat,flat-v6"});
        let config = with(rail(0), json!({"ipam": ipam, "routing": routing}));
        let added = host.cni("ADD", "c1", &pod, &config).ok().json();
        assert_eq!(
            added["routes"].to_string().matches("10.71.0.0").count(),
            0,
            "{added}"
        );
        host.cni(
            "CHECK",
            "c1",
            &pod,
            &with(config.clone(), json!({ "prevResult": added })),
        )
        .ok();
        for (to, own) in [
            ("10.71.9.9", true),
            ("fd71::9", true),
            ("10.72.0.9", false),
            ("fd72::9", false),
        ] {
            let own_address = if to.contains(':') {
                "fd71::2"
            } else {
                "10.71.0.2"
            };
            let route = host.ip_in(&pod, &format!("route get {to} from {own_address}"));
            assert_eq!(!route.contains(" via "), own, "{route}");
        }
        host.cni("DEL", "c1", &pod, &config).ok();
        assert_eq!(host.snapshot(), before);
    }
}

/// A host address has no neighbours by its prefix: its gateway is on the link all the same.
#[test]
fn a_host_address_reaches_its_gateway_on_the_link() {
    let Some(host) = fabric("routing::onlink", 1) else {
        return;
    };
    let pod = host.add_netns("pod");
    let ips = json!([{"address": "10.0.0.2/32", "gateway": "10.9.0.1"}, {"address": "fd00::2/128", "gateway": "fd09::1"}]);
    let answer = json!({"cniVersion": "1.1.0", "ips": ips, "routes": [{"dst": "10.0.0.0/8"}, {"dst": "fd00::/16"}]});
    host.add_plugin(
        "stand-in",
        &format!("[ $CNI_COMMAND = ADD ] && echo '{answer}'; exit 0"),
    );
    let config = with(rail(0), json!({"ipam": {"type": "stand-in"}}));
    host.cni("ADD", "c1", &pod, &config).ok();
    for (family, dst, gateway) in [
        ("-4", "10.0.0.0/8", "10.9.0.1"),
        ("-6", "fd00::/16", "fd09::1"),
    ] {
        for table in ["main", "100"] {
            let route = host.json(
                Some(&pod),
                &format!("{family} route show {dst} table {table}"),
            );
            assert_eq!(
                (&route[0]["gateway"], &route[0]["flags"][0]),
                (&json!(gateway), &json!("onlink")),
                "{route}"
            );
        }
    }
}

/// Without `rail`, a free table.
#[test]
fn networks_without_rail_get_tables_of_their_own() {
    let Some(host) = fabric("routing::tables", 4) else {
        return;
    };
    let pod = host.add_netns("pod");
    // Somebody uses what would be the first of them.
    let free = |n: u8| with(rail(n), json!({ "rail": null }));
    attach(&host, "c1", &pod, 0, &free(0));
    attach(&host, "c1", &pod, 1, &free(1));
    attach(&host, "c1", &pod, 2, &rail(2));
    let table = |n: u8| -> u64 {
        let rules = host.json(Some(&pod), "rule");
        let source = format!("172.{}.0.0", 16 + 2 * n);
        let rule = rules
            .as_array()
            .unwrap()
            .iter()
            .find(|rule| rule["src"] == source.as_str())
            .unwrap()
            .clone();
        rule["table"].as_str().unwrap().parse().unwrap()
    };
    let (first, second) = (table(0), table(1));
    assert!(
        first != second
            && ![first, second].contains(&table(2))
            && ![253, 254, 255].contains(&first)
    );
    // A table that is given back is given out again.
    detach(&host, "c1", &pod, 0, &free(0));
    attach(&host, "c1", &pod, 3, &free(3));
    assert_eq!((table(3), table(1)), (first, second));
}

/// As sbr of a storage network and Spiderpool's coordinator, which count tables from 100 on.
#[test]
fn a_table_that_another_network_took_before_is_left_to_it() {
    let Some(host) = fabric("routing::taken", 2) else {
        return;
    };
    let pod = host.add_netns("pod");
    host.ip_in(&pod, "link add eth0 type veth peer name far");
    host.ip_in(&pod, "link set far up");
    host.ip_in(&pod, "addr add 10.50.0.5/24 dev eth0");
    host.ip_in(&pod, "link set eth0 up");
    host.ip_in(&pod, "route add default via 10.50.0.1 dev eth0 table 100");
    let theirs = host.ip_in(&pod, "route show table 100");
    // It has no table, so nobody took it.
    let without = with(rail(0), json!({"routing": "destination-based"}));
    let told = host.cni("ADD", "c0", &pod, &without).ok().stderr;
    assert!(!told.contains(" warn "), "{told}");
    host.cni("DEL", "c0", &pod, &without).ok();
    for (number, own) in [(0, None), (1, Some("101"))] {
        let result = attach(&host, "c1", &pod, number, &rail(number));
        let checked = with(rail(number), json!({ "prevResult": result }));
        host.call("CHECK", "c1", &pod)
            .ifname(&net(number))
            .run(&checked)
            .ok();
        let rules = host.ip_in(&pod, "rule show");
        let rule = rules
            .lines()
            .find(|rule| rule.contains(&format!("from 172.{}.0.0", 16 + 2 * number)));
        let table = rule
            .unwrap()
            .split_once("lookup ")
            .unwrap()
            .1
            .split(' ')
            .next()
            .unwrap()
            .to_owned();
        assert!(own.map_or(table != "100", |own| table == own), "{rules}");
        assert!(
            host.ip_in(&pod, &format!("route show table {table}"))
                .contains(&net(number))
        );
    }
    for number in 0..2 {
        detach(&host, "c1", &pod, number, &rail(number));
    }
    assert_eq!(host.ip_in(&pod, "route show table 100"), theirs);
}

/// With sbr, which numbers tables from 100 on, the operator gives rails others: before, behind and
/// for networks without a rail. A pod that runs keeps the tables that it has.
#[test]
fn the_first_table_is_the_operators_choice() {
    let Some(host) = fabric("routing::first", 3) else {
        return;
    };
    let pod = host.add_netns("pod");
    let table = |number: u8| {
        let rules = host.ip_in(&pod, "rule show");
        let from = format!("from 172.{}.0.0 ", 16 + 2 * u32::from(number));
        let rule = rules
            .lines()
            .find(|rule| rule.contains(&from))
            .unwrap_or_else(|| panic!("{rules}"));
        let table: u32 = rule
            .split_once("lookup ")
            .unwrap()
            .1
            .split(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        (
            rule.split(':').next().unwrap().parse::<u32>().unwrap(),
            table,
        )
    };
    let before = attach(&host, "c1", &pod, 0, &rail(0));
    assert_eq!(table(0), (1000, 100));
    host.set_node(json!({"firstTable": 5000}));
    host.ip_in(&pod, "route add 10.9.0.0/16 dev net1 table 101");
    attach(&host, "c1", &pod, 1, &rail(1));
    assert_eq!(table(1), (1001, 5001));
    let mut free = rail(2);
    free.as_object_mut().unwrap().remove("rail");
    attach(&host, "c1", &pod, 2, &free);
    assert_eq!(table(2), (1900, 5900));
    host.ip_in(&pod, "route del 10.9.0.0/16 dev net1 table 101");
    host.call("CHECK", "c1", &pod)
        .ifname("net1")
        .run(&with(rail(0), json!({"prevResult": before})))
        .ok();
    for (number, config) in [rail(0), rail(1), free].iter().enumerate() {
        detach(&host, "c1", &pod, number.try_into().unwrap(), config);
    }
    let left = host.ip_in(&pod, "rule show");
    assert!(!left.contains("from 172."), "{left}");
}

/// Compute and storage both begin at rail 0. What one sends must not leave by the other, and the
/// same destination may be in both.
#[test]
fn two_fabrics_of_one_pod_have_a_table_each() {
    let Some(host) = fabric("routing::fabrics", 2) else {
        return;
    };
    let pod = host.add_netns("pod");
    let routes = json!({"routes": [{"dst": "10.50.0.0/16"}, {"dst": "172.16.0.0/12"}]});
    let storage = with(
        host.with_static(rail(0), "10.50.0.0/31", "10.50.0.1"),
        json!({"device": "vf1", "name": "storage-0"}),
    );
    let storage = with(storage, routes);
    attach(&host, "c1", &pod, 0, &rail(0));
    let added = attach(&host, "c1", &pod, 1, &storage);
    let leaves_by = |from: &str| {
        let route = host.json(Some(&pod), &format!("route get 172.30.0.8 from {from}"));
        route[0]["dev"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        [leaves_by("172.16.0.0"), leaves_by("10.50.0.0")],
        [net(0), net(1)]
    );
    host.call("CHECK", "c1", &pod)
        .ifname(&net(1))
        .run(&with(storage.clone(), json!({"prevResult": added})))
        .ok();
    detach(&host, "c1", &pod, 0, &rail(0));
    assert_eq!(leaves_by("10.50.0.0"), net(1));
    detach(&host, "c1", &pod, 1, &storage);
}

/// The rails' aggregate has the pod's own address, or the node's: both answer by the rail then.
#[test]
fn who_loses_the_pod_by_a_rails_routes_is_told() {
    let Some(host) = fabric("routing::covered", 1) else {
        return;
    };
    let told = |test: &str, address: &str, node: Option<&str>| {
        let pod = host.add_netns(test);
        host.ip(&format!(
            "link add to-{test} type veth peer name eth0 netns {}",
            pod.file_name().unwrap().to_str().unwrap()
        ));
        host.ip(&format!("link set to-{test} up"));
        host.ip_in(&pod, "link set eth0 up");
        host.ip_in(&pod, &format!("addr add {address}/32 dev eth0"));
        let from = node.map(|node| format!("src {node}")).unwrap_or_default();
        host.ip(&format!("route add {address} dev to-{test} {from}"));
        let ran = host.cni("ADD", test, &pod, &rail(0)).ok();
        host.cni("DEL", test, &pod, &rail(0)).ok();
        host.ip(&format!("link del to-{test}"));
        ran.stderr
            .lines()
            .filter(|line| line.contains(" warn ") && line.contains(" covers "))
            .count()
    };
    host.ip("link add uplink type veth peer name far-uplink");
    host.ip("link set far-uplink up");
    host.ip("link set uplink up");
    host.ip("addr add 10.1.1.1/24 dev uplink");
    assert_eq!(told("apart", "10.244.1.5", Some("10.1.1.1")), 0);
    assert_eq!(told("pod", "172.20.1.5", Some("10.1.1.1")), 1);
    host.ip("addr add 172.20.5.10/24 dev uplink");
    assert_eq!(told("node", "10.244.1.5", Some("172.20.5.10")), 1);
}

/// Of the interface alone: those of `all` would be the other rails' and eth0's.
#[test]
fn sysctls_are_set_for_the_interface_only() {
    let Some(host) = fabric("routing::sysctls", 1) else {
        return;
    };
    let pod = host.add_netns("pod");
    let rail_defaults = [
        ("ipv4", "arp_ignore", "1"),
        ("ipv4", "arp_announce", "2"),
        ("ipv4", "arp_notify", "1"),
        ("ipv4", "rp_filter", "2"),
        ("ipv6", "accept_ra", "0"),
        ("ipv6", "ndisc_notify", "1"),
        ("ipv6", "optimistic_dad", "1"),
        ("ipv6", "use_optimistic", "1"),
        ("ipv6", "disable_ipv6", "0"),
        ("ipv6", "keep_addr_on_down", "1"),
    ];
    let others = || -> Vec<String> {
        let keys = rail_defaults.iter().flat_map(|(family, key, _)| {
            ["all", "default", "lo"].map(|of| format!("{family}/conf/{of}/{key}"))
        });
        keys.map(|key| format!("{key}={}", host.sysctl(&pod, &key)))
            .collect()
    };
    let before = others();
    // Two of them are only those of a rail with an IPv6 address.
    host.plan("six", "fd00::/127", "fd00::1", &["fd00::/32"]);
    let both = with(
        rail(0),
        json!({"ipam": {"type": "rail-ipam", "pool": "rail-0,six"}}),
    );
    for (config, keys) in [(rail(0), &rail_defaults[..8]), (both, &rail_defaults)] {
        host.cni("ADD", "c1", &pod, &config).ok();
        for (family, key, value) in keys {
            assert_eq!(
                host.sysctl(&pod, &format!("{family}/conf/net1/{key}")),
                *value,
                "{key}"
            );
        }
        assert_eq!(others(), before);
        host.cni("DEL", "c1", &pod, &config).ok();
    }

    let config = with(
        rail(0),
        json!({"sysctl": {
            "net.ipv4.conf.IFNAME.rp_filter": "0", "net.ipv4.conf.net1.log_martians": "1",
            "net/ipv4/conf/IFNAME/arp_filter": "1", "net.ipv4.neigh.IFNAME.mcast_solicit": "5",
            "net.ipv6.conf.IFNAME.accept_ra": "0",
        }}),
    );
    host.cni("ADD", "c1", &pod, &config).ok();
    for (key, value) in [
        ("ipv4/conf/net1/rp_filter", "0"),
        ("ipv4/conf/net1/log_martians", "1"),
        ("ipv4/conf/net1/arp_filter", "1"),
        ("ipv4/neigh/net1/mcast_solicit", "5"),
    ] {
        assert_eq!(host.sysctl(&pod, key), value, "{key}");
    }
    host.cni("DEL", "c1", &pod, &config).ok();
}

/// The kernel removes the IPv6 addresses of a link that goes down, and gives them back to nobody.
#[test]
fn an_ipv6_address_survives_a_link_that_goes_down_and_up() {
    let Some(host) = fabric("routing::down", 1) else {
        return;
    };
    let pod = host.add_netns("pod");
    host.plan("six", "fd00::/127", "fd00::1", &["fd00::/32"]);
    let config = with(
        rail(0),
        json!({"ipam": {"type": "rail-ipam", "pool": "rail-0,six"}}),
    );
    host.cni("ADD", "c1", &pod, &config).ok();
    let addresses = || {
        let shown = host.json(Some(&pod), "addr show net1");
        let mut all = shown[0]["addr_info"].as_array().unwrap().clone();
        all.retain(|one| one["scope"] == "global");
        let all = all
            .iter()
            .map(|one| format!("{}/{}", one["local"].as_str().unwrap(), one["prefixlen"]));
        all.collect::<Vec<_>>()
    };
    let before = addresses();
    assert_eq!(before, ["172.16.0.0/31", "fd00::/127"]);
    host.ip_in(&pod, "link set net1 down");
    host.ip_in(&pod, "link set net1 up");
    assert_eq!(addresses(), before);
    host.cni("DEL", "c1", &pod, &config).ok();
}

/// A network could else turn the pod into a router, or change what is not its own.
#[test]
fn sysctls_of_anything_else_are_refused() {
    let Some(host) = fabric("routing::foreign", 1) else {
        return;
    };
    let pod = host.add_netns("pod");
    let before = host.snapshot();
    for key in [
        "net.ipv4.conf.all.rp_filter",
        "net.ipv4.conf.default.rp_filter",
        "net.ipv4.conf.eth0.rp_filter",
        "net.ipv4.ip_forward",
        "kernel.core_pattern",
        "net.core.somaxconn",
        "net/ipv4/conf/../../../kernel/x",
        "net/ipv4/conf/IFNAME/../../ip_forward",
        "net.ipv4.conf.IFNAME/../x.rp_filter",
        "net.ipv4.conf.IFNAME.",
        "net.ipv4.conf.IFNAME",
        "/proc/sys/net/ipv4/conf/IFNAME/rp_filter",
        "net.mpls.conf.IFNAME.input",
        "",
    ] {
        let error = host
            .cni(
                "ADD",
                "c1",
                &pod,
                &with(rail(0), json!({"sysctl": { key: "1" }})),
            )
            .error(7);
        assert!(error["msg"].as_str().unwrap().contains("sysctl"), "{error}");
        assert_eq!(host.snapshot(), before, "{key}");
    }
}

/// NVIDIA's three tiers have 10.0.0.0/8, and kubeadm's Services 10.96.0.0/12 of it.
#[test]
fn a_route_that_takes_the_clusters_networks_away_is_refused_and_one_that_overlaps_is_told() {
    let Some(host) = fabric("routing::cluster", 2) else {
        return;
    };
    let pod = host.add_netns("pod");
    host.ip_in(&pod, "link add eth0 type veth peer name peer0");
    host.ip_in(&pod, "addr add 172.31.7.2/24 dev eth0");
    host.ip_in(&pod, "link set eth0 up");
    host.ip_in(&pod, "link set peer0 up");
    host.ip_in(&pod, "route add default via 172.31.7.1");
    let before = host.snapshot();
    for network in ["172.20.0.0/14", "172.0.0.0/11", "172.16.0.0/12"] {
        host.set_node(json!({"clusterNetworks": ["10.96.0.0/12", network]}));
        let msg = host.cni("ADD", "c1", &pod, &rail(0)).error(7)["msg"].to_string();
        let text = format!("rail 0: …via 172.16.0.1 …{network}…clusterNetworks");
        assert!(golden::has(&msg, &text), "{msg}");
        assert_eq!(host.snapshot(), before);
    }
    // Traffic with a longer route stays where it is.
    host.set_node(json!({"clusterNetworks": ["172.31.7.0/25"]}));
    let added = host
        .call("ADD", "c1", &pod)
        .ifname("net1")
        .run(&rail(0))
        .ok();
    let told = "172.16.0.0/12 via 172.16.0.1 …172.31.7.0/24…eth0";
    assert!(
        added.stderr.lines().any(|line| golden::has(line, told)),
        "{}",
        added.stderr
    );
    // Rails share the fabric's routes.
    let other = host
        .call("ADD", "c1", &pod)
        .ifname("net2")
        .run(&rail(1))
        .ok();
    assert_eq!(
        other.stderr.matches("172.31.7.0/24").count(),
        1,
        "{}",
        other.stderr
    );
}

/// Without any route: the kernel makes one to the prefix of the address.
#[test]
fn an_address_whose_prefix_takes_services_away_is_refused() {
    let Some(host) = fabric("routing::own_prefix", 1) else {
        return;
    };
    let pod = host.add_netns("pod");
    host.set_node(json!({"clusterNetworks": ["10.96.0.0/12", "fd00:96::/112"]}));
    let before = host.snapshot();
    host.plan("rail-0", "10.96.4.0/31", "10.96.4.1", &[]);
    for prefix in ["10.96.4.0/31", "10.96.0.0/16", "10.0.0.0/8"] {
        let gateway = if prefix == "10.96.4.0/31" {
            "10.96.4.1"
        } else {
            "10.96.0.1"
        };
        host.plan(
            "rail-0",
            prefix,
            if prefix == "10.0.0.0/8" {
                "10.0.0.1"
            } else {
                gateway
            },
            &[],
        );
        let error = host.cni("ADD", "c1", &pod, &rail(0)).error(7);
        assert!(
            error["msg"].as_str().unwrap().contains(" 10.96.0.0/12"),
            "{error}"
        );
        assert_eq!(host.snapshot(), before);
    }
    host.plan("rail-0", "10.112.0.0/31", "10.112.0.1", &[]);
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
}

#[test]
fn networks_that_no_route_touches_are_no_matter() {
    let Some(host) = fabric("routing::clear", 1) else {
        return;
    };
    let pod = host.add_netns("pod");
    host.set_node(json!({"clusterNetworks": ["10.96.0.0/12", "10.244.0.0/16", "fd00::/16"]}));
    let added = host.cni("ADD", "c1", &pod, &rail(0)).ok();
    assert!(!added.stderr.contains("overlaps"), "{}", added.stderr);
}

/// As `sbr` behind rail-cni does it to the routes of the main table.
#[test]
fn a_route_that_was_moved_to_another_table_is_not_gone() {
    let Some(host) = fabric("routing::moved", 1) else {
        return;
    };
    let pod = host.add_netns("pod");
    let config = with(rail(0), json!({"routing": "destination-based"}));
    let result = attach(&host, "c1", &pod, 0, &config);
    let checked = with(config, json!({ "prevResult": result }));
    let check = || host.call("CHECK", "c1", &pod).ifname("net1").run(&checked);
    check().ok();
    let routes = routes_of(&host, &pod, "net1");
    let route = routes[0]
        .as_array()
        .unwrap()
        .iter()
        .find(|route| route["gateway"].is_string())
        .unwrap();
    let dst = route["dst"].as_str().unwrap();
    let gateway = route["gateway"].as_str().unwrap();
    host.ip_in(&pod, &format!("route del {dst} dev net1"));
    check().error(100);
    host.ip_in(
        &pod,
        &format!("route add {dst} via {gateway} dev net1 table 250"),
    );
    check().ok();
}

/// `sbr` behind rail-cni in the chain of rail 0 takes the first table without a rule, which is rail
/// 1's: packets of rail 1 would leave by rail 0.
#[test]
fn a_table_that_another_plugin_filled_is_refused() {
    let Some(host) = fabric("routing::sbr", 2) else {
        return;
    };
    let pod = host.add_netns("pod");
    attach(&host, "c1", &pod, 0, &rail(0));
    host.ip_in(&pod, "route add 172.16.0.0/12 dev net1 table 101");
    let error = host
        .call("ADD", "c1", &pod)
        .ifname("net2")
        .run(&rail(1))
        .error(7);
    for said in ["table 101", "172.16.0.0/12", "of net1", "sbr"] {
        assert!(error["msg"].as_str().unwrap().contains(said), "{error}");
    }
    host.ip_in(&pod, "route flush table 101");
    attach(&host, "c1", &pod, 1, &rail(1));
}
