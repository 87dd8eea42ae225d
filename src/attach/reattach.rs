//! The return of a lost device to its pod. A driver that started anew made the device on the host,
//! under a pod that lives. What ADD made is on record, and is made again, without the runtime,
//! without the IPAM plugin, and with the same address.
//!
//! 1. Lock attachment and device, unless a call is at work on them.
//! 2. Undo what is left in the pod.
//! 3. Compare the device with node, policy and network, as ADD does. The address must still be
//!    leased.
//! 4. Restore the netdev as it was before ADD. Plan every step again, and make it. Until all are
//!    made, the attachment counts as lost, also for calls after a kill. After an error the device
//!    goes to the host again.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::attaching::{Journal, OtherRecords, Subject};
use super::claim;
use super::context::Cx;
use super::owner::Key;
use super::record::{Entry, Progress, Record};
use super::records::Records;
use super::state::{self, State};
use super::step::Step as _;
use super::steps::gateway::Gateways;
use super::steps::host_addresses::HostAddresses;
use super::steps::moved::Move;
use super::steps::netdev::Netdev;
use super::steps::rail::{self, Rail};
use super::steps::rdma::Rdma;
use super::undo;
use crate::cni::{AddResult, Args, Ip, Network, Strictness};
use crate::device::{self, Device};
use crate::ipam::{assign, table};
use crate::netconf::{self, NetConf, Probe, Selector};
use crate::node::Node;
use crate::{fail, files, watchdog};
use rail_netlink::Socket;
use rail_netlink::link::Link;

/// Patience of a first try with a driver that makes its RDMA devices anew.
const RDMA_PATIENCE: Duration = Duration::from_secs(5);

/// The outcome of a try to attach a lost device again.
#[derive(Debug)]
pub enum Outcome {
    /// The pod has its rail again.
    Reattached,
    /// The device stays on the host, for this reason, which is on record.
    StaysLost(anyhow::Error),
    /// Nothing is lost: the pod has its rail, or is gone, or the device is not on the host.
    NotLost,
    /// A call is at work on the attachment or on its device.
    Busy,
}

/// Attaches a lost device to its pod again. An error means that it is not known whether the device
/// is lost.
pub fn reattach(records: &Records, key: &Key, node: &Node) -> Result<Outcome> {
    let Some(_lock) = records.locks.try_attachment(key)? else {
        return Ok(Outcome::Busy);
    };
    let Some(record) = records.find(key)? else {
        return Ok(Outcome::NotLost);
    };
    if state::of(&record, node, &mut Socket::open()?)? != State::Lost {
        return Ok(Outcome::NotLost);
    }
    let Some(lock) = records.locks.try_device(&record.owner.device.id)? else {
        return Ok(Outcome::Busy);
    };
    watchdog::step(|| format!("attaching {} again", record.owner.device.id));
    let mut journal = Journal {
        records,
        record,
        lock,
    };
    let Err(error) = attach_again(&mut journal, node) else {
        return Ok(Outcome::Reattached);
    };
    let reattached = journal.record.reattached.get_or_insert_default();
    reattached.why_not = Some(format!("{error:#}"));
    records
        .write(&journal.record, &mut journal.lock)
        .unwrap_or_else(|error| log::warn!("{error:#}"));
    Ok(Outcome::StaysLost(error))
}

/// Attaches the device of a lost attachment, which is locked.
fn attach_again(journal: &mut Journal<'_>, node: &Node) -> Result<()> {
    refuse_infiniband(&journal.record)?;
    refuse_host_addresses(&journal.record)?;
    refuse_claimed(journal)?;
    let network = network_of(&journal.record)?;
    let owner = &journal.record.owner;
    let mut conf = NetConf::parse(&network, &owner.attachment(), node)?;
    // A running pod is better off with a rail that does not answer yet than without.
    conf.probe = conf.probe.map(only_warn);
    conf.gid = conf.gid.map(only_warn);

    let locks = &journal.records.locks;
    let mut cx = Cx::open(owner, journal.record.facts(), node, locks)?;
    bring_home(&mut journal.record, &mut cx)?;
    let link = netdev_on_host(&cx)?;
    let ifname = cx.owner.ifname.clone();
    rail::refuse_name_in_use(&mut cx.pod()?.socket, &ifname)?;
    refuse_unless_leased(&journal.record, node)?;
    let device = find_device(&link, &mut cx)?;
    device::allowed::check(&device, &conf, node, &network.name, &mut cx.host)?;
    claim::refuse_pf_of_attached_vfs(journal.records, &device, node, &mut cx.host)?;
    // A network without a rail has that of its device.
    conf.rail = cx.owner.rail;
    let link = restore_netdev(&journal.record, &mut cx)?;
    renew_numbers(&mut journal.record, &link, &conf, &mut cx)?;

    let listed = journal.records.list()?;
    let leased = leased(&journal.record);
    let others = OtherRecords::new(journal.records, listed, &cx.owner.container_id);
    let subject = Subject {
        network: &network,
        conf,
        ipam_config: Vec::new(),
        device,
        previous: None,
        others,
    };
    make(journal, &subject, &leased, &mut cx)
}

