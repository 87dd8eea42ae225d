//! `rail-cni wait`: for what starts pods, such as kubelet, and must not do so before the rails are there.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Check, Findings, Verdict, has_colours, networks, node, pools, rails, rdma, runtimes};
use crate::commands::count;
use crate::commands::inventory::Inventory;
use crate::node::Node;
use crate::output::{self, Output};
use crate::watchdog;

/// Time between two looks at the node.
const PAUSE: Duration = Duration::from_secs(1);

/// Waits until this node has what `doctor` checks of rails and pools, for all rails of node.json. Says on stderr what is
/// missing, when that changes. The exit status is 1 when the time is over.
pub fn wait(program: &str, seconds: u32, mtu: u32, needs_rdma: bool, output: Output) -> Result<ExitCode> {
    let (began, timeout) = (Instant::now(), Duration::from_secs(seconds.into()));
    let mut told = Vec::new();
    loop {
        let mut found = Findings::default();
        let node = look(mtu, needs_rdma, &mut found);
        let failed = found.0.iter().filter(|check| check.verdict == Verdict::Fail);
        let missing: Vec<String> = failed.map(|check| check.text.clone()).collect();
        let left = timeout.saturating_sub(began.elapsed());
        if missing.is_empty() || left.is_zero() {
            let name = node.name().unwrap_or_default();
            output::print(&match output {
                Output::Json => output::pretty(&found.json(&name)),
                Output::Table if missing.is_empty() => {
                    format!("ready: {}\n", count(node.rails.len(), "rail"))
                }
                Output::Table => found.text(&name, has_colours()),
            })?;
            return Ok(if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        for new in missing.iter().filter(|text| !told.contains(*text)) {
            output::say(program, &format!("waiting: {new}"));
        }
        told = missing;
        std::thread::sleep(PAUSE.min(left));
        // Each look has the time of a call.
        watchdog::allow(began.elapsed() + node.call_timeout());
    }
}

/// What a node needs that comes by itself while it boots, or from whoever writes node.json and the plan. Runtimes are
/// left out: kubelet may be what waits.
fn look(mtu: u32, needs_rdma: bool, found: &mut Findings) -> Node {
    let node = node::configuration(found);
    node::directories(&node, found);
    if node.rails.is_empty() {
        let text = "node.json lists no rails, so it is not known which to wait for";
        found.add(Check::fail("pf", text, "list them as conf/node.json does"));
        return node;
    }
    match Inventory::take(&node) {
        Ok(inventory) => {
            let networks = networks::known(Path::new(runtimes::CONFIGURATIONS), &inventory);
            rails::check(&node, &inventory, &networks, mtu, found);
            if needs_rdma {
                rdma::check(&node, &inventory, &networks, needs_rdma, found);
            }
            pools::check(&node, &inventory, &networks, found);
        }
        Err(error) => {
            found.add(Check::fail("inventory", format!("{error:#}"), "correct that"));
        }
    }
    node
}
