//! docs/cni-contract.md, items 45 to 59: ADD.

use serde_json::{Value, json};

use super::{Check, Must, Quality, Should, check};
use crate::description::Kind;
use crate::ensure;
use crate::world::{Attachment, Stop, World, difference, with};

pub const CHECKS: &[Check] = &[
    check(
        "interface_has_its_name",
        &[45],
        Must,
        "after ADD the pod has an interface with exactly the name CNI_IFNAME",
        interface_has_its_name,
    ),
    check(
        "taken_name_is_refused",
        &[46],
        Must,
        "if the pod has an interface of that name, ADD fails and does not change it",
        taken_name_is_refused,
    ),
    check(
        "taken_name_changes_nothing",
        &[46, 50],
        Quality,
        "after an ADD that a taken name refused, host and pod are as before, and the host also after DEL",
        taken_name_changes_nothing,
    ),
    check(
        "second_add_is_refused",
        &[47],
        Must,
        "a second ADD without a DEL fails and does not change the first attachment",
        second_add_is_refused,
    ),
    check(
        "second_add_changes_nothing",
        &[47, 50],
        Quality,
        "after a second ADD without a DEL, host and pod are as before, and DEL succeeds",
        second_add_changes_nothing,
    ),
    check(
        "second_lease_is_refused",
        &[120],
        Quality,
        "a second ADD with the same container and interface gets no second address",
        second_lease_is_refused,
    ),
    check(
        "previous_result_is_kept",
        &[48],
        Must,
        "the result has the interfaces, addresses, routes and DNS of prevResult, and each address its interface",
        previous_result_is_kept,
    ),
    check(
        "host_is_not_changed",
        &[49],
        Quality,
        "ADD changes no link of the host but its device, and no rule",
        host_is_not_changed,
    ),
    check(
        "life_leaves_nothing",
        &[49, 85],
        Should,
        "after ADD and DEL the host is as before the ADD",
        life_leaves_nothing,
    ),
    check(
        "first_life_leaves_nothing",
        &[49, 85],
        Should,
        "after the first ADD of a host and its DEL the host is as before, but for what the description says that stays",
        first_life_leaves_nothing,
    ),
    check(
        "pod_is_as_before",
        &[75, 85],
        Should,
        "after ADD and DEL the pod is as before the ADD",
        pod_is_as_before,
    ),
    check(
        "requested_mac_is_set",
        &[55, 64],
        Quality,
        "runtimeConfig.mac is applied or refused",
        requested_mac_is_set,
    ),
    check(
        "dns_of_configuration_is_returned",
        &[57],
        Should,
        "dns of the configuration is in the result",
        dns_of_configuration_is_returned,
    ),
    check(
        "no_default_route_is_added",
        &[59],
        Quality,
        "there is no default route unless somebody asked for it",
        no_default_route_is_added,
    ),
];

fn interface_has_its_name(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    for (n, name) in ["eth0", "a", "fifteen-bytes-x"].into_iter().enumerate() {
        let own = world.attachment(n)?;
        let one = Attachment { ifname: name.to_owned(), ..own };
        let result = world.add(&one)?;
        let links = one.shown("-json", "link show")?;
        ensure!(links.contains(&format!("\"ifname\":\"{name}\"")), "the pod has no {name}: {links}");
        ensure!(result["interfaces"].to_string().contains(name), "the result has no {name}: {result}");
        world.del(&one, &result)?;
    }
    Ok(())
}

/// An ADD where an interface that somebody else made has the name. The plugin itself works here.
fn taken(world: &World<'_>) -> Result<(Attachment, Value, Value), Stop> {
    world.only(&[Kind::Main])?;
    let one = world.attachment(0)?;
    world.in_pod(&one, "link add net1 type veth peer name other")?;
    let before = world.baseline()?;
    let pod = world.pod_state(&one)?;
    world.fails(&world.call("ADD", &one), "ADD beside an interface net1")?;
    Ok((one, before, pod))
}

/// Fails if the interface of the pod is not as it was. Whatever else is in the pod is not looked at.
fn interface_is_as(world: &World<'_>, one: &Attachment, pod: &Value) -> Result<(), Stop> {
    let of = |pod: &Value| pod["links"][&one.ifname].clone();
    match difference(&of(pod), &of(&world.pod_state(one)?)) {
        None => Ok(()),
        Some(text) => Err(Stop::Fails(format!("after ADD, {} {text}", one.ifname))),
    }
}

fn taken_name_is_refused(world: &World<'_>) -> Result<(), Stop> {
    let (one, _, pod) = taken(world)?;
    interface_is_as(world, &one, &pod)
}

fn taken_name_changes_nothing(world: &World<'_>) -> Result<(), Stop> {
    let (one, before, pod) = taken(world)?;
    world.is_as(&before, "after ADD")?;
    world.pod_is_as(&one, &pod, "after ADD")?;
    // Multus sends a DEL for what failed.
    world.run(&world.call("DEL", &one))?;
    world.is_as(&before, "after DEL")
}