fn refuse_infiniband(record: &Record) -> Result<()> {
    let device = &record.owner.device;
    if device.link.as_ref().is_some_and(Link::is_infiniband) {
        fail!(
            UnsupportedField,
            "{} is an InfiniBand device, which only a new pod gets: restart the pod",
            device.id
        );
    }
    Ok(())
}

/// The host configures its netdevs by itself: addresses and routes may be others by now, or in use.
fn refuse_host_addresses(record: &Record) -> Result<()> {
    if record.find::<HostAddresses>().is_some() {
        fail!(
            UnsupportedField,
            "{} has addresses of the host, which only a new pod gets: restart the pod",
            record.owner.device.id
        );
    }
    Ok(())
}

fn refuse_claimed(journal: &mut Journal<'_>) -> Result<()> {
    let Journal {
        records,
        record,
        lock,
    } = journal;
    let id = &record.owner.device.id;
    let claims = records.claims_on(id, lock, Some(&record.owner.key()))?;
    if let Some(other) = claims.first() {
        fail!(TryAgain, "{id} is claimed by {}", other.owner.describe());
    }
    Ok(())
}

/// The network of ADD.
fn network_of(record: &Record) -> Result<Network> {
    let Some(request) = record.request() else {
        fail!(
            InvalidConfig,
            "{}: the request of its ADD is not on record, because an older build wrote the record, or `railctl reap \
             --rebuild`: restart the pod",
            record.owner.device.id
        );
    };
    Network::parse(
        request.config.into_bytes(),
        Args::parse(&request.args),
        Vec::new(),
        &netconf::NETWORK,
        Strictness::Strict,
    )
}

fn only_warn(probe: Probe) -> Probe {
    Probe {
        required: false,
        ..probe
    }
}

/// Undoes what is in the pod, so that the device is on the host. Its steps count as made then, as
/// those of any lost device; where it is not certain to be there, as planned.
fn bring_home(record: &mut Record, cx: &mut Cx<'_>) -> Result<()> {
    let is_home = undo::take_home(record, cx);
    let progress = match is_home {
        Ok(true) => Progress::Done,
        Ok(false) | Err(_) => Progress::Planned,
    };
    set_progress(record, &progress);
    cx.owner.inside.index = 0;
    record.owner.inside.index = 0;
    if !is_home? {
        fail!(
            TryAgain,
            "{} is neither in its pod nor on the host: another namespace has it",
            cx.owner.device.id
        );
    }
    Ok(())
}

fn set_progress(record: &mut Record, progress: &Progress) {
    for step in &mut record.steps {
        step.progress = progress.clone();
    }
}

/// Gives the netdev on the host what it had before ADD: name, MTU, MAC, altnames, settings. A
/// driver makes a netdev with its defaults.
fn restore_netdev(record: &Record, cx: &mut Cx<'_>) -> Result<Link> {
    if let Some(netdev) = record.find::<Netdev>() {
        let restored = netdev.undo(cx);
        restored.unwrap_or_else(|error| log::warn!("{error:#}"));
    }
    cx.await_home()?;
    netdev_on_host(cx)
}

fn netdev_on_host(cx: &Cx<'_>) -> Result<Link> {
    let Some(link) = cx.at_home() else {
        fail!(
            TryAgain,
            "{} has no netdev on the host: its driver has not made it anew yet",
            cx.owner.device.id
        );
    };
    Ok(link)
}

