//! The device-info file of the Network Plumbing WG (device-info-spec 1.1.0): how a pod learns the
//! PCI address and the RDMA devices of its interface.
//!
//! The runtime names the file, and Multus has already put the device plugin's there when ADD
//! begins: that a file exists says nothing about whose it is. So ours names its attachment, in a
//! key that readers pass over, and keeps what else the device plugin said of the device, such as
//! `representor-device` and `vhost-net`.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use serde_json::{Value, json};

use super::Original;
use super::gid::Gid;
use crate::cni::Attachment;
use crate::failure;
use crate::files::Dir;
use crate::sysfs::DeviceId;

/// Key of the owner.
const OWNER: &str = "rail-cni";

/// Refuses a file that belongs to another attachment, while nothing is changed. That of one which
/// is not on record any more is stale.
pub fn refuse(
    path: &Path,
    device: &Original,
    attachment: &Attachment,
    is_on_record: impl FnOnce(&Attachment) -> Result<bool>,
) -> Result<()> {
    let (dir, name) = split(path)?;
    let Some(dir) = existing(dir)? else {
        return Ok(());
    };
    let Some(whose) = in_the_way(&dir, name, device, attachment)? else {
        return Ok(());
    };
    if let Whose::Of(other) = &whose {
        if !is_on_record(other)? {
            log::warn!(
                "{} {whose}, which is no longer on record: replacing it",
                path.display()
            );
            return dir.remove(name);
        }
    }
    Err(refusal(&dir, name, &whose))
}

/// Writes the file in one step, its folder too where it is missing. A stale one is replaced.
/// `rdma`: the names of the RDMA devices that the pod sees.
pub fn write(
    path: &Path,
    original: &Original,
    attachment: &Attachment,
    rdma: &[String],
    gids: &[Gid],
) -> Result<()> {
    let Some(id) = original.pci_id.as_deref() else {
        log::warn!("no device-info file: {} is on no bus", original.id);
        return Ok(());
    };
    let (dir, name) = split(path)?;
    let dir = Dir::create(dir)?;
    if let Some(whose) = in_the_way(&dir, name, original, attachment)? {
        return Err(refusal(&dir, name, &whose));
    }
    let mut pci = described(&dir, name, id);
    match DeviceId::parse(id) {
        Some(DeviceId::Auxiliary(_)) => (),
        _ => pci["pci-address"] = json!(id),
    }
    if let Some(pf) = original.pf.as_ref().filter(|pf| *pf != id) {
        pci["pf-pci-address"] = json!(pf);
    }
    if !rdma.is_empty() {
        pci["rdma-device"] = json!(rdma.join(","));
    }
    if pci.as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(());
    }
    // The specification has no key for it, and readers pass over those that they do not know.
    let mut ours = json!({ "containerID": attachment.container_id, "ifname": attachment.ifname });
    if !gids.is_empty() {
        ours["gids"] = json!(gids);
    }
    let info = json!({ "type": "pci", "version": "1.1.0", "pci": pci, OWNER: ours });
    dir.write(name, info.to_string().as_bytes())
}

/// Reads the file's description of this device, but for its RDMA devices, of which ADD knows more.
fn described(dir: &Dir, name: &str, id: &str) -> Value {
    let info: Value = dir
        .read(name)
        .ok()
        .flatten()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default();
    match info.get("pci").and_then(Value::as_object) {
        Some(pci)
            if info["type"] == "pci"
                && pci.get("pci-address").and_then(Value::as_str) == Some(id) =>
        {
            let mut pci = pci.clone();
            pci.remove("rdma-device");
            Value::Object(pci)
        }
        _ => json!({}),
    }
}

/// Removes it, and what a killed ADD left half-written. One that belongs to another attachment is
/// left there.
pub fn remove(path: &Path, original: &Original, attachment: &Attachment) -> Result<()> {
    let (dir, name) = split(path)?;
    let Some(dir) = existing(dir)? else {
        return Ok(());
    };
    match of_another(&dir, name, original, attachment) {
        Ok(None) => {
            dir.discard(name);
            dir.remove(name)
        }
        Ok(Some(whose)) => {
            log::warn!("{} is left there: it {whose}", path.display());
            Ok(())
        }
        Err(error) => match errno_of(&error) {
            // Of such a name there is no file.
            Some(Errno::ENAMETOOLONG) => Ok(()),
            // Neither a link nor what is no file was made by us.
            Some(Errno::ELOOP) | None => {
                log::warn!("{} is left there: {error:#}", path.display());
                Ok(())
            }
            Some(_) => Err(error),
        },
    }
}

/// The mark by which a file is not ours.
enum Whose {
    /// It names its owner.
    Of(Attachment),
    /// It describes this device, or one of this type, and not ours.
    About(String),
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whose::Of(owner) => write!(f, "belongs to {owner}"),
            Whose::About(id) => write!(f, "describes {id}"),
        }
    }
}

/// Finds the owner of a file that ADD would replace. A link is replaced, wherever it leads.
fn in_the_way(
    dir: &Dir,
    name: &str,
    original: &Original,
    attachment: &Attachment,
) -> Result<Option<Whose>> {
    of_another(dir, name, original, attachment).or_else(|error| match errno_of(&error) {
        Some(Errno::ELOOP) => Ok(None),
        _ => Err(error),
    })
}

fn refusal(dir: &Dir, name: &str, whose: &Whose) -> anyhow::Error {
    let path = dir.path().join(name);
    failure!(
        InvalidConfig,
        "runtimeConfig.CNIDeviceInfoFile: {} {whose}: each interface has a file of its own",
        path.display()
    )
}

/// The owner of the file, if it is not ours. A file that is not JSON has no owner.
fn of_another(
    dir: &Dir,
    name: &str,
    original: &Original,
    attachment: &Attachment,
) -> Result<Option<Whose>> {
    let Some(content) = dir.read(name)? else {
        return Ok(None);
    };
    let info: Value = serde_json::from_slice(&content).unwrap_or_default();
    if let Some(named) = info.get(OWNER) {
        let text = |key: &str| {
            named
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or("?")
                .to_owned()
        };
        // As the version before named one of the RDMA device alone.
        let ifname = text("ifname").trim_end_matches(" (rdma)").to_owned();
        let named = Attachment {
            container_id: text("containerID"),
            ifname,
        };
        return Ok((named != *attachment).then_some(Whose::Of(named)));
    }
    let described = ["/pci/pci-address", "/vdpa/pci-address"]
        .iter()
        .find_map(|path| info.pointer(path)?.as_str());
    let other = described.filter(|id| {
        original.pci_id.as_deref() != Some(*id) && original.pf.as_deref() != Some(*id)
    });
    let of_other_type = || {
        let of_type = info
            .get("type")
            .and_then(Value::as_str)
            .filter(|of_type| !matches!(*of_type, "pci" | "vdpa"));
        of_type.map(|of_type| format!("a device of the type {of_type}"))
    };
    Ok(other
        .map(str::to_owned)
        .or_else(of_other_type)
        .map(Whose::About))
}

/// The folder, if it is there.
fn existing(dir: &Path) -> Result<Option<Dir>> {
    match Dir::open(dir) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("cannot open {}", dir.display())),
    }
}

fn errno_of(error: &anyhow::Error) -> Option<Errno> {
    let error = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>())?;
    error.raw_os_error().map(Errno::from_raw)
}

fn split(path: &Path) -> Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    path.parent()
        .zip(name)
        .with_context(|| format!("{} names no file", path.display()))
}
