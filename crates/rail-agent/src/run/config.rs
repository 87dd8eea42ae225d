//! node.json from the ConfigMap, the VFs that it asks for, and the rollout.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::state::Agent;
use crate::api;
use crate::lock;
use crate::node::{self, CLASS_LABEL};
use crate::node_json;
use crate::report::Made;
use crate::rollout;
use crate::text::{error_text, log};
use crate::watch::Seen;

/// A node that fails later than this after a new node.json or plan fails for another reason.
const BLAME_PERIOD: Duration = Duration::from_secs(900);

impl Agent {
    /// Writes node.json from the ConfigMap.
    pub(super) async fn apply_config(&mut self) {
        let Seen::All(maps) = self.config_map.borrow_and_update().clone() else {
            return;
        };
        self.config = None;
        let map = maps.into_values().next();
        let waits = map
            .as_ref()
            .and_then(|map| rollout::waits(map, &self.args.node, self.node.as_ref()));
        if waits != self.rollout_hold {
            self.last_input = None;
            self.rollout_hold = waits;
        }
        let Some(data) = map.and_then(|map| map.data) else {
            self.config = Some(BTreeMap::new());
            self.config_error = None;
            let name = format!("{}/{}", self.args.namespace, self.args.config_map);
            let text =
                format!("there is no ConfigMap {name}: node.json of this node stays as it is");
            return self.log_change("node.json", Some(text));
        };
        let written = self.write_node_json(&data).await;
        match written {
            Ok(is_new) => {
                if is_new {
                    log("info", "wrote /etc/rail-cni/node.json");
                    self.note_change();
                    self.doctor_due = Instant::now();
                    self.vfs_due = Some(Instant::now());
                    self.last_input = None;
                }
                self.config_error = None;
                self.log_change("node.json", None);
            }
            Err(error) => {
                let text = format!(
                    "the ConfigMap {}/{} is refused, and node.json stays as it is: {}",
                    self.args.namespace,
                    self.args.config_map,
                    error_text(&error)
                );
                if self.config_error.as_ref() != Some(&text) {
                    self.report_on_node("ConfigRefused", &text);
                }
                self.log_change("node.json", Some(text.clone()));
                self.config_error = Some(text);
            }
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
        let class = node::label(node, CLASS_LABEL);
        let (text, paths) = node_json::render(data, class, &self.args.node)?;
        // A node that has none yet takes the new one.
        if self.rollout_hold.is_some() && !node_json::is_missing(&self.host) {
            return Ok(false);
        }
        node_json::check_paths(&self.host, &paths)?;
        let run_dir = paths.run_dir;
        // Neither the plugins nor the agent could begin. A storeDir that cannot be written refuses
        // the plan alone.
        let _begun = lock::acquire(&self.host, &run_dir, self.pod_name.as_deref()).with_context(|| {
            format!(
                "its runDir {} cannot be used on this node: leave it out, or name a directory that can be \
                    created",
                run_dir.display()
            )
        })?;
        node_json::write(&self.host, &text)
    }

    /// Creates the VFs that node.json asks for. Present ones change only on a cordoned node: the
    /// kubelet may have assigned one to a pod that has not started yet.
    pub(super) async fn make_vfs(&mut self) {
        self.vfs_due = None;
        if !node_json::asks_for_vfs(&self.host) {
            return self.log_change("vfs", None);
        }
        let spec = self.node.as_ref().and_then(|node| node.spec.as_ref());
        let is_cordoned = spec.and_then(|spec| spec.unschedulable) == Some(true);
        let undrained: &[&str] = if is_cordoned { &[] } else { &["--undrained"] };
        let done = self
            .railctl_json::<Made>(&[&["vfs"], undrained].concat())
            .await;
        let problem = match done {
            Ok(made) => {
                let changed = made.pfs.iter().filter(|pf| pf.state == "changed");
                let changed: Vec<_> = changed.map(|pf| pf.pf.as_str()).collect();
                if !changed.is_empty() {
                    log(
                        "info",
                        &format!("made VFs as node.json asks on {}", changed.join(", ")),
                    );
                    self.doctor_due = Instant::now();
                }
                let problems: Vec<_> = made.pfs.into_iter().filter_map(|pf| pf.problem).collect();
                (!problems.is_empty()).then(|| problems.join("; "))
            }
            Err(error) => Some(error_text(&error)),
        };
        if let Some(why) = &problem {
            self.vfs_due = Some(Instant::now() + self.retry_interval());
            if self.logged.get("vfs") != Some(why) {
                self.report_on_node("VfsRefused", why);
            }
        }
        self.log_change("vfs", problem);
    }

    /// Pauses the rollout for the remaining nodes if it made this one not ready.
    pub(super) async fn pause_rollout(&mut self) {
        let Some(changed_at) = self.changed_at else {
            return;
        };
        if changed_at.elapsed() > BLAME_PERIOD {
            self.forget_rollout();
            return;
        }
        // New VFs take the links down for a moment.
        let patience = Duration::from_secs(self.args.taint_after);
        let is_away = self.steady.is_away_for(patience, Instant::now());
        if self.closed_reason.is_none() && !is_away {
            return;
        }
        let Seen::All(maps) = self.config_map.borrow().clone() else {
            return;
        };
        let Some(map) = maps.into_values().next().filter(rollout::can_pause) else {
            self.forget_rollout();
            return;
        };
        match rollout::pause(&self.client, &map, &self.args.node).await {
            Ok(()) => {
                self.forget_rollout();
                self.report_on_node(
                    "RolloutPaused",
                    &format!("not ready since this node took it: {}", self.ready.message),
                );
            }
            Err(error) => self.log_change(
                "rollout",
                Some(format!("the rollout goes on: {}", error_text(&error))),
            ),
        }
    }

    /// The rollout has no part in what comes from now on. The next one's fault is logged again.
    fn forget_rollout(&mut self) {
        self.changed_at = None;
        self.logged.remove("rollout");
    }
}
