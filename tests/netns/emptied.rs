//! Somebody empties /run/rail-cni while pods live: no address is given until what they have was
//! found in their namespaces.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use serde_json::{Value, json};

use crate::harness::{Host, Sleeper, rail, with};

/// Two devices on one pool, which has the address 192.0.2.N for this node. Other tests have
/// namespaces too, with addresses of their own.
fn host(test: &str, number: u8) -> Option<(Host, [PathBuf; 2])> {
    let host = Host::new(&format!("emptied::{test}"))?;
    for rail in [0, 1] {
        host.add_rail(rail);
        let [ours, gateway] =
            [2 * rail, 2 * rail + 1].map(|one| format!("192.0.2.{}", number + one));
        host.plan(
            &format!("rail-{rail}"),
            &format!("{ours}/31"),
            &gateway,
            &[],
        );
    }
    let pods = ["one", "two"].map(|name| host.add_netns(name));
    Some((host, pods))
}

/// Rail 0's pool by the other device.
fn second() -> Value {
    with(
        rail(0),
        json!({"device": "vf1", "rail": 1, "ipam": {"type": "rail-ipam", "pool": "rail-0"}}),
    )
}

fn remove(path: &Path) {
    if path.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    }
    .unwrap();
}

fn below(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect()
}

fn is_rebuilt(lease: &Path) -> bool {
    fs::read_to_string(lease).unwrap().contains("rebuilt-")
}

/// Rebuilds what was emptied; returns the interfaces that got their address `address` leased again,
/// with their namespaces.
fn rebuild(host: &Host, address: &str) -> Vec<Value> {
    let args = ["reap", "--rebuild", "--output", "json"];
    let reaped = host
        .call("", "", Path::new(""))
        .args(&args)
        .run(&Value::Null)
        .ok()
        .json();
    let all = reaped["addresses"].as_array().unwrap().iter();
    all.filter(|one| one["address"] == address)
        .cloned()
        .collect()
}

#[test]
fn no_address_of_a_living_pod_is_given_again_whatever_was_removed() {
    type Wipe = fn(&Host);
    let wipes: [(&str, Wipe); 4] = [
        ("the run folder", |host| remove(&host.path("run"))),
        ("all in it", |host| {
            below(&host.path("run"))
                .iter()
                .for_each(|path| remove(path))
        }),
        ("the leases", |host| remove(&host.path("run/leases"))),
        ("all in them", |host| {
            below(&host.path("run/leases"))
                .iter()
                .for_each(|path| remove(path))
        }),
    ];
    for (what, wipe) in wipes {
        let Some((host, [one, two])) = host("wiped", 16) else {
            return;
        };
        host.cni("ADD", "c1", &one, &rail(0)).ok();
        wipe(&host);
        let msg = host.cni("ADD", "c2", &two, &second()).error(11)["msg"].to_string();
        assert!(msg.contains("railctl reap --rebuild"), "{what}: {msg}");
        host.call("STATUS", "", &two)
            .ipam()
            .run(&second())
            .error(50);
        let netns = one.to_str().unwrap();
        let found = json!([{"address": "192.0.2.16", "interface": "net1", "netns": netns}]);
        assert_eq!(Value::from(rebuild(&host, "192.0.2.16")), found, "{what}");
        for _ in 0..2 {
            let msg = host.cni("ADD", "c2", &two, &second()).error(11)["msg"].to_string();
            assert!(
                msg.contains("192.0.2.16") && msg.contains(netns),
                "{what}: {msg}"
            );
        }
        // Another pool is free.
        host.cni("ADD", "c3", &two, &with(rail(1), json!({"name": "other"})))
            .ok();
        host.cni("DEL", "c3", &two, &with(rail(1), json!({"name": "other"})))
            .ok();
        match what {
            "the leases" => drop(host.cni("DEL", "c1", &one, &rail(0)).ok()),
            _ => host.delete_netns(&one),
        }
        host.cni("ADD", "c2", &two, &second()).ok();
        host.cni("DEL", "c2", &two, &second()).ok();
        // Leases of the other namespaces, which live.
        let mut leases = host.leases();
        leases.retain(|file| !is_rebuilt(file));
        assert!(leases.is_empty(), "{what}: {leases:?}");
    }
}

/// An inline pool is on no file of the node.
/// node.json got another `runDir` by hand.
#[test]
fn another_run_directory_gives_no_address_of_a_living_pod() {
    let Some((host, [one, two])) = host("elsewhere", 32) else {
        return;
    };
    let exchange = |to: &str| host.set_node(json!({"runDir": host.path(to)}));
    let refused = |why: &str| {
        let msg = host.cni("ADD", "c2", &two, &second()).error(11)["msg"].to_string();
        assert!(msg.contains(why), "{why}: {msg}");
    };
    host.cni("ADD", "c1", &one, &rail(0)).ok();
    exchange("run2");
    refused("railctl reap --rebuild");
    // Without its leases, nothing tells which ones these were.
    fs::rename(host.path("run"), host.path("aside")).unwrap();
    refused("railctl reap --rebuild");
    fs::rename(host.path("aside"), host.path("run")).unwrap();
    assert_eq!(rebuild(&host, "192.0.2.32").len(), 1);
    refused("192.0.2.32");
    // The way back is one to another directory, too.
    exchange("run");
    refused("railctl reap --rebuild");
    host.cni("DEL", "c1", &one, &rail(0)).ok();
    rebuild(&host, "192.0.2.32");
    host.cni("ADD", "c2", &two, &second()).ok();
}

