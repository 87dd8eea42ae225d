//! This node's rails with PFs and VFs, and the pods that have them. Taking the inventory changes
//! nothing.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use anyhow::Result;

use super::rebuild::{self, Lost};
use super::taps::Tapped;
use rail_cni::attach::attachments::{self, Attachment, Attachments, Away, Owner, State};
use rail_cni::device::is_away;
use rail_cni::device::stacked::{self, Tap, is_tapped};
use rail_cni::ipam::{claim, emptied, table};
use rail_cni::netns::{Netns, is_same};
use rail_cni::node::Node;
use rail_cni::pool::is_same_rail;
use rail_cni::sysfs::{self, DeviceId, Function};
use rail_netlink::ethtool::Ethtool;
use rail_netlink::link::{self, Index, Link, parse_mac};
use rail_netlink::{Socket, address, rdma, vf};

/// The node's rails and attachments at one time.
#[derive(Debug)]
pub struct Inventory {
    /// The kernel's mode of sharing RDMA devices between namespaces.
    pub rdma: RdmaMode,
    /// The rails of node.json in its order. If it lists none: all PFs with netdevs.
    pub rails: Vec<Rail>,
    /// The attachments on record, by rail and pod.
    pub attachments: Vec<Attached>,
    /// Records with pending steps, whose devices are on the host.
    pub pending: Vec<Attachment>,
    /// Names of records that cannot be read.
    pub unreadable: Vec<String>,
    /// PFs and VFs of the rails that are in other namespaces without a record.
    pub lost: Vec<Lost>,
    /// PCI addresses of the devices that resource claims hold.
    pub claimed: HashSet<String>,
    /// Whether the run directory was emptied since the boot, and not rebuilt.
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
    pub record: Attachment,
    /// The present state.
    pub state: State,
    /// Whether an ADD or DEL of it is running: then what looks stale may not be.
    pub is_busy: bool,
    /// The interface's addresses without link-local ones; where a program in user space has the
    /// device, the leased ones.
    pub addresses: Vec<String>,
    /// Names of the RDMA devices in the pod.
    pub rdma: Vec<String>,
    /// Who takes the frames of the rail, if another namespace does.
    pub tapped: Option<Tapped>,
    /// Where the device is, if it is neither in the pod nor on the host.
    pub away: Option<Away>,
}

impl Attached {
    /// The word that `status` prints.
    pub fn word(&self) -> &'static str {
        match self.state {
            _ if self.is_busy => "busy",
            State::Live(_) if self.tapped.is_some() => "tapped",
            State::Live(_) => "live",
            State::Elsewhere => "elsewhere",
            State::Lost => "lost",
            State::OnHost => "on-host",
            State::Dead => "dead",
            State::CutOff => "cut-off",
            State::Missing => "missing",
            State::Unknown(_) => "unknown",
        }
    }

    /// The remedy for a device that the pod has lost to the host.
    pub fn remedy_of_loss(&self) -> String {
        let reattached = self.record.reattached();
        match reattached.and_then(|reattached| reattached.why_not.as_ref()) {
            Some(why) => format!("it could not be attached again: {why}"),
            None => "run `railctl reap --reattach`, or restart the pod".to_owned(),
        }
    }

    /// Whether the pod has the device.
    pub fn is_live(&self) -> bool {
        matches!(self.state, State::Live(_))
    }

    /// Whether the pod is gone, and the device has not returned.
    pub fn is_missing(&self) -> bool {
        !self.is_busy && self.state == State::Missing
    }

    /// Whether the device is neither in the pod nor on the host.
    fn is_away(&self) -> bool {
        !self.is_busy && matches!(self.state, State::Missing | State::Elsewhere)
    }

    /// The place of a device that has not returned from a pod that is gone, and the remedy.
    pub fn how_to_end(&self) -> String {
        attachments::describe_away(self.away.as_ref())
    }

    /// A device that is neither in the pod nor on the host, with its place if that was found.
    pub fn elsewhere(&self) -> String {
        let nowhere = "neither in the pod nor on the host";
        match &self.away {
            Some(away) => format!("{nowhere}: {}", away.place()),
            None => nowhere.to_owned(),
        }
    }

    /// Whether only the record is left, and the device is there: the next ADD, or `reap`, restores
    /// it.
    pub fn is_left_over(&self) -> bool {
        !self.is_busy && self.state.is_left_over() && self.state != State::Missing
    }

    /// The interface in the pod.
    pub fn link(&self) -> Option<&Link> {
        match &self.state {
            State::Live(link) => link.as_ref(),
            _ => None,
        }
    }

    /// Why the pod's liveness cannot be determined.
    pub fn error(&self) -> Option<&str> {
        match &self.state {
            State::Unknown(why) if !self.is_busy => Some(why),
            _ => None,
        }
    }
}

