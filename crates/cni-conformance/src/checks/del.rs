//! DEL in every state.

use serde_json::{Value, json};

use crate::call::Call;
use crate::check::{Basis, Check, Harm, ends, extra, must, quality, should, spec};
use crate::description::Kind;
use crate::ensure;
use crate::look::difference;
use crate::settings::Stop;
use crate::value::with;
use crate::world::{Attachment, World};

/// The heading of the specification.
const DEL: &str = "del-remove-container-from-network-or-un-apply-modifications";

/// What is missing is no error.
const MISSING: &[Basis] = &[
    should(
        "0.3.1",
        "parameters",
        "Plugins should generally complete a DEL action without error even if some resources are missing.",
    ),
    should(
        "0.4.0",
        "parameters",
        "Plugins should generally complete a `DEL` action without error even if some resources are missing.",
    ),
    must(
        "1.0.0",
        DEL,
        "Plugins MUST accept multiple `DEL` calls for the same (`CNI_CONTAINERID`, `CNI_IFNAME`) pair, and return success if the interface in question, or any modifications added, are missing.",
    ),
];

/// Where nothing is missing, all the more.
const COMPLETES: &[Basis] = &[
    should(
        "0.3.1",
        "parameters",
        "Plugins should generally complete a DEL action without error even if some resources are missing.",
    ),
    should(
        "0.4.0",
        "parameters",
        "Plugins should generally complete a `DEL` action without error even if some resources are missing.",
    ),
    should(
        "1.0.0",
        DEL,
        "Plugins should generally complete a `DEL` action without error even if some resources are missing.",
    ),
];

/// An address is released whatever became of the namespace.
const RELEASES: &[Basis] = &[
    should(
        "0.3.1",
        "parameters",
        "an IPAM plugin should generally release an IP allocation and return success even if the container network namespace no longer exists",
    ),
    should(
        "0.4.0",
        "parameters",
        "an IPAM plugin should generally release an IP allocation and return success even if the container network namespace no longer exists",
    ),
    should(
        "1.0.0",
        DEL,
        "an IPAM plugin should generally release an IP allocation and return success even if the container network namespace no longer exists",
    ),
];

/// What is there is taken away.
const DELETES: &[Basis] = &[
    should(
        "0.3.1",
        "parameters",
        "the `bridge` plugin should delegate the DEL action to the IPAM plugin and clean up its own resources (if present) even if the container network namespace and/or container network interface no longer exist.",
    ),
    should(
        "0.4.0",
        "parameters",
        "A delete operation should release all resources held by the supplied containerid in the configured network.",
    ),
    should(
        "1.0.0",
        DEL,
        "A CNI plugin, upon receiving a `DEL` command, should either … delete the interface defined by `CNI_IFNAME` inside the container at `CNI_NETNS`, or … undo any modifications applied in the plugin's `ADD` functionality",
    ),
];

/// The second DEL is as the first.
const IDEMPOTENT: &[Basis] = &[
    should(
        "0.3.1",
        "parameters",
        "Plugins should generally complete a DEL action without error even if some resources are missing.",
    ),
    should(
        "0.4.0",
        "general-considerations",
        "DEL may be followed by additional DELs but plugins should handle multiple DELs permissively (i.e. plugin DEL should be idempotent).",
    ),
    must(
        "1.0.0",
        DEL,
        "Plugins MUST accept multiple `DEL` calls for the same (`CNI_CONTAINERID`, `CNI_IFNAME`) pair, and return success if the interface in question, or any modifications added, are missing.",
    ),
];

/// Why the latter is asked since 1.0.0.
const KEY: &str = "since 1.0.0 the text says what DEL removes, and not what it leaves; \"may be uniquely identified\" is no demand. A pod that loses its interface to another's DEL is cut off";

/// What is another attachment's stays.
const BY_KEY: &[Basis] = &[
    should(
        "0.4.0",
        "general-considerations",
        "Plugins that store state should do so using a primary key of `(network name, CNI_CONTAINERID, CNI_IFNAME)`.",
    ),
    ends("1.0.0"),
];

