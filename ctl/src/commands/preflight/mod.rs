//! `railctl preflight`: takes a free VF of each rail as a pod would, tries what a job needs, and gives everything back.

mod ping;
mod pod;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result};
use clap::Args;
use nix::sys::signal::{SigSet, Signal};
use serde_json::{Value, json};

use super::inventory::{Inventory, Rail};
use super::leases::{self, look};
use crate::output::{self, Output};
use ping::{From, ping};
use pod::Pod;
use rail_cni::cni::{AddResult, Ip};
use rail_cni::failure;
use rail_cni::ipam::lease::Folder;
use rail_cni::node::Node;
use rail_cni::pool::{Allocation, node_name, rail_in, store};
use rail_netlink::Socket;
use rail_netlink::link::{self, faults};

/// The size of packets that every network passes: the smallest MTU of IPv6.
const SMALL: u32 = 1280;
// What to do.
const LEAF_PORT: &str = "the leaf port";
const LET_ANSWER: &str = "it answered ARP or ND, so allow ICMP on the leaf";
const LOOK_FOR_PEER: &str = "check that a pod there has the address, and that the leaves have a route to \
    it";

/// Arguments of `railctl preflight`.
#[derive(Debug, Args)]
pub struct PreflightArgs {
    /// Addresses of rails in pods of other nodes, to ping from the same rail here
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    peer: Vec<IpAddr>,
    /// Fail if a rail is in use and cannot be tested
    #[arg(long)]
    all: bool,
    /// Directory of rail-cni and rail-ipam
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    plugins_dir: PathBuf,
}

/// A rail, and what came of it.
struct Tried<'a> {
    rail: &'a Rail,
    number: u8,
    ifname: String,
    outcome: Outcome,
    /// What was wrong after an ADD.
    problems: Vec<Problem>,
}

enum Outcome {
    /// There was no ADD, or a pod was faster; with the reason.
    Untried(State, String),
    /// No ADD succeeded.
    Refused(Problem),
    Attached(Box<Interface>),
}

#[derive(Clone, Copy)]
enum State {
    Fine,
    Wrong,
    InUse,
    NoPool,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Fine => "fine",
            State::Wrong => "wrong",
            State::InUse => "in-use",
            State::NoPool => "no-pool",
        }
    }
}

/// The rail's interface in the pod.
struct Interface {
    device: String,
    ips: Vec<Ip>,
    /// `None` without a carrier.
    mtu: Option<u32>,
    /// What rose meanwhile, of the PF and of the device.
    counted: [Counters; 2],
}

/// Errors and discards of a link.
type Counters = BTreeMap<&'static str, u64>;

/// Something that is wrong, for people, and the step that found it, for programs.
struct Problem {
    step: &'static str,
    /// The code of the plugin's error.
    code: Option<u32>,
    text: String,
}

impl Problem {
    fn new(step: &'static str, text: String) -> Problem {
        Problem { step, code: None, text }
    }
}

/// Becomes true when a signal asks this command to end, which it does between two steps, and gives back what it took.
fn ending() -> Result<Arc<AtomicBool>> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    signals.thread_block()?;
    let is_ending = Arc::new(AtomicBool::new(false));
    let flag = is_ending.clone();
    thread::Builder::new().spawn(move || {
        while signals.wait().is_err() {}
        flag.store(true, Ordering::Relaxed);
    })?;
    Ok(is_ending)
}

