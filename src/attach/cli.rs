//! Operator's commands of rail-cni: the arguments, and `reap`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};

use super::check::check;
use super::claim::{Holding, holding, settle};
use super::debt;
use super::doctor::doctor;
use super::inventory::Inventory;
use super::lint::lint;
use super::lost::Lost;
use super::record::{DebtFile, Record, Records};
use super::status::status;
use crate::netlink::Socket;
use crate::node::Node;
use crate::output::{self, Output};
use crate::watchdog;

const PROGRAM: &str = "rail-cni";

/// Rails in pods: what this node has, whether it is ready, and putting right what lost DELs left.
#[derive(Debug, Parser)]
#[command(
    name = "rail-cni",
    version = output::VERSION.as_str(),
    after_help = "A container runtime calls the same program with CNI_COMMAND set. Paths and the name of
the node come from /etc/rail-cni/node.json (RAIL_CNI_NODE_CONFIG names another file).
Exit status: 0 done, 1 failed or something is left to do, 2 wrong usage."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// What is printed
    #[arg(long, global = true, value_enum, default_value = "table", value_name = "FORM")]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The rails of this node, and which pod has what of them
    #[command(
        after_help = "STATE is live (the pod has the device), busy (an ADD or DEL is at work), dead (the \
pod is gone and no DEL came), cut-off (its ADD was killed), on-host (the pod lives, its device is on the host), \
returned (the device is back, its address is not), missing (the pod is gone, the device has not come back), \
elsewhere (the pod lives, its device is neither there nor on the host), unknown (the pod cannot be looked into). \
VFS is how many there are of how many there could be.
Exit status: 0 nothing to do, 1 there is something to do, told below the tables, or failed, 2 wrong usage."
    )]
    Status,
    /// Are the rails in pods what ADD made, and do their gateways answer? Every difference, of every pod
    #[command(
        after_help = "What CHECK does when a runtime asks, for all attachments at once and whatever `gatewayProbe` \
says. Each gateway has a second to answer; nothing in a pod is changed.
Exit status: 0 nothing differs, 1 something does, or failed, 2 wrong usage."
    )]
    Check,
    /// Is this node ready for pods with rails? Each check with its remedy
    #[command(
        after_help = "FAIL: pods with that rail, or with any, do not start or do not work: a node can be gated by it. warn: they \
do, mostly. skip: it cannot be told, and why. Nothing is changed or made.
Exit status: 0 nothing failed, 1 a check failed, 2 wrong usage."
    )]
    Doctor(DoctorArgs),
    /// What is wrong with networks, before a pod finds out: NetworkAttachmentDefinitions, .conf and .conflist
    #[command(
        after_help = "Needs neither node.json nor root. error: ADD refuses it, or it cannot be meant. warning: \
it works, perhaps not as it was meant.
Exit status: 0 no error, 1 an error, 2 wrong usage."
    )]
    Lint(LintArgs),
    /// Put right what lost DELs left: devices of pods that are gone go back under their names, with their old
    /// MTU and MAC, and their addresses are free again; what is still owed of earlier ones is tried once more
    #[command(
        after_help = "WHICH is a container id, a pod as NAMESPACE/NAME, a device as status shows it, or the \
file of a record that cannot be read. Without one, all are meant.
A pod is left alone while its network namespace lives, and also while that cannot be told: from another mount \
namespace, without the right to look. Run it on the host, as root.
Exit status: 0 done, 1 something is left or owed, 2 wrong usage."
    )]
    Reap(ReapArgs),
}

#[derive(Debug, Args)]
struct DoctorArgs {
    /// That the networks have, for rails of which none is known on the node
    #[arg(long, value_name = "BYTES", default_value_t = 9000)]
    mtu: u32,
}

#[derive(Debug, Args)]
struct LintArgs {
    /// YAML or JSON as kubectl takes and prints it, CNI configurations, folders of them; - for stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
}

#[derive(Debug, Args)]
struct ReapArgs {
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Drop what is still owed after this try, and named records that cannot be read
    #[arg(long)]
    forget: bool,
    /// First put on record what pods have though nothing is on record of it: after /run/rail-cni was emptied
    #[arg(long)]
    rebuild: bool,
    /// Also where it cannot be told whether the pod lives: for who knows that it is gone
    #[arg(long, requires = "which")]
    force: bool,
    /// Only these
    #[arg(value_name = "WHICH")]
    which: Vec<String>,
}

impl ReapArgs {
    fn means(&self, record: &Record) -> bool {
        let is = |which: &String| {
            *which == record.container_id || Some(which) == record.pod.as_ref() || *which == record.device.id
        };
        self.which.is_empty() || self.which.iter().any(is)
    }
}

/// Runs the command in the arguments.
pub fn run() -> ExitCode {
    let Cli { command, output } = match output::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let done = match command {
        // No log: what is wrong is in the answer.
        Command::Status => look().and_then(|node| status(&node, output)),
        Command::Check => look().and_then(|node| check(&node, output)),
        Command::Doctor(args) => {
            output::watch(PROGRAM);
            doctor(args.mtu, output)
        }
        Command::Lint(args) => lint(&args.files, output),
        Command::Reap(args) => reap(&args, output),
    };
    output::end(PROGRAM, done)
}

