//! `railctl env`: which interface and which RDMA device of this pod is which rail, in the form that
//! NCCL, UCX and gloo read. It runs inside a pod, as any user, and asks only the kernel.

mod check;
mod hosts;
mod pod;
pub mod variables;

use std::fs;
use std::io::Write as _;
use std::num::NonZeroU32;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::output::{self, Output};
use check::{Difference, Environment};
use pod::{Pod, Rail};
use rail_cni::node::Node;
use variables::{NcclVersion, Variable};

/// Arguments of `railctl env`.
#[derive(Debug, Args)]
pub struct EnvArgs {
    /// Print a file for NCCL, or lines for a shell, instead of the table
    #[arg(long, value_enum, value_name = "FORM")]
    format: Option<Format>,
    /// Write to this file, atomically, instead of printing
    #[arg(long, value_name = "FILE", requires = "format")]
    out: Option<PathBuf>,
    /// Only these rails, such as 0-7 or 0,2,4: a pod may have rails of two fabrics
    #[arg(long, value_name = "RAILS", value_parser = pod::parse_rails)]
    rails: Option<pod::Numbers>,
    /// Version of NCCL: 2.30 and later get rail and plane, those before 2.21 the GID index
    #[arg(long, value_name = "VERSION", default_value = "2.21")]
    nccl: NcclVersion,
    /// Write the names of the job's pods to this file, for mpirun and DeepSpeed; - prints only
    /// these names
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    hostfile: Option<PathBuf>,
    /// Number of pods in the job, if the pod cannot tell; for a JobSet, NAME=JOBSxPODS per
    /// replicated job
    #[arg(long, value_name = "N", requires = "hostfile")]
    hosts: Option<hosts::Count>,
    /// Number of processes per pod
    #[arg(long, value_name = "N", requires = "hostfile")]
    slots: Option<NonZeroU32>,
    /// Print where the environment and NCCL's files differ from the rails
    #[arg(long, conflicts_with_all = ["format", "out"])]
    check: bool,
    /// Check the environment that this process was started with, instead of the shell's
    #[arg(long, value_name = "PID", requires = "check")]
    pid: Option<u32>,
}

/// The value of `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// NCCL's variables, as in /etc/nccl.conf.
    #[value(name = "nccl.conf")]
    NcclConf,
    /// All variables, as `export` lines.
    Sh,
}

const RAILS: [&str; 7] = [
    "RAIL",
    "PLANE",
    "INTERFACE",
    "ADDRESS",
    "RDMA",
    "GID",
    "LEAF",
];

/// Prints, writes or compares what this pod's rails are. What is not known is left out and said on
/// stderr.
pub fn env(node: &Node, args: &EnvArgs, output: Output) -> Result<ExitCode> {
    let hostfile = || {
        Ok::<_, anyhow::Error>(hosts::file(
            &hosts::Known::look()?.names(args.hosts.as_ref())?,
            args.slots,
        ))
    };
    // A launcher has no rails.
    if args.hostfile.as_deref() == Some(Path::new("-")) {
        output::print(&hostfile()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let pod = Pod::look(node)?.select(args.rails.as_ref())?;
    let (variables, unknown) = variables::of(&pod, args.nccl);
    let unknown: Vec<String> = pod.unknown.iter().cloned().chain(unknown).collect();
    unknown.iter().for_each(|what| output::say(what));
    if args.check {
        let differences = check::compare(&variables, &pod, &Environment::of(args.pid)?);
        return print_differences(&differences, output);
    }
    if let Some(path) = &args.hostfile {
        write(path, &hostfile()?)?;
    }
    let text = match (args.format, output) {
        (Some(Format::NcclConf), _) => conf(&pod, &variables),
        (Some(Format::Sh), _) => variables
            .iter()
            .map(|one| format!("export {}='{}'\n", one.name, one.value))
            .collect(),
        (None, Output::Json) => output::pretty(&json(&pod, &variables, &unknown)),
        (None, Output::Table) => table(&pod, &variables),
    };
    match &args.out {
        Some(path) => write(path, &text)?,
        None => output::print(&text)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// NCCL passes over lines that begin with #.
fn conf(pod: &Pod, variables: &[Variable]) -> String {
    let comment = |rail: &Rail| format!("# {}: {}\n", rail.interface, rail.alias);
    let of_nccl = variables.iter().filter(|one| one.is_of_nccl());
    let lines = of_nccl.map(|one| format!("{}={}\n", one.name, one.value));
    pod.rails.iter().map(comment).chain(lines).collect()
}

fn table(pod: &Pod, variables: &[Variable]) -> String {
    let list = |all: &[String]| all.join(",");
    let rows = pod.rails.iter().map(|rail| {
        let port = rail.port.as_ref();
        vec![
            rail.alias.rail.to_string(),
            rail.alias
                .plane
                .map(|plane| plane.to_string())
                .unwrap_or_default(),
            rail.interface.clone(),
            list(
                &rail
                    .addresses
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>(),
            ),
            port.map(ToString::to_string).unwrap_or_default(),
            port.and_then(|port| port.gid)
                .map(|gid| gid.to_string())
                .unwrap_or_default(),
            list(
                &rail
                    .alias
                    .leaf_ports
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>(),
            ),
        ]
    });
    let variables: String = variables
        .iter()
        .map(|one| format!("{}={}\n", one.name, one.value))
        .collect();
    format!("{}\n{variables}", output::table(&RAILS, rows))
}

/// docs/jobs.md documents these keys: new keys may be added, but none may change its meaning.
fn json(pod: &Pod, variables: &[Variable], unknown: &[String]) -> Value {
    let rails = pod.rails.iter().map(|rail| {
        let port = rail.port.as_ref();
        json!({"rail": rail.alias.rail, "plane": rail.alias.plane, "network": rail.alias.network,
            "interface": rail.interface, "addresses": rail.addresses,
            "rdma": port.map(|port| json!({"device": port.device, "port": port.number, "gidIndex": port.gid})),
            "leafPorts": rail.alias.leaf_ports})
    });
    let variables: Value = variables
        .iter()
        .map(|one| (one.name.to_owned(), json!(one.value)))
        .collect();
    json!({"rails": rails.collect::<Vec<_>>(), "variables": variables, "unknown": unknown})
}

fn print_differences(differences: &[Difference], output: Output) -> Result<ExitCode> {
    output::print(&match output {
        Output::Json => {
            let all = differences
                .iter()
                .map(|one| json!({"variable": one.variable, "expected": one.expected, "found": one.found}));
            output::pretty(&json!({ "differences": all.collect::<Vec<_>>() }))
        }
        Output::Table => differences
            .iter()
            .map(|one| output::line(&one.to_string()))
            .collect(),
    })?;
    Ok(if differences.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A job that looks while it is written sees the old file or the new one. Everybody may read it.
fn write(path: &Path, text: &str) -> Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let put = || -> std::io::Result<()> {
        let mut options = fs::File::options();
        options.write(true).create(true).truncate(true).mode(0o644);
        options
            .custom_flags(nix::libc::O_NOFOLLOW)
            .open(&new)?
            .write_all(text.as_bytes())?;
        fs::rename(&new, path)
    };
    put().with_context(|| format!("cannot write {}", path.display()))
}
