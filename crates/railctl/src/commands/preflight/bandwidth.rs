//! RDMA write bandwidth between two nodes, by perftest's ib_write_bw: each rail answers one peer,
//! and asks another.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::ending::Ending;
use crate::commands::inventory::Inventory;
use rail_cni::device::gid::Gid;

const PROGRAM: &str = "ib_write_bw";
/// The first port; the rails use the next ones.
const FIRST_PORT: u16 = 18515;
/// Duration of writing, in seconds.
const WRITES: &str = "2";
/// The longest measurement, with what comes before and after it.
const LONGEST: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(50);
/// Before a peer that is not ready is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// The GID that a rail measures with.
#[derive(Clone, Debug)]
pub struct Measure {
    gid: Gid,
    rail: u8,
}

/// Fails if perftest is not here.
pub fn find() -> Result<()> {
    match Command::new(PROGRAM)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
    {
        Ok(_) => Ok(()),
        Err(error) => bail!("--bandwidth: cannot run {PROGRAM} ({error}): install perftest"),
    }
}

/// By interface, for those that have RoCE.
pub fn of_pod(inventory: &Inventory, container: &str) -> BTreeMap<String, Measure> {
    let own = inventory
        .attachments
        .iter()
        .map(|one| &one.record)
        .filter(|one| one.owner.container_id == container);
    let measure = |record: &rail_cni::attach::attachments::Attachment| {
        let (gid, rail) = (record.gids().first()?.clone(), record.owner.rail?);
        Some((record.owner.ifname.clone(), Measure { gid, rail }))
    };
    own.filter_map(measure).collect()
}

impl Measure {
    /// The address whose GID it uses.
    pub fn address(&self) -> IpAddr {
        self.gid.address
    }

    /// Measures to `peer` while another one may measure to here. Gbit/s, or why there are none. The
    /// calling thread is in the namespace of the rail.
    pub fn run(
        &self,
        peer: Option<IpAddr>,
        ending: &Ending,
        until: Instant,
    ) -> Option<Result<f64, String>> {
        thread::scope(|scope| {
            let server = scope.spawn(|| self.answer(ending, until));
            let measured = peer.map(|peer| self.ask(peer, ending, until));
            let _ = server.join();
            measured
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        let port = FIRST_PORT.saturating_add(self.rail.into());
        command.args([
            "-F",
            "--report_gbits",
            "--output=bandwidth",
            "-D",
            WRITES,
            "-d",
            &self.gid.device,
        ]);
        command.args([
            "-i",
            &self.gid.port.to_string(),
            "-x",
            &self.gid.index.to_string(),
            "-p",
            &port.to_string(),
        ]);
        if self.gid.address.is_ipv6() {
            command.arg("--ipv6-addr");
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn answer(&self, ending: &Ending, until: Instant) {
        while Instant::now() < until && !ending.is_near() {
            let Ok(child) = self.command().spawn() else {
                return;
            };
            if wait(child, ending, until).is_some_and(|output| output.status.success()) {
                return;
            }
            sleep(PAUSE);
        }
    }

    fn ask(&self, peer: IpAddr, ending: &Ending, until: Instant) -> Result<f64, String> {
        let mut why = "there was no time".to_owned();
        while Instant::now() < until && !ending.is_near() {
            let child = self
                .command()
                .arg(peer.to_string())
                .spawn()
                .map_err(|error| error.to_string())?;
            let output = wait(child, ending, until.min(Instant::now() + LONGEST));
            match output.as_ref().map(gbits) {
                Some(Ok(gbits)) => return Ok(gbits),
                Some(Err(text)) => why = text,
                None => "it did not end".clone_into(&mut why),
            }
            sleep(PAUSE);
        }
        Err(why)
    }
}

/// The output, if the program ended in time.
fn wait(mut child: Child, ending: &Ending, until: Instant) -> Option<Output> {
    loop {
        match child.try_wait() {
            Ok(Some(_)) => return child.wait_with_output().ok(),
            Ok(None) if !ending.is_near() && Instant::now() < until => sleep(LOOK),
            _ => break,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// The number in its last line.
fn gbits(output: &Output) -> Result<f64, String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text
        .split_whitespace()
        .next_back()
        .and_then(|word| word.parse::<f64>().ok());
    match number.filter(|number| output.status.success() && number.is_finite()) {
        Some(number) => Ok(number),
        None => {
            let told = String::from_utf8_lossy(&output.stderr);
            let last = told
                .lines()
                .chain(text.lines())
                .map(str::trim)
                .rfind(|line| !line.is_empty());
            Err(last.unwrap_or("it said nothing").to_owned())
        }
    }
}
