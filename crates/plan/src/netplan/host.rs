//! The rails of a host: ethernets with a static address and routes by a gateway in its prefix.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;

use ipnet::IpNet;
use serde_json::{Map, Value};

use super::files::Host;
use crate::document::Part;
use rail_cni::cni::is_netdev_name;
use rail_cni::fault::{Fault, Place, with_others};
use rail_cni::pool::allocation::{Allocation, IpVersion, NUMBERED, To, UNNUMBERED};

/// The network of a netplan file, of cloud-init's network-config, which may begin with what is in
/// it, or of an installer's file (`autoinstall`), which holds such a file.
pub fn network(root: Part<'_>) -> Option<Part<'_>> {
    let object = |part: &Part<'_>| part.value.is_object();
    let root = root.get("autoinstall").filter(object).unwrap_or(root);
    match root.get("network").filter(object) {
        Some(network) => Some(network.get("network").filter(object).unwrap_or(network)),
        None => Some(root).filter(|root| root.get("ethernets").is_some_and(|part| object(&part))),
    }
}

/// The host's end of a rail's link.
#[derive(Clone, Debug)]
pub struct Rail {
    /// The name of the host.
    pub node_name: String,
    /// The key of the interface below `ethernets`.
    pub id: String,
    /// The name of the netdev, if the file has it.
    pub interface: Option<String>,
    /// The MTU of the netdev, in bytes.
    pub mtu: Option<u32>,
    /// The address of the host.
    pub address: IpAddr,
    /// The prefix of the link, without host bits.
    pub prefix: IpNet,
    /// The address of the leaf's port.
    pub gateway: IpAddr,
    /// The destinations of the routes by the gateway, in the order of the file, without default
    /// routes.
    pub routes: Vec<IpNet>,
    /// The positions of the address and of the first route.
    pub places: [Place; 2],
    /// The whole interface, merged from all files.
    pub keys: Rc<Map<String, Value>>,
}

/// Faults and warnings of the files of all hosts.
#[derive(Debug, Default)]
pub struct Notes {
    /// Reasons to make no plan.
    pub faults: Vec<Fault>,
    /// By their text, with their number and the position of the first.
    warnings: BTreeMap<String, (usize, Place)>,
    /// Interfaces that have addresses and are not rails: the key, and the fault if it is a rail on
    /// other hosts.
    pub astray: Vec<(String, Fault)>,
    /// Interfaces with an address of a link of two, and hosts without rails, which the plan would
    /// leave out.
    pub lost_rails: Vec<Fault>,
}

impl Notes {
    /// Adds a warning. Hundreds of hosts may have the same.
    pub fn warn(&mut self, warning: Fault) {
        self.warnings
            .entry(warning.message())
            .or_insert((0, warning.place))
            .0 += 1;
    }

    /// Takes the warnings, each once.
    pub fn warnings(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for (problem, (count, place)) in std::mem::take(&mut self.warnings) {
            lines.push(with_others(&Fault::whole(problem).at(place), count));
        }
        lines
    }
}

/// The rails of a host. Notes get its other interfaces, and faults.
pub fn rails(host: &Host, notes: &mut Notes) -> Vec<Rail> {
    interfaces(host, notes)
        .iter()
        .flat_map(|interface| interface.rails(&host.name, notes))
        .collect()
}

/// The netdev and the address of each rail in the files of this host's own directory. Empty if the
/// files cannot be read.
pub fn of_this_host(directory: &Path) -> Vec<(String, IpAddr)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.path().to_str() {
            Some(file) if file.ends_with(".yaml") => files.push(file.to_owned()),
            _ => (),
        }
    }
    files.sort();
    let mut notes = Notes::default();
    let host = Host::read(String::new(), &files, &mut notes.faults);
    let mut addresses = Vec::new();
    for rail in rails(&host, &mut notes) {
        addresses.push((rail.interface.unwrap_or(rail.id), rail.address));
    }
    addresses
}

