//! tests/contract-items, items 60 to 72: what is printed, for every version of the specification,
//! as golden JSON.

use serde_json::{Value, json};

use crate::harness::{Host, rail, vf_address, with};

const VERSIONS: [&str; 7] = [
    "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0",
];

/// A VF with both families, a MAC, routes with everything, and DNS.
fn full(host: &Host) -> Value {
    host.add_rail(0);
    host.make_vf(0, "mlx5_core");
    host.plan("rail-0-v6", "fd00::/127", "fd00::1", &["fd00::/32"]);
    with(
        rail(0),
        json!({
            "mac": "02:00:00:00:00:01",
            "routes": [{"dst": "172.31.0.0/16", "mtu": 4000, "advmss": 3900, "priority": 7, "table": 77}],
            "ipam": {"type": "rail-ipam", "pool": "rail-0,rail-0-v6"},
            "dns": {"nameservers": ["10.0.0.10"], "search": ["rails.example"]},
        }),
    )
}

/// The output of rail-cni for it.
fn golden(version: &str, sandbox: &str) -> Value {
    let dns = json!({"nameservers": ["10.0.0.10"], "search": ["rails.example"]});
    let (v4, v6) = ("172.16.0.1", "fd00::1");
    if version <= "0.2.0" {
        return json!({
            "cniVersion": version, "dns": dns,
            "ip4": {"ip": "172.16.0.0/31", "gateway": v4, "routes": [
                {"dst": "172.16.0.0/15", "gw": v4}, {"dst": "172.16.0.0/12", "gw": v4}, {"dst": "172.31.0.0/16", "gw": v4},
            ]},
            "ip6": {"ip": "fd00::/127", "gateway": v6, "routes": [{"dst": "fd00::/32", "gw": v6}]},
        });
    }
    let mut golden = json!({
        "cniVersion": version, "dns": dns,
        "interfaces": [{"name": "net1", "mac": "02:00:00:00:00:01", "sandbox": sandbox}],
        "ips": [
            {"address": "172.16.0.0/31", "gateway": v4, "interface": 0},
            {"address": "fd00::/127", "gateway": v6, "interface": 0},
        ],
        "routes": [
            {"dst": "172.16.0.0/15", "gw": v4}, {"dst": "172.16.0.0/12", "gw": v4},
            {"dst": "fd00::/32", "gw": v6}, {"dst": "172.31.0.0/16", "gw": v4},
        ],
    });
    if version < "1.0.0" {
        golden["ips"][0]["version"] = json!("4");
        golden["ips"][1]["version"] = json!("6");
    }
    if version == "1.1.0" {
        golden["interfaces"][0]["mtu"] = json!(9000);
        golden["interfaces"][0]["pciID"] = json!(vf_address(0));
        for route in 0..3 {
            golden["routes"][route]["priority"] = json!(1000);
        }
        let last = json!({"dst": "172.31.0.0/16", "gw": v4, "mtu": 4000, "advmss": 3900, "priority": 7, "table": 77});
        golden["routes"][3] = last;
    }
    golden
}

/// The output of rail-ipam: without interfaces.
fn golden_of_ipam(version: &str) -> Value {
    let mut golden = golden(version, "");
    let object = golden.as_object_mut().unwrap();
    object.remove("interfaces");
    object.remove("dns");
    let (v4, v6) = ("172.16.0.1", "fd00::1");
    if version <= "0.2.0" {
        object["ip4"]["routes"] =
            json!([{"dst": "172.16.0.0/15", "gw": v4}, {"dst": "172.16.0.0/12", "gw": v4}]);
        return golden;
    }
    object["routes"] = json!([
        {"dst": "172.16.0.0/15", "gw": v4}, {"dst": "172.16.0.0/12", "gw": v4}, {"dst": "fd00::/32", "gw": v6},
    ]);
    for ip in object["ips"].as_array_mut().unwrap() {
        ip.as_object_mut().unwrap().remove("interface");
    }
    golden
}

