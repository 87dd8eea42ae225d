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

use anyhow::Result;
use serde_json::Value;

use super::attaching::{Attaching, OtherRecords, Subject, netns_of, new_owner};
use super::claim;
use super::context::Cx;
use super::heal::{self, Claimant};
use super::ipam::Ipam;
use super::locate::Place;
use super::owner::{Key, Owner};
use super::records::Records;
use super::started::started;
use super::step::Phase;
use super::steps::host_addresses::HostAddresses;
use super::steps::lease::IpamLease;
use super::steps::rail::Rail;
use super::steps::{gateway, guid, rail};
use super::{pending, planes};
use crate::cni::{self, AddResult, Attachment, Command, Network, Version, find_plugin};
use crate::device::{self, Device};
use crate::netconf::{NetConf, Rdma};
use crate::netns::{Netns, NetnsId, Pod, Sandbox};
use crate::node::Node;
use crate::{calls, fail, watchdog};
use rail_netlink::Socket;
use rail_netlink::link;

/// ADD.
pub fn add(network: &Network, attachment: &Attachment, path: &Path) -> Result<AddResult> {
    let node = started(Node::load()?, network);
    node.check_place(Some(path))?;
    let mut request = Request::read(network, attachment, path, &node)?;
    let netns = Netns::open(path)?;
    request.refuse_missing_ipam()?;
    watchdog::step(|| "finding the device".to_owned());
    let records = Records::open(&node)?;
    let key = Key::whole(attachment);
    let mut lock = records.locks.attachment(&key)?;
    lock.refuse_if_deleted()?;
    let mut attach = request
        .heal_claim_and_plan(&key, netns, &records)
        .map_err(|error| request.conf.with_rail(error))?;
    match request.lease_and_make(&mut attach) {
        Ok(leased) => {
            let device = attach.subject.device.describe();
            log::info!("{device} is {} of the pod", attachment.ifname);
            Ok(request.result(&attach, leased))
        }
        Err(error) => {
            attach.roll_back();
            Err(error)
        }
    }
}

/// A call of the runtime, checked as far as is possible without the device.
struct Request<'a> {
    network: &'a Network,
    /// CNI_NETNS.
    path: &'a Path,
    node: &'a Node,
    conf: NetConf,
    /// The result of earlier plugins of the chain.
    previous: AddResult,
}

