//! podman with its CNI backend: it takes networks of /etc/cni/net.d by their names.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::cgroups::{self, Cgroups};
use crate::node::{self, Node, RAILS, executable, ip, on_a_node, text_of, write};

const CALLER: &str = "podman-4.3";
const CONMON: &str = "/run/conmon";
/// The root directory of the containers: no image is needed.
const ROOT: &str = "/run/rootfs";

fn run(test: &str, body: fn(&Node)) {
    on_a_node(
        test,
        &[CALLER, "runc-1.5.2", "cri"],
        |node| match Cgroups::new() {
            Ok(_cgroups) => {
                configure();
                body(node);
            }
            Err(reason) => node::skip(test, &reason),
        },
    );
}

/// podman's configuration, a root directory with one program, and conf/net.d/20-rail-0.conflist for
/// each rail.
fn configure() {
    // podman passes on little of its environment.
    let conmon = executable(CALLER, "conmon");
    write(
        CONMON,
        format!(
            "#!/bin/sh\nLD_LIBRARY_PATH={} exec {} \"$@\"\n",
            libraries(),
            conmon.display()
        ),
    );
    fs::set_permissions(CONMON, fs::Permissions::from_mode(0o755)).unwrap();
    let config = format!(
        "[network]\nnetwork_backend = 'cni'\ncni_plugin_dirs = ['/opt/cni/bin']\n\
         [engine]\ncgroup_manager = 'cgroupfs'\nevents_logger = 'file'\nconmon_path = ['{CONMON}']\nruntime = 'runc'\n\
         [engine.runtimes]\nrunc = ['{}']\n",
        executable("runc-1.5.2", "runc").display()
    );
    write("/etc/containers/containers.conf", config);
    write(
        "/etc/containers/storage.conf",
        "[storage]\ndriver = 'vfs'\ngraphroot = '/var/lib/containers'\nrunroot = '/run/containers'\n",
    );
    write(
        "/etc/containers/policy.json",
        json!({"default": [{"type": "insecureAcceptAnything"}]}).to_string(),
    );
    fs::create_dir_all(ROOT).unwrap();
    fs::copy(executable("cri", "pause"), format!("{ROOT}/pause")).unwrap();
    node::add_rail_networks();
}

fn libraries() -> String {
    executable(CALLER, "podman")
        .parent()
        .unwrap()
        .with_file_name("lib")
        .display()
        .to_string()
}

fn podman(args: &[&str]) -> Output {
    Command::new(executable(CALLER, "podman"))
        .args(args)
        .env("LD_LIBRARY_PATH", libraries())
        .env("HOME", "/run")
        .output()
        .unwrap()
}

/// Starts a container with the first rails.
fn start(name: &str, rails: u8) -> Output {
    let networks: Vec<_> = RAILS
        .take(rails.into())
        .map(|rail| format!("rail-{rail}:interface_name=net{}", rail + 1))
        .collect();
    let mut args = vec![
        "run",
        "--detach",
        "--name",
        name,
        "--security-opt",
        "seccomp=unconfined",
    ];
    let parent = cgroups::parent();
    args.extend(["--cgroup-parent", &parent]);
    networks
        .iter()
        .for_each(|network| args.extend(["--network", network]));
    args.extend(["--rootfs", ROOT, "/pause"]);
    podman(&args)
}

#[track_caller]
fn starts(name: &str, rails: u8) {
    let output = start(name, rails);
    assert!(output.status.success(), "{}", text_of(&output));
}

/// The name of its network namespace.
fn netns_of(name: &str) -> String {
    let output = podman(&[
        "inspect",
        "--format",
        "{{.NetworkSettings.SandboxKey}}",
        name,
    ]);
    let path = text_of(&output);
    path.trim().rsplit('/').next().unwrap().to_owned()
}

/// Removes it. Returns how long that took.
#[track_caller]
fn ends(node: &Node, name: &str) -> Duration {
    let begin = Instant::now();
    let output = podman(&["rm", "--force", "--time", "0", name]);
    let took = begin.elapsed();
    assert!(output.status.success(), "{}", text_of(&output));
    node.is_as_before();
    took
}

#[test]
fn a_container_gets_two_rails() {
    run("podman::a_container_gets_two_rails", |node| {
        starts("trainer", 2);
        let netns = netns_of("trainer");
        for rail in [0, 1] {
            let ifname = format!("net{}", rail + 1);
            node.has_rail(&netns, rail, &ifname);
            node.reaches_leaf(&netns, rail, &ifname);
        }
        ends(node, "trainer");
    });
}

#[test]
fn five_containers_in_a_row_get_eight_rails() {
    run("podman::five_containers_in_a_row_get_eight_rails", |node| {
        let (mut up, mut down) = (Vec::new(), Vec::new());
        for time in 0..5 {
            let name = format!("trainer-{time}");
            let begin = Instant::now();
            starts(&name, 8);
            up.push(begin.elapsed());
            let netns = netns_of(&name);
            for rail in RAILS {
                node.has_rail(&netns, rail, &format!("net{}", rail + 1));
            }
            down.push(ends(node, &name));
        }
        node::record_times(
            &format!("{CALLER}, a container with eight rails"),
            &up,
            &down,
        );
    });
}

#[test]
fn nothing_is_left_of_a_container_that_fails_at_rail_4() {
    run(
        "podman::nothing_is_left_of_a_container_that_fails_at_rail_4",
        |node| {
            fs::remove_file(node.allocation(4)).unwrap();
            let output = start("trainer", 8);
            assert!(
                !output.status.success() && text_of(&output).contains("rail-4"),
                "{}",
                text_of(&output)
            );
            ends(node, "trainer");
        },
    );
}

/// Its process alone is killed: podman detaches the rails when conmon tells it.
#[test]
fn the_rails_of_a_container_that_dies_come_back() {
    run(
        "podman::the_rails_of_a_container_that_dies_come_back",
        |node| {
            starts("trainer", 8);
            let pids = ip(&format!("netns pids {}", netns_of("trainer")));
            assert!(
                Command::new("kill")
                    .arg("-9")
                    .args(pids.split_whitespace())
                    .status()
                    .unwrap()
                    .success()
            );
            let output = podman(&["wait", "trainer"]);
            assert!(output.status.success(), "{}", text_of(&output));
            ends(node, "trainer");
        },
    );
}
