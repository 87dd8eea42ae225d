use super::*;
use crate::files;
use crate::ipam::table::read_all;
use crate::pool::allocation::tests::allocation;
use proptest::prelude::*;
use std::collections::BTreeMap;

struct Bench {
    temp: tempfile::TempDir,
    node: Node,
}

/// A node with namespaces `a` to `d`: files, which are not known to be alive or dead until they are
/// gone.
fn bench() -> Bench {
    let temp = tempfile::tempdir().unwrap();
    let dirs =
        serde_json::json!({"storeDir": temp.path().join("s"), "runDir": temp.path().join("r")});
    for netns in ["a", "b", "c", "d"] {
        std::fs::write(temp.path().join(netns), "").unwrap();
    }
    Bench {
        node: serde_json::from_value(dirs).unwrap(),
        temp,
    }
}

impl Bench {
    fn holder(&self, id: &str, netns: &str) -> Holder {
        Holder {
            network: "net".into(),
            container_id: id.into(),
            ifname: "net1".into(),
            netns: NetnsId::of(&self.temp.path().join(netns)).unwrap(),
            pod: Some(format!("default/{id}")),
            pod_uid: None,
            device: None,
            claim: None,
        }
    }

    fn take(&self, pools: &[(&str, &str)], id: &str, netns: &str) -> Result<Vec<String>> {
        self.take_requested(pools, id, netns, &[])
    }

    fn take_requested(
        &self,
        pools: &[(&str, &str)],
        id: &str,
        netns: &str,
        requested: &[&str],
    ) -> Result<Vec<String>> {
        let names = pools.iter().map(|(name, _)| (*name).to_owned()).collect();
        let allocations = pools
            .iter()
            .map(|(_, prefix)| allocation(prefix, None, &[]))
            .collect();
        let requested: Vec<_> = requested
            .iter()
            .map(|text| (text.parse().unwrap(), None))
            .collect();
        let asks = Ask::all(names, allocations, &requested)?;
        let taken = take(&self.node, "n", &asks, &self.holder(id, netns), || Ok(true))?;
        Ok(taken.iter().flatten().map(ToString::to_string).collect())
    }

    fn release(&self, id: &str) {
        release(&self.node, "net", &attachment(id)).unwrap();
    }

    fn kill(&self, netns: &str) {
        std::fs::remove_file(self.temp.path().join(netns)).unwrap();
    }

    fn files(&self, pool: &str) -> Vec<std::path::PathBuf> {
        let paths = std::fs::read_dir(self.temp.path().join("r/leases"))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path());
        let is_of_pool = |path: &std::path::PathBuf| {
            let content = std::fs::read(path).unwrap();
            let lease = serde_json::from_slice::<Lease>(&content);
            lease.map_or(true, |lease| lease.pool == pool)
        };
        let leases = paths.filter(|path| path.extension().is_some());
        leases.filter(is_of_pool).collect()
    }
}

fn attachment(id: &str) -> Attachment {
    Attachment {
        container_id: id.into(),
        ifname: "net1".into(),
    }
}

const P: (&str, &str) = ("p", "10.0.0.0/31");
const ONE: (&str, &str) = ("one", "10.0.0.1/32");

#[test]
fn an_address_is_held_until_it_is_given_back() {
    let bench = bench();
    assert_eq!(bench.take(&[P], "c1", "a").unwrap(), ["10.0.0.0"]);
    assert_eq!(bench.take(&[P], "c2", "b").unwrap(), ["10.0.0.1"]);
    let error = bench.take(&[P], "c3", "c").unwrap_err();
    assert_eq!(crate::error::code_of(&error), 11);
    let error = error.to_string();
    assert!(
        ["10.0.0.0 ", "net1 ", "pod default/c1"]
            .iter()
            .all(|part| error.contains(part)),
        "{error}"
    );
    bench.release("c1");
    bench.release("c1");
    assert_eq!(bench.take(&[P], "c3", "c").unwrap(), ["10.0.0.0"]);
}

