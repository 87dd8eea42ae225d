//! NVIDIA AIR's export: the names of hosts and leaves say where they are.

use std::collections::HashMap;

use super::end::{Base, End, from_one};
use super::{Found, Reader, Spot};
use crate::document::{Part, Text};
use crate::scheme::{Last, Mode, Tiers};
use rail_cni::fault::Fault;

impl Reader<'_> {
    pub(super) fn air(&mut self, text: &Text, root: Part<'_>) {
        let nodes: HashMap<&str, Part<'_>> = root
            .get("content.nodes")
            .into_iter()
            .flat_map(Part::entries)
            .collect();
        let base = base(nodes.keys().copied());
        self.each_link(text, "content.links", |reader, ends| {
            reader.air_link(ends.map(|end| end.counting_from(base)), &nodes)
        });
        if self.faults.is_empty() && !nodes.values().any(is_host) {
            let may_be = nodes.keys().copied().filter(|name| !is_switch(name)).min();
            let first = may_be.map_or(String::new(), |name| format!(": {name} may be one"));
            let problem = format!(
                "has no link between a host and a leaf: no node says that it is a host (\"model\": \"host\", \"emulation_type\": \"host\", or NICs in network_pci){first}"
            );
            self.faults.push(root.fault("content.nodes", problem));
        }
    }

    fn air_link<'b>(
        &mut self,
        ends: [End<'b>; 2],
        nodes: &HashMap<&str, Part<'_>>,
    ) -> Result<Option<Found<'b>>, Fault> {
        let Some((host, leaf, own)) = host_first(ends, nodes)? else {
            self.strangers(ends, nodes)?;
            return Ok(None);
        };
        let host_name = host.node()?;
        let spot = self.spot(host, leaf)?;
        check_interface(host, leaf.node()?, own, &spot)?;
        let Spot {
            pod,
            su,
            host: index,
            ..
        } = spot;
        let other = self
            .hosts
            .entry([pod, su, index])
            .or_insert_with(|| host_name.to_owned());
        if other != host_name {
            return Err(host.fault("node", format!("{host_name} names the position of {other}")));
        }
        Ok(Some(Found {
            host,
            leaf,
            node_name: host_name.to_owned(),
            spot,
        }))
    }

    /// Warns of a node that has a link to a leaf, and is neither a host nor named like a switch.
    fn strangers(
        &mut self,
        ends: [End<'_>; 2],
        nodes: &HashMap<&str, Part<'_>>,
    ) -> Result<(), Fault> {
        let is_leaf = |name: &str| name.to_ascii_lowercase().starts_with("leaf-");
        let [one, other] = [ends[0].node()?, ends[1].node()?];
        for (at, (name, peer)) in [(one, other), (other, one)].into_iter().enumerate() {
            let os = nodes
                .get(name)
                .and_then(|node| node.text("os"))
                .unwrap_or_default();
            let is_switch = is_switch(name) || os.starts_with("cumulus") || os.starts_with("sonic");
            if is_leaf(peer) && !is_switch && self.strangers.insert(name.to_owned()) {
                let problem = format!(
                    "{name} is linked to {peer} and gets no address: nothing says that it is a host (\"model\": \"host\", \
                     \"emulation_type\": \"host\", or NICs in network_pci)"
                );
                self.warn("strangers", ends[at].fault("node", problem));
            }
        }
        Ok(())
    }

    /// The place of a host link, by the names of its ends. Where both names say the same thing,
    /// they must agree.
    fn spot(&self, host: End<'_>, leaf: End<'_>) -> Result<Spot, Fault> {
        let (host_name, leaf_name) = (host.node()?, leaf.node()?);
        if !leaf_name.to_ascii_lowercase().starts_with("leaf-") {
            let problem =
                format!("{leaf_name} is linked to a host, and its name does not begin with leaf-");
            let remedy = "remove links that are not rails from the file";
            return Err(leaf.fault("node", problem).remedy(remedy));
        }
        let last: Last = self.scheme.last();
        let needs = |end: End<'_>, prefix: &str, limit: u64| {
            let found = end.token(prefix, limit)?;
            // Names that count from 0 are those of NVIDIA's reference designs, which have a plane
            // only where there are several. With hwplb the addresses have room for planes, and all
            // are of plane 0.
            let one_plane =
                (prefix == "p" && end.base == Base::Zero && self.scheme.mode != Mode::Swplb)
                    .then_some(0);
            found.or(one_plane).ok_or_else(|| {
                end.fault(
                    "node",
                    format!("the name has no token {prefix}<N> between hyphens"),
                )
            })
        };
        let (su, index) = (needs(host, "su", last.su)?, needs(host, "h", last.host)?);
        let (plane, rail) = (needs(leaf, "p", last.plane)?, needs(leaf, "r", last.rail)?);
        let of_leaf = needs(leaf, "su", last.su)?;
        if su != of_leaf {
            return Err(differs(host, "node", "SU", [su, of_leaf], leaf_name));
        }
        let pod = match (host.token("pod", last.pod)?, leaf.token("pod", last.pod)?) {
            (Some(pod), Some(of_leaf)) if pod == of_leaf => pod,
            (Some(pod), Some(of_leaf)) => {
                return Err(differs(host, "node", "pod", [pod, of_leaf], leaf_name));
            }
            (None, None) if self.scheme.tiers == Tiers::Two => 0,
            (None, _) => return Err(host.fault("node", "the name has no token pod<N>")),
            (_, None) => {
                let problem = format!("the name has no token pod<N>, which host {host_name} has");
                return Err(leaf.fault("node", problem));
            }
        };
        Ok(Spot {
            plane,
            rail,
            pod,
            su,
            host: index,
        })
    }
}

