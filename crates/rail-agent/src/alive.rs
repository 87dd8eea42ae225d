//! `rail-agent health`: whether the agent of the node still looks at it, and whether it has what it
//! needs to serve the node. The agent writes the time and its own state into a file of the run
//! directory, which only root can enter: an address could be taken or kept busy by any process of
//! the node.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use rail_cni::node::Node;

use crate::host::{Host, HostDir};
use crate::node_json::Paths;

/// The name of the file.
pub const NAME: &str = "agent.alive";
/// The agent hangs if it has looked at nothing for so long: the longest program takes two minutes.
const SILENT: Duration = Duration::from_secs(600);

/// The word behind the time if the agent serves the node; the other word is as long.
const READY: &str = "ready";
const WAITS: &str = "waits";

/// Arguments of `rail-agent health`.
#[derive(Debug, Args)]
pub struct HealthArgs {
    /// Also fail while the plugins or railctl cannot be run, or node.json cannot be read: the
    /// readiness probe. Rails without a link do not count
    #[arg(long)]
    ready: bool,
}

/// The file, which the agent keeps open.
#[derive(Debug)]
pub struct Alive(File);

impl Alive {
    /// Makes the file: the agent is alive now.
    pub fn new(run_dir: &HostDir) -> Result<Alive> {
        let mut options = File::options();
        let open = options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(run_dir.at(NAME));
        let alive = Alive(
            open.with_context(|| format!("cannot open {} on the host", run_dir.shown(NAME)))?,
        );
        alive.now(false)?;
        Ok(alive)
    }

    /// Notes that the agent looked at the node. The text always has the same length, so that it
    /// needs no more room.
    pub fn now(&self, is_serving: bool) -> Result<()> {
        let state = if is_serving { READY } else { WAITS };
        let written = self.0.write_all_at(
            format!("{:020} {state}\n", since_boot()?.as_secs()).as_bytes(),
            0,
        );
        written.with_context(|| format!("cannot write {NAME}"))
    }
}

/// `rail-agent health`.
pub fn health(args: &HealthArgs) -> Result<ExitCode> {
    let host = Host::open()?;
    // An agent that cannot use the run directory of node.json uses the default one.
    let configured_run_dir = Paths::of(&host)
        .map(|paths| paths.run_dir)
        .unwrap_or_default();
    let run_dirs = [configured_run_dir, Node::default().run_dir];
    let looks = run_dirs.map(|run_dir| read_look(&host, &run_dir));
    let now = since_boot()?;
    let mut latest = None;
    for (look, is_ready) in looks.into_iter().flatten() {
        // A run directory on a disk may have the file of an earlier boot.
        if look <= now {
            latest = latest.max(Some((look, is_ready)));
        }
    }
    let Some((look, is_ready)) = latest else {
        bail!(
            "no agent has run on this node since it was started: {NAME} is not in the run directory"
        );
    };
    let silent = now.saturating_sub(look);
    if silent > SILENT {
        bail!("the agent has hung for {} s", silent.as_secs());
    }
    if args.ready && !is_ready {
        bail!(
            "the plugins or railctl cannot be run, or /etc/rail-cni/node.json cannot be read: the node's condition \
             RailsReady says which"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The last look that an agent noted in this run directory: the time since boot, and whether it
/// served the node.
fn read_look(host: &Host, run_dir: &Path) -> Option<(Duration, bool)> {
    let text = host.read(&run_dir.join(NAME)).ok().flatten()?;
    let mut words = text.split_whitespace();
    let seconds = words.next()?.parse().ok()?;
    let is_ready = words.next() == Some(READY);
    Some((Duration::from_secs(seconds), is_ready))
}

/// The time since boot: a clock that cannot be set.
fn since_boot() -> Result<Duration> {
    let text = std::fs::read_to_string("/proc/uptime").context("cannot read /proc/uptime")?;
    let seconds = text
        .split('.')
        .next()
        .and_then(|seconds| seconds.parse().ok());
    seconds
        .map(Duration::from_secs)
        .context("/proc/uptime has no number")
}
