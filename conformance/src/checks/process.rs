//! docs/cni-contract.md, items 1 to 15: exit status, streams, arguments.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Check, Must, Quality, Should, check};
use crate::call::{Call, Stdin};
use crate::description::VERBS;
use crate::ensure;
use crate::sandbox::DIR;
use crate::world::{SHOWN, Stop, World, cut, with};

pub const CHECKS: &[Check] = &[
    check(
        "add_succeeds",
        &[1, 2, 6],
        Must,
        "ADD exits with 0 and prints one JSON object and nothing else",
        add_succeeds,
    ),
    check(
        "success_is_silent",
        &[7],
        Should,
        "DEL, CHECK, STATUS and GC print nothing when they succeed",
        success_is_silent,
    ),
    check(
        "failure_has_a_status",
        &[1, 5],
        Must,
        "a failure exits with another status than 0",
        failure_has_a_status,
    ),
    check(
        "failure_is_one_error",
        &[3],
        Should,
        "a failure prints one error object with code and msg",
        failure_is_one_error,
    ),
    check(
        "error_has_version",
        &[4],
        Should,
        "an error object has the cniVersion of the configuration",
        error_has_version,
    ),
    check(
        "stderr_is_not_needed",
        &[8],
        Quality,
        "without stderr, results and errors are the same",
        stderr_is_not_needed,
    ),
    check(
        "lost_result_is_undone",
        &[10],
        Quality,
        "an ADD whose result nobody reads (EPIPE) fails and undoes everything",
        lost_result_is_undone,
    ),
    check(
        "no_child_is_left",
        &[11],
        Quality,
        "no process that keeps stdout or stderr open survives a call",
        no_child_is_left,
    ),
    check(
        "stdin_may_be_a_file",
        &[12],
        Quality,
        "the configuration may come from a file",
        stdin_may_be_a_file,
    ),
    check("stdin_may_be_large", &[12], Quality, "the configuration may have 32 KiB", stdin_may_be_large),
    check(
        "environment_may_be_empty",
        &[13],
        Quality,
        "ADD and DEL need no HOME, no directory and no variable but PATH and CNI's",
        environment_may_be_empty,
    ),
    check(
        "no_verb_tells_versions",
        &[14],
        Quality,
        "without CNI_COMMAND it prints its versions on stderr, exits with 0 and does not wait for stdin",
        no_verb_tells_versions,
    ),
    check(
        "arguments_have_no_effect",
        &[15],
        Quality,
        "with CNI_COMMAND, arguments have no effect",
        arguments_have_no_effect,
    ),
];

fn add_succeeds(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let ran = world.ok(&world.call("ADD", &one))?;
    ran.result().map(drop).map_err(Stop::Fails)
}

fn success_is_silent(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    let mut conf = with(&one.conf, "prevResult", result);
    conf["cni.dev/valid-attachments"] = json!([{"containerID": one.container, "ifname": one.ifname}]);
    for verb in ["CHECK", "STATUS", "GC", "DEL"] {
        if !world.description().claims(verb) {
            continue;
        }
        let ran = world.run(&world.call(verb, &one).conf(&conf))?;
        ensure!(ran.status != 0 || ran.stdout.is_empty(), "{verb} printed {:?}", cut(&ran.stdout, SHOWN));
    }
    Ok(())
}

fn failure_has_a_status(world: &World<'_>) -> Result<(), Stop> {
    for (call, what) in of_no_configuration(world)? {
        world.fails(&call, &what)?;
    }
    Ok(())
}

fn failure_is_one_error(world: &World<'_>) -> Result<(), Stop> {
    for (call, what) in of_no_configuration(world)? {
        world.refused(&call, &what)?;
    }
    Ok(())
}

