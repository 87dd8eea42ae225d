//! Calls an IPAM plugin with the environment and the configuration that this plugin was called
//! with, and returns its result or its error. Every call has a deadline.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use super::{AddResult, Code, Command, ErrorJson, Failure, Version};
use crate::{failure, watchdog};

/// Environment variable with the name of the calling plugin. Everything that the called plugin
/// starts inherits it, so a plugin finds out that it was called by itself.
pub const CALLER: &str = "RAIL_CNI_CALLER";
/// Largest output in bytes. A result has a few hundred bytes; anything larger than this is not a
/// result.
const MAX_OUTPUT: usize = 64 << 10;
/// Longest line of stderr in bytes that is logged in one piece.
const LONGEST_LINE: usize = 4 << 10;

/// The error when a plugin could not be started.
#[derive(Debug)]
struct NotRun(String);

impl std::fmt::Display for NotRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether an ADD that failed with `error` certainly gave no address: the plugin never ran, or it
/// refused with an error object.
pub fn gave_nothing(error: &anyhow::Error) -> bool {
    crate::error::is_relayed(error) || error.downcast_ref::<NotRun>().is_some()
}

/// An IPAM plugin, and what it is called with. It inherits the other variables of this process.
#[derive(Debug)]
pub struct Delegate<'a> {
    /// Its file.
    pub program: &'a Path,
    /// Its name, for messages.
    pub name: &'a str,
    /// The network configuration.
    pub stdin: &'a [u8],
    /// CNI_ARGS.
    pub args: &'a str,
    /// CNI_PATH.
    pub path: &'a [PathBuf],
    /// The time that it has for its answer.
    pub patience: Duration,
}

impl Delegate<'_> {
    /// Calls ADD and returns the result, converted to the newest version.
    pub fn add(&self, command: &Command, version: Version) -> Result<AddResult> {
        let output = self.run(command)?;
        let value: Value = serde_json::from_slice(&output).map_err(|error| {
            self.garbage(
                &output,
                &format!("ADD succeeded but printed no result: {error}"),
            )
        })?;
        AddResult::parse(&value, version).with_context(|| format!("IPAM plugin {}", self.name))
    }

    /// Calls any verb and returns what it printed.
    pub fn run(&self, command: &Command) -> Result<Vec<u8>> {
        let verb = command.name();
        watchdog::step(|| format!("waiting for the IPAM plugin {}: {verb}", self.name));
        let mut child = self.spawn(command).with_context(|| {
            NotRun(format!(
                "cannot run the IPAM plugin {}",
                self.program.display()
            ))
        })?;
        let group = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        let _ends_with_us = watchdog::child(group);
        let talk = Talk::new(&mut child, self.stdin, Instant::now() + self.patience);
        let ended = talk.and_then(|mut talk| talk.until_exit(&mut child));
        let (status, output) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                // Processes that the plugin started end with it: one that keeps a pipe open would
                // make the runtime wait.
                let _ = killpg(group, Signal::SIGKILL);
                let _ = child.wait();
                let what = if error.kind() == ErrorKind::TimedOut {
                    format!(
                        "did not answer {verb} within {:?} and was killed",
                        self.patience
                    )
                } else {
                    format!("its pipes failed: {error}")
                };
                return Err(failure!(Internal, "IPAM plugin {} {what}", self.name));
            }
        };
        if status.success() {
            return Ok(output);
        }
        // The plugin's own error is passed on unchanged; a valid error object tells it from
        // garbage.
        match serde_json::from_slice::<ErrorJson>(&output) {
            Ok(error) => Err(anyhow::Error::new(Failure::relayed(error))),
            Err(_) => Err(self.garbage(
                &output,
                &format!(
                    "{verb} failed ({}) without an error object on stdout",
                    shown(status)
                ),
            )),
        }
    }

    fn spawn(&self, command: &Command) -> io::Result<Child> {
        let mut tries = 0;
        loop {
            let mut process = std::process::Command::new(self.program);
            process
                .envs(self.variables(command))
                .env(CALLER, std::process::id().to_string());
            process
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .process_group(0);
            match process.spawn() {
                // An installer is writing the file at this moment.
                Err(error) if error.raw_os_error() == Some(Errno::ETXTBSY as i32) && tries < 5 => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(50));
                }
                spawned => return spawned,
            }
        }
    }

    /// The CNI_* variables.
    fn variables(&self, command: &Command) -> Vec<(&'static str, OsString)> {
        let path = std::env::join_paths(self.path).unwrap_or_default();
        let mut all = vec![("CNI_COMMAND", command.name().into()), ("CNI_PATH", path)];
        all.push(("CNI_ARGS", self.args.into()));
        let netns = match command {
            Command::Add(_, netns) | Command::Check(_, netns) | Command::Del(_, Some(netns)) => {
                netns.into()
            }
            _ => OsString::new(),
        };
        if let Some(attachment) = command.attachment() {
            all.push(("CNI_CONTAINERID", attachment.container_id.clone().into()));
            all.push(("CNI_IFNAME", attachment.ifname.clone().into()));
            all.push(("CNI_NETNS", netns));
        }
        all
    }

    fn garbage(&self, output: &[u8], what: &str) -> anyhow::Error {
        let start: String = String::from_utf8_lossy(output).chars().take(500).collect();
        anyhow::Error::new(
            Failure::new(Code::Decode, format!("IPAM plugin {}: {what}", self.name)).details(start),
        )
    }
}

