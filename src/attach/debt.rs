//! What is still owed of attachments whose device is home: the DEL of an IPAM plugin that fails, a file that cannot
//! be removed, a setting that a driver refuses, a name that somebody has taken. The device is free all the same. A
//! debt is tried again by later calls, each time after a longer pause, and by `rail-cni reap`.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::record::{Debt, DebtFile, DeviceLock, Owed, Record, Records, What};
use super::{devinfo, giveback, rdma};
use crate::cni::Attachment;
use crate::error::all_of;
use crate::netlink::Socket;
use crate::node::Node;
use crate::{failure, files};

/// What an IPAM plugin gets for a debt of its own call.
pub const WHOLE: Duration = Duration::from_secs(30);
/// What it gets from a call that is about something else, and what all debts together get from that.
pub const ASIDE: Duration = Duration::from_secs(2);
/// Before the second try. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// Debts above this number are dropped, the oldest first: a plugin that is gone for good owes for every pod.
const MOST: usize = 1000;
/// Of configurations that all debts together keep.
const MOST_BYTES: usize = 16 << 20;

impl Record {
    /// What is left to be done. Of a record that nobody has looked at since its device came home, everything that it
    /// can be.
    pub fn owed(&self) -> Vec<Owed> {
        if let Some(debt) = &self.debt {
            return debt.owed.clone();
        }
        let device_info = self.device_info.as_ref().map(|_| What::DeviceInfo);
        let all = [self.ipam.as_ref().map(|_| What::Ipam), device_info, Some(What::Device)];
        let why = || "the call that was at it has ended".to_owned();
        all.into_iter().flatten().map(|what| Owed { what, why: why() }).collect()
    }

    /// Has what is owed been tried, in vain? Else the next DEL or GC does it, and nobody has to.
    pub fn is_owed_in_vain(&self) -> bool {
        self.owes_device() || self.debt.as_ref().is_some_and(|debt| debt.tries > 0)
    }

    /// Is something of the device itself owed?
    pub fn owes_device(&self) -> bool {
        self.owed().iter().any(|owed| owed.what.is_of_device())
    }
}

/// Tries everything that is owed, and puts on file what is left. Whoever calls has the attachment's lock.
pub fn pay(debt: &mut DebtFile, records: &Records, node: &Node, patience: Duration) -> Result<()> {
    pay_these(debt, debt.record.owed(), records, node, patience)
}

/// The first try, right after the device came home with these faults: the device is not looked at again.
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

/// The same for a device that has not come home: there is no debt, for its record stays.
pub fn pay_without_device(record: &Record) -> Result<()> {
    let info = record.device_info.is_some().then_some(What::DeviceInfo);
    let left = [Some(What::Ipam), info]
        .into_iter()
        .flatten()
        .filter_map(|what| pay_one(record, Owed { what, why: String::new() }, WHOLE));
    all_of(left.map(|owed| Err(failure!(Internal, "{}: {}", owed.what.as_str(), owed.why))))
}

/// Puts a debt on file that is not paid now, for the next pod waits: only its device-info file goes.
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
    debt.record.debt = Some(Debt { owed: left, since: files::now(), ..Debt::default() });
    records.update(&debt)
}

/// What a device is like whose last attachments may owe something of it.
#[derive(Debug)]
pub enum Found {
    /// Nothing was owed.
    Untouched,
    /// It is as it was: what was owed is done.
    PutRight,
    /// It could not be put right. The attachment found it in its first state: who takes the device takes that over,
    /// and says so with [`taken_over`] when it is on record.
    Left(Box<Record>),
}

/// Tries what is owed of the device `id`, whose lock is held and which nobody claims, once more.
pub fn take_over(records: &Records, id: &str, node: &Node, host: &mut Socket) -> Result<Found> {
    let mut found = Found::Untouched;
    for mut debt in records.debts_of(id)?.into_iter().filter(|debt| debt.record.owes_device()) {
        let mut left = match giveback::put_right(&debt.record, records, node, host) {
            Ok(left) => left.unwrap_or_default(),
            Err(error) => vec![Owed { what: What::Device, why: format!("{error:#}") }],
        };
        let is_left = left.iter().any(|owed| owed.what.is_of_device());
        left.extend(debt.record.owed().into_iter().filter(|owed| !owed.what.is_of_device()));
        let mut now = debt.record.debt.take().unwrap_or_default();
        now.owed = left;
        debt.record.debt = Some(now);
        records.update(&debt)?;
        // The oldest has the first state.
        found = match found {
            Found::Left(older) if older.since <= debt.record.since => Found::Left(older),
            _ if is_left => Found::Left(Box::new(debt.record)),
            _ => Found::PutRight,
        };
    }
    Ok(found)
}

