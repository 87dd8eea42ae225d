//! tests/contract-items, items 73 to 82, 84, 85: DEL, whatever became of the attachment.

use std::fs;

use serde_json::{Value, json};

use super::{Bench, config, for_both};
use crate::harness::{rail, with};

/// The name of a state, and its cause.
type State<'a> = (&'a str, &'a dyn Fn(&Bench));
/// The name of a change, and its effect on a text.
type Change<'a> = (&'a str, &'a dyn Fn(&str) -> Option<String>);

/// `link`, `mtu` and so on as they were: what DEL must reach, in any state of the pod's side.
fn every_state(
    test: &str,
    states: &[State<'_>],
    del: impl Fn(&Bench) -> crate::harness::Call,
    more: &Value,
) {
    let Some(bench) = Bench::cni(test) else {
        return;
    };
    bench.host.ip("link property add dev vf0 altname enp1s0v0");
    bench.host.ip("link set vf0 mtu 1400");
    let before = bench.host.snapshot();
    for (what, change) in states {
        bench.call("ADD").run(&config()).ok();
        change(&bench);
        for time in ["first", "second"] {
            let ran = del(&bench).run(&with(config(), more.clone()));
            assert_eq!(
                (ran.status, ran.stdout.as_str()),
                (0, ""),
                "{what}, {time}: {ran:?}"
            );
            assert_eq!(bench.host.snapshot(), before, "{what}, {time}");
        }
    }
}

/// tests/contract-items, items 75, 76, 82; host-device fails for ever on the first two
/// (plugins#773).
#[test]
fn del_gives_back_whatever_the_pod_did() {
    let in_pod = |args: &'static str| move |bench: &Bench| drop(bench.host.ip_in(&bench.pod, args));
    every_state(
        "del::pod",
        &[
            ("nothing", &|_| ()),
            ("renamed", &|bench| {
                bench.host.ip_in(&bench.pod, "link set net1 down");
                bench.host.ip_in(&bench.pod, "link set net1 name renamed");
            }),
            ("down", &in_pod("link set net1 down")),
            ("mtu", &in_pod("link set net1 mtu 1280")),
            ("addresses flushed", &in_pod("addr flush dev net1")),
            ("further address", &in_pod("addr add 10.9.9.9/24 dev net1")),
            ("rule gone", &in_pod("rule del from 172.16.0.0")),
            ("routes flushed", &in_pod("route flush table 100")),
            ("MAC", &in_pod("link set net1 address 02:00:00:00:00:99")),
            (
                "altname",
                &in_pod("link property add dev net1 altname pods"),
            ),
            ("in a bridge", &|bench| {
                bench.host.ip_in(&bench.pod, "link add br0 type bridge");
                bench.host.ip_in(&bench.pod, "link set net1 master br0");
            }),
            (
                "macvlan on it",
                &in_pod("link add link net1 name sub type macvlan"),
            ),
        ],
        |bench| bench.call("DEL"),
        &json!({}),
    );
}

/// tests/contract-items, item 73: containerd passes no namespace, and `ctr` while it lives.
#[test]
fn del_gives_back_without_a_namespace() {
    let nothing: [State<'_>; 1] = [("nothing", &|_| ())];
    every_state(
        "del::no_netns",
        &nothing,
        |bench| bench.call("DEL").without("CNI_NETNS"),
        &json!({}),
    );
    every_state(
        "del::empty_netns",
        &nothing,
        |bench| bench.call("DEL").var("CNI_NETNS", ""),
        &json!({}),
    );
}

/// tests/contract-items, item 74: the attachment's own namespace is on record.
#[test]
fn del_gives_back_with_a_path_that_is_no_namespace() {
    let nothing: [State<'_>; 1] = [("nothing", &|_| ())];
    for path in [
        "/nonexistent",
        "/nonexistent/netns",
        "/dev/null",
        "/",
        "/etc/passwd/x",
        "relative",
        "/proc/self/ns/mnt",
    ] {
        every_state(
            "del::path",
            &nothing,
            |bench| bench.call("DEL").var("CNI_NETNS", path),
            &json!({}),
        );
    }
}

/// tests/contract-items, items 73, 74, plugins#1196: the namespace is gone, and the veth with it;
/// its path may be left as a file.
#[test]
fn del_releases_when_the_namespace_is_gone() {
    for stale in [false, true] {
        for_both("del::netns_gone", |bench| {
            bench.call("ADD").run(&config()).ok();
            bench.host.delete_netns(&bench.pod);
            if stale {
                fs::write(&bench.pod, "").unwrap();
            }
            for _ in 0..2 {
                let ran = bench.call("DEL").run(&config()).ok();
                assert_eq!(ran.stdout, "");
                assert!(
                    bench.host.leases().is_empty() && bench.host.records().is_empty(),
                    "{ran:?}"
                );
            }
            assert_eq!(bench.pod.exists(), stale);
            if stale {
                fs::remove_file(&bench.pod).unwrap();
            }
        });
    }
}

/// tests/contract-items, item 75.
#[test]
fn del_of_a_device_that_is_gone_releases_the_rest() {
    let Some(bench) = Bench::cni("del::device_gone") else {
        return;
    };
    bench.call("ADD").run(&config()).ok();
    bench.host.ip_in(&bench.pod, "link del net1");
    for _ in 0..2 {
        bench.call("DEL").run(&config()).ok();
        assert!(bench.host.leases().is_empty() && bench.host.records().is_empty());
        assert!(!bench.host.ip_in(&bench.pod, "rule").contains("172.16.0.0"));
    }
}

/// tests/contract-items, items 75, 76: Multus sends DELs for what it never added after a failed
/// ADD.
#[test]
fn del_of_what_was_never_added_succeeds_and_leaves_nothing() {
    for_both("del::never", |bench| {
        let before = bench.host.snapshot();
        for netns in [bench.pod.to_str().unwrap(), "", "/nonexistent"] {
            for _ in 0..2 {
                let ran = bench
                    .call("DEL")
                    .var("CNI_NETNS", netns)
                    .run(&config())
                    .ok();
                assert_eq!(ran.stdout, "");
                assert_eq!(bench.host.snapshot(), before);
            }
        }
        // Somebody else's net1.
        bench
            .host
            .ip_in(&bench.pod, "link add net1 type veth peer name peer1");
        bench.call("DEL").run(&config()).ok();
        bench.host.ip_in(&bench.pod, "link show net1");
    });
}

/// tests/contract-items, items 75, 82: not even the folders are there.
#[test]
fn del_needs_no_folder_of_ours() {
    for_both("del::folders", |bench| {
        bench
            .host
            .set_node(json!({"storeDir": "/nonexistent/store"}));
        bench.call("DEL").run(&config()).ok();
        bench.call("ADD").run(&config());
        fs::remove_dir_all(bench.host.path("run")).unwrap_or(());
        bench.call("DEL").run(&config()).ok();
    });
}

/// tests/contract-items, item 85.
#[test]
fn del_touches_no_other_attachment() {
    for_both("del::others", |bench| {
        let host = &bench.host;
        host.add_rail(1);
        host.add_rail(2);
        let other = host.add_netns("other");
        let first = bench.added(&config());
        let second = bench.call("ADD").ifname("net2").run(&rail(1)).ok().json();
        let second = with(rail(1), json!({ "prevResult": second }));
        let third = |verb| {
            bench
                .call(verb)
                .var("CNI_CONTAINERID", "c2")
                .var("CNI_NETNS", other.to_str().unwrap())
        };
        let of_third = with(
            rail(2),
            json!({"prevResult": third("ADD").run(&rail(2)).ok().json()}),
        );

        // Of the same container, of another container under the same name, and of names that begin
        // alike.
        bench.call("DEL").ifname("net3").run(&config()).ok();
        bench.call("DEL").ifname("net").run(&config()).ok();
        bench
            .call("DEL")
            .var("CNI_CONTAINERID", "c")
            .run(&config())
            .ok();
        bench
            .call("DEL")
            .var("CNI_CONTAINERID", "c3")
            .run(&config())
            .ok();
        bench.call("CHECK").run(&first).ok();
        bench.call("CHECK").ifname("net2").run(&second).ok();
        third("CHECK").run(&of_third).ok();

        bench.call("DEL").run(&config()).ok();
        bench.call("CHECK").ifname("net2").run(&second).ok();
        third("CHECK").run(&of_third).ok();
        bench.call("DEL").ifname("net2").run(&rail(1)).ok();
        third("CHECK").run(&of_third).ok();
    });
}

/// tests/contract-items, items 41, 77, 78, 79.
#[test]
fn del_needs_nothing_of_the_configuration_that_add_had() {
    for_both("del::configuration", |bench| {
        let before = bench.host.snapshot();
        let added = with(config(), json!({"runtimeConfig": {"ips": ["172.16.0.0"]}}));
        for (what, more) in [
            ("other device", json!({"device": "vf7"})),
            ("device gone from it", json!({"device": null})),
            (
                "device id of nothing",
                json!({"device": null, "deviceID": "0000:77:00.0"}),
            ),
            ("other MTU", json!({"mtu": 1500})),
            (
                "other rail",
                json!({"rail": 5, "routing": "destination-based"}),
            ),
            (
                "other pool",
                json!({"ipam": {"type": "rail-ipam", "pool": "rail-7"}}),
            ),
            ("no pool", json!({"ipam": {"type": "rail-ipam"}})),
            ("no IPAM", json!({"ipam": {}})),
            ("IPAM null", json!({"ipam": null})),
            ("prevResult null", json!({"prevResult": null})),
            ("prevResult empty", json!({"prevResult": {}})),
            (
                "prevResult old",
                json!({"prevResult": {"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.1/24"}}}),
            ),
            (
                "prevResult unknown",
                json!({"prevResult": {"cniVersion": "7.0.0"}}),
            ),
            ("prevResult garbage", json!({"prevResult": ["x"]})),
            ("cniVersion old", json!({"cniVersion": "0.1.0"})),
            ("runtimeConfig gone", json!({"runtimeConfig": null})),
        ] {
            bench.call("ADD").run(&added).ok();
            bench
                .call("DEL")
                .without("CNI_ARGS")
                .run(&with(added.clone(), more))
                .ok();
            assert_eq!(bench.host.snapshot(), before, "{what}");
        }
    });
}

/// tests/contract-items, items 41, 76: a runtime sends DEL for an ADD that was refused, with what
/// it was refused for. An error would keep the pod from ending.
#[test]
fn del_of_what_was_never_added_succeeds_whatever_its_configuration_holds() {
    for_both("del::never", |bench| {
        bench
            .host
            .add_plugin("fails", r#"echo '{"code": 42, "msg": "no"}'; exit 1"#);
        let before = bench.host.snapshot();
        for more in [
            json!({"ipam": {"type": "absent"}}),
            json!({"ipam": {"type": "fails"}}),
            json!({"ipam": {"type": 7}}),
            json!({"ipam": {"type": "a/b"}}),
            json!({"ipam": "x"}),
            json!({"ipam": []}),
            json!({"name": 7}),
            json!({"name": {"a": 1}}),
            json!({"cniVersion": []}),
            json!({"cniVersion": 1.1}),
            json!({"prevResult": "x"}),
            json!({"prevResult": {"interfaces": 7}}),
            json!({"runtimeConfig": 5}),
            json!({"runtimeConfig": {"CNIDeviceInfoFile": "x".repeat(5000)}}),
            json!({"args": []}),
            json!({"deviceID": {}, "device": 7, "routes": 7, "resetOnDel": 7, "logFile": [], "logLevel": {}}),
        ] {
            for _ in 0..2 {
                bench.call("DEL").run(&with(config(), more.clone())).ok();
                bench
                    .call("DEL")
                    .var("CNI_NETNS", "")
                    .run(&with(config(), more.clone()))
                    .ok();
            }
            assert_eq!(bench.host.snapshot(), before, "{more}");
        }
    });
}

/// tests/contract-items, item 41: the configuration names another IPAM now; the address goes back
/// to the one that gave it.
#[test]
fn del_releases_at_the_ipam_that_add_asked() {
    let Some(bench) = Bench::cni("del::other_ipam") else {
        return;
    };
    bench.host.add_plugin("other", "exit 0");
    let before = bench.host.snapshot();
    for other in [
        json!({"type": "other"}),
        json!({"type": "a/b"}),
        json!({}),
        json!(null),
    ] {
        bench.call("ADD").run(&config()).ok();
        bench
            .call("DEL")
            .run(&with(config(), json!({ "ipam": other })))
            .ok();
        assert_eq!(bench.host.snapshot(), before, "{other}");
    }
}

/// A record with another value of its owner's.
fn of_another(text: &str, key: &str, value: &str) -> String {
    let mut record: Value = serde_json::from_str(text).unwrap();
    record["owner"][key] = json!(value);
    record.to_string()
}

/// tests/contract-items, item 78, sriov-cni#275: the record is missing or damaged. Its copy is
/// used, or there is nothing to go by.
#[test]
fn del_succeeds_whatever_became_of_the_record() {
    let Some(bench) = Bench::cni("del::record") else {
        return;
    };
    let host = &bench.host;
    let before = host.snapshot();
    let good = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let changes: [Change<'_>; 9] = [
        ("missing", &|_| None),
        ("empty", &|_| Some(String::new())),
        ("cut", &|text| Some(text[..text.len() / 2].to_owned())),
        ("garbage", &|_| Some("\u{0}\u{1}garbage".to_owned())),
        ("another shape", &|_| Some("{}".to_owned())),
        ("a list", &|_| Some("[]".to_owned())),
        ("of another container", &|text| {
            Some(of_another(text, "containerID", "other"))
        }),
        ("of another interface", &|text| {
            Some(of_another(text, "ifname", "net9"))
        }),
        ("of another version", &|text| {
            Some(with(good(text), json!({"version": "x"})).to_string())
        }),
    ];
    for (what, change) in changes {
        bench.call("ADD").run(&config()).ok();
        let [file] = &host.records()[..] else {
            panic!("{what}: {:?}", host.records())
        };
        match change(&fs::read_to_string(file).unwrap()) {
            None => fs::remove_file(file).unwrap(),
            Some(text) => fs::write(file, text).unwrap(),
        }
        for time in ["first", "second"] {
            bench.call("DEL").run(&config()).ok();
            assert_eq!(host.snapshot(), before, "{what}, {time}");
        }
    }
}

/// tests/contract-items, item 78: somebody emptied /run; the runtime still knows the container.
#[test]
fn del_without_any_state_succeeds() {
    for gone in ["run/attachments", "run/locks", "run/leases", "run"] {
        for_both("del::no_state", |bench| {
            bench.call("ADD").run(&config()).ok();
            let _ = fs::remove_dir_all(bench.host.path(gone));
            for _ in 0..2 {
                let ran = bench.call("DEL").run(&config()).ok();
                assert_eq!(ran.stdout, "");
            }
            assert!(
                bench.host.leases().is_empty() && bench.host.records().is_empty(),
                "{gone}"
            );
        });
    }
}

/// tests/contract-items, items 80, 81, 110: the device first, both always. Its error is not ours
/// (docs/design-notes.md, departures): what it was not told is on file, and a pod must not be kept
/// from ending for it.
#[test]
fn an_ipam_that_fails_keeps_no_device_and_can_be_asked_again() {
    let Some(bench) = Bench::cni("del::ipam_fails") else {
        return;
    };
    let ok = r#"[ $CNI_COMMAND = ADD ] && echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24"}]}'; exit 0"#;
    bench.host.add_plugin("stand-in", ok);
    let before = bench.host.snapshot();
    let config = with(config(), json!({"ipam": {"type": "stand-in"}}));
    bench.call("ADD").run(&config).ok();
    bench.host.add_plugin(
        "stand-in",
        r#"ip link show vf0 >/dev/null || exit 3
           echo '{"code": 42, "msg": "store Not Found", "details": "open: No such file or directory"}'; exit 1"#,
    );
    for _ in 0..2 {
        bench.call("DEL").run(&config).ok();
        assert_eq!(bench.host.snapshot()["links"], before["links"]);
        assert!(bench.host.records().is_empty() && bench.host.pending().len() == 1);
    }
    bench.host.add_plugin("stand-in", ok);
    bench.call("DEL").args(&["reap"]).run(&Value::Null).ok();
    assert_eq!(bench.host.snapshot(), before);
}

/// tests/contract-items, item 82: go-cni takes such texts for a success.
#[test]
fn no_error_of_del_reads_like_a_success() {
    let Some(bench) = Bench::cni("del::texts") else {
        return;
    };
    let absent = with(config(), json!({"ipam": {"type": "absent"}}));
    bench.host.set_node(json!({}));
    let node_gone = bench
        .call("DEL")
        .var("RAIL_CNI_NODE_CONFIG", "/nonexistent/not found/node.json")
        .run(&config());
    let name = bench
        .call("DEL")
        .run(&with(config(), json!({"name": "not found"})));
    let id = bench
        .call("DEL")
        .var("CNI_CONTAINERID", "not found")
        .run(&config());
    for ran in [bench.call("DEL").run(&absent), node_gone, name, id] {
        let text = ran.stdout.to_lowercase();
        assert!(
            !text.contains("not found") && !text.contains("no such file or directory"),
            "{ran:?}"
        );
    }
}
