//! Ends a call that hangs, so that no runtime waits without end. Where a wait can have a deadline
//! of its own, it has one; the watchdog is for all other waits: a disk on a server that is gone, a
//! driver that holds a lock of the kernel, a pipe without a reader.
//!
//! A thread sleeps until the time of the call is over. Then it answers in place of the call and
//! ends the process as SIGKILL would: everything that the call had begun is on record. A thread in
//! uninterruptible sleep (`D` in ps(1)) cannot be ended: the answer is printed, but the process
//! remains, and the runtime waits for it, until the driver or the disk responds.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Time to read the configuration from stdin. A runtime writes it before it waits for anything.
const STDIN_LIMIT: Duration = Duration::from_secs(30);
/// Time for a whole call where node.json does not set `callTimeout`. It is longer than every wait
/// with a deadline of its own; kubelet gives a pod's start four minutes.
pub const LIMIT: Duration = Duration::from_secs(180);
/// One wait or search does not take longer, however long the call may take.
const MOST_FOR_A_PART: Duration = Duration::from_secs(30);
/// Time to print the answer, which may hang as well.
const LAST_WORDS: Duration = Duration::from_secs(1);

struct Watch {
    /// Is there a watchdog? Not in a command that a person typed.
    is_there: bool,
    limit: Duration,
    /// Why the call ends at once.
    why: Option<String>,
    /// The last step that began and that may hang.
    step: String,
    /// A process group that must not outlive the call.
    child: Option<Pid>,
    answered_by: Answerer,
    /// The time is over: no new step begins.
    is_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answerer {
    Nobody,
    Call,
    Watchdog,
}

static WATCH: Mutex<Watch> = Mutex::new(Watch {
    is_there: false,
    limit: STDIN_LIMIT,
    why: None,
    step: String::new(),
    child: None,
    answered_by: Answerer::Nobody,
    is_over: false,
});
static CHANGED: Condvar = Condvar::new();

fn watch() -> MutexGuard<'static, Watch> {
    // No holder of the lock leaves the data half changed, so a panic in one does no harm.
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the watchdog. On timeout, it calls `answer` with a text that says what happened (`took
/// longer than …`), and ends the process.
pub fn start(answer: impl FnOnce(String) + Send + 'static) {
    let began = Instant::now();
    let watcher = thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(move || {
            let mut watch = watch();
            loop {
                let left = watch.limit.saturating_sub(began.elapsed());
                if left.is_zero() {
                    break;
                }
                let waited = CHANGED.wait_timeout(watch, left);
                watch = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            watch.is_over = true;
            let why = reason(&watch);
            if let Some(group) = watch.child {
                let _ = killpg(group, Signal::SIGKILL);
            }
            let is_ours = watch.answered_by == Answerer::Nobody;
            if is_ours {
                watch.answered_by = Answerer::Watchdog;
            }
            drop(watch);
            let ended = thread::Builder::new().spawn(move || {
                if is_ours {
                    answer(why)
                }
            });
            let until = Instant::now() + LAST_WORDS;
            while Instant::now() < until
                && !ended
                    .as_ref()
                    .is_ok_and(|ended| is_ours && ended.is_finished())
            {
                thread::sleep(Duration::from_millis(10));
            }
            #[expect(clippy::exit, reason = "the thread that should end the process hangs")]
            std::process::exit(1);
        });
    watch().is_there = watcher.is_ok();
    // A call without a watchdog is better than no call.
    watcher.map(drop).unwrap_or_else(|error| {
        log::warn!("cannot start the watchdog thread, so this call has no time limit: {error}")
    });
}

fn reason(watch: &Watch) -> String {
    if let Some(why) = &watch.why {
        return why.clone();
    }
    // The function of the kernel in which the main thread waits; only root can read it:
    // proc_pid_wchan(5).
    let within = std::fs::read_to_string("/proc/self/wchan").unwrap_or_default();
    let within = Some(within.trim()).filter(|name| !matches!(*name, "" | "0"));
    let within = within.map_or(String::new(), |name| format!(" (the kernel is in {name})"));
    let step = if watch.step.is_empty() {
        "its work"
    } else {
        &watch.step
    };
    format!(
        "took longer than {:?} and was ended: it hung or was slow at {step}{within}",
        watch.limit
    )
}

/// Sets the time limit of the whole call. Before this call, the limit is the time for reading
/// stdin.
pub fn allow(limit: Duration) {
    watch().limit = limit;
    CHANGED.notify_all();
}

/// Ends the process now: nothing that it did next would be right. What it had begun is on record.
pub fn give_up(why: String) -> ! {
    let mut watch = watch();
    if watch.is_there {
        (watch.why, watch.limit) = (Some(why), Duration::ZERO);
        CHANGED.notify_all();
        never(watch);
    }
    log::error!("{why}");
    #[expect(clippy::exit, reason = "no caller could go on")]
    std::process::exit(1);
}

/// A part of the time limit of the whole call, for one wait or search within it: at most 30
/// seconds.
pub fn part(of: u32) -> Duration {
    (watch().limit / of).min(MOST_FOR_A_PART)
}

/// Removes the time limit: a person reads what is printed from now on.
pub fn end() {
    allow(Duration::MAX);
}

/// Names the step that begins now and may hang. Does not return after the timeout.
pub fn step(what: impl FnOnce() -> String) {
    let mut watch = watch();
    if watch.is_over {
        never(watch);
    }
    watch.step = what();
}

/// Names a step within another step, until the returned value is dropped. Unlike [`step`], it
/// always returns, so that the code that reports the end can use it.
pub fn during(what: &str) -> During {
    let mut watch = watch();
    let before = (!watch.is_over).then(|| std::mem::replace(&mut watch.step, what.to_owned()));
    During { before }
}

/// A step within a step; dropping it names the outer step again.
#[derive(Debug)]
pub struct During {
    before: Option<String>,
}

impl Drop for During {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            watch().step = before;
        }
    }
}

/// Waits for the end of the process, which another thread brings about.
fn never(watch: MutexGuard<'_, Watch>) -> ! {
    drop(watch);
    loop {
        thread::park();
    }
}

/// Must be called before the answer is printed. Does not return when the watchdog has answered
/// already.
pub fn answer() {
    let mut watch = watch();
    if watch.answered_by == Answerer::Watchdog {
        never(watch);
    }
    watch.answered_by = Answerer::Call;
}

/// A child process that the watchdog kills with the call, until this value is dropped.
#[derive(Debug)]
pub struct Child(());

/// Makes the watchdog kill the process group `group` on timeout.
pub fn child(group: Pid) -> Child {
    let mut watch = watch();
    if watch.is_over {
        let _ = killpg(group, Signal::SIGKILL);
        never(watch);
    }
    watch.child = Some(group);
    Child(())
}

impl Drop for Child {
    fn drop(&mut self) {
        watch().child = None;
    }
}
