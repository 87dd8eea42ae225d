//! docs/cni-contract.md, items 60 to 72: the result.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::{Check, Must, Quality, Should, check};
use crate::description::Kind;
use crate::ensure;
use crate::world::{Attachment, Stop, World, with};

pub const CHECKS: &[Check] = &[
    check(
        "interface_is_of_the_pod",
        &[61],
        Should,
        "each interface has a name, and the one in the pod has CNI_NETNS as sandbox",
        interface_is_of_the_pod,
    ),
    check(
        "addresses_are_whole",
        &[62],
        Must,
        "addresses have a prefix, gateways are addresses, and each index is less than the number of interfaces",
        addresses_are_whole,
    ),
    check(
        "numbers_are_integers",
        &[63],
        Must,
        "indexes, MTUs and numbers of routes are integers",
        numbers_are_integers,
    ),
    check(
        "mac_is_that_of_the_kernel",
        &[64],
        Quality,
        "the MAC of the result is written as netlink reports it",
        mac_is_that_of_the_kernel,
    ),
    check(
        "result_matches_the_pod",
        &[62, 87],
        Must,
        "each address of the result is on its interface",
        result_matches_the_pod,
    ),
    check("mtu_is_told", &[65], Should, "a result of 1.1.0 has the MTU of the interface", mtu_is_told),
    check(
        "result_of_1_0_has_no_later_keys",
        &[66],
        Should,
        "a result of 1.0.0 has no mtu, pciID and socketPath of interfaces, and no mtu, advmss, priority, table and scope of routes",
        result_of_1_0_has_no_later_keys,
    ),
    check(
        "result_of_0_4_has_families",
        &[67],
        Must,
        "results of 0.3.0 to 0.4.0 have ips[].version",
        result_of_0_4_has_families,
    ),
    check(
        "result_of_0_2_is_by_family",
        &[68],
        Must,
        "results of 0.1.0 and 0.2.0 have ip4 and ip6, and no ips",
        result_of_0_2_is_by_family,
    ),
    check(
        "previous_result_of_another_version",
        &[69, 71],
        Quality,
        "a prevResult of an older version is read",
        previous_result_of_another_version,
    ),
    check(
        "ipam_result_has_no_interface",
        &[72, 116],
        Must,
        "the result of an IPAM plugin has addresses, and neither interfaces nor an index",
        ipam_result_has_no_interface,
    ),
];

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn added(world: &World<'_>, version: &str) -> Result<(Attachment, Value), Stop> {
    if !world.description().claims_version(version) {
        return Err(Stop::LeftOut(format!("it does not claim {version}")));
    }
    let one = world.of_version(world.attachment(0)?, version);
    let result = world.add(&one)?;
    Ok((one, result))
}

fn interface_is_of_the_pod(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main, Kind::Meta])?;
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    let interfaces = list(&result["interfaces"]);
    for interface in &interfaces {
        ensure!(
            interface["name"].as_str().is_some_and(|name| !name.is_empty()),
            "without a name: {interface}"
        );
    }
    let sandbox = json!(one.netns.to_string_lossy());
    let found =
        interfaces.iter().any(|interface| interface["name"] == one.ifname && interface["sandbox"] == sandbox);
    ensure!(found, "no interface {} with sandbox {sandbox}: {result}", one.ifname);
    Ok(())
}

/// An address with a prefix that its family has.
pub fn whole(text: &str) -> Option<(IpAddr, u8)> {
    let (host, prefix) = text.split_once('/')?;
    let host: IpAddr = host.parse().ok()?;
    let prefix = prefix.parse().ok()?;
    (prefix <= if host.is_ipv4() { 32 } else { 128 }).then_some((host, prefix))
}

fn addresses_are_whole(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    let count = list(&result["interfaces"]).len() as u64;
    for address in list(&result["ips"]) {
        let text = address["address"].as_str().unwrap_or_default();
        ensure!(whole(text).is_some(), "not an address with a prefix: {address}");
        let gateway = &address["gateway"];
        let is_gateway =
            gateway.is_null() || gateway.as_str().is_some_and(|text| text.parse::<IpAddr>().is_ok());
        ensure!(is_gateway, "the gateway is {gateway}");
        if let Some(index) = address.get("interface") {
            ensure!(
                index.as_u64().is_some_and(|index| index < count),
                "the index {index} of {count} interfaces"
            );
        }
    }
    Ok(())
}

fn numbers_are_integers(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    let mut numbers = Vec::new();
    for route in list(&result["routes"]) {
        numbers.extend(["mtu", "advmss", "priority", "table", "scope"].map(|key| route[key].clone()));
    }
    numbers.extend(list(&result["interfaces"]).iter().map(|interface| interface["mtu"].clone()));
    numbers.extend(list(&result["ips"]).iter().map(|address| address["interface"].clone()));
    for number in numbers {
        ensure!(number.is_null() || number.is_i64(), "{number} in {result}");
    }
    Ok(())
}

fn own_interface(result: &Value, one: &Attachment) -> Result<Value, Stop> {
    let interfaces = list(&result["interfaces"]);
    let own = interfaces.into_iter().find(|interface| interface["name"] == one.ifname);
    own.ok_or_else(|| Stop::LeftOut("the result has no interface of the pod".to_owned()))
}

fn shown(one: &Attachment, what: &str) -> Result<Value, Stop> {
    let text = one.shown("-json", &format!("{what} show dev {}", one.ifname))?;
    Ok(serde_json::from_str::<Value>(&text).unwrap_or_default()[0].clone())
}

