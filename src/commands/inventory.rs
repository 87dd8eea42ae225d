//! What this node has: its rails with PFs and VFs, and the pods that have them. Taking the inventory changes
//! nothing.

use std::collections::{BTreeSet, HashSet};

use anyhow::Result;

use crate::attach::lost::{self, Lost};
use crate::attach::planes::is_same_rail;
use crate::attach::record::{Phase, Record, Records};
use crate::attach::{self, restore};
use crate::files;
use crate::ipam::{claim, lease, living};
use crate::netlink::link::{self, Link};
use crate::netlink::{Socket, address, rdma};
use crate::netns::{Life, Netns};
use crate::node::Node;
use crate::sysfs::{self, DeviceId, Function};

/// The node's rails and attachments at one time.
#[derive(Debug)]
pub struct Inventory {
    /// How the kernel shares RDMA devices between namespaces.
    pub rdma: RdmaMode,
    /// The rails of node.json in its order. If it lists none: all PFs with netdevs.
    pub rails: Vec<Rail>,
    /// The attachments on record, by rail and pod.
    pub attachments: Vec<Attached>,
    /// Records of attachments whose device is on the host, but whose cleanup is not finished.
    pub debts: Vec<Record>,
    /// Names of records that cannot be read.
    pub unreadable: Vec<String>,
    /// PFs and VFs of the rails that are in other namespaces without a record.
    pub lost: Vec<Lost>,
    /// PCI addresses of the devices that resource claims hold.
    pub claimed: HashSet<String>,
    /// Whether the run directory was emptied since the boot, and no ADD has come since.
    pub is_emptied: bool,
}

/// The mode that `rdma system show` reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaMode {
    /// The kernel has no RDMA.
    Absent,
    /// Every namespace sees every device.
    Shared,
    /// Each device is in one namespace.
    Exclusive,
}

/// A rail and its PF.
#[derive(Debug)]
pub struct Rail {
    /// The number in node.json, or the one that the rail's attachments have.
    pub rail: Option<u8>,
    /// The PF's name or PCI address in node.json.
    pub named: String,
    /// The PF's function; `None` if it is missing, or if the netdev has none.
    pub function: Option<Function>,
    /// The PF's netdev, while it is on the host.
    pub link: Option<Link>,
    /// The PF's RDMA devices, while they are on the host.
    pub rdma: Vec<String>,
    /// The VFs in the order of their numbers.
    pub vfs: Vec<Vf>,
}

/// A VF of a rail.
#[derive(Debug)]
pub struct Vf {
    /// The PCI function.
    pub function: Function,
    /// The VF's netdev, while it is on the host.
    pub link: Option<Link>,
}

/// An attachment and its present state.
#[derive(Debug)]
pub struct Attached {
    /// The record that ADD wrote.
    pub record: Record,
    /// The present state.
    pub state: State,
    /// The interface in the pod.
    pub link: Option<Link>,
    /// The interface's addresses without link-local ones; where a program in user space has the device, the
    /// leased ones.
    pub addresses: Vec<String>,
    /// Names of the RDMA devices in the pod.
    pub rdma: Vec<String>,
    /// Why the pod could not be inspected.
    pub error: Option<String>,
    /// Whether the pod is gone and the device has not returned.
    pub is_away: bool,
    /// Whether the device is on the host while it is not known if the pod is alive: the next ADD takes it.
    pub is_home: bool,
}

/// The state of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The pod has the device.
    Live,
    /// An ADD or DEL is running.
    Busy,
    /// The pod is gone without a DEL.
    Dead,
    /// The ADD was killed.
    CutOff,
    /// The pod is alive, but its device is on the host.
    OnHost,
    /// The pod is alive, but its device is neither there nor on the host.
    Elsewhere,
    /// The device has returned, but its address is still leased: 0.1.0 left attachments in this state.
    Returned,
    /// The pod is gone, and the device has not returned.
    Missing,
    /// The pod cannot be inspected.
    Unknown,
}

