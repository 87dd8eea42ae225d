//! A lease: an address of this node, its holder, and whether the holder lives.

use std::fmt;
use std::net::IpAddr;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::names;
use crate::cni::{Attachment, Network};
use crate::fail;
use crate::files;
use crate::netns::{NetnsId, Sandbox};
use crate::node::Node;
use crate::pool::Allocation;
use crate::sysfs::{DeviceId, Function};

/// The version of the content of a lease's file.
pub const VERSION: u32 = 1;

/// The request of an ADD to a pool.
#[derive(Debug)]
pub struct Ask {
    /// The name of the pool.
    pub pool: String,
    /// The allocation of this node.
    pub allocation: Allocation,
    /// The address that the pod requests.
    pub requested: Option<IpAddr>,
}

impl Ask {
    /// Makes a request for each pool, with the requested address in its prefix.
    pub fn all(
        pools: Vec<String>,
        allocations: Vec<Allocation>,
        requested: &[(IpAddr, Option<u8>)],
    ) -> Result<Vec<Ask>> {
        let mut asks: Vec<Ask> = pools
            .into_iter()
            .zip(allocations)
            .map(|(pool, allocation)| Ask {
                pool,
                allocation,
                requested: None,
            })
            .collect();
        for (address, length) in requested {
            let prefixes: Vec<_> = asks
                .iter()
                .map(|ask| ask.allocation.prefix.to_string())
                .collect();
            let Some(ask) = asks
                .iter_mut()
                .find(|ask| ask.allocation.prefix.contains(address))
            else {
                fail!(
                    InvalidConfig,
                    "requested address {address} is outside of this node's prefix {}",
                    prefixes.join(" and ")
                );
            };
            let Ask {
                pool,
                allocation,
                requested,
            } = ask;
            if let Err(why) = allocation.check_host(*address) {
                fail!(
                    InvalidConfig,
                    "pool {pool}: requested address {address} {why}"
                );
            }
            let (ours, whole) = (
                allocation.prefix.prefix_len(),
                allocation.prefix.max_prefix_len(),
            );
            if let Some(length) = length.filter(|length| *length != ours && *length != whole) {
                fail!(
                    InvalidConfig,
                    "pool {pool}: requested address {address}/{length} does not have the pool's prefix length, /{ours}"
                );
            }
            if let Some(other) = requested.replace(*address).filter(|other| other != address) {
                fail!(
                    InvalidConfig,
                    "pool {pool}: {other} and {address} are requested, and a pool gives one address"
                );
            }
        }
        Ok(asks)
    }
}

/// The holder of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The name of the network.
    pub network: String,
    /// The container, CNI_CONTAINERID.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The interface, CNI_IFNAME.
    pub ifname: String,
    /// The network namespace; `None` if there was none at ADD. Then the holder is never dead, and
    /// DEL or the list of GC ends the lease.
    pub netns: Option<NetnsId>,
    /// The pod as `namespace/name`, for messages.
    pub pod: Option<String>,
    /// UID of the pod, where the runtime told it.
    #[serde(rename = "podUID", default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// PCI address or auxiliary name of the device that has the address, if the network says which:
    /// while it has not come back from the pod, it may still answer for the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The claim, for the lease of a resource claim; see [`Claim`] for the meaning of the other
    /// fields then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
}

impl Holder {
    /// The holder of addresses that were found in a namespace. The runtime's container is not
    /// known.
    pub fn rebuilt(netns: &NetnsId, ifname: &str) -> Holder {
        Holder {
            network: String::new(),
            container_id: format!("rebuilt-{}", netns.ino),
            ifname: ifname.to_owned(),
            // The runtime knows which pod has this namespace.
            pod: Some(netns.path.display().to_string()),
            pod_uid: None,
            netns: Some(netns.clone()),
            device: None,
            claim: None,
        }
    }

    /// The holder that this call is for.
    pub fn new(
        network: &Network,
        attachment: &Attachment,
        netns: Option<NetnsId>,
    ) -> Result<Holder> {
        Ok(Holder {
            network: network.name.clone(),
            container_id: attachment.container_id.clone(),
            ifname: attachment.ifname.clone(),
            netns,
            pod: network.args.pod(),
            pod_uid: network.args.pod_uid().map(str::to_owned),
            device: network
                .device_id(&attachment.ifname)
                .map(|id| id.as_str().to_owned()),
            claim: None,
        })
    }

    /// A device of a resource claim.
    pub fn of_claim(device: &Attachment, claim: Claim, pod: Option<String>) -> Holder {
        Holder {
            network: OF_CLAIMS.to_owned(),
            container_id: device.container_id.clone(),
            ifname: device.ifname.clone(),
            netns: None,
            pod,
            pod_uid: None,
            device: None,
            claim: Some(claim),
        }
    }

