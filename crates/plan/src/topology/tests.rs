use super::*;
use crate::document;
use crate::fabric;
use crate::plan::tests::lines;
use crate::scheme::{Family, Mode, Polarity, Tiers};
use golden::has;
use proptest::prelude::*;
use serde_json::json;

const TWO: Scheme = Scheme {
    tiers: Tiers::Two,
    mode: Mode::None,
    family: Family::Ipv4,
    first_octet: 172,
    polarity: Polarity::LeafOdd,
};
const THREE: Scheme = Scheme {
    tiers: Tiers::Three,
    first_octet: 10,
    ..TWO
};

fn text(file: &str, value: &Value) -> Text {
    Text {
        file: file.to_owned(),
        bytes: serde_json::to_vec_pretty(value).unwrap(),
    }
}

/// Doubts are among the warnings.
fn plan_of(values: &[Value], scheme: Scheme) -> Result<Plan, Vec<String>> {
    let name = |number| {
        if number == 0 {
            "topology.json".to_owned()
        } else {
            format!("{number}.json")
        }
    };
    let texts: Vec<_> = values
        .iter()
        .enumerate()
        .map(|(number, value)| text(&name(number), value))
        .collect();
    let mut plan = read(&texts, &scheme, None, &[Doubt::SecondLink])
        .map_err(|refusal| lines(refusal.faults))?;
    plan.check().map_err(lines)?;
    plan.warnings
        .extend(std::mem::take(&mut plan.doubts).into_warnings());
    Ok(plan)
}

/// Pool, node, prefix, gateway and cables of each row.
fn rows(plan: &Plan) -> Vec<String> {
    let cable = |cable: &Cable| {
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
        format!(
            "{}:{}:{}",
            text(&cable.interface),
            text(&cable.leaf),
            text(&cable.port)
        )
    };
    let of_pool = plan.pools.iter().flat_map(|pool| {
        pool.rows().map(|(row, cables)| {
            let cables: Vec<_> = cables.iter().map(cable).collect();
            format!(
                "{} {} {} {} {}",
                pool.name,
                row.node_name,
                row.prefix,
                row.gateway,
                cables.join(" ")
            )
        })
    });
    of_pool.collect()
}

/// The size of a made-up fabric.
#[derive(Clone, Copy, Debug)]
struct Size {
    pods: u64,
    sus: u64,
    hosts: u64,
    rails: u64,
    planes: u64,
}

const SMALL: Size = Size {
    pods: 1,
    sus: 2,
    hosts: 2,
    rails: 2,
    planes: 1,
};

fn host_name(tiers: Tiers, at: &Spot) -> String {
    let pod = if tiers == Tiers::Three {
        format!("pod{:02}-", at.pod + 1)
    } else {
        String::new()
    };
    format!("worker-{pod}su{:02}-h{:02}", at.su + 1, at.host + 1)
}

fn leaf_name(tiers: Tiers, at: &Spot) -> String {
    let pod = if tiers == Tiers::Three {
        format!("pod{:02}-", at.pod + 1)
    } else {
        String::new()
    };
    format!(
        "leaf-p{}-{pod}su{:03}-r{}",
        at.plane + 1,
        at.su + 1,
        at.rail + 1
    )
}

fn interface(at: &Spot) -> String {
    format!("rail{}p{}", at.rail + 1, at.plane + 1)
}

fn port(at: &Spot) -> String {
    format!("swp{}s{}", at.host / 2 + 1, at.host % 2)
}

/// Every host link, leaf by leaf.
fn places(size: Size) -> Vec<Spot> {
    let mut all = Vec::new();
    let Size {
        pods,
        sus,
        hosts,
        rails,
        planes,
    } = size;
    for (pod, su) in (0..pods).flat_map(|pod| (0..sus).map(move |su| (pod, su))) {
        for (plane, rail) in (0..planes).flat_map(|plane| (0..rails).map(move |rail| (plane, rail)))
        {
            all.extend((0..hosts).map(|host| Spot {
                plane,
                rail,
                pod,
                su,
                host,
            }));
        }
    }
    all
}

