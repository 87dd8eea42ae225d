//! The verbs of railctl: their arguments, and the function that runs each.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, CommandFactory as _, Parser, Subcommand};

use rail_cni::cni::{self, RELEASE, Version};
use rail_cni::node::Node;
use rail_cni::{failure, watchdog};

use super::cables::{CablesArgs, cables};
use super::check::check;
use super::devices::devices;
use super::discover::{DiscoverArgs, discover};
use super::doctor::{Needs, doctor, wait};
use super::env::{EnvArgs, env};
use super::help;
use super::import::{ImportArgs, import};
use super::lease::{LeaseArgs, lease};
use super::leases::{LeasesArgs, leases};
use super::lint::lint;
use super::pages::pages;
use super::plan::{PlanArgs, plan};
use super::preflight::{PreflightArgs, merge, preflight};
use super::reap::{ReapArgs, reap};
use super::refused;
use super::release::{ReleaseArgs, release};
use super::root;
use super::status::{status, status_page};
use super::vfs::{VfsArgs, vfs};
use super::{start, start_lenient};
use crate::output::{self, Output, PROGRAM};

const PLAN_HELP: &str = "Everything is checked first; if anything is wrong, nothing is written. The exit status is 0 if \
the command is done or finds no difference, 1 if it fails, refuses the plan or finds a difference, and 2 for a usage error.";

