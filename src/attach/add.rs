//! ADD in four acts: prepare, claim, apply, report. What can be refused is refused before anything changes; from the
//! moment the record is on file, every failure is undone from it, as DEL does.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::config::NetConf;
use super::debt::{self, Heir};
use super::device::{self, Device};
use super::host_address::{self, HostAddresses};
use super::record::{self, DeviceLock, Phase, Record, Records, What};
use super::settings::Settings;
use super::{claim, devinfo, driver, infiniband, planes, pod, probe, rdma, restore, started, vf};
use crate::cni::{self, AddResult, Attachment, Delegate, Network, Version, find_plugin};
use crate::netlink::Socket;
use crate::netlink::link::{self, Link, Move};
use crate::netlink::route::{MAIN, Route};
use crate::netns::{Netns, NetnsId};
use crate::node::Node;
use crate::{calls, fail, watchdog};

/// ADD.
pub fn add(network: &Network, attachment: &Attachment, path: &Path) -> Result<AddResult> {
    let mut request = Request::prepare(network, attachment, path)?;
    watchdog::step(|| "finding the device".to_owned());
    let records = Records::open(&request.node)?;
    let mut lock = records.lock(attachment)?;
    lock.refuse_if_deleted()?;
    let mut claimed = request.claim(&records).map_err(|error| request.conf.with_rail(error))?;
    match request.apply(&mut claimed, &records) {
        Ok(applied) => {
            log::info!("{} is {} of the pod", claimed.device.describe(), attachment.ifname);
            Ok(request.report(&claimed.record, applied))
        }
        Err(error) => {
            // What cannot be undone stays on record: DEL, the next ADD or `reap` continue from there.
            claim::undo(&claimed.record, &records, claimed.lock, &request.node)
                .unwrap_or_else(|left| log::error!("undoing ADD failed: {left:#}"));
            Err(error)
        }
    }
}

/// What the runtime asks for, checked as far as it can be without the device.
struct Request<'a> {
    network: &'a Network,
    attachment: &'a Attachment,
    /// CNI_NETNS.
    path: &'a Path,
    node: Node,
    conf: NetConf,
    /// What earlier plugins of the chain made.
    previous: AddResult,
    netns: Netns,
    /// Of the pod's namespace.
    pod: Socket,
    /// Of ours.
    host: Socket,
}

/// A device that no other call takes while this is kept, with its record on file.
struct Claimed {
    device: Device,
    lock: DeviceLock,
    record: Record,
    vf: Option<vf::Changes>,
    /// Names of the RDMA devices that the pod will see.
    rdma_names: Vec<String>,
    /// The network configuration that the IPAM gets: with the rail, where the device told it.
    stdin: Vec<u8>,
}

/// What apply made of it.
struct Applied {
    /// The netdev in the pod; none where a program in user space has the device.
    link: Option<Link>,
    leased: AddResult,
}

