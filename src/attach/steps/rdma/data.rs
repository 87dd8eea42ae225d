//! The RDMA devices as a record keeps them, and their look-up.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::attach::context::Cx;
use crate::sysfs::{DeviceId, Function, Mounted};
use rail_netlink::rdma;

/// The changes of ADD to the RDMA devices of a rail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rdma {
    /// Names of the devices that the pod sees.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The devices that move to the pod, with the names that they had.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moving: Vec<rdma::Device>,
    /// The device that gets another name, or has an earlier pod's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renamed: Option<Renamed>,
    /// The default ToS and the traffic class that the device gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<Qos>,
    /// Number of devices that speak RoCE, counted when ADD begins if it is to wait for GIDs.
    #[serde(skip)]
    pub roce_devices: usize,
}

/// An RDMA device with another name than on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renamed {
    /// Equal in every namespace.
    pub index: u32,
    /// Its name before.
    pub before: String,
    /// As the network wants it; `None` for a name that an earlier pod left, and this network
    /// leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
}

/// The settings of ADD for the connections of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Qos {
    /// The default ToS of the RDMA CM.
    pub tos: Option<Class>,
    /// The traffic class of the ports.
    pub tc: Option<Class>,
    /// The groups in the configfs of the RDMA CM that were there before.
    pub groups: Vec<String>,
}

/// One value of all ports of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Class {
    /// As the network wants it; `None` where only an earlier pod's has to be restored.
    pub wanted: Option<u8>,
    /// The former value of each port, by the port's number; -1 for none.
    pub before: Vec<(u32, i16)>,
}

/// The function in the sysfs of the namespace that has its RDMA devices. The mount must live as
/// long as the function is used.
pub fn function_in_pod(cx: &Cx<'_>) -> Result<Option<(Function, Option<Mounted>)>> {
    let Some(id) = cx.owner.device.pci_id.as_deref().and_then(DeviceId::parse) else {
        return Ok(None);
    };
    let mounted = match &cx.pod {
        Some(pod) if !cx.facts.rdma.is_empty() => Some(pod.netns.run(Mounted::here)?),
        _ => None,
    };
    let root = mounted
        .as_ref()
        .map_or_else(|| cx.node.sysfs_root.clone(), Mounted::path);
    Ok(Function::find(&root, &id)?.map(|function| (function, mounted)))
}
