//! docs/cni-contract.md, items 80, 81, 90 and 106 to 114: how a plugin calls its IPAM plugin, and 116 to 120: the IPAM
//! plugin itself. Stand-ins answer in place of the IPAM plugin.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Check, Must, Quality, Should, check};
use crate::description::Kind;
use crate::ensure;
use crate::sandbox::DIR;
use crate::world::{Attachment, SHOWN, Stop, World, cut, result_of, with};

pub const CHECKS: &[Check] = &[
    check(
        "failed_ipam_is_told",
        &[109],
        Quality,
        "an error of the IPAM plugin's ADD is passed on with code and message",
        failed_ipam_is_told,
    ),
    check(
        "failed_ipam_is_undone",
        &[50, 109],
        Quality,
        "when the IPAM plugin's ADD fails, host and pod are as before",
        failed_ipam_is_undone,
    ),
    check(
        "failed_ipam_is_released",
        &[109],
        Should,
        "when the IPAM plugin's ADD fails, its DEL follows",
        failed_ipam_is_released,
    ),
    check(
        "garbage_of_the_ipam_is_an_error",
        &[6, 109],
        Quality,
        "a result of the IPAM plugin that cannot be read is an error",
        garbage_of_the_ipam_is_an_error,
    ),
    check(
        "garbage_of_the_ipam_is_undone",
        &[50, 109],
        Quality,
        "when the IPAM plugin prints garbage, host and pod are as before",
        garbage_of_the_ipam_is_undone,
    ),
    check(
        "late_failure_is_undone",
        &[50],
        Quality,
        "when a route cannot be set, host and pod are as before",
        late_failure_is_undone,
    ),
    check(
        "late_failure_releases_the_address",
        &[110],
        Quality,
        "when a route cannot be set, the IPAM plugin's DEL is called",
        late_failure_releases_the_address,
    ),
    check(
        "absent_ipam_is_an_error",
        &[106],
        Must,
        "an IPAM plugin that is not in CNI_PATH is an error",
        absent_ipam_is_an_error,
    ),
    check(
        "absent_ipam_is_undone",
        &[50, 106],
        Quality,
        "when the IPAM plugin is not in CNI_PATH, host and pod are as before",
        absent_ipam_is_undone,
    ),
    check(
        "ipam_is_taken_from_cni_path",
        &[106],
        Should,
        "the IPAM plugin is the first one in CNI_PATH, and never one of PATH",
        ipam_is_taken_from_cni_path,
    ),
    check(
        "ipam_gets_the_same",
        &[107],
        Must,
        "the IPAM plugin gets the same configuration and the same variables",
        ipam_gets_the_same,
    ),
    check(
        "stderr_of_the_ipam_is_passed_on",
        &[108],
        Should,
        "stderr of the IPAM plugin is passed on, its stdout is not",
        stderr_of_the_ipam_is_passed_on,
    ),
    check("del_calls_the_ipam", &[111], Must, "DEL calls the IPAM plugin", del_calls_the_ipam),
    check(
        "del_without_netns_calls_the_ipam",
        &[73, 111],
        Must,
        "DEL without CNI_NETNS calls the IPAM plugin",
        del_without_netns_calls_the_ipam,
    ),
    check(
        "check_calls_the_ipam",
        &[90, 111],
        Should,
        "CHECK calls the IPAM plugin, and its error is an error of CHECK",
        check_calls_the_ipam,
    ),
    check(
        "del_removes_the_interface_first",
        &[80],
        Quality,
        "DEL removes the interface before it calls the IPAM plugin",
        del_removes_the_interface_first,
    ),
    check(
        "del_continues_after_the_ipam_failed",
        &[80],
        Quality,
        "the interface is removed though the IPAM plugin's DEL fails",
        del_continues_after_the_ipam_failed,
    ),
    check(
        "del_tells_errors_of_the_ipam",
        &[81],
        Should,
        "an error of the IPAM plugin's DEL is an error of DEL",
        del_tells_errors_of_the_ipam,
    ),
    check(
        "results_of_older_ipams_are_read",
        &[113],
        Quality,
        "results of the IPAM plugin in older versions, and without one, are read",
        results_of_older_ipams_are_read,
    ),
    check(
        "indexes_of_the_ipam_are_replaced",
        &[72, 113],
        Quality,
        "an index in the IPAM plugin's result does not reach the result of ADD out of range",
        indexes_of_the_ipam_are_replaced,
    ),
    check(
        "two_addresses_fit_or_are_refused",
        &[70],
        Quality,
        "two addresses of a family are not silently dropped in 0.2.0, which has room for one",
        two_addresses_fit_or_are_refused,
    ),
    check(
        "requested_address_is_leased",
        &[119],
        Quality,
        "an address in runtimeConfig.ips is leased or refused",
        requested_address_is_leased,
    ),
];

