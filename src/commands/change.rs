//! A plan beside what the store has: what would change, whom it would hurt, and
//! making it so. `import` and `plan` both end here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use anyhow::Result;
use ipnet::IpNet;

use crate::fail;
use crate::ipam::lease::{self, Entry, Folder};
use crate::node::Node;
use crate::plan::Pools;
use crate::pool::allocation::{Allocation, To, bits};
use crate::pool::cidrpool::few;
use crate::pool::is_name;
use crate::pool::store::{self, Change, Store};
use crate::progress::Progress;

/// Into which nodes' folders.
#[derive(Debug)]
pub enum Nodes {
    /// Every one that the plan names or the store has.
    All,
    /// This node.
    Own(String),
    /// One that the operator named.
    One(String),
}

impl Nodes {
    fn one(&self) -> Option<&String> {
        match self {
            Nodes::All => None,
            Nodes::Own(name) | Nodes::One(name) => Some(name),
        }
    }
}

/// What becomes of that which the plan does not name.
#[derive(Debug, Default)]
pub struct Terms {
    /// It goes. Otherwise it stays, and is told.
    pub prune: bool,
    /// The plan is all that the store should have: pools beside it are told, or go.
    pub is_whole: bool,
    /// A node that the plan names, and the one whose place it takes, which goes.
    pub replaces: BTreeMap<String, String>,
}

impl Terms {
    /// Of `--replaces NEW=OLD`.
    pub fn parse_replaces(text: &str) -> Result<(String, String), String> {
        match text.split_once('=') {
            Some((new, old)) if is_name(new) && is_name(old) && new != old => Ok((new.into(), old.into())),
            _ => Err("NEW=OLD: the names of two nodes".to_owned()),
        }
    }

    fn check(&self, named: &BTreeSet<&str>) -> Result<()> {
        let mut replaced = BTreeMap::new();
        for (new, old) in &self.replaces {
            if !named.contains(new.as_str()) {
                let hint = store::near_hint(new, named.iter().copied(), "the plan");
                fail!(InvalidConfig, "node {new} replaces {old}, and is not in the plan{hint}");
            }
            if named.contains(old.as_str()) {
                fail!(
                    InvalidConfig,
                    "node {new} replaces {old}, which is still in the plan: take it out there"
                );
            }
            if let Some(other) = replaced.insert(old, new) {
                fail!(InvalidConfig, "nodes {other} and {new} both replace {old}");
            }
        }
        Ok(())
    }

    fn is_replaced(&self, node_name: &str) -> bool {
        self.replaces.values().any(|old| old == node_name)
    }
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
    /// The node that had this prefix before.
    pub takes_place_of: Option<String>,
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