/// An ethernet.
struct Ethernet<'a> {
    /// Its key.
    id: &'a str,
    /// Its value in each of the host's files that have it.
    parts: Vec<Part<'a>>,
    /// The VRFs that it is in.
    vrfs: Vec<Part<'a>>,
    /// The renderer of all interfaces, if the files name one.
    renderer: Option<&'a Value>,
}

/// The ethernets of a host.
fn interfaces<'a>(host: &'a Host, notes: &mut Notes) -> Vec<Ethernet<'a>> {
    let mut ethernets: BTreeMap<&str, Ethernet<'_>> = BTreeMap::new();
    let mut renderer = None;
    let mut vrfs = Vec::new();
    for document in &host.documents {
        let root = document.root();
        let Some(network) = network(root) else {
            notes
                .faults
                .push(root.fault("network", "is missing: this is not a netplan file"));
            continue;
        };
        for (key, part) in network.entries() {
            let path = format!("network.{key}");
            let fault = |path: &str, problem: &str| Fault::new(path, problem).at(part.place(""));
            match (key, part.value) {
                ("version", version) if *version == 2 => (),
                ("version", _) => {
                    let remedy = "cloud-init makes a file of version 2 of it: /etc/netplan/50-cloud-init.yaml";
                    notes
                        .faults
                        .push(fault(&path, &format!("{} is not 2", part.value)).remedy(remedy));
                }
                ("renderer", value) => renderer = Some(value),
                (_, Value::Null) => (),
                ("ethernets", Value::Object(_)) => {
                    for (id, part) in part.entries() {
                        if part.value.is_object() {
                            let ethernet = ethernets.entry(id).or_insert(Ethernet {
                                id,
                                parts: Vec::new(),
                                vrfs: Vec::new(),
                                renderer: None,
                            });
                            ethernet.parts.push(part);
                        } else if !part.value.is_null() {
                            let fault = Fault::new(format!("{path}.{id}"), "is not an object");
                            notes.faults.push(fault.at(part.place("")));
                        }
                    }
                }
                ("ethernets", _) => notes.faults.push(fault(&path, "is not an object")),
                ("vrfs", _) => vrfs.extend(part.entries()),
                _ => {
                    for (id, part) in part.entries() {
                        let warning =
                            Fault::new(format!("{path}.{id}"), "is left out: rails are ethernets");
                        notes.warn(warning.at(part.place("")));
                    }
                }
            }
        }
    }
    for (id, vrf) in vrfs {
        let problem = "is left out; its routes are those of its interfaces";
        notes.warn(Fault::new(format!("network.vrfs.{id}"), problem).at(vrf.place("")));
        let members = vrf.get("interfaces").into_iter().flat_map(Part::items);
        for member in members.filter_map(|member| member.value.as_str()) {
            if let Some(ethernet) = ethernets.get_mut(member) {
                ethernet.vrfs.push(vrf);
            }
        }
    }
    for ethernet in ethernets.values_mut() {
        ethernet.renderer = renderer;
    }
    ethernets.into_values().collect()
}

/// An item of `addresses`.
struct Address<'a> {
    net: IpNet,
    part: Part<'a>,
}

impl Address<'_> {
    /// Whether its link has two addresses, of the host and of the leaf.
    fn is_of_two(&self) -> bool {
        (1..=2).contains(&(self.net.max_prefix_len() - self.net.prefix_len()))
    }

    /// Whether its prefix has no other address: the host's end of an unnumbered link.
    fn is_alone(&self) -> bool {
        self.net.prefix_len() == self.net.max_prefix_len()
    }

    /// Whether the gateway of the route is in its prefix, or on its unnumbered link.
    fn is_reached_by(&self, route: &Route<'_>) -> bool {
        if self.is_alone() {
            route.is_on_link
        } else {
            self.net.contains(&route.via)
        }
    }
}

