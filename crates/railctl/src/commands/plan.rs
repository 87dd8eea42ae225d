//! `railctl plan`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::change::{self, Force, Import, Line, Nodes, Scope, Terms};
use super::out::{self, Out, Owner, Stale};
use super::report::{Run, show_changes};
use crate::output::{self, Output, pretty, print, table};
use crate::progress::Progress;
use rail_cni::cluster_networks;
use rail_cni::fail;
use rail_cni::fault::Fault;
use rail_cni::node::Node;
use rail_cni::pool::{self, Allocation};
use rail_plan::document::{self, Text};
use rail_plan::pattern::Pattern;
use rail_plan::refusal::{Doubt, Refusal};
use rail_plan::scheme::{Family, Mode, Polarity, Scheme, Tiers, is_first_octet};
use rail_plan::template::Template;
use rail_plan::{
    File, Plan, Pool, Pools, cables, csv, fabric, groups, html, is_namespace, manifest, nads,
    netplan, networks, nics, refused, slurm, topology, volcano,
};

/// Arguments of `railctl plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Sources of the plan: topology.json (spcx-gen or NVIDIA AIR), topology.dot, a fabric file,
    /// CIDRPool manifests, a directory with these, or one with netplan files of hosts; - is standard
    /// input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// Kind of the files, if not evident from their content
    #[arg(long, value_enum, value_name = "KIND")]
    from: Option<Kind>,
    /// Target to write; without it, the plan is checked and printed
    #[arg(long, value_enum, value_name = "TARGET", group = "written")]
    to: Option<Target>,
    /// Jinja2 template of a leaf's configuration, written for each leaf
    #[arg(long, value_name = "FILE", group = "written")]
    template: Option<String>,
    /// Directory for the files of the target or template; without it, they are printed
    #[arg(long, value_name = "DIR", requires = "written")]
    out: Option<PathBuf>,
    /// Kubernetes namespace of the manifests (cidrpool, nads and sriov-node-policy only) [default:
    /// that of the source, or nvidia-network-operator, for CIDRPools; none for networks;
    /// nvidia-network-operator for policies]
    #[arg(long, value_name = "NAME", requires = "to")]
    namespace: Option<String>,
    /// Write networks as one plugin instead of a list (nads only), for dra-driver-sriov
    #[arg(long, requires = "to")]
    single: bool,
    /// Write one network and one resource for all rails (nads, device-plugin and sriov-node-policy
    /// only)
    #[arg(long, requires = "to")]
    one: bool,
    /// Resources of the networks, with {rail}, {rail+1}, {plane}: openshift.io/rail_{rail} (nads,
    /// device-plugin and sriov-node-policy only) [default: nvidia.com/POOL]
    #[arg(long, value_name = "PATTERN", requires = "to")]
    resource: Option<String>,
    /// Print what would change, and write nothing
    #[arg(long, requires = "written")]
    diff: bool,
    /// Compare the plan with the store of this node; exit status 1 means a difference. Entries that
    /// only the store has are warnings, with --prune differences
    #[arg(long, conflicts_with = "written")]
    check: bool,
    /// Compare with these files instead: manifests, or any other source
    #[arg(long, value_name = "FILE", requires = "check", num_args = 1..)]
    against: Vec<String>,
    /// Node to write or compare instead of this one
    #[arg(long, value_name = "NAME", conflicts_with = "all_nodes")]
    node: Option<String>,
    /// Write or compare all nodes of the plan
    #[arg(long)]
    all_nodes: bool,
    /// Remove what the plan does not name: pools and nodes of the store, files of an earlier plan
    /// in the directory
    #[arg(long)]
    prune: bool,
    /// Node NEW replaces node OLD, which is removed from the store
    #[arg(long, value_name = "NEW=OLD", value_parser = Terms::parse_replaces)]
    replaces: Vec<(String, String)>,
    /// Proceed even if running pods would lose their addresses
    #[arg(long)]
    force: bool,
    /// Number of switch tiers (topology.json only)
    #[arg(long, value_enum, value_name = "N")]
    tiers: Option<Tiers>,
    /// How traffic is spread over planes (topology.json only) [default: none]
    #[arg(long, value_enum, value_name = "MODE")]
    mode: Option<Mode>,
    /// Address families of the links (topology.json only) [default: ipv4]
    #[arg(long, value_enum, value_name = "FAMILY")]
    family: Option<Family>,
    /// First octet of IPv4 addresses (topology.json only) [default: 172 with two tiers, 10 with
    /// three]
    #[arg(long, value_name = "N", value_parser = parse_first_octet)]
    first_octet: Option<u8>,
    /// Which address of a link is the switch's (topology.json only) [default: leaf-odd, as
    /// NVIDIA's]
    #[arg(long, value_enum, value_name = "SIDE")]
    polarity: Option<Polarity>,
    /// MTU of the hosts' interfaces (topology.json only), 1280 to 65535
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    mtu: Option<u32>,
    /// Networks of Services and pods, separated by commas, in addition to those of the fabric file
    /// and of node.json; node-json writes them
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    cluster_networks: Vec<IpNet>,
    /// Accept these inconsistencies instead of refusing the plan
    #[arg(long, value_enum, value_name = "KIND", value_delimiter = ',')]
    allow: Vec<Doubt>,
    /// Treat every warning as an error
    #[arg(long)]
    strict: bool,
    /// Names of the pools: {rail}, {rail+1}, {plane} [default: rail-{rail}, with swplb
    /// rail-{rail}-plane-{plane}]
    #[arg(long, value_name = "PATTERN")]
    pool_name: Option<String>,
}