    /// The prefix, if the node did not have it before.
    fn new_prefix(&self) -> Option<IpNet> {
        let prefix = self.after.as_ref()?.prefix;
        self.before.as_ref().is_none_or(|before| before.prefix != prefix).then_some(prefix)
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

/// A node that would get what stays another's.
#[derive(Debug)]
pub struct Taken {
    /// Who would get it.
    pub node_name: String,
    /// Whose it stays.
    pub owner: String,
    /// The first prefix of several.
    pub prefix: IpNet,
    /// In which pool the owner has it.
    pub pool: String,
    /// How many prefixes.
    pub count: usize,
    /// Does the plan name the owner, but not its pool?
    pub is_pool: bool,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Taken { node_name, owner, prefix, pool, count, is_pool } = self;
        let more = if *count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        write!(
            f,
            "node {node_name} would get {prefix}{more}, which the store has for node {owner} in pool {pool}, and "
        )?;
        if *is_pool {
            write!(
                f,
                "the plan does not name that pool: `rail-ipam plan --to store --prune` takes such pools out"
            )
        } else {
            write!(
                f,
                "the plan does not name {owner}: if {node_name} takes its place, --replaces {node_name}={owner} says \
                 so; --prune takes out all nodes that the plan does not name"
            )
        }
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
    /// What stops [`write`] in any case: a prefix is one node's.
    pub taken: Vec<Taken>,
}

/// Prefixes with their nodes and pools. They are apart from each other, as plans are.
#[derive(Default)]
struct Owners(BTreeMap<(bool, u128), (IpNet, String, String)>);

impl Owners {
    fn insert(&mut self, prefix: IpNet, node_name: &str, pool: &str) {
        let key = (prefix.addr().is_ipv4(), bits(prefix.network()));
        self.0.insert(key, (prefix, node_name.to_owned(), pool.to_owned()));
    }

    /// Who has a part of `prefix`, or all of it.
    fn of(&self, prefix: IpNet) -> Option<(&str, &str)> {
        let last = (prefix.addr().is_ipv4(), bits(prefix.broadcast()));
        let (_, (found, node_name, pool)) = self.0.range(..=last).next_back()?;
        let overlaps = found.contains(&prefix.network()) || prefix.contains(&found.network());
        overlaps.then_some((node_name, pool))
    }
}

/// What the store has beside the lines.
#[derive(Default)]
struct Beside {
    /// What stays with nodes or pools that the plan does not name.
    staying: Owners,
    /// What nodes lose or exchange for another prefix, here or where their own store is written.
    leaving: Owners,
    /// How many pools of each node that the plan does not name stay.
    nodes: BTreeMap<String, usize>,
    /// How many nodes of each pool that the plan does not name stay.
    pools: BTreeMap<String, usize>,
}

/// Compares `pools` with the store; changes nothing.
pub fn changes(node: &Node, pools: &Pools, nodes: &Nodes, terms: &Terms) -> Result<Import> {
    let named: BTreeSet<&str> = pools.values().flat_map(|pool| pool.keys().map(String::as_str)).collect();
    terms.check(&named)?;
    let is_named = |name: &str| named.contains(name);
    // A node that is not in the plan at all has most likely another name there, and would lose everything.
    if let Nodes::Own(name) = nodes
        && terms.prune
        && !is_named(name)
    {
        let hint = store::near_hint(name, named.iter().copied(), "the plan");
        fail!(
            InvalidConfig,
            "--prune: node {name} is not in the plan{hint}; if it is gone, --node {name} says so"
        );
    }

    let mut import = Import::default();
    let store = Store::open(node)?;
    let wanted: BTreeSet<String> = match nodes.one() {
        Some(name) => [Some(name), terms.replaces.get(name)].into_iter().flatten().cloned().collect(),
        None => store.nodes()?.into_iter().chain(named.iter().map(|name| (*name).to_owned())).collect(),
    };
    let mut beside = Beside::default();
    let mut progress = Progress::new("comparing nodes", wanted.len());
    for node_name in &wanted {
        progress.step();
        let goes = terms.prune || terms.is_replaced(node_name);
        let mut stored = store.everything(node_name)?;
        for pool in pools.keys().filter(|_| is_named(node_name)) {
            stored.entry(pool.clone()).or_insert(Ok(None));
        }
        for (pool, before) in stored {
            let planned = pools.get(&pool);
            let before = before.unwrap_or_else(|error| {
                import.warnings.push(format!("{error:#}"));
                None
            });
            let mut after = planned.and_then(|allocations| allocations.get(node_name)).cloned();
            let stays = match planned {
                Some(_) => !is_named(node_name) && !goes,
                None => !(terms.prune && terms.is_whole),
            };
            match (&before, &mut after) {
                (None, None) => {
                    if nodes.one() == Some(node_name) {
                        import.warnings.push(format!("pool {pool} has nothing for node {node_name}"));
                    }
                    continue;
                }
                (Some(before), None) if stays => {
                    beside.stays(before, node_name, &pool, planned.is_some());
                    continue;
                }
                (Some(before), None) => beside.leaving.insert(before.prefix, node_name, &pool),
                (Some(before), Some(after)) => {
                    after.keep_leaf_ports_of(before);
                    if before.prefix != after.prefix {
                        beside.leaving.insert(before.prefix, node_name, &pool);
                    }
                }
                (None, Some(_)) => (),
            }
            import.lines.push(Line {
                node_name: node_name.clone(),
                pool,
                before,
                after,
                takes_place_of: None,
            });
        }
    }
    drop(progress);
    if let (Some(name), true) = (nodes.one(), import.lines.is_empty()) {
        let hint = store::near_hint(name, named.iter().copied(), "the plan");
        if beside.nodes.is_empty() {
            fail!(InvalidConfig, "none of these pools has anything for node {name}{hint}");
        }
        import.warnings.push(format!("node {name} is not in the plan{hint}"));
    }
    beside.tell(terms, &mut import.warnings);
    if nodes.one().is_some() && import.lines.iter().any(|line| line.new_prefix().is_some()) {
        look_at_others(&store, &wanted, pools, terms, &mut beside)?;
    }
    places(&mut import, &beside, &named);
    lease::for_each_folder(node, |folder| hurt(folder, &mut import))?;
    Ok(import)
}

impl Beside {
    fn stays(&mut self, before: &Allocation, node_name: &str, pool: &str, is_planned_pool: bool) {
        self.staying.insert(before.prefix, node_name, pool);
        let (of, name) = match is_planned_pool {
            true => (&mut self.nodes, node_name),
            false => (&mut self.pools, pool),
        };
        *of.entry(name.to_owned()).or_default() += 1;
    }

    fn tell(&self, terms: &Terms, warnings: &mut Vec<String>) {
        let nodes = self.nodes.iter().map(|(name, count)| {
            format!(
                "node {name} is in the store ({count} pools) and not in the plan: it stays (--prune: it goes)"
            )
        });
        warnings.extend(few(nodes.collect()));
        let pools = self.pools.iter().filter(|_| terms.is_whole).map(|(pool, count)| {
            format!(
                "pool {pool} is in the store ({count} nodes) and not in the plan: it stays (--prune: it goes)"
            )
        });
        warnings.extend(few(pools.collect()));
    }
}

/// What other nodes have, where one node gets a new prefix: a store of one node has nothing else.
fn look_at_others(
    store: &Store,
    wanted: &BTreeSet<String>,
    pools: &Pools,
    terms: &Terms,
    beside: &mut Beside,
) -> Result<()> {
    let others = store.nodes()?;
    let mut progress = Progress::new("looking at other nodes", others.len());
    for other in others.iter().filter(|other| !wanted.contains(*other)) {
        progress.step();
        for (pool, found) in store.everything(other)? {
            // What is damaged is told when that node is written.
            let Ok(Some(found)) = found else { continue };
            match pools.get(&pool).and_then(|pool| pool.get(other)) {
                Some(planned) if planned.prefix == found.prefix => (),
                Some(_) => beside.leaving.insert(found.prefix, other, &pool),
                None if terms.is_replaced(other) => beside.leaving.insert(found.prefix, other, &pool),
                None => beside.staying.insert(found.prefix, other, &pool),
            }
        }
    }
    Ok(())
}

/// Whose prefixes the nodes get.
fn places(import: &mut Import, beside: &Beside, named: &BTreeSet<&str>) {
    let mut taken: BTreeMap<(String, String), Taken> = BTreeMap::new();
    for line in &mut import.lines {
        let Some(prefix) = line.new_prefix() else { continue };
        let other = |found: Option<(&str, &str)>| {
            found
                .filter(|(owner, _)| *owner != line.node_name)
                .map(|(owner, pool)| (owner.to_owned(), pool.to_owned()))
        };
        if let Some((owner, pool)) = other(beside.staying.of(prefix)) {
            let key = (line.node_name.clone(), owner.clone());
            let is_pool = named.contains(owner.as_str());
            let node_name = line.node_name.clone();
            let first = Taken { node_name, owner, prefix, pool, count: 0, is_pool };
            taken.entry(key).or_insert(first).count += 1;
        } else if let Some((owner, _)) = other(beside.leaving.of(prefix)) {
            line.takes_place_of = Some(owner);
        }
    }
    import.taken = taken.into_values().collect();
}

/// Pods keep the addresses they have, with gateway and routes; who renumbers must know of them.
fn hurt(folder: &Folder, import: &mut Import) -> Result<()> {
    let name = (folder.node_name.as_str(), folder.pool.as_str());
    let own = import.lines.binary_search_by(|line| (line.node_name.as_str(), line.pool.as_str()).cmp(&name));
    let own = own.ok().and_then(|at| import.lines.get(at)).filter(|line| line.before != line.after);
    let taking = |address: IpAddr| {
        import.lines.iter().find_map(|line| {
            let prefix = line.new_prefix().filter(|prefix| prefix.contains(&address))?;
            let Line { node_name, pool, .. } = line;
            ((node_name, pool) != (&folder.node_name, &folder.pool))
                .then(|| format!("the plan gives {prefix} to node {node_name} in pool {pool}"))
        })
    };
    let is_changed = import.lines.iter().any(|line| line.new_prefix().is_some());
    if own.is_none() && !is_changed {
        return Ok(());
    }
    let (mut outside, mut warnings) = (Vec::new(), Vec::new());
    for entry in folder.entries()? {
        let Some(holder) = holder(folder, &entry)? else { continue };
        let address = entry.address;
        let judged = match own {
            Some(Line { after: None, .. }) => Err("the plan has nothing for this node".to_owned()),
            Some(Line { after: Some(after), .. }) => {
                after.check_host(address).map_err(|why| format!("in the plan it {why}"))
            }
            None => Ok(()),
        };
        let keeps = own.and_then(|line| line.before.as_ref().zip(line.after.as_ref()));
        match judged.and_then(|()| taking(address).map_or(Ok(()), Err)) {
            Err(why) => outside.push(Outside {
                node_name: folder.node_name.clone(),
                pool: folder.pool.clone(),
                address,
                holder,
                why,
            }),
            Ok(()) if keeps.is_some_and(|(before, after)| told(before) != told(after)) => warnings.push(format!(
                "pool {}: node {}: {address}, {holder}: the pod keeps prefix length, gateway and routes of before \
                 until it is made anew",
                folder.pool, folder.node_name
            )),
            Ok(()) => (),
        }
    }
    import.outside.extend(outside);
    import.warnings.extend(warnings);
    Ok(())
}

/// Who holds it, if he is not dead.
fn holder(folder: &Folder, entry: &Entry) -> Result<Option<String>> {
    Ok(match folder.read(entry) {
        Ok(None) => None,
        Ok(Some(lease)) if lease.is_dead()? => None,
        Ok(Some(lease)) => Some(format!("held by {} since {}", lease.holder, lease.since)),
        Err(why) => Some(why),
    })
}

/// What a pod was told beside its address.
fn told(allocation: &Allocation) -> (u8, Option<IpAddr>, &[To]) {
    (allocation.prefix.prefix_len(), allocation.gateway, &allocation.routes)
}

/// Writes what [`changes`] found; with live leases outside of it, only by `force`.
pub fn write(node: &Node, import: &Import, force: bool) -> Result<()> {
    if !import.taken.is_empty() {
        let count: BTreeSet<&str> = import.taken.iter().map(|taken| taken.node_name.as_str()).collect();
        fail!(InvalidConfig, "nothing was written: {} nodes would get what stays another's", count.len());
    }
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
    use crate::ipam::lease::{Ask, Holder, take};
    use crate::pool::allocation::tests::allocation;
    use std::path::Path;

    /// The plan is all that there should be.
    const PRUNE: Terms = Terms { prune: true, is_whole: true, replaces: BTreeMap::new() };

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
        write(&node, &changes(&node, &pools, &Nodes::All, &PRUNE).unwrap(), false).unwrap();
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
                let import = changes(&node, &pools, &nodes, &PRUNE).unwrap();
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
        write(&node, &changes(&node, &nothing(), &Nodes::All, &PRUNE).unwrap(), true).unwrap();
        assert!(store::load(&node, "n", &["p".to_owned()]).is_err());
        // The store says nothing of it any more, but the pod is still there.
        let other = changes(&node, &plan("10.0.0.2/31", "10.0.0.3"), &Nodes::All, &PRUNE).unwrap();
        assert_eq!(other.outside.len(), 1);
    }

    #[test]
    fn the_dead_and_the_unchanged_stop_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let node = pod(temp.path());
        let same = changes(&node, &plan("10.0.0.0/31", "10.0.0.1"), &Nodes::All, &PRUNE).unwrap();
        assert!(same.outside.is_empty() && same.warnings.is_empty());
        std::fs::remove_file(temp.path().join("netns")).unwrap();
        assert!(changes(&node, &nothing(), &Nodes::All, &PRUNE).unwrap().outside.is_empty());
    }

