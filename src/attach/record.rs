//! What the node remembers of its attachments: who has which device, and what the device was before.
//!
//! A record is a file `CONTAINER:IFNAME:DEVICE.json`, so that one listing of the directory shows all keys and all
//! devices. It is written before anything changes. The lock file of a device has a copy, in case someone removes
//! records by hand.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::host_address::HostAddresses;
use super::settings::Settings;
use crate::cni::{Attachment, Delegate};
use crate::error::{self, Code};
use crate::fail;
use crate::files::{self, Dir, Lock, name_part};
use crate::netlink::link::Link;
use crate::netlink::rdma;
use crate::netlink::route::Route;
use crate::netlink::rule::Rule;
use crate::netlink::vf::VfState;
use crate::netns::{Life, NetnsId};
use crate::node::Node;
use crate::sysfs::{DeviceId, Function};

/// Longer than an ADD with its IPAM takes, shorter than a runtime waits for a DEL (CRI-O: one minute).
const PATIENCE: Duration = Duration::from_secs(35);
/// As long as 64 VFs of a PF take whose driver resets each of them with each setting.
const PF_PATIENCE: Duration = Duration::from_secs(120);
/// Lock files are pruned when there are more than these, so many in a call. Those with the time of a DEL that is younger
/// stay.
const MAX_LOCKS: usize = 256;
const PRUNED: usize = 64;
const OLD_NOTE: Duration = Duration::from_secs(300);

/// One attachment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Version of this format.
    pub version: u32,
    /// The boot in which ADD ran.
    #[serde(rename = "bootId")]
    pub boot_id: String,
    /// How far the attachment is.
    pub phase: Phase,
    /// Name of the network.
    pub network: String,
    /// The container that has it.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Name of the interface in the pod.
    pub ifname: String,
    /// `namespace/name`, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The pod's namespace.
    pub netns: NetnsId,
    /// When ADD began, for people.
    pub since: String,
    /// Number of the rail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<u8>,
    /// How many planes of the rail had to have a carrier.
    #[serde(rename = "minPlanes", default, skip_serializing_if = "Option::is_none")]
    pub min_planes: Option<u8>,
    /// The device as it was on the host.
    pub device: Original,
    /// What ADD makes of it in the pod.
    pub applied: Applied,
    /// The netdev's other settings as they were on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Settings>,
    /// What the host had on the device, where that goes into the pod.
    #[serde(rename = "hostAddresses", default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostAddresses>,
    /// What ADD sets through the PF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vf: Option<VfRecord>,
    /// RDMA devices that go with the netdev.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rdma: Vec<rdma::Device>,
    /// The RDMA device that gets another name.
    #[serde(rename = "rdmaRenamed", default, skip_serializing_if = "Option::is_none")]
    pub rdma_renamed: Option<RdmaRenamed>,
    /// The default ToS and the traffic class that the RDMA device gets.
    #[serde(rename = "rdmaQoS", default, skip_serializing_if = "Option::is_none")]
    pub rdma_qos: Option<Qos>,
    /// The driver that is bound again, so that the VF takes a GUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind: Option<Bind>,
    /// The partition that the RDMA device must be in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pkey: Option<u16>,
    /// Where the RDMA device has the GIDs of the addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gids: Vec<Gid>,
    /// The gateways that ADD asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probe>,
    /// How the address can be released without the runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam: Option<Ipam>,
    /// The device-info file that the runtime asked for.
    #[serde(rename = "deviceInfo", default, skip_serializing_if = "Option::is_none")]
    pub device_info: Option<PathBuf>,
    /// Whether the device is reset when it comes to the host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
    /// Only in the directory of debts: what is still owed, and how often it was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debt: Option<Debt>,
}

/// How far an attachment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// ADD has not ended, or was killed.
    Adding,
    /// The pod has the device.
    Attached,
    /// The device is on the host, the address is not released: 0.1.0 wrote this where there is a debt today.
    Returned,
    /// The device has not come back from a namespace that is gone.
    Missing,
}

/// What is left of an attachment whose device is on the host again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Debt {
    /// What is owed, and why it could not be done.
    pub owed: Vec<Owed>,
    /// Since when it is owed, for people.
    pub since: String,
    /// How often it was tried.
    pub tries: u32,
    /// It is not tried again before this time, in milliseconds since boot.
    pub next: u64,
}

/// One thing that is owed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owed {
    /// What is owed.
    pub what: What,
    /// Why it could not be done.
    pub why: String,
}