fn spcx(size: Size, tiers: Tiers) -> Value {
    let (mut nodes, mut links, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    for at in places(size) {
        let (host, leaf) = (host_name(tiers, &at), leaf_name(tiers, &at));
        for (name, role) in [(&host, "host"), (&leaf, "leaf")] {
            if seen.insert(name.clone()) {
                nodes.push(json!({"name": name, "role": role, "type": "default"}));
            }
        }
        let Spot {
            plane,
            rail,
            pod,
            su,
            ..
        } = at;
        let of_leaf =
            json!({"role": "leaf", "plane": plane, "pod": pod, "su": su, "rail_group": [rail]});
        let of_host = json!({"role": "host", "rail": rail, "pod": pod, "su": su, "plane": null});
        let leaf_end = json!({"node": leaf, "interface": port(&at), "attributes": of_leaf});
        links.push(
            json!([leaf_end, {"node": host, "interface": interface(&at), "attributes": of_host}]),
        );
        let spine = json!({"node": "spine", "interface": "swp1", "attributes": {"role": "spine"}});
        links.extend([
            json!([leaf_end, spine]),
            json!([leaf_end, "unconnected"]),
            json!([]),
        ]);
    }
    json!({"nodes": nodes, "links": links})
}

fn air(size: Size, tiers: Tiers) -> Value {
    let (mut nodes, mut links) = (serde_json::Map::new(), Vec::new());
    for at in places(size) {
        let (host, leaf) = (host_name(tiers, &at), leaf_name(tiers, &at));
        let nic = format!("rail{}", at.rail + 1);
        let own = nodes
            .entry(&host)
            .or_insert_with(|| json!({"model": "host", "network_pci": {}}));
        own["network_pci"][&nic] = json!({});
        nodes.insert(leaf.clone(), json!({"model": "SN5600", "network_pci": {}}));
        nodes.entry("spine-1").or_insert(json!({"model": "SN5600"}));
        let host_end = json!({"node": host, "interface": interface(&at), "network_pci": nic});
        links.push(json!([host_end, {"node": leaf, "interface": port(&at)}]));
        links.push(
            json!([{"node": leaf, "interface": "swp64"}, {"node": "spine-1", "interface": "swp1"}]),
        );
        links.push(json!([{"node": "spine-1", "interface": "swp2"}, "unconnected"]));
    }
    // In the order of names a..z, so that order is not what decides.
    links.reverse();
    json!({"format": "not used", "name": "made up", "content": {"nodes": nodes, "links": links}})
}

/// Both forms and a fabric file say the same of one fabric, in every mode.
#[test]
fn three_sources_of_one_fabric_give_one_plan() {
    for (tiers, mode, planes, family) in [
        (2, "none", 1, "ipv4"),
        (2, "swplb", 2, "ipv4"),
        (2, "hwplb", 4, "dual"),
        (3, "none", 1, "dual"),
        (3, "swplb", 4, "ipv4"),
        (3, "hwplb", 2, "ipv6"),
    ] {
        let size = Size {
            pods: if tiers == 3 { 3 } else { 1 },
            sus: 3,
            hosts: 4,
            rails: 8,
            planes,
        };
        let pod = if tiers == 3 { "pod{pod+1:02}-" } else { "" };
        let yaml = format!(
            "fabric: spectrum-x\ntiers: {tiers}\nmode: {mode}\nplanes: {planes}\nfamily: {family}\nrails: 8\n\
             pods: {}\nsus: 3\nhostsPerSU: 4\nnodeName: worker-{pod}su{{su+1:02}}-h{{host+1:02}}\n\
             leafName: leaf-p{{plane+1}}-{pod}su{{su+1:03}}-r{{rail+1}}\nleafPort: swp{{host/2+1}}s{{host%2}}\n\
             hostInterface: rail{{rail+1}}p{{plane+1}}\n",
            size.pods
        );
        let mut from_fabric =
            fabric::read(&document::parse("fabric.yaml", yaml.as_bytes()).unwrap()[..1]).unwrap();
        from_fabric.check().unwrap();
        let expected = rows(&from_fabric);
        let pools = if mode == "swplb" { planes } else { 1 } * if family == "dual" { 2 } else { 1 };
        assert_eq!(expected.len() as u64, size.pods * 3 * 4 * 8 * pools);
        let scheme = Scheme {
            mode: serde_json::from_value(json!(mode)).unwrap(),
            family: serde_json::from_value(json!(family)).unwrap(),
            ..if tiers == 3 { THREE } else { TWO }
        };
        let from_spcx = plan_of(&[spcx(size, scheme.tiers)], scheme).unwrap();
        assert_eq!(from_spcx.warnings, Vec::<String>::new());
        assert_eq!(rows(&from_spcx), expected, "spcx {tiers} {mode}");
        // Cables come in the order of links, those of one row too.
        let mut ours = rows(&plan_of(&[air(size, scheme.tiers)], scheme).unwrap());
        let mut expected = expected;
        for row in ours.iter_mut().chain(&mut expected) {
            let mut words: Vec<_> = row.split(' ').collect();
            words[4..].sort_unstable();
            *row = words.join(" ");
        }
        assert_eq!(ours, expected, "air {tiers} {mode}");
    }
}

/// k8s-launch-kit's own expectations, with data of our own (addressing_test.go,
/// air_topology_test.go).
#[test]
fn the_addresses_are_those_of_k8s_launch_kit() {
    let two_planes = Size {
        planes: 2,
        sus: 1,
        ..SMALL
    };
    let plan = plan_of(
        &[spcx(two_planes, Tiers::Two)],
        Scheme {
            mode: Mode::Swplb,
            ..TWO
        },
    )
    .unwrap();
    let shown = rows(&plan);
    assert!(
        shown[1].starts_with("rail-0-plane-0 worker-su01-h02 172.16.0.2/31 172.16.0.3"),
        "{shown:?}"
    );
    assert_eq!(plan.pools[3].spec.cidr, "172.20.64.0/18");
    let link = json!([
        {"node": "leaf-p1-pod03-su004-r1", "interface": "swp1s0"},
        {"node": "gpu-pod03-su04-rack07-h01", "interface": "rail1p1", "network_pci": "rail1"}]);
    let one = json!({"content": {"links": [link], "nodes": {
        "leaf-p1-pod03-su004-r1": {}, "gpu-pod03-su04-rack07-h01": {"network_pci": {"rail1": {}}}}}});
    let plan = plan_of(
        &[one],
        Scheme {
            mode: Mode::Hwplb,
            ..THREE
        },
    )
    .unwrap();
    assert_eq!(
        rows(&plan),
        [
            "rail-0 gpu-pod03-su04-rack07-h01 10.0.131.0/31 10.0.131.1 rail1p1:leaf-p1-pod03-su004-r1:swp1s0"
        ]
    );
}

#[test]
fn a_file_is_known_by_its_content() {
    for (value, is) in [
        (json!({"nodes": [], "links": []}), true),
        (
            json!({"format": "x", "content": {"nodes": {}, "links": []}}),
            true,
        ),
        (json!({"links": 1}), true),
        (json!({"fabric": "spectrum-x"}), false),
        (json!({"kind": "CIDRPool"}), false),
        (json!([1]), false),
        (json!(null), false),
    ] {
        assert_eq!(is_topology(&text("t", &value)), is, "{value}");
    }
    let both = json!({"nodes": [], "links": [], "content": {"nodes": {}, "links": []}});
    let mut said = Vec::new();
    for (value, told) in [
        (both, "topology.json:2: content:"),
        (json!({"nodes": {}, "links": []}), "topology.json:1:"),
        (json!({"content": {"nodes": [], "links": []}}), ""),
        (json!({"nodes": [], "links": []}), "topology.json:1:"),
        (json!({"content": {"nodes": {}, "links": []}}), ""),
        (json!([]), ""),
    ] {
        let faults = plan_of(&[value], TWO).unwrap_err();
        assert!(has(&faults[0], told), "{told}: {faults:?}");
        said.extend(faults);
    }
    golden::says("plan", "topology: other files", said.join("\n"));
}

/// `links[0]` is from leaf to host; each change breaks one thing.
#[test]
fn every_fault_of_spcx_gen_is_told_with_line_and_field() {
    type Change = fn(&mut Value);
    let cases: &[(Scheme, &str, Change)] = &[
        (
            TWO,
            "topology.json:18: links[0][1].attributes.rail:…0 to 7",
            |links| {
                links[0][1]["attributes"]
                    .as_object_mut()
                    .unwrap()
                    .remove("rail");
            },
        ),
        (
            TWO,
            "topology.json:21: links[0][1].attributes.rail:…0 to 7",
            |links| {
                links[0][1]["attributes"]["rail"] = json!(null);
            },
        ),
        (TWO, "links[0][1].attributes.rail:…0 to 7", |links| {
            links[0][1]["attributes"]["rail"] = json!(8);
        }),
        (TWO, "links[0][1].attributes.rail: -1", |links| {
            links[0][1]["attributes"]["rail"] = json!(-1);
        }),
        (TWO, "links[0][1].attributes.rail: \"0\"", |links| {
            links[0][1]["attributes"]["rail"] = json!("0");
        }),
        (TWO, "links[0][0].attributes.plane:", |links| {
            links[0][0]["attributes"]["plane"] = json!(null);
        }),
        (TWO, "links[0][0].attributes.plane:…0 to 3", |links| {
            links[0][0]["attributes"]["plane"] = json!(4);
        }),
        (TWO, "links[0][1].attributes.su: 64…0 to 63", |links| {
            links[0][1]["attributes"]["su"] = json!(64);
        }),
        (TWO, "links[0][1].attributes.pod:", |links| {
            links[0][1]["attributes"]["pod"] = json!(1);
        }),
        (THREE, "links[0][1].attributes.pod:…0 to 31", |links| {
            links[0][1]["attributes"]["pod"] = json!(null);
        }),
        (
            TWO,
            "links[0][0].attributes.role:…worker-su01-h01",
            |links| {
                links[0][0]["attributes"]["role"] = json!("spine");
            },
        ),
        (TWO, "links[0][1].attributes.role:", |links| {
            links[0][0]["attributes"]["role"] = json!("host");
        }),
        (
            TWO,
            "links[0][1].attributes.role: \"Host\": …host?",
            |links| {
                links[0][1]["attributes"]["role"] = json!("Host");
            },
        ),
        (TWO, "links[0][1].attributes.role:", |links| {
            links[0][1]["attributes"]["role"] = json!(1);
        }),
        (TWO, "links[0][1].attributes:", |links| {
            links[0][1]["attributes"] = json!([]);
        }),
        (TWO, "links[0][1].node:", |links| {
            links[0][1].as_object_mut().unwrap().remove("node");
        }),
        (TWO, "links[0][1].node: \"../etc\"", |links| {
            links[0][1]["node"] = json!("../etc");
        }),
        (TWO, "links[0]:", |links| links[0] = json!({})),
        (TWO, "links[0][1]:", |links| links[0][1] = json!(null)),
        (TWO, "links[0][0]: \"off\"", |links| {
            links[0][0] = json!("off")
        }),
        (TWO, "links[0]:", |links| {
            let end = links[0][0].clone();
            links[0].as_array_mut().unwrap().push(end);
        }),
        (TWO, "links[0]:", |links| {
            links[0].as_array_mut().unwrap().pop();
        }),
        (TWO, "links[0]…swp1s1…leaf-p1-su001-r1", |links| {
            links[0][0]["interface"] = json!("swp1s1");
        }),
    ];
    let mut said = Vec::new();
    for (scheme, told, change) in cases {
        let mut value = spcx(SMALL, scheme.tiers);
        change(&mut value["links"]);
        let faults = plan_of(&[value], *scheme).unwrap_err();
        assert!(
            faults.iter().any(|fault| has(fault, told)),
            "{told}: {faults:#?}"
        );
        said.extend(faults);
    }
    golden::says(
        "plan",
        "topology: faults of a list of links",
        said.join("\n"),
    );
}

#[test]
fn every_fault_of_air_is_told_with_line_and_field() {
    type Change = fn(&mut Value);
    let rename = |from: &str, to: &str, value: &Value| -> Value {
        serde_json::from_str(
            &value
                .to_string()
                .replace(&format!("\"{from}\""), &format!("\"{to}\"")),
        )
        .unwrap()
    };
    let small = Size {
        sus: 1,
        hosts: 1,
        rails: 1,
        ..SMALL
    };
    // The host link is the last one.
    let cases: &[(&str, Change)] = &[
        (
            "content.links[2][0].interface: \"eth0\" …rail<R>p<P>",
            |value| {
                value["links"][2][0]["interface"] = json!("eth0");
            },
        ),
        (
            "content.links[2][0].interface: \"rail0p1\" …rail<R>p<P>",
            |value| {
                value["links"][2][0]["interface"] = json!("rail0p1");
            },
        ),
        (
            "content.links[2][0].interface: rail 2…rail 1 …leaf-p1-su001-r1",
            |value| {
                value["links"][2][0]["interface"] = json!("rail2p1");
            },
        ),
        ("content.links[2][0].interface: plane 2…plane 1", |value| {
            value["links"][2][0]["interface"] = json!("rail1p2");
        }),
        ("content.links[2][0].network_pci: \"\" …rail1", |value| {
            value["links"][2][0]
                .as_object_mut()
                .unwrap()
                .remove("network_pci");
        }),
        (
            "content.links[2][0].network_pci: \"rail2\" …rail1",
            |value| {
                value["links"][2][0]["network_pci"] = json!("rail2");
            },
        ),
        (
            "content.links[2][0].network_pci: …worker-su01-h01 …rail1",
            |value| {
                value["nodes"]["worker-su01-h01"]["network_pci"] = json!({});
            },
        ),
        (
            "content.links[2][0].node: worker-su01-h01 …content.nodes",
            |value| {
                value["nodes"]
                    .as_object_mut()
                    .unwrap()
                    .remove("worker-su01-h01");
            },
        ),
        ("content.links[2][1].node: ", |value| {
            value["nodes"]["leaf-p1-su001-r1"]["emulation_type"] = json!("HOST");
        }),
        ("content.links[0][0]: 7 ", |value| {
            value["links"][0][0] = json!(7)
        }),
    ];
    let mut said = Vec::new();
    for (told, change) in cases {
        let mut value = air(small, Tiers::Two);
        change(&mut value["content"]);
        let faults = plan_of(&[value], TWO).unwrap_err();
        let is_told = |fault: &String| fault.starts_with("topology.json:") && has(fault, told);
        assert!(faults.iter().any(is_told), "{told}: {faults:#?}");
        said.extend(faults);
    }
    let (host, leaf) = ("worker-su01-h01", "leaf-p1-su001-r1");
    for (from, to, told) in [
        (host, "worker-h01", "content.links[2][0].node:…su<N>"),
        (host, "worker-su01", "content.links[2][0].node:…h<N>"),
        (
            host,
            "worker-su00-h01",
            "content.links[2][0].node: su00…1 to 64",
        ),
        (
            host,
            "worker-su65-h01",
            "content.links[2][0].node: su65…1 to 64",
        ),
        (
            host,
            "worker-su01-h129",
            "content.links[2][0].node: h129…1 to 128",
        ),
        (
            host,
            "worker-su01-h99999999999999999999",
            "h99999999999999999999…1 to 128",
        ),
        (host, "worker-su01-su02-h01", "worker-su01-su02-h01…su<N>"),
        (host, "worker-su02-h01", "content.links[2][0].node:"),
        (
            host,
            "worker-pod01-su01-h01",
            "content.links[2][1].node:…pod<N>",
        ),
        (leaf, "spine-p1-su001-r1", "spine-p1-su001-r1"),
        (leaf, "leaf-su001-r1", "content.links[2][1].node:…p<N>"),
        (leaf, "leaf-p1-su001", "content.links[2][1].node:…r<N>"),
        (
            leaf,
            "leaf-p1-su001-r9",
            "content.links[2][1].node: r9…1 to 8",
        ),
        (leaf, "leaf-p1-pod01-su001-r1", "content.links[2][0].node: "),
    ] {
        let faults = plan_of(&[rename(from, to, &air(small, Tiers::Two))], TWO).unwrap_err();
        assert!(
            faults.iter().any(|fault| has(fault, told)),
            "{told}: {faults:#?}"
        );
        said.extend(faults);
    }
    golden::says("plan", "topology: faults of AIR's form", said.join("\n"));
    let faults = plan_of(&[air(small, Tiers::Two)], THREE).unwrap_err();
    assert!(
        faults[0].contains("content.links[2][0].node: "),
        "{faults:?}"
    );
    let three = rename(
        "worker-pod01-su01-h01",
        "worker-pod02-su01-h01",
        &air(small, Tiers::Three),
    );
    let faults = plan_of(&[three], THREE).unwrap_err();
    assert!(faults[0].contains("pod 2"), "{faults:?}");
    let twice = rename(
        "worker-su01-h02",
        "worker-su01-rack09-h01",
        &air(Size { sus: 1, ..SMALL }, Tiers::Two),
    );
    let faults = plan_of(&[twice], TWO).unwrap_err();
    assert!(faults[0].contains("worker-su01-rack09-h01"), "{faults:?}");
}

/// As NVIDIA's reference designs name nodes: `su00`, and no plane where there is one.
#[test]
fn names_that_count_from_zero_are_read_as_they_count() {
    let link = |host: u64, rail: u64| {
        json!([{"node": format!("hgx-su00-h{host:02}"), "interface": format!("eth{}", rail + 1)},
            {"node": format!("leaf-su00-r{rail}"), "interface": format!("swp{}s0", host + 1)}])
    };
    let links: Vec<Value> = [(0, 0), (8, 0), (0, 1), (8, 1)]
        .map(|(host, rail)| link(host, rail))
        .to_vec();
    let node = |kind: &str| json!({"model": kind});
    let mut value = json!({"content": {"nodes": {"hgx-su00-h00": node("host"), "hgx-su00-h08": node("host"),
        "leaf-su00-r0": node("SN5600"), "leaf-su00-r1": node("SN5600")}, "links": links}});
    let plan = plan_of(&[value.clone()], TWO).unwrap();
    let rows = rows(&plan);
    assert_eq!(
        rows[1],
        "rail-0 hgx-su00-h08 172.16.0.16/31 172.16.0.17 eth1:leaf-su00-r0:swp9s0"
    );
    assert_eq!(
        rows[2],
        "rail-1 hgx-su00-h00 172.18.0.0/31 172.18.0.1 eth2:leaf-su00-r1:swp1s0"
    );
    for host in ["hgx-su00-h00", "hgx-su00-h08"] {
        value["content"]["nodes"][host] = json!({"model": null, "network_pci": {}});
    }
    let faults = plan_of(&[value], TWO).unwrap_err();
    assert!(faults[0].contains("hgx-su00-h00"), "{faults:?}");
}

const DOT: &str = r#"graph "network" {
// As NVIDIA's reference tools write it.
"oob-mgmt-server" [function="oob-server" memory="16048"]
"leaf-su00-r0" [os="cumulus-vx-5.13" model="SN5600" role="leaf"]
leaf-su00-r1 [role="leaf"]
"hgx-su00-h00" [os="generic/ubuntu2204" role="host"]
"hgx-su00-h01" [os="generic/ubuntu2204" function="host"]
node [shape=box];

"hgx-su00-h00":"eth1"--"leaf-su00-r0":"swp1s0"
"leaf-su00-r0":"swp2s0" -- "hgx-su00-h01":"eth1" [left_mac="02:00:00:00:00:01"];
"hgx-su00-h00":"eth2" -- leaf-su00-r1:swp1s0
"hgx-su00-h01":"eth2" -- "leaf-su00-r1":"swp2s0"
"leaf-su00-r0":"swp33s0"--"spine-s00":"swp1s0"
}
"#;