/// For commands that only look, which nobody waits for without end.
fn look() -> Result<Node> {
    output::watch(PROGRAM);
    let node = Node::load()?;
    watchdog::allow(node.call_timeout());
    Ok(node)
}

fn start(command: &str) -> Result<Node> {
    crate::log::describe_command(PROGRAM, command);
    Node::load()
}

/// What became of attachments.
#[derive(Default)]
struct Reaped {
    /// Records that were made anew.
    rebuilt: Vec<Record>,
    /// In a dry run.
    not_rebuilt: Vec<Lost>,
    given_back: Vec<Record>,
    /// With what went wrong; with nothing in a dry run.
    left: Vec<(Record, Option<String>)>,
    in_use: usize,
    paid: Vec<DebtFile>,
    owed: Vec<DebtFile>,
    forgotten: Vec<DebtFile>,
    /// Names of records that cannot be read, and of those that were dropped.
    unreadable: Vec<String>,
    dropped: Vec<String>,
}

fn reap(args: &ReapArgs, output: Output) -> Result<ExitCode> {
    let node = start("reap")?;
    node.check_place(None)?;
    let mut reaped = Reaped::default();
    if args.rebuild {
        rebuild(args, &node, &mut reaped)?;
    }
    if let Some(records) = Records::open_existing(&node)? {
        // Those first: what is owed of the others has been tried once when it is filed below.
        for debt in records.debts()?.into_iter().filter(|debt| !args.dry_run && args.means(&debt.record)) {
            // It is told below as owed.
            reap_debt(&records, debt, &node, &mut reaped).unwrap_or_else(|error| log::warn!("{error:#}"));
        }
        let (mut all, unreadable) = records.all()?;
        all.sort_by(|one, other| one.device.id.cmp(&other.device.id));
        for record in all.into_iter().filter(|record| args.means(record)) {
            if let Err(error) = reap_one(&records, &record, &node, args, &mut reaped) {
                reaped.left.push((record, Some(format!("{error:#}"))));
            }
        }
        for debt in records.debts()?.into_iter().filter(|debt| args.means(&debt.record)) {
            if args.forget && !args.dry_run {
                records.forget(&debt)?;
                reaped.forgotten.push(debt);
            } else {
                reaped.owed.push(debt);
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
            self.rebuilt.iter().map(|record| format!("put on record {}", describe(record))).collect();
        lines.extend(self.not_rebuilt.iter().map(|lost| format!("would put on record: {}", lost.told())));
        lines.extend(self.given_back.iter().map(|record| format!("gave back {}", describe(record))));
        lines.extend(self.left.iter().map(|(record, error)| match error {
            Some(error) => format!("cannot give back {}: {error}", describe(record)),
            None => format!("would give back {}", describe(record)),
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
                "cannot read the record {name}: if no pod has its device, `rail-cni reap --forget {name}`"
            )
        }));
        lines.extend(self.dropped.iter().map(|name| format!("dropped the unreadable record {name}")));
        let mut sum =
            format!("{} given back, {} left, {} in use", self.given_back.len(), self.left.len(), self.in_use);
        if !self.paid.is_empty() || !self.owed.is_empty() || !self.forgotten.is_empty() {
            let (paid, owed, forgotten) = (self.paid.len(), self.owed.len(), self.forgotten.len());
            sum += &format!("; debts: {paid} paid, {owed} owed, {forgotten} forgotten");
            if owed > 0 && !dry_run {
                sum += "; `rail-cni reap --forget` drops them";
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
        reaped.rebuilt.push(lost.rebuild(&Records::open(node)?, node, &mut Socket::open()?)?);
    }
    Ok(())
}

fn reap_debt(records: &Records, mut debt: DebtFile, node: &Node, reaped: &mut Reaped) -> Result<()> {
    let Some(_lock) = records.try_lock(&debt.record.attachment())? else { return Ok(()) };
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
            let why = format!("whether its pod lives cannot be told: {why}");
            reaped.left.push((record, Some(why)));
        }
        Holding::Nothing | Holding::Unknown(_) if args.dry_run => reaped.left.push((record, None)),
        Holding::Nothing | Holding::Unknown(_) => {
            settle(records, &record, node)?;
            match records.on_file(&of.attachment())? {
                None => reaped.given_back.push(record),
                Some(record) => {
                    let why =
                        "it has not come back: a process keeps the namespace of its pod (`lsns -t net`)";
                    reaped.left.push((record, Some(why.to_owned())));
                }
            }
        }
    }
    Ok(())
}

fn describe(record: &Record) -> String {
    let device = &record.device;
    let name = match &device.link {
        // A device without a PCI address is known by its name alone.
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_arguments_are_in_order() {
        Cli::command().debug_assert();
        assert!(Cli::try_parse_from(["rail-cni", "reap", "--dry-run", "--output", "json"]).is_ok());
        assert!(Cli::try_parse_from(["rail-cni", "reap", "--forget", "ai/trainer-0"]).is_ok());
        assert!(Cli::try_parse_from(["rail-cni"]).is_err());
        // Not everything at once.
        assert!(Cli::try_parse_from(["rail-cni", "reap", "--force"]).is_err());
    }
}