#[test]
fn what_the_dead_hold_is_taken_over() {
    let bench = bench();
    bench.take(&[ONE], "c1", "a").unwrap();
    assert!(bench.take(&[ONE], "c2", "b").is_err());
    bench.kill("a");
    assert_eq!(bench.take(&[ONE], "c2", "b").unwrap(), ["10.0.0.1"]);
    let [file] = bench.files("one").try_into().unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        text.replace(files::boot_id().unwrap(), "another-boot"),
    )
    .unwrap();
    assert_eq!(
        bench
            .take_requested(&[ONE], "c3", "c", &["10.0.0.1"])
            .unwrap(),
        ["10.0.0.1"]
    );
    // The late DEL of a dead one leaves the new owner alone.
    bench.release("c2");
    assert_eq!(bench.files("one").len(), 1);
}

#[test]
fn a_second_add_gets_nothing_unless_its_sandbox_is_new() {
    let bench = bench();
    bench.take(&[P], "c1", "a").unwrap();
    let error = bench.take(&[P], "c1", "a").unwrap_err().to_string();
    assert!(error.contains("10.0.0.0"), "{error}");
    assert_eq!(bench.take(&[P], "c1", "b").unwrap(), ["10.0.0.0"]);
    assert_eq!(bench.files("p").len(), 1);
}

#[test]
fn two_pools_give_both_or_nothing() {
    let bench = bench();
    bench.take(&[ONE], "c1", "a").unwrap();
    for pools in [[P, ONE], [ONE, P]] {
        assert!(bench.take(&pools, "c2", "b").is_err());
        assert!(bench.files("p").is_empty());
    }
    bench.release("c1");
    assert_eq!(
        bench.take(&[P, ONE], "c2", "b").unwrap(),
        ["10.0.0.0", "10.0.0.1"]
    );
    bench.release("c2");
    assert!(bench.files("p").is_empty() && bench.files("one").is_empty());
}

#[test]
fn a_requested_address_must_be_had_as_it_is() {
    let bench = bench();
    let ask = |requested: &[&str]| bench.take_requested(&[P], "c1", "a", requested);
    assert!(
        ask(&["10.0.0.2"])
            .unwrap_err()
            .to_string()
            .contains("10.0.0.0/31")
    );
    assert!(
        ask(&["10.0.0.0", "10.0.0.1"])
            .unwrap_err()
            .to_string()
            .contains("10.0.0.1")
    );
    assert_eq!(ask(&["10.0.0.1"]).unwrap(), ["10.0.0.1"]);
    let error = bench
        .take_requested(&[P], "c2", "b", &["10.0.0.1"])
        .unwrap_err()
        .to_string();
    assert!(error.contains("10.0.0.1"), "{error}");
    let wide = vec![allocation(
        "10.0.0.0/24",
        Some("10.0.0.1"),
        &[("10.0.0.9", "10.0.0.9")],
    )];
    for bad in [
        ("10.0.0.1", None),
        ("10.0.0.0", None),
        ("10.0.0.255", None),
        ("10.0.0.9", None),
        ("10.0.0.2", Some(31)),
    ] {
        let requested = [(bad.0.parse().unwrap(), bad.1)];
        let error = Ask::all(vec!["p".into()], wide.clone(), &requested).unwrap_err();
        assert_eq!(crate::error::code_of(&error), 7, "{bad:?}");
    }
}

#[test]
fn a_damaged_file_holds_its_address_and_del_needs_only_its_name() {
    let bench = bench();
    bench.take(&[ONE], "c1", "a").unwrap();
    bench.kill("a");
    let [file] = bench.files("one").try_into().unwrap();
    let whole = std::fs::read_to_string(&file).unwrap();
    for damage in [
        "",
        "{",
        &whole[..100],
        &whole.replace("10.0.0.1", "10.0.0.2"),
        &whole.replace(":1,", ":2,"),
    ] {
        std::fs::write(&file, damage).unwrap();
        let error = bench.take(&[ONE], "c2", "b").unwrap_err();
        assert_eq!(crate::error::code_of(&error), 11);
        assert!(
            error
                .to_string()
                .contains("`railctl release --address 10.0.0.1`"),
            "{error}"
        );
    }
    bench.release("c1");
    assert!(bench.files("one").is_empty());
}

