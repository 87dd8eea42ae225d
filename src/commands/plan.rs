//! `rail-ipam plan`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::change::{self, Import, Line, Nodes, Terms};
use super::out::{self, Out};
use super::report::{show_changes, tell};
use crate::cluster_networks;
use crate::document;
use crate::fail;
use crate::node::Node;
use crate::output::{self, Output, pretty, print, table};
use crate::plan::pattern::Pattern;
use crate::plan::refusal::{Doubt, Refusal};
use crate::plan::scheme::{Family, Mode, Polarity, Scheme, Tiers};
use crate::plan::{
    File, Plan, Pool, Pools, csv, fabric, manifest, nads, netplan, networks, nics, nvue, refused, topology,
};
use crate::pool;

/// Arguments of `rail-ipam plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Where the plan comes from: topology.json (spcx-gen or NVIDIA AIR), a fabric file, CIDRPool manifests, or
    /// a folder with netplan files of hosts; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// What the files are, where their content does not say it
    #[arg(long, value_enum, value_name = "KIND")]
    from: Option<Kind>,
    /// What to write; without it, the plan is checked and shown
    #[arg(long, value_enum, value_name = "TARGET")]
    to: Option<Target>,
    /// Folder for the files of the target; without it they are printed
    #[arg(long, value_name = "DIR", requires = "to")]
    out: Option<PathBuf>,
    /// Show what would change, write nothing
    #[arg(long, requires = "to")]
    diff: bool,
    /// Compare with the store of this node; exit status 1 if anything differs
    #[arg(long, conflicts_with = "to")]
    check: bool,
    /// Compare with these instead: manifests, or any other source
    #[arg(long, value_name = "FILE", requires = "check", num_args = 1..)]
    against: Vec<String>,
    /// The store of this node instead of our own
    #[arg(long, value_name = "NAME", conflicts_with = "all_nodes")]
    node: Option<String>,
    /// The store of every node of the plan
    #[arg(long)]
    all_nodes: bool,
    /// Take out what the plan does not name: pools and nodes of the store, files of an earlier plan in the folder
    #[arg(long)]
    prune: bool,
    /// NEW takes the place of OLD in the store, which goes
    #[arg(long, value_name = "NEW=OLD", value_parser = Terms::parse_replaces)]
    replaces: Vec<(String, String)>,
    /// Also while pods use addresses that they would lose
    #[arg(long)]
    force: bool,
    /// Of switches, for topology.json
    #[arg(long, value_enum, value_name = "N")]
    tiers: Option<Tiers>,
    /// How traffic is spread over planes, for topology.json [default: none]
    #[arg(long, value_enum, value_name = "MODE")]
    mode: Option<Mode>,
    /// Of addresses, for topology.json [default: ipv4]
    #[arg(long, value_enum, value_name = "FAMILY")]
    family: Option<Family>,
    /// Of IPv4 addresses, for topology.json [default: 172 with two tiers, 10 with three]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=223))]
    first_octet: Option<u8>,
    /// Which side is the switch, for topology.json [default: leaf-odd, as NVIDIA's]
    #[arg(long, value_enum, value_name = "SIDE")]
    polarity: Option<Polarity>,
    /// Of the hosts' interfaces, for topology.json: 1280 to 65535
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    mtu: Option<u32>,
    /// Networks of Services and pods, with commas between them: beside those of the fabric file and of node.json
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    cluster_networks: Vec<IpNet>,
    /// What is meant as it is, and would be refused otherwise
    #[arg(long, value_enum, value_name = "KIND", value_delimiter = ',')]
    allow: Vec<Doubt>,
    /// Every warning is an error
    #[arg(long)]
    strict: bool,
    /// Names of the pools: {rail}, {rail+1}, {plane} [default: rail-{rail}, with swplb rail-{rail}-plane-{plane}]
    #[arg(long, value_name = "PATTERN")]
    pool_name: Option<String>,
}

