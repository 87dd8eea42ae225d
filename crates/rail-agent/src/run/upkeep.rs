//! Work on a schedule: leftovers of lost DELs, tests of the rails, ended claims.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::state::{Agent, RETRY_MAX_INTERVAL};
use crate::claims;
use crate::dranet;
use crate::report::{Attachment, Preflight};
use crate::runtime::jittered;
use crate::text::{error_text, log};

/// Time between runs of `railctl reap` while no rail is lost.
const REAP_INTERVAL: Duration = Duration::from_secs(900);

impl Agent {
    /// Restores the leftovers of lost DELs, and attaches the rails again that running pods lost.
    pub(super) async fn reap(&mut self) {
        let reattaches = !self.args.no_reattach;
        let is_any_lost = self.losses.values().any(Attachment::is_lost);
        let interval = if reattaches && is_any_lost {
            self.retry_interval()
        } else {
            REAP_INTERVAL
        };
        self.reap_due = Instant::now() + jittered(interval);
        let arguments: &[&str] = if reattaches {
            &["reap", "--reattach"]
        } else {
            &["reap"]
        };
        match self.railctl_json::<Value>(arguments).await {
            Ok(report) => {
                let length = |key: &str| report[key].as_array().map_or(0, Vec::len);
                let (returned, left) = (length("givenBack"), length("left"));
                if returned + left > 0 {
                    log(
                        "info",
                        &format!(
                            "reap: {returned} devices of pods that are gone were restored, {left} were not"
                        ),
                    );
                }
                let reattached = length("reattached");
                if reattached > 0 {
                    let what = "devices that running pods had lost were attached again";
                    log("info", &format!("reap: {reattached} {what}"));
                }
                let stays_lost = reasons(&report["notReattached"]);
                self.log_change("reattach", stays_lost);
                let returned = u64::try_from(returned).unwrap_or(u64::MAX);
                let reattached = u64::try_from(reattached).unwrap_or(u64::MAX);
                self.shared.with(|metrics| {
                    metrics.reaped = metrics.reaped.saturating_add(returned);
                    metrics.reattached = metrics.reattached.saturating_add(reattached);
                });
                self.log_change("reap", None);
            }
            Err(error) => self.log_change("reap", Some(error_text(&error))),
        }
    }

    /// Whether the rails can be tested: the node is ready, and no pod has a rail.
    pub(super) fn is_idle(&self) -> bool {
        self.ready.is_true
            && self.shared.with(|metrics| {
                let (Some(status), Some(show)) = (&metrics.status, &metrics.show) else {
                    return false;
                };
                !status.attachments.iter().any(Attachment::is_alive)
                    && claims::holding(show).is_empty()
            })
    }

    /// Tests each rail as a pod would use it.
    pub(super) async fn preflight(&mut self) {
        let interval = Duration::from_secs(self.args.preflight_interval);
        let done = self.railctl_json::<Preflight>(&["preflight"]).await;
        let add = |preflight| {
            self.shared
                .with(|metrics| metrics.tested.add(preflight, Timestamp::now()))
        };
        let is_whole = done.map(add);
        // A pod has a rail, perhaps not for long.
        let again = if matches!(is_whole, Ok(true)) {
            interval
        } else {
            interval.min(RETRY_MAX_INTERVAL)
        };
        self.preflight_due = Some(Instant::now() + jittered(again));
        let wrong = self
            .preflight_condition()
            .filter(|condition| !condition.is_true);
        let wrong = wrong.map(|condition| format!("preflight, {}", condition.message));
        self.log_change(
            "preflight",
            is_whole.err().map(|error| error_text(&error)).or(wrong),
        );
    }

    /// Releases addresses of ended resource claims that DRANET did not release.
    pub(super) async fn collect_claims(&mut self) -> Result<()> {
        self.claims_due = Instant::now() + jittered(Duration::from_secs(self.args.claim_interval));
        let show = self.shared.with(|metrics| metrics.show.clone());
        let holding = show.as_ref().map(claims::holding).unwrap_or_default();
        let mut away = Vec::new();
        for (claim, _) in claims::ended(&self.client, &self.args.node, &holding).await? {
            let _alone = dranet::ADDRESS_LOCK.write().await;
            // It may have been reserved again since. The kubelet prepares a claim only after that.
            let again =
                claims::ended(&self.client, &self.args.node, std::slice::from_ref(&claim)).await?;
            let Some((_, why)) = again.into_iter().next() else {
                continue;
            };
            let arguments = dranet::release_arguments(&claim.uid, &claim.device);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let done = self.railctl_json::<Value>(&arguments).await?;
            let name = claim.name.as_deref().unwrap_or(&claim.uid);
            if done["refused"]
                .as_array()
                .is_some_and(|refused| !refused.is_empty())
            {
                away.push(format!("{} of {name}", claim.device));
            } else {
                log(
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
}

/// The errors of a list of devices; `None` without any.
fn reasons(devices: &Value) -> Option<String> {
    let devices = devices.as_array()?;
    let mut reasons = Vec::new();
    for device in devices {
        if let (Some(id), Some(error)) = (device["device"].as_str(), device["error"].as_str()) {
            reasons.push(format!("{id}: {error}"));
        }
    }
    let text = format!(
        "running pods lost rails that cannot be attached again: {}",
        reasons.join("; ")
    );
    (!reasons.is_empty()).then_some(text)
}