/// Why DEL works without one.
const NO_CACHE: &str = "since 1.0.0 the runtime has to send it, but one that lost its cache cannot. The text of the tag binds; SPEC.md of main, which still calls itself 1.1.0, has moved here";
/// Why DEL takes any previous result.
const NO_BETTER_RESULT: &str = "no later DEL would have a better one";

pub const CHECKS: &[Check] = &[
    spec(
        "del_after_add",
        "DEL of an unchanged attachment succeeds",
        COMPLETES,
        del_after_add,
    )
    .harm(Harm::Leak),
    spec(
        "del_of_one_of_two_interfaces",
        "DEL succeeds for one of a pod's two interfaces on the same network, and then for the other",
        COMPLETES,
        del_of_one_of_two_interfaces,
    )
    .harm(Harm::Leak)
    .with_attachments(2),
    spec(
        "del_without_netns",
        "DEL succeeds if CNI_NETNS is missing or empty",
        &[should(
                "0.4.0",
                "parameters",
                "When `CNI_NETNS` and/or `prevResult` are not provided, the plugin should clean up as many resources as possible (e.g. releasing IPAM allocations) and return a successful response.",
            ), should("1.0.0", DEL, "Plugins should generally complete a `DEL` action without error even if some resources are missing.")],
        del_without_netns,
    )
    .harm(Harm::Leak).but("without a namespace it is unknown whether the interface is missing, so the \"must\" about repeated DELs does not apply"),
    spec(
        "del_without_netns_releases",
        "DEL without CNI_NETNS releases what the plugin has on file",
        &[should(
                "0.4.0",
                "parameters",
                "When `CNI_NETNS` and/or `prevResult` are not provided, the plugin should clean up as many resources as possible (e.g. releasing IPAM allocations) and return a successful response.",
            ), should(
                "1.0.0",
                DEL,
                "an IPAM plugin should generally release an IP allocation and return success even if the container network namespace no longer exists",
            )],
        del_without_netns_releases,
    )
    .harm(Harm::Leak),
    spec(
        "del_after_netns_is_gone",
        "DEL of a plugin other than an IPAM plugin succeeds when the namespace is gone",
        MISSING,
        del_after_netns_is_gone,
    )
    .harm(Harm::Leak),
    spec(
        "ipam_del_after_netns_is_gone",
        "DEL of an IPAM plugin succeeds when the namespace is gone",
        RELEASES,
        ipam_del_after_netns_is_gone,
    )
    .harm(Harm::Leak).but("\"unless that network namespace is critical for IPAM management\""),
    spec(
        "del_after_netns_is_gone_releases",
        "when the namespace is gone, DEL releases what the plugin has on file",
        RELEASES,
        del_after_netns_is_gone_releases,
    )
    .harm(Harm::Leak),
    quality(
        "del_of_no_netns",
        "DEL succeeds when CNI_NETNS is a file but not a namespace",
        "a runtime's mount that was only half undone leaves such a file, as a reboot does",
        del_of_no_netns,
    ),
    spec(
        "del_after_interface_is_gone",
        "DEL succeeds when the interface is gone",
        MISSING,
        del_after_interface_is_gone,
    )
    .harm(Harm::Leak),
    spec(
        "del_after_interface_is_gone_releases",
        "when the interface is gone, DEL releases what the plugin has on file",
        DELETES,
        del_after_interface_is_gone_releases,
    )
    .harm(Harm::Leak),
    spec(
        "del_after_device_is_gone",
        "DEL succeeds when the device, and with it the interface, was unplugged",
        MISSING,
        del_after_device_is_gone,
    )
    .harm(Harm::Leak),
    spec(
        "del_after_device_is_gone_releases",
        "when the device was unplugged, DEL releases what the plugin has on file",
        DELETES,
        del_after_device_is_gone_releases,
    )
    .harm(Harm::Leak),
    spec(
        "del_before_add",
        "DEL of an attachment that was never added succeeds",
        MISSING,
        del_before_add,
    )
    .harm(Harm::Leak),
    extra(
        "del_before_add_changes_nothing",
        "DEL of an attachment that was never added changes nothing on the host",
        "it has nothing there",
        del_before_add_changes_nothing,
    ),
    spec(
        "del_twice",
        "DEL succeeds again after it has succeeded",
        IDEMPOTENT,
        del_twice,
    )
    .harm(Harm::Leak),
    spec(
        "del_twice_after_netns_is_gone",
        "when the namespace is gone, DEL succeeds again after it has succeeded",
        IDEMPOTENT,
        del_twice_after_netns_is_gone,
    )
    .harm(Harm::Leak),
    spec(
        "del_needs_no_previous_result",
        "DEL succeeds if prevResult is missing or null",
        &[should(
                "0.4.0",
                "parameters",
                "When `CNI_NETNS` and/or `prevResult` are not provided, the plugin should clean up as many resources as possible (e.g. releasing IPAM allocations) and return a successful response.",
            ), ends("1.0.0")],
        del_needs_no_previous_result,
    ).but(NO_CACHE),
    spec(
        "del_without_previous_result_releases",
        "if prevResult is missing or null, DEL still leaves the host as before the ADD",
        &[should(
                "0.4.0",
                "parameters",
                "When `CNI_NETNS` and/or `prevResult` are not provided, the plugin should clean up as many resources as possible (e.g. releasing IPAM allocations) and return a successful response.",
            ), ends("1.0.0")],
        del_without_previous_result_releases,
    )
    .harm(Harm::Leak)
    .but(NO_CACHE),
    extra(
        "del_takes_an_empty_previous_result",
        "DEL succeeds if prevResult is an empty object",
        NO_BETTER_RESULT,
        del_takes_an_empty_previous_result,
    ),
    extra(
        "del_takes_a_previous_result_of_another_version",
        "DEL succeeds if prevResult has the form of 0.2.0",
        NO_BETTER_RESULT,
        del_takes_a_previous_result_of_another_version,
    ),
    extra(
        "del_takes_a_previous_result_of_no_version",
        "DEL succeeds if prevResult names an unknown version",
        NO_BETTER_RESULT,
        del_takes_a_previous_result_of_no_version,
    ),
    extra(
        "del_takes_an_unreadable_previous_result",
        "DEL succeeds if prevResult is a list",
        NO_BETTER_RESULT,
        del_takes_an_unreadable_previous_result,
    ),
    quality(
        "del_needs_no_arguments",
        "DEL succeeds without the CNI_ARGS and the runtimeConfig of ADD",
        "Multus does not send all of them again",
        del_needs_no_arguments,
    ),
    quality(
        "del_errors_are_no_success",
        "no error message of DEL contains `not found` or `no such file or directory`",
        "go-cni takes such an error for success",
        del_errors_are_no_success,
    )
    .harm(Harm::Misleads),
    spec(
        "del_keeps_other_attachments",
        "DEL affects neither other interfaces of the pod nor the same interface of another pod",
        BY_KEY,
        del_keeps_other_attachments,
    )
    .harm(Harm::Pod)
    .with_attachments(3)
    .but(KEY),
    spec(
        "del_of_another_container_takes_nothing",
        "DEL for a container that was never added releases nothing of another one",
        BY_KEY,
        del_of_another_container_takes_nothing,
    )
    .harm(Harm::Address)
    .but(KEY),
    spec(
        "add_after_del_is_as_the_first",
        "an attachment can be added again after its DEL",
        &[should(
                "0.4.0",
                "parameters",
                "A delete operation should release all resources held by the supplied containerid in the configured network.",
            ), should(
                "1.0.0",
                DEL,
                "A CNI plugin, upon receiving a `DEL` command, should either … delete the interface defined by `CNI_IFNAME` inside the container at `CNI_NETNS`, or … undo any modifications applied in the plugin's `ADD` functionality",
            )],
        add_after_del_is_as_the_first,
    )
    .harm(Harm::Leak),
];

