//! The operator's commands: import, show, release.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};

use super::allocation::Allocation;
use super::change::{self, Nodes, Terms};
use super::lease::{self, Entry, Folder, Lease, Tidy};
use super::report::{columns, show_changes, tell};
use super::store::Store;
use super::{import, is_name, node_name};
use crate::fail;
use crate::netns::Life;
use crate::node::Node;
use crate::output::{self, Output, pretty, print, table};
use crate::plan::cli as plan;
use crate::plan::cli::PlanArgs;
use crate::progress::Progress;

const PROGRAM: &str = "rail-ipam";
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

#[derive(Debug, Args)]
struct ImportArgs {
    /// CIDRPool manifests, YAML or JSON; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// Write the folder of every node that the manifests name
    #[arg(long, conflicts_with = "node")]
    all_nodes: bool,
    /// Write the folder of this node instead of our own
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Take nodes out of these pools that the manifests do not name
    #[arg(long)]
    prune: bool,
    /// NEW takes the place of OLD, which goes
    #[arg(long, value_name = "NEW=OLD", value_parser = Terms::parse_replaces)]
    replaces: Vec<(String, String)>,
    /// Check and show, write nothing
    #[arg(long)]
    dry_run: bool,
    /// Also while pods use addresses that they would lose
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Another node than this one
    #[arg(long, value_name = "NAME", conflicts_with = "all_nodes")]
    node: Option<String>,
    /// Every node in the store
    #[arg(long)]
    all_nodes: bool,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("which").required(true).multiple(true).args(["container", "address", "dead"])))]
struct ReleaseArgs {
    /// What this container holds
    #[arg(long, value_name = "ID")]
    container: Option<String>,
    /// Of that container, what this interface holds
    #[arg(long, value_name = "NAME", requires = "container")]
    ifname: Option<String>,
    /// This address
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// What the dead hold
    #[arg(long)]
    dead: bool,
    /// In this pool only
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Also what is in use
    #[arg(long, conflicts_with = "dead")]
    force: bool,
}

/// Runs the command in the arguments.
pub fn run() -> ExitCode {
    let Cli { command, output } = match output::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let done = match command {
        Command::Import(args) => run_import(&args, output),
        Command::Plan(args) => {
            crate::log::describe_command(PROGRAM, "plan");
            plan::run(&args, output)
        }
        Command::Show(args) => run_show(&args, output),
        Command::Release(args) => run_release(&args, output),
    };
    output::end(PROGRAM, done)
}

fn run_import(args: &ImportArgs, output: Output) -> Result<ExitCode> {
    let node = start("import")?;
    let nodes = match &args.node {
        _ if args.all_nodes => Nodes::All,
        Some(name) if is_name(name) => Nodes::One(name.clone()),
        Some(name) => fail!(InvalidConfig, "--node {name:?} is no name of a node"),
        None => Nodes::Own(node_name(&node)?),
    };
    let replaces = args.replaces.iter().cloned().collect();
    let terms = Terms { prune: args.prune, is_whole: false, replaces };
    let import = import::plan(&node, &args.files, &nodes, &terms)?;
    tell(&import);
    if !args.dry_run {
        change::write(&node, &import, args.force)?;
    }

    show_changes(&import, args.dry_run, output)?;
    Ok(ExitCode::SUCCESS)
}

/// A pool on a node, for people.
#[derive(Default)]
struct Shown {
    allocation: Option<Allocation>,
    damage: Option<String>,
    leases: Vec<(Entry, Result<Lease, String>, State)>,
}

