//! Files that stay consistent when the process is killed at any moment: each is written under a
//! temporary name and renamed, locks have a deadline, and no symbolic link is followed.
//!
//! A directory is opened once and its entries are named relative to it, so the meaning of a name
//! cannot change between two steps.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::hash::Hasher as _;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::dir::Dir as DirStream;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, RenameFlags, openat, renameat, renameat2};
use nix::libc::{S_IFMT, S_IFREG};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat, mkdirat};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{AccessFlags, UnlinkatFlags, faccessat, linkat, unlinkat};

use crate::{fail, watchdog};

/// Largest file that is read, in bytes. It is larger than every file that the project writes on
/// ADD; a store of many nodes has a file per node.
const MAX_FILE: u64 = 16 << 20;

/// Prefix of the name of a half-written file.
const TEMPORARY: &str = ".tmp.";

/// Reads a regular file that an operator named, perhaps by a symbolic link. Anything else is
/// refused: to open or read a FIFO, for example, might wait without end.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let flags = OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = File::options()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    content(file, &metadata)
}

/// Reads the content of the file, up to the largest size. The buffer has room for a little more
/// than the file: one read fetches all of it, a second one sees the end.
fn content(file: File, metadata: &Metadata) -> io::Result<Vec<u8>> {
    let size = usize::try_from(metadata.len().min(MAX_FILE)).unwrap_or_default();
    let mut content = Vec::with_capacity(size + 64);
    file.take(MAX_FILE).read_to_end(&mut content)?;
    Ok(content)
}

/// An open directory.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