/// What can be owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// The DEL of the IPAM plugin.
    Ipam,
    /// The device-info file.
    DeviceInfo,
    /// Rules in the pod.
    Rules,
    /// RDMA devices in the pod.
    Rdma,
    /// The end of what its pod did with the device: up, and with links stacked on it.
    Idle,
    /// A function-level reset.
    Reset,
    /// Settings that the PF made for its VF.
    Vf,
    /// Name, altnames, MTU, MAC and what else a netdev has.
    Device,
    /// The addresses and routes that the host had on it.
    HostAddresses,
}

impl What {
    /// Its name in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            What::Ipam => "the DEL of its IPAM",
            What::DeviceInfo => "its device-info file",
            What::Rules => "its rules in the pod",
            What::Rdma => "its RDMA device",
            What::Idle => "the end of its use of the device",
            What::Reset => "the reset of its device",
            What::Vf => "the settings of its VF",
            What::Device => "its device as it was",
            What::HostAddresses => "the host's addresses on its device",
        }
    }

    /// Is it about the device itself? Then the next attachment of the device takes it over.
    pub fn is_of_device(self) -> bool {
        matches!(self, What::Idle | What::Reset | What::Vf | What::Device | What::HostAddresses)
    }
}

/// A device and what it was before ADD.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Original {
    /// Unique on the node: PCI address or auxiliary name, of further ports with `-port1`; or the name of a netdev
    /// that is no function's.
    pub id: String,
    /// PCI address or auxiliary name, where it has one.
    #[serde(rename = "pciID", default, skip_serializing_if = "Option::is_none")]
    pub pci_id: Option<String>,
    /// PCI address of the PF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pf: Option<String>,
    /// Which port of the function the netdev is, where its driver counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u32>,
    /// Whether the function had further netdevs at ADD.
    #[serde(default)]
    pub siblings: bool,
    /// The netdev; none for userspace drivers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
}

impl Original {
    /// Its function in the sysfs of the host; `None` where it has none, or that is gone.
    pub fn function(&self, node: &Node) -> Result<Option<Function>> {
        let id = self.pci_id.as_deref().and_then(DeviceId::parse);
        Ok(id.map(|id| Function::find(&node.sysfs_root, &id)).transpose()?.flatten())
    }

    /// Is it the function with this PCI address or auxiliary name, by whichever port?
    pub fn is_of(&self, function: &str) -> bool {
        self.id.strip_prefix(function).is_some_and(|rest| rest.is_empty() || rest.starts_with("-port"))
    }

    /// Is it the PF that a row of node.json names, by its PCI address or by the name that its netdev has on the host?
    pub fn is_pf(&self, pf: &str) -> bool {
        let is_its = |link: &Link| link.name == pf || link.altnames.iter().any(|name| name == pf);
        self.pci_id.as_ref().is_some_and(|id| id.eq_ignore_ascii_case(pf))
            || self.link.as_ref().is_some_and(is_its)
    }
}

/// What ADD makes of the device in the pod: CHECK compares with it, DEL undoes it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Applied {
    /// Index of the netdev in the pod; 0 until it is there.
    pub index: u32,
    /// The MTU that was requested, in bytes.
    pub mtu: Option<u32>,
    /// The MAC that was requested, or else the device's own.
    pub mac: String,
    /// Addresses with their prefixes.
    pub addresses: Vec<ipnet::IpNet>,
    /// Routes, in all tables.
    pub routes: Vec<Route>,
    /// Rules: unlike routes, they stay when the device goes.
    pub rules: Vec<Rule>,
}

/// The settings of a VF as a record has them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VfRecord {
    /// PCI address of the PF.
    pub pf: String,
    /// Number of the VF.
    pub number: u32,
    /// What ADD sets.
    pub wanted: VfState,
    /// What the driver reported of the same settings before.
    pub before: VfState,
}

/// An RDMA device that a network names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaRenamed {
    /// The same in every namespace.
    pub index: u32,
    /// Its name before.
    pub before: String,
    /// As the network wants it; empty for a name that an earlier pod left, and this network leaves.
    pub wanted: String,
}

/// What ADD sets of an RDMA device for its connections.
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
    /// What each port had before, by its number; -1 for none.
    pub before: Vec<(u32, i16)>,
}

/// A driver that ADD or DEL binds again. It is on record before the driver is unbound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// Name of the driver.
    pub driver: String,
    /// Names that the RDMA devices had before.
    pub rdma: Vec<String>,
    /// GUIDs of pods: the VF must not have one of them on the host.
    pub guids: Vec<u64>,
}