fn dot_of(text: &str, scheme: Scheme) -> Result<Plan, Vec<String>> {
    let text = Text {
        file: "topology.dot".to_owned(),
        bytes: text.as_bytes().to_vec(),
    };
    assert!(is_topology(&text));
    read(&[text], &scheme, None, &[]).map_err(Refusal::lines)
}

#[test]
fn a_graph_is_read_by_its_names_and_faults_have_its_lines() {
    let rows = rows(&dot_of(DOT, TWO).unwrap());
    assert_eq!(
        rows,
        [
            "rail-0 hgx-su00-h00 172.16.0.0/31 172.16.0.1 eth1:leaf-su00-r0:swp1s0",
            "rail-0 hgx-su00-h01 172.16.0.2/31 172.16.0.3 eth1:leaf-su00-r0:swp2s0",
            "rail-1 hgx-su00-h00 172.18.0.0/31 172.18.0.1 eth2:leaf-su00-r1:swp1s0",
            "rail-1 hgx-su00-h01 172.18.0.2/31 172.18.0.3 eth2:leaf-su00-r1:swp2s0",
        ]
    );
    // One plane in the layout of planes, as on GB200.
    let hwplb = Scheme {
        mode: Mode::Hwplb,
        ..TWO
    };
    assert!(
        dot_of(DOT, hwplb).unwrap().pools[1]
            .spec
            .cidr
            .ends_with("/18")
    );
    let swplb = Scheme {
        mode: Mode::Swplb,
        ..TWO
    };
    assert!(dot_of(DOT, swplb).unwrap_err().join("\n").contains("p<N>"));
    let mut said = Vec::new();
    for (from, to, told) in [
        (
            r#""leaf-su00-r1":"swp2s0""#,
            r#""tor-1":"swp2s0""#,
            "topology.dot:13: content.links[3][1].node: tor-1",
        ),
        (r#":"swp33s0""#, "", "topology.dot:14:"),
        ("node [shape=box]", "{b}", "topology.dot:8:"),
        ("r1\":\"swp2s0\"", "r1\":\"swp2s0", ""),
        ("role=\"host\"", "role=\"x\"", "hgx-su00-h00"),
    ] {
        let text = DOT.replace(from, to);
        let text = if told == "hgx-su00-h00" {
            text.replace("function=\"host\"", "")
        } else {
            text
        };
        let faults = dot_of(&text, TWO).unwrap_err().join("\n");
        assert!(has(&faults, told), "{told}: {faults}");
        said.push(faults);
    }
    golden::says("plan", "topology: faults of a graph", said.join("\n"));
}

proptest! {
    #[test]
    fn no_graph_makes_it_panic(text in "[a-z\"\\[\\]{};:=# /*\n\\\\-]{0,80}") {
        let text = Text { file: "t".to_owned(), bytes: format!("graph {{{text}").into_bytes() };
        let _ = read(&[text], &TWO, None, &[]);
    }
}

#[test]
fn an_su_with_free_places_is_told_where_names_and_ports_leave_them_free() {
    let warnings = |name: fn(u64) -> String, port: fn(u64) -> String| {
        let end = |host: u64| {
            json!([{"node": name(host), "interface": "eth1", "attributes": {"role": "host", "rail": 0, "su": 0}},
                {"node": "leaf", "interface": port(host), "attributes": {"role": "leaf", "plane": 0, "su": 0}}])
        };
        let nodes = [0, 1, 2].map(|host| json!({"name": name(host), "role": "host"}));
        let value = json!({"nodes": nodes, "links": [end(0), end(1), end(2)]});
        plan_of(&[value], TWO).unwrap().warnings
    };
    let told = |all: &[String]| all.iter().filter(|one| one.contains(" is host ")).count();
    let sparse = warnings(
        |host| format!("hgx-h{:02}", host * 8),
        |host| format!("swp{}s0", host * 8 + 1),
    );
    assert_eq!(told(&sparse), 1, "{sparse:?}");
    assert!(sparse[0].contains("hgx-h08 is host 1"), "{sparse:?}");
    for dense in [
        warnings(
            |host| format!("hgx-h{}", host + 1),
            |host| format!("swp{}", host + 1),
        ),
        // Serial numbers, and ports that are split.
        warnings(
            |host| format!("gpu-{}", host * 37),
            |host| format!("swp{}s{}", host / 2 + 1, host % 2),
        ),
        warnings(
            |host| format!("gpu-{}", 9 - host),
            |host| format!("swp{}", 9 - host),
        ),
    ] {
        assert_eq!(told(&dense), 0, "{dense:?}");
    }
}

#[test]
fn the_order_of_links_decides_addresses_in_spcx_gen_only() {
    let both = |make: fn(Size, Tiers) -> Value, list: &str| {
        let value = make(SMALL, Tiers::Two);
        let mut turned = value.clone();
        turned
            .pointer_mut(list)
            .unwrap()
            .as_array_mut()
            .unwrap()
            .reverse();
        [value, turned].map(|value| rows(&plan_of(&[value], TWO).unwrap()))
    };
    let [before, after] = both(spcx, "/links");
    assert!(
        before[0].starts_with("rail-0 worker-su01-h01 172.16.0.0/31"),
        "{before:?}"
    );
    assert!(
        after[0].starts_with("rail-0 worker-su01-h02 172.16.0.0/31"),
        "{after:?}"
    );
    let [before, after] = both(air, "/content/links");
    assert_eq!(before, after);
}

/// An SU counts with plane and pod of the host's own attributes, and null is nothing.
#[test]
fn hosts_are_counted_in_their_own_group() {
    let end = |leaf: &str, node: &str, attributes: Value| {
        let mut of_host = json!({"role": "host", "rail": 0});
        of_host
            .as_object_mut()
            .unwrap()
            .extend(attributes.as_object().unwrap().clone());
        json!([{"node": node, "attributes": of_host}, {"node": leaf, "attributes": {"role": "leaf", "plane": 0}}])
    };
    let links = json!([
        end("l", "a", json!({"su": 0, "pod": 0})),
        end("l", "b", json!({"su": 1, "pod": 0})),
        end("l", "c", json!({"su": 1, "pod": null})),
        end("l", "b", json!({"su": 1, "pod": 0})),
        end("l", "d", json!({"su": 1, "pod": 0})),
    ]);
    let nodes = json!(["a", "b", "c", "d"].map(|name| json!({"name": name})));
    // b and c are both the first of their groups, which have one place: NVIDIA's tool gives both
    // the same /31.
    let faults = plan_of(&[json!({"nodes": nodes, "links": links})], TWO).unwrap_err();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].contains("links[2]: node c"), "{faults:?}");
}

