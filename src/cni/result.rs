//! Results in every version of the specification. Inside the program they have the form of 1.1.0;
//! older forms exist only as JSON.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use crate::error::{Code, Failure};
use crate::fail;

/// The versions that the project supports, oldest first.
pub const VERSIONS: [Version; 7] = [
    Version::V010,
    Version::V020,
    Version::V030,
    Version::V031,
    Version::V040,
    Version::V100,
    Version::V110,
];

/// A version of the specification; a later one compares as greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0.1.0, also for configurations that name no version.
    V010,
    /// 0.2.0, with `ip4` and `ip6`.
    V020,
    /// 0.3.0, with `interfaces`, `ips` and `routes`.
    V030,
    /// 0.3.1, the same as 0.3.0.
    V031,
    /// 0.4.0, with CHECK.
    V040,
    /// 1.0.0, without `ips[].version`.
    V100,
    /// 1.1.0, with GC, STATUS, MTU and pciID.
    V110,
}

impl Version {
    /// The text of `cniVersion`.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V010 => "0.1.0",
            Version::V020 => "0.2.0",
            Version::V030 => "0.3.0",
            Version::V031 => "0.3.1",
            Version::V040 => "0.4.0",
            Version::V100 => "1.0.0",
            Version::V110 => "1.1.0",
        }
    }

    /// The version with exactly this text.
    pub fn parse(text: &str) -> Option<Version> {
        VERSIONS
            .into_iter()
            .find(|version| version.as_str() == text)
    }
}

/// The result of an ADD, and the `prevResult` of later verbs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AddResult {
    /// The interfaces that were made or moved, in order.
    #[serde(
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub interfaces: Vec<Interface>,
    /// The addresses.
    #[serde(
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub ips: Vec<Ip>,
    /// The routes that were installed.
    #[serde(
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub routes: Vec<Route>,
    /// Name service settings, passed on unchanged.
    #[serde(
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Dns::is_empty"
    )]
    pub dns: Dns,
}

/// One entry of `interfaces`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// Name inside the sandbox.
    pub name: String,
    /// Hardware address as netlink reports it, in lower case.
    #[serde(
        deserialize_with = "null_is_empty",
        skip_serializing_if = "String::is_empty"
    )]
    pub mac: String,
    /// MTU in bytes; since 1.1.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// CNI_NETNS as it was passed; empty for an interface of the host.
    #[serde(
        deserialize_with = "null_is_empty",
        skip_serializing_if = "String::is_empty"
    )]
    pub sandbox: String,
    /// Path of a vhost-user socket, passed on unchanged; since 1.1.0.
    #[serde(rename = "socketPath", skip_serializing_if = "Option::is_none")]
    pub socket_path: Option<String>,
    /// PCI address or name on the auxiliary bus; since 1.1.0.
    #[serde(rename = "pciID", skip_serializing_if = "Option::is_none")]
    pub pci_id: Option<String>,
}

/// One entry of `ips`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ip {
    /// Address with prefix length.
    pub address: IpNet,
    /// The gateway: on a rail the leaf port.
    #[serde(
        default,
        deserialize_with = "empty_is_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub gateway: Option<IpAddr>,
    /// Index into `interfaces`. containerd crashes on an index that is out of range (go-cni
    /// result.go:118).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
}

/// One entry of `routes` in a result or a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination.
    pub dst: IpNet,
    /// Next hop; the default is the gateway of the address.
    #[serde(
        default,
        deserialize_with = "empty_is_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub gw: Option<IpAddr>,
    /// Path MTU in bytes; since 1.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// TCP MSS to announce, in bytes; since 1.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    /// Metric: the smaller one wins; since 1.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// Routing table; since 1.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// Scope, as in rtnetlink(7); since 1.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

impl Route {
    /// The keys of a route in JSON.
    pub const KEYS: [&str; 7] = ["dst", "gw", "mtu", "advmss", "priority", "table", "scope"];

