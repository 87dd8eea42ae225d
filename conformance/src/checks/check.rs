//! docs/cni-contract.md, items 86 to 93: CHECK.

use serde_json::{Value, json};

use super::{Check, Must, Quality, Should, check};
use crate::call::Call;
use crate::description::Kind;
use crate::ensure;
use crate::world::{Attachment, Stop, World, with};

pub const CHECKS: &[Check] = &[
    check("check_after_add", &[89], Must, "CHECK succeeds directly after ADD", check_after_add),
    check(
        "check_needs_a_previous_result",
        &[86],
        Must,
        "CHECK without prevResult is an error",
        check_needs_a_previous_result,
    ),
    check(
        "check_misses_the_interface",
        &[87, 91],
        Should,
        "CHECK fails when the interface is gone",
        check_misses_the_interface,
    ),
    check(
        "check_misses_the_address",
        &[87],
        Should,
        "CHECK fails when an address of the result is gone",
        check_misses_the_address,
    ),
    check(
        "check_misses_a_route",
        &[87],
        Should,
        "CHECK fails when a route of the result is gone",
        check_misses_a_route,
    ),
    check(
        "check_sees_another_mac",
        &[87],
        Should,
        "CHECK fails when the interface has another MAC than the result",
        check_sees_another_mac,
    ),
    check(
        "check_sees_another_mtu",
        &[87],
        Quality,
        "CHECK fails when the interface has another MTU",
        check_sees_another_mtu,
    ),
    check(
        "check_sees_that_it_is_down",
        &[87],
        Quality,
        "CHECK fails when the interface is down",
        check_sees_that_it_is_down,
    ),
    check("check_after_del", &[87, 91, 118], Should, "CHECK fails after DEL", check_after_del),
    check(
        "check_allows_more",
        &[88],
        Must,
        "what later plugins add is no difference: addresses, routes, rules",
        check_allows_more,
    ),
    check("check_changes_nothing", &[92], Quality, "CHECK changes nothing", check_changes_nothing),
    check(
        "check_takes_another_path",
        &[93],
        Quality,
        "CHECK succeeds when CNI_NETNS is another path of the same namespace",
        check_takes_another_path,
    ),
];

fn begun(world: &World<'_>) -> Result<(Attachment, Value, Call), Stop> {
    world.claims("CHECK")?;
    let one = world.attachment(0)?;
    let result = world.add(&one)?;
    let call = world.call("CHECK", &one).conf(&with(&one.conf, "prevResult", result.clone()));
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
    fails(world, &world.call("CHECK", &one).conf(&conf), "CHECK without prevResult")?;
    fails(
        world,
        &world.call("CHECK", &one).conf(&with(&conf, "prevResult", json!(null))),
        "CHECK with prevResult null",
    )
}

fn check_misses_the_interface(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main])?;
    let (one, _, call) = working(world)?;
    world.in_pod(&one, "link del net1")?;
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
    let table = result["routes"][0]["table"].as_u64().map_or("main".to_owned(), |table| table.to_string());
    world.in_pod(&one, &format!("route del {route} table {table}"))?;
    fails(world, &call, "CHECK without the route")
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
    damaged(world, &["link set net1 address 02:00:00:00:00:99"], "CHECK with another MAC")
}

fn check_sees_another_mtu(world: &World<'_>) -> Result<(), Stop> {
    damaged(world, &["link set net1 mtu 1300"], "CHECK with another MTU")
}

fn check_sees_that_it_is_down(world: &World<'_>) -> Result<(), Stop> {
    damaged(world, &["link set net1 down"], "CHECK of an interface that is down")
}

fn check_after_del(world: &World<'_>) -> Result<(), Stop> {
    world.only(&[Kind::Main, Kind::Ipam])?;
    world.keeps_leases()?;
    let (one, result, call) = working(world)?;
    world.del(&one, &result)?;
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
        ensure!(ran.status == 0, "CHECK after ip {command}: {}", ran.told());
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
    let link = world.link_to(&one)?;
    world.ok(&call.var("CNI_NETNS", link.to_string_lossy())).map(drop)
}
