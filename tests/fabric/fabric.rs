//! A Spectrum-X fabric in network namespaces, each a machine whose kernel is the router.
//!
//! ```text
//!   node-0 node-1      SU 0: a port of each node on each of leaf-su0-r0 ... leaf-su0-r7
//!   node-2 node-3      SU 1: likewise on leaf-su1-r0 ... leaf-su1-r7
//!   spine-0 spine-1    an uplink from every leaf to every spine; leaves spread flows over both
//! ```
//!
//! Only the cables are laid here. All addresses between nodes and leaves come from a plan of
//! rail-ipam, which writes each node's store and each leaf's commands. A leaf has the addresses of
//! its ports only, and sends the rest to the spines.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};

use crate::harness::{Host, Ran, skip, with};
use crate::prober::{self, Kind, Listener, Probe};

/// Rails of a node, spines, SUs, nodes: from 0.
pub const RAILS: usize = 8;
pub const NODES: usize = 4;
pub const SPINES: usize = 2;
const SUS: usize = 2;
/// Number of requests to a neighbour before it must have answered.
const GREETINGS: usize = 5;

/// An IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Family::V4 { "IPv4" } else { "IPv6" })
    }
}

/// A rail of a node, and of the node's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End {
    pub node: usize,
    pub rail: usize,
}

impl End {
    /// The end's netdev on the node.
    pub fn device(self) -> String {
        format!("ens{}f0v0", self.rail + 1)
    }

    /// The end's interface in the pod.
    pub fn interface(self) -> String {
        format!("net{}", self.rail + 1)
    }

    /// The leaf at the other end of the cable.
    pub fn leaf(self) -> String {
        format!("leaf-su{}-r{}", self.su(), self.rail)
    }

    /// The leaf's port.
    pub fn port(self) -> String {
        format!("swp{}", self.node % 2 + 1)
    }

    /// The SU of the node.
    pub fn su(self) -> usize {
        self.node / 2
    }
}

/// All rails of all nodes.
pub fn ends() -> impl Iterator<Item = End> {
    (0..NODES).flat_map(|node| (0..RAILS).map(move |rail| End { node, rail }))
}

/// The addressing of the links between nodes and leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// The prefixes of Spectrum-X.
    #[default]
    Numbered,
    /// No prefix. The leaf is an IPv6 link-local next hop, for IPv4 too.
    LinkLocal,
    /// No prefix. The leaf is an address that no prefix contains, in both families the same on all
    /// leaves.
    Onlink,
}

/// The parameters of a fabric.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    pub links: Links,
    pub families: Vec<Family>,
    /// Keys of the networks beside the usual ones.
    pub conf: Option<Value>,
    /// A strict reverse path filter on nodes and pods.
    pub strict_nodes: bool,
    /// A strict reverse path filter on the leaves' ports to nodes.
    pub strict_leaves: bool,
}

/// Of one end, by the plan.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    pub address: IpAddr,
    pub gateway: IpAddr,
}

/// A fabric that is up, with an empty pod on each node. Dropping it removes its namespaces.
pub struct Fabric {
    /// Ends before the namespaces, which it holds.
    listeners: Vec<Listener>,
    host: Host,
    pub setup: Setup,
    planned: BTreeMap<(End, Family), Planned>,
    results: BTreeMap<End, Value>,
    before: Vec<Vec<String>>,
}

impl Fabric {
    /// `None`, and a skip, where this machine cannot make one.
    pub fn new(test: &str, setup: Setup) -> Option<Fabric> {
        if Command::new("nft").arg("--version").output().is_err() {
            skip(test, "nft is not installed");
            return None;
        }
        let host = Host::new(test)?;
        let mut fabric = Fabric {
            listeners: Vec::new(),
            host,
            setup,
            planned: BTreeMap::new(),
            results: BTreeMap::new(),
            before: Vec::new(),
        };
        fabric.build();
        fabric.configure_nodes();
        fabric.plan();
        fabric.set_up_leaves();
        fabric.set_up_nodes();
        Some(fabric)
    }

