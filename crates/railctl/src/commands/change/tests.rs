use super::*;
use crate::store::tests::allocation;
use rail_cni::ipam::assign::take;
use rail_cni::ipam::lease::{Ask, Holder};
use std::path::Path;

/// The plan is all that there should be.
const PRUNE: Terms = Terms {
    prune: true,
    scope: Scope::WholeStore,
    replaces: BTreeMap::new(),
};

fn node(temp: &Path) -> Node {
    let dirs = serde_json::json!({"storeDir": temp.join("store"), "runDir": temp.join("run")});
    serde_json::from_value(dirs).unwrap()
}

fn written(node: &Node, import: &Import, force: Force) -> Result<()> {
    write(node, Writer::new(node)?, import, force)
}

/// `n` has `prefix` in the pool `p`.
fn plan(prefix: &str, gateway: &str) -> BTreeMap<String, BTreeMap<String, Allocation>> {
    let ours = BTreeMap::from([("n".to_owned(), allocation(prefix, Some(gateway)))]);
    BTreeMap::from([("p".to_owned(), ours)])
}

fn nothing() -> BTreeMap<String, BTreeMap<String, Allocation>> {
    BTreeMap::from([("p".to_owned(), BTreeMap::new())])
}

/// A pod on `n` that got 10.0.0.0 of 10.0.0.0/31. Its namespace is the file `netns`.
fn pod(temp: &Path) -> Node {
    let node = node(temp);
    let pools = plan("10.0.0.0/31", "10.0.0.1");
    written(
        &node,
        &changes(&node, &pools, &Nodes::All, &PRUNE).unwrap(),
        Force::No,
    )
    .unwrap();
    std::fs::write(temp.join("netns"), "").unwrap();
    let holder = serde_json::json!({"network": "net", "containerID": "c1", "ifname": "net1",
        "netns": rail_cni::netns::NetnsId::of(&temp.join("netns")).unwrap(), "pod": "ai/trainer"});
    let holder: Holder = serde_json::from_value(holder).unwrap();
    let ask = Ask::all(vec!["p".into()], vec![pools["p"]["n"].clone()], &[]).unwrap();
    take(&node, "n", &ask, &holder, || Ok(true)).unwrap();
    node
}

/// Live leases outside the new plan are named and nothing is written without `--force`.
#[test]
fn what_a_running_pod_would_lose_is_named_and_not_written() {
    let temp = tempfile::tempdir().unwrap();
    let node = pod(temp.path());
    for (pools, why) in [
        (nothing(), "the plan"),
        (plan("10.0.0.2/31", "10.0.0.3"), "10.0.0.2/31"),
        (plan("10.0.0.0/31", "10.0.0.0"), "10.0.0.0/31"),
    ] {
        for nodes in [Nodes::All, Nodes::One("n".to_owned())] {
            let import = changes(&node, &pools, &nodes, &PRUNE).unwrap();
            let told = import.outside[0].to_string();
            let (before, after) = told.split_once("since ").unwrap();
            let (_, after) = after.split_once('Z').unwrap();
            golden::says(
                "railctl",
                &format!("import: a lease outside, {why}"),
                format!("{before}since TIME{after}"),
            );
            for part in ["10.0.0.0", "pod ai/trainer", "container c1", "since 2", why] {
                assert!(told.contains(part), "{part}: {told}");
            }
            let error = written(&node, &import, Force::No).unwrap_err();
            let Some(Obstacle::Held(leases)) = error.downcast_ref() else {
                panic!("{error:#}")
            };
            let json = leases[0].json();
            for (key, value) in [
                ("node", "n"),
                ("pool", "p"),
                ("address", "10.0.0.0"),
                ("pod", "ai/trainer"),
                ("ifname", "net1"),
                ("text", &told),
            ] {
                assert_eq!(json[key], value);
            }
        }
    }
    assert_eq!(
        store::load(&node, "n", &["p".to_owned()]).unwrap(),
        [plan("10.0.0.0/31", "10.0.0.1")["p"]["n"].clone()]
    );
    written(
        &node,
        &changes(&node, &nothing(), &Nodes::All, &PRUNE).unwrap(),
        Force::Yes,
    )
    .unwrap();
    assert!(store::load(&node, "n", &["p".to_owned()]).is_err());
    // The store says nothing of it any more, but the pod is still there.
    let other = changes(&node, &plan("10.0.0.2/31", "10.0.0.3"), &Nodes::All, &PRUNE).unwrap();
    assert_eq!(other.outside.len(), 1);
}

