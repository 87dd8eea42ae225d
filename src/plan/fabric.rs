//! A fabric in a page of YAML, for people without a topology.json: how many rails, SUs and hosts it has, and how
//! they are called. docs/planning.md explains the keys, conf/fabric.yaml is one.
//!
//! [`is_fabric`] knows such a file by its content, [`read`] makes the plan of it. Nodes are made while they are
//! read, so that a page that stands for a million of them takes no more memory than their plan.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::Result;
use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::pattern::Pattern;
use super::scheme::{Family, HostLink, Mode, Polarity, Scheme, Tiers};
use super::{Cable, Plan, refused};
use crate::cluster_networks;
use crate::document::{Document, Part};
use crate::nearest::nearest;
use crate::pool::is_name;

const KEYS: [&str; 18] = [
    "fabric",
    "tiers",
    "mode",
    "planes",
    "family",
    "firstOctet",
    "polarity",
    "rails",
    "pods",
    "sus",
    "hostsPerSU",
    "nodeName",
    "nodes",
    "hostInterface",
    "leafName",
    "leafPort",
    "mtu",
    "clusterNetworks",
];
const NODE_KEYS: [&str; 5] = ["name", "pod", "su", "host", "replaces"];

/// What `nodeName` may use, `hostInterface`, and the names of leaves and ports.
const OF_NODE: [&str; 4] = ["node", "pod", "su", "host"];
const OF_INTERFACE: [&str; 2] = ["rail", "plane"];
const OF_LEAF: [&str; 5] = ["pod", "su", "host", "rail", "plane"];

/// All of NVIDIA's IPv4 plan: 32 pods of 256 SUs of 128 hosts, with eight rails.
const MAX_LINKS: u64 = 1 << 23;
/// An IPv6 address has room for this many.
const MAX_PODS: usize = 256;

/// Is it such a file?
pub fn is_fabric(value: &Value) -> bool {
    value.get("fabric").is_some()
}

/// The plan of a fabric file.
pub fn read(document: &Document) -> Result<Plan> {
    plan(document.root()).map_err(|faults| refused(&faults))
}

fn plan(document: Part<'_>) -> Result<Plan, Vec<String>> {
    let fabric = Fabric::parse(document)?;
    let (off_pattern, warnings) = fabric.names(document)?;
    // All else was looked at with its own key.
    let place = |number: usize| {
        let (node, rail) = fabric.link(&off_pattern, number);
        format!("{}: leafName, leafPort: node {node}, rail {rail}", document.place("leafName"))
    };
    let mut plan = fabric.scheme.plan(fabric.links(&off_pattern), &place)?;
    plan.warnings.extend(warnings);
    plan.replaces = fabric.replaces;
    plan.cluster_networks.clone_from(&fabric.cluster_networks);
    Ok(plan)
}

/// Where a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    pod: u64,
    su: u64,
    host: u64,
}

/// Places whose nodes are called by a pattern.
#[derive(Debug)]
struct Grid {
    name: Pattern<4>,
    /// SUs of each pod.
    sus: Vec<u64>,
    /// In an SU.
    hosts: u64,
}

#[derive(Debug)]
struct Fabric {
    scheme: Scheme,
    rails: u64,
    planes: u64,
    grid: Option<Grid>,
    nodes: Vec<(String, Place)>,
    /// Nodes that took the place of another one.
    replaces: BTreeMap<String, String>,
    /// One for all rails, or one for each.
    interfaces: Vec<Pattern<2>>,
    leaf: Option<Pattern<5>>,
    port: Option<Pattern<5>>,
    mtu: Option<u32>,
    cluster_networks: Vec<IpNet>,
}

impl Grid {
    fn len(&self) -> u64 {
        self.sus.iter().sum::<u64>() * self.hosts
    }

    /// The place of the nth node.
    fn place(&self, node: u64) -> Place {
        let mut su = node / self.hosts;
        let mut pod = 0;
        for sus in &self.sus {
            if su < *sus {
                break;
            }
            su -= sus;
            pod += 1;
        }
        Place { pod, su, host: node % self.hosts }
    }

    fn number(&self, Place { pod, su, host }: Place) -> Option<u64> {
        let pod = usize::try_from(pod).ok()?;
        let is_inside = su < *self.sus.get(pod)? && host < self.hosts;
        is_inside.then(|| (self.sus.iter().take(pod).sum::<u64>() + su) * self.hosts + host)
    }

    fn name(&self, node: u64) -> String {
        let Place { pod, su, host } = self.place(node);
        self.name.render(&[node, pod, su, host])
    }
}