/// Tries all rails at once, as a pod has them.
pub fn preflight(node: &Node, args: &PreflightArgs, output: Output) -> Result<ExitCode> {
    node.check_place(None)?;
    if node.rails.is_empty() {
        return Err(failure!(InvalidConfig, "this node has no rails: list them in node.json"));
    }
    let peers = peers(&args.peer, &store::allocations(node))?;
    let ending = ending()?;
    let inventory = Inventory::take(node)?;
    let mut pod = Pod::new(node, &args.plugins_dir)?;
    let mut all = Vec::new();
    for (rail, number) in inventory.rails.iter().filter_map(|rail| Some((rail, rail.rail?))) {
        if !ending.load(Ordering::Relaxed) {
            let ifname = format!("net{}", all.len() + 1);
            let outcome = attach((rail, number), &ifname, &inventory, node, &mut pod)?;
            let tried = Tried { rail, number, ifname, outcome, problems: Vec::new() };
            all.push(tried);
        }
    }
    try_all(&mut all, &peers, (&pod, node), &ending)?;
    for (ifname, why) in pod.give_back() {
        let of = all.iter_mut().find(|tried| tried.ifname == ifname);
        of.into_iter().for_each(|tried| tried.problems.push(Problem::new("del", why.clone())));
    }
    if ending.load(Ordering::Relaxed) {
        return Err(failure!(Internal, "interrupted; everything was returned"));
    }
    output::print(&match output {
        Output::Json => output::pretty(&json!({ "rails": all.iter().map(Tried::json).collect::<Vec<_>>() })),
        Output::Table => table(&all),
    })?;
    let is_good = |tried: &Tried<'_>| match tried.state() {
        State::Fine => true,
        State::Wrong => false,
        State::InUse | State::NoPool => !args.all,
    };
    Ok(if all.iter().all(is_good) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The peers of each rail: those that its routes lead to more narrowly than those of other rails.
fn peers(asked: &[IpAddr], pools: &[(String, Allocation)]) -> Result<BTreeMap<u8, BTreeSet<IpAddr>>> {
    let mut peers: BTreeMap<u8, BTreeSet<IpAddr>> = BTreeMap::new();
    for peer in asked {
        let mut nearest: Option<(u8, BTreeSet<u8>)> = None;
        for (pool, one) in pools {
            let Some(rail) = one.rail.or_else(|| rail_in(pool)) else { continue };
            let routes = one.routes.iter().map(|to| to.dst).chain([one.prefix]);
            let Some(length) = routes.filter(|net| net.contains(peer)).map(|net| net.prefix_len()).max()
            else {
                continue;
            };
            match &mut nearest {
                Some((of, rails)) if *of == length => drop(rails.insert(rail)),
                Some((of, _)) if *of > length => (),
                _ => nearest = Some((length, BTreeSet::from([rail]))),
            }
        }
        let (_, rails) = nearest.with_context(|| {
            failure!(InvalidConfig, "--peer {peer}: no rail of this node has a route to it")
        })?;
        for rail in rails {
            peers.entry(rail).or_default().insert(*peer);
        }
    }
    Ok(peers)
}

/// Calls ADD for a free VF of the rail.
fn attach(
    (rail, number): (&Rail, u8),
    ifname: &str,
    inventory: &Inventory,
    node: &Node,
    pod: &mut Pod,
) -> Result<Outcome> {
    if node.rails.iter().any(|one| one.rail == number && !one.pool) {
        let why = "node.json says that it has no pool".to_owned();
        return Ok(Outcome::Untried(State::NoPool, why));
    }
    let device = match free_device(rail, inventory, node) {
        Ok(device) => device,
        Err(outcome) => return Ok(outcome),
    };
    if let Some(who) = leased(number, node) {
        return Ok(Outcome::Untried(State::InUse, who));
    }
    let network = json!({"cniVersion": "1.1.0", "name": format!("preflight-rail-{number}"), "type": "rail-cni",
        "deviceID": device, "rail": number, "mtu": rail.link.as_ref().map(|pf| pf.mtu),
        "gatewayProbe": "require", "ipam": {"type": "rail-ipam"}});
    Ok(match pod.add(ifname, network)? {
        Ok(AddResult { ips, .. }) => {
            Outcome::Attached(Box::new(Interface { device, ips, mtu: None, counted: Default::default() }))
        }
        // A pod may have been faster.
        Err(refusal) => match leased(number, node) {
            Some(who) => Outcome::Untried(State::InUse, who),
            None => Outcome::Refused(Problem { step: "add", code: Some(refusal.code), text: refusal.msg }),
        },
    })
}

impl Tried<'_> {
    /// What the rail does in the pod. The calling thread is in its namespace.
    fn check(&mut self, peers: &BTreeSet<IpAddr>, node: &Node, ending: &AtomicBool) -> Result<()> {
        let Outcome::Attached(interface) = &mut self.outcome else { return Ok(()) };
        let mut socket = Socket::open()?;
        let link = link::by_name(&mut socket, &self.ifname)?;
        let Some(link) = link.filter(|link| link.carrier) else {
            let text = format!(
                "{} has no carrier in the pod: check the cable, and the VF's link state",
                interface.device
            );
            self.problems.push(Problem::new("carrier", text));
            return Ok(());
        };
        interface.mtu = Some(link.mtu);
        let before = faults(&mut socket, link.index)?;
        for ip in &interface.ips {
            let own = ip.address.addr();
            let leaf = ip.gateway.and_then(|to| store::peer_of(node, to, &[ip.address]));
            let gateway = ip.gateway.map(|to| (to, End::Gateway(leaf)));
            let of_family = peers.iter().filter(|to| to.is_ipv4() == own.is_ipv4());
            for (to, end) in gateway.into_iter().chain(of_family.map(|to| (*to, End::Peer))) {
                // Of an unnumbered link, the gateway may be a link-local one.
                let is_other = to.is_ipv4() != own.is_ipv4();
                let address = if is_other { Ipv6Addr::UNSPECIFIED.into() } else { own };
                if !ending.load(Ordering::Relaxed) {
                    self.problems.extend(end.ask(&From { ifname: &self.ifname, address }, to, link.mtu));
                }
            }
        }
        interface.counted[1] = risen(&before, faults(&mut socket, link.index)?);
        Ok(())
    }

    fn problems(&self) -> impl Iterator<Item = &Problem> {
        let refused = match &self.outcome {
            Outcome::Refused(problem) => Some(problem),
            Outcome::Untried(..) | Outcome::Attached(_) => None,
        };
        refused.into_iter().chain(&self.problems)
    }

    fn state(&self) -> State {
        match self.outcome {
            _ if self.problems().next().is_some() => State::Wrong,
            Outcome::Untried(state, _) => state,
            Outcome::Refused(_) | Outcome::Attached(_) => State::Fine,
        }
    }
}

