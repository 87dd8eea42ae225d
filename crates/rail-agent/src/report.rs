//! The JSON of railctl, as far as the agent needs it.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::host::ProgramOutput;

/// `railctl vfs --output json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Made {
    /// The PFs for which node.json asks for VFs.
    pub pfs: Vec<MadePf>,
}

/// The PF after `railctl vfs`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct MadePf {
    /// Its PCI address.
    pub pf: String,
    /// `as-wanted`, `changed`, `refused`, `failed`.
    pub state: String,
    /// Why it is not as wanted.
    pub problem: Option<String>,
}

/// `railctl devices --output json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Listing {
    /// The devices that this node offers.
    pub devices: Vec<Listed>,
}

impl Listing {
    /// The device with this address.
    pub fn find(&self, id: &str) -> Option<&Listed> {
        self.devices.iter().find(|listed| listed.device == id)
    }
}

/// A device that a pod can get.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Listed {
    /// Its address on the bus.
    pub device: String,
    /// Its rail.
    pub rail: u8,
    /// Its PF.
    pub pf: String,
    /// Whether it is a VF of that.
    pub is_vf: bool,
    /// The NUMA node, if it is known.
    pub numa_node: Option<u32>,
    /// The link of the PF, as in [`Pf`].
    pub link: String,
    /// `free`, `held` or `refused`.
    pub state: String,
    /// The files in /dev that a program needs for it.
    pub files: Vec<String>,
}

/// `railctl status --output json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The rails of the node.
    pub rails: Vec<Rail>,
    /// The devices that pods have.
    pub attachments: Vec<Attachment>,
    /// Pods that are gone of which something is still to be undone.
    pub pending: Vec<serde_json::Value>,
    /// Devices in namespaces without a record.
    pub lost: Vec<serde_json::Value>,
    /// Files of damaged records.
    pub unreadable: Vec<String>,
}

/// A rail of the node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Rail {
    /// Its number, if it is known.
    pub rail: Option<u8>,
    /// Its PF.
    pub pf: Pf,
    /// Numbers of VFs by their state.
    pub vfs: Vfs,
    /// RDMA counters of errors, repetitions and congestion, by PCI function and name.
    #[serde(rename = "rdmaCounted")]
    pub rdma_counted: BTreeMap<String, BTreeMap<String, u64>>,
}

/// The PF of a rail.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pf {
    /// As node.json has it.
    pub name: String,
    /// Its netdev.
    pub netdev: Option<String>,
    /// `up`, `no-carrier`, `down`, `missing` and so on.
    pub link: String,
    /// Errors, discards, pause frames and losses of the carrier, by name.
    pub counted: Option<BTreeMap<String, u64>>,
}

/// `railctl cables --output json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Cables {
    /// The cable of each rail.
    pub cables: Vec<Cable>,
}

/// The cable of a rail.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Cable {
    /// The rail's number, if it is known.
    pub rail: Option<u8>,
    /// Its PF.
    pub pf: String,
    /// `right`, `wrong`, `silent` and so on.
    pub state: String,
    /// The planned leaf ports.
    pub planned: Vec<LeafPort>,
    /// The neighbour that was heard, if there was one only.
    pub found: Option<Announced>,
    /// The rail that has the planned port in its place.
    #[serde(rename = "swapWith")]
    pub swap_with: Option<u8>,
}

/// The ids of a neighbour. Its names are left out: they are text that anybody on the wire chooses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Announced {
    /// Its chassis.
    pub chassis: String,
    /// Its port.
    pub port: String,
}

/// `railctl preflight --output json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Preflight {
    /// Each rail with a number.
    pub rails: Vec<TriedRail>,
}

/// The result of a rail's test.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TriedRail {
    /// Its number.
    pub rail: u8,
    /// Its PF.
    pub pf: String,
    /// `fine`, `wrong`, `in-use` or `no-pool`.
    pub state: String,
    /// The faults.
    pub problems: Vec<Obstacle>,
}

/// Numbers of VFs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Vfs {
    /// VFs that exist.
    pub enabled: u64,
    /// VFs of pods.
    pub attached: u64,
    /// VFs that dead pods left behind.
    pub dead: u64,
    /// Free VFs.
    pub free: u64,
}

/// A device that a pod has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Attachment {
    /// The rail of the network.
    pub rail: Option<u8>,
    /// `live`, `busy`, `dead` and so on.
    pub state: String,
    /// The PCI address of the PF.
    pub pf: Option<String>,
    /// `namespace/name`.
    pub pod: Option<String>,
    /// The container that the runtime named.
    #[serde(rename = "containerID")]
    pub container: String,
    /// The interface in the pod.
    pub ifname: String,
    /// The link in the pod: `up`, `no-carrier`, `down`.
    pub link: Option<String>,
    /// The link that takes the frames of the rail, if another namespace does.
    pub tapped: Option<Tap>,
    /// The returns of the device to the pod that had lost it; `None` before the first try.
    pub reattached: Option<Reattached>,
}