/// The GID of an address, of the kind RoCE v2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Name that the RDMA device had at ADD.
    pub device: String,
    /// Its port, from 1 on.
    pub port: u32,
    /// Place in the port's table.
    pub index: u32,
    /// The address.
    pub address: IpAddr,
}

/// The gateways that ADD asked, and CHECK asks again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Probe {
    /// The gateways that must answer.
    pub gateways: Vec<IpAddr>,
    /// How long ADD waits for all of them together.
    pub timeout: Duration,
}

/// Everything an IPAM plugin needs for a DEL.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ipam {
    /// `ipam.type`.
    pub r#type: String,
    /// The network configuration of ADD.
    pub config: String,
    /// CNI_ARGS of ADD.
    pub args: String,
    /// CNI_PATH of ADD.
    pub path: Vec<PathBuf>,
    /// Whether it may hold an address: not if its ADD was never called, or answered with an error.
    #[serde(rename = "mayHold", default = "yes")]
    pub may_hold: bool,
}

fn yes() -> bool {
    true
}

impl Record {
    /// The record of an ADD that begins, of which nothing more is known.
    pub fn new(attachment: &Attachment, netns: NetnsId, device: Original) -> Result<Record> {
        Ok(Record {
            version: VERSION,
            boot_id: files::boot_id()?.to_owned(),
            phase: Phase::Adding,
            network: String::new(),
            container_id: attachment.container_id.clone(),
            ifname: attachment.ifname.clone(),
            pod: None,
            netns,
            since: files::now(),
            rail: None,
            min_planes: None,
            device,
            applied: Applied::default(),
            ipam: None,
            settings: None,
            host: None,
            vf: None,
            rdma: Vec::new(),
            rdma_renamed: None,
            rdma_qos: None,
            bind: None,
            pkey: None,
            gids: Vec::new(),
            probe: None,
            device_info: None,
            reset: false,
            debt: None,
        })
    }

    /// The key of the attachment.
    pub fn attachment(&self) -> Attachment {
        Attachment { container_id: self.container_id.clone(), ifname: self.ifname.clone() }
    }

    /// Whether the namespace of the pod is alive.
    pub fn life(&self) -> Result<Life> {
        if self.boot_id == files::boot_id()? { Ok(self.netns.life()) } else { Ok(Life::Dead) }
    }

    /// Takes over the original state of the device from `left`, an earlier attachment that could not restore it.
    pub fn begin_as(&mut self, left: &Record) {
        if let (Some(now), Some(first)) = (&mut self.device.link, &left.device.link) {
            *now = Link { index: now.index, ..first.clone() };
            self.settings = left.settings.clone().or(self.settings.take());
        }
        self.reset |= left.owes(What::Reset);
        let names = left.rdma.iter().map(|device| (device.index, &device.name));
        for (index, name) in
            names.chain(left.rdma_renamed.iter().map(|renamed| (renamed.index, &renamed.before)))
        {
            match self.rdma.iter_mut().find(|device| device.index == index) {
                Some(moving) => moving.name.clone_from(name),
                None if self.rdma_renamed.is_some() => (),
                None => {
                    let (before, wanted) = (name.clone(), String::new());
                    self.rdma_renamed = Some(RdmaRenamed { index, before, wanted });
                }
            }
            if let Some(renamed) = self.rdma_renamed.as_mut().filter(|renamed| renamed.index == index) {
                renamed.before.clone_from(name);
            }
        }
        if let Some(left) = &left.rdma_qos {
            let now = self.rdma_qos.get_or_insert_default();
            for (now, left) in [(&mut now.tos, &left.tos), (&mut now.tc, &left.tc)] {
                if let Some(left) = left {
                    now.get_or_insert_default().before.clone_from(&left.before);
                }
            }
            now.groups.clone_from(&left.groups);
        }
        // What is bound again later gets these names, not those of today, which the pod before may have chosen.
        let before = left.rdma_names_before();
        match &mut self.bind {
            Some(bind) if left.owes(What::Device) && bind.rdma.len() == before.len() => bind.rdma = before,
            _ => (),
        }
        if left.owes(What::HostAddresses) {
            self.host = left.host.clone();
        }
    }

    /// The names that the RDMA devices had on the host, as far as they are on record.
    fn rdma_names_before(&self) -> Vec<String> {
        if let Some(bind) = &self.bind {
            return bind.rdma.clone();
        }
        let mut names: BTreeMap<u32, &String> =
            self.rdma.iter().map(|device| (device.index, &device.name)).collect();
        names.extend(self.rdma_renamed.iter().map(|renamed| (renamed.index, &renamed.before)));
        names.into_values().cloned().collect()
    }

