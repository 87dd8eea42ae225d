//! Unbinding and binding a driver, for several steps: for a GUID, which the VF's driver reads once;
//! around a reset, of which drivers without `reset_prepare` do not hear (mlx5_core, bnxt_en); and
//! for links that cannot be removed from the netdev. The kernel then makes netdev and RDMA device
//! anew, under names that udev may change a moment later.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::rdma;
use crate::attach::context::{Bound, Cx};
use crate::attach::locate::Place;
use crate::device::Device;
use crate::sysfs::Function;
use crate::{fail, watchdog};

/// The driver's share of the call's time, for netdev and RDMA device.
const PART: u32 = 12;
const PAUSE: Duration = Duration::from_millis(10);

/// Refuses a device whose driver cannot be bound again, or not without others. `key` is the
/// network's that needs it.
pub fn refuse(key: &str, device: &Device, function: &Function) -> Result<()> {
    if let Some(why) = hindrance(device.original.siblings, function) {
        fail!(UnsupportedField, "{key}: {} {why}", device.describe());
    }
    Ok(())
}

/// Why the driver cannot be bound again without more than this device changing. `siblings`: the
/// function has several netdevs.
fn hindrance(siblings: bool, function: &Function) -> Option<String> {
    if siblings {
        return Some("has several netdevs, which unbinding its driver would remove".to_owned());
    }
    if function.vf_count() > 0 {
        return Some("has VFs, which unbinding its driver would remove".to_owned());
    }
    let only = function
        .driver_override()
        .filter(|only| function.driver().as_ref() != Some(only))?;
    Some(format!(
        "would get the driver {only} when it is bound again (driver_override)"
    ))
}

/// The driver of a function that can be bound again without anything else: see [`refuse`].
pub fn alone(cx: &Cx<'_>) -> Option<Bound> {
    let function = cx.function.as_ref().filter(|function| function.exists())?;
    let bound = cx.facts.driver.clone()?;
    let is_it = function.driver().as_ref() == Some(&bound.driver);
    (is_it && hindrance(cx.owner.device.siblings, function).is_none()).then_some(bound)
}

/// Gives the function its driver back, where it has none or one for programs in user space.
pub fn restore(bound: &Bound, cx: &mut Cx<'_>) -> Result<()> {
    let Some(function) = cx.function.clone().filter(Function::exists) else {
        return Ok(());
    };
    if function.driver_override() != bound.only {
        function.set_driver_override(bound.only.as_deref())?;
    }
    if !matches!(cx.place, Place::Unbound | Place::UserSpace) {
        return Ok(());
    }
    let pf = watch(cx);
    let binding = cx.locks.binding()?;
    {
        let _lock = pf.map(|pf| cx.locks.pf(&pf)).transpose()?;
        if function.driver().is_some() {
            function.unbind()?;
        }
        function.bind(&bound.driver)?;
    }
    let done = wait(bound, cx);
    drop(binding);
    restore_rdma_names(bound, cx);
    done
}

/// Unbinds the driver, does `between`, and binds it again, whatever came of that. Netdev and RDMA
/// devices are there when it returns.
pub fn bind_again(
    bound: &Bound,
    between: fn(&Function) -> Result<()>,
    cx: &mut Cx<'_>,
) -> Result<()> {
    let Some(function) = cx.function.clone() else {
        return Ok(());
    };
    let pf = watch(cx);
    // The kernel gives a new RDMA device the lowest free name: two that are made at a time could
    // get each other's, which neither could then have back.
    let binding = cx.locks.binding()?;
    let done = {
        // Not while the netdev is waited for: other VFs of the PF need the lock, too.
        let _lock = pf.map(|pf| cx.locks.pf(&pf)).transpose()?;
        let driver = function.driver().unwrap_or_else(|| bound.driver.clone());
        function.unbind()?;
        cx.place = Place::Unbound;
        let done = between(&function);
        function.bind(&driver)?;
        done
    };
    wait(bound, cx)?;
    drop(binding);
    restore_rdma_names(bound, cx);
    log::info!("the driver of {} was bound again", cx.owner.device.id);
    done
}

/// Names the step that may hang, and returns the PF to lock.
fn watch(cx: &Cx<'_>) -> Option<String> {
    watchdog::step(|| format!("binding the driver of {} again", cx.owner.device.id));
    cx.owner.device.pf.clone()
}

/// A name that another device has by now stays with it.
pub fn restore_rdma_names(bound: &Bound, cx: &Cx<'_>) {
    rdma::restore_names_made_anew(bound, cx).unwrap_or_else(|error| log::warn!("{error:#}"));
}

/// Waits until the driver has made the netdev and as many RDMA devices as before.
fn wait(bound: &Bound, cx: &mut Cx<'_>) -> Result<()> {
    cx.is_anew = true;
    let patience = watchdog::part(PART);
    let deadline = Instant::now() + patience;
    loop {
        cx.await_home()?;
        let rdma = cx
            .function
            .as_ref()
            .map_or(0, |function| function.rdma_devices().len());
        if cx.at_home().is_some() && rdma >= bound.rdma.len() {
            return Ok(());
        }
        if Instant::now() > deadline {
            fail!(
                TryAgain,
                "{} has no netdev, or no RDMA device, {patience:?} after its driver {} was bound again: see `dmesg`",
                cx.owner.device.id,
                bound.driver
            );
        }
        sleep(PAUSE);
    }
}
