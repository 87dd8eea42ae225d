//! A call of a plugin, as a runtime makes it, and how it ended.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

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

/// A call that does not end: what its processes wait for.
#[derive(Debug)]
pub struct Hung(pub String);

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

    /// The command with its pipes, in a process group of its own; `wrapper` comes before it.
    pub fn command(&self, wrapper: &[&str]) -> std::io::Result<Command> {
        let mut words: Vec<PathBuf> = wrapper.iter().map(PathBuf::from).collect();
        words.push(self.program.clone());
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
            match self.command(&[])?.spawn() {
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

    /// Ends the configuration, and waits.
    pub fn wait(mut self, limit: Duration) -> Result<Ran, Hung> {
        self.end_input();
        let group = process_of(&self.child);
        let status = match ended(&mut self.child, limit) {
            Some(status) => status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            None => {
                let waits = waits(group);
                let _ = killpg(group, Signal::SIGKILL);
                // It may be in another group by now.
                let _ = self.child.kill();
                let _ = self.child.wait();
                return Err(Hung(waits));
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
        Ok(Ran {
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

/// What a call waits for that was started as this process, as far as the kernel says it: each
/// thread of it, of its group and of what they started.
pub fn waits(first: Pid) -> String {
    let processes = processes();
    let mut found = BTreeSet::from([first.as_raw()]);
    loop {
        let is_of = |one: &&Process| found.contains(&one.parent) || one.group == first.as_raw();
        let more: Vec<_> = processes
            .iter()
            .filter(is_of)
            .map(|one| one.number)
            .collect();
        let before = found.len();
        found.extend(more);
        if found.len() == before {
            break;
        }
    }
    let found = processes.iter().filter(|one| found.contains(&one.number));
    found
        .flat_map(|one| one.waits(&processes))
        .collect::<Vec<_>>()
        .join("; ")
}

/// What /proc says of a process.
struct Process {
    number: i32,
    parent: i32,
    group: i32,
    /// Its open files, with device and inode: the same path is another file in another check.
    files: BTreeMap<i32, (String, u64, u64)>,
}

/// Those that can be seen.
fn processes() -> Vec<Process> {
    let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let one = |entry: std::fs::DirEntry| {
        let (_, words) = stat(&entry.path())?;
        let files = std::fs::read_dir(entry.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        let file = |fd: std::fs::DirEntry| {
            let target = std::fs::read_link(fd.path())
                .ok()?
                .to_string_lossy()
                .into_owned();
            let about = std::fs::metadata(fd.path()).ok()?;
            Some((
                fd.file_name().to_str()?.parse().ok()?,
                (target, about.dev(), about.ino()),
            ))
        };
        let (parent, group) = (words.get(1)?.parse().ok()?, words.get(2)?.parse().ok()?);
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some(Process {
            number,
            parent,
            group,
            files: files.filter_map(file).collect(),
        })
    };
    names.filter_map(one).collect()
}

fn of_process(number: i32) -> PathBuf {
    Path::new("/proc").join(number.to_string())
}

/// The name of a process or a thread, and what is behind it in its `stat`.
fn stat(path: &Path) -> Option<(String, Vec<String>)> {
    let stat = std::fs::read_to_string(path.join("stat")).ok()?;
    // The name, in brackets, may have anything in it.
    let (name, rest) = stat.rsplit_once(')')?;
    Some((
        name.split_once('(')?.1.to_owned(),
        rest.split_whitespace().map(str::to_owned).collect(),
    ))
}

impl Process {
    /// A line for each thread: the system call, the file that it is about, and who else has that
    /// file.
    fn waits(&self, all: &[Process]) -> Vec<String> {
        let threads = std::fs::read_dir(of_process(self.number).join("task"))
            .into_iter()
            .flatten()
            .flatten();
        let line = |thread: std::fs::DirEntry| {
            let path = thread.path();
            let (name, words) = stat(&path)?;
            let read = |file: &str| std::fs::read_to_string(path.join(file)).unwrap_or_default();
            let mut text = format!(
                "{name} is in state {}, in {}",
                words.first()?,
                read("wchan")
            );
            let call = read("syscall");
            let mut words = call.split_whitespace();
            let (Some(number), Some(first)) = (words.next(), words.next()) else {
                return Some(text);
            };
            text.push_str(&format!(", system call {number}"));
            let file = i32::from_str_radix(first.trim_start_matches("0x"), 16).ok();
            if let Some(file) = file.and_then(|file| self.files.get(&file)) {
                let has = |one: &&Process| {
                    one.number != self.number && one.files.values().any(|other| other == file)
                };
                let others = all
                    .iter()
                    .filter(has)
                    .map(|one| stat(&of_process(one.number)));
                let others: BTreeSet<_> = others.flatten().map(|(name, _)| name).collect();
                text.push_str(&format!(" of {}", file.0));
                if !others.is_empty() {
                    text.push_str(&format!(
                        ", which {} have, too",
                        Vec::from_iter(others).join(" and ")
                    ));
                }
            }
            Some(text)
        };
        threads.filter_map(line).collect()
    }
}

/// Its process. No kernel has numbers that are no `i32`.
pub fn process_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
}

/// A word of a shell.
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,;".contains(c);
    if !text.is_empty() && text.chars().all(|c| is_plain(c) && c != ';') {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}
