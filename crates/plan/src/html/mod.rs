//! The plan as a page for a browser: the fabric as a picture, and every link with both of its ends.
//! Rows are made by a small script when they are opened, because a fabric may have a hundred
//! thousand links.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use serde_json::Value;

use crate::groups::{Group, groups};
use crate::nads;
use crate::page::{Script, data, escape, render, table};
use crate::plan::{Cable, File, Link, Plan, Pool};

/// More groups than this have a picture without nodes.
const MAX_LARGE: usize = 12;
/// More groups than this have no picture.
const MAX_DRAWN: usize = 256;
/// The distance of two rails in a picture, and of two lines.
const PITCH: usize = 28;
/// The size of a leaf in a picture.
const SIZE: usize = 20;

/// The content of the page.
struct Fabric<'a> {
    plan: &'a Plan,
    groups: Vec<Group<'a>>,
    networks: Vec<Network<'a>>,
    /// The rail of each column of the picture.
    columns: Vec<Option<u8>>,
    /// The number of each node.
    nodes: BTreeMap<&'a str, usize>,
    /// The links of each node in each network, one of each family.
    links: Vec<Vec<Link<'a>>>,
}

struct Network<'a> {
    name: &'a str,
    rail: Option<u8>,
    plane: Option<u8>,
    /// Planes of a rail are in one column; networks of an unknown rail are in columns of their own.
    column: usize,
}

/// Writes one file.
pub fn write(plan: &Plan) -> Result<Vec<File>> {
    let fabric = Fabric::of(plan)?;
    let mut body = fabric.summary();
    fabric.picture(&mut body);
    list(plan, &mut body);
    pools(plan, &mut body);
    body.push_str(&data("plan", &fabric.data()));
    let text = render(
        "Plan of the fabric",
        include_str!("page.css"),
        &body,
        Script::Inline(include_str!("page.js")),
    );
    Ok(vec![File {
        name: "plan.html".to_owned(),
        text,
    }])
}

