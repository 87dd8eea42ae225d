//! Tells the kernel what a call never does, so that a fault of the program, or a library of it,
//! cannot do it either.
//!
//! rail-ipam may make the system calls of [`IPAM`] and no other: it executes nothing, and its only
//! sockets are those of netlink. rail-cni starts other plugins, which inherit its limits, so it
//! gives up only what no plugin needs: [`NEVER`].
//!
//! A kernel or a container without seccomp is no error: the call goes on. `doctor` says what the
//! kernel has. A forbidden call fails with EPERM, which is reported as any other error. `confine`
//! of node.json turns it off.
//!
//! Landlock is not used: it hides the namespaces of other processes from whoever it holds, and
//! those tell whether a pod lives.

mod filter;

use std::sync::Once;

use anyhow::Result;
use nix::libc;
use seccompiler::sock_filter;

use filter::{Answer, filter};

/// The system calls of rail-ipam. The C library chooses some of them by the age of the kernel, so
/// what it falls back to is there, too, and so are the clocks, which the kernel answers itself only
/// where the machine lets it.
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
    // Identity and time.
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
    // Addresses of pods whose leases somebody removed; `setns` and `socket` with conditions, see
    // `ipam_filter`.
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

/// Access to I/O ports, which only this architecture has.
#[cfg(target_arch = "x86_64")]
const IO_PORTS: &[i64] = &[libc::SYS_iopl, libc::SYS_ioperm];
#[cfg(not(target_arch = "x86_64"))]
const IO_PORTS: &[i64] = &[];

/// open_tree_attr(2) of Linux 6.15, under one number on all architectures.
const OPEN_TREE_ATTR: i64 = 467;

/// System calls that no plugin needs, neither ours nor one that rail-cni starts: other processes'
/// memory and files, the kernel's code, its time and its end, keys, the tree of mounts, and the
/// ways around the permissions of a path; beside them `IO_PORTS`. A sysfs that is mounted nowhere
/// is needed (fsopen, fsmount).
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
    OPEN_TREE_ATTR,
    libc::SYS_move_mount,
    libc::SYS_fspick,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_io_uring_setup,
];

/// The only command of bpf(2) that is made: which programs a netdev has (linux/bpf.h).
const BPF_PROG_QUERY: u32 = 16;

/// Undoing an ADD is a DEL in the same process, which is confined already.
static CONFINED: Once = Once::new();

/// Confines rail-ipam.
pub fn ipam() {
    CONFINED.call_once(|| drop(install(&ipam_filter())));
}

/// Confines rail-cni, and the plugins that it starts.
pub fn cni() {
    CONFINED.call_once(|| {
        let calls = NEVER.iter().chain(IO_PORTS);
        let mut never: Vec<_> = calls.map(|call| (*call, Answer::Refused)).collect();
        never.push((libc::SYS_bpf, Answer::MadeIf(0, BPF_PROG_QUERY)));
        drop(install(&filter(&never, Answer::Made)));
    });
}

fn ipam_filter() -> Vec<sock_filter> {
    // Stands for `cast_unsigned` of Rust 1.87.
    let bits = |value: libc::c_int| u32::from_ne_bytes(value.to_ne_bytes());
    let is_netlink = Answer::MadeIf(0, bits(libc::AF_NETLINK));
    let is_network = Answer::MadeIf(1, bits(libc::CLONE_NEWNET));
    let listed = IPAM
        .iter()
        .chain(IPAM_OLD)
        .map(|call| (*call, Answer::Made));
    let all: Vec<_> = listed
        .chain([
            (libc::SYS_socket, is_netlink),
            (libc::SYS_setns, is_network),
        ])
        .collect();
    filter(&all, Answer::Refused)
}

fn install(filter: &[sock_filter]) -> Result<()> {
    Ok(seccompiler::apply_filter_all_threads(filter)?)
}