impl Fabric {
    fn parse(document: Part<'_>) -> Result<Fabric, Vec<String>> {
        let mut keys = Keys { document, faults: Vec::new() };
        if !document.value.is_object() {
            keys.fault("", "a fabric file is an object: keys and values");
            return Err(keys.faults);
        }
        keys.unknown("", &KEYS);
        if let Some(kind) = keys.get::<String>("fabric").filter(|kind| kind != "spectrum-x") {
            keys.fault(
                "fabric",
                &format!("{kind:?} is not spectrum-x, whose addresses are all that is known here"),
            );
        }
        let tiers = match keys.get::<u64>("tiers") {
            None | Some(2) => Tiers::Two,
            Some(3) => Tiers::Three,
            Some(other) => {
                keys.fault("tiers", &format!("{other} is not 2 or 3"));
                Tiers::Three
            }
        };
        let mode = keys.get("mode").unwrap_or(Mode::None);
        let scheme = Scheme {
            tiers,
            mode,
            family: keys.get("family").unwrap_or(Family::Ipv4),
            first_octet: keys.first_octet().unwrap_or(Scheme::usual_first_octet(tiers)),
            polarity: keys.get("polarity").unwrap_or(Polarity::LeafOdd),
        };
        let last = scheme.last();
        let planes = match mode {
            Mode::None => {
                match keys.get::<u64>("planes") {
                    None | Some(1) => (),
                    Some(planes) => keys.fault(
                        "planes",
                        &format!("{planes} with mode none, which has one: mode: swplb or hwplb spreads over several"),
                    ),
                }
                1
            }
            _ => keys.needed("planes", last.plane + 1),
        };
        let rails = keys.needed("rails", last.rail + 1);
        let before = keys.faults.len();
        let grid = keys.pattern("nodeName", "nodeName", &OF_NODE).map(|name| Grid {
            name,
            sus: keys.sus(&scheme),
            hosts: keys.needed("hostsPerSU", last.host + 1),
        });
        let is_good = keys.faults.len() == before;
        let (nodes, replaces) = keys.nodes(&scheme, grid.as_ref(), is_good);
        if keys.lacks("nodeName") {
            for key in ["pods", "sus", "hostsPerSU"] {
                if !keys.lacks(key) {
                    keys.fault(key, "says how many nodes nodeName is the pattern of: there is no nodeName");
                }
            }
            if nodes.is_empty() {
                keys.fault("nodeName", "is missing, and there are no nodes either: no node has a name");
            }
        }
        let hosts = grid.as_ref().map_or(0, Grid::len) + nodes.len() as u64;
        if hosts * rails * planes > MAX_LINKS {
            let what = format!(
                "{hosts} nodes with {rails} rails and {planes} planes are more than {MAX_LINKS} links"
            );
            keys.fault("", &format!("{what}: plan pods in files of their own"));
        }
        let interfaces = keys.interfaces(rails, planes, mode);
        let fabric = Fabric {
            scheme,
            rails,
            planes,
            grid,
            nodes,
            replaces,
            interfaces,
            leaf: keys.pattern("leafName", "leafName", &OF_LEAF),
            port: keys.pattern("leafPort", "leafPort", &OF_LEAF),
            mtu: keys.get("mtu"),
            cluster_networks: keys.get("clusterNetworks").unwrap_or_default(),
        };
        if let Some(mtu) = fabric.mtu.filter(|mtu| !(1280..=65535).contains(mtu)) {
            keys.fault("mtu", &format!("{mtu} is not 1280 to 65535"));
        }
        for (index, network) in fabric.cluster_networks.iter().enumerate() {
            if let Err(what) = cluster_networks::check(*network) {
                keys.fault(&format!("clusterNetworks[{index}]"), &what);
            }
        }
        fabric.check_leaves(&mut keys);
        if keys.faults.is_empty() { Ok(fabric) } else { Err(keys.faults) }
    }

    /// Digits are good in any name, so that two places stand for all.
    fn check_leaves(&self, keys: &mut Keys<'_>) {
        let last = self.scheme.last();
        let ends = [Place { pod: 0, su: 0, host: 0 }, Place { pod: last.pod, su: last.su, host: last.host }];
        for (key, is_leaf) in [("leafName", true), ("leafPort", false)] {
            let cables = ends.iter().map(|place| {
                let Cable { leaf, port, .. } = self.cable(place, self.rails - 1, self.planes - 1);
                if is_leaf { Cable { leaf, ..Cable::default() } } else { Cable { port, ..Cable::default() } }
            });
            if let Some(fault) = cables.flat_map(|cable| cable.faults()).flatten().next() {
                keys.fault(key, &fault);
            }
        }
    }

    /// Checks the names of all nodes. Gives the numbers of those that are not where the pattern has them, sorted,
    /// and warnings.
    fn names(&self, document: Part<'_>) -> Result<(Vec<u64>, Vec<String>), Vec<String>> {
        let Some(grid) = &self.grid else { return Ok((Vec::new(), Vec::new())) };
        let fault = |what: &str| Err(vec![format!("{}: nodeName: {what}", document.place("nodeName"))]);
        let listed: HashMap<&str, Place> =
            self.nodes.iter().map(|(name, place)| (name.as_str(), *place)).collect();
        let taken: HashSet<u64> = self.nodes.iter().filter_map(|(_, place)| grid.number(*place)).collect();
        let mut names = HashSet::new();
        let mut off_pattern = Vec::new();
        for node in 0..grid.len() {
            let name = grid.name(node);
            if !is_name(&name) {
                return fault(&format!("{name:?} is no name of a node"));
            }
            if taken.contains(&node) || listed.contains_key(name.as_str()) {
                off_pattern.push(node);
            }
            if let Some(name) = names.replace(name) {
                let first = (0..node).find(|first| grid.name(*first) == name).unwrap_or_default();
                let (first, second) = (shown(grid.place(first)), shown(grid.place(node)));
                return fault(&format!("node {name} would be at {first} and at {second}"));
            }
        }
        let mut warnings = Vec::new();
        for (index, (name, place)) in self.nodes.iter().enumerate() {
            let Some(displaced) = grid.number(*place).map(|node| grid.name(node)) else { continue };
            if names.contains(name) && !listed.contains_key(displaced.as_str()) {
                let path = format!("nodes[{index}]");
                warnings.push(format!(
                    "{}: {path}: node {name} is moved to the place of {displaced}, which is nowhere now",
                    document.place(&path)
                ));
            }
        }
        Ok((off_pattern, warnings))
    }

