//! ADD. Everything that can be refused is refused before anything changes; a failure after the
//! journal was written undoes everything, as DEL does.
//!
//! 1. Read environment, stdin, node.json and configuration (`cni`, `config`).
//! 2. Claim: lock the attachment, and undo an earlier, interrupted ADD of it. Find and lock the
//!    device. Restore it if a dead pod left it; fail with error 11 if a living pod has it, or if a
//!    pending step keeps tenants apart (`claim`, `device`, `pending`).
//! 3. Plan: compare the device with rail, policy, MTU, uses by the host and `minPlanes`. Each step
//!    refuses what cannot work. Write the journal (`steps`, `record`).
//! 4. Apply: call the IPAM plugin, plan what depends on the address, and write the journal again.
//!    Then make the steps in order.
//! 5. Print the result.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::claim::{self, Claim};
use super::context::Cx;
use super::ipam::Ipam;
use super::locate::Place;
use super::locks::DeviceLock;
use super::owner::{Key, Owner, Part};
use super::record::{Record, State, Step};
use super::records::Records;
use super::started::started;
use super::steps::gids::Gids;
use super::steps::host_addresses::HostAddresses;
use super::steps::lease::Lease;
use super::steps::netdev::Netdev;
use super::steps::rail::Rail;
use super::steps::rdma::Rdma;
use super::steps::vf::{self, Vf};
use super::steps::{Change, driver, gateway, guid, moved, pkey, rail, rdma};
use super::undo;
use super::{pending, planes};
use crate::cni::{self, AddResult, Attachment, Command, Network, Version, find_plugin};
use crate::device::alias::Alias;
use crate::device::gid::Gid;
use crate::device::{self, Device};
use crate::device::{info, pf};
use crate::files::Lock;
use crate::netconf::{NetConf, Routing};
use crate::netns::{Netns, NetnsId, Pod};
use crate::node::Node;
use crate::{calls, fail, watchdog};
use rail_netlink::Socket;
use rail_netlink::link;

/// ADD.
pub fn add(network: &Network, attachment: &Attachment, path: &Path) -> Result<AddResult> {
    let mut request = Request::new(network, attachment, path)?;
    watchdog::step(|| "finding the device".to_owned());
    let records = Records::open(&request.node)?;
    let key = Key::whole(attachment);
    let mut lock = records.locks.attachment(&key)?;
    lock.refuse_if_deleted()?;
    let node = request.node.clone();
    let mut attach = request
        .plan(&key, &records, &node)
        .map_err(|error| request.conf.with_rail(error))?;
    match request.apply(&mut attach) {
        Ok(leased) => {
            log::info!(
                "{} is {} of the pod",
                attach.device.describe(),
                attachment.ifname
            );
            Ok(request.report(&attach, leased))
        }
        Err(error) => {
            attach.roll_back();
            Err(error)
        }
    }
}

/// What the runtime asks for, checked as far as it can be without the device.
struct Request<'a> {
    network: &'a Network,
    /// CNI_NETNS.
    path: &'a Path,
    node: Node,
    conf: NetConf,
    /// What earlier plugins of the chain made.
    previous: AddResult,
    netns: Option<Netns>,
}

/// An attachment that is being made: a device that no other call takes while this is kept, with its
/// journal on file.
pub struct Attaching<'a> {
    /// The device.
    pub device: Device,
    records: &'a Records,
    lock: DeviceLock,
    /// The journal.
    pub record: Record,
    /// What the steps work with.
    pub cx: Cx<'a>,
    /// The network configuration that the IPAM gets: with the rail, where only the device says
    /// which.
    stdin: Vec<u8>,
}