    /// Does ADD bind the driver again, for a GUID, so that netdev and RDMA device are others? Without one, only the reset at
    /// the pod's end does.
    pub fn is_bound_for_guid(&self) -> bool {
        self.bind.as_ref().is_some_and(|bind| !bind.guids.is_empty())
    }

    /// Is it about the RDMA device alone, whose netdev another plugin has attached?
    pub fn is_chained(&self) -> bool {
        self.ifname.ends_with(CHAINED)
    }

    /// Name of the interface in the pod.
    pub fn interface(&self) -> &str {
        self.ifname.strip_suffix(CHAINED).unwrap_or(&self.ifname)
    }

    /// The attachment as the runtime names it.
    pub fn runtime_key(&self) -> Attachment {
        Attachment { container_id: self.container_id.clone(), ifname: self.interface().to_owned() }
    }

    /// Which pod has it, for messages.
    pub fn holder(&self) -> String {
        let pod = self.pod.as_ref().map_or_else(String::new, |pod| format!("pod {pod}, "));
        format!("{pod}container {} as {} since {}", self.container_id, self.ifname, self.since)
    }

    fn file_name(&self) -> String {
        format!("{}{}.json", prefix(&self.attachment()), self.device.id)
    }
}

/// What follows the interface in the key of a record of the RDMA device alone. No name of a netdev has a space, so that
/// such a record is never taken for that of the netdev.
const CHAINED: &str = " (rdma)";

/// The key of the record of the RDMA device alone.
pub fn chained_key(attachment: &Attachment) -> Attachment {
    Attachment { ifname: format!("{}{CHAINED}", attachment.ifname), ..attachment.clone() }
}

/// What the names of an attachment's records start with.
fn prefix(attachment: &Attachment) -> String {
    // Neither part contains a colon.
    format!("{}:{}:", name_part(&attachment.container_id), attachment.ifname)
}

/// The directories of records, debts and locks.
#[derive(Debug)]
pub struct Records {
    run: Dir,
    records: Dir,
    /// 0.1.0 had none: made for the first debt.
    debts: OnceLock<Dir>,
    locks: Dir,
}

/// A record in the directory of debts.
#[derive(Debug)]
pub struct DebtFile {
    name: String,
    /// The record; its `debt` is set once a call has tried it.
    pub record: Record,
}

/// The lock of an attachment, which also remembers when its last DEL was.
#[derive(Debug)]
pub struct AttachmentLock {
    lock: Lock,
    attachment: Attachment,
}

/// The lock of a device, with the copy of its record.
#[derive(Debug)]
pub struct DeviceLock {
    lock: Lock,
}

impl Records {
    /// Opens the directories, and makes those that are missing.
    pub fn open(node: &Node) -> Result<Records> {
        let run = Dir::create(&node.run_dir)?;
        let [records, debts, locks] = [RECORDS, DEBTS, LOCKS].map(|name| run.create_sub(name));
        Ok(Records { records: records?, debts: OnceLock::from(debts?), locks: locks?, run })
    }

    /// Opens the directories; `None` where they are missing and cannot be made, because then nothing was ever attached.
    pub fn open_for_del(node: &Node) -> Result<Option<Records>> {
        match Records::open(node) {
            Ok(records) => Ok(Some(records)),
            Err(error) => {
                log::warn!("{error:#}");
                Records::open_existing(node)
            }
        }
    }

    /// Opens the directories if they exist; if not, nothing was ever attached.
    pub fn open_existing(node: &Node) -> Result<Option<Records>> {
        let Some(run) = node.existing_run_dir()? else { return Ok(None) };
        let [records, debts, locks] = [RECORDS, DEBTS, LOCKS].map(|name| run.sub(name));
        let (Some(records), Some(locks)) = (records?, locks?) else { return Ok(None) };
        let debts = debts?.map(OnceLock::from).unwrap_or_default();
        Ok(Some(Records { records, debts, locks, run }))
    }

    /// Locks the attachment, after every other call for it has ended.
    pub fn lock(&self, attachment: &Attachment) -> Result<AttachmentLock> {
        let lock = self.locks.lock(&lock_name(attachment), PATIENCE);
        let lock = lock.with_context(|| format!("waiting for another call for {attachment}"))?;
        Ok(AttachmentLock { lock, attachment: attachment.clone() })
    }

