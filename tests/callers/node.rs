//! A node of a cluster: network, mount and PID namespaces of its own, in which /etc/cni,
//! /opt/cni/bin, /run, /var/lib and node.json are where a real node has them. Its eight rails are
//! those of conf/node.json and conf/pools/spectrum-x.yaml. The VFs are veths, by a sysfs of files;
//! the other end of each is a leaf port.
//!
//! Process 1 must see the same /run as the plugins. So each test runs this executable again, for
//! itself alone, in namespaces that end with it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde::Deserialize as _;
use serde_json::{Value, json};

pub const RAILS: std::ops::Range<u8> = 0..8;
/// The name by which conf/pools/spectrum-x.yaml knows this node.
const NAME: &str = "worker-gpu-0";
const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const SYS: &str = "/run/sys";
const PLUGINS: &str = "/opt/cni/bin";
const NODE: &str = "/etc/rail-cni/node.json";
/// Set for the test inside of its namespaces.
const INSIDE: &str = "RAIL_CALLERS_INSIDE";
/// The executables of scripts/build.
const EXECUTABLES: [&str; 3] = ["rail-cni", "rail-ipam", "railctl"];

/// The node of this test.
pub struct Node {
    /// Address and gateway of each rail.
    pub addresses: Vec<(String, String)>,
    before: Value,
}

/// Runs `body` on a node of its own, with the executables of `callers` at hand. `test` is its full
/// name.
pub fn on_a_node(test: &str, callers: &[&str], body: impl FnOnce(&mut Node)) {
    if std::env::var_os(INSIDE).is_some() {
        body(&mut Node::new());
        return;
    }
    for caller in callers {
        if let Err(reason) = folder_of(caller) {
            return skip(test, &reason);
        }
    }
    if !EXECUTABLES.iter().all(|name| built().join(name).is_file()) {
        return skip(test, "no executables of scripts/build");
    }
    let namespaces = [
        "-nmpf",
        "--mount-proc",
        "--propagation",
        "private",
        "--kill-child",
    ];
    if !Command::new("unshare")
        .args(namespaces)
        .arg("true")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        return skip(test, "no namespaces here: run scripts/test");
    }
    // Process 1 collects the orphans that killed callers leave.
    let shell = ["bash", "-c", "\"$@\"; exit $?", "bash"];
    let output = Command::new("unshare")
        .args(namespaces)
        .args(shell)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env(INSIDE, "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        text.contains("1 passed"),
        "{test} is not the name of a test: {text}"
    );
}

/// Directory in which scripts/build leaves them.
fn built() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(ROOT).join("target"), PathBuf::from)
        .join("static")
}

/// The folder of a caller's executables, of scripts/callers; `cnitool` and `plugins` are those of
/// scripts/cnitool.
fn folder_of(caller: &str) -> Result<PathBuf, String> {
    let variable = match caller {
        "cnitool" => "RAIL_CNITOOL",
        "plugins" => "RAIL_PEERS",
        _ => "RAIL_CALLERS",
    };
    let value = std::env::var_os(variable).filter(|value| !value.is_empty());
    let path = PathBuf::from(value.ok_or(format!(
        "{caller} is not here: scripts/test callers gets it"
    ))?);
    if caller == "cnitool" {
        return Ok(path.with_file_name(""));
    }
    if variable == "RAIL_PEERS" {
        return Ok(path);
    }
    let folder = path.join(caller).join("bin");
    if folder.is_dir() {
        return Ok(folder);
    }
    let reason = fs::read_to_string(path.join(format!("{caller}.missing"))).unwrap_or_default();
    Err(format!("{caller} cannot be had: {}", reason.trim()))
}

/// The path of a caller's executable.
pub fn executable(caller: &str, name: &str) -> PathBuf {
    folder_of(caller).unwrap().join(name)
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

/// A file of the repository.
pub fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents of a YAML file of the repository.
pub fn documents(path: &str) -> Vec<Value> {
    yaml_serde::Deserializer::from_str(&read(path))
        .map(|each| Value::deserialize(each).unwrap())
        .collect()
}

/// PCI address of the VF of rail R: the first function after its PF, as mlx5 numbers them.
pub fn vf_address(rail: u8) -> String {
    address_of_vf(rail, 0)
}

/// PCI address of VF N of rail R.
pub fn address_of_vf(rail: u8, vf: u8) -> String {
    pf_address(rail).replace("00.0", &format!("00.{}", vf + 2))
}

/// Name of the netdev of VF N of rail R.
fn netdev_of_vf(rail: u8, vf: u8) -> String {
    if vf == 0 {
        format!("vf{rail}")
    } else {
        format!("vf{rail}v{vf}")
    }
}

fn pf_address(rail: u8) -> String {
    let node: Value = serde_json::from_str(&read("conf/node.json")).unwrap();
    let rails = node["rails"].as_array().unwrap();
    let of_rail = rails.iter().find(|each| each["rail"] == rail).unwrap();
    of_rail["pf"].as_str().unwrap().to_owned()
}

/// Runs `ip`, which must succeed.
#[track_caller]
pub fn ip(args: &str) -> String {
    let output = Command::new("ip")
        .args(args.split_whitespace())
        .output()
        .expect("iproute2");
    assert!(
        output.status.success(),
        "ip {args}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn ip_json(args: &str) -> Vec<Value> {
    let text = ip(&format!("-json -details {args}"));
    serde_json::from_str(if text.trim().is_empty() { "[]" } else { &text }).unwrap()
}

/// Writes a file, its folder too.
pub fn write(path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
    let path = path.as_ref();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// The network of eth0, by upstream's bridge.
pub fn eth0() -> Value {
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}]}}]})
}

