//! Compares a plan with the store: what would change, and which pods would lose their addresses.
//! Then it changes the store. `import` and `plan` both use this.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use anyhow::Result;
use ipnet::IpNet;
use serde_json::{Value, json};

use super::leases::{State, lease_json, state_of};
use crate::output;
use crate::progress::Progress;
use crate::store::{Change, Writer};
use rail_cni::error::{self, Code};
use rail_cni::fail;
use rail_cni::fault::few;
use rail_cni::files::Lock;
use rail_cni::ipam::{assign, table};
use rail_cni::node::Node;
use rail_cni::pool::allocation::{Allocation, To, bits};
use rail_cni::pool::store::{self, Store};
use rail_cni::pool::{is_name, node_name};
use rail_plan::Pools;

/// The nodes to write.
#[derive(Debug)]
pub enum Nodes {
    /// Every one that the plan names or the store has.
    All,
    /// This node.
    Own(String),
    /// The node that the operator named.
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

/// The pools of the store that a plan is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The plan's own pools: other pools of the store stay.
    #[default]
    OwnPools,
    /// All: it is the whole content of the store.
    WholeStore,
}

/// Whether a plan is written although running pods would lose their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// It is not.
    No,
    /// It is.
    Yes,
}

impl Force {
    /// The value of `--force`.
    pub fn of(is_given: bool) -> Force {
        if is_given { Force::Yes } else { Force::No }
    }
}

/// The treatment of nodes and pools of the store that the plan does not name.
#[derive(Debug, Default)]
pub struct Terms {
    /// They are removed. Otherwise they stay, with a warning.
    pub prune: bool,
    /// The pools that the plan is about.
    pub scope: Scope,
    /// Nodes of the plan, each with the node that it replaces, which is removed.
    pub replaces: BTreeMap<String, String>,
}

impl Terms {
    /// Parses `--replaces NEW=OLD`.
    pub fn parse_replaces(text: &str) -> Result<(String, String), String> {
        match text.split_once('=') {
            Some((new, old)) if is_name(new) && is_name(old) && new != old => {
                Ok((new.into(), old.into()))
            }
            _ => Err("must be NEW=OLD with the names of two nodes".to_owned()),
        }
    }

