//! No call waits without end: whatever hangs, the runtime gets its answer, and the next call finds
//! all in order.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, Flock, FlockArg, OFlag, fcntl};
use serde_json::{Value, json};

use crate::harness::{Host, Ran, rail, with};

/// A rail whose calls may take three seconds: on a busy machine, one is not enough to get to the
/// step that hangs.
fn host(test: &str) -> Option<(Host, PathBuf)> {
    let host = Host::new(&format!("watchdog::{test}"))?;
    host.add_rail(0);
    host.set_node(json!({"callTimeout": 3, "log": {"file": host.path("log")}}));
    let pod = host.add_netns("pod");
    Some((host, pod))
}

/// The pod, and the next one after it, as if nothing had been.
#[track_caller]
fn all_is_well(host: &Host, pod: &Path, before: &Value) {
    host.set_node(json!({}));
    host.cni("DEL", "c1", pod, &rail(0)).ok();
    assert_eq!(host.snapshot(), *before);
    host.cni("ADD", "c2", pod, &rail(0)).ok();
    host.cni("DEL", "c2", pod, &rail(0)).ok();
    assert_eq!(host.snapshot(), *before);
}

/// A pipe in which there is no room.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = nix::unistd::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    while nix::unistd::write(&writer, &[b'x'; 4096]).is_ok() {}
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (reader, writer)
}

#[track_caller]
fn says(ran: &Ran, host: &Host, what: &str) {
    let error = ran.error(11);
    let msg = error["msg"].as_str().unwrap();
    assert!(
        msg.contains("longer than 3s") && msg.contains(what),
        "{msg}"
    );
    let log = fs::read_to_string(host.path("log")).unwrap();
    assert!(log.contains(what), "{log}");
}

#[test]
fn a_call_that_waits_for_a_lock_too_long_is_ended_with_an_answer() {
    let Some((host, pod)) = host("lock") else {
        return;
    };
    host.cni("DEL", "c1", &pod, &rail(0)).ok();
    let before = host.snapshot();
    let file = host.path("run/locks/attachment-c1:net1");
    let lock = Flock::lock(File::open(&file).unwrap(), FlockArg::LockExclusive).unwrap();
    for verb in ["ADD", "DEL"] {
        says(&host.cni(verb, "c1", &pod, &rail(0)), &host, "the lock");
    }
    drop(lock);
    all_is_well(&host, &pod, &before);
}

/// It must not lease an address when nobody waits for it any more.
#[test]
fn an_ipam_that_does_not_answer_ends_with_its_call() {
    let Some((host, pod)) = host("ipam") else {
        return;
    };
    let before = host.snapshot();
    let woken = host.path("woken");
    host.add_plugin("asleep", &format!("sleep 10\ntouch {}", woken.display()));
    let ran = host.cni(
        "ADD",
        "c1",
        &pod,
        &with(rail(0), json!({"ipam": {"type": "asleep"}})),
    );
    says(&ran, &host, "asleep: ADD");
    std::thread::sleep(Duration::from_secs(11));
    assert!(!woken.exists());
    host.add_plugin("asleep", "exit 0");
    all_is_well(&host, &pod, &before);
}

/// The result is not read: the exit status alone can tell.
#[test]
fn a_result_that_cannot_be_written_does_not_hang() {
    let Some((host, pod)) = host("stdout") else {
        return;
    };
    let before = host.snapshot();
    let (reader, writer) = full_pipe();
    let mut command = host.call("ADD", "c1", &pod).command();
    let mut child = command
        .stdout(writer)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(rail(0).to_string().as_bytes())
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    drop(reader);
    all_is_well(&host, &pod, &before);
}

/// libcni reads stderr to its end; what else calls us may not.
#[test]
fn a_log_that_nobody_reads_costs_a_call_a_second_and_no_pod() {
    let Some((host, pod)) = host("stderr") else {
        return;
    };
    let before = host.snapshot();
    host.set_node(json!({"log": {"level": "debug", "file": host.path("log")}}));
    let (_reader, writer) = full_pipe();
    let mut command = host.call("ADD", "c1", &pod).command();
    let began = Instant::now();
    let mut child = command.stderr(writer).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(rail(0).to_string().as_bytes())
        .unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap()).ok();
    assert_eq!(ran.json()["interfaces"][0]["name"], "net1");
    assert!(began.elapsed() < Duration::from_secs(30));
    assert!(
        fs::read_to_string(host.path("log"))
            .unwrap()
            .contains("rail-cni ADD rail-0")
    );
    all_is_well(&host, &pod, &before);
}

#[test]
fn a_runtime_that_never_ends_its_configuration_gets_an_error() {
    let Some((host, pod)) = host("stdin") else {
        return;
    };
    let before = host.snapshot();
    let mut child = host.call("ADD", "c1", &pod).command().spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(rail(0).to_string().as_bytes()).unwrap();
    let mut answer = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut answer)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert!(
        answer["msg"].as_str().unwrap().contains("on stdin"),
        "{answer}"
    );
    drop(stdin);
    all_is_well(&host, &pod, &before);
}

/// Opening one waits for who writes to it.
#[test]
fn a_fifo_in_the_place_of_a_file_is_refused_at_once() {
    let Some((host, pod)) = host("fifo") else {
        return;
    };
    let before = host.snapshot();
    let fifo = host.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let shown = fifo.display().to_string();
    let config = rail(0);
    let as_node = |verb: &str| {
        host.call(verb, "c1", &pod)
            .var("RAIL_CNI_NODE_CONFIG", &shown)
    };
    assert!(
        as_node("ADD")
            .run(&config)
            .error(5)
            .to_string()
            .contains(&shown)
    );
    assert!(
        as_node("ADD")
            .ipam()
            .run(&config)
            .error(5)
            .to_string()
            .contains(&shown)
    );
    host.cni("ADD", "c1", &fifo, &config).error(8);
    host.cni("DEL", "c1", &fifo, &config).ok();
    all_is_well(&host, &pod, &before);
}
