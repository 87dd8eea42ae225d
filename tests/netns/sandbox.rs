//! A pod's older sandbox gives way to its newer one: a runtime that lost the first sandbox makes
//! another, under the same UID, without a DEL.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Call, Host, rail, vf_address, with};

/// A pod with two sandboxes on a rail of one address, and another pod.
struct Sandboxes {
    host: Host,
    netns: [PathBuf; 3],
}

const CONTAINERS: [&str; 3] = ["old", "new", "other"];
const UID: &str = "7e1c0d6e-0000-4000-8000-000000000001";
const OTHER_UID: &str = "7e1c0d6e-0000-4000-8000-000000000002";

impl Sandboxes {
    fn new(test: &str) -> Option<Sandboxes> {
        let host = Host::new(&format!("sandbox::{test}"))?;
        host.add_rail(0);
        host.plan("rail-0", "172.16.0.0/31", "172.16.0.1", &[]);
        let netns = CONTAINERS.map(|name| {
            // The clock of file systems counts in ticks of 4 or 10 ms.
            sleep(Duration::from_millis(20));
            host.add_netns(name)
        });
        Some(Sandboxes { host, netns })
    }

    fn call(&self, verb: &str, sandbox: usize) -> Call {
        let uid = if sandbox == 2 { OTHER_UID } else { UID };
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=ai;K8S_POD_NAME=trainer-0;K8S_POD_UID={uid}"
        );
        self.host
            .call(verb, CONTAINERS[sandbox], &self.netns[sandbox])
            .var("CNI_ARGS", &args)
    }

    fn has_rail(&self, sandbox: usize) -> bool {
        let links = self.host.json(Some(&self.netns[sandbox]), "addr show");
        links.to_string().contains("172.16.0.0")
    }
}

/// By its interface, and by another one for the same device.
#[test]
fn a_newer_sandbox_takes_device_and_address_from_the_older_one() {
    let Some(pod) = Sandboxes::new("newer") else {
        return;
    };
    let before = pod.host.snapshot();
    for ifname in ["net1", "net2"] {
        pod.call("ADD", 0).ifname(ifname).run(&rail(0)).ok();
        assert!(pod.has_rail(0));
        let added = pod.call("ADD", 1).run(&rail(0)).ok();
        assert!(added.stderr.contains("older sandbox"), "{added:?}");
        assert!(pod.has_rail(1) && !pod.has_rail(0));
        assert_eq!(
            (pod.host.records().len(), pod.host.leases().len()),
            (1, 1),
            "of the new sandbox alone"
        );
        // The late DEL of the old one takes nothing.
        pod.call("DEL", 0).ifname(ifname).run(&rail(0)).ok();
        pod.call("CHECK", 1)
            .run(&with(rail(0), json!({"prevResult": added.json()})))
            .ok();
        pod.call("DEL", 1).run(&rail(0)).ok();
        assert_eq!(pod.host.snapshot(), before);
    }
}

/// A late ADD of the old sandbox, and another pod with the name of the first.
#[test]
fn an_older_sandbox_and_another_pod_take_nothing() {
    let Some(pod) = Sandboxes::new("older") else {
        return;
    };
    pod.call("ADD", 1).run(&rail(0)).ok();
    for other in [0, 2] {
        let refused = pod.call("ADD", other).run(&rail(0));
        let msg = refused.error(11)["msg"].to_string();
        assert!(msg.contains("container new as net1"), "{msg}");
        assert!(pod.has_rail(1));
    }
}

/// Another VF of the rail was given to the newer sandbox: the address is what both want.
#[test]
fn the_address_of_the_older_sandbox_comes_with_its_device() {
    let Some(pod) = Sandboxes::new("address") else {
        return;
    };
    pod.host.ip("link add second type veth peer name far");
    pod.call("ADD", 0).run(&rail(0)).ok();
    let second = with(rail(0), json!({"device": "second"}));
    let refused = pod.call("ADD", 2).run(&second).error(11);
    let msg = refused["msg"].to_string();
    // To delete the pod of this name would delete the one that starts.
    assert!(msg.contains("`crictl stopp old`"), "{msg}");
    assert!(!msg.contains("delete that pod"), "{msg}");
    pod.call("ADD", 1).run(&second).ok();
    assert!(pod.has_rail(1) && !pod.has_rail(0));
    assert!(pod.host.ip("link show vf0").contains("vf0"));
}

/// As above, and the lease names its device: its own entry in the table is no successor.
#[test]
fn an_address_of_a_vf_comes_with_the_vf() {
    let Some(pod) = Sandboxes::new("vf") else {
        return;
    };
    pod.host.make_vf(0, "mlx5_core");
    pod.host.ip("link add second type veth peer name far");
    let first = with(rail(0), json!({"device": null, "deviceID": vf_address(0)}));
    pod.call("ADD", 0).run(&first).ok();
    // The kernel shows no netdev of a VF that is away.
    let net = format!("sys/devices/{}/net/vf0", vf_address(0));
    fs::remove_dir(pod.host.path(&net)).unwrap();
    let second = with(rail(0), json!({"device": "second"}));
    pod.call("ADD", 1).run(&second).ok();
    assert!(pod.has_rail(1) && !pod.has_rail(0));
    assert!(pod.host.ip("link show vf0").contains("vf0"));
}

/// rail-ipam below another plugin: nobody takes the device home, so the address passes on as soon
/// as the old namespace does not have it.
#[test]
fn an_address_without_a_device_passes_on_when_nothing_answers_for_it() {
    let Some(pod) = Sandboxes::new("ipam") else {
        return;
    };
    let network: Value = json!({"cniVersion": "1.1.0", "name": "rail-0", "type": "any",
        "ipam": {"type": "rail-ipam", "pool": "rail-0"}});
    let run = |sandbox: usize| pod.call("ADD", sandbox).ipam().run(&network);
    run(0).ok();
    pod.host
        .ip_in(&pod.netns[0], "addr add 172.16.0.0/31 dev lo");
    let msg = run(1).error(11)["msg"].to_string();
    assert!(msg.contains("`crictl stopp old`"), "{msg}");
    pod.host.ip_in(&pod.netns[0], "addr flush dev lo");
    run(2).error(11);
    run(1).ok();
    assert_eq!(pod.host.leases().len(), 1);
}
