//! A host for one test: a network namespace of its own, entered by the test's thread and inherited
//! by every program that it starts, with node.json, /run, store and sysfs in a temporary folder.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

pub use crate::programs::{RAIL_IPAM, railctl};

/// Debian's CNI plugins, for tests that need another one.
pub const UPSTREAM: &str = "/usr/lib/cni";
/// PCI addresses of the fixture: the VF of rail R is `vf_address(R)`.
pub fn vf_address(rail: u8) -> String {
    format!("0000:{:02x}:10.0", rail + 1)
}
/// The PF of rail R.
pub fn pf_address(rail: u8) -> String {
    format!("0000:{:02x}:00.0", rail + 1)
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A host with rails. Dropping it removes its namespaces.
pub struct Host {
    /// Directory of this test.
    pub dir: tempfile::TempDir,
    /// Names of namespaces begin with it.
    pub id: String,
    namespaces: Mutex<Vec<String>>,
}

/// The end of a program.
#[derive(Debug)]
pub struct Ran {
    /// Exit status; 128 + the signal when there is none.
    pub status: i32,
    /// Its output.
    pub stdout: String,
    /// Its log.
    pub stderr: String,
}

impl Ran {
    /// stdout as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("stdout is not one JSON value ({error}): {self:?}"))
    }

    /// The result of a call that must have succeeded.
    #[track_caller]
    pub fn ok(self) -> Ran {
        assert_eq!(self.status, 0, "{self:?}");
        self
    }

    /// The error object of a call that must have failed with this code: exit status 1, one JSON
    /// object.
    #[track_caller]
    pub fn error(&self, code: u32) -> Value {
        assert_eq!(self.status, 1, "{self:?}");
        let json = self.json();
        assert_eq!(json["code"], code, "{self:?}");
        assert!(
            json["msg"].as_str().is_some_and(|msg| !msg.is_empty()),
            "{self:?}"
        );
        json
    }

    /// `msg` of the error object.
    #[track_caller]
    pub fn msg(&self) -> String {
        assert_eq!(self.status, 1, "{self:?}");
        self.json()["msg"].as_str().unwrap_or_default().to_owned()
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        use std::os::unix::process::ExitStatusExt as _;
        Ran {
            status: output
                .status
                .code()
                .unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0)),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
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

/// The cases that a test of many tries: of each N the first, where the variable RAIL_TEST_ONE_IN is
/// N, and else all. scripts/test says what is left out.
pub fn sample<T>(cases: impl Iterator<Item = T>) -> Vec<T> {
    let step = std::env::var("RAIL_TEST_ONE_IN").map_or(1, |text| text.parse().unwrap());
    cases.step_by(step).collect()
}

impl Host {
    /// Makes a host; `None`, and a skip, where this process may not make namespaces.
    pub fn new(test: &str) -> Option<Host> {
        if let Err(error) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
            skip(
                test,
                &format!("no network namespaces here ({error}): run scripts/test"),
            );
            return None;
        }
        if !Path::new("/run/netns").exists() && fs::create_dir_all("/run/netns").is_err() {
            skip(test, "/run is not writable: run scripts/test");
            return None;
        }
        let id = format!(
            "t{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let host = Host {
            dir: tempfile::tempdir().unwrap(),
            id,
            namespaces: Vec::new().into(),
        };
        fs::create_dir_all(host.path("sys/class/net")).unwrap();
        fs::create_dir_all(host.path("sys/bus/pci/devices")).unwrap();
        fs::create_dir_all(host.path("sys/bus/auxiliary/devices")).unwrap();
        fs::create_dir_all(host.path("sys/devices")).unwrap();
        host.set_node(json!({}));
        host.ip("link set lo up");
        Some(host)
    }

    /// A text without what differs from run to run: this test's directory and names, times, process
    /// IDs, and where the programs were built.
    pub fn steady(&self, text: &str) -> String {
        let built = Path::new(env!("CARGO_BIN_EXE_rail-cni")).parent().unwrap();
        let text = text
            .replace(self.dir.path().to_str().unwrap(), "")
            .replace(&self.id, "HOST");
        let text = text.replace(built.to_str().unwrap(), "BUILT");
        let year =
            &humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()[..5];
        let mut before = "";
        let words = text.split(' ').map(|word| {
            let steady = match word.split_once('Z') {
                Some((time, rest)) if time.starts_with(year) => format!("TIME{rest}"),
                _ if ["process", "`kill"].contains(&before) => {
                    format!(
                        "PID{}",
                        word.trim_start_matches(|c: char| c.is_ascii_digit())
                    )
                }
                _ => word.to_owned(),
            };
            before = word;
            steady
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// A path of this test.
    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// Writes node.json: the folders of this test, a policy that hands out veths, and what is in
    /// `more`.
    pub fn set_node(&self, mut more: Value) {
        if let Some(policy) = more.get_mut("policy").and_then(Value::as_object_mut) {
            policy.entry("kinds").or_insert(json!(["veth"]));
            policy.entry("ipam").or_insert(json!(IPAM));
        }
        let mut node = json!({
            "nodeName": "node-1",
            "runDir": self.path("run"),
            "storeDir": self.path("store"),
            "sysfsRoot": self.path("sys"),
            "deviceInfoDir": self.path("devinfo"),
            "policy": {"kinds": ["veth"], "ipam": IPAM},
            // A search through all namespaces may take 30 s: tests beside this one make many, and
            // hold the kernel's lock.
            "callTimeout": 1080,
        });
        node.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        fs::write(self.path("node.json"), node.to_string()).unwrap();
    }

    /// Plans the allocation of `pool` for this node: a prefix, its gateway, and the routes of a
    /// rail.
    pub fn plan(&self, pool: &str, prefix: &str, gateway: &str, routes: &[&str]) {
        let routes: Vec<_> = routes.iter().map(|dst| json!({ "dst": dst })).collect();
        let allocation =
            json!({ "version": 1, "prefix": prefix, "gateway": gateway, "routes": routes });
        fs::create_dir_all(self.path("store/node-1")).unwrap();
        fs::write(
            self.path(&format!("store/node-1/{pool}.json")),
            allocation.to_string(),
        )
        .unwrap();
    }

    /// Rail R as Spectrum-X has it: pool `rail-R`, 172.(16+2R).0.0/31, and a veth `vfR` whose other
    /// end `leafR` is in the namespace `leaf` with the odd address.
    pub fn add_rail(&self, rail: u8) {
        let second = 16 + 2 * rail;
        let gateway = format!("172.{second}.0.1");
        self.plan(
            &format!("rail-{rail}"),
            &format!("172.{second}.0.0/31"),
            &gateway,
            &[&format!("172.{second}.0.0/15"), "172.16.0.0/12"],
        );
        let leaf = self.leaf();
        self.ip(&format!(
            "link add vf{rail} type veth peer name leaf{rail} netns {leaf}"
        ));
        self.ip(&format!("-n {leaf} addr add {gateway}/31 dev leaf{rail}"));
        self.ip(&format!("-n {leaf} link set leaf{rail} mtu 9216 up"));
    }

    /// Makes `vfR` a VF in the fixture sysfs: `vf_address(R)`, of the PF `pf_address(R)` with the
    /// netdev `pfR` (which need not exist).
    pub fn make_vf(&self, rail: u8, driver: &str) {
        let (vf, pf) = (vf_address(rail), pf_address(rail));
        let at = |path: &str| self.path("sys").join(path);
        fs::create_dir_all(at(&format!("devices/{pf}/net/pf{rail}"))).unwrap();
        fs::create_dir_all(at(&format!("devices/{vf}"))).unwrap();
        fs::create_dir_all(at(&format!("bus/pci/drivers/{driver}"))).unwrap();
        symlink(format!("../{pf}"), at(&format!("devices/{vf}/physfn"))).unwrap();
        symlink(format!("../{vf}"), at(&format!("devices/{pf}/virtfn0"))).unwrap();
        symlink(
            at(&format!("bus/pci/drivers/{driver}")),
            at(&format!("devices/{vf}/driver")),
        )
        .unwrap();
        fs::write(at(&format!("devices/{pf}/sriov_numvfs")), "1\n").unwrap();
        for id in [&vf, &pf] {
            symlink(
                at(&format!("devices/{id}")),
                at(&format!("bus/pci/devices/{id}")),
            )
            .unwrap();
        }
        if driver != "vfio-pci" {
            fs::create_dir_all(at(&format!("devices/{vf}/net/vf{rail}"))).unwrap();
            fs::create_dir_all(at(&format!("class/net/vf{rail}"))).unwrap();
            symlink(
                at(&format!("devices/{vf}")),
                at(&format!("class/net/vf{rail}/device")),
            )
            .unwrap();
        }
    }

    /// The ports of leaves 0 and 1 get each other's IPv4 address, as if the two cables had been
    /// swapped; or their own again.
    pub fn swap_cables(&self, is_swapped: bool) {
        let leaf = self.leaf();
        for port in [0, 1] {
            self.ip(&format!("-n {leaf} addr flush dev leaf{port} scope global"));
        }
        for port in [0, 1] {
            let of = if is_swapped { 1 - port } else { port };
            self.ip(&format!(
                "-n {leaf} addr add 172.{}.0.1/31 dev leaf{port}",
                16 + 2 * of
            ));
        }
    }

    /// The namespace of the leaf ports, made at first use.
    pub fn leaf(&self) -> String {
        let name = format!("{}-leaf", self.id);
        if !self.namespaces.lock().unwrap().contains(&name) {
            self.add_netns("leaf");
        }
        name
    }

    /// Makes a namespace and returns its path, as a runtime would for a pod.
    pub fn add_netns(&self, name: &str) -> PathBuf {
        let name = format!("{}-{name}", self.id);
        self.ip(&format!("netns add {name}"));
        self.ip(&format!("-n {name} link set lo up"));
        self.namespaces.lock().unwrap().push(name.clone());
        Path::new("/run/netns").join(name)
    }

    /// Deletes the namespace at `path`, as a runtime does that has forgotten its DEL.
    pub fn delete_netns(&self, path: &Path) {
        let name = path.file_name().unwrap().to_str().unwrap();
        self.ip(&format!("netns del {name}"));
        self.namespaces
            .lock()
            .unwrap()
            .retain(|other| other != name);
    }

    /// Runs `ip` on this host; it must succeed.
    #[track_caller]
    pub fn ip(&self, args: &str) -> String {
        let output = Command::new("ip")
            .args(args.split_whitespace())
            .output()
            .expect("iproute2");
        assert!(
            output.status.success(),
            "ip {args}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `ip` in the namespace at `netns`.
    #[track_caller]
    pub fn ip_in(&self, netns: &Path, args: &str) -> String {
        self.ip(&format!(
            "-n {} {args}",
            netns.file_name().unwrap().to_str().unwrap()
        ))
    }

    /// `ip -json` in the namespace at `netns`, or on the host.
    #[track_caller]
    pub fn json(&self, netns: Option<&Path>, args: &str) -> Value {
        let text = match netns {
            Some(netns) => self.ip_in(netns, &format!("-json -details {args}")),
            None => self.ip(&format!("-json -details {args}")),
        };
        serde_json::from_str(if text.trim().is_empty() { "[]" } else { &text }).unwrap()
    }

    /// Runs a command inside the namespace at `netns`; the exit status tells.
    pub fn run_in(&self, netns: &Path, command: &str) -> Ran {
        let name = netns.file_name().unwrap().to_str().unwrap();
        let args = ["netns", "exec", name]
            .into_iter()
            .chain(command.split_whitespace());
        Command::new("ip")
            .args(args)
            .output()
            .expect("iproute2")
            .into()
    }

    /// Sets `/proc/sys/net/KEY` inside the namespace at `netns`.
    #[track_caller]
    pub fn set_sysctl(&self, netns: &Path, key: &str, value: &str) {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec"])
            .arg(netns.file_name().unwrap());
        command.arg("tee").arg(format!("/proc/sys/net/{key}"));
        command.stdin(Stdio::piped());
        run(command, value.as_bytes()).ok();
    }

    /// The content of `/proc/sys/net/KEY` inside the namespace at `netns`.
    #[track_caller]
    pub fn sysctl(&self, netns: &Path, key: &str) -> String {
        let ran = self.run_in(netns, &format!("cat /proc/sys/net/{key}"));
        ran.ok().stdout.trim().to_owned()
    }

    /// The state that must be restored when everything was given back: links of the host with name,
    /// MTU, MAC, altnames and flags, and the files of leases and records.
    pub fn snapshot(&self) -> Value {
        let links: BTreeMap<String, Value> = self
            .json(None, "link show")
            .as_array()
            .unwrap()
            .iter()
            .map(|link| {
                let name = link["ifname"].as_str().unwrap().to_owned();
                let mut altnames: Vec<_> =
                    link["altnames"].as_array().into_iter().flatten().map(Value::to_string).collect();
                altnames.sort();
                let up = link["flags"].as_array().unwrap().iter().any(|flag| flag == "UP");
                let alias = &link["ifalias"];
                (name, json!({"mtu": link["mtu"], "mac": link["address"], "altnames": altnames, "up": up, "alias": alias}))
            })
            .collect();
        json!({"links": links, "leases": self.leases(), "records": self.records(), "pending": self.pending(),
            "addresses": self.addresses()})
    }

    fn addresses(&self) -> Vec<String> {
        let all = self.json(None, "addr show");
        let of = |link: &Value| link["addr_info"].as_array().cloned().unwrap_or_default();
        all.as_array()
            .unwrap()
            .iter()
            .flat_map(of)
            .map(|addr| addr["local"].to_string())
            .collect()
    }

    /// Lease files, half-written ones too.
    pub fn leases(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        collect(&self.path("run/leases"), &mut files);
        files.retain(|file| file.file_name().is_some_and(|name| name != "lock"));
        files.sort();
        files
    }

    /// Records, half-written ones too.
    pub fn records(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        collect(&self.path("run/attachments"), &mut files);
        files.sort();
        files
    }

    /// The pending steps of attachments whose device is home.
    pub fn pending(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        collect(&self.path("run/pending"), &mut files);
        files.sort();
        files
    }

    /// The only record of pending steps.
    #[track_caller]
    pub fn only_pending(&self) -> Value {
        let [file] = &self.pending()[..] else {
            panic!("one record: {:?}", self.pending())
        };
        serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
    }

    /// No pending step waits any more.
    pub fn make_due(&self) {
        for file in self.pending() {
            let mut record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            for step in record["steps"].as_array_mut().unwrap() {
                if let Some(failed) = step["state"].get_mut("failed") {
                    failed["next"] = json!(0);
                }
            }
            fs::write(file, record.to_string()).unwrap();
        }
    }

    /// Hands the device back as the kernel does after a lost DEL, when `netns` dies: the device is
    /// on the host, down, with the pod's name and MTU. A NIC comes back so by itself, a veth would
    /// die, so it is moved out first.
    pub fn hand_back(&self, netns: &Path, ifname: &str) {
        let host = Sleeper::new(None);
        self.ip_in(
            netns,
            &format!("link set {ifname} down netns {}", host.pid()),
        );
        self.delete_netns(netns);
    }

    /// A call of rail-cni for `container` and net1.
    pub fn cni(&self, command: &str, container: &str, netns: &Path, config: &Value) -> Ran {
        self.call(command, container, netns).run(config)
    }

    /// A call to be changed before it runs.
    pub fn call(&self, command: &str, container: &str, netns: &Path) -> Call {
        Call {
            program: env!("CARGO_BIN_EXE_rail-cni").into(),
            wrapper: Vec::new(),
            args: Vec::new(),
            vars: BTreeMap::from([
                ("CNI_COMMAND".to_owned(), command.to_owned()),
                ("CNI_CONTAINERID".to_owned(), container.to_owned()),
                ("CNI_NETNS".to_owned(), netns.to_str().unwrap().to_owned()),
                ("CNI_IFNAME".to_owned(), "net1".to_owned()),
                ("CNI_PATH".to_owned(), self.cni_path()),
                (
                    "CNI_ARGS".to_owned(),
                    "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod".to_owned(),
                ),
                (
                    "RAIL_CNI_NODE_CONFIG".to_owned(),
                    self.path("node.json").to_str().unwrap().to_owned(),
                ),
            ]),
        }
    }

    /// The folder of our executables, a folder of this test for stand-ins, and upstream's.
    pub fn cni_path(&self) -> String {
        let ours = Path::new(RAIL_IPAM).parent().unwrap().display().to_string();
        format!("{ours}:{}:{UPSTREAM}", self.path("bin").display())
    }

    /// Makes a copy of rail-ipam under another name, which is always a process, and returns its
    /// name.
    pub fn copy_rail_ipam(&self) -> &'static str {
        self.copy_program(Path::new(RAIL_IPAM), "bin/ipam-copy");
        "ipam-copy"
    }

    /// Copies an executable to a path of this test.
    pub fn copy_program(&self, program: &Path, to: &str) {
        fs::create_dir_all(self.path(to).parent().unwrap()).unwrap();
        // Not by this process: one that another test starts meanwhile would have the copy open, and
        // it could not be executed.
        let done = Command::new("cp").arg(program).arg(self.path(to)).status();
        assert!(done.unwrap().success());
    }

    /// Installs a stand-in for an IPAM plugin: a shell script.
    pub fn add_plugin(&self, name: &str, script: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        fs::create_dir_all(self.path("bin")).unwrap();
        let path = self.path(&format!("bin/{name}"));
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Installs a double of upstream's `static`, which gives the addresses of its configuration.
    pub fn add_static(&self) {
        let addresses = r#"sed -n 's/.*"addresses": *\(\[[^]]*\]\).*/\1/p'"#;
        let script = format!(
            r#"addresses=$({addresses})
[ "$CNI_COMMAND" != ADD ] || echo "{{\"cniVersion\": \"1.0.0\", \"ips\": $addresses}}""#
        );
        self.add_plugin("static", &script);
    }

    /// `config` with a double of upstream's `static` as its IPAM. Upstream's knows versions up to
    /// 1.0.0.
    pub fn with_static(&self, config: Value, address: &str, gateway: &str) -> Value {
        self.add_static();
        let addresses = json!([{"address": address, "gateway": gateway}]);
        let ipam = json!({"type": "static", "addresses": addresses});
        with(config, json!({"cniVersion": "1.0.0", "ipam": ipam}))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for name in self
            .namespaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// The names that networks of the tests may have for their IPAM: real ones, and names of scripts.
const IPAM: [&str; 21] = [
    "rail-ipam",
    "host-local",
    "ipam-copy",
    "ipam-link",
    "link",
    "static",
    "stand-in",
    "absent",
    "any",
    "asleep",
    "between",
    "cat",
    "copy",
    "fails",
    "garbage",
    "impossible",
    "loud",
    "never",
    "no-such",
    "nothing",
    "wrong",
];

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

/// A call of a plugin.
#[derive(Clone)]
pub struct Call {
    program: PathBuf,
    wrapper: Vec<String>,
    args: Vec<String>,
    vars: BTreeMap<String, String>,
}

impl Call {
    /// Sets a variable.
    pub fn var(mut self, name: &str, value: &str) -> Call {
        self.vars.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Leaves a variable unset.
    pub fn without(mut self, name: &str) -> Call {
        self.vars.remove(name);
        self
    }

    /// Name of the interface instead of net1.
    pub fn ifname(self, name: &str) -> Call {
        self.var("CNI_IFNAME", name)
    }

    /// rail-ipam instead of rail-cni.
    pub fn ipam(mut self) -> Call {
        self.program = RAIL_IPAM.into();
        self
    }

    /// Another plugin.
    pub fn program(mut self, path: impl Into<PathBuf>) -> Call {
        self.program = path.into();
        self
    }

    /// Puts a command before it, as strace.
    pub fn under(mut self, wrapper: &[&str]) -> Call {
        self.wrapper = wrapper.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// An operator's command instead of a call.
    pub fn args(self, args: &[&str]) -> Call {
        let args = args.iter().map(|&word| word.to_owned()).collect();
        Call {
            program: railctl(),
            args,
            ..self
        }
        .without("CNI_COMMAND")
    }

    /// The verb, of a call of the protocol.
    pub fn verb(&self) -> Option<&str> {
        self.vars
            .get("CNI_COMMAND")
            .map(String::as_str)
            .filter(|verb| !verb.is_empty())
    }

    /// The command, for tests that need its pipes.
    pub fn command(&self) -> Command {
        let mut words = self
            .wrapper
            .iter()
            .map(PathBuf::from)
            .chain([self.program.clone()]);
        let mut command = Command::new(words.next().unwrap());
        command
            .args(words)
            .args(&self.args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
            .envs(&self.vars)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs it with `config` on stdin.
    pub fn run(&self, config: &Value) -> Ran {
        self.run_with(config.to_string().as_bytes())
    }

    /// Runs it with these bytes on stdin.
    pub fn run_with(&self, stdin: &[u8]) -> Ran {
        run(self.command(), stdin)
    }
}

/// Runs a command of [`Call::command`] that was changed further.
pub fn run(mut command: Command, stdin: &[u8]) -> Ran {
    let mut child = command.spawn().unwrap();
    // A plugin that refuses its environment does not read.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap().into()
}

/// A process that only keeps its namespaces alive.
pub struct Sleeper(std::process::Child);

impl Sleeper {
    /// In this test's host, or in the namespace at `netns`.
    pub fn new(netns: Option<&Path>) -> Sleeper {
        let mut command = match netns {
            None => Command::new("sleep"),
            Some(netns) => {
                let mut command = Command::new("nsenter");
                command
                    .arg(format!("--net={}", netns.display()))
                    .arg("sleep");
                command
            }
        };
        let child = command.arg("600").spawn().unwrap();
        let sleeper = Sleeper(child);
        let there = fs::metadata(netns.unwrap_or(Path::new("/proc/thread-self/ns/net"))).unwrap();
        // nsenter enters a moment after it was started.
        while !fs::metadata(sleeper.netns()).is_ok_and(|now| now.ino() == there.ino()) {
            std::thread::yield_now();
        }
        sleeper
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// `/proc/PID/ns/net`.
    pub fn netns(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.pid()).into()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The configuration of rail R on the device `vfR`, with rail-ipam.
pub fn rail(rail: u8) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": format!("rail-{rail}"), "type": "rail-cni", "rail": rail, "mtu": 9000,
        "device": format!("vf{rail}"),
        "capabilities": {"deviceID": true, "mac": true, "ips": true, "CNIDeviceInfoFile": true},
        "ipam": {"type": "rail-ipam", "pool": format!("rail-{rail}")}
    })
}

/// `config` with further keys.
pub fn with(mut config: Value, more: Value) -> Value {
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    config
}

/// Names of the steps of a record that are not undone.
pub fn left(record: &Value) -> Vec<String> {
    let steps = record["steps"].as_array().unwrap().iter();
    steps
        .filter(|step| step["state"] != "undone")
        .map(name_of)
        .collect()
}

/// The name of a step.
pub fn name_of(step: &Value) -> String {
    match &step["change"] {
        Value::String(name) => name.clone(),
        change => change.as_object().unwrap().keys().next().unwrap().clone(),
    }
}

/// The data of the step `name` in a record.
#[track_caller]
pub fn change<'a>(record: &'a mut Value, name: &str) -> &'a mut Value {
    let steps = record["steps"].as_array_mut().unwrap().iter_mut();
    let step = steps
        .map(|step| &mut step["change"])
        .find(|change| change.get(name).is_some());
    &mut step.unwrap_or_else(|| panic!("no step {name}"))[name]
}

/// Whether a record says that its ADD came to its end.
pub fn is_attached(record: &Value) -> bool {
    record["steps"]
        .as_array()
        .unwrap()
        .iter()
        .all(|step| step["state"] != "planned")
}
