//! Rails without a prefix: the pod has one address, and the gateway is on the link although no
//! prefix contains it. The next hop of IPv4 routes can be an IPv6 address.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Host, pf_address, rail, with};

/// The addresses behind the ports of the leaf, in both families.
const BEHIND: [&str; 2] = ["10.79.0.1", "fd40:ffff::1"];

/// Rails 0 and 1 with an address of each family. The leaf answers on all ports for the gateways
/// fe80::1, 10.255.0.1 and fd40:eeee::1; IPv6 does so only for addresses of the port.
fn two_rails(test: &str) -> Option<Host> {
    let host = Host::new(test)?;
    let leaf = host.leaf();
    for address in BEHIND.iter().chain(&["10.255.0.1"]) {
        host.ip(&format!("-n {leaf} addr add {address} dev lo"));
    }
    for rail in [0, 1] {
        host.ip(&format!(
            "link add vf{rail} type veth peer name leaf{rail} netns {leaf}"
        ));
        host.make_vf(rail, "mlx5_core");
        for gateway in ["fe80::1/64", "fd40:eeee::1/128"] {
            host.ip(&format!(
                "-n {leaf} addr add {gateway} dev leaf{rail} nodad"
            ));
        }
        host.ip(&format!("-n {leaf} link set leaf{rail} mtu 9216 up"));
        host.ip(&format!(
            "-n {leaf} route add 10.6{rail}.0.1/32 dev leaf{rail} src 10.255.0.1"
        ));
        host.ip(&format!(
            "-n {leaf} -6 route add fd40:{rail}::1/128 dev leaf{rail}"
        ));
    }
    Some(host)
}

/// Plans `pool`: the version of the store for a gateway outside of the prefix.
fn plan(host: &Host, pool: &str, prefix: &str, gateway: &str, routes: &[&str]) {
    let routes: Vec<_> = routes.iter().map(|dst| json!({ "dst": dst })).collect();
    let allocation = json!({"version": 2, "prefix": prefix, "gateway": gateway, "routes": routes});
    fs::create_dir_all(host.path("store/node-1")).unwrap();
    fs::write(
        host.path(&format!("store/node-1/{pool}.json")),
        allocation.to_string(),
    )
    .unwrap();
}

fn of_pool(number: u8, pool: &str) -> Value {
    with(
        rail(number),
        json!({"ipam": {"type": "rail-ipam", "pool": pool}}),
    )
}

fn add(host: &Host, pod: &Path, number: u8, config: &Value) -> Value {
    host.call("ADD", "c1", pod)
        .ifname(&format!("net{}", number + 1))
        .run(config)
        .ok()
        .json()
}

fn reaches(host: &Host, pod: &Path, source: &str, to: &str) {
    let ping = host.run_in(pod, &format!("ping -c1 -W10 -I {source} {to}"));
    assert_eq!(ping.status, 0, "{source} to {to}: {ping:?}");
}

