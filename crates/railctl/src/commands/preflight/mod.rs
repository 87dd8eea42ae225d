//! `railctl preflight`: takes a free VF of each rail as a pod would, tries what a job needs, and
//! gives everything back.

mod bandwidth;
mod ending;
mod matrix;
mod peers;
mod ping;
mod pod;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Value, json};

use super::inventory::{Counters, Inventory, Rail, RdmaCounters, counted, rdma_counted};
use crate::output::{self, Finding, Output};
use bandwidth::Measure;
use ending::Ending;
use peers::{Fabric, Peer};
use ping::{From, ping};
use pod::Pod;
use rail_cni::cni::{AddResult, Ip};
use rail_cni::failure;
use rail_cni::ipam::table;
use rail_cni::node::Node;
use rail_cni::pool::{Allocation, node_name, rail_in, store};
use rail_netlink::Socket;
use rail_netlink::link::{self, faults};

/// The size of packets that every network passes: the smallest MTU of IPv6.
const SMALL: u32 = 1280;
// Remedies.
const LEAF_PORT: &str = "the leaf port";
const LET_ANSWER: &str = "it answered ARP or ND, so allow ICMP on the leaf";
/// Before a peer that did not answer is asked again.
const PAUSE: Duration = Duration::from_millis(100);
const LOOK_FOR_PEER: &str = "check that a pod there has the address, and that the leaves have a route to \
    it";

/// Arguments of `railctl preflight`.
#[derive(Debug, Args)]
pub struct PreflightArgs {
    /// Addresses of rails in pods of other nodes, to ping from the same rail here
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    peer: Vec<IpAddr>,
    /// Plan of the whole fabric (`railctl plan --to csv`; - reads stdin): also test against the
    /// rails of its other nodes, which run preflight at the same time
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Measure RDMA write bandwidth to a peer of the same rail by perftest's ib_write_bw, as
    /// preflight on the peer does
    #[arg(long, requires_all = ["plan", "seconds"])]
    bandwidth: bool,
    /// Keep the rails attached this long, and keep asking silent peers
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=3600))]
    seconds: u32,
    /// Test nothing, but merge the nodes' reports (`--output json`) from this directory, a file per
    /// node
    #[arg(long, value_name = "DIR", conflicts_with_all = ["peer", "seconds", "all", "plugins_dir", "bandwidth"])]
    merge: Option<PathBuf>,
    /// With --merge, print a page for a browser
    #[arg(long, requires = "merge", conflicts_with = "output")]
    html: bool,
    /// Fail if a rail is in use and cannot be tested
    #[arg(long)]
    all: bool,
    /// Directory of rail-cni and rail-ipam
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    plugins_dir: PathBuf,
}

impl PreflightArgs {
    /// Whether rails of this node are tested, not reports of nodes merged.
    pub fn is_of_this_node(&self) -> bool {
        self.merge.is_none()
    }
}

/// A rail, and what came of it.
struct Tried<'a> {
    rail: &'a Rail,
    number: u8,
    ifname: String,
    outcome: Outcome,
    /// Problems after an ADD.
    problems: Vec<Problem>,
    /// The leaf that the plan of the fabric has for it.
    leaf: Option<String>,
    /// The peers that the plan of the fabric has for it, and what was wrong with each.
    asked: Vec<(Peer, Option<Problem>)>,
    /// To whom RDMA wrote how many Gbit/s.
    bandwidth: Option<(String, f64)>,
}

/// The parameters of the checks of every rail.
struct Asking<'a> {
    peers: &'a BTreeMap<u8, BTreeSet<IpAddr>>,
    fabric: Option<&'a Fabric>,
    node: &'a Node,
    ending: &'a Ending,
    until: Instant,
    /// The means to measure bandwidth, by interface; empty without a request.
    measures: BTreeMap<String, Measure>,
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
    /// Counters that rose meanwhile, of the PF and of the device.
    counted: [Counters; 2],
    /// RDMA counters that rose, of both.
    rdma: RdmaCounters,
}

/// Something that is wrong, for people, and the step that found it, for programs.
struct Problem {
    step: &'static str,
    /// The code of the plugin's error.
    code: Option<u32>,
    text: String,
}