#[test]
fn gc_keeps_what_is_listed_or_alive_or_not_of_its_network() {
    let bench = bench();
    let net = ("p", "10.0.0.0/24");
    for (id, netns) in [
        ("listed", "a"),
        ("alive", "b"),
        ("dead", "c"),
        ("unknown", "missing"),
    ] {
        bench.take(&[net], id, netns).unwrap();
    }
    let other = Holder {
        network: "other".into(),
        ..bench.holder("x", "c")
    };
    let ask = Ask {
        pool: "p".into(),
        allocation: allocation(net.1, None, &[]),
        requested: None,
    };
    take(&bench.node, "n", &[ask], &other, || Ok(true)).unwrap();
    bench.kill("a");
    bench.kill("c");
    collect(
        &bench.node,
        "net",
        &HashSet::from([key("net", &attachment("listed"))]),
    )
    .unwrap();
    let texts: Vec<_> = bench
        .files("p")
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect();
    let left: Vec<_> = ["listed", "alive", "dead", "unknown", "\"x\""]
        .map(|id| texts.iter().any(|text| text.contains(id)))
        .into();
    assert_eq!(left, [true, true, false, false, true]);
}

/// A DEL whose `name` is of another type still names container and interface.
#[test]
fn without_the_name_of_the_network_all_of_the_attachment_is_given_back() {
    let bench = bench();
    bench.take(&[P, ONE], "c1", "a").unwrap();
    let other = Holder {
        network: "other".into(),
        ..bench.holder("c1", "a")
    };
    let two = allocation("10.0.1.0/31", None, &[]);
    let ask = |pool: &str| Ask {
        pool: pool.into(),
        allocation: two.clone(),
        requested: None,
    };
    take(&bench.node, "n", &[ask("two")], &other, || Ok(true)).unwrap();
    take(
        &bench.node,
        "n",
        &[ask("two")],
        &bench.holder("c2", "b"),
        || Ok(true),
    )
    .unwrap();
    let ifname = Attachment {
        ifname: "net2".into(),
        ..attachment("c1")
    };
    assert!(!release(&bench.node, "", &ifname).unwrap());
    assert!(release(&bench.node, "", &attachment("c1")).unwrap());
    assert!(!release(&bench.node, "", &attachment("c1")).unwrap());
    assert!(bench.files("p").is_empty() && bench.files("one").is_empty());
    let [left] = bench.files("two").try_into().unwrap();
    // The owner stands in the file alone.
    std::fs::write(&left, "").unwrap();
    assert!(!release(&bench.node, "", &attachment("c2")).unwrap());
    assert!(left.exists() && release(&bench.node, "net", &attachment("c2")).unwrap());
}

/// The address is the node's, whatever the pool and the node are called when it is asked for.
#[test]
fn an_address_is_held_under_every_name() {
    let bench = bench();
    bench.take(&[ONE], "c1", "a").unwrap();
    let renamed = ("new-name", ONE.1);
    let error = bench.take(&[renamed], "c2", "b").unwrap_err().to_string();
    assert!(error.contains("10.0.0.1 is held by"), "{error}");
    let error = bench.take_requested(&[renamed], "c2", "b", &[ONE.1.split('/').next().unwrap()]);
    assert!(error.is_err());
    let asks = Ask::all(vec!["one".into()], vec![allocation(ONE.1, None, &[])], &[]);
    let holder = bench.holder("c2", "b");
    assert!(take(&bench.node, "renamed", &asks.unwrap(), &holder, || Ok(true)).is_err());
    // Nor does the holder get a second one without a DEL.
    assert!(bench.take(&[("other", "10.0.9.0/31")], "c1", "a").is_err());
    bench.release("c1");
    assert_eq!(bench.take(&[renamed], "c2", "b").unwrap(), ["10.0.0.1"]);
}

#[test]
fn del_makes_no_directory() {
    let bench = bench();
    bench.release("c1");
    assert!(!bench.temp.path().join("r").exists());
}