    /// A route to `dst` without further keys.
    pub fn to(dst: IpNet) -> Route {
        Route {
            dst,
            gw: None,
            mtu: None,
            advmss: None,
            priority: None,
            table: None,
            scope: None,
        }
    }

    /// Whether the destination is 0.0.0.0/0 or ::/0.
    pub fn is_default(&self) -> bool {
        self.dst.prefix_len() == 0
    }
}

/// Name service settings, passed on unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// Addresses of the servers.
    #[serde(
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(
        deserialize_with = "null_is_empty",
        skip_serializing_if = "String::is_empty"
    )]
    pub domain: String,
    /// The search list.
    #[serde(
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub search: Vec<String>,
    /// The options of resolv.conf(5).
    #[serde(
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub options: Vec<String>,
}

impl Dns {
    /// The keys of the settings in JSON.
    pub const KEYS: [&str; 4] = ["nameservers", "domain", "search", "options"];

    /// Whether no setting is set.
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

fn null_is_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Some plugins write `"gateway": ""` for none.
fn empty_is_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<IpAddr>, D::Error> {
    let text = Option::<String>::deserialize(from)?.unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| serde::de::Error::custom(format!("{text:?} is not an IP address")))
}

impl AddResult {
    /// The addresses of the interface `ifname` of the pod.
    pub fn addresses_of(&self, ifname: &str) -> Vec<IpNet> {
        let is_its = |interface: Option<usize>| {
            interface.is_none_or(|number| {
                let interface = self.interfaces.get(number);
                interface.is_some_and(|one| one.name == ifname && !one.sandbox.is_empty())
            })
        };
        self.ips
            .iter()
            .filter(|ip| is_its(ip.interface))
            .map(|ip| ip.address)
            .collect()
    }

    /// Refuses an address whose `interface` is not an index of the interfaces.
    pub fn check_indexes(&self) -> Result<()> {
        let count = self.interfaces.len();
        for (number, ip) in self.ips.iter().enumerate() {
            let Some(index) = ip.interface.filter(|index| *index >= count) else {
                continue;
            };
            fail!(
                Decode,
                "ips[{number}].interface: {index} is not an index of interfaces, which has {count} entries"
            );
        }
        Ok(())
    }