    /// The plan's addresses of an end.
    pub fn planned(&self, end: End, family: Family) -> Planned {
        self.planned[&(end, family)]
    }

    /// The path of a machine's namespace.
    fn netns(&self, machine: &str) -> PathBuf {
        Path::new("/run/netns").join(self.name(machine))
    }

    /// The name of a machine's namespace.
    fn name(&self, machine: &str) -> String {
        format!("{}-{machine}", self.host.id)
    }

    /// Runs `work` in a thread that is in the namespace of `machine`, as is whatever it starts.
    pub fn inside<T: Send>(&self, machine: &str, work: impl FnOnce() -> T + Send) -> T {
        let netns = self.netns(machine);
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                setns(fs::File::open(netns).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `ip` on `machine`.
    #[track_caller]
    pub fn ip(&self, machine: &str, args: &str) -> String {
        self.host.ip(&format!("-n {} {args}", self.name(machine)))
    }

    /// Writes below /proc/sys/net on `machine`.
    fn sysctl(&self, machine: &str, settings: &[(&str, &str)]) {
        self.inside(machine, || {
            for (key, value) in settings {
                fs::write(Path::new("/proc/sys/net").join(key), value)
                    .unwrap_or_else(|error| panic!("{key}: {error}"));
            }
        });
    }

    // --- machines and cables ---

    fn build(&self) {
        for spine in 0..SPINES {
            self.add_router(&spine_name(spine));
        }
        for (su, rail) in leaves() {
            self.add_router(&leaf_name(su, rail));
        }
        for node in 0..NODES {
            self.host.add_netns(&format!("node-{node}"));
            self.host.add_netns(&format!("pod-{node}"));
        }
        let mut cables = String::new();
        for (su, rail) in leaves() {
            for spine in 0..SPINES {
                let (above, below) = (
                    self.name(&spine_name(spine)),
                    self.name(&leaf_name(su, rail)),
                );
                writeln!(
                    cables,
                    "link add su{su}-r{rail} netns {above} mtu 9216 type veth peer name up{spine} netns {below} mtu 9216"
                )
                .unwrap();
            }
        }
        for end in ends() {
            let (node, leaf) = (
                self.name(&format!("node-{}", end.node)),
                self.name(&end.leaf()),
            );
            let mac = format!("02:00:00:00:{:02x}:{:02x}", end.node, end.rail);
            writeln!(
                cables,
                "link add {} netns {node} address {mac} mtu 1500 type veth peer name {} netns {leaf}",
                end.device(),
                end.port()
            )
            .unwrap();
        }
        batch(Command::new("ip").args(["-batch", "-"]), &cables);
        for spine in 0..SPINES {
            self.batch(&spine_name(spine), &self.spine_commands(spine));
        }
        for (su, rail) in leaves() {
            self.batch(&leaf_name(su, rail), &self.uplink_commands(su, rail));
        }
    }

    /// As Cumulus does it: a port answers ARP for its own address only.
    fn add_router(&self, machine: &str) {
        self.host.add_netns(machine);
        for all in ["all", "default"] {
            self.sysctl(
                machine,
                &[
                    (&format!("ipv4/conf/{all}/rp_filter"), "0"),
                    (&format!("ipv4/conf/{all}/arp_ignore"), "1"),
                    (&format!("ipv6/conf/{all}/accept_dad"), "0"),
                    (&format!("ipv6/conf/{all}/forwarding"), "1"),
                ],
            );
        }
        self.sysctl(
            machine,
            &[
                ("ipv4/ip_forward", "1"),
                ("ipv4/fib_multipath_hash_policy", "1"),
                ("ipv6/fib_multipath_hash_policy", "1"),
            ],
        );
    }

    fn spine_commands(&self, spine: usize) -> String {
        let mut commands = String::new();
        for (su, rail) in leaves() {
            writeln!(commands, "link set su{su}-r{rail} up").unwrap();
            for family in &self.setup.families {
                let link = Uplink {
                    family: *family,
                    spine,
                    su,
                    rail,
                };
                writeln!(
                    commands,
                    "address add {} dev su{su}-r{rail}",
                    link.prefix(Side::Spine)
                )
                .unwrap();
                writeln!(
                    commands,
                    "route add {} via {}",
                    leaf_network(*family, su, rail),
                    link.address(Side::Leaf)
                )
                .unwrap();
            }
        }
        commands
    }

    /// Addresses of the leaf's own network that are on none of its ports lead nowhere.
    fn uplink_commands(&self, su: usize, rail: usize) -> String {
        let mut commands = String::new();
        for &family in &self.setup.families {
            let mut hops = String::new();
            for spine in 0..SPINES {
                let link = Uplink {
                    family,
                    spine,
                    su,
                    rail,
                };
                writeln!(commands, "link set up{spine} up").unwrap();
                writeln!(
                    commands,
                    "address add {} dev up{spine}",
                    link.prefix(Side::Leaf)
                )
                .unwrap();
                write!(
                    hops,
                    " nexthop via {} dev up{spine}",
                    link.address(Side::Spine)
                )
                .unwrap();
            }
            let aggregate = if family == Family::V4 {
                "172.16.0.0/12"
            } else {
                "fd02::/32"
            };
            writeln!(commands, "route add {aggregate}{hops}").unwrap();
            writeln!(
                commands,
                "route add blackhole {} metric 9999",
                leaf_network(family, su, rail)
            )
            .unwrap();
        }
        commands
    }

    fn batch(&self, machine: &str, commands: &str) {
        batch(
            Command::new("ip").args(["-n", &self.name(machine), "-batch", "-"]),
            commands,
        );
    }

    // --- from the plan to nodes and leaves ---

    fn plan(&mut self) {
        let family = match self.setup.families[..] {
            [Family::V4] => "ipv4",
            [Family::V6] => "ipv6",
            _ => "dual",
        };
        let of_kind = match self.setup.links {
            Links::Numbered => format!("fabric: spectrum-x\nfamily: {family}"),
            Links::LinkLocal | Links::Onlink => self.unnumbered(),
        };
        let fabric = format!(
            "{of_kind}\nrails: {RAILS}\nsus: {SUS}\nhostsPerSU: 2\nnodeName: node-{{node}}\n\
             hostInterface: ens{{rail+1}}f0v0\nleafName: leaf-su{{su}}-r{{rail}}\nleafPort: swp{{host+1}}\nmtu: 9216\n\
             clusterNetworks: [10.96.0.0/12]\n"
        );
        fs::write(self.host.path("fabric.yaml"), fabric).unwrap();
        let table = self.run_plan(0, &["--to", "csv"]).stdout;
        let (header, rows) = table.split_once('\n').unwrap();
        let header: Vec<&str> = header.split(',').collect();
        for row in rows.lines() {
            let row: BTreeMap<&str, &str> = header.iter().copied().zip(row.split(',')).collect();
            let node = row["node"].strip_prefix("node-").unwrap().parse().unwrap();
            let end = End {
                node,
                rail: row["rail"].parse().unwrap(),
            };
            let family = if row["family"] == "ipv4" {
                Family::V4
            } else {
                Family::V6
            };
            let planned = Planned {
                address: row["address"].parse().unwrap(),
                gateway: row["gateway"].parse().unwrap(),
            };
            self.planned.insert((end, family), planned);
        }
        assert_eq!(
            self.planned.len(),
            NODES * RAILS * self.setup.families.len(),
            "{table}"
        );
    }

    /// The hosts' addresses are in the networks that leaves announce with Spectrum-X.
    fn unnumbered(&self) -> String {
        let (mut addresses, mut gateways) = (Vec::new(), Vec::new());
        for family in &self.setup.families {
            addresses.push(match family {
                Family::V4 => "'172.{rail*2+16}.{su}.{host+1}'",
                Family::V6 => "'fd02:0:{rail}00:{su}0{host+1}::1'",
            });
            gateways.push(self.next_hop(*family));
        }
        format!(
            "fabric: unnumbered\naddress: [{}]\ngateway: [{}]\n\
             routes: ['172.{{rail*2+16}}.0.0/15', 172.16.0.0/12, 'fd02::/32']",
            addresses.join(", "),
            gateways.join(", ")
        )
    }

    /// The next hop of unnumbered nodes.
    fn next_hop(&self, family: Family) -> &'static str {
        match (self.setup.links, family) {
            (Links::Onlink, Family::V4) => "10.254.0.1",
            (Links::Onlink, Family::V6) => "'fd00:254::1'",
            _ => "'fe80::1'",
        }
    }

    /// Each port has the next hop, and the leaf a route to each node.
    fn set_up_unnumbered_leaves(&self) {
        for (su, rail) in leaves() {
            let mut commands = String::new();
            for family in &self.setup.families {
                writeln!(
                    commands,
                    "address add {} dev lo",
                    loopback(*family, su, rail)
                )
                .unwrap();
            }
            for end in ends().filter(|end| (end.su(), end.rail) == (su, rail)) {
                let port = end.port();
                writeln!(commands, "link set {port} mtu 9216 up").unwrap();
                let hops: BTreeSet<&str> = self
                    .setup
                    .families
                    .iter()
                    .map(|family| self.next_hop(*family).trim_matches('\''))
                    .collect();
                for hop in hops {
                    let length = if hop == "fe80::1" { "/64" } else { "" };
                    writeln!(commands, "address add {hop}{length} dev {port}").unwrap();
                }
                for family in &self.setup.families {
                    writeln!(
                        commands,
                        "route add {} dev {port}",
                        self.planned(end, *family).address
                    )
                    .unwrap();
                }
            }
            self.batch(&leaf_name(su, rail), &commands);
        }
    }

    fn run_plan(&self, node: usize, args: &[&str]) -> Ran {
        let fabric = self.host.path("fabric.yaml").display().to_string();
        let args: Vec<&str> = ["plan", fabric.as_str()]
            .into_iter()
            .chain(args.iter().copied())
            .collect();
        self.host
            .call("", "", Path::new(""))
            .ipam()
            .args(&args)
            .var("RAIL_CNI_NODE_CONFIG", &self.node_config(node))
            .run(&Value::Null)
            .ok()
    }

    fn node_config(&self, node: usize) -> String {
        self.host
            .path(&format!("node-{node}.json"))
            .display()
            .to_string()
    }

    /// The leaves' commands are NVIDIA's, for Cumulus. Here they become the kernel's.
    fn set_up_leaves(&self) {
        if self.setup.links != Links::Numbered {
            return self.set_up_unnumbered_leaves();
        }
        let leaves_dir = self.host.path("leaves");
        self.run_plan(0, &["--to", "nvue", "--out", leaves_dir.to_str().unwrap()]);
        for (su, rail) in leaves() {
            let leaf = leaf_name(su, rail);
            let mut commands = String::new();
            for line in fs::read_to_string(leaves_dir.join(format!("{leaf}.nvue")))
                .unwrap()
                .lines()
            {
                match line.split(' ').collect::<Vec<_>>()[..] {
                    ["nv", "set", "interface", port, "link", "mtu", mtu] => {
                        writeln!(commands, "link set {port} mtu {mtu} up").unwrap();
                    }
                    ["nv", "set", "interface", port, "ip", "address", address] => {
                        writeln!(commands, "address add {address} dev {port}").unwrap();
                    }
                    _ => (),
                }
            }
            self.batch(&leaf, &commands);
        }
        if self.setup.strict_leaves {
            for end in ends() {
                self.sysctl(
                    &end.leaf(),
                    &[(&format!("ipv4/conf/{}/rp_filter", end.port()), "1")],
                );
            }
        }
    }

    /// Every node has a node.json, store and run folder of its own, as if it were a machine of its
    /// own.
    fn configure_nodes(&self) {
        for node in 0..NODES {
            let dir = |name: &str| self.host.path(&format!("node-{node}/{name}"));
            let config = json!({
                "nodeName": format!("node-{node}"), "runDir": dir("run"), "storeDir": dir("store"),
                "sysfsRoot": self.host.path("sys"), "policy": {"kinds": ["veth"]},
            });
            fs::write(self.node_config(node), config.to_string()).unwrap();
        }
    }

    fn set_up_nodes(&mut self) {
        for node in 0..NODES {
            self.run_plan(node, &["--to", "store"]);
            let (machine, pod) = (format!("node-{node}"), format!("pod-{node}"));
            if self.setup.strict_nodes {
                for machine in [&machine, &pod] {
                    let keys = ["ipv4/conf/all/rp_filter", "ipv4/conf/default/rp_filter"];
                    self.sysctl(machine, &keys.map(|key| (key, "1")));
                }
            }
            self.allow_echo(&pod);
            self.listeners.push(self.inside(&pod, Listener::new));
            self.before.push(self.state_of(node));
        }
        for machine in (0..SPINES)
            .map(spine_name)
            .chain(leaves().map(|(su, rail)| leaf_name(su, rail)))
        {
            self.allow_echo(&machine);
        }
    }

    /// A socket for ICMP needs no privilege then.
    fn allow_echo(&self, machine: &str) {
        self.sysctl(machine, &[("ipv4/ping_group_range", "0 0")]);
    }

    // --- the plugin ---

    /// Calls rail-cni for all rails of all pods, as a runtime does: nodes at once, the rails of one
    /// after the other.
    pub fn call_all(&mut self, verb: &str) -> BTreeMap<End, Ran> {
        let this = &*self;
        let ran: BTreeMap<End, Ran> = std::thread::scope(|scope| {
            let rails_of = move |node| {
                let ends = (0..RAILS).map(|rail| End { node, rail });
                this.inside(&format!("node-{node}"), || {
                    ends.map(|end| (end, this.call(verb, end)))
                        .collect::<Vec<_>>()
                })
            };
            let nodes: Vec<_> = (0..NODES)
                .map(|node| scope.spawn(move || rails_of(node)))
                .collect();
            nodes
                .into_iter()
                .flat_map(|node| node.join().unwrap())
                .collect()
        });
        if verb == "ADD" {
            let done = ran.iter().filter(|(_, ran)| ran.status == 0);
            self.results = done.map(|(end, ran)| (*end, ran.json())).collect();
        }
        ran
    }

    /// On the node of `end` already.
    fn call(&self, verb: &str, end: End) -> Ran {
        let End { node, rail } = end;
        let pool = match self.setup.families[..] {
            [Family::V4, Family::V6] => format!("rail-{rail},rail-{rail}-v6"),
            _ => format!("rail-{rail}"),
        };
        let mut config = json!({
            "cniVersion": "1.1.0", "name": format!("rail-{rail}"), "type": "rail-cni", "rail": rail, "mtu": 9000,
            "device": end.device(), "ipam": {"type": "rail-ipam", "pool": pool},
        });
        if let Some(more) = &self.setup.conf {
            config = with(config, more.clone());
        }
        if verb == "CHECK" {
            config = with(config, json!({ "prevResult": self.results[&end] }));
        }
        let pod = format!("pod-{node}");
        self.host
            .call(verb, &pod, &self.netns(&pod))
            .ifname(&end.interface())
            .var(
                "CNI_ARGS",
                &format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod}"),
            )
            .var("RAIL_CNI_NODE_CONFIG", &self.node_config(node))
            .run(&config)
    }

