//! Multus, called as a runtime calls it, with conf/nads.yaml and conf/pod.yaml as they are. It asks
//! an API server for the pod and its networks, and takes the devices from kubelet's checkpoint.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::Api;
use crate::node::{
    self, Node, RAILS, address_of_vf, documents, executable, ip, json_of, on_a_node, text_of,
    vf_address, write,
};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
pub const UID: &str = "6d9f0a52-3f0c-4d0e-8a55-0c9c4f1d2e3b";
const KUBECONFIG: &str = "/etc/cni/net.d/multus.d/multus.kubeconfig";
const CHECKPOINT: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";
/// Directory in which Multus keeps its requests, for the DEL.
const CACHE: &str = "/var/lib/cni/multus";

macro_rules! under_each_multus {
    ($($test:ident)*) => {
        mod thin_4_3_0 {
            $(#[test]
            fn $test() {
                super::run(concat!("multus::thin_4_3_0::", stringify!($test)), "multus-4.3.0", super::$test);
            })*
        }
        mod thin_4_1_4 {
            $(#[test]
            fn $test() {
                super::run(concat!("multus::thin_4_1_4::", stringify!($test)), "multus-4.1.4", super::$test);
            })*
        }
    };
}

under_each_multus! {
    a_pod_gets_its_rails_by_annotation
    ten_pods_in_a_row_get_eight_rails
    one_network_serves_all_rails_whatever_the_order_of_the_devices
    what_the_device_plugin_says_reaches_the_network_status
    a_failure_at_rail_4_rolls_all_back
    a_pod_gets_the_address_and_the_mac_that_it_asks_for
    the_rails_come_back_when_the_api_is_gone
    the_rails_come_back_when_their_networks_are_deleted
    the_rails_come_back_when_their_networks_are_changed
    the_rails_come_back_when_the_cache_is_lost
    nothing_is_left_of_a_pod_whose_multus_is_killed
}

fn run(test: &str, version: &'static str, body: fn(&Cluster)) {
    on_a_node(test, &[version, "plugins"], |node| {
        body(&Cluster::new(node, version))
    });
}

/// A node with Multus, and what it asks.
pub struct Cluster<'a> {
    node: &'a Node,
    pub api: Api,
    version: &'static str,
}

/// A sandbox of the pod trainer-0.
pub struct Sandbox {
    pub id: String,
    netns: String,
}

impl Sandbox {
    pub fn new(node: &Node, name: &str) -> Sandbox {
        Sandbox {
            id: format!("{name}-sandbox"),
            netns: node.add_pod(name),
        }
    }

    /// The environment that a runtime sets.
    pub fn variables(&self, verb: &str) -> BTreeMap<&'static str, String> {
        let id = &self.id;
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=trainer-0;K8S_POD_INFRA_CONTAINER_ID={id};K8S_POD_UID={UID}"
        );
        BTreeMap::from([
            ("CNI_COMMAND", verb.to_owned()),
            ("CNI_CONTAINERID", id.clone()),
            ("CNI_NETNS", self.netns.clone()),
            ("CNI_IFNAME", "eth0".to_owned()),
            ("CNI_PATH", "/opt/cni/bin".to_owned()),
            ("CNI_ARGS", args),
        ])
    }
}

