//! Prints what a plan changes in the store, for people and for programs.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::{Value, json};

use super::change::{Import, Line, Outside, Taken};
use super::leases::columns;
use crate::output::{Output, pretty, print, table};
use rail_cni::pool::allocation::Allocation;
use rail_plan::{Plan, groups};

/// The most lines that are printed.
const MOST_LINES: usize = 200;

/// Whether a command writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// It writes.
    Write,
    /// It only shows what it would write.
    Dry,
}

/// Prints what a plan changes in the store. For programs, also the places of these nodes in the
/// fabric.
pub fn show_changes(import: &Import, plan: &Plan, run: Run, output: Output) -> Result<()> {
    let mut counts = BTreeMap::new();
    for line in &import.lines {
        *counts.entry(line.change()).or_insert(0) += 1;
    }
    match output {
        Output::Json => {
            let lines: Vec<Value> = import
                .lines
                .iter()
                .map(|line| {
                    let Line { before, after, takes_place_of, .. } = line;
                    json!({"node": line.node_name, "pool": line.pool, "change": line.change(), "before": before,
                        "after": after, "takesPlaceOf": takes_place_of})
                })
                .collect();
            let outside: Vec<Value> = import.outside.iter().map(Outside::json).collect();
            let taken: Vec<Value> = import.taken.iter().map(Taken::json).collect();
            let warnings: Vec<_> = plan.warnings.iter().chain(&import.warnings).collect();
            let mut places = groups::json(plan);
            if let Some(places) = places.as_object_mut() {
                let nodes: BTreeSet<_> = import.lines.iter().map(|line| &line.node_name).collect();
                places.retain(|node_name, _| nodes.contains(node_name));
            }
            print(&pretty(
                &json!({"dryRun": run == Run::Dry, "allocations": lines, "counts": counts,
                "outside": outside, "taken": taken, "warnings": warnings, "places": places}),
            ))
        }
        Output::Table => {
            let table = if import.lines.len() > MOST_LINES {
                table_of_pools(import)
            } else {
                table_of_nodes(import)
            };
            let counts: Vec<_> = counts
                .iter()
                .map(|(change, count)| format!("{count} {change}"))
                .collect();
            let end = if run == Run::Dry {
                " (nothing written)"
            } else {
                ""
            };
            print(&format!("{table}{}{end}\n", counts.join(", ")))
        }
    }
}

fn table_of_nodes(import: &Import) -> String {
    let rows = import.lines.iter().map(|line| {
        let Line {
            node_name,
            pool,
            before,
            after,
            takes_place_of,
        } = line;
        let side = |side: &Option<Allocation>| side.as_ref().map(columns);
        let cells = match (side(before), side(after)) {
            (Some(before), Some(after)) => std::array::from_fn(|cell| {
                let (old, new) = (&before[cell], &after[cell]);
                if old == new {
                    new.clone()
                } else {
                    format!("{new} (was {old})")
                }
            }),
            (before, after) => after.or(before).unwrap_or_default(),
        };
        let [prefix, gateway, routes] = cells;
        let mut change = changed(before, after);
        if let Some(other) = takes_place_of {
            change.push_str(&format!(", in the place of {other}"));
        }
        vec![
            node_name.clone(),
            pool.clone(),
            prefix,
            gateway,
            routes,
            change,
        ]
    });
    table(
        &["NODE", "POOL", "PREFIX", "GATEWAY", "ROUTES", "CHANGE"],
        rows,
    )
}

/// The number of nodes that change in each pool, and the name of one of them.
fn table_of_pools(import: &Import) -> String {
    let mut pools: BTreeMap<(&str, &str), (usize, &str)> = BTreeMap::new();
    for line in &import.lines {
        let (count, _) = pools
            .entry((&line.pool, line.change()))
            .or_insert((0, &line.node_name));
        *count += 1;
    }
    let rows = pools
        .into_iter()
        .map(|((pool, change), (count, node_name))| {
            let more = if count > 1 {
                format!("{node_name}, ...")
            } else {
                node_name.to_owned()
            };
            vec![pool.to_owned(), change.to_owned(), count.to_string(), more]
        });
    table(
        &["POOL", "CHANGE", "NODES", "WHICH (--output json: all)"],
        rows,
    )
}

/// The kind of change, with the fields that the other columns do not show.
fn changed(before: &Option<Allocation>, after: &Option<Allocation>) -> String {
    match (before, after) {
        (_, None) => "removed".to_owned(),
        (None, Some(_)) => "new".to_owned(),
        (Some(before), Some(after)) if before == after => "same".to_owned(),
        (Some(before), Some(after)) => {
            let unseen = [
                ("rail", before.rail != after.rail),
                ("exclusions", before.exclusions != after.exclusions),
                ("leaf port", before.leaf_ports != after.leaf_ports),
            ];
            let unseen: Vec<_> = unseen
                .iter()
                .filter(|(_, differs)| *differs)
                .map(|(key, _)| *key)
                .collect();
            if unseen.is_empty() {
                "changed".to_owned()
            } else {
                format!("changed ({})", unseen.join(", "))
            }
        }
    }
}