/// The returns of a device to the pod that had lost it to the host.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Reattached {
    /// Their number.
    pub times: u32,
    /// Why the last try failed.
    pub why_not: Option<String>,
}

/// A link in another namespace that takes the frames of a rail.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Tap {
    /// Its name, if it was found.
    pub link: Option<String>,
    /// A path to its namespace; none for the node's.
    pub netns: Option<String>,
    /// The pod of that namespace as `namespace/name`, if it has a rail.
    pub pod: Option<String>,
}

impl Attachment {
    /// Whether a running pod has the device.
    pub fn is_in_pod(&self) -> bool {
        matches!(self.state.as_str(), "live" | "tapped")
    }

    /// Whether a running pod lost the device to the host.
    pub fn is_lost(&self) -> bool {
        self.state == "lost"
    }

    /// The number of returns of the device to the pod.
    pub fn returns(&self) -> u32 {
        self.reattached.as_ref().map_or(0, |one| one.times)
    }

    /// Why the device is still lost, after a try to attach it again.
    pub fn why_not_back(&self) -> Option<&str> {
        let reattached = self.reattached.as_ref().filter(|_| self.is_lost())?;
        reattached.why_not.as_deref()
    }

    /// `net4 of rail 3 of pod ai/trainer-0`, for Events.
    pub fn title(&self) -> String {
        let rail = match self.rail {
            Some(rail) => format!(" of rail {rail}"),
            None => String::new(),
        };
        let pod = match &self.pod {
            Some(pod) => format!(" of pod {pod}"),
            None => format!(" of container {}", self.container),
        };
        format!("{}{rail}{pod}", self.ifname)
    }

    /// Whether a pod may still use the device.
    pub fn is_alive(&self) -> bool {
        !matches!(
            self.state.as_str(),
            "dead" | "cut-off" | "returned" | "missing"
        )
    }
}

/// `railctl doctor --output json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Doctor {
    /// Whether a pod with rails could start.
    pub ready: bool,
    /// Each check.
    pub checks: Vec<Check>,
}

/// A check of `doctor`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Check {
    /// Its name.
    pub check: String,
    /// `ok`, `skip`, `warn` or `fail`.
    pub verdict: String,
    /// The rail that it is about.
    pub rail: Option<u8>,
    /// The finding.
    pub text: String,
    /// The remedy.
    pub remedy: Option<String>,
}

/// `railctl leases --output json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Show {
    /// The node's pools.
    pub pools: Vec<Pool>,
}

/// An allocation of this node, and the leases of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Pool {
    /// The name.
    pub pool: String,
    /// The rail, if the plan says it.
    pub rail: Option<u8>,
    /// The prefix; none for a pool that only leases name.
    pub prefix: Option<String>,
    /// The ends of the cables.
    pub leaf_ports: Option<Vec<LeafPort>>,
    /// The holders of addresses.
    pub leases: Vec<Lease>,
}

/// A port of a leaf switch.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LeafPort {
    /// The switch.
    pub leaf: String,
    /// The port's name.
    pub port: Option<String>,
}

/// A lease.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Lease {
    /// `live`, `dead`, `unknown` or `unreadable`.
    pub state: String,
    /// The resource claim that holds it, if it is not an interface of a pod.
    pub claim: Option<Claim>,
}

/// A resource claim with an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(default)]
pub struct Claim {
    /// The UID.
    pub uid: String,
    /// `namespace/name`, if it is known.
    pub name: Option<String>,
    /// The device, as its driver names it.
    pub device: String,
}

/// Why `railctl plan`, `import` or `lease` was refused.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Refused {
    /// `held`, `taken`, `invalid`, `no-pool` or `failed`.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Running pods that would lose their addresses.
    pub leases: Vec<Obstacle>,
    /// Prefixes that belong to other nodes.
    pub taken: Vec<Obstacle>,
}

/// The obstacle to a plan, or the fault of a rail.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Obstacle {
    /// For people.
    pub text: String,
}

impl Refused {
    /// Reads the output of a command that failed. One that was killed has printed nothing.
    pub fn of(said: &ProgramOutput) -> Refused {
        #[derive(Deserialize)]
        struct Answer {
            refused: Refused,
        }
        let message = if said.stderr.trim().is_empty() {
            "railctl said nothing"
        } else {
            said.stderr.trim()
        };
        let unsaid = || Refused {
            message: message.to_owned(),
            ..Refused::default()
        };
        serde_json::from_str(&said.stdout).map_or_else(|_| unsaid(), |Answer { refused }| refused)
    }
}
