//! A node of a cluster: network, mount and PID namespaces of its own, in which /etc/cni, /opt/cni/bin, /run,
//! /var/lib and node.json are where a real node has them. Its eight rails are those of conf/node.json and
//! conf/pools/spectrum-x.yaml. The VFs are veths, by a sysfs of files; the other end of each is a leaf port.
//!
//! Process 1 must see the same /run as the plugins. So each test runs this executable again, for itself alone, in
//! namespaces that end with it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

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

/// The node of this test.
pub struct Node {
    /// Address and gateway of each rail.
    pub addresses: Vec<(String, String)>,
    before: Value,
}

/// Runs `body` on a node of its own, with the executables of `callers` at hand. `test` is its full name.
pub fn on_a_node(test: &str, callers: &[&str], body: impl FnOnce(&Node)) {
    if std::env::var_os(INSIDE).is_some() {
        body(&Node::new());
        return;
    }
    for caller in callers {
        if let Err(reason) = folder_of(caller) {
            return skip(test, &reason);
        }
    }
    if !["rail-cni", "rail-ipam"].iter().all(|name| built().join(name).is_file()) {
        return skip(test, "no executables of scripts/build");
    }
    let namespaces = ["-nmpf", "--mount-proc", "--propagation", "private", "--kill-child"];
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
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{test} is not the name of a test: {text}");
}

/// Where scripts/build leaves them.
fn built() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(ROOT).join("target"), PathBuf::from)
        .join("static")
}

/// The folder of a caller's executables, of scripts/callers; `cnitool` and `plugins` are those of scripts/cnitool.
fn folder_of(caller: &str) -> Result<PathBuf, String> {
    let variable = match caller {
        "cnitool" => "RAIL_CNITOOL",
        "plugins" => "RAIL_PEERS",
        _ => "RAIL_CALLERS",
    };
    let value = std::env::var_os(variable).filter(|value| !value.is_empty());
    let path = PathBuf::from(value.ok_or(format!("{caller} is not here: scripts/test callers gets it"))?);
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
        let mut file = fs::File::options().append(true).create(true).open(path).unwrap();
        writeln!(file, "{test}: {reason}").unwrap();
    }
}

/// A file of the repository.
pub fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents of a YAML file of the repository.
pub fn documents(path: &str) -> Vec<Value> {
    yaml_serde::Deserializer::from_str(&read(path)).map(|each| Value::deserialize(each).unwrap()).collect()
}

/// PCI address of the VF of rail R: the first function after its PF, as mlx5 numbers them.
pub fn vf_address(rail: u8) -> String {
    pf_address(rail).replace("00.0", "00.2")
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
    let output = Command::new("ip").args(args.split_whitespace()).output().expect("iproute2");
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
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
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Who is killed does not read.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child
}

/// Kills what [`start`] started, after some time: alone, as when it crashes and the plugin that it called goes on, or
/// with all that it started. Whether it had ended by itself does not matter.
pub fn kill_after(mut child: Child, time: Duration, alone: bool) {
    std::thread::sleep(time);
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let _ = if alone { kill(pid, Signal::SIGKILL) } else { killpg(pid, Signal::SIGKILL) };
    child.wait().unwrap();
}

/// What a command printed as JSON; it must have succeeded.
#[track_caller]
pub fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text_of(output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text_of(output)))
}

/// All that a command printed.
pub fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

impl Node {
    fn new() -> Node {
        furnish();
        for name in ["rail-cni", "rail-ipam"] {
            fs::copy(built().join(name), Path::new(PLUGINS).join(name)).unwrap();
        }
        if let Ok(plugins) = folder_of("plugins") {
            for entry in fs::read_dir(plugins).unwrap() {
                let path = entry.unwrap().path();
                symlink(&path, Path::new(PLUGINS).join(path.file_name().unwrap())).unwrap();
            }
        }
        let mut node = Node { addresses: Vec::new(), before: Value::Null };
        node.configure(|_| {});
        let pools = Path::new(ROOT).join("conf/pools/spectrum-x.yaml");
        let output =
            Command::new(Path::new(PLUGINS).join("rail-ipam")).arg("import").arg(pools).output().unwrap();
        assert!(output.status.success(), "{}", text_of(&output));
        ip("netns add leaf");
        for rail in RAILS {
            let file = fs::read_to_string(node.allocation(rail)).unwrap();
            let allocation: Value = serde_json::from_str(&file).unwrap();
            let text = |key: &str| allocation[key].as_str().unwrap().to_owned();
            node.addresses.push((text("prefix"), text("gateway")));
            add_vf(rail);
            ip(&format!("link add vf{rail} mtu 1500 type veth peer name leaf{rail} netns leaf"));
            ip(&format!("-n leaf addr add {}/31 dev leaf{rail}", text("gateway")));
            ip(&format!("-n leaf link set leaf{rail} mtu 9216 up"));
        }
        node.before = node.state();
        node
    }

