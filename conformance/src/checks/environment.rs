//! docs/cni-contract.md, items 16 to 29: the variables.

use std::path::Path;

use serde_json::json;

use super::{Check, Must, Quality, Should, check};
use crate::description::Kind;
use crate::ensure;
use crate::sandbox::DIR;
use crate::world::{Stop, World, with};

pub const CHECKS: &[Check] = &[
    check(
        "missing_variables_are_named",
        &[17, 18],
        Should,
        "a required variable that is missing is error 4, which names it",
        missing_variables_are_named,
    ),
    check(
        "empty_variables_are_missing",
        &[17],
        Quality,
        "a required variable that is empty is error 4",
        empty_variables_are_missing,
    ),
    check(
        "all_missing_variables_are_named",
        &[16, 17],
        Quality,
        "all missing variables are named at once",
        all_missing_variables_are_named,
    ),
    check(
        "cni_path_is_required",
        &[19],
        Should,
        "GC requires CNI_PATH: without it there is error 4",
        cni_path_is_required,
    ),
    check(
        "container_id_has_its_form",
        &[20],
        Should,
        "a container ID that is no identifier is error 4",
        container_id_has_its_form,
    ),
    check(
        "any_container_id_is_served",
        &[20],
        Must,
        "a container ID with all characters that are allowed is served, also a long one",
        any_container_id_is_served,
    ),
    check(
        "container_id_is_judged_first",
        &[16, 21],
        Quality,
        "a wrong container ID is told before what is wrong after it",
        container_id_is_judged_first,
    ),
    check(
        "ifname_has_its_form",
        &[22],
        Quality,
        "an interface name that the kernel does not take is error 4",
        ifname_has_its_form,
    ),
    check(
        "gc_and_status_need_no_container",
        &[19, 23, 98, 104],
        Must,
        "GC and STATUS ignore container, namespace and interface",
        gc_and_status_need_no_container,
    ),
    check(
        "unknown_verb_is_refused",
        &[24],
        Should,
        "a verb that does not exist, or in small letters, is error 4",
        unknown_verb_is_refused,
    ),
    check("netns_may_be_any_path", &[26], Must, "CNI_NETNS may be a symbolic link", netns_may_be_any_path),
    check(
        "own_netns_is_refused",
        &[27],
        Quality,
        "ADD and DEL in the plugin's own namespace are error 8",
        own_netns_is_refused,
    ),
    check(
        "own_netns_is_refused_first",
        &[27],
        Quality,
        "an ADD in the plugin's own namespace changes nothing",
        own_netns_is_refused_first,
    ),
    check(
        "what_is_no_netns_is_refused",
        &[28],
        Quality,
        "an ADD whose CNI_NETNS is missing or no namespace fails and changes nothing",
        what_is_no_netns_is_refused,
    ),
    check(
        "cni_args_are_read_leniently",
        &[29],
        Quality,
        "CNI_ARGS may have keys twice, empty keys and values, and keys that nobody knows",
        cni_args_are_read_leniently,
    ),
];

fn needed(verb: &str) -> &'static [&'static str] {
    match verb {
        "ADD" | "CHECK" => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
        "DEL" => &["CNI_CONTAINERID", "CNI_IFNAME"],
        _ => &[],
    }
}

fn is_four(world: &World<'_>, call: &crate::call::Call, what: &str) -> Result<serde_json::Value, Stop> {
    let error = world.refused(call, what)?;
    ensure!(error["code"] == 4, "{what}: the code is {}", error["code"]);
    Ok(error)
}

fn missing_variables_are_named(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    for verb in ["ADD", "DEL", "CHECK"].into_iter().filter(|verb| world.description().claims(verb)) {
        for name in needed(verb) {
            let error =
                is_four(world, &world.call(verb, &one).without(name), &format!("{verb} without {name}"))?;
            ensure!(
                error.to_string().contains(name),
                "{verb} without {name}: the error does not name it: {error}"
            );
        }
    }
    Ok(())
}

fn empty_variables_are_missing(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    for verb in ["ADD", "DEL", "CHECK"].into_iter().filter(|verb| world.description().claims(verb)) {
        for name in needed(verb) {
            is_four(world, &world.call(verb, &one).var(name, ""), &format!("{verb} with empty {name}"))?;
        }
    }
    Ok(())
}

fn all_missing_variables_are_named(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let call = needed("ADD").iter().fold(world.call("ADD", &one), |call, name| call.without(name));
    let error = is_four(world, &call, "ADD without any")?.to_string();
    let at: Vec<_> = needed("ADD").iter().map(|name| error.find(name)).collect();
    ensure!(at.iter().all(Option::is_some), "the error does not name all: {error}");
    ensure!(at.is_sorted(), "the error names them in another order: {error}");
    Ok(())
}

fn cni_path_is_required(world: &World<'_>) -> Result<(), Stop> {
    world.claims("GC")?;
    let one = world.attachment(0)?;
    is_four(world, &world.call("GC", &one).without("CNI_PATH"), "GC without CNI_PATH").map(drop)
}

fn container_id_has_its_form(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    for verb in ["ADD", "DEL"] {
        for id in ["-a", ".a", "_a", "a b", "a/b", "../a", "a\n", "é", "a:b"] {
            is_four(
                world,
                &world.call(verb, &one).var("CNI_CONTAINERID", id),
                &format!("{verb} for {id:?}"),
            )?;
        }
    }
    Ok(())
}

