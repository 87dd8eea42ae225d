//! Every system call that may fail, and how: each in turn is made to fail, in each verb and in the
//! commands that change something. Whatever fails, the answer is one of the protocol, and the next
//! calls put everything right.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use nix::errno::Errno::{
    self, EACCES, EAGAIN, EBUSY, EINTR, EINVAL, EIO, EMFILE, EMLINK, ENFILE, ENOBUFS, ENODEV,
    ENOLCK, ENOMEM, ENOSPC, EPERM, EROFS, ETXTBSY, EXDEV,
};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::harness::{Call, Ran, rail, sample, vf_address, with};
use crate::infiniband::message;
use crate::killsweep::Bench;
use crate::store::{self, Store};
use crate::tracer::{self, Fate, Point, WAITING};

/// More calls that do not fail in a running process, or whose failure the program cannot see.
const SURE: [i64; 12] = [
    // The kernel goes on with a call that the tracer has interrupted.
    libc::SYS_restart_syscall,
    libc::SYS_arch_prctl,
    libc::SYS_rt_sigreturn,
    libc::SYS_prctl,
    libc::SYS_sched_yield,
    libc::SYS_getpid,
    libc::SYS_geteuid,
    libc::SYS_close,
    libc::SYS_dup2,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_uname,
];

/// The fate of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It fails.
    Fails(Errno),
    /// It reads or writes a part.
    Halved,
    /// The kernel refuses the netlink request that it sends.
    Refused(Errno),
}

/// The number of a netlink request, and whether it is a question; `None` where the datagram has
/// several.
fn request(sent: &[u8]) -> Option<(u16, bool)> {
    let length = u32::from_ne_bytes(sent.get(..4)?.try_into().ok()?);
    let kind = u16::from_ne_bytes(sent.get(4..6)?.try_into().ok()?);
    let is_one = usize::try_from(length).ok()? == sent.len();
    // rtnetlink numbers its messages NEW, DEL, GET, SET.
    is_one.then_some((kind, kind >= 16 && kind % 4 == 2))
}

/// The realistic faults of a call, by its manual page; `None` for a call without a list.
fn faults(point: &Point) -> Option<Vec<Fault>> {
    let fail = |errnos: &[Errno]| errnos.iter().copied().map(Fault::Fails).collect::<Vec<_>>();
    let [_, _, third] = point.arguments;
    let all = match point.number {
        libc::SYS_openat => {
            let is_change = i32::try_from(third)
                .is_ok_and(|flags| flags & (libc::O_CREAT | libc::O_WRONLY) != 0);
            let mut all = fail(&[EMFILE, ENFILE, ENOMEM, EIO, EACCES, EINTR]);
            if is_change {
                all.extend(fail(&[ENOSPC, EROFS]));
            }
            all
        }
        libc::SYS_open => fail(&[EMFILE, ENFILE, ENOMEM, EIO, EACCES, EINTR]),
        libc::SYS_read | libc::SYS_pread64 => [
            fail(&[EIO, EINTR]),
            vec![Fault::Halved; usize::from(third > 1)],
        ]
        .concat(),
        libc::SYS_write => [
            fail(&[ENOSPC, EIO, EINTR]),
            vec![Fault::Halved; usize::from(third > 1)],
        ]
        .concat(),
        libc::SYS_unlinkat | libc::SYS_unlink => fail(&[EIO, EROFS, EACCES, EBUSY, ENOMEM]),
        libc::SYS_renameat | libc::SYS_rename => fail(&[ENOSPC, EIO, EROFS, EACCES, EBUSY]),
        libc::SYS_renameat2 => fail(&[ENOSPC, EIO, EROFS, EINVAL, EXDEV, EBUSY]),
        libc::SYS_linkat => fail(&[ENOSPC, EIO, EROFS, EMLINK, EPERM]),
        libc::SYS_mkdirat | libc::SYS_mkdir => fail(&[ENOSPC, EIO, EROFS, EACCES]),
        libc::SYS_ftruncate => fail(&[EIO, EINTR]),
        libc::SYS_flock => fail(&[EINTR, ENOLCK, EIO]),
        libc::SYS_syncfs | libc::SYS_fsync | libc::SYS_fdatasync => fail(&[EIO, ENOSPC]),
        libc::SYS_socket => fail(&[EMFILE, ENFILE, ENOBUFS, ENOMEM]),
        libc::SYS_bind | libc::SYS_connect => fail(&[ENOMEM]),
        libc::SYS_setsockopt => fail(&[ENOMEM, ENOBUFS]),
        libc::SYS_sendto => {
            let mut all = fail(&[ENOBUFS, ENOMEM, EINTR]);
            let refused: &[Errno] = match point.sent().as_deref().and_then(request) {
                None => &[],
                Some((_, true)) => &[ENOMEM, ENOBUFS],
                Some((_, false)) => &[EBUSY, ENODEV, EIO, EPERM, ENOMEM],
            };
            all.extend(refused.iter().copied().map(Fault::Refused));
            all
        }
        libc::SYS_recvfrom => fail(&[EINTR, ENOBUFS, ENOMEM, EAGAIN]),
        libc::SYS_setns | libc::SYS_unshare => fail(&[ENOMEM, EPERM]),
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_vfork | libc::SYS_fork => {
            fail(&[EAGAIN, ENOMEM])
        }
        libc::SYS_execve => fail(&[ETXTBSY, EACCES, ENOMEM, EIO]),
        libc::SYS_wait4 | libc::SYS_waitid | libc::SYS_clock_nanosleep => fail(&[EINTR]),
        libc::SYS_poll | libc::SYS_ppoll => fail(&[EINTR, ENOMEM]),
        libc::SYS_futex if waits(point) => fail(&[EINTR]),
        libc::SYS_pipe2 | libc::SYS_socketpair => fail(&[EMFILE, ENFILE]),
        libc::SYS_bpf => fail(&[ENOMEM, EPERM]),
        libc::SYS_getdents64 => fail(&[EIO, ENOMEM]),
        libc::SYS_newfstatat | libc::SYS_statx | libc::SYS_fstat => fail(&[EIO, ENOMEM, EACCES]),
        libc::SYS_fstatfs | libc::SYS_statfs => fail(&[EIO, EINTR]),
        libc::SYS_readlinkat | libc::SYS_readlink => fail(&[EIO, ENOMEM, EACCES]),
        libc::SYS_faccessat | libc::SYS_faccessat2 | libc::SYS_access => {
            fail(&[EIO, EROFS, EACCES])
        }
        libc::SYS_fcntl => fail(&[EMFILE, EINTR]),
        libc::SYS_ioctl => fail(&[ENODEV, EPERM, ENOMEM]),
        libc::SYS_getrandom => fail(&[EINTR]),
        libc::SYS_setpgid => fail(&[EPERM]),
        libc::SYS_seccomp => fail(&[EINVAL, ENOMEM]),
        // A call that wakes: see `waits`.
        libc::SYS_futex => Vec::new(),
        _ => return None,
    };
    Some(all)
}

