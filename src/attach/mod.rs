//! rail-cni: a device of the host becomes an interface of a pod, and everything goes back.

pub(crate) mod check;
pub(crate) mod claim;
pub(crate) mod config;
pub(crate) mod debt;
pub(crate) mod device;
mod devinfo;
pub(crate) mod giveback;
pub(crate) mod lost;
pub(crate) mod order;
pub(crate) mod pod;
pub(crate) mod probe;
pub(crate) mod rdma;
pub(crate) mod record;
pub(crate) mod settings;
mod stacked;
pub(crate) mod userspace;
pub(crate) mod vf;

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::cni::{self, AddResult, Attachment, Delegate, Keys, Network, Plugin, Version, find_plugin};
use crate::error::all_of;
use crate::netlink::Socket;
use crate::netlink::link::{self, Link, Move};
use crate::netns::{Netns, NetnsId};
use crate::node::Node;
use crate::sysfs::DeviceId;
use crate::{fail, failure, files, watchdog};
use config::NetConf;
use device::Device;
use record::{Phase, Record, Records};
use settings::Settings;

/// The plugin.
#[derive(Debug)]
pub struct Attach;

impl Plugin for Attach {
    const NAME: &str = "rail-cni";
    const KEYS: &'static Keys = &config::NETWORK;
    const CALLS_OTHERS: bool = true;

    /// Everything that can be refused is refused first; then the record; then what the record describes.
    fn add(&self, network: &Network, attachment: &Attachment, path: &Path) -> Result<AddResult> {
        let node = Node::load()?;
        node.start_log(network);
        node.check_place(Some(path))?;
        let mut conf = NetConf::parse(network, attachment, &node)?;
        let previous = network.previous()?.unwrap_or_default();
        let netns = Netns::open(path)?;
        // Before anything is done: a plugin that is not there gives no address.
        conf.ipam.as_deref().map(|name| find_plugin(name, &network.path)).transpose()?;
        let mut pod = netns.run(Socket::open)?;
        let mut host = Socket::open()?;

        watchdog::step(|| "finding the device".to_owned());
        let records = Records::open(&node)?;
        let mut lock = records.lock(attachment)?;
        lock.refuse_if_deleted()?;
        claim::settle_own(&records, attachment, &node)?;
        pod::refuse_name_in_use(&mut pod, &attachment.ifname)?;
        let claim::Claim { device, lock: mut claim, left } =
            claim::claim(&records, &conf, attachment, &node, &mut host)
                .map_err(|error| conf.of_rail(error))?;
        device::check(&device, &conf, &node, &network.name, &mut host)
            .map_err(|error| conf.of_rail(error))?;
        let told = conf.rail.is_none().then(|| device::rail_of(&device, &node)).flatten();
        conf.rail = conf.rail.or(told);
        // The IPAM compares it with the rail of its pool.
        let stdin = told.map(|rail| network.stdin_with("rail", rail.into())).transpose()?;
        let stdin = stdin.as_deref().unwrap_or(&network.stdin);
        let of_rail = |error| conf.of_rail(error);
        rdma::refuse_owed(&conf, &device, &records).map_err(of_rail)?;
        claim::refuse_pf_of_attached_vfs(&records, &device, &node).map_err(of_rail)?;
        probe::refuse_userspace(&conf, &device)?;
        if let Some(path) = &conf.device_info {
            devinfo::check(path, &device, attachment, &records)?;
        }
        let vf = vf::plan(&conf, &device, left.as_ref(), &node, &mut host).map_err(of_rail)?;
        let mut record = new_record(network, attachment, path, &conf, &device, stdin)?;
        record.vf = vf.as_ref().map(|plan| plan.record.clone());
        record.rdma = rdma::plan(&conf, &device, &node).map_err(of_rail)?;
        let link = device.home.link.as_ref();
        record.settings = link.map(|link| Settings::take(link, &node.sysfs_root, &mut host));
        left.iter().for_each(|left| record.begin_as(left));
        records.write(&record, &mut claim)?;
        if left.is_some() {
            debt::taken_over(&records, &device.home.id)?;
        }
        // Held until the routes are there: another network of this pod must not choose the same table.
        let _table = conf.rail.is_none().then(|| records.lock_netns(&record.netns)).transpose()?;
        let attached = (|| {
            let leased = lease(network, stdin, &mut record, &records, &node)?;
            crate::log::addresses(leased.ips.iter().map(|ip| ip.address.addr()));
            if let Some(home) = &device.home.link {
                record.applied = pod::plan(&conf, home, &leased, &mut pod)?;
                let rails = records.ifnames_of(&attachment.container_id)?;
                pod::check_routes(&record.applied, &node, &rails, &mut pod).map_err(of_rail)?;
                record.probe = probe::plan(&conf, &record.applied, &leased)?;
            }
            records.write(&record, &mut claim)?;
            watchdog::step(|| format!("setting what the PF sets for {}", device.home.id));
            if let Some(vf) = &vf {
                vf::apply(vf, &records, &node, &mut host).map_err(of_rail)?;
                if let Some(home) = &device.home.link {
                    vf::refuse_guid_not_taken(&vf.record, home, &mut host).map_err(of_rail)?;
                }
            }
            // Before the netdev: a driver may refuse, and IPoIB makes its netdev anew where the RDMA device is.
            watchdog::step(|| format!("moving {}", device.home.id));
            rdma::move_in(&record.rdma, &netns).map_err(of_rail)?;
            let is_changed = vf.as_ref().is_some_and(vf::Plan::is_something) || !record.rdma.is_empty();
            let link = match look_again(&record, &device, is_changed, &node, &mut host).map_err(of_rail)? {
                Some(home) => {
                    Some(move_in(&home, &conf, &mut record, &netns, &mut host, &mut pod).map_err(of_rail)?)
                }
                // A program in user space has the device, and will own the address.
                None => {
                    record.applied.mac = vf::prescribed_mac(&device, &mut host)?.unwrap_or_default();
                    None
                }
            };
            watchdog::step(|| "asking the gateway".to_owned());
            match &link {
                Some(link) if record.probe.is_some() => {
                    probe::run(&mut pod, &netns, link, &record, &node)
                        .or_else(|error| conf.or_warn(error))?;
                }
                Some(link) => probe::announce(&mut pod, &netns, link, &record, &leased),
                None => (),
            }
            if let Some(path) = &conf.device_info {
                devinfo::write(path, &device, attachment)?;
            }
            record.phase = Phase::Attached;
            records.write(&record, &mut claim)?;
            log::info!("{} is {} of the pod", device.describe(), attachment.ifname);
            Ok(previous.merged_with(result(&conf, &record, link.as_ref(), leased, path)))
        })();
        attached.inspect_err(|_| {
            // What cannot be undone stays on record: DEL, the next ADD or `reap` go on from there.
            if let Err(left) = claim::undo(&record, &records, claim, &node) {
                log::error!("undoing ADD failed: {left:#}");
            }
        })
    }

