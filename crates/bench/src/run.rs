//! Starts programs, and looks at them through a lens: strace, perf, or the peak of their memory.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};

/// A program that is to be run.
#[derive(Clone, Debug, Default)]
pub struct Process {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub vars: Vec<(String, String)>,
    pub stdin: Vec<u8>,
}

/// The object of a look. Times are measured without a lens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lens {
    None,
    Trace,
    Memory,
    Instructions,
}

/// The counts of a lens for all programs of an ADD or a DEL.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub execs: u64,
    pub setns: u64,
    pub moves: u64,
    pub syscalls: u64,
    /// Of the largest process.
    pub peak_kib: u64,
    /// Missing where the processor does not count them.
    pub instructions: Option<u64>,
}

/// Runs programs, and adds up what its lens sees.
#[derive(Debug)]
pub struct Runner {
    lens: Lens,
    directory: PathBuf,
    next: AtomicUsize,
}

/// The argument with which this executable runs another one and writes down its peak. It is small,
/// for a process begins with the peak of the one that forked it.
pub const MEMORY_OF: &str = "--memory-of";
/// The argument with which it does nothing: what the start of any static executable takes.
pub const NOTHING: &str = "--nothing";

impl Runner {
    pub fn new(lens: Lens, directory: &Path) -> Runner {
        Runner {
            lens,
            directory: directory.to_owned(),
            next: AtomicUsize::new(0),
        }
    }

    /// Runs it to its end, and returns what it prints. The error has what it printed, too.
    pub fn run(&self, process: &Process) -> Result<Vec<u8>, String> {
        let seen = self
            .directory
            .join(format!(
                "seen-{}",
                self.next.fetch_add(1, Ordering::Relaxed)
            ))
            .into_os_string();
        let seen = seen.to_string_lossy().into_owned();
        let own =
            std::env::current_exe().map_err(|error| format!("the own executable: {error}"))?;
        let own = own.to_string_lossy();
        let wrapper: &[&str] = match self.lens {
            Lens::None => &[],
            Lens::Trace => &["strace", "-f", "-v", "-x", "-s", "4096", "-o", &seen, "--"],
            Lens::Memory => &[&own, MEMORY_OF, &seen],
            Lens::Instructions => &[
                "perf",
                "stat",
                "-x",
                ",",
                "-e",
                "instructions",
                "-o",
                &seen,
                "--",
            ],
        };
        let program = process.program.to_string_lossy();
        let mut words = wrapper.iter().copied().chain([&*program]);
        let first = words.next().unwrap_or_default();
        let mut command = Command::new(first);
        command.args(words).args(&process.arguments);
        command
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap_or_default());
        command.envs(process.vars.iter().map(|(name, value)| (name, value)));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let told = |error: std::io::Error| format!("{program}: {error}");
        let mut child = command.spawn().map_err(told)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that refuses its environment does not read.
            let _ = stdin.write_all(&process.stdin);
        }
        let output = child.wait_with_output().map_err(told)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let texts = [output.stdout, output.stderr]
            .map(|text| String::from_utf8_lossy(&text).trim().to_owned());
        Err(format!(
            "{program} {}: {}: {}",
            process.arguments.join(" "),
            output.status,
            texts.join(" ")
        ))
    }

    /// The counts since the last time.
    pub fn counts(&self) -> Result<Counts, String> {
        let mut counts = Counts::default();
        for number in 0..self.next.swap(0, Ordering::Relaxed) {
            let path = self.directory.join(format!("seen-{number}"));
            let text = fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            match self.lens {
                Lens::None => {}
                Lens::Trace => counts.add_trace(&text),
                Lens::Memory => {
                    let peak = text
                        .trim()
                        .parse()
                        .map_err(|_| format!("{}: {text:?}", path.display()))?;
                    counts.peak_kib = counts.peak_kib.max(peak);
                }
                Lens::Instructions => {
                    *counts.instructions.get_or_insert(0) +=
                        instructions(&text).ok_or_else(|| format!("perf stat: {}", text.trim()))?;
                }
            }
        }
        Ok(counts)
    }
}

impl Counts {
    /// Adds what strace wrote: a line for each call, and a second one for each that another thread
    /// interrupted.
    fn add_trace(&mut self, text: &str) {
        for line in text.lines() {
            let Some((_, call)) = line.split_once(' ') else {
                continue;
            };
            let call = call.trim_start();
            let is_done = call.ends_with("= 0");
            if call.starts_with("<... execve resumed>") && is_done {
                self.execs += 1;
            }
            let Some((name, _)) = call.split_once('(') else {
                continue;
            };
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                continue;
            }
            self.syscalls += 1;
            match name {
                "execve" if is_done => self.execs += 1,
                "setns" => self.setns += 1,
                "sendto" | "sendmsg" if is_move(call) => self.moves += 1,
                _ => {}
            }
        }
    }

    /// With what another lens saw.
    pub fn and(self, other: &Counts) -> Counts {
        Counts {
            execs: self.execs.max(other.execs),
            setns: self.setns.max(other.setns),
            moves: self.moves.max(other.moves),
            syscalls: self.syscalls.max(other.syscalls),
            peak_kib: self.peak_kib.max(other.peak_kib),
            instructions: self.instructions.or(other.instructions),
        }
    }
}

