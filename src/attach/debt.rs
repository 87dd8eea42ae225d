//! Debts: what could not be undone of attachments whose device is on the host again. Examples are the DEL of an IPAM
//! plugin that fails, a file that cannot be removed, a setting that a driver refuses, and a name that another netdev
//! has. The device is free all the same. Later calls retry a debt, each time after a longer pause; so does
//! `rail-cni reap`.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::host_address::HostAddresses;
use super::record::{AttachmentLock, Debt, DebtFile, DeviceLock, Owed, Record, Records, What};
use super::{device, devinfo, lost, rdma, restore};
use crate::cni::Attachment;
use crate::error::all_of;
use crate::netlink::Socket;
use crate::netlink::link::{self, Link};
use crate::node::Node;
use crate::{fail, failure, files};

/// How long an IPAM plugin may take when the call is about its own attachment.
pub const WHOLE: Duration = Duration::from_secs(30);
/// How long all debts together may take in a call that is about another attachment.
pub const ASIDE: Duration = Duration::from_secs(2);
/// The pause before the second try. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// After so many tries, which take two and a half minutes unless `reap` makes them, an RDMA device that has ended is gone
/// for good.
const TRIES_FOR_RDMA: u32 = 5;
/// Debts above this number are dropped, the oldest first: a plugin that is gone for good owes for every pod.
const MOST: usize = 1000;
/// The bytes of network configurations that all debts together may keep.
const MOST_BYTES: usize = 4 << 20;

impl Record {
    /// What is still to be done. For a record that no call has tried since its device came home, that is everything
    /// that may be owed.
    pub fn owed(&self) -> Vec<Owed> {
        if let Some(debt) = &self.debt {
            return debt.owed.clone();
        }
        let all = [
            (What::Ipam, self.ipam.is_some()),
            (What::DeviceInfo, self.device_info.is_some()),
            (What::Rules, !self.applied.rules.is_empty()),
            (What::Rdma, !self.rdma.is_empty()),
            (What::Idle, self.device.link.is_some()),
            (What::Reset, self.reset),
            (What::Vf, self.vf.is_some() || self.bind.is_some()),
            (What::Device, true),
            (What::HostAddresses, self.host.is_some()),
        ];
        let why = || "the call that worked on it ended early".to_owned();
        let may_be = all.into_iter().filter(|(_, may_be)| *may_be);
        may_be.map(|(what, _)| Owed { what, why: why() }).collect()
    }

    /// Is it owed, or may it be?
    pub fn owes(&self, what: What) -> bool {
        self.owed().iter().any(|owed| owed.what == what)
    }

    /// Was it tried in vain? If not, the next DEL or GC does it, and no operator needs to.
    pub fn is_owed_in_vain(&self) -> bool {
        self.owes_device() || self.debt.as_ref().is_some_and(|debt| debt.tries > 0)
    }

    /// Is something of the device itself owed?
    pub fn owes_device(&self) -> bool {
        self.owed().iter().any(|owed| owed.what.is_of_device())
    }
}

/// Tries everything that is owed, and writes down what is left. The caller holds the attachment's lock.
pub fn pay(debt: &mut DebtFile, records: &Records, node: &Node, patience: Duration) -> Result<()> {
    pay_these(debt, debt.record.owed(), records, node, patience)
}

/// The first try, right after the device came to the host with these faults: the device is not tried again.
pub fn pay_first(debt: &mut DebtFile, faults: Vec<Owed>, records: &Records) -> Result<()> {
    let mut owed: Vec<_> = debt.record.owed();
    owed.retain(|owed| matches!(owed.what, What::Ipam | What::DeviceInfo));
    let mut left = Vec::new();
    for one in owed {
        left.extend(pay_one(&debt.record, one, WHOLE));
    }
    left.splice(0..0, faults);
    file(debt, left, records)
}