fn any_container_id_is_served(world: &World<'_>) -> Result<(), Stop> {
    let mut one = world.working()?;
    for id in ["0".to_owned(), "A.b_c-d".to_owned(), "a..b".to_owned(), "f".repeat(64)] {
        let result =
            world.ok(&world.call("ADD", &one).var("CNI_CONTAINERID", &id))?.result().map_err(Stop::Fails)?;
        world.ok(&world.del_call(&one, &result).var("CNI_CONTAINERID", &id))?;
        one = world.renewed(one)?;
    }
    Ok(())
}

fn container_id_is_judged_first(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let wrong = world.call("ADD", &one).var("CNI_CONTAINERID", "a b");
    let alone = is_four(world, &wrong, "a wrong ID")?;
    let with_name = wrong.clone().var("CNI_IFNAME", "a/b");
    for call in [wrong.without("CNI_NETNS").without("CNI_IFNAME"), with_name.clone(), with_name.text("{")] {
        let error = is_four(world, &call, "a wrong ID, and more")?;
        ensure!(
            error["msg"] == alone["msg"],
            "the error is {}, and of the ID alone {}",
            error["msg"],
            alone["msg"]
        );
    }
    Ok(())
}

fn ifname_has_its_form(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    for verb in ["ADD", "DEL"] {
        for name in [".", "..", "a/b", "a:b", "a b", "a\tb", "sixteen-bytes-xx"] {
            is_four(world, &world.call(verb, &one).var("CNI_IFNAME", name), &format!("{verb} for {name:?}"))?;
        }
    }
    Ok(())
}

fn gc_and_status_need_no_container(world: &World<'_>) -> Result<(), Stop> {
    if !world.description().claims("GC") {
        world.claims("STATUS")?;
    }
    let one = world.attachment(0)?;
    let conf = with(&one.conf, "cni.dev/valid-attachments", json!([]));
    for verb in ["GC", "STATUS"].into_iter().filter(|verb| world.description().claims(verb)) {
        let names = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"];
        let call = world.call(verb, &one).conf(&conf);
        world.ok(&names.iter().fold(call.clone(), |call, name| call.without(name)))?;
        world.ok(&names.iter().fold(call.clone(), |call, name| call.var(name, "")))?;
    }
    Ok(())
}

fn unknown_verb_is_refused(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let before = world.state()?;
    for verb in ["add", "Del", "UPDATE"] {
        is_four(world, &world.call(verb, &one), &format!("the verb {verb:?}"))?;
    }
    world.is_as(&before, "after verbs that do not exist")
}

fn netns_may_be_any_path(world: &World<'_>) -> Result<(), Stop> {
    let one = world.working()?;
    let path = world.link_to(&one)?.to_string_lossy().into_owned();
    let result = world.ok(&world.call("ADD", &one).var("CNI_NETNS", &path))?.result().map_err(Stop::Fails)?;
    if world.description().kind == Kind::Main {
        world.in_pod(&one, "link show net1").map_err(|_| Stop::Fails("the pod has no net1".to_owned()))?;
    }
    world.ok(&world.del_call(&one, &result).var("CNI_NETNS", &path)).map(drop)
}

fn own_netns_is_refused(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    for verb in ["ADD", "DEL"] {
        let ran = world.fails(&world.call(verb, &one).var("CNI_NETNS", "/proc/self/ns/net"), verb)?;
        // One object, or two: see the next check.
        ensure!(ran.stdout.replace(' ', "").contains("\"code\":8"), "{verb}: {}", ran.told());
    }
    Ok(())
}

fn own_netns_is_refused_first(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let before = world.baseline()?;
    world.fails(&world.call("ADD", &one).var("CNI_NETNS", "/proc/self/ns/net"), "ADD")?;
    world.is_as(&before, "after ADD")
}

fn what_is_no_netns_is_refused(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let one = world.attachment(0)?;
    let before = world.baseline()?;
    let file = Path::new(DIR).join("bin/file");
    world.write(&file, "")?;
    for path in ["/nonexistent/netns", &file.to_string_lossy(), "/dev/null", "/proc/self/ns/mnt"] {
        world.fails(&world.call("ADD", &one).var("CNI_NETNS", path), path)?;
        world.is_as(&before, &format!("after ADD with CNI_NETNS={path}"))?;
    }
    Ok(())
}

fn cni_args_are_read_leniently(world: &World<'_>) -> Result<(), Stop> {
    let mut one = world.working()?;
    let names = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod";
    for args in [
        "K8S_POD_UID=;IgnoreUnknown=1",
        "IgnoreUnknown=1;IgnoreUnknown=true;K8S_POD_NAME=other",
        "IgnoreUnknown=1;Unknown=1",
        "IgnoreUnknown=1;;",
        "IgnoreUnknown=1;A=b=c",
    ] {
        let args = format!("{names};{args}");
        let ran = world.run(&world.call("ADD", &one).var("CNI_ARGS", &args))?;
        ensure!(ran.status == 0, "ADD with {args}: {}", ran.told());
        let result = ran.result().map_err(Stop::Fails)?;
        let ran = world.run(&world.del_call(&one, &result).var("CNI_ARGS", &args))?;
        ensure!(ran.status == 0, "DEL with {args}: {}", ran.told());
        one = world.renewed(one)?;
    }
    Ok(())
}