/// Who is asked.
enum End {
    /// With its leaf port, if the plan says it.
    Gateway(Option<String>),
    Peer,
}

impl End {
    fn ask(&self, from: &From<'_>, to: IpAddr, mtu: u32) -> Option<Problem> {
        let size = |bytes: u32| usize::try_from(bytes).unwrap_or(usize::MAX);
        let error = ping(from, to, size(mtu)).err()?;
        let (step, who, port, remedy) = match self {
            End::Gateway(Some(leaf)) => ("gateway", format!("gateway {to} ({leaf})"), LEAF_PORT, LET_ANSWER),
            End::Gateway(None) => ("gateway", format!("gateway {to}"), LEAF_PORT, LET_ANSWER),
            End::Peer => ("peer", format!("peer {to}"), "every port on the path", LOOK_FOR_PEER),
        };
        let small = mtu.min(SMALL);
        Some(if ping(from, to, size(small)).is_ok() {
            let text = format!(
                "{who} answers packets of {small} bytes, but none of {mtu} that may not be fragmented: raise the MTU of \
                 {port}, or lower that of the PF"
            );
            Problem::new("mtu", text)
        } else {
            let is_silent = error.kind() == io::ErrorKind::WouldBlock;
            let how = if is_silent { String::new() } else { format!(" ({error})") };
            Problem::new(step, format!("{who} does not answer ping{how}: {remedy}"))
        })
    }
}