/// The same for a device that has not come to the host: there is no debt, because its record stays.
pub fn pay_without_device(record: &Record) -> Result<()> {
    let info = record.device_info.is_some().then_some(What::DeviceInfo);
    let left = [Some(What::Ipam), info]
        .into_iter()
        .flatten()
        .filter_map(|what| pay_one(record, Owed { what, why: String::new() }, WHOLE));
    all_of(left.map(|owed| Err(failure!(Internal, "{}: {}", owed.what.as_str(), owed.why))))
}

/// Writes a debt that is not tried now, because the next pod is waiting: only its device-info file is removed.
pub fn note(mut debt: DebtFile, faults: Vec<Owed>, records: &Records) -> Result<()> {
    let mut left = faults;
    for owed in debt.record.owed() {
        match owed.what {
            What::Ipam => {
                let why = "not tried yet: the next pod's ADD did not wait for it".to_owned();
                left.push(Owed { why, ..owed });
            }
            What::DeviceInfo => left.extend(pay_one(&debt.record, owed, WHOLE)),
            _ => (),
        }
    }
    let since = files::now();
    records.change(&mut debt, |record| record.debt = Some(Debt { owed: left, since, ..Debt::default() }))
}

/// The state of a device whose last attachments may owe something of it.
#[derive(Debug)]
pub enum Found {
    /// Nothing was owed.
    Untouched,
    /// It is as it was before them: what was owed is done.
    Restored,
    /// It could not be restored. The record of the earliest of them has the original state: whoever takes the device
    /// takes that over, and says so with [`taken_over`] once it is on record.
    Stale(Box<Record>),
}

/// Whose debts of a device an ADD takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heir {
    /// The ADD takes the whole device, and all that is owed of it.
    OfDevice,
    /// Another plugin has the netdev. What is owed of that stays owed, until the netdev is back.
    OfRdma,
}

impl Heir {
    fn is_of(self, record: &Record) -> bool {
        self == Heir::OfDevice || record.is_chained()
    }
}

/// Tries once more what is owed of the device `id`, which no attachment claims. The caller holds its lock.
pub fn take_over(records: &Records, id: &str, heir: Heir, node: &Node, host: &mut Socket) -> Result<Found> {
    let mut found = Found::Untouched;
    let is_ours = |debt: &DebtFile| debt.record.owes_device() && heir.is_of(&debt.record);
    for mut debt in records.debts_of(id)?.into_iter().filter(is_ours) {
        let mut left = restore_again(&mut debt, Next::HasIt, records, node, host);
        let is_left = left.iter().any(|owed| owed.what.is_of_device());
        let of_device = left.clone();
        records.change(&mut debt, |record| {
            left.extend(record.owed().into_iter().filter(|owed| !owed.what.is_of_device()));
            record.debt.get_or_insert_default().owed = left;
        })?;
        // Its DEL may have filed it as paid meanwhile.
        if debt.is_paid() {
            debt.record.debt = Some(Debt { owed: of_device, ..Debt::default() });
        }
        // The oldest has the original state.
        found = match found {
            Found::Stale(older) if older.since <= debt.record.since => Found::Stale(older),
            _ if is_left => Found::Stale(Box::new(debt.record)),
            _ => Found::Restored,
        };
    }
    Ok(found)
}

/// What becomes of the device after its debt was tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// An ADD takes it, or refuses it for what the host has on it.
    HasIt,
    /// It stays on the host.
    StaysFree,
}

/// Restores what is owed of a device that is free, and returns what is left of that: everything, as long as somebody
/// uses the device.
fn restore_again(
    debt: &mut DebtFile,
    next: Next,
    records: &Records,
    node: &Node,
    host: &mut Socket,
) -> Vec<Owed> {
    let may_begin =
        keep_addresses(debt, records, node, host).and_then(|()| refuse_used(&debt.record, next, node, host));
    let record = &debt.record;
    if let Err(error) = may_begin {
        return restore::waiting(record, &error);
    }
    match restore::on_host(record, records, node, host) {
        Ok(Some(left)) => left,
        // It is not on the host: nothing was tried.
        Ok(None) => record.owed().into_iter().filter(|owed| owed.what.is_of_device()).collect(),
        // How far it came is not known.
        Err(error) => restore::all_of_device(record, &format!("{error:#}")),
    }
}

