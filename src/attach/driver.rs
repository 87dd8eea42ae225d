//! Binding the driver of a function again: for a GUID, which the VF's driver reads once, and around a reset, of which drivers
//! without `reset_prepare` do not hear (mlx5_core, bnxt_en). The kernel then makes netdev and RDMA device anew, under names
//! that udev may change a moment later: each step looks them up again.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::config::NetConf;
use super::device::Device;
use super::record::{Bind, Record, Records, What};
use super::{rdma, restore};
use crate::netlink::Socket;
use crate::node::Node;
use crate::sysfs::Function;
use crate::{fail, watchdog};

/// Which part of the call's time the driver has for netdev and RDMA device.
const PART: u32 = 12;
const PAUSE: Duration = Duration::from_millis(10);

/// What must be on record before the driver is unbound.
pub fn bound_to(function: &Function) -> Bind {
    Bind { driver: function.driver().unwrap_or_default(), rdma: function.rdma_devices(), guids: Vec::new() }
}

/// The driver of a function that will be reset: for this network, or because of `left`, an earlier attachment.
pub fn for_reset(conf: &NetConf, device: &Device, left: Option<&Record>) -> Result<Option<Bind>> {
    let is_left = left.is_some_and(|left| left.owes(What::Reset));
    // A program in user space has no netdev, and its driver hears of resets (vfio-pci).
    let (Some(function), Some(_)) = (device.function(), &device.original.link) else { return Ok(None) };
    match refuse("resetOnDel", device, function) {
        _ if !conf.reset_on_del && !is_left => Ok(None),
        Ok(()) => Ok(Some(bound_to(function))),
        Err(error) if conf.reset_on_del => Err(error),
        // It is not for this network to fail.
        Err(_) => Ok(None),
    }
}

/// Refuses a device whose driver cannot be bound again, or not without others. `key` is the network's that needs it.
pub fn refuse(key: &str, device: &Device, function: &Function) -> Result<()> {
    let what = device.describe();
    if device.original.siblings {
        fail!(UnsupportedField, "{key}: {what} has several netdevs, which would go with its driver");
    }
    if function.vf_count() > 0 {
        fail!(UnsupportedField, "{key}: {what} has VFs, which would go with its driver");
    }
    let only = function.driver_override();
    if let Some(only) = only.filter(|only| function.driver().as_ref() != Some(only)) {
        fail!(
            UnsupportedField,
            "{key}: {what} would get the driver {only} when it is bound again (driver_override)"
        );
    }
    Ok(())
}

/// Binds the driver of a function that has none, because a call was ended in between.
pub fn bind(record: &Record, records: &Records, node: &Node, host: &mut Socket) -> Result<()> {
    let Some(bind) = &record.bind else { return Ok(()) };
    match record.device.function(node)? {
        Some(function) if function.driver().is_none() => {
            let pf = watch(record);
            let _binding = records.lock_binding()?;
            {
                let _lock = pf.map(|pf| records.lock_pf(pf)).transpose()?;
                function.bind(&bind.driver)?;
            }
            wait(record, bind, node, host)
        }
        _ => Ok(()),
    }
}

/// Unbinds the driver, does `between`, and binds it again, whatever came of that. Netdev and RDMA devices are there when it
/// returns.
pub fn bind_again(
    record: &Record,
    bind: &Bind,
    function: &Function,
    between: fn(&Function) -> Result<()>,
    records: &Records,
    node: &Node,
    host: &mut Socket,
) -> Result<()> {
    let pf = watch(record);
    // The kernel gives a new RDMA device the lowest free name: two that are made at a time could get each other's, which
    // neither could then have back.
    let _binding = records.lock_binding()?;
    let done = {
        // Not while the netdev is waited for: other VFs of the PF need the lock, too.
        let _lock = pf.map(|pf| records.lock_pf(pf)).transpose()?;
        let driver = function.driver().unwrap_or_else(|| bind.driver.clone());
        function.unbind()?;
        let done = between(function);
        function.bind(&driver)?;
        done
    };
    wait(record, bind, node, host)?;
    restore_rdma_names(record, node);
    log::info!("the driver of {} was bound again", record.device.id);
    done
}

/// Names the step that may hang, and returns the PF to lock.
fn watch(record: &Record) -> Option<&str> {
    watchdog::step(|| format!("binding the driver of {} again", record.device.id));
    record.device.pf.as_deref()
}

/// A name that another device has by now is nobody's debt.
pub fn restore_rdma_names(record: &Record, node: &Node) {
    rdma::restore_names_made_anew(record, node).unwrap_or_else(|error| log::warn!("{error:#}"));
}

/// Waits until the driver has made the netdev and as many RDMA devices as before.
fn wait(record: &Record, bind: &Bind, node: &Node, host: &mut Socket) -> Result<()> {
    let patience = watchdog::part(PART);
    let deadline = Instant::now() + patience;
    loop {
        let link = restore::find_on_host(record, node, host)?;
        let function = record.device.function(node)?;
        let rdma = function.map_or(0, |function| function.rdma_devices().len());
        if link.is_some() && rdma >= bind.rdma.len() {
            return Ok(());
        }
        if Instant::now() > deadline {
            fail!(
                TryAgain,
                "{} has no netdev, or no RDMA device, {patience:?} after its driver {} was bound again: see `dmesg`",
                record.device.id,
                bind.driver
            );
        }
        sleep(PAUSE);
    }
}