    /// Nodes by the pattern, then the listed ones.
    fn named<'a>(&'a self, off_pattern: &'a [u64]) -> impl Iterator<Item = (String, Place)> + 'a {
        let by_pattern = self.grid.iter().flat_map(move |grid| {
            let numbers = (0..grid.len()).filter(|node| off_pattern.binary_search(node).is_err());
            numbers.map(|node| (grid.name(node), grid.place(node)))
        });
        by_pattern.chain(self.nodes.iter().cloned())
    }

    fn links<'a>(&'a self, off_pattern: &'a [u64]) -> impl Iterator<Item = HostLink> + 'a {
        let on_rails = (0..self.rails).flat_map(move |rail| (0..self.planes).map(move |plane| (rail, plane)));
        self.named(off_pattern).flat_map(move |(node_name, place)| {
            on_rails.clone().map(move |(rail, plane)| HostLink {
                node_name: node_name.clone(),
                plane,
                rail,
                pod: place.pod,
                su: place.su,
                host: place.host,
                cable: self.cable(&place, rail, plane),
            })
        })
    }

    /// Node and rail of the nth link.
    fn link(&self, off_pattern: &[u64], number: usize) -> (String, u64) {
        let (number, each) = (number as u64, self.rails * self.planes);
        let mut node = number / each;
        for off in off_pattern {
            node += u64::from(*off <= node);
        }
        let in_grid = self.grid.as_ref().filter(|grid| node < grid.len());
        let name = match in_grid {
            Some(grid) => grid.name(node),
            None => {
                let index = node - self.grid.as_ref().map_or(0, Grid::len);
                let entry = usize::try_from(index).ok().and_then(|index| self.nodes.get(index));
                entry.map(|(name, _)| name.clone()).unwrap_or_default()
            }
        };
        (name, number % each / self.planes)
    }

    fn cable(&self, Place { pod, su, host }: &Place, rail: u64, plane: u64) -> Cable {
        let interface = match self.interfaces.as_slice() {
            [one] => Some(one),
            several => usize::try_from(rail).ok().and_then(|rail| several.get(rail)),
        };
        let on_leaf = [*pod, *su, *host, rail, plane];
        Cable {
            interface: interface.map(|pattern| pattern.render(&[rail, plane])),
            mtu: self.mtu,
            leaf: self.leaf.as_ref().map(|pattern| pattern.render(&on_leaf)),
            port: self.port.as_ref().map(|pattern| pattern.render(&on_leaf)),
            netplan: None,
        }
    }
}

fn shown(Place { pod, su, host }: Place) -> String {
    format!("pod {pod}, SU {su}, host {host}")
}

/// The keys of a file, with all that is wrong with them.
struct Keys<'a> {
    document: Part<'a>,
    faults: Vec<String>,
}

