//! The device-info file of the Network Plumbing WG (device-info-spec 1.1.0): how a pod learns the PCI address
//! and the RDMA devices of its interface.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::device::Device;
use crate::files::Dir;
use crate::sysfs::DeviceId;

/// Writes the file in one step, its folder too where it is missing. A stale one is replaced.
pub fn write(path: &Path, device: &Device) -> Result<()> {
    let Some(id) = device.home.pci_id.as_deref() else {
        log::warn!("no device-info file: {} is on no bus", device.home.id);
        return Ok(());
    };
    let mut pci = match DeviceId::parse(id) {
        Some(DeviceId::Auxiliary(_)) => json!({}),
        _ => json!({ "pci-address": id }),
    };
    if let Some(pf) = device.home.pf.as_ref().filter(|pf| *pf != id) {
        pci["pf-pci-address"] = json!(pf);
    }
    let rdma = device.rdma_devices().join(",");
    if !rdma.is_empty() {
        pci["rdma-device"] = json!(rdma);
    }
    if pci.as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(());
    }
    let info = json!({ "type": "pci", "version": "1.1.0", "pci": pci });
    let (dir, name) = split(path)?;
    Dir::create(dir)?.write(name, info.to_string().as_bytes(), false)
}

/// Removes it, and what a killed ADD left half-written.
pub fn remove(path: &Path) -> Result<()> {
    let (dir, name) = split(path)?;
    match Dir::open(dir) {
        Ok(dir) => {
            dir.discard(name);
            dir.remove(name)
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot open {}", dir.display())),
    }
}

fn split(path: &Path) -> Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    path.parent().zip(name).with_context(|| format!("{} names no file", path.display()))
}