/// conf/net.d/20-rail-0.conflist for each of the rails, as files of the runtime.
pub fn add_rail_networks() {
    for rail in RAILS {
        let mut network: Value =
            serde_json::from_str(&read("conf/net.d/20-rail-0.conflist")).unwrap();
        network["name"] = json!(format!("rail-{rail}"));
        let plugin = &mut network["plugins"][0];
        plugin["rail"] = json!(rail);
        plugin["pciBusID"] = json!(vf_address(rail));
        plugin["ipam"]["pool"] = json!(format!("rail-{rail}"));
        write(
            format!("/etc/cni/net.d/2{rail}-rail-{rail}.conflist"),
            network.to_string(),
        );
    }
}

/// Runs a command with these variables alone, and `stdin`.
pub fn run(command: &mut Command, variables: &BTreeMap<&str, String>, stdin: &str) -> Output {
    start(command, variables, stdin).wait_with_output().unwrap()
}

/// Starts it, in a process group of its own.
pub fn start(command: &mut Command, variables: &BTreeMap<&str, String>, stdin: &str) -> Child {
    use std::os::unix::process::CommandExt as _;
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .envs(variables)
        .process_group(0);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A killed program does not read.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child
}

/// Kills what [`start`] started, after some time: alone, as when it crashes and the plugin that it
/// called goes on, or with all that it started. Whether it had ended by itself does not matter.
pub fn kill_after(mut child: Child, time: Duration, alone: bool) {
    std::thread::sleep(time);
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let _ = if alone {
        kill(pid, Signal::SIGKILL)
    } else {
        killpg(pid, Signal::SIGKILL)
    };
    child.wait().unwrap();
}

/// The JSON output of a command; it must have succeeded.
#[track_caller]
pub fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text_of(output));
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text_of(output)))
}

