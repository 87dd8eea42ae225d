//! The journal of an attachment: who has which device, and the steps that ADD makes, in order. A
//! step says what it changes, what was there before, and how far it is. It is on file before
//! anything changes. What is still to be undone of a pod that has ended is a step that is not
//! undone, and nothing else.

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::context::Facts;
use super::owner::Owner;
use super::step::UndoneAt;
use super::steps::driver::Driver;
use super::steps::gateway::Gateways;
use super::steps::gids::Gids;
use super::steps::host_addresses::HostAddresses;
use super::steps::lease::IpamLease;
use super::steps::moved::Move;
use super::steps::netdev::Netdev;
use super::steps::rail::Rail;
use super::steps::rdma::Rdma;
use super::steps::reset::Reset;
use super::steps::vf::Vf;
use super::steps::vf_mac::VfMac;
use super::steps::{Change, Kind};
use crate::device::gid::Gid;
use crate::device::pf::VfSettings;
use crate::{fail, files};
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
    /// The pod and its device.
    pub owner: Owner,
    /// The changes of ADD, in their order.
    pub steps: Vec<Entry>,
    /// The request of ADD, where no lease has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    /// The returns of a device that its pod had lost; `None` before the first try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reattached: Option<Reattached>,
}

/// The request of an ADD, to make its steps again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// The network configuration.
    pub config: String,
    /// CNI_ARGS.
    pub args: String,
}

/// The returns of a lost device to its pod. While the steps are made they are planned, and the
/// attachment counts as lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Reattached {
    /// Number of returns.
    pub times: u32,
    /// Time of the last one, for people; empty before the first.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last: String,
    /// The error of the last try, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

/// A step and its progress.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The step.
    pub change: Change,
    /// Its progress.
    #[serde(rename = "state")]
    pub progress: Progress,
}

/// The progress of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Progress {
    /// ADD, or a return of the device, has not come to its end: it may have been made or not.
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
    /// Number of tries.
    pub tries: u32,
    /// Since when, for people.
    pub since: String,
    /// It is not tried again before this time, in seconds since boot.
    pub next: u64,
}

impl Entry {
    /// Whether it is a step of this type.
    pub fn is<T: Kind>(&self) -> bool {
        T::of(&self.change).is_some()
    }

    /// Whether it is still to be undone.
    pub fn is_left(&self) -> bool {
        self.progress != Progress::Undone && self.change.step().undone_at() != UndoneAt::Nowhere
    }

    /// Whether it is undone on the device.
    pub fn is_of_device(&self) -> bool {
        self.change.step().undone_at() == UndoneAt::Device
    }

    /// Whether it is undone on the device, and is still to be.
    pub fn is_left_of_device(&self) -> bool {
        self.is_left() && self.is_of_device()
    }

    /// Notes what became of an undo.
    pub fn undone(&mut self, done: Result<()>) {
        self.progress = match done {
            Ok(()) => Progress::Undone,
            Err(error) => Progress::Failed(self.failed().again(&format!("{error:#}"))),
        };
    }