impl Dir {
    /// Opens `path`. The operator chose the path, so symbolic links in it are followed.
    pub fn open(path: &Path) -> io::Result<Dir> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Dir {
            fd: nix::fcntl::open(path, flags, Mode::empty())?,
            path: path.to_owned(),
        })
    }

    /// Opens `path`; makes the directory and its parents where they are missing.
    pub fn create(path: &Path) -> Result<Dir> {
        use std::os::unix::fs::DirBuilderExt as _;
        let make = || {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
        };
        let opened = match Dir::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make().and_then(|()| Dir::open(path))
            }
            opened => opened,
        };
        opened.with_context(|| format!("cannot open the directory {}", path.display()))
    }

    /// Opens the directory `name` in this one; `None` when it does not exist.
    pub fn sub(&self, name: &str) -> Result<Option<Dir>> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(Dir {
                fd,
                path: self.path.join(name),
            })),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.error(errno, "cannot open the directory", name)),
        }
    }

    /// Opens the directory `name` in this one; makes it where it is missing.
    pub fn create_sub(&self, name: &str) -> Result<Dir> {
        // The directory exists nearly always.
        if let Some(there) = self.sub(name)? {
            return Ok(there);
        }
        match mkdirat(&self.fd, name, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => (),
            Err(errno) => return Err(self.error(errno, "cannot make the directory", name)),
        }
        self.sub(name)?
            .ok_or_else(|| self.error(Errno::ENOENT, "cannot open the directory", name))
    }

    /// Removes the directory `name` if it is empty, and returns whether it did.
    pub fn remove_empty(&self, name: &str) -> bool {
        unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir).is_ok()
    }

    /// The path of the directory, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file `name`; `None` when it does not exist. Symbolic links and devices are
    /// refused.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(self.error(errno, "cannot read", name)),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            fail!(
                Io,
                "{} is not a regular file: remove it",
                self.path.join(name).display()
            );
        }
        let content = content(file, &metadata);
        content
            .map(Some)
            .with_context(|| format!("cannot read {}", self.path.join(name).display()))
    }

    /// Replaces the file `name` by one with `content` in one step: readers see either the old or
    /// the new content. Without an fsync: the files are in /run, which no power cut survives.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let written = self
            .write_temporary(name, content)
            .and_then(|()| self.rename_temporary(name));
        written.or_else(|error| {
            self.discard(name);
            Err(error).with_context(|| format!("cannot write {}", self.path.join(name).display()))
        })
    }

    /// Removes the temporary file that an interrupted write of `name` left.
    pub fn discard(&self, name: &str) {
        let _ = self.remove(&format!("{TEMPORARY}{name}"));
    }

    /// Writes the new file `name`, which has no reader yet: the write is neither atomic nor
    /// durable.
    pub fn write_new(&self, name: &str, content: &[u8]) -> Result<()> {
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let write = || -> io::Result<()> {
            File::from(openat(&self.fd, name, flags, mode)?).write_all(content)
        };
        write().with_context(|| format!("cannot write {}", self.path.join(name).display()))
    }

    /// Makes the directory `name`, which must not exist yet.
    pub fn make(&self, name: &str) -> Result<()> {
        mkdirat(&self.fd, name, Mode::S_IRWXU)
            .map_err(|errno| self.error(errno, "cannot make the directory", name))
    }

    /// Makes a hard link to the file `name` in the directory `to`, or a copy where the file system
    /// has no hard links.
    pub fn link(&self, name: &str, to: &Dir) -> Result<()> {
        match linkat(&self.fd, name, &to.fd, name, AtFlags::empty()) {
            Err(Errno::EPERM | Errno::EOPNOTSUPP | Errno::EMLINK) => match self.read(name)? {
                Some(content) => to.write_new(name, &content),
                None => Ok(()),
            },
            linked => linked.map_err(|errno| to.error(errno, "cannot write", name)),
        }
    }

    /// Moves the entry `name` to the directory `to` as `new_name`.
    pub fn rename(&self, name: &str, to: &Dir, new_name: &str) -> io::Result<()> {
        Ok(renameat(&self.fd, name, &to.fd, new_name)?)
    }

    /// Moves the file `name` of the directory `from` into this one in one step, under a name that
    /// is free, and returns that name; `None` when `from` has no such file. Unlike a hard link,
    /// this also works on a full tmpfs.
    pub fn receive(&self, from: &Dir, name: &str) -> Result<Option<String>> {
        let mut free = name.to_owned();
        loop {
            let kind = fstatat(&from.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW)
                .map(|stat| stat.st_mode & S_IFMT);
            let moved = match kind {
                Ok(S_IFREG) => renameat2(
                    &from.fd,
                    name,
                    &self.fd,
                    &*free,
                    RenameFlags::RENAME_NOREPLACE,
                ),
                Ok(_) | Err(Errno::ENOENT) => return Ok(None),
                Err(errno) => Err(errno),
            };
            match moved {
                Ok(()) => return Ok(Some(free)),
                Err(Errno::EEXIST) => free = self.free_name(name)?,
                // The file is gone by now, or the file system does not support the flag.
                Err(Errno::ENOENT | Errno::EINVAL) => return Ok(None),
                Err(errno) => return Err(from.error(errno, "cannot move", name)),
            }
        }
    }

    /// Returns `name` if it is free, else `name` with a number before it.
    pub fn free_name(&self, name: &str) -> Result<String> {
        let names = self.names()?;
        let numbered = (2u32..).map(|number| format!("{number}~{name}"));
        let mut candidates = std::iter::once(name.to_owned()).chain(numbered);
        candidates
            .find(|name| !names.contains(name))
            .with_context(|| format!("{}: no free name for {name}", self.path.display()))
    }

    /// Exchanges two entries in one step.
    pub fn exchange(&self, one: &str, other: &str) -> io::Result<()> {
        Ok(renameat2(
            &self.fd,
            one,
            &self.fd,
            other,
            RenameFlags::RENAME_EXCHANGE,
        )?)
    }

    /// Whether `name` still refers to the open directory `dir`.
    pub fn names_still(&self, name: &str, dir: &Dir) -> bool {
        let named = fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW);
        let same = |one: FileStat, other: FileStat| {
            (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
        };
        matches!((named, fstat(&dir.fd)), (Ok(named), Ok(ours)) if same(named, ours))
    }

    /// Removes the file `name`, or the directory `name` with the files in it.
    pub fn remove_any(&self, name: &str) -> Result<()> {
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR) => (),
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(self.error(errno, "cannot remove", name)),
        }
        if let Some(dir) = self.sub(name)? {
            dir.all_names()?
                .iter()
                .try_for_each(|file| dir.remove(file))?;
        }
        match unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.error(errno, "cannot remove the directory", name)),
        }
    }

    /// Waits until all changes of this file system are on the disk (syncfs(2)).
    pub fn sync(&self) -> Result<()> {
        nix::unistd::syncfs(&self.fd)
            .with_context(|| format!("cannot sync {}", self.path.display()))
    }

    fn write_temporary(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let flags = OFlag::O_WRONLY
            | OFlag::O_CREAT
            | OFlag::O_TRUNC
            | OFlag::O_NOFOLLOW
            | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let mut file = File::from(openat(
            &self.fd,
            &*format!("{TEMPORARY}{name}"),
            flags,
            mode,
        )?);
        file.write_all(content)
    }

    fn rename_temporary(&self, name: &str) -> io::Result<()> {
        Ok(renameat(
            &self.fd,
            &*format!("{TEMPORARY}{name}"),
            &self.fd,
            name,
        )?)
    }

    /// Removes the file `name`. It is no error if the file does not exist.
    pub fn remove(&self, name: &str) -> Result<()> {
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.error(errno, "cannot remove", name)),
        }
    }

    /// The names of the entries in no particular order, without half-written files.
    pub fn names(&self) -> Result<Vec<String>> {
        self.names_where(|_| true)
    }

    /// Like [`Dir::names`], for the wanted names alone: no other one is copied.
    pub fn names_where(&self, is_meant: impl Fn(&str) -> bool) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.visit(|name| {
            if !name.starts_with('.') && is_meant(name) {
                names.push(name.to_owned());
            }
        })?;
        Ok(names)
    }

    /// The names of the entries in no particular order, with half-written files.
    pub fn all_names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.visit(|name| names.push(name.to_owned()))?;
        Ok(names)
    }

    /// Removes the files that a killed writer left half-written, and shows all other names to
    /// `look`: one listing serves both. The caller must hold the lock that the writers hold. Only
    /// files whose final name begins with `of` are removed.
    pub fn remove_half_written(&self, of: &str, mut look: impl FnMut(&str)) -> Result<()> {
        let prefix = format!("{TEMPORARY}{of}");
        let mut left = Vec::new();
        self.visit(|name| match name.starts_with('.') {
            true if name.starts_with(&prefix) => left.push(name.to_owned()),
            true => (),
            false => look(name),
        })?;
        left.iter().try_for_each(|name| self.remove(name))
    }

    /// Shows every name to `look`. No name is copied, because there may be thousands. A directory
    /// that was removed while it was open has no entries.
    pub fn visit(&self, mut look: impl FnMut(&str)) -> Result<()> {
        let mut list = || -> nix::Result<()> {
            let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            for entry in DirStream::openat(&self.fd, ".", flags, Mode::empty())? {
                match entry?.file_name().to_string_lossy() {
                    name if name == "." || name == ".." => (),
                    name => look(&name),
                }
            }
            Ok(())
        };
        match list() {
            // iterate_dir of the kernel fails so for a directory that was removed.
            Err(Errno::ENOENT) => Ok(()),
            listed => listed.with_context(|| format!("cannot list {}", self.path.display())),
        }
    }

    /// Checks that files can be made in this directory, without making one.
    pub fn writable(&self) -> Result<()> {
        // The effective user and group count here, as they will for the writes.
        faccessat(
            &self.fd,
            ".",
            AccessFlags::W_OK | AccessFlags::X_OK,
            AtFlags::AT_EACCESS,
        )
        .with_context(|| format!("{} is not writable", self.path.display()))
    }

    /// Takes the lock `name`, waiting for up to `patience`. The lock is a file in this directory
    /// that has no other use. The kernel releases it when the process ends, however it ends. Fails
    /// with [`Code::TryAgain`](crate::error::Code::TryAgain), naming the holder.
    pub fn lock(&self, name: &str, patience: Duration) -> Result<Lock> {
        /// All waiting processes try equally often, whenever they came, and not in step: so each
        /// gets its turn.
        const PAUSE: Duration = Duration::from_millis(1);
        const JITTER: u32 = 4_000_000;
        let deadline = Instant::now() + patience;
        loop {
            if let Some(lock) = self.try_lock(name)? {
                return Ok(lock);
            }
            watchdog::step(|| format!("waiting for the lock {}", self.path.join(name).display()));
            let pause = PAUSE + Duration::from_nanos((since_boot().subsec_nanos() % JITTER).into());
            if Instant::now() + pause > deadline {
                let path = self.path.join(name);
                let holder = self
                    .holder(name)
                    .unwrap_or_else(|| "`fuser -v` shows it".to_owned());
                fail!(
                    TryAgain,
                    "another process has held {} for {patience:?}: {holder}",
                    path.display()
                );
            }
            std::thread::sleep(pause);
        }
    }

    /// Describes the process that holds the lock `name`, for a message; `None` where the kernel
    /// does not report it.
    fn holder(&self, name: &str) -> Option<String> {
        let file = fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
        let (major, minor) = (
            nix::sys::stat::major(file.st_dev),
            nix::sys::stat::minor(file.st_dev),
        );
        let lock = format!("{major:02x}:{minor:02x}:{}", file.st_ino);
        let pid = holder_in(&std::fs::read_to_string("/proc/locks").ok()?, &lock)?;
        let of_process = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).ok();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let program = text(&of_process("comm")?);
        let environment = of_process("environ").unwrap_or_default();
        let call: Vec<_> = ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_IFNAME"]
            .iter()
            .filter_map(|variable| {
                let value = |entry: &[u8]| {
                    Some(text(
                        entry
                            .strip_prefix(variable.as_bytes())?
                            .strip_prefix(b"=")?,
                    ))
                };
                environment.split(|byte| *byte == 0).find_map(value)
            })
            .filter(|value| !value.is_empty())
            .collect();
        let call = if call.is_empty() {
            String::new()
        } else {
            format!(", {}", call.join(" "))
        };
        Some(format!("{program} (process {pid}{call})"))
    }

    /// Takes the lock `name`; `None` if it is held.
    pub fn try_lock(&self, name: &str) -> Result<Option<Lock>> {
        let what = || format!("cannot lock {}", self.path.join(name).display());
        loop {
            let flags = OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let mode = Mode::S_IRUSR | Mode::S_IWUSR;
            let fd = match openat(&self.fd, name, flags | OFlag::O_RDWR, mode) {
                // A lock needs no writable file, and a DEL on a read-only /run may have nothing to
                // write.
                Err(Errno::EROFS) => openat(
                    &self.fd,
                    name,
                    OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
                    Mode::empty(),
                ),
                fd => fd,
            };
            let file = File::from(fd.map_err(|errno| self.error(errno, "cannot lock", name))?);
            match fs4::FileExt::try_lock(&file) {
                Ok(()) => (),
                Err(fs4::TryLockError::WouldBlock) => return Ok(None),
                Err(fs4::TryLockError::Error(error))
                    if error.kind() == io::ErrorKind::Interrupted =>
                {
                    continue;
                }
                Err(fs4::TryLockError::Error(error)) => return Err(error).with_context(what),
            }
            // A lock on a file that was removed meanwhile protects nothing.
            let held = fstat(&file).with_context(what)?;
            match fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(named) if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino) => {
                    return Ok(Some(Lock { file }));
                }
                Ok(_) | Err(Errno::ENOENT) => (),
                Err(errno) => return Err(errno).with_context(what),
            }
        }
    }

    /// Whether the lock `name` is held. Takes a shared lock for a moment, and creates no file.
    pub fn is_locked(&self, name: &str) -> Result<bool> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::ENOENT) => return Ok(false),
            Err(errno) => return Err(self.error(errno, "cannot read the lock", name)),
        };
        match fs4::FileExt::try_lock_shared(&file) {
            Ok(()) => Ok(false),
            Err(fs4::TryLockError::WouldBlock) => Ok(true),
            Err(fs4::TryLockError::Error(error)) => Err(error)
                .with_context(|| format!("cannot lock {}", self.path.join(name).display())),
        }
    }

    /// Removes the lock file, unless the lock is held or its note is not `useless`.
    pub fn prune_lock(&self, name: &str, useless: impl Fn(&[u8]) -> bool) -> Result<()> {
        let Some(mut lock) = self.try_lock(name)? else {
            return Ok(());
        };
        if useless(&lock.note()?) {
            self.remove(name)
        } else {
            Ok(())
        }
    }

    fn error(&self, errno: Errno, what: &str, name: &str) -> anyhow::Error {
        let path = self.path.join(name);
        let hint = if errno == Errno::ELOOP {
            " (a symbolic link: remove it)"
        } else {
            ""
        };
        anyhow::Error::new(io::Error::from(errno))
            .context(format!("{what} {}{hint}", path.display()))
    }
}

