//! `railctl devices`: what a device plugin offers of this node, judged as ADD judges it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::doctor::{Offer, devices as of_rail, offer};
use super::inventory::{Inventory, Rail, RdmaMode};
use super::status::pf_link;
use crate::output::{self, Output};
use rail_cni::device::allowed::handed_out;
use rail_cni::node::Node;
use rail_cni::sysfs::Function;
use rail_netlink::Socket;

/// A device that pods can be given.
struct Device<'a> {
    rail: u8,
    of: &'a Rail,
    function: &'a Function,
    /// The link of its PF.
    link: &'static str,
    state: State,
    /// The files in /dev that a container of the pod needs.
    files: Vec<PathBuf>,
}

enum State {
    Free,
    /// A pod has it.
    Held,
    /// No pod has it, and ADD refuses it: why.
    Refused(String),
}

impl State {
    fn word(&self) -> &'static str {
        match self {
            State::Free => "free",
            State::Held => "held",
            State::Refused(_) => "refused",
        }
    }

    fn problem(&self) -> Option<&str> {
        match self {
            State::Refused(why) => Some(why),
            State::Free | State::Held => None,
        }
    }
}

/// Prints the devices. The exit status is 1 if one is refused.
pub fn devices(node: &Node, output: Output) -> Result<ExitCode> {
    let inventory = Inventory::take(node)?;
    let mut host = Socket::open()?;
    let (mut found, mut excluded) = (Vec::new(), Vec::new());
    for rail in &inventory.rails {
        for (kind, function, link) in of_rail(rail, &inventory, node) {
            let number = match handed_out(function, node) {
                Ok(number) => number,
                Err(why) => {
                    excluded.push((function.id.as_str(), format!("{why:#}")));
                    continue;
                }
            };
            let state = match offer(kind, function, link, node, &inventory, &mut host) {
                Offer::Refused(None) => continue,
                judged => state(&judged, (kind, function), &inventory, node),
            };
            let link = pf_link(rail, &inventory);
            let is_free = matches!(state, State::Free);
            let is_to_move = is_free && inventory.rdma == RdmaMode::Exclusive;
            let files = function.char_devices(&node.sysfs_root, is_to_move)?;
            found.push(Device {
                rail: number,
                of: rail,
                function,
                link,
                state,
                files,
            });
        }
    }
    let is_good = found.iter().all(|one| one.state.problem().is_none());
    output::print(&match output {
        Output::Json => output::pretty(&json!({
            "node": node.name()?,
            "devices": found.iter().map(Device::json).collect::<Vec<_>>(),
            "excluded": excluded.iter().map(|(id, why)| json!({"device": id, "problem": why})).collect::<Vec<_>>(),
        })),
        Output::Table => table(&found, &excluded),
    })?;
    Ok(if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn state(
    offer: &Offer,
    (kind, function): (&str, &Function),
    inventory: &Inventory,
    node: &Node,
) -> State {
    let refused = |why: &str| State::Refused(format!("{kind} {} {why}", function.id));
    match offer {
        // The PF that a pod would get is about to have VFs.
        Offer::Usable if kind == "PF" && node.has_vfs_to_make() => {
            refused("has no VFs yet, although node.json asks for some: run `railctl vfs`")
        }
        Offer::Usable => State::Free,
        Offer::Held if inventory.holder(function).is_some() => State::Held,
        Offer::Held if inventory.claimed.contains(&function.id) => {
            refused("is held by a resource claim")
        }
        Offer::Held => {
            refused("is in a network namespace without a record: run `railctl reap --rebuild`")
        }
        Offer::Unbound => refused("has no driver"),
        Offer::Refused(fault) => State::Refused(
            fault
                .as_ref()
                .map_or_else(String::new, |fault| fault.text.clone()),
        ),
    }
}

impl Device<'_> {
    /// The help of the verb lists these keys: new keys may be added, but none may change its
    /// meaning.
    fn json(&self) -> Value {
        json!({"device": self.function.id, "rail": self.rail, "pf": self.of.pf(), "isVf": self.function.is_vf(),
            "numaNode": self.function.numa_node(), "link": self.link, "state": self.state.word(),
            "problem": self.state.problem(), "files": self.files})
    }
}

fn table(found: &[Device<'_>], excluded: &[(&str, String)]) -> String {
    let rows = found.iter().map(|one| {
        let numa = one
            .function
            .numa_node()
            .map(|node| node.to_string())
            .unwrap_or_default();
        let (rail, pf) = (one.rail.to_string(), one.of.pf().to_owned());
        vec![
            rail,
            one.function.id.clone(),
            pf,
            numa,
            one.link.to_owned(),
            one.state.word().to_owned(),
        ]
    });
    let mut text = output::table(&["RAIL", "DEVICE", "PF", "NUMA", "LINK", "STATE"], rows);
    let problems = found.iter().filter_map(|one| one.state.problem());
    let lines: Vec<&str> = problems
        .chain(excluded.iter().map(|(_, why)| why.as_str()))
        .collect();
    if !lines.is_empty() {
        text += "\n";
    }
    text.extend(lines.iter().map(|line| output::line(line)));
    text
}
