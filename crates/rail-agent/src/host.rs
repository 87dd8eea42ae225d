//! The host, as its first process sees it: its files, and programs that run in its namespaces.
//!
//! The agent is in a container. What it sees there (links, mounted namespaces, /run) is not the
//! node's, so it never judges a node by it: it reads files below /proc/1/root, and asks the
//! installed railctl, which it starts in the namespaces of process 1.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, Mode, OFlags, ResolveFlags};
use rustix::process::{Pid, PidfdFlags};
use rustix::thread::ThreadNameSpaceType;
use tokio::io::AsyncWriteExt as _;

use crate::runtime::runtime;
use crate::text::{error_text, log};

/// The plugins.
pub const PLUGINS: [&str; 2] = ["rail-ipam", "rail-cni"];
/// The program for people and for this agent. It is beside the plugins, and refuses to be one.
pub const RAILCTL: &str = "railctl";
/// The hidden subcommand that [`Host::run`] starts.
pub const IN_HOST: &str = "in-host";
/// The longest time of a program. They end themselves earlier, except for a plan of a very large
/// fabric.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(120);
/// The most that is read of what a program prints.
const MAX_OUTPUT_BYTES: usize = 32 << 20;

/// The host's root directory.
#[derive(Debug)]
pub struct Host {
    root: OwnedFd,
}

/// The output of a program in the host's namespaces.
#[derive(Debug)]
pub struct ProgramOutput {
    /// Whether its exit status was 0.
    pub is_success: bool,
    /// Its text on stdout.
    pub stdout: String,
    /// Its text on stderr.
    pub stderr: String,
}

impl Host {
    /// Opens the root directory of the host. Fails in a container that does not see the host's
    /// first process.
    pub fn open() -> Result<Host> {
        let needed = "the pod needs hostPID: true and a privileged container, or run this on the host itself as root";
        let namespace = |process: &str| -> Result<u64> {
            let path = format!("/proc/{process}/ns/mnt");
            let found = Path::new(&path).metadata();
            Ok(found
                .with_context(|| format!("cannot inspect {path}: {needed}"))?
                .ino())
        };
        let is_in_container_of_its_own =
            namespace("1")? == namespace("self")? && !is_initial_pid_namespace();
        if is_in_container_of_its_own {
            bail!(
                "process 1 is this container's and not the host's, so this node cannot be judged from here: {needed}"
            );
        }
        let root = rustix::fs::open(
            "/proc/1/root",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .with_context(|| format!("cannot open /proc/1/root: {needed}"))?;
        Ok(Host { root })
    }

    /// Opens a directory of the host, if it exists. Symbolic links are followed as on the host.
    pub fn dir(&self, path: &Path) -> Result<Option<HostDir>> {
        match self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(fd) => Ok(Some(HostDir {
                fd,
                path: path.to_owned(),
            })),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => {
                Err(error).with_context(|| format!("cannot open {} of the host", path.display()))
            }
        }
    }

    /// Opens a directory of the host, and makes it with its parents where it is missing.
    pub fn make_dir(&self, path: &Path, mode: u32) -> Result<HostDir> {
        let missing: Vec<&Path> = path
            .ancestors()
            .take_while(|path| matches!(self.dir(path), Ok(None)))
            .collect();
        for new in missing.into_iter().rev() {
            let (Some(parent), Some(name)) = (new.parent(), new.file_name()) else {
                continue;
            };
            let Some(parent) = self.dir(parent)? else {
                continue;
            };
            match rustix::fs::mkdirat(&parent.fd, name, Mode::from_raw_mode(mode)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => (),
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("cannot make {} on the host", new.display()));
                }
            }
        }
        self.dir(path)?
            .with_context(|| format!("{} of the host was removed", path.display()))
    }

    fn resolve(&self, path: &Path, flags: OFlags) -> std::io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        Ok(rustix::fs::openat2(
            &self.root,
            path,
            flags,
            Mode::empty(),
            ResolveFlags::IN_ROOT,
        )?)
    }

    /// The content of a file of the host, if it exists.
    pub fn read(&self, path: &Path) -> Result<Option<String>> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(None);
        };
        let Some(dir) = self.dir(parent)? else {
            return Ok(None);
        };
        match std::fs::read_to_string(dir.at(name)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => {
                Err(error).with_context(|| format!("cannot read {} of the host", path.display()))
            }
        }
    }

    /// Runs a program of the host in the host's namespaces, with `input` on its stdin.
    pub async fn run(
        &self,
        program: &Path,
        arguments: &[&str],
        input: &[u8],
    ) -> Result<ProgramOutput> {
        let shown = format!("{} {}", program.display(), arguments.join(" "));
        let mut command = tokio::process::Command::new("/proc/self/exe");
        command.arg(IN_HOST).arg(program).args(arguments);
        match said(command, input, PROGRAM_TIMEOUT).await {
            Ok(Some(said)) => Ok(said),
            Ok(None) => bail!(
                "`{shown}` did not end within {} s on the host and was killed: run it there to see what it waits for",
                PROGRAM_TIMEOUT.as_secs()
            ),
            Err(error) => Err(error).with_context(|| format!("cannot run `{shown}` on the host")),
        }
    }

    /// Asks a program for its version. Fails if this node cannot execute it, or if it is not the
    /// one of that name.
    pub async fn try_out(&self, name: &str, program: &Path) -> Result<String> {
        let said = self.run(program, &["--version"], b"").await?;
        // A file that is for another machine, or empty, is executed by a shell, and that may
        // succeed.
        if !said.is_success || !said.stdout.starts_with(name) {
            bail!(
                "`{} --version` did not print {name} and its version: {}",
                program.display(),
                said.stderr.trim()
            );
        }
        Ok(said.stdout)
    }

    /// [`Host::run`] for a process without other tasks.
    pub fn run_alone(&self, program: &Path, arguments: &[&str]) -> Result<ProgramOutput> {
        runtime()?.block_on(self.run(program, arguments, b""))
    }
}