impl Keys<'_> {
    fn fault(&mut self, path: &str, what: &str) {
        let colon = if path.is_empty() { "" } else { ": " };
        self.faults.push(format!("{}: {path}{colon}{what}", self.document.place(path)));
    }

    /// Keys below `path` that nobody knows.
    fn unknown(&mut self, path: &str, known: &[&str]) {
        let Some(object) = self.document.get(path) else { return };
        for (key, _) in object.entries() {
            if !known.contains(&key) {
                let meant =
                    nearest(key, known.iter().copied()).map(|meant| format!(": did you mean {meant}?"));
                let dot = if path.is_empty() { "" } else { "." };
                self.fault(
                    &format!("{path}{dot}{key}"),
                    &format!("unknown key{}", meant.unwrap_or_default()),
                );
            }
        }
    }

    /// An absent key and null are the same.
    fn get<T: DeserializeOwned>(&mut self, path: &str) -> Option<T> {
        self.document.get(path).filter(|part| !part.value.is_null())?;
        self.document.decode(path).map_err(|misfit| self.faults.push(misfit.to_string())).ok()
    }

    /// Is there nothing?
    fn lacks(&self, path: &str) -> bool {
        self.document.get(path).is_none_or(|part| part.value.is_null())
    }

    /// How many of something, from 1.
    fn count(&mut self, path: &str, last: u64) -> Option<u64> {
        let count = self.get::<u64>(path)?;
        if (1..=last).contains(&count) {
            return Some(count);
        }
        self.fault(
            path,
            &format!("{count} is not 1 to {last}, which these tiers, mode and family have room for"),
        );
        None
    }

    /// The same; 1 beside a fault.
    fn needed(&mut self, path: &str, last: u64) -> u64 {
        if self.lacks(path) {
            self.fault(path, &format!("is missing: 1 to {last}"));
        }
        self.count(path, last).unwrap_or(1)
    }

    /// SUs of each pod: one number for all pods, or a list with one for each.
    fn sus(&mut self, scheme: &Scheme) -> Vec<u64> {
        let last = scheme.last();
        let pods = match (self.get::<u64>("pods"), scheme.tiers) {
            (Some(pods @ 2..), Tiers::Two) => {
                self.fault(
                    "pods",
                    &format!("{pods} with two tiers, which have one pod: several take tiers: 3"),
                );
                None
            }
            _ => self.count("pods", last.pod + 1),
        };
        let Some(list) = self.document.get("sus").filter(|part| part.value.is_array()) else {
            let pods = usize::try_from(pods.unwrap_or(1)).unwrap_or(1);
            return vec![self.needed("sus", last.su + 1); pods];
        };
        let count = list.items().count();
        match pods {
            Some(pods) if pods != count as u64 => {
                self.fault("sus", &format!("{count} numbers for {pods} pods: one for each, or one for all"));
            }
            None if !(1..=last.pod + 1).contains(&(count as u64)) => {
                let what =
                    if scheme.tiers == Tiers::Two { "two tiers have one pod" } else { "one for each pod" };
                self.fault(
                    "sus",
                    &format!("a list of {count}: {what}, and there is room for {}", last.pod + 1),
                );
            }
            _ => (),
        }
        (0..count.min(MAX_PODS)).map(|pod| self.needed(&format!("sus[{pod}]"), last.su + 1)).collect()
    }

    fn first_octet(&mut self) -> Option<u8> {
        let octet = self.get::<u64>("firstOctet")?;
        match u8::try_from(octet) {
            Ok(octet @ 1..=223) => Some(octet),
            _ => {
                self.fault("firstOctet", &format!("{octet} is not 1 to 223"));
                None
            }
        }
    }

    /// The pattern at `path`, told as one of `key`.
    fn pattern<const N: usize>(&mut self, path: &str, key: &str, known: &[&str; N]) -> Option<Pattern<N>> {
        let text = self.get::<String>(path)?;
        Pattern::parse(&text, known).map_err(|error| self.fault(key, &format!("{error:#}"))).ok()
    }

    fn interfaces(&mut self, rails: u64, planes: u64, mode: Mode) -> Vec<Pattern<2>> {
        const KEY: &str = "hostInterface";
        let count = self.document.get(KEY).and_then(|part| part.value.as_array()).map(Vec::len);
        let patterns: Vec<_> = match count {
            None => self.pattern(KEY, KEY, &OF_INTERFACE).into_iter().collect(),
            Some(count) => (0..count)
                .filter_map(|index| {
                    let path = format!("{KEY}[{index}]");
                    self.pattern(&path, &path, &OF_INTERFACE)
                })
                .collect(),
        };
        if let Some(count) = count.filter(|count| *count as u64 != rails) {
            self.fault(
                KEY,
                &format!("{count} names for {rails} rails: one for each, or one pattern with {{rail}}"),
            );
            return patterns;
        }
        let mut seen: HashMap<String, (u64, u64)> = HashMap::new();
        for (rail, plane) in (0..rails).flat_map(|rail| (0..planes).map(move |plane| (rail, plane))) {
            let own = usize::try_from(rail).ok().and_then(|rail| patterns.get(rail));
            let Some(pattern) = (if count.is_none() { patterns.first() } else { own }) else { continue };
            let interface = pattern.render(&[rail, plane]);
            let path = count.map_or_else(|| KEY.to_owned(), |_| format!("{KEY}[{rail}]"));
            let cable = Cable { interface: Some(interface.clone()), ..Cable::default() };
            if let Some(fault) = cable.faults().into_iter().flatten().next() {
                self.fault(&path, &fault);
                break;
            }
            // With hwplb the NIC has the planes behind one netdev.
            let plane = if mode == Mode::Swplb { plane } else { 0 };
            match seen.insert(interface.clone(), (rail, plane)) {
                Some((other, of)) if (other, of) != (rail, plane) => {
                    self.fault(
                        &path,
                        &format!("{interface} is the interface of rail {other}, plane {of} and of rail {rail}, plane {plane}"),
                    );
                    break;
                }
                _ => (),
            }
        }
        patterns
    }

    /// A listed node stands in an SU that there is: counted from 1, the last one would be a new one.
    fn is_of(&mut self, grid: &Grid, path: &str, Place { pod, su, .. }: Place) {
        let pods = grid.sus.len() as u64;
        let has_pods = !self.lacks("pods") || pods > 1;
        if has_pods && pod >= pods {
            let last = pods - 1;
            self.fault(
                &format!("{path}.pod"),
                &format!("{pod} is not 0 to {last}: there are {pods} pods, counted from 0"),
            );
            return;
        }
        let of_pod = usize::try_from(pod).ok().and_then(|pod| grid.sus.get(pod)).or(grid.sus.first());
        if let Some(sus) = of_pod.copied().filter(|sus| su >= *sus) {
            let last = sus - 1;
            self.fault(
                &format!("{path}.su"),
                &format!("{su} is not 0 to {last}: sus says {sus}, counted from 0"),
            );
        }
    }

    /// Nodes that do not follow the pattern, or all of them; and whose place each of them took.
    fn nodes(
        &mut self,
        scheme: &Scheme,
        grid: Option<&Grid>,
        is_good: bool,
    ) -> (Vec<(String, Place)>, BTreeMap<String, String>) {
        let (mut nodes, mut replaces) = (Vec::new(), BTreeMap::new());
        let list = match self.document.get("nodes").map(|part| part.value) {
            None | Some(Value::Null) => return (nodes, replaces),
            Some(Value::Array(list)) => list,
            Some(_) => {
                self.fault("nodes", "is not a list");
                return (nodes, replaces);
            }
        };
        let last = scheme.last();
        let (mut names, mut places) = (HashMap::new(), HashMap::new());
        for (index, value) in list.iter().enumerate() {
            let path = format!("nodes[{index}]");
            if !value.is_object() {
                self.fault(&path, "is not an object: {name: ..., su: ..., host: ...}");
                continue;
            }
            self.unknown(&path, &NODE_KEYS);
            let before = self.faults.len();
            let old = self.get::<String>(&format!("{path}.replaces"));
            let place_of_old = match &old {
                Some(old) => self.place_of(old, &path, grid),
                None => None,
            };
            let mut number = |key: &str, last: u64, default: Option<u64>| {
                let path = format!("{path}.{key}");
                if self.lacks(&path) {
                    if default.is_none() {
                        self.fault(&path, &format!("is missing: 0 to {last}"));
                    }
                    return default.unwrap_or(0);
                }
                let number = self.get::<u64>(&path).unwrap_or(0);
                if number > last {
                    self.fault(&path, &scheme.outside(key, number, last));
                }
                number
            };
            let place = match place_of_old {
                Some(place) => place,
                None => Place {
                    pod: number("pod", last.pod, (scheme.tiers == Tiers::Two).then_some(0)),
                    su: number("su", last.su, None),
                    host: number("host", last.host, None),
                },
            };
            if let Some(grid) = grid.filter(|_| is_good && self.faults.len() == before) {
                self.is_of(grid, &path, place);
            }
            let path_of_name = format!("{path}.name");
            let name = self.get::<String>(&path_of_name);
            match &name {
                None if self.lacks(&path_of_name) => self.fault(&path_of_name, "is missing"),
                Some(name) if !is_name(name) => {
                    self.fault(&path_of_name, &format!("{name:?} is no name of a node"));
                }
                _ => (),
            }
            let Some(name) = name.filter(|_| self.faults.len() == before) else { continue };
            if let Some(other) = names.insert(name.clone(), index) {
                self.fault(&path_of_name, &format!("node {name} is also nodes[{other}]"));
            }
            if let Some(other) = places.insert(place, index) {
                self.fault(&path, &format!("{} is also the place of nodes[{other}]", shown(place)));
            }
            if let Some(old) = old {
                replaces.insert(name.clone(), old);
            }
            nodes.push((name, place));
        }
        (nodes, replaces)
    }

    /// Where the node that `path` replaces stood, unless the entry says it itself.
    fn place_of(&mut self, old: &str, path: &str, grid: Option<&Grid>) -> Option<Place> {
        if !is_name(old) {
            self.fault(&format!("{path}.replaces"), &format!("{old:?} is no name of a node"));
        }
        if ["pod", "su", "host"].iter().any(|key| !self.lacks(&format!("{path}.{key}"))) {
            return None;
        }
        let number = grid
            .and_then(|grid| (0..grid.len()).find(|node| grid.name(*node) == old).map(|node| (grid, node)));
        if number.is_none() {
            let why = format!("{old} is not by nodeName: say su and host, where it stood");
            self.fault(&format!("{path}.replaces"), &why);
        }
        // Beside a fault any place will do.
        Some(number.map_or(Place { pod: 0, su: 0, host: 0 }, |(grid, node)| grid.place(node)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;
    use proptest::prelude::*;

    fn plan_of(yaml: &str) -> Result<Plan, Vec<String>> {
        let [document] = &document::parse("fabric.yaml", yaml.as_bytes()).unwrap()[..] else { panic!("one") };
        let mut plan = plan(document.root())?;
        plan.check()?;
        Ok(plan)
    }

    /// Two rails, two SUs of two hosts, and what is added.
    fn small(more: &str) -> String {
        format!("fabric: spectrum-x\nrails: 2\nsus: 2\nhostsPerSU: 2\nnodeName: w{{node}}\n{more}")
    }

    fn rows(plan: &Plan, pool: usize) -> Vec<String> {
        let rows = plan.pools[pool].spec.static_allocations.iter();
        rows.map(|row| format!("{} {} {}", row.node_name, row.prefix, row.gateway)).collect()
    }

    /// The deployment that the project came from: 64 nodes, two SUs of 32, eight rails.
    #[test]
    fn the_example_is_the_deployment() {
        let plan = plan_of(include_str!("../../conf/fabric.yaml")).unwrap();
        assert_eq!((plan.pools.len(), plan.nodes().len(), plan.warnings.len()), (8, 64, 0));
        let rail = &plan.pools[0];
        assert_eq!((rail.name.as_str(), rail.spec.cidr.as_str()), ("rail-0", "172.16.0.0/15"));
        let routes: Vec<_> = rail.spec.routes.iter().map(|to| to.dst.as_str()).collect();
        assert_eq!(routes, ["172.16.0.0/15", "172.16.0.0/12"]);
        assert_eq!(rows(&plan, 0)[62], "worker-gpu-62 172.16.1.60/31 172.16.1.61");
        assert_eq!(rows(&plan, 7)[63], "worker-gpu-63 172.30.1.62/31 172.30.1.63");
        let cable = Cable {
            interface: Some("eth_r0".into()),
            mtu: Some(9216),
            leaf: Some("leaf-su02-r1".into()),
            port: Some("swp16s0".into()),
            netplan: None,
        };
        assert_eq!(rail.cables[62], [cable]);
    }

    #[test]
    fn every_mode_has_its_pools() {
        let shown = |more: &str| {
            let plan = plan_of(&small(more)).unwrap();
            let last = |pool: usize| rows(&plan, pool).pop().unwrap();
            let names: Vec<_> = plan.pools.iter().map(|pool| pool.name.clone()).collect();
            format!("{}: {}", names.join(" "), last(plan.pools.len() - 1))
        };
        for (more, expected) in [
            ("", "rail-0 rail-1: w3 172.18.1.2/31 172.18.1.3"),
            ("polarity: leaf-even\nfirstOctet: 10", "rail-0 rail-1: w3 10.18.1.2/31 10.18.1.2"),
            (
                "mode: swplb\nplanes: 2",
                "rail-0-plane-0 rail-0-plane-1 rail-1-plane-0 rail-1-plane-1: w3 172.20.65.2/31 172.20.65.3",
            ),
            ("mode: hwplb\nplanes: 4", "rail-0 rail-1: w3 172.16.65.2/31 172.16.65.3"),
            ("tiers: 3\npods: 2", "rail-0 rail-1: w7 10.33.1.2/31 10.33.1.3"),
            (
                "tiers: 3\npods: 5\nmode: swplb\nplanes: 2",
                "rail-0-plane-0 rail-0-plane-1 rail-1-plane-0 rail-1-plane-1: w19 10.73.1.2/31 10.73.1.3",
            ),
            ("tiers: 3\npods: 2\nmode: hwplb\nplanes: 2", "rail-0 rail-1: w7 10.8.65.2/31 10.8.65.3"),
            ("family: ipv6", "rail-0 rail-1: w3 fd02:0:100:101::/64 fd02:0:100:101::2"),
            ("family: dual", "rail-0 rail-0-v6 rail-1 rail-1-v6: w3 fd02:0:100:101::/64 fd02:0:100:101::2"),
        ] {
            assert_eq!(shown(more), expected, "{more}");
        }
    }

    /// One more SU in one pod; who is called by pod and SU keeps his address.
    #[test]
    fn pods_have_as_many_sus_as_they_have() {
        let of = |sus: &str, pods: &str| {
            let text = small(&format!("tiers: 3\n{pods}")).replace("sus: 2", sus);
            plan_of(&text.replace("w{node}", "p{pod}s{su}h{host}-{node}")).unwrap()
        };
        let plan = of("sus: [1, 3, 2]", "");
        assert_eq!(
            rows(&plan, 0),
            [
                "p0s0h0-0 10.0.0.0/31 10.0.0.1",
                "p0s0h1-1 10.0.0.2/31 10.0.0.3",
                "p1s0h0-2 10.1.0.0/31 10.1.0.1",
                "p1s0h1-3 10.1.0.2/31 10.1.0.3",
                "p1s1h0-4 10.1.1.0/31 10.1.1.1",
                "p1s1h1-5 10.1.1.2/31 10.1.1.3",
                "p1s2h0-6 10.1.2.0/31 10.1.2.1",
                "p1s2h1-7 10.1.2.2/31 10.1.2.3",
                "p2s0h0-8 10.2.0.0/31 10.2.0.1",
                "p2s0h1-9 10.2.0.2/31 10.2.0.3",
                "p2s1h0-10 10.2.1.0/31 10.2.1.1",
                "p2s1h1-11 10.2.1.2/31 10.2.1.3",
            ]
        );
        assert_eq!(rows(&of("sus: [2, 2]", ""), 1), rows(&of("sus: 2", "pods: 2"), 1));
        assert_eq!(rows(&of("sus: [2, 2]", "pods: 2"), 1), rows(&of("sus: 2", "pods: 2"), 1));
        let listed = "nodes:\n- {name: x, pod: 1, su: 2, host: 1}";
        let plan = of("sus: [1, 3]", listed);
        assert_eq!(rows(&plan, 0).last().unwrap(), "x 10.1.2.2/31 10.1.2.3");
        assert_eq!(plan.nodes().len(), 8);
    }

    /// With `hwplb` a NIC has all planes behind one netdev.
    #[test]
    fn cables_are_named_by_patterns() {
        let planes =
            "planes: 2\nleafName: leaf-p{plane+1}-su{su+1:03}-r{rail+1}\nleafPort: swp{host/2+1}s{host%2}\n";
        let hwplb = plan_of(&small(&format!("mode: hwplb\n{planes}hostInterface: eth_r{{rail}}"))).unwrap();
        let cables: Vec<_> = hwplb.pools[1].cables[3]
            .iter()
            .map(|cable| {
                let text = |text: &Option<String>| text.clone().unwrap();
                format!("{} {} {}", text(&cable.interface), text(&cable.leaf), text(&cable.port))
            })
            .collect();
        assert_eq!(cables, ["eth_r1 leaf-p1-su002-r2 swp1s1", "eth_r1 leaf-p2-su002-r2 swp1s1"]);
        let listed = format!("mode: swplb\n{planes}hostInterface: [\"ens1f{{plane}}\", \"ens9f{{plane}}\"]");
        let swplb = plan_of(&small(&listed)).unwrap();
        assert_eq!(swplb.pools[3].cables[0][0].interface.as_deref(), Some("ens9f1"));
        assert_eq!(plan_of(&small("")).unwrap().pools[0].cables[0], []);
    }

    #[test]
    fn the_list_of_nodes_wins_over_the_pattern() {
        let listed = "nodes:\n- {name: other, su: 0, host: 1}\n- {name: w2, su: 3, host: 127}\n";
        let faults = plan_of(&small(listed)).unwrap_err();
        assert_eq!(faults, ["fabric.yaml:8: nodes[1].su: 3 is not 0 to 1: sus says 2, counted from 0"]);
        let listed = "nodes:\n- {name: other, su: 0, host: 1}\n- {name: w2, su: 1, host: 127}\n";
        let plan = plan_of(&small(listed)).unwrap();
        assert_eq!(
            rows(&plan, 0),
            [
                "w0 172.16.0.0/31 172.16.0.1",
                "other 172.16.0.2/31 172.16.0.3",
                "w3 172.16.1.2/31 172.16.1.3",
                "w2 172.16.1.254/31 172.16.1.255"
            ]
        );
        assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
        let swapped = "nodes:\n- {name: w1, su: 1, host: 1}\n- {name: w3, su: 0, host: 1}\n";
        let plan = plan_of(&small(swapped)).unwrap();
        assert_eq!(rows(&plan, 0)[1], "w3 172.16.0.2/31 172.16.0.3");
        assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
        let moved = plan_of(&small("nodes:\n- {name: w1, su: 1, host: 1}\n")).unwrap();
        assert_eq!(
            moved.warnings,
            ["fabric.yaml:7: nodes[0]: node w1 is moved to the place of w3, which is nowhere now"]
        );
    }

    #[test]
    fn a_list_of_nodes_needs_no_pattern() {
        let plan = plan_of(
            "fabric: spectrum-x\ntiers: 3\nrails: 1\nnodes:\n\
             - {name: alpha.example, pod: 1, su: 0, host: 0}\n- {name: beta, pod: 0, su: 255, host: 127}\n",
        );
        let plan = plan.unwrap();
        assert_eq!(
            rows(&plan, 0),
            ["beta 10.0.255.254/31 10.0.255.255", "alpha.example 10.1.0.0/31 10.1.0.1"]
        );
    }

    #[test]
    fn every_fault_is_told_with_line_and_key() {
        let without = |key: &str| -> String {
            small("").lines().filter(|line| !line.starts_with(key)).map(|line| format!("{line}\n")).collect()
        };
        for (yaml, told) in [
            (small("tires: 3"), "fabric.yaml:6: tires: unknown key: did you mean tiers?"),
            (small("colour: red"), "fabric.yaml:6: colour: unknown key"),
            (small("tiers: 4"), "fabric.yaml:6: tiers: 4 is not 2 or 3"),
            (small("tiers: two"), "fabric.yaml:6: tiers: invalid type: string \"two\", expected u64"),
            (small("mode: both"), "fabric.yaml:6: mode: unknown variant `both`, expected one of `none`, `swplb`"),
            (small("mode: swplb"), "fabric.yaml:1: planes: is missing: 1 to 4"),
            (small("mode: swplb\nplanes: 5"), "fabric.yaml:7: planes: 5 is not 1 to 4"),
            (small("planes: 2"), "fabric.yaml:6: planes: 2 with mode none, which has one: mode: swplb or hwplb"),
            (small("family: ipx"), "fabric.yaml:6: family: unknown variant `ipx`"),
            (small("firstOctet: 224"), "fabric.yaml:6: firstOctet: 224 is not 1 to 223"),
            (small("polarity: odd"), "fabric.yaml:6: polarity: unknown variant `odd`"),
            (small("pods: 2"), "fabric.yaml:6: pods: 2 with two tiers, which have one pod: several take tiers: 3"),
            (small("").replace("sus: 2", "sus: [2, 2]"), "fabric.yaml:3: sus: a list of 2: two tiers have one pod"),
            (small("").replace("sus: 2", "sus: []"), "fabric.yaml:3: sus: a list of 0: two tiers have one pod"),
            (
                small("tiers: 3\npods: 3").replace("sus: 2", "sus: [2, 2]"),
                "fabric.yaml:3: sus: 2 numbers for 3 pods: one for each, or one for all",
            ),
            (small("tiers: 3").replace("sus: 2", "sus: [2, 0]"), "fabric.yaml:3: sus[1]: 0 is not 1 to 256"),
            (small("tiers: 3").replace("sus: 2", "sus: [2, ~]"), "fabric.yaml:3: sus[1]: is missing: 1 to 256"),
            (small("clusterNetworks: [10.96.0.1/12]"), "fabric.yaml:6: clusterNetworks[0]: 10.96.0.1/12 has host bits"),
            (small("clusterNetworks: 10.96.0.0/12"), "fabric.yaml:6: clusterNetworks: invalid type"),
            (
                small("nodes:\n- {name: x, su: 2, host: 0}"),
                "fabric.yaml:7: nodes[0].su: 2 is not 0 to 1: sus says 2, counted from 0",
            ),
            (
                small("tiers: 3\npods: 2\nnodes:\n- {name: x, pod: 2, su: 0, host: 0}"),
                "fabric.yaml:9: nodes[0].pod: 2 is not 0 to 1: there are 2 pods, counted from 0",
            ),
            (
                small("tiers: 3\nnodes:\n- {name: x, pod: 1, su: 2, host: 0}").replace("sus: 2", "sus: [3, 2]"),
                "fabric.yaml:8: nodes[0].su: 2 is not 0 to 1: sus says 2",
            ),
            (
                small("nodes:\n- {name: x, pod: 1, su: 0, host: 0}"),
                "fabric.yaml:7: nodes[0].pod: 1 is not 0: two tiers of switches have one pod",
            ),
            (small("mtu: 900"), "fabric.yaml:6: mtu: 900 is not 1280 to 65535"),
            (small("nodes: w1"), "fabric.yaml:6: nodes: is not a list"),
            (small("nodes: [w1]"), "fabric.yaml:6: nodes[0]: is not an object"),
            (small("nodes:\n- {nome: w1, su: 0, host: 0}"), "fabric.yaml:7: nodes[0].nome: unknown key: did you mean name?"),
            (small("nodes:\n- {su: 0, host: 0}"), "fabric.yaml:7: nodes[0].name: is missing"),
            (small("nodes:\n- {name: x, host: 0}"), "fabric.yaml:7: nodes[0].su: is missing: 0 to 63"),
            (small("nodes:\n- {name: x, su: 64, host: 0}"), "fabric.yaml:7: nodes[0].su: 64 is not 0 to 63"),
            (small("nodes:\n- {name: x, su: 0, host: -1}"), "fabric.yaml:7: nodes[0].host: invalid value"),
            (small("nodes:\n- {name: ../x, su: 0, host: 0}"), "fabric.yaml:7: nodes[0].name: \"../x\" is no name"),
            (
                small("nodes:\n- {name: x, su: 0, host: 0}\n- {name: x, su: 0, host: 1}"),
                "fabric.yaml:8: nodes[1].name: node x is also nodes[0]",
            ),
            (
                small("nodes:\n- {name: x, su: 0, host: 0}\n- {name: y, su: 0, host: 0}"),
                "fabric.yaml:8: nodes[1]: pod 0, SU 0, host 0 is also the place of nodes[0]",
            ),
            (small("tiers: 3\nnodes:\n- {name: x, su: 0, host: 0}"), "nodes[0].pod: is missing: 0 to 31"),
            (small("hostInterface: eth{rial}"), "hostInterface: {rial} is not one of {rail}, {plane}: did you mean rail?"),
            (small("hostInterface: eth0"), "fabric.yaml:6: hostInterface: eth0 is the interface of rail 0, plane 0 and of rail 1"),
            (small("hostInterface: [eth0]"), "fabric.yaml:6: hostInterface: 1 names for 2 rails"),
            (small("hostInterface:\n- eth0\n- {}"), "fabric.yaml:8: hostInterface[1]: invalid type: map"),
            (small("hostInterface: eth {rail}"), "fabric.yaml:6: hostInterface: \"eth 0\" is no name of a netdev"),
            (small("leafName: leaf/{su}"), "fabric.yaml:6: leafName: \"leaf/0\" is no name of a leaf"),
            (small("leafPort: swp{host}; reboot"), "fabric.yaml:6: leafPort: \"swp0; reboot\" is no name of a switch"),
            (
                small("leafPort: swp{host}\nleafName: leaf-{su}"),
                "fabric.yaml:7: leafName, leafPort: node w0, rail 1: port swp0 of leaf-0 has another cable (",
            ),
            (
                small("leafPort: swp{host}\nleafName: leaf-{rail}\nnodes: [{name: x, su: 0, host: 0}]"),
                "leafPort: node w3, rail 0: port swp1 of leaf-0 has another cable (fabric.yaml:7: leafName, leafPort: node w1, rail 0)",
            ),
            (small("").replace("w{node}", "w{name}"), "fabric.yaml:5: nodeName: {name} is not one of {node}, {pod}"),
            (small("").replace("w{node}", "w{"), "fabric.yaml:5: nodeName: \"w{\": a brace"),
            (small("").replace("w{node}", "../w{node}"), "fabric.yaml:5: nodeName: \"../w0\" is no name of a node"),
            (
                small("").replace("w{node}", "w{host}"),
                "fabric.yaml:5: nodeName: node w0 would be at pod 0, SU 0, host 0 and at pod 0, SU 1, host 0",
            ),
            (small("").replace("spectrum-x", "ib"), "fabric.yaml:1: fabric: \"ib\" is not spectrum-x"),
            (small("").replace("rails: 2", "rails: 9"), "fabric.yaml:2: rails: 9 is not 1 to 8"),
            (small("").replace("rails: 2", "rails: 0"), "fabric.yaml:2: rails: 0 is not 1 to 8"),
            (small("").replace("sus: 2", "sus: 65"), "fabric.yaml:3: sus: 65 is not 1 to 64"),
            (small("").replace("hostsPerSU: 2", "hostsPerSU: 129"), "fabric.yaml:4: hostsPerSU: 129 is not 1 to 128"),
            (small("tiers: 3\npods: 33"), "fabric.yaml:7: pods: 33 is not 1 to 32"),
            (without("rails"), "fabric.yaml:1: rails: is missing: 1 to 8"),
            (without("sus"), "fabric.yaml:1: sus: is missing: 1 to 64"),
            (without("nodeName"), "fabric.yaml:3: sus: says how many nodes nodeName is the pattern of"),
            ("fabric: spectrum-x\nrails: 1".into(), "nodeName: is missing, and there are no nodes either"),
            (
                "fabric: spectrum-x\nrails: 8\ntiers: 3\nfamily: ipv6\npods: 256\nsus: 256\nhostsPerSU: 256\nnodeName: w{node}".into(),
                "fabric.yaml:1: 16777216 nodes with 8 rails and 1 planes are more than 8388608 links",
            ),
            ("- fabric".into(), "fabric.yaml:1: a fabric file is an object"),
        ] {
            let faults = plan_of(&yaml).unwrap_err();
            assert!(faults.iter().any(|fault| fault.contains(told)), "{told}: {faults:#?}");
        }
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let faults =
            plan_of("fabric: ib\nrails: 9\nsus: 0\nhostsPerSU: 999\nnodeName: '{x}'\nmtu: 1").unwrap_err();
        let keys: Vec<_> = faults.iter().filter_map(|fault| fault.split(": ").nth(1)).collect();
        assert_eq!(keys.len(), 4, "{faults:#?}");
        for key in ["fabric", "rails", "nodeName", "mtu"] {
            assert!(keys.contains(&key), "{key}: {faults:#?}");
        }
    }

    proptest! {
        #[test]
        fn no_fabric_makes_it_panic(
            lines in proptest::collection::vec(
                ("(tiers|mode|planes|family|rails|pods|sus|hostsPerSU|nodeName|nodes|leafName|leafPort|hostInterface|mtu|clusterNetworks|x)",
                 "([0-9]{1,3}|-1|1e9|18446744073709551615|none|swplb|ipv6|'w\\{(node|host|rail)[+*/%0-9]{0,3}\\}'|\\[[0-9,]{0,4}\\]|\\[\\{name: a, su: [0-9], host: [0-9]{1,3}\\}\\]|\\{\\}|~)"),
                0..12),
        ) {
            let mut seen = std::collections::BTreeMap::new();
            seen.extend(lines);
            let text: String = seen.iter().map(|(key, value)| format!("{key}: {value}\n")).collect();
            let text = format!("fabric: spectrum-x\n{text}");
            if let Ok(documents) = document::parse("f", text.as_bytes()) {
                for document in documents {
                    let _ = read(&document);
                }
            }
        }
    }
}
