//! Exit status, streams, arguments.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::call::{Call, Stdin};
use crate::check::{Check, Harm, extra, must, quality, should, spec};
use crate::description::VERBS;
use crate::ensure;
use crate::replay::answer;
use crate::sandbox::DIR;
use crate::settings::Stop;
use crate::value::{SHOWN, cut, with};
use crate::world::{Attachment, World};

pub const CHECKS: &[Check] = &[
    spec(
        "add_succeeds",
        "ADD exits with 0 and prints one JSON object and nothing else",
        &[
            must(
                "0.4.0",
                "result",
                "Plugins must indicate success with a return code of zero and the following JSON printed to stdout in the case of the ADD command.",
            ),
            must(
                "1.0.0",
                "errors",
                "A plugin must exit with a return code of 0 on success, and non-zero on failure. … If the CNI plugin is successful, it must output a [result structure](#Success) (see below) on standard out.",
            ),
        ],
        add_succeeds,
    ),
    quality(
        "success_is_silent",
        "DEL, CHECK, STATUS and GC print nothing when they succeed",
        "the specification says \"No output on success\" of GC only, which may be a duty or an expectation, and nothing of DEL and STATUS",
        success_is_silent,
    )
    .harm(Harm::Misleads),
    spec(
        "failure_has_a_status",
        "a call that prints an error object exits with a status other than 0",
        &[
            must(
                "0.4.0",
                "result",
                "Errors must be indicated by a non-zero return code and the following JSON being printed to stdout:",
            ),
            must(
                "1.0.0",
                "errors",
                "A plugin must exit with a return code of 0 on success, and non-zero on failure.",
            ),
        ],
        failure_has_a_status,
    )
    .harm(Harm::Misleads),
    spec(
        "failure_is_one_error",
        "a failing call prints one error object with code and msg",
        &[
            must(
                "0.4.0",
                "result",
                "Errors must be indicated by a non-zero return code and the following JSON being printed to stdout:",
            ),
            should(
                "1.0.0",
                "errors",
                "If the plugin encounters an error, it should output an [\"error\" result structure](#Error) (see below).",
            ),
        ],
        failure_is_one_error,
    ),
    spec(
        "error_has_version",
        "an error object has the cniVersion of the configuration; before 1.0.0, any version of the specification",
        &[
            must(
                "0.4.0",
                "result",
                "Errors must be indicated by a non-zero return code and the following JSON being printed to stdout: … `cniVersion` specifies a [Semantic Version 2.0](https://semver.org) of CNI specification used by the plugin.",
            ),
            should(
                "1.0.0",
                "error",
                "Plugins should output a JSON object with the following keys if they encounter an error: … `cniVersion`: The same value as provided by the configuration",
            ),
            should(
                "1.1.0",
                "error",
                "Plugins should output a JSON object with the following keys if they encounter an error: … `cniVersion`: The protocol version in use",
            ),
        ],
        error_has_version,
    ),
    quality(
        "stderr_is_not_needed",
        "without stderr, results and errors are the same",
        "a runtime may not provide it",
        stderr_is_not_needed,
    ),
    extra(
        "lost_result_is_undone",
        "an ADD whose result cannot be written (EPIPE) fails and undoes everything",
        "a runtime that was killed does not know what to delete",
        lost_result_is_undone,
    ),
    quality(
        "no_child_is_left",
        "no process that outlives a call keeps its stdout or stderr open",
        "libcni waits until both are closed",
        no_child_is_left,
    ),
    extra(
        "stdin_may_be_a_file",
        "the configuration may come from a file",
        "people repeat calls with a file",
        stdin_may_be_a_file,
    ),
    quality(
        "stdin_may_be_large",
        "the configuration may be 32 KiB long",
        "nothing limits it, and the previous result of a long list of plugins takes some KiB",
        stdin_may_be_large,
    ),
    quality(
        "environment_may_be_empty",
        "ADD and DEL need neither HOME nor a working directory, nor any variable except PATH and CNI's own",
        "Multus calls plugins in a chroot with the environment of its daemon",
        environment_may_be_empty,
    ),
    quality(
        "no_verb_tells_versions",
        "without CNI_COMMAND, the plugin prints its versions on stderr and exits with 0, without waiting for stdin",
        "all plugins built on libcni's skel do so",
        no_verb_tells_versions,
    ),
    extra(
        "arguments_have_no_effect",
        "with CNI_COMMAND set, arguments have no effect",
        "libcni passes none, but a wrapper script may",
        arguments_have_no_effect,
    ),
];