/// The output of a command; `None` if it did not end in time, and was killed.
async fn said(
    mut command: tokio::process::Command,
    input: &[u8],
    patience: Duration,
) -> std::io::Result<Option<ProgramOutput>> {
    let pipes = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = pipes.kill_on_drop(true).spawn()?;
    let stdin = child.stdin.take();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            // A program that reads no input may have ended.
            let _ = stdin.write_all(input).await;
        }
    };
    let end = async {
        tokio::join!(
            write,
            read_all(out, &mut stdout),
            read_all(err, &mut stderr),
            child.wait()
        )
        .3
    };
    let Ok(status) = tokio::time::timeout(patience, end).await else {
        return Ok(None);
    };
    Ok(Some(ProgramOutput {
        is_success: status?.success(),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    }))
}

async fn read_all(from: Option<impl tokio::io::AsyncRead + Unpin>, to: &mut Vec<u8>) {
    use tokio::io::AsyncReadExt as _;
    let Some(mut from) = from else { return };
    let mut buffer = [0; 16384];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if to.len() < MAX_OUTPUT_BYTES {
            to.extend_from_slice(&buffer[..count]);
        }
    }
}

fn is_initial_pid_namespace() -> bool {
    rail_cni::netns::is_init_the_hosts()
}

/// Moves this thread into the host's network namespace.
pub fn enter_network() -> Result<()> {
    enter(ThreadNameSpaceType::NETWORK)
}

fn enter(namespaces: ThreadNameSpaceType) -> Result<()> {
    let enter = || -> rustix::io::Result<()> {
        let first = rustix::process::pidfd_open(Pid::INIT, PidfdFlags::empty())?;
        rustix::thread::move_into_thread_name_spaces(first.as_fd(), namespaces)
    };
    enter().context(
        "cannot enter the namespaces of process 1: the pod needs hostPID: true and a privileged container",
    )
}

/// The hidden subcommand: becomes the program in the namespaces of process 1. This process has one
/// thread, as setns(2) requires.
pub fn enter_and_become(command: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = command.split_first() else {
        return ExitCode::from(2);
    };
    let all = ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::NETWORK
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
    if let Err(error) = enter(all) {
        log("error", &error_text(&error));
        return ExitCode::FAILURE;
    }
    // The environment of the pod stays away from the host.
    let error = Command::new(program)
        .args(arguments)
        .env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .current_dir("/")
        .exec();
    log(
        "error",
        &format!(
            "cannot run {} on the host: {error}",
            Path::new(program).display()
        ),
    );
    ExitCode::FAILURE
}

/// A directory of the host.
#[derive(Debug)]
pub struct HostDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl HostDir {
    /// A directory of this machine.
    #[cfg(test)]
    pub fn here(path: &Path) -> HostDir {
        HostDir {
            fd: File::open(path).unwrap().into(),
            path: path.to_owned(),
        }
    }

    /// Whether both are one directory.
    pub fn is_same(&self, other: &HostDir) -> bool {
        let of = |dir: &HostDir| rustix::fs::fstat(&dir.fd).map(|stat| (stat.st_dev, stat.st_ino));
        of(self).is_ok_and(|one| of(other) == Ok(one))
    }

