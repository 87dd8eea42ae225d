//! Refusals by the kernel in a call of a plugin. The tracer puts another system call into the place
//! of one that the plugin makes, as a fault of the program would.

use std::fs;
use std::path::PathBuf;

use nix::libc;
use serde_json::{Value, json};

use crate::harness::{Host, Ran, Sleeper, rail, with};
use crate::trace::{self, Fate, Point};

/// The file with the plan of rail 0, which an ADD of rail-ipam reads.
const PLAN: &str = "rail-0.json";

struct Bench {
    host: Host,
    pod: PathBuf,
}

impl Bench {
    /// Leases have begun: nothing is left that only the first call of a boot does.
    fn new(test: &str, node: Value) -> Option<Bench> {
        let host = Host::new(test)?;
        if !trace::is_allowed(test) || !trace::can_fail(test) {
            return None;
        }
        host.add_rail(0);
        host.set_node(node);
        let pod = host.add_netns("pod");
        let bench = Bench { host, pod };
        bench.call("ADD").run(&rail(0)).ok();
        bench.end();
        Some(bench)
    }

    fn call(&self, verb: &str) -> crate::harness::Call {
        self.host.call(verb, "c1", &self.pod).ipam()
    }

    /// ADD of rail-ipam, with `fate` for the call that opens the plan.
    fn add(&self, fate: impl Fn(Point) -> Fate) -> Ran {
        let mut done = false;
        let config = with(rail(0), json!({"logLevel": "debug"}));
        let traced = trace::run_with(&self.call("ADD"), &config, |point| {
            let is_it = !done && point.opened().is_some_and(|name| name == PLAN);
            done |= is_it;
            if is_it { fate(point) } else { Fate::Made }
        });
        assert!(done, "the plan was not opened: {traced:?}");
        traced.ran
    }

    fn end(&self) {
        self.call("DEL").run(&rail(0)).ok();
        assert!(self.host.leases().is_empty());
    }
}

/// The lines of proc_pid_status(5) about the limits of a thread.
fn limits(point: Point) -> (bool, bool) {
    let status = fs::read_to_string(format!("/proc/{}/status", point.pid)).unwrap();
    let has = |line: &str| status.lines().any(|other| other == line);
    (has("Seccomp:\t2"), has("NoNewPrivs:\t1"))
}

#[test]
fn a_call_that_rail_ipam_never_makes_is_refused_and_told() {
    let Some(bench) = Bench::new("confine::calls", json!({})) else {
        return;
    };
    let inet = u64::try_from(libc::AF_INET).unwrap();
    for (number, arguments) in [
        (libc::SYS_execve, [0; 3]),
        (libc::SYS_socket, [inet, 1, 0]),
        (libc::SYS_mount, [0; 3]),
        (libc::SYS_unshare, [0; 3]),
        // PTRACE_DETACH of no process: ESRCH without the filter.
        (libc::SYS_ptrace, [17, 0, 0]),
    ] {
        let ran = bench.add(|point| {
            assert_eq!(limits(point), (true, true));
            Fate::Becomes(number, arguments)
        });
        let msg = ran.msg();
        assert!(
            msg.contains(PLAN) && msg.contains("Operation not permitted"),
            "{number}: {msg}"
        );
        bench.end();
    }
}

/// `confine` of node.json is the way out where a limit is wrong.
#[test]
fn the_switch_of_node_json_takes_the_limits_away() {
    let Some(bench) = Bench::new("confine::switch", json!({"confine": false})) else {
        return;
    };
    bench
        .add(|point| {
            assert_eq!(limits(point), (false, false));
            Fate::Made
        })
        .ok();
    bench.end();
}

#[test]
fn rail_cni_gives_up_what_no_plugin_needs() {
    let Some(bench) = Bench::new("confine::cni", json!({})) else {
        return;
    };
    let call = bench.host.call("ADD", "c2", &bench.pod);
    let none = u64::MAX;
    for (number, arguments) in [
        (libc::SYS_ptrace, [17, 0, 0]),
        (libc::SYS_pidfd_getfd, [none, none, 0]),
        (libc::SYS_kexec_load, [0, none, 0]),
        (libc::SYS_kexec_file_load, [none, none, 0]),
        (libc::SYS_mount, [0; 3]),
        (libc::SYS_umount2, [0; 3]),
        (libc::SYS_open_tree, [none, 0, 0]),
        // open_tree_attr.
        (467, [none, 0, 0]),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_iopl, [0; 3]),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_ioperm, [0, 1, 0]),
        (libc::SYS_move_mount, [none, 0, none]),
        // BPF_PROG_LOAD.
        (libc::SYS_bpf, [5, 0, 0]),
    ] {
        let mut seen = false;
        let traced = trace::run_with(&call, &rail(0), |point| {
            // Once it is confined, rail-cni asks the kernel for its sockets.
            let is_it = !seen && point.number == libc::SYS_socket && limits(point).0;
            seen |= is_it;
            if is_it {
                Fate::Becomes(number, arguments)
            } else {
                Fate::Made
            }
        });
        let msg = traced.ran.msg();
        assert!(
            seen && msg.contains("Operation not permitted"),
            "{number}: {msg}"
        );
    }
    call.run(&rail(0)).ok();
    bench.host.call("DEL", "c2", &bench.pod).run(&rail(0)).ok();
}

/// cri-dockerd and nerdctl name a pod so.
#[test]
fn a_namespace_of_a_process_is_served_under_the_limits() {
    let Some(bench) = Bench::new("confine::process", json!({})) else {
        return;
    };
    let sleeper = Sleeper::new(Some(&bench.pod));
    let path = PathBuf::from(format!("/proc/{}/ns/net", sleeper.pid()));
    for _ in 0..2 {
        bench
            .host
            .call("ADD", "c3", &path)
            .ipam()
            .run(&rail(0))
            .ok();
        bench
            .host
            .call("DEL", "c3", &path)
            .ipam()
            .run(&rail(0))
            .ok();
    }
}
