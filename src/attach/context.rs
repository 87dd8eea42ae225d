//! The context of an attachment's steps: owner, sockets, locks, and the place of the device.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::locate::{self, Place};
use super::locks::Locks;
use super::owner::Owner;
use crate::device::pf::VfSettings;
use crate::fail;
use crate::files::Lock;
use crate::netns::{Netns, Pod};
use crate::node::Node;
use crate::sysfs::Function;
use rail_netlink::link::Link;
use rail_netlink::{Socket, rdma};

/// The context of a call's steps.
#[derive(Debug)]
pub struct Cx<'a> {
    /// The node.
    pub node: &'a Node,
    /// The locks.
    pub locks: &'a Locks,
    /// Pod and device of the attachment.
    pub owner: Owner,
    /// Facts that one step has for others.
    pub facts: Facts,
    /// A socket of the host's namespace.
    pub host: Socket,
    /// The pod's namespace; `None` when it is gone.
    pub pod: Option<Pod>,
    /// The device on its bus; `None` where it is on none, or gone.
    pub function: Option<Function>,
    /// Last known place of the device.
    pub place: Place,
    /// Whether its driver was bound again, which made new netdevs and RDMA devices.
    pub is_anew: bool,
    /// Keeps other networks of the pod from choosing the same routing table.
    pub table_lock: Option<Lock>,
}

/// Facts that one step has for others, from the record.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The driver of the device, to bind it again.
    pub driver: Option<Bound>,
    /// The RDMA devices that move with the netdev, with the names that they had on the host.
    pub rdma: Vec<rdma::Device>,
    /// Names of the RDMA devices that the pod sees.
    pub rdma_names: Vec<String>,
    /// Number of RDMA devices that spoke RoCE when ADD began, if it waits for GIDs.
    pub roce_devices: usize,
    /// Whether the PF prescribes the MAC that the network asks for.
    pub is_mac_by_pf: bool,
    /// The PF's report before the attachment, if the device is a VF.
    pub vf_before: Option<VfSettings>,
    /// Whether the addresses of the host go into the pod.
    pub is_of_host: bool,
    /// Whether the device is to be reset.
    pub is_reset: bool,
    /// Whether the alias of the netdev is on record, so that DEL can restore it.
    pub knows_alias: bool,
    /// The addresses in the pod.
    pub addresses: Vec<IpNet>,
    /// The next hops of the rail's routes.
    pub next_hops: Vec<IpAddr>,
    /// Whether ADD asks the gateways.
    pub asks_gateways: bool,
}

/// The driver of a device as it was, for it to be bound again. It is on record before the driver is
/// unbound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bound {
    /// Its name.
    pub driver: String,
    /// The only driver that may be bound, where the host said so (driver_override in sysfs).
    #[serde(rename = "override", skip_serializing_if = "Option::is_none")]
    pub only: Option<String>,
    /// Names of the RDMA devices that it made.
    pub rdma: Vec<String>,
    /// GUIDs of pods: the VF must not have one of them on the host. With one, ADD binds the driver
    /// again.
    pub guids: Vec<u64>,
    /// Whether DEL binds the driver again, for a GUID or around a reset.
    pub again: bool,
}

impl<'a> Cx<'a> {
    /// The context of an attachment on record, to undo it: the pod's namespace is opened if it still
    /// exists.
    pub fn open(owner: &Owner, facts: Facts, node: &'a Node, locks: &'a Locks) -> Result<Cx<'a>> {
        let netns = if owner.is_of_this_boot()? {
            locate::open_if_same(&owner.netns)?
        } else {
            None
        };
        let pod = netns.map(Pod::open).transpose()?;
        Cx::with_pod(pod, owner, facts, node, locks)
    }

    /// The context of an attachment on record with this pod, before its device is located.
    pub fn with_pod(
        pod: Option<Pod>,
        owner: &Owner,
        facts: Facts,
        node: &'a Node,
        locks: &'a Locks,
    ) -> Result<Cx<'a>> {
        let mut cx = Cx::new(owner.clone(), Place::Missing, node, locks, Socket::open()?)?;
        cx.pod = pod;
        cx.facts = facts;
        Ok(cx)
    }

    /// The context of an attachment whose device is at `place`. `host` is a socket of the host's
    /// namespace.
    pub fn new(
        owner: Owner,
        place: Place,
        node: &'a Node,
        locks: &'a Locks,
        host: Socket,
    ) -> Result<Cx<'a>> {
        Ok(Cx {
            node,
            locks,
            function: owner.device.function(node)?,
            owner,
            facts: Facts::default(),
            host,
            pod: None,
            place,
            is_anew: false,
            table_lock: None,
        })
    }

    /// Looks where the device is.
    pub fn locate(&mut self) -> Result<()> {
        let pod = self.pod.as_mut().map(|pod| &mut pod.socket);
        self.place = locate::locate(
            &self.owner,
            self.function.as_ref(),
            self.node,
            pod,
            &mut self.host,
        )?;
        Ok(())
    }

    /// Waits until the device is on the host, or certain not to come.
    pub fn await_home(&mut self) -> Result<()> {
        self.place = locate::await_home(
            &self.owner,
            self.function.as_ref(),
            self.node,
            &mut self.host,
        )?;
        Ok(())
    }

    /// The device on the host; `None` where it has no netdev there.
    pub fn at_home(&self) -> Option<Link> {
        match &self.place {
            Place::Host(link) => Some(link.clone()),
            _ => None,
        }
    }

    /// The device on the host, where it must be.
    pub fn link_on_host(&self) -> Result<Link> {
        match self.at_home() {
            Some(link) => Ok(link),
            None => fail!(
                Internal,
                "{} vanished from the host while it was prepared",
                self.owner.device.id
            ),
        }
    }

    /// The device in the pod.
    pub fn link_in_pod(&self) -> Option<Link> {
        match &self.place {
            Place::Pod(link) => Some(link.clone()),
            _ => None,
        }
    }

    /// The pod's namespace, where it must be.
    pub fn pod(&mut self) -> Result<&mut Pod> {
        self.pod
            .as_mut()
            .context("the namespace of the pod is gone")
    }

    /// Whether the pod's namespace is the host's, with CNI_NETNS_OVERRIDE: then nothing moves.
    pub fn is_pod_the_host(&self) -> Result<bool> {
        match &self.pod {
            Some(pod) => pod.netns.is(&Netns::current()?),
            None => Ok(false),
        }
    }
}