/// Calls that cannot succeed, because what is on stdin is no configuration.
fn of_no_configuration(world: &World<'_>) -> Result<Vec<(Call, String)>, Stop> {
    let one = world.attachment(0)?;
    let verbs = VERBS.into_iter().filter(|verb| *verb != "VERSION" && world.description().claims(verb));
    let texts = ["", "{", "[]", "7", "\"x\"", "\u{0}"];
    let pairs = verbs.flat_map(|verb| texts.map(|text| (verb, text)));
    Ok(pairs
        .map(|(verb, text)| (world.call(verb, &one).text(text), format!("{verb} with {text:?} on stdin")))
        .collect())
}

fn error_has_version(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    for version in &world.description().cni_versions {
        let one = world.of_version(one.clone(), version);
        let error = world.refused(
            &world.call("ADD", &one).conf(&with(&one.conf, "name", json!("a b"))),
            "a name with a space",
        )?;
        ensure!(
            error["cniVersion"] == json!(version),
            "the error of a configuration of {version} has {}",
            error["cniVersion"]
        );
    }
    Ok(())
}

fn stderr_is_not_needed(world: &World<'_>) -> Result<(), Stop> {
    let one = world.working()?;
    world.fails(&world.call("ADD", &one).text("{").null_stderr(), "half a configuration")?;
    let ran = world.ok(&world.call("ADD", &one).null_stderr())?;
    let result = ran.result().map_err(Stop::Fails)?;
    world.ok(&world.del_call(&one, &result).null_stderr()).map(drop)
}

fn lost_result_is_undone(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let before = world.baseline()?;
    let pod = world.pod_state(&one)?;
    let ran = world.run(&world.call("ADD", &one).broken_stdout())?;
    ensure!(ran.status != 0, "ADD succeeded, and its result is lost");
    world.is_as(&before, "after ADD")?;
    world.pod_is_as(&one, &pod, "after ADD")
}

fn no_child_is_left(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let added = world.run(&world.call("ADD", &one))?;
    ensure!(!added.is_held, "2 s after ADD ended, a process still has its stdout or stderr");
    let deleted = world.run(&world.call("DEL", &one))?;
    ensure!(!deleted.is_held, "2 s after DEL ended, a process still has its stdout or stderr");
    Ok(())
}

fn stdin_may_be_a_file(world: &World<'_>) -> Result<(), Stop> {
    let one = world.working()?;
    let file = PathBuf::from(DIR).join("bin/conf.json");
    world.write(&file, &one.conf.to_string())?;
    world.ok(&world.call("ADD", &one).stdin(Stdin::File(file)))?;
    world.fails(&world.call("ADD", &one).stdin(Stdin::File("/dev/null".into())), "/dev/null").map(drop)
}

fn stdin_may_be_large(world: &World<'_>) -> Result<(), Stop> {
    let one = world.working()?;
    let conf = with(&one.conf, "args", json!({"conformance": {"padding": "x".repeat(32 << 10)}}));
    world.ok(&world.call("ADD", &one).conf(&conf))?;
    world.ok(&world.call("DEL", &one).conf(&conf)).map(drop)
}

fn environment_may_be_empty(world: &World<'_>) -> Result<(), Stop> {
    let one = world.working()?;
    let call = world.call("ADD", &one).var("HOME", "/nonexistent").var("TMPDIR", "/nonexistent");
    let result = world.ok(&call.without("CNI_ARGS"))?.result().map_err(Stop::Fails)?;
    world.ok(&world.del_call(&one, &result).without("CNI_ARGS")).map(drop)
}

fn no_verb_tells_versions(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    for call in [world.call("", &one).without("CNI_COMMAND"), world.call("", &one)] {
        let ran = world.ok(&call.stdin(Stdin::Silent))?;
        let newest = world.description().newest();
        ensure!(ran.stderr.contains(newest), "stderr does not name {newest}: {:?}", cut(&ran.stderr, SHOWN));
    }
    Ok(())
}

fn arguments_have_no_effect(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    for argument in ["--version", "--help", "ADD", "--nonsense"] {
        let ran = world.ok(&world.call("VERSION", &one).argument(argument))?;
        let answer: Value = ran.result().map_err(Stop::Fails)?;
        ensure!(answer["supportedVersions"].is_array(), "VERSION with {argument}: {answer}");
    }
    Ok(())
}