/// A device whose addresses the host has again, under another name, gets its name as soon as that is free. For that it goes
/// down: what the host has on it by now is owed from here on.
fn keep_addresses(debt: &mut DebtFile, records: &Records, node: &Node, host: &mut Socket) -> Result<()> {
    let record = &debt.record;
    let Some(original) = record.device.link.as_ref().filter(|_| record.host.is_some()) else { return Ok(()) };
    if record.owes(What::HostAddresses) || record.boot_id != files::boot_id()? {
        return Ok(());
    }
    let Some(link) = restore::find_on_host(record, node, host)? else { return Ok(()) };
    if link.name == original.name || link::by_any_name(host, &original.name)?.is_some() {
        return Ok(());
    }
    // What cannot be put back is refused below.
    let Ok(now) = HostAddresses::take(&link.name, &link, host) else { return Ok(()) };
    let why = "they go while the device gets its name".to_owned();
    records.change(debt, |record| {
        record.host = Some(now);
        let owed = &mut record.debt.get_or_insert_default().owed;
        owed.push(Owed { what: What::HostAddresses, why });
    })
}

/// Fails if the host or another CNI plugin uses the device by now, which was free: to restore it takes it down.
fn refuse_used(record: &Record, next: Next, node: &Node, host: &mut Socket) -> Result<()> {
    // After a reboot nothing is owed.
    if record.boot_id != files::boot_id()? {
        return Ok(());
    }
    let Some(original) = &record.device.link else { return Ok(()) };
    let Some(link) = restore::find_on_host(record, node, host)? else { return Ok(()) };
    let what = &link.name;
    device::refuse_parts(what, &link, node, host)?;
    // The addresses of the host are what is owed.
    if record.owes(What::HostAddresses) {
        return Ok(());
    }
    device::refuse_addresses(what, &link, host)?;
    // Until the pod's use has ended, this may be the pod's.
    if record.owes(What::Idle) {
        return Ok(());
    }
    device::refuse_stacked(what, &link)?;
    if link.up && !original.up && next == Next::StaysFree {
        fail!(TryAgain, "{what} was down, and is up: if nothing needs that, `ip link set {what} down`");
    }
    Ok(())
}

/// The earliest attachment that owes something of the device `id`: its record has the original state.
pub fn earliest(records: &Records, id: &str) -> Result<Option<Record>> {
    let boot = files::boot_id()?;
    let debts = records.debts_of(id)?.into_iter().map(|debt| debt.record);
    let owing = debts.filter(|record| record.owes_device() && record.boot_id == boot);
    Ok(owing.min_by(|one, other| one.since.cmp(&other.since)))
}

/// Notes that the original state of the device `id` is in a new record now.
pub fn taken_over(records: &Records, id: &str, heir: Heir) -> Result<()> {
    for mut debt in records.debts_of(id)?.into_iter().filter(|debt| heir.is_of(&debt.record)) {
        if debt.record.debt.is_some() {
            let others = |left: &mut Debt| left.owed.retain(|owed| !owed.what.is_of_device());
            records.change(&mut debt, |record| record.debt.iter_mut().for_each(others))?;
        }
    }
    Ok(())
}

