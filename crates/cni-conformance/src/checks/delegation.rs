//! How a plugin calls the one to which it delegates, mostly an IPAM plugin, and what an IPAM plugin
//! leases. Stand-ins answer in place of the other plugin.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::call::Call;
use crate::check::{Check, Harm, ends, extra, must, quality, should, spec};
use crate::description::Kind;
use crate::ensure;
use crate::replay::answer as says;
use crate::sandbox::DIR;
use crate::settings::Stop;
use crate::value::{SHOWN, answer, cut, quoted, result_of, with};
use crate::world::{Attachment, World};

/// The heading of the specification.
const DELEGATED: &str = "delegated-plugin-execution-procedure";
/// What a failed ADD leaves.
const OF_FAILURES: &str = "the specification leaves this to the following DEL. If none comes, somebody has to search for the device and the address";

pub const CHECKS: &[Check] = &[
    quality(
        "failed_ipam_is_told",
        "an error of the IPAM plugin's ADD is passed on with code and message",
        "people then see the reason, and runtimes whether to retry",
        failed_ipam_is_told,
    ),
    extra(
        "failed_ipam_is_undone",
        "when the IPAM plugin's ADD fails, host and pod are as before",
        OF_FAILURES,
        failed_ipam_is_undone,
    ),
    spec(
        "failed_ipam_is_released",
        "when the delegate's ADD fails, its DEL is called",
        &[should("1.0.0", DELEGATED, "If, on `ADD`, a delegated plugin fails, the \"upper\" plugin should execute again with `DEL` before returning failure.")],
        failed_ipam_is_released,
    ),
    extra(
        "garbage_of_the_ipam_is_an_error",
        "an unreadable result of the IPAM plugin is an error",
        "an attachment without the address that its network promises is useless",
        garbage_of_the_ipam_is_an_error,
    )
    .harm(Harm::Misleads),
    extra(
        "garbage_of_the_ipam_is_undone",
        "when the IPAM plugin prints garbage, host and pod are as before",
        OF_FAILURES,
        garbage_of_the_ipam_is_undone,
    ),
    extra(
        "late_failure_is_undone",
        "when a route cannot be set, host and pod are as before",
        OF_FAILURES,
        late_failure_is_undone,
    ),
    extra(
        "late_failure_releases_the_address",
        "when a route cannot be set, the IPAM plugin's DEL is called",
        OF_FAILURES,
        late_failure_releases_the_address,
    ),
    quality(
        "absent_ipam_is_an_error",
        "a delegate that is not in CNI_PATH is an error",
        "\"Look up the executable specified in the `type` field. If this does not exist, then this is an error\" addresses the runtime; plugins that delegate are only told where to look",
        absent_ipam_is_an_error,
    )
    .harm(Harm::Misleads),
    extra(
        "absent_ipam_is_undone",
        "when the delegate is not in CNI_PATH, host and pod are as before",
        OF_FAILURES,
        absent_ipam_is_undone,
    ),
    spec(
        "ipam_is_taken_from_cni_path",
        "the delegate is one in CNI_PATH, and never one in PATH",
        &[should("1.0.0", DELEGATED, "When a plugin executes a delegated plugin, it should: … Look up the plugin binary by searching the directories provided in `CNI_PATH` environment variable.")],
        ipam_is_taken_from_cni_path,
    ),
    spec(
        "ipam_gets_the_same_variables",
        "the delegate gets the same variables",
        &[must("0.4.0", "ip-allocation", "The IPAM Plugin must receive all the same environment variables that were passed in to the CNI plugin."), must("1.0.0", "delegated-plugin-protocol", "The delegated plugin must receive all the same environment variables that were passed in to the CNI plugin.")],
        ipam_gets_the_same_variables,
    ),
    spec(
        "ipam_gets_the_same_configuration",
        "the IPAM plugin gets the same configuration",
        &[should("1.0.0", DELEGATED, "When a plugin executes a delegated plugin, it should: … Execute that plugin with the same environment and configuration that it received.")],
        ipam_gets_the_same_configuration,
    ),
    spec(
        "stderr_of_the_ipam_is_passed_on",
        "the delegate's stderr is passed on",
        &[should("1.0.0", DELEGATED, "When a plugin executes a delegated plugin, it should: … Ensure that the delegated plugin's stderr is output to the calling plugin's stderr.")],
        stderr_of_the_ipam_is_passed_on,
    ),
    spec(
        "del_calls_the_ipam",
        "DEL calls the delegate's DEL",
        &[must("1.0.0", DELEGATED, "it must also execute any delegated plugins.")],
        del_calls_the_ipam,
    )
    .harm(Harm::Leak),
    spec(
        "del_without_netns_calls_the_ipam",
        "DEL without CNI_NETNS calls the delegate's DEL",
        &[must("1.0.0", DELEGATED, "it must also execute any delegated plugins.")],
        del_without_netns_calls_the_ipam,
    )
    .harm(Harm::Leak),
    spec(
        "check_calls_the_ipam",
        "CHECK calls the delegate's CHECK",
        &[should("0.4.0", "parameters", "The plugin should call `CHECK` on any delegated (e.g. IPAM) plugins and pass any errors on to its caller."), ends("1.0.0")],
        check_calls_the_ipam,
    )
    .harm(Harm::Misleads).but("section 2 says should for the same call, and section 4 must"),
    spec(
        "check_tells_errors_of_the_ipam",
        "an error of the delegate's CHECK is an error of CHECK",
        &[should("0.4.0", "parameters", "The plugin should call `CHECK` on any delegated (e.g. IPAM) plugins and pass any errors on to its caller."), should("1.0.0", DELEGATED, "If any of the delegated plugins return error, error should be returned by the upper plugin.")],
        check_tells_errors_of_the_ipam,
    )
    .harm(Harm::Misleads),
    extra(
        "del_removes_the_interface_first",
        "DEL removes the interface before it calls the IPAM plugin",
        "a released address must not be on two pods",
        del_removes_the_interface_first,
    )
    .harm(Harm::Address),
    extra(
        "del_continues_after_the_ipam_failed",
        "the interface is removed even if the IPAM plugin's DEL fails",
        "the pod is ending in any case",
        del_continues_after_the_ipam_failed,
    ),
    spec(
        "del_tells_errors_of_the_ipam",
        "an error of the delegate's DEL is an error of DEL",
        &[should("1.0.0", DELEGATED, "If any of the delegated plugins return error, error should be returned by the upper plugin.")],
        del_tells_errors_of_the_ipam,
    )
    .harm(Harm::Misleads),
    extra(
        "results_of_older_ipams_are_read",
        "results of the IPAM plugin are accepted in older versions and without one",
        "plugins are upgraded one by one",
        results_of_older_ipams_are_read,
    ),
    quality(
        "indexes_of_the_ipam_are_replaced",
        "an out-of-range index in the IPAM plugin's result does not reach ADD's result",
        "such an index has crashed containerd",
        indexes_of_the_ipam_are_replaced,
    )
    .harm(Harm::Misleads),
    extra(
        "two_addresses_fit_or_are_refused",
        "of two addresses of a family, none is silently dropped in 0.2.0, which can express one",
        "nobody would know of the second",
        two_addresses_fit_or_are_refused,
    )
    .harm(Harm::Misleads),
    quality(
        "requested_address_is_leased",
        "an address in runtimeConfig.ips is either leased or refused",
        "capabilities are conventions",
        requested_address_is_leased,
    )
    .harm(Harm::Address),
];

