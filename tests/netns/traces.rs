//! Random traces: the real executables, and around them everything that may happen to a node between
//! two calls. After each event the kernel is asked who has which device and which address.
//!
//! The rules:
//!
//! 1. No two devices in living namespaces have one address of the pools.
//! 2. A living pod keeps the device and the address of a successful ADD, until its own DEL, its newer
//!    sandbox, or somebody's hand takes them.
//! 3. Once all pods have ended and `railctl reap` has run, every device is on the host, an ADD of each
//!    network succeeds, and no lease, record or pending step is left.
//! 4. A call ends with a result or an error that has a message, and without a panic.
//!
//! `RAIL_TRACES_MINUTES=30` plays traces for half an hour, from the seed in `RAIL_TRACES_SEED` on. A
//! failure prints the shortest trace that was found, which `RAIL_TRACE='[…]'` plays again.
//!
//! Limits of a veth: it dies with its namespace, so the trace moves it home first, as the kernel does
//! with a NIC. It has no settings of a VF, no RDMA device and no driver, and one without a PCI address
//! is known by its name alone: only device 0, which the sysfs of files calls a VF, is renamed. A reboot
//! cannot be shown either.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::harness::{Call, Host, Ran, rail, vf_address, with};
use crate::trace;

/// Traces of a run of all tests. An ADD for a device that a pod has takes three seconds.
const DAILY_TRACES: u64 = 3;
const MAX_EVENTS: usize = 30;
/// Traces that are tried to make a failed one shorter.
const MAX_SHRINKS: u32 = 150;
/// An ADD makes about this many system calls that are counted.
const MAX_CALL: usize = 330;

const DEVICES: usize = 3;
const PODS: usize = 3;

/// A network: its device, its pool, and the address that it gives.
struct Network {
    device: usize,
    pool: &'static str,
    address: &'static str,
}

/// Each of two addresses is in two pools, and two of the devices are in two networks.
const NETWORKS: [Network; 5] = [
    Network {
        device: 0,
        pool: "rail-0",
        address: "198.18.45.0",
    },
    Network {
        device: 1,
        pool: "rail-1",
        address: "198.18.45.2",
    },
    Network {
        device: 1,
        pool: "twin",
        address: "198.18.45.0",
    },
    Network {
        device: 2,
        pool: "inline-a",
        address: "198.18.45.8",
    },
    Network {
        device: 0,
        pool: "inline-b",
        address: "198.18.45.8",
    },
];

/// All addresses of the pools begin so.
const ADDRESSES: &str = "198.18.45.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Verb {
    Add,
    Del,
}

/// A step of a trace. Numbers are taken modulo what there is.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Event {
    Add {
        pod: usize,
        network: usize,
    },
    Del {
        pod: usize,
        network: usize,
    },
    DelTwice {
        pod: usize,
        network: usize,
    },
    /// The DEL of any sandbox that the pod ever had.
    LateDel {
        pod: usize,
        sandbox: usize,
        network: usize,
    },
    Check {
        pod: usize,
        network: usize,
    },
    /// Bit N of `valid` is pod N.
    Gc {
        network: usize,
        valid: u8,
    },
    Reap,
    Rebuild,
    /// The call is killed before this system call.
    Kill {
        verb: Verb,
        pod: usize,
        network: usize,
        call: usize,
    },
    /// The pod gets a newer sandbox; the older one lives on.
    NewSandbox {
        pod: usize,
    },
    /// The namespace ends without a DEL. Its file may stay as a plain one.
    EndSandbox {
        pod: usize,
        keeps_file: bool,
    },
    RenameNode,
    RenamePool {
        network: usize,
    },
    EmptyRunDir {
        only_leases: bool,
    },
    RenameDevice,
    /// The driver makes the netdev anew on the host.
    TakeHome {
        device: usize,
    },
    CutNodeJson,
    MendNodeJson,
    DamageRecord {
        record: usize,
    },
    MendRecord,
}

impl Event {
    /// The kind of the event, for the statistics.
    fn kind(&self) -> String {
        let text = format!("{self:?}");
        text.split(' ').next().unwrap_or_default().to_owned()
    }
}

