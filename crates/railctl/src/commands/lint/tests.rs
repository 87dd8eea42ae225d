use super::*;
use proptest::prelude::*;
use rail_cni::cni::{Args, Attachment, Network, Strictness};
use rail_cni::netconf::NetConf;
use rail_cni::node::Node;
use std::fs;

/// Lints files with these texts; the messages leave out the folder.
fn lint_of(files: &[(&str, &str)]) -> (Lint, Vec<String>) {
    let temp = tempfile::tempdir().unwrap();
    let names = files.iter().map(|(name, text)| {
        let path = temp.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.display().to_string()
    });
    let mut lint = Lint::default();
    names
        .collect::<Vec<_>>()
        .iter()
        .for_each(|file| lint.path(file));
    lint.finish();
    let folder = format!("{}/", temp.path().display());
    let told = lint
        .findings
        .iter()
        .map(|finding| finding.to_string().replace(&folder, ""))
        .collect();
    (lint, told)
}

/// Routes of a network, and of CIDRPools.
#[test]
fn routes_that_take_networks_of_the_cluster_away_are_told_with_all_who_have_them() {
    let pools: String = (0..3)
        .map(|rail| {
            format!(
                "---\napiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata: {{name: rail-{rail}}}\nspec:\n  \
                 perNodeNetworkPrefix: 31\n  gatewayIndex: 1\n  cidr: 10.{}.0.0/11\n  routes:\n  - dst: 10.{}.0.0/11\n  \
                 - dst: 10.0.0.0/8\n",
                32 * rail,
                32 * rail
            )
        })
        .collect();
    let (_, told) = lint_of(&[("pools.yaml", &pools)]);
    assert_eq!(told.len(), 1, "{told:#?}");
    golden::says(
        "lint",
        "routes over networks that clusters usually have",
        &told[0],
    );
    for part in [
        "pools.yaml:11: warning: ",
        "10.0.0.0/8",
        "rail-0",
        "10.96.0.0/12",
        "10.244.0.0/16",
    ] {
        assert!(told[0].contains(part), "{part}: {told:#?}");
    }
    let route = good().replace(
        "\"mtu\"",
        "\"routes\": [{\"dst\": \"10.96.0.0/16\"}], \"mtu\"",
    );
    for (known, expected) in [
        (vec![], Some("warning: 10.96.0.0/16")),
        (
            vec!["10.96.0.0/12"],
            Some("error: 10.96.0.0/12 overlaps 10.96.0.0/16"),
        ),
        (vec!["10.97.0.0/16"], None),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("f");
        fs::write(&file, &route).unwrap();
        let cluster_networks = known
            .iter()
            .map(|net: &&str| net.parse().unwrap())
            .collect();
        let mut lint = Lint::default();
        lint.node.cluster_networks = cluster_networks;
        lint.path(&file.display().to_string());
        lint.finish();
        let told: Vec<_> = lint.findings.iter().map(Finding::to_string).collect();
        assert_eq!(told.len(), usize::from(expected.is_some()), "{told:#?}");
        assert!(
            expected.is_none_or(|expected| told[0].contains(&format!("f:16: {expected}"))),
            "{told:#?}"
        );
    }
}

const CONFIG: &str = r#"{
      "cniVersion": "1.0.0",
      "cniVersions": ["1.0.0", "1.1.0"],
      "name": "rail-3",
      "plugins": [{
        "type": "rail-cni",
        "rail": 3,
        "mtu": 9000,
        "capabilities": {"deviceID": true, "mac": true, "ips": true, "CNIDeviceInfoFile": true},
        "ipam": {"type": "rail-ipam", "pool": "rail-3"}
      }]
    }"#;

fn nad(name: &str, config: &str) -> String {
    format!(
        "---\napiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: {name}\n  \
         annotations: {{k8s.v1.cni.cncf.io/resourceName: nvidia.com/{name}}}\nspec:\n  config: |\n    {config}\n"
    )
}

fn good() -> String {
    nad("rail-3", CONFIG)
}

