//! The lock in the run directory: one agent runs on a node.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::fs::FlockOperation;

use crate::host::{Host, HostDir};
use crate::text::clean;

/// The name of the lock in the run directory.
pub const LOCK: &str = "agent.lock";

/// Locks out other agents on this node, which would write the same files, and `rail-agent
/// uninstall`. Returns the holder's description if the lock is taken.
pub fn try_lock(dir: &HostDir, pod: Option<&str>) -> Result<Result<File, String>> {
    let path = dir.at(LOCK);
    let open = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    let mut file = open.with_context(|| format!("cannot open {} on the host", dir.shown(LOCK)))?;
    if let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(error)
                .with_context(|| format!("cannot lock {} on the host", dir.shown(LOCK)));
        }
        return Ok(Err(clean(
            &std::fs::read_to_string(&path).unwrap_or_default(),
        )));
    }
    file.set_len(0)?;
    write!(
        file,
        "process {} of pod {}",
        std::process::id(),
        pod.unwrap_or("-")
    )?;
    Ok(Ok(file))
}

/// Creates the run directory as the plugins do, and takes its lock.
pub fn acquire(
    host: &Host,
    path: &Path,
    pod: Option<&str>,
) -> Result<(HostDir, Result<File, String>)> {
    let dir = host.make_dir(path, 0o700)?;
    let lock = try_lock(&dir, pod)?;
    Ok((dir, lock))
}
