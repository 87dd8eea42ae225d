//! `railctl vfs`: makes the VFs that node.json asks for, and nothing that is as wanted is touched.

mod differ;
mod make;
mod refuse;

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::inventory::{Inventory, Rail};
use crate::output::{self, Output};
use differ::{Change, differences};
use rail_cni::failure;
use rail_cni::node::{Node, Vfs};
use rail_cni::sysfs::Function;
use rail_netlink::Socket;
use rail_netlink::link::Link;
use refuse::{Judge, Refusal};

/// Arguments of `railctl vfs`.
#[derive(Debug, Args)]
pub struct VfsArgs {
    /// Only print what differs
    #[arg(long)]
    check: bool,
    /// The node is not drained: do not change the number, driver or MTU of existing VFs
    #[arg(long)]
    undrained: bool,
}

/// A PF, what node.json wants of it, and what came of that.
struct Outcome {
    rail: u8,
    pf: String,
    netdev: Option<String>,
    wanted: Vfs,
    /// The number of its VFs, and the firmware's limit.
    vfs: (u32, u32),
    state: State,
    /// The changes; the differences, if there were none.
    changes: Vec<Change>,
}

enum State {
    AsWanted,
    Changed,
    Differs,
    Refused(Refusal),
    Failed(String),
}

impl State {
    fn word(&self) -> &'static str {
        match self {
            State::AsWanted => "as-wanted",
            State::Changed => "changed",
            State::Differs => "differs",
            State::Refused(_) => "refused",
            State::Failed(_) => "failed",
        }
    }

    fn problem(&self) -> Option<&str> {
        match self {
            State::Refused(refusal) => Some(&refusal.text),
            State::Failed(text) => Some(text),
            State::AsWanted | State::Changed | State::Differs => None,
        }
    }
}

/// Brings each PF of node.json to what it asks for.
pub fn vfs(node: &Node, args: &VfsArgs, output: Output) -> Result<ExitCode> {
    node.check_place(None)?;
    if !node.has_vfs_to_make() {
        return Err(failure!(
            InvalidConfig,
            "node.json asks for no VFs: give it the key `vfs`"
        ));
    }
    let inventory = Inventory::take(node)?;
    let mut outcomes: Vec<Outcome> = Vec::new();
    for (index, (rail, row)) in inventory.rails.iter().zip(&node.rails).enumerate() {
        // Two planes may be ports of one PF.
        let is_seen = |before: &Outcome| before.pf == rail.pf();
        if let Some(wanted) = node.vfs_of(row).filter(|_| !outcomes.iter().any(is_seen)) {
            let (state, changes) = bring(index, wanted, node, args);
            let function = rail.function.as_ref();
            outcomes.push(Outcome {
                rail: row.rail,
                pf: rail.pf().to_owned(),
                netdev: rail.link.as_ref().map(|link| link.name.clone()),
                wanted: wanted.clone(),
                vfs: function.map_or((0, 0), |pf| (pf.vf_count(), pf.max_vf_count())),
                state,
                changes,
            });
        }
    }
    output::print(&match output {
        Output::Json => output::pretty(
            &json!({ "pfs": outcomes.iter().map(Outcome::json).collect::<Vec<_>>() }),
        ),
        Output::Table => table(&outcomes),
    })?;
    let is_good = |one: &Outcome| matches!(one.state, State::AsWanted | State::Changed);
    Ok(if outcomes.iter().all(is_good) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Compares the PF of a row of node.json, and changes what differs.
fn bring(row: usize, wanted: &Vfs, node: &Node, args: &VfsArgs) -> (State, Vec<Change>) {
    match look(row, wanted, node, args) {
        Err(refused) => refused,
        Ok(changes) if changes.is_empty() => (State::AsWanted, changes),
        Ok(changes) if args.check => (State::Differs, changes),
        Ok(_) => make::make(row, wanted, node, args),
    }
}

/// Finds the differences on the PF of a row. Fails if it may not be changed.
fn look(
    row: usize,
    wanted: &Vfs,
    node: &Node,
    args: &VfsArgs,
) -> Result<Vec<Change>, (State, Vec<Change>)> {
    let failed = |error: anyhow::Error| (State::Failed(format!("{error:#}")), Vec::new());
    let inventory = Inventory::take(node).map_err(failed)?;
    let mut host = Socket::open().map_err(failed)?;
    let rail = inventory
        .rails
        .get(row)
        .ok_or_else(|| (State::Differs, Vec::new()))?;
    let pf = netdev(rail, &inventory).map_err(|refusal| (State::Refused(refusal), Vec::new()))?;
    let changes = differences((rail, pf), wanted, &inventory, &mut host).map_err(failed)?;
    if changes.is_empty() {
        return Ok(changes);
    }
    let mut judge = Judge {
        node,
        inventory: &inventory,
        host: &mut host,
        is_undrained: args.undrained,
    };
    match judge.refuse_impossible((rail, pf), wanted, &changes) {
        Ok(()) => Ok(changes),
        Err(refusal) => Err((State::Refused(refusal), changes)),
    }
}

/// The netdev of a PF, which alone can be asked.
fn netdev<'a>(rail: &'a Rail, inventory: &Inventory) -> Result<&'a Link, Refusal> {
    let pf = rail.pf();
    let holder = rail.function.as_ref().and_then(|pf| inventory.holder(pf));
    match (&rail.link, holder) {
        (_, Some(holder)) if !holder.is_left_over() => {
            let who = holder.record.owner.describe();
            Err(Refusal::new(
                "in-use",
                format!("{who} has the PF {pf} itself: drain the node first"),
            ))
        }
        (Some(link), _) => Ok(link),
        (None, _) if rail.is_missing() => {
            let text = format!("the host has no PF {pf}: correct `rails` of node.json");
            Err(Refusal::new("no-pf", text))
        }
        (None, _) => {
            let driver = rail.function.as_ref().and_then(Function::driver);
            let driver = driver.unwrap_or_else(|| "no driver".to_owned());
            let text =
                format!("the PF {pf} has no netdev on the host ({driver}): bind its own driver");
            Err(Refusal::new("no-netdev", text))
        }
    }
}

