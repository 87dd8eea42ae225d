//! Devices that a pod has without a record: someone emptied the run directory while the pod lived, or another plugin
//! attached them. They are found by a search through the network namespaces.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::debt::{self, Heir};
use super::record::{Applied, AttachmentLock, Original, Phase, Record, Records, VfRecord, What};
use crate::cni::Attachment;
use crate::every_netns::{self, Seen, Which};
use crate::fail;
use crate::netlink::link::{self, Link};
use crate::netlink::vf::VfState;
use crate::netlink::{Socket, address};
use crate::netns::NetnsId;
use crate::node::Node;
use crate::sysfs::{DeviceId, Function};
use crate::watchdog::{self, SearchTime};

/// The container id of a rebuilt record, followed by the inode of its namespace. The runtime's own id is not known.
const CONTAINER: &str = "rebuilt-";

/// Was the record rebuilt? It does not say which RDMA devices its pod has.
pub fn is_rebuilt(record: &Record) -> bool {
    record.container_id.starts_with(CONTAINER)
}

/// A device in a network namespace, without a record.
#[derive(Clone, Debug)]
pub struct Lost {
    /// PCI address or auxiliary name.
    pub id: String,
    /// The netdev there.
    pub link: Link,
    /// Its addresses there, without link-local ones.
    pub addresses: Vec<ipnet::IpNet>,
    /// A path that leads to the namespace.
    pub netns: PathBuf,
}

