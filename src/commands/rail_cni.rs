//! The commands of rail-cni: their arguments, and which function each is.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use super::check::check;
use super::doctor::doctor;
use super::lint::lint;
use super::reap::{ReapArgs, reap};
use super::status::status;
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
        Command::Reap(args) => start("reap").and_then(|node| reap(&node, &args, output)),
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