/// A kind of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// topology.json of spcx-gen or of NVIDIA AIR, or a graph (topology.dot).
    Topology,
    /// A fabric file.
    Fabric,
    /// CIDRPool manifests.
    Cidrpool,
    /// Netplan files of hosts.
    Netplan,
}

/// A target of `--to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Target {
    /// Allocations for rail-ipam.
    Store,
    /// CIDRPool manifests.
    Cidrpool,
    /// NetworkAttachmentDefinitions of the rails.
    Nads,
    /// A netplan file for each host.
    Netplan,
    /// NVUE commands of Cumulus Linux for each leaf.
    Nvue,
    /// Tables of SONiC's config_db for each leaf.
    Sonic,
    /// A line for each cable, for the network team.
    Csv,
    /// Each cable with both ends, for programs that configure switches or keep an inventory.
    Json,
    /// A node.json for each host: the NIC of each rail, the cluster's networks, a policy for VFs.
    NodeJson,
    /// Resources of the SR-IOV device plugin.
    DevicePlugin,
    /// A SriovNetworkNodePolicy for each rail, for the SR-IOV Network Operator.
    SriovNodePolicy,
    /// topology.conf of Slurm, for topology/tree.
    Slurm,
    /// topology.conf of Slurm, for topology/block.
    SlurmBlock,
    /// HyperNodes of Volcano.
    Volcano,
    /// A page for a browser: the fabric as a picture, and every link.
    Html,
}