fn traces() -> impl Strategy<Value = Vec<Event>> {
    let pod = || 0..PODS;
    let network = || 0..NETWORKS.len();
    let verb = prop_oneof![Just(Verb::Add), Just(Verb::Del)];
    let event = prop_oneof![
        16 => (pod(), network()).prop_map(|(pod, network)| Event::Add { pod, network }),
        6 => (pod(), network()).prop_map(|(pod, network)| Event::Del { pod, network }),
        1 => (pod(), network()).prop_map(|(pod, network)| Event::DelTwice { pod, network }),
        3 => (pod(), 0..4usize, network())
            .prop_map(|(pod, sandbox, network)| Event::LateDel { pod, sandbox, network }),
        2 => (pod(), network()).prop_map(|(pod, network)| Event::Check { pod, network }),
        2 => (network(), 0..8u8).prop_map(|(network, valid)| Event::Gc { network, valid }),
        2 => Just(Event::Reap),
        2 => Just(Event::Rebuild),
        5 => (verb, pod(), network(), 1..=MAX_CALL)
            .prop_map(|(verb, pod, network, call)| Event::Kill { verb, pod, network, call }),
        3 => pod().prop_map(|pod| Event::NewSandbox { pod }),
        3 => (pod(), any::<bool>())
            .prop_map(|(pod, keeps_file)| Event::EndSandbox { pod, keeps_file }),
        1 => Just(Event::RenameNode),
        1 => network().prop_map(|network| Event::RenamePool { network }),
        1 => any::<bool>().prop_map(|only_leases| Event::EmptyRunDir { only_leases }),
        1 => Just(Event::RenameDevice),
        2 => (0..DEVICES).prop_map(|device| Event::TakeHome { device }),
        1 => Just(Event::CutNodeJson),
        2 => Just(Event::MendNodeJson),
        1 => (0..4usize).prop_map(|record| Event::DamageRecord { record }),
        2 => Just(Event::MendRecord),
    ];
    prop::collection::vec(event, 1..=MAX_EVENTS)
}

/// A sandbox of a pod.
struct Sandbox {
    container: String,
    netns: PathBuf,
    is_alive: bool,
}

/// A device that must be in a pod, because its ADD succeeded.
#[derive(Clone, Debug)]
struct Kept {
    pod: usize,
    sandbox: usize,
    network: usize,
    result: Value,
}

/// A netdev as the kernel shows it.
#[derive(Debug)]
struct Interface {
    name: String,
    mac: String,
    addresses: Vec<String>,
}

struct World {
    host: Host,
    /// The MACs by which the kernel shows the devices.
    macs: Vec<String>,
    /// The sandboxes of each pod, the newest last.
    pods: [Vec<Sandbox>; PODS],
    kept: Vec<Kept>,
    node_name: &'static str,
    /// The ends of the names of renamed pools.
    pool_suffixes: [&'static str; NETWORKS.len()],
    /// Since the last successful `reap --rebuild`.
    is_emptied: bool,
    /// The original names of devices went with the run directory.
    are_names_lost: bool,
    damaged: Option<(PathBuf, Vec<u8>)>,
    /// Whether device 0 has its other name on the host.
    is_renamed: bool,
}

const DAMAGE: &str = "{\"version\":";

/// A broken rule.
type Finding = String;

fn device_name(device: usize) -> String {
    format!("vf{device}")
}

fn ifname(network: usize) -> String {
    format!("net{}", network + 1)
}

impl World {
    fn new(test: &str) -> Option<World> {
        let host = Host::new(test)?;
        for device in 0..DEVICES {
            let name = device_name(device);
            host.ip(&format!("link add {name} type veth peer name far{device}"));
            host.ip(&format!("link set far{device} up"));
        }
        host.make_vf(0, "mlx5_core");
        for network in &NETWORKS[..3] {
            let gateway = network.address.replace(".0", ".1").replace(".2", ".3");
            host.plan(
                network.pool,
                &format!("{}/31", network.address),
                &gateway,
                &[],
            );
        }
        fs::create_dir_all(host.path("store/node-2")).unwrap();
        for network in &NETWORKS[..3] {
            let file = |node: &str| host.path(&format!("store/{node}/{}.json", network.pool));
            fs::copy(file("node-1"), file("node-2")).unwrap();
        }
        let mut world = World {
            host,
            macs: Vec::new(),
            pods: Default::default(),
            kept: Vec::new(),
            node_name: "node-1",
            pool_suffixes: [""; NETWORKS.len()],
            is_emptied: false,
            are_names_lost: false,
            damaged: None,
            is_renamed: false,
        };
        for device in 0..DEVICES {
            let link = world
                .host
                .json(None, &format!("link show {}", device_name(device)));
            world
                .macs
                .push(link[0]["address"].as_str().unwrap().to_owned());
        }
        Some(world)
    }

