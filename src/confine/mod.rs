//! Tells the kernel what a call never does, so that a fault of the program, or a library of it, cannot do it either.
//!
//! rail-ipam may make the system calls of [`IPAM`] and no other: it executes nothing, and its only sockets are those of
//! netlink. With Landlock, it writes below the run directory alone. rail-cni starts other plugins, which inherit its
//! limits, so it gives up only what no plugin needs: [`NEVER`].
//!
//! A kernel or a container that has neither is no error: the call goes on without. `doctor` says what the kernel has. A
//! forbidden call fails with EPERM (of Landlock: EACCES), which is reported as any other error. `confine` of node.json
//! turns all of it off.

mod filter;

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};

use anyhow::Result;
use landlock::{
    ABI, AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus,
};
use nix::libc;
use seccompiler::sock_filter;

use crate::watchdog;

use filter::{Answer, filter};

/// The system calls of rail-ipam. The C library chooses some of them by the age of the kernel, so what it falls back to is
/// there, too, and so are the clocks, which the kernel answers itself only where the machine lets it.
pub const IPAM: &[i64] = &[
    // Files.
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_ioctl,
    libc::SYS_ppoll,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    // Threads, and the end.
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_prctl,
    libc::SYS_prlimit64,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Signals: the watchdog ends its own process.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_kill,
    libc::SYS_tgkill,
    // Who and when.
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_uname,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    // Addresses of pods whose leases somebody removed; `setns` and `socket` with conditions, see `ipam_filter`.
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
];

/// Calls by older names, which only this architecture has.
#[cfg(target_arch = "x86_64")]
const IPAM_OLD: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_poll,
    libc::SYS_arch_prctl,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const IPAM_OLD: &[i64] = &[];

/// What no plugin needs, neither ours nor one that rail-cni starts: other processes' memory and files, the kernel's code,
/// its time and its end, keys, the tree of mounts, and the ways around the permissions of a path. A sysfs that is mounted
/// nowhere is needed (fsopen, fsmount).
pub const NEVER: &[i64] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_mount_setattr,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fspick,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_io_uring_setup,
];

/// The only command of bpf(2) that is made: which programs a netdev has (linux/bpf.h).
const BPF_PROG_QUERY: u32 = 16;

/// Whether Landlock holds the call. Undoing an ADD is a DEL in the same process, which is confined already.
static HOLDS_DIRECTORIES: OnceLock<bool> = OnceLock::new();

/// Confines rail-ipam. `writes_below` is the only directory that it may write in; `None` where that cannot be said of the
/// call.
pub fn ipam(writes_below: Option<&Path>) {
    HOLDS_DIRECTORIES.get_or_init(|| {
        let is_held = writes_below.is_some_and(|directory| write_below(directory).is_ok());
        let _ = install(&ipam_filter());
        is_held
    });
}

/// Confines rail-cni, and the plugins that it starts.
pub fn cni() {
    HOLDS_DIRECTORIES.get_or_init(|| {
        let mut never: Vec<_> = NEVER.iter().map(|call| (*call, Answer::Refused)).collect();
        never.push((libc::SYS_bpf, Answer::MadeIf(0, BPF_PROG_QUERY)));
        let _ = install(&filter(&never, Answer::Made));
        false
    });
}

/// A thread that Landlock does not hold, from the first look on. The kernel hides the namespaces of all other processes
/// from one that it holds, and they are how a plugin knows whether a pod lives.
static LOOKER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();

type Job = Box<dyn FnOnce() + Send>;

/// Whether Landlock holds this call: then what it looks at itself in /proc is not all that is there.
pub fn holds_directories() -> bool {
    HOLDS_DIRECTORIES.get().is_some_and(|is_held| *is_held)
}

/// The metadata of what `path` leads to, in /proc as well.
pub fn metadata(path: &Path) -> io::Result<Metadata> {
    let path = path.to_owned();
    unheld(move || path.metadata())
}

/// `path` without links, in /proc as well.
pub fn canonicalize(path: &Path) -> io::Result<PathBuf> {
    let path = path.to_owned();
    unheld(move || path.canonicalize())
}

/// Runs `look` where Landlock does not hold it: there it sees the namespaces of other processes. `look` itself must not ask
/// this module.
pub fn unheld<T: Send + 'static>(look: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    if !holds_directories() {
        return look();
    }
    let looker = LOOKER.get_or_init(|| {
        let (ask, asked) = channel::<Job>();
        watchdog::start_thread("looker", move || asked.into_iter().for_each(|job| job()));
        Mutex::new(ask)
    });
    let (answer, answered) = channel();
    // Whoever asked may have ended.
    let job: Job = Box::new(move || drop(answer.send(look())));
    let asked = looker.lock().is_ok_and(|looker| looker.send(job).is_ok());
    let ended = || io::Error::other("the thread that looks at paths has ended");
    asked.then(|| answered.recv().ok()).flatten().ok_or_else(ended)?
}

fn write_below(directory: &Path) -> Result<()> {
    // ABI 3, of Linux 6.2, is the first that knows truncation; on an older kernel the rest holds.
    let abi = ABI::V3;
    let rights = AccessFs::from_write(abi);
    let rules = Ruleset::default().handle_access(rights | AccessFs::Execute)?.create()?;
    let rules = rules.add_rule(PathBeneath::new(PathFd::new(directory)?, rights))?;
    anyhow::ensure!(watchdog::watches(), "nothing could look at other processes' namespaces any more");
    let status = rules.restrict_self()?;
    anyhow::ensure!(status.ruleset != RulesetStatus::NotEnforced, "this kernel has no Landlock");
    Ok(())
}

fn ipam_filter() -> Vec<sock_filter> {
    // What `cast_unsigned` of Rust 1.87 does.
    let bits = |value: libc::c_int| u32::from_ne_bytes(value.to_ne_bytes());
    let is_netlink = Answer::MadeIf(0, bits(libc::AF_NETLINK));
    let is_network = Answer::MadeIf(1, bits(libc::CLONE_NEWNET));
    let listed = IPAM.iter().chain(IPAM_OLD).map(|call| (*call, Answer::Made));
    let all: Vec<_> = listed.chain([(libc::SYS_socket, is_netlink), (libc::SYS_setns, is_network)]).collect();
    filter(&all, Answer::Refused)
}

fn install(filter: &[sock_filter]) -> Result<()> {
    Ok(seccompiler::apply_filter_all_threads(filter)?)
}
