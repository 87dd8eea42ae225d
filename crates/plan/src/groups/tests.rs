use std::collections::BTreeSet;

use super::*;
use crate::document;
use crate::fabric;
use crate::slurm;
use crate::volcano;

fn plan(text: &str) -> Plan {
    let mut plan = fabric::read(&document::parse("f", text.as_bytes()).unwrap()[..1]).unwrap();
    plan.check().unwrap();
    plan
}

/// Two SUs of four nodes, with two rails.
fn two_sus(more: &str) -> Plan {
    plan(&format!(
        "fabric: spectrum-x\nrails: 2\nsus: 2\nhostsPerSU: 4\nnodeName: n{{node}}\n{more}"
    ))
}

fn text(files: Result<Vec<crate::File>>) -> String {
    files.unwrap().remove(0).text
}

fn tree(plan: &Plan) -> String {
    let text = text(slurm::write(plan, slurm::Plugin::Tree));
    text.split_once('\n').unwrap().1.to_owned()
}

#[test]
fn an_su_is_a_group_if_its_nodes_have_the_same_leaves() {
    let expected = "SwitchName=su0 Nodes=n[0-3]\nSwitchName=su1 Nodes=n[4-7]\nSwitchName=fabric Switches=su[0-1]\n";
    assert_eq!(tree(&two_sus("")), expected);
    let plan = two_sus("leafName: leaf-{su}-{rail}\n");
    assert_eq!(tree(&plan), expected);
    let block = text(slurm::write(&plan, slurm::Plugin::Block));
    let expected = "BlockName=su0 Nodes=n[0-3]\nBlockName=su1 Nodes=n[4-7]\nBlockSizes=4\n";
    assert_eq!(block.split_once('\n').unwrap().1, expected);
}

#[test]
fn nodes_of_an_su_that_share_no_leaf_are_groups_of_their_own() {
    let plan = two_sus("leafName: leaf-{su}-{host/2}-{rail}\n");
    assert_eq!(
        tree(&plan),
        "SwitchName=su0-leaf-0-0-0 Nodes=n[0-1]\nSwitchName=su0-leaf-0-1-0 Nodes=n[2-3]\n\
         SwitchName=su1-leaf-1-0-0 Nodes=n[4-5]\nSwitchName=su1-leaf-1-1-0 Nodes=n[6-7]\n\
         SwitchName=su0 Switches=su0-leaf-0-0-0,su0-leaf-0-1-0\nSwitchName=su1 Switches=su1-leaf-1-0-0,su1-leaf-1-1-0\n\
         SwitchName=fabric Switches=su[0-1]\n"
    );
    let place = &json(&plan)["n6"];
    let expected = json!({"pod": 0, "su": 1, "podName": null, "suName": "su1", "leaves": ["leaf-1-1-0", "leaf-1-1-1"],
        "switches": ["su1-leaf-1-1-0", "su1", "fabric"]});
    assert_eq!(*place, expected);
}

#[test]
fn pods_are_between_sus_and_the_fabric() {
    let plan = plan(
        "fabric: spectrum-x\ntiers: 3\nrails: 1\npods: 2\nsus: [2, 1]\nhostsPerSU: 2\nnodeName: n{node}\n",
    );
    let written = text(volcano::write(&plan));
    let document = document::parse("hypernodes.yaml", written.as_bytes()).unwrap();
    let shown = |document: &document::Document| {
        let root = document.root();
        let members = root.get("spec.members").unwrap();
        let names = members
            .items()
            .map(|member| member.text("selector.exactMatch.name").unwrap().to_owned());
        let kinds: BTreeSet<_> = members
            .items()
            .map(|member| member.text("type").unwrap().to_owned())
            .collect();
        let tier = &root.get("spec.tier").unwrap().value;
        format!(
            "{} {tier} {kinds:?} {}",
            root.text("metadata.name").unwrap(),
            names.collect::<Vec<_>>().join(" ")
        )
    };
    assert_eq!(
        document.iter().map(shown).collect::<Vec<_>>(),
        [
            "pod0-su0 1 {\"Node\"} n0 n1",
            "pod0-su1 1 {\"Node\"} n2 n3",
            "pod1-su0 1 {\"Node\"} n4 n5",
            "pod0 2 {\"HyperNode\"} pod0-su0 pod0-su1",
            "fabric 3 {\"HyperNode\"} pod0 pod1-su0",
        ]
    );
    // The names for labels are there, too, where one of them stands for both.
    let place = &json(&plan)["n4"];
    assert_eq!(
        (&place["podName"], &place["suName"]),
        (&json!("pod1"), &json!("pod1-su0"))
    );
    assert_eq!(place["switches"], json!(["pod1-su0", "fabric"]));
}

/// Manifests have no SUs.
#[test]
fn without_positions_leaves_or_formulas_decide() {
    let without = |more: &str, routes: bool| {
        let mut plan = two_sus(more);
        plan.positions.clear();
        if !routes {
            plan.pools
                .iter_mut()
                .for_each(|pool| pool.spec.routes.clear());
        }
        plan
    };
    assert_eq!(tree(&without("", true)), tree(&two_sus("")));
    let leaves = "leafName: leaf-{su}-{rail}\n";
    assert_eq!(
        tree(&without(leaves, false)),
        "SwitchName=leaf-0-0 Nodes=n[0-3]\nSwitchName=leaf-1-0 Nodes=n[4-7]\nSwitchName=fabric \
         Switches=leaf-0-0,leaf-1-0\n"
    );
    let error = switches(&without("", false)).unwrap_err().to_string();
    golden::says("plan", "--to slurm: no groups", error);
    assert_eq!(json(&without("", false)), json!({}));
}

#[test]
fn names_that_a_target_cannot_have_are_refused() {
    let mut plan = two_sus("leafName: Leaf-{su}-{host/2}-{rail}\n");
    let error = volcano::write(&plan).unwrap_err().to_string();
    assert!(error.contains("leaf group su0-Leaf-0-0-0: "), "{error}");
    for cable in plan
        .pools
        .iter_mut()
        .flat_map(|pool| pool.cables.iter_mut().flatten())
    {
        cable.leaf.as_mut().unwrap().push_str(&"x".repeat(64));
    }
    let error = slurm::write(&plan, slurm::Plugin::Tree)
        .unwrap_err()
        .to_string();
    assert!(error.contains("64"), "{error}");
    plan.positions.clear();
    plan.pools
        .iter_mut()
        .for_each(|pool| pool.spec.routes.clear());
    let mut leaves = ["fabric", "fabric", "other", "other"].into_iter().cycle();
    for cable in plan
        .pools
        .iter_mut()
        .flat_map(|pool| pool.cables.iter_mut().flatten())
    {
        cable.leaf = leaves.next().map(str::to_owned);
    }
    let error = switches(&plan).unwrap_err().to_string();
    assert!(error.starts_with("leaf fabric "), "{error}");
}