fn table(outcomes: &[Outcome]) -> String {
    let rows = outcomes.iter().map(|one| {
        let changes = one.changes.iter().filter(|change| change.vf().is_none());
        let of_pf = changes.map(Change::text).collect::<Vec<_>>().join(", ");
        let of_vfs = one
            .changes
            .iter()
            .filter(|change| change.vf().is_some())
            .count();
        let of_vfs = (of_vfs > 0).then(|| format!("{of_vfs} of VFs"));
        let differs = [Some(of_pf).filter(|text| !text.is_empty()), of_vfs]
            .into_iter()
            .flatten();
        let differs = differs.collect::<Vec<_>>().join(", ");
        let netdev = one.netdev.clone().unwrap_or_default();
        let vfs = format!("{}/{}", one.vfs.0, one.vfs.1);
        vec![
            one.rail.to_string(),
            one.pf.clone(),
            netdev,
            vfs,
            one.state.word().to_owned(),
            differs,
        ]
    });
    let mut text = output::table(&["RAIL", "PF", "NETDEV", "VFS", "STATE", "CHANGES"], rows);
    let of_vfs = outcomes
        .iter()
        .flat_map(|one| &one.changes)
        .filter(|change| change.vf().is_some());
    let problems = outcomes
        .iter()
        .filter_map(|one| Some((one.rail, one.state.problem()?)));
    let lines: Vec<_> = of_vfs
        .map(Change::text)
        .chain(problems.map(|(rail, problem)| format!("rail {rail}: {problem}")))
        .collect();
    if !lines.is_empty() {
        text += "\n";
    }
    text.extend(lines.iter().map(|line| output::line(line)));
    text
}

impl Outcome {
    /// The help of the verb lists these keys: new keys may be added, but none may change its
    /// meaning.
    fn json(&self) -> Value {
        let reason = match &self.state {
            State::Refused(refusal) => Some(refusal.reason),
            State::AsWanted | State::Changed | State::Differs | State::Failed(_) => None,
        };
        json!({"rail": self.rail, "pf": self.pf, "netdev": self.netdev, "wanted": self.wanted.number,
            "vfs": self.vfs.0, "max": self.vfs.1, "state": self.state.word(), "reason": reason,
            "problem": self.state.problem(), "changes": self.changes.iter().map(Change::json).collect::<Vec<_>>()})
    }
}