    /// Calls rail-cni for all rails of all pods. All calls must succeed.
    #[track_caller]
    pub fn call_all_ok(&mut self, verb: &str) {
        for (end, ran) in self.call_all(verb) {
            assert_eq!(ran.status, 0, "{verb} of {end:?}: {ran:?}");
        }
    }

    /// Gives all pods their rails.
    #[track_caller]
    pub fn start_pods(&mut self) {
        self.call_all_ok("ADD");
        self.call_all_ok("CHECK");
        self.greet();
    }

    /// Ends all pods. Every device must be on its node as it was, and nothing be left in the pods.
    #[track_caller]
    pub fn end_pods(&mut self) {
        self.call_all_ok("DEL");
        for node in 0..NODES {
            assert_eq!(
                self.state_of(node),
                self.before[node],
                "devices of node-{node}"
            );
            let pod = format!("pod-{node}");
            assert_eq!(
                self.ip(&pod, "-br link show type veth"),
                "",
                "devices of {pod}"
            );
            for family in ["-4", "-6"] {
                let rules = self.ip(&pod, &format!("{family} rule"));
                let left = |rule: &&str| {
                    !["local", "main", "default"].contains(&rule.rsplit(' ').next().unwrap())
                };
                assert_eq!(
                    rules.lines().map(str::trim_end).find(left),
                    None,
                    "rules of {pod}"
                );
            }
        }
    }

