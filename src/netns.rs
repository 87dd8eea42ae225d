//! Network namespaces: opening the one that a path names, running code in it, telling two apart,
//! and finding out whether one still exists.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{FsType, fstatfs};
use serde::{Deserialize, Serialize};

use crate::{fail, failure, watchdog};
use rail_netlink::Socket;

/// Magic number of nsfs (linux/magic.h).
const NSFS_MAGIC: FsType = FsType(0x6e73_6673);
const OURS: &str = "/proc/self/ns/net";
/// /proc/self is the first thread of the process.
const OF_THREAD: &str = "/proc/thread-self/ns/net";
const PROC: &str = "/proc";

/// An open network namespace.
#[derive(Debug)]
pub struct Netns {
    file: File,
    path: PathBuf,
}

impl Netns {
    /// Opens the network namespace that CNI_NETNS names. Fails with error code 8 when the path does
    /// not name one.
    pub fn open(path: &Path) -> Result<Netns> {
        let shown = path.display();
        // Without O_NONBLOCK, opening a FIFO would wait for a writer.
        let file = File::options()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(path);
        let file = file.map_err(|error| failure!(InvalidNetns, "CNI_NETNS {shown}: {error}"))?;
        match fstatfs(&file) {
            Ok(fs) if fs.filesystem_type() == NSFS_MAGIC => Ok(Netns {
                file,
                path: path.to_owned(),
            }),
            Ok(_) => fail!(
                InvalidNetns,
                "CNI_NETNS {shown} is a plain file here: either the runtime unmounted the namespace, and \
                 must make a new sandbox, or this process cannot see the mount: it needs the host's \
                 /run/netns with the mount propagation HostToContainer"
            ),
            Err(errno) => fail!(InvalidNetns, "CNI_NETNS {shown}: {errno}"),
        }
    }

    /// The namespace of this process, which for a plugin is the host's.
    pub fn current() -> Result<Netns> {
        let path = Path::new(OURS);
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Netns {
            file,
            path: path.to_owned(),
        })
    }

    /// Whether both are the same namespace.
    pub fn is(&self, other: &Netns) -> Result<bool> {
        let (one, two) = (self.file.metadata()?, other.file.metadata()?);
        Ok((one.dev(), one.ino()) == (two.dev(), two.ino()))
    }

    /// Runs `work` inside the namespace. However it ends, the calling thread is back in its own
    /// namespace then; where the kernel refuses that, the process ends at once, as by SIGKILL,
    /// because all that it did next would be done to the pod. In `work`, /proc/thread-self and
    /// /proc/sys/net belong to the namespace; /sys still belongs to the host.
    pub fn run<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let home = File::open(OF_THREAD).with_context(|| format!("cannot open {OF_THREAD}"))?;
        // A process with rights over the other namespace alone, as in a container of its own user
        // namespace, could not come back.
        setns(&home, CloneFlags::CLONE_NEWNET)
            .context("this process could not return to its own network namespace")?;
        setns(&self.file, CloneFlags::CLONE_NEWNET).map_err(|errno| {
            failure!(
                InvalidNetns,
                "cannot enter {}: {errno}",
                self.path.display()
            )
        })?;
        let _back = Back(home);
        work()
    }
}

/// Takes the thread back to the namespace that it came from, also where the work panicked.
struct Back(File);

impl Drop for Back {
    fn drop(&mut self) {
        if let Err(errno) = setns(&self.0, CloneFlags::CLONE_NEWNET) {
            watchdog::give_up(format!(
                "cannot return from the namespace of a pod: {errno}"
            ));
        }
    }
}

/// Makes a network namespace that has no name, and takes the calling thread into it. It ends with
/// the last file of it, its last socket and the last thread in it, however the process ends.
pub fn unnamed() -> Result<File> {
    unshare(CloneFlags::CLONE_NEWNET).context("cannot make a network namespace")?;
    File::open(OF_THREAD).with_context(|| format!("cannot open {OF_THREAD}"))
}

/// The namespace of a pod, with a socket in it.
#[derive(Debug)]
pub struct Pod {
    /// The namespace.
    pub netns: Netns,
    /// A socket in it.
    pub socket: Socket,
}

impl Pod {
    /// Opens a socket in the namespace.
    pub fn open(netns: Netns) -> Result<Pod> {
        Ok(Pod {
            socket: netns.run(Socket::open)?,
            netns,
        })
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The identity of the namespace that a path named at one time. The kernel may give the inode
/// number of a namespace to a later one. The nsfs inode behind a bind mount lives as long as the
/// mount, so its time of creation tells two namespaces apart. /proc makes a new inode at each look,
/// so below /proc only the number counts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NetnsId {
    /// The path, as in CNI_NETNS.
    pub path: PathBuf,
    /// Device of the inode.
    pub dev: u64,
    /// Inode number; `ls -L /proc/PID/ns/net` shows it.
    pub ino: u64,
    /// Time of creation of the inode in nanoseconds; 0 below /proc.
    pub created: i64,
    /// Device and inode of the directory that contains the path; below /proc, those of /proc
    /// itself. A process that sees another directory in that place, as a container with its own
    /// /run, cannot tell from the path whether the namespace exists.
    #[serde(rename = "folder")]
    directory: (u64, u64),
}

/// A sandbox of a pod. In one pod's life a runtime may make another, without a DEL for the first.
#[derive(Clone, Copy, Debug)]
pub struct Sandbox<'a> {
    /// UID of the pod, where the runtime told it.
    pub pod_uid: Option<&'a str>,
    /// CNI_CONTAINERID.
    pub container_id: &'a str,
    /// Its namespace, if it has one.
    pub netns: Option<&'a NetnsId>,
}

