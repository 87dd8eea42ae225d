//! tests/contract-items, items 30 to 41: the configuration on stdin.

use serde_json::{Value, json};

use super::{Bench, VERBS, config, for_both};
use crate::harness::with;

/// tests/contract-items, item 30.
#[test]
fn stdin_is_one_json_object() {
    for_both("configuration::json", |bench| {
        let whole = config().to_string();
        let cut = &whole[..whole.len() - 1];
        let trailing = format!("{whole} x");
        let twice = format!("{whole}{whole}");
        for verb in VERBS {
            for text in [
                "", " ", "{", "[]", "null", "7", "\"x\"", cut, &trailing, &twice,
            ] {
                bench.call(verb).run_with(text.as_bytes()).error(6);
            }
            bench.call(verb).run_with(b"{\"name\":\"\xff\"}").error(6);
        }
        assert!(!bench.host.path("run").exists());
    });
}

/// tests/contract-items, item 31.
#[test]
fn a_network_has_a_name_that_is_an_identifier() {
    for_both("configuration::name", |bench| {
        for verb in VERBS {
            for none in [json!(null), json!("")] {
                let error = bench
                    .call(verb)
                    .run(&with(config(), json!({ "name": none })))
                    .error(7);
                golden::says(
                    "plugins",
                    "a network without a name",
                    error["msg"].as_str().unwrap(),
                );
            }
            let mut unnamed = config();
            unnamed.as_object_mut().unwrap().remove("name");
            let error = bench.call(verb).run(&unnamed).error(7);
            golden::says(
                "plugins",
                "a network without a name",
                error["msg"].as_str().unwrap(),
            );
            for bad in ["-a", "a b", "a/b", "../a", "a\n", "a\u{0}", "é"] {
                let error = bench
                    .call(verb)
                    .run(&with(config(), json!({ "name": bad })))
                    .error(7);
                golden::says(
                    "plugins",
                    "a name of a network that is not valid",
                    error["msg"].as_str().unwrap(),
                );
                // Characters that could control a terminal are written out.
                assert_eq!(error["details"], bad.replace('\0', "\\u{0}"));
            }
        }
    });
}

/// tests/contract-items, item 32.
#[test]
fn a_version_is_one_of_ours_or_absent() {
    for_both("configuration::version", |bench| {
        for verb in ["ADD", "CHECK", "STATUS", "GC"] {
            for bad in [json!(1), json!(1.1), json!([]), json!({}), json!(true)] {
                bench
                    .call(verb)
                    .run(&with(config(), json!({ "cniVersion": bad })))
                    .error(6);
            }
            for other in ["0.5.0", "1.2.0", "2.0.0", "0.0.1"] {
                let error = bench
                    .call(verb)
                    .run(&with(config(), json!({ "cniVersion": other })))
                    .error(1);
                golden::says(
                    "plugins",
                    "another cniVersion",
                    error["msg"].as_str().unwrap(),
                );
                let details = error["details"].as_str().unwrap();
                assert!(
                    details.contains(other) && details.contains("0.3.1"),
                    "{details}"
                );
            }
        }
        for absent in [json!(null), json!("")] {
            let config = with(config(), json!({ "cniVersion": absent }));
            assert_eq!(
                bench.call("ADD").run(&config).ok().json()["cniVersion"],
                "0.1.0"
            );
            bench.call("DEL").run(&config).ok();
        }
    });
}

/// tests/contract-items, item 34.
#[test]
fn a_verb_needs_the_version_that_brought_it() {
    for_both("configuration::old", |bench| {
        let old = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"];
        for (verb, versions) in [("CHECK", &old[..4]), ("STATUS", &old), ("GC", &old)] {
            for version in versions {
                let error = bench
                    .call(verb)
                    .run(&with(config(), json!({ "cniVersion": version })))
                    .error(1);
                assert!(
                    error["msg"].as_str().unwrap().contains(verb),
                    "{version}: {error}"
                );
            }
            let mut absent = config();
            absent.as_object_mut().unwrap().remove("cniVersion");
            bench.call(verb).run(&absent).error(1);
            for bad in ["x", "1", "1.1", "1.1.0.0", "v1.1.0"] {
                bench
                    .call(verb)
                    .run(&with(config(), json!({ "cniVersion": bad })))
                    .error(6);
            }
        }
    });
}