    fn config(&self, network: usize) -> Value {
        let Network {
            device,
            pool,
            address,
        } = &NETWORKS[network];
        let pool = format!("{pool}{}", self.pool_suffixes[network]);
        let mut ipam = json!({"type": "rail-ipam", "pool": pool});
        if pool.starts_with("inline") {
            let allocation = json!({"nodeName": self.node_name, "prefix": format!("{address}/31"),
                "gateway": "198.18.45.9"});
            ipam["cidr"] = json!("198.18.45.8/29");
            ipam["perNodeNetworkPrefix"] = json!(31);
            ipam["staticAllocations"] = json!([allocation]);
        }
        let config = with(
            rail(u8::try_from(*device).unwrap()),
            json!({"name": format!("network-{network}"), "ipam": ipam}),
        );
        match device {
            0 => with(config, json!({"device": null, "deviceID": vf_address(0)})),
            _ => config,
        }
    }

    fn call(&self, verb: &str, pod: usize, sandbox: usize, network: usize) -> Call {
        let Sandbox {
            container, netns, ..
        } = &self.pods[pod][sandbox];
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=ai;K8S_POD_NAME=trainer-{pod};\
             K8S_POD_UID=7e1c0d6e-0000-4000-8000-00000000000{pod}"
        );
        let call = self.host.call(verb, container, netns);
        call.ifname(&ifname(network)).var("CNI_ARGS", &args)
    }

    /// The sandbox that the runtime starts containers in: a new one if the last has ended.
    fn current(&mut self, pod: usize) -> usize {
        if !self.pods[pod]
            .last()
            .is_some_and(|sandbox| sandbox.is_alive)
        {
            self.new_sandbox(pod);
        }
        self.pods[pod].len() - 1
    }

    fn new_sandbox(&mut self, pod: usize) {
        // The clock of file systems counts in ticks of 4 or 10 ms.
        std::thread::sleep(Duration::from_millis(20));
        let container = format!("p{pod}s{}", self.pods[pod].len());
        let netns = self.host.add_netns(&container);
        self.pods[pod].push(Sandbox {
            container,
            netns,
            is_alive: true,
        });
    }

    fn interfaces(&self, netns: Option<&Path>) -> Vec<Interface> {
        let links = self.host.json(netns, "addr show");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let interface = |link: &Value| Interface {
            name: text(&link["ifname"]),
            mac: text(&link["address"]),
            addresses: link["addr_info"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|address| text(&address["local"]))
                .collect(),
        };
        links.as_array().unwrap().iter().map(interface).collect()
    }

    /// The name of a device on the host, if it is there.
    fn name_on_host(&self, device: usize) -> Option<String> {
        let mut all = self.interfaces(None).into_iter();
        all.find(|link| link.mac == self.macs[device])
            .map(|link| link.name)
    }

    /// Moves a device home as the kernel does with a NIC: it is down, and keeps its name if no other
    /// has it there.
    fn move_home(&self, netns: &Path, interface: &Interface) {
        let host = self.interfaces(None);
        let name = if host.iter().any(|link| link.name == interface.name) {
            let index = &self
                .host
                .json(Some(netns), &format!("link show {}", interface.name))[0]["ifindex"];
            format!("dev{index}")
        } else {
            interface.name.clone()
        };
        let thread = nix::unistd::gettid();
        self.host.ip_in(
            netns,
            &format!(
                "link set {} down name {name} netns {thread}",
                interface.name
            ),
        );
    }

    fn end_sandbox(&mut self, pod: usize, sandbox: usize, keeps_file: bool) {
        let netns = self.pods[pod][sandbox].netns.clone();
        for interface in self.interfaces(Some(&netns)) {
            if self.macs.contains(&interface.mac) {
                self.move_home(&netns, &interface);
            }
        }
        self.host.delete_netns(&netns);
        if keeps_file {
            fs::write(&netns, "").unwrap();
        }
        self.pods[pod][sandbox].is_alive = false;
        self.kept
            .retain(|kept| (kept.pod, kept.sandbox) != (pod, sandbox));
    }

