//! The owner of an attachment: the pod, and the device or part of a device that it has.

use std::fmt;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::cni::Attachment;
use crate::device::Original;
use crate::files;
use crate::netns::{Life, NetnsId, Sandbox};

/// An attachment's pod and device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// Name of the network.
    pub network: String,
    /// The container that has it.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Name of the interface in the pod.
    pub ifname: String,
    /// The part of the device that it has.
    #[serde(default, skip_serializing_if = "Part::is_whole")]
    pub part: Part,
    /// `namespace/name`, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// UID of the pod, where the runtime told it.
    #[serde(rename = "podUID", default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// The pod's namespace.
    pub netns: NetnsId,
    /// The boot in which ADD ran.
    #[serde(rename = "bootId")]
    pub boot_id: String,
    /// Time of the start of ADD, for people.
    pub since: String,
    /// Whether the record was rebuilt from what could be seen: then its container is not known to
    /// the runtime.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rebuilt: bool,
    /// Number of the rail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<u8>,
    /// Number of the rail's planes that had to have a carrier.
    #[serde(rename = "minPlanes", default, skip_serializing_if = "Option::is_none")]
    pub min_planes: Option<u8>,
    /// The device as it was on the host.
    pub device: Original,
    /// The netdev as it is known in the pod.
    #[serde(default)]
    pub inside: Inside,
}

/// The part of a device that an attachment has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// All of it.
    #[default]
    Whole,
    /// The RDMA device alone: another plugin has attached the netdev.
    Rdma,
}

impl Part {
    fn is_whole(&self) -> bool {
        *self == Part::Whole
    }
}

/// The netdev in the pod.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Inside {
    /// Its index; 0 until it is there.
    pub index: u32,
    /// The MAC that was requested, or else the device's own.
    pub mac: String,
}

/// The key of an attachment among all records: one interface can have two, of which one is about
/// the RDMA device alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Container and interface.
    pub attachment: Attachment,
    /// The part of the device.
    pub part: Part,
}

impl Key {
    /// The key of the record of a whole device.
    pub fn whole(attachment: &Attachment) -> Key {
        Key {
            attachment: attachment.clone(),
            part: Part::Whole,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Part::Whole => write!(f, "{}", self.attachment),
            Part::Rdma => write!(f, "the RDMA device of {}", self.attachment),
        }
    }
}

impl Owner {
    /// The owner that begins now, of whom nothing more is known.
    pub fn new(key: &Key, netns: NetnsId, device: Original) -> Result<Owner> {
        Ok(Owner {
            network: String::new(),
            container_id: key.attachment.container_id.clone(),
            ifname: key.attachment.ifname.clone(),
            part: key.part,
            pod: None,
            pod_uid: None,
            netns,
            boot_id: files::boot_id()?.to_owned(),
            since: files::now(),
            rebuilt: false,
            rail: None,
            min_planes: None,
            inside: Inside::default(),
            device,
        })
    }

    /// The attachment as the runtime names it.
    pub fn attachment(&self) -> Attachment {
        Attachment {
            container_id: self.container_id.clone(),
            ifname: self.ifname.clone(),
        }
    }

    /// The key of its record.
    pub fn key(&self) -> Key {
        Key {
            attachment: self.attachment(),
            part: self.part,
        }
    }

    /// Whether ADD ran in this boot. After a reboot neither its namespace nor the settings of its
    /// device exist.
    pub fn is_of_this_boot(&self) -> Result<bool> {
        Ok(self.boot_id == files::boot_id()?)
    }

    /// Whether the namespace of the pod is alive.
    pub fn life(&self) -> Result<Life> {
        if self.is_of_this_boot()? {
            Ok(self.netns.life())
        } else {
            Ok(Life::Dead)
        }
    }

    /// Its sandbox.
    pub fn sandbox(&self) -> Sandbox<'_> {
        Sandbox {
            pod_uid: self.pod_uid.as_deref(),
            container_id: &self.container_id,
            netns: Some(&self.netns),
        }
    }

    /// Is it about the RDMA device alone, whose netdev another plugin has attached?
    pub fn is_rdma_alone(&self) -> bool {
        self.part == Part::Rdma
    }

    /// Its interface, for people: with a word where it is about the RDMA device alone.
    pub fn interface(&self) -> String {
        let part = if self.is_rdma_alone() { " (rdma)" } else { "" };
        format!("{}{part}", self.ifname)
    }

    /// Names the pod for messages.
    pub fn describe(&self) -> String {
        let pod = self
            .pod
            .as_ref()
            .map_or_else(String::new, |pod| format!("pod {pod}, "));
        format!(
            "{pod}container {} as {} since {}",
            self.container_id,
            self.interface(),
            self.since
        )
    }
}