/// Whether it is a call of futex(2) that waits. A signal interrupts such a one only: a wake-up that
/// is not made is a fault that no kernel has, and whoever waits for it waits for ever.
fn waits(point: &Point) -> bool {
    [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET]
        .iter()
        .any(|operation| u64::try_from(*operation) == Ok(point.arguments[1] & 0x7f))
}

/// The kernel's refusal of the request `sent`.
fn refusal(sent: &[u8], errno: Errno) -> Vec<u8> {
    let sequence = u32::from_ne_bytes(sent[8..12].try_into().unwrap());
    message(
        2,
        sequence,
        &[&(-(errno as i32)).to_ne_bytes()[..], &sent[..16]].concat(),
    )
}

/// The failing call, and its fault: the calls of one number are counted, because those of all
/// differ a little from run to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    number: i64,
    nth: usize,
    fault: Fault,
}

/// The end of a call in which something failed.
struct Faulted {
    ran: Ran,
    /// The fault in words; `None` if the call that was meant never came.
    what: Option<String>,
    /// The process itself had been loaded, and not only what it started: its calls were looked at.
    has_begun: bool,
    /// It was its answer that could not be printed.
    is_mute: bool,
    /// It may have been kept in a pod's namespace: then it ends as if it had been killed.
    may_be_astray: bool,
    /// The counts of reads that have no half.
    unread: HashSet<usize>,
}

