//! `railctl check`: every difference between what ADD made and what is, of every pod, and the
//! cables.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{files, run, two_rails};
use crate::harness::{Host, pf_address, rail, vf_address};

/// Two rails of one pod, `net1` and `net2`, on a leaf that answers as Cumulus Linux does, with its
/// ports in the store.
fn attached(test: &str) -> Option<(Host, PathBuf)> {
    let host = two_rails(test)?;
    let leaf = Path::new("/run/netns").join(host.leaf());
    host.set_sysctl(&leaf, "ipv4/conf/all/arp_ignore", "1");
    let of_pool = |rail: u8| {
        json!({"gateway": format!("172.{}.0.1", 16 + 2 * rail),
            "ports": [{"leaf": format!("leaf-su0-r{rail}"), "port": "swp2"}]})
    };
    let leaf_ports = json!({"rail-0": of_pool(0), "rail-1": of_pool(1)});
    std::fs::write(host.path("store/node-1/leaf-ports"), leaf_ports.to_string()).unwrap();
    let pod = host.add_netns("pod");
    host.call("ADD", "c1", &pod)
        .ifname("net1")
        .run(&rail(0))
        .ok();
    host.call("ADD", "c1", &pod)
        .ifname("net2")
        .run(&rail(1))
        .ok();
    Some((host, pod))
}

/// The differences, as `INTERFACE: DIFFERENCE`.
fn differences(host: &Host) -> Vec<String> {
    let ran = run(host, &["check", "--output", "json"]);
    assert_eq!(ran.stderr, "");
    let json = ran.json();
    let mut all = Vec::new();
    for one in json["attachments"].as_array().unwrap() {
        let differences = one["differences"].as_array().unwrap().iter();
        all.extend(differences.map(|what| {
            format!(
                "{}: {}",
                one["ifname"].as_str().unwrap(),
                what.as_str().unwrap()
            )
        }));
    }
    assert_eq!(ran.status, i32::from(!all.is_empty()), "{json}");
    all
}

/// The visible part of a change in the pod; a link that is just coming up changes its own IPv6 by
/// itself.
fn state_of(host: &Host, pod: &Path) -> String {
    let neighbours = host.ip_in(pod, "-4 neigh show nud all");
    let mut neighbours: Vec<_> = neighbours
        .lines()
        .map(|line| line.split(' ').take(3).collect::<Vec<_>>().join(" "))
        .collect();
    neighbours.sort();
    let shown = ["-4 -o addr show", "-4 route show table all", "rule show"]
        .map(|what| host.ip_in(pod, what));
    shown.join("\n") + &neighbours.join("\n")
}

#[test]
fn nothing_differs_right_after_add_and_nothing_is_changed() {
    let Some((host, pod)) = attached("check::well") else {
        return;
    };
    assert_eq!(differences(&host), Vec::<String>::new());
    let before = (state_of(&host, &pod), files(host.dir.path()));
    let shown = run(&host, &["check"]).ok().stdout;
    golden::says("railctl", "check: nothing differs", &shown);
    assert!(golden::has(&shown, "2 attachments…0 "), "{shown}");
    assert_eq!(state_of(&host, &pod), before.0);
    assert!(files(host.dir.path()) == before.1, "check changed a file");
}

#[test]
fn every_difference_is_told_of_the_interface_that_has_it() {
    let Some((host, pod)) = attached("check::differences") else {
        return;
    };
    let mut said = Vec::new();
    for (change, back, told) in [
        (
            "link set net1 name rdma0",
            "link set rdma0 name net1",
            "net1: …rdma0",
        ),
        (
            "link set net2 mtu 1500",
            "link set net2 mtu 9000",
            "net2: …1500…9000",
        ),
        (
            "route del 172.16.0.0/12 via 172.18.0.1 table 101",
            "route add 172.16.0.0/12 via 172.18.0.1 table 101 metric 1001",
            "net2: …172.16.0.0/12 via 172.18.0.1 table 101 metric 1001",
        ),
        (
            "rule del from 172.16.0.0 table 100",
            "rule add from 172.16.0.0 table 100 priority 1000",
            "net1: …from 172.16.0.0 lookup 100",
        ),
        (
            "route add default via 172.16.0.1 dev net1",
            "route del default via 172.16.0.1 dev net1",
            "net1: …default route",
        ),
    ] {
        host.ip_in(&pod, change);
        let found = differences(&host);
        assert!(
            found.len() == 1 && golden::has(&found[0], told),
            "{change}: {found:?}"
        );
        said.extend(found);
        host.ip_in(&pod, back);
        assert_eq!(differences(&host), Vec::<String>::new(), "{back}");
    }
    golden::says("railctl", "check: differences", said.join("\n"));
    host.ip_in(&pod, "addr del 172.16.0.0/31 dev net1");
    let told = differences(&host);
    assert!(
        told.iter()
            .any(|one| golden::has(one, "net1: …address 172.16.0.0/31")),
        "{told:?}"
    );
    assert!(
        told.iter().all(|line| line.starts_with("net1: ")),
        "{told:?}"
    );
    let table = run(&host, &["check"]).stdout;
    let row: Vec<_> = table
        .lines()
        .nth(1)
        .unwrap()
        .split_whitespace()
        .take(4)
        .collect();
    assert_eq!(row, ["default/pod", "net1", "0", &vf_address(0)], "{table}");
}

