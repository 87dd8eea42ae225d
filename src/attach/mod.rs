//! rail-cni: a device of the host becomes an interface of a pod, and is restored at the pod's end.

mod add;
mod attaching;
pub mod attachments;
mod away;
mod chained;
mod check;
mod claim;
mod context;
mod del;
mod heal;
mod ipam;
mod locate;
mod locks;
mod owner;
mod pending;
mod planes;
mod reattach;
mod rebuild;
mod record;
mod records;
mod started;
mod state;
mod step;
mod steps;
mod undo;

/// The journal from inside, for the fuzz targets.
#[cfg(feature = "inside")]
pub mod inside {
    pub use super::owner::Key;
    pub use super::record::Record;
    pub use super::records::Records;
    pub use super::steps::host_addresses::HostAddresses;
    pub use super::steps::rail;
}

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::cni::{AddResult, Attachment, Command, Keys, Network, Plugin};
use crate::device::allowed::pf_is_on_host;
use crate::netconf::Outline;
use crate::node::Node;
use crate::{fail, failure};
use ipam::Ipam;
use rail_netlink::all_of;
use records::Records;
use started::started;

/// The plugin.
#[derive(Debug)]
pub struct Attach;

impl Plugin for Attach {
    const NAME: &'static str = "rail-cni";
    const KEYS: &'static Keys = &crate::netconf::NETWORK;
    // The record keeps it until the pod ends.
    const MOST_CONFIG: usize = 64 << 10;
    const CALLS_OTHERS: bool = true;

    fn add(&self, network: &Network, attachment: &Attachment, path: &Path) -> Result<AddResult> {
        if Outline::of(network).is_chained {
            return chained::add(network, attachment, path);
        }
        add::add(network, attachment, path)
    }

    fn del(&self, network: &Network, attachment: &Attachment, path: Option<&Path>) -> Result<()> {
        del::del(network, attachment, path)
    }

    fn check(
        &self,
        network: &Network,
        attachment: &Attachment,
        path: &Path,
        previous: &AddResult,
    ) -> Result<()> {
        let node = started(Node::load()?, network);
        node.check_place(Some(path))?;
        let ipam = Outline::of(network).ipam(&node.policy)?;
        let mut found = Vec::new();
        let records = Records::open_existing(&node)?;
        let key = chained::key(network, attachment);
        let record = records
            .as_ref()
            .map(|records| records.find(&key))
            .transpose()?
            .flatten();
        let rail = record.as_ref().and_then(|record| record.owner.rail);
        match (&records, record) {
            (Some(records), Some(record)) => {
                found = check::differences(&record, attachment, path, previous, records, &node)?;
            }
            _ => found.push("there is no record of it".to_owned()),
        }
        if let Some(name) = ipam {
            let stdin = match rail.filter(|_| Outline::of(network).rail.is_none()) {
                Some(rail) => &network.stdin_with("rail", rail.into())?,
                None => &network.stdin,
            };
            let command = Command::Check(attachment.clone(), path.to_owned());
            let checked = Ipam::for_network(name, network, stdin, &node)?.run(&command);
            if found.is_empty() {
                return checked;
            }
            found.extend(checked.err().map(|error| format!("IPAM: {error:#}")));
        }
        if found.is_empty() {
            return Ok(());
        }
        fail!(
            CheckFailed,
            "{attachment} is not what ADD made: {}",
            found.join("; ")
        )
    }

    fn status(&self, network: &Network) -> Result<()> {
        let node = ready(network).map_err(|error| failure!(NotAvailable, "{error:#}"))?;
        let Some(name) = Outline::of(network).ipam(&node.policy)? else {
            return Ok(());
        };
        let ipam = Ipam::for_network(name, network, &network.stdin, &node);
        ipam.map_err(|error| failure!(NotAvailable, "{error:#}"))?
            .run(&Command::Status)
    }

    /// Undoes attachments that the runtime does not know any more. Its list can be incomplete:
    /// CRI-O sends one for every file in its directory, while Multus made the attachments. So what
    /// lives is kept.
    fn gc(&self, network: &Network, keep: &[Attachment]) -> Result<()> {
        let node = started(Node::load_lenient(), network);
        node.check_place(None)?;
        let ipam = Outline::of(network).ipam(&node.policy)?;
        let mut done = Vec::new();
        let mut found_any = false;
        if let Some(records) = Records::open_existing(&node)? {
            let (mut ours, _) = records.all()?;
            ours.retain(|record| record.owner.network == network.name);
            found_any = !ours.is_empty();
            for record in &ours {
                if !keep.contains(&record.owner.attachment()) {
                    done.push(heal::end_unless_alive(&records, record, &node));
                }
            }
            done.push(pending::retry_due(&records, &node));
        }
        if !found_any {
            done.push(node.confirm_nothing(None));
        }
        if let Some(name) = ipam {
            let ipam = Ipam::for_network(name, network, &network.stdin, &node);
            done.push(ipam.and_then(|ipam| ipam.run(&Command::Gc)));
        }
        all_of(done)
    }
}

/// Fails when an ADD of the network would, whatever its device. Returns the node.
fn ready(network: &Network) -> Result<Node> {
    let node = started(Node::load()?, network);
    node.check_place(None)?;
    node.run_is_writable()?;
    let sysfs = node.sysfs_root.join("class/net");
    sysfs
        .metadata()
        .with_context(|| format!("cannot read {}", sysfs.display()))?;
    rail_is_there(network, &node)?;
    Ok(node)
}

/// Fails when the PF of the network's rail is not on this node.
fn rail_is_there(network: &Network, node: &Node) -> Result<()> {
    let Some(rail) = Outline::of(network).rail else {
        return Ok(());
    };
    let pfs: Vec<_> = node
        .rails
        .iter()
        .filter(|one| u64::from(one.rail) == rail)
        .collect();
    if pfs.is_empty() && !node.rails.is_empty() {
        fail!(NotAvailable, "rail {rail}: node.json does not list it");
    }
    for one in pfs {
        if !pf_is_on_host(&one.pf, node)? && !is_in_a_pod(&one.pf, node)? {
            fail!(NotAvailable, "rail {rail}: the node has no PF {}", one.pf);
        }
    }
    Ok(())
}

// A netdev in a pod has no entry in the sysfs of the host.
fn is_in_a_pod(pf: &str, node: &Node) -> Result<bool> {
    let Some(records) = Records::open_existing(node)? else {
        return Ok(false);
    };
    Ok(records
        .all()?
        .0
        .iter()
        .any(|record| record.owner.device.is_pf(pf)))
}