/// An attachment, the result of its ADD, and what there was before.
type Begun = (Attachment, Value, Value);

/// Of a plugin of which something is there to be undone.
fn begun(world: &World<'_>) -> Result<Begun, Stop> {
    world.changes()?;
    let one = world.attachment(0)?;
    let before = world.baseline()?;
    let result = world.add(&one)?;
    Ok((one, result, before))
}

/// The same, where the interface is gone.
fn without_interface(world: &World<'_>) -> Result<Begun, Stop> {
    world.only(&[Kind::Main, Kind::Meta])?;
    let begun = begun(world)?;
    world.in_pod(&begun.0, &format!("link del {}", begun.0.ifname))?;
    Ok(begun)
}

/// The same, where the device is gone, and the interface with it.
fn without_device(world: &World<'_>) -> Result<Begun, Stop> {
    let Some(unplug) = world.description().unplug.clone() else {
        return Err(Stop::LeftOut(
            "its device cannot be unplugged here".to_owned(),
        ));
    };
    let begun = begun(world)?;
    world.host(&begun.0.filled(&unplug))?;
    if !world.pod_state(&begun.0)?["links"][&begun.0.ifname].is_null() {
        return Err(Stop::LeftOut(
            "without its device, the interface is still there".to_owned(),
        ));
    }
    Ok(begun)
}

