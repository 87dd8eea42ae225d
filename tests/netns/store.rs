//! Issue 4, "Serve": the store, written by `rail-ipam import` while pods come and go.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Call, Host, Ran};

/// A node with the pools `rail-0` and `rail-0-v6`, and manifests of more than one plan.
struct Store {
    host: Host,
    pod: PathBuf,
}

impl Store {
    fn new(test: &str) -> Option<Store> {
        let host = Host::new(test)?;
        let pod = host.add_netns("pod");
        Some(Store { host, pod })
    }

    /// Writes the manifests of plan `number`, 0 to 99: node-1 and node-2 have 172.16.NUMBER.0 and .2, and the same
    /// in IPv6.
    fn manifests(&self, number: u8) -> PathBuf {
        let pool = |name: &str, cidr: &str, length: u8, rows: [Value; 2]| {
            json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "CIDRPool", "metadata": {"name": name},
                "spec": {"cidr": cidr, "perNodeNetworkPrefix": length, "gatewayIndex": 1,
                    "routes": [{"dst": cidr}], "staticAllocations": rows}})
        };
        let row = |node: &str, prefix: String| json!({"nodeName": node, "prefix": prefix});
        let pools = json!([
            pool(
                "rail-0",
                "172.16.0.0/15",
                31,
                [
                    row("node-1", format!("172.16.{number}.0/31")),
                    row("node-2", format!("172.16.{number}.2/31")),
                ]
            ),
            pool(
                "rail-0-v6",
                "fd00::/32",
                127,
                [
                    row("node-1", format!("fd00:0:{number}::/127")),
                    row("node-2", format!("fd00:0:{number}::2/127")),
                ]
            ),
        ]);
        let file = self.host.path(&format!("plan-{number}.json"));
        fs::write(&file, pools.to_string()).unwrap();
        file
    }

    /// A command of rail-ipam.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rail-ipam"));
        command.args(args).env("RAIL_CNI_NODE_CONFIG", self.host.path("node.json"));
        command
    }

    fn import(&self, number: u8, args: &[&str]) -> Ran {
        let file = self.manifests(number);
        self.command(&["import", "--all-nodes"]).args(args).arg(file).output().unwrap().into()
    }

    fn call(&self, verb: &str, container: &str) -> Call {
        self.host.call(verb, container, &self.pod).ipam()
    }
}

/// A network with both pools.
fn network() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "any",
        "ipam": {"type": "rail-ipam", "pool": "rail-0,rail-0-v6"}})
}

/// Every file below `dir`, by its path, hidden ones too.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().display().to_string();
                found.push((name, fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// Issue 4: live leases outside the new plan are named and nothing is written without `--force`.
#[test]
fn a_plan_without_room_for_a_running_pod_is_not_written() {
    let Some(store) = Store::new("store::live") else { return };
    store.import(1, &[]).ok();
    store.call("ADD", "c1").run(&network()).ok();
    let before = files(&store.host.path("store"));
    let named = [
        "pool rail-0: node node-1: 172.16.1.0 is in use, held by net1 of pod default/pod (container c1)",
        "pool rail-0-v6: node node-1: fd00:0:1:: is in use",
    ];

    let refused = store.import(2, &[]);
    assert_eq!((refused.status, refused.stdout.as_str()), (1, ""), "{refused:?}");
    for text in named.iter().chain(&["nothing was written: 2 live leases"]) {
        assert!(refused.stderr.contains(text), "{text}: {refused:?}");
    }
    assert_eq!(files(&store.host.path("store")), before);

    let dry = store.import(2, &["--dry-run", "--output", "json"]).ok();
    assert_eq!(dry.json()["outside"][1]["address"], "fd00:0:1::", "{dry:?}");
    assert!(named.iter().all(|text| dry.stderr.contains(text)), "{dry:?}");
    assert_eq!(files(&store.host.path("store")), before);

    // Nobody else's pods: only the node's own leases are here.
    store.import(1, &[]).ok();
    let forced = store.import(2, &["--force"]).ok();
    assert!(named.iter().all(|text| forced.stderr.contains(text)), "{forced:?}");
    assert_ne!(files(&store.host.path("store")), before);
    // The pod goes on, its DEL works, and the next one has the new address.
    store.call("DEL", "c1").run(&network()).ok();
    assert!(store.host.leases().is_empty());
    let added = store.call("ADD", "c2").run(&network()).ok().json();
    assert_eq!(added["ips"][0]["address"], "172.16.2.0/31");
}

/// A pod whose namespace is gone has nothing to lose.
#[test]
fn leases_of_the_dead_stop_no_plan() {
    let Some(store) = Store::new("store::dead") else { return };
    store.import(1, &[]).ok();
    store.call("ADD", "c1").run(&network()).ok();
    store.host.delete_netns(&store.pod);
    store.import(2, &[]).ok();
}