/// The first state of the device `id` is in a new record now.
pub fn taken_over(records: &Records, id: &str) -> Result<()> {
    for mut debt in records.debts_of(id)? {
        if let Some(left) = &mut debt.record.debt {
            left.owed.retain(|owed| !owed.what.is_of_device());
            records.update(&debt)?;
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
    let mut left = match (of_device.is_empty(), records.try_lock_device(&debt.record.device.id)?) {
        (true, _) => Vec::new(),
        (false, None) => of_device,
        (false, Some(mut lock)) => pay_device(&debt.record, of_device, &mut lock, records, node)?,
    };
    let has_heir = records.on_file(&debt.record.attachment())?.is_some();
    for one in others {
        // The same attachment was added anew: a DEL of its IPAM would take the address that it has now.
        if has_heir && one.what == What::Ipam {
            left.push(one);
            continue;
        }
        left.extend(match one.what {
            What::Rules | What::Rdma => {
                let done = in_pod(&debt.record, one.what, node);
                done.err().map(|error| Owed { what: one.what, why: format!("{error:#}") })
            }
            _ => pay_one(&debt.record, one, patience),
        });
    }
    file(debt, left, records)
}

/// The device, which is on the host or in somebody else's pod. Who has it now has taken over what it was.
fn pay_device(
    record: &Record,
    owed: Vec<Owed>,
    lock: &mut DeviceLock,
    records: &Records,
    node: &Node,
) -> Result<Vec<Owed>> {
    if !records.claims_on(&record.device.id, lock, None)?.is_empty() {
        return Ok(Vec::new());
    }
    match giveback::put_right(record, records, node, &mut Socket::open()?) {
        Ok(Some(left)) => Ok(left),
        Ok(None) => Ok(owed),
        Err(error) => Ok(vec![Owed { what: What::Device, why: format!("{error:#}") }]),
    }
}

/// What is left of one thing that is neither of the device nor in the pod.
fn pay_one(record: &Record, owed: Owed, patience: Duration) -> Option<Owed> {
    let done = match owed.what {
        What::Ipam => release(record, patience),
        What::DeviceInfo => record
            .device_info
            .as_deref()
            .map_or(Ok(()), |path| devinfo::remove(path, &record.device, &record.attachment())),
        What::Rules | What::Rdma | What::Reset | What::Vf | What::Device => return Some(owed),
    };
    done.err().map(|error| Owed { what: owed.what, why: format!("{error:#}") })
}

/// The DEL of the IPAM that ADD used. One that has refused to give an address in so many words owes nothing, whatever
/// it says to DEL: a configuration that it cannot read, as a rule.
fn release(record: &Record, patience: Duration) -> Result<()> {
    let Some(ipam) = &record.ipam else { return Ok(()) };
    let told = ipam.delegate(record).and_then(|delegate| delegate.within(patience).run("DEL"));
    match told {
        Err(error) if !ipam.may_hold => {
            log::warn!("{error:#}: nothing is owed, for its ADD gave no address");
            Ok(())
        }
        told => told,
    }
}

/// What is left in a pod that lives, goes with the pod at the latest.
fn in_pod(record: &Record, what: What, node: &Node) -> Result<()> {
    let Some(netns) = giveback::open_if_same(&record.netns)? else { return Ok(()) };
    match what {
        What::Rules => giveback::remove_rules(record, &mut netns.run(Socket::open)?),
        _ => all_of([rdma::take_back(record, &netns), rdma::restore_names(record, node)]),
    }
}

fn file(debt: &mut DebtFile, left: Vec<Owed>, records: &Records) -> Result<()> {
    let mut now = debt.record.debt.take().unwrap_or_default();
    if now.since.is_empty() {
        now.since = files::now();
    }
    for Owed { what, why } in &left {
        log::warn!("still owed by {}: {}: {why}", debt.record.holder(), what.as_str());
    }
    let pause = FIRST_PAUSE.saturating_mul(1 << now.tries.min(16)).min(LONGEST_PAUSE);
    let next = u64::try_from((files::since_boot() + pause).as_millis()).unwrap_or(u64::MAX);
    debt.record.debt = Some(Debt { owed: left, tries: now.tries.saturating_add(1), next, since: now.since });
    records.update(debt)
}

/// Tries the debts that are due, for a call that is about something else: never for long.
pub fn pay_due(records: &Records, node: &Node) -> Result<()> {
    let now = files::since_boot().as_millis();
    let is_due = |debt: &DebtFile| debt.record.debt.as_ref().is_none_or(|debt| u128::from(debt.next) <= now);
    let mut debts = records.debts()?;
    drop_oldest(&mut debts, records)?;
    pay_aside(debts.into_iter().filter(is_due), records, node).map(drop)
}

/// Tries what an earlier attachment of the same key owes, whose lock is held: DEL is asked again, or ADD, whose IPAM
/// would take the new one for the old.
pub fn pay_own(records: &Records, node: &Node, attachment: &Attachment, patience: Duration) -> Result<()> {
    all_of(records.debts_by(attachment)?.iter_mut().map(|debt| pay(debt, records, node, patience)))
}

/// Tries the addresses that an IPAM plugin was not told to free: its ADD has just found none. Tells whether one is
/// free now.
pub fn pay_addresses(records: &Records, node: &Node, ipam: &str, but: &Attachment) -> Result<bool> {
    let owes = |debt: &DebtFile| {
        let record = &debt.record;
        record.attachment() != *but
            && record.ipam.as_ref().is_some_and(|owed| owed.r#type == ipam)
            && record.owed().iter().any(|owed| owed.what == What::Ipam)
    };
    pay_aside(records.debts()?.into_iter().filter(owes), records, node).map(|paid| paid > 0)
}

fn pay_aside(debts: impl Iterator<Item = DebtFile>, records: &Records, node: &Node) -> Result<usize> {
    let (start, mut paid, mut errors) = (Instant::now(), 0, Vec::new());
    for mut debt in debts {
        let Some(patience) = ASIDE.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else { break };
        // Its own ADD or DEL is at work.
        let Some(_lock) = records.try_lock(&debt.record.attachment())? else { continue };
        // One that cannot be put on file does not keep the others.
        errors.push(pay(&mut debt, records, node, patience));
        paid += usize::from(debt.is_paid());
    }
    all_of(errors).map(|()| paid)
}

/// A network's configuration is its author's, and stands in each of its pods' debts: it must not fill /run.
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
        // But for the first state of a device.
        let mut left = debt.record.owed();
        left.retain(|owed| owed.what.is_of_device());
        debt.record.ipam = None;
        debt.record.debt = Some(Debt { owed: left, ..debt.record.debt.take().unwrap_or_default() });
        records.update(&debt)?;
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
