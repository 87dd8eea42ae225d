//! A node of a cluster: network, mount and PID namespaces of its own, whose process 1 is the host's
//! for whoever is in them, with /etc, /opt, /run and /var of their own. It has two rails; the VFs
//! are veths, by a sysfs of files.
//!
//! Each test runs this executable again, for itself alone, in namespaces that end with it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::api::Api;

pub const NAME: &str = "worker-gpu-0";
pub const NODE: &str = "/api/v1/nodes/worker-gpu-0";
pub const CONFIG_MAP: &str = "/api/v1/namespaces/kube-system/configmaps/rail-cni";
pub const DAEMON_SET: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/rail-agent";
pub const POOLS: &str =
    "/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/nvidia-network-operator/cidrpools";
pub const PLUGINS: &str = "/opt/cni/bin";
pub const AGENT: &str = env!("CARGO_BIN_EXE_rail-agent");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const SYS: &str = "/run/sys";
const INSIDE: &str = "RAIL_AGENT_INSIDE";
/// Every wait ends within a few seconds; only a failure waits for so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `body` on a node of its own. `test` is its full name.
pub fn on_a_node(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        furnish();
        body();
        return;
    }
    if !["rail-cni", "rail-ipam", "railctl"]
        .iter()
        .all(|name| built().join(name).is_file())
    {
        return skip(test, "no executables of scripts/build");
    }
    let namespaces = [
        "-nmpf",
        "--mount-proc",
        "--propagation",
        "private",
        "--kill-child",
    ];
    let can = Command::new("unshare")
        .args(namespaces)
        .arg("true")
        .output();
    if !can.is_ok_and(|output| output.status.success()) {
        return skip(test, "no namespaces here: run scripts/test agent as root");
    }
    let output = Command::new("unshare")
        .args(namespaces)
        // Process 1 collects orphans.
        .args(["bash", "-c", "\"$@\"; exit $?", "bash"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env(INSIDE, "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("1 passed"),
        "{test} is not the name of a test: {text}"
    );
}

/// Says that `test` cannot run here; scripts/test prints it at the end.
pub fn skip(test: &str, reason: &str) {
    eprintln!("skipped {test}: {reason}");
    if let Some(path) = std::env::var_os("RAIL_TEST_SKIPS") {
        let mut file = fs::File::options()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        writeln!(file, "{test}: {reason}").unwrap();
    }
}

/// Directory in which scripts/build leaves the executables.
pub fn built() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(ROOT).join("target"), PathBuf::from)
        .join("static")
}