    /// Needs nothing but the key: everything else is on record, or gone.
    fn del(&self, network: &Network, attachment: &Attachment, path: Option<&Path>) -> Result<()> {
        let node = Node::load_lenient()?;
        node.start_log(network);
        let ipam = config::ipam_of(network).unwrap_or_else(|error| {
            log::warn!("{error:#}");
            None
        });
        let delegate = ipam.map(|name| Delegate::find(name, &network.path, &network.stdin));

        let records = Records::open_for_del(&node)?;
        let (lock, record) = claim::lock_and_find(records.as_ref(), attachment)?;
        let (_rebuilt, record) = lost::or_rebuilt(records.as_ref(), record, attachment, path)?;
        let done = match (&records, &record) {
            (Some(records), Some(record)) => {
                crate::log::addresses(record.applied.addresses.iter().map(ipnet::IpNet::addr));
                let done = claim::settle(records, record, &node);
                if done.is_ok() {
                    log::info!("{}", what_became_of(record));
                }
                // The configuration may name another IPAM by now than the one that ADD used: that is told too.
                if record.ipam.as_ref().map(|of_add| of_add.r#type.as_str()) != ipam {
                    let told = delegate.map_or(Ok(()), |delegate| delegate?.run("DEL"));
                    told.unwrap_or_else(|error| log::warn!("{error:#}: ADD did not use it"));
                }
                done
            }
            _ => {
                // What was never added succeeds, whatever its configuration holds.
                let done = give_back_unrecorded(network, attachment, path, &node);
                log::info!("nothing is on record of it");
                let told = delegate.map_or(Ok(()), |delegate| delegate?.run("DEL"));
                told.unwrap_or_else(|error| log::warn!("{error:#}: nothing is on record of {attachment}"));
                let removed = records.as_ref().map_or(Ok(()), |records| {
                    debt::pay_own(records, &node, attachment, debt::WHOLE)?;
                    records.remove(attachment, None)
                });
                // Where nothing is found, it must have been looked for in the right place.
                all_of([done, removed, node.check_place(path)])
            }
        };
        // What is only for later calls must not fail this one, on a full /run for example.
        let left = lock.map_or(Ok(()), |mut lock| lock.set_deleted());
        if let Some(records) = &records {
            let aside = [left, debt::pay_due(records, &node), records.prune_locks()];
            all_of(aside).unwrap_or_else(|error| log::warn!("{error:#}"));
        }
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
        node.check_place(Some(path))?;
        let ipam = config::ipam_of(network)?;
        let mut found = Vec::new();
        let record = match Records::open_existing(&node)? {
            Some(records) => records.find(attachment)?,
            None => None,
        };
        match record {
            None => found.push("there is no record of it".to_owned()),
            Some(record) => found = check::differences(&record, attachment, path, previous, &node)?,
        }
        if let Some(name) = ipam {
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
        let ipam = config::ipam_of(network)?;
        let ready = (|| -> Result<()> {
            let node = Node::load()?;
            node.start_log(network);
            node.check_place(None)?;
            node.run_is_writable()?;
            let sysfs = node.sysfs_root.join("class/net");
            sysfs.metadata().with_context(|| format!("cannot read {}", sysfs.display()))?;
            rail_is_there(network, &node)
        })();
        ready.map_err(|error| failure!(NotAvailable, "{error:#}"))?;
        let Some(name) = ipam else { return Ok(()) };
        let delegate = Delegate::find(name, &network.path, &network.stdin);
        delegate.map_err(|error| failure!(NotAvailable, "{error:#}"))?.run("STATUS")
    }

    /// Gives back what the runtime does not know any more. Its list can be incomplete: CRI-O sends one for
    /// every file in its folder, while Multus made the attachments. So what lives is kept.
    fn gc(&self, network: &Network, keep: &[Attachment]) -> Result<()> {
        let node = Node::load()?;
        node.start_log(network);
        node.check_place(None)?;
        let ipam = config::ipam_of(network)?;
        let mut done = Vec::new();
        if let Some(records) = Records::open_existing(&node)? {
            let (all, _) = records.all()?;
            let ours = all.iter().filter(|record| record.network == network.name);
            let lost = ours.filter(|record| !keep.contains(&record.attachment()));
            done.extend(lost.map(|record| claim::collect(&records, record, &node)));
            done.push(debt::pay_due(&records, &node));
        }
        if let Some(name) = ipam {
            done.push(
                Delegate::find(name, &network.path, &network.stdin).and_then(|delegate| delegate.run("GC")),
            );
        }
        all_of(done)
    }
}

/// What DEL did, for the log.
fn what_became_of(record: &Record) -> String {
    let Record { device, applied, since, .. } = record;
    let name = device.link.as_ref().map_or(String::new(), |link| format!(" as {}", link.name));
    let addresses: Vec<_> = applied.addresses.iter().map(ToString::to_string).collect();
    let addresses =
        if addresses.is_empty() { String::new() } else { format!(", {}", addresses.join(" and ")) };
    format!("{} went back to the host{name}{addresses}; attached since {since}", device.id)
}

/// DEL without a record: the device is known by its PCI address, if the runtime still knows that.
fn give_back_unrecorded(
    network: &Network,
    attachment: &Attachment,
    path: Option<&Path>,
    node: &Node,
) -> Result<()> {
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
            giveback::give_back_unrecorded(&netns, &id, &attachment.ifname, node).map(drop)
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
    stdin: &[u8],
) -> Result<Record> {
    let netns = NetnsId::of(path).ok().flatten();
    let ipam = conf.ipam.as_ref().map(|name| -> Result<record::Ipam> {
        Ok(record::Ipam {
            r#type: name.clone(),
            config: String::from_utf8(stdin.to_vec()).context("stdin is not UTF-8")?,
            args: network.args.raw.clone(),
            path: network.path.clone(),
            may_hold: true,
        })
    });
    Ok(Record {
        version: record::VERSION,
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
        settings: None,
        vf: None,
        rdma: Vec::new(),
        probe: None,
        device_info: conf.device_info.clone(),
        reset: conf.reset_on_del,
        debt: None,
    })
}

/// The address comes first: while it is refused, nothing has moved.
fn lease(
    network: &Network,
    stdin: &[u8],
    record: &mut Record,
    records: &Records,
    node: &Node,
) -> Result<AddResult> {
    let Some(name) = record.ipam.as_ref().map(|ipam| ipam.r#type.clone()) else {
        return Ok(AddResult::default());
    };
    let ipam = Delegate::find(&name, &network.path, stdin)?;
    let mut added = ipam.add(network.version);
    // Perhaps because of what pods before this one still owe.
    if added.as_ref().is_err_and(cni::gave_nothing)
        && debt::pay_addresses(records, node, &name, &record.attachment())?
    {
        ipam.run("DEL")?;
        added = ipam.add(network.version);
    }
    if let Some(recorded) = &mut record.ipam {
        recorded.may_hold = !added.as_ref().is_err_and(cni::gave_nothing);
    }
    let leased = added?;
    let of_family = |is_v4| leased.ips.iter().filter(move |ip| ip.address.addr().is_ipv4() == is_v4).count();
    if network.version < Version::V030 && (of_family(true) > 1 || of_family(false) > 1) {
        let version = network.version.as_str();
        fail!(
            InvalidConfig,
            "a result of cniVersion {version} has room for one address of a family: use 0.3.0"
        );
    }
    if leased.ips.is_empty() {
        fail!(InvalidConfig, "the IPAM plugin {name} gave no address");
    }
    Ok(leased)
}

/// The device as it is right before its move: a driver that was told something through the PF, or whose RDMA device
/// has left, may have made the netdev anew.
fn look_again(
    record: &Record,
    device: &Device,
    is_changed: bool,
    node: &Node,
    host: &mut Socket,
) -> Result<Option<Link>> {
    if device.home.link.is_none() || !is_changed {
        return Ok(device.home.link.clone());
    }
    let Some(link) = giveback::wait_for(record, node, host)? else {
        fail!(Internal, "{} vanished from the host while it was prepared", device.describe());
    };
    Ok(Some(link))
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
