//! The files of the operator's plan on a node: the store, and node.json.

use std::path::Path;

use rail_cni::node::Node;
use rail_cni::pool::store::{Store, is_damage, load, peer_of};
use serde_json::json;

use crate::directory::Directory;
use crate::input::parts;
use crate::judge;

const NODE: &str = "node-0";
const POOL: &str = "rail-0";

/// Parts: the file of an allocation, the file of the leaf ports.
pub fn store(data: &[u8]) {
    let parts = parts(data, 2);
    let directory = Directory::new();
    let config = json!({"storeDir": directory.path("store"), "runDir": directory.path("run"), "nodeName": NODE});
    let node =
        Node::parse(Path::new("node.json"), config.to_string().as_bytes()).expect("a node.json");
    let file = directory.write(&format!("store/{NODE}/{POOL}.json"), parts[0]);
    if let Some(leaf_ports) = parts.get(1) {
        directory.write(&format!("store/{NODE}/leaf-ports"), leaf_ports);
    }
    let store = Store::open(&node).expect("a store");
    assert_eq!(store.nodes().expect("a list"), [NODE]);
    assert_eq!(store.pools(NODE).expect("a list"), [POOL]);
    let loaded = load(&node, NODE, &[POOL.to_owned()]);
    match &loaded {
        Ok(all) => {
            let [allocation] = &all[..] else {
                panic!("one allocation")
            };
            judge::allocation(allocation);
            let again = serde_json::to_vec(allocation).expect("an allocation");
            assert_eq!(
                serde_json::from_slice::<rail_cni::pool::Allocation>(&again)
                    .expect("an allocation"),
                *allocation
            );
        }
        Err(error) => {
            judge::refused(error, &[6]);
            assert!(is_damage(error));
            let text = format!("{error:#}");
            assert!(
                text.contains(&file),
                "the error does not name the file: {text}"
            );
            assert!(
                !text.contains("has no allocation"),
                "a damaged file is told of as a missing one: {text}"
            );
        }
    }
    match store.everything(NODE) {
        Ok(everything) => {
            let [(pool, found)] = &everything.into_iter().collect::<Vec<_>>()[..] else {
                panic!("one pool")
            };
            assert_eq!(pool, POOL);
            assert_eq!(found.is_ok(), loaded.is_ok());
            if let Ok(Some(allocation)) = found {
                allocation
                    .leaf_ports
                    .iter()
                    .for_each(|port| assert!(!port.to_string().is_empty()));
                if let Some(gateway) = allocation.gateway {
                    let peer = peer_of(&node, gateway, &[allocation.prefix]);
                    assert_eq!(peer.is_none(), allocation.leaf_ports.is_empty());
                }
            }
        }
        // Leaf ports are for messages: damaged ones count as none.
        Err(error) => panic!("{error:#}"),
    }
}

/// node.json.
pub fn node_json(data: &[u8]) {
    let path = Path::new("/etc/rail-cni/node.json");
    let node = match Node::parse(path, data) {
        Ok(node) => node,
        Err(error) => {
            judge::refused(&error, &[7]);
            assert!(
                error.to_string().contains("/etc/rail-cni/node.json"),
                "{error:#}"
            );
            return;
        }
    };
    for directory in [
        &node.store_dir,
        &node.run_dir,
        &node.sysfs_root,
        &node.device_info_dir,
    ] {
        assert!(directory.is_absolute(), "{}", directory.display());
    }
    assert!(node.log_dir().is_none_or(Path::is_absolute));
    assert!((1..=3600).contains(&node.call_timeout().as_secs()));
    let again = Node::parse(path, data).expect("it was read before");
    assert_eq!(format!("{again:?}"), format!("{node:?}"));
}
