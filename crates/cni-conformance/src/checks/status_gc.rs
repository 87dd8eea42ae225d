//! STATUS and GC.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::call::Call;
use crate::check::{Check, Harm, must, quality, should, spec};
use crate::description::Kind;
use crate::ensure;
use crate::replay::answer;
use crate::settings::Stop;
use crate::value::with;
use crate::world::{Attachment, World};

/// The headings of the specification.
const STATUS: &str = "status-check-plugin-status";
const GC: &str = "gc-clean-up-any-stale-resources";
const DELEGATED: &str = "delegated-plugin-execution-procedure";

/// Why GC is asked to keep what it may not take.
const OF_KEEPING: &str = "the specification lets a plugin \"remove any resources related to attachments that do not exist in this set\", and does not mention the others. Without this, a living pod would lose its address";

pub const CHECKS: &[Check] = &[
    spec(
        "status_of_a_node_that_is_ready",
        "STATUS succeeds where ADD does",
        &[must(
            "1.1.0",
            STATUS,
            "A plugin must exit with a zero (success) return code if the plugin is ready to service ADD requests.",
        )],
        status_of_a_node_that_is_ready,
    )
    .harm(Harm::Misleads),
    spec(
        "status_calls_the_ipam",
        "STATUS of a plugin that delegates calls STATUS of its delegate",
        &[must(
            "1.1.0",
            STATUS,
            "If a plugin relies on a delegated plugin (e.g. IPAM) to service `ADD` requests, it must also execute a `STATUS` request to that plugin when it receives a `STATUS` request for itself.",
        )],
        status_calls_the_ipam,
    )
    .harm(Harm::Misleads),
    spec(
        "status_tells_errors_of_the_ipam",
        "an error of the delegate's STATUS is an error of STATUS",
        &[should(
            "1.1.0",
            STATUS,
            "If the delegated plugin return an error result, the executing plugin should return an error result.",
        )],
        status_tells_errors_of_the_ipam,
    )
    .harm(Harm::Misleads),
    quality(
        "status_keeps_errors_of_the_ipam",
        "STATUS passes on the delegate's codes 50 and 51, and its message",
        "the codes say whether running pods are affected. The text of spec-v1.1.0 binds; SPEC.md of main, which still calls itself 1.1.0, has moved here",
        status_keeps_errors_of_the_ipam,
    ),
    spec(
        "status_stops_no_add",
        "ADD works whatever STATUS returned",
        &[should(
            "1.1.0",
            STATUS,
            "Plugins should always expect other CNI operations (like `ADD`, `DEL`, etc) even if `STATUS` returns an error.",
        )],
        status_stops_no_add,
    ),
    quality(
        "status_changes_nothing",
        "STATUS changes nothing",
        "containerd calls it whenever its own status is requested",
        status_changes_nothing,
    ),
    // Where that ADD takes the last address or device, a STATUS may well say that nothing is left.
    quality(
        "status_waits_for_no_add",
        "eight STATUS calls during an ADD succeed",
        "containerd does not wait for ADDs",
        status_waits_for_no_add,
    )
    .with_attachments(2),
    spec(
        "gc_succeeds",
        "GC succeeds with a list of all living attachments",
        &[should(
            "1.1.0",
            GC,
            "Plugins should generally complete a `GC` action without error.",
        )],
        gc_succeeds,
    ),
    quality(
        "gc_keeps_what_is_listed",
        "GC keeps listed attachments",
        OF_KEEPING,
        gc_keeps_what_is_listed,
    )
    .harm(Harm::Pod)
    .with_attachments(3),
    spec(
        "gc_releases_what_is_not_listed",
        "GC releases what belonged to a pod that is gone and not listed",
        &[should(
            "1.1.0",
            GC,
            "A plugin SHOULD remove as many stale resources as possible.",
        )],
        gc_releases_what_is_not_listed,
    )
    .harm(Harm::Leak)
    .with_attachments(3),
    quality(
        "gc_keeps_other_networks",
        "GC keeps attachments of other networks",
        OF_KEEPING,
        gc_keeps_other_networks,
    )
    .harm(Harm::Pod)
    .with_attachments(3),
    quality(
        "gc_of_nothing_succeeds",
        "if nothing was ever added, GC succeeds with an absent, null or empty list and changes nothing",
        "cnitool sends no list, and CRI-O null",
        gc_of_nothing_succeeds,
    ),
    spec(
        "gc_calls_the_ipam",
        "GC of a plugin that delegates calls GC of its delegate",
        &[must(
            "1.1.0",
            GC,
            "Plugins MUST, additionally, forward any GC calls to delegated plugins they are configured to use (see section 4).",
        )],
        gc_calls_the_ipam,
    )
    .harm(Harm::Leak),
    spec(
        "gc_gives_the_ipam_the_list",
        "GC gives the delegate the same list",
        &[should(
            "1.1.0",
            DELEGATED,
            "When a plugin executes a delegated plugin, it should: … Execute that plugin with the same environment and configuration that it received.",
        )],
        gc_gives_the_ipam_the_list,
    )
    .harm(Harm::Leak),
    spec(
        "gc_tells_errors_of_the_ipam",
        "an error of the delegate's GC is an error of GC",
        &[should(
            "1.1.0",
            DELEGATED,
            "If any of the delegated plugins return error, error should be returned by the upper plugin.",
        )],
        gc_tells_errors_of_the_ipam,
    )
    .harm(Harm::Misleads),
    spec(
        "gc_then_del",
        "DEL succeeds after GC if it would without",
        &[must(
            "1.1.0",
            "del-remove-container-from-network-or-un-apply-modifications",
            "Plugins MUST accept multiple `DEL` calls for the same (`CNI_CONTAINERID`, `CNI_IFNAME`) pair, and return success if the interface in question, or any modifications added, are missing.",
        )],
        gc_then_del,
    )
    .harm(Harm::Leak),
];

