//! The result.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::check::{Check, Harm, must, quality, should, spec};
use crate::description::Kind;
use crate::ensure;
use crate::replay::answer;
use crate::settings::Stop;
use crate::value::with;
use crate::world::{Attachment, World};

/// What 0.4.0 says of every key.
const FIELDS: &str = "Fields in CNI structures (like [Network Configuration](#network-configuration) and [CNI Plugin Result](#result)) are required unless specifically marked optional.";

pub const CHECKS: &[Check] = &[
    spec(
        "own_interface_is_listed",
        "the result lists the interface that ADD created in the pod",
        &[must(
            "1.0.0",
            "success",
            "Plugins must output a JSON object with the following keys upon a successful `ADD` operation: … `interfaces`: An array of all interfaces created by the attachment, including any host-level interfaces",
        )],
        own_interface_is_listed,
    )
    .harm(Harm::Misleads),
    spec(
        "interfaces_have_names",
        "each interface in the result has a name",
        &[
            must("0.4.0", "general-considerations", FIELDS),
            must("1.0.0", "success", "Plugins must output a JSON object with the following keys upon a successful `ADD` operation: … The name of the interface."),
        ],
        interfaces_have_names,
    ),
    spec(
        "sandbox_is_the_netns",
        "the interface that ADD created in the pod has CNI_NETNS as its sandbox",
        &[
            should(
                "0.3.0",
                "result",
                "`sandbox` (string): container/namespace-based environments should return the full filesystem path to the network namespace of that sandbox.",
            ),
            should(
                "1.0.0",
                "success",
                "For interfaces created inside the container, this should be the value passed via `CNI_NETNS`.",
            ),
        ],
        sandbox_is_the_netns,
    )
    .harm(Harm::Misleads),
    spec(
        "addresses_have_a_prefix",
        "addresses have a prefix length valid for their family, and gateways are addresses",
        &[must("0.4.0", "general-considerations", FIELDS), must(
            "1.0.0",
            "success",
            "Plugins must output a JSON object with the following keys upon a successful `ADD` operation: … `address` (string): an IP address in CIDR notation (eg \"192.168.1.3/24\"). … `gateway` (string): the default gateway for this subnet, if one exists.",
        )],
        addresses_have_a_prefix,
    )
    .harm(Harm::Misleads),
    spec(
        "indexes_are_in_range",
        "each address's interface index exists in interfaces",
        &[must("0.4.0", "general-considerations", FIELDS), must(
            "1.0.0",
            "success",
            "Plugins must output a JSON object with the following keys upon a successful `ADD` operation: … `interface` (uint): the index into the `interfaces` list for a [CNI Plugin Result](#result) indicating which interface this IP configuration should be applied to.",
        )],
        indexes_are_in_range,
    )
    .harm(Harm::Misleads),
    spec(
        "numbers_are_integers",
        "MTUs of interfaces and the numbers in routes are non-negative integers",
        &[must(
            "1.1.0",
            "add-success",
            "Plugins must output a JSON object with the following keys upon a successful `ADD` operation: … `mtu`: (uint) The MTU of the interface (if applicable). … `priority` (uint): The priority of route, lower is higher.",
        )],
        numbers_are_integers,
    ),
    quality(
        "mac_is_that_of_the_kernel",
        "a MAC in the result is written as netlink reports it",
        "CHECK in plugins written in Go compares the text",
        mac_is_that_of_the_kernel,
    )
    .harm(Harm::Misleads),
    quality(
        "result_matches_the_pod",
        "each address in the result that belongs to an interface of the pod is configured on it",
        "\"IPs assigned by this attachment\" says that they are configured; \"which interface this IP configuration should be applied to\" can mean that the caller still has to, as in a virtual machine",
        result_matches_the_pod,
    )
    .harm(Harm::Misleads),
    quality(
        "mtu_is_told",
        "a result of 1.1.0 contains the MTU of the interface",
        "plugins must output it \"(if applicable)\". Every link in Linux has one, but a plugin that does not set it can call it not applicable",
        mtu_is_told,
    ),
    spec(
        "told_mtu_is_true",
        "an MTU in the result is that of the interface",
        &[must("1.1.0", "add-success", "Plugins must output a JSON object with the following keys upon a successful `ADD` operation: … `mtu`: (uint) The MTU of the interface (if applicable).")],
        told_mtu_is_true,
    )
    .harm(Harm::Misleads),
    quality(
        "result_of_1_0_has_no_later_keys",
        "a result of 1.0.0 contains neither mtu, pciID or socketPath of interfaces, nor mtu, advmss, priority, table or scope of routes",
        "1.0.0 has no such keys but does not forbid others; a strict reader of 1.0.0 may refuse them",
        result_of_1_0_has_no_later_keys,
    ),
    spec(
        "result_of_0_4_has_families",
        "addresses in results of 0.4.0 have a version, 4 or 6",
        &[must(
            "0.4.0",
            "result",
            "Fields in CNI structures (like [Network Configuration](#network-configuration) and [CNI Plugin Result](#result)) are required unless specifically marked optional. … \"version\": \"<4-or-6>\"",
        )],
        result_of_0_4_has_families,
    )
    .of("0.4.0"),
    quality(
        "result_of_0_2_is_by_family",
        "results of 0.1.0 and 0.2.0 contain ip4 or ip6",
        "\"Success is indicated by a return code of zero and the following JSON\", which contains both; that wording is not binding",
        result_of_0_2_is_by_family,
    ),
    quality(
        "previous_result_of_another_version",
        "a prevResult of an older version is accepted",
        "an old libcni between runtime and plugin writes it",
        previous_result_of_another_version,
    ),
    spec(
        "ipam_result_has_no_interface",
        "the result of an IPAM plugin contains neither interfaces nor an index",
        &[
            should(
                "0.4.0",
                "ip-allocation",
                "IPAM plugins should return an abbreviated `Result` structure that does not include the `interfaces` key",
            ),
            must(
                "1.0.0",
                "delegated-plugins-ipam",
                "Delegated IPAM plugins must return an abbreviated _Success_ object. Specifically, it is missing the `interfaces` array, as well as the `interface` entry in `ips`.",
            ),
        ],
        ipam_result_has_no_interface,
    ),
    spec(
        "ipam_result_has_an_address",
        "the result of an IPAM plugin contains an address",
        &[must(
            "0.4.0",
            "ip-allocation",
            "The IPAM plugin must determine the interface IP/subnet, Gateway and Routes and return this information to the \"main\" plugin to apply.",
        ), must(
            "1.0.0",
            "section-4-plugin-delegation",
            "The IPAM plugin must determine the interface IP/subnet, Gateway and Routes and return this information to the \"main\" plugin to apply.",
        )],
        ipam_result_has_an_address,
    )
    .harm(Harm::Misleads),
];

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn left_out<T>(reason: &str) -> Result<T, Stop> {
    Err(Stop::LeftOut(reason.to_owned()))
}

