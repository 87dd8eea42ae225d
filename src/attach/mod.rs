//! rail-cni: a device of the host becomes an interface of a pod, and everything goes back.

mod check;
mod claim;
mod cli;
mod config;
mod device;
mod devinfo;
mod doctor;
mod giveback;
mod inventory;
mod lint;
mod pod;
mod probe;
mod rdma;
mod record;
mod status;
mod vf;

use std::path::Path;

use anyhow::{Context as _, Result};

pub use cli::run as cli;

use crate::cni::{self, AddResult, Attachment, Delegate, Network, Plugin, Version};
use crate::netlink::Socket;
use crate::netlink::link::{self, Link, Move};
use crate::netns::{Netns, NetnsId};
use crate::node::Node;
use crate::sysfs::DeviceId;
use crate::{fail, failure, files};
use config::NetConf;
use device::Device;
use record::{Phase, Record, Records};

/// The plugin.
#[derive(Debug)]
pub struct Attach;

impl Plugin for Attach {
    const NAME: &str = "rail-cni";

    /// Everything that can be refused is refused first; then the record; then what the record describes.
    fn add(&self, network: &Network, attachment: &Attachment, path: &Path) -> Result<AddResult> {
        let node = Node::load()?;
        node.start_log(network);
        let conf = NetConf::parse(network, attachment, &node)?;
        let previous = network.previous()?.unwrap_or_default();
        let netns = Netns::open(path)?;
        let ipam = conf
            .ipam
            .as_deref()
            .map(|name| Delegate::find(name, &network.path, &network.stdin))
            .transpose()?;
        let mut pod = netns.run(Socket::open)?;
        let mut host = Socket::open()?;

        let records = Records::open(&node)?;
        let mut lock = records.lock(attachment)?;
        lock.refuse_if_deleted()?;
        claim::settle_own(&records, attachment, &node)?;
        pod::refuse_name_in_use(&mut pod, &attachment.ifname)?;
        let of_rail = |error| conf.of_rail(error);
        let (device, mut claim) =
            claim::claim(&records, &conf, attachment, &node, &mut host).map_err(of_rail)?;
        device::check(&device, &conf, &node, &network.name, &mut host).map_err(of_rail)?;
        claim::refuse_pf_of_attached_vfs(&records, &device).map_err(of_rail)?;
        probe::refuse_userspace(&conf, &device)?;

        let mut record = new_record(network, attachment, path, &conf, &device)?;
        record.vf = vf::plan(&conf, &device, &node, &mut host).map_err(of_rail)?;
        record.rdma = rdma::plan(&conf, &device).map_err(of_rail)?;
        records.write(&record, &mut claim)?;
        // Held until the routes are there: another network of this pod must not choose the same table.
        let _table = conf.rail.is_none().then(|| records.lock_netns(&record.netns)).transpose()?;
        let attached = (|| {
            let leased = lease(network, &conf, ipam.as_ref())?;
            if let Some(home) = &device.home.link {
                record.applied = pod::plan(&conf, home, &leased, &mut pod)?;
                record.probe = probe::plan(&conf, &record.applied, &leased)?;
            }
            records.write(&record, &mut claim)?;
            if let Some(vf) = &record.vf {
                vf::apply(vf, &records, &node, &mut host).map_err(of_rail)?;
                if let Some(home) = &device.home.link {
                    vf::refuse_guid_not_taken(vf, home, &mut host).map_err(of_rail)?;
                }
            }
            // Before the netdev: a driver may refuse, and IPoIB makes its netdev anew where the RDMA device is.
            rdma::move_in(&record.rdma, &netns).map_err(of_rail)?;
            let link = match &device.home.link {
                Some(home) => {
                    Some(move_in(home, &conf, &mut record, &netns, &mut host, &mut pod).map_err(of_rail)?)
                }
                // A program in user space has the device, and will own the address.
                None => {
                    record.applied.mac = vf::prescribed_mac(&device, &mut host)?.unwrap_or_default();
                    None
                }
            };
            if let Some(link) = &link {
                probe::run(&mut pod, &netns, link, &record).or_else(|error| conf.or_warn(error))?;
            }
            if let Some(path) = &conf.device_info {
                devinfo::write(path, &device)?;
            }
            record.phase = Phase::Attached;
            records.write(&record, &mut claim)?;
            log::info!("{} is {} of the pod", device.describe(), attachment.ifname);
            Ok(previous.merged_with(result(&conf, &record, link.as_ref(), leased, path)))
        })();
        attached.inspect_err(|_| {
            // What cannot be undone stays on record: DEL, the next ADD or `reap` go on from there.
            if let Err(left) = claim::undo(&record, &records, &mut claim, &node, ipam.into_iter().map(Ok)) {
                log::error!("undoing ADD failed: {left:#}");
            }
        })
    }

