use super::*;
use proptest::prelude::*;

#[test]
fn a_file_reads_as_it_was_written() {
    let text = r#"{"version":1,"prefix":"172.16.1.60/31","gateway":"172.16.1.61","rail":0,"routes":[{"dst":"172.16.0.0/15"}],"exclusions":[{"startIP":"172.16.1.61","endIP":"172.16.1.61"}]}"#;
    let read = parse(text.as_bytes()).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), text);
}

#[test]
fn a_directory_that_is_replaced_while_it_is_read_is_read_again() {
    let temp = tempfile::tempdir().unwrap();
    let dirs = serde_json::json!({"nodeName": "n", "storeDir": temp.path()});
    let node: Node = serde_json::from_value(dirs).unwrap();
    let write = |name: &str, turn: u8| {
        std::fs::create_dir(temp.path().join(name)).unwrap();
        for (pool, net) in [("a", "10.0"), ("b", "10.1")] {
            let text = format!(r#"{{"version":1,"prefix":"{net}.{turn}.0/31"}}"#);
            std::fs::write(
                temp.path().join(name).join(pool).with_extension("json"),
                text,
            )
            .unwrap();
        }
    };
    write("n", 1);
    let is_first = std::cell::Cell::new(true);
    let found = Store::open(&node).unwrap().of_one_plan(
        "n",
        |_| false,
        |folder| {
            // Once, when the directory is open.
            if is_first.replace(false) {
                write("next", 2);
                std::fs::rename(temp.path().join("n"), temp.path().join("old")).unwrap();
                std::fs::rename(temp.path().join("next"), temp.path().join("n")).unwrap();
                std::fs::remove_dir_all(temp.path().join("old")).unwrap();
                assert!(
                    everything_in(folder)?.is_empty(),
                    "the old directory is emptied"
                );
            }
            everything_in(folder)
        },
    );
    let prefixes: Vec<_> = found
        .unwrap()
        .unwrap()
        .into_values()
        .map(|one| one.unwrap().unwrap().prefix.to_string())
        .collect();
    assert_eq!(prefixes, ["10.0.2.0/31", "10.1.2.0/31"]);
}

#[test]
fn damage_is_told_and_never_read_as_nothing() {
    let good = r#"{"version":1,"prefix":"172.16.1.60/31","gateway":"172.16.1.61"}"#;
    assert!(parse(good.as_bytes()).is_ok());
    for cut in 0..good.len() {
        assert!(
            parse(&good.as_bytes()[..cut])
                .unwrap_err()
                .contains("line 1"),
            "{cut}"
        );
    }
    for (from, to, told) in [
        ("60/31", "61/31", "host bits"),
        ("1.61", "1.62", "outside"),
        ("\"version\":1", "\"version\":3", "version 3"),
        ("\"version\":1", "\"version\":3,\"new\":1", "version 3"),
        ("\"version\":1", "\"x\":1", "unknown field `x`"),
        ("\"version\":1,", "", "version"),
        ("}", "} x", "trailing"),
        ("\"172.16.1.60/31\"", "7", "prefix: "),
        (
            "}",
            ",\"routes\":[{\"dst\":\"0.0.0.0/0\"}]}",
            "default route",
        ),
        (
            "}",
            ",\"exclusions\":[{\"startIP\":\"::1\",\"endIP\":\"::2\"}]}",
            "exclusions[0]",
        ),
    ] {
        let why = parse(good.replacen(from, to, 1).as_bytes()).unwrap_err();
        assert!(why.contains(told), "{told}: {why}");
    }
}

#[test]
fn a_near_miss_differs_in_case_or_domain() {
    let names = ["worker-1", "worker-10", "WORKER-1.example.com"];
    assert_eq!(
        near_misses("Worker-1", names.into_iter()),
        ["WORKER-1.example.com", "worker-1"]
    );
    assert!(near_misses("worker-2", names.into_iter()).is_empty());
    assert_eq!(
        near_misses("worker-1", ["worker-1", "Worker-1"].into_iter()),
        ["Worker-1"]
    );
}

#[test]
fn who_mistypes_a_name_sees_those_that_there_are() {
    let names: Vec<_> = (0..64).map(|node| format!("worker-gpu-{node}")).collect();
    let hint = |wanted: &str, count: usize| {
        near_hint(
            wanted,
            names.iter().take(count).map(String::as_str),
            "the store",
        )
    };
    let told = hint("worker-gpu-64", 64);
    assert!(
        told.contains(
            " worker-gpu-4, worker-gpu-6, worker-gpu-14, worker-gpu-24, worker-gpu-34, worker-gpu-44, \
             worker-gpu-46, worker-gpu-54, worker-gpu-60, worker-gpu-61 "
        ),
        "{told}"
    );
    assert!(hint("gpu-9", 2).contains("worker-gpu-0, worker-gpu-1"));
    assert!(hint("WORKER-gpu-1", 2).contains("worker-gpu-1?"));
    assert!(hint("x", 0).contains("`railctl import`"));
}

/// Of a store with more nodes than are listed.
#[test]
fn a_likely_name_is_of_a_known_domain_and_another_case() {
    let likely = |wanted: &str| likely_names(wanted, ["gpu-7.a.example", "gpu-8"].into_iter());
    for (wanted, expected) in [
        ("GPU-1", "gpu-1"),
        ("gpu-1", "GPU-1"),
        ("gpu-1", "Gpu-1"),
        ("gpu-1", "gpu-1.a.example"),
        ("GPU-1", "gpu-1.a.example"),
        ("gpu-1.a.example", "gpu-1"),
        ("gpu-1.b.example", "gpu-1.a.example"),
        ("gpu-1.B.example", "gpu-1.b.example"),
    ] {
        assert!(
            likely(wanted).contains(expected),
            "{wanted}: {expected}: {:?}",
            likely(wanted)
        );
        assert!(!likely(wanted).contains(wanted));
    }
    assert!(likely("é").len() < 10 && likely("").len() < 10);
}

proptest! {
    #[test]
    fn no_file_makes_it_panic(bytes: Vec<u8>) {
        let _ = parse(&bytes);
    }
}

/// rail-ipam 0.1.0 refuses version 2 as newer than itself, instead of calling it damaged.
#[test]
fn only_version_2_has_a_gateway_outside_of_the_prefix() {
    let of = |version: u32, prefix: &str, gateway: &str| {
        parse(
            format!(r#"{{"version":{version},"prefix":"{prefix}","gateway":"{gateway}"}}"#)
                .as_bytes(),
        )
    };
    for (prefix, gateway) in [
        ("10.0.0.1/32", "10.255.0.1"),
        ("10.0.0.1/32", "fe80::1"),
        ("fd00::1/128", "fe80::1"),
        ("fd00::1/128", "fd00::2"),
    ] {
        assert_eq!(
            of(2, prefix, gateway).unwrap().gateway,
            gateway.parse().ok(),
            "{prefix} {gateway}"
        );
        assert!(
            of(1, prefix, gateway).unwrap_err().contains(gateway),
            "{prefix} {gateway}"
        );
    }
    for (prefix, gateway, why) in [
        ("10.0.0.0/31", "10.0.0.2", "10.0.0.0/31"),
        ("10.0.0.1/32", "fd00::1", "fe80::/10"),
        ("fd00::1/128", "10.0.0.1", "fe80::/10"),
        ("10.0.0.1/32", "224.0.0.1", "224.0.0.1"),
        ("10.0.0.1/32", "::", "::"),
    ] {
        let told = of(2, prefix, gateway).unwrap_err();
        assert!(told.contains(why), "{prefix} {gateway}: {told}");
    }
}
