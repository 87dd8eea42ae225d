//! topology.json: the cables of a fabric, as spcx-gen writes them and as NVIDIA AIR exports them;
//! or a graph of `dot`.
//!
//! [`is_topology`] knows such a file by its content, [`read`] makes a plan of one or several. The
//! links of a big fabric fill gigabytes once they are parsed, so they are read one by one and not
//! kept. NVIDIA's k8s-launch-kit (`pkg/networkoperatorplugin/spectrumx`: `addressing.go`,
//! `air_topology.go`) defines what the two forms mean:
//!
//! | | spcx-gen | AIR |
//! | --- | --- | --- |
//! | shape | `nodes` and `links`, both lists | `content` with a map `nodes` and a list `links` |
//! | where a host is | `attributes` of its end of the link: `rail`, `su`, `pod`; `plane` of the leaf's end | tokens of the names, counted from 1, or from 0 where SU, host and rail all do |
//! | index of a host | the order in which hosts appear in the links of their (plane, pod, su) | `h<H>` of its name |
//!
//! A link without a host is one between switches, and is ignored.
//!
//! Addresses follow from the numbers of a few fields, so one wrong digit moves those of a whole SU.
//! `compare` compares redundant values, such as the SU of both ends and the rails of a leaf. A
//! difference is a [`Doubt`].

mod air;
mod compare;
mod dot;
mod end;
mod spcx;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

use crate::document::Text;
use crate::plan::{Cable, Plan};
use crate::refusal::{Doubt, Doubts, Refusal};
use crate::scheme::{HostLink, MAX_FAULTS, Origin, Scheme};
use compare::{Apart, Home, OtherRail};
use end::{End, both_ends};
use rail_cni::fault::{Fault, Place, few};

const LINKS: &str = "links";

/// Whether the text is such a file, whole or not.
pub fn is_topology(text: &Text) -> bool {
    dot::is_dot(text)
        || text.without(LINKS, &mut |_, _| ()).is_ok_and(|document| {
            let has_links = |value: &Value| value.get(LINKS).is_some();
            has_links(&document.value) || document.value.get("content").is_some_and(has_links)
        })
}

/// The plan of these files. All hosts of an SU are in one file. `mtu` is the MTU of the hosts'
/// interfaces, in bytes, which no such file says. Doubts that are `allowed` stay among the doubts
/// of the plan.
pub fn read(
    texts: &[Text],
    scheme: &Scheme,
    mtu: Option<u32>,
    allowed: &[Doubt],
) -> Result<Plan, Refusal> {
    let mut reader = Reader::new(scheme, mtu);
    for (number, text) in texts.iter().enumerate() {
        match dot::is_dot(text).then(|| dot::to_air(text)) {
            None => reader.read(text, number),
            Some(Ok(text)) => reader.read(&text, number),
            Some(Err(fault)) => reader.faults.push(fault),
        }
    }
    reader.compare();
    let Reader {
        mut links,
        mut sources,
        second,
        doubts,
        no_room,
        mut faults,
        warnings,
        ..
    } = reader;
    // A host that strayed into a full SU leaves no room there for another one.
    let strays = [Doubt::OtherSu, Doubt::TwoSus, Doubt::MissingSu];
    if !strays
        .into_iter()
        .any(|doubt| doubts.has(doubt) && !allowed.contains(&doubt))
    {
        faults.extend(no_room);
    }
    if !faults.is_empty() {
        return Err(Refusal { doubts, faults });
    }
    if !allowed.contains(&Doubt::SecondLink) {
        // The doubts have them already. Without them, the other faults of the plan can be found.
        let mut numbers = 0..;
        links.retain(|_| {
            numbers
                .next()
                .is_none_or(|number| !second.contains(&number))
        });
        numbers = 0..;
        sources.links.retain(|_| {
            numbers
                .next()
                .is_none_or(|number| !second.contains(&number))
        });
    }
    match scheme.plan(links, &|number| sources.origin(number)) {
        Ok(plan) => {
            let lines = |faults: Vec<Fault>| few(faults.iter().map(Fault::to_string).collect());
            Ok(Plan {
                doubts,
                warnings: warnings.into_values().flat_map(lines).collect(),
                ..plan
            })
        }
        Err(faults) => Err(Refusal { doubts, faults }),
    }
}

/// Gathers the content of the files.
struct Reader<'a> {
    scheme: &'a Scheme,
    mtu: Option<u32>,
    links: Vec<HostLink>,
    sources: Sources,
    groups: HashMap<Group, Hosts>,
    /// AIR's hosts by pod, SU and index.
    hosts: HashMap<[u64; 3], String>,
    /// The pods and SUs of each node and each leaf by links whose ends agree, with the number of
    /// these links.
    homes: HashMap<String, Vec<(Home, usize)>>,
    apart: Vec<Apart>,
    other_rail: Vec<OtherRail>,
    /// Links of hosts that have one on that rail already.
    second: HashSet<usize>,
    /// Nodes that may be hosts, and do not say so.
    strangers: HashSet<String>,
    /// The nodes of links that have a fault and are left out: they lack a rail for no other reason.
    broken: HashSet<String>,
    /// A fault for each host without an SU.
    without_su: Vec<Fault>,
    has_su: bool,
    doubts: Doubts,
    /// Hosts for which an SU has no room.
    no_room: Vec<Fault>,
    faults: Vec<Fault>,
    /// By their kind.
    warnings: BTreeMap<&'static str, Vec<Fault>>,
}

