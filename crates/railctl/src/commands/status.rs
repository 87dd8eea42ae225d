//! `railctl status`: the rails of this node, and the pods that have them.

mod page;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde_json::{Value, json};

use super::inventory::{Attached, Inventory, Rail, RdmaMode, counted, link_state, rdma_counted};
use super::left;
use super::rebuild::{Lost, REMEDY};
use super::taps::Tapped;
use crate::output::{self, Output};
use rail_cni::attach::attachments::{Attachment, State};
use rail_cni::node::Node;
use rail_cni::pool::is_same_rail;
use rail_cni::sysfs::Function;

const RAILS: [&str; 10] = [
    "RAIL", "PF", "NETDEV", "LINK", "MTU", "VFS", "ATTACHED", "DEAD", "FREE", "RDMA",
];
const ATTACHMENTS: [&str; 11] = [
    "RAIL",
    "DEVICE",
    "POD",
    "INTERFACE",
    "ADDRESS",
    "MTU",
    "LINK",
    "RDMA",
    "GID",
    "AGE",
    "STATE",
];
const NO_RAILS: &str = "this node has no rails: node.json lists none, and no NIC has SR-IOV";

/// Prints the inventory and what there is to do. The exit status is 1 when there is something to
/// do.
pub fn status(node: &Node, output: Output) -> Result<ExitCode> {
    show(node, |name, inventory, todo| match output {
        Output::Json => output::pretty(&json(name, inventory, todo)),
        Output::Table => text(name, inventory, todo, SystemTime::now()),
    })
}

/// Prints the status as a page for a browser.
pub fn status_page(node: &Node) -> Result<ExitCode> {
    show(node, |name, inventory, todo| {
        page::page(name, inventory, todo, SystemTime::now())
    })
}

