//! The driver of a function. A pod's runtime may leave it with another driver, as vfio-pci, or with
//! none: it gets back the one that it had.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::{bind, guid};
use crate::attach::context::{Bound, Cx};
use crate::attach::step::{Asked, Step, UndoneAt};
use crate::node::Node;
use rail_netlink::Socket;
use rail_netlink::vf::VfState;

/// The driver that the device had.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Driver(pub Bound);

impl Step for Driver {
    fn describe(&self) -> &'static str {
        "the driver of its device"
    }

    fn undone_at(&self) -> UndoneAt {
        UndoneAt::Device
    }

    fn plan(asked: &Asked<'_>, _cx: &mut Cx<'_>) -> Result<Option<Driver>> {
        let device = asked.device;
        let Some(function) = device.function() else {
            return Ok(None);
        };
        // Without a netdev, a program in user space has the device: its driver (vfio-pci) hears of
        // resets, and need not be bound again.
        if device.original.link.is_none() {
            return Ok(None);
        }
        let Some(driver) = function.driver() else {
            return Ok(None);
        };
        let is_reset = asked.conf.reset_on_del;
        if is_reset {
            bind::refuse("resetOnDel", device, function)?;
        }
        let mut bound = Bound {
            driver,
            only: function.driver_override(),
            rdma: function.rdma_devices(),
            guids: Vec::new(),
            again: is_reset,
        };
        guid::plan(asked.conf, device, &mut bound)?;
        Ok(Some(Driver(bound)))
    }

    fn undo(&self, cx: &mut Cx<'_>) -> Result<()> {
        bind::restore(&self.0, cx)
    }

    fn isolation_left(&self, _next: &VfState, _node: &Node, _host: &mut Socket) -> Option<String> {
        Some(self.describe().to_owned())
    }
}
