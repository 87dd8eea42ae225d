//! A tracer that stops a plugin, and the IPAM plugin that it started, right before each of their
//! system calls: to kill them there, or to let something else happen first.
//!
//! strace can do so too, but it counts calls per kind and per thread, so it cannot aim at the third
//! `openat` of the IPAM while the plugin itself makes three as well. Here the calls of all threads
//! and processes have one number.

use std::io::{Read as _, Write as _};

use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;
use serde_json::Value;

use crate::harness::{Call, Ran, skip};
use crate::tracer::{self, Ended, WAITING};
pub use crate::tracer::{Fate, Point};

/// The end of a traced call.
#[derive(Debug)]
pub struct Traced {
    /// Of the plugin itself.
    pub ran: Ran,
    /// System calls that were made, of those that are swept.
    pub calls: usize,
    /// The killed process, and the call before which it was killed.
    pub killed: Option<String>,
}

/// May this process trace its children? A skip if not.
pub fn is_allowed(test: &str) -> bool {
    let mut child = std::process::Command::new("sleep")
        .arg("5")
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let seized = ptrace::seize(pid, Options::PTRACE_O_EXITKILL);
    child.kill().unwrap();
    child.wait().unwrap();
    seized
        .map_err(|errno| skip(test, &format!("ptrace is not allowed here: {errno}")))
        .is_ok()
}

/// Runs `call` and stops before each of its system calls; who makes it is killed where `is_deadly`.
pub fn run(call: &Call, config: &Value, mut is_deadly: impl FnMut(Point) -> bool) -> Traced {
    run_with(call, config, |point| {
        if is_deadly(point) {
            Fate::Deadly
        } else {
            Fate::Made
        }
    })
}

/// Runs `call` and decides before each of its system calls what becomes of it: see
/// [`tracer::follow`].
#[expect(
    clippy::zombie_processes,
    reason = "the tracer waits for every process"
)]
pub fn run_with(call: &Call, config: &Value, fate: impl FnMut(Point) -> Fate) -> Traced {
    let mut child = call.clone().under(&WAITING).command().spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(config.to_string().as_bytes())
        .unwrap();
    let Ended {
        status,
        calls,
        killed,
        ..
    } = tracer::follow(Pid::from_raw(i32::try_from(child.id()).unwrap()), fate);
    let (mut stdout, mut stderr) = (String::new(), String::new());
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut stdout)
        .unwrap();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    Traced {
        ran: Ran {
            status,
            stdout,
            stderr,
        },
        calls,
        killed,
    }
}

/// Number of system calls of `call` that concern anything outside of its processes.
#[expect(
    clippy::zombie_processes,
    reason = "the tracer waits for every process"
)]
pub fn count(call: &Call, config: &Value) -> usize {
    let mut child = call.clone().under(&WAITING).command().spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(config.to_string().as_bytes())
        .unwrap();
    let first = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let Ended { status, calls, .. } = tracer::follow_but(&[], first, |_| Fate::Made);
    assert_eq!(status, 0);
    calls
}

/// Can calls be made to fail here? Registers have other names on every processor. A skip if not.
pub fn can_fail(test: &str) -> bool {
    if cfg!(not(target_arch = "x86_64")) {
        skip(test, "system calls can be made to fail on x86-64 only");
    }
    cfg!(target_arch = "x86_64")
}