    /// The sysfs of files shows device 0 by its name on the host, or without one while it is away, as
    /// the kernel's own does. It cannot follow a device within a call.
    fn update_sysfs(&self) {
        let device = self.host.path(&format!("sys/devices/{}", vf_address(0)));
        let class = self.host.path("sys/class/net");
        for directory in [&device.join("net"), &class] {
            fs::remove_dir_all(directory).unwrap();
            fs::create_dir_all(directory).unwrap();
        }
        if let Some(name) = self.name_on_host(0) {
            fs::create_dir_all(device.join("net").join(&name)).unwrap();
            fs::create_dir_all(class.join(&name)).unwrap();
            symlink(&device, class.join(&name).join("device")).unwrap();
        }
    }

    fn is_kept(&self, pod: usize, sandbox: usize, network: usize) -> bool {
        let place = (pod, sandbox, network);
        let mut all = self.kept.iter();
        all.any(|kept| (kept.pod, kept.sandbox, kept.network) == place)
    }

    fn add(&mut self, pod: usize, network: usize, killed_at: Option<usize>) -> Result<(), Finding> {
        let sandbox = self.current(pod);
        let call = self.call("ADD", pod, sandbox, network);
        let ran = run(&call, &self.config(network), killed_at);
        let was_kept = self.is_kept(pod, sandbox, network);
        // The older sandbox gives way, also to an ADD that then fails, and whole where no address is
        // free.
        self.kept
            .retain(|kept| kept.pod != pod || kept.sandbox == sandbox);
        if answer(&ran, killed_at.is_some())? && !was_kept {
            self.kept.push(Kept {
                pod,
                sandbox,
                network,
                result: ran.json(),
            });
        }
        Ok(())
    }

    fn del(
        &mut self,
        pod: usize,
        sandbox: usize,
        network: usize,
        killed_at: Option<usize>,
    ) -> Result<(), Finding> {
        let call = self.call("DEL", pod, sandbox, network);
        let ran = run(&call, &self.config(network), killed_at);
        let is_done = answer(&ran, killed_at.is_some())?;
        if is_done || killed_at.is_some() {
            let place = (pod, sandbox, network);
            self.kept
                .retain(|kept| (kept.pod, kept.sandbox, kept.network) != place);
        }
        Ok(())
    }

    fn check(&mut self, pod: usize, network: usize) -> Result<(), Finding> {
        let sandbox = self.current(pod);
        let place = (pod, sandbox, network);
        let mut all = self.kept.iter();
        let kept = all.find(|kept| (kept.pod, kept.sandbox, kept.network) == place);
        let result = kept.map_or(json!({"cniVersion": "1.1.0"}), |kept| kept.result.clone());
        let config = with(self.config(network), json!({ "prevResult": result }));
        let ran = self.call("CHECK", pod, sandbox, network).run(&config);
        answer(&ran, false).map(drop)
    }

    fn gc(&mut self, network: usize, valid: u8) -> Result<(), Finding> {
        let mut list = Vec::new();
        for (pod, sandboxes) in self.pods.iter().enumerate() {
            if let (true, Some(sandbox)) = (valid & (1 << pod) != 0, sandboxes.last()) {
                list.push(json!({"containerID": sandbox.container, "ifname": ifname(network)}));
            }
        }
        let config = with(
            self.config(network),
            json!({"cni.dev/valid-attachments": list}),
        );
        let ran = self.host.call("GC", "", Path::new("")).run(&config);
        answer(&ran, false).map(drop)
    }

    fn reap(&mut self, args: &[&str]) -> Result<Ran, Finding> {
        let ran = self
            .host
            .call("", "", Path::new(""))
            .args(args)
            .run(&Value::Null);
        if ran.stderr.contains("panicked") || ran.status > 1 {
            return Err(format!("railctl {args:?}: {ran:?}"));
        }
        if ran.status == 0 && args.contains(&"--rebuild") {
            self.is_emptied = false;
        }
        Ok(ran)
    }

    fn write_node_json(&mut self) {
        self.host.set_node(json!({"nodeName": self.node_name}));
    }

    fn rename_pool(&mut self, network: usize) {
        let before = format!("{}{}", NETWORKS[network].pool, self.pool_suffixes[network]);
        let is_new = self.pool_suffixes[network].is_empty();
        self.pool_suffixes[network] = if is_new { "-new" } else { "" };
        let after = format!("{}{}", NETWORKS[network].pool, self.pool_suffixes[network]);
        for node in ["node-1", "node-2"] {
            let file = |pool: &str| self.host.path(&format!("store/{node}/{pool}.json"));
            // Inline pools have no file.
            let _ = fs::rename(file(&before), file(&after));
        }
    }