fn added(world: &World<'_>, version: &str) -> Result<(Attachment, Value), Stop> {
    if !world.description().claims_version(version) {
        return Err(Stop::LeftOut(format!("it does not claim {version}")));
    }
    let one = world.of_version(world.attachment(0)?, version);
    let result = world.add(&one)?;
    Ok((one, result))
}

/// A result of a version that has interfaces, of which there is at least one.
fn with_interfaces(world: &World<'_>) -> Result<(Attachment, Value), Stop> {
    world.only(&[Kind::Main, Kind::Meta])?;
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    match list(&result["interfaces"]).is_empty() {
        true => left_out("the result has no interface"),
        false => Ok((one, result)),
    }
}

fn own_interface_is_listed(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let one = world.attachment(0)?;
    let has = |state: &Value| !state["links"][&one.ifname].is_null();
    let was_there = has(&world.pod_state(&one)?);
    let result = world.add(&one)?;
    if was_there || !has(&world.pod_state(&one)?) {
        return left_out("its ADD makes no interface CNI_IFNAME in the pod");
    }
    let is_listed = list(&result["interfaces"])
        .iter()
        .any(|interface| interface["name"] == one.ifname);
    let filter = answer(&format!("any(.interfaces[]?; .name == \"{}\")", one.ifname));
    ensure!(
        world,
        is_listed,
        filter,
        "the pod has {}, and the result does not: {result}",
        one.ifname
    );
    Ok(())
}

