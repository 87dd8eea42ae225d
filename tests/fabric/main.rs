//! From the plan to the last packet: 2 SUs x 2 nodes x 8 rails, a pod on each node that rail-cni
//! gave its eight rails, and every rail of every pod asks every rail of every other: 12 pairs of
//! nodes x 64 pairs of rails = 768 cells per family.
//!
//! A cell is asked in several ways: see [`prober::Kind`]. Each pod counts what leaves and enters,
//! by interface and pair of addresses, so that the path of each cell is known. paths.txt has the
//! paths, and is compared with what is seen.
#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout
)]

mod cells;
mod fabric;
#[path = "../netns/harness.rs"]
#[allow(
    dead_code,
    clippy::expect_used,
    reason = "shared with tests/netns, which uses all of it"
)]
mod harness;
mod prober;
#[path = "../netns/programs.rs"]
mod programs;

use std::collections::BTreeMap;

use serde_json::json;

use crate::cells::{Asked, grid, paths};
use crate::fabric::{End, Fabric, Family, Links, Setup};
use crate::prober::Kind;

const KINDS: [Kind; 6] = [
    Kind::Device,
    Kind::Source,
    Kind::Jumbo,
    Kind::Tcp,
    Kind::TcpDevice,
    Kind::Unbound,
];
/// Of each family, of each kind that binds.
const CELLS: usize = 12 * 64;

// --- source-based and destination-based: which way everything goes ---

/// Every cell passes by its own rails, and by nothing else.
fn holds_source_based(test: &str, setup: Setup) {
    let Some(mut fabric) = Fabric::new(test, setup) else {
        return;
    };
    fabric.start_pods();
    let asked = fabric.ask_all(&KINDS);
    is_as_documented(&fabric, &asked, "source-based");
    for (kind, asked) in &asked {
        assert!(asked.strays.is_empty(), "{kind}: {:?}", asked.strays);
        if *kind == Kind::Unbound {
            continue;
        }
        for family in &fabric.setup.families {
            let good = asked
                .cells
                .iter()
                .filter(|cell| cell.family == *family && cell.is_good())
                .count();
            assert_eq!(
                good, CELLS,
                "{family} {kind}: cells that pass by their own rails"
            );
        }
        if matches!(kind, Kind::Device | Kind::Source | Kind::Jumbo) {
            // The question leaves and enters, and so does the answer.
            let expected = 4 * CELLS * fabric.setup.families.len();
            assert_eq!(
                asked.packets, expected as u64,
                "{kind}: packets that the pods sent and received"
            );
        }
    }
    assert_eq!(
        fabric.spines_at_work(),
        fabric::SPINES,
        "spines that forwarded packets"
    );
    fabric.end_pods();
}

#[test]
fn source_based_each_ipv4_cell_passes_by_its_own_rails() {
    holds_source_based(
        "fabric::ipv4",
        Setup {
            families: vec![Family::V4],
            ..Setup::default()
        },
    );
}

#[test]
fn source_based_each_ipv6_cell_passes_by_its_own_rails() {
    holds_source_based(
        "fabric::ipv6",
        Setup {
            families: vec![Family::V6],
            ..Setup::default()
        },
    );
}

#[test]
fn source_based_each_cell_of_both_families_passes_by_its_own_rails() {
    let families = vec![Family::V4, Family::V6];
    holds_source_based(
        "fabric::both_families",
        Setup {
            families,
            ..Setup::default()
        },
    );
}

#[test]
fn source_based_each_cell_passes_strict_reverse_path_filters_on_nodes_pods_and_leaves() {
    let families = vec![Family::V4, Family::V6];
    holds_source_based(
        "fabric::strict",
        Setup {
            families,
            strict_nodes: true,
            strict_leaves: true,
            ..Setup::default()
        },
    );
}

/// The planned address of a pod is all that it has, in both families, and the next hop of both is
/// the leaf's link-local address.
#[test]
fn unnumbered_each_cell_passes_by_a_link_local_next_hop() {
    let families = vec![Family::V4, Family::V6];
    holds_source_based(
        "fabric::link_local",
        Setup {
            families,
            links: Links::LinkLocal,
            ..Setup::default()
        },
    );
}

/// Without IPv6 addresses as well, and with a gateway that no prefix contains.
#[test]
fn unnumbered_each_ipv4_cell_passes_by_inet6_and_onlink() {
    for links in [Links::LinkLocal, Links::Onlink] {
        let conf = Some(json!({"gatewayProbe": "require", "gatewayProbeTimeout": "20s"}));
        let setup = Setup {
            families: vec![Family::V4],
            conf,
            links,
            ..Setup::default()
        };
        let Some(mut fabric) = Fabric::new("fabric::unnumbered", setup) else {
            return;
        };
        fabric.start_pods();
        let asked = fabric.ask_all(&[Kind::Source, Kind::Jumbo, Kind::TcpDevice]);
        for (kind, of_kind) in &asked {
            let good = of_kind.cells.iter().filter(|cell| cell.is_good()).count();
            let found = (good, of_kind.strays.len());
            assert_eq!(
                found,
                (CELLS, 0),
                "{links:?} {kind}: {}",
                grid(&asked, Family::V4)
            );
        }
        fabric.end_pods();
    }
}

