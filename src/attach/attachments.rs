//! Attachments for tools beside the plugins: railctl, rail-agent, tests. A tool lists attachments,
//! looks at their state, checks and ends them, and retries their pending steps. The journal and its
//! steps stay inside of `attach`.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipnet::IpNet;

use super::ipam::PATIENCE;
use super::locate::{self, Place};
use super::owner::{Inside, Part};
use super::record::{Entry, Failed, Progress, Record};
use super::records::{Pending, Records};
use super::steps::driver::Driver;
use super::steps::gateway::Gateways;
use super::steps::host_addresses::HostAddresses;
use super::steps::lease::IpamLease;
use super::steps::links::Links;
use super::steps::moved::Move;
use super::steps::netdev::Netdev;
use super::steps::rail::Rail;
use super::steps::rdma::{self, Rdma};
use super::steps::vf::Vf;
use super::steps::vf_mac::VfMac;
use super::{away, check, heal, pending, reattach, rebuild, state};
use crate::cni::AddResult;
use crate::device::gid::Gid;
use crate::device::pf::VfSettings;
use crate::device::{self, Original};
use crate::files::Lock;
use crate::netns::{Life, Netns, NetnsId};
use crate::node::Node;
use crate::sysfs::{DeviceId, Function};
use rail_netlink::Socket;
use rail_netlink::link::{self, Link};
use rail_netlink::vf::VfState;

pub use super::away::{Away, describe as describe_away};
pub use super::locks::DeviceLock;
pub use super::owner::Owner;
pub use super::reattach::Outcome as Reattachment;
pub use super::record::Reattached;
pub use super::state::State;

/// The attachments of this node.
#[derive(Debug)]
pub struct Attachments {
    records: Records,
}

/// An attachment on record: a device in a pod, or what is left of one that has ended.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// Pod and device.
    pub owner: Owner,
    record: Record,
}

/// An attachment whose device is on the host, and of which steps could not be undone.
#[derive(Debug)]
pub struct PendingAttachment {
    /// The attachment.
    pub attachment: Attachment,
    pending: Pending,
}

/// A step that is still to be undone.
#[derive(Clone, Debug)]
pub struct PendingStep {
    /// Its name for programs, such as `vf`.
    pub name: &'static str,
    /// Its name for people, such as `the settings of its VF`.
    pub description: &'static str,
    /// The error of the last try; empty before the first.
    pub why: String,
    /// The number of tries.
    pub tries: u32,
    /// Time of the first try.
    pub since: String,
}

/// The outcome of [`Attachments::end`].
#[derive(Debug)]
pub enum Ended {
    /// A call is at work on it, or its pod is alive.
    InUse,
    /// Its record is gone.
    AlreadyGone,
    /// It is not certain that its pod is gone, for this reason.
    CannotTell(String),
    /// The device is on the host, or gone from the node.
    GivenBack,
    /// The device has not returned, with the remedy.
    NotReturned(String),
    /// A dry run: only the record is left.
    LeftOver,
}

/// A device in a namespace without a record, as a search found it.
#[derive(Debug)]
pub struct Unrecorded<'a> {
    /// PCI address or auxiliary name.
    pub id: &'a str,
    /// The netdev there.
    pub link: &'a Link,
    /// Its addresses there, without link-local ones.
    pub addresses: &'a [IpNet],
    /// A path that leads to the namespace.
    pub netns: &'a Path,
}

impl Attachments {
    /// Opens the directories of the records, and makes those that are missing.
    pub fn open(node: &Node) -> Result<Attachments> {
        let records = Records::open(node)?;
        Ok(Attachments { records })
    }

    /// Opens the directories if they exist; if not, nothing was ever attached.
    pub fn open_existing(node: &Node) -> Result<Option<Attachments>> {
        let records = Records::open_existing(node)?;
        Ok(records.map(|records| Attachments { records }))
    }

    /// Every attachment on record, and the names of the files that cannot be read.
    pub fn all(&self) -> Result<(Vec<Attachment>, Vec<String>)> {
        let (records, unreadable) = self.records.all()?;
        Ok((
            records.into_iter().map(Attachment::new).collect(),
            unreadable,
        ))
    }

    /// Every attachment with pending steps whose device is on the host.
    pub fn pending(&self) -> Result<Vec<PendingAttachment>> {
        let pending = self.records.pending()?;
        Ok(pending.into_iter().map(PendingAttachment::new).collect())
    }

    /// Whether an ADD or DEL of the attachment is running.
    pub fn is_busy(&self, attachment: &Attachment) -> Result<bool> {
        self.records.locks.is_busy(&attachment.owner.key())
    }

