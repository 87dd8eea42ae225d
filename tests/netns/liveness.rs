//! Alive, dead, or cannot tell: what cannot be judged from here is not taken, by nobody. The
//! callers are in mount namespaces of their own, as debug pods and containers are.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{Call, Host, Ran, Sleeper, rail, skip, vf_address, with};

/// A node with one address, which the pod `old` holds.
struct Held {
    host: Host,
    old: PathBuf,
    new: PathBuf,
}

fn network() -> Value {
    json!({"cniVersion": "1.1.0", "name": "rail-0", "type": "any", "ipam": {"type": "rail-ipam", "pool": "rail-0"}})
}

impl Held {
    fn new(test: &str) -> Option<Held> {
        let host = Host::new(test)?;
        let (old, new) = (host.add_netns("old"), host.add_netns("new"));
        let held = Held { host, old, new };
        held.host.plan("rail-0", "172.16.0.0/31", "172.16.0.1", &[]);
        held.call("ADD", "old").run(&network()).ok();
        Some(held)
    }

    fn call(&self, verb: &str, container: &str) -> Call {
        let netns = if container == "old" {
            &self.old
        } else {
            &self.new
        };
        self.host.call(verb, container, netns).ipam()
    }

    /// Makes the call after `change`, in a mount namespace of its own.
    fn elsewhere(&self, call: Call, change: &str) -> Call {
        let old = self.old.display();
        let script = format!("set -e; netns={old}; {change}; exec \"$@\"");
        call.under(&[
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            &script,
            "sh",
        ])
    }