/// Fails if the address of a lease of rail-ipam is not this attachment's any more. With the lock of
/// the table: an ADD that found the device on the host may be about to write another lease.
fn refuse_unless_leased(record: &Record, node: &Node) -> Result<()> {
    if !record.is_by_rail_ipam() {
        return Ok(());
    }
    let owner = &record.owner;
    let _lock = assign::hold(node)?;
    let leases = table::held_by(node, &owner.network, &owner.attachment())?;
    for net in record.addresses() {
        if !leases.iter().any(|lease| lease.address == net.addr()) {
            fail!(
                TryAgain,
                "{} is not leased to it any more, by `railctl release`, or because /run/rail-cni was emptied or another \
                 pod has the address: restart the pod",
                net.addr()
            );
        }
    }
    Ok(())
}

/// The device, whose netdev is `link` on the host.
fn find_device(link: &Link, cx: &mut Cx<'_>) -> Result<Device> {
    let by_name = Selector {
        device: Some(link.name.clone()),
        ..Selector::default()
    };
    let found = device::find(&by_name, cx.node, &mut cx.host)?;
    let pci_id = &cx.owner.device.pci_id;
    found
        .filter(|device| device.original.pci_id == *pci_id)
        .with_context(|| format!("{} is not that of {}", link.name, cx.owner.device.id))
}

/// Takes over what a driver numbers anew: the index of the netdev, those of the RDMA devices, and a
/// MAC that no network sets.
fn renew_numbers(record: &mut Record, link: &Link, conf: &NetConf, cx: &mut Cx<'_>) -> Result<()> {
    if let Some(original) = &mut cx.owner.device.link {
        original.index = link.index;
    }
    if conf.mac.is_none() {
        cx.owner.inside.mac.clone_from(&link.mac);
    }
    // A driver makes the RDMA device soon after the netdev. What a first try did not see, a later
    // one does not wait for.
    let reattached = record.reattached.as_ref();
    let is_first = reattached.is_none_or(|reattached| reattached.why_not.is_none());
    let patience = if is_first {
        RDMA_PATIENCE
    } else {
        Duration::ZERO
    };
    match record.find_mut::<Rdma>() {
        Some(rdma) => rdma.renew(conf, patience, cx),
        None => Ok(()),
    }
}

/// The answer of ADD's IPAM plugin, as far as the steps need it again.
fn leased(record: &Record) -> AddResult {
    let mut gateways: Vec<IpAddr> = Vec::new();
    if let Some(rail) = record.find::<Rail>() {
        gateways.extend(rail.next_hops());
    }
    if let Some(asked) = record.find::<Gateways>() {
        gateways.extend(&asked.gateways);
    }
    let mut leased = AddResult::default();
    for net in record.addresses() {
        let is_of_family = |gateway: &&IpAddr| gateway.is_ipv4() == net.addr().is_ipv4();
        leased.ips.push(Ip {
            address: *net,
            gateway: gateways.iter().find(is_of_family).copied(),
            interface: None,
        });
    }
    leased
}

/// Plans and makes all steps. The lease is looked at again once nobody else can get it: when the
/// device is in the pod, and, for leases without a device, when the address is.
fn make(
    journal: &mut Journal<'_>,
    subject: &Subject<'_>,
    leased: &AddResult,
    cx: &mut Cx<'_>,
) -> Result<()> {
    set_progress(&mut journal.record, &Progress::Planned);
    let before = journal.record.reattached.clone().unwrap_or_default();
    journal.record.reattached = Some(before.clone());
    journal.write(cx)?;
    let planned = journal.record.clone();
    let node = cx.node;
    let mut made = journal.make(subject, leased, cx, |step: &Entry| {
        if step.is::<Move>() || step.is::<Rail>() {
            return refuse_unless_leased(&planned, node);
        }
        Ok(())
    });
    if made.is_ok() {
        let reattached = journal.record.reattached.insert(before);
        reattached.times = reattached.times.saturating_add(1);
        reattached.last = files::now();
        reattached.why_not = None;
        made = journal.write(cx);
    }
    if made.is_err() {
        bring_home(&mut journal.record, cx).unwrap_or_else(|error| log::error!("{error:#}"));
        journal.record.owner = cx.owner.clone();
    }
    made
}
