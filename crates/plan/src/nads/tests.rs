use super::*;
use crate::document;
use crate::plan::Cable;
use crate::plan::tests::{cabled, plan};
use crate::scheme::{Family, HostLink, Mode};

fn configs(plan: &mut Plan) -> Vec<(String, serde_json::Value)> {
    let text = write(plan, &Networks::default(), Form::List, None)
        .unwrap()
        .remove(0)
        .text;
    let documents = document::parse("nads.yaml", text.as_bytes()).unwrap();
    let config = |document: &document::Document| {
        let root = document.root();
        let name = root.text("metadata.name").unwrap();
        let config = root
            .get("spec.config")
            .unwrap()
            .json()
            .unwrap()
            .root()
            .value
            .clone();
        assert_eq!(config["name"], name);
        assert_eq!(
            root.text("metadata.annotations.k8s.v1.cni.cncf.io/resourceName")
                .unwrap(),
            format!("nvidia.com/{name}")
        );
        (name.to_owned(), config["plugins"][0].clone())
    };
    documents.iter().map(config).collect()
}

fn shown(plan: &mut Plan) -> Vec<String> {
    let shown = |(name, plugin): (String, serde_json::Value)| {
        format!(
            "{name} {} {} {}",
            plugin["rail"], plugin["mtu"], plugin["ipam"]["pool"]
        )
    };
    configs(plan).into_iter().map(shown).collect()
}

/// The networks of conf/nads.yaml and of conf/nads-single.yaml are those of a plan of eight rails.
#[test]
fn the_examples_are_what_is_written() {
    let links: Vec<_> = (0..8)
        .map(|rail| HostLink {
            rail,
            cable: Cable::default(),
            ..cabled().remove(0)
        })
        .collect();
    let mut plan = plan(Mode::None, Family::Ipv4, &links);
    let mut written = |form| {
        write(&mut plan, &Networks::default(), form, None)
            .unwrap()
            .remove(0)
            .text
    };
    let from_the_first = |text: &str| text[text.find("---\n").unwrap()..].to_owned();
    assert_eq!(
        from_the_first(&written(Form::List)),
        from_the_first(include_str!("../../../../conf/nads.yaml"))
    );
    assert_eq!(
        written(Form::Single),
        include_str!("../../../../conf/nads-single.yaml")
    );
    let one = Networks {
        is_one: true,
        resource: None,
    };
    let one = write(&mut plan, &one, Form::List, None)
        .unwrap()
        .remove(0)
        .text;
    assert_eq!(one, include_str!("../../../../conf/nads-one.yaml"));
}

/// Of the planes of a rail, one may be dead; and a leaf port without an address cannot be asked.
#[test]
fn a_network_asks_for_its_leaf_port_if_there_is_one_to_ask() {
    let probes = |plan: &mut Plan| {
        let mut probes = Vec::new();
        for (_, plugin) in configs(plan) {
            probes.push(plugin["gatewayProbe"] == "require");
        }
        probes
    };
    let mut rails = plan(Mode::None, Family::Ipv4, &cabled());
    assert_eq!(probes(&mut rails), [true, true]);
    let unnumbered = &mut rails.pools[1].spec;
    unnumbered.gateway_index = None;
    for row in &mut unnumbered.static_allocations {
        row.gateway.clear();
    }
    assert_eq!(probes(&mut rails), [true, false]);
    let mut planes = plan(Mode::Swplb, Family::Ipv4, &cabled());
    assert!(!probes(&mut planes).contains(&true));
}

