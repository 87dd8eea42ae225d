//! docs/cni-contract.md, items 42 to 44: VERSION.

use serde_json::{Value, json};

use super::{Check, Must, Quality, check};
use crate::call::Stdin;
use crate::description::VERSIONS;
use crate::ensure;
use crate::world::{Stop, World};

pub const CHECKS: &[Check] = &[
    check(
        "version_lists_versions",
        &[33, 42],
        Must,
        "VERSION prints cniVersion and the supportedVersions, with all that it claims",
        version_lists_versions,
    ),
    check(
        "version_answers_in_the_version_asked",
        &[43],
        Must,
        "the cniVersion of VERSION's answer is the one on stdin",
        version_answers_in_the_version_asked,
    ),
    check(
        "version_takes_any_stdin",
        &[43],
        Quality,
        "VERSION succeeds with an empty stdin, one that is closed, and one that is no JSON",
        version_takes_any_stdin,
    ),
    check(
        "version_does_not_wait",
        &[43],
        Quality,
        "VERSION does not wait for a stdin that says nothing",
        version_does_not_wait,
    ),
    check(
        "version_needs_no_variable",
        &[25],
        Must,
        "VERSION ignores all other variables",
        version_needs_no_variable,
    ),
    check("version_changes_nothing", &[44], Quality, "VERSION changes nothing", version_changes_nothing),
];

fn ask(world: &World<'_>, text: &str) -> Result<Value, Stop> {
    let one = world.attachment(0)?;
    world.ok(&world.call("VERSION", &one).text(text))?.result().map_err(Stop::Fails)
}

fn version_lists_versions(world: &World<'_>) -> Result<(), Stop> {
    let newest = world.description().newest();
    let answer = ask(world, &json!({"cniVersion": newest}).to_string())?;
    ensure!(answer["cniVersion"].is_string(), "cniVersion is {}", answer["cniVersion"]);
    let listed = answer["supportedVersions"].as_array().cloned().unwrap_or_default();
    for version in &world.description().cni_versions {
        ensure!(listed.contains(&json!(version)), "supportedVersions has no {version}: {answer}");
    }
    Ok(())
}

fn version_answers_in_the_version_asked(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    for version in VERSIONS.into_iter().filter(|version| world.description().claims_version(version)) {
        let call = world.call("VERSION", &one).conf(&json!({"cniVersion": version}));
        let answer = world.ok(&call)?.result().map_err(Stop::Fails)?;
        ensure!(
            answer["cniVersion"] == json!(version),
            "asked for {version}, it answered {}",
            answer["cniVersion"]
        );
    }
    Ok(())
}

fn version_takes_any_stdin(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let call = world.call("VERSION", &one);
    let mut calls: Vec<_> =
        ["", "{", "x", "[]", "null", "{}"].iter().map(|text| call.clone().text(*text)).collect();
    calls.push(call.stdin(Stdin::Closed));
    for call in calls {
        let answer = world.ok(&call)?.result().map_err(Stop::Fails)?;
        ensure!(answer["supportedVersions"].is_array(), "it answered {answer}");
    }
    Ok(())
}

fn version_does_not_wait(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let ran = world.ok(&world.call("VERSION", &one).stdin(Stdin::Silent))?;
    ran.result().map(drop).map_err(Stop::Fails)
}

fn version_needs_no_variable(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let names = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH", "CNI_ARGS"];
    let call = world.call("VERSION", &one);
    world.ok(&names.iter().fold(call.clone(), |call, name| call.without(name)))?;
    // As libcni does.
    world.ok(&names.iter().fold(call.clone(), |call, name| call.var(name, "dummy")))?;
    world.ok(&names.iter().fold(call, |call, name| call.var(name, "///"))).map(drop)
}

fn version_changes_nothing(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let (before, pod) = (world.state()?, world.pod_state(&one)?);
    world.ok(&world.call("VERSION", &one))?;
    world.is_as(&before, "after VERSION")?;
    world.pod_is_as(&one, &pod, "after VERSION")
}