/// tests/contract-items, items 35, 37, 38, 40: what runtimes and Multus add. libcni leaves
/// `capabilities` in, which section 3 of the specification has it remove.
#[test]
fn keys_that_are_not_ours_do_no_harm() {
    for_both("configuration::unknown", |bench| {
        let config = with(
            config(),
            json!({
                "type": "rail-cni", "ipMasq": false, "args": {"cni": {"x": [1]}, "other": null},
                "capabilities": {"portMappings": true, "unheardOf": false},
                "runtimeConfig": {"portMappings": [{"hostPort": 1}], "io.kubernetes.cri.pod-annotations": {"a": "b"}},
                "cniVersions": ["1.0.0", "1.1.0"], "disableCheck": true, "disableGC": true,
                "loadOnlyInlinedPlugins": true, "cni.dev/unheard-of": {}, "dns": {}, "resourceName": "a/b",
                "unknown": {"deep": [null, 1e300, -1, "x"]}, "big": 1e21, "plugins": [], "isDefaultGateway": true
            }),
        );
        let added = bench.call("ADD").run(&config).ok().json();
        let config = with(config, json!({ "prevResult": added }));
        for verb in ["CHECK", "GC", "DEL"] {
            bench.call(verb).run(&config).ok();
        }
        bench.call("STATUS").run(&config).ok();
    });
}

/// tests/contract-items, item 36: go-cni writes its capabilities in capitals, and null for none.
#[test]
fn runtime_config_is_read_in_any_letter_case_and_null_is_absent() {
    let Some(bench) = Bench::cni("configuration::case") else {
        return;
    };
    let mac = "02:00:00:00:00:77";
    for (runtime, expected) in [
        (
            json!({"MAC": mac, "PortMappings": null, "IPs": null, "DNS": {"Servers": null, "Searches": null}}),
            mac,
        ),
        (
            json!({"Mac": mac, "ips": [], "DeviceID": null, "InfinibandGUID": null, "CNIDeviceInfoFile": null}),
            mac,
        ),
        (
            json!({"mac": mac, "DEVICEID": "", "infinibandGUID": "", "CNIDeviceInfoFile": ""}),
            mac,
        ),
    ] {
        let config = with(config(), json!({ "runtimeConfig": runtime }));
        let added = bench.call("ADD").run(&config).ok().json();
        assert_eq!(added["interfaces"][0]["mac"], expected, "{runtime}");
        bench.call("DEL").run(&config).ok();
    }
    for null in [
        "runtimeConfig",
        "args",
        "capabilities",
        "dns",
        "prevResult",
        "mac",
        "routes",
        "sysctl",
    ] {
        let config = with(config(), json!({ null: Value::Null }));
        bench.call("ADD").run(&config).ok();
        bench.call("DEL").run(&config).ok();
    }
}

/// tests/contract-items, item 36: Go's plugins take any letter case everywhere. Of `"Vlan"` that is
/// ignored nobody would hear.
#[test]
fn keys_in_another_letter_case_mean_the_same() {
    for_both("configuration::keys", |bench| {
        let in_capitals = |config: &Value| -> Value {
            let upper = |map: &Value| -> Value {
                let map = map.as_object().unwrap().iter();
                map.map(|(key, value)| (key.to_uppercase(), value.clone()))
                    .collect()
            };
            with(upper(config), json!({"IPAM": upper(&config["ipam"])}))
        };
        let before = bench.host.snapshot();
        let config = with(config(), json!({"mtu": 1400, "routes": []}));
        let added = bench.call("ADD").run(&in_capitals(&config)).ok().json();
        assert_eq!(added["ips"][0]["address"], "172.16.0.0/31", "{added}");
        if bench.program == "rail-cni" {
            assert_eq!(
                (&added["cniVersion"], &added["interfaces"][0]["mtu"]),
                (&json!("1.1.0"), &json!(1400))
            );
        }
        let checked = in_capitals(&with(config.clone(), json!({ "prevResult": added })));
        bench.call("CHECK").run(&checked).ok();
        let lives = json!({"CNI.dev/Valid-Attachments": [{"containerID": "c1", "ifname": "net1"}]});
        bench.call("GC").run(&with(checked.clone(), lives)).ok();
        bench.call("CHECK").run(&checked).ok();
        bench.call("STATUS").run(&checked).ok();
        bench.call("DEL").run(&checked).ok();
        assert_eq!(bench.host.snapshot(), before);
    });
}

