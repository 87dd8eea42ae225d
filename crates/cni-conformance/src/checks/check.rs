//! CHECK.

use serde_json::{Value, json};

use crate::call::Call;
use crate::check::{Check, Harm, extra, must, quality, should, spec};
use crate::description::Kind;
use crate::ensure;
use crate::settings::Stop;
use crate::value::with;
use crate::world::{Attachment, World};

/// The heading of the specification.
const CHECK: &str = "check-check-containers-networking-is-as-expected";

pub const CHECKS: &[Check] = &[
    spec(
        "check_after_add",
        "CHECK succeeds right after ADD",
        &[
            must(
                "0.4.0",
                "parameters",
                "The plugin must handle `CHECK` being called immediately after an `ADD`",
            ),
            must(
                "1.0.0",
                CHECK,
                "The plugin must handle `CHECK` being called immediately after an `ADD`",
            ),
        ],
        check_after_add,
    )
    .harm(Harm::Misleads),
    quality(
        "check_needs_a_previous_result",
        "CHECK without prevResult is an error",
        "\"The plugin must consult the `prevResult`\" may mean that it is required. \"A runtime must include a `prevResult` field\" may mean that a plugin need not check",
        check_needs_a_previous_result,
    )
    .harm(Harm::Misleads),
    spec(
        "check_misses_the_interface",
        "CHECK fails when the interface in the result is gone",
        &[
            should(
                "0.4.0",
                "parameters",
                "The plugin should return an error if a resource included in the CNI Result type (interface, address or route) was created by the plugin, and is listed in `prevResult`, but is missing or in an invalid state.",
            ),
            should(
                "1.0.0",
                CHECK,
                "The plugin should return an error if a resource included in the CNI Result type (interface, address or route) was created by the plugin, and is listed in `prevResult`, but is missing or in an invalid state.",
            ),
        ],
        check_misses_the_interface,
    )
    .harm(Harm::Misleads),
    spec(
        "check_misses_the_address",
        "CHECK fails when an address in the result is gone",
        &[
            should(
                "0.4.0",
                "parameters",
                "The plugin should return an error if a resource included in the CNI Result type (interface, address or route) was created by the plugin, and is listed in `prevResult`, but is missing or in an invalid state.",
            ),
            should(
                "1.0.0",
                CHECK,
                "The plugin should return an error if a resource included in the CNI Result type (interface, address or route) was created by the plugin, and is listed in `prevResult`, but is missing or in an invalid state.",
            ),
        ],
        check_misses_the_address,
    )
    .harm(Harm::Misleads),
    spec(
        "check_misses_a_route",
        "CHECK fails when a route in the result is gone",
        &[
            should(
                "0.4.0",
                "parameters",
                "The plugin should return an error if a resource included in the CNI Result type (interface, address or route) was created by the plugin, and is listed in `prevResult`, but is missing or in an invalid state.",
            ),
            should(
                "1.0.0",
                CHECK,
                "The plugin should return an error if a resource included in the CNI Result type (interface, address or route) was created by the plugin, and is listed in `prevResult`, but is missing or in an invalid state.",
            ),
        ],
        check_misses_a_route,
    )
    .harm(Harm::Misleads),
    quality(
        "check_sees_another_mac",
        "CHECK fails when the interface's MAC differs from the result",
        "a different MAC can be an \"invalid state\", or one of the \"networking resources\" that a later plugin in the chain may change, as tuning does",
        check_sees_another_mac,
    )
    .harm(Harm::Misleads),
    quality(
        "check_sees_another_mtu",
        "CHECK fails when the interface's MTU has changed",
        "a pod with a different MTU loses packets, but a later plugin in the chain may have changed it",
        check_sees_another_mtu,
    )
    .harm(Harm::Misleads),
    quality(
        "check_sees_that_it_is_down",
        "CHECK fails when the interface is down",
        "it can be an \"invalid state\", or the work of a later plugin in the chain",
        check_sees_that_it_is_down,
    )
    .harm(Harm::Misleads),
    quality(
        "check_after_del",
        "CHECK fails after DEL",
        "\"The plugin should return an error if other resources … are missing\"; but \"A runtime must not call `CHECK` for a container that has … been `DEL`eted\"",
        check_after_del,
    )
    .harm(Harm::Misleads),
    spec(
        "check_allows_more",
        "CHECK accepts what later plugins may add: addresses, routes, rules",
        &[
            must(
                "0.4.0",
                "parameters",
                "The plugin must allow for a later chained plugin to have modified networking resources, e.g. routes.",
            ),
            must(
                "1.0.0",
                CHECK,
                "The plugin must allow for a later chained plugin to have modified networking resources, e.g. routes, on `ADD`.",
            ),
        ],
        check_allows_more,
    )
    .harm(Harm::Misleads),
    quality(
        "check_finds_a_moved_route",
        "CHECK succeeds when another plugin moved a route to another table",
        "a plugin \"must allow for a later chained plugin to have modified networking resources, e.g. routes\", as sbr does, and \"should return an error if a resource … is missing\"",
        check_finds_a_moved_route,
    )
    .harm(Harm::Misleads),
    extra(
        "check_changes_nothing",
        "CHECK changes nothing",
        "it only asks",
        check_changes_nothing,
    ),
    quality(
        "check_takes_another_path",
        "CHECK succeeds when CNI_NETNS is another path to the same namespace",
        "a runtime must not do this, but containerd and CRI-O do",
        check_takes_another_path,
    )
    .harm(Harm::Misleads),
];

