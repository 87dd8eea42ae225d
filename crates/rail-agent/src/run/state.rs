//! The agent's knowledge of its node and of the cluster, and its runs of railctl and reports.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::Client;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::sync::watch::Receiver;

use super::args::{PlanFrom, RunArgs};
use super::calls::{Uids, read_calls, send_events};
use super::carriers::Carriers;
use super::flaps::Flaps;
use super::losses;
use super::taps;
use super::wake::Wake;
use crate::alive::Alive;
use crate::api;
use crate::cables::Heard;
use crate::calls::Tail;
use crate::devices::Resources;
use crate::events::{Events, Notice};
use crate::host::{Host, HostDir, ProgramOutput, RAILCTL};
use crate::place::Place;
use crate::ready::{self, Condition, Plan, Steady};
use crate::report::Doctor;
use crate::revision::Revision;
use crate::serve::{self, Shared};
use crate::text::log;
use crate::watch::{self, Seen};

/// Passes between tries to write a plan, to create VFs, or to attach lost rails again, which pods or
/// a full disk hold up.
const RETRY_LOOKS: u32 = 4;
/// The longest time between such tries.
pub(super) const RETRY_MAX_INTERVAL: Duration = Duration::from_secs(60);
/// Length of the queue of Events.
const MAX_QUEUED_EVENTS: usize = 256;

/// The state of `rail-agent run`.
pub(super) struct Agent {
    pub(super) args: RunArgs,
    /// The name of this pod; `None` as a service of the host.
    pub(super) pod_name: Option<String>,
    pub(super) host: Host,
    /// Has the lock and the file of calls.
    pub(super) run_dir: HostDir,
    pub(super) alive: Alive,
    pub(super) client: Client,
    pub(super) shared: Shared,
    pub(super) notices: mpsc::Sender<Notice>,
    pub(super) uids: Uids,
    pub(super) config_map: Receiver<Seen<ConfigMap>>,
    pub(super) pools: Option<Receiver<Seen<Arc<str>>>>,
    pub(super) nodes: Receiver<Seen<Node>>,
    pub(super) cluster: Option<String>,
    /// The newest copy of the Node, from the watch or from the answer to a write.
    pub(super) node: Option<Node>,
    /// Whether the last write of the Node failed, perhaps because of an old copy.
    pub(super) is_refused: bool,
    /// The ConfigMap of this pass: node.json and the plan come from the same one. Empty if there is
    /// none, or if it is another cluster's; `None` while it is not known.
    pub(super) config: Option<BTreeMap<String, String>>,
    /// The fault of the ConfigMap.
    pub(super) config_error: Option<String>,
    /// Why a new node.json or plan is not for this node yet.
    pub(super) rollout_hold: Option<String>,
    pub(super) plan: Plan,
    /// Whether the last plan that could be judged names this node, also before this agent began;
    /// `None` if unknown.
    pub(super) is_named: Option<bool>,
    /// Passes without a known plan.
    pub(super) looks_without_plan: u32,
    /// The input of the last plan, and the time of its next try.
    pub(super) last_input: Option<(Vec<u8>, Instant)>,
    /// The place of this node in the last written plan.
    pub(super) place: Option<Place>,
    /// railctl's warnings about the last written plan.
    pub(super) plan_warnings: String,
    pub(super) doctor: Result<Doctor, String>,
    pub(super) doctor_due: Instant,
    pub(super) cables: Heard,
    /// The next creation of VFs; `None` while all are as node.json asks.
    pub(super) vfs_due: Option<Instant>,
    /// The versions of node.json, plan and plugins on this node.
    pub(super) revision: Revision,
    /// The time of the last change of node.json or plan on a ready node.
    pub(super) changed_at: Option<Instant>,
    /// Why a plugin cannot be run.
    pub(super) plugin_error: Option<String>,
    /// Why the plan keeps new pods away; the store of the node says the same.
    pub(super) closed_reason: Option<String>,
    /// The result of the last pass.
    pub(super) ready: Condition,
    pub(super) reap_due: Instant,
    pub(super) preflight_due: Option<Instant>,
    pub(super) claims_due: Instant,
    pub(super) steady: Steady,
    /// Whether a PF of node.json was seen.
    pub(super) has_rails: bool,
    /// The devices of the rails as resources, if they are offered.
    pub(super) resources: Option<Resources>,
    /// Rail state whose change runs the doctor at once.
    pub(super) outline: Vec<(String, String, u64)>,
    pub(super) carriers: Carriers,
    pub(super) wake: Wake,
    pub(super) flaps: Flaps,
    pub(super) taps: taps::Seen,
    /// The attachments at the last look: which rails were lost.
    pub(super) losses: losses::Seen,
    pub(super) logged: HashMap<&'static str, String>,
}

