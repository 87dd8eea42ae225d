//! ADD.

use serde_json::{Value, json};

use crate::check::{Basis, Check, Harm, extra, must, quality, should, spec};
use crate::description::Kind;
use crate::ensure;
use crate::look::difference;
use crate::replay::answer;
use crate::settings::Stop;
use crate::value::{quoted, with};
use crate::world::{Attachment, World};

/// What a failed ADD leaves.
const OF_FAILURES: &str = "the specification leaves this to the following DEL. If none comes, somebody has to search for the device";

/// A name that is taken.
const NAME_IS_TAKEN: &[Basis] = &[must(
    "1.0.0",
    "add-add-container-to-network-or-apply-modifications",
    "If an interface of the requested name already exists in the container, the CNI plugin MUST return with an error.",
)];

pub const CHECKS: &[Check] = &[
    spec(
        "interface_is_made",
        "after ADD, the pod has an interface CNI_IFNAME that was not there before",
        &[should(
            "1.0.0",
            "add-add-container-to-network-or-apply-modifications",
            "A CNI plugin, upon receiving an `ADD` command, should either … create the interface defined by `CNI_IFNAME` inside the container at `CNI_NETNS`, or",
        )],
        interface_is_made,
    )
    .harm(Harm::Pod),
    spec(
        "interface_has_its_name",
        "an interface that ADD creates in the pod is named exactly CNI_IFNAME, or ADD fails",
        &[
            must(
                "0.3.0",
                "result",
                "If the `CNI_IFNAME` variable exists the plugin must use that name for the sandbox/hypervisor interface or return an error if it cannot.",
            ),
            must(
                "1.0.0",
                "parameters",
                "`CNI_IFNAME`: Name of the interface to create inside the container; if the plugin is unable to use this interface name it must return an error.",
            ),
        ],
        interface_has_its_name,
    )
    .harm(Harm::Misleads),
    spec(
        "taken_name_is_refused",
        "if the pod already has an interface of that name, ADD fails",
        NAME_IS_TAKEN,
        taken_name_is_refused,
    )
    .harm(Harm::Misleads),
    extra(
        "taken_name_changes_nothing",
        "if ADD fails because the name is taken, host and pod are as before, and the host also after DEL",
        OF_FAILURES,
        taken_name_changes_nothing,
    )
    .harm(Harm::Leak),
    spec(
        "second_add_is_refused",
        "a second ADD without a DEL fails, because the interface exists",
        NAME_IS_TAKEN,
        second_add_is_refused,
    )
    .harm(Harm::Misleads),
    extra(
        "second_add_changes_nothing",
        "after a second ADD without a DEL, host and pod are as before, and DEL succeeds",
        OF_FAILURES,
        second_add_changes_nothing,
    )
    .harm(Harm::Leak),
    quality(
        "second_lease_is_refused",
        "a second ADD with the same container and interface gets no second address",
        "a runtime \"should not call `ADD` twice\"; one that lost its state does",
        second_lease_is_refused,
    )
    .harm(Harm::Address),
    spec(
        "previous_result_is_kept",
        "the result contains the interfaces, addresses, routes and DNS of prevResult, with each address on its interface",
        &[
            must(
                "1.0.0",
                "add-add-container-to-network-or-apply-modifications",
                "If the plugin was supplied a `prevResult` as part of its input configuration, it MUST handle `prevResult` by either passing it through, or modifying it appropriately.",
            ),
        ],
        previous_result_is_kept,
    )
    .harm(Harm::Misleads)
    .but("a plugin that takes out on purpose what another one added modifies it \"appropriately\": its description lists this check under `known`"),
    extra(
        "host_is_not_changed",
        "ADD changes no rule of the host, and no link except its device",
        "what does not belong to the attachment belongs to somebody else",
        host_is_not_changed,
    ),
    spec(
        "life_leaves_nothing",
        "after ADD and DEL, the host is as it was before",
        &[
            should(
                "0.4.0",
                "parameters",
                "A delete operation should release all resources held by the supplied containerid in the configured network.",
            ),
            should(
                "1.0.0",
                "del-remove-container-from-network-or-un-apply-modifications",
                "A CNI plugin, upon receiving a `DEL` command, should either … delete the interface defined by `CNI_IFNAME` inside the container at `CNI_NETNS`, or … undo any modifications applied in the plugin's `ADD` functionality",
            ),
        ],
        life_leaves_nothing,
    )
    .harm(Harm::Leak),
    extra(
        "first_life_leaves_nothing",
        "after a host's first ADD and its DEL, the host is as it was before, except for what the description says stays",
        "what is created once and kept belongs to no attachment; the description should name it",
        first_life_leaves_nothing,
    ),
    spec(
        "pod_is_as_before",
        "after ADD and DEL, the pod is as it was before",
        &[
            should(
                "0.4.0",
                "parameters",
                "A delete operation should release all resources held by the supplied containerid in the configured network.",
            ),
            should(
                "1.0.0",
                "del-remove-container-from-network-or-un-apply-modifications",
                "A CNI plugin, upon receiving a `DEL` command, should either … delete the interface defined by `CNI_IFNAME` inside the container at `CNI_NETNS`, or … undo any modifications applied in the plugin's `ADD` functionality",
            ),
        ],
        pod_is_as_before,
    ),
    quality(
        "requested_mac_is_set",
        "runtimeConfig.mac is applied or refused",
        "capabilities are conventions",
        requested_mac_is_set,
    )
    .harm(Harm::Misleads),
    spec(
        "dns_of_configuration_is_returned",
        "if the configuration's dns changes the result's dns at all, the result contains it",
        &[should(
            "1.0.0",
            "plugin-configuration-objects",
            "Plugins that consume any of these configuration keys should respect their intended semantics.",
        )],
        dns_of_configuration_is_returned,
    )
    .harm(Harm::Misleads),
    extra(
        "no_default_route_is_added",
        "no default route is added unless requested",
        "a pod with several networks has one from another network",
        no_default_route_is_added,
    ),
];