impl<'a> Fabric<'a> {
    fn of(plan: &'a Plan) -> Result<Fabric<'a>> {
        let groups = groups(plan);
        let of_groups = groups.iter().flat_map(|group| group.nodes.iter().copied());
        let nodes: BTreeMap<&str, usize> = of_groups.zip(0..).collect();
        let of_networks = nads::of_rails(plan);
        let (mut networks, mut columns) = (Vec::<Network<'_>>::new(), Vec::new());
        let mut links: Vec<Vec<Link<'_>>> = Vec::new();
        links.resize_with(nodes.len() * of_networks.len(), Vec::new);
        for (number, pools) in of_networks.iter().enumerate() {
            let Some(first) = pools.first() else { continue };
            if first.rail.is_none() || columns.last() != Some(&first.rail) {
                columns.push(first.rail);
            }
            let column = columns.len() - 1;
            networks.push(Network {
                name: &first.name,
                rail: first.rail,
                plane: first.plane,
                column,
            });
            for pool in pools {
                for link in pool.links()? {
                    let node = nodes.get(link.node_name).copied().unwrap_or_default();
                    if let Some(links) = links.get_mut(node * of_networks.len() + number) {
                        links.push(link);
                    }
                }
            }
        }
        Ok(Fabric {
            plan,
            groups,
            networks,
            columns,
            nodes,
            links,
        })
    }

    /// The links of a node by network.
    fn links_of(&self, node: &str) -> &[Vec<Link<'a>>] {
        let width = self.networks.len();
        let from = self.nodes.get(node).copied().unwrap_or_default() * width;
        self.links.get(from..from + width).unwrap_or_default()
    }

    fn summary(&self) -> String {
        let (mut pods, mut sus, mut leaves) = (0, 0, 0);
        let mut last = None;
        for group in &self.groups {
            leaves += group.leaves.len();
            if let Some(position) = group.position.filter(|position| last != Some(*position)) {
                sus += 1;
                pods += usize::from(last.is_none_or(|last| last.pod != position.pod));
                last = Some(position);
            }
        }
        let counts = [
            (if pods > 1 { pods } else { 0 }, "pod", "pods"),
            (sus, "SU", "SUs"),
            (self.nodes.len(), "node", "nodes"),
            (
                self.columns.iter().filter(|rail| rail.is_some()).count(),
                "rail",
                "rails",
            ),
            (leaves, "leaf", "leaves"),
            (
                self.links.iter().filter(|links| !links.is_empty()).count(),
                "link",
                "links",
            ),
            (self.plan.pools.len(), "pool", "pools"),
        ];
        let mut text = "<h1>Plan of the fabric</h1>\n<p class=\"counts\">".to_owned();
        for (count, one, several) in counts.into_iter().filter(|(count, ..)| *count > 0) {
            let what = if count == 1 { one } else { several };
            let _ = write!(text, "<span><b>{count}</b>{what}</span>");
        }
        text + "</p>\n"
    }

    /// A card for each leaf group, below the heading of its pod.
    fn picture(&self, text: &mut String) {
        text.push_str(
            "<h2>Leaves and nodes</h2>\n<p class=\"dim\">Each card is a group of nodes with the same leaves. A column is a \
             rail, and a square is a leaf. Select a card to list its links.</p>\n<div class=\"spines\">spines, to which \
             every leaf leads: not part of this plan</div>\n",
        );
        let is_large = self.groups.len() <= MAX_LARGE;
        let class = if is_large { "cards" } else { "cards small" };
        let pod_of = |group: &Group<'_>| group.position.map(|position| position.pod);
        let has_pods = self.groups.iter().filter_map(pod_of).any(|pod| pod > 0);
        let mut last = None;
        for group in self.groups.iter().take(MAX_DRAWN) {
            let pod = pod_of(group);
            if last != Some(pod) {
                text.push_str(if last.is_some() { "</div>\n" } else { "" });
                if let Some(pod) = pod.filter(|_| has_pods) {
                    let _ = writeln!(text, "<h3>pod {pod}</h3>");
                }
                let _ = writeln!(text, "<div class=\"{class}\">");
                last = Some(pod);
            }
            self.card(group, is_large, text);
        }
        text.push_str(if last.is_some() { "</div>\n" } else { "" });
        if self.groups.len() > MAX_DRAWN {
            let more = self.groups.len() - MAX_DRAWN;
            let _ = writeln!(
                text,
                "<p class=\"dim\">{more} more groups are not drawn: search for their nodes.</p>"
            );
        }
    }

    fn card(&self, group: &Group<'_>, is_large: bool, text: &mut String) {
        let (name, count) = (escape(&group.name), group.nodes.len());
        let nodes = if count == 1 { "node" } else { "nodes" };
        let _ = writeln!(
            text,
            "<a class=\"card\" href=\"#links\" data-group=\"{name}\"><b>{name}</b> <span class=\"dim\">{count} {nodes}</span>"
        );
        self.drawing(group, is_large, text);
        if is_large {
            let leaves = match group.leaves.as_slice() {
                [] => "no source names the leaves".to_owned(),
                [one] => format!("leaf {}", escape(one)),
                [first, .., last] => format!("leaves {} to {}", escape(first), escape(last)),
            };
            let _ = write!(text, "<span class=\"dim\">{leaves}</span>");
        }
        text.push_str("</a>\n");
    }

    /// The leaves of a group, a line for each plane, with the wires to the first and the last node
    /// below them.
    fn drawing(&self, group: &Group<'_>, is_large: bool, text: &mut String) {
        let width = self.columns.len();
        // The leaves at each place, line by line; a place that has none known has an empty name.
        let mut leaves: Vec<Vec<&str>> = Vec::new();
        for node in &group.nodes {
            for (network, links) in self.networks.iter().zip(self.links_of(node)) {
                let Some(link) = links.first() else { continue };
                for at in 0..link.cables.len().max(1) {
                    let place = network.plane.map_or(at, usize::from) * width + network.column;
                    if leaves.len() <= place {
                        leaves.resize_with((place / width + 1) * width, Vec::new);
                    }
                    let leaf = link
                        .cables
                        .get(at)
                        .and_then(|cable| cable.leaf.as_deref())
                        .unwrap_or_default();
                    if let Some(there) =
                        leaves.get_mut(place).filter(|there| !there.contains(&leaf))
                    {
                        there.push(leaf);
                    }
                }
            }
        }
        let planes = (leaves.len() / width.max(1)).max(1);
        // The names on the left, with the lines of the first and the last node.
        let mut names: Vec<(&str, String)> = Vec::new();
        let mut ends: Vec<(&str, usize)> = Vec::new();
        if is_large {
            for plane in 0..planes {
                let name = if planes > 1 {
                    format!("plane {plane}")
                } else {
                    "leaves".to_owned()
                };
                names.push(("dim", name));
            }
            let count = group.nodes.len();
            for (number, node) in group.nodes.iter().enumerate() {
                if number == 0 || number == count - 1 {
                    ends.push((node, names.len()));
                    names.push(("", short(node)));
                } else if number == 1 {
                    names.push(("dim", format!("{} more", count - 2)));
                }
            }
        }
        let longest = names.iter().map(|(_, name)| name.chars().count()).max();
        let left = longest.map_or(2, |longest| 14 + 7 * longest.max(8));
        let top = if is_large { 22 } else { 4 };
        let x = |column: usize| left + column * PITCH + PITCH / 2;
        let y = |line: usize| top + line * PITCH + SIZE / 2;
        let (right, bottom) = (
            left + width * PITCH + 2,
            top + names.len().max(planes) * PITCH,
        );
        let _ = write!(
            text,
            "<svg width=\"{right}\" height=\"{bottom}\" viewBox=\"0 0 {right} {bottom}\" role=\"img\">"
        );
        for (line, (class, name)) in names.iter().enumerate() {
            let _ = write!(
                text,
                "<text class=\"{class}\" x=\"2\" y=\"{}\">{}</text>",
                y(line) + 4,
                escape(name)
            );
        }
        for (column, rail) in self.columns.iter().enumerate().filter(|_| is_large) {
            let label = rail.map_or_else(|| "?".to_owned(), |rail| format!("r{rail}"));
            let (colour, x) = (colour(*rail, column), x(column));
            let _ = write!(
                text,
                "<text class=\"label r{colour}\" x=\"{x}\" y=\"14\">{label}</text>"
            );
        }
        for (node, line) in ends.iter().rev() {
            let links = self.networks.iter().zip(self.links_of(node));
            let columns = links
                .filter(|(_, links)| !links.is_empty())
                .map(|(network, _)| network);
            for Network { rail, column, .. } in columns {
                let (colour, x, from, to) = (colour(*rail, *column), x(*column), y(0), y(*line));
                let _ = write!(
                    text,
                    "<path class=\"wire r{colour}\" d=\"M{x} {from}V{to}\"/>\
                     <circle class=\"port r{colour}\" cx=\"{x}\" cy=\"{to}\" r=\"5\"/>"
                );
            }
        }
        for (place, leaves) in leaves
            .iter()
            .enumerate()
            .filter(|(_, leaves)| !leaves.is_empty())
        {
            let (column, line) = (place % width, place / width);
            let (class, title) = match leaves.as_slice() {
                [""] => ("none".to_owned(), String::new()),
                leaves => {
                    let rail = self.columns.get(column).copied().flatten();
                    (
                        format!("leaf r{}", colour(rail, column)),
                        escape(&leaves.join(" ")),
                    )
                }
            };
            let (x, y) = (x(column) - SIZE / 2, y(line) - SIZE / 2);
            let _ = write!(
                text,
                "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{SIZE}\" height=\"{SIZE}\" rx=\"4\"><title>{title}</title></rect>"
            );
            if leaves.len() > 1 {
                let (x, y, count) = (x + SIZE / 2, y + SIZE / 2 + 4, leaves.len());
                let _ = write!(
                    text,
                    "<text class=\"in\" x=\"{x}\" y=\"{y}\">{count}</text>"
                );
            }
        }
        text.push_str("</svg>\n");
    }

    /// The data of the script, as JSON. A fabric may have a hundred thousand links, so that lists
    /// have no keys: `nodes` is [name, group, [[addresses, gateways, [[leaf, port, interface, MTU,
    /// VRF]]]]], by the number of the network.
    fn data(&self) -> String {
        let mut text = "{\"networks\":[".to_owned();
        for (
            number,
            Network {
                name, rail, column, ..
            },
        ) in self.networks.iter().enumerate()
        {
            let (comma, name, colour) = (comma(number), quoted(Some(name)), colour(*rail, *column));
            let rail = rail.map_or_else(|| "null".to_owned(), |rail| rail.to_string());
            let _ = write!(
                text,
                "{comma}{{\"name\":{name},\"rail\":{rail},\"colour\":{colour}}}"
            );
        }
        text.push_str("],\"groups\":[");
        for (number, group) in self.groups.iter().enumerate() {
            let _ = write!(text, "{}{}", comma(number), quoted(Some(&group.name)));
        }
        text.push_str("],\"leaves\":[");
        let mut leaves: BTreeMap<&str, usize> = BTreeMap::new();
        for leaf in self.groups.iter().flat_map(|group| &group.leaves) {
            let _ = write!(text, "{}{}", comma(leaves.len()), quoted(Some(leaf)));
            leaves.insert(leaf, leaves.len());
        }
        text.push_str("],\"nodes\":[");
        for (number, group) in self.groups.iter().enumerate() {
            for (at, node) in group.nodes.iter().enumerate() {
                let _ = write!(
                    text,
                    "{}[{},{number},[",
                    comma(number + at),
                    quoted(Some(node))
                );
                for (network, links) in self.links_of(node).iter().enumerate() {
                    text.push_str(comma(network));
                    link_data(links, &leaves, &mut text);
                }
                text.push_str("]]");
            }
        }
        let (mtu, vrf) = (
            has_mtu(self.plan),
            self.plan.pools.iter().any(Pool::has_vrf),
        );
        let _ = write!(text, "],\"mtu\":{mtu},\"vrf\":{vrf}}}");
        text
    }
}

/// The links of a node in a network: those of both families have the same cables.
fn link_data(links: &[Link<'_>], leaves: &BTreeMap<&str, usize>, text: &mut String) {
    let Some(Link { cables, .. }) = links.first() else {
        text.push_str("null");
        return;
    };
    text.push_str("[\"");
    for (number, link) in links.iter().enumerate() {
        let space = if number > 0 { " " } else { "" };
        let _ = write!(
            text,
            "{space}{}/{}",
            link.host,
            link.allocation.prefix.prefix_len()
        );
    }
    text.push_str("\",\"");
    for (number, gateway) in links
        .iter()
        .filter_map(|link| link.allocation.gateway)
        .enumerate()
    {
        let space = if number > 0 { " " } else { "" };
        let _ = write!(text, "{space}{gateway}");
    }
    text.push_str("\",[");
    for (
        number,
        Cable {
            interface,
            mtu,
            leaf,
            port,
            vrf,
            ..
        },
    ) in cables.iter().enumerate()
    {
        let or_null = |number: Option<usize>| {
            number.map_or_else(|| "null".to_owned(), |number| number.to_string())
        };
        let leaf = or_null(leaf.as_deref().and_then(|leaf| leaves.get(leaf).copied()));
        let mtu = or_null(mtu.map(|mtu| mtu as usize));
        let [port, interface, vrf] = [port, interface, vrf].map(|name| quoted(name.as_deref()));
        let _ = write!(
            text,
            "{}[{leaf},{port},{interface},{mtu},{vrf}]",
            comma(number)
        );
    }
    text.push_str("]]");
}

fn comma(number: usize) -> &'static str {
    if number > 0 { "," } else { "" }
}

/// A text as JSON.
fn quoted(text: Option<&str>) -> String {
    Value::from(text).to_string()
}

/// The colour of a rail, one of eight.
fn colour(rail: Option<u8>, number: usize) -> usize {
    rail.map_or(number, usize::from) % 8
}

/// The name of a node in the room that a picture has.
fn short(name: &str) -> String {
    match name.char_indices().nth(24) {
        Some(_) => name.chars().take(23).chain(['…']).collect(),
        None => name.to_owned(),
    }
}

/// The search, and the table that the script fills.
fn list(plan: &Plan, text: &mut String) {
    let mut headers = vec![
        "Node",
        "Group",
        "Network",
        "Host port",
        "Host address",
        "Leaf",
        "Leaf port",
        "Leaf address",
    ];
    if has_mtu(plan) {
        headers.push("MTU");
    }
    if plan.pools.iter().any(Pool::has_vrf) {
        headers.push("VRF");
    }
    let head: String = headers
        .iter()
        .map(|header| format!("<th>{header}</th>"))
        .collect();
    let _ = write!(
        text,
        "<h2 id=\"links\">Links</h2>\n<div class=\"find\"><input id=\"find\" type=\"search\" aria-label=\"Search\" \
         placeholder=\"Search: node, address, leaf, port, rail3 &#8230;\" autocomplete=\"off\" spellcheck=\"false\">\
         <span id=\"told\" class=\"dim\" aria-live=\"polite\"></span></div>\n<noscript><p>The links are listed by a script, which \
         this viewer does not run: open the file in a browser, or use the target csv.</p></noscript>\n\
         <div class=\"wide\"><table>\n<thead><tr>{head}</tr></thead>\n<tbody id=\"rows\"></tbody>\n</table></div>\n\
         <p class=\"find\"><button id=\"more\" type=\"button\" hidden></button><button id=\"all\" type=\"button\" hidden></button></p>\n"
    );
}

fn has_mtu(plan: &Plan) -> bool {
    plan.pools
        .iter()
        .flat_map(|pool| pool.cables.iter().flatten())
        .any(|cable| cable.mtu.is_some())
}

fn pools(plan: &Plan, text: &mut String) {
    let shown = |number: Option<u8>| number.map(|number| number.to_string()).unwrap_or_default();
    let rows = plan.pools.iter().map(|pool| {
        let routes: Vec<_> = pool.spec.routes.iter().map(|to| to.dst.as_str()).collect();
        let (rail, plane) = (shown(pool.rail), shown(pool.plane));
        let count = pool.spec.static_allocations.len().to_string();
        vec![
            pool.name.clone(),
            rail,
            plane,
            pool.spec.cidr.clone(),
            routes.join(" "),
            count,
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let headers = [
        "Pool",
        "Rail",
        "Plane",
        "Prefix",
        "Routes of the host",
        "Links",
    ];
    text.push_str("<h2>Pools</h2>\n");
    text.push_str(&table(&headers, rows, |_, _| ""));
}

#[cfg(test)]
mod tests;