/// Two fabrics of a node that were planned one after the other both have a rail 0.
#[test]
fn a_rail_that_another_pool_of_the_node_has_is_told() {
    let temp = tempfile::tempdir().unwrap();
    let node = node(temp.path());
    let of = |pool: &str, prefix: &str, gateway: &str, rail: u8| {
        let mut pools = plan(prefix, gateway);
        let mut allocations = pools.remove("p").unwrap();
        allocations.get_mut("n").unwrap().rail = Some(rail);
        BTreeMap::from([(pool.to_owned(), allocations)])
    };
    let terms = Terms {
        scope: Scope::WholeStore,
        ..Terms::default()
    };
    let told = |pools: &Pools| {
        changes(&node, pools, &Nodes::All, &terms)
            .unwrap()
            .warnings
            .join("\n")
    };
    let compute = of("rail-0", "10.0.0.0/31", "10.0.0.1", 0);
    written(
        &node,
        &changes(&node, &compute, &Nodes::All, &terms).unwrap(),
        Force::No,
    )
    .unwrap();
    let storage = |rail| told(&of("storage-0", "10.50.0.0/31", "10.50.0.1", rail));
    assert!(storage(0).contains("rail 0 of node n"), "{}", storage(0));
    golden::says("railctl", "import: two pools of one rail", storage(0));
    assert!(!storage(8).contains("rail 8 of node n"));
    assert!(!told(&compute).contains("rail 0 of node n"));
}

#[test]
fn the_dead_and_the_unchanged_stop_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let node = pod(temp.path());
    let same = changes(&node, &plan("10.0.0.0/31", "10.0.0.1"), &Nodes::All, &PRUNE).unwrap();
    assert!(same.outside.is_empty() && same.warnings.is_empty());
    std::fs::remove_file(temp.path().join("netns")).unwrap();
    assert!(
        changes(&node, &nothing(), &Nodes::All, &PRUNE)
            .unwrap()
            .outside
            .is_empty()
    );
}

#[test]
fn a_pod_that_keeps_its_address_but_not_its_gateway_is_a_warning() {
    let temp = tempfile::tempdir().unwrap();
    let node = pod(temp.path());
    let mut pools = plan("10.0.0.0/31", "10.0.0.1");
    let ours = pools.get_mut("p").unwrap().get_mut("n").unwrap();
    ours.gateway = None;
    let import = changes(&node, &pools, &Nodes::All, &PRUNE).unwrap();
    assert!(import.outside.is_empty());
    assert!(
        import.warnings[0].contains("10.0.0.0") && import.warnings[0].contains("created again")
    );
    written(&node, &import, Force::No).unwrap();
}