fn run_show(args: &ShowArgs, output: Output) -> Result<ExitCode> {
    let node = start("show")?;
    if let Err(error) = node.check_place(None) {
        output::say(PROGRAM, &format!("these may not be the leases of this node: {error:#}"));
    }
    let mut shown: BTreeMap<(String, String), Shown> = BTreeMap::new();
    let wanted = match &args.node {
        _ if args.all_nodes => None,
        Some(name) if is_name(name) => Some(name.clone()),
        Some(name) => fail!(InvalidConfig, "--node {name:?} is no name of a node"),
        None => Some(node_name(&node)?),
    };
    let store = Store::open(&node)?;
    let node_names = wanted.as_ref().map_or_else(|| store.nodes(), |name| Ok(vec![name.clone()]))?;
    let mut progress = Progress::new("reading nodes", node_names.len());
    for node_name in node_names {
        progress.step();
        for (pool, found) in store.everything(&node_name)? {
            let (allocation, damage) = match found {
                Ok(allocation) => (allocation, None),
                Err(error) => (None, Some(format!("{error:#}"))),
            };
            shown.insert((node_name.clone(), pool), Shown { allocation, damage, ..Shown::default() });
        }
    }
    drop(progress);
    lease::for_each_folder(&node, |folder| {
        let Folder { node_name, pool, .. } = folder;
        if wanted.as_ref().is_some_and(|wanted| wanted != node_name) {
            return Ok(());
        }
        let mut leases = Vec::new();
        for entry in folder.entries()? {
            let Some((lease, state)) = look(folder, &entry)? else { continue };
            leases.push((entry, lease, state));
        }
        // A pool that was never in the store: inline, or taken away.
        if !leases.is_empty() || shown.contains_key(&(node_name.clone(), pool.clone())) {
            shown.entry((node_name.clone(), pool.clone())).or_default().leases = leases;
        }
        Ok(())
    })?;

    match output {
        Output::Json => {
            let pools: Vec<Value> =
                shown.iter().map(|((node, pool), shown)| shown.json(node, pool)).collect();
            print(&pretty(&json!({ "pools": pools })))?;
        }
        Output::Table => {
            let several = wanted.is_none();
            let mut headers =
                vec!["POOL", "PREFIX", "GATEWAY", "ROUTES", "ADDRESS", "STATE", "HOLDER", "SINCE"];
            if several {
                headers.insert(0, "NODE");
            }
            let rows = shown.iter().flat_map(|((node, pool), shown)| {
                let mut rows = shown.rows(pool);
                if several {
                    rows.iter_mut().for_each(|row| row.insert(0, node.clone()));
                }
                rows
            });
            print(&table(&headers, rows))?;
        }
    }
    for Shown { damage, leases, .. } in shown.values() {
        let unreadable = leases.iter().filter_map(|(_, lease, _)| lease.as_ref().err());
        damage.iter().chain(unreadable).for_each(|why| output::say(PROGRAM, why));
        for (entry, _, state) in leases {
            if let State::Unknown(why) = state {
                output::say(
                    PROGRAM,
                    &format!("{}: whether its holder is alive cannot be told: {why}", entry.address),
                );
            }
        }
    }
    if let (true, Some(name)) = (shown.is_empty(), &wanted) {
        output::say(PROGRAM, &format!("node {name} has no allocation{}", store.hint(name)));
    }
    Ok(ExitCode::SUCCESS)
}

impl Shown {
    /// The address that the next pod would get.
    fn free(&self) -> Option<IpAddr> {
        let held: BTreeSet<IpAddr> = self.leases.iter().map(|(entry, ..)| entry.address).collect();
        self.allocation.as_ref()?.first_free(|address| held.contains(&address))
    }

    fn rows(&self, pool: &str) -> Vec<Vec<String>> {
        let [prefix, gateway, routes] = self.allocation.as_ref().map_or_else(Default::default, columns);
        let row = |address: String, state: &str, holder: String, since: String| {
            let start = [pool.to_owned(), prefix.clone(), gateway.clone(), routes.clone()];
            start.into_iter().chain([address, state.to_owned(), holder, since]).collect()
        };
        let mut rows: Vec<Vec<String>> = self
            .leases
            .iter()
            .map(|(entry, lease, state)| {
                let (holder, since) = lease.as_ref().map_or_else(
                    |_| Default::default(),
                    |lease| (lease.holder.to_string(), lease.since.clone()),
                );
                row(entry.address.to_string(), state.word(), holder, since)
            })
            .collect();
        if let Some(address) = self.free() {
            rows.push(row(address.to_string(), "free", String::new(), String::new()));
        } else if rows.is_empty() {
            let state = if self.damage.is_some() { "damaged" } else { "" };
            rows.push(row(String::new(), state, String::new(), String::new()));
        }
        rows
    }

    fn json(&self, node: &str, pool: &str) -> Value {
        let allocation = self.allocation.as_ref();
        let leases: Vec<Value> =
            self.leases.iter().map(|(entry, lease, state)| lease_json(entry, lease, state)).collect();
        json!({"node": node, "pool": pool, "prefix": allocation.map(|a| a.prefix),
            "gateway": allocation.and_then(|a| a.gateway), "rail": allocation.and_then(|a| a.rail),
            "routes": allocation.map(|a| &a.routes), "exclusions": allocation.map(|a| &a.exclusions),
            "leafPorts": allocation.map(|a| &a.leaf_ports), "leases": leases, "free": self.free(), "error": self.damage})
    }
}

