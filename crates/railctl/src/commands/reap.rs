//! `railctl reap`: cleans up after lost DELs, and attaches lost devices again.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::inventory::Inventory;
use super::left;
use super::rebuild::{self, Lost};
use crate::output::{self, Output};
use rail_cni::attach::attachments::{
    Attachment, Attachments, Ended, Owner, PendingAttachment, Reattachment, State,
};
use rail_cni::ipam::emptied::Found;
use rail_cni::node::Node;
use rail_netlink::Socket;

/// Arguments of `railctl reap`.
#[derive(Debug, Args)]
pub struct ReapArgs {
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
    /// Retry pending steps once more, then drop them; also drop unreadable records that WHICH names
    #[arg(long)]
    forget: bool,
    /// First recreate missing records and leases for what pods have, after /run/rail-cni was
    /// emptied
    #[arg(long)]
    rebuild: bool,
    /// Also attach devices again that running pods have lost to the host, where a driver started
    /// anew
    #[arg(long)]
    reattach: bool,
    /// Also reap attachments whose pod cannot be checked; be sure it is gone
    #[arg(long, requires = "which")]
    force: bool,
    /// Only these attachments
    #[arg(value_name = "WHICH")]
    which: Vec<String>,
}

impl ReapArgs {
    fn means(&self, record: &Attachment) -> bool {
        self.which.is_empty() || self.which.iter().any(|which| is_called(record, which))
    }
}

/// Is `which` a name of the attachment?
fn is_called(record: &Attachment, which: &String) -> bool {
    let owner = &record.owner;
    *which == owner.container_id || Some(which) == owner.pod.as_ref() || *which == owner.device.id
}

/// The outcome for each attachment.
#[derive(Default)]
struct Reaped {
    /// New records of devices that had none.
    rebuilt: Vec<Attachment>,
    /// Devices without a record, in a dry run.
    not_rebuilt: Vec<Lost>,
    /// Addresses in use whose leases were gone: they have one again.
    addresses: Vec<Found>,
    given_back: Vec<Attachment>,
    /// Attachments that remain, with the reason; without one in a dry run.
    left: Vec<(Attachment, Option<String>)>,
    in_use: usize,
    /// Lost devices that are in their pods again, and those that are not, with the reason; without
    /// one in a dry run.
    reattached: Vec<Attachment>,
    not_reattached: Vec<(Attachment, Option<String>)>,
    /// Pending steps of attachments whose device is home: undone now, still left, given up.
    undone: Vec<Attachment>,
    pending: Vec<Attachment>,
    forgotten: Vec<Attachment>,
    /// Names of unreadable records, and of those that were dropped.
    unreadable: Vec<String>,
    dropped: Vec<String>,
}