/// A call hangs that takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the call of `story` and lets `case` happen in it. `see` gets every call that may fail.
#[expect(
    clippy::zombie_processes,
    reason = "the tracer waits for every process"
)]
fn run<S: Story>(story: &S, case: Option<Case>, mut see: impl FnMut(&Point, usize)) -> Faulted {
    let (call, config) = story.call();
    let mut child = call.under(&WAITING).command().spawn().unwrap();
    // A call that is made to fail early does not read.
    let _ = child
        .stdin
        .take()
        .unwrap()
        .write_all(config.to_string().as_bytes());
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let mut counts: HashMap<i64, usize> = HashMap::new();
    // The loader's calls are not ours. The first call of a Rust program is a poll of its three
    // standard files.
    let mut loading = HashSet::from([pid]);
    let (mut what, mut is_mute, mut may_be_astray) = (None, false, false);
    let mut halved = None;
    let (ended, is_ended) = mpsc::channel::<()>();
    let traced = std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_ended.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = kill(pid, Signal::SIGKILL);
            }
        });
        let traced = tracer::follow_but(&SURE, pid, |point| {
            if point.number == libc::SYS_poll {
                loading.remove(&point.pid);
            }
            if loading.contains(&point.pid) {
                return Fate::Made;
            }
            if S::ENOUGH == Some(point.number) {
                return Fate::Deadly;
            }
            let nth = counts.entry(point.number).or_default();
            *nth += 1;
            see(&point, *nth);
            let is_meant = |case: &Case| (case.number, case.nth) == (point.number, *nth);
            // The thread that waits, and the one that wakes it, differ from run to run.
            let Some(case) = case.filter(|case| {
                is_meant(case) && (point.number != libc::SYS_futex || waits(&point))
            }) else {
                return Fate::Made;
            };
            halved = (case.fault == Fault::Halved).then_some(point.count);
            let file = fs::read_link(format!("/proc/{}/fd/{}", point.pid, point.arguments[0]));
            what = Some(format!("{} {case:?} {file:?}", tracer::comm(point.pid)));
            is_mute = point.number == libc::SYS_write && point.arguments[0] == 1;
            may_be_astray = point.number == libc::SYS_setns;
            match (case.fault, point.sent()) {
                (Fault::Fails(errno), _) => Fate::Fails(errno),
                (Fault::Halved, _) => Fate::Halved,
                (Fault::Refused(errno), Some(sent)) if sent.len() >= 16 => {
                    Fate::Answered(refusal(&sent, errno))
                }
                (Fault::Refused(_), _) => Fate::Made,
            }
        });
        drop(ended);
        traced
    });
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    child
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut stdout)
        .unwrap();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_end(&mut stderr)
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let what = what.filter(|_| halved.is_none_or(|count| !traced.unread.contains(&count)));
    let ran = Ran {
        status: traced.status,
        stdout: text(stdout),
        stderr: text(stderr),
    };
    let has_begun = !loading.contains(&pid);
    Faulted {
        ran,
        what,
        has_begun,
        is_mute,
        may_be_astray,
        unread: traced.unread,
    }
}

/// The trials of one verb or command.
trait Story: Sized {
    /// Exit status of the call without a fault.
    const STATUS: i32 = 0;
    /// Before which call it is killed, because it has shown by then what it does.
    const ENOUGH: Option<i64> = None;
    /// About half as many system calls as there are in it that may fail.
    const LEAST: usize;
    /// Some of them: SYS_* of what it does.
    const KINDS: &[i64];
    /// Builds the environment of the trials; `None` where this machine lacks a part of it.
    fn new(test: &str) -> Option<Self>;
    /// The state before the call.
    fn begin(&self);
    /// The call.
    fn call(&self) -> (Call, Value);
    /// Judges how the call ended in which something failed; afterwards [`Story::begin`] is possible
    /// again.
    fn judge(&self, faulted: &Faulted);
}

/// The answer of a verb is a result, or one error object.
#[track_caller]
fn is_clean(faulted: &Faulted) {
    let Faulted { ran, is_mute, .. } = faulted;
    assert!(!ran.stderr.contains("panicked"), "{ran:?}");
    match ran.status {
        0 => (),
        1 if *is_mute => (),
        1 => {
            let error = ran.json();
            assert!(
                error["code"].as_u64().is_some_and(|code| code > 0),
                "{ran:?}"
            );
            assert!(
                error["msg"].as_str().is_some_and(|msg| !msg.is_empty()),
                "{ran:?}"
            );
            assert!(error["cniVersion"].is_string(), "{ran:?}");
        }
        other => panic!("exit status {other}: {ran:?}"),
    }
}

/// A command ends with 0, or with 1 and a word about why.
#[track_caller]
fn is_told(faulted: &Faulted) {
    let ran = &faulted.ran;
    assert!(!ran.stderr.contains("panicked"), "{ran:?}");
    assert!(ran.status == 0 || ran.status == 1, "{ran:?}");
    assert!(
        ran.status == 0 || faulted.is_mute || !ran.stderr.is_empty() || !ran.stdout.is_empty(),
        "{ran:?}"
    );
}

/// All faults in the call of a story.
fn cases<S: Story>(story: &S) -> Vec<Case> {
    story.begin();
    let (mut all, mut unthought) = (Vec::new(), BTreeSet::new());
    let whole = run(story, None, |point, nth| match faults(point) {
        Some(faults) => {
            let case = |fault| {
                (
                    point.count,
                    Case {
                        number: point.number,
                        nth,
                        fault,
                    },
                )
            };
            all.extend(faults.into_iter().map(case));
        }
        None => drop(unthought.insert(point.number)),
    });
    assert!(
        unthought.is_empty(),
        "what may become of the system calls {unthought:?}? See `faults`"
    );
    assert_eq!(whole.ran.status, S::STATUS, "{:?}", whole.ran);
    assert!(
        whole.has_begun,
        "the process makes no poll: when do its own calls begin?"
    );
    story.judge(&whole);
    all.retain(|(count, case)| case.fault != Fault::Halved || !whole.unread.contains(count));
    all.into_iter().map(|(_, case)| case).collect()
}

