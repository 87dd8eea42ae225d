//! `rail-agent run`: keeps node.json and the store of this node, and shows its rails to the
//! cluster.
//!
//! Pods start without this process and without the API server: it writes files that the plugins
//! read, and reads theirs. Begin with `Agent::reconcile`, whose steps are in these files:
//!
//! | file | content |
//! | --- | --- |
//! | `args` | the arguments |
//! | `state` | the agent's knowledge; running railctl, logging and Events |
//! | `look` | reads the Node, rails, attachments, leases and devices |
//! | `config` | writes node.json, creates VFs, pauses a rollout |
//! | `plan` | writes the plan to the store, or says why not |
//! | `upkeep` | reaps, tests rails, releases addresses of ended claims |
//! | `judge` | decides whether pods with rails can start |
//! | `show` | writes labels, conditions and taint of the Node |
//! | `calls`, `carriers` | calls of the plugins and lost carriers as Events |
//! | `flaps` | rails whose carrier comes and goes |
//! | `losses` | rails that running pods lost to the host |
//! | `taps` | rails whose frames another namespace takes |
//! | `wake` | carriers that change between two looks |

mod args;
mod calls;
mod carriers;
mod config;
mod flaps;
mod judge;
mod look;
mod losses;
mod plan;
mod show;
mod state;
mod taps;
mod upkeep;
mod wake;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rail_cni::node::Node as NodeJson;

use crate::alive::{self, Alive};
use crate::api;
use crate::calls::Tail;
use crate::dranet;
use crate::host::Host;
use crate::lock;
use crate::node;
use crate::node_json::Paths;
use crate::runtime::{jittered, runtime, stopped};
use crate::text::{error_text, log};
use crate::watch::Seen;
pub use args::RunArgs;
use state::Agent;

/// Less than terminationGracePeriodSeconds, which is 10 s.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(7);
/// Time for the kubelet to receive pods that were scheduled before the taint.
const SCHEDULING_DELAY: Duration = Duration::from_secs(1);

/// `rail-agent run`.
pub fn run(args: RunArgs) -> Result<ExitCode> {
    let host = Host::open()?;
    let paths = Paths::of(&host)?;
    let pod_name = std::env::var("POD_NAME")
        .ok()
        .filter(|name| !name.is_empty());
    let pod = pod_name.as_deref();
    let (path, begun) = match lock::acquire(&host, &paths.run_dir, pod) {
        // Only this agent can correct a node.json whose runDir cannot be created.
        Err(error) if paths.run_dir != NodeJson::default().run_dir => {
            log(
                "warn",
                &format!(
                    "the runDir of /etc/rail-cni/node.json cannot be used, so this agent waits for another node.json: {}",
                    error_text(&error)
                ),
            );
            let path = NodeJson::default().run_dir;
            let begun = lock::acquire(&host, &path, pod)?;
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
    runtime()?.block_on(async {
        if args.dranet {
            dranet::serve(Host::open()?, path, &args.plugins_dir)?;
        }
        let mut agent = Agent::new(args, pod_name, host, run_dir, alive, tail).await?;
        tokio::select! {
            never = agent.run() => return never,
            stopped = stopped() => stopped?,
        }
        log(
            "info",
            "stopped; running pods keep their rails, and pods start as before",
        );
        agent.leave().await;
        Ok(ExitCode::SUCCESS)
    })
}

impl Agent {
    async fn run(&mut self) -> Result<ExitCode> {
        // Before the API server is asked, which may be away.
        self.offer_devices().await;
        let answer = self.nodes.wait_for(|seen| !matches!(seen, Seen::Nothing));
        let _answered = tokio::time::timeout(api::REQUEST_TIMEOUT, answer)
            .await
            .is_ok();
        loop {
            self.reconcile().await;
            let noted = self.alive.now(self.is_serving());
            self.log_change("alive", noted.err().map(|error| error_text(&error)));
            self.check_run_dir()?;
            let interval = jittered(Duration::from_secs(self.args.interval));
            if tokio::time::timeout(interval, self.changed()).await.is_ok() {
                // Several objects are often applied together.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// One pass over everything, in the order that a new node needs.
    async fn reconcile(&mut self) {
        self.read_node().await;
        self.apply_config().await;
        if self.vfs_due.is_some_and(|due| Instant::now() >= due) {
            self.make_vfs().await;
        }
        self.apply_plan().await;
        self.inspect().await;
        self.offer_devices().await;
        if Instant::now() >= self.reap_due {
            self.reap().await;
        }
        if self.args.dranet && Instant::now() >= self.claims_due {
            let told = self.collect_claims().await.err();
            self.log_change(
                "claims",
                told.map(|error| {
                    format!(
                        "addresses of resource claims are kept: {}",
                        error_text(&error)
                    )
                }),
            );
        }
        self.judge().await;
        self.pause_rollout().await;
        if self.preflight_due.is_some_and(|due| Instant::now() >= due) && self.is_idle() {
            self.preflight().await;
        }
        self.publish().await;
    }

    /// Waits for a change in the cluster that concerns this node, or of a rail's carrier.
    async fn changed(&mut self) {
        let pfs = self.shared.with(|metrics| {
            let rails = metrics.status.iter().flat_map(|status| &status.rails);
            let netdevs = rails.filter_map(|rail| rail.pf.netdev.clone());
            netdevs.collect::<Vec<_>>()
        });
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
                () = self.wake.of(&pfs) => true,
            };
            if done {
                return;
            }
        }
    }

    /// Whether the watch has a change of the Node by somebody else.
    fn has_another_node(&self) -> bool {
        let seen = self.nodes.borrow();
        match (seen.only(), &self.node) {
            (Some(new), Some(old)) => {
                !node::is_older(new, old) && node::concerns(new) != node::concerns(old)
            }
            (new, old) => new.is_some() != old.is_some(),
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
        // With a run directory in which no agent can begin, this one stays, and waits for another
        // node.json.
        if lock::acquire(&self.host, &paths.run_dir, self.pod_name.as_deref()).is_err() {
            return Ok(());
        }
        for name in [crate::calls::NAME, alive::NAME, lock::LOCK] {
            self.run_dir.remove(name)?;
        }
        let path = paths.run_dir.display();
        bail!(
            "{path} is now the run directory of this node, or was recreated: rail-agent must restart"
        )
    }

    /// Removes labels and conditions of the Node if no agent will replace this one; they would go
    /// stale unnoticed. Otherwise sets the taint until the next agent offers the devices.
    async fn leave(&self) {
        let RunArgs {
            node,
            namespace,
            daemon_set,
            names,
            ..
        } = &self.args;
        // A service of the host, which is started again by hand.
        if self.pod_name.is_none() {
            return;
        }
        let leave = async {
            if node::is_removed(&self.client, namespace, daemon_set, self.node.as_ref()).await? {
                node::forget_with(&self.client, node).await?;
                log(
                    "info",
                    "no agent will take over this node: removed the labels and conditions of the Node",
                );
            } else if self.resources.is_some() && self.has_rails && !names.taint.is_empty() {
                // The kubelet counts the devices as unhealthy meanwhile, and fails pods for good
                // that want one.
                node::add_taint(&self.client, node, &names.taint).await?;
                tokio::time::sleep(SCHEDULING_DELAY).await;
            }
            Ok(())
        };
        let left = tokio::time::timeout(LEAVE_TIMEOUT, leave).await;
        let left = left.unwrap_or_else(|_| Err(anyhow::anyhow!("the API server did not answer")));
        if let Err(error) = left {
            log(
                "warn",
                &format!("the Node stays as it is: {}", error_text(&error)),
            );
        }
    }
}
