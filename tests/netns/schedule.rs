//! Runs two processes, of which only one makes system calls at a time: a schedule says when the
//! other one's turn is.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::mpsc;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;

use crate::harness::{Call, Ran};
use crate::tracer::{self, Point, WAITING};

/// More calls that the other process has no part in: on signals, threads and descriptors of the
/// process itself.
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

/// A pause after one of these waits for a process that it started itself.
const CHILDREN: [i64; 2] = [libc::SYS_wait4, libc::SYS_waitid];

/// Calls by which a process pauses. How many there are depends on the time, so they have no number.
const PAUSES: [i64; 2] = [libc::SYS_nanosleep, libc::SYS_clock_nanosleep];

/// The order of two processes: `first` until it is about to make its call number `until[0]`, the
/// other one until its call number `until[1]`, then the first to its end and the other to its end.
/// A process that waits for the other one lets it run meanwhile, and goes on with its turn once the
/// lock is free that it waits for.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    pub first: usize,
    pub until: [usize; 2],
}

/// Why it was the other one's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The schedule says so.
    Planned,
    /// The running process waited for the other one.
    Waited,
    /// The other one had waited for a lock that was free now.
    Freed,
}

/// One of the two ran, and now the other one does.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    pub from: usize,
    /// The number of the call that it was about to make.
    pub call: usize,
    pub why: Why,
}

/// The ends of both.
#[derive(Debug)]
pub struct Outcome {
    pub ran: [Ran; 2],
    /// Number of calls of each.
    pub calls: [usize; 2],
    /// Number of calls of the other one when its program began: before, it had only been loaded.
    pub begun_after: [usize; 2],
    /// The number of the last call with which it emptied a file, as it does with the note of a
    /// lock.
    pub emptied_at: [usize; 2],
    /// In their order, without the last one, which an end is.
    pub switches: Vec<Switch>,
}

impl Outcome {
    pub fn has_waited(&self) -> bool {
        self.switches.iter().any(|switch| switch.why == Why::Waited)
    }

    /// Whether a switch of the schedule came.
    pub fn has_switched(&self) -> bool {
        self.switches
            .iter()
            .any(|switch| switch.why == Why::Planned)
    }

    /// Whether both switches of the schedule came.
    pub fn went_as_planned(&self) -> bool {
        let is_there = |from| {
            self.switches
                .iter()
                .any(|one| one.from == from && one.why == Why::Planned)
        };
        is_there(0) && is_there(1)
    }

    /// The mark of this order. When a process waits follows from the switches before, so only those
    /// of the schedule have their number.
    pub fn order(&self) -> Vec<(usize, usize)> {
        let place = |switch: &Switch| {
            (
                switch.from,
                if switch.why == Why::Planned {
                    switch.call
                } else {
                    0
                },
            )
        };
        self.switches.iter().map(place).collect()
    }
}

/// The last calls of a thread, as far as they tell what it waits for when it pauses.
#[derive(Default)]
struct Last {
    call: i64,
    /// The file that it wanted to lock, if it did nothing but close it since.
    lock: Option<PathBuf>,
}

impl Last {
    /// Notes a call, of those that the process itself has no part in, too.
    fn note(&mut self, point: &Point) {
        let [fd, ..] = point.arguments;
        match point.number {
            libc::SYS_flock => {
                self.lock = fs::read_link(format!("/proc/{}/fd/{fd}", point.pid)).ok()
            }
            libc::SYS_close => (),
            number
                if OWN.contains(&number)
                    || tracer::is_inward(number)
                    || PAUSES.contains(&number) => {}
            _ => self.lock = None,
        }
        self.call = point.number;
    }
}

/// The next act of a process.
enum Made {
    /// A call without any part of the other one.
    Nothing,
    /// It waits for the other one.
    Pause,
    /// A call that has a number.
    Call,
}

/// One of the two.
struct Side {
    child: Child,
    first: Pid,
    /// Its processes and threads.
    members: HashSet<Pid>,
    /// Processes that have stopped while it was not its turn, and the signals that they get.
    held: Vec<(Pid, Option<Signal>)>,
    is_loaded: bool,
    begun_after: Option<usize>,
    emptied_at: usize,
    calls: usize,
    last: HashMap<Pid, Last>,
    /// The lock that the other one has, and that it waits for.
    waits_for: Option<PathBuf>,
    status: Option<i32>,
}

