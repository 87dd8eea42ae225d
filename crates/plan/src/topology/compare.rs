//! What a topology says twice: pod and SU of both ends of a link, the rails of a leaf, the links of
//! a host. A difference is a doubt, and where the other links say which side is wrong, so does its
//! message.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::Reader;
use crate::refusal::Doubt;
use crate::scheme::{HostLink, Mode, Origin};

/// Pod and SU.
pub type Home = [u64; 2];

/// The fields of an end that say its [`Home`].
pub const HOME: [&str; 2] = ["attributes.pod", "attributes.su"];

/// A link whose ends are in different places.
pub struct Apart {
    /// The number of the link.
    pub link: usize,
    /// The index in [`HOME`] of the field that differs.
    pub field: usize,
    /// The host's end.
    pub host: Side,
    /// The leaf's end.
    pub leaf: Side,
}

/// What one end of a link says.
pub struct Side {
    /// The name of the node.
    pub name: String,
    /// Its pod and SU.
    pub home: Home,
    /// Where the field is.
    pub origin: Origin,
}

/// A link to a leaf that is not for its rail.
pub struct OtherRail {
    /// The number of the link.
    pub link: usize,
    /// Where the host's rail is.
    pub origin: Origin,
    /// The name of the leaf.
    pub leaf: String,
    /// The rails in `rail_group` of the leaf.
    pub of_leaf: Vec<u64>,
}

