//! spcx-gen's form: attributes of both ends say where a host is.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::compare::{Apart, HOME, Home, OtherRail, Side};
use super::end::End;
use super::{Found, Hosts, Reader, Spot};
use crate::document::{Part, Text};
use crate::refusal::Doubt;
use crate::scheme::{Origin, Tiers};
use rail_cni::fault::Fault;
use rail_cni::nearest::nearest;

impl Reader<'_> {
    pub(super) fn spcx(&mut self, text: &Text, root: Part<'_>, file: usize) {
        let before = self.links.len();
        self.each_link(text, "links", |reader, ends| reader.spcx_link(ends, file));
        self.compare_nodes(root, before);
    }

    /// Compares the list of nodes with the links of the same file, which are those from `before`
    /// on.
    fn compare_nodes(&mut self, root: Part<'_>, before: usize) {
        let (mut listed, mut hosts) = (HashMap::new(), Vec::new());
        for (index, node) in root
            .get("nodes")
            .into_iter()
            .flat_map(Part::items)
            .enumerate()
        {
            let origin = || {
                let path = format!("nodes[{index}].name");
                Origin {
                    place: node.place("name"),
                    path,
                    ..Origin::default()
                }
            };
            let Some(name) = node.text("name") else {
                self.faults.push(origin().fault("is missing"));
                return;
            };
            let first = *listed.entry(name).or_insert(index);
            if first != index {
                self.doubts.push(Doubt::SameName, || {
                    origin().fault(format!("{name} duplicates nodes[{first}]")).remedy(
                        "if they are two nodes, give each its own name, also in its links; else take one out",
                    )
                });
            }
            if node.text("role") == Some("host") {
                hosts.push((name, origin()));
            }
        }
        let links = self.links.get(before..).unwrap_or_default();
        let mut linked = HashSet::new();
        for (number, link) in links.iter().enumerate() {
            let name = link.node_name.as_str();
            if linked.insert(name) && !listed.contains_key(name) {
                self.doubts.push(Doubt::UnknownHost, || {
                    // A host that has such a link is not the one that is meant.
                    let on_rail = links.iter().filter(|other| other.rail == link.rail);
                    let on_rail: HashSet<&str> =
                        on_rail.map(|other| other.node_name.as_str()).collect();
                    let candidates = hosts
                        .iter()
                        .map(|(host, _)| *host)
                        .filter(|host| !on_rail.contains(host));
                    let remedy = match nearest(name, candidates) {
                        Some(near) => format!("did you mean {near}?"),
                        None => "correct the name, or add it there".to_owned(),
                    };
                    let origin = self.sources.origin(before + number);
                    origin
                        .fault(format!("{name} is not in nodes"))
                        .remedy(remedy)
                });
            }
        }
        let unlinked: Vec<_> = hosts
            .into_iter()
            .filter(|(name, _)| !linked.contains(name))
            .map(|(name, origin)| origin.fault(format!("host {name} has no link to a leaf")))
            .collect();
        self.warnings
            .entry("unlinked")
            .or_default()
            .extend(unlinked);
    }

    fn spcx_link<'b>(
        &mut self,
        ends: [End<'b>; 2],
        file: usize,
    ) -> Result<Option<Found<'b>>, Fault> {
        let (host, leaf) = match [ends[0].role()?, ends[1].role()?] {
            [Some("host"), Some("host")] => {
                return Err(ends[1].fault("attributes.role", "both ends are hosts"));
            }
            [Some("host"), _] => (ends[0], ends[1]),
            [_, Some("host")] => (ends[1], ends[0]),
            _ => return Ok(None),
        };
        let node = host.node()?;
        if leaf.role()? != Some("leaf") {
            let problem = format!("the other end is host {node}, so this one must be a leaf");
            return Err(leaf.fault("attributes.role", problem));
        }
        let last = self.scheme.last();
        let rail = host.needed(self.scheme, "attributes.rail", last.rail)?;
        let plane = leaf.needed(self.scheme, "attributes.plane", last.plane)?;
        let pod = match self.scheme.tiers {
            Tiers::Three => Some(host.needed(self.scheme, HOME[0], last.pod)?),
            Tiers::Two => host.number(self.scheme, HOME[0], last.pod)?,
        };
        let su = host.number(self.scheme, HOME[1], last.su)?;
        self.home([host, leaf], [pod, su])?;
        self.rail_group(host, leaf, rail)?;

        let group = [
            host.number(self.scheme, "attributes.plane", u64::MAX)?,
            pod,
            su,
        ];
        let Some(index) = self.index_of(host, group, file)? else {
            return Ok(None);
        };
        let spot = Spot {
            plane,
            rail,
            pod: pod.unwrap_or(0),
            su: su.unwrap_or(0),
            host: index,
        };
        Ok(Some(Found {
            host,
            leaf,
            node_name: node.to_owned(),
            spot,
        }))
    }

    /// Notes a leaf that is not for the rail of its host.
    fn rail_group(&mut self, host: End<'_>, leaf: End<'_>, rail: u64) -> Result<(), Fault> {
        let rails = leaf
            .part
            .get("attributes.rail_group")
            .and_then(|part| part.value.as_array());
        if let Some(rails) =
            rails.filter(|rails| !rails.iter().any(|one| one.as_u64() == Some(rail)))
        {
            self.other_rail.push(OtherRail {
                link: self.links.len(),
                origin: host.at("attributes.rail"),
                leaf: leaf.node()?.to_owned(),
                of_leaf: rails.iter().filter_map(Value::as_u64).collect(),
            });
        }
        Ok(())
    }

    /// The index of a host in its SU, by the order of the links; `None` if the SU is full.
    fn index_of(
        &mut self,
        host: End<'_>,
        group: super::Group,
        file: usize,
    ) -> Result<Option<u64>, Fault> {
        let (node, last) = (host.node()?, self.scheme.last().host);
        let group = self.groups.entry(group).or_insert_with(|| Hosts {
            file,
            ..Hosts::default()
        });
        if let Some(index) = group.index_of.get(node) {
            return Ok(Some(*index));
        }
        if group.file != file {
            let problem = "another file has hosts of this pod and SU: put all of them into one file, whose order counts";
            return Err(host.fault("node", problem));
        }
        let next = group.index_of.len() as u64;
        if next > last {
            let problem = format!(
                "node {node} would be host {next} of its pod and SU, which have room for 0 to {last}"
            );
            self.no_room.push(host.fault("node", problem));
            return Ok(None);
        }
        group.index_of.insert(node.to_owned(), next);
        Ok(Some(next))
    }

    /// Notes the place of a host, and whether its leaf agrees.
    fn home(&mut self, [host, leaf]: [End<'_>; 2], own: [Option<u64>; 2]) -> Result<(), Fault> {
        let of_leaf = [
            leaf.number(self.scheme, HOME[0], u64::MAX)?,
            leaf.number(self.scheme, HOME[1], u64::MAX)?,
        ];
        self.has_su |= own[1].is_some() || of_leaf[1].is_some_and(|su| su > 0);
        if own[1].is_none() {
            self.without_su
                .push(host.fault(HOME[1], "is missing: assuming 0"));
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
                    origin: end.at(HOME[field]),
                };
                let (host, leaf) = (
                    side(host, host_name, home),
                    side(leaf, leaf_name, leaf_home),
                );
                self.apart.push(Apart {
                    link: self.links.len(),
                    field,
                    host,
                    leaf,
                });
            }
            None => [host_name, leaf_name]
                .into_iter()
                .for_each(|name| self.agree(name, home)),
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
}
