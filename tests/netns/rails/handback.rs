//! A device whose pod died without a DEL: the kernel hands it back with the pod's name and MTU. The
//! next DEL, the next ADD, GC and `reap`, each alone puts it right (sriov-cni#126).

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{self, Host, Ran, Sleeper, rail, with};

/// Rail 0 after the death of pod c1: `net1`, or another name, with an MTU of 4000 and the MAC of
/// the network.
struct Died {
    host: Host,
    /// The former path of the pod's namespace.
    pod: PathBuf,
    before: Value,
}

fn config() -> Value {
    with(rail(0), json!({"mac": "02:00:00:00:00:01"}))
}

fn died(test: &str, name: &str) -> Option<Died> {
    let host = Host::new(test)?;
    host.add_rail(0);
    host.ip("link property add dev vf0 altname enp1s0v0");
    host.ip("link set vf0 mtu 1400");
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &config()).ok();
    host.ip_in(&pod, "link set net1 mtu 4000");
    host.hand_back(&pod, "net1");
    if name != "net1" {
        host.ip(&format!("link set net1 name {name}"));
    }
    assert_eq!(
        host.json(None, &format!("link show {name}"))[0]["mtu"],
        4000
    );
    Some(Died { host, pod, before })
}

fn for_both_names(test: &str, check: impl Fn(&Died)) {
    // The second is what the kernel takes when the host has a net1.
    for name in ["net1", "dev12"] {
        let Some(died) = died(test, name) else { return };
        check(&died);
    }
}

fn reap(host: &Host, args: &[&str]) -> Ran {
    let mut command = Command::new(harness::railctl());
    command
        .arg("reap")
        .args(args)
        .env("RAIL_CNI_NODE_CONFIG", host.path("node.json"));
    command.output().unwrap().into()
}

#[test]
fn del_puts_a_handed_back_device_right() {
    for netns in [None, Some("")] {
        for_both_names("handback::del", |Died { host, pod, before }| {
            let call = host.call("DEL", "c1", pod);
            let call = netns.map_or(call.clone(), |netns| call.var("CNI_NETNS", netns));
            for _ in 0..2 {
                call.run(&config()).ok();
                assert_eq!(host.snapshot(), *before);
            }
        });
    }
}

#[test]
fn the_next_add_puts_a_handed_back_device_right() {
    for_both_names("handback::add", |Died { host, before, .. }| {
        let pod = host.add_netns("next");
        let plain = rail(0);
        let added = host.cni("ADD", "c2", &pod, &plain).ok().json();
        // Not the MAC of the dead pod, but the device's own.
        assert_eq!(added["interfaces"][0]["mac"], before["links"]["vf0"]["mac"]);
        host.cni(
            "CHECK",
            "c2",
            &pod,
            &with(plain.clone(), json!({ "prevResult": added })),
        )
        .ok();
        host.cni("DEL", "c2", &pod, &plain).ok();
        assert_eq!(host.snapshot(), *before);
    });
}

#[test]
fn gc_puts_a_handed_back_device_right() {
    for_both_names("handback::gc", |Died { host, pod, before }| {
        host.cni(
            "GC",
            "",
            pod,
            &with(config(), json!({"cni.dev/valid-attachments": []})),
        )
        .ok();
        assert_eq!(host.snapshot(), *before);
    });
}

#[test]
fn reap_puts_a_handed_back_device_right() {
    for_both_names("handback::reap", |Died { host, before, .. }| {
        let found = host.snapshot();
        let dry = reap(host, &["--dry-run"]).ok();
        assert!(dry.stdout.contains("vf0"), "{dry:?}");
        assert_eq!(host.snapshot(), found);
        let done = reap(host, &[]).ok();
        assert!(golden::has(&done.stdout, "1 returned…0 …0 "), "{done:?}");
        assert_eq!(host.snapshot(), *before);
        assert!(reap(host, &[]).ok().stdout.contains("0 returned"));
    });
}