const ADDRESS: &str = "10.77.0.2/24";

/// Attachment `n` with a stand-in whose text of ADD is `answer`.
fn stood_in(world: &World<'_>, n: usize, answer: &str) -> Result<Attachment, Stop> {
    world.delegates()?;
    let one = world.attachment(n)?;
    world.stand_in(
        "stand-in",
        &format!("cat >$0.$CNI_COMMAND.stdin; env >$0.$CNI_COMMAND.env\n{answer}"),
    )?;
    world.delegating(&one, "stand-in")
}

/// The same of an IPAM plugin, whose ADD works with an answer that nothing is wrong with.
fn stood_in_for_ipam(world: &World<'_>, n: usize, answer: &str) -> Result<Attachment, Stop> {
    world.calls_ipam()?;
    let good = stood_in(world, 60 + n, &world.good_answer())?;
    let ran = world.run(&world.call("ADD", &good))?;
    if ran.status != 0 {
        return Err(Stop::LeftOut(format!(
            "its ADD fails with a stand-in for the IPAM plugin: {}",
            ran.told()
        )));
    }
    world.make_room(&good, &ran.result().unwrap_or_default())?;
    for verb in ["ADD", "DEL"] {
        world.remove(&of_stand_in(&format!("{verb}.stdin")));
    }
    stood_in(world, n, answer)
}

