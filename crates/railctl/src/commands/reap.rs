//! `railctl reap`: cleans up after lost DELs.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::inventory::Inventory;
use super::left;
use super::rebuild::{self, Lost};
use crate::output::{self, Output};
use rail_cni::attach::heal::end;
use rail_cni::attach::ipam::PATIENCE;
use rail_cni::attach::locate;
use rail_cni::attach::owner::Owner;
use rail_cni::attach::pending;
use rail_cni::attach::record::Record;
use rail_cni::attach::records::{Pending, Records};
use rail_cni::attach::state::{self, State};
use rail_cni::ipam::lease::Found;
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
    /// Also reap attachments whose pod cannot be checked; be sure it is gone
    #[arg(long, requires = "which")]
    force: bool,
    /// Only these attachments
    #[arg(value_name = "WHICH")]
    which: Vec<String>,
}

impl ReapArgs {
    fn means(&self, record: &Record) -> bool {
        self.which.is_empty() || self.which.iter().any(|which| is_called(record, which))
    }
}

/// Is `which` a name of the attachment?
fn is_called(record: &Record, which: &String) -> bool {
    let owner = &record.owner;
    *which == owner.container_id || Some(which) == owner.pod.as_ref() || *which == owner.device.id
}

/// The outcome for each attachment.
#[derive(Default)]
struct Reaped {
    /// New records of devices that had none.
    rebuilt: Vec<Record>,
    /// The same in a dry run: devices without a record.
    not_rebuilt: Vec<Lost>,
    /// Addresses in use whose leases were gone: they have one again.
    addresses: Vec<Found>,
    given_back: Vec<Record>,
    /// Attachments that remain, with the reason; without one in a dry run.
    left: Vec<(Record, Option<String>)>,
    in_use: usize,
    /// Pending steps of attachments whose device is home: undone now, still left, given up.
    undone: Vec<Record>,
    pending: Vec<Record>,
    forgotten: Vec<Record>,
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
        rebuild(args, node, &mut reaped)?;
    }
    let mut unknown = args.which.clone();
    unknown.retain(|which| reaped.not_rebuilt.iter().all(|lost| lost.id != *which));
    if let Some(records) = Records::open_existing(node)? {
        let (all, unreadable) = records.all()?;
        let pending = records.pending()?.into_iter().map(|pending| pending.record);
        let all: Vec<_> = all.into_iter().chain(pending).collect();
        unknown.retain(|which| {
            !unreadable.contains(which) && !all.iter().any(|record| is_called(record, which))
        });
        reap_attachments(&records, node, args, &mut reaped)?;
        report_pending(&records, args, &mut reaped)?;
        for name in unreadable {
            if args.forget && !args.dry_run && args.which.contains(&name) {
                records.remove_unreadable(&name)?;
                reaped.dropped.push(name);
            } else {
                reaped.unreadable.push(name);
            }
        }
    }
    for which in unknown {
        let known = "WHICH is a container ID, NAMESPACE/POD, the id of a device, or the file of a damaged record";
        output::say(&format!("nothing on this node is called {which}: {known}"));
    }
    output::print(&match output {
        Output::Json => output::pretty(&reaped.json(args.dry_run)),
        Output::Table => reaped.text(args.dry_run),
    })?;
    let is_done =
        reaped.left.is_empty() && reaped.pending.is_empty() && reaped.unreadable.is_empty();
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
        let left: Vec<_> = self
            .left
            .iter()
            .map(|(record, error)| json(record, error.as_deref()))
            .collect();
        let steps = |records: &[Record]| records.iter().map(left::json).collect::<Vec<_>>();
        let rebuilt: Vec<_> = self
            .rebuilt
            .iter()
            .map(|record| json(record, None))
            .collect();
        let lost: Vec<_> = self.not_rebuilt.iter().map(Lost::json).collect();
        json!({"dryRun": dry_run, "rebuilt": rebuilt, "lost": lost,
            "addresses": self.addresses.iter().map(|one| json!({"address": one.address, "interface": one.ifname,
                "netns": one.netns.path})).collect::<Vec<_>>(), "givenBack": given_back, "left": left, "inUse": self.in_use,
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
        lines
            .iter()
            .map(|line| rail_cni::log::printable(line) + "\n")
            .collect()
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
        reaped
            .rebuilt
            .extend(lost.rebuild(&Records::open(node)?, node, &mut Socket::open()?)?);
    }
    if args.which.is_empty() && !args.dry_run {
        reaped.addresses = rebuild::leases(node)?;
    }
    Ok(())
}

