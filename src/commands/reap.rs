//! `rail-cni reap`: cleans up after lost DELs.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::inventory::Inventory;
use crate::attach::claim::{Holding, holding, recover};
use crate::attach::lost::Lost;
use crate::attach::record::{DebtFile, Record, Records};
use crate::attach::{debt, restore};
use crate::netlink::Socket;
use crate::node::Node;
use crate::output::{self, Output};

/// Arguments of `rail-cni reap`.
#[derive(Debug, Args)]
pub struct ReapArgs {
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
    /// Give up what is still owed after one more try, and drop unreadable records that WHICH names
    #[arg(long)]
    forget: bool,
    /// First make records of devices that pods have without one, after /run/rail-cni was emptied
    #[arg(long)]
    rebuild: bool,
    /// Also reap attachments of which it is not known whether the pod is alive, if you know that it is gone
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
    *which == record.container_id || Some(which) == record.pod.as_ref() || *which == record.device.id
}

/// The outcome for each attachment.
#[derive(Default)]
struct Reaped {
    /// New records of devices that had none.
    rebuilt: Vec<Record>,
    /// The same in a dry run: devices without a record.
    not_rebuilt: Vec<Lost>,
    given_back: Vec<Record>,
    /// Attachments that remain, with the reason; without one in a dry run.
    left: Vec<(Record, Option<String>)>,
    in_use: usize,
    paid: Vec<DebtFile>,
    owed: Vec<DebtFile>,
    forgotten: Vec<DebtFile>,
    /// Names of unreadable records, and of those that were dropped.
    unreadable: Vec<String>,
    dropped: Vec<String>,
}

