//! Multus' daemon with its shim: the runtime calls the shim, and the daemon watches pods and
//! networks. Its `auto` mode takes the first network of /etc/cni/net.d as that of eth0.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::Api;
use crate::multus::{Sandbox, UID, allot, pod};
use crate::node::{
    self, Node, RAILS, documents, executable, json_of, on_a_node, read, text_of, vf_address, write,
};

const CALLER: &str = "multus-thick-4.3.0";
const SECRETS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Written by the daemon.
const CONFIG: &str = "/etc/cni/net.d/00-multus.conf";
const DAEMON_CONFIG: &str = "/etc/multus/daemon-config.json";
const SOCKET: &str = "/run/multus/multus.sock";
const LOG: &str = "/var/log/multus.log";

fn run(test: &str, body: fn(&Node)) {
    on_a_node(test, &[CALLER, "doubles", "plugins"], |node| body(node));
}

struct Thick<'a> {
    node: &'a Node,
    api: Api,
    /// The port of its HTTPS end.
    port: String,
    daemon: Child,
    /// Stand-ins for the rest of a cluster.
    doubles: Vec<Child>,
}

impl<'a> Thick<'a> {
    /// Starts the daemon, with devices from kubelet's checkpoint and this network for eth0.
    fn new(node: &'a Node, eth0: &Value) -> Thick<'a> {
        let api = Api::start();
        documents("conf/nads.yaml")
            .iter()
            .for_each(|nad| api.apply(nad));
        api.apply(&pod());
        allot(&[(UID, 0)]);
        fs::create_dir_all(SECRETS).unwrap();
        let mut https = Command::new(executable("doubles", "https"))
            .args([&api.url, SECRETS])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        BufReader::new(https.stdout.take().unwrap())
            .read_line(&mut port)
            .unwrap();
        symlink(
            executable(CALLER, "multus-shim"),
            "/opt/cni/bin/multus-shim",
        )
        .unwrap();
        write("/etc/cni/net.d/10-pods.conflist", eth0.to_string());
        let config = json!({"cniVersion": "1.0.0", "logLevel": "verbose", "logToStderr": true,
            "socketDir": "/run/multus/", "daemonSocketDir": "/run/multus/", "cniConfigDir": "/etc/cni/net.d",
            "multusConfigFile": "auto", "multusAutoconfigDir": "/etc/cni/net.d"});
        write(DAEMON_CONFIG, config.to_string());
        let port = port.trim().to_owned();
        let thick = Thick {
            node,
            api,
            daemon: start(&port),
            port,
            doubles: vec![https],
        };
        thick.is_ready();
        thick
    }

    /// The socket is there before it answers; the configuration is written after that.
    fn is_ready(&self) {
        waits(|| {
            Path::new(CONFIG).exists() && std::os::unix::net::UnixStream::connect(SOCKET).is_ok()
        });
    }

    fn kill(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
    }

    fn restart(&mut self) {
        fs::remove_file(CONFIG).unwrap();
        self.daemon = start(&self.port);
        self.is_ready();
    }

    fn call(verb: &str, sandbox: &Sandbox) -> Output {
        let config = fs::read_to_string(CONFIG).unwrap();
        let mut shim = Command::new(Path::new("/opt/cni/bin").join("multus-shim"));
        node::run(&mut shim, &sandbox.variables(verb), &config)
    }

    #[track_caller]
    fn add(sandbox: &Sandbox) -> Value {
        let output = Self::call("ADD", sandbox);
        assert!(
            output.status.success(),
            "{}{}",
            text_of(&output),
            fs::read_to_string(LOG).unwrap()
        );
        json_of(&output)
    }

    #[track_caller]
    fn del(sandbox: &Sandbox) {
        let output = Self::call("DEL", sandbox);
        assert!(output.status.success(), "{}", text_of(&output));
    }

    #[track_caller]
    fn ends(&self, sandbox: &Sandbox) {
        for _ in 0..2 {
            Self::del(sandbox);
            self.node.is_as_before();
        }
    }

    #[track_caller]
    fn has_all_rails(&self, pod: &str) {
        let status = self.api.network_status("trainer-0");
        assert_eq!(status.len(), 9, "{status:?}");
        for rail in RAILS {
            let ifname = format!("net{}", rail + 1);
            self.node.has_rail(pod, rail, &ifname);
            let status = &status[usize::from(rail) + 1];
            assert_eq!(
                status["name"],
                json!(format!("default/rail-{rail}")),
                "{status}"
            );
            assert_eq!(
                status["device-info"]["pci"]["pci-address"],
                json!(vf_address(rail)),
                "{status}"
            );
        }
    }
}

impl Drop for Thick<'_> {
    fn drop(&mut self) {
        for child in self.doubles.iter_mut().chain([&mut self.daemon]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[track_caller]
fn waits(mut until: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !until() {
        assert!(
            Instant::now() < deadline,
            "{}",
            fs::read_to_string(LOG).unwrap_or_default()
        );
        thread::sleep(Duration::from_millis(20));
    }
}

fn start(port: &str) -> Child {
    let log = fs::File::options()
        .append(true)
        .create(true)
        .open(LOG)
        .unwrap();
    Command::new(executable(CALLER, "multus-daemon"))
        .args(["-config", DAEMON_CONFIG])
        .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .env("KUBERNETES_SERVICE_PORT", port)
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

#[test]
fn ten_pods_in_a_row_get_eight_rails_with_devices_of_the_checkpoint() {
    run(
        "thick::ten_pods_in_a_row_get_eight_rails_with_devices_of_the_checkpoint",
        |node| {
            let thick = Thick::new(node, &node::eth0());
            let (mut up, mut down) = (Vec::new(), Vec::new());
            for time in 0..10 {
                let name = format!("trainer-{time}");
                let sandbox = Sandbox::new(node, &name);
                let begin = Instant::now();
                Thick::add(&sandbox);
                up.push(begin.elapsed());
                thick.has_all_rails(&name);
                node.reaches_leaf(&name, 7, "net8");
                let begin = Instant::now();
                Thick::del(&sandbox);
                down.push(begin.elapsed());
                thick.ends(&sandbox);
            }
            node::record_times(&format!("{CALLER}, eth0 and eight rails"), &up, &down);
        },
    );
}

/// Kubelet's socket comes before its file: the file names devices that are not there.
#[test]
fn a_pod_gets_its_rails_with_devices_of_pod_resources() {
    run(
        "thick::a_pod_gets_its_rails_with_devices_of_pod_resources",
        |node| {
            let mut thick = Thick::new(node, &node::eth0());
            allot(&[(UID, 7)]);
            let devices: Vec<_> = RAILS
                .map(|rail| {
                    json!({"namespace": "default", "name": "trainer-0",
                "resource": format!("nvidia.com/rail-{rail}"), "device": vf_address(rail)})
                })
                .collect();
            write("/run/devices.json", Value::from(devices).to_string());
            let socket = PathBuf::from("/var/lib/kubelet/pod-resources/kubelet.sock");
            fs::create_dir_all(socket.parent().unwrap()).unwrap();
            let double = Command::new(executable("doubles", "podresources"))
                .args([socket.as_os_str(), "/run/devices.json".as_ref()])
                .spawn()
                .unwrap();
            thick.doubles.push(double);
            waits(|| std::os::unix::net::UnixStream::connect(&socket).is_ok());
            let sandbox = Sandbox::new(node, "trainer");
            Thick::add(&sandbox);
            thick.has_all_rails("trainer");
            thick.ends(&sandbox);
        },
    );
}

/// The shim says that all is well. The rails wait for `reap`, or for the next pod that wants them.
#[test]
fn reap_finds_the_rails_of_a_del_that_a_dead_daemon_lost() {
    run(
        "thick::reap_finds_the_rails_of_a_del_that_a_dead_daemon_lost",
        |node| {
            let mut thick = Thick::new(node, &node::eth0());
            for is_reaped in [true, false] {
                let name = format!("lost-{is_reaped}");
                let lost = Sandbox::new(node, &name);
                Thick::add(&lost);
                thick.kill();
                Thick::del(&lost);
                node.has_rail(&name, 0, "net1");
                node::ip(&format!("netns delete {name}"));
                node.return_devices();
                if is_reaped {
                    let output = Command::new("/opt/cni/bin/railctl")
                        .arg("reap")
                        .output()
                        .unwrap();
                    assert!(output.status.success(), "{}", text_of(&output));
                    node.is_as_before();
                }
                thick.restart();
                let name = format!("next-{is_reaped}");
                let next = Sandbox::new(node, &name);
                Thick::add(&next);
                thick.has_all_rails(&name);
                thick.ends(&next);
            }
        },
    );
}

/// From the file that it took, Multus passes `type` and `ipam.type` alone to a DEL.
#[test]
fn a_rail_as_eth0_comes_back_though_its_del_has_no_configuration() {
    run(
        "thick::a_rail_as_eth0_comes_back_though_its_del_has_no_configuration",
        |node| {
            let mut eth0: Value =
                serde_json::from_str(&read("conf/net.d/20-rail-0.conflist")).unwrap();
            eth0["plugins"][0]["pciBusID"] = json!(vf_address(0));
            let thick = Thick::new(node, &eth0);
            let mut alone = pod();
            alone["metadata"]["annotations"] = json!({});
            thick.api.apply(&alone);
            let sandbox = Sandbox::new(node, "trainer");
            // The daemon may still know the pod of before: then eth0 is not free for its first
            // rail.
            waits(|| {
                let output = Thick::call("ADD", &sandbox);
                if !output.status.success() {
                    Thick::del(&sandbox);
                }
                output.status.success()
            });
            node.has_rail("trainer", 0, "eth0");
            thick.ends(&sandbox);
        },
    );
}