impl<'a> Cluster<'a> {
    pub fn new(node: &'a Node, version: &'static str) -> Cluster<'a> {
        let api = Api::start();
        for nad in documents("conf/nads.yaml") {
            api.apply(&nad);
        }
        let cluster = Cluster { node, api, version };
        cluster.api.apply(&pod());
        cluster.kubeconfig(&cluster.api.url);
        allot(&[(UID, 0)]);
        cluster
    }

    fn kubeconfig(&self, url: &str) {
        let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "node",
            "clusters": [{"name": "node", "cluster": {"server": url}}],
            "contexts": [{"name": "node", "context": {"cluster": "node", "user": "node"}}],
            "users": [{"name": "node", "user": {}}]});
        write(KUBECONFIG, text.to_string());
    }

    /// Multus' configuration, with eth0 from upstream's bridge.
    pub fn config(&self) -> Value {
        let eth0 = node::eth0();
        json!({"cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus", "kubeconfig": KUBECONFIG,
            "delegates": [eth0]})
    }

    fn sandbox(&self, name: &str) -> Sandbox {
        Sandbox::new(self.node, name)
    }

    fn command(&self) -> Command {
        Command::new(executable(self.version, "multus"))
    }

    /// Multus gives the API server a quarter of a second, and a busy machine may need more: then
    /// the runtime tries again.
    fn call(&self, verb: &str, sandbox: &Sandbox) -> Output {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let output = node::run(
                &mut self.command(),
                &sandbox.variables(verb),
                &self.config().to_string(),
            );
            let text = text_of(&output);
            if !(text.contains("error waiting for pod")
                && text.contains("context deadline exceeded"))
                || Instant::now() > deadline
            {
                return output;
            }
        }
    }

    #[track_caller]
    fn add(&self, sandbox: &Sandbox) -> Value {
        json_of(&self.call("ADD", sandbox))
    }

    #[track_caller]
    fn refused(&self, sandbox: &Sandbox) -> String {
        let output = self.call("ADD", sandbox);
        assert!(!output.status.success(), "{}", text_of(&output));
        text_of(&output)
    }

    #[track_caller]
    fn del(&self, sandbox: &Sandbox) {
        let output = self.call("DEL", sandbox);
        assert!(output.status.success(), "{}", text_of(&output));
    }

    /// DEL, after which nothing is left; and once more, as runtimes do.
    #[track_caller]
    fn ends(&self, sandbox: &Sandbox) {
        self.del(sandbox);
        self.node.is_as_before();
        self.del(sandbox);
        self.node.is_as_before();
    }
}

/// Writes the devices of pods as kubelet does: each, by its UID, has the VF of this number of each
/// rail.
pub fn allot(pods: &[(&str, u8)]) {
    let entry = |uid: &str, rail: u8, vf: u8| {
        json!({"PodUID": uid, "ContainerName": "pytorch", "ResourceName": format!("nvidia.com/rail-{rail}"),
            "DeviceIDs": {"-1": [address_of_vf(rail, vf)]}, "AllocResp": ""})
    };
    let entries: Vec<_> = pods
        .iter()
        .flat_map(|(uid, vf)| RAILS.map(|rail| entry(uid, rail, *vf)))
        .collect();
    let data =
        json!({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 0});
    write(CHECKPOINT, data.to_string());
}

/// The pod trainer-0.
pub fn pod() -> Value {
    pod_of("trainer-0", UID)
}

/// conf/pod.yaml, as the API server has it.
pub fn pod_of(name: &str, uid: &str) -> Value {
    let mut pod = documents("conf/pod.yaml").remove(0);
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["uid"] = json!(uid);
    pod["metadata"]["resourceVersion"] = json!("1");
    pod
}

/// Like [`pod`], with requests for rail 0, and all others as they are.
fn pod_that_asks(request: Value) -> Value {
    let mut pod = pod();
    let mut networks: Vec<_> = RAILS
        .map(|rail| json!({"name": format!("rail-{rail}")}))
        .collect();
    networks[0]
        .as_object_mut()
        .unwrap()
        .extend(request.as_object().unwrap().clone());
    pod["metadata"]["annotations"][NETWORKS] = json!(Value::from(networks).to_string());
    pod
}

fn a_pod_gets_its_rails_by_annotation(cluster: &Cluster) {
    let sandbox = cluster.sandbox("trainer");
    let result = cluster.add(&sandbox);
    assert_eq!(
        result["interfaces"].as_array().unwrap().last().unwrap()["name"],
        "eth0",
        "{result}"
    );

    let status = cluster.api.network_status("trainer-0");
    let names: Vec<_> = status
        .iter()
        .map(|each| each["name"].as_str().unwrap())
        .collect();
    let rails: Vec<_> = RAILS.map(|rail| format!("default/rail-{rail}")).collect();
    assert_eq!(names[names.len() - 8..], rails, "{status:?}");
    for rail in RAILS {
        let ifname = format!("net{}", rail + 1);
        cluster.node.has_rail("trainer", rail, &ifname);
        cluster.node.reaches_leaf("trainer", rail, &ifname);
        let status = &status[names.len() - 8 + usize::from(rail)];
        assert_eq!(status["interface"], json!(ifname));
        let address = cluster.node.addresses[usize::from(rail)]
            .0
            .strip_suffix("/31")
            .unwrap();
        assert_eq!(status["ips"], json!([address]), "{status}");
        assert_eq!(
            status["device-info"]["pci"]["pci-address"],
            json!(vf_address(rail)),
            "{status}"
        );
    }
    cluster.ends(&sandbox);
}

