//! The move that `railctl doctor` measures: invisible to the host, and without a trace.

use std::fs;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc::{RTM_DELLINK, RTM_NEWLINK, RTM_SETLINK, SYS_unshare};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::two_rails;
use crate::harness::{Host, Ran};
use crate::trace::{self, Fate, Point, Traced};

/// Runs doctor, and decides before each of its system calls what becomes of it.
fn doctor(host: &Host, fate: impl FnMut(Point) -> Fate) -> Traced {
    let call = host
        .call("", "", Path::new(""))
        .args(&["doctor", "--output", "json"]);
    trace::run_with(&call, &Value::Null, fate)
}

/// The verdict of the check `move`, with its text.
fn told(ran: &Ran) -> (String, String) {
    let json = ran.json();
    let checks = json["checks"].as_array().unwrap();
    let line = checks
        .iter()
        .find(|check| check["check"] == "move")
        .unwrap_or_else(|| panic!("{json}"));
    (
        line["verdict"].as_str().unwrap().to_owned(),
        line["text"].as_str().unwrap().to_owned(),
    )
}

/// Whether a request that changes links is about to be sent.
fn changes_links(point: &Point) -> bool {
    let sent = point.sent().unwrap_or_default();
    let kind = sent
        .get(4..6)
        .map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    kind.is_some_and(|kind| [RTM_NEWLINK, RTM_SETLINK, RTM_DELLINK].contains(&kind))
}

fn netns(thread: Pid) -> PathBuf {
    fs::read_link(format!("/proc/{thread}/ns/net")).unwrap()
}

/// The possible traces on the host: devices and files. A namespace without a name, a process and a
/// file ends by itself.
fn state(host: &Host) -> Value {
    json!({"links": host.snapshot()["links"], "files": super::files(host.dir.path()).len()})
}

#[test]
fn a_device_of_its_own_moves_between_namespaces_of_its_own() {
    let Some(host) = two_rails("doctor::move") else {
        return;
    };
    if !trace::is_allowed("doctor::move") {
        return;
    }
    let before = state(&host);
    let ours = netns(Pid::this());
    let mut changes = Vec::new();
    let ran = doctor(&host, |point| {
        if changes_links(&point) {
            changes.push(netns(point.pid));
        }
        Fate::Made
    });
    let (verdict, text) = told(&ran.ran);
    assert!(["ok", "warn"].contains(&verdict.as_str()), "{text}");
    assert!(text.contains(" ms"), "{text}");
    assert!(changes.len() >= 4, "{changes:?}");
    assert!(
        !changes.contains(&ours),
        "doctor changed a link while it was in the host's namespace"
    );
    assert_eq!(before, state(&host));
}

#[test]
fn nothing_is_left_of_a_doctor_that_is_killed_while_it_moves() {
    let Some(host) = two_rails("doctor::move_killed") else {
        return;
    };
    if !trace::is_allowed("doctor::move_killed") {
        return;
    }
    let before = state(&host);
    let mut at = 0;
    loop {
        let mut seen = 0;
        let traced = doctor(&host, |point| {
            seen += usize::from(changes_links(&point));
            if seen > at { Fate::Deadly } else { Fate::Made }
        });
        if traced.killed.is_none() {
            break;
        }
        assert_eq!(before, state(&host), "killed before {:?}", traced.killed);
        at += 1;
    }
    assert!(at >= 4, "{at}");
}

#[test]
fn who_may_not_make_a_namespace_is_told_so() {
    let Some(host) = two_rails("doctor::move_refused") else {
        return;
    };
    if !trace::is_allowed("doctor::move_refused") || !trace::can_fail("doctor::move_refused") {
        return;
    }
    let refused = doctor(&host, |point| {
        if point.number == SYS_unshare {
            Fate::Fails(Errno::EPERM)
        } else {
            Fate::Made
        }
    });
    let (verdict, text) = told(&refused.ran);
    assert_eq!(verdict, "skip");
    assert!(text.contains("EPERM"), "{text}");
    assert_eq!(refused.ran.json()["counts"]["fail"], 0, "{refused:?}");
}