/// Those of which the specification says nothing as soon as the other plugin was not called at all.
fn was_called_or_left_out(verb: &str) -> Result<(), Stop> {
    match was_called(verb) {
        true => Ok(()),
        false => Err(Stop::LeftOut(format!(
            "it does not call the other plugin's {verb}"
        ))),
    }
}

/// That a call fails with which nothing is wrong is told by another check, and one that fails may
/// end anywhere.
fn succeeds_or_left_out(world: &World<'_>, call: &Call, what: &str) -> Result<(), Stop> {
    let ran = world.run(call)?;
    if ran.status == 0 {
        Ok(())
    } else {
        Err(Stop::LeftOut(format!("its {what} fails: {}", ran.told())))
    }
}

fn is_called(world: &World<'_>, verb: &str, more: &str) -> Result<(), Stop> {
    let shell = format!("[ -e {} ]", of_stand_in(&format!("{verb}.stdin")).display());
    ensure!(
        world,
        was_called(verb),
        shell,
        "the other plugin got no {verb}{more}"
    );
    Ok(())
}

const FAILS: &str = r#"[ $CNI_COMMAND = ADD ] && echo '{"cniVersion": "1.0.0", "code": 120, "msg": "nothing left for you"}' && exit 1; exit 0"#;
const GARBAGE: &str = "[ $CNI_COMMAND = ADD ] && echo garbage; exit 0";

fn unreachable(world: &World<'_>) -> String {
    let result = json!({
        "ips": [{"address": ADDRESS, "gateway": "10.77.0.1"}], "routes": [{"dst": "10.78.0.0/16", "gw": "192.0.2.77"}],
    });
    answer(&result_of(&result, world.description().newest()))
}

fn of_stand_in(what: &str) -> PathBuf {
    Path::new(DIR).join(format!("bin/stand-in.{what}"))
}

fn was_called(verb: &str) -> bool {
    of_stand_in(&format!("{verb}.stdin")).exists()
}

/// An ADD that fails must leave host and pod as they were, whatever else it failed for. What the
/// plugin keeps of its own network is in the baseline: an ADD with the addresses of a stand-in
/// could be refused beside it.
fn is_undone(world: &World<'_>, answer: &str, what: &str) -> Result<(), Stop> {
    world.calls_ipam()?;
    let one = stood_in(world, 0, answer)?;
    let before = world.baseline()?;
    let pod = world.pod_state(&one)?;
    let ran = world.run(&world.call("ADD", &one))?;
    if ran.status == 0 {
        return Err(Stop::LeftOut(format!("ADD succeeds {what}")));
    }
    was_called_or_left_out("ADD")?;
    world.is_as(&before, "after ADD")?;
    world.pod_is_as(&one, &pod, "after ADD")
}

fn failed_ipam_is_told(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in_for_ipam(world, 0, FAILS)?;
    let error = world.refused(
        &world.call("ADD", &one),
        "ADD while that of the IPAM plugin fails",
    )?;
    was_called_or_left_out("ADD")?;
    ensure!(
        world,
        error["code"] == 120,
        says(".code == 120"),
        "the code is {}, and was 120",
        error["code"]
    );
    let is_told = error["msg"].to_string().contains("nothing left for you");
    ensure!(
        world,
        is_told,
        says(".msg | contains(\"nothing left for you\")"),
        "the message is {}",
        error["msg"]
    );
    Ok(())
}

fn failed_ipam_is_undone(world: &World<'_>) -> Result<(), Stop> {
    is_undone(world, FAILS, "though the IPAM plugin fails")
}

fn failed_ipam_is_released(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in(world, 0, FAILS)?;
    let ran = world.run(&world.call("ADD", &one))?;
    was_called_or_left_out("ADD")?;
    if ran.status == 0 {
        return Err(Stop::LeftOut(
            "ADD succeeds though that of the other plugin fails".to_owned(),
        ));
    }
    is_called(world, "DEL", "")
}

fn garbage_of_the_ipam_is_an_error(world: &World<'_>) -> Result<(), Stop> {
    for (n, garbage) in [GARBAGE, "exit 0"].into_iter().enumerate() {
        let one = stood_in_for_ipam(world, n, garbage)?;
        world.fails(
            &world.call("ADD", &one),
            "ADD while the IPAM plugin prints garbage",
        )?;
    }
    Ok(())
}

fn garbage_of_the_ipam_is_undone(world: &World<'_>) -> Result<(), Stop> {
    is_undone(world, GARBAGE, "though the IPAM plugin prints garbage")
}