/// The side of the switch is somebody else's, and `--strict` refuses what has a warning.
#[test]
fn a_node_that_gets_another_prefix_or_gateway_is_a_warning() {
    let temp = tempfile::tempdir().unwrap();
    let node = pod(temp.path());
    std::fs::remove_file(temp.path().join("netns")).unwrap();
    for (prefix, gateway, count) in [
        ("10.0.0.0/31", "10.0.0.1", 0),
        ("10.0.0.2/31", "10.0.0.3", 1),
        ("10.0.0.0/31", "10.0.0.0", 1),
    ] {
        let import = changes(&node, &plan(prefix, gateway), &Nodes::All, &PRUNE).unwrap();
        assert_eq!(
            import.warnings.len(),
            count,
            "{prefix} {gateway}: {:?}",
            import.warnings
        );
        if let [told] = &import.warnings[..] {
            golden::says("railctl", "import: other prefixes or gateways", told);
            assert!(told.starts_with("node n "), "{told}");
        }
    }
    assert!(
        changes(&node, &nothing(), &Nodes::All, &PRUNE)
            .unwrap()
            .warnings
            .is_empty()
    );
    // Pools that get other names leave the addresses on their cables.
    let of = |pools: &[(&str, &str, &str)]| -> BTreeMap<_, _> {
        let pool = |(name, prefix, gateway): &(&str, &str, &str)| {
            let ours = BTreeMap::from([("n".to_owned(), allocation(prefix, Some(gateway)))]);
            ((*name).to_owned(), ours)
        };
        pools.iter().map(pool).collect()
    };
    let (first, second) = (("10.0.0.0/31", "10.0.0.1"), ("10.0.0.2/31", "10.0.0.3"));
    let before = of(&[("p", first.0, first.1), ("q", second.0, second.1)]);
    written(
        &node,
        &changes(&node, &before, &Nodes::All, &PRUNE).unwrap(),
        Force::No,
    )
    .unwrap();
    let after = of(&[("q", first.0, first.1), ("r", second.0, second.1)]);
    let import = changes(&node, &after, &Nodes::All, &PRUNE).unwrap();
    assert!(import.warnings.is_empty(), "{:?}", import.warnings);
}

/// Its holder is unknown, so it counts as alive.
#[test]
fn a_lease_that_cannot_be_read_stops_too() {
    let temp = tempfile::tempdir().unwrap();
    let node = pod(temp.path());
    let folder = temp.path().join("run/leases");
    let file = std::fs::read_dir(folder)
        .unwrap()
        .flatten()
        .find(|file| file.path().extension().is_some());
    std::fs::write(file.unwrap().path(), "x").unwrap();
    let import = changes(&node, &nothing(), &Nodes::All, &PRUNE).unwrap();
    assert!(import.outside[0].to_string().contains("--address 10.0.0.0"));
    assert!(written(&node, &import, Force::No).is_err());
}

/// `a` and `b` have the first two prefixes of `p`, of which `gone` are taken out; `new` have the
/// same ones.
fn two(gone: &[&str], new: &[(&str, &str)]) -> Pools {
    let all = [("a", "10.0.0.0/31"), ("b", "10.0.0.2/31")];
    let rows = all
        .iter()
        .filter(|(name, _)| !gone.contains(name))
        .chain(new);
    let rows = rows.map(|(name, prefix)| ((*name).to_owned(), allocation(prefix, None)));
    BTreeMap::from([("p".to_owned(), rows.collect())])
}

fn terms(prune: bool, replaces: &[(&str, &str)]) -> Terms {
    let replaces = replaces
        .iter()
        .map(|(new, old)| ((*new).to_owned(), (*old).to_owned()))
        .collect();
    Terms {
        prune,
        scope: Scope::WholeStore,
        replaces,
    }
}

fn shown(import: &Import) -> Vec<String> {
    let shown = |line: &Line| {
        let place = line
            .takes_place_of
            .as_ref()
            .map_or_else(String::new, |other| format!(" of {other}"));
        format!("{} {}{place}", line.node_name, line.change())
    };
    import.lines.iter().map(shown).collect()
}

