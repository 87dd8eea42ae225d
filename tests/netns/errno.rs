//! Every system call that may fail, and how: each in turn is made to fail, in each verb and in the commands that
//! change something. Whatever fails, the answer is one of the protocol, and the next calls put everything right.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use nix::errno::Errno::{
    self, EACCES, EAGAIN, EBUSY, EINTR, EINVAL, EIO, EMFILE, EMLINK, ENFILE, ENOBUFS, ENODEV, ENOLCK, ENOMEM,
    ENOSPC, EPERM, EROFS, ETXTBSY, EXDEV,
};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::harness::{Call, Ran, sample, vf_address, with};
use crate::infiniband::message;
use crate::killsweep::Bench;
use crate::store::{self, Store};
use crate::tracer::{self, Fate, Point, WAITING};

/// More calls that do not fail in a running process, or whose failure the program cannot see.
const SURE: [i64; 10] = [
    libc::SYS_arch_prctl,
    libc::SYS_rt_sigreturn,
    libc::SYS_prctl,
    libc::SYS_sched_yield,
    libc::SYS_getpid,
    libc::SYS_close,
    libc::SYS_dup2,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_uname,
];

/// What becomes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It fails.
    Fails(Errno),
    /// It reads or writes a part.
    Halved,
    /// The kernel refuses the netlink request that it sends.
    Refused(Errno),
}

/// The number of a netlink request, and whether it is a question; `None` where the datagram has several.
fn request(sent: &[u8]) -> Option<(u16, bool)> {
    let length = u32::from_ne_bytes(sent.get(..4)?.try_into().ok()?);
    let kind = u16::from_ne_bytes(sent.get(4..6)?.try_into().ok()?);
    let is_one = usize::try_from(length).ok()? == sent.len();
    // rtnetlink numbers its messages NEW, DEL, GET, SET.
    is_one.then_some((kind, kind >= 16 && kind % 4 == 2))
}