pub fn text_of(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Runs a command, which must succeed.
#[track_caller]
pub fn sh(command: &str) -> String {
    let output = Command::new("bash")
        .args(["-euc", command])
        .output()
        .unwrap();
    assert!(output.status.success(), "{command}: {}", text_of(&output));
    String::from_utf8(output.stdout).unwrap()
}

pub fn write(path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn furnish() {
    sh(
        "for dir in /run /var/lib /var/log /opt; do mount -t tmpfs -o mode=755 tmpfs $dir; done
        mkdir -p /run/netns /run/etc/upper /run/etc/work
        mount -t overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work overlay /etc
        rm -rf /etc/cni /etc/rail-cni; ip link set lo up",
    );
    for rail in 0..2 {
        let (pf, vf) = (pf(rail), pf(rail).replace("00.0", "00.2"));
        let at = |path: String| Path::new(SYS).join(path);
        for folder in [
            format!("devices/{pf}/net/pf{rail}"),
            format!("devices/{vf}/net/vf{rail}"),
            "bus/pci/devices".to_owned(),
            "bus/pci/drivers/mlx5_core".to_owned(),
            format!("class/net/vf{rail}"),
            format!("class/net/pf{rail}"),
        ] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        symlink(format!("../{pf}"), at(format!("devices/{vf}/physfn"))).unwrap();
        symlink(format!("../{vf}"), at(format!("devices/{pf}/virtfn0"))).unwrap();
        write(at(format!("devices/{pf}/sriov_totalvfs")), "8\n");
        write(at(format!("devices/{pf}/sriov_numvfs")), "1\n");
        for (id, netdev) in [(&pf, "pf"), (&vf, "vf")] {
            symlink(
                at("bus/pci/drivers/mlx5_core".to_owned()),
                at(format!("devices/{id}/driver")),
            )
            .unwrap();
            symlink(
                at(format!("devices/{id}")),
                at(format!("bus/pci/devices/{id}")),
            )
            .unwrap();
            symlink(
                at(format!("devices/{id}")),
                at(format!("class/net/{netdev}{rail}/device")),
            )
            .unwrap();
        }
        // The other ends are a leaf's ports, and the PF's cable.
        sh(&format!(
            "[ -e /run/netns/leaf ] || ip netns add leaf
            ip link add vf{rail} type veth peer name leaf{rail} netns leaf
            ip link add pf{rail} mtu 9216 type veth peer name cable{rail} netns leaf
            ip link set pf{rail} up
            ip -n leaf link set leaf{rail} mtu 9216 up; ip -n leaf link set cable{rail} mtu 9216 up"
        ));
    }
}

fn pf(rail: u8) -> String {
    ["0000:1a:00.0", "0000:3c:00.0"][usize::from(rail)].to_owned()
}

/// The node.json of a class of such nodes.
pub fn node_json() -> Value {
    json!({
        "rails": [{"rail": 0, "pf": pf(0)}, {"rail": 1, "pf": pf(1)}],
        "sysfsRoot": SYS,
        "policy": {"vfsOnly": true, "rails": [0, 1], "vfKeys": []}
    })
}

pub fn config_map(data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rail-cni", "namespace": "kube-system"}, "data": data})
}

/// The CIDRPool of a rail; this node has the prefix 172.(16+2R).0.0/31, or another one.
pub fn pool(rail: u8, prefix: Option<&str>) -> Value {
    let net = 16 + 2 * rail;
    let (own, gateway) = prefix.map_or_else(
        || (format!("172.{net}.0.0/31"), format!("172.{net}.0.1")),
        |prefix| (prefix.to_owned(), prefix.replace(".0/31", ".1")),
    );
    json!({
        "metadata": {"name": format!("rail-{rail}"), "namespace": "nvidia-network-operator", "annotations": {
            "rail-cni/rail": rail.to_string(), "rail-cni/leaf-ports": format!("{NAME}: leaf-su01-r{} swp1\n", rail + 1),
            "kubectl.kubernetes.io/last-applied-configuration": "{}"}},
        "spec": {
            "cidr": format!("172.{net}.0.0/15"), "gatewayIndex": 0, "perNodeNetworkPrefix": 31,
            "routes": [{"dst": format!("172.{net}.0.0/15")}],
            "staticAllocations": [{"nodeName": NAME, "prefix": own, "gateway": gateway}]
        }
    })
}

/// A cluster of this node, with its class, pools and taint.
pub fn cluster() -> Api {
    let api = Api::start();
    api.put(
        NODE,
        json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": NAME, "labels": {"rail-cni/node-class": "dgx"}},
            "spec": {"taints": [{"key": "other", "effect": "NoExecute"}, {"key": "rail-cni/not-ready", "effect": "NoSchedule"}]}}),
    );
    api.put(
        DAEMON_SET,
        json!({"metadata": {"name": "rail-agent"}, "spec": {"selector": {}, "template": {}}}),
    );
    api.put("crd", json!({}));
    api.put(
        CONFIG_MAP,
        config_map(&json!({"node.dgx.json": node_json().to_string(), "cluster": "cluster-1"})),
    );
    for rail in 0..2 {
        api.put(&format!("{POOLS}/rail-{rail}"), pool(rail, None));
    }
    api
}

/// A program in a container of this node: it does not see the host's /run, /opt and /etc/rail-cni.
pub fn in_container(command: &[&str]) -> Command {
    let mut inside = Command::new("unshare");
    inside.args(["-m", "--propagation", "private", "bash", "-euc"]);
    inside.arg(
        "for dir in /run /opt /etc; do mount -t tmpfs -o mode=755 tmpfs $dir; done; exec \"$@\"",
    );
    inside.arg("bash").args(command);
    inside
}

