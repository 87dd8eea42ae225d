use std::fs;
use std::path::Path;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::plan::tests::cabled;
use crate::scheme::{Family, HostLink, Mode, Polarity, Scheme, Tiers};
use golden::has;

/// A folder with files of hosts.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn read_folder(folder: &Path) -> Result<Plan> {
    let mut plan = read(&[folder.display().to_string()], |_| ())?;
    plan.check().map_err(refused)?;
    Ok(plan)
}

fn read_files(files: &[(&str, &str)]) -> Result<Plan> {
    read_folder(folder(files).path())
}

/// The error, with the folder's own name left out.
#[track_caller]
fn refusal(files: &[(&str, &str)]) -> String {
    let folder = folder(files);
    let error = read_folder(folder.path())
        .map(|plan| plan.pools)
        .unwrap_err();
    error
        .to_string()
        .replace(&format!("{}/", folder.path().display()), "")
}

fn warnings(files: &[(&str, &str)]) -> Vec<String> {
    let folder = folder(files);
    let prefix = format!("{}/", folder.path().display());
    read_folder(folder.path())
        .unwrap()
        .warnings
        .iter()
        .map(|it| it.replace(&prefix, ""))
        .collect()
}

fn shown(plan: &Plan) -> Vec<String> {
    let mut lines = Vec::new();
    for pool in &plan.pools {
        let routes: Vec<_> = pool.spec.routes.iter().map(|to| to.dst.as_str()).collect();
        lines.push(format!(
            "{} {} {}",
            pool.name,
            pool.spec.cidr,
            routes.join(",")
        ));
        for link in pool.links().unwrap() {
            let gateway = link.allocation.gateway.unwrap();
            lines.push(format!(
                "  {} {} {} {gateway}",
                link.node_name, link.host, link.allocation.prefix
            ));
        }
    }
    lines
}

/// A host with ethernets of static addresses: name, address, gateway, routes.
fn host(ethernets: &[(&str, &str, &str, &[&str])]) -> String {
    let mut text = "network:\n  version: 2\n  ethernets:\n".to_owned();
    for (name, address, gateway, routes) in ethernets {
        text.push_str(&format!(
            "    {name}:\n      addresses: [\"{address}\"]\n      routes:\n"
        ));
        for to in *routes {
            text.push_str(&format!("        - {{to: \"{to}\", via: \"{gateway}\"}}\n"));
        }
    }
    text
}

const V4: &[&str] = &["172.16.0.0/15", "172.16.0.0/12"];
const V4_1: &[&str] = &["172.18.0.0/15", "172.16.0.0/12"];

/// The deployment that the project came from: what its conversion script made of the hosts' files,
/// rail-1 of its pools.
#[test]
fn the_deployment_comes_out_as_its_pool() {
    let files: Vec<(String, String)> = (0..64)
        .map(|node| {
            let (su, host_index) = (node / 32, node % 32);
            let rail = |rail: u8| {
                let at = |last| format!("172.{}.{su}.{}", 16 + rail * 2, host_index * 2 + last);
                (
                    format!("ens{rail}np0"),
                    format!("{}/31", at(0)),
                    at(1),
                    format!("172.{}.0.0/15", 16 + rail * 2),
                )
            };
            let rails: Vec<_> = (0..8).map(rail).collect();
            let routes: Vec<_> = rails
                .iter()
                .map(|rail| [rail.3.as_str(), "172.16.0.0/12"])
                .collect();
            let ethernets: Vec<_> = (rails.iter().zip(&routes))
                .map(|((name, address, gateway, _), routes)| {
                    (
                        name.as_str(),
                        address.as_str(),
                        gateway.as_str(),
                        routes.as_slice(),
                    )
                })
                .collect();
            (format!("worker-gpu-{node}.yaml"), host(&ethernets))
        })
        .collect();
    let files: Vec<_> = files
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    let plan = read_files(&files).unwrap();
    assert_eq!(plan.warnings, Vec::<String>::new());
    assert_eq!(plan.pools.len(), 8);
    let first = &plan.pools[0];
    let shown = shown(&plan);
    assert_eq!(shown[0], "rail-0 172.16.0.0/15 172.16.0.0/15,172.16.0.0/12");
    assert_eq!(
        shown[63],
        "  worker-gpu-62 172.16.1.60 172.16.1.60/31 172.16.1.61"
    );
    assert_eq!((first.rail, plan.pools[7].rail), (Some(0), Some(7)));
    assert_eq!(
        (first.spec.gateway_index, first.spec.per_node_network_prefix),
        (Some(0), 31)
    );
    assert_eq!(first.spec.static_allocations.len(), 64);
    assert_eq!(first.cables[62][0].interface.as_deref(), Some("ens0np0"));
}

