//! The commands of rail-ipam: their arguments, and which function each is.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use super::import::{ImportArgs, import};
use super::lease::{LeaseArgs, lease};
use super::plan::{PlanArgs, plan};
use super::release::{ReleaseArgs, release};
use super::show::{ShowArgs, show};
use super::start;
use crate::output::{self, Output};

/// The name before each message on stderr.
pub const PROGRAM: &str = "rail-ipam";
const PLAN_HELP: &str = "Examples:
  rail-ipam plan fabric.yaml                                       check it, and print its pools
  rail-ipam plan topology.json --tiers 2 --to cidrpool --out pools
  rail-ipam plan --from netplan hosts/ --pool-name 'rail-{rail+1}' --to cidrpool
  rail-ipam plan pools/*.yaml --to store --diff                    what would change on this node
  rail-ipam plan topology.json --tiers 2 --check --against pools/*.yaml

Everything is checked first; if anything is wrong, nothing is written. The exit status is 0 if the
command is done or finds no difference, 1 if it fails, refuses the plan or finds a difference, and 2
for wrong usage.";

/// Manage the addresses of the rails: the prefixes of each node, and the pods that hold addresses
#[derive(Debug, Parser)]
#[command(
    name = "rail-ipam",
    version = output::VERSION.as_str(),
    after_help = "Examples:
  rail-ipam show                                  print this node's prefixes and their holders
  rail-ipam import pools/*.yaml --dry-run         print what these CIDRPools would change here
  kubectl get cidrpools -A -o yaml | rail-ipam import -
  rail-ipam release --dead                        release the addresses of dead pods

A container runtime calls the same program with CNI_COMMAND set. Paths and the name of
the node come from /etc/rail-cni/node.json, or from the file in RAIL_CNI_NODE_CONFIG.
The exit status is 0 on success, 1 on failure or refusal, and 2 for wrong usage."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Form of the output
    #[arg(long, global = true, value_enum, default_value = "table", value_name = "FORM")]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Put CIDRPool manifests into the store of this node
    #[command(after_help = "Each file is a CIDRPool, several as YAML documents, a list, or what \
`kubectl get cidrpools -A -o yaml` prints; - is standard input. The import uses static allocations, and those that \
nv-ipam's controller chose, in status.allocations. All files are checked first: if anything is wrong, nothing is \
written. A node that no manifest names keeps its allocations unless --prune is given; a node that replaces it needs \
--replaces. If a running pod would lose its address, the pod is named and nothing is written without --force.")]
    Import(ImportArgs),
    /// Check, print, compare or write the plan of a fabric
    #[command(after_help = PLAN_HELP)]
    Plan(PlanArgs),
    /// Print allocations and leases
    #[command(
        after_help = "STATE is live (the pod's network namespace exists), dead (it is gone, and the next \
ADD takes the address over), unknown (nothing proves either), free (no pod holds the address), unreadable (the \
lease's file is damaged) or damaged (the file in the store is damaged)."
    )]
    Show(ShowArgs),
    /// Lease the address of a rail to a device of a resource claim, as rail-agent does for DRANET
    #[command(
        after_help = "A device that has a lease keeps it: the same call prints the same address. The lease ends with \
`rail-ipam release --claim UID`, or with the boot. With --output json, a refusal is printed as `refused`, whose `reason` \
is held, invalid, no-pool or failed."
    )]
    Lease(LeaseArgs),
    /// Release leases of pods that are gone
    #[command(after_help = "Examples:
  rail-ipam release --address 172.16.1.60
  rail-ipam release --container 0a1b2c3d --ifname net1
  rail-ipam release --pool rail-3 --dead
  rail-ipam release --claim 1df9fd4b-53c7-4cab-b6d4-bf0be5ee6526

A lease is kept if its network namespace exists or if nothing proves that it is gone, because a second
pod would get an address that the first one uses. That of a resource claim is kept if its device is
in a pod. --force releases it all the same. The exit status is 1 if a lease was kept.")]
    Release(ReleaseArgs),
}

/// The arguments that rail-ipam takes, from which its manual pages and shell completions are made.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command in the arguments.
pub fn run() -> ExitCode {
    let Cli { command, output } = match output::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let done = match command {
        Command::Import(args) => start(PROGRAM, "import").and_then(|node| import(&node, &args, output)),
        Command::Plan(args) => {
            crate::log::describe_command(PROGRAM, "plan");
            plan(&args, output)
        }
        Command::Show(args) => start(PROGRAM, "show").and_then(|node| show(&node, &args, output)),
        Command::Lease(args) => start(PROGRAM, "lease").and_then(|node| lease(&node, &args, output)),
        Command::Release(args) => start(PROGRAM, "release").and_then(|node| release(&node, &args, output)),
    };
    output::end(PROGRAM, done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_in_order() {
        Cli::command().debug_assert();
        let parse = |args: &str| Cli::try_parse_from(args.split(' '));
        assert!(parse("rail-ipam release --address 10.0.0.1 --force --output json").is_ok());
        assert!(parse("rail-ipam release --pool p --dead").is_ok());
        assert!(parse("rail-ipam release --claim u --device d").is_ok());
        assert!(parse("rail-ipam lease --claim u --device d --function 0000:1a:00.2").is_ok());
        for bad in [
            "release",
            "release --pool p",
            "release --dead --force",
            "release --ifname a",
            "release --device d",
            "lease --claim u",
            "import",
        ] {
            assert!(parse(&format!("rail-ipam {bad}")).is_err(), "{bad}");
        }
    }
}
