//! tests/contract-items, items 106 to 114: the IPAM plugin, with stand-ins.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use super::{Bench, config};
use crate::harness::with;

/// Records what it was given, and answers ADD.
const RECORDER: &str = r#"cat >$0.$CNI_COMMAND.stdin; env >$0.$CNI_COMMAND.env; echo "hello from $CNI_COMMAND" >&2
[ $CNI_COMMAND = ADD ] && echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1"}]}'
exit 0"#;

fn stand_in() -> Value {
    with(
        config(),
        json!({"ipam": {"type": "stand-in", "any": ["thing", 1.5e300]}}),
    )
}

/// tests/contract-items, items 107, 108, 111: every verb, the same bytes, the same environment, and
/// its stderr is ours.
#[test]
fn the_ipam_sees_what_we_see() {
    let Some(bench) = Bench::cni("delegation::same") else {
        return;
    };
    bench.host.add_plugin("stand-in", RECORDER);
    let added = bench.call("ADD").run(&stand_in()).ok().json();
    bench.call("DEL").run(&stand_in()).ok();
    bench.call("ADD").run(&stand_in()).ok();
    for verb in ["CHECK", "STATUS", "GC", "ADD", "DEL"] {
        // Spaces, order of keys, letters outside of ASCII: byte by byte.
        let text = format!(
            "{{ \"zz\": \"\\u00e9é\",\n\"prevResult\":{added}, {}  ",
            &stand_in().to_string()[1..]
        );
        if verb == "ADD" {
            bench.call("DEL").run(&stand_in()).ok();
        }
        let call = bench
            .call(verb)
            .var("CNI_ARGS", "A=b;;A=c")
            .var("UNHEARD_OF", "x y");
        let ran = call.run_with(text.as_bytes()).ok();
        assert!(
            ran.stderr.contains(&format!("hello from {verb}\n")),
            "{ran:?}"
        );
        assert!(!ran.stdout.contains("hello"), "{ran:?}");
        let file = |what: &str| {
            fs::read_to_string(bench.host.path(&format!("bin/stand-in.{verb}.{what}"))).unwrap()
        };
        assert_eq!(file("stdin"), text, "{verb}");
        let env = file("env");
        let ours = [
            format!("CNI_COMMAND={verb}"),
            "CNI_CONTAINERID=c1".to_owned(),
            format!("CNI_NETNS={}", bench.pod.display()),
            "CNI_IFNAME=net1".to_owned(),
            "CNI_ARGS=A=b;;A=c".to_owned(),
            format!("CNI_PATH={}", bench.host.cni_path()),
            "UNHEARD_OF=x y".to_owned(),
        ];
        for line in ours {
            assert!(
                env.lines().any(|other| other == line),
                "{verb}: no {line} in {env}"
            );
        }
    }
}

/// tests/contract-items, item 107: the rollback, too, but for the verb.
#[test]
fn the_ipam_sees_the_same_when_add_is_undone() {
    let Some(bench) = Bench::cni("delegation::rollback") else {
        return;
    };
    bench.host.add_plugin("stand-in", RECORDER);
    let config = with(
        stand_in(),
        json!({"sysctl": {"net.ipv4.conf.IFNAME.unheard_of": "1"}}),
    );
    bench.call("ADD").run(&config).error(7);
    let file =
        |what: &str| fs::read_to_string(bench.host.path(&format!("bin/stand-in.{what}"))).unwrap();
    assert_eq!(file("DEL.stdin"), config.to_string());
    let vars = |verb: &str| -> Vec<String> {
        let mut vars: Vec<_> = file(&format!("{verb}.env"))
            .lines()
            .map(str::to_owned)
            .collect();
        vars.retain(|line| line.starts_with("CNI_") && !line.starts_with("CNI_COMMAND"));
        vars.sort();
        vars
    };
    assert_eq!(vars("DEL"), vars("ADD"));
}