/// Finds the netdevs of these functions in all namespaces that can be seen from here.
pub fn find(functions: &HashSet<String>) -> Result<Vec<Lost>> {
    let mut found = Vec::new();
    if functions.is_empty() {
        return Ok(found);
    }
    let deadline = watchdog::search_until(SearchTime::Long);
    let seen = every_netns::visit(Which::All, deadline, |socket, netns| {
        for link in link::seen(socket)? {
            let Some(id) = link.parent.clone().filter(|id| functions.contains(id)) else { continue };
            // A VLAN has no parent; a representor's parent is its PF's function, which is on the host.
            let addresses = addresses(socket, &link)?;
            found.push(Lost { id, link, addresses, netns: netns.to_owned() });
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if seen == Seen::Part {
        log::warn!("the search for devices ended before every namespace was examined");
    }
    Ok(found)
}

fn addresses(socket: &mut Socket, link: &Link) -> Result<Vec<ipnet::IpNet>> {
    let all = address::all(socket, link.index)?;
    Ok(all.into_iter().filter(|one| !one.is_link_local()).map(|one| one.net).collect())
}

/// Whether the netdev of a function without a record is not on the host.
pub fn is_away(function: &Function) -> Result<bool> {
    Ok(function.driver().is_some() && !function.is_userspace() && function.netdevs()?.is_empty())
}

/// Fails when a pod has the device, and says where.
pub fn refuse(id: &DeviceId, node: &Node) -> Result<()> {
    let Some(function) = Function::find(&node.sysfs_root, id)? else { return Ok(()) };
    if !is_away(&function)? {
        return Ok(());
    }
    match find(&HashSet::from([function.id.clone()]))?.first() {
        Some(lost) => {
            fail!(TryAgain, "{}: {REMEDY}", lost.describe())
        }
        None => fail!(
            InvalidConfig,
            "the driver of {} has made no netdev, on the host or in any namespace that can be seen from here",
            function.id
        ),
    }
}

/// What to do about a device without a record. Another plugin's DEL gives its device back by itself: a record of ours would
/// take what that pod has for the original.
pub const REMEDY: &str =
    "end that pod; if rail-cni attached the device, `rail-cni reap --rebuild` records it";

impl Lost {
    /// Where the device is, for people.
    pub fn describe(&self) -> String {
        let Lost { id, link, netns, .. } = self;
        format!("{id} is {} in the namespace {}, and there is no record of it", link.name, netns.display())
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let Lost { id, link, addresses, netns } = self;
        json!({"device": id, "interface": link.name, "addresses": addresses, "netns": netns})
    }

    /// Writes a record of what can be seen, unless an ADD has put the device on record since it was found, or it is on the
    /// host again. The original state is what an earlier pod owes; where none owes anything, it cannot be seen: MTU and MAC
    /// stay as they are, and the name will be the device's usual one.
    pub fn rebuild(&self, records: &Records, node: &Node, host: &mut Socket) -> Result<Option<Record>> {
        let id =
            DeviceId::parse(&self.id).with_context(|| format!("{} is no address of a device", self.id))?;
        let function = Function::find(&node.sysfs_root, &id)?;
        let function = function.with_context(|| format!("the host has no device {}", self.id))?;
        let mut lock = records.lock_device(&self.id)?;
        if !records.claims_on(&self.id, &mut lock, None)?.is_empty() || !is_away(&function)? {
            return Ok(None);
        }
        let pf = function.pf(&node.sysfs_root)?;
        let mut was = self.link.clone();
        was.name = usual_name(&id, &self.link, node)?;
        was.up = false;
        let netns = NetnsId::of(&self.netns).ok().flatten();
        let netns = netns.with_context(|| format!("{} vanished", self.netns.display()))?;
        let rail = node.rails.iter().find(|one| {
            let address = pf.as_ref().map(|pf| &pf.address);
            let by_name = link::by_name(host, &one.pf).ok().flatten().and_then(|link| link.parent);
            Some(&one.pf) == address || (by_name.is_some() && by_name.as_ref() == address)
        });
        let attachment =
            Attachment { container_id: format!("{CONTAINER}{}", netns.ino), ifname: self.link.name.clone() };
        let device = Original {
            id: self.id.clone(),
            pci_id: Some(self.id.clone()),
            pf: pf.map(|pf| pf.address),
            port: None,
            siblings: false,
            link: Some(was),
        };
        let mut record = Record {
            phase: Phase::Attached,
            rail: rail.map(|one| one.rail),
            applied: Applied {
                index: self.link.index.get(),
                mtu: Some(self.link.mtu),
                mac: self.link.mac.clone(),
                addresses: self.addresses.clone(),
                ..Applied::default()
            },
            ..Record::new(&attachment, netns, device)?
        };
        let left = debt::earliest(records, &self.id)?;
        if let Some(left) = &left {
            record.begin_as(left);
            if left.owes(What::Vf) {
                record.vf = left.vf.clone().map(|vf| VfRecord { wanted: VfState::default(), ..vf });
            }
            if left.owes(What::Vf) || left.owes(What::Reset) {
                record.bind = left.bind.clone();
            }
        }
        records.write(&record, &mut lock)?;
        if left.is_some() {
            debt::taken_over(records, &self.id, Heir::OfDevice)?;
        }
        Ok(Some(record))
    }
}

/// The usual name of a device. For a VF it is udev's, made of its PF and its number; for another device an altname,
/// because altnames move with it; otherwise the name that it has.
pub fn usual_name(id: &DeviceId, link: &Link, node: &Node) -> Result<String> {
    /// IFNAMSIZ without the zero at its end (linux/if.h).
    const LONGEST: usize = 15;
    let function = Function::find(&node.sysfs_root, id)?;
    let pf = function.as_ref().map(|function| function.pf(&node.sysfs_root)).transpose()?.flatten();
    let number = function.as_ref().and_then(Function::vf_number);
    let of_vf = number.zip(pf.and_then(|pf| pf.netdev)).map(|(number, pf)| format!("{pf}v{number}"));
    let mut names = of_vf.into_iter().chain(link.altnames.iter().cloned());
    Ok(names.find(|name| name.len() <= LONGEST).unwrap_or_else(|| link.name.clone()))
}

/// `record`, or the rebuilt record of what `attachment` has in the namespace at `netns`, with its lock.
pub fn or_rebuilt(
    records: Option<&Records>,
    record: Option<Record>,
    attachment: &Attachment,
    netns: Option<&Path>,
) -> Result<(Option<AttachmentLock>, Option<Record>)> {
    let (None, Some(records), Some(netns)) = (&record, records, netns) else { return Ok((None, record)) };
    let Some(id) = NetnsId::of(netns).ok().flatten() else { return Ok((None, None)) };
    let container_id = format!("{CONTAINER}{}", id.ino);
    let rebuilt = Attachment { container_id, ifname: attachment.ifname.clone() };
    if records.on_file(&rebuilt)?.is_none() {
        return Ok((None, None));
    }
    let lock = records.lock(&rebuilt)?;
    let record = records.on_file(&rebuilt)?;
    Ok((Some(lock), record.filter(|record| (record.netns.dev, record.netns.ino) == (id.dev, id.ino))))
}
