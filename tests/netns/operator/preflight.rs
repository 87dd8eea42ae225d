//! `railctl preflight`: the free VFs of all rails by the very ADD, in a namespace that nobody sees.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rail_cni::netns::Netns;
use serde_json::{Value, json};

use super::{run, two_rails};
use crate::harness::{self, Host, Ran, Sleeper, pf_address, rail, with};

/// An address of rail 0 that nobody has.
const NOBODY: &str = "172.17.4.3";

fn args(more: &[&str]) -> Vec<String> {
    let plugins = Path::new(env!("CARGO_BIN_EXE_rail-cni"))
        .parent()
        .unwrap()
        .display()
        .to_string();
    let all = ["preflight", "--plugins-dir", &plugins, "--output", "json"];
    all.iter().chain(more).map(ToString::to_string).collect()
}

/// Runs it, and sees that everything is as it was.
#[track_caller]
fn preflight(host: &Host, more: &[&str]) -> Ran {
    let before = settled(host);
    let args = args(more);
    let ran = run(host, &args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(settled(host), before, "{ran:?}");
    ran
}

/// Without the addresses that the kernel gives a link that comes up, which take a second.
fn settled(host: &Host) -> Value {
    let mut all = host.snapshot();
    all["addresses"]
        .as_array_mut()
        .unwrap()
        .retain(|one| !one.as_str().unwrap().contains("fe80:"));
    all
}

/// The exit status, and the state and the steps of what is wrong, by rail.
fn told(ran: &Ran) -> (i32, Vec<(String, Vec<String>)>) {
    let json = ran.json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let steps = |of: &Value| {
        of["problems"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| text(&one["step"]))
            .collect()
    };
    (
        ran.status,
        json["rails"]
            .as_array()
            .unwrap()
            .iter()
            .map(|of| (text(&of["state"]), steps(of)))
            .collect(),
    )
}

fn is(state: &str, steps: &[&str]) -> (String, Vec<String>) {
    (
        state.to_owned(),
        steps.iter().map(|step| (*step).to_owned()).collect(),
    )
}

#[test]
fn rails_that_work_are_fine_and_nothing_is_left() {
    let Some(host) = two_rails("preflight::fine") else {
        return;
    };
    let leaf = host.leaf();
    host.ip(&format!("-n {leaf} link set lo mtu 65536 up"));
    host.ip(&format!("-n {leaf} addr add 172.17.4.2/32 dev lo"));
    host.plan(
        "rail-0-v6",
        "fd00:10::/127",
        "fd00:10::1",
        &["fd00:10::/64"],
    );
    host.ip(&format!(
        "-n {leaf} addr add fd00:10::1/127 dev leaf0 nodad"
    ));
    let ran = preflight(
        &host,
        &["--all", "--peer", "172.17.4.2,172.18.0.1,fd00:10::1"],
    );
    assert_eq!(
        told(&ran),
        (0, vec![is("fine", &[]), is("fine", &[])]),
        "{ran:?}"
    );
    let first = &ran.json()["rails"][0];
    assert_eq!(
        (&first["addresses"], &first["mtu"], &first["device"]),
        (
            &json!(["172.16.0.0/31", "fd00:10::/127"]),
            &json!(9216),
            &json!(harness::vf_address(0))
        )
    );
    let ran = preflight(&host, &["--peer", NOBODY]);
    assert_eq!(
        told(&ran),
        (1, vec![is("wrong", &["peer"]), is("fine", &[])]),
        "{ran:?}"
    );
    let ran = preflight(&host, &["--peer", "10.0.0.1"]);
    assert_eq!((ran.status, ran.stdout.as_str()), (1, ""));
    let ran = run(&host, &["preflight", "--plugins-dir", "/nowhere"]);
    assert!(
        ran.status == 1 && ran.stderr.contains("/nowhere"),
        "{ran:?}"
    );
}

#[test]
fn swapped_cables_are_told_by_the_error_of_the_add() {
    let Some(host) = two_rails("preflight::swap") else {
        return;
    };
    // Each port answers for its own address alone.
    let leaf = Path::new("/run/netns").join(host.leaf());
    host.set_sysctl(&leaf, "ipv4/conf/all/arp_ignore", "1");
    host.swap_cables(true);
    let ran = preflight(&host, &[]);
    assert_eq!(
        told(&ran),
        (1, vec![is("wrong", &["add"]), is("wrong", &["add"])]),
        "{ran:?}"
    );
    let problem = &ran.json()["rails"][0]["problems"][0];
    assert_eq!(problem["code"], 101);
    assert!(
        problem["text"].as_str().unwrap().contains("rail-1"),
        "{problem}"
    );
}

#[test]
fn a_leaf_port_with_a_smaller_mtu_is_found() {
    let Some(host) = two_rails("preflight::mtu") else {
        return;
    };
    host.ip(&format!("-n {} link set leaf1 mtu 1500", host.leaf()));
    let ran = preflight(&host, &[]);
    assert_eq!(
        told(&ran),
        (1, vec![is("fine", &[]), is("wrong", &["mtu"])]),
        "{ran:?}"
    );
    let counted = &ran.json()["rails"][1]["counted"]["device"];
    assert!(
        counted["tx_dropped"]
            .as_u64()
            .is_some_and(|packets| packets > 0),
        "{counted}"
    );
    // A smaller MTU of the PF is that of pods.
    host.ip("link set pf1 mtu 1500");
    assert_eq!(preflight(&host, &[]).status, 0);
}

/// A router takes packets apart, unless they say that it may not.
#[test]
fn a_narrow_port_on_the_way_to_a_peer_is_found() {
    let Some(host) = two_rails("preflight::way") else {
        return;
    };
    let (leaf, far) = (host.leaf(), host.add_netns("far"));
    let name = far.file_name().unwrap().to_str().unwrap();
    host.ip(&format!(
        "-n {leaf} link add narrow mtu 1500 type veth peer name net1 mtu 1500 netns {name}"
    ));
    host.ip(&format!("-n {leaf} addr add 172.17.9.1/31 dev narrow"));
    host.ip(&format!("-n {leaf} link set narrow up"));
    host.ip_in(&far, "addr add 172.17.9.0/31 dev net1");
    host.ip_in(&far, "link set net1 up");
    host.ip_in(&far, "route add default via 172.17.9.1");
    let netns = Path::new("/run/netns").join(&leaf);
    host.set_sysctl(&netns, "ipv4/ip_forward", "1");
    let ran = preflight(&host, &["--peer", "172.17.9.0"]);
    assert_eq!(
        told(&ran),
        (1, vec![is("wrong", &["mtu"]), is("fine", &[])]),
        "{ran:?}"
    );
}

#[test]
fn a_rail_that_a_pod_has_is_left_alone() {
    let Some(host) = two_rails("preflight::used") else {
        return;
    };
    let pod = host.add_netns("pod");
    host.cni("ADD", "pod", &pod, &rail(0)).ok();
    let in_pod = host.json(Some(&pod), "-4 addr show");
    let ran = preflight(&host, &[]);
    assert_eq!(
        told(&ran),
        (0, vec![is("in-use", &[]), is("fine", &[])]),
        "{ran:?}"
    );
    assert_eq!(preflight(&host, &["--all"]).status, 1);
    assert_eq!(host.json(Some(&pod), "-4 addr show"), in_pod);
    host.cni("DEL", "pod", &pod, &rail(0)).ok();
    // The VF is free, and the address is not.
    host.call("ADD", "other", &pod).ipam().run(&rail(0)).ok();
    let ran = preflight(&host, &[]);
    assert_eq!(
        told(&ran),
        (0, vec![is("in-use", &[]), is("fine", &[])]),
        "{ran:?}"
    );
    assert!(
        ran.json()["rails"][0]["why"]
            .as_str()
            .unwrap()
            .contains("other"),
        "{ran:?}"
    );
}

/// Nodes whose pods get PFs, rails that another IPAM serves, and two ports of one rail.
#[test]
fn a_rail_is_what_node_json_makes_of_it() {
    let Some(host) = two_rails("preflight::kinds") else {
        return;
    };
    let leaf = host.leaf();
    for number in 0..2 {
        let pf = host.path("sys/devices").join(pf_address(number));
        fs::remove_file(pf.join("virtfn0")).unwrap();
        fs::write(pf.join("sriov_numvfs"), "0\n").unwrap();
        host.ip(&format!(
            "-n {leaf} addr flush dev leaf{number} scope global"
        ));
        host.ip(&format!(
            "-n {leaf} addr add 172.{}.0.1/31 dev port{number}",
            16 + 2 * number
        ));
    }
    let ran = preflight(&host, &["--all"]);
    assert_eq!(
        told(&ran),
        (0, vec![is("fine", &[]), is("fine", &[])]),
        "{ran:?}"
    );
    assert_eq!(ran.json()["rails"][0]["device"], pf_address(0));
    let rails = |of: [Value; 2]| host.set_node(json!({ "rails": of }));
    let one = |number: u8, pf: u8| json!({"rail": number, "pf": pf_address(pf)});
    rails([with(one(0, 0), json!({"pool": false})), one(1, 1)]);
    let ran = preflight(&host, &[]);
    assert_eq!(
        told(&ran),
        (0, vec![is("no-pool", &[]), is("fine", &[])]),
        "{ran:?}"
    );
    rails([one(0, 0), one(0, 1)]);
    let ran = preflight(&host, &[]);
    assert_eq!(
        told(&ran),
        (0, vec![is("fine", &[]), is("in-use", &[])]),
        "{ran:?}"
    );
    assert_eq!(preflight(&host, &["--all"]).status, 1);
}

/// Starts it, with peers that it waits for longer than any test takes, and returns it with its
/// namespace when it asks them.
fn started(host: &Host) -> (Child, Netns) {
    let mut command = Command::new(harness::railctl());
    let nobody: Vec<_> = (3..250).map(|last| format!("172.17.4.{last}")).collect();
    command
        .args(args(&["--peer", &nobody.join(",")]))
        .env("RAIL_CNI_NODE_CONFIG", host.path("node.json"));
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let netns = || {
        // It may be half written.
        let record: Value =
            serde_json::from_slice(&fs::read(host.records().first()?).ok()?).ok()?;
        let netns = Netns::open(Path::new(record["owner"]["netns"]["path"].as_str()?)).unwrap();
        // After the last ADD has ended, it lets itself ping.
        let range = || Ok(fs::read_to_string("/proc/sys/net/ipv4/ping_group_range")?);
        // The first value of a namespace differs in a user namespace.
        let ours = nix::unistd::getegid().to_string();
        netns
            .run(range)
            .unwrap()
            .split_whitespace()
            .eq([&*ours, &*ours])
            .then_some(netns)
    };
    let (mut found, deadline) = (netns(), Instant::now() + Duration::from_secs(60));
    while found.is_none() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
        found = netns();
    }
    (child, found.unwrap())
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
}

