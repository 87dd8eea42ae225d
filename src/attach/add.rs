//! ADD. Everything that can be refused is refused before anything changes; a failure after the
//! journal was written undoes everything, as DEL does.
//!
//! 1. Read environment, stdin, node.json and configuration (`cni`, `netconf`).
//! 2. Heal what dead pods left: of this attachment, and on the device that is meant (`heal`).
//! 3. Claim the device; fail with error 11 if a living pod has it (`claim`).
//! 4. Plan: compare the device with rail, policy, MTU, uses by the host and `minPlanes`, and ask
//!    every step. Write the journal (`step`, `record`).
//! 5. Call the IPAM plugin, plan the steps that need the address, and write the journal again.
//! 6. Make the steps in order (`steps`), and print the result.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::attaching::{Attaching, OtherRecords, Subject, new_owner};
use super::claim;
use super::context::Cx;
use super::ipam::Ipam;
use super::locate::Place;
use super::owner::Key;
use super::records::Records;
use super::started::started;
use super::step::Phase;
use super::steps::host_addresses::HostAddresses;
use super::steps::lease::IpamLease;
use super::steps::rail::Rail;
use super::steps::{gateway, guid, rail};
use super::{heal, pending, planes};
use crate::cni::{self, AddResult, Attachment, Command, Network, Version, find_plugin};
use crate::device::{self, Device};
use crate::netconf::{NetConf, Rdma};
use crate::netns::{Netns, Pod};
use crate::node::Node;
use crate::{calls, fail, watchdog};
use rail_netlink::Socket;
use rail_netlink::link;

/// ADD.
pub fn add(network: &Network, attachment: &Attachment, path: &Path) -> Result<AddResult> {
    let mut request = Request::read(network, attachment, path)?;
    watchdog::step(|| "finding the device".to_owned());
    let node = request.node.clone();
    let records = Records::open(&node)?;
    let key = Key::whole(attachment);
    let mut lock = records.locks.attachment(&key)?;
    lock.refuse_if_deleted()?;
    let mut attach = request
        .begin(&key, &records, &node)
        .map_err(|error| request.conf.with_rail(error))?;
    match request.attach(&mut attach) {
        Ok(leased) => {
            let device = attach.subject.device.describe();
            log::info!("{device} is {} of the pod", attachment.ifname);
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
    /// The result of earlier plugins of the chain.
    previous: AddResult,
    netns: Option<Netns>,
}

impl<'a> Request<'a> {
    /// Reads and checks all that the runtime and the node say. Nothing changes.
    fn read(
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
        if let Some(name) = &conf.ipam {
            // Before anything is done: a plugin that is not there gives no address.
            find_plugin(name, &network.path)?;
        }
        Ok(Request {
            network,
            path,
            node,
            conf,
            previous,
            netns,
        })
    }

    /// Heals, claims the device, refuses what can be refused without the address, plans the steps,
    /// and puts the journal on file.
    fn begin<'r>(
        &mut self,
        key: &Key,
        records: &'r Records,
        node: &'r Node,
    ) -> Result<Attaching<'r>>
    where
        'a: 'r,
    {
        let netns = self.netns.take();
        let mut pod = Pod::open(netns.context("the namespace of the pod is not open")?)?;
        let mut host = Socket::open()?;
        let listed = records.list()?;
        heal::own_attachment(records, &listed, key, node, &mut host)?;
        rail::refuse_name_in_use(&mut pod.socket, &key.attachment.ifname)?;
        heal::rdma_name(&self.conf, key, records, node)?;
        let claimed = claim::claim(records, &listed, &self.conf, key, node, &mut host)?;
        let ipam_config = self.accept(&claimed.device, records, &mut host)?;

        let mut owner = new_owner(self.network, key, self.path, &self.conf, &claimed.device)?;
        let link = claimed.device.original.link.clone();
        if let Some(link) = &link {
            let requested = self.conf.mac.as_deref().map(link::format_mac);
            owner.inside.mac = requested.unwrap_or_else(|| link.mac.clone());
        }
        let place = link.map_or(Place::UserSpace, Place::Host);
        let mut cx = Cx::new(owner, place, node, &records.locks, host)?;
        cx.pod = Some(pod);
        let subject = Subject {
            network: self.network,
            conf: self.conf.clone(),
            ipam_config,
            device: claimed.device,
            previous: claimed.previous,
            others: OtherRecords::new(records, listed, &cx.owner.container_id),
        };
        let mut attach = Attaching::new(subject, cx, records, claimed.lock);
        attach.plan(Phase::BeforeLease, &AddResult::default())?;
        attach.begin()?;
        Ok(attach)
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
        let rail_of_device = if conf.rail.is_none() {
            device::allowed::rail_of(device, node)
        } else {
            None
        };
        conf.rail = conf.rail.or(rail_of_device);
        calls::rail(conf.rail);
        pending::settle_rdma(conf.rdma == Rdma::Required, device, records, node)?;
        planes::check(conf, node, records, host)?;
        claim::refuse_pf_of_attached_vfs(records, device, node, host)?;
        gateway::refuse_userspace(conf, device)?;
        match rail_of_device {
            Some(rail) => network.stdin_with("rail", Value::from(rail)),
            None => Ok(network.stdin.clone()),
        }
    }

    /// Takes the address, plans the steps that need it, and makes all steps.
    fn attach(&self, attach: &mut Attaching<'_>) -> Result<AddResult> {
        // An error of the IPAM is passed on as it came.
        let leased = self.lease(attach)?;
        crate::log::addresses(leased.ips.iter().map(|ip| ip.address.addr()));
        attach
            .make_rail(&leased)
            .map_err(|error| self.conf.with_rail(error))?;
        Ok(leased)
    }

    /// The address comes first: while it is refused, nothing has moved.
    fn lease(&self, attach: &mut Attaching<'_>) -> Result<AddResult> {
        let Request { network, node, .. } = self;
        let record = &mut attach.journal.record;
        let lease = record.find::<IpamLease>();
        let Some(name) = lease.map(|lease| lease.r#type.clone()) else {
            let of_host = record.find::<HostAddresses>();
            return self.fits_version(of_host.map(HostAddresses::lease).unwrap_or_default());
        };
        let (records, key) = (attach.journal.records, attach.cx.owner.key());
        let ipam = Ipam::of(&name, network, &attach.subject.ipam_config, node)?;
        let attachment = attach.cx.owner.attachment();
        let add = Command::Add(attachment.clone(), self.path.to_owned());
        // With what was healed just now, whose address another call may be freeing.
        let before = records.pending_names()?;
        let mut added = ipam.add(&add, network.version);
        // Perhaps because of what pods before this one have left.
        if added.as_ref().is_err_and(cni::gave_nothing) {
            let is_any_back = heal::missing_devices(records, node)?;
            if pending::free_addresses(&before, records, node, &name, &key)? || is_any_back {
                ipam.run(&Command::Del(attachment, Some(self.path.to_owned())))?;
                added = ipam.add(&add, network.version);
            }
        }
        if let Some(lease) = record.find_mut::<IpamLease>() {
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
            .journal
            .record
            .find::<Rail>()
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