    /// Name, MTU, MAC and flags of a node's devices.
    fn state_of(&self, node: usize) -> Vec<String> {
        let links: Value =
            serde_json::from_str(&self.ip(&format!("node-{node}"), "-json link show type veth"))
                .unwrap();
        let mut states: Vec<String> = links
            .as_array()
            .unwrap()
            .iter()
            .map(|link| {
                format!(
                    "{} {} {} {}",
                    link["ifname"], link["mtu"], link["address"], link["flags"]
                )
            })
            .collect();
        states.sort();
        states
    }

    /// Pods and leaves, leaves and spines learn each other's MACs. Without that cells are lost on a
    /// busy machine: an ICMP answer that waits for a MAC stays in the send buffer of the kernel's
    /// own socket, which about 160 of them fill.
    pub fn greet(&self) {
        let mut greetings: BTreeMap<String, Vec<Probe>> = BTreeMap::new();
        for &family in &self.setup.families {
            for end in ends() {
                let Planned { address, gateway } = self.planned(end, family);
                let gateway = match self.setup.links {
                    Links::Numbered => gateway,
                    Links::LinkLocal | Links::Onlink => {
                        loopback(family, end.su(), end.rail).parse().unwrap()
                    }
                };
                let probe = Probe {
                    kind: Kind::Device,
                    interface: end.interface(),
                    source: address,
                    destination: gateway,
                };
                greetings
                    .entry(format!("pod-{}", end.node))
                    .or_default()
                    .push(probe);
            }
            for (su, rail) in leaves() {
                for spine in 0..SPINES {
                    let link = Uplink {
                        family,
                        spine,
                        su,
                        rail,
                    };
                    let (source, destination) =
                        (link.address(Side::Leaf), link.address(Side::Spine));
                    let (source, destination) =
                        (source.parse().unwrap(), destination.parse().unwrap());
                    let probe = Probe {
                        kind: Kind::Device,
                        interface: format!("up{spine}"),
                        source,
                        destination,
                    };
                    greetings
                        .entry(leaf_name(su, rail))
                        .or_default()
                        .push(probe);
                }
            }
        }
        for (machine, mut probes) in greetings {
            for _ in 0..GREETINGS {
                let answers = self.inside(&machine, || prober::ask(&probes));
                let mut answers = answers.iter();
                probes.retain(|_| answers.next().is_some_and(Result::is_err));
            }
            assert!(
                probes.is_empty(),
                "{machine}: no answer from its neighbours: {probes:?}"
            );
        }
    }

