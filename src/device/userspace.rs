//! Functions for programs in user space: whether a process has opened one already.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Result;
use nix::errno::Errno;

use crate::every_netns;
use crate::fail;
use crate::sysfs::Function;

/// Refuses a function that a virtual machine or another plugin's pod has, which no record of ours
/// tells. vfio opens a group for one at a time (vfio_group_fops_open, vfio_device_block_group). uio
/// does not tell.
pub fn refuse_held(what: &str, function: &Function) -> Result<()> {
    let Some(group) = function.iommu_group() else {
        return Ok(());
    };
    let path = Path::new("/dev/vfio").join(group);
    // Closed at once: nothing is asked of it.
    let is_held = match File::options().read(true).write(true).open(&path) {
        Ok(_) => false,
        Err(error) => error.raw_os_error() == Some(Errno::EBUSY as i32),
    };
    if !is_held {
        return Ok(());
    }
    let shown = path.display();
    match holder(&path) {
        Some(holder) => fail!(
            TryAgain,
            "{what} is held by {holder}, which has {shown} open: end that first"
        ),
        None => fail!(
            TryAgain,
            "{what} is held by a program that has {shown} open: end that first"
        ),
    }
}

/// `process 4711 (qemu-system-x86)`.
fn holder(path: &Path) -> Option<String> {
    let has_it = |process: &PathBuf| {
        let files = fs::read_dir(process.join("fd")).ok();
        let mut files = files
            .into_iter()
            .flatten()
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        files.any(|file| file == *path)
    };
    // The parent process may have handed the file down to this one.
    let ours = std::process::id().to_string();
    let mut others = every_netns::processes()
        .ok()?
        .into_iter()
        .filter(|process| !process.ends_with(&ours));
    let process = others.find(has_it)?;
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    Some(format!(
        "process {} ({})",
        process.file_name()?.to_str()?,
        name.trim()
    ))
}