    fn check(&self, named: &BTreeSet<&str>) -> Result<()> {
        let mut replaced = BTreeMap::new();
        for (new, old) in &self.replaces {
            if !named.contains(new.as_str()) {
                let hint = store::near_hint(new, named.iter().copied(), "the plan");
                fail!(
                    InvalidConfig,
                    "node {new} replaces {old} and is not in the plan{hint}"
                );
            }
            if named.contains(old.as_str()) {
                fail!(
                    InvalidConfig,
                    "node {new} replaces {old}, which is still in the plan: remove it there"
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

/// The allocation of a node in a pool, before and after the change.
#[derive(Debug)]
pub struct Line {
    /// The name of the node.
    pub node_name: String,
    /// The name of the pool.
    pub pool: String,
    /// The allocation in the store.
    pub before: Option<Allocation>,
    /// The allocation in the plan; `None` if the pool has none for the node any more.
    pub after: Option<Allocation>,
    /// The node that had this prefix before.
    pub takes_place_of: Option<String>,
}

impl Line {
    /// Whether the address is of the prefix in the store.
    fn had(&self, address: IpAddr) -> bool {
        let before = self.before.as_ref();
        before.is_some_and(|before| before.prefix.contains(&address))
    }

    /// The kind of change, in one word.
    pub fn change(&self) -> &'static str {
        match (&self.before, &self.after) {
            (_, None) => "removed",
            (None, Some(_)) => "new",
            (Some(before), Some(after)) if before == after => "same",
            (Some(_), Some(_)) => "changed",
        }
    }

    /// Is there something to write? What is damaged, and removed, was nothing that could be read.
    fn is_change(&self) -> bool {
        self.before != self.after || self.after.is_none()
    }

    /// The prefix of the plan, if the node did not have it before.
    fn new_prefix(&self) -> Option<IpNet> {
        let prefix = self.after.as_ref()?.prefix;
        self.before
            .as_ref()
            .is_none_or(|before| before.prefix != prefix)
            .then_some(prefix)
    }
}

/// A live lease that the new plan has no room for.
#[derive(Clone, Debug)]
pub struct Outside {
    /// The name of the node.
    pub node_name: String,
    /// The name of the pool.
    pub pool: String,
    /// The address that is held.
    pub address: IpAddr,
    /// The holder, or why it is unknown.
    pub holder: String,
    /// Why the plan has no room for the lease.
    pub why: String,
    /// The lease for programs, as `leases` prints it.
    lease: Value,
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outside {
            node_name,
            pool,
            address,
            holder,
            why,
            ..
        } = self;
        write!(
            f,
            "pool {pool}: node {node_name}: {address} is in use, {holder}, and {why}"
        )
    }
}

impl Outside {
    /// The fields for programs.
    pub fn json(&self) -> Value {
        let mut json = self.lease.clone();
        let Outside {
            node_name,
            pool,
            holder,
            why,
            ..
        } = self;
        let text = self.to_string();
        let more = [
            ("node", node_name),
            ("pool", pool),
            ("holder", holder),
            ("why", why),
            ("text", &text),
        ];
        more.into_iter()
            .for_each(|(key, value)| json[key] = value.as_str().into());
        json
    }
}

/// A node whose prefix in the plan belongs to another node, which keeps it, or to another pool of
/// its own.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The node that the plan gives it to.
    pub node_name: String,
    /// The node that keeps it.
    pub owner: String,
    /// The first of these prefixes.
    pub prefix: IpNet,
    /// The pool in which the owner has it.
    pub pool: String,
    /// The number of these prefixes.
    pub count: usize,
    /// Whether the plan names the owner, but not its pool.
    pub is_pool: bool,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Taken {
            node_name,
            owner,
            prefix,
            pool,
            count,
            is_pool,
        } = self;
        let more = if *count > 1 {
            format!(" and {} more", count - 1)
        } else {
            String::new()
        };
        write!(
            f,
            "node {node_name} would get {prefix}{more}, which the store has for node {owner} in pool {pool}, and "
        )?;
        if *is_pool {
            write!(
                f,
                "the plan does not name that pool: `railctl plan FILE --to store --prune` removes such pools"
            )
        } else {
            write!(
                f,
                "the plan does not name {owner}: if {node_name} replaces it, add --replaces {node_name}={owner}; \
                 --prune removes all nodes that the plan does not name"
            )
        }
    }
}

impl Taken {
    /// The fields for programs.
    pub fn json(&self) -> Value {
        let Taken {
            node_name,
            owner,
            prefix,
            pool,
            count,
            ..
        } = self;
        json!({"node": node_name, "owner": owner, "pool": pool, "prefix": prefix, "count": count,
            "text": self.to_string()})
    }
}

/// The reason why a plan without a fault cannot be written.
#[derive(Debug)]
pub enum Obstacle {
    /// Running pods would lose their addresses.
    Held(Vec<Outside>),
    /// Prefixes belong to other nodes or pools.
    Taken(Vec<Taken>),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Held(leases) => write!(
                f,
                "nothing was written: {} live leases are outside of the new plan: end those pods first, or add \
                 --force, and they keep addresses that the fabric may route elsewhere",
                leases.len()
            ),
            Obstacle::Taken(taken) => {
                let nodes: BTreeSet<&str> =
                    taken.iter().map(|taken| taken.node_name.as_str()).collect();
                let count = nodes.len();
                write!(
                    f,
                    "nothing was written: {count} nodes would get prefixes of other nodes or pools"
                )
            }
        }
    }
}

impl std::error::Error for Obstacle {}

/// The changes by a plan's import, and the messages about it.
#[derive(Debug, Default)]
pub struct Import {
    /// Sorted by node and pool.
    pub lines: Vec<Line>,
    /// Messages about what looks like a mistake.
    pub warnings: Vec<String>,
    /// These stop [`write`] unless it is forced.
    pub outside: Vec<Outside>,
    /// These stop [`write`] in any case, because a prefix belongs to one node.
    pub taken: Vec<Taken>,
}