    /// Number of spines that forwarded packets.
    pub fn spines_at_work(&self) -> usize {
        let forwards = |file: &str, key: &str, column: usize| {
            let text = fs::read_to_string(Path::new("/proc/thread-self/net").join(file)).unwrap();
            let is_some = |line: &str| {
                let words: Vec<&str> = line.split_whitespace().collect();
                words[0] == key
                    && words[column]
                        .parse::<u64>()
                        .is_ok_and(|packets| packets > 0)
            };
            text.lines().any(is_some)
        };
        let works = |spine: &usize| {
            self.inside(&spine_name(*spine), || {
                forwards("snmp", "Ip:", 6) || forwards("snmp6", "Ip6OutForwDatagrams", 1)
            })
        };
        (0..SPINES).filter(works).count()
    }

    // --- faults ---

    /// Exchanges the cables of two ports of leaves. An address stays with the port of that name.
    pub fn exchange(&self, first: End, second: End) {
        let ends = [first, second];
        let addresses = ends.map(|end| self.port_addresses(end));
        let wiring = self.name("wiring");
        if !self.netns("wiring").exists() {
            self.host.add_netns("wiring");
        }
        for (end, cable) in ends.iter().zip(["first", "second"]) {
            self.ip(
                &end.leaf(),
                &format!("link set {} netns {wiring} name {cable}", end.port()),
            );
        }
        for (end, cable) in ends.iter().zip(["second", "first"]) {
            self.ip(
                "wiring",
                &format!(
                    "link set {cable} netns {} name {}",
                    self.name(&end.leaf()),
                    end.port()
                ),
            );
        }
        for (end, addresses) in ends.iter().zip(addresses) {
            for address in addresses {
                self.ip(
                    &end.leaf(),
                    &format!("address add {address} dev {}", end.port()),
                );
            }
            self.ip(&end.leaf(), &format!("link set {} up", end.port()));
        }
    }

