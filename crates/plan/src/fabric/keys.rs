//! The keys of a fabric file.
//!
//! A fault must not make others: what a bad key says is unknown, so nothing that depends on it is
//! checked.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Addressing, Fabric, Grid, Spot};
use crate::document::Part;
use crate::pattern::Pattern;
use crate::plan::Cable;
use crate::scheme::{Family, Last, Mode, Polarity, Scheme, Tiers, is_first_octet};
use rail_cni::cluster_networks;
use rail_cni::fault::{Fault, Place};
use rail_cni::nearest::nearest;
use rail_cni::node::MAX_RAIL;
use rail_cni::pool::is_name;

const KEYS: [&str; 25] = [
    "fabric",
    "tiers",
    "mode",
    "planes",
    "family",
    "firstOctet",
    "address",
    "prefixLength",
    "polarity",
    "gateway",
    "routes",
    "rails",
    "firstRail",
    "poolName",
    "pods",
    "sus",
    "hostsPerSU",
    "nodeName",
    "nodes",
    "hostInterface",
    "leafName",
    "leafPort",
    "leafVrf",
    "mtu",
    "clusterNetworks",
];
/// Keys that not all kinds have, and the kinds that have them.
const KEYS_OF_KINDS: [(&str, &[Kind]); 8] = [
    ("tiers", &[Kind::SpectrumX]),
    ("family", &[Kind::SpectrumX]),
    ("firstOctet", &[Kind::SpectrumX]),
    ("polarity", &[Kind::SpectrumX, Kind::P2p]),
    ("prefixLength", &[Kind::P2p]),
    ("address", &[Kind::P2p, Kind::Unnumbered]),
    ("gateway", &[Kind::Unnumbered]),
    ("routes", &[Kind::P2p, Kind::Unnumbered]),
];
const NODE_KEYS: [&str; 5] = ["name", "pod", "su", "host", "replaces"];

/// The numbers that patterns may use: `nodeName`, `hostInterface`, and the names of leaves and
/// ports.
const OF_NODE: [&str; 4] = ["node", "pod", "su", "host"];
pub(super) const OF_INTERFACE: [&str; 2] = ["rail", "plane"];
pub(super) const OF_LEAF: [&str; 5] = ["pod", "su", "host", "rail", "plane"];

/// As many links as NVIDIA's IPv4 plan has: 32 pods of 256 SUs of 128 hosts, with eight rails.
const MAX_LINKS: u64 = 1 << 23;
/// An IPv6 address has room for this many pods.
const MAX_PODS: usize = 256;
/// Largest numbers with address patterns; only these have room for more. With planes, the network
/// of rail 8 would have the number of rail 0 on plane 1.
const LAST_OF_PATTERNS: Last = Last {
    rail: 7,
    host: 65535,
    su: 65535,
    pod: 255,
    plane: 3,
};
/// The last rail without planes.
const LAST_WITHOUT_PLANES: u64 = 31;

/// The kind of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum Kind {
    /// NVIDIA's formulas.
    #[serde(rename = "spectrum-x")]
    SpectrumX,
    /// Each link has a prefix by a pattern.
    #[serde(rename = "l3-p2p")]
    P2p,
    /// Hosts have an address by a pattern, and links no prefix.
    #[serde(rename = "unnumbered")]
    Unnumbered,
}