/// `rail-agent install` and `uninstall`, in a container.
pub fn agent(arguments: &[&str]) -> Output {
    in_container(&[&[AGENT], arguments].concat())
        .output()
        .unwrap()
}

#[track_caller]
pub fn install() {
    let output = agent(&["install", "--from", built().to_str().unwrap()]);
    assert!(output.status.success(), "{}", text_of(&output));
}

/// A cluster whose node has the plugins, a plan and a running agent, which has found that pods can
/// start.
#[track_caller]
pub fn ready(more: &[&str]) -> (Api, Running) {
    let api = cluster();
    install();
    let agent = Running::start(&api, more);
    agent.until_condition(&api, "RailsReady", "True", "DoctorPassed");
    agent.until_condition(&api, "RailsPlanCurrent", "True", "Written");
    (api, agent)
}

/// Writes a kubeconfig for this server, where a container sees it.
pub fn kubeconfig(server: &str) -> &'static str {
    // As in a cluster, there is the certificate of an authority: an image from scratch has no
    // others.
    let authority = sh(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout /dev/null \
        -subj /CN=authority -days 1 2>/dev/null | base64 -w 0",
    );
    write_kubeconfig(
        &json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": authority}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]}),
    )
}

fn write_kubeconfig(config: &Value) -> &'static str {
    const PATH: &str = "/var/lib/kubeconfig";
    fs::write(PATH, config.to_string()).unwrap();
    PATH
}

/// A running agent.
pub struct Running {
    child: std::cell::RefCell<Child>,
    log: PathBuf,
}

impl Running {
    /// Starts `rail-agent run`, which looks every second.
    pub fn start(api: &Api, more: &[&str]) -> Running {
        Running::start_at(&format!("http://{}", api.address), more)
    }

    pub fn start_at(server: &str, more: &[&str]) -> Running {
        Running::run(kubeconfig(server), more)
    }

    pub fn start_with(config: &Value, more: &[&str]) -> Running {
        Running::run(write_kubeconfig(config), more)
    }

