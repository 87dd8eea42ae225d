//! The CNI contract, `tests/contract-items`: each test names the items that it holds to. What can
//! be asked of any plugin, and says nothing of our own words and files, is asked by `crates/cni-conformance`.
//!
//! | items | what | where |
//! | --- | --- | --- |
//! | A 4, 13, 14 | process and I/O | process.rs |
//! | A 9 | panic | not tested: no input is known that causes one |
//! | A 10, 11 | closed stdout, surviving children | failures.rs |
//! | B 16-29 | environment | environment.rs |
//! | C 30-36, 39-41 | configuration | configuration.rs |
//! | C 37, 38 | numbers and types of Go | configuration.rs (no key of ours needs more) |
//! | D 42-44 | VERSION | version.rs |
//! | E 45-50 | ADD | add.rs |
//! | E 51 | SIGKILL at any moment | failures.rs |
//! | E 52-59 | device, MAC, DNS, device-info, default route | ../rails/device.rs, ../rails/routing.rs |
//! | F 60-72 | results of every version | ../result.rs |
//! | G 73-82, 84, 85 | DEL in every state | del.rs |
//! | G 83 | DEL waits for ADD, tombstone | failures.rs |
//! | H 86-93 | CHECK | check.rs |
//! | I 94-98, J 99-105 | STATUS, GC | status_gc.rs |
//! | K 106-111, 113, 114 | IPAM plugins | delegation.rs |
//! | K 112 | an IPAM that hangs | failures.rs |
//! | L 115-120 | rail-ipam | ../ipam.rs |
//! | M 121-123 | at the same time | parallel.rs |

mod add;
mod check;
mod configuration;
mod del;
mod delegation;
mod environment;
mod parallel;
mod process;
mod status_gc;
mod version;

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::harness::{Call, Host, rail, with};

/// The verbs that a runtime calls for an attachment or a network, without VERSION.
const VERBS: [&str; 5] = ["ADD", "DEL", "CHECK", "STATUS", "GC"];

/// A host with rail 0, a pod, and one of the two programs.
struct Bench {
    host: Host,
    pod: PathBuf,
    program: &'static str,
}

impl Bench {
    fn new(test: &str, program: &'static str) -> Option<Bench> {
        let host = Host::new(test)?;
        host.add_rail(0);
        let pod = host.add_netns("pod");
        Some(Bench { host, pod, program })
    }

    /// rail-cni.
    fn cni(test: &str) -> Option<Bench> {
        Bench::new(test, "rail-cni")
    }

    /// A call of the program, for net1 of container c1.
    fn call(&self, verb: &str) -> Call {
        let call = self.host.call(verb, "c1", &self.pod);
        if self.program == "rail-ipam" {
            call.ipam()
        } else {
            call
        }
    }

    /// ADD of net1 in container c1: its configuration with the result as `prevResult`.
    #[track_caller]
    fn added(&self, config: &Value) -> Value {
        let result = self.call("ADD").run(config).ok().json();
        with(config.clone(), json!({ "prevResult": result }))
    }
}

/// Runs `check` for each program, on a host of its own.
fn for_both(test: &str, check: impl Fn(&Bench)) {
    for program in ["rail-cni", "rail-ipam"] {
        let Some(bench) = Bench::new(test, program) else {
            return;
        };
        check(&bench);
    }
}

/// A configuration that both programs take.
fn config() -> Value {
    rail(0)
}