#[test]
fn without_a_pod_another_run_directory_changes_nothing() {
    let Some((host, [one, _])) = host("drained", 40) else {
        return;
    };
    for run in ["run", "run2", "run"] {
        host.set_node(json!({"runDir": host.path(run)}));
        host.cni("ADD", "c1", &one, &rail(0)).ok();
        host.cni("DEL", "c1", &one, &rail(0)).ok();
    }
}

#[test]
fn an_address_of_a_pool_that_no_plan_has_is_not_given_again_either() {
    let Some((host, [one, two])) = host("inline", 32) else {
        return;
    };
    let allocation =
        json!({"nodeName": "node-1", "prefix": "192.0.2.40/29", "gateway": "192.0.2.41"});
    let pool = json!({"type": "rail-ipam", "pool": "inline", "cidr": "192.0.2.0/24", "perNodeNetworkPrefix": 29,
        "staticAllocations": [allocation]});
    let network = with(rail(0), json!({"ipam": pool}));
    let address = |ran: crate::harness::Ran| {
        ran.ok().json()["ips"][0]["address"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let first = address(host.call("ADD", "c1", &one).ipam().run(&network));
    host.ip_in(&one, &format!("addr add {first} dev lo"));
    remove(&host.path("run"));
    host.call("ADD", "c2", &two).ipam().run(&network).error(11);
    assert_eq!(rebuild(&host, first.split('/').next().unwrap()).len(), 1);
    let second = address(host.call("ADD", "c2", &two).ipam().run(&network));
    assert_ne!(first, second);
}

/// Docker mounts namespaces where others do not look, and a program's own are mounted nowhere.
#[test]
fn a_namespace_of_which_there_is_only_a_process_counts() {
    let Some((host, [one, two])) = host("process", 48) else {
        return;
    };
    host.cni("ADD", "c1", &one, &rail(0)).ok();
    let sleeper = Sleeper::new(Some(&one));
    remove(&host.path("run"));
    host.delete_netns(&one);
    let found = rebuild(&host, "192.0.2.48");
    assert_eq!(
        found[0]["netns"],
        format!("/proc/{}/ns/net", sleeper.pid()),
        "{found:?}"
    );
    host.cni("ADD", "c2", &two, &second()).error(11);
    drop(sleeper);
    host.cni("ADD", "c2", &two, &second()).ok();
}

/// A pod can say that it has any address: while no lease was lost, nobody asks it.
#[test]
fn after_a_boot_no_pod_can_take_addresses_from_others_by_having_them() {
    let Some((host, [one, two])) = host("boot", 64) else {
        return;
    };
    host.ip_in(&one, "addr add 192.0.2.64/31 dev lo");
    host.cni("ADD", "c2", &two, &second()).ok();
    host.cni("DEL", "c2", &two, &second()).ok();
    // Nor once it was all given back, nor by a command that has nothing to rebuild.
    assert_eq!(rebuild(&host, "192.0.2.64").len(), 0);
    host.cni("ADD", "c2", &two, &second()).ok();
    host.cni("DEL", "c2", &two, &second()).ok();
    // Another boot: the mark says of which one it is.
    remove(&host.path("run"));
    let mark = json!({"bootId": "another-boot", "runDir": host.path("run")});
    fs::write(host.path("rail-cni.begun"), mark.to_string()).unwrap();
    assert_eq!(rebuild(&host, "192.0.2.64").len(), 0);
    host.cni("ADD", "c2", &two, &second()).ok();
}

/// A damaged lease says nothing of its holder: the address stays its.
#[test]
fn a_damaged_rebuilt_lease_keeps_its_address() {
    let Some((host, [one, two])) = host("damaged", 80) else {
        return;
    };
    host.cni("ADD", "c1", &one, &rail(0)).ok();
    remove(&host.path("run"));
    rebuild(&host, "192.0.2.80");
    let is_ours = |path: &PathBuf| path.to_str().unwrap().contains("192.0.2.80@");
    let lease = below(&host.path("run/leases"))
        .into_iter()
        .find(is_ours)
        .unwrap();
    for text in ["", "[", "{}"] {
        fs::write(&lease, text).unwrap();
        host.cni("ADD", "c2", &two, &second()).error(11);
    }
    remove(&lease);
    host.delete_netns(&one);
    host.cni("ADD", "c2", &two, &second()).ok();
}

/// The rails of a pod, or of several, come at once on a fresh node: those that wait for the first
/// one must not take its start for a run directory that was emptied.
#[test]
fn the_first_calls_of_a_boot_are_not_refused() {
    let Some((host, [_, two])) = host("first", 96) else {
        return;
    };
    host.plan("rail-0", "192.0.2.96/28", "192.0.2.97", &[]);
    // All of them wait for this, so that none is alone.
    fs::create_dir(host.path("run")).unwrap();
    let lock = fs::File::create(host.path("run/begun.lock")).unwrap();
    let lock = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
    std::thread::scope(|scope| {
        let (host, two) = (&host, &two);
        for number in 0..8 {
            scope.spawn(move || {
                host.call("ADD", &format!("c{number}"), two)
                    .ipam()
                    .run(&rail(0))
                    .ok();
            });
        }
        std::thread::sleep(Duration::from_millis(500));
        drop(lock);
    });
    assert!(!host.leases().iter().any(|path| is_rebuilt(path)));
}
