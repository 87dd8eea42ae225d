//! Each refusal of ADD that does not depend on the pod, and the check of doctor that foretells it.

use std::any::Any;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{kept_away, two_rails};
use crate::harness::{Call, Host, Ran, pf_address, rail, vf_address, with};

/// A state of a node in which ADD is refused.
struct Case {
    /// The fault. ADD's error is in the golden file under this name.
    fault: &'static str,
    check: &'static str,
    /// Makes the state; what it returns is kept meanwhile.
    make: fn(&Host) -> Option<Box<dyn Any>>,
    /// The network of the ADD, if not rail 0.
    config: fn() -> Value,
    /// Commands before the program, in namespaces of its own.
    within: fn(&Host) -> Option<String>,
}

impl Case {
    fn call(&self, host: &Host, call: Call) -> Call {
        match (self.within)(host) {
            None => call,
            Some(script) => call.under(&[
                "unshare",
                "-mu",
                "sh",
                "-c",
                &format!("{script}; exec \"$@\""),
                "sh",
            ]),
        }
    }
}

const ANY: Case = Case {
    fault: "",
    check: "",
    make: |_| None,
    config: || rail(0),
    within: |_| None,
};

fn by_id(rail_number: u8) -> Value {
    let mut config = with(
        rail(rail_number),
        json!({ "deviceID": vf_address(rail_number) }),
    );
    config.as_object_mut().unwrap().remove("device");
    config
}

fn at(host: &Host, path: &str) -> std::path::PathBuf {
    host.path("sys/devices").join(path)
}

fn listed(host: &Host, pfs: [&str; 2], more: Value) -> Option<Box<dyn Any>> {
    let rails: Vec<_> = pfs
        .iter()
        .enumerate()
        .map(|(rail, pf)| json!({"rail": rail, "pf": pf}))
        .collect();
    host.set_node(with(json!({ "rails": rails }), more));
    None
}

fn as_planned(host: &Host, more: Value) -> Option<Box<dyn Any>> {
    listed(host, [&pf_address(0), &pf_address(1)], more)
}

/// Changes what the store has of rail 0.
fn replan(host: &Host, more: Value) -> Option<Box<dyn Any>> {
    let file = host.path("store/node-1/rail-0.json");
    let planned: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    fs::write(&file, with(planned, more).to_string()).unwrap();
    None
}

/// A pod that is gone, whose device is on the host; what it had is on file.
fn lost(host: &Host) -> std::path::PathBuf {
    let pod = host.add_netns("gone");
    host.cni("ADD", "gone", &pod, &rail(0)).ok();
    host.hand_back(&pod, "net1");
    pod
}

