//! whereabouts below rail-cni, as conf/migration/sriov-whereabouts.yaml has it: the IPAM plugin is
//! kept, and `type` alone has changed.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::process::{Command, Output};
use std::thread;

use serde_json::{Value, json};

use crate::node::{
    self, documents, executable, ip, json_of, on_a_node, text_of, vf_address, write,
};
use crate::objects::{self, Objects};

const CALLER: &str = "whereabouts-0.8.0";
const FOLDER: &str = "/etc/cni/net.d/whereabouts.d";

/// Starts the double of an API server, and returns its URL.
fn start(objects: &Objects) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let objects = objects.clone();
    thread::spawn(move || objects::serve(&listener, &objects));
    url
}

/// Calls the plugin as Multus does, for pod `name` with rail R as `netR+1`.
fn call(verb: &str, config: &Value, name: &str, rail: u8) -> Output {
    let mut config = config.clone();
    if config["device"].is_null() {
        (config["deviceID"], config["pciBusID"]) =
            (json!(vf_address(rail)), json!(vf_address(rail)));
    }
    let variables = BTreeMap::from([
        ("CNI_COMMAND", verb.to_owned()),
        ("CNI_CONTAINERID", format!("{name}-sandbox")),
        ("CNI_NETNS", format!("/run/netns/{name}")),
        ("CNI_IFNAME", format!("net{}", rail + 1)),
        ("CNI_PATH", "/opt/cni/bin".to_owned()),
        (
            "CNI_ARGS",
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ai-training;K8S_POD_NAME={name}"),
        ),
    ]);
    let plugin = format!("/opt/cni/bin/{}", config["type"].as_str().unwrap());
    node::run(&mut Command::new(plugin), &variables, &config.to_string())
}

#[track_caller]
fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", text_of(output));
}

#[test]
fn whereabouts_serves_the_rails_of_the_migrated_networks() {
    on_a_node(
        "whereabouts::whereabouts_serves_the_rails_of_the_migrated_networks",
        &[CALLER, "plugins"],
        |node| {
            let objects = Objects::default();
            let url = start(&objects);
            symlink(executable(CALLER, "cmd"), "/opt/cni/bin/whereabouts").unwrap();
            let kubeconfig = format!("{FOLDER}/whereabouts.kubeconfig");
            let contexts = json!([{"name": "node", "context": {"cluster": "node", "user": "node", "namespace": "kube-system"}}]);
            let access = json!({"apiVersion": "v1", "kind": "Config", "current-context": "node", "contexts": contexts,
            "clusters": [{"name": "node", "cluster": {"server": url}}], "users": [{"name": "node", "user": {}}]});
            write(&kubeconfig, access.to_string());
            let flat = json!({"datastore": "kubernetes", "kubernetes": {"kubeconfig": kubeconfig}});
            write(format!("{FOLDER}/whereabouts.conf"), flat.to_string());

            let nads = documents("conf/migration/sriov-whereabouts.yaml");
            let config = |rail: u8| -> Value {
                let nad = &nads[usize::from(rail)];
                serde_json::from_str(nad["spec"]["config"].as_str().unwrap()).unwrap()
            };
            // host-device gets the same address for the same network.
            node.add_pod("before");
            let mut before = config(0);
            (before["type"], before["device"]) = (json!("host-device"), json!("vf0"));
            let result = json_of(&call("ADD", &before, "before", 0));
            assert_eq!(result["ips"][0]["address"], "10.50.0.1/16", "{result}");
            succeeds(&call("DEL", &before, "before", 0));

            // Two rails of a pod, and a second pod with another VF of rail 0's subnet: the
            // addresses are the cluster's.
            node.add_pod("trainer");
            node.add_pod("other");
            let calls = [
                ("trainer", 0, config(0)),
                ("trainer", 1, config(1)),
                ("other", 2, config(0)),
            ];
            let mut addresses = Vec::new();
            for (pod, rail, config) in &calls {
                let result = json_of(&call("ADD", config, pod, *rail));
                addresses.push(result["ips"][0]["address"].as_str().unwrap().to_owned());
                let shown = ip(&format!("-n {pod} -4 -br addr show dev net{}", rail + 1));
                assert!(shown.contains(addresses.last().unwrap()), "{shown}");
            }
            assert_eq!(addresses, ["10.50.0.1/16", "10.51.0.1/16", "10.50.0.2/16"]);
            let held = || -> usize {
                let objects = objects.lock().unwrap();
                let pools = objects
                    .iter()
                    .filter(|(path, _)| path.contains("/ippools/"));
                pools
                    .map(|(_, pool)| pool["spec"]["allocations"].as_object().unwrap().len())
                    .sum()
            };
            assert_eq!(held(), 3);
            for (pod, rail, config) in &calls {
                for _ in 0..2 {
                    succeeds(&call("DEL", config, pod, *rail));
                }
            }
            assert_eq!(held(), 0);
            node.is_as_before();
        },
    );
}
