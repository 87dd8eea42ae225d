//! The sources of a plan, and what is written of it: other programs and this one read that again.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use rail_plan::document::{Text, parse};
use rail_plan::nads::Form;
use rail_plan::refusal::Refusal;
use rail_plan::scheme::{Family, Mode, Polarity, Scheme, Tiers};
use rail_plan::template::Template;
use rail_plan::{File, Plan, Pools};
use serde_json::Value;

use crate::directory::Directory;
use crate::input::{choice, line, parts};
use crate::judge;

/// Each end of each link, by the name of its node: prefix and leaf.
type Ends = BTreeMap<String, Vec<(IpNet, Option<IpAddr>)>>;

/// Checks a plan as `railctl plan` does, and writes it as everything.
fn checked(plan: &mut Plan) -> Option<Pools> {
    let pools = match plan.check() {
        Ok(pools) => pools,
        Err(faults) => {
            faults
                .iter()
                .for_each(|fault| assert!(!fault.to_string().is_empty()));
            return None;
        }
    };
    let mut prefixes = BTreeMap::new();
    for (pool, nodes) in &pools {
        for (node, allocation) in nodes {
            judge::allocation(allocation);
            let other = prefixes.insert(allocation.prefix, (pool, node));
            assert!(
                other.is_none(),
                "{} is that of {pool} {node} and {other:?}",
                allocation.prefix
            );
        }
    }
    files(rail_plan::csv::write(plan, &pools));
    files(rail_plan::html::write(plan));
    files(rail_plan::volcano::write(plan));
    files(rail_plan::slurm::write(
        plan,
        rail_plan::slurm::Plugin::Tree,
    ));
    let nvue = Template::nvue().and_then(|template| template.write(plan, &pools));
    for file in files(nvue) {
        let is_command = |line: &str| line.starts_with("nv set ") || line.starts_with('#');
        assert!(file.text.lines().all(is_command), "{}", file.text);
    }
    let sonic = Template::sonic().and_then(|template| template.write(plan, &pools));
    for file in files(sonic) {
        serde_json::from_str::<Value>(&file.text).expect("it is JSON");
    }
    let each = rail_plan::nads::Networks::default();
    let one = rail_plan::nads::Networks {
        is_one: true,
        resource: None,
    };
    for networks in [each, one] {
        let policies = files(rail_plan::nics::sriov_node_policy(plan, &networks, None));
        for file in files(rail_plan::nads::write(plan, &networks, Form::List, None))
            .into_iter()
            .chain(policies)
        {
            parse(&file.name, file.text.as_bytes()).expect("it is YAML");
        }
    }
    // A plan with doubts is written only if somebody allows it.
    match std::mem::take(&mut plan.doubts).refuse() {
        Ok(()) => Some(pools),
        Err(refusal) => {
            lines(refusal);
            None
        }
    }
}

fn files(written: anyhow::Result<Vec<File>>) -> Vec<File> {
    match written {
        Ok(files) => {
            for file in &files {
                assert!(
                    !file.name.contains('/') && !file.name.starts_with('.'),
                    "{}",
                    file.name
                );
            }
            files
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Vec::new()
        }
    }
}

fn ends(pools: &Pools) -> Ends {
    let mut ends = Ends::new();
    for (node, allocation) in pools.values().flatten() {
        ends.entry(node.clone())
            .or_default()
            .push((allocation.prefix, allocation.gateway));
    }
    ends.values_mut().for_each(|all| all.sort());
    ends
}

/// Manifests for nv-ipam are read as the same plan.
fn as_manifests(plan: &mut Plan, pools: &Pools) {
    let written = files(rail_plan::manifest::write(plan, None));
    if written.is_empty() {
        return;
    }
    let documents = written
        .iter()
        .flat_map(|file| parse(&file.name, file.text.as_bytes()).expect("YAML"));
    let mut again =
        rail_plan::manifest::read(&documents.collect::<Vec<_>>()).expect("its own manifests");
    assert_eq!(ends(&again.check().expect("it was sound")), ends(pools));
}

