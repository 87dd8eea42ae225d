//! A rail comes back. A driver that started anew made its device on the host, under a pod that
//! lives: the attachment is lost. What ADD made is on record, and is made again, without the
//! runtime, without the IPAM plugin, and with the same address.
//!
//! 1. Lock attachment and device, unless a call is at work on them.
//! 2. Undo what is left in the pod, and plan every step again. From then on the attachment counts
//!    as lost until all steps are made, also for calls after a kill.
//! 3. Compare the device with node, policy and network, as ADD does; the address must still be
//!    leased.
//! 4. Make the steps. After an error the device goes to the host again.

use anyhow::{Context as _, Result};
use ipnet::IpNet;

use super::attaching::{Journal, OtherRecords, Subject};
use super::context::Cx;
use super::owner::Key;
use super::record::{Progress, Record};
use super::records::Records;
use super::state::{self, State};
use super::steps::gateway::Gateways;
use super::steps::moved::Move;
use super::steps::rail::{self, Rail};
use super::steps::rdma::Rdma;
use super::undo;
use crate::cni::{AddResult, Args, Ip, Network, Strictness};
use crate::device::{self, Device};
use crate::ipam::table;
use crate::netconf::{self, NetConf, Probe, Selector};
use crate::node::Node;
use crate::{fail, failure, files, watchdog};
use rail_netlink::Socket;
use rail_netlink::link::Link;

/// The outcome of a try to attach a lost device again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The pod has its rail again.
    Reattached,
    /// The pod has its rail, or is gone; or the device is not on the host.
    NotLost,
    /// A call is at work on the attachment or on its device.
    Busy,
}

