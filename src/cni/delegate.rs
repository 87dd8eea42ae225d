//! Calling an IPAM plugin: the same environment and the same bytes that we
//! were given, its answer or its error, and never longer than a deadline.

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

use super::{AddResult, Attachment, Code, ErrorJson, Failure, Version, find_plugin};
use crate::{failure, watchdog};

/// An IPAM gets this long. Runtimes give a pod's start minutes, for all its networks together.
const PATIENCE: Duration = Duration::from_secs(30);
/// Set for whom we call, and so for all that it calls: a plugin that finds it was called by itself.
pub const CALLER: &str = "RAIL_CNI_CALLER";
/// A result is a few hundred bytes; more than this is not one.
const MAX_OUTPUT: usize = 1 << 20;
/// What is longer is logged in parts.
const LONGEST_LINE: usize = 64 << 10;

/// A plugin that could not be started.
#[derive(Debug)]
struct NotRun(String);

impl std::fmt::Display for NotRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Is it certain that an ADD that ended so gave no address? The plugin never ran, or refused in so many words.
pub fn gave_nothing(error: &anyhow::Error) -> bool {
    crate::error::is_relayed(error) || error.downcast_ref::<NotRun>().is_some()
}

/// An IPAM plugin that was found, with what it is called with.
#[derive(Debug)]
pub struct Delegate<'a> {
    program: PathBuf,
    name: &'a str,
    stdin: &'a [u8],
    variables: Vec<(&'static str, std::ffi::OsString)>,
    patience: Duration,
}

impl<'a> Delegate<'a> {
    /// Finds `name` in `path`. The environment stays this process's own: the plugin sees what we see.
    pub fn find(name: &'a str, path: &[PathBuf], stdin: &'a [u8]) -> Result<Delegate<'a>> {
        let program = find_plugin(name, path)?;
        Ok(Delegate { program, name, stdin, variables: Vec::new(), patience: PATIENCE })
    }

    /// Waits no longer than this for an answer.
    #[must_use]
    pub fn within(mut self, patience: Duration) -> Delegate<'a> {
        self.patience = patience;
        self
    }

    /// Hands on this configuration instead.
    #[must_use]
    pub fn with_stdin(self, stdin: &'a [u8]) -> Delegate<'a> {
        Delegate { stdin, ..self }
    }

    /// Calls for another attachment than the one of this process: when something lost is given back.
    #[must_use]
    pub fn on_behalf_of(
        mut self,
        attachment: &Attachment,
        netns: &Path,
        args: &str,
        path: &[PathBuf],
    ) -> Delegate<'a> {
        let path = std::env::join_paths(path).unwrap_or_default();
        self.variables = vec![
            ("CNI_CONTAINERID", attachment.container_id.clone().into()),
            ("CNI_IFNAME", attachment.ifname.clone().into()),
            ("CNI_NETNS", netns.into()),
            ("CNI_PATH", path),
            ("CNI_ARGS", args.into()),
        ];
        self
    }

    /// ADD, and its result in our form.
    pub fn add(&self, version: Version) -> Result<AddResult> {
        let output = self.call("ADD")?;
        let value: Value = serde_json::from_slice(&output).map_err(|error| {
            self.garbage(&output, &format!("ADD succeeded but printed no result: {error}"))
        })?;
        AddResult::parse(&value, version).with_context(|| format!("IPAM plugin {}", self.name))
    }

    /// Any other verb; what it prints is of no meaning.
    pub fn run(&self, verb: &str) -> Result<()> {
        self.call(verb).map(drop)
    }

    fn call(&self, verb: &str) -> Result<Vec<u8>> {
        watchdog::step(|| format!("waiting for the IPAM plugin {}: {verb}", self.name));
        let mut child = self
            .spawn(verb)
            .with_context(|| NotRun(format!("cannot run the IPAM plugin {}", self.program.display())))?;
        let group = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        let _ends_with_us = watchdog::child(group);
        let talk = Talk::new(&mut child, self.stdin, Instant::now() + self.patience);
        let ended = talk.and_then(|mut talk| talk.until_exit(&mut child));
        let (status, output) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                // Whatever it started goes with it: a child that keeps a pipe open would hang the runtime.
                let _ = killpg(group, Signal::SIGKILL);
                let _ = child.wait();
                let what = if error.kind() == ErrorKind::TimedOut {
                    format!("did not answer {verb} within {:?} and was killed", self.patience)
                } else {
                    format!("could not be talked to: {error}")
                };
                return Err(failure!(Internal, "IPAM plugin {} {what}", self.name));
            }
        };
        if status.success() {
            return Ok(output);
        }
        // Its own error is passed on as it is; only the error object tells one from garbage.
        match serde_json::from_slice::<ErrorJson>(&output) {
            Ok(error) => Err(anyhow::Error::new(Failure::relayed(error))),
            Err(_) => {
                Err(self.garbage(&output, &format!("{verb} failed ({}) without an error", shown(status))))
            }
        }
    }

    fn spawn(&self, verb: &str) -> io::Result<Child> {
        let mut tries = 0;
        loop {
            let mut command = std::process::Command::new(&self.program);
            command.env("CNI_COMMAND", verb).envs(self.variables.iter().map(|(key, value)| (key, value)));
            command.env(CALLER, std::process::id().to_string());
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
            match command.spawn() {
                // An installer is writing the file.
                Err(error) if error.raw_os_error() == Some(Errno::ETXTBSY as i32) && tries < 5 => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(50));
                }
                spawned => return spawned,
            }
        }
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

/// The three pipes of a child. Its stderr goes through us, for a grandchild that kept ours open would hang
/// the runtime (containernetworking/cni reads both until they are closed).
struct Talk<'a> {
    stdin: Option<std::process::ChildStdin>,
    rest: &'a [u8],
    stdout: Option<std::process::ChildStdout>,
    stderr: Option<std::process::ChildStderr>,
    output: Vec<u8>,
    /// What came on stderr and is no whole line yet.
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
        stdin.into_iter().chain(stdout).chain(self.stderr.as_ref().map(AsFd::as_fd))
    }

    fn until_exit(&mut self, child: &mut Child) -> io::Result<(ExitStatus, Vec<u8>)> {
        // While the pipes are open, their end wakes us; what is left then is the moment until the exit.
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

    /// Until a pipe can be used, but not for long: a grandchild may hold one open after the exit.
    fn wait_for_pipes(&self) -> io::Result<()> {
        let writes = PollFd::new;
        let stdin = self.stdin.as_ref().map(|pipe| writes(pipe.as_fd(), PollFlags::POLLOUT));
        let stdout = self.stdout.as_ref().map(|pipe| writes(pipe.as_fd(), PollFlags::POLLIN));
        let stderr = self.stderr.as_ref().map(|pipe| writes(pipe.as_fd(), PollFlags::POLLIN));
        let mut fds: Vec<_> = stdin.into_iter().chain(stdout).chain(stderr).collect();
        match poll(&mut fds, PollTimeout::from(20u8)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Moves what can be moved without waiting.
    fn pump(&mut self) -> io::Result<()> {
        if let Some(pipe) = &mut self.stdin {
            match pipe.write(self.rest) {
                Ok(count) => self.rest = &self.rest[count..],
                // A plugin may answer without reading all of it.
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
            return Err(io::Error::other(format!("more than {MAX_OUTPUT} bytes on stdout")));
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
