//! `railctl check`: performs the comparison of CHECK at any time, for every attachment of the node.

use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::count;
use super::inventory::{Attached, Inventory};
use super::rebuild::{Lost, REMEDY};
use crate::output::{self, Output};
use rail_cni::attach::attachments::{Attachment, Attachments, State};
use rail_cni::cni::{AddResult, Version};
use rail_cni::files;
use rail_cni::ipam::lease::Lease;
use rail_cni::ipam::table;
use rail_cni::neighbours;
use rail_cni::node::Node;
use rail_cni::pool::store;

/// Time for each gateway's answer. All attachments are checked at once.
const PATIENCE: Duration = Duration::from_secs(1);
/// Largest number of threads; each checks one attachment.
const AT_ONCE: usize = 64;
/// Directories in which runtimes and Multus store the results of the plugins that they called
/// (libcni.CNIConfig, `cacheDir`).
const RESULTS: [&str; 2] = ["/var/lib/cni/results", "/var/lib/cni/multus/results"];

/// An attachment and what differs from what ADD made.
struct Checked<'a> {
    record: &'a Attachment,
    /// The gateways that were probed.
    gateways: Vec<IpAddr>,
    differences: Vec<String>,
}

/// Checks all attachments and prints the differences, without changing anything in a pod. The exit
/// status is 1 when something differs.
pub fn check(node: &Node, output: Output) -> Result<ExitCode> {
    node.check_place(None)?;
    let inventory = Inventory::take(node)?;
    let mut checked = Vec::new();
    for some in inventory.attachments.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let threads: Vec<_> = some
                .iter()
                .map(|one| scope.spawn(|| look(one, node)))
                .collect();
            for (one, thread) in some.iter().zip(threads) {
                let looked = thread.join().unwrap_or_else(|_| {
                    let differences = vec!["its check panicked: please report it".to_owned()];
                    Some(Checked {
                        record: &one.record,
                        gateways: Vec::new(),
                        differences,
                    })
                });
                checked.extend(looked);
            }
        });
    }
    let is_on_record = inventory.unreadable.is_empty() && inventory.lost.is_empty();
    let is_well = is_on_record && checked.iter().all(|one| one.differences.is_empty());
    output::print(&match output {
        Output::Json => output::pretty(&json(&node.name()?, &checked, &inventory)),
        Output::Table => text(&checked, &inventory),
    })?;
    Ok(if is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Checks one attachment; `None` when an ADD or DEL of it is running or has just ended.
fn look<'a>(one: &'a Attached, node: &Node) -> Option<Checked<'a>> {
    let record = &one.record;
    let mut checked = Checked {
        record,
        gateways: Vec::new(),
        differences: Vec::new(),
    };
    if one.is_busy {
        return None;
    }
    let told = match &one.state {
        State::Live(_) => {
            let gateways = gateways_of(record, node);
            match of_living(record, node, &gateways) {
                Ok(differences) => checked.differences = differences,
                Err(error) => checked.differences.push(format!("{error:#}")),
            }
            if record.owner.device.link.is_some() {
                checked.gateways = gateways;
            }
            None
        }
        State::Dead => Some("its pod is gone without a DEL: run `railctl reap`".to_owned()),
        State::CutOff => Some("its ADD was killed: run `railctl reap`".to_owned()),
        State::Missing => Some(
            "its pod is gone, and the device has not returned: run `railctl doctor`".to_owned(),
        ),
        State::Lost => {
            let remedy = one.remedy_of_loss();
            Some(format!(
                "the pod is alive, but the device is on the host: {remedy}"
            ))
        }
        State::OnHost => Some(
            "the device is on the host, and the pod cannot be seen: run `railctl reap`".to_owned(),
        ),
        State::Elsewhere => {
            Some("the device is neither in the pod nor on the host: restart the pod".to_owned())
        }
        State::Unknown(why) => Some(format!("cannot tell whether its pod is alive: {why}")),
    };
    checked.differences.extend(told);
    let has_ended = || -> Result<bool> {
        match Attachments::open_existing(node)? {
            Some(attachments) => Ok(!attachments.is_on_record(record)?),
            None => Ok(true),
        }
    };
    let is_over = !checked.differences.is_empty() && one.is_live() && has_ended().unwrap_or(false);
    (!is_over).then_some(checked)
}

/// The gateways of an attachment whose network has no probe: those of its routes and its
/// allocations.
fn gateways_of(attachment: &Attachment, node: &Node) -> Vec<IpAddr> {
    let mut gateways = attachment.next_hops();
    for (_, allocation) in store::allocations(node) {
        let addresses = attachment.addresses();
        let has_address = addresses
            .iter()
            .any(|net| allocation.prefix.contains(&net.addr()));
        if has_address {
            gateways.extend(allocation.gateway);
        }
    }
    neighbours::sorted(gateways.into_iter())
}