/// The process that holds the flock on the file `MAJOR:MINOR:INODE`, found in the text of
/// /proc/locks. The lines of waiting processes have an arrow. A process id of 0 or less is a
/// process that this one cannot see.
fn holder_in(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, _, pid, of, ..] if of == file => {
                pid.parse().ok().filter(|pid| *pid > 0)
            }
            _ => None,
        }
    })
}

/// Whether the error means that a file or directory does not exist.
pub fn is_not_found(error: &anyhow::Error) -> bool {
    is_of(error, io::ErrorKind::NotFound)
}

/// Whether the error means that a file or directory exists already.
pub fn is_already_there(error: &anyhow::Error) -> bool {
    is_of(error, io::ErrorKind::AlreadyExists)
}

fn is_of(error: &anyhow::Error, kind: io::ErrorKind) -> bool {
    let cause = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == kind)
}

/// A lock that is held until this value is dropped. Its file can carry a note, which only holders
/// read.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// Reads the note that an earlier holder left.
    pub fn note(&mut self) -> Result<Vec<u8>> {
        let mut note = Vec::new();
        self.file.rewind()?;
        (&self.file)
            .take(MAX_FILE)
            .read_to_end(&mut note)
            .context("cannot read a lock file")?;
        Ok(note)
    }

    /// Leaves a note for later holders. The write is not atomic: a reader must expect a part of it.
    pub fn set_note(&mut self, note: &[u8]) -> Result<()> {
        let mut write = || -> io::Result<()> {
            self.file.set_len(0)?;
            self.file.rewind()?;
            self.file.write_all(note)
        };
        write().context("cannot write a lock file")
    }
}