/// An upgrade with a pod alive.
#[test]
fn leases_of_an_older_version_are_held_and_given_back() {
    let bench = bench();
    bench.take(&[ONE], "c1", "a").unwrap();
    let root = bench.temp.path().join("r");
    let [file] = bench.files("one").try_into().unwrap();
    let name = file.file_name().unwrap();
    let mut lease: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let members = lease.as_object_mut().unwrap();
    assert!(members.remove("pool").is_some() && members.remove("nodeName").is_some());
    let old = || {
        std::fs::create_dir_all(root.join("leases/n/one")).unwrap();
        std::fs::create_dir_all(root.join("leases/_begun")).unwrap();
        std::fs::create_dir_all(root.join("leases/empty/pool")).unwrap();
        std::fs::create_dir_all(root.join("rebuilt")).unwrap();
        std::fs::write(root.join("leases/n/one/lock"), "").unwrap();
        std::fs::write(root.join("leases/n/one").join(name), lease.to_string()).unwrap();
        std::fs::write(root.join("leases/n/one/10.0.0.9@x.json"), "{").unwrap();
        std::fs::write(root.join("rebuilt").join("10.0.0.8@y.json"), "").unwrap();
    };
    std::fs::remove_dir_all(root.join("leases")).unwrap();
    old();
    assert!(bench.take(&[ONE], "c2", "b").is_err());
    assert!(!root.join("leases/n").exists() && !root.join("rebuilt").exists());
    assert!(root.join("leases/_table").exists() && !root.join("leases/_begun").exists());
    let [found] = &held_by(&bench.node, "net", &attachment("c1")).unwrap()[..] else {
        panic!()
    };
    assert_eq!((&*found.node_name, &*found.pool), ("n", "one"));
    for damaged in ["10.0.0.8/32", "10.0.0.9/32"] {
        assert!(bench.take(&[("p", damaged)], "c2", "b").is_err());
    }
    // Again, after a visit of the older version.
    old();
    bench.release("c1");
    assert_eq!(bench.take(&[ONE], "c2", "b").unwrap(), ["10.0.0.1"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Against a map from addresses to who holds them.
    #[test]
    fn the_table_is_a_map(steps in proptest::collection::vec((0usize..4, 0usize..3), 1..40)) {
        let bench = bench();
        let mut model: BTreeMap<String, usize> = BTreeMap::new();
        for (who, what) in steps {
            let id = format!("c{who}");
            let netns = ["a", "b", "c", "d"][who];
            let path = bench.temp.path().join(netns);
            match what {
                0 => {
                    let is_alive = |bench: &Bench, id: &str| -> bool {
                        let leases = held_by(&bench.node, "net", &attachment(id)).unwrap();
                        leases.iter().any(|lease| !lease.is_dead(&bench.node).unwrap())
                    };
                    let had = is_alive(&bench, &id);
                    if !path.exists() {
                        std::fs::write(&path, "").unwrap();
                    }
                    let held: Vec<_> = model.iter().map(|(a, w)| (a.clone(), *w, is_alive(&bench, &format!("c{w}")))).collect();
                    match bench.take(&[P], &id, netns) {
                        Ok(address) => {
                            prop_assert!(!had);
                            let holder = held.iter().find(|(held, ..)| *held == address[0]);
                            prop_assert!(holder.is_none_or(|(_, holder, alive)| !alive || *holder == who));
                            model.retain(|_, holder| *holder != who);
                            model.insert(address[0].clone(), who);
                        }
                        Err(_) => prop_assert!(had || held.iter().filter(|(_, _, alive)| *alive).count() == 2),
                    }
                }
                1 => {
                    bench.release(&id);
                    model.retain(|_, holder| *holder != who);
                }
                _ => drop(std::fs::remove_file(&path)),
            }
            let leases = read_all(&bench.node).unwrap();
            let listed: Vec<_> = leases.iter().map(|(entry, _)| entry.address.to_string()).collect();
            prop_assert_eq!(listed, model.keys().cloned().collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_name_and_no_content_makes_it_panic(name in "[0-9a-f.:@/]{0,20}(\\.json)?", content: Vec<u8>) {
        if let Some(entry) = Entry::parse(&name) {
            let bench = bench();
            let table = Table::create(&bench.node).unwrap();
            if !name.contains('/') {
                std::fs::write(bench.temp.path().join("r/leases").join(&name), &content).unwrap();
            }
            prop_assert!(!matches!(table.read(&entry), Ok(Some(_))));
        }
    }
}
