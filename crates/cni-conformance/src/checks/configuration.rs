//! The configuration on stdin.

use std::path::Path;

use serde_json::{Value, json};

use crate::check::{Check, Harm, ends, extra, must, quality, should, spec};
use crate::description::VERBS;
use crate::ensure;
use crate::replay::answer;
use crate::sandbox::DIR;
use crate::settings::Stop;
use crate::value::with;
use crate::world::World;

/// Why a plugin is asked to refuse what a runtime must not send.
const OF_RUNTIMES: &str = "the specification defines the configuration and the code of errors about it, but obliges no plugin to check. Plugins built on libcni's skel do";
/// What the callers of plugins do with a configuration.
const OF_GO: &str = "runtimes written in Go send it, because Go's decoder accepts it";

pub const CHECKS: &[Check] = &[
    quality(
        "garbage_is_error_6",
        "input that is not one JSON object is error 6, for every verb except VERSION",
        OF_RUNTIMES,
        garbage_is_error_6,
    ),
    extra(
        "garbage_changes_nothing",
        "calls with garbage on stdin fail in time and change nothing",
        "a truncated configuration names no network",
        garbage_changes_nothing,
    ),
    extra(
        "wrong_types_are_refused",
        "values of the wrong type are ignored or lead to an error object, never to a crash",
        "a crash does not tell which key was wrong",
        wrong_types_are_refused,
    ),
    quality(
        "network_has_a_name",
        "a network with an invalid name, or none, is error 7",
        OF_RUNTIMES,
        network_has_a_name,
    ),
    spec(
        "unknown_version_is_error_1",
        "an unsupported cniVersion is error 1",
        &[
            should(
                "0.4.0",
                "result",
                "If the `cniVersion` in the network configuration is not supported by the plugin, the plugin should return an error code 1",
            ),
            ends("1.0.0"),
        ],
        unknown_version_is_error_1,
    )
    .but("since 1.0.0 only the table of codes mentions \"Incompatible CNI version\", without a duty to check"),
    extra(
        "error_1_names_versions",
        "error 1 names the requested version and the supported ones",
        "so that it is clear which of the two to change",
        error_1_names_versions,
    ),
    quality(
        "no_version_is_the_first",
        "without cniVersion, the result has the format of 0.1.0",
        "libcni reads it so",
        no_version_is_the_first,
    ),
    spec(
        "versions_are_served",
        "for every version that the plugin claims, ADD returns a result of that version",
        &[
            must(
                "0.4.0",
                "result",
                "here the `cniVersion` returned by the plugin in the result must be consistent with the `cniVersion` specified in [Network Configuration](#network-configuration).",
            ),
            must(
                "1.0.0",
                "success",
                "Plugins must output a JSON object with the following keys upon a successful `ADD` operation: … `cniVersion`: The same version supplied on input",
            ),
        ],
        versions_are_served,
    )
    .harm(Harm::Misleads),
    quality(
        "verbs_need_their_version",
        "CHECK below 0.4.0, GC and STATUS below 1.1.0 are error 1",
        "plugins built on libcni's skel do so",
        verbs_need_their_version,
    ),
    quality(
        "foreign_keys_are_accepted",
        "keys of the specification, of runtimes and of lists are accepted",
        "a plugin \"may generate an error if called with unknown fields\", but runtimes send these",
        foreign_keys_are_accepted,
    ),
    quality(
        "letter_case_has_no_meaning",
        "top-level keys are accepted in upper case, and capitalized ones in runtimeConfig: go-cni writes HostPort",
        OF_GO,
        letter_case_has_no_meaning,
    ),
    quality("null_is_absent", "null counts as absent", OF_GO, null_is_absent),
    quality(
        "numbers_may_be_floats_of_go",
        "numbers are accepted in the form that Go writes after reading them as float64",
        OF_GO,
        numbers_may_be_floats_of_go,
    ),
    quality(
        "ipam_type_is_no_path",
        "a path in ipam.type executes nothing",
        "\"Must not contain characters disallowed in file paths\" binds the author of the configuration; a plugin that runs as root should execute only what is in CNI_PATH",
        ipam_type_is_no_path,
    ),
    quality(
        "del_takes_another_configuration",
        "DEL succeeds although cniVersion, arguments and capabilities have changed since ADD",
        "\"The network configuration should not change between _add_ and _delete_\", and with containerd it does",
        del_takes_another_configuration,
    ),
];

fn verbs<'v>(world: &'v World<'_>) -> impl Iterator<Item = &'static str> + 'v {
    VERBS
        .into_iter()
        .filter(|verb| *verb != "VERSION" && world.description().claims(verb))
}