fn left_out<T>(reason: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::LeftOut(reason.into()))
}

fn begun(world: &World<'_>, verb: &str) -> Result<Attachment, Stop> {
    world.claims(verb)?;
    world.attachment(0)
}

fn status_of_a_node_that_is_ready(world: &World<'_>) -> Result<(), Stop> {
    world.claims("STATUS")?;
    let one = world.working()?;
    world.ok(&world.call("STATUS", &one)).map(drop)
}

/// An attachment whose delegate is a stand-in that runs this text.
fn stood_in(world: &World<'_>, verb: &str, script: &str) -> Result<Attachment, Stop> {
    world.delegates()?;
    let one = begun(world, verb)?;
    world.stand_in("stand-in", &format!("cat >$0.$CNI_COMMAND.stdin\n{script}"))?;
    world.delegating(&one, "stand-in")
}

const CALLED: &str = "/dev/shm/conformance/bin/stand-in";

fn status_calls_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in(world, "STATUS", "exit 0")?;
    let ran = world.run(&world.call("STATUS", &one))?;
    if ran.status != 0 {
        return left_out(format!("its STATUS fails: {}", ran.told()));
    }
    let path = format!("{CALLED}.STATUS.stdin");
    let was_called = std::fs::exists(&path).unwrap_or(false);
    ensure!(
        world,
        was_called,
        format!("[ -e {path} ]"),
        "STATUS succeeds, and the other plugin got none"
    );
    Ok(())
}

/// STATUS, where it calls a stand-in for the other plugin and succeeds while that does.
fn delegated_status(world: &World<'_>) -> Result<Call, Stop> {
    let one = stood_in(world, "STATUS", "exit 0")?;
    let call = world.call("STATUS", &one);
    let ran = world.run(&call)?;
    if ran.status != 0 {
        return left_out(format!(
            "its STATUS fails while that of the other plugin succeeds: {}",
            ran.told()
        ));
    }
    if !std::fs::exists(format!("{CALLED}.STATUS.stdin")).unwrap_or(false) {
        return left_out("it does not call the other plugin's STATUS");
    }
    Ok(call)
}

/// Has the stand-in's STATUS return this code.
fn fail_status(world: &World<'_>, code: u32) -> Result<(), Stop> {
    world.stand_in("stand-in", &format!("[ $CNI_COMMAND = STATUS ] && echo '{{\"cniVersion\": \"1.1.0\", \"code\": {code}, \"msg\": \"drained\"}}' && exit 1; exit 0"))
}

fn status_tells_errors_of_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    let call = delegated_status(world)?;
    fail_status(world, 50)?;
    world
        .fails(&call, "STATUS while that of the other plugin fails")
        .map(drop)
}

fn status_keeps_errors_of_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    let call = delegated_status(world)?;
    for code in [50, 51] {
        fail_status(world, code)?;
        let ran = world.run(&call)?;
        if ran.status == 0 {
            return left_out("an error of the other plugin's STATUS is none of its own");
        }
        let error = ran.error().unwrap_or_default();
        ensure!(
            world,
            error["code"] == code,
            answer(&format!(".code == {code}")),
            "the code is {}",
            error["code"]
        );
        let is_kept = error["msg"].to_string().contains("drained");
        ensure!(
            world,
            is_kept,
            answer(".msg | contains(\"drained\")"),
            "the message is {}",
            error["msg"]
        );
    }
    Ok(())
}