/// `railctl plan`: reads and checks a plan, and then writes, compares or prints it.
pub fn plan(args: &PlanArgs, output: Output) -> Result<ExitCode> {
    if args.out.is_some() && args.to == Some(Target::Store) {
        fail!(
            InvalidConfig,
            "--out is for files; the store is where node.json says"
        );
    }
    let of_the_store =
        args.force || args.node.is_some() || args.all_nodes || !args.replaces.is_empty();
    if !args.is_of_the_store() && of_the_store {
        fail!(
            InvalidConfig,
            "--node, --all-nodes, --replaces and --force need --to store or --check"
        );
    }
    if !args.is_of_the_store() && args.out.is_none() && args.prune {
        fail!(InvalidConfig, "--prune needs --to store or --out");
    }
    let namespace = args.namespace()?;
    if args.single && args.to != Some(Target::Nads) {
        fail!(InvalidConfig, "--single is for --to nads");
    }
    let networks = args.networks()?;
    let template = args.template()?;
    let (mut plan, pools, meant) = args.read()?;
    let files = match args.to {
        Some(Target::Cidrpool) => manifest::write(&mut plan, namespace)?,
        Some(Target::Nads) => {
            let form = if args.single {
                nads::Form::Single
            } else {
                nads::Form::List
            };
            nads::write(&mut plan, &networks, form, namespace)?
        }
        Some(Target::Netplan) => netplan::write(&plan)?,
        Some(Target::Csv) => csv::write(&plan, &pools)?,
        Some(Target::Json) => cables::write(&plan, &pools)?,
        Some(Target::NodeJson) => nics::node_json(&mut plan)?,
        Some(Target::DevicePlugin) => nics::device_plugin(&mut plan, &networks)?,
        Some(Target::SriovNodePolicy) => nics::sriov_node_policy(&mut plan, &networks, namespace)?,
        Some(Target::Slurm) => slurm::write(&plan, slurm::Plugin::Tree)?,
        Some(Target::SlurmBlock) => slurm::write(&plan, slurm::Plugin::Block)?,
        Some(Target::Volcano) => volcano::write(&plan)?,
        Some(Target::Html) => html::write(&plan)?,
        Some(Target::Nvue | Target::Sonic | Target::Store) | None => match &template {
            Some(template) => template.write(&plan, &pools)?,
            None => Vec::new(),
        },
    };
    args.refuse_warnings(&plan.warnings)?;
    plan.warnings.extend(meant);
    plan.warnings.iter().for_each(|warning| say(warning));
    if args.check {
        return check(args, &plan, &pools, output);
    }
    let name = match (args.to, &template) {
        (Some(Target::Store), _) => return store(args, &plan, &pools, output),
        (Some(target), _) => target.name(),
        (None, Some(template)) => format!("template {}", template.suffix()),
        (None, None) => return show(&plan, output),
    };
    match &args.out {
        Some(dir) => write_files(args, dir, &name, &files, output),
        None if args.diff => fail!(InvalidConfig, "--diff needs --to store or --out"),
        None => print_files(args.to, &files, output),
    }
}

impl PlanArgs {
    /// Whether the command writes or reads the store.
    pub fn is_of_the_store(&self) -> bool {
        self.to == Some(Target::Store) || (self.check && self.against.is_empty())
    }

    /// The networks and their resources.
    fn networks(&self) -> Result<nads::Networks> {
        let is_given = self.one || self.resource.is_some();
        if is_given
            && !matches!(
                self.to,
                Some(Target::Nads | Target::DevicePlugin | Target::SriovNodePolicy)
            )
        {
            fail!(
                InvalidConfig,
                "--one and --resource are for --to nads, device-plugin and sriov-node-policy"
            );
        }
        nads::Networks::new(self.one, self.resource.as_deref())
    }

    /// The template of the pages for the leaves.
    fn template(&self) -> Result<Option<Template>> {
        let template = match (self.to, &self.template) {
            (Some(Target::Nvue), _) => Template::nvue()?,
            (Some(Target::Sonic), _) => Template::sonic()?,
            (_, Some(file)) => Template::read(file)?,
            _ => return Ok(None),
        };
        Ok(Some(template))
    }

    /// The namespace of the manifests.
    fn namespace(&self) -> Result<Option<&str>> {
        let Some(name) = self.namespace.as_deref() else {
            return Ok(None);
        };
        if !matches!(
            self.to,
            Some(Target::Cidrpool | Target::Nads | Target::SriovNodePolicy)
        ) {
            fail!(
                InvalidConfig,
                "--namespace is for --to cidrpool, --to nads and --to sriov-node-policy"
            );
        }
        if !is_namespace(name) {
            fail!(
                InvalidConfig,
                "--namespace: {name:?} is not a Kubernetes namespace: 1 to 63 lowercase letters, digits \
                    and -"
            );
        }
        Ok(Some(name))
    }