fn pay_these(
    debt: &mut DebtFile,
    owed: Vec<Owed>,
    records: &Records,
    node: &Node,
    patience: Duration,
) -> Result<()> {
    let (of_device, others): (Vec<_>, Vec<_>) = owed.into_iter().partition(|owed| owed.what.is_of_device());
    // A driver is not bound again beside another pod's call: it may take long, and the host may use the netdev.
    let waits = patience < WHOLE && may_bind(&debt.record, &of_device, node)?;
    if waits && others.is_empty() {
        return Ok(());
    }
    let mut left = match (of_device.is_empty(), records.try_lock_device(&debt.record.device.id)?) {
        (true, _) => Vec::new(),
        _ if waits => of_device,
        (false, None) => of_device,
        (false, Some(mut lock)) => pay_device(debt, of_device, &mut lock, records, node)?,
    };
    let has_heir = records.on_file(&debt.record.attachment())?.is_some();
    for one in others {
        // The same attachment was added anew: what is undone by its key, or by its rules, would be what it has now.
        if has_heir && one.what != What::Rdma {
            left.push(one);
            continue;
        }
        left.extend(match one.what {
            What::Rules | What::Rdma => {
                let done = in_pod(&debt.record, one.what, records, node);
                done.err().map(|error| Owed { what: one.what, why: format!("{error:#}") })
            }
            _ => pay_one(&debt.record, one, patience),
        });
    }
    file(debt, left, records)
}

/// Whether the driver may have to be bound again: around a reset, for a GUID, or because it was not.
fn may_bind(record: &Record, owed: &[Owed], node: &Node) -> Result<bool> {
    let is_due = owed.iter().any(|owed| match owed.what {
        What::Reset => record.bind.is_some(),
        What::Vf => record.is_bound_for_guid(),
        _ => false,
    });
    Ok(is_due || (!owed.is_empty() && restore::is_unbound(record, node)?))
}

/// Restores the device, which is on the host, or in another pod: whoever has it now has taken over what it was.
fn pay_device(
    debt: &mut DebtFile,
    owed: Vec<Owed>,
    lock: &mut DeviceLock,
    records: &Records,
    node: &Node,
) -> Result<Vec<Owed>> {
    let record = &debt.record;
    let claims = records.claims_on(&record.device.id, lock, None)?;
    if !claims.is_empty() {
        // One of the RDMA device alone has not taken over what is owed of the netdev.
        let is_taken = record.is_chained() || claims.iter().any(|claim| !claim.is_chained());
        return Ok(if is_taken { Vec::new() } else { owed });
    }
    Ok(restore_again(debt, Next::StaysFree, records, node, &mut Socket::open()?))
}

/// What is left of one thing that is neither of the device nor in the pod.
fn pay_one(record: &Record, owed: Owed, patience: Duration) -> Option<Owed> {
    let done = match owed.what {
        What::Ipam => release(record, patience),
        What::DeviceInfo => record
            .device_info
            .as_deref()
            .map_or(Ok(()), |path| devinfo::remove(path, &record.device, &record.attachment())),
        _ => return Some(owed),
    };
    done.err().map(|error| Owed { what: owed.what, why: format!("{error:#}") })
}

/// Calls DEL of the IPAM that ADD used. One whose ADD answered with an error owes nothing, whatever it answers to DEL:
/// as a rule it cannot read the configuration.
fn release(record: &Record, patience: Duration) -> Result<()> {
    let Some(ipam) = &record.ipam else { return Ok(()) };
    let told = ipam.delegate(record).and_then(|delegate| delegate.within(patience).run("DEL"));
    match told {
        Err(error) if !ipam.may_hold => {
            log::warn!("{error:#}: nothing is owed, because its ADD gave no address");
            Ok(())
        }
        told => told,
    }
}