#[test]
fn a_node_that_the_plan_no_longer_names_stays_until_it_is_pruned() {
    let temp = tempfile::tempdir().unwrap();
    let node = node(temp.path());
    let put = |pools: &Pools, nodes: &Nodes, terms: &Terms| {
        let import = changes(&node, pools, nodes, terms).unwrap();
        written(&node, &import, Force::No).unwrap();
        (shown(&import), import.warnings)
    };
    put(&two(&[], &[]), &Nodes::All, &Terms::default());
    for nodes in [Nodes::All, Nodes::Own("b".into()), Nodes::All] {
        let (lines, warnings) = put(&two(&["a"], &[]), &nodes, &terms(false, &[]));
        assert_eq!(lines, ["b same"]);
        assert_eq!(
            warnings.len(),
            usize::from(matches!(nodes, Nodes::All)),
            "{warnings:?}"
        );
        for warning in warnings {
            golden::says("railctl", "import: a node is not in the plan", &warning);
            assert!(warning.starts_with("node a "), "{warning}");
        }
    }
    let (lines, warnings) = put(
        &two(&["a"], &[]),
        &Nodes::Own("a".into()),
        &terms(false, &[]),
    );
    assert!(lines.is_empty());
    assert!(warnings[0].starts_with("node a "), "{warnings:?}");
    assert!(warnings[1].contains("--prune"), "{warnings:?}");
    let own = changes(
        &node,
        &two(&["a"], &[]),
        &Nodes::Own("a".into()),
        &terms(true, &[]),
    )
    .unwrap_err();
    assert!(own.to_string().contains("--node a"), "{own}");
    assert_eq!(
        put(
            &two(&["a"], &[]),
            &Nodes::One("a".into()),
            &terms(true, &[])
        )
        .0,
        ["a removed"]
    );
    assert_eq!(
        put(&two(&["a"], &[]), &Nodes::All, &terms(true, &[])).0,
        ["b same"]
    );
}

/// Of a node without anything in the store, the name is wrong.
#[test]
fn a_node_that_the_plan_no_longer_names_stays_although_its_pools_have_other_names() {
    let temp = tempfile::tempdir().unwrap();
    let node = node(temp.path());
    let first = changes(&node, &two(&[], &[]), &Nodes::All, &Terms::default()).unwrap();
    written(&node, &first, Force::No).unwrap();
    let mut renamed = two(&["a"], &[]);
    let rows = renamed.remove("p").unwrap();
    renamed.insert("q".to_owned(), rows);
    for (scope, pool) in [(Scope::OwnPools, 0), (Scope::WholeStore, 1)] {
        let terms = Terms {
            scope,
            ..Terms::default()
        };
        let import = changes(&node, &renamed, &Nodes::Own("a".into()), &terms).unwrap();
        assert!(import.lines.is_empty());
        assert_eq!(import.warnings.len(), 1 + pool, "{:?}", import.warnings);
        let mut all = import.warnings.iter().zip(["node a ", "pool p "]);
        assert!(
            all.all(|(warning, what)| warning.starts_with(what)),
            "{:?}",
            import.warnings
        );
        golden::says(
            "railctl",
            &format!("import: a renamed pool, {scope:?}"),
            import.warnings.join("\n"),
        );
        let unknown = changes(&node, &renamed, &Nodes::Own("c".into()), &terms).unwrap_err();
        assert!(unknown.to_string().contains("node c"), "{unknown}");
    }
}