/// The names of the interfaces of a pod, by what [`World::pod_state`] returned.
fn names(pod: &Value) -> Vec<String> {
    pod["links"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name.clone())
        .collect()
}

fn interface_is_made(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let one = world.attachment(0)?;
    let before = names(&world.pod_state(&one)?);
    if before.contains(&one.ifname) {
        return Err(Stop::LeftOut(format!(
            "its description makes {} before ADD",
            one.ifname
        )));
    }
    world.add(&one)?;
    let is_made = names(&world.pod_state(&one)?).contains(&one.ifname);
    ensure!(
        world,
        is_made,
        format!("has_link {} {}", one.container, one.ifname),
        "ADD succeeds, and the pod has no {}",
        one.ifname
    );
    Ok(())
}

fn interface_has_its_name(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let mut asked = false;
    for (n, name) in ["eth0", "a", "fifteen-bytes-x"].into_iter().enumerate() {
        let own = world.attachment(n)?;
        let one = Attachment {
            ifname: name.to_owned(),
            ..own
        };
        let before = names(&world.pod_state(&one)?);
        let ran = world.run(&world.call("ADD", &one))?;
        // An error is what a plugin returns that cannot use the name.
        if ran.status != 0 {
            continue;
        }
        let after = names(&world.pod_state(&one)?);
        let new: Vec<_> = after.iter().filter(|name| !before.contains(name)).collect();
        asked |= !new.is_empty();
        let is_named = new.is_empty() || after.iter().any(|other| other == name);
        ensure!(
            world,
            is_named,
            format!("has_link {} {name}", one.container),
            "the pod has no {name}, and {new:?} is new"
        );
        world.make_room(&one, &ran.result().unwrap_or_default())?;
    }
    if asked {
        Ok(())
    } else {
        Err(Stop::LeftOut(
            "its ADD makes no interface in the pod".to_owned(),
        ))
    }
}

/// An ADD where an interface that somebody else made has the name. The plugin itself works here.
fn taken(world: &World<'_>) -> Result<(Attachment, Value, Value), Stop> {
    let (other, result) = made(world, 98)?;
    world.make_room(&other, &result)?;
    let one = world.attachment(0)?;
    world.in_pod(
        &one,
        &format!("link add {} type veth peer name other", one.ifname),
    )?;
    let before = world.baseline()?;
    let pod = world.pod_state(&one)?;
    Ok((one, before, pod))
}

fn taken_name_is_refused(world: &World<'_>) -> Result<(), Stop> {
    let (one, ..) = taken(world)?;
    world
        .fails(&world.call("ADD", &one), "ADD beside an interface net1")
        .map(drop)
}