    /// Another container than `own` for which a call is running.
    pub fn busy_but(&self, own: &str) -> Result<Option<String>> {
        self.records.locks.busy_but(own)
    }

    /// Whether the attachment is still on record.
    pub fn is_on_record(&self, attachment: &Attachment) -> Result<bool> {
        Ok(self.records.on_file(&attachment.owner.key())?.is_some())
    }

    /// Locks a device against the calls of runtimes; `None` while one is running.
    pub fn try_device(&self, id: &str) -> Result<Option<DeviceLock>> {
        self.records.locks.try_device(id)
    }

    /// Locks the binding of drivers on this node: one at a time.
    pub fn binding(&self) -> Result<Lock> {
        self.records.locks.binding()
    }

    /// Locks a PF: its driver may refuse two changes at a time.
    pub fn pf(&self, address: &str) -> Result<Lock> {
        self.records.locks.pf(address)
    }

    /// Compares the attachment with what ADD made, and asks these gateways. One line per
    /// difference; `None` if its pod has ended meanwhile.
    pub fn differences(
        &self,
        attachment: &Attachment,
        previous: &AddResult,
        gateways: Vec<IpAddr>,
        timeout: Duration,
        node: &Node,
    ) -> Result<Option<Vec<String>>> {
        let owner = &attachment.owner;
        let netns = Netns::open(&owner.netns.path)?;
        // Another pod may have come to that path meanwhile.
        if owner.life()? != Life::Alive {
            return Ok(None);
        }
        let gateways = Gateways { gateways, timeout };
        let record = &attachment.record;
        check::of_device(
            record,
            netns,
            previous,
            Some(&gateways),
            &self.records,
            node,
        )
        .map(Some)
    }

    /// Ends an attachment of which only the record is left. `is_forced`: also where it is not
    /// certain that its pod is gone. `is_dry`: only looks.
    pub fn end(
        &self,
        attachment: &Attachment,
        is_forced: bool,
        is_dry: bool,
        node: &Node,
    ) -> Result<Ended> {
        let key = attachment.owner.key();
        let Some(_lock) = self.records.locks.try_attachment(&key)? else {
            return Ok(Ended::InUse);
        };
        let Some(record) = self.records.find(&key)? else {
            return Ok(Ended::AlreadyGone);
        };
        match state::of(&record, node, &mut Socket::open()?)? {
            State::Live(_) | State::Elsewhere => return Ok(Ended::InUse),
            State::Lost if !is_forced => return Ok(Ended::InUse),
            State::Unknown(why) if !is_forced => return Ok(Ended::CannotTell(why)),
            _ if is_dry => return Ok(Ended::LeftOver),
            _ => (),
        }
        heal::end(&self.records, record, node)?;
        match self.records.on_file(&key)? {
            None => Ok(Ended::GivenBack),
            Some(record) => {
                let how_to_end = away::how_to_end(&record.owner, &self.records);
                Ok(Ended::NotReturned(how_to_end))
            }
        }
    }

    /// Attaches a device that a living pod has lost to the host again, as ADD made it. An error means
    /// that it is not known whether it is lost.
    pub fn reattach(&self, attachment: &Attachment, node: &Node) -> Result<Reattachment> {
        reattach::reattach(&self.records, &attachment.owner.key(), node)
    }

    /// Retries the pending steps. Returns whether all are undone; `None` if a call is at work on
    /// the attachment, or has undone them.
    pub fn retry(&self, pending: &PendingAttachment, node: &Node) -> Result<Option<bool>> {
        let key = pending.attachment.owner.key();
        let Some(_lock) = self.records.locks.try_attachment(&key)? else {
            return Ok(None);
        };
        let Some(mut now) = self.records.pending_now(&pending.pending) else {
            return Ok(None);
        };
        pending::retry(&mut now, &self.records, node, PATIENCE)?;
        Ok(Some(!now.record.is_left()))
    }

    /// The pending attachment as it is on file now; `None` if another call has undone it all.
    pub fn pending_now(&self, pending: &PendingAttachment) -> Option<Attachment> {
        let now = self.records.pending_now(&pending.pending)?;
        Some(Attachment::new(now.record))
    }

    /// Gives up the pending steps.
    pub fn forget(&self, pending: &PendingAttachment) -> Result<()> {
        self.records.forget(&pending.pending)
    }

    /// Removes a record that cannot be read. Only an operator may ask for that: a later version may
    /// have written it, for a pod that lives.
    pub fn remove_unreadable(&self, name: &str) -> Result<()> {
        self.records.remove_unreadable(name)
    }