impl<'a> Attaching<'a> {
    /// Writes the journal before anything changes.
    pub fn begin(
        device: Device,
        record: Record,
        records: &'a Records,
        mut lock: DeviceLock,
        mut cx: Cx<'a>,
        stdin: Vec<u8>,
    ) -> Result<Attaching<'a>> {
        records.write(&record, &mut lock)?;
        cx.facts = record.facts();
        Ok(Attaching {
            device,
            records,
            lock,
            record,
            cx,
            stdin,
        })
    }

    /// Writes the journal again, with what has become known since.
    pub fn write(&mut self) -> Result<()> {
        self.record.owner = self.cx.owner.clone();
        let addresses = std::mem::take(&mut self.cx.facts.addresses);
        self.cx.facts = self.record.facts();
        if self.record.rail().is_none() {
            self.cx.facts.addresses = addresses;
        }
        self.records.write(&self.record, &mut self.lock)
    }

    /// Makes the planned changes in their order by `make`, and marks them. What is not marked may
    /// have been made or not: undo looks.
    pub fn make(
        &mut self,
        mut make: impl FnMut(&mut Change, &mut Self) -> Result<()>,
    ) -> Result<()> {
        for at in 0..self.record.steps.len() {
            if self.record.steps[at].state != State::Planned {
                continue;
            }
            let mut change = self.record.steps[at].change.clone();
            make(&mut change, self)?;
            self.record.steps[at] = Step {
                change,
                state: State::Done,
            };
        }
        self.write()
    }

    /// Undoes what was made. What cannot be undone stays on record: DEL, the next ADD or `reap`
    /// continue from there.
    pub fn roll_back(mut self) {
        self.record.owner = self.cx.owner.clone();
        let ended = undo::end(
            self.record,
            self.records,
            self.lock,
            undo::Lease::Now,
            self.cx.node,
        );
        ended
            .map(drop)
            .unwrap_or_else(|left| log::error!("undoing ADD failed: {left:#}"));
    }
}

