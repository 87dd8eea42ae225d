//! containerd with runc, asked for sandboxes over CRI as kubelet asks: with Multus, and with a
//! network per rail.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::cgroups::{self, Cgroups};
use crate::multus::{Cluster, allot, pod_of};
use crate::node::{self, Node, RAILS, executable, ip, json_of, on_a_node, text_of, write};

const SOCKET: &str = "/run/containerd/containerd.sock";
const LOG: &str = "/var/log/containerd.log";
const NETWORKS: &str = "/etc/cni/net.d";
const MULTUS: &str = "multus-4.3.0";
const MULTUS_CONF: &str = "/etc/cni/net.d/00-multus.conf";
/// The verbs that rail-cni was called with.
const VERBS: &str = "/run/verbs";
const V2: &str = "containerd-2.4.2";
const V1: &str = "containerd-1.6";

macro_rules! under_each_containerd {
    ($($test:ident)*) => {
        mod v2_4_2 {
            $(#[test]
            fn $test() {
                super::run(concat!("containerd::v2_4_2::", stringify!($test)), super::V2, super::$test);
            })*
        }
        mod v1_6 {
            $(#[test]
            fn $test() {
                super::run(concat!("containerd::v1_6::", stringify!($test)), super::V1, super::$test);
            })*
        }
    };
}

under_each_containerd! {
    twenty_pods_in_a_row_get_eth0_and_eight_rails_by_multus
    a_pod_gets_nine_networks_without_multus
    four_pods_at_once_get_eight_rails_each
    nothing_is_left_of_a_pod_whose_containerd_is_killed
    the_rails_come_back_when_the_namespace_is_gone_first
}

fn run(test: &str, version: &'static str, body: fn(&mut Node, &'static str)) {
    on_a_node(
        test,
        &[version, MULTUS, "runc-1.5.2", "cri", "plugins"],
        |node| match Cgroups::new() {
            Ok(_cgroups) => body(node, version),
            Err(reason) => node::skip(test, &reason),
        },
    );
}

/// A running containerd.
struct Containerd<'a> {
    node: &'a Node,
    version: &'static str,
    daemon: Child,
}

struct Sandbox {
    id: String,
    /// Name of its network namespace.
    netns: String,
    /// Duration of RunPodSandbox.
    took: Duration,
}

impl<'a> Containerd<'a> {
    /// Starts it with the image of the sandboxes. Its networks are those that are in the directory
    /// now.
    fn new(node: &'a Node, version: &'static str) -> Containerd<'a> {
        let runc = executable("runc-1.5.2", "runc");
        let (runtime, version_of_file, rest) = if version == V2 {
            let images = "[plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = 'rail-cni.test/pause:1'\n";
            ("io.containerd.cri.v1.runtime", 3, images)
        } else {
            ("io.containerd.grpc.v1.cri", 2, "")
        };
        let image = if version == V1 {
            "sandbox_image = 'rail-cni.test/pause:1'\n"
        } else {
            ""
        };
        // Without CAP_SYS_RESOURCE no process may be spared by the kernel when memory is short.
        let config = format!(
            "version = {version_of_file}\n{rest}[plugins.'{runtime}']\nrestrict_oom_score_adj = true\n{image}\
             [plugins.'{runtime}'.cni]\nmax_conf_num = 0\n\
             [plugins.'{runtime}'.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n\
             [plugins.'{runtime}'.containerd.runtimes.runc.options]\nBinaryName = '{}'\n",
            runc.display()
        );
        write("/etc/containerd/config.toml", config);
        let containerd = Containerd {
            node,
            version,
            daemon: start(version),
        };
        containerd.is_ready();
        json_is_ok(
            &Command::new(executable("cri", "cri"))
                .args(["image", "/run/pause.tar"])
                .output()
                .unwrap(),
        );
        let local: &[&str] = if version == V2 { &["--local"] } else { &[] };
        let import = Command::new(executable(version, "ctr"))
            .args(["--namespace", "k8s.io", "images", "import"])
            .args(local)
            .arg("/run/pause.tar")
            .output()
            .unwrap();
        json_is_ok(&import);
        containerd
    }

    /// Waits until it answers, with networks.
    fn is_ready(&self) {
        self.waits_for("RuntimeReady", true);
    }

    /// Waits for a condition of the node, and returns its message.
    fn waits_for(&self, condition: &str, status: bool) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let output = self.cri(&["status"]);
            if output.status.success() {
                let answer = json_of(&output);
                let conditions = answer["conditions"].as_array().unwrap();
                let of_type = conditions
                    .iter()
                    .find(|each| each["type"] == condition)
                    .unwrap();
                if of_type["status"].as_bool().unwrap_or(false) == status {
                    return of_type["message"].as_str().unwrap_or_default().to_owned();
                }
            }
            assert!(
                Instant::now() < deadline,
                "not {condition}={status}: {}{}",
                text_of(&output),
                log()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn cri_command(args: &[&str]) -> Command {
        let mut command = Command::new(executable("cri", "cri"));
        command.arg(SOCKET).args(args);
        command
    }

    fn cri(&self, args: &[&str]) -> Output {
        Self::cri_command(args).output().unwrap()
    }

    fn run_command(&self, name: &str) -> Command {
        Self::cri_command(&["run", name, &cgroups::parent()])
    }

    #[track_caller]
    fn run(&self, name: &str) -> Sandbox {
        sandbox_of(&self.run_command(name).output().unwrap())
    }

    #[track_caller]
    fn stop(&self, id: &str) -> Duration {
        took(&json_is_ok(&self.cri(&["stop", id])))
    }

    /// StopPodSandbox, after which nothing is left, and once more, as kubelet does. Returns how
    /// long the first took.
    #[track_caller]
    fn ends(&self, sandbox: &Sandbox) -> Duration {
        let took = self.stop(&sandbox.id);
        self.node.is_as_before();
        self.stop(&sandbox.id);
        json_is_ok(&self.cri(&["remove", &sandbox.id]));
        took
    }

    #[track_caller]
    fn end_all(&self) {
        for one in json_of(&self.cri(&["list"])).as_array().unwrap() {
            let id = one["id"].as_str().unwrap();
            self.stop(id);
            json_is_ok(&self.cri(&["remove", id]));
        }
    }

    fn kill(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
    }

    fn restart(&mut self) {
        self.daemon = start(self.version);
        self.is_ready();
    }
}