impl<'a> Request<'a> {
    /// Reads and checks the network and the result of earlier plugins.
    fn read(
        network: &'a Network,
        attachment: &Attachment,
        path: &'a Path,
        node: &'a Node,
    ) -> Result<Request<'a>> {
        let conf = NetConf::parse(network, attachment, node)?;
        guid::refuse_unconfigured(&conf, network)?;
        let previous = network.previous()?.unwrap_or_default();
        Ok(Request {
            network,
            path,
            node,
            conf,
            previous,
        })
    }

    /// Refuses an IPAM plugin that is not installed.
    fn refuse_missing_ipam(&self) -> Result<()> {
        if let Some(name) = &self.conf.ipam {
            find_plugin(name, &self.network.path)?;
        }
        Ok(())
    }

    /// Heals, claims the device, refuses everything that can be refused without the address, plans
    /// the steps, and opens the journal.
    fn heal_claim_and_plan<'r>(
        &mut self,
        key: &Key,
        netns: Netns,
        records: &'r Records,
    ) -> Result<Attaching<'r>>
    where
        'a: 'r,
    {
        let node = self.node;
        let mut pod = Pod::open(netns)?;
        let mut host = Socket::open()?;
        let listed = records.list()?;
        heal::own_attachment(records, &listed, key, node, &mut host)?;
        rail::refuse_name_in_use(&mut pod.socket, &key.attachment.ifname)?;
        heal::rdma_name(&self.conf, key, records, node)?;
        let netns_id = netns_of(self.path)?;
        let claimant = Claimant {
            key,
            conf: &self.conf,
            sandbox: Sandbox {
                pod_uid: self.network.args.pod_uid(),
                container_id: &key.attachment.container_id,
                netns: Some(&netns_id),
            },
            node,
        };
        let claimed = claim::claim(records, &listed, &claimant, &mut host)?;
        let device = claimed.device;

        device::allowed::check(&device, &self.conf, node, &self.network.name, &mut host)?;
        let ipam_config = self.take_rail_from(&device)?;
        self.refuse_impossible(&device, records, &mut host)?;

        let owner = self.owner(key, netns_id, &device)?;
        let place = match &device.original.link {
            Some(link) => Place::Host(link.clone()),
            None => Place::UserSpace,
        };
        let mut cx = Cx::new(owner, place, node, &records.locks, host)?;
        cx.pod = Some(pod);
        let subject = Subject {
            network: self.network,
            conf: self.conf.clone(),
            ipam_config,
            device,
            previous: claimed.previous,
            others: OtherRecords::new(records, listed, &key.attachment.container_id),
        };
        let mut attach = Attaching::new(subject, cx, records, claimed.lock);
        attach.plan(Phase::BeforeLease, &AddResult::default())?;
        attach.open_journal()?;
        Ok(attach)
    }

    /// Takes the rail from the device where the network has none. Returns the configuration for the
    /// IPAM plugin, which compares the rail with that of its pool.
    fn take_rail_from(&mut self, device: &Device) -> Result<Vec<u8>> {
        let mut ipam_config = self.network.stdin.clone();
        if self.conf.rail.is_none() {
            self.conf.rail = device::allowed::rail_of(device, self.node);
            if let Some(rail) = self.conf.rail {
                ipam_config = self.network.stdin_with("rail", Value::from(rail))?;
            }
        }
        calls::rail(self.conf.rail);
        Ok(ipam_config)
    }

    /// Refuses a device whose rail cannot work now, or that other pods depend on.
    fn refuse_impossible(
        &mut self,
        device: &Device,
        records: &Records,
        host: &mut Socket,
    ) -> Result<()> {
        let node = self.node;
        pending::settle_rdma(self.conf.rdma == Rdma::Required, device, records, node)?;
        let can_probe = planes::check(&self.conf, node, records, host)?;
        if !can_probe {
            self.conf.probe = None;
        }
        claim::refuse_pf_of_attached_vfs(records, device, node, host)?;
        gateway::refuse_userspace(&self.conf, device)
    }

    /// The owner of the claimed device.
    fn owner(&self, key: &Key, netns: NetnsId, device: &Device) -> Result<Owner> {
        let mut owner = new_owner(self.network, key, netns, &self.conf, device)?;
        if let Some(link) = &device.original.link {
            owner.inside.mac = match &self.conf.mac {
                Some(mac) => link::format_mac(mac),
                None => link.mac.clone(),
            };
        }
        Ok(owner)
    }

    /// Takes the address, plans the steps that need it, and makes all steps.
    fn lease_and_make(&self, attach: &mut Attaching<'_>) -> Result<AddResult> {
        // An error of the IPAM is passed on as it came.
        let leased = self.lease(attach)?;
        crate::log::addresses(leased.ips.iter().map(|ip| ip.address.addr()));
        attach
            .plan_and_make(&leased)
            .map_err(|error| self.conf.with_rail(error))?;
        Ok(leased)
    }

    /// Takes the address. Nothing has moved yet: a refusal costs nothing.
    fn lease(&self, attach: &mut Attaching<'_>) -> Result<AddResult> {
        let record = &mut attach.journal.record;
        let Some(name) = record.find::<IpamLease>().map(|lease| lease.r#type.clone()) else {
            let host_addresses = record.find::<HostAddresses>();
            let leased = host_addresses.map(HostAddresses::lease).unwrap_or_default();
            self.refuse_inexpressible(&leased)?;
            return Ok(leased);
        };
        let records = attach.journal.records;
        let key = attach.cx.owner.key();
        let ipam = Ipam::for_network(&name, self.network, &attach.subject.ipam_config, self.node)?;
        let add = Command::Add(key.attachment.clone(), self.path.to_owned());
        // Listed before ADD: another call may free the address of one of these meanwhile.
        let pending_before = records.pending_names()?;
        let mut added = ipam.add(&add, self.network.version);
        // Earlier pods may have left the address in use.
        if added.as_ref().is_err_and(cni::gave_nothing)
            && self.free_addresses(&name, &attach.cx.owner, &pending_before, records)?
        {
            let del = Command::Del(key.attachment, Some(self.path.to_owned()));
            ipam.run(&del)?;
            added = ipam.add(&add, self.network.version);
        }
        if let Some(lease) = record.find_mut::<IpamLease>() {
            lease.may_hold = !added.as_ref().is_err_and(cni::gave_nothing);
        }
        let leased = added?;
        if leased.ips.is_empty() {
            fail!(InvalidConfig, "the IPAM plugin {name} returned no address");
        }
        self.refuse_inexpressible(&leased)?;
        Ok(leased)
    }

    /// Frees the addresses of dead pods, and of older sandboxes of this one. Returns whether another
    /// ADD of the IPAM plugin `name` may succeed.
    fn free_addresses(
        &self,
        name: &str,
        owner: &Owner,
        pending_before: &[String],
        records: &Records,
    ) -> Result<bool> {
        let has_returned = heal::returned_devices(records, &owner.sandbox(), self.node)?;
        let key = owner.key();
        let is_freed = pending::free_addresses(pending_before, records, self.node, name, &key)?;
        Ok(has_returned || is_freed)
    }

    /// Refuses addresses that the version of the network cannot express.
    fn refuse_inexpressible(&self, leased: &AddResult) -> Result<()> {
        let version = self.network.version;
        if version >= Version::V030 {
            return Ok(());
        }
        let count = leased.ips.len();
        let count_v4 = leased
            .ips
            .iter()
            .filter(|ip| ip.address.addr().is_ipv4())
            .count();
        if count_v4 > 1 || count - count_v4 > 1 {
            let version = version.as_str();
            fail!(
                InvalidConfig,
                "a result of cniVersion {version} can have only one address per family: use 0.3.0"
            );
        }
        Ok(())
    }

    /// The result: interface, addresses and routes as they are in the pod, after the results of
    /// earlier plugins.
    fn result(self, attach: &Attaching<'_>, leased: AddResult) -> AddResult {
        let owner = &attach.cx.owner;
        let link = attach.cx.link_in_pod();
        let interface = cni::Interface {
            name: owner.ifname.clone(),
            mac: match &link {
                Some(link) => link.mac.clone(),
                None => owner.inside.mac.clone(),
            },
            mtu: link.map(|link| link.mtu),
            sandbox: self.path.to_string_lossy().into_owned(),
            pci_id: owner.device.pci_id.clone(),
            socket_path: None,
        };
        let mut ips = leased.ips;
        for ip in &mut ips {
            ip.interface = Some(0);
        }
        let rail = attach.journal.record.find::<Rail>();
        let routes = rail.map(Rail::in_result).unwrap_or_default();
        let dns = if self.conf.dns.is_empty() {
            leased.dns
        } else {
            self.conf.dns
        };
        self.previous.merged_with(AddResult {
            interfaces: vec![interface],
            ips,
            routes,
            dns,
        })
    }
}