fn add_succeeds(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let ran = world.ok(&world.call("ADD", &one))?;
    world.object(&ran).map(drop)
}

fn success_is_silent(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    let mut conf = with(&one.conf, "prevResult", result);
    conf["cni.dev/valid-attachments"] =
        json!([{"containerID": one.container, "ifname": one.ifname}]);
    for verb in ["CHECK", "STATUS", "GC", "DEL"] {
        if !world.description().claims(verb) {
            continue;
        }
        let ran = world.run(&world.call(verb, &one).conf(&conf))?;
        let is_silent = ran.status != 0 || ran.stdout.is_empty();
        ensure!(
            world,
            is_silent,
            "is_silent",
            "{verb} printed {:?}",
            cut(&ran.stdout, SHOWN)
        );
    }
    Ok(())
}

fn failure_has_a_status(world: &World<'_>) -> Result<(), Stop> {
    let mut failed = 0;
    for (call, what) in of_no_configuration(world)? {
        let ran = world.run(&call)?;
        // Whether the plugin takes it for a failure, only the plugin can say.
        let says_so = ran.error().is_ok();
        failed += usize::from(says_so || ran.status != 0);
        ensure!(
            world,
            ran.status != 0 || !says_so,
            "failed || ! is_error",
            "{what}: it exits with 0 and prints the error {}",
            cut(&ran.stdout, SHOWN)
        );
    }
    if failed == 0 {
        Err(Stop::LeftOut("no call failed that could".to_owned()))
    } else {
        Ok(())
    }
}

fn failure_is_one_error(world: &World<'_>) -> Result<(), Stop> {
    let mut failed = 0;
    for (call, what) in of_no_configuration(world)? {
        let ran = world.run(&call)?;
        failed += usize::from(ran.status != 0);
        if let (true, Err(why)) = (ran.status != 0, ran.error()) {
            ensure!(world, false, "succeeded || is_error", "{what}: {why}");
        }
    }
    if failed == 0 {
        Err(Stop::LeftOut("no call failed that could".to_owned()))
    } else {
        Ok(())
    }
}

/// Calls that may well fail, because what is on stdin is no configuration.
fn of_no_configuration(world: &World<'_>) -> Result<Vec<(Call, String)>, Stop> {
    let one = world.attachment(0)?;
    let verbs = VERBS
        .into_iter()
        .filter(|verb| *verb != "VERSION" && world.description().claims(verb));
    let texts = ["", "{", "[]", "7", "\"x\"", "\u{0}"];
    let pairs = verbs.flat_map(|verb| texts.map(|text| (verb, text)));
    Ok(pairs
        .map(|(verb, text)| {
            (
                world.call(verb, &one).text(text),
                format!("{verb} with {text:?} on stdin"),
            )
        })
        .collect())
}

/// Errors of the environment, and of a configuration that was read: stdin is there for both. Which
/// of these a plugin gives, it says itself: if none, there is none to be judged. Before 1.0.0, the version is the one that
/// the plugin uses.
fn error_has_version(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let mut wrong = vec![
        ("a missing CNI_IFNAME", one.conf.clone()),
        ("the name \"a b\"", with(&one.conf, "name", json!("a b"))),
        ("the name \"a/b\"", with(&one.conf, "name", json!("a/b"))),
    ];
    if world.description().delegates() {
        let absent = with(&one.conf, "ipam", json!({"type": "absent"}));
        wrong.push(("an absent ipam", absent));
    }
    let newest = world.description().newest();
    let (mut asked, is_old) = (false, newest.starts_with('0'));
    let versions = world.description().cni_versions.iter().map(String::as_str);
    for version in versions.filter(|version| {
        if is_old {
            *version == newest
        } else {
            version.starts_with('1')
        }
    }) {
        for (number, (what, conf)) in wrong.iter().enumerate() {
            let one = Attachment {
                conf: conf.clone(),
                ..one.clone()
            };
            let one = world.of_version(one, version);
            let mut call = world.call("ADD", &one);
            if number == 0 {
                call = call.without("CNI_IFNAME");
            }
            let ran = world.run(&call)?;
            if ran.status == 0 {
                // The next ADD has to find nothing of it.
                world.run(&world.call("DEL", &one))?;
            }
            let (true, Ok(error)) = (ran.status != 0, ran.error()) else {
                continue;
            };
            asked = true;
            let told = &error["cniVersion"];
            let (is_right, filter) = if is_old {
                (
                    told.is_string(),
                    ".cniVersion | type == \"string\"".to_owned(),
                )
            } else {
                (
                    *told == json!(version),
                    format!(".cniVersion == \"{version}\""),
                )
            };
            ensure!(
                world,
                is_right,
                answer(&filter),
                "ADD with {what}: the error of a configuration of {version} has {told}: {error}"
            );
        }
    }
    let reason = "it gives no error object for any of these";
    if asked {
        Ok(())
    } else {
        Err(Stop::LeftOut(reason.to_owned()))
    }
}