/// Show, check and plan the rails of this node and its pods, and clean up after lost DELs.
#[derive(Debug, Parser)]
#[command(
    name = PROGRAM,
    version = RELEASE.as_str(),
    after_help = "The paths and the name of the node come from /etc/rail-cni/node.json, or from the file that \
RAIL_CNI_NODE_CONFIG names. `lint`, `plan` and `env` need neither that file nor root.
Exit status: 0 success, 1 the command failed, also for lack of root, or something remains to be done, 2 usage error."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Output format
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "table",
        value_name = "FORM"
    )]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the rails of this node, and which pod has which device
    #[command(
        after_help = "STATE is live (the pod has the device), tapped (the same, and a link in another namespace takes its frames), busy (an ADD or DEL is running), dead (the pod is \
gone without a DEL), cut-off (the ADD was killed), lost (the pod is alive, but its device is on the host), on-host (the same, and the pod cannot be seen), \
missing (the pod is gone, and the device has not returned), elsewhere (the pod is alive, but its device is neither \
there nor on the host), or unknown (the pod cannot be inspected). VFS is the number of VFs and the number that the PF supports.
JSON: rails[]: rail or null; pf (name as in node.json, pciID, netdev, driver, link, mtu, rdma[], counted: errors, \
discards, pause frames, carrier_down; null without a netdev); rdmaCounted: errors, \
repetitions and congestion of RDMA, by PCI address of PF or VF; vfs (max, enabled, attached, dead, lost, free). attachments[]: rail, \
state, network, pod, containerID, ifname, part (whole or rdma), netns, since, device, pf, addresses[], source (host), minPlanes, mtu, \
mac, link, rdma[], gids[] (device, port, index, address), error, tapped: null, or link, kind, netns and pod of whoever taps it, each null if unknown; away: null, or interface, netns and pod (or null) of a device that is missing or elsewhere. pending[]: device, network, pod, containerID, ifname, since, steps[] \
(step, why, tries, since). lost[], without a record: device, interface, addresses[], netns. unreadable[]: damaged records. node; rdma: \
shared, exclusive or null; emptied: the run directory was emptied, and not rebuilt; todo[]: the lines below the tables.
Exit status: 0 nothing to do, 1 the command failed or the lines below the tables say what to do, 2 usage error."
    )]
    Status(StatusArgs),
    /// Compare the rails in pods with what ADD made, and probe their gateways
    #[command(
        after_help = "The checks are those of the verb CHECK, for all attachments at once. Gateways are probed even \
where `gatewayProbe` is off; each has one second to answer. Nothing in a pod is changed.
JSON: attachments[]: pod, containerID, ifname, network, rail, device, gateways[] (those probed), differences[]; lost[] and \
unreadable[] as in status.
Exit status: 0 no difference, 1 a difference, or the command failed, 2 usage error."
    )]
    Check,
    /// Check whether pods with rails can start on this node, with a remedy for each fault
    #[command(
        after_help = "FAIL: pods with that rail, or with any rail, do not start or do not work; use the \
            exit status to keep pods off the node. warn: most pods start. skip: the check could not be made; the text says \
why. The roce-… checks are experimental: they were not tried on a real device. Nothing is changed.
JSON: node; ready: whether the exit status is 0; counts (ok, warn, fail, skip); checks[]: check, verdict, rail or null, \
text, remedy or null.
Exit status: 0 no check failed, 1 a check failed, 2 usage error."
    )]
    Doctor(DoctorArgs),
    /// Wait until this node has its rails, before kubelet starts pods
    #[command(
        after_help = "Waits until every PF has a driver, a link and VFs (unless --pfs is given or no PF supports VFs), and \
the store has this node's prefixes, as `doctor` checks them. Each change in what is missing is printed to stderr.
Exit status: 0 ready, 1 timed out, 2 usage error."
    )]
    Wait(WaitArgs),
    /// Find faults in networks (NetworkAttachmentDefinitions, .conf, .conflist) before a pod uses
    /// them
    #[command(
        after_help = "Needs neither node.json nor root. error: ADD would refuse it, or it is certainly a \
            mistake. \
warning: it works, but perhaps not as intended.
JSON: networks, otherNetworks, errors, warnings (numbers); findings[]: file, line, column, severity (error, warning, note), \
network, message, null if unknown; silenced[]: the same with reason.
Exit status: 0 no error, 1 an error, 2 usage error."
    )]
    Lint(LintArgs),
    /// Clean up after lost DELs: restore the devices of dead pods on the host, release their
    /// addresses, and retry pending steps; return lost devices to running pods
    #[command(
        after_help = "WHICH is a container ID, a pod as NAMESPACE/NAME, a device as status shows it, or the file of \
a record that cannot be read. Without WHICH, all attachments are reaped. Any WHICH that matches nothing is reported on stderr.
A pod is never touched while its network namespace exists, or while that cannot be checked, as in another mount \
namespace or without permission; only --reattach returns what it has lost. Run the command on the host, as root.
JSON: givenBack[] (restored), left[] (not) and rebuilt[]: device, netdev, network, containerID, ifname, pod, since, error; \
undone[], pending[], forgotten[] (steps) and lost[] as in status; reattached[] and notReattached[]: like givenBack[]; unreadable[] and dropped[]: damaged records that stayed or were \
removed; dryRun; inUse.
Exit status: 0 success, 1 something remains or is pending, 2 usage error."
    )]
    Reap(ReapArgs),
    /// Compare each rail's leaf port, as announced by LLDP, with the plan
    #[command(
        after_help = "STATE is right, wrong (another leaf or port than planned), unplanned (the plan has \
            no leaf port for this rail), unnamed (the leaf announces no name to compare), two-neighbours (two announcements differ: a pod may have forged \
            one), silent (no LLDP arrived \
            in time), or no-link (the PF has no link). Most leaves announce themselves every 30 \
                seconds. It sends nothing and changes nothing. Run the command on the host, as root.