/// `text` as part of a file name: unchanged if it is short, else its start and a hash.
pub fn name_part(text: &str) -> String {
    // A name can have 255 bytes; three parts, an ending and the prefix of a temporary file must
    // fit.
    const LONGEST: usize = 100;
    if text.len() <= LONGEST {
        return text.to_owned();
    }
    let start: String = text.chars().take(LONGEST - 33).collect();
    format!("{start}~{}", hash(&[text]))
}

/// A hash of `parts` with 128 bits, as 32 hexadecimal digits. It is the same for all releases and
/// machines. Two different inputs may have the same hash, so a file with such a name also contains
/// what it is for.
pub fn hash(parts: &[&str]) -> String {
    let mut hasher = siphasher::sip128::SipHasher13::new();
    for part in parts {
        hasher.write(part.as_bytes());
        hasher.write_u8(0);
    }
    let bits = siphasher::sip128::Hasher128::finish128(&hasher);
    format!("{:016x}{:016x}", bits.h1, bits.h2)
}

/// The id of this boot. State that was written under another one describes namespaces that are
/// gone.
pub fn boot_id() -> Result<&'static str> {
    static BOOT_ID: OnceLock<String> = OnceLock::new();
    if let Some(id) = BOOT_ID.get() {
        return Ok(id);
    }
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    Ok(BOOT_ID.get_or_init(|| text.trim().to_owned()))
}

