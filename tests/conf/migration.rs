//! conf/migration: what somebody has who comes from other plugins, with as few changes as it takes.
//! tests/callers attaches these networks.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    Bench, RAIL_CNI, RAILCTL, config_of, json_of, plugin_configs, read, vf_of, with_device,
    yaml_documents,
};

const FILES: [&str; 5] = [
    "sriov-host-local",
    "sriov-whereabouts",
    "sriov-network",
    "macvlan-whereabouts",
    "host-device-nv-ipam",
];

fn path(file: &str) -> String {
    format!("conf/migration/{file}.yaml")
}

/// The networks of a file, with their NADs.
fn networks(file: &str) -> Vec<(Value, Value)> {
    let documents = yaml_documents(&read(&path(file))).unwrap();
    let nads = documents
        .into_iter()
        .filter(|each| each["kind"] == "NetworkAttachmentDefinition");
    nads.map(|nad| (config_of(&nad), nad)).collect()
}

/// Number of networks of each file.
fn counts() -> Vec<usize> {
    FILES.iter().map(|file| networks(file).len()).collect()
}

fn lint(text: &str) -> (Option<i32>, String) {
    let bench = Bench::new();
    std::fs::write(bench.path("x.yaml"), text).unwrap();
    let mut command = bench.command(&RAILCTL, &["lint"]);
    let output = command.arg(bench.path("x.yaml")).output().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

/// With the shipped node.json and the device that Multus adds. Nothing in them is unknown or
/// without effect.
#[test]
fn every_network_to_migrate_is_accepted() {
    assert_eq!(counts(), [4, 8, 1, 1, 8]);
    let bench = Bench::new();
    for file in FILES {
        for (rail, (network, nad)) in networks(file).into_iter().enumerate() {
            assert_eq!(network["name"], nad["metadata"]["name"]);
            assert_eq!(
                (&network["type"], network.get("rail")),
                (&json!("rail-cni"), None),
                "{file}"
            );
            bench.accepts(
                &format!("{file}: {rail}"),
                &with_device(network, &vf_of(rail)),
            );
        }
    }
    for config in plugin_configs(&json_of("conf/migration/host-device-chain.conflist")) {
        bench.accepts("host-device-chain.conflist", &config);
    }
}

/// The GUID that ib-kubernetes chooses is the operator's, by the shipped policy.
#[test]
fn the_network_of_ib_kubernetes_needs_its_guid_in_the_policy() {
    let bench = Bench::new();
    let [(network, _)] = &networks("ib-sriov")[..] else {
        panic!("one network")
    };
    assert_eq!(network["type"], "ib-sriov");
    let told =
        |config: &Value| String::from_utf8(bench.call(RAIL_CNI, "ADD", config).stdout).unwrap();
    let mut config = with_device(network.clone(), &vf_of(0));
    config["args"] = json!({"cni": {"mellanox.infiniband.app": "configured"}});
    config["runtimeConfig"] = json!({"infinibandGUID": "02:00:00:00:00:00:00:01"});
    let refused = told(&config);
    assert!(
        refused.contains("infinibandGUID: ") && refused.contains("policy.vfKeys"),
        "{refused}"
    );
    let mut node: Value =
        serde_json::from_str(&std::fs::read_to_string(bench.path("node.json")).unwrap()).unwrap();
    node["policy"]["vfKeys"] = json!(["infinibandGUID"]);
    std::fs::write(bench.path("node.json"), node.to_string()).unwrap();
    // Up to its namespace, which is none.
    assert!(told(&config).contains("\"code\":8"), "{}", told(&config));
}

/// `type` was the only thing that had to change: as they were, lint says so, and of nothing that it
/// is wrong.
#[test]
fn lint_says_of_the_networks_as_they_were_that_it_takes_them() {
    for (file, plugin) in [
        ("sriov-host-local", "sriov"),
        ("sriov-whereabouts", "sriov"),
        ("sriov-network", "sriov"),
        ("host-device-nv-ipam", "host-device"),
    ] {
        let before = read(&path(file)).replace("\"rail-cni\"", &format!("{plugin:?}"));
        let (code, told) = lint(&before);
        assert_eq!(code, Some(0), "{told}");
        let taken =
            format!("type: {plugin}: rail-cni takes this configuration when type is changed");
        // One line for all of them, because they have the same plugin.
        let network_count = networks(file).len();
        let lines: Vec<&str> = told.lines().filter(|line| line.contains(&taken)).collect();
        assert_eq!(lines.len(), 1, "{told}");
        let all = format!("{network_count} networks (");
        assert!(
            network_count == 1 || lines.concat().contains(&all),
            "{told}"
        );
    }
    // macvlan has keys that a VF has no use for: ADD refuses one, and lint names both.
    let keys =
        "\"type\": \"rail-cni\",\n      \"master\": \"ens3f0\",\n      \"mode\": \"bridge\",";
    let (code, told) =
        lint(&read(&path("macvlan-whereabouts")).replace("\"type\": \"rail-cni\",", keys));
    assert_eq!(code, Some(1), "{told}");
    for fault in ["master: unknown key", "mode: \"bridge\" is not one of rdma"] {
        assert!(told.contains(fault), "{told}");
    }
}

/// Every message of lint about a file of conf/migration is explained in docs/migration.md.
#[test]
fn what_lint_says_of_the_migrated_networks_is_in_the_page() {
    let output = Bench::new()
        .command(&RAILCTL, &["lint", "conf/migration", "--output", "json"])
        .output()
        .unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&told["errors"], output.status.code()),
        (&json!(0), Some(0)),
        "{told}"
    );
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for finding in told["findings"].as_array().unwrap() {
        let message = finding["message"].as_str().unwrap();
        *kinds
            .entry(message.split(':').next().unwrap().to_owned())
            .or_default() += 1;
    }
    let page = read("docs/migration.md");
    let (_, table) = page.split_once("### What `lint` says of them").unwrap();
    let (table, _) = table.split_once("\n#").unwrap();
    for kind in kinds.keys() {
        assert!(
            table.contains(&format!("| `{kind}` ")),
            "docs/migration.md does not explain {kind}: {kinds:?}"
        );
    }
    assert!(kinds.len() >= 5, "{kinds:?}");
}