impl Problem {
    fn new(step: &'static str, text: String) -> Problem {
        Problem {
            step,
            code: None,
            text,
        }
    }
}

/// Attaches all free rails to a pod of its own, tests them at once, and returns them.
pub fn preflight(node: &Node, args: &PreflightArgs, output: Output) -> Result<ExitCode> {
    node.check_place(None)?;
    if node.rails.is_empty() {
        return Err(failure!(
            InvalidConfig,
            "this node has no rails: list them in node.json"
        ));
    }
    let peers = peers(&args.peer, &store::allocations(node))?;
    let fabric = args.plan.as_deref().map(Fabric::read).transpose()?;
    if args.bandwidth {
        bandwidth::find()?;
    }
    let ending = Ending::begin()?;
    let inventory = Inventory::take(node)?;
    let mut pod = Pod::new(node, &args.plugins_dir)?;
    let mut all = attach_all(&inventory, node, &ending, &mut pod)?;
    ending.watch(node, pod.container())?;
    let until = Instant::now() + Duration::from_secs(args.seconds.into());
    let measures = if args.bandwidth {
        bandwidth::of_pod(&Inventory::take(node)?, pod.container())
    } else {
        BTreeMap::new()
    };
    let asking = Asking {
        peers: &peers,
        fabric: fabric.as_ref(),
        node,
        ending: &ending,
        until,
        measures,
    };
    try_all(&mut all, &pod, &asking)?;
    // Read before DEL: a pod that wants a rail only now came too late to disturb a test.
    let waiting_pod = ending.wanted();
    for (ifname, problem) in pod.give_back() {
        if let Some(tried) = all.iter_mut().find(|tried| tried.ifname == ifname) {
            tried.problems.push(Problem::new("del", problem));
        }
    }
    if let Some(waiting_pod) = waiting_pod {
        for tried in &mut all {
            tried.yield_to(&waiting_pod);
        }
    } else if ending.is_near() {
        return Err(failure!(Internal, "interrupted; everything was returned"));
    }
    print(&all, node, output)?;
    for tried in &all {
        let is_good = match tried.state() {
            State::Fine => true,
            State::Wrong => false,
            State::InUse | State::NoPool => !args.all,
        };
        if !is_good {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Attaches the rails of the node, as far as they are free, as net1, net2 and so on.
fn attach_all<'a>(
    inventory: &'a Inventory,
    node: &Node,
    ending: &Ending,
    pod: &mut Pod,
) -> Result<Vec<Tried<'a>>> {
    let mut all = Vec::new();
    for rail in &inventory.rails {
        let Some(number) = rail.rail else {
            continue;
        };
        if ending.is_near() {
            break;
        }
        let ifname = format!("net{}", all.len() + 1);
        let outcome = attach((rail, number), &ifname, inventory, node, pod)?;
        all.push(Tried {
            rail,
            number,
            ifname,
            outcome,
            problems: vec![],
            leaf: None,
            asked: vec![],
            bandwidth: None,
        });
    }
    Ok(all)
}

fn print(all: &[Tried<'_>], node: &Node, output: Output) -> Result<()> {
    output::print(&match output {
        Output::Json => {
            let rails: Vec<_> = all.iter().map(Tried::json).collect();
            output::pretty(&json!({"node": node_name(node)?, "rails": rails}))
        }
        Output::Table => table(all),
    })
}

/// Merges the reports of all nodes: it needs no node.json, and changes nothing.
pub fn merge(args: &PreflightArgs, output: Output) -> Option<Result<ExitCode>> {
    let folder = args.merge.as_deref()?;
    Some(matrix::merge(
        folder,
        args.plan.as_deref(),
        args.html,
        output,
    ))
}

/// The peers of each rail: those that its routes lead to more narrowly than those of other rails.
fn peers(
    asked: &[IpAddr],
    pools: &[(String, Allocation)],
) -> Result<BTreeMap<u8, BTreeSet<IpAddr>>> {
    let mut peers: BTreeMap<u8, BTreeSet<IpAddr>> = BTreeMap::new();
    for peer in asked {
        let mut nearest: Option<(u8, BTreeSet<u8>)> = None;
        for (pool, one) in pools {
            let Some(rail) = one.rail.or_else(|| rail_in(pool)) else {
                continue;
            };
            let routes = one.routes.iter().map(|to| to.dst).chain([one.prefix]);
            let Some(length) = routes
                .filter(|net| net.contains(peer))
                .map(|net| net.prefix_len())
                .max()
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
            failure!(
                InvalidConfig,
                "--peer {peer}: no rail of this node has a route to it"
            )
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
        Ok(AddResult { ips, .. }) => Outcome::Attached(Box::new(Interface {
            device,
            ips,
            mtu: None,
            counted: Default::default(),
            rdma: RdmaCounters::new(),
        })),
        // A pod may have been faster.
        Err(refusal) => match leased(number, node) {
            Some(who) => Outcome::Untried(State::InUse, who),
            None => Outcome::Refused(Problem {
                step: "add",
                code: Some(refusal.code),
                text: refusal.msg,
            }),
        },
    })
}

impl Tried<'_> {
    /// Of the PF and the device in the pod, as far as the host sees them.
    fn rdma_counted(&self) -> RdmaCounters {
        let Outcome::Attached(interface) = &self.outcome else {
            return RdmaCounters::new();
        };
        let vfs = self
            .rail
            .vfs
            .iter()
            .map(|vf| &vf.function)
            .filter(|vf| vf.id == interface.device);
        let mut counters = RdmaCounters::new();
        for (name, more) in self.rail.function.iter().chain(vfs).flat_map(rdma_counted) {
            *counters.entry(name).or_default() += more;
        }
        counters
    }

    /// Checks the rail in the pod. The calling thread is in its namespace.
    fn check(&mut self, asking: &Asking<'_>) -> Result<()> {
        let Outcome::Attached(interface) = &mut self.outcome else {
            return Ok(());
        };
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
        let ips = interface.ips.clone();
        for ip in &ips {
            self.ask_leaf_and_peers(ip, link.mtu, asking);
        }
        for ip in &ips {
            self.ask_planned(ip, link.mtu, asking);
        }
        self.measure(asking);
        asking.ending.wait(asking.until);
        if let Outcome::Attached(interface) = &mut self.outcome {
            interface.counted[1] = risen(&before, faults(&mut socket, link.index)?);
        }
        Ok(())
    }

    fn ask_leaf_and_peers(&mut self, ip: &Ip, mtu: u32, asking: &Asking<'_>) {
        let own = ip.address.addr();
        let leaf = ip
            .gateway
            .and_then(|to| store::peer_of(asking.node, to, &[ip.address]));
        let gateway = ip.gateway.map(|to| (to, End::Gateway(leaf)));
        let peers = asking.peers.get(&self.number).into_iter().flatten();
        let of_family = peers.filter(|to| to.is_ipv4() == own.is_ipv4());
        for (to, end) in gateway
            .into_iter()
            .chain(of_family.map(|to| (*to, End::Peer(String::new()))))
        {
            // Of an unnumbered link, the gateway may be a link-local one.
            let is_other = to.is_ipv4() != own.is_ipv4();
            let address = if is_other {
                Ipv6Addr::UNSPECIFIED.into()
            } else {
                own
            };
            let from = From {
                ifname: &self.ifname,
                address,
            };
            self.problems.extend(end.ask(&from, to, mtu, asking.ending));
        }
    }

    /// Asks the peers of the plan, and the silent ones until the time is over.
    fn ask_planned(&mut self, ip: &Ip, mtu: u32, asking: &Asking<'_>) {
        let own = ip.address.addr();
        let Some(fabric) = asking.fabric else { return };
        let Some(peers) = fabric.peers(own) else {
            let text = format!(
                "the plan of --plan does not have {own}: it is another one than the node's"
            );
            return self.problems.push(Problem::new("plan", text));
        };
        self.leaf = fabric.leaf(own).map(str::to_owned);
        let from = From {
            ifname: &self.ifname,
            address: own,
        };
        let ask = |peer: &Peer| {
            let leaf = peer
                .leaf
                .as_ref()
                .map(|leaf| format!(", {leaf}"))
                .unwrap_or_default();
            let who = format!(" (rail {} of {}{leaf})", peer.rail, peer.node);
            End::Peer(who).ask(&from, peer.address, mtu, asking.ending)
        };
        let mut asked: Vec<_> = peers.into_iter().map(|peer| (ask(&peer), peer)).collect();
        let is_silent =
            |problem: &Option<Problem>| problem.as_ref().is_some_and(|one| one.step == "peer");
        while Instant::now() < asking.until
            && !asking.ending.is_near()
            && asked.iter().any(|(problem, _)| is_silent(problem))
        {
            thread::sleep(PAUSE);
            for (problem, peer) in asked.iter_mut().filter(|(problem, _)| is_silent(problem)) {
                *problem = ask(peer);
            }
        }
        self.asked
            .extend(asked.into_iter().map(|(problem, peer)| (peer, problem)));
    }

    /// Writes to the nearest peer of the same rail. Each rail is the nearest one of one other.
    fn measure(&mut self, asking: &Asking<'_>) {
        let Some(measure) = asking.measures.get(&self.ifname) else {
            return;
        };
        let is_meant = |peer: &&(Peer, Option<Problem>)| {
            peer.0.rail == self.number && peer.0.address.is_ipv4() == measure.address().is_ipv4()
        };
        let peer = self
            .asked
            .iter()
            .find(is_meant)
            .map(|(peer, _)| peer.clone());
        let measured = measure.run(
            peer.as_ref().map(|peer| peer.address),
            asking.ending,
            asking.until,
        );
        match (peer, measured) {
            (Some(peer), Some(Ok(gbits))) => self.bandwidth = Some((peer.node, gbits)),
            (Some(peer), Some(Err(why))) => {
                let text = format!(
                    "ib_write_bw to {} (rail {} of {}) measured nothing: {why}; does preflight run there with --bandwidth?",
                    peer.address, peer.rail, peer.node
                );
                self.problems.push(Problem::new("bandwidth", text));
            }
            _ => (),
        }
    }

    /// A pod wanted a rail before everything was tried.
    fn yield_to(&mut self, who: &str) {
        if let Outcome::Attached(_) = self.outcome {
            self.outcome =
                Outcome::Untried(State::InUse, format!("returned at once, because {who}"));
            self.asked.clear();
            self.bandwidth = None;
            // A rail that does not return is a fault, whoever wants it.
            self.problems.retain(|problem| problem.step == "del");
        }
    }

    fn problems(&self) -> impl Iterator<Item = &Problem> {
        let refused = match &self.outcome {
            Outcome::Refused(problem) => Some(problem),
            Outcome::Untried(..) | Outcome::Attached(_) => None,
        };
        let of_peers = self
            .asked
            .iter()
            .filter_map(|(_, problem)| problem.as_ref());
        refused.into_iter().chain(&self.problems).chain(of_peers)
    }

    fn state(&self) -> State {
        match self.outcome {
            _ if self.problems().next().is_some() => State::Wrong,
            Outcome::Untried(state, _) => state,
            Outcome::Refused(_) | Outcome::Attached(_) => State::Fine,
        }
    }
}

/// The other end of a check.
enum End {
    /// With its leaf port, if the plan says it.
    Gateway(Option<String>),
    /// With its place, if the plan says it.
    Peer(String),
}

impl End {
    /// Asks with packets of this MTU, unless the end is near.
    fn ask(&self, from: &From<'_>, to: IpAddr, mtu: u32, ending: &Ending) -> Option<Problem> {
        let size = |bytes: u32| usize::try_from(bytes).unwrap_or(usize::MAX);
        let error = ping(from, to, size(mtu), ending).err()?;
        let (step, who, port, remedy) = match self {
            End::Gateway(Some(leaf)) => (
                "gateway",
                format!("gateway {to} ({leaf})"),
                LEAF_PORT,
                LET_ANSWER,
            ),
            End::Gateway(None) => ("gateway", format!("gateway {to}"), LEAF_PORT, LET_ANSWER),
            End::Peer(who) => (
                "peer",
                format!("peer {to}{who}"),
                "every port on the path",
                LOOK_FOR_PEER,
            ),
        };
        let small = mtu.min(SMALL);
        let is_whole = again(small, mtu, |bytes| {
            ping(from, to, size(bytes), ending).is_ok()
        });
        if is_whole == Some(true) {
            return None;
        }
        Some(if is_whole == Some(false) {
            let text = format!(
                "{who} answers packets of {small} bytes, but none of {mtu} that may not be fragmented: raise the MTU of \
                 {port}, or lower that of the PF"
            );
            Problem::new("mtu", text)
        } else {
            let is_silent = error.kind() == io::ErrorKind::WouldBlock;
            let how = if is_silent {
                String::new()
            } else {
                format!(" ({error})")
            };
            Problem::new(step, format!("{who} does not answer ping{how}: {remedy}"))
        })
    }
}

/// Whether the way lets packets of the MTU pass, after one did not; `None` where not even small
/// ones do. A peer holds its rail for a while only, and may come or go between two questions: that
/// is no wrong MTU.
fn again(small: u32, mtu: u32, mut passes: impl FnMut(u32) -> bool) -> Option<bool> {
    if !passes(small) {
        return None;
    }
    if passes(mtu) {
        return Some(true);
    }
    passes(small).then_some(false)
}

/// The first VF that a pod could get; the PF itself, where pods get PFs.
fn free_device(rail: &Rail, inventory: &Inventory, node: &Node) -> Result<String, Outcome> {
    let mut devices: Vec<_> = rail
        .vfs
        .iter()
        .map(|vf| (&vf.function, vf.link.is_some()))
        .collect();
    if inventory.is_pf_mode(node) {
        devices.extend(rail.function.as_ref().map(|pf| (pf, rail.link.is_some())));
    }
    // The ADD restores the traces of a dead pod.
    let is_held = |device| match inventory.holder(device) {
        Some(attached) => !attached.is_left_over(),
        None => inventory.is_held(device),
    };
    if let Some((device, _)) = devices
        .iter()
        .find(|(device, is_here)| *is_here && !is_held(device))
    {
        return Ok(device.id.clone());
    }
    Err(match devices.iter().find(|(device, _)| is_held(device)) {
        Some((device, _)) => {
            let who = inventory
                .holder(device)
                .map(|of| of.record.owner.describe());
            let who = who.unwrap_or_else(|| "a resource claim".to_owned());
            Outcome::Untried(
                State::InUse,
                format!("{} belongs to {who}, and no other is free", device.id),
            )
        }
        None => {
            let text = format!(
                "{} has no VF with a netdev that a pod could get: see `railctl doctor`",
                rail.pf()
            );
            Outcome::Refused(Problem::new("device", text))
        }
    })
}

/// The holders of this rail's addresses, if none is left.
fn leased(rail: u8, node: &Node) -> Option<String> {
    let name = node_name(node).ok()?;
    for (_, allocation) in store::of_rail(node, &name, rail.into()).unwrap_or_default() {
        let mut held = BTreeMap::new();
        for (entry, lease) in table::read_all(node).unwrap_or_default() {
            let is_in_use = lease
                .as_ref()
                .is_ok_and(|lease| !lease.is_dead(node).unwrap_or(false));
            if is_in_use && allocation.prefix.contains(&entry.address) {
                held.extend(lease.map(|lease| (entry.address, lease.holder.to_string())));
            }
        }
        if allocation
            .first_free(|address| held.contains_key(&address))
            .is_none()
        {
            return held
                .into_iter()
                .map(|(address, who)| format!("{who} has {address}"))
                .next();
        }
    }
    None
}

/// Tries all rails side by side.
fn try_all(all: &mut [Tried<'_>], pod: &Pod, asking: &Asking<'_>) -> Result<()> {
    let look = |tried: &Tried<'_>| -> Result<(Counters, RdmaCounters)> {
        let pf = tried.rail.link.as_ref();
        let of_pf = pf.map_or_else(|| Ok(Counters::new()), |pf| counted(pf.index))?;
        Ok((of_pf, tried.rdma_counted()))
    };
    let before: Vec<_> = all.iter().map(look).collect::<Result<_>>()?;
    pod.netns()?.run(|| {
        ping::permit()?;
        thread::scope(|scope| {
            let threads: Vec<_> = all
                .iter_mut()
                .map(|tried| scope.spawn(|| tried.check(asking)))
                .collect();
            let panicked = |_| Err(failure!(Internal, "a thread panicked: please report it"));
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(panicked))
        })
    })?;
    for (tried, (of_pf, of_rdma)) in all.iter_mut().zip(before) {
        let (pf_now, rdma_now) = look(tried)?;
        if let Outcome::Attached(interface) = &mut tried.outcome {
            interface.counted[0] = risen(&of_pf, pf_now);
            interface.rdma = risen(&of_rdma, rdma_now);
        }
    }
    Ok(())
}