    #[test]
    fn a_pod_that_keeps_its_address_but_not_its_gateway_is_a_warning() {
        let temp = tempfile::tempdir().unwrap();
        let node = pod(temp.path());
        let mut pools = plan("10.0.0.0/31", "10.0.0.1");
        let ours = pools.get_mut("p").unwrap().get_mut("n").unwrap();
        ours.gateway = None;
        let import = changes(&node, &pools, &Nodes::All, &PRUNE).unwrap();
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
        let import = changes(&node, &nothing(), &Nodes::All, &PRUNE).unwrap();
        assert!(import.outside[0].to_string().contains("rail-ipam release --address 10.0.0.0"));
        assert!(write(&node, &import, false).is_err());
    }

    /// `a` and `b` have the first two prefixes of `p`, of which `gone` are taken out; `new` have the same ones.
    fn two(gone: &[&str], new: &[(&str, &str)]) -> Pools {
        let all = [("a", "10.0.0.0/31"), ("b", "10.0.0.2/31")];
        let rows = all.iter().filter(|(name, _)| !gone.contains(name)).chain(new);
        let rows = rows.map(|(name, prefix)| ((*name).to_owned(), allocation(prefix, None, &[])));
        BTreeMap::from([("p".to_owned(), rows.collect())])
    }

