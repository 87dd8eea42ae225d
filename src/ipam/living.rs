//! Recovers from a run directory that was emptied while pods were running. Their leases are gone, so rail-ipam
//! reads the addresses from their namespaces, and assigns none twice.
//!
//! Two marks show that the directory was emptied. One is in the directory of leases since its first use, and disappears
//! with whatever empties it. The other is beside the run directory, and stays until the next boot. After a boot there is
//! neither mark and no pod. Then no namespace is asked, because a pod may claim any address, and is believed only when
//! there is no other way.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::lease::FOLDER;
use crate::every_netns::{self, Seen, Which};
use crate::files::{self, Dir};
use crate::node::Node;
use rail_netlink::{address, link};

/// A directory in that of leases, which 0.1.0 takes for a node without pools. No name of a node begins with `_`, and
/// the `*` of a shell matches it.
pub const BEGUN: &str = "_begun";
/// The file in the run directory with the addresses that were found when the leases were gone.
const LIST: &str = "living.json";
const LOCK: &str = "living.lock";
const PATIENCE: Duration = Duration::from_secs(10);
/// The time limit for namespaces that only processes refer to.
const LOOK: Duration = Duration::from_secs(5);
/// A pod can give itself any number of addresses, of which this many count.
const MOST: usize = 4096;

/// An address that a pod has, perhaps without a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Living {
    /// The address.
    pub address: IpAddr,
    /// The name of the interface.
    pub ifname: String,
    /// A path of its network namespace.
    pub netns: PathBuf,
}

impl std::fmt::Display for Living {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Living { address, ifname, netns } = self;
        write!(f, "{address} is used by {ifname} in the namespace {}", netns.display())
    }
}

/// The addresses in `prefixes` that pods had when the leases were gone. Almost always empty, and then no namespace is
/// asked. Call it before a lease is chosen.
pub fn within(node: &Node, prefixes: &[IpNet]) -> Result<Vec<Living>> {
    let run = Dir::create(&node.run_dir)?;
    let leases = run.create_sub(FOLDER)?;
    let is_asked = |living: &Living| prefixes.iter().any(|prefix| prefix.contains(&living.address));
    let is_known = |list: Option<Vec<Living>>| list.is_some_and(|list| !list.iter().any(is_asked));
    if leases.sub(BEGUN)?.is_some() && is_known(read(&run)?) {
        return Ok(Vec::new());
    }
    let _lock = run.lock(LOCK, PATIENCE)?;
    let is_begun = leases.sub(BEGUN)?.is_some();
    // The call that had the lock before this one may have settled it: the first calls of a boot come together.
    if is_begun && is_known(read(&run)?) {
        return Ok(Vec::new());
    }
    if !is_begun && !was_used(&node.run_dir)? {
        mark_used(&node.run_dir)?;
        leases.create_sub(BEGUN)?;
        return Ok(Vec::new());
    }
    // Those of the list may have ended since.
    let (living, seen) = look()?;
    if !is_begun {
        log::warn!(
            "{} was emptied while pods may live: their namespaces have {} addresses, which no other pod will get",
            leases.path().display(),
            living.len()
        );
    }
    run.write(LIST, &serde_json::to_vec(&living)?)?;
    match seen {
        Seen::All => drop(leases.create_sub(BEGUN)?),
        // The next call looks again.
        Seen::Part => {
            log::warn!("the search for addresses of pods ended before every namespace was examined")
        }
    }
    Ok(living.into_iter().filter(is_asked).collect())
}

/// The addresses on the list, for `status` and `doctor`. They may have no lease, and may be gone by now.
pub fn known(node: &Node) -> Result<Vec<Living>> {
    let Some(run) = node.existing_run_dir()? else { return Ok(Vec::new()) };
    Ok(read(&run)?.unwrap_or_default())
}

/// Whether the run directory was emptied, and no ADD has run since.
pub fn is_emptied(node: &Node) -> Result<bool> {
    let leases = node.existing_run(FOLDER)?;
    let begun = leases.map_or(Ok(None), |leases| leases.sub(BEGUN))?;
    Ok(begun.is_none() && was_used(&node.run_dir)?)
}

/// The list; `None` if it is damaged. There is no file as long as no lease was lost.
fn read(run: &Dir) -> Result<Option<Vec<Living>>> {
    let Some(list) = run.read(LIST)? else { return Ok(Some(Vec::new())) };
    Ok(serde_json::from_slice(&list).ok())
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
    let (directory, name) = (path.parent().unwrap_or(Path::new("/")), path.file_name().unwrap_or_default());
    let write = || Dir::open(directory)?.write(&name.to_string_lossy(), files::boot_id()?.as_bytes());
    // A container may have nothing but the run directory from the host.
    write().or_else(|error: anyhow::Error| {
        log::debug!("{error:#}: rail-ipam will not notice if {} is emptied", run_dir.display());
        Ok(())
    })
}

/// The addresses of every namespace but the plugin's own.
fn look() -> Result<(Vec<Living>, Seen)> {
    let (mut found, mut is_whole) = (Vec::new(), true);
    let seen = every_netns::visit(Which::All, Instant::now() + LOOK, |socket, netns| {
        let addresses = address::in_namespace(socket).unwrap_or_else(|error| {
            log::warn!("{} cannot be asked: {error:#}", netns.display());
            is_whole = false;
            Vec::new()
        });
        let addresses =
            addresses.into_iter().filter(|(_, one)| !one.is_link_local() && !one.net.addr().is_loopback());
        for (index, one) in addresses.take(MOST) {
            let ifname = link::by_index(socket, index)?.map_or_else(|| index.to_string(), |link| link.name);
            found.push(Living { address: one.net.addr(), ifname, netns: netns.to_owned() });
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((found, if is_whole { seen } else { Seen::Part }))
}
