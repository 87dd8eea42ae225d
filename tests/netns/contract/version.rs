//! tests/contract-items, items 42 to 44: VERSION, where the suite of crates/cni-conformance does not ask.

use super::for_both;

/// tests/contract-items, item 44: neither the node's configuration nor /run.
#[test]
fn version_needs_nothing_of_the_node() {
    for_both("version::node", |bench| {
        let before = bench.host.snapshot();
        bench
            .call("VERSION")
            .var("RAIL_CNI_NODE_CONFIG", "/nonexistent")
            .run_with(b"{}")
            .ok();
        assert_eq!(bench.host.snapshot(), before);
        assert!(!bench.host.path("run").exists());
    });
}

/// tests/contract-items, item 43: what the configuration says, also if it is no version of ours.
#[test]
fn version_answers_with_an_unknown_version_too() {
    for_both("version::unknown", |bench| {
        let answer = bench
            .call("VERSION")
            .run_with(br#"{"cniVersion": "9.9.9"}"#)
            .ok()
            .json();
        assert_eq!(answer["cniVersion"], "9.9.9");
        let answer = bench.call("VERSION").run_with(&[0xff; 100]).ok().json();
        assert_eq!(answer["cniVersion"], "1.1.0");
    });
}