/// Also where the pod's own interfaces have no IPv6, as in many clusters.
#[test]
fn an_ipv4_rail_has_an_ipv6_next_hop() {
    let Some(host) = two_rails("unnumbered::inet6") else {
        return;
    };
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    for scope in ["all", "default"] {
        host.set_sysctl(&pod, &format!("ipv6/conf/{scope}/disable_ipv6"), "1");
    }
    for number in [0, 1] {
        let (pool, own) = (format!("four-{number}"), format!("10.6{number}.0.0/16"));
        plan(
            &host,
            &pool,
            &format!("10.6{number}.0.1/32"),
            "fe80::1",
            &[&own, "10.64.0.0/12"],
        );
        let probe = json!({"gatewayProbe": "require", "gatewayProbeTimeout": "20s", "routes": [{"dst": "10.99.0.0/16"}]});
        let config = with(of_pool(number, &pool), probe);
        let added = add(&host, &pod, number, &config);
        assert_eq!(
            added["ips"][0]["address"],
            format!("10.6{number}.0.1/32"),
            "{added}"
        );
        assert_eq!(added["ips"][0]["gateway"], "fe80::1", "{added}");
        let gateways: Vec<_> = added["routes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|route| &route["gw"])
            .collect();
        assert!(
            gateways.len() >= 3 && gateways.iter().all(|gw| **gw == "fe80::1"),
            "{added}"
        );

        let dev = format!("net{}", number + 1);
        for table in ["main", &(100 + u32::from(number)).to_string()] {
            let routes = host.json(
                Some(&pod),
                &format!("-4 route show table {table} proto static dev {dev}"),
            );
            let routes = routes.as_array().unwrap();
            assert_eq!(routes.len(), 3, "{table}: {routes:?}");
            for route in routes {
                assert_eq!(
                    route["via"],
                    json!({"family": "inet6", "host": "fe80::1"}),
                    "{route}"
                );
                assert_eq!(route["metric"], 1000 + u64::from(number), "{route}");
            }
        }
        // The link-local address works at once: it is not looked for a second one.
        let dad = host.run_in(
            &pod,
            &format!("cat /proc/sys/net/ipv6/conf/{dev}/accept_dad"),
        );
        assert_eq!(dad.stdout.trim(), "0");

        let checked = with(config.clone(), json!({ "prevResult": added }));
        let check = || host.call("CHECK", "c1", &pod).ifname(&dev).run(&checked);
        check().ok();
        host.ip_in(
            &pod,
            &format!("-4 route del 10.99.0.0/16 dev {dev} table main"),
        );
        let told = check().error(100)["msg"].to_string();
        let gone = format!(
            "the route 10.99.0.0/16 via inet6 fe80::1 metric {} is gone",
            1000 + u64::from(number)
        );
        assert!(told.contains(&gone), "{told}");
    }
    for number in [0, 1] {
        reaches(&host, &pod, &format!("10.6{number}.0.1"), BEHIND[0]);
        let config = of_pool(number, &format!("four-{number}"));
        host.call("DEL", "c1", &pod)
            .ifname(&format!("net{}", number + 1))
            .run(&config)
            .ok();
    }
    assert_eq!(host.snapshot(), before);
}

/// A leaf that routes to a pod's address by ARP knows its MAC before the pod sends anything,
/// although the next hop of the pod is asked for by ND.
#[test]
fn an_ipv4_address_is_announced_to_an_ipv6_next_hop() {
    let Some(host) = two_rails("unnumbered::announce") else {
        return;
    };
    let (pod, leaf) = (
        host.add_netns("pod"),
        Path::new("/run/netns").join(host.leaf()),
    );
    plan(
        &host,
        "four-0",
        "10.60.0.1/32",
        "fe80::1",
        &["10.64.0.0/12"],
    );
    // The end of a pod takes the carrier away, and the kernel hears of it when it has time.
    host.set_sysctl(&leaf, "ipv4/conf/leaf0/arp_evict_nocarrier", "0");
    for probe in ["off", "require"] {
        host.ip_in(
            &leaf,
            "neigh replace 10.60.0.1 lladdr 02:00:00:00:99:99 dev leaf0 nud stale",
        );
        let config = with(
            of_pool(0, "four-0"),
            json!({"gatewayProbe": probe, "gatewayProbeTimeout": "20s"}),
        );
        add(&host, &pod, 0, &config);
        // The kernel asked, and nobody else has the address.
        let asked = host.ip_in(&pod, "neigh show dev net1 nud all to 10.60.0.1");
        assert!(
            asked.contains("INCOMPLETE") || asked.contains("FAILED"),
            "{probe}: {asked:?}"
        );
        let mac = host.json(Some(&pod), "link show net1")[0]["address"]
            .as_str()
            .unwrap()
            .to_owned();
        let known = host.ip_in(&leaf, "neigh show dev leaf0 to 10.60.0.1");
        assert!(known.contains(&mac), "{probe}: {known}");
        host.cni("DEL", "c1", &pod, &config).ok();
    }
}

/// A host address with a gateway of its own family, which is on the link without a prefix.
#[test]
fn a_gateway_outside_of_every_prefix_is_on_the_link() {
    let Some(host) = two_rails("unnumbered::onlink") else {
        return;
    };
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    plan(
        &host,
        "four",
        "10.60.0.1/32",
        "10.255.0.1",
        &["10.64.0.0/12"],
    );
    plan(
        &host,
        "six",
        "fd40:0::1/128",
        "fd40:eeee::1",
        &["fd40::/16"],
    );
    plan(&host, "local", "fd40:0::1/128", "fe80::1", &["fd40::/16"]);
    for (pools, reached) in [
        ("four,six", &BEHIND[..]),
        ("four,local", &BEHIND[..]),
        ("local", &BEHIND[1..]),
    ] {
        let config = with(
            of_pool(0, pools),
            json!({"gatewayProbe": "require", "gatewayProbeTimeout": "20s"}),
        );
        let added = add(&host, &pod, 0, &config);
        for to in reached {
            reaches(
                &host,
                &pod,
                if to.contains(':') {
                    "fd40::1"
                } else {
                    "10.60.0.1"
                },
                to,
            );
        }
        host.cni(
            "CHECK",
            "c1",
            &pod,
            &with(config.clone(), json!({ "prevResult": added })),
        )
        .ok();
        host.cni("DEL", "c1", &pod, &config).ok();
        assert_eq!(host.snapshot(), before, "{pools}");
    }
}

/// Every rail has the gateway fe80::1, and each message names the leaf port of its own rail. That a
/// gateway answers which all leaves have says nothing about the cable.
#[test]
fn a_silent_next_hop_is_told_with_the_leaf_port_of_its_rail() {
    let Some(host) = two_rails("unnumbered::silent") else {
        return;
    };
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    let mut ports = serde_json::Map::new();
    for number in [0, 1] {
        let pool = format!("four-{number}");
        plan(
            &host,
            &pool,
            &format!("10.6{number}.0.1/32"),
            "fe80::1",
            &["10.64.0.0/12"],
        );
        plan(
            &host,
            &format!("other-{number}"),
            &format!("10.7{number}.0.1/32"),
            "10.255.0.1",
            &[],
        );
        let port = json!({"leaf": format!("leaf-r{number}"), "port": "swp2"});
        ports.insert(pool, json!({"gateway": "fe80::1", "ports": [port]}));
        host.ip(&format!(
            "-n {} addr del fe80::1/64 dev leaf{number}",
            host.leaf()
        ));
    }
    fs::write(
        host.path("store/node-1/leaf-ports"),
        Value::Object(ports).to_string(),
    )
    .unwrap();
    for number in [0, 1] {
        let probe = json!({"gatewayProbe": "require", "gatewayProbeTimeout": "300ms"});
        let config = with(of_pool(number, &format!("four-{number}")), probe);
        let failed = host.cni("ADD", "c1", &pod, &config);
        let told = failed.error(101)["msg"].to_string();
        let expected = format!("gateway fe80::1 (leaf-r{number} swp2)");
        for part in [&*expected, &pf_address(number)] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert_eq!(host.snapshot(), before);
    }
}

/// Results of all versions have the gateway of the other family in the same places.
#[test]
fn older_results_have_the_ipv6_gateway_too() {
    let Some(host) = two_rails("unnumbered::versions") else {
        return;
    };
    let pod = host.add_netns("pod");
    plan(
        &host,
        "four-0",
        "10.60.0.1/32",
        "fe80::1",
        &["10.64.0.0/12"],
    );
    for (version, ips, routes) in [
        ("0.2.0", "/ip4/gateway", "/ip4/routes/0/gw"),
        ("0.4.0", "/ips/0/gateway", "/routes/0/gw"),
        ("1.0.0", "/ips/0/gateway", "/routes/0/gw"),
    ] {
        let config = with(of_pool(0, "four-0"), json!({ "cniVersion": version }));
        let added = add(&host, &pod, 0, &config);
        assert_eq!(
            added.pointer(ips),
            Some(&json!("fe80::1")),
            "{version}: {added}"
        );
        assert_eq!(
            added.pointer(routes),
            Some(&json!("fe80::1")),
            "{version}: {added}"
        );
        if version != "0.2.0" {
            host.cni(
                "CHECK",
                "c1",
                &pod,
                &with(config.clone(), json!({ "prevResult": added })),
            )
            .ok();
        }
        host.cni("DEL", "c1", &pod, &config).ok();
    }
}

#[test]
fn an_ipv6_route_by_an_ipv4_gateway_is_refused() {
    let Some(host) = two_rails("unnumbered::four") else {
        return;
    };
    let pod = host.add_netns("pod");
    plan(
        &host,
        "four-0",
        "10.60.0.1/32",
        "10.255.0.1",
        &["10.64.0.0/12"],
    );
    let config = with(
        of_pool(0, "four-0"),
        json!({"routes": [{"dst": "fd00::/8", "gw": "10.255.0.1"}]}),
    );
    let told = host.cni("ADD", "c1", &pod, &config).error(7)["msg"].to_string();
    assert!(told.contains("fd00::/8 via 10.255.0.1"), "{told}");
}