impl Sandbox<'_> {
    /// Whether `now` is a newer sandbox of this one's pod. By the age of the namespace, so that a
    /// late call for the old one takes nothing from the new one.
    pub fn is_replaced_by(&self, now: &Sandbox) -> bool {
        let is_of_one_pod = self.pod_uid.is_some() && self.pod_uid == now.pod_uid;
        let is_older = match (self.netns, now.netns) {
            (Some(then), Some(now)) => then.is_older_than(now),
            _ => false,
        };
        is_of_one_pod && is_older && self.container_id != now.container_id
    }
}

/// A process that keeps a namespace in existence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    /// Process id.
    pub id: u32,
    /// Name of the process.
    pub name: String,
    /// Path in /proc that leads to the namespace.
    pub path: PathBuf,
}

/// Two are equal if they are the same namespace under the same path, from wherever it was seen.
impl PartialEq for NetnsId {
    fn eq(&self, other: &NetnsId) -> bool {
        (&self.path, self.dev, self.ino, self.created)
            == (&other.path, other.dev, other.ino, other.created)
    }
}

impl Eq for NetnsId {}

/// Whether a namespace exists. Nothing may be taken from a holder unless its namespace is
/// [`Life::Dead`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// The path names the namespace.
    Alive,
    /// The path is gone or names another namespace, and this process sees the files that the ADD
    /// saw.
    Dead,
    /// It cannot be known; the text says why.
    Unknown(String),
}

/// Whether both paths name the same namespace now. They are not opened, because an IPAM plugin must
/// not enter the pod's namespace.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| {
        look(path)
            .ok()
            .flatten()
            .map(|meta| (meta.dev(), meta.ino()))
    };
    id(one).is_some_and(|one| id(other) == Some(one))
}

impl NetnsId {
    /// The namespace that `path` names now; `None` when the path does not exist.
    pub fn of(path: &Path) -> io::Result<Option<NetnsId>> {
        let Some(meta) = look(path)? else {
            return Ok(None);
        };
        let is_of_process = match path.canonicalize() {
            Ok(real) => real.starts_with(PROC),
            // A path that ends in /proc/PID/ns cannot be resolved further: only the kernel follows
            // those links.
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            // Taken for one of those, it would look like another namespace than before.
            Err(error) => return Err(error),
        };
        let created = if is_of_process { 0 } else { created(&meta) };
        let directory = directory_of(path).metadata()?;
        let directory = (directory.dev(), directory.ino());
        Ok(Some(NetnsId {
            path: path.to_owned(),
            dev: meta.dev(),
            ino: meta.ino(),
            created,
            directory,
        }))
    }

    /// Whether the namespace still exists. A path to something else than a namespace proves
    /// nothing: a mount namespace that does not have the mount sees the empty file below it.
    pub fn life(&self) -> Life {
        let shown = self.path.display();
        match (look(&self.path), nsfs()) {
            (Err(error), _) => Life::Unknown(format!("{shown}: {error}")),
            (_, Err(error)) => Life::Unknown(format!("{OURS}: {error}")),
            (Ok(Some(meta)), Ok(nsfs)) if meta.dev() != nsfs => Life::Unknown(format!(
                "{shown} is a plain file here: the namespace that is mounted on it cannot be seen"
            )),
            (Ok(Some(meta)), Ok(_)) if self.is_seen_in(&meta) => Life::Alive,
            (Ok(_), Ok(_)) => self.life_without_its_path(),
        }
    }

    /// The processes that keep the namespace in existence, because they are in it or have a file of
    /// it open. The list is empty where processes cannot be inspected. The inode number may belong
    /// to a later namespace by now, so look into it before you act on it.
    pub fn keepers(&self) -> Vec<Keeper> {
        // Below /proc the inode is made anew at each look, so its time of creation says nothing.
        let is = |meta: Metadata| (self.dev, self.ino) == (meta.dev(), meta.ino());
        let is_it = |path: &PathBuf| path.metadata().is_ok_and(is);
        let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
        let mut keepers = Vec::new();
        for process in entries(Path::new(PROC)) {
            let (directory, name) = (process.path(), process.file_name());
            let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let files = entries(&directory.join("fd")).map(|file| file.path());
            if let Some(path) = [directory.join("ns/net")]
                .into_iter()
                .chain(files)
                .find(is_it)
            {
                let name = std::fs::read_to_string(directory.join("comm")).unwrap_or_default();
                keepers.push(Keeper {
                    id,
                    name: name.trim().to_owned(),
                    path,
                });
            }
        }
        keepers
    }

