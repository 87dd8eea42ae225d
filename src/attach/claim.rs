//! The claim of a device: while it is held, no other call takes the device.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::heal::{self, Claimant, Refused};
use super::locks::DeviceLock;
use super::owner::Part;
use super::pending;
use super::record::Record;
use super::records::{Listed, Records};
use super::state;
use super::steps::vf;
use crate::device::Device;
use crate::node::Node;
use crate::{fail, failure};
use rail_netlink::Socket;

/// Patience of ADD with a pod that has the device and may be ending: after a forced delete, the
/// kubelet gives the device to the next pod before the runtime has stopped the last one. Shorter
/// than the 11 s after which the kubelet tries again.
const HOLDER_PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(50);

/// A device without an attachment, locked against other calls.
#[derive(Debug)]
pub struct ClaimedDevice {
    /// The device.
    pub device: Device,
    /// Its lock, which is held.
    pub lock: DeviceLock,
    /// An earlier attachment whose changes of the device could not be undone: its record has the
    /// original state.
    pub previous: Option<Record>,
}

/// Heals the device that the network means, and claims it. Waits for a pod that is ending.
pub fn claim(
    records: &Records,
    listed: &Listed,
    claimant: &Claimant,
    host: &mut Socket,
) -> Result<ClaimedDevice> {
    let began = Instant::now();
    let mut claimed = try_claim(records, listed, claimant, host);
    while matches!(claimed, Err(Refused::Held(_))) && began.elapsed() < HOLDER_PATIENCE {
        sleep(PAUSE);
        claimed = try_claim(records, &records.list()?, claimant, host);
    }
    claimed.map_err(Refused::into_error)
}

/// Heals and locks, and once more if another call interfered.
fn try_claim(
    records: &Records,
    listed: &Listed,
    claimant: &Claimant,
    host: &mut Socket,
) -> Result<ClaimedDevice, Refused> {
    if let Ok(claimed) = heal_and_lock(records, listed, claimant, host)? {
        return Ok(claimed);
    }
    let listed = records.list()?;
    let claimed = heal_and_lock(records, &listed, claimant, host)?;
    claimed.map_err(|why| failure!(TryAgain, "{why}; retry").into())
}

/// Heals the device, locks it, and looks whether it is still there and free. If not, says what
/// happened while this call waited for the lock.
fn heal_and_lock(
    records: &Records,
    listed: &Listed,
    claimant: &Claimant,
    host: &mut Socket,
) -> Result<Result<ClaimedDevice, String>, Refused> {
    let selector = &claimant.conf.selector;
    let Some(device) = heal::device(records, listed, claimant, host)? else {
        return Ok(Err(format!(
            "device {selector} has not come back to the host yet"
        )));
    };
    let id = device.original.id;
    let mut lock = records.locks.device(&id)?;
    let Some(device) = heal::find(records, claimant, host)? else {
        return Ok(Err(format!(
            "device {selector} left the host while this call waited for it"
        )));
    };
    if device.original.id != id {
        let now = device.describe();
        return Ok(Err(format!("{selector} was {id}, and is {now} by now")));
    }
    let claims = records.claims_on(&id, &mut lock, Some(claimant.key))?;
    if let Some(other) = claims.first() {
        let holder = other.owner.describe();
        let is_at_work = records.locks.is_busy(&other.owner.key())?;
        let by_whom = if is_at_work { "another call for " } else { "" };
        return Ok(Err(format!("device {id} is claimed by {by_whom}{holder}")));
    }
    let next = vf::wanted(claimant.conf);
    let previous = pending::left_on(records, &id, Part::Whole, &next, claimant.node)?;
    Ok(Ok(ClaimedDevice {
        device,
        lock,
        previous,
    }))
}

/// Refuses a PF whose VFs are attached to pods: without it on the host, their settings could not be
/// restored.
pub fn refuse_pf_of_attached_vfs(
    records: &Records,
    device: &Device,
    node: &Node,
    host: &mut Socket,
) -> Result<()> {
    if !device.has_vfs() {
        return Ok(());
    }
    for record in records.all()?.0 {
        let vf = &record.owner.device;
        if vf.pf.is_none() || vf.pf != device.original.pci_id || vf.id == device.original.id {
            continue;
        }
        // An ADD under way has only a record so far, and holds its lock.
        let is_adding = !record.is_attached() && records.locks.is_busy(&record.owner.key())?;
        if is_adding || !state::of(&record, node, host)?.is_free() {
            let what = device.describe();
            let holder = record.owner.describe();
            let vf = &vf.id;
            fail!(
                TryAgain,
                "{what} is the PF of {vf}, which is attached to {holder}"
            );
        }
    }
    Ok(())
}