/// The output of a command.
pub fn text_of(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

impl Node {
    fn new() -> Node {
        furnish();
        for name in EXECUTABLES {
            fs::copy(built().join(name), Path::new(PLUGINS).join(name)).unwrap();
        }
        if let Ok(plugins) = folder_of("plugins") {
            for entry in fs::read_dir(plugins).unwrap() {
                let path = entry.unwrap().path();
                symlink(&path, Path::new(PLUGINS).join(path.file_name().unwrap())).unwrap();
            }
        }
        let mut node = Node {
            addresses: Vec::new(),
            before: Value::Null,
        };
        node.configure(|_| {});
        let pools = Path::new(ROOT).join("conf/pools/spectrum-x.yaml");
        let output = Command::new(Path::new(PLUGINS).join("railctl"))
            .arg("import")
            .arg(pools)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text_of(&output));
        ip("netns add leaf");
        for rail in RAILS {
            let file = fs::read_to_string(node.allocation(rail)).unwrap();
            let allocation: Value = serde_json::from_str(&file).unwrap();
            let text = |key: &str| allocation[key].as_str().unwrap().to_owned();
            node.addresses.push((text("prefix"), text("gateway")));
            add_pf(rail);
            add_vf(rail, 0);
            node.add_gateway(rail);
        }
        node.before = node.state();
        node
    }

    /// Gives each rail this many VFs, and this node a prefix per rail with an address for each of
    /// them.
    pub fn grow(&mut self, vfs: u8) {
        for rail in RAILS {
            for vf in 1..vfs {
                add_vf(rail, vf);
            }
        }
        let mut pools = documents("conf/pools/spectrum-x.yaml");
        for pool in &mut pools {
            let spec = &mut pool["spec"];
            let mut here = spec["staticAllocations"][0].clone();
            here["prefix"] = json!(here["prefix"].as_str().unwrap().replace("/31", "/28"));
            spec["perNodeNetworkPrefix"] = json!(28);
            spec["gatewayIndex"] = json!(1);
            spec["staticAllocations"] = json!([here]);
        }
        write(
            "/run/pools.json",
            json!({"apiVersion": "v1", "kind": "List", "items": pools}).to_string(),
        );
        let output = Command::new(Path::new(PLUGINS).join("railctl"))
            .args(["import", "/run/pools.json"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text_of(&output));
        self.before = self.state();
    }

    /// Puts the VFs of a namespace that ended on the host again, as the kernel does. A veth has
    /// gone with it.
    pub fn return_devices(&self) {
        for rail in RAILS {
            let deadline = Instant::now() + Duration::from_secs(60);
            while has_link(&["-n", "leaf"], &format!("leaf{rail}")) {
                assert!(
                    Instant::now() < deadline,
                    "the namespace of rail {rail} does not end"
                );
                std::thread::sleep(Duration::from_millis(20));
            }
            add_netdev(rail, 0);
            self.add_gateway(rail);
        }
    }

    /// Gives the leaf port of a rail its address.
    fn add_gateway(&self, rail: u8) {
        let (_, gateway) = &self.addresses[usize::from(rail)];
        ip(&format!("-n leaf addr add {gateway}/31 dev leaf{rail}"));
    }

    /// Writes node.json: conf/node.json with the keys of this machine, and what `change` makes of
    /// it.
    pub fn configure(&self, change: impl FnOnce(&mut Value)) {
        let mut node: Value = serde_json::from_str(&read("conf/node.json")).unwrap();
        node["nodeName"] = json!(NAME);
        node["sysfsRoot"] = json!(SYS);
        change(&mut node);
        write(NODE, node.to_string());
    }

    /// The file of the store with the allocation of a rail.
    pub fn allocation(&self, rail: u8) -> PathBuf {
        Path::new("/var/lib/rail-cni/store")
            .join(NAME)
            .join(format!("rail-{rail}.json"))
    }

    /// Makes the namespace of a pod, and returns its path.
    pub fn add_pod(&self, name: &str) -> String {
        ip(&format!("netns add {name}"));
        ip(&format!("-n {name} link set lo up"));
        format!("/run/netns/{name}")
    }

    /// Asserts that rail R is `ifname` in the pod, with its address and MTU.
    #[track_caller]
    pub fn has_rail(&self, pod: &str, rail: u8, ifname: &str) {
        let link = &ip_json(&format!("-n {pod} addr show dev {ifname}"))[0];
        assert_eq!(link["mtu"], 9000, "{link}");
        let flags = link["flags"].as_array().unwrap();
        assert!(
            flags.contains(&json!("UP")) && flags.contains(&json!("LOWER_UP")),
            "{link}"
        );
        let address = &link["addr_info"]
            .as_array()
            .unwrap()
            .iter()
            .find(|each| each["family"] == "inet")
            .unwrap();
        let text = format!(
            "{}/{}",
            address["local"].as_str().unwrap(),
            address["prefixlen"]
        );
        assert_eq!(text, self.addresses[usize::from(rail)].0);
    }

    /// Asserts that the largest packet passes from `ifname` of the pod to the leaf port of rail R.
    #[track_caller]
    pub fn reaches_leaf(&self, pod: &str, rail: u8, ifname: &str) {
        let gateway = &self.addresses[usize::from(rail)].1;
        let args =
            format!("netns exec {pod} ping -n -c 1 -W 10 -M do -s 8972 -I {ifname} {gateway}");
        ip(&args);
    }

    /// The state that must be equal after the pod: the links of the host, and the files of leases,
    /// records and pending ones.
    fn state(&self) -> Value {
        let rails = ip_json("link show");
        let links: BTreeMap<_, _> = rails
            .iter()
            .filter(|link| link["ifname"].as_str().unwrap().starts_with("vf"))
            .map(|link| {
                (
                    link["ifname"].as_str().unwrap(),
                    json!([link["mtu"], link["address"], link["flags"]]),
                )
            })
            .collect();
        let mut files = Vec::new();
        for folder in ["leases", "attachments", "pending"] {
            collect(&Path::new("/run/rail-cni").join(folder), &mut files);
        }
        collect(
            Path::new("/var/run/k8s.cni.cncf.io/devinfo/cni"),
            &mut files,
        );
        files.retain(|file| file.file_name().is_some_and(|name| name != "lock"));
        json!({ "links": links, "files": files })
    }

    /// Asserts that every rail is on the host as it was, and that nothing is on record.
    #[track_caller]
    pub fn is_as_before(&self) {
        let log = fs::read_to_string("/var/log/rail-cni.log").unwrap_or_default();
        let tail: Vec<_> = log.lines().rev().take(40).collect();
        assert_eq!(
            self.state(),
            self.before,
            "the last of the log first:\n{}",
            tail.join("\n")
        );
    }
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files)
        } else {
            files.push(path)
        }
    }
}