fn cases() -> Vec<Case> {
    vec![
        Case {
            fault: "a key that is unknown",
            check: "node.json",
            make: |host| {
                host.set_node(json!({"rials": []}));
                None
            },
            ..ANY
        },
        Case {
            fault: "one PF for two rails",
            check: "node.json",
            make: |host| listed(host, [&pf_address(0), &pf_address(0)], json!({})),
            config: || rail(1),
            ..ANY
        },
        Case {
            fault: "policy.rails",
            check: "node.json",
            make: |host| as_planned(host, json!({"policy": {"rails": [1]}})),
            ..ANY
        },
        Case {
            fault: "swapped rails",
            check: "rail-order",
            make: |host| listed(host, [&pf_address(1), &pf_address(0)], json!({})),
            ..ANY
        },
        Case {
            fault: "a host name that is not valid",
            check: "pools",
            make: |host| {
                // Of this thread, and what it starts. hostname(1) would refuse it, and /proc
                // belongs to root alone.
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUTS).unwrap();
                nix::unistd::sethostname("a b").unwrap();
                as_planned(host, json!({"nodeName": null}))
            },
            ..ANY
        },
        Case {
            fault: "no IPAM plugin",
            check: "programs",
            within: |_| {
                let ours = env!("CARGO_BIN_EXE_rail-cni");
                Some(format!(
                    "mount -t tmpfs none /opt; mkdir -p /opt/cni/bin; cp {ours} /opt/cni/bin; export CNI_PATH=/opt/cni/bin"
                ))
            },
            ..ANY
        },
        Case {
            fault: "a file in the place of the run directory",
            check: "run",
            make: |host| {
                fs::write(host.path("run"), "").unwrap();
                None
            },
            ..ANY
        },
        Case {
            fault: "no space for records",
            check: "run",
            make: |host| {
                fs::create_dir(host.path("run")).unwrap();
                None
            },
            within: |host| {
                Some(format!(
                    "mount -t tmpfs -o nr_inodes=1 none {}",
                    host.path("run").display()
                ))
            },
            ..ANY
        },
        Case {
            fault: "a directory that is a link",
            check: "inventory",
            make: |host| {
                fs::create_dir(host.path("run")).unwrap();
                fs::create_dir(host.path("run/locks")).unwrap();
                fs::write(host.path("run/attachments"), "").unwrap();
                None
            },
            ..ANY
        },
        Case {
            fault: "a PF that node.json does not list",
            check: "pf",
            make: |host| listed(host, ["0000:77:00.0", &pf_address(1)], json!({})),
            ..ANY
        },
        Case {
            fault: "policy.pfs",
            check: "pf",
            make: |host| as_planned(host, json!({"policy": {"pfs": [pf_address(1)]}})),
            ..ANY
        },
        Case {
            fault: "a smaller MTU",
            check: "pf-mtu",
            make: |host| {
                host.ip("link set pf0 mtu 1500");
                None
            },
            ..ANY
        },
        Case {
            fault: "no such device",
            check: "vfs",
            make: |host| {
                fs::remove_file(at(host, &pf_address(0)).join("virtfn0")).unwrap();
                fs::remove_file(host.path("sys/bus/pci/devices").join(vf_address(0))).unwrap();
                None
            },
            config: || by_id(0),
            ..ANY
        },
        Case {
            fault: "a VF without a driver",
            check: "vfs",
            make: |host| {
                fs::remove_file(at(host, &vf_address(0)).join("driver")).unwrap();
                fs::remove_dir(at(host, &vf_address(0)).join("net/vf0")).unwrap();
                None
            },
            config: || by_id(0),
            ..ANY
        },
        Case {
            fault: "policy.drivers",
            check: "vfs",
            make: |host| as_planned(host, json!({"policy": {"drivers": ["ice"]}})),
            ..ANY
        },
        Case {
            fault: "an address of the host",
            check: "host-use",
            make: |host| {
                host.ip("addr add 192.0.2.1/24 dev vf0");
                None
            },
            ..ANY
        },
        Case {
            fault: "a device that has not returned",
            check: "records",
            make: |host| Some(Box::new(kept_away(host))),
            config: || by_id(0),
            ..ANY
        },
        Case {
            fault: "no allocation",
            check: "pools",
            make: |host| {
                fs::remove_file(host.path("store/node-1/rail-0.json")).unwrap();
                None
            },
            ..ANY
        },
        Case {
            fault: "a closed node",
            check: "pools",
            make: |host| {
                fs::write(
                    host.path("store/.closed.node-1"),
                    "another node has its prefixes\n",
                )
                .unwrap();
                None
            },
            ..ANY
        },
        Case {
            fault: "a damaged allocation",
            check: "pools",
            make: |host| {
                fs::write(host.path("store/node-1/rail-0.json"), "{").unwrap();
                None
            },
            ..ANY
        },
        Case {
            fault: "no address for pods",
            check: "pools",
            make: |host| {
                replan(
                    host,
                    json!({"exclusions": [{"startIP": "172.16.0.0", "endIP": "172.16.0.0"}]}),
                )
            },
            ..ANY
        },
        Case {
            fault: "the pool of another rail",
            check: "pools",
            make: |host| replan(host, json!({"rail": 1})),
            ..ANY
        },
        Case {
            fault: "a rail that node.json does not list",
            check: "pools",
            make: |host| {
                replan(host, json!({"rail": 0}));
                host.set_node(json!({"rails": [{"rail": 1, "pf": pf_address(1)}]}));
                None
            },
            ..ANY
        },
        Case {
            fault: "a route over a network of the cluster",
            check: "routes",
            make: |host| {
                as_planned(
                    host,
                    json!({"clusterNetworks": ["10.96.0.0/12", "172.20.0.0/16"]}),
                )
            },
            ..ANY
        },
        Case {
            fault: "an address in a network of the cluster",
            check: "routes",
            make: |host| {
                replan(host, json!({"routes": []}));
                as_planned(host, json!({"clusterNetworks": ["172.16.0.0/24"]}))
            },
            ..ANY
        },
        Case {
            fault: "a damaged lease",
            check: "leases",
            make: |host| {
                fs::create_dir_all(host.path("run/leases")).unwrap();
                fs::write(host.path("run/leases/172.16.0.0@0.json"), "{").unwrap();
                None
            },
            ..ANY
        },
        Case {
            fault: "a holder that may be alive",
            check: "leases",
            make: |host| {
                // The file that the namespace was bound to is left, and nobody has the device on
                // record.
                fs::write(lost(host), "").unwrap();
                fs::remove_dir_all(host.path("run/attachments")).unwrap();
                fs::remove_dir_all(host.path("run/locks")).unwrap();
                host.ip("link set net1 name vf0");
                None
            },
            ..ANY
        },
    ]
}

