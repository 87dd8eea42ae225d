//! Stops a process, and whatever it starts, right before each system call, and decides what becomes
//! of the call.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Calls on the process's own memory, threads and signals, and two that only look at a descriptor:
/// nothing fails there that a program could see, and nothing changes that another process could
/// see. Nobody sweeps them.
const INWARD: [i64; 17] = [
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
];

/// Whether no sweep counts this call.
pub fn is_inward(number: i64) -> bool {
    INWARD.contains(&number)
}

/// Also not swept by kills: calls that only look. The state of the node before such a call is that
/// before the next one of the same thread, which is swept.
const HARMLESS: &[i64] = &[
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
    // Others do not have them.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    libc::SYS_recvfrom,
    // A kill closes all files.
    libc::SYS_close,
];

/// A system call that is about to be made.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Number of calls, with this one.
    pub count: usize,
    /// Number of the system call: SYS_*.
    pub number: i64,
    /// The process that makes it.
    pub pid: Pid,
    /// The first of its arguments.
    pub arguments: [u64; 3],
}

/// The fate of a system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is made.
    Made,
    /// Its process is killed.
    Deadly,
    /// It is not made, and fails so.
    Fails(Errno),
    /// It writes half of what it was to write, or returns half of what it has read: the next read
    /// of the thread returns the rest.
    Halved,
    /// Its message does not leave, and the next `recvfrom` of the thread gets these bytes.
    Answered(Vec<u8>),
    /// Another call is made in its place: SYS_*, with these first arguments.
    Becomes(i64, [u64; 3]),
}

impl Point {
    /// The bytes of a `sendto`.
    pub fn sent(&self) -> Option<Vec<u8>> {
        let [_, at, length] = self.arguments;
        (self.number == libc::SYS_sendto).then(|| self.memory(at, length))?
    }

    /// The name that an `unlinkat` removes.
    pub fn unlinked(&self) -> Option<String> {
        self.named(libc::SYS_unlinkat)
    }

    /// The name that an `openat` opens.
    pub fn opened(&self) -> Option<String> {
        self.named(libc::SYS_openat)
    }

    /// The name that the call `number` gets beside the directory.
    fn named(&self, number: i64) -> Option<String> {
        let name = (self.number == number).then(|| self.memory(self.arguments[1], 256))??;
        let end = name
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(name.len());
        Some(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    /// The file that a `write` writes to, and what it writes.
    pub fn written(&self) -> Option<(PathBuf, Vec<u8>)> {
        let [fd, at, length] = self.arguments;
        let bytes = (self.number == libc::SYS_write).then(|| self.memory(at, length))??;
        Some((
            fs::read_link(format!("/proc/{}/fd/{fd}", self.pid)).ok()?,
            bytes,
        ))
    }

    fn memory(&self, at: u64, length: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length).ok()?.min(1 << 16)];
        let memory = fs::File::open(format!("/proc/{}/mem", self.pid)).ok()?;
        let read = memory.read_at(&mut bytes, at).ok()?;
        bytes.truncate(read);
        Some(bytes)
    }
}

/// The end of a process.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: i32,
    /// System calls that were made, of those that are swept.
    pub calls: usize,
    /// The killed process, and the call before which it was killed.
    pub killed: Option<String>,
    /// The counts of those that read one byte at most: they have no half.
    pub unread: HashSet<usize>,
}

/// Changes to calls, and their consequences for the next ones.
#[derive(Default)]
struct Meddling {
    /// The results of calls that were not made.
    returning: HashMap<Pid, i64>,
    /// The next messages of threads.
    replies: HashMap<Pid, Vec<u8>>,
    /// Reads under way, and whether they return a half.
    reading: HashMap<Pid, (Point, bool)>,
    /// The next bytes that threads read from a descriptor.
    rests: HashMap<(Pid, u64), Vec<u8>>,
    /// As in [`Ended`].
    unread: HashSet<usize>,
}

impl Meddling {
    /// `pid` is on its way back from a call.
    fn leave(&mut self, pid: Pid) {
        if let Some(value) = self.returning.remove(&pid) {
            return answer(pid, value);
        }
        let Some((point, is_halved)) = self.reading.remove(&pid) else {
            return;
        };
        let [fd, at, _] = point.arguments;
        let read = returned(pid)
            .and_then(|read| u64::try_from(read).ok())
            .filter(|read| *read > 1);
        let Some(read) = read else {
            self.unread.insert(point.count);
            return;
        };
        if is_halved {
            let half = read.div_ceil(2);
            let rest = point.memory(at + half, read - half).unwrap();
            answer(pid, i64::try_from(half).unwrap());
            // pread(2) is told where to read.
            if point.number == libc::SYS_read {
                self.rests.insert((pid, fd), rest);
            }
        }
    }