/// Reaps all attachments that the arguments select, and prints the outcome. The exit status is 1 when something
/// remains.
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
        let debts = records.debts()?.into_iter().map(|debt| debt.record);
        let all: Vec<_> = all.into_iter().chain(debts).collect();
        unknown.retain(|which| {
            !unreadable.contains(which) && !all.iter().any(|record| is_called(record, which))
        });
        // Earlier debts come first: what becomes a debt below has been tried once by then.
        for debt in records.debts()?.into_iter().filter(|debt| !args.dry_run && args.means(&debt.record)) {
            // The failure is reported below as a debt.
            reap_debt(&records, debt, node, &mut reaped).unwrap_or_else(|error| log::warn!("{error:#}"));
        }
        let (mut all, unreadable) = records.all()?;
        all.sort_by(|one, other| one.device.id.cmp(&other.device.id));
        for record in all.into_iter().filter(|record| args.means(record)) {
            if let Err(error) = reap_one(&records, &record, node, args, &mut reaped) {
                reaped.left.push((record, Some(format!("{error:#}"))));
            }
        }
        // Those that an ADD has just made, for it does not wait for them, and those that waited for what came back now.
        let is_due = |debt: &DebtFile, given_back: &[Record]| {
            let owing = &debt.record;
            let waited = |back: &Record| {
                let is_its_pf = back.device.pci_id.is_some() && back.device.pci_id == owing.device.pf;
                (back.device.id == owing.device.id || is_its_pf) && back.attachment() != owing.attachment()
            };
            owing.debt.as_ref().is_none_or(|debt| debt.tries == 0) || given_back.iter().any(waited)
        };
        let mut due = records.debts()?;
        due.retain(|debt| !args.dry_run && args.means(&debt.record) && is_due(debt, &reaped.given_back));
        for debt in due {
            reap_debt(&records, debt, node, &mut reaped).unwrap_or_else(|error| log::warn!("{error:#}"));
        }
        for debt in records.debts()?.into_iter().filter(|debt| args.means(&debt.record)) {
            if args.forget && !args.dry_run {
                records.forget(&debt)?;
                reaped.forgotten.push(debt);
            } else if records.is_busy(&debt.record.attachment())? {
                reaped.in_use += 1;
            } else {
                // Whoever was busy may have paid it since the listing.
                reaped.owed.extend(records.debt_now(&debt));
            }
        }
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
        let known =
            "WHICH is a container ID, NAMESPACE/POD, the id of a device, or the file of a damaged record";
        output::say("rail-cni", &format!("nothing on this node is called {which}: {known}"));
    }
    output::print(&match output {
        Output::Json => output::pretty(&reaped.json(args.dry_run)),
        Output::Table => reaped.text(args.dry_run),
    })?;
    let is_done = reaped.left.is_empty() && reaped.owed.is_empty() && reaped.unreadable.is_empty();
    Ok(if args.dry_run || is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Reaped {
    fn json(&self, dry_run: bool) -> Value {
        let given_back: Vec<_> = self.given_back.iter().map(|record| json(record, None)).collect();
        let left: Vec<_> = self.left.iter().map(|(record, error)| json(record, error.as_deref())).collect();
        let debts =
            |debts: &[DebtFile]| debts.iter().map(|debt| debt::json(&debt.record)).collect::<Vec<_>>();
        let rebuilt: Vec<_> = self.rebuilt.iter().map(|record| json(record, None)).collect();
        let lost: Vec<_> = self.not_rebuilt.iter().map(Lost::json).collect();
        json!({"dryRun": dry_run, "rebuilt": rebuilt, "lost": lost, "givenBack": given_back, "left": left, "inUse": self.in_use,
            "paid": debts(&self.paid), "owed": debts(&self.owed), "forgotten": debts(&self.forgotten),
            "unreadable": self.unreadable, "dropped": self.dropped})
    }

    fn text(&self, dry_run: bool) -> String {
        let mut lines: Vec<_> =
            self.rebuilt.iter().map(|record| format!("recorded {}", describe(record))).collect();
        lines.extend(self.not_rebuilt.iter().map(|lost| format!("would record it: {}", lost.describe())));
        lines.extend(self.given_back.iter().map(|record| format!("returned {}", describe(record))));
        lines.extend(self.left.iter().map(|(record, error)| match error {
            Some(error) => format!("cannot return {}: {error}", describe(record)),
            None => format!("would return {}", describe(record)),
        }));
        lines.extend(
            self.paid.iter().map(|debt| format!("nothing is owed any more by {}", debt.record.holder())),
        );
        let (owed, forgotten) = (self.owed.iter().map(|debt| ("owed by", debt)), self.forgotten.iter());
        for (how, debt) in owed.chain(forgotten.map(|debt| ("forgotten of", debt))) {
            lines.extend(
                debt.record.owed().iter().map(|owed| {
                    format!("{how} {}: {}: {}", debt.record.holder(), owed.what.as_str(), owed.why)
                }),
            );
        }
        lines.extend(self.unreadable.iter().map(|name| {
            format!(
                "the record {name} cannot be read: if no pod has its device, run `rail-cni reap --forget {name}`"
            )
        }));
        lines.extend(self.dropped.iter().map(|name| format!("dropped the unreadable record {name}")));
        let mut sum = format!(
            "{} returned, {} remaining, {} in use",
            self.given_back.len(),
            self.left.len(),
            self.in_use
        );
        if !self.paid.is_empty() || !self.owed.is_empty() || !self.forgotten.is_empty() {
            let (paid, owed, forgotten) = (self.paid.len(), self.owed.len(), self.forgotten.len());
            sum += &format!("; debts: {paid} paid, {owed} owed, {forgotten} forgotten");
            if owed > 0 && !dry_run {
                sum += "; run `rail-cni reap --forget` to give up";
            }
        }
        lines.push(sum);
        lines.iter().map(|line| output::printable(line) + "\n").collect()
    }
}

fn rebuild(args: &ReapArgs, node: &Node, reaped: &mut Reaped) -> Result<()> {
    let lost = Inventory::take(node)?.lost;
    let meant = lost.into_iter().filter(|lost| args.which.is_empty() || args.which.contains(&lost.id));
    for lost in meant {
        if args.dry_run {
            reaped.not_rebuilt.push(lost);
            continue;
        }
        reaped.rebuilt.extend(lost.rebuild(&Records::open(node)?, node, &mut Socket::open()?)?);
    }
    Ok(())
}

fn reap_debt(records: &Records, debt: DebtFile, node: &Node, reaped: &mut Reaped) -> Result<()> {
    let Some(_lock) = records.try_lock(&debt.record.attachment())? else { return Ok(()) };
    let Some(mut debt) = records.debt_now(&debt) else { return Ok(()) };
    debt::pay(&mut debt, records, node, debt::WHOLE)?;
    if debt.is_paid() {
        reaped.paid.push(debt);
    }
    Ok(())
}

fn reap_one(records: &Records, of: &Record, node: &Node, args: &ReapArgs, reaped: &mut Reaped) -> Result<()> {
    let Some(_lock) = records.try_lock(&of.attachment())? else {
        reaped.in_use += 1;
        return Ok(());
    };
    let Some(record) = records.find(&of.attachment())? else { return Ok(()) };
    match holding(&record, node)? {
        Holding::Device => reaped.in_use += 1,
        Holding::Unknown(why) if !args.force => {
            let why = format!("it is not known whether its pod is alive: {why}");
            reaped.left.push((record, Some(why)));
        }
        Holding::Nothing | Holding::Unknown(_) if args.dry_run => reaped.left.push((record, None)),
        Holding::Nothing | Holding::Unknown(_) => {
            recover(records, &record, node)?;
            match records.on_file(&of.attachment())? {
                None => reaped.given_back.push(record),
                Some(record) => {
                    let how = restore::how_to_end(&record);
                    let why = format!("it has not come back from the namespace of its pod: {how}");
                    reaped.left.push((record, Some(why)));
                }
            }
        }
    }
    Ok(())
}

fn describe(record: &Record) -> String {
    let device = &record.device;
    let name = match &device.link {
        // A device without a PCI address is identified by its name alone.
        Some(link) if link.name == device.id => String::new(),
        Some(link) => format!(" ({})", link.name),
        None => " (no netdev)".to_owned(),
    };
    format!("{}{name} of {}", device.id, record.holder())
}

fn json(record: &Record, error: Option<&str>) -> Value {
    let Record { device, network, container_id, ifname, pod, since, .. } = record;
    json!({"device": device.id, "netdev": device.link.as_ref().map(|link| &link.name), "network": network,
        "containerID": container_id, "ifname": ifname, "pod": pod, "since": since, "error": error})
}
