//! `railctl discover`: proposes the rails of node.json, by leaves, plan and PCI, with the reason of
//! each row.

mod judge;
mod pci;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Value, json};

use super::cables::{self, Heard, Neighbour};
use super::inventory::Inventory;
use crate::output::{self, Output};
use judge::{Row, Seen, judge};
use pci::Device;
use rail_cni::device::allowed::{refuse_addresses, refuse_parts};
use rail_cni::failure;
use rail_cni::node::Node;
use rail_cni::pool::{LeafPort, rail_in, store};
use rail_cni::sysfs::{DeviceId, Function};
use rail_cni::watchdog;
use rail_netlink::link::{self, Link};
use rail_netlink::{Socket, address};

/// Arguments of `railctl discover`.
#[derive(Debug, Args)]
pub struct DiscoverArgs {
    /// How long to listen for LLDP at most; 0: do not listen
    #[arg(long, value_name = "SECONDS", default_value_t = 35, value_parser = clap::value_parser!(u32).range(0..=600))]
    timeout: u32,
    /// Write the proposal to this file, which must not exist
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// Looks at all NICs, and proposes.
pub fn discover(node: &Node, args: &DiscoverArgs, output: Output) -> Result<ExitCode> {
    let time = Duration::from_secs(args.timeout.into());
    watchdog::allow(time + node.call_timeout());
    let pci = pci::scan(&node.sysfs_root)?;
    let seen = see(&pci.nics, node, time)?;
    let rows = judge(seen, &pci);
    let proposal = proposal(&rows);
    let candidates: Vec<_> = rows.iter().filter(|row| row.is_candidate()).collect();
    let is_clear = candidates
        .iter()
        .all(|row| row.rail.is_some() && row.contradictions.is_empty());
    let is_clear = is_clear && !candidates.is_empty();
    if let Some(path) = &args.write {
        if !is_clear {
            let what =
                "nothing is written, because not every row is certain: see `railctl discover`";
            return Err(failure!(InvalidConfig, "{}: {what}", path.display()));
        }
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(path);
        let written = file
            .as_mut()
            .map_err(|error| std::io::Error::new(error.kind(), error.to_string()));
        written
            .and_then(|file| file.write_all(proposal.as_bytes()))
            .with_context(|| format!("cannot write {}: it already exists", path.display()))?;
    }
    output::print(&match output {
        Output::Json => output::pretty(
            &json!({"gpus": pci.gpus.iter().map(|gpu| &gpu.id).collect::<Vec<_>>(),
            "nics": rows.iter().map(json_of).collect::<Vec<_>>(), "isCertain": is_clear}),
        ),
        Output::Table => table(&rows, &proposal),
    })?;
    Ok(if is_clear {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Looks at each NIC, and listens on all at once.
fn see(nics: &[Device], node: &Node, time: Duration) -> Result<Vec<Seen>> {
    let mut host = Socket::open()?;
    let deadline = Instant::now() + time;
    let planned = cables::planned(node);
    let mut links = Vec::new();
    for nic in nics {
        links.push(netdev(nic, node, &mut host)?);
    }
    let vf_macs = Inventory::take(node)?.vf_macs()?;
    let vf_macs = &vf_macs;
    let heard: Vec<Option<Heard>> = thread::scope(|scope| {
        let listen = |link: &Link| match cables::neighbour(link, vf_macs, deadline) {
            Ok(heard) => Some(heard),
            Err(error) => {
                output::say(&format!("{error:#}"));
                None
            }
        };
        let can_hear = |link: &&Link| !time.is_zero() && link.carrier;
        let threads: Vec<_> = links
            .iter()
            .map(|link| scope.spawn(move || link.as_ref().filter(can_hear).and_then(listen)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().ok().flatten())
            .collect()
    });
    let mut all = Vec::new();
    for ((nic, link), heard) in nics.iter().zip(links).zip(heard) {
        let by_address = link
            .as_ref()
            .map_or(Ok(None), |link| rail_of_address(link, node, &mut host))?;
        let host_use = link.as_ref().and_then(|link| {
            let used = refuse_parts(&link.name, link, node, &mut host)
                .and_then(|()| refuse_addresses(&link.name, link, &mut host));
            used.err().map(|error| format!("{error:#}"))
        });
        let is_its = |row: &&rail_cni::node::RailPf| {
            row.pf.eq_ignore_ascii_case(&nic.id)
                || link.as_ref().is_some_and(|link| link.name == row.pf)
        };
        let mut by_leaf = None;
        let mut leaf = None;
        let mut neighbours = None;
        match &heard {
            Some(Heard::Neighbour(neighbour)) => {
                by_leaf = rail_of_leaf(neighbour, &planned);
                leaf = Some(cables::described(neighbour));
            }
            Some(Heard::Two(both)) => {
                neighbours = Some(format!("two neighbours: {}", cables::described_both(both)));
            }
            Some(Heard::Nobody(_) | Heard::Lost(_)) | None => {}
        }
        all.push(Seen {
            by_leaf,
            leaf,
            neighbours,
            by_address,
            host_use,
            present: node.rails.iter().find(is_its).map(|row| row.rail),
            netdev: link.map(|link| link.name),
            nic: nic.clone(),
        });
    }
    Ok(all)
}

fn netdev(nic: &Device, node: &Node, host: &mut Socket) -> Result<Option<Link>> {
    let Some(id) = DeviceId::parse(&nic.id) else {
        return Ok(None);
    };
    let function = Function::find(&node.sysfs_root, &id)?;
    let name = function
        .map(|function| function.netdev())
        .transpose()?
        .flatten();
    name.map_or(Ok(None), |name| link::by_name(host, &name))
}

/// The only rail that the plan has this end for.
fn rail_of_leaf(heard: &Neighbour, planned: &[(u8, LeafPort)]) -> Option<u8> {
    let here = planned
        .iter()
        .filter(|(_, port)| port.port.is_some() && cables::is_at(heard, port) == Some(true));
    let mut rails: Vec<_> = here.map(|(rail, _)| *rail).collect();
    rails.dedup();
    match rails[..] {
        [rail] => Some(rail),
        _ => None,
    }
}

/// The rail whose prefix has an address of the netdev.
fn rail_of_address(link: &Link, node: &Node, host: &mut Socket) -> Result<Option<u8>> {
    let addresses = address::all(host, link.index)?;
    let is_here =
        |prefix: ipnet::IpNet| addresses.iter().any(|one| prefix.contains(&one.net.addr()));
    let pools = store::allocations(node);
    let found = pools
        .iter()
        .find(|(_, allocation)| is_here(allocation.prefix));
    Ok(found.and_then(|(pool, allocation)| allocation.rail.or_else(|| rail_in(pool))))
}

/// A node.json of what is known.
fn proposal(rows: &[Row]) -> String {
    let mut rails: Vec<_> = rows
        .iter()
        .filter_map(|row| Some((row.rail?, &row.seen.nic.id)))
        .collect();
    rails.sort();
    let lines: Vec<_> = rails
        .iter()
        .map(|(rail, pf)| format!("    {{\"rail\": {rail}, \"pf\": {}}}", json!(pf)))
        .collect();
    let is_in_order = rails.is_sorted_by(|one, other| one.1 <= other.1);
    let order = if is_in_order {
        ""
    } else {
        "  \"railsInPciOrder\": false,\n"
    };
    format!(
        "{{\n{order}  \"rails\": [\n{}\n  ]\n}}\n",
        lines.join(",\n")
    )
}

fn table(rows: &[Row], proposal: &str) -> String {
    let mut text = output::table(
        &["RAIL", "NIC", "NETDEV", "GPU", "LEAF", "REASON"],
        rows.iter().map(|row| {
            let gpus: Vec<_> = row.gpus.iter().map(|(gpu, _)| gpu.as_str()).collect();
            let rail = match (row.rail, row.is_candidate()) {
                (Some(rail), _) => rail.to_string(),
                (None, true) => "?".to_owned(),
                (None, false) => String::new(),
            };
            let Seen {
                nic, netdev, leaf, ..
            } = &row.seen;
            let reasons = row.reasons.join("; ");
            vec![
                rail,
                nic.id.clone(),
                netdev.clone().unwrap_or_default(),
                gpus.join(","),
                leaf.clone().unwrap_or_default(),
                reasons,
            ]
        }),
    );
    let against = rows.iter().flat_map(|row| {
        row.contradictions
            .iter()
            .map(|text| (&row.seen.nic.id, text))
    });
    let lines: Vec<_> = against
        .map(|(nic, text)| output::line(&format!("{nic}: {text}")))
        .collect();
    if !lines.is_empty() {
        text += "\n";
    }
    text.extend(lines);
    text + "\n" + proposal
}

/// The help of the verb lists these keys: new keys may be added, but none may change its meaning.
fn json_of(row: &Row) -> Value {
    let gpus = row
        .gpus
        .iter()
        .map(|(gpu, near)| json!({"gpu": gpu, "near": near.text()}));
    json!({"rail": row.rail, "nic": row.seen.nic.id, "netdev": row.seen.netdev, "isCandidate": row.is_candidate(),
        "gpus": gpus.collect::<Vec<_>>(), "leaf": row.seen.leaf, "reasons": row.reasons, "contradictions": row.contradictions})
}