impl<'a> Request<'a> {
    /// Reads and checks all that the runtime and the node say. Nothing changes.
    fn prepare(network: &'a Network, attachment: &'a Attachment, path: &'a Path) -> Result<Request<'a>> {
        let node = started(Node::load()?, network);
        node.check_place(Some(path))?;
        let conf = NetConf::parse(network, attachment, &node)?;
        infiniband::refuse_unconfigured(&conf, network)?;
        let previous = network.previous()?.unwrap_or_default();
        let netns = Netns::open(path)?;
        // Before anything is done: a plugin that is not there gives no address.
        conf.ipam.as_deref().map(|name| find_plugin(name, &network.path)).transpose()?;
        let pod = netns.run(Socket::open)?;
        let host = Socket::open()?;
        Ok(Request { network, attachment, path, node, conf, previous, netns, pod, host })
    }

    /// Finds the device, refuses what can be refused now that it is known, and puts the record on file: with what the
    /// device is, and what is going to change.
    fn claim(&mut self, records: &Records) -> Result<Claimed> {
        let Request { network, attachment, node, conf, pod, host, .. } = self;
        claim::recover_own(records, attachment, node)?;
        pod::refuse_name_in_use(pod, &attachment.ifname)?;
        rdma::recover_name(conf, attachment, records, node)?;
        let claim::Claim { device, mut lock, left } = claim::claim(records, conf, attachment, node, host)?;
        device::check(&device, conf, node, &network.name, host)?;
        let told = conf.rail.is_none().then(|| device::rail_of(&device, node)).flatten();
        conf.rail = conf.rail.or(told);
        calls::rail(conf.rail);
        // The IPAM compares it with the rail of its pool.
        let with_rail = told.map(|rail| network.stdin_with("rail", Value::from(rail))).transpose()?;
        let stdin = with_rail.unwrap_or_else(|| network.stdin.clone());
        rdma::settle_owed(conf, &device, records, node)?;
        planes::check(conf, node, records, host)?;
        claim::refuse_pf_of_attached_vfs(records, &device, node)?;
        probe::refuse_userspace(conf, &device)?;
        if let Some(path) = &conf.device_info {
            devinfo::check(path, &device, attachment, records)?;
        }
        let vf = vf::prepare(conf, &device, left.as_ref(), node, host)?;
        let mut record = new_record(network, attachment, self.path, conf, &device, &stdin)?;
        record.vf = vf.as_ref().map(|changes| changes.record.clone());
        let rdma = rdma::prepare(&self.conf, &device, &self.node)?;
        let guid = record.vf.as_ref().and_then(|vf| vf.wanted.port_guid);
        let for_reset = driver::for_reset(&self.conf, &device, left.as_ref())?;
        record.bind = infiniband::prepare(&self.conf, &device, guid, left.as_ref())?.or(for_reset);
        // Else they are not known before the driver is bound again.
        if !record.is_bound_for_guid() {
            (record.rdma, record.rdma_renamed, record.rdma_qos) = (rdma.moving, rdma.renamed, rdma.qos);
        }
        let link = device.original.link.as_ref();
        record.settings = link.map(|link| Settings::take(link, &self.node.sysfs_root, &mut self.host));
        if self.conf.is_of_host {
            record.host = Some(self.of_host(&device, left.as_ref())?);
        }
        left.iter().for_each(|left| record.begin_as(left));
        records.write(&record, &mut lock)?;
        if left.is_some() {
            debt::taken_over(records, &device.original.id, Heir::OfDevice)?;
        }
        Ok(Claimed { device, lock, record, vf, rdma_names: rdma.names, stdin })
    }

    /// Address, PF settings, the move, the rail in the pod; then the record says that it is attached.
    fn apply(&mut self, claimed: &mut Claimed, records: &Records) -> Result<Applied> {
        // Held until the routes are there: another network of this pod must not choose the same table.
        let is_any_table = self.conf.rail.is_none();
        let _table = is_any_table.then(|| records.lock_netns(&claimed.record.netns)).transpose()?;
        // An error of the IPAM is passed on as it came.
        let leased = self.lease(claimed, records)?;
        self.attach(claimed, &leased, records)
            .map(|link| Applied { link, leased })
            .map_err(|error| self.conf.with_rail(error))
    }

    fn attach(
        &mut self,
        claimed: &mut Claimed,
        leased: &AddResult,
        records: &Records,
    ) -> Result<Option<Link>> {
        let Claimed { device, lock, record, vf, rdma_names, .. } = claimed;
        self.prepare_routes(device, record, leased, records)?;
        rdma::qos::note(record, &self.conf, &self.node)?;
        // Not before: an ADD without an address is tried again and again, and no pod has had the device.
        record.reset |= self.conf.reset_on_del;
        records.write(record, lock)?;
        watchdog::step(|| format!("setting what the PF sets for {}", device.original.id));
        if let Some(vf) = vf {
            vf::apply(vf, records, &self.node, &mut self.host)?;
        }
        if record.is_bound_for_guid() {
            infiniband::take(record, records, &self.node, &mut self.host)?;
            // The RDMA devices are others now, and udev may rename them while they are looked up.
            let prepare = || rdma::prepare(&self.conf, device, &self.node);
            let rdma = prepare().or_else(|_| prepare())?;
            (record.rdma, record.rdma_renamed, *rdma_names) = (rdma.moving, rdma.renamed, rdma.names);
            records.write(record, lock)?;
        }
        // Before the netdev: a driver may refuse, and IPoIB makes its netdev anew where the RDMA device is.
        watchdog::step(|| format!("moving {}", device.original.id));
        rdma::move_in(record, &self.netns, &self.node)?;
        let is_changed = vf.as_ref().is_some_and(vf::Changes::is_something)
            || !record.rdma.is_empty()
            || record.is_bound_for_guid();
        let link = match self.look_again(record, device, is_changed)? {
            Some(original) => Some(self.move_in(&original, record)?),
            // A program in user space has the device, and will own the address.
            None => {
                record.applied.mac = vf::prescribed_mac(device, &mut self.host)?.unwrap_or_default();
                None
            }
        };
        if let Some(link) = &link {
            let is_up = Instant::now();
            self.ask_gateway(link, record, leased)?;
            // Not before: the kernel does not ask a permanent neighbour.
            if let Some(of_host) = record.host.as_ref().filter(|_| self.conf.is_of_host) {
                of_host.set_neighbours(&mut self.pod, link);
            }
            if let Some(gid) = self.conf.gid.filter(|_| !rdma_names.is_empty()) {
                watchdog::step(|| "waiting for GIDs".to_owned());
                rdma::gid::run(record, gid, is_up, &self.netns, &self.node)
                    .or_else(|error| self.conf.or_warn(self.conf.gid, error))?;
                rdma::pkey::run(record, gid, is_up, &self.netns, &self.node)
                    .or_else(|error| self.conf.or_warn(self.conf.gid, error))?;
            }
        }
        if let Some(path) = &self.conf.device_info {
            devinfo::write(path, record, rdma_names)?;
        }
        record.phase = Phase::Attached;
        records.write(record, lock)?;
        Ok(link)
    }

    /// What the rail is to have in the pod, compared with what the pod has.
    fn prepare_routes(
        &mut self,
        device: &Device,
        record: &mut Record,
        leased: &AddResult,
        records: &Records,
    ) -> Result<()> {
        crate::log::addresses(leased.ips.iter().map(|ip| ip.address.addr()));
        let Some(original) = &device.original.link else { return Ok(()) };
        record.applied = pod::prepare(&self.conf, original, leased, &mut self.pod)?;
        pod::check_routes(record, &self.node, records, &mut self.pod)?;
        record.probe = probe::prepare(&self.conf, &record.applied, leased)?;
        Ok(())
    }

    /// Asks the gateway where the network wants that; else announces the address.
    fn ask_gateway(&mut self, link: &Link, record: &Record, leased: &AddResult) -> Result<()> {
        watchdog::step(|| "asking the gateway".to_owned());
        if record.probe.is_none() {
            probe::announce(&mut self.pod, &self.netns, link, record, leased);
            return Ok(());
        }
        let asked = probe::run(&mut self.pod, &self.netns, link, record, &self.node);
        asked.or_else(|error| self.conf.or_warn(self.conf.probe, error))
    }

    /// The address comes first: while it is refused, nothing has moved.
    fn lease(&self, claimed: &mut Claimed, records: &Records) -> Result<AddResult> {
        let Claimed { record, stdin, .. } = claimed;
        let Request { network, node, .. } = self;
        let Some(name) = record.ipam.as_ref().map(|ipam| ipam.r#type.clone()) else {
            // Any record keeps what is still owed to the host of the device.
            let of_host = record.host.as_ref().filter(|_| self.conf.is_of_host);
            let leased = of_host.map(HostAddresses::lease).unwrap_or_default();
            return self.fits_version(leased);
        };
        let ipam = Delegate::find(&name, &network.path, stdin)?;
        let owing = debt::owing_addresses(records, &name, &record.attachment())?;
        let mut added = ipam.add(network.version);
        // Perhaps because of what pods before this one still owe.
        if added.as_ref().is_err_and(cni::gave_nothing)
            && debt::pay_addresses(owing, records, node, &name, &record.attachment())?
        {
            ipam.run("DEL")?;
            added = ipam.add(network.version);
        }
        if let Some(recorded) = &mut record.ipam {
            recorded.may_hold = !added.as_ref().is_err_and(cni::gave_nothing);
        }
        let leased = added?;
        if leased.ips.is_empty() {
            fail!(InvalidConfig, "the IPAM plugin {name} gave no address");
        }
        self.fits_version(leased)
    }

    /// Refuses a result that the version of the network cannot express.
    fn fits_version(&self, leased: AddResult) -> Result<AddResult> {
        let of_family =
            |is_v4| leased.ips.iter().filter(move |ip| ip.address.addr().is_ipv4() == is_v4).count();
        let version = self.network.version;
        if version < Version::V030 && (of_family(true) > 1 || of_family(false) > 1) {
            let version = version.as_str();
            fail!(
                InvalidConfig,
                "a result of cniVersion {version} has room for one address of a family: use 0.3.0"
            );
        }
        Ok(leased)
    }

    /// What the host has on the device, or had before an attachment that could not restore it.
    fn of_host(&mut self, device: &Device, left: Option<&Record>) -> Result<HostAddresses> {
        let what = device.describe();
        let Some(link) = &device.original.link else {
            fail!(InvalidConfig, "ipam.source: {what} has no netdev, so the host has no address on it");
        };
        if self.netns.is(&Netns::current()?)? {
            fail!(InvalidConfig, "ipam.source: the namespace of the pod is that of the host");
        }
        let was = left.filter(|left| left.owes(What::HostAddresses)).and_then(|left| left.host.clone());
        match was {
            Some(was) if !host_address::has_address(link, &mut self.host)? => Ok(was),
            was => HostAddresses::take(&what, link, &mut self.host).map(|now| was.unwrap_or(now)),
        }
    }

    /// The device as it is right before its move: a driver that was told something through the PF, or whose RDMA device
    /// has left, may have made the netdev anew.
    fn look_again(&mut self, record: &Record, device: &Device, is_changed: bool) -> Result<Option<Link>> {
        if device.original.link.is_none() || !is_changed {
            return Ok(device.original.link.clone());
        }
        // The kernel makes the netdev of an InfiniBand device anew when its RDMA device moves: on the host, or since Linux 6.18
        // with it.
        let is_infiniband = device.original.link.as_ref().is_some_and(Link::is_infiniband);
        if is_infiniband && !record.rdma.is_empty() {
            if let Some(link) = restore::find_in_pod(record, &mut self.pod)? {
                restore::move_home(record, &link, &mut self.pod, &mut self.host)?;
            }
        }
        let Some(link) = restore::wait_for(record, &self.node, &mut self.host)? else {
            fail!(Internal, "{} vanished from the host while it was prepared", device.describe());
        };
        Ok(Some(link))
    }

    /// Moves the device, then makes it a rail.
    fn move_in(&mut self, original: &Link, record: &mut Record) -> Result<Link> {
        let Request { conf, netns, host, pod, .. } = self;
        for altname in pod::clashing_altnames(pod, original, &record.ifname)? {
            link::remove_altname(host, original, &altname)?;
        }
        // A VF may not be able to take a MAC that its PF prescribes until it comes up.
        let prescribed = record.vf.as_ref().and_then(|vf| vf.wanted.mac.as_ref()).and(conf.mac.as_deref());
        // Some VFs refuse even the MAC that they have.
        let is_new = |mac: &&[u8]| prescribed.is_none() && link::format_mac(mac) != original.mac;
        let mac = conf.mac.as_deref().filter(is_new);
        link::move_to(host, original, netns, &Move { name: &record.ifname, mtu: conf.mtu, mac })?;
        let moved = link::by_name(pod, &record.ifname)?;
        let moved = moved.filter(|link| link.parent == original.parent && link.kind == original.kind);
        let moved = moved.with_context(|| format!("{} vanished on its way to the pod", original.name))?;
        record.applied.index = moved.index.get();
        if moved.is_infiniband() {
            record.applied.mac.clone_from(&moved.mac);
        }
        let refused = prescribed.and_then(|mac| link::set_mac(pod, &moved, mac).err());
        let applied = &record.applied;
        netns.run(|| pod::set_sysctls(conf, applied, &record.ifname))?;
        pod::configure(pod, &moved, applied)?;
        if prescribed.is_none() {
            return Ok(moved);
        }
        let now = link::by_index(pod, moved.index)?.unwrap_or(moved);
        match refused.filter(|_| now.mac != record.applied.mac) {
            Some(error) => Err(error),
            None => Ok(now),
        }
    }

    /// The result: only what was done.
    fn report(self, record: &Record, applied: Applied) -> AddResult {
        let Applied { link, leased } = applied;
        let interface = cni::Interface {
            name: record.ifname.clone(),
            mac: link.as_ref().map_or_else(|| record.applied.mac.clone(), |link| link.mac.clone()),
            mtu: link.as_ref().map(|link| link.mtu),
            sandbox: self.path.to_string_lossy().into_owned(),
            pci_id: record.device.pci_id.clone(),
            socket_path: None,
        };
        let ips = leased.ips.into_iter().map(|ip| cni::Ip { interface: Some(0), ..ip }).collect();
        let is_own_table = |route: &Route| record.applied.rules.iter().any(|rule| rule.table == route.table);
        let routes =
            record.applied.routes.iter().filter(|route| !is_own_table(route)).map(|route| cni::Route {
                dst: route.dst,
                gw: route.gateway,
                mtu: route.mtu,
                advmss: route.advmss,
                priority: Some(route.metric).filter(|metric| *metric != 0),
                table: Some(route.table).filter(|table| *table != MAIN),
                scope: route.scope,
            });
        let routes = routes.collect();
        let dns = if self.conf.dns.is_empty() { leased.dns } else { self.conf.dns.clone() };
        self.previous.merged_with(AddResult { interfaces: vec![interface], ips, routes, dns })
    }
}

/// The record of this ADD, before anything of it is done.
pub fn new_record(
    network: &Network,
    attachment: &Attachment,
    path: &Path,
    conf: &NetConf,
    device: &Device,
    stdin: &[u8],
) -> Result<Record> {
    let netns = NetnsId::of(path).with_context(|| format!("cannot look at {}", path.display()))?;
    let ipam = conf.ipam.as_ref().map(|name| -> Result<record::Ipam> {
        Ok(record::Ipam {
            r#type: name.clone(),
            config: String::from_utf8(stdin.to_vec()).context("stdin is not UTF-8")?,
            args: network.args.raw.clone(),
            path: network.path.clone(),
            may_hold: true,
        })
    });
    let netns = netns.with_context(|| format!("{} vanished", path.display()))?;
    Ok(Record {
        network: network.name.clone(),
        pod: network.args.pod(),
        rail: conf.rail,
        min_planes: conf.min_planes,
        ipam: ipam.transpose()?,
        pkey: conf.pkey,
        device_info: conf.device_info.clone(),
        ..Record::new(attachment, netns, device.original.clone())?
    })
}
