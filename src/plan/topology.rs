//! topology.json: who is cabled to what, as spcx-gen writes it and as NVIDIA AIR exports it.
//!
//! [`is_topology`] knows such a file by its content, [`read`] makes a plan of one or several. The links of a big
//! fabric fill gigabytes once they are parsed, so each is looked at by itself and not kept. What the two forms mean is NVIDIA's k8s-launch-kit (`pkg/networkoperatorplugin/spectrumx`: `addressing.go`, `air_topology.go`):
//!
//! | | spcx-gen | AIR |
//! | --- | --- | --- |
//! | shape | `nodes` and `links`, both lists | `content` with a map `nodes` and a list `links` |
//! | where a host is | `attributes` of its end of the link: `rail`, `su`, `pod`; `plane` of the leaf's end | tokens of the names, counted from 1 |
//! | index of a host | the order in which hosts appear in the links of their (plane, pod, su) | `h<H>` of its name |
//!
//! A link without a host is one between switches, and not looked at.
//!
//! Addresses follow from the numbers of a few fields, so one wrong digit moves those of a whole SU. What is there
//! twice, the SU of both ends, the rails of a leaf, is compared, and what differs is a [`Doubt`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde_json::Value;

use super::refusal::{Doubt, Doubts, Refusal};
use super::scheme::{HostLink, MAX_FAULTS, Mode, Scheme, Tiers};
use super::{Cable, Plan};
use crate::document::{Part, Text};
use crate::nearest::nearest;
use crate::pool::cidrpool::few;
use crate::pool::is_name;

const LINKS: &str = "links";

/// Is it such a file, whole or not?
pub fn is_topology(text: &Text) -> bool {
    text.without(LINKS, &mut |_, _| ()).is_ok_and(|document| {
        let has_links = |value: &Value| value.get(LINKS).is_some();
        has_links(&document.value) || document.value.get("content").is_some_and(has_links)
    })
}

/// The plan of all these files; hosts of one SU stand in one of them. Their interfaces have this MTU, which no such
/// file says. What is `allowed` stays among the doubts.
pub fn read(texts: &[Text], scheme: &Scheme, mtu: Option<u32>, allowed: &[Doubt]) -> Result<Plan, Refusal> {
    let mut reader = Reader::new(scheme, mtu);
    for (number, text) in texts.iter().enumerate() {
        reader.read(text, number);
    }
    reader.compare();
    let Reader { mut links, mut places, second, doubts, no_room, mut faults, warnings, .. } = reader;
    // A host that strayed into a full SU leaves no room there for another one.
    let strays = [Doubt::OtherSu, Doubt::TwoSus, Doubt::MissingSu];
    if !strays.into_iter().any(|doubt| doubts.has(doubt) && !allowed.contains(&doubt)) {
        faults.extend(no_room);
    }
    if !faults.is_empty() {
        return Err(Refusal { doubts, faults });
    }
    if !allowed.contains(&Doubt::SecondLink) {
        // Told already; what else is wrong can be told without them.
        let mut numbers = 0..;
        links.retain(|_| numbers.next().is_none_or(|number| !second.contains(&number)));
        numbers = 0..;
        places.retain(|_| numbers.next().is_none_or(|number| !second.contains(&number)));
    }
    let place = |number: usize| places.get(number).cloned().unwrap_or_default();
    match scheme.plan(links, &place) {
        Ok(plan) => Ok(Plan { doubts, warnings: warnings.into_values().flat_map(few).collect(), ..plan }),
        Err(faults) => Err(Refusal { doubts, faults }),
    }
}

/// What is gathered from the files.
struct Reader<'a> {
    scheme: &'a Scheme,
    mtu: Option<u32>,
    links: Vec<HostLink>,
    /// Of each link.
    places: Vec<String>,
    groups: HashMap<Group, Hosts>,
    /// AIR's hosts by pod, SU and index.
    hosts: HashMap<[u64; 3], String>,
    /// Where each node and each leaf is, by links whose ends say the same, and by how many of them.
    homes: HashMap<String, Vec<(Home, usize)>>,
    apart: Vec<Apart>,
    other_rail: Vec<OtherRail>,
    /// Links of hosts that have one on that rail already.
    second: HashSet<usize>,
    /// Hosts that say no SU.
    without_su: Vec<String>,
    has_su: bool,
    doubts: Doubts,
    /// Hosts for which an SU has no room.
    no_room: Vec<String>,
    faults: Vec<String>,
    /// By their kind.
    warnings: BTreeMap<&'static str, Vec<String>>,
}

/// Plane, pod and SU of a host's own attributes; one that is absent is not 0 here.
type Group = [Option<u64>; 3];

/// Pod and SU.
type Home = [u64; 2];

/// A link whose ends are in different places.
struct Apart {
    link: usize,
    /// Of `pod` and `su`, the one that differs.
    field: usize,
    host: Side,
    leaf: Side,
}

/// What one end of it says.
struct Side {
    name: String,
    home: Home,
    /// Of the field.
    place: String,
}

/// A link to a leaf that is not for its rail.
struct OtherRail {
    link: usize,
    /// Of the host's rail.
    place: String,
    leaf: String,
    /// `rail_group`.
    of_leaf: Vec<u64>,
}

const HOME: [&str; 2] = ["attributes.pod", "attributes.su"];

/// Hosts that are counted together.
#[derive(Default)]
struct Hosts {
    index_of: HashMap<String, u64>,
    /// Which file they are in.
    file: usize,
}

/// An end of a link.
#[derive(Clone, Copy)]
struct End<'a> {
    part: Part<'a>,
    list: &'static str,
    link: usize,
    /// 0 or 1.
    end: usize,
}

