//! `rail-agent run`: keeps node.json and the store of this node, and shows its rails to the
//! cluster.
//!
//! Nothing that a pod's start needs waits for this process or for the API server: it writes files
//! that the plugins read, and looks at what they left.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use rail_cni::node::Node as NodeJson;
use rail_cni::pool::store::closed_name;
use rustix::fs::FlockOperation;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::sync::watch::Receiver;

use crate::alive::{self, Alive};
use crate::api::{self, Events, News};
use crate::cables::Heard;
use crate::calls::{self, Call, Tail};
use crate::devices::{self, Resources};
use crate::host::{Host, HostDir, Said};
use crate::install::{PLUGINS, RAILCTL};
use crate::node_json::{self, Paths};
use crate::place::{self, Place};
use crate::preflight;
use crate::ready::{self, Condition, Grounds, Plan, Steady};
use crate::report::{
    Attachment, Doctor, Listing, Made, Obstacle, Preflight, Refused, Show, Status,
};
use crate::revision::{self, Revision};
use crate::rollout;
use crate::serve::{self, Shared};
use crate::text::{clean, of, say};
use crate::watch::{self, Seen};
use crate::{claims, dranet};

/// A plan is written again after this time even if nothing changed: somebody may have edited the
/// store.
const RESYNC: Duration = Duration::from_secs(600);
/// A plan that was not written is tried again after so many looks, and after this time at most: the
/// pods may have ended, and a disk may have room again.
const AGAIN: u32 = 4;
const AGAIN_AT_MOST: Duration = Duration::from_secs(60);
/// After so many looks without a plan the condition says that there is none, so that an agent that
/// starts changes it only if something is wrong.
const SILENT: u32 = 3;
/// Conditions are written after this time though they are the same.
const HEARTBEAT: Duration = Duration::from_secs(300);
/// The agent has 10 s to end (terminationGracePeriodSeconds).
const LEAVING: Duration = Duration::from_secs(7);
/// A node that is away so long after it took a new node.json or plan is away for another reason.
const BLAMED: Duration = Duration::from_secs(900);
/// Within this time, a pod that was scheduled before the taint came is with the kubelet.
const UNDERWAY: Duration = Duration::from_secs(1);
/// How often the calls of the plugins are read.
const CALLS: Duration = Duration::from_secs(1);
/// Events that wait to be sent.
const WAITING: usize = 256;
/// Pods whose UID is kept.
const PODS: usize = 4096;
/// The most lines of a refusal that a condition has room for.
const LINES: usize = 4;

/// Where the plan of this node comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlanFrom {
    /// The cluster's CIDRPools, with the allocations of nv-ipam's controller.
    Cidrpools,
    /// The fabric file in the ConfigMap's key `fabric.yaml`.
    ConfigMap,
    /// None: the agent does not write the store.
    None,
}

/// Arguments of `rail-agent run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Name of this Node
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node: String,
    /// Namespace of the ConfigMap
    #[arg(
        long,
        value_name = "NAME",
        env = "POD_NAMESPACE",
        default_value = "kube-system"
    )]
    namespace: String,
    /// Name of this pod, for Events and for the lock
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pod: Option<String>,
    /// ConfigMap with a node.json per class of nodes, and the fabric file
    #[arg(long, value_name = "NAME", default_value = "rail-cni")]
    config_map: String,
    /// Label of the Node that names its class: the class C has the key node.C.json
    #[arg(long, value_name = "KEY", default_value = "rail-cni/node-class")]
    class_label: String,
    /// Source of the plan
    #[arg(long, value_enum, value_name = "SOURCE", default_value = "cidrpools")]
    plan_from: PlanFrom,
    /// Namespace of the CIDRPools [default: all namespaces]
    #[arg(long, value_name = "NAME")]
    cidrpools_namespace: Option<String>,
    /// DaemonSet of this pod: once it is deleted or no longer selects the Node, labels and
    /// conditions are removed
    #[arg(long, value_name = "NAME", default_value = "rail-agent")]
    daemon_set: String,
    #[command(flatten)]
    names: api::Names,
    /// Directory of the plugins on the host
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    plugins_dir: PathBuf,
    /// Address of /metrics
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9810", value_parser = socket_address)]
    listen: SocketAddr,
    /// Directory of a Secret with tls.crt, tls.key and token: serve /metrics over TLS to clients
    /// with the token; required unless the address is local
    #[arg(long, value_name = "DIR")]
    metrics_secret: Option<PathBuf>,
    /// Add namespace and name of each pod with a rail to the metrics
    #[arg(long)]
    metrics_pods: bool,
    /// Seconds between inspections of the node
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Seconds between runs of `railctl doctor` while no check fails
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86400))]
    doctor_interval: u64,
    /// Seconds between runs of `railctl cables`, which listens to the leaves for half a minute; 0:
    /// never
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(0..=86400))]
    cables_interval: u64,
    /// Seconds between runs of `railctl preflight`, while no pod of the node has a rail; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=604800))]
    preflight_interval: u64,
    /// Seconds for which the rails must fail before the taint is set, or work before it is removed
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=86400))]
    taint_after: u64,
    /// Seconds between runs of `railctl reap`; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 900, value_parser = clap::value_parser!(u64).range(0..=86400))]
    reap_interval: u64,
    /// Serve the kubelet's device plugin API: offer the devices of the rails as this resource, or
    /// for a pattern such as nvidia.com/rail-{rail} as one resource per rail; empty: no resource
    #[arg(long, value_name = "RESOURCE", default_value = "", value_parser = devices::resource)]
    resource: String,
    /// Be DRANET's profile provider, on the socket dranet/provider.sock in the run directory
    #[arg(long)]
    dranet: bool,
    /// Seconds between checks of the resource claims that hold addresses
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    claim_interval: u64,
}

/// An address and a port. An IPv6 address needs no brackets: Kubernetes gives that of the host
/// without.
fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let split = || {
        let (address, port) = text.rsplit_once(':')?;
        Some(SocketAddr::new(address.parse().ok()?, port.parse().ok()?))
    };
    text.parse()
        .ok()
        .or_else(split)
        .ok_or_else(|| "must be an IP address, a colon and a port".to_owned())
}

/// `rail-agent run`.
pub fn run(args: RunArgs) -> Result<ExitCode> {
    let host = Host::open()?;
    let paths = Paths::of(&host)?;
    let pod = args.pod.as_deref();
    let (path, begun) = match begin(&host, &paths.run_dir, pod) {
        // Nobody but this agent corrects a node.json whose runDir cannot be made.
        Err(error) if paths.run_dir != NodeJson::default().run_dir => {
            say(
                "warn",
                &format!(
                    "the runDir of /etc/rail-cni/node.json cannot be used, so this agent waits for another node.json: {}",
                    of(&error)
                ),
            );
            let path = NodeJson::default().run_dir;
            let begun = begin(&host, &path, pod)?;
            (path, begun)
        }
        begun => (paths.run_dir, begun?),
    };
    let (run_dir, _lock) = match begun {
        (run_dir, Ok(lock)) => (run_dir, lock),
        (_, Err(holder)) => bail!("another rail-agent runs on this node: {holder}; end it first"),
    };
    let alive = Alive::new(&run_dir)?;
    let tail = Tail::new(host.make_dir(&path, 0o700)?)?;
    api::runtime()?.block_on(async {
        if args.dranet {
            dranet::serve(Host::open()?, path, &args.plugins_dir)?;
        }
        let mut agent = Agent::new(args, host, run_dir, alive, tail).await?;
        tokio::select! {
            never = agent.run() => return never,
            stopped = api::stopped() => stopped?,
        }
        say(
            "info",
            "stopped; running pods keep their rails, and pods start as before",
        );
        agent.leave().await;
        Ok(ExitCode::SUCCESS)
    })
}

/// Makes a run directory as the plugins do, and takes the lock in it.
fn begin(host: &Host, path: &Path, pod: Option<&str>) -> Result<(HostDir, Result<File, String>)> {
    let dir = host.make_dir(path, 0o700)?;
    let lock = lock(&dir, pod)?;
    Ok((dir, lock))
}

/// The name of the lock in the run directory.
pub const LOCK: &str = "agent.lock";