const ADDRESS: &str = "10.77.0.2/24";

/// Attachment `n` with a stand-in whose text of ADD is `answer`.
fn stood_in(world: &World<'_>, n: usize, answer: &str) -> Result<Attachment, Stop> {
    world.delegates()?;
    let one = world.attachment(n)?;
    world.stand_in("stand-in", &format!("cat >$0.$CNI_COMMAND.stdin; env >$0.$CNI_COMMAND.env\n{answer}"))?;
    Ok(Attachment {
        conf: with(&one.conf, "ipam", json!({"type": "stand-in", "any": ["thing", 1.5]})),
        ..one
    })
}

fn good(world: &World<'_>) -> String {
    let result = json!({"ips": [{"address": ADDRESS, "gateway": "10.77.0.1"}]});
    answer(&result_of(&result, world.description().newest()))
}

fn answer(result: &Value) -> String {
    format!("[ $CNI_COMMAND = ADD ] && echo '{result}'; exit 0")
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

/// An ADD that fails must leave host and pod as they were.
fn is_undone(world: &World<'_>, answer: &str, what: &str) -> Result<(), Stop> {
    let one = stood_in(world, 0, answer)?;
    let before = world.baseline()?;
    let pod = world.pod_state(&one)?;
    let ran = world.run(&world.call("ADD", &one))?;
    if ran.status == 0 {
        return Err(Stop::LeftOut(format!("ADD succeeds {what}")));
    }
    world.is_as(&before, "after ADD")?;
    world.pod_is_as(&one, &pod, "after ADD")
}

fn failed_ipam_is_told(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in(world, 0, FAILS)?;
    let error = world.refused(&world.call("ADD", &one), "ADD while that of the IPAM plugin fails")?;
    ensure!(error["code"] == 120, "the code is {}, and was 120", error["code"]);
    ensure!(error["msg"].to_string().contains("nothing left for you"), "the message is {}", error["msg"]);
    Ok(())
}

fn failed_ipam_is_undone(world: &World<'_>) -> Result<(), Stop> {
    is_undone(world, FAILS, "though the IPAM plugin fails")
}

fn failed_ipam_is_released(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in(world, 0, FAILS)?;
    world.fails(&world.call("ADD", &one), "ADD while that of the IPAM plugin fails")?;
    ensure!(was_called("DEL"), "the IPAM plugin got no DEL");
    Ok(())
}

fn garbage_of_the_ipam_is_an_error(world: &World<'_>) -> Result<(), Stop> {
    for (n, garbage) in [GARBAGE, "exit 0"].into_iter().enumerate() {
        let one = stood_in(world, n, garbage)?;
        world.fails(&world.call("ADD", &one), "ADD while the IPAM plugin prints garbage")?;
    }
    Ok(())
}

fn garbage_of_the_ipam_is_undone(world: &World<'_>) -> Result<(), Stop> {
    is_undone(world, GARBAGE, "though the IPAM plugin prints garbage")
}

fn late_failure_is_undone(world: &World<'_>) -> Result<(), Stop> {
    is_undone(world, &unreachable(world), "though a route's gateway cannot be reached")
}

fn late_failure_releases_the_address(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in(world, 0, &unreachable(world))?;
    let ran = world.run(&world.call("ADD", &one))?;
    if ran.status == 0 {
        return Err(Stop::LeftOut("ADD succeeds though a route's gateway cannot be reached".to_owned()));
    }
    ensure!(was_called("DEL"), "the IPAM plugin got no DEL after {}", ran.told());
    Ok(())
}

fn absent_ipam_is_an_error(world: &World<'_>) -> Result<(), Stop> {
    world.delegates()?;
    let one = world.attachment(0)?;
    let conf = with(&one.conf, "ipam", json!({"type": "absent"}));
    world.fails(&world.call("ADD", &one).conf(&conf), "ADD with an IPAM plugin that is not there").map(drop)
}

fn absent_ipam_is_undone(world: &World<'_>) -> Result<(), Stop> {
    world.delegates()?;
    let one = world.attachment(0)?;
    let before = world.baseline()?;
    let pod = world.pod_state(&one)?;
    world.run(&world.call("ADD", &one).conf(&with(&one.conf, "ipam", json!({"type": "absent"}))))?;
    world.is_as(&before, "after ADD")?;
    world.pod_is_as(&one, &pod, "after ADD")
}

fn ipam_is_taken_from_cni_path(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in(world, 0, &good(world))?;
    let mut path = String::new();
    for name in ["wrong", "later"] {
        let directory = format!("{DIR}/bin/{name}");
        world.stand_in(&format!("{name}/stand-in"), "touch $0.called; exit 1")?;
        path = directory;
    }
    let own = world.call("ADD", &one).vars()["CNI_PATH"].clone();
    let call = world.call("ADD", &one).var("CNI_PATH", format!("/nonexistent:{own}:{path}"));
    let ambient = std::env::var("PATH").unwrap_or_default();
    world.ok(&call.var("PATH", format!("{DIR}/bin/wrong:{ambient}")))?;
    for name in ["wrong", "later"] {
        ensure!(
            !Path::new(&format!("{DIR}/bin/{name}/stand-in.called")).exists(),
            "the one of {name} was called"
        );
    }
    let other =
        Attachment { conf: with(&one.conf, "ipam", json!({"type": "of-path"})), ..world.attachment(1)? };
    world.stand_in("wrong/of-path", "touch $0.called; exit 1")?;
    world.fails(
        &world.call("ADD", &other).var("PATH", format!("{DIR}/bin/wrong:{ambient}")),
        "an IPAM plugin of PATH",
    )?;
    ensure!(!Path::new(&format!("{DIR}/bin/wrong/of-path.called")).exists(), "a plugin of PATH was called");
    Ok(())
}

fn ipam_gets_the_same(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in(world, 0, &good(world))?;
    let call = world.call("ADD", &one);
    world.ok(&call)?;
    let read = |what: &str| fs::read_to_string(of_stand_in(what)).unwrap_or_default();
    let got: Value = serde_json::from_str(&read("ADD.stdin")).unwrap_or_default();
    ensure!(got == one.conf, "the IPAM plugin got the configuration {got}");
    let env = read("ADD.env");
    for (name, value) in call.vars() {
        let line = format!("{name}={value}");
        ensure!(
            name == "PATH" || env.lines().any(|other| other == line),
            "the IPAM plugin did not get {line}"
        );
    }
    Ok(())
}

fn stderr_of_the_ipam_is_passed_on(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in(world, 0, &format!("echo hello from $CNI_COMMAND >&2\n{}", good(world)))?;
    let ran = world.ok(&world.call("ADD", &one))?;
    ensure!(ran.stderr.contains("hello from ADD"), "stderr is {:?}", cut(&ran.stderr, SHOWN));
    ran.result().map(drop).map_err(Stop::Fails)
}

fn del_calls_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in(world, 0, &good(world))?;
    let result = world.add(&one)?;
    world.del(&one, &result)?;
    ensure!(was_called("DEL"), "the IPAM plugin got no DEL");
    Ok(())
}