fn status_stops_no_add(world: &World<'_>) -> Result<(), Stop> {
    let good = world.good_answer();
    let script = format!(
        "[ $CNI_COMMAND = STATUS ] && echo '{{\"code\": 50, \"msg\": \"drained\"}}' && exit 1\n{good}"
    );
    let one = stood_in(world, "STATUS", &script)?;
    let mut next = one;
    // Twice: one that cannot add a second time says nothing of STATUS.
    for _ in 0..2 {
        let result = world.add(&next)?;
        world.make_room(&next, &result)?;
        next = world.delegating(&world.renewed(next)?, "stand-in")?;
    }
    world.run(&world.call("STATUS", &next))?;
    world.ok(&world.call("ADD", &next)).map(drop)
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
    let status = world.call("STATUS", &one);
    let ran = world.run(&status)?;
    if ran.status != 0 {
        return left_out(format!("its STATUS fails at any time: {}", ran.told()));
    }
    let mut calls: Vec<Call> = vec![status; 8];
    calls.push(world.call("ADD", &one));
    for ran in world.at_once(&calls)? {
        ensure!(
            world,
            ran.status == 0,
            "all_succeeded",
            "a call failed: {}",
            ran.told()
        );
    }
    Ok(())
}

/// Two attachments whose pods live, and one whose pod is gone. Returns the files that there were
/// with the first two alone, and those of the third.
struct Left {
    attachments: [Attachment; 3],
    kept: BTreeSet<String>,
    dead: BTreeSet<String>,
}

fn files(world: &World<'_>) -> Result<BTreeSet<String>, Stop> {
    Ok(world.state()?["files"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(path, _)| path.clone())
        .collect())
}

fn left(world: &World<'_>) -> Result<Left, Stop> {
    world.claims("GC")?;
    let attachments = [
        world.attachment(0)?,
        world.attachment(1)?,
        world.attachment(2)?,
    ];
    world.add(&attachments[0])?;
    world.add(&attachments[1])?;
    let kept = files(world)?;
    world.add(&attachments[2])?;
    let dead: BTreeSet<_> = files(world)?.difference(&kept).cloned().collect();
    world.delete_netns(&attachments[2])?;
    if dead.is_empty() {
        return left_out("it keeps nothing of an attachment on the host");
    }
    Ok(Left {
        attachments,
        kept,
        dead,
    })
}

/// The keys of the list: the second is that of the text of spec-v1.1.0, the first that of later
/// texts. libcni sends both since 1.2.0, and so does the suite.
const LISTS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

fn with_list(conf: &Value, list: &Value) -> Value {
    LISTS
        .iter()
        .fold(conf.clone(), |conf, key| with(&conf, key, list.clone()))
}

fn gc(world: &World<'_>, one: &Attachment, list: &Value) -> Call {
    let mut call = world.call("GC", one).conf(&with_list(&one.conf, list));
    for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"] {
        call = call.without(name);
    }
    call
}

fn listed(attachments: &[Attachment]) -> Value {
    attachments
        .iter()
        .map(|one| json!({"containerID": one.container, "ifname": one.ifname}))
        .collect()
}

fn gc_succeeds(world: &World<'_>) -> Result<(), Stop> {
    world.claims("GC")?;
    let one = world.attachment(0)?;
    world.add(&one)?;
    let list = listed(std::slice::from_ref(&one));
    let conf = with_list(&one.conf, &list);
    world.ok(&world.call("GC", &one).conf(&conf)).map(drop)
}

fn are_there(
    world: &World<'_>,
    paths: impl Iterator<Item = String>,
    whose: &str,
) -> Result<(), Stop> {
    let now = files(world)?;
    for path in paths {
        ensure!(
            world,
            now.contains(&path),
            format!("has_file {path}"),
            "{path} of {whose} is gone"
        );
    }
    Ok(())
}

fn gc_keeps_what_is_listed(world: &World<'_>) -> Result<(), Stop> {
    let left = left(world)?;
    let pods = [
        world.pod_state(&left.attachments[0])?,
        world.pod_state(&left.attachments[1])?,
    ];
    let list = listed(&left.attachments);
    world.run(&gc(world, &left.attachments[0], &list))?;
    are_there(
        world,
        left.kept.union(&left.dead).cloned(),
        "an attachment that is listed",
    )?;
    world.pod_is_as(&left.attachments[0], &pods[0], "after GC")?;
    world.pod_is_as(&left.attachments[1], &pods[1], "after GC")
}

