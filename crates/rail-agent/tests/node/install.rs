//! `rail-agent install` and `uninstall`.

use std::fs;
use std::io::BufRead as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use crate::node::{
    CONFIG_MAP, NODE, PLUGINS, Running, agent, built, call_behind_macvlan, cluster, config_map,
    end_pod, install, node_json, on_a_node, ready, sh, start_pod, text_of,
};

const KEPT: &str = "/opt/cni/bin/.rail-cni";
const INSTALLED: [&str; 4] = [".rail-cni", "rail-cni", "rail-ipam", "railctl"];

fn names() -> Vec<String> {
    names_in(PLUGINS)
}

fn names_in(dir: &str) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The files that are kept where no network can name them.
fn kept() -> Vec<String> {
    assert_eq!(
        fs::metadata(KEPT).unwrap().permissions().mode() & 0o7777,
        0o700
    );
    names_in(KEPT)
}

/// A directory with other versions of the executables.
fn other_versions() -> &'static str {
    for name in &INSTALLED[1..] {
        let mut bytes = fs::read(built().join(name)).unwrap();
        bytes.extend_from_slice(b"another version");
        crate::node::write(Path::new("/run/other").join(name), bytes);
    }
    "/run/other"
}

/// The container does not see the host's /run: its image is in /var/lib.
fn install_from(dir: &str) -> std::process::Output {
    sh(&format!(
        "rm -rf /var/lib/image; cp -r {dir} /var/lib/image"
    ));
    agent(&["install", "--from", "/var/lib/image"])
}

#[test]
fn executables_are_replaced_while_they_run_and_the_ones_before_are_kept() {
    on_a_node(
        "install::executables_are_replaced_while_they_run_and_the_ones_before_are_kept",
        || {
            install();
            assert_eq!(names(), INSTALLED);
            assert!(kept().is_empty());
            assert!(INSTALLED[1..].iter().all(|name| is_as_built(name)));
            let inode = || fs::metadata("/opt/cni/bin/rail-cni").unwrap().ino();
            let before = inode();
            install();
            assert_eq!(inode(), before, "what is there already is not written");
            // An executable in use: it waits for its stdin.
            let mut busy = Command::new("/opt/cni/bin/rail-cni")
                .env("CNI_COMMAND", "ADD")
                .env("CNI_CONTAINERID", "x")
                .env("CNI_NETNS", "/run/netns/x")
                .env("CNI_IFNAME", "net1")
                .env("CNI_PATH", PLUGINS)
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let output = install_from(other_versions());
            assert!(output.status.success(), "{}", text_of(&output));
            assert_ne!(inode(), before);
            drop(busy.stdin.take());
            assert_eq!(
                busy.wait().unwrap().code(),
                Some(1),
                "it was not disturbed: an empty stdin is its error"
            );
            assert_eq!(names(), INSTALLED);
            assert_eq!(
                kept(),
                [
                    "rail-cni.previous",
                    "rail-ipam.previous",
                    "railctl.previous"
                ]
            );
            for name in &INSTALLED[1..] {
                let path = Path::new(PLUGINS).join(name);
                assert_eq!(
                    fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
                    0o755
                );
                assert!(fs::read(&path).unwrap().ends_with(b"another version"));
            }
            // Back, and forth.
            for is_old in [true, false] {
                let output = agent(&["install", "--previous"]);
                assert!(output.status.success(), "{}", text_of(&output));
                for name in &INSTALLED[1..] {
                    assert_eq!(is_as_built(name), is_old, "{name}");
                }
                assert_eq!(
                    (names(), kept().len()),
                    (INSTALLED.map(str::to_owned).to_vec(), 3)
                );
            }
        },
    );
}

fn is_as_built(name: &str) -> bool {
    fs::read(Path::new(PLUGINS).join(name)).unwrap() == fs::read(built().join(name)).unwrap()
}

