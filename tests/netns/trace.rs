//! A tracer that stops a plugin, and the IPAM plugin that it started, right before each of their system calls:
//! to kill them there, or to let something else happen first.
//!
//! strace can do so too, but it counts calls per kind and per thread, so it cannot aim at the third `openat`
//! of the IPAM while the plugin itself makes three as well. Here the calls of all threads and processes have
//! one number.

use std::collections::HashSet;
use std::fs;
use std::io::{Read as _, Write as _};

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;

use crate::harness::{Call, Ran, skip};

/// Not swept: calls on the process's own memory, threads and signals, and those that only look. The state of
/// the node before such a call is that before the next one of the same thread, which is swept.
const HARMLESS: [i64; 33] = [
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_prlimit64,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getrandom,
    libc::SYS_futex,
    libc::SYS_fcntl,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_getdents64,
    libc::SYS_getsockname,
    libc::SYS_getcwd,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_recvfrom,
    // A kill closes all files.
    libc::SYS_close,
];

/// How a traced call ended.
#[derive(Debug)]
pub struct Traced {
    /// Of the plugin itself.
    pub ran: Ran,
    /// System calls that were made, of those that are swept.
    pub calls: usize,
    /// Who was killed before what.
    pub killed: Option<String>,
}

/// May this process trace its children? A skip if not.
pub fn is_allowed(test: &str) -> bool {
    let mut child = std::process::Command::new("sleep").arg("5").spawn().unwrap();
    let pid = Pid::from_raw(child.id().cast_signed());
    let seized = ptrace::seize(pid, Options::PTRACE_O_EXITKILL);
    child.kill().unwrap();
    child.wait().unwrap();
    seized.map_err(|errno| skip(test, &format!("ptrace is not allowed here: {errno}"))).is_ok()
}

/// A system call that is about to be made.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// How many there were, with this one.
    pub count: usize,
    /// Which one: SYS_*.
    pub number: i64,
}

/// Runs `call` and stops before each of its system calls; who makes it is killed where `is_deadly`.
/// Returns when the plugin and everything that it started have ended: orphans are waited for. So the calling
/// thread must have no other children.
#[expect(clippy::zombie_processes, reason = "the loop waits for every process")]
pub fn run(call: &Call, config: &Value, mut is_deadly: impl FnMut(Point) -> bool) -> Traced {
    // It waits to be traced, so that no call is missed.
    let mut child =
        call.clone().under(&["sh", "-c", "kill -STOP $$; exec \"$0\" \"$@\""]).command().spawn().unwrap();
    child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
    let plugin = Pid::from_raw(child.id().cast_signed());
    waitpid(plugin, Some(WaitPidFlag::WUNTRACED)).unwrap();
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_EXITKILL;
    ptrace::seize(plugin, options).unwrap();
    kill(plugin, Signal::SIGCONT).unwrap();

    let (mut calls, mut killed, mut started, mut status) = (0, None, false, 0);
    let harmless: HashSet<i64> = HARMLESS.into();
    // Only this thread's children: other tests have theirs.
    let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    loop {
        let (pid, signal) = match waitpid(None, Some(flags)) {
            Err(Errno::ECHILD) => break,
            Err(errno) => panic!("waitpid: {errno}"),
            Ok(WaitStatus::Exited(pid, code)) => {
                status = if pid == plugin { code } else { status };
                continue;
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) => {
                status = if pid == plugin { 128 + signal as i32 } else { status };
                continue;
            }
            Ok(WaitStatus::Stopped(pid, signal)) => (pid, Some(signal)),
            Ok(WaitStatus::PtraceEvent(pid, _, event)) => {
                started |= event == libc::PTRACE_EVENT_EXEC;
                (pid, None)
            }
            Ok(WaitStatus::PtraceSyscall(pid)) => {
                if let Some(number) = entered(pid).filter(|number| started && !harmless.contains(number)) {
                    calls += 1;
                    if is_deadly(Point { count: calls, number }) {
                        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                        killed = Some(format!("{} before its call {number}", comm.trim()));
                        // The call is not made: the kernel looks for a deadly signal first.
                        kill(pid, Signal::SIGKILL).unwrap();
                    }
                }
                (pid, None)
            }
            Ok(other) => panic!("{other:?}"),
        };
        // It may have been killed meanwhile, with its process.
        let _ = ptrace::syscall(pid, signal);
    }
    let (mut stdout, mut stderr) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    Traced { ran: Ran { status, stdout, stderr }, calls, killed }
}

/// The system call that `pid` is about to make, if it is not on its way back from one.
fn entered(pid: Pid) -> Option<i64> {
    let info = ptrace::syscall_info(pid).ok()?;
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return None;
    }
    let text = fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    text.split(' ').next()?.parse().ok()
}
