//! The journal of an attachment: who has which device, and the steps that ADD makes, in order. A
//! step says what it changes, what was there before, and how far it is. It is on file before
//! anything changes. What is still to be undone of a pod that has ended is a step that is not
//! undone, and nothing else.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::context::{Bound, Facts};
use super::owner::Owner;
use super::steps::gateway::Gateways;
use super::steps::gids::Gids;
use super::steps::host_addresses::HostAddresses;
use super::steps::lease::Lease;
use super::steps::netdev::Netdev;
use super::steps::rail::Rail;
use super::steps::rdma::Rdma;
use super::steps::vf::Vf;
use super::steps::{Change, Place};
use crate::device::gid::Gid;
use crate::files;
use rail_netlink::link::Link;

/// The version of the records' format.
pub const VERSION: u32 = 2;
/// The pause before the second try of a step that could not be undone, in seconds. Each further
/// pause is twice as long.
const FIRST_PAUSE: u64 = 5;
/// The longest pause, in seconds.
const LONGEST_PAUSE: u64 = 600;

/// One attachment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Version of this format.
    version: u32,
    /// Who has which device.
    pub owner: Owner,
    /// What ADD changes, in its order.
    pub steps: Vec<Step>,
}

/// A change and how far it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// The change.
    pub change: Change,
    /// How far it is.
    pub state: State,
}

/// How far a change is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// ADD has not come to its end: it may have been made or not.
    Planned,
    /// It is made.
    Done,
    /// It is undone, or another attachment undoes it.
    Undone,
    /// It could not be undone.
    Failed(Failed),
}

/// A change that could not be undone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failed {
    /// Why.
    pub why: String,
    /// How often it was tried.
    pub tries: u32,
    /// Since when, for people.
    pub since: String,
    /// It is not tried again before this time, in seconds since boot.
    pub next: u64,
}

impl Step {
    /// Whether it is still to be undone.
    pub fn is_left(&self) -> bool {
        self.state != State::Undone && self.change.place() != Place::Nowhere
    }

    /// Whether it is undone on the device.
    pub fn is_of_device(&self) -> bool {
        self.change.place() == Place::Device
    }

    /// Whether it is undone on the device, and is still to be.
    pub fn is_left_of_device(&self) -> bool {
        self.is_left() && self.is_of_device()
    }

    /// Notes what became of an undo.
    pub fn undone(&mut self, done: Result<()>) {
        self.state = match done {
            Ok(()) => State::Undone,
            Err(error) => State::Failed(self.failed().again(&format!("{error:#}"))),
        };
    }

    /// How it failed until now.
    pub fn failed(&self) -> Failed {
        match &self.state {
            State::Failed(failed) => failed.clone(),
            State::Planned | State::Done | State::Undone => Failed::default(),
        }
    }

    /// Whether it is time to try again. A time that no call of this boot wrote is of another one,
    /// whose /run was restored.
    fn is_due(&self) -> bool {
        let now = files::since_boot().as_secs();
        !(now + 1..=now + LONGEST_PAUSE).contains(&self.failed().next)
    }
}

impl Failed {
    fn again(self, why: &str) -> Failed {
        let pause = FIRST_PAUSE
            .saturating_mul(1 << self.tries.min(16))
            .min(LONGEST_PAUSE);
        Failed {
            why: why.to_owned(),
            tries: self.tries.saturating_add(1),
            since: if self.since.is_empty() {
                files::now()
            } else {
                self.since
            },
            next: files::since_boot().as_secs() + pause,
        }
    }
}

