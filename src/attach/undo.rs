//! The end of an attachment: its steps are undone, the last first. DEL, the rollback of an ADD, GC,
//! `reap` and the next ADD of the device all do this. Every step is tried, and what fails stays in
//! the journal.

use anyhow::{Result, anyhow};

use super::away;
use super::context::Cx;
use super::ipam::PATIENCE;
use super::locate::Place;
use super::locks::DeviceLock;
use super::record::{Entry, Record};
use super::records::{Pending, Records};
use super::step::UndoneAt;
use super::steps::Kind as _;
use super::steps::device_info::DeviceInfo;
use super::steps::driver::Driver;
use super::steps::lease::IpamLease;
use super::steps::moved::Move;
use crate::device::userspace;
use crate::node::Node;
use crate::sysfs::Function;

/// Time of the lease's return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseReturn {
    /// Now.
    Now,
    /// By a later call: the next pod is waiting for the device.
    Later,
}

/// Undoes whatever was done of `record`, whose attachment and device are locked. The device is free
/// as soon as it is on the host, and what could not be undone by then is pending. An error means
/// that the device is still in the pod, or that the record could not be written.
pub fn end(
    mut record: Record,
    records: &Records,
    mut claim: DeviceLock,
    lease: LeaseReturn,
    node: &Node,
) -> Result<Ended> {
    let mut cx = Cx::open(&record.owner, record.facts(), node, &records.locks)?;
    record.request = None;
    for step in &mut record.steps {
        if step.is::<DeviceInfo>() && step.is_left() {
            let done = step.change.step().undo(&mut cx);
            step.undone(done);
        }
    }
    let turn = records.locks.turn();
    let is_home = match take_home(&mut record, &mut cx) {
        Ok(is_home) => is_home,
        Err(error) => {
            records
                .write(&record, &mut claim)
                .unwrap_or_else(|error| log::warn!("{error:#}"));
            return Err(error);
        }
    };
    if !is_home {
        records.write(&record, &mut claim)?;
        let how = away::how_to_end(&record.owner, records);
        log::warn!(
            "{} has not returned from {}: {how}",
            record.owner.device.id,
            record.owner.describe()
        );
        return Ok(Ended {
            record,
            place: cx.place,
        });
    }
    on_host(&mut record, &mut cx);
    drop(turn);
    log_left(&record, |step| step.failed().tries > 0);
    if !record.is_left() {
        records.remove(&record, &mut claim)?;
        return Ok(Ended {
            record,
            place: cx.place,
        });
    }
    let mut pending = match records.end(&record, &mut claim) {
        Ok(pending) => pending,
        Err(error) => {
            // On a full /run the device waits for the IPAM.
            undo_lease(&mut record, node, PATIENCE);
            if record.is_left() {
                return Err(error);
            }
            records.remove(&record, &mut claim)?;
            return Ok(Ended {
                record,
                place: cx.place,
            });
        }
    };
    drop(claim);
    if lease == LeaseReturn::Now {
        give_lease_back(&mut pending, node, PATIENCE, records)?;
    }
    if pending.record.is_left() {
        records
            .limit_pending()
            .unwrap_or_else(|error| log::warn!("{error:#}"));
    }
    Ok(Ended {
        record: pending.record,
        place: cx.place,
    })
}

/// The outcome of an attachment's end.
#[derive(Debug)]
pub struct Ended {
    /// Its journal.
    pub record: Record,
    /// The place of its device.
    pub place: Place,
}

/// Undoes what is in the pod, and moves the device to the host. Returns whether it is there, or
/// gone from the node.
pub fn take_home(record: &mut Record, cx: &mut Cx<'_>) -> Result<bool> {
    if !record.owner.is_of_this_boot()? {
        // Neither the namespace nor the settings of the device exist any more.
        cx.place = Place::Gone;
        for step in &mut record.steps {
            if matches!(
                step.change.step().undone_at(),
                UndoneAt::Pod | UndoneAt::Device
            ) {
                step.undone(Ok(()));
            }
        }
        return Ok(true);
    }
    cx.locate()?;
    for step in record.steps.iter_mut().rev() {
        if !step.is_left() || step.change.step().undone_at() != UndoneAt::Pod {
            continue;
        }
        let done = step.change.step().undo(cx);
        if !step.is::<Move>() {
            step.undone(done);
            continue;
        }
        done?;
        if cx.place == Place::Missing {
            step.undone(Err(anyhow!(
                "it has not returned: another namespace has it"
            )));
            return Ok(false);
        }
        step.undone(Ok(()));
    }
    Ok(true)
}

