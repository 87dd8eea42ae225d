//! Mode `rdma`, and `"type": "rdma"` as rdma-cni has it: another plugin of the list attaches the netdev, and this call the
//! RDMA device alone. Its record has a key of its own, and no netdev: nothing of the netdev is changed here, nor restored.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::add::new_record;
use super::config::{self, NetConf};
use super::debt::{self, Heir};
use super::device;
use super::record::{self, DeviceLock, Phase, Record, Records};
use super::{claim, devinfo, rdma, started};
use crate::cni::{AddResult, Attachment, Network};
use crate::netlink::Socket;
use crate::netns::Netns;
use crate::node::Node;
use crate::sysfs::{self, Function, Mounted};
use crate::{calls, fail, failure, watchdog};

/// The key of the record that a call for `network` is about.
pub fn key(network: &Network, attachment: &Attachment) -> Attachment {
    if config::is_chained(network) { record::chained_key(attachment) } else { attachment.clone() }
}

/// ADD. The result is that of the plugins before.
pub fn add(network: &Network, attachment: &Attachment, path: &Path) -> Result<AddResult> {
    let node = started(Node::load()?, network);
    node.check_place(Some(path))?;
    let mut conf = NetConf::parse(network, attachment, &node)?;
    let Some(previous) = network.previous()? else {
        fail!(
            InvalidConfig,
            "mode rdma needs a plugin before it in the list, one that attaches the interface: there is no prevResult"
        );
    };
    let netns = Netns::open(path)?;
    let records = Records::open(&node)?;
    let key = record::chained_key(attachment);
    let mut lock = records.lock(&key)?;
    lock.refuse_if_deleted()?;
    if records.on_file(attachment)?.is_some() {
        fail!(
            InvalidConfig,
            "{attachment} is a rail of rail-cni, which moves and sets RDMA devices itself: remove this plugin from the \
             list, and write its keys there"
        );
    }
    claim::recover_own(&records, &key, &node)?;
    rdma::recover_name(&conf, &key, &records, &node)?;
    watchdog::step(|| "finding the RDMA device".to_owned());
    let device = device::without_netdev(behind(&attachment.ifname, &netns, &conf, &node)?, &node)?;
    device::check_allowed(&device, &conf, &node, &network.name)?;
    conf.rail = conf.rail.or_else(|| device::rail_of(&device, &node));
    calls::rail(conf.rail);
    let id = device.original.id.clone();
    recover_claims(&id, &key, &records, &node)?;
    let mut claimed = records.lock_device(&id)?;
    if let Some(other) = records.claims_on(&id, &mut claimed, Some(&key))?.first() {
        fail!(TryAgain, "{} is attached to {}", device.describe(), other.holder());
    }
    let found = debt::take_over(&records, &id, Heir::OfRdma, &node, &mut Socket::open()?)?;
    rdma::settle_owed(&conf, &device, &records, &node)?;
    if let Some(path) = &conf.device_info {
        devinfo::check(path, &device, &key, &records)?;
    }
    let changes = rdma::prepare(&conf, &device, &node)?;
    let mut record = new_record(network, &key, path, &conf, &device, &[])?;
    (record.rdma, record.rdma_renamed, record.rdma_qos) = (changes.moving, changes.renamed, changes.qos);
    record.applied.addresses = addresses_of(&previous, &attachment.ifname);
    let left = if let debt::Found::Stale(left) = found { Some(left) } else { None };
    left.iter().for_each(|left| record.begin_as(left));
    records.write(&record, &mut claimed)?;
    if left.is_some() {
        debt::taken_over(&records, &id, Heir::OfRdma)?;
    }
    match apply(&mut record, &conf, &changes.names, &netns, &records, &mut claimed, &node) {
        Ok(()) => {
            log::info!("the RDMA device of {} is set for {}", device.describe(), attachment.ifname);
            Ok(previous)
        }
        Err(error) => {
            claim::undo(&record, &records, claimed, &node)
                .unwrap_or_else(|left| log::error!("undoing ADD failed: {left:#}"));
            Err(conf.with_rail(error))
        }
    }
}

fn apply(
    record: &mut Record,
    conf: &NetConf,
    names: &[String],
    netns: &Netns,
    records: &Records,
    claimed: &mut DeviceLock,
    node: &Node,
) -> Result<()> {
    rdma::qos::note(record, conf, node)?;
    records.write(record, claimed)?;
    watchdog::step(|| "moving the RDMA device".to_owned());
    rdma::move_in(record, netns, node)?;
    if let Some(gid) = conf.gid.filter(|_| !names.is_empty()) {
        watchdog::step(|| "waiting for GIDs".to_owned());
        rdma::gid::run(record, gid, Instant::now(), netns, node)
            .or_else(|error| conf.or_warn(conf.gid, error))?;
    }
    if let Some(path) = &conf.device_info {
        devinfo::write(path, record, names)?;
    }
    record.phase = Phase::Attached;
    records.write(record, claimed)
}

/// The function whose netdev the pod has as `ifname`. No other may be meant: a network that could choose its device would
/// take another pod's.
fn behind(ifname: &str, netns: &Netns, conf: &NetConf, node: &Node) -> Result<Function> {
    let mounted = netns.run(Mounted::here)?;
    let root = mounted.path();
    let id = sysfs::device_of(&root, ifname);
    let in_pod = id.map(|id| Function::find(&root, &id)).transpose()?.flatten();
    let in_pod = in_pod.filter(|function| function.has_port(&root, ifname).unwrap_or(false));
    let Some(in_pod) = in_pod else {
        let what = if root.join("class/net").join(ifname).exists() {
            "is no device of a bus"
        } else {
            "is not there"
        };
        fail!(
            InvalidConfig,
            "mode rdma: {ifname} {what} in the pod: has a plugin before this one attached a VF?"
        );
    };
    if let Some(id) = conf.selector.id.as_ref().filter(|id| id.as_str() != in_pod.id) {
        fail!(
            InvalidConfig,
            "deviceID: the network means {}, and {ifname} in the pod is {}: check the plugin before this one",
            id.as_str(),
            in_pod.id
        );
    }
    let host = in_pod.seen_in(&node.sysfs_root);
    if host.exists() && !host.netdevs()?.is_empty() {
        fail!(
            InvalidConfig,
            "mode rdma: {} has a port on the host, too, so its RDMA device is not that of {ifname} alone",
            in_pod.id
        );
    }
    host.exists().then_some(host).ok_or_else(|| failure!(TryAgain, "the host has no device {}", in_pod.id))
}

/// Restores what earlier attachments left of the device: its netdev is in this pod, so no other has it.
fn recover_claims(id: &str, key: &Attachment, records: &Records, node: &Node) -> Result<()> {
    for claim in records.named(id)?.iter().filter(|claim| claim.attachment() != *key) {
        if claim.is_chained() {
            let Some(_lock) = records.try_lock(&claim.attachment())? else { continue };
            let Some(now) = records.find(&claim.attachment())? else { continue };
            claim::recover(records, &now, node)?;
        } else {
            claim::recover_other(records, claim, node)?;
        }
    }
    Ok(())
}

/// The addresses that the plugins before gave the interface.
fn addresses_of(previous: &AddResult, ifname: &str) -> Vec<ipnet::IpNet> {
    let is_its = |interface: Option<usize>| {
        interface.is_none_or(|number| {
            let interface = previous.interfaces.get(number);
            interface.is_some_and(|one| one.name == ifname && !one.sandbox.is_empty())
        })
    };
    previous.ips.iter().filter(|ip| is_its(ip.interface)).map(|ip| ip.address).collect()
}