fn second_add_is_refused(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let one = world.attachment(0)?;
    world.add(&one)?;
    let pod = world.pod_state(&one)?;
    world.fails(&world.call("ADD", &one), "the second ADD")?;
    interface_is_as(world, &one, &pod)
}

fn second_add_changes_nothing(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    let (host, pod) = (world.state()?, world.pod_state(&one)?);
    world.run(&world.call("ADD", &one))?;
    world.is_as(&host, "after the second ADD")?;
    world.pod_is_as(&one, &pod, "after the second ADD")?;
    world.del(&one, &result)
}

fn second_lease_is_refused(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Ipam])?;
    let one = world.attachment(0)?;
    let first = world.add(&one)?;
    let before = world.state()?;
    let ran = world.run(&world.call("ADD", &one))?;
    if ran.status == 0 {
        let second = ran.result().map_err(Stop::Fails)?;
        ensure!(second["ips"] == first["ips"], "it got {} beside {}", second["ips"], first["ips"]);
    }
    world.is_as(&before, "after the second ADD")
}

fn previous_result_is_kept(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let Some(mut previous) = world.previous(&one) else {
        return Err(Stop::LeftOut("it is the first of its chain".to_owned()));
    };
    if !world.description().newest().starts_with('1') {
        return Err(Stop::LeftOut("it claims no version 1".to_owned()));
    }
    // Before the interface of the pod, so that an index that is made anew is seen.
    let at = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let mut interfaces = vec![json!({"name": "conformance0", "mac": "02:00:00:00:00:0a"})];
    interfaces.extend(at(&previous["interfaces"]));
    let ips: Vec<_> = at(&previous["ips"])
        .iter()
        .map(|one| with(one, "interface", json!(one["interface"].as_u64().unwrap_or(0) + 1)))
        .collect();
    previous["interfaces"] = json!(interfaces);
    previous["ips"] = json!(ips);
    for (key, value) in
        [("routes", json!([{"dst": "10.88.0.0/16"}])), ("dns", json!({"nameservers": ["10.9.0.53"]}))]
    {
        if previous[key].is_null() {
            previous[key] = value;
        }
    }
    let result = world.ok(&world.call("ADD", &one).conf(&with(&one.conf, "prevResult", previous.clone())))?;
    let result = result.result().map_err(Stop::Fails)?;
    is_kept(&previous, &result).map_err(Stop::Fails)
}

/// Has `new` all that `old` has? A plugin may put its own between, so that an index is another number. tuning sets a MAC and
/// says so.
fn is_kept(old: &Value, new: &Value) -> Result<(), String> {
    let list = |result: &Value, key: &str| result[key].as_array().cloned().unwrap_or_default();
    // An interface of the host has no sandbox, or an empty one.
    let id = |one: &Value| ["name", "sandbox"].map(|key| one[key].as_str().unwrap_or_default().to_owned());
    // An address in whatever spelling, and the interface that it is said to be on.
    let place = |result: &Value, one: &Value| {
        let text = one["address"].as_str().unwrap_or_default().to_owned();
        let whole = super::result::whole(&text).ok_or(text);
        let at = one["interface"].as_u64().and_then(|at| usize::try_from(at).ok());
        (whole, at.and_then(|at| result["interfaces"].get(at)).map(id))
    };
    let has_keys = |new: &Value, old: &Value, but: &[&str]| {
        old.as_object().into_iter().flatten().all(|(key, value)| {
            but.contains(&key.as_str()) || new[key] == *value || (value == "" && new[key].is_null())
        })
    };
    for one in list(old, "interfaces") {
        let is_there = |new: &&Value| id(new) == id(&one) && has_keys(new, &one, &["name", "sandbox", "mac"]);
        if !list(new, "interfaces").iter().any(|new| is_there(&new)) {
            return Err(format!("the interface {one} is not in the result {new}"));
        }
    }
    for one in list(old, "ips") {
        let is_there = |other: &Value| {
            place(new, other) == place(old, &one) && has_keys(other, &one, &["address", "interface"])
        };
        if !list(new, "ips").iter().any(is_there) {
            let on = place(old, &one).1;
            return Err(format!("the address {one}, of the interface {on:?}, is not so in the result {new}"));
        }
    }
    for one in list(old, "routes") {
        if !list(new, "routes").iter().any(|new| has_keys(new, &one, &[])) {
            return Err(format!("the route {one} is not in the result {new}"));
        }
    }
    for (key, value) in old["dns"].as_object().into_iter().flatten() {
        let is_there = match value {
            Value::Array(all) => all.iter().all(|one| list(&new["dns"], key).contains(one)),
            _ => new["dns"][key] == *value,
        };
        if !is_there {
            return Err(format!("dns.{key} is {}, and was {value}", new["dns"][key]));
        }
    }
    Ok(())
}