/// What may realistically become of a call, by the manual page of the call.
fn faults(point: &Point) -> Vec<Fault> {
    let fail = |errnos: &[Errno]| errnos.iter().copied().map(Fault::Fails).collect::<Vec<_>>();
    let [first, _, third] = point.arguments;
    match point.number {
        libc::SYS_openat => {
            let is_change =
                i32::try_from(third).is_ok_and(|flags| flags & (libc::O_CREAT | libc::O_WRONLY) != 0);
            let mut all = fail(&[EMFILE, ENFILE, ENOMEM, EIO, EACCES, EINTR]);
            if is_change {
                all.extend(fail(&[ENOSPC, EROFS]));
            }
            all
        }
        libc::SYS_open => fail(&[EMFILE, ENFILE, ENOMEM, EIO, EACCES, EINTR]),
        libc::SYS_read | libc::SYS_pread64 => {
            [fail(&[EIO, EINTR]), vec![Fault::Halved; usize::from(third > 1)]].concat()
        }
        libc::SYS_write => {
            [fail(&[ENOSPC, EIO, EINTR]), vec![Fault::Halved; usize::from(third > 1)]].concat()
        }
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
        libc::SYS_sendto if first != 1 => {
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
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_vfork | libc::SYS_fork => fail(&[EAGAIN, ENOMEM]),
        libc::SYS_execve => fail(&[ETXTBSY, EACCES, ENOMEM, EIO]),
        libc::SYS_wait4 | libc::SYS_waitid | libc::SYS_clock_nanosleep => fail(&[EINTR]),
        libc::SYS_poll | libc::SYS_ppoll => fail(&[EINTR, ENOMEM]),
        libc::SYS_futex if waits(point) => fail(&[EINTR]),
        libc::SYS_pipe2 | libc::SYS_socketpair => fail(&[EMFILE, ENFILE]),
        libc::SYS_getdents64 => fail(&[EIO, ENOMEM]),
        libc::SYS_newfstatat | libc::SYS_statx | libc::SYS_fstat => fail(&[EIO, ENOMEM, EACCES]),
        libc::SYS_fstatfs | libc::SYS_statfs => fail(&[EIO, EINTR]),
        libc::SYS_readlinkat | libc::SYS_readlink => fail(&[EIO, ENOMEM, EACCES]),
        libc::SYS_faccessat | libc::SYS_faccessat2 | libc::SYS_access => fail(&[EIO, EROFS, EACCES]),
        libc::SYS_fcntl => fail(&[EMFILE, EINTR]),
        libc::SYS_ioctl => fail(&[ENODEV, EPERM, ENOMEM]),
        libc::SYS_getrandom => fail(&[EINTR]),
        _ => Vec::new(),
    }
}

/// Whether it is a call of futex(2) that waits. A signal interrupts such a one only: a wake-up that is not made is a fault
/// that no kernel has, and whoever waits for it waits for ever.
fn waits(point: &Point) -> bool {
    [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET]
        .iter()
        .any(|operation| u64::try_from(*operation) == Ok(point.arguments[1] & 0x7f))
}

/// The kernel's refusal of the request `sent`.
fn refusal(sent: &[u8], errno: Errno) -> Vec<u8> {
    let sequence = u32::from_ne_bytes(sent[8..12].try_into().unwrap());
    message(2, sequence, &[&(-(errno as i32)).to_ne_bytes()[..], &sent[..16]].concat())
}

/// Which call fails, and how: the calls of one number are counted, because those of all differ a little from run to run.
#[derive(Clone, Copy, Debug)]
struct Case {
    number: i64,
    nth: usize,
    fault: Fault,
}

/// How a call ended in which something failed.
struct Faulted {
    ran: Ran,
    /// What failed, in words; `None` if the call that was meant never came.
    what: Option<String>,
    /// It was its answer that could not be printed.
    is_mute: bool,
    points: usize,
}

/// A call hangs that takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs `call` and lets `case` happen in it. `see` gets every call that may fail.
#[expect(clippy::zombie_processes, reason = "the tracer waits for every process")]
fn run(call: &Call, config: &Value, case: Option<Case>, mut see: impl FnMut(&Point, usize)) -> Faulted {
    let mut child = call.clone().under(&WAITING).command().spawn().unwrap();
    // One that is made to fail early does not read.
    let _ = child.stdin.take().unwrap().write_all(config.to_string().as_bytes());
    let pid = Pid::from_raw(child.id().cast_signed());
    let mut counts: HashMap<i64, usize> = HashMap::new();
    // The loader's calls are not ours. The first call of a Rust program is a poll of its three standard files.
    let mut loading = HashSet::from([pid]);
    let (mut what, mut is_mute) = (None, false);
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
            let nth = counts.entry(point.number).or_default();
            *nth += 1;
            see(&point, *nth);
            let is_meant = |case: &Case| (case.number, case.nth) == (point.number, *nth);
            // Which thread waits, and which one wakes it, is not the same in each run.
            let Some(case) =
                case.filter(|case| is_meant(case) && (point.number != libc::SYS_futex || waits(&point)))
            else {
                return Fate::Made;
            };
            let file = fs::read_link(format!("/proc/{}/fd/{}", point.pid, point.arguments[0]));
            what = Some(format!("{} {case:?} {file:?}", tracer::comm(point.pid)));
            is_mute = point.number == libc::SYS_write && point.arguments[0] == 1;
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
    child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    child.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let ran = Ran { status: traced.status, stdout: text(stdout), stderr: text(stderr) };
    Faulted { ran, what, is_mute, points: traced.calls }
}

/// What is tried of one verb or command.
trait Story: Sized {
    /// Everything that it needs; `None` where this machine has not got it.
    fn new(test: &str) -> Option<Self>;
    /// What there is before the call.
    fn begin(&self);
    /// The call.
    fn call(&self) -> (Call, Value);
    /// Judges how the call ended in which something failed; afterwards all is as it was before [`Story::begin`].
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
            assert!(error["code"].as_u64().is_some_and(|code| code > 0), "{ran:?}");
            assert!(error["msg"].as_str().is_some_and(|msg| !msg.is_empty()), "{ran:?}");
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

/// Tries the faults of a story, on as many hosts at once as there are processors. Without `--full`, about `most`.
fn sweep<S: Story>(test: &str, most: usize) {
    let Some(first) = S::new(test) else { return };
    if !crate::trace::is_allowed(test) || !crate::trace::can_fail(test) {
        return;
    }
    first.begin();
    let (call, config) = first.call();
    let mut all = Vec::new();
    let whole = run(&call, &config, None, |point, nth| {
        all.extend(faults(point).into_iter().map(|fault| Case { number: point.number, nth, fault }));
    });
    assert_eq!(whole.ran.status, 0, "{:?}", whole.ran);
    first.judge(&whole);
    drop(first);
    let is_full = std::env::var("RAIL_TEST_MODE").is_ok_and(|mode| mode == "full");
    let only = std::env::var("RAIL_ERRNO_CASE").ok().map(|text| text.parse::<usize>().unwrap());
    let step = if is_full { 1 } else { all.len().div_ceil(most) };
    let cases: Vec<(usize, Case)> = match only {
        Some(only) => vec![(only, all[only])],
        // What a path leads to decides what is taken for the pod's: all of these are few.
        None => sample(all.iter().copied().enumerate().filter(|(index, case)| {
            index.is_multiple_of(step) || [libc::SYS_readlink, libc::SYS_readlinkat].contains(&case.number)
        })),
    };
    let (next, missed, failures) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || {
        let mut story = S::new(test).unwrap();
        while let Some((number, case)) = cases.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            let mut happened = None;
            let work = AssertUnwindSafe(|| {
                story.begin();
                let (call, config) = story.call();
                let faulted = run(&call, &config, Some(case), |_, _| ());
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
                failures.lock().unwrap().push(format!("case {number}: {case:?}: {happened:?}"));
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
        "{test}: {} faults tried of {} in {} system calls; {missed} of them did not come up again",
        cases.len(),
        all.len(),
        whole.points
    );
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

/// A verb of rail-cni, with rail-ipam.
struct Verb<const V: char>(Bench);

const ADD: char = 'a';
const DEL: char = 'd';
const CHECK: char = 'c';
const STATUS: char = 's';
const GC: char = 'g';
const REAP: char = 'r';

impl<const V: char> Verb<V> {
    /// The device is on the host, although its pod lives and its record is there: somebody took it out.
    fn take_out(&self) {
        let Bench { host, pods, .. } = &self.0;
        let out = crate::harness::Sleeper::new(None);
        host.ip_in(&pods[0], &format!("link set net1 down netns {}", out.pid()));
    }

    fn is_in_pod(&self) -> bool {
        self.0.host.ip_in(&self.0.pods[0], "link").contains("net1")
    }

    /// Nothing fails any more: everything is put right.
    fn puts_right(&self) {
        let Bench { host, pods, before, .. } = &self.0;
        self.0.call("DEL", 0).ok();
        assert!(!self.is_in_pod());
        let added = self.0.call("ADD", 0).ok().json();
        let config = with(self.0.config.clone(), json!({ "prevResult": added }));
        host.cni("CHECK", "c1", &pods[0], &config).ok();
        self.0.call("DEL", 0).ok();
        let debts: Vec<_> = host.debts().iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        assert_eq!(self.0.state(), *before, "{debts:?}");
    }
}

impl<const V: char> Story for Verb<V> {
    fn new(test: &str) -> Option<Self> {
        let mut bench = Bench::new(test, false)?;
        bench.config["cni.dev/valid-attachments"] = json!([]);
        Some(Verb(bench))
    }

    fn begin(&self) {
        if V == ADD {
            return;
        }
        self.0.call("ADD", 0).ok();
        if V == GC || V == REAP {
            self.take_out();
        }
    }

    fn call(&self) -> (Call, Value) {
        let Bench { host, pods, config, .. } = &self.0;
        let verb = |verb| host.call(verb, "c1", &pods[0]);
        match V {
            ADD => (verb("ADD"), config.clone()),
            DEL => (verb("DEL"), config.clone()),
            GC => (verb("GC"), config.clone()),
            STATUS => (verb("STATUS"), config.clone()),
            CHECK => {
                // What ADD printed can be rebuilt, and is the same in each run.
                let mac = config["mac"].clone();
                let ips = json!([
                    {"address": "172.16.0.0/31", "gateway": "172.16.0.1", "interface": 0},
                    {"address": "fd00:10::/127", "gateway": "fd00:10::1", "interface": 0}]);
                let previous = json!({"cniVersion": "1.1.0", "ips": ips,
                    "interfaces": [{"name": "net1", "mac": mac, "sandbox": pods[0], "pciID": vf_address(0)}]});
                (verb("CHECK"), with(config.clone(), json!({ "prevResult": previous })))
            }
            _ => (verb("").args(&["reap"]), Value::Null),
        }
    }

    fn judge(&self, faulted: &Faulted) {
        if V == REAP {
            is_told(faulted)
        } else {
            is_clean(faulted)
        }
        let (is_ok, host) = (faulted.ran.status == 0, &self.0.host);
        match V {
            ADD => {
                assert_eq!(self.is_in_pod(), is_ok || self.0.host.records().len() == 1, "{:?}", faulted.ran);
                if is_ok {
                    let printed = with(self.0.config.clone(), json!({"prevResult": faulted.ran.json()}));
                    host.cni("CHECK", "c1", &self.0.pods[0], &printed).ok();
                }
            }
            DEL if is_ok => assert!(!self.is_in_pod(), "{:?}", faulted.ran),
            CHECK | STATUS => assert!(self.is_in_pod()),
            REAP if is_ok => assert_eq!(self.0.state(), self.0.before, "{:?}", faulted.ran),
            _ => (),
        }
        if V == GC || V == REAP {
            let (call, config) = self.call();
            call.run(&config).ok();
        }
        self.puts_right();
    }
}

/// A command that changes the store or the leases.
struct Command<const C: char>(Store);

const IMPORT: char = 'i';
const PLAN: char = 'p';
const RELEASE: char = 'r';
const LEASE: char = 'l';
const UNLEASE: char = 'u';

/// What is in the store after plan `number`.
type Files = BTreeMap<String, String>;

impl<const C: char> Command<C> {
    fn of_plan(&self, number: u8) -> Files {
        self.0.import(number, &["--force"]).ok();
        self.0.files()
    }
}

impl<const C: char> Story for Command<C> {
    fn new(test: &str) -> Option<Self> {
        let command = Command(Store::new(test)?);
        // The call that is swept is not the first ever: the directories are there.
        command.0.import(1, &[]).ok();
        command.0.call("ADD", "c1").run(&store::network()).ok();
        command.0.call("DEL", "c1").run(&store::network()).ok();
        Some(command)
    }

    fn begin(&self) {
        self.0.import(1, &["--force"]).ok();
        if C == RELEASE || C == UNLEASE {
            self.0.call("ADD", "c1").run(&store::network()).ok();
        }
    }

    fn call(&self) -> (Call, Value) {
        let of_commands = |args: &[&str]| (self.0.call("", "").args(args), Value::Null);
        match C {
            IMPORT => (self.0.importer(2, &[]), Value::Null),
            PLAN => {
                let file = self.0.manifests(2).display().to_string();
                let args =
                    ["plan", &file, "--all-nodes", "--allow", "missing-rail", "--prune", "--to", "store"];
                of_commands(&args)
            }
            RELEASE => of_commands(&["release", "--container", "c1", "--force"]),
            LEASE => (self.0.call("ADD", "c1"), store::network()),
            _ => (self.0.call("DEL", "c1"), store::network()),
        }
    }

    fn judge(&self, faulted: &Faulted) {
        let is_ok = faulted.ran.status == 0;
        if C == LEASE || C == UNLEASE {
            is_clean(faulted)
        } else {
            is_told(faulted)
        }
        match C {
            IMPORT | PLAN => {
                let now = self.0.files();
                let (old, new) = (self.of_plan(1), self.of_plan(2));
                for node in ["node-1", "node-2", "node-3", "node-4"] {
                    let is = |files| store::of(&now, node) == store::of(files, node);
                    assert!(is(&new) || (is(&old) && !is_ok), "{node}: {now:?}: {:?}", faulted.ran);
                }
                self.of_plan(1);
            }
            LEASE => {
                // Of both pools or of none.
                assert_eq!(self.0.host.leases().len(), if is_ok { 2 } else { 0 }, "{:?}", faulted.ran);
                self.0.call("DEL", "c1").run(&store::network()).ok();
            }
            _ => {
                assert!(self.0.host.leases().is_empty() || !is_ok, "{:?}", faulted.ran);
                let (call, config) = self.call();
                let again = call.run(&config);
                assert!(again.status == 0 || C == RELEASE, "{again:?}");
            }
        }
        assert!(self.0.host.leases().is_empty(), "{:?}", self.0.host.leases());
        self.0.call("ADD", "c2").run(&store::network()).ok();
        self.0.call("DEL", "c2").run(&store::network()).ok();
        assert!(self.0.host.leases().is_empty(), "{:?}", self.0.host.leases());
    }
}

#[test]
fn an_add_in_which_any_call_fails_is_undone() {
    sweep::<Verb<ADD>>("errno::add", 130);
}

#[test]
fn a_del_in_which_any_call_fails_is_put_right_by_the_next() {
    sweep::<Verb<DEL>>("errno::del", 110);
}

#[test]
fn a_check_or_status_in_which_any_call_fails_changes_nothing() {
    sweep::<Verb<CHECK>>("errno::check", 50);
    sweep::<Verb<STATUS>>("errno::status", 30);
}

#[test]
fn a_gc_or_reap_in_which_any_call_fails_is_put_right_by_the_next() {
    sweep::<Verb<GC>>("errno::gc", 70);
    sweep::<Verb<REAP>>("errno::reap", 70);
}

#[test]
fn a_plan_that_any_failing_call_stops_is_written_whole_or_not_at_all() {
    sweep::<Command<IMPORT>>("errno::import", 60);
    sweep::<Command<PLAN>>("errno::plan", 60);
}

#[test]
fn a_lease_that_any_failing_call_stops_is_taken_and_released_whole() {
    sweep::<Command<LEASE>>("errno::lease", 60);
    sweep::<Command<UNLEASE>>("errno::unlease", 60);
    sweep::<Command<RELEASE>>("errno::release", 60);
}