#[test]
fn a_good_network_is_clean_in_every_form() {
    let yaml = good();
    let object = document::parse("x", yaml.as_bytes())
        .unwrap()
        .remove(0)
        .value;
    let single = r#"{"cniVersion": "1.1.0", "name": "a", "type": "rail-cni", "rail": 0, "mtu": 9000,
            "device": "eth9", "ipam": {"type": "static", "addresses": [{"address": "198.18.0.0/31"}]}}"#;
    for (name, text) in [
        ("a.yaml", format!("{yaml}---\nkind: Pod\n")),
        ("a.yaml", yaml.replace("config: |", "config: >-")),
        ("a.json", object.to_string()),
        (
            "a.json",
            json!({"kind": "List", "apiVersion": "v1", "items": [object]}).to_string(),
        ),
        ("a.json", json!([object]).to_string()),
        (
            "a.conflist",
            CONFIG.replace(r#""rail": 3,"#, r#""rail": 3, "pciBusID": "0000:3b:00.2","#),
        ),
        ("a.conf", single.to_owned()),
        ("net.d/a.conf", single.to_owned()),
        (
            "a.conf",
            single
                .replace("rail-cni", "macvlan")
                .replace("static", "rail-ipam")
                .replace("addresses", "pool")
                .replace(r#"[{"address": "198.18.0.0/31"}]"#, "\"p\""),
        ),
    ] {
        let (lint, told) = lint_of(&[(name, &text)]);
        assert_eq!((told, lint.networks, lint.others), (vec![], 1, 0), "{text}");
    }
    let (lint, told) = lint_of(&[(
        "a.conf",
        r#"{"cniVersion": "0.3.1", "name": "a", "type": "macvlan"}"#,
    )]);
    assert_eq!((told, lint.networks, lint.others), (vec![], 0, 1));
}

/// Replacements in the good network, and for each the line, severity, network and key of the
/// finding, with words that it must contain: the least that brings it about.
const FINDINGS: &str = r#"
# keys
"mtu": 9000, => "mtu": 9000, "maxTxRate": 1, => 16: error: rail-3: maxTxRate:…max_tx_rate?
"mtu": 9000, => "mtu": 9000, "colour": 1, => 16: error: rail-3: colour:
"mtu": 9000, => "MTU": 9000, => 16: warning: rail-3: MTU:
"mtu": 9000, => "MTU": 9000, "mtu": 9000, => 16: error: rail-3: mtu:
"mtu": 9000, => "mtu": 9000, "Routes": [{"dst": "10.0.0.0/8"},\n      {"Dst": "10.1.0.0/33"}], => 17: warning: rail-3: routes[1].Dst:
"mtu": 9000, => "mtu": 9000, "Routes": [{"dst": "10.0.0.0/8"},\n      {"Dst": "10.1.0.0/33"}], => 17: error: rail-3: routes[1].dst:
"mtu": 9000, => "mtu": 9000, "Args": {"CNI": {"Mac": "x"}}, => 16: warning: rail-3: args.cni.Mac:
"mtu": 9000, => "mtu": 9000, "args": {"cni": {"mac": "", "MAC": ""}}, => 16: error: rail-3: args.cni.mac:
"mtu": 9000, => "mtu": 9000, "sysctl": {"net.ipv4.conf.IFNAME.X": "1"}, => 16: error: rail-3: sysctl.net.ipv4.conf.IFNAME.X:
"pool": "rail-3" => "Pool": "rail-3" => 18: warning: rail-3: ipam.Pool:
"type": "rail-ipam", "pool" => "Type": "rail-ipam", "Pool" => 18: warning: rail-3: ipam.Type:
"pool": "rail-3" => "pool": "rail-3", "Pool": "rail-3" => 18: error: rail-3: ipam.pool:
"mtu": 9000, => "mtu": 9000, "routes": [{"dst": "10.0.0.0/8", "via": "10.0.0.1"}], => 16: error: rail-3: routes[0].via:
"mtu": 9000, => "mtu": 9000, "dns": {"server": []}, => 16: error: rail-3: dns.server:
"mtu": 9000, => "mtu": 9000, "args": {"cni": {"macs": ""}}, => 16: error: rail-3: args.cni.macs:…mac?
"pool": "rail-3" => "pol": "x", "pool": "rail-3" => 18: error: rail-3: ipam.pol:…pool?
"mac": true => "mac": true, "macs": true => 17: error: rail-3: capabilities.macs:…mac?
"mac": true => "mac": true, "bandwidth": true => 17: warning: rail-3: capabilities.bandwidth:
"mac": true => "mac": true, "x": 1 => 17: error: rail-3: capabilities.x:
"name": "rail-3", => "name": "rail-3", "mtu": 9000, => 12: error: rail-3: mtu:
"name": "rail-3", => "name": "rail-3", "plugin": [], => 12: error: rail-3: plugin:…plugins?
  config: | =>   confg: x\n  config: | => 8: error: rail-3: spec.confg:…config?
# what ADD refuses
"mtu": 9000, => "mtu": "9000", => 16: error: rail-3: mtu:
"mtu": 9000, => "mtu": 9000, "trust": "yes", => 16: error: rail-3: trust: "yes"
"mtu": 9000, => "mtu": 9000, "vlanQoS": 1, => 16: error: rail-3: vlanQoS:
"mtu": 9000, => "mtu": 9000, "sysctl": {"net.ipv4.conf.IFNAME.arp_ignore": "1",\n      "net.ipv4.ip_forward": "1"}, => 17: error: rail-3: sysctl.net.ipv4.ip_forward:
"mtu": 9000, => "mtu": 9000, "sysctl": {"net.ipv4.conf.all.rp_filter": "2"}, => 16: error: rail-3: sysctl.net.ipv4.conf.all.rp_filter:
"mtu": 9000, => "mtu": 9000, "routes": [{"dst": "10.0.0.0/8"},\n      {"dst": "10.1.0.0/33"}], => 17: error: rail-3: routes[1].dst:
"rail": 3, => "rail": 300, => 15: error: rail-3: rail:
"pool": "rail-3" => "pool": "../x" => 18: error: rail-3: ipam.pool: "../x"
"pool": "rail-3" => "poolType": "ippool" => 18: error: rail-3: ipam.poolType: "ippool"
"pool": "rail-3" => "cidr": "172.16.0.0/15", "perNodeNetworkPrefix": 31, "gatewayIndex": 9 => 18: error: rail-3: ipam.gatewayIndex: 9
"pool": "rail-3" => "cidr": "172.16.0.0/15" => 18: error: rail-3: ipam:
"rail-ipam" => "rail-cni" => 18: error: rail-3: ipam.type: "rail-cni"
"rail-ipam" => "macvlan" => 18: error: rail-3: ipam.type: "macvlan"
"mtu": 9000, => "mtu": 9000, "resetOnDel": "vfr", => 16: error: rail-3: resetOnDel: "vfr"
"rail-ipam" => "dhcp" => 18: error: rail-3: ipam.type: dhcp
"name": "rail-3" => "name": "rail 3" => 12: error: rail 3: name:
"mtu": 9000, => "mtu": 9000, "deviceID": "x", => 16: error: rail-3: deviceID: "x"
# default routes
"mtu": 9000, => "mtu": 9000, "routes": [{"dst": "10.0.0.0/8"},\n      {"dst": "::/0"}], => 17: warning: rail-3: routes[1].dst: ::/0
"pool": "rail-3" => "cidr": "172.16.0.0/15", "perNodeNetworkPrefix": 31, "gatewayIndex": 1, "routes": [{"dst": "0.0.0.0/0"}] => 18: warning: rail-3: ipam.routes[0].dst: 0.0.0.0/0
"pool": "rail-3" => "cidr": "172.16.0.0/15", "perNodeNetworkPrefix": 31, "gatewayIndex": 1, "defaultGateway": true => 18: warning: rail-3: ipam.defaultGateway:
"rail-ipam" => "static", "routes": [{"dst": "0.0.0.0/0"}] => 18: warning: rail-3: ipam.routes[0].dst: 0.0.0.0/0
# versions
"cniVersion": "1.0.0",\n      "cniVersions": ["1.0.0", "1.1.0"], =>  => 9: warning: rail-3: cniVersion:
"cniVersion": "1.0.0",\n      "cniVersions": ["1.0.0", "1.1.0"], => "cniVersion": "0.3.1", => 10: warning: rail-3: cniVersion: 0.3.1
"cniVersion": "1.0.0",\n      "cniVersions": ["1.0.0", "1.1.0"], => "cniVersion": "1.1.0", => 10: warning: rail-3: cniVersion: 1.1.0
["1.0.0", "1.1.0"] => ["1.0.0", "1.2.0"] => 11: error: rail-3: cniVersions[1]: "1.2.0"
# plugins
"type": "rail-cni" => "type": "rail_cni" => 14: error: rail-3: type:…rail-cni?
"type": "rail-cni" => "type": "rail-ipam" => 14: error: rail-3: type: rail-ipam
"type": "rail-cni", =>  => 13: error: rail-3: type:
"type": "rail-ipam" => "type": "railipam" => 18: error: rail-3: ipam.type: "railipam"
}]\n => }, {"type": "sbr"}]\n => 19: warning: rail-3: type: sbr:
"type": "rail-cni" => "type": "sriov" => 14: warning: rail-3: type: sriov:
"type": "rail-cni" => "type": "host-device", "device": "a b" => 14: warning: rail-3: type:…device: 
# devices
{"deviceID": true, "mac": true, "ips": true, "CNIDeviceInfoFile": true} => {"mac": true, "ips": true} => 17: warning: rail-3: capabilities:
resourceName: nvidia.com/rail-3 => other: x => 6: error: rail-3: metadata.annotations:
# what nobody means
name: rail-3 => name: rail-03 => 12: warning: rail-3: name: "rail-3"
name: rail-3 => x: rail-3 => 4: error: metadata.name:
v1\nkind => v2\nkind => 2: error: rail-3: apiVersion:
"rail": 3, =>  => 13: warning: rail-3: rail:
"rail": 3, => "rail": 4, => 15: warning: rail-3: rail:
"mtu": 9000, =>  => 13: warning: rail-3: mtu:
"mtu": 9000, => "mtu": 900, => 16: warning: rail-3: mtu: 900
"mtu": 9000, => "mtu": 90000, => 16: warning: rail-3: mtu: 90000
"mtu": 9000, => "mtu": 9000, "logFile": "/tmp/x", => 16: warning: rail-3: logFile:
"mtu": 9000, => "mtu": 9000, "runtimeConfig": {}, => 16: warning: rail-3: runtimeConfig:
"mtu": 9000, => "mtu": 9000, "name": "x", => 16: warning: rail-3: name:
"mtu": 9000, => "mtu": 9000, "sysctl": {"net.ipv4.conf.net3.arp_ignore": "1"}, => 16: warning: rail-3: sysctl:
"ipam": {"type": "rail-ipam", "pool": "rail-3"} => "ipam": {} => 18: warning: rail-3: ipam:
# texts
"mtu": 9000, => "mtu": 9000, "mtu": 9000, => 16: error: rail-3: spec.config: JSON:
"mtu": 9000, => "mtu": , => 16: error: rail-3: spec.config: JSON:
config: | => config: => 8: error: rail-3: spec.config:
"#;

#[test]
fn each_finding_is_shown_with_its_line() {
    let good = good();
    let mut said = String::new();
    for row in FINDINGS.lines().filter(|row| row.contains(" => ")) {
        let [from, to, told] = &row
            .split(" => ")
            .map(|text| text.replace("\\n", "\n"))
            .collect::<Vec<_>>()[..]
        else {
            panic!("{row}");
        };
        let text = good.replacen(from, to, 1);
        assert_ne!(text, good, "{row}");
        let (_, findings) = lint_of(&[("f", &text)]);
        let mut parts = told.split('…');
        let start = format!("f:{}", parts.next().unwrap());
        let parts: Vec<_> = parts.collect();
        let is_it =
            |one: &&String| one.starts_with(&start) && parts.iter().all(|part| one.contains(part));
        assert_eq!(
            findings.iter().filter(is_it).count(),
            1,
            "{row}\n{findings:#?}\n{text}"
        );
        said += &format!(
            "{}\n  {}\n",
            row.rsplit_once(" => ").unwrap().0,
            findings.join("\n  ")
        );
    }
    golden::says("lint", "a network with one change", said);
}