    /// Whether this namespace was certainly there before `other`. Below /proc no age is known.
    pub fn is_older_than(&self, other: &NetnsId) -> bool {
        self.created != 0 && self.created < other.created
    }

    fn is_seen_in(&self, meta: &Metadata) -> bool {
        let is_as_old = self.created == 0 || self.created == created(meta);
        (self.dev, self.ino) == (meta.dev(), meta.ino()) && is_as_old
    }

    /// Decides for a path that does not name the namespace any more. The namespace is dead if this
    /// process looks into the directory that its ADD looked into.
    fn life_without_its_path(&self) -> Life {
        let directory = directory_of(&self.path);
        let shown = directory.display();
        match directory.metadata() {
            Err(error) => Life::Unknown(format!("{shown}: {error}")),
            Ok(now) if self.directory != (now.dev(), now.ino()) => Life::Unknown(format!(
                "{shown} is not the directory that the ADD saw: this process is in another mount namespace or in a container"
            )),
            // With the mount option hidepid, /proc shows only the processes that the caller may
            // inspect.
            Ok(_) if self.created == 0 && directory != Path::new(PROC) => Life::Unknown(format!(
                "{} leads to a process of another /proc",
                self.path.display()
            )),
            Ok(_) if self.created == 0 && Path::new("/proc/1").metadata().is_err() => {
                Life::Unknown(format!("{shown} hides processes from this one"))
            }
            Ok(_) => Life::Dead,
        }
    }
}

/// The directory in which the path of a namespace is looked up. Below /proc that is /proc itself,
/// because the other directories end with the process.
fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(directory) if !path.starts_with(PROC) => directory,
        _ => Path::new(PROC),
    }
}

/// Metadata of the file that `path` leads to; `None` when there is none.
fn look(path: &Path) -> io::Result<Option<Metadata>> {
    match path.metadata() {
        Ok(meta) => Ok(Some(meta)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // A path through a file that is not a directory leads nowhere either.
        Err(error) if error.raw_os_error() == Some(Errno::ENOTDIR as i32) => Ok(None),
        Err(error) => Err(error),
    }
}

fn created(meta: &Metadata) -> i64 {
    meta.ctime()
        .wrapping_mul(1_000_000_000)
        .wrapping_add(meta.ctime_nsec())
}

/// The device of the inode of every namespace: the kernel has one nsfs (`nsfs_init`).
fn nsfs() -> io::Result<u64> {
    static NSFS: OnceLock<u64> = OnceLock::new();
    if let Some(dev) = NSFS.get() {
        return Ok(*dev);
    }
    let dev = Path::new(OURS).metadata()?.dev();
    Ok(*NSFS.get_or_init(|| dev))
}

/// Whether /proc/1 is the host's first process, and not a container's.
pub fn is_init_the_hosts() -> bool {
    /// Inode of the initial PID namespace (PROC_PID_INIT_INO in linux/proc_ns.h).
    const INITIAL: u64 = 0xefff_fffc;
    Path::new("/proc/self/ns/pid")
        .metadata()
        .is_ok_and(|meta| meta.ino() == INITIAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A namespace that is there, as if it had been bound to `path`.
    fn bound_to(path: &Path, directory: (u64, u64)) -> NetnsId {
        let ours = NetnsId::of(Path::new(OURS)).unwrap().unwrap();
        NetnsId {
            path: path.to_owned(),
            created: 1,
            directory,
            ..ours
        }
    }

    fn id(path: &Path) -> (u64, u64) {
        let meta = path.metadata().unwrap();
        (meta.dev(), meta.ino())
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
        let reused = NetnsId {
            ino: ours.ino + 1,
            ..ours
        };
        assert_eq!(reused.life(), Life::Dead);
    }

    #[test]
    fn what_is_gone_from_the_directory_of_its_add_is_dead() {
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
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let path = PathBuf::from(format!("/proc/{}/ns/net", child.id()));
        let of_child = NetnsId::of(&path).unwrap().unwrap();
        assert_eq!((of_child.created, of_child.life()), (0, Life::Alive));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(of_child.life(), Life::Dead);
        is_unknown(
            &NetnsId {
                directory: id(Path::new("/")),
                ..of_child
            },
            "/proc",
        );
    }

    #[test]
    fn what_cannot_be_seen_is_not_dead() {
        let temp = tempfile::tempdir().unwrap();
        let (file, gone) = (temp.path().join("file"), temp.path().join("gone"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("loop", temp.path().join("loop")).unwrap();
        let here = id(temp.path());
        is_unknown(&bound_to(&file, here), "/file");
        is_unknown(&bound_to(&temp.path().join("loop"), here), "symbolic links");
        is_unknown(
            &bound_to(&gone, id(Path::new("/"))),
            &temp.path().display().to_string(),
        );
        is_unknown(&bound_to(&temp.path().join("no/directory"), here), "/no: ");
    }
}
