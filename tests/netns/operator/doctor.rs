//! `railctl doctor`: each fault has its line, and a remedy that mends it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{files, run, two_rails};
use crate::harness::{Host, Ran, pf_address, rail, vf_address, with};

fn doctor(host: &Host) -> Value {
    let ran = run(host, &["doctor", "--output", "json"]);
    assert_eq!(ran.stderr, "");
    let json = ran.json();
    assert_eq!(
        ran.status,
        if json["ready"] == true { 0 } else { 1 },
        "{json}"
    );
    json
}

/// The verdicts of a check, with their texts and remedies.
fn lines(json: &Value, check: &str) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = json["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["check"] == check);
    all.map(|one| {
        (
            text(&one["verdict"]),
            text(&one["text"]),
            text(&one["remedy"]),
        )
    })
    .collect()
}

/// The host has the fault now: `check` says `verdict`, with these facts in its text and its remedy.
#[track_caller]
fn finds(host: &Host, check: &str, verdict: &str, facts: &str) {
    let json = doctor(host);
    let lines = lines(&json, check);
    let found = lines.iter().find_map(|(found, text, remedy)| {
        let shown = format!("{text} -> {remedy}");
        (found == verdict && golden::has(&shown, facts)).then_some(shown)
    });
    let Some(found) = found else {
        panic!("{check} {verdict} {facts:?}: {lines:#?}")
    };
    golden::says(
        "doctor",
        &format!("{check}: {}", host.steady(facts)),
        host.steady(&found),
    );
}

/// The host's rails are without a fault: other findings are the fixture's.
#[track_caller]
fn is_well(host: &Host) {
    let json = doctor(host);
    for check in json["checks"].as_array().unwrap() {
        let name = check["check"].as_str().unwrap();
        let of_the_fixture = [
            "namespace",
            "move",
            "programs",
            "rdma",
            "roce-trust",
            "routes",
            "runtime",
            "net.d",
        ]
        .contains(&name)
            || (name == "run" && check["text"].as_str().unwrap().contains("tmpfs"));
        assert!(
            check["verdict"] == "ok" || (of_the_fixture && check["verdict"] != "fail"),
            "{check}"
        );
    }
}

#[test]
fn a_node_that_is_ready() {
    let Some(host) = two_rails("doctor::ready") else {
        return;
    };
    is_well(&host);
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    let before = files(host.dir.path());
    is_well(&host);
    assert!(before == files(host.dir.path()), "doctor changed something");

    let table = run(&host, &["doctor"]).ok().stdout;
    assert!(table.contains("\nok    pf-link     2 PFs"), "{table}");
    assert!(
        table.contains("\nok    pools       node node-1 "),
        "{table}"
    );
    assert!(
        table.lines().last().unwrap().starts_with("ready: "),
        "{table}"
    );
    assert!(!table.contains('\x1b'), "no colours in a pipe: {table:?}");
}

#[test]
fn a_fresh_node_is_not_ready_and_nothing_is_made() {
    let Some(host) = Host::new("doctor::fresh") else {
        return;
    };
    finds(&host, "pools", "fail", "node node-1 ");
    finds(&host, "pf", "skip", "SR-IOV");
    assert!(!host.path("run").exists() && !host.path("store").exists());
}

#[test]
fn faults_of_a_pf() {
    let Some(host) = two_rails("doctor::pf") else {
        return;
    };
    let pf = host.path("sys/devices").join(pf_address(1));

    host.ip("link set pf1 down");
    finds(&host, "pf-link", "fail", "`ip link set pf1 up`");
    host.ip("link set pf1 up");
    host.ip(&format!("-n {} link set port1 down", host.leaf()));
    finds(&host, "pf-link", "fail", "rail 1: pf1 …carrier");
    host.ip(&format!("-n {} link set port1 up", host.leaf()));

    host.ip("link set pf1 mtu 1500");
    finds(&host, "pf-mtu", "fail", "`ip link set pf1 mtu 9216`");
    run(&host, &["doctor", "--mtu", "1500"]).ok();
    host.ip("link set pf1 mtu 9216");
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(1)).ok();
    host.ip("link set pf1 mtu 4000");
    finds(&host, "pf-mtu", "fail", "rail 1: pf1 …9000");
    host.ip("link set pf1 mtu 9216");
    host.cni("DEL", "c1", &pod, &rail(1)).ok();

    fs::remove_file(pf.join("driver")).unwrap();
    finds(&host, "pf", "fail", "drivers_probe");
    symlink(
        host.path("sys/bus/pci/drivers/mlx5_core"),
        pf.join("driver"),
    )
    .unwrap();
    is_well(&host);

    fs::remove_file(host.path("sys/bus/pci/devices").join(pf_address(1))).unwrap();
    finds(&host, "pf", "fail", "rail 1: …0000:02:00.0");
}