/// A file as people have it: management, bonds, several files, options of their own.
const ODD: &str = "network:
  version: 2
  renderer: networkd
  ethernets:
    eno1: {dhcp4: true}
    eno2: {}
    eno3:
      addresses: [10.1.2.3/24]
      routes: [{to: default, via: 10.1.2.1}]
    rail0:
      match: {macaddress: \"10:11:22:33:44:55\"}
      set-name: eth_r0
      optional: true
      mtu: 9216
      addresses:
        - 172.16.0.0/31: {label: \"eth_r0:1\"}
        - 192.0.2.1/32
        - fd02:0:0:0::1/64
      routes:
        - {to: 172.16.0.0/15, via: 172.16.0.1, metric: 100}
        - {to: 172.16.0.0/12, via: 172.16.0.1, table: 100}
        - {to: 0.0.0.0/0, via: 172.16.0.1, table: 100}
        - {to: 192.0.2.9, type: blackhole}
        - {to: \"fd02::/32\", via: \"fd02::2\", on-link: true}
      routing-policy: [{from: 172.16.0.0, table: 100}]
      dhcp6: yes
  bonds:
    bond0: {interfaces: [eno2]}
";

#[test]
fn hosts_without_rails_are_refused_with_the_reason_of_each_interface() {
    let amd = "network:\n  version: 2\n  ethernets:\n    nic0:\n      addresses: [192.168.1.3/31]\n      routes:\n      - {to: 0.0.0.0/0, via: 192.168.1.2, table: 101}\n";
    let shared = amd
        .replace("192.168.1.3/31", "10.1.0.1/24")
        .replace("0.0.0.0/0", "10.0.0.0/8")
        .replace("192.168.1.2", "10.1.0.254");
    let mut said = Vec::new();
    for (files, told) in [
        (vec![("w0.yaml", amd.to_owned())], "nic0: "),
        (
            vec![
                ("w0.yaml", shared.clone()),
                ("w1.yaml", shared.replace("10.1.0.1/", "10.1.0.2/")),
            ],
            "nic0: ",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let error = format!(
            "{:#}",
            read(&[dir.path().display().to_string()], |_| ()).unwrap_err()
        );
        assert!(error.contains(told), "{error}");
        said.push(error);
    }
    golden::says("plan", "netplan: no rails", said.join("\n"));
}

#[test]
fn what_is_no_rail_is_left_out_and_named() {
    let files = [
        ("w0/etc/netplan/50-x.yaml", ODD),
        ("w0/etc/netplan/README", "x"),
        ("w1/50-x.yaml", ODD),
    ];
    let error = refusal(&files);
    let facts = "w1/50-x.yaml:16: network.ethernets.rail0.addresses: 172.16.0.0 …w0/etc/netplan/50-x.yaml:16";
    assert!(has(&error, facts), "{error}");
    let told = warnings(&files[..2]);
    let network = "w0/etc/netplan/50-x.yaml";
    for expected in [
        "5: network.ethernets.eno1: ",
        "6: network.ethernets.eno2:",
        "7: network.ethernets.eno3:",
        "10: network.ethernets.rail0.addresses:",
        "26: network.ethernets.rail0.dhcp6: DHCP",
        "28: network.bonds.bond0:",
    ] {
        let start = format!("{network}:{expected}");
        assert!(
            told.iter().any(|one| one.starts_with(&start)),
            "{expected}: {told:#?}"
        );
    }
    assert!(
        told.iter()
            .any(|one| one.starts_with("w0/etc/netplan/README: ")),
        "{told:#?}"
    );
    golden::says("plan", "netplan: what is left out", told.join("\n"));
    assert_eq!(told.len(), 7, "{told:#?}");
    let plan = read_files(&files[..1]).unwrap();
    assert_eq!(
        shown(&plan),
        [
            "rail-0 172.16.0.0/15 172.16.0.0/15,172.16.0.0/12",
            "  w0 172.16.0.0 172.16.0.0/31 172.16.0.1",
            "rail-0-v6 fd02::/40 fd02::/32",
            "  w0 fd02::1 fd02::/64 fd02::2",
        ]
    );
    let cable = &plan.pools[0].cables[0][0];
    assert_eq!(
        (cable.interface.as_deref(), cable.mtu),
        (Some("eth_r0"), Some(9216))
    );
}

/// Every key of the rail's interface comes back, whatever netplan will have next year.
#[test]
fn what_the_plan_does_not_know_comes_back() {
    let written = write(&read_files(&[("w0.yaml", ODD)]).unwrap()).unwrap();
    let [File { name, text }] = written.as_slice() else {
        panic!("{written:?}")
    };
    assert_eq!(name, "w0.yaml");
    let value = |text: &str| {
        crate::document::parse("f", text.as_bytes())
            .unwrap()
            .remove(0)
            .value
    };
    let mut expected = value(ODD)["network"]["ethernets"]["rail0"].clone();
    expected["renderer"] = json!("networkd");
    assert_eq!(
        value(text)["network"],
        json!({"version": 2, "ethernets": {"rail0": expected}})
    );
    let again = write(&read_files(&[("w0.yaml", text)]).unwrap()).unwrap();
    assert_eq!(again, written, "the first writing makes the canonical form");
}

#[test]
fn a_plan_is_written_in_this_form() {
    let plan = crate::plan::tests::plan(Mode::None, Family::Dual, &cabled());
    let files = write(&plan).unwrap();
    let expected = r#"network:
  version: 2
  ethernets:
    rail0:
      addresses:
        - 172.16.1.60/31
        - "fd02:0:0:11e::1/64"
      mtu: 9000
      routes:
        - to: 172.16.0.0/15
          via: 172.16.1.61
        - to: 172.16.0.0/12
          via: 172.16.1.61
        - to: "fd02::/32"
          via: "fd02:0:0:11e::2"
    rail1:
      addresses:
        - 172.18.1.60/31
        - "fd02:0:100:11e::1/64"
      mtu: 9000
      routes:
        - to: 172.18.0.0/15
          via: 172.18.1.61
        - to: 172.16.0.0/12
          via: 172.18.1.61
        - to: "fd02::/32"
          via: "fd02:0:100:11e::2"
"#;
    assert_eq!(
        files[1],
        File {
            name: "worker-gpu-62.yaml".into(),
            text: expected.into()
        }
    );
}

/// netplan: of what stands in several files, lists are put behind one another and the last of all
/// else counts.
#[test]
fn the_files_of_a_host_are_one() {
    let first = "network:
  ethernets:
    a:
      mtu: 1500
      match: {name: x}
      addresses: [172.16.0.0/31]
      routes: [{to: 172.16.0.0/15, via: 172.16.0.1}]
";
    let second = "network:
  version: 2
  ethernets:
    a:
      mtu: 9000
      match: {driver: mlx5_core}
      routes: [{to: 172.16.0.0/12, via: 172.16.0.1}]
";
    let plan = read_files(&[("w/1.yaml", first), ("w/2.yaml", second)]).unwrap();
    assert_eq!(
        shown(&plan)[0],
        "rail-0 172.16.0.0/15 172.16.0.0/15,172.16.0.0/12"
    );
    let cable = &plan.pools[0].cables[0][0];
    assert_eq!(cable.mtu, Some(9000));
    // The routes are the plan's, both.
    let kept = &*cable.netplan.as_ref().unwrap().keys;
    assert_eq!(
        json!(kept),
        json!({"match": {"driver": "mlx5_core", "name": "x"}})
    );
}

#[test]
fn the_leaf_may_have_any_side() {
    let two = |first: (&str, &str), second: (&str, &str), routes: &[&str]| {
        let [a, b] =
            [first, second].map(|(address, gateway)| host(&[("r", address, gateway, routes)]));
        let plan = read_files(&[("a.yaml", &a), ("b.yaml", &b)]).unwrap();
        let spec = &plan.pools[0].spec;
        let indexes: Vec<_> = spec
            .per_node_exclusions
            .iter()
            .map(|it| (it.start_index, it.end_index))
            .collect();
        let excluded: Vec<_> = spec
            .exclusions
            .iter()
            .map(|it| format!("{}-{}", it.start, it.end))
            .collect();
        let hosts: Vec<_> = plan.pools[0]
            .links()
            .unwrap()
            .iter()
            .map(|link| link.host.to_string())
            .collect();
        (
            hosts.join(" "),
            spec.gateway_index.unwrap(),
            indexes,
            excluded.join(" "),
            plan.warnings.len(),
        )
    };
    let none = String::new();
    for (first, second, routes, expected) in [
        (
            ("172.16.0.1/31", "172.16.0.0"),
            ("172.16.0.3/31", "172.16.0.2"),
            V4,
            ("172.16.0.1 172.16.0.3", 1, vec![(0, 0)], none.clone(), 0),
        ),
        // One of them the other way round: a warning, and no exclusion that would take its address.
        (
            ("172.16.0.1/31", "172.16.0.0"),
            ("172.16.0.2/31", "172.16.0.3"),
            V4,
            ("172.16.0.1 172.16.0.2", 0, vec![], none.clone(), 1),
        ),
        (
            ("10.0.0.2/30", "10.0.0.1"),
            ("10.0.0.6/30", "10.0.0.5"),
            &["10.0.0.0/16"],
            ("10.0.0.2 10.0.0.6", 1, vec![(1, 1)], none.clone(), 0),
        ),
        (
            ("10.0.0.5/29", "10.0.0.1"),
            ("10.0.0.13/29", "10.0.0.9"),
            &["10.0.0.0/16"],
            ("10.0.0.5 10.0.0.13", 1, vec![(1, 4)], none.clone(), 0),
        ),
        (
            ("10.0.0.2/29", "10.0.0.6"),
            ("10.0.0.10/29", "10.0.0.14"),
            &["10.0.0.0/16"],
            (
                "10.0.0.2 10.0.0.10",
                6,
                vec![(1, 1), (6, 6)],
                none.clone(),
                0,
            ),
        ),
        (
            ("fd00::1:2:3:4/64", "fd00::ffff:0:0:1"),
            ("fd00:0:0:1::2/64", "fd00:0:0:1::1"),
            &["fd00::/48"],
            (
                "fd00::1:2:3:4 fd00:0:0:1::2",
                1,
                vec![],
                "fd00::1-fd00::1:2:3:3".into(),
                1,
            ),
        ),
        (
            ("fd00::1/127", "fd00::"),
            ("fd00::3/127", "fd00::2"),
            &["fd00::/48"],
            ("fd00::1 fd00::3", 1, vec![(0, 0)], none.clone(), 0),
        ),
    ] {
        let (hosts, index, indexes, excluded, warnings) = expected;
        assert_eq!(
            two(first, second, routes),
            (hosts.to_owned(), index, indexes, excluded, warnings)
        );
    }
}

/// Storage on a link of its own looks like a rail. Pods would get the addresses of other cables if
/// it were counted among them.
#[test]
fn a_network_that_the_formulas_did_not_make_gives_no_rail_another_number() {
    let storage: (&str, &str, &str, &[&str]) =
        ("stor0", "10.70.0.0/31", "10.70.0.1", &["10.70.0.0/16"]);
    let rails = [
        ("rail0", "172.16.0.0/31", "172.16.0.1", V4),
        ("rail1", "172.18.0.0/31", "172.18.0.1", V4_1),
    ];
    let of = |ethernets: &[(&str, &str, &str, &[&str])]| {
        let files = [("worker-gpu-0/50.yaml", host(ethernets))];
        let files: Vec<_> = files
            .iter()
            .map(|(name, text)| (*name, text.as_str()))
            .collect();
        let pools = read_files(&files).unwrap().pools;
        let pools: Vec<_> = pools
            .into_iter()
            .map(|pool| (pool.name, pool.spec.cidr))
            .collect();
        (pools, warnings(&files))
    };
    let pool = |name: &str, cidr: &str| (name.to_owned(), cidr.to_owned());
    let (before, told) = of(&rails);
    assert_eq!(
        before,
        [
            pool("rail-0", "172.16.0.0/15"),
            pool("rail-1", "172.18.0.0/15")
        ]
    );
    assert!(told.is_empty(), "{told:?}");
    let (after, told) = of(&[storage, rails[0], rails[1]]);
    assert_eq!(after[..2], before);
    assert_eq!(after[2..], [pool("rail-2", "10.70.0.0/16")]);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("10.70.0.0/16"), "{told:?}");
}

/// The networks of plane 1 have the numbers from 8 on, each of which is a routing table in the pod.
#[test]
fn a_network_that_the_formulas_did_not_make_gets_no_number_of_a_plane() {
    const ROUTES: [&[&str]; 2] = [
        &["172.16.0.0/18", "172.16.0.0/14"],
        &["172.20.0.0/18", "172.20.0.0/14"],
    ];
    let planes = [
        ("p0", "172.16.0.0/31", "172.16.0.1", ROUTES[0]),
        ("p1", "172.20.0.0/31", "172.20.0.1", ROUTES[1]),
    ];
    let storage: (&str, &str, &str, &[&str]) =
        ("stor0", "10.70.0.0/31", "10.70.0.1", &["10.70.0.0/16"]);
    let storage_v6: (&str, &str, &str, &[&str]) =
        ("stor1", "fd00:70::/127", "fd00:70::1", &["fd00:70::/64"]);
    let text = host(&[storage, planes[0], planes[1], storage_v6]);
    let plan = read_files(&[("w0.yaml", &text)]).unwrap();
    let numbers: Vec<_> = plan
        .pools
        .iter()
        .map(|pool| (pool.name.as_str(), pool.number()))
        .collect();
    assert_eq!(
        numbers,
        [
            ("rail-0-plane-0", Some(0)),
            ("rail-0-plane-1", Some(8)),
            ("rail-9", Some(9)),
            ("rail-10-v6", Some(10))
        ]
    );
    assert!(
        !plan.warnings.iter().any(|told| told.contains(" of node ")),
        "{:?}",
        plan.warnings
    );
}

/// Rails without a supernet of their own: by the formulas, else by the names of the interfaces.
#[test]
fn an_aggregate_tells_no_rail() {
    let all = ["fd00::/16"];
    let a = host(&[
        ("x", "fd00:0:1::1/64", "fd00:0:1::2", &all),
        ("y", "fd00:0:2::1/64", "fd00:0:2::2", &all),
    ]);
    let b = host(&[
        ("x", "fd00:0:3::1/64", "fd00:0:3::2", &all),
        ("y", "fd00:0:4::1/64", "fd00:0:4::2", &all),
    ]);
    assert_eq!(
        shown(&read_files(&[("a.yaml", &a), ("b.yaml", &b)]).unwrap()),
        [
            "rail-0 fd00::/16 fd00::/16",
            "  a fd00:0:1::1 fd00:0:1::/64 fd00:0:1::2",
            "  b fd00:0:3::1 fd00:0:3::/64 fd00:0:3::2",
            "rail-1 fd00::/16 fd00::/16",
            "  a fd00:0:2::1 fd00:0:2::/64 fd00:0:2::2",
            "  b fd00:0:4::1 fd00:0:4::/64 fd00:0:4::2",
        ]
    );
    let all = ["172.16.0.0/12"];
    let a = host(&[
        ("x", "172.16.0.0/31", "172.16.0.1", &all),
        ("y", "172.30.0.0/31", "172.30.0.1", &all),
    ]);
    let pools: Vec<_> = read_files(&[("a.yaml", &a)]).unwrap().pools;
    let cidrs: Vec<_> = pools
        .iter()
        .map(|pool| (pool.name.as_str(), pool.spec.cidr.as_str()))
        .collect();
    assert_eq!(
        cidrs,
        [("rail-0", "172.16.0.0/15"), ("rail-7", "172.30.0.0/15")]
    );
    // No route holds the prefix at all.
    let a = host(&[("x", "10.0.0.0/31", "10.0.0.1", &["192.0.2.0/24"])]);
    let b = host(&[("x", "10.0.0.6/31", "10.0.0.7", &["192.0.2.0/24"])]);
    assert_eq!(
        read_files(&[("a.yaml", &a), ("b.yaml", &b)]).unwrap().pools[0]
            .spec
            .cidr,
        "10.0.0.0/29"
    );
}

#[test]
fn a_network_of_many_hosts_is_no_rail() {
    let of = |number: u8| {
        let (rail, gateway) = (
            format!("172.16.0.{}/31", number * 2),
            format!("172.16.0.{}", number * 2 + 1),
        );
        let storage = format!("10.0.{}.{}/24", number / 3, number + 10);
        let storage_gateway = format!("10.0.{}.1", number / 3);
        host(&[
            ("rail", &rail, &gateway, V4),
            ("storage", &storage, &storage_gateway, &["10.0.0.0/8"]),
        ])
    };
    let texts: Vec<_> = (0..7)
        .map(|number| (format!("w{number}.yaml"), of(number)))
        .collect();
    let files: Vec<_> = texts
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    let told = warnings(&files);
    assert!(
        told.len() == 1 && has(&told[0], "w0.yaml:10: network.ethernets.storage: … 6 "),
        "{told:?}"
    );
    golden::says("plan", "netplan: a network of many hosts", &told[0]);
}

#[test]
fn hosts_that_disagree_are_told_from_the_others() {
    let of = |number: u8, routes: &[&str], name: &str| {
        host(&[(
            name,
            &format!("172.16.0.{}/31", number * 2),
            &format!("172.16.0.{}", number * 2 + 1),
            routes,
        )])
    };
    let (a, b) = (of(0, V4, "r"), of(1, V4, "r"));
    let lacking = of(2, &["172.16.0.0/12"], "r");
    let mut said = vec![refusal(&[
        ("a.yaml", &a),
        ("b.yaml", &b),
        ("c.yaml", &lacking),
    ])];
    assert!(
        has(
            &said[0],
            "c.yaml:7: network.ethernets.r.routes: 172.16.0.0/12 …a.yaml:5"
        ),
        "{said:?}"
    );
    let other = of(2, V4, "s").replace("addresses", "mtu: 9000\n      addresses");
    let told = warnings(&[("a.yaml", &a), ("b.yaml", &b), ("c.yaml", &other)]);
    let facts = [
        "c.yaml:6: network.ethernets.s.mtu: 9000 …a.yaml:5",
        "c.yaml:6: network.ethernets.s: …a.yaml:5",
    ];
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told.iter().zip(facts).all(|(told, facts)| has(told, facts)),
        "{told:?}"
    );
    said.extend(told);
    let swapped = of(2, V4, "r")
        .replace("172.16.0.4/31", "172.16.0.5/31")
        .replace("172.16.0.5\"}", "172.16.0.4\"}");
    let told = warnings(&[("a.yaml", &a), ("b.yaml", &b), ("c.yaml", &swapped)]);
    assert!(
        told.len() == 1 && has(&told[0], "c.yaml:7: network.ethernets.r.routes: …a.yaml:5"),
        "{told:?}"
    );
    said.extend(told);
    let twice = host(&[
        ("r", "172.16.0.4/31", "172.16.0.5", V4),
        ("s", "172.16.0.6/31", "172.16.0.7", V4),
    ]);
    said.push(refusal(&[("a.yaml", &a), ("b.yaml", &twice)]));
    let facts =
        "b.yaml:10: network.ethernets.s.addresses: 172.16.0.6 …172.16.0.4…172.16.0.0/15…b.yaml:5";
    assert!(has(said.last().unwrap(), facts), "{said:?}");
    // IPv6 of one rail on the interface of another.
    let v6: &[&str] = &["fd02::/32"];
    let dual = |number: u8, first: &str, second: &str| {
        let last = |last: u8| number * 2 + last;
        let mut text = host(&[
            (
                "r",
                &format!("172.16.0.{}/31", last(0)),
                &format!("172.16.0.{}", last(1)),
                V4,
            ),
            (
                "s",
                &format!("172.18.0.{}/31", last(0)),
                &format!("172.18.0.{}", last(1)),
                V4_1,
            ),
        ]);
        for (v4, rail) in [("172.16", first), ("172.18", second)] {
            let (address, via) = (
                format!("fd02:0:{rail}:{number}::1/64"),
                format!("fd02:0:{rail}:{number}::2"),
            );
            text = text.replace(
                &format!("[\"{v4}.0.{}/31\"]", last(0)),
                &format!("[{v4}.0.{}/31, \"{address}\"]", last(0)),
            );
            let at = text.find(&format!("{v4}.0.{}/31, ", last(0))).unwrap();
            let routes = at + text[at..].find("routes:\n").unwrap() + "routes:\n".len();
            text.insert_str(
                routes,
                &format!("        - {{to: \"{}\", via: \"{via}\"}}\n", v6[0]),
            );
        }
        text
    };
    let (a, b, c) = (
        dual(1, "000", "100"),
        dual(2, "000", "100"),
        dual(3, "100", "000"),
    );
    let error = refusal(&[("a.yaml", &a), ("b.yaml", &b), ("c.yaml", &c)]);
    let facts =
        "c.yaml:5: network.ethernets.r.addresses: fd02:0:100:3::1 …172.18.0.0/15…172.16.0.0/15";
    assert!(has(&error, facts), "{error}");
    said.push(error);
    golden::says("plan", "netplan: hosts that disagree", said.join("\n"));
}

#[test]
fn what_is_wrong_is_told_with_file_line_and_field() {
    let good = host(&[("r", "172.16.0.0/31", "172.16.0.1", V4)]);
    let at = "a.yaml:5: network.ethernets.r.addresses: ";
    let route = "a.yaml:7: network.ethernets.r.routes: ";
    let mut said = Vec::new();
    for (from, to, told) in [
        ("172.16.0.0/31", "172.16.0.0", format!("{at}172.16.0.0")),
        (
            "172.16.0.0/31",
            "172.16.0.0/33",
            format!("{at}\"172.16.0.0/33\""),
        ),
        ("[\"172.16.0.0/31\"]", "[[]]", format!("{at}[]")),
        ("[\"172.16.0.0/31\"]", "7", format!("{at}is")),
        (
            "172.16.0.0/31",
            "172.16.0.1/31",
            format!("{route}…172.16.0.1"),
        ),
        (
            "172.16.0.0/31",
            "172.16.0.2/31",
            format!("{route}…172.16.0.1…172.16.0.2/31"),
        ),
        ("172.16.0.0/31", "172.16.0.0/24", format!("{at}172.16.0.0")),
        (
            "\"172.16.0.1\"",
            "\"172.16.0.x\"",
            format!("{route}via: \"172.16.0.x\""),
        ),
        ("\"172.16.0.1\"", "9", format!("{route}via:")),
        ("{to: \"172.16.0.0/15\", via", "{via", format!("{route}to:")),
        (
            "{to: \"172.16.0.0/15\"",
            "{to: \"fd00::/8\"",
            format!("{route}to: fd00::/8…172.16.0.1"),
        ),
        (
            "{to: \"172.16.0.0/15\"",
            "{to: \"x\"",
            format!("{route}to: \"x\""),
        ),
        (
            "- {to: \"172.16.0.0/15\", via: \"172.16.0.1\"}",
            "- 7",
            format!("{route}7"),
        ),
        (
            "\"172.16.0.0/31\"]",
            "\"172.16.0.0/31\", \"172.16.0.2/31\"]\n      gateway4: x",
            "no fault".into(),
        ),
        (
            "version: 2",
            "version: 1",
            "a.yaml:2: network.version:".into(),
        ),
        (
            "ethernets:",
            "ethernets: 1\n  x:",
            "a.yaml:3: network.ethernets:".into(),
        ),
        (
            "    r:",
            "    q: 1\n    r:",
            "a.yaml:4: network.ethernets.q:".into(),
        ),
        ("network:", "netwerk:", "network:".into()),
        (
            "    r:",
            "    a-name-that-is-too-long:",
            "a-name-that-is-too-long".into(),
        ),
        (
            "    r:\n",
            "    r:\n      set-name: \"a b\"\n",
            "\"a b\"".into(),
        ),
        ("    r:\n", "    r: &r\n      x: *r\n", "a.yaml:5:".into()),
        (
            "via: \"172.16.0.1\"}\n",
            "via: \"172.16.0.1\n",
            "a.yaml:".into(),
        ),
        (
            "network:",
            "---\nnetwork: {}\n---\nnetwork:",
            "a.yaml:4:".into(),
        ),
    ] {
        let text = good.replacen(from, to, 1);
        assert_ne!(text, good, "{from}");
        if told == "no fault" {
            assert_eq!(read_files(&[("a.yaml", &text)]).unwrap().warnings.len(), 2);
            continue;
        }
        let error = refusal(&[("a.yaml", &text)]);
        assert!(has(&error, &told), "{told}: {error}");
        said.push(error);
    }
    // Also when it is written otherwise, and in another file.
    let one = host(&[("r", "fd00::1/127", "fd00::", &["fd00::/48"])]);
    let other = host(&[("r", "fd00:0:0::1/127", "fd00:0::", &["fd00::/48"])]);
    let error = refusal(&[("a.yaml", &one), ("b.yaml", &other)]);
    assert!(error.contains("b.yaml:5: network.ethernets.r.addresses: fd00::1"));
    let sides = host(&[("r", "172.16.0.1/31", "172.16.0.0", V4)]);
    let error = refusal(&[("a.yaml", &good), ("b.yaml", &sides)]);
    assert!(error.contains("(a.yaml:5)"), "{error}");
    // In a larger prefix a gateway elsewhere may be a way to somewhere; not where the interface is
    // a rail's.
    let out = host(&[("r", "fd00:0:0:1::1/64", "fd00::7:2", &["fd00::/48"])]);
    let good = host(&[("r", "fd00:0:0:2::1/64", "fd00:0:0:2::2", &["fd00::/48"])]);
    let error = refusal(&[("a.yaml", &out), ("b.yaml", &good)]);
    assert!(error.contains("a.yaml:7: network.ethernets.r.routes: the gateway fd00::7:2"));
    // A file that was cut is still YAML.
    let cut = &good[..good.find("      routes").unwrap()].replace("0:2::", "0:3::");
    let error = refusal(&[("a.yaml", cut), ("b.yaml", &good)]);
    assert!(
        error.starts_with("a.yaml:4: network.ethernets.r: "),
        "{error}"
    );
    said.push(error);
    said.push(refusal(&[("a.yaml", &out)]));
    golden::says("plan", "netplan: faults", said.join("\n"));
}

#[test]
fn files_that_are_no_host_s_are_told() {
    let good = host(&[("r", "172.16.0.0/31", "172.16.0.1", V4)]);
    for (name, told) in [
        ("a b.yaml", "b.yaml"),
        ("-a.yaml", "-a.yaml:"),
        ("a b/x.yaml", "a b: "),
    ] {
        assert!(refusal(&[(name, &good)]).contains(told), "{name}");
    }
    let error = refusal(&[("a.yaml", &good), ("a/x.yaml", &good)]);
    assert!(
        error.contains("a.yaml: node a has") && error.contains("a/x.yaml already"),
        "{error}"
    );
    golden::says(
        "plan",
        "netplan: no files",
        refusal(&[(".hidden.yaml", &good), ("x.txt", "")]),
    );

    let folder = folder(&[("a.yaml", &good)]);
    let path = |name: &str| folder.path().join(name);
    let read_path =
        |name: &str| read(&[path(name).display().to_string()], |_| ()).map(|plan| plan.pools.len());
    assert_eq!(read_path("a.yaml").unwrap(), 1);
    assert!(read_path("gone").is_err());
    fs::create_dir_all(path("etc/netplan")).unwrap();
    golden::says(
        "plan",
        "netplan: one host's own directory",
        read_path("etc/netplan").unwrap_err(),
    );
    fs::remove_dir_all(path("etc")).unwrap();

    std::os::unix::fs::symlink(path("a.yaml"), path("b.yaml")).unwrap();
    let error = read_folder(folder.path())
        .map(|plan| plan.pools)
        .unwrap_err()
        .to_string();
    assert!(error.contains("b.yaml: "));
    fs::remove_file(path("b.yaml")).unwrap();
    nix::unistd::mkfifo(&path("b.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let error = read_folder(folder.path())
        .map(|plan| plan.pools)
        .unwrap_err()
        .to_string();
    assert!(error.contains("b.yaml: "), "{error}");
    fs::remove_file(path("b.yaml")).unwrap();
    fs::create_dir_all(path("b/etc")).unwrap();
    std::os::unix::fs::symlink("/etc/netplan", path("b/etc/netplan")).unwrap();
    let error = read_folder(folder.path())
        .map(|plan| plan.pools)
        .unwrap_err()
        .to_string();
    assert!(error.contains("b/etc/netplan: "), "{error}");
}

#[test]
fn a_row_without_an_interface_is_told_with_node_and_pool() {
    let mut links = cabled();
    links[0].cable.interface = None;
    let error = write(&crate::plan::tests::plan(Mode::None, Family::Ipv4, &links))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("node worker-gpu-0 in pool rail-0: "),
        "{error}"
    );
    let mut links = cabled();
    links.truncate(1);
    links.push(HostLink {
        plane: 1,
        ..links[0].clone()
    });
    (links[1].cable.interface, links[1].cable.leaf) =
        (Some("rail0p1".into()), Some("other".into()));
    let error = write(&crate::plan::tests::plan(Mode::Hwplb, Family::Ipv4, &links))
        .unwrap_err()
        .to_string();
    assert!(error.contains("rail0 or on rail0p1"), "{error}");
}

/// Links such as a topology has, and the scheme for them.
fn fabric() -> impl Strategy<Value = (Scheme, Vec<HostLink>)> {
    let tiers = prop_oneof![Just(Tiers::Two), Just(Tiers::Three)];
    let mode = prop_oneof![Just(Mode::None), Just(Mode::Swplb), Just(Mode::Hwplb)];
    let family = prop_oneof![Just(Family::Ipv4), Just(Family::Ipv6), Just(Family::Dual)];
    let polarity = prop_oneof![Just(Polarity::LeafOdd), Just(Polarity::LeafEven)];
    let places = prop::collection::btree_set((0..32_u64, 0..64_u64, 0..128_u64), 1..6);
    let rails = prop::collection::btree_set(0..8_u64, 1..5);
    (
        tiers,
        mode,
        family,
        polarity,
        1..224_u8,
        places,
        rails,
        prop::option::of(1280..9217_u32),
    )
        .prop_map(
            |(tiers, mode, family, polarity, first_octet, places, rails, mtu)| {
                let scheme = Scheme {
                    tiers,
                    mode,
                    family,
                    first_octet,
                    polarity,
                };
                let planes = if mode == Mode::Swplb { 0..2 } else { 0..1 };
                let mut links = Vec::new();
                for (number, (pod, su, host)) in places.into_iter().enumerate() {
                    for rail in &rails {
                        for plane in planes.clone() {
                            links.push(HostLink {
                                node_name: format!("w{number}"),
                                plane,
                                rail: *rail,
                                // Two tiers have no pods: SUs are told apart by the number.
                                pod: if tiers == Tiers::Two { 0 } else { pod },
                                su: if tiers == Tiers::Two {
                                    (su + number as u64 * 7) % 64
                                } else {
                                    su
                                },
                                host,
                                cable: Cable {
                                    interface: Some(format!("rail{rail}p{plane}")),
                                    mtu,
                                    ..Cable::default()
                                },
                            });
                        }
                    }
                }
                (scheme, links)
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Exact: pools with their numbers, rows, exclusions and interfaces; and the files, byte by
    /// byte.
    #[test]
    fn a_plan_comes_back_from_the_hosts((scheme, links) in fabric()) {
        let Ok(mut plan) = scheme.plan(links, &crate::plan::tests::origin) else { return Ok(()) };
        plan.check().unwrap();
        let files = write(&plan).unwrap();
        let names: Vec<_> = files.iter().map(|file| (file.name.as_str(), file.text.as_str())).collect();
        let again = read_files(&names).unwrap();
        prop_assert_eq!(again.pools.len(), plan.pools.len());
        for (again, before) in again.pools.iter().zip(&plan.pools) {
            prop_assert_eq!(&again.name, &before.name);
            prop_assert_eq!((again.rail, again.plane), (before.rail, before.plane));
            prop_assert_eq!(&again.spec, &before.spec);
            prop_assert_eq!(&again.cables, &before.cables);
        }
        prop_assert_eq!(&again.warnings, &plan.warnings);
        prop_assert_eq!(write(&again).unwrap(), files);
    }

    /// Any files give either a plan that can be written and read again, or an error.
    #[test]
    fn no_file_makes_it_panic(
        texts in prop::collection::vec(
            prop::collection::vec(
                (
                    "[ab]",
                    prop::collection::vec("(172\\.1[67]\\.0\\.[0-3]|10\\.0\\.0\\.[1-5]|fd02::[0-3])/(31|30|24|15|127|64|0|32)", 0..3),
                    prop::collection::vec(
                        ("(default|0\\.0\\.0\\.0/0|172\\.16\\.0\\.0/1[25]|10\\.0\\.0\\.0/8|fd02::/(32|40)|::/0|x)",
                         "(172\\.1[67]\\.0\\.[0-3]|10\\.0\\.0\\.[1-5]|fd02::[0-3])"),
                        0..4,
                    ),
                ),
                0..4,
            ),
            1..4,
        ),
    ) {
        type Ethernet = (String, Vec<String>, Vec<(String, String)>);
        let text = |ethernets: &Vec<Ethernet>| {
            let mut all = Map::new();
            for (id, addresses, routes) in ethernets {
                let routes: Vec<_> = routes.iter().map(|(to, via)| json!({"to": to, "via": via})).collect();
                all.insert(id.clone(), json!({"addresses": addresses, "routes": routes}));
            }
            json!({"network": {"version": 2, "ethernets": all}}).to_string()
        };
        let texts: Vec<_> = texts.iter().enumerate().map(|(at, one)| (format!("w{at}.yaml"), text(one))).collect();
        let files: Vec<_> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        if let Ok(plan) = read_files(&files) {
            let written = write(&plan).unwrap();
            let files: Vec<_> = written.iter().map(|file| (file.name.as_str(), file.text.as_str())).collect();
            let again = read_files(&files).unwrap();
            prop_assert_eq!(shown(&again), shown(&plan));
            prop_assert_eq!(write(&again).unwrap(), written);
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in "(network|version|ethernets|addresses|routes|to|via|[-:,{}\\[\\]& *2ab\n ./0]){0,30}") {
        let _ = read_files(&[("a.yaml", &text)]);
    }
}

/// A default route in a table of its own, as for routing by source, or no route at all: no host
/// has a route to the network of all rails.
#[test]
fn a_rail_that_all_hosts_would_lose_is_refused_by_host_and_name() {
    let of_host = |number: u8, routes: &str| {
        host(&[(
            "eth_rail0",
            &format!("172.16.0.{number}/31"),
            &format!("172.16.0.{}", number + 1),
            V4,
        )]) + &format!("    eth_rail1:\n      addresses: [172.18.0.{number}/31]\n{routes}")
    };
    let in_table = |number: u8| {
        let via = number + 1;
        format!("      routes: [{{to: default, via: 172.18.0.{via}, table: 102}}]\n")
    };
    for routes in [(in_table(0), in_table(2)), Default::default()] {
        let first = of_host(0, &routes.0);
        let second = of_host(2, &routes.1);
        let folder = folder(&[("gpu-1.yaml", &first), ("gpu-2.yaml", &second)]);
        let path = folder.path().display().to_string();
        let mut allowed = read(std::slice::from_ref(&path), |_| ()).unwrap();
        assert_eq!(allowed.doubts.allow(&[Doubt::MissingRail]).len(), 2);
        allowed.doubts.refuse().unwrap();
        let plan = read(&[path], |_| ()).unwrap();
        let text = refused_text(plan);
        for fact in ["eth_rail1", "gpu-1 would", "gpu-2 would", "gpu-1.yaml:9"] {
            assert!(text.contains(fact), "{fact}: {text}");
        }
    }
}

/// The default route in the table of the rail is for packets from the rail's address.
#[test]
fn only_a_default_route_of_the_main_table_is_warned_about() {
    let text = |table: &str| {
        format!(
            "network:\n  version: 2\n  ethernets:\n    eth_rail0:\n      addresses: [172.16.0.0/31]\n      \
             routes:\n      - {{to: 172.16.0.0/12, via: 172.16.0.1, table: 101}}\n      \
             - {{to: default, via: 172.16.0.1{table}}}\n"
        )
    };
    let told = warnings(&[("gpu-1.yaml", &text(", table: 101"))]);
    assert_eq!(told, Vec::<String>::new());
    for main in ["", ", table: 254"] {
        let told = warnings(&[("gpu-1.yaml", &text(main))]);
        assert!(told.concat().contains("default route"), "{told:?}");
    }
}

#[test]
fn a_host_without_rails_is_refused_where_others_have_some() {
    let with_rail = host(&[("eth_rail0", "172.16.0.0/31", "172.16.0.1", V4)]);
    let without = "network:\n  version: 2\n  ethernets:\n    eth0: {dhcp4: true}\n";
    let plan = read_files(&[("gpu-1.yaml", &with_rail), ("gpu-2.yaml", without)]).unwrap();
    let text = refused_text(plan);
    assert!(text.contains("--allow missing-rail"), "{text}");
    assert!(text.contains("gpu-2.yaml: the host has no rails"), "{text}");
    assert!(!text.contains("gpu-1.yaml"), "{text}");
}

/// An uplink of two addresses, with the host's own default route, is no rail.
#[test]
fn the_uplink_of_a_host_is_left_out() {
    let uplink =
        "    eth0:\n      addresses: [10.0.0.4/31]\n      routes: [{to: default, via: 10.0.0.5}]\n";
    let text = host(&[("eth_rail0", "172.16.0.0/31", "172.16.0.1", V4)]) + uplink;
    let plan = read_files(&[("gpu-1.yaml", &text)]).unwrap();
    plan.doubts.refuse().unwrap();
    assert_eq!(plan.pools.len(), 1);
}

fn refused_text(plan: Plan) -> String {
    let refusal = plan.doubts.refuse().unwrap_err();
    refusal.lines().join("\n")
}