#[test]
fn destination_based_cells_go_as_documented() {
    let conf = Some(json!({"routing": "destination-based"}));
    let setup = Setup {
        families: vec![Family::V4, Family::V6],
        conf,
        strict_nodes: true,
        ..Setup::default()
    };
    let Some(mut fabric) = Fabric::new("fabric::destination", setup) else {
        return;
    };
    fabric.start_pods();
    is_as_documented(&fabric, &fabric.ask_all(&KINDS), "destination-based");
    fabric.end_pods();
}

#[test]
fn destination_based_cells_go_as_documented_where_leaves_filter_strictly() {
    let conf = Some(json!({"routing": "destination-based"}));
    let setup = Setup {
        families: vec![Family::V4],
        conf,
        strict_leaves: true,
        ..Setup::default()
    };
    let Some(mut fabric) = Fabric::new("fabric::destination_strict", setup) else {
        return;
    };
    fabric.start_pods();
    let asked = fabric.ask_all(&[Kind::Device, Kind::Source, Kind::Tcp, Kind::Unbound]);
    is_as_documented(&fabric, &asked, "destination-based-strict-leaves");
    fabric.end_pods();
}

/// The block of that name in paths.txt, as far as it is about the families that were asked.
#[track_caller]
fn is_as_documented(fabric: &Fabric, asked: &BTreeMap<Kind, Asked>, block: &str) {
    for family in &fabric.setup.families {
        println!("{}", grid(asked, *family));
    }
    let lines = include_str!("paths.txt")
        .lines()
        .skip_while(|line| *line != format!("[{block}]"))
        .skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let is_asked = |line: &&str| {
        fabric
            .setup
            .families
            .iter()
            .any(|family| line.starts_with(&format!("{family} ")))
    };
    let documented: Vec<&str> = lines.filter(is_asked).collect();
    assert_eq!(
        paths(asked),
        documented,
        "seen, and in paths.txt as {block}"
    );
}

// --- fabrics that are broken on purpose ---

/// Breaks a fabric that works; the cells that have one of `ends` must fail, if `fails` says so of
/// their kind, and no other cell. Afterwards it is mended.
struct Fault<'a> {
    what: &'a str,
    ends: &'a [End],
    fails: fn(Kind, End, End) -> bool,
    make: &'a dyn Fn(&Fabric),
    mend: &'a dyn Fn(&Fabric),
}

fn end(node: usize, rail: usize) -> End {
    End { node, rail }
}

fn swap_polarity(fabric: &Fabric, from: &str, to: &str) {
    fabric.ip("leaf-su1-r5", &format!("address del {from} dev swp2"));
    fabric.ip("leaf-su1-r5", &format!("address add {to} dev swp2"));
}

#[test]
fn a_fault_fails_exactly_the_cells_that_it_concerns() {
    let setup = Setup {
        families: vec![Family::V4],
        ..Setup::default()
    };
    let Some(mut fabric) = Fabric::new("fabric::broken", setup) else {
        return;
    };
    fabric.start_pods();
    let faults = [
        Fault {
            what: "node-1's route is missing on the leaf of rail 2",
            ends: &[end(1, 2)],
            fails: |_, _, _| true,
            make: &|fabric| drop(fabric.ip("leaf-su0-r2", "route del 172.20.0.2/31 dev swp2")),
            mend: &|fabric| {
                fabric.ip(
                    "leaf-su0-r2",
                    "route add 172.20.0.2/31 dev swp2 scope link src 172.20.0.3",
                );
            },
        },
        Fault {
            what: "the leaf of rail 5 has the polarity swapped at node-3's port",
            ends: &[end(3, 5)],
            fails: |_, _, _| true,
            make: &|fabric| swap_polarity(fabric, "172.26.1.3/31", "172.26.1.2/31"),
            mend: &|fabric| swap_polarity(fabric, "172.26.1.2/31", "172.26.1.3/31"),
        },
        Fault {
            what: "MTU 1500 at node-2's port on the leaf of rail 4",
            ends: &[end(2, 4)],
            fails: |kind, _, _| kind == Kind::Jumbo,
            make: &|fabric| drop(fabric.ip("leaf-su1-r4", "link set swp1 mtu 1500")),
            mend: &|fabric| drop(fabric.ip("leaf-su1-r4", "link set swp1 mtu 9216")),
        },
        Fault {
            what: "two cables of the leaf of rail 1 exchanged, of node-0 and node-1",
            ends: &[end(0, 1), end(1, 1)],
            fails: |_, _, _| true,
            make: &|fabric| fabric.exchange(end(0, 1), end(1, 1)),
            mend: &|fabric| fabric.exchange(end(0, 1), end(1, 1)),
        },
        Fault {
            what: "two cables of node-2 exchanged, of rails 3 and 6",
            ends: &[end(2, 3), end(2, 6)],
            fails: |_, _, _| true,
            make: &|fabric| fabric.exchange(end(2, 3), end(2, 6)),
            mend: &|fabric| fabric.exchange(end(2, 3), end(2, 6)),
        },
        Fault {
            what: "pod-0 without the rule of its rail 7: other rails carry what has its address",
            ends: &[end(0, 7)],
            fails: |_, from, to| from.rail != to.rail,
            make: &|fabric| drop(fabric.ip("pod-0", "rule del priority 1007")),
            mend: &|fabric| {
                fabric.ip(
                    "pod-0",
                    "rule add from 172.30.0.0 lookup 107 priority 1007 protocol static",
                );
            },
        },
    ];
    for Fault {
        what,
        ends,
        fails,
        make,
        mend,
    } in faults
    {
        make(&fabric);
        let asked = fabric.ask_all(&[Kind::Source, Kind::Jumbo]);
        println!("{what}: {}", grid(&asked, Family::V4));
        for cell in asked.values().flat_map(|asked| &asked.cells) {
            let fails = cell.has_end(ends) && fails(cell.kind, cell.from, cell.to);
            assert_eq!(cell.is_good(), !fails, "{what}: {cell:?}");
        }
        mend(&fabric);
        fabric.recover();
    }
    let asked = fabric.ask_all(&[Kind::Jumbo]);
    assert!(
        asked[&Kind::Jumbo].cells.iter().all(|cell| cell.is_good()),
        "mended: {}",
        grid(&asked, Family::V4)
    );
    fabric.end_pods();
}