fn of_living(attachment: &Attachment, node: &Node, gateways: &[IpAddr]) -> Result<Vec<String>> {
    let previous = previous(attachment).unwrap_or_default();
    let differences = match Attachments::open_existing(node)? {
        Some(attachments) => {
            let gateways = gateways.to_vec();
            attachments.differences(attachment, &previous, gateways, PATIENCE, node)?
        }
        None => None,
    };
    let Some(mut differences) = differences else {
        return Ok(vec![
            "its pod has just ended: run `railctl status`".to_owned(),
        ]);
    };
    differences.extend(of_lease(attachment, node)?);
    Ok(differences)
}

/// The last result that the runtime stored: later plugins of the chain, and Multus, may have
/// changed MAC and default route, and then the result says so.
fn previous(record: &Attachment) -> Option<AddResult> {
    let owner = &record.owner;
    let name = format!("{}-{}-{}", owner.network, owner.container_id, owner.ifname);
    let cached = RESULTS
        .iter()
        .find_map(|directory| files::read(&Path::new(directory).join(&name)).ok())?;
    let cached: Value = serde_json::from_slice(&cached).ok()?;
    AddResult::parse(cached.get("result")?, Version::V110).ok()
}

/// Compares the attachment's address with rail-ipam's lease and with the plan.
fn of_lease(record: &Attachment, node: &Node) -> Result<Vec<String>> {
    let mut found = Vec::new();
    if !record.is_by_rail_ipam() {
        return Ok(found);
    }
    let plan = store::allocations(node);
    let ours = record.addresses();
    let held = table::held_by(node, &record.owner.network, &record.owner.attachment())?;
    if held.is_empty() {
        found.push(
            "its address has no lease: another pod may get the same address; restart this pod"
                .to_owned(),
        );
    }
    for Lease { pool, address, .. } in held {
        let is_ours =
            record.owner.device.link.is_none() || ours.iter().any(|net| net.addr() == address);
        if !is_ours {
            found.push(format!(
                "its lease in pool {pool} is for {address}, which the ADD did not set"
            ));
        }
        let allocation = plan.iter().find(|(name, _)| *name == pool);
        if let Some(Err(why)) = allocation.map(|(_, allocation)| allocation.check_host(address)) {
            found.push(format!(
                "pool {pool}: its address {address} {why}: the plan changed after the pod started"
            ));
        }
    }
    Ok(found)
}

fn text(checked: &[Checked<'_>], inventory: &Inventory) -> String {
    let mut text = String::new();
    let rows: Vec<_> = checked
        .iter()
        .flat_map(|one| {
            one.differences
                .iter()
                .map(move |what| row(one.record, what))
        })
        .collect();
    if !rows.is_empty() {
        let headers = ["POD", "INTERFACE", "RAIL", "DEVICE", "DIFFERENCE"];
        text += &(output::table(&headers, rows.into_iter()) + "\n");
    }
    for lost in &inventory.lost {
        let line = format!("{}: {REMEDY}", lost.describe());
        text += &output::line(&line);
    }
    for name in &inventory.unreadable {
        let line = format!(
            "the record {name} cannot be read: if no pod has its device, run `railctl reap --forget {name}`"
        );
        text += &output::line(&line);
    }
    let differ = checked
        .iter()
        .filter(|one| !one.differences.is_empty())
        .count();
    let gateways: usize = checked.iter().map(|one| one.gateways.len()).sum();
    text + &format!(
        "{}, {} probed, {differ} with differences\n",
        count(checked.len(), "attachment"),
        count(gateways, "gateway")
    )
}

fn row(record: &Attachment, what: &str) -> Vec<String> {
    vec![
        record
            .owner
            .pod
            .clone()
            .unwrap_or_else(|| format!("container:{}", record.owner.container_id)),
        record.owner.ifname.clone(),
        record
            .owner
            .rail
            .map(|rail| rail.to_string())
            .unwrap_or_default(),
        record.owner.device.id.clone(),
        what.to_owned(),
    ]
}

/// The help of the verb lists these keys: new keys may be added, but none may change its meaning.
fn json(node_name: &str, checked: &[Checked<'_>], inventory: &Inventory) -> Value {
    let attachments = checked.iter().map(|Checked { record, gateways, differences }| {
        json!({
            "pod": record.owner.pod, "containerID": record.owner.container_id, "ifname": record.owner.ifname,
            "network": record.owner.network, "rail": record.owner.rail, "device": record.owner.device.id,
            "gateways": gateways, "differences": differences,
        })
    });
    json!({"node": node_name, "attachments": attachments.collect::<Vec<_>>(),
        "lost": inventory.lost.iter().map(Lost::json).collect::<Vec<_>>(), "unreadable": inventory.unreadable})
}