fn begun(world: &World<'_>) -> Result<(Attachment, Value, Call), Stop> {
    world.claims("CHECK")?;
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    let call = world
        .call("CHECK", &one)
        .conf(&with(&one.conf, "prevResult", result.clone()));
    Ok((one, result, call))
}

/// For what is asked of a CHECK that is not just a success: it must not fail anyway.
fn working(world: &World<'_>) -> Result<(Attachment, Value, Call), Stop> {
    let (one, result, call) = begun(world)?;
    let ran = world.run(&call)?;
    if ran.status != 0 {
        return Err(Stop::LeftOut(format!("its CHECK fails: {}", ran.told())));
    }
    Ok((one, result, call))
}

fn fails(world: &World<'_>, call: &Call, what: &str) -> Result<(), Stop> {
    world.fails(call, what).map(drop)
}

fn check_after_add(world: &World<'_>) -> Result<(), Stop> {
    let (_, _, call) = begun(world)?;
    world.ok(&call).map(drop)
}

fn check_needs_a_previous_result(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let (one, _, _) = working(world)?;
    let mut conf = one.conf.clone();
    if let Some(map) = conf.as_object_mut() {
        map.remove("prevResult");
    }
    fails(
        world,
        &world.call("CHECK", &one).conf(&conf),
        "CHECK without prevResult",
    )?;
    fails(
        world,
        &world
            .call("CHECK", &one)
            .conf(&with(&conf, "prevResult", json!(null))),
        "CHECK with prevResult null",
    )
}

fn check_misses_the_interface(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let (one, result, call) = working(world)?;
    if !result["interfaces"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|own| own["name"] == one.ifname)
    {
        return Err(Stop::LeftOut(
            "the result has no interface of the pod".to_owned(),
        ));
    }
    world.in_pod(&one, &format!("link del {}", one.ifname))?;
    fails(world, &call, "CHECK without the interface")
}

fn check_misses_the_address(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let (one, result, call) = working(world)?;
    let Some(address) = result["ips"][0]["address"].as_str() else {
        return Err(Stop::LeftOut("the result has no address".to_owned()));
    };
    world.in_pod(&one, &format!("addr del {address} dev net1"))?;
    fails(world, &call, "CHECK without the address")
}

fn check_misses_a_route(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let (one, result, call) = working(world)?;
    let Some(route) = result["routes"][0]["dst"].as_str() else {
        return Err(Stop::LeftOut("the result has no route".to_owned()));
    };
    let table = result["routes"][0]["table"]
        .as_u64()
        .map_or("main".to_owned(), |table| table.to_string());
    world.in_pod(&one, &format!("route del {route} table {table}"))?;
    fails(world, &call, "CHECK without the route")
}

