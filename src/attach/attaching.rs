//! An attachment while ADD makes it: network and device, journal, and steps.

use std::cell::OnceCell;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::context::Cx;
use super::locks::DeviceLock;
use super::owner::{Key, Owner};
use super::pending;
use super::record::{Entry, Progress, Record, Request};
use super::records::{Listed, Records};
use super::step::{Asked, Made, Others, Phase, Step as _};
use super::steps;
use super::steps::device_info::DeviceInfo;
use super::steps::gids::Gids;
use super::steps::host_addresses::HostAddresses;
use super::steps::lease::IpamLease;
use super::steps::rail::Rail;
use super::steps::rdma::Rdma;
use super::undo::{self, LeaseReturn};
use crate::cni::{AddResult, Attachment, Network};
use crate::device::Device;
use crate::netconf::NetConf;
use crate::netns::NetnsId;

/// A device that no other call takes while this is kept, with its journal.
#[derive(Debug)]
pub struct Attaching<'a> {
    /// Network and device.
    pub subject: Subject<'a>,
    /// The journal.
    pub journal: Journal<'a>,
    /// The context of the steps.
    pub cx: Cx<'a>,
}

/// Network and device of an attachment. They do not change while it is made.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The network as the runtime passed it.
    pub network: &'a Network,
    /// The network as rail-cni reads it.
    pub conf: NetConf,
    /// The network configuration that the IPAM gets: with the rail, where only the device says
    /// which.
    pub ipam_config: Vec<u8>,
    /// The device.
    pub device: Device,
    /// An earlier attachment of the device whose steps could not be undone.
    pub previous: Option<Record>,
    /// The other attachments on record.
    pub others: OtherRecords<'a>,
}

impl Subject<'_> {
    /// The request, for the record.
    fn request(&self) -> Option<Request> {
        let config = String::from_utf8(self.network.stdin.clone()).ok()?;
        Some(Request {
            config,
            args: self.network.args.raw.clone(),
        })
    }

    /// The input of the steps. `leased` is the result of the IPAM plugin.
    fn asked<'s>(&'s self, leased: &'s AddResult) -> Asked<'s> {
        let previous = self.previous.as_ref();
        Asked {
            network: self.network,
            conf: &self.conf,
            device: &self.device,
            ipam_config: &self.ipam_config,
            leased,
            others: &self.others,
            vf_before: previous.and_then(Record::vf_before),
            inherits_host_addresses: previous.is_some_and(Record::leaves::<HostAddresses>),
            vf: OnceCell::new(),
        }
    }
}

/// The record of an attachment that is being made, on file.
#[derive(Debug)]
pub struct Journal<'a> {
    /// All records.
    pub records: &'a Records,
    /// The record.
    pub record: Record,
    /// The lock of the device.
    pub lock: DeviceLock,
}

impl Journal<'_> {
    /// Writes the record with the present owner and steps.
    pub fn write(&mut self, cx: &mut Cx<'_>) -> Result<()> {
        self.record.owner = cx.owner.clone();
        cx.facts = self.record.facts();
        self.records.write(&self.record, &mut self.lock)
    }

    /// Makes the planned steps in their order, and marks them; the journal is to be written then. A
    /// step that is not marked may have been made or not: undo looks. `check` is called after each.
    pub fn make(
        &mut self,
        subject: &Subject<'_>,
        leased: &AddResult,
        cx: &mut Cx<'_>,
        check: impl Fn(&Entry) -> Result<()>,
    ) -> Result<()> {
        let asked = subject.asked(leased);
        let mut made = Made::default();
        for number in 0..self.record.steps.len() {
            self.make_step(number, &asked, &mut made, cx)?;
            check(&self.record.steps[number])?;
        }
        Ok(())
    }

    /// Makes one step, if it is planned, and marks it.
    fn make_step(
        &mut self,
        number: usize,
        asked: &Asked<'_>,
        made: &mut Made,
        cx: &mut Cx<'_>,
    ) -> Result<()> {
        let entry = &self.record.steps[number];
        if entry.progress != Progress::Planned {
            return Ok(());
        }
        let mut change = entry.change.clone();
        if change.step_mut().refresh(asked, cx)? {
            self.record.steps[number].change = change.clone();
            self.write(cx)?;
        }
        change.step_mut().make(asked, made, cx)?;
        self.record.steps[number] = Entry {
            change,
            progress: Progress::Done,
        };
        Ok(())
    }
}