fn interfaces_have_names(world: &World<'_>) -> Result<(), Stop> {
    let (_, result) = with_interfaces(world)?;
    for interface in list(&result["interfaces"]) {
        let has_name = interface["name"]
            .as_str()
            .is_some_and(|name| !name.is_empty());
        let filter = answer("all(.interfaces[]; (.name | type) == \"string\" and .name != \"\")");
        ensure!(world, has_name, filter, "without a name: {interface}");
    }
    Ok(())
}

fn sandbox_is_the_netns(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let (one, result) = with_interfaces(world)?;
    let own = own_interface(&result, &one)?;
    let sandbox = json!(one.netns.to_string_lossy());
    let filter = answer(&format!(
        "any(.interfaces[]; .name == \"{}\" and .sandbox == {sandbox})",
        one.ifname
    ));
    let same = list(&result["interfaces"])
        .iter()
        .any(|other| other["name"] == own["name"] && other["sandbox"] == sandbox);
    ensure!(
        world,
        same,
        filter,
        "no interface {} with sandbox {sandbox}: {result}",
        one.ifname
    );
    Ok(())
}

/// An address with a prefix that its family has.
pub fn whole(text: &str) -> Option<(IpAddr, u8)> {
    let (host, prefix) = text.split_once('/')?;
    let host: IpAddr = host.parse().ok()?;
    let prefix = prefix.parse().ok()?;
    (prefix <= if host.is_ipv4() { 32 } else { 128 }).then_some((host, prefix))
}

fn with_addresses(world: &World<'_>) -> Result<(Attachment, Value), Stop> {
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    match list(&result["ips"]).is_empty() {
        true => left_out("the result has no address"),
        false => Ok((one, result)),
    }
}

fn addresses_have_a_prefix(world: &World<'_>) -> Result<(), Stop> {
    let (_, result) = with_addresses(world)?;
    for address in list(&result["ips"]) {
        let text = address["address"].as_str().unwrap_or_default();
        let filter =
            answer("all(.ips[]; .address | tostring | test(\"^[0-9a-fA-F.:]+/[0-9]{1,3}$\"))");
        ensure!(
            world,
            whole(text).is_some(),
            filter,
            "not an address with a prefix: {address}"
        );
        let gateway = &address["gateway"];
        // An empty text is how libcni writes, and reads, that there is none.
        let is_none = gateway.is_null() || gateway == "";
        let is_gateway = is_none
            || gateway
                .as_str()
                .is_some_and(|text| text.parse::<IpAddr>().is_ok());
        let filter = answer(
            "all(.ips[]; .gateway == null or (.gateway | tostring | test(\"^[0-9a-fA-F.:]*$\")))",
        );
        ensure!(world, is_gateway, filter, "the gateway is {gateway}");
    }
    Ok(())
}

fn indexes_are_in_range(world: &World<'_>) -> Result<(), Stop> {
    let (_, result) = with_addresses(world)?;
    let count = list(&result["interfaces"]).len() as u64;
    let ips = list(&result["ips"]);
    let indexes: Vec<_> = ips
        .iter()
        .filter_map(|address| address.get("interface"))
        .filter(|index| !index.is_null())
        .collect();
    if indexes.is_empty() {
        return left_out("no address of the result has an interface");
    }
    let filter = answer(
        "(.interfaces | length) as $n | all(.ips[].interface; . == null or (type == \"number\" and . == floor and . >= 0 and . < $n))",
    );
    for index in indexes {
        let is_in_range = index.as_u64().is_some_and(|index| index < count);
        ensure!(
            world,
            is_in_range,
            &filter,
            "the index {index} of {count} interfaces"
        );
    }
    Ok(())
}

fn numbers_are_integers(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    let mut numbers = Vec::new();
    for route in list(&result["routes"]) {
        numbers
            .extend(["mtu", "advmss", "priority", "table", "scope"].map(|key| route[key].clone()));
    }
    numbers.extend(
        list(&result["interfaces"])
            .iter()
            .map(|interface| interface["mtu"].clone()),
    );
    numbers.retain(|number| !number.is_null());
    if numbers.is_empty() {
        return left_out("the result has no such number");
    }
    let filter = answer(
        "[.routes[]? | .mtu, .advmss, .priority, .table, .scope] + [.interfaces[]?.mtu] | all(. == null or (type == \"number\" and . == floor and . >= 0))",
    );
    for number in numbers {
        ensure!(world, number.is_u64(), &filter, "{number} in {result}");
    }
    Ok(())
}