/// Tries the faults of a story, on as many hosts at once as there are processors. Without
/// `--nightly`, about `most`.
fn sweep<S: Story>(test: &str, most: usize) {
    let Some(first) = S::new(test) else { return };
    if !crate::trace::is_allowed(test) || !crate::trace::can_fail(test) {
        return;
    }
    // The number of looks at another process differs from run to run, and is larger on a busy
    // machine.
    let mut all = cases(&first);
    for _ in 0..4 {
        let again = cases(&first);
        all.retain(|case| again.contains(case));
    }
    let points = all
        .iter()
        .map(|case| (case.number, case.nth))
        .collect::<BTreeSet<_>>()
        .len();
    // A tracer that sees nothing, or not those who do the work, would find nothing wrong.
    assert!(
        points >= S::LEAST,
        "{test}: {points} system calls that may fail, and not {}",
        S::LEAST
    );
    let kinds: HashSet<i64> = all.iter().map(|case| case.number).collect();
    let unseen: Vec<_> = S::KINDS
        .iter()
        .filter(|number| !kinds.contains(number))
        .collect();
    assert!(
        unseen.is_empty(),
        "{test}: nothing fails of the system calls {unseen:?}, which it makes"
    );
    drop(first);
    let is_nightly = std::env::var("RAIL_TEST_MODE").is_ok_and(|mode| mode == "nightly");
    let only = std::env::var("RAIL_ERRNO_CASE")
        .ok()
        .map(|text| text.parse::<usize>().unwrap());
    let step = if is_nightly {
        1
    } else {
        all.len().div_ceil(most)
    };
    let chosen: Vec<(usize, Case)> = match only {
        Some(only) => vec![(only, all[only])],
        // The target of a path decides which namespace is taken for the pod's: all of these are
        // few.
        None => sample(all.iter().copied().enumerate().filter(|(index, case)| {
            index % step == 0 || [libc::SYS_readlink, libc::SYS_readlinkat].contains(&case.number)
        })),
    };
    let (next, missed, failures) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        Mutex::new(Vec::new()),
    );
    let worker = || {
        let mut story = S::new(test).unwrap();
        while let Some((number, case)) = chosen.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            let mut happened = None;
            let work = AssertUnwindSafe(|| {
                story.begin();
                let faulted = run(&story, Some(case), |_, _| ());
                happened.clone_from(&faulted.what);
                if faulted.what.is_none() {
                    missed.fetch_add(1, Ordering::Relaxed);
                }
                if only.is_some() {
                    println!("{:?}: {:?}", faulted.what, faulted.ran);
                }
                story.judge(&faulted);
            });
            if catch_unwind(work).is_err() {
                failures
                    .lock()
                    .unwrap()
                    .push(format!("case {number}: {case:?}: {happened:?}"));
                story = S::new(test).unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(worker);
        }
    });
    let (missed, failures) = (missed.into_inner(), failures.into_inner().unwrap());
    println!(
        "{test}: {} faults tried of {} in {points} system calls; {missed} more did not come up again",
        chosen.len() - missed,
        all.len(),
    );
    assert!(
        failures.is_empty(),
        "{} of {}:\n{}",
        failures.len(),
        chosen.len(),
        failures.join("\n")
    );
    assert!(
        missed <= 1 + chosen.len() / 50,
        "{missed} of {} did not come up again",
        chosen.len()
    );
}

/// A verb of rail-cni, with rail-ipam, which is a process of its own if `IS_COPY`. Beside the pods
/// of the bench there is a neighbour, another pod with another rail of the same network: whatever
/// fails, it keeps its rail.
struct Verb<const V: char, const IS_COPY: bool = false> {
    bench: Bench,
    neighbour: PathBuf,
    /// The state before an attachment.
    free: Value,
    /// The state before a call that changes nothing, even if nothing fails.
    settled: Value,
}

const ADD: char = 'a';
const DEL: char = 'd';
const CHECK: char = 'c';
const STATUS: char = 's';
const GC: char = 'g';
const REAP: char = 'r';
/// `railctl reap --reattach` of a rail that its pod has lost.
const REATTACH: char = 'l';
/// CHECK of a rail that the pod has changed.
const DIFFERS: char = 'x';
/// STATUS on a node that has no address for the network.
const UNPLANNED: char = 'u';
/// ADD of a device that a living pod has.
const TAKEN: char = 't';

impl<const V: char, const IS_COPY: bool> Verb<V, IS_COPY> {
    /// Whether the call changes nothing, even if nothing fails.
    const LOOKS: bool = matches!(V, CHECK | STATUS | DIFFERS | UNPLANNED | TAKEN);