/// What a plan can be read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// topology.json of spcx-gen or of NVIDIA AIR.
    Topology,
    /// A fabric in a page of YAML.
    Fabric,
    /// Manifests of CIDRPools.
    Cidrpool,
    /// Netplan files of hosts.
    Netplan,
}

/// What a plan can be written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Target {
    /// Allocations, for rail-ipam.
    Store,
    /// Manifests of CIDRPools.
    Cidrpool,
    /// NetworkAttachmentDefinitions of the rails.
    Nads,
    /// A netplan file for each host.
    Netplan,
    /// NVUE commands for each leaf.
    Nvue,
    /// A line for each cable, for the network team.
    Csv,
    /// A node.json for each host: which NIC is which rail.
    NodeJson,
    /// Resources of the SR-IOV device plugin.
    DevicePlugin,
}

/// Reads, checks, and then writes, compares or shows.
pub fn plan(args: &PlanArgs, output: Output) -> Result<ExitCode> {
    if args.out.is_some() && args.to == Some(Target::Store) {
        fail!(InvalidConfig, "--out is for files: node.json says where the store is");
    }
    let of_the_store = args.force || args.node.is_some() || args.all_nodes || !args.replaces.is_empty();
    if !args.is_of_the_store() && of_the_store {
        fail!(InvalidConfig, "--node, --all-nodes, --replaces and --force are for the store");
    }
    if !args.is_of_the_store() && args.out.is_none() && args.prune {
        fail!(InvalidConfig, "--prune is for the store, or --out with what is there");
    }
    let (mut plan, pools, meant) = args.read()?;
    let files = match args.to {
        Some(Target::Cidrpool) => manifest::write(&mut plan)?,
        Some(Target::Nads) => nads::write(&mut plan)?,
        Some(Target::Netplan) => netplan::write(&plan)?,
        Some(Target::Nvue) => nvue::write(&plan)?,
        Some(Target::Csv) => csv::write(&plan)?,
        Some(Target::NodeJson) => nics::node_json(&mut plan)?,
        Some(Target::DevicePlugin) => nics::device_plugin(&mut plan)?,
        Some(Target::Store) | None => Vec::new(),
    };
    args.refuse_warnings(&plan.warnings)?;
    plan.warnings.extend(meant);
    plan.warnings.iter().for_each(|warning| say(warning));
    match (args.to, &args.out) {
        _ if args.check => check(args, &plan, &pools, output),
        (None, _) => show(&plan, output),
        (Some(Target::Store), _) => store(args, &plan, &pools, output),
        (Some(target), Some(dir)) => {
            // netplan warns of files that others may read; manifests and switch configuration are shared.
            let mode = if target == Target::Netplan { 0o600 } else { 0o666 };
            let is_alone = matches!(target, Target::Netplan | Target::Nvue);
            let (prune, is_diff) = (args.prune, args.diff);
            let name =
                target.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
            out::write(&Out { dir, target: &name, mode, is_alone, prune, is_diff }, &files, output)
        }
        (Some(_), None) if args.diff => {
            fail!(InvalidConfig, "--diff needs the store, or --out with what is there")
        }
        (Some(target), None) => {
            // JSON knows no comments.
            if files.len() > 1 && target == Target::NodeJson && output == Output::Table {
                fail!(
                    InvalidConfig,
                    "{} files: --out says where they go, --output json prints them",
                    files.len()
                );
            }
            let are_documents = !matches!(target, Target::Nvue | Target::Csv);
            print_files(&files, are_documents, output)
        }
    }
}

impl PlanArgs {
    /// Does it write or look at the store?
    fn is_of_the_store(&self) -> bool {
        self.to == Some(Target::Store) || (self.check && self.against.is_empty())
    }

    /// With `--strict`, a warning is a fault.
    fn refuse_warnings(&self, warnings: &[String]) -> Result<()> {
        if self.strict && !warnings.is_empty() { Err(refused(warnings)) } else { Ok(()) }
    }