impl Import {
    /// Prints the messages that precede writing.
    pub fn print_warnings(&self) {
        for warning in &self.warnings {
            output::say(warning);
        }
        for lease in &self.outside {
            output::say(&lease.to_string());
        }
        let taken = self.taken.iter().map(Taken::to_string);
        for text in few(taken.collect()) {
            output::say(&text);
        }
    }
}

/// Prefixes with their nodes and pools. They do not overlap, as in any plan.
#[derive(Default)]
struct Owners(BTreeMap<(bool, u128), (IpNet, String, String)>);

impl Owners {
    fn insert(&mut self, prefix: IpNet, node_name: &str, pool: &str) {
        let key = (prefix.addr().is_ipv4(), bits(prefix.network()));
        self.0
            .insert(key, (prefix, node_name.to_owned(), pool.to_owned()));
    }

    /// The node and the pool that have a part of `prefix`, or all of it.
    fn of(&self, prefix: IpNet) -> Option<(&str, &str)> {
        let last = (prefix.addr().is_ipv4(), bits(prefix.broadcast()));
        let (_, (found, node_name, pool)) = self.0.range(..=last).next_back()?;
        let overlaps = found.contains(&prefix.network()) || prefix.contains(&found.network());
        overlaps.then_some((node_name, pool))
    }
}

/// The parts of the store that do not become lines.
#[derive(Default)]
struct Beside {
    /// The prefixes of nodes or pools that stay although the plan does not name them.
    staying: Owners,
    /// The prefixes that nodes lose or exchange for others, here or where their own store is
    /// written.
    leaving: Owners,
    /// The pools that stay, by node, rail and family.
    rails: BTreeMap<(String, u8, bool), String>,
    /// The number of pools that stay, for each node that the plan does not name.
    nodes: BTreeMap<String, usize>,
    /// The number of nodes that stay, for each pool that the plan does not name.
    pools: BTreeMap<String, usize>,
}

