//! `railctl leases`: prints the allocations of nodes and the leases.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::output::{self, Output, pretty, print, table};
use crate::progress::Progress;
use rail_cni::fail;
use rail_cni::ipam::lease::Claim;
use rail_cni::ipam::lease::Lease;
use rail_cni::ipam::names::Entry;
use rail_cni::ipam::table;
use rail_cni::netns::Life;
use rail_cni::node::Node;
use rail_cni::pool::store::Store;
use rail_cni::pool::{Allocation, is_name, node_name};

/// Arguments of `railctl leases`.
#[derive(Debug, Args)]
pub struct LeasesArgs {
    /// Node to print instead of this one
    #[arg(long, value_name = "NAME", conflicts_with = "all_nodes")]
    node: Option<String>,
    /// Print all nodes in the store
    #[arg(long)]
    all_nodes: bool,
}

/// The prefix, the gateway and the routes of an allocation, as cells of a table.
pub fn columns(allocation: &Allocation) -> [String; 3] {
    let routes: Vec<_> = allocation
        .routes
        .iter()
        .map(|to| to.dst.to_string())
        .collect();
    let gateway = allocation.gateway.map(|gateway| gateway.to_string());
    [
        allocation.prefix.to_string(),
        gateway.unwrap_or_default(),
        routes.join(","),
    ]
}

/// A pool on a node.
#[derive(Default)]
struct Shown {
    allocation: Option<Allocation>,
    damage: Option<String>,
    leases: Vec<(Entry, Result<Lease, String>, State)>,
}

