//! Devices and addresses that pods have without a record: they are found by a search through the
//! network namespaces.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use rail_cni::attach::attachments::Unrecorded;
use rail_cni::every_netns::{self, Seen, Which};
use rail_cni::ipam::emptied::Found;
use rail_cni::ipam::emptied::Rebuilding;
use rail_cni::netns::NetnsId;
use rail_cni::node::Node;

use rail_cni::watchdog;
use rail_netlink::link::{self, Link};
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
        let is_of_rail = |link: &Link| {
            let id = link.parent.as_ref();
            id.is_some_and(|id| functions.contains(id))
        };
        for link in link::seen(socket, is_of_rail)? {
            let Some(id) = link.parent.clone() else {
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

/// The remedy for a device without a record. Another plugin's DEL gives its device back by itself:
/// a record of ours would take what that pod has for the original.
pub const REMEDY: &str =
    "end that pod; if rail-cni attached the device, `railctl reap --rebuild` records it";

impl Lost {
    /// Describes its place, for people.
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

    /// The fields for programs.
    pub fn json(&self) -> Value {
        let Lost {
            id,
            link,
            addresses,
            netns,
        } = self;
        json!({"device": id, "interface": link.name, "addresses": addresses, "netns": netns})
    }

    /// The device and its place.
    pub fn as_unrecorded(&self) -> Unrecorded<'_> {
        Unrecorded {
            id: &self.id,
            link: &self.link,
            addresses: &self.addresses,
            netns: &self.netns,
        }
    }
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
    rebuilding.lease(&found)?;
    rebuilding.end(node)?;
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
