use std::collections::BTreeSet;

use rail_cni::pool::LeafPort;
use rail_cni::pool::store::{Store, peer_of};
use serde_json::json;

use super::*;

/// An allocation as a plan has it.
pub fn allocation(prefix: &str, gateway: Option<&str>) -> Allocation {
    serde_json::from_value(json!({"version": 1, "prefix": prefix, "gateway": gateway})).unwrap()
}

/// rail-ipam 0.1.0 reads the store with `parse`, which refuses keys that it does not know, and
/// lists pools by their `.json`.
#[test]
fn a_gateway_tells_its_leaf_port_and_the_allocation_is_as_before() {
    let temp = tempfile::tempdir().unwrap();
    let dirs = serde_json::json!({"nodeName": "n", "storeDir": temp.path().join("store")});
    let node: Node = serde_json::from_value(dirs).unwrap();
    let port = |leaf: &str, port: &str| LeafPort {
        leaf: leaf.into(),
        port: Some(port.into()),
    };
    let (gateway, file) = (
        "172.16.0.3".parse().unwrap(),
        temp.path().join("store/n/rail-0.json"),
    );
    assert_eq!(peer_of(&node, gateway, &[]), None);
    let mut ours = allocation("172.16.0.2/31", Some("172.16.0.3"));
    let write = |allocation: Option<&Allocation>| {
        apply(
            Writer::new(&node).unwrap(),
            &[Change {
                node_name: "n",
                pool: "rail-0",
                allocation,
            }],
            &[],
            || Ok(()),
        )
        .unwrap();
    };
    write(Some(&ours));
    let before = std::fs::read(&file).unwrap();
    assert_eq!(peer_of(&node, gateway, &[]), None);
    for (ports, told) in [
        (vec![port("leaf-su0-r0", "swp2")], Some("leaf-su0-r0 swp2")),
        (
            vec![port("p0", "swp2"), port("p1", "swp2")],
            Some("p0 swp2, p1 swp2"),
        ),
        (
            vec![LeafPort {
                leaf: "leaf".into(),
                port: None,
            }],
            Some("leaf"),
        ),
        (vec![], None),
        (vec![port("leaf-su0-r0", "swp2")], Some("leaf-su0-r0 swp2")),
    ] {
        ours.leaf_ports = ports;
        write(Some(&ours));
        assert_eq!(peer_of(&node, gateway, &[]).as_deref(), told);
        assert_eq!(
            std::fs::read(&file).unwrap(),
            before,
            "an older rail-ipam reads this"
        );
        assert_eq!(Store::open(&node).unwrap().pools("n").unwrap(), ["rail-0"]);
    }
    assert_eq!(peer_of(&node, "172.16.0.1".parse().unwrap(), &[]), None);
    // An older rail-ipam writes another allocation and leaves the file beside it.
    let moved = allocation("172.16.0.2/31", Some("172.16.0.2"));
    std::fs::write(&file, content(&moved).unwrap()).unwrap();
    assert_eq!(peer_of(&node, "172.16.0.2".parse().unwrap(), &[]), None);
    std::fs::write(file.with_file_name(LEAF_PORTS), "{").unwrap();
    write(Some(&ours));
    assert_eq!(
        peer_of(&node, gateway, &[]).as_deref(),
        Some("leaf-su0-r0 swp2")
    );
    write(None);
    assert!(!temp.path().join("store/n").exists());
}

/// A store in which node n has two pools, and the next plan of it at each call.
fn planned(temp: &tempfile::TempDir) -> (Node, impl FnMut() + use<>) {
    let dirs = serde_json::json!({"nodeName": "n", "storeDir": temp.path().join("store")});
    let node: Node = serde_json::from_value(dirs).unwrap();
    let (of_call, mut turn) = (node.clone(), 0);
    let mut next = move || {
        turn += 1;
        let plan = ["10.0", "10.1"].map(|net| allocation(&format!("{net}.{turn}.0/31"), None));
        let change = |pool, at: usize| Change {
            node_name: "n",
            pool,
            allocation: Some(&plan[at]),
        };
        apply(
            Writer::new(&of_call).unwrap(),
            &[change("a", 0), change("b", 1)],
            &[],
            || Ok(()),
        )
        .unwrap();
    };
    next();
    (node, next)
}

#[test]
fn whoever_reads_while_plans_are_exchanged_sees_a_whole_one() {
    let temp = tempfile::tempdir().unwrap();
    let (node, mut next) = planned(&temp);
    let writer = std::thread::spawn(move || (0..60).for_each(|_| next()));
    while !writer.is_finished() {
        let store = Store::open(&node).unwrap();
        let all = store.everything("n").unwrap();
        let nets: BTreeSet<_> = all
            .values()
            .map(|one| one.as_ref().unwrap().as_ref().unwrap().prefix.to_string()[5..].to_owned())
            .collect();
        assert_eq!((all.len(), nets.len()), (2, 1), "{all:?}");
        assert_eq!(store.pools("n").unwrap(), ["a", "b"]);
    }
    writer.join().unwrap();
}