    /// The plan that the files make, checked as a whole; with the doubts that are meant.
    fn read(&self) -> Result<(Plan, Pools, Vec<String>)> {
        let (mut plan, kind) = self.read_files(&self.files, self.from)?;
        let mut meant = plan.doubts.allow(&self.allow);
        if kind != Kind::Topology {
            self.refuse_scheme(kind)?;
        }
        if let Some(pattern) = &self.pool_name {
            rename(&mut plan, pattern)?;
        }
        let doubts = |plan: &mut Plan| std::mem::take(&mut plan.doubts);
        let pools = match plan.check() {
            Ok(pools) => pools,
            Err(faults) => return Err(Refusal { doubts: doubts(&mut plan), faults }.into()),
        };
        let octet = match kind {
            Kind::Topology => Some("--first-octet "),
            Kind::Fabric => Some("firstOctet: "),
            Kind::Cidrpool | Kind::Netplan => None,
        };
        let known = self.known_networks(&plan)?;
        networks::compare(&mut plan, &known, octet);
        meant.extend(plan.doubts.allow(&self.allow));
        doubts(&mut plan).refuse()?;
        Ok((plan, pools, meant))
    }

    /// The cluster's networks, as far as anybody says them.
    fn known_networks(&self, plan: &Plan) -> Result<Vec<IpNet>> {
        for network in &self.cluster_networks {
            cluster_networks::check(*network)
                .or_else(|what| fail!(InvalidConfig, "--cluster-networks: {what}"))?;
        }
        let mut known: Vec<IpNet> = Vec::new();
        for network in [&self.cluster_networks, &plan.cluster_networks, &Node::load()?.cluster_networks] {
            known.extend(network.iter().filter(|network| !known.contains(network)).collect::<Vec<_>>());
        }
        Ok(known)
    }

    /// What the plan is compared with.
    fn read_other(&self) -> Result<Pools> {
        let (mut plan, kind) = self.read_files(&self.against, None)?;
        // Manifests have the names that they were given.
        if let Some(pattern) = self.pool_name.as_ref().filter(|_| kind != Kind::Cidrpool) {
            rename(&mut plan, pattern)?;
        }
        plan.check().map_err(|faults| refused(&faults))
    }

    fn read_files(&self, files: &[String], from: Option<Kind>) -> Result<(Plan, Kind)> {
        if from == Some(Kind::Netplan) || files.iter().any(|file| Path::new(file).is_dir()) {
            return Ok((netplan::read(files)?, Kind::Netplan));
        }
        let texts = document::read_texts(files)?;
        let is_topology = |text| from.is_none() && topology::is_topology(text);
        if from == Some(Kind::Topology) || texts.first().is_some_and(is_topology) {
            let plan =
                topology::read(&texts, &self.scheme()?, self.mtu, &self.allow).map_err(|mut refusal| {
                    refusal.doubts.allow(&self.allow);
                    refusal
                })?;
            return Ok((plan, Kind::Topology));
        }
        let documents = document::parse_all(&texts)?;
        let Some(first) = documents.first() else { fail!(InvalidConfig, "no file") };
        let kind = match from {
            Some(kind) => kind,
            None if fabric::is_fabric(&first.value) => Kind::Fabric,
            None if crate::netplan::is_netplan(&first.value) => Kind::Netplan,
            None => Kind::Cidrpool,
        };
        let mut plan = match (kind, documents.as_slice()) {
            (Kind::Fabric, [_, second, ..]) => {
                fail!(InvalidConfig, "{}: a second fabric", second.root().place(""))
            }
            (Kind::Fabric, _) => fabric::read(first)?,
            // Whose file it is, its name says.
            (Kind::Netplan, _) => netplan::read(files)?,
            _ => manifest::read(&documents)?,
        };
        plan.sources = documents;
        Ok((plan, kind))
    }

