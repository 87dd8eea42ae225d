//! docs/cni-contract.md, items 1 to 15: exit status, streams, arguments.

use std::fs::File;
use std::process::Stdio;

use serde_json::json;

use super::{VERBS, config, for_both};
use crate::harness::{Ran, run, with};

/// Items 1, 2, 6, 7.
#[test]
fn success_exits_0_and_only_add_prints() {
    for_both("process::success", |bench| {
        let added = bench.call("ADD").run(&config()).ok();
        assert!(added.json().is_object());
        assert!(added.stdout.ends_with("}\n") && added.stdout.trim_end().lines().count() == 1, "{added:?}");
        let config = with(config(), json!({"prevResult": added.json(), "cni.dev/valid-attachments": []}));
        for verb in ["CHECK", "STATUS", "GC", "DEL", "DEL"] {
            // One /31 has one address: STATUS is right to say so.
            let given = bench.call(verb).run(&config);
            if verb != "STATUS" {
                assert_eq!((given.status, given.stdout.as_str()), (0, ""), "{verb} {given:?}");
            }
        }
        let ready = bench.call("STATUS").run(&config);
        assert_eq!((ready.status, ready.stdout.as_str()), (0, ""), "{ready:?}");
    });
}

/// Items 1, 3, 5, 8.
#[test]
fn failure_exits_1_with_one_error_object_on_stdout() {
    for_both("process::failure", |bench| {
        for verb in VERBS {
            let failed = bench.call(verb).run_with(b"{");
            let error = failed.error(6);
            assert!(error["code"].is_u64() && error["msg"].is_string(), "{verb} {error}");
            assert!(error.get("details").is_none_or(|details| details.is_string()), "{verb} {error}");
            assert_eq!(failed.stdout.trim_end().lines().count(), 1, "{verb} {failed:?}");
        }
    });
}

/// Item 4.
#[test]
fn errors_carry_the_version_of_the_configuration() {
    for_both("process::error_version", |bench| {
        let answers = [
            (json!("0.1.0"), "0.1.0"),
            (json!("0.2.0"), "0.2.0"),
            (json!("0.3.0"), "0.3.0"),
            (json!("0.3.1"), "0.3.1"),
            (json!("0.4.0"), "0.4.0"),
            (json!("1.0.0"), "1.0.0"),
            (json!("1.1.0"), "1.1.0"),
            (json!("9.9.9"), "1.1.0"),
            (json!(1), "1.1.0"),
            // As if it were absent, item 32.
            (json!(""), "0.1.0"),
            (json!(null), "0.1.0"),
        ];
        for (version, answer) in answers {
            let failed = bench.call("ADD").run(&json!({ "cniVersion": version }));
            assert_eq!((failed.status, &failed.json()["cniVersion"]), (1, &json!(answer)), "{version}");
        }
        assert_eq!(bench.call("ADD").run(&json!({})).error(7)["cniVersion"], "0.1.0");
        assert_eq!(bench.call("ADD").run_with(b"[]").error(6)["cniVersion"], "1.1.0");
        assert_eq!(bench.call("ADD").without("CNI_IFNAME").run_with(b"").error(4)["cniVersion"], "1.1.0");
    });
}

/// Item 8: libcni shows stderr to nobody when stdout has something.
#[test]
fn a_closed_stderr_changes_nothing() {
    for_both("process::stderr", |bench| {
        let closed = |verb: &str, stdin: &[u8]| {
            let mut command = bench.call(verb).command();
            command.stderr(Stdio::null());
            run(command, stdin)
        };
        closed("ADD", b"x").error(6);
        let config = with(config(), json!({"logLevel": "debug"})).to_string();
        let added = closed("ADD", config.as_bytes()).ok();
        assert!(added.json()["ips"].is_array(), "{added:?}");
        closed("DEL", config.as_bytes()).ok();
    });
}

/// Item 12.
#[test]
fn stdin_may_be_a_pipe_a_file_or_dev_null_and_large() {
    for_both("process::stdin", |bench| {
        let from = |verb: &str, path: &std::path::Path| -> Ran {
            let mut command = bench.call(verb).command();
            command.stdin(File::open(path).unwrap());
            command.output().unwrap().into()
        };
        let file = bench.host.path("config.json");
        std::fs::write(&file, config().to_string()).unwrap();
        from("ADD", &file).ok();
        from("DEL", &file).ok();
        from("ADD", std::path::Path::new("/dev/null")).error(6);

        let large = with(config(), json!({"args": {"padding": "x".repeat(1 << 20)}}));
        bench.call("ADD").run(&large).ok();
        bench.call("DEL").run(&large).ok();
        assert!(bench.host.leases().is_empty());
    });
}

/// Item 13.
#[test]
fn any_environment_will_do() {
    use std::os::unix::ffi::OsStrExt as _;
    for_both("process::environment", |bench| {
        for verb in ["ADD", "DEL"] {
            let mut command = bench.call(verb).command();
            command.env_remove("PATH").env_remove("HOME");
            run(command, config().to_string().as_bytes()).ok();
        }
        for verb in ["ADD", "DEL"] {
            let mut command = bench.call(verb).command();
            command.env("PATH", "").env("HOME", "/nonexistent").env("TMPDIR", "/nonexistent");
            command
                .env("KUBERNETES_SERVICE_HOST", "10.0.0.1")
                .env("TRACEPARENT", "x")
                .env("RUST_LOG", "trace");
            command.env("LANG", std::ffi::OsStr::from_bytes(b"\xff")).env("RUST_BACKTRACE", "full");
            command.current_dir("/proc");
            let ran = run(command, config().to_string().as_bytes()).ok();
            assert_eq!(verb == "ADD", !ran.stdout.is_empty(), "{ran:?}");
        }
    });
}

/// Item 14: also with a stdin that never ends.
#[test]
fn without_a_verb_it_tells_what_it_is() {
    for_both("process::about", |bench| {
        for call in [bench.call("").without("CNI_COMMAND"), bench.call("")] {
            let mut command = call.command();
            let mut child = command.spawn().unwrap();
            let open = child.stdin.take();
            let ran = Ran::from(child.wait_with_output().unwrap()).ok();
            drop(open);
            assert_eq!(ran.stdout, "");
            assert!(ran.stderr.starts_with(&format!("CNI {} plugin v", bench.program)), "{ran:?}");
            assert!(
                ran.stderr.contains(
                    "CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"
                ),
                "{ran:?}"
            );
        }
    });
}

/// Item 15.
#[test]
fn arguments_do_not_matter_when_a_verb_is_given() {
    for_both("process::arguments", |bench| {
        for argument in ["--version", "--help", "reap", "ADD", "--nonsense"] {
            let mut command = bench.call("VERSION").command();
            command.arg(argument);
            assert!(run(command, b"").ok().json()["supportedVersions"].is_array(), "{argument}");
        }
    });
}