/// multi-nic-cni#278: two pods died, one device has the name of the other's interface.
#[test]
fn reap_puts_many_right_and_leaves_the_living_alone() {
    let Some(host) = Host::new("handback::many") else {
        return;
    };
    (0..3).for_each(|rail| host.add_rail(rail));
    let before = host.snapshot();
    for n in 0..2 {
        let pod = host.add_netns(&format!("dead{n}"));
        host.cni("ADD", &format!("dead{n}"), &pod, &rail(n)).ok();
        host.hand_back(&pod, "net1");
        if n == 0 {
            host.ip("link set net1 name dev7");
        }
    }
    let pod = host.add_netns("alive");
    let added = host.cni("ADD", "alive", &pod, &rail(2)).ok().json();
    let done = reap(&host, &[]).ok();
    assert!(golden::has(&done.stdout, "2 returned…1 in use"), "{done:?}");
    host.cni(
        "CHECK",
        "alive",
        &pod,
        &with(rail(2), json!({ "prevResult": added })),
    )
    .ok();
    host.cni("DEL", "alive", &pod, &rail(2)).ok();
    assert_eq!(host.snapshot(), before);
}

/// sriov-cni#219: the DEL of the dead pod comes when the device is another's.
#[test]
fn a_late_del_leaves_the_device_of_the_next_pod_alone() {
    for netns_gone in [true, false] {
        for_both_names("handback::late", |Died { host, pod, before }| {
            let next = host.add_netns("next");
            let added = host.cni("ADD", "c2", &next, &config()).ok().json();
            let old = if netns_gone {
                pod.clone()
            } else {
                next.clone()
            };
            for _ in 0..2 {
                host.cni("DEL", "c1", &old, &config()).ok();
                host.cni(
                    "CHECK",
                    "c2",
                    &next,
                    &with(config(), json!({ "prevResult": added })),
                )
                .ok();
            }
            host.cni("GC", "", pod, &config()).ok();
            host.cni(
                "CHECK",
                "c2",
                &next,
                &with(config(), json!({ "prevResult": added })),
            )
            .ok();
            host.cni("DEL", "c2", &next, &config()).ok();
            assert_eq!(host.snapshot(), *before);
        });
    }
}

/// sriov-cni#445: an altname that the pod gave is not taken to the host, and the device's own is
/// kept.
#[test]
fn altnames_are_as_they_were() {
    let Some(host) = Host::new("handback::altnames") else {
        return;
    };
    host.add_rail(0);
    host.ip(
        "link property add dev vf0 altname enp1s0v0 altname a-name-that-is-longer-than-fifteen",
    );
    let before = host.snapshot();
    for clash in [
        None,
        Some("enp1s0v0"),
        Some("a-name-that-is-longer-than-fifteen"),
    ] {
        let pod = host.add_netns(&format!("pod{}", clash.map_or(0, str::len)));
        host.ip_in(&pod, "link add eth0 type veth peer name eth0-peer");
        if let Some(name) = clash {
            host.ip_in(&pod, &format!("link property add dev eth0 altname {name}"));
        }
        host.cni("ADD", "c1", &pod, &rail(0)).ok();
        host.cni("DEL", "c1", &pod, &rail(0)).ok();
        assert_eq!(host.snapshot(), before, "{clash:?}");
    }
    // The name in the pod is one of the device's own.
    let pod = host.add_netns("own");
    host.call("ADD", "c1", &pod)
        .ifname("enp1s0v0")
        .run(&rail(0))
        .ok();
    host.call("DEL", "c1", &pod)
        .ifname("enp1s0v0")
        .run(&rail(0))
        .ok();
    assert_eq!(host.snapshot(), before);
}

