//! Infers the rail of a pool whose manifest does not name it.

use std::collections::BTreeSet;

use ipnet::IpNet;

use crate::plan::{Plan, Pool};
use crate::scheme::place_of;
use rail_cni::pool::rail_in;

/// Numbers the rails if no source does: by the formulas if these made all addresses, or else by the
/// names if these count from 0. Names that count from 1 may mean either.
pub fn number(plan: &mut Plan) {
    if plan.pools.iter().any(|pool| pool.rail.is_some()) {
        return;
    }
    let by_address = plan.pools.iter().map(of_addresses).collect();
    let by_name = plan
        .pools
        .iter()
        .map(|pool| Some((rail_in(&pool.name)?, 0)))
        .collect();
    let of_names = |rails: &Vec<(u8, u8)>| {
        let rails: BTreeSet<u8> = rails.iter().map(|(rail, _)| *rail).collect();
        rails.iter().zip(0..).all(|(rail, count)| *rail == count)
    };
    let (rails, from) = match (
        unique(plan, by_address),
        unique(plan, by_name).filter(of_names),
    ) {
        (Some(rails), _) => (rails, "addresses"),
        (None, Some(rails)) => (rails, "names"),
        (None, None) => return,
    };
    let has_planes = rails.iter().any(|(_, plane)| *plane > 0);
    for (pool, (rail, plane)) in plan.pools.iter_mut().zip(rails) {
        (pool.rail, pool.plane) = (Some(rail), has_planes.then_some(plane));
    }
    let shown = plan
        .pools
        .iter()
        .filter_map(|pool| Some(format!("{} is rail {}", pool.name, pool.number()?)));
    let shown: Vec<_> = shown.collect();
    plan.warnings.push(format!(
        "no source says which rail a pool is, so it follows from the {from} of the pools: {}",
        shown.join(", ")
    ));
}

/// The rail and the plane of each pool, if all are known and no two pools of a family have the
/// same.
fn unique(plan: &Plan, rails: Option<Vec<(u8, u8)>>) -> Option<Vec<(u8, u8)>> {
    let rails = rails?;
    let all: BTreeSet<_> = plan.pools.iter().map(Pool::is_ipv4).zip(&rails).collect();
    (!rails.is_empty() && all.len() == rails.len()).then_some(rails)
}

/// The rail and the plane for which the formulas make all prefixes of the pool.
fn of_addresses(pool: &Pool) -> Option<(u8, u8)> {
    let routes = pool
        .spec
        .routes
        .iter()
        .filter_map(|to| to.dst.parse::<IpNet>().ok());
    let all_length = routes.map(|dst| dst.prefix_len()).min()?;
    let cidr: IpNet = pool.spec.cidr.parse().ok()?;
    let place = |prefix: &str| {
        place_of(prefix.parse().ok()?, all_length).filter(|(.., of_rail)| *of_rail == cidr)
    };
    let mut places = pool
        .spec
        .static_allocations
        .iter()
        .map(|row| place(&row.prefix));
    let (rail, plane, _) = places.next()??;
    places
        .all(|place| place.is_some_and(|place| (place.0, place.1) == (rail, plane)))
        .then_some((rail, plane))
}