/// As sbr behind the plugin does.
fn check_finds_a_moved_route(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let (one, result, call) = working(world)?;
    let routes = result["routes"].as_array().into_iter().flatten();
    let mut of_main = routes.filter(|route| route["table"].is_null());
    let Some(dst) = of_main.find_map(|route| route["dst"].as_str()) else {
        return Err(Stop::LeftOut(
            "the result has no route of the main table".to_owned(),
        ));
    };
    let family = if dst.contains(':') { "-6" } else { "-4" };
    let ifname = &one.ifname;
    let shown = one.shown(
        &format!("{family} -json"),
        &format!("route show {dst} dev {ifname}"),
    )?;
    let shown: Value = serde_json::from_str(&shown).unwrap_or_default();
    if !shown[0].is_object() {
        return Err(Stop::LeftOut(format!(
            "the route to {dst} does not lead through {ifname}"
        )));
    }
    let via = match shown[0]["gateway"].as_str() {
        Some(gateway) => format!(" via {gateway}"),
        None => String::new(),
    };
    world.in_pod(&one, &format!("route del {dst} dev {ifname}"))?;
    world.in_pod(
        &one,
        &format!("route add {dst}{via} dev {ifname} table 188"),
    )?;
    world.ok(&call).map(drop)
}

fn damaged(world: &World<'_>, commands: &[&str], what: &str) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let (one, _, call) = working(world)?;
    for command in commands {
        world.in_pod(&one, command)?;
    }
    fails(world, &call, what)
}

fn check_sees_another_mac(world: &World<'_>) -> Result<(), Stop> {
    damaged(
        world,
        &["link set net1 address 02:00:00:00:00:99"],
        "CHECK with another MAC",
    )
}

fn check_sees_another_mtu(world: &World<'_>) -> Result<(), Stop> {
    damaged(world, &["link set net1 mtu 1300"], "CHECK with another MTU")
}

fn check_sees_that_it_is_down(world: &World<'_>) -> Result<(), Stop> {
    damaged(
        world,
        &["link set net1 down"],
        "CHECK of an interface that is down",
    )
}

fn check_after_del(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main, Kind::Ipam])?;
    world.keeps_leases()?;
    let (one, result, call) = working(world)?;
    world.changes()?;
    world.deleted(&one, &result)?;
    fails(world, &call, "CHECK after DEL")
}

fn check_allows_more(world: &World<'_>) -> Result<(), Stop> {
    let (one, _, call) = working(world)?;
    if world.description().kind == Kind::Ipam {
        return Err(Stop::LeftOut("it does not look into the pod".to_owned()));
    }
    let ifname = &one.ifname;
    for command in [
        format!("addr add 10.222.0.9/24 dev {ifname}"),
        format!("route add 10.223.0.0/16 dev {ifname}"),
        format!("route add 10.224.0.0/16 dev {ifname} table 77"),
        "rule add from 10.222.0.9 lookup 77".to_owned(),
    ] {
        world.in_pod(&one, &command)?;
        let ran = world.run(&call)?;
        ensure!(
            world,
            ran.status == 0,
            "succeeded",
            "CHECK after ip {command}: {}",
            ran.told()
        );
    }
    Ok(())
}

fn check_changes_nothing(world: &World<'_>) -> Result<(), Stop> {
    let (one, _, call) = working(world)?;
    let (host, pod) = (world.state()?, world.pod_state(&one)?);
    world.run(&call)?;
    // Also one that fails.
    world.run(&world.call("CHECK", &one))?;
    world.is_as(&host, "after CHECK")?;
    world.pod_is_as(&one, &pod, "after CHECK")
}

fn check_takes_another_path(world: &World<'_>) -> Result<(), Stop> {
    let (one, _, call) = working(world)?;
    // No symbolic link: whether ADD accepts those is a check of its own.
    let path = one
        .netns
        .display()
        .to_string()
        .replace("/netns/", "/netns/./");
    world.ok(&call.var("CNI_NETNS", path)).map(drop)
}