/// All errors that ADD would report one after the other are listed at once, and no fault causes
/// another.
#[test]
fn all_that_add_refuses_is_told_at_once() {
    let many = r#""mtu": "9000", "trust": "x", "vlan": 5000, "vlanQoS": 9, "rdma": "y", "sysctl": {"a": "b"},"#;
    let (_, told) = lint_of(&[("f", &good().replace(r#""mtu": 9000,"#, many))]);
    let keys: Vec<_> = told
        .iter()
        .map(|one| one.split(": ").nth(3).unwrap())
        .collect();
    assert_eq!(
        keys,
        ["mtu", "vlan", "trust", "sysctl.a", "rdma"],
        "{told:#?}"
    );
    let given = r#""mtu": "9000", "runtimeConfig": {"deviceID": "0000:3b:00.2"},"#;
    let (_, told) = lint_of(&[("f", &good().replace(r#""mtu": 9000,"#, given))]);
    assert_eq!(told.len(), 2, "{told:#?}");
    let none = r#"{"cniVersion": "1.1.0", "name": "a", "type": "rail-cni", "rail": 0, "mtu": 9000, "rdma": "x",
        "ipam": {"type": "host-local"}}"#;
    let (_, told) = lint_of(&[("f", none)]);
    assert_eq!(told.len(), 2, "{told:#?}");
    golden::says("lint", "a plugin without a device", &told[0]);
}

#[test]
fn networks_are_compared_with_each_other() {
    let other = |name: &str, change: &dyn Fn(String) -> String| {
        format!(
            "{}{}",
            good(),
            change(nad(
                name,
                &CONFIG.replace("rail-3", name).replace("3,", "4,")
            ))
        )
    };
    let unchanged = other("rail-4", &|text| text);
    assert_eq!(lint_of(&[("f", &unchanged)]).1, [] as [&str; 0]);
    let mut said = Vec::new();
    for (text, parts) in [
        (
            other("rail-4", &|text| {
                text.replace("\"pool\": \"rail-4\"", "\"pool\": \"rail-3\"")
            }),
            ["f:35: error: rail-4: ipam: ", "rail-3 (f:15)"],
        ),
        (
            other("rail-4", &|text| text.replace("\"rail\": 4", "\"rail\": 3")),
            ["f:35: warning: rail-4: rail: 3 ", "rail-3 (f:15)"],
        ),
        (
            other("rail-4", &|text| text.replace("com/rail-4", "com/rail-3")),
            [
                "f:35: warning: rail-4: metadata.annotations: ",
                "nvidia.com/rail-3",
            ],
        ),
        (
            other("rail-5", &|text| text),
            ["f:35: warning: rail-5: rail: ", "nvidia.com/rail-5"],
        ),
        (
            other("rail-3", &|text| text),
            ["f:25: error: rail-3: ", "f:5"],
        ),
    ] {
        let (_, findings) = lint_of(&[("f", &text)]);
        let is_it = |one: &String| one.starts_with(parts[0]) && one.contains(parts[1]);
        assert!(findings.iter().any(is_it), "{parts:?}\n{findings:#?}");
        said.extend(findings);
    }
    golden::says("lint", "networks beside each other", said.join("\n"));
    // Counted from 1, planes, another namespace, another folder: nothing to be said.
    let planes = |rail: u8| {
        good()
            .replace("rail-3", &format!("rail-{rail}-plane-1"))
            .replace("3,", &format!("{},", rail + 8))
    };
    assert_eq!(
        lint_of(&[("f", &(good() + &planes(3) + &planes(4)))]).1,
        [] as [&str; 0]
    );
    let from_one = |rail: u8| {
        nad(
            &format!("rail-{rail}"),
            &CONFIG
                .replace("rail-3", &format!("rail-{rail}"))
                .replace("3,", &format!("{},", rail - 1)),
        )
    };
    assert_eq!(
        lint_of(&[("f", &(from_one(1) + &from_one(2)))]).1,
        [] as [&str; 0]
    );
    let elsewhere = good() + &good().replace("metadata:", "metadata:\n  namespace: x");
    assert_eq!(lint_of(&[("f", &elsewhere)]).1, [] as [&str; 0]);
    let conf = CONFIG.replace(r#""rail": 3,"#, r#""rail": 3, "device": "eth9","#);
    assert_eq!(
        lint_of(&[("a/f", &conf), ("b/f", &conf)]).1,
        [] as [&str; 0]
    );
    assert_eq!(lint_of(&[("a/f", &conf), ("a/g", &conf)]).1.len(), 2);
}

#[test]
fn files_that_are_no_networks_end_in_an_error() {
    let mut said = String::new();
    for (text, told) in [
        (&b""[..], "f: error: "),
        (b"kind: Pod\n", "f: error: "),
        (b"x", "f:1: error: "),
        (b"- x\n- x\n", "f:1: error: "),
        (b"{\"a\": 1}", "f:1: error: "),
        (b"type: rail-cni\nname: a\n", "f:1: error: "),
        (b"{\"plugins\": [", "f:1:13: error: JSON: "),
        (b"\x7fELF\0", "f:1:5: error: "),
        (b"\xff\xfe\0", "f:1:1: error: "),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("f");
        fs::write(&path, text).unwrap();
        let mut lint = Lint::default();
        lint.path(&path.display().to_string());
        let findings: Vec<_> = lint.findings.iter().map(ToString::to_string).collect();
        let folder = format!("{}/", temp.path().display());
        let findings: Vec<_> = findings
            .iter()
            .map(|one| one.replace(&folder, ""))
            .collect();
        assert!(
            findings.iter().any(|one| one.starts_with(told)),
            "{told} {findings:?}"
        );
        said += &format!(
            "{:?}\n  {}\n",
            String::from_utf8_lossy(text),
            findings.join("\n  ")
        );
    }
    golden::says("lint", "files that are not networks", said);
    let mut lint = Lint::default();
    let temp = tempfile::tempdir().unwrap();
    lint.path(&temp.path().display().to_string());
    lint.path("/nonexistent");
    fs::write(temp.path().join("pod.yaml"), "kind: Pod\n").unwrap();
    lint.path(&temp.path().display().to_string());
    assert_eq!(lint.findings.len(), 3, "{:?}", lint.findings);
}

/// Lints a folder with these files.
fn lint_of_folder(files: &[(&str, &str)]) -> (Lint, Vec<String>) {
    let temp = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(temp.path().join(name), text).unwrap();
    }
    let mut lint = Lint::default();
    lint.path(&temp.path().display().to_string());
    lint.finish();
    let folder = format!("{}/", temp.path().display());
    let told = lint
        .findings
        .iter()
        .map(|finding| finding.to_string().replace(&folder, ""))
        .collect();
    (lint, told)
}

#[test]
fn a_folder_of_manifests_is_read_with_what_is_beside_them() {
    let wrong = good()
        .replace("rail-3", "rail-4")
        .replace("\"rail\": 3", "\"rail\": 4, \"trsut\": \"on\"");
    let conf = CONFIG.replace(r#""rail": 3,"#, r#""rail": 3, "device": "eth9","#);
    let (lint, told) = lint_of_folder(&[
        ("a.yaml", &(good() + "---\nkind: Pod\n" + &wrong)),
        (
            "b.yml",
            &good()
                .replace("rail-3", "rail-5")
                .replace("\"rail\": 3", "\"rail\": 5"),
        ),
        ("kustomization.yaml", "resources: [a.yaml]\n"),
        ("values.yaml", "type: ClusterIP\n"),
        ("list.yaml", "- a\n- b\n"),
        ("pod.yaml", "kind: Pod\n"),
        ("20-rail-3.conflist", &conf),
        ("notes.txt", "x"),
    ]);
    assert!(
        told.len() == 1 && told[0].starts_with("a.yaml:37: error: rail-4: trsut: "),
        "{told:?}"
    );
    assert_eq!((lint.networks, lint.others), (4, 0));
    // A file that ends in .json is for a runtime.
    let (_, told) = lint_of_folder(&[("a.yaml", &good()), ("b.json", "{\"a\": 1}")]);
    assert!(told[0].starts_with("b.json:1: error: "), "{told:?}");
    // A template is none yet.
    let (_, told) = lint_of_folder(&[("a.yaml", "{{ if .Values.x }}\nkind: Pod\n")]);
    assert_eq!(told.len(), 1, "{told:?}");
}

#[test]
fn a_warning_is_silenced_in_the_file_with_its_reason() {
    let annotated = |lines: &str| {
        let rest = good().replace("9000", "8000000").replace(
            "annotations: {",
            &format!("annotations: {{rail-cni/lint-ignore: \"{lines}\", "),
        );
        lint_of(&[("f", &rest)])
    };
    let (lint, told) = annotated("mtu: a wire of our own");
    assert_eq!(told, [] as [&str; 0]);
    assert_eq!(lint.silenced[0].1, "a wire of our own");
    assert!(
        lint.silenced[0]
            .0
            .fault
            .message()
            .starts_with("mtu: 8000000 ")
    );
    let mut said = Vec::new();
    for (lines, expected) in [
        (
            "mtu",
            &[
                "f:6: warning: rail-3: rail-cni/lint-ignore: mtu ",
                "f:16: warning: rail-3: mtu: 8000000",
            ][..],
        ),
        (
            "mtu: ",
            &[
                "f:6: warning: rail-3: rail-cni/lint-ignore: mtu ",
                "f:16: warning: rail-3: mtu: 8000000",
            ],
        ),
        (
            "mtu: ours\\nrail: ours",
            &["f:6: warning: rail-3: rail-cni/lint-ignore: rail "],
        ),
        (
            "mtus: ours",
            &[
                "f:6: warning: rail-3: rail-cni/lint-ignore: mtus ",
                "f:16: warning: rail-3: mtu: 8000000",
            ],
        ),
    ] {
        let told = annotated(lines).1;
        assert_eq!(told.len(), expected.len(), "{told:#?}");
        assert!(
            told.iter()
                .zip(expected)
                .all(|(one, start)| one.starts_with(start)),
            "{told:#?}"
        );
        said.extend(told);
    }
    golden::says("lint", "lint-ignore", said.join("\n"));
    // Neither an error, nor another network's warning.
    let errors = good().replace("9000", "\"x\"").replace(
        "annotations: {",
        "annotations: {rail-cni/lint-ignore: 'mtu: no', ",
    );
    let (_, told) = lint_of(&[("f", &errors)]);
    assert_eq!(told.len(), 2, "{told:#?}");
    let other = good()
        .replace("9000", "90000")
        .replace("rail-3", "rail-4")
        .replace("\"rail\": 3", "\"rail\": 4");
    let silent = good().replace("9000", "90000").replace(
        "annotations: {",
        "annotations: {rail-cni/lint-ignore: 'mtu: no', ",
    );
    let (_, told) = lint_of(&[("f", &(silent + &other))]);
    assert!(
        told.len() == 1 && told[0].starts_with("f:36: warning: rail-4: mtu: "),
        "{told:#?}"
    );
}

#[test]
fn a_cni_configuration_silences_with_a_key_that_add_takes() {
    let conf = |more: &str| {
        format!(
            "{{\"cniVersion\": \"1.1.0\", \"name\": \"a\", \"type\": \"rail-cni\", \"rail\": 0, \"mtu\": 90000,\n\
             \"device\": \"eth9\", \"ipam\": {{\"type\": \"static\"}}{more}}}"
        )
    };
    let (lint, told) = lint_of(&[(
        "a.conf",
        &conf(",\n\"rail-cni/lint-ignore\": {\"mtu\": \"a wire of our own\"}"),
    )]);
    assert_eq!((told, lint.silenced.len()), (vec![], 1));
    let (_, told) = lint_of(&[("a.conf", &conf(",\n\"rail-cni/lint-ignore\": {\"mtu\": 1}"))]);
    assert_eq!(told.len(), 2, "{told:#?}");
    let (_, told) = lint_of(&[(
        "a.conf",
        &conf(",\n\"rail-cni/lint-ignore\": \"mtu: ours\""),
    )]);
    assert_eq!(told.len(), 2, "{told:#?}");
    let list = CONFIG
        .replace("9000", "90000")
        .replace(r#""rail": 3,"#, r#""rail": 3, "device": "eth9","#);
    let in_plugin = list.replace(
        "\"mtu\"",
        "\"rail-cni/lint-ignore\": {\"mtu\": \"ours\"}, \"mtu\"",
    );
    assert_eq!(lint_of(&[("a.conflist", &in_plugin)]).1, [] as [&str; 0]);
    let (lint, told) = lint_of(&[(
        "a.conflist",
        &list.replacen(
            '{',
            r#"{"rail-cni/lint-ignore": {"mtu": "a wire of our own"},"#,
            1,
        ),
    )]);
    assert_eq!((told, lint.silenced.len()), (vec![], 1));
}

#[test]
fn rails_are_found_in_names() {
    for (name, number) in [
        ("rail-3", Some(3)),
        ("Rail12-v6", Some(12)),
        ("a.rail_0", Some(0)),
        ("rail", None),
        ("net3", None),
    ] {
        assert_eq!(number_in(name).map(|(number, _)| number), number, "{name}");
    }
}

const VALUES: [&str; 20] = [
    "true",
    "1",
    "-1",
    "70000",
    "\"\"",
    "\"on\"",
    "\"x\"",
    "\"0000:3b:00.2\"",
    "\"0000:3b:00.3\"",
    "null",
    "[]",
    "{}",
    r#"[{"dst": "10.0.0.0/8"}]"#,
    r#"[{"dst": "x"}]"#,
    r#"[{"dst": "::/1", "gw": "10.0.0.1"}]"#,
    r#"{"type": "dhcp"}"#,
    r#"{"type": "a/b"}"#,
    r#"{"type": ""}"#,
    r#"{"deviceID": "x"}"#,
    r#"{"CNIDeviceInfoFile": "/etc/passwd"}"#,
];

/// The operator of the node allows it, which a manifest cannot show.
#[test]
fn the_addresses_of_the_host_need_no_pool() {
    let of = |ipam: &str| {
        let config = format!(
            r#"{{"cniVersion": "1.1.0", "name": "a", "type": "rail-cni", "rail": 0, "mtu": 9000, "device": "eth9", "ipam": {ipam}}}"#
        );
        lint_of(&[("f", &config)]).1
    };
    assert_eq!(
        of(r#"{"type": "rail-ipam", "source": "host"}"#),
        Vec::<String>::new()
    );
    for (ipam, problem) in [
        (r#"{"type": "rail-ipam", "source": "hosts"}"#, "ipam.source"),
        (
            r#"{"type": "rail-ipam", "source": "host", "pool": "rail-0"}"#,
            "ipam.pool",
        ),
    ] {
        let told = of(ipam);
        assert!(told.len() == 1 && told[0].contains(problem), "{told:?}");
    }
}

proptest! {
    /// Every refusal of ADD is an error here: a pod cannot surprise the author of a linted network.
    #[test]
    fn lint_and_add_agree(
        key in prop::sample::select(netconf::known()),
        value in prop::sample::select(VALUES.to_vec()),
    ) {
        let mut config = json!({"cniVersion": "1.1.0", "name": "a", "type": "rail-cni", "deviceID": "0000:3b:00.2"});
        config[key] = serde_json::from_str(value).unwrap();
        let is_refused = Network::parse(config.to_string().into(), Args::default(), vec![], &netconf::NETWORK, Strictness::Strict)
            .and_then(|network| {
                let attachment = Attachment { container_id: "c".into(), ifname: "net1".into() };
                NetConf::parse(&network, &attachment, &Node::default())
            })
            .is_err();
        let (lint, told) = lint_of(&[("f", &config.to_string())]);
        let errors = lint.findings.iter().filter(|one| one.severity == Severity::Error).count();
        prop_assert!(!is_refused || errors > 0, "{}: {:?}", config, told);
    }

    #[test]
    fn no_text_makes_it_panic(from in 0usize..2000, to in "[-\\[\\]{}:,\"'|>a-z0-9. \n]{0,12}") {
        let mut text = good();
        let at = from.min(text.len());
        text.replace_range(at..(at + to.len()).min(text.len()), &to);
        let _ = lint_of(&[("f", &text)]);
    }
}

/// Mode `rdma`: the keys of the netdev belong to the plugin before.
#[test]
fn a_plugin_for_the_rdma_device_alone_stands_behind_another_and_sets_nothing_else() {
    let list = |plugins: &str| {
        format!(
            r#"{{"cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"], "name": "x", "plugins": [{plugins}]}}"#
        )
    };
    let (ovs, rdma) = (
        r#"{"type": "ovs"}"#,
        r#"{"type": "rail-cni", "mode": "rdma", "rdmaQoS": {"tos": 96}}"#,
    );
    let whole = r#"{"type": "rail-cni", "rail": 0, "mtu": 9000, "deviceID": "0000:01:10.0",
        "capabilities": {"mac": true, "ips": true}, "ipam": {"type": "rail-ipam", "pool": "rail-0"}}"#;
    let mut said = String::new();
    for (plugins, expected) in [
        (format!("{ovs}, {rdma}"), vec![]),
        (rdma.to_owned(), vec!["mode: "]),
        (format!("{whole}, {rdma}"), vec!["mode: rail-cni "]),
        (
            format!(
                r#"{ovs}, {{"type": "rail-cni", "mode": "rdma", "mtu": 9000, "rdmaQoS": {{"tos": 300, "tcs": 1}}}}"#
            ),
            vec!["rdmaQoS.tcs: ", "mtu: ", "rdmaQoS.tos: 300 "],
        ),
        (
            format!(r#"{ovs}, {{"type": "rail-cni", "mode": "rdmaa"}}"#),
            vec!["mode: \"rdmaa\" "],
        ),
    ] {
        let (_, told) = lint_of(&[("f.conflist", &list(&plugins))]);
        let errors: Vec<_> = told.iter().filter(|one| one.contains("error: ")).collect();
        for part in &expected {
            assert!(
                errors.iter().any(|one| one.contains(part)),
                "{plugins}: no {part:?} in {told:#?}"
            );
        }
        if expected.is_empty() {
            assert!(told.is_empty(), "{told:#?}");
        }
        said += &format!("{plugins}\n  {}\n", told.join("\n  "));
    }
    golden::says("lint", "mode rdma", said);
}

/// The output of `lint --fix`, and its messages.
fn fixed(files: &[(&str, &str)]) -> (String, Vec<String>) {
    let (mut lint, told) = lint_of(files);
    (lint.fixed(), told)
}

/// A network whose fix is said to have an error would be no fix.
#[track_caller]
fn is_good(text: &str, networks: usize) {
    let (lint, told) = lint_of(&[("f.yaml", text)]);
    assert_eq!(
        (lint.count(Severity::Error), lint.networks),
        (0, networks),
        "{told:#?}\n{text}"
    );
}

const CHAIN: &str = r#"{"cniVersion": "0.3.1", "name": "rail-0", "disableCheck": true, "plugins": [
      {"type": "host-device", "ipam": {"type": "nv-ipam", "poolName": "rail-0", "poolType": "cidrpool"}},
      {"type": "sbr", "table": 200},
      {"type": "tuning", "mtu": 4220, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net.ipv4.conf.all.arp_announce": "2"}},
      {"type": "rdma", "rdmaQoS": {"tos": 96}}
    ]}"#;

#[test]
fn what_fix_prints_is_clean_and_keeps_comments() {
    let network = "# Ours since March.\n---\n# For the trainers.\n".to_owned()
        + good()
            .trim_start_matches("---\n")
            .replace("rail-cni", "sriov")
            .as_str()
        + "---\n# Of another document.\nkind: Pod\n";
    let network = network.replace(
        "spec:\n  config",
        "spec:  # as the operator wrote it\n  config",
    );
    let (text, _) = fixed(&[("f.yaml", &network)]);
    assert!(
        text.contains("# For the trainers.\n# as the operator wrote it\n"),
        "{text}"
    );
    assert!(!text.contains("another"), "{text}");
    is_good(&text, 1);
    // A VF without an interface, a network that stays, and one without a resource.
    let vfio = "---\nkind: SriovNetworkNodePolicy\nmetadata: {name: p}\nspec: {resourceName: vfs, deviceType: vfio-pci, mtu: 9000}\n\
        ---\nkind: SriovNetwork\nmetadata: {name: a}\nspec: {resourceName: vfs}\n";
    let ib = good().replace(
        "\"type\": \"rail-cni\",",
        "\"type\": \"ib-sriov\", \"ibKubernetesEnabled\": true,",
    );
    for source in [vfio, &ib] {
        let (text, _) = fixed(&[("f.yaml", source)]);
        is_good(&text, 1);
        let (_, told) = lint_of(&[("f.yaml", &text)]);
        assert!(!told.iter().any(|one| one.contains("--fix")), "{told:#?}");
    }
    let without = "kind: HostDeviceNetwork\nmetadata: {name: a}\nspec: {ipam: '{}'}\n";
    let (text, told) = fixed(&[("f.yaml", without)]);
    assert!(
        text.is_empty() && told[0].contains("has no resource"),
        "{text}{told:#?}"
    );
}

#[test]
fn a_chain_says_what_goes_what_stays_and_what_moves() {
    let (text, told) = fixed(&[("f", &nad("rail-0", CHAIN))]);
    for (line, part) in [
        (10, ["type: host-device: ", "rail-cni"]),
        (10, ["ipam: ", "rail-0"]),
        (11, ["type: sbr: ", "rail-cni"]),
        (12, ["type: tuning: ", "net.ipv4.conf.IFNAME.arp_filter"]),
        (13, ["type: rdma: ", "rdmaQoS"]),
    ] {
        let start = format!("f:{line}: warning: rail-0: {}", part[0]);
        let is_it = |one: &String| one.starts_with(&start) && one.contains(part[1]);
        assert!(told.iter().any(is_it), "{start}: {told:#?}");
    }
    golden::says("lint", "a chain", told.join("\n"));
    is_good(&text, 1);
    let object = document::parse("f", text.as_bytes())
        .unwrap()
        .remove(0)
        .value;
    let config: Value = serde_json::from_str(object["spec"]["config"].as_str().unwrap()).unwrap();
    assert_eq!(config["disableCheck"], true);
    let [ours, tuning] = &config["plugins"].as_array().unwrap()[..] else {
        panic!("{config}")
    };
    assert_eq!(
        *ours,
        json!({"type": "rail-cni", "rail": 0, "mtu": 4220, "rdmaQoS": {"tos": 96}, "routes": [{"dst": "0.0.0.0/0"}],
            "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}, "ipam": {"type": "rail-ipam", "pool": "rail-0"},
            "capabilities": {"deviceID": true, "mac": true, "ips": true, "CNIDeviceInfoFile": true}})
    );
    assert_eq!(
        *tuning,
        json!({"type": "tuning", "sysctl": {"net.ipv4.conf.all.arp_announce": "2"}})
    );
    // Keys that have to stay cause no message.
    let stays = CHAIN
        .replace(r#""mtu": 4220, "#, "")
        .replace(r#""net.ipv4.conf.IFNAME.arp_filter": "1", "#, "");
    let (_, told) = fixed(&[("f", &nad("rail-0", &stays))]);
    assert!(!told.iter().any(|one| one.contains("tuning")), "{told:#?}");
    let refused = good().replace(
        "\"mtu\"",
        "\"sysctl\": {\"net.ipv4.conf.all.rp_filter\": \"0\"}, \"mtu\"",
    );
    assert!(lint_of(&[("f", &refused)]).1[0].contains("tuning"));
}

#[test]
fn the_keys_of_an_operators_object_are_all_in_the_network() {
    let text = "apiVersion: sriovnetwork.openshift.io/v1\nkind: SriovNetwork\nmetadata: {name: rail-0, namespace: nvidia-x}\n\
        spec:\n  resourceName: eth_rail0\n  networkNamespace: ai\n  vlan: 100\n  vlanQoS: 3\n  spoofChk: \"off\"\n  trust: 'on'\n  \
        linkState: auto\n  minTxRate: 5\n  maxTxRate: 10\n  capabilities: '{\"ips\": true}'\n  \
        ipam: '{\"type\": \"whereabouts\", \"range\": \"198.18.0.0/24\"}'\n  \
        metaPlugins: '{\"type\": \"tuning\", \"mtu\": 4220}, {\"type\": \"rdma\"}, {\"type\": \"x\"}'\n";
    let (fixed_text, told) = fixed(&[("f", text)]);
    assert!(
        told.iter()
            .all(|one| one.starts_with("f:2: warning: rail-0: ")),
        "{told:#?}"
    );
    assert!(
        told.iter()
            .any(|one| { one.contains("rail-0 in namespace ai") })
    );
    assert!(
        told.iter().any(|one| one.contains("vlan, vlanQoS")),
        "{told:#?}"
    );
    is_good(&fixed_text, 1);
    let nad = document::parse("f", fixed_text.as_bytes())
        .unwrap()
        .remove(0)
        .value;
    assert_eq!(
        nad["metadata"],
        json!({"name": "rail-0", "namespace": "ai", "annotations": {"k8s.v1.cni.cncf.io/resourceName": "nvidia.com/eth_rail0"}})
    );
    let config: Value = serde_json::from_str(nad["spec"]["config"].as_str().unwrap()).unwrap();
    let ours = &config["plugins"][0];
    for (key, value) in [
        ("vlan", json!(100)),
        ("vlanQoS", json!(3)),
        ("spoofchk", json!("off")),
        ("trust", json!("on")),
        ("link_state", json!("auto")),
        ("min_tx_rate", json!(5)),
        ("max_tx_rate", json!(10)),
        ("mtu", json!(4220)),
        (
            "ipam",
            json!({"type": "whereabouts", "range": "198.18.0.0/24"}),
        ),
    ] {
        assert_eq!(ours[key], value, "{key}: {ours}");
    }
    assert_eq!(config["plugins"][1], json!({"type": "x"}));
    // Another prefix, none in the object, and texts that are no JSON.
    let (_, told) = fixed(&[("f", &text.replace("nvidia-x", "o"))]);
    assert!(
        told.iter()
            .any(|one| one.contains("openshift.io/eth_rail0")),
        "{told:#?}"
    );
    for (from, to, part) in [
        (
            "'{\"type\": \"whereabouts\"",
            "'{\"type\": ",
            "f:15: error: rail-0: spec.ipam: JSON",
        ),
        (
            "metaPlugins: '{",
            "metaPlugins: '",
            "f:16: error: rail-0: spec.metaPlugins: JSON",
        ),
    ] {
        let (_, told) = fixed(&[("f", &text.replace(from, to))]);
        assert!(
            told.iter().any(|one| one.starts_with(part)),
            "{part}: {told:#?}"
        );
    }
    // The MTU of a policy with this resource.
    let policy = "---\nkind: SriovNetworkNodePolicy\nmetadata: {name: p, namespace: nvidia-x}\nspec: {resourceName: eth_rail0, mtu: 9216}\n";
    let (fixed_text, _) = fixed(&[("f", &(text.replace(", \"mtu\": 4220", "") + policy))]);
    assert!(fixed_text.contains("\"mtu\": 9216"), "{fixed_text}");
}

#[test]
fn each_kind_of_an_operator_has_a_network_or_a_reason() {
    let mut said = String::new();
    for (spec, fix, part) in [
        (
            "kind: HostDeviceNetwork\nmetadata: {name: rail-1}\nspec: {networkNamespace: ai, resourceName: rail-1, ipam: '{\"type\": \"nv-ipam\", \"poolName\": \"p\", \"poolType\": \"cidrpool\"}'}\n",
            "nvidia.com/rail-1",
            ": HostDeviceNetwork: ",
        ),
        (
            "kind: SriovIBNetwork\nmetadata: {name: a}\nspec: {resourceName: ib0, linkState: enable}\n",
            "openshift.io/ib0",
            "warning: a: ",
        ),
        (
            "kind: SriovIBNetwork\nmetadata: {name: a}\nspec: {resourceName: ib0, capabilities: '{\"infinibandGUID\": true}'}\n",
            "\"type\": \"ib-sriov\"",
            "ib-kubernetes",
        ),
        (
            "kind: OVSNetwork\nmetadata: {name: a}\nspec: {resourceName: x, bridge: br, metaPlugins: '{\"type\": \"rdma\"}'}\n",
            "\"mode\": \"rdma\"",
            "warning: a: ",
        ),
        (
            "kind: OVSNetwork\nmetadata: {name: a}\nspec: {resourceName: x, bridge: br}\n",
            "",
            "note: a: kind: OVSNetwork: ",
        ),
        (
            "kind: MacvlanNetwork\nmetadata: {name: a}\nspec: {master: eth0}\n",
            "",
            "warning: a: kind: MacvlanNetwork: ",
        ),
        (
            "kind: IPoIBNetwork\nmetadata: {name: a}\nspec: {master: ib0}\n",
            "",
            "warning: a: kind: IPoIBNetwork",
        ),
        (
            "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: IPPool\nmetadata: {name: a}\nspec: {subnet: 198.18.0.0/24, perNodeBlockSize: 50}\n",
            "",
            "cidr: 198.18.0.0/24 and perNodeNetworkPrefix: 26",
        ),
        (
            "kind: SriovNetworkNodePolicy\nmetadata: {name: a}\nspec: {resourceName: x}\n",
            "",
            "note: a: kind: SriovNetworkNodePolicy: ",
        ),
        (
            "kind: NicClusterPolicy\nmetadata: {name: a}\nspec: {nvIpam: {}, rdmaSharedDevicePlugin: {config: '{}'}}\n",
            "",
            "a: spec.rdmaSharedDevicePlugin: ",
        ),
        (
            "kind: SpectrumXRailPoolConfig\nmetadata: {name: a}\nspec: {networkNamespace: d, railTopology: [{name: rail0p1, nicSelector: {pfNames: [n]}, cidrPoolRef: rail-0-plane-1, mtu: 9216}, {name: rail0p0, nicSelector: {pfNames: [m]}, cidrPoolRef: x}]}\n",
            "\"rail\": 8,\n          \"mtu\": 9216",
            "eSwitchMode legacy",
        ),
        (
            "kind: SpectrumXRailPoolConfig\nmetadata: {name: a}\nspec: {railTopology: [{name: rail0, nicSelector: {pfNames: [n, m]}}]}\n",
            "",
            "rail0 has 2 PFs",
        ),
        (
            "kind: SpiderMultusConfig\nmetadata: {name: a, namespace: s}\nspec: {cniType: sriov, sriov: {resourceName: s/x, vlanID: 7, enableRdma: true, ippools: {ipv4: [p]}}}\n",
            "\"default_ipv4_ippool\": [\"p\"]",
            "coordinator: ",
        ),
        (
            "kind: SpiderMultusConfig\nmetadata: {name: a}\nspec: {cniType: macvlan, macvlan: {master: [eth0]}}\n",
            "",
            "a: spec.cniType: SpiderMultusConfig: ",
        ),
        (
            "apiVersion: operator.openshift.io/v1\nkind: Network\nmetadata: {name: cluster}\nspec: {additionalNetworks: [{name: b, namespace: c, type: Raw, rawCNIConfig: '{\"cniVersion\": \"0.3.1\", \"type\": \"host-device\", \"device\": \"ens4\"}'}]}\n",
            "\"device\": \"ens4\"",
            "spec.additionalNetworks",
        ),
    ] {
        let (text, told) = fixed(&[("f", spec)]);
        assert!(
            told.iter().any(|one| one.contains(part)),
            "{part}: {told:#?}"
        );
        assert!(
            !told.iter().any(|one| one.contains(": error: ")),
            "{told:#?}"
        );
        assert_eq!(text.is_empty(), fix.is_empty(), "{spec}{text}");
        assert!(text.contains(fix), "{fix}: {text}");
        if text.contains("\"rail-cni\"") {
            is_good(&text, text.matches("---\n").count());
        }
        said += &format!("{}\n  {}\n", spec.trim_end(), told.join("\n  "));
    }
    golden::says("lint", "the objects of operators", said);
    // Others of the same names.
    let (lint, told) = lint_of(&[(
        "f",
        "apiVersion: crd.projectcalico.org/v1\nkind: IPPool\nmetadata: {name: a}\n",
    )]);
    assert_eq!((told.len(), lint.noted), (1, 0), "{told:#?}");
}

#[test]
fn addresses_of_every_ipam_are_compared_with_the_clusters_networks_and_with_each_other() {
    let of = |ipam: &str| {
        let text = good().replace(r#"{"type": "rail-ipam", "pool": "rail-3"}"#, ipam);
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("f"), text).unwrap();
        let mut node = Node::default();
        node.cluster_networks = vec!["10.96.0.0/12".parse().unwrap()];
        let lint = Lint::of(&[temp.path().join("f").display().to_string()], node);
        lint.count(Severity::Error)
    };
    for (ipam, errors) in [
        (
            r#"{"type": "host-local", "ranges": [[{"subnet": "198.18.0.0/24"}, {"subnet": "10.96.0.0/16"}]]}"#,
            1,
        ),
        (r#"{"type": "host-local", "subnet": "10.100.0.0/24"}"#, 1),
        (
            r#"{"type": "whereabouts", "range": "10.96.0.5-10.96.0.9/16"}"#,
            1,
        ),
        (
            r#"{"type": "whereabouts", "ipRanges": [{"range": "10.0.0.0/8"}]}"#,
            1,
        ),
        (
            r#"{"type": "static", "addresses": [{"address": "10.96.0.2/16"}]}"#,
            1,
        ),
        (
            r#"{"type": "static", "addresses": [{"address": "10.95.0.2/16"}]}"#,
            0,
        ),
    ] {
        assert_eq!(of(ipam), errors, "{ipam}");
    }
    let two = |first: &str, second: &str| {
        let config = |rail: &str, ipam: &str| {
            nad(
                rail,
                &CONFIG
                    .replace("rail-3\"", &format!("{rail}\""))
                    .replace("\"rail\": 3,", &format!("\"rail\": {},", &rail[5..]))
                    .replace(
                        &format!(r#"{{"type": "rail-ipam", "pool": "{rail}"}}"#),
                        ipam,
                    ),
            )
        };
        lint_of(&[("f", &(config("rail-3", first) + &config("rail-4", second)))]).1
    };
    let told = two(
        r#"{"type": "whereabouts", "range": "198.18.0.0/24"}"#,
        r#"{"type": "whereabouts", "range": "198.18.0.64/26"}"#,
    );
    assert!(
        told.len() == 1 && told[0].contains("198.18.0.0/24 of rail-3 (f:18)"),
        "{told:#?}"
    );
    let told = two(
        r#"{"type": "host-local", "subnet": "198.18.0.0/24"}"#,
        r#"{"type": "whereabouts", "range": "198.18.1.0/24"}"#,
    );
    assert!(
        told.len() == 1 && told[0].contains("rail-3: ipam: 198.18.0.0/24: host-local"),
        "{told:#?}"
    );
}

/// A policy of the SR-IOV Network Operator for the PF of rail 3.
fn policy(resource: &str, rest: &str) -> String {
    format!(
        "---\napiVersion: sriovnetwork.openshift.io/v1\nkind: SriovNetworkNodePolicy\n\
         metadata: {{name: rail-3, namespace: nvidia-network-operator}}\n\
         spec: {{resourceName: {resource}, nicSelector: {{pfNames: [eth_r3]}}, {rest}}}\n"
    )
}

/// The findings in these manifests together, without notes.
fn together(manifests: &[String]) -> Vec<String> {
    let (_, told) = lint_of(&[("f.yaml", &manifests.concat())]);
    told.into_iter()
        .filter(|one| !one.contains(": note: "))
        .collect()
}

#[test]
fn a_resource_of_a_network_is_offered_by_someone() {
    let plugin = |name: &str| {
        let list = format!(
            r#"{{"resourceList": [{{"resourcePrefix": "nvidia.com", "resourceName": "{name}"}}]}}"#
        );
        format!("---\nkind: ConfigMap\nmetadata: {{name: dp}}\ndata:\n  config.json: '{list}'\n")
    };
    let shared = "---\nkind: ConfigMap\nmetadata: {name: shared}\ndata:\n  config.json: |\n    \
        {\"configList\": [{\"resourceName\": \"hca_a\", \"rdmaHcaMax\": 9}]}\n"
        .to_owned();
    let of_shared = good().replace("nvidia.com/rail-3", "rdma/hca_a");
    for (manifests, expected) in [
        (vec![good(), plugin("rail-3")], ""),
        (vec![plugin("rail-3"), good()], ""),
        // A plan's own targets, of which one takes no hyphen.
        (
            vec![good(), policy("rail_3", "numVfs: 1")],
            "error: rail-3: metadata.annotations: nobody offers nvidia.com/rail-3, and",
        ),
        (
            vec![good(), plugin("rail-4")],
            "warning: rail-3: metadata.annotations: nobody offers nvidia.com/rail-3 in these files",
        ),
        (
            vec![good(), plugin("gpu-nics")],
            "warning: rail-3: metadata.annotations: nobody offers nvidia.com/rail-3 in these files",
        ),
        // The prefix is a setting of the operator.
        (
            vec![
                good().replace("nvidia.com/rail-3", "x.org/rail_3"),
                policy("rail_3", "numVfs: 1"),
            ],
            "",
        ),
        (
            vec![of_shared.clone()],
            "warning: rail-3: metadata.annotations: rdma/ is the default",
        ),
        (
            vec![of_shared.clone(), shared.clone()],
            "error: rail-3: metadata.annotations: rdma/hca_a is of the shared",
        ),
        (
            vec![of_shared, plugin("hca_a").replace("nvidia.com", "rdma")],
            "",
        ),
    ] {
        let told = together(&manifests);
        assert_eq!(told.len(), usize::from(!expected.is_empty()), "{told:#?}");
        assert!(told.iter().all(|one| one.contains(expected)), "{told:#?}");
    }
}

#[test]
fn a_network_of_rail_cni_needs_vfs_in_legacy() {
    let network = good().replace("nvidia.com/rail-3", "nvidia.com/rail_3");
    let told = together(&[
        network.clone(),
        policy("rail_3", "numVfs: 1, eSwitchMode: switchdev"),
    ]);
    assert!(
        told.len() == 1 && told[0].contains("error: rail-3: ") && told[0].contains("switchdev"),
        "{told:#?}"
    );
    let legacy = policy("rail_3", "numVfs: 1, eSwitchMode: legacy");
    assert_eq!(together(&[network, legacy]), [""; 0]);
    let ovs = "---\nkind: OVSNetwork\nmetadata: {name: rail-3, namespace: nvidia-network-operator}\n\
        spec: {resourceName: rail_3, bridge: br, metaPlugins: '{\"type\": \"rdma\"}'}\n";
    let told = together(&[
        ovs.to_owned(),
        policy("rail_3", "numVfs: 1, eSwitchMode: switchdev"),
    ]);
    assert!(
        !told.iter().any(|one| one.contains(": error: ")),
        "{told:#?}"
    );
}

#[test]
fn a_node_has_no_more_vfs_than_addresses() {
    let network = good().replace("nvidia.com/rail-3", "nvidia.com/rail_3");
    let pool = |length: u8, gateway: &str| {
        format!(
            "---\napiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata: {{name: rail-3}}\n\
             spec: {{cidr: 198.18.0.0/16, perNodeNetworkPrefix: {length}{gateway}}}\n"
        )
    };
    let node = r#"---
rails: [{rail: 3, pf: eth_r3, vfs: {number: 8}}]
"#;
    for (length, gateway, vfs, expected) in [
        (31, ", gatewayIndex: 1", "numVfs: 1", ""),
        (31, ", gatewayIndex: 1", "numVfs: 8", "8 VFs"),
        (29, "", "numVfs: 6", ""),
        (29, ", gatewayIndex: 1", "numVfs: 6", "5 addresses"),
    ] {
        let told = together(&[
            network.clone(),
            pool(length, gateway),
            policy("rail_3", vfs),
        ]);
        assert_eq!(told.len(), usize::from(!expected.is_empty()), "{told:#?}");
        assert!(
            told.iter()
                .all(|one| one.contains(expected) && one.contains("spec.numVfs")),
            "{told:#?}"
        );
    }
    // A range of VFs of the PF.
    let some = policy("rail_3", "numVfs: 8").replace("eth_r3", "\"eth_r3#0-1\"");
    let told = together(&[network.clone(), pool(31, ", gatewayIndex: 1"), some]);
    assert!(told.len() == 1 && told[0].contains("2 VFs"), "{told:#?}");
    let told = together(&[network, pool(31, ", gatewayIndex: 1"), node.to_owned()]);
    assert!(
        told.len() == 1 && told[0].contains("vfs.number: 8 VFs"),
        "{told:#?}"
    );
}

#[test]
fn a_network_has_a_rail_of_node_json() {
    let node = |rails: &str| ("node.json", format!(r#"{{"rails": [{rails}]}}"#));
    for (rails, expected) in [
        (r#"{"rail": 3, "pf": "eth_r3"}"#, ""),
        (
            r#"{"rail": 4, "pf": "eth_r4"}"#,
            "error: rail-3: rail: 3 is none of the rails [4]",
        ),
        (r#"{"rail": 3, "pf": "eth_r3", "pff": 1}"#, "unknown"),
    ] {
        let (name, text) = node(rails);
        let (_, told) = lint_of(&[("f.yaml", &good()), (name, &text)]);
        assert_eq!(told.len(), usize::from(!expected.is_empty()), "{told:#?}");
        assert!(told.iter().all(|one| one.contains(expected)), "{told:#?}");
    }
}

/// docs/dra.md: a claim's driver gives the device, and reads no list.
#[test]
fn a_network_of_a_claim_needs_no_resource() {
    let single = "---\napiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: rail-3}\nspec:\n  \
        config: '{\"cniVersion\": \"1.0.0\", \"name\": \"rail-3\", \"type\": \"rail-cni\", \"rail\": 3, \"mtu\": 9000, \
        \"capabilities\": {\"deviceID\": true, \"mac\": true, \"ips\": true, \"CNIDeviceInfoFile\": true}, \"ipam\": {\"type\": \"rail-ipam\", \"pool\": \"rail-3\"}}'\n"
        .to_owned();
    let claim = "---\napiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: vf}\nspec:\n  spec:\n    \
        devices:\n      config:\n      - opaque: {driver: sriovnetwork.k8snetworkplumbingwg.io, parameters: {kind: VfConfig, \
        netAttachDefName: rail-3}}\n"
        .to_owned();
    let pod = "---\nkind: Pod\nmetadata: {name: p}\nspec:\n  resourceClaims: [{name: vf, resourceClaimTemplateName: vf}]\n  \
        containers: [{name: a, image: x}]\n"
        .to_owned();
    assert_eq!(together(std::slice::from_ref(&claim)), [""; 0]);
    assert_eq!(together(&[claim.clone(), pod, single.clone()]), [""; 0]);
    assert_eq!(together(&[single]).len(), 1);
    let list = good().replace(
        "annotations: {k8s.v1.cni.cncf.io/resourceName: nvidia.com/rail-3}",
        "labels: {}",
    );
    let told = together(&[claim, list]);
    assert!(
        told.len() == 1 && told[0].contains("only networks of one plugin"),
        "{told:#?}"
    );
}

#[test]
fn a_pod_in_the_hosts_namespace_has_no_networks() {
    let pod = |rest: &str| {
        format!(
            "---\nkind: Pod\nmetadata: {{name: p, annotations: {{k8s.v1.cni.cncf.io/networks: rail-3}}}}\nspec:\n  {rest}\n  \
             containers: [{{image: x, resources: {{limits: {{nvidia.com/rail-3: 1}}}}, \
             securityContext: {{capabilities: {{add: [IPC_LOCK]}}}}}}]\n"
        )
    };
    assert_eq!(together(&[good(), pod("hostNetwork: false")]), [""; 0]);
    let told = together(&[good(), pod("hostNetwork: true")]);
    assert!(
        told.len() == 1 && told[0].contains("error: p: hostNetwork: "),
        "{told:#?}"
    );
}

#[test]
fn a_pod_leaves_nccls_devices_to_its_rails() {
    let pod = |labels: &str, mounts: &str, name: &str, value: &str| {
        format!(
            "---\nkind: Pod\nmetadata:\n  name: p\n  labels: {{{labels}}}\n  annotations: {{k8s.v1.cni.cncf.io/networks: rail-3}}\n\
             spec:\n  containers:\n  - image: x\n    resources: {{limits: {{nvidia.com/rail-3: 1}}}}\n    \
             securityContext: {{capabilities: {{add: [IPC_LOCK]}}}}\n    volumeMounts: [{mounts}]\n    \
             env: [{{name: {name}, value: \"{value}\"}}]\n"
        )
    };
    const MOUNT: &str = "{name: rails, mountPath: /etc/nccl.conf, subPath: nccl.conf}";
    const LABEL: &str = "rail-cni/rails: '8'";
    for (labels, mounts, name, value, expected) in [
        ("", "", "NCCL_DEBUG", "INFO", ""),
        ("", MOUNT, "NCCL_DEBUG", "INFO", ""),
        ("", MOUNT, "NCCL_IB_HCA", "mlx5", "precedence"),
        (LABEL, "", "NCCL_SOCKET_IFNAME", "eth0", "precedence"),
        ("", "", "NCCL_SOCKET_IFNAME", "eth0", ""),
        (
            "",
            "",
            "NCCL_SOCKET_IFNAME",
            "=eth_r3",
            "eth_r3 is a device of the host",
        ),
        ("", "", "NCCL_IB_HCA", "mlx5", ""),
        (
            "",
            "",
            "NCCL_IB_HCA",
            "=mlx5_0:1,mlx5_1:1",
            "mlx5_0 is a device of the host",
        ),
    ] {
        let network = good().replace("nvidia.com/rail-3", "nvidia.com/rail_3");
        let pod =
            pod(labels, mounts, name, value).replace("nvidia.com/rail-3", "nvidia.com/rail_3");
        let told = together(&[network, pod, policy("rail_3", "numVfs: 1")]);
        assert_eq!(told.len(), usize::from(!expected.is_empty()), "{told:#?}");
        assert!(told.iter().all(|one| one.contains(expected)), "{told:#?}");
    }
}

#[test]
fn a_pod_asks_for_a_resource_by_its_name() {
    let pod = "---\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{image: x, resources: {limits: {nvidia.com/rail-3: 1}}}]}\n";
    let told = together(&[pod.to_owned(), policy("rail_3", "numVfs: 1")]);
    assert!(
        told.iter()
            .any(|one| one.contains("error: p: asks for nvidia.com/rail-3, which nobody offers")),
        "{told:#?}"
    );
}

#[test]
fn pods_are_compared_with_their_networks() {
    let pod = |networks: &str, limits: &str, rest: &str| {
        format!(
            "---\nkind: Job\nmetadata: {{name: j}}\nspec:\n  template:\n    metadata:\n      annotations:\n        \
             k8s.v1.cni.cncf.io/networks: {networks}\n    spec:\n      containers:\n      - resources: {{limits: {{{limits}}}}}\n        {rest}\n"
        )
    };
    const LOCK: &str = "securityContext: {capabilities: {add: [IPC_LOCK]}}";
    let mut said = String::new();
    for (networks, limits, rest, expected) in [
        ("rail-3", "nvidia.com/rail-3: 1", LOCK, &[][..]),
        (
            "default/rail-3@net1",
            "nvidia.com/rail-3: '1', nvidia.com/gpu: 8",
            LOCK,
            &[],
        ),
        (
            "'[{\"name\": \"rail-3\", \"namespace\": \"x\"}]'",
            "nvidia.com/rail-3: 1",
            LOCK,
            &[],
        ),
        ("rail-3", "nvidia.com/rail-3: 1", "", &["IPC_LOCK"]),
        (
            "'rail-3, rail-3'",
            "nvidia.com/rail-3: 1",
            LOCK,
            &["nvidia.com/rail-3"],
        ),
        ("rail-3", "nvidia.com/gpu: 8", LOCK, &["nvidia.com/rail-3"]),
        ("'a,b,c'", "nvidia.com/gpu: 8", "", &[" 0 "]),
        (
            "rail-3",
            "nvidia.com/rail-3: 1, nvidia.com/rail-4: 1",
            LOCK,
            &["nvidia.com/rail-4"],
        ),
        ("'[1]'", "a/b: 1", LOCK, &["networks"]),
    ] {
        let (_, told) = lint_of(&[("f", &(good() + &pod(networks, limits, rest)))]);
        said += &format!("{networks} {{{limits}}}\n  {}\n", told.join("\n  "));
        assert_eq!(told.len(), expected.len(), "{networks} {limits}: {told:#?}");
        assert!(
            told.iter()
                .zip(expected)
                .all(|(one, part)| one.contains(part) && one.contains(": j: ")),
            "{told:#?}"
        );
    }
    golden::says("lint", "pods beside their networks", said);
}

#[test]
fn a_file_of_a_runtime_is_fixed_as_json() {
    let conf = r#"{"cniVersion": "0.3.1", "name": "a", "type": "sriov", "deviceID": "0000:3b:00.2", "ipam": {"type": "static"}}"#;
    let (text, _) = fixed(&[("a.conf", conf)]);
    let config: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(config["type"], "rail-cni");
    assert_eq!(
        (
            text.matches("\"name\"").count(),
            text.matches("\"cniVersion\"").count()
        ),
        (1, 1),
        "{text}"
    );
    let (text, _) = fixed(&[(
        "a.conflist",
        &format!(
            r#"{{"cniVersion": "0.3.1", "name": "a", "plugins": [{conf}, {{"type": "sbr"}}]}}"#
        ),
    )]);
    let config: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(config["plugins"].as_array().unwrap().len(), 1);
}

/// The shapes in which operators have pods: what their kinds are does not matter.
#[test]
fn pods_are_found_in_whatever_makes_them() {
    const NETWORKS: &str = "annotations: {k8s.v1.cni.cncf.io/networks: 'rail-3, rail-3'}";
    const CONTAINER: &str = "{image: x, resources: {limits: {nvidia.com/rail-3: 1}}, securityContext: {capabilities: {add: [IPC_LOCK]}}}";
    let template = format!("{{metadata: {{{NETWORKS}}}, spec: {{containers: [{CONTAINER}]}}}}");
    for (kind, own, spec) in [
        (
            "InferenceService",
            NETWORKS,
            format!("predictor: {{containers: [{CONTAINER}]}}"),
        ),
        (
            "InferenceService",
            NETWORKS,
            format!("predictor: {{model: {CONTAINER}}}"),
        ),
        (
            "InferenceService",
            "",
            format!("predictor: {{{NETWORKS}, workerSpec: {{containers: [{CONTAINER}]}}}}"),
        ),
        (
            "LLMInferenceService",
            NETWORKS,
            format!("prefill: {{template: {{containers: [{CONTAINER}]}}}}"),
        ),
        (
            "LLMInferenceService",
            NETWORKS,
            format!("worker: {{containers: [{CONTAINER}]}}"),
        ),
        (
            "Workflow",
            "",
            format!("templates: [{{metadata: {{{NETWORKS}}}, container: {CONTAINER}}}]"),
        ),
        (
            "CronWorkflow",
            "",
            format!(
                "workflowSpec: {{podMetadata: {{{NETWORKS}}}, templates: [{{script: {CONTAINER}}}]}}"
            ),
        ),
        (
            "Job",
            "",
            format!("tasks: [{{replicas: 2, template: {template}}}]"),
        ),
        (
            "RayCluster",
            "",
            format!("workerGroupSpecs: [{{template: {template}}}]"),
        ),
        (
            "JobSet",
            "",
            format!("replicatedJobs: [{{template: {{spec: {{template: {template}}}}}}}]"),
        ),
        (
            "LeaderWorkerSet",
            "",
            format!("leaderWorkerTemplate: {{workerTemplate: {template}}}"),
        ),
        (
            "MPIJob",
            "",
            format!("mpiReplicaSpecs: {{Worker: {{template: {template}}}}}"),
        ),
    ] {
        let object = format!("---\nkind: {kind}\nmetadata: {{name: j, {own}}}\nspec: {{{spec}}}\n")
            .replace(", }", "}");
        let (_, told) = lint_of(&[("f", &(good() + &object))]);
        assert!(
            told.len() == 1 && told[0].contains("nvidia.com/rail-3"),
            "{object}{told:#?}"
        );
    }
    // Of a network that is in no file, the resource tells.
    let shared = "---\nkind: Pod\nmetadata: {name: j, annotations: {k8s.v1.cni.cncf.io/networks: roce-p2}}\n\
        spec: {containers: [{resources: {limits: {rdma/roce_gdr: 1}}}]}\n";
    let (_, told) = lint_of(&[("f", shared)]);
    assert!(told.len() == 1 && told[0].contains("IPC_LOCK"), "{told:#?}");
    // Parts that are laid over other pods tell nothing of their devices, nor presets of their
    // rights.
    for (kind, spec) in [
        (
            "DynamoGraphDeployment",
            format!("services: {{w: {{{NETWORKS}, extraPodSpec: {{containers: [{CONTAINER}]}}}}}}"),
        ),
        (
            "ClusterPolicy",
            format!("rules: [{{mutate: {{patchStrategicMerge: {template}}}}}]"),
        ),
        (
            "LLMInferenceService",
            "template: {containers: [{resources: {limits: {nvidia.com/rail-3: 1}}}]}".to_owned(),
        ),
    ] {
        let networks = "annotations: {k8s.v1.cni.cncf.io/networks: rail-3}";
        let object = format!(
            "---\napiVersion: serving.kserve.io/v1alpha1\nkind: {kind}\nmetadata: {{name: j, {networks}}}\nspec: {{{spec}}}\n"
        );
        assert_eq!(
            lint_of(&[("f", &(good() + &object))]).1,
            Vec::<String>::new()
        );
    }
    // These pods do not get the object's own values.
    for (kind, spec) in [
        (
            "Deployment",
            format!("template: {{spec: {{containers: [{CONTAINER}]}}}}"),
        ),
        (
            "Workflow",
            format!("templates: [{{container: {CONTAINER}}}]"),
        ),
    ] {
        let object =
            format!("---\nkind: {kind}\nmetadata: {{name: j, {NETWORKS}}}\nspec: {{{spec}}}\n");
        let (_, told) = lint_of(&[("f", &(good() + &object))]);
        assert!(
            told.len() == 1 && told[0].contains(": j: "),
            "{object}{told:#?}"
        );
    }
}

#[test]
fn manifests_in_a_page_are_read_and_have_its_lines() {
    let wrong = good().replace("rail-cni\"", "rail-cnii\"");
    let indented = wrong
        .lines()
        .map(|line| format!("   {line}\n"))
        .collect::<String>();
    for (page, line) in [
        (format!("# A page\n\n```yaml\n{wrong}```\n"), 3),
        (
            format!("1. In a list\n\n   ```yaml title=\"nad\"\n{indented}   ```\n"),
            3,
        ),
        (format!("~~~ yml\n{wrong}~~~\n"), 1),
        (format!("```\n{wrong}```\n"), 1),
        (
            format!(
                "```bash\nset -e\nkubectl apply -f - <<'EOF'\n{wrong}EOF\nkubectl get nad\n```\n"
            ),
            3,
        ),
        (
            format!("```console\n$ cat <<EOF | kubectl apply -f -\n{wrong}EOF\n```\n"),
            2,
        ),
    ] {
        let (_, alone) = lint_of(&[("f.yaml", &wrong)]);
        let (_, told) = lint_of(&[("f.md", &page)]);
        let of = |one: &str| -> (u32, String) {
            let (line, rest) = one.split_once(": ").unwrap();
            (
                line.rsplit(':').next().unwrap().parse().unwrap(),
                rest.to_owned(),
            )
        };
        let moved: Vec<_> = alone
            .iter()
            .map(|one| of(one))
            .map(|(at, rest)| (at + line, rest))
            .collect();
        assert!(!moved.is_empty());
        assert_eq!(
            told.iter().map(|one| of(one)).collect::<Vec<_>>(),
            moved,
            "{page}"
        );
    }
    // Parts of objects, and other languages, are no mistakes; what is no YAML is said.
    let page = format!(
        "```yaml\nspec:\n  config: x\n```\n\n```go\nkind: x\n```\n\n```yaml\n{}```\n",
        good()
    );
    assert_eq!(lint_of(&[("f.md", &page)]).1, Vec::<String>::new());
    let (_, told) = lint_of(&[("f.md", &(page + "```yaml\na: {{ .Values.x }}\n```\n"))]);
    assert!(
        told.len() == 1 && told[0].contains(": warning: "),
        "{told:#?}"
    );
    let (_, told) = lint_of(&[("f.md", "no manifest\n")]);
    assert!(
        told.len() == 1 && told[0].contains("no NetworkAttachmentDefinition"),
        "{told:#?}"
    );
}

/// After the edit it is in another table than before.
#[test]
fn a_default_route_of_another_plugin_is_told_before_the_edit() {
    for route in ["0.0.0.0/0", "::/0"] {
        let ipam = format!(r#""ipam": {{"type": "static", "routes": [{{"dst": "{route}"}}]}}"#);
        let nad = nad(
            "rail-3",
            &format!(r#"{{"cniVersion": "1.0.0", "name": "rail-3", "type": "sriov", {ipam}}}"#),
        );
        let operator = format!(
            "kind: SriovNetwork\nmetadata: {{name: rail-3}}\nspec:\n  resourceName: rail_3\n  networkNamespace: a\n  ipam: |\n    \
             {{\"type\": \"static\", \"routes\": [{{\"dst\": \"{route}\"}}]}}\n"
        );
        for text in [nad, operator] {
            let (_, told) = lint_of(&[("f", &text)]);
            let about = told
                .iter()
                .filter(|one| one.contains(&format!(" {route} ")))
                .count();
            assert_eq!(about, 1, "{told:#?}");
        }
    }
}

/// A folder below is read as well; settings of other programs there are no networks.
#[test]
fn a_directory_is_read_with_all_below() {
    let temp = tempfile::tempdir().unwrap();
    let top = temp.path();
    std::fs::create_dir_all(top.join("rails/a")).unwrap();
    std::fs::create_dir_all(top.join(".git")).unwrap();
    let network = r#"{"cniVersion": "1.1.0", "name": "rail-0", "type": "rail-cni", "device": "d0", "colour": 1}"#;
    std::fs::write(top.join("rails/a/rail-0.conf"), network).unwrap();
    std::fs::write(top.join(".git/rail-1.conf"), network).unwrap();
    std::fs::write(top.join("rails/settings.conf"), "{\"datastore\": \"x\"}").unwrap();
    std::fs::write(top.join("pod.yaml"), "kind: ConfigMap\n").unwrap();
    std::os::unix::fs::symlink(top, top.join("rails/loop")).unwrap();
    std::os::unix::fs::symlink(top, top.join("rails/loop.yaml")).unwrap();
    // As an editor leaves it beside a file that it has open.
    std::os::unix::fs::symlink("nobody@host", top.join("rails/.#rail-0.conf")).unwrap();
    let lint = Lint::of(&[top.display().to_string()], Node::default());
    assert_eq!((lint.networks, lint.count(Severity::Error)), (1, 1));
    for finding in &lint.findings {
        assert!(finding.fault.place.file.ends_with("rails/a/rail-0.conf"));
    }
}