    /// Whether the call that is about to be made is not, because what it returns was decided
    /// before.
    fn is_decided(&mut self, point: &Point) -> bool {
        let [fd, at, length] = point.arguments;
        let bytes = match point.number {
            libc::SYS_recvfrom => self.replies.remove(&point.pid),
            libc::SYS_read => self.rests.remove(&(point.pid, fd)),
            libc::SYS_close => {
                self.rests.remove(&(point.pid, fd));
                None
            }
            _ => None,
        };
        let Some(mut bytes) = bytes else { return false };
        if point.number == libc::SYS_read {
            let rest = bytes.split_off(bytes.len().min(usize::try_from(length).unwrap()));
            if !rest.is_empty() {
                self.rests.insert((point.pid, fd), rest);
            }
        }
        let memory = fs::File::options()
            .write(true)
            .open(format!("/proc/{}/mem", point.pid))
            .unwrap();
        memory.write_all_at(&bytes, at).unwrap();
        self.replaces(point, i64::try_from(bytes.len()).unwrap());
        true
    }

    /// The call is not made, and returns `value`.
    fn replaces(&mut self, point: &Point, value: i64) {
        skip_call(point.pid);
        self.returning.insert(point.pid, value);
    }

    /// Lets happen what was decided of a call; `Deadly` says who was killed.
    fn let_happen(&mut self, point: &Point, fate: Fate) -> Option<String> {
        let pid = point.pid;
        let reads = [libc::SYS_read, libc::SYS_pread64].contains(&point.number);
        if reads && [Fate::Made, Fate::Halved].contains(&fate) {
            self.reading.insert(pid, (*point, fate == Fate::Halved));
        }
        match fate {
            Fate::Made => (),
            Fate::Deadly => {
                // The call is not made: the kernel looks for a deadly signal first.
                kill(pid, Signal::SIGKILL).unwrap();
                return Some(format!("{} before its call {}", comm(pid), point.number));
            }
            Fate::Fails(errno) => self.replaces(point, -i64::from(errno as i32)),
            Fate::Becomes(number, arguments) => replace_call(pid, number, arguments),
            Fate::Halved if reads => (),
            Fate::Halved => {
                let [first, second, length] = point.arguments;
                replace_call(pid, point.number, [first, second, length.div_ceil(2)]);
            }
            Fate::Answered(reply) => {
                self.replaces(point, i64::try_from(point.arguments[2]).unwrap());
                self.replies.insert(pid, reply);
            }
        }
        None
    }
}

/// Starts a command that waits to be traced, so that no call is missed.
pub const WAITING: [&str; 3] = ["sh", "-c", "kill -STOP $$; exec \"$0\" \"$@\""];

/// Lets a process go on that was started with [`WAITING`], and decides before each of its system
/// calls what becomes of it. Returns when it and everything that it started have ended: orphans are
/// waited for. So the calling thread must have no other children.
pub fn follow(first: Pid, fate: impl FnMut(Point) -> Fate) -> Ended {
    follow_but(HARMLESS, first, fate)
}

