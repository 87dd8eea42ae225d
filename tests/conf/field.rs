//! tests/field: what public repositories have, in words and with names of our own. Each file says
//! where its kind was seen.

use serde_json::{Value, json};

use super::{Bench, RAILCTL, config_of, read, yaml_documents};

/// The networks that `lint --fix` makes of a file, and its findings.
fn fixed(file: &str) -> (Vec<Value>, String) {
    let path = format!("tests/field/{file}.yaml");
    let output = Bench::new()
        .command(&RAILCTL, &["lint", "--fix", &path])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    (
        yaml_documents(&String::from_utf8(output.stdout).unwrap()).unwrap(),
        said,
    )
}

fn named(nads: &[Value]) -> Vec<String> {
    nads.iter()
        .map(|nad| nad["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Lint finds no fault with its own output, which needs no rewriting.
fn is_clean(nads: &[Value]) {
    let bench = Bench::new();
    let text: String = nads.iter().map(|nad| format!("---\n{nad}\n")).collect();
    std::fs::write(bench.path("x.yaml"), text).unwrap();
    let mut command = bench.command(&RAILCTL, &["lint"]);
    let output = command.arg(bench.path("x.yaml")).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && !said.contains("--fix"), "{said}");
}

#[test]
fn a_rail_of_the_spectrum_x_operator_keeps_its_pool_and_its_resource() {
    let (nads, said) = fixed("spectrum-x");
    assert_eq!(named(&nads), ["rail-0", "rail-1"]);
    for (rail, nad) in nads.iter().enumerate() {
        let main = &config_of(nad)["plugins"][0];
        assert_eq!((&main["rail"], &main["mtu"]), (&json!(rail), &json!(9216)));
        assert_eq!(
            main["ipam"],
            json!({"type": "rail-ipam", "pool": format!("pool-{rail}")})
        );
        assert_eq!(
            nad["metadata"]["annotations"]["k8s.v1.cni.cncf.io/resourceName"],
            format!("nvidia.com/rail-{rail}")
        );
        assert_eq!(nad["metadata"]["namespace"], "training");
    }
    assert!(said.contains("rail-2 has 2 PFs"), "{said}");
    is_clean(&nads);
}

#[test]
fn a_chain_of_oracles_guide_keeps_the_keys_that_are_no_rails() {
    let (nads, said) = fixed("oracle");
    let config = config_of(&nads[0]);
    let [main, tuning] = &config["plugins"].as_array().unwrap()[..] else {
        panic!("{config}")
    };
    assert_eq!(
        (&main["type"], &main["mtu"], main.get("sysctl")),
        (&json!("rail-cni"), &json!(4220), None)
    );
    assert_eq!(
        main["ipam"],
        json!({"type": "nv-ipam", "poolName": "vf-pool"})
    );
    assert_eq!(
        tuning,
        &json!({"type": "tuning", "sysctl": {"net.ipv4.conf.all.arp_announce": "2"}})
    );
    assert!(
        said.contains("perNodeNetworkPrefix: 25") && !said.contains("allreduce"),
        "{said}"
    );
    is_clean(&nads);
}

#[test]
fn the_address_of_amds_nic_comes_from_the_host() {
    let (nads, said) = fixed("amd");
    let config = config_of(&nads[0]);
    assert_eq!(config["plugins"].as_array().unwrap().len(), 1);
    assert_eq!(
        config["plugins"][0]["ipam"],
        json!({"type": "rail-ipam", "source": "host"})
    );
    assert!(
        said.contains("hostAddresses") && said.contains("routeDstPrefixLen"),
        "{said}"
    );
    is_clean(&nads);
}

#[test]
fn nothing_of_a_sriov_network_of_openshift_is_lost() {
    let (nads, said) = fixed("openshift");
    assert_eq!(named(&nads), ["rail-0", "rail-1"]);
    let main = &config_of(&nads[0])["plugins"][0];
    for (key, value) in [
        ("vlan", json!(100)),
        ("spoofchk", json!("off")),
        ("trust", json!("on")),
        ("mtu", json!(9000)),
    ] {
        assert_eq!(main[key], value);
    }
    assert_eq!(main["ipam"]["range"], "198.18.0.0/24");
    assert_eq!(
        nads[0]["metadata"]["annotations"]["k8s.v1.cni.cncf.io/resourceName"],
        "openshift.io/rail0"
    );
    assert_eq!(config_of(&nads[1])["plugins"][0]["device"], "ens2f0");
    assert!(
        said.contains("policy.vfKeys")
            && said.contains("vrf")
            && said.contains("spec.additionalNetworks"),
        "{said}"
    );
    is_clean(&nads);
}

#[test]
fn spiderpool_stays_the_ipam_of_its_networks() {
    let (nads, said) = fixed("spiderpool");
    assert_eq!(named(&nads), ["rail-0"]);
    let main = &config_of(&nads[0])["plugins"][0];
    assert_eq!(
        main["ipam"],
        json!({"type": "spiderpool", "default_ipv4_ippool": ["rail-0"]})
    );
    assert!(
        said.contains("shared: spec.cniType") && said.contains("macvlan"),
        "{said}"
    );
    is_clean(&nads);
}

/// A file of tests/field/lint: the status, what the findings say and do not say, and what the
/// networks have.
struct Verdict {
    file: &'static str,
    status: i32,
    told: &'static [&'static str],
    untold: &'static [&'static str],
    fixed: &'static [&'static str],
}