    /// Its sandbox.
    pub fn sandbox(&self) -> Sandbox<'_> {
        Sandbox {
            pod_uid: self.pod_uid.as_deref(),
            container_id: &self.container_id,
            netns: self.netns.as_ref(),
        }
    }

    /// The key in the file names of its leases.
    pub fn key(&self) -> String {
        let attachment = Attachment {
            container_id: self.container_id.clone(),
            ifname: self.ifname.clone(),
        };
        names::key(&self.network, &attachment)
    }

    /// Whether it is this attachment in this network.
    pub fn is(&self, network: &str, attachment: &Attachment) -> bool {
        self.network == network && self.is_of(attachment)
    }

    /// Whether it is this attachment, in any network.
    pub fn is_of(&self, attachment: &Attachment) -> bool {
        (&self.container_id, &self.ifname) == (&attachment.container_id, &attachment.ifname)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Holder {
            container_id,
            ifname,
            pod,
            claim,
            ..
        } = self;
        match (claim, pod) {
            (Some(claim), pod) => {
                let name = claim
                    .name
                    .as_ref()
                    .map_or_else(String::new, |name| format!("{name}, "));
                let pod = pod
                    .as_ref()
                    .map_or_else(String::new, |pod| format!(" of pod {pod}"));
                write!(
                    f,
                    "device {ifname}{pod} (resource claim {name}UID {container_id})"
                )
            }
            (None, Some(pod)) => write!(f, "{ifname} of pod {pod} (container {container_id})"),
            (None, None) => write!(f, "{ifname} of container {container_id}"),
        }
    }
}

/// Stands for the network in the lease of a claim. No network has this name, so no GC means it.
pub const OF_CLAIMS: &str = "@claim";

/// The part of a claim's lease that others do not have. Of the other fields, the container is the
/// UID of the claim, and the interface is the device as its driver names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The claim as `namespace/name`, if the driver told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The PCI address of the device.
    pub function: String,
}

impl Claim {
    /// Why a pod may still have the device, and with it the address. The kernel removes the
    /// addresses of a device that changes its namespace, so a device on the host has none of a pod.
    /// A pod cannot pretend this, as it could an address.
    pub fn is_away(&self, node: &Node) -> Result<Option<String>> {
        let function =
            DeviceId::parse(&self.function).map(|id| Function::find(&node.sysfs_root, &id));
        let Some(function) = function.transpose()?.flatten() else {
            return Ok(None);
        };
        let is_here =
            function.netdev()?.is_some() || function.driver().is_none() || function.is_userspace();
        Ok((!is_here).then(|| {
            format!(
                "a pod still has {}, which is not on the host",
                self.function
            )
        }))
    }
}

/// The content of a lease's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// [`VERSION`].
    pub version: u32,
    #[serde(rename = "bootId")]
    /// The boot of the ADD.
    pub boot_id: String,
    /// The name of the node at ADD, for people: an address belongs to the node by any name.
    #[serde(rename = "nodeName", default)]
    pub node_name: String,
    /// The pool of the ADD, for people. Empty if the lease was rebuilt.
    #[serde(default)]
    pub pool: String,
    /// The holder.
    #[serde(flatten)]
    pub holder: Holder,
    /// The address that is held.
    pub address: IpAddr,
    /// The time of ADD (RFC 3339), for messages.
    pub since: String,
}

impl Lease {
    /// The name of its file.
    pub fn file_name(&self) -> String {
        format!("{}@{}.json", self.address, self.holder.key())
    }

    /// A lease that begins now.
    pub fn new(holder: Holder, address: IpAddr, node_name: &str, pool: &str) -> Result<Lease> {
        Ok(Lease {
            version: VERSION,
            boot_id: files::boot_id()?.to_owned(),
            node_name: node_name.to_owned(),
            pool: pool.to_owned(),
            holder,
            address,
            since: files::now(),
        })
    }

    /// Whether a claim that asks again may keep the lease.
    pub fn is_as_asked(&self, ask: &Ask) -> Result<(), String> {
        let Lease {
            holder,
            address,
            since,
            ..
        } = self;
        let held = format!("{holder} holds {address} since {since}");
        if let Some(other) = ask.requested.filter(|other| other != address) {
            return Err(format!("{held}, and now requests {other}: delete its pod"));
        }
        ask.allocation.check_host(*address).map_err(|why| {
            format!(
                "{held}, which {why}: the plan changed after the claim got its address, so delete its pod"
            )
        })
    }

    /// Whether the lease is of the same attachment in another namespace: the old sandbox was thrown
    /// away without a DEL.
    pub fn is_of_another_sandbox(&self, holder: &Holder) -> bool {
        match (&self.holder.netns, &holder.netns) {
            (Some(then), Some(now)) => {
                (then.dev, then.ino, then.created) != (now.dev, now.ino, now.created)
            }
            _ => false,
        }
    }
}
