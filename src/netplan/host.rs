//! Which interfaces of a host are rails: ethernets with a static address and routes by a gateway in its prefix.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use ipnet::IpNet;
use serde_json::{Map, Value};

use super::files::Host;
use crate::cni::is_netdev_name;
use crate::document::{Part, Place};
use crate::pool::allocation::{Allocation, To, VERSION};

/// A rail's link, as its host has it.
#[derive(Clone, Debug)]
pub struct Rail {
    /// The host.
    pub node_name: String,
    /// The interface's key.
    pub id: String,
    /// The netdev, if the file says which it is.
    pub interface: Option<String>,
    /// Of the netdev.
    pub mtu: Option<u32>,
    /// Of the host.
    pub address: IpAddr,
    /// What it is in.
    pub prefix: IpNet,
    /// The leaf's port.
    pub gateway: IpAddr,
    /// By the gateway, in the order of the file; no default routes.
    pub routes: Vec<IpNet>,
    /// Where the address stands, and the first route.
    pub places: [Place; 2],
    /// The whole interface, its files made one.
    pub keys: Rc<Map<String, Value>>,
}

/// What is told at the end.
#[derive(Debug, Default)]
pub struct Notes {
    /// Why there is no plan.
    pub faults: Vec<String>,
    /// How often, and where first.
    warnings: BTreeMap<String, (usize, Place)>,
    /// Interfaces with addresses that are no rails: by their key, and what is wrong if it is a rail elsewhere.
    pub astray: Vec<(String, String)>,
}

impl Notes {
    /// Hundreds of hosts have the same to say.
    pub fn warn(&mut self, place: Place, problem: String) {
        self.warnings.entry(problem).or_insert((0, place)).0 += 1;
    }

    /// The warnings, each once.
    pub fn warnings(&mut self) -> Vec<String> {
        let line = |(problem, (count, place)): (String, (usize, Place))| match count {
            1 => format!("{place}: {problem}"),
            _ => format!("{place}: {problem}; so {} others", count - 1),
        };
        std::mem::take(&mut self.warnings).into_iter().map(line).collect()
    }
}

/// The rails of a host; what else it has is told.
pub fn rails(host: &Host, notes: &mut Notes) -> Vec<Rail> {
    interfaces(host, notes).iter().flat_map(|interface| interface.rails(&host.name, notes)).collect()
}

/// An ethernet: what each of the host's files says of it.
struct Ethernet<'a> {
    id: &'a str,
    parts: Vec<Part<'a>>,
    /// That of all interfaces; the default is another.
    renderer: Option<&'a Value>,
}

/// The ethernets of a host.
fn interfaces<'a>(host: &'a Host, notes: &mut Notes) -> Vec<Ethernet<'a>> {
    let mut found: BTreeMap<&str, Ethernet<'_>> = BTreeMap::new();
    let mut renderer = None;
    for document in &host.documents {
        let root = document.root();
        let Some(network) = root.get("network").filter(|network| network.value.is_object()) else {
            notes
                .faults
                .push(root.fault("network: is missing: this is no netplan file".to_owned()).to_string());
            continue;
        };
        for (key, part) in network.entries() {
            let path = format!("network.{key}");
            match (key, part.value) {
                ("version", version) if *version == 2 => (),
                ("version", _) => {
                    notes.faults.push(format!("{}: {path}: {} is not 2", part.place(""), part.value));
                }
                ("renderer", value) => renderer = Some(value),
                (_, Value::Null) => (),
                ("ethernets", Value::Object(_)) => {
                    for (id, part) in part.entries() {
                        if part.value.is_object() {
                            let new = || Ethernet { id, parts: Vec::new(), renderer: None };
                            found.entry(id).or_insert_with(new).parts.push(part);
                        } else if !part.value.is_null() {
                            notes.faults.push(format!("{}: {path}.{id}: not an object", part.place("")));
                        }
                    }
                }
                ("ethernets", _) => notes.faults.push(format!("{}: {path}: not an object", part.place(""))),
                _ => {
                    for (id, part) in part.entries() {
                        notes.warn(part.place(""), format!("{path}.{id}: left out: rails are ethernets"));
                    }
                }
            }
        }
    }
    let with_renderer = |ethernet| Ethernet { renderer, ..ethernet };
    found.into_values().map(with_renderer).collect()
}

/// An item of `addresses`.
struct Address<'a> {
    net: IpNet,
    part: Part<'a>,
}

/// An item of `routes` that leads by a gateway.
struct Route<'a> {
    /// `None`: everywhere.
    to: Option<IpNet>,
    via: IpAddr,
    part: Part<'a>,
}