impl State {
    /// The word that `status` prints.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Live => "live",
            State::Busy => "busy",
            State::Dead => "dead",
            State::CutOff => "cut-off",
            State::OnHost => "on-host",
            State::Elsewhere => "elsewhere",
            State::Returned => "returned",
            State::Missing => "missing",
            State::Unknown => "unknown",
        }
    }

    /// Whether `reap` would clean up this attachment.
    pub fn is_left_over(self) -> bool {
        matches!(self, State::Dead | State::CutOff | State::OnHost | State::Returned | State::Missing)
    }
}

/// The state of a link, for people: a link that is up without a carrier has a word of its own.
pub fn link_state(link: &Link) -> &'static str {
    match (link.up, link.carrier) {
        (false, _) => "down",
        (true, false) => "no-carrier",
        (true, true) => "up",
    }
}

impl Rail {
    /// The PCI address of the PF, or its name in node.json.
    pub fn pf(&self) -> &str {
        self.function.as_ref().map_or(&self.named, |function| &function.id)
    }

    /// `rail 3`, or the PF where the rail is not known.
    pub fn title(&self) -> String {
        self.rail.map_or_else(|| format!("PF {}", self.pf()), |rail| format!("rail {rail}"))
    }

    /// Whether the attachment's device is this PF, or one of its VFs and SFs.
    pub fn has(&self, attached: &Attached) -> bool {
        let device = &attached.record.device;
        match &self.function {
            Some(function) => device.pf.as_ref() == Some(&function.id),
            None => device.id == self.named,
        }
    }

    /// Whether the node does not have the PF.
    pub fn is_missing(&self) -> bool {
        self.function.is_none() && self.link.is_none()
    }
}

impl Inventory {
    /// Whether pods get the PFs themselves. Then no PF has VFs, and one that is down waits for its pod.
    pub fn is_pf_mode(&self, node: &Node) -> bool {
        !node.policy.vfs_only && self.rails.iter().all(|rail| rail.vfs.is_empty())
    }

    /// How many planes of the rail of this plane have a carrier, and how many it has. A PF in a pod is counted by its
    /// interface there.
    pub fn planes(&self, number: u8) -> (usize, usize) {
        let (mut up, mut all) = (BTreeSet::new(), BTreeSet::new());
        let is_sibling = |rail: &&Rail| rail.rail.is_some_and(|other| is_same_rail(number, other));
        for rail in self.rails.iter().filter(is_sibling) {
            all.insert(rail.rail);
            let holder = rail.function.as_ref().and_then(|pf| self.holder(pf));
            let link = rail.link.as_ref().or_else(|| holder?.link.as_ref());
            if link.is_some_and(|link| link.carrier) {
                up.insert(rail.rail);
            }
        }
        (up.len(), all.len())
    }

