//! A hidden pod: a network namespace of this process, and the calls that a runtime would make for
//! it.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rail_cni::cni::{AddResult, Version};
use rail_cni::error::ErrorJson;
use rail_cni::failure;
use rail_cni::netns::{self, Netns};
use rail_cni::node::Node;
use serde_json::Value;

use super::super::output_within;
use crate::output;

const PLUGIN: &str = "rail-cni";
/// A plugin is ended by its own time limit; this is for one that cannot even do that.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The namespace, and the attachments in it. Dropping it gives everything back; if this process is
/// killed, the namespace ends, and the next ADD of each device restores it, as after any pod
/// without a DEL.
#[derive(Debug)]
pub struct Pod {
    /// It has no name: only this open file keeps it.
    file: File,
    container: String,
    plugins: PathBuf,
    patience: Duration,
    /// Interface and network of each ADD that was called.
    attached: Vec<(String, Value)>,
}

/// A plugin's answer.
pub type Answer<T> = Result<T, ErrorJson>;

impl Pod {
    /// Makes the namespace.
    pub fn new(node: &Node, plugins: &Path) -> Result<Pod> {
        if !plugins.join(PLUGIN).exists() {
            return Err(failure!(
                InvalidConfig,
                "--plugins-dir: there is no {PLUGIN} in {}",
                plugins.display()
            ));
        }
        let made = thread::spawn(netns::unnamed).join();
        let file = made.map_err(|_| failure!(Internal, "a thread panicked: please report it"))?;
        let started = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
        let started = started.replace(':', "").to_lowercase();
        Ok(Pod {
            file: file.context("run this command as root")?,
            container: format!("preflight-{}-{started}", std::process::id()),
            plugins: plugins.to_owned(),
            patience: node.call_timeout() + LAST_WORDS,
            attached: Vec::new(),
        })
    }

    /// The name by which the plugins know it.
    pub fn container(&self) -> &str {
        &self.container
    }

    /// The namespace, to run something in it.
    pub fn netns(&self) -> Result<Netns> {
        Netns::open(&self.path())
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    /// Calls ADD.
    pub fn add(&mut self, ifname: &str, network: Value) -> Result<Answer<AddResult>> {
        self.attached.push((ifname.to_owned(), network.clone()));
        Ok(match self.call("ADD", ifname, &network)? {
            Ok(answer) => {
                let value =
                    serde_json::from_slice(&answer).context("rail-cni printed no result")?;
                Ok(AddResult::parse(&value, Version::V110)?)
            }
            Err(refusal) => Err(refusal),
        })
    }

    /// Calls DEL for each ADD, the last one first, also for those that failed. Returns what went
    /// wrong, by interface.
    pub fn give_back(&mut self) -> Vec<(String, String)> {
        let mut wrong = Vec::new();
        while let Some((ifname, network)) = self.attached.pop() {
            match self.call("DEL", &ifname, &network) {
                Ok(Ok(_)) => (),
                Ok(Err(refusal)) => wrong.push((ifname, refusal.msg)),
                Err(error) => wrong.push((ifname, format!("{error:#}"))),
            }
        }
        wrong
    }

    fn call(&self, verb: &str, ifname: &str, network: &Value) -> Result<Answer<Vec<u8>>> {
        let program = self.plugins.join(PLUGIN);
        let mut command = Command::new(&program);
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &self.container)
            .env("CNI_IFNAME", ifname);
        command
            .env("CNI_NETNS", self.path())
            .env("CNI_PATH", &self.plugins)
            .env_remove("CNI_ARGS");
        // Its log is the one of node.json, and its error is in the answer. A Ctrl-C is for this
        // process alone.
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        // A configuration fits into the pipe, and a plugin may answer without reading it.
        let _ = child
            .stdin
            .take()
            .map(|mut pipe| pipe.write_all(network.to_string().as_bytes()));
        let ended = output_within(self.patience, child)
            .with_context(|| format!("{} {verb}", program.display()))?;
        if ended.status.success() {
            return Ok(Ok(ended.stdout));
        }
        let refusal = serde_json::from_slice(&ended.stdout);
        let refusal =
            refusal.with_context(|| format!("{verb}: {}, and no error object", ended.status))?;
        Ok(Err(refusal))
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        for (ifname, why) in self.give_back() {
            output::say(&format!(
                "{ifname} of {} was not returned: {why}",
                self.container
            ));
        }
    }
}