    /// Of host, pods and folders, of the neighbour, and all records and leases.
    fn state(&self) -> Value {
        let Bench { host, .. } = &self.bench;
        let show = |what| host.ip_in(&self.neighbour, what);
        let files = [host.records(), host.leases()].concat();
        let files: Vec<_> = files
            .iter()
            .map(|file| fs::read_to_string(file).unwrap())
            .collect();
        json!([
            self.bench.state(),
            show("-4 -br addr"),
            show("-4 route show table all"),
            show("rule"),
            files
        ])
    }

    /// The device is on the host, although its pod lives and its record is there: somebody took it
    /// out.
    fn take_out(&self) {
        let Bench { host, pods, .. } = &self.bench;
        let out = crate::harness::Sleeper::new(None);
        host.ip_in(&pods[0], &format!("link set net1 down netns {}", out.pid()));
    }

    /// The record is that of an ADD which was killed at its end.
    fn cut_off(&self) {
        for file in self.bench.host.records() {
            let mut record: Value =
                serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
            if record["owner"]["containerID"] == "c1" {
                let last = record["steps"].as_array_mut().unwrap().last_mut();
                last.unwrap()["state"] = json!("planned");
                fs::write(file, record.to_string()).unwrap();
            }
        }
    }

    fn is_in_pod(&self) -> bool {
        self.bench
            .host
            .ip_in(&self.bench.pods[0], "link")
            .contains("net1")
    }

    fn pending(&self) -> Vec<String> {
        self.bench
            .host
            .pending()
            .iter()
            .map(|file| fs::read_to_string(file).unwrap())
            .collect()
    }

    /// Whether nothing of c1 is left, or what is left is written down as owed, and is not in the
    /// pod.
    fn is_settled(&self) -> bool {
        !self.is_in_pod() && (!self.pending().is_empty() || self.state() == self.free)
    }

    /// Whether c1 has a record beside that of the neighbour.
    fn is_on_record(&self) -> bool {
        self.bench.host.records().len() > 1
    }

    /// The state is this, and nothing is owed.
    #[track_caller]
    fn is(&self, before: &Value, faulted: &Faulted) {
        let now = self.state();
        let lines = [before, &now].map(|state| format!("{state:#}"));
        let of = |one: usize| {
            let is_new = |line: &&str| !lines[1 - one].lines().any(|other| other == *line);
            lines[one]
                .lines()
                .filter(is_new)
                .map(str::trim)
                .collect::<Vec<_>>()
        };
        let debts = self.pending();
        assert!(
            now == *before,
            "{:?}\nbefore: {:#?}\nnow: {:#?}\ndebts: {debts:?}",
            faulted.ran,
            of(0),
            of(1)
        );
    }

    /// Without further faults, everything is put right.
    fn puts_right(&self, faulted: &Faulted) {
        let Bench {
            host, pods, config, ..
        } = &self.bench;
        self.bench.call("DEL", 0).ok();
        assert!(!self.is_in_pod());
        let added = self.bench.call("ADD", 0).ok().json();
        let config = with(config.clone(), json!({ "prevResult": added }));
        host.cni("CHECK", "c1", &pods[0], &config).ok();
        self.bench.call("DEL", 0).ok();
        self.is(&self.free, faulted);
    }

    /// The result of ADD for c1 can be rebuilt, and is equal in each run.
    fn added(&self) -> Value {
        let Bench { pods, config, .. } = &self.bench;
        let ips = json!([
            {"address": "172.16.0.0/31", "gateway": "172.16.0.1", "interface": 0},
            {"address": "fd00:10::/127", "gateway": "fd00:10::1", "interface": 0}]);
        let previous = json!({"cniVersion": "1.1.0", "ips": ips, "interfaces": [
            {"name": "net1", "mac": config["mac"], "sandbox": pods[0], "pciID": vf_address(0)}]});
        with(config.clone(), json!({ "prevResult": previous }))
    }
}

impl<const V: char, const IS_COPY: bool> Story for Verb<V, IS_COPY> {
    const STATUS: i32 = match V {
        DIFFERS | UNPLANNED => 1,
        TAKEN => 128 + Signal::SIGKILL as i32,
        _ => 0,
    };
    // It looks again and again for 3 s, and each time in the same way.
    const ENOUGH: Option<i64> = if V == TAKEN {
        Some(libc::SYS_clock_nanosleep)
    } else {
        None
    };

    const LEAST: usize = match V {
        ADD | GC | REAP | REATTACH => 250,
        DEL => 200,
        CHECK | DIFFERS => 110,
        _ => 40,
    };

