//! `railctl release`: releases leases on request of the operator.

use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::leases::{State, lease_json, state_of};
use crate::output::{self, Output, pretty, print};
use rail_cni::ipam::lease::Lease;
use rail_cni::ipam::names::Entry;
use rail_cni::ipam::table::{self, Table};
use rail_cni::node::Node;

/// Arguments of `railctl release`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("which").required(true).multiple(true).args(["container", "claim", "address", "dead"])))]
pub struct ReleaseArgs {
    /// Release the leases of this container
    #[arg(long, value_name = "ID")]
    container: Option<String>,
    /// Only the lease of this interface of the container
    #[arg(long, value_name = "NAME", requires = "container")]
    ifname: Option<String>,
    /// Release the leases of this resource claim
    #[arg(long, value_name = "UID")]
    claim: Option<String>,
    /// Only the lease of this device of the claim
    #[arg(long, value_name = "NAME", requires = "claim")]
    device: Option<String>,
    /// Release the lease of this address
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// Release the leases of dead pods
    #[arg(long)]
    dead: bool,
    /// Only leases of this pool
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Release even leases that may be in use
    #[arg(long, conflicts_with = "dead")]
    force: bool,
}

/// `railctl release`.
pub fn release(node: &Node, args: &ReleaseArgs, output: Output) -> Result<ExitCode> {
    node.check_place(None)?;
    let (mut released, mut refused, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    let table = Table::existing(node)?;
    let _lock = table.as_ref().map(Table::lock).transpose()?;
    for (entry, lease) in table::read_all(node)? {
        let state = state_of(&lease, node)?;
        if !args.selects(&entry, lease.as_ref().ok(), &state) {
            // It may be one of that container.
            unknown.extend(lease.err().filter(|_| args.container.is_some()));
            continue;
        }
        let mut json = lease_json(&entry, &lease, &state);
        json["node"] = lease.as_ref().ok().map(|lease| &*lease.node_name).into();
        json["pool"] = lease.as_ref().ok().map(|lease| &*lease.pool).into();
        let claim = lease
            .as_ref()
            .ok()
            .and_then(|lease| lease.holder.claim.clone());
        let who = match &lease {
            Ok(lease) => format!("of pool {} from {}", lease.pool, lease.holder),
            Err(_) => "from unknown".to_owned(),
        };
        let text = format!("{} {who} ({})", entry.address, state.word());
        let kept = match state {
            State::Live if args.claim.is_some() => claim
                .map(|claim| claim.is_away(node))
                .transpose()?
                .flatten(),
            State::Live if claim.is_some() => Some("its claim has not ended".to_owned()),
            State::Live => Some("its network namespace exists".to_owned()),
            State::Unknown(why) => Some(format!("cannot tell whether it is alive: {why}")),
            State::Dead | State::Unreadable => None,
        };
        match (kept.filter(|_| !args.force), &table) {
            (None, Some(table)) => {
                table.remove(&entry)?;
                released.push((text, json));
            }
            (why, _) => refused.push((format!("{text}: {}", why.unwrap_or_default()), json)),
        }
    }

    let jsons = |list: &[(String, Value)]| {
        list.iter()
            .map(|(_, json)| json.clone())
            .collect::<Vec<_>>()
    };
    match output {
        Output::Json => {
            print(&pretty(
                &json!({"released": jsons(&released), "refused": jsons(&refused)}),
            ))?;
        }
        Output::Table => {
            print(
                &released
                    .iter()
                    .map(|(text, _)| format!("released {text}\n"))
                    .collect::<String>(),
            )?;
        }
    }
    for (text, _) in &refused {
        let how = if args.dead {
            "`release --address` with --force"
        } else {
            "--force"
        };
        output::say(&format!("refused {text}; {how} releases it all the same"));
    }
    unknown.iter().for_each(|why| output::say(why));
    if !unknown.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    if released.is_empty() && refused.is_empty() {
        output::say("no such lease: `railctl leases --all-nodes` prints all leases");
        // A clean-up usually has nothing to do, and who releases a claim again should succeed. Else
        // a lease that was named should exist.
        let is_done = args.dead || args.claim.is_some();
        return Ok(if is_done {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    }
    Ok(if refused.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl ReleaseArgs {
    fn selects(&self, entry: &Entry, lease: Option<&Lease>, state: &State) -> bool {
        let holder = lease.map(|lease| &lease.holder);
        let is = |wanted: &Option<String>, value: Option<&String>| {
            wanted.as_ref().is_none_or(|wanted| value == Some(wanted))
        };
        let claimed = holder.filter(|holder| holder.claim.is_some());
        let attached = holder.filter(|holder| holder.claim.is_none());
        is(&self.container, attached.map(|holder| &holder.container_id))
            && is(&self.ifname, attached.map(|holder| &holder.ifname))
            && is(&self.claim, claimed.map(|holder| &holder.container_id))
            && is(&self.device, claimed.map(|holder| &holder.ifname))
            && self.address.is_none_or(|address| address == entry.address)
            && self.pool.as_ref().is_none_or(|pool| match lease {
                Some(lease) => lease.pool == *pool,
                // Its pool is unknown, so its address must be named.
                None => self.address.is_some(),
            })
            // Leases in the state unknown are selected so that they are refused by name.
            && (!self.dead || matches!(state, State::Dead | State::Unknown(_)))
    }
}
