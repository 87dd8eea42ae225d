//! Pending steps: what could not be undone of attachments whose device is on the host again.
//! Examples are the DEL of an IPAM plugin that fails, a file that cannot be removed, a setting that
//! a driver refuses, and a name that another netdev has. The device is free all the same, unless
//! the next tenant would not be apart from the last. Later calls retry, each time after a longer
//! pause; so does `railctl reap`.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::context::Cx;
use super::ipam::PATIENCE;
use super::locate::Place;
use super::locks::AttachmentLock;
use super::owner::{Key, Part};
use super::record::{Entry, Record};
use super::records::{Pending, Records};
use super::steps::Kind as _;
use super::steps::device_info::DeviceInfo;
use super::steps::driver::Driver;
use super::steps::host_addresses::HostAddresses;
use super::steps::lease::IpamLease;
use super::steps::links::Links;
use super::steps::rail::Rail;
use super::steps::rdma::{self, Rdma};
use super::steps::reset::Reset;
use super::steps::vf::Vf;
use super::undo::{self, give_lease_back, log_left};
use crate::device;
use crate::device::stacked;
use crate::node::Node;
use crate::{fail, failure, files};
use rail_netlink::Socket;
use rail_netlink::all_of;
use rail_netlink::link::{self, Link};
use rail_netlink::vf::VfState;

/// Time limit for all pending steps in a call for another attachment.
pub const ASIDE: Duration = Duration::from_secs(2);
/// After so many tries, which take two and a half minutes unless `reap` makes them, an RDMA device
/// that has ended is gone for good.
const TRIES_FOR_RDMA: u32 = 5;
/// Pending records that a call looks at which is about another attachment. Where more are left,
/// each call begins somewhere else.
const LOOKED_AT: usize = 8;

/// Tries everything that is left, and writes down what remains. The caller holds the attachment's
/// lock.
pub fn retry(
    pending: &mut Pending,
    records: &Records,
    node: &Node,
    patience: Duration,
) -> Result<()> {
    let device = if pending.record.is_left_of_device() {
        retry_device(pending, records, node, patience)
    } else {
        Ok(())
    };
    // This attachment was added anew: an undo by its key, or by its rules, would hit its
    // present state.
    let key = pending.record.owner.key();
    if records.on_file(&key)?.is_some() {
        return device;
    }
    all_of([
        device,
        retry_others(pending, records, node),
        give_lease_back(pending, node, patience, records),
    ])
}

/// Tries what is left of the rail in the pod, which goes with the pod at the latest, and the
/// device-info file.
fn retry_others(pending: &mut Pending, records: &Records, node: &Node) -> Result<()> {
    let is_meant = |step: &Entry| step.is::<Rail>() || step.is::<DeviceInfo>();
    if !pending.record.left().any(is_meant) {
        return Ok(());
    }
    let record = &mut pending.record;
    let mut cx = Cx::open(&record.owner, record.facts(), node, &records.locks)?;
    for step in record
        .steps
        .iter_mut()
        .filter(|step| step.is_left() && is_meant(step))
    {
        let done = step.change.step().undo(&mut cx);
        step.undone(done);
    }
    log_left(record, is_meant);
    records.note(pending, is_meant)
}

/// Restores the device, which is on the host, or in another pod, whose record then has its former
/// state.
fn retry_device(
    pending: &mut Pending,
    records: &Records,
    node: &Node,
    patience: Duration,
) -> Result<()> {
    let id = pending.record.owner.device.id.clone();
    let Some(mut lock) = records.locks.try_device(&id)? else {
        return Ok(());
    };
    let claims = records.claims_on(&id, &mut lock, None)?;
    if claims.is_empty() {
        return restore_again(pending, Next::StaysFree, patience, records, node);
    }
    // One of the RDMA device alone has not taken over what is left of the netdev.
    let is_taken = pending.record.owner.is_rdma_alone()
        || claims.iter().any(|claim| !claim.owner.is_rdma_alone());
    let rdma = pending
        .record
        .leaves::<Rdma>()
        .then(|| rdma_beside(&claims, pending, records, node));
    for step in pending
        .record
        .steps
        .iter_mut()
        .filter(|step| step.is_left_of_device())
    {
        match &rdma {
            Some(done) if step.is::<Rdma>() => {
                step.undone(done.as_ref().copied().map_err(|error| anyhow!("{error:#}")))
            }
            _ if is_taken => step.undone(Ok(())),
            _ => (),
        }
    }
    records.note(pending, Entry::is_of_device)
}

