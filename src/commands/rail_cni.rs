//! The commands of rail-cni: their arguments, and the functions that run them.

use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};

use super::check::check;
use super::doctor::{Needs, doctor, wait};
use super::lint::lint;
use super::reap::{ReapArgs, reap};
use super::start;
use super::status::{self, status};
use crate::node::Node;
use crate::output::{self, Output};
use crate::watchdog;

const PROGRAM: &str = "rail-cni";

/// Shows and checks the rails of this node and of its pods, and cleans up after lost DELs.
#[derive(Debug, Parser)]
#[command(
    name = "rail-cni",
    version = output::VERSION.as_str(),
    after_help = "A container runtime calls the same program with CNI_COMMAND set. The paths and the name of
the node come from /etc/rail-cni/node.json, or from the file that RAIL_CNI_NODE_CONFIG names.
Exit status: 0 success, 1 the command failed or something remains to be done, 2 wrong usage."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Form of the output; html is a page for a browser, and for status only
    #[arg(long, global = true, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

/// The value of `--output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// A table for people.
    Table,
    /// JSON for programs.
    Json,
    /// A page for a browser.
    Html,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the rails of this node, and the pods that have their devices
    #[command(
        after_help = "STATE is live (the pod has the device), busy (an ADD or DEL is running), dead (the pod is \
gone without a DEL), cut-off (the ADD was killed), on-host (the pod is alive, but its device is on the host), \
returned (the device has returned, but its address is still leased), missing (the pod is gone, and the device has \
not returned), elsewhere (the pod is alive, but its device is neither there nor on the host), or unknown (the pod \
cannot be inspected). VFS is the number of VFs and the number that the PF supports.
Exit status: 0 nothing to do, 1 the command failed or the lines below the tables say what to do, 2 wrong usage."
    )]
    Status,
    /// Check that the rails in pods are as ADD made them, and that their gateways answer; list every difference
    #[command(
        after_help = "The checks are those of the verb CHECK, for all attachments at once. Gateways are probed even \
where `gatewayProbe` is off; each has one second to answer. Nothing in a pod is changed.
Exit status: 0 no difference, 1 a difference, or the command failed, 2 wrong usage."
    )]
    Check,
    /// Check whether this node is ready for pods with rails, and print a remedy for each fault
    #[command(
        after_help = "FAIL: pods with that rail, or with any rail, do not start or do not work; use the exit status to \
keep pods from the node. warn: pods start, or most of them do. skip: the check could not be made; the text says \
why. Nothing is changed.
Exit status: 0 no check failed, 1 a check failed, 2 wrong usage."
    )]
    Doctor(DoctorArgs),
    /// Wait until this node has its rails: for systemd, and for whatever else must not start pods earlier
    #[command(
        after_help = "It waits for what `doctor` checks of node.json, rails and pools: PFs with a driver, a link and \
VFs (with --pfs, and where no PF supports them: without), and this node's prefixes in the store. What is missing is printed to stderr when it changes.
Exit status: 0 the rails are there, 1 the time is over, 2 wrong usage."
    )]
    Wait(WaitArgs),
    /// Find faults in networks before a pod uses them: NetworkAttachmentDefinitions, .conf and .conflist
    #[command(
        after_help = "The command needs neither node.json nor root. error: ADD refuses it, or it cannot be \
intended. warning: it works, but perhaps not as intended.
Exit status: 0 no error, 1 an error, 2 wrong usage."
    )]
    Lint(LintArgs),
    /// Clean up after lost DELs: return the devices of pods that are gone to the host with their former name, MTU
    /// and MAC, release their addresses, and try once more what earlier DELs could not undo
    #[command(
        after_help = "WHICH is a container id, a pod as NAMESPACE/NAME, a device as status shows it, or the file of \
a record that cannot be read. Without WHICH, all attachments are reaped. A WHICH that nothing is called is named on stderr.
A pod is never touched while its network namespace exists, or while that is not known, as in another mount namespace \
or without the permission to inspect it. Run the command on the host, as root.
Exit status: 0 success, 1 something remains or is pending, 2 wrong usage."
    )]
    Reap(ReapArgs),
}

#[derive(Debug, Args)]
struct DoctorArgs {
    /// MTU of the networks of a rail, where this node knows none
    #[arg(long, value_name = "BYTES", default_value_t = 9000)]
    mtu: u32,
    /// Also check what RDMA needs: devices, ports, GIDs, path MTU, locked memory
    #[arg(long)]
    rdma: bool,
}

#[derive(Debug, Args)]
struct WaitArgs {
    /// The longest time to wait
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u32,
    /// Wait for no VFs: pods get the PFs themselves
    #[arg(long)]
    pfs: bool,
    #[command(flatten)]
    needs: DoctorArgs,
}

#[derive(Debug, Args)]
struct LintArgs {
    /// Print the networks as they are with rail-cni, also those that operators make, for kubectl apply; the findings go
    /// to stderr
    #[arg(long)]
    fix: bool,
    /// Files or directories with YAML or JSON for kubectl, or with CNI configurations; - reads stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
}

/// The arguments that rail-cni takes, from which its manual pages and shell completions are made.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command in the arguments.
pub fn run() -> ExitCode {
    let Cli { command, output } = match output::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let output = match (&command, output) {
        (_, Form::Table) => Output::Table,
        (_, Form::Json) => Output::Json,
        (Command::Status, Form::Html) => {
            return output::end(PROGRAM, look().and_then(|node| status(&node, status::Form::Html)));
        }
        (_, Form::Html) => {
            let error = Cli::command().error(ErrorKind::ArgumentConflict, "--output html is for status only");
            let _ = error.print();
            return ExitCode::from(2);
        }
    };
    let done = match command {
        // These commands write no log: their output has all errors.
        Command::Status => look().and_then(|node| status(&node, status::Form::Output(output))),
        Command::Check => look().and_then(|node| check(&node, output)),
        Command::Doctor(args) => {
            output::watch(PROGRAM);
            doctor(args.mtu, args.rdma, output)
        }
        Command::Wait(WaitArgs { timeout, pfs, needs: DoctorArgs { mtu, rdma } }) => {
            output::watch(PROGRAM);
            wait(PROGRAM, timeout, Needs { mtu, rdma, pfs }, output)
        }
        Command::Lint(args) => lint(&args.files, args.fix, output),
        Command::Reap(args) => start(PROGRAM, "reap").and_then(|node| reap(&node, &args, output)),
    };
    output::end(PROGRAM, done)
}

/// Reads node.json for a command that changes nothing, and limits its time to that of a runtime's call.
fn look() -> Result<Node> {
    output::watch(PROGRAM);
    let node = Node::load()?;
    watchdog::allow(node.call_timeout());
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::*;

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
