//! The store, `NODE/POOL.json` below storeDir: one small file for each node in
//! each pool, so that an ADD costs the same however many nodes are planned.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::allocation::{self, Allocation};
use crate::failure;
use crate::files::Dir;
use crate::node::Node;

const LOCK: &str = ".lock";
const PATIENCE: Duration = Duration::from_secs(10);

/// The allocation of `node_name` in `pool`; there being none is an error that helps.
pub fn load(node: &Node, node_name: &str, pool: &str) -> Result<Allocation> {
    find(node, node_name, pool)?.ok_or_else(|| missing(node, node_name, pool))
}

/// The allocation of `node_name` in `pool`.
pub fn find(node: &Node, node_name: &str, pool: &str) -> Result<Option<Allocation>> {
    let Some(folder) = open(node)?.map(|root| root.sub(node_name)).transpose()?.flatten() else {
        return Ok(None);
    };
    let name = file_name(pool);
    let Some(content) = folder.read(&name)? else { return Ok(None) };
    parse(&content).map(Some).map_err(|why| {
        let file = folder.path().join(&name);
        failure!(Decode, "{}: {why}", file.display())
    })
}

/// What the store shall say of a node in a pool; without an allocation, nothing.
#[derive(Debug)]
pub struct Change {
    /// Whose.
    pub node_name: String,
    /// In which pool.
    pub pool: String,
    /// What it shall have.
    pub allocation: Option<Allocation>,
}

/// Makes all changes, to stay. Two waits for the disk serve all files: one for each would make minutes of a
/// large fabric. Until every file is written whole, nothing changes.
pub fn apply(node: &Node, changes: &[Change]) -> Result<()> {
    let root = Dir::create(&node.store_dir)?;
    let _lock = root.lock(LOCK, PATIENCE)?;
    // Folders are opened again for each step: a large fabric has more of them than a process may hold open.
    let folder = |change: &Change| root.create_sub(&change.node_name);
    let put: Vec<_> = changes
        .iter()
        .filter_map(|change| change.allocation.as_ref().map(|allocation| (change, allocation)))
        .collect();
    for (done, (change, allocation)) in put.iter().enumerate() {
        let mut content = serde_json::to_vec(allocation)?;
        content.push(b'\n');
        let prepared = folder(change).and_then(|dir| dir.prepare(&file_name(&change.pool), &content));
        if let Err(error) = prepared {
            for (change, _) in &put[..done] {
                folder(change)?.discard(&file_name(&change.pool));
            }
            return Err(error);
        }
    }
    root.sync()?;
    for (change, _) in &put {
        folder(change)?.commit(&file_name(&change.pool))?;
    }
    for change in changes.iter().filter(|change| change.allocation.is_none()) {
        if let Some(folder) = root.sub(&change.node_name)? {
            folder.remove(&file_name(&change.pool))?;
        }
    }
    root.sync()
}

/// Every node that has a folder, sorted.
pub fn nodes(node: &Node) -> Result<Vec<String>> {
    let mut nodes = open(node)?.map(|root| root.names()).transpose()?.unwrap_or_default();
    nodes.retain(|name| super::is_name(name));
    nodes.sort();
    Ok(nodes)
}

/// Some of them, for what need not be complete: a large store has a million.
pub fn some_nodes(node: &Node, most: usize) -> Vec<String> {
    let entries = std::fs::read_dir(&node.store_dir).into_iter().flatten().take(most).flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| super::is_name(name) && !name.starts_with('.')).collect()
}

/// The pools that have something for `node_name`, sorted.
pub fn pools(node: &Node, node_name: &str) -> Result<Vec<String>> {
    let folder = open(node)?.map(|root| root.sub(node_name)).transpose()?.flatten();
    let names = folder.map(|folder| folder.names()).transpose()?.unwrap_or_default();
    let mut pools: Vec<_> =
        names.iter().filter_map(|name| name.strip_suffix(".json")).map(str::to_owned).collect();
    pools.sort();
    Ok(pools)
}