fn gc_releases_what_is_not_listed(world: &World<'_>) -> Result<(), Stop> {
    let left = left(world)?;
    let ran = world.run(&gc(
        world,
        &left.attachments[0],
        &listed(&left.attachments[..2]),
    ))?;
    if ran.status != 0 {
        return left_out(format!("its GC fails: {}", ran.told()));
    }
    let now = files(world)?;
    for path in &left.dead {
        ensure!(
            world,
            !now.contains(path),
            format!("! has_file {path}"),
            "{path} of an attachment that is not listed, of a pod that is gone, is still there"
        );
    }
    Ok(())
}

fn gc_keeps_other_networks(world: &World<'_>) -> Result<(), Stop> {
    let left = left(world)?;
    let mut another = left.attachments[0].clone();
    another.conf["name"] = json!("another");
    world.run(&gc(world, &another, &json!([])))?;
    are_there(
        world,
        left.kept.union(&left.dead).cloned(),
        "another network",
    )
}

fn gc_of_nothing_succeeds(world: &World<'_>) -> Result<(), Stop> {
    let one = begun(world, "GC")?;
    let before = world.state()?;
    // With a container: whether GC needs one is a check of its own.
    let confs = [
        one.conf.clone(),
        with_list(&one.conf, &json!(null)),
        with_list(&one.conf, &json!([])),
    ];
    for conf in confs {
        world.ok(&world.call("GC", &one).conf(&conf))?;
    }
    world.is_as(&before, "after GC")
}

fn gc_calls_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in(world, "GC", "exit 0")?;
    let list = listed(std::slice::from_ref(&one));
    let ran = world.run(&gc(world, &one, &list))?;
    if ran.status != 0 {
        return left_out(format!("its GC fails: {}", ran.told()));
    }
    let path = format!("{CALLED}.GC.stdin");
    let was_called = std::fs::exists(&path).unwrap_or(false);
    ensure!(
        world,
        was_called,
        format!("[ -e {path} ]"),
        "GC succeeds, and the other plugin got none"
    );
    Ok(())
}

fn gc_gives_the_ipam_the_list(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in(world, "GC", "exit 0")?;
    let list = listed(std::slice::from_ref(&one));
    world.run(&gc(world, &one, &list))?;
    let path = format!("{CALLED}.GC.stdin");
    let Ok(text) = std::fs::read_to_string(&path) else {
        return left_out("it does not call the other plugin's GC");
    };
    let conf: Value = serde_json::from_str(&text).unwrap_or_default();
    let shell = format!(
        "jq -e '[.[\"{}\", \"{}\"]] | any(. == {list})' {path} >/dev/null",
        LISTS[0], LISTS[1]
    );
    ensure!(
        world,
        LISTS.iter().any(|key| conf[*key] == list),
        shell,
        "the other plugin got {text}"
    );
    Ok(())
}

fn gc_tells_errors_of_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in(world, "GC", "exit 0")?;
    let call = gc(world, &one, &json!([]));
    let ran = world.run(&call)?;
    if ran.status != 0 {
        return left_out(format!(
            "its GC fails while that of the other plugin succeeds: {}",
            ran.told()
        ));
    }
    if !std::fs::exists(format!("{CALLED}.GC.stdin")).unwrap_or(false) {
        return left_out("it does not call the other plugin's GC");
    }
    world.stand_in(
        "stand-in",
        r#"[ $CNI_COMMAND = GC ] && echo '{"code": 111, "msg": "no"}' && exit 1; exit 0"#,
    )?;
    world
        .fails(&call, "GC while that of the other plugin fails")
        .map(drop)
}

/// The state of an attachment before the DEL of [`gc_then_del`].
fn before_its_del(world: &World<'_>, n: usize) -> Result<(Attachment, Value), Stop> {
    let one = world.attachment(n)?;
    let result = world.add(&one)?;
    if world.description().kind == Kind::Main {
        world.delete_netns(&one)?;
    }
    Ok((one, result))
}

fn gc_then_del(world: &World<'_>) -> Result<(), Stop> {
    world.claims("GC")?;
    world.changes()?;
    let (other, result) = before_its_del(world, 98)?;
    world.deleted(&other, &result)?;
    let (one, result) = before_its_del(world, 0)?;
    world.run(&gc(world, &one, &json!([])))?;
    world.del(&one, &result)
}