/// host-device fails there for ever, with the device up in the pod.
#[test]
fn a_device_whose_name_was_taken_leaves_the_pod_and_gets_it_back_later() {
    let Some(host) = Host::new("handback::name") else {
        return;
    };
    host.add_rail(0);
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    host.ip("link add vf0 type veth peer name thief");
    for _ in 0..2 {
        host.cni("DEL", "c1", &pod, &rail(0)).ok();
        assert_eq!(
            host.json(Some(&pod), "link show").as_array().unwrap().len(),
            1
        );
        assert!(host.leases().is_empty());
    }
    host.ip("link del vf0");
    reap(&host, &[]).ok();
    assert_eq!(host.snapshot(), before);
}

/// A network that names its device by that name gets it as soon as the name is free.
#[test]
fn a_device_is_found_by_the_name_that_it_is_owed() {
    let Some(host) = Host::new("handback::owed_name") else {
        return;
    };
    host.add_rail(0);
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    host.ip("link add vf0 type veth peer name thief");
    host.cni("DEL", "c1", &pod, &rail(0)).ok();
    host.ip("link del vf0");
    assert_ne!(host.snapshot(), before);
    host.cni("ADD", "c2", &pod, &rail(0)).ok();
    host.cni("DEL", "c2", &pod, &rail(0)).ok();
    assert_eq!(host.snapshot(), before);
}

/// The kernel gives another index to what comes back when its own is taken, here with its name too.
#[test]
fn a_device_whose_index_was_taken_goes_back_as_it_was() {
    for filler in ["filler", "vf0"] {
        let Some(host) = Host::new("handback::index") else {
            return;
        };
        host.add_rail(0);
        host.ip("link property add dev vf0 altname enp1s0v0");
        let before = host.snapshot();
        let index = host.json(None, "link show vf0")[0]["ifindex"].clone();
        let pod = host.add_netns("pod");
        host.cni("ADD", "c1", &pod, &config()).ok();
        host.ip(&format!(
            "link add {filler} index {index} type veth peer name filler-peer"
        ));
        host.cni("DEL", "c1", &pod, &config()).ok();
        host.ip(&format!("link del {filler}"));
        reap(&host, &[]).ok();
        assert_eq!(host.snapshot(), before, "{filler}");
    }
}

/// A driver that recovers, or is loaded again, makes the netdev anew on the host.
#[test]
fn nobody_calls_a_rail_dead_that_a_driver_took_out_of_a_living_pod() {
    let Some(host) = Host::new("handback::lost") else {
        return;
    };
    host.add_rail(0);
    host.ip("link add second type veth peer name far");
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    let other = host.add_netns("other");
    let lose = || {
        let home = Sleeper::new(None);
        host.ip_in(&pod, &format!("link set net1 down netns {}", home.pid()));
    };
    host.cni("ADD", "c1", &pod, &config()).ok();
    lose();
    // It is not taken for that of a dead pod.
    reap(&host, &[]).ok();
    assert_eq!((host.records().len(), host.leases().len()), (1, 1));
    let second = with(config(), json!({"device": "second"}));
    let by_address = host.cni("ADD", "c2", &other, &second).error(11)["msg"].to_string();
    assert!(by_address.contains("container c1"), "{by_address}");
    // Its own ADD attaches it again, its DEL ends it, an operator can, and so does an ADD for the
    // device, which the kubelet gives to no second pod.
    host.cni("ADD", "c1", &pod, &config()).ok();
    lose();
    host.cni("DEL", "c1", &pod, &config()).ok();
    assert_eq!(host.snapshot(), before);
    host.cni("ADD", "c1", &pod, &config()).ok();
    lose();
    reap(&host, &["--force", "c1"]).ok();
    assert_eq!(host.snapshot(), before);
    host.cni("ADD", "c1", &pod, &config()).ok();
    lose();
    host.cni("ADD", "c2", &other, &config()).ok();
    host.cni("DEL", "c1", &pod, &config()).ok();
    host.cni("DEL", "c2", &other, &config()).ok();
    assert_eq!(host.snapshot(), before);
}