fn shown(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown status".to_owned(),
    }
}

/// The three pipes of a child process. Its stderr goes through this process: a grandchild that kept
/// this process's own stderr open would make the runtime wait, because containernetworking/cni
/// reads both pipes until they are closed.
struct Talk<'a> {
    stdin: Option<std::process::ChildStdin>,
    rest: &'a [u8],
    stdout: Option<std::process::ChildStdout>,
    stderr: Option<std::process::ChildStderr>,
    output: Vec<u8>,
    /// The part of stderr that is not a whole line yet.
    unfinished: Vec<u8>,
    deadline: Instant,
}

impl<'a> Talk<'a> {
    fn new(child: &mut Child, stdin: &'a [u8], deadline: Instant) -> io::Result<Talk<'a>> {
        let talk = Talk {
            stdin: child.stdin.take(),
            rest: stdin,
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            output: Vec::new(),
            unfinished: Vec::new(),
            deadline,
        };
        for fd in talk.open_fds() {
            fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(talk)
    }

    fn open_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let stdin = self.stdin.as_ref().map(AsFd::as_fd);
        let stdout = self.stdout.as_ref().map(AsFd::as_fd);
        stdin
            .into_iter()
            .chain(stdout)
            .chain(self.stderr.as_ref().map(AsFd::as_fd))
    }

    fn until_exit(&mut self, child: &mut Child) -> io::Result<(ExitStatus, Vec<u8>)> {
        // While the pipes are open, their end wakes this process up; after that the exit is a
        // moment away.
        let mut pause = Duration::from_micros(50);
        loop {
            if let Some(status) = child.try_wait()? {
                self.pump()?;
                return Ok((status, std::mem::take(&mut self.output)));
            }
            if Instant::now() >= self.deadline {
                return Err(ErrorKind::TimedOut.into());
            }
            let outputs_open = self.stdout.is_some() || self.stderr.is_some();
            if outputs_open {
                self.wait_for_pipes()?;
                self.pump()?;
            } else {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(10));
            }
        }
    }

    /// Waits until a pipe is ready, but not for long: a grandchild may hold one open after the
    /// exit.
    fn wait_for_pipes(&self) -> io::Result<()> {
        let writes = PollFd::new;
        let stdin = self
            .stdin
            .as_ref()
            .map(|pipe| writes(pipe.as_fd(), PollFlags::POLLOUT));
        let stdout = self
            .stdout
            .as_ref()
            .map(|pipe| writes(pipe.as_fd(), PollFlags::POLLIN));
        let stderr = self
            .stderr
            .as_ref()
            .map(|pipe| writes(pipe.as_fd(), PollFlags::POLLIN));
        let mut fds: Vec<_> = stdin.into_iter().chain(stdout).chain(stderr).collect();
        match poll(&mut fds, PollTimeout::from(20u8)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads and writes as much as is possible without waiting.
    fn pump(&mut self) -> io::Result<()> {
        if let Some(pipe) = &mut self.stdin {
            match pipe.write(self.rest) {
                Ok(count) => self.rest = &self.rest[count..],
                // A plugin may answer without reading all of stdin.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => self.rest = &[],
                Err(error) if is_later(&error) => (),
                Err(error) => return Err(error),
            }
            if self.rest.is_empty() {
                self.stdin = None;
            }
        }
        read_into(&mut self.stdout, &mut self.output)?;
        read_into(&mut self.stderr, &mut self.unfinished)?;
        let came = std::mem::take(&mut self.unfinished);
        let mut lines = came.split(|byte| *byte == b'\n');
        let last = lines.next_back().unwrap_or_default();
        lines.for_each(crate::log::relay);
        if last.len() > LONGEST_LINE {
            crate::log::relay(last);
        } else {
            self.unfinished = last.to_vec();
        }
        if self.output.len() > MAX_OUTPUT {
            return Err(io::Error::other(format!(
                "more than {MAX_OUTPUT} bytes on stdout"
            )));
        }
        Ok(())
    }
}

impl Drop for Talk<'_> {
    fn drop(&mut self) {
        if !self.unfinished.is_empty() {
            crate::log::relay(&self.unfinished);
        }
    }
}

fn read_into<R: Read>(pipe: &mut Option<R>, into: &mut Vec<u8>) -> io::Result<()> {
    let mut chunk = [0; 8192];
    while let Some(open) = pipe {
        match open.read(&mut chunk) {
            Ok(0) => *pipe = None,
            Ok(count) => into.extend_from_slice(&chunk[..count]),
            Err(error) if is_later(&error) => break,
            Err(error) => return Err(error),
        }
        if into.len() > MAX_OUTPUT {
            break;
        }
    }
    Ok(())
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
