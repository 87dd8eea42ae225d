//! A step: one change that ADD makes, and DEL undoes. The folder `steps` has a file for each, and
//! `steps/mod.rs` lists them in their order.

use std::cell::OnceCell;
use std::fmt::Debug;
use std::time::Instant;

use anyhow::Result;

use super::context::Cx;
use crate::cni::{AddResult, Attachment, Network};
use crate::device::Device;
use crate::device::gid::Gid;
use crate::device::pf::VfSettings;
use crate::files::Lock;
use crate::netconf::NetConf;
use crate::node::Node;
use rail_netlink::Socket;
use rail_netlink::vf::VfState;

/// One change, with the former state that its undo restores. It is on file before [`Step::make`].
pub trait Step: Debug {
    /// The step in messages, such as `the settings of its VF`.
    fn describe(&self) -> &'static str;

    /// The place of the step's undo.
    fn undone_at(&self) -> UndoneAt;

    /// The time of the step's planning.
    fn phase() -> Phase
    where
        Self: Sized,
    {
        Phase::BeforeLease
    }

    /// Looks at the present state, and refuses a network that cannot work. Changes nothing. `None`
    /// if this ADD does not need the step.
    fn plan(asked: &Asked<'_>, cx: &mut Cx<'_>) -> Result<Option<Self>>
    where
        Self: Sized;

    /// Plans the step again, right before it is made, where earlier steps may have changed the
    /// device. Returns whether the journal has to be written again first.
    fn refresh(&mut self, _asked: &Asked<'_>, _cx: &mut Cx<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Makes the change. After an error, [`Step::undo`] follows.
    fn make(&mut self, _asked: &Asked<'_>, _made: &mut Made, _cx: &mut Cx<'_>) -> Result<()> {
        Ok(())
    }

    /// Restores the former state. Compares with the present state first: a killed call may have
    /// made the change, half of it, or nothing, and undo is repeated until it succeeds.
    fn undo(&self, cx: &mut Cx<'_>) -> Result<()>;

    /// Compares the present state with what ADD made, for CHECK. One line per difference.
    fn check(&self, _previous: &AddResult, _cx: &mut Cx<'_>) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// The settings that keep tenants apart and are still as the last tenant left them; `None` if
    /// there are none. Until they are undone, the device is not handed out. `next` is what the next
    /// network sets of its VF.
    fn isolation_left(&self, _next: &VfState, _node: &Node, _host: &mut Socket) -> Option<String> {
        None
    }
}

/// The place of a step's undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoneAt {
    /// In the pod.
    Pod,
    /// On the device, once it is on the host. The next attachment of the device takes over what
    /// could not be undone.
    Device,
    /// Neither in the pod nor on the device: an IPAM plugin's DEL, a file.
    Elsewhere,
    /// There is nothing to undo.
    Nowhere,
}

/// The time of a step's planning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// As soon as the device is claimed: a refusal costs no address.
    BeforeLease,
    /// Once the address is known.
    AfterLease,
}

/// The request of an ADD: the input of every plan.
#[derive(Debug)]
pub struct Asked<'a> {
    /// The network as the runtime passed it.
    pub network: &'a Network,
    /// The network as rail-cni reads it.
    pub conf: &'a NetConf,
    /// The device that was claimed.
    pub device: &'a Device,
    /// The network configuration for the IPAM plugin.
    pub ipam_config: &'a [u8],
    /// The result of the IPAM plugin; empty before [`Phase::AfterLease`].
    pub leased: &'a AddResult,
    /// The other attachments on record.
    pub others: &'a dyn Others,
    /// The settings that an earlier attachment of the VF could not restore.
    pub vf_before: Option<VfSettings>,
    /// Whether an earlier attachment could not give the host its addresses back.
    pub inherits_host_addresses: bool,
    /// The settings that the PF makes of the VF, and its report before: asked once, for two steps.
    pub vf: OnceCell<Option<VfSettings>>,
}

/// The other attachments on record.
pub trait Others: Debug {
    /// The interfaces of the container that rail-cni attached.
    fn interfaces(&self) -> Vec<String>;

    /// The rail of such an interface.
    fn rail_of(&self, ifname: &str) -> Result<Option<u8>>;

    /// Whether an attachment is on record.
    fn is_on_record(&self, attachment: &Attachment) -> Result<bool>;
}

/// Results that the steps of one ADD have for each other while they are made.
#[derive(Debug)]
pub struct Made {
    /// Whether the driver may have made the netdev anew.
    pub is_anew: bool,
    /// The turn of this call among all calls of the node that move devices.
    pub turn: Option<Lock>,
    /// Time at which the link came up.
    pub up_since: Instant,
    /// The GIDs of the addresses.
    pub gids: Vec<Gid>,
}

impl Default for Made {
    fn default() -> Made {
        Made {
            is_anew: false,
            turn: None,
            up_since: Instant::now(),
            gids: Vec::new(),
        }
    }
}