    fn run(kubeconfig: &str, more: &[&str]) -> Running {
        let log = PathBuf::from("/var/log").join(format!(
            "agent-{}",
            fs::read_dir("/var/log").unwrap().count()
        ));
        let arguments = ["run", "--node", NAME];
        let interval: &[&str] = if more.contains(&"--interval") {
            &[]
        } else {
            &["--interval", "1"]
        };
        let child = in_container(&[&[AGENT], &arguments[..], interval, more].concat())
            .env("KUBECONFIG", kubeconfig)
            .env("POD_NAME", "rail-agent-x")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Running {
            child: child.into(),
            log,
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until something holds, or fails with the log.
    #[track_caller]
    pub fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !holds() {
            let has_ended = self.child.borrow_mut().try_wait().unwrap().is_some();
            assert!(
                !has_ended && begun.elapsed() < PATIENCE,
                "not {what}:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until it has looked at the node so many times more.
    #[track_caller]
    pub fn until_looks(&self, count: usize) {
        let mut last = last_look();
        let mut seen = 0;
        self.until(&format!("{count} looks"), || {
            let now = last_look();
            seen += usize::from(now != last);
            last = now;
            seen > count
        });
    }

    /// Waits until the condition of the Node has a status and a reason.
    #[track_caller]
    pub fn until_condition(&self, api: &Api, kind: &str, status: &str, reason: &str) -> String {
        let mut message = String::new();
        let what = format!("{kind} {status} {reason}");
        self.until(&what, || {
            let one = condition(api, kind);
            message = one["message"].as_str().unwrap_or_default().to_owned();
            one["status"] == status && one["reason"] == reason
        });
        message
    }

    /// Ends it as the kubelet does, and returns whether it ended well.
    pub fn stop(self) -> bool {
        self.stopped().0
    }

    /// Like [`Agent::stop`], with the log.
    pub fn stopped(mut self) -> (bool, String) {
        sh(&format!("kill {}", self.child.get_mut().id()));
        let is_well = self.child.get_mut().wait().unwrap().success();
        (is_well, self.log())
    }

    /// Waits until it has ended by itself, and returns its log.
    #[track_caller]
    pub fn ended(mut self) -> String {
        let begun = Instant::now();
        while self.child.get_mut().try_wait().unwrap().is_none() {
            assert!(
                begun.elapsed() < PATIENCE,
                "it does not end:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(!self.child.get_mut().wait().unwrap().success());
        self.log()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.get_mut().kill();
        let _ = self.child.get_mut().wait();
    }
}

/// The time of the agent's last look at the node, which it notes in a file.
pub fn last_look() -> SystemTime {
    let file = fs::metadata("/run/rail-cni/agent.alive").and_then(|file| file.modified());
    file.unwrap_or(SystemTime::UNIX_EPOCH)
}

pub fn condition(api: &Api, kind: &str) -> Value {
    let all = api.get(NODE)["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    all.into_iter()
        .find(|one| one["type"] == kind)
        .unwrap_or_default()
}

/// The page that the agent serves.
pub fn served(path: &str) -> String {
    use std::io::Read as _;
    let Ok(mut stream) = std::net::TcpStream::connect("127.0.0.1:9810") else {
        return String::new();
    };
    stream
        .write_all(
            format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes(),
        )
        .unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Calls rail-cni for the rail of a pod, as a runtime does.
pub fn call(verb: &str, pod: &str, rail: u8) -> Output {
    call_with_mtu(verb, pod, rail, 9000)
}

/// Like [`call`], with another MTU in the network.
pub fn call_with_mtu(verb: &str, pod: &str, rail: u8, mtu: u32) -> Output {
    let network = json!({"cniVersion": "1.1.0", "name": format!("rail-{rail}"), "type": "rail-cni", "rail": rail,
        "mtu": mtu, "deviceID": pf(rail).replace("00.0", "00.2"), "ipam": {"type": "rail-ipam", "pool": format!("rail-{rail}")}});
    call_plugin("rail-cni", verb, pod, rail, &network)
}

/// Calls rail-ipam for the address of a pod's interface, as macvlan does.
pub fn call_behind_macvlan(verb: &str, pod: &str, rail: u8) -> Output {
    let network = json!({"cniVersion": "1.1.0", "name": "macvlan", "type": "macvlan",
        "ipam": {"type": "rail-ipam", "pool": format!("rail-{rail}")}});
    call_plugin("rail-ipam", verb, pod, rail, &network)
}

fn call_plugin(plugin: &str, verb: &str, pod: &str, rail: u8, network: &Value) -> Output {
    let mut child = Command::new(Path::new(PLUGINS).join(plugin))
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", pod)
        .env("CNI_IFNAME", format!("net{}", rail + 1))
        .env("CNI_NETNS", format!("/run/netns/{pod}"))
        .env("CNI_PATH", PLUGINS)
        .env(
            "CNI_ARGS",
            format!(
                "IgnoreUnknown=1;K8S_POD_NAMESPACE=ai;K8S_POD_NAME={pod};K8S_POD_UID=uid-of-{pod}"
            ),
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = child
        .stdin
        .take()
        .unwrap()
        .write_all(network.to_string().as_bytes());
    child.wait_with_output().unwrap()
}

/// A pod with a rail.
#[track_caller]
pub fn start_pod(pod: &str, rail: u8) {
    sh(&format!("ip netns add {pod}"));
    let output = call("ADD", pod, rail);
    assert!(output.status.success(), "{}", text_of(&output));
}

#[track_caller]
pub fn end_pod(pod: &str, rail: u8) {
    let output = call("DEL", pod, rail);
    assert!(output.status.success(), "{}", text_of(&output));
    sh(&format!("ip netns del {pod}"));
}

/// The allocation of this node in the pool of a rail.
pub fn allocation(rail: u8) -> String {
    fs::read_to_string(format!("/var/lib/rail-cni/store/{NAME}/rail-{rail}.json"))
        .unwrap_or_default()
}