    /// Writes a record of what can be seen, unless an ADD has put the device on record since it was
    /// found, or it is on the host again. The original state is what is pending of an earlier pod;
    /// where nothing is, it cannot be seen: MTU and MAC stay as they are, and the name will be the
    /// device's usual one.
    pub fn rebuild(
        &self,
        found: &Unrecorded<'_>,
        node: &Node,
        host: &mut Socket,
    ) -> Result<Option<Attachment>> {
        let records = &self.records;
        let id = DeviceId::parse(found.id)
            .with_context(|| format!("{} is not the address of a device", found.id))?;
        let function = Function::find(&node.sysfs_root, &id)?
            .with_context(|| format!("the host has no device {}", found.id))?;
        let mut lock = records.locks.device(found.id)?;
        let claims = records.claims_on(found.id, &mut lock, None)?;
        if !claims.is_empty() || !device::is_away(&function)? {
            return Ok(None);
        }
        let mut record = Record::new(found.owner(&id, &function, node, host)?);
        record.plan(Netdev::default());
        record.plan(Links);
        record.plan(Move);
        record.plan(Rail {
            mtu: Some(found.link.mtu),
            addresses: found.addresses.to_vec(),
            ..Rail::default()
        });
        let previous = earliest(records, found.id)?;
        if let Some(previous) = &previous {
            plan_as_before(&mut record, previous);
        }
        for step in &mut record.steps {
            step.progress = Progress::Done;
        }
        records.write(&record, &mut lock)?;
        if previous.is_some() {
            pending::inherited(records, found.id, Part::Whole)?;
        }
        Ok(Some(Attachment::new(record)))
    }
}

/// Searches all namespaces for the devices of `lost`, which are neither in their pods nor on the
/// host. The attachments of the node name the pods that have them.
pub fn find_away(lost: &[&Attachment], all: &[&Attachment]) -> Result<Vec<Option<Away>>> {
    let lost: Vec<_> = lost.iter().map(|one| &one.owner).collect();
    let holders: Vec<_> = all.iter().map(|one| &one.owner).collect();
    away::find(&lost, &holders)
}

/// Plans what an earlier attachment could not restore.
fn plan_as_before(record: &mut Record, previous: &Record) {
    if previous.leaves::<Vf>() {
        if let Some(Vf(settings)) = previous.find() {
            record.plan(Vf(without_wanted(settings)));
        }
    }
    if previous.leaves::<VfMac>() {
        if let Some(VfMac(settings)) = previous.find() {
            record.plan(VfMac(without_wanted(settings)));
        }
    }
    record.inherit(previous);
    if let Some(driver) = previous.find::<Driver>() {
        record.plan(driver.clone());
    }
}

/// The settings as they are restored where it is not known which of them a network made.
fn without_wanted(settings: &VfSettings) -> VfSettings {
    VfSettings {
        wanted: VfState::default(),
        ..settings.clone()
    }
}

/// The earliest attachment of this boot of which something is left on the device `id`: its record
/// has the original state.
fn earliest(records: &Records, id: &str) -> Result<Option<Record>> {
    let mut earliest: Option<Record> = None;
    for Pending { record, .. } in records.pending_of(id)? {
        let is_first = earliest
            .as_ref()
            .is_none_or(|other| record.owner.since < other.owner.since);
        if is_first && record.is_left_of_device() && record.owner.is_of_this_boot()? {
            earliest = Some(record);
        }
    }
    Ok(earliest)
}

impl Unrecorded<'_> {
    fn owner(
        &self,
        id: &DeviceId,
        function: &Function,
        node: &Node,
        host: &mut Socket,
    ) -> Result<Owner> {
        let pf = function.pf(&node.sysfs_root)?.map(|pf| pf.address);
        let mut was = self.link.clone();
        was.name = rebuild::usual_name(id, self.link, node)?;
        was.up = false;
        let netns = NetnsId::of(self.netns).ok().flatten();
        let netns = netns.with_context(|| format!("{} vanished", self.netns.display()))?;
        let mut rail = None;
        for one in &node.rails {
            let by_name = link::by_name(host, &one.pf).ok().flatten();
            let parent = by_name.and_then(|link| link.parent);
            if pf.as_ref() == Some(&one.pf) || (parent.is_some() && parent == pf) {
                rail = rail.or(Some(one.rail));
            }
        }
        let device = Original {
            id: self.id.to_owned(),
            pci_id: Some(self.id.to_owned()),
            pf,
            port: None,
            siblings: false,
            link: Some(was),
        };
        let key = rebuild::key_in(&netns, &self.link.name);
        Ok(Owner {
            rail,
            rebuilt: true,
            inside: Inside {
                index: self.link.index.get(),
                mac: self.link.mac.clone(),
            },
            ..Owner::new(&key, netns, device)?
        })
    }
}