fn late_failure_is_undone(world: &World<'_>) -> Result<(), Stop> {
    is_undone(
        world,
        &unreachable(world),
        "though a route's gateway cannot be reached",
    )
}

fn late_failure_releases_the_address(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in_for_ipam(world, 0, &unreachable(world))?;
    let ran = world.run(&world.call("ADD", &one))?;
    if ran.status == 0 {
        return Err(Stop::LeftOut(
            "ADD succeeds though a route's gateway cannot be reached".to_owned(),
        ));
    }
    was_called_or_left_out("ADD")?;
    is_called(world, "DEL", &format!(" after {}", ran.told()))
}

fn absent(world: &World<'_>) -> Result<Attachment, Stop> {
    world.delegates()?;
    let one = world.attachment(0)?;
    world.delegating(&one, "absent")
}

fn absent_ipam_is_an_error(world: &World<'_>) -> Result<(), Stop> {
    let one = absent(world)?;
    world
        .fails(
            &world.call("ADD", &one),
            "ADD with another plugin that is not there",
        )
        .map(drop)
}

fn absent_ipam_is_undone(world: &World<'_>) -> Result<(), Stop> {
    let one = absent(world)?;
    let before = world.baseline()?;
    let pod = world.pod_state(&one)?;
    if world.run(&world.call("ADD", &one))?.status == 0 {
        return Err(Stop::LeftOut("that ADD succeeds".to_owned()));
    }
    world.is_as(&before, "after ADD")?;
    world.pod_is_as(&one, &pod, "after ADD")
}

fn ipam_is_taken_from_cni_path(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in(world, 0, &world.good_answer())?;
    let ran = world.run(&world.call("ADD", &one))?;
    if ran.status != 0 || !was_called("ADD") {
        return Err(Stop::LeftOut(format!(
            "its ADD does not work with a stand-in for the other plugin: {}",
            ran.told()
        )));
    }
    world.make_room(&one, &ran.result().unwrap_or_default())?;
    let one = world.delegating(&world.renewed(one)?, "stand-in")?;
    world.stand_in("wrong/stand-in", "touch $0.called; exit 1")?;
    let own = world.call("ADD", &one).vars()["CNI_PATH"].clone();
    let call = world
        .call("ADD", &one)
        .var("CNI_PATH", format!("/nonexistent:{own}"));
    let ambient = std::env::var("PATH").unwrap_or_default();
    world.run(&call.var("PATH", format!("{DIR}/bin/wrong:{ambient}")))?;
    let was_not_called = |path: &str| {
        let path = format!("{DIR}/bin/{path}.called");
        ensure!(
            world,
            !Path::new(&path).exists(),
            format!("[ ! -e {path} ]"),
            "{} was called",
            path.trim_end_matches(".called")
        );
        Ok(())
    };
    was_not_called("wrong/stand-in")?;
    let other = world.delegating(&world.attachment(1)?, "of-path")?;
    world.stand_in("wrong/of-path", "touch $0.called; exit 1")?;
    world.run(
        &world
            .call("ADD", &other)
            .var("PATH", format!("{DIR}/bin/wrong:{ambient}")),
    )?;
    was_not_called("wrong/of-path")
}

fn ipam_gets_the_same_variables(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in(world, 0, &world.good_answer())?;
    let call = world.call("ADD", &one);
    world.run(&call)?;
    was_called_or_left_out("ADD")?;
    let path = of_stand_in("ADD.env");
    let env = fs::read_to_string(&path).unwrap_or_default();
    for (name, value) in call.vars() {
        let line = format!("{name}={value}");
        let is_there = name == "PATH" || env.lines().any(|other| other == line);
        let shell = format!("grep -qxF {} {}", quoted(&line), path.display());
        ensure!(
            world,
            is_there,
            shell,
            "the other plugin did not get {line}"
        );
    }
    Ok(())
}

fn ipam_gets_the_same_configuration(world: &World<'_>) -> Result<(), Stop> {
    world.calls_ipam()?;
    let one = stood_in(world, 0, &world.good_answer())?;
    world.run(&world.call("ADD", &one))?;
    was_called_or_left_out("ADD")?;
    let path = of_stand_in("ADD.stdin");
    let got: Value =
        serde_json::from_str(&fs::read_to_string(&path).unwrap_or_default()).unwrap_or_default();
    let shell = format!(
        "jq -e {} {} >/dev/null",
        quoted(&format!(". == {}", one.conf)),
        path.display()
    );
    ensure!(
        world,
        got == one.conf,
        shell,
        "the IPAM plugin got the configuration {got}"
    );
    Ok(())
}