    /// Takes the inventory.
    pub fn take(node: &Node) -> Result<Inventory> {
        let mut host = Socket::open()?;
        let links = link::all(&mut host)?;
        let rdma = match rdma::open()? {
            None => RdmaMode::Absent,
            Some(mut socket) => {
                if rdma::is_exclusive(&mut socket)? {
                    RdmaMode::Exclusive
                } else {
                    RdmaMode::Shared
                }
            }
        };
        let (mut attachments, mut debts, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
        if let Some(records) = Records::open_existing(node)? {
            let all;
            (all, unreadable) = records.all()?;
            for record in all {
                attachments.push(Attached::look(record, &records, node, &mut host)?);
            }
            debts.extend(records.debts()?.into_iter().map(|debt| debt.record));
            debts.sort_by(|one, other| one.since.cmp(&other.since));
        }
        attachments.sort_by(|one, other| {
            let key = |one: &Attached| {
                let Record { rail, pod, container_id, ifname, .. } = one.record.clone();
                (rail.unwrap_or(u8::MAX), pod, container_id, ifname)
            };
            key(one).cmp(&key(other))
        });
        let rails = rails(node, &attachments, &links)?;
        let mut inventory = Inventory {
            rdma,
            rails,
            attachments,
            debts,
            unreadable,
            lost: Vec::new(),
            claimed: claim::devices(node)?,
            is_emptied: living::is_emptied(node)?,
        };
        inventory.lost = lost::find(&inventory.astray()?)?;
        Ok(inventory)
    }

    /// Devices of the rails that are not on the host, and that nobody holds.
    fn astray(&self) -> Result<HashSet<String>> {
        let mut away = HashSet::new();
        for rail in &self.rails {
            let vfs = rail.vfs.iter().map(|vf| &vf.function);
            for function in rail.function.iter().chain(vfs) {
                if !self.is_held(function) && lost::is_away(function)? {
                    away.insert(function.id.clone());
                }
            }
        }
        Ok(away)
    }

    /// The device, if it is in a namespace without a record.
    pub fn lost(&self, device: &Function) -> Option<&Lost> {
        self.lost.iter().find(|lost| lost.id == device.id)
    }

    /// Whether the device is on record, or a resource claim holds it.
    pub fn is_held(&self, device: &Function) -> bool {
        self.holder(device).is_some() || self.claimed.contains(&device.id)
    }

    /// The attachment that has the device, or had it last.
    pub fn holder(&self, device: &Function) -> Option<&Attached> {
        self.attachments.iter().find(|attached| attached.record.device.is_of(&device.id))
    }
}

impl Attached {
    fn look(record: Record, records: &Records, node: &Node, host: &mut Socket) -> Result<Attached> {
        let mut attached = Attached {
            addresses: record.applied.addresses.iter().map(ToString::to_string).collect(),
            record,
            state: State::Unknown,
            link: None,
            rdma: Vec::new(),
            error: None,
            is_away: false,
            is_home: false,
        };
        attached.state = attached.state(node, host).unwrap_or_else(|error| {
            attached.error = Some(format!("{error:#}"));
            State::Unknown
        });
        // What looks stale may belong to a running call.
        if attached.state != State::Live && records.is_busy(&attached.record.attachment())? {
            attached.state = State::Busy;
        }
        if matches!(attached.state, State::Dead | State::Missing) {
            attached.is_away = restore::is_away(&attached.record, node, host)?;
        }
        if attached.state == State::Unknown {
            attached.is_home = restore::find_on_host(&attached.record, node, host)?.is_some();
        }
        Ok(attached)
    }