/// Reaps all attachments that the arguments select, and prints the outcome. The exit status is 1
/// when something remains.
pub fn reap(node: &Node, args: &ReapArgs, output: Output) -> Result<ExitCode> {
    node.check_place(None)?;
    let mut reaped = Reaped::default();
    if args.rebuild {
        node.confirm_nothing(None)?;
        rebuild(args, node, &mut reaped)?;
    }
    let mut unknown = args.which.clone();
    let mut found_any = false;
    unknown.retain(|which| reaped.not_rebuilt.iter().all(|lost| lost.id != *which));
    if let Some(attachments) = Attachments::open_existing(node)? {
        let (mut all, unreadable) = attachments.all()?;
        for pending in attachments.pending()? {
            all.push(pending.attachment);
        }
        unknown.retain(|which| {
            !unreadable.contains(which) && !all.iter().any(|record| is_called(record, which))
        });
        found_any = !all.is_empty() || !unreadable.is_empty();
        reap_attachments(&attachments, node, args, &mut reaped)?;
        report_pending(&attachments, args, &mut reaped)?;
        for name in unreadable {
            if args.forget && !args.dry_run && args.which.contains(&name) {
                attachments.remove_unreadable(&name)?;
                reaped.dropped.push(name);
            } else {
                reaped.unreadable.push(name);
            }
        }
    }
    if !found_any || !unknown.is_empty() {
        node.confirm_nothing(None)?;
    }
    for which in unknown {
        let known = "WHICH is a container ID, NAMESPACE/POD, the id of a device, or the file of a damaged record";
        output::say(&format!("nothing on this node is called {which}: {known}"));
    }
    output::print(&match output {
        Output::Json => output::pretty(&reaped.json(args.dry_run)),
        Output::Table => reaped.text(args.dry_run),
    })?;
    let is_done = reaped.left.is_empty()
        && reaped.not_reattached.is_empty()
        && reaped.pending.is_empty()
        && reaped.unreadable.is_empty();
    Ok(if args.dry_run || is_done {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl Reaped {
    fn json(&self, dry_run: bool) -> Value {
        let given_back: Vec<_> = self
            .given_back
            .iter()
            .map(|record| json(record, None))
            .collect();
        let with_error =
            |(record, error): &(Attachment, Option<String>)| json(record, error.as_deref());
        let left: Vec<_> = self.left.iter().map(with_error).collect();
        let not_reattached: Vec<_> = self.not_reattached.iter().map(with_error).collect();
        let reattached: Vec<_> = self
            .reattached
            .iter()
            .map(|record| json(record, None))
            .collect();
        let steps = |records: &[Attachment]| records.iter().map(left::json).collect::<Vec<_>>();
        let rebuilt: Vec<_> = self
            .rebuilt
            .iter()
            .map(|record| json(record, None))
            .collect();
        let lost: Vec<_> = self.not_rebuilt.iter().map(Lost::json).collect();
        json!({"dryRun": dry_run, "rebuilt": rebuilt, "lost": lost,
            "addresses": self.addresses.iter().map(|one| json!({"address": one.address, "interface": one.ifname,
                "netns": one.netns.path})).collect::<Vec<_>>(), "givenBack": given_back, "left": left, "inUse": self.in_use,
            "reattached": reattached, "notReattached": not_reattached,
            "undone": steps(&self.undone), "pending": steps(&self.pending), "forgotten": steps(&self.forgotten),
            "unreadable": self.unreadable, "dropped": self.dropped})
    }

    fn text(&self, dry_run: bool) -> String {
        let mut lines: Vec<_> = self
            .rebuilt
            .iter()
            .map(|record| format!("recorded {}", describe(record)))
            .collect();
        lines.extend(
            self.not_rebuilt
                .iter()
                .map(|lost| format!("would record it: {}", lost.describe())),
        );
        lines.extend(self.addresses.iter().map(
            |Found {
                 address,
                 ifname,
                 netns,
             }| {
                format!(
                    "leased {address} to {ifname} in the namespace {}",
                    netns.path.display()
                )
            },
        ));
        lines.extend(
            self.given_back
                .iter()
                .map(|record| format!("returned {}", describe(record))),
        );
        lines.extend(self.left.iter().map(|(record, error)| match error {
            Some(error) => format!("cannot return {}: {error}", describe(record)),
            None => format!("would return {}", describe(record)),
        }));
        lines.extend(
            self.reattached
                .iter()
                .map(|record| format!("attached again: {}", describe(record))),
        );
        lines.extend(
            self.not_reattached
                .iter()
                .map(|(record, error)| match error {
                    Some(error) => format!("cannot attach again: {}: {error}", describe(record)),
                    None => format!("would attach again: {}", describe(record)),
                }),
        );
        let undone = self.undone.iter().map(|record| record.owner.describe());
        lines.extend(undone.map(|holder| format!("nothing is left to undo of {holder}")));
        let pending = self.pending.iter().map(|record| ("pending for", record));
        let forgotten = self.forgotten.iter().map(|record| ("forgotten of", record));
        for (how, record) in pending.chain(forgotten) {
            lines.extend(
                left::lines(record)
                    .iter()
                    .map(|line| format!("{how} {line}")),
            );
        }
        lines.extend(self.unreadable.iter().map(|name| {
            format!(
                "the record {name} cannot be read: if no pod has its device, run `railctl reap --forget {name}`"
            )
        }));
        lines.extend(
            self.dropped
                .iter()
                .map(|name| format!("dropped the unreadable record {name}")),
        );
        let mut sum = format!(
            "{} returned, {} remaining, {} in use",
            self.given_back.len(),
            self.left.len(),
            self.in_use
        );
        if !self.reattached.is_empty() || !self.not_reattached.is_empty() {
            sum += &format!(
                "; lost: {} attached again, {} not",
                self.reattached.len(),
                self.not_reattached.len()
            );
        }
        if !self.undone.is_empty() || !self.pending.is_empty() || !self.forgotten.is_empty() {
            let (undone, pending, forgotten) =
                (self.undone.len(), self.pending.len(), self.forgotten.len());
            sum += &format!(
                "; left by others: {undone} undone, {pending} pending, {forgotten} forgotten"
            );
            if pending > 0 && !dry_run {
                sum += "; run `railctl reap --forget` to give up";
            }
        }
        lines.push(sum);
        lines.iter().map(|line| output::line(line)).collect()
    }
}

fn rebuild(args: &ReapArgs, node: &Node, reaped: &mut Reaped) -> Result<()> {
    let lost = Inventory::take(node)?.lost;
    let meant = lost
        .into_iter()
        .filter(|lost| args.which.is_empty() || args.which.contains(&lost.id));
    for lost in meant {
        if args.dry_run {
            reaped.not_rebuilt.push(lost);
            continue;
        }
        let attachments = Attachments::open(node)?;
        let rebuilt = attachments.rebuild(&lost.as_unrecorded(), node, &mut Socket::open()?)?;
        reaped.rebuilt.extend(rebuilt);
    }
    if args.which.is_empty() && !args.dry_run {
        reaped.addresses = rebuild::leases(node)?;
    }
    Ok(())
}

/// Reaps the attachments. What was pending before comes first: what becomes pending by this has
/// been tried once by then.
fn reap_attachments(
    attachments: &Attachments,
    node: &Node,
    args: &ReapArgs,
    reaped: &mut Reaped,
) -> Result<()> {
    let mut pending = attachments.pending()?;
    pending.retain(|pending| args.means(&pending.attachment));
    retry(attachments, pending, node, args, reaped);
    let (mut all, _) = attachments.all()?;
    all.sort_by(|one, other| one.owner.device.id.cmp(&other.owner.device.id));
    for attachment in all {
        if !args.means(&attachment) {
            continue;
        }
        if let Err(error) = reap_one(attachments, &attachment, node, args, reaped) {
            reaped.left.push((attachment, Some(format!("{error:#}"))));
        }
    }
    // Pending steps that an ADD has just made, for it does not wait for them, and those that waited
    // for a device that came back now.
    let mut due = attachments.pending()?;
    due.retain(|pending| {
        args.means(&pending.attachment) && is_due(&pending.attachment, &reaped.given_back)
    });
    retry(attachments, due, node, args, reaped);
    Ok(())
}

fn is_due(pending: &Attachment, given_back: &[Attachment]) -> bool {
    let owner = &pending.owner;
    let waited = |back: &Attachment| {
        let device = &back.owner.device;
        let is_its_pf = device.pci_id.is_some() && device.pci_id == owner.device.pf;
        (device.id == owner.device.id || is_its_pf) && back.owner.key() != owner.key()
    };
    let is_untried = pending.pending_steps().iter().all(|step| step.tries == 0);
    is_untried || given_back.iter().any(waited)
}

/// Tries pending steps once more. What fails is reported below.
fn retry(
    attachments: &Attachments,
    all: Vec<PendingAttachment>,
    node: &Node,
    args: &ReapArgs,
    reaped: &mut Reaped,
) {
    if args.dry_run {
        return;
    }
    for pending in all {
        match attachments.retry(&pending, node) {
            Ok(Some(true)) => reaped.undone.push(pending.attachment),
            Ok(Some(false) | None) => (),
            Err(error) => log::warn!("{error:#}"),
        }
    }
}

/// Reports the pending steps; gives up those that the arguments name.
fn report_pending(attachments: &Attachments, args: &ReapArgs, reaped: &mut Reaped) -> Result<()> {
    for pending in attachments.pending()? {
        if !args.means(&pending.attachment) {
            continue;
        }
        if args.forget && !args.dry_run {
            attachments.forget(&pending)?;
            reaped.forgotten.push(pending.attachment);
        } else if attachments.is_busy(&pending.attachment)? {
            reaped.in_use += 1;
        } else {
            // A call at work may have undone it since the listing.
            reaped.pending.extend(attachments.pending_now(&pending));
        }
    }
    Ok(())
}

/// Attaches a lost device again. Returns whether it is lost, or a call is at work on it: then there
/// is nothing to reap.
fn reattach(
    attachments: &Attachments,
    attachment: &Attachment,
    node: &Node,
    is_dry: bool,
    reaped: &mut Reaped,
) -> Result<bool> {
    if is_dry {
        let is_lost = attachment.state(node, &mut Socket::open()?)? == State::Lost;
        if is_lost {
            reaped.not_reattached.push((attachment.clone(), None));
        }
        return Ok(is_lost);
    }
    match attachments.reattach(attachment, node)? {
        Reattachment::NotLost => return Ok(false),
        Reattachment::Busy => reaped.in_use += 1,
        Reattachment::Reattached => reaped.reattached.push(attachment.clone()),
        Reattachment::StaysLost(error) => {
            let why = format!("{error:#}");
            reaped.not_reattached.push((attachment.clone(), Some(why)));
        }
    }
    Ok(true)
}

fn reap_one(
    attachments: &Attachments,
    attachment: &Attachment,
    node: &Node,
    args: &ReapArgs,
    reaped: &mut Reaped,
) -> Result<()> {
    if args.reattach && reattach(attachments, attachment, node, args.dry_run, reaped)? {
        return Ok(());
    }
    let ended = attachments.end(attachment, args.force, args.dry_run, node)?;
    let attachment = attachment.clone();
    match ended {
        Ended::InUse => reaped.in_use += 1,
        Ended::AlreadyGone => (),
        Ended::CannotTell(why) => {
            let why = format!("cannot tell whether its pod is alive: {why}");
            reaped.left.push((attachment, Some(why)));
        }
        Ended::LeftOver => reaped.left.push((attachment, None)),
        Ended::GivenBack => reaped.given_back.push(attachment),
        Ended::NotReturned(how) => {
            let why = format!("it has not returned from the namespace of its pod: {how}");
            reaped.left.push((attachment, Some(why)));
        }
    }
    Ok(())
}

fn describe(record: &Attachment) -> String {
    let device = &record.owner.device;
    let name = match &device.link {
        // A device without a PCI address is identified by its name alone.
        Some(link) if link.name == device.id => String::new(),
        Some(link) => format!(" ({})", link.name),
        None => " (no netdev)".to_owned(),
    };
    format!("{}{name} of {}", device.id, record.owner.describe())
}

fn json(record: &Attachment, error: Option<&str>) -> Value {
    let Owner {
        device,
        network,
        container_id,
        ifname,
        pod,
        since,
        ..
    } = &record.owner;
    json!({"device": device.id, "netdev": device.link.as_ref().map(|link| &link.name), "network": network,
        "containerID": container_id, "ifname": ifname, "pod": pod, "since": since, "error": error})
}