/// tests/contract-items, items 33, 60 to 68, 72: every verb for every version.
#[test]
fn every_version_gets_its_own_result_from_every_verb() {
    let Some(host) = Host::new("result::versions") else {
        return;
    };
    let full = full(&host);
    let pod = host.add_netns("pod");
    let before = host.snapshot();
    for ipam in [false, true] {
        let call = |verb: &str| {
            if ipam {
                host.call(verb, "c1", &pod).ipam()
            } else {
                host.call(verb, "c1", &pod)
            }
        };
        for version in VERSIONS {
            let config = with(full.clone(), json!({ "cniVersion": version }));
            let result = call("ADD").run(&config).ok().json();
            let expected = if ipam {
                golden_of_ipam(version)
            } else {
                golden(version, pod.to_str().unwrap())
            };
            assert_eq!(result, expected, "{version}");
            let config = with(config, json!({ "prevResult": result }));
            let checked = call("CHECK").run(&config);
            assert_eq!(
                checked.status,
                i32::from(version < "0.4.0"),
                "{version}: {checked:?}"
            );
            for verb in ["STATUS", "GC"] {
                let ran = call(verb).run(&config);
                if version < "1.1.0" {
                    ran.error(1);
                } else {
                    assert_eq!(ran.ok().stdout, "");
                }
            }
            assert_eq!(call("DEL").run(&config).ok().stdout, "");
            assert_eq!(host.snapshot(), before, "{version}");
        }
    }
}

/// tests/contract-items, item 60: without a version it is 0.1.0, as libcni takes a NAD that has
/// none.
#[test]
fn without_a_version_it_is_0_1_0() {
    let Some(host) = Host::new("result::none") else {
        return;
    };
    let mut config = full(&host);
    config.as_object_mut().unwrap().remove("cniVersion");
    let pod = host.add_netns("pod");
    assert_eq!(
        host.cni("ADD", "c1", &pod, &config).ok().json(),
        golden("0.1.0", "")
    );
}

/// tests/contract-items, items 61, 62, 64: no gateway, no IPAM, no MTU asked for: nothing is made
/// up.
#[test]
fn what_is_not_there_is_left_out() {
    let Some(host) = Host::new("result::bare") else {
        return;
    };
    host.add_rail(0);
    let pod = host.add_netns("pod");
    let mac = host.json(None, "link show vf0")[0]["address"].clone();
    let bare = json!({"cniVersion": "1.1.0", "name": "n", "type": "rail-cni", "device": "vf0"});
    let result = host.cni("ADD", "c1", &pod, &bare).ok().json();
    let interface = json!({"name": "net1", "mac": mac, "mtu": 1500, "sandbox": pod});
    assert_eq!(
        result,
        json!({"cniVersion": "1.1.0", "interfaces": [interface]})
    );
    host.cni("DEL", "c1", &pod, &bare).ok();

    host.add_plugin(
        "stand-in",
        r#"echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24"}]}'"#,
    );
    let config = with(bare, json!({"ipam": {"type": "stand-in"}}));
    let result = host.cni("ADD", "c1", &pod, &config).ok().json();
    assert_eq!(
        result["ips"],
        json!([{"address": "10.0.0.2/24", "interface": 0}])
    );
    assert_eq!(result.get("routes"), None);
}

/// tests/contract-items, item 63: a scope or table of 0 is said, a metric or MTU of 0 is not; all
/// are integers.
#[test]
fn zero_is_said_where_it_means_something() {
    let Some(host) = Host::new("result::zero") else {
        return;
    };
    host.add_rail(0);
    let pod = host.add_netns("pod");
    let routes = json!([{"dst": "10.1.0.0/16", "scope": 0}, {"dst": "10.2.0.0/16", "gw": "0.0.0.0", "scope": 253, "priority": 5}]);
    let config = with(
        rail(0),
        json!({"routes": routes, "ipam": {"type": "rail-ipam", "pool": "rail-0"}}),
    );
    let result = host.cni("ADD", "c1", &pod, &config).ok().json();
    let routes = result["routes"].as_array().unwrap();
    assert_eq!(
        routes[2],
        json!({"dst": "10.1.0.0/16", "gw": "172.16.0.1", "scope": 0, "priority": 1000})
    );
    assert_eq!(
        routes[3],
        json!({"dst": "10.2.0.0/16", "scope": 253, "priority": 5})
    );
}