    const KINDS: &[i64] = match V {
        _ if IS_COPY => &[libc::SYS_execve, libc::SYS_pipe2, libc::SYS_poll],
        ADD | REATTACH => &[
            libc::SYS_openat,
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_flock,
            libc::SYS_renameat,
            libc::SYS_sendto,
            libc::SYS_recvfrom,
            libc::SYS_setns,
        ],
        DEL | GC | REAP => &[
            libc::SYS_openat,
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_flock,
            libc::SYS_unlinkat,
            libc::SYS_sendto,
            libc::SYS_recvfrom,
            libc::SYS_setns,
        ],
        CHECK | DIFFERS => &[
            libc::SYS_openat,
            libc::SYS_read,
            libc::SYS_sendto,
            libc::SYS_recvfrom,
            libc::SYS_setns,
        ],
        TAKEN => &[
            libc::SYS_openat,
            libc::SYS_read,
            libc::SYS_flock,
            libc::SYS_sendto,
            libc::SYS_recvfrom,
            libc::SYS_setns,
        ],
        _ => &[libc::SYS_openat, libc::SYS_read],
    };

    fn new(test: &str) -> Option<Self> {
        let mut bench = Bench::new(test, false)?;
        bench.config["cni.dev/valid-attachments"] = json!([]);
        if IS_COPY {
            bench.config["ipam"]["type"] = bench.host.copy_rail_ipam().into();
        }
        bench.host.add_rail(1);
        bench.host.make_vf(1, "mlx5_core");
        let neighbour = bench.host.add_netns("neighbour");
        let of_network =
            json!({"name": bench.config["name"], "device": "", "deviceID": vf_address(1)});
        bench
            .host
            .cni("ADD", "neighbour", &neighbour, &with(rail(1), of_network))
            .ok();
        let mut verb = Verb {
            bench,
            neighbour,
            free: Value::Null,
            settled: Value::Null,
        };
        verb.free = verb.state();
        if Self::LOOKS {
            verb.bench.call("ADD", 0).ok();
            let Bench { host, pods, .. } = &verb.bench;
            if V == DIFFERS {
                host.ip_in(&pods[0], "link set net1 mtu 1400");
            }
            // The kernel notes a moment later that the link has come up.
            while host.json(Some(&pods[0]), "link show net1")[0]["operstate"] != "UP" {
                std::thread::yield_now();
            }
            verb.settled = verb.state();
        }
        Some(verb)
    }

    fn begin(&self) {
        if matches!(V, DEL | GC | REAP | REATTACH) {
            self.bench.call("ADD", 0).ok();
        }
        match V {
            GC => {
                self.take_out();
                self.cut_off();
            }
            REAP => self.take_out(),
            REATTACH => {
                self.take_out();
                self.bench.host.ip("link set net1 name vf0");
            }
            _ => (),
        }
    }

    fn call(&self) -> (Call, Value) {
        let Bench {
            host, pods, config, ..
        } = &self.bench;
        let verb = |verb| host.call(verb, "c1", &pods[0]);
        match V {
            ADD => (verb("ADD"), config.clone()),
            DEL => (verb("DEL"), config.clone()),
            GC => (verb("GC"), config.clone()),
            STATUS => (verb("STATUS"), config.clone()),
            UNPLANNED => {
                let ipam = json!({"type": "rail-ipam", "pool": "rail-0,rail-9"});
                (
                    verb("STATUS"),
                    with(config.clone(), json!({ "ipam": ipam })),
                )
            }
            CHECK | DIFFERS => (verb("CHECK"), self.added()),
            TAKEN => (host.call("ADD", "c2", &pods[1]), config.clone()),
            REATTACH => (verb("").args(&["reap", "--reattach"]), Value::Null),
            // Without force it leaves what a living pod lost.
            _ => (verb("").args(&["reap", "--force", "c1"]), Value::Null),
        }
    }