/// Reaps the attachments. What was pending before comes first: what becomes pending by this has
/// been tried once by then.
fn reap_attachments(
    records: &Records,
    node: &Node,
    args: &ReapArgs,
    reaped: &mut Reaped,
) -> Result<()> {
    let mut pending = records.pending()?;
    pending.retain(|pending| args.means(&pending.record));
    retry(records, pending, node, args, reaped);
    let (mut all, _) = records.all()?;
    all.sort_by(|one, other| one.owner.device.id.cmp(&other.owner.device.id));
    for record in all.into_iter().filter(|record| args.means(record)) {
        if let Err(error) = reap_one(records, &record, node, args, reaped) {
            reaped.left.push((record, Some(format!("{error:#}"))));
        }
    }
    // Those that an ADD has just made, for it does not wait for them, and those that waited for
    // what came back now.
    let mut due = records.pending()?;
    due.retain(|pending| {
        args.means(&pending.record) && is_due(&pending.record, &reaped.given_back)
    });
    retry(records, due, node, args, reaped);
    Ok(())
}

fn is_due(pending: &Record, given_back: &[Record]) -> bool {
    let owner = &pending.owner;
    let waited = |back: &Record| {
        let device = &back.owner.device;
        let is_its_pf = device.pci_id.is_some() && device.pci_id == owner.device.pf;
        (device.id == owner.device.id || is_its_pf) && back.owner.key() != owner.key()
    };
    pending.left().all(|step| step.failed().tries == 0) || given_back.iter().any(waited)
}

/// Tries pending steps once more. What fails is reported below.
fn retry(records: &Records, all: Vec<Pending>, node: &Node, args: &ReapArgs, reaped: &mut Reaped) {
    for pending in all.into_iter().filter(|_| !args.dry_run) {
        retry_one(records, &pending, node, reaped).unwrap_or_else(|error| log::warn!("{error:#}"));
    }
}

fn retry_one(records: &Records, pending: &Pending, node: &Node, reaped: &mut Reaped) -> Result<()> {
    let Some(_lock) = records.locks.try_attachment(&pending.record.owner.key())? else {
        return Ok(());
    };
    let Some(mut pending) = records.pending_now(pending) else {
        return Ok(());
    };
    pending::retry(&mut pending, records, node, PATIENCE)?;
    if !pending.record.is_left() {
        reaped.undone.push(pending.record);
    }
    Ok(())
}

/// What is pending now; given up where the arguments say so.
fn report_pending(records: &Records, args: &ReapArgs, reaped: &mut Reaped) -> Result<()> {
    for pending in records
        .pending()?
        .into_iter()
        .filter(|pending| args.means(&pending.record))
    {
        if args.forget && !args.dry_run {
            records.forget(&pending)?;
            reaped.forgotten.push(pending.record);
        } else if records.locks.is_busy(&pending.record.owner.key())? {
            reaped.in_use += 1;
        } else {
            // Whoever was busy may have undone it since the listing.
            reaped
                .pending
                .extend(records.pending_now(&pending).map(|pending| pending.record));
        }
    }
    Ok(())
}

fn reap_one(
    records: &Records,
    of: &Record,
    node: &Node,
    args: &ReapArgs,
    reaped: &mut Reaped,
) -> Result<()> {
    let key = of.owner.key();
    let Some(_lock) = records.locks.try_attachment(&key)? else {
        reaped.in_use += 1;
        return Ok(());
    };
    let Some(record) = records.find(&key)? else {
        return Ok(());
    };
    match state::of(&record, node, &mut Socket::open()?)? {
        State::Live(_) | State::Elsewhere => reaped.in_use += 1,
        State::Unknown(why) if !args.force => {
            let why = format!("cannot tell whether its pod is alive: {why}");
            reaped.left.push((record, Some(why)));
        }
        _ if args.dry_run => reaped.left.push((record, None)),
        _ => {
            end(records, record.clone(), node)?;
            if records.on_file(&key)?.is_none() {
                reaped.given_back.push(record);
            } else {
                let how = locate::how_to_end(&record.owner);
                let why = format!("it has not returned from the namespace of its pod: {how}");
                reaped.left.push((record, Some(why)));
            }
        }
    }
    Ok(())
}

fn describe(record: &Record) -> String {
    let device = &record.owner.device;
    let name = match &device.link {
        // A device without a PCI address is identified by its name alone.
        Some(link) if link.name == device.id => String::new(),
        Some(link) => format!(" ({})", link.name),
        None => " (no netdev)".to_owned(),
    };
    format!("{}{name} of {}", device.id, record.owner.describe())
}

fn json(record: &Record, error: Option<&str>) -> Value {
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