fn garbage_is_error_6(world: &World<'_>) -> Result<(), Stop> {
    world.claims_version_1()?;
    let one = world.attachment(0)?;
    for verb in verbs(world) {
        for text in ["", " ", "{", "[]", "7", "\"x\""] {
            let error = world.refused(
                &world.call(verb, &one).text(text),
                &format!("{verb} with {text:?}"),
            )?;
            ensure!(
                world,
                error["code"] == 6,
                answer(".code == 6"),
                "{verb} with {text:?}: the code is {}",
                error["code"]
            );
        }
    }
    Ok(())
}

fn garbage_changes_nothing(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let before = world.state()?;
    let whole = one.conf.to_string();
    let cut = &whole[..whole.len() - 1];
    let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
    for verb in verbs(world).filter(|verb| *verb != "DEL") {
        for text in [cut, "{", "nonsense", "[]", &deep, &"x".repeat(1 << 20)] {
            let begin: String = text.chars().take(20).collect();
            world.fails(
                &world.call(verb, &one).text(text),
                &format!("{verb} with {begin:?}..."),
            )?;
        }
        let bytes = b"{\"name\":\"\xff\xfe".as_slice();
        world.fails(
            &world.call(verb, &one).text(bytes),
            &format!("{verb} with bytes that are no text"),
        )?;
    }
    world.is_as(&before, "after garbage")
}

fn wrong_types_are_refused(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let keys: Vec<String> = one
        .conf
        .as_object()
        .into_iter()
        .flat_map(|map| map.keys().cloned())
        .collect();
    for key in
        keys.iter()
            .map(String::as_str)
            .chain(["runtimeConfig", "args", "capabilities", "dns"])
    {
        for wrong in [
            json!(7),
            json!(["x"]),
            json!({"x": [{}]}),
            json!(true),
            json!(-1.5e300),
        ] {
            if one.conf[key].is_object() == wrong.is_object() && one.conf[key].is_object() {
                continue;
            }
            for verb in ["ADD", "DEL"] {
                let ran = world.run(&world.call(verb, &one).conf(&with(
                    &one.conf,
                    key,
                    wrong.clone(),
                )))?;
                let what = format!("{verb} with {key}: {wrong}");
                ensure!(
                    world,
                    ran.status < 128 && !ran.stderr.contains("goroutine"),
                    "! crashed",
                    "{what}: it crashed: {}",
                    ran.told()
                );
                if ran.status != 0 {
                    if let Err(why) = ran.error() {
                        ensure!(world, false, "succeeded || is_error", "{what}: {why}");
                    }
                } else if verb == "ADD" {
                    world.run(&world.call("DEL", &one))?;
                }
            }
        }
    }
    Ok(())
}

fn network_has_a_name(world: &World<'_>) -> Result<(), Stop> {
    world.claims_version_1()?;
    let one = world.attachment(0)?;
    for verb in verbs(world) {
        for name in [
            json!(null),
            json!(""),
            json!("-a"),
            json!("a b"),
            json!("a/b"),
            json!("../a"),
        ] {
            let conf = with(&one.conf, "name", name.clone());
            let error = world.refused(
                &world.call(verb, &one).conf(&conf),
                &format!("{verb} with name {name}"),
            )?;
            ensure!(
                world,
                error["code"] == 7,
                answer(".code == 7"),
                "{verb} with name {name}: the code is {}",
                error["code"]
            );
        }
    }
    Ok(())
}

fn unknown_version_is_error_1(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    for verb in verbs(world).filter(|verb| *verb != "DEL") {
        for version in ["9.9.9", "0.0.1"] {
            let conf = with(&one.conf, "cniVersion", json!(version));
            let what = format!("{verb} with cniVersion {version}");
            let error = world.refused(&world.call(verb, &one).conf(&conf), &what)?;
            ensure!(
                world,
                error["code"] == 1,
                answer(".code == 1"),
                "{what}: the code is {}",
                error["code"]
            );
        }
    }
    Ok(())
}

fn error_1_names_versions(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let call = world
        .call("ADD", &one)
        .conf(&with(&one.conf, "cniVersion", json!("9.9.9")));
    let error = world
        .fails(&call, "ADD with cniVersion 9.9.9")?
        .error()
        .unwrap_or_default();
    if error["code"] != 1 {
        return Err(Stop::LeftOut(format!("it is not error 1: {error}")));
    }
    let text = format!("{} {}", error["msg"], error["details"]);
    for version in ["9.9.9", world.description().newest()] {
        let filter = format!("\"\\(.msg) \\(.details)\" | contains(\"{version}\")");
        ensure!(
            world,
            text.contains(version),
            answer(&filter),
            "the error does not name {version}: {text}"
        );
    }
    Ok(())
}