    fn terms(prune: bool, replaces: &[(&str, &str)]) -> Terms {
        let replaces = replaces.iter().map(|(new, old)| ((*new).to_owned(), (*old).to_owned())).collect();
        Terms { prune, is_whole: true, replaces }
    }

    fn shown(import: &Import) -> Vec<String> {
        let shown = |line: &Line| {
            let place = line.takes_place_of.as_ref().map_or_else(String::new, |other| format!(" of {other}"));
            format!("{} {}{place}", line.node_name, line.change())
        };
        import.lines.iter().map(shown).collect()
    }

    #[test]
    fn a_node_that_the_plan_no_longer_names_stays_until_it_is_pruned() {
        let temp = tempfile::tempdir().unwrap();
        let node = node(temp.path());
        let put = |pools: &Pools, nodes: &Nodes, terms: &Terms| {
            let import = changes(&node, pools, nodes, terms).unwrap();
            write(&node, &import, false).unwrap();
            (shown(&import), import.warnings)
        };
        put(&two(&[], &[]), &Nodes::All, &Terms::default());
        for nodes in [Nodes::All, Nodes::Own("b".into()), Nodes::All] {
            let (lines, warnings) = put(&two(&["a"], &[]), &nodes, &terms(false, &[]));
            assert_eq!(lines, ["b same"]);
            let told =
                matches!(nodes, Nodes::All).then_some("node a is in the store (1 pools) and not in the plan");
            assert_eq!(warnings.len(), usize::from(told.is_some()), "{warnings:?}");
            assert!(warnings.iter().all(|warning| warning.starts_with(told.unwrap())));
        }
        let (lines, warnings) = put(&two(&["a"], &[]), &Nodes::Own("a".into()), &terms(false, &[]));
        assert!(lines.is_empty());
        assert!(warnings[0].starts_with("node a is not in the plan: the plan has b;"), "{warnings:?}");
        assert!(warnings[1].contains("it stays (--prune: it goes)"), "{warnings:?}");
        let own = changes(&node, &two(&["a"], &[]), &Nodes::Own("a".into()), &terms(true, &[])).unwrap_err();
        assert!(own.to_string().contains("if it is gone, --node a says so"), "{own}");
        assert_eq!(put(&two(&["a"], &[]), &Nodes::One("a".into()), &terms(true, &[])).0, ["a removed"]);
        assert_eq!(put(&two(&["a"], &[]), &Nodes::All, &terms(true, &[])).0, ["b same"]);
    }