fn taken_name_changes_nothing(world: &World<'_>) -> Result<(), Stop> {
    let (one, before, pod) = taken(world)?;
    if world.run(&world.call("ADD", &one))?.status == 0 {
        return Err(Stop::LeftOut("that ADD succeeds".to_owned()));
    }
    world.is_as(&before, "after ADD")?;
    world.pod_is_as(&one, &pod, "after ADD")?;
    // Multus sends a DEL for what failed.
    world.run(&world.call("DEL", &one))?;
    world.is_as(&before, "after DEL")
}

/// An attachment whose interface is there.
fn made(world: &World<'_>, n: usize) -> Result<(Attachment, Value), Stop> {
    world.only(&[Kind::Main])?;
    let one = world.attachment(n)?;
    let result = world.add(&one)?;
    match names(&world.pod_state(&one)?).contains(&one.ifname) {
        true => Ok((one, result)),
        false => Err(Stop::LeftOut(
            "its ADD makes no interface CNI_IFNAME in the pod".to_owned(),
        )),
    }
}

fn second_add_is_refused(world: &World<'_>) -> Result<(), Stop> {
    let (one, _) = made(world, 0)?;
    world
        .fails(&world.call("ADD", &one), "the second ADD")
        .map(drop)
}

fn second_add_changes_nothing(world: &World<'_>) -> Result<(), Stop> {
    world.dels()?;
    let (one, result) = made(world, 0)?;
    let (host, pod) = (world.state()?, world.pod_state(&one)?);
    if world.run(&world.call("ADD", &one))?.status == 0 {
        return Err(Stop::LeftOut("the second ADD succeeds".to_owned()));
    }
    world.is_as(&host, "after the second ADD")?;
    world.pod_is_as(&one, &pod, "after the second ADD")?;
    world.del(&one, &result)
}

fn second_lease_is_refused(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Ipam])?;
    world.changes()?;
    let one = world.attachment(0)?;
    let first = world.add(&one)?;
    let before = world.state()?;
    let ran = world.run(&world.call("ADD", &one))?;
    if ran.status == 0 {
        let second = world.object(&ran)?;
        let filter = format!("failed || {}", answer(&format!(".ips == {}", first["ips"])));
        ensure!(
            world,
            second["ips"] == first["ips"],
            filter,
            "it got {} beside {}",
            second["ips"],
            first["ips"]
        );
    }
    world.is_as(&before, "after the second ADD")
}

fn previous_result_is_kept(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let Some(mut previous) = world.previous(&one) else {
        return Err(Stop::LeftOut("it is the first of its chain".to_owned()));
    };
    world.claims_version_1()?;
    // Before the interface of the pod, so that an index that is made anew is seen.
    let at = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let mut interfaces = vec![json!({"name": "conformance0", "mac": "02:00:00:00:00:0a"})];
    interfaces.extend(at(&previous["interfaces"]));
    let ips: Vec<_> = at(&previous["ips"])
        .iter()
        .map(|one| {
            with(
                one,
                "interface",
                json!(one["interface"].as_u64().unwrap_or(0) + 1),
            )
        })
        .collect();
    previous["interfaces"] = json!(interfaces);
    previous["ips"] = json!(ips);
    for (key, value) in [
        ("routes", json!([{"dst": "10.88.0.0/16"}])),
        ("dns", json!({"nameservers": ["10.9.0.53"]})),
    ] {
        if previous[key].is_null() {
            previous[key] = value;
        }
    }
    let ran = world.run(&world.call("ADD", &one).conf(&with(
        &one.conf,
        "prevResult",
        previous.clone(),
    )))?;
    if ran.status != 0 {
        return Err(Stop::LeftOut(format!(
            "its ADD fails behind a plugin with one more interface: {}",
            ran.told()
        )));
    }
    let result = world.object(&ran)?;
    if let Err(why) = is_kept(&previous, &result) {
        // In words of jq, that each interface, address and route is there; the indexes are told in
        // words.
        let names = answer(&format!(
            "[.interfaces[]?.name] as $n | {} | all(. as $x | $n | index($x))",
            json!(names_of(&previous["interfaces"], "name"))
        ));
        let more = [("ips", "address"), ("routes", "dst")].map(|(list, key)| {
            let wanted = json!(names_of(&previous[list], key));
            answer(&format!(
                "[.{list}[]?.{key}] as $n | {wanted} | all(. as $x | $n | index($x))"
            ))
        });
        let places = quoted(&is_kept_in_jq(&previous));
        let shell = format!("{names} && {} && {} && answer {places}", more[0], more[1]);
        ensure!(world, false, shell, "{why}");
    }
    Ok(())
}

