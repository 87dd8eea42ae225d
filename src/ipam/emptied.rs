//! A run directory that was emptied while pods were running, or exchanged for another one in
//! node.json. Their leases are gone, so no address is given until `railctl reap --rebuild` has found
//! those that are in use, and has made leases of them.
//!
//! Two marks show that. One is in the directory of leases since its first use, and disappears with
//! whatever empties it. The other is beside the run directory, names it, and stays until the next
//! boot. After a boot there is neither mark and no pod.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::lease::{Holder, Lease};
use super::migrate::migrate;
use super::names::{BEGUN, BEGUN_LOCK, Entry, FOLDER};
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
    use_from_now_on(node)?;
    leases.create_sub(BEGUN)?;
    Ok(leases)
}

/// Fails if the run directory was emptied, or exchanged in node.json, while pods had leases in it.
pub fn refuse(node: &Node) -> Result<()> {
    let Some(lost_run_dir) = lost_leases(node)? else {
        return Ok(());
    };
    let folder = lost_run_dir.join(FOLDER);
    let shown = folder.display();
    let what = if lost_run_dir == node.run_dir {
        format!("{shown} was emptied while pods were running")
    } else {
        format!("pods have leases in {shown}, and node.json has another runDir by now")
    };
    fail!(
        TryAgain,
        "{what}, and which addresses they have is not known: run `railctl reap --rebuild`"
    )
}

/// Whether leases of running pods were lost, and nothing was rebuilt since.
pub fn is_emptied(node: &Node) -> Result<bool> {
    Ok(lost_leases(node)?.is_some())
}

/// The run directory whose leases were lost: this one, emptied, or the one before.
fn lost_leases(node: &Node) -> Result<Option<PathBuf>> {
    let begun = node.run_dir.join(FOLDER).join(BEGUN);
    let is_begun = begun
        .try_exists()
        .with_context(|| format!("cannot look for {}", begun.display()))?;
    if is_begun {
        return Ok(None);
    }
    let Some(used) = last_used(node)? else {
        return Ok(None);
    };
    Ok((used == node.run_dir || has_leases(&used)?).then_some(used))
}

/// Whether pods have leases below this run directory, or had: it is gone.
fn has_leases(run_dir: &Path) -> Result<bool> {
    let Some(leases) = leases_in(run_dir)? else {
        return Ok(true);
    };
    let names = leases.names()?;
    Ok(names.iter().any(|name| Entry::parse(name).is_some()))
}

/// The directory of leases in a run directory, if it exists.
fn leases_in(run_dir: &Path) -> Result<Option<Dir>> {
    match Dir::open(run_dir) {
        Ok(run) => run.sub(FOLDER),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot open {}", run_dir.display())),
    }
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
    pub fn end(self, node: &Node) -> Result<()> {
        use_from_now_on(node)?;
        self.leases.create_sub(BEGUN).map(drop)
    }
}

/// The run directory that this node uses in this boot.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    boot_id: String,
    run_dir: PathBuf,
}

/// `/run/rail-cni.begun`, whatever the name of the run directory.
fn mark(run_dir: &Path) -> PathBuf {
    run_dir.with_file_name("rail-cni.begun")
}

/// The run directory that was last used in this boot.
fn last_used(node: &Node) -> Result<Option<PathBuf>> {
    let boot_id = files::boot_id()?;
    let Ok(content) = files::read(&mark(&node.run_dir)) else {
        return Ok(None);
    };
    // Before 0.2.0 was released, the mark was the boot alone.
    if content == boot_id.as_bytes() {
        return Ok(Some(node.run_dir.clone()));
    }
    let mark: Option<Mark> = serde_json::from_slice(&content).ok();
    let of_this_boot = mark.filter(|mark| mark.boot_id == boot_id);
    Ok(of_this_boot.map(|mark| mark.run_dir))
}

/// Marks the run directory as the one in use, and no other: whoever returns to that is told of the
/// leases of this one.
fn use_from_now_on(node: &Node) -> Result<()> {
    let run_dir = &node.run_dir;
    if let Some(before) = last_used(node)?.filter(|before| before != run_dir) {
        if let Some(leases) = leases_in(&before)? {
            leases.remove_empty(BEGUN);
        }
    }
    let content = serde_json::to_vec(&Mark {
        boot_id: files::boot_id()?.to_owned(),
        run_dir: run_dir.clone(),
    })?;
    let path = mark(run_dir);
    let directory = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let write = || Dir::open(directory)?.write(&name, &content);
    let written: Result<()> = write();
    // A container may have nothing but the run directory from the host.
    if let Err(error) = written {
        log::debug!(
            "{error:#}: rail-ipam will not notice if {} is emptied",
            run_dir.display()
        );
    }
    Ok(())
}
