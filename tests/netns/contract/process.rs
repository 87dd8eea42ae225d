//! tests/contract-items, items 4, 13 and 14: the version of errors, the environment, a call without
//! a verb.

use serde_json::json;

use super::{config, for_both};
use crate::harness::{Ran, run};

/// tests/contract-items, item 4.
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
            // As if it were absent (tests/contract-items, item 32).
            (json!(""), "0.1.0"),
            (json!(null), "0.1.0"),
        ];
        for (version, answer) in answers {
            let failed = bench.call("ADD").run(&json!({ "cniVersion": version }));
            assert_eq!(
                (failed.status, &failed.json()["cniVersion"]),
                (1, &json!(answer)),
                "{version}"
            );
        }
        assert_eq!(
            bench.call("ADD").run(&json!({})).error(7)["cniVersion"],
            "0.1.0"
        );
        assert_eq!(
            bench.call("ADD").run_with(b"[]").error(6)["cniVersion"],
            "1.1.0"
        );
        assert_eq!(
            bench
                .call("ADD")
                .without("CNI_IFNAME")
                .run_with(b"")
                .error(4)["cniVersion"],
            "1.1.0"
        );
    });
}

/// tests/contract-items, item 13.
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
            command
                .env("PATH", "")
                .env("HOME", "/nonexistent")
                .env("TMPDIR", "/nonexistent");
            command
                .env("KUBERNETES_SERVICE_HOST", "10.0.0.1")
                .env("TRACEPARENT", "x")
                .env("RUST_LOG", "trace");
            command
                .env("LANG", std::ffi::OsStr::from_bytes(b"\xff"))
                .env("RUST_BACKTRACE", "full");
            command.current_dir("/proc");
            let ran = run(command, config().to_string().as_bytes()).ok();
            assert_eq!(verb == "ADD", !ran.stdout.is_empty(), "{ran:?}");
        }
    });
}

/// tests/contract-items, item 14: also with a stdin that never ends.
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
            assert!(
                ran.stderr
                    .starts_with(&format!("CNI {} plugin v", bench.program)),
                "{ran:?}"
            );
            assert!(
                ran.stderr
                    .contains(": 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"),
                "{ran:?}"
            );
        }
    });
}