    fn state(&mut self, node: &Node, host: &mut Socket) -> Result<State> {
        let record = &self.record;
        if record.boot_id != files::boot_id()? {
            return Ok(State::Dead);
        }
        match record.phase {
            Phase::Returned => return Ok(State::Returned),
            Phase::Missing => return Ok(State::Missing),
            Phase::Adding | Phase::Attached => (),
        }
        match record.life()? {
            Life::Alive => (),
            Life::Dead => return Ok(State::Dead),
            Life::Unknown(why) => {
                self.error = Some(why);
                return Ok(State::Unknown);
            }
        }
        let netns = Netns::open(&record.netns.path)?;
        if record.phase == Phase::Adding {
            return Ok(State::CutOff);
        }
        self.rdma = attach::rdma::names_in_pod(record, &netns)?;
        if record.device.link.is_none() {
            let attachment = record.attachment();
            lease::for_each_folder(node, |folder| {
                let held = folder.held_by(&record.network, &attachment)?;
                self.addresses.extend(held.map(|lease| lease.address.to_string()));
                Ok(())
            })?;
            return Ok(State::Live);
        }
        let mut pod = netns.run(Socket::open)?;
        self.link = restore::find_in_pod(record, &mut pod)?;
        let Some(link) = &self.link else {
            let is_on_host = restore::find_on_host(record, node, host)?.is_some();
            return Ok(if is_on_host { State::OnHost } else { State::Elsewhere });
        };
        let all = address::all(&mut pod, link.index)?;
        let ours = all.into_iter().filter(|one| !one.is_link_local());
        self.addresses = ours.map(|one| one.net.to_string()).collect();
        Ok(State::Live)
    }
}

fn rails(node: &Node, attachments: &[Attached], links: &[Link]) -> Result<Vec<Rail>> {
    let sysfs = &node.sysfs_root;
    let by_name = |name: &str| links.iter().find(|link| link.name == name).cloned();
    let mut listed: Vec<(Option<u8>, String)> =
        node.rails.iter().map(|one| (Some(one.rail), one.pf.clone())).collect();
    if listed.is_empty() {
        let is_nic = |function: &Function| {
            function.netdev().is_ok_and(|netdev| netdev.is_some())
                || attachments.iter().any(|one| one.record.device.pf.as_ref() == Some(&function.id))
        };
        let nics = sysfs::functions_with_sriov(sysfs)?.into_iter().filter(is_nic);
        listed = nics.map(|function| (None, function.id)).collect();
    }
    let mut rails = Vec::new();
    for (rail, named) in listed {
        let function = match DeviceId::parse(&named) {
            Some(id) => Function::find(sysfs, &id)?,
            None => Function::of_netdev(sysfs, &named)?,
        };
        // A netdev that is in a pod is known only from its record.
        let in_pod = || {
            let had = |one: &&Attached| {
                one.record
                    .device
                    .link
                    .as_ref()
                    .is_some_and(|link| link.name == named && !one.state.is_left_over())
            };
            attachments.iter().find(had)?.record.device.pci_id.as_deref().and_then(DeviceId::parse)
        };
        let function = match function {
            None => in_pod().map(|id| Function::find(sysfs, &id)).transpose()?.flatten(),
            found => found,
        };
        let netdev = function.as_ref().map(Function::netdev).transpose()?.flatten();
        let mut one = Rail {
            rail,
            link: netdev.as_deref().or(Some(&named)).and_then(by_name),
            rdma: function.as_ref().map(Function::rdma_devices).unwrap_or_default(),
            vfs: Vec::new(),
            named,
            function,
        };
        for address in one.function.as_ref().map(Function::vfs).transpose()?.unwrap_or_default() {
            let found = DeviceId::parse(&address).map(|id| Function::find(sysfs, &id)).transpose()?.flatten();
            let Some(function) = found else { continue };
            let link = function.netdev()?.as_deref().and_then(by_name);
            one.vfs.push(Vf { function, link });
        }
        if one.rail.is_none() {
            let on_it = attachments.iter().find(|attached| one.has(attached));
            one.rail = on_it.and_then(|attached| attached.record.rail);
        }
        rails.push(one);
    }
    Ok(rails)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_device_that_a_claim_holds_is_not_astray() {
        let root = tempfile::tempdir().unwrap();
        let function = |id: &str| {
            let path = root.path().join("bus/pci/devices").join(id);
            fs::create_dir_all(&path).unwrap();
            symlink("mlx5_core", path.join("driver")).unwrap();
            Function::find(root.path(), &DeviceId::parse(id).unwrap()).unwrap().unwrap()
        };
        let rail = Rail {
            rail: Some(0),
            named: String::new(),
            function: Some(function("0000:1a:00.0")),
            link: None,
            rdma: Vec::new(),
            vfs: vec![Vf { function: function("0000:1a:00.2"), link: None }],
        };
        let away = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<HashSet<_>>();
        let mut inventory = Inventory {
            rdma: RdmaMode::Absent,
            rails: vec![rail],
            attachments: Vec::new(),
            debts: Vec::new(),
            unreadable: Vec::new(),
            lost: Vec::new(),
            claimed: away(&["0000:1a:00.2"]),
            is_emptied: false,
        };
        assert_eq!(inventory.astray().unwrap(), away(&["0000:1a:00.0"]));
        inventory.claimed.clear();
        assert_eq!(inventory.astray().unwrap(), away(&["0000:1a:00.0", "0000:1a:00.2"]));
    }
}