#[test]
fn faults_of_vfs() {
    let Some(host) = two_rails("doctor::vfs") else {
        return;
    };
    let at = |path: &str| host.path("sys/devices").join(path);
    let (pf, vf) = (at(&pf_address(0)), at(&vf_address(0)));

    fs::remove_file(vf.join("driver")).unwrap();
    finds(&host, "vfs", "fail", "rail 0: …1 of 1 VF");
    symlink(
        host.path("sys/bus/pci/drivers/mlx5_core"),
        vf.join("driver"),
    )
    .unwrap();

    fs::remove_file(pf.join("virtfn0")).unwrap();
    finds(
        &host,
        "vfs",
        "fail",
        "sys/bus/pci/devices/0000:01:00.0/sriov_numvfs`",
    );
    symlink(format!("../{}", vf_address(0)), pf.join("virtfn0")).unwrap();

    host.ip("addr add 192.0.2.1/24 dev vf0");
    finds(&host, "host-use", "fail", "192.0.2.1/24");
    host.ip("addr del 192.0.2.1/24 dev vf0");
    is_well(&host);

    // Rails without VFs: pods get the PFs themselves.
    for rail in 0..2 {
        fs::remove_file(at(&pf_address(rail)).join("virtfn0")).unwrap();
        fs::write(at(&pf_address(rail)).join("sriov_numvfs"), "0\n").unwrap();
    }
    finds(&host, "vfs", "ok", "PFs");
    host.ip("addr add 192.0.2.1/24 dev pf0");
    finds(
        &host,
        "host-use",
        "fail",
        "PF 0000:01:00.0 (pf0) …192.0.2.1/24",
    );
    host.ip("addr del 192.0.2.1/24 dev pf0");
    // A DEL leaves them as they were, and the ADD sets their MTU.
    host.ip("link set pf0 mtu 1500 down");
    is_well(&host);
    assert_eq!(run(&host, &["status"]).ok().status, 0);
    host.ip("link set pf0 mtu 9216 up");
    for rail in 0..2 {
        symlink(
            format!("../{}", vf_address(rail)),
            at(&pf_address(rail)).join("virtfn0"),
        )
        .unwrap();
        fs::write(at(&pf_address(rail)).join("sriov_numvfs"), "1\n").unwrap();
    }
    is_well(&host);

    // A DEL that was lost together with the record: all that is left is the name.
    host.ip("link set vf0 name net7");
    fs::rename(vf.join("net/vf0"), vf.join("net/net7")).unwrap();
    finds(&host, "leftovers", "warn", "`ip link set net7 down`");
}

/// sriov-cni#126: the namespace dies, no DEL comes.
#[test]
fn what_a_lost_del_left() {
    let Some(host) = two_rails("doctor::left") else {
        return;
    };
    // An address of its own: a namespace of another test may get the number of the dead one, and
    // with the same address it would be taken for it.
    host.plan(
        "rail-0",
        "172.16.201.0/31",
        "172.16.201.1",
        &["172.16.0.0/15", "172.16.0.0/12"],
    );
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    host.hand_back(&pod, "net1");
    finds(
        &host,
        "records",
        "warn",
        "0000:01:10.0 of default/pod (dead)",
    );
    finds(&host, "vfs", "warn", "rail 0: ");
    finds(&host, "leases", "warn", "`railctl release --dead`");
    run(&host, &["reap"]).ok();
    is_well(&host);
}