/// Attaches a lost device to its pod again. An error says why it stays lost, and is on record.
pub fn reattach(records: &Records, key: &Key, node: &Node) -> Result<Outcome> {
    let Some(_lock) = records.locks.try_attachment(key)? else {
        return Ok(Outcome::Busy);
    };
    let Some(record) = records.on_file(key)? else {
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
    match attach_again(&mut journal, node) {
        Ok(()) => Ok(Outcome::Reattached),
        Err(error) => {
            note_failure(&mut journal, &error);
            Err(error)
        }
    }
}

/// Writes the reason to the record, unless it is there already.
fn note_failure(journal: &mut Journal<'_>, error: &anyhow::Error) {
    let why_not = Some(format!("{error:#}"));
    let reattached = journal.record.reattached.get_or_insert_default();
    if reattached.why_not == why_not {
        return;
    }
    reattached.why_not = why_not;
    let written = journal.records.write(&journal.record, &mut journal.lock);
    written.unwrap_or_else(|error| log::warn!("{error:#}"));
}

/// Attaches the device of a lost attachment, which is locked.
fn attach_again(journal: &mut Journal<'_>, node: &Node) -> Result<()> {
    refuse_impossible(journal)?;
    let network = network_of(&journal.record)?;
    let owner = &journal.record.owner;
    let mut conf = NetConf::parse(&network, &owner.attachment(), node)?;
    // A network without a rail has that of its device.
    conf.rail = owner.rail;
    // A running pod is better off with a rail that does not answer yet than without.
    conf.probe = conf.probe.map(only_warn);
    conf.gid = conf.gid.map(only_warn);

    let locks = &journal.records.locks;
    let mut cx = Cx::open(owner, journal.record.facts(), node, locks)?;
    plan_again(journal, &mut cx)?;
    let link = cx.link_on_host()?;
    let ifname = cx.owner.ifname.clone();
    rail::refuse_name_in_use(&mut cx.pod()?.socket, &ifname)?;
    refuse_unless_leased(&journal.record, node)?;
    let device = find_device(&link, &mut cx)?;
    device::allowed::check(&device, &conf, node, &network.name, &mut cx.host)?;
    renew_numbers(journal, &link, &conf, &mut cx)?;

    let leased = leased(&journal.record);
    let others = OtherRecords::new(
        journal.records,
        journal.records.list()?,
        &cx.owner.container_id,
    );
    let subject = Subject {
        network: &network,
        conf,
        ipam_config: Vec::new(),
        device,
        previous: None,
        others,
    };
    let made = make(journal, &subject, &leased, &mut cx);
    if made.is_err() {
        plan_again(journal, &mut cx).unwrap_or_else(|error| log::error!("{error:#}"));
    }
    made
}

/// Refuses an InfiniBand device, and one that another attachment claims.
fn refuse_impossible(journal: &mut Journal<'_>) -> Result<()> {
    let Journal {
        records,
        record,
        lock,
    } = journal;
    let id = &record.owner.device.id;
    let link = record.owner.device.link.as_ref();
    if link.is_some_and(Link::is_infiniband) {
        fail!(
            UnsupportedField,
            "{id} is an InfiniBand device, which only a new pod gets: restart the pod"
        );
    }
    if let Some(other) = records
        .claims_on(id, lock, Some(&record.owner.key()))?
        .first()
    {
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

/// Undoes what is in the pod, so that the device is on the host, and plans all steps again.
fn plan_again(journal: &mut Journal<'_>, cx: &mut Cx<'_>) -> Result<()> {
    let taken = undo::take_home(&mut journal.record, cx);
    for step in &mut journal.record.steps {
        step.progress = Progress::Planned;
    }
    journal.record.reattached.get_or_insert_default();
    cx.owner.inside.index = 0;
    journal.write(cx)?;
    let is_home = taken?;
    let id = &cx.owner.device.id;
    is_home.then_some(()).ok_or_else(|| {
        failure!(
            TryAgain,
            "{id} is neither in its pod nor on the host: another namespace has it"
        )
    })
}

/// Fails if the address of a lease of rail-ipam is not this attachment's any more.
fn refuse_unless_leased(record: &Record, node: &Node) -> Result<()> {
    if !record.is_by_rail_ipam() {
        return Ok(());
    }
    let owner = &record.owner;
    let leases = table::held_by(node, &owner.network, &owner.attachment())?;
    for net in addresses(record) {
        if !leases.iter().any(|lease| lease.address == net.addr()) {
            fail!(
                TryAgain,
                "the lease of {} is gone (`railctl release`, or another pod has the address): restart the pod",
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

/// Takes over what a driver numbers anew: the index of the netdev, those of the RDMA devices, and
/// a MAC that no network sets.
fn renew_numbers(
    journal: &mut Journal<'_>,
    link: &Link,
    conf: &NetConf,
    cx: &mut Cx<'_>,
) -> Result<()> {
    if let Some(original) = &mut cx.owner.device.link {
        original.index = link.index;
    }
    if conf.mac.is_none() {
        cx.owner.inside.mac.clone_from(&link.mac);
    }
    if let Some(rdma) = journal.record.find_mut::<Rdma>() {
        rdma.renew(conf, cx)?;
    }
    journal.write(cx)
}

/// The answer of ADD's IPAM plugin, as far as the steps need it again.
fn leased(record: &Record) -> AddResult {
    let mut gateways: Vec<_> = record
        .find::<Rail>()
        .map(|rail| rail.next_hops().collect())
        .unwrap_or_default();
    if let Some(asked) = record.find::<Gateways>() {
        gateways.extend(&asked.gateways);
    }
    let mut leased = AddResult::default();
    for net in addresses(record) {
        let is_of_family = |gateway: &&std::net::IpAddr| gateway.is_ipv4() == net.addr().is_ipv4();
        leased.ips.push(Ip {
            address: *net,
            gateway: gateways.iter().find(is_of_family).copied(),
            interface: None,
        });
    }
    leased
}

fn addresses(record: &Record) -> &[IpNet] {
    record.find::<Rail>().map_or(&[], |rail| &rail.addresses)
}

/// Makes all steps. Once the device is in the pod, nobody else gets its address; so the lease is
/// looked at again then, before the address is set.
fn make(
    journal: &mut Journal<'_>,
    subject: &Subject<'_>,
    leased: &AddResult,
    cx: &mut Cx<'_>,
) -> Result<()> {
    let node = cx.node;
    let before = journal.record.clone();
    let reattached = journal.record.reattached.get_or_insert_default();
    reattached.times = reattached.times.saturating_add(1);
    reattached.last = files::now();
    reattached.why_not = None;
    let made = journal.make(subject, leased, cx, |step| {
        if step.is::<Move>() {
            return refuse_unless_leased(&before, node);
        }
        Ok(())
    });
    if made.is_err() {
        journal.record.reattached = before.reattached;
    }
    made
}
