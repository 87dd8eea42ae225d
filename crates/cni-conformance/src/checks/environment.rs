//! The variables.

use std::path::Path;

use serde_json::{Value, json};

use crate::call::Call;
use crate::check::{Check, extra, must, quality, should, spec};
use crate::description::Kind;
use crate::ensure;
use crate::replay::answer;
use crate::sandbox::DIR;
use crate::settings::Stop;
use crate::value::with;
use crate::world::World;

/// Why a plugin is asked to refuse what a runtime must not do.
const OF_RUNTIMES: &str = "the specification obliges the runtime to set them correctly, not the plugin to check. Plugins built on libcni's skel check, so that a runtime's mistake does no harm";

pub const CHECKS: &[Check] = &[
    quality(
        "missing_variables_are_refused",
        "a missing required variable is error 4",
        OF_RUNTIMES,
        missing_variables_are_refused,
    ),
    spec(
        "error_4_names_variables",
        "error 4 for a missing variable names that variable",
        &[must(
            "1.0.0",
            "error",
            "Invalid necessary environment variables, like CNI_COMMAND, CNI_CONTAINERID, etc. The error message must contain the names of invalid variables.",
        )],
        error_4_names_variables,
    ),
    quality(
        "empty_variables_are_missing",
        "an empty required variable is error 4",
        "libcni sets variables to the empty string where a verb does not need them",
        empty_variables_are_missing,
    ),
    extra(
        "all_missing_variables_are_named",
        "all missing variables are named at once",
        "one try is then enough to correct them",
        all_missing_variables_are_named,
    ),
    quality(
        "gc_requires_cni_path",
        "GC without CNI_PATH is error 4",
        OF_RUNTIMES,
        gc_requires_cni_path,
    ),
    quality(
        "container_id_has_its_form",
        "an invalid container ID is error 4",
        OF_RUNTIMES,
        container_id_has_its_form,
    ),
    quality(
        "any_container_id_is_served",
        "any valid container ID is accepted: every allowed character, and any length",
        "the specification defines container IDs, which may limit what runtimes send, or say what plugins must accept",
        any_container_id_is_served,
    ),
    extra(
        "container_id_is_judged_first",
        "an invalid container ID is reported before any other fault",
        "plugins built on libcni's skel do so",
        container_id_is_judged_first,
    ),
    quality(
        "ifname_has_its_form",
        "an interface name that the kernel would refuse is error 4",
        OF_RUNTIMES,
        ifname_has_its_form,
    ),
    spec(
        "status_needs_no_container",
        "STATUS needs no container, no namespace and no interface",
        &[must(
            "1.1.0",
            "status-check-plugin-status",
            "A plugin must exit with a zero (success) return code if the plugin is ready to service ADD requests. … Optional environment parameters: … `CNI_PATH`",
        )],
        status_needs_no_container,
    ),
    spec(
        "gc_needs_no_container",
        "GC needs no container, no namespace and no interface",
        &[should(
            "1.1.0",
            "gc-clean-up-any-stale-resources",
            "Plugins should generally complete a `GC` action without error. … When garbage-collecting a configuration, there are no [Attachment Parameters](#attachment-parameters).",
        )],
        gc_needs_no_container,
    ),
    quality(
        "unknown_verb_is_refused",
        "an unknown verb, or one in lower case, is error 4 and changes nothing",
        OF_RUNTIMES,
        unknown_verb_is_refused,
    ),
    quality(
        "netns_may_be_any_path",
        "CNI_NETNS may be a symbolic link",
        "up to 0.4.0 the specification said \"a bind-mount/link to it\", without a must; since then, \"a path to the network namespace\"",
        netns_may_be_any_path,
    ),
    extra(
        "own_netns_is_refused",
        "ADD and DEL for the plugin's own namespace are error 8",
        "it would change the host; plugins built on libcni's skel refuse it, with this code, which no version of the specification has",
        own_netns_is_refused,
    ),
    extra(
        "own_netns_is_refused_first",
        "an ADD for the plugin's own namespace that fails changes nothing",
        "it would change the host",
        own_netns_is_refused_first,
    ),
    quality(
        "what_is_no_netns_is_refused",
        "an ADD whose CNI_NETNS does not exist, or is not a namespace, fails and changes nothing",
        "a pod may end before its ADD",
        what_is_no_netns_is_refused,
    ),
    quality(
        "cni_args_are_read_leniently",
        "CNI_ARGS may contain duplicate, empty and unknown keys, and empty values",
        "the specification says \"Alphanumeric key-value pairs separated by semicolons\", and Multus writes each key twice",
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

fn is_four(world: &World<'_>, call: &Call, what: &str) -> Result<Value, Stop> {
    world.claims_version_1()?;
    let error = world.refused(call, what)?;
    ensure!(
        world,
        error["code"] == 4,
        answer(".code == 4"),
        "{what}: the code is {}",
        error["code"]
    );
    Ok(error)
}

/// ADD, DEL and CHECK as far as they are claimed, each without each variable that it requires.
fn without_one(world: &World<'_>) -> Result<Vec<(Call, &'static str, String)>, Stop> {
    let one = world.attachment(0)?;
    let verbs = ["ADD", "DEL", "CHECK"]
        .into_iter()
        .filter(|verb| world.description().claims(verb));
    let pairs = verbs.flat_map(|verb| needed(verb).iter().map(move |name| (verb, *name)));
    Ok(pairs
        .map(|(verb, name)| {
            (
                world.call(verb, &one).without(name),
                name,
                format!("{verb} without {name}"),
            )
        })
        .collect())
}

fn missing_variables_are_refused(world: &World<'_>) -> Result<(), Stop> {
    for (call, _, what) in without_one(world)? {
        is_four(world, &call, &what)?;
    }
    Ok(())
}

fn error_4_names_variables(world: &World<'_>) -> Result<(), Stop> {
    let mut asked = false;
    for (call, name, what) in without_one(world)? {
        let ran = world.run(&call)?;
        let Some(error) = ran
            .error()
            .ok()
            .filter(|error| ran.status != 0 && error["code"] == 4)
        else {
            continue;
        };
        asked = true;
        let is_named = error.to_string().contains(name);
        ensure!(
            world,
            is_named,
            answer(&format!("tostring | contains(\"{name}\")")),
            "{what}: the error 4 does not name it: {error}"
        );
    }
    if asked {
        Ok(())
    } else {
        Err(Stop::LeftOut(
            "it gives no error 4 for a variable that is missing".to_owned(),
        ))
    }
}

fn empty_variables_are_missing(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    for verb in ["ADD", "DEL", "CHECK"]
        .into_iter()
        .filter(|verb| world.description().claims(verb))
    {
        for name in needed(verb) {
            is_four(
                world,
                &world.call(verb, &one).var(name, ""),
                &format!("{verb} with empty {name}"),
            )?;
        }
    }
    Ok(())
}

fn all_missing_variables_are_named(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let call = needed("ADD")
        .iter()
        .fold(world.call("ADD", &one), |call, name| call.without(name));
    let error = is_four(world, &call, "ADD without any")?.to_string();
    for name in needed("ADD") {
        let filter = answer(&format!("tostring | contains(\"{name}\")"));
        ensure!(
            world,
            error.contains(name),
            filter,
            "the error does not name {name}: {error}"
        );
    }
    Ok(())
}

fn gc_requires_cni_path(world: &World<'_>) -> Result<(), Stop> {
    world.claims("GC")?;
    let one = world.attachment(0)?;
    is_four(
        world,
        &world.call("GC", &one).without("CNI_PATH"),
        "GC without CNI_PATH",
    )
    .map(drop)
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
    for id in [
        "0".to_owned(),
        "A.b_c-d".to_owned(),
        "a..b".to_owned(),
        "f".repeat(64),
    ] {
        let ran = world.ok(&world.call("ADD", &one).var("CNI_CONTAINERID", &id))?;
        let result = world.object(&ran)?;
        world.ok(&world.del_call(&one, &result).var("CNI_CONTAINERID", &id))?;
        one = world.renewed(one)?;
    }
    Ok(())
}

fn container_id_is_judged_first(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let wrong = world.call("ADD", &one).var("CNI_CONTAINERID", "a b");
    let ran = world.run(&wrong)?;
    let Some(alone) = ran
        .error()
        .ok()
        .filter(|error| ran.status != 0 && error["code"] == 4)
    else {
        return Err(Stop::LeftOut(
            "it does not refuse a wrong ID with error 4".to_owned(),
        ));
    };
    let with_name = wrong.clone().var("CNI_IFNAME", "a/b");
    for call in [
        wrong.without("CNI_NETNS").without("CNI_IFNAME"),
        with_name.clone(),
        with_name.text("{"),
    ] {
        let error = is_four(world, &call, "a wrong ID, and more")?;
        ensure!(
            world,
            error["msg"] == alone["msg"],
            answer(&format!(".msg == {}", alone["msg"])),
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
            is_four(
                world,
                &world.call(verb, &one).var("CNI_IFNAME", name),
                &format!("{verb} for {name:?}"),
            )?;
        }
    }
    Ok(())
}

/// `verb` without an attachment, where it succeeds with one.
fn needs_no_container(world: &World<'_>, verb: &str) -> Result<(), Stop> {
    world.claims(verb)?;
    let one = if verb == "STATUS" {
        world.working()?
    } else {
        world.attachment(0)?
    };
    let call =
        world
            .call(verb, &one)
            .conf(&with(&one.conf, "cni.dev/valid-attachments", json!([])));
    let ran = world.run(&call)?;
    if ran.status != 0 {
        return Err(Stop::LeftOut(format!(
            "its {verb} fails with a container, too: {}",
            ran.told()
        )));
    }
    let names = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"];
    world.ok(&names
        .iter()
        .fold(call.clone(), |call, name| call.without(name)))?;
    // As libcni does.
    world
        .ok(&names.iter().fold(call, |call, name| call.var(name, "")))
        .map(drop)
}

fn status_needs_no_container(world: &World<'_>) -> Result<(), Stop> {
    needs_no_container(world, "STATUS")
}

fn gc_needs_no_container(world: &World<'_>) -> Result<(), Stop> {
    needs_no_container(world, "GC")
}

fn unknown_verb_is_refused(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let before = world.state()?;
    for verb in ["add", "Del", "UPDATE"] {
        is_four(
            world,
            &world.call(verb, &one),
            &format!("the verb {verb:?}"),
        )?;
    }
    world.is_as(&before, "after verbs that do not exist")
}

fn netns_may_be_any_path(world: &World<'_>) -> Result<(), Stop> {
    let one = world.working()?;
    let path = world.link_to(&one)?.to_string_lossy().into_owned();
    let ran = world.ok(&world.call("ADD", &one).var("CNI_NETNS", &path))?;
    let result = world.object(&ran)?;
    world
        .ok(&world.del_call(&one, &result).var("CNI_NETNS", &path))
        .map(drop)
}

fn own_netns_is_refused(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main, Kind::Meta])?;
    let one = world.attachment(0)?;
    for verb in ["ADD", "DEL"] {
        let ran = world.fails(
            &world.call(verb, &one).var("CNI_NETNS", "/proc/self/ns/net"),
            verb,
        )?;
        // One object, or two: see the next check.
        let says = ran.stdout.replace([' ', '\n'], "").contains("\"code\":8");
        ensure!(world, says, "has_code 8", "{verb}: {}", ran.told());
    }
    Ok(())
}

fn own_netns_is_refused_first(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let before = world.baseline()?;
    let ran = world.run(
        &world
            .call("ADD", &one)
            .var("CNI_NETNS", "/proc/self/ns/net"),
    )?;
    if ran.status == 0 {
        return Err(Stop::LeftOut("that ADD succeeds".to_owned()));
    }
    world.is_as(&before, "after ADD")
}

fn what_is_no_netns_is_refused(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let one = world.attachment(0)?;
    let before = world.baseline()?;
    let file = Path::new(DIR).join("bin/file");
    world.write(&file, "")?;
    for path in [
        "/nonexistent/netns",
        &file.to_string_lossy(),
        "/dev/null",
        "/proc/self/ns/mnt",
    ] {
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
        let ran = world.ok(&world.call("ADD", &one).var("CNI_ARGS", &args))?;
        let result = world.object(&ran)?;
        world.ok(&world.del_call(&one, &result).var("CNI_ARGS", &args))?;
        one = world.renewed(one)?;
    }
    Ok(())
}