    /// With their prefix lengths.
    fn port_addresses(&self, end: End) -> Vec<String> {
        let shown = self.ip(
            &end.leaf(),
            &format!("-o address show dev {} scope global", end.port()),
        );
        shown
            .lines()
            .map(|line| line.split_whitespace().nth(3).unwrap().to_owned())
            .collect()
    }

    /// Pods forget what a fault taught them of a path's MTU, and learn the MACs that the fault made
    /// them forget.
    pub fn recover(&self) {
        for node in 0..NODES {
            self.ip(&format!("pod-{node}"), "route flush cache");
        }
        self.greet();
    }
}

/// SU and rail of each leaf.
fn leaves() -> impl Iterator<Item = (usize, usize)> {
    (0..SUS).flat_map(|su| (0..RAILS).map(move |rail| (su, rail)))
}

fn leaf_name(su: usize, rail: usize) -> String {
    format!("leaf-su{su}-r{rail}")
}

fn spine_name(spine: usize) -> String {
    format!("spine-{spine}")
}

/// An address of a leaf without prefixes, in the aggregate. It asks for its neighbours from there.
fn loopback(family: Family, su: usize, rail: usize) -> String {
    match family {
        Family::V4 => format!("172.31.{}.1", su * RAILS + rail),
        Family::V6 => format!("fd02:0:ff00:{:x}::1", su * RAILS + rail),
    }
}