impl Agent {
    pub(super) async fn new(
        args: RunArgs,
        pod_name: Option<String>,
        host: Host,
        run_dir: HostDir,
        alive: Alive,
        tail: Tail,
    ) -> Result<Agent> {
        let client = api::client().await?;
        let shared = Shared::default();
        shared.with(|metrics| metrics.names_pods = args.metrics_pods);
        serve::serve(args.listen, args.metrics_secret.as_deref(), shared.clone())?;
        let (notices, waiting) = mpsc::channel(MAX_QUEUED_EVENTS);
        let events = Events::new(client.clone(), &args.node, pod_name.as_deref());
        tokio::spawn(send_events(events, waiting, shared.clone()));
        let uids = Uids::default();
        tokio::spawn(read_calls(
            tail,
            shared.clone(),
            notices.clone(),
            uids.clone(),
        ));
        let config_map = watch::config_map(&client, &args.namespace, &args.config_map, &shared);
        let pools = (args.plan_from == PlanFrom::Cidrpools)
            .then(|| watch::cidr_pools(&client, args.cidrpools_namespace.as_deref(), &shared));
        let nodes = watch::node(&client, &args.node, &shared);
        let resources = (!args.resource.is_empty()).then(|| {
            Resources::new(
                &args.resource,
                &args.plugins_dir,
                &args.kubelet_root_dir,
                Duration::from_secs(args.taint_after),
            )
        });
        let now = Instant::now();
        let doctor = Err("`railctl doctor` has not run yet".to_owned());
        log(
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
            reap_due: now,
            preflight_due: (args.preflight_interval != 0).then_some(now),
            args,
            pod_name,
            host,
            run_dir,
            alive,
            client,
            shared,
            notices,
            uids,
            config_map,
            pools,
            nodes,
            cluster: None,
            node: None,
            is_refused: false,
            config: None,
            config_error: None,
            rollout_hold: Some("the ConfigMap, which may say so, has not been read yet".to_owned()),
            plan: Plan::Unknown,
            is_named: None,
            looks_without_plan: 0,
            last_input: None,
            place: None,
            plan_warnings: String::new(),
            ready: ready::rails_ready(&doctor),
            doctor,
            doctor_due: now,
            vfs_due: Some(now),
            revision: Revision::default(),
            changed_at: None,
            plugin_error: None,
            closed_reason: None,
            claims_due: now,
            steady: Steady::default(),
            has_rails: false,
            resources,
            outline: Vec::new(),
            carriers: HashMap::new(),
            wake: Wake::begin(),
            flaps: Flaps::default(),
            taps: taps::Seen::new(),
            losses: losses::Seen::new(),
            logged: HashMap::new(),
        })
    }

    /// Logs an error when it appears, changes or disappears.
    pub(super) fn log_change(&mut self, about: &'static str, error: Option<String>) {
        match error {
            Some(error) if self.logged.get(about) != Some(&error) => {
                log("warn", &error);
                self.logged.insert(about, error);
            }
            Some(_) => (),
            None => {
                if self.logged.remove(about).is_some() {
                    log("info", &format!("{about}: recovered"));
                }
            }
        }
    }

    /// Time until the next try of what pods or a full disk hold up.
    pub(super) fn retry_interval(&self) -> Duration {
        RETRY_MAX_INTERVAL.min(Duration::from_secs(self.args.interval) * RETRY_LOOKS)
    }

    /// Queues an Event.
    pub(super) fn report(&self, notice: Notice) {
        if self.notices.try_send(notice).is_err() {
            self.shared.with(|metrics| metrics.events_dropped += 1);
        }
    }

    /// Queues a warning about this node.
    pub(super) fn report_on_node(&self, reason: &'static str, note: &str) {
        self.report(Notice {
            pod: None,
            is_warning: true,
            reason,
            action: "Plan".to_owned(),
            note: note.to_owned(),
        });
    }

    /// Runs railctl on the host, and parses its JSON, whatever the exit status: railctl prints it
    /// with findings, too.
    pub(super) async fn railctl_json<T: DeserializeOwned>(
        &mut self,
        arguments: &[&str],
    ) -> Result<T> {
        let output = self.run_railctl(arguments, b"").await?;
        let parsed = serde_json::from_str(&output.stdout).with_context(|| {
            let message = if output.stderr.trim().is_empty() {
                "nothing"
            } else {
                output.stderr.trim()
            };
            format!("`railctl {}` on the host says {message}", arguments[0])
        });
        self.count_failed(RAILCTL, parsed)
    }

    /// Runs railctl on the host with `--output json`.
    pub(super) async fn run_railctl(
        &self,
        arguments: &[&str],
        input: &[u8],
    ) -> Result<ProgramOutput> {
        let arguments: Vec<&str> = arguments
            .iter()
            .copied()
            .chain(["--output", "json"])
            .collect();
        let program = self.args.plugins_dir.join(RAILCTL);
        self.count_failed(RAILCTL, self.host.run(&program, &arguments, input).await)
    }

    /// Counts a failed program in the metrics.
    pub(super) fn count_failed<T>(&self, program: &'static str, done: Result<T>) -> Result<T> {
        done.inspect_err(|_| {
            self.shared
                .with(|metrics| *metrics.host_errors.entry(program).or_default() += 1);
        })
    }

    /// Notes a new node.json or plan on this node.
    pub(super) fn note_change(&mut self) {
        self.changed_at = self.ready.is_true.then(Instant::now).or(self.changed_at);
    }

    pub(super) fn preflight_condition(&self) -> Option<Condition> {
        self.shared.with(|metrics| metrics.tested.condition())
    }
}
