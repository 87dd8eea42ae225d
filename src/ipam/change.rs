//! A plan beside what the store has: what would change, whom it would hurt, and
//! making it so. `import` and `plan` both end here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use anyhow::Result;

use super::allocation::{Allocation, To};
use super::lease::{self, Folder};
use super::store::{self, Change, Store};
use crate::fail;
use crate::node::Node;
use crate::progress::Progress;

/// Into which nodes' folders.
#[derive(Debug)]
pub enum Nodes {
    /// Every one that the plan names or the store has.
    All,
    /// One.
    One(String),
}

/// What the store says of a node in a pool, before and after.
#[derive(Debug)]
pub struct Line {
    /// Whose.
    pub node_name: String,
    /// In which pool.
    pub pool: String,
    /// What is there already.
    pub before: Option<Allocation>,
    /// What is planned; `None`: the pool has nothing for the node any more.
    pub after: Option<Allocation>,
}

impl Line {
    /// In a word.
    pub fn change(&self) -> &'static str {
        match (&self.before, &self.after) {
            (_, None) => "removed",
            (None, Some(_)) => "new",
            (Some(before), Some(after)) if before == after => "same",
            (Some(_), Some(_)) => "changed",
        }
    }
}

/// A live lease that the new plan has no room for.
#[derive(Debug)]
pub struct Outside {
    /// Whose folder it is in.
    pub node_name: String,
    /// Of which pool.
    pub pool: String,
    /// What is held.
    pub address: IpAddr,
    /// By whom, or that nobody knows.
    pub holder: String,
    /// What the plan says against it.
    pub why: String,
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outside { node_name, pool, address, holder, why } = self;
        write!(f, "pool {pool}: node {node_name}: {address} is in use, {holder}, and {why}")
    }
}

/// What writing a plan does, and what is to be said about it.
#[derive(Debug, Default)]
pub struct Import {
    /// Sorted by node and pool.
    pub lines: Vec<Line>,
    /// For people.
    pub warnings: Vec<String>,
    /// What stops [`write`] that is not forced.
    pub outside: Vec<Outside>,
}

/// Compares `pools`, by name what each gives to its nodes, with the store; changes nothing. Pools that are not
/// named stay as they are.
pub fn changes(
    node: &Node,
    pools: &BTreeMap<String, BTreeMap<String, Allocation>>,
    nodes: &Nodes,
) -> Result<Import> {
    let mut import = Import::default();
    let store = Store::open(node)?;
    let names: Vec<&String> = pools.keys().collect();
    let wanted: BTreeSet<String> = match nodes {
        Nodes::One(name) => BTreeSet::from([name.clone()]),
        Nodes::All => {
            let named = pools.values().flat_map(|pool| pool.keys().cloned());
            store.nodes()?.into_iter().chain(named).collect()
        }
    };
    let mut progress = Progress::new("comparing nodes", wanted.len());
    for node_name in &wanted {
        progress.step();
        for ((pool, allocations), before) in pools.iter().zip(store.find(node_name, &names)?) {
            let before = before.unwrap_or_else(|error| {
                import.warnings.push(format!("{error:#}"));
                None
            });
            let after = allocations.get(node_name).cloned();
            if before.is_none() && after.is_none() {
                if let Nodes::One(name) = nodes {
                    import.warnings.push(format!("pool {pool} has nothing for node {name}"));
                }
                continue;
            }
            import.lines.push(Line { node_name: node_name.clone(), pool: pool.clone(), before, after });
        }
    }
    drop(progress);
    if let (true, Nodes::One(name)) = (import.lines.is_empty(), nodes) {
        let named: BTreeSet<&str> = pools.values().flat_map(|pool| pool.keys().map(String::as_str)).collect();
        let hint = store::hint(&store::near_misses(name, named.into_iter()));
        fail!(InvalidConfig, "none of these pools has anything for node {name}{hint}");
    }
    lease::for_each_folder(node, |folder| {
        let name = (folder.node_name.as_str(), folder.pool.as_str());
        let at =
            import.lines.binary_search_by(|line| (line.node_name.as_str(), line.pool.as_str()).cmp(&name));
        let Ok(at) = at else { return Ok(()) };
        let line = &import.lines[at];
        if line.before == line.after {
            return Ok(());
        }
        hurt(folder, line, &mut import.outside, &mut import.warnings)
    })?;
    Ok(import)
}