/// The places of the kept links in the files.
#[derive(Default)]
struct Sources {
    /// Each file, with the path of its list of links.
    files: Vec<(String, &'static str)>,
    links: Vec<Source>,
}

/// A link in a file. There may be millions.
struct Source {
    /// The index in [`Sources::files`].
    file: usize,
    line: u32,
    /// The index in the list of links.
    index: usize,
}

impl Sources {
    fn origin(&self, number: usize) -> Origin {
        let found = self
            .links
            .get(number)
            .and_then(|link| Some((link, self.files.get(link.file)?)));
        let Some((Source { line, index, .. }, (file, list))) = found else {
            return Origin::default();
        };
        let place = Place {
            line: *line,
            ..Place::file(file)
        };
        Origin {
            place,
            path: format!("{list}[{index}]"),
            ..Origin::default()
        }
    }
}

/// Plane, pod and SU of a host's own attributes. An absent one is not the same as 0 here.
type Group = [Option<u64>; 3];

/// Hosts that are counted together.
#[derive(Default)]
struct Hosts {
    index_of: HashMap<String, u64>,
    /// The number of the file that has them.
    file: usize,
}

/// A place in the fabric. All numbers count from 0.
struct Spot {
    plane: u64,
    rail: u64,
    pod: u64,
    su: u64,
    host: u64,
}

/// A host link, and which of its ends is the host.
struct Found<'a> {
    host: End<'a>,
    leaf: End<'a>,
    node_name: String,
    spot: Spot,
}

impl<'a> Reader<'a> {
    fn new(scheme: &'a Scheme, mtu: Option<u32>) -> Reader<'a> {
        Reader {
            scheme,
            mtu,
            links: Vec::new(),
            sources: Sources::default(),
            groups: HashMap::new(),
            hosts: HashMap::new(),
            homes: HashMap::new(),
            apart: Vec::new(),
            other_rail: Vec::new(),
            second: HashSet::new(),
            strangers: HashSet::new(),
            broken: HashSet::new(),
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
            Err(fault) => return self.faults.push(fault),
        };
        let root = document.root();
        let is = |path: &str, fits: fn(&Value) -> bool| {
            root.get(path).is_some_and(|part| fits(part.value))
        };
        let is_spcx = is("nodes", Value::is_array) && is("links", Value::is_array);
        let is_air = is("content.nodes", Value::is_object) && is("content.links", Value::is_array);
        let before = self.links.len();
        match (is_spcx, is_air) {
            (true, true) => {
                let problem = "nodes and links are in the root and below content: remove one of the two forms";
                self.faults.push(root.fault("content", problem));
            }
            (false, false) => {
                let problem = "is not a topology: expected lists nodes and links (spcx-gen), or content with a map \
                               nodes and a list links (NVIDIA AIR)";
                self.faults.push(root.fault("", problem));
            }
            (true, false) => self.spcx(text, root, file),
            (false, true) => self.air(text, root),
        }
        if is_spcx != is_air && self.links.len() == before && self.faults.is_empty() {
            self.faults
                .push(root.fault("", "has no link between a host and a leaf"));
        }
    }

    /// Keeps the host links of a file. `find` gets both ends of each link, and finds the host.
    fn each_link(
        &mut self,
        text: &Text,
        list: &'static str,
        mut find: impl for<'b> FnMut(&mut Self, [End<'b>; 2]) -> Result<Option<Found<'b>>, Fault>,
    ) {
        let file = self.sources.files.len();
        self.sources.files.push((text.file.clone(), list));
        let parsed = text.without(LINKS, &mut |index, link| {
            if self.faults.len() == MAX_FAULTS {
                let stopped = Fault::new(
                    format!("{list}[{index}]"),
                    "too many faults: reading stopped here",
                );
                self.faults.push(stopped.at(link.place("")));
            }
            if self.faults.len() > MAX_FAULTS {
                return;
            }
            let found = both_ends(link, list, index).and_then(|ends| match ends {
                Some(ends) => find(self, ends),
                None => Ok(None),
            });
            match found {
                Ok(Some(found)) => self.keep(
                    found,
                    Source {
                        file,
                        line: link.place("").line,
                        index,
                    },
                ),
                Ok(None) => (),
                Err(fault) => {
                    self.broken.extend(
                        link.items()
                            .filter_map(|end| end.text("node").map(str::to_owned)),
                    );
                    self.faults.push(fault);
                }
            }
        });
        self.faults.extend(parsed.err());
    }

    fn keep(
        &mut self,
        Found {
            host,
            leaf,
            node_name,
            spot,
        }: Found<'_>,
        source: Source,
    ) {
        let text = |end: End<'_>, field| {
            end.part
                .text(field)
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        let mut cable = Cable {
            interface: text(host, "interface"),
            leaf: text(leaf, "node"),
            port: text(leaf, "interface"),
            mtu: self.mtu,
            vrf: None,
            netplan: None,
        };
        self.sources.links.push(source);
        // No address depends on these.
        let faults = cable.faults();
        let Cable {
            interface,
            leaf: leaf_name,
            port,
            ..
        } = &mut cable;
        for (fault, name) in faults.into_iter().zip([interface, leaf_name, port]) {
            if let Some(fault) = fault {
                let origin = self.sources.origin(self.links.len());
                self.warn("names", origin.fault(format!("{fault}, and is left out")));
                *name = None;
            }
        }
        let Spot {
            plane,
            rail,
            pod,
            su,
            host,
        } = spot;
        self.links.push(HostLink {
            node_name,
            plane,
            rail,
            pod,
            su,
            host,
            cable,
        });
    }

    fn warn(&mut self, kind: &'static str, warning: Fault) {
        self.warnings.entry(kind).or_default().push(warning);
    }
}

#[cfg(test)]
mod tests;