fn stderr_of_the_ipam_is_passed_on(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in(
        world,
        0,
        &format!("echo hello from $CNI_COMMAND >&2\n{}", world.good_answer()),
    )?;
    let ran = world.run(&world.call("ADD", &one))?;
    was_called_or_left_out("ADD")?;
    let is_there = ran.stderr.contains("hello from ADD");
    ensure!(
        world,
        is_there,
        "says 'hello from ADD'",
        "stderr is {:?}",
        cut(&ran.stderr, SHOWN)
    );
    Ok(())
}

/// An attachment that a stand-in answered for, and the call of its DEL.
fn with_stand_in(world: &World<'_>, more: &str) -> Result<(Attachment, Value, Call), Stop> {
    let one = stood_in(world, 0, &format!("{more}{}", world.good_answer()))?;
    let result = world.add(&one)?;
    was_called_or_left_out("ADD")?;
    let call = world.del_call(&one, &result);
    Ok((one, result, call))
}

fn del_calls_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    let (_, _, call) = with_stand_in(world, "")?;
    succeeds_or_left_out(world, &call, "DEL")?;
    is_called(world, "DEL", "")
}

fn del_without_netns_calls_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    let (_, _, call) = with_stand_in(world, "")?;
    succeeds_or_left_out(world, &call.without("CNI_NETNS"), "DEL without CNI_NETNS")?;
    is_called(world, "DEL", "")
}

/// CHECK of an attachment that a stand-in answered for.
fn check_with_stand_in(world: &World<'_>) -> Result<Call, Stop> {
    world.claims("CHECK")?;
    let (one, result, _) = with_stand_in(world, "")?;
    Ok(world
        .call("CHECK", &one)
        .conf(&with(&one.conf, "prevResult", result)))
}

fn check_calls_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    let call = check_with_stand_in(world)?;
    succeeds_or_left_out(world, &call, "CHECK")?;
    is_called(world, "CHECK", "")
}

fn check_tells_errors_of_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    let call = check_with_stand_in(world)?;
    succeeds_or_left_out(world, &call, "CHECK")?;
    was_called_or_left_out("CHECK")?;
    world.stand_in(
        "stand-in",
        r#"echo '{"cniVersion": "1.0.0", "code": 121, "msg": "no lease"}'; exit 1"#,
    )?;
    world
        .fails(&call, "CHECK while that of the other plugin fails")
        .map(drop)
}

fn del_removes_the_interface_first(world: &World<'_>) -> Result<(), Stop> {
    world.calls_ipam()?;
    let script = "[ $CNI_COMMAND = DEL ] && ip -n ${CNI_NETNS##*/} link show $CNI_IFNAME >/dev/null 2>&1 && touch $0.early\n";
    let (_, _, call) = with_stand_in(world, script)?;
    world.run(&call)?;
    was_called_or_left_out("DEL")?;
    let path = of_stand_in("early");
    let shell = format!("[ ! -e {} ]", path.display());
    ensure!(
        world,
        !path.exists(),
        shell,
        "the interface was there when the IPAM plugin got its DEL"
    );
    Ok(())
}

const NO_DEL: &str = "[ $CNI_COMMAND = DEL ] && echo '{\"cniVersion\": \"1.0.0\", \"code\": 122, \"msg\": \"the store is away\"}' && exit 1\n";

fn del_continues_after_the_ipam_failed(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    world.calls_ipam()?;
    world.dels()?;
    let (one, _, call) = with_stand_in(world, NO_DEL)?;
    world.run(&call)?;
    was_called_or_left_out("DEL")?;
    let links = one.shown("-json", "link show")?;
    let shell = format!("! has_link {} net1", one.container);
    ensure!(
        world,
        !links.contains("\"net1\""),
        shell,
        "the pod still has net1"
    );
    Ok(())
}

fn del_tells_errors_of_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    let (_, _, call) = with_stand_in(world, NO_DEL)?;
    let ran = world.run(&call)?;
    was_called_or_left_out("DEL")?;
    ensure!(
        world,
        ran.status != 0,
        "failed",
        "DEL while that of the other plugin fails: it succeeded"
    );
    Ok(())
}