/// The host and the leaf of a link, and the host's own entry; `None` for a link between switches,
/// and of the network out of band, whose nodes have reserved names.
fn host_first<'b, 'n>(
    ends: [End<'b>; 2],
    nodes: &HashMap<&str, Part<'n>>,
) -> Result<Option<(End<'b>, End<'b>, Part<'n>)>, Fault> {
    let mut of = [None, None];
    for (end, of) in ends.iter().zip(&mut of) {
        let name = end.node()?;
        let Some(node) = nodes.get(name) else {
            return Err(end.fault("node", format!("{name} is not in content.nodes")));
        };
        if name.starts_with("oob-mgmt-") {
            return Ok(None);
        }
        *of = Some(*node).filter(is_host);
    }
    match of {
        [Some(_), Some(_)] => Err(ends[1].fault("node", "both ends are hosts")),
        [Some(own), None] => Ok(Some((ends[0], ends[1], own))),
        [None, Some(own)] => Ok(Some((ends[1], ends[0], own))),
        [None, None] => Ok(None),
    }
}

/// The first number of the names: 0 if SUs, hosts and rails all begin there. One such name alone is
/// a mistake.
fn base<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Base {
    let is_zero = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte == b'0');
    let has_zero = |prefix: &str| {
        let mut tokens = names.clone().flat_map(|name| name.split('-'));
        tokens.any(|token| token.strip_prefix(prefix).is_some_and(is_zero))
    };
    if ["su", "h", "r"].into_iter().all(has_zero) {
        Base::Zero
    } else {
        Base::One
    }
}

fn is_switch(name: &str) -> bool {
    ["leaf", "spine", "super", "core", "oob", "switch"]
        .iter()
        .any(|word| name.to_ascii_lowercase().starts_with(word))
}

/// Whether a node is a host by its attributes, or has a NIC with rails.
fn is_host(node: &Part<'_>) -> bool {
    let says = |key| {
        node.text(key)
            .is_some_and(|text| text.eq_ignore_ascii_case("host"))
    };
    let nics = node
        .get("network_pci")
        .and_then(|part| part.value.as_object());
    says("model") || says("emulation_type") || nics.is_some_and(|nics| !nics.is_empty())
}

/// Fails if the host's interface or NIC is of another rail or plane than the leaf.
fn check_interface(
    host: End<'_>,
    leaf_name: &str,
    own: Part<'_>,
    spot: &Spot,
) -> Result<(), Fault> {
    let interface = host.part.text("interface").unwrap_or_default();
    let numbers = interface
        .strip_prefix("rail")
        .and_then(|rest| rest.split_once('p'));
    let numbers = numbers.and_then(|(rail, plane)| Some((from_one(rail)?, from_one(plane)?)));
    if numbers.is_none() && host.base == Base::Zero {
        return Ok(());
    }
    let Some((rail, plane)) = numbers else {
        let problem = format!("{interface:?} is not rail<R>p<P>, counted from 1");
        return Err(host.fault("interface", problem));
    };
    if rail != spot.rail {
        return Err(differs(
            host,
            "interface",
            "rail",
            [rail, spot.rail],
            leaf_name,
        ));
    }
    if plane != spot.plane {
        return Err(differs(
            host,
            "interface",
            "plane",
            [plane, spot.plane],
            leaf_name,
        ));
    }
    let pci = host.part.text("network_pci").unwrap_or_default();
    if pci.strip_prefix("rail").and_then(from_one) != Some(rail) {
        return Err(host.fault(
            "network_pci",
            format!("{pci:?} is not rail{}, as the interface", rail + 1),
        ));
    }
    let nics = own
        .get("network_pci")
        .and_then(|part| part.value.as_object());
    if !nics.is_some_and(|nics| nics.contains_key(pci)) {
        let problem = format!("node {} has no {pci} in its network_pci", host.node()?);
        return Err(host.fault("network_pci", problem));
    }
    Ok(())
}

/// The fault of a field of the host that contradicts the name of the leaf. The numbers count from
/// 0, and in the message as in the names.
fn differs(
    host: End<'_>,
    field: &str,
    what: &str,
    [own, of_leaf]: [u64; 2],
    leaf_name: &str,
) -> Fault {
    let first = u64::from(host.base == Base::One);
    let (own, of_leaf) = (own.saturating_add(first), of_leaf.saturating_add(first));
    host.fault(
        field,
        format!("{what} {own}, but {what} {of_leaf} by the name of leaf {leaf_name}"),
    )
}