/// Compares `pools` with the store, and changes nothing.
pub fn changes(node: &Node, pools: &Pools, nodes: &Nodes, terms: &Terms) -> Result<Import> {
    let named: BTreeSet<&str> = pools
        .values()
        .flat_map(|pool| pool.keys().map(String::as_str))
        .collect();
    terms.check(&named)?;
    let is_named = |name: &str| named.contains(name);
    // A node that is not in the plan probably has another name there, and would lose everything.
    if let Nodes::Own(name) = nodes {
        if terms.prune && !is_named(name) {
            let hint = store::near_hint(name, named.iter().copied(), "the plan");
            fail!(
                InvalidConfig,
                "--prune: node {name} is not in the plan{hint}; if the node is gone, add --node {name}"
            );
        }
    }

    let mut import = Import::default();
    let store = Store::open(node)?;
    let wanted: BTreeSet<String> = match nodes.one() {
        Some(name) => [Some(name), terms.replaces.get(name)]
            .into_iter()
            .flatten()
            .cloned()
            .collect(),
        None => store
            .nodes()?
            .into_iter()
            .chain(named.iter().map(|name| (*name).to_owned()))
            .collect(),
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
            // A file that cannot be read, unlike one that is damaged, may be whole, but its content
            // is unknown.
            let is_damaged = before.is_err();
            let before = match before {
                Err(error) if !store::is_damage(&error) => return Err(error),
                before => before.unwrap_or_else(|error| {
                    import.warnings.push(format!("{error:#}"));
                    None
                }),
            };
            let mut after = planned
                .and_then(|allocations| allocations.get(node_name))
                .cloned();
            let stays = match planned {
                Some(_) => !is_named(node_name) && !goes,
                None => !(terms.prune && terms.scope == Scope::WholeStore),
            };
            match (&before, &mut after) {
                // The former content is not known, and it goes.
                (None, None) if is_damaged && !stays => (),
                (None, None) => {
                    if nodes.one() == Some(node_name) {
                        import
                            .warnings
                            .push(format!("pool {pool} has no prefix for node {node_name}"));
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
        if beside.nodes.is_empty() && beside.pools.is_empty() {
            fail!(
                InvalidConfig,
                "none of these pools has a prefix for node {name}{hint}"
            );
        }
        import
            .warnings
            .push(format!("node {name} is not in the plan{hint}"));
    }
    beside.tell(terms, &mut import.warnings);
    if nodes.one().is_some() && import.lines.iter().any(|line| line.new_prefix().is_some()) {
        look_at_others(&store, &wanted, pools, terms, &mut beside)?;
    }
    places(&mut import, &beside, &named);
    let (outside, mut warnings) = hurt(node, &import.lines)?;
    import.outside = outside;
    import.warnings.append(&mut warnings);
    import.warnings.extend(renumbered(&import.lines));
    import.warnings.extend(beside.same_rail(&import.lines));
    Ok(import)
}

/// The cables of a node stay where they are when its addresses change, and so does what its leaves
/// are configured for. A prefix that another pool of the node had is on a cable of the node
/// already.
fn renumbered(lines: &[Line]) -> Option<String> {
    let key = |allocation: &Allocation| (allocation.prefix, allocation.gateway);
    let had = lines
        .iter()
        .filter_map(|line| Some((line.node_name.as_str(), key(line.before.as_ref()?))));
    let had: BTreeSet<_> = had.collect();
    let is_other = |line: &&Line| match (&line.before, &line.after) {
        (Some(_), Some(after)) => !had.contains(&(line.node_name.as_str(), key(after))),
        _ => false,
    };
    let nodes: BTreeSet<&str> = lines
        .iter()
        .filter(is_other)
        .map(|line| line.node_name.as_str())
        .collect();
    let first = nodes.first()?;
    let who = match nodes.len() {
        1 => format!("node {first} gets"),
        count => format!("{count} nodes ({first} first) get"),
    };
    Some(format!(
        "{who} other prefixes or gateways than in the store: unless cables were moved too, change the leaf ports as well"
    ))
}

impl Beside {
    fn stays(&mut self, before: &Allocation, node_name: &str, pool: &str, is_planned_pool: bool) {
        self.staying.insert(before.prefix, node_name, pool);
        if let Some(rail) = before.rail {
            self.rails.insert(
                (node_name.to_owned(), rail, before.is_ipv4()),
                pool.to_owned(),
            );
        }
        let (of, name) = match is_planned_pool {
            true => (&mut self.nodes, node_name),
            false => (&mut self.pools, pool),
        };
        *of.entry(name.to_owned()).or_default() += 1;
    }

    /// Says that rails of the plan are also those of other pools of a node, which were planned by
    /// themselves.
    fn same_rail(&self, lines: &[Line]) -> Option<String> {
        let same = |line: &Line| {
            let Line {
                node_name,
                pool,
                after,
                ..
            } = line;
            let after = after.as_ref()?;
            let rail = after.rail?;
            let other = self
                .rails
                .get(&(node_name.clone(), rail, after.is_ipv4()))?;
            Some(format!(
                "rail {rail} of node {node_name} is in {other} and in {pool}"
            ))
        };
        let mut all = lines.iter().filter_map(same);
        let first = all.next()?;
        let more = all.count();
        let more = if more > 0 {
            format!(", and {more} more are in two pools")
        } else {
            String::new()
        };
        Some(format!(
            "{first}{more}: a network without `pool` would get both, and jobs cannot tell them apart: plan both fabrics together, or remove the other pools with --prune"
        ))
    }

    fn tell(&self, terms: &Terms, warnings: &mut Vec<String>) {
        let nodes = self.nodes.iter().map(|(name, count)| {
            format!(
                "node {name} is in the store ({count} pools) and not in the plan: it stays (--prune removes it)"
            )
        });
        warnings.extend(few(nodes.collect()));
        let pools = self.pools.iter().filter(|_| terms.scope == Scope::WholeStore).map(|(pool, count)| {
            format!(
                "pool {pool} is in the store ({count} nodes) and not in the plan: it stays (--prune removes it)"
            )
        });
        warnings.extend(few(pools.collect()));
    }
}

/// Reads the prefixes of other nodes, if one node gets a new prefix.
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
            // Damage is reported when that node is written.
            let Ok(Some(found)) = found else { continue };
            match pools.get(&pool).and_then(|pool| pool.get(other)) {
                Some(planned) if planned.prefix == found.prefix => (),
                Some(_) => beside.leaving.insert(found.prefix, other, &pool),
                None if terms.is_replaced(other) => {
                    beside.leaving.insert(found.prefix, other, &pool)
                }
                None => beside.staying.insert(found.prefix, other, &pool),
            }
        }
    }
    Ok(())
}