// --- gatewayProbe: what the grids show afterwards, ADD tells before the pod starts ---

/// Calls all rails. All calls succeed but those of `ends`, whose log names rail, interface and the
/// gateways expected, and no other's does.
#[track_caller]
fn all_but(fabric: &mut Fabric, verb: &str, ends: &[End]) {
    let told = told_by_all(fabric, verb, |end, status| {
        (status == 0) != ends.contains(&end)
    });
    let expected: BTreeMap<End, Vec<String>> = ends
        .iter()
        .map(|end| (*end, vec![silence(fabric, *end)]))
        .collect();
    assert_eq!(told, expected, "{verb}");
}

/// Calls all rails; `is_right` judges each exit status. What each call logged of gateways.
#[track_caller]
fn told_by_all(
    fabric: &mut Fabric,
    verb: &str,
    is_right: impl Fn(End, i32) -> bool,
) -> BTreeMap<End, Vec<String>> {
    let mut told: BTreeMap<End, Vec<String>> = BTreeMap::new();
    for (end, ran) in fabric.call_all(verb) {
        assert!(is_right(end, ran.status), "{verb} of {end:?}: {ran:?}");
        let call = format!(" rail-cni {verb} rail-{} ", end.rail);
        for line in ran.stderr.lines().filter(|line| line.contains(&call)) {
            let Some(start) = line.find("gateway ") else {
                continue;
            };
            let Some(length) = line[start..].find(" within 2s") else {
                continue;
            };
            told.entry(end)
                .or_default()
                .push(line[start..start + length].to_owned());
        }
    }
    told
}

fn silence(fabric: &Fabric, end: End) -> String {
    let [v4, v6] = [Family::V4, Family::V6].map(|family| fabric.planned(end, family).gateway);
    let port = format!("{} {}", end.leaf(), end.port());
    format!(
        "gateway {v4} ({port}) did not answer ARP and gateway {v6} ({port}) did not answer ND on {} ({})",
        end.interface(),
        end.device()
    )
}

#[test]
fn the_gateway_probe_names_every_cable_in_a_wrong_port() {
    let probe = |what| Some(json!({"gatewayProbe": what, "gatewayProbeTimeout": "2s"}));
    let setup = Setup {
        families: vec![Family::V4, Family::V6],
        conf: probe("require"),
        ..Setup::default()
    };
    let Some(mut fabric) = Fabric::new("fabric::cables", setup) else {
        return;
    };
    fabric.start_pods();
    let (same_leaf, same_node) = ([end(0, 1), end(1, 1)], [end(2, 3), end(2, 6)]);

    // Under running pods, and back.
    fabric.exchange(same_leaf[0], same_leaf[1]);
    all_but(&mut fabric, "CHECK", &same_leaf);
    fabric.exchange(same_leaf[0], same_leaf[1]);
    all_but(&mut fabric, "CHECK", &[]);
    all_but(&mut fabric, "DEL", &[]);

    // Before the pods start.
    for ends in [same_leaf, same_node] {
        fabric.exchange(ends[0], ends[1]);
        all_but(&mut fabric, "ADD", &ends);
        all_but(&mut fabric, "DEL", &[]);
        fabric.exchange(ends[0], ends[1]);
    }

    // A warning lets the pod start.
    fabric.setup.conf = probe("warn");
    fabric.exchange(same_node[0], same_node[1]);
    let told = told_by_all(&mut fabric, "ADD", |_, status| status == 0);
    let expected: BTreeMap<End, Vec<String>> = same_node
        .iter()
        .map(|end| (*end, vec![silence(&fabric, *end)]))
        .collect();
    assert_eq!(told, expected, "a warning of ADD");
    all_but(&mut fabric, "CHECK", &same_node);
    fabric.end_pods();
}
