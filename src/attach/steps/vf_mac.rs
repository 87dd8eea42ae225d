//! The MAC that a PF reports of its VF, where the network sets none. Some drivers report the MAC
//! that the VF gave itself, so it differs only once the netdev is restored; and igb forbids the VF
//! to change any MAC that is set here. So it is restored after the netdev, apart from the other
//! settings of the VF.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::vf;
use crate::attach::context::Cx;
use crate::attach::step::{Asked, Step, UndoneAt};
use crate::device::pf::VfSettings;
use crate::node::Node;
use rail_netlink::Socket;
use rail_netlink::vf::VfState;

/// The MAC of a VF, as `before.mac`; ADD sets nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VfMac(pub VfSettings);

impl Step for VfMac {
    fn describe(&self) -> &'static str {
        "the MAC of its VF"
    }

    fn undone_at(&self) -> UndoneAt {
        UndoneAt::Device
    }

    fn plan(asked: &Asked<'_>, cx: &mut Cx<'_>) -> Result<Option<VfMac>> {
        let Some(settings) = vf::settings(asked, cx)? else {
            return Ok(None);
        };
        if settings.wanted.mac.is_some() || settings.before.mac.is_none() {
            return Ok(None);
        }
        Ok(Some(VfMac(VfSettings {
            wanted: VfState::default(),
            before: VfState {
                mac: settings.before.mac.clone(),
                ..VfState::default()
            },
            ..settings
        })))
    }

    fn undo(&self, cx: &mut Cx<'_>) -> Result<()> {
        vf::restore(&self.0, cx)
    }

    fn isolation_left(&self, next: &VfState, node: &Node, host: &mut Socket) -> Option<String> {
        vf::isolation_left(&self.0, next, node, host)
    }
}
