//! Broken nodes, as they are found at three in the morning: one command leads to the cause, and its
//! advice, carried out as it is printed, ends it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{kept_away, run, two_rails};
use crate::harness::{Host, Ran, pf_address, rail, vf_address, with};

/// The failures that doctor reports, as `CHECK: TEXT -> REMEDY`.
fn faults(host: &Host) -> Vec<String> {
    let json = run(host, &["doctor", "--output", "json"]).json();
    let all = json["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["verdict"] == "fail");
    all.map(|one| {
        let text = |key: &str| {
            one[key]
                .as_str()
                .unwrap()
                .replace(host.dir.path().to_str().unwrap(), "")
        };
        format!("{}: {} -> {}", text("check"), text("text"), text("remedy"))
    })
    .collect()
}

/// These checks of doctor fail and no other, and say and advise what the golden file has.
#[track_caller]
fn says(host: &Host, case: &str, checks: &[&str]) {
    let faults = faults(host);
    let names: Vec<_> = faults
        .iter()
        .map(|fault| fault.split(": ").next().unwrap())
        .collect();
    assert_eq!(names, checks, "{faults:#?}");
    golden::says(
        "doctor",
        &format!("a broken node: {case}"),
        host.steady(&faults.join("\n")),
    );
}

/// ADD's error for rail `number` has these facts, and the wording of the golden file.
#[track_caller]
fn is_refused(host: &Host, number: u8, case: &str, facts: &str) {
    let refusal = refusal(host, number);
    assert!(golden::has(&refusal, facts), "{facts}: {refusal}");
    golden::says(
        "plugins",
        &format!("ADD on a broken node: {case}"),
        host.steady(&refusal),
    );
}

/// The remedies that doctor prints now, carried out as they are printed: commands in a shell, keys
/// of node.json in it. What follows an `or` or `if` is another way.
fn carry_out(host: &Host) {
    let json = run(host, &["doctor", "--output", "json"]).json();
    let failed = json["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["verdict"] == "fail");
    let mut remedies: Vec<_> = failed
        .map(|one| one["remedy"].as_str().unwrap().to_owned())
        .collect();
    remedies.dedup();
    remedies
        .iter()
        .for_each(|remedy| carry_out_one(host, remedy));
}

fn carry_out_one(host: &Host, remedy: &str) {
    let first = remedy
        .split("; or")
        .next()
        .unwrap()
        .split("; if")
        .next()
        .unwrap()
        .split("; else")
        .next()
        .unwrap();
    let mut done = 0;
    for command in first.split('`').skip(1).step_by(2) {
        done += 1;
        if command.starts_with('"') {
            let keys: Value = serde_json::from_str(&format!("{{{command}}}")).unwrap();
            let file = host.path("node.json");
            let node: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            fs::write(&file, with(node, keys).to_string()).unwrap();
            continue;
        }
        let ours = Path::new(env!("CARGO_BIN_EXE_rail-cni"))
            .parent()
            .unwrap()
            .display();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", command])
            .env("RAIL_CNI_NODE_CONFIG", host.path("node.json"));
        shell.env("PATH", format!("{ours}:{}", std::env::var("PATH").unwrap()));
        let ran: Ran = shell.output().unwrap().into();
        assert_eq!(ran.status, 0, "{command}: {ran:?}");
    }
    assert!(done > 0, "nothing to carry out in {remedy:?}");
}

/// Pods on both rails start and end.
#[track_caller]
fn is_mended(host: &Host) {
    assert_eq!(faults(host), [] as [&str; 0]);
    for number in 0..2 {
        let pod = host.add_netns(&format!("mended{number}"));
        host.cni("ADD", "mended", &pod, &rail(number)).ok();
        host.cni("DEL", "mended", &pod, &rail(number)).ok();
        host.delete_netns(&pod);
    }
}

/// ADD's error, without the folder of the test.
#[track_caller]
fn refusal(host: &Host, number: u8) -> String {
    let pod = host.add_netns(&format!("refused{number}"));
    let ran = host.cni("ADD", "refused", &pod, &rail(number));
    host.delete_netns(&pod);
    ran.msg().replace(host.dir.path().to_str().unwrap(), "")
}

fn list(host: &Host, pfs: [&str; 2]) {
    let rails: Vec<_> = pfs
        .iter()
        .enumerate()
        .map(|(rail, pf)| json!({"rail": rail, "pf": pf}))
        .collect();
    host.set_node(json!({ "rails": rails }));
}

#[test]
fn rails_that_are_swapped_in_node_json() {
    let Some(host) = two_rails("broken::swapped") else {
        return;
    };
    list(&host, [&pf_address(1), &pf_address(0)]);
    is_refused(
        &host,
        0,
        "swapped rails",
        "rail 0: VF 0000:01:10.0 (vf0) …0000:01:00.0 …rail 1…0000:02:00.0",
    );
    says(&host, "swapped rails", &["rail-order", "rail-order"]);
    carry_out(&host);
    is_mended(&host);
}

/// The hardware may count otherwise, and node.json may be right.
#[test]
fn another_order_of_the_hardware_is_no_fault() {
    let Some(host) = two_rails("broken::order") else {
        return;
    };
    let rails = json!([{"rail": 0, "pf": pf_address(1)}, {"rail": 1, "pf": pf_address(0)}]);
    host.set_node(json!({ "rails": rails, "railsInPciOrder": false }));
    assert_eq!(faults(&host), [] as [&str; 0]);
    let told = refusal(&host, 0);
    assert!(told.contains("0000:02:00.0 for rail 0"), "{told}");
    // The device plugin's report to the kubelet takes precedence, too.
    host.set_node(json!({ "rails": rails }));
    let doctor = |devices: [String; 2]| {
        let data = json!({"Data": {"RegisteredDevices": {"nvidia.com/rail-0": [devices[0]], "nvidia.com/rail-1": [devices[1]]}}});
        let script = format!(
            "mount -t tmpfs none /var/lib; mkdir -p /var/lib/kubelet/device-plugins; \
             echo '{data}' > /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint; \
             {} doctor",
            crate::harness::railctl().display()
        );
        let mut command = Command::new("unshare");
        command
            .args(["-m", "sh", "-c", &script])
            .env("RAIL_CNI_NODE_CONFIG", host.path("node.json"));
        Ran::from(command.output().unwrap())
    };
    doctor([vf_address(1), vf_address(0)]).ok();
    list(&host, [&pf_address(0), &pf_address(1)]);
    let ran = doctor([vf_address(1), vf_address(0)]);
    let facts =
        "FAIL  rail-order  …0000:01:00.0 …rail 0…nvidia.com/rail-0…0000:02:10.0…0000:02:00.0";
    assert!(
        ran.status == 1 && ran.stdout.lines().any(|line| golden::has(line, facts)),
        "{}",
        ran.stdout
    );
}

#[test]
fn one_pf_for_two_rails() {
    let Some(host) = two_rails("broken::twice") else {
        return;
    };
    list(&host, [&pf_address(0), &pf_address(0)]);
    is_refused(
        &host,
        1,
        "one PF for two rails",
        "rail 1: …0000:01:00.0 …rail 1 …0000:02:10.0 (vf1) …0000:02:00.0",
    );
    says(&host, "one PF for two rails", &["node.json"]);
    carry_out(&host);
    is_mended(&host);
}

#[test]
fn a_pf_that_is_down() {
    let Some(host) = two_rails("broken::down") else {
        return;
    };
    host.ip("link set pf1 down");
    says(&host, "a PF is down", &["pf-link"]);
    assert!(
        run(&host, &["status"])
            .stdout
            .contains("`ip link set pf1 up`")
    );
    carry_out(&host);
    is_mended(&host);
}

#[test]
fn a_pf_with_a_smaller_mtu_than_its_networks() {
    let Some(host) = two_rails("broken::mtu") else {
        return;
    };
    host.ip("link set pf0 mtu 1500");
    is_refused(&host, 0, "a smaller MTU", "rail 0: mtu: 9000 …1500 …pf0");
    says(&host, "a smaller MTU", &["pf-mtu"]);
    carry_out(&host);
    is_mended(&host);
}

/// Left of a host-network set-up.
#[test]
fn a_rails_only_vf_with_an_address_of_the_host() {
    let Some(host) = two_rails("broken::address") else {
        return;
    };
    host.ip("addr add 192.0.2.1/24 dev vf0");
    let why = refusal(&host, 0);
    is_refused(
        &host,
        0,
        "an address of the host",
        "rail 0: VF 0000:01:10.0 (vf0) …192.0.2.1/24",
    );
    says(&host, "an address of the host", &["host-use"]);
    carry_out_one(&host, &why);
    is_mended(&host);
}

/// The kernel's part is played here: VFs come when their number is written.
#[test]
fn no_vfs_on_a_rail() {
    let Some(host) = two_rails("broken::vfs") else {
        return;
    };
    let pf = host.path("sys/devices").join(pf_address(0));
    fs::remove_file(pf.join("virtfn0")).unwrap();
    fs::write(pf.join("sriov_numvfs"), "0\n").unwrap();
    says(&host, "no VFs", &["vfs"]);
    carry_out(&host);
    assert_eq!(fs::read_to_string(pf.join("sriov_numvfs")).unwrap(), "1\n");
    symlink(format!("../{}", vf_address(0)), pf.join("virtfn0")).unwrap();
    is_mended(&host);
}

/// The kernel's part is played here: it binds the driver of what is written.
#[test]
fn a_vf_without_a_driver() {
    let Some(host) = two_rails("broken::unbound") else {
        return;
    };
    let vf = host.path("sys/devices").join(vf_address(0));
    fs::remove_file(vf.join("driver")).unwrap();
    says(&host, "a VF without a driver", &["vfs"]);
    carry_out(&host);
    assert_eq!(
        fs::read_to_string(host.path("sys/bus/pci/drivers_probe")).unwrap(),
        "0000:01:10.0\n"
    );
    symlink(
        host.path("sys/bus/pci/drivers/mlx5_core"),
        vf.join("driver"),
    )
    .unwrap();
    is_mended(&host);
}

#[test]
fn a_store_that_knows_the_node_by_another_name() {
    let Some(host) = two_rails("broken::name") else {
        return;
    };
    fs::rename(
        host.path("store/node-1"),
        host.path("store/Node-1.example.com"),
    )
    .unwrap();
    assert!(
        refusal(&host, 0).contains("Node-1.example.com"),
        "{}",
        refusal(&host, 0)
    );
    says(&host, "another name in the store", &["pools"]);
    carry_out(&host);
    is_mended(&host);
}

#[test]
fn a_log_that_cannot_be_written() {
    let Some(host) = two_rails("broken::log") else {
        return;
    };
    let (folder, file) = (host.path("log"), host.path("log/rail-cni.log"));
    let rails = json!([{"rail": 0, "pf": pf_address(0)}, {"rail": 1, "pf": pf_address(1)}]);
    host.set_node(json!({"rails": rails, "log": {"file": file}}));
    says(&host, "no directory for the log", &["log"]);
    carry_out(&host);
    is_mended(&host);
    assert!(fs::metadata(&file).unwrap().len() > 0);

    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    says(&host, "a directory in the place of the log", &["log"]);
    carry_out(&host);
    is_mended(&host);

    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "").unwrap();
    says(&host, "a file in the place of the directory", &["log"]);
}

/// Of /opt/cni/bin, in a mount namespace of its own.
#[test]
fn an_ipam_plugin_that_is_missing_or_not_executable() {
    let Some(host) = two_rails("broken::program") else {
        return;
    };
    let ours = Path::new(env!("CARGO_BIN_EXE_rail-cni"))
        .parent()
        .unwrap()
        .display();
    let doctor = |script: &str| {
        let script = format!(
            "set -e; mount -t tmpfs none /opt; mkdir -p /opt/cni/bin; cp {ours}/rail-cni /opt/cni/bin; {script} \
             {ours}/railctl doctor --output json || true"
        );
        let mut command = Command::new("unshare");
        command
            .args(["-m", "sh", "-c", &script])
            .env("RAIL_CNI_NODE_CONFIG", host.path("node.json"));
        let json = Ran::from(command.output().unwrap()).json();
        let programs = json["checks"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["check"] == "programs")
            .unwrap();
        ["verdict", "text", "remedy"]
            .map(|key| programs[key].as_str().unwrap_or_default().to_owned())
    };
    let [verdict, text, remedy] = doctor("");
    assert!(
        verdict == "fail" && text.starts_with("/opt/cni/bin/rail-ipam "),
        "{text}"
    );
    assert_eq!(remedy, "run `scripts/install`");
    let copy = format!("cp {ours}/rail-ipam /opt/cni/bin;");
    let [verdict, text, remedy] = doctor(&format!("{copy} chmod 644 /opt/cni/bin/rail-ipam;"));
    assert_eq!(verdict, "fail");
    assert!(text.starts_with("/opt/cni/bin/rail-ipam"), "{text}");
    assert_eq!(remedy, "run `chmod 755 /opt/cni/bin/rail-ipam`");
    let mended = doctor(&format!(
        "{copy} chmod 644 /opt/cni/bin/rail-ipam; {};",
        remedy.trim_start_matches("run ").trim_matches('`')
    ));
    assert_eq!(mended[0], "ok", "{mended:?}");
}

/// The person at the rack swaps them back.
#[test]
fn cables_that_are_swapped() {
    let Some(host) = two_rails("broken::cables") else {
        return;
    };
    let leaf = host.leaf();
    let netns = Path::new("/run/netns").join(&leaf);
    host.set_sysctl(&netns, "ipv4/conf/all/arp_ignore", "1");
    let cable = |number: u8, port: u8| {
        host.ip(&format!("-n {leaf} addr flush dev leaf{port}"));
        host.ip(&format!(
            "-n {leaf} addr add 172.{}.0.1/31 dev leaf{port}",
            16 + 2 * number
        ));
    };
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    run(&host, &["check"]).ok();
    cable(1, 0);
    cable(0, 1);
    let told = run(&host, &["check"]);
    let facts = "default/pod  net1       0     0000:01:10.0  …172.16.0.1 …PF 0000:01:00.0…172.18.0.1…rail-1";
    assert!(
        told.status == 1 && told.stdout.lines().any(|line| golden::has(line, facts)),
        "{}",
        told.stdout
    );
    cable(0, 0);
    cable(1, 1);
    run(&host, &["check"]).ok();
}

/// The kernel's part is played here: a NIC comes back when the last process has left its namespace.
#[test]
fn a_dead_pods_device_that_is_still_away() {
    let Some(host) = two_rails("broken::away") else {
        return;
    };
    let process = kept_away(&host);
    let faults = faults(&host);
    let since = faults[0]
        .split("since ")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap()
        .to_owned();
    let holder = format!("pod default/pod, container gone as net1 since {since}");
    let facts = format!(
        "records: rail 0: 0000:01:10.0 …{holder}…process {pid} …`kill {pid}`",
        pid = process.pid()
    );
    assert!(
        faults.len() == 1 && golden::has(&faults[0], &facts),
        "{faults:#?}"
    );
    // Neither says more than was done.
    let deleted = host
        .cni("DEL", "gone", Path::new("/run/netns/none"), &rail(0))
        .ok()
        .stderr;
    assert!(
        deleted.contains(" warn ") && deleted.contains(&vf_address(0)),
        "{deleted}"
    );
    let reaped = run(&host, &["reap"]);
    assert!(
        reaped.status == 1
            && reaped
                .stdout
                .contains(&format!("process {} (sleep)", process.pid())),
        "{reaped:?}"
    );
    let advice = run(&host, &["doctor", "--output", "json"]).json();
    let remedy = advice["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["verdict"] == "fail")
        .unwrap();
    let remedy = remedy["remedy"].as_str().unwrap().to_owned();

    let host_ns = crate::harness::Sleeper::new(None);
    let inside = format!("--net={}", process.netns().display());
    let args = [
        "ip",
        "link",
        "set",
        "net1",
        "down",
        "netns",
        &host_ns.pid().to_string(),
    ]
    .map(str::to_owned);
    assert!(
        Command::new("nsenter")
            .arg(inside)
            .args(args)
            .status()
            .unwrap()
            .success()
    );
    host.ip("link set net1 name vf0");
    let net: PathBuf = host.path("sys/devices").join(vf_address(0)).join("net/vf0");
    fs::create_dir(&net).unwrap();
    carry_out_one(&host, &remedy);
    is_mended(&host);
    drop(process);
}