    fn empty_run_dir(&mut self, only_leases: bool) {
        let directory = self
            .host
            .path(if only_leases { "run/leases" } else { "run" });
        if directory.exists() {
            fs::remove_dir_all(directory).unwrap();
            self.is_emptied = true;
            self.are_names_lost |= !only_leases;
        }
    }

    fn rename_device(&mut self) {
        let names = ["vf0", "moved0"];
        let Some(name) = self.name_on_host(0) else {
            return;
        };
        if let Some(index) = names.iter().position(|one| *one == name) {
            let other = names[1 - index];
            self.host.ip(&format!("link set {name} down name {other}"));
            self.is_renamed = other == names[1];
        }
    }

    fn take_home(&mut self, device: usize) {
        let alive = self
            .pods
            .iter()
            .flatten()
            .filter(|sandbox| sandbox.is_alive);
        for netns in alive.map(|sandbox| &sandbox.netns) {
            for interface in self.interfaces(Some(netns)) {
                if interface.mac == self.macs[device] {
                    self.move_home(netns, &interface);
                }
            }
        }
        self.kept
            .retain(|kept| NETWORKS[kept.network].device != device);
    }

    fn damage_record(&mut self, record: usize) {
        let records = self.host.records();
        if self.damaged.is_some() || records.is_empty() {
            return;
        }
        let path = records[record % records.len()].clone();
        let text = fs::read(&path).unwrap();
        fs::write(&path, DAMAGE).unwrap();
        self.damaged = Some((path, text));
    }

    fn mend_record(&mut self) {
        let Some((path, text)) = self.damaged.take() else {
            return;
        };
        if fs::read(&path).is_ok_and(|now| now == DAMAGE.as_bytes()) {
            fs::write(path, text).unwrap();
        }
    }

    fn play(&mut self, event: &Event) -> Result<(), Finding> {
        match *event {
            Event::Add { pod, network } => self.add(pod, network, None)?,
            Event::Del { pod, network } => {
                let sandbox = self.current(pod);
                self.del(pod, sandbox, network, None)?;
            }
            Event::DelTwice { pod, network } => {
                let sandbox = self.current(pod);
                self.del(pod, sandbox, network, None)?;
                self.del(pod, sandbox, network, None)?;
            }
            Event::LateDel {
                pod,
                sandbox,
                network,
            } => {
                let count = self.current(pod) + 1;
                self.del(pod, sandbox % count, network, None)?;
            }
            Event::Check { pod, network } => self.check(pod, network)?,
            Event::Gc { network, valid } => self.gc(network, valid)?,
            Event::Reap => drop(self.reap(&["reap"])?),
            Event::Rebuild => drop(self.reap(&["reap", "--rebuild"])?),
            Event::Kill {
                verb: Verb::Add,
                pod,
                network,
                call,
            } => self.add(pod, network, Some(call))?,
            Event::Kill {
                verb: Verb::Del,
                pod,
                network,
                call,
            } => {
                let sandbox = self.current(pod);
                self.del(pod, sandbox, network, Some(call))?;
            }
            Event::NewSandbox { pod } => {
                if self.pods[pod].len() < 4 {
                    self.new_sandbox(pod);
                }
            }
            Event::EndSandbox { pod, keeps_file } => {
                let sandbox = self.current(pod);
                self.end_sandbox(pod, sandbox, keeps_file);
            }
            Event::RenameNode => {
                self.node_name = match self.node_name {
                    "node-1" => "node-2",
                    _ => "node-1",
                };
                self.write_node_json();
            }
            Event::RenamePool { network } => self.rename_pool(network),
            Event::EmptyRunDir { only_leases } => self.empty_run_dir(only_leases),
            Event::RenameDevice => self.rename_device(),
            Event::TakeHome { device } => self.take_home(device),
            Event::CutNodeJson => {
                let path = self.host.path("node.json");
                let text = fs::read(&path).unwrap();
                fs::write(path, &text[..text.len() / 2]).unwrap();
            }
            Event::MendNodeJson => self.write_node_json(),
            Event::DamageRecord { record } => self.damage_record(record),
            Event::MendRecord => self.mend_record(),
        }
        self.update_sysfs();
        self.judge()
    }