#[test]
fn what_looks_wrong_is_told() {
    let mut value = spcx(SMALL, Tiers::Two);
    value["nodes"].as_array_mut().unwrap().remove(0);
    let nodes = value["nodes"].as_array_mut().unwrap();
    let again = nodes[1].clone();
    nodes.extend([json!({"name": "idle", "role": "host"}), again]);
    let links = &mut value["links"];
    links[0][0]["attributes"]["rail_group"] = json!([5, 6]);
    links[4][0]["attributes"]["su"] = json!(1);
    for index in [0, 4] {
        links[index][0]["interface"] = json!(format!("port {index}"));
    }
    let warnings = plan_of(&[value], TWO).unwrap().warnings;
    for told in [
        "worker-su01-h01",
        "host idle ",
        "nodes[8].name: worker-su01-h02 duplicates nodes[1]",
        "links[0][1].attributes.rail:…worker-su01-h01…leaf-p1-su001-r1",
        "links[4][0].attributes.su:…leaf-p1-su001-r1…worker-su01-h02",
        "links[0]: \"port 0\"",
    ] {
        assert!(
            warnings.iter().any(|warning| has(warning, told)),
            "{told}: {warnings:#?}"
        );
    }
    golden::says("plan", "topology: warnings", warnings.join("\n"));
    let mut value = spcx(Size { sus: 1, ..SMALL }, Tiers::Two);
    for number in 0..4 {
        value["links"][4 * number][1]["attributes"]["su"] = json!(null);
    }
    let warnings = plan_of(&[value], TWO).unwrap().warnings;
    assert!(
        warnings[0].contains("links[0][1].attributes.su: "),
        "{warnings:?}"
    );
}