fn results_of_older_ipams_are_read(world: &World<'_>) -> Result<(), Stop> {
    let result = json!({"ips": [{"address": ADDRESS, "gateway": "10.77.0.1"}]});
    let mut unversioned = result_of(&result, world.description().newest());
    if let Some(map) = unversioned.as_object_mut() {
        map.remove("cniVersion");
    }
    let mut all = vec![unversioned];
    let known = ["0.2.0", "0.4.0", "1.0.0"]
        .into_iter()
        .filter(|one| world.description().claims_version(one));
    all.extend(known.map(|version| result_of(&result, version)));
    for (n, old) in all.iter().enumerate() {
        let one = stood_in_for_ipam(world, n, &answer(old))?;
        let ran = world.run(&world.call("ADD", &one))?;
        ensure!(
            world,
            ran.status == 0,
            "succeeded",
            "ADD while the IPAM plugin prints {old}: {}",
            ran.told()
        );
        let has = ran.stdout.contains("10.77.0.2");
        ensure!(
            world,
            has,
            says("tostring | contains(\"10.77.0.2\")"),
            "the result of {old} is {}",
            ran.stdout
        );
        world.make_room(&one, &ran.result().unwrap_or_default())?;
    }
    Ok(())
}

fn indexes_of_the_ipam_are_replaced(world: &World<'_>) -> Result<(), Stop> {
    let result = json!({"ips": [{"address": ADDRESS, "gateway": "10.77.0.1", "interface": 7}]});
    let one = stood_in_for_ipam(
        world,
        0,
        &answer(&result_of(&result, world.description().newest())),
    )?;
    let ran = world.run(&world.call("ADD", &one))?;
    if ran.status != 0 {
        return Ok(());
    }
    let result = world.object(&ran)?;
    let count = result["interfaces"].as_array().map_or(0, Vec::len);
    let index = &result["ips"][0]["interface"];
    let is_replaced = *index != json!(7) || count > 7;
    let filter = says("(.interfaces | length) as $n | all(.ips[].interface; . != 7 or . < $n)");
    ensure!(
        world,
        is_replaced,
        filter,
        "the index is {index} of {count} interfaces"
    );
    Ok(())
}

fn two_addresses_fit_or_are_refused(world: &World<'_>) -> Result<(), Stop> {
    if !world.description().claims_version("0.2.0") {
        return Err(Stop::LeftOut("it does not claim 0.2.0".to_owned()));
    }
    let result =
        json!({"cniVersion": "1.0.0", "ips": [{"address": ADDRESS}, {"address": "10.79.0.2/24"}]});
    let one = stood_in_for_ipam(world, 0, &answer(&result))?;
    let ran = world.run(&world.call("ADD", &world.of_version(one, "0.2.0")))?;
    let has_both = ran.stdout.contains("10.77.0.2") && ran.stdout.contains("10.79.0.2");
    let filter = says("tostring | contains(\"10.77.0.2\") and contains(\"10.79.0.2\")");
    ensure!(
        world,
        ran.status != 0 || has_both,
        format!("failed || {filter}"),
        "the pod has two addresses, and the result {}",
        ran.stdout.trim()
    );
    Ok(())
}

fn requested_address_is_leased(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Ipam])?;
    world.keeps_leases()?;
    let one = world.attachment(0)?;
    if one.conf["capabilities"]["ips"] != json!(true) {
        return Err(Stop::LeftOut(
            "its configuration does not have the capability ips".to_owned(),
        ));
    }
    let first = world.add(&one)?;
    let Some(address) = first["ips"][0]["address"].as_str() else {
        return Err(Stop::LeftOut(format!("no address in {first}")));
    };
    world.deleted(&one, &first)?;
    let asking = |one: &Attachment| {
        let conf = with(&one.conf, "runtimeConfig", json!({"ips": [address]}));
        world.call("ADD", one).conf(&conf)
    };
    let filter = says(&format!("tostring | contains(\"{address}\")"));
    let ran = world.run(&asking(&world.attachment(1)?))?;
    let is_right = ran.status != 0 || ran.stdout.contains(address);
    ensure!(
        world,
        is_right,
        format!("failed || {filter}"),
        "asked for {address}, it got {}",
        ran.stdout.trim()
    );
    // It is taken now.
    let ran = world.run(&asking(&world.attachment(2)?))?;
    let is_right = ran.status != 0 || !ran.stdout.contains(address);
    ensure!(
        world,
        is_right,
        format!("failed || ! {filter}"),
        "{address} was leased twice"
    );
    Ok(())
}
