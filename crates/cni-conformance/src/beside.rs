//! A program that runs beside the plugin while a check does: an API server, a daemon.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::call::{Collected, process_of};
use crate::value::{SHOWN, cut, plain, quoted};

/// How long it may take until it is ready.
pub const LIMIT: Duration = Duration::from_secs(10);

/// When it is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// It listens to this address.
    Listens(SocketAddr),
    /// This file, or this socket, is there.
    Exists(String),
}

impl Ready {
    /// An address with its port, or a path.
    pub fn of(text: &str) -> Result<Ready, String> {
        match text.parse() {
            Ok(address) => Ok(Ready::Listens(address)),
            Err(_) if text.starts_with('/') => Ok(Ready::Exists(text.to_owned())),
            Err(_) => Err(format!(
                "{text:?}: expected an address with its port, or a path"
            )),
        }
    }

    fn holds(&self) -> bool {
        match self {
            Ready::Listens(address) => {
                TcpStream::connect_timeout(address, Duration::from_secs(1)).is_ok()
            }
            Ready::Exists(path) => fs::exists(path).unwrap_or(false),
        }
    }

    /// A line of bash that waits for it.
    pub fn shell(&self) -> String {
        let holds = match self {
            Ready::Listens(address) => {
                format!("(: >/dev/tcp/{}/{}) 2>&-", address.ip(), address.port())
            }
            Ready::Exists(path) => format!("[ -e {} ]", quoted(path)),
        };
        format!("until {holds}; do sleep 0.1; done")
    }
}

/// One that was started.
#[derive(Debug)]
pub struct Beside {
    name: String,
    process: Pid,
    stderr: Option<Collected>,
    ended: Receiver<String>,
    keeper: Option<JoinHandle<()>>,
}

impl Beside {
    /// Starts it in the namespaces of this thread, and returns when it is ready.
    pub fn start(mut command: Command, ready: &Ready) -> Result<Beside, String> {
        let name = Path::new(command.get_program()).display().to_string();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let (started, start) = channel();
        let (end, ended) = channel();
        let keeper = std::thread::spawn(move || {
            let child = command.spawn().map(|mut child| {
                let stderr = child.stderr.take().map(Collected::of);
                let _ = started.send(Ok((process_of(&child), stderr)));
                child
            });
            let mut child = match child {
                Ok(child) => child,
                Err(error) => return drop(started.send(Err(error))),
            };
            let _ = end.send(match child.wait() {
                Ok(status) => match status.code() {
                    Some(code) => format!("ended with exit status {code}"),
                    None => format!("was ended by signal {}", status.signal().unwrap_or(0)),
                },
                Err(error) => format!("cannot be waited for: {error}"),
            });
        });
        let (process, stderr) = match start.recv() {
            Ok(Ok(started)) => started,
            Ok(Err(error)) => return Err(format!("beside: cannot execute {name}: {error}")),
            Err(_) => return Err(format!("beside: {name} was not started")),
        };
        let beside = Beside {
            name,
            process,
            stderr,
            ended,
            keeper: Some(keeper),
        };
        let begun = Instant::now();
        while !ready.holds() {
            if let Some(why) = beside.ended() {
                return Err(format!("{why}, before it was ready"));
            }
            if begun.elapsed() > LIMIT {
                let what = match ready {
                    Ready::Listens(address) => format!("it does not listen to {address}"),
                    Ready::Exists(path) => format!("there is no {path}"),
                };
                let (name, said) = (&beside.name, beside.said());
                return Err(format!(
                    "beside: {name} is not ready after {} s: {what}{said}",
                    LIMIT.as_secs()
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(beside)
    }

    /// Its process.
    pub fn process(&self) -> Pid {
        self.process
    }

    /// How it ended, if it did. It is told once.
    pub fn ended(&self) -> Option<String> {
        let how = self.ended.try_recv().ok()?;
        Some(format!("beside: {} {how}{}", self.name, self.said()))
    }

    /// What it wrote on stderr until now.
    fn said(&self) -> String {
        let mut bytes = Vec::new();
        if let Some(stderr) = &self.stderr {
            stderr.take(&mut bytes, Instant::now() + Duration::from_millis(200));
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if text.is_empty() {
            text
        } else {
            format!(" ({})", plain(&cut(&text, SHOWN)))
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if self
            .keeper
            .as_ref()
            .is_some_and(|keeper| !keeper.is_finished())
        {
            let _ = kill(self.process, Signal::SIGKILL);
        }
        let _ = self.keeper.take().map(JoinHandle::join);
    }
}
