//! Redundant values of a topology: pod and SU of both ends of a link, the rails of a leaf, the links
//! of a host. A difference is a doubt; its message names the wrong side where other links show it.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::{Reader, Sources};
use crate::refusal::Doubt;
use crate::scheme::{HostLink, Mode, Origin};
use rail_cni::fault::Fault;

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

/// The values of one end of a link.
pub struct Side {
    /// The name of the node.
    pub name: String,
    /// Its pod and SU.
    pub home: Home,
    /// The place of the field.
    pub origin: Origin,
}

/// A link to a leaf that is not for its rail.
pub struct OtherRail {
    /// The number of the link.
    pub link: usize,
    /// The place of the host's rail.
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
        let doubtful_hosts = self.compare_rails();
        self.compare_homes(&doubtful_hosts);
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
        let mut reported = BTreeSet::new();
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
                if reported.insert([*pod, *su]) {
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
    fn compare_homes(&mut self, doubtful_hosts: &HashSet<String>) {
        let Reader {
            homes,
            apart,
            links,
            sources,
            doubts,
            ..
        } = self;
        homes.retain(|name, homes| homes.len() > 1 && !doubtful_hosts.contains(name));
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
            if apart.contains(&number) || doubtful_hosts.contains(node) {
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
    /// plane of it), and rails that hosts lack. Returns the hosts of such links.
    fn compare_rails(&mut self) -> HashSet<String> {
        let rails = HostRails::new(&self.links, self.scheme.mode);
        let mut doubtful_hosts = HashSet::new();
        for other_rail in &self.other_rail {
            let Some(link) = self.links.get(other_rail.link) else {
                continue;
            };
            doubtful_hosts.insert(link.node_name.clone());
            self.doubts.push(Doubt::OtherRail, || {
                rails.fault_of_other_rail(link, other_rail)
            });
        }
        let hosts_on_other_rails = doubtful_hosts.clone();
        for (number, link) in &rails.second_links {
            self.second.insert(*number);
            if hosts_on_other_rails.contains(&link.node_name) {
                continue;
            }
            doubtful_hosts.insert(link.node_name.clone());
            self.doubts.push(Doubt::SecondLink, || {
                rails.fault_of_second_link(*number, link, &self.sources)
            });
        }
        for (host, host_rails) in rails.incomplete_hosts() {
            if doubtful_hosts.contains(host) || self.broken.contains(host) {
                continue;
            }
            self.doubts.push(Doubt::MissingRail, || {
                let lacking = rails.lacking(host_rails).unwrap_or_default();
                let problem = format!("host {host} has no link on {lacking}");
                let origin = self.sources.origin(host_rails.first_link);
                origin
                    .fault(problem)
                    .remedy("add it, with leaf and port of its cable")
            });
        }
        doubtful_hosts
    }
}

/// A rail and its plane, which is 0 without planes.
type RailPlane = [u64; 2];

/// The rails that each host has by its links.
struct HostRails<'a> {
    mode: Mode,
    links: &'a [HostLink],
    /// The rails of all hosts.
    all: BTreeSet<RailPlane>,
    by_host: HashMap<&'a str, RailsOfHost>,
    /// Links whose host has one on that rail already, with their numbers.
    second_links: Vec<(usize, &'a HostLink)>,
}

/// The rails of one host.
struct RailsOfHost {
    /// The number of the host's first link.
    first_link: usize,
    rails: Vec<RailPlane>,
}

impl<'a> HostRails<'a> {
    fn new(links: &'a [HostLink], mode: Mode) -> HostRails<'a> {
        let mut host_rails = HostRails {
            mode,
            links,
            all: BTreeSet::new(),
            by_host: HashMap::new(),
            second_links: Vec::new(),
        };
        for (number, link) in links.iter().enumerate() {
            let rail = host_rails.rail_of(link);
            let of_host = host_rails
                .by_host
                .entry(&link.node_name)
                .or_insert_with(|| RailsOfHost {
                    first_link: number,
                    rails: Vec::new(),
                });
            if of_host.rails.contains(&rail) {
                host_rails.second_links.push((number, link));
            } else {
                of_host.rails.push(rail);
                host_rails.all.insert(rail);
            }
        }
        host_rails
    }

    fn rail_of(&self, link: &HostLink) -> RailPlane {
        match self.mode {
            Mode::None => [link.rail, 0],
            _ => [link.rail, link.plane],
        }
    }

    fn describe(&self, [rail, plane]: RailPlane) -> String {
        match self.mode {
            Mode::None => format!("rail {rail}"),
            _ => format!("rail {rail}, plane {plane}"),
        }
    }

    /// Whether a host has a rail, on any plane.
    fn has(&self, host: &str, rail: u64) -> bool {
        self.by_host
            .get(host)
            .is_some_and(|of_host| of_host.rails.iter().any(|[other, _]| *other == rail))
    }

    /// The rails that a host lacks, for a message.
    fn lacking(&self, of_host: &RailsOfHost) -> Option<String> {
        let mut lacking = Vec::new();
        for rail in &self.all {
            if !of_host.rails.contains(rail) {
                lacking.push(self.describe(*rail));
            }
        }
        if lacking.is_empty() {
            return None;
        }
        Some(lacking.join(" and "))
    }

    /// The hosts that lack a rail, in the order of their first links.
    fn incomplete_hosts(&self) -> Vec<(&'a str, &RailsOfHost)> {
        let mut incomplete: Vec<_> = self
            .by_host
            .iter()
            .filter(|(_, of_host)| of_host.rails.len() < self.all.len())
            .map(|(host, of_host)| (*host, of_host))
            .collect();
        incomplete.sort_by_key(|(_, of_host)| of_host.first_link);
        incomplete
    }

    /// A link to a leaf for other rails than the host's.
    fn fault_of_other_rail(&self, link: &HostLink, other_rail: &OtherRail) -> Fault {
        let node = &link.node_name;
        let rail = link.rail;
        let has_second_link = self
            .second_links
            .iter()
            .any(|(_, second)| second.node_name == *node && second.rail == rail);
        let lacking = other_rail
            .of_leaf
            .iter()
            .find(|leaf_rail| !self.has(node, **leaf_rail));
        let remedy = match lacking {
            Some(lacking) if has_second_link => format!("write {lacking}"),
            None if !has_second_link => format!("link it to a leaf for rail {rail}"),
            _ => "correct the rail, or the leaf".to_owned(),
        };
        let leaf = &other_rail.leaf;
        let leaf_rails: Vec<String> = other_rail.of_leaf.iter().map(u64::to_string).collect();
        let leaf_rails = leaf_rails.join(", ");
        let problem = format!(
            "host {node} has rail {rail}, leaf {leaf} is for rail {leaf_rails} (rail_group)"
        );
        other_rail.origin.clone().fault(problem).remedy(remedy)
    }

    /// A link on a rail on which its host has another one.
    fn fault_of_second_link(&self, number: usize, link: &HostLink, sources: &Sources) -> Fault {
        let node = &link.node_name;
        let rail = self.rail_of(link);
        let first = self
            .links
            .iter()
            .position(|other| other.node_name == *node && self.rail_of(other) == rail)
            .unwrap_or_default();
        let of_host = self.by_host.get(node.as_str());
        let has_planes = self.links.iter().any(|link| link.plane > 0);
        let hint = match of_host.and_then(|of_host| self.lacking(of_host)) {
            Some(lacking) => format!(", and none on {lacking}: correct the rail of one"),
            None if self.mode == Mode::None && has_planes => {
                ": the leaves are of several planes: --mode swplb or hwplb".to_owned()
            }
            None => ": of two hosts, give this one its own name; else take it out".to_owned(),
        };
        let problem = format!(
            "host {node} has another link on {} ({}){hint}",
            self.describe(rail),
            sources.origin(first)
        );
        sources.origin(number).fault(problem)
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