const VERDICTS: [Verdict; 12] = [
    Verdict {
        file: "serving.yaml",
        status: 0,
        told: &[
            "run: 2 networks that are not in these files, and 1 devices",
            "flow: 1 networks that are not in these files, and 0",
        ],
        untold: &["graph"],
        fixed: &[],
    },
    Verdict {
        file: "guide.md",
        status: 0,
        told: &[
            ":10: warning: rail-0: ipam.routes[0].dst: 0.0.0.0/0",
            ":24: warning: run: 1 networks of example.com/rail0, and 2",
        ],
        untold: &[],
        fixed: &[r#""type": "rail-cni""#],
    },
    Verdict {
        file: "overridden.yaml",
        status: 0,
        told: &[
            "nothing for flushroutes",
            ":13: warning: all: kind: MultiNicNetwork",
        ],
        untold: &[],
        fixed: &[r#""routes": [{"dst": "198.18.0.0/16"}]"#],
    },
    Verdict {
        file: "default-network.yaml",
        status: 0,
        told: &["coordinator"],
        untold: &["perf"],
        fixed: &[
            r#""link_state": "enable""#,
            r#""rdma": "required""#,
            r#""match_master_subnet": true"#,
        ],
    },
    Verdict {
        file: "gpu-nics.yaml",
        status: 0,
        told: &[],
        untold: &["run"],
        fixed: &[],
    },
    Verdict {
        file: "letter-case.yaml",
        status: 0,
        told: &[
            ":7: warning: rdma: spec.ResourceName: ",
            "resourceName?",
            "no resource",
        ],
        untold: &[],
        fixed: &[],
    },
    Verdict {
        file: "chained.yaml",
        status: 0,
        told: &["spec.sriov.mtuSize", "podDefaultRouteNIC"],
        untold: &[],
        fixed: &[r#""gatewayProbe": "require""#, "net.core.somaxconn"],
    },
    Verdict {
        file: "template.yaml",
        status: 1,
        told: &["template"],
        untold: &[],
        fixed: &[],
    },
    Verdict {
        file: "typed-lists.yaml",
        status: 1,
        told: &[
            ":5: warning: rail-0: kind: SriovNetwork",
            ":13: error: wrong: metadata.annotations.",
        ],
        untold: &["run"],
        fixed: &["namespace: ops", "openshift.io/rail0"],
    },
    Verdict {
        file: "userspace.yaml",
        status: 0,
        told: &["vfio-pci"],
        untold: &[],
        fixed: &["namespace: apps", r#""spoofchk": "on""#],
    },
    Verdict {
        file: "claims.yaml",
        status: 0,
        told: &["spec.ovsConfig", "instead of a claim"],
        untold: &[],
        fixed: &[r#""pool": "rail-0-plane-1""#, r#""rail": 8"#],
    },
    Verdict {
        file: "behind-ours.yaml",
        status: 1,
        told: &[
            ":9: error: rail-0: type: vrf",
            ":10: error: rail-0: type: rdma",
        ],
        untold: &[],
        fixed: &[r#""type": "rail-cni""#],
    },
];

#[test]
fn each_file_of_the_field_has_its_verdict() {
    for Verdict {
        file,
        status,
        told,
        untold,
        fixed,
    } in VERDICTS
    {
        let path = format!("tests/field/lint/{file}");
        let output = Bench::new()
            .command(&RAILCTL, &["lint", "--fix", &path])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap().replace(&path, "");
        let networks = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(status), "{file}: {said}");
        for part in told {
            assert!(said.contains(part), "{file}: {part}: {said}");
        }
        for part in untold {
            assert!(
                !said.contains(&format!(": {part}: ")),
                "{file}: {part}: {said}"
            );
        }
        for part in fixed {
            assert!(networks.contains(part), "{file}: {part}: {networks}");
        }
        assert!(
            read(&path).starts_with("# "),
            "{file} does not say where it was seen"
        );
    }
    let files = std::fs::read_dir(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/field/lint"),
    );
    assert_eq!(files.unwrap().count(), VERDICTS.len());
}

/// A file of tests/field/plan: the status of `plan --to csv`, the rows without the host's name, and
/// what is said besides.
const PLANS: [(&str, i32, &[&str], &[&str]); 12] = [
    ("rail0.network", 1, &[], &[":1:1: an INI file"]),
    (
        "on-link.yaml",
        0,
        &[
            ",0,,rail-0,ipv4,198.18.0.4,198.18.255.1,198.18.0.4/32,rdma0,,,",
            ",1,,rail-1,ipv4,198.19.0.4,198.19.255.1,198.19.0.4/32,rdma1,,,",
        ],
        &[],
    ),
    (
        "vrf.yaml",
        0,
        &[
            ",0,,rail-0,ipv4,198.18.0.0,198.18.0.1,198.18.0.0/31,eth1,,,9216",
            ",1,,rail-1,ipv4,198.18.1.0,198.18.1.1,198.18.1.0/31,eth2,,,9216",
        ],
        &["network.vrfs.rails"],
    ),
    (
        "installer.yaml",
        0,
        &[",0,,rail-0,ipv4,198.18.0.0,198.18.0.1,198.18.0.0/31,eth1,,,"],
        &[],
    ),
    (
        "cloud-init.yaml",
        0,
        &[",0,,rail-0,ipv4,198.18.0.0,198.18.0.1,198.18.0.0/31,eth1,,,"],
        &[],
    ),
    ("version-1.yaml", 1, &[], &["50-cloud-init.yaml"]),
    (
        "out-of-band.dot",
        0,
        &[",0,,rail-0,ipv4,172.16.0.0,172.16.0.1,172.16.0.0/31,eth1,leaf-su00-r0,swp1s0,"],
        &[":7: content.links[1][1].node: hgx-su00-h01"],
    ),
    (
        "outside.json",
        0,
        &[",0,,rail-0,ipv4,172.16.0.0,172.16.0.1,172.16.0.0/31,eth1,leaf-su00-r0,swp1,"],
        &[],
    ),
    ("wiring.yaml", 1, &[], &["fabric file"]),
    ("switches.yaml", 1, &[], &["fabric file"]),
    (
        "beside.yaml",
        0,
        &[",0,,eth-rail1,ipv4,172.16.0.0,172.16.0.1,172.16.0.0/31,,,,"],
        &[":3: kind: \"Namespace\"", "eth-rail1 is rail 0"],
    ),
    (
        "blocks.yaml",
        1,
        &[],
        &[
            ":3: kind: \"IPPool\"",
            ":8: kind: \"IPPool\"",
            "railctl lint",
        ],
    ),
];

#[test]
fn each_source_of_the_field_is_read_or_refused() {
    for (file, status, rows, told) in PLANS {
        let path = format!("tests/field/plan/{file}");
        let tiers: &[&str] = if file.ends_with("dot") || file.ends_with("json") {
            &["--tiers", "2"]
        } else {
            &[]
        };
        let arguments = [
            &[
                "plan",
                &path,
                "--to",
                "csv",
                "--cluster-networks",
                "10.96.0.0/12",
            ],
            tiers,
        ]
        .concat();
        let output = Bench::new().command(&RAILCTL, &arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{file}: {said}");
        let found = String::from_utf8(output.stdout).unwrap();
        let found: Vec<_> = found
            .lines()
            .skip(1)
            .map(|row| &row[row.find(',').unwrap()..])
            .collect();
        assert_eq!(found, rows, "{file}: {said}");
        for part in told {
            assert!(said.contains(part), "{file}: {part}: {said}");
        }
        assert!(!told.is_empty() || said.is_empty(), "{file}: {said}");
    }
    let files = std::fs::read_dir(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/field/plan"),
    );
    assert_eq!(files.unwrap().count(), PLANS.len());
}

/// docs/migration.md has an example of each.
#[test]
fn each_stack_is_in_the_page() {
    let page = read("docs/migration.md");
    for entry in
        std::fs::read_dir(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/field"))
            .unwrap()
    {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".yaml") {
            continue;
        }
        assert!(page.contains(&format!("(../tests/field/{name})")), "{name}");
        assert!(
            read(&format!("tests/field/{name}")).starts_with("# "),
            "{name} does not say where it was seen"
        );
    }
}
