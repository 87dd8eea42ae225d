//! docs/cni-contract.md, items 73 to 85: DEL in every state.

use serde_json::{Value, json};

use super::{Check, Must, Quality, Should, check};
use crate::description::Kind;
use crate::ensure;
use crate::world::{Attachment, Stop, World, difference, with};

pub const CHECKS: &[Check] = &[
    check(
        "del_without_netns",
        &[73],
        Must,
        "DEL without CNI_NETNS succeeds, and with an empty one",
        del_without_netns,
    ),
    check(
        "del_without_netns_releases",
        &[73],
        Should,
        "DEL without CNI_NETNS releases what is on file",
        del_without_netns_releases,
    ),
    check(
        "del_after_netns_is_gone",
        &[74],
        Must,
        "DEL succeeds when the namespace is gone",
        del_after_netns_is_gone,
    ),
    check(
        "del_after_netns_is_gone_releases",
        &[74],
        Should,
        "DEL releases what is on file when the namespace is gone",
        del_after_netns_is_gone_releases,
    ),
    check(
        "del_of_no_netns",
        &[74],
        Quality,
        "DEL succeeds when CNI_NETNS is a file that is no namespace",
        del_of_no_netns,
    ),
    check(
        "del_after_interface_is_gone",
        &[75, 84],
        Must,
        "DEL succeeds when the interface is gone",
        del_after_interface_is_gone,
    ),
    check(
        "del_after_interface_is_gone_releases",
        &[75, 84],
        Should,
        "DEL releases what is on file when the interface is gone",
        del_after_interface_is_gone_releases,
    ),
    check(
        "del_after_device_is_gone",
        &[75, 78],
        Must,
        "DEL succeeds when the device was unplugged",
        del_after_device_is_gone,
    ),
    check(
        "del_after_device_is_gone_releases",
        &[75, 78],
        Should,
        "DEL releases what is on file when the device was unplugged",
        del_after_device_is_gone_releases,
    ),
    check("del_before_add", &[75, 76], Must, "DEL of what was never added succeeds", del_before_add),
    check("del_twice", &[76, 105], Must, "each further DEL succeeds", del_twice),
    check(
        "del_twice_after_netns_is_gone",
        &[74, 76],
        Must,
        "a further DEL succeeds when the namespace is gone",
        del_twice_after_netns_is_gone,
    ),
    check(
        "del_needs_no_previous_result",
        &[77],
        Should,
        "DEL succeeds without prevResult, and with one that is null",
        del_needs_no_previous_result,
    ),
    check(
        "del_without_previous_result_releases",
        &[77],
        Quality,
        "DEL without prevResult, and with one that is null, leaves the host as before the ADD",
        del_without_previous_result_releases,
    ),
    check(
        "del_takes_any_previous_result",
        &[71, 77],
        Quality,
        "DEL succeeds with a prevResult that is empty, of another version, or that nobody can read",
        del_takes_any_previous_result,
    ),
    check(
        "del_needs_no_arguments",
        &[79],
        Quality,
        "DEL succeeds without the CNI_ARGS and the runtimeConfig of ADD",
        del_needs_no_arguments,
    ),
    check(
        "del_errors_are_no_success",
        &[82],
        Quality,
        "no error of DEL contains `not found` or `no such file or directory`, which go-cni takes for success",
        del_errors_are_no_success,
    ),
    check(
        "del_keeps_other_attachments",
        &[85],
        Must,
        "DEL touches neither other interfaces of the pod nor the same interface of another pod",
        del_keeps_other_attachments,
    )
    .with_attachments(3),
    check(
        "del_of_another_container_takes_nothing",
        &[75, 85],
        Must,
        "DEL for a container that was never added does not release what another has",
        del_of_another_container_takes_nothing,
    ),
    check(
        "add_after_del_is_as_the_first",
        &[76, 118],
        Must,
        "an attachment can be added again after its DEL",
        add_after_del_is_as_the_first,
    ),
];

/// An attachment, the result of its ADD, and what there was before.
type Begun = (Attachment, Value, Value);

fn begun(world: &World<'_>) -> Result<Begun, Stop> {
    let one = world.attachment(0)?;
    let before = world.baseline()?;
    let result = world.add(&one)?;
    Ok((one, result, before))
}

