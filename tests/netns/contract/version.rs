//! docs/cni-contract.md, items 42 to 44: VERSION.

use serde_json::{Value, json};

use super::for_both;
use crate::harness::Ran;

const ALL: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Items 33, 42, 43.
#[test]
fn version_answers_with_the_version_that_was_asked() {
    for_both("version::answers", |bench| {
        let answer = |version: &str| json!({"cniVersion": version, "supportedVersions": ALL});
        let ask = |stdin: &[u8]| -> Value { bench.call("VERSION").run_with(stdin).ok().json() };
        for version in ALL.into_iter().chain(["9.9.9"]) {
            assert_eq!(ask(json!({"cniVersion": version}).to_string().as_bytes()), answer(version));
        }
        for garbage in
            ["", "{", "x", "[]", "null", "{}", r#"{"cniVersion":""}"#, r#"{"cniVersion":1}"#, "\u{0}"]
        {
            assert_eq!(ask(garbage.as_bytes()), answer("1.1.0"), "{garbage:?}");
        }
        assert_eq!(ask(&[0xff; 100]), answer("1.1.0"));
    });
}

/// Item 43: whatever stdin is.
#[test]
fn version_does_not_wait_for_a_silent_stdin() {
    for_both("version::silent", |bench| {
        let mut child = bench.call("VERSION").command().spawn().unwrap();
        let open = child.stdin.take();
        let ran = Ran::from(child.wait_with_output().unwrap()).ok();
        drop(open);
        assert_eq!(ran.json()["cniVersion"], "1.1.0");

        let mut command = bench.call("VERSION").under(&["sh", "-c", "exec \"$0\" <&-"]).command();
        assert_eq!(Ran::from(command.output().unwrap()).ok().json()["cniVersion"], "1.1.0");
    });
}

/// Items 25, 44: and neither needs nor leaves anything.
#[test]
fn version_ignores_every_other_variable_and_leaves_nothing() {
    for_both("version::pure", |bench| {
        let before = bench.host.snapshot();
        let call = bench.call("VERSION").var("CNI_CONTAINERID", "").var("CNI_ARGS", "dummy");
        let call = call.var("CNI_NETNS", "dummy").ifname("dummy").var("CNI_PATH", "dummy");
        call.run_with(b"{}").ok();
        call.without("CNI_PATH").var("CNI_CONTAINERID", "///").ifname("a/b").run_with(b"{}").ok();
        bench.call("VERSION").var("RAIL_CNI_NODE_CONFIG", "/nonexistent").run_with(b"{}").ok();
        assert_eq!(bench.host.snapshot(), before);
        assert!(!bench.host.path("run").exists());
    });
}