fn open(node: &Node) -> Result<Option<Dir>> {
    match Dir::open(&node.store_dir) {
        Ok(root) => Ok(Some(root)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot open {}", node.store_dir.display())),
    }
}

fn file_name(pool: &str) -> String {
    format!("{pool}.json")
}

/// What a file says. One that is cut short or empty is damage, never the absence of an allocation: nv-ipam takes
/// a store of no bytes for a new one and gives addresses in use a second time.
fn parse(content: &[u8]) -> Result<Allocation, String> {
    let damaged = |why: String| format!("{why}: the file is damaged, import the pool again");

    let mut json = serde_json::Deserializer::from_slice(content);
    let read = serde_path_to_error::deserialize::<_, Allocation>(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let at = if [".", "?"].contains(&path.as_str()) { String::new() } else { format!("{path}: ") };
        format!("{at}{}", error.inner())
    });
    let version = |version: u32| {
        format!(
            "version {version}: this rail-ipam reads version {}, install a newer one",
            allocation::VERSION
        )
    };
    match read.and_then(|allocation| json.end().map_err(|error| error.to_string()).map(|()| allocation)) {
        Ok(allocation) if allocation.version != allocation::VERSION => Err(version(allocation.version)),
        Ok(allocation) => allocation.check().map(|()| allocation).map_err(damaged),
        Err(why) => {
            let value = serde_json::from_slice::<serde_json::Value>(content).unwrap_or_default();
            let other = value["version"].as_u64().and_then(|version| u32::try_from(version).ok());
            Err(other.filter(|other| *other != allocation::VERSION).map_or_else(|| damaged(why), version))
        }
    }
}

/// The error for a node without an allocation: nothing is given, and the reader is told what may be meant.
fn missing(node: &Node, node_name: &str, pool: &str) -> anyhow::Error {
    let hint = match pools(node, node_name) {
        Ok(mut pools) if !pools.is_empty() => {
            pools.truncate(20);
            format!(": it has one in {}", pools.join(", "))
        }
        _ => {
            // For an error text, a part of a large store will do.
            let names = some_nodes(node, 10_000);
            hint(&near_misses(node_name, names.iter().map(String::as_str)))
        }
    };
    let file = node.store_dir.join(node_name).join(file_name(pool));
    failure!(
        InvalidConfig,
        "node {node_name:?} has no allocation in pool {pool:?} ({} is absent){hint}",
        file.display()
    )
}

/// Names that differ from `wanted` in letter case or in the domain alone.
pub fn near_misses<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let host = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_near = |name: &&str| *name != wanted && host(name) == host(wanted);
    let mut near: Vec<_> = names.filter(is_near).take(3).map(str::to_owned).collect();
    near.sort();
    near
}

/// What to do about a node that is not there.
pub fn hint(near: &[String]) -> String {
    match near {
        [] => ": `rail-ipam import` must give it one, for nothing is ever invented".to_owned(),
        near => format!(
            ": did the plan mean it with {}? Names are exact: correct the plan, or nodeName in node.json",
            near.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_file_reads_as_it_was_written() {
        let text = r#"{"version":1,"prefix":"172.16.1.60/31","gateway":"172.16.1.61","rail":0,"routes":[{"dst":"172.16.0.0/15"}],"exclusions":[{"startIP":"172.16.1.61","endIP":"172.16.1.61"}]}"#;
        let read = parse(text.as_bytes()).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }

    #[test]
    fn damage_is_told_and_never_read_as_nothing() {
        let good = r#"{"version":1,"prefix":"172.16.1.60/31","gateway":"172.16.1.61"}"#;
        assert!(parse(good.as_bytes()).is_ok());
        for cut in 0..good.len() {
            assert!(parse(&good.as_bytes()[..cut]).unwrap_err().contains("line 1"), "{cut}");
        }
        for (from, to, told) in [
            ("60/31", "61/31", "host bits"),
            ("1.61", "1.62", "outside"),
            ("\"version\":1", "\"version\":2", "version 2"),
            ("\"version\":1", "\"version\":2,\"new\":1", "version 2"),
            ("\"version\":1", "\"x\":1", "unknown field `x`"),
            ("\"version\":1,", "", "version"),
            ("}", "} x", "trailing"),
            ("\"172.16.1.60/31\"", "7", "prefix: "),
            ("}", ",\"routes\":[{\"dst\":\"0.0.0.0/0\"}]}", "default route"),
            ("}", ",\"exclusions\":[{\"startIP\":\"::1\",\"endIP\":\"::2\"}]}", "exclusions[0]"),
        ] {
            let why = parse(good.replacen(from, to, 1).as_bytes()).unwrap_err();
            assert!(why.contains(told), "{told}: {why}");
        }
    }

    #[test]
    fn a_near_miss_differs_in_case_or_domain() {
        let names = ["worker-1", "worker-10", "WORKER-1.example.com"];
        assert_eq!(near_misses("Worker-1", names.into_iter()), ["WORKER-1.example.com", "worker-1"]);
        assert!(near_misses("worker-2", names.into_iter()).is_empty());
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }
}