/// Every fourth of the cases, so that they run side by side.
fn foretells(first: usize) {
    for case in cases().into_iter().skip(first).step_by(4) {
        let Some(host) = two_rails("operator::foretold") else {
            return;
        };
        let doctor = |host: &Host| -> Ran {
            let call = host
                .call("", "", Path::new(""))
                .args(&["doctor", "--output", "json"]);
            case.call(host, call).run(&Value::Null)
        };
        let is_failed = |ran: &Ran| {
            let json = ran.json();
            let mut all = json["checks"].as_array().unwrap().iter();
            ran.status == 1 && all.any(|one| one["verdict"] == "fail" && one["check"] == case.check)
        };
        let kept = (case.make)(&host);
        let told = doctor(&host);
        assert!(is_failed(&told), "{}: {told:?}", case.fault);
        let pod = host.add_netns("pod");
        let refused = case
            .call(&host, host.call("ADD", "c1", &pod))
            .run(&(case.config)());
        golden::says(
            "plugins",
            &format!("ADD is refused: {}", case.fault),
            host.steady(&refused.msg()),
        );
        // And when ADD has looked.
        let told = doctor(&host);
        assert!(is_failed(&told), "{}, after the ADD: {told:?}", case.fault);
        drop(kept);
    }
}

#[test]
fn what_add_refuses_doctor_foretells_1() {
    foretells(0);
}

#[test]
fn what_add_refuses_doctor_foretells_2() {
    foretells(1);
}

#[test]
fn what_add_refuses_doctor_foretells_3() {
    foretells(2);
}

#[test]
fn what_add_refuses_doctor_foretells_4() {
    foretells(3);
}

/// Two rails whose nodes are well are told so: no case is there by chance.
#[test]
fn a_node_without_any_of_them_passes() {
    let Some(host) = two_rails("operator::foretold_none") else {
        return;
    };
    super::run(&host, &["doctor"]).ok();
    for (number, config) in [(0, by_id(0)), (1, rail(1))] {
        let pod = host.add_netns(&format!("pod{number}"));
        host.cni("ADD", &format!("c{number}"), &pod, &config).ok();
    }
    super::run(&host, &["doctor"]).ok();
}