/// Errors, discards, pause frames and losses of the carrier, by the kernel's names.
pub type Counters = BTreeMap<&'static str, u64>;

/// The counters of the link since its driver was loaded.
pub fn counted(index: Index) -> Result<Counters> {
    let mut counters = link::faults(&mut Socket::open()?, index)?;
    if let Some(mut ethtool) = Ethtool::open()? {
        counters.extend(ethtool.pause_frames(index)?);
    }
    Ok(counters)
}

/// RDMA counters of errors, repetitions and congestion, by the driver's names.
pub type RdmaCounters = BTreeMap<String, u64>;

/// The counters of the function's RDMA devices, as far as they are on the host.
pub fn rdma_counted(function: &Function) -> RdmaCounters {
    /// Parts of the names in mlx5, bnxt_re, irdma, efa and rxe. Others count packets and requests.
    const FAULTS: [&str; 14] = [
        "err",
        "out_of",
        "nak",
        "cnp",
        "ecn",
        "discard",
        "timeout",
        "drop",
        "duplicate",
        "retr",
        "restart",
        "exceeded",
        "downed",
        "icrc",
    ];
    let mut counters = function.rdma_counters();
    counters.retain(|name, _| FAULTS.iter().any(|part| name.contains(part)));
    counters
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
        self.function
            .as_ref()
            .map_or(&self.named, |function| &function.id)
    }

    /// `rail 3`, or the PF where the rail is not known.
    pub fn title(&self) -> String {
        self.rail.map_or_else(
            || format!("PF {}", self.pf()),
            |rail| format!("rail {rail}"),
        )
    }

    /// Whether the attachment's device is this PF, or one of its VFs and SFs.
    pub fn has(&self, attached: &Attached) -> bool {
        let device = &attached.record.owner.device;
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
    /// Whether pods get the PFs themselves. Then no PF has VFs, and one that is down waits for its
    /// pod.
    pub fn is_pf_mode(&self, node: &Node) -> bool {
        !node.policy.vfs_only && self.rails.iter().all(|rail| rail.vfs.is_empty())
    }

    /// Counts the planes of this plane's rail: those with a carrier, and all. A PF in a pod is
    /// counted by its interface there.
    pub fn planes(&self, number: u8) -> (usize, usize) {
        let (mut up, mut all) = (BTreeSet::new(), BTreeSet::new());
        let is_sibling = |rail: &&Rail| rail.rail.is_some_and(|other| is_same_rail(number, other));
        for rail in self.rails.iter().filter(is_sibling) {
            all.insert(rail.rail);
            let holder = rail.function.as_ref().and_then(|pf| self.holder(pf));
            let link = rail.link.as_ref().or_else(|| holder?.link());
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
        let (mut attachments, mut pending, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
        if let Some(on_record) = Attachments::open_existing(node)? {
            let all;
            (all, unreadable) = on_record.all()?;
            for attachment in all {
                attachments.push(Attached::look(attachment, &on_record, node, &mut host)?);
            }
            for one in on_record.pending()? {
                pending.push(one.attachment);
            }
            pending.sort_by(|one, other| one.owner.since.cmp(&other.owner.since));
        }
        find_taps(&mut attachments)?;
        find_away(&mut attachments)?;
        attachments.sort_by(|one, other| {
            let key = |one: &Attached| {
                let Owner {
                    rail,
                    pod,
                    container_id,
                    ifname,
                    ..
                } = one.record.owner.clone();
                (rail.unwrap_or(u8::MAX), pod, container_id, ifname)
            };
            key(one).cmp(&key(other))
        });
        let rails = rails(node, &attachments, &links)?;
        let mut inventory = Inventory {
            rdma,
            rails,
            attachments,
            pending,
            unreadable,
            lost: Vec::new(),
            claimed: claim::devices(node)?,
            is_emptied: emptied::is_emptied(node)?,
        };
        inventory.lost = rebuild::find(&inventory.astray()?)?;
        Ok(inventory)
    }

    /// Hardware addresses of all VFs, on the host and in pods, by the PFs and by the netdevs.
    pub fn vf_macs(&self) -> Result<HashSet<Vec<u8>>> {
        let mut host = Socket::open()?;
        let mut macs = Vec::new();
        for rail in &self.rails {
            for vf in &rail.vfs {
                macs.extend(vf.link.as_ref().map(|link| link.mac.clone()));
                let (Some(pf), Some(number)) = (&rail.link, vf.function.vf_number()) else {
                    continue;
                };
                let settings = vf::state(&mut host, pf.index, number)?.known();
                macs.extend(settings.and_then(|settings| settings.mac));
            }
        }
        let in_pods = self.attachments.iter().filter_map(Attached::link);
        macs.extend(in_pods.map(|link| link.mac.clone()));
        Ok(macs.iter().filter_map(|mac| parse_mac(mac)).collect())
    }

    /// Devices of the rails that are neither on the host nor held by a record.
    fn astray(&self) -> Result<HashSet<String>> {
        let mut away = HashSet::new();
        for rail in &self.rails {
            let vfs = rail.vfs.iter().map(|vf| &vf.function);
            for function in rail.function.iter().chain(vfs) {
                if !self.is_held(function) && is_away(function)? {
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
        self.attachments
            .iter()
            .find(|attached| attached.record.owner.device.is_of(&device.id))
    }
}

impl Attached {
    fn look(
        attachment: Attachment,
        on_record: &Attachments,
        node: &Node,
        host: &mut Socket,
    ) -> Result<Attached> {
        let addresses = attachment.addresses().iter();
        let mut attached = Attached {
            addresses: addresses.map(ToString::to_string).collect(),
            state: attachment.state(node, host)?,
            record: attachment,
            is_busy: false,
            rdma: Vec::new(),
            tapped: None,
            away: None,
        };
        if attached.is_live() {
            if let Err(error) = attached.look_into_pod(node) {
                attached.state = State::Unknown(format!("{error:#}"));
            }
        }
        // A stale attachment may belong to a running call.
        attached.is_busy = !attached.is_live() && on_record.is_busy(&attached.record)?;
        Ok(attached)
    }

    /// Reads addresses and RDMA devices in the pod, and whether its rail is tapped.
    fn look_into_pod(&mut self, node: &Node) -> Result<()> {
        let owner = &self.record.owner;
        let netns = Netns::open(&owner.netns.path)?;
        self.rdma = self.record.rdma_names(&netns)?;
        let Some(link) = self.link() else {
            let attachment = owner.attachment();
            let leases = table::held_by(node, &owner.network, &attachment)?;
            let leased = leases.iter().map(|lease| lease.address.to_string());
            self.addresses.extend(leased);
            return Ok(());
        };
        let mut pod = netns.run(Socket::open)?;
        let all = address::all(&mut pod, link.index)?;
        let is_tapped = is_tapped(link, &mut pod)?;
        let ours = all.into_iter().filter(|one| !one.is_link_local());
        self.addresses = ours.map(|one| one.net.to_string()).collect();
        self.tapped = is_tapped.then(Tapped::default);
        Ok(())
    }
}

/// Finds the links that tap the rails of these attachments, with one search for all.
fn find_taps(attachments: &mut [Attached]) -> Result<()> {
    let mut rails = Vec::new();
    let mut numbers = Vec::new();
    for (number, attached) in attachments.iter().enumerate() {
        let (Some(_), Some(link)) = (&attached.tapped, attached.link()) else {
            continue;
        };
        // A pod that has ended meanwhile is no longer tapped.
        if let Ok(netns) = Netns::open(&attached.record.owner.netns.path) {
            rails.push((link.index, netns));
            numbers.push(number);
        }
    }
    for (number, by) in numbers.into_iter().zip(stacked::taps(&rails)?) {
        let pod = by.as_ref().and_then(|tap| pod_of(tap, attachments));
        attachments[number].tapped = Some(Tapped { by, pod });
    }
    Ok(())
}

/// Finds the devices that are neither in their pods nor on the host, with one search for all.
fn find_away(attachments: &mut [Attached]) -> Result<()> {
    let all: Vec<_> = attachments.iter().map(|one| &one.record).collect();
    let mut lost = Vec::new();
    let mut numbers = Vec::new();
    for (number, attached) in attachments.iter().enumerate() {
        if attached.is_away() {
            lost.push(&attached.record);
            numbers.push(number);
        }
    }
    let places = attachments::find_away(&lost, &all)?;
    for (number, place) in numbers.into_iter().zip(places) {
        attachments[number].away = place;
    }
    Ok(())
}

/// The pod in whose namespace the tap is, if the pod has a rail.
fn pod_of(tap: &Tap, attachments: &[Attached]) -> Option<String> {
    let netns = tap.netns.as_ref()?;
    let mut owners = attachments.iter().map(|one| &one.record.owner);
    let owner = owners.find(|owner| is_same(&owner.netns.path, netns))?;
    owner.pod.clone()
}

fn rails(node: &Node, attachments: &[Attached], links: &[Link]) -> Result<Vec<Rail>> {
    let sysfs = &node.sysfs_root;
    let by_name = |name: &str| links.iter().find(|link| link.name == name).cloned();
    let mut listed: Vec<(Option<u8>, String)> = node
        .rails
        .iter()
        .map(|one| (Some(one.rail), one.pf.clone()))
        .collect();
    if listed.is_empty() {
        let is_nic = |function: &Function| {
            function.netdev().is_ok_and(|netdev| netdev.is_some())
                || attachments
                    .iter()
                    .any(|one| one.record.owner.device.pf.as_ref() == Some(&function.id))
        };
        let nics = sysfs::functions_with_sriov(sysfs)?
            .into_iter()
            .filter(is_nic);
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
                let link = one.record.owner.device.link.as_ref();
                link.is_some_and(|link| link.name == named)
                    && (one.is_busy || !one.state.is_left_over())
            };
            attachments
                .iter()
                .find(had)?
                .record
                .owner
                .device
                .pci_id
                .as_deref()
                .and_then(DeviceId::parse)
        };
        let function = match function {
            None => in_pod()
                .map(|id| Function::find(sysfs, &id))
                .transpose()?
                .flatten(),
            found => found,
        };
        let netdev = function
            .as_ref()
            .map(Function::netdev)
            .transpose()?
            .flatten();
        let mut one = Rail {
            rail,
            link: netdev.as_deref().or(Some(&named)).and_then(by_name),
            rdma: function
                .as_ref()
                .map(Function::rdma_devices)
                .unwrap_or_default(),
            vfs: Vec::new(),
            named,
            function,
        };
        for address in one
            .function
            .as_ref()
            .map(Function::vfs)
            .transpose()?
            .unwrap_or_default()
        {
            let found = DeviceId::parse(&address)
                .map(|id| Function::find(sysfs, &id))
                .transpose()?
                .flatten();
            let Some(function) = found else { continue };
            let link = function.netdev()?.as_deref().and_then(by_name);
            one.vfs.push(Vf { function, link });
        }
        if one.rail.is_none() {
            let on_it = attachments.iter().find(|attached| one.has(attached));
            one.rail = on_it.and_then(|attached| attached.record.owner.rail);
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
            Function::find(root.path(), &DeviceId::parse(id).unwrap())
                .unwrap()
                .unwrap()
        };
        let rail = Rail {
            rail: Some(0),
            named: String::new(),
            function: Some(function("0000:1a:00.0")),
            link: None,
            rdma: Vec::new(),
            vfs: vec![Vf {
                function: function("0000:1a:00.2"),
                link: None,
            }],
        };
        let away = |ids: &[&str]| {
            ids.iter()
                .map(|id| (*id).to_owned())
                .collect::<HashSet<_>>()
        };
        let mut inventory = Inventory {
            rdma: RdmaMode::Absent,
            rails: vec![rail],
            attachments: Vec::new(),
            pending: Vec::new(),
            unreadable: Vec::new(),
            lost: Vec::new(),
            claimed: away(&["0000:1a:00.2"]),
            is_emptied: false,
        };
        assert_eq!(inventory.astray().unwrap(), away(&["0000:1a:00.0"]));
        inventory.claimed.clear();
        assert_eq!(
            inventory.astray().unwrap(),
            away(&["0000:1a:00.0", "0000:1a:00.2"])
        );
    }
}