/// tests/contract-items, items 109, 110: its error as it is, and a DEL behind it.
#[test]
fn the_error_of_the_ipam_is_passed_on_after_a_del() {
    let answers = [
        (
            r#"{"code": 111, "msg": "no room", "details": "pool p"}"#,
            111,
            "no room",
            "pool p",
        ),
        (
            r#"{"cniVersion": "0.3.1", "code": 11, "msg": "later"}"#,
            11,
            "later",
            "",
        ),
        (
            r#"{"cniVersion": "", "code": 4294967295, "msg": "big", "details": ""}"#,
            u32::MAX,
            "big",
            "",
        ),
        (
            r#"{"code": 7, "msg": "not found: no such file or directory"}"#,
            7,
            "not found: no such file or directory",
            "",
        ),
    ];
    let Some(bench) = Bench::cni("delegation::error") else {
        return;
    };
    let before = bench.host.snapshot();
    for (answer, code, msg, details) in answers {
        bench.host.add_plugin(
            "stand-in",
            &format!("echo $CNI_COMMAND >>$0.log\n[ $CNI_COMMAND = ADD ] || exit 0\necho '{answer}'; exit 1"),
        );
        let error = bench.call("ADD").run(&stand_in()).error(code);
        assert_eq!(
            (
                error["msg"].as_str(),
                error["details"].as_str().unwrap_or_default()
            ),
            (Some(msg), details)
        );
        assert_eq!(error["cniVersion"], "1.1.0");
        let log = bench.host.path("bin/stand-in.log");
        assert_eq!(fs::read_to_string(&log).unwrap(), "ADD\nDEL\n");
        fs::remove_file(log).unwrap();
        assert_eq!(bench.host.snapshot(), before);
    }
}