    /// Fails if there is a warning and `--strict` is given.
    fn refuse_warnings(&self, warnings: &[String]) -> Result<()> {
        if self.strict && !warnings.is_empty() {
            return Err(refused(warnings.iter().map(Fault::whole).collect()));
        }
        Ok(())
    }

    /// Reads the plan and checks it as a whole. Returns the allowed doubts as well.
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
            Err(faults) => {
                return Err(Refusal {
                    doubts: doubts(&mut plan),
                    faults,
                }
                .into());
            }
        };
        let octet = match kind {
            Kind::Topology => Some("--first-octet "),
            Kind::Fabric if !plan.is_patterned => Some("firstOctet: "),
            Kind::Fabric | Kind::Cidrpool | Kind::Netplan => None,
        };
        self.add_cluster_networks(&mut plan)?;
        let mut known = plan.cluster_networks.clone();
        add_new(&mut known, &Node::load()?.cluster_networks);
        networks::compare(&mut plan, &known, octet);
        meant.extend(plan.doubts.allow(&self.allow));
        doubts(&mut plan).refuse()?;
        Ok((plan, pools, meant))
    }

    /// Adds the networks of `--cluster-networks` to those of the fabric file.
    fn add_cluster_networks(&self, plan: &mut Plan) -> Result<()> {
        for network in &self.cluster_networks {
            cluster_networks::check(*network)
                .or_else(|problem| fail!(InvalidConfig, "--cluster-networks: {problem}"))?;
        }
        add_new(&mut plan.cluster_networks, &self.cluster_networks);
        Ok(())
    }

    /// Reads the plan to compare with.
    fn read_other(&self) -> Result<Pools> {
        let (mut plan, kind) = self.read_files(&self.against, None)?;
        // Manifests have names of their own.
        if let Some(pattern) = self.pool_name.as_ref().filter(|_| kind != Kind::Cidrpool) {
            rename(&mut plan, pattern)?;
        }
        plan.check().map_err(refused)
    }

    fn read_files(&self, files: &[String], from: Option<Kind>) -> Result<(Plan, Kind)> {
        let is_of_hosts = from.is_none() && has_directory_of_hosts(files);
        if from == Some(Kind::Netplan) || is_of_hosts {
            return Ok((read_netplan(files)?, Kind::Netplan));
        }
        let files = &document::with_files_below(files)?;
        let texts = document::read_texts(files)?;
        let is_topology = |text| from.is_none() && topology::is_topology(text);
        if from == Some(Kind::Topology) || texts.first().is_some_and(is_topology) {
            let plan = topology::read(&texts, &self.scheme()?, self.mtu, &self.allow).map_err(
                |mut refusal| {
                    refusal.doubts.allow(&self.allow);
                    refusal
                },
            )?;
            return Ok((plan, Kind::Topology));
        }
        let documents = document::parse_all(&texts)?;
        let Some(first) = documents.first() else {
            fail!(InvalidConfig, "no file")
        };
        let kind = match from {
            Some(kind) => kind,
            None if fabric::is_fabric(&first.value) => Kind::Fabric,
            None if netplan::network(first.root()).is_some() => Kind::Netplan,
            None if !manifest::is_manifest(&first.value) => fail!(
                InvalidConfig,
                "{}: no source of a plan: neither topology.json (nodes, links), topology.dot, a fabric file (fabric), netplan \
                 (network) nor CIDRPools (kind): describe the fabric in a fabric file",
                first.file
            ),
            None => Kind::Cidrpool,
        };
        let plan = match kind {
            Kind::Fabric => fabric::read(&documents)?,
            // The name of a file is that of its host.
            Kind::Netplan => read_netplan(files)?,
            _ => manifest::read(&documents)?,
        };
        Ok((plan, kind))
    }

    fn scheme(&self) -> Result<Scheme> {
        // A guess between two and three would give other addresses, not an error.
        let Some(tiers) = self.tiers else {
            fail!(
                InvalidConfig,
                "a topology file does not say the number of switch tiers: give --tiers 2 or --tiers 3"
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

    /// Fails if an option is given that would be ignored.
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
                fail!(
                    InvalidConfig,
                    "{name} is for topology.json only, and the source is {}",
                    kind.name()
                )
            }
            None => Ok(()),
        }
    }

    fn nodes(&self, node: &Node) -> Result<Nodes> {
        Ok(match &self.node {
            _ if self.all_nodes => Nodes::All,
            Some(name) if pool::is_name(name) => Nodes::One(name.clone()),
            Some(name) => fail!(
                InvalidConfig,
                "--node: {name:?} is not a valid name of a node"
            ),
            None => Nodes::Own(pool::node_name(node)?),
        })
    }
}

