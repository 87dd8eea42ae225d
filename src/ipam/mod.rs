//! rail-ipam: the address of a rail in a pod. A pool gives each node a prefix, its allocation,
//! which was planned with the fabric. An attachment holds one address of it, its lease. rail-ipam
//! never invents an address, because the switch is already configured.

pub mod assign;
pub mod claim;
pub mod config;
pub mod emptied;
pub mod lease;
mod life;
mod migrate;
pub mod names;
pub mod table;

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;

use anyhow::Result;
use ipnet::IpNet;

use crate::cni::{AddResult, Attachment, Ip, Keys, Network, Plugin, Route, Version};
use crate::netns::NetnsId;
use crate::node::Node;
use crate::pool::{Allocation, node_name};
use crate::{confine, fail, failure};

use config::Config;
use lease::{Ask, Holder, Lease};

/// The IPAM plugin.
#[derive(Debug, Default)]
pub struct Ipam<'n> {
    /// The node of rail-cni, which calls this in its own process.
    caller: Option<&'n Node>,
}

impl<'n> Ipam<'n> {
    /// The plugin in the process of rail-cni, which has read node.json.
    pub fn called_by(node: &'n Node) -> Ipam<'n> {
        Ipam { caller: Some(node) }
    }

    /// Starts a call, and returns the node: the caller's, or the one that `load` reads. A process of
    /// its own also starts the log, and gives up the system calls that rail-ipam never makes.
    fn start(
        &self,
        load: impl FnOnce() -> Result<Node>,
        network: &Network,
    ) -> Result<Cow<'n, Node>> {
        if let Some(node) = self.caller {
            return Ok(Cow::Borrowed(node));
        }
        let node = load()?;
        node.start_log(network);
        if node.confine {
            confine::ipam();
        }
        Ok(Cow::Owned(node))
    }

    /// The configuration of a call. A runtime calls a copy of rail-ipam, or a link to it, by the
    /// name that the type is.
    fn parse(&self, network: &Network) -> Result<Config> {
        if self.caller.is_none() {
            let program = std::env::args_os().next().unwrap_or_default();
            config::refuse_type(network, Path::new(&program).file_name().unwrap_or_default())?;
        }
        Config::parse(network)
    }
}

impl Plugin for Ipam<'_> {
    const NAME: &'static str = "rail-ipam";
    const KEYS: &'static Keys = &config::NETWORK;
    const MOST_CONFIG: usize = 256 << 10;
    const CALLS_OTHERS: bool = false;

    fn add(&self, network: &Network, attachment: &Attachment, netns: &Path) -> Result<AddResult> {
        let node = self.start(Node::load, network)?;
        node.check_place(Some(netns))?;
        let config = self.parse(network)?;
        let node_name = node_name(&node)?;
        let requested = config::requested(network)?;
        let holder = Holder::new(network, attachment, netns_id(netns)?)?;
        let (asks, addresses) = loop {
            let planned = config.allocations(&node, &node_name)?;
            one_address_per_family_in_old_versions(network.version, &planned)?;
            let (pools, allocations) = planned.iter().cloned().unzip();
            let asks = Ask::all(pools, allocations, &requested)?;
            config.refuse_closed(&node, &node_name)?;
            let is_current = || config.is_current(&node, &node_name, &planned);
            // Each further turn means that another plan was written just now.
            if let Some(addresses) = assign::take(&node, &node_name, &asks, &holder, is_current)? {
                break (asks, addresses);
            }
        };
        crate::log::addresses(addresses.iter().copied());

        let mut result = AddResult::default();
        for (Ask { allocation, .. }, address) in asks.iter().zip(addresses) {
            let address = IpNet::new(address, allocation.prefix.prefix_len())?;
            result.ips.push(Ip {
                address,
                gateway: allocation.gateway,
                interface: None,
            });
            for route in &allocation.routes {
                let route = Route {
                    gw: allocation.gateway,
                    ..Route::to(route.dst)
                };
                if !result.routes.contains(&route) {
                    result.routes.push(route);
                }
            }
        }
        Ok(result)
    }

    /// Needs the key alone: pools, store and even the node's name may have changed since ADD. If
    /// there is no lease, the run directory must be the host's: success elsewhere would leave the
    /// lease without an owner.
    fn del(&self, network: &Network, attachment: &Attachment, netns: Option<&Path>) -> Result<()> {
        let node = self.start(|| Ok(Node::load_lenient()), network)?;
        let mut held_any = assign::release(&node, &network.name, attachment)?;
        if let Some(netns) = netns.filter(|_| !held_any) {
            held_any = assign::release_rebuilt(&node, netns, &attachment.ifname)?;
        }
        if held_any {
            return Ok(());
        }
        log::info!("the attachment holds no lease");
        node.confirm_nothing(netns)
    }

    fn check(
        &self,
        network: &Network,
        attachment: &Attachment,
        netns: &Path,
        previous: &AddResult,
    ) -> Result<()> {
        let node = self.start(Node::load, network)?;
        node.check_place(Some(netns))?;
        let config = self.parse(network)?;
        let node_name = node_name(&node)?;
        let mut differences = Vec::new();
        let leases = table::held_by(&node, &network.name, attachment)?;
        for (pool, allocation) in &config.allocations(&node, &node_name)? {
            // The pool may have another name by now.
            let of_pool = leases.iter().find(|lease| lease.pool == *pool);
            let in_prefix = |lease: &&Lease| allocation.prefix.contains(&lease.address);
            match of_pool.or_else(|| leases.iter().find(in_prefix)) {
                None => differences.push(format!("pool {pool}: {attachment} has no lease")),
                Some(lease) => compare(pool, lease.address, allocation, previous, &mut differences),
            }
        }
        if !differences.is_empty() {
            fail!(CheckFailed, "{}", differences.join("; "));
        }
        Ok(())
    }

    /// Takes no lock and writes nothing: runtimes call STATUS every few seconds.
    fn status(&self, network: &Network) -> Result<()> {
        let node = self.start(Node::load, network)?;
        let config = self.parse(network)?;
        serves(&node, &config).map_err(|error| failure!(NotAvailable, "{error:#}"))
    }

    fn gc(&self, network: &Network, keep: &[Attachment]) -> Result<()> {
        let node = self.start(|| Ok(Node::load_lenient()), network)?;
        if node.existing_run(names::FOLDER)?.is_none() {
            return node.confirm_nothing(None);
        }
        node.check_place(None)?;
        let keep: HashSet<String> = keep
            .iter()
            .map(|one| names::key(&network.name, one))
            .collect();
        assign::collect(&node, &network.name, &keep)
    }
}