fn show(
    node: &Node,
    render: impl FnOnce(&str, &Inventory, &[String]) -> String,
) -> Result<ExitCode> {
    let inventory = Inventory::take(node)?;
    let todo = todo(node, &inventory);
    output::print(&render(&node.name()?, &inventory, &todo))?;
    Ok(if todo.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Numbers of a rail's VFs.
struct Count {
    enabled: usize,
    attached: usize,
    dead: usize,
    lost: usize,
    /// Free and without a driver: no pod can get them.
    unbound: usize,
}

impl Count {
    fn of(rail: &Rail, inventory: &Inventory) -> Count {
        let held = rail
            .vfs
            .iter()
            .filter(|vf| inventory.is_held(&vf.function))
            .count();
        let holders = rail
            .vfs
            .iter()
            .filter_map(|vf| inventory.holder(&vf.function));
        let dead = holders
            .filter(|holder| holder.is_left_over() || holder.is_missing())
            .count();
        let lost = rail
            .vfs
            .iter()
            .filter(|vf| inventory.lost(&vf.function).is_some())
            .count();
        let is_unbound = |function: &Function| {
            function.driver().is_none()
                && !inventory.is_held(function)
                && inventory.lost(function).is_none()
        };
        let unbound = rail
            .vfs
            .iter()
            .filter(|vf| is_unbound(&vf.function))
            .count();
        Count {
            enabled: rail.vfs.len(),
            attached: held - dead,
            dead,
            lost,
            unbound,
        }
    }

    fn free(&self) -> usize {
        self.enabled - self.attached - self.dead - self.lost - self.unbound
    }
}

/// The state of the PF's link, or the reason why the host has no link for it.
pub fn pf_link(rail: &Rail, inventory: &Inventory) -> &'static str {
    match (&rail.link, &rail.function) {
        (Some(link), _) => link_state(link),
        (None, Some(pf)) if inventory.is_held(pf) => "in-pod",
        (None, Some(pf)) if pf.is_userspace() => "userspace",
        (None, None) => "missing",
        (None, Some(_)) => "no-netdev",
    }
}

/// Numbers of the rail's planes with a carrier, where a pod has a minimum.
fn planes(rail: &Rail, inventory: &Inventory) -> String {
    let Some(number) = rail.rail else {
        return String::new();
    };
    let of_rail = inventory.attachments.iter().filter(|one| one.is_live());
    let of_rail = of_rail.filter(|one| {
        one.record
            .owner
            .rail
            .is_some_and(|other| is_same_rail(number, other))
    });
    let Some(min) = of_rail.filter_map(|one| one.record.owner.min_planes).max() else {
        return String::new();
    };
    let (up, all) = inventory.planes(number);
    format!(" ({up} of the rail's {all} planes have one; minPlanes {min})")
}

/// Tasks for the operator, a line each.
fn todo(node: &Node, inventory: &Inventory) -> Vec<String> {
    let mut todo = Vec::new();
    for rail in &inventory.rails {
        let (title, name) = (
            rail.title(),
            rail.link.as_ref().map_or(rail.pf(), |link| &link.name),
        );
        let holder = rail.function.as_ref().and_then(|pf| inventory.holder(pf));
        let is_left = holder.is_some_and(|one| one.is_left_over() || one.is_missing());
        match pf_link(rail, inventory) {
            // A DEL leaves a PF as it was, and the next ADD brings it up. What a dead pod left is
            // reported below.
            "down" if inventory.is_pf_mode(node) || is_left => (),
            "missing" => todo.push(format!(
                "{title}: the node has no PF {name}: repair the NIC, or correct node.json"
            )),
            "down" => todo.push(format!(
                "{title}: {name} is down: run `ip link set {name} up`"
            )),
            "no-carrier" => {
                let planes = planes(rail, inventory);
                todo.push(format!(
                    "{title}: {name} has no carrier{planes}: check the cable and the leaf port"
                ))
            }
            "no-netdev" => todo.push(format!("{title}: {name} has no netdev: bind its driver")),
            _ => (),
        }
    }
    for one in &inventory.attachments {
        let owner = &one.record.owner;
        let of = owner
            .pod
            .as_ref()
            .map_or_else(|| owner.container_id.clone(), |pod| format!("pod {pod}"));
        let what = format!("{} of {of}", owner.ifname);
        if let Some(tapped) = &one.tapped {
            let tap = tapped.describe();
            let remedy = tapped.remedy();
            todo.push(format!("{what} is tapped: {tap}: {remedy}"));
        }
        match &one.state {
            State::Live(Some(link)) if !link.up => todo.push(format!("{what} is down")),
            State::Live(Some(link)) if !link.carrier => todo.push(format!("{what} has no carrier")),
            _ if one.is_busy => (),
            State::Elsewhere => {
                todo.push(format!(
                    "{what}: {} is {}",
                    owner.device.id,
                    one.elsewhere()
                ));
            }
            State::Missing => {
                let id = &owner.device.id;
                let how = one.how_to_end();
                todo.push(format!(
                    "{what}: {id} has not returned from the pod, which is gone: {how}"
                ));
            }
            State::Unknown(why) => {
                todo.push(format!(
                    "{what}: cannot tell whether its pod is alive: {why}"
                ));
            }
            State::Lost => todo.push(format!(
                "{what}: {} is on the host, and the pod is alive: {}",
                owner.device.id,
                one.remedy_of_loss()
            )),
            State::Live(_) | State::OnHost | State::Dead | State::CutOff => (),
        }
    }
    if inventory.is_emptied {
        todo.push(
            "the run directory was emptied, and no pod gets an address: run `railctl reap --rebuild`"
                .to_owned(),
        );
    }
    for lost in &inventory.lost {
        todo.push(format!("{}: {REMEDY}", lost.describe()));
    }
    let left = inventory
        .attachments
        .iter()
        .filter(|one| one.is_left_over())
        .count();
    if left > 0 {
        let what = if left == 1 {
            "1 device is".to_owned()
        } else {
            format!("{left} devices are")
        };
        todo.push(format!(
            "{what} stale: the next ADD restores it; to do so now, run `railctl reap`"
        ));
    }
    for record in inventory
        .pending
        .iter()
        .filter(|record| record.is_left_in_vain())
    {
        let id = &record.owner.container_id;
        todo.extend(left::lines(record).into_iter().map(|line| {
            format!(
                "pending for {line}; run `railctl reap` to try again, or `railctl reap --forget {id}` to give up"
            )
        }));
    }
    for name in &inventory.unreadable {
        todo.push(format!(
            "the record {name} cannot be read: if no pod has its device, run `railctl reap --forget {name}`"
        ));
    }
    todo
}

fn rdma_mode(inventory: &Inventory) -> &'static str {
    match inventory.rdma {
        RdmaMode::Absent => "this kernel has no RDMA",
        RdmaMode::Shared => "RDMA is in shared mode",
        RdmaMode::Exclusive => "RDMA is in exclusive mode",
    }
}