/// By how much the counters rose that did.
fn risen<Name: Ord>(
    before: &BTreeMap<Name, u64>,
    mut now: BTreeMap<Name, u64>,
) -> BTreeMap<Name, u64> {
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
    let mut text = output::table(
        &["RAIL", "PF", "DEVICE", "ADDRESS", "MTU", "COUNTED", "STATE"],
        rows,
    );
    let findings = output::merged(all.iter().flat_map(findings).collect(), "rail");
    if !findings.is_empty() {
        text += "\n";
    }
    for finding in findings {
        text += &output::line(&format!("{}: {}", finding.subject, finding.text));
    }
    text
}

/// Why a rail was not tried, and what was wrong with it.
fn findings(tried: &Tried<'_>) -> Vec<Finding> {
    let mut texts = Vec::new();
    if let Outcome::Untried(_, why) = &tried.outcome {
        texts.push(why.clone());
    }
    texts.extend(tried.problems().map(|problem| problem.text.clone()));
    let subject = format!("rail {}", tried.number);
    let mut findings = Vec::new();
    for text in texts {
        findings.push(Finding {
            subject: subject.clone(),
            text,
            ..Finding::default()
        });
    }
    findings
}

impl Interface {
    /// DEVICE, ADDRESS, MTU, COUNTED.
    fn cells(&self) -> [String; 4] {
        let addresses: Vec<_> = self.ips.iter().map(|ip| ip.address.to_string()).collect();
        let [pf, own] = &self.counted;
        let of_pf = pf.iter().map(|(name, more)| format!("PF {name} +{more}"));
        let own = own.iter().map(|(name, more)| format!("{name} +{more}"));
        let rdma = self
            .rdma
            .iter()
            .map(|(name, more)| format!("RDMA {name} +{more}"));
        let counted: Vec<_> = of_pf.chain(own).chain(rdma).collect();
        let mtu = self.mtu.map(|mtu| mtu.to_string()).unwrap_or_default();
        [
            self.device.clone(),
            addresses.join(" "),
            mtu,
            counted.join(", "),
        ]
    }
}