impl<'a> Ethernet<'a> {
    /// The links of this interface, one of a family at most.
    fn rails(&self, node_name: &str, notes: &mut Notes) -> Vec<Rail> {
        let before = notes.faults.len();
        let (addresses, routes) = (self.addresses(notes), self.routes(notes));
        if notes.faults.len() > before {
            return Vec::new();
        }
        let place = self.place();
        let mut rails: Vec<Rail> = Vec::new();
        for is_ipv4 in [true, false] {
            let addresses: Vec<_> =
                addresses.iter().filter(|one| one.net.addr().is_ipv4() == is_ipv4).collect();
            let routes: Vec<_> = routes.iter().filter(|one| one.via.is_ipv4() == is_ipv4).collect();
            match self.link(node_name, &addresses, &routes, notes) {
                Ok(rail) => rails.extend(rail),
                Err(fault) => notes.faults.push(fault),
            }
        }
        if notes.faults.len() > before {
            return Vec::new();
        }
        if rails.is_empty() {
            let why = match (addresses.as_slice(), routes.as_slice()) {
                ([], _) if self.is_on("dhcp4") || self.is_on("dhcp6") => "its addresses come by DHCP",
                ([], _) => "it has no static address",
                (_, []) => "it has no routes",
                (_, routes) if routes.iter().all(|route| route.to.is_none()) => {
                    "it has a default route alone"
                }
                _ => "none of its routes has a gateway in its prefix",
            };
            // A file that was cut is still YAML. With a default route it is another kind of host.
            if !addresses.is_empty() && routes.is_empty() {
                let fault = self.path(&format!(": {why}, and on other hosts it is a rail"));
                notes.astray.push((self.id.to_owned(), format!("{place}: {fault}")));
            }
            notes.warn(place, self.path(&format!(": left out: {why}")));
            return Vec::new();
        }
        if addresses.len() > rails.len() {
            notes.warn(place, self.path(".addresses: on a rail, addresses without routes: left out"));
        }
        for key in ["dhcp4", "dhcp6"].into_iter().filter(|key| self.is_on(key)) {
            let place = self.all(key).last().map_or(self.place(), |part| part.place(""));
            notes.warn(place, self.path(&format!(".{key}: on a rail, where it may bring a default route")));
        }
        let gateways = ["gateway4", "gateway6"].into_iter().flat_map(|key| self.all(key));
        let defaults = routes.iter().filter(|route| route.to.is_none()).map(|route| route.part);
        for part in gateways.chain(defaults) {
            notes.warn(part.place(""), self.path(": a default route by a rail: left out of the plan"));
        }
        rails
    }

    /// The link of one family.
    fn link(
        &self,
        node_name: &str,
        addresses: &[&Address<'a>],
        routes: &[&Route<'a>],
        notes: &mut Notes,
    ) -> Result<Option<Rail>, String> {
        let routes: Vec<_> = routes.iter().filter(|route| route.to.is_some()).collect();
        let has_room = |address: &&&Address<'_>| address.net.prefix_len() < address.net.max_prefix_len();
        let mut found: Option<(&Address<'_>, &Route<'_>, Vec<IpNet>)> = None;
        for route in routes {
            let Some(to) = route.to else { continue };
            let Some(address) = addresses.iter().filter(has_room).find(|one| one.net.contains(&route.via))
            else {
                self.astray(route, addresses, notes)?;
                continue;
            };
            if to != to.trunc() {
                notes.warn(
                    route.part.place("to"),
                    self.path(&format!(".routes: {to} has host bits set, taken as {}", to.trunc())),
                );
            }
            let (first_address, first, all) = found.get_or_insert_with(|| (address, route, Vec::new()));
            if first_address.net != address.net {
                return Err(self.fault(
                    &address.part,
                    format!(
                        ".addresses: {} and {} both have routes: one is a rail's",
                        first_address.net, address.net
                    ),
                ));
            }
            if first.via != route.via {
                let (one, other) = (first.via, route.via);
                return Err(self
                    .fault(&route.part, format!(".routes: by {other}, and others by {one}: which is it?")));
            }
            if !all.contains(&to.trunc()) {
                all.push(to.trunc());
            }
        }
        let Some((Address { net, part }, first, all)) = found else { return Ok(None) };
        let (address, prefix, gateway) = (net.addr(), net.trunc(), first.via);
        if address == gateway {
            return Err(
                self.fault(&first.part, format!(".routes: the gateway {gateway} is the host's own address"))
            );
        }
        let dsts = all.iter().map(|dst| To { dst: *dst }).collect();
        let allocation = Allocation {
            version: VERSION,
            prefix,
            gateway: Some(gateway),
            rail: None,
            routes: dsts,
            exclusions: Vec::new(),
            leaf_ports: Vec::new(),
        };
        let wrong = |what: &str, why: String| self.fault(part, format!(".{what}{why}"));
        allocation.check().map_err(|why| wrong("routes: ", why))?;
        allocation.check_host(address).map_err(|why| wrong("addresses: ", format!("{address} {why}")))?;
        let interface = self.netdev();
        if let Some(name) = interface.as_ref().filter(|name| !is_netdev_name(name)) {
            let fault = format!(": {name:?} is no name of a netdev");
            return Err(self.fault(self.parts.first().unwrap_or(part), fault));
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
            routes: all,
            places: [part.place(""), first.part.place("")],
            keys: Rc::new(keys),
        }))
    }