fn del_without_netns_calls_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    let one = stood_in(world, 0, &good(world))?;
    let result = world.add(&one)?;
    world.run(&world.del_call(&one, &result).without("CNI_NETNS"))?;
    ensure!(was_called("DEL"), "the IPAM plugin got no DEL");
    Ok(())
}

fn check_calls_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    world.claims("CHECK")?;
    let one = stood_in(world, 0, &good(world))?;
    let result = world.add(&one)?;
    let conf = with(&one.conf, "prevResult", result);
    let ran = world.run(&world.call("CHECK", &one).conf(&conf))?;
    ensure!(was_called("CHECK"), "the IPAM plugin got no CHECK; {}", ran.told());
    world
        .stand_in("stand-in", r#"echo '{"cniVersion": "1.0.0", "code": 121, "msg": "no lease"}'; exit 1"#)?;
    world.fails(&world.call("CHECK", &one).conf(&conf), "CHECK while that of the IPAM plugin fails").map(drop)
}

fn del_removes_the_interface_first(world: &World<'_>) -> Result<(), Stop> {
    let script = "[ $CNI_COMMAND = DEL ] && ip -n ${CNI_NETNS##*/} link show $CNI_IFNAME >/dev/null 2>&1 && touch $0.early\n";
    let one = stood_in(world, 0, &format!("{script}{}", good(world)))?;
    let result = world.add(&one)?;
    world.del(&one, &result)?;
    ensure!(!of_stand_in("early").exists(), "the interface was there when the IPAM plugin got its DEL");
    Ok(())
}

fn with_failing_del(world: &World<'_>) -> Result<(Attachment, Value), Stop> {
    let one = stood_in(
        world,
        0,
        &format!(
            "[ $CNI_COMMAND = DEL ] && echo '{{\"cniVersion\": \"1.0.0\", \"code\": 122, \"msg\": \"the store is away\"}}' && exit 1\n{}",
            good(world)
        ),
    )?;
    let result = world.add(&one)?;
    Ok((one, result))
}

