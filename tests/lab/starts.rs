//! Times the start of programs: `starts ROUNDS STDIN PROGRAM...` runs each once a round, in turn,
//! with this environment and STDIN, and prints a line for each: PROGRAM, the medians of elapsed
//! time and CPU time in milliseconds, and the page faults, with tabs between them.
//! scripts/bench-start makes a table of these lines.
#![allow(clippy::unwrap_used, clippy::panic, clippy::exit, clippy::print_stdout)]

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [rounds, stdin, programs @ ..] = &arguments[..] else {
        panic!("usage: starts ROUNDS STDIN PROGRAM...")
    };
    let mut samples = vec![Vec::new(); programs.len()];
    for round in 0..=rounds.parse().unwrap() {
        for (program, samples) in programs.iter().zip(&mut samples) {
            let sample = start(program, stdin);
            // The first round reads what is not in memory yet.
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    for (program, samples) in programs.iter().zip(samples) {
        let median = |which: fn(&Sample) -> f64| {
            let mut values: Vec<f64> = samples.iter().map(which).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let (elapsed, cpu, faults) = (
            median(|one| one.elapsed),
            median(|one| one.cpu),
            median(|one| one.faults),
        );
        println!("{program}\t{elapsed:.2}\t{cpu:.2}\t{faults}");
    }
}

#[derive(Clone, Copy)]
struct Sample {
    elapsed: f64,
    cpu: f64,
    faults: f64,
}

fn start(program: &str, stdin: &str) -> Sample {
    let usage = || {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
        let cpu = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        (cpu as f64 / 1000.0, usage.minor_page_faults() as f64)
    };
    let mut command = Command::new(program);
    command
        .stdin(File::open(stdin).unwrap())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let (before, began) = (usage(), Instant::now());
    command
        .status()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let elapsed = began.elapsed().as_secs_f64() * 1000.0;
    let after = usage();
    Sample {
        elapsed,
        cpu: after.0 - before.0,
        faults: after.1 - before.1,
    }
}
