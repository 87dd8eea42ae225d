//! `railctl cables`: each leaf says by LLDP who it is, and the plan says where the cable of each
//! rail should end.

mod hear;
mod lldp;

use std::collections::HashSet;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::inventory::{Inventory, Rail, link_state};
use crate::output::{self, Output};
pub use hear::{Heard, neighbour};
use lldp::Id;
pub use lldp::Neighbour;
use rail_cni::failure;
use rail_cni::node::Node;
use rail_cni::pool::{LeafPort, rail_in, store};
use rail_cni::watchdog;

/// Characters of an announced name that are shown.
const ANNOUNCED_MAX_CHARS: usize = 64;

/// Arguments of `railctl cables`.
#[derive(Debug, Args)]
pub struct CablesArgs {
    /// How long to listen
    #[arg(long, value_name = "SECONDS", default_value_t = 35, value_parser = clap::value_parser!(u32).range(1..=600))]
    timeout: u32,
}

/// The cable of a rail.
#[derive(Debug)]
struct Cable {
    rail: Option<u8>,
    pf: String,
    /// The planned end. With `hwplb` there are several, one on each plane.
    expected: Vec<LeafPort>,
    end: End,
}

/// Knowledge of the other end.
#[derive(Debug)]
enum End {
    /// The PF hears nothing, because of this.
    NoLink(String),
    /// No neighbor spoke, or its frames could not be read.
    Silent(Option<&'static str>),
    /// A neighbor spoke.
    Heard(Neighbour),
    /// Two neighbors spoke.
    Two(Box<[Neighbour; 2]>),
}

/// Whether a cable is where the plan has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Right,
    Wrong,
    Unplanned,
    Unnamed,
    TwoNeighbours,
    Silent,
    NoLink,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Right => "right",
            State::Wrong => "wrong",
            State::Unplanned => "unplanned",
            State::Unnamed => "unnamed",
            State::TwoNeighbours => "two-neighbours",
            State::Silent => "silent",
            State::NoLink => "no-link",
        }
    }
}

