//! Faults of a node: IPAM plugins that misbehave, a full or read-only /run, damaged files, locks
//! that are held, calls that overlap, devices and names that vanish. Items are those of the CNI
//! contract.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::harness::{self, Call, Host, Ran, rail, skip, vf_address, with};
use crate::programs::RAIL_IPAM;
use crate::trace;

/// A host with one rail, a pod for c1 and one for c2, and what there was before the first call.
struct Rig {
    host: Host,
    pods: [PathBuf; 2],
    config: Value,
    before: Value,
}

/// The output of a stand-in for an IPAM.
const LEASE: &str =
    r#"echo '{"cniVersion":"1.0.0","ips":[{"address":"172.16.0.0/31","gateway":"172.16.0.1"}]}'"#;

impl Rig {
    fn new(test: &str) -> Option<Rig> {
        let host = Host::new(&format!("failures::{test}"))?;
        host.add_rail(0);
        host.ip("link property add dev vf0 altname enp1s0v0");
        let pods = [host.add_netns("c1"), host.add_netns("c2")];
        let before = host.snapshot();
        Some(Rig {
            host,
            pods,
            config: rail(0),
            before,
        })
    }

    /// With a stand-in as IPAM that runs `add` for ADD and `del` for DEL, and writes down each
    /// call.
    fn with_ipam(test: &str, add: &str, del: &str) -> Option<Rig> {
        let mut rig = Rig::new(test)?;
        rig.set_ipam(add, del);
        rig.config["ipam"] = json!({"type": "stand-in"});
        Some(rig)
    }

    fn set_ipam(&self, add: &str, del: &str) {
        let calls = self.host.path("calls");
        let here = self.host.path("").display().to_string();
        let script = format!(
            "cd {here}\necho $CNI_COMMAND >>{calls}\ncase $CNI_COMMAND in\nADD) {add};;\nDEL) {del};;\nesac",
            calls = calls.display()
        );
        self.host.add_plugin("stand-in", &script);
    }

    /// The calls of the stand-in.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.host.path("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn call(&self, verb: &str, pod: usize) -> Call {
        self.host.call(verb, ["c1", "c2"][pod], &self.pods[pod])
    }

    fn run(&self, verb: &str, pod: usize) -> Ran {
        self.call(verb, pod).run(&self.config)
    }

    fn add(&self) -> Ran {
        self.run("ADD", 0)
    }

    fn del(&self) -> Ran {
        self.run("DEL", 0)
    }

    /// Starts a call that is to hang.
    fn start(&self, verb: &str, pod: usize) -> Child {
        use std::io::Write as _;
        let mut child = self.call(verb, pod).command().spawn().unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(self.config.to_string().as_bytes())
            .unwrap();
        child
    }

    fn links(&self, pod: usize) -> Vec<String> {
        let links = self.host.json(Some(&self.pods[pod]), "link");
        links
            .as_array()
            .unwrap()
            .iter()
            .map(|link| link["ifname"].as_str().unwrap().to_owned())
            .collect()
    }

    #[track_caller]
    fn is_as_before(&self) {
        assert_eq!(self.host.snapshot(), self.before);
        for pod in [0, 1] {
            assert_eq!(self.links(pod), ["lo"], "pod c{}", pod + 1);
            assert!(!self.host.ip_in(&self.pods[pod], "rule").contains("172.16."));
        }
    }

    /// A failed ADD has undone everything, and the node works as before.
    #[track_caller]
    fn is_usable(&mut self) {
        self.is_as_before();
        self.config = rail(0);
        self.add().ok();
        self.del().ok();
        self.is_as_before();
    }

    fn reap(&self) -> Ran {
        self.reap_with(&[])
    }

    fn reap_with(&self, args: &[&str]) -> Ran {
        let mut command = Command::new(harness::railctl());
        command
            .arg("reap")
            .args(args)
            .env("RAIL_CNI_NODE_CONFIG", self.host.path("node.json"));
        command.output().unwrap().into()
    }

    fn record(&self) -> PathBuf {
        let [record] = self.host.records().try_into().unwrap();
        record
    }
}

/// Waits for what another process does; the caller's test hangs, and is seen to, if that never
/// comes.
fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    for _ in 0..12_000 {
        if is_there() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{what} did not happen within a minute");
}