#[test]
fn sigterm_gives_everything_back() {
    let Some(host) = two_rails("preflight::term") else {
        return;
    };
    let before = settled(&host);
    let (mut child, netns) = started(&host);
    drop(netns);
    send(&child, Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(settled(&host), before);
}

#[test]
fn what_sigkill_leaves_the_next_pod_and_reap_put_right() {
    let Some(host) = two_rails("preflight::kill") else {
        return;
    };
    let before = settled(&host);
    let (mut child, netns) = started(&host);
    send(&child, Signal::SIGKILL);
    child.wait().unwrap();
    // The kernel gives NICs back by itself; veths would end with the namespace.
    let home = Sleeper::new(None);
    let give_back = || {
        for name in ["net1", "net2"] {
            let args = format!("link set {name} down netns {}", home.pid());
            assert!(Command::new("ip").args(args.split(' ')).status()?.success());
        }
        Ok(())
    };
    netns.run(give_back).unwrap();
    drop(netns);
    let pod = host.add_netns("pod");
    host.cni("ADD", "pod", &pod, &rail(0)).ok();
    host.cni("DEL", "pod", &pod, &rail(0)).ok();
    assert_eq!(host.records().len(), 1);
    run(&host, &["reap"]).ok();
    assert_eq!(settled(&host), before);
}

/// Killed by its plugin, before or after each of the four calls that it makes for two rails.
#[test]
fn what_sigkill_leaves_at_any_call_is_put_right() {
    let Some(host) = two_rails("preflight::calls") else {
        return;
    };
    let before = settled(&host);
    let plugins = Path::new(env!("CARGO_BIN_EXE_rail-cni"))
        .parent()
        .unwrap()
        .display()
        .to_string();
    let (calls, done, pod) = (host.path("calls"), host.path("done"), host.add_netns("pod"));
    let script = |call: usize, is_early: bool| {
        let [early, late] = if is_early {
            ["kill -9 $PPID", ":"]
        } else {
            [":", "kill -9 $PPID"]
        };
        // The kernel gives NICs back by itself; veths would end with the namespace, which the file
        // keeps until then.
        format!(
            "echo >> {calls}; exec 9< $CNI_NETNS\n\
             if [ $(wc -l < {calls}) != {call} ]; then exec {plugins}/rail-cni 9<&-; fi\n\
             {early}; {plugins}/rail-cni 9<&-; {late}\n\
             for name in net1 net2; do nsenter --net=/proc/$$/fd/9 ip link set $name down netns $$; done\n\
             exec 9<&-; echo > {done}",
            calls = calls.display(),
            done = done.display()
        )
    };
    for (call, is_early) in (1..=4).flat_map(|call| [(call, true), (call, false)]) {
        host.add_plugin("rail-cni", &script(call, is_early));
        std::os::unix::fs::symlink(format!("{plugins}/rail-ipam"), host.path("bin/rail-ipam")).ok();
        let mut command = Command::new(harness::railctl());
        command
            .arg("preflight")
            .arg("--plugins-dir")
            .arg(host.path("bin"));
        command
            .env("RAIL_CNI_NODE_CONFIG", host.path("node.json"))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        assert_eq!(command.status().unwrap().code(), None, "call {call}");
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done.exists() {
            assert!(Instant::now() < deadline, "call {call}");
            std::thread::sleep(Duration::from_millis(1));
        }
        host.cni("ADD", "pod", &pod, &rail(0)).ok();
        host.cni("DEL", "pod", &pod, &rail(0)).ok();
        run(&host, &["reap"]).ok();
        assert_eq!(settled(&host), before, "call {call}, {is_early}");
        fs::remove_file(&calls).unwrap();
        fs::remove_file(&done).unwrap();
    }
}

/// The plan of two nodes with two rails: this one, and one whose addresses the leaf has.
fn two_nodes(host: &Host) -> String {
    let leaf = host.leaf();
    host.ip(&format!("-n {leaf} link set lo mtu 65536 up"));
    for second in [17, 19] {
        host.ip(&format!("-n {leaf} addr add 172.{second}.4.2/32 dev lo"));
    }
    let row = |node: &str, rail: u8, address: &str, leaf: &str| {
        format!(
            "{node},{rail},,rail-{rail},ipv4,{address},,{address}/31,,leaf-{leaf}-r{rail},swp1,\r\n"
        )
    };
    let plan = host.path("plan.csv");
    let text = "node,rail,plane,pool,family,address,gateway,prefix,interface,leaf,port,mtu\r\n"
        .to_owned()
        + &row("node-1", 0, "172.16.0.0", "a")
        + &row("node-2", 0, "172.17.4.2", "b")
        + &row("node-1", 1, "172.18.0.0", "a")
        + &row("node-2", 1, "172.19.4.2", "b");
    fs::write(&plan, text).unwrap();
    plan.display().to_string()
}

/// Perftest is a script here: a peer that is ready later, one that never is, and the own ends,
/// which wait for the peers that they answer.
#[test]
fn bandwidth_is_measured_to_the_nearest_peer_of_the_rail() {
    let Some(host) = two_rails("preflight::bandwidth") else {
        return;
    };
    let plan = two_nodes(&host);
    for number in 0..2 {
        super::env::put_rdma(&host, number, 3);
    }
    let (bin, log) = (host.path("perftest"), host.path("asked"));
    let measure = |path: &str, seconds: &str| {
        let args = args(&["--plan", &plan, "--bandwidth", "--for", seconds]);
        let mut command = Command::new(harness::railctl());
        command
            .args(args)
            .env("RAIL_CNI_NODE_CONFIG", host.path("node.json"))
            .env("PATH", path);
        Ran::from(command.output().unwrap())
    };
    let before = settled(&host);
    let without = measure("/nowhere", "1");
    assert!(
        without.status == 1 && without.stderr.contains("install perftest"),
        "{without:?}"
    );
    let script = format!(
        "#!/bin/sh\n[ $1 != --version ] || exit 0\necho \"$*\" >>{log}\ncase \"$*\" in\n\
         *172.17.4.2) [ $(grep -c 172.17.4.2 {log}) = 2 ] || exit 1; echo 391.52 ;;\n\
         *172.19.4.2) echo not there >&2; exit 1 ;;\n*) exec sleep 60 ;;\nesac\n",
        log = log.display()
    );
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("ib_write_bw"), script).unwrap();
    fs::set_permissions(
        bin.join("ib_write_bw"),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let begun = Instant::now();
    let ran = measure(
        &format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()),
        "3",
    );
    assert!(
        begun.elapsed() < Duration::from_secs(50),
        "what waits ends with it"
    );
    assert_eq!(
        told(&ran),
        (1, vec![is("fine", &[]), is("wrong", &["bandwidth"])]),
        "{ran:?}"
    );
    let json = ran.json();
    assert_eq!(
        json["rails"][0]["bandwidth"],
        json!({"node": "node-2", "gbits": 391.52})
    );
    assert!(
        json["rails"][1]["problems"][0]["text"]
            .as_str()
            .unwrap()
            .contains("not there"),
        "{ran:?}"
    );
    let asked = fs::read_to_string(&log).unwrap();
    assert!(asked.contains("-d mlx5_5 -i 1 -x 3 -p 18516\n"), "{asked}");
    assert_eq!(settled(&host), before);
}