/// ADD would not know them, and no pod would start.
#[test]
fn one_network_needs_pools_that_say_their_rails() {
    let one = Networks {
        is_one: true,
        resource: None,
    };
    let mut plan = plan(Mode::None, Family::Dual, &cabled());
    let written =
        |plan: &mut Plan| write(plan, &one, Form::List, None).map_err(|error| error.to_string());
    assert_eq!(
        written(&mut plan).unwrap()[0].text.matches("---").count(),
        1
    );
    plan.pools[3].rail = None;
    let error = written(&mut plan).unwrap_err();
    assert!(
        error.contains("pool rail-1-v6") && error.contains("cidrpool rail-1-v6"),
        "{error}"
    );
    plan.pools.iter_mut().for_each(|pool| pool.rail = None);
    assert!(written(&mut plan).is_ok(), "the names count from 0");
    plan.pools.retain(|pool| pool.name.starts_with("rail-1"));
    assert!(written(&mut plan).is_err());
}

#[test]
fn a_resource_is_a_pattern_and_no_two_networks_have_the_same() {
    let mut plan = plan(Mode::None, Family::Ipv4, &cabled());
    let mut written = |is_one: bool, resource: &str| {
        let networks =
            Networks::new(is_one, Some(resource)).map_err(|error| format!("{error:#}"))?;
        let text = write(&mut plan, &networks, Form::List, None)
            .map_err(|error| error.to_string())?
            .remove(0)
            .text;
        let named = text.lines().filter_map(|line| {
            line.split_once("resourceName: ")
                .map(|(_, name)| name.to_owned())
        });
        Ok::<Vec<String>, String>(named.collect())
    };
    assert_eq!(
        written(false, "openshift.io/rail_{rail+1}").unwrap(),
        ["openshift.io/rail_1", "openshift.io/rail_2"]
    );
    assert_eq!(written(true, "amd.com/vnic").unwrap(), ["amd.com/vnic"]);
    let mut said = Vec::new();
    for (is_one, resource, told) in [
        (false, "amd.com/vnic", "amd.com/vnic "),
        (true, "amd.com/vnic{rail}", "without {rail}"),
        (false, "rail-{rail}", "rail-0"),
        (false, "A.com/rail-{rail}", "A.com/rail-0"),
        (false, "a.com/-{rail}", "a.com/-0"),
        (false, "a.com/{su}", "--resource"),
    ] {
        let error = written(is_one, resource).unwrap_err();
        assert!(error.contains(told), "{resource}: {error}");
        said.push(error);
    }
    golden::says("plan", "--to nads: --resource", said.join("\n"));
}

#[test]
fn a_namespace_is_that_of_every_network() {
    for form in [Form::List, Form::Single] {
        let text = write(
            &mut plan(Mode::None, Family::Ipv4, &cabled()),
            &Networks::default(),
            form,
            Some("1"),
        )
        .unwrap()
        .remove(0)
        .text;
        let documents = document::parse("nads.yaml", text.as_bytes()).unwrap();
        assert_eq!(documents.len(), 2);
        assert!(
            documents
                .iter()
                .all(|nad| nad.root().text("metadata.namespace") == Some("1")),
            "{text}"
        );
    }
}

#[test]
fn both_families_of_a_rail_are_one_network() {
    let mut plan = plan(Mode::None, Family::Dual, &cabled());
    assert_eq!(
        shown(&mut plan),
        [
            "rail-0 0 9000 \"rail-0,rail-0-v6\"",
            "rail-1 1 9000 \"rail-1,rail-1-v6\""
        ]
    );
}

/// A pod with both has two routing tables: the tables are counted by `rail`.
#[test]
fn planes_of_a_rail_are_networks_with_numbers_of_their_own() {
    let mut links = cabled();
    links.push(HostLink {
        plane: 1,
        cable: Cable::default(),
        ..links[0].clone()
    });
    links[0].cable.mtu = Some(4000);
    let mut plan = plan(Mode::Swplb, Family::Ipv4, &links);
    // ADD compares the two numbers.
    assert_eq!(
        plan.check().unwrap()["rail-0-plane-1"]["worker-gpu-0"].rail,
        Some(8)
    );
    assert_eq!(
        shown(&mut plan),
        [
            "rail-0-plane-0 0 4000 \"rail-0-plane-0\"",
            "rail-0-plane-1 8 9000 \"rail-0-plane-1\"",
            "rail-1-plane-0 1 9000 \"rail-1-plane-0\""
        ]
    );
}

