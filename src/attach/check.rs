//! CHECK: the attachment as it is, compared with its journal and with the result that the runtime
//! has.

use std::path::Path;

use anyhow::Result;

use super::context::Cx;
use super::record::Record;
use super::records::Records;
use super::step::Step as _;
use super::steps::gateway::Gateways;
use crate::cni::{AddResult, Attachment};
use crate::netns::{self, Netns, Pod};
use crate::node::Node;

/// Every difference, a line each.
pub fn differences(
    record: &Record,
    attachment: &Attachment,
    path: &Path,
    previous: &AddResult,
    records: &Records,
    node: &Node,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let netns = Netns::open(path)?;
    let sandbox_is = |text: &str| Path::new(text) == path || netns::is_same(Path::new(text), path);
    let said = previous
        .interfaces
        .iter()
        .find(|one| one.name == attachment.ifname && !one.sandbox.is_empty());
    match said {
        Some(interface) if sandbox_is(&interface.sandbox) => (),
        Some(interface) => found.push(format!("prevResult has it in {}", interface.sandbox)),
        // Results below 0.3.0 have no interfaces.
        None if previous.interfaces.is_empty() => (),
        None => found.push(format!("prevResult has no interface {}", attachment.ifname)),
    }
    if record.is_cut_off() {
        found.push("its ADD was not finished".to_owned());
        return Ok(found);
    }
    if !netns::is_same(&record.owner.netns.path, path) {
        found.push(format!(
            "it was attached to {}",
            record.owner.netns.path.display()
        ));
        return Ok(found);
    }
    found.extend(of_device(
        record,
        netns,
        previous,
        record.find::<Gateways>(),
        records,
        node,
    )?);
    Ok(found)
}

/// The device in its pod, and the gateways: every step is compared.
pub fn of_device(
    record: &Record,
    netns: Netns,
    previous: &AddResult,
    gateways: Option<&Gateways>,
    records: &Records,
    node: &Node,
) -> Result<Vec<String>> {
    let pod = Some(Pod::open(netns)?);
    let mut cx = Cx::with_pod(pod, &record.owner, record.facts(), node, &records.locks)?;
    cx.locate()?;
    let mut found = Vec::new();
    for step in &record.steps {
        if !step.is::<Gateways>() {
            found.extend(step.change.step().check(previous, &mut cx)?);
        }
    }
    if let Some(gateways) = gateways {
        found.extend(gateways.check(previous, &mut cx)?);
    }
    Ok(found)
}