/// Parses a file. The error has all faults.
pub(super) fn parse(document: Part<'_>) -> Result<Fabric, Vec<Fault>> {
    let mut keys = Keys {
        document,
        kind: Kind::SpectrumX,
        faults: Vec::new(),
        misspelt: BTreeSet::new(),
    };
    if !document.value.is_object() {
        return Err(vec![
            document.fault("", "a fabric file must be an object of keys and values"),
        ]);
    }
    keys.unknown("", &KEYS);
    let Some(kind) = keys.get("fabric") else {
        return Err(keys.faults);
    };
    keys.kind = kind;
    for (key, kinds) in KEYS_OF_KINDS {
        if !kinds.contains(&kind) && !keys.lacks(key) {
            keys.fault(key, "is not a key of this kind of fabric");
        }
    }
    let limits = keys.limits();
    let Limits {
        scheme,
        mode,
        last,
        planes,
        ..
    } = limits;
    let rails = keys.needed("rails", last.rail + 1);
    let before = keys.faults.len();
    let grid = keys.pattern("nodeName", &OF_NODE).map(|name| Grid {
        name,
        sus: keys.sus(&limits),
        hosts: keys.needed("hostsPerSU", last.host + 1).unwrap_or(1),
    });
    let is_grid_known = keys.faults.len() == before && !keys.misspelt.contains("nodeName");
    let nodes = keys.nodes(&limits, grid.as_ref(), is_grid_known);
    keys.needs_names(&nodes);
    let hosts = grid.as_ref().map_or(0, Grid::len) + nodes.entries.len() as u64;
    let (rail_count, plane_count) = (rails.unwrap_or(1), planes.unwrap_or(1));
    if hosts * rail_count * plane_count > MAX_LINKS {
        let what = format!("{hosts} nodes with {rail_count} rails and {plane_count} planes");
        let problem =
            format!("{what} have more than {MAX_LINKS} links: plan pods in files of their own");
        keys.fault("", problem);
    }
    let interfaces = keys.interfaces(rails, plane_count, mode);
    let addressing = match scheme {
        Some(scheme) => Addressing::SpectrumX(scheme),
        None => Addressing::Patterns(keys.patterns(kind, mode, rail_count, plane_count)),
    };
    let fabric = Fabric {
        addressing,
        rails: rail_count,
        first_rail: keys.get("firstRail"),
        pool_name: keys.pattern("poolName", &OF_INTERFACE),
        planes: plane_count,
        grid,
        nodes: nodes.entries,
        listed: nodes.listed,
        replaces: nodes.replaces,
        interfaces,
        leaf: keys.pattern("leafName", &OF_LEAF),
        port: keys.pattern("leafPort", &OF_LEAF),
        vrf: keys.pattern("leafVrf", &OF_LEAF),
        mtu: keys.get("mtu"),
        cluster_networks: keys.get("clusterNetworks").unwrap_or_default(),
    };
    if let Some(mtu) = fabric.mtu.filter(|mtu| !(1280..=65535).contains(mtu)) {
        keys.fault("mtu", format!("{mtu} is not 1280 to 65535"));
    }
    if let Some(first) = fabric.first_rail.filter(|first| *first > MAX_RAIL) {
        keys.fault("firstRail", format!("{first} is not 0 to {MAX_RAIL}"));
    }
    if let Some(name) = fabric
        .pool_name
        .as_ref()
        .map(|pattern| pattern.render(&[0, 0]))
        .filter(|name| !is_name(name))
    {
        keys.fault(
            "poolName",
            format!("{name:?} is not a valid name of a pool"),
        );
    }
    for (index, network) in fabric.cluster_networks.iter().enumerate() {
        if let Err(problem) = cluster_networks::check(*network) {
            keys.fault(&format!("clusterNetworks[{index}]"), problem);
        }
    }
    keys.leaves(&fabric, last);
    if keys.faults.is_empty() {
        Ok(fabric)
    } else {
        Err(keys.faults)
    }
}

/// The numbers of rails, pods and hosts that the addresses of a fabric have room for.
struct Limits {
    /// `None` where addresses follow from patterns.
    scheme: Option<Scheme>,
    mode: Mode,
    last: Last,
    /// `None` where it is not known.
    planes: Option<u64>,
    /// The pod of a listed node that names none.
    default_pod: Option<u64>,
}

/// The list `nodes`.
#[derive(Default)]
struct Listed {
    entries: Vec<(String, Spot)>,
    listed: BTreeMap<String, Place>,
    replaces: BTreeMap<String, String>,
    /// The number of items, with those that have faults.
    count: usize,
}

/// The keys of a file, with the faults that were found so far.
pub(super) struct Keys<'a> {
    document: Part<'a>,
    kind: Kind,
    faults: Vec<Fault>,
    /// Paths that an unknown key probably means. They are not reported as missing.
    misspelt: BTreeSet<String>,
}