#[test]
fn pools_without_a_rail_get_the_one_of_their_addresses_or_names() {
    let numbered = |plan: &mut Plan| {
        crate::rails::number(plan);
        shown(plan)
    };
    let unnamed = |names: [&str; 4]| {
        let mut plan = plan(Mode::None, Family::Dual, &cabled());
        for (pool, name) in plan.pools.iter_mut().zip(names) {
            (pool.rail, pool.name, pool.cables) = (None, name.into(), Vec::new());
        }
        plan
    };
    let mut plan = unnamed(["gpu-a", "7", "gpu-b", "true"]);
    assert_eq!(
        numbered(&mut plan),
        ["gpu-a 0 9000 \"gpu-a,7\"", "gpu-b 1 9000 \"gpu-b,true\""]
    );
    assert!(
        ["gpu-a is rail 0", "7 is rail 0", "gpu-b is rail 1"]
            .iter()
            .all(|part| plan.warnings[0].contains(part)),
        "{:?}",
        plan.warnings
    );
    // Addresses take precedence over names: this deployment counts from 1.
    let mut plan = unnamed(["rail-1", "rail-1-v6", "rail-2", "rail-2-v6"]);
    assert_eq!(
        numbered(&mut plan),
        [
            "rail-1 0 9000 \"rail-1,rail-1-v6\"",
            "rail-2 1 9000 \"rail-2,rail-2-v6\""
        ]
    );

    // Addresses that no formula makes.
    let other = |names: [&str; 4]| {
        let mut plan = unnamed(names);
        plan.pools
            .iter_mut()
            .for_each(|pool| pool.spec.routes.clear());
        plan
    };
    let mut plan = other(["rail-1", "rail1-v6", "rail-0", "rail0-v6"]);
    assert_eq!(
        numbered(&mut plan),
        [
            "rail-0 0 9000 \"rail-0,rail0-v6\"",
            "rail-1 1 9000 \"rail-1,rail1-v6\""
        ]
    );
    assert!(
        plan.warnings[0].contains("rail-1 is rail 1"),
        "{:?}",
        plan.warnings
    );
    for names in [
        ["rail-1", "rail-1-v6", "rail-2", "rail-2-v6"],
        ["a", "b", "c", "d"],
        ["rail-0", "rail-0-v6", "rail-0-b", "x"],
    ] {
        let mut plan = other(names);
        assert!(
            numbered(&mut plan)
                .iter()
                .all(|network| network.contains(" null 9000 ")),
            "{names:?}"
        );
        let told = &plan.warnings[0];
        assert!(told.contains(&names.join(", ")), "{told}");
        assert!(
            told.contains(&format!("cidrpool {} rail-cni/rail=0", names[0])),
            "{told}"
        );
    }
    // One of several.
    let mut plan = other(["rail-0", "rail-0-v6", "rail-1", "rail-1-v6"]);
    plan.pools[0].rail = Some(0);
    assert_eq!(
        numbered(&mut plan)
            .iter()
            .filter(|network| network.contains(" null "))
            .count(),
        3
    );
    assert!(
        plan.warnings[0].contains("rail-0-v6, rail-1, rail-1-v6"),
        "{:?}",
        plan.warnings
    );
}

#[test]
fn names_that_kubernetes_refuses_are_refused() {
    for name in ["Rail-0", "rail_0", "rail.", "-rail", "a..b", ""] {
        let mut plan = plan(Mode::None, Family::Ipv4, &cabled());
        plan.pools[0].name = name.into();
        let error = write(&mut plan, &Networks::default(), Form::List, None)
            .unwrap_err()
            .to_string();
        assert!(error.contains(&format!("pool {name}")), "{name}: {error}");
    }
    let mut plan = plan(Mode::None, Family::Ipv4, &cabled());
    plan.pools[0].rail = Some(255);
    let error = write(&mut plan, &Networks::default(), Form::List, None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("127"), "{error}");
}