#[test]
fn peers_of_the_plan_are_asked_and_all_answers_become_one_page() {
    let Some(host) = two_rails("preflight::plan") else {
        return;
    };
    let plan = two_nodes(&host);
    let ran = preflight(&host, &["--plan", &plan]);
    assert_eq!(
        told(&ran),
        (0, vec![is("fine", &[]), is("fine", &[])]),
        "{ran:?}"
    );
    let asked = |ran: &Ran, rail: usize| -> Vec<String> {
        let json = ran.json();
        let all = json["rails"][rail]["asked"].as_array().unwrap();
        all.iter()
            .map(|one| {
                format!(
                    "{} {} {} {}",
                    one["node"], one["rail"], one["way"], one["state"]
                )
            })
            .collect()
    };
    let answers = |rails: [u8; 2]| {
        ["spine", "cross"]
            .iter()
            .zip(rails)
            .map(|(way, rail)| format!("\"node-2\" {rail} \"{way}\" \"reached\""))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        [asked(&ran, 0), asked(&ran, 1)],
        [answers([0, 1]), answers([1, 0])]
    );
    let folder = host.path("told");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("node-1.json"), &ran.stdout).unwrap();
    let merge = |more: &[&str]| {
        let args = [&["preflight", "--merge", folder.to_str().unwrap()], more].concat();
        run(&host, &args)
    };
    assert!(merge(&[]).ok().stdout.contains("2 fine"));
    let page = merge(&["--html"]).ok().stdout;
    assert!(
        page.starts_with("<!doctype html>") && page.contains("leaf-a-r0"),
        "{page}"
    );
    // The plan knows another node, which said nothing.
    let all = merge(&["--plan", &plan, "--output", "json"]);
    assert_eq!(
        (all.status, &all.json()["missing"]),
        (1, &json!(["node-2"]))
    );
    fs::write(folder.join("broken.json"), "{}").unwrap();
    let broken = merge(&[]);
    assert!(
        broken.status == 1 && broken.stderr.contains("broken.json"),
        "{broken:?}"
    );
    // Somebody was there and does not answer.
    host.ip(&format!("-n {} addr del 172.17.4.2/32 dev lo", host.leaf()));
    let ran = preflight(&host, &["--plan", &plan]);
    assert_eq!(
        told(&ran),
        (1, vec![is("wrong", &["peer"]), is("wrong", &["peer"])]),
        "{ran:?}"
    );
    // A plan of another fabric.
    let text = fs::read_to_string(&plan)
        .unwrap()
        .replace("172.16.0.0", "172.16.9.0");
    fs::write(&plan, text).unwrap();
    assert_eq!(
        told(&preflight(&host, &["--plan", &plan])).1[0],
        is("wrong", &["plan"])
    );
    assert_eq!(preflight(&host, &["--plan", "/nowhere"]).status, 1);
}

/// Its ADD waits a moment for the device, and gets it.
#[test]
fn a_pod_that_comes_gets_the_rail_at_once() {
    let Some(host) = two_rails("preflight::yield") else {
        return;
    };
    let mut command = Command::new(harness::railctl());
    command
        .args(args(&["--for", "600"]))
        .env("RAIL_CNI_NODE_CONFIG", host.path("node.json"));
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while host.records().len() < 2 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    let pod = host.add_netns("pod");
    // An ADD of preflight itself may still be at work, and wants nothing of itself.
    host.cni("ADD", "pod", &pod, &rail(0)).ok();
    let ran: Ran = child.wait_with_output().unwrap().into();
    assert_eq!(
        told(&ran),
        (0, vec![is("in-use", &[]), is("in-use", &[])]),
        "{ran:?}"
    );
    assert!(
        ran.json()["rails"][0]["why"]
            .as_str()
            .unwrap()
            .contains("pod:net1"),
        "{ran:?}"
    );
    assert_eq!(host.records().len(), 1);
    host.cni("DEL", "pod", &pod, &rail(0)).ok();
}