fn run_release(args: &ReleaseArgs, output: Output) -> Result<ExitCode> {
    let node = start("release")?;
    node.check_place(None)?;
    let (mut released, mut refused) = (Vec::new(), Vec::new());
    let mut tidy = Tidy::default();
    lease::for_each_folder(&node, |folder| {
        if args.pool.as_ref().is_some_and(|pool| *pool != folder.pool) {
            return Ok(());
        }
        let Some(lock) = folder.lock()? else { return Ok(()) };
        let entries = folder.entries()?;
        let mut left = entries.len();
        for entry in entries {
            let Some((lease, state)) = look(folder, &entry)? else { continue };
            if !args.selects(&entry, lease.as_ref().ok(), &state) {
                continue;
            }
            let mut json = lease_json(&entry, &lease, &state);
            json["node"] = folder.node_name.as_str().into();
            json["pool"] = folder.pool.as_str().into();
            let who = lease.map_or_else(|_| "unknown".to_owned(), |lease| lease.holder.to_string());
            let text = format!("{} of pool {} from {who} ({})", entry.address, folder.pool, state.word());
            let kept = match state {
                State::Live => Some("its network namespace is there".to_owned()),
                State::Unknown(why) => Some(format!("whether it is alive cannot be told: {why}")),
                State::Dead | State::Unreadable => None,
            };
            match kept.filter(|_| !args.force) {
                Some(why) => refused.push((format!("{text}: {why}"), json)),
                None => {
                    folder.remove(&entry)?;
                    left -= 1;
                    released.push((text, json));
                }
            }
        }
        if left == 0 {
            tidy.remove_empty(folder, lock);
        }
        Ok(())
    })?;

    let jsons = |list: &[(String, Value)]| list.iter().map(|(_, json)| json.clone()).collect::<Vec<_>>();
    match output {
        Output::Json => {
            print(&pretty(&json!({"released": jsons(&released), "refused": jsons(&refused)})))?;
        }
        Output::Table => {
            print(&released.iter().map(|(text, _)| format!("released {text}\n")).collect::<String>())?;
        }
    }
    for (text, _) in &refused {
        let how = if args.dead { "`release --address` with --force" } else { "--force" };
        output::say(PROGRAM, &format!("refused {text}; {how} if you know better"));
    }
    if released.is_empty() && refused.is_empty() {
        output::say(PROGRAM, "no such lease: `rail-ipam show --all-nodes` shows what there is");
        // A clean-up has nothing to do most of the time; who names a lease is told when it is not there.
        return Ok(if args.dead { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    Ok(if refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl ReleaseArgs {
    fn selects(&self, entry: &Entry, lease: Option<&Lease>, state: &State) -> bool {
        let holder = lease.map(|lease| &lease.holder);
        let is = |wanted: &Option<String>, value: Option<&String>| {
            wanted.as_ref().is_none_or(|wanted| value == Some(wanted))
        };
        is(&self.container, holder.map(|holder| &holder.container_id))
            && is(&self.ifname, holder.map(|holder| &holder.ifname))
            && self.address.is_none_or(|address| address == entry.address)
            // Those that cannot be judged are refused by name.
            && (!self.dead || matches!(state, State::Dead | State::Unknown(_)))
    }
}

/// What `show` says of a lease.
#[derive(Debug)]
enum State {
    Live,
    Dead,
    /// With the reason.
    Unknown(String),
    Unreadable,
}

impl State {
    fn word(&self) -> &'static str {
        match self {
            State::Live => "live",
            State::Dead => "dead",
            State::Unknown(_) => "unknown",
            State::Unreadable => "unreadable",
        }
    }
}

/// The lease of an entry and its state; `None` when it is gone by now.
fn look(folder: &Folder, entry: &Entry) -> Result<Option<(Result<Lease, String>, State)>> {
    Ok(match folder.read(entry) {
        Ok(None) => None,
        Ok(Some(lease)) => {
            let state = match lease.life()? {
                Life::Alive => State::Live,
                Life::Dead => State::Dead,
                Life::Unknown(why) => State::Unknown(why),
            };
            Some((Ok(lease), state))
        }
        Err(why) => Some((Err(why), State::Unreadable)),
    })
}

fn lease_json(entry: &Entry, lease: &Result<Lease, String>, state: &State) -> Value {
    let (holder, error) = match (lease, state) {
        (Ok(lease), State::Unknown(why)) => (Some(lease), Some(why)),
        (Ok(lease), _) => (Some(lease), None),
        (Err(why), _) => (None, Some(why)),
    };
    json!({"address": entry.address, "state": state.word(), "network": holder.map(|l| &l.holder.network),
        "containerID": holder.map(|l| &l.holder.container_id), "ifname": holder.map(|l| &l.holder.ifname),
        "pod": holder.and_then(|l| l.holder.pod.as_ref()), "since": holder.map(|l| &l.since), "error": error})
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
