//! rail-bench: times rail-cni and rail-ipam beside other CNI plugins, in namespaces of its own, and
//! makes a page of it: tables, pictures, and all samples. `scripts/bench` builds and runs it.

mod bed;
mod contender;
mod floor;
mod page;
mod parts;
mod plot;
mod run;
mod samples;

/// The API server that the tests of the callers have.
#[allow(dead_code, reason = "those tests use more of it")]
#[expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "without it nothing can be measured under Multus"
)]
#[path = "../../../tests/callers/api.rs"]
mod api;

/// Requests and answers of that server.
#[allow(dead_code, reason = "the tests of whereabouts use more of it")]
#[path = "../../../tests/callers/objects.rs"]
mod objects;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Parser, ValueEnum as _};

use crate::bed::Tools;
use crate::page::Run;
use crate::parts::{Part, Plan, Results};

/// Times rail-cni and rail-ipam beside other CNI plugins, in namespaces of its own, and makes a
/// page of it.
#[derive(Debug, Parser)]
#[command(name = "rail-bench")]
struct Arguments {
    /// The parts that are measured; all of them but vfs without a name.
    parts: Vec<Part>,
    /// How often eight rails are attached. One rail is attached five times as often, a growing part
    /// a third.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Where the order of the calls begins; by default a new one, which the page has.
    #[arg(long)]
    seed: Option<u64>,
    /// The folder of page.md, the pictures, raw.csv, summary.csv and counts.csv.
    #[arg(long)]
    to: PathBuf,
    /// Measures although other programs run: the times have those in them, the counts do not.
    #[arg(long)]
    anyway: bool,
    /// Measures nothing: makes the page of what is in the folder.
    #[arg(long)]
    page_only: bool,
    /// The folder of rail-cni and rail-ipam.
    #[arg(long)]
    bin: PathBuf,
    /// The folder of upstream's plugins.
    #[arg(long)]
    peers: PathBuf,
    /// cnitool.
    #[arg(long)]
    cnitool: Option<PathBuf>,
    /// Multus.
    #[arg(long)]
    multus: Option<PathBuf>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.split_first() {
        Some((first, rest)) if first == run::MEMORY_OF => run::memory_of(rest),
        Some((first, _)) if first == run::NOTHING => Ok(0),
        Some((first, rest)) if first == floor::FLOOR => floor::run(rest)
            .map(|()| 0)
            .map_err(|error| format!("{error:#}")),
        _ => bench(Arguments::parse()).map(|()| 0),
    };
    match done {
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(1)),
        Err(error) => {
            eprintln!("rail-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(arguments: Arguments) -> Result<(), String> {
    if !arguments.page_only {
        if !arguments.anyway {
            wait_until_idle()?;
        }
        measure(&arguments)?;
    }
    page::render(&arguments.to)
}

/// Waits until nobody else uses the processors, for some minutes.
fn wait_until_idle() -> Result<(), String> {
    const LOOK: Duration = Duration::from_secs(3);
    const LOOKS: u32 = 100;
    for look in 0..LOOKS {
        let before = busy_and_all()?;
        std::thread::sleep(LOOK);
        let after = busy_and_all()?;
        if (after.0 - before.0) * 20 <= after.1 - before.1 {
            return Ok(());
        }
        if look == 0 {
            eprintln!("waiting until other programs use less than a twentieth of the processors");
        }
    }
    Err("other programs use the processors: measure later, or with --anyway".to_owned())
}

/// Ticks of all processors in which something ran, and all ticks: the first line of proc_stat(5).
fn busy_and_all() -> Result<(u64, u64), String> {
    let text = fs::read_to_string("/proc/stat").map_err(|error| format!("/proc/stat: {error}"))?;
    let words = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1);
    let ticks: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    let all = ticks.iter().take(8).sum();
    // Idle, and idle while a disk is waited for.
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    Ok((all - idle, all))
}

fn measure(arguments: &Arguments) -> Result<(), String> {
    fs::create_dir_all(&arguments.to)
        .map_err(|error| format!("{}: {error}", arguments.to.display()))?;
    // Namespaces are made by a process of one thread.
    cni_conformance::sandbox::enter()?;
    let tools = tools(arguments)?;
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let rounds = usize::try_from(arguments.rounds).unwrap_or(1);
    let mut plan = Plan {
        rounds,
        random: fastrand::Rng::with_seed(seed),
    };
    // VFs are measured in the lab.
    let here: Vec<_> = Part::value_variants()
        .iter()
        .copied()
        .filter(|&part| part != Part::Vfs)
        .collect();
    let all = if arguments.parts.is_empty() {
        &here
    } else {
        &arguments.parts
    };
    let mut results = Results::default();
    let mut failed = Ok(());
    for part in all {
        let begun = std::time::Instant::now();
        // Earlier results are kept.
        failed = part
            .measure(&tools, &mut plan, &mut results)
            .map_err(|error| format!("{}: {error}", part.name()));
        eprintln!("{}: {} s", part.name(), begun.elapsed().as_secs());
        if failed.is_err() {
            break;
        }
    }
    samples::write_csv(&arguments.to.join("raw.csv"), &results.samples)?;
    samples::write_csv(&arguments.to.join("counts.csv"), &results.counted)?;
    let run = Run {
        date: first_line("date", &["-u", "+%F"]),
        kernel: first_line("uname", &["-r"]),
        processor: processor(),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        is_idle: !arguments.anyway,
        version: version(&arguments.bin),
        others: others(arguments),
        rounds,
        seed,
        left_out: results.left_out,
    };
    let text = serde_json::to_string_pretty(&run).map_err(|error| error.to_string())?;
    fs::write(arguments.to.join("run.json"), text).map_err(|error| format!("run.json: {error}"))?;
    failed
}

fn tools(arguments: &Arguments) -> Result<Tools, String> {
    for path in [
        arguments.bin.join("rail-cni"),
        arguments.bin.join("rail-ipam"),
        arguments.peers.join("host-device"),
    ] {
        if !path.exists() {
            return Err(format!("{} is not there", path.display()));
        }
    }
    let has_strace = Command::new("strace")
        .arg("-V")
        .output()
        .is_ok_and(|output| output.status.success());
    // perf writes what it counts to a file.
    let lacks_instructions = run::lacks_instructions(&arguments.to);
    Ok(Tools {
        bin: arguments.bin.clone(),
        peers: arguments.peers.clone(),
        cnitool: arguments.cnitool.clone(),
        multus: arguments.multus.clone(),
        lacks_strace: (!has_strace).then(|| "strace is not here".to_owned()),
        lacks_instructions,
    })
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    line.map_or("unknown", |line| line.trim_start_matches([' ', '\t', ':']))
        .to_owned()
}

fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    String::from_utf8_lossy(&output)
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

fn version(bin: &Path) -> String {
    first_line(&bin.join("rail-cni").to_string_lossy(), &["--version"])
}

/// The versions in the names of the folders of fetched tools: plugins-v1.9.1, bin-v1.3.0,
/// multus-4.3.0.
fn others(arguments: &Arguments) -> String {
    let peers = arguments
        .peers
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let cnitool = arguments
        .cnitool
        .as_deref()
        .and_then(|path| named(path, "bin-", 1))
        .map(|name| format!("cnitool {name}"));
    let multus = arguments
        .multus
        .as_deref()
        .and_then(|path| named(path, "multus-", 2))
        .map(|name| format!("Multus {name}"));
    let peers = peers.and_then(|name| {
        name.strip_prefix("plugins-")
            .map(|version| format!("other plugins {version}"))
    });
    [peers, cnitool, multus]
        .into_iter()
        .flatten()
        .map(|one| format!(", {one}"))
        .collect()
}

/// The rest after `prefix` in the name of the folder so many levels above.
fn named(path: &Path, prefix: &str, levels: usize) -> Option<String> {
    let name = path
        .ancestors()
        .nth(levels)?
        .file_name()?
        .to_string_lossy()
        .into_owned();
    name.strip_prefix(prefix).map(str::to_owned)
}