impl Side {
    fn start((call, config): &(Call, Value)) -> Side {
        let mut child = call.clone().under(&WAITING).command().spawn().unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(config.to_string().as_bytes())
            .unwrap();
        let first = Pid::from_raw(i32::try_from(child.id()).unwrap());
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
            last: HashMap::new(),
            waits_for: None,
            status: None,
        }
    }

    fn has_ended(&self) -> bool {
        self.members.is_empty()
    }

    /// Lets it go on.
    fn resume(&mut self) {
        self.waits_for = None;
        for (pid, signal) in std::mem::take(&mut self.held) {
            let _ = ptrace::syscall(pid, signal);
        }
    }

    /// Notes a call that it is about to make, when the other one has made so many.
    fn makes(&mut self, point: &Point, calls_of_other: usize) -> Made {
        let pid = point.pid;
        let last = self.last.entry(pid).or_default();
        let waits_for_own = CHILDREN.contains(&last.call);
        last.note(point);
        if tracer::is_inward(point.number) || OWN.contains(&point.number) {
            return Made::Nothing;
        }
        if PAUSES.contains(&point.number) {
            self.waits_for = last.lock.clone();
            return if waits_for_own {
                Made::Nothing
            } else {
                Made::Pause
            };
        }
        self.calls += 1;
        match point.number {
            // Its first thread is made before it reads its configuration.
            libc::SYS_clone | libc::SYS_clone3 => {
                self.begun_after.get_or_insert(calls_of_other);
            }
            libc::SYS_ftruncate => self.emptied_at = self.calls,
            _ => (),
        }
        Made::Call
    }

    fn ran(&mut self) -> Ran {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut stdout)
            .unwrap();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr)
            .unwrap();
        Ran {
            status: self.status.unwrap(),
            stdout,
            stderr,
        }
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
        let switches = follow(&mut sides, schedule);
        drop(ended);
        let calls = [sides[0].calls, sides[1].calls];
        let begun_after = sides
            .each_ref()
            .map(|side| side.begun_after.unwrap_or(usize::MAX));
        let emptied_at = sides.each_ref().map(|side| side.emptied_at);
        Outcome {
            ran: sides.each_mut().map(Side::ran),
            calls,
            begun_after,
            emptied_at,
            switches,
        }
    })
}

/// Follows both to their ends.
fn follow(sides: &mut [Side; 2], schedule: Schedule) -> Vec<Switch> {
    let mut active = schedule.first;
    let mut until = schedule.until;
    if schedule.first == 1 {
        until.reverse();
    }
    let mut switches = Vec::new();
    // A thread may stop before its maker's stop tells whose it is.
    let mut unknown: HashMap<Pid, Option<Signal>> = HashMap::new();
    loop {
        if sides[active].has_ended() {
            active = 1 - active;
            if sides[active].has_ended() {
                return switches;
            }
            sides[active].resume();
        }
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        let stopped = waitpid(None, Some(flags)).unwrap();
        let pid = stopped.pid().unwrap();
        let Some(side) = sides.iter().position(|side| side.members.contains(&pid)) else {
            let signal = if let WaitStatus::Stopped(_, signal) = stopped {
                Some(signal)
            } else {
                None
            };
            unknown.insert(pid, signal);
            continue;
        };
        let (mut signal, mut why) = (None, None);
        let [one, two] = &mut *sides;
        let (now, other) = if side == 0 { (one, two) } else { (two, one) };
        let is_turn = side == active && !other.has_ended();
        match stopped {
            WaitStatus::Exited(_, code) => {
                now.members.remove(&pid);
                now.status = if pid == now.first {
                    Some(code)
                } else {
                    now.status
                };
                continue;
            }
            WaitStatus::Signaled(_, by, _) => {
                now.members.remove(&pid);
                now.status = if pid == now.first {
                    Some(128 + by as i32)
                } else {
                    now.status
                };
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
                if let Some(point) = tracer::entered(pid) {
                    match now.makes(&point, other.calls) {
                        Made::Pause if is_turn => why = Some(Why::Waited),
                        Made::Call if is_turn => {
                            let is_due = now.calls >= until[active];
                            why = match &other.waits_for {
                                Some(lock) => is_free(lock).then_some(Why::Freed),
                                None => is_due.then_some(Why::Planned),
                            };
                        }
                        _ => (),
                    }
                }
            }
            _ => (),
        }
        if side == active && why.is_none() {
            // It may have been killed meanwhile, with its process.
            let _ = ptrace::syscall(pid, signal);
            continue;
        }
        now.held.push((pid, signal));
        if let Some(why) = why {
            switches.push(Switch {
                from: active,
                call: now.calls,
                why,
            });
            if why == Why::Planned {
                until[active] = usize::MAX;
            }
            active = 1 - active;
            other.resume();
        }
    }
}

/// Whether nobody has this lock.
fn is_free(lock: &Path) -> bool {
    let file = match File::open(lock) {
        Ok(file) => file,
        // A process that waits for it makes a new one.
        Err(_) => return true,
    };
    // It is given back at once, also by a child of a neighbouring test that is just being started.
    Flock::lock(file, FlockArg::LockSharedNonblock).is_ok_and(|lock| lock.unlock().is_ok())
}
