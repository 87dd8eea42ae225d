//! The commands of rail-ipam: their arguments, and which function each is.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use super::import::{ImportArgs, import};
use super::plan::{PlanArgs, plan};
use super::release::{ReleaseArgs, release};
use super::show::{ShowArgs, show};
use crate::node::Node;
use crate::output::{self, Output};

/// Before what it says on stderr.
pub const PROGRAM: &str = "rail-ipam";
const PLAN_HELP: &str = "Examples:
  rail-ipam plan fabric.yaml                                       check it, and show its pools
  rail-ipam plan topology.json --tiers 2 --to cidrpool --out pools
  rail-ipam plan --from netplan hosts/ --pool-name 'rail-{rail+1}' --to cidrpool
  rail-ipam plan pools/*.yaml --to store --diff                    what would change on this node
  rail-ipam plan topology.json --tiers 2 --check --against pools/*.yaml

Everything is checked first; if anything is wrong, nothing is written. Exit status: 0 done or no
difference, 1 failed, refused or differences, 2 wrong usage.";

/// Addresses of the rails: what was planned for a node, and which pod holds what.
#[derive(Debug, Parser)]
#[command(
    name = "rail-ipam",
    version = output::VERSION.as_str(),
    after_help = "Examples:
  rail-ipam show                                  what this node has, and who holds it
  rail-ipam import pools/*.yaml --dry-run         what these CIDRPools would change here
  kubectl get cidrpools -A -o yaml | rail-ipam import -
  rail-ipam release --dead                        give back what dead pods still hold

A container runtime calls the same program with CNI_COMMAND set. Paths and the name of
the node come from /etc/rail-cni/node.json (RAIL_CNI_NODE_CONFIG names another file).
Exit status: 0 done, 1 failed or refused, 2 wrong usage."
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
    /// Put CIDRPool manifests into the store of this node
    #[command(after_help = "Each file is a CIDRPool, several as YAML documents, a list, or what \
`kubectl get cidrpools -A -o yaml` prints; - is standard input. Static allocations count, and those in \
status.allocations that nv-ipam's controller chose. All files are checked first: if anything is wrong, \
nothing is written. A node that no manifest names keeps what an earlier import gave it, until --prune; one that takes \
its place needs --replaces. Where a running pod would lose its address, it is named and nothing is written without \
--force.")]
    Import(ImportArgs),
    /// Plan a fabric: check it, show it, compare it, write it
    #[command(after_help = PLAN_HELP)]
    Plan(PlanArgs),
    /// Show allocations and leases of this node
    #[command(
        after_help = "STATE is live (the pod's network namespace is there), dead (it is gone: the next \
ADD takes the address over), unknown (which of both cannot be told from here), free, unreadable (a file in the \
lease folder that is damaged) or damaged (the file in the store)."
    )]
    Show(ShowArgs),
    /// Give leases back whose pods are gone
    #[command(after_help = "Examples:
  rail-ipam release --address 172.16.1.60
  rail-ipam release --container 0a1b2c3d --ifname net1
  rail-ipam release --pool rail-3 --dead

A lease whose network namespace is still there, or cannot be judged, is kept, unless --force is
given: the address would be given to a second pod while the first one uses it. Exit status 1 when
one was kept.")]
    Release(ReleaseArgs),
}

/// Runs the command in the arguments.
pub fn run() -> ExitCode {
    let Cli { command, output } = match output::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let done = match command {
        Command::Import(args) => start("import").and_then(|node| import(&node, &args, output)),
        Command::Plan(args) => {
            crate::log::describe_command(PROGRAM, "plan");
            plan(&args, output)
        }
        Command::Show(args) => start("show").and_then(|node| show(&node, &args, output)),
        Command::Release(args) => start("release").and_then(|node| release(&node, &args, output)),
    };
    output::end(PROGRAM, done)
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
        let parse = |args: &str| Cli::try_parse_from(args.split(' '));
        assert!(parse("rail-ipam release --address 10.0.0.1 --force --output json").is_ok());
        assert!(parse("rail-ipam release --pool p --dead").is_ok());
        for bad in ["release", "release --pool p", "release --dead --force", "release --ifname a", "import"] {
            assert!(parse(&format!("rail-ipam {bad}")).is_err(), "{bad}");
        }
    }
}