    fn is_held(&self) -> bool {
        self.host.leases().iter().any(|lease| {
            fs::read_to_string(lease)
                .unwrap()
                .contains(r#""containerID":"old""#)
        })
    }

    /// The address is taken by no call while `change` hides whether its holder lives, and all say
    /// why.
    #[track_caller]
    fn is_not_judged(&self, change: &str, why: &str) {
        let run = |call: Call| self.elsewhere(call, change).run(&network());
        let told = |ran: &Ran| {
            let text = format!("{}{}", ran.stdout, ran.stderr);
            assert!(text.contains(why), "no {why:?} in {ran:?}");
        };
        let added = run(self.call("ADD", "new"));
        added.error(11);
        told(&added);
        told(&run(self.call("GC", "").var("CNI_NETNS", "")).ok());
        let released = run(self.call("", "").args(&["release", "--dead"]));
        assert_eq!(released.status, 1, "{released:?}");
        told(&released);
        let shown = run(self.call("", "").args(&["leases", "--output", "json"])).ok();
        let lease = &shown.json()["pools"][0]["leases"][0];
        assert_eq!(lease["state"], "unknown", "{shown:?}");
        assert!(lease["error"].as_str().unwrap().contains(why), "{lease}");
        assert!(self.is_held());
    }

    /// With the pod gone and everything in sight, each of the three frees the address.
    fn is_judged_dead(&self) {
        let dead = self.host.leases()[0].clone();
        let lease = fs::read(&dead).unwrap();
        for free in ["GC", "release", "ADD"] {
            fs::create_dir_all(dead.parent().unwrap()).unwrap();
            fs::write(&dead, &lease).unwrap();
            let ran = match free {
                "GC" => self.call("GC", "").var("CNI_NETNS", "").run(&network()),
                "release" => self
                    .call("", "")
                    .args(&["release", "--dead"])
                    .run(&network()),
                _ => self.call("ADD", "new").run(&network()),
            };
            ran.ok();
            assert!(!self.is_held(), "{free}");
        }
        self.call("DEL", "new").run(&network()).ok();
    }
}

/// A debug pod's or a container's own /run/netns.
#[test]
fn who_has_another_folder_of_namespaces_takes_nothing() {
    let Some(held) = Held::new("liveness::folder") else {
        return;
    };
    held.is_not_judged("mount -t tmpfs tmpfs /run/netns", "/run/netns");
    // Not the death of the pod either.
    held.host.delete_netns(&held.old);
    held.is_not_judged("mount -t tmpfs tmpfs /run/netns", "/run/netns");
    held.is_judged_dead();
}

/// Without mount propagation the file is seen, and not the namespace that is bound to it.
#[test]
fn who_sees_the_file_below_a_namespace_takes_nothing() {
    let Some(held) = Held::new("liveness::file") else {
        return;
    };
    held.is_not_judged("umount -l $netns", "/run/netns");
    held.host.delete_netns(&held.old);
    held.is_judged_dead();
}

/// A namespace of a process, seen from a PID namespace that has other processes.
#[test]
fn who_has_another_proc_takes_nothing() {
    let Some(mut held) = Held::new("liveness::proc") else {
        return;
    };
    held.call("DEL", "old").run(&network()).ok();
    let process = crate::harness::Sleeper::new(Some(&held.old));
    held.old = process.netns();
    held.call("ADD", "old").run(&network()).ok();
    let wrapper = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"];
    let probe = std::process::Command::new(wrapper[0])
        .args(&wrapper[1..])
        .arg("true")
        .status();
    if probe.is_ok_and(|status| status.success()) {
        let added = held.call("ADD", "new").under(&wrapper).run(&network());
        let msg = added.error(11)["msg"].to_string();
        assert!(msg.contains("/proc "), "{msg}");
    } else {
        skip(
            "liveness::proc",
            "no PID namespace with a /proc of its own here",
        );
    }
    drop(process);
    held.is_judged_dead();
}

/// tests/contract-items, item 101: of a lease without a namespace nothing but GC's list can tell.
#[test]
fn a_lease_without_a_namespace_goes_by_the_list_alone() {
    let Some(held) = Held::new("liveness::none") else {
        return;
    };
    held.call("DEL", "old").run(&network()).ok();
    held.host
        .call("ADD", "old", Path::new("/nonexistent/netns"))
        .ipam()
        .run(&network())
        .ok();
    held.call("ADD", "new").run(&network()).error(11);
    assert_eq!(
        held.call("", "")
            .args(&["release", "--dead"])
            .run(&network())
            .status,
        1
    );
    let gc = |list: Value| {
        held.call("GC", "")
            .var("CNI_NETNS", "")
            .run(&with(network(), json!({"cni.dev/valid-attachments": list})))
            .ok()
    };
    gc(json!([{"containerID": "old", "ifname": "net1"}]));
    assert!(held.is_held());
    gc(json!([]));
    assert!(!held.is_held());
}

/// A process keeps the namespace of a dead pod, and with it the VF, which is up and answers for the
/// address. Whatever plugin attached it, nobody gets the address until the VF is home, or in the
/// next pod.
#[test]
fn an_address_is_held_while_its_device_has_not_come_back() {
    let Some(held) = Held::new("liveness::away") else {
        return;
    };
    held.call("DEL", "old").run(&network()).ok();
    held.host.make_vf(0, "mlx5_core");
    let with_device = |network: Value| with(network, json!({ "deviceID": vf_address(0) }));
    held.call("ADD", "old").run(&with_device(network())).ok();
    let process = Sleeper::new(Some(&held.old));
    let netdev = held
        .host
        .path("sys/devices")
        .join(vf_address(0))
        .join("net/vf0");
    fs::remove_dir(&netdev).unwrap();
    held.host.delete_netns(&held.old);
    held.is_not_judged("true", &vf_address(0));
    // Its PF's driver is gone, and it with it.
    let function = held.host.path("sys/bus/pci/devices").join(vf_address(0));
    let target = fs::read_link(&function).unwrap();
    fs::remove_file(&function).unwrap();
    let shown = || {
        held.call("", "")
            .args(&["leases", "--output", "json"])
            .run(&network())
            .ok()
            .json()
    };
    assert_eq!(shown()["pools"][0]["leases"][0]["state"], "dead");
    std::os::unix::fs::symlink(target, &function).unwrap();
    assert_eq!(shown()["pools"][0]["leases"][0]["state"], "unknown");
    // It is home.
    fs::create_dir(&netdev).unwrap();
    held.is_judged_dead();
    drop(process);
}

/// A VF that a living pod has by now did come back.
#[test]
fn an_address_is_free_once_the_next_pod_has_the_device() {
    let Some(held) = Held::new("liveness::succeeded") else {
        return;
    };
    held.call("DEL", "old").run(&network()).ok();
    held.host.make_vf(0, "mlx5_core");
    held.host.plan("rail-1", "172.16.0.2/31", "172.16.0.3", &[]);
    let with_pool = |pool: &str| {
        let ipam = json!({"type": "rail-ipam", "pool": pool});
        with(
            network(),
            json!({ "deviceID": vf_address(0), "ipam": ipam }),
        )
    };
    held.call("ADD", "old").run(&with_pool("rail-0")).ok();
    held.host.delete_netns(&held.old);
    held.call("ADD", "new").run(&with_pool("rail-1")).ok();
    fs::remove_dir(
        held.host
            .path("sys/devices")
            .join(vf_address(0))
            .join("net/vf0"),
    )
    .unwrap();
    held.call("ADD", "third").run(&network()).ok();
}

/// A runtime unmounted the namespace and left its file, or somebody made /run/netns anew: nothing
/// shows whether the pod is alive, but its device is home, and cannot answer for the address.
#[test]
fn an_address_is_free_once_its_device_is_home() {
    for next in ["another device", "the same device", "reap", "GC"] {
        println!("{next}");
        let Some(host) = Host::new("liveness::home") else {
            return;
        };
        host.add_rail(0);
        host.ip("link add vf9 type veth peer name leaf9");
        let old = host.add_netns("old");
        let new = host.add_netns("new");
        host.cni("ADD", "old", &old, &rail(0)).ok();
        host.hand_back(&old, "net1");
        fs::write(&old, "").unwrap();
        let other = with(rail(0), json!({"device": "vf9"}));
        match next {
            "another device" => host.cni("ADD", "new", &new, &other).ok(),
            "the same device" => host.cni("ADD", "new", &new, &rail(0)).ok(),
            "reap" => host
                .call("", "", &new)
                .args(&["reap"])
                .run(&Value::Null)
                .ok(),
            _ => {
                let gc = with(rail(0), json!({"cni.dev/valid-attachments": []}));
                host.call("GC", "", &new).var("CNI_NETNS", "").run(&gc).ok()
            }
        };
        let held = usize::from(next.ends_with("device"));
        assert_eq!(host.leases().len(), held, "{next}");
        assert_eq!(host.records().len(), held, "{next}");
        fs::remove_file(&old).unwrap();
    }
}

/// A process keeps the namespace of such a file, with the device in it.
#[test]
fn an_address_is_held_while_its_device_is_away() {
    let Some(host) = Host::new("liveness::kept") else {
        return;
    };
    host.add_rail(0);
    host.ip("link add vf9 type veth peer name leaf9");
    let old = host.add_netns("old");
    let new = host.add_netns("new");
    host.cni("ADD", "old", &old, &rail(0)).ok();
    let process = Sleeper::new(Some(&old));
    host.delete_netns(&old);
    fs::write(&old, "").unwrap();
    let other = with(rail(0), json!({"device": "vf9"}));
    host.cni("ADD", "new", &new, &other).error(11);
    host.call("", "", &new).args(&["reap"]).run(&Value::Null);
    assert_eq!(host.leases().len(), 1);
    assert_eq!(host.records().len(), 1);
    fs::remove_file(&old).unwrap();
    drop(process);
}