    /// Asks the kernel what every living namespace has.
    fn judge(&self) -> Result<(), Finding> {
        let mut holders: BTreeMap<String, String> = BTreeMap::new();
        let mut present = Vec::new();
        for (pod, sandboxes) in self.pods.iter().enumerate() {
            for (number, sandbox) in sandboxes.iter().enumerate() {
                if !sandbox.is_alive {
                    continue;
                }
                for interface in self.interfaces(Some(&sandbox.netns)) {
                    let place = format!("{} in {}", interface.name, sandbox.container);
                    for address in &interface.addresses {
                        if !address.starts_with(ADDRESSES) {
                            continue;
                        }
                        if let Some(other) = holders.insert(address.clone(), place.clone()) {
                            return Err(format!("{other} and {place} have {address}"));
                        }
                    }
                    present.push((pod, number, interface));
                }
            }
        }
        for kept in &self.kept {
            let Network {
                device, address, ..
            } = &NETWORKS[kept.network];
            let is_there = present.iter().any(|(pod, sandbox, interface)| {
                (*pod, *sandbox) == (kept.pod, kept.sandbox)
                    && interface.name == ifname(kept.network)
                    && interface.mac == self.macs[*device]
                    && interface.addresses.iter().any(|one| one == address)
            });
            if !is_there {
                return Err(format!(
                    "pod {} lost device {device} with {address}: {present:?}",
                    kept.pod
                ));
            }
        }
        Ok(())
    }

    /// All pods end without a DEL, and what was broken is mended.
    fn end(&mut self) -> Result<(), Finding> {
        self.write_node_json();
        self.mend_record();
        // A lease that was rebuilt has no device, and a plain file may hide its namespace: the ADD
        // that is refused names the file.
        if self.are_names_lost {
            for sandbox in self.pods.iter().flatten() {
                if sandbox.netns.metadata().is_ok_and(|file| file.len() == 0) && !sandbox.is_alive {
                    fs::remove_file(&sandbox.netns).unwrap();
                }
            }
        }
        for pod in 0..PODS {
            for sandbox in 0..self.pods[pod].len() {
                if self.pods[pod][sandbox].is_alive {
                    self.end_sandbox(pod, sandbox, false);
                }
            }
        }
        self.update_sysfs();
        let args: &[&str] = if self.is_emptied {
            &["reap", "--rebuild"]
        } else {
            &["reap"]
        };
        let reaped = self.reap(args)?;
        if reaped.status != 0 {
            return Err(format!("after all pods ended, {args:?}: {reaped:?}"));
        }
        for device in 0..DEVICES {
            let name = self.name_on_host(device);
            let name = name.ok_or(format!("device {device} is not on the host"))?;
            let expected = device_name(device);
            if name == expected {
                continue;
            }
            let is_excused = self.are_names_lost || (device == 0 && self.is_renamed);
            if !is_excused {
                return Err(format!("device {device} is called {name}"));
            }
            self.host
                .ip(&format!("link set {name} down name {expected}"));
        }
        self.update_sysfs();
        self.begin_again()
    }

    /// An ADD and a DEL of each network; then nothing is left.
    fn begin_again(&mut self) -> Result<(), Finding> {
        self.pods[0].clear();
        self.pods[0].push(Sandbox {
            container: "fresh".to_owned(),
            netns: self.host.add_netns("fresh"),
            is_alive: true,
        });
        for network in 0..NETWORKS.len() {
            self.add(0, network, None)?;
            if !self.is_kept(0, 0, network) {
                let again = self.call("ADD", 0, 0, network).run(&self.config(network));
                return Err(format!("network {network} is refused for ever: {again:?}"));
            }
            self.update_sysfs();
            self.judge()?;
            self.del(0, 0, network, None)?;
            self.update_sysfs();
            if self.is_kept(0, 0, network) {
                let again = self.call("DEL", 0, 0, network).run(&self.config(network));
                return Err(format!("network {network} cannot end: {again:?}"));
            }
        }
        let mut left = self.host.leases();
        left.retain(|path| path.to_string_lossy().contains(ADDRESSES));
        left.extend(self.host.records());
        left.extend(self.host.pending());
        if !left.is_empty() {
            return Err(format!("left: {left:?}"));
        }
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for sandbox in self.pods.iter().flatten().filter(|one| !one.is_alive) {
            let _ = fs::remove_file(&sandbox.netns);
        }
    }
}