/// One file per pod.
#[test]
fn several_files_make_one_plan() {
    let size = Size { pods: 2, ..SMALL };
    let whole = spcx(size, Tiers::Three);
    let part = |pod: u64| {
        let mut value = whole.clone();
        let name = format!("pod{:02}", pod + 1);
        let is_of_pod = |value: &Value| value.to_string().contains(&name);
        value["links"].as_array_mut().unwrap().retain(is_of_pod);
        value["nodes"].as_array_mut().unwrap().retain(is_of_pod);
        value
    };
    let parts = [part(1), part(0)];
    let plan = plan_of(&parts, THREE).unwrap();
    assert_eq!(
        rows(&plan),
        rows(&plan_of(std::slice::from_ref(&whole), THREE).unwrap())
    );
    let faults = plan_of(
        &[part(0), spcx(Size { hosts: 3, ..SMALL }, Tiers::Three)],
        THREE,
    )
    .unwrap_err();
    assert!(faults[0].starts_with("1.json:"), "{faults:?}");
    golden::says("plan", "topology: two files of one SU", &faults[0]);
}

#[test]
fn an_su_has_room_for_128_hosts() {
    let faults = plan_of(
        &[spcx(
            Size {
                hosts: 129,
                rails: 1,
                sus: 1,
                ..SMALL
            },
            Tiers::Two,
        )],
        TWO,
    )
    .unwrap_err();
    assert!(
        faults[0].contains(".node: node worker-su01-h129 "),
        "{faults:?}"
    );
}