fn start(version: &str) -> Child {
    let program = executable(version, "containerd");
    let log = fs::File::options()
        .append(true)
        .create(true)
        .open(LOG)
        .unwrap();
    // The shim is looked for in PATH, and so is mount by runc.
    let path = format!(
        "{}:{}",
        program.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    Command::new(program)
        .env_clear()
        .env("PATH", path)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

fn log() -> String {
    let text = fs::read_to_string(LOG).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    format!(
        "\nthe end of containerd's log:\n{}",
        lines[lines.len().saturating_sub(30)..].join("\n")
    )
}

/// The JSON output of a command, or null; it must have succeeded.
#[track_caller]
fn json_is_ok(output: &Output) -> Value {
    assert!(output.status.success(), "{}{}", text_of(output), log());
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

fn took(answer: &Value) -> Duration {
    Duration::from_secs_f64(answer["ms"].as_f64().unwrap() / 1000.0)
}

#[track_caller]
fn sandbox_of(output: &Output) -> Sandbox {
    let answer = json_is_ok(output);
    assert!(
        answer["ip"].as_str().unwrap().starts_with("10.244."),
        "{answer}"
    );
    let namespaces = answer["info"]["runtimeSpec"]["linux"]["namespaces"]
        .as_array()
        .unwrap();
    let network = namespaces
        .iter()
        .find(|each| each["type"] == "network")
        .unwrap();
    let path = PathBuf::from(network["path"].as_str().unwrap());
    Sandbox {
        id: answer["id"].as_str().unwrap().to_owned(),
        netns: path.file_name().unwrap().to_str().unwrap().to_owned(),
        took: took(&answer),
    }
}

/// Multus as the only network, and pods of these names that have VF 0, 1 and so on of each rail.
fn with_multus<'a>(node: &'a Node, pods: &[&str]) -> Cluster<'a> {
    let cluster = Cluster::new(node, MULTUS);
    let multus = Path::new("/opt/cni/bin/multus");
    fs::copy(executable(MULTUS, "multus"), multus).unwrap();
    write(MULTUS_CONF, cluster.config().to_string());
    let uids: Vec<_> = pods.iter().map(|name| format!("uid-{name}")).collect();
    let allotted: Vec<_> = uids
        .iter()
        .zip(0..)
        .map(|(uid, vf)| (uid.as_str(), vf))
        .collect();
    for (name, (uid, _)) in pods.iter().zip(&allotted) {
        cluster.api.apply(&pod_of(name, uid));
    }
    allot(&allotted);
    cluster
}

/// eth0, and conf/net.d/20-rail-0.conflist for each of the rails.
fn add_networks() {
    write(
        format!("{NETWORKS}/10-pods.conflist"),
        node::eth0().to_string(),
    );
    node::add_rail_networks();
}

#[track_caller]
fn has_all_rails(node: &Node, sandbox: &Sandbox, prefix: &str) {
    for rail in RAILS {
        node.has_rail(&sandbox.netns, rail, &format!("{prefix}{}", rail + 1));
    }
}

fn twenty_pods_in_a_row_get_eth0_and_eight_rails_by_multus(node: &mut Node, version: &'static str) {
    let cluster = with_multus(node, &["trainer-0"]);
    let containerd = Containerd::new(node, version);
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let sandbox = containerd.run("trainer-0");
        has_all_rails(node, &sandbox, "net");
        let status = cluster.api.network_status("trainer-0");
        assert_eq!(
            status.last().unwrap()["name"],
            "default/rail-7",
            "{status:?}"
        );
        up.push(sandbox.took);
        down.push(containerd.ends(&sandbox));
    }
    node::record_times(
        &format!("{version} with {MULTUS}, a sandbox with eth0 and eight rails"),
        &up,
        &down,
    );
}

