//! `railctl wait`.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use super::*;

fn wait(host: &Host, args: &[&str]) -> Command {
    let mut command = Command::new(harness::railctl());
    command
        .arg("wait")
        .args(args)
        .env("RAIL_CNI_NODE_CONFIG", host.path("node.json"));
    command
}

/// A node that boots: first it has no plan, then no link.
#[test]
fn it_ends_when_the_rails_are_there() {
    let Some(host) = two_rails("wait::ready") else {
        return;
    };
    let ready = wait(&host, &["--timeout", "0"]).output().unwrap();
    assert_eq!(
        (ready.status.code(), &ready.stdout[..]),
        (Some(0), &b"ready: 2 rails\n"[..]),
        "{ready:?}"
    );

    let (plan, kept) = (host.path("store/node-1/rail-1.json"), host.path("kept"));
    fs::rename(&plan, &kept).unwrap();
    host.ip("link set pf0 down");
    let mut waiting = wait(&host, &["--timeout", "120"]);
    let mut waiting = waiting
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(waiting.stderr.take().unwrap()).lines();
    let mut line = || told.next().unwrap().unwrap();
    let first = [line(), line()];
    assert!(first[0].contains("rail 0: pf0 "), "{first:?}");
    assert!(first[1].contains("rail 1"), "{first:?}");
    host.ip("link set pf0 up");
    assert!(
        waiting.try_wait().unwrap().is_none(),
        "one thing is missing"
    );
    fs::rename(&kept, &plan).unwrap();
    let ended = waiting.wait_with_output().unwrap();
    assert_eq!(
        (ended.status.code(), &ended.stdout[..]),
        (Some(0), &b"ready: 2 rails\n"[..]),
        "{ended:?}"
    );
    // The link comes a moment after it was set up.
    let more: Vec<String> = told.map(Result::unwrap).collect();
    assert!(
        more.iter().all(|line| line.contains("rail 0: ")),
        "{more:?}"
    );
}

#[test]
fn it_says_what_is_missing_when_the_time_is_over() {
    let Some(host) = two_rails("wait::over") else {
        return;
    };
    host.ip("link set pf0 down");
    let over = wait(&host, &["--timeout", "1"]).output().unwrap();
    let text = String::from_utf8(over.stdout).unwrap();
    assert_eq!(over.status.code(), Some(1), "{text}");
    assert!(
        text.contains("FAIL  pf-link") && text.contains("`ip link set pf0 up`"),
        "{text}"
    );
    let json = wait(&host, &["--timeout", "0", "--output", "json"])
        .output()
        .unwrap();
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(json["ready"] == false && json["node"] == "node-1", "{json}");

    // The program that writes node.json has not come yet. `doctor` cannot know that rails were
    // meant.
    host.set_node(json!({}));
    let over = wait(&host, &["--timeout", "0"]).output().unwrap();
    assert_eq!(over.status.code(), Some(1), "{over:?}");
    assert!(
        String::from_utf8(over.stdout)
            .unwrap()
            .contains("node.json")
    );
}

/// Each look has the time of a call, and the pause before it is not a part of it.
#[test]
fn a_short_time_for_calls_ends_no_wait() {
    let Some(host) = two_rails("wait::short") else {
        return;
    };
    let rails: Vec<_> = (0..2)
        .map(|rail| json!({"rail": rail, "pf": pf_address(rail)}))
        .collect();
    host.set_node(json!({"rails": rails, "callTimeout": 1}));
    host.ip("link set pf0 down");
    let over = wait(&host, &["--timeout", "2"]).output().unwrap();
    let text = String::from_utf8(over.stdout).unwrap();
    assert!(
        over.status.code() == Some(1) && text.contains("FAIL  pf-link"),
        "{text}{:?}",
        over.stderr
    );
}

/// A booting node has no VFs yet, and a PF without them is down as long as no pod needs it.
#[test]
fn vfs_are_waited_for_unless_pods_get_the_pfs() {
    let Some(host) = two_rails("wait::vfs") else {
        return;
    };
    for rail in 0..2 {
        let pf = host.path("sys/devices").join(pf_address(rail));
        fs::remove_file(pf.join("virtfn0")).unwrap();
        fs::write(pf.join("sriov_numvfs"), "0\n").unwrap();
    }
    host.ip("link set pf1 down");
    let over = wait(&host, &["--timeout", "0"]).output().unwrap();
    let text = String::from_utf8(over.stdout).unwrap();
    assert_eq!(over.status.code(), Some(1), "{text}");
    for told in ["0000:01:00.0", "pf1 "] {
        assert!(text.contains(told), "{told}: {text}");
    }
    let ready = wait(&host, &["--timeout", "0", "--pfs"]).output().unwrap();
    assert_eq!(ready.status.code(), Some(0), "{ready:?}");
}

#[test]
fn rdma_is_waited_for_where_it_is_asked_for() {
    let Some(host) = two_rails("wait::rdma") else {
        return;
    };
    let over = wait(&host, &["--timeout", "0", "--rdma"]).output().unwrap();
    let text = String::from_utf8(over.stdout).unwrap();
    assert!(
        over.status.code() == Some(1) && text.contains("--rdma"),
        "{text}"
    );
}

/// The unit of conf/, which an operator copies.
#[test]
fn the_unit_of_conf_runs_it() {
    let unit = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/conf/rail-cni-wait.service"
    ))
    .unwrap();
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/opt/cni/bin/railctl wait "))
        .unwrap();
    let Some(host) = two_rails("wait::unit") else {
        return;
    };
    let ready = wait(&host, &line.split(' ').collect::<Vec<_>>())
        .output()
        .unwrap();
    assert_eq!(ready.status.code(), Some(0), "{ready:?}");
}