/// Consequences of a wrong SU are not reported beside it, but at the place of the fault.
#[test]
fn a_host_that_strays_into_a_full_su_is_the_fault() {
    let mut value = spcx(
        Size {
            hosts: 128,
            rails: 1,
            ..SMALL
        },
        Tiers::Two,
    );
    value["links"][0][1]["attributes"]["su"] = json!(1);
    let texts = [text("topology.json", &value)];
    let plan = read(&texts, &TWO, None, &[]).unwrap();
    assert_eq!(plan.doubts.into_warnings().len(), 1);
    let Refusal { faults, .. } = read(&texts, &TWO, None, &[Doubt::OtherSu]).unwrap_err();
    let faults = lines(faults);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].contains("node worker-su02-h128 "), "{faults:?}");
}

/// The link is left out, and the rail that its host lacks for that is no doubt.
#[test]
fn a_link_with_a_fault_makes_no_doubt() {
    for end in [0, 1] {
        let mut value = spcx(SMALL, Tiers::Two);
        value["links"][4][end]["attributes"][["plane", "rail"][end]] = json!("x");
        let Refusal { doubts, faults } =
            read(&[text("topology.json", &value)], &TWO, None, &[]).unwrap_err();
        assert_eq!(
            (faults.len(), doubts.into_warnings()),
            (1, vec![]),
            "{faults:?}"
        );
    }
}