    /// The failures until now.
    pub fn failed(&self) -> Failed {
        match &self.progress {
            Progress::Failed(failed) => failed.clone(),
            Progress::Planned | Progress::Done | Progress::Undone => Failed::default(),
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

impl Record {
    /// The record of an ADD that begins.
    pub fn new(owner: Owner) -> Record {
        Record {
            version: VERSION,
            owner,
            steps: Vec::new(),
            request: None,
            reattached: None,
        }
    }

    /// Reads the JSON of a record. One of another version is refused: its steps may be others.
    pub fn parse(json: &[u8]) -> Result<Record> {
        let value: Value = serde_json::from_slice(json)?;
        let version = value.get("version").and_then(Value::as_u64);
        if version != Some(u64::from(VERSION)) {
            let version = version.map_or("no version".to_owned(), |version| version.to_string());
            fail!(
                Decode,
                "it has version {version}: another version of rail-cni wrote it"
            )
        }
        Ok(serde_json::from_value(value)?)
    }

    /// The step of this type, if ADD planned it.
    pub fn find<T: Kind>(&self) -> Option<&T> {
        self.steps.iter().find_map(|step| T::of(&step.change))
    }

    /// Like [`Record::find`], to change the step.
    pub fn find_mut<T: Kind>(&mut self) -> Option<&mut T> {
        self.steps
            .iter_mut()
            .find_map(|step| T::of_mut(&mut step.change))
    }

    /// Adds a step that ADD is going to make, in its place.
    pub fn plan(&mut self, change: impl Into<Change>) {
        let change = change.into();
        let is_later = |step: &Entry| step.change.rank() > change.rank();
        let place = self.steps.iter().position(is_later);
        let entry = Entry {
            change,
            progress: Progress::Planned,
        };
        self.steps.insert(place.unwrap_or(self.steps.len()), entry);
    }

    /// The facts that its steps have for each other.
    pub fn facts(&self) -> Facts {
        let rdma = self.find::<Rdma>().cloned().unwrap_or_default();
        let rail = self.find::<Rail>();
        let netdev = self.find::<Netdev>();
        Facts {
            driver: self.find::<Driver>().map(|driver| driver.0.clone()),
            rdma: rdma.moving,
            rdma_names: rdma.names,
            roce_devices: rdma.roce_devices,
            is_mac_by_pf: self
                .find::<Vf>()
                .is_some_and(|vf| vf.0.wanted.mac.is_some()),
            vf_before: self.vf_before(),
            is_of_host: self.find::<HostAddresses>().is_some(),
            is_reset: self.leaves::<Reset>(),
            knows_alias: netdev.is_some_and(|netdev| netdev.settings.has("alias")),
            addresses: rail.map(|rail| rail.addresses.clone()).unwrap_or_default(),
            next_hops: rail
                .map(|rail| rail.next_hops().collect())
                .unwrap_or_default(),
            asks_gateways: self.find::<Gateways>().is_some(),
        }
    }

    /// The PF's report before this attachment, in one: restored before the netdev or after it.
    pub fn vf_before(&self) -> Option<VfSettings> {
        let mac = self.find::<VfMac>().map(|step| &step.0);
        let settings = self.find::<Vf>().map(|step| &step.0);
        let mut before = settings.or(mac)?.clone();
        if let Some(mac) = mac.and_then(|settings| settings.before.mac.clone()) {
            before.before.mac = Some(mac);
        }
        Some(before)
    }

    /// The addresses that ADD set.
    pub fn addresses(&self) -> &[IpNet] {
        self.find::<Rail>().map_or(&[], |rail| &rail.addresses)
    }

    /// Its GIDs.
    pub fn found_gids(&self) -> &[Gid] {
        self.find::<Gids>().map_or(&[], |gids| &gids.found)
    }

    /// Whether its address is a lease of rail-ipam.
    pub fn is_by_rail_ipam(&self) -> bool {
        self.find::<IpamLease>()
            .is_some_and(|lease| lease.r#type == "rail-ipam")
    }

    /// The request of ADD; `None` for a record that was rebuilt, or that an older build wrote.
    pub fn request(&self) -> Option<Request> {
        let Some(lease) = self.find::<IpamLease>() else {
            return self.request.clone();
        };
        Some(Request {
            config: lease.config.clone(),
            args: lease.args.clone(),
        })
    }

    /// Whether a try to attach its lost device again was killed, or is at work.
    pub fn is_returning(&self) -> bool {
        self.reattached.is_some() && !self.is_attached() && !self.is_ending()
    }

    /// Whether a DEL, or another end, has begun to undo it.
    pub fn is_ending(&self) -> bool {
        let is_tried =
            |entry: &Entry| matches!(entry.progress, Progress::Undone | Progress::Failed(_));
        self.steps.iter().any(is_tried)
    }

    /// Whether ADD, or an end that began later, was killed.
    pub fn is_cut_off(&self) -> bool {
        !self.is_attached() && !self.is_returning()
    }

    /// Whether ADD, or the last return of the device, came to its end.
    pub fn is_attached(&self) -> bool {
        self.steps
            .iter()
            .all(|step| step.progress != Progress::Planned)
    }

    /// Whether the device has not returned from a namespace that is gone.
    pub fn is_missing(&self) -> bool {
        self.steps
            .iter()
            .any(|step| step.is::<Move>() && matches!(step.progress, Progress::Failed(_)))
    }

    /// The steps that are still to be undone.
    pub fn left(&self) -> impl Iterator<Item = &Entry> {
        self.steps.iter().filter(|step| step.is_left())
    }

    /// Whether anything is still to be undone.
    pub fn is_left(&self) -> bool {
        self.left().next().is_some()
    }

    /// Whether anything of the device itself is still to be undone.
    pub fn is_left_of_device(&self) -> bool {
        self.steps.iter().any(Entry::is_left_of_device)
    }

    /// Whether an operator has to know: it was tried in vain, or the device is not as it was. If
    /// not, the next DEL or GC does it.
    pub fn is_left_in_vain(&self) -> bool {
        self.is_left_of_device() || self.left().any(|step| step.failed().tries > 0)
    }

    /// Whether it is time to try again what is left.
    pub fn is_due(&self) -> bool {
        self.left().any(Entry::is_due)
    }

    /// Whether the step of this type is still to be undone.
    pub fn leaves<T: Kind>(&self) -> bool {
        self.left().any(Entry::is::<T>)
    }

    /// Takes over what an earlier attachment of the device could not restore.
    pub fn inherit(&mut self, previous: &Record) {
        if previous.leaves::<Netdev>() {
            self.inherit_netdev(previous);
        }
        if previous.leaves::<Reset>() && !self.leaves::<Reset>() {
            self.plan(Reset);
        }
        if previous.leaves::<HostAddresses>() {
            let before = previous.find::<HostAddresses>();
            if let (Some(now), Some(before)) = (self.find_mut::<HostAddresses>(), before) {
                now.clone_from(before);
            }
        }
        if !previous.leaves::<Rdma>() {
            return;
        }
        if self.find::<Rdma>().is_none() {
            self.plan(Rdma::default());
        }
        if let (Some(now), Some(before)) = (self.find_mut::<Rdma>(), previous.find::<Rdma>()) {
            now.inherit(before);
        }
    }

    fn inherit_netdev(&mut self, previous: &Record) {
        let link_before = &previous.owner.device.link;
        if let (Some(now), Some(before)) = (&mut self.owner.device.link, link_before) {
            *now = Link {
                index: now.index,
                ..before.clone()
            };
        }
        if let (Some(now), Some(before)) = (self.find_mut::<Netdev>(), previous.find::<Netdev>()) {
            now.clone_from(before);
        }
        // A driver that is bound again later uses these names, not those of today, which the pod
        // before may have chosen.
        let names = previous.rdma_names_before();
        if let Some(Driver(bound)) = self.find_mut::<Driver>() {
            if bound.rdma.len() == names.len() {
                bound.rdma = names;
            }
        }
    }

    /// The names that the RDMA devices had on the host, as far as they are on record.
    fn rdma_names_before(&self) -> Vec<String> {
        match (self.find::<Driver>(), self.find::<Rdma>()) {
            (Some(Driver(bound)), _) if bound.again => bound.rdma.clone(),
            (_, Some(rdma)) => rdma.names_before(),
            (Some(Driver(bound)), None) => bound.rdma.clone(),
            (None, None) => Vec::new(),
        }
    }
}

/// The JSON of a record on file.
pub fn to_json(record: &Record) -> Result<Vec<u8>> {
    serde_json::to_vec(record).context("a record cannot be written as JSON")
}

#[cfg(test)]
mod tests;