    /// The same, or `None` while another call for it is at work.
    pub fn try_lock(&self, attachment: &Attachment) -> Result<Option<AttachmentLock>> {
        let lock = self.locks.try_lock(&lock_name(attachment))?;
        Ok(lock.map(|lock| AttachmentLock { lock, attachment: attachment.clone() }))
    }

    /// The same, or `None` if another call for it is at work for longer than `patience`.
    pub fn lock_within(&self, attachment: &Attachment, patience: Duration) -> Result<Option<AttachmentLock>> {
        match self.locks.lock(&lock_name(attachment), patience) {
            Err(error) if error::code_of(&error) == Code::TryAgain as u32 => Ok(None),
            lock => Ok(Some(AttachmentLock { lock: lock?, attachment: attachment.clone() })),
        }
    }

    /// Is a call for it at work now?
    pub fn is_busy(&self, attachment: &Attachment) -> Result<bool> {
        self.locks.is_locked(&lock_name(attachment))
    }

    /// Locks the device, after every other call that holds it has ended.
    pub fn lock_device(&self, id: &str) -> Result<DeviceLock> {
        let lock = self.locks.lock(&format!("device-{id}"), PATIENCE);
        Ok(DeviceLock { lock: lock.with_context(|| format!("waiting for the device {id}"))? })
    }

    /// The same, or `None` while another call holds it.
    pub fn try_lock_device(&self, id: &str) -> Result<Option<DeviceLock>> {
        let lock = self.locks.try_lock(&format!("device-{id}"))?;
        Ok(lock.map(|lock| DeviceLock { lock }))
    }

    /// Locks the pod's namespace against other networks that choose a routing table in it.
    pub fn lock_netns(&self, netns: &NetnsId) -> Result<Lock> {
        let lock = self.locks.lock(&format!("{NETNS_LOCK}{}", netns.ino), PATIENCE);
        lock.with_context(|| format!("waiting for another network of {}", netns.path.display()))
    }

    /// Locks the PF: its driver may refuse two changes at a time.
    pub fn lock_pf(&self, address: &str) -> Result<Lock> {
        let lock = self.locks.lock(&format!("pf-{address}"), PF_PATIENCE);
        lock.with_context(|| format!("waiting for the PF {address}"))
    }

    /// Locks the binding of drivers on this node: one at a time.
    pub fn lock_binding(&self) -> Result<Lock> {
        let lock = self.locks.lock("binding", PATIENCE);
        lock.context("waiting for another device whose driver is being bound again")
    }

    /// The record of `attachment`. A file that cannot be read, or that is about another attachment, is replaced by the
    /// copy in the device's lock file; without a copy it counts as missing.
    pub fn find(&self, attachment: &Attachment) -> Result<Option<Record>> {
        if let Some(record) = self.on_file(attachment)? {
            return Ok(Some(record));
        }
        let copy = self.copies()?.into_iter().find(|copy| copy.attachment() == *attachment);
        if copy.is_some() {
            log::warn!("the record of {attachment} is lost, its copy is used");
        }
        Ok(copy)
    }

    /// The same without the copies, of which there is one for each attached device.
    pub fn on_file(&self, attachment: &Attachment) -> Result<Option<Record>> {
        let prefix = prefix(attachment);
        for name in self.records.names()?.iter().filter(|name| name.starts_with(&prefix)) {
            match self.read(name) {
                Ok(Some(record)) if record.attachment() == *attachment => return Ok(Some(record)),
                Ok(Some(record)) => log::warn!("{name} is the record of {}", record.attachment()),
                Ok(None) => (),
                Err(error) => log::warn!("{error:#}"),
            }
        }
        Ok(None)
    }

    /// The interfaces of a container that are on record, by the names of the files.
    pub fn ifnames_of(&self, container_id: &str) -> Result<Vec<String>> {
        let prefix = format!("{}:", name_part(container_id));
        let names = self.records.names()?;
        let ours = names.iter().filter_map(|name| name.strip_prefix(&prefix)?.split(':').next());
        Ok(ours.map(str::to_owned).collect())
    }

    /// Every record that can be read, and the names of the files that cannot.
    pub fn all(&self) -> Result<(Vec<Record>, Vec<String>)> {
        let (mut records, mut unreadable) = (Vec::<Record>::new(), Vec::new());
        for name in self.records.names()? {
            match self.read(&name) {
                Ok(record) => records.extend(record),
                Err(error) => {
                    log::warn!("{error:#}");
                    unreadable.push(name);
                }
            }
        }
        for copy in self.copies()? {
            if !records.iter().any(|record| record.attachment() == copy.attachment()) {
                records.push(copy);
            }
        }
        Ok((records, unreadable))
    }