impl<'a> Request<'a> {
    /// Reads and checks all that the runtime and the node say. Nothing changes.
    fn new(
        network: &'a Network,
        attachment: &'a Attachment,
        path: &'a Path,
    ) -> Result<Request<'a>> {
        let node = started(Node::load()?, network);
        node.check_place(Some(path))?;
        let conf = NetConf::parse(network, attachment, &node)?;
        guid::refuse_unconfigured(&conf, network)?;
        let previous = network.previous()?.unwrap_or_default();
        let netns = Some(Netns::open(path)?);
        // Before anything is done: a plugin that is not there gives no address.
        conf.ipam
            .as_deref()
            .map(|name| find_plugin(name, &network.path))
            .transpose()?;
        Ok(Request {
            network,
            path,
            node,
            conf,
            previous,
            netns,
        })
    }

    /// Finds the device, refuses what can be refused now that it is known, plans the steps, and
    /// puts the journal on file.
    fn plan<'r>(
        &mut self,
        key: &Key,
        records: &'r Records,
        node: &'r Node,
    ) -> Result<Attaching<'r>> {
        let mut pod = self.pod()?;
        let mut host = Socket::open()?;
        claim::recover_own(records, key, node, &mut host)?;
        rail::refuse_name_in_use(&mut pod.socket, &key.attachment.ifname)?;
        claim::recover_rdma_name(&self.conf, key, records, node)?;
        let Claim {
            device,
            lock,
            previous,
        } = claim::claim(records, &self.conf, key, node, &mut host)?;
        let stdin = self.accept(&device, records, &mut host)?;
        let mut owner = new_owner(self.network, key, self.path, &self.conf, &device)?;
        if let Some(link) = &device.original.link {
            owner.inside.mac = self
                .conf
                .mac
                .as_deref()
                .map_or_else(|| link.mac.clone(), link::format_mac);
        }
        if let Some(path) = &self.conf.device_info {
            let is_on_record = |other: &_| Ok(records.on_file(&Key::whole(other))?.is_some());
            info::refuse(path, &owner.device, &owner.attachment(), is_on_record)?;
        }
        let place = device
            .original
            .link
            .clone()
            .map_or(Place::UserSpace, Place::Host);
        let mut cx = Cx {
            node,
            locks: &records.locks,
            function: owner.device.function(node)?,
            facts: Default::default(),
            host,
            pod: Some(pod),
            place,
            is_anew: false,
            owner,
        };
        let mut record = Record::new(cx.owner.clone());
        for change in self.changes(&device, previous.as_ref(), &stdin, &mut cx)? {
            record.plan(change);
        }
        previous
            .iter()
            .for_each(|previous| record.inherit(previous));
        cx.owner.device = record.owner.device.clone();
        let attach = Attaching::begin(device, record, records, lock, cx, stdin)?;
        if previous.is_some() {
            pending::inherited(records, &attach.cx.owner.device.id, Part::Whole)?;
        }
        Ok(attach)
    }

    fn pod(&mut self) -> Result<Pod> {
        Pod::open(
            self.netns
                .take()
                .context("the namespace of the pod is not open")?,
        )
    }

    /// Refuses a device that this network may not have. Returns the configuration for the IPAM,
    /// which compares the rail with that of its pool.
    fn accept(&mut self, device: &Device, records: &Records, host: &mut Socket) -> Result<Vec<u8>> {
        let Request {
            network,
            conf,
            node,
            ..
        } = self;
        device::allowed::check(device, conf, node, &network.name, host)?;
        let by_device = if conf.rail.is_none() {
            device::allowed::rail_of(device, node)
        } else {
            None
        };
        conf.rail = conf.rail.or(by_device);
        calls::rail(conf.rail);
        pending::settle_rdma(
            conf.rdma == crate::netconf::Rdma::Required,
            device,
            records,
            node,
        )?;
        planes::check(conf, node, records, host)?;
        claim::refuse_pf_of_attached_vfs(records, device, node, host)?;
        gateway::refuse_userspace(conf, device)?;
        match by_device {
            Some(rail) => network.stdin_with("rail", Value::from(rail)),
            None => Ok(network.stdin.clone()),
        }
    }

    /// What ADD is going to change. What depends on the address is planned when that is known.
    fn changes(
        &self,
        device: &Device,
        previous: Option<&Record>,
        stdin: &[u8],
        cx: &mut Cx<'_>,
    ) -> Result<Vec<Change>> {
        let conf = &self.conf;
        let mut changes = Vec::new();
        changes.extend(Lease::plan(conf, self.network, stdin)?.map(Change::Lease));
        let before = previous.and_then(Record::vf_before);
        let vf = vf::plan(conf, device, before.as_ref(), cx)?;
        let rdma = rdma::plan(conf, device, cx.node)?;
        let bound = driver::plan(conf, device)?;
        if let Some(mut bound) = bound {
            let guid = vf.as_ref().and_then(|vf| vf.wanted.port_guid);
            guid::plan(conf, device, guid, &mut bound)?;
            changes.push(Change::Driver(bound));
        }
        if let Some((vf, mac)) = vf.map(Vf::parts) {
            changes.push(Change::Vf(vf));
            changes.extend(mac.map(Change::VfMac));
        }
        if rdma.is_something() || !rdma.names.is_empty() {
            changes.push(Change::Rdma(rdma));
        }
        if let Some(link) = &device.original.link {
            changes.push(Change::Netdev(Netdev::plan(link, cx)?));
            changes.extend([Change::Links, Change::Move]);
        }
        if conf.is_of_host {
            let is_it = |change: &Change| matches!(change, Change::HostAddresses(_));
            let before = previous.filter(|previous| previous.leaves(is_it));
            let before = before.and_then(Record::host_addresses);
            changes.push(Change::HostAddresses(HostAddresses::plan(
                &device.describe(),
                cx,
                before,
            )?));
        }
        changes.extend(conf.pkey.map(Change::Pkey));
        changes.extend(conf.device_info.clone().map(Change::DeviceInfo));
        Ok(changes)
    }

    /// Makes the steps: the address, what the PF sets, the move, the rail in the pod.
    fn apply(&mut self, attach: &mut Attaching<'_>) -> Result<AddResult> {
        // An error of the IPAM is passed on as it came.
        let leased = self.lease(attach)?;
        self.attach(attach, &leased)
            .map_err(|error| self.conf.with_rail(error))?;
        Ok(leased)
    }

    fn attach(&self, attach: &mut Attaching<'_>, leased: &AddResult) -> Result<()> {
        let _slot = self.plan_rail(attach, leased)?;
        if let Some(rdma) = attach.record.rdma_mut() {
            rdma::qos::note(rdma, &self.conf, &attach.cx)?;
        }
        // Not before: an ADD without an address is tried again and again, and no pod has had the
        // device.
        let is_reset = |change: &Change| matches!(change, Change::Reset);
        if self.conf.reset_on_del && !attach.record.leaves(is_reset) {
            attach.record.plan(Change::Reset);
        }
        attach.write()?;
        let mut making = Making::new(&self.conf, leased);
        attach.make(|change, attach| making.make(change, attach))?;
        // Not before the gateway is asked: the kernel does not ask a permanent neighbour.
        if let (true, Some(link)) = (self.conf.is_of_host, attach.cx.link_in_pod()) {
            if let Some(of_host) = attach.record.host_addresses() {
                of_host.set_neighbours(&mut attach.cx.pod()?.socket, &link);
            }
        }
        Ok(())
    }

    /// Plans what the rail is to have in the pod, compared with what the pod has. The lock is held
    /// until the routes are there: another network of this pod must not choose the same table.
    fn plan_rail(&self, attach: &mut Attaching<'_>, leased: &AddResult) -> Result<Option<Lock>> {
        crate::log::addresses(leased.ips.iter().map(|ip| ip.address.addr()));
        if attach.device.original.link.is_none() {
            return Ok(None);
        }
        let records = attach.records;
        let container_id = attach.cx.owner.container_id.clone();
        let rails = records.ifnames_of(&container_id)?;
        let rail_of = |ifname: &str| -> Result<Option<u8>> {
            let other = Attachment {
                container_id: container_id.clone(),
                ifname: ifname.to_owned(),
            };
            Ok(records
                .on_file(&Key::whole(&other))?
                .and_then(|record| record.owner.rail))
        };
        let own_slot = match self.conf.rail {
            Some(rail) if self.conf.routing == Routing::SourceBased => rail::own_slot(
                &self.conf,
                rail,
                &rails,
                rail_of,
                &mut attach.cx.pod()?.socket,
            )?,
            rail => rail.map(u32::from),
        };
        let lock = match own_slot {
            Some(_) => None,
            None => Some(attach.cx.locks.netns(&attach.cx.owner.netns)?),
        };
        let rail = rail::plan(&self.conf, leased, own_slot, &mut attach.cx.pod()?.socket)?;
        rail::check_routes(&rail, &rails, &mut attach.cx)?;
        if let Some(gateways) = gateway::plan(&self.conf, &rail, leased)? {
            attach.record.plan(Change::Gateways(gateways));
        }
        let has_rdma = attach
            .record
            .rdma()
            .is_some_and(|rdma| !rdma.names.is_empty());
        if self.conf.gid.is_some() && has_rdma {
            attach.record.plan(Change::Gids(Gids::default()));
        }
        attach.record.plan(Change::Rail(rail));
        Ok(lock)
    }

    /// The address comes first: while it is refused, nothing has moved.
    fn lease(&self, attach: &mut Attaching<'_>) -> Result<AddResult> {
        let Request { network, node, .. } = self;
        let Some(name) = attach.record.lease().map(|lease| lease.r#type.clone()) else {
            // Any record keeps what is still to be given back to the host of the device.
            let of_host = attach
                .record
                .host_addresses()
                .filter(|_| self.conf.is_of_host);
            return self.fits_version(of_host.map(HostAddresses::lease).unwrap_or_default());
        };
        let (records, key) = (attach.records, attach.cx.owner.key());
        let ipam = Ipam::of(&name, network, &attach.stdin, node)?;
        let attachment = attach.cx.owner.attachment();
        let add = Command::Add(attachment.clone(), self.path.to_owned());
        let before = records.pending_names()?;
        let mut added = ipam.add(&add, network.version);
        // Perhaps because of what pods before this one have left.
        if added.as_ref().is_err_and(cni::gave_nothing) {
            let is_any_back = claim::recover_missing(records, node)?;
            if pending::free_addresses(&before, records, node, &name, &key)? || is_any_back {
                ipam.run(&Command::Del(attachment, Some(self.path.to_owned())))?;
                added = ipam.add(&add, network.version);
            }
        }
        if let Some(lease) = attach.record.lease_mut() {
            lease.may_hold = !added.as_ref().is_err_and(cni::gave_nothing);
        }
        let leased = added?;
        if leased.ips.is_empty() {
            fail!(InvalidConfig, "the IPAM plugin {name} returned no address");
        }
        self.fits_version(leased)
    }

    /// Refuses a result that the version of the network cannot express.
    fn fits_version(&self, leased: AddResult) -> Result<AddResult> {
        let of_family = |is_v4| {
            leased
                .ips
                .iter()
                .filter(move |ip| ip.address.addr().is_ipv4() == is_v4)
                .count()
        };
        let version = self.network.version;
        if version < Version::V030 && (of_family(true) > 1 || of_family(false) > 1) {
            let version = version.as_str();
            fail!(
                InvalidConfig,
                "a result of cniVersion {version} can have only one address per family: use 0.3.0"
            );
        }
        Ok(leased)
    }

    /// The result: only what was done.
    fn report(self, attach: &Attaching<'_>, leased: AddResult) -> AddResult {
        let owner = &attach.cx.owner;
        let link = attach.cx.link_in_pod();
        let interface = cni::Interface {
            name: owner.ifname.clone(),
            mac: link
                .as_ref()
                .map_or_else(|| owner.inside.mac.clone(), |link| link.mac.clone()),
            mtu: link.as_ref().map(|link| link.mtu),
            sandbox: self.path.to_string_lossy().into_owned(),
            pci_id: owner.device.pci_id.clone(),
            socket_path: None,
        };
        let ips = leased
            .ips
            .into_iter()
            .map(|ip| cni::Ip {
                interface: Some(0),
                ..ip
            })
            .collect();
        let routes = attach
            .record
            .rail()
            .map(Rail::in_result)
            .unwrap_or_default();
        let dns = if self.conf.dns.is_empty() {
            leased.dns
        } else {
            self.conf.dns.clone()
        };
        self.previous.merged_with(AddResult {
            interfaces: vec![interface],
            ips,
            routes,
            dns,
        })
    }
}