/// Fails if files are left, or are missing.
fn files_are_as(world: &World<'_>, before: &Value, when: &str) -> Result<(), Stop> {
    match difference(&before["files"], &world.state()?["files"]) {
        None => Ok(()),
        Some(text) => Err(Stop::Fails(format!("{when}: {text}"))),
    }
}

fn del_without_netns(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, _) = begun(world)?;
    let call = world.del_call(&one, &result);
    world.ok(&call.clone().without("CNI_NETNS"))?;
    world.ok(&call.var("CNI_NETNS", "")).map(drop)
}

fn del_without_netns_releases(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, before) = begun(world)?;
    world.run(&world.del_call(&one, &result).without("CNI_NETNS"))?;
    files_are_as(world, &before, "after DEL without CNI_NETNS")
}

fn del_after_netns_is_gone(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, _) = begun(world)?;
    world.delete_netns(&one)?;
    world.del(&one, &result)
}

fn del_after_netns_is_gone_releases(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, before) = begun(world)?;
    world.delete_netns(&one)?;
    world.run(&world.del_call(&one, &result))?;
    files_are_as(world, &before, "after DEL")
}

fn del_twice_after_netns_is_gone(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, _) = begun(world)?;
    world.delete_netns(&one)?;
    for _ in 0..2 {
        world.del(&one, &result)?;
    }
    Ok(())
}

/// What a runtime's mount leaves when it is undone half-way, as after a reboot.
fn del_of_no_netns(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, _) = begun(world)?;
    world.delete_netns(&one)?;
    world.write(&one.netns, "")?;
    world.del(&one, &result)?;
    ensure!(one.netns.is_file(), "the file is gone, or is another one");
    Ok(())
}

fn del_after_interface_is_gone(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, _) = without_interface(world)?;
    world.del(&one, &result)
}

fn del_after_interface_is_gone_releases(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, before) = without_interface(world)?;
    world.run(&world.del_call(&one, &result))?;
    files_are_as(world, &before, "after DEL")
}

fn without_interface(world: &World<'_>) -> Result<Begun, Stop> {
    world.only(&[Kind::Main, Kind::Meta])?;
    let begun = begun(world)?;
    world.in_pod(&begun.0, &format!("link del {}", begun.0.ifname))?;
    Ok(begun)
}

fn del_after_device_is_gone(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, _) = without_device(world)?;
    world.del(&one, &result)
}

fn del_after_device_is_gone_releases(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, before) = without_device(world)?;
    world.run(&world.del_call(&one, &result))?;
    files_are_as(world, &before, "after DEL")
}

fn without_device(world: &World<'_>) -> Result<Begun, Stop> {
    let Some(unplug) = world.description().unplug.clone() else {
        return Err(Stop::LeftOut("its device cannot be unplugged here".to_owned()));
    };
    let begun = begun(world)?;
    world.host(&begun.0.filled(&unplug))?;
    Ok(begun)
}

fn del_before_add(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let before = world.state()?;
    world.ok(&world.call("DEL", &one))?;
    world.is_as(&before, "after DEL")
}

fn del_twice(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, _) = begun(world)?;
    for _ in 0..3 {
        world.del(&one, &result)?;
    }
    Ok(())
}

fn without_previous(conf: &Value) -> Value {
    let mut conf = conf.clone();
    if let Some(map) = conf.as_object_mut() {
        map.remove("prevResult");
    }
    conf
}

/// DEL with each of these: it succeeds, and releases if `releases` says so.
fn del_with(world: &World<'_>, previous: &[Option<Value>], releases: bool) -> Result<(), Stop> {
    let mut one = world.working()?;
    for previous in previous {
        let before = world.state()?;
        let result = world.add(&one)?;
        let mut conf = without_previous(&one.conf);
        if let Some(previous) = previous {
            conf["prevResult"] = previous.clone();
        }
        let ran = world.run(&world.call("DEL", &one).conf(&conf))?;
        let what = previous.as_ref().map_or("none".to_owned(), Value::to_string);
        ensure!(ran.status == 0, "DEL with prevResult {what}: {}", ran.told());
        if releases {
            world.is_as(&before, &format!("after DEL with prevResult {what}"))?;
        } else {
            world.make_room(&one, &result)?;
        }
        one = world.renewed(one)?;
    }
    Ok(())
}

fn del_needs_no_previous_result(world: &World<'_>) -> Result<(), Stop> {
    del_with(world, &[None, Some(json!(null))], false)
}

