//! Fuzz targets: one for each kind of input that rail-cni and rail-ipam read, from whomever it
//! comes.
//!
//! A target is a function that takes any bytes and panics if something does not hold that must hold
//! for every input. That nothing panics, hangs or takes much memory holds for all of them.
//! libFuzzer runs each through an executable of `fuzz_targets/` (`scripts/fuzz`), and
//! `tests/corpus.rs` runs each over its corpus, and over all that ever failed.
#![forbid(unsafe_code)]

mod config;
mod directory;
mod documents;
mod input;
mod judge;
mod netlink;
mod plans;
mod results;
mod run_directory;
mod store;
mod sysfs;

/// A target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its executable, its corpus and its dictionary.
    pub name: &'static str,
    /// The meaning of the bytes.
    pub what: &'static str,
    run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 15] = [
    target(
        "config",
        "the environment and the configuration of a call, for both plugins",
        config::config,
    ),
    target(
        "prev_result",
        "prevResult, as CHECK and DEL read it",
        results::prev_result,
    ),
    target(
        "ipam_result",
        "the result of any IPAM plugin, up to the addresses, routes and rules of the pod",
        results::ipam_result,
    ),
    target(
        "netlink",
        "the kernel's answers to every request",
        netlink::netlink,
    ),
    target("sysfs", "the files and links of sysfs", sysfs::sysfs),
    target(
        "lease",
        "the file of a lease that another attachment wants",
        run_directory::lease,
    ),
    target(
        "record",
        "records, debts and the copies in lock files",
        run_directory::record,
    ),
    target(
        "store",
        "an allocation and leaf ports in the store",
        store::store,
    ),
    target("node_json", "node.json", store::node_json),
    target("yaml", "YAML and JSON that people write", documents::yaml),
    target("manifest", "manifests of CIDRPools", plans::manifest),
    target(
        "networks",
        "NetworkAttachmentDefinitions and CNI configurations, as lint reads them",
        documents::networks,
    ),
    target("topology", "topology.json", plans::topology),
    target("fabric", "a fabric file", plans::fabric),
    target("netplan", "netplan files of two hosts", plans::netplan),
];

const fn target(name: &'static str, what: &'static str, run: fn(&[u8])) -> Target {
    Target { name, what, run }
}

/// Runs the target of this name.
///
/// # Panics
///
/// Panics if the input shows a fault, and if there is no such target.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let Some(target) = target else {
        panic!("no target {name}")
    };
    judge::listen();
    (target.run)(data);
}