    /// The attachments, other than `but`, that claim the device, judged by the names of the files and by the
    /// copy that `lock` carries.
    pub fn claims_on(
        &self,
        id: &str,
        lock: &mut DeviceLock,
        but: Option<&Attachment>,
    ) -> Result<Vec<Record>> {
        let mut claims = self.named(id)?;
        if let Some(copy) = lock.copy()? {
            if !claims.iter().any(|claim| claim.attachment() == copy.attachment()) {
                claims.push(copy);
            }
        }
        claims.retain(|claim| but != Some(&claim.attachment()));
        Ok(claims)
    }

    /// The records whose file name ends in the device `id`.
    pub fn named(&self, id: &str) -> Result<Vec<Record>> {
        let suffix = format!(":{id}.json");
        let mut found = Vec::new();
        for name in self.records.names()?.iter().filter(|name| name.ends_with(&suffix)) {
            match self.read(name) {
                Ok(record) => found.extend(record.filter(|record| record.device.id == id)),
                Err(error) => log::warn!("{error:#}"),
            }
        }
        Ok(found)
    }

    /// Writes the record and its copy. Call it before doing what it describes.
    pub fn write(&self, record: &Record, device: &mut DeviceLock) -> Result<()> {
        let json = serde_json::to_vec(record)?;
        device.lock.set_note(&json)?;
        self.records.write(&record.file_name(), &json)
    }

    /// Removes the record, its copy where `device` is given, and the temporary files of a killed ADD.
    pub fn remove(&self, attachment: &Attachment, device: Option<&mut DeviceLock>) -> Result<()> {
        let prefix = prefix(attachment);
        for name in self.records.names()?.iter().filter(|name| name.starts_with(&prefix)) {
            self.records.remove(name)?;
        }
        self.records.remove_half_written(&prefix, |_| ())?;
        device.map_or(Ok(()), |device| device.lock.set_note(b""))
    }

    /// Removes a file that [`Records::all`] could not read. Only an operator may ask for that: a later version may
    /// have written it, for a pod that lives.
    pub fn remove_unreadable(&self, name: &str) -> Result<()> {
        self.records.remove(name)
    }

    /// Moves the record to the debts in one step: from then on the device is free, and what is left to do blocks no
    /// other call.
    pub fn owe(&self, record: &Record, device: &mut DeviceLock) -> Result<DebtFile> {
        if self.debts.get().is_none() {
            self.debts.set(self.run.create_sub(DEBTS)?).ok();
        }
        let debts = self.debts.get().context("no directory of debts")?;
        let on_file = record.file_name();
        let name = match debts.receive(&self.records, &on_file)? {
            Some(name) => name,
            // Only its copy was left, or this file system cannot rename between the two directories.
            None => {
                let name = debts.free_name(&on_file)?;
                debts.write(&name, &serde_json::to_vec(record)?)?;
                name
            }
        };
        self.remove(&record.attachment(), Some(device))?;
        Ok(DebtFile { name, record: record.clone() })
    }

    /// Every debt that can be read.
    pub fn debts(&self) -> Result<Vec<DebtFile>> {
        self.debts_named(|_| true)
    }

    /// The debts of the device `id`.
    pub fn debts_of(&self, id: &str) -> Result<Vec<DebtFile>> {
        let suffix = format!(":{id}.json");
        self.debts_named(|name| name.ends_with(&suffix))
    }

    /// The debts of `attachment`.
    pub fn debts_by(&self, attachment: &Attachment) -> Result<Vec<DebtFile>> {
        let prefix = prefix(attachment);
        let is_ours = |name: &str| {
            let numbered = name.split_once('~').filter(|(number, _)| number.parse::<u32>().is_ok());
            numbered.map_or(name, |(_, name)| name).starts_with(&prefix)
        };
        self.debts_named(is_ours)
    }

    fn debts_named(&self, is_meant: impl Fn(&str) -> bool) -> Result<Vec<DebtFile>> {
        let Some(debts) = self.debts.get() else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for name in debts.names()?.into_iter().filter(|name| is_meant(name)) {
            match read(debts, &name) {
                Ok(record) => found.extend(record.map(|record| DebtFile { name, record })),
                Err(error) => log::warn!("{error:#}"),
            }
        }
        Ok(found)
    }

