//! `railctl import`: puts CIDRPool manifests into the store.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;

use super::change::{self, Force, Nodes, Scope, Terms};
use super::report::{Run, show_changes};
use crate::output::{self, Output};
use rail_cni::fail;
use rail_cni::node::Node;
use rail_cni::pool::{is_name, node_name};
use rail_plan::document;
use rail_plan::{Plan, Pools, manifest, refused};

/// Arguments of `railctl import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// CIDRPool manifests in YAML or JSON, or directories with them; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// Write all nodes that the manifests name
    #[arg(long, conflicts_with = "node")]
    all_nodes: bool,
    /// Node to write instead of this one
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Remove nodes from these pools that the manifests do not name
    #[arg(long)]
    prune: bool,
    /// Node NEW replaces node OLD, which is removed from the store
    #[arg(long, value_name = "NEW=OLD", value_parser = Terms::parse_replaces)]
    replaces: Vec<(String, String)>,
    /// Check the manifests and print what would change, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Proceed even if running pods would lose their addresses
    #[arg(long)]
    force: bool,
}

/// `railctl import`.
pub fn import(node: &Node, args: &ImportArgs, output: Output) -> Result<ExitCode> {
    let nodes = match &args.node {
        _ if args.all_nodes => Nodes::All,
        Some(name) if is_name(name) => Nodes::One(name.clone()),
        Some(name) => fail!(
            InvalidConfig,
            "--node: {name:?} is not a valid name of a node"
        ),
        None => Nodes::Own(node_name(node)?),
    };
    let replaces = args.replaces.iter().cloned().collect();
    let terms = Terms {
        prune: args.prune,
        scope: Scope::OwnPools,
        replaces,
    };
    let (pools, plan) = read(&args.files)?;
    plan.warnings
        .iter()
        .for_each(|warning| output::say(warning));
    let run = if args.dry_run { Run::Dry } else { Run::Write };
    let compare = || change::changes(node, &pools, &nodes, &terms);
    let force = Force::of(args.force);
    let writer = change::writer(node, run == Run::Write, force, compare)?;
    let import = compare()?;
    import.print_warnings();
    if let Some(writer) = writer {
        change::write(node, writer, &import, force)?;
    }
    show_changes(&import, &plan, run, output)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads and checks all files. The warnings of the plan are about them.
fn read(files: &[String]) -> Result<(Pools, Plan)> {
    let read = || -> Result<(Pools, Plan)> {
        let documents = document::read_all(&document::with_files_below(files)?)?;
        let mut plan = manifest::read(&documents)?;
        let pools = plan.check().map_err(refused)?;
        let doubts = std::mem::take(&mut plan.doubts);
        plan.warnings.extend(doubts.into_warnings());
        Ok((pools, plan))
    };
    read().context("nothing was imported")
}

#[cfg(test)]
mod tests;
