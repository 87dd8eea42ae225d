//! Network namespaces: which one a path names, and work inside it.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns};
use nix::sys::statfs::{FsType, fstatfs};
use serde::{Deserialize, Serialize};

use crate::{fail, failure};

/// Magic number of nsfs (linux/magic.h).
const NSFS_MAGIC: FsType = FsType(0x6e73_6673);
const OURS: &str = "/proc/self/ns/net";
const PROC: &str = "/proc";

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
        // A FIFO would wait for who writes to it.
        let file = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
        let file = file.map_err(|error| failure!(InvalidNetns, "CNI_NETNS {shown}: {error}"))?;
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
        let path = Path::new(OURS);
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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NetnsId {
    /// CNI_NETNS.
    pub path: PathBuf,
    /// Device of the inode.
    pub dev: u64,
    /// The number that `ls -L /proc/PID/ns/net` shows.
    pub ino: u64,
    /// Nanoseconds, of the inode; 0 below /proc.
    pub created: i64,
    /// Device and inode of the folder that the path is in, below /proc those of /proc itself. Who has another
    /// folder in that place, as a container with its own /run, cannot tell from the path what lives. Rail-cni
    /// 0.1.0 did not take it down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    folder: Option<(u64, u64)>,
}

/// A process that a namespace lives by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Leads to the namespace.
    pub path: PathBuf,
}

/// The same namespace under the same path, wherever it was seen from.
impl PartialEq for NetnsId {
    fn eq(&self, other: &NetnsId) -> bool {
        (&self.path, self.dev, self.ino, self.created) == (&other.path, other.dev, other.ino, other.created)
    }
}

impl Eq for NetnsId {}

/// What can be told of a namespace. Only what the dead had is taken from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its path names it.
    Alive,
    /// Its path is gone or names another one, and we see what its ADD saw.
    Dead,
    /// Why it cannot be told, for people.
    Unknown(String),
}

/// Do both paths name one namespace now? Looked at, not opened: an IPAM plugin has no business there.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| look(path).ok().flatten().map(|meta| (meta.dev(), meta.ino()));
    id(one).is_some_and(|one| id(other) == Some(one))
}

impl NetnsId {
    /// The namespace that `path` names now; `None` when the path is gone.
    pub fn of(path: &Path) -> io::Result<Option<NetnsId>> {
        let Some(meta) = look(path)? else { return Ok(None) };
        // A name cannot be resolved that ends in /proc/PID/ns: those links are followed by the kernel alone.
        let is_of_process = path.canonicalize().map_or(true, |real| real.starts_with(PROC));
        let created = if is_of_process { 0 } else { created(&meta) };
        let mut id =
            NetnsId { path: path.to_owned(), dev: meta.dev(), ino: meta.ino(), created, folder: None };
        id.folder = id.folder().metadata().ok().map(|folder| (folder.dev(), folder.ino()));
        Ok(Some(id))
    }

    /// Does its path still name it? What is no namespace tells nothing: a mount namespace that does not see the
    /// mount sees the empty file below it.
    pub fn life(&self) -> Life {
        let shown = self.path.display();
        match (look(&self.path), nsfs()) {
            (Err(error), _) => Life::Unknown(format!("{shown}: {error}")),
            (_, Err(error)) => Life::Unknown(format!("{OURS}: {error}")),
            (Ok(Some(meta)), Ok(nsfs)) if meta.dev() != nsfs => {
                Life::Unknown(format!("{shown} is no namespace here: the file that one is bound to is seen"))
            }
            (Ok(Some(meta)), Ok(_)) if self.is_seen_in(&meta) => Life::Alive,
            (Ok(_), Ok(_)) => self.life_without_its_path(),
        }
    }

    /// The processes that keep it, in it or with a file of it open, each with a path to it. None where they cannot be
    /// looked at. The number may be another's by now: look into it before anything is done.
    pub fn keepers(&self) -> Vec<Keeper> {
        // Its inode is made anew for who looks without the path, so that the time tells nothing.
        let is = |meta: Metadata| (self.dev, self.ino) == (meta.dev(), meta.ino());
        let is_it = |path: &PathBuf| look(path).is_ok_and(|meta| meta.is_some_and(is));
        let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
        let mut keepers = Vec::new();
        for process in entries(Path::new(PROC)) {
            let (folder, name) = (process.path(), process.file_name());
            let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let files = entries(&folder.join("fd")).map(|file| file.path());
            if let Some(path) = [folder.join("ns/net")].into_iter().chain(files).find(is_it) {
                let name = std::fs::read_to_string(folder.join("comm")).unwrap_or_default();
                keepers.push(Keeper { id, name: name.trim().to_owned(), path });
            }
        }
        keepers
    }

    fn is_seen_in(&self, meta: &Metadata) -> bool {
        let is_as_old = self.created == 0 || self.created == created(meta);
        (self.dev, self.ino) == (meta.dev(), meta.ino()) && is_as_old
    }

    /// The path names it no more. That is its end where we look into the folder that its ADD looked into.
    fn life_without_its_path(&self) -> Life {
        let folder = self.folder();
        let shown = folder.display();
        match (self.folder, folder.metadata()) {
            (None, _) if is_mount_namespace_of_init() => Life::Dead,
            (None, _) => Life::Unknown(format!(
                "{} is noted as rail-cni 0.1.0 did, and this is not provably the mount namespace of process 1",
                self.path.display()
            )),
            (Some(_), Err(error)) => Life::Unknown(format!("{shown}: {error}")),
            (Some(then), Ok(now)) if then != (now.dev(), now.ino()) => Life::Unknown(format!(
                "{shown} is another folder than at ADD: this is another mount namespace or a container"
            )),
            // With the mount option hidepid, /proc has only what the caller may look at.
            (Some(_), Ok(_)) if self.created == 0 && folder != Path::new(PROC) => {
                Life::Unknown(format!("{} is a link to a process, in whatever /proc", self.path.display()))
            }
            (Some(_), Ok(_)) if self.created == 0 && !Path::new("/proc/1").exists() => {
                Life::Unknown(format!("{shown} hides processes from this one"))
            }
            (Some(_), Ok(_)) => Life::Dead,
        }
    }