    /// The debt as it is on file now; `None` if another call has paid it. Who has the lock of its attachment asks, before it
    /// tries what another one may have done meanwhile.
    pub fn debt_now(&self, debt: &DebtFile) -> Option<DebtFile> {
        let debts = self.debts.get()?;
        let record = read(debts, &debt.name).unwrap_or_else(|error| {
            log::warn!("{error:#}: it is replaced");
            Some(debt.record.clone())
        });
        record.map(|record| DebtFile { name: debt.name.clone(), record })
    }

    /// Changes a debt as it is on file now, and removes it when nothing is left of it: a DEL of the attachment and an ADD of
    /// the device may both be at work on it. What another call has paid meanwhile stays paid.
    pub fn change(&self, debt: &mut DebtFile, change: impl FnOnce(&mut Record)) -> Result<()> {
        let _lock = self.locks.lock(DEBTS_LOCK, PATIENCE)?;
        let Some(mut now) = self.debt_now(debt) else {
            debt.record.debt = Some(Debt::default());
            return Ok(());
        };
        change(&mut now.record);
        *debt = now;
        if debt.is_paid() {
            return self.remove_debt(debt);
        }
        self.debts.get().map_or(Ok(()), |debts| debts.write(&debt.name, &serde_json::to_vec(&debt.record)?))
    }

    /// Removes a debt.
    pub fn forget(&self, debt: &DebtFile) -> Result<()> {
        let _lock = self.locks.lock(DEBTS_LOCK, PATIENCE)?;
        self.remove_debt(debt)
    }

    fn remove_debt(&self, debt: &DebtFile) -> Result<()> {
        let Some(debts) = self.debts.get() else { return Ok(()) };
        debts.discard(&debt.name);
        debts.remove(&debt.name)
    }

    /// Keeps the number of lock files small. No ADD is left that such an old time of a DEL could stop. The time of the file
    /// does not say how old it is: somebody may have set the clock.
    pub fn prune_locks(&self) -> Result<()> {
        let names = self.locks.names()?;
        if names.len() <= MAX_LOCKS {
            return Ok(());
        }
        let now = files::since_boot();
        let recent = now.saturating_sub(OLD_NOTE)..=now;
        let is_old = |note: &[u8]| deleted_at(note).is_none_or(|deleted| !recent.contains(&deleted));
        // To look at all of them would take longer than the call, where a thousand pods end in five minutes. Each call begins
        // somewhere else.
        let first = now.subsec_nanos() as usize % names.len();
        for name in names.iter().cycle().skip(first).take(PRUNED) {
            if name.starts_with(ATTACHMENT_LOCK) {
                self.locks.prune_lock(name, is_old)?;
            } else if name.starts_with(NETNS_LOCK) {
                self.locks.prune_lock(name, |_| true)?;
            }
        }
        Ok(())
    }

    fn copies(&self) -> Result<Vec<Record>> {
        let names = self.locks.names()?;
        let devices = names.iter().filter(|name| name.starts_with("device-"));
        Ok(devices.filter_map(|name| parse_copy(&self.locks.read(name).ok()??)).collect())
    }

    fn read(&self, name: &str) -> Result<Option<Record>> {
        read(&self.records, name)
    }
}

/// The record in the file `name`; `None` when there is none.
fn read(folder: &Dir, name: &str) -> Result<Option<Record>> {
    let Some(content) = folder.read(name)? else { return Ok(None) };
    let record: Result<Record, _> = serde_json::from_slice(&content);
    let path = folder.path().join(name);
    let record = record.with_context(|| format!("{} is no record", path.display()))?;
    if record.version != VERSION {
        let version = record.version;
        fail!(Decode, "{} has version {version}: another version of rail-cni wrote it", path.display());
    }
    Ok(Some(record))
}

/// The version of the records' format.
pub const VERSION: u32 = 1;
const RECORDS: &str = "attachments";
const DEBTS: &str = "debts";
const LOCKS: &str = "locks";
const ATTACHMENT_LOCK: &str = "attachment-";
const NETNS_LOCK: &str = "netns-";
const DEBTS_LOCK: &str = "debts";

fn lock_name(attachment: &Attachment) -> String {
    format!("{ATTACHMENT_LOCK}{}:{}", name_part(&attachment.container_id), attachment.ifname)
}

/// The time since boot that a DEL noted in its lock file.
fn deleted_at(note: &[u8]) -> Option<Duration> {
    std::str::from_utf8(note).ok()?.parse().ok().map(Duration::from_nanos)
}