/// Removes what is left in a pod that lives; at the latest it goes with the pod.
fn in_pod(record: &Record, what: What, records: &Records, node: &Node) -> Result<()> {
    let netns = restore::open_if_same(&record.netns)?;
    if what == What::Rules {
        return netns.map_or(Ok(()), |netns| restore::remove_rules(record, &mut netns.run(Socket::open)?));
    }
    let Some(mut lock) = records.try_lock_device(&record.device.id)? else {
        fail!(TryAgain, "another call has {}", record.device.id);
    };
    let claims = records.claims_on(&record.device.id, &mut lock, None)?;
    let waits_for = |other: &Record, what: &str| {
        let holder = other.holder();
        failure!(TryAgain, "its RDMA device can only be restored after {holder}, which has {what}")
    };
    // It may be in the same namespace; a rebuilt record does not say. The kernel makes an IPoIB netdev anew where its RDMA
    // device goes.
    let may_lose = |claim: &&Record| {
        let is_infiniband = claim.device.link.as_ref().is_some_and(Link::is_infiniband);
        !claim.rdma.is_empty() || lost::is_rebuilt(claim) || is_infiniband
    };
    if let Some(other) = claims.iter().find(may_lose) {
        return Err(waits_for(other, "it"));
    }
    // The devices of a pod that is gone come back by themselves, with what it changed of them.
    let back = netns.map_or(Ok(()), |netns| rdma::take_back(record, &netns));
    let back = back.and_then(|()| rdma::wait_for(record, node)).or_else(|error| {
        let is_tried = record.debt.as_ref().is_some_and(|debt| debt.tries >= TRIES_FOR_RDMA);
        if !is_tried || !rdma::has_ended(record, node)? {
            return Err(error);
        }
        log::warn!("{error:#}: it has ended, and nothing is owed any more");
        Ok(())
    });
    // A pod that has the netdev without the RDMA device has not taken over what that was.
    if let Some(other) = claims.first() {
        return back.and(Err(waits_for(other, "the netdev")));
    }
    all_of([back, rdma::restore(record, node)])
}

fn file(debt: &mut DebtFile, mut left: Vec<Owed>, records: &Records) -> Result<()> {
    for Owed { what, why } in &left {
        log::warn!("still owed by {}: {}: {why}", debt.record.holder(), what.as_str());
    }
    records.change(debt, |record| {
        // The next pod's ADD may have restored the device meanwhile, or taken over what it was. Idle and Reset are tried
        // only where they are owed, and a second time would be done to the next pod's device.
        left.retain(|owed| match owed.what {
            What::Idle | What::Reset => record.owes(owed.what),
            what => !what.is_of_device() || record.owes_device(),
        });
        let Debt { tries, since, .. } = record.debt.take().unwrap_or_default();
        let pause = FIRST_PAUSE.saturating_mul(1 << tries.min(16)).min(LONGEST_PAUSE);
        let next = u64::try_from((files::since_boot() + pause).as_millis()).unwrap_or(u64::MAX);
        let since = if since.is_empty() { files::now() } else { since };
        record.debt = Some(Debt { owed: left, tries: tries.saturating_add(1), next, since });
    })
}

/// Tries the debts that are due, in a call that is about another attachment: never for long.
pub fn pay_due(records: &Records, node: &Node) -> Result<()> {
    let now = files::since_boot().as_millis();
    // A time that no call of this boot wrote is of another one, whose /run was restored.
    let waiting = now + 1..=now + LONGEST_PAUSE.as_millis();
    let is_due = |debt: &DebtFile| {
        debt.record.debt.as_ref().is_none_or(|debt| !waiting.contains(&u128::from(debt.next)))
    };
    let mut debts = records.debts()?;
    drop_oldest(&mut debts, records)?;
    pay_aside(debts.into_iter().filter(is_due), records, node, |attachment, _| records.try_lock(attachment))
        .map(drop)
}

/// Tries what an earlier attachment of the same key owes; the caller holds its lock. DEL does so when it is called
/// again, and ADD because its IPAM would take the new attachment for the old one.
pub fn pay_own(records: &Records, node: &Node, attachment: &Attachment, patience: Duration) -> Result<()> {
    let debts = records.debts_by(attachment)?;
    // An ADD may pay what is of the device while the first one's IPAM is at work.
    let debts = debts.iter().filter_map(|debt| records.debt_now(debt));
    all_of(debts.map(|mut debt| pay(&mut debt, records, node, patience)))
}

