//! The verbs. Each has one function that runs it, and all of their arguments are in `cli`.

mod cables;
mod change;
mod check;
mod cli;
mod devices;
mod discover;
mod doctor;
mod env;
mod help;
mod import;
mod inventory;
mod lease;
mod leases;
mod left;
pub mod lint;
mod out;
mod pages;
mod plan;
mod preflight;
mod reap;
mod rebuild;
mod refused;
mod release;
mod report;
mod root;
mod status;
mod taps;
mod vfs;

use std::process::{Child, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rail_cni::node::Node;
use rail_cni::watchdog;

pub use cli::{command, run};

use crate::output::PROGRAM;

/// Starts the log of a command, and reads node.json. The waits within it are as long as those of a
/// runtime's call; the command as a whole has no limit, because it may have a whole node to clean
/// up.
fn start(command: &str) -> Result<Node> {
    start_on(command, Node::load)
}

/// Starts a command that ends attachments: it must work whatever node.json contains.
fn start_lenient(command: &str) -> Result<Node> {
    start_on(command, || Ok(Node::load_lenient()))
}

fn start_on(command: &str, load: impl FnOnce() -> Result<Node>) -> Result<Node> {
    rail_cni::log::describe_command(PROGRAM, command);
    let node = load()?;
    watchdog::allow(node.call_timeout());
    Ok(node)
}

/// A number with a noun: `1 VF`, `2 VFs`.
fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// The output of a program that ends within `patience`, and is killed otherwise. It must fit into
/// the pipe.
fn output_within(patience: Duration, mut child: Child) -> Result<Output> {
    let deadline = Instant::now() + patience;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            bail!("it did not answer within {patience:?}");
        }
        sleep(Duration::from_millis(2));
    }
    Ok(child.wait_with_output()?)
}