impl<'a> Reader<'a> {
    fn new(scheme: &'a Scheme, mtu: Option<u32>) -> Reader<'a> {
        Reader {
            scheme,
            mtu,
            links: Vec::new(),
            places: Vec::new(),
            groups: HashMap::new(),
            hosts: HashMap::new(),
            homes: HashMap::new(),
            apart: Vec::new(),
            other_rail: Vec::new(),
            second: HashSet::new(),
            without_su: Vec::new(),
            has_su: false,
            doubts: Doubts::default(),
            no_room: Vec::new(),
            faults: Vec::new(),
            warnings: BTreeMap::new(),
        }
    }

    fn read(&mut self, text: &Text, file: usize) {
        let document = match text.without(LINKS, &mut |_, _| ()) {
            Ok(document) => document,
            Err(fault) => return self.faults.push(fault.to_string()),
        };
        let root = document.root();
        let is = |path: &str, fits: fn(&Value) -> bool| root.get(path).is_some_and(|part| fits(part.value));
        let is_spcx = is("nodes", Value::is_array) && is("links", Value::is_array);
        let is_air = is("content.nodes", Value::is_object) && is("content.links", Value::is_array);
        let before = self.links.len();
        match (is_spcx, is_air) {
            (true, true) => self.faults.push(format!(
                "{}: nodes and links are there twice, once below content: which of them is meant?",
                root.place("content")
            )),
            (false, false) => self.faults.push(format!(
                "{}: not a topology: there should be lists nodes and links (spcx-gen), or content with a map nodes and \
                 a list links (NVIDIA AIR)",
                root.place("")
            )),
            (true, false) => self.spcx(text, root, file),
            (false, true) => self.air(text, root),
        }
        if is_spcx != is_air && self.links.len() == before && self.faults.is_empty() {
            self.faults.push(format!("{}: no link between a host and a leaf", root.place("")));
        }
    }

    /// The host links of a file: `find` gets both ends of each link, and says where the host is.
    fn each_link(
        &mut self,
        text: &Text,
        list: &'static str,
        mut find: impl FnMut(&mut Self, [End<'_>; 2]) -> Result<Option<Found>, String>,
    ) {
        let parsed = text.without(LINKS, &mut |number, link| {
            let place = || format!("{}: {list}[{number}]", link.place(""));
            if self.faults.len() == MAX_FAULTS {
                self.faults.push(format!("{}: what follows was not looked at", place()));
            }
            if self.faults.len() > MAX_FAULTS {
                return;
            }
            let found = match both_ends(link, list, number) {
                Ok(Some(ends)) => find(self, ends).map(|found| found.map(|found| (ends, found))),
                Ok(None) => Ok(None),
                Err(what) => Err(format!("{}{what}", place())),
            };
            match found {
                Ok(Some((ends, found))) => self.keep(place(), ends, found),
                Ok(None) => (),
                Err(fault) => self.faults.push(fault),
            }
        });
        self.faults.extend(parsed.err().map(|fault| fault.to_string()));
    }

    fn keep(&mut self, place: String, [one, other]: [End<'_>; 2], Found { is_host_first, node, at }: Found) {
        let (host, leaf) = if is_host_first { (one, other) } else { (other, one) };
        let text =
            |end: End<'_>, field| end.part.text(field).filter(|text| !text.is_empty()).map(str::to_owned);
        let mut cable = Cable {
            interface: text(host, "interface"),
            leaf: text(leaf, "node"),
            port: text(leaf, "interface"),
            mtu: self.mtu,
            netplan: None,
        };
        // No address depends on these.
        let faults = cable.faults();
        let Cable { interface, leaf: leaf_name, port, .. } = &mut cable;
        for (fault, name) in faults.into_iter().zip([interface, leaf_name, port]) {
            if let Some(fault) = fault {
                self.warn("names", format!("{place}: {fault}, and is left out"));
                *name = None;
            }
        }
        let At { plane, rail, pod, su, host } = at;
        self.links.push(HostLink { node_name: node, plane, rail, pod, su, host, cable });
        self.places.push(place);
    }

    fn warn(&mut self, kind: &'static str, warning: String) {
        self.warnings.entry(kind).or_default().push(warning);
    }

    // ---- spcx-gen ----

    fn spcx(&mut self, text: &Text, root: Part<'_>, file: usize) {
        let before = self.links.len();
        self.each_link(text, "links", |reader, ends| reader.spcx_link(ends, file));
        let (mut listed, mut hosts) = (HashMap::new(), Vec::new());
        for (index, node) in root.get("nodes").into_iter().flat_map(Part::items).enumerate() {
            let place = || format!("{}: nodes[{index}].name", node.place("name"));
            let Some(name) = node.text("name") else {
                self.faults.push(format!("{}: is missing", place()));
                return;
            };
            let first = *listed.entry(name).or_insert(index);
            if first != index {
                self.doubts.push(Doubt::SameName, || {
                    format!(
                        "{}: {name} is also nodes[{first}]: if they are two, each has its own name, also in its links; \
                         else take one out",
                        place()
                    )
                });
            }
            if node.text("role") == Some("host") {
                hosts.push((name, place()));
            }
        }
        let links = self.links.get(before..).unwrap_or_default();
        let mut linked = HashSet::new();
        for (link, place) in links.iter().zip(self.places.iter().skip(before)) {
            let name = link.node_name.as_str();
            if linked.insert(name) && !listed.contains_key(name) {
                self.doubts.push(Doubt::UnknownHost, || {
                    // A host that has such a link is not the one that is meant.
                    let on_rail = links.iter().filter(|other| other.rail == link.rail);
                    let on_rail: HashSet<&str> = on_rail.map(|other| other.node_name.as_str()).collect();
                    let candidates =
                        hosts.iter().map(|(host, _)| *host).filter(|host| !on_rail.contains(host));
                    let hint = match nearest(name, candidates) {
                        Some(near) => format!("did you mean {near}?"),
                        None => "correct the name, or add it there".to_owned(),
                    };
                    format!("{place}: {name} is not in nodes: {hint}")
                });
            }
        }
        let unlinked = hosts.into_iter().filter(|(name, _)| !linked.contains(name));
        let unlinked: Vec<_> =
            unlinked.map(|(name, place)| format!("{place}: host {name} has no link to a leaf")).collect();
        self.warnings.entry("unlinked").or_default().extend(unlinked);
    }

    fn spcx_link(&mut self, ends: [End<'_>; 2], file: usize) -> Result<Option<Found>, String> {
        let roles = [ends[0].role()?, ends[1].role()?];
        let Some(is_host_first) = which(roles.map(|role| role == Some("host"))) else {
            return match roles {
                [Some("host"), _] => Err(format!("{}: both ends are hosts", ends[1].at("attributes.role"))),
                _ => Ok(None),
            };
        };
        let (host, leaf) = if is_host_first { (ends[0], ends[1]) } else { (ends[1], ends[0]) };
        let node = host.node()?;
        if leaf.role()? != Some("leaf") {
            return Err(format!(
                "{}: the other end is host {node}, this one is no leaf",
                leaf.at("attributes.role")
            ));
        }
        let last = self.scheme.last();
        let rail = host.needed(self.scheme, "attributes.rail", last.rail)?;
        let plane = leaf.needed(self.scheme, "attributes.plane", last.plane)?;
        let pod = match self.scheme.tiers {
            Tiers::Three => Some(host.needed(self.scheme, "attributes.pod", last.pod)?),
            Tiers::Two => host.number(self.scheme, "attributes.pod", last.pod)?,
        };
        let su = host.number(self.scheme, "attributes.su", last.su)?;
        self.home([host, leaf], [pod, su])?;
        let rails = leaf.part.get("attributes.rail_group").and_then(|part| part.value.as_array());
        if let Some(rails) = rails.filter(|rails| !rails.iter().any(|one| one.as_u64() == Some(rail))) {
            self.other_rail.push(OtherRail {
                link: self.links.len(),
                place: host.at("attributes.rail"),
                leaf: leaf.node()?.to_owned(),
                of_leaf: rails.iter().filter_map(Value::as_u64).collect(),
            });
        }

        let group = [host.number(self.scheme, "attributes.plane", u64::MAX)?, pod, su];
        let group = self.groups.entry(group).or_insert_with(|| Hosts { file, ..Hosts::default() });
        let next = group.index_of.len() as u64;
        let index = match group.index_of.get(node) {
            Some(index) => *index,
            None if group.file != file => {
                return Err(format!(
                    "{}: hosts of this pod and SU are in another file already; their order in one file counts",
                    host.at("node")
                ));
            }
            None if next > last.host => {
                self.no_room.push(format!(
                    "{}: node {node} would be host {next} of its pod and SU, which have room for 0 to {}",
                    host.at("node"),
                    last.host
                ));
                return Ok(None);
            }
            None => {
                group.index_of.insert(node.to_owned(), next);
                next
            }
        };
        let at = At { plane, rail, pod: pod.unwrap_or(0), su: su.unwrap_or(0), host: index };
        Ok(Some(Found { is_host_first, node: node.to_owned(), at }))
    }

    /// Takes down where a host is, and whether its leaf says the same.
    fn home(&mut self, [host, leaf]: [End<'_>; 2], own: [Option<u64>; 2]) -> Result<(), String> {
        let of_leaf =
            [leaf.number(self.scheme, HOME[0], u64::MAX)?, leaf.number(self.scheme, HOME[1], u64::MAX)?];
        self.has_su |= own[1].is_some() || of_leaf[1].is_some_and(|su| su > 0);
        if own[1].is_none() {
            self.without_su.push(format!("{}: is missing, taken as 0", host.at(HOME[1])));
        }
        let home = own.map(Option::unwrap_or_default);
        let differs = |field: &usize| matches!((own[*field], of_leaf[*field]), (Some(own), Some(other)) if own != other);
        let (host_name, leaf_name) = (host.node()?, leaf.node()?);
        match [1, 0].into_iter().find(differs) {
            Some(field) => {
                let mut leaf_home = home;
                leaf_home[field] = of_leaf[field].unwrap_or_default();
                let side = |end: End<'_>, name: &str, home| Side {
                    name: name.to_owned(),
                    home,
                    place: end.at(HOME[field]),
                };
                let (host, leaf) = (side(host, host_name, home), side(leaf, leaf_name, leaf_home));
                self.apart.push(Apart { link: self.links.len(), field, host, leaf });
            }
            None => [host_name, leaf_name].into_iter().for_each(|name| self.agree(name, home)),
        }
        Ok(())
    }

    fn agree(&mut self, name: &str, home: Home) {
        let homes = match self.homes.get_mut(name) {
            Some(homes) => homes,
            None => self.homes.entry(name.to_owned()).or_default(),
        };
        match homes.iter_mut().find(|(known, _)| *known == home) {
            Some((_, count)) => *count += 1,
            None => homes.push((home, 1)),
        }
    }

    // ---- when all was read ----

    /// What the links say together.
    fn compare(&mut self) {
        if self.has_su {
            for line in std::mem::take(&mut self.without_su) {
                self.doubts.push(Doubt::MissingSu, || line);
            }
        }
        self.warnings.insert("su", std::mem::take(&mut self.without_su));
        self.compare_ends();
        let told = self.compare_rails();
        self.compare_homes(&told);
    }

    /// Which end of a link is wrong, the other links of both tell.
    fn compare_ends(&mut self) {
        let Reader { homes, apart, doubts, .. } = self;
        for Apart { field, host, leaf, .. } in apart {
            let is_right = |side: &Side| {
                homes.get(&side.name).is_some_and(|homes| homes.iter().any(|(home, _)| *home == side.home))
            };
            let what = HOME[*field].trim_start_matches("attributes.");
            let says = |side: &Side| format!("{} has {what} {}", side.name, side.home[*field]);
            doubts.push(Doubt::OtherSu, || match (is_right(host), is_right(leaf)) {
                (false, true) => format!(
                    "{}: host {}, leaf {} as with its other hosts: write {}",
                    host.place,
                    says(host),
                    says(leaf),
                    leaf.home[*field]
                ),
                (true, false) => format!(
                    "{}: leaf {}, host {} as by its other links: write {}",
                    leaf.place,
                    says(leaf),
                    says(host),
                    host.home[*field]
                ),
                (true, true) => format!(
                    "{}: host {}, leaf {}, each as by its other links: link the host to a leaf of {what} {}",
                    host.place,
                    says(host),
                    says(leaf),
                    host.home[*field]
                ),
                (false, false) => {
                    format!("{}: host {}, leaf {}: correct either", host.place, says(host), says(leaf))
                }
            });
        }
    }

    /// Hosts that are in several places, and leaves that have hosts of several, by links whose ends do not say otherwise;
    /// but for hosts of which more is told.
    fn compare_homes(&mut self, told: &HashSet<String>) {
        let Reader { homes, apart, links, places, doubts, .. } = self;
        homes.retain(|name, homes| homes.len() > 1 && !told.contains(name));
        if homes.is_empty() {
            return;
        }
        let apart: HashSet<usize> = apart.iter().map(|apart| apart.link).collect();
        // Of as many links, those behind are told.
        let most = |name: &str| homes.get(name)?.iter().rev().max_by_key(|(_, count)| *count);
        for (number, (link, place)) in links.iter().zip(places).enumerate() {
            let here = [link.pod, link.su];
            let (node, leaf) = (link.node_name.as_str(), link.cable.leaf.as_deref().unwrap_or_default());
            if apart.contains(&number) || told.contains(node) {
                continue;
            }
            let of_leaf = most(leaf).filter(|(home, _)| *home != here);
            let of_host = most(node).filter(|(home, _)| *home != here);
            let Some((right, count)) = of_host.or(of_leaf) else { continue };
            let field = usize::from(here[0] == right[0]);
            let (what, is, right) = (["pod", "su"][field], here[field], right[field]);
            match of_host {
                None => doubts.push(Doubt::OtherSu, || {
                    format!("{place}: host {node} has {what} {is}, the other hosts of {leaf} {what} {right}: write {right}")
                }),
                Some((home, _)) => doubts.push(Doubt::TwoSus, || {
                    let is_leaf_there = of_leaf.is_some_and(|(of_leaf, _)| of_leaf == home);
                    let also = if is_leaf_there { String::new() } else { format!(", and a leaf of {what} {right}") };
                    format!(
                        "{place}: host {node} has {what} {is} by this link to {leaf}, {what} {right} by its other links \
                         ({count}): write {what} {right}{also}"
                    )
                }),
            }
        }
    }

    /// Each host has one link on each rail; with planes, one on each plane of it. Gives the hosts of which something
    /// was told.
    fn compare_rails(&mut self) -> HashSet<String> {
        let Reader { links, places, doubts, scheme, other_rail, second: all_second, .. } = self;
        let rail_of = |link: &HostLink| match scheme.mode {
            Mode::None => [link.rail, 0],
            _ => [link.rail, link.plane],
        };
        let shown = |[rail, plane]: [u64; 2]| match scheme.mode {
            Mode::None => format!("rail {rail}"),
            _ => format!("rail {rail}, plane {plane}"),
        };
        let place = |number: usize| places.get(number).map_or("", String::as_str);
        let mut all: BTreeSet<[u64; 2]> = BTreeSet::new();
        // By their first links.
        let mut of_node: HashMap<&str, (usize, Vec<[u64; 2]>)> = HashMap::new();
        let mut second = Vec::new();
        for (number, link) in links.iter().enumerate() {
            let rail = rail_of(link);
            let (_, rails) = of_node.entry(&link.node_name).or_insert_with(|| (number, Vec::new()));
            if rails.contains(&rail) {
                second.push((number, link));
            } else {
                rails.push(rail);
                all.insert(rail);
            }
        }
        let has = |node: &str, rail: u64| {
            of_node.get(node).is_some_and(|(_, rails)| rails.iter().any(|[known, _]| *known == rail))
        };
        let mut told = HashSet::new();
        for OtherRail { link, place, leaf, of_leaf } in other_rail {
            let Some(link) = links.get(*link) else { continue };
            let (node, rail) = (link.node_name.as_str(), link.rail);
            told.insert(node.to_owned());
            doubts.push(Doubt::OtherRail, || {
                let is_twice = second.iter().any(|(_, other)| other.node_name == node && other.rail == rail);
                let listed: Vec<_> = of_leaf.iter().map(u64::to_string).collect();
                let remedy = match of_leaf.iter().find(|of_leaf| !has(node, **of_leaf)) {
                    Some(lacking) if is_twice => format!("write {lacking}"),
                    None if !is_twice => format!("link it to a leaf for rail {rail}"),
                    _ => "correct the rail, or the leaf".to_owned(),
                };
                let listed = listed.join(", ");
                format!("{place}: host {node} has rail {rail}, leaf {leaf} is for rail {listed} (rail_group): {remedy}")
            });
        }
        let lacks = |rails: &[[u64; 2]]| {
            let lacking = all.iter().filter(|rail| !rails.contains(rail)).map(|rail| shown(*rail));
            let lacking = lacking.collect::<Vec<_>>().join(" and ");
            (!lacking.is_empty()).then_some(lacking)
        };
        let has_planes = links.iter().any(|link| link.plane > 0);
        all_second.extend(second.iter().map(|(number, _)| *number));
        let before = told.clone();
        for (number, link) in second.into_iter().filter(|(_, link)| !before.contains(&link.node_name)) {
            let (node, rail) = (&link.node_name, rail_of(link));
            told.insert(node.clone());
            doubts.push(Doubt::SecondLink, || {
                let is_first = |other: &HostLink| other.node_name == *node && rail_of(other) == rail;
                let first = links.iter().position(is_first).unwrap_or_default();
                let lacking = of_node.get(node.as_str()).and_then(|(_, rails)| lacks(rails));
                let hint = match lacking {
                    Some(lacking) => format!(", and none on {lacking}: correct the rail of one"),
                    None if scheme.mode == Mode::None && has_planes => {
                        ": the leaves are of several planes: --mode swplb or hwplb".to_owned()
                    }
                    None => ": of two hosts, give this one its own name; else take it out".to_owned(),
                };
                let (here, first) = (place(number), place(first));
                format!("{here}: host {node} has another link on {} ({first}){hint}", shown(rail))
            });
        }
        let mut incomplete: Vec<_> = of_node
            .iter()
            .filter(|(node, (_, rails))| rails.len() < all.len() && !told.contains(**node))
            .collect();
        incomplete.sort_by_key(|(_, (first, _))| *first);
        for (node, (first, rails)) in incomplete {
            doubts.push(Doubt::MissingRail, || {
                let lacking = lacks(rails).unwrap_or_default();
                let place = place(*first);
                format!(
                    "{place}: host {node} has no link on {lacking}: add it, with leaf and port of its cable"
                )
            });
        }
        told
    }

    // ---- NVIDIA AIR ----

    fn air(&mut self, text: &Text, root: Part<'_>) {
        let nodes: HashMap<&str, Part<'_>> =
            root.get("content.nodes").into_iter().flat_map(Part::entries).collect();
        self.each_link(text, "content.links", |reader, ends| reader.air_link(ends, &nodes));
    }

    fn air_link(
        &mut self,
        ends: [End<'_>; 2],
        nodes: &HashMap<&str, Part<'_>>,
    ) -> Result<Option<Found>, String> {
        let mut of = [None, None];
        for (end, of) in ends.iter().zip(&mut of) {
            let name = end.node()?;
            let Some(node) = nodes.get(name) else {
                return Err(format!("{}: {name} is not in content.nodes", end.at("node")));
            };
            *of = Some(*node).filter(is_air_host);
        }
        let (is_host_first, own) = match of {
            [Some(_), Some(_)] => return Err(format!("{}: both ends are hosts", ends[1].at("node"))),
            [Some(own), None] => (true, own),
            [None, Some(own)] => (false, own),
            [None, None] => return Ok(None),
        };
        let (host, leaf) = if is_host_first { (ends[0], ends[1]) } else { (ends[1], ends[0]) };
        let (host_name, leaf_name) = (host.node()?, leaf.node()?);
        if !leaf_name.to_ascii_lowercase().starts_with("leaf-") {
            return Err(format!(
                "{}: {leaf_name} is linked to a host and does not begin with leaf-",
                leaf.at("node")
            ));
        }

        let last = self.scheme.last();
        let needs = |end: End<'_>, prefix: &str, limit: u64| {
            let found = end.token(prefix, limit)?;
            found.ok_or_else(|| format!("{}: no token {prefix}<N> between hyphens", end.at("node")))
        };
        let (su, index) = (needs(host, "su", last.su)?, needs(host, "h", last.host)?);
        let (plane, rail) = (needs(leaf, "p", last.plane)?, needs(leaf, "r", last.rail)?);
        let differs = |end: End<'_>, field: &str, what: &str, one: u64, other: u64| {
            let (one, other) = (one.saturating_add(1), other.saturating_add(1));
            Err(format!(
                "{}: {what} {one}, but {what} {other} by the name of leaf {leaf_name}",
                end.at(field)
            ))
        };
        let of_leaf = needs(leaf, "su", last.su)?;
        if su != of_leaf {
            return differs(host, "node", "SU", su, of_leaf);
        }
        let pod = match (host.token("pod", last.pod)?, leaf.token("pod", last.pod)?) {
            (Some(pod), Some(of_leaf)) if pod == of_leaf => pod,
            (Some(pod), Some(of_leaf)) => return differs(host, "node", "pod", pod, of_leaf),
            (None, None) if self.scheme.tiers == Tiers::Two => 0,
            (None, _) => return Err(format!("{}: no token pod<N>", host.at("node"))),
            (_, None) => {
                return Err(format!("{}: no token pod<N>, which host {host_name} has", leaf.at("node")));
            }
        };

        let interface = host.part.text("interface").unwrap_or_default();
        let numbers = interface.strip_prefix("rail").and_then(|rest| rest.split_once('p'));
        let numbers = numbers.and_then(|(rail, plane)| Some((from_one(rail)?, from_one(plane)?)));
        let Some((its_rail, its_plane)) = numbers else {
            return Err(format!(
                "{}: {interface:?} is not rail<R>p<P>, counted from 1",
                host.at("interface")
            ));
        };
        if its_rail != rail {
            return differs(host, "interface", "rail", its_rail, rail);
        }
        if its_plane != plane {
            return differs(host, "interface", "plane", its_plane, plane);
        }
        let pci = host.part.text("network_pci").unwrap_or_default();
        if pci.strip_prefix("rail").and_then(from_one) != Some(rail) {
            return Err(format!(
                "{}: {pci:?} is not rail{}, as the interface",
                host.at("network_pci"),
                rail + 1
            ));
        }
        let has = own.get("network_pci").and_then(|part| part.value.as_object());
        if !has.is_some_and(|has| has.contains_key(pci)) {
            return Err(format!(
                "{}: node {host_name} has no {pci} in its network_pci",
                host.at("network_pci")
            ));
        }

        let other = self.hosts.entry([pod, su, index]).or_insert_with(|| host_name.to_owned());
        if other != host_name {
            return Err(format!("{}: {host_name} names the place of {other}", host.at("node")));
        }
        let at = At { plane, rail, pod, su, host: index };
        Ok(Some(Found { is_host_first, node: host_name.to_owned(), at }))
    }
}

/// Where a link's host is.
struct At {
    plane: u64,
    rail: u64,
    pod: u64,
    su: u64,
    host: u64,
}

/// A host link.
struct Found {
    is_host_first: bool,
    node: String,
    at: At,
}

/// Which of two it is; `None` for both and for neither.
fn which(is: [bool; 2]) -> Option<bool> {
    (is[0] != is[1]).then_some(is[0])
}

/// Both ends of a link; nothing when it has none, or one that is not connected.
fn both_ends<'a>(link: Part<'a>, list: &'static str, number: usize) -> Result<Option<[End<'a>; 2]>, String> {
    if !link.value.is_array() {
        return Err(": is not a list of two ends".to_owned());
    }
    let parts: Vec<Part<'a>> = link.items().collect();
    for (index, part) in parts.iter().enumerate() {
        match part.value {
            Value::Object(_) => (),
            Value::String(text) if text == "unconnected" => (),
            other => return Err(format!("[{index}]: {} is no end of a link", short(other))),
        }
    }
    match parts[..] {
        [] => Ok(None),
        [one] if one.value.is_string() => Ok(None),
        [one, other] if one.value.is_string() || other.value.is_string() => Ok(None),
        [one, other] => {
            let end = |part, end| End { part, list, link: number, end };
            Ok(Some([end(one, 0), end(other, 1)]))
        }
        _ => Err(format!(": a link has two ends, not {}", parts.len())),
    }
}

/// By its own words, or because it has a NIC with rails.
fn is_air_host(node: &Part<'_>) -> bool {
    let says = |key| node.text(key).is_some_and(|text| text.eq_ignore_ascii_case("host"));
    let nics = node.get("network_pci").and_then(|part| part.value.as_object());
    says("model") || says("emulation_type") || nics.is_some_and(|nics| !nics.is_empty())
}

/// A number that counts from 1, as one that counts from 0.
fn from_one(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|_| is_number)?.checked_sub(1)
}

fn short(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::String(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
        other => other.to_string(),
    }
}

impl<'a> End<'a> {
    /// File, line and path of a field.
    fn at(&self, field: &str) -> String {
        let End { part, list, link, end } = self;
        format!("{}: {list}[{link}][{end}].{field}", part.place(field))
    }

    fn node(&self) -> Result<&'a str, String> {
        match self.part.get("node").map(|part| part.value) {
            Some(Value::String(name)) if is_name(name) => Ok(name),
            Some(other) => Err(format!("{}: {} is no name of a node", self.at("node"), short(other))),
            None => Err(format!("{}: is missing", self.at("node"))),
        }
    }

    /// What an end of spcx-gen says it is.
    fn role(&self) -> Result<Option<&'a str>, String> {
        match self.part.get("attributes").map(|part| part.value) {
            None | Some(Value::Null | Value::Object(_)) => (),
            Some(other) => return Err(format!("{}: {} is no object", self.at("attributes"), short(other))),
        }
        match self.part.get("attributes.role").map(|part| part.value) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(role)) => {
                match ["host", "leaf"].into_iter().find(|known| role.eq_ignore_ascii_case(known)) {
                    Some(known) if role != known => {
                        Err(format!("{}: {role:?}: is {known} meant?", self.at("attributes.role")))
                    }
                    _ => Ok(Some(role)),
                }
            }
            Some(other) => Err(format!("{}: {} is no role", self.at("attributes.role"), short(other))),
        }
    }

    /// A number; null and nothing are the same.
    fn number(&self, scheme: &Scheme, field: &str, last: u64) -> Result<Option<u64>, String> {
        match self.part.get(field).map(|part| part.value) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) if number <= last => Ok(Some(number)),
                Some(number) => {
                    let what = scheme.outside(field.trim_start_matches("attributes."), number, last);
                    Err(format!("{}: {what}", self.at(field)))
                }
                None => Err(format!("{}: {} is no number from 0 on", self.at(field), short(value))),
            },
        }
    }

    fn needed(&self, scheme: &Scheme, field: &str, last: u64) -> Result<u64, String> {
        self.number(scheme, field, last)?
            .ok_or_else(|| format!("{}: is missing: 0 to {last}", self.at(field)))
    }

    /// The number behind `prefix` in the name of AIR's node, counted from 0.
    fn token(&self, prefix: &str, last: u64) -> Result<Option<u64>, String> {
        let name = self.node()?;
        let is_digits = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let mut tokens = name.split('-').filter_map(|token| token.strip_prefix(prefix).filter(is_digits));
        let Some(digits) = tokens.next() else { return Ok(None) };
        if tokens.next().is_some() {
            return Err(format!("{}: {name} has two tokens {prefix}<N>", self.at("node")));
        }
        match from_one(digits) {
            Some(number) if number <= last => Ok(Some(number)),
            _ => {
                let last = last.saturating_add(1);
                Err(format!(
                    "{}: {prefix}{digits} is not 1 to {last}, which these tiers, mode and family have room for",
                    self.at("node")
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;
    use crate::plan::fabric;
    use crate::plan::scheme::{Family, Mode, Polarity};
    use proptest::prelude::*;
    use serde_json::json;

    const TWO: Scheme = Scheme {
        tiers: Tiers::Two,
        mode: Mode::None,
        family: Family::Ipv4,
        first_octet: 172,
        polarity: Polarity::LeafOdd,
    };
    const THREE: Scheme = Scheme { tiers: Tiers::Three, first_octet: 10, ..TWO };

    fn text(file: &str, value: &Value) -> Text {
        Text { file: file.to_owned(), bytes: serde_json::to_vec_pretty(value).unwrap() }
    }

    /// Doubts are among the warnings.
    fn plan_of(values: &[Value], scheme: Scheme) -> Result<Plan, Vec<String>> {
        let name = |number| if number == 0 { "topology.json".to_owned() } else { format!("{number}.json") };
        let texts: Vec<_> =
            values.iter().enumerate().map(|(number, value)| text(&name(number), value)).collect();
        let mut plan = read(&texts, &scheme, None, &[Doubt::SecondLink]).map_err(|refusal| refusal.faults)?;
        plan.check()?;
        plan.warnings.extend(std::mem::take(&mut plan.doubts).into_warnings());
        Ok(plan)
    }

    /// Pool, node, prefix, gateway and cables of each row.
    fn rows(plan: &Plan) -> Vec<String> {
        let cable = |cable: &Cable| {
            let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
            format!("{}:{}:{}", text(&cable.interface), text(&cable.leaf), text(&cable.port))
        };
        let of_pool = plan.pools.iter().flat_map(|pool| {
            pool.rows().map(|(row, cables)| {
                let cables: Vec<_> = cables.iter().map(cable).collect();
                format!("{} {} {} {} {}", pool.name, row.node_name, row.prefix, row.gateway, cables.join(" "))
            })
        });
        of_pool.collect()
    }

    /// How big a made-up fabric is.
    #[derive(Clone, Copy, Debug)]
    struct Size {
        pods: u64,
        sus: u64,
        hosts: u64,
        rails: u64,
        planes: u64,
    }

    const SMALL: Size = Size { pods: 1, sus: 2, hosts: 2, rails: 2, planes: 1 };

    fn host_name(tiers: Tiers, at: &At) -> String {
        let pod = if tiers == Tiers::Three { format!("pod{:02}-", at.pod + 1) } else { String::new() };
        format!("worker-{pod}su{:02}-h{:02}", at.su + 1, at.host + 1)
    }

    fn leaf_name(tiers: Tiers, at: &At) -> String {
        let pod = if tiers == Tiers::Three { format!("pod{:02}-", at.pod + 1) } else { String::new() };
        format!("leaf-p{}-{pod}su{:03}-r{}", at.plane + 1, at.su + 1, at.rail + 1)
    }

    fn interface(at: &At) -> String {
        format!("rail{}p{}", at.rail + 1, at.plane + 1)
    }

    fn port(at: &At) -> String {
        format!("swp{}s{}", at.host / 2 + 1, at.host % 2)
    }

    /// Every host link, leaf by leaf.
    fn places(size: Size) -> Vec<At> {
        let mut all = Vec::new();
        let Size { pods, sus, hosts, rails, planes } = size;
        for (pod, su) in (0..pods).flat_map(|pod| (0..sus).map(move |su| (pod, su))) {
            for (plane, rail) in (0..planes).flat_map(|plane| (0..rails).map(move |rail| (plane, rail))) {
                all.extend((0..hosts).map(|host| At { plane, rail, pod, su, host }));
            }
        }
        all
    }

    fn spcx(size: Size, tiers: Tiers) -> Value {
        let (mut nodes, mut links, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for at in places(size) {
            let (host, leaf) = (host_name(tiers, &at), leaf_name(tiers, &at));
            for (name, role) in [(&host, "host"), (&leaf, "leaf")] {
                if seen.insert(name.clone()) {
                    nodes.push(json!({"name": name, "role": role, "type": "default"}));
                }
            }
            let At { plane, rail, pod, su, .. } = at;
            let of_leaf = json!({"role": "leaf", "plane": plane, "pod": pod, "su": su, "rail_group": [rail]});
            let of_host = json!({"role": "host", "rail": rail, "pod": pod, "su": su, "plane": null});
            let leaf_end = json!({"node": leaf, "interface": port(&at), "attributes": of_leaf});
            links.push(json!([leaf_end, {"node": host, "interface": interface(&at), "attributes": of_host}]));
            let spine = json!({"node": "spine", "interface": "swp1", "attributes": {"role": "spine"}});
            links.extend([json!([leaf_end, spine]), json!([leaf_end, "unconnected"]), json!([])]);
        }
        json!({"nodes": nodes, "links": links})
    }

    fn air(size: Size, tiers: Tiers) -> Value {
        let (mut nodes, mut links) = (serde_json::Map::new(), Vec::new());
        for at in places(size) {
            let (host, leaf) = (host_name(tiers, &at), leaf_name(tiers, &at));
            let nic = format!("rail{}", at.rail + 1);
            let own = nodes.entry(&host).or_insert_with(|| json!({"model": "host", "network_pci": {}}));
            own["network_pci"][&nic] = json!({});
            nodes.insert(leaf.clone(), json!({"model": "SN5600", "network_pci": {}}));
            nodes.entry("spine-1").or_insert(json!({"model": "SN5600"}));
            let host_end = json!({"node": host, "interface": interface(&at), "network_pci": nic});
            links.push(json!([host_end, {"node": leaf, "interface": port(&at)}]));
            links.push(
                json!([{"node": leaf, "interface": "swp64"}, {"node": "spine-1", "interface": "swp1"}]),
            );
            links.push(json!([{"node": "spine-1", "interface": "swp2"}, "unconnected"]));
        }
        // In the order of names a..z, so that order is not what decides.
        links.reverse();
        json!({"format": "not used", "name": "made up", "content": {"nodes": nodes, "links": links}})
    }

    /// Both forms and a fabric file say the same of one fabric, in every mode.
    #[test]
    fn three_sources_of_one_fabric_give_one_plan() {
        for (tiers, mode, planes, family) in [
            (2, "none", 1, "ipv4"),
            (2, "swplb", 2, "ipv4"),
            (2, "hwplb", 4, "dual"),
            (3, "none", 1, "dual"),
            (3, "swplb", 4, "ipv4"),
            (3, "hwplb", 2, "ipv6"),
        ] {
            let size = Size { pods: if tiers == 3 { 3 } else { 1 }, sus: 3, hosts: 4, rails: 8, planes };
            let pod = if tiers == 3 { "pod{pod+1:02}-" } else { "" };
            let yaml = format!(
                "fabric: spectrum-x\ntiers: {tiers}\nmode: {mode}\nplanes: {planes}\nfamily: {family}\nrails: 8\n\
                 pods: {}\nsus: 3\nhostsPerSU: 4\nnodeName: worker-{pod}su{{su+1:02}}-h{{host+1:02}}\n\
                 leafName: leaf-p{{plane+1}}-{pod}su{{su+1:03}}-r{{rail+1}}\nleafPort: swp{{host/2+1}}s{{host%2}}\n\
                 hostInterface: rail{{rail+1}}p{{plane+1}}\n",
                size.pods
            );
            let mut from_fabric =
                fabric::read(&document::parse("fabric.yaml", yaml.as_bytes()).unwrap()[0]).unwrap();
            from_fabric.check().unwrap();
            let expected = rows(&from_fabric);
            let pools = if mode == "swplb" { planes } else { 1 } * if family == "dual" { 2 } else { 1 };
            assert_eq!(expected.len() as u64, size.pods * 3 * 4 * 8 * pools);
            let scheme = Scheme {
                mode: serde_json::from_value(json!(mode)).unwrap(),
                family: serde_json::from_value(json!(family)).unwrap(),
                ..if tiers == 3 { THREE } else { TWO }
            };
            let from_spcx = plan_of(&[spcx(size, scheme.tiers)], scheme).unwrap();
            assert_eq!(from_spcx.warnings, Vec::<String>::new());
            assert_eq!(rows(&from_spcx), expected, "spcx {tiers} {mode}");
            // Cables come in the order of links, those of one row too.
            let mut ours = rows(&plan_of(&[air(size, scheme.tiers)], scheme).unwrap());
            let mut expected = expected;
            for row in ours.iter_mut().chain(&mut expected) {
                let mut words: Vec<_> = row.split(' ').collect();
                words[4..].sort_unstable();
                *row = words.join(" ");
            }
            assert_eq!(ours, expected, "air {tiers} {mode}");
        }
    }

    /// k8s-launch-kit's own expectations, with data of our own (addressing_test.go, air_topology_test.go).
    #[test]
    fn the_addresses_are_those_of_k8s_launch_kit() {
        let two_planes = Size { planes: 2, sus: 1, ..SMALL };
        let plan = plan_of(&[spcx(two_planes, Tiers::Two)], Scheme { mode: Mode::Swplb, ..TWO }).unwrap();
        let shown = rows(&plan);
        assert!(shown[1].starts_with("rail-0-plane-0 worker-su01-h02 172.16.0.2/31 172.16.0.3"), "{shown:?}");
        assert_eq!(plan.pools[3].spec.cidr, "172.20.64.0/18");
        let link = json!([
            {"node": "leaf-p1-pod03-su004-r1", "interface": "swp1s0"},
            {"node": "gpu-pod03-su04-rack07-h01", "interface": "rail1p1", "network_pci": "rail1"}]);
        let one = json!({"content": {"links": [link], "nodes": {
            "leaf-p1-pod03-su004-r1": {}, "gpu-pod03-su04-rack07-h01": {"network_pci": {"rail1": {}}}}}});
        let plan = plan_of(&[one], Scheme { mode: Mode::Hwplb, ..THREE }).unwrap();
        assert_eq!(
            rows(&plan),
            [
                "rail-0 gpu-pod03-su04-rack07-h01 10.0.131.0/31 10.0.131.1 rail1p1:leaf-p1-pod03-su004-r1:swp1s0"
            ]
        );
    }

    #[test]
    fn a_file_is_known_by_its_content() {
        for (value, is) in [
            (json!({"nodes": [], "links": []}), true),
            (json!({"format": "x", "content": {"nodes": {}, "links": []}}), true),
            (json!({"links": 1}), true),
            (json!({"fabric": "spectrum-x"}), false),
            (json!({"kind": "CIDRPool"}), false),
            (json!([1]), false),
            (json!(null), false),
        ] {
            assert_eq!(is_topology(&text("t", &value)), is, "{value}");
        }
        let both = json!({"nodes": [], "links": [], "content": {"nodes": {}, "links": []}});
        for (value, told) in [
            (both, "topology.json:2: nodes and links are there twice"),
            (json!({"nodes": {}, "links": []}), "topology.json:1: not a topology: there should be lists"),
            (json!({"content": {"nodes": [], "links": []}}), "not a topology"),
            (json!({"nodes": [], "links": []}), "topology.json:1: no link between a host and a leaf"),
            (json!({"content": {"nodes": {}, "links": []}}), "no link between a host and a leaf"),
            (json!([]), "not a topology"),
        ] {
            let faults = plan_of(&[value], TWO).unwrap_err();
            assert!(faults[0].contains(told), "{told}: {faults:?}");
        }
    }

    /// `links[0]` is from leaf to host; each change breaks one thing.
    #[test]
    fn every_fault_of_spcx_gen_is_told_with_line_and_field() {
        type Change = fn(&mut Value);
        let cases: &[(Scheme, &str, Change)] = &[
            (TWO, "topology.json:18: links[0][1].attributes.rail: is missing: 0 to 7", |links| {
                links[0][1]["attributes"].as_object_mut().unwrap().remove("rail");
            }),
            (TWO, "topology.json:21: links[0][1].attributes.rail: is missing: 0 to 7", |links| {
                links[0][1]["attributes"]["rail"] = json!(null);
            }),
            (TWO, "links[0][1].attributes.rail: 8 is not 0 to 7", |links| {
                links[0][1]["attributes"]["rail"] = json!(8);
            }),
            (TWO, "links[0][1].attributes.rail: -1 is no number from 0 on", |links| {
                links[0][1]["attributes"]["rail"] = json!(-1);
            }),
            (TWO, "links[0][1].attributes.rail: \"0\" is no number", |links| {
                links[0][1]["attributes"]["rail"] = json!("0");
            }),
            (TWO, "links[0][0].attributes.plane: is missing", |links| {
                links[0][0]["attributes"]["plane"] = json!(null);
            }),
            (TWO, "links[0][0].attributes.plane: 4 is not 0 to 3", |links| {
                links[0][0]["attributes"]["plane"] = json!(4);
            }),
            (TWO, "links[0][1].attributes.su: 64 is not 0 to 63", |links| {
                links[0][1]["attributes"]["su"] = json!(64);
            }),
            (TWO, "links[0][1].attributes.pod: 1 is not 0: two tiers of switches have one pod", |links| {
                links[0][1]["attributes"]["pod"] = json!(1);
            }),
            (THREE, "links[0][1].attributes.pod: is missing: 0 to 31", |links| {
                links[0][1]["attributes"]["pod"] = json!(null);
            }),
            (
                TWO,
                "links[0][0].attributes.role: the other end is host worker-su01-h01, this one is no leaf",
                |links| {
                    links[0][0]["attributes"]["role"] = json!("spine");
                },
            ),
            (TWO, "links[0][1].attributes.role: both ends are hosts", |links| {
                links[0][0]["attributes"]["role"] = json!("host");
            }),
            (TWO, "links[0][1].attributes.role: \"Host\": is host meant?", |links| {
                links[0][1]["attributes"]["role"] = json!("Host");
            }),
            (TWO, "links[0][1].attributes.role: 1 is no role", |links| {
                links[0][1]["attributes"]["role"] = json!(1);
            }),
            (TWO, "links[0][1].attributes: a list is no object", |links| {
                links[0][1]["attributes"] = json!([]);
            }),
            (TWO, "links[0][1].node: is missing", |links| {
                links[0][1].as_object_mut().unwrap().remove("node");
            }),
            (TWO, "links[0][1].node: \"../etc\" is no name of a node", |links| {
                links[0][1]["node"] = json!("../etc");
            }),
            (TWO, "links[0]: is not a list of two ends", |links| links[0] = json!({})),
            (TWO, "links[0][1]: null is no end of a link", |links| links[0][1] = json!(null)),
            (TWO, "links[0][0]: \"off\" is no end of a link", |links| links[0][0] = json!("off")),
            (TWO, "links[0]: a link has two ends, not 3", |links| {
                let end = links[0][0].clone();
                links[0].as_array_mut().unwrap().push(end);
            }),
            (TWO, "links[0]: a link has two ends, not 1", |links| {
                links[0].as_array_mut().unwrap().pop();
            }),
            (TWO, "links[0]: port swp1s1 of leaf-p1-su001-r1 has another cable (", |links| {
                links[0][0]["interface"] = json!("swp1s1");
            }),
        ];
        for (scheme, told, change) in cases {
            let mut value = spcx(SMALL, scheme.tiers);
            change(&mut value["links"]);
            let faults = plan_of(&[value], *scheme).unwrap_err();
            let told = told.replace("links[0]: port", "port");
            assert!(faults.iter().any(|fault| fault.contains(&told)), "{told}: {faults:#?}");
        }
    }

    #[test]
    fn every_fault_of_air_is_told_with_line_and_field() {
        type Change = fn(&mut Value);
        let rename = |from: &str, to: &str, value: &Value| -> Value {
            serde_json::from_str(&value.to_string().replace(&format!("\"{from}\""), &format!("\"{to}\"")))
                .unwrap()
        };
        let small = Size { sus: 1, hosts: 1, rails: 1, ..SMALL };
        // The host link is the last one.
        let cases: &[(&str, Change)] = &[
            ("content.links[2][0].interface: \"eth0\" is not rail<R>p<P>", |value| {
                value["links"][2][0]["interface"] = json!("eth0");
            }),
            ("content.links[2][0].interface: \"rail0p1\" is not rail<R>p<P>, counted from 1", |value| {
                value["links"][2][0]["interface"] = json!("rail0p1");
            }),
            (
                "content.links[2][0].interface: rail 2, but rail 1 by the name of leaf leaf-p1-su001-r1",
                |value| {
                    value["links"][2][0]["interface"] = json!("rail2p1");
                },
            ),
            ("content.links[2][0].interface: plane 2, but plane 1 by the name of leaf", |value| {
                value["links"][2][0]["interface"] = json!("rail1p2");
            }),
            ("content.links[2][0].network_pci: \"\" is not rail1", |value| {
                value["links"][2][0].as_object_mut().unwrap().remove("network_pci");
            }),
            ("content.links[2][0].network_pci: \"rail2\" is not rail1, as the interface", |value| {
                value["links"][2][0]["network_pci"] = json!("rail2");
            }),
            (
                "content.links[2][0].network_pci: node worker-su01-h01 has no rail1 in its network_pci",
                |value| {
                    value["nodes"]["worker-su01-h01"]["network_pci"] = json!({});
                },
            ),
            ("content.links[2][0].node: worker-su01-h01 is not in content.nodes", |value| {
                value["nodes"].as_object_mut().unwrap().remove("worker-su01-h01");
            }),
            ("content.links[2][1].node: both ends are hosts", |value| {
                value["nodes"]["leaf-p1-su001-r1"]["emulation_type"] = json!("HOST");
            }),
            ("content.links[0][0]: 7 is no end of a link", |value| value["links"][0][0] = json!(7)),
        ];
        for (told, change) in cases {
            let mut value = air(small, Tiers::Two);
            change(&mut value["content"]);
            let faults = plan_of(&[value], TWO).unwrap_err();
            let is_told = |fault: &String| fault.starts_with("topology.json:") && fault.contains(told);
            assert!(faults.iter().any(is_told), "{told}: {faults:#?}");
        }
        let (host, leaf) = ("worker-su01-h01", "leaf-p1-su001-r1");
        for (from, to, told) in [
            (host, "worker-h01", "content.links[2][0].node: no token su<N> between hyphens"),
            (host, "worker-su01", "content.links[2][0].node: no token h<N>"),
            (host, "worker-su00-h01", "content.links[2][0].node: su00 is not 1 to 64"),
            (host, "worker-su65-h01", "content.links[2][0].node: su65 is not 1 to 64"),
            (host, "worker-su01-h129", "content.links[2][0].node: h129 is not 1 to 128"),
            (host, "worker-su01-h99999999999999999999", "h99999999999999999999 is not 1 to 128"),
            (host, "worker-su01-su02-h01", "worker-su01-su02-h01 has two tokens su<N>"),
            (host, "worker-su02-h01", "content.links[2][0].node: SU 2, but SU 1 by the name of leaf"),
            (host, "worker-pod01-su01-h01", "content.links[2][1].node: no token pod<N>, which host"),
            (
                leaf,
                "spine-p1-su001-r1",
                "spine-p1-su001-r1 is linked to a host and does not begin with leaf-",
            ),
            (leaf, "leaf-su001-r1", "content.links[2][1].node: no token p<N>"),
            (leaf, "leaf-p1-su001", "content.links[2][1].node: no token r<N>"),
            (leaf, "leaf-p1-su001-r9", "content.links[2][1].node: r9 is not 1 to 8"),
            (leaf, "leaf-p1-pod01-su001-r1", "content.links[2][0].node: no token pod<N>"),
        ] {
            let faults = plan_of(&[rename(from, to, &air(small, Tiers::Two))], TWO).unwrap_err();
            assert!(faults.iter().any(|fault| fault.contains(told)), "{told}: {faults:#?}");
        }
        let faults = plan_of(&[air(small, Tiers::Two)], THREE).unwrap_err();
        assert!(faults[0].contains("content.links[2][0].node: no token pod<N>"), "{faults:?}");
        let three = rename("worker-pod01-su01-h01", "worker-pod02-su01-h01", &air(small, Tiers::Three));
        let faults = plan_of(&[three], THREE).unwrap_err();
        assert!(faults[0].contains("pod 2, but pod 1 by the name of leaf"), "{faults:?}");
        let twice =
            rename("worker-su01-h02", "worker-su01-rack09-h01", &air(Size { sus: 1, ..SMALL }, Tiers::Two));
        let faults = plan_of(&[twice], TWO).unwrap_err();
        assert!(faults[0].contains("names the place of worker-su01-rack09-h01"), "{faults:?}");
    }

    /// In a spcx-gen file the index of a host is its place among the links (`air_topology.go` has it in the name): the
    /// order decides addresses. So `plan --check` must see it.
    #[test]
    fn the_order_of_links_decides_addresses_in_spcx_gen_only() {
        let both = |make: fn(Size, Tiers) -> Value, list: &str| {
            let value = make(SMALL, Tiers::Two);
            let mut turned = value.clone();
            turned.pointer_mut(list).unwrap().as_array_mut().unwrap().reverse();
            [value, turned].map(|value| rows(&plan_of(&[value], TWO).unwrap()))
        };
        let [before, after] = both(spcx, "/links");
        assert!(before[0].starts_with("rail-0 worker-su01-h01 172.16.0.0/31"), "{before:?}");
        assert!(after[0].starts_with("rail-0 worker-su01-h02 172.16.0.0/31"), "{after:?}");
        let [before, after] = both(air, "/content/links");
        assert_eq!(before, after);
    }

    /// An SU counts with plane and pod of the host's own attributes, and null is nothing.
    #[test]
    fn hosts_are_counted_in_their_own_group() {
        let end = |leaf: &str, node: &str, attributes: Value| {
            let mut of_host = json!({"role": "host", "rail": 0});
            of_host.as_object_mut().unwrap().extend(attributes.as_object().unwrap().clone());
            json!([{"node": node, "attributes": of_host}, {"node": leaf, "attributes": {"role": "leaf", "plane": 0}}])
        };
        let links = json!([
            end("l", "a", json!({"su": 0, "pod": 0})),
            end("l", "b", json!({"su": 1, "pod": 0})),
            end("l", "c", json!({"su": 1, "pod": null})),
            end("l", "b", json!({"su": 1, "pod": 0})),
            end("l", "d", json!({"su": 1, "pod": 0})),
        ]);
        let nodes = json!(["a", "b", "c", "d"].map(|name| json!({"name": name})));
        // b and c are both the first of their groups, which have one place: NVIDIA's tool gives both the same /31.
        let faults = plan_of(&[json!({"nodes": nodes, "links": links})], TWO).unwrap_err();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].contains("links[2]: node c is in the place of node b"), "{faults:?}");
    }

    #[test]
    fn what_looks_wrong_is_told() {
        let mut value = spcx(SMALL, Tiers::Two);
        value["nodes"].as_array_mut().unwrap().remove(0);
        let nodes = value["nodes"].as_array_mut().unwrap();
        let again = nodes[1].clone();
        nodes.extend([json!({"name": "idle", "role": "host"}), again]);
        let links = &mut value["links"];
        links[0][0]["attributes"]["rail_group"] = json!([5, 6]);
        links[4][0]["attributes"]["su"] = json!(1);
        for index in [0, 4] {
            links[index][0]["interface"] = json!(format!("port {index}"));
        }
        let warnings = plan_of(&[value], TWO).unwrap().warnings;
        for told in [
            "worker-su01-h01 is not in nodes: correct the name, or add it there",
            "host idle has no link to a leaf",
            "nodes[8].name: worker-su01-h02 is also nodes[1]",
            "links[0][1].attributes.rail: host worker-su01-h01 has rail 0, leaf leaf-p1-su001-r1 is for rail 5, 6 (",
            "links[4][0].attributes.su: leaf leaf-p1-su001-r1 has su 1, host worker-su01-h02 has su 0",
            "links[0]: \"port 0\" is no name of a switch port, and is left out",
        ] {
            assert!(warnings.iter().any(|warning| warning.contains(told)), "{told}: {warnings:#?}");
        }
        let mut value = spcx(Size { sus: 1, ..SMALL }, Tiers::Two);
        for number in 0..4 {
            value["links"][4 * number][1]["attributes"]["su"] = json!(null);
        }
        let warnings = plan_of(&[value], TWO).unwrap().warnings;
        assert!(warnings[0].contains("links[0][1].attributes.su: is missing, taken as 0"), "{warnings:?}");
    }

    /// One file per pod.
    #[test]
    fn several_files_make_one_plan() {
        let size = Size { pods: 2, ..SMALL };
        let whole = spcx(size, Tiers::Three);
        let part = |pod: u64| {
            let mut value = whole.clone();
            let name = format!("pod{:02}", pod + 1);
            let is_of_pod = |value: &Value| value.to_string().contains(&name);
            value["links"].as_array_mut().unwrap().retain(is_of_pod);
            value["nodes"].as_array_mut().unwrap().retain(is_of_pod);
            value
        };
        let parts = [part(1), part(0)];
        let plan = plan_of(&parts, THREE).unwrap();
        assert_eq!(rows(&plan), rows(&plan_of(std::slice::from_ref(&whole), THREE).unwrap()));
        let faults = plan_of(&[part(0), spcx(Size { hosts: 3, ..SMALL }, Tiers::Three)], THREE).unwrap_err();
        let told = "hosts of this pod and SU are in another file already";
        assert!(faults[0].starts_with("1.json:") && faults[0].contains(told), "{faults:?}");
    }

    #[test]
    fn an_su_has_room_for_128_hosts() {
        let faults =
            plan_of(&[spcx(Size { hosts: 129, rails: 1, sus: 1, ..SMALL }, Tiers::Two)], TWO).unwrap_err();
        assert!(
            faults[0].contains(".node: node worker-su01-h129 would be host 128 of its pod and SU"),
            "{faults:?}"
        );
    }

    /// What comes of a wrong SU is not told beside it; but where that is meant.
    #[test]
    fn a_host_that_strays_into_a_full_su_is_the_fault() {
        let mut value = spcx(Size { hosts: 128, rails: 1, ..SMALL }, Tiers::Two);
        value["links"][0][1]["attributes"]["su"] = json!(1);
        let texts = [text("topology.json", &value)];
        let plan = read(&texts, &TWO, None, &[]).unwrap();
        assert_eq!(plan.doubts.into_warnings().len(), 1);
        let Refusal { faults, .. } = read(&texts, &TWO, None, &[Doubt::OtherSu]).unwrap_err();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(
            faults[0].contains("node worker-su02-h128 would be host 128 of its pod and SU"),
            "{faults:?}"
        );
    }

    #[test]
    fn a_file_that_is_wrong_throughout_ends_early() {
        let links = vec![json!({}); 5000];
        let faults = plan_of(&[json!({"nodes": [], "links": links})], TWO).unwrap_err();
        assert_eq!(faults.len(), MAX_FAULTS + 1);
        assert!(faults[MAX_FAULTS].contains("what follows was not looked at"));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            (0u64..10).prop_map(Value::from),
            "(host|leaf|unconnected|leaf-p1-su1-r1|a-su1-h1|rail1p1|rail1|é|)".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let key = "(node|interface|attributes|role|rail|plane|su|pod|network_pci|rail1|name|model)";
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map(key, inner, 0..4).prop_map(|map| json!(map)),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_topology_makes_it_panic(ends in proptest::collection::vec(any_json(), 0..6), nodes in any_json()) {
            let links: Vec<_> = ends.chunks(2).map(|ends| json!(ends)).collect();
            let nodes = json!({"leaf-p1-su1-r1": nodes, "a-su1-h1": {"model": "host", "network_pci": {"rail1": 1}}});
            let spcx = json!({"nodes": ends, "links": links});
            let air = json!({"content": {"nodes": nodes, "links": links}});
            for scheme in [TWO, THREE] {
                let _ = plan_of(std::slice::from_ref(&spcx), scheme);
                let _ = plan_of(&[air.clone(), spcx.clone()], scheme);
            }
        }

        /// One value of a good file is another one.
        #[test]
        fn no_change_of_a_topology_makes_it_panic(which in 0usize..400, value in any_json(), is_air in any::<bool>()) {
            let mut whole = if is_air { air(SMALL, Tiers::Two) } else { spcx(SMALL, Tiers::Two) };
            let mut left = which;
            change(&mut whole, &mut left, &value);
            let _ = plan_of(&[whole], TWO);
        }
    }

    /// Puts `to` in the place of the nth value.
    fn change(value: &mut Value, left: &mut usize, to: &Value) {
        match left.checked_sub(1) {
            Some(less) => *left = less,
            None => {
                *value = to.clone();
                *left = usize::MAX;
                return;
            }
        }
        match value {
            Value::Array(list) => list.iter_mut().for_each(|inner| change(inner, left, to)),
            Value::Object(map) => map.values_mut().for_each(|inner| change(inner, left, to)),
            _ => (),
        }
    }
}
