//! CHECK: the attachment as it is, compared with the record and with what the runtime was told.

use std::path::Path;

use anyhow::Result;

use super::record::{Phase, Probe, Record};
use super::{pod, probe, rdma, restore, vf};
use crate::cni::{AddResult, Attachment};
use crate::netlink::Socket;
use crate::netns::{self, Netns};
use crate::node::Node;

/// Every difference, a line each.
pub fn differences(
    record: &Record,
    attachment: &Attachment,
    path: &Path,
    previous: &AddResult,
    node: &Node,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let pod_netns = Netns::open(path)?;
    let sandbox_is = |text: &str| Path::new(text) == path || netns::is_same(Path::new(text), path);
    let said =
        previous.interfaces.iter().find(|one| one.name == attachment.ifname && !one.sandbox.is_empty());
    match said {
        Some(interface) if sandbox_is(&interface.sandbox) => (),
        Some(interface) => found.push(format!("prevResult has it in {}", interface.sandbox)),
        // Results below 0.3.0 have no interfaces.
        None if previous.interfaces.is_empty() => (),
        None => found.push(format!("prevResult has no interface {}", attachment.ifname)),
    }
    if record.phase != Phase::Attached {
        found.push("its ADD was not finished".to_owned());
        return Ok(found);
    }
    if !netns::is_same(&record.netns.path, path) {
        found.push(format!("it was attached to {}", record.netns.path.display()));
        return Ok(found);
    }
    found.extend(of_device(record, &pod_netns, previous, node, record.probe.as_ref())?);
    Ok(found)
}

/// The device in its pod, and the gateways of `probe`.
pub fn of_device(
    record: &Record,
    netns: &Netns,
    previous: &AddResult,
    node: &Node,
    probe: Option<&Probe>,
) -> Result<Vec<String>> {
    if record.is_chained() {
        return rdma::differences(record, netns, record.interface(), node);
    }
    let mut found = vf::differences(record, node, &mut Socket::open()?)?;
    if record.device.link.is_none() {
        return Ok(found);
    }
    let mut pod = netns.run(Socket::open)?;
    let link = restore::find_in_pod(record, &mut pod)?;
    let ifname = link.as_ref().map_or(&record.ifname, |link| &link.name);
    found.extend(rdma::differences(record, netns, ifname, node)?);
    let Some(link) = link else {
        found.push(format!("the device {} is not in the pod", record.device.id));
        return Ok(found);
    };
    found.extend(pod::differences(&mut pod, &link, record, previous)?);
    // One that is down asks nobody.
    if let Some(probe) = probe.filter(|_| link.up) {
        let asked = probe::ask(&mut pod, netns, &link, record, node, probe);
        found.extend(asked.err().map(|error| format!("{error:#}")));
    }
    Ok(found)
}