/// Takes RDMA devices back that their pod still has, while another pod has the netdev.
fn rdma_beside(claims: &[Record], pending: &Pending, records: &Records, node: &Node) -> Result<()> {
    let record = &pending.record;
    let Some(step) = record.find::<Rdma>() else {
        return Ok(());
    };
    // It may be in the same namespace; a rebuilt record does not say. The kernel makes an IPoIB
    // netdev anew where its RDMA device goes.
    let may_lose = |claim: &Record| {
        let is_infiniband = claim
            .owner
            .device
            .link
            .as_ref()
            .is_some_and(Link::is_infiniband);
        !claim.facts().rdma.is_empty() || claim.owner.rebuilt || is_infiniband
    };
    let waits_for = |claim: &Record, what: &str| {
        let holder = claim.owner.describe();
        failure!(
            TryAgain,
            "its RDMA device can only be restored after {holder}, which has {what}"
        )
    };
    if let Some(claim) = claims.iter().find(|claim| may_lose(claim)) {
        return Err(waits_for(claim, "it"));
    }
    let mut cx = Cx::open(&record.owner, record.facts(), node, &records.locks)?;
    rdma::take_back(&step.moving, &mut cx)?;
    step.wait_for(&cx)?;
    // A pod that has the netdev without the RDMA device has not taken over what that was.
    claims
        .first()
        .map_or(Ok(()), |claim| Err(waits_for(claim, "the netdev")))
}

/// The device's fate after its pending steps were tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// An ADD takes it, or refuses it for what the host has on it.
    HasIt,
    /// It stays on the host.
    StaysFree,
}

/// Restores what is left of a device that is free; nothing as long as it is in use.
fn restore_again(
    pending: &mut Pending,
    next: Next,
    patience: Duration,
    records: &Records,
    node: &Node,
) -> Result<()> {
    let owner = pending.record.owner.clone();
    if !owner.is_of_this_boot()? {
        for step in pending
            .record
            .steps
            .iter_mut()
            .filter(|step| step.is_left_of_device())
        {
            step.undone(Ok(()));
        }
        return records.note(pending, Entry::is_of_device);
    }
    let mut cx = Cx::open(&owner, pending.record.facts(), node, &records.locks)?;
    cx.await_home()?;
    // A driver is not bound again beside another pod's call: it may take long, and the host may use
    // the netdev.
    if patience < PATIENCE && next == Next::StaysFree && may_bind(&pending.record, &cx) {
        return Ok(());
    }
    // It is not on the host: nothing is tried.
    if cx.place == Place::Missing {
        return Ok(());
    }
    let may_begin = save_addresses_before_rename(&mut pending.record, &mut cx)
        .and_then(|()| refuse_used(&pending.record, next, &mut cx));
    match may_begin {
        Ok(()) => {
            undo::on_host(&mut pending.record, &mut cx);
            give_up_ended_rdma(&mut pending.record, &cx)?;
        }
        Err(error) => undo::postpone(&mut pending.record, &error),
    }
    log_left(&pending.record, Entry::is_of_device);
    records.note(pending, Entry::is_of_device)
}

/// RDMA devices that ended in their pod, with their driver's RDMA module, say, are gone for good
/// after some tries.
fn give_up_ended_rdma(record: &mut Record, cx: &Cx<'_>) -> Result<()> {
    let is_tried = |step: &&mut Entry| {
        step.is::<Rdma>() && step.is_left() && step.failed().tries >= TRIES_FOR_RDMA
    };
    for step in record.steps.iter_mut().filter(is_tried) {
        if rdma::have_ended(cx.function.as_ref())? {
            log::warn!("{}: it has ended", step.failed().why);
            step.undone(Ok(()));
        }
    }
    Ok(())
}

/// Whether the driver may have to be bound again: around a reset, for a GUID, or because it was
/// not.
fn may_bind(record: &Record, cx: &Cx<'_>) -> bool {
    let Some(Driver(bound)) = record.find::<Driver>() else {
        return false;
    };
    let is_not_bound = matches!(cx.place, Place::Unbound | Place::UserSpace);
    (bound.again && record.leaves::<Reset>())
        || (!bound.guids.is_empty() && record.leaves::<Vf>())
        || (is_not_bound && record.leaves::<Driver>())
}