/// Pods keep the addresses they have, with gateway and routes; who renumbers must know of them.
fn hurt(folder: &Folder, line: &Line, outside: &mut Vec<Outside>, warnings: &mut Vec<String>) -> Result<()> {
    let Line { node_name, pool, before, after } = line;
    for entry in folder.entries()? {
        let holder = match folder.read(&entry) {
            Ok(None) => continue,
            Ok(Some(lease)) if lease.is_dead()? => continue,
            Ok(Some(lease)) => format!("held by {} since {}", lease.holder, lease.since),
            Err(why) => why,
        };
        let address = entry.address;
        let judged = after.as_ref().map_or(Err("the plan has nothing for this node".to_owned()), |after| {
            after.check_host(address).map_err(|why| format!("in the plan it {why}"))
        });
        match judged {
            Err(why) => outside.push(Outside {
                node_name: node_name.clone(),
                pool: pool.clone(),
                address,
                holder,
                why,
            }),
            Ok(()) if before.as_ref().is_some_and(|before| Some(told(before)) != after.as_ref().map(told)) => warnings.push(format!(
                "pool {pool}: node {node_name}: {address}, {holder}: the pod keeps prefix length, gateway and \
                 routes of before until it is made anew"
            )),
            Ok(()) => (),
        }
    }
    Ok(())
}

/// What a pod was told beside its address.
fn told(allocation: &Allocation) -> (u8, Option<IpAddr>, &[To]) {
    (allocation.prefix.prefix_len(), allocation.gateway, &allocation.routes)
}

