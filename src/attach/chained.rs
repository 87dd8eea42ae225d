//! Mode `rdma`, and `"type": "rdma"` as rdma-cni has it: another plugin of the list attaches the
//! netdev, and this call the RDMA device alone. Its record has a key of its own, and no netdev:
//! nothing of the netdev is changed here, nor restored.

use std::path::Path;

use anyhow::Result;

use super::attaching::{Attaching, OtherRecords, Subject, netns_of, new_owner};
use super::context::Cx;
use super::heal;
use super::locate::Place;
use super::locks::DeviceLock;
use super::owner::{Key, Part};
use super::pending;
use super::records::Records;
use super::started::started;
use crate::cni::{AddResult, Attachment, Network};
use crate::device::{self, Device};
use crate::netconf::{self, NetConf, Outline};
use crate::netns::{Netns, Pod};
use crate::node::Node;
use crate::{calls, fail, watchdog};
use rail_netlink::Socket;
use rail_netlink::vf::VfState;

/// The key of the record that a call for `network` is about.
pub fn key(network: &Network, attachment: &Attachment) -> Key {
    let part = if Outline::of(network).is_chained {
        Part::Rdma
    } else {
        Part::Whole
    };
    Key {
        attachment: attachment.clone(),
        part,
    }
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
    let key = Key {
        attachment: attachment.clone(),
        part: Part::Rdma,
    };
    let mut lock = records.locks.attachment(&key)?;
    lock.refuse_if_deleted()?;
    if records.on_file(&Key::whole(attachment))?.is_some() {
        fail!(
            InvalidConfig,
            "{attachment} is a rail of rail-cni, which moves and sets RDMA devices itself: remove this plugin from the \
             list, and write its keys there"
        );
    }
    let mut host = Socket::open()?;
    let listed = records.list()?;
    heal::own_attachment(&records, &listed, &key, &node, &mut host)?;
    heal::rdma_name(&conf, &key, &records, &node)?;
    watchdog::step(|| "finding the RDMA device".to_owned());
    let device = device::without_netdev(
        device::behind(&attachment.ifname, &netns, &conf, &node)?,
        &node,
    )?;
    device::allowed::check_allowed(&device, &conf, &node, &network.name)?;
    conf.rail = conf
        .rail
        .or_else(|| device::allowed::rail_of(&device, &node));
    calls::rail(conf.rail);
    let owner = new_owner(network, &key, netns_of(path)?, &conf, &device)?;
    let mut cx = Cx::new(owner, Place::UserSpace, &node, &records.locks, host)?;
    cx.pod = Some(Pod::open(netns)?);
    let lock = claim(&device, &key, &records, &node)?;
    let id = device.original.id.clone();
    let left = pending::settle(&records, &id, Part::Rdma, &VfState::default(), &node)?;
    pending::settle_rdma(
        conf.rdma == netconf::Rdma::Required,
        &device,
        &records,
        &node,
    )?;
    let subject = Subject {
        network,
        conf,
        ipam_config: Vec::new(),
        device,
        previous: left,
        others: OtherRecords::new(&records, listed, &attachment.container_id),
    };
    let mut attach = Attaching::new(subject, cx, &records, lock);
    attach.plan_rdma_alone(&previous)?;
    attach.open_journal()?;
    watchdog::step(|| "moving the RDMA device".to_owned());
    if let Err(error) = attach.make(&previous) {
        let error = attach.subject.conf.with_rail(error);
        attach.roll_back();
        return Err(error);
    }
    let device = attach.subject.device.describe();
    log::info!(
        "the RDMA device of {device} is set for {}",
        attachment.ifname
    );
    Ok(previous)
}

/// Ends what dead pods left of the device, and locks it.
fn claim(device: &Device, key: &Key, records: &Records, node: &Node) -> Result<DeviceLock> {
    let id = &device.original.id;
    heal_claims(id, key, records, node)?;
    let mut lock = records.locks.device(id)?;
    if let Some(other) = records.claims_on(id, &mut lock, Some(key))?.first() {
        fail!(
            TryAgain,
            "{} is attached to {}",
            device.describe(),
            other.owner.describe()
        );
    }
    Ok(lock)
}

/// Restores what earlier attachments left of the device: its netdev is in this pod, so no other has
/// it.
fn heal_claims(id: &str, key: &Key, records: &Records, node: &Node) -> Result<()> {
    for claim in records
        .named(id)?
        .iter()
        .filter(|claim| claim.owner.key() != *key)
    {
        let other = claim.owner.key();
        if !claim.owner.is_rdma_alone() {
            heal::end_if_left_over(records, claim, node)?;
            continue;
        }
        let Some(_lock) = records.locks.try_attachment(&other)? else {
            continue;
        };
        let Some(now) = records.find(&other)? else {
            continue;
        };
        heal::end(records, now, node)?;
    }
    Ok(())
}