/// How an ADD makes its steps, and what they learn of each other on the way.
pub struct Making<'m> {
    conf: &'m NetConf,
    leased: &'m AddResult,
    /// Whether the driver may have made the netdev anew.
    is_anew: bool,
    /// While the device moves and becomes a rail.
    turn: Option<Lock>,
    /// When the link came up.
    is_up: Instant,
    /// Names of the RDMA devices that the pod sees.
    rdma: Vec<String>,
    /// The GIDs of its addresses.
    gids: Vec<Gid>,
}

impl<'m> Making<'m> {
    /// Nothing is made yet.
    pub fn new(conf: &'m NetConf, leased: &'m AddResult) -> Making<'m> {
        let (rdma, gids) = (Vec::new(), Vec::new());
        Making {
            conf,
            leased,
            is_anew: false,
            turn: None,
            is_up: Instant::now(),
            rdma,
            gids,
        }
    }

    /// Makes one change.
    pub fn make(&mut self, change: &mut Change, attach: &mut Attaching<'_>) -> Result<()> {
        let (conf, cx) = (self.conf, &mut attach.cx);
        match change {
            Change::Vf(vf) => {
                watchdog::step(|| format!("setting what the PF sets for {}", cx.owner.device.id));
                vf.apply(cx)?;
                self.is_anew |= vf.is_something();
                if cx.owner.device.link.is_none() {
                    // A program in user space has the device, and will own the address.
                    let mac = pf::prescribed_mac(&attach.device, &mut cx.host)?;
                    cx.owner.inside.mac = mac.unwrap_or_default();
                }
            }
            Change::Rdma(rdma) => self.make_rdma(rdma, attach)?,
            Change::Move => self.make_move(attach)?,
            Change::Rail(rail) => {
                rail.apply(conf, cx)?;
                self.turn = None;
                self.is_up = Instant::now();
                watchdog::step(|| "asking the gateway".to_owned());
                if attach.record.gateways().is_none() {
                    gateway::announce(rail, self.leased, cx)?;
                }
            }
            Change::Gateways(gateways) => {
                gateways
                    .apply(cx)
                    .or_else(|error| conf.or_warn(conf.probe, error))?;
            }
            Change::Gids(gids) => {
                watchdog::step(|| "waiting for GIDs".to_owned());
                if let Some(probe) = conf.gid {
                    let done = gids.apply(probe, self.is_up, cx);
                    done.or_else(|error| conf.or_warn(conf.gid, error))?;
                    self.gids.clone_from(&gids.found);
                }
            }
            Change::Pkey(pkey) => {
                if let Some(probe) = conf.gid.filter(|_| !self.rdma.is_empty()) {
                    let done = pkey::apply(*pkey, probe, self.is_up, cx);
                    done.or_else(|error| conf.or_warn(conf.gid, error))?;
                }
            }
            Change::DeviceInfo(path) => {
                info::write(
                    path,
                    &cx.owner.device,
                    &cx.owner.attachment(),
                    &self.rdma,
                    &self.gids,
                )?;
            }
            Change::Lease(_)
            | Change::HostAddresses(_)
            | Change::VfMac(_)
            | Change::Netdev(_)
            | Change::Reset
            | Change::Links
            | Change::Driver(_) => (),
        }
        Ok(())
    }

    fn make_rdma(&mut self, rdma: &mut Rdma, attach: &mut Attaching<'_>) -> Result<()> {
        if attach
            .cx
            .facts
            .driver
            .as_ref()
            .is_some_and(|bound| !bound.guids.is_empty())
        {
            self.plan_rdma_anew(rdma, attach)?;
        }
        rdma.apply(&mut attach.cx)?;
        self.is_anew |= !rdma.moving.is_empty();
        self.rdma.clone_from(&rdma.names);
        Ok(())
    }

    fn make_move(&mut self, attach: &mut Attaching<'_>) -> Result<()> {
        let cx = &mut attach.cx;
        self.turn = cx.locks.turn();
        watchdog::step(|| format!("moving {}", cx.owner.device.id));
        if self.is_anew {
            moved::look_again(cx)?;
        }
        // Not where DEL would not know what there was before.
        let is_known = attach
            .record
            .netdev()
            .is_some_and(|netdev| netdev.settings.has("alias"));
        let network = &cx.owner.network;
        let alias = || Some(Alias::of(self.conf, network, self.leased, cx.node)?.text());
        let alias = is_known.then(alias).flatten();
        moved::apply(self.conf, alias.as_deref(), cx)
    }

    /// After the driver was bound again, the RDMA devices are others, and udev may rename them
    /// while they are looked up.
    fn plan_rdma_anew(&self, rdma: &mut Rdma, attach: &mut Attaching<'_>) -> Result<()> {
        let plan = || rdma::plan(self.conf, &attach.device, attach.cx.node);
        *rdma = plan().or_else(|_| plan())?;
        rdma::qos::note(rdma, self.conf, &attach.cx)?;
        if let Some(now) = attach.record.rdma_mut() {
            now.clone_from(rdma);
        }
        attach.write()
    }
}

/// The owner that this ADD makes.
pub fn new_owner(
    network: &Network,
    key: &Key,
    path: &Path,
    conf: &NetConf,
    device: &Device,
) -> Result<Owner> {
    let netns = NetnsId::of(path).with_context(|| format!("cannot look at {}", path.display()))?;
    let netns = netns.with_context(|| format!("{} vanished", path.display()))?;
    Ok(Owner {
        network: network.name.clone(),
        pod: network.args.pod(),
        rail: conf.rail,
        min_planes: conf.min_planes,
        ..Owner::new(key, netns, device.original.clone())?
    })
}