/// The agent of this version needs railctl, also beside plugins of the version before.
#[test]
fn a_node_from_before_railctl_is_upgraded_and_rolled_back_and_keeps_railctl() {
    on_a_node(
        "install::a_node_from_before_railctl_is_upgraded_and_rolled_back_and_keeps_railctl",
        || {
            sh(&format!(
                "mkdir -p {PLUGINS}; cp {}/rail-* {PLUGINS}",
                other_versions()
            ));
            install();
            assert_eq!(names(), INSTALLED);
            assert_eq!(kept(), ["rail-cni.previous", "rail-ipam.previous"]);
            for is_old in [true, false] {
                let output = agent(&["install", "--previous"]);
                assert!(output.status.success(), "{}", text_of(&output));
                for name in ["rail-cni", "rail-ipam"] {
                    assert_eq!(is_as_built(name), !is_old, "{name}");
                }
                assert!(is_as_built("railctl"));
                assert_eq!(kept(), ["rail-cni.previous", "rail-ipam.previous"]);
            }
            let output = agent(&["uninstall"]);
            assert!(
                output.status.success() && names().is_empty(),
                "{}: {:?}",
                text_of(&output),
                names()
            );
        },
    );
}

/// An uninstall of this version on a node that the version before has installed.
#[test]
fn uninstall_without_railctl_goes_by_the_files_and_says_what_restores_the_rest() {
    on_a_node(
        "install::uninstall_without_railctl_goes_by_the_files_and_says_what_restores_the_rest",
        || {
            let (_api, running) = ready(&[]);
            start_pod("pod-a", 0);
            assert!(running.stop());
            fs::remove_file("/opt/cni/bin/railctl").unwrap();
            let output = agent(&["uninstall"]);
            let text = text_of(&output);
            assert!(
                output.status.code() == Some(1) && text.contains("172.16.0.0@"),
                "{text}"
            );
            assert!(
                text.contains("/opt/cni/bin ") && text.contains("`rail-agent install`"),
                "{text}"
            );
            end_pod("pod-a", 0);
            let output = agent(&["uninstall"]);
            assert!(
                output.status.success() && names().is_empty(),
                "{}: {:?}",
                text_of(&output),
                names()
            );
        },
    );
}

#[test]
fn a_plugin_that_the_node_cannot_execute_replaces_nothing() {
    on_a_node(
        "install::a_plugin_that_the_node_cannot_execute_replaces_nothing",
        || {
            install();
            let before = fs::read("/opt/cni/bin/rail-ipam").unwrap();
            let mut of_another_machine = fs::read(built().join("rail-cni")).unwrap();
            // EM_AARCH64, or EM_X86_64 on an arm64.
            of_another_machine[18] = if cfg!(target_arch = "aarch64") {
                0x3e
            } else {
                0xb7
            };
            for bad in [of_another_machine, Vec::new(), b"exit 0".to_vec()] {
                // The others are good.
                let other = other_versions();
                crate::node::write(Path::new(other).join("rail-cni"), &bad);
                let output = install_from(other);
                let text = text_of(&output);
                assert_eq!(output.status.code(), Some(1), "{text}");
                assert!(text.contains("rail-cni"), "{text}");
                assert_eq!(names(), INSTALLED);
                assert!(kept().is_empty(), "{:?}", kept());
                assert!(fs::read("/opt/cni/bin/rail-ipam").unwrap() == before);
            }
        },
    );
}