fn names_of(list: &Value, key: &str) -> Vec<Value> {
    list.as_array()
        .into_iter()
        .flatten()
        .map(|one| one[key].clone())
        .collect()
}

/// That each address is of the interface of the name that it had, and that the DNS servers are
/// there.
fn is_kept_in_jq(old: &Value) -> String {
    let mut all = vec!["true".to_owned()];
    for address in old["ips"].as_array().into_iter().flatten() {
        let at = address["interface"]
            .as_u64()
            .and_then(|at| usize::try_from(at).ok());
        let name = at
            .map(|at| old["interfaces"][at]["name"].clone())
            .unwrap_or_default();
        all.push(format!(
            "(. as $r | any(.ips[]?; .address == {} and $r.interfaces[.interface // 0].name == {name}))",
            address["address"]
        ));
    }
    for server in old["dns"]["nameservers"].as_array().into_iter().flatten() {
        all.push(format!("(.dns.nameservers | index({server}) != null)"));
    }
    all.join(" and ")
}

/// Has `new` all that `old` has? A plugin may put its own between, so that an index is another
/// number. tuning sets a MAC and says so.
fn is_kept(old: &Value, new: &Value) -> Result<(), String> {
    let list = |result: &Value, key: &str| result[key].as_array().cloned().unwrap_or_default();
    // An interface of the host has no sandbox, or an empty one.
    let id = |one: &Value| {
        ["name", "sandbox"].map(|key| one[key].as_str().unwrap_or_default().to_owned())
    };
    // An address in whatever spelling, and the interface that it is said to be on.
    let place = |result: &Value, one: &Value| {
        let text = one["address"].as_str().unwrap_or_default().to_owned();
        let whole = super::result::whole(&text).ok_or(text);
        let at = one["interface"]
            .as_u64()
            .and_then(|at| usize::try_from(at).ok());
        (
            whole,
            at.and_then(|at| result["interfaces"].get(at)).map(id),
        )
    };
    let has_keys = |new: &Value, old: &Value, but: &[&str]| {
        old.as_object().into_iter().flatten().all(|(key, value)| {
            but.contains(&key.as_str()) || new[key] == *value || (value == "" && new[key].is_null())
        })
    };
    for one in list(old, "interfaces") {
        let is_there =
            |new: &&Value| id(new) == id(&one) && has_keys(new, &one, &["name", "sandbox", "mac"]);
        if !list(new, "interfaces").iter().any(|new| is_there(&new)) {
            return Err(format!("the interface {one} is not in the result {new}"));
        }
    }
    for one in list(old, "ips") {
        let is_there = |other: &Value| {
            place(new, other) == place(old, &one)
                && has_keys(other, &one, &["address", "interface"])
        };
        if !list(new, "ips").iter().any(is_there) {
            let on = place(old, &one).1;
            return Err(format!(
                "the address {one}, of the interface {on:?}, is not so in the result {new}"
            ));
        }
    }
    for one in list(old, "routes") {
        if !list(new, "routes")
            .iter()
            .any(|new| has_keys(new, &one, &[]))
        {
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
    world.add(&one)?;
    let after = world.state()?;
    for (name, link) in before["links"].as_object().into_iter().flatten() {
        if let Some(now) = after["links"].get(name) {
            // A bridge has the MAC of a port.
            let same = ["mtu", "up", "altnames", "kind"]
                .iter()
                .all(|key| link[key] == now[key]);
            let text = difference(link, now).unwrap_or_default();
            ensure!(
                world,
                same,
                world.same_link("host", name, &before),
                "the link {name}: {text}"
            );
        }
        let is_same = !name.starts_with("bystander") || after["links"].get(name) == Some(link);
        ensure!(
            world,
            is_same,
            world.same_link("host", name, &before),
            "the link {name} was changed"
        );
    }
    let is_same = before["rules"] == after["rules"];
    ensure!(
        world,
        is_same,
        world.same_part("rules", &before),
        "the rules of the host were changed"
    );
    Ok(())
}

fn life_leaves_nothing(world: &World<'_>) -> Result<(), Stop> {
    world.changes()?;
    let one = world.attachment(0)?;
    let before = world.baseline()?;
    let result = world.add(&one)?;
    world.deleted(&one, &result)?;
    world.is_as(&before, "after ADD and DEL")
}

/// Without the baseline, which has what a first ADD makes.
fn first_life_leaves_nothing(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let before = world.state()?;
    let result = world.add(&one)?;
    world.deleted(&one, &result)?;
    world.is_as(&before, "after the first ADD and DEL of all")
}

fn pod_is_as_before(world: &World<'_>) -> Result<(), Stop> {
    world.changes()?;
    world.only(&[Kind::Main, Kind::Meta])?;
    let one = world.attachment(0)?;
    let before = world.pod_state(&one)?;
    let result = world.add(&one)?;
    world.deleted(&one, &result)?;
    world.pod_is_as(&one, &before, "after ADD and DEL")
}

fn requested_mac_is_set(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    if world.description().kind == Kind::Ipam || one.conf["capabilities"]["mac"] != json!(true) {
        return Err(Stop::LeftOut(
            "its configuration does not have the capability mac".to_owned(),
        ));
    }
    let mac = "02:00:00:00:00:77";
    let ran = world.run(&world.call("ADD", &one).conf(&with(
        &one.conf,
        "runtimeConfig",
        json!({"mac": mac}),
    )))?;
    if ran.status != 0 {
        return Ok(());
    }
    let shown = one.shown("", &format!("link show {}", one.ifname))?;
    let shell = format!(
        "ip -n {} link show {} | grep -q {mac}",
        one.container, one.ifname
    );
    ensure!(
        world,
        shown.contains(mac),
        shell,
        "the interface has another MAC: {shown}"
    );
    Ok(())
}

/// A plugin that does not consume the key has the same result with it and without.
fn dns_of_configuration_is_returned(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    let without = result["dns"].clone();
    world.make_room(&one, &result)?;
    let dns = json!({"nameservers": ["10.9.0.53"], "search": ["example.net"]});
    let ran = world.run(
        &world
            .call("ADD", &one)
            .conf(&with(&one.conf, "dns", dns.clone())),
    )?;
    if ran.status != 0 {
        return Err(Stop::LeftOut(format!(
            "its ADD fails with dns: {}",
            ran.told()
        )));
    }
    let result = world.object(&ran)?;
    let is_same = |one: &Value, other: &Value| {
        let is_empty = |dns: &Value| dns.as_object().is_none_or(serde_json::Map::is_empty);
        one == other || is_empty(one) && is_empty(other)
    };
    if is_same(&result["dns"], &without) {
        return Err(Stop::LeftOut("it does not consume dns".to_owned()));
    }
    for key in ["nameservers", "search"] {
        let told = result["dns"][key].as_array().cloned().unwrap_or_default();
        let is_there = dns[key]
            .as_array()
            .into_iter()
            .flatten()
            .all(|one| told.contains(one));
        ensure!(
            world,
            is_there,
            answer(&format!("({} - (.dns.{key} // [])) == []", dns[key])),
            "dns of the result is {}",
            result["dns"]
        );
    }
    Ok(())
}

fn no_default_route_is_added(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let one = world.attachment(0)?;
    let description = world.description();
    let texts = [&one.conf]
        .into_iter()
        .chain(description.files.values())
        .map(Value::to_string);
    let asked = texts.filter(|text| {
        ["\"0.0.0.0/0\"", "\"::/0\"", "\"isDefaultGateway\":true"]
            .iter()
            .any(|wish| text.contains(wish))
    });
    if asked.count() > 0 {
        return Err(Stop::LeftOut(
            "its configuration asks for a default route".to_owned(),
        ));
    }
    world.add(&one)?;
    for family in ["-4", "-6"] {
        let routes = one.shown(family, "route show table all default proto static")?;
        let boot = one.shown(family, "route show table all default proto boot")?;
        let text = format!("{routes}{boot}");
        let see = |proto: &str| {
            format!(
                "$(ip {family} -n {} route show table all default proto {proto})",
                one.container
            )
        };
        let shell = format!("[ -z \"{}{}\" ]", see("static"), see("boot"));
        ensure!(world, text.trim().is_empty(), shell, "the pod has {text}");
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
            assert!(
                is_kept(&old, &changed).unwrap_err().contains(wrong),
                "{pointer}"
            );
        }
    }
}
