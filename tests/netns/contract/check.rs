//! tests/contract-items, items 86 to 93: CHECK.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use super::{Bench, config, for_both};
use crate::harness::{Sleeper, rail, with};

/// tests/contract-items, item 86.
#[test]
fn check_needs_the_result_of_add() {
    for_both("check::previous", |bench| {
        bench.call("ADD").run(&config()).ok();
        for none in [json!(null), json!({})] {
            let error = bench
                .call("CHECK")
                .run(&with(config(), json!({ "prevResult": none })))
                .error(7);
            assert!(
                error["msg"].as_str().unwrap().contains("prevResult"),
                "{error}"
            );
        }
        let msg = bench.call("CHECK").run(&config()).msg();
        golden::says("plugins", "CHECK without prevResult", &msg);
        assert!(msg.contains("prevResult"), "{msg}");
    });
}

/// tests/contract-items, items 87, 91: every difference is found and named.
#[test]
fn check_names_what_was_changed() {
    let damages: [(&str, &[&str]); 9] = [
        ("down", &["link set net1 down"]),
        ("MTU is 1500", &["link set net1 mtu 1500"]),
        (
            "02:00:00:00:00:99",
            &["link set net1 address 02:00:00:00:00:99"],
        ),
        (
            "address 172.16.0.0/31",
            &[
                "addr del 172.16.0.0/31 dev net1",
                "addr add 10.0.0.1/32 dev net1",
            ],
        ),
        (
            "route 172.16.0.0/12",
            &["route del 172.16.0.0/12 table main"],
        ),
        (
            "route 172.16.0.0/15 via 172.16.0.1 table 100",
            &["route del 172.16.0.0/15 table 100"],
        ),
        ("rule from 172.16.0.0", &["rule del from 172.16.0.0"]),
        (
            "name is renamed",
            &["link set net1 down", "link set net1 name renamed"],
        ),
        ("default route", &["route add default via 172.16.0.1"]),
    ];
    let Some(bench) = Bench::cni("check::damage") else {
        return;
    };
    for (named, commands) in damages {
        let checked = bench.added(&config());
        bench.call("CHECK").run(&checked).ok();
        for command in commands {
            bench.host.ip_in(&bench.pod, command);
        }
        let error = bench.call("CHECK").run(&checked).error(100);
        assert!(
            error["msg"].as_str().unwrap().contains(named),
            "{named}: {error}"
        );
        bench.call("DEL").run(&checked).ok();
    }
}

/// tests/contract-items, item 87: not only the first.
#[test]
fn check_lists_all_differences_in_one_message() {
    let Some(bench) = Bench::cni("check::all") else {
        return;
    };
    let checked = bench.added(&config());
    bench.host.ip_in(&bench.pod, "link set net1 mtu 1500");
    bench.host.ip_in(&bench.pod, "rule del from 172.16.0.0");
    bench.call("DEL").ipam().run(&config()).ok();
    let msg = bench.call("CHECK").run(&checked).msg();
    assert!(
        ["MTU is 1500", "rule from 172.16.0.0", "no lease"]
            .iter()
            .all(|part| msg.contains(part)),
        "{msg}"
    );
}

/// tests/contract-items, items 87, 91: the device, the record or the lease is gone.
#[test]
fn check_fails_when_it_is_gone() {
    for_both("check::gone", |bench| {
        bench.host.add_rail(1);
        let checked = bench.added(&config());
        // Never attached: another name, another container.
        bench.call("CHECK").ifname("net2").run(&checked).error(100);
        bench
            .call("CHECK")
            .var("CNI_CONTAINERID", "c2")
            .run(&checked)
            .error(100);
        bench.call("CHECK").run(&checked).ok();
        if bench.program == "rail-cni" {
            // Another device in its place.
            bench.host.ip_in(&bench.pod, "link del net1");
            bench.call("CHECK").run(&checked).error(100);
            bench
                .host
                .ip_in(&bench.pod, "link add net1 type veth peer name peer1");
            bench.call("CHECK").run(&checked).error(100);
            let gone = bench
                .call("CHECK")
                .var("CNI_NETNS", "/nonexistent")
                .run(&checked);
            assert_eq!(gone.status, 1, "{gone:?}");
        }
        bench.call("DEL").run(&checked).ok();
        bench.call("CHECK").run(&checked).error(100);
        let _ = fs::remove_dir_all(bench.host.path("run"));
        bench.call("CHECK").run(&checked).error(100);
        assert!(!bench.host.path("run").exists());
    });
}

