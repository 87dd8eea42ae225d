//! Devices and addresses that pods have without a record: they are found by a search through the
//! network namespaces.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use rail_cni::attach::owner::{Inside, Owner, Part};
use rail_cni::attach::pending;
use rail_cni::attach::rebuild::{is_away, key_in, usual_name};
use rail_cni::attach::record::{Progress, Record};
use rail_cni::attach::records::{Pending, Records};
use rail_cni::attach::steps::driver::Driver;
use rail_cni::attach::steps::links::Links;
use rail_cni::attach::steps::moved::Move;
use rail_cni::attach::steps::netdev::Netdev;
use rail_cni::attach::steps::rail::Rail;
use rail_cni::attach::steps::vf::Vf;
use rail_cni::attach::steps::vf_mac::VfMac;
use rail_cni::device::Original;
use rail_cni::device::pf::VfSettings;
use rail_cni::every_netns::{self, Seen, Which};
use rail_cni::ipam::emptied::Rebuilding;
use rail_cni::ipam::lease::{self, Found};
use rail_cni::netns::NetnsId;
use rail_cni::node::Node;
use rail_cni::sysfs::{DeviceId, Function};
use rail_cni::watchdog;
use rail_netlink::link::{self, Link};
use rail_netlink::vf::VfState;
use rail_netlink::{Socket, address};