impl<'a> Attaching<'a> {
    /// An attachment without planned steps.
    pub fn new(
        subject: Subject<'a>,
        cx: Cx<'a>,
        records: &'a Records,
        lock: DeviceLock,
    ) -> Attaching<'a> {
        let record = Record::new(cx.owner.clone());
        Attaching {
            subject,
            journal: Journal {
                records,
                record,
                lock,
            },
            cx,
        }
    }

    /// Plans the steps of this phase.
    pub fn plan(&mut self, phase: Phase, leased: &AddResult) -> Result<()> {
        let asked = self.subject.asked(leased);
        let record = &mut self.journal.record;
        for planner in steps::PLANNERS {
            if let Some(change) = planner(phase, &asked, &mut self.cx)? {
                record.plan(change);
                self.cx.facts = record.facts();
            }
        }
        Ok(())
    }

    /// Plans the steps of an attachment of the RDMA device alone. `previous` is the result of the
    /// plugin that attached the netdev: its addresses are the ones whose GIDs are waited for.
    pub fn plan_rdma_alone(&mut self, previous: &AddResult) -> Result<()> {
        let asked = self.subject.asked(previous);
        let record = &mut self.journal.record;
        record.plan(Rail {
            addresses: previous.addresses_of(&self.cx.owner.ifname),
            ..Rail::default()
        });
        if let Some(rdma) = Rdma::plan(&asked, &mut self.cx)? {
            record.plan(rdma);
        }
        self.cx.facts = record.facts();
        if let Some(gids) = Gids::plan(&asked, &mut self.cx)? {
            record.plan(gids);
        }
        if let Some(info) = DeviceInfo::plan(&asked, &mut self.cx)? {
            record.plan(info);
        }
        Ok(())
    }

    /// Writes the journal before the first change, with the steps that an earlier attachment of the
    /// device left.
    pub fn open_journal(&mut self) -> Result<()> {
        if self.journal.record.find::<IpamLease>().is_none() && !self.cx.owner.is_rdma_alone() {
            self.journal.record.request = self.subject.request();
        }
        let Some(previous) = &self.subject.previous else {
            return self.journal.write(&mut self.cx);
        };
        self.journal.record.inherit(previous);
        self.cx.owner.device = self.journal.record.owner.device.clone();
        self.journal.write(&mut self.cx)?;
        let owner = &self.cx.owner;
        pending::inherited(self.journal.records, &owner.device.id, owner.part)
    }

    /// Plans the steps that need the address, and makes all steps.
    pub fn plan_and_make(&mut self, leased: &AddResult) -> Result<()> {
        self.plan(Phase::AfterLease, leased)?;
        self.journal.write(&mut self.cx)?;
        self.make(leased)?;
        // After the gateway probe: the kernel does not probe a permanent neighbour.
        if let Some(host_addresses) = self.journal.record.find::<HostAddresses>() {
            if let Some(link) = self.cx.link_in_pod() {
                host_addresses.set_neighbours(&mut self.cx.pod()?.socket, &link);
            }
        }
        Ok(())
    }

    /// Makes the planned steps.
    pub fn make(&mut self, leased: &AddResult) -> Result<()> {
        self.journal
            .make(&self.subject, leased, &mut self.cx, |_| Ok(()))?;
        self.journal.write(&mut self.cx)
    }

    /// Undoes every step. Those that fail stay on record for DEL, the next ADD or `reap`.
    pub fn roll_back(self) {
        let Journal {
            records,
            mut record,
            lock,
        } = self.journal;
        record.owner = self.cx.owner.clone();
        let ended = undo::end(record, records, lock, LeaseReturn::Now, self.cx.node);
        if let Err(error) = ended {
            log::error!("undoing ADD failed: {error:#}");
        }
    }
}

/// The records beside the one of an ADD.
#[derive(Debug)]
pub struct OtherRecords<'a> {
    records: &'a Records,
    container_id: String,
    /// As they were when the call began.
    listed: Listed,
}

impl<'a> OtherRecords<'a> {
    /// The records beside that of an attachment of this container.
    pub fn new(records: &'a Records, listed: Listed, container_id: &str) -> OtherRecords<'a> {
        OtherRecords {
            records,
            container_id: container_id.to_owned(),
            listed,
        }
    }
}

impl Others for OtherRecords<'_> {
    fn interfaces(&self) -> Vec<String> {
        self.listed.interfaces_of(&self.container_id)
    }

    fn rail_of(&self, ifname: &str) -> Result<Option<u8>> {
        let key = Key::whole(&Attachment {
            container_id: self.container_id.clone(),
            ifname: ifname.to_owned(),
        });
        let record = self.records.on_file(&key)?;
        Ok(record.and_then(|record| record.owner.rail))
    }

    fn is_on_record(&self, attachment: &Attachment) -> Result<bool> {
        Ok(self.records.on_file(&Key::whole(attachment))?.is_some())
    }
}

/// The identity of the namespace that this ADD is for.
pub fn netns_of(path: &Path) -> Result<NetnsId> {
    let netns = NetnsId::of(path).with_context(|| format!("cannot look at {}", path.display()))?;
    netns.with_context(|| format!("{} vanished", path.display()))
}

/// The owner of the device that this ADD attaches.
pub fn new_owner(
    network: &Network,
    key: &Key,
    netns: NetnsId,
    conf: &NetConf,
    device: &Device,
) -> Result<Owner> {
    Ok(Owner {
        network: network.name.clone(),
        pod: network.args.pod(),
        pod_uid: network.args.pod_uid().map(str::to_owned),
        rail: conf.rail,
        min_planes: conf.min_planes,
        ..Owner::new(key, netns, device.original.clone())?
    })
}