/// tests/contract-items, item 68: what 0.1.0 and 0.2.0 cannot say is an error, and ADD is undone.
#[test]
fn a_result_that_its_version_has_no_words_for_is_an_error() {
    let Some(host) = Host::new("result::unsayable") else {
        return;
    };
    host.add_rail(0);
    let pod = host.add_netns("pod");
    let before = host.snapshot();
    for version in ["0.1.0", "0.2.0"] {
        let config = with(rail(0), json!({"cniVersion": version, "ipam": {}}));
        let failed = host.cni("ADD", "c1", &pod, &config);
        golden::says(
            "plugins",
            &format!("ADD: a result without addresses, {version}"),
            failed.msg(),
        );
        assert_eq!(host.snapshot(), before, "{version}");
    }
}

/// tests/contract-items, item 70: two addresses of a family are refused rather than dropped.
#[test]
fn an_old_version_has_room_for_one_address_of_a_family() {
    let Some(host) = Host::new("result::two") else {
        return;
    };
    host.add_rail(0);
    host.plan("second", "172.30.0.0/31", "172.30.0.1", &[]);
    let pod = host.add_netns("pod");
    let before = host.snapshot();
    let two = r#"[ $CNI_COMMAND = ADD ] && echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}, {"address": "10.1.0.2/24"}]}'; exit 0"#;
    host.add_plugin("stand-in", two);
    for ipam in [
        json!({"type": "rail-ipam", "pool": "rail-0,second"}),
        json!({"type": "stand-in"}),
    ] {
        for version in ["0.1.0", "0.2.0"] {
            let config = with(rail(0), json!({"cniVersion": version, "ipam": ipam}));
            host.cni("ADD", "c1", &pod, &config).error(7);
            assert_eq!(host.snapshot(), before, "{version} {ipam}");
        }
        let config = with(rail(0), json!({"cniVersion": "0.3.0", "ipam": ipam}));
        assert_eq!(
            host.cni("ADD", "c1", &pod, &config).ok().json()["ips"]
                .as_array()
                .unwrap()
                .len(),
            2
        );
        host.cni("DEL", "c1", &pod, &config).ok();
    }
}

/// tests/contract-items, items 48, 69: a chain in every version; what was there comes first, and
/// indexes are shifted.
#[test]
fn a_previous_result_of_every_version_is_merged_and_printed_again() {
    let Some(host) = Host::new("result::chain") else {
        return;
    };
    host.add_rail(0);
    let pod = host.add_netns("pod");
    for version in VERSIONS {
        let old = version <= "0.2.0";
        let mut previous = if old {
            json!({"cniVersion": version, "dns": {"domain": "x"},
                "ip6": {"ip": "fd01::2/64", "gateway": "fd01::1", "routes": [{"dst": "::/0"}]}})
        } else {
            json!({"cniVersion": version, "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": pod}],
                "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 1}],
                "routes": [{"dst": "0.0.0.0/0"}], "dns": {"domain": "x"}})
        };
        if (version < "1.0.0") && !old {
            previous["ips"][0]["version"] = json!("4");
        }
        let config = with(
            rail(0),
            json!({ "cniVersion": version, "prevResult": previous }),
        );
        let result = host.cni("ADD", "c1", &pod, &config).ok().json();
        assert_eq!(
            (&result["cniVersion"], &result["dns"]),
            (&json!(version), &previous["dns"])
        );
        if old {
            assert_eq!(
                (&result["ip6"], &result["ip4"]["ip"]),
                (&previous["ip6"], &json!("172.16.0.0/31"))
            );
        } else {
            assert_eq!(
                result["interfaces"][1], previous["interfaces"][1],
                "{version}"
            );
            assert_eq!(result["ips"][0], previous["ips"][0], "{version}");
            assert_eq!(
                (
                    &result["ips"][1]["interface"],
                    &result["interfaces"][2]["name"]
                ),
                (&json!(2), &json!("net1"))
            );
        }
        host.cni(
            "DEL",
            "c1",
            &pod,
            &with(config, json!({ "prevResult": result })),
        )
        .ok();
    }
}
