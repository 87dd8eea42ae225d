//! Labels, taint and conditions of the Node.

use std::time::Duration;

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::state::Agent;
use crate::node::{self, READY_LABEL};
use crate::place;
use crate::preflight;
use crate::ready::{self, Condition, Grounds, Plan};
use crate::text::{error_text, log};

/// Time until unchanged conditions are written again.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(300);

impl Agent {
    /// Writes labels, taint and conditions of the Node, where they differ.
    pub(super) async fn publish(&mut self) {
        let plan = match &self.config_error {
            Some(error) => Plan::Refused(error.clone()),
            None => self.plan.clone(),
        };
        self.shared.with(|metrics| {
            metrics.plan = Some(plan.clone());
            metrics.revision = self.revision.clone();
        });
        let current = ready::plan_current(&plan, self.is_named);
        let conditions = [
            Some(self.ready.clone()),
            current,
            self.preflight_condition(),
        ];
        let conditions: Vec<_> = conditions.into_iter().flatten().collect();
        let version = |agent: &Agent| agent.node.as_ref().and_then(node::version);
        let before = version(self);
        let written = self.write_node(&conditions).await;
        self.is_refused = written.is_err();
        // Without a write, the API server was not contacted.
        if self.is_refused || version(self) != before {
            self.shared
                .with(|metrics| metrics.api_up = Some(written.is_ok()));
        }
        match written {
            Ok(()) => self.log_change("node", None),
            Err(error) => self.log_change(
                "node",
                Some(format!(
                    "cannot write the Node {}: {}",
                    self.args.node,
                    error_text(&error)
                )),
            ),
        }
    }

    /// The conditions to write or to remove.
    fn condition_changes(&self, node: &Node, conditions: &[Condition]) -> Vec<Value> {
        let missing = node::missing(node, conditions, Timestamp::now(), HEARTBEAT_INTERVAL);
        let mut changes: Vec<_> = missing.iter().map(|condition| json!(condition)).collect();
        // Of an agent with tests on a schedule.
        if self.args.preflight_interval == 0 && node::reason(node, preflight::KIND).is_some() {
            changes.push(node::without(preflight::KIND));
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
                &node::own_labels(node),
                &names.tier_label,
            ),
            // The plan is unknown at present.
            None => node::own_labels(node),
        };
        labels.extend(self.revision.labels(&node::own_labels(node)));
        labels.retain(|key, _| !node::is_foreign(node, key));
        let may_open = ready::may_open(&self.plan, self.is_named, show.as_ref());
        // A new agent without a plan to judge keeps an open node open.
        let is_unjudged = ready::is_unknown(&self.plan) || self.is_named.is_none();
        let is_open = is_unjudged && node::label(node, READY_LABEL) == Some("true");
        let is_labelled_ready = is_ready && (may_open || is_open);
        labels.insert(READY_LABEL.to_owned(), is_labelled_ready.to_string());
        let taint = match names.taint.as_str() {
            "" => ready::Taint::Keep,
            key => {
                let has_rails = node::had_taint(node, key) || self.has_rails;
                let grounds = Grounds {
                    is_closed: self.closed_reason.is_some(),
                    may_open,
                    is_ready,
                    steady: self.steady.verdict(),
                    has_rails,
                };
                ready::taint(node::has_taint(node, key), grounds)
            }
        };
        // First the condition: it has the reason of the label.
        let changes = self.condition_changes(node, conditions);
        let (client, name) = (&self.client, &self.args.node);
        if !changes.is_empty() {
            self.node = Some(node::patch_conditions(client, name, &json!(changes)).await?);
        }
        // Separate requests, because one may be refused.
        let labelled = match self
            .node
            .as_ref()
            .and_then(|node| node::label_change(node, &labels))
        {
            Some(change) => node::patch(client, name, &change)
                .await
                .map(|node| self.node = Some(node)),
            None => Ok(()),
        };
        // After the other writes, because it needs the present version.
        if let Some(change) = self
            .node
            .as_ref()
            .and_then(|node| node::taint_change(node, taint, &names.taint))
        {
            self.node = Some(node::patch(client, name, &change).await?);
            match taint {
                ready::Taint::Remove => log(
                    "info",
                    &format!("the rails are ready: removed the taint {}", names.taint),
                ),
                ready::Taint::Add => log(
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