fn run(call: &Call, config: &Value, killed_at: Option<usize>) -> Ran {
    match killed_at {
        Some(at) => trace::run(call, config, |point| point.count == at).ran,
        None => call.run(config),
    }
}

/// Whether a call succeeded. It may end without an answer only if it was killed.
fn answer(ran: &Ran, may_be_killed: bool) -> Result<bool, Finding> {
    if ran.stderr.contains("panicked") {
        return Err(format!("a panic: {ran:?}"));
    }
    match ran.status {
        0 => Ok(true),
        137 if may_be_killed => Ok(false),
        1 if !ran.msg().is_empty() && ran.json()["code"].is_u64() => Ok(false),
        _ => Err(format!("neither a result nor an error: {ran:?}")),
    }
}

/// Plays a trace in a world of its own.
fn play(test: &str, events: &[Event]) -> Result<(), Finding> {
    let Some(mut world) = World::new(test) else {
        return Ok(());
    };
    for (number, event) in events.iter().enumerate() {
        world
            .play(event)
            .map_err(|finding| format!("after event {number}, {event:?}: {finding}"))?;
    }
    world
        .end()
        .map_err(|finding| format!("at the end: {finding}"))
}

/// Counts of the events that were played.
#[derive(Default)]
struct Played {
    traces: usize,
    events: usize,
    kinds: BTreeMap<String, usize>,
}

impl Played {
    fn note(&mut self, events: &[Event]) {
        self.traces += 1;
        self.events += events.len();
        for event in events {
            *self.kinds.entry(event.kind()).or_default() += 1;
        }
    }
}

/// Plays the trace of a seed. On a failure, returns the shortest trace that fails as well.
fn play_seed(test: &str, seed: u64, played: &RefCell<Played>) -> Result<(), Finding> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: 1,
        max_shrink_iters: MAX_SHRINKS,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(&traces(), |events| {
        played.borrow_mut().note(&events);
        play(test, &events).map_err(TestCaseError::fail)
    });
    match result {
        Ok(()) => Ok(()),
        Err(TestError::Fail(reason, events)) => {
            let trace = serde_json::to_string(&events).unwrap();
            Err(format!("seed {seed}: {reason}\n  RAIL_TRACE='{trace}'"))
        }
        Err(TestError::Abort(reason)) => Err(format!("seed {seed}: {reason}")),
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap())
}

#[test]
fn whatever_happens_between_calls_an_address_has_one_device() {
    let test = "traces::random";
    if Host::new(test).is_none() || !trace::is_allowed(test) {
        return;
    }
    let faults: [&[Event]; 2] = [
        &[
            Event::Add { pod: 0, network: 2 },
            Event::Add { pod: 0, network: 0 },
        ],
        &[
            Event::Add { pod: 1, network: 4 },
            Event::NewSandbox { pod: 1 },
            Event::Add { pod: 1, network: 3 },
        ],
    ];
    if let Ok(text) = std::env::var("RAIL_TRACE") {
        let events: Vec<Event> = serde_json::from_str(&text).unwrap();
        play(test, &events).unwrap();
        return;
    }
    // Traces that found faults.
    for events in faults {
        play(test, events).unwrap();
    }
    let first = number("RAIL_TRACES_SEED").unwrap_or(1);
    let minutes = number("RAIL_TRACES_MINUTES");
    let began = Instant::now();
    let played = RefCell::new(Played::default());
    let mut findings = Vec::new();
    for seed in first.. {
        let is_over = match minutes {
            Some(minutes) => began.elapsed() >= Duration::from_secs(60 * minutes),
            None => seed >= first + DAILY_TRACES,
        };
        if is_over {
            break;
        }
        let before = played.borrow().events;
        let start = Instant::now();
        let result = play_seed(test, seed, &played);
        let events = played.borrow().events - before;
        println!("seed {seed}: {events} events in {:.1?}", start.elapsed());
        if let Err(finding) = result {
            eprintln!("{finding}");
            findings.push(finding);
        }
    }
    let Played {
        traces,
        events,
        kinds,
    } = played.into_inner();
    println!(
        "{traces} traces of {events} events in {:.0?}: {kinds:?}",
        began.elapsed()
    );
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}