/// Finds the data of a step by its kind.
macro_rules! steps {
    ($($(#[$doc:meta])* $get:ident $get_mut:ident $kind:ident($data:ty);)*) => {
        impl Record {
            $($(#[$doc])*
            pub fn $get(&self) -> Option<&$data> {
                self.steps.iter().find_map(|step| match &step.change {
                    Change::$kind(data) => Some(data),
                    _ => None,
                })
            }

            /// The same, to be changed.
            pub fn $get_mut(&mut self) -> Option<&mut $data> {
                self.steps.iter_mut().find_map(|step| match &mut step.change {
                    Change::$kind(data) => Some(data),
                    _ => None,
                })
            })*
        }
    };
}

steps! {
    /// The lease of its address.
    lease lease_mut Lease(Lease);
    /// The addresses of the host that went into the pod.
    host_addresses host_addresses_mut HostAddresses(HostAddresses);
    /// Its netdev as it was.
    netdev netdev_mut Netdev(Netdev);
    /// What the PF sets.
    vf vf_mut Vf(Vf);
    /// The MAC that the PF reported.
    vf_mac vf_mac_mut VfMac(Vf);
    /// Its RDMA devices.
    rdma rdma_mut Rdma(Rdma);
    /// Its driver.
    driver driver_mut Driver(Bound);
    /// The rail in the pod.
    rail rail_mut Rail(Rail);
    /// The gateways that are asked.
    gateways gateways_mut Gateways(Gateways);
    /// Its GIDs.
    gids gids_mut Gids(Gids);
}

impl Record {
    /// The record of an ADD that begins.
    pub fn new(owner: Owner) -> Record {
        Record {
            version: VERSION,
            owner,
            steps: Vec::new(),
        }
    }

    /// Adds a step that ADD is going to make, in its place.
    pub fn plan(&mut self, change: Change) {
        let is_later = |step: &Step| step.change.rank() > change.rank();
        let place = self
            .steps
            .iter()
            .position(is_later)
            .unwrap_or(self.steps.len());
        self.steps.insert(
            place,
            Step {
                change,
                state: State::Planned,
            },
        );
    }

    /// What its steps know of each other.
    pub fn facts(&self) -> Facts {
        Facts {
            driver: self.driver().cloned(),
            rdma: self
                .rdma()
                .map(|rdma| rdma.moving.clone())
                .unwrap_or_default(),
            is_mac_by_pf: self.vf().is_some_and(|vf| vf.wanted.mac.is_some()),
            is_of_host: self.host_addresses().is_some(),
            addresses: self
                .rail()
                .map(|rail| rail.addresses.clone())
                .unwrap_or_default(),
        }
    }

    /// What the PF reported before this attachment, in one: restored before the netdev or after it.
    pub fn vf_before(&self) -> Option<Vf> {
        let mut vf = self.vf().or(self.vf_mac())?.clone();
        if let Some(mac) = self.vf_mac().and_then(|later| later.before.mac.clone()) {
            vf.before.mac = Some(mac);
        }
        Some(vf)
    }

    /// Its GIDs.
    pub fn found_gids(&self) -> &[Gid] {
        self.gids().map_or(&[], |gids| &gids.found)
    }

    /// Whether its address is a lease of rail-ipam.
    pub fn is_by_rail_ipam(&self) -> bool {
        self.lease()
            .is_some_and(|lease| lease.r#type == "rail-ipam")
    }

    /// Whether ADD came to its end.
    pub fn is_attached(&self) -> bool {
        self.steps.iter().all(|step| step.state != State::Planned)
    }

    /// Whether the device has not returned from a namespace that is gone.
    pub fn is_missing(&self) -> bool {
        self.steps.iter().any(|step| {
            matches!(
                (&step.change, &step.state),
                (Change::Move, State::Failed(_))
            )
        })
    }

    /// The steps that are still to be undone.
    pub fn left(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.is_left())
    }

    /// Whether anything is still to be undone.
    pub fn is_left(&self) -> bool {
        self.left().next().is_some()
    }

    /// Whether anything of the device itself is still to be undone.
    pub fn is_left_of_device(&self) -> bool {
        self.steps.iter().any(Step::is_left_of_device)
    }

    /// Whether an operator has to know: it was tried in vain, or the device is not as it was. If
    /// not, the next DEL or GC does it.
    pub fn is_left_in_vain(&self) -> bool {
        self.is_left_of_device() || self.left().any(|step| step.failed().tries > 0)
    }

    /// Whether it is time to try again what is left.
    pub fn is_due(&self) -> bool {
        self.left().any(Step::is_due)
    }

    /// Whether the step of this kind is still to be undone.
    pub fn leaves(&self, is_it: impl Fn(&Change) -> bool) -> bool {
        self.left().any(|step| is_it(&step.change))
    }

    /// Takes over what an earlier attachment of the device could not restore.
    pub fn inherit(&mut self, previous: &Record) {
        let leaves = |is_it: fn(&Change) -> bool| previous.leaves(is_it);
        if leaves(|change| matches!(change, Change::Netdev(_))) {
            if let (Some(now), Some(first)) =
                (&mut self.owner.device.link, &previous.owner.device.link)
            {
                *now = Link {
                    index: now.index,
                    ..first.clone()
                };
            }
            if let (Some(now), Some(first)) = (self.netdev_mut(), previous.netdev()) {
                now.clone_from(first);
            }
            // What is bound again later gets these names, not those of today, which the pod before
            // may have chosen.
            let names = previous.rdma_names_before();
            if let Some(bound) = self
                .driver_mut()
                .filter(|bound| bound.rdma.len() == names.len())
            {
                bound.rdma = names;
            }
        }
        let is_reset = |change: &Change| matches!(change, Change::Reset);
        if leaves(is_reset) && !self.leaves(is_reset) {
            self.plan(Change::Reset);
        }
        if let Some(rdma) = previous
            .rdma()
            .filter(|_| leaves(|change| matches!(change, Change::Rdma(_))))
        {
            if self.rdma().is_none() {
                self.plan(Change::Rdma(Rdma::default()));
            }
            if let Some(now) = self.rdma_mut() {
                now.inherit(rdma);
            }
        }
    }

    /// The names that the RDMA devices had on the host, as far as they are on record.
    fn rdma_names_before(&self) -> Vec<String> {
        match (self.driver(), self.rdma()) {
            (Some(bound), _) if bound.again => bound.rdma.clone(),
            (_, Some(rdma)) => rdma.names_before(),
            (Some(bound), None) => bound.rdma.clone(),
            (None, None) => Vec::new(),
        }
    }
}

/// The JSON of a record on file.
pub fn to_json(record: &Record) -> Result<Vec<u8>> {
    serde_json::to_vec(record).context("a record cannot be written as JSON")
}