/// Empty folders where a node keeps what changes. /etc is the machine's, and what is written to it
/// goes with the test.
fn furnish() {
    let mount = |args: &[&str]| {
        let output = Command::new("mount").args(args).output().unwrap();
        assert!(
            output.status.success(),
            "mount {args:?}: {}",
            text_of(&output)
        );
    };
    for folder in ["/run", "/var/lib", "/var/log", "/opt"] {
        mount(&["-t", "tmpfs", "-o", "mode=755", "tmpfs", folder]);
    }
    for folder in ["/run/netns", "/run/etc/upper", "/run/etc/work", PLUGINS] {
        fs::create_dir_all(folder).unwrap();
    }
    mount(&[
        "-t",
        "overlay",
        "-o",
        "lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work",
        "overlay",
        "/etc",
    ]);
    // A network that the machine itself has is none of the node's.
    if Path::new("/etc/cni").exists() {
        fs::remove_dir_all("/etc/cni").unwrap();
    }
    ip("link set lo up");
}

/// Adds the PF of rail R without VFs, as sysfs shows it.
fn add_pf(rail: u8) {
    let pf = pf_address(rail);
    for folder in ["bus/pci/devices", "bus/pci/drivers/mlx5_core"] {
        fs::create_dir_all(Path::new(SYS).join(folder)).unwrap();
    }
    add_function(&pf, &format!("pf{rail}"));
    write(
        Path::new(SYS).join(format!("devices/{pf}/sriov_totalvfs")),
        "8\n",
    );
}

/// Adds VF N of rail R, as sysfs shows it, and its netdev.
fn add_vf(rail: u8, vf: u8) {
    let (pf, address) = (pf_address(rail), address_of_vf(rail, vf));
    let at = |path: String| Path::new(SYS).join(path);
    add_function(&address, &netdev_of_vf(rail, vf));
    symlink(format!("../{pf}"), at(format!("devices/{address}/physfn"))).unwrap();
    symlink(
        format!("../{address}"),
        at(format!("devices/{pf}/virtfn{vf}")),
    )
    .unwrap();
    write(
        at(format!("devices/{pf}/sriov_numvfs")),
        format!("{}\n", vf + 1),
    );
    add_netdev(rail, vf);
}

/// A function of mlx5's driver with a netdev of this name.
fn add_function(address: &str, netdev: &str) {
    let at = |path: String| Path::new(SYS).join(path);
    for folder in [
        format!("devices/{address}/net/{netdev}"),
        format!("class/net/{netdev}"),
    ] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    symlink(
        at("bus/pci/drivers/mlx5_core".to_owned()),
        at(format!("devices/{address}/driver")),
    )
    .unwrap();
    symlink(
        at(format!("devices/{address}")),
        at(format!("bus/pci/devices/{address}")),
    )
    .unwrap();
    symlink(
        at(format!("devices/{address}")),
        at(format!("class/net/{netdev}/device")),
    )
    .unwrap();
}

/// The veth that is VF N of rail R. Its MAC is the VF's own, as the NIC has it.
fn add_netdev(rail: u8, vf: u8) {
    let (netdev, leaf) = (
        netdev_of_vf(rail, vf),
        netdev_of_vf(rail, vf).replace("vf", "leaf"),
    );
    ip(&format!(
        "link add {netdev} mtu 1500 address 02:00:00:00:{rail:02x}:{vf:02x} type veth peer name {leaf} netns leaf"
    ));
    ip(&format!("-n leaf link set {leaf} mtu 9216 up"));
}

/// Is there a link of this name in the namespace that these arguments of `ip` choose?
fn has_link(namespace: &[&str], name: &str) -> bool {
    let output = Command::new("ip")
        .args(namespace)
        .args(["link", "show", name])
        .output()
        .unwrap();
    output.status.success()
}

/// Appends what a test measured to the file that scripts/test prints.
pub fn record_times(what: &str, up: &[Duration], down: &[Duration]) {
    let Some(path) = std::env::var_os("RAIL_TEST_TIMES") else {
        return;
    };
    let median = |times: &[Duration]| {
        let mut times = times.to_vec();
        times.sort();
        times[times.len() / 2].as_secs_f64() * 1000.0
    };
    let (up_ms, down_ms, runs) = (median(up), median(down), up.len());
    let line = format!("  up {up_ms:4.0} ms, down {down_ms:4.0} ms (median of {runs}): {what}\n");
    let mut file = fs::File::options()
        .append(true)
        .create(true)
        .open(path)
        .unwrap();
    file.write_all(line.as_bytes()).unwrap();
}