/// The first VF that a pod could get; the PF itself, where pods get PFs.
fn free_device(rail: &Rail, inventory: &Inventory, node: &Node) -> Result<String, Outcome> {
    let mut devices: Vec<_> = rail.vfs.iter().map(|vf| (&vf.function, vf.link.is_some())).collect();
    if inventory.is_pf_mode(node) {
        devices.extend(rail.function.as_ref().map(|pf| (pf, rail.link.is_some())));
    }
    // What a dead pod left, the ADD restores.
    let is_held = |device| match inventory.holder(device) {
        Some(attached) => !attached.is_left_over(),
        None => inventory.is_held(device),
    };
    if let Some((device, _)) = devices.iter().find(|(device, is_here)| *is_here && !is_held(device)) {
        return Ok(device.id.clone());
    }
    Err(match devices.iter().find(|(device, _)| is_held(device)) {
        Some((device, _)) => {
            let who = inventory.holder(device).map(|of| of.record.owner.describe());
            let who = who.unwrap_or_else(|| "a resource claim".to_owned());
            Outcome::Untried(State::InUse, format!("{} belongs to {who}, and no other is free", device.id))
        }
        None => {
            let text =
                format!("{} has no VF with a netdev that a pod could get: see `railctl doctor`", rail.pf());
            Outcome::Refused(Problem::new("device", text))
        }
    })
}

/// Who has the addresses of this rail, if none is left.
fn leased(rail: u8, node: &Node) -> Option<String> {
    let name = node_name(node).ok()?;
    for (pool, allocation) in store::of_rail(node, &name, rail.into()).unwrap_or_default() {
        let Some(folder) = Folder::existing(node, &name, &pool).ok().flatten() else { continue };
        let mut held = BTreeMap::new();
        for entry in folder.entries().unwrap_or_default() {
            if let Ok(Some((Ok(lease), leases::State::Live | leases::State::Unknown(_)))) =
                look(&folder, &entry, node)
            {
                held.insert(entry.address, lease.holder.to_string());
            }
        }
        if allocation.first_free(|address| held.contains_key(&address)).is_none() {
            return held.into_iter().map(|(address, who)| format!("{who} has {address}")).next();
        }
    }
    None
}

/// Tries all rails side by side.
fn try_all(
    all: &mut [Tried<'_>],
    peers: &BTreeMap<u8, BTreeSet<IpAddr>>,
    (pod, node): (&Pod, &Node),
    ending: &AtomicBool,
) -> Result<()> {
    let mut host = Socket::open()?;
    let mut of_pf = |tried: &Tried<'_>| -> Result<Counters> {
        let pf = tried.rail.link.as_ref();
        pf.map_or_else(|| Ok(Counters::new()), |pf| faults(&mut host, pf.index))
    };
    let before: Vec<Counters> = all.iter().map(&mut of_pf).collect::<Result<_>>()?;
    let none = BTreeSet::new();
    pod.netns()?.run(|| {
        ping::permit()?;
        thread::scope(|scope| {
            let threads: Vec<_> = all
                .iter_mut()
                .map(|tried| {
                    let peers = peers.get(&tried.number).unwrap_or(&none);
                    scope.spawn(|| tried.check(peers, node, ending))
                })
                .collect();
            let panicked = |_| Err(failure!(Internal, "a thread panicked: please report it"));
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(panicked))
        })
    })?;
    for (tried, before) in all.iter_mut().zip(before) {
        let now = of_pf(tried)?;
        if let Outcome::Attached(interface) = &mut tried.outcome {
            interface.counted[0] = risen(&before, now);
        }
    }
    Ok(())
}

/// By how much the counters rose that did.
fn risen(before: &Counters, mut now: Counters) -> Counters {
    for (name, value) in &mut now {
        *value = value.saturating_sub(before.get(name).copied().unwrap_or_default());
    }
    now.retain(|_, value| *value > 0);
    now
}