impl PendingAttachment {
    fn new(pending: Pending) -> PendingAttachment {
        PendingAttachment {
            attachment: Attachment::new(pending.record.clone()),
            pending,
        }
    }
}

impl Attachment {
    fn new(record: Record) -> Attachment {
        Attachment {
            owner: record.owner.clone(),
            record,
        }
    }

    /// Reads the JSON of a record.
    pub fn parse(json: &[u8]) -> Result<Attachment> {
        Record::parse(json).map(Attachment::new)
    }

    /// The present state: looks at the pod's namespace, and into it.
    pub fn state(&self, node: &Node, host: &mut Socket) -> Result<State> {
        let state = state::of(&self.record, node, host)?;
        if !matches!(state, State::Dead | State::Missing) {
            return Ok(state);
        }
        Ok(match self.place_without_pod(node, host)? {
            Place::Missing => State::Missing,
            _ => State::Dead,
        })
    }

    fn place_without_pod(&self, node: &Node, host: &mut Socket) -> Result<Place> {
        if !self.owner.is_of_this_boot()? {
            return Ok(Place::Gone);
        }
        let function = self.owner.device.function(node)?;
        locate::locate(&self.owner, function.as_ref(), node, None, host)
    }

    /// The addresses that ADD set.
    pub fn addresses(&self) -> &[IpNet] {
        self.record.addresses()
    }

    /// The next hops of the routes that ADD set.
    pub fn next_hops(&self) -> Vec<IpAddr> {
        let rail = self.record.find::<Rail>();
        rail.map(|rail| rail.next_hops().collect())
            .unwrap_or_default()
    }

    /// The GIDs of the addresses.
    pub fn gids(&self) -> &[Gid] {
        self.record.found_gids()
    }

    /// Whether RDMA devices moved to the pod.
    pub fn moves_rdma(&self) -> bool {
        let rdma = self.record.find::<Rdma>();
        rdma.is_some_and(|rdma| !rdma.moving.is_empty())
    }

    /// The names that the RDMA devices have in the pod.
    pub fn rdma_names(&self, netns: &Netns) -> Result<Vec<String>> {
        match self.record.find::<Rdma>() {
            Some(rdma) => rdma::names_in_pod(&rdma.moving, netns),
            None => Ok(Vec::new()),
        }
    }

    /// Whether its RDMA devices are still to be restored.
    pub fn leaves_rdma(&self) -> bool {
        self.record.leaves::<Rdma>()
    }

    /// The network configuration that the IPAM plugin got, if there is one.
    pub fn ipam_config(&self) -> Option<&str> {
        let lease = self.record.find::<IpamLease>();
        lease.map(|lease| lease.config.as_str())
    }

    /// The returns of its device to the pod that had lost it; `None` before the first try.
    pub fn reattached(&self) -> Option<&Reattached> {
        self.record.reattached.as_ref()
    }

    /// Whether its address is a lease of rail-ipam.
    pub fn is_by_rail_ipam(&self) -> bool {
        self.record.is_by_rail_ipam()
    }

    /// Whether the addresses of the host went into the pod.
    pub fn has_host_addresses(&self) -> bool {
        self.record.find::<HostAddresses>().is_some()
    }

    /// Whether an operator has to know what is left: it was tried in vain, or the device is not as
    /// it was. If not, the next DEL or GC does it.
    pub fn is_left_in_vain(&self) -> bool {
        self.record.is_left_in_vain()
    }

    /// The steps that are still to be undone.
    pub fn pending_steps(&self) -> Vec<PendingStep> {
        self.record.left().map(PendingStep::new).collect()
    }

    /// Fails if something is left of the device that keeps tenants apart, and that a network does
    /// not set itself: then an ADD of the device fails.
    pub fn refuse_unless_apart(&self, node: &Node, host: &mut Socket) -> Result<()> {
        pending::refuse_unless_apart(&self.record, &VfState::default(), node, host)
    }
}

impl PendingStep {
    fn new(entry: &Entry) -> PendingStep {
        let Failed {
            why, tries, since, ..
        } = entry.failed();
        PendingStep {
            name: entry.change.name(),
            description: entry.change.step().describe(),
            why,
            tries,
            since,
        }
    }
}

/// Fails if the host's addresses on `link` cannot go into a pod. Returns whether one of them has a
/// lifetime, as DHCP and routers give it.
pub fn has_dynamic_host_addresses(what: &str, link: &Link, host: &mut Socket) -> Result<bool> {
    Ok(HostAddresses::take(what, link, host)?.is_dynamic())
}