/// One agent on a node: two of them would write each other's files. `rail-agent uninstall` counts
/// as one. Returns what the other one wrote if it is not the only one.
pub fn lock(dir: &HostDir, pod: Option<&str>) -> Result<Result<File, String>> {
    let path = dir.at(LOCK);
    let open = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    let mut file = open.with_context(|| format!("cannot open {} on the host", dir.shown(LOCK)))?;
    if let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(error)
                .with_context(|| format!("cannot lock {} on the host", dir.shown(LOCK)));
        }
        return Ok(Err(clean(
            &std::fs::read_to_string(&path).unwrap_or_default(),
        )));
    }
    file.set_len(0)?;
    write!(
        file,
        "process {} of pod {}",
        std::process::id(),
        pod.unwrap_or("-")
    )?;
    Ok(Ok(file))
}

/// An interval that differs from node to node and from time to time, by a tenth: a thousand nodes
/// that start at once do not ask at once for ever.
pub fn jittered(interval: Duration) -> Duration {
    // The keys of each are random, and so is what it makes of nothing.
    let [a, b, c, d, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
    let part = f64::from(u32::from_ne_bytes([a, b, c, d])) / f64::from(u32::MAX);
    interval.mul_f64(0.9 + 0.2 * part)
}

/// A plan for railctl.
struct Source {
    text: Vec<u8>,
    /// The arguments with which railctl lists whose prefixes are whose; it refuses no more than
    /// with the others.
    csv: &'static [&'static str],
    arguments: &'static [&'static str],
    /// The option with which the same command writes nothing.
    dry: &'static str,
}

/// The carrier of a device in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Up,
    Down,
    /// It had none when it was seen first: a link that was just brought up takes a while.
    NotYet,
}

/// The carriers of devices in pods, by container and interface.
type Carriers = HashMap<(String, String), Carrier>;

struct Agent {
    args: RunArgs,
    host: Host,
    /// Where the lock and the calls are.
    run_dir: HostDir,
    alive: Alive,
    client: Client,
    shared: Shared,
    news: mpsc::Sender<News>,
    uids: Uids,
    config_map: Receiver<Seen<ConfigMap>>,
    pools: Option<Receiver<Seen<Arc<str>>>>,
    nodes: Receiver<Seen<Node>>,
    cluster: Option<String>,
    /// The newest copy of the Node: as the watch told it, or as it was after what this agent wrote.
    node: Option<Node>,
    /// Whether the last write of the Node failed, perhaps because that copy is old.
    is_refused: bool,
    /// The ConfigMap of this look: node.json and the plan come from the same one. Empty if there is
    /// none, or if it is another cluster's; `None` while it is not known.
    config: Option<BTreeMap<String, String>>,
    /// What is wrong with the ConfigMap.
    config_error: Option<String>,
    /// Why a new node.json or plan is not for this node yet.
    waits: Option<String>,
    plan: Plan,
    /// Whether the last plan that could be judged names this node, also before this agent began;
    /// `None` if nobody knows.
    is_named: Option<bool>,
    /// How often nothing was known of the plan.
    looks_without_plan: u32,
    /// The input of the last plan, and when it is tried again.
    planned: Option<(Vec<u8>, Instant)>,
    /// Where the last plan that was written has this node.
    place: Option<Place>,
    /// What railctl warned of when it wrote the last plan.
    warned: String,
    doctor: Result<Doctor, String>,
    doctor_due: Instant,
    cables: Heard,
    /// When VFs are made next, where node.json asks for some; `None`: all are as it says.
    vfs_due: Option<Instant>,
    /// What of the rollouts this node has.
    revision: Revision,
    /// When this node took some of them while it was ready.
    took: Option<Instant>,
    /// Which plugin cannot be run, and why.
    broken: Option<String>,
    /// Why the plan keeps new pods away; the store of the node says the same.
    closed: Option<String>,
    /// What the last look found.
    ready: Condition,
    reap_due: Option<Instant>,
    preflight_due: Option<Instant>,
    claims_due: Instant,
    steady: Steady,
    is_steady: Option<bool>,
    /// Whether a PF of node.json was seen.
    has_rails: bool,
    /// The devices of the rails as resources, if they are offered.
    resources: Option<Resources>,
    /// What of the rails must bring the doctor at once.
    outline: Vec<(String, String, u64)>,
    links: Carriers,
    told: HashMap<&'static str, String>,
}

/// The UIDs of pods, which the plugins tell: without it `kubectl describe pod` does not show an
/// Event.
type Uids = std::sync::Arc<std::sync::Mutex<HashMap<String, String>>>;

fn uid_of(uids: &Uids, pod: &str) -> Option<String> {
    uids.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .get(pod)
        .cloned()
}

impl Agent {
    async fn new(
        args: RunArgs,
        host: Host,
        run_dir: HostDir,
        alive: Alive,
        tail: Tail,
    ) -> Result<Agent> {
        let client = api::client().await?;
        let shared = Shared::default();
        shared.with(|metrics| metrics.names_pods = args.metrics_pods);
        serve::serve(args.listen, args.metrics_secret.as_deref(), shared.clone())?;
        let (news, waiting) = mpsc::channel(WAITING);
        let events = Events::new(client.clone(), &args.node, args.pod.as_deref());
        tokio::spawn(send_events(events, waiting, shared.clone()));
        let uids = Uids::default();
        tokio::spawn(read_calls(tail, shared.clone(), news.clone(), uids.clone()));
        let config_map = watch::config_map(&client, &args.namespace, &args.config_map, &shared);
        let pools = (args.plan_from == PlanFrom::Cidrpools)
            .then(|| watch::cidr_pools(&client, args.cidrpools_namespace.as_deref(), &shared));
        let nodes = watch::node(&client, &args.node, &shared);
        let resources = (!args.resource.is_empty()).then(|| {
            Resources::new(
                &args.resource,
                &args.plugins_dir,
                Duration::from_secs(args.taint_after),
            )
        });
        let now = Instant::now();
        let doctor = Err("`railctl doctor` has not run yet".to_owned());
        say(
            "info",
            &format!(
                "rail-agent {} manages {}",
                env!("CARGO_PKG_VERSION"),
                args.node
            ),
        );
        let cables = match args.cables_interval {
            0 => Heard::default(),
            interval => Heard::begin(
                args.plugins_dir.join(RAILCTL),
                Duration::from_secs(interval),
            ),
        };
        Ok(Agent {
            cables,
            // At once: an agent that starts anew before the interval has passed would otherwise
            // never reap.
            reap_due: (args.reap_interval != 0).then_some(now),
            preflight_due: (args.preflight_interval != 0).then_some(now),
            args,
            host,
            run_dir,
            alive,
            client,
            shared,
            news,
            uids,
            config_map,
            pools,
            nodes,
            cluster: None,
            node: None,
            is_refused: false,
            config: None,
            config_error: None,
            waits: Some("the ConfigMap, which may say so, has not been read yet".to_owned()),
            plan: Plan::Unknown,
            is_named: None,
            looks_without_plan: 0,
            planned: None,
            place: None,
            warned: String::new(),
            ready: ready::rails_ready(&doctor),
            doctor,
            doctor_due: now,
            vfs_due: Some(now),
            revision: Revision::default(),
            took: None,
            broken: None,
            closed: None,
            claims_due: now,
            steady: Steady::default(),
            is_steady: None,
            has_rails: false,
            resources,
            outline: Vec::new(),
            links: HashMap::new(),
            told: HashMap::new(),
        })
    }

    /// Takes its word back, if no other agent comes to this node: nobody would know when it is
    /// wrong. Else pods stay away until that one offers the devices.
    async fn leave(&self) {
        let RunArgs {
            node,
            namespace,
            daemon_set,
            pod,
            names,
            ..
        } = &self.args;
        // A service of the host, which is started again by hand.
        if pod.is_none() {
            return;
        }
        let leave = async {
            if api::is_removed(&self.client, namespace, daemon_set, self.node.as_ref()).await? {
                api::forget_with(&self.client, node, names).await?;
                say(
                    "info",
                    "no other agent follows this one: removed the labels and conditions of the Node",
                );
            } else if self.resources.is_some() && self.has_rails && !names.taint.is_empty() {
                // The kubelet counts the devices as unhealthy meanwhile, and fails pods for good
                // that want one.
                api::add_taint(&self.client, node, &names.taint).await?;
                tokio::time::sleep(UNDERWAY).await;
            }
            Ok(())
        };
        let left = tokio::time::timeout(LEAVING, leave).await;
        let left = left.unwrap_or_else(|_| Err(anyhow::anyhow!("the API server did not answer")));
        if let Err(error) = left {
            say("warn", &format!("the Node stays as it is: {}", of(&error)));
        }
    }