/// tests/contract-items, items 109, 110: what is no result, and what is no error.
#[test]
fn an_answer_that_cannot_be_used_is_an_error_and_given_back() {
    let Some(bench) = Bench::cni("delegation::garbage") else {
        return;
    };
    let before = bench.host.snapshot();
    for (what, script) in [
        ("nothing", "exit 0"),
        ("null", "echo null"),
        ("garbage", "echo 'log line'"),
        (
            "two documents",
            r#"echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24"}]} {}'"#,
        ),
        ("no address", r#"echo '{"cniVersion": "1.1.0"}'"#),
        (
            "no addresses",
            r#"echo '{"cniVersion": "1.1.0", "ips": []}'"#,
        ),
        (
            "bare address",
            r#"echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2"}]}'"#,
        ),
        (
            "unknown version",
            r#"echo '{"cniVersion": "3.0.0", "ips": [{"address": "10.0.0.2/24"}]}'"#,
        ),
        ("error with status 0", r#"echo '{"code": 1, "msg": "no"}'"#),
        ("status without error", "exit 3"),
        ("garbage with status", "echo garbage; exit 1"),
        ("killed", "kill -9 $$"),
        (
            "string for a code",
            r#"echo '{"code": "7", "msg": "x"}'; exit 1"#,
        ),
        ("endless", "yes"),
    ] {
        let script =
            format!("echo $CNI_COMMAND >>$0.log\n[ $CNI_COMMAND = ADD ] || exit 0\n{script}");
        bench.host.add_plugin("stand-in", &script);
        let failed = bench.call("ADD").run(&stand_in());
        assert_eq!(failed.status, 1, "{what}: {failed:?}");
        let msg = failed.msg();
        assert!(
            !msg.is_empty() && failed.json()["code"].is_u64(),
            "{what}: {failed:?}"
        );
        let log = bench.host.path("bin/stand-in.log");
        assert_eq!(
            fs::read_to_string(&log).unwrap(),
            "ADD\nDEL\n",
            "{what}: {failed:?}"
        );
        fs::remove_file(log).unwrap();
        assert_eq!(bench.host.snapshot(), before, "{what}");
    }
}

/// tests/contract-items, items 72, 113: results of other versions, and indexes that mean nothing
/// here.
#[test]
fn results_of_every_version_are_understood() {
    let Some(bench) = Bench::cni("delegation::versions") else {
        return;
    };
    let new = |version: Value| {
        json!({"cniVersion": version, "interfaces": [{"name": "other"}], "routes": [{"dst": "10.1.0.0/16"}],
            "ips": [{"version": "4", "address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 7}]})
    };
    let old = |version: Value| {
        json!({"cniVersion": version,
            "ip4": {"ip": "10.0.0.2/24", "gateway": "10.0.0.1", "routes": [{"dst": "10.1.0.0/16"}]}})
    };
    let mut answers: Vec<_> = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
        .into_iter()
        .map(|v| new(json!(v)))
        .collect();
    answers.extend(["0.1.0", "0.2.0"].map(|version| old(json!(version))));
    // Without a version: the configuration's.
    answers.extend([new(json!(null)), new(json!(""))]);
    for answer in answers {
        bench.host.add_plugin(
            "stand-in",
            &format!("[ $CNI_COMMAND = ADD ] && echo '{answer}'\nexit 0"),
        );
        let result = bench.call("ADD").run(&stand_in()).ok().json();
        assert_eq!(
            result["interfaces"].as_array().unwrap().len(),
            1,
            "{answer}"
        );
        assert_eq!(
            result["ips"],
            json!([{"address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 0}]),
            "{answer}"
        );
        assert_eq!(
            result["routes"],
            json!([{"dst": "10.1.0.0/16", "gw": "10.0.0.1", "priority": 1000}]),
            "{answer}"
        );
        bench.call("DEL").run(&stand_in()).ok();
    }
}

/// tests/contract-items, item 106: the folders of CNI_PATH in their order, PATH never; and nothing
/// was done when there is none.
#[test]
fn the_ipam_is_searched_in_cni_path_alone() {
    let Some(bench) = Bench::cni("delegation::path") else {
        return;
    };
    let host = &bench.host;
    let before = host.snapshot();
    let absent = with(config(), json!({"ipam": {"type": "absent"}}));
    let error = bench.call("ADD").run(&absent).error(7);
    assert!(
        error["msg"].as_str().unwrap().contains("\"absent\""),
        "{error}"
    );
    // PATH has `cat`, and a folder and a dangling link are no plugins.
    bench
        .call("ADD")
        .run(&with(config(), json!({"ipam": {"type": "cat"}})))
        .error(7);
    fs::create_dir_all(host.path("bin/folder")).unwrap();
    symlink("nowhere", host.path("bin/dangling")).unwrap();
    for name in ["folder", "dangling"] {
        bench
            .call("ADD")
            .run(&with(config(), json!({"ipam": {"type": name}})))
            .error(7);
    }
    assert_eq!(host.snapshot(), before);

    let answer = |address: &str| {
        format!(r#"echo '{{"cniVersion": "1.1.0", "ips": [{{"address": "{address}"}}]}}'"#)
    };
    host.add_plugin("stand-in", &answer("10.0.0.2/24"));
    fs::create_dir_all(host.path("first")).unwrap();
    fs::rename(host.path("bin/stand-in"), host.path("first/stand-in")).unwrap();
    host.add_plugin("stand-in", &answer("10.0.0.3/24"));
    let path = format!(
        "/nonexistent:{}:{}:",
        host.path("first").display(),
        host.path("bin").display()
    );
    let result = bench
        .call("ADD")
        .var("CNI_PATH", &path)
        .run(&stand_in())
        .ok()
        .json();
    assert_eq!(result["ips"][0]["address"], "10.0.0.2/24");
}

/// A plugin that makes interfaces would change the pod, or ask for an address itself, by asking us.
#[test]
fn a_plugin_that_gives_no_addresses_is_no_ipam() {
    let Some(bench) = Bench::cni("delegation::main") else {
        return;
    };
    let before = bench.host.snapshot();
    for name in ["rail-cni", "macvlan", "tuning", "of-nobody"] {
        bench.host.add_plugin(name, "touch $0.called");
        let path = format!(
            "{}:{}",
            bench.host.path("bin").display(),
            bench.host.cni_path()
        );
        let call = |verb: &str| bench.call(verb).var("CNI_PATH", &path);
        let previous = json!({"cniVersion": "1.1.0", "ips": []});
        let wrong = with(
            config(),
            json!({"ipam": {"type": name}, "prevResult": previous}),
        );
        for verb in ["ADD", "CHECK", "STATUS", "GC"] {
            let error = call(verb).run(&wrong).error(7);
            assert!(
                error["msg"]
                    .as_str()
                    .unwrap()
                    .contains(&format!("ipam.type: \"{name}\"")),
                "{error}"
            );
        }
        let deleted = call("DEL").run(&wrong).ok();
        assert!(
            deleted.stderr.contains(&format!("ipam.type: \"{name}\"")),
            "{deleted:?}"
        );
        call("ADD").run(&config()).ok();
        call("DEL").run(&wrong).ok();
        assert_eq!(bench.host.snapshot(), before, "{name}");
        assert!(!bench.host.path(&format!("bin/{name}.called")).exists());
    }
}

/// With any name, and any program in between: the awaited lock is the caller's.
#[test]
fn no_call_waits_for_a_lock_that_its_own_caller_holds() {
    let Some(bench) = Bench::cni("delegation::itself") else {
        return;
    };
    let ours = env!("CARGO_BIN_EXE_rail-cni");
    bench.host.add_plugin("between", &format!("exec {ours}"));
    fs::copy(ours, bench.host.path("bin/copy")).unwrap();
    symlink(ours, bench.host.path("bin/link")).unwrap();
    let before = bench.host.snapshot();
    for name in ["between", "copy", "link"] {
        let inner = json!({"type": name, "pool": "rail-0"});
        let itself = with(
            config(),
            json!({"ipam": inner, "prevResult": {"cniVersion": "1.1.0", "ips": []}}),
        );
        for verb in ["ADD", "STATUS", "GC"] {
            let error = bench.call(verb).run(&itself).error(7);
            assert!(
                error["msg"].as_str().unwrap().contains("correct ipam.type"),
                "{name}: {error}"
            );
        }
        assert_eq!(bench.host.snapshot(), before, "{name}");
        bench.call("DEL").run(&itself).ok();
        bench.call("ADD").run(&config()).ok();
        bench.call("CHECK").run(&itself).error(7);
        bench.call("DEL").run(&itself).ok();
        assert_eq!(bench.host.snapshot(), before, "{name}");
    }
}

/// tests/contract-items, item 106: a file that cannot be run.
#[test]
fn an_ipam_that_cannot_be_run_is_an_error_before_anything_moved() {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(bench) = Bench::cni("delegation::exec") else {
        return;
    };
    let before = bench.host.snapshot();
    bench.host.add_plugin("stand-in", "exit 0");
    let file = bench.host.path("bin/stand-in");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(bench.call("ADD").run(&stand_in()).status, 1);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&file, "#!/nonexistent/shell\n").unwrap();
    assert_eq!(bench.call("ADD").run(&stand_in()).status, 1);
    // The next call does the rest.
    bench.host.add_plugin("stand-in", RECORDER);
    bench.call("DEL").run(&stand_in()).ok();
    assert_eq!(bench.host.snapshot(), before);
}

/// tests/contract-items, items 111, 114: verbs that the IPAM does not have.
#[test]
fn an_ipam_without_gc_and_status_is_no_hindrance() {
    let Some(bench) = Bench::cni("delegation::old") else {
        return;
    };
    // skel's answer for a function that is nil: nothing, and status 0.
    bench.host.add_plugin("stand-in", RECORDER);
    bench.call("GC").run(&stand_in()).ok();
    bench.call("STATUS").run(&stand_in()).ok();
    // A plugin that rejects the verb is reported, with its code.
    bench.host.add_plugin(
        "stand-in",
        r#"echo "{\"code\": 4, \"msg\": \"unknown CNI_COMMAND: $CNI_COMMAND\"}"; exit 1"#,
    );
    assert_eq!(
        bench.call("GC").run(&stand_in()).error(4)["msg"],
        "unknown CNI_COMMAND: GC"
    );
    assert_eq!(
        bench.call("STATUS").run(&stand_in()).error(4)["msg"],
        "unknown CNI_COMMAND: STATUS"
    );
}

/// tests/contract-items, item 12 with 107: a plugin that does not read all of a large stdin, or
/// reads it late.
#[test]
fn an_ipam_need_not_read_its_stdin() {
    let Some(bench) = Bench::cni("delegation::stdin") else {
        return;
    };
    // ADD takes no more; of DEL it is more than a pipe holds.
    let large = |size: usize| with(stand_in(), json!({"args": {"padding": "x".repeat(size)}}));
    let answer = r#"[ $CNI_COMMAND = ADD ] && echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24"}]}'"#;
    for script in [
        format!("{answer}\nexit 0"),
        format!("exec 0<&-\n{answer}\nexit 0"),
        format!("{answer}\ncat >/dev/null\nexit 0"),
    ] {
        bench.host.add_plugin("stand-in", &script);
        bench.call("ADD").run(&large(60_000)).ok();
        bench.call("DEL").run(&large(1 << 20)).ok();
    }
}

/// Upstream's own: without the keys of 1.1, and `static` and `host-local` know nothing of GC.
#[test]
fn upstreams_ipams_work() {
    let Some(bench) = Bench::cni("delegation::upstream") else {
        return;
    };
    let subnet =
        json!({"type": "host-local", "subnet": "10.5.0.0/24", "dataDir": bench.host.path("hl")});
    let fixed =
        json!({"type": "static", "addresses": [{"address": "10.5.0.2/24", "gateway": "10.5.0.1"}]});
    let before = bench.host.snapshot();
    for ipam in [subnet, fixed] {
        let name = ipam["type"].as_str().unwrap();
        if !std::path::Path::new(crate::harness::UPSTREAM)
            .join(name)
            .exists()
        {
            crate::harness::skip(
                "delegation::upstream",
                &format!("no {name} in {}", crate::harness::UPSTREAM),
            );
            continue;
        }
        let config = with(
            config(),
            json!({"cniVersion": "1.0.0", "ipam": ipam, "routes": [{"dst": "10.6.0.0/16"}]}),
        );
        let checked = bench.added(&config);
        assert_eq!(checked["prevResult"]["ips"][0]["address"], "10.5.0.2/24");
        bench.call("CHECK").run(&checked).ok();
        bench.call("DEL").run(&checked).ok();
        assert_eq!(bench.host.snapshot(), before, "{name}");
    }
}