#[test]
fn a_directory_that_cannot_be_written_keeps_the_old_plugins_and_nothing_half_written() {
    on_a_node(
        "install::a_directory_that_cannot_be_written_keeps_the_old_plugins_and_nothing_half_written",
        || {
            let output = agent(&["install", "--previous"]);
            assert_eq!(output.status.code(), Some(1), "{}", text_of(&output));
            let text = text_of(&output);
            let (_, said) = text.split_once("Z ").unwrap();
            golden::says("agent", "install --previous: nothing is installed", said);
            install();
            let before = fs::read("/opt/cni/bin/rail-cni").unwrap();
            let is_unchanged = || {
                assert_eq!(names(), INSTALLED);
                assert!(fs::read("/opt/cni/bin/rail-cni").unwrap() == before);
            };
            // Full: there is room for the first of them alone.
            sh(
                "mkdir /run/kept; cp -a /opt/cni/bin/. /run/kept/; mount -t tmpfs tmpfs /opt/cni/bin; cp -a /run/kept/. /opt/cni/bin/",
            );
            let used: u64 = names()
                .iter()
                .map(|name| {
                    fs::metadata(Path::new(PLUGINS).join(name))
                        .unwrap()
                        .blocks()
                        / 2
                })
                .sum();
            let first = fs::metadata("/opt/cni/bin/rail-ipam").unwrap().blocks() / 2;
            sh(&format!(
                "mount -o remount,size={}k /opt/cni/bin",
                used + first + 64
            ));
            let other = other_versions();
            let output = install_from(other);
            assert_eq!(output.status.code(), Some(1));
            let text = text_of(&output);
            assert!(
                text.contains("/opt/cni/bin/railctl") && text.contains("No space left on device"),
                "{text}"
            );
            is_unchanged();
            // Read-only.
            sh("mount -o remount,ro /opt/cni/bin");
            let text = text_of(&install_from(other));
            assert!(
                text.contains("/opt/cni/bin/rail-ipam") && text.contains("Read-only file system"),
                "{text}"
            );
            is_unchanged();
            let text = text_of(&agent(&["install", "--from", "/nonexistent"]));
            assert!(text.contains("/nonexistent/rail-ipam"), "{text}");
        },
    );
}

#[test]
fn a_plugin_has_the_selinux_label_of_its_place() {
    on_a_node(
        "install::a_plugin_has_the_selinux_label_of_its_place",
        || {
            let label = |path: &str| {
                let mut value = [0; 256];
                let length =
                    rustix::fs::getxattr(path, "security.selinux", &mut value[..]).unwrap_or(0);
                String::from_utf8_lossy(&value[..length]).into_owned()
            };
            let set = |path: &str, value: &str| {
                rustix::fs::setxattr(
                    path,
                    "security.selinux",
                    value.as_bytes(),
                    rustix::fs::XattrFlags::empty(),
                )
            };
            fs::create_dir_all(PLUGINS).unwrap();
            if let Err(error) = set(PLUGINS, "system_u:object_r:bin_t:s0") {
                return crate::node::skip(
                    "a_plugin_has_the_selinux_label_of_its_place",
                    &format!("no label here: {error}"),
                );
            }
            install();
            assert_eq!(label("/opt/cni/bin/rail-cni"), "system_u:object_r:bin_t:s0");
            // Somebody gave one of them another label.
            set(
                "/opt/cni/bin/rail-cni",
                "system_u:object_r:container_runtime_exec_t:s0",
            )
            .unwrap();
            let output = install_from(other_versions());
            assert!(output.status.success(), "{}", text_of(&output));
            assert_eq!(
                label("/opt/cni/bin/rail-cni"),
                "system_u:object_r:container_runtime_exec_t:s0"
            );
            // The others keep theirs.
            assert_eq!(
                label("/opt/cni/bin/rail-ipam"),
                "system_u:object_r:bin_t:s0"
            );
            assert_eq!(label("/opt/cni/bin/railctl"), "system_u:object_r:bin_t:s0");
        },
    );
}

#[test]
fn a_symbolic_link_of_the_host_is_followed_on_the_host() {
    on_a_node(
        "install::a_symbolic_link_of_the_host_is_followed_on_the_host",
        || {
            fs::create_dir_all("/opt/elsewhere").unwrap();
            fs::create_dir_all("/opt/cni").unwrap();
            std::os::unix::fs::symlink("/opt/elsewhere", PLUGINS).unwrap();
            install();
            assert!(Path::new("/opt/elsewhere/rail-cni").is_file());
        },
    );
}