fn del_continues_after_the_ipam_failed(world: &World<'_>) -> Result<(), Stop> {
    let (one, result) = with_failing_del(world)?;
    world.run(&world.del_call(&one, &result))?;
    let links = one.shown("-json", "link show")?;
    ensure!(!links.contains("\"net1\""), "the pod still has net1");
    Ok(())
}

fn del_tells_errors_of_the_ipam(world: &World<'_>) -> Result<(), Stop> {
    let (one, result) = with_failing_del(world)?;
    world.fails(&world.del_call(&one, &result), "DEL while that of the IPAM plugin fails").map(drop)
}

fn results_of_older_ipams_are_read(world: &World<'_>) -> Result<(), Stop> {
    let result = json!({"ips": [{"address": ADDRESS, "gateway": "10.77.0.1"}]});
    let mut unversioned = result_of(&result, world.description().newest());
    if let Some(map) = unversioned.as_object_mut() {
        map.remove("cniVersion");
    }
    let mut all = vec![unversioned];
    let known = ["0.2.0", "0.4.0", "1.0.0"].into_iter().filter(|one| world.description().claims_version(one));
    all.extend(known.map(|version| result_of(&result, version)));
    for (n, old) in all.iter().enumerate() {
        let one = stood_in(world, n, &answer(old))?;
        let ran = world.run(&world.call("ADD", &one))?;
        ensure!(ran.status == 0, "ADD while the IPAM plugin prints {old}: {}", ran.told());
        ensure!(ran.stdout.contains("10.77.0.2"), "the result of {old} is {}", ran.stdout);
        world.make_room(&one, &ran.result().unwrap_or_default())?;
    }
    Ok(())
}

fn indexes_of_the_ipam_are_replaced(world: &World<'_>) -> Result<(), Stop> {
    let result = json!({"ips": [{"address": ADDRESS, "gateway": "10.77.0.1", "interface": 7}]});
    let one = stood_in(world, 0, &answer(&result_of(&result, world.description().newest())))?;
    let ran = world.run(&world.call("ADD", &one))?;
    if ran.status != 0 {
        return Ok(());
    }
    let result = ran.result().map_err(Stop::Fails)?;
    let count = result["interfaces"].as_array().map_or(0, Vec::len) as u64;
    let index = &result["ips"][0]["interface"];
    ensure!(index.as_u64().is_some_and(|index| index < count), "the index is {index} of {count} interfaces");
    Ok(())
}

fn two_addresses_fit_or_are_refused(world: &World<'_>) -> Result<(), Stop> {
    if !world.description().claims_version("0.2.0") {
        return Err(Stop::LeftOut("it does not claim 0.2.0".to_owned()));
    }
    let result = json!({"cniVersion": "1.0.0", "ips": [{"address": ADDRESS}, {"address": "10.79.0.2/24"}]});
    let one = stood_in(world, 0, &answer(&result))?;
    let ran = world.run(&world.call("ADD", &world.of_version(one, "0.2.0")))?;
    let has_both = ran.stdout.contains("10.77.0.2") && ran.stdout.contains("10.79.0.2");
    ensure!(ran.status != 0 || has_both, "the pod has two addresses, and the result {}", ran.stdout.trim());
    Ok(())
}

fn requested_address_is_leased(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Ipam])?;
    world.keeps_leases()?;
    let one = world.attachment(0)?;
    if one.conf["capabilities"]["ips"] != json!(true) {
        return Err(Stop::LeftOut("its configuration does not have the capability ips".to_owned()));
    }
    let first = world.add(&one)?;
    let Some(address) = first["ips"][0]["address"].as_str() else {
        return Err(Stop::Fails(format!("no address in {first}")));
    };
    world.del(&one, &first)?;
    let other = world.attachment(1)?;
    let conf = with(&other.conf, "runtimeConfig", json!({"ips": [address]}));
    let ran = world.run(&world.call("ADD", &other).conf(&conf))?;
    ensure!(
        ran.status != 0 || ran.stdout.contains(address),
        "asked for {address}, it got {}",
        ran.stdout.trim()
    );
    // It is taken now.
    let third = world.attachment(2)?;
    let ran = world.run(&world.call("ADD", &third).conf(&with(
        &third.conf,
        "runtimeConfig",
        json!({"ips": [address]}),
    )))?;
    ensure!(ran.status != 0 || !ran.stdout.contains(address), "{address} was leased twice");
    Ok(())
}
