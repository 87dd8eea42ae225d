//! Operator's commands of rail-cni.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use super::claim::{holds_its_device, settle};
use super::record::{Record, Records};
use crate::node::Node;

/// CNI plugin that attaches a rail (SR-IOV VF, PF, SF or any NIC of the host) to a pod.
///
/// Runtimes call it with CNI_COMMAND set; these are the commands for people.
#[derive(Debug, Parser)]
#[command(name = "rail-cni", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Put right what lost DELs left: devices of pods that are gone go back under their names, with their old
    /// MTU and MAC, and their addresses are free again
    Reap {
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

/// Runs a command; the exit status is 0 when all of it was done, 1 when something was left.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    crate::log::describe("rail-cni", "reap", "-");
    let done = match cli.command {
        Command::Reap { dry_run } => reap(dry_run),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rail-cni: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn reap(dry_run: bool) -> Result<bool> {
    use std::io::Write as _;
    let node = Node::load()?;
    let mut out = std::io::stdout().lock();
    let Some(records) = Records::open_existing(&node)? else {
        writeln!(out, "no attachments on this node")?;
        return Ok(true);
    };
    let (all, unreadable) = records.all()?;
    let (mut kept, mut given_back, mut left) = (0, 0, 0);
    for record in &all {
        let Some(_lock) = records.try_lock(&record.attachment())? else {
            kept += 1;
            continue;
        };
        let Some(record) = records.find(&record.attachment())? else { continue };
        if holds_its_device(&record).unwrap_or(false) {
            kept += 1;
            continue;
        }
        let what = describe(&record);
        if dry_run {
            left += 1;
            writeln!(out, "would give back {what}")?;
        } else if let Err(error) = settle(&records, &record, &node) {
            left += 1;
            writeln!(out, "cannot give back {what}: {error:#}")?;
        } else {
            given_back += 1;
            writeln!(out, "gave back {what}")?;
        }
    }
    for name in unreadable {
        if dry_run {
            writeln!(out, "would remove the unreadable record {name}")?;
        } else {
            records.remove_unreadable(&name)?;
            writeln!(out, "removed the unreadable record {name}")?;
        }
    }
    writeln!(out, "{given_back} given back, {left} left, {kept} in use")?;
    Ok(dry_run || left == 0)
}

fn describe(record: &Record) -> String {
    let name = record.device.link.as_ref().map_or("no netdev", |link| link.name.as_str());
    format!("{} ({name}) of {}", record.device.id, record.holder())
}