fn mac_is_that_of_the_kernel(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    let (told, kernel) = (own_interface(&result, &one)?, shown(&one, "link")?);
    ensure!(
        told["mac"] == kernel["address"],
        "the result has {}, the interface {}",
        told["mac"],
        kernel["address"]
    );
    Ok(())
}

fn result_matches_the_pod(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    let interfaces = list(&result["interfaces"]);
    for address in list(&result["ips"]) {
        let text = address["address"].as_str().unwrap_or_default();
        let Some(whole) = whole(text) else {
            return Err(Stop::Fails(format!("not an address with a prefix: {address}")));
        };
        let index = address["interface"].as_u64().and_then(|at| usize::try_from(at).ok());
        let (name, sandbox) = match index {
            None => (one.ifname.as_str(), &Value::Null),
            Some(at) => {
                let Some(interface) = interfaces.get(at) else {
                    return Err(Stop::Fails(format!(
                        "{text} is of interface {at}, which is not in the result"
                    )));
                };
                (interface["name"].as_str().unwrap_or_default(), &interface["sandbox"])
            }
        };
        let is_of_pod = index.is_none() || sandbox.as_str().is_some_and(|path| !path.is_empty());
        let shown =
            if is_of_pod { one.shown("-json", "addr show")? } else { world.host("-json addr show")? };
        let links: Value = serde_json::from_str(&shown).unwrap_or_default();
        let link = list(&links).into_iter().find(|link| link["ifname"] == name).unwrap_or_default();
        let has = list(&link["addr_info"]).iter().any(|info| {
            let local = info["local"].as_str().and_then(|local| local.parse().ok());
            local.zip(info["prefixlen"].as_u64()) == Some((whole.0, u64::from(whole.1)))
        });
        let of = if is_of_pod { "the pod" } else { "the host" };
        ensure!(has, "{text} is in the result and not on {name} of {of}");
    }
    Ok(())
}

fn mtu_is_told(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let (one, result) = added(world, "1.1.0")?;
    let (told, kernel) = (own_interface(&result, &one)?, shown(&one, "link")?);
    ensure!(told["mtu"] == kernel["mtu"], "the result has {}, the interface {}", told["mtu"], kernel["mtu"]);
    Ok(())
}

fn result_of_1_0_has_no_later_keys(world: &World<'_>) -> Result<(), Stop> {
    let (_, result) = added(world, "1.0.0")?;
    for (key, later) in [
        ("interfaces", &["mtu", "pciID", "socketPath"][..]),
        ("routes", &["mtu", "advmss", "priority", "table", "scope"]),
    ] {
        for one in list(&result[key]) {
            let found = later.iter().find(|name| one.get(**name).is_some());
            ensure!(found.is_none(), "{key} have {}", found.unwrap_or(&""));
        }
    }
    Ok(())
}

fn result_of_0_4_has_families(world: &World<'_>) -> Result<(), Stop> {
    let mut asked = false;
    for (n, version) in ["0.3.0", "0.3.1", "0.4.0"].into_iter().enumerate() {
        if world.description().claims_version(version) {
            asked = true;
            let one = world.of_version(world.attachment(n)?, version);
            let result = world.add(&one)?;
            for address in list(&result["ips"]) {
                let family = if address["address"].to_string().contains(':') { "6" } else { "4" };
                ensure!(address["version"] == family, "{version}: the version of {address}");
            }
            ensure!(result.get("ip4").is_none(), "{version}: the result has ip4");
            world.make_room(&one, &result)?;
        }
    }
    if asked { Ok(()) } else { Err(Stop::LeftOut("it claims none of these versions".to_owned())) }
}

fn result_of_0_2_is_by_family(world: &World<'_>) -> Result<(), Stop> {
    let mut asked = false;
    for (n, version) in ["0.1.0", "0.2.0"].into_iter().enumerate() {
        if world.description().lacks_version(version).is_none() {
            asked = true;
            let one = world.of_version(world.attachment(n)?, version);
            let result = world.add(&one)?;
            ensure!(
                result["ip4"]["ip"].is_string() || result["ip6"]["ip"].is_string(),
                "{version}: no address in {result}"
            );
            ensure!(result.get("ips").is_none() && result.get("interfaces").is_none(), "{version}: {result}");
            world.make_room(&one, &result)?;
        }
    }
    let reason = || world.description().lacks_version("0.2.0").unwrap_or_default();
    if asked { Ok(()) } else { Err(Stop::LeftOut(reason())) }
}

fn previous_result_of_another_version(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let Some(previous) = world.previous(&one) else {
        return Err(Stop::LeftOut("it is the first of its chain".to_owned()));
    };
    let old = crate::world::result_of(&previous, "0.4.0");
    let result = world.ok(&world.call("ADD", &one).conf(&with(&one.conf, "prevResult", old)))?;
    let result = result.result().map_err(Stop::Fails)?;
    let address = &result["ips"][0]["address"];
    ensure!(*address == previous["ips"][0]["address"], "the address is {address} in {result}");
    Ok(())
}

fn ipam_result_has_no_interface(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Ipam])?;
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    ensure!(!list(&result["ips"]).is_empty(), "no address in {result}");
    ensure!(list(&result["interfaces"]).is_empty(), "the result has interfaces: {result}");
    ensure!(
        list(&result["ips"]).iter().all(|one| one.get("interface").is_none()),
        "an address has an index: {result}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_as_long_as_its_family_allows() {
        for text in ["10.0.0.1/33", "::1/129", "10.0.0.1", "x/8", "10.0.0.1/-1", "10.0.0.1/"] {
            assert_eq!(whole(text), None, "{text}");
        }
        assert_eq!(whole("FD00:0::1/128"), whole("fd00::1/128"));
        assert!(whole("10.0.0.1/32").is_some());
    }
}