impl Reader<'_> {
    /// Compares all links with each other, when all files are read.
    pub(super) fn compare(&mut self) {
        if self.has_su {
            for fault in std::mem::take(&mut self.without_su) {
                self.doubts.push(Doubt::MissingSu, || fault);
            }
        }
        self.warnings
            .insert("su", std::mem::take(&mut self.without_su));
        self.compare_ends();
        self.compare_order();
        let told = self.compare_rails();
        self.compare_homes(&told);
    }

    /// Compares both ends of each link. The other links of both say which end is wrong.
    fn compare_ends(&mut self) {
        let Reader {
            homes,
            apart,
            doubts,
            ..
        } = self;
        for Apart {
            field, host, leaf, ..
        } in apart
        {
            let is_right = |side: &Side| {
                homes
                    .get(&side.name)
                    .is_some_and(|homes| homes.iter().any(|(home, _)| *home == side.home))
            };
            let what = HOME[*field].trim_start_matches("attributes.");
            let says = |side: &Side| format!("{} has {what} {}", side.name, side.home[*field]);
            doubts.push(Doubt::OtherSu, || {
                let (of_host, of_leaf) = (host.home[*field], leaf.home[*field]);
                let (origin, problem, remedy) = match (is_right(host), is_right(leaf)) {
                    (false, true) => (
                        &host.origin,
                        format!(
                            "host {}, leaf {} as with its other hosts",
                            says(host),
                            says(leaf)
                        ),
                        format!("write {of_leaf}"),
                    ),
                    (true, false) => (
                        &leaf.origin,
                        format!(
                            "leaf {}, host {} as by its other links",
                            says(leaf),
                            says(host)
                        ),
                        format!("write {of_host}"),
                    ),
                    (true, true) => (
                        &host.origin,
                        format!(
                            "host {}, leaf {}, each as by its other links",
                            says(host),
                            says(leaf)
                        ),
                        format!("link the host to a leaf of {what} {of_host}"),
                    ),
                    (false, false) => (
                        &host.origin,
                        format!("host {}, leaf {}", says(host), says(leaf)),
                        "correct either".to_owned(),
                    ),
                };
                origin.clone().fault(problem).remedy(remedy)
            });
        }
    }

    /// Warns of SUs in which names of hosts and ports of leaves leave places free, and the order of
    /// the links does not.
    fn compare_order(&mut self) {
        let mut first_of: HashMap<[u64; 4], (u64, [u64; 2])> = HashMap::new();
        let mut told = BTreeSet::new();
        let mut warnings = Vec::new();
        for (number, link) in self.links.iter().enumerate() {
            let HostLink {
                node_name,
                plane,
                rail,
                pod,
                su,
                host,
                cable,
            } = link;
            let port = cable.port.as_deref().and_then(first_number);
            let Some(said) = last_number(node_name)
                .zip(port)
                .map(|(name, port)| [name, port])
            else {
                continue;
            };
            let (first, other) = *first_of
                .entry([*plane, *rail, *pod, *su])
                .or_insert((*host, said));
            let apart = [0, 1].map(|which| said[which].checked_sub(other[which]));
            let by_both = apart[0].filter(|apart_by| Some(*apart_by) == apart[1]);
            if let Some(by_both) =
                by_both.filter(|by_both| Some(*by_both) != host.checked_sub(first))
            {
                if told.insert([*pod, *su]) {
                    let problem = format!(
                        "{node_name} is host {host} of its SU by the order of the links, and {} by its name and its port {}",
                        first.saturating_add(by_both),
                        cable.port.as_deref().unwrap_or_default()
                    );
                    let remedy = "addresses follow the order, as with NVIDIA's tools; if the leaves are configured by port, \
                                  add the missing hosts, or use a fabric file with nodes";
                    warnings.push(self.sources.origin(number).fault(problem).remedy(remedy));
                }
            }
        }
        self.warnings.entry("order").or_default().extend(warnings);
    }

    /// Finds hosts in several places, and leaves with hosts of several, by links whose ends agree.
    /// Leaves out hosts that other doubts are about.
    fn compare_homes(&mut self, told: &HashSet<String>) {
        let Reader {
            homes,
            apart,
            links,
            sources,
            doubts,
            ..
        } = self;
        homes.retain(|name, homes| homes.len() > 1 && !told.contains(name));
        if homes.is_empty() {
            return;
        }
        let apart: HashSet<usize> = apart.iter().map(|apart| apart.link).collect();
        // With as many links on both sides, those behind are the wrong ones.
        let most = |name: &str| {
            homes
                .get(name)?
                .iter()
                .rev()
                .max_by_key(|(_, count)| *count)
        };
        for (number, link) in links.iter().enumerate() {
            let here = [link.pod, link.su];
            let (node, leaf) = (
                link.node_name.as_str(),
                link.cable.leaf.as_deref().unwrap_or_default(),
            );
            if apart.contains(&number) || told.contains(node) {
                continue;
            }
            let of_leaf = most(leaf).filter(|(home, _)| *home != here);
            let of_host = most(node).filter(|(home, _)| *home != here);
            let Some((right, count)) = of_host.or(of_leaf) else {
                continue;
            };
            let field = usize::from(here[0] == right[0]);
            let (what, is, right) = (["pod", "su"][field], here[field], right[field]);
            match of_host {
                None => doubts.push(Doubt::OtherSu, || {
                    let problem = format!("host {node} has {what} {is}, the other hosts of {leaf} {what} {right}");
                    sources.origin(number).fault(problem).remedy(format!("write {right}"))
                }),
                Some((home, _)) => doubts.push(Doubt::TwoSus, || {
                    let is_leaf_there = of_leaf.is_some_and(|(of_leaf, _)| of_leaf == home);
                    let also = if is_leaf_there { String::new() } else { format!(", and a leaf of {what} {right}") };
                    let problem = format!(
                        "host {node} has {what} {is} by this link to {leaf}, {what} {right} by its other links ({count})"
                    );
                    sources.origin(number).fault(problem).remedy(format!("write {what} {right}{also}"))
                }),
            }
        }
    }

    /// Finds links that are not the only one of their host on their rail (with planes, on their
    /// plane of it), and rails that hosts lack. Returns the hosts of these links.
    fn compare_rails(&mut self) -> HashSet<String> {
        let Reader {
            links,
            sources,
            doubts,
            scheme,
            other_rail,
            broken,
            second: all_second,
            ..
        } = self;
        let rail_of = |link: &HostLink| match scheme.mode {
            Mode::None => [link.rail, 0],
            _ => [link.rail, link.plane],
        };
        let shown = |[rail, plane]: [u64; 2]| match scheme.mode {
            Mode::None => format!("rail {rail}"),
            _ => format!("rail {rail}, plane {plane}"),
        };
        let mut all: BTreeSet<[u64; 2]> = BTreeSet::new();
        // The number of the first link of each, and its rails.
        let mut of_node: HashMap<&str, (usize, Vec<[u64; 2]>)> = HashMap::new();
        let mut second = Vec::new();
        for (number, link) in links.iter().enumerate() {
            let rail = rail_of(link);
            let (_, rails) = of_node
                .entry(&link.node_name)
                .or_insert_with(|| (number, Vec::new()));
            if rails.contains(&rail) {
                second.push((number, link));
            } else {
                rails.push(rail);
                all.insert(rail);
            }
        }
        let has = |node: &str, rail: u64| {
            of_node
                .get(node)
                .is_some_and(|(_, rails)| rails.iter().any(|[known, _]| *known == rail))
        };
        let mut told = HashSet::new();
        for OtherRail {
            link,
            origin,
            leaf,
            of_leaf,
        } in other_rail
        {
            let Some(link) = links.get(*link) else {
                continue;
            };
            let (node, rail) = (link.node_name.as_str(), link.rail);
            told.insert(node.to_owned());
            doubts.push(Doubt::OtherRail, || {
                let is_twice = second
                    .iter()
                    .any(|(_, other)| other.node_name == node && other.rail == rail);
                let listed: Vec<_> = of_leaf.iter().map(u64::to_string).collect();
                let remedy = match of_leaf.iter().find(|of_leaf| !has(node, **of_leaf)) {
                    Some(lacking) if is_twice => format!("write {lacking}"),
                    None if !is_twice => format!("link it to a leaf for rail {rail}"),
                    _ => "correct the rail, or the leaf".to_owned(),
                };
                let listed = listed.join(", ");
                let problem = format!(
                    "host {node} has rail {rail}, leaf {leaf} is for rail {listed} (rail_group)"
                );
                origin.clone().fault(problem).remedy(remedy)
            });
        }
        let lacks = |rails: &[[u64; 2]]| {
            let lacking = all
                .iter()
                .filter(|rail| !rails.contains(rail))
                .map(|rail| shown(*rail));
            let lacking = lacking.collect::<Vec<_>>().join(" and ");
            (!lacking.is_empty()).then_some(lacking)
        };
        let has_planes = links.iter().any(|link| link.plane > 0);
        all_second.extend(second.iter().map(|(number, _)| *number));
        let before = told.clone();
        for (number, link) in second
            .into_iter()
            .filter(|(_, link)| !before.contains(&link.node_name))
        {
            let (node, rail) = (&link.node_name, rail_of(link));
            told.insert(node.clone());
            doubts.push(Doubt::SecondLink, || {
                let is_first =
                    |other: &HostLink| other.node_name == *node && rail_of(other) == rail;
                let first = links.iter().position(is_first).unwrap_or_default();
                let lacking = of_node
                    .get(node.as_str())
                    .and_then(|(_, rails)| lacks(rails));
                let hint = match lacking {
                    Some(lacking) => format!(", and none on {lacking}: correct the rail of one"),
                    None if scheme.mode == Mode::None && has_planes => {
                        ": the leaves are of several planes: --mode swplb or hwplb".to_owned()
                    }
                    None => {
                        ": of two hosts, give this one its own name; else take it out".to_owned()
                    }
                };
                let problem = format!(
                    "host {node} has another link on {} ({}){hint}",
                    shown(rail),
                    sources.origin(first)
                );
                sources.origin(number).fault(problem)
            });
        }
        let mut incomplete: Vec<_> = of_node
            .iter()
            .filter(|(node, (_, rails))| {
                rails.len() < all.len() && !told.contains(**node) && !broken.contains(**node)
            })
            .collect();
        incomplete.sort_by_key(|(_, (first, _))| *first);
        for (node, (first, rails)) in incomplete {
            doubts.push(Doubt::MissingRail, || {
                let lacking = lacks(rails).unwrap_or_default();
                let problem = format!("host {node} has no link on {lacking}");
                sources
                    .origin(*first)
                    .fault(problem)
                    .remedy("add it, with leaf and port of its cable")
            });
        }
        told
    }
}

/// The last number in a name: 8 of `hgx-su00-h08`.
fn last_number(name: &str) -> Option<u64> {
    let end = name.rfind(|digit: char| digit.is_ascii_digit())? + 1;
    let begin = name[..end]
        .rfind(|digit: char| !digit.is_ascii_digit())
        .map_or(0, |before| before + 1);
    name.get(begin..end)?.parse().ok()
}

/// The first number in a name: 9 of `swp9s0`.
fn first_number(name: &str) -> Option<u64> {
    let begin = name.find(|digit: char| digit.is_ascii_digit())?;
    let digits = &name[begin..];
    digits[..digits
        .find(|digit: char| !digit.is_ascii_digit())
        .unwrap_or(digits.len())]
        .parse()
        .ok()
}