JSON: cables[]: rail, pf, planned[], found (systemName, chassis, port, portDescription), state, swapWith, problem.
Exit status: 0 every cable is right or unplanned, 1 another state, or the command failed, 2 usage error."
    )]
    Cables(CablesArgs),
    /// Propose which NIC is which rail, from LLDP, the plan and the GPUs, with the reason for each
    #[command(
        after_help = "RAIL is ? for a NIC that may be one of several rails. Contradictions follow below the table, and a \
node.json of the certain rows. The rail follows from the leaf that LLDP names, from the plan's leaf ports and prefixes, or from the \
PCI switch or root that a NIC shares with a GPU (experimental: not tried on a GPU node). Run it on the host, as root.
JSON: gpus[]; isCertain; nics[]: rail, nic, netdev, isCandidate, gpus[] (gpu, near), leaf, reasons[], contradictions[].
Exit status: 0 every row is certain, 1 one is not, or the command failed, 2 usage error."
    )]
    Discover(DiscoverArgs),
    /// Test the rails of this node before a job: attach a free VF of each, ping gateway and peers
    /// with packets of the PF's MTU, and return everything
    #[command(
        after_help = "STATE is fine, wrong (the lines below the table say what to do), in-use (not tested, \
            because pods have all its VFs or addresses), or no-pool (not tested, because node.json leaves its \
            addresses to another IPAM plugin). COUNTED is the number of errors and discards during the test. \
    All devices are returned however the command ends; after SIGKILL, the next ADD or `railctl \
    reap` returns them. If rail-cni is called for a pod meanwhile, they are returned at once. Run it on the host, as root; --merge runs \
anywhere.
JSON: node; rails[]: rail, pf, state, why (if not tried), problems[] (step: device, add, carrier, gateway, mtu, plan, \
peer, bandwidth or del; code of ADD; text), and after an ADD device, addresses[], mtu, counted (pf, device, rdma), leaf, bandwidth (null, or node and gbits), asked[] (node, rail, address, \
leaf; way: leaf, spine or cross; state: reached, too-large or silent). With --merge: nodes[] (node, rails[], where a peer's state may be \
away), missing[], isGood: whether the exit status is 0.
Exit status: 0 no rail is wrong (with --all: every rail is fine), 1 another state, or the command failed, 2 usage error."
    )]
    Preflight(PreflightArgs),
    /// List the devices of the rails that a device plugin can offer, as ADD judges them
    #[command(
        after_help = "STATE is free, held (a pod has it) or refused (no pod has it, and ADD would refuse it); the lines below \
the table say why, and which devices node.json excludes. LINK is the PF's, as in `status`. Only rails that \
node.json lists are shown. Nothing is changed. Run it on the host, as root.
JSON: devices[]: device, rail, pf, isVf, numaNode, link (the PF's), state, problem, files[] (in /dev); excluded[]: device, problem.
Exit status: 0 none is refused, 1 one is, or the command failed, 2 usage error."
    )]
    Devices,
    /// Make the VFs that node.json asks for, with their number, MTU, driver and settings
    #[command(
        after_help = "STATE is as-wanted, changed, differs (with --check), refused or failed; the lines below the table say \
why. VFS is the number of VFs and the number that the firmware allows. VFs of pods are not touched, nor are PFs that the host \
itself uses or that sriov-network-operator manages. Run it on the host, as root, before kubelet starts.
JSON: pfs[]: rail, pf, netdev, wanted and vfs (numbers), max, state, reason, problem, changes[] (what, vf, from, to).
Exit status: 0 everything is as wanted, 1 something is not, or the command failed, 2 usage error."
    )]
    Vfs(VfsArgs),
    /// Write CIDRPool manifests to the store of this node
    #[command(
        after_help = "Each file is a CIDRPool, several as YAML documents, a list, or what \
`kubectl get cidrpools -A -o yaml` prints; - is standard input. The import uses static allocations, and those that \
nv-ipam's controller chose, in status.allocations. All files are checked first: if anything is wrong, nothing is \
written. A node that no manifest names keeps its allocations unless --prune is given; a node that replaces it needs \
--replaces. If a running pod would lose its address, the pod is named and nothing is written without --force."
    )]
    Import(ImportArgs),
    /// Check, print, compare or write the plan of a fabric
    #[command(after_help = PLAN_HELP)]
    Plan(PlanArgs),
    /// Print the prefixes of this node, and the pods that hold their addresses
    #[command(
        after_help = "STATE is live (the pod's network namespace exists), dead (it is gone, and the next \
ADD takes the address over), unknown (neither can be proved), free (no pod holds the address), unreadable (the \
lease's file is damaged) or damaged (the file in the store is damaged).
JSON: pools[]: node, pool, prefix, gateway, rail, routes, exclusions, leafPorts, leases[], free, error. A lease: address, state, \
network, containerID, ifname, pod, since, error; that of a resource claim has claim (uid, name, device, function) instead."
    )]
    Leases(LeasesArgs),
    /// Lease the address of a rail to a device of a resource claim, as rail-agent does for DRANET
    #[command(
        after_help = "If the device already has a lease, its address is printed again. The lease ends with \
`railctl release --claim UID`, or at the next boot. With --output json, a refusal is printed as `refused`, whose `reason` \
is held, invalid, no-pool or failed.
JSON: claim, device, rail, table, addresses[] (pool, address, gateway), routes[] (dst; shared: another rail has it too)."
    )]
    Lease(LeaseArgs),
    /// Release leases of pods that are gone
    #[command(
        after_help = "A lease is kept unless its network namespace is provably gone, because a second pod could get an \
address in use. A resource claim's lease is kept while its device is in a pod. --force releases it anyway. The \
exit status is 1 if a lease was kept.
JSON: released[] and refused[], with the keys of leases."
    )]
    Release(ReleaseArgs),
    /// In a pod, print which interface and RDMA device is which rail, also for NCCL, NVSHMEM, UCX
    /// and gloo
    #[command(
        after_help = "It needs no privilege, no node.json and no API server. Unknown values are omitted, with a message on \
stderr.
--check requires NCCL's variables, in the environment or in NCCL's files, and compares those of other libraries if \
they are set.
JSON: rails[]: rail, plane, network, interface, addresses[], rdma (device, port, gidIndex), leafPorts[]; variables; unknown[]; \
with --check differences[]: variable, expected, found.
Exit status: 0 success, 1 no rails, rails that cannot be told apart, a difference, or a failure, 2 usage error."
    )]
    Env(EnvArgs),
    /// Write the manual pages and the shell completions of railctl, for scripts/install and packages
    #[command(hide = true)]
    Pages(PagesArgs),
}

