//! Operator's commands of rail-cni: the arguments, and `reap`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};

use super::claim::{holds_its_device, settle};
use super::doctor::doctor;
use super::lint::lint;
use super::record::{Record, Records};
use super::status::status;
use crate::node::Node;
use crate::output::{self, Output};

const PROGRAM: &str = "rail-cni";

/// Rails in pods: what this node has, whether it is ready, and putting right what lost DELs left.
#[derive(Debug, Parser)]
#[command(
    name = "rail-cni",
    version,
    after_help = "A container runtime calls the same program with CNI_COMMAND set. Paths and the name of
the node come from /etc/rail-cni/node.json (RAIL_CNI_NODE_CONFIG names another file).
Exit status: 0 done, 1 failed or something is left to do, 2 wrong usage."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// For people, or for programs
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
    /// Is this node ready for pods with rails? Each check with its remedy
    #[command(
        after_help = "FAIL: pods with that rail, or with any, do not start or do not work. warn: they do, \
mostly. skip: it cannot be told, and why. Nothing is changed or made.
Exit status: 0 nothing failed, 1 a check failed, 2 wrong usage."
    )]
    Doctor,
    /// What is wrong with networks, before a pod finds out: NetworkAttachmentDefinitions, .conf and .conflist
    #[command(
        after_help = "Needs neither node.json nor root. error: ADD refuses it, or it cannot be meant. warning: \
it works, perhaps not as it was meant.
Exit status: 0 no error, 1 an error, 2 wrong usage."
    )]
    Lint(LintArgs),
    /// Put right what lost DELs left: devices of pods that are gone go back under their names, with their old
    /// MTU and MAC, and their addresses are free again
    Reap(ReapArgs),
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
}

/// Runs the command in the arguments.
pub fn run() -> ExitCode {
    let Cli { command, output } = match output::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let done = match command {
        // No log: what is wrong is in the answer.
        Command::Status => Node::load().and_then(|node| status(&node, output)),
        Command::Doctor => doctor(output),
        Command::Lint(args) => lint(&args.files, output),
        Command::Reap(args) => reap(&args, output),
    };
    output::end(PROGRAM, done)
}

fn start(command: &str) -> Result<Node> {
    crate::log::describe(PROGRAM, command, "");
    Node::load()
}

/// What became of attachments.
#[derive(Default)]
struct Reaped {
    given_back: Vec<Record>,
    /// With what went wrong; with nothing in a dry run.
    left: Vec<(Record, Option<String>)>,
    in_use: usize,
}

fn reap(args: &ReapArgs, output: Output) -> Result<ExitCode> {
    let node = start("reap")?;
    let (mut reaped, mut unreadable) = (Reaped::default(), Vec::new());
    if let Some(records) = Records::open_existing(&node)? {
        let mut all;
        (all, unreadable) = records.all()?;
        all.sort_by(|one, other| one.device.id.cmp(&other.device.id));
        for record in all {
            if let Err(error) = reap_one(&records, &record, &node, args.dry_run, &mut reaped) {
                reaped.left.push((record, Some(format!("{error:#}"))));
            }
        }
        for name in unreadable.iter().filter(|_| !args.dry_run) {
            records.remove_unreadable(name)?;
        }
    }

    let Reaped { given_back, left, in_use } = &reaped;
    match output {
        Output::Json => {
            let given_back: Vec<_> = given_back.iter().map(|record| json(record, None)).collect();
            let left: Vec<_> = left.iter().map(|(record, error)| json(record, error.as_deref())).collect();
            output::print(&output::pretty(&json!({"dryRun": args.dry_run, "givenBack": given_back,
                "left": left, "inUse": in_use, "unreadable": unreadable})))?;
        }
        Output::Table => {
            let mut lines: Vec<_> =
                given_back.iter().map(|record| format!("gave back {}", describe(record))).collect();
            lines.extend(left.iter().map(|(record, error)| match error {
                Some(error) => format!("cannot give back {}: {error}", describe(record)),
                None => format!("would give back {}", describe(record)),
            }));
            let remove = if args.dry_run { "would remove" } else { "removed" };
            lines.extend(unreadable.iter().map(|name| format!("{remove} the unreadable record {name}")));
            lines.push(format!("{} given back, {} left, {in_use} in use", given_back.len(), left.len()));
            output::print(&lines.iter().map(|line| output::printable(line) + "\n").collect::<String>())?;
        }
    }
    Ok(if args.dry_run || left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn reap_one(records: &Records, of: &Record, node: &Node, dry_run: bool, reaped: &mut Reaped) -> Result<()> {
    let Some(_lock) = records.try_lock(&of.attachment())? else {
        reaped.in_use += 1;
        return Ok(());
    };
    let Some(record) = records.find(&of.attachment())? else { return Ok(()) };
    if holds_its_device(&record).unwrap_or(false) {
        reaped.in_use += 1;
    } else if dry_run {
        reaped.left.push((record, None));
    } else {
        settle(records, &record, node)?;
        reaped.given_back.push(record);
    }
    Ok(())
}

fn describe(record: &Record) -> String {
    let name = record.device.link.as_ref().map_or("no netdev", |link| link.name.as_str());
    format!("{} ({name}) of {}", record.device.id, record.holder())
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
        assert!(Cli::try_parse_from(["rail-cni"]).is_err());
    }
}