    fn scheme(&self) -> Result<Scheme> {
        // A guess between two and three would give other addresses, not an error.
        let Some(tiers) = self.tiers else {
            fail!(
                InvalidConfig,
                "a topology file does not say how many tiers of switches there are: --tiers 2 or 3"
            );
        };
        Ok(Scheme {
            tiers,
            mode: self.mode.unwrap_or(Mode::None),
            family: self.family.unwrap_or(Family::Ipv4),
            first_octet: self.first_octet.unwrap_or(Scheme::usual_first_octet(tiers)),
            polarity: self.polarity.unwrap_or(Polarity::LeafOdd),
        })
    }

    /// What would be ignored is refused.
    fn refuse_scheme(&self, kind: Kind) -> Result<()> {
        let given = [
            ("--tiers", self.tiers.is_some()),
            ("--mode", self.mode.is_some()),
            ("--family", self.family.is_some()),
            ("--first-octet", self.first_octet.is_some()),
            ("--polarity", self.polarity.is_some()),
            ("--mtu", self.mtu.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => {
                fail!(InvalidConfig, "{name} is for topology files, these are {}", kind.name())
            }
            None => Ok(()),
        }
    }

    fn nodes(&self, node: &Node) -> Result<Nodes> {
        Ok(match &self.node {
            _ if self.all_nodes => Nodes::All,
            Some(name) if pool::is_name(name) => Nodes::One(name.clone()),
            Some(name) => fail!(InvalidConfig, "--node {name:?} is no name of a node"),
            None => Nodes::Own(pool::node_name(node)?),
        })
    }
}

/// Gives the pools other names; one that has no number of a rail cannot have them.
fn rename(plan: &mut Plan, pattern: &str) -> Result<()> {
    let pattern = Pattern::<2>::parse(pattern, &["rail", "plane"]).context("--pool-name")?;
    for pool in &mut plan.pools {
        let Some(rail) = pool.rail else {
            fail!(InvalidConfig, "--pool-name: nothing says which rail pool {} is", pool.name);
        };
        let suffix = if pool.name.ends_with("-v6") { "-v6" } else { "" };
        let plane = u64::from(pool.plane.unwrap_or(0));
        pool.name = pattern.render(&[u64::from(rail), plane]) + suffix;
        if !pool::is_name(&pool.name) {
            fail!(InvalidConfig, "--pool-name: {:?} is no name of a pool", pool.name);
        }
    }
    Ok(())
}

/// The plan at a glance.
fn show(plan: &Plan, output: Output) -> Result<ExitCode> {
    match output {
        Output::Json => {
            let pools: Vec<Value> = plan
                .pools
                .iter()
                .map(|pool| json!({"name": pool.name, "rail": pool.rail, "plane": pool.plane, "spec": pool.spec}))
                .collect();
            print(&pretty(&json!({"pools": pools, "nodes": plan.nodes().len(), "warnings": plan.warnings})))?;
        }
        Output::Table => {
            let rows = plan.pools.iter().map(|pool| {
                let Pool { name, rail, plane, spec, .. } = pool;
                let rows = &spec.static_allocations;
                let routes: Vec<_> = spec.routes.iter().map(|to| to.dst.as_str()).collect();
                let end = |row: Option<&pool::cidrpool::Row>| {
                    row.map(|row| format!("{} {}", row.prefix, row.node_name)).unwrap_or_default()
                };
                let number =
                    |number: &Option<u8>| number.map(|number| number.to_string()).unwrap_or_default();
                vec![
                    name.clone(),
                    number(rail),
                    number(plane),
                    spec.cidr.clone(),
                    routes.join(","),
                    rows.len().to_string(),
                    end(rows.first()),
                    end(rows.last()),
                ]
            });
            let headers = ["POOL", "RAIL", "PLANE", "CIDR", "ROUTES", "NODES", "FIRST", "LAST"];
            print(&table(&headers, rows))?;
            say(&format!(
                "{} nodes, {} pools; nothing was written: --to says what to write",
                plan.nodes().len(),
                plan.pools.len()
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the store, or shows what that would change.
fn store(args: &PlanArgs, plan: &Plan, pools: &Pools, output: Output) -> Result<ExitCode> {
    let node = Node::load()?;
    let nodes = args.nodes(&node)?;
    let import = changes(args, &node, plan, pools, &nodes)?;
    args.refuse_warnings(&import.warnings)?;
    tell(&import);
    if !args.diff {
        change::write(&node, &import, args.force)?;
    }
    show_changes(&import, args.diff, output)?;
    Ok(ExitCode::SUCCESS)
}

/// Compares with the store, or with other files.
fn check(args: &PlanArgs, plan: &Plan, pools: &Pools, output: Output) -> Result<ExitCode> {
    let mut import = if args.against.is_empty() {
        let node = Node::load()?;
        let nodes = args.nodes(&node)?;
        changes(args, &node, plan, pools, &nodes)?
    } else {
        Import { lines: differences(&args.read_other()?, pools), ..Import::default() }
    };
    args.refuse_warnings(&import.warnings)?;
    tell(&import);
    for line in &mut import.lines {
        // Manifests and a store of rail-ipam 0.1.0 know none, which is no difference in addresses.
        if let (Some(before), Some(after)) = (&mut line.before, &mut line.after) {
            before.keep_leaf_ports_of(after);
            after.keep_leaf_ports_of(before);
        }
    }
    let all = import.lines.len();
    import.lines.retain(|line| line.before != line.after);
    if import.lines.is_empty() && output == Output::Table {
        print(&format!("no difference in {all} allocations\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    show_changes(&import, true, output)?;
    Ok(if import.lines.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Both sides, sorted by node and pool.
fn differences(before: &Pools, after: &Pools) -> Vec<Line> {
    let mut lines: BTreeMap<(&str, &str), Line> = BTreeMap::new();
    for (is_after, pools) in [(false, before), (true, after)] {
        for (pool, allocations) in pools {
            for (node_name, allocation) in allocations {
                let line = lines.entry((node_name, pool)).or_insert_with(|| Line {
                    node_name: node_name.clone(),
                    pool: pool.clone(),
                    before: None,
                    after: None,
                    takes_place_of: None,
                });
                let side = if is_after { &mut line.after } else { &mut line.before };
                *side = Some(allocation.clone());
            }
        }
    }
    lines.into_values().collect()
}

fn changes(args: &PlanArgs, node: &Node, plan: &Plan, pools: &Pools, nodes: &Nodes) -> Result<Import> {
    let mut replaces = plan.replaces.clone();
    for (new, old) in &args.replaces {
        match replaces.insert(new.clone(), old.clone()) {
            Some(other) if other != *old => {
                fail!(InvalidConfig, "--replaces {new}={old}: in the plan it replaces {other}")
            }
            _ => (),
        }
    }
    change::changes(node, pools, nodes, &Terms { prune: args.prune, is_whole: true, replaces })
}

/// Several files are told from each other by a comment that each of the formats knows; manifests make one file for
/// kubectl.
fn print_files(files: &[File], are_documents: bool, output: Output) -> Result<ExitCode> {
    if output == Output::Json {
        let files: Vec<_> = files.iter().map(|file| json!({"name": file.name, "text": file.text})).collect();
        print(&pretty(&json!({ "files": files })))?;
        return Ok(ExitCode::SUCCESS);
    }
    for file in files {
        if files.len() > 1 {
            let separator = if are_documents { "---\n" } else { "" };
            print(&format!("{separator}# {}\n", file.name))?;
        }
        print(&file.text)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Topology => "topology files",
            Kind::Fabric => "a fabric file, which says that itself",
            Kind::Cidrpool => "CIDRPools",
            Kind::Netplan => "netplan files",
        }
    }
}

fn say(text: &str) {
    output::say("rail-ipam", text);
}