#[derive(Debug, Args)]
struct StatusArgs {
    /// Print a page for a browser instead, such as for a ticket
    #[arg(long, conflicts_with = "output")]
    html: bool,
}

#[derive(Debug, Args)]
struct DoctorArgs {
    /// MTU to assume if no network here sets one
    #[arg(long, value_name = "BYTES", default_value_t = 9000)]
    mtu: u32,
    /// Also check what RDMA needs: devices, ports, GIDs, path MTU, locked memory
    #[arg(long)]
    rdma: bool,
}

#[derive(Debug, Args)]
struct WaitArgs {
    /// How long to wait
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u32,
    /// Do not wait for VFs: pods get the PFs themselves
    #[arg(long)]
    pfs: bool,
    #[command(flatten)]
    needs: DoctorArgs,
}

#[derive(Debug, Args)]
struct LintArgs {
    /// Print the networks rewritten for rail-cni, also those that operators make, for kubectl
    /// apply; findings go to stderr
    #[arg(long)]
    fix: bool,
    /// Files or directories with YAML or JSON for kubectl, or with CNI configurations; - reads
    /// stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
}

#[derive(Debug, Args)]
struct PagesArgs {
    /// Directory in which `man`, `bash`, `zsh` and `fish` are made
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

/// The arguments of railctl.
pub fn command() -> clap::Command {
    help::complete(Cli::command())
}

/// Runs the command in the arguments. A network may name railctl as its `type`: it does nothing for
/// a runtime.
pub fn run() -> ExitCode {
    if std::env::var_os("CNI_COMMAND").is_some_and(|verb| !verb.is_empty()) {
        return refuse_to_be_a_plugin();
    }
    let Cli { command, output } = match output::parse(command()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let done = command.require_root().and_then(|()| command.run(output));
    output::end(done)
}

impl Command {
    /// Fails if the command needs root, and another user runs it. `doctor` skips what it cannot
    /// see.
    fn require_root(&self) -> Result<()> {
        let needs_root = match self {
            Command::Doctor(_) | Command::Lint(_) | Command::Env(_) | Command::Pages(_) => false,
            Command::Plan(args) => args.is_of_the_store(),
            Command::Preflight(args) => args.is_of_this_node(),
            _ => true,
        };
        if needs_root { root::require() } else { Ok(()) }
    }

    fn run(self, output: Output) -> Result<ExitCode> {
        match self {
            // These commands write no log: their output has all errors.
            Command::Status(StatusArgs { html: true }) => {
                look().and_then(|node| status_page(&node))
            }
            Command::Status(_) => look().and_then(|node| status(&node, output)),
            Command::Check => look().and_then(|node| check(&node, output)),
            Command::Doctor(args) => {
                output::watch();
                doctor(args.mtu, args.rdma, output)
            }
            Command::Wait(WaitArgs {
                timeout,
                pfs,
                needs: DoctorArgs { mtu, rdma },
            }) => {
                output::watch();
                wait(timeout, Needs { mtu, rdma, pfs }, output)
            }
            Command::Cables(args) => look().and_then(|node| cables(&node, &args, output)),
            Command::Discover(args) => look().and_then(|node| discover(&node, &args, output)),
            Command::Preflight(args) => merge(&args, output).unwrap_or_else(|| {
                start("preflight").and_then(|node| preflight(&node, &args, output))
            }),
            Command::Devices => look().and_then(|node| devices(&node, output)),
            Command::Vfs(args) => start("vfs").and_then(|node| vfs(&node, &args, output)),
            Command::Lint(args) => lint(&args.files, args.fix, output),
            Command::Reap(args) => {
                start_lenient("reap").and_then(|node| reap(&node, &args, output))
            }
            Command::Import(args) => refused::told(
                start("import").and_then(|node| import(&node, &args, output)),
                output,
            ),
            Command::Plan(args) => {
                rail_cni::log::describe_command(PROGRAM, "plan");
                refused::told(plan(&args, output), output)
            }
            Command::Leases(args) => start("leases").and_then(|node| leases(&node, &args, output)),
            Command::Lease(args) => refused::told(
                start("lease").and_then(|node| lease(&node, &args, output)),
                output,
            ),
            Command::Release(args) => {
                start("release").and_then(|node| release(&node, &args, output))
            }
            Command::Env(args) => look().and_then(|node| env(&node, &args, output)),
            Command::Pages(args) => write_pages(&args.directory),
        }
    }
}

fn write_pages(directory: &Path) -> Result<ExitCode> {
    pages(command(), PROGRAM, directory)
        .with_context(|| format!("cannot write the pages to {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn refuse_to_be_a_plugin() -> ExitCode {
    let error = failure!(
        InvalidConfig,
        "type: {PROGRAM} is a command-line tool, not a plugin"
    );
    let answer = cni::answer(Version::V110.as_str(), &error, false);
    let _ = serde_json::to_value(answer).map(|json| output::print(&output::pretty(&json)));
    ExitCode::FAILURE
}

/// Reads node.json for a command that changes nothing, and limits its time to that of a runtime's
/// call.
fn look() -> Result<Node> {
    output::watch();
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
        let parse =
            |args: &str| Cli::try_parse_from([PROGRAM].into_iter().chain(args.split_whitespace()));
        for good in [
            "status --html",
            "status --output json",
            "reap --dry-run --output json",
            "reap --forget ai/trainer-0",
            "release --address 10.0.0.1 --force --output json",
            "release --pool p --dead",
            "release --claim u --device d",
            "lease --claim u --device d --function 0000:1a:00.2",
        ] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "status --html --output json",
            // Not everything at once.
            "reap --force",
            "release",
            "release --pool p",
            "release --dead --force",
            "release --ifname a",
            "release --device d",
            "lease --claim u",
            "import",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
