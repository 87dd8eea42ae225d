//! Runs two processes, of which only one makes system calls at a time: a schedule says when the other one's turn is.

use std::collections::{HashMap, HashSet};
use std::io::{Read as _, Write as _};
use std::process::Child;
use std::sync::mpsc;
use std::time::Duration;

use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;

use crate::harness::{Call, Ran};
use crate::tracer::{self, WAITING};

/// More calls that the other process has no part in: on signals, threads and descriptors of the process itself.
const OWN: [i64; 15] = [
    libc::SYS_arch_prctl,
    libc::SYS_rt_sigreturn,
    libc::SYS_prctl,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_futex,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_setsockopt,
    libc::SYS_pipe2,
    libc::SYS_dup2,
    libc::SYS_poll,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Who runs when: `first` until it is about to make its call number `until[0]`, the other one until its call number
/// `until[1]`, then the first to its end and the other to its end. Who waits for the other ends its turn earlier.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    pub first: usize,
    pub until: [usize; 2],
}

/// How both ended.
#[derive(Debug)]
pub struct Outcome {
    pub ran: [Ran; 2],
    /// How many calls each made.
    pub calls: [usize; 2],
    /// How many calls the other one had made when its program began: before, it had only been loaded.
    pub begun_after: [usize; 2],
    /// The number of the last call with which it emptied a file, as it does with the note of a lock.
    pub emptied_at: [usize; 2],
    /// How often one of them waited.
    pub waits: usize,
}

/// One of the two.
struct Side {
    child: Child,
    first: Pid,
    /// Its processes and threads.
    members: HashSet<Pid>,
    /// Those that have stopped while it was not its turn, and the signals that they get.
    held: Vec<(Pid, Option<Signal>)>,
    is_loaded: bool,
    begun_after: Option<usize>,
    emptied_at: usize,
    calls: usize,
    status: Option<i32>,
}

impl Side {
    fn start((call, config): &(Call, Value)) -> Side {
        let mut child = call.clone().under(&WAITING).command().spawn().unwrap();
        child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
        let first = Pid::from_raw(child.id().cast_signed());
        tracer::seize(first);
        let members = HashSet::from([first]);
        Side {
            child,
            first,
            members,
            held: Vec::new(),
            is_loaded: false,
            begun_after: None,
            emptied_at: 0,
            calls: 0,
            status: None,
        }
    }

    fn has_ended(&self) -> bool {
        self.members.is_empty()
    }

    fn ran(&mut self) -> Ran {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        Ran { status: self.status.unwrap(), stdout, stderr }
    }
}

/// Longer than every wait of a call.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs both calls as `schedule` says. The calling thread must have no other children.
pub fn run(calls: &[(Call, Value); 2], schedule: Schedule) -> Outcome {
    let mut sides = [Side::start(&calls[0]), Side::start(&calls[1])];
    let pids = [sides[0].first, sides[1].first];
    let (ended, is_ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_ended.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                for pid in pids {
                    let _ = kill(pid, Signal::SIGKILL);
                }
            }
        });
        let waits = follow(&mut sides, schedule);
        drop(ended);
        let calls = [sides[0].calls, sides[1].calls];
        let begun_after = sides.each_ref().map(|side| side.begun_after.unwrap_or(usize::MAX));
        let emptied_at = sides.each_ref().map(|side| side.emptied_at);
        Outcome { ran: sides.each_mut().map(Side::ran), calls, begun_after, emptied_at, waits }
    })
}

/// Follows both to their ends, and counts how often one waited.
fn follow(sides: &mut [Side; 2], schedule: Schedule) -> usize {
    let mut turns = vec![schedule.until[1], schedule.until[0]];
    let (mut active, mut until) = (schedule.first, turns.pop().unwrap());
    let mut waits = 0;
    // A thread may stop before its maker's stop tells whose it is.
    let mut unknown: HashMap<Pid, Option<Signal>> = HashMap::new();
    loop {
        if sides[active].has_ended() {
            let other = 1 - active;
            if sides[other].has_ended() {
                return waits;
            }
            (active, until) = (other, usize::MAX);
            release(&mut sides[active]);
        }
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        let stopped = waitpid(None, Some(flags)).unwrap();
        let pid = stopped.pid().unwrap();
        let Some(side) = sides.iter().position(|side| side.members.contains(&pid)) else {
            let signal = if let WaitStatus::Stopped(_, signal) = stopped { Some(signal) } else { None };
            unknown.insert(pid, signal);
            continue;
        };
        let (mut signal, mut is_turn_over) = (None, false);
        let calls_of_other = sides[1 - side].calls;
        let now = &mut sides[side];
        match stopped {
            WaitStatus::Exited(_, code) => {
                now.members.remove(&pid);
                now.status = if pid == now.first { Some(code) } else { now.status };
                continue;
            }
            WaitStatus::Signaled(_, by, _) => {
                now.members.remove(&pid);
                now.status = if pid == now.first { Some(128 + by as i32) } else { now.status };
                continue;
            }
            WaitStatus::Stopped(_, with) => signal = Some(with),
            WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC) => now.is_loaded = true,
            WaitStatus::PtraceEvent(
                _,
                _,
                libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK,
            ) => {
                let made = Pid::from_raw(i32::try_from(ptrace::getevent(pid).unwrap()).unwrap());
                now.members.insert(made);
                if let Some(signal) = unknown.remove(&made) {
                    if side == active {
                        let _ = ptrace::syscall(made, signal);
                    } else {
                        now.held.push((made, signal));
                    }
                }
            }
            WaitStatus::PtraceSyscall(_) if now.is_loaded => {
                let point = tracer::entered(pid);
                let point =
                    point.filter(|point| !tracer::is_inward(point.number) && !OWN.contains(&point.number));
                if let Some(point) = point.filter(|_| tracer::comm(pid) != tracer::LOOKER) {
                    now.calls += 1;
                    match point.number {
                        // Its first thread is made before it reads its configuration.
                        libc::SYS_clone | libc::SYS_clone3 => {
                            now.begun_after.get_or_insert(calls_of_other);
                        }
                        libc::SYS_ftruncate => now.emptied_at = now.calls,
                        _ => (),
                    }
                    let is_pause = [libc::SYS_nanosleep, libc::SYS_clock_nanosleep].contains(&point.number);
                    let is_wait = is_pause && side == active && !sides[1 - side].has_ended();
                    waits += usize::from(is_wait);
                    is_turn_over = is_wait || (side == active && sides[side].calls >= until);
                }
            }
            _ => (),
        }
        let is_other_there = !sides[1 - side].has_ended();
        if side == active && !(is_turn_over && is_other_there) {
            // It may have been killed meanwhile, with its process.
            let _ = ptrace::syscall(pid, signal);
            continue;
        }
        sides[side].held.push((pid, signal));
        if side == active {
            (active, until) = (1 - active, turns.pop().unwrap_or(usize::MAX));
            release(&mut sides[active]);
        }
    }
}

fn release(side: &mut Side) {
    for (pid, signal) in std::mem::take(&mut side.held) {
        let _ = ptrace::syscall(pid, signal);
    }
}