fn host_is_not_changed(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let bystanders = world.host("link add bystander type veth peer name bystander1");
    bystanders.and_then(|_| world.host("addr add 10.200.0.1/24 dev bystander"))?;
    let before = world.baseline()?;
    let result = world.add(&one)?;
    let after = world.state()?;
    for (name, link) in before["links"].as_object().into_iter().flatten() {
        if let Some(now) = after["links"].get(name) {
            // A bridge has the MAC of a port.
            let same = ["mtu", "up", "altnames", "kind"].iter().all(|key| link[key] == now[key]);
            ensure!(same, "the link {name}: {}", difference(link, now).unwrap_or_default());
        }
        ensure!(
            !name.starts_with("bystander") || after["links"].get(name) == Some(link),
            "the link {name} was changed"
        );
    }
    ensure!(before["rules"] == after["rules"], "the rules of the host were changed");
    world.del(&one, &result)
}

fn life_leaves_nothing(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let before = world.baseline()?;
    let result = world.add(&one)?;
    world.del(&one, &result)?;
    world.is_as(&before, "after ADD and DEL")
}

/// Without the baseline, which has what a first ADD makes.
fn first_life_leaves_nothing(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let before = world.state()?;
    let result = world.add(&one)?;
    world.del(&one, &result)?;
    world.is_as(&before, "after the first ADD and DEL of all")
}

fn pod_is_as_before(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let before = world.pod_state(&one)?;
    let result = world.add(&one)?;
    world.del(&one, &result)?;
    world.pod_is_as(&one, &before, "after ADD and DEL")
}

fn requested_mac_is_set(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    if world.description().kind == Kind::Ipam || one.conf["capabilities"]["mac"] != json!(true) {
        return Err(Stop::LeftOut("its configuration does not have the capability mac".to_owned()));
    }
    let mac = "02:00:00:00:00:77";
    let ran =
        world.run(&world.call("ADD", &one).conf(&with(&one.conf, "runtimeConfig", json!({"mac": mac}))))?;
    if ran.status != 0 {
        return Ok(());
    }
    let shown = one.shown("", &format!("link show {}", one.ifname))?;
    ensure!(shown.contains(mac), "the interface has another MAC: {shown}");
    let result = ran.result().map_err(Stop::Fails)?;
    ensure!(result["interfaces"].to_string().contains(mac), "the result has another MAC: {result}");
    Ok(())
}

fn dns_of_configuration_is_returned(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let one = world.attachment(0)?;
    let dns = json!({"nameservers": ["10.9.0.53"], "search": ["example.net"]});
    let ran = world.run(&world.call("ADD", &one).conf(&with(&one.conf, "dns", dns.clone())))?;
    ensure!(ran.status == 0, "ADD with dns: {}", ran.told());
    let result = ran.result().map_err(Stop::Fails)?;
    ensure!(result["dns"] == dns, "dns of the result is {}", result["dns"]);
    Ok(())
}

fn no_default_route_is_added(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let one = world.attachment(0)?;
    let description = world.description();
    let texts = [&one.conf].into_iter().chain(description.files.values()).map(Value::to_string);
    let asked = texts.filter(|text| {
        ["\"0.0.0.0/0\"", "\"::/0\"", "\"isDefaultGateway\":true"].iter().any(|wish| text.contains(wish))
    });
    if asked.count() > 0 {
        return Err(Stop::LeftOut("its configuration asks for a default route".to_owned()));
    }
    world.add(&one)?;
    for family in ["-4", "-6"] {
        let routes = one.shown(family, "route show table all default proto static")?;
        let boot = one.shown(family, "route show table all default proto boot")?;
        let text = format!("{routes}{boot}");
        ensure!(text.trim().is_empty(), "the pod has {text}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_previous_result_may_be_kept_in_another_order() {
        let old = json!({
            "interfaces": [{"name": "host0", "mac": "a"}, {"name": "eth0", "mac": "b", "sandbox": "/n"}],
            "ips": [{"address": "fd00::2/64", "gateway": "fd00::1", "interface": 1}],
            "routes": [{"dst": "10.8.0.0/16"}], "dns": {"nameservers": ["10.9.0.53"]},
        });
        let new = json!({
            "interfaces": [
                {"name": "own"}, {"name": "eth0", "mac": "c", "sandbox": "/n", "mtu": 9}, {"name": "host0", "sandbox": ""},
            ],
            "ips": [{"address": "10.0.0.1/8"}, {"address": "FD00:0::2/64", "gateway": "fd00::1", "interface": 1}],
            "routes": [{"dst": "10.7.0.0/16"}, {"dst": "10.8.0.0/16", "mtu": 9}],
            "dns": {"nameservers": ["10.9.0.1", "10.9.0.53"], "domain": "x"},
        });
        assert_eq!(is_kept(&old, &new), Ok(()));
        for (wrong, pointer, value) in [
            ("interface", "/interfaces/1/sandbox", json!("/m")),
            ("interface", "/interfaces/2/name", json!("host1")),
            ("address", "/ips/1/interface", json!(2)),
            ("address", "/ips/1/address", json!("fd00::2/65")),
            ("address", "/ips/1/gateway", json!("fd00::3")),
            ("route", "/routes/1/dst", json!("10.9.0.0/16")),
            ("dns", "/dns/nameservers", json!(["10.9.0.1"])),
        ] {
            let mut changed = new.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            assert!(is_kept(&old, &changed).unwrap_err().contains(wrong), "{pointer}");
        }
    }
}
