//! Devices that a pod has without a record: someone emptied the run directory while the pod lived, or another plugin
//! attached them. They are found by a search through the network namespaces.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::locate;
use super::locks::AttachmentLock;
use super::owner::{Inside, Key, Owner, Part};
use super::pending;
use super::record::{Record, State};
use super::records::Records;
use super::steps::Change;
use super::steps::netdev::Netdev;
use super::steps::rail::Rail;
use super::steps::vf::Vf;
use crate::cni::Attachment;
use crate::device::Original;
use crate::every_netns::{self, Seen, Which};
use crate::netns::{Netns, NetnsId};
use crate::node::Node;
use crate::sysfs::{DeviceId, Function};
use crate::watchdog::{self, SearchTime};
use crate::{calls, fail};
use rail_netlink::link::{self, Link, Move};
use rail_netlink::vf::VfState;
use rail_netlink::{Socket, address};

/// The key of a rebuilt record: the runtime's own is not known.
fn key_in(netns: &NetnsId, ifname: &str) -> Key {
    let container_id = format!("rebuilt-{}", netns.ino);
    Key::whole(&Attachment { container_id, ifname: ifname.to_owned() })
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
pub const REMEDY: &str = "end that pod; if rail-cni attached the device, `railctl reap --rebuild` records it";

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
    /// host again. The original state is what is pending of an earlier pod; where nothing is, it cannot be seen: MTU and MAC
    /// stay as they are, and the name will be the device's usual one.
    pub fn rebuild(&self, records: &Records, node: &Node, host: &mut Socket) -> Result<Option<Record>> {
        let id = DeviceId::parse(&self.id)
            .with_context(|| format!("{} is not the address of a device", self.id))?;
        let function = Function::find(&node.sysfs_root, &id)?;
        let function = function.with_context(|| format!("the host has no device {}", self.id))?;
        let mut lock = records.locks.device(&self.id)?;
        if !records.claims_on(&self.id, &mut lock, None)?.is_empty() || !is_away(&function)? {
            return Ok(None);
        }
        let mut record = Record::new(self.owner(&id, &function, node, host)?);
        record.plan(Change::Netdev(Netdev::default()));
        record.plan(Change::Links);
        record.plan(Change::Move);
        let addresses = self.addresses.clone();
        record.plan(Change::Rail(Rail { mtu: Some(self.link.mtu), addresses, ..Rail::default() }));
        let previous = pending::earliest(records, &self.id)?;
        if let Some(previous) = &previous {
            // Which settings the network made is not known: all that were known before are restored.
            let anew = |vf: &Vf| Vf { wanted: VfState::default(), ..vf.clone() };
            for step in previous.left() {
                match &step.change {
                    Change::Vf(vf) => record.plan(Change::Vf(anew(vf))),
                    Change::VfMac(vf) => record.plan(Change::VfMac(anew(vf))),
                    _ => (),
                }
            }
            record.inherit(previous);
            if let Some(bound) = previous.driver() {
                record.plan(Change::Driver(bound.clone()));
            }
        }
        for step in &mut record.steps {
            step.state = State::Done;
        }
        records.write(&record, &mut lock)?;
        if previous.is_some() {
            pending::inherited(records, &self.id, Part::Whole)?;
        }
        Ok(Some(record))
    }

    fn owner(&self, id: &DeviceId, function: &Function, node: &Node, host: &mut Socket) -> Result<Owner> {
        let pf = function.pf(&node.sysfs_root)?.map(|pf| pf.address);
        let mut was = self.link.clone();
        was.name = usual_name(id, &self.link, node)?;
        was.up = false;
        let netns = NetnsId::of(&self.netns).ok().flatten();
        let netns = netns.with_context(|| format!("{} vanished", self.netns.display()))?;
        let mut rail = None;
        for one in &node.rails {
            let by_name = link::by_name(host, &one.pf).ok().flatten().and_then(|link| link.parent);
            if pf.as_ref() == Some(&one.pf) || (by_name.is_some() && by_name == pf) {
                rail = rail.or(Some(one.rail));
            }
        }
        let device = Original {
            id: self.id.clone(),
            pci_id: Some(self.id.clone()),
            pf,
            port: None,
            siblings: false,
            link: Some(was),
        };
        Ok(Owner {
            rail,
            rebuilt: true,
            inside: Inside { index: self.link.index.get(), mac: self.link.mac.clone() },
            ..Owner::new(&key_in(&netns, &self.link.name), netns, device)?
        })
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
    let rebuilt = key_in(&id, &attachment.ifname);
    if records.on_file(&rebuilt)?.is_none() {
        return Ok((None, None));
    }
    let lock = records.locks.attachment(&rebuilt)?;
    let record = records.on_file(&rebuilt)?;
    let is_it = |record: &Record| {
        let netns = &record.owner.netns;
        record.owner.rebuilt && (netns.dev, netns.ino) == (id.dev, id.ino)
    };
    Ok((Some(lock), record.filter(is_it)))
}

/// Returns a device without a record from a living pod; its PCI address alone is known. On the host it gets its usual
/// name, or else a free one. DEL needs this after /run was emptied, or after another plugin's ADD.
pub fn give_back_unrecorded(netns: &Netns, id: &DeviceId, ifname: &str, node: &Node) -> Result<bool> {
    let mut pod = netns.run(Socket::open)?;
    let ours = |link: &Link| link.parent.as_deref() == Some(id.as_str());
    let Some(link) = link::by_name(&mut pod, ifname)?.filter(ours) else { return Ok(false) };
    let mut host = Socket::open()?;
    let usual = usual_name(id, &link, node)?;
    let is_free = usual != link.name && link::by_name(&mut host, &usual)?.is_none();
    let name = if is_free { usual } else { locate::free_name(&mut host, &link)? };
    for altname in locate::clashing(&link, &mut host)? {
        link::remove_altname(&mut pod, &link, &altname)?;
    }
    link::move_to(&mut pod, &link, &Netns::current()?, &Move { name: &name, ..Move::default() })?;
    calls::restored(format!(
        "{} was in the pod as {ifname} without a record: it is on the host as {name}",
        id.as_str()
    ));
    Ok(true)
}