/// A device whose addresses the host has again, under another name, gets its name as soon as that
/// is free. For that it goes down: what the host has on it by now is restored afterwards.
fn save_addresses_before_rename(record: &mut Record, cx: &mut Cx<'_>) -> Result<()> {
    let is_restored = !record.leaves::<HostAddresses>();
    let (Some(link), Some(original)) = (cx.at_home(), record.owner.device.link.clone()) else {
        return Ok(());
    };
    if record.find::<HostAddresses>().is_none() || !is_restored || link.name == original.name {
        return Ok(());
    }
    if link::by_any_name(&mut cx.host, &original.name)?.is_some() {
        return Ok(());
    }
    // Addresses that cannot be put back are refused below.
    let Ok(now) = HostAddresses::take(&link.name, &link, &mut cx.host) else {
        return Ok(());
    };
    for step in &mut record.steps {
        if let Some(addresses) = HostAddresses::of_mut(&mut step.change) {
            *addresses = now.clone();
            step.undone(Err(anyhow!("they go while the device gets its name")));
        }
    }
    Ok(())
}

/// Fails if the host or another CNI plugin uses the device by now, which was free: to restore it
/// takes it down.
fn refuse_used(record: &Record, next: Next, cx: &mut Cx<'_>) -> Result<()> {
    let (Some(link), Some(original)) = (cx.at_home(), &record.owner.device.link) else {
        return Ok(());
    };
    let what = &link.name;
    device::allowed::refuse_parts(what, &link, cx.node, &mut cx.host)?;
    // The addresses of the host are what is left.
    if record.leaves::<HostAddresses>() {
        return Ok(());
    }
    device::allowed::refuse_addresses(what, &link, &mut cx.host)?;
    // Until the pod's use has ended, this may be the pod's.
    if record.leaves::<Links>() {
        return Ok(());
    }
    stacked::refuse(what, &link, &mut cx.host)?;
    if link.up && !original.up && next == Next::StaysFree {
        fail!(
            TryAgain,
            "{what} was down, and is up: if nothing needs that, `ip link set {what} down`"
        );
    }
    Ok(())
}

/// Tries once more what is left of the device `id`, which no attachment claims; the caller holds
/// its lock. For an ADD of the RDMA device alone (`part`), another plugin has the netdev, and what
/// is left of that stays so. Returns and fails as [`left_on`] does.
pub fn settle(
    records: &Records,
    id: &str,
    part: Part,
    next: &VfState,
    node: &Node,
) -> Result<Option<Record>> {
    for mut pending in records.pending_of(id)? {
        if is_for(part, &pending) && pending.record.is_left_of_device() {
            restore_again(&mut pending, Next::HasIt, PATIENCE, records, node)?;
        }
    }
    left_on(records, id, part, next, node)
}

/// The earliest attachment with steps still to be undone on the device: its record has the original
/// state. The next attachment inherits that state, and calls [`inherited`] once it is on record.
/// Fails if a remaining step keeps tenants apart and the network (`next`) does not set it itself.
/// The caller holds the lock of the device.
pub fn left_on(
    records: &Records,
    id: &str,
    part: Part,
    next: &VfState,
    node: &Node,
) -> Result<Option<Record>> {
    let mut earliest: Option<Record> = None;
    for pending in records.pending_of(id)? {
        if !is_for(part, &pending) || !pending.record.is_left_of_device() {
            continue;
        }
        let record = pending.record;
        refuse_unless_apart(&record, next, node, &mut Socket::open()?)?;
        let is_earlier = match &earliest {
            Some(other) => record.owner.since < other.owner.since,
            None => true,
        };
        if is_earlier {
            earliest = Some(record);
        }
    }
    Ok(earliest)
}

/// Is it for an ADD of this part of the device to take over?
fn is_for(part: Part, pending: &Pending) -> bool {
    part == Part::Whole || pending.record.owner.part == part
}

/// Fails if something is left of the device that keeps tenants apart.
pub fn refuse_unless_apart(
    record: &Record,
    next: &VfState,
    node: &Node,
    host: &mut Socket,
) -> Result<()> {
    for step in record.steps.iter().filter(|step| step.is_left_of_device()) {
        if let Some(what) = step.change.step().isolation_left(next, node, host) {
            let (id, holder, why) = (
                &record.owner.device.id,
                record.owner.describe(),
                step.failed().why,
            );
            fail!(
                TryAgain,
                "{id} is still as {holder} left it, and no other pod gets it: {what}: {why}"
            );
        }
    }
    Ok(())
}

/// Notes that the original state of the device `id` is in a new record now.
pub fn inherited(records: &Records, id: &str, part: Part) -> Result<()> {
    for mut pending in records
        .pending_of(id)?
        .into_iter()
        .filter(|pending| is_for(part, pending))
    {
        for step in pending
            .record
            .steps
            .iter_mut()
            .filter(|step| step.is_left_of_device())
        {
            let is_away = match Rdma::of(&step.change) {
                Some(rdma) => rdma.is_away()?,
                None => false,
            };
            if !is_away {
                step.undone(Ok(()));
            }
        }
        records.note(&mut pending, |step| step.is_of_device() && !step.is_left())?;
    }
    Ok(())
}