/// The network that the leaf of an SU and a rail announces to the spines.
fn leaf_network(family: Family, su: usize, rail: usize) -> String {
    match family {
        Family::V4 => format!("172.{}.{su}.0/24", 16 | rail << 1),
        Family::V6 => format!("fd02:0:{:x}:{:x}::/56", rail << 8, su << 8),
    }
}

/// The link between a spine and a leaf.
struct Uplink {
    family: Family,
    spine: usize,
    su: usize,
    rail: usize,
}

#[derive(Clone, Copy)]
enum Side {
    Spine,
    Leaf,
}

impl Uplink {
    fn address(&self, side: Side) -> String {
        let link = self.su * RAILS + self.rail;
        match self.family {
            Family::V4 => format!("10.255.{}.{}", self.spine, link << 1 | side as usize),
            Family::V6 => format!("fd00:255:{}:{link:x}::{}", self.spine, side as usize + 1),
        }
    }

    fn prefix(&self, side: Side) -> String {
        format!(
            "{}/{}",
            self.address(side),
            if self.family == Family::V4 { 31 } else { 64 }
        )
    }
}

/// Runs a command that reads commands. All of them must succeed.
#[track_caller]
pub fn batch(command: &mut Command, commands: &str) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(commands.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}\n{commands}",
        String::from_utf8_lossy(&output.stderr)
    );
}
