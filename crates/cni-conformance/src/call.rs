//! A call of a plugin, as a runtime makes it, and how it ended.

use std::collections::BTreeMap;
use std::io::{Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::value::{SHOWN, cut, plain, quoted};

/// What the plugin reads.
#[derive(Clone, Debug)]
pub enum Stdin {
    /// These bytes, from a pipe.
    Bytes(Vec<u8>),
    /// A pipe into which nobody writes, and which nobody closes.
    Silent,
    /// There is none.
    Closed,
    /// A file.
    File(PathBuf),
}

/// A call that has not been made yet.
#[derive(Clone, Debug)]
pub struct Call {
    program: PathBuf,
    arguments: Vec<String>,
    vars: BTreeMap<String, String>,
    stdin: Stdin,
    is_stdout_broken: bool,
    is_stderr_null: bool,
}

/// How a call ended.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Exit status; 128 + the signal if one ended it.
    pub status: i32,
    /// What it printed; of more than [`MOST`] bytes the first.
    pub stdout: String,
    /// What it logged; of more than [`MOST`] bytes the first.
    pub stderr: String,
    /// Did it print more than [`MOST`] bytes?
    pub is_cut: bool,
    /// Does a process that it started still have its stdout or stderr?
    pub is_held: bool,
}

/// How many bytes of a stream are kept: 1 MiB.
pub const MOST: usize = 1 << 20;

impl Call {
    /// A call of `program` with nothing but PATH in its environment.
    pub fn new(program: PathBuf) -> Call {
        let path = std::env::var("PATH").unwrap_or_default();
        Call {
            program,
            arguments: Vec::new(),
            vars: BTreeMap::from([("PATH".to_owned(), path)]),
            stdin: Stdin::Bytes(Vec::new()),
            is_stdout_broken: false,
            is_stderr_null: false,
        }
    }

    /// Sets a variable.
    #[must_use]
    pub fn var(mut self, name: &str, value: impl Into<String>) -> Call {
        self.vars.insert(name.to_owned(), value.into());
        self
    }

    /// Leaves a variable unset.
    #[must_use]
    pub fn without(mut self, name: &str) -> Call {
        self.vars.remove(name);
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Call {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Sets the configuration.
    #[must_use]
    pub fn conf(self, conf: &Value) -> Call {
        self.text(conf.to_string())
    }

    /// Sets what is on stdin.
    #[must_use]
    pub fn text(self, text: impl Into<Vec<u8>>) -> Call {
        self.stdin(Stdin::Bytes(text.into()))
    }

    /// Sets what stdin is.
    #[must_use]
    pub fn stdin(mut self, stdin: Stdin) -> Call {
        self.stdin = stdin;
        self
    }

    /// Nobody reads stdout any more.
    #[must_use]
    pub fn broken_stdout(mut self) -> Call {
        self.is_stdout_broken = true;
        self
    }

    /// stderr is /dev/null.
    #[must_use]
    pub fn null_stderr(mut self) -> Call {
        self.is_stderr_null = true;
        self
    }

    /// Its variables.
    pub fn vars(&self) -> &BTreeMap<String, String> {
        &self.vars
    }

    /// Is PATH another one than that of the suite?
    pub fn path_is_changed(&self) -> bool {
        self.vars.get("PATH").map(String::as_str)
            != Some(&std::env::var("PATH").unwrap_or_default())
    }

    /// Its arguments.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// What stdin is.
    pub fn input(&self) -> &Stdin {
        &self.stdin
    }

    /// Does nobody read stdout?
    pub fn is_stdout_broken(&self) -> bool {
        self.is_stdout_broken
    }

    /// Is stderr /dev/null?
    pub fn is_stderr_null(&self) -> bool {
        self.is_stderr_null
    }

    /// What is on stdin, if it is bytes.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match &self.stdin {
            Stdin::Bytes(bytes) => Some(bytes.clone()),
            _ => None,
        }
    }

