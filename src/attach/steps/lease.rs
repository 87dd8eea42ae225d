//! The address: a lease of an IPAM plugin. It lives as long as the device answers for it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::attach::config::NetConf;
use crate::attach::owner::Owner;
use crate::cni::{Delegate, Network};
use crate::netns::Life;

/// How long an IPAM plugin may take for its DEL when the call is about its own attachment.
pub const WHOLE: Duration = Duration::from_secs(30);

/// Everything an IPAM plugin needs for a DEL.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Lease {
    /// `ipam.type`.
    pub r#type: String,
    /// The network configuration of ADD.
    pub config: String,
    /// CNI_ARGS of ADD.
    pub args: String,
    /// CNI_PATH of ADD.
    pub path: Vec<PathBuf>,
    /// Whether it may hold an address: not if its ADD answered with an error.
    #[serde(rename = "mayHold", default = "yes")]
    pub may_hold: bool,
}

fn yes() -> bool {
    true
}

impl Lease {
    /// What will be asked of the IPAM, if the network has one. `stdin` is the configuration that it gets.
    pub fn plan(conf: &NetConf, network: &Network, stdin: &[u8]) -> Result<Option<Lease>> {
        let Some(name) = &conf.ipam else { return Ok(None) };
        Ok(Some(Lease {
            r#type: name.clone(),
            config: String::from_utf8(stdin.to_vec()).context("stdin is not UTF-8")?,
            args: network.args.raw.clone(),
            path: network.path.clone(),
            may_hold: true,
        }))
    }

    /// Calls DEL of the IPAM. One whose ADD answered with an error holds nothing, whatever it answers to DEL: as a rule it
    /// cannot read the configuration.
    pub fn undo(&self, owner: &Owner, patience: Duration) -> Result<()> {
        match self.delegate(owner).and_then(|delegate| delegate.within(patience).run("DEL")) {
            Err(error) if !self.may_hold => {
                log::warn!("{error:#}: nothing remains to be done, because its ADD assigned no address");
                Ok(())
            }
            done => done,
        }
    }

    fn delegate(&self, owner: &Owner) -> Result<Delegate<'_>> {
        let is_alive = owner.life()? == Life::Alive;
        let netns = if is_alive { owner.netns.path.as_path() } else { Path::new("") };
        let delegate = Delegate::find(&self.r#type, &self.path, self.config.as_bytes())?;
        Ok(delegate.on_behalf_of(&owner.attachment(), netns, &self.args, &self.path))
    }
}