/// The interface of the pod. One of the host may have the same name.
fn own_interface(result: &Value, one: &Attachment) -> Result<Value, Stop> {
    let sandbox = json!(one.netns.to_string_lossy());
    let named: Vec<_> = list(&result["interfaces"])
        .into_iter()
        .filter(|interface| interface["name"] == one.ifname)
        .collect();
    let own = named
        .iter()
        .find(|interface| interface["sandbox"] == sandbox)
        .or(named.first());
    own.cloned()
        .ok_or_else(|| Stop::LeftOut("the result has no interface of the pod".to_owned()))
}

fn shown(one: &Attachment, what: &str) -> Result<Value, Stop> {
    let text = one.shown("-json", &format!("{what} show dev {}", one.ifname))?;
    Ok(serde_json::from_str::<Value>(&text).unwrap_or_default()[0].clone())
}

/// In a script: that `key` of the interface in the result is what ip(8) shows as `shown`.
fn same_as_shown(one: &Attachment, key: &str, shown: &str) -> String {
    let (container, name, netns) = (&one.container, &one.ifname, one.netns.display());
    format!(
        "[ \"$(told '[.interfaces[] | select(.name == \"{name}\")] | (map(select(.sandbox == \"{netns}\")) + .)[0].{key}')\" = \"$(ip -json -n {container} link show dev {name} | jq -r '.[0].{shown}')\" ]"
    )
}

fn mac_is_that_of_the_kernel(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let (one, result) = with_interfaces(world)?;
    let told = own_interface(&result, &one)?["mac"].clone();
    if told.is_null() || told == "" {
        return left_out("the result has no MAC");
    }
    let kernel = shown(&one, "link")?["address"].clone();
    ensure!(
        world,
        told == kernel,
        same_as_shown(&one, "mac", "address"),
        "the result has {told}, the interface {kernel}"
    );
    Ok(())
}

fn result_matches_the_pod(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let (one, result) = with_addresses(world)?;
    let interfaces = list(&result["interfaces"]);
    let mut asked = false;
    for address in list(&result["ips"]) {
        let text = address["address"].as_str().unwrap_or_default();
        let at = address["interface"]
            .as_u64()
            .and_then(|at| usize::try_from(at).ok());
        let (Some(whole), Some(interface)) = (whole(text), at.and_then(|at| interfaces.get(at)))
        else {
            continue;
        };
        // What is of another sandbox cannot be seen, and the pod of the host's interfaces is the
        // host.
        if interface["sandbox"] != json!(one.netns.to_string_lossy()) {
            continue;
        }
        asked = true;
        let name = interface["name"].as_str().unwrap_or_default();
        let shown = one.shown("-json", "addr show")?;
        let links: Value = serde_json::from_str(&shown).unwrap_or_default();
        let link = list(&links)
            .into_iter()
            .find(|link| link["ifname"] == name)
            .unwrap_or_default();
        let has = list(&link["addr_info"]).iter().any(|info| {
            let local = info["local"].as_str().and_then(|local| local.parse().ok());
            local.zip(info["prefixlen"].as_u64()) == Some((whole.0, u64::from(whole.1)))
        });
        let shell = format!(
            "ip -n {} addr show dev {name} | grep -qwF \"$(told '.ips[0].address')\"",
            one.container
        );
        ensure!(
            world,
            has,
            shell,
            "{text} is in the result and not on {name} of the pod"
        );
    }
    if asked {
        Ok(())
    } else {
        left_out("no address of the result is of an interface of the pod")
    }
}

fn mtus(world: &World<'_>) -> Result<(Attachment, Value, Value), Stop> {
    world.only(&[Kind::Main])?;
    let (one, result) = added(world, "1.1.0")?;
    let (told, kernel) = (own_interface(&result, &one)?, shown(&one, "link")?);
    Ok((one, told["mtu"].clone(), kernel["mtu"].clone()))
}

fn mtu_is_told(world: &World<'_>) -> Result<(), Stop> {
    let (one, told, kernel) = mtus(world)?;
    let filter = answer(&format!(
        "any(.interfaces[]; .name == \"{}\" and .mtu != null)",
        one.ifname
    ));
    ensure!(
        world,
        !told.is_null(),
        filter,
        "the result has no MTU, the interface {kernel}"
    );
    Ok(())
}

