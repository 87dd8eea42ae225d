//! Stops a process, and whatever it starts, before each system call that changes something, and
//! kills who makes one of them.

use std::fs;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde::Serialize;

/// Calls on the process's own memory, threads and signals, and calls that only look. What was
/// before such a call is what is before the next one of the same thread, which is counted. A kill
/// closes all files.
const UNCOUNTED: &[i64] = &[
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
    libc::SYS_lseek,
    libc::SYS_getsockname,
    libc::SYS_getrandom,
    libc::SYS_futex,
    libc::SYS_fcntl,
    libc::SYS_pread64,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_recvfrom,
    libc::SYS_close,
    // Others do not have them.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
];

/// Who makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Who {
    /// The process that the runtime started.
    Main,
    /// One that this one started: a program of a shell, another plugin.
    Child,
}

/// The call whose maker is killed: which one of those of the main process, or of all others.
pub type Victim = (Who, usize);

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status; 128 + the signal if one ended it. -1 if its end was not seen.
    pub status: i32,
    /// How many calls the main process made, and how many all others.
    pub calls: [usize; 2],
    /// The name of who was killed.
    pub killed: Option<String>,
}

/// What runs a command that waits to be traced, so that no call is missed.
pub const WAITING: [&str; 3] = ["sh", "-c", "kill -STOP $$; exec \"$0\" \"$@\""];

/// Lets a process go on that was started with [`WAITING`], and kills the victim. Returns when it
/// and everything that it started have ended: orphans are waited for. So the calling thread must
/// have no other children.
pub fn follow(first: Pid, victim: Option<Victim>) -> Result<Ended, Errno> {
    seize(first)?;
    let mut ended = Ended {
        status: -1,
        calls: [0, 0],
        killed: None,
    };
    let mut is_begun = false;
    // Only this thread's children: other checks have theirs.
    let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    loop {
        let (pid, signal) = match waitpid(None, Some(flags)) {
            Err(Errno::ECHILD) => return Ok(ended),
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno),
            Ok(WaitStatus::Exited(pid, code)) => {
                ended.status = if pid == first { code } else { ended.status };
                continue;
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) => {
                ended.status = if pid == first {
                    128 + signal as i32
                } else {
                    ended.status
                };
                continue;
            }
            Ok(WaitStatus::Stopped(pid, signal)) => (pid, Some(signal)),
            Ok(WaitStatus::PtraceEvent(pid, _, event)) => {
                is_begun |= event == libc::PTRACE_EVENT_EXEC;
                (pid, None)
            }
            Ok(WaitStatus::PtraceSyscall(pid)) => {
                if is_begun && number(pid).is_some_and(|number| !UNCOUNTED.contains(&number)) {
                    let who = if group(pid) == first {
                        Who::Main
                    } else {
                        Who::Child
                    };
                    let calls = &mut ended.calls[who as usize];
                    *calls += 1;
                    if victim == Some((who, *calls)) {
                        ended.killed = Some(comm(pid));
                        // The call is not made: the kernel looks for a deadly signal first.
                        let _ = kill(pid, Signal::SIGKILL);
                    }
                }
                (pid, None)
            }
            Ok(_) => continue,
        };
        // It may have been killed meanwhile, with its process.
        let _ = ptrace::syscall(pid, signal);
    }
}

fn seize(first: Pid) -> Result<(), Errno> {
    waitpid(first, Some(WaitPidFlag::WUNTRACED))?;
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_EXITKILL;
    ptrace::seize(first, options)?;
    kill(first, Signal::SIGCONT)
}

/// The number of the call that a process is about to make, if it is not on its way back from one.
fn number(pid: Pid) -> Option<i64> {
    let info = ptrace::syscall_info(pid).ok()?;
    (info.op == libc::PTRACE_SYSCALL_INFO_ENTRY).then(|| number_of(pid))?
}

#[cfg(target_arch = "x86_64")]
fn number_of(pid: Pid) -> Option<i64> {
    i64::try_from(ptrace::getregs(pid).ok()?.orig_rax).ok()
}

#[cfg(not(target_arch = "x86_64"))]
fn number_of(pid: Pid) -> Option<i64> {
    let text = fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    text.split(' ').next()?.parse().ok()
}

/// The process of a thread.
fn group(pid: Pid) -> Pid {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|text| text.trim().parse().ok())
        .map_or(pid, Pid::from_raw)
}

fn comm(pid: Pid) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .unwrap_or_default()
        .trim()
        .to_owned()
}