/// tests/contract-items, item 88: what later plugins of the chain and Multus do.
#[test]
fn check_tolerates_what_others_added() {
    let Some(bench) = Bench::cni("check::others") else {
        return;
    };
    let checked = bench.added(&config());
    for command in [
        "addr add 10.9.9.9/24 dev net1",
        "addr add fd09::1/64 dev net1",
        "route add 10.10.0.0/16 dev net1",
        "route add 10.11.0.0/16 dev net1 table 77",
        "rule add from 10.9.9.9 lookup 77",
        "link property add dev net1 altname rail",
    ] {
        bench.host.ip_in(&bench.pod, command);
        bench.call("CHECK").run(&checked).ok();
    }
    // tuning sets a MAC and says so.
    bench
        .host
        .ip_in(&bench.pod, "link set net1 address 02:00:00:00:00:99");
    let mut tuned = checked.clone();
    tuned["prevResult"]["interfaces"][0]["mac"] = json!("02:00:00:00:00:99");
    bench.call("CHECK").run(&tuned).ok();
    // Multus makes the rail the pod's default, and writes it to its cache, IPv6 as ::0/0.
    bench
        .host
        .ip_in(&bench.pod, "route add default via 172.16.0.1");
    for dst in ["0.0.0.0/0", "::0/0"] {
        tuned["prevResult"]["routes"]
            .as_array_mut()
            .unwrap()
            .push(json!({"dst": dst, "gw": "172.16.0.1"}));
        bench.call("CHECK").run(&tuned).ok();
    }
    // More interfaces, from before and after us.
    let eth0 = json!({"name": "eth0", "sandbox": bench.pod});
    tuned["prevResult"]["interfaces"]
        .as_array_mut()
        .unwrap()
        .insert(0, eth0);
    tuned["prevResult"]["ips"][0]["interface"] = json!(1);
    bench.call("CHECK").run(&tuned).ok();
}

/// tests/contract-items, item 88: an older libcni drops fields of 1.1 from the cache.
#[test]
fn check_takes_a_result_that_lost_its_new_fields() {
    let Some(bench) = Bench::cni("check::old_cache") else {
        return;
    };
    let mut checked = bench.added(&config());
    let interface = checked["prevResult"]["interfaces"][0]
        .as_object_mut()
        .unwrap();
    interface.remove("mtu");
    for route in checked["prevResult"]["routes"].as_array_mut().unwrap() {
        route.as_object_mut().unwrap().remove("priority");
    }
    bench.call("CHECK").run(&checked).ok();
}

/// tests/contract-items, items 89, 92: right after ADD, again and again, and nothing changes.
#[test]
fn check_passes_right_after_add_and_changes_nothing() {
    for_both("check::pure", |bench| {
        bench
            .host
            .plan("rail-0-v6", "fd00::/127", "fd00::1", &["fd00::/32"]);
        let both = with(
            config(),
            json!({"ipam": {"type": "rail-ipam", "pool": "rail-0,rail-0-v6"}}),
        );
        let checked = bench.added(&both);
        bench.call("CHECK").run(&checked).ok();
        let all = |bench: &Bench| -> Value {
            let see = |args: &str| bench.host.json(Some(&bench.pod), args);
            json!([
                bench.host.snapshot(),
                see("-4 route show table all"),
                see("rule"),
                see("-6 rule")
            ])
        };
        let before = all(bench);
        for _ in 0..3 {
            let ran = bench.call("CHECK").run(&checked).ok();
            assert_eq!(ran.stdout, "");
        }
        assert_eq!(all(bench), before);
    });
}

/// tests/contract-items, item 90.
#[test]
fn check_asks_the_ipam_and_passes_its_error_on() {
    let Some(bench) = Bench::cni("check::ipam") else {
        return;
    };
    bench.host.add_plugin(
        "stand-in",
        r#"case $CNI_COMMAND in
             ADD) echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24"}]}';;
             CHECK) echo '{"code": 123, "msg": "lost it", "details": "where"}'; exit 1;;
           esac"#,
    );
    let config = with(rail(0), json!({"ipam": {"type": "stand-in"}}));
    let error = bench.call("CHECK").run(&bench.added(&config)).error(123);
    assert_eq!(
        (&error["msg"], &error["details"]),
        (&json!("lost it"), &json!("where"))
    );
}

/// tests/contract-items, item 93: the same namespace under another path.
#[test]
fn the_sandbox_is_compared_as_a_namespace() {
    let Some(bench) = Bench::cni("check::sandbox") else {
        return;
    };
    let mut checked = bench.added(&config());
    let link = bench.host.path("link");
    symlink(&bench.pod, &link).unwrap();
    let sleeper = Sleeper::new(Some(&bench.pod));
    for path in [link, sleeper.netns()] {
        bench
            .call("CHECK")
            .var("CNI_NETNS", path.to_str().unwrap())
            .run(&checked)
            .ok();
        checked["prevResult"]["interfaces"][0]["sandbox"] = json!(path);
        bench.call("CHECK").run(&checked).ok();
    }
    let other = bench.host.add_netns("other");
    checked["prevResult"]["interfaces"][0]["sandbox"] = json!(other);
    bench.call("CHECK").run(&checked).error(100);
    checked["prevResult"]["interfaces"][0]["sandbox"] = json!(bench.pod);
    bench
        .call("CHECK")
        .var("CNI_NETNS", other.to_str().unwrap())
        .run(&checked)
        .error(100);
    bench.call("CHECK").run(&checked).ok();
}