fn text(node_name: &str, inventory: &Inventory, todo: &[String], now: SystemTime) -> String {
    let rdma = rdma_mode(inventory);
    let mut text = rail_cni::log::printable(&format!("node {node_name}, {rdma}")) + "\n";
    if inventory.rails.is_empty() {
        text += NO_RAILS;
        text += "\n";
    } else {
        text += "\n";
        text += &output::table(
            &RAILS,
            inventory.rails.iter().map(|rail| rail_row(rail, inventory)),
        );
    }
    if !inventory.attachments.is_empty() {
        text += "\n";
        text += &output::table(
            &ATTACHMENTS,
            inventory
                .attachments
                .iter()
                .map(|one| row(one, inventory, now)),
        );
    }
    let gids = gid_indexes(&inventory.attachments);
    if !gids.is_empty() {
        text += "\n";
        text.extend(gids.iter().map(|line| output::line(line)));
    }
    if !todo.is_empty() {
        text += "\n";
        text.extend(todo.iter().map(|line| output::line(line)));
    }
    text
}

/// The value of NCCL_IB_GID_INDEX for each pod: NCCL takes one number for all rails.
fn gid_indexes(attachments: &[Attached]) -> Vec<String> {
    let mut pods: BTreeMap<(String, &str), Vec<&Attachment>> = BTreeMap::new();
    let with_gids = |one: &&Attached| one.is_live() && !one.record.gids().is_empty();
    for record in attachments.iter().filter(with_gids).map(|one| &one.record) {
        let owner = &record.owner;
        let pod = owner.pod.as_ref();
        let pod = pod.map_or_else(
            || format!("container {}", owner.container_id),
            |pod| format!("pod {pod}"),
        );
        pods.entry((pod, &owner.container_id))
            .or_default()
            .push(record);
    }
    let told = pods.into_iter().map(|((pod, _), records)| {
        // The first address of each rail: the others are of the other family.
        let first: BTreeSet<u32> = records.iter().filter_map(|record| Some(record.gids().first()?.index)).collect();
        match first.iter().collect::<Vec<_>>()[..] {
            [index] => format!("{pod}: NCCL_IB_GID_INDEX={index}"),
            _ => format!("{pod}: its rails have different GID indexes: leave NCCL_IB_GID_INDEX unset (NCCL 2.21 or later)"),
        }
    });
    told.collect()
}

fn rail_row(rail: &Rail, inventory: &Inventory) -> Vec<String> {
    let count = Count::of(rail, inventory);
    let max = rail.function.as_ref().map_or(0, |pf| pf.max_vf_count());
    vec![
        rail.rail.map(|rail| rail.to_string()).unwrap_or_default(),
        rail.pf().to_owned(),
        rail.link
            .as_ref()
            .map(|link| link.name.clone())
            .unwrap_or_default(),
        pf_link(rail, inventory).to_owned(),
        rail.link
            .as_ref()
            .map(|link| link.mtu.to_string())
            .unwrap_or_default(),
        format!("{}/{max}", count.enabled),
        count.attached.to_string(),
        count.dead.to_string(),
        count.free().to_string(),
        rail.rdma.join(","),
    ]
}

/// The RDMA devices of an attachment: those that were moved into the pod, or in shared mode those
/// of its device.
fn rdma_of(one: &Attached, inventory: &Inventory) -> Vec<String> {
    let vfs = inventory
        .rails
        .iter()
        .flat_map(|rail| &rail.vfs)
        .map(|vf| &vf.function);
    let pfs = inventory
        .rails
        .iter()
        .filter_map(|rail| rail.function.as_ref());
    let function = vfs
        .chain(pfs)
        .find(|function| one.record.owner.device.is_of(&function.id));
    match function {
        Some(function) if one.rdma.is_empty() && one.is_live() => function.rdma_devices(),
        _ => one.rdma.clone(),
    }
}

fn row(one: &Attached, inventory: &Inventory, now: SystemTime) -> Vec<String> {
    let (owner, link) = (&one.record.owner, one.link());
    // crictl shows container ids in this length.
    let container = || {
        format!(
            "container:{}",
            owner.container_id.chars().take(13).collect::<String>()
        )
    };
    vec![
        owner.rail.map(|rail| rail.to_string()).unwrap_or_default(),
        owner.device.id.clone(),
        owner.pod.clone().unwrap_or_else(container),
        owner.interface(),
        one.addresses.join(","),
        link.map(|link| link.mtu.to_string()).unwrap_or_default(),
        link.map(|link| link_state(link).to_owned())
            .unwrap_or_default(),
        rdma_of(one, inventory).join(","),
        one.record
            .gids()
            .iter()
            .map(|gid| gid.index.to_string())
            .collect::<Vec<_>>()
            .join(","),
        age(&owner.since, now),
        one.word().to_owned(),
    ]
}