fn table(all: &[Tried<'_>]) -> String {
    let rows = all.iter().map(|tried| {
        let mut cells = vec![tried.number.to_string(), tried.rail.pf().to_owned()];
        cells.extend(match &tried.outcome {
            Outcome::Attached(of) => of.cells(),
            Outcome::Untried(..) | Outcome::Refused(_) => Default::default(),
        });
        cells.push(tried.state().word().to_owned());
        cells
    });
    let mut text = output::table(&["RAIL", "PF", "DEVICE", "ADDRESS", "MTU", "COUNTED", "STATE"], rows);
    let of = |tried: &Tried<'_>| {
        let untried = match &tried.outcome {
            Outcome::Untried(_, why) => Some(why.clone()),
            Outcome::Refused(_) | Outcome::Attached(_) => None,
        };
        let texts = untried.into_iter().chain(tried.problems().map(|one| one.text.clone()));
        texts
            .map(|text| output::printable(&format!("rail {}: {text}", tried.number)) + "\n")
            .collect::<String>()
    };
    let told: String = all.iter().map(of).collect();
    if !told.is_empty() {
        text += &format!("\n{told}");
    }
    text
}

impl Interface {
    /// DEVICE, ADDRESS, MTU, COUNTED.
    fn cells(&self) -> [String; 4] {
        let addresses: Vec<_> = self.ips.iter().map(|ip| ip.address.to_string()).collect();
        let [pf, own] = &self.counted;
        let of_pf = pf.iter().map(|(name, more)| format!("PF {name} +{more}"));
        let counted: Vec<_> = of_pf.chain(own.iter().map(|(name, more)| format!("{name} +{more}"))).collect();
        let mtu = self.mtu.map(|mtu| mtu.to_string()).unwrap_or_default();
        [self.device.clone(), addresses.join(" "), mtu, counted.join(", ")]
    }
}

impl Tried<'_> {
    /// docs/operations.md documents these keys: new keys may be added, but none may change its meaning.
    fn json(&self) -> Value {
        let problem = |one: &Problem| json!({"step": one.step, "code": one.code, "text": one.text});
        let mut json = json!({"rail": self.number, "pf": self.rail.pf(), "state": self.state().word(),
            "problems": self.problems().map(problem).collect::<Vec<_>>()});
        match &self.outcome {
            Outcome::Untried(_, why) => json["why"] = json!(why),
            Outcome::Refused(_) => (),
            Outcome::Attached(of) => {
                let [pf, own] = &of.counted;
                json["device"] = json!(of.device);
                json["addresses"] = json!(of.ips.iter().map(|ip| ip.address).collect::<Vec<_>>());
                json["mtu"] = json!(of.mtu);
                json["counted"] = json!({"pf": pf, "device": own});
            }
        }
        json
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rail_cni::pool::To;

    #[test]
    fn a_peer_is_of_the_rail_with_the_narrowest_route_and_of_all_if_they_are_alike() {
        let pool = |rail: u8| {
            let prefix = format!("172.{}.0.0/31", 16 + 2 * rail).parse().unwrap();
            let routes = [format!("172.{}.0.0/15", 16 + 2 * rail), "172.16.0.0/12".to_owned()];
            let routes = routes.map(|dst| To { dst: dst.parse().unwrap() }).to_vec();
            let one = Allocation {
                version: 1,
                prefix,
                gateway: None,
                rail: Some(rail),
                routes,
                exclusions: vec![],
                leaf_ports: vec![],
            };
            (format!("rail-{rail}"), one)
        };
        let pools = [pool(0), pool(1)];
        let of = |peer: &str| {
            peers(&[peer.parse().unwrap()], &pools).map(|all| all.into_keys().collect::<Vec<_>>())
        };
        assert_eq!(of("172.17.4.2").unwrap(), [0]);
        assert_eq!(of("172.18.4.2").unwrap(), [1]);
        assert_eq!(of("172.30.0.1").unwrap(), [0, 1]);
        assert!(of("10.0.0.1").is_err());
    }

    #[test]
    fn only_counters_that_rose_are_told() {
        let before = Counters::from([("rx_errors", 5), ("rx_dropped", 1)]);
        let now = Counters::from([("rx_errors", 7), ("rx_dropped", 1), ("tx_errors", 0)]);
        assert_eq!(risen(&before, now), Counters::from([("rx_errors", 2)]));
    }
}