/// Like [`follow`], with further calls that are not swept.
pub fn follow_but(harmless: &[i64], first: Pid, mut fate: impl FnMut(Point) -> Fate) -> Ended {
    seize(first);
    let (mut calls, mut killed, mut started, mut status) = (0, None, false, 0);
    let harmless: HashSet<i64> = harmless.iter().copied().collect();
    let mut meddling = Meddling::default();
    // Only this thread's children: other tests have theirs.
    let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    loop {
        let (pid, signal) = match waitpid(None, Some(flags)) {
            Err(Errno::ECHILD) => break,
            Err(errno) => panic!("waitpid: {errno}"),
            Ok(WaitStatus::Exited(pid, code)) => {
                status = if pid == first { code } else { status };
                continue;
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) => {
                status = if pid == first {
                    128 + signal as i32
                } else {
                    status
                };
                continue;
            }
            Ok(WaitStatus::Stopped(pid, signal)) => (pid, Some(signal)),
            Ok(WaitStatus::PtraceEvent(pid, _, event)) => {
                started |= event == libc::PTRACE_EVENT_EXEC;
                (pid, None)
            }
            Ok(WaitStatus::PtraceSyscall(pid)) => {
                let is_swept = |point: &Point| {
                    let number = point.number;
                    !is_inward(number) && !harmless.contains(&number)
                };
                match entered(pid) {
                    None => meddling.leave(pid),
                    Some(point) if !started || meddling.is_decided(&point) || !is_swept(&point) => {
                    }
                    Some(point) => {
                        calls += 1;
                        let point = Point {
                            count: calls,
                            ..point
                        };
                        killed = meddling.let_happen(&point, fate(point)).or(killed);
                    }
                }
                (pid, None)
            }
            Ok(other) => panic!("{other:?}"),
        };
        // It may have been killed meanwhile, with its process.
        let _ = ptrace::syscall(pid, signal);
    }
    Ended {
        status,
        calls,
        killed,
        unread: meddling.unread,
    }
}

/// Takes hold of a process that was started with [`WAITING`], and lets it go on.
pub fn seize(first: Pid) {
    waitpid(first, Some(WaitPidFlag::WUNTRACED)).unwrap();
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_EXITKILL;
    ptrace::seize(first, options).unwrap();
    kill(first, Signal::SIGCONT).unwrap();
}

/// The name of a thread.
pub fn comm(pid: Pid) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// The system call that `pid` is about to make, if it is not on its way back from one.
pub fn entered(pid: Pid) -> Option<Point> {
    let info = ptrace::syscall_info(pid).ok()?;
    let (number, arguments) =
        (info.op == libc::PTRACE_SYSCALL_INFO_ENTRY).then(|| call_of(pid))??;
    Some(Point {
        count: 0,
        number,
        pid,
        arguments,
    })
}

/// The number and the first arguments of the call that a process is about to make. It is stopped
/// twice at each, so this is what a sweep spends its time on.
#[cfg(target_arch = "x86_64")]
fn call_of(pid: Pid) -> Option<(i64, [u64; 3])> {
    let registers = ptrace::getregs(pid).ok()?;
    Some((
        registers.orig_rax as i64,
        [registers.rdi, registers.rsi, registers.rdx],
    ))
}

#[cfg(not(target_arch = "x86_64"))]
fn call_of(pid: Pid) -> Option<(i64, [u64; 3])> {
    let text = fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let mut words = text.split(' ');
    let number = words.next()?.parse().ok()?;
    let mut argument = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
    Some((number, [argument()?, argument()?, argument()?]))
}

/// The kernel makes no call of this number.
#[cfg(target_arch = "x86_64")]
fn skip_call(pid: Pid) {
    let mut registers = ptrace::getregs(pid).unwrap();
    registers.orig_rax = u64::MAX;
    ptrace::setregs(pid, registers).unwrap();
}

#[cfg(target_arch = "x86_64")]
fn replace_call(pid: Pid, number: i64, arguments: [u64; 3]) {
    let mut registers = ptrace::getregs(pid).unwrap();
    registers.orig_rax = u64::from_ne_bytes(number.to_ne_bytes());
    [registers.rdi, registers.rsi, registers.rdx] = arguments;
    ptrace::setregs(pid, registers).unwrap();
}

/// On the way back from it.
#[cfg(target_arch = "x86_64")]
fn answer(pid: Pid, value: i64) {
    let mut registers = ptrace::getregs(pid).unwrap();
    registers.rax = u64::from_ne_bytes(value.to_ne_bytes());
    ptrace::setregs(pid, registers).unwrap();
}

/// The result of a call, on the way back from it.
#[cfg(target_arch = "x86_64")]
fn returned(pid: Pid) -> Option<i64> {
    ptrace::getregs(pid)
        .ok()
        .map(|registers| registers.rax as i64)
}

#[cfg(not(target_arch = "x86_64"))]
fn returned(_: Pid) -> Option<i64> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
fn skip_call(_: Pid) {}

#[cfg(not(target_arch = "x86_64"))]
fn replace_call(_: Pid, _: i64, _: [u64; 3]) {}

#[cfg(not(target_arch = "x86_64"))]
fn answer(_: Pid, _: i64) {}