fn del_without_previous_result_releases(world: &World<'_>) -> Result<(), Stop> {
    del_with(world, &[None, Some(json!(null))], true)
}

fn del_takes_any_previous_result(world: &World<'_>) -> Result<(), Stop> {
    let old = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.9.0.2/24"}});
    let previous = [json!({}), old, json!({"cniVersion": "9.9.9"}), json!(["x"])].map(Some);
    del_with(world, &previous, true)
}

fn del_needs_no_arguments(world: &World<'_>) -> Result<(), Stop> {
    let mut one = world.attachment(0)?;
    let before = world.baseline()?;
    if one.conf["runtimeConfig"].is_null() && one.conf["capabilities"]["mac"] == json!(true) {
        one.conf["runtimeConfig"] = json!({"mac": "02:00:00:00:00:77"});
    }
    world.add(&one)?;
    let mut conf = one.conf.clone();
    if let Some(map) = conf.as_object_mut() {
        map.remove("runtimeConfig");
    }
    world.ok(&world.call("DEL", &one).conf(&conf).without("CNI_ARGS"))?;
    world.is_as(&before, "after DEL")
}

fn del_errors_are_no_success(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let gone = Attachment { netns: "/run/netns/gone".into(), ..one.clone() };
    let calls = [
        world.call("DEL", &one),
        world.call("DEL", &gone),
        world.call("DEL", &one).without("CNI_NETNS"),
        world.call("DEL", &one).var("CNI_IFNAME", "net9"),
        world.call("DEL", &one).conf(&with(&one.conf, "ipam", json!({"type": "absent"}))),
    ];
    for call in calls {
        let ran = world.run(&call)?;
        let text = ran.stdout.to_lowercase();
        let is_misread = text.contains("not found") || text.contains("no such file or directory");
        ensure!(ran.status == 0 || !is_misread, "{}", ran.told());
    }
    Ok(())
}

fn del_keeps_other_attachments(world: &World<'_>) -> Result<(), Stop> {
    let first = world.attachment(0)?;
    // The two interfaces of a pod have one network here, and the routes of the first may be in the way of the second.
    let second = world.attachment_in(1, "c0", "net2")?;
    let third = world.attachment(2)?;
    let result = world.add(&first)?;
    let of_first = world.state()?;
    let added = world.run(&world.call("ADD", &second))?;
    if added.status != 0 {
        let told = added.told();
        return Err(Stop::LeftOut(format!("its ADD fails for a second interface of the pod: {told}")));
    }
    world.add(&third)?;
    let of_all = world.state()?;
    let pod = world.pod_state(&third)?;
    let of_second = |state: &Value| state["links"]["net2"].clone();
    let link = of_second(&world.pod_state(&second)?);
    world.del(&first, &result)?;
    world.pod_is_as(&third, &pod, "after DEL of another pod's interface")?;
    if let Some(text) = difference(&link, &of_second(&world.pod_state(&second)?)) {
        return Err(Stop::Fails(format!("net2 of the same pod {text}")));
    }
    let now = world.state()?;
    for (path, _) in of_all["files"].as_object().into_iter().flatten() {
        let is_of_others = of_first["files"].get(path).is_none();
        ensure!(!is_of_others || now["files"].get(path).is_some(), "{path} of another attachment is gone");
    }
    Ok(())
}

fn del_of_another_container_takes_nothing(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    world.add(&one)?;
    let (host, pod) = (world.state()?, world.pod_state(&one)?);
    // A pod that was never added has no namespace any more, or the runtime does not say which.
    // Nor is there a result of it: that of `one` has what `one` has.
    let conf = without_previous(&one.conf);
    let other = world.call("DEL", &one).conf(&conf).var("CNI_CONTAINERID", "other");
    world.run(&other.clone().var("CNI_NETNS", ""))?;
    world.run(&other.var("CNI_NETNS", "/run/netns/gone"))?;
    world.is_as(&host, "after DEL of another container")?;
    world.pod_is_as(&one, &pod, "after DEL of another container")
}

fn add_after_del_is_as_the_first(world: &World<'_>) -> Result<(), Stop> {
    let mut one = world.attachment(0)?;
    for round in 0..3 {
        let ran = world.run(&world.call("ADD", &one))?;
        ensure!(ran.status == 0, "ADD number {}: {}", round + 1, ran.told());
        world.del(&one, &ran.result().map_err(Stop::Fails)?)?;
        one = world.renewed(one)?;
    }
    Ok(())
}