/// The namespace that the address goes to. An IPAM has no business in it, so it is never opened.
fn netns_id(netns: &Path) -> Result<Option<NetnsId>> {
    NetnsId::of(netns).map_err(|error| {
        let shown = netns.display();
        failure!(
            InvalidNetns,
            "CNI_NETNS {shown}: {error}: a lease without a namespace would never end"
        )
    })
}

/// Fails if a result before 0.3.0, which has room for one address of each family, would lack an
/// address.
fn one_address_per_family_in_old_versions(
    version: Version,
    planned: &[(String, Allocation)],
) -> Result<()> {
    let families: HashSet<bool> = planned
        .iter()
        .map(|(_, allocation)| allocation.is_ipv4())
        .collect();
    if version < Version::V030 && families.len() < planned.len() {
        fail!(
            InvalidConfig,
            "cniVersion {} can have only one address per family: use 0.3.0 or newer for two pools",
            version.as_str()
        );
    }
    Ok(())
}

/// Compares a lease and its allocation with the result of ADD. The result may have more, because
/// other plugins add to it.
fn compare(
    pool: &str,
    address: std::net::IpAddr,
    allocation: &Allocation,
    previous: &AddResult,
    differences: &mut Vec<String>,
) {
    if let Err(why) = allocation.check_host(address) {
        differences.push(format!("pool {pool}: the lease {address}: {why}"));
    }
    let Some(ip) = previous.ips.iter().find(|ip| ip.address.addr() == address) else {
        let given: Vec<_> = previous
            .ips
            .iter()
            .map(|ip| ip.address.to_string())
            .collect();
        differences.push(format!(
            "pool {pool}: the lease {address} is not in prevResult {given:?}"
        ));
        return;
    };
    let (given, planned) = (ip.address.prefix_len(), allocation.prefix.prefix_len());
    if given != planned {
        differences.push(format!(
            "pool {pool}: {address} has prefix length /{given}, but the allocation /{planned}"
        ));
    }
    if ip.gateway != allocation.gateway {
        let show = |gateway: Option<std::net::IpAddr>| {
            gateway.map_or_else(|| "none".to_owned(), |gateway| gateway.to_string())
        };
        differences.push(format!(
            "pool {pool}: {address} has gateway {}, but the allocation {}",
            show(ip.gateway),
            show(allocation.gateway)
        ));
    }
}

/// Fails if an ADD would fail.
fn serves(node: &Node, config: &Config) -> Result<()> {
    node.check_place(None)?;
    let node_name = node_name(node)?;
    // The store may be read-only: ADD does not write to it.
    let planned = config.all_allocations(node, &node_name)?;
    config.refuse_closed(node, &node_name)?;
    node.run_is_writable()?;
    emptied::refuse(node)?;
    let full = planned
        .iter()
        .find(|(_, allocation)| allocation.first_free(|_| false).is_none());
    if let Some((pool, allocation)) = full {
        return Err(allocation.no_host(pool));
    }
    table::serves(node)
}