    async fn run(&mut self) -> Result<ExitCode> {
        // The kubelet waits for nobody, and the API server may be away.
        self.offer_devices().await;
        let answer = self.nodes.wait_for(|seen| !matches!(seen, Seen::Nothing));
        let _answered = tokio::time::timeout(api::PATIENCE, answer).await.is_ok();
        loop {
            self.look().await;
            let noted = self.alive.now(self.ready.is_true);
            self.tell("alive", noted.err().map(|error| of(&error)));
            self.check_run_dir()?;
            let interval = jittered(Duration::from_secs(self.args.interval));
            if tokio::time::timeout(interval, self.changed()).await.is_ok() {
                // Several objects are often applied together.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// Waits until the cluster says something that this node acts on.
    async fn changed(&mut self) {
        loop {
            let of_pools = async {
                match &mut self.pools {
                    Some(pools) => pools.changed().await,
                    None => std::future::pending().await,
                }
            };
            let done = tokio::select! {
                done = self.config_map.changed() => done.is_ok(),
                done = of_pools => done.is_ok(),
                done = self.nodes.changed() => done.is_ok() && self.has_another_node(),
            };
            if done {
                return;
            }
        }
    }

    /// Whether the watch tells of a change that others made to the Node.
    fn has_another_node(&self) -> bool {
        let seen = self.nodes.borrow();
        match (seen.only(), &self.node) {
            (Some(new), Some(old)) => {
                !api::is_older(new, old) && api::concerns(new) != api::concerns(old)
            }
            (new, old) => new.is_some() != old.is_some(),
        }
    }

    /// All that there is to do, in the order in which a new node needs it.
    async fn look(&mut self) {
        self.read_node().await;
        self.configure().await;
        if self.vfs_due.is_some_and(|due| Instant::now() >= due) {
            self.make_vfs().await;
        }
        self.load_plan().await;
        self.inspect().await;
        self.offer_devices().await;
        if self.reap_due.is_some_and(|due| Instant::now() >= due) {
            self.reap().await;
        }
        if self.args.dranet && Instant::now() >= self.claims_due {
            let told = self.collect_claims().await.err();
            self.tell(
                "claims",
                told.map(|error| format!("addresses of resource claims are kept: {}", of(&error))),
            );
        }
        self.judge().await;
        self.pause().await;
        if self.preflight_due.is_some_and(|due| Instant::now() >= due) && self.is_idle() {
            self.preflight().await;
        }
        self.show().await;
    }

    /// Takes the newest copy of the Node. While the API server is away, that is the last one.
    async fn read_node(&mut self) {
        let watched = self.nodes.borrow_and_update().only().cloned();
        let is_gone = watched.is_none() && matches!(*self.nodes.borrow(), Seen::All(_));
        let gone = is_gone.then(|| format!("there is no Node {} in this cluster", self.args.node));
        self.tell("api", gone);
        let asked = match self.is_refused {
            true => api::node(&self.client, &self.args.node).await.ok(),
            false => None,
        };
        let is_older = |node: &Node| {
            self.node
                .as_ref()
                .is_some_and(|old| api::is_older(node, old))
        };
        // Of an answer, the version does not count: it begins again where the API server's store
        // was restored.
        if let Some(node) = asked.or(watched.filter(|node| !is_older(node))) {
            // What a look without the Node has judged is newer.
            if self.node.is_none() && self.is_named.is_none() {
                self.is_named = api::reason(&node, ready::CURRENT).and_then(ready::was_named);
            }
            self.node = Some(node);
        }
    }

    /// Fails if the plugins have another run directory than this process: they would find no file
    /// for their calls, and another agent no lock. The kubelet starts the container anew.
    fn check_run_dir(&self) -> Result<()> {
        let Ok(Some(paths)) = Paths::known(&self.host) else {
            return Ok(());
        };
        let Ok(dir) = self.host.dir(&paths.run_dir) else {
            return Ok(());
        };
        if dir.is_some_and(|dir| dir.is_same(&self.run_dir)) {
            return Ok(());
        }
        // Where no agent can begin, this one stays, and waits for another node.json.
        if begin(&self.host, &paths.run_dir, self.args.pod.as_deref()).is_err() {
            return Ok(());
        }
        for name in [calls::NAME, alive::NAME, LOCK] {
            self.run_dir.remove(name)?;
        }
        let path = paths.run_dir.display();
        bail!(
            "{path} is now the run directory of this node, or was recreated: rail-agent must restart"
        )
    }

    /// Logs an error when it comes, when it changes and when it goes.
    fn tell(&mut self, about: &'static str, error: Option<String>) {
        match error {
            Some(error) if self.told.get(about) != Some(&error) => {
                say("warn", &error);
                self.told.insert(about, error);
            }
            Some(_) => (),
            None => {
                if self.told.remove(about).is_some() {
                    say("info", &format!("{about}: recovered"));
                }
            }
        }
    }

    fn report(&self, news: News) {
        if self.news.try_send(news).is_err() {
            self.shared.with(|metrics| metrics.events_dropped += 1);
        }
    }

    fn about_node(&self, reason: &'static str, note: &str) {
        self.report(News {
            pod: None,
            is_warning: true,
            reason,
            action: "Plan".to_owned(),
            note: note.to_owned(),
        });
    }

    /// Runs railctl on the host, and returns what it printed as JSON. A command that found
    /// something has another exit status than 0, and JSON all the same.
    async fn ask<T: DeserializeOwned>(&mut self, arguments: &[&str]) -> Result<T> {
        let said = self.railctl(arguments, b"").await?;
        let parsed = serde_json::from_str(&said.stdout).with_context(|| {
            let told = if said.stderr.trim().is_empty() {
                "nothing"
            } else {
                said.stderr.trim()
            };
            format!("`railctl {}` on the host says {told}", arguments[0])
        });
        self.count_failed(RAILCTL, parsed)
    }

    async fn railctl(&self, arguments: &[&str], input: &[u8]) -> Result<Said> {
        let arguments: Vec<&str> = arguments
            .iter()
            .copied()
            .chain(["--output", "json"])
            .collect();
        let program = self.args.plugins_dir.join(RAILCTL);
        self.count_failed(RAILCTL, self.host.run(&program, &arguments, input).await)
    }

    fn count_failed<T>(&self, program: &'static str, done: Result<T>) -> Result<T> {
        done.inspect_err(|_| {
            self.shared
                .with(|metrics| *metrics.host_errors.entry(program).or_default() += 1);
        })
    }

    /// Writes node.json as the ConfigMap has it.
    async fn configure(&mut self) {
        let Seen::All(maps) = self.config_map.borrow_and_update().clone() else {
            return;
        };
        self.config = None;
        let map = maps.into_values().next();
        let waits = map
            .as_ref()
            .and_then(|map| rollout::waits(map, &self.args.node, self.node.as_ref()));
        if waits != self.waits {
            self.planned = None;
            self.waits = waits;
        }
        let Some(data) = map.and_then(|map| map.data) else {
            self.config = Some(BTreeMap::new());
            self.config_error = None;
            let name = format!("{}/{}", self.args.namespace, self.args.config_map);
            let text =
                format!("there is no ConfigMap {name}: node.json of this node stays as it is");
            return self.tell("node.json", Some(text));
        };
        let written = self.write_node_json(&data).await;
        match written {
            Ok(is_new) => {
                if is_new {
                    say("info", "wrote /etc/rail-cni/node.json");
                    self.take();
                    self.doctor_due = Instant::now();
                    self.vfs_due = Some(Instant::now());
                    self.planned = None;
                }
                self.config_error = None;
                self.tell("node.json", None);
            }
            Err(error) => {
                let text = format!(
                    "the ConfigMap {}/{} is refused, and node.json stays as it is: {}",
                    self.args.namespace,
                    self.args.config_map,
                    of(&error)
                );
                if self.config_error.as_ref() != Some(&text) {
                    self.about_node("ConfigRefused", &text);
                }
                self.tell("node.json", Some(text.clone()));
                self.config_error = Some(text);
            }
        }
    }

    /// Notes that something new came to this node.
    fn take(&mut self) {
        self.took = self.ready.is_true.then(Instant::now).or(self.took);
    }

    /// Stops the rollout for the nodes that it has not reached, if this one has not been ready
    /// since it took what is new.
    async fn pause(&mut self) {
        let Some(took) = self.took else { return };
        if took.elapsed() > BLAMED {
            self.took = None;
        } else if self.closed.is_some() || self.is_steady == Some(false) {
            let Seen::All(maps) = self.config_map.borrow().clone() else {
                return;
            };
            let Some(map) = maps.into_values().next().filter(rollout::can_pause) else {
                self.took = None;
                return;
            };
            let done = api::pause(&self.client, &map, &self.args.node).await;
            if done.is_ok() {
                self.took = None;
                self.about_node(
                    "RolloutPaused",
                    &format!("not ready since this node took it: {}", self.ready.message),
                );
            }
            self.tell(
                "rollout",
                done.err()
                    .map(|error| format!("the rollout goes on: {}", of(&error))),
            );
        }
    }

    async fn write_node_json(&mut self, data: &BTreeMap<String, String>) -> Result<bool> {
        if self.cluster.is_none() && data.contains_key("cluster") {
            self.cluster = Some(api::cluster_uid(&self.client).await?);
        }
        self.config = Some(BTreeMap::new());
        node_json::check_cluster(data, self.cluster.as_deref())?;
        self.config = Some(data.clone());
        let Some(node) = &self.node else {
            bail!("the class of this node is not known yet")
        };
        let class = api::label(node, &self.args.class_label);
        let (text, paths) = node_json::render(data, class, &self.args.node)?;
        // A node that has none yet takes the new one.
        if self.waits.is_some() && !node_json::is_missing(&self.host) {
            return Ok(false);
        }
        node_json::check_paths(&self.host, &paths)?;
        let run_dir = paths.run_dir;
        // Neither the plugins nor the agent could begin. A storeDir that cannot be written refuses
        // the plan alone.
        let _begun = begin(&self.host, &run_dir, self.args.pod.as_deref()).with_context(|| {
            format!(
                "its runDir {} cannot be used on this node: leave it out, or name a directory that can be \
                    created",
                run_dir.display()
            )
        })?;
        node_json::write(&self.host, &text)
    }

    /// Makes the VFs that node.json asks for. Those that there are change only on a node that gets
    /// no new pods: the kubelet may have given one to a pod that has not started yet.
    async fn make_vfs(&mut self) {
        self.vfs_due = None;
        if !node_json::asks_for_vfs(&self.host) {
            return self.tell("vfs", None);
        }
        let spec = self.node.as_ref().and_then(|node| node.spec.as_ref());
        let is_cordoned = spec.and_then(|spec| spec.unschedulable) == Some(true);
        let undrained: &[&str] = if is_cordoned { &[] } else { &["--undrained"] };
        let done = self.ask::<Made>(&[&["vfs"], undrained].concat()).await;
        let told = match done {
            Ok(made) => {
                let changed = made.pfs.iter().filter(|pf| pf.state == "changed");
                let changed: Vec<_> = changed.map(|pf| pf.pf.as_str()).collect();
                if !changed.is_empty() {
                    say(
                        "info",
                        &format!("made VFs as node.json asks on {}", changed.join(", ")),
                    );
                    self.doctor_due = Instant::now();
                }
                let problems: Vec<_> = made.pfs.into_iter().filter_map(|pf| pf.problem).collect();
                (!problems.is_empty()).then(|| problems.join("; "))
            }
            Err(error) => Some(of(&error)),
        };
        if let Some(why) = &told {
            let again = AGAIN_AT_MOST.min(Duration::from_secs(self.args.interval) * AGAIN);
            self.vfs_due = Some(Instant::now() + again);
            if self.told.get("vfs") != Some(why) {
                self.about_node("VfsRefused", why);
            }
        }
        self.tell("vfs", told);
    }

    /// The plan; `None` while it is not known.
    fn source(&mut self) -> Option<Result<Source, String>> {
        match self.args.plan_from {
            PlanFrom::None => None,
            PlanFrom::ConfigMap => {
                let text = self.config.as_ref()?.get("fabric.yaml");
                Some(match text {
                    Some(text) => Ok(Source {
                        text: text.clone().into_bytes(),
                        csv: &["plan", "-", "--from", "fabric", "--to", "csv"],
                        arguments: &["plan", "-", "--from", "fabric", "--to", "store"],
                        dry: "--diff",
                    }),
                    None => Err(format!(
                        "there is no ConfigMap {} for this cluster that has a key fabric.yaml",
                        self.args.config_map
                    )),
                })
            }
            PlanFrom::Cidrpools => match &*self.pools.as_mut()?.borrow_and_update() {
                Seen::Nothing | Seen::Unread(_) => None,
                Seen::TooLarge => Some(Err(format!(
                    "the CIDRPools have more than {} MiB of text, so this agent keeps none of them: remove those that are \
                     not of the plan, or limit who writes them; it reads them again within 11 minutes, or when it starts",
                    watch::LARGEST >> 20
                ))),
                Seen::NoSuchKind => Some(Err(
                    "this cluster has no CIDRPools: apply nv-ipam's CRD, or run the agent with --plan-from config-map"
                        .to_owned(),
                )),
                Seen::All(pools) if pools.is_empty() => Some(Err(match &self.args.cidrpools_namespace {
                    Some(name) => {
                        format!("there is no CIDRPool in the namespace {name}, which --cidrpools-namespace names")
                    }
                    None => "there is no CIDRPool in this cluster".to_owned(),
                })),
                Seen::All(pools) => Some(Ok(Source {
                    text: list(pools.values()),
                    csv: &[
                        "plan",
                        "-",
                        "--from",
                        "cidrpool",
                        "--allow",
                        "missing-rail,cluster-networks",
                        "--to",
                        "csv",
                    ],
                    arguments: &["import", "-"],
                    dry: "--dry-run",
                })),
            },
        }
    }

    /// Why the plan was not read since the agent began.
    fn unread(&self) -> Plan {
        let why = match self.args.plan_from {
            PlanFrom::Cidrpools => self
                .pools
                .as_ref()
                .and_then(|pools| pools.borrow().unread()),
            _ => self.config_map.borrow().unread(),
        };
        let plan = |why| {
            Plan::Unread(format!(
                "the cluster's plan has not been read since rail-agent started, and the store stays as it is: {why}"
            ))
        };
        // An answer that tells to ask later is no error for a while.
        let is_silent = self.looks_without_plan >= SILENT;
        let why =
            why.or_else(|| is_silent.then(|| "the API server has not sent it yet".to_owned()));
        why.map_or(Plan::Unknown, plan)
    }

    /// Writes the plan to the store, unless it is there already.
    async fn load_plan(&mut self) {
        let plan = match self.source() {
            None if self.args.plan_from == PlanFrom::None => {
                Plan::Current("rail-agent does not write the store (--plan-from=none)".to_owned())
            }
            None => {
                if ready::is_unknown(&self.plan) {
                    self.looks_without_plan = self.looks_without_plan.saturating_add(1);
                    self.plan = self.unread();
                }
                return;
            }
            Some(Err(why)) => {
                // The plan from before is judged anew when it is back.
                self.planned = None;
                Plan::Refused(format!("{why}; the store stays as it is"))
            }
            Some(Ok(source)) => {
                let is_same = |old: &[u8]| *old == source.text;
                if self
                    .planned
                    .as_ref()
                    .is_some_and(|(old, due)| is_same(old) && Instant::now() < *due)
                {
                    return;
                }
                let plan = self.write_plan(&source).await;
                if let Plan::Current(_) = plan {
                    self.revision.plan = Some(revision::plan(&source.text));
                }
                let again = match plan {
                    Plan::Current(_) => jittered(RESYNC),
                    _ => AGAIN_AT_MOST.min(Duration::from_secs(self.args.interval) * AGAIN),
                };
                self.planned = Some((source.text, Instant::now() + again));
                plan
            }
        };
        let is_new = plan != self.plan;
        match &plan {
            Plan::HeldBack(text) => {
                if is_new {
                    self.about_node("PlanHeldBack", text);
                }
                self.tell("plan", Some(text.clone()));
            }
            Plan::Waits(text) => self.tell("plan", Some(text.clone())),
            Plan::NotNamed(text) | Plan::Refused(text) => {
                if is_new {
                    self.about_node("PlanRefused", text);
                }
                self.tell("plan", Some(text.clone()));
            }
            _ => self.tell("plan", None),
        }
        match plan {
            Plan::NotNamed(_) => self.is_named = Some(false),
            Plan::Current(_) | Plan::HeldBack(_) | Plan::Waits(_) => self.is_named = Some(true),
            _ => (),
        }
        self.plan = plan;
    }

    /// Runs railctl with a plan, so that it writes nothing if `dry` is given.
    async fn plan(&self, source: &Source, dry: Option<&str>) -> Result<Said> {
        let arguments: Vec<&str> = source.arguments.iter().copied().chain(dry).collect();
        self.railctl(&arguments, &source.text).await
    }

    /// What keeps a plan that changes this node's prefixes from being written; `None` if nothing
    /// does. A node that has none, or that the plan does not name, waits for nobody.
    async fn hold(&mut self, source: &Source) -> Option<Plan> {
        let why = self.waits.clone()?;
        let show = match self.ask::<Show>(&["leases"]).await {
            Ok(show) if show.pools.iter().any(|pool| pool.prefix.is_some()) => show,
            Ok(_) => return None,
            Err(error) => return Some(Plan::Refused(of(&error))),
        };
        let dry = self
            .plan(source, Some(source.dry))
            .await
            .ok()
            .filter(|dry| dry.is_success)?;
        let counts = counts(&report(&dry));
        if named_pools(&counts) == 0 || counts.keys().all(|change| change == "same") {
            return None;
        }
        let program = self.args.plugins_dir.join(RAILCTL);
        let taken = match self.host.run(&program, source.csv, &source.text).await {
            Ok(said) if said.is_success => rollout::taken(&said.stdout, &self.args.node, &show),
            Ok(said) => Some(format!(
                "the owner of its prefixes is unknown: {}",
                said.stderr.trim()
            )),
            Err(error) => Some(of(&error)),
        };
        Some(match taken {
            Some(taken) => Plan::HeldBack(format!("in the new plan {taken}, and {why}")),
            None => Plan::Waits(format!(
                "the plan has other prefixes for this node, and {why}"
            )),
        })
    }

    async fn write_plan(&mut self, source: &Source) -> Plan {
        if let Some(plan) = self.hold(source).await {
            return plan;
        }
        let said = match self.plan(source, None).await {
            Ok(said) => said,
            Err(error) => return Plan::Refused(of(&error)),
        };
        if !said.is_success {
            // What could not be written may name this node or not.
            let judged = self
                .plan(source, Some(source.dry))
                .await
                .ok()
                .filter(|dry| dry.is_success);
            let is_named = judged.map(|dry| named_pools(&counts(&report(&dry))) > 0);
            return refusal(&self.args.node, &Refused::of(&said), is_named);
        }
        let mut written = report(&said);
        let counts = counts(&written);
        if counts.keys().any(|change| change != "same") {
            let shown: Vec<_> = counts
                .iter()
                .map(|(change, count)| format!("{count} {change}"))
                .collect();
            say(
                "info",
                &format!("wrote the plan to the store: {}", shown.join(", ")),
            );
            self.take();
            self.doctor_due = Instant::now();
        }
        let pools = named_pools(&counts);
        let warnings: Vec<_> = written["warnings"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let warnings = warnings.join("; ");
        if pools == 0 {
            let store = match counts.is_empty() {
                true => "its store stays as it is",
                false => {
                    "its prefixes were removed from its store, because another node replaces it"
                }
            };
            return not_named(&self.args.node, store, &warnings);
        }
        // Those of the next look are the same.
        if !warnings.is_empty() && self.warned != warnings {
            say("warn", &format!("railctl warns of the plan: {warnings}"));
        }
        self.warned.clone_from(&warnings);
        let place = written["places"][self.args.node.as_str()].take();
        self.place = Some(serde_json::from_value(place).unwrap_or_default());
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        self.shared.with(|metrics| metrics.plan_written = Some(now));
        let more = if warnings.is_empty() {
            warnings
        } else {
            format!("; railctl warns: {warnings}")
        };
        Plan::Current(format!(
            "the store has this node's prefixes in {pools} pools, as planned{more}"
        ))
    }

    /// Reads rails, attachments and leases, and looks whether the plugins are there.
    async fn inspect(&mut self) {
        let node_json = self
            .host
            .read(&Path::new(node_json::DIRECTORY).join(node_json::NAME))
            .ok()
            .flatten();
        self.revision.node_json = node_json.and_then(|text| revision::node_json(&text));
        let broken = self.try_plugins().await.err();
        if broken.is_some() != self.broken.is_some() {
            self.doctor_due = Instant::now();
        }
        self.broken = broken.map(|error| of(&error));
        match self.ask::<Status>(&["status"]).await {
            Ok(status) => {
                self.follow_carriers(&status.attachments);
                self.has_rails |= ready::has_pf(&status);
                let outline = outline(&status);
                if outline != self.outline {
                    // A PF or its VFs came or went: the doctor says what that means.
                    self.doctor_due = Instant::now();
                    self.vfs_due = Some(Instant::now());
                    self.outline = outline;
                }
                self.shared.with(|metrics| metrics.status = Some(status));
                self.tell("status", None);
            }
            Err(error) => {
                self.doctor_due = Instant::now();
                self.shared.with(|metrics| metrics.status = None);
                self.tell("status", Some(of(&error)));
            }
        }
        match self.ask::<Show>(&["leases"]).await {
            Ok(show) => {
                self.shared.with(|metrics| metrics.show = Some(show));
                self.tell("leases", None);
            }
            Err(error) => {
                self.doctor_due = Instant::now();
                self.shared.with(|metrics| metrics.show = None);
                self.tell("leases", Some(of(&error)));
            }
        }
    }

    /// Offers the kubelet the devices that there are now.
    async fn offer_devices(&mut self) {
        if self.resources.is_none() {
            return;
        }
        let listing = self.ask::<Listing>(&["devices"]).await;
        let offered = listing.and_then(|listing| {
            self.resources
                .as_mut()
                .map_or(Ok(()), |resources| resources.offer(listing))
        });
        self.tell("devices", offered.err().map(|error| of(&error)));
    }

    /// Fails if a plugin cannot be run: no pod with rails could start.
    async fn try_plugins(&mut self) -> Result<()> {
        for plugin in PLUGINS {
            let program = self.args.plugins_dir.join(plugin);
            let said = self.count_failed(plugin, self.host.try_out(plugin, &program).await)?;
            self.revision.version = revision::version(&said);
        }
        Ok(())
    }

    /// Tells a pod that a rail has no carrier, or has it again.
    fn follow_carriers(&mut self, attachments: &[Attachment]) {
        let (links, changes) = carriers(&self.links, attachments);
        self.links = links;
        for (attachment, has_carrier) in changes {
            let Some(pod) = &attachment.pod else { continue };
            let rail = attachment
                .rail
                .map_or_else(String::new, |rail| format!(" of rail {rail}"));
            let (reason, what) = if has_carrier {
                ("RailCarrierBack", "has a carrier again")
            } else {
                (
                    "RailCarrierLost",
                    "has no carrier: check the cable and the leaf port",
                )
            };
            self.report(News {
                pod: Some((pod.clone(), uid_of(&self.uids, pod))),
                is_warning: !has_carrier,
                reason,
                action: format!("Watch {}", clean(&attachment.ifname)),
                note: format!("{}{rail} {what}", attachment.ifname),
            });
        }
    }

    /// Restores what lost DELs left behind.
    async fn reap(&mut self) {
        let interval = Duration::from_secs(self.args.reap_interval);
        self.reap_due = Some(Instant::now() + jittered(interval));
        match self.ask::<Value>(&["reap"]).await {
            Ok(report) => {
                let length = |key: &str| report[key].as_array().map_or(0, Vec::len);
                let (returned, left) = (length("givenBack"), length("left"));
                if returned + left > 0 {
                    say(
                        "info",
                        &format!(
                            "reap: {returned} devices of pods that are gone were restored, {left} were not"
                        ),
                    );
                }
                let returned = u64::try_from(returned).unwrap_or(u64::MAX);
                self.shared
                    .with(|metrics| metrics.reaped = metrics.reaped.saturating_add(returned));
                self.tell("reap", None);
            }
            Err(error) => self.tell("reap", Some(of(&error))),
        }
    }

    /// Whether the rails can be tried: pods could start, and nobody has a rail.
    fn is_idle(&self) -> bool {
        self.ready.is_true
            && self.shared.with(|metrics| {
                let (Some(status), Some(show)) = (&metrics.status, &metrics.show) else {
                    return false;
                };
                !status.attachments.iter().any(Attachment::is_alive)
                    && claims::holding(show).is_empty()
            })
    }

    /// Tries each rail as a pod would have it.
    async fn preflight(&mut self) {
        let interval = Duration::from_secs(self.args.preflight_interval);
        let done = self.ask::<Preflight>(&["preflight"]).await;
        let add = |preflight| {
            self.shared
                .with(|metrics| metrics.tested.add(preflight, Timestamp::now()))
        };
        let is_whole = done.map(add);
        // A pod came meanwhile, which may be gone soon.
        let again = if matches!(is_whole, Ok(true)) {
            interval
        } else {
            interval.min(AGAIN_AT_MOST)
        };
        self.preflight_due = Some(Instant::now() + jittered(again));
        let wrong = self.tested().filter(|condition| !condition.is_true);
        let wrong = wrong.map(|condition| format!("preflight, {}", condition.message));
        self.tell(
            "preflight",
            is_whole.err().map(|error| of(&error)).or(wrong),
        );
    }

    fn tested(&self) -> Option<Condition> {
        self.shared.with(|metrics| metrics.tested.condition())
    }

    /// Releases the addresses of resource claims that have ended, which DRANET did not release.
    async fn collect_claims(&mut self) -> Result<()> {
        self.claims_due = Instant::now() + jittered(Duration::from_secs(self.args.claim_interval));
        let show = self.shared.with(|metrics| metrics.show.clone());
        let holding = show.as_ref().map(claims::holding).unwrap_or_default();
        let mut away = Vec::new();
        for (claim, _) in claims::ended(&self.client, &self.args.node, &holding).await? {
            let _alone = dranet::GIVING.write().await;
            // It may have been reserved again since. The kubelet prepares a claim only after that.
            let again =
                claims::ended(&self.client, &self.args.node, std::slice::from_ref(&claim)).await?;
            let Some((_, why)) = again.into_iter().next() else {
                continue;
            };
            let arguments = dranet::release(&claim.uid, &claim.device);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let done = self.ask::<Value>(&arguments).await?;
            let name = claim.name.as_deref().unwrap_or(&claim.uid);
            if done["refused"]
                .as_array()
                .is_some_and(|refused| !refused.is_empty())
            {
                away.push(format!("{} of {name}", claim.device));
            } else {
                say(
                    "info",
                    &format!(
                        "the resource claim {name} has ended ({why}): its address is free again"
                    ),
                );
            }
        }
        if !away.is_empty() {
            bail!(
                "these claims have ended, and pods still have their devices: {}",
                away.join(", ")
            );
        }
        Ok(())
    }

    /// Lets rail-ipam refuse new pods where the plan says so. railctl ends that when it writes a
    /// plan that names the node.
    fn close(&mut self) {
        let show = self.shared.with(|metrics| metrics.show.clone());
        let wanted = ready::closes(&self.plan, self.is_named, show.as_ref()).map(clean);
        let written = self.write_closed(wanted.as_deref());
        self.tell("closed", written.as_ref().err().map(of));
        let is_closed = written.unwrap_or_else(|_| self.closed.clone());
        let closed = wanted.or(is_closed);
        if closed != self.closed {
            self.doctor_due = Instant::now();
            self.closed = closed;
        }
    }

    /// Writes to the store why it is closed, unless it says so. Returns what it says.
    fn write_closed(&self, wanted: Option<&str>) -> Result<Option<String>> {
        let paths = Paths::of(&self.host)?;
        let Some(name) = paths.node.map(|name| closed_name(&name)) else {
            return Ok(None);
        };
        let there = self
            .host
            .read(&paths.store_dir.join(&name))?
            .map(|text| clean(&text));
        match (wanted, self.host.dir(&paths.store_dir)?) {
            (Some(why), Some(dir)) if there.as_deref() != Some(why) => {
                dir.write(&name, format!("{why}\n").as_bytes())?;
                Ok(Some(why.to_owned()))
            }
            _ => Ok(there),
        }
    }

    /// Says whether the node is ready. Asks the doctor, if it is time.
    async fn judge(&mut self) {
        self.close();
        if Instant::now() >= self.doctor_due {
            self.doctor = self
                .ask::<Doctor>(&["doctor"])
                .await
                .map_err(|error| of(&error));
            let is_ready = self.doctor.as_ref().is_ok_and(|doctor| doctor.ready);
            // A node that is not ready is looked at each time: somebody waits for it.
            let again = if is_ready {
                self.args.doctor_interval
            } else {
                self.args.interval
            };
            self.doctor_due = Instant::now() + jittered(Duration::from_secs(again));
        }
        let condition = match node_json::is_missing(&self.host) {
            true => {
                let why = self
                    .told
                    .get("node.json")
                    .map_or("the API server did not answer yet", String::as_str);
                let RunArgs {
                    class_label,
                    config_map,
                    namespace,
                    ..
                } = &self.args;
                ready::without_node_json(&format!(
                    "{why}; label the node with its class ({class_label}=CLASS), and give the ConfigMap \
                     {namespace}/{config_map} the key node.CLASS.json; without the label it is node.json"
                ))
            }
            false => match (&self.broken, &self.closed) {
                (Some(why), _) => ready::without_plugins(why),
                (None, Some(why)) => ready::closed_by_plan(why),
                (None, None) => ready::rails_ready(&self.doctor),
            },
        };
        // What the doctor finds is nearer to the cause.
        let refused = self
            .shared
            .with(|metrics| metrics.refusals.standing(Instant::now()));
        let refused = refused.filter(|_| condition.is_true);
        // A plan says at once that it closes the node, and at once that it does not. Refused pods
        // bring no taint: without others, nobody would find out that the cause is gone.
        if self.closed.is_none() {
            let patience = Duration::from_secs(self.args.taint_after);
            self.is_steady = self
                .steady
                .look(condition.is_true, Instant::now(), patience);
        }
        let condition = refused
            .map_or(condition, |what| ready::refusing(&what))
            .with(self.cables.wrong());
        self.ready = condition.clone();
        if !condition.is_true {
            self.tell(
                "ready",
                Some(format!(
                    "pods with rails cannot start: {}",
                    condition.message
                )),
            );
        } else {
            self.tell("ready", None);
        }
        let doctor = self.doctor.as_ref().ok().cloned();
        self.shared.with(|metrics| {
            metrics.doctor = doctor;
            metrics.cables = self.cables.cables();
            metrics.ready = Some(condition);
        });
    }

    /// Writes labels, taint and conditions of the Node, where they differ.
    async fn show(&mut self) {
        let plan = match &self.config_error {
            Some(error) => Plan::Refused(error.clone()),
            None => self.plan.clone(),
        };
        self.shared.with(|metrics| {
            metrics.plan = Some(plan.clone());
            metrics.revision = self.revision.clone();
        });
        let current = ready::plan_current(&plan, self.is_named);
        let conditions = [Some(self.ready.clone()), current, self.tested()];
        let conditions: Vec<_> = conditions.into_iter().flatten().collect();
        let version = |agent: &Agent| agent.node.as_ref().and_then(api::version);
        let before = version(self);
        let written = self.write_node(&conditions).await;
        self.is_refused = written.is_err();
        // Where there was nothing to write, nothing was asked.
        if self.is_refused || version(self) != before {
            self.shared
                .with(|metrics| metrics.api_up = Some(written.is_ok()));
        }
        match written {
            Ok(()) => self.tell("node", None),
            Err(error) => self.tell(
                "node",
                Some(format!(
                    "cannot write the Node {}: {}",
                    self.args.node,
                    of(&error)
                )),
            ),
        }
    }

    /// The changes of conditions that make the Node as it should be.
    fn condition_changes(&self, node: &Node, conditions: &[Condition]) -> Vec<Value> {
        let missing = api::missing(node, conditions, Timestamp::now(), HEARTBEAT);
        let mut changes: Vec<_> = missing.iter().map(|condition| json!(condition)).collect();
        // Nobody keeps it up any more.
        if self.args.preflight_interval == 0 && api::reason(node, preflight::KIND).is_some() {
            changes.push(api::without(preflight::KIND));
        }
        changes
    }

    async fn write_node(&mut self, conditions: &[Condition]) -> Result<()> {
        let Some(node) = &self.node else {
            bail!("the API server did not answer yet")
        };
        let names = &self.args.names;
        let is_ready = self.ready.is_true;
        let show = self.shared.with(|metrics| metrics.show.clone());
        let mut labels = match &show {
            Some(show) => place::labels(
                show,
                self.place.as_ref(),
                &api::own_labels(node),
                &names.tier_label,
            ),
            // Nobody knows the plan just now.
            None => api::own_labels(node),
        };
        labels.extend(self.revision.labels(&api::own_labels(node)));
        labels.retain(|key, _| !api::is_foreign(node, key));
        let may_open = ready::may_open(&self.plan, self.is_named, show.as_ref());
        if !names.ready_label.is_empty() {
            // An agent that begins while there is no plan that it could judge takes no node away
            // from pods.
            let is_unjudged = ready::is_unknown(&self.plan) || self.is_named.is_none();
            let is_open = is_unjudged && api::label(node, &names.ready_label) == Some("true");
            labels.insert(
                names.ready_label.clone(),
                (is_ready && (may_open || is_open)).to_string(),
            );
        }
        let taint = match names.taint.as_str() {
            "" => ready::Taint::Keep,
            key => {
                let has_rails = api::had_taint(node, key) || self.has_rails;
                let (is_closed, steady) = (self.closed.is_some(), self.is_steady);
                let grounds = Grounds {
                    is_closed,
                    may_open,
                    is_ready,
                    steady,
                    has_rails,
                };
                ready::taint(api::has_taint(node, key), grounds)
            }
        };
        // First the condition, so that whoever sees the label finds the reason.
        let changes = self.condition_changes(node, conditions);
        let (client, name) = (&self.client, &self.args.node);
        if !changes.is_empty() {
            self.node = Some(api::patch_conditions(client, name, &json!(changes)).await?);
        }
        // Each in a request of its own: what refuses the one does not keep the other.
        let labelled = match self
            .node
            .as_ref()
            .and_then(|node| api::label_change(node, &labels))
        {
            Some(change) => api::patch(client, name, &change)
                .await
                .map(|node| self.node = Some(node)),
            None => Ok(()),
        };
        // With the version from before the other writes, it would be refused.
        if let Some(change) = self
            .node
            .as_ref()
            .and_then(|node| api::taint_change(node, taint, &names.taint))
        {
            self.node = Some(api::patch(client, name, &change).await?);
            match taint {
                ready::Taint::Remove => say(
                    "info",
                    &format!("the rails are ready: removed the taint {}", names.taint),
                ),
                ready::Taint::Add => say(
                    "warn",
                    &format!(
                        "new pods must stay away ({}): set the taint {}",
                        self.ready.reason, names.taint
                    ),
                ),
                ready::Taint::Keep => (),
            }
        }
        labelled
    }
}

/// The CIDRPools as a list for railctl.
fn list<'a>(pools: impl Iterator<Item = &'a Arc<str>>) -> Vec<u8> {
    let items: Vec<&str> = pools.map(|text| &**text).collect();
    format!(
        r#"{{"apiVersion": "v1", "kind": "List", "items": [{}]}}"#,
        items.join(",")
    )
    .into_bytes()
}

fn report(said: &Said) -> Value {
    serde_json::from_str(&said.stdout).unwrap_or_default()
}

/// How many of this node's pools a plan changes, and in which way.
fn counts(report: &Value) -> BTreeMap<String, u64> {
    serde_json::from_value(report["counts"].clone()).unwrap_or_default()
}

/// In how many pools the plan has a prefix for this node.
fn named_pools(counts: &BTreeMap<String, u64>) -> u64 {
    counts
        .iter()
        .filter(|(change, _)| *change != "removed")
        .map(|(_, count)| count)
        .sum()
}

/// A plan without this node removes nothing from its store, so that a mistake in the plan ends no
/// pod; only one that names the node in its place does. But the fabric may have its prefixes on the
/// cable of another node by now.
fn not_named(node: &str, store: &str, said: &str) -> Plan {
    let said = if said.is_empty() {
        String::new()
    } else {
        format!("; railctl says: {said}")
    };
    Plan::NotNamed(format!(
        "the plan of the cluster does not name this node {node}, and {store}: name it in the plan, or uninstall rail-cni \
         from it, because the plan may give its prefixes to other nodes{said}"
    ))
}

/// What it means that railctl refused a plan that names this node, or does not. Nobody knows that
/// of one that it refuses to compare, too.
fn refusal(node: &str, refused: &Refused, is_named: Option<bool>) -> Plan {
    let texts = |obstacles: &[Obstacle]| {
        obstacles
            .iter()
            .map(|one| one.text.clone())
            .collect::<Vec<_>>()
    };
    let holders = texts(&refused.leases).join("; ");
    let lines = refused.message.lines().map(|line| line.trim().to_owned());
    let text = lines
        .chain(texts(&refused.taken))
        .take(LINES)
        .collect::<Vec<_>>()
        .join("; ");
    match (is_named, refused.leases.is_empty()) {
        (Some(true), false) => Plan::HeldBack(format!(
            "the new plan waits until these pods have ended: {holders}"
        )),
        (Some(false), false) => not_named(
            node,
            "its prefixes stay in its store until the pods that have them end",
            &holders,
        ),
        (Some(false), true) => not_named(node, "its store stays as it is", &text),
        _ => Plan::Refused(format!(
            "the plan is refused, and the store stays as it is: {text}"
        )),
    }
}

/// What of the rails makes another verdict likely.
fn outline(status: &Status) -> Vec<(String, String, u64)> {
    let of_rail =
        |rail: &crate::report::Rail| (rail.pf.name.clone(), rail.pf.link.clone(), rail.vfs.enabled);
    status.rails.iter().map(of_rail).collect()
}

/// The carrier of each device in a living pod, and those that pods must know of.
fn carriers<'a>(
    before: &Carriers,
    attachments: &'a [Attachment],
) -> (Carriers, Vec<(&'a Attachment, bool)>) {
    let (mut links, mut changes) = (Carriers::new(), Vec::new());
    for one in attachments.iter().filter(|one| one.state == "live") {
        let Some(link) = &one.link else { continue };
        let key = (one.container.clone(), one.ifname.clone());
        let now = match (before.get(&key), link == "up") {
            (_, true) => Carrier::Up,
            (None, false) => Carrier::NotYet,
            (Some(_), false) => Carrier::Down,
        };
        match (before.get(&key), now) {
            (Some(Carrier::Down), Carrier::Up) => changes.push((one, true)),
            (Some(Carrier::Up | Carrier::NotYet), Carrier::Down) => changes.push((one, false)),
            _ => (),
        }
        links.insert(key, now);
    }
    (links, changes)
}

/// What to tell a pod about a call.
fn news_of(call: &Call) -> Option<News> {
    let pod = call.pod.as_ref()?;
    let mut what = call.network.clone().map_or_else(
        || call.plugin.clone(),
        |network| format!("network {network}"),
    );
    if let Some(rail) = call.rail {
        what = format!("rail {rail}, {what}");
    }
    if let Some(interface) = &call.interface {
        what = format!("{what}, interface {interface}");
    }
    // rail-cni reports what rail-ipam refused as its own error, with the same text.
    let (reason, is_warning, note) = match (call.verb.as_str(), call.code) {
        _ if call.plugin != "rail-cni" => return None,
        (_, 0) if !call.restored.is_empty() => ("RailHealed", false, call.restored.join("; ")),
        (_, 0) => return None,
        ("ADD", _) => (
            "RailRefused",
            true,
            call.message.clone().unwrap_or_default(),
        ),
        ("CHECK", _) => (
            "RailDiffers",
            true,
            call.message.clone().unwrap_or_default(),
        ),
        ("DEL", _) => (
            "RailNotReturned",
            true,
            call.message.clone().unwrap_or_default(),
        ),
        _ => return None,
    };
    Some(News {
        pod: Some((pod.clone(), call.pod_uid.clone())),
        is_warning,
        reason,
        action: clean(&format!(
            "{} {}",
            call.verb,
            call.interface.as_deref().unwrap_or("-")
        )),
        note: format!("{what}: {note}"),
    })
}

/// Reads the calls of the plugins for as long as the agent runs.
async fn read_calls(mut tail: Tail, shared: Shared, news: mpsc::Sender<News>, uids: Uids) {
    let mut told = None;
    loop {
        match tail.read() {
            Ok(calls) => {
                for call in &calls {
                    shared.with(|metrics| {
                        metrics.count(call);
                        metrics.refusals.count(call, Instant::now());
                    });
                    if let (Some(pod), Some(uid)) = (&call.pod, &call.pod_uid) {
                        let mut uids = uids
                            .lock()
                            .unwrap_or_else(std::sync::PoisonError::into_inner);
                        if uids.len() >= PODS {
                            uids.clear();
                        }
                        uids.insert(pod.clone(), uid.clone());
                    }
                    if news_of(call).is_some_and(|one| news.try_send(one).is_err()) {
                        shared.with(|metrics| metrics.events_dropped += 1);
                    }
                }
                told = None;
            }
            Err(error) => {
                let text = of(&error);
                if told.as_ref() != Some(&text) {
                    say("warn", &text);
                    told = Some(text);
                }
            }
        }
        tokio::time::sleep(CALLS).await;
    }
}

async fn send_events(mut events: Events, mut waiting: mpsc::Receiver<News>, shared: Shared) {
    while let Some(news) = waiting.recv().await {
        if !events.send(&news).await {
            shared.with(|metrics| metrics.events_dropped += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_hurts_pods_is_held_back_and_names_them() {
        let said = |stdout: Value, stderr: &str| {
            Refused::of(&Said {
                is_success: false,
                stdout: stdout.to_string(),
                stderr: stderr.to_owned(),
            })
        };
        let refusal = |refused: &Refused, is_named| refusal("n", refused, is_named);
        let held = said(
            json!({"refused": {"reason": "held", "message": "no", "leases": [{"pod": "a/b", "text": "a/b has it"}]}}),
            "",
        );
        let Plan::HeldBack(text) = refusal(&held, Some(true)) else {
            panic!()
        };
        assert!(text.ends_with(": a/b has it"), "{text}");
        let wrong = said(
            json!({"refused": {"reason": "invalid", "message": "2 faults:\n  x\n  y"}}),
            "",
        );
        let Plan::Refused(text) = refusal(&wrong, None) else {
            panic!()
        };
        assert!(text.ends_with(": 2 faults:; x; y"), "{text}");
        let taken = json!({"refused": {"reason": "taken", "message": "no", "taken": [{"text": "b has it"}]}});
        let Plan::Refused(text) = refusal(&said(taken, ""), Some(true)) else {
            panic!()
        };
        assert!(text.ends_with(": no; b has it"), "{text}");
        // Another process has the store: no pod does.
        let locked = said(
            json!({"refused": {"reason": "held", "message": "locked"}}),
            "",
        );
        assert!(matches!(refusal(&locked, Some(true)), Plan::Refused(_)));
        let Plan::Refused(text) = refusal(&said(Value::Null, "killed"), None) else {
            panic!()
        };
        assert!(text.ends_with(": killed"), "{text}");
        // What does not name the node is no plan that waits for its pods, and what nobody could
        // compare is none either.
        for (refused, told) in [(&held, "a/b has it"), (&wrong, "x; y")] {
            let Plan::NotNamed(text) = refusal(refused, Some(false)) else {
                panic!()
            };
            assert!(text.contains("node n") && text.ends_with(told), "{text}");
            assert!(matches!(refusal(refused, None), Plan::Refused(_)));
        }
        assert!(matches!(refusal(&wrong, Some(true)), Plan::Refused(_)));
    }

    #[test]
    fn a_carrier_that_changes_under_a_pod_or_never_comes_is_told_once() {
        let one = |state: &str, link: &str| Attachment {
            state: state.to_owned(),
            link: Some(link.to_owned()),
            container: "c".to_owned(),
            ifname: "net1".to_owned(),
            ..Attachment::default()
        };
        let step = |before: &Carriers, attachment: Attachment| {
            let list = [attachment];
            let (links, changes) = carriers(before, &list);
            (
                links,
                changes.iter().map(|(_, is_up)| *is_up).collect::<Vec<_>>(),
            )
        };
        let (links, changes) = step(&Carriers::new(), one("live", "no-carrier"));
        assert!(changes.is_empty());
        let (soon, changes) = step(&links, one("live", "up"));
        assert!(changes.is_empty());
        let (_, changes) = step(&soon, one("live", "no-carrier"));
        assert_eq!(changes, [false]);
        // It starts on a rail without a cable.
        let (links, changes) = step(&links, one("live", "no-carrier"));
        assert_eq!(changes, [false]);
        let (links, changes) = step(&links, one("live", "no-carrier"));
        assert!(changes.is_empty());
        let (links, changes) = step(&links, one("live", "up"));
        assert_eq!(changes, [true]);
        let (links, changes) = step(&links, one("live", "down"));
        assert_eq!(changes, [false]);
        let (links, changes) = step(&links, one("live", "down"));
        assert!(changes.is_empty());
        let (links, changes) = step(&links, one("dead", "up"));
        assert!(changes.is_empty() && links.is_empty());
    }

    #[test]
    fn a_pod_is_told_of_refused_and_healed_rails_alone() {
        let call = |verb: &str, code, restored: &[&str]| Call {
            plugin: "rail-cni".to_owned(),
            verb: verb.to_owned(),
            code,
            network: Some("rail-3".to_owned()),
            rail: Some(3),
            interface: Some("net4".to_owned()),
            pod: Some("ai/trainer-0".to_owned()),
            pod_uid: Some("uid".to_owned()),
            message: (code != 0).then(|| "no device".to_owned()),
            restored: restored.iter().map(|one| (*one).to_owned()).collect(),
            ..Call::default()
        };
        let refused = news_of(&call("ADD", 11, &[])).unwrap();
        assert_eq!((refused.reason, refused.is_warning), ("RailRefused", true));
        assert_eq!(
            refused.note,
            "rail 3, network rail-3, interface net4: no device"
        );
        assert_eq!(
            refused.pod,
            Some(("ai/trainer-0".to_owned(), Some("uid".to_owned())))
        );
        let healed = news_of(&call(
            "ADD",
            0,
            &["ens1f0v0 was left behind by pod x: restoring it"],
        ))
        .unwrap();
        assert_eq!((healed.reason, healed.is_warning), ("RailHealed", false));
        assert!(news_of(&call("ADD", 0, &[])).is_none());
        assert!(news_of(&call("DEL", 0, &[])).is_none());
        assert!(news_of(&call("STATUS", 50, &[])).is_none());
        assert!(
            news_of(&Call {
                plugin: "rail-ipam".to_owned(),
                ..call("ADD", 11, &[])
            })
            .is_none()
        );
        assert!(
            news_of(&Call {
                pod: None,
                ..call("ADD", 11, &[])
            })
            .is_none()
        );
    }

    #[test]
    fn the_hosts_address_of_either_family_can_be_listened_at() {
        for (text, shown) in [
            ("192.0.2.1:9810", "192.0.2.1:9810"),
            ("2001:db8::1:9810", "[2001:db8::1]:9810"),
            ("[::]:9810", "[::]:9810"),
        ] {
            assert_eq!(socket_address(text).unwrap().to_string(), shown);
        }
        assert!(socket_address("9810").is_err() && socket_address("localhost:1").is_err());
    }

    #[test]
    fn intervals_differ_by_a_tenth_in_both_directions() {
        let second = Duration::from_secs(1);
        let all: Vec<_> = (0..1000).map(|_| jittered(second).as_secs_f64()).collect();
        assert!(
            all.iter().all(|one| (0.899..=1.101).contains(one)),
            "{all:?}"
        );
        // That no one of 1000 is in a tenth of the range happens once in 10^45 runs.
        for tenth in 0..10 {
            let from = 0.9 + 0.02 * f64::from(tenth);
            assert!(
                all.iter().any(|one| (from..from + 0.02).contains(one)),
                "{from}: {all:?}"
            );
        }
    }
}