#[test]
fn uninstall_refuses_while_a_pod_has_a_rail_and_then_leaves_nothing() {
    on_a_node(
        "install::uninstall_refuses_while_a_pod_has_a_rail_and_then_leaves_nothing",
        || {
            let (api, running) = ready(&[]);
            running.until("the label", || {
                api.get(NODE)["metadata"]["labels"]["rail-cni/ready"] == "true"
            });
            start_pod("pod-a", 0);
            api.delete(CONFIG_MAP);
            assert!(running.stop());
            let addresses = sh("ip -n pod-a -o addr show dev net1");
            assert!(
                addresses.contains("172.16.0.0/31"),
                "the pod's rail is as before: {addresses}"
            );
            let output = agent(&["uninstall"]);
            assert_eq!(output.status.code(), Some(1));
            let text = text_of(&output);
            assert!(text.contains("ai/pod-a has 0000:1a:00.2"), "{text}");
            assert!(Path::new("/opt/cni/bin/rail-cni").is_file());
            end_pod("pod-a", 0);
            // Files of a killed agent, install or import, and of another node whose store is on the
            // same file system.
            sh("cd /run/rail-cni; touch .calls.new agent.lock; cd /opt/cni/bin; touch .rail-cni/rail-cni.new .rail-cni/.rail-ipam.kept
            cd /etc/rail-cni; touch .node.json.new .node.json.kept
            cd /var/lib/rail-cni/store; mkdir .new.1 worker-gpu-1; touch .unfinished .closed.worker-gpu-0 worker-gpu-1/rail-0.json");
            let kubeconfig = crate::node::kubeconfig(&format!("http://{}", api.address));
            let mut inside = crate::node::in_container(&[
                crate::node::AGENT,
                "uninstall",
                "--node",
                crate::node::NAME,
            ]);
            let output = inside.env("KUBECONFIG", kubeconfig).output().unwrap();
            assert!(output.status.success(), "{}", text_of(&output));
            assert!(names().is_empty(), "{:?}", names());
            for path in [
                "/etc/rail-cni",
                "/run/rail-cni/calls",
                "/run/rail-cni/.calls.new",
                "/run/rail-cni/agent.lock",
            ] {
                assert!(!Path::new(path).exists(), "{path}");
            }
            assert!(Path::new("/var/lib/rail-cni/store/worker-gpu-1/rail-0.json").exists());
            for of_node in [crate::node::NAME, ".closed.worker-gpu-0"] {
                assert!(
                    !Path::new("/var/lib/rail-cni/store").join(of_node).exists(),
                    "{of_node}"
                );
            }
            sh("rm -r /var/lib/rail-cni/store/worker-gpu-1");
            let node = api.get(NODE);
            assert!(
                node["metadata"]["labels"]["rail-cni/ready"].is_null(),
                "{node}"
            );
            assert_eq!(node["status"]["conditions"], serde_json::json!([]));
            // Once more takes what the other node left, and then changes nothing.
            for _ in 0..2 {
                assert!(agent(&["uninstall"]).status.success());
                assert!(!Path::new("/var/lib/rail-cni").exists());
            }
        },
    );
}

#[test]
fn uninstall_removes_nothing_under_a_living_agent() {
    on_a_node(
        "install::uninstall_removes_nothing_under_a_living_agent",
        || {
            let (_api, running) = ready(&[]);
            for arguments in [
                &["uninstall"][..],
                &["uninstall", "--force"],
                &["uninstall", "--wait", "1"],
            ] {
                let output = agent(arguments);
                let text = text_of(&output);
                assert_eq!(output.status.code(), Some(1), "{text}");
                assert!(text.contains("pod rail-agent-x"), "{text}");
            }
            for path in [
                "/opt/cni/bin/rail-cni",
                "/etc/rail-cni/node.json",
                "/run/rail-cni/agent.lock",
            ] {
                assert!(Path::new(path).exists(), "{path}");
            }
            // It waits for the agent's end.
            let mut waiting =
                crate::node::in_container(&[crate::node::AGENT, "uninstall", "--wait", "60"]);
            let waiting = waiting
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            assert!(running.stop());
            let output = waiting.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", text_of(&output));
            assert!(names().is_empty() && !Path::new("/run/rail-cni/agent.lock").exists());
        },
    );
}

#[test]
fn uninstall_says_what_to_do_about_what_no_pods_end_restores() {
    on_a_node(
        "install::uninstall_says_what_to_do_about_what_no_pods_end_restores",
        || {
            let (_api, running) = ready(&[]);
            start_pod("pod-a", 0);
            end_pod("pod-a", 0);
            assert!(running.stop());
            crate::node::write("/run/rail-cni/attachments/x.json", "{");
            let text = text_of(&agent(&["uninstall"]));
            assert!(
                text.contains("x.json ") && text.contains("`railctl reap`"),
                "{text}"
            );
            assert!(!text.contains("--wait"), "{text}");
        },
    );
}

#[test]
fn uninstall_refuses_while_a_pod_has_an_address_behind_another_plugin() {
    on_a_node(
        "install::uninstall_refuses_while_a_pod_has_an_address_behind_another_plugin",
        || {
            let (_api, running) = ready(&[]);
            assert!(running.stop());
            sh("ip netns add pod-m");
            let output = call_behind_macvlan("ADD", "pod-m", 0);
            assert!(output.status.success(), "{}", text_of(&output));
            start_pod("pod-a", 1);
            let text = text_of(&agent(&["uninstall"]));
            assert!(text.contains("ai/pod-m has 172.16.0.0"), "{text}");
            assert!(text.contains("ai/pod-a has 0000:3c:00.2"), "{text}");
            end_pod("pod-a", 1);
            assert_eq!(agent(&["uninstall"]).status.code(), Some(1));
            assert_eq!(names(), INSTALLED);
            let output = call_behind_macvlan("DEL", "pod-m", 0);
            assert!(output.status.success(), "{}", text_of(&output));
            let output = agent(&["uninstall"]);
            assert!(
                output.status.success() && names().is_empty(),
                "{}",
                text_of(&output)
            );
            // A node without rail-ipam, as an uninstall that was interrupted leaves it, holds
            // nobody up.
            install();
            fs::remove_file(Path::new(PLUGINS).join("rail-ipam")).unwrap();
            let output = agent(&["uninstall"]);
            assert!(
                output.status.success() && names().is_empty(),
                "{}",
                text_of(&output)
            );
        },
    );
}

#[test]
fn an_uninstall_that_failed_half_way_goes_on_where_it_was() {
    on_a_node(
        "install::an_uninstall_that_failed_half_way_goes_on_where_it_was",
        || {
            let api = cluster();
            let mut of_class = node_json();
            of_class["storeDir"] = "/var/lib/elsewhere/store".into();
            api.put(
                CONFIG_MAP,
                config_map(&serde_json::json!({"node.dgx.json": of_class.to_string()})),
            );
            install();
            let running = Running::start(&api, &[]);
            running.until("the store", || {
                Path::new("/var/lib/elsewhere/store/worker-gpu-0/rail-1.json").exists()
            });
            assert!(running.stop());
            sh("cd /var/lib/elsewhere; mount --bind store store; mount -o remount,bind,ro store");
            let output = agent(&["uninstall"]);
            let text = text_of(&output);
            assert_eq!(output.status.code(), Some(1), "{text}");
            assert!(
                text.contains("/var/lib/elsewhere/store/worker-gpu-0"),
                "{text}"
            );
            assert!(Path::new("/etc/rail-cni/node.json").exists());
            sh("umount /var/lib/elsewhere/store");
            let output = agent(&["uninstall"]);
            assert!(output.status.success(), "{}", text_of(&output));
            for path in [
                "/var/lib/elsewhere/store",
                "/run/rail-cni/calls",
                "/etc/rail-cni",
            ] {
                assert!(!Path::new(path).exists(), "{path}");
            }
        },
    );
}

/// The default of --plugins-dir is not every node's.
#[test]
fn uninstall_under_a_pod_refuses_also_where_the_plugins_are_not() {
    on_a_node(
        "install::uninstall_under_a_pod_refuses_also_where_the_plugins_are_not",
        || {
            let (_api, running) = ready(&[]);
            start_pod("pod-a", 0);
            assert!(running.stop());
            let is_whole = || {
                for path in [
                    "/opt/cni/bin/rail-cni",
                    "/etc/rail-cni/node.json",
                    "/var/lib/rail-cni/store/worker-gpu-0",
                ] {
                    assert!(Path::new(path).exists(), "{path}");
                }
            };
            let refuses = |dir: &str, told: &str| {
                let output = agent(&["uninstall", "--plugins-dir", dir]);
                let text = text_of(&output);
                assert!(output.status.code() == Some(1), "{text}");
                assert!(text.contains(told), "{text}");
                is_whole();
            };
            fs::create_dir_all("/opt/empty").unwrap();
            for dir in ["/opt/none", "/opt/empty"] {
                refuses(dir, dir);
            }
            // Without node.json, what the files of the plugins say counts.
            sh("mv /etc/rail-cni /etc/away; mkdir -p /etc/rail-cni");
            for dir in ["/opt/none", "/opt/empty"] {
                let text = text_of(&agent(&["uninstall", "--plugins-dir", dir]));
                assert!(
                    text.contains("172.16.0.0@") && text.contains("172.16.0.0@"),
                    "{text}"
                );
            }
            sh("rmdir /etc/rail-cni; mv /etc/away /etc/rail-cni");
            end_pod("pod-a", 0);
            refuses("/opt/none", "--plugins-dir");
            assert!(agent(&["uninstall"]).status.success());
        },
    );
}

#[test]
fn an_uninstall_that_had_removed_the_plugins_is_finished_by_the_next_one() {
    on_a_node(
        "install::an_uninstall_that_had_removed_the_plugins_is_finished_by_the_next_one",
        || {
            let (_api, running) = ready(&[]);
            assert!(running.stop());
            let begin = || {
                // A lease of a dead pod is nobody's.
                sh("ip netns add pod-m");
                assert!(call_behind_macvlan("ADD", "pod-m", 0).status.success());
                sh(
                    "ip netns del pod-m; cd /var/lib/rail-cni; mount --bind store store; mount -o remount,bind,ro store",
                );
                assert_eq!(agent(&["uninstall"]).status.code(), Some(1));
                assert!(names().is_empty() && Path::new("/etc/rail-cni/node.json").exists());
                sh("umount /var/lib/rail-cni/store");
            };
            begin();
            let output = agent(&["uninstall"]);
            assert!(
                output.status.success() && !Path::new("/etc/rail-cni").exists(),
                "{}",
                text_of(&output)
            );
        },
    );
}

#[test]
fn nobody_without_rights_keeps_an_install_out() {
    on_a_node(
        "install::nobody_without_rights_keeps_an_install_out",
        || {
            install();
            // A process that can open a file can lock it.
            let script = "for path in /opt/cni /opt/cni/bin /opt/cni/bin/.rail-cni /opt/cni/bin/rail-* /etc/rail-cni /run; do
            exec {fd}<$path && flock -n $fd && echo $path; done 2>/dev/null; echo held; exec sleep 600";
            let nobody = [
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "--bounding-set=-all",
            ];
            let mut held = Command::new("setpriv")
                .args(nobody)
                .args(["bash", "-c", script])
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = std::io::BufReader::new(held.stdout.take().unwrap())
                .lines()
                .map(Result::unwrap);
            let locked: Vec<_> = lines.by_ref().take_while(|line| line != "held").collect();
            assert!(locked.iter().any(|path| path == PLUGINS), "{locked:?}");
            assert!(!locked.iter().any(|path| path == KEPT), "{locked:?}");
            let begun = std::time::Instant::now();
            let output = install_from(other_versions());
            assert!(output.status.success(), "{}", text_of(&output));
            assert!(agent(&["install", "--previous"]).status.success());
            assert!(agent(&["uninstall"]).status.success());
            assert!(begun.elapsed().as_secs() < 50, "it waited for a lock");
            held.kill().unwrap();
            held.wait().unwrap();
        },
    );
}

/// Its findings about pods hold no more.
#[test]
fn an_install_takes_back_that_an_uninstall_has_begun() {
    on_a_node(
        "install::an_install_takes_back_that_an_uninstall_has_begun",
        || {
            install();
            crate::node::write("/etc/rail-cni/node.json", "{}");
            crate::node::write("/etc/rail-cni/uninstall.begun", "");
            assert!(
                agent(&["install", "--from", built().to_str().unwrap()])
                    .status
                    .success()
            );
            assert!(!Path::new("/etc/rail-cni/uninstall.begun").exists());
            let output = agent(&["uninstall", "--plugins-dir", "/opt/none"]);
            assert!(
                text_of(&output).contains("--plugins-dir"),
                "{}",
                text_of(&output)
            );
        },
    );
}