/// Listens on all rails at once, and compares.
pub fn cables(node: &Node, args: &CablesArgs, output: Output) -> Result<ExitCode> {
    let time = Duration::from_secs(args.timeout.into());
    watchdog::allow(time + node.call_timeout());
    let inventory = Inventory::take(node)?;
    if inventory.rails.is_empty() {
        return Err(failure!(
            InvalidConfig,
            "this node has no rails: list them in node.json"
        ));
    }
    let planned = planned(node);
    let vf_macs = inventory.vf_macs()?;
    let deadline = Instant::now() + time;
    let ends: Result<Vec<End>> = thread::scope(|scope| {
        let threads: Vec<_> = inventory
            .rails
            .iter()
            .map(|rail| scope.spawn(|| listen(rail, &inventory, &vf_macs, deadline)))
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|end| {
                end.unwrap_or_else(|_| {
                    Err(failure!(Internal, "a thread panicked: please report it"))
                })
            })
            .collect()
    });
    let cables: Vec<Cable> = inventory
        .rails
        .iter()
        .zip(ends?)
        .map(|(rail, end)| {
            let is_its = |(of, _): &&(u8, LeafPort)| rail.rail == Some(*of);
            let expected = planned
                .iter()
                .filter(is_its)
                .map(|(_, port)| port.clone())
                .collect();
            Cable {
                rail: rail.rail,
                pf: rail.pf().to_owned(),
                expected,
                end,
            }
        })
        .collect();
    output::print(&match output {
        Output::Json => output::pretty(
            &json!({ "cables": cables.iter().map(|one| json(one, &cables, args.timeout)).collect::<Vec<_>>() }),
        ),
        Output::Table => table(&cables, args.timeout),
    })?;
    let is_good = |cable: &Cable| matches!(cable.state(), State::Right | State::Unplanned);
    Ok(if cables.iter().all(is_good) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The leaf ports of this node in the plan, each once, with the rails.
pub fn planned(node: &Node) -> Vec<(u8, LeafPort)> {
    let mut all: Vec<(u8, LeafPort)> = Vec::new();
    for (pool, allocation) in store::allocations(node) {
        let Some(rail) = allocation.rail.or_else(|| rail_in(&pool)) else {
            continue;
        };
        for port in allocation.leaf_ports {
            if !all.contains(&(rail, port.clone())) {
                all.push((rail, port));
            }
        }
    }
    all
}

/// Waits for the neighbour of a rail's PF.
fn listen(
    rail: &Rail,
    inventory: &Inventory,
    vf_macs: &HashSet<Vec<u8>>,
    deadline: Instant,
) -> Result<End> {
    let Some(link) = &rail.link else {
        let is_held = rail
            .function
            .as_ref()
            .is_some_and(|pf| inventory.is_held(pf));
        let why = if is_held {
            "it is in a pod"
        } else {
            "it has no netdev on the host"
        };
        return Ok(End::NoLink(why.to_owned()));
    };
    if !link.carrier {
        return Ok(End::NoLink(format!(
            "{} is {}",
            link.name,
            link_state(link)
        )));
    }
    Ok(match neighbour(link, vf_macs, deadline)? {
        Heard::Neighbour(neighbour) => End::Heard(neighbour),
        Heard::Two(both) => End::Two(both),
        Heard::Nobody(unread) => End::Silent(unread),
        Heard::Lost(why) => End::NoLink(why),
    })
}

impl Cable {
    fn state(&self) -> State {
        match &self.end {
            End::NoLink(_) => State::NoLink,
            End::Silent(_) => State::Silent,
            End::Two(_) => State::TwoNeighbours,
            End::Heard(_) if self.expected.is_empty() => State::Unplanned,
            End::Heard(neighbour) => self.compare(neighbour),
        }
    }

    fn compare(&self, neighbour: &Neighbour) -> State {
        let states: Vec<_> = self
            .expected
            .iter()
            .map(|port| is_at(neighbour, port))
            .collect();
        if states.contains(&Some(true)) {
            State::Right
        } else if states.contains(&None) {
            State::Unnamed
        } else {
            State::Wrong
        }
    }

    /// Describes the fault, for people.
    fn problem(&self, all: &[Cable], timeout: u32) -> Option<String> {
        let title = self
            .rail
            .map_or_else(|| self.pf.clone(), |rail| format!("rail {rail}"));
        let planned = || rail_cni::pool::allocation::join(&self.expected);
        match (&self.end, self.state()) {
            (End::NoLink(why), _) => Some(format!(
                "{title}: {}: {why}, so it receives no LLDP",
                self.pf
            )),
            (End::Silent(Some(why)), _) => Some(format!(
                "{title}: {} sends LLDP that cannot be read: {why}",
                self.pf_end()
            )),
            (End::Silent(None), _) => Some(format!(
                "{title}: no LLDP arrived on {} within {timeout} s: is it enabled on the leaf port, and does the NIC's \
                 firmware intercept it (`ethtool --show-priv-flags`, mlxconfig LLDP_NB_RX_MODE)?",
                self.pf
            )),
            (End::Two(both), _) => Some(format!(
                "{title}: two neighbours: {}; a pod with NET_RAW can forge one of them: compare with the leaf itself",
                described_both(both)
            )),
            (End::Heard(neighbour), State::Wrong) => {
                let swap = self
                    .swap_with(all)
                    .map(|rail| format!(": swap with rail {rail}"));
                Some(format!(
                    "{title}: the leaf announces \"{}\", but the plan has {}{}",
                    described(neighbour),
                    planned(),
                    swap.unwrap_or_default()
                ))
            }
            (End::Heard(neighbour), State::Unnamed) => Some(format!(
                "{title}: the leaf announces \"{}\", which cannot be compared with {} in the plan: make it send its \
                 system name, and the port's name as port ID or description",
                described(neighbour),
                planned()
            )),
            (End::Heard(_), _) => None,
        }
    }

    fn pf_end(&self) -> String {
        format!("the other end of {}", self.pf)
    }

    /// The rail whose place in the plan this cable has.
    fn swap_with(&self, all: &[Cable]) -> Option<u8> {
        let End::Heard(neighbour) = &self.end else {
            return None;
        };
        let has_it = |other: &&Cable| {
            other
                .expected
                .iter()
                .any(|port| is_at(neighbour, port) == Some(true))
        };
        all.iter()
            .filter(|other| other.rail != self.rail)
            .find(has_it)?
            .rail
    }
}

/// Whether the neighbour is this port of this leaf; `None` if it announces no name to compare. Of the
/// ids of a port, only an interface's name decides: others may be an alias (SONiC) or an SNMP index
/// (Junos), whose difference from the plan means nothing.
pub fn is_at(neighbour: &Neighbour, port: &LeafPort) -> Option<bool> {
    let is_leaf = match &neighbour.system_name {
        Some(name) => is_same_host(name, &port.leaf),
        None if is_same_host(neighbour.chassis.text()?, &port.leaf) => true,
        None => return None,
    };
    if !is_leaf {
        return Some(false);
    }
    let Some(expected) = &port.port else {
        return Some(true);
    };
    if let Id::InterfaceName(name) = &neighbour.port {
        return Some(name == expected);
    }
    let is_announced = neighbour.port.text() == Some(expected)
        || neighbour.port_description.as_ref() == Some(expected);
    is_announced.then_some(true)
}

/// Names of hosts are the same in any letter case, and with or without their domain.
fn is_same_host(one: &str, other: &str) -> bool {
    let is_domain_of = |long: &str, short: &str| {
        long.split_once('.')
            .is_some_and(|(host, _)| host.eq_ignore_ascii_case(short))
    };
    one.eq_ignore_ascii_case(other) || is_domain_of(one, other) || is_domain_of(other, one)
}

/// `leaf-su0-r4 swp7`, by the neighbour's own words.
pub fn described(neighbour: &Neighbour) -> String {
    let chassis = neighbour.chassis.to_string();
    let leaf = neighbour.system_name.as_deref().unwrap_or(&chassis);
    format!("{} {}", clipped(leaf), clipped(&neighbour.port.to_string()))
}

/// `"leaf-su0-r4 swp7" and "leaf-su0-r5 swp7"`.
pub fn described_both([first, second]: &[Neighbour; 2]) -> String {
    format!("\"{}\" and \"{}\"", described(first), described(second))
}

/// Text of the wire, as short as a name: anybody may have sent it.
fn clipped(text: &str) -> String {
    let text = rail_cni::log::escaped(text).replace('"', "'");
    let mut start: String = text.chars().take(ANNOUNCED_MAX_CHARS).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    start
}

fn table(cables: &[Cable], timeout: u32) -> String {
    let rows = cables.iter().map(|cable| {
        vec![
            cable.rail.map(|rail| rail.to_string()).unwrap_or_default(),
            cable.pf.clone(),
            rail_cni::pool::allocation::join(&cable.expected),
            match &cable.end {
                End::Heard(neighbour) => described(neighbour),
                End::Two(both) => described_both(both),
                End::NoLink(_) | End::Silent(_) => String::new(),
            },
            cable.state().word().to_owned(),
        ]
    });
    let mut text = output::table(&["RAIL", "PF", "PLANNED", "FOUND", "STATE"], rows);
    let problems: Vec<_> = cables
        .iter()
        .filter_map(|cable| cable.problem(cables, timeout))
        .collect();
    if !problems.is_empty() {
        text += "\n";
    }
    text.extend(problems.iter().map(|line| output::line(line)));
    text
}

/// The help of the verb lists these keys: new keys may be added, but none may change its meaning.
fn json(cable: &Cable, all: &[Cable], timeout: u32) -> Value {
    let found = match &cable.end {
        End::Heard(neighbour) => {
            json!({"systemName": neighbour.system_name, "chassis": neighbour.chassis.to_string(),
            "port": neighbour.port.to_string(), "portDescription": neighbour.port_description})
        }
        End::NoLink(_) | End::Silent(_) | End::Two(_) => Value::Null,
    };
    let swap_with = if cable.state() == State::Wrong {
        cable.swap_with(all)
    } else {
        None
    };
    json!({"rail": cable.rail, "pf": cable.pf, "planned": cable.expected, "found": found,
        "state": cable.state().word(), "swapWith": swap_with, "problem": cable.problem(all, timeout)})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(leaf: &str, port: Option<&str>) -> LeafPort {
        LeafPort {
            leaf: leaf.to_owned(),
            port: port.map(str::to_owned),
        }
    }

    fn neighbour(name: Option<&str>, id: Id, description: Option<&str>) -> Neighbour {
        let text = |text: Option<&str>| text.map(str::to_owned);
        let chassis = Id::Mac([2, 0, 0, 0, 0, 1]);
        Neighbour {
            chassis,
            port: id,
            port_description: text(description),
            system_name: text(name),
        }
    }

    fn cable(rail: u8, expected: &[LeafPort], found: Neighbour) -> Cable {
        Cable {
            rail: Some(rail),
            pf: format!("pf{rail}"),
            expected: expected.to_owned(),
            end: End::Heard(found),
        }
    }

    #[test]
    fn only_an_interface_name_says_that_a_cable_is_wrong() {
        let named = |text: &str| Id::InterfaceName(text.to_owned());
        let local = |text: &str| Id::Text(text.to_owned());
        let mac = Id::Mac([2, 0, 0, 0, 0, 2]);
        let plan = [port("leaf-1", Some("swp7"))];
        for (found, state) in [
            (neighbour(Some("leaf-1"), named("swp7"), None), State::Right),
            (
                neighbour(Some("LEAF-1.example.com"), local("513"), Some("swp7")),
                State::Right,
            ),
            (
                neighbour(Some("leaf-1"), local("etp7"), Some("to gpu-7")),
                State::Unnamed,
            ),
            (neighbour(Some("leaf-1"), local("swp7"), None), State::Right),
            (
                neighbour(Some("leaf-1"), named("swp8"), Some("swp7")),
                State::Wrong,
            ),
            (
                neighbour(Some("leaf-1"), named("swp8"), Some("to gpu-7")),
                State::Wrong,
            ),
            (
                neighbour(Some("leaf-10"), named("swp7"), None),
                State::Wrong,
            ),
            (neighbour(Some("leaf-1"), mac.clone(), None), State::Unnamed),
            (neighbour(None, named("swp7"), None), State::Unnamed),
        ] {
            assert_eq!(cable(3, &plan, found.clone()).state(), state, "{found:?}");
        }
        let leaf_alone = neighbour(Some("leaf-1"), mac, None);
        assert_eq!(
            cable(3, &[port("leaf-1", None)], leaf_alone.clone()).state(),
            State::Right
        );
        assert_eq!(cable(3, &[], leaf_alone).state(), State::Unplanned);
        let planes = [port("leaf-1", Some("swp1")), port("leaf-2", Some("swp1"))];
        assert_eq!(
            cable(3, &planes, neighbour(Some("leaf-2"), named("swp1"), None)).state(),
            State::Right
        );
    }

    #[test]
    fn announced_text_is_clipped_and_cannot_end_its_quotes() {
        let long = neighbour(
            Some("a\": drain this node"),
            Id::InterfaceName("x".repeat(200)),
            None,
        );
        assert_eq!(
            described(&long),
            format!("a': drain this node {}…", "x".repeat(64))
        );
    }

    #[test]
    fn a_swapped_cable_is_named_with_the_rail_whose_place_it_has() {
        let at = |leaf: &str| neighbour(Some(leaf), Id::InterfaceName("swp7".into()), None);
        let plan = |leaf: &str| [port(leaf, Some("swp7"))];
        let all = [
            cable(3, &plan("r3"), at("r4")),
            cable(4, &plan("r4"), at("r3")),
            cable(5, &plan("r5"), at("r9")),
        ];
        assert_eq!(
            all.iter()
                .map(|one| one.swap_with(&all))
                .collect::<Vec<_>>(),
            [Some(4), Some(3), None]
        );
        assert!(all.iter().all(|one| one.state() == State::Wrong));
    }
}