/// The part of the limit of a call that a search may take.
pub const SEARCH: u32 = 36;

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
    let deadline = Instant::now() + watchdog::part(SEARCH);
    let seen = every_netns::visit(Which::All, deadline, |socket, netns| {
        for link in link::seen(socket)? {
            let Some(id) = link.parent.clone().filter(|id| functions.contains(id)) else {
                continue;
            };
            // A VLAN has no parent; a representor's parent is its PF's function, which is on the
            // host.
            let addresses = addresses(socket, &link)?;
            found.push(Lost {
                id,
                link,
                addresses,
                netns: netns.to_owned(),
            });
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
    Ok(all
        .into_iter()
        .filter(|one| !one.is_link_local())
        .map(|one| one.net)
        .collect())
}

/// What to do about a device without a record. Another plugin's DEL gives its device back by
/// itself: a record of ours would take what that pod has for the original.
pub const REMEDY: &str =
    "end that pod; if rail-cni attached the device, `railctl reap --rebuild` records it";

impl Lost {
    /// Where the device is, for people.
    pub fn describe(&self) -> String {
        let Lost {
            id, link, netns, ..
        } = self;
        format!(
            "{id} is {} in the namespace {}, and there is no record of it",
            link.name,
            netns.display()
        )
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let Lost {
            id,
            link,
            addresses,
            netns,
        } = self;
        json!({"device": id, "interface": link.name, "addresses": addresses, "netns": netns})
    }

    /// Writes a record of what can be seen, unless an ADD has put the device on record since it was
    /// found, or it is on the host again. The original state is what is pending of an earlier pod;
    /// where nothing is, it cannot be seen: MTU and MAC stay as they are, and the name will be the
    /// device's usual one.
    pub fn rebuild(
        &self,
        records: &Records,
        node: &Node,
        host: &mut Socket,
    ) -> Result<Option<Record>> {
        let id = DeviceId::parse(&self.id)
            .with_context(|| format!("{} is not the address of a device", self.id))?;
        let function = Function::find(&node.sysfs_root, &id)?;
        let function = function.with_context(|| format!("the host has no device {}", self.id))?;
        let mut lock = records.locks.device(&self.id)?;
        if !records.claims_on(&self.id, &mut lock, None)?.is_empty() || !is_away(&function)? {
            return Ok(None);
        }
        let mut record = Record::new(self.owner(&id, &function, node, host)?);
        record.plan(Netdev::default());
        record.plan(Links);
        record.plan(Move);
        let addresses = self.addresses.clone();
        record.plan(Rail {
            mtu: Some(self.link.mtu),
            addresses,
            ..Rail::default()
        });
        let previous = earliest(records, &self.id)?;
        if let Some(previous) = &previous {
            // Which settings the network made is not known: all that were known before are
            // restored.
            if let Some(Vf(settings)) = previous.find::<Vf>().filter(|_| previous.leaves::<Vf>()) {
                record.plan(Vf(without_wanted(settings)));
            }
            let mac = previous.find::<VfMac>();
            if let Some(VfMac(settings)) = mac.filter(|_| previous.leaves::<VfMac>()) {
                record.plan(VfMac(without_wanted(settings)));
            }
            record.inherit(previous);
            if let Some(driver) = previous.find::<Driver>() {
                record.plan(driver.clone());
            }
        }
        for step in &mut record.steps {
            step.progress = Progress::Done;
        }
        records.write(&record, &mut lock)?;
        if previous.is_some() {
            pending::inherited(records, &self.id, Part::Whole)?;
        }
        Ok(Some(record))
    }

    fn owner(
        &self,
        id: &DeviceId,
        function: &Function,
        node: &Node,
        host: &mut Socket,
    ) -> Result<Owner> {
        let pf = function.pf(&node.sysfs_root)?.map(|pf| pf.address);
        let mut was = self.link.clone();
        was.name = usual_name(id, &self.link, node)?;
        was.up = false;
        let netns = NetnsId::of(&self.netns).ok().flatten();
        let netns = netns.with_context(|| format!("{} vanished", self.netns.display()))?;
        let mut rail = None;
        for one in &node.rails {
            let by_name = link::by_name(host, &one.pf)
                .ok()
                .flatten()
                .and_then(|link| link.parent);
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
            inside: Inside {
                index: self.link.index.get(),
                mac: self.link.mac.clone(),
            },
            ..Owner::new(&key_in(&netns, &self.link.name), netns, device)?
        })
    }
}

/// The settings as they are restored where it is not known which of them a network made.
fn without_wanted(settings: &VfSettings) -> VfSettings {
    VfSettings {
        wanted: VfState::default(),
        ..settings.clone()
    }
}

/// The earliest attachment of which something is left of the device `id`: its record has the
/// original state.
fn earliest(records: &Records, id: &str) -> Result<Option<Record>> {
    let mut earliest: Option<Record> = None;
    for Pending { record, .. } in records.pending_of(id)? {
        let is_first = earliest
            .as_ref()
            .is_none_or(|other| record.owner.since < other.owner.since);
        if is_first && record.is_left_of_device() && record.owner.is_of_this_boot()? {
            earliest = Some(record);
        }
    }
    Ok(earliest)
}

/// A pod can give itself any number of addresses, of which this many count.
const MOST: usize = 4096;
/// A pod can make thousands of namespaces, and no address is given before each was examined.
const LONGEST: Duration = Duration::from_secs(300);

/// After the run directory was emptied: makes leases of the addresses that namespaces have, and
/// lets ADD give others. Returns them; none where nothing was emptied.
pub fn leases(node: &Node) -> Result<Vec<Found>> {
    let Some(rebuilding) = Rebuilding::begin(node)? else {
        return Ok(Vec::new());
    };
    let found = addresses_in_use()?;
    lease::rebuild(node, &found)?;
    rebuilding.end()?;
    Ok(found)
}

/// The addresses of every namespace but the host's. Fails if one cannot be asked: its address would
/// be given again.
fn addresses_in_use() -> Result<Vec<Found>> {
    let mut found = Vec::new();
    let seen = every_netns::visit(Which::All, Instant::now() + LONGEST, |socket, path| {
        let cannot = || {
            format!(
                "cannot tell which addresses {} has: end what uses it, and run this again",
                path.display()
            )
        };
        let Some(netns) = NetnsId::of(path).with_context(cannot)? else {
            return Ok(ControlFlow::Continue(()));
        };
        let all = address::in_namespace(socket)
            .with_context(cannot)?
            .into_iter();
        let all = all.filter(|(_, one)| !one.is_link_local() && !one.net.addr().is_loopback());
        for (index, one) in all.take(MOST) {
            let ifname =
                link::by_index(socket, index)?.map_or_else(|| index.to_string(), |link| link.name);
            found.push(Found {
                address: one.net.addr(),
                ifname,
                netns: netns.clone(),
            });
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if seen == Seen::Part {
        bail!("the search for addresses ended before every namespace was examined: run this again");
    }
    Ok(found)
}