fn is_running(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn pid_in(file: &Path) -> i32 {
    fs::read_to_string(file).unwrap().trim().parse().unwrap()
}

fn terminate(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

fn ended(child: Child) -> Ran {
    child.wait_with_output().unwrap().into()
}

// The IPAM plugin.

/// tests/contract-items, items 109, 110.
#[test]
fn an_ipam_that_refuses_is_quoted_and_told_del() {
    let error = r#"echo '{"cniVersion":"1.0.0","code":111,"msg":"pool is empty","details":"of 2"}'; exit 1"#;
    let Some(mut rig) = Rig::with_ipam("refuses", error, "true") else {
        return;
    };
    let json = rig.add().error(111);
    assert_eq!(
        (json["msg"].as_str(), json["details"].as_str()),
        (Some("pool is empty"), Some("of 2"))
    );
    assert_eq!(rig.calls(), ["ADD", "DEL"]);
    rig.is_usable();
}

/// tests/contract-items, item 109. Each names the plugin and what is wrong with it.
#[test]
fn an_ipam_that_answers_nonsense_is_named_and_told_del() {
    let table = [
        ("exit 3", 6, "exit status 3"),
        ("echo sorry; exit 1", 6, "exit status 1"),
        ("kill -9 $$", 6, "signal 9"),
        ("echo nonsense", 6, ""),
        ("true", 6, ""),
        ("echo null", 6, "object"),
        ("echo '[]'", 6, "object"),
        (
            r#"echo '{"cniVersion":"1.0.0"}{"cniVersion":"1.0.0"}'"#,
            6,
            "",
        ),
        (r#"echo '{"cniVersion":"1.0.0","ips":[]}'"#, 7, "no address"),
        (r#"echo '{"cniVersion":"9.9.9","ips":[]}'"#, 1, "9.9.9"),
        (
            r#"echo '{"cniVersion":"1.0.0","ips":[{"address":"172.16.0.0"}]}'"#,
            6,
            "ips[0].address",
        ),
        (
            r#"echo '{"cniVersion":"1.0.0","ips":[{"address":"172.16.0.0/33"}]}'"#,
            6,
            "ips[0].address",
        ),
        (
            r#"echo '{"cniVersion":"1.0.0","ips":[{"address":"172.16.0.0/31","gateway":"x"}]}'"#,
            6,
            "gateway",
        ),
        (r#"echo '{"cniVersion":"1.0.0","ips":"none"}'"#, 6, "ips"),
        ("head -c 2000000 /dev/zero | tr '\\0' x", 999, "65536"),
    ];
    let Some(mut rig) = Rig::with_ipam("nonsense", "true", "true") else {
        return;
    };
    let mut said = Vec::new();
    for (script, code, word) in table {
        let _ = fs::remove_file(rig.host.path("calls"));
        rig.set_ipam(script, "true");
        let added = rig.add();
        let msg = added.error(code)["msg"].as_str().unwrap().to_owned();
        assert!(
            msg.contains("stand-in") && msg.contains(word),
            "{script}: {msg}"
        );
        said.push(msg);
        assert_eq!(rig.calls(), ["ADD", "DEL"], "{script}");
        rig.is_as_before();
    }
    golden::says("plugins", "ADD: answers of an IPAM plugin", said.join("\n"));
    rig.is_usable();
}

/// tests/contract-items, item 110: addresses and routes that the kernel refuses, after the device
/// has moved.
#[test]
fn what_the_kernel_does_not_take_is_undone_with_the_move() {
    let table = [
        (
            r#"{"cniVersion":"1.0.0","ips":[{"address":"172.16.0.0/31"},{"address":"fd00::/127"}],
            "routes":[{"dst":"fd00::/16","gw":"ff02::1"}]}"#,
            "fd00::/16 …ff02::1 …100: Invalid argument",
        ),
        (
            r#"{"cniVersion":"1.0.0","ips":[{"address":"172.16.0.0/31"},{"address":"172.16.0.0/31"}]}"#,
            "172.16.0.0/31 …net1: File exists",
        ),
        (
            r#"{"cniVersion":"1.0.0","ips":[{"address":"172.16.0.0/31"}],
            "routes":[{"dst":"10.0.0.0/8","gw":"255.255.255.255"}]}"#,
            "10.0.0.0/8 …255.255.255.255 …100: Network is unreachable",
        ),
    ];
    let Some(mut rig) = Rig::with_ipam("kernel_refuses", "true", "true") else {
        return;
    };
    for (result, told) in table {
        rig.set_ipam(&format!("cat <<'END'\n{result}\nEND\n"), "true");
        let added = rig.add();
        assert_eq!(added.status, 1, "{result}: {added:?}");
        assert!(
            golden::has(&added.msg(), told),
            "{result}: {told:?} is not in {:?}",
            added.msg()
        );
        rig.is_as_before();
    }
    rig.is_usable();
}

/// tests/contract-items, item 112. Slow: the deadline is 30 seconds.
#[test]
fn an_ipam_that_hangs_is_killed_with_what_it_started_and_told_del() {
    let Some(mut rig) = Rig::with_ipam("hangs", "sleep 1000 & echo $! >child; wait", "true") else {
        return;
    };
    let msg = rig.add().msg();
    assert!(msg.contains("stand-in"), "{msg}");
    let child = pid_in(&rig.host.path("child"));
    wait_for("the end of the IPAM's child", || !is_running(child));
    assert_eq!(rig.calls(), ["ADD", "DEL"]);
    rig.is_usable();
}

/// tests/contract-items, item 11: libcni waits until both outputs are closed. Here the call
/// returns, for `run` reads both outputs to their end.
#[test]
fn a_process_that_the_ipam_leaves_running_holds_nobody_up() {
    let leave = format!("sleep 60 & echo $! >child; {LEASE}");
    let Some(rig) = Rig::with_ipam("leaves_a_child", &leave, "true") else {
        return;
    };
    rig.add().ok();
    let child = pid_in(&rig.host.path("child"));
    assert!(is_running(child), "the test shows nothing");
    kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
    rig.del().ok();
    rig.is_as_before();
}

/// tests/contract-items, item 108.
#[test]
fn a_talkative_ipam_is_passed_on_and_does_not_block() {
    let talk = format!("head -c 2000000 /dev/zero | tr '\\0' x >&2; {LEASE}");
    let Some(rig) = Rig::with_ipam("talkative", &talk, "true") else {
        return;
    };
    let added = rig.add().ok();
    // As much as a call may log, and what came after it is lost.
    let passed_on = added.stderr.matches('x').count();
    assert!((16 << 10..64 << 10).contains(&passed_on), "{passed_on}");
    assert_eq!(added.json()["ips"][0]["address"], "172.16.0.0/31");
    rig.del().ok();
    rig.is_as_before();
}

/// tests/contract-items, items 12, 107: it may read all of a large configuration, or nothing.
#[test]
fn an_ipam_reads_a_large_configuration_or_leaves_it() {
    for script in [LEASE.to_owned(), format!("wc -c >size; {LEASE}")] {
        let Some(mut rig) = Rig::with_ipam("large", &script, "true") else {
            return;
        };
        rig.config["args"] = json!({"x": "y".repeat(60_000)});
        rig.add().ok();
        if let Ok(size) = fs::read_to_string(rig.host.path("size")) {
            assert_eq!(size.trim(), rig.config.to_string().len().to_string());
        }
        rig.del().ok();
        rig.is_as_before();
    }
}

/// tests/contract-items, item 112: an installer has the file open; it is done when the plugin is
/// tried for the second time.
#[test]
fn an_ipam_that_is_being_replaced_is_tried_again() {
    let Some(rig) = Rig::with_ipam("replaced", LEASE, "true") else {
        return;
    };
    if !trace::is_allowed("failures::replaced") {
        return;
    }
    let mut writer = Some(
        fs::File::options()
            .append(true)
            .open(rig.host.path("bin/stand-in"))
            .unwrap(),
    );
    let mut tries = 0;
    let traced = trace::run(&rig.call("ADD", 0), &rig.config, |point| {
        if point.number == libc::SYS_execve {
            tries += 1;
            if tries == 2 {
                writer = None;
            }
        }
        false
    });
    traced.ran.ok();
    assert!(tries >= 2);
    rig.del().ok();
    rig.is_as_before();
}

#[test]
fn an_ipam_that_is_being_replaced_for_long_is_named() {
    let Some(mut rig) = Rig::with_ipam("replaced_for_long", LEASE, "true") else {
        return;
    };
    let writer = fs::File::options()
        .append(true)
        .open(rig.host.path("bin/stand-in"))
        .unwrap();
    let msg = rig.add().error(5)["msg"].to_string();
    assert!(msg.contains("stand-in"), "{msg}");
    // It never ran, so nothing is owed either.
    rig.is_as_before();
    drop(writer);
    rig.is_usable();
}

/// tests/contract-items, item 80. A runtime asks once (Multus), or forgets the attachment: what the
/// IPAM was not told is on file.
#[test]
fn del_succeeds_although_the_ipam_fails_and_the_address_is_owed() {
    let refuse =
        r#"test ! -e broken || { echo '{"code":5,"msg":"lease file not found"}'; exit 1; }"#;
    let Some(mut rig) = Rig::with_ipam("del_fails", LEASE, refuse) else {
        return;
    };
    rig.add().ok();
    fs::write(rig.host.path("broken"), "").unwrap();
    let deleted = rig.del().ok();
    assert!(
        deleted.stderr.contains("pod default/pod, container c1"),
        "{deleted:?}"
    );
    assert_eq!(rig.host.snapshot()["links"], rig.before["links"]);
    assert_eq!(rig.links(0), ["lo"]);
    assert_eq!((rig.host.records().len(), rig.host.pending().len()), (0, 1));
    // The device is free for another pod at once, and its end does not wait for the other's.
    rig.run("ADD", 1).ok();
    rig.run("DEL", 1).ok();
    rig.del().ok();
    let reaped = rig.reap();
    assert_eq!(reaped.status, 1, "{reaped:?}");
    assert!(
        reaped
            .stdout
            .contains("pod default/pod, container c1 as net1"),
        "{reaped:?}"
    );
    fs::remove_file(rig.host.path("broken")).unwrap();
    let reaped = rig.reap().ok();
    assert!(reaped.stdout.contains("of pod default/pod"), "{reaped:?}");
    rig.is_usable();
}

#[test]
fn the_error_of_add_is_told_although_undoing_fails_too() {
    let Some(mut rig) = Rig::with_ipam("both_fail", "echo sorry; exit 1", "test ! -e broken")
    else {
        return;
    };
    fs::write(rig.host.path("broken"), "").unwrap();
    let msg = rig.add().error(6)["msg"].to_string();
    assert!(msg.contains("ADD failed"), "{msg}");
    // It may have leased an address.
    assert_eq!((rig.host.records().len(), rig.host.pending().len()), (0, 1));
    fs::remove_file(rig.host.path("broken")).unwrap();
    rig.reap().ok();
    rig.is_usable();
}

/// A typo in a host-local subnet: its ADD says so, and its DEL says so too.
#[test]
fn an_ipam_that_refuses_both_verbs_owes_nothing() {
    let refuse = r#"echo '{"code":7,"msg":"invalid CIDR address: 10.9.0.0/33"}'; exit 1"#;
    let Some(mut rig) = Rig::with_ipam("refuses_both", refuse, refuse) else {
        return;
    };
    assert_eq!(
        rig.add().error(7)["msg"],
        "invalid CIDR address: 10.9.0.0/33"
    );
    rig.is_as_before();
    rig.del().ok();
    rig.is_usable();
}

/// Every migration: the old plugin goes while its pods run.
#[test]
fn an_ipam_that_was_uninstalled_holds_nobody_up() {
    let Some(mut rig) = Rig::with_ipam("uninstalled", LEASE, "true") else {
        return;
    };
    rig.add().ok();
    let (bin, away) = (rig.host.path("bin"), rig.host.path("away"));
    fs::rename(&bin, &away).unwrap();
    rig.del().ok();
    assert_eq!(rig.host.snapshot()["links"], rig.before["links"]);
    assert_eq!(rig.host.pending().len(), 1);
    // It will never come back.
    let forgotten = rig.reap_with(&["--forget", "c1"]).ok();
    assert!(
        forgotten.stdout.contains("pod default/pod, container c1"),
        "{forgotten:?}"
    );
    rig.is_as_before();
    fs::rename(&away, &bin).unwrap();
    rig.is_usable();
}

/// An address that nobody was told to free is asked for when an ADD finds none, and only then.
#[test]
fn an_add_that_gets_no_address_asks_for_those_that_are_owed() {
    let refuse = r#"echo '{"code":11,"msg":"no address is free"}'; exit 1"#;
    let add = format!("if test -e held; then {refuse}; else touch held; {LEASE}; fi");
    let del = "test ! -e broken && rm -f held";
    let Some(mut rig) = Rig::with_ipam("owed_address", &add, del) else {
        return;
    };
    rig.add().ok();
    fs::write(rig.host.path("broken"), "").unwrap();
    rig.del().ok();
    // Still broken: the IPAM's own word is the answer.
    assert_eq!(rig.run("ADD", 1).error(11)["msg"], "no address is free");
    fs::remove_file(rig.host.path("broken")).unwrap();
    rig.run("ADD", 1).ok();
    assert!(rig.host.pending().is_empty());
    rig.run("DEL", 1).ok();
    rig.is_usable();
}

// The answer.

/// tests/contract-items, item 10: the runtime is gone.
#[test]
fn an_answer_that_nobody_reads_undoes_add() {
    let Some(mut rig) = Rig::new("nobody_reads") else {
        return;
    };
    let full = || Stdio::from(fs::File::options().write(true).open("/dev/full").unwrap());
    for (program, closed) in [
        ("rail-cni", true),
        ("rail-cni", false),
        ("rail-ipam", true),
        ("rail-ipam", false),
    ] {
        use std::io::Write as _;
        let call = if program == "rail-cni" {
            rig.call("ADD", 0)
        } else {
            rig.call("ADD", 0).ipam()
        };
        let mut command = call.command();
        if !closed {
            command.stdout(full()).stderr(full());
        }
        let mut child = command.spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        child
            .stdin
            .take()
            .unwrap()
            .write_all(rig.config.to_string().as_bytes())
            .unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{program}");
        rig.is_as_before();
    }
    rig.is_usable();
}

// Kills and overlaps.

/// A stand-in that says that it was reached, waits until it may go on, and is rail-ipam then.
fn waiting() -> String {
    let ipam = RAIL_IPAM;
    format!("touch reached; until test -e go; do sleep 0.01; done; exec {ipam}")
}

impl Rig {
    /// With an IPAM that waits for `go`; DEL does not wait.
    fn with_waiting_ipam(test: &str) -> Option<Rig> {
        let mut rig = Rig::with_ipam(test, &waiting(), &format!("exec {}", RAIL_IPAM))?;
        rig.config["ipam"] = json!({"type": "stand-in", "pool": "rail-0"});
        Some(rig)
    }

    fn add_until_ipam(&self) -> Child {
        let child = self.start("ADD", 0);
        wait_for("the call of the IPAM", || {
            self.host.path("reached").exists()
        });
        child
    }

    fn go(&self) {
        fs::write(self.host.path("go"), "").unwrap();
    }

    /// As a script, or as what that became.
    fn is_ipam_running(&self) -> bool {
        let (script, node) = (self.host.path("bin/stand-in"), self.host.path("node.json"));
        let has = |file: PathBuf, text: &str| {
            fs::read(file).is_ok_and(|bytes| {
                String::from_utf8_lossy(&bytes)
                    .split('\0')
                    .any(|word| word == text)
            })
        };
        let processes = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .map(|entry| entry.path());
        processes
            .filter(|process| {
                has(
                    process.join("environ"),
                    &format!("RAIL_CNI_NODE_CONFIG={}", node.display()),
                )
            })
            .any(|process| {
                let is = |program: &str| has(process.join("cmdline"), program);
                is(script.to_str().unwrap()) || is(RAIL_IPAM)
            })
    }
}

/// tests/contract-items, item 83: the runtime lost patience with ADD, whose process still runs.
#[test]
fn a_del_that_overtakes_an_add_waits_for_it_and_gives_back() {
    let Some(mut rig) = Rig::with_waiting_ipam("overtakes") else {
        return;
    };
    let add = rig.add_until_ipam();
    let del = rig.start("DEL", 0);
    wait_for("DEL to wait", || sleeps(&del));
    rig.go();
    ended(add).ok();
    ended(del).ok();
    rig.is_usable();
}

/// So do the plugins between two tries for a lock.
fn sleeps(child: &Child) -> bool {
    let call = fs::read_to_string(format!("/proc/{}/syscall", child.id())).unwrap_or_default();
    call.split(' ').next() == Some(&libc::SYS_clock_nanosleep.to_string())
}

/// tests/contract-items, item 83: the orphan of an ADD gets the lock after the DEL that was meant
/// for it.
#[test]
fn an_add_that_a_del_has_overtaken_attaches_nothing() {
    let Some(mut rig) = Rig::new("tombstone") else {
        return;
    };
    if !trace::is_allowed("failures::tombstone") {
        return;
    }
    let mut is_deleted = false;
    let added = trace::run(&rig.call("ADD", 0), &rig.config, |point| {
        if point.number == libc::SYS_flock && !std::mem::replace(&mut is_deleted, true) {
            rig.del().ok();
        }
        false
    });
    assert!(is_deleted);
    let msg = added.ran.error(11)["msg"].to_string();
    assert!(msg.contains("was deleted"), "{msg}");
    // An ADD that begins now is meant.
    rig.is_usable();
}

/// tests/contract-items, items 50, 51.
#[test]
fn del_undoes_an_add_that_was_ended_while_its_ipam_worked() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGKILL] {
        let Some(mut rig) = Rig::with_waiting_ipam("ended") else {
            return;
        };
        let add = rig.add_until_ipam();
        terminate(&add, signal);
        ended(add);
        rig.del().ok();
        // The IPAM is an orphan that goes on, and nobody reads its answer: it takes its lease back.
        rig.go();
        wait_for("the end of the IPAM", || !rig.is_ipam_running());
        rig.is_usable();
    }
}

/// tests/contract-items, item 123.
#[test]
fn a_lock_ends_with_the_process_that_held_it() {
    let Some(mut rig) = Rig::with_waiting_ipam("lock_ends") else {
        return;
    };
    let first = rig.add_until_ipam();
    let second = rig.start("ADD", 1);
    wait_for("the second ADD to wait", || sleeps(&second));
    terminate(&first, Signal::SIGKILL);
    ended(first);
    rig.go();
    ended(second).ok();
    rig.run("DEL", 1).ok();
    rig.del().ok();
    rig.is_usable();
}

/// tests/contract-items, item 123. Slow: the deadline is 35 seconds.
#[test]
fn a_lock_that_is_held_for_long_is_named() {
    let Some(mut rig) = Rig::new("lock_held") else {
        return;
    };
    rig.add().ok();
    rig.del().ok();
    let path = rig.host.path("run/locks/attachment-c1:net1");
    let held = fs::File::open(&path).unwrap();
    fs4::FileExt::lock(&held).unwrap();
    let calls = ["ADD", "DEL"].map(|verb| rig.start(verb, 0));
    for ran in calls.map(ended) {
        let msg = ran.error(11)["msg"].to_string();
        assert!(msg.contains(path.to_str().unwrap()), "{msg}");
    }
    drop(held);
    rig.is_usable();
}

// The folder /run/rail-cni.

/// A file system of our own at a path.
pub struct Mount(PathBuf);

impl Mount {
    /// Mounts a `kind` there, or skips `test`.
    pub fn new(path: PathBuf, test: &str, kind: &str, options: &str) -> Option<Mount> {
        fs::create_dir_all(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", kind, "-o", options, kind])
            .arg(&path)
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Mount(path)),
            other => {
                skip(test, &format!("cannot mount here: {other:?}"));
                None
            }
        }
    }

    /// A tmpfs in place of the run folder.
    fn run(rig: &Rig, test: &str, options: &str) -> Option<Mount> {
        Mount::new(
            rig.host.path("run"),
            &format!("failures::{test}"),
            "tmpfs",
            options,
        )
    }

    /// With other options.
    pub fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        // Busy while a child that another test has just forked, and that has not run exec yet,
        // holds our files.
        wait_for("the remount", || {
            // Not with the options that it has: `uid=` may be one that this user namespace does not
            // map.
            let mut mount = Command::new("mount");
            mount
                .args(["--options-mode", "ignore", "-o", &options])
                .arg(&self.0);
            mount.output().unwrap().status.success()
        });
    }

    /// Until there is neither a block nor an inode left, or no block only.
    pub fn fill(&self, inodes: bool) {
        let dir = self.0.join("ballast");
        fs::create_dir_all(&dir).unwrap();
        while fs::write(dir.join("blocks"), vec![0; 1 << 20]).is_ok() {}
        while fs::File::options()
            .append(true)
            .open(dir.join("blocks"))
            .is_ok_and(|mut file| {
                use std::io::Write as _;
                file.write_all(&[0; 512]).is_ok()
            })
        {}
        for number in 0.. {
            if !inodes || fs::write(dir.join(number.to_string()), "").is_err() {
                break;
            }
        }
    }

    /// Removes what [`Mount::fill`] wrote.
    pub fn empty(&self) {
        fs::remove_dir_all(self.0.join("ballast")).unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

const SMALL: &str = "size=256k,nr_inodes=60,mode=700";

#[test]
fn a_full_run_folder_refuses_add_and_not_del() {
    for inodes in [false, true] {
        let Some(mut rig) = Rig::new("full") else {
            return;
        };
        let Some(run) = Mount::run(&rig, "full", SMALL) else {
            return;
        };
        run.fill(inodes);
        rig.add().error(5);
        rig.is_as_before();
        for status in [rig.call("STATUS", 0), rig.call("STATUS", 0).ipam()] {
            let msg = status.run(&rig.config).error(50)["msg"].to_string();
            assert!(msg.contains("is full"), "{msg}");
        }
        // A DEL without an ADD, with no room for its lock.
        rig.del().ok();
        rig.run("DEL", 1).ok();
        run.empty();
        rig.add().ok();
        run.fill(inodes);
        assert_eq!(rig.run("ADD", 1).status, 1);
        rig.del().ok();
        run.empty();
        rig.is_usable();
    }
}

#[test]
fn an_add_that_fills_the_run_folder_is_undone() {
    let fill = format!("cat /dev/zero >run/ballast 2>/dev/null; {LEASE}");
    let Some(mut rig) = Rig::with_ipam("fills", &fill, "true") else {
        return;
    };
    let Some(run) = Mount::run(&rig, "fills", SMALL) else {
        return;
    };
    rig.add().error(5);
    assert_eq!(rig.calls(), ["ADD", "DEL"]);
    rig.is_as_before();
    fs::remove_file(run.0.join("ballast")).unwrap();
    rig.is_usable();
}

#[test]
fn a_read_only_run_folder_refuses_add_and_status_and_not_the_del_of_nothing() {
    let Some(mut rig) = Rig::new("read_only") else {
        return;
    };
    let Some(run) = Mount::run(&rig, "read_only", SMALL) else {
        return;
    };
    for is_new in [true, false] {
        run.remount("ro");
        rig.add().error(5);
        rig.del().ok();
        rig.is_as_before();
        for status in [rig.call("STATUS", 0), rig.call("STATUS", 0).ipam()] {
            status.run(&rig.config).error(50);
        }
        run.remount("rw");
        if is_new {
            rig.is_usable();
        }
    }
    // An attachment cannot be given back while its end cannot be noted. It is not forgotten.
    rig.add().ok();
    run.remount("ro");
    let deleted = rig.del();
    assert_eq!(deleted.status, 1, "{deleted:?}");
    run.remount("rw");
    rig.del().ok();
    rig.is_usable();
}

// Damaged files.

/// A way to spoil a file; the second one is good, about something else.
type Damage = fn(&Path, &Path);

fn damages() -> Vec<(&'static str, Damage)> {
    vec![
        ("empty", |path, _| fs::write(path, "").unwrap()),
        ("truncated", |path, _| {
            let content = fs::read(path).unwrap();
            fs::write(path, &content[..content.len() / 2]).unwrap();
        }),
        ("binary", |path, _| {
            fs::write(path, [0xff, 0, 0xfe]).unwrap()
        }),
        ("another object", |path, _| {
            fs::write(path, r#"{"version": 1}"#).unwrap()
        }),
        ("about another", |path, other| {
            assert_ne!(fs::copy(other, path).unwrap(), 0)
        }),
        ("a link", |path, other| {
            fs::remove_file(path).unwrap();
            symlink(other, path).unwrap();
        }),
        ("a link to nothing", |path, _| {
            fs::remove_file(path).unwrap();
            symlink("/nonexistent", path).unwrap();
        }),
        ("gone", |path, _| fs::remove_file(path).unwrap()),
        ("a huge file", |path, _| {
            fs::File::create(path).unwrap().set_len(1 << 30).unwrap()
        }),
    ]
}

/// A later version wrote it.
const LATER_VERSION: (&str, Damage) = ("later", |path, _| {
    let now = fs::read_to_string(path).unwrap();
    let later = now.replace(r#""version":2,"#, r#""version":3,"#);
    assert_ne!(now, later);
    fs::write(path, later).unwrap();
});

/// A second rail that is attached all the time: its record is the other one, and must not be
/// touched.
fn add_other_rail(rig: &Rig) -> PathBuf {
    rig.host.add_rail(1);
    rig.host.cni("ADD", "c2", &rig.pods[1], &rail(1)).ok();
    rig.record()
}

fn other_rail_is_well(rig: &Rig, record: &Path, content: &[u8]) {
    assert_eq!(fs::read(record).unwrap(), content);
    assert_eq!(rig.links(1), ["lo", "net1"]);
}

/// DEL ends with the device on the host whatever became of the record, for the lock of the device
/// carries a copy.
#[test]
fn del_needs_no_readable_record() {
    let Some(rig) = Rig::new("damaged_record") else {
        return;
    };
    let other = add_other_rail(&rig);
    let content = fs::read(&other).unwrap();
    let before = rig.host.snapshot();
    for (what, damage) in damages() {
        println!("{what}");
        rig.add().ok();
        let record = rig
            .host
            .records()
            .into_iter()
            .find(|path| *path != other)
            .unwrap();
        damage(&record, &other);
        rig.del().ok();
        assert_eq!(rig.host.snapshot(), before, "{what}");
        assert_eq!(rig.links(0), ["lo"], "{what}");
        other_rail_is_well(&rig, &other, &content);
    }
}

/// Without the copy, too, nothing tells where the device came from, and another version may know
/// what the file says: DEL fails, and record, lease and device stay.
#[test]
fn del_without_a_readable_record_keeps_everything() {
    let Some(mut rig) = Rig::new("no_copy") else {
        return;
    };
    let other = add_other_rail(&rig);
    let content = fs::read(&other).unwrap();
    let damages = damages().into_iter().filter(|(what, _)| *what != "gone");
    for (what, damage) in damages.chain([LATER_VERSION]) {
        println!("{what}");
        rig.add().ok();
        let mut records = rig.host.records().into_iter();
        let record = records.find(|path| *path != other).unwrap();
        let lock = rig.host.path("run/locks/device-vf0");
        let good = (fs::read(&record).unwrap(), fs::read(&lock).unwrap());
        damage(&record, &other);
        fs::write(&lock, "").unwrap();
        let before = rig.host.snapshot();
        let msg = rig.del().error(5)["msg"].to_string();
        let remedy = "`railctl reap --forget c1:net1:vf0.json`";
        assert!(msg.contains(remedy), "{what}: {msg}");
        let gc = with(rig.config.clone(), json!({"cni.dev/valid-attachments": []}));
        rig.call("GC", 0).run(&gc).ok();
        assert_eq!(rig.host.snapshot(), before, "{what}");
        assert_eq!(rig.host.leases().len(), 2, "{what}");
        assert_eq!(rig.links(0), ["lo", "net1"], "{what}");
        other_rail_is_well(&rig, &other, &content);
        // Another pod does not get the address.
        rig.call("ADD", 1).ipam().run(&rig.config).error(11);
        fs::remove_file(&record).unwrap();
        fs::write(&record, good.0).unwrap();
        fs::write(&lock, good.1).unwrap();
        rig.del().ok();
    }
    rig.host.cni("DEL", "c2", &rig.pods[1], &rail(1)).ok();
    rig.before = rig.host.snapshot();
    rig.is_usable();
}

/// A record that was removed by hand, with its copy: DEL gives the address back; the device stays
/// where it is until the pod ends.
#[test]
fn del_without_record_and_copy_gives_the_address_back() {
    let Some(rig) = Rig::new("no_record") else {
        return;
    };
    rig.add().ok();
    fs::remove_file(rig.record()).unwrap();
    fs::write(rig.host.path("run/locks/device-vf0"), "").unwrap();
    rig.del().ok();
    assert_eq!(rig.host.leases().len(), 0);
}

/// Somebody's mistake, which is told, and costs no more than another DEL.
#[test]
fn a_folder_in_the_place_of_a_record_is_named() {
    let Some(mut rig) = Rig::new("folder") else {
        return;
    };
    rig.add().ok();
    let record = rig.record();
    fs::remove_file(&record).unwrap();
    fs::create_dir(&record).unwrap();
    let msg = rig.del().error(5)["msg"].to_string();
    assert!(msg.contains(record.to_str().unwrap()), "{msg}");
    assert_eq!(rig.links(0), ["lo"]);
    fs::remove_dir(&record).unwrap();
    rig.del().ok();
    rig.is_usable();
}

/// A damaged record blocks neither other attachments nor the device. It stays until somebody names
/// it: a later version may have written it, for a pod that lives.
#[test]
fn a_damaged_record_is_in_nobodys_way() {
    let Some(mut rig) = Rig::new("in_the_way") else {
        return;
    };
    rig.add().ok();
    let later = fs::read_to_string(rig.record())
        .unwrap()
        .replace(r#""version":2,"#, r#""version":3,"#);
    assert!(later.contains(r#""version":3,"#));
    rig.del().ok();
    let folder = rig.host.path("run/attachments");
    fs::write(folder.join("c9:net1:vf0.json"), "{").unwrap();
    fs::write(
        folder.join("c7:net1:vf0.json"),
        later.replace(r#""c1""#, r#""c7""#),
    )
    .unwrap();
    fs::write(folder.join("nonsense"), "").unwrap();
    symlink("/etc/passwd", folder.join("c8:net1:vf0.json")).unwrap();
    rig.add().ok();
    let gc = with(rig.config.clone(), json!({"cni.dev/valid-attachments": []}));
    rig.call("GC", 0).run(&gc).ok();
    rig.del().ok();
    for args in [&[][..], &["--forget"]] {
        let reaped = rig.reap_with(args);
        assert_eq!(reaped.status, 1, "{reaped:?}");
        for name in [
            "c9:net1:vf0.json",
            "nonsense",
            "c8:net1:vf0.json",
            "c7:net1:vf0.json",
        ] {
            assert!(
                reaped
                    .stdout
                    .contains(&format!("`railctl reap --forget {name}`")),
                "{reaped:?}"
            );
        }
    }
    let names = [
        "--forget",
        "c9:net1:vf0.json",
        "nonsense",
        "c8:net1:vf0.json",
        "c7:net1:vf0.json",
    ];
    let reaped = rig.reap_with(&names).ok();
    assert!(reaped.stdout.contains("nonsense"), "{reaped:?}");
    rig.is_usable();
}

/// /run on a disk, or a restored image: the namespaces of the record are gone, whatever their paths
/// name now.
#[test]
fn a_record_of_another_boot_claims_nothing() {
    for verb in ["ADD", "ADD by another", "DEL", "GC", "reap"] {
        println!("{verb}");
        let Some(mut rig) = Rig::new("other_boot") else {
            return;
        };
        rig.add().ok();
        let (record, lock) = (rig.record(), rig.host.path("run/locks/device-vf0"));
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let older = fs::read_to_string(&record)
            .unwrap()
            .replace(boot_id.trim(), "0000-another-boot");
        // Its settings were another device's.
        let older = older.replace(r#""mtu":1500"#, r#""mtu":1400"#);
        assert!(older.contains("1400"));
        rig.del().ok();
        fs::write(&record, &older).unwrap();
        fs::write(&lock, &older).unwrap();
        match verb {
            "ADD" => drop(rig.add().ok()),
            "ADD by another" => {
                rig.run("ADD", 1).ok();
                // The late DEL leaves the heir alone.
                rig.del().ok();
                assert_eq!(rig.links(1), ["lo", "net1"]);
                rig.run("DEL", 1).ok();
            }
            "GC" => drop(rig.call("GC", 0).run(&rig.config).ok()),
            "reap" => drop(rig.reap().ok()),
            _ => (),
        }
        rig.del().ok();
        rig.is_usable();
    }
}

/// Tenants do not write there, but nothing is followed all the same: what is below /run outlives
/// who made it.
#[test]
fn links_in_the_run_folder_are_not_followed() {
    let Some(mut rig) = Rig::new("links") else {
        return;
    };
    rig.add().ok();
    rig.del().ok();
    let precious = rig.host.path("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "precious").unwrap();
    let table = [
        ("run/locks/attachment-c1:net1", "file"),
        ("run/locks/device-vf0", "file"),
        ("run/attachments", ""),
        ("run/locks", ""),
        ("run/leases", ""),
        ("run/leases/lock", "file"),
    ];
    for (path, target) in table {
        let (path, away) = (rig.host.path(path), rig.host.path("away"));
        fs::rename(&path, &away).unwrap();
        symlink(precious.join(target), &path).unwrap();
        let added = rig.add();
        assert_eq!(added.status, 1, "{}: {added:?}", path.display());
        added.error(5);
        fs::remove_file(&path).unwrap();
        fs::rename(&away, &path).unwrap();
        let left: Vec<_> = fs::read_dir(&precious)
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        assert_eq!(left, ["file"], "{}", path.display());
        assert_eq!(
            fs::read_to_string(precious.join("file")).unwrap(),
            "precious"
        );
        // With its folder unusable, the IPAM could not be told of the failure.
        rig.del().ok();
        rig.is_usable();
    }
}

/// A lease whose file cannot be read is not given to somebody else; DEL of its holder needs the
/// name alone.
#[test]
fn a_damaged_lease_is_kept_until_its_holder_gives_it_back() {
    let Some(mut rig) = Rig::new("damaged_lease") else {
        return;
    };
    rig.host.add_rail(1);
    let other = rig
        .host
        .call("ADD", "c2", &rig.pods[1])
        .ipam()
        .ifname("net2");
    other.run(&rail(1)).ok();
    let [other] = rig.host.leases().try_into().unwrap();
    for (what, damage) in damages().into_iter().filter(|(what, _)| *what != "gone") {
        println!("{what}");
        rig.call("ADD", 0).ipam().run(&rig.config).ok();
        let lease = rig
            .host
            .leases()
            .into_iter()
            .find(|path| *path != other)
            .unwrap();
        damage(&lease, &other);
        let msg = rig.call("ADD", 1).ipam().run(&rig.config).error(11)["msg"].to_string();
        assert!(
            msg.contains("172.16.0.0") && msg.contains("railctl release"),
            "{what}: {msg}"
        );
        rig.call("GC", 0).ipam().run(&rig.config).ok();
        assert_eq!(rig.host.leases().len(), 2, "{what}");
        rig.call("DEL", 0).ipam().run(&rig.config).ok();
        if what == "about another" || what == "a link" {
            // A readable file with another name in it is not ours to remove, by name alone.
            let _ = fs::remove_file(&lease);
        }
        assert_eq!(rig.host.leases(), std::slice::from_ref(&other), "{what}");
    }
    rig.host
        .call("DEL", "c2", &rig.pods[1])
        .ipam()
        .ifname("net2")
        .run(&rail(1))
        .ok();
    rig.before = rig.host.snapshot();
    rig.is_usable();
}

/// An upgrade of the runtime moves its plugins: DEL finds the IPAM in the CNI_PATH of today.
#[test]
fn del_finds_the_ipam_where_the_runtime_has_it_now() {
    let Some(rig) = Rig::new("moved_plugins") else {
        return;
    };
    let then = rig.host.path("then");
    let now = rig.host.path("now");
    let log = rig.host.path("log");
    let script = format!("echo $CNI_COMMAND >>{}", log.display());
    let answer = r#"[ $CNI_COMMAND != ADD ] || echo '{"cniVersion": "1.0.0", "ips": [{"address": "172.16.0.0/31"}]}'"#;
    rig.host
        .add_plugin("static", &format!("{script}; {answer}"));
    fs::rename(rig.host.path("bin"), &then).unwrap();
    let config = with(
        rig.config.clone(),
        json!({"cniVersion": "1.0.0", "ipam": {"type": "static"}}),
    );
    let call = |verb: &str, path: &Path| {
        let call = rig.call(verb, 0).var("CNI_PATH", path.to_str().unwrap());
        call.run(&config).ok()
    };
    call("ADD", &then);
    fs::rename(&then, &now).unwrap();
    call("DEL", &now);
    assert_eq!(fs::read_to_string(&log).unwrap(), "ADD\nDEL\n");
    assert!(rig.host.pending().is_empty());
    // Without either, the pending step names both.
    call("ADD", &now);
    fs::rename(&now, &then).unwrap();
    let gone = rig.host.path("gone");
    call("DEL", &gone);
    let pending = rig.host.only_pending().to_string();
    let both = format!("[{}, {}]", now.display(), gone.display());
    assert!(pending.contains(&both), "{pending}");
    let reap = rig.call("", 0).args(&["reap"]);
    rig.host.make_due();
    reap.var("CNI_PATH", then.to_str().unwrap())
        .run(&Value::Null)
        .ok();
    assert!(rig.host.pending().is_empty());
}

// Devices and names.

/// tests/contract-items, item 75.
#[test]
fn del_of_a_device_that_was_deleted_gives_the_rest_back() {
    let Some(rig) = Rig::new("deleted") else {
        return;
    };
    rig.add().ok();
    rig.host.ip_in(&rig.pods[0], "link del net1");
    rig.del().ok();
    rig.del().ok();
    assert_eq!((rig.host.records(), rig.host.leases()), (vec![], vec![]));
    assert!(!rig.host.ip_in(&rig.pods[0], "rule").contains("172.16."));
}

/// host-device puts the device back into the pod and fails for ever, sriov-cni forgets it.
#[test]
fn a_name_that_was_taken_meanwhile_holds_nobody_up_and_is_given_back_when_it_is_free() {
    for finish in ["DEL", "reap"] {
        let Some(rig) = Rig::new("name_taken") else {
            return;
        };
        rig.host.make_vf(0, "mlx5_core");
        rig.add().ok();
        rig.host.ip("link add vf0 type bridge");
        let deleted = rig.del().ok();
        assert!(deleted.stderr.contains(" warn "), "{deleted:?}");
        assert_eq!(rig.links(0), ["lo"]);
        assert_eq!(
            (
                rig.host.records().len(),
                rig.host.pending().len(),
                rig.host.leases().len()
            ),
            (0, 1, 0)
        );
        rig.del().ok();
        // Under its free name it is as good as before, by its PCI address.
        let name = rig
            .host
            .json(None, "link show")
            .as_array()
            .unwrap()
            .iter()
            .find_map(|link| {
                link["ifname"]
                    .as_str()
                    .filter(|name| name.starts_with("dev"))
                    .map(str::to_owned)
            });
        let net = rig.host.path(&format!("sys/devices/{}/net", vf_address(0)));
        fs::rename(net.join("vf0"), net.join(name.unwrap())).unwrap();
        let by_id = with(
            rig.config.clone(),
            json!({"device": null, "deviceID": vf_address(0)}),
        );
        rig.call("ADD", 1).run(&by_id).ok();
        rig.call("DEL", 1).run(&by_id).ok();
        rig.host.ip("link del vf0");
        std::thread::sleep(Duration::from_secs(if finish == "DEL" { 6 } else { 0 }));
        // A DEL of any attachment does it.
        if finish == "DEL" {
            rig.del().ok()
        } else {
            rig.reap().ok()
        };
        rig.is_as_before();
    }
}

#[test]
fn an_altname_that_was_taken_meanwhile_is_told_and_given_back_later() {
    let Some(mut rig) = Rig::new("altname_taken") else {
        return;
    };
    rig.add().ok();
    rig.host.ip("link add other type bridge");
    rig.host.ip("link property add dev other altname enp1s0v0");
    let deleted = rig.del().ok();
    assert!(deleted.stderr.contains("enp1s0v0"), "{deleted:?}");
    assert_eq!(rig.links(0), ["lo"]);
    rig.host.ip("link show vf0");
    // The next pod's end does not forget it.
    rig.run("ADD", 1).ok();
    rig.run("DEL", 1).ok();
    rig.host.ip("link del other");
    rig.reap().ok();
    rig.is_usable();
}

/// tests/contract-items, item 78: unplugged, or sriov_numvfs set to 0, by what sysfs says.
#[test]
fn del_needs_no_sysfs() {
    let Some(rig) = Rig::new("no_sysfs") else {
        return;
    };
    for gone in ["sys/bus/pci/devices", "sys/devices", "sys"] {
        rig.host.make_vf(0, "mlx5_core");
        let config = with(
            rig.config.clone(),
            json!({"device": "", "deviceID": vf_address(0)}),
        );
        rig.call("ADD", 0).run(&config).ok();
        fs::remove_dir_all(rig.host.path(gone)).unwrap();
        rig.call("DEL", 0).run(&config).ok();
        rig.is_as_before();
        let _ = fs::remove_dir_all(rig.host.path("sys"));
        fs::create_dir_all(rig.host.path("sys/bus/pci/devices")).unwrap();
    }
}

/// tests/contract-items, item 53: and says what was asked for.
#[test]
fn add_of_a_device_that_is_gone_names_it() {
    let Some(mut rig) = Rig::new("no_device") else {
        return;
    };
    let cases = [
        json!({"device": "", "deviceID": vf_address(0)}),
        json!({"device": "vf9"}),
    ];
    for (more, name) in cases.into_iter().zip([vf_address(0), "vf9".to_owned()]) {
        let msg = rig
            .call("ADD", 0)
            .run(&with(rig.config.clone(), more))
            .error(7)["msg"]
            .to_string();
        assert!(msg.contains(&name), "{msg}");
    }
    rig.is_usable();
}

/// An IPAM that is gone for good owes for every pod, and what stands in a debt is a tenant's text.
#[test]
fn debts_do_not_fill_the_run_folder() {
    let Some(rig) = Rig::with_ipam("many_debts", LEASE, "exit 1") else {
        return;
    };
    rig.add().ok();
    rig.del().ok();
    let [debt] = rig.host.pending().try_into().unwrap();
    let text = fs::read_to_string(&debt).unwrap();
    let large = text.replace(
        r#""config":""#,
        &format!(r#""config":"{}"#, "x".repeat(1 << 20)),
    );
    assert!(large.len() > 1 << 20);
    for number in 0..40 {
        let since = format!("2001-01-01T00:00:{number:02}Z");
        let of = large.replace(
            r#""containerID":"c1""#,
            &format!(r#""containerID":"old{number}""#),
        );
        let since_key = of.find(r#""since":""#).unwrap() + 9;
        let of = format!(
            "{}{since}{}",
            &of[..since_key],
            &of[since_key + since.len()..]
        );
        fs::write(
            debt.with_file_name(format!("old{number}:net1:vf0.json")),
            of,
        )
        .unwrap();
    }
    // Here it grows.
    rig.run("ADD", 1).ok();
    rig.run("DEL", 1).ok();
    let size: u64 = rig
        .host
        .pending()
        .iter()
        .map(|path| path.metadata().unwrap().len())
        .sum();
    assert!(size < 20 << 20, "{size}");
    // The newest are kept.
    assert!(debt.exists() && debt.with_file_name("old39:net1:vf0.json").exists());
    assert!(!debt.with_file_name("old0:net1:vf0.json").exists());
}