    /// Reads a result that another plugin or an older version of this one wrote. `default` is the
    /// version of a result that names none. Fails if the result is malformed or has an unknown
    /// version.
    pub fn parse(value: &Value, default: Version) -> Result<AddResult> {
        let Value::Object(object) = value else {
            fail!(Decode, "a result must be a JSON object")
        };
        // Go matches keys in any letter case, and go-cni writes them in another one.
        let version = object
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case("cniVersion"));
        let version = match version {
            Some((_, Value::String(text))) if !text.is_empty() => match Version::parse(text) {
                Some(version) => version,
                None => fail!(
                    IncompatibleVersion,
                    "the result has the unknown cniVersion {text:?}"
                ),
            },
            _ => default,
        };
        if version <= Version::V020 {
            return from_ip4_and_ip6(object);
        }
        serde_path_to_error::deserialize(value)
            .context(Failure::new(Code::Decode, "result cannot be read"))
    }

    /// Writes the result in the form of `version`, without the fields that this version does not
    /// have. Go's own conversion keeps them (pkg/types/100/types.go:122-133). Fails for 0.1.0 and
    /// 0.2.0 when there is no address.
    pub fn to_json(&self, version: Version) -> Result<Value> {
        let mut result = self.clone();
        if version < Version::V110 {
            for interface in &mut result.interfaces {
                (interface.mtu, interface.socket_path, interface.pci_id) = (None, None, None);
            }
            for route in &mut result.routes {
                *route = Route {
                    gw: route.gw,
                    ..Route::to(route.dst)
                };
            }
        }
        if version <= Version::V020 {
            return result.to_ip4_and_ip6(version);
        }
        let mut json = serde_json::to_value(&result)?;
        json["cniVersion"] = version.as_str().into();
        if version < Version::V100 {
            let ips = json.get_mut("ips").and_then(Value::as_array_mut);
            for (ip, json) in result.ips.iter().zip(ips.into_iter().flatten()) {
                json["version"] = if ip.address.addr().is_ipv4() {
                    "4"
                } else {
                    "6"
                }
                .into();
            }
        }
        Ok(json)
    }

    /// The form of 0.1.0 and 0.2.0: the first address of each family, with the routes of that
    /// family.
    fn to_ip4_and_ip6(&self, version: Version) -> Result<Value> {
        let mut json = Map::new();
        json.insert("cniVersion".to_owned(), version.as_str().into());
        for (key, is_v4) in [("ip4", true), ("ip6", false)] {
            let Some(ip) = self
                .ips
                .iter()
                .find(|ip| ip.address.addr().is_ipv4() == is_v4)
            else {
                continue;
            };
            let routes: Vec<_> = self
                .routes
                .iter()
                .filter(|route| route.dst.addr().is_ipv4() == is_v4)
                .collect();
            let mut block = json!({ "ip": ip.address });
            if let Some(gateway) = ip.gateway {
                block["gateway"] = json!(gateway);
            }
            if !routes.is_empty() {
                block["routes"] = json!(routes);
            }
            json.insert(key.to_owned(), block);
        }
        if json.len() == 1 {
            fail!(
                InvalidConfig,
                "cannot convert: no valid IP addresses for cniVersion {}",
                version.as_str()
            );
        }
        if !self.dns.is_empty() {
            json.insert("dns".to_owned(), json!(self.dns));
        }
        Ok(Value::Object(json))
    }

    /// Appends `other`. The indexes of the earlier interfaces stay the same.
    #[must_use]
    pub fn merged_with(mut self, mut other: AddResult) -> AddResult {
        for ip in &mut other.ips {
            ip.interface = ip.interface.map(|index| index + self.interfaces.len());
        }
        self.interfaces.append(&mut other.interfaces);
        self.ips.append(&mut other.ips);
        self.routes.append(&mut other.routes);
        if !other.dns.is_empty() {
            self.dns = other.dns;
        }
        self
    }
}

fn from_ip4_and_ip6(object: &Map<String, Value>) -> Result<AddResult> {
    #[derive(Deserialize)]
    struct Block {
        ip: IpNet,
        #[serde(default, deserialize_with = "empty_is_none")]
        gateway: Option<IpAddr>,
        #[serde(default, deserialize_with = "null_is_empty")]
        routes: Vec<Route>,
    }
    let mut result = AddResult::default();
    for key in ["ip4", "ip6"] {
        let Some(value) = object.get(key).filter(|value| !value.is_null()) else {
            continue;
        };
        let block: Block = part(key, value)?;
        result.ips.push(Ip {
            address: block.ip,
            gateway: block.gateway,
            interface: None,
        });
        result.routes.extend(block.routes);
    }
    if let Some(dns) = object.get("dns").filter(|value| !value.is_null()) {
        result.dns = part("dns", dns)?;
    }
    Ok(result)
}

