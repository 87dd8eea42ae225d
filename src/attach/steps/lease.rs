//! The address: a lease of an IPAM plugin. It lives as long as the device answers for it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::attach::context::Cx;
use crate::attach::ipam::Ipam;
use crate::attach::ipam::PATIENCE;
use crate::attach::owner::Owner;
use crate::attach::step::{Asked, Step, UndoneAt};
use crate::cni::{Args, Command, plugin_path};
use crate::netns::Life;
use crate::node::Node;

/// The input of an IPAM plugin's DEL.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IpamLease {
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

impl Step for IpamLease {
    fn describe(&self) -> &'static str {
        "the DEL of its IPAM"
    }

    fn undone_at(&self) -> UndoneAt {
        UndoneAt::Elsewhere
    }

    fn plan(asked: &Asked<'_>, _cx: &mut Cx<'_>) -> Result<Option<IpamLease>> {
        let Some(name) = &asked.conf.ipam else {
            return Ok(None);
        };
        let config = String::from_utf8(asked.ipam_config.to_vec());
        Ok(Some(IpamLease {
            r#type: name.clone(),
            config: config.context("stdin is not UTF-8")?,
            args: asked.network.args.raw.clone(),
            path: asked.network.path.clone(),
            may_hold: true,
        }))
    }

    fn undo(&self, cx: &mut Cx<'_>) -> Result<()> {
        self.give_back(&cx.owner, cx.node, PATIENCE)
    }
}

impl IpamLease {
    /// Calls DEL of the IPAM. One whose ADD answered with an error holds nothing, whatever it
    /// answers to DEL: as a rule it cannot read the configuration.
    pub fn give_back(&self, owner: &Owner, node: &Node, patience: Duration) -> Result<()> {
        match self.delete(owner, node, patience) {
            Err(error) if !self.may_hold => {
                log::warn!(
                    "{error:#}: nothing remains to be done, because its ADD assigned no address"
                );
                Ok(())
            }
            done => done,
        }
    }

    fn delete(&self, owner: &Owner, node: &Node, patience: Duration) -> Result<()> {
        let netns = (owner.life()? == Life::Alive).then(|| owner.netns.path.clone());
        let args = Args::parse(&self.args);
        // An upgrade of the runtime may have moved its plugins since ADD.
        let mut path = self.path.clone();
        path.extend(
            plugin_path()
                .into_iter()
                .filter(|dir| !self.path.contains(dir)),
        );
        let ipam = Ipam::find(&self.r#type, &path, &args, self.config.as_bytes(), node)?;
        ipam.run_within(&Command::Del(owner.attachment(), netns), patience)
    }
}
