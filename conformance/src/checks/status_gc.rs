//! docs/cni-contract.md, items 94 to 105: STATUS and GC.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Check, Must, Quality, Should, check};
use crate::call::Call;
use crate::description::Kind;
use crate::ensure;
use crate::world::{Attachment, Stop, World, with};

pub const CHECKS: &[Check] = &[
    check(
        "status_of_a_node_that_is_ready",
        &[94, 98],
        Must,
        "STATUS succeeds where an ADD does",
        status_of_a_node_that_is_ready,
    ),
    check(
        "status_asks_the_ipam",
        &[95],
        Should,
        "STATUS of a plugin that delegates asks the IPAM plugin, whose errors 50 and 51 it keeps",
        status_asks_the_ipam,
    ),
    check(
        "status_stops_no_add",
        &[98],
        Must,
        "ADD and DEL work whatever STATUS returned",
        status_stops_no_add,
    ),
    check("status_changes_nothing", &[97], Quality, "STATUS changes nothing", status_changes_nothing),
    // Where that ADD takes the last address or device, a STATUS may well say that nothing is left.
    check(
        "status_waits_for_no_add",
        &[97],
        Quality,
        "eight STATUS at the same time as an ADD succeed",
        status_waits_for_no_add,
    )
    .with_attachments(2),
    check(
        "gc_keeps_what_is_listed",
        &[99, 100],
        Must,
        "GC keeps the attachments that are listed",
        gc_keeps_what_is_listed,
    )
    .with_attachments(3),
    check(
        "gc_releases_what_is_not_listed",
        &[99, 100],
        Should,
        "GC releases what a pod that is gone and not listed had",
        gc_releases_what_is_not_listed,
    )
    .with_attachments(3),
    check(
        "gc_reads_the_key_of_libcni",
        &[99],
        Quality,
        "GC reads the list from cni.dev/attachments, too, as older runtimes write it",
        gc_reads_the_key_of_libcni,
    )
    .with_attachments(3),
    check(
        "gc_keeps_other_networks",
        &[100],
        Must,
        "GC keeps attachments of other networks",
        gc_keeps_other_networks,
    )
    .with_attachments(3),
    check(
        "gc_of_nothing_succeeds",
        &[101, 104],
        Quality,
        "GC succeeds with a list that is absent, null or empty where nothing was ever added",
        gc_of_nothing_succeeds,
    ),
    check(
        "gc_asks_the_ipam",
        &[103],
        Must,
        "GC of a plugin that delegates gives the IPAM plugin the same list",
        gc_asks_the_ipam,
    ),
    check(
        "gc_tells_errors_of_the_ipam",
        &[102, 103],
        Should,
        "an error of the IPAM plugin's GC is an error of GC",
        gc_tells_errors_of_the_ipam,
    ),
    check("gc_then_del", &[76, 105], Must, "a DEL after GC succeeds", gc_then_del),
];

fn begun(world: &World<'_>, verb: &str) -> Result<Attachment, Stop> {
    world.claims(verb)?;
    world.attachment(0)
}

fn status_of_a_node_that_is_ready(world: &World<'_>) -> Result<(), Stop> {
    world.claims("STATUS")?;
    let one = world.working()?;
    world.ok(&world.call("STATUS", &one)).map(drop)
}

fn status_asks_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    world.delegates()?;
    let one = begun(world, "STATUS")?;
    for code in [50, 51] {
        world.stand_in("stand-in", &format!("[ $CNI_COMMAND = STATUS ] && echo '{{\"cniVersion\": \"1.1.0\", \"code\": {code}, \"msg\": \"drained\"}}' && exit 1; exit 0"))?;
        let call = world.call("STATUS", &one).conf(&with(&one.conf, "ipam", json!({"type": "stand-in"})));
        let error = world.refused(&call, &format!("STATUS while the IPAM plugin says {code}"))?;
        ensure!(error["code"] == code, "the code is {}", error["code"]);
        ensure!(error["msg"].to_string().contains("drained"), "the message is {}", error["msg"]);
    }
    Ok(())
}

fn status_stops_no_add(world: &World<'_>) -> Result<(), Stop> {
    world.delegates()?;
    let one = begun(world, "STATUS")?;
    let address = json!({"cniVersion": world.description().newest(), "ips": [{"address": "10.9.0.2/24", "gateway": "10.9.0.1"}]});
    world.stand_in("stand-in", &format!("case $CNI_COMMAND in ADD) echo '{address}';; STATUS) echo '{{\"code\": 50, \"msg\": \"drained\"}}'; exit 1;; esac"))?;
    let one = Attachment { conf: with(&one.conf, "ipam", json!({"type": "stand-in"})), ..one };
    world.run(&world.call("STATUS", &one))?;
    let result = world.ok(&world.call("ADD", &one))?.result().map_err(Stop::Fails)?;
    world.run(&world.call("STATUS", &one))?;
    world.del(&one, &result)
}

fn status_changes_nothing(world: &World<'_>) -> Result<(), Stop> {
    let one = begun(world, "STATUS")?;
    let before = world.state()?;
    world.run(&world.call("STATUS", &one))?;
    world.is_as(&before, "after STATUS")
}

fn status_waits_for_no_add(world: &World<'_>) -> Result<(), Stop> {
    world.claims("STATUS")?;
    let one = world.working()?;
    let mut calls: Vec<Call> = (0..8).map(|_| world.call("STATUS", &one)).collect();
    calls.push(world.call("ADD", &one));
    for ran in world.at_once(&calls)? {
        ensure!(ran.status == 0, "a call failed: {}", ran.told());
    }
    Ok(())
}

