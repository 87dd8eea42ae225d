//! Network namespaces: which one a path names, and work inside it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::statfs::{FsType, fstatfs};
use serde::{Deserialize, Serialize};

use crate::{fail, failure};

/// Magic number of nsfs (linux/magic.h).
const NSFS_MAGIC: FsType = FsType(0x6e73_6673);

/// An open network namespace.
#[derive(Debug)]
pub struct Netns {
    file: File,
    path: PathBuf,
}

impl Netns {
    /// Opens what CNI_NETNS names; code 8 when it is no network namespace.
    pub fn open(path: &Path) -> Result<Netns> {
        let shown = path.display();
        let file = File::open(path).map_err(|error| failure!(InvalidNetns, "CNI_NETNS {shown}: {error}"))?;
        match fstatfs(&file) {
            Ok(fs) if fs.filesystem_type() == NSFS_MAGIC => Ok(Netns { file, path: path.to_owned() }),
            Ok(_) => fail!(
                InvalidNetns,
                "CNI_NETNS {shown} is no namespace: the file that it was bound to is left"
            ),
            Err(errno) => fail!(InvalidNetns, "CNI_NETNS {shown}: {errno}"),
        }
    }

    /// The namespace of this process, which for a plugin is the host's.
    pub fn current() -> Result<Netns> {
        let path = Path::new("/proc/self/ns/net");
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Netns { file, path: path.to_owned() })
    }

    /// Are both the same namespace?
    pub fn is(&self, other: &Netns) -> Result<bool> {
        let (one, two) = (self.file.metadata()?, other.file.metadata()?);
        Ok((one.dev(), one.ino()) == (two.dev(), two.ino()))
    }

    /// Runs `work` on a thread of its own inside the namespace, so that no way out of it leaves this one
    /// there. In `work`, /proc/sys/net is the namespace's; /sys and /proc/net are still the host's.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let enter = || -> Result<T> {
            setns(&self.file, CloneFlags::CLONE_NEWNET)
                .map_err(|errno| failure!(InvalidNetns, "cannot enter {}: {errno}", self.path.display()))?;
            work()
        };
        let ended = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, enter);
            thread.map(|thread| thread.join())
        });
        match ended.context("cannot start a thread")? {
            Ok(done) => done,
            Err(_) => fail!(Internal, "a thread in {} panicked", self.path.display()),
        }
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Which namespace a path names. The inode number alone may be given again to a later namespace; the
/// nsfs inode behind a bind mount lives as long as the mount, so its time of creation tells two apart.
/// /proc makes that inode anew at each look: there only the number counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetnsId {
    /// CNI_NETNS.
    pub path: PathBuf,
    /// Device of the inode.
    pub dev: u64,
    /// The number that `ls -L /proc/PID/ns/net` shows.
    pub ino: u64,
    /// Nanoseconds, of the inode; 0 below /proc.
    pub created: i64,
}

/// Do both paths name one namespace now? Looked at, not opened: an IPAM plugin has no business there.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| NetnsId::of(path).ok().flatten().map(|id| (id.dev, id.ino));
    id(one).is_some_and(|one| id(other) == Some(one))
}

impl NetnsId {
    /// The namespace that `path` names now; `None` when the path is gone.
    pub fn of(path: &Path) -> io::Result<Option<NetnsId>> {
        match path.metadata() {
            Ok(meta) => {
                let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
                let created = meta.ctime().wrapping_mul(1_000_000_000).wrapping_add(meta.ctime_nsec());
                let created = if real.starts_with("/proc") { 0 } else { created };
                Ok(Some(NetnsId { path: path.to_owned(), dev: meta.dev(), ino: meta.ino(), created }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            // A path through something that is no folder names nothing either.
            Err(error) if error.raw_os_error() == Some(Errno::ENOTDIR as i32) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Does its path still name it? An error counts as yes: nothing is taken from who might be alive.
    pub fn is_alive(&self) -> bool {
        NetnsId::of(&self.path).map_or(true, |now| now.as_ref() == Some(self))
    }
}
