//! VERSION.

use serde_json::{Value, json};

use crate::call::{Call, Stdin};
use crate::check::{Check, Harm, ends, extra, must, quality, spec};
use crate::description::VERSIONS;
use crate::ensure;
use crate::replay::answer;
use crate::settings::Stop;
use crate::world::World;

const TWO_WORDS: &str = "section 2 says should for the same output, and section 5 must";

pub const CHECKS: &[Check] = &[
    spec(
        "version_lists_versions",
        "VERSION prints cniVersion, a string, and supportedVersions, a list of strings",
        &[must(
            "0.4.0",
            "parameters",
            "The operations that CNI plugins must support are: … `VERSION`: Report version … Result: information about the CNI spec versions supported by the plugin",
        ), ends("1.0.0")],
        version_lists_versions,
    )
    .harm(Harm::Misleads)
    .but(TWO_WORDS),
    quality(
        "version_answers_in_the_version_asked",
        "from 1.0.0 on, VERSION answers with the cniVersion on stdin",
        TWO_WORDS,
        version_answers_in_the_version_asked,
    ),
    extra(
        "version_takes_any_stdin",
        "VERSION succeeds if stdin is empty, closed, or not JSON",
        "people and scripts call VERSION by hand",
        version_takes_any_stdin,
    ),
    extra(
        "version_does_not_wait",
        "VERSION does not wait for input on stdin",
        "people and scripts call VERSION by hand",
        version_does_not_wait,
    ),
    spec(
        "version_needs_no_variable",
        "VERSION needs no variable except CNI_COMMAND",
        &[must(
            "0.4.0",
            "parameters",
            "The operations that CNI plugins must support are: … `VERSION`: Report version … Parameters: NONE.",
        ), must(
            "1.0.0",
            "version-1",
            "Plugins must output a JSON object with the following keys upon a `VERSION` operation: … Required environment parameters: … `CNI_COMMAND`",
        )],
        version_needs_no_variable,
    ),
    quality(
        "version_ignores_variables",
        "VERSION ignores the values of all other variables",
        "libcni sets them to the word \"dummy\"",
        version_ignores_variables,
    ),
    quality(
        "version_changes_nothing",
        "VERSION changes nothing",
        "CRI-O calls it whenever a file in its network directory changes",
        version_changes_nothing,
    ),
];

/// Where VERSION succeeds as libcni asks it: with the other variables set.
fn asked(world: &World<'_>) -> Result<Call, Stop> {
    let one = world.attachment(0)?;
    let call = world
        .call("VERSION", &one)
        .conf(&json!({"cniVersion": world.description().newest()}));
    let ran = world.run(&call)?;
    match ran.status == 0 && ran.result().is_ok() {
        true => Ok(call),
        false => Err(Stop::LeftOut(format!("its VERSION fails: {}", ran.told()))),
    }
}

fn version_lists_versions(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let call = world
        .call("VERSION", &one)
        .conf(&json!({"cniVersion": world.description().newest()}));
    let ran = world.ok(&call)?;
    let told = world.object(&ran)?;
    let filter = answer(".cniVersion | type == \"string\"");
    ensure!(
        world,
        told["cniVersion"].is_string(),
        filter,
        "cniVersion is {}",
        told["cniVersion"]
    );
    let listed = told["supportedVersions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let is_list = !listed.is_empty() && listed.iter().all(Value::is_string);
    let filter = answer(".supportedVersions | length > 0 and all(type == \"string\")");
    ensure!(
        world,
        is_list,
        filter,
        "supportedVersions is {}",
        told["supportedVersions"]
    );
    Ok(())
}

/// Up to 0.4.0, it is the version that the plugin uses for its answer.
fn version_answers_in_the_version_asked(world: &World<'_>) -> Result<(), Stop> {
    world.claims_version_1()?;
    let call = asked(world)?;
    let versions = VERSIONS
        .into_iter()
        .filter(|version| version.starts_with('1'));
    for version in versions.filter(|version| world.description().claims_version(version)) {
        let ran = world.ok(&call.clone().conf(&json!({"cniVersion": version})))?;
        let told = world.object(&ran)?;
        let filter = answer(&format!(".cniVersion == \"{version}\""));
        let is_same = told["cniVersion"] == json!(version);
        ensure!(
            world,
            is_same,
            filter,
            "asked for {version}, it answered {}",
            told["cniVersion"]
        );
    }
    Ok(())
}

fn version_takes_any_stdin(world: &World<'_>) -> Result<(), Stop> {
    let call = asked(world)?;
    world.tells_versions(&call)?;
    let mut calls: Vec<_> = ["", "{", "x", "[]", "null", "{}"]
        .iter()
        .map(|text| call.clone().text(*text))
        .collect();
    calls.push(call.stdin(Stdin::Closed));
    for call in calls {
        let ran = world.ok(&call)?;
        let told = world.object(&ran)?;
        let filter = answer(".supportedVersions | type == \"array\"");
        ensure!(
            world,
            told["supportedVersions"].is_array(),
            filter,
            "it answered {told}"
        );
    }
    Ok(())
}

fn version_does_not_wait(world: &World<'_>) -> Result<(), Stop> {
    let call = asked(world)?;
    let ran = world.ok(&call.stdin(Stdin::Silent))?;
    world.object(&ran).map(drop)
}

const OTHERS: [&str; 5] = [
    "CNI_CONTAINERID",
    "CNI_NETNS",
    "CNI_IFNAME",
    "CNI_PATH",
    "CNI_ARGS",
];

fn version_needs_no_variable(world: &World<'_>) -> Result<(), Stop> {
    let call = asked(world)?;
    world
        .ok(&OTHERS.iter().fold(call, |call, name| call.without(name)))
        .map(drop)
}

fn version_ignores_variables(world: &World<'_>) -> Result<(), Stop> {
    let call = asked(world)?;
    for value in ["dummy", "///"] {
        world.ok(&OTHERS
            .iter()
            .fold(call.clone(), |call, name| call.var(name, value)))?;
    }
    Ok(())
}

fn version_changes_nothing(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let (before, pod) = (world.state()?, world.pod_state(&one)?);
    world.run(&world.call("VERSION", &one))?;
    world.is_as(&before, "after VERSION")?;
    world.pod_is_as(&one, &pod, "after VERSION")
}