/// An item of `routes` that leads by a gateway.
struct Route<'a> {
    /// The destination; `None` for a default route.
    to: Option<IpNet>,
    via: IpAddr,
    /// The gateway is on the link, whatever the prefixes of the interface say.
    is_on_link: bool,
    part: Part<'a>,
}

/// Number of the main routing table.
const MAIN_TABLE: u32 = 254;

impl Route<'_> {
    /// Whether it is the host's own default route, and not one for packets of a rail.
    fn is_main_default(&self) -> bool {
        let table = self.part.get("table").and_then(|part| number(part.value));
        self.to.is_none() && table.is_none_or(|table| table == MAIN_TABLE)
    }
}

impl<'a> Ethernet<'a> {
    /// The links of this interface, at most one in each family.
    fn rails(&self, node_name: &str, notes: &mut Notes) -> Vec<Rail> {
        let before = notes.faults.len();
        let addresses = self.addresses(notes);
        let routes = self.routes(&addresses, notes);
        if notes.faults.len() > before {
            return Vec::new();
        }
        let mut rails: Vec<Rail> = Vec::new();
        for version in [IpVersion::V4, IpVersion::V6] {
            let addresses: Vec<_> = addresses
                .iter()
                .filter(|address| IpVersion::of(address.net.addr()) == version)
                .collect();
            let routes: Vec<_> = routes
                .iter()
                .filter(|route| IpVersion::of(route.via) == version)
                .collect();
            match self.link(node_name, &addresses, &routes, notes) {
                Ok(rail) => rails.extend(rail),
                Err(fault) => notes.faults.push(fault),
            }
        }
        if notes.faults.len() > before {
            return Vec::new();
        }
        if rails.is_empty() {
            self.warn_of_no_rail(node_name, &addresses, &routes, notes);
        } else {
            self.warn_of_extras(addresses.len() > rails.len(), &routes, notes);
        }
        rails
    }

