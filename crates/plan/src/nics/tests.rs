use super::*;
use crate::plan::tests::{cabled, plan};
use crate::scheme::{Family, HostLink, Mode};

fn texts(files: Result<Vec<File>>) -> Vec<(String, String)> {
    files
        .unwrap()
        .into_iter()
        .map(|file| (file.name, file.text))
        .collect()
}

fn device_plugin_of(plan: &mut Plan) -> Result<Vec<File>> {
    device_plugin(plan, &Networks::default())
}

/// The operator refuses a resource with `-`.
#[test]
fn a_policy_of_each_rail_has_its_pfs_and_a_resource_that_the_operator_takes() {
    let mut two = plan(Mode::None, Family::Dual, &cabled());
    let text = texts(sriov_node_policy(&mut two, &Networks::default(), None))
        .remove(0)
        .1;
    let policies = crate::document::parse("policies", text.as_bytes()).unwrap();
    assert_eq!(policies.len(), 2);
    for (rail, policy) in policies.iter().enumerate() {
        let of = |path: &str| policy.root().get(path).unwrap().value.clone();
        assert_eq!(of("metadata.name"), format!("rail-{rail}"));
        assert_eq!(of("metadata.namespace"), "nvidia-network-operator");
        assert_eq!(of("spec.resourceName"), format!("rail_{rail}"));
        assert_eq!(
            of("spec.nicSelector.pfNames"),
            json!([format!("rail{rail}")])
        );
        assert_eq!((of("spec.numVfs"), of("spec.mtu")), (json!(1), json!(9000)));
    }
    assert!(
        two.warnings[0].contains("nvidia.com/rail_0"),
        "{:?}",
        two.warnings
    );
    two.warnings.clear();
    let named = Networks::new(false, Some("openshift.io/gpu{rail}")).unwrap();
    let text = texts(sriov_node_policy(&mut two, &named, Some("sriov")))
        .remove(0)
        .1;
    assert!(
        text.contains("resourceName: gpu1") && text.contains("namespace: sriov"),
        "{text}"
    );
    assert_eq!(two.warnings, [""; 0]);
    let wrong = Networks::new(false, Some("openshift.io/gpu-{rail}")).unwrap();
    let error = sriov_node_policy(&mut two, &wrong, None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("gpu-0"), "{error}");
    let one = Networks {
        is_one: true,
        resource: None,
    };
    let text = texts(sriov_node_policy(&mut two, &one, None)).remove(0).1;
    assert!(
        text.contains("resourceName: rails") && text.contains(r#"pfNames: ["rail0","rail1"]"#),
        "{text}"
    );
}

#[test]
fn a_node_json_has_the_rails_of_its_host_in_their_order() {
    let mut dual = plan(Mode::None, Family::Dual, &cabled());
    let without_networks = texts(node_json(&mut dual)).remove(0).1;
    assert!(
        !without_networks.contains("clusterNetworks"),
        "{without_networks}"
    );
    dual.cluster_networks = vec![
        "10.96.0.0/12".parse().unwrap(),
        "fd00:96::/112".parse().unwrap(),
    ];
    let files = texts(node_json(&mut dual));
    let expected = r#"{
  "nodeName": "worker-gpu-0",
  "rails": [
    {"rail": 0, "pf": "rail0"},
    {"rail": 1, "pf": "rail1"}
  ],
  "clusterNetworks": ["10.96.0.0/12", "fd00:96::/112"],
  "policy": {"vfsOnly": true, "vfKeys": []}
}
"#;
    assert_eq!(
        files[0],
        ("worker-gpu-0.json".to_owned(), expected.to_owned())
    );
    assert_eq!(files.len(), 2);
    for (_, text) in &files {
        let node: rail_cni::node::Node = serde_json::from_str(text).unwrap();
        assert_eq!(node.rails.len(), 2);
        assert_eq!(node.cluster_networks, dual.cluster_networks);
        assert!(node.policy.vfs_only);
    }
    // Planes are rails of their own.
    let mut links = cabled();
    let cable = super::super::Cable {
        interface: Some("rail0p1".into()),
        ..links[0].cable.clone()
    };
    links.push(HostLink {
        plane: 1,
        cable,
        ..links[0].clone()
    });
    links[4].cable.leaf = Some("leaf-p1".into());
    let files = texts(node_json(&mut plan(Mode::Swplb, Family::Ipv4, &links)));
    assert!(
        files[0].1.contains("{\"rail\": 8, \"pf\": \"rail0p1\"}"),
        "{}",
        files[0].1
    );
}

