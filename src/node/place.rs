//! Checks that the run directory is the host's. Leases and records in a container's own /run are
//! invisible to everybody else: an address would be given twice, and a DEL would find nothing.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs};

use super::Node;
use crate::netns::is_init_the_hosts;
use crate::{fail, failure};

/// The directories that contain the run directory by default, and the mounted namespaces.
const RUN: [&str; 2] = ["/run", "/var/run"];
const INIT_ROOT: &str = "/proc/1/root";

impl Node {
    /// Fails where the run directory provably belongs to a container. A run directory that is not
    /// below /run was chosen by the operator and is accepted. `netns` is CNI_NETNS.
    pub fn check_place(&self, netns: Option<&Path>) -> Result<()> {
        if !is_below_run(&self.run_dir) {
            return Ok(());
        }
        let nearest = self
            .run_dir
            .ancestors()
            .find_map(|path| path.canonicalize().ok());
        let nearest = nearest.unwrap_or_else(|| PathBuf::from("/"));
        self.check_directory(&nearest, netns).map_err(|error| {
            failure!(
                Io,
                "{error:#}: this process must see the host's {}, {} and, with the mount propagation \
                 HostToContainer, /run/netns: mount them, or run on the host",
                self.run_dir.display(),
                self.store_dir.display()
            )
        })
    }

    /// Fails if a search that found nothing may have looked in the wrong run directory: that of a
    /// container, or the default one in place of the one that an unreadable node.json names.
    pub fn confirm_nothing(&self, netns: Option<&Path>) -> Result<()> {
        if let Some(doubt) = &self.doubt {
            fail!(
                InvalidConfig,
                "{doubt}: nothing is in the default run directory, {}, and node.json may name \
                 another: correct it",
                self.run_dir.display()
            );
        }
        self.check_place(netns)
    }

    fn check_directory(&self, nearest: &Path, netns: Option<&Path>) -> Result<()> {
        let (run_dir, shown) = (self.run_dir.display(), nearest.display());
        let look = || format!("cannot look at {shown}");
        let ours = nearest.metadata().with_context(look)?;
        if Path::new(INIT_ROOT).metadata().is_ok() {
            // Symbolic links are resolved before, because they would lead out of the other root.
            let theirs = Path::new(INIT_ROOT).join(nearest.strip_prefix("/").unwrap_or(nearest));
            let theirs = theirs.metadata();
            let is_theirs = match &theirs {
                Ok(theirs) => (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()),
                Err(error) => {
                    !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
                }
            };
            if !is_theirs {
                fail!(
                    Io,
                    "runDir {run_dir}: {shown} is not the directory that process 1 sees"
                );
            }
            if theirs.is_ok() && is_init_the_hosts() {
                return Ok(());
            }
        }
        if statfs(nearest).with_context(look)?.filesystem_type() == OVERLAYFS_SUPER_MAGIC {
            fail!(
                Io,
                "runDir {run_dir}: {shown} is on an overlay file system, which belongs to a container"
            );
        }
        let Some(directory) = netns
            .and_then(directory_of)
            .filter(|directory| is_below_run(directory))
        else {
            return Ok(());
        };
        if directory
            .metadata()
            .is_ok_and(|directory| directory.dev() != ours.dev())
        {
            fail!(
                Io,
                "runDir {run_dir}: {shown} is on another file system than {}",
                directory.display()
            );
        }
        Ok(())
    }
}

fn is_below_run(path: &Path) -> bool {
    RUN.iter().any(|run| path.starts_with(run))
}

/// The directory of the file that a namespace is mounted on. The namespace itself is on a file
/// system of its own.
fn directory_of(netns: &Path) -> Option<PathBuf> {
    let real = netns.canonicalize().ok();
    let directory = real.as_deref().and_then(Path::parent).map(Path::to_owned);
    directory.or_else(|| netns.parent()?.canonicalize().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_directory_elsewhere_was_chosen() {
        let node = Node {
            run_dir: "/nonexistent/rail-cni".into(),
            ..Node::default()
        };
        assert!(
            node.check_place(Some(Path::new("/proc/self/ns/net")))
                .is_ok()
        );
    }
}
