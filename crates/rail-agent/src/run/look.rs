//! The state of the node: its Node object, plugins, rails, attachments, leases and devices.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;

use super::calls::uid_of;
use super::carriers::carriers;
use super::losses;
use super::state::Agent;
use super::taps;
use crate::events::Notice;
use crate::host::PLUGINS;
use crate::node;
use crate::node_json;
use crate::ready;
use crate::report::{Attachment, Listing, Rail, Show, Status};
use crate::revision;
use crate::text::{clean, error_text};
use crate::watch::Seen;

impl Agent {
    /// Updates the copy of the Node from the watch. While the API server is away, the last one stays.
    pub(super) async fn read_node(&mut self) {
        let watched = self.nodes.borrow_and_update().only().cloned();
        let is_gone = watched.is_none() && matches!(*self.nodes.borrow(), Seen::All(_));
        let gone = is_gone.then(|| format!("there is no Node {} in this cluster", self.args.node));
        self.log_change("api", gone);
        let asked = match self.is_refused {
            true => node::node(&self.client, &self.args.node).await.ok(),
            false => None,
        };
        let is_older = |node: &Node| {
            self.node
                .as_ref()
                .is_some_and(|old| node::is_older(node, old))
        };
        // Of an answer, the version does not count: it begins again where the API server's store
        // was restored.
        if let Some(node) = asked.or(watched.filter(|node| !is_older(node))) {
            // The judgement of a look without the Node is newer.
            if self.node.is_none() && self.is_named.is_none() {
                self.is_named = node::reason(&node, ready::CURRENT).and_then(ready::was_named);
            }
            self.node = Some(node);
        }
    }

    /// Reads rails, attachments and leases, and runs the plugins once.
    pub(super) async fn inspect(&mut self) {
        let node_json = self
            .host
            .read(&Path::new(node_json::DIRECTORY).join(node_json::NAME))
            .ok()
            .flatten();
        self.revision.node_json = node_json.and_then(|text| revision::node_json(&text));
        let broken = self.try_plugins().await.err();
        if broken.is_some() != self.plugin_error.is_some() {
            self.doctor_due = Instant::now();
        }
        self.plugin_error = broken.map(|error| error_text(&error));
        match self.railctl_json::<Status>(&["status"]).await {
            Ok(status) => {
                self.follow_carriers(&status.attachments);
                self.follow_taps(&status.attachments);
                self.follow_losses(&status.attachments);
                self.follow_flaps(&status.rails);
                self.has_rails |= ready::has_pf(&status);
                let outline = outline(&status);
                if outline != self.outline {
                    // A PF or its VFs came or went: the doctor says what that means.
                    self.doctor_due = Instant::now();
                    self.vfs_due = Some(Instant::now());
                    self.outline = outline;
                }
                self.shared.with(|metrics| metrics.status = Some(status));
                self.log_change("status", None);
            }
            Err(error) => {
                self.doctor_due = Instant::now();
                self.shared.with(|metrics| metrics.status = None);
                self.log_change("status", Some(error_text(&error)));
            }
        }
        match self.railctl_json::<Show>(&["leases"]).await {
            Ok(show) => {
                self.shared.with(|metrics| metrics.show = Some(show));
                self.log_change("leases", None);
            }
            Err(error) => {
                self.doctor_due = Instant::now();
                self.shared.with(|metrics| metrics.show = None);
                self.log_change("leases", Some(error_text(&error)));
            }
        }
    }

    /// Offers the present devices to the kubelet.
    pub(super) async fn offer_devices(&mut self) {
        if self.resources.is_none() {
            return;
        }
        let listing = self.railctl_json::<Listing>(&["devices"]).await;
        let offered = listing.and_then(|listing| {
            self.resources
                .as_mut()
                .map_or(Ok(()), |resources| resources.offer(listing))
        });
        self.log_change("devices", offered.err().map(|error| error_text(&error)));
    }

    /// Fails if a plugin cannot be run, without which no pod with rails starts.
    async fn try_plugins(&mut self) -> Result<()> {
        for plugin in PLUGINS {
            let program = self.args.plugins_dir.join(plugin);
            let version = self.count_failed(plugin, self.host.try_out(plugin, &program).await)?;
            self.revision.version = revision::version(&version);
        }
        Ok(())
    }

    /// Reports rails that begin to flap as Events of the Node.
    fn follow_flaps(&mut self, rails: &[Rail]) {
        for begun in self.flaps.look(rails, Instant::now()) {
            let note = format!(
                "{} lost the carrier {} times within half an hour: check cable, transceiver and leaf port",
                begun.title, begun.losses
            );
            self.report_on_node(ready::FLAPPING, &note);
        }
        let flapping = self.flaps.pfs();
        self.shared.with(|metrics| metrics.flapping = flapping);
    }

    /// Reports rails that are tapped, and rails whose tap was found only now, as Events of the Node and
    /// of both pods.
    fn follow_taps(&mut self, attachments: &[Attachment]) {
        let seen = std::mem::take(&mut self.taps);
        self.report_all(taps::notices(&seen, attachments));
        self.taps = taps::seen(attachments);
    }

    /// Reports rails that running pods lost, or have again, as Events of the Node and of the pods.
    fn follow_losses(&mut self, attachments: &[Attachment]) {
        let before = std::mem::take(&mut self.losses);
        self.report_all(losses::notices(&before, attachments));
        if losses::has_new_loss(&before, attachments) {
            self.reap_due = Instant::now();
        }
        self.losses = losses::seen(attachments);
    }

    /// Reports Events that lack the UIDs of their pods.
    fn report_all(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            self.report(Notice {
                pod: notice.pod.map(|(pod, _)| {
                    let uid = uid_of(&self.uids, &pod);
                    (pod, uid)
                }),
                ..notice
            });
        }
    }

    /// Reports lost and restored carriers as Events of the pods.
    fn follow_carriers(&mut self, attachments: &[Attachment]) {
        let (links, changes) = carriers(&self.carriers, attachments);
        self.carriers = links;
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
            self.report(Notice {
                pod: Some((pod.clone(), uid_of(&self.uids, pod))),
                is_warning: !has_carrier,
                reason,
                action: format!("Watch {}", clean(&attachment.ifname)),
                note: format!("{}{rail} {what}", attachment.ifname),
            });
        }
    }
}

/// Rail state whose change may change the verdict.
fn outline(status: &Status) -> Vec<(String, String, u64)> {
    let of_rail =
        |rail: &crate::report::Rail| (rail.pf.name.clone(), rail.pf.link.clone(), rail.vfs.enabled);
    status.rails.iter().map(of_rail).collect()
}