/// Does this netlink message move a device to another namespace? strace does not know what a socket
/// is that was made in another namespace: then the attributes are bytes.
fn is_move(call: &str) -> bool {
    const IFINFO: usize = 16;
    if call.contains("nla_type=IFLA_NET_NS_FD") || call.contains("nla_type=IFLA_NET_NS_PID") {
        return true;
    }
    // RTM_NEWLINK and RTM_SETLINK.
    if !call.contains("nlmsg_type=0x10 ") && !call.contains("nlmsg_type=0x13 ") {
        return false;
    }
    let Some((bytes, _)) = call
        .split_once("}, \"")
        .and_then(|(_, rest)| rest.split_once('"'))
    else {
        return false;
    };
    let byte = |word: &str| u8::from_str_radix(word, 16).ok();
    let bytes: Vec<u8> = bytes.split("\\x").filter_map(byte).collect();
    let mut rest = bytes.get(IFINFO..).unwrap_or_default();
    while let [low, high, kind, 0, ..] = rest {
        // IFLA_NET_NS_PID and IFLA_NET_NS_FD.
        if [19, 28].contains(kind) {
            return true;
        }
        let length = usize::from(u16::from_le_bytes([*low, *high])).max(4);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

/// The count of `perf stat -x ,`: the first field of the line that names the event.
fn instructions(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains(",instructions"))?;
    line.split(',').next()?.parse().ok()
}

/// Why instructions cannot be counted here, if they cannot.
pub fn lacks_instructions(directory: &Path) -> Option<String> {
    let runner = Runner::new(Lens::Instructions, directory);
    let ran = runner.run(&Process {
        program: "true".into(),
        ..Process::default()
    });
    let counted = ran.and_then(|_| runner.counts());
    let _ = fs::remove_file(directory.join("seen-0"));
    match counted {
        Ok(_) => None,
        Err(error) if error.contains("not supported") => {
            Some("perf says that this machine does not count them".to_owned())
        }
        Err(error) => Some(error.lines().last().unwrap_or_default().to_owned()),
    }
}

/// Runs what the arguments say, and writes the peak of the largest process to a file, in KiB. The
/// exit status is that of the program.
pub fn memory_of(arguments: &[String]) -> Result<i32, String> {
    let [file, program, arguments @ ..] = arguments else {
        return Err(format!("{MEMORY_OF} FILE PROGRAM"));
    };
    let status = Command::new(program)
        .args(arguments)
        .status()
        .map_err(|error| format!("{program}: {error}"))?;
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(|error| error.to_string())?;
    fs::write(file, usage.max_rss().to_string()).map_err(|error| format!("{file}: {error}"))?;
    Ok(status.code().unwrap_or(128))
}

/// User and system time of all children that have ended.
pub fn cpu_of_children() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else {
        return Duration::ZERO;
    };
    [usage.user_time(), usage.system_time()]
        .into_iter()
        .fold(Duration::ZERO, |sum, time| {
            let micros = time.tv_sec() * 1_000_000 + time.tv_usec();
            sum + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
        })
}

/// Measures the time of `work`, and the CPU time of its children.
pub fn timed<T>(
    work: impl FnOnce() -> Result<T, String>,
) -> Result<(T, Duration, Duration), String> {
    let before = cpu_of_children();
    let begun = Instant::now();
    let done = work()?;
    let wall = begun.elapsed();
    Ok((done, wall, cpu_of_children().saturating_sub(before)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_counted_once_per_call() {
        let trace = "\
7 execve(\"/bin/x\", [\"x\"], 0x7ffd /* 3 vars */) = 0
7 openat(AT_FDCWD, \"\"..., O_RDONLY) = -1 ENOENT (No such file or directory)
7 clone(child_stack=NULL, flags=CLONE_VM) = 8
8 execve(\"/bin/y\", [\"y\"], 0x7ffd /* 3 vars */ <unfinished ...>
7 wait4(-1,  <unfinished ...>
8 <... execve resumed>) = 0
8 setns(3, CLONE_NEWNET) = 0
8 sendto(4, [{nlmsg_len=60, nlmsg_type=RTM_NEWLINK}, {ifi_family=AF_UNSPEC}, [[{nla_len=8, nla_type=IFLA_NET_NS_FD}, 5]]], 60, 0, NULL, 0) = 60
8 +++ exited with 0 +++
7 <... wait4 resumed>NULL, 0, NULL) = 8
7 --- SIGCHLD {si_signo=SIGCHLD} ---
";
        let mut counts = Counts::default();
        counts.add_trace(trace);
        let seen = (counts.execs, counts.syscalls, counts.setns, counts.moves);
        assert_eq!(seen, (2, 7, 1, 1));
    }

    #[test]
    fn a_move_is_known_by_its_attribute_also_as_bytes() {
        let line = |attributes: &str| {
            let begin = "sendto(3, [{nlmsg_len=40, nlmsg_type=0x10 /* NLMSG_??? */, nlmsg_flags=0, nlmsg_seq=1, nlmsg_pid=0}, \"";
            format!(
                "{begin}{}{attributes}\"], 40, 0, NULL, 0) = 40",
                "\\x00".repeat(16)
            )
        };
        let name = r"\x07\x00\x03\x00\x6c\x6f\x00\x00";
        let descriptor = r"\x08\x00\x1c\x00\x04\x00\x00\x00";
        assert!(is_move(&line(&format!("{name}{descriptor}"))));
        assert!(!is_move(&line(name)));
    }

    #[test]
    fn instructions_are_those_of_perf() {
        let counted = "# started on Mon\n\n1234567,,instructions:u,1000,100.00,,\n";
        assert_eq!(instructions(counted), Some(1_234_567));
        assert_eq!(
            instructions("<not supported>,,instructions,0,100.00,,\n"),
            None
        );
    }
}