    fn judge(&self, faulted: &Faulted) {
        let (ran, host) = (&faulted.ran, &self.bench.host);
        let is_ok = ran.status == 0;
        match V {
            REAP | REATTACH => is_told(faulted),
            // It was refused, and waits for the end of the other pod.
            TAKEN if ran.status == Self::STATUS => (),
            _ => is_clean(faulted),
        }
        if Self::LOOKS {
            assert!(!is_ok || Self::STATUS == 0, "{ran:?}");
            self.is(&self.settled, faulted);
            if V == TAKEN {
                host.cni("CHECK", "c1", &self.bench.pods[0], &self.added())
                    .ok();
            }
            return;
        }
        match V {
            // The next DEL undoes it.
            ADD if faulted.may_be_astray && self.is_on_record() => {
                assert!(is_ok || ran.json()["code"] == 11, "{ran:?}");
            }
            ADD => {
                assert_eq!(self.is_in_pod(), is_ok, "{ran:?}");
                if is_ok {
                    let printed =
                        with(self.bench.config.clone(), json!({"prevResult": ran.json()}));
                    host.cni("CHECK", "c1", &self.bench.pods[0], &printed).ok();
                } else {
                    self.is(&self.free, faulted);
                }
            }
            DEL if is_ok => assert!(self.is_settled(), "{ran:?}"),
            // A device that cannot be looked at may belong to a pod that lives.
            GC if is_ok => {
                let is_kept = ran.stderr.contains("net1 of container c1");
                assert!(
                    is_kept && self.is_on_record() || self.is_settled(),
                    "{ran:?}"
                );
            }
            REAP if is_ok => self.is(&self.free, faulted),
            REATTACH => assert!(self.is_on_record(), "{ran:?}"),
            _ => assert!(self.is_on_record() || self.is_settled(), "{ran:?}"),
        }
        if V == GC || V == REAP {
            let (call, config) = self.call();
            let again = call.run(&config).ok();
            assert!(self.is_settled(), "{ran:?}, then {again:?}");
        }
        if V == REATTACH {
            let (call, config) = self.call();
            let again = call.run(&config).ok();
            assert!(self.is_in_pod(), "{ran:?}, then {again:?}");
            host.cni("CHECK", "c1", &self.bench.pods[0], &self.added())
                .ok();
        }
        self.puts_right(faulted);
    }
}

/// A command that changes the store or the leases.
struct Command<const C: char> {
    store: Store,
    /// The store, and the leases, where an address is held and nothing may change.
    settled: [Files; 2],
}

const IMPORT: char = 'i';
const PLAN: char = 'p';
const RELEASE: char = 'r';
const LEASE: char = 'l';
const UNLEASE: char = 'u';
/// ADD for a pod when another one has the only address.
const HELD: char = 'h';
/// `import` of another plan while a pod has an address of the present one.
const OUTSIDE: char = 'o';

/// The store's content after plan `number`.
type Files = BTreeMap<String, String>;

impl<const C: char> Command<C> {
    /// Whether c1 has the addresses all the time, so that the call is refused.
    const IS_HELD: bool = matches!(C, HELD | OUTSIDE);

    /// With a held address, nothing else stops the call: a second reason would, when the look at
    /// the first has failed.
    fn network() -> Value {
        let ipam = json!({"type": "rail-ipam", "pool": "rail-0"});
        if Self::IS_HELD {
            with(store::network(), json!({ "ipam": ipam }))
        } else {
            store::network()
        }
    }

    fn of_plan(&self, number: u8) -> Files {
        self.store.import(number, &["--force"]).ok();
        self.store.files()
    }

    /// Leases of all pools, and what is in them.
    fn leases(&self) -> Files {
        let read = |file: &PathBuf| {
            (
                file.display().to_string(),
                fs::read_to_string(file).unwrap(),
            )
        };
        self.store.host.leases().iter().map(read).collect()
    }
}

impl<const C: char> Story for Command<C> {
    const STATUS: i32 = if Self::IS_HELD { 1 } else { 0 };

    const LEAST: usize = match C {
        IMPORT | PLAN => 150,
        OUTSIDE => 90,
        _ => 45,
    };

    const KINDS: &[i64] = match C {
        IMPORT | PLAN => &[
            libc::SYS_openat,
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_flock,
            libc::SYS_mkdirat,
            libc::SYS_renameat,
            libc::SYS_unlinkat,
            libc::SYS_syncfs,
        ],
        RELEASE | UNLEASE => &[
            libc::SYS_openat,
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_flock,
            libc::SYS_unlinkat,
        ],
        LEASE => &[
            libc::SYS_openat,
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_flock,
            libc::SYS_renameat,
        ],
        _ => &[
            libc::SYS_openat,
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_flock,
        ],
    };

    fn new(test: &str) -> Option<Self> {
        let mut command = Command {
            store: Store::new(test)?,
            settled: [Files::new(), Files::new()],
        };
        let Command { store, .. } = &command;
        // The call that is swept is not the first ever: the directories are there.
        store.import(1, &[]).ok();
        store.call("ADD", "c1").run(&Self::network()).ok();
        if Self::IS_HELD {
            command.settled = [store.files(), command.leases()];
        } else {
            store.call("DEL", "c1").run(&Self::network()).ok();
        }
        Some(command)
    }

    fn begin(&self) {
        if Self::IS_HELD {
            return;
        }
        self.store.import(1, &["--force"]).ok();
        if C == RELEASE || C == UNLEASE {
            self.store.call("ADD", "c1").run(&Self::network()).ok();
        }
    }