/// Whether one of the paths is a directory of hosts, whose names are those of its files. The first
/// file below decides; one that cannot be parsed is a host's.
fn has_directory_of_hosts(paths: &[String]) -> bool {
    for path in paths {
        if !Path::new(path).is_dir() {
            continue;
        }
        let files = document::with_files_below(std::slice::from_ref(path));
        let first = files.ok().and_then(|files| files.into_iter().next());
        let Some(text) = first.and_then(|file| Text::read(&file).ok()) else {
            return true;
        };
        let documents = document::parse(&text.file, &text.bytes).unwrap_or_default();
        let is_plan = documents.first().is_some_and(|document| {
            fabric::is_fabric(&document.value) || manifest::is_manifest(&document.value)
        });
        if !is_plan && !topology::is_topology(&text) {
            return true;
        }
    }
    false
}

/// Reads the netplan files of hosts, with a progress bar.
fn read_netplan(files: &[String]) -> Result<Plan> {
    let mut progress = None;
    netplan::read(files, |total| {
        progress
            .get_or_insert_with(|| Progress::new("hosts", total))
            .step();
    })
}

/// Adds the networks that the list does not have.
fn add_new(list: &mut Vec<IpNet>, networks: &[IpNet]) {
    for network in networks {
        if !list.contains(network) {
            list.push(*network);
        }
    }
}

fn parse_first_octet(text: &str) -> Result<u8, String> {
    let octet = text
        .parse::<u8>()
        .ok()
        .filter(|octet| is_first_octet(*octet));
    octet.ok_or_else(|| "is not 1 to 223, except 127".to_owned())
}

/// Renames the pools, whose rails must be known.
fn rename(plan: &mut Plan, pattern: &str) -> Result<()> {
    let pattern = Pattern::<2>::parse(pattern, &["rail", "plane"]).context("--pool-name")?;
    for pool in &mut plan.pools {
        let Some(rail) = pool.rail else {
            fail!(
                InvalidConfig,
                "--pool-name: no source says which rail pool {} is",
                pool.name
            );
        };
        let suffix = if pool.name.ends_with("-v6") {
            "-v6"
        } else {
            ""
        };
        let plane = u64::from(pool.plane.unwrap_or(0));
        pool.name = pattern.render(&[u64::from(rail), plane]) + suffix;
        if !pool::is_name(&pool.name) {
            fail!(
                InvalidConfig,
                "--pool-name: {:?} is not a valid name of a pool",
                pool.name
            );
        }
    }
    Ok(())
}