/// No network asked for a probe: the gateways are those of the routes.
#[test]
fn cables_that_were_swapped_under_a_running_pod_are_found_and_told_apart() {
    let Some((host, pod)) = attached("check::cables") else {
        return;
    };
    host.swap_cables(true);
    let before = state_of(&host, &pod);
    let told = differences(&host);
    let line = |ifname: &str, rail: u8| {
        let (ours, theirs) = (16 + 2 * rail, 16 + 2 * (1 - rail));
        let (pf, other) = (pf_address(rail), 1 - rail);
        format!(
            "{ifname}: …172.{ours}.0.1 (leaf-su0-r{rail} swp2)…{ifname} ({} of PF {pf})…172.{theirs}.0.1 \
             (leaf-su0-r{other} swp2)…pool rail-{other}",
            vf_address(rail)
        )
    };
    let lines = [line("net1", 0), line("net2", 1)];
    assert!(
        told.len() == 2
            && told
                .iter()
                .zip(&lines)
                .all(|(told, facts)| golden::has(told, facts)),
        "{told:?}"
    );
    golden::says("railctl", "check: swapped cables", told.join("\n"));
    assert_eq!(state_of(&host, &pod), before, "a neighbour was left behind");
    host.swap_cables(false);
    assert_eq!(differences(&host), Vec::<String>::new());

    let leaf = host.leaf();
    host.ip(&format!("-n {leaf} addr flush dev leaf0"));
    let told = differences(&host).join("\n");
    golden::says("railctl", "check: a silent gateway", &told);
    host.ip(&format!("-n {leaf} link set leaf0 down"));
    let told = differences(&host).join("\n");
    assert!(
        told.contains("net1 (0000:01:10.0 of PF 0000:01:00.0)"),
        "{told}"
    );
}

#[test]
fn a_pod_that_is_gone_and_an_address_that_nobody_guards_differ() {
    let Some((host, pod)) = attached("check::gone") else {
        return;
    };
    for lease in host.leases() {
        std::fs::remove_file(lease).unwrap();
    }
    let told = differences(&host);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].starts_with("net1: its address"), "{told:?}");
    host.ip_in(&pod, "link del net2");
    host.hand_back(&pod, "net1");
    let told = differences(&host);
    assert!(
        told.iter()
            .any(|one| golden::has(one, "net1: …`railctl reap`")),
        "{told:?}"
    );
    run(&host, &["reap"]);
    let record = host.path("run/attachments/x:net1:y.json");
    std::fs::write(&record, "{").unwrap();
    let ran = run(&host, &["check"]);
    assert!(
        ran.status == 1 && ran.stdout.contains("`railctl reap --forget x:net1:y.json`"),
        "{ran:?}"
    );
    std::fs::remove_file(record).unwrap();
    assert_eq!(differences(&host), Vec::<String>::new());
}

/// A plan that was changed under a running pod.
#[test]
fn an_address_that_the_plan_does_not_give_any_more_differs() {
    let Some((host, _)) = attached("check::plan") else {
        return;
    };
    host.plan("rail-0", "172.16.0.8/31", "172.16.0.9", &[]);
    let told = differences(&host);
    golden::says("railctl", "check: another plan", told.join("\n"));
    assert!(
        told.len() == 1 && golden::has(&told[0], "net1: pool rail-0: …172.16.0.0 …172.16.0.8/31"),
        "{told:?}"
    );
}

/// Multus moves the default route where a pod asks for it, and a chained plugin the MAC: the
/// runtime's file says so.
#[test]
fn what_later_plugins_said_in_the_result_is_no_difference() {
    let Some((host, pod)) = attached("check::results") else {
        return;
    };
    host.ip_in(&pod, "route add default via 172.16.0.1 dev net1");
    let cached = json!({"kind": "cniCacheV1", "result": {"cniVersion": "1.0.0",
        "interfaces": [{"name": "net1", "sandbox": pod}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "172.16.0.1"}]}});
    let check = |script: &str| -> Value {
        let script = format!(
            "mount -t tmpfs none /var/lib && {script} exec {} check --output json",
            crate::harness::railctl().display()
        );
        let mut command = Command::new("unshare");
        command
            .args(["-m", "sh", "-c", &script])
            .env("RAIL_CNI_NODE_CONFIG", host.path("node.json"));
        let ran: crate::harness::Ran = command.output().unwrap().into();
        ran.json()["attachments"][0]["differences"].clone()
    };
    assert_eq!(check("").as_array().unwrap().len(), 1);
    for folder in ["/var/lib/cni/results", "/var/lib/cni/multus/results"] {
        let file = format!("{folder}/rail-0-c1-net1");
        assert_eq!(
            check(&format!("mkdir -p {folder} && echo '{cached}' > {file} &&")),
            json!([]),
            "{folder}"
        );
    }
}

/// As `vrf` behind rail-cni leaves it; a bridge stands for the VRF, which not every kernel has.
#[test]
fn a_master_that_took_the_routes_is_named() {
    let Some((host, pod)) = attached("check::master") else {
        return;
    };
    host.ip_in(&pod, "link add blue type bridge");
    host.ip_in(&pod, "link set net1 master blue");
    let is_told = || {
        differences(&host)
            .iter()
            .any(|line| line.starts_with("net1: blue"))
    };
    assert!(!is_told());
    host.ip_in(&pod, "route flush table 100");
    assert!(is_told(), "{:?}", differences(&host));
}