#[test]
fn a_file_that_is_wrong_throughout_ends_early() {
    let links = vec![json!({}); 5000];
    let faults = plan_of(&[json!({"nodes": [], "links": links})], TWO).unwrap_err();
    assert_eq!(faults.len(), MAX_FAULTS + 1);
    golden::says("plan", "topology: too many faults", &faults[MAX_FAULTS]);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        (0u64..10).prop_map(Value::from),
        "(host|leaf|unconnected|leaf-p1-su1-r1|a-su1-h1|rail1p1|rail1|é|)".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key = "(node|interface|attributes|role|rail|plane|su|pod|network_pci|rail1|name|model)";
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::btree_map(key, inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #[test]
    fn no_topology_makes_it_panic(ends in proptest::collection::vec(any_json(), 0..6), nodes in any_json()) {
        let links: Vec<_> = ends.chunks(2).map(|ends| json!(ends)).collect();
        let nodes = json!({"leaf-p1-su1-r1": nodes, "a-su1-h1": {"model": "host", "network_pci": {"rail1": 1}}});
        let spcx = json!({"nodes": ends, "links": links});
        let air = json!({"content": {"nodes": nodes, "links": links}});
        for scheme in [TWO, THREE] {
            let _ = plan_of(std::slice::from_ref(&spcx), scheme);
            let _ = plan_of(&[air.clone(), spcx.clone()], scheme);
        }
    }

    /// One value of a good file is another one.
    #[test]
    fn no_change_of_a_topology_makes_it_panic(which in 0usize..400, value in any_json(), is_air in any::<bool>()) {
        let mut whole = if is_air { air(SMALL, Tiers::Two) } else { spcx(SMALL, Tiers::Two) };
        let mut left = which;
        change(&mut whole, &mut left, &value);
        let _ = plan_of(&[whole], TWO);
    }
}

/// Puts `to` in the place of the nth value.
fn change(value: &mut Value, left: &mut usize, to: &Value) {
    match left.checked_sub(1) {
        Some(less) => *left = less,
        None => {
            *value = to.clone();
            *left = usize::MAX;
            return;
        }
    }
    match value {
        Value::Array(list) => list.iter_mut().for_each(|inner| change(inner, left, to)),
        Value::Object(map) => map.values_mut().for_each(|inner| change(inner, left, to)),
        _ => (),
    }
}