/// Files for hosts are read as the same addresses.
fn as_netplan(plan: &Plan, pools: &Pools) {
    let written = files(rail_plan::netplan::write(plan));
    if written.is_empty() {
        return;
    }
    let directory = Directory::new();
    for file in &written {
        directory.write(&format!("hosts/{}", file.name), file.text.as_bytes());
    }
    // A host without a gateway, or with a prefix that no rail has, is no rail by itself.
    let Ok(mut again) =
        rail_plan::netplan::read(&[directory.path("hosts").display().to_string()], |_| ())
    else {
        return;
    };
    if let Ok(again_pools) = again.check() {
        let (again_ends, ends) = (ends(&again_pools), ends(pools));
        for (node, found) in &again_ends {
            let of_node = ends.get(node).unwrap_or_else(|| panic!("{node} is new"));
            for end in found {
                assert!(
                    of_node.contains(end),
                    "{node}: {end:?} is not one of {of_node:?}"
                );
            }
        }
        assert_eq!(files(rail_plan::netplan::write(&again)), written);
    }
}

/// Manifests, in one file.
pub fn manifest(data: &[u8]) {
    let Ok(documents) = parse("pools.yaml", data) else {
        return;
    };
    let mut plan = match rail_plan::manifest::read(&documents) {
        Ok(plan) => plan,
        Err(error) => return refused(&error),
    };
    if let Some(pools) = checked(&mut plan) {
        as_manifests(&mut plan, &pools);
    }
}

fn refused(error: &anyhow::Error) {
    error.to_string().lines().for_each(judge::message);
}

/// Choices: tiers, mode, family, polarity, the first octet. Then one or two files.
pub fn topology(data: &[u8]) {
    let (choices, rest) = line(data);
    let scheme = Scheme {
        tiers: [Tiers::Two, Tiers::Three][choice(choices, 0, 2)],
        mode: [Mode::None, Mode::Swplb, Mode::Hwplb][choice(choices, 1, 3)],
        family: [Family::Ipv4, Family::Ipv6, Family::Dual][choice(choices, 2, 3)],
        polarity: [Polarity::LeafOdd, Polarity::LeafEven][choice(choices, 3, 2)],
        first_octet: [172, 10, 11, 223, 1][choice(choices, 4, 5)],
    };
    let files = parts(rest, 2).into_iter().enumerate();
    let texts: Vec<_> = files
        .map(|(number, text)| Text {
            file: format!("{number}.json"),
            bytes: text.to_vec(),
        })
        .collect();
    let _ = rail_plan::topology::is_topology(&texts[0]);
    let mut plan = match rail_plan::topology::read(&texts, &scheme, Some(9000), &[]) {
        Ok(plan) => plan,
        Err(refusal) => return lines(refusal),
    };
    if let Some(pools) = checked(&mut plan) {
        as_manifests(&mut plan, &pools);
        as_netplan(&plan, &pools);
    }
}

fn lines(refusal: Refusal) {
    refused(&anyhow::Error::from(refusal));
}

/// A fabric file, of a fabric that is not large.
pub fn fabric(data: &[u8]) {
    let Ok(documents) = parse("fabric.yaml", data) else {
        return;
    };
    let Some(document) = documents.first() else {
        return;
    };
    if !is_small(&document.value) {
        return;
    }
    let mut plan = match rail_plan::fabric::read(std::slice::from_ref(document)) {
        Ok(plan) => plan,
        Err(error) => return refused(&error),
    };
    if let Some(pools) = checked(&mut plan) {
        as_manifests(&mut plan, &pools);
        as_netplan(&plan, &pools);
    }
}

/// Whether the fabric has no more than some hundred links. A page can describe eight million, which
/// takes seconds.
fn is_small(value: &Value) -> bool {
    let of = |key: &str| match value.get(key) {
        Some(Value::Array(list)) => list.iter().map(|one| one.as_u64().unwrap_or(1)).sum(),
        Some(number) => number.as_u64().unwrap_or(1).max(1),
        None => 1,
    };
    let factors = ["rails", "planes", "sus", "pods", "hostsPerSU"].map(of);
    factors
        .into_iter()
        .try_fold(1u64, |product, factor| product.checked_mul(factor))
        .is_some_and(|links| links <= 256)
}

/// Parts: the netplan files of two hosts.
pub fn netplan(data: &[u8]) {
    let directory = Directory::new();
    for (number, text) in parts(data, 2).into_iter().enumerate() {
        directory.write(&format!("hosts/worker-{number}.yaml"), text);
    }
    let mut plan =
        match rail_plan::netplan::read(&[directory.path("hosts").display().to_string()], |_| ()) {
            Ok(plan) => plan,
            Err(error) => return refused(&error),
        };
    if let Some(pools) = checked(&mut plan) {
        as_manifests(&mut plan, &pools);
        as_netplan(&plan, &pools);
    }
}