/// At most `most` of `names`: where there are more, another part each time.
pub fn some_of(mut names: Vec<String>, most: usize) -> Vec<String> {
    if names.len() > most {
        let first = since_boot().subsec_nanos() as usize % names.len();
        names.rotate_left(first);
        names.truncate(most);
    }
    names
}

/// Time since boot, including the time while suspended.
pub fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

static STARTED: OnceLock<Duration> = OnceLock::new();

/// Must be called first in the process; see [`started`].
pub fn process_started() {
    STARTED.get_or_init(since_boot);
}

/// The start of this process, as time since boot ([`since_boot`]).
pub fn started() -> Duration {
    *STARTED.get_or_init(since_boot)
}

/// The current time in RFC 3339, for people: no decision depends on it.
pub fn now() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()
}

/// The host name, exact and case-sensitive.
pub fn host_name() -> Result<String> {
    let name = nix::unistd::gethostname().context("cannot read the host name")?;
    Ok(OsStr::to_string_lossy(&name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> (tempfile::TempDir, Dir) {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        (temp, dir)
    }

    #[test]
    fn a_written_file_is_read_and_leaves_no_temporary() {
        let (temp, dir) = directory();
        dir.write("a", b"1").unwrap();
        dir.write("a", b"2").unwrap();
        assert_eq!(dir.read("a").unwrap().unwrap(), b"2");
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
        assert_eq!(dir.read("b").unwrap(), None);
    }

    #[test]
    fn links_are_not_followed() {
        let (temp, dir) = directory();
        std::os::unix::fs::symlink("/etc", temp.path().join("d")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", temp.path().join("f")).unwrap();
        assert!(dir.sub("d").is_err());
        assert!(dir.read("f").is_err());
        assert!(dir.try_lock("f").is_err());
        dir.write("f", b"x").unwrap();
        assert_eq!(dir.read("f").unwrap().unwrap(), b"x");
    }

    #[test]
    fn a_lock_excludes_waits_no_longer_than_told_and_ends_with_its_holder() {
        let (_temp, dir) = directory();
        let held = dir.try_lock("l").unwrap().unwrap();
        assert!(dir.try_lock("l").unwrap().is_none());
        let error = dir.lock("l", Duration::from_millis(20)).unwrap_err();
        assert_eq!(crate::error::code_of(&error), 11);
        assert!(dir.is_locked("l").unwrap());
        drop(held);
        assert!(!dir.is_locked("l").unwrap());
        assert!(dir.try_lock("l").unwrap().is_some());
        assert!(!dir.is_locked("none").unwrap());
        assert_eq!(dir.names().unwrap(), ["l"]);
    }

    /// The operator needs to know which call hangs.
    #[test]
    fn who_waited_in_vain_for_a_lock_is_told_who_holds_it() {
        let (_temp, dir) = directory();
        let _held = dir.try_lock("l").unwrap().unwrap();
        let error = dir
            .lock("l", Duration::from_millis(20))
            .unwrap_err()
            .to_string();
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        let expected = format!("for 20ms: {} (process {}", comm.trim(), std::process::id());
        assert!(error.contains(&expected), "{error}");
    }

    #[test]
    fn the_holder_is_read_from_the_kernels_list() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 00:1a:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 00:1b:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 00:1a:77 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 14 00:1a:77 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE -1 00:1a:78 0 EOF\n";
        assert_eq!(holder_in(locks, "00:1a:77"), Some(13));
        assert_eq!(holder_in(locks, "00:1a:78"), None);
        assert_eq!(holder_in("", "00:1a:77"), None);
    }

    #[test]
    fn an_open_directory_that_was_removed_is_empty_and_takes_no_lock() {
        let (_temp, dir) = directory();
        let sub = dir.create_sub("d").unwrap();
        drop(sub.try_lock("l").unwrap().unwrap());
        assert!(!dir.remove_empty("d"));
        sub.remove("l").unwrap();
        assert!(dir.remove_empty("d"));
        assert!(sub.names().unwrap().is_empty());
        assert!(is_not_found(&sub.try_lock("l").unwrap_err()));
    }

    #[test]
    fn a_lock_on_a_removed_file_is_no_lock() {
        let (_temp, dir) = directory();
        let old = dir.try_lock("l").unwrap().unwrap();
        dir.remove("l").unwrap();
        let new = dir.try_lock("l").unwrap().unwrap();
        assert!(dir.try_lock("l").unwrap().is_none());
        drop((old, new));
    }

    #[test]
    fn only_locks_that_nobody_holds_and_nobody_needs_are_pruned() {
        let (_temp, dir) = directory();
        let _held = dir.try_lock("held").unwrap();
        // Written, and not locked: a child of the test beside this one may have inherited a lock
        // for a moment.
        dir.write_new("free", b"").unwrap();
        dir.write_new("noted", b"note").unwrap();
        ["held", "free", "noted"]
            .iter()
            .for_each(|name| dir.prune_lock(name, <[u8]>::is_empty).unwrap());
        let mut names = dir.names().unwrap();
        names.sort();
        assert_eq!(names, ["held", "noted"]);
    }

    #[test]
    fn long_names_stay_below_the_limit_and_differ() {
        let (long, longer) = ("a".repeat(300), "a".repeat(301));
        assert_eq!(name_part("c1"), "c1");
        assert!(name_part(&long).len() <= 100);
        assert_ne!(name_part(&long), name_part(&longer));
    }
}