fn no_version_is_the_first(world: &World<'_>) -> Result<(), Stop> {
    if let Some(reason) = world.description().lacks_version("0.1.0") {
        return Err(Stop::LeftOut(reason));
    }
    let one = world.of_version(world.working()?, "0.1.0");
    let mut conf = one.conf.clone();
    if let Some(map) = conf.as_object_mut() {
        map.remove("cniVersion");
    }
    let ran = world.ok(&world.call("ADD", &one).conf(&conf))?;
    let result = world.object(&ran)?;
    ensure!(
        world,
        ["", "0.1.0"].contains(&result["cniVersion"].as_str().unwrap_or_default()),
        answer("(.cniVersion // \"\") as $v | $v == \"\" or $v == \"0.1.0\""),
        "the result is {result}"
    );
    Ok(())
}

fn versions_are_served(world: &World<'_>) -> Result<(), Stop> {
    let mut next = world.working()?;
    let description = world.description();
    let versions: Vec<_> = description
        .cni_versions
        .iter()
        .filter(|one| description.lacks_version(one).is_none())
        .collect();
    if versions.is_empty() {
        return Err(Stop::LeftOut(
            description
                .lacks_version(description.newest())
                .unwrap_or_default(),
        ));
    }
    for version in versions {
        let one = world.of_version(next.clone(), version);
        let ran = world.run(&world.call("ADD", &one))?;
        ensure!(
            world,
            ran.status == 0,
            "succeeded",
            "ADD with {version}: {}",
            ran.told()
        );
        let result = world.object(&ran)?;
        ensure!(
            world,
            result["cniVersion"] == json!(version),
            answer(&format!(".cniVersion == \"{version}\"")),
            "the result for {version} is of {}",
            result["cniVersion"]
        );
        world.make_room(&one, &result)?;
        next = world.renewed(next)?;
    }
    Ok(())
}

fn verbs_need_their_version(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let mut asked = 0;
    for (verb, since) in [("CHECK", "0.4.0"), ("STATUS", "1.1.0"), ("GC", "1.1.0")] {
        for version in world
            .description()
            .cni_versions
            .iter()
            .filter(|version| version.as_str() < since)
        {
            if !world.description().claims(verb) {
                continue;
            }
            asked += 1;
            let call = world.call(verb, &world.of_version(one.clone(), version));
            let error = world.refused(&call, &format!("{verb} with {version}"))?;
            ensure!(
                world,
                error["code"] == 1,
                answer(".code == 1"),
                "{verb} with {version}: the code is {}",
                error["code"]
            );
        }
    }
    if asked == 0 {
        Err(Stop::LeftOut(
            "it claims no verb of a later version".to_owned(),
        ))
    } else {
        Ok(())
    }
}

fn foreign_keys_are_accepted(world: &World<'_>) -> Result<(), Stop> {
    let one = world.working()?;
    let mut conf = one.conf.clone();
    let more = json!({
        "cniVersions": ["1.0.0", "1.1.0"], "disableCheck": true, "disableGC": true, "loadOnlyInlinedPlugins": true,
        "args": {"cni": {"conformance": [1]}, "other": null}, "dns": {},
        "cni.dev/unheard-of": {}, "plugins": [],
        "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"a": "b"}},
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        if conf[key].is_null() {
            conf[key] = value.clone();
        }
    }
    conf["capabilities"]["io.kubernetes.cri.pod-annotations"] = json!(true);
    let result = world.object(&world.ok(&world.call("ADD", &one).conf(&conf))?)?;
    world
        .ok(&world
            .call("DEL", &one)
            .conf(&with(&conf, "prevResult", result)))
        .map(drop)
}

fn letter_case_has_no_meaning(world: &World<'_>) -> Result<(), Stop> {
    let one = world.working()?;
    let in_capitals = |conf: &Value| -> Value {
        let map = conf.as_object().into_iter().flatten();
        map.map(|(key, value)| (key.to_uppercase(), value.clone()))
            .collect()
    };
    let added = world.object(&world.ok(&world.call("ADD", &one).conf(&in_capitals(&one.conf)))?)?;
    let filter = answer(&format!(".cniVersion == {}", one.conf["cniVersion"]));
    ensure!(
        world,
        added["cniVersion"] == one.conf["cniVersion"],
        filter,
        "the result is of {}",
        added["cniVersion"]
    );
    let conf = with(&one.conf, "prevResult", added);
    world.ok(&world.call("DEL", &one).conf(&in_capitals(&conf)))?;
    let two = world.attachment(1)?;
    if !two.conf["runtimeConfig"].is_object() {
        return Ok(());
    }
    let conf = with(
        &two.conf,
        "runtimeConfig",
        capitalised(&two.conf["runtimeConfig"], false),
    );
    let added = world.object(&world.ok(&world.call("ADD", &two).conf(&conf))?)?;
    world
        .ok(&world
            .call("DEL", &two)
            .conf(&with(&conf, "prevResult", added)))
        .map(drop)
}

/// Each key with a capital letter, but those of the capabilities themselves.
fn capitalised(value: &Value, is_inside: bool) -> Value {
    let key = |key: &str| match key.chars().next() {
        Some(first) if is_inside => format!("{}{}", first.to_uppercase(), &key[first.len_utf8()..]),
        _ => key.to_owned(),
    };
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(name, one)| (key(name), capitalised(one, true)))
            .collect(),
        Value::Array(list) => list.iter().map(|one| capitalised(one, is_inside)).collect(),
        other => other.clone(),
    }
}