#[test]
fn faults_of_records_and_leases() {
    let Some(host) = two_rails("doctor::leases") else {
        return;
    };
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    let lease = host.leases().pop().unwrap();
    let content = fs::read_to_string(&lease).unwrap();

    fs::write(host.path("run/attachments/x:net1:y.json"), "{").unwrap();
    finds(
        &host,
        "records",
        "warn",
        "`railctl reap --forget x:net1:y.json`",
    );
    run(&host, &["reap", "--forget", "x:net1:y.json"]).ok();

    fs::write(&lease, "{").unwrap();
    finds(
        &host,
        "leases",
        "fail",
        "railctl release --address 172.16.0.0",
    );
    let mut later: Value = serde_json::from_str(&content).unwrap();
    later["since"] = json!("2999-01-01T00:00:00Z");
    fs::write(&lease, later.to_string()).unwrap();
    finds(&host, "clock", "warn", "2999-01-01T00:00:00Z");
    later["since"] = json!("1999-01-01T00:00:00Z");
    fs::write(&lease, later.to_string()).unwrap();
    finds(&host, "clock", "warn", "1999-01-01T00:00:00Z");
    later["bootId"] = json!("another");
    fs::write(&lease, later.to_string()).unwrap();
    finds(&host, "leases", "warn", "1 lease …`railctl release --dead`");
    fs::write(&lease, &content).unwrap();
    is_well(&host);

    host.plan("rail-0", "172.16.0.8/31", "172.16.0.9", &[]);
    finds(&host, "leases", "warn", "172.16.0.0 ");
    host.plan("rail-0", "172.16.0.0/31", "172.16.0.1", &[]);
    fs::write(&lease, content.replace("node-1", "node-0")).unwrap();
    finds(&host, "leases", "warn", "node-0");
    let renamed = content.replace(r#""pool":"rail-0""#, r#""pool":"compute-0""#);
    assert_ne!(renamed, content);
    fs::write(&lease, renamed).unwrap();
    finds(&host, "leases", "warn", "was named rail-0");
    fs::write(&lease, &content).unwrap();

    fs::remove_file(&lease).unwrap();
    finds(&host, "leases", "fail", "pod default/pod, container c1");
}

/// This node is missing from a pool, with near misses.
#[test]
fn faults_of_the_plan() {
    let Some(host) = two_rails("doctor::plan") else {
        return;
    };
    let ours = host.path("store/node-1");
    let file = ours.join("rail-1.json");

    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, &good[..20]).unwrap();
    finds(&host, "pools", "fail", "rail-1.json");
    fs::write(&file, &good).unwrap();

    // A write of many nodes was killed between two of them.
    fs::write(host.path("store/.unfinished"), "").unwrap();
    finds(&host, "pools", "warn", "plan");
    fs::remove_file(host.path("store/.unfinished")).unwrap();

    host.plan("rail-1", "172.16.0.0/30", "172.16.0.2", &[]);
    finds(&host, "pools", "fail", "rail-0 …rail-1 ");
    let mut full: Value = serde_json::from_str(&good).unwrap();
    full["exclusions"] = json!([{"startIP": "172.18.0.0", "endIP": "172.18.0.0"}]);
    fs::write(&file, full.to_string()).unwrap();
    finds(&host, "pools", "fail", "172.18.0.0/31");
    full["exclusions"] = json!([]);
    full["rail"] = json!(0);
    fs::write(&file, full.to_string()).unwrap();
    finds(&host, "pools", "fail", "pool rail-1 …rail 0");
    finds(&host, "pools", "fail", "rail 1 …`\"pool\": false`");

    fs::remove_file(&file).unwrap();
    finds(&host, "pools", "fail", "rail 1 …`\"pool\": false`");
    // Another IPAM plugin has the rail, or all rails.
    let node = fs::read_to_string(host.path("node.json")).unwrap();
    let of_others = |rails: &[u8]| {
        let mut node: Value = serde_json::from_str(&node).unwrap();
        for row in node["rails"].as_array_mut().unwrap() {
            if rails.iter().any(|rail| row["rail"] == *rail) {
                row["pool"] = json!(false);
            }
        }
        fs::write(host.path("node.json"), node.to_string()).unwrap();
    };
    of_others(&[1]);
    is_well(&host);
    of_others(&[0]);
    finds(&host, "pools", "fail", "rail 1 …`\"pool\": false`");
    let rail_0 = fs::read_to_string(ours.join("rail-0.json")).unwrap();
    fs::remove_file(ours.join("rail-0.json")).unwrap();
    of_others(&[0, 1]);
    finds(&host, "pools", "skip", "IPAM");
    fs::write(ours.join("rail-0.json"), rail_0).unwrap();
    fs::write(host.path("node.json"), node).unwrap();

    fs::create_dir(host.path("store/node-2")).unwrap();
    fs::write(host.path("store/node-2/rail-1.json"), &good).unwrap();
    finds(&host, "pools", "fail", "node node-1 …pool rail-1…node-2");
    fs::write(&file, &good).unwrap();
    is_well(&host);

    fs::rename(&ours, host.path("store/Node-1.example.com")).unwrap();
    finds(
        &host,
        "pools",
        "fail",
        "node node-1 …directory Node-1.example.com",
    );
    fs::create_dir(&ours).unwrap();
    fs::write(&file, &good).unwrap();
    finds(&host, "pools", "fail", "pool …Node-1.example.com");
}