impl AttachmentLock {
    /// An ADD whose runtime gave up may continue after the DEL that was sent for it: no DEL would come for what it then
    /// attaches. DEL writes its time here, and an ADD that began before that time must not go on.
    pub fn refuse_if_deleted(&mut self) -> Result<()> {
        // A time that is still to come is of another boot, whose /run was restored.
        let waited = files::started()..=files::since_boot();
        if deleted_at(&self.lock.note()?).is_some_and(|deleted| waited.contains(&deleted)) {
            fail!(TryAgain, "{} was deleted while this ADD was waiting", self.attachment);
        }
        Ok(())
    }

    /// Writes down the time of a DEL.
    pub fn set_deleted(&mut self) -> Result<()> {
        self.lock.set_note(files::since_boot().as_nanos().to_string().as_bytes())
    }
}

impl DebtFile {
    /// Whether it is the same file.
    pub fn is_same(&self, other: &DebtFile) -> bool {
        self.name == other.name
    }

    /// Whether nothing is left of it.
    pub fn is_paid(&self) -> bool {
        self.record.debt.as_ref().is_some_and(|debt| debt.owed.is_empty())
    }
}

impl DeviceLock {
    fn copy(&mut self) -> Result<Option<Record>> {
        Ok(parse_copy(&self.lock.note()?))
    }
}

/// A copy whose writer was killed says nothing: the record would have been written after it.
fn parse_copy(note: &[u8]) -> Option<Record> {
    let copy: Record = serde_json::from_slice(note).ok()?;
    let is_ours = copy.version == VERSION && files::boot_id().is_ok_and(|id| id == copy.boot_id);
    is_ours.then_some(copy)
}

impl Ipam {
    /// The plugin, to be called for this attachment.
    pub fn delegate(&self, record: &Record) -> Result<Delegate<'_>> {
        let is_alive = record.life()? == Life::Alive;
        let netns = if is_alive { record.netns.path.as_path() } else { Path::new("") };
        let delegate = Delegate::find(&self.r#type, &self.path, self.config.as_bytes())?;
        Ok(delegate.on_behalf_of(&record.attachment(), netns, &self.args, &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(more: serde_json::Value) -> Record {
        let mut record = json!({
            "version": 1, "bootId": "b", "phase": "attached", "network": "rail-0", "containerID": "c", "ifname": "net1",
            "netns": {"path": "/n", "dev": 1, "ino": 1, "created": 1}, "since": "2026-11-24T00:00:00Z", "device": {"id": "0000:01:10.0"},
            "applied": {"mac": "", "addresses": [], "routes": [], "rules": []},
        });
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(record).unwrap()
    }

    /// `chosen` is the name that the pod before has given the device, and that another device keeps it from losing.
    #[test]
    fn what_is_bound_again_gets_the_name_of_before_the_pod_that_renamed_it() {
        let bind = |names: &[&str]| json!({"driver": "mlx5_core", "rdma": names, "guids": []});
        let moved = json!([{"index": 4, "name": "mlx5_4"}]);
        let owing = |what: &str| json!({"owed": [{"what": what, "why": "x"}]});
        for (left, after) in [
            (json!({"rdma": moved, "debt": owing("device")}), "mlx5_4"),
            (
                json!({"rdmaRenamed": {"index": 4, "before": "mlx5_4", "wanted": "x"}, "debt": owing("device")}),
                "mlx5_4",
            ),
            (json!({"bind": bind(&["mlx5_4"]), "debt": owing("device")}), "mlx5_4"),
            (json!({"rdma": moved}), "mlx5_4"),
            // It had its name back, and the operator has given it this one since.
            (json!({"rdma": moved, "debt": owing("reset")}), "chosen"),
            (json!({"debt": owing("device")}), "chosen"),
        ] {
            let mut now = record(json!({"bind": bind(&["chosen"])}));
            now.begin_as(&record(left.clone()));
            assert_eq!(now.bind.unwrap().rdma, [after], "{left}");
        }
    }

    #[test]
    fn a_row_of_node_json_means_a_pf_by_address_name_or_altname() {
        let named = |id: &str, link: serde_json::Value| -> Original {
            serde_json::from_value(json!({"id": id, "pciID": id, "link": link})).unwrap()
        };
        let original = named("0000:0a:00.0", json!(null));
        assert!(original.is_pf("0000:0a:00.0") && original.is_pf("0000:0A:00.0"));
        assert!(!original.is_pf("0000:0a:00.1") && !original.is_pf("ens1f0"));
    }
}