/// containerd attaches them all at once.
fn a_pod_gets_nine_networks_without_multus(node: &mut Node, version: &'static str) {
    add_networks();
    let containerd = Containerd::new(node, version);
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let sandbox = containerd.run("trainer-0");
        has_all_rails(node, &sandbox, "eth");
        node.reaches_leaf(&sandbox.netns, 0, "eth1");
        up.push(sandbox.took);
        down.push(containerd.ends(&sandbox));
    }
    node::record_times(
        &format!("{version}, a sandbox with eth0 and eight networks in parallel"),
        &up,
        &down,
    );
}

fn four_pods_at_once_get_eight_rails_each(node: &mut Node, version: &'static str) {
    const PODS: [&str; 4] = ["trainer-0", "trainer-1", "trainer-2", "trainer-3"];
    node.grow(4);
    let _cluster = with_multus(node, &PODS);
    let containerd = Containerd::new(node, version);
    let begin = Instant::now();
    let sandboxes: Vec<Sandbox> = thread::scope(|scope| {
        let running: Vec<_> = PODS
            .map(|name| scope.spawn(|| containerd.run(name)))
            .into_iter()
            .collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let up = begin.elapsed();
    let addresses: Vec<_> = sandboxes
        .iter()
        .flat_map(|sandbox| {
            RAILS.map(|rail| {
                ip(&format!(
                    "-n {} -4 -br addr show dev net{}",
                    sandbox.netns,
                    rail + 1
                ))
            })
        })
        .filter_map(|line| line.split_whitespace().nth(2).map(str::to_owned))
        .collect();
    let distinct: std::collections::BTreeSet<_> = addresses.iter().collect();
    assert_eq!(distinct.len(), 32, "{addresses:?}");
    let begin = Instant::now();
    thread::scope(|scope| {
        for sandbox in &sandboxes {
            scope.spawn(|| containerd.stop(&sandbox.id));
        }
    });
    let down = begin.elapsed();
    node.is_as_before();
    node::record_times(
        &format!("{version} with {MULTUS}, four sandboxes at once with eth0 and eight rails each"),
        &[up],
        &[down],
    );
}

/// The daemon is killed when this many rails are on record. The plugins that run go on without it,
/// and the next daemon is asked to end the sandbox.
fn nothing_is_left_of_a_pod_whose_containerd_is_killed(node: &mut Node, version: &'static str) {
    add_networks();
    let mut containerd = Containerd::new(node, version);
    for rails in [0, 1, 3, 5, 7] {
        let client = containerd
            .run_command(&format!("trainer-{rails}"))
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while rails_on_record() < rails {
            assert!(
                Instant::now() < deadline,
                "no {rails} rails in a minute{}",
                log()
            );
        }
        containerd.kill();
        client.wait_with_output().unwrap();
        containerd.restart();
        containerd.end_all();
        node.is_as_before();
    }
    let mut last = containerd.run_command("last").output().unwrap();
    // Upstream's bridge may lose its ports while it is read, and kubelet tries again.
    if text_of(&last).contains("plugin type=\"bridge\" failed") {
        containerd.end_all();
        last = containerd.run_command("last").output().unwrap();
    }
    let sandbox = sandbox_of(&last);
    has_all_rails(node, &sandbox, "eth");
    containerd.ends(&sandbox);
}

fn rails_on_record() -> usize {
    fs::read_dir("/run/rail-cni/attachments")
        .into_iter()
        .flatten()
        .count()
}

fn the_rails_come_back_when_the_namespace_is_gone_first(node: &mut Node, version: &'static str) {
    let _cluster = with_multus(node, &["trainer-0"]);
    let containerd = Containerd::new(node, version);
    let sandbox = containerd.run("trainer-0");
    let pids = ip(&format!("netns pids {}", sandbox.netns));
    for pid in pids.split_whitespace() {
        kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
    }
    ip(&format!("netns delete {}", sandbox.netns));
    node.return_devices();
    containerd.ends(&sandbox);
}

/// Replaces rail-cni by a script that writes down the verb of each call, and then calls it.
fn watch_verbs() {
    fs::rename("/opt/cni/bin/rail-cni", "/opt/cni/rail-cni").unwrap();
    let script = format!("#!/bin/sh\necho $CNI_COMMAND >>{VERBS}\nexec /opt/cni/rail-cni\n");
    write("/opt/cni/bin/rail-cni", script);
    fs::set_permissions("/opt/cni/bin/rail-cni", fs::Permissions::from_mode(0o755)).unwrap();
}

fn statuses() -> usize {
    fs::read_to_string(VERBS)
        .unwrap_or_default()
        .lines()
        .filter(|verb| *verb == "STATUS")
        .count()
}

#[test]
fn every_status_of_the_node_asks_every_rail() {
    run(
        "containerd::every_status_of_the_node_asks_every_rail",
        V2,
        |node, version| {
            add_networks();
            watch_verbs();
            let containerd = Containerd::new(node, version);
            containerd.waits_for("NetworkReady", true);
            let sandbox = containerd.run("trainer-0");
            for _ in 0..10 {
                let before = statuses();
                containerd.waits_for("NetworkReady", true);
                assert_eq!(statuses() - before, 8);
            }
            containerd.ends(&sandbox);
        },
    );
}

/// Pods that run go on, and end; new ones wait until the rail is repaired, or its network is taken
/// away.
#[test]
fn a_rail_that_cannot_serve_makes_the_node_not_ready() {
    run(
        "containerd::a_rail_that_cannot_serve_makes_the_node_not_ready",
        V2,
        |node, version| {
            add_networks();
            let containerd = Containerd::new(node, version);
            containerd.waits_for("NetworkReady", true);
            let sandbox = containerd.run("trainer-0");
            let allocation = fs::read(node.allocation(3)).unwrap();
            fs::remove_file(node.allocation(3)).unwrap();
            let message = containerd.waits_for("NetworkReady", false);
            assert!(message.contains("rail-3"), "{message}");
            containerd.ends(&sandbox);

            write(node.allocation(3), allocation);
            containerd.waits_for("NetworkReady", true);
            fs::remove_file(node.allocation(3)).unwrap();
            containerd.waits_for("NetworkReady", false);
            fs::remove_file(format!("{NETWORKS}/23-rail-3.conflist")).unwrap();
            containerd.waits_for("NetworkReady", true);
            let sandbox = containerd.run("trainer-1");
            node.has_rail(&sandbox.netns, 2, "eth3");
            node.has_rail(&sandbox.netns, 4, "eth4");
            containerd.ends(&sandbox);
        },
    );
}

/// It cannot convert the result of Multus that it kept. With 1.0.0 it can, and the sandbox ends.
#[test]
fn multus_at_1_1_0_loses_every_del_and_doctor_says_so() {
    run(
        "containerd::multus_at_1_1_0_loses_every_del_and_doctor_says_so",
        V1,
        |node, version| {
            let cluster = with_multus(node, &["trainer-0"]);
            assert_eq!(verdicts_of_networks(version), ["ok"]);
            let mut config = cluster.config();
            config["cniVersion"] = json!("1.1.0");
            write(MULTUS_CONF, config.to_string());
            let containerd = Containerd::new(node, version);
            let sandbox = containerd.run("trainer-0");
            for _ in 0..2 {
                let output = containerd.cri(&["stop", &sandbox.id]);
                let text = text_of(&output);
                assert!(
                    !output.status.success() && text.contains("no converter"),
                    "{text}"
                );
                has_all_rails(node, &sandbox, "net");
            }
            assert_eq!(verdicts_of_networks(version), ["fail"]);

            // Doctor's remedy.
            write(MULTUS_CONF, cluster.config().to_string());
            assert_eq!(verdicts_of_networks(version), ["ok"]);
            let deadline = Instant::now() + Duration::from_secs(60);
            while !containerd.cri(&["stop", &sandbox.id]).status.success() {
                assert!(
                    Instant::now() < deadline,
                    "it does not read its networks again{}",
                    log()
                );
            }
            containerd.ends(&sandbox);
        },
    );
}

/// The verdicts of `railctl doctor` on the networks of the runtime, where it has a containerd of
/// this version in its usual place.
fn verdicts_of_networks(version: &str) -> Vec<String> {
    let usual = Path::new("/usr/local/bin");
    if !usual.join("containerd").exists() {
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "tmpfs"])
            .arg(usual)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text_of(&output));
        symlink(executable(version, "containerd"), usual.join("containerd")).unwrap();
    }
    let output = Command::new("/opt/cni/bin/railctl")
        .args(["doctor", "--output", "json"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let of_networks = checks.iter().filter(|check| check["check"] == "net.d");
    of_networks
        .map(|check| check["verdict"].as_str().unwrap().to_owned())
        .collect()
}
