//! Whether pods with rails can start on this node.

use std::time::{Duration, Instant};

use anyhow::Result;
use rail_cni::pool::store::closed_name;

use super::args::RunArgs;
use super::state::Agent;
use crate::node::CLASS_LABEL;
use crate::node_json::{self, Paths};
use crate::ready;
use crate::report::Doctor;
use crate::runtime::jittered;
use crate::text::{clean, error_text};

/// Time between runs of the doctor on a ready node.
const DOCTOR_INTERVAL: Duration = Duration::from_secs(300);

impl Agent {
    /// Decides whether the node is ready. Runs the doctor when it is due.
    pub(super) async fn judge(&mut self) {
        self.close_store();
        if Instant::now() >= self.doctor_due {
            self.doctor = self
                .railctl_json::<Doctor>(&["doctor"])
                .await
                .map_err(|error| error_text(&error));
            let is_ready = self.doctor.as_ref().is_ok_and(|doctor| doctor.ready);
            // A node that is not ready is checked in each pass.
            let again = if is_ready {
                DOCTOR_INTERVAL
            } else {
                Duration::from_secs(self.args.interval)
            };
            self.doctor_due = Instant::now() + jittered(again);
        }
        let condition = match node_json::is_missing(&self.host) {
            true => {
                let why = self
                    .logged
                    .get("node.json")
                    .map_or("the API server did not answer yet", String::as_str);
                let RunArgs {
                    config_map,
                    namespace,
                    ..
                } = &self.args;
                ready::without_node_json(&format!(
                    "{why}; label the node with its class ({CLASS_LABEL}=CLASS), and give the ConfigMap \
                     {namespace}/{config_map} the key node.CLASS.json; without the label it is node.json"
                ))
            }
            false => match (&self.plugin_error, &self.closed_reason) {
                (Some(why), _) => ready::without_plugins(why),
                (None, Some(why)) => ready::closed_by_plan(why),
                (None, None) => ready::rails_ready(&self.doctor).or_flapping(self.flaps.message()),
            },
        };
        // The findings of the doctor are closer to the cause.
        let refused = self
            .shared
            .with(|metrics| metrics.refusals.standing(Instant::now()));
        let refused = refused.filter(|_| condition.is_true);
        // A plan closes and opens the node at once. Refused pods set no taint: only new pods can
        // show that the cause is gone.
        if self.closed_reason.is_none() {
            let patience = Duration::from_secs(self.args.taint_after);
            self.steady
                .look(condition.is_true, Instant::now(), patience);
        }
        let condition = refused
            .map_or(condition, |what| ready::refusing(&what))
            .with(self.cables.wrong());
        self.ready = condition.clone();
        if !condition.is_true {
            self.log_change(
                "ready",
                Some(format!(
                    "pods with rails cannot start: {}",
                    condition.message
                )),
            );
        } else {
            self.log_change("ready", None);
        }
        let doctor = self.doctor.as_ref().ok().cloned();
        self.shared.with(|metrics| {
            metrics.doctor = doctor;
            metrics.cables = self.cables.cables();
            metrics.ready = Some(condition);
        });
    }

    /// Whether the agent has what it needs to serve the node: its executables run, and node.json can
    /// be read. The rails do not count: one dead rail would hold up each rollout of the DaemonSet.
    pub(super) fn is_serving(&self) -> bool {
        let has_executables = self.plugin_error.is_none() && self.doctor.is_ok();
        has_executables && matches!(Paths::known(&self.host), Ok(Some(_)))
    }

    /// Lets rail-ipam refuse new pods where the plan says so. railctl ends that when it writes a
    /// plan that names the node.
    fn close_store(&mut self) {
        let show = self.shared.with(|metrics| metrics.show.clone());
        let wanted = ready::closes(&self.plan, self.is_named, show.as_ref()).map(clean);
        let written = self.write_closed(wanted.as_deref());
        self.log_change("closed", written.as_ref().err().map(error_text));
        let is_closed = written.unwrap_or_else(|_| self.closed_reason.clone());
        let closed = wanted.or(is_closed);
        if closed != self.closed_reason {
            self.doctor_due = Instant::now();
            self.closed_reason = closed;
        }
    }

    /// Writes to the store why it is closed. Returns the reason in the store.
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
}