/// Writes what [`changes`] found; with live leases outside of it, only by `force`.
pub fn write(node: &Node, import: &Import, force: bool) -> Result<()> {
    if !force && !import.outside.is_empty() {
        let count = import.outside.len();
        fail!(
            TryAgain,
            "nothing was written: {count} live leases are outside of the new plan: end those pods first, or \
             --force, and they keep addresses that the fabric may route elsewhere"
        );
    }
    let changes: Vec<Change<'_>> = import
        .lines
        .iter()
        .filter(|line| line.before != line.after)
        .map(|Line { node_name, pool, after, .. }| Change { node_name, pool, allocation: after.as_ref() })
        .collect();
    store::apply(node, &changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipam::allocation::tests::allocation;
    use crate::ipam::lease::{Ask, Holder, take};
    use std::path::Path;

    fn node(temp: &Path) -> Node {
        let dirs = serde_json::json!({"storeDir": temp.join("store"), "runDir": temp.join("run")});
        serde_json::from_value(dirs).unwrap()
    }

    /// `n` has `prefix` in the pool `p`.
    fn plan(prefix: &str, gateway: &str) -> BTreeMap<String, BTreeMap<String, Allocation>> {
        let ours = BTreeMap::from([("n".to_owned(), allocation(prefix, Some(gateway), &[]))]);
        BTreeMap::from([("p".to_owned(), ours)])
    }

    fn nothing() -> BTreeMap<String, BTreeMap<String, Allocation>> {
        BTreeMap::from([("p".to_owned(), BTreeMap::new())])
    }

    /// A pod on `n` that got 10.0.0.0 of 10.0.0.0/31. Its namespace is the file `netns`.
    fn pod(temp: &Path) -> Node {
        let node = node(temp);
        let pools = plan("10.0.0.0/31", "10.0.0.1");
        write(&node, &changes(&node, &pools, &Nodes::All).unwrap(), false).unwrap();
        std::fs::write(temp.join("netns"), "").unwrap();
        let holder = serde_json::json!({"network": "net", "containerID": "c1", "ifname": "net1",
            "netns": crate::netns::NetnsId::of(&temp.join("netns")).unwrap(), "pod": "ai/trainer"});
        let holder: Holder = serde_json::from_value(holder).unwrap();
        let ask = Ask::all(vec!["p".into()], vec![pools["p"]["n"].clone()], &[]).unwrap();
        take(&node, "n", &ask, &holder).unwrap();
        node
    }

    /// Live leases outside the new plan are named and nothing is written without `--force`.
    #[test]
    fn what_a_running_pod_would_lose_is_named_and_not_written() {
        let temp = tempfile::tempdir().unwrap();
        let node = pod(temp.path());
        for (pools, why) in [
            (nothing(), "the plan has nothing for this node"),
            (plan("10.0.0.2/31", "10.0.0.3"), "outside of this node's prefix 10.0.0.2/31"),
            (plan("10.0.0.0/31", "10.0.0.0"), "is the gateway of 10.0.0.0/31"),
        ] {
            for nodes in [Nodes::All, Nodes::One("n".to_owned())] {
                let import = changes(&node, &pools, &nodes).unwrap();
                let told = import.outside[0].to_string();
                for part in ["10.0.0.0", "pod ai/trainer", "container c1", "since 2", why] {
                    assert!(told.contains(part), "{part}: {told}");
                }
                let error = write(&node, &import, false).unwrap_err().to_string();
                assert!(error.contains("nothing was written: 1 live"), "{error}");
            }
        }
        assert_eq!(
            store::load(&node, "n", &["p".to_owned()]).unwrap(),
            [plan("10.0.0.0/31", "10.0.0.1")["p"]["n"].clone()]
        );
        write(&node, &changes(&node, &nothing(), &Nodes::All).unwrap(), true).unwrap();
        assert!(store::load(&node, "n", &["p".to_owned()]).is_err());
        // The store says nothing of it any more, but the pod is still there.
        let other = changes(&node, &plan("10.0.0.2/31", "10.0.0.3"), &Nodes::All).unwrap();
        assert_eq!(other.outside.len(), 1);
    }

    #[test]
    fn the_dead_and_the_unchanged_stop_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let node = pod(temp.path());
        let same = changes(&node, &plan("10.0.0.0/31", "10.0.0.1"), &Nodes::All).unwrap();
        assert!(same.outside.is_empty() && same.warnings.is_empty());
        std::fs::remove_file(temp.path().join("netns")).unwrap();
        assert!(changes(&node, &nothing(), &Nodes::All).unwrap().outside.is_empty());
    }

    #[test]
    fn a_pod_that_keeps_its_address_but_not_its_gateway_is_a_warning() {
        let temp = tempfile::tempdir().unwrap();
        let node = pod(temp.path());
        let mut pools = plan("10.0.0.0/31", "10.0.0.1");
        let ours = pools.get_mut("p").unwrap().get_mut("n").unwrap();
        ours.gateway = None;
        let import = changes(&node, &pools, &Nodes::All).unwrap();
        assert!(import.outside.is_empty());
        assert!(import.warnings[0].contains("10.0.0.0") && import.warnings[0].contains("made anew"));
        write(&node, &import, false).unwrap();
    }

    /// Who holds it is unknown, so it counts as alive.
    #[test]
    fn a_lease_that_cannot_be_read_stops_too() {
        let temp = tempfile::tempdir().unwrap();
        let node = pod(temp.path());
        let folder = temp.path().join("run/leases/n/p");
        let file = std::fs::read_dir(folder).unwrap().flatten().find(|file| file.file_name() != "lock");
        std::fs::write(file.unwrap().path(), "x").unwrap();
        let import = changes(&node, &nothing(), &Nodes::All).unwrap();
        assert!(import.outside[0].to_string().contains("rail-ipam release --address 10.0.0.0"));
        assert!(write(&node, &import, false).is_err());
    }
}