#[test]
fn faults_of_node_json_and_of_the_folders() {
    let Some(host) = two_rails("doctor::node") else {
        return;
    };
    let rails = json!([{"rail": 0, "pf": pf_address(0)}, {"rail": 1, "pf": pf_address(1)}]);
    host.set_node(json!({ "rials": rails }));
    finds(&host, "node.json", "fail", "rails?");
    // The other keys count all the same.
    finds(&host, "pools", "ok", "node node-1 has 2 allocations");
    fs::write(host.path("node.json"), "{").unwrap();
    finds(&host, "node.json", "fail", "EOF");
    host.set_node(
        json!({ "rails": [{"rail": 0, "pf": pf_address(0)}, {"rail": 1, "pf": pf_address(0)}] }),
    );
    finds(&host, "node.json", "fail", "rails 0 and 1 ");
    finds(&host, "node.json", "fail", "0000:02:00.0");
    // One row has the name of the netdev.
    fs::create_dir_all(host.path("sys/class/net/pf0")).unwrap();
    symlink(
        host.path("sys/devices").join(pf_address(0)),
        host.path("sys/class/net/pf0/device"),
    )
    .unwrap();
    host.set_node(json!({ "rails": [{"rail": 0, "pf": pf_address(0)}, {"rail": 1, "pf": "pf0"}] }));
    finds(&host, "node.json", "fail", "rails 0 and 1 ");
    host.set_node(json!({ "rails": rails, "policy": {"pfs": [pf_address(0)], "rails": [0]} }));
    finds(&host, "pf", "fail", "policy.pfs …0000:02:00.0");
    finds(&host, "node.json", "fail", "policy.rails");
    host.set_node(json!({ "rails": rails }));

    let mode = |path: &str, mode: u32| {
        fs::set_permissions(host.path(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("store", 0o777);
    finds(&host, "store", "fail", "chmod go-w");
    mode("store", 0o755);
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    mode("run/leases", 0o777);
    finds(&host, "run", "fail", "run/leases");
    mode("run/leases", 0o700);
    is_well(&host);

    fs::remove_dir_all(host.path("run")).unwrap();
    fs::write(host.path("run"), "").unwrap();
    finds(&host, "run", "fail", "cannot open");
}

/// In the namespace of the test: a pod's begins with these values.
#[test]
fn a_sysctl_that_beats_a_rails_own() {
    let Some(host) = two_rails("doctor::sysctl") else {
        return;
    };
    // The thread's own, and not the process's: a child has it.
    let set = |value: &str| {
        let script = format!("echo {value} > /proc/sys/net/ipv4/conf/all/arp_ignore");
        assert!(
            Command::new("sh")
                .args(["-c", &script])
                .status()
                .unwrap()
                .success()
        );
    };
    set("8");
    finds(
        &host,
        "sysctl",
        "fail",
        "`sysctl net.ipv4.conf.all.arp_ignore=0`",
    );
    set("0");
    is_well(&host);
}

/// Folders that node.json has no key for, in a mount namespace of their own.
fn doctor_where(host: &Host, script: &str) -> Ran {
    let script = format!(
        "set -e; for dir in /opt /etc /usr/local; do mount -t tmpfs none $dir; done; \
         mkdir -p /opt/cni/bin /etc/cni/net.d /usr/local/bin; {script}; exec {} doctor --output json",
        crate::harness::railctl().display()
    );
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", &script])
        .env("RAIL_CNI_NODE_CONFIG", host.path("node.json"));
    command.output().unwrap().into()
}

#[test]
fn plugins_must_be_beside_each_other_and_of_one_version() {
    let Some(host) = two_rails("doctor::programs") else {
        return;
    };
    let ours = Path::new(env!("CARGO_BIN_EXE_rail-cni"))
        .parent()
        .unwrap()
        .display();
    let found = |script: &str| {
        let ran = doctor_where(&host, script);
        lines(&ran.json(), "programs")
    };
    let install = format!("cp {ours}/rail-cni {ours}/rail-ipam /opt/cni/bin");
    let well = found(&install);
    assert_eq!(well[0].0, "ok", "{well:?}");
    let beside = found("true");
    assert_eq!(beside[0].0, "ok", "{beside:?}");
    let absent = found(&format!(
        "cp {ours}/railctl /usr/local/bin; exec railctl doctor --output json"
    ));
    assert_eq!(absent[0].0, "warn", "{absent:?}");
    let alone = found(&format!("cp {ours}/rail-cni /opt/cni/bin"));
    assert!(
        alone[0].0 == "fail" && alone[0].1.contains("/opt/cni/bin/rail-ipam"),
        "{alone:?}"
    );
    let other = found(&format!(
        "{install}; printf '#!/bin/sh\\necho rail-ipam 9.9.9\\n' > /opt/cni/bin/rail-ipam"
    ));
    assert!(
        other[0].0 == "fail" && other[0].1.contains("9.9.9"),
        "{other:?}"
    );
    let version = env!("CARGO_PKG_VERSION");
    let commit = found(&format!(
        "{install}; printf '#!/bin/sh\\necho \"rail-ipam {version} (0123456789ab)\"\\n' > /opt/cni/bin/rail-ipam"
    ));
    assert!(
        commit[0].0 == "warn" && commit[0].1.contains("(0123456789ab)"),
        "{commit:?}"
    );
    // Rolled back: pods start with the plugins of that version.
    let older = found(
        "for name in rail-cni rail-ipam; do printf \"#!/bin/sh\\necho $name 0.1.0\\n\" >/opt/cni/bin/$name; \
         chmod 755 /opt/cni/bin/$name; done",
    );
    assert!(
        older[0].0 == "warn" && older[0].1.contains("0.1.0"),
        "{older:?}"
    );
    let another = found(&format!(
        "{install}; printf '#!/bin/sh\\necho another\\n' > /opt/cni/bin/rail-cni"
    ));
    assert!(
        another[0].0 == "fail" && another[0].1.contains("/opt/cni/bin/rail-cni"),
        "{another:?}"
    );
}

#[test]
fn callers_tell_their_libcni() {
    let Some(host) = two_rails("doctor::runtimes") else {
        return;
    };
    let go = |path: &str, version: &str| {
        format!(
            "printf 'dep\\tgithub.com/containernetworking/cni\\t{version}\\th1:x=\\n' > {path}; "
        )
    };
    let script = go("/usr/local/bin/containerd", "v1.1.2")
        + &go("/opt/cni/bin/multus", "v1.3.0")
        + "echo '{\"cniVersion\": \"0.3.1\", \"name\": \"m\", \"type\": \"multus\"}' > /etc/cni/net.d/00-multus.conf; \
           echo '{' > /etc/cni/net.d/10-half.conflist";
    let json = doctor_where(&host, &script).json();
    let runtimes = lines(&json, "runtime");
    if !Path::new("/usr/bin/containerd").exists() {
        assert!(runtimes[0].1.contains("libcni v1.1.2"), "{runtimes:?}");
    }
    assert!(
        runtimes.last().unwrap().1.contains("libcni v1.3.0"),
        "{runtimes:?}"
    );
    let networks = lines(&json, "net.d");
    assert!(
        networks
            .iter()
            .any(|(_, text, _)| text.ends_with("multus, cniVersion 0.3.1")),
        "{networks:?}"
    );
    assert!(
        networks
            .iter()
            .any(|(verdict, text, _)| verdict == "warn" && text.contains("10-half")),
        "{networks:?}"
    );
    // It would lose every DEL.
    if !Path::new("/usr/bin/containerd").exists() {
        let newer = script.replace("0.3.1", "1.1.0");
        let networks = lines(&doctor_where(&host, &newer).json(), "net.d");
        let failed = networks
            .iter()
            .find(|(verdict, ..)| verdict == "fail")
            .expect("multus at 1.1.0");
        assert!(
            failed.1.contains("containerd with libcni v1.1.2"),
            "{failed:?}"
        );
        assert!(failed.2.contains("\"cniVersion\": \"1.0.0\""), "{failed:?}");
    }
    // A skip nobody sees is a defect.
    let nothing = doctor_where(&host, "rm -r /etc/cni").json();
    assert!(lines(&nothing, "net.d")[0].0 == "skip");
}

/// Both managers keep a file for each netdev, named by its index.
#[test]
fn managers_that_configure_vfs() {
    let Some(host) = two_rails("doctor::managers") else {
        return;
    };
    let index = host.json(None, "link show vf0")[0]["ifindex"].to_string();
    for (folder, state, manager) in [
        (
            "/run/systemd/netif/links",
            "ADMIN_STATE=configured",
            "systemd-networkd",
        ),
        (
            "/run/NetworkManager/devices",
            "managed=true",
            "NetworkManager",
        ),
    ] {
        let script =
            format!("mount -t tmpfs none /run; mkdir -p {folder}; echo {state} > {folder}/{index}");
        let json = doctor_where(&host, &script).json();
        let told = lines(&json, "managers");
        assert!(
            told[0].0 == "warn" && told[0].1.contains(&format!("{manager} manages")),
            "{told:?}"
        );
    }
}

/// A lease that nobody renews, and a program that configures what returns.
#[test]
fn what_changes_addresses_of_the_host_that_go_into_pods() {
    let Some(host) = two_rails("doctor::host_addresses") else {
        return;
    };
    let rails: Vec<_> = (0..2)
        .map(|rail| json!({"rail": rail, "pf": pf_address(rail)}))
        .collect();
    let has_lines = |script: &str, name: &str| lines(&doctor_where(&host, script).json(), name);
    host.ip("addr add 172.16.0.0/31 dev vf0");
    assert!(has_lines("true", "host-use")[0].1.contains("172.16.0.0/31"));
    host.set_node(json!({"rails": rails, "policy": {"hostAddresses": true}}));
    assert_eq!(has_lines("true", "host-use")[0].0, "ok");
    assert_eq!(has_lines("true", "host-addresses")[0].0, "ok");
    host.ip("addr change 172.16.0.0/31 dev vf0 valid_lft 5000 preferred_lft 5000");
    let index = host.json(None, "link show vf0")[0]["ifindex"].to_string();
    let folder = "/run/systemd/netif/links";
    let script = format!(
        "mount -t tmpfs none /run; mkdir -p {folder}; echo ADMIN_STATE=configured > {folder}/{index}"
    );
    let told = has_lines(&script, "host-addresses");
    assert!(told[0].0 == "warn" && told[0].1.contains("vf0"), "{told:?}");
    assert!(
        told[1].0 == "warn" && told[1].1.contains("systemd-networkd"),
        "{told:?}"
    );
    host.ip("link set vf0 up");
    host.ip("route add default via 172.16.0.1 dev vf0");
    assert!(has_lines("true", "host-use")[0].1.contains("default route"));
}

/// The files of kubelet, flannel and the first network, and the node's own routes.
#[test]
fn routes_that_take_what_pods_reach_by_eth0() {
    let Some(host) = two_rails("doctor::routes") else {
        return;
    };
    let found = |script: &str| lines(&doctor_where(&host, script).json(), "routes");
    let nothing = found("true");
    assert!(
        nothing[0].0 == "skip" && nothing[0].1.contains("clusterNetworks"),
        "{nothing:?}"
    );
    let dns = |address: &str| {
        format!(
            "mount -t tmpfs none /var/lib; mkdir /var/lib/kubelet; \
             printf 'kind: KubeletConfiguration\\nclusterDNS:\\n- {address}\\n' > /var/lib/kubelet/config.yaml"
        )
    };
    assert_eq!(found(&dns("10.96.0.10"))[0].0, "ok");
    let subnet = |subnet: &str| {
        let network = json!({"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "bridge",
            "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]]}}]});
        format!("echo '{network}' > /etc/cni/net.d/10-a.conflist")
    };
    let flannel = "mount -t tmpfs none /run; mkdir /run/flannel; echo FLANNEL_NETWORK=172.28.0.0/16 > /run/flannel/subnet.env";
    for (script, text) in [
        (
            dns("172.20.0.10"),
            "172.20.0.10/32…/var/lib/kubelet/config.yaml",
        ),
        (
            subnet("172.24.1.0/24"),
            "172.24.1.0/24…/etc/cni/net.d/10-a.conflist",
        ),
        (flannel.to_owned(), "172.28.0.0/16…/run/flannel/subnet.env"),
    ] {
        let told = found(&script);
        let facts = format!("172.16.0.0/12 …rail-0 …{text}");
        assert!(
            told[0].0 == "fail" && golden::has(&told[0].1, &facts),
            "{told:?}"
        );
        golden::says("doctor", &format!("routes: {text}"), &told[0].1);
    }
    host.ip("link add eth0 type veth peer name peer0");
    host.ip("link set peer0 up");
    host.ip("addr add 172.29.0.7/16 dev eth0");
    host.ip("link set eth0 up");
    let told = found(&dns("10.96.0.10"));
    let facts = "172.16.0.0/12 …rail-0 …172.29.0.0/16…eth0";
    assert!(
        told[0].0 == "warn" && golden::has(&told[0].1, facts),
        "{told:?}"
    );
}

/// The networks in the runtime's folder; those that Multus has from the API server are known when
/// the first pod has come.
#[test]
fn networks_that_the_node_knows_are_what_its_pfs_are_measured_by() {
    let Some(host) = two_rails("doctor::networks") else {
        return;
    };
    host.ip("link set pf0 mtu 4000");
    host.ip("link set pf1 mtu 4000");
    let found = |mtu: u32, check: &str| {
        let network = |number: u8| {
            let plugin = with(rail(number), json!({"mtu": mtu, "rdma": "required"}));
            let list = json!({"cniVersion": "1.0.0", "name": format!("rail-{number}"), "plugins": [plugin]});
            format!("echo '{list}' > /etc/cni/net.d/2{number}-rail.conflist")
        };
        lines(
            &doctor_where(&host, &format!("{}; {}", network(0), network(1))).json(),
            check,
        )
    };
    assert_eq!(found(4000, "pf-mtu")[0].0, "ok");
    let told = found(4200, "pf-mtu");
    assert!(told.len() == 2 && told[1].0 == "fail", "{told:?}");
    assert!(
        golden::has(&told[1].1, "rail 1: pf1 …4000…rail-1 …4200"),
        "{told:?}"
    );
    let rdma = found(4000, "rdma");
    assert!(
        rdma[0].0 == "fail" && rdma[0].1.contains("rail-0"),
        "{rdma:?}"
    );
    // A pod's network is known by its record.
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &with(rail(0), json!({"mtu": 4000})))
        .ok();
    let told = lines(&doctor_where(&host, "true").json(), "pf-mtu");
    assert!(
        told.len() == 1 && told[0].1.starts_with("rail 1: "),
        "{told:?}"
    );
}

/// Of two VFs one is left: most pods start.
#[test]
fn a_fault_is_a_warning_while_another_vf_of_the_rail_is_to_be_had() {
    let Some(host) = two_rails("doctor::another") else {
        return;
    };
    let (pf, vf) = (host.path("sys/devices").join(pf_address(0)), "0000:01:10.1");
    let device = host.path("sys/devices").join(vf);
    fs::create_dir_all(device.join("net/vf9")).unwrap();
    fs::create_dir_all(host.path("sys/class/net/vf9")).unwrap();
    symlink(&device, host.path("sys/class/net/vf9/device")).unwrap();
    symlink(format!("../{}", pf_address(0)), device.join("physfn")).unwrap();
    symlink(
        host.path("sys/bus/pci/drivers/mlx5_core"),
        device.join("driver"),
    )
    .unwrap();
    symlink(&device, host.path("sys/bus/pci/devices").join(vf)).unwrap();
    symlink(format!("../{vf}"), pf.join("virtfn1")).unwrap();
    host.ip("link add vf9 type veth peer name leaf9");
    host.ip("addr add 192.0.2.1/24 dev vf0");
    finds(&host, "host-use", "warn", "192.0.2.1/24");
    // A pod takes the other one.
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &with(rail(0), json!({"device": "vf9"})))
        .ok();
    finds(&host, "host-use", "fail", "192.0.2.1/24");
}

/// A PF of a dead pod is neither down nor to be taken up by hand: the next ADD puts it right.
#[test]
fn a_pf_that_a_dead_pod_left_is_told_once() {
    let Some(host) = two_rails("doctor::dead_pf") else {
        return;
    };
    for rail in 0..2 {
        let pf = host.path("sys/devices").join(pf_address(rail));
        fs::remove_file(pf.join("virtfn0")).unwrap();
        fs::write(pf.join("sriov_numvfs"), "0\n").unwrap();
        fs::create_dir_all(host.path(&format!("sys/class/net/pf{rail}"))).unwrap();
        symlink(&pf, host.path(&format!("sys/class/net/pf{rail}/device"))).unwrap();
    }
    is_well(&host);
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &with(rail(0), json!({"device": "pf0"})))
        .ok();
    run(&host, &["doctor"]).ok();
    host.hand_back(&pod, "net1");
    let net = host.path("sys/devices").join(pf_address(0)).join("net");
    fs::rename(net.join("pf0"), net.join("net1")).unwrap();
    let json = doctor(&host);
    assert_eq!(json["counts"]["fail"], 0, "{json}");
    assert!(!json.to_string().contains("ip link set net1"), "{json}");
    finds(&host, "records", "warn", "1 attachment ");
    let shown = run(&host, &["status"]);
    assert!(
        shown.status == 1 && !shown.stdout.contains("ip link set"),
        "{}",
        shown.stdout
    );
}

/// A veth has no DCB, so what sysfs has of a port decides.
#[test]
fn ports_are_compared_with_what_node_json_wants() {
    let Some(host) = two_rails("doctor::roce") else {
        return;
    };
    let rails = json!([{"rail": 0, "pf": pf_address(0)}, {"rail": 1, "pf": pf_address(1)}]);
    let write = |rail: u8, file: &str, text: &str| {
        let file = host.path(&format!("sys/class/net/pf{rail}")).join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    for rail in 0..2 {
        write(rail, "qos/trust", "dscp\n");
        for (point, priority) in ["roce_np", "roce_rp"]
            .iter()
            .flat_map(|one| (0..8).map(move |at| (one, at)))
        {
            write(rail, &format!("ecn/{point}/enable/{priority}"), "1\n");
        }
    }
    finds(&host, "roce-trust", "skip", "`roce`");
    host.set_node(
        json!({ "rails": rails, "roce": {"trust": "dscp", "pfc": [3], "tos": 96, "ecn": true} }),
    );
    finds(&host, "rdma", "fail", "node.json …`roce`");
    finds(&host, "roce-trust", "ok", "2 ports: trust dscp");
    finds(&host, "roce-ecn", "ok", "2 ports: ECN ");
    finds(&host, "roce-pfc", "skip", "rail 0, rail 1: …mlx5_core ");
    finds(&host, "roce-tos", "skip", "mlx5_core ");
    write(1, "qos/trust", "pcp\n");
    finds(
        &host,
        "roce-trust",
        "fail",
        "`mlnx_qos -i pf1 --trust dscp`",
    );
    finds(&host, "roce-tos", "skip", "trust pcp …ToS 96");
    write(0, "ecn/roce_rp/enable/3", "0\n");
    let file = host.path("sys/class/net/pf0/ecn/roce_rp/enable/3");
    finds(
        &host,
        "roce-ecn",
        "fail",
        &format!("run `echo 1 > {}`", file.display()),
    );
    // Without a wish, the ports are compared with each other.
    host.set_node(json!({ "rails": rails, "roce": {} }));
    finds(
        &host,
        "roce-trust",
        "warn",
        "rail 1: pf1: trust pcp…rail 0: trust dscp",
    );
    // A wish that no port can satisfy.
    host.set_node(json!({ "rails": rails, "roce": {"tos": 96, "pfc": []} }));
    finds(&host, "node.json", "fail", "roce.tos");
}

#[test]
fn what_rdma_needs_is_checked_when_it_is_asked_for() {
    let Some(host) = two_rails("doctor::rdma") else {
        return;
    };
    let asked = |check: &str| {
        let json = run(&host, &["doctor", "--rdma", "--output", "json"]).json();
        lines(&json, check)
    };
    assert_eq!(lines(&doctor(&host), "rdma-port"), []);
    let none = asked("rdma");
    assert!(
        none[0].0 == "fail" && none[0].1.contains("--rdma"),
        "{none:?}"
    );
    assert_eq!(asked("rdma-port")[0].0, "skip");
    assert_eq!(asked("rdma-gid")[0].0, "skip");
    assert_eq!(asked("rdma-mtu")[0].0, "ok");
    // A line for each runtime that this machine has, if only those of other tests.
    assert!(!asked("memlock").is_empty());
    host.ip("link set pf1 mtu 1500");
    host.ip("link set vf1 mtu 1500");
    let told = asked("rdma-mtu");
    assert!(
        told[0].0 == "warn" && told[0].1.starts_with("rail 1: MTU 1500 of pf1"),
        "{told:?}"
    );
    for (rail, state) in [(0, "4: ACTIVE"), (1, "1: DOWN")] {
        let port = host
            .path("sys/devices")
            .join(pf_address(rail))
            .join("infiniband/mlx5_0/ports/1");
        let netdev = format!("pf{rail}");
        for (file, text) in [
            ("link_layer", "Ethernet"),
            ("state", state),
            ("gid_attrs/types/1", "RoCE v2"),
            ("gid_attrs/ndevs/1", &netdev),
        ] {
            fs::create_dir_all(port.join(file).parent().unwrap()).unwrap();
            fs::write(port.join(file), format!("{text}\n")).unwrap();
        }
    }
    let told = asked("rdma-port");
    assert!(
        told[0].0 == "fail" && golden::has(&told[0].1, "rail 1: mlx5_0/1 of 0000:02:00.0 …DOWN"),
        "{told:?}"
    );
    assert_eq!(asked("rdma-gid")[0].0, "ok");
}