fn stderr_is_not_needed(world: &World<'_>) -> Result<(), Stop> {
    let one = world.working()?;
    let garbage = world.call("ADD", &one).text("{");
    if world.run(&garbage)?.status != 0 {
        world.fails(
            &garbage.null_stderr(),
            "half a configuration without stderr",
        )?;
    } else {
        world.run(&world.call("DEL", &one))?;
    }
    let ran = world.ok(&world.call("ADD", &one).null_stderr())?;
    let result = world.object(&ran)?;
    world
        .ok(&world.del_call(&one, &result).null_stderr())
        .map(drop)
}

fn lost_result_is_undone(world: &World<'_>) -> Result<(), Stop> {
    world.changes()?;
    let one = world.attachment(0)?;
    let before = world.baseline()?;
    let pod = world.pod_state(&one)?;
    world.fails(
        &world.call("ADD", &one).broken_stdout(),
        "ADD whose result is lost",
    )?;
    world.is_as(&before, "after ADD")?;
    world.pod_is_as(&one, &pod, "after ADD")
}

fn no_child_is_left(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let added = world.run(&world.call("ADD", &one))?;
    ensure!(
        world,
        !added.is_held,
        "is_closed",
        "2 s after ADD ended, a process still has its stdout or stderr"
    );
    let deleted = world.run(&world.call("DEL", &one))?;
    ensure!(
        world,
        !deleted.is_held,
        "is_closed",
        "2 s after DEL ended, a process still has its stdout or stderr"
    );
    Ok(())
}

fn stdin_may_be_a_file(world: &World<'_>) -> Result<(), Stop> {
    let one = world.working()?;
    let file = PathBuf::from(DIR).join("bin/conf.json");
    world.write(&file, &one.conf.to_string())?;
    world
        .ok(&world.call("ADD", &one).stdin(Stdin::File(file)))
        .map(drop)
}

fn stdin_may_be_large(world: &World<'_>) -> Result<(), Stop> {
    let one = world.working()?;
    let conf = with(
        &one.conf,
        "args",
        json!({"conformance": {"padding": "x".repeat(32 << 10)}}),
    );
    let ran = world.ok(&world.call("ADD", &one).conf(&conf))?;
    let conf = with(&conf, "prevResult", world.object(&ran)?);
    world.ok(&world.call("DEL", &one).conf(&conf)).map(drop)
}

fn environment_may_be_empty(world: &World<'_>) -> Result<(), Stop> {
    let one = world.working()?;
    let call = world
        .call("ADD", &one)
        .var("HOME", "/nonexistent")
        .var("TMPDIR", "/nonexistent");
    let ran = world.ok(&call)?;
    let result = world.object(&ran)?;
    world.ok(&world.del_call(&one, &result)).map(drop)
}

fn no_verb_tells_versions(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    for call in [
        world.call("", &one).without("CNI_COMMAND"),
        world.call("", &one),
    ] {
        let ran = world.ok(&call.stdin(Stdin::Silent))?;
        let newest = world.description().newest();
        ensure!(
            world,
            ran.stderr.contains(newest),
            format!("says {newest}"),
            "stderr does not name {newest}: {:?}",
            cut(&ran.stderr, SHOWN)
        );
    }
    Ok(())
}

fn arguments_have_no_effect(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    world.tells_versions(&world.call("VERSION", &one))?;
    for argument in ["--version", "--help", "ADD", "--nonsense"] {
        let ran = world.ok(&world.call("VERSION", &one).argument(argument))?;
        let told: Value = world.object(&ran)?;
        let filter = answer(".supportedVersions | type == \"array\"");
        ensure!(
            world,
            told["supportedVersions"].is_array(),
            filter,
            "VERSION with {argument}: {told}"
        );
    }
    Ok(())
}