/// The value of a key of a result.
fn part<T: serde::de::DeserializeOwned>(key: &str, value: &Value) -> Result<T> {
    let wrong = || Failure::new(Code::Decode, format!("result cannot be read: {key}"));
    serde_path_to_error::deserialize(value).with_context(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> AddResult {
        AddResult {
            interfaces: vec![Interface {
                name: "net1".into(),
                mac: "02:00:00:00:00:01".into(),
                mtu: Some(9000),
                sandbox: "/run/netns/x".into(),
                pci_id: Some("0000:3b:00.2".into()),
                ..Interface::default()
            }],
            ips: vec![Ip {
                address: "172.16.1.60/31".parse().unwrap(),
                gateway: Some("172.16.1.61".parse().unwrap()),
                interface: Some(0),
            }],
            routes: vec![Route {
                gw: Some("172.16.1.61".parse().unwrap()),
                mtu: Some(9000),
                table: Some(0),
                ..Route::to("172.16.0.0/15".parse().unwrap())
            }],
            dns: Dns {
                domain: "x".into(),
                ..Dns::default()
            },
        }
    }

    #[test]
    fn the_keys_are_those_that_serde_writes() {
        let route = json!({"dst": "10.0.0.0/8", "gw": "10.0.0.1", "mtu": 1, "advmss": 1, "priority": 1,
            "table": 1, "scope": 1});
        let dns = json!({"nameservers": ["a"], "domain": "a", "search": ["a"], "options": ["a"]});
        let keys =
            |value: Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
        let sorted = |keys: &[&str]| {
            let mut keys: Vec<_> = keys.iter().map(|key| (*key).to_owned()).collect();
            keys.sort();
            keys
        };
        let route = serde_json::from_value::<Route>(route).unwrap();
        assert_eq!(
            keys(serde_json::to_value(route).unwrap()),
            sorted(&Route::KEYS)
        );
        let dns = serde_json::from_value::<Dns>(dns).unwrap();
        assert_eq!(keys(serde_json::to_value(dns).unwrap()), sorted(&Dns::KEYS));
    }

    #[test]
    fn every_version_reads_what_it_wrote() {
        for version in VERSIONS {
            let json = full().to_json(version).unwrap();
            let read = AddResult::parse(&json, Version::V010).unwrap();
            assert_eq!(read.ips[0].address, full().ips[0].address, "{version:?}");
            assert_eq!(read.to_json(version).unwrap(), json, "{version:?}");
        }
    }

    /// CNI specification, section 5 of each version (tests/contract-items, items 65 to 68).
    #[test]
    fn older_versions_have_only_their_own_fields() {
        let v100 = full().to_json(Version::V100).unwrap();
        assert_eq!(
            v100["interfaces"],
            json!([{"name": "net1", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/x"}])
        );
        assert_eq!(
            v100["routes"],
            json!([{"dst": "172.16.0.0/15", "gw": "172.16.1.61"}])
        );
        assert_eq!(
            full().to_json(Version::V040).unwrap()["ips"][0]["version"],
            "4"
        );
        let v020 = full().to_json(Version::V020).unwrap();
        assert_eq!(
            v020,
            json!({"cniVersion": "0.2.0", "dns": {"domain": "x"}, "ip4": {"ip": "172.16.1.60/31",
                "gateway": "172.16.1.61", "routes": [{"dst": "172.16.0.0/15", "gw": "172.16.1.61"}]}})
        );
    }

    #[test]
    fn an_index_beyond_the_interfaces_is_named() {
        let mut result = full();
        assert!(result.check_indexes().is_ok());
        result.ips[0].interface = Some(1);
        let error = result.check_indexes().unwrap_err();
        assert_eq!(
            error.to_string(),
            "ips[0].interface: 1 is not an index of interfaces, which has 1 entries"
        );
        assert_eq!(crate::error::code_of(&error), 6);
    }

    #[test]
    fn merging_keeps_earlier_indexes_and_shifts_later_ones() {
        let merged = full().merged_with(full());
        assert_eq!(
            merged.ips.iter().map(|ip| ip.interface).collect::<Vec<_>>(),
            [Some(0), Some(1)]
        );
    }

    /// An older libcni may have written it (tests/contract-items, item 71).
    #[test]
    fn a_lenient_reader_takes_nulls_empty_texts_and_unknown_fields() {
        let json = json!({"CNIVersion": "1.0.0", "interfaces": null, "routes": null, "dns": null, "x": 1,
            "ips": [{"address": "10.0.0.1/24", "gateway": "", "y": 2}]});
        assert_eq!(
            AddResult::parse(&json, Version::V010).unwrap().ips[0].gateway,
            None
        );
    }

    #[test]
    fn a_wrong_value_of_an_old_result_is_named() {
        for (key, value) in [("ip4", json!({"ip": 1})), ("dns", json!({"domain": ["x"]}))] {
            let error =
                AddResult::parse(&json!({"cniVersion": "0.2.0", key: value}), Version::V010)
                    .unwrap_err();
            assert_eq!(crate::error::code_of(&error), 6, "{error:#}");
            assert!(
                format!("{error:#}").contains(&format!(": {key}: ")),
                "{error:#}"
            );
        }
    }
}