    /// Notes why the interface is not a rail. On a link of two addresses that is not the host's
    /// way out, it is hardly ever meant.
    fn warn_of_no_rail(
        &self,
        node_name: &str,
        addresses: &[Address<'_>],
        routes: &[Route<'_>],
        notes: &mut Notes,
    ) {
        let why = match (addresses, routes) {
            ([], _) if self.is_on("dhcp4") || self.is_on("dhcp6") => {
                "it gets its addresses by DHCP"
            }
            ([], _) => "it has no static address",
            (_, []) => "it has no routes",
            (_, routes) if routes.iter().all(|route| self.is_way_out(route)) => {
                "its only route is a default route"
            }
            (_, routes) if routes.iter().all(|route| route.to.is_none()) => {
                "the default route of its own table does not name the network of all rails"
            }
            _ => "none of its routes has a gateway in its prefix",
        };
        // A file that was cut is still YAML. With a default route it is another kind of host.
        if !addresses.is_empty() && routes.is_empty() {
            let problem = format!("{why}, and is a rail on other hosts");
            notes
                .astray
                .push((self.id.to_owned(), self.fault_at(self.place(), "", problem)));
        }
        let is_link = addresses.iter().any(Address::is_of_two);
        let has_way_out = routes.iter().any(|route| self.is_way_out(route));
        if is_link && !has_way_out {
            let problem = format!("{node_name} would lose this rail: {why}");
            let remedy = "add a route to the network of all rails, by the leaf's address";
            let fault = self.fault_at(self.place(), "", problem);
            notes.lost_rails.push(fault.remedy(remedy));
            return;
        }
        notes.warn(self.fault_at(self.place(), "", format!("is left out: {why}")));
    }

    /// Whether it is the host's own default route. One in a VRF or in a table of the rail is for
    /// packets of the rail alone.
    fn is_way_out(&self, route: &Route<'_>) -> bool {
        self.vrfs.is_empty() && route.is_main_default()
    }

    /// Notes what a rail has beside its link and will not have in the plan.
    fn warn_of_extras(&self, has_more_addresses: bool, routes: &[Route<'_>], notes: &mut Notes) {
        if has_more_addresses {
            let problem = "the rail has addresses without routes, which are left out";
            notes.warn(self.fault_at(self.place(), ".addresses", problem));
        }
        for key in ["dhcp4", "dhcp6"] {
            if !self.is_on(key) {
                continue;
            }
            let place = self
                .all(key)
                .last()
                .map_or(self.place(), |part| part.place(""));
            let problem = "DHCP on a rail may bring a default route";
            notes.warn(self.fault_at(place, &format!(".{key}"), problem));
        }
        let gateways = ["gateway4", "gateway6"]
            .into_iter()
            .flat_map(|key| self.all(key));
        let defaults = routes
            .iter()
            .filter(|route| self.is_way_out(route))
            .map(|route| route.part);
        for part in gateways.chain(defaults) {
            let problem = "the rail has a default route, which is left out of the plan";
            notes.warn(self.fault(&part, "", problem));
        }
    }

    /// The link of one family.
    fn link(
        &self,
        node_name: &str,
        addresses: &[&Address<'a>],
        routes: &[&Route<'a>],
        notes: &mut Notes,
    ) -> Result<Option<Rail>, Fault> {
        let mut link: Option<(&Address<'_>, &Route<'_>, Vec<IpNet>)> = None;
        for route in routes {
            let Some(to) = route.to else { continue };
            let mut reached = addresses
                .iter()
                .filter(|address| address.is_reached_by(route));
            // A prefix that has the gateway precedes an unnumbered link.
            let Some(address) = reached
                .clone()
                .find(|address| !address.is_alone())
                .or_else(|| reached.next())
            else {
                self.astray(route, addresses, notes)?;
                continue;
            };
            if to != to.trunc() {
                let problem = format!("{to} has host bits set: using {}", to.trunc());
                notes.warn(self.fault_at(route.part.place("to"), ".routes", problem));
            }
            let (first_address, first, destinations) =
                link.get_or_insert_with(|| (address, route, Vec::new()));
            if first_address.net != address.net {
                let problem = format!(
                    "{} and {} both have routes, and a rail has one",
                    first_address.net, address.net
                );
                return Err(self.fault(&address.part, ".addresses", problem));
            }
            if first.via != route.via {
                let problem = format!(
                    "the gateways {} and {} differ: a rail has one",
                    first.via, route.via
                );
                return Err(self.fault(&route.part, ".routes", problem));
            }
            if !destinations.contains(&to.trunc()) {
                destinations.push(to.trunc());
            }
        }
        let Some((host_address, first, destinations)) = link else {
            return Ok(None);
        };
        let part = &host_address.part;
        let address = host_address.net.addr();
        let prefix = host_address.net.trunc();
        let gateway = first.via;
        if address == gateway {
            let problem = format!("the gateway {gateway} is the host's own address");
            return Err(self.fault(&first.part, ".routes", problem));
        }
        let version = if host_address.is_alone() {
            UNNUMBERED
        } else {
            NUMBERED
        };
        let allocation = Allocation {
            version,
            prefix,
            gateway: Some(gateway),
            rail: None,
            routes: destinations.iter().map(|dst| To { dst: *dst }).collect(),
            exclusions: Vec::new(),
            leaf_ports: Vec::new(),
        };
        allocation
            .check()
            .map_err(|Fault { problem, .. }| self.fault(part, ".routes", problem))?;
        allocation
            .check_host(address)
            .map_err(|why| self.fault(part, ".addresses", format!("{address} {why}")))?;
        let interface = self.netdev();
        if let Some(name) = interface.as_ref().filter(|name| !is_netdev_name(name)) {
            let problem = format!("{name:?} is not a valid name of a netdev");
            return Err(self.fault(self.parts.first().unwrap_or(part), "", problem));
        }
        let keys = self.merged();
        Ok(Some(Rail {
            node_name: node_name.to_owned(),
            id: self.id.into(),
            interface,
            mtu: keys.get("mtu").and_then(number),
            address,
            prefix,
            gateway,
            routes: destinations,
            places: [part.place(""), first.part.place("")],
            keys: Rc::new(keys),
        }))
    }

    /// Handles a route by a gateway outside of all prefixes. On a link of two addresses it is a
    /// mistake; elsewhere it may be one.
    fn astray(
        &self,
        route: &Route<'_>,
        addresses: &[&Address<'_>],
        notes: &mut Notes,
    ) -> Result<(), Fault> {
        let Some(address) = addresses.first() else {
            return Ok(());
        };
        let problem = format!(
            "the gateway {} is outside of the prefix {}",
            route.via,
            address.net.trunc()
        );
        let fault = self.fault(&route.part, ".routes", problem);
        if addresses.iter().any(|address| address.is_of_two()) {
            return Err(fault);
        }
        notes.astray.push((self.id.to_owned(), fault));
        Ok(())
    }

    fn addresses(&self, notes: &mut Notes) -> Vec<Address<'a>> {
        let mut addresses: Vec<Address<'_>> = Vec::new();
        for part in self.list("addresses", notes) {
            // With options: `- 172.16.0.0/31: {label: "rail0"}`.
            let text = match part.value {
                Value::String(text) => Some(text.as_str()),
                Value::Object(object) if object.len() == 1 => {
                    object.keys().next().map(String::as_str)
                }
                _ => None,
            };
            let Some(text) = text else {
                let problem = format!("{} is not an address", part.value);
                notes.faults.push(self.fault(&part, ".addresses", problem));
                continue;
            };
            match text.parse::<IpNet>() {
                // netplan takes an address that is given twice as one.
                Ok(net) if addresses.iter().any(|address| address.net == net) => (),
                Ok(net) => addresses.push(Address { net, part }),
                Err(_) => {
                    let problem = match text.parse::<IpAddr>() {
                        Ok(_) => format!("{text} has no prefix length"),
                        Err(_) => format!("{text:?} is not an address"),
                    };
                    notes.faults.push(self.fault(&part, ".addresses", problem));
                }
            }
        }
        addresses
    }

    fn routes(&self, addresses: &[Address<'_>], notes: &mut Notes) -> Vec<Route<'a>> {
        let mut routes = Vec::new();
        for part in self.list("routes", notes) {
            match route(part) {
                Ok(route) => routes.extend(route),
                Err(problem) => notes.faults.push(self.fault(&part, ".routes", problem)),
            }
        }
        // A VRF has those of all its interfaces.
        for vrf in &self.vrfs {
            let Some(list) = vrf.get("routes") else {
                continue;
            };
            for part in list.items() {
                let Ok(Some(route)) = route(part) else {
                    continue;
                };
                let mut own = addresses.iter().map(|address| address.net);
                if own.any(|net| net.contains(&route.via)) {
                    routes.push(route);
                }
            }
        }
        routes
    }

    /// The items of a key in all files, whose lists netplan joins.
    fn list(&self, key: &str, notes: &mut Notes) -> Vec<Part<'a>> {
        let mut items = Vec::new();
        for part in self.all(key) {
            match part.value {
                Value::Array(_) => items.extend(part.items()),
                Value::Null => (),
                _ => notes
                    .faults
                    .push(self.fault(&part, &format!(".{key}"), "is not a list")),
            }
        }
        items
    }

    /// The value of a key in each file that has it.
    fn all(&self, key: &str) -> Vec<Part<'a>> {
        let mut values = Vec::new();
        for part in &self.parts {
            values.extend(
                part.entries()
                    .find(|(name, _)| *name == key)
                    .map(|(_, value)| value),
            );
        }
        values
    }

    fn is_on(&self, key: &str) -> bool {
        self.all(key).last().is_some_and(|part| is_true(part.value))
    }

    /// The netdev: `set-name`, or the name that is matched, or without `match` the key itself.
    fn netdev(&self) -> Option<String> {
        let text = |part: &Part<'a>| part.value.as_str().map(str::to_owned);
        if let Some(name) = self.all("set-name").last().and_then(text) {
            return Some(name);
        }
        match self.all("match").last() {
            None => Some(self.id.to_owned()),
            Some(part) => {
                let name = part.get("name").as_ref().and_then(text);
                name.filter(|name| !name.contains(['*', '?', '[']))
            }
        }
    }

    /// The values of all files as one.
    fn merged(&self) -> Map<String, Value> {
        let mut merged = Value::Object(Map::new());
        for part in &self.parts {
            merge(&mut merged, part.value);
        }
        let Value::Object(mut keys) = merged else {
            return Map::new();
        };
        if let Some(renderer) = self.renderer {
            keys.entry("renderer").or_insert_with(|| renderer.clone());
        }
        keys
    }

    fn place(&self) -> Place {
        self.parts
            .first()
            .map(|part| part.place(""))
            .unwrap_or_default()
    }

    /// A fault of a value of the interface; `key` is its path behind that of the interface, such as
    /// `.routes`.
    fn fault(&self, part: &Part<'_>, key: &str, problem: impl Into<String>) -> Fault {
        self.fault_at(part.place(""), key, problem)
    }

    fn fault_at(&self, place: Place, key: &str, problem: impl Into<String>) -> Fault {
        Fault::new(format!("network.ethernets.{}{key}", self.id), problem).at(place)
    }
}

/// Parses a route; `None` for one without a gateway.
fn route(part: Part<'_>) -> Result<Option<Route<'_>>, String> {
    if !part.value.is_object() {
        return Err(format!("{} is not a route", part.value));
    }
    let text = |key: &str| match part.get(key).map(|part| part.value) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(other) => Err(format!("{key}: {other} is not an address")),
    };
    let to = text("to")?;
    let via = text("via")?;
    let is_unicast = part.text("type").is_none_or(|kind| kind == "unicast");
    let Some(via) = via else {
        return Ok(None);
    };
    if !is_unicast {
        return Ok(None);
    }
    let via: IpAddr = via
        .parse()
        .map_err(|_| format!("via: {via:?} is not an address"))?;
    let to = match to {
        None => return Err("to: is missing".to_owned()),
        Some("default") => None,
        Some(to) => {
            let net = to
                .parse::<IpNet>()
                .or_else(|_| to.parse::<IpAddr>().map(IpNet::from));
            Some(net.map_err(|_| format!("to: {to:?} is neither a prefix nor an address"))?)
        }
    };
    if let Some(to) = to.filter(|to| to.addr().is_ipv4() != via.is_ipv4()) {
        return Err(format!(
            "to: {to} and via: {via} are of different address families"
        ));
    }
    let is_on_link = part.get("on-link").is_some_and(|on| is_true(on.value));
    Ok(Some(Route {
        to: to.filter(|to| to.prefix_len() > 0),
        via,
        is_on_link,
        part,
    }))
}

/// Whether a value is true as netplan reads it.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Bool(is_on) => *is_on,
        Value::String(text) => ["on", "yes", "y"]
            .iter()
            .any(|word| word.eq_ignore_ascii_case(text)),
        _ => false,
    }
}

fn number(value: &Value) -> Option<u32> {
    match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64().and_then(|number| u32::try_from(number).ok()),
    }
}

/// Merges values as netplan does with those of several files: lists are joined, and otherwise the
/// later value counts.
fn merge(to: &mut Value, from: &Value) {
    match (to, from) {
        (Value::Object(to), Value::Object(from)) => {
            for (key, value) in from {
                match to.get_mut(key) {
                    Some(there) => merge(there, value),
                    None => {
                        to.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        (Value::Array(to), Value::Array(from)) => to.extend(from.iter().cloned()),
        (to, from) => to.clone_from(from),
    }
}