/// Prints a summary of the plan.
fn show(plan: &Plan, output: Output) -> Result<ExitCode> {
    match output {
        Output::Json => {
            let pools: Vec<Value> = plan
                .pools
                .iter()
                .map(|pool| json!({"name": pool.name, "rail": pool.rail, "plane": pool.plane, "spec": pool.spec}))
                .collect();
            print(&pretty(
                &json!({"pools": pools, "nodes": plan.nodes().len(), "places": groups::json(plan),
                "warnings": plan.warnings}),
            ))?;
        }
        Output::Table => {
            let rows = plan.pools.iter().map(|pool| {
                let Pool {
                    name,
                    rail,
                    plane,
                    spec,
                    ..
                } = pool;
                // A prefix that is kept free is of no node.
                let rows: Vec<_> = spec
                    .static_allocations
                    .iter()
                    .filter(|row| !row.node_name.is_empty())
                    .collect();
                let routes: Vec<_> = spec.routes.iter().map(|to| to.dst.as_str()).collect();
                let end = |row: Option<&&pool::cidrpool::Row>| {
                    row.map(|row| format!("{} {}", row.prefix, row.node_name))
                        .unwrap_or_default()
                };
                let number = |number: &Option<u8>| {
                    number.map(|number| number.to_string()).unwrap_or_default()
                };
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
            let headers = [
                "POOL", "RAIL", "PLANE", "CIDR", "ROUTES", "NODES", "FIRST", "LAST",
            ];
            print(&table(&headers, rows))?;
            say(&format!(
                "{} nodes, {} pools; nothing was written: select a target with --to",
                plan.nodes().len(),
                plan.pools.len()
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the store, or prints what that would change.
fn store(args: &PlanArgs, plan: &Plan, pools: &Pools, output: Output) -> Result<ExitCode> {
    let node = Node::load()?;
    let nodes = args.nodes(&node)?;
    let run = if args.diff { Run::Dry } else { Run::Write };
    let compare = || -> Result<Import> {
        let import = changes(args, &node, plan, pools, &nodes)?;
        args.refuse_warnings(&import.warnings)?;
        Ok(import)
    };
    let force = Force::of(args.force);
    let writer = change::writer(&node, run == Run::Write, force, compare)?;
    let import = compare()?;
    import.print_warnings();
    if let Some(writer) = writer {
        change::write(&node, writer, &import, force)?;
    }
    show_changes(&import, plan, run, output)?;
    Ok(ExitCode::SUCCESS)
}

/// Compares with the store, or with other files.
fn check(args: &PlanArgs, plan: &Plan, pools: &Pools, output: Output) -> Result<ExitCode> {
    let mut import = if args.against.is_empty() {
        let node = Node::load()?;
        let nodes = args.nodes(&node)?;
        changes(args, &node, plan, pools, &nodes)?
    } else {
        Import {
            lines: differences(&args.read_other()?, pools),
            ..Import::default()
        }
    };
    args.refuse_warnings(&import.warnings)?;
    import.print_warnings();
    for line in &mut import.lines {
        // Manifests and a store of rail-ipam 0.1.0 have no leaf ports, and addresses do not depend
        // on them.
        if let (Some(before), Some(after)) = (&mut line.before, &mut line.after) {
            before.keep_leaf_ports_of(after);
            after.keep_leaf_ports_of(before);
            if !args.against.is_empty() {
                keep_what_is_not_said(before, after);
            }
        }
    }
    let all = import.lines.len();
    import.lines.retain(|line| line.before != line.after);
    if import.lines.is_empty() && output == Output::Table {
        print(&format!("no difference in {all} allocations\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    show_changes(&import, plan, Run::Dry, output)?;
    Ok(if import.lines.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Other files may not say the rail, and exclude no gateway: pods get the same addresses.
fn keep_what_is_not_said(other: &mut Allocation, plan: &Allocation) {
    if other.rail.is_none() {
        other.rail = plan.rail;
    }
    if other.gives_the_same(plan) {
        other.exclusions.clone_from(&plan.exclusions);
    }
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
                let side = if is_after {
                    &mut line.after
                } else {
                    &mut line.before
                };
                *side = Some(allocation.clone());
            }
        }
    }
    lines.into_values().collect()
}

fn changes(
    args: &PlanArgs,
    node: &Node,
    plan: &Plan,
    pools: &Pools,
    nodes: &Nodes,
) -> Result<Import> {
    let mut replaces = plan.replaces.clone();
    for (new, old) in &args.replaces {
        match replaces.insert(new.clone(), old.clone()) {
            Some(other) if other != *old => {
                fail!(
                    InvalidConfig,
                    "--replaces {new}={old}: the plan says that {new} replaces {other}"
                )
            }
            _ => (),
        }
    }
    change::changes(
        node,
        pools,
        nodes,
        &Terms {
            prune: args.prune,
            scope: Scope::WholeStore,
            replaces,
        },
    )
}

/// Writes files to a directory. `name` is that of the target or template in the list of what was
/// written.
fn write_files(
    args: &PlanArgs,
    dir: &Path,
    name: &str,
    files: &[File],
    output: Output,
) -> Result<ExitCode> {
    // netplan warns of files that others may read; manifests and switch configuration are shared.
    let mode = if args.to == Some(Target::Netplan) {
        0o600
    } else {
        0o666
    };
    let owner = match args.to {
        Some(Target::Netplan | Target::Nvue) => Owner::Plans,
        _ => Owner::Anybody,
    };
    let stale = if args.prune {
        Stale::Remove
    } else {
        Stale::Keep
    };
    let run = if args.diff { Run::Dry } else { Run::Write };
    let out = Out {
        dir,
        target: name,
        mode,
        owner,
        stale,
        run,
    };
    out::write(&out, files, output)
}

/// Prints files. A comment before each of several has its name, except for those of a user's
/// template; manifests make one file for kubectl.
fn print_files(target: Option<Target>, files: &[File], output: Output) -> Result<ExitCode> {
    if output == Output::Json {
        let files: Vec<_> = files
            .iter()
            .map(|file| json!({"name": file.name, "text": file.text}))
            .collect();
        print(&pretty(&json!({ "files": files })))?;
        return Ok(ExitCode::SUCCESS);
    }
    let separator = match target {
        // JSON knows no comments.
        Some(Target::NodeJson | Target::Sonic) if files.len() > 1 => fail!(
            InvalidConfig,
            "{} files: write them with --out, or print them with --output json",
            files.len()
        ),
        Some(Target::Nvue | Target::Csv | Target::Json) => "",
        _ => "---\n",
    };
    for file in files {
        if files.len() > 1 && target.is_some() {
            print(&format!("{separator}# {}\n", file.name))?;
        }
        print(&file.text)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Target {
    /// Its name on the command line.
    fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Topology => "topology files",
            Kind::Fabric => "a fabric file, which has a key for it",
            Kind::Cidrpool => "CIDRPools",
            Kind::Netplan => "netplan files",
        }
    }
}

fn say(text: &str) {
    output::say(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_of_hosts_unless_its_first_file_is_a_plan() {
        let pool = "{apiVersion: nv-ipam.nvidia.com/v1alpha1, kind: CIDRPool}";
        let topology = r#"{"nodes": [], "links": []}"#;
        for (name, text, is_of_hosts) in [
            ("gpu-1.yaml", "network: {version: 2}", true),
            ("gpu-1.yaml", "network: {", true),
            ("rail-0.yaml", pool, false),
            ("fabric.yaml", "fabric: spectrum-x", false),
            ("topology.json", topology, false),
        ] {
            let temp = tempfile::tempdir().unwrap();
            let below = temp.path().join("below");
            std::fs::create_dir(&below).unwrap();
            std::fs::write(below.join(name), text).unwrap();
            std::fs::write(below.join(".rail-ipam-plan"), "{}").unwrap();
            let paths = [temp.path().display().to_string()];
            assert_eq!(has_directory_of_hosts(&paths), is_of_hosts, "{text}");
        }
    }
}
