//! A run directory that was emptied while pods were running. Their leases are gone, so no address
//! is given until `railctl reap --rebuild` has found those that are in use, and has made leases of
//! them.
//!
//! Two marks show that the directory was emptied. One is in the directory of leases since its first
//! use, and disappears with whatever empties it. The other is beside the run directory, and stays
//! until the next boot. After a boot there is neither mark and no pod.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::lease::{Holder, Lease};
use super::migrate::migrate;
use super::names::{BEGUN, BEGUN_LOCK, FOLDER};
use crate::fail;
use crate::files::{self, Dir, Lock};
use crate::netns::NetnsId;
use crate::node::Node;

const PATIENCE: Duration = Duration::from_secs(10);

/// Opens the directory of leases, and notes its first use of this boot, before a lease is chosen.
/// Fails if the run directory was emptied.
pub fn begin(node: &Node) -> Result<Dir> {
    let run = Dir::create(&node.run_dir)?;
    let leases = run.create_sub(FOLDER)?;
    migrate(&run, &leases)?;
    if leases.sub(BEGUN)?.is_some() {
        return Ok(leases);
    }
    // The first calls of a boot come together.
    let _lock = run.lock(BEGUN_LOCK, PATIENCE)?;
    refuse(node)?;
    mark_used(&node.run_dir)?;
    leases.create_sub(BEGUN)?;
    Ok(leases)
}

/// Fails if the run directory was emptied.
pub fn refuse(node: &Node) -> Result<()> {
    if is_emptied(node)? {
        fail!(
            TryAgain,
            "{} was emptied while pods were running, and which addresses they have is not known: run `railctl reap --rebuild`",
            node.run_dir.join(FOLDER).display()
        );
    }
    Ok(())
}

/// Whether the run directory was emptied, and nothing was rebuilt since.
pub fn is_emptied(node: &Node) -> Result<bool> {
    let begun = node.run_dir.join(FOLDER).join(BEGUN);
    let is_begun = begun
        .try_exists()
        .with_context(|| format!("cannot look for {}", begun.display()))?;
    Ok(!is_begun && was_used(&node.run_dir)?)
}

/// An address that was found in a pod whose lease is gone.
#[derive(Clone, Debug)]
pub struct Found {
    /// The address.
    pub address: IpAddr,
    /// The name of the interface.
    pub ifname: String,
    /// Its namespace.
    pub netns: NetnsId,
}

/// An emptied run directory whose leases are being rebuilt.
#[derive(Debug)]
pub struct Rebuilding {
    leases: Dir,
    _lock: Lock,
}

impl Rebuilding {
    /// Begins, unless the directory was not emptied, or another process has rebuilt it.
    pub fn begin(node: &Node) -> Result<Option<Rebuilding>> {
        let run = Dir::create(&node.run_dir)?;
        let leases = run.create_sub(FOLDER)?;
        migrate(&run, &leases)?;
        let _lock = run.lock(BEGUN_LOCK, PATIENCE)?;
        Ok(is_emptied(node)?.then_some(Rebuilding { leases, _lock }))
    }

    /// Makes leases of addresses that were found.
    pub fn lease(&self, found: &[Found]) -> Result<()> {
        for one in found {
            let holder = Holder::rebuilt(&one.netns, &one.ifname);
            let lease = Lease::new(holder, one.address, "", "")?;
            let content = serde_json::to_vec(&lease)?;
            self.leases.write(&lease.file_name(), &content)?;
        }
        Ok(())
    }

    /// Every address in use has a lease: ADD may give others.
    pub fn end(self) -> Result<()> {
        self.leases.create_sub(BEGUN).map(drop)
    }
}

/// `/run/rail-cni.begun`.
fn mark(run_dir: &Path) -> PathBuf {
    let mut name = run_dir.file_name().unwrap_or_default().to_owned();
    name.push(".begun");
    run_dir.with_file_name(name)
}

/// Whether the run directory was used in this boot.
fn was_used(run_dir: &Path) -> Result<bool> {
    let boot_id = files::boot_id()?;
    Ok(files::read(&mark(run_dir)).is_ok_and(|mark| mark == boot_id.as_bytes()))
}

fn mark_used(run_dir: &Path) -> Result<()> {
    let path = mark(run_dir);
    let (directory, name) = (
        path.parent().unwrap_or(Path::new("/")),
        path.file_name().unwrap_or_default(),
    );
    let write =
        || Dir::open(directory)?.write(&name.to_string_lossy(), files::boot_id()?.as_bytes());
    // A container may have nothing but the run directory from the host.
    write().or_else(|error: anyhow::Error| {
        log::debug!(
            "{error:#}: rail-ipam will not notice if {} is emptied",
            run_dir.display()
        );
        Ok(())
    })
}