    /// Needs nothing but the key: everything else is on record, or gone.
    fn del(&self, network: &Network, attachment: &Attachment, path: Option<&Path>) -> Result<()> {
        let node = Node::load_lenient()?;
        node.start_log(network);
        let ipam = ipam_of(network).filter(|name| config::check_plugin_name(name).is_ok());
        let delegate = ipam.map(|name| Delegate::find(name, &network.path, &network.stdin));

        let records = Records::open_for_del(&node)?;
        let (lock, record) = claim::lock_and_find(records.as_ref(), attachment)?;
        let done = match (&records, &record) {
            (Some(records), Some(record)) => {
                let mut claim = records.lock_device(&record.device.id)?;
                // The configuration may name another IPAM by now than the one that ADD used: both are told.
                let of_add = record.ipam.iter().filter(|recorded| ipam != Some(&recorded.r#type));
                let of_add = of_add.map(|recorded| recorded.delegate(record));
                claim::undo(record, records, &mut claim, &node, delegate.into_iter().chain(of_add))
            }
            _ => cni::all_of([
                give_back_unrecorded(network, attachment, path),
                delegate.map_or(Ok(()), |delegate| delegate?.run("DEL")),
                records.as_ref().map_or(Ok(()), |records| records.remove(attachment, None)),
            ]),
        };
        // What is only for later calls must not fail this one, on a full /run for example.
        let left = lock.map_or(Ok(()), |mut lock| lock.set_deleted());
        let left = left.and_then(|()| records.map_or(Ok(()), |records| records.prune_locks()));
        left.unwrap_or_else(|error| log::warn!("{error:#}"));
        done
    }

    fn check(
        &self,
        network: &Network,
        attachment: &Attachment,
        path: &Path,
        previous: &AddResult,
    ) -> Result<()> {
        let node = Node::load()?;
        node.start_log(network);
        let mut found = Vec::new();
        let record = match Records::open_existing(&node)? {
            Some(records) => records.find(attachment)?,
            None => None,
        };
        match record {
            None => found.push("there is no record of it".to_owned()),
            Some(record) => found = check::differences(&record, attachment, path, previous, &node)?,
        }
        if let Some(name) = ipam_of(network) {
            config::check_plugin_name(name)?;
            let checked = Delegate::find(name, &network.path, &network.stdin)?.run("CHECK");
            if found.is_empty() {
                return checked;
            }
            found.extend(checked.err().map(|error| format!("IPAM: {error:#}")));
        }
        if found.is_empty() {
            return Ok(());
        }
        fail!(CheckFailed, "{attachment} is not what ADD made: {}", found.join("; "))
    }

    fn status(&self, network: &Network) -> Result<()> {
        let ready = (|| -> Result<()> {
            let node = Node::load()?;
            node.start_log(network);
            node.run_is_writable()?;
            let sysfs = node.sysfs_root.join("class/net");
            sysfs.metadata().with_context(|| format!("cannot read {}", sysfs.display()))?;
            rail_is_there(network, &node)
        })();
        ready.map_err(|error| failure!(NotAvailable, "{error:#}"))?;
        let Some(name) = ipam_of(network) else { return Ok(()) };
        config::check_plugin_name(name)?;
        let delegate = Delegate::find(name, &network.path, &network.stdin);
        delegate.map_err(|error| failure!(NotAvailable, "{error:#}"))?.run("STATUS")
    }

    /// Gives back what the runtime does not know any more. Its list can be incomplete: CRI-O sends one for
    /// every file in its folder, while Multus made the attachments. So what lives is kept.
    fn gc(&self, network: &Network, keep: &[Attachment]) -> Result<()> {
        let node = Node::load()?;
        node.start_log(network);
        let mut done = Vec::new();
        if let Some(records) = Records::open_existing(&node)? {
            let (all, _) = records.all()?;
            let ours = all.iter().filter(|record| record.network == network.name);
            let lost = ours.filter(|record| !keep.contains(&record.attachment()));
            done.extend(lost.map(|record| claim::collect(&records, record, &node)));
        }
        if let Some(name) = ipam_of(network) {
            config::check_plugin_name(name)?;
            done.push(
                Delegate::find(name, &network.path, &network.stdin).and_then(|delegate| delegate.run("GC")),
            );
        }
        cni::all_of(done)
    }
}

/// The name of the IPAM plugin, for verbs that read nothing else of the configuration.
fn ipam_of(network: &Network) -> Option<&str> {
    network.get(&["ipam", "type"]).and_then(serde_json::Value::as_str).filter(|name| !name.is_empty())
}

/// DEL without a record: the device is known by its PCI address, if the runtime still knows that.
fn give_back_unrecorded(network: &Network, attachment: &Attachment, path: Option<&Path>) -> Result<()> {
    let Some(netns) = path.and_then(|path| Netns::open(path).ok()) else { return Ok(()) };
    let text =
        |path: &[&str]| network.get(path).and_then(serde_json::Value::as_str).and_then(DeviceId::parse);
    let previous = network.previous().ok().flatten();
    let said = previous.iter().flat_map(|result| &result.interfaces);
    let said = said
        .filter(|interface| interface.name == attachment.ifname)
        .find_map(|interface| interface.pci_id.as_deref());
    let id = text(&["runtimeConfig", "deviceID"])
        .or_else(|| text(&["deviceID"]))
        .or_else(|| text(&["pciBusID"]))
        .or_else(|| said.and_then(DeviceId::parse));
    match id {
        Some(id) if !netns.is(&Netns::current()?)? => {
            giveback::give_back_unrecorded(&netns, &id, &attachment.ifname).map(drop)
        }
        _ => Ok(()),
    }
}

fn new_record(
    network: &Network,
    attachment: &Attachment,
    path: &Path,
    conf: &NetConf,
    device: &Device,
) -> Result<Record> {
    let netns = NetnsId::of(path).ok().flatten();
    let ipam = conf.ipam.as_ref().map(|name| -> Result<record::Ipam> {
        Ok(record::Ipam {
            r#type: name.clone(),
            config: String::from_utf8(network.stdin.clone()).context("stdin is not UTF-8")?,
            args: network.args.raw.clone(),
            path: network.path.clone(),
        })
    });
    Ok(Record {
        version: 1,
        boot_id: files::boot_id()?.to_owned(),
        phase: Phase::Adding,
        network: network.name.clone(),
        container_id: attachment.container_id.clone(),
        ifname: attachment.ifname.clone(),
        pod: network.args.pod(),
        netns: netns.with_context(|| format!("{} vanished", path.display()))?,
        since: files::now(),
        rail: conf.rail,
        device: device.home.clone(),
        applied: record::Applied::default(),
        ipam: ipam.transpose()?,
        vf: None,
        rdma: Vec::new(),
        probe: None,
        device_info: conf.device_info.clone(),
    })
}

/// The address comes first: while it is refused, nothing has moved.
fn lease(network: &Network, conf: &NetConf, ipam: Option<&Delegate<'_>>) -> Result<AddResult> {
    let Some(ipam) = ipam else { return Ok(AddResult::default()) };
    let leased = ipam.add(network.version)?;
    let of_family = |is_v4| leased.ips.iter().filter(move |ip| ip.address.addr().is_ipv4() == is_v4).count();
    if network.version < Version::V030 && (of_family(true) > 1 || of_family(false) > 1) {
        let version = network.version.as_str();
        fail!(
            InvalidConfig,
            "a result of cniVersion {version} has room for one address of a family: use 0.3.0"
        );
    }
    if leased.ips.is_empty() {
        let name = conf.ipam.as_deref().unwrap_or_default();
        fail!(InvalidConfig, "the IPAM plugin {name} gave no address");
    }
    Ok(leased)
}

/// Moves the device, then makes it a rail.
fn move_in(
    home: &Link,
    conf: &NetConf,
    record: &mut Record,
    netns: &Netns,
    host: &mut Socket,
    pod: &mut Socket,
) -> Result<Link> {
    for altname in pod::clashing_altnames(pod, home, &record.ifname)? {
        link::remove_altname(host, home, &altname)?;
    }
    // A VF may not be able to take a MAC that its PF prescribes until it comes up.
    let prescribed = record.vf.as_ref().and_then(|vf| vf.wanted.mac.as_ref()).and(conf.mac.as_deref());
    let mac = conf.mac.as_deref().filter(|_| prescribed.is_none());
    link::move_to(host, home, netns, &Move { name: &record.ifname, mtu: conf.mtu, mac })?;
    let moved = link::by_name(pod, &record.ifname)?;
    let moved = moved.filter(|link| link.parent == home.parent && link.kind == home.kind);
    let moved = moved.with_context(|| format!("{} vanished on its way to the pod", home.name))?;
    record.applied.index = moved.index.get();
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

/// Only what was done.
fn result(conf: &NetConf, record: &Record, link: Option<&Link>, leased: AddResult, path: &Path) -> AddResult {
    let interface = cni::Interface {
        name: record.ifname.clone(),
        mac: link.map_or_else(|| record.applied.mac.clone(), |link| link.mac.clone()),
        mtu: link.map(|link| link.mtu),
        sandbox: path.to_string_lossy().into_owned(),
        pci_id: record.device.pci_id.clone(),
        socket_path: None,
    };
    let ips = leased.ips.into_iter().map(|ip| cni::Ip { interface: Some(0), ..ip }).collect();
    let is_own_table = |route: &crate::netlink::route::Route| {
        record.applied.rules.iter().any(|rule| rule.table == route.table)
    };
    let routes = record.applied.routes.iter().filter(|route| !is_own_table(route)).map(|route| cni::Route {
        dst: route.dst,
        gw: route.gateway,
        mtu: route.mtu,
        advmss: route.advmss,
        priority: Some(route.metric).filter(|metric| *metric != 0),
        table: Some(route.table).filter(|table| *table != crate::netlink::route::MAIN),
        scope: route.scope,
    });
    let routes = routes.collect();
    let dns = if conf.dns.is_empty() { leased.dns } else { conf.dns.clone() };
    AddResult { interfaces: vec![interface], ips, routes, dns }
}

/// Is the rail's PF on this node?
fn rail_is_there(network: &Network, node: &Node) -> Result<()> {
    let Some(rail) = network.get(&["rail"]).and_then(serde_json::Value::as_u64) else { return Ok(()) };
    let pfs: Vec<_> = node.rails.iter().filter(|one| u64::from(one.rail) == rail).collect();
    if pfs.is_empty() && !node.rails.is_empty() {
        fail!(NotAvailable, "rail {rail}: node.json does not list it");
    }
    for one in pfs {
        let there = match DeviceId::parse(&one.pf) {
            Some(id) => crate::sysfs::Function::find(&node.sysfs_root, &id)?.is_some(),
            None => node.sysfs_root.join("class/net").join(&one.pf).exists(),
        };
        if !there {
            fail!(NotAvailable, "rail {rail}: the node has no PF {}", one.pf);
        }
    }
    Ok(())
}