/// Tries what is due, in a call that is about another attachment: never for long.
pub fn retry_due(records: &Records, node: &Node) -> Result<()> {
    let mut all = records.pending_at(files::some_of(records.pending_names()?, LOOKED_AT))?;
    all.retain(|pending| pending.record.is_due());
    retry_aside(all, records, node, |key, _| {
        records.locks.try_attachment(key)
    })
    .map(drop)
}

/// Tries what is left of an earlier attachment of the same key; the caller holds its lock. DEL does
/// so when it is called again, and ADD because its IPAM would take the new attachment for the old
/// one.
pub fn retry_own(records: &Records, node: &Node, key: &Key, patience: Duration) -> Result<()> {
    let mut done = Vec::new();
    for pending in records
        .pending_by(key)?
        .into_iter()
        .filter(|pending| pending.record.owner.key() == *key)
    {
        // An ADD may undo what is of the device while the first one's IPAM is at work.
        if let Some(mut pending) = records.pending_now(&pending) {
            done.push(retry(&mut pending, records, node, patience));
        }
    }
    all_of(done)
}

/// Tries to free the addresses of earlier pods, after the IPAM plugin's ADD found none, and waits
/// for a DEL that is about to free one: its device was free before its address. `before` are the
/// names of what was pending before that ADD. Returns whether one may have been freed.
pub fn free_addresses(
    before: &[String],
    records: &Records,
    node: &Node,
    ipam: &str,
    but: &Key,
) -> Result<bool> {
    let lock = |key: &Key, patience| records.locks.attachment_within(key, patience);
    let freed = retry_aside(with_addresses(records, ipam, but)?, records, node, lock)?;
    // Listed last: another call may have freed one since the records were read.
    let now = records.pending_names()?;
    let has_one_ended = before.iter().any(|name| !now.contains(name));
    Ok(has_one_ended || freed > 0)
}

/// The pending records of other attachments than `but` that may have an address of the IPAM plugin
/// `ipam`.
fn with_addresses(records: &Records, ipam: &str, but: &Key) -> Result<Vec<Pending>> {
    let mut all = records.pending()?;
    all.retain(|Pending { record, .. }| {
        let lease = record.find::<IpamLease>();
        let is_of_ipam = lease.is_some_and(|lease| lease.r#type == ipam);
        record.owner.key() != *but && is_of_ipam && record.leaves::<IpamLease>()
    });
    Ok(all)
}

/// Tries what other attachments left, as far as `lock` gives their locks: an ADD or DEL of them may
/// be at work. Returns of how many nothing is left.
fn retry_aside(
    all: Vec<Pending>,
    records: &Records,
    node: &Node,
    lock: impl Fn(&Key, Duration) -> Result<Option<AttachmentLock>>,
) -> Result<usize> {
    let (start, mut ended, mut errors) = (Instant::now(), 0, Vec::new());
    let left = || {
        ASIDE
            .checked_sub(start.elapsed())
            .filter(|left| !left.is_zero())
    };
    for pending in all {
        let Some(patience) = left() else { break };
        let Some(_lock) = lock(&pending.record.owner.key(), patience)? else {
            continue;
        };
        let Some(mut pending) = records.pending_now(&pending) else {
            ended += 1;
            continue;
        };
        let Some(patience) = left() else { break };
        // A record that cannot be written does not stop the others.
        errors.push(retry(&mut pending, records, node, patience));
        ended += usize::from(!pending.record.is_left());
    }
    all_of(errors).map(|()| ended)
}

/// Whether RDMA devices of earlier pods are back on the host: restores those, as the next pod is to
/// have them. Where RDMA is required: fails while a pod still has them.
pub fn settle_rdma(
    is_required: bool,
    device: &device::Device,
    records: &Records,
    node: &Node,
) -> Result<()> {
    for pending in records.pending_of(&device.original.id)? {
        let record = &pending.record;
        let Some(step) = record.find::<Rdma>().filter(|_| record.leaves::<Rdma>()) else {
            continue;
        };
        if !record.owner.is_of_this_boot()? {
            continue;
        }
        let cx = Cx::open(&record.owner, record.facts(), node, &records.locks)?;
        step.restore(&cx)
            .unwrap_or_else(|error| log::warn!("{error:#}"));
        if is_required && device.rdma_devices()?.is_empty() {
            fail!(
                TryAgain,
                "rdma: required, and the RDMA device of {} is still in {}: run `railctl reap`, or end that pod",
                device.describe(),
                record.owner.describe()
            );
        }
    }
    Ok(())
}
