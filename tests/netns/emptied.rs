//! Somebody empties /run/rail-cni while pods live: what they have is found in their namespaces.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use serde_json::{Value, json};

use crate::harness::{Host, Sleeper, rail, with};

/// Two devices on one pool, which has the address 192.0.2.N for this node. Other tests have namespaces too, with
/// addresses of their own.
fn host(test: &str, number: u8) -> Option<(Host, [PathBuf; 2])> {
    let host = Host::new(&format!("emptied::{test}"))?;
    for rail in [0, 1] {
        host.add_rail(rail);
        let [ours, gateway] = [2 * rail, 2 * rail + 1].map(|one| format!("192.0.2.{}", number + one));
        host.plan(&format!("rail-{rail}"), &format!("{ours}/31"), &gateway, &[]);
    }
    let pods = ["one", "two"].map(|name| host.add_netns(name));
    Some((host, pods))
}

/// Rail 0's pool by the other device.
fn second() -> Value {
    with(rail(0), json!({"device": "vf1", "rail": 1, "ipam": {"type": "rail-ipam", "pool": "rail-0"}}))
}

fn remove(path: &Path) {
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
}

fn below(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn no_address_of_a_living_pod_is_given_again_whatever_was_removed() {
    type Wipe = fn(&Host);
    let wipes: [(&str, Wipe); 4] = [
        ("the run folder", |host| remove(&host.path("run"))),
        ("all in it", |host| below(&host.path("run")).iter().for_each(|path| remove(path))),
        ("the leases", |host| remove(&host.path("run/leases"))),
        ("all in them", |host| below(&host.path("run/leases")).iter().for_each(|path| remove(path))),
    ];
    for (what, wipe) in wipes {
        let Some((host, [one, two])) = host("wiped", 16) else { return };
        host.cni("ADD", "c1", &one, &rail(0)).ok();
        wipe(&host);
        for _ in 0..2 {
            let msg = host.cni("ADD", "c2", &two, &second()).error(11)["msg"].to_string();
            assert!(
                msg.contains(&format!("192.0.2.16 is used by net1 in the namespace {}", one.display())),
                "{what}: {msg}"
            );
        }
        // Another pool is free.
        host.cni("ADD", "c3", &two, &with(rail(1), json!({"name": "other"}))).ok();
        host.cni("DEL", "c3", &two, &with(rail(1), json!({"name": "other"}))).ok();
        host.delete_netns(&one);
        host.cni("ADD", "c2", &two, &second()).ok();
        host.cni("DEL", "c2", &two, &second()).ok();
        assert!(host.leases().iter().all(|file| file.ends_with("_begun")), "{what}: {:?}", host.leases());
    }
}

/// Its DEL takes the address from the pod, though nothing is on record of it.
#[test]
fn a_pod_whose_lease_was_lost_gives_its_address_back_with_it() {
    let Some((host, [one, two])) = host("del", 32) else { return };
    host.plan("rail-0", "192.0.2.32/29", "192.0.2.33", &[]);
    let address =
        |ran: crate::harness::Ran| ran.ok().json()["ips"][0]["address"].as_str().unwrap().to_owned();
    let first = address(host.call("ADD", "c1", &one).ipam().run(&rail(0)));
    host.ip_in(&one, &format!("addr add {first} dev lo"));
    remove(&host.path("run"));
    let second = address(host.call("ADD", "c2", &two).ipam().run(&rail(0)));
    assert_ne!(first, second);
    host.ip_in(&one, &format!("addr del {first} dev lo"));
    host.call("DEL", "c1", &one).ipam().run(&rail(0)).ok();
    assert_eq!(address(host.call("ADD", "c3", &two).ipam().run(&rail(0))), first);
}

/// Docker mounts namespaces where others do not look, and a program's own are mounted nowhere.
#[test]
fn a_namespace_of_which_there_is_only_a_process_counts() {
    let Some((host, [one, two])) = host("process", 48) else { return };
    host.cni("ADD", "c1", &one, &rail(0)).ok();
    let sleeper = Sleeper::new(Some(&one));
    remove(&host.path("run"));
    host.delete_netns(&one);
    let msg = host.cni("ADD", "c2", &two, &second()).error(11)["msg"].to_string();
    assert!(msg.contains(&format!("/proc/{}/ns/net", sleeper.pid())), "{msg}");
    drop(sleeper);
    host.cni("ADD", "c2", &two, &second()).ok();
}

/// A pod can say that it has any address: while no lease was lost, nobody asks it.
#[test]
fn after_a_boot_no_pod_can_take_addresses_from_others_by_having_them() {
    let Some((host, [one, two])) = host("boot", 64) else { return };
    host.ip_in(&one, "addr add 192.0.2.64/31 dev lo");
    host.cni("ADD", "c2", &two, &second()).ok();
    host.cni("DEL", "c2", &two, &second()).ok();
    // Nor once it was all given back.
    host.cni("ADD", "c2", &two, &second()).ok();
    host.cni("DEL", "c2", &two, &second()).ok();
    // Another boot: the mark says of which one it is.
    remove(&host.path("run"));
    fs::write(host.path("run.begun"), "another-boot").unwrap();
    host.cni("ADD", "c2", &two, &second()).ok();
}

/// What cannot be read is made anew from what lives, whether a runtime has mounted it or a process alone has it.
#[test]
fn a_damaged_list_of_what_lives_is_made_anew() {
    let Some((host, [one, two])) = host("damaged", 80) else { return };
    host.cni("ADD", "c1", &one, &rail(0)).ok();
    remove(&host.path("run"));
    let is_refused = |path: &Path| {
        let msg = host.cni("ADD", "c2", &two, &second()).error(11)["msg"].to_string();
        assert!(msg.contains(&format!("in the namespace {}", path.display())), "{msg}");
    };
    is_refused(&one);
    let damages = ["", "[", "{}"];
    let damage = |text| fs::write(host.path("run/living.json"), text).unwrap();
    for text in damages {
        damage(text);
        is_refused(&one);
    }
    let sleeper = Sleeper::new(Some(&one));
    host.delete_netns(&one);
    for text in damages {
        damage(text);
        is_refused(&sleeper.netns());
    }
    drop(sleeper);
    damage("[");
    host.cni("ADD", "c2", &two, &second()).ok();
}

/// The rails of a pod, or of several, come at once on a fresh node: those that wait for the first one must not take its
/// start for a run directory that was emptied, and refuse the addresses that a pod has given itself.
#[test]
fn the_first_calls_of_a_boot_look_into_no_namespace() {
    let Some((host, [one, two])) = host("first", 96) else { return };
    host.plan("rail-0", "192.0.2.96/28", "192.0.2.97", &[]);
    for address in 98..111 {
        host.ip_in(&one, &format!("addr add 192.0.2.{address}/32 dev lo"));
    }
    // All of them wait for this, so that none is alone.
    fs::create_dir(host.path("run")).unwrap();
    let lock = fs::File::create(host.path("run/living.lock")).unwrap();
    let lock = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
    std::thread::scope(|scope| {
        let (host, two) = (&host, &two);
        for number in 0..8 {
            scope.spawn(move || {
                host.call("ADD", &format!("c{number}"), two).ipam().run(&rail(0)).ok();
            });
        }
        std::thread::sleep(Duration::from_millis(500));
        drop(lock);
    });
    assert!(!host.path("run/living.json").exists());
}