/// The same, where the namespace is gone.
fn without_netns(world: &World<'_>) -> Result<Begun, Stop> {
    let begun = begun(world)?;
    world.delete_netns(&begun.0)?;
    Ok(begun)
}

/// Fails if files are left, or are missing, after a DEL that succeeded. One that fails is told by
/// another check.
fn releases(world: &World<'_>, call: &Call, before: &Value, when: &str) -> Result<(), Stop> {
    let ran = world.run(call)?;
    if ran.status != 0 {
        return Err(Stop::LeftOut(format!("that DEL fails: {}", ran.told())));
    }
    match difference(&before["files"], &world.state()?["files"]) {
        None => Ok(()),
        Some(text) => {
            Err(world.fails_by(world.same_part("files", before), format!("{when}: {text}")))
        }
    }
}

fn del_after_add(world: &World<'_>) -> Result<(), Stop> {
    world.changes()?;
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    world.del(&one, &result)
}

fn del_without_netns(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, _) = begun(world)?;
    let call = world.del_call(&one, &result);
    world.ok(&call.clone().without("CNI_NETNS"))?;
    world.ok(&call.var("CNI_NETNS", "")).map(drop)
}

fn del_without_netns_releases(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, before) = begun(world)?;
    let call = world.del_call(&one, &result).without("CNI_NETNS");
    releases(world, &call, &before, "after DEL without CNI_NETNS")
}

fn del_after_netns_is_gone(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main, Kind::Meta])?;
    let (one, result, _) = without_netns(world)?;
    world.del(&one, &result)
}

fn ipam_del_after_netns_is_gone(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Ipam])?;
    let (one, result, _) = without_netns(world)?;
    world.del(&one, &result)
}

fn del_after_netns_is_gone_releases(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, before) = without_netns(world)?;
    releases(world, &world.del_call(&one, &result), &before, "after DEL")
}

fn del_twice_after_netns_is_gone(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, _) = without_netns(world)?;
    world.deleted(&one, &result)?;
    world.del(&one, &result)
}

/// What a runtime's mount leaves when it is undone half-way, as after a reboot.
fn del_of_no_netns(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, _) = without_netns(world)?;
    world.write(&one.netns, "")?;
    world.del(&one, &result)?;
    let shell = format!("[ -f {} ]", one.netns.display());
    ensure!(
        world,
        one.netns.is_file(),
        shell,
        "the file is gone, or is another one"
    );
    Ok(())
}

fn del_after_interface_is_gone(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, _) = without_interface(world)?;
    world.del(&one, &result)
}

fn del_after_interface_is_gone_releases(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, before) = without_interface(world)?;
    releases(world, &world.del_call(&one, &result), &before, "after DEL")
}

fn del_after_device_is_gone(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, _) = without_device(world)?;
    world.del(&one, &result)
}