    /// A path by which this process reaches an entry of the directory.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        Path::new("/proc/self/fd")
            .join(self.fd.as_raw_fd().to_string())
            .join(name)
    }

    /// The path of an entry on the host, for messages.
    pub fn shown(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// Waits for the lock of the directory, which ends with the returned file. Whoever can open the
    /// directory can take it, so its mode must be 0700.
    pub fn lock(&self, patience: Duration) -> Result<File> {
        let path = self.path.display();
        let file = File::open(self.at(".")).with_context(|| format!("cannot open {path}"))?;
        let begun = Instant::now();
        while let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(error).with_context(|| format!("cannot lock {path}"));
            }
            if begun.elapsed() >= patience {
                bail!(
                    "another process of the host has had {path} locked for {} s, and nothing was changed: find it with \
                     `lslocks`, and end it",
                    patience.as_secs()
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(file)
    }

    /// Sets who may use an entry.
    pub fn restrict(&self, name: &str, mode: u32) -> Result<()> {
        rustix::fs::chmod(self.at(name), Mode::from_raw_mode(mode))
            .with_context(|| format!("cannot change the mode of {} on the host", self.shown(name)))
    }

    /// Whether the directory was not removed.
    pub fn is_linked(&self) -> bool {
        rustix::fs::fstat(&self.fd).is_ok_and(|found| found.st_nlink > 0)
    }

    /// Makes renames in the directory durable.
    pub fn sync(&self) -> Result<()> {
        let sync = || File::open(self.at("."))?.sync_all();
        sync().with_context(|| format!("cannot write {} to its disk", self.path.display()))
    }

    /// Removes an entry, if it exists. Returns whether it existed.
    pub fn remove(&self, name: &str) -> Result<bool> {
        match std::fs::remove_file(self.at(name)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error)
                .with_context(|| format!("cannot remove {} of the host", self.shown(name))),
        }
    }

    /// Replaces a file in one step, so that a reader has the old content or the new. What was there
    /// before is kept as `NAME.previous`.
    pub fn replace(&self, name: &str, content: &[u8]) -> Result<()> {
        self.put(name, content, 0o644, || {
            self.keep_previous(name, self, &format!("{name}.previous"))
        })
    }

    /// Like [`HostDir::replace`], without a copy of the former file.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        self.put(name, content, 0o600, || Ok(()))
    }

    fn put(
        &self,
        name: &str,
        content: &[u8],
        mode: u32,
        before: impl FnOnce() -> std::io::Result<()>,
    ) -> Result<()> {
        let temporary = format!(".{name}.new");
        let replace = || -> std::io::Result<()> {
            let _ = std::fs::remove_file(self.at(&temporary));
            let mut file = File::options()
                .write(true)
                .create_new(true)
                .open(self.at(&temporary))?;
            rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
            file.write_all(content)?;
            file.sync_all()?;
            before()?;
            std::fs::rename(self.at(&temporary), self.at(name))
        };
        if let Err(error) = replace() {
            let _ = std::fs::remove_file(self.at(&temporary));
            return Err(error)
                .with_context(|| format!("cannot write {} of the host", self.shown(name)));
        }
        self.sync()
    }

    /// Gives the present file a second name in a directory of the same file system, under which it
    /// stays when it is replaced.
    pub fn keep_previous(&self, name: &str, kept: &HostDir, previous: &str) -> std::io::Result<()> {
        let temporary = kept.at(format!(".{name}.kept"));
        let _ = std::fs::remove_file(&temporary);
        match std::fs::hard_link(self.at(name), &temporary) {
            Ok(()) => std::fs::rename(&temporary, kept.at(previous)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let run = |script: &str, patience| {
            let mut command = tokio::process::Command::new("sh");
            command.args(["-c", script]);
            runtime()
                .unwrap()
                .block_on(said(command, b"in", patience))
                .unwrap()
        };
        assert!(run("exec sleep 1000.0625", Duration::from_secs(1)).is_none());
        let is_it = |process: std::fs::DirEntry| {
            std::fs::read(process.path().join("cmdline"))
                .is_ok_and(|line| line == b"sleep\x001000.0625\0")
        };
        let begun = Instant::now();
        while std::fs::read_dir("/proc").unwrap().flatten().any(is_it) {
            assert!(begun.elapsed() < Duration::from_secs(100), "it lives on");
            std::thread::sleep(Duration::from_millis(10));
        }
        let said = run("cat; echo err >&2; exit 3", Duration::from_secs(100)).unwrap();
        assert_eq!(
            (said.is_success, said.stdout.as_str(), said.stderr.as_str()),
            (false, "in", "err\n")
        );
    }

    #[test]
    fn a_directory_that_somebody_else_keeps_locked_is_an_error_that_says_what_to_do() {
        let temp = tempfile::tempdir().unwrap();
        let (one, other) = (HostDir::here(temp.path()), HostDir::here(temp.path()));
        let lock = one.lock(Duration::ZERO).unwrap();
        let told = other.lock(Duration::ZERO).unwrap_err().to_string();
        assert!(
            told.contains(&temp.path().display().to_string()) && told.contains("`lslocks`"),
            "{told}"
        );
        drop(lock);
        // A process that a neighbouring test is starting has the file of the lock until its program
        // begins.
        other.lock(Duration::from_secs(100)).unwrap();
    }
}