/// Two attachments whose pods live, and one whose pod is gone. Returns the files that there were with the first two
/// alone, and those of the third.
struct Left {
    attachments: [Attachment; 3],
    kept: BTreeSet<String>,
    dead: BTreeSet<String>,
}

fn files(world: &World<'_>) -> Result<BTreeSet<String>, Stop> {
    Ok(world.state()?["files"].as_object().into_iter().flatten().map(|(path, _)| path.clone()).collect())
}

fn left(world: &World<'_>) -> Result<Left, Stop> {
    world.claims("GC")?;
    let attachments = [world.attachment(0)?, world.attachment(1)?, world.attachment(2)?];
    world.add(&attachments[0])?;
    world.add(&attachments[1])?;
    let kept = files(world)?;
    world.add(&attachments[2])?;
    let dead: BTreeSet<_> = files(world)?.difference(&kept).cloned().collect();
    world.delete_netns(&attachments[2])?;
    if dead.is_empty() {
        return Err(Stop::LeftOut("it keeps nothing of an attachment on the host".to_owned()));
    }
    Ok(Left { attachments, kept, dead })
}

fn gc(world: &World<'_>, one: &Attachment, more: Value) -> Result<Call, Stop> {
    let mut conf = one.conf.clone();
    for (key, value) in more.as_object().into_iter().flatten() {
        conf[key] = value.clone();
    }
    let names = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"];
    Ok(names.iter().fold(world.call("GC", one).conf(&conf), |call, name| call.without(name)))
}

fn listed(attachments: &[Attachment]) -> Value {
    attachments.iter().map(|one| json!({"containerID": one.container, "ifname": one.ifname})).collect()
}

fn gc_keeps_what_is_listed(world: &World<'_>) -> Result<(), Stop> {
    let left = left(world)?;
    let pods = [world.pod_state(&left.attachments[0])?, world.pod_state(&left.attachments[1])?];
    world.run(&gc(
        world,
        &left.attachments[0],
        json!({"cni.dev/valid-attachments": listed(&left.attachments)}),
    )?)?;
    let now = files(world)?;
    for path in left.kept.union(&left.dead) {
        ensure!(now.contains(path), "{path} of an attachment that is listed is gone");
    }
    world.pod_is_as(&left.attachments[0], &pods[0], "after GC")?;
    world.pod_is_as(&left.attachments[1], &pods[1], "after GC")
}

fn releases(world: &World<'_>, key: &str) -> Result<(), Stop> {
    let left = left(world)?;
    world.ok(&gc(world, &left.attachments[0], json!({key: listed(&left.attachments[..2])}))?)?;
    let now = files(world)?;
    if let Some(path) = left.dead.iter().find(|path| now.contains(*path)) {
        return Err(Stop::Fails(format!(
            "{path} of an attachment that is not listed, of a pod that is gone, is still there"
        )));
    }
    for path in &left.kept {
        ensure!(now.contains(path), "{path} of an attachment that is listed is gone");
    }
    Ok(())
}

fn gc_releases_what_is_not_listed(world: &World<'_>) -> Result<(), Stop> {
    releases(world, "cni.dev/valid-attachments")
}

fn gc_reads_the_key_of_libcni(world: &World<'_>) -> Result<(), Stop> {
    releases(world, "cni.dev/attachments")
}

fn gc_keeps_other_networks(world: &World<'_>) -> Result<(), Stop> {
    let left = left(world)?;
    world.run(&gc(
        world,
        &left.attachments[0],
        json!({"name": "another", "cni.dev/valid-attachments": []}),
    )?)?;
    let now = files(world)?;
    for path in left.kept.union(&left.dead) {
        ensure!(now.contains(path), "{path} of another network is gone");
    }
    Ok(())
}

fn gc_of_nothing_succeeds(world: &World<'_>) -> Result<(), Stop> {
    let one = begun(world, "GC")?;
    let before = world.state()?;
    for list in
        [json!({}), json!({"cni.dev/valid-attachments": null}), json!({"cni.dev/valid-attachments": []})]
    {
        world.ok(&gc(world, &one, list)?)?;
    }
    world.is_as(&before, "after GC")
}

fn gc_asks_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    world.delegates()?;
    let one = begun(world, "GC")?;
    world.stand_in("stand-in", "cat >$0.$CNI_COMMAND; exit 0")?;
    let list = listed(std::slice::from_ref(&one));
    world.run(&gc(world, &one, json!({"ipam": {"type": "stand-in"}, "cni.dev/valid-attachments": list}))?)?;
    let text = std::fs::read_to_string("/dev/shm/conformance/bin/stand-in.GC");
    let text = text.map_err(|_| Stop::Fails("the IPAM plugin was not called".to_owned()))?;
    let conf: Value = serde_json::from_str(&text).unwrap_or_default();
    ensure!(conf["cni.dev/valid-attachments"] == list, "the IPAM plugin got {text}");
    Ok(())
}

fn gc_tells_errors_of_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    world.delegates()?;
    let one = begun(world, "GC")?;
    world.stand_in(
        "stand-in",
        r#"[ $CNI_COMMAND = GC ] && echo '{"code": 111, "msg": "no"}' && exit 1; exit 0"#,
    )?;
    let call = gc(world, &one, json!({"ipam": {"type": "stand-in"}, "cni.dev/valid-attachments": []}))?;
    world.fails(&call, "GC while that of the IPAM plugin fails").map(drop)
}

fn gc_then_del(world: &World<'_>) -> Result<(), Stop> {
    world.claims("GC")?;
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    if world.description().kind == Kind::Main {
        world.delete_netns(&one)?;
    }
    let call = gc(world, &one, json!({"cni.dev/valid-attachments": []}))?;
    world.run(&call)?;
    world.del(&one, &result)
}