/// The age as one number with a unit, as kubectl shows it; empty for a time in the future.
fn age(since: &str, now: SystemTime) -> String {
    let since = humantime::parse_rfc3339(since).ok();
    let age = since.and_then(|since| now.duration_since(since).ok());
    age.map_or_else(String::new, |age: Duration| match age.as_secs() {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7_200 => format!("{}m", seconds / 60),
        seconds @ 7_200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    })
}

/// The help of the verb lists these keys: new keys may be added, but none may change its meaning.
fn json(node_name: &str, inventory: &Inventory, todo: &[String]) -> Value {
    let rdma = match inventory.rdma {
        RdmaMode::Absent => Value::Null,
        RdmaMode::Shared => "shared".into(),
        RdmaMode::Exclusive => "exclusive".into(),
    };
    let rails = inventory.rails.iter().map(|rail| {
        let (count, pf) = (Count::of(rail, inventory), rail.function.as_ref());
        let functions = pf.into_iter().chain(rail.vfs.iter().map(|vf| &vf.function));
        let rdma = functions.map(|function| (&function.id, rdma_counted(function)));
        let rdma: BTreeMap<_, _> = rdma.filter(|(_, counted)| !counted.is_empty()).collect();
        json!({
            "rail": rail.rail,
            "pf": {"name": rail.named, "pciID": pf.map(|pf| &pf.id), "netdev": rail.link.as_ref().map(|link| &link.name),
                "driver": pf.and_then(|pf| pf.driver()), "link": pf_link(rail, inventory),
                "mtu": rail.link.as_ref().map(|link| link.mtu), "rdma": rail.rdma,
                "counted": rail.link.as_ref().and_then(|link| counted(link.index).ok())},
            "rdmaCounted": rdma,
            "vfs": {"max": pf.map_or(0, |pf| pf.max_vf_count()), "enabled": count.enabled,
                "attached": count.attached, "dead": count.dead, "lost": count.lost, "free": count.free()},
        })
    });
    let attachments = inventory.attachments.iter().map(|one| {
        let (record, owner, link) = (&one.record, &one.record.owner, one.link());
        json!({
            "rail": owner.rail, "state": one.word(), "network": owner.network, "pod": owner.pod,
            "containerID": owner.container_id, "ifname": owner.ifname, "part": owner.part, "netns": owner.netns.path,
            "since": owner.since, "device": owner.device.id, "pf": owner.device.pf,
            "addresses": one.addresses,
            "mtu": link.map(|link| link.mtu), "mac": link.map(|link| &link.mac),
            "source": record.has_host_addresses().then_some("host"), "minPlanes": owner.min_planes,
            "link": link.map(link_state), "rdma": rdma_of(one, inventory), "gids": record.gids(),
            "reattached": record.reattached(), "error": one.error(), "tapped": one.tapped.as_ref().map(Tapped::json),
            "away": one.away.as_ref().map(|away| json!({"interface": away.ifname, "netns": away.netns, "pod": away.pod})),
        })
    });
    let pending: Vec<_> = inventory.pending.iter().map(left::json).collect();
    json!({"node": node_name, "rdma": rdma, "rails": rails.collect::<Vec<_>>(),
        "attachments": attachments.collect::<Vec<_>>(), "pending": pending, "unreadable": inventory.unreadable,
        "emptied": inventory.is_emptied, "lost": inventory.lost.iter().map(Lost::json).collect::<Vec<_>>(), "todo": todo})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_one_number() {
        let now = humantime::parse_rfc3339("2026-11-21T12:00:00Z").unwrap();
        for (since, shown) in [
            ("2026-11-21T12:00:00Z", "0s"),
            ("2026-11-21T11:58:01Z", "119s"),
            ("2026-11-21T11:58:00Z", "2m"),
            ("2026-11-21T10:00:00Z", "2h"),
            ("2026-11-19T12:00:00Z", "2d"),
            ("2026-11-21T12:00:01Z", ""),
            ("yesterday", ""),
        ] {
            assert_eq!(age(since, now), shown, "{since}");
        }
    }
}