    /// Where the path is looked up. Below /proc the folder goes with the process.
    fn folder(&self) -> &Path {
        match self.path.parent() {
            Some(folder) if !self.path.starts_with(PROC) => folder,
            _ => Path::new(PROC),
        }
    }
}

/// Metadata of what `path` leads to; `None` when it leads nowhere.
fn look(path: &Path) -> io::Result<Option<Metadata>> {
    match path.metadata() {
        Ok(meta) => Ok(Some(meta)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // A path through something that is no folder names nothing either.
        Err(error) if error.raw_os_error() == Some(Errno::ENOTDIR as i32) => Ok(None),
        Err(error) => Err(error),
    }
}

fn created(meta: &Metadata) -> i64 {
    meta.ctime().wrapping_mul(1_000_000_000).wrapping_add(meta.ctime_nsec())
}

/// The device of every namespace's inode: the kernel has one nsfs (`nsfs_init`).
fn nsfs() -> io::Result<u64> {
    static NSFS: OnceLock<u64> = OnceLock::new();
    if let Some(dev) = NSFS.get() {
        return Ok(*dev);
    }
    let dev = Path::new(OURS).metadata()?.dev();
    Ok(*NSFS.get_or_init(|| dev))
}

/// Do we provably see the files that the host's first process sees?
fn is_mount_namespace_of_init() -> bool {
    is_init_the_hosts() && is_same(Path::new("/proc/self/ns/mnt"), Path::new("/proc/1/ns/mnt"))
}

/// Is /proc/1 the host's first process, and not a container's?
pub fn is_init_the_hosts() -> bool {
    /// The initial PID namespace (PROC_PID_INIT_INO in linux/proc_ns.h).
    const INITIAL: u64 = 0xefff_fffc;
    Path::new("/proc/self/ns/pid").metadata().is_ok_and(|meta| meta.ino() == INITIAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A namespace that is there, as if it had been bound to `path`.
    fn bound_to(path: &Path, folder: Option<(u64, u64)>) -> NetnsId {
        let ours = NetnsId::of(Path::new(OURS)).unwrap().unwrap();
        NetnsId { path: path.to_owned(), created: 1, folder, ..ours }
    }

    fn id(path: &Path) -> Option<(u64, u64)> {
        path.metadata().ok().map(|meta| (meta.dev(), meta.ino()))
    }

    #[track_caller]
    fn is_unknown(id: &NetnsId, why: &str) {
        match id.life() {
            Life::Unknown(told) => assert!(told.contains(why), "no {why:?} in {told:?}"),
            life => panic!("{life:?}, not {why:?}"),
        }
    }

    #[test]
    fn a_namespace_is_alive_while_its_path_names_it() {
        let ours = NetnsId::of(Path::new(OURS)).unwrap().unwrap();
        assert_eq!(ours.life(), Life::Alive);
        let reused = NetnsId { ino: ours.ino + 1, ..ours };
        assert_eq!(reused.life(), Life::Dead);
    }

    #[test]
    fn what_is_gone_from_the_folder_of_its_add_is_dead() {
        let temp = tempfile::tempdir().unwrap();
        let gone = bound_to(&temp.path().join("gone"), id(temp.path()));
        assert_eq!(gone.life(), Life::Dead);
        let link = temp.path().join("link");
        std::os::unix::fs::symlink("/proc/self/ns/uts", &link).unwrap();
        assert_eq!(bound_to(&link, id(temp.path())).life(), Life::Dead);
    }

    /// Of a process that has ended, seen in the same /proc.
    #[test]
    fn a_namespace_below_proc_ends_with_its_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let path = PathBuf::from(format!("/proc/{}/ns/net", child.id()));
        let of_child = NetnsId::of(&path).unwrap().unwrap();
        assert_eq!((of_child.created, of_child.life()), (0, Life::Alive));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(of_child.life(), Life::Dead);
        is_unknown(&NetnsId { folder: id(Path::new("/")), ..of_child }, "another folder than at ADD");
    }

    #[test]
    fn what_cannot_be_seen_is_not_dead() {
        let temp = tempfile::tempdir().unwrap();
        let (file, gone) = (temp.path().join("file"), temp.path().join("gone"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("loop", temp.path().join("loop")).unwrap();
        let here = id(temp.path());
        is_unknown(&bound_to(&file, here), "no namespace here");
        is_unknown(&bound_to(&temp.path().join("loop"), here), "symbolic links");
        is_unknown(&bound_to(&gone, id(Path::new("/"))), "another folder than at ADD");
        is_unknown(&bound_to(&temp.path().join("no/folder"), here), "/no: ");
        if !is_mount_namespace_of_init() {
            is_unknown(&bound_to(&gone, None), "0.1.0");
        }
    }

    /// Records and leases outlive an upgrade.
    #[test]
    fn what_0_1_0_wrote_is_read_and_is_the_same_namespace() {
        let ours = NetnsId::of(Path::new(OURS)).unwrap().unwrap();
        let mut old = serde_json::to_value(&ours).unwrap();
        assert!(old.as_object_mut().unwrap().remove("folder").is_some());
        let old: NetnsId = serde_json::from_value(old).unwrap();
        assert_eq!((old == ours, old.life()), (true, Life::Alive));
    }
}
// x