/// Each pod names networks of its file, and asks for a device of each one's resource.
#[test]
fn pods_and_networks_to_migrate_are_of_one_piece() {
    let mut pods = 0;
    for file in FILES {
        let resources: BTreeMap<String, String> = networks(file)
            .into_iter()
            .map(|(network, nad)| {
                let resource = &nad["metadata"]["annotations"]["k8s.v1.cni.cncf.io/resourceName"];
                (
                    network["name"].as_str().unwrap().to_owned(),
                    resource.as_str().unwrap().to_owned(),
                )
            })
            .collect();
        for document in yaml_documents(&read(&path(file))).unwrap() {
            let template = match document["kind"].as_str().unwrap() {
                "Pod" => &document,
                "Job" => &document["spec"]["template"],
                "PyTorchJob" => &document["spec"]["pytorchReplicaSpecs"]["Worker"]["template"],
                _ => continue,
            };
            pods += 1;
            let text = template["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"]
                .as_str()
                .unwrap();
            let names: Vec<String> = match serde_json::from_str::<Vec<Value>>(text) {
                Ok(list) => list
                    .iter()
                    .map(|each| each["name"].as_str().unwrap().to_owned())
                    .collect(),
                Err(_) => text.split(", ").map(str::to_owned).collect(),
            };
            assert_eq!(
                names,
                resources.keys().cloned().collect::<Vec<_>>(),
                "{file}"
            );
            let limits = template["spec"]["containers"][0]["resources"]["limits"]
                .as_object()
                .unwrap();
            let asked = limits.keys().filter(|key| *key != "nvidia.com/gpu");
            assert_eq!(
                asked.collect::<Vec<_>>(),
                resources.values().collect::<Vec<_>>(),
                "{file}"
            );
        }
    }
    assert_eq!(pods, 4);
    // The resources of whole NICs are those of conf/node.json's PFs, in its order.
    let [map] = &yaml_documents(&read(&path("device-plugin"))).unwrap()[..] else {
        panic!("one ConfigMap")
    };
    let config: Value = serde_json::from_str(map["data"]["config.json"].as_str().unwrap()).unwrap();
    let pfs = super::pfs(&json_of("conf/node.json"));
    for (rail, (resource, pf)) in config["resourceList"]
        .as_array()
        .unwrap()
        .iter()
        .zip(&pfs)
        .enumerate()
    {
        assert_eq!(resource["resourceName"], format!("rail-{}", rail + 1));
        assert_eq!(resource["selectors"]["pciAddresses"], json!([pf]));
    }
}

/// The pools that the networks name are there, for two nodes, and are imported without a complaint:
/// what is said is which rail the pools are whose names count from 1.
#[test]
fn the_pools_to_migrate_are_imported() {
    for (pools, file, count, told) in [
        ("flat-pools", "sriov-host-local", 2, None),
        (
            "host-device-pools",
            "host-device-nv-ipam",
            8,
            Some("the addresses of the pools: rail-1 is rail 0, "),
        ),
    ] {
        let bench = Bench::new();
        let output = bench
            .command(
                &RAILCTL,
                &["import", "--all-nodes", &path(pools), "--output", "json"],
            )
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.success() && told.is_none_or(|told| said.contains(told)),
            "{said}"
        );
        assert_eq!(said.lines().count(), usize::from(told.is_some()), "{said}");
        let named = networks(file).into_iter().filter_map(|(network, _)| {
            let pool = network["ipam"]
                .get("pool")
                .or(network["ipam"].get("poolName"));
            Some(pool?.as_str().unwrap().to_owned())
        });
        let named: Vec<_> = named.collect();
        assert_eq!(named.len(), count);
        for (node, pool) in named
            .iter()
            .flat_map(|pool| ["worker-gpu-0", "worker-gpu-1"].map(|node| (node, pool)))
        {
            assert!(
                bench
                    .path("store")
                    .join(node)
                    .join(format!("{pool}.json"))
                    .is_file(),
                "{node}: {pool}"
            );
        }
    }
}
