//! The device-info file, in which a pod finds the PCI address and the RDMA devices of its interface.

use std::path::PathBuf;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::attach::context::Cx;
use crate::attach::step::{Asked, Made, Step, UndoneAt};
use crate::device::info;

/// Path of the file, as the runtime named it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceInfo(pub PathBuf);

impl Step for DeviceInfo {
    fn describe(&self) -> &'static str {
        "its device-info file"
    }

    fn undone_at(&self) -> UndoneAt {
        UndoneAt::Elsewhere
    }

    fn plan(asked: &Asked<'_>, cx: &mut Cx<'_>) -> Result<Option<DeviceInfo>> {
        let Some(path) = asked.conf.device_info.clone() else {
            return Ok(None);
        };
        let attachment = cx.owner.attachment();
        let is_on_record = |other: &_| asked.others.is_on_record(other);
        info::refuse(&path, &cx.owner.device, &attachment, is_on_record)?;
        Ok(Some(DeviceInfo(path)))
    }

    fn make(&mut self, _asked: &Asked<'_>, made: &mut Made, cx: &mut Cx<'_>) -> Result<()> {
        let attachment = cx.owner.attachment();
        let rdma = &cx.facts.rdma_names;
        info::write(&self.0, &cx.owner.device, &attachment, rdma, &made.gids)
    }

    fn undo(&self, cx: &mut Cx<'_>) -> Result<()> {
        info::remove(&self.0, &cx.owner.device, &cx.owner.attachment())
    }
}