fn del_after_device_is_gone_releases(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, before) = without_device(world)?;
    releases(world, &world.del_call(&one, &result), &before, "after DEL")
}

fn del_before_add(world: &World<'_>) -> Result<(), Stop> {
    world.changes()?;
    let one = world.attachment(0)?;
    world.ok(&world.call("DEL", &one)).map(drop)
}

fn del_before_add_changes_nothing(world: &World<'_>) -> Result<(), Stop> {
    world.changes()?;
    let one = world.attachment(0)?;
    let before = world.state()?;
    world.run(&world.call("DEL", &one))?;
    world.is_as(&before, "after DEL")
}

fn del_twice(world: &World<'_>) -> Result<(), Stop> {
    let (one, result, _) = begun(world)?;
    world.deleted(&one, &result)?;
    for _ in 0..2 {
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

/// DEL with each of these: it succeeds, or else it leaves nothing where it does.
fn del_with(world: &World<'_>, previous: &[Option<Value>], releases: bool) -> Result<(), Stop> {
    world.changes()?;
    let mut one = world.working()?;
    for previous in previous {
        let before = world.state()?;
        let result = world.add(&one)?;
        let mut conf = without_previous(&one.conf);
        if let Some(previous) = previous {
            conf["prevResult"] = previous.clone();
        }
        let ran = world.run(&world.call("DEL", &one).conf(&conf))?;
        let what = previous
            .as_ref()
            .map_or("none".to_owned(), Value::to_string);
        if !releases {
            ensure!(
                world,
                ran.status == 0,
                "succeeded",
                "DEL with prevResult {what}: {}",
                ran.told()
            );
            world.make_room(&one, &result)?;
        } else if ran.status != 0 {
            return Err(Stop::LeftOut(format!(
                "DEL with prevResult {what} fails: {}",
                ran.told()
            )));
        } else {
            world.is_as(&before, &format!("after DEL with prevResult {what}"))?;
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

fn del_takes_an_empty_previous_result(world: &World<'_>) -> Result<(), Stop> {
    del_with(world, &[Some(json!({}))], false)
}

fn del_takes_a_previous_result_of_another_version(world: &World<'_>) -> Result<(), Stop> {
    let old = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.9.0.2/24"}});
    del_with(world, &[Some(old)], false)
}

fn del_takes_a_previous_result_of_no_version(world: &World<'_>) -> Result<(), Stop> {
    del_with(world, &[Some(json!({"cniVersion": "9.9.9"}))], false)
}

fn del_takes_an_unreadable_previous_result(world: &World<'_>) -> Result<(), Stop> {
    del_with(world, &[Some(json!(["x"]))], false)
}

fn del_needs_no_arguments(world: &World<'_>) -> Result<(), Stop> {
    world.changes()?;
    let mut one = world.attachment(0)?;
    let before = world.baseline()?;
    if one.conf["runtimeConfig"].is_null() && one.conf["capabilities"]["mac"] == json!(true) {
        one.conf["runtimeConfig"] = json!({"mac": "02:00:00:00:00:77"});
    }
    let result = world.add(&one)?;
    let mut conf = with(&one.conf, "prevResult", result);
    if let Some(map) = conf.as_object_mut() {
        map.remove("runtimeConfig");
    }
    world.ok(&world.call("DEL", &one).conf(&conf).without("CNI_ARGS"))?;
    world.is_as(&before, "after DEL")
}

fn del_errors_are_no_success(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let gone = Attachment {
        netns: "/run/netns/gone".into(),
        ..one.clone()
    };
    let calls = [
        world.call("DEL", &one),
        world.call("DEL", &gone),
        world.call("DEL", &one).without("CNI_NETNS"),
        world.call("DEL", &one).var("CNI_IFNAME", "net9"),
        world
            .call("DEL", &one)
            .conf(&with(&one.conf, "ipam", json!({"type": "absent"}))),
    ];
    for call in calls {
        let ran = world.run(&call)?;
        let text = ran.stdout.to_lowercase();
        let is_misread = text.contains("not found") || text.contains("no such file or directory");
        ensure!(
            world,
            ran.status == 0 || !is_misread,
            "succeeded || ! is_misread",
            "{}",
            ran.told()
        );
    }
    Ok(())
}

/// ADD of the second interface of a pod. They have one network, and the routes of the first may be
/// in the way of the second.
fn add_beside(world: &World<'_>, second: &Attachment) -> Result<Value, Stop> {
    let added = world.run(&world.call("ADD", second))?;
    if added.status != 0 {
        let told = added.told();
        return Err(Stop::LeftOut(format!(
            "its ADD fails for a second interface of the pod: {told}"
        )));
    }
    world.object(&added)
}

fn del_of_one_of_two_interfaces(world: &World<'_>) -> Result<(), Stop> {
    world.changes()?;
    world.dels()?;
    let first = world.attachment(0)?;
    let second = world.attachment_in(1, "c0", "net2")?;
    let results = [world.add(&first)?, add_beside(world, &second)?];
    world.del(&first, &results[0])?;
    world.del(&second, &results[1])
}

fn del_keeps_other_attachments(world: &World<'_>) -> Result<(), Stop> {
    world.changes()?;
    let first = world.attachment(0)?;
    let second = world.attachment_in(1, "c0", "net2")?;
    let third = world.attachment(2)?;
    let result = world.add(&first)?;
    let of_first = world.state()?;
    add_beside(world, &second)?;
    world.add(&third)?;
    let of_all = world.state()?;
    let pod = world.pod_state(&third)?;
    let of_second = |state: &Value| state["links"]["net2"].clone();
    let both = world.pod_state(&second)?;
    world.deleted(&first, &result)?;
    world.pod_is_as(&third, &pod, "after DEL of another pod's interface")?;
    if let Some(text) = difference(&of_second(&both), &of_second(&world.pod_state(&second)?)) {
        ensure!(
            world,
            false,
            world.same_link("c0", "net2", &both),
            "net2 of the same pod {text}"
        );
    }
    let now = world.state()?;
    for (path, _) in of_all["files"].as_object().into_iter().flatten() {
        let is_kept = of_first["files"].get(path).is_some() || now["files"].get(path).is_some();
        ensure!(
            world,
            is_kept,
            format!("has_file {path}"),
            "{path} of another attachment is gone"
        );
    }
    Ok(())
}

fn del_of_another_container_takes_nothing(world: &World<'_>) -> Result<(), Stop> {
    world.changes()?;
    let one = world.attachment(0)?;
    world.add(&one)?;
    let (host, pod) = (world.state()?, world.pod_state(&one)?);
    // A pod that was never added has no namespace any more, or the runtime does not say which.
    // Nor is there a result of it: that of `one` has what `one` has.
    let conf = without_previous(&one.conf);
    let other = world
        .call("DEL", &one)
        .conf(&conf)
        .var("CNI_CONTAINERID", "other");
    world.run(&other.clone().var("CNI_NETNS", ""))?;
    world.run(&other.var("CNI_NETNS", "/run/netns/gone"))?;
    let now = world.state()?;
    // What is new is none of what another has.
    for part in ["links", "files"] {
        for (name, _) in host[part].as_object().into_iter().flatten() {
            ensure!(
                world,
                now[part].get(name).is_some(),
                world.same_part(part, &host),
                "{name} of another container is gone"
            );
        }
    }
    world.pod_is_as(&one, &pod, "after DEL of another container")
}

fn add_after_del_is_as_the_first(world: &World<'_>) -> Result<(), Stop> {
    let mut one = world.attachment(0)?;
    for round in 0..3 {
        let ran = world.run(&world.call("ADD", &one))?;
        if round == 0 && ran.status != 0 {
            return Err(Stop::LeftOut(format!("its ADD fails: {}", ran.told())));
        }
        ensure!(
            world,
            ran.status == 0,
            "succeeded",
            "ADD number {}: {}",
            round + 1,
            ran.told()
        );
        let result = world.object(&ran)?;
        world.deleted(&one, &result)?;
        one = world.renewed(one)?;
    }
    Ok(())
}