    /// Writes node.json: conf/node.json with the keys of this machine, and what `change` makes of it.
    pub fn configure(&self, change: impl FnOnce(&mut Value)) {
        let mut node: Value = serde_json::from_str(&read("conf/node.json")).unwrap();
        node["nodeName"] = json!(NAME);
        node["sysfsRoot"] = json!(SYS);
        change(&mut node);
        write(NODE, node.to_string());
    }

    /// The file of the store with the allocation of a rail.
    pub fn allocation(&self, rail: u8) -> PathBuf {
        Path::new("/var/lib/rail-cni/store").join(NAME).join(format!("rail-{rail}.json"))
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
        assert!(flags.contains(&json!("UP")) && flags.contains(&json!("LOWER_UP")), "{link}");
        let address =
            &link["addr_info"].as_array().unwrap().iter().find(|each| each["family"] == "inet").unwrap();
        let text = format!("{}/{}", address["local"].as_str().unwrap(), address["prefixlen"]);
        assert_eq!(text, self.addresses[usize::from(rail)].0);
    }

    /// Asserts that the largest packet passes from `ifname` of the pod to the leaf port of rail R.
    #[track_caller]
    pub fn reaches_leaf(&self, pod: &str, rail: u8, ifname: &str) {
        let gateway = &self.addresses[usize::from(rail)].1;
        let args = format!("netns exec {pod} ping -n -c 1 -W 10 -M do -s 8972 -I {ifname} {gateway}");
        ip(&args);
    }

    /// What must be the same after the pod: the links of the host, and the files of leases, records and debts.
    fn state(&self) -> Value {
        let rails = ip_json("link show");
        let links: BTreeMap<_, _> = rails
            .iter()
            .filter(|link| link["ifname"].as_str().unwrap().starts_with("vf"))
            .map(|link| {
                (link["ifname"].as_str().unwrap(), json!([link["mtu"], link["address"], link["flags"]]))
            })
            .collect();
        let mut files = Vec::new();
        for folder in ["leases", "attachments", "debts"] {
            collect(&Path::new("/run/rail-cni").join(folder), &mut files);
        }
        collect(Path::new("/var/run/k8s.cni.cncf.io/devinfo/cni"), &mut files);
        files.retain(|file| file.file_name().is_some_and(|name| name != "lock"));
        json!({ "links": links, "files": files })
    }

    /// Asserts that every rail is on the host as it was, and that nothing is on record.
    #[track_caller]
    pub fn is_as_before(&self) {
        let log = fs::read_to_string("/var/log/rail-cni.log").unwrap_or_default();
        let tail: Vec<_> = log.lines().rev().take(40).collect();
        assert_eq!(self.state(), self.before, "the last of the log first:\n{}", tail.join("\n"));
    }
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { collect(&path, files) } else { files.push(path) }
    }
}

/// Empty folders where a node keeps what changes. /etc is the machine's, and what is written to it goes with the test.
fn furnish() {
    let mount = |args: &[&str]| {
        let output = Command::new("mount").args(args).output().unwrap();
        assert!(output.status.success(), "mount {args:?}: {}", text_of(&output));
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

/// What sysfs shows of the PF of rail R with one VF, whose netdev is `vfR`.
fn add_vf(rail: u8) {
    let (pf, vf) = (pf_address(rail), vf_address(rail));
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
        symlink(at("bus/pci/drivers/mlx5_core".to_owned()), at(format!("devices/{id}/driver"))).unwrap();
        symlink(at(format!("devices/{id}")), at(format!("bus/pci/devices/{id}"))).unwrap();
        symlink(at(format!("devices/{id}")), at(format!("class/net/{netdev}{rail}/device"))).unwrap();
    }
}