fn ten_pods_in_a_row_get_eight_rails(cluster: &Cluster) {
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for time in 0..10 {
        let name = format!("trainer-{time}");
        let sandbox = cluster.sandbox(&name);
        let begin = Instant::now();
        cluster.add(&sandbox);
        up.push(begin.elapsed());
        cluster.node.has_rail(&name, 7, "net8");
        let begin = Instant::now();
        cluster.del(&sandbox);
        down.push(begin.elapsed());
        cluster.node.is_as_before();
    }
    node::record_times(
        &format!("{}, eth0 and eight rails", cluster.version),
        &up,
        &down,
    );
}

/// conf/nads-one.yaml. Kubelet lists the devices in any order: Multus 4.3.0 sorts them by their
/// addresses, 4.1.4 does not.
fn one_network_serves_all_rails_whatever_the_order_of_the_devices(cluster: &Cluster) {
    documents("conf/nads-one.yaml")
        .iter()
        .for_each(|nad| cluster.api.apply(nad));
    let mut pod = pod();
    pod["metadata"]["annotations"][NETWORKS] =
        json!(RAILS.map(|_| "rails").collect::<Vec<_>>().join(","));
    cluster.api.apply(&pod);
    let devices: Vec<_> = RAILS.rev().map(vf_address).collect();
    let entry = json!({"PodUID": UID, "ContainerName": "pytorch", "ResourceName": "nvidia.com/rails",
        "DeviceIDs": {"-1": devices}, "AllocResp": ""});
    let data =
        json!({"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {}}, "Checksum": 0});
    write(CHECKPOINT, data.to_string());
    let sandbox = cluster.sandbox("trainer");
    cluster.add(&sandbox);
    let mut rails: Vec<u8> = RAILS.rev().collect();
    if cluster.version == "multus-4.3.0" {
        rails.sort_by_key(|rail| vf_address(*rail));
    }
    for (rail, number) in rails.into_iter().zip(1..) {
        let ifname = format!("net{number}");
        cluster.node.has_rail("trainer", rail, &ifname);
        cluster.node.reaches_leaf("trainer", rail, &ifname);
    }
    cluster.ends(&sandbox);
}

fn what_the_device_plugin_says_reaches_the_network_status(cluster: &Cluster) {
    let device = vf_address(0);
    let info = json!({"type": "pci", "version": "1.1.0", "pci": {"pci-address": device, "representor-device": "eth7"}});
    write(
        format!("/run/k8s.cni.cncf.io/devinfo/dp/nvidia.com-rail-0-{device}-device.json"),
        info.to_string(),
    );
    let sandbox = cluster.sandbox("trainer");
    cluster.add(&sandbox);
    let status = cluster.api.network_status("trainer-0");
    let of_rail = status
        .iter()
        .find(|each| each["name"] == "default/rail-0")
        .unwrap();
    let pci = &of_rail["device-info"]["pci"];
    assert_eq!(
        [&pci["pci-address"], &pci["representor-device"]],
        [&json!(device), &json!("eth7")],
        "{status:?}"
    );
    cluster.ends(&sandbox);
}

fn a_failure_at_rail_4_rolls_all_back(cluster: &Cluster) {
    let allocation = fs::read(cluster.node.allocation(4)).unwrap();
    fs::remove_file(cluster.node.allocation(4)).unwrap();
    let sandbox = cluster.sandbox("trainer");
    let text = cluster.refused(&sandbox);
    assert!(text.contains("rail-4"), "{text}");
    cluster.node.is_as_before();
    assert_eq!(ip("-n trainer -br link show type veth"), "");
    cluster.ends(&sandbox);

    // Kubelet tries again, in another sandbox.
    write(cluster.node.allocation(4), allocation);
    let sandbox = cluster.sandbox("again");
    cluster.add(&sandbox);
    for rail in RAILS {
        cluster
            .node
            .has_rail("again", rail, &format!("net{}", rail + 1));
    }
    cluster.ends(&sandbox);
}

fn a_pod_gets_the_address_and_the_mac_that_it_asks_for(cluster: &Cluster) {
    let mac = "02:00:00:00:00:77";
    let address = cluster.node.addresses[0].0.clone();
    cluster
        .api
        .apply(&pod_that_asks(json!({"mac": mac, "ips": [address]})));
    let sandbox = cluster.sandbox("refused");
    let text = cluster.refused(&sandbox);
    assert!(text.contains("mac: ") && text.contains("policy"), "{text}");
    cluster.ends(&sandbox);

    cluster
        .node
        .configure(|node| node["policy"]["vfKeys"] = json!(["mac"]));
    let sandbox = cluster.sandbox("trainer");
    cluster.add(&sandbox);
    cluster.node.has_rail("trainer", 0, "net1");
    assert!(ip("-n trainer link show net1").contains(mac));
    cluster.ends(&sandbox);

    let taken = format!("{}/31", cluster.node.addresses[0].1);
    cluster.api.apply(&pod_that_asks(json!({"ips": [taken]})));
    let sandbox = cluster.sandbox("gateway");
    let text = cluster.refused(&sandbox);
    assert!(text.contains(&cluster.node.addresses[0].1), "{text}");
    cluster.ends(&sandbox);
}

fn the_rails_come_back_when_the_api_is_gone(cluster: &Cluster) {
    let sandbox = cluster.sandbox("trainer");
    cluster.add(&sandbox);
    cluster.kubeconfig("http://127.0.0.1:1");
    cluster.ends(&sandbox);
}

fn the_rails_come_back_when_their_networks_are_deleted(cluster: &Cluster) {
    let sandbox = cluster.sandbox("trainer");
    cluster.add(&sandbox);
    for nad in documents("conf/nads.yaml") {
        cluster.api.delete(&nad);
    }
    cluster.api.delete(&pod());
    cluster.ends(&sandbox);
}

fn the_rails_come_back_when_their_networks_are_changed(cluster: &Cluster) {
    let sandbox = cluster.sandbox("trainer");
    cluster.add(&sandbox);
    for mut nad in documents("conf/nads.yaml") {
        nad["spec"]["config"] = json!(
            nad["spec"]["config"]
                .as_str()
                .unwrap()
                .replace("9000", "\"many\"")
        );
        cluster.api.apply(&nad);
    }
    // Multus asks for values that the cache does not have.
    fs::remove_dir_all(CACHE).unwrap();
    cluster.ends(&sandbox);
}

fn the_rails_come_back_when_the_cache_is_lost(cluster: &Cluster) {
    let sandbox = cluster.sandbox("trainer");
    cluster.add(&sandbox);
    fs::remove_dir_all(CACHE).unwrap();
    cluster.ends(&sandbox);
}

/// Half of the times Multus dies alone, as when a runtime gives up, and the plugin that it called
/// goes on; else its plugins die with it.
fn nothing_is_left_of_a_pod_whose_multus_is_killed(cluster: &Cluster) {
    const TIMES: u32 = 16;
    let sandbox = cluster.sandbox("measure");
    let begin = Instant::now();
    cluster.add(&sandbox);
    let whole = begin.elapsed();
    cluster.ends(&sandbox);

    for time in 0..TIMES {
        let sandbox = cluster.sandbox(&format!("trainer-{time}"));
        let variables = sandbox.variables("ADD");
        let multus = node::start(
            &mut cluster.command(),
            &variables,
            &cluster.config().to_string(),
        );
        node::kill_after(multus, whole * time / TIMES, time % 2 == 0);
        // The bridge plugin of before may still be at work, and fail this DEL: kubelet tries again.
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let output = cluster.call("DEL", &sandbox);
            if output.status.success() {
                break;
            }
            assert!(Instant::now() < deadline, "{}", text_of(&output));
        }
        cluster.node.is_as_before();
    }
    let sandbox = cluster.sandbox("last");
    cluster.add(&sandbox);
    cluster.ends(&sandbox);
}