/// The meant one is unknown. DEL has to do something, and does what Go's plugins do.
#[test]
fn a_key_that_stands_twice_is_refused_and_del_takes_the_last() {
    for_both("configuration::twice", |bench| {
        let before = bench.host.snapshot();
        let added = json!({"cniVersion": "1.1.0", "ips": []});
        let with_text = |text: &str| {
            let whole = with(config(), json!({ "prevResult": added })).to_string();
            format!("{}, {text}}}", &whole[..whole.len() - 1])
        };
        let ipam = r#""type": "rail-ipam", "pool": "rail-0""#;
        let mut twice = vec![
            (r#""name": "rail-0""#.to_owned(), "name"),
            (r#""unheard": 1, "unheard": 1"#.to_owned(), "unheard"),
            (r#""CNIVersion": "1.1.0""#.to_owned(), "cniVersion"),
            (
                r#""args": {"cni": {"ips": [], "IPs": []}}"#.to_owned(),
                "args.cni.ips",
            ),
        ];
        if bench.program == "rail-cni" {
            twice.push((r#""MTU": 9000"#.to_owned(), "mtu"));
            twice.push((
                r#""routes": [{"dst": "10.0.0.0/8", "DST": "10.0.0.0/8"}]"#.to_owned(),
                "routes[0].dst",
            ));
            twice.push((r#""sysctl": {"a": "1", "a": "1"}"#.to_owned(), "sysctl.a"));
        } else {
            twice.push((format!(r#""Ipam": {{{ipam}}}"#), "ipam"));
        }
        for (text, key) in twice {
            for verb in ["ADD", "CHECK", "STATUS", "GC"] {
                let error = bench
                    .call(verb)
                    .run_with(with_text(&text).as_bytes())
                    .error(7);
                let msg = error["msg"].as_str().unwrap();
                assert!(msg.contains(&format!("{key}: ")), "{verb} {text}: {msg}");
            }
            assert_eq!(bench.host.snapshot(), before, "{text}");
            bench.call("ADD").run(&config()).ok();
            bench.call("DEL").run_with(with_text(&text).as_bytes()).ok();
            assert_eq!(bench.host.snapshot(), before, "{text}");
        }
        // The network is the last name.
        bench.call("ADD").run(&config()).ok();
        let other_first = format!(r#"{{"name": "other", {}"#, &config().to_string()[1..]);
        bench.call("DEL").run_with(other_first.as_bytes()).ok();
        assert_eq!(bench.host.snapshot(), before);
    });
}

/// serde_json stops at 128 levels. Whatever is deeper is named by its key, and DEL does without it.
#[test]
fn depth_is_refused_with_its_key_and_del_does_not_care() {
    for_both("configuration::depth", |bench| {
        let before = bench.host.snapshot();
        for key in [
            "unheard",
            "args",
            "runtimeConfig",
            "prevResult",
            "ipam",
            "dns",
            "routes",
            "mtu",
        ] {
            let deep = with(config(), json!({ key: "DEEP" })).to_string();
            let deep = deep.replace(
                "\"DEEP\"",
                &format!("{}{}", "[".repeat(5000), "]".repeat(5000)),
            );
            for verb in ["ADD", "CHECK", "STATUS", "GC"] {
                let error = bench.call(verb).run_with(deep.as_bytes()).error(7);
                assert!(
                    error["msg"].as_str().unwrap().contains(&format!("{key}: ")),
                    "{verb}: {error}"
                );
                assert_eq!(error["cniVersion"], "1.1.0");
            }
            bench.call("DEL").run_with(deep.as_bytes()).ok();
            bench.call("ADD").run(&config()).ok();
            bench.call("DEL").run_with(deep.as_bytes()).ok();
            assert_eq!(bench.host.snapshot(), before, "{key}");
        }
    });
}

/// tests/contract-items, item 39: a name, not a path. DEL gives back all the same.
#[test]
fn the_type_of_the_ipam_is_no_path() {
    let Some(bench) = Bench::cni("configuration::ipam") else {
        return;
    };
    bench.host.add_plugin("sub", "touch $0.called; exit 1");
    let before = bench.host.snapshot();
    for bad in ["../bin/sub", "/bin/sh", "./sub", "a\u{0}b", "..", "."] {
        let config = with(
            config(),
            json!({"ipam": {"type": bad}, "prevResult": {"cniVersion": "1.1.0", "ips": []}}),
        );
        for verb in ["ADD", "CHECK", "STATUS", "GC"] {
            bench.call(verb).run(&config).error(7);
        }
        bench.call("ADD").run(&super::config()).ok();
        bench.call("DEL").run(&config).ok();
        assert_eq!(bench.host.snapshot(), before, "{bad:?}");
    }
    assert!(!bench.host.path("bin/sub.called").exists());
}

/// tests/contract-items, item 37: integers as Go prints them, and never half of one.
#[test]
fn numbers_are_integers_in_range() {
    let Some(bench) = Bench::cni("configuration::numbers") else {
        return;
    };
    let before = bench.host.snapshot();
    for (key, value) in [
        ("mtu", json!("9000")),
        ("mtu", json!(-1)),
        ("mtu", json!(9000.5)),
        ("mtu", json!(1u64 << 40)),
        ("mtu", json!(1e21)),
        ("mtu", json!(67)),
        ("mtu", json!(70000)),
        ("rail", json!(-1)),
        ("rail", json!(256)),
        ("rail", json!(128)),
        ("rail", json!("0")),
    ] {
        let error = bench
            .call("ADD")
            .run(&with(config(), json!({ key: value })))
            .error(7);
        assert!(error["msg"].as_str().unwrap().contains(key), "{error}");
        assert_eq!(bench.host.snapshot(), before);
    }
}

/// tests/contract-items, item 41: what ADD refuses, DEL does not even read.
#[test]
fn del_judges_no_policy() {
    for_both("configuration::del", |bench| {
        let before = bench.host.snapshot();
        for changed in [
            json!({"mtu": "x", "rail": [], "device": 7, "mac": "nonsense", "vlan": 99999}),
            json!({"cniVersion": "9.9.9"}),
            json!({"cniVersion": "nonsense"}),
            json!({"rail": 127, "device": "other", "deviceID": "0000:00:00.0", "hwaddr": "x"}),
            json!({"runtimeConfig": 7, "args": [], "capabilities": "x", "dns": 1, "sysctl": "x", "routes": 0}),
            json!({"ipam": {"type": "rail-ipam", "pool": "never/planned", "poolType": "ippool"}}),
            json!({"ipam": {"type": "rail-ipam", "cidr": 7}}),
        ] {
            bench.call("ADD").run(&config()).ok();
            bench.call("DEL").run(&with(config(), changed.clone())).ok();
            assert_eq!(
                bench.host.leases().len() + bench.host.records().len(),
                0,
                "{changed}"
            );
        }
        for policy in [
            json!({"policy": {"rails": [5]}}),
            json!({"policy": 7}),
            json!({"rails": "x", "unknown": 1}),
        ] {
            bench.call("ADD").run(&config()).ok();
            bench.host.set_node(policy.clone());
            bench.call("DEL").run(&config()).ok();
            bench.host.set_node(json!({}));
            assert_eq!(bench.host.snapshot(), before, "{policy}");
        }
    });
}
