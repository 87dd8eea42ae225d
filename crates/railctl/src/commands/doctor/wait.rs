//! `railctl wait`: for what starts pods, such as kubelet, and must not do so before the rails are
//! there.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Check, Findings, Verdict, has_colours, networks, node, pools, rails, rdma, runtimes};
use crate::commands::count;
use crate::commands::inventory::{Inventory, Rail};
use crate::output::{self, Output};
use rail_cni::node::Node;
use rail_cni::watchdog;

/// Time between two looks at the node.
const PAUSE: Duration = Duration::from_secs(1);

/// The conditions of the wait.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// MTU to assume if no network here sets one.
    pub mtu: u32,
    /// Whether RDMA is needed, too.
    pub rdma: bool,
    /// Whether pods get the PFs themselves: no VFs are waited for.
    pub pfs: bool,
}

/// Waits until this node has what `doctor` checks of rails and pools, for all rails of node.json.
/// Says on stderr what is missing, when that changes. The exit status is 1 on timeout.
pub fn wait(seconds: u32, needs: Needs, output: Output) -> Result<ExitCode> {
    let (began, timeout) = (Instant::now(), Duration::from_secs(seconds.into()));
    let mut told = Vec::new();
    loop {
        let mut found = Findings::default();
        let node = look(needs, &mut found);
        let failed = found
            .0
            .iter()
            .filter(|check| check.verdict == Verdict::Fail);
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
            return Ok(if missing.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
        for new in missing.iter().filter(|text| !told.contains(*text)) {
            output::say(&format!("waiting: {new}"));
        }
        told = missing;
        let pause = PAUSE.min(left);
        // Each look has the time of a call.
        watchdog::allow(began.elapsed() + pause + node.call_timeout());
        std::thread::sleep(pause);
    }
}

/// Looks for the parts of a node that arrive while it boots, or that node.json and the plan bring.
/// Runtimes are left out: kubelet may be what waits.
fn look(needs: Needs, found: &mut Findings) -> Node {
    let Needs {
        mtu,
        rdma: needs_rdma,
        pfs,
    } = needs;
    let mut node = node::configuration(found);
    node::directories(&node, found);
    if node.rails.is_empty() {
        let text = "node.json lists no rails to wait for";
        found.add(Check::fail("pf", text, "list them as conf/node.json does"));
        return node;
    }
    match Inventory::take(&node) {
        Ok(inventory) => {
            // Before anybody has made VFs, a node looks like one whose pods get the PFs.
            if !pfs && inventory.rails.iter().any(can_have_vfs) {
                node.policy.vfs_only = true;
            }
            let networks = networks::known(Path::new(runtimes::CONFIGURATIONS), &inventory);
            rails::check(&node, &inventory, &networks, mtu, found);
            if needs_rdma {
                rdma::check(&node, &inventory, &networks, needs_rdma, found);
            }
            pools::check(&node, &inventory, &networks, found);
        }
        Err(error) => {
            found.add(Check::fail(
                "inventory",
                format!("{error:#}"),
                "correct that",
            ));
        }
    }
    node
}

fn can_have_vfs(rail: &Rail) -> bool {
    match &rail.function {
        Some(pf) => pf.max_vf_count() > 0,
        None => false,
    }
}