/// Finds the nodes that have, or had, the prefixes that other nodes get.
fn places(import: &mut Import, beside: &Beside, named: &BTreeSet<&str>) {
    let mut taken: BTreeMap<(String, String), Taken> = BTreeMap::new();
    for line in &mut import.lines {
        let Some(prefix) = line.new_prefix() else {
            continue;
        };
        let owned = |(owner, pool): (&str, &str)| (owner.to_owned(), pool.to_owned());
        // Also of the same node: a pool that stays under an old name would give the address once
        // more.
        if let Some((owner, pool)) = beside.staying.of(prefix).map(owned) {
            let key = (line.node_name.clone(), owner.clone());
            let is_pool = named.contains(owner.as_str());
            let node_name = line.node_name.clone();
            let first = Taken {
                node_name,
                owner,
                prefix,
                pool,
                count: 0,
                is_pool,
            };
            taken.entry(key).or_insert(first).count += 1;
        } else if let Some((owner, _)) = beside.leaving.of(prefix).map(owned) {
            line.takes_place_of = Some(owner).filter(|owner| *owner != line.node_name);
        }
    }
    import.taken = taken.into_values().collect();
}

/// Finds pods that keep addresses, gateways or routes which the plan changes, and warnings about
/// others.
fn hurt(node: &Node, lines: &[Line]) -> Result<(Vec<Outside>, Vec<String>)> {
    let (mut outside, mut warnings) = (Vec::new(), Vec::new());
    let is_changed = lines.iter().any(|line| line.new_prefix().is_some());
    for (entry, lease) in table::read_all(node)? {
        let (node_name, pool) = lease.as_ref().map_or_else(
            |_| Default::default(),
            |lease| (lease.node_name.clone(), lease.pool.clone()),
        );
        let name = (&*node_name, &*pool);
        // A lease that cannot be read, or was rebuilt, does not say of which pool it is.
        let own = if pool.is_empty() {
            lines.iter().find(|line| line.had(entry.address))
        } else {
            let at = lines.binary_search_by(|line| (&*line.node_name, &*line.pool).cmp(&name));
            at.ok().and_then(|at| lines.get(at))
        };
        let own = own.filter(|line| line.is_change());
        if own.is_none() && !is_changed {
            continue;
        }
        let taking = |address: IpAddr| {
            lines.iter().find_map(|line| {
                let prefix = line
                    .new_prefix()
                    .filter(|prefix| prefix.contains(&address))?;
                let is_other = (&*line.node_name, &*line.pool) != name;
                is_other.then(|| {
                    let Line {
                        node_name, pool, ..
                    } = line;
                    format!("the plan gives {prefix} to node {node_name} in pool {pool}")
                })
            })
        };
        let state = state_of(&lease, node)?;
        let json = lease_json(&entry, &lease, &state);
        let holder = match lease {
            Ok(_) if matches!(state, State::Dead) => continue,
            Ok(lease) => format!("held by {} since {}", lease.holder, lease.since),
            Err(why) => why,
        };
        let address = entry.address;
        let judged = match own {
            Some(Line { after: None, .. }) => {
                Err("the plan has no prefix for this node".to_owned())
            }
            Some(Line {
                after: Some(after), ..
            }) => after
                .check_host(address)
                .map_err(|why| format!("in the plan it {why}")),
            None => Ok(()),
        };
        let keeps = own.and_then(|line| line.before.as_ref().zip(line.after.as_ref()));
        match judged.and_then(|()| taking(address).map_or(Ok(()), Err)) {
            Err(why) => outside.push(Outside {
                node_name,
                pool,
                address,
                holder,
                why,
                lease: json,
            }),
            Ok(()) if keeps.is_some_and(|(before, after)| told(before) != told(after)) => warnings.push(format!(
                "pool {}: node {}: {address}, {holder}: the pod keeps its old prefix length, gateway and routes until \
                 it is created again",
                pool, node_name
            )),
            Ok(()) => (),
        }
    }
    Ok((outside, warnings))
}