/// Restores the device, which is on the host, or gone: every step of it that is left.
pub fn on_host(record: &mut Record, cx: &mut Cx<'_>) {
    if let Err(error) = refuse_held(cx) {
        return postpone(record, &error);
    }
    let has_netdev = record.owner.device.link.is_some() && record.find::<Driver>().is_some();
    let mut blocked: Option<String> = None;
    for step in record
        .steps
        .iter_mut()
        .rev()
        .filter(|step| step.is_of_device())
    {
        // Settings of a netdev that its driver has made anew must be restored again.
        if !step.is_left() && !cx.is_anew {
            continue;
        }
        let is_driver = step.is::<Driver>();
        let is_gone = cx.place == Place::Gone && !cx.is_anew;
        if has_netdev && !is_driver && !is_gone && cx.at_home().is_none() {
            // Without a netdev no undo can run, a reset least of all.
            let why = blocked
                .clone()
                .unwrap_or_else(|| "the device has no netdev on the host".to_owned());
            step.undone(Err(anyhow!("{why}")));
            continue;
        }
        let done = step.change.step().undo(cx);
        if let Err(error) = &done {
            blocked = blocked.or_else(|| Some(format!("{error:#}")));
        }
        step.undone(done);
    }
    // A driver that was to be bound again, for a GUID or around a reset.
    let Some(why) = blocked.filter(|_| cx.place == Place::Unbound) else {
        return;
    };
    for step in &mut record.steps {
        if step.is::<Driver>() && !step.is_left() {
            step.undone(Err(anyhow!("{why}")));
        }
    }
}

/// Leaves all that is left of a device for later.
pub fn postpone(record: &mut Record, why: &anyhow::Error) {
    for step in record
        .steps
        .iter_mut()
        .filter(|step| step.is_left_of_device())
    {
        step.undone(Err(anyhow!(
            "waiting until nothing uses the device: {why:#}"
        )));
    }
}

/// Fails while a virtual machine, or another program in user space, has the function. A reset would
/// tear it out of its hands, and the pod's settings may be its own by now.
fn refuse_held(cx: &Cx<'_>) -> Result<()> {
    match cx
        .function
        .as_ref()
        .filter(|function| Function::is_userspace(function))
    {
        Some(function) => userspace::refuse_held(&cx.owner.device.id, function),
        None => Ok(()),
    }
}

/// Gives the address back, if that is still to be done.
pub fn give_lease_back(
    pending: &mut Pending,
    node: &Node,
    patience: std::time::Duration,
    records: &Records,
) -> Result<()> {
    if !undo_lease(&mut pending.record, node, patience) {
        return Ok(());
    }
    log_left(&pending.record, Entry::is::<IpamLease>);
    records.note(pending, Entry::is::<IpamLease>)
}

/// Calls the DEL of the IPAM, if that is still to be done.
fn undo_lease(record: &mut Record, node: &Node, patience: std::time::Duration) -> bool {
    let owner = record.owner.clone();
    for step in record.steps.iter_mut().filter(|step| step.is_left()) {
        if let Some(lease) = IpamLease::of(&step.change) {
            let done = lease.give_back(&owner, node, patience);
            step.undone(done);
            return true;
        }
    }
    false
}

/// Logs what could not be undone, of the steps that are `meant`.
pub fn log_left(record: &Record, meant: impl Fn(&Entry) -> bool) {
    for step in record.left().filter(|step| meant(step)) {
        let (what, why) = (step.change.step().describe(), step.failed().why);
        log::warn!("pending for {}: {what}: {why}", record.owner.describe());
    }
}