fn null_is_absent(world: &World<'_>) -> Result<(), Stop> {
    let one = world.working()?;
    let mut conf = one.conf.clone();
    for key in ["runtimeConfig", "args", "capabilities", "dns", "prevResult"] {
        if conf[key].is_null() {
            conf[key] = Value::Null;
        }
    }
    let result = world.object(&world.ok(&world.call("ADD", &one).conf(&conf))?)?;
    world
        .ok(&world
            .call("DEL", &one)
            .conf(&with(&conf, "prevResult", result)))
        .map(drop)
}

/// Go's encoder writes a float64 of 1e21 and above with an exponent, and of smaller ones all
/// digits.
fn numbers_may_be_floats_of_go(world: &World<'_>) -> Result<(), Stop> {
    let one = world.working()?;
    let conf = with(
        &one.conf,
        "args",
        json!({"conformance": {"big": 1e21, "small": 1e-7, "half": 0.5, "most": 1_u64 << 53}}),
    );
    let result = world.object(&world.ok(&world.call("ADD", &one).conf(&conf))?)?;
    world
        .ok(&world
            .call("DEL", &one)
            .conf(&with(&conf, "prevResult", result)))
        .map(drop)
}

fn ipam_type_is_no_path(world: &World<'_>) -> Result<(), Stop> {
    world.calls_ipam()?;
    let one = world.attachment(0)?;
    let called = Path::new(DIR).join("bin/called");
    world.stand_in("never", &format!("touch {}; exit 1", called.display()))?;
    world.write(&Path::new(DIR).join("bin/sub/.made"), "")?;
    for path in [
        "../bin/never",
        "./never",
        "/dev/shm/conformance/bin/never",
        "sub/../never",
    ] {
        let conf = with(&one.conf, "ipam", json!({"type": path}));
        world.run(&world.call("ADD", &one).conf(&conf))?;
        ensure!(
            world,
            !called.exists(),
            format!("[ ! -e {} ]", called.display()),
            "ipam.type {path} was executed"
        );
    }
    Ok(())
}

fn del_takes_another_configuration(world: &World<'_>) -> Result<(), Stop> {
    let mut one = world.working()?;
    let mut others = vec![
        ("without args", "args", json!(null)),
        (
            "with other capabilities",
            "capabilities",
            json!({"x": true}),
        ),
    ];
    if world.description().claims_version("0.4.0") {
        others.push(("of 0.4.0", "cniVersion", json!("0.4.0")));
    }
    for (what, key, value) in others {
        let before = world.state()?;
        let mut added = one.clone();
        if key == "args" {
            added.conf["args"] = json!({"cni": {"conformance": 1}});
        }
        let result = world.add(&added)?;
        let mut conf = with(
            &with(&one.conf, "prevResult", result.clone()),
            key,
            value.clone(),
        );
        if key == "cniVersion" {
            conf["prevResult"] = crate::value::result_of(&result, "0.4.0");
        }
        // Whether null is absent is a check of its own.
        if let Some(map) = conf.as_object_mut() {
            map.retain(|_, value| !value.is_null());
        }
        let ran = world.run(&world.call("DEL", &one).conf(&conf))?;
        ensure!(
            world,
            ran.status == 0,
            "succeeded",
            "DEL {what}: {}",
            ran.told()
        );
        world.is_as(&before, &format!("after DEL {what}"))?;
        one = world.renewed(one)?;
    }
    Ok(())
}
