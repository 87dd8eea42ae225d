//! rail-agent: brings rail-cni to the nodes of a Kubernetes cluster. It installs the plugins, keeps
//! node.json and the plan of each node as the cluster says, and shows the rails to the cluster:
//! labels, conditions, Events and metrics. No pod's start waits for it.
//!
//! | module | content |
//! | --- | --- |
//! | `run` | the agent's loop; begin here |
//! | `install` | installs and removes the executables |
//! | `watch`, `api`, `node`, `events`, `rollout`, `claims` | Kubernetes: watched objects, requests, the Node, Events, rollouts, resource claims |
//! | `serve`, `metrics` | /metrics |
//! | `ready`, `refusals`, `preflight`, `cables`, `revision`, `place` | verdicts and labels: readiness, refused pods, tested rails, cables, versions, place in the fabric |
//! | `devices`, `kubelet`, `dranet` | the kubelet's device plugin API, DRANET's profile provider |
//! | `node_json`, `held`, `calls`, `alive`, `lock` | files on the host: node.json, records of pods, calls of the plugins, the agent's own |
//! | `report` | the JSON of railctl |
//! | `host` | files and programs of the host |
//! | `text`, `runtime` | log lines, the asynchronous runtime |

mod alive;
mod api;
mod cables;
mod calls;
mod claims;
mod devices;
mod dranet;
mod events;
mod held;
mod host;
mod install;
mod kubelet;
mod lock;
mod metrics;
mod node;
mod node_json;
mod place;
mod preflight;
mod ready;
mod refusals;
mod report;
mod revision;
mod rollout;
mod run;
mod runtime;
mod serve;
mod text;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

/// Installs rail-cni on the nodes of a Kubernetes cluster and reports their rails.
#[derive(Debug, Parser)]
#[command(
    name = "rail-agent",
    version,
    after_help = "All commands act on the host through its process 1, so the pod needs hostPID: true and a
privileged container. Plugins and pods with rails work without the agent.
Exit status: 0 success, 1 the command failed or refused, 2 usage error."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Apply the cluster's node.json and plan to this node, and report its rails (the DaemonSet's
    /// container)
    #[command(
        after_help = "KUBECONFIG or the pod's service account names the API server. While it is \
            unreachable, the last valid node.json and store stay, and pods start as before. POD_NAME names this \
            pod for Events and for the lock; without it, the agent is a service of the host, and its end \
            changes nothing on the Node."
    )]
    Run(Box<run::RunArgs>),
    /// Install rail-cni, rail-ipam and railctl on the host, even while pods start (the DaemonSet's
    /// init container)
    #[command(
        after_help = "Each executable is run once with --version, and then replaces the old one by a \
            rename. The old one is kept as .rail-cni/NAME.previous. Executables that are already installed \
            are not rewritten."
    )]
    Install(install::InstallArgs),
    /// Remove everything that rail-cni and the agent wrote to the host, once no pod has a rail
    #[command(
        after_help = "Removes the plugins, railctl, /etc/rail-cni/node.json, this node's allocations, and \
            the agent's files in the run directory. Nothing is removed while a pod has a rail, because \
            only the plugins can restore its device."
    )]
    Uninstall(install::UninstallArgs),
    /// Fail if the agent of this node has hung for ten minutes (the DaemonSet's probes)
    Health(alive::HealthArgs),
    /// Runs a program in the namespaces of process 1
    #[command(name = host::IN_HOST, hide = true)]
    InHost {
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
}

/// The arguments that rail-agent takes, from which its manual pages and shell completions are made.
pub fn command() -> clap::Command {
    Cli::command()
}

/// The whole life of the executable.
pub fn run() -> ExitCode {
    let done = match Cli::parse().command {
        Command::InHost { command } => return host::enter_and_become(&command),
        Command::Run(args) => run::run(*args),
        Command::Health(args) => alive::health(&args),
        Command::Install(args) => install::install(&args),
        Command::Uninstall(args) => install::uninstall(&args),
    };
    done.unwrap_or_else(|error| {
        text::log("error", &text::error_text(&error));
        ExitCode::FAILURE
    })
}