    /// A route by a gateway outside of all prefixes. On a link of two it is a mistake; elsewhere it may be one.
    fn astray(&self, route: &Route<'_>, addresses: &[&Address<'_>], notes: &mut Notes) -> Result<(), String> {
        let Some(address) = addresses.first() else { return Ok(()) };
        let why =
            format!(".routes: the gateway {} is outside of the prefix {}", route.via, address.net.trunc());
        let fault = self.fault(&route.part, why);
        if addresses.iter().any(|one| (1..=2).contains(&(one.net.max_prefix_len() - one.net.prefix_len()))) {
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
                Value::Object(object) if object.len() == 1 => object.keys().next().map(String::as_str),
                _ => None,
            };
            let Some(text) = text else {
                notes.faults.push(self.fault(&part, format!(".addresses: {} is no address", part.value)));
                continue;
            };
            match text.parse::<IpNet>() {
                // netplan takes an address that is there twice once.
                Ok(net) if addresses.iter().any(|one| one.net == net) => (),
                Ok(net) => addresses.push(Address { net, part }),
                Err(_) if text.parse::<IpAddr>().is_ok() => {
                    notes.faults.push(self.fault(&part, format!(".addresses: {text} has no prefix length")));
                }
                Err(_) => notes.faults.push(self.fault(&part, format!(".addresses: {text:?} is no address"))),
            }
        }
        addresses
    }

    fn routes(&self, notes: &mut Notes) -> Vec<Route<'a>> {
        let mut routes = Vec::new();
        for part in self.list("routes", notes) {
            match route(part) {
                Ok(route) => routes.extend(route),
                Err(why) => notes.faults.push(self.fault(&part, format!(".routes: {why}"))),
            }
        }
        routes
    }

    /// The items of a key in all files: netplan puts lists behind one another.
    fn list(&self, key: &str, notes: &mut Notes) -> Vec<Part<'a>> {
        let mut items = Vec::new();
        for part in self.all(key) {
            match part.value {
                Value::Array(_) => items.extend(part.items()),
                Value::Null => (),
                _ => notes.faults.push(self.fault(&part, format!(".{key}: not a list"))),
            }
        }
        items
    }

    /// The values of a key, a file each.
    fn all(&self, key: &str) -> Vec<Part<'a>> {
        let of = |part: &Part<'a>| part.entries().find(|(name, _)| *name == key).map(|(_, part)| part);
        self.parts.iter().filter_map(of).collect()
    }

    fn is_on(&self, key: &str) -> bool {
        let last = self.all(key).last().map(|part| part.value);
        match last {
            Some(Value::Bool(is_on)) => *is_on,
            // As netplan reads them.
            Some(Value::String(text)) => {
                ["on", "yes", "y"].iter().any(|word| word.eq_ignore_ascii_case(text))
            }
            _ => false,
        }
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

    /// All files as one.
    fn merged(&self) -> Map<String, Value> {
        let mut all = Value::Object(Map::new());
        self.parts.iter().for_each(|part| merge(&mut all, part.value));
        let Value::Object(mut all) = all else { return Map::new() };
        if let Some(renderer) = self.renderer {
            all.entry("renderer").or_insert_with(|| renderer.clone());
        }
        all
    }

    fn place(&self) -> Place {
        self.parts.first().map(|part| part.place("")).unwrap_or_default()
    }

    fn path(&self, rest: &str) -> String {
        format!("network.ethernets.{}{rest}", self.id)
    }

    fn fault(&self, part: &Part<'_>, rest: String) -> String {
        format!("{}: {}", part.place(""), self.path(&rest))
    }
}

/// `None`: it leads by no gateway.
fn route(part: Part<'_>) -> Result<Option<Route<'_>>, String> {
    if !part.value.is_object() {
        return Err(format!("{} is no route", part.value));
    }
    let text = |key: &str| match part.get(key).map(|part| part.value) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(other) => Err(format!("{key}: {other} is no address")),
    };
    let (to, via, kind) = (text("to")?, text("via")?, part.text("type"));
    let Some(via) = via.filter(|_| kind.is_none_or(|kind| kind == "unicast")) else { return Ok(None) };
    let via: IpAddr = via.parse().map_err(|_| format!("via: {via:?} is no address"))?;
    let to = match to {
        None => return Err("to: is missing".to_owned()),
        Some("default") => None,
        Some(to) => {
            let net = to.parse::<IpNet>().or_else(|_| to.parse::<IpAddr>().map(IpNet::from));
            Some(net.map_err(|_| format!("to: {to:?} is neither a prefix nor an address"))?)
        }
    };
    if let Some(to) = to.filter(|to| to.addr().is_ipv4() != via.is_ipv4()) {
        return Err(format!("to: {to} by {via}: the families differ"));
    }
    Ok(Some(Route { to: to.filter(|to| to.prefix_len() > 0), via, part }))
}

fn number(value: &Value) -> Option<u32> {
    match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64().and_then(|number| u32::try_from(number).ok()),
    }
}

/// As netplan makes one of several files: what is in both is taken from the later one, lists are put together.
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