impl Tried<'_> {
    /// The help of the verb lists these keys: new keys may be added, but none may change its
    /// meaning.
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
                json["counted"] = json!({"pf": pf, "device": own, "rdma": of.rdma});
                json["leaf"] = json!(self.leaf);
                json["bandwidth"] = json!(
                    self.bandwidth
                        .as_ref()
                        .map(|(node, gbits)| json!({"node": node, "gbits": gbits}))
                );
                let asked = self.asked.iter().map(|(peer, problem)| {
                    let state = matrix::Answer::of(problem.as_ref().map(|problem| problem.step));
                    json!({"node": peer.node, "rail": peer.rail, "address": peer.address,
                        "leaf": peer.leaf, "way": peer.way, "state": state})
                });
                json["asked"] = json!(asked.collect::<Vec<_>>());
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
            let routes = [
                format!("172.{}.0.0/15", 16 + 2 * rail),
                "172.16.0.0/12".to_owned(),
            ];
            let routes = routes
                .map(|dst| To {
                    dst: dst.parse().unwrap(),
                })
                .to_vec();
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

    #[test]
    fn a_peer_that_comes_or_goes_between_two_pings_has_no_wrong_mtu() {
        let judged = |answers: &[bool]| {
            let mut answers = answers.iter();
            again(1280, 9216, |_| *answers.next().unwrap())
        };
        assert_eq!(judged(&[false]), None);
        assert_eq!(judged(&[true, true]), Some(true));
        assert_eq!(judged(&[true, false, true]), Some(false));
        assert_eq!(judged(&[true, false, false]), None);
    }
}
