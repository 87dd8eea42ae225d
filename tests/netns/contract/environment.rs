//! tests/contract-items, items 16 to 29: the CNI_* variables.

use std::os::unix::fs::symlink;

use serde_json::json;

use super::{Bench, config, for_both};
use crate::harness::{Sleeper, run, with};

/// tests/contract-items, items 16 to 19: all of them are named, in their order; empty means
/// missing.
#[test]
fn every_missing_variable_is_named_in_order() {
    let all = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"];
    let needed: [(&str, &[&str]); 5] = [
        ("ADD", &all),
        ("CHECK", &all),
        ("DEL", &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"]),
        ("STATUS", &["CNI_PATH"]),
        ("GC", &["CNI_PATH"]),
    ];
    for_both("environment::missing", |bench| {
        let refused = |verb: &str, call: crate::harness::Call, names: &[&str]| {
            let error = call.run(&config()).error(4);
            let msg = error["msg"].as_str().unwrap();
            assert!(
                msg.contains(&format!("[{}]", names.join(","))),
                "{verb}: {msg}"
            );
        };
        for (verb, names) in needed {
            let without = all
                .iter()
                .fold(bench.call(verb), |call, name| call.without(name));
            refused(verb, without, names);
            let empty = all
                .iter()
                .fold(bench.call(verb), |call, name| call.var(name, ""));
            refused(verb, empty, names);
            for name in names {
                refused(verb, bench.call(verb).without(name), &[name]);
            }
        }
    });
}

/// tests/contract-items, item 20.
#[test]
fn a_container_id_is_an_identifier_of_any_length() {
    for_both("environment::container", |bench| {
        for verb in ["ADD", "CHECK", "DEL"] {
            for bad in [
                "-a", ".a", "_a", "a b", "a/b", "a\n", "é", "a:b", "../a", "a\u{0}b",
            ] {
                if bad.contains('\0') {
                    continue; // No environment can carry it.
                }
                let error = bench
                    .call(verb)
                    .var("CNI_CONTAINERID", bad)
                    .run(&config())
                    .error(4);
                golden::says(
                    "plugins",
                    "CNI_CONTAINERID is not valid",
                    error["msg"].as_str().unwrap(),
                );
                assert_eq!(error["details"], bad);
            }
        }
        for good in [
            "0",
            "A.b_c-d",
            &"f".repeat(64),
            &"long-".repeat(200),
            "a..b",
            "a.json",
        ] {
            let call = |verb| bench.call(verb).var("CNI_CONTAINERID", good);
            let added = call("ADD").run(&config()).ok().json();
            call("CHECK")
                .run(&with(config(), json!({ "prevResult": added })))
                .ok();
            call("DEL").run(&config()).ok();
            assert!(
                bench.host.leases().is_empty() && bench.host.records().is_empty(),
                "{good}"
            );
        }
    });
}

/// tests/contract-items, item 22.
#[test]
fn an_interface_name_is_one_that_the_kernel_takes() {
    for_both("environment::ifname", |bench| {
        for verb in ["ADD", "CHECK", "DEL"] {
            for bad in [
                ".",
                "..",
                "a/b",
                "a:b",
                "a b",
                "a\tb",
                "a\nb",
                "a\u{85}b",
                "a\u{2003}b",
                "a\u{1}b",
                "sixteen-bytes-xx",
                "éééééééé",
            ] {
                bench.call(verb).ifname(bad).run(&config()).error(4);
            }
        }
        for good in ["e", "fifteen-bytes-x", "ééééééé1", "net.1", "-"] {
            bench.call("ADD").ifname(good).run(&config()).ok();
            bench.call("DEL").ifname(good).run(&config()).ok();
            assert!(
                bench.host.leases().is_empty() && bench.host.records().is_empty(),
                "{good}"
            );
        }
    });
}

/// tests/contract-items, item 24: stdin is judged first.
#[test]
fn an_unknown_verb_is_refused_after_stdin_was_read() {
    for_both("environment::verb", |bench| {
        for verb in ["add", "Add", "ADD ", "UPDATE"] {
            bench.call(verb).run_with(b"{").error(6);
            bench.call(verb).run_with(b"{}").error(7);
            let error = bench.call(verb).run(&config()).error(4);
            assert_eq!(error["msg"], format!("unknown CNI_COMMAND: {verb}"));
        }
    });
}

/// tests/contract-items, item 26: a path of whatever kind.
#[test]
fn a_namespace_may_have_any_path() {
    for_both("environment::netns", |bench| {
        let link = bench.host.path("link");
        symlink(&bench.pod, &link).unwrap();
        let sleeper = Sleeper::new(Some(&bench.pod));
        for path in [link, sleeper.netns()] {
            let path = path.to_str().unwrap();
            let call = |verb| bench.call(verb).var("CNI_NETNS", path);
            let added = call("ADD").run(&config()).ok().json();
            if bench.program == "rail-cni" {
                assert_eq!(added["interfaces"][0]["sandbox"], path);
            }
            call("CHECK")
                .run(&with(config(), json!({ "prevResult": added })))
                .ok();
            call("DEL").run(&config()).ok();
            assert!(
                bench.host.leases().is_empty() && bench.host.records().is_empty(),
                "{path}"
            );
        }
    });
}

/// tests/contract-items, item 27: what lifts the refusal, and what does not.
#[test]
fn add_into_its_own_namespace_is_refused_unless_overridden() {
    let Some(bench) = Bench::cni("environment::own") else {
        return;
    };
    let before = bench.host.snapshot();
    let own = |verb| bench.call(verb).var("CNI_NETNS", "/proc/self/ns/net");
    own("ADD")
        .var("CNI_NETNS_OVERRIDE", "no")
        .run(&config())
        .error(8);
    assert_eq!(bench.host.snapshot(), before);
    for yes in ["1", "true", "TRUE"] {
        own("ADD")
            .var("CNI_NETNS_OVERRIDE", yes)
            .run(&config())
            .ok();
        own("DEL")
            .var("CNI_NETNS_OVERRIDE", yes)
            .run(&config())
            .ok();
        assert_eq!(bench.host.snapshot()["links"], before["links"], "{yes}");
        assert!(bench.host.leases().is_empty() && bench.host.records().is_empty());
        // Only leaving a namespace takes the addresses off.
        bench.host.ip("addr flush dev vf0");
    }
}

/// tests/contract-items, item 28: rail-ipam has no business in the namespace, item 115.
#[test]
fn add_refuses_what_is_no_namespace_before_it_acts() {
    let Some(bench) = Bench::cni("environment::no_netns") else {
        return;
    };
    std::fs::write(bench.host.path("file"), "").unwrap();
    bench.host.add_plugin("never", "touch $0.called; exit 1");
    let before = bench.host.snapshot();
    let config = with(config(), json!({"ipam": {"type": "never"}}));
    let file = bench.host.path("file");
    for path in [
        "/nonexistent/netns",
        file.to_str().unwrap(),
        "/",
        "/dev/null",
        "/proc/self/ns/mnt",
        "relative",
    ] {
        bench
            .call("ADD")
            .var("CNI_NETNS", path)
            .run(&config)
            .error(8);
        assert_eq!(bench.host.snapshot(), before, "{path}");
    }
    assert!(!bench.host.path("bin/never.called").exists());
}

/// tests/contract-items, item 29: thin Multus writes each key twice, go-cni writes them in random
/// order.
#[test]
fn args_of_any_shape_are_understood_or_passed_over() {
    use std::os::unix::ffi::OsStrExt as _;
    for_both("environment::args", |bench| {
        for args in [
            ";;;",
            "=",
            "=x",
            "x",
            "IgnoreUnknown=0;Unknown=1",
            "K8S_POD_UID=",
            "A=b=c",
            "IP=",
            "MAC=;",
        ] {
            for verb in ["ADD", "DEL"] {
                bench.call(verb).var("CNI_ARGS", args).run(&config()).ok();
            }
        }
        for verb in ["ADD", "DEL"] {
            let mut command = bench.call(verb).command();
            command.env(
                "CNI_ARGS",
                std::ffi::OsStr::from_bytes(b"K8S_POD_NAME=\xff;;\xfe"),
            );
            run(command, config().to_string().as_bytes()).ok();
        }
    });
}

/// tests/contract-items, item 29: thin Multus gives every key twice.
#[test]
fn the_last_of_two_equal_args_counts() {
    for_both("environment::args_twice", |bench| {
        let args = "IgnoreUnknown=true;K8S_POD_NAMESPACE=one;K8S_POD_NAME=first;K8S_POD_UID=;IgnoreUnknown=1;\
                    K8S_POD_NAMESPACE=two;K8S_POD_NAME=second;K8S_POD_UID=";
        bench.call("ADD").var("CNI_ARGS", args).run(&config()).ok();
        let other = bench.host.add_netns("other");
        let call = bench
            .call("ADD")
            .var("CNI_CONTAINERID", "c2")
            .var("CNI_NETNS", other.to_str().unwrap());
        let error = call.run(&config()).error(11);
        assert!(
            error["msg"].as_str().unwrap().contains("two/second"),
            "{error}"
        );
    });
}
