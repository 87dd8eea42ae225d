//! Mode `rdma`, and `"type": "rdma"` as rdma-cni has it: another plugin of the list attaches the
//! netdev, and this call the RDMA device alone. Its record has a key of its own, and no netdev:
//! nothing of the netdev is changed here, nor restored.

use std::path::Path;

use anyhow::Result;

use super::add::{Attaching, Making, new_owner};
use super::context::Cx;
use super::locate::Place;
use super::owner::{Key, Part};
use super::record::Record;
use super::records::Records;
use super::started::started;
use super::steps::gids::Gids;
use super::steps::rail::Rail;
use super::steps::{Change, rdma};
use super::{claim, pending};
use crate::cni::{AddResult, Attachment, Network};
use crate::device;
use crate::device::info;
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
    claim::recover_own(&records, &key, &node, &mut host)?;
    claim::recover_rdma_name(&conf, &key, &records, &node)?;
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
    let owner = new_owner(network, &key, path, &conf, &device)?;
    let function = device.function().cloned();
    let (facts, place, pod) = (
        Default::default(),
        Place::UserSpace,
        Some(Pod::open(netns)?),
    );
    let cx = Cx {
        node: &node,
        locks: &records.locks,
        owner,
        facts,
        host,
        pod,
        function,
        place,
        is_anew: false,
    };
    let mut attach = plan(device, &conf, &previous, &records, cx)?;
    let mut making = Making::new(&conf, &previous);
    let mut made = || -> Result<()> {
        if let Some(rdma) = attach.record.rdma_mut() {
            rdma::qos::note(rdma, &conf, &attach.cx)?;
        }
        attach.write()?;
        watchdog::step(|| "moving the RDMA device".to_owned());
        attach.make(|change, attach| making.make(change, attach))
    };
    match made() {
        Ok(()) => {
            log::info!(
                "the RDMA device of {} is set for {}",
                attach.device.describe(),
                attachment.ifname
            );
            Ok(previous)
        }
        Err(error) => {
            attach.roll_back();
            Err(conf.with_rail(error))
        }
    }
}

/// Takes the device, refuses what can be refused, and puts the journal on file.
fn plan<'a>(
    device: device::Device,
    conf: &NetConf,
    previous: &AddResult,
    records: &'a Records,
    cx: Cx<'a>,
) -> Result<Attaching<'a>> {
    let (id, key, node) = (device.original.id.clone(), cx.owner.key(), cx.node);
    recover_claims(&id, &key, records, node)?;
    let mut lock = records.locks.device(&id)?;
    if let Some(other) = records.claims_on(&id, &mut lock, Some(&key))?.first() {
        fail!(
            TryAgain,
            "{} is attached to {}",
            device.describe(),
            other.owner.describe()
        );
    }
    let left = pending::settle(records, &id, Part::Rdma, &VfState::default(), node)?.previous;
    pending::settle_rdma(conf.rdma == netconf::Rdma::Required, &device, records, node)?;
    if let Some(path) = &conf.device_info {
        let is_on_record = |other: &_| Ok(records.on_file(&Key::whole(other))?.is_some());
        info::refuse(path, &cx.owner.device, &cx.owner.attachment(), is_on_record)?;
    }
    let rdma = rdma::plan(conf, &device, node)?;
    let mut record = Record::new(cx.owner.clone());
    if conf.gid.is_some() && !rdma.names.is_empty() {
        record.plan(Change::Gids(Gids::default()));
    }
    record.plan(Change::Rdma(rdma));
    let addresses = previous.addresses_of(&cx.owner.ifname);
    record.plan(Change::Rail(Rail {
        addresses,
        ..Rail::default()
    }));
    conf.device_info
        .clone()
        .map(Change::DeviceInfo)
        .into_iter()
        .for_each(|change| record.plan(change));
    left.iter().for_each(|left| record.inherit(left));
    let attach = Attaching::begin(device, record, records, lock, cx, Vec::new())?;
    if left.is_some() {
        pending::inherited(records, &id, Part::Rdma)?;
    }
    Ok(attach)
}

/// Restores what earlier attachments left of the device: its netdev is in this pod, so no other has
/// it.
fn recover_claims(id: &str, key: &Key, records: &Records, node: &Node) -> Result<()> {
    for claim in records
        .named(id)?
        .iter()
        .filter(|claim| claim.owner.key() != *key)
    {
        let other = claim.owner.key();
        if !claim.owner.is_rdma_alone() {
            claim::recover_other(records, claim, node)?;
            continue;
        }
        let Some(_lock) = records.locks.try_attachment(&other)? else {
            continue;
        };
        let Some(now) = records.find(&other)? else {
            continue;
        };
        claim::recover(records, now, node)?;
    }
    Ok(())
}