/// In the form of the example.
#[test]
fn the_device_plugin_gets_a_resource_for_each_network() {
    let text = texts(device_plugin_of(&mut plan(
        Mode::None,
        Family::Dual,
        &cabled(),
    )))
    .remove(0)
    .1;
    let example = include_str!("../../../../conf/device-plugin.json");
    let mut example: serde_json::Value = serde_json::from_str(example).unwrap();
    let resources = example["resourceList"].as_array_mut().unwrap();
    resources.truncate(2);
    for (rail, resource) in resources.iter_mut().enumerate() {
        resource["selectors"] = json!({"pfNames": [format!("rail{rail}")], "isRdma": true});
    }
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&text).unwrap(),
        example
    );
    let mut links = cabled();
    links[1].cable.interface = Some("ens1".into());
    let text = texts(device_plugin_of(&mut plan(
        Mode::None,
        Family::Ipv4,
        &links,
    )))
    .remove(0)
    .1;
    assert!(
        text.contains("\"selectors\": {\"pfNames\": [\"ens1\",\"rail0\"], \"isRdma\": true}"),
        "{text}"
    );
}

#[test]
fn what_is_not_known_is_told_and_not_made_up() {
    let mut links = cabled();
    links[3].cable.interface = None;
    for write in [node_json, device_plugin_of] {
        let error = write(&mut plan(Mode::None, Family::Ipv4, &links))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("node worker-gpu-62 in pool rail-1: "),
            "{error}"
        );
        let mut known = plan(Mode::None, Family::Ipv4, &cabled());
        write(&mut known).unwrap();
        assert!(known.warnings[0].contains("PCI"), "{:?}", known.warnings);
        known.pools[0].rail = None;
        assert!(
            write(&mut known)
                .unwrap_err()
                .to_string()
                .contains("pool rail-0: ")
        );
    }
    // rail0 of one host is rail1 of another.
    let mut links = cabled();
    links[1].cable.interface = Some("rail1".into());
    links[3].cable.interface = Some("rail0".into());
    let error = device_plugin_of(&mut plan(Mode::None, Family::Ipv4, &links))
        .unwrap_err()
        .to_string();
    assert!(
        ["rail1", "rail-0", "worker-gpu-62"]
            .iter()
            .all(|part| error.contains(part)),
        "{error}"
    );
    assert_eq!(
        node_json(&mut plan(Mode::None, Family::Ipv4, &links))
            .unwrap()
            .len(),
        2
    );
}

/// OVS has the PFs of all planes then, in switchdev. The pools as manifests have the leaf ports of
/// all planes, and so are known as well.
#[test]
fn a_rail_whose_planes_are_behind_one_vf_has_no_network_and_no_resource() {
    let mut links = cabled();
    links.truncate(1);
    links.push(HostLink {
        plane: 1,
        ..links[0].clone()
    });
    links[1].cable.leaf = Some("leaf-p2-su1-r1".into());
    let mut planned = plan(Mode::Hwplb, Family::Ipv4, &links);
    let manifests = texts(crate::manifest::write(&mut planned, None))
        .remove(0)
        .1;
    let documents = crate::document::parse("pools.yaml", manifests.as_bytes()).unwrap();
    let read_back = crate::manifest::read(&documents).unwrap();
    let networks = Networks::default();
    for mut plan in [planned, read_back] {
        for files in [
            nads::write(&mut plan, &networks, nads::Form::List, None),
            node_json(&mut plan),
            device_plugin(&mut plan, &networks),
            sriov_node_policy(&mut plan, &networks, None),
        ] {
            let error = files.unwrap_err().to_string();
            assert!(error.contains("pool rail-0 is of mode hwplb"), "{error}");
        }
    }
}