    #[test]
    fn a_node_takes_the_place_of_another_only_when_that_is_meant() {
        let temp = tempfile::tempdir().unwrap();
        let node = node(temp.path());
        let put = |pools: &Pools, nodes: &Nodes, terms: &Terms| {
            let import = changes(&node, pools, nodes, terms).unwrap();
            let told: Vec<_> = import.taken.iter().map(Taken::to_string).collect();
            let written = write(&node, &import, false);
            assert_eq!(written.is_err(), !told.is_empty(), "{written:?}");
            if written.is_ok() { Ok(shown(&import)) } else { Err(told.join("; ")) }
        };
        put(&two(&[], &[]), &Nodes::All, &terms(false, &[])).unwrap();
        let new = two(&["a"], &[("c", "10.0.0.0/31")]);
        for nodes in [Nodes::All, Nodes::Own("c".into())] {
            let told = put(&new, &nodes, &terms(false, &[])).unwrap_err();
            for part in ["node c would get 10.0.0.0/31", "for node a in pool p", "--replaces c=a", "--prune"]
            {
                assert!(told.contains(part), "{part}: {told}");
            }
        }
        // A part of it, or more than it.
        for prefix in ["10.0.0.0/30", "10.0.0.0/32"] {
            let new = two(&["a", "b"], &[("c", prefix)]);
            assert!(put(&new, &Nodes::All, &terms(false, &[])).unwrap_err().contains("for node"), "{prefix}");
        }
        for (pairs, why) in [
            (&[("c", "b")][..], "which is still in the plan"),
            (&[("d", "a")], "is not in the plan: the plan has"),
            (&[("b", "a"), ("c", "a")], "both replace a"),
        ] {
            let error = changes(&node, &new, &Nodes::All, &terms(false, pairs)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let replaced = terms(false, &[("c", "a")]);
        assert_eq!(put(&new, &Nodes::Own("c".into()), &replaced).unwrap(), ["a removed", "c new of a"]);
        assert_eq!(put(&new, &Nodes::All, &replaced).unwrap(), ["b same", "c same"]);
        // Where both move, the row tells.
        let swapped = two(&["b"], &[("b", "10.0.0.0/31"), ("c", "10.0.0.2/31")]);
        let swapped = BTreeMap::from([("p".to_owned(), {
            let mut rows = swapped["p"].clone();
            rows.remove("a");
            rows
        })]);
        assert_eq!(put(&swapped, &Nodes::Own("b".into()), &terms(false, &[])).unwrap(), ["b changed of c"]);
    }

    /// Its pods hold addresses in the pool of the old name, of which the new one knows nothing.
    #[test]
    fn a_pool_with_another_name_waits_for_the_pods_of_the_old_one() {
        let temp = tempfile::tempdir().unwrap();
        let node = pod(temp.path());
        let mut pools = plan("10.0.0.0/31", "10.0.0.1");
        let rows = pools.remove("p").unwrap();
        pools.insert("q".to_owned(), rows);
        for terms in [terms(false, &[]), terms(true, &[])] {
            let import = changes(&node, &pools, &Nodes::Own("n".into()), &terms).unwrap();
            let told = import.outside[0].to_string();
            assert!(
                told.contains("pool p: node n: 10.0.0.0 is in use, held by net1 of pod ai/trainer"),
                "{told}"
            );
            assert!(write(&node, &import, false).is_err());
        }
        std::fs::remove_file(temp.path().join("netns")).unwrap();
        let import = changes(&node, &pools, &Nodes::Own("n".into()), &terms(false, &[])).unwrap();
        write(&node, &import, false).unwrap();
    }

    /// A node whose name changed has its pods under the old one.
    #[test]
    fn a_pod_of_the_node_that_is_replaced_stops_the_plan() {
        let temp = tempfile::tempdir().unwrap();
        let node = pod(temp.path());
        let mut pools = plan("10.0.0.0/31", "10.0.0.1");
        let rows = pools.get_mut("p").unwrap();
        let ours = rows.remove("n").unwrap();
        rows.insert("new".to_owned(), ours);
        let replaced = terms(false, &[("new", "n")]);
        let import = changes(&node, &pools, &Nodes::Own("new".into()), &replaced).unwrap();
        assert!(import.outside[0].to_string().contains("pod ai/trainer"), "{:?}", import.outside);
        assert!(write(&node, &import, false).unwrap_err().to_string().contains("1 live leases"));
        // Also where the store has nothing of it any more.
        std::fs::remove_dir_all(temp.path().join("store/n")).unwrap();
        let import = changes(&node, &pools, &Nodes::Own("new".into()), &terms(false, &[])).unwrap();
        let told = import.outside[0].to_string();
        assert!(
            told.contains("node n: 10.0.0.0 is in use") && told.contains("gives 10.0.0.0/31 to node new"),
            "{told}"
        );
        write(&node, &import, true).unwrap();
        let again = changes(&node, &pools, &Nodes::Own("new".into()), &replaced).unwrap();
        assert!(again.outside.is_empty() && shown(&again) == ["new same"]);
    }
}