fn told_mtu_is_true(world: &World<'_>) -> Result<(), Stop> {
    let (one, told, kernel) = mtus(world)?;
    // 0 is what a plugin in Go writes for none. That it is a number is asked by another check.
    if !told.is_u64() || told == 0 {
        return left_out("the result has no MTU");
    }
    ensure!(
        world,
        told == kernel,
        same_as_shown(&one, "mtu", "mtu"),
        "the result has {told}, the interface {kernel}"
    );
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
            let filter = answer(&format!(
                "all(.{key}[]?; (keys - (keys - {})) == [])",
                json!(later)
            ));
            ensure!(
                world,
                found.is_none(),
                filter,
                "{key} have {}",
                found.unwrap_or(&"")
            );
        }
    }
    Ok(())
}

fn result_of_0_4_has_families(world: &World<'_>) -> Result<(), Stop> {
    if !world.description().claims_version("0.4.0") {
        return left_out("it does not claim 0.4.0");
    }
    let one = world.of_version(world.attachment(0)?, "0.4.0");
    let result = world.add(&one)?;
    let addresses = list(&result["ips"]);
    if addresses.is_empty() {
        return left_out("its result has no address");
    }
    for address in addresses {
        let family = if address["address"].to_string().contains(':') {
            "6"
        } else {
            "4"
        };
        let filter = answer(
            "all(.ips[]; .version == if (.address | contains(\":\")) then \"6\" else \"4\" end)",
        );
        ensure!(
            world,
            address["version"] == family,
            filter,
            "the version of {address}"
        );
    }
    Ok(())
}

fn result_of_0_2_is_by_family(world: &World<'_>) -> Result<(), Stop> {
    let mut asked = false;
    for (n, version) in ["0.1.0", "0.2.0"].into_iter().enumerate() {
        if world.description().lacks_version(version).is_none() {
            asked = true;
            let one = world.of_version(world.attachment(n)?, version);
            let result = world.add(&one)?;
            let has = result["ip4"]["ip"].is_string() || result["ip6"]["ip"].is_string();
            let filter = answer("[.ip4.ip, .ip6.ip] | any(type == \"string\")");
            ensure!(world, has, filter, "{version}: no address in {result}");
            world.make_room(&one, &result)?;
        }
    }
    let reason = || {
        world
            .description()
            .lacks_version("0.2.0")
            .unwrap_or_default()
    };
    if asked {
        Ok(())
    } else {
        Err(Stop::LeftOut(reason()))
    }
}

fn previous_result_of_another_version(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let Some(previous) = world.previous(&one) else {
        return left_out("it is the first of its chain");
    };
    let old = crate::value::result_of(&previous, "0.4.0");
    let ran = world.ok(&world
        .call("ADD", &one)
        .conf(&with(&one.conf, "prevResult", old)))?;
    let result = world.object(&ran)?;
    let address = &result["ips"][0]["address"];
    let wanted = &previous["ips"][0]["address"];
    ensure!(
        world,
        address == wanted,
        answer(&format!(".ips[0].address == {wanted}")),
        "the address is {address} in {result}"
    );
    Ok(())
}

fn ipam_result_has_no_interface(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Ipam])?;
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    let interfaces = list(&result["interfaces"]);
    ensure!(
        world,
        interfaces.is_empty(),
        answer("(.interfaces // []) == []"),
        "the result has interfaces: {result}"
    );
    let has_none = list(&result["ips"])
        .iter()
        .all(|one| one.get("interface").is_none());
    ensure!(
        world,
        has_none,
        answer("all(.ips[]?; has(\"interface\") | not)"),
        "an address has an index: {result}"
    );
    Ok(())
}

fn ipam_result_has_an_address(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Ipam])?;
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    ensure!(
        world,
        !list(&result["ips"]).is_empty(),
        answer("(.ips | length) > 0"),
        "no address in {result}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_as_long_as_its_family_allows() {
        for text in [
            "10.0.0.1/33",
            "::1/129",
            "10.0.0.1",
            "x/8",
            "10.0.0.1/-1",
            "10.0.0.1/",
        ] {
            assert_eq!(whole(text), None, "{text}");
        }
        assert_eq!(whole("FD00:0::1/128"), whole("fd00::1/128"));
        assert!(whole("10.0.0.1/32").is_some());
    }
}
