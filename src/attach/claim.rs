//! The claim of a device: while it is held, no other call takes the device.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::heal::{self, Refused};
use super::locks::DeviceLock;
use super::owner::{Key, Part};
use super::pending;
use super::record::Record;
use super::records::{Listed, Records};
use super::state;
use super::steps::vf;
use crate::device::Device;
use crate::netconf::NetConf;
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
    conf: &NetConf,
    key: &Key,
    node: &Node,
    host: &mut Socket,
) -> Result<ClaimedDevice> {
    let began = Instant::now();
    let mut claimed = try_claim(records, listed, conf, key, node, host);
    while matches!(claimed, Err(Refused::Held(_))) && began.elapsed() < HOLDER_PATIENCE {
        sleep(PAUSE);
        claimed = try_claim(records, &records.list()?, conf, key, node, host);
    }
    claimed.map_err(Refused::into_error)
}

/// Heals and locks, and once more if another call interfered.
fn try_claim(
    records: &Records,
    listed: &Listed,
    conf: &NetConf,
    key: &Key,
    node: &Node,
    host: &mut Socket,
) -> Result<ClaimedDevice, Refused> {
    if let Some(claimed) = heal_and_lock(records, listed, conf, key, node, host)? {
        return Ok(claimed);
    }
    let listed = records.list()?;
    if let Some(claimed) = heal_and_lock(records, &listed, conf, key, node, host)? {
        return Ok(claimed);
    }
    let error = failure!(
        TryAgain,
        "device {} is busy: another call claims it; retry",
        conf.selector
    );
    Err(error.into())
}

/// Heals the device, locks it, and looks whether it is still there and free. `None` if it is not on
/// the host, or if another call took it while this one waited for the lock.
fn heal_and_lock(
    records: &Records,
    listed: &Listed,
    conf: &NetConf,
    key: &Key,
    node: &Node,
    host: &mut Socket,
) -> Result<Option<ClaimedDevice>, Refused> {
    let Some(device) = heal::device(records, listed, conf, key, node, host)? else {
        return Ok(None);
    };
    let id = device.original.id;
    let mut lock = records.locks.device(&id)?;
    let Some(device) = heal::find(conf, records, node, host)? else {
        return Ok(None);
    };
    if device.original.id != id || !records.claims_on(&id, &mut lock, Some(key))?.is_empty() {
        return Ok(None);
    }
    let next = vf::wanted(conf);
    let previous = pending::left_on(records, &id, Part::Whole, &next, node)?;
    Ok(Some(ClaimedDevice {
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
        if is_adding || !state::of(&record, node, host)?.is_left_over() {
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
