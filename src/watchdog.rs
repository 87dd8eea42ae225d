//! No call of a runtime waits without end. Each wait has a deadline of its own where one can be set; this one is for
//! the rest: a disk behind a network that is gone, a driver that keeps a lock of the kernel, a pipe that nobody reads.
//!
//! A thread sleeps until the call's time is over, then answers in its place and ends the process, as SIGKILL would:
//! what the call had begun is on record. Only a thread that the kernel lets go can be ended (`D` in ps(1) says that it
//! does not): then the answer is out, and the runtime waits for the process until the driver or the disk comes back.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// A runtime writes its configuration before it waits for anything, so it is there at once.
const STDIN_LIMIT: Duration = Duration::from_secs(30);
/// Where node.json says nothing else. Longer than any wait of ours; kubelet gives a pod's start four minutes.
pub const LIMIT: Duration = Duration::from_secs(180);
/// The answer gets this long, if that is what hangs.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Watch {
    limit: Duration,
    /// What began last that may hang.
    step: String,
    /// A process group that must not outlive the call.
    child: Option<Pid>,
    answered_by: Answerer,
    /// Nothing more is begun.
    is_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answerer {
    Nobody,
    Call,
    Watchdog,
}

static WATCH: Mutex<Watch> = Mutex::new(Watch {
    limit: STDIN_LIMIT,
    step: String::new(),
    child: None,
    answered_by: Answerer::Nobody,
    is_over: false,
});
static CHANGED: Condvar = Condvar::new();

fn watch() -> MutexGuard<'static, Watch> {
    // Nothing is half done while it is held.
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches from now on: once the time is over, `answer` is called with what happened (`took longer than …`), and the
/// process ends.
pub fn start(answer: impl FnOnce(String) + Send + 'static) {
    let began = Instant::now();
    let watcher = thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
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
        let why = told(&watch);
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
        while Instant::now() < until && !ended.as_ref().is_ok_and(|ended| is_ours && ended.is_finished()) {
            thread::sleep(Duration::from_millis(10));
        }
        #[expect(clippy::exit, reason = "the thread that should end the process hangs")]
        std::process::exit(1);
    });
    // A call without a watchdog is better than none.
    watcher.map(drop).unwrap_or_else(|error| log::warn!("no thread for the watchdog: {error}"));
}

fn told(watch: &Watch) -> String {
    // Where the kernel keeps the main thread, as root: proc_pid_wchan(5).
    let within = std::fs::read_to_string("/proc/self/wchan").unwrap_or_default();
    let within = Some(within.trim()).filter(|name| !matches!(*name, "" | "0"));
    let within = within.map_or(String::new(), |name| format!(" (the kernel is in {name})"));
    let step = if watch.step.is_empty() { "its work" } else { &watch.step };
    format!("took longer than {:?} and was ended: it hung or was slow at {step}{within}", watch.limit)
}

/// The whole call may take this long. Until this is said, it reads stdin.
pub fn allow(limit: Duration) {
    watch().limit = limit;
    CHANGED.notify_all();
}

/// The rest may take as long as it does: a person reads what is printed.
pub fn end() {
    allow(Duration::MAX);
}

/// What begins now may hang. Does not return when the time is over.
pub fn step(what: impl FnOnce() -> String) {
    let mut watch = watch();
    if watch.is_over {
        never(watch);
    }
    watch.step = what();
}

/// What is done while the result is kept, in the middle of another step; also by who reports the end.
pub fn during(what: &str) -> During {
    let mut watch = watch();
    let before = (!watch.is_over).then(|| std::mem::replace(&mut watch.step, what.to_owned()));
    During { before }
}

/// A step within a step.
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

/// The process ends meanwhile.
fn never(watch: MutexGuard<'_, Watch>) -> ! {
    drop(watch);
    loop {
        thread::park();
    }
}

/// To be called before the answer is given. Does not return when the watchdog has given it.
pub fn answer() {
    let mut watch = watch();
    if watch.answered_by == Answerer::Watchdog {
        never(watch);
    }
    watch.answered_by = Answerer::Call;
}

/// A child of ours, while this is kept.
#[derive(Debug)]
pub struct Child(());

/// The process group ends with the call.
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