    fn call(&self) -> (Call, Value) {
        let of_commands = |args: &[&str]| (self.store.call("", "").args(args), Value::Null);
        match C {
            IMPORT | OUTSIDE => (self.store.importer(2, &[]), Value::Null),
            PLAN => {
                let file = self.store.manifests(2).display().to_string();
                let args = [
                    "plan",
                    &file,
                    "--all-nodes",
                    "--allow",
                    "missing-rail",
                    "--prune",
                    "--to",
                    "store",
                ];
                of_commands(&args)
            }
            RELEASE => of_commands(&["release", "--container", "c1", "--force"]),
            LEASE => (self.store.call("ADD", "c1"), Self::network()),
            HELD => (self.store.call("ADD", "c2"), Self::network()),
            _ => (self.store.call("DEL", "c1"), Self::network()),
        }
    }

    fn judge(&self, faulted: &Faulted) {
        let is_ok = faulted.ran.status == 0;
        if matches!(C, LEASE | UNLEASE | HELD) {
            is_clean(faulted)
        } else {
            is_told(faulted)
        }
        if Self::IS_HELD {
            assert!(!is_ok, "{:?}", faulted.ran);
            assert_eq!(
                [self.store.files(), self.leases()],
                self.settled,
                "{:?}",
                faulted.ran
            );
            return;
        }
        match C {
            IMPORT | PLAN => {
                let now = self.store.files();
                let (old, new) = (self.of_plan(1), self.of_plan(2));
                for node in ["node-1", "node-2", "node-3", "node-4"] {
                    let is = |files| store::of(&now, node) == store::of(files, node);
                    assert!(
                        is(&new) || (is(&old) && !is_ok),
                        "{node}: {now:?}: {:?}",
                        faulted.ran
                    );
                }
                self.of_plan(1);
            }
            LEASE => {
                // Of both pools or of none.
                assert_eq!(
                    self.store.host.leases().len(),
                    if is_ok { 2 } else { 0 },
                    "{:?}",
                    faulted.ran
                );
                self.store.call("DEL", "c1").run(&Self::network()).ok();
            }
            _ => {
                assert!(
                    self.store.host.leases().is_empty() || !is_ok,
                    "{:?}",
                    faulted.ran
                );
                let (call, config) = self.call();
                let again = call.run(&config);
                assert!(again.status == 0 || C == RELEASE, "{again:?}");
            }
        }
        assert!(
            self.store.host.leases().is_empty(),
            "{:?}",
            self.store.host.leases()
        );
        self.store.call("ADD", "c2").run(&Self::network()).ok();
        self.store.call("DEL", "c2").run(&Self::network()).ok();
        assert!(
            self.store.host.leases().is_empty(),
            "{:?}",
            self.store.host.leases()
        );
    }
}

#[test]
fn an_add_in_which_any_call_fails_is_undone() {
    sweep::<Verb<ADD>>("errno::add", 110);
    sweep::<Verb<ADD, true>>("errno::add_by_process", 40);
}

#[test]
fn an_add_in_which_any_call_fails_takes_no_device_of_a_living_pod() {
    sweep::<Verb<TAKEN>>("errno::taken", 50);
}

#[test]
fn a_del_in_which_any_call_fails_is_put_right_by_the_next() {
    sweep::<Verb<DEL>>("errno::del", 90);
    sweep::<Verb<DEL, true>>("errno::del_by_process", 30);
}

#[test]
fn a_check_or_status_in_which_any_call_fails_changes_nothing() {
    sweep::<Verb<CHECK>>("errno::check", 30);
    sweep::<Verb<STATUS>>("errno::status", 25);
}

#[test]
fn a_check_or_status_in_which_any_call_fails_hides_no_fault() {
    sweep::<Verb<DIFFERS>>("errno::differs", 30);
    sweep::<Verb<UNPLANNED>>("errno::unplanned", 15);
}

#[test]
fn a_gc_or_reap_in_which_any_call_fails_is_put_right_by_the_next() {
    sweep::<Verb<GC>>("errno::gc", 60);
    sweep::<Verb<REAP>>("errno::reap", 60);
}

#[test]
fn a_reattachment_in_which_any_call_fails_is_completed_by_the_next() {
    sweep::<Verb<REATTACH>>("errno::reattach", 90);
}

#[test]
fn a_plan_that_any_failing_call_stops_is_written_whole_or_not_at_all() {
    sweep::<Command<IMPORT>>("errno::import", 40);
    sweep::<Command<PLAN>>("errno::plan", 40);
}

#[test]
fn a_lease_that_any_failing_call_stops_is_taken_and_released_whole() {
    sweep::<Command<LEASE>>("errno::lease", 50);
    sweep::<Command<UNLEASE>>("errno::unlease", 40);
    sweep::<Command<RELEASE>>("errno::release", 40);
}

#[test]
fn no_failing_call_makes_an_address_free_that_a_living_pod_has() {
    sweep::<Command<HELD>>("errno::held", 125);
    sweep::<Command<OUTSIDE>>("errno::outside", 40);
}
