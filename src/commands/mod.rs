//! The commands that a person types, of both programs. Each has one function that runs it; [`crate::attach`]
//! and [`crate::ipam`] serve the calls of a runtime.

mod change;
mod check;
mod doctor;
mod import;
mod inventory;
mod lease;
pub mod lint;
mod out;
mod plan;
pub mod rail_cni;
pub mod rail_ipam;
mod reap;
mod release;
mod report;
mod show;
mod status;

use anyhow::Result;

use crate::node::Node;
use crate::watchdog;

/// Starts the log of a command, and reads node.json. The waits within it are as long as those of a runtime's call; the
/// command as a whole has no limit, because it may have a whole node to clean up.
fn start(program: &'static str, command: &str) -> Result<Node> {
    crate::log::describe_command(program, command);
    let node = Node::load()?;
    watchdog::allow(node.call_timeout());
    Ok(node)
}

/// A number with a noun: `1 VF`, `2 VFs`.
fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