    /// What a person types to make this call.
    pub fn shell(&self) -> String {
        let vars = self.vars.iter().filter(|(name, _)| *name != "PATH");
        let vars: Vec<_> = vars
            .map(|(name, value)| format!("{name}={}", quoted(value)))
            .collect();
        let mut text = format!(
            "{} {}",
            vars.join(" "),
            quoted(&self.program.to_string_lossy())
        );
        for argument in &self.arguments {
            text.push_str(&format!(" {}", quoted(argument)));
        }
        match &self.stdin {
            Stdin::Bytes(bytes) if bytes.is_empty() => text.push_str(" </dev/null"),
            Stdin::Bytes(bytes) if bytes.len() > 4000 => {
                text.push_str(&format!(" # {} bytes on stdin", bytes.len()));
            }
            Stdin::Bytes(bytes) => {
                text.push_str(&format!(" <<<{}", quoted(&String::from_utf8_lossy(bytes))))
            }
            Stdin::Silent => text = format!("sleep 9 | {text}"),
            Stdin::Closed => text.push_str(" <&-"),
            Stdin::File(path) => text.push_str(&format!(" <{}", path.display())),
        }
        if self.is_stdout_broken {
            text.push_str(" | true");
        }
        if self.is_stderr_null {
            text.push_str(" 2>/dev/null");
        }
        text
    }

    /// The command with its pipes, in a process group of its own.
    fn command(&self) -> std::io::Result<Command> {
        let mut words = vec![self.program.clone()];
        if matches!(self.stdin, Stdin::Closed) {
            words.splice(
                0..0,
                ["sh", "-c", "exec \"$0\" \"$@\" <&-"].map(PathBuf::from),
            );
        }
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args(&self.arguments)
            .env_clear()
            .envs(&self.vars)
            .process_group(0);
        command.stdin(match &self.stdin {
            Stdin::File(path) => Stdio::from(std::fs::File::open(path)?),
            _ => Stdio::piped(),
        });
        command.stdout(if self.is_stdout_broken {
            let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
            drop(read);
            Stdio::from(write)
        } else {
            Stdio::piped()
        });
        command.stderr(if self.is_stderr_null {
            Stdio::null()
        } else {
            Stdio::piped()
        });
        Ok(command)
    }

    /// Starts it. It has its configuration, but not the end of it.
    pub fn start(&self) -> std::io::Result<Running> {
        // The text of a script is busy while another thread's child still has the file that wrote
        // it open.
        let mut tries = 0;
        let mut child = loop {
            match self.command()?.spawn() {
                Err(error)
                    if error.kind() == std::io::ErrorKind::ExecutableFileBusy && tries < 100 =>
                {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(5));
                }
                other => break other?,
            }
        };
        let stdin = child.stdin.take();
        let writer = match (&self.stdin, stdin) {
            (Stdin::Bytes(bytes), Some(mut stdin)) if bytes.len() <= 1 << 15 => {
                // A plugin that refuses its environment does not read.
                let _ = stdin.write_all(bytes);
                Some(stdin)
            }
            (Stdin::Bytes(bytes), Some(mut stdin)) => {
                let bytes = bytes.clone();
                std::thread::spawn(move || stdin.write_all(&bytes));
                None
            }
            (_, stdin) => stdin,
        };
        let [stdout, stderr] = [
            child.stdout.take().map(Collected::of),
            child.stderr.take().map(Collected::of),
        ];
        Ok(Running {
            child,
            writer,
            is_silent: matches!(self.stdin, Stdin::Silent),
            streams: [stdout, stderr],
        })
    }
}

impl Ran {
    /// How it ended, in words: with what it printed, and with what it logged.
    pub fn told(&self) -> String {
        let line = |text: &str| {
            plain(&cut(
                &text.split_whitespace().collect::<Vec<_>>().join(" "),
                SHOWN,
            ))
        };
        let (stdout, stderr) = (line(&self.stdout), line(&self.stderr));
        let mut text = format!("exit status {}", self.status);
        if !stdout.is_empty() {
            text.push_str(&format!(", {stdout}"));
        }
        if !stderr.is_empty() {
            text.push_str(&format!(", stderr: {stderr}"));
        }
        text
    }