/// The values that a pod gets with its address.
fn told(allocation: &Allocation) -> (u8, Option<IpAddr>, &[To]) {
    (
        allocation.prefix.prefix_len(),
        allocation.gateway,
        &allocation.routes,
    )
}

/// The right to write the store, where it is going to be written. A store that is not there yet is
/// made only for a plan that neither `compare` nor a running pod refuses.
pub fn writer(
    node: &Node,
    is_wanted: bool,
    force: Force,
    compare: impl Fn() -> Result<Import>,
) -> Result<Option<Writer>> {
    if !is_wanted {
        return Ok(None);
    }
    if !node.store_dir.exists() {
        let import = compare()?;
        refuse_outside(&import.outside, force).inspect_err(|_| import.print_warnings())?;
    }
    Writer::new(node).map(Some)
}

/// Fails if running pods would lose their addresses, unless that is forced.
fn refuse_outside(outside: &[Outside], force: Force) -> Result<()> {
    if force == Force::No && !outside.is_empty() {
        return Err(Obstacle::Held(outside.to_vec()).into());
    }
    Ok(())
}

/// Writes what [`changes`] found since `writer` was made. Fails if a prefix belongs to another
/// node, and without force if a running pod would lose its address.
pub fn write(node: &Node, writer: Writer, import: &Import, force: Force) -> Result<()> {
    if !import.taken.is_empty() {
        return Err(Obstacle::Taken(import.taken.clone()).into());
    }
    refuse_hurt(node, import, force)?;
    let mut changes = Vec::new();
    let mut planned_nodes: Vec<&str> = Vec::new();
    for line in &import.lines {
        if line.is_change() {
            changes.push(Change {
                node_name: &line.node_name,
                pool: &line.pool,
                allocation: line.after.as_ref(),
            });
        }
        if line.after.is_some() {
            planned_nodes.push(&line.node_name);
        }
    }
    // The lines are sorted by node.
    planned_nodes.dedup();
    crate::store::apply(writer, &changes, &planned_nodes, || {
        // While the leases are locked, no pod gets an address of the old plan. --force waits for no
        // pod.
        let lease_lock = if force == Force::No {
            hold(node, &import.lines)?
        } else {
            None
        };
        refuse_hurt(node, import, force)?;
        Ok(lease_lock)
    })
}

/// Fails if running pods would lose their addresses now, unless that is forced. Prints their leases
/// that [`Import::print_warnings`] has not printed, because they are newer.
fn refuse_hurt(node: &Node, import: &Import, force: Force) -> Result<()> {
    let (outside, _) = hurt(node, &import.lines)?;
    let refused = refuse_outside(&outside, force);
    if refused.is_err() {
        for lease in &outside {
            let is_printed = import
                .outside
                .iter()
                .any(|printed| printed.address == lease.address);
            if !is_printed {
                output::say(&lease.to_string());
            }
        }
    }
    refused
}

/// Locks the leases of this node if its plan changes. Without a run directory that can be written
/// there are none.
fn hold(node: &Node, lines: &[Line]) -> Result<Option<Lock>> {
    let Ok(own) = node_name(node) else {
        return Ok(None);
    };
    let is_changed = lines
        .iter()
        .any(|line| line.is_change() && line.node_name == own);
    if !is_changed {
        return Ok(None);
    }
    match assign::hold(node) {
        Err(error) if error::code_of(&error) == Code::TryAgain as u32 => Err(error),
        Err(error) => {
            log::warn!("{error:#}: a pod that starts now may get an address of the old plan");
            Ok(None)
        }
        held => held.map(Some),
    }
}

#[cfg(test)]
mod tests;