/// Tries to free the addresses of earlier pods, after the IPAM plugin's ADD found none, and waits for a DEL that is about to
/// free one: its device was free before its address. `before` are those of [`owing_addresses`] before that ADD. Returns
/// whether one was freed.
pub fn pay_addresses(
    mut before: Vec<DebtFile>,
    records: &Records,
    node: &Node,
    ipam: &str,
    but: &Attachment,
) -> Result<bool> {
    let new = owing_addresses(records, ipam, but)?
        .into_iter()
        .filter(|debt| before.iter().all(|one| !one.is_same(debt)));
    before.extend(new.collect::<Vec<_>>());
    let lock = |attachment: &Attachment, patience| records.lock_within(attachment, patience);
    pay_aside(before.into_iter(), records, node, lock).map(|paid| paid > 0)
}

/// The debts of other attachments than `but` that owe an address to the IPAM plugin `ipam`.
pub fn owing_addresses(records: &Records, ipam: &str, but: &Attachment) -> Result<Vec<DebtFile>> {
    let owes = |debt: &DebtFile| {
        let record = &debt.record;
        record.attachment() != *but
            && record.ipam.as_ref().is_some_and(|owed| owed.r#type == ipam)
            && record.owed().iter().any(|owed| owed.what == What::Ipam)
    };
    Ok(records.debts()?.into_iter().filter(owes).collect())
}

/// Pays debts of other attachments, as far as `lock` gives their locks: an ADD or DEL of them may be at work.
fn pay_aside(
    debts: impl Iterator<Item = DebtFile>,
    records: &Records,
    node: &Node,
    lock: impl Fn(&Attachment, Duration) -> Result<Option<AttachmentLock>>,
) -> Result<usize> {
    let (start, mut paid, mut errors) = (Instant::now(), 0, Vec::new());
    let left = || ASIDE.checked_sub(start.elapsed()).filter(|left| !left.is_zero());
    for debt in debts {
        let Some(patience) = left() else { break };
        let Some(_lock) = lock(&debt.record.attachment(), patience)? else { continue };
        let Some(mut debt) = records.debt_now(&debt) else {
            paid += 1;
            continue;
        };
        let Some(patience) = left() else { break };
        // One that cannot be written does not stop the others.
        errors.push(pay(&mut debt, records, node, patience));
        paid += usize::from(debt.is_paid());
    }
    all_of(errors).map(|()| paid)
}

/// Drops debts above the limits. Every debt holds its network's configuration, which a tenant wrote: it must not fill
/// /run.
fn drop_oldest(debts: &mut Vec<DebtFile>, records: &Records) -> Result<()> {
    debts.sort_by(|one, other| other.record.since.cmp(&one.record.since));
    let mut size = 0;
    let is_kept = |debt: &DebtFile| {
        size += debt.record.ipam.as_ref().map_or(0, |ipam| ipam.config.len());
        size <= MOST_BYTES
    };
    let kept = debts.iter().take(MOST).map(is_kept).take_while(|is_kept| *is_kept).count();
    for mut debt in debts.drain(kept..) {
        log::error!("too many debts: what is owed by {} is forgotten", debt.record.holder());
        // The original state of a device is kept.
        records.change(&mut debt, |record| {
            let mut left = record.owed();
            left.retain(|owed| owed.what.is_of_device());
            record.ipam = None;
            record.debt.get_or_insert_default().owed = left;
        })?;
    }
    Ok(())
}

/// As `reap` and `status` print it for programs.
pub fn json(record: &Record) -> Value {
    let Record { device, network, container_id, ifname, pod, debt, .. } = record;
    let owed: Vec<_> = record.owed().iter().map(|owed| json!({"what": owed.what, "why": owed.why})).collect();
    let (since, tries) = debt.as_ref().map_or((record.since.as_str(), 0), |debt| (&debt.since, debt.tries));
    json!({"device": device.id, "network": network, "containerID": container_id, "ifname": ifname, "pod": pod,
        "since": since, "tries": tries, "owed": owed})
}