    /// The one JSON object on stdout.
    pub fn result(&self) -> Result<Value, String> {
        match serde_json::from_str::<Value>(&self.stdout) {
            Ok(value) if value.is_object() => Ok(value),
            _ => Err(format!(
                "stdout is not one JSON object: {:?}",
                cut(&self.stdout, SHOWN)
            )),
        }
    }

    /// The error object.
    pub fn error(&self) -> Result<Value, String> {
        let error = self.result()?;
        let is_text = |key: &str| error[key].is_string();
        // 0.4.0 has a table with negative ones.
        if !(error["code"].is_u64() || error["code"].is_i64())
            || !is_text("msg")
            || !(is_text("details") || error.get("details").is_none())
        {
            return Err(format!("not an error object (code, msg, details): {error}"));
        }
        Ok(error)
    }
}

/// A call that was started.
#[derive(Debug)]
pub struct Running {
    child: Child,
    writer: Option<std::process::ChildStdin>,
    is_silent: bool,
    streams: [Option<Collected>; 2],
}

impl Running {
    /// Ends the configuration.
    pub fn end_input(&mut self) {
        if !self.is_silent {
            self.writer = None;
        }
    }

    /// Ends the configuration, and waits. `None` if the call did not end within the limit, and was
    /// killed.
    pub fn wait(mut self, limit: Duration) -> Option<Ran> {
        self.end_input();
        let group = process_of(&self.child);
        let status = match ended(&mut self.child, limit) {
            Some(status) => status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            None => {
                let _ = killpg(group, Signal::SIGKILL);
                // It may be in another group by now.
                let _ = self.child.kill();
                let _ = self.child.wait();
                return None;
            }
        };
        let mut is_held = false;
        let mut until = Instant::now() + Duration::from_secs(2);
        let [stdout, stderr] = self.streams.map(|stream| {
            let mut bytes = Vec::new();
            let Some(stream) = stream else { return bytes };
            if !stream.take(&mut bytes, until) {
                is_held = true;
                let _ = killpg(group, Signal::SIGKILL);
                // What is in another group keeps the stream. What was printed is here.
                until = Instant::now() + Duration::from_millis(200);
                stream.take(&mut bytes, until);
            }
            bytes
        });
        let is_cut = stdout.len() > MOST;
        let text =
            |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(MOST)]).into_owned();
        Some(Ran {
            status,
            stdout: text(&stdout),
            stderr: text(&stderr),
            is_cut,
            is_held,
        })
    }
}

/// What a thread reads from a stream until its end: no plugin waits for a reader.
#[derive(Debug)]
pub struct Collected(Receiver<Vec<u8>>);

impl Collected {
    /// Begins to read.
    pub fn of(mut stream: impl Read + Send + 'static) -> Collected {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let (mut buffer, mut kept) = (vec![0; 1 << 16], 0);
            while let Ok(count) = stream.read(&mut buffer) {
                if count == 0 {
                    break;
                }
                // One byte more than is kept says that there were more.
                let count = count.min(MOST + 1 - kept);
                kept += count;
                if count > 0 && sender.send(buffer[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Collected(receiver)
    }

    /// Adds what there is until then. Has the stream ended?
    pub fn take(&self, bytes: &mut Vec<u8>, until: Instant) -> bool {
        loop {
            match self
                .0
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(more) => bytes.extend(more),
                Err(error) => return error == RecvTimeoutError::Disconnected,
            }
        }
    }
}

fn ended(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    let mut pause = Duration::from_micros(300);
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if begun.elapsed() > limit {
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(4));
    }
}

/// Its process. No kernel has numbers that are no `i32`.
pub fn process_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
}