#[test]
fn a_node_takes_the_place_of_another_only_when_that_is_meant() {
    let temp = tempfile::tempdir().unwrap();
    let node = node(temp.path());
    let put = |pools: &Pools, nodes: &Nodes, terms: &Terms| {
        let import = changes(&node, pools, nodes, terms).unwrap();
        let told: Vec<_> = import.taken.iter().map(Taken::to_string).collect();
        let written = written(&node, &import, Force::No);
        assert_eq!(written.is_err(), !told.is_empty(), "{written:?}");
        if written.is_ok() {
            Ok(shown(&import))
        } else {
            Err(told.join("; "))
        }
    };
    put(&two(&[], &[]), &Nodes::All, &terms(false, &[])).unwrap();
    let new = two(&["a"], &[("c", "10.0.0.0/31")]);
    for nodes in [Nodes::All, Nodes::Own("c".into())] {
        let told = put(&new, &nodes, &terms(false, &[])).unwrap_err();
        golden::says("railctl", "import: a prefix of another node", &told);
        for part in [
            "node c ",
            "10.0.0.0/31",
            "node a in pool p",
            "--replaces c=a",
            "--prune",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
    // A part of it, or more than it.
    for prefix in ["10.0.0.0/30", "10.0.0.0/32"] {
        let new = two(&["a", "b"], &[("c", prefix)]);
        assert!(
            put(&new, &Nodes::All, &terms(false, &[]))
                .unwrap_err()
                .contains("node c "),
            "{prefix}"
        );
    }
    for (pairs, why) in [
        (&[("c", "b")][..], "replaces b"),
        (&[("d", "a")], "replaces"),
        (&[("b", "a"), ("c", "a")], " a"),
    ] {
        let error = changes(&node, &new, &Nodes::All, &terms(false, pairs))
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{error}");
        golden::says("railctl", &format!("import: --replaces {pairs:?}"), error);
    }
    let replaced = terms(false, &[("c", "a")]);
    assert_eq!(
        put(&new, &Nodes::Own("c".into()), &replaced).unwrap(),
        ["a removed", "c new of a"]
    );
    assert_eq!(
        put(&new, &Nodes::All, &replaced).unwrap(),
        ["b same", "c same"]
    );
    // With two rows that move, the row decides.
    let swapped = two(&["b"], &[("b", "10.0.0.0/31"), ("c", "10.0.0.2/31")]);
    let swapped = BTreeMap::from([("p".to_owned(), {
        let mut rows = swapped["p"].clone();
        rows.remove("a");
        rows
    })]);
    assert_eq!(
        put(&swapped, &Nodes::Own("b".into()), &terms(false, &[])).unwrap(),
        ["b changed of c"]
    );
}

/// Its pods hold addresses in the pool of the old name, of which the new one knows nothing.
#[test]
fn a_pool_with_another_name_waits_for_the_pods_of_the_old_one() {
    let temp = tempfile::tempdir().unwrap();
    let node = pod(temp.path());
    let mut pools = plan("10.0.0.0/31", "10.0.0.1");
    let rows = pools.remove("p").unwrap();
    pools.insert("q".to_owned(), rows);
    for terms in [terms(false, &[]), terms(true, &[])] {
        let import = changes(&node, &pools, &Nodes::Own("n".into()), &terms).unwrap();
        let told = import.outside[0].to_string();
        assert!(told.contains("pool p: node n: 10.0.0.0 "), "{told}");
        assert!(written(&node, &import, Force::No).is_err());
    }
    std::fs::remove_file(temp.path().join("netns")).unwrap();
    // Both would give the address.
    let import = changes(&node, &pools, &Nodes::Own("n".into()), &terms(false, &[])).unwrap();
    let told = import.taken[0].to_string();
    golden::says("railctl", "import: an address of another pool", &told);
    assert!(told.contains("--prune"), "{told}");
    assert!(written(&node, &import, Force::No).is_err());
    let import = changes(&node, &pools, &Nodes::Own("n".into()), &terms(true, &[])).unwrap();
    written(&node, &import, Force::No).unwrap();
}

/// A node whose name changed has its pods under the old one.
#[test]
fn a_pod_of_the_node_that_is_replaced_stops_the_plan() {
    let temp = tempfile::tempdir().unwrap();
    let node = pod(temp.path());
    let mut pools = plan("10.0.0.0/31", "10.0.0.1");
    let rows = pools.get_mut("p").unwrap();
    let ours = rows.remove("n").unwrap();
    rows.insert("new".to_owned(), ours);
    let replaced = terms(false, &[("new", "n")]);
    let import = changes(&node, &pools, &Nodes::Own("new".into()), &replaced).unwrap();
    assert!(
        import.outside[0].to_string().contains("pod ai/trainer"),
        "{:?}",
        import.outside
    );
    assert!(
        written(&node, &import, Force::No)
            .unwrap_err()
            .to_string()
            .contains("1 live leases")
    );
    // Also where the store has nothing of it any more.
    std::fs::remove_dir_all(temp.path().join("store/n")).unwrap();
    let import = changes(&node, &pools, &Nodes::Own("new".into()), &terms(false, &[])).unwrap();
    let told = import.outside[0].to_string();
    assert!(
        told.contains("node n: 10.0.0.0 ") && told.contains("node new"),
        "{told}"
    );
    written(&node, &import, Force::Yes).unwrap();
    let again = changes(&node, &pools, &Nodes::Own("new".into()), &replaced).unwrap();
    assert!(again.outside.is_empty() && shown(&again) == ["new same"]);
}