impl Keys<'_> {
    pub(super) fn fault(&mut self, path: &str, problem: impl Into<String>) {
        self.faults.push(self.document.fault(path, problem));
    }

    /// Reports keys below `path` that are not known.
    fn unknown(&mut self, path: &str, known: &[&str]) {
        let Some(object) = self.document.get(path) else {
            return;
        };
        let dot = if path.is_empty() { "" } else { "." };
        for (key, _) in object.entries().filter(|(key, _)| !known.contains(key)) {
            let problem = match nearest(key, known.iter().copied()) {
                Some(meant) => {
                    self.misspelt.insert(format!("{path}{dot}{meant}"));
                    format!("unknown key: did you mean {meant}?")
                }
                None => "unknown key".to_owned(),
            };
            self.fault(&format!("{path}{dot}{key}"), problem);
        }
    }

    /// The value at `path`; `None` where it is absent, null or bad.
    pub(super) fn get<T: DeserializeOwned>(&mut self, path: &str) -> Option<T> {
        self.document
            .get(path)
            .filter(|part| !part.value.is_null())?;
        self.document
            .decode(path)
            .map_err(|fault| self.faults.push(fault))
            .ok()
    }

    /// The value at `path`, as it is; `None` where it is absent or null.
    pub(super) fn value(&self, path: &str) -> Option<&Value> {
        self.document
            .get(path)
            .map(|part| part.value)
            .filter(|value| !value.is_null())
    }

    /// Whether there is no value.
    fn lacks(&self, path: &str) -> bool {
        self.document
            .get(path)
            .is_none_or(|part| part.value.is_null())
    }

    /// Whether the value is missing, without even a misspelt key.
    pub(super) fn is_missing(&self, path: &str) -> bool {
        self.lacks(path) && !self.misspelt.contains(path)
    }

    /// A number from 1 to `last`.
    fn count(&mut self, path: &str, last: u64) -> Option<u64> {
        let count = self.get::<u64>(path)?;
        if (1..=last).contains(&count) {
            return Some(count);
        }
        let range = if self.kind == Kind::SpectrumX {
            ", the range with these tiers, mode and family"
        } else {
            ""
        };
        self.fault(path, format!("{count} is not 1 to {last}{range}"));
        None
    }

    /// A number from 1 to `last` that must be there; `None` beside a fault.
    fn needed(&mut self, path: &str, last: u64) -> Option<u64> {
        if self.is_missing(path) {
            self.fault(path, format!("is missing: 1 to {last}"));
        }
        self.count(path, last)
    }

    /// The scheme, and what it has room for. If tiers, mode or family are bad, the widest limits
    /// hold.
    fn limits(&mut self) -> Limits {
        if self.kind != Kind::SpectrumX {
            let mode = self.get("mode").unwrap_or(Mode::None);
            let rail = if mode == Mode::None {
                LAST_WITHOUT_PLANES
            } else {
                LAST_OF_PATTERNS.rail
            };
            let last = Last {
                rail,
                ..LAST_OF_PATTERNS
            };
            let planes = self.planes(mode, last);
            let default_pod = self.lacks("pods").then_some(0);
            return Limits {
                scheme: None,
                mode,
                last,
                planes,
                default_pod,
            };
        }
        let before = self.faults.len();
        let tiers = match self.get::<u64>("tiers") {
            None | Some(2) => Tiers::Two,
            Some(3) => Tiers::Three,
            Some(other) => {
                self.fault("tiers", format!("{other} is not 2 or 3"));
                Tiers::Three
            }
        };
        let mode = self.get("mode").unwrap_or(Mode::None);
        let family = self.get("family").unwrap_or(Family::Ipv4);
        let is_known = self.faults.len() == before
            && !["tiers", "mode", "family"]
                .iter()
                .any(|key| self.misspelt.contains(*key));
        let scheme = Scheme {
            tiers,
            mode,
            family,
            first_octet: self
                .first_octet()
                .unwrap_or(Scheme::usual_first_octet(tiers)),
            polarity: self.get("polarity").unwrap_or(Polarity::LeafOdd),
        };
        if !is_known {
            let scheme = Scheme {
                tiers: Tiers::Three,
                mode: Mode::None,
                family: Family::Ipv6,
                ..scheme
            };
            let last = scheme.last();
            return Limits {
                scheme: Some(scheme),
                mode: scheme.mode,
                last,
                planes: self.count("planes", last.plane + 1),
                default_pod: Some(0),
            };
        }
        let last = scheme.last();
        let planes = self.planes(mode, last);
        let default_pod = (tiers == Tiers::Two).then_some(0);
        Limits {
            scheme: Some(scheme),
            mode,
            last,
            planes,
            default_pod,
        }
    }

    /// The number of planes; `None` beside a fault.
    fn planes(&mut self, mode: Mode, last: Last) -> Option<u64> {
        match mode {
            Mode::None => {
                if let Some(planes) = self.get::<u64>("planes").filter(|planes| *planes != 1) {
                    let problem = format!(
                        "{planes} needs mode: swplb or hwplb; with mode none there is one plane"
                    );
                    self.fault("planes", problem);
                }
                Some(1)
            }
            _ => self.needed("planes", last.plane + 1),
        }
    }

    /// Without a pattern, nodes must be listed, and the keys of the pattern mean nothing.
    fn needs_names(&mut self, nodes: &Listed) {
        if !self.is_missing("nodeName") {
            return;
        }
        for key in ["pods", "sus", "hostsPerSU"] {
            if !self.lacks(key) {
                self.fault(key, "needs nodeName, which is missing");
            }
        }
        if nodes.count == 0 && self.is_missing("nodes") {
            self.fault(
                "nodeName",
                "is missing, and there is no list nodes either: no node has a name",
            );
        }
    }

    /// Checks the names of leaves and ports. Digits are good in any name, so two places are enough.
    /// A VRF's name is short, and there may be no such last place: each link is looked at when it
    /// is made.
    fn leaves(&mut self, fabric: &Fabric, last: Last) {
        let (rail, plane) = (fabric.rails - 1, fabric.planes - 1);
        let ends = [
            Spot {
                pod: 0,
                su: 0,
                host: 0,
            },
            Spot {
                pod: last.pod,
                su: last.su,
                host: last.host,
            },
        ];
        let cables = ends.map(|spot| fabric.cable(&spot, rail, plane));
        let leaves = cables.iter().map(|Cable { leaf, .. }| Cable {
            leaf: leaf.clone(),
            ..Cable::default()
        });
        let ports = cables.iter().map(|Cable { port, .. }| Cable {
            port: port.clone(),
            ..Cable::default()
        });
        let vrfs = cables.iter().take(1).map(|Cable { vrf, .. }| Cable {
            vrf: vrf.clone(),
            ..Cable::default()
        });
        let first = |cables: Vec<Cable>| cables.iter().flat_map(Cable::faults).flatten().next();
        let of_keys = [
            ("leafName", leaves.collect()),
            ("leafPort", ports.collect()),
            ("leafVrf", vrfs.collect()),
        ];
        for (key, cables) in of_keys {
            if let Some(problem) = first(cables) {
                self.fault(key, problem);
            }
        }
    }

    /// The number of SUs in each pod: one number for all pods, or a list with one for each.
    fn sus(&mut self, limits: &Limits) -> Vec<u64> {
        let Limits { scheme, last, .. } = limits;
        let tiers = scheme.map_or(Tiers::Three, |scheme| scheme.tiers);
        let pods = match (self.get::<u64>("pods"), tiers) {
            (Some(2..), Tiers::Two) => {
                self.fault(
                    "pods",
                    "must be 1 with two tiers; several pods need tiers: 3",
                );
                None
            }
            _ => self.count("pods", last.pod + 1),
        };
        let Some(list) = self
            .document
            .get("sus")
            .filter(|part| part.value.is_array())
        else {
            let pods = usize::try_from(pods.unwrap_or(1)).unwrap_or(1);
            return vec![self.needed("sus", last.su + 1).unwrap_or(1); pods];
        };
        let count = list.items().count();
        match pods {
            Some(pods) if pods != count as u64 => {
                let problem = format!(
                    "has {count} numbers for {pods} pods: give one for each, or one for all"
                );
                self.fault("sus", problem);
            }
            None if self.lacks("pods") && !(1..=last.pod + 1).contains(&(count as u64)) => {
                let problem = match tiers {
                    Tiers::Two => {
                        format!("has {count} numbers, and with two tiers there is one pod")
                    }
                    Tiers::Three => {
                        format!(
                            "has {count} numbers, and there can be 1 to {} pods",
                            last.pod + 1
                        )
                    }
                };
                self.fault("sus", problem);
            }
            _ => (),
        }
        let number = |pod| {
            self.needed(&format!("sus[{pod}]"), last.su + 1)
                .unwrap_or(1)
        };
        (0..count.min(MAX_PODS)).map(number).collect()
    }

    fn first_octet(&mut self) -> Option<u8> {
        let octet = self.get::<u64>("firstOctet")?;
        match u8::try_from(octet) {
            Ok(octet) if is_first_octet(octet) => Some(octet),
            _ => {
                self.fault("firstOctet", format!("{octet} is not 1 to 223, except 127"));
                None
            }
        }
    }

    pub(super) fn pattern<const N: usize>(
        &mut self,
        path: &str,
        known: &[&str; N],
    ) -> Option<Pattern<N>> {
        let text = self.get::<String>(path)?;
        Pattern::parse(&text, known)
            .map_err(|error| self.fault(path, format!("{error:#}")))
            .ok()
    }

    fn interfaces(&mut self, rails: Option<u64>, planes: u64, mode: Mode) -> Vec<Pattern<2>> {
        const KEY: &str = "hostInterface";
        let count = self
            .document
            .get(KEY)
            .and_then(|part| part.value.as_array())
            .map(Vec::len);
        let paths = match count {
            None => vec![KEY.to_owned()],
            Some(count) => (0..count).map(|index| format!("{KEY}[{index}]")).collect(),
        };
        let before = self.faults.len();
        let patterns: Vec<_> = paths
            .iter()
            .filter_map(|path| self.pattern(path, &OF_INTERFACE))
            .collect();
        let Some(rails) = rails.filter(|_| self.faults.len() == before) else {
            return patterns;
        };
        if let Some(count) = count.filter(|count| *count as u64 != rails) {
            let problem = format!(
                "has {count} names for {rails} rails: give one for each, or one pattern with {{rail}}"
            );
            self.fault(KEY, problem);
            return patterns;
        }
        let mut seen: HashMap<String, (u64, u64)> = HashMap::new();
        for (rail, plane) in (0..rails).flat_map(|rail| (0..planes).map(move |plane| (rail, plane)))
        {
            let index = if count.is_none() {
                0
            } else {
                usize::try_from(rail).unwrap_or(usize::MAX)
            };
            let (Some(pattern), Some(path)) = (patterns.get(index), paths.get(index)) else {
                continue;
            };
            let interface = pattern.render(&[rail, plane]);
            let cable = Cable {
                interface: Some(interface.clone()),
                ..Cable::default()
            };
            if let Some(problem) = cable.faults().into_iter().flatten().next() {
                self.fault(path, problem);
                break;
            }
            // With hwplb the NIC has the planes behind one netdev.
            let plane = if mode == Mode::Swplb { plane } else { 0 };
            match seen.insert(interface.clone(), (rail, plane)) {
                Some((other, of)) if (other, of) != (rail, plane) => {
                    let (first, second) = (
                        format!("rail {other}, plane {of}"),
                        format!("rail {rail}, plane {plane}"),
                    );
                    self.fault(
                        path,
                        format!("{interface} is the interface of {first} and of {second}"),
                    );
                    break;
                }
                _ => (),
            }
        }
        patterns
    }

    /// Reports a listed node that is in no SU of the fabric: counted from 1, the last one would be
    /// a new one.
    fn inside(&mut self, grid: &Grid, path: &str, Spot { pod, su, .. }: Spot) {
        let pods = grid.sus.len() as u64;
        let has_pods = !self.lacks("pods") || pods > 1;
        if has_pods && pod >= pods {
            let problem = format!(
                "{pod} is not 0 to {}: there are {pods} pods, counted from 0",
                pods - 1
            );
            self.fault(&format!("{path}.pod"), problem);
            return;
        }
        let of_pod = usize::try_from(pod)
            .ok()
            .and_then(|pod| grid.sus.get(pod))
            .or(grid.sus.first());
        if let Some(sus) = of_pod.copied().filter(|sus| su >= *sus) {
            let problem = format!(
                "{su} is not 0 to {}: sus says {sus}, counted from 0",
                sus - 1
            );
            self.fault(&format!("{path}.su"), problem);
        }
    }

    /// The listed nodes: those that do not follow the pattern, or all of them.
    fn nodes(&mut self, limits: &Limits, grid: Option<&Grid>, is_grid_known: bool) -> Listed {
        let mut nodes = Listed::default();
        let list = match self.document.get("nodes").map(|part| part.value) {
            None | Some(Value::Null) => return nodes,
            Some(Value::Array(list)) => list,
            Some(_) => {
                self.fault("nodes", "is not a list");
                return Listed { count: 1, ..nodes };
            }
        };
        nodes.count = list.len();
        let (mut names, mut spots) = (HashMap::new(), HashMap::new());
        for (index, value) in list.iter().enumerate() {
            let path = format!("nodes[{index}]");
            if !value.is_object() {
                self.fault(&path, "is not an object: {name: ..., su: ..., host: ...}");
                continue;
            }
            let before = self.faults.len();
            self.unknown(&path, &NODE_KEYS);
            let before_old = self.faults.len();
            let old = self.get::<String>(&format!("{path}.replaces"));
            let of_old = old
                .as_ref()
                .and_then(|old| self.spot_of(old, &path, grid, is_grid_known));
            let is_old_bad = self.faults.len() > before_old;
            let spot = match of_old {
                Some(spot) => spot,
                None if is_old_bad => Spot {
                    pod: 0,
                    su: 0,
                    host: 0,
                },
                None => self.spot(limits, &path),
            };
            if let Some(grid) = grid.filter(|_| is_grid_known && self.faults.len() == before) {
                self.inside(grid, &path, spot);
            }
            let path_of_name = format!("{path}.name");
            let name = self.get::<String>(&path_of_name);
            match &name {
                None if self.is_missing(&path_of_name) => self.fault(&path_of_name, "is missing"),
                Some(name) if !is_name(name) => {
                    self.fault(
                        &path_of_name,
                        format!("{name:?} is not a valid name of a node"),
                    );
                }
                _ => (),
            }
            let Some(name) = name.filter(|_| self.faults.len() == before) else {
                continue;
            };
            match (names.insert(name.clone(), index), spots.insert(spot, index)) {
                (Some(one), Some(other)) if one == other => {
                    self.fault(&path, format!("is the same node as nodes[{one}]"));
                }
                (same_name, same_spot) => {
                    if let Some(other) = same_name {
                        self.fault(&path_of_name, format!("node {name} is also nodes[{other}]"));
                    }
                    if let Some(other) = same_spot {
                        self.fault(
                            &path,
                            format!("{spot} is also the position of nodes[{other}]"),
                        );
                    }
                }
            }
            if let Some(old) = old {
                nodes.replaces.insert(name.clone(), old);
            }
            nodes
                .listed
                .insert(name.clone(), self.document.place(&path_of_name));
            nodes.entries.push((name, spot));
        }
        nodes
    }

    /// The position of a listed node, by its keys `pod`, `su` and `host`.
    fn spot(&mut self, limits: &Limits, path: &str) -> Spot {
        let last = limits.last;
        Spot {
            pod: self.coordinate(limits, path, "pod", last.pod, limits.default_pod),
            su: self.coordinate(limits, path, "su", last.su, None),
            host: self.coordinate(limits, path, "host", last.host, None),
        }
    }

    /// A number of a position, from 0 to `last`; 0 beside a fault if it is missing.
    fn coordinate(
        &mut self,
        limits: &Limits,
        path: &str,
        key: &str,
        last: u64,
        default: Option<u64>,
    ) -> u64 {
        let path = format!("{path}.{key}");
        if self.lacks(&path) {
            if let Some(default) = default {
                return default;
            }
            // A misspelt key has its fault already.
            if self.is_missing(&path) {
                self.fault(&path, format!("is missing: 0 to {last}"));
            }
            return 0;
        }
        let number = self.get::<u64>(&path).unwrap_or(0);
        if number > last {
            let problem = match &limits.scheme {
                Some(scheme) => scheme.outside(key, number, last),
                None => format!("{number} is not 0 to {last}"),
            };
            self.fault(&path, problem);
        }
        number
    }

    /// The place of the node that `path` replaces; `None` if the entry names the place itself, or
    /// beside a fault.
    fn spot_of(
        &mut self,
        old: &str,
        path: &str,
        grid: Option<&Grid>,
        is_grid_known: bool,
    ) -> Option<Spot> {
        if !is_name(old) {
            self.fault(
                &format!("{path}.replaces"),
                format!("{old:?} is not a valid name of a node"),
            );
            return None;
        }
        if ["pod", "su", "host"]
            .iter()
            .any(|key| !self.is_missing(&format!("{path}.{key}")))
        {
            return None;
        }
        // The fault of the grid is reported already: any place avoids a second fault.
        if !is_grid_known {
            return Some(Spot {
                pod: 0,
                su: 0,
                host: 0,
            });
        }
        let spot = grid.and_then(|grid| {
            let node = (0..grid.len()).find(|node| grid.name(*node) == old)?;
            Some(grid.spot(node))
        });
        if spot.is_none() {
            let problem = format!(
                "nodeName does not produce {old}: give su and host of its former \
                position"
            );
            self.fault(&format!("{path}.replaces"), problem);
        }
        spot
    }
}