/// `railctl leases`.
pub fn leases(node: &Node, args: &LeasesArgs, output: Output) -> Result<ExitCode> {
    if let Err(error) = node.check_place(None) {
        output::say(&format!(
            "these may not be the leases of this node: {error:#}"
        ));
    }
    let mut shown: BTreeMap<(String, String), Shown> = BTreeMap::new();
    let wanted = match &args.node {
        _ if args.all_nodes => None,
        Some(name) if is_name(name) => Some(name.clone()),
        Some(name) => fail!(
            InvalidConfig,
            "--node: {name:?} is not a valid name of a node"
        ),
        None => Some(node_name(node)?),
    };
    let store = Store::open(node)?;
    let node_names = wanted
        .as_ref()
        .map_or_else(|| store.nodes(), |name| Ok(vec![name.clone()]))?;
    let mut progress = Progress::new("reading nodes", node_names.len());
    for node_name in node_names {
        progress.step();
        for (pool, found) in store.everything(&node_name)? {
            let (allocation, damage) = match found {
                Ok(allocation) => (allocation, None),
                Err(error) => (None, Some(format!("{error:#}"))),
            };
            shown.insert(
                (node_name.clone(), pool),
                Shown {
                    allocation,
                    damage,
                    ..Shown::default()
                },
            );
        }
    }
    drop(progress);
    let own_name = node_name(node).unwrap_or_default();
    for (entry, lease) in table::read_all(node)? {
        let place = place_of(&entry, &lease, &shown, &own_name);
        if wanted.as_ref().is_some_and(|wanted| *wanted != place.0) {
            continue;
        }
        let state = state_of(&lease, node)?;
        // The pool may never have been in the store: inline, or taken away.
        let pool = shown.entry(place).or_default();
        pool.leases.push((entry, lease, state));
    }

    match output {
        Output::Json => {
            let pools: Vec<Value> = shown
                .iter()
                .map(|((node, pool), shown)| shown.json(node, pool))
                .collect();
            print(&pretty(&json!({ "pools": pools })))?;
        }
        Output::Table => {
            let several = wanted.is_none();
            let mut headers = vec![
                "POOL", "PREFIX", "GATEWAY", "ROUTES", "ADDRESS", "STATE", "HOLDER", "SINCE",
            ];
            if several {
                headers.insert(0, "NODE");
            }
            let rows = shown.iter().flat_map(|((node, pool), shown)| {
                let mut rows = shown.rows(pool);
                if several {
                    rows.iter_mut().for_each(|row| row.insert(0, node.clone()));
                }
                rows
            });
            print(&table(&headers, rows))?;
        }
    }
    for Shown { damage, leases, .. } in shown.values() {
        let unreadable = leases
            .iter()
            .filter_map(|(_, lease, _)| lease.as_ref().err());
        damage
            .iter()
            .chain(unreadable)
            .for_each(|why| output::say(why));
        for (entry, _, state) in leases {
            if let State::Unknown(why) = state {
                output::say(&format!(
                    "{}: cannot tell whether its holder is alive: {why}",
                    entry.address
                ));
            }
        }
    }
    if let (true, Some(name)) = (shown.is_empty(), &wanted) {
        output::say(&format!(
            "node {name} has no allocation{}",
            store.hint(name)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

impl Shown {
    /// The address that the next pod would get, if one is free.
    fn free(&self) -> Option<IpAddr> {
        let held: BTreeSet<IpAddr> = self
            .leases
            .iter()
            .map(|(entry, ..)| entry.address)
            .collect();
        self.allocation
            .as_ref()?
            .first_free(|address| held.contains(&address))
    }

    fn rows(&self, pool: &str) -> Vec<Vec<String>> {
        let [prefix, gateway, routes] = self
            .allocation
            .as_ref()
            .map_or_else(Default::default, columns);
        let row = |address: String, state: &str, holder: String, since: String| {
            let start = [
                pool.to_owned(),
                prefix.clone(),
                gateway.clone(),
                routes.clone(),
            ];
            start
                .into_iter()
                .chain([address, state.to_owned(), holder, since])
                .collect()
        };
        let mut rows: Vec<Vec<String>> = self
            .leases
            .iter()
            .map(|(entry, lease, state)| {
                let (holder, since) = lease.as_ref().map_or_else(
                    |_| Default::default(),
                    |lease| (lease.holder.to_string(), lease.since.clone()),
                );
                row(entry.address.to_string(), state.word(), holder, since)
            })
            .collect();
        if let Some(address) = self.free() {
            rows.push(row(
                address.to_string(),
                "free",
                String::new(),
                String::new(),
            ));
        } else if rows.is_empty() {
            let state = if self.damage.is_some() { "damaged" } else { "" };
            rows.push(row(String::new(), state, String::new(), String::new()));
        }
        rows
    }

    fn json(&self, node: &str, pool: &str) -> Value {
        let allocation = self.allocation.as_ref();
        let leases: Vec<Value> = self
            .leases
            .iter()
            .map(|(entry, lease, state)| lease_json(entry, lease, state))
            .collect();
        json!({"node": node, "pool": pool, "prefix": allocation.map(|a| a.prefix),
            "gateway": allocation.and_then(|a| a.gateway), "rail": allocation.and_then(|a| a.rail),
            "routes": allocation.map(|a| &a.routes), "exclusions": allocation.map(|a| &a.exclusions),
            "leafPorts": allocation.map(|a| &a.leaf_ports), "leases": leases, "free": self.free(), "error": self.damage})
    }
}

/// The state of a lease, as `show` prints it.
#[derive(Debug)]
pub enum State {
    Live,
    Dead,
    /// With the reason.
    Unknown(String),
    Unreadable,
}

impl State {
    /// The word in the column STATE.
    pub fn word(&self) -> &'static str {
        match self {
            State::Live => "live",
            State::Dead => "dead",
            State::Unknown(_) => "unknown",
            State::Unreadable => "unreadable",
        }
    }
}

/// The node and the pool under which a lease is shown: it is this node's under any name, in the pool
/// of today that has its address, or else in the pool of its ADD.
fn place_of(
    entry: &Entry,
    lease: &Result<Lease, String>,
    shown: &BTreeMap<(String, String), Shown>,
    own_name: &str,
) -> (String, String) {
    let has_it = |(place, pool): &(&(String, String), &Shown)| {
        let allocation = pool.allocation.as_ref();
        place.0 == own_name && allocation.is_some_and(|one| one.prefix.contains(&entry.address))
    };
    let pool_of_add = lease
        .as_ref()
        .map_or_else(|_| String::new(), |lease| lease.pool.clone());
    shown.iter().find(has_it).map_or_else(
        || (own_name.to_owned(), pool_of_add),
        |(place, _)| place.clone(),
    )
}

/// The state of a lease.
pub fn state_of(lease: &Result<Lease, String>, node: &Node) -> Result<State> {
    let Ok(lease) = lease else {
        return Ok(State::Unreadable);
    };
    Ok(match lease.life(node)? {
        Life::Alive => State::Live,
        Life::Dead => State::Dead,
        Life::Unknown(why) => State::Unknown(why),
    })
}

/// A lease as JSON.
pub fn lease_json(entry: &Entry, lease: &Result<Lease, String>, state: &State) -> Value {
    let (holder, error) = match (lease, state) {
        (Ok(lease), State::Unknown(why)) => (Some(lease), Some(why)),
        (Ok(lease), _) => (Some(lease), None),
        (Err(why), _) => (None, Some(why)),
    };
    let claimed = holder
        .filter(|lease| lease.holder.claim.is_some())
        .map(|lease| &lease.holder);
    let claim = claimed.map(|holder| {
        let of = |read: fn(&Claim) -> Option<&String>| holder.claim.as_ref().and_then(read);
        json!({"uid": holder.container_id, "name": of(|claim| claim.name.as_ref()), "device": holder.ifname,
            "function": of(|claim| Some(&claim.function))})
    });
    let attached = holder
        .filter(|lease| lease.holder.claim.is_none())
        .map(|lease| &lease.holder);
    json!({"address": entry.address, "state": state.word(), "network": attached.map(|of| &of.network),
        "containerID": attached.map(|of| &of.container_id), "ifname": attached.map(|of| &of.ifname), "claim": claim,
        "pod": holder.and_then(|l| l.holder.pod.as_ref()), "since": holder.map(|l| &l.since), "error": error})
}
