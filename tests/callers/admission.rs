//! conf/admission-policy.yaml, judged by the admission plugin of Kubernetes' API server
//! (scripts/callers.d), beside what ADD says of the same networks on a node with the shipped
//! node.json.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::node::{self, documents, executable, json_of, on_a_node, read, text_of, vf_address};

const CALLER: &str = "admission-1.34.2";
const TENANT: &str = "tenants";

/// The network of rail 0, as a tenant may write it.
const GOOD: &str = r#"{"cniVersion": "1.1.0", "name": "rail-0", "type": "rail-cni", "rail": 0, "mtu": 9000,
    "capabilities": {"deviceID": true, "mac": true, "ips": true, "infinibandGUID": true, "CNIDeviceInfoFile": true},
    "sysctl": {"net.ipv4.conf.IFNAME.rp_filter": "0", "net/ipv6/neigh/net1/retrans_time_ms": "500"},
    "routes": [{"dst": "172.16.0.0/12", "gw": "172.16.0.1"}], "logLevel": "debug",
    "ipam": {"type": "rail-ipam", "pool": "rail-0"}}"#;

/// GOOD with something before its last key.
fn with(text: &str) -> String {
    let (before, after) = GOOD.split_once("\"ipam\"").unwrap();
    format!("{before}{text}, \"ipam\"{after}")
}

/// GOOD with another text in the place of one.
fn replaced(from: &str, to: &str) -> String {
    assert_eq!(GOOD.matches(from).count(), 1, "{from}");
    GOOD.replace(from, to)
}

#[test]
fn a_pod_that_can_change_links_of_the_node_is_refused() {
    on_a_node(
        "admission::a_pod_that_can_change_links_of_the_node_is_refused",
        &[CALLER],
        |_| {
            let with_spec = |namespace: &str, of_container: Value, more: Value| {
                let container =
                    json!({"name": "tool", "image": "x", "securityContext": of_container});
                let mut spec = json!({"containers": [{"name": "main", "image": "x"}, container]});
                spec.as_object_mut()
                    .unwrap()
                    .extend(more.as_object().unwrap().clone());
                create(
                    TENANT,
                    json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "trainer", "namespace": namespace}, "spec": spec}),
                )
            };
            let adds = |name: &str| json!({"capabilities": {"add": ["IPC_LOCK", name]}});
            let init =
                json!([{"name": "init", "image": "x", "securityContext": adds("NET_ADMIN")}]);
            // Their cost is more than a policy may spend, before it comes to the last.
            let mut many = vec!["A"; 300_000];
            many.push("NET_ADMIN");
            let many = json!({"capabilities": {"add": many}});
            let cases = [
                ("ai", many, json!({}), false),
                ("ai", json!({}), json!({}), true),
                ("ai", adds("NET_RAW"), json!({}), true),
                ("ai", adds("NET_ADMIN"), json!({}), false),
                ("ai", adds("cap_net_admin"), json!({}), false),
                ("ai", adds("SYS_ADMIN"), json!({}), false),
                ("ai", adds("ALL"), json!({}), false),
                ("ai", json!({"privileged": true}), json!({}), false),
                ("ai", json!({}), json!({"initContainers": init}), false),
                ("ai", adds("NET_ADMIN"), json!({"hostUsers": true}), false),
                ("ai", adds("NET_ADMIN"), json!({"hostUsers": false}), true),
                ("kube-system", adds("NET_ADMIN"), json!({}), true),
            ];
            let requests: Vec<_> = cases
                .iter()
                .map(|(at, of, more, _)| with_spec(at, of.clone(), more.clone()))
                .collect();
            let told = judge_by("conf/admission-pods.yaml", &requests);
            for ((at, of, more, is_admitted), told) in cases.iter().zip(told) {
                assert_eq!(
                    told.is_empty(),
                    *is_admitted,
                    "{told:?}: {at} {more} {:.200}",
                    of.to_string()
                );
            }
        },
    );
}

/// A network whose configuration Multus looks for in a directory of the node.
fn of_the_node() -> Value {
    json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "of-the-node", "namespace": "ai"}})
}

fn nad(namespace: &str, config: &str) -> Value {
    json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "rail-0", "namespace": namespace}, "spec": {"config": config}})
}

/// A request of this group to create this object.
fn create(group: &str, object: Value) -> Value {
    json!({"user": "someone", "groups": [group], "object": object})
}

/// The messages of each policy that refuses a request.
fn judge(requests: &[Value]) -> Vec<Vec<String>> {
    judge_by("conf/admission-policy.yaml", requests)
}

fn judge_by(file: &str, requests: &[Value]) -> Vec<Vec<String>> {
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let mut command = Command::new(executable(CALLER, "admission"));
    let texts = Value::from(requests.to_vec()).to_string();
    let answers = json_of(&node::run(command.arg(policy), &BTreeMap::new(), &texts));
    let answers: Vec<Vec<String>> = serde_json::from_value(answers).unwrap();
    assert_eq!(answers.len(), requests.len());
    answers
}

/// An API server shows one of the refusals, and not always the same.
fn is_said(text: &str, refusals: &[String]) -> bool {
    refusals.iter().any(|refusal| refusal.contains(text))
}

#[track_caller]
fn admits(requests: &[Value]) {
    for (request, told) in requests.iter().zip(judge(requests)) {
        assert!(told.is_empty(), "{told:?}: {request}");
    }
}

/// Refuses each configuration of a tenant with its text.
#[track_caller]
fn refuses(attacks: &[(String, &str)]) {
    let requests: Vec<_> = attacks
        .iter()
        .map(|(config, _)| create(TENANT, nad("ai", config)))
        .collect();
    for ((config, text), told) in attacks.iter().zip(judge(&requests)) {
        assert!(is_said(text, &told), "{text}: {told:?}: {config}");
    }
}

/// ADD's answer to a configuration, with the device that Multus adds to one that names none.
fn add(config: &str) -> String {
    let mut parsed: Value = serde_json::from_str(config).unwrap();
    let names_one = ["deviceID", "pciBusID", "device", "hwaddr", "kernelpath"]
        .iter()
        .any(|key| parsed[key].is_string());
    let mut text = config.to_owned();
    if !names_one {
        parsed["deviceID"] = json!(vf_address(0));
        // As written, because letters that are written as escapes, and keys that appear twice,
        // matter.
        text = format!(
            "{{\"deviceID\": {}, {}",
            parsed["deviceID"],
            &config.trim_start()[1..]
        );
    }
    let variables = BTreeMap::from([
        ("CNI_COMMAND", "ADD".to_owned()),
        ("CNI_CONTAINERID", "c1".to_owned()),
        ("CNI_NETNS", "/run/netns/trainer".to_owned()),
        ("CNI_IFNAME", "net1".to_owned()),
        ("CNI_PATH", "/opt/cni/bin".to_owned()),
    ]);
    let added = node::run(
        &mut Command::new("/opt/cni/bin/rail-cni"),
        &variables,
        &text,
    );
    if added.status.success() {
        let variables = BTreeMap::from_iter(
            variables
                .into_iter()
                .chain([("CNI_COMMAND", "DEL".to_owned())]),
        );
        let output = node::run(
            &mut Command::new("/opt/cni/bin/rail-cni"),
            &variables,
            &text,
        );
        assert!(output.status.success(), "{}", text_of(&output));
        return String::new();
    }
    text_of(&added)
}

#[test]
fn the_networks_of_conf_are_admitted() {
    on_a_node(
        "admission::the_networks_of_conf_are_admitted",
        &[CALLER],
        |_| {
            let fabric = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/fabric.yaml");
            let plan = Command::new("/opt/cni/bin/railctl")
                .arg("plan")
                .arg(fabric)
                .args(["--to", "nads"])
                .output();
            node::write("/run/nads.yaml", plan.unwrap().stdout);
            let mut requests: Vec<_> = documents("conf/nads.yaml")
                .into_iter()
                .map(|nad| create(TENANT, nad))
                .collect();
            requests.extend(
                documents("/run/nads.yaml")
                    .into_iter()
                    .map(|nad| create(TENANT, nad)),
            );
            assert_eq!(requests.len(), 16);
            requests.push(create(TENANT, nad("ai", GOOD)));
            requests.push(create(
                TENANT,
                nad("ai", &with(r#""vlan": 0, "vlanQoS": 0, "max_tx_rate": 0"#)),
            ));
            // The longest that is allowed, of what costs the policy the most.
            let mut longest = with(r#""routes": []"#);
            let key = "\"rail\": 0, \"type\": \"rail-cni\", ";
            longest.insert_str(1, &key.repeat((16_384 - longest.len()) / key.len()));
            requests.push(create(TENANT, nad("ai", &longest)));
            // Plugins that change nothing outside of the pod.
            for other in [
                r#"{"type": "dummy", "mtu": 9000}"#,
                r#"{"plugins": [{"type":"dummy"}, {"TYPE" : "vrf"}]}"#,
            ] {
                requests.push(create(TENANT, nad("ai", other)));
            }
            requests.push(create("system:masters", of_the_node()));
            // These are keys and values of rail-cni, too.
            requests.push(create(
                TENANT,
                nad("ai", &with(r#""rdma": "required", "mode": "rdma""#)),
            ));
            // The operator's networks: those that name other plugins or settings of the VF.
            let migration =
                std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/migration"))
                    .unwrap();
            let files = migration.map(|entry| entry.unwrap().path().display().to_string());
            let all: Vec<_> = files
                .chain(["conf/ovs.yaml".to_owned()])
                .filter(|file| file.ends_with(".yaml"))
                .collect();
            let nads = all.iter().flat_map(|file| documents(file));
            let nads: Vec<_> = nads
                .filter(|each| each["kind"] == "NetworkAttachmentDefinition")
                .collect();
            assert!(nads.len() > 20, "{}", nads.len());
            for nad in nads {
                requests.push(create("system:masters", nad.clone()));
                let mut of_operators = nad;
                of_operators["metadata"]["namespace"] = json!("nvidia-network-operator");
                requests.push(create(TENANT, of_operators));
            }
            admits(&requests);
        },
    );
}

/// Every key that `policy` of the shipped node.json keeps to the operator, and the other refusals
/// of ADD: the tenant learns of them from `kubectl apply`.
#[test]
fn what_add_refuses_by_the_nodes_policy_is_refused_before() {
    on_a_node(
        "admission::what_add_refuses_by_the_nodes_policy_is_refused_before",
        &[CALLER],
        |node| {
            node.add_pod("trainer");
            assert_eq!(add(GOOD), "");
            assert_eq!(
                add(&with(r#""vlan": 0, "vlanQoS": 0, "max_tx_rate": 0"#)),
                ""
            );
            let setting = ": only the operator of the cluster sets this of a device";
            let attacks = [
                (with(r#""vlan": 5"#), setting),
                (with(r#""vlan": 5, "vlanQoS": 3"#), setting),
                (with(r#""vlan": 5, "vlanProto": "802.1ad""#), setting),
                (with(r#""max_tx_rate": 100"#), setting),
                (with(r#""min_tx_rate": 100"#), setting),
                (with(r#""spoofchk": "off""#), setting),
                (with(r#""trust": "on""#), setting),
                (with(r#""link_state": "enable""#), setting),
                (with(r#""mac": "02:00:00:00:00:01""#), setting),
                (with(r#""pkey": "0x7fff""#), setting),
                (with(r#""rdmaDeviceName": "mine""#), setting),
                (with(r#""rdmaQoS": {"tos": 96}"#), setting),
                (with("\"VLAN\"\t\r\n : 5"), setting),
                (with(r#""Link_State" :"enable""#), setting),
                (
                    with(r#""args": {"cni": {"mac": "02:00:00:00:00:01"}}"#),
                    setting,
                ),
                (
                    with(r#""args": {"cni": {"guid": "02:00:00:00:00:00:00:01"}}"#),
                    setting,
                ),
                (
                    with(r#""runtimeConfig": {"infinibandGUID": "02:00:00:00:00:00:00:01"}"#),
                    setting,
                ),
                (
                    with(r#""runtimeConfig": {"CNIDeviceInfoFile": "/etc/passwd"}"#),
                    "runtimeConfig is written by the runtime",
                ),
                (with(r#""vl\u0061n": 5"#), "has a backslash"),
                (with("\"\u{17f}poofchk\": \"off\""), "outside of ASCII"),
                (
                    with("\"lin\u{212a}_state\": \"enable\""),
                    "outside of ASCII",
                ),
                (
                    replaced(r#""rail": 0"#, r#""rail": 8"#),
                    "rail is not a rail",
                ),
                (
                    replaced(r#""rail": 0"#, "\"RAIL\" :\n120"),
                    "rail is not a rail",
                ),
                (
                    replaced(r#""rail": 0, "#, r#""pciBusID": "0000:1a:00.0", "#),
                    "pciBusID: the device plugin chooses",
                ),
                (
                    with(r#""device": "vf3""#),
                    "device: the device plugin chooses",
                ),
                (
                    with(r#""hwaddr": "02:00:00:00:00:01""#),
                    "hwaddr: the device plugin chooses",
                ),
                (
                    with(r#""kernelpath": "/sys/devices/x""#),
                    "kernelpath: the device plugin chooses",
                ),
                (
                    with(r#""DeviceID": "mlx5_core.sf.4""#),
                    "DeviceID: the device plugin chooses",
                ),
                (
                    replaced(
                        r#"{"type": "rail-ipam", "pool": "rail-0"}"#,
                        r#"{"type": "rail-ipam", "source": "host"}"#,
                    ),
                    "source: addresses come from the plan",
                ),
                (
                    replaced(
                        r#"{"type": "rail-ipam", "pool": "rail-0"}"#,
                        r#"{"type": "rail-ipam", "cidr": "172.18.0.0/15", "perNodeNetworkPrefix": 31}"#,
                    ),
                    "cidr: addresses come from the plan",
                ),
                (
                    replaced("net.ipv4.conf.IFNAME.rp_filter", "net.ipv4.ip_forward"),
                    "sysctl has a key",
                ),
                (
                    replaced(
                        "net.ipv4.conf.IFNAME.rp_filter",
                        "net.ipv4.conf.all.rp_filter",
                    ),
                    "sysctl has a key",
                ),
                (
                    replaced("net.ipv4.conf.IFNAME.rp_filter", "kernel.panic"),
                    "sysctl has a key",
                ),
                (
                    replaced("net.ipv4.conf.IFNAME.rp_filter", "net}, \"x"),
                    "sysctl has a key",
                ),
                (
                    replaced(r#""type": "rail-ipam""#, r#""type": "macvlan""#),
                    "type macvlan",
                ),
                (
                    replaced(r#""type": "rail-ipam""#, r#""type": "../../../tmp/x""#),
                    "type ../../../tmp/x",
                ),
            ];
            refuses(&attacks.clone().map(|(config, text)| (config, text)));
            for (config, _) in &attacks {
                // The last but some is no JSON.
                if serde_json::from_str::<Value>(config).is_ok() {
                    assert_ne!(add(config), "", "{config}");
                }
            }
            node.is_as_before();
        },
    );
}

/// Keys that ADD accepts, or does not see, and a tenant does not need.
#[test]
fn what_reaches_beyond_a_rail_is_refused() {
    on_a_node(
        "admission::what_reaches_beyond_a_rail_is_refused",
        &[CALLER],
        |_| {
            let ipam = r#"{"type": "rail-ipam", "pool": "rail-0"}"#;
            let beside =
                |plugin: &str| format!(r#"{{"name": "x", "plugins": [{GOOD}, {plugin}]}}"#);
            let attacks = [
            (replaced(ipam, r#"{"type": "static", "addresses": []}"#), "type static"),
            (replaced(ipam, r#"{"type": "host-local", "dataDir": "/etc"}"#), "type host-local"),
            (replaced(ipam, r#"{"TYPE" : "host-local"}"#), "type host-local"),
            (replaced(ipam, "{}"), "a rail needs an address"),
            (replaced(ipam, "null"), "a rail needs an address"),
            (beside(r#"{"type": "tuning", "sysctl": {"net.core.somaxconn": "1"}}"#), "type tuning"),
            (beside(r#"{"type": "host-device", "device": "eth0"}"#), "type host-device"),
            (
                r#"{"type": "multus", "delegates": [{"type": "rail-cni", "deviceID": "0000:3c:00.2"}]}"#
                    .to_owned(),
                "type multus: a network of a tenant",
            ),
            (
                r#"{"type": "macvlan", "master": "eth0", "ipam": {"type": "rail-ipam"}}"#.to_owned(),
                "type macvlan: a network beside rail-cni",
            ),
            (with(r#""logFile": "/etc/shadow""#), ": a network names no file of the node"),
            (with(r#""logfile": "x""#), "logfile: a network names no file of the node"),
            (with(r#""anything": ["/etc"]"#), ": a network names no file of the node"),
            (with(r#""prevResult": {}"#), "prevResult is written by the runtime"),
            (
                with(r#""cni.dev/valid-attachments": []"#),
                "cni.dev/valid-attachments is written by the runtime",
            ),
            (with(r#""deviceID": "0000:3c:00.2""#), "deviceID: the device plugin chooses"),
            (with(r#""pciBusID": "0000:3c:00.2""#), "pciBusID: the device plugin chooses"),
            // Without the type's own letters, nothing tells whose it is.
            (GOOD.replace("rail-cni", r"rail-\u0063ni").replace("rail-ipam", "static"), "has a backslash"),
            (GOOD.replace("\"type\"", r#""\u0074ype""#), "has a backslash"),
            (format!("{}{}", " ".repeat(17_000), GOOD), "longer than 16384"),
            (format!("{}{}", " ".repeat(1_000_000), with(r#""vlan": 5"#)), "longer than 16384"),
            (replaced(r#""rail-cni""#, r#""rail-ipam""#), "rail-ipam attaches no device"),
            (beside(r#"{"type" : "rail-ipam", "ipam": {"pool": "rail-3"}}"#), "rail-ipam attaches no device"),
            (
                r#"{"type": "rail-ipam", "x": {"IPAM": {"type": "rail-ipam"}}, "ipam": {"pool": "rail-3"}}"#
                    .to_owned(),
                "rail-ipam attaches no device",
            ),
            (
                r#"{"ipam": {"pool": "rail-3", "a": "{", "b": 1}, "type": "rail-ipam"}"#.to_owned(),
                "rail-ipam attaches no device",
            ),
            (r#"{"type": "bond", "links": [{"name": "eth_r0"}]}"#.to_owned(), "links: only the operator"),
            (
                r#"{"type": "host-device", "device": "eth0"}"#.to_owned(),
                "type host-device: a network of a tenant",
            ),
            (
                r#"{"plugins": [{"type":"sriov"}]}"#.to_owned(),
                "type sriov: a network of a tenant may name only",
            ),
            (
                r#"{"plugins": [{"type": "macvlan"}, {"type": "rdma", "deviceID": "0000:3c:00.0"}]}"#
                    .to_owned(),
                "type macvlan: a network of a tenant",
            ),
            ("{\"Type\"\t:\n\"rdma\"}".to_owned(), "type rdma: a network of a tenant may name only"),
            (r#"{"type": "ovs", "deviceID": "0000:3c:00.2"}"#.to_owned(), "type ovs: a network of a tenant"),
            (r#"{"type":"afxdp","deviceID":"eth0"}"#.to_owned(), "type afxdp: a network of a tenant"),
            (r#"{"type": "macvlan", "mode": "bridge"}"#.to_owned(), "type macvlan: a network of a tenant"),
            (r#"{"type": "ipvlan", "mode": "l2"}"#.to_owned(), "type ipvlan: a network of a tenant"),
            (r#"{"type": "vlan", "vlanId": 5}"#.to_owned(), "type vlan: a network of a tenant"),
            (
                r#"{"plugins": [{"type": "dummy"}, {"type": "tap"}]}"#.to_owned(),
                "type tap: a network of a tenant",
            ),
            (
                r#"{"type": "dummy", "ipam": {"type": "ipoib"}}"#.to_owned(),
                "type ipoib: a network of a tenant",
            ),
            (r#"{"type": "no-such-plugin"}"#.to_owned(), "type no-such-plugin: a network of a tenant"),
            (r#"{"type": "dummy "}"#.to_owned(), "type dummy : a network of a tenant"),
            (r#"{"type": "Dummy"}"#.to_owned(), "type Dummy: a network of a tenant"),
            (r#"{"type": "../dummy"}"#.to_owned(), "a type begins with a dot"),
            (r#"{"type": "/dummy"}"#.to_owned(), "/dummy: a network names no file of the node"),
            (r#"{"type": "dummy", "type": "macvlan"}"#.to_owned(), "type macvlan: a network of a tenant"),
            (r#"{"type": "macvlan", "type": "dummy"}"#.to_owned(), "type macvlan: a network of a tenant"),
            (format!("{}{}", r#"{"type": "macvlan"}"#, " ".repeat(17_000)), "longer than 16384"),
            (r#"{"type":"ib-sriov"}"#.to_owned(), "type ib-sriov: a network of a tenant may name only"),
            (r#"{"type":"host-de\u0076ice"}"#.to_owned(), "has a backslash"),
            (
                r#"{"type": "multus", "confDir": "/tmp"}"#.to_owned(),
                "confDir: a network names no file of the node",
            ),
            (
                r#"{"type": "multus-shim"}"#.to_owned(),
                "type multus-shim: a network of a tenant may name only",
            ),
            (
                r#"{"type": ".rail-ipam.previous", "ipam": {"pool": "rail-0,rail-1"}}"#.to_owned(),
                "a type begins with a dot",
            ),
            ("{\"Type\"\t:\n\".rail-cni.previous\"}".to_owned(), "a type begins with a dot"),
            (r#"{"plugins": [{"TYPE":".x"}]}"#.to_owned(), "a type begins with a dot"),
            (
                r#"{"type": "macvlan", "ipam": {"type" : ".rail-ipam.previous"}}"#.to_owned(),
                "a type begins with a dot",
            ),
        ];
            refuses(&attacks.clone().map(|(config, text)| (config, text)));
        },
    );
}

/// The right to write Events is for all namespaces: what a token that was stolen from a node is
/// good for.
#[test]
fn the_agent_writes_events_of_its_own_about_pods_and_its_node() {
    on_a_node(
        "admission::the_agent_writes_events_of_its_own_about_pods_and_its_node",
        &[CALLER],
        |_| {
            let event = |controller: &str, kind: &str, name: &str| {
                json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "reason": "RailRefused", "type": "Warning",
                "metadata": {"name": "e", "namespace": "ai"}, "reportingController": controller,
                "regarding": {"kind": kind, "namespace": "ai", "name": name}})
            };
            // As a kustomization with another namespace and a namePrefix has it.
            let agent = "system:serviceaccount:gpu:our-rail-agent";
            let admin = "system:serviceaccount:argocd:rail-agent";
            let request = |user: &str, old: Option<Value>, object: Value| {
                let may =
                    BTreeMap::from([(agent, "limited rail-cni/agents/rail-agent"), (admin, "*")]);
                let may: Vec<_> = may.get(user).into_iter().collect();
                let mut request = json!({"user": user, "groups": [], "object": object, "may": may,
                "extra": {"authentication.kubernetes.io/node-name": ["n1"]}});
                old.into_iter().for_each(|old| request["old"] = old);
                request
            };
            let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}});
            let mine = || event("rail-agent", "Pod", "a");
            let mut nothing = mine();
            nothing
                .as_object_mut()
                .unwrap()
                .retain(|key, _| !key.starts_with("re"));
            let mut unbound = request(agent, None, event("rail-agent", "Node", "n1"));
            unbound.as_object_mut().unwrap().remove("extra");
            let table = [
                (request(agent, None, mine()), ""),
                (request(agent, Some(mine()), mine()), ""),
                (request(agent, None, event("rail-agent", "Node", "n1")), ""),
                (
                    request("system:node:n1", None, event("kubelet", "Pod", "a")),
                    "",
                ),
                (
                    request(
                        "system:serviceaccount:x:other",
                        None,
                        event("kubelet", "Pod", "a"),
                    ),
                    "",
                ),
                (request(admin, None, event("kubelet", "Pod", "a")), ""),
                (request(admin, Some(node("n2")), node("n2")), ""),
                (request(agent, Some(node("n1")), node("n1")), ""),
                (
                    request(agent, Some(node("n2")), node("n2")),
                    "the Node that its pod runs on, and no other",
                ),
                (
                    request(agent, None, event("kubelet", "Pod", "a")),
                    "Events of its own",
                ),
                (
                    request(agent, None, event("rail-agentx", "Pod", "a")),
                    "Events of its own",
                ),
                (request(agent, None, nothing), "Events of its own"),
                (
                    request(agent, Some(event("kubelet", "Pod", "a")), mine()),
                    "Events of its own",
                ),
                (
                    request(agent, Some(mine()), event("kubelet", "Pod", "a")),
                    "Events of its own",
                ),
                (
                    request(agent, None, event("rail-agent", "Node", "n2")),
                    "about pods and about the Node",
                ),
                (
                    request(agent, None, event("rail-agent", "Namespace", "n1")),
                    "about pods and about the Node",
                ),
                (unbound, "about pods and about the Node"),
            ];
            let requests = table.clone().map(|(request, _)| request);
            for ((request, text), told) in table
                .iter()
                .zip(judge_by("deploy/own-node.yaml", &requests))
            {
                let is_right = if text.is_empty() {
                    told.is_empty()
                } else {
                    is_said(text, &told)
                };
                assert!(is_right, "{text}: {told:?}: {request}");
            }
        },
    );
}

/// Multus looks for a file of that name on the node, and the operator may have one there for
/// himself.
#[test]
fn a_network_without_a_configuration_is_refused() {
    on_a_node(
        "admission::a_network_without_a_configuration_is_refused",
        &[CALLER],
        |_| {
            let mut without = nad("ai", "");
            without["spec"] = json!({});
            let told = judge(&[
                create(TENANT, of_the_node()),
                create(TENANT, without.clone()),
                create(TENANT, nad("ai", "")),
                json!({"user": "someone", "groups": [TENANT], "old": nad("ai", GOOD), "object": of_the_node()}),
                json!({"user": "someone", "groups": [TENANT], "old": nad("ai", GOOD), "object": nad("ai", "")}),
            ]);
            for told in told {
                assert!(is_said("spec.config", &told), "{told:?}");
            }
            // From before the policy: its labels and finalizers may change.
            let mut labelled = of_the_node();
            labelled["metadata"]["labels"] = json!({"team": "a"});
            admits(&[
                json!({"user": "someone", "groups": [TENANT], "old": of_the_node(), "object": labelled}),
            ]);
        },
    );
}

/// A network that was there before the policy stays, with its labels, until its configuration
/// changes.
#[test]
fn a_network_from_before_may_have_other_labels_and_no_other_configuration() {
    let test = "admission::a_network_from_before_may_have_other_labels_and_no_other_configuration";
    on_a_node(test, &[CALLER], |_| {
        let old = nad("ai", &with(r#""vlan": 5"#));
        let mut labelled = old.clone();
        labelled["metadata"]["labels"] = json!({"team": "a"});
        let update = |object: Value| {
            let mut request = create(TENANT, object);
            request["old"] = old.clone();
            request
        };
        let told = judge(&[
            update(labelled),
            update(nad("ai", GOOD)),
            update(nad("ai", &with(r#""vlan": 6"#))),
            create(
                "system:serviceaccounts:nvidia-network-operator",
                old.clone(),
            ),
            create("system:serviceaccounts:ai", old.clone()),
        ]);
        let refused: Vec<_> = told.iter().map(|told| !told.is_empty()).collect();
        assert_eq!(refused, [false, false, true, false, true], "{told:?}");
        for told in [&told[2], &told[4]] {
            assert!(is_said("vlan: ", told), "{told:?}");
        }
    });
}

/// In every spelling that a JSON parser takes for the same key.
#[test]
fn no_spelling_hides_a_key() {
    on_a_node("admission::no_spelling_hides_a_key", &[CALLER], |_| {
        let source = read("src/node/mod.rs");
        let (_, list) = source.split_once("pub const VF_KEYS").unwrap();
        let (_, list) = list.split_once("= [").unwrap();
        let (list, _) = list.split_once(']').unwrap();
        let of_policy: Vec<_> = list.split('"').skip(1).step_by(2).collect();
        assert_eq!(of_policy.len(), 13, "{of_policy:?}");
        let mut attacks = Vec::new();
        for key in
            of_policy
                .iter()
                .chain(&["deviceID", "pciBusID", "device", "hwaddr", "kernelpath"])
        {
            let mixed: String = key
                .char_indices()
                .map(|(at, c)| {
                    if at % 2 == 0 {
                        c.to_ascii_uppercase()
                    } else {
                        c
                    }
                })
                .collect();
            for key in [
                (*key).to_owned(),
                key.to_uppercase(),
                key.to_lowercase(),
                mixed,
            ] {
                for between in ["", " ", "\t", "\n", "\r\n", " \n \t "] {
                    for value in ["5", "\"x\"", "{\"tos\": 96}", "[1]", "-1"] {
                        attacks.push((with(&format!("\"{key}\"{between}:{between}{value}")), ": "));
                    }
                }
            }
        }
        assert_eq!(attacks.len(), 18 * 4 * 6 * 5);
        refuses(&attacks);
        // And of a plugin that the operator has added for tenants, or that changes nothing outside
        // of the pod.
        let mut attacks = Vec::new();
        for key in [
            "master",
            "links",
            "device",
            "deviceID",
            "pciBusID",
            "hwaddr",
            "kernelpath",
            "bridge",
            "dataDir",
        ] {
            for key in [
                key.to_owned(),
                key.to_uppercase(),
                key.to_lowercase(),
                capital(key),
            ] {
                for between in ["", " ", "\t", "\n", "\r\n", " \n \t "] {
                    for value in ["\"r0\"", "[\"r0\"]", "null", "5"] {
                        let text = format!("\"{key}\"{between}:{between}{value}");
                        attacks.push((format!("{{\"type\": \"dummy\", {text}}}"), ": "));
                        attacks.push((
                            format!("{{\"plugins\": [{{{text}, \"type\": \"dummy\"}}]}}"),
                            ": ",
                        ));
                    }
                }
            }
        }
        attacks.push((
            "{\"type\": \"dummy\", \"ma\u{17f}ter\": \"r0\"}".to_owned(),
            "outside of ASCII",
        ));
        attacks.push((
            "{\"type\": \"dummy\", \"lin\u{212a}s\": []}".to_owned(),
            "outside of ASCII",
        ));
        attacks.push((
            r#"{"type": "dummy", "m\u0061ster": "r0"}"#.to_owned(),
            "has a backslash",
        ));
        refuses(&attacks);
    });
}

fn capital(key: &str) -> String {
    let first = key[..1].to_uppercase();
    first + &key[1..]
}

/// A sequence that looks random and is the same in every run.
struct Dice(u64);

impl Dice {
    fn one_of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        all[usize::try_from(self.0 >> 33).unwrap() % all.len()]
    }
}

/// Made of the keys that matter, in any letter case and order, with any value: what `kubectl apply`
/// accepts of a tenant is not refused by the node's policy. It may be wrong otherwise.
#[test]
fn what_is_admitted_the_nodes_policy_does_not_refuse() {
    on_a_node(
        "admission::what_is_admitted_the_nodes_policy_does_not_refuse",
        &[CALLER],
        |_| {
            let keys = [
                "vlan",
                "VlanQoS",
                "trust",
                "spoofChk",
                "link_state",
                "max_tx_rate",
                "mac",
                "pkey",
                "rdmaDeviceName",
                "rdmaQoS",
                "rail",
                "mtu",
                "rdma",
                "gid",
                "routing",
                "logLevel",
                "resetOnDel",
                "minPlanes",
                "dns",
                "routes",
                "mode",
            ];
            let values = [
                "0",
                "5",
                "true",
                "false",
                "null",
                "{}",
                "[]",
                "\"\"",
                "\"on\"",
                "\"auto\"",
                "\"x\"",
                "{\"tos\": 96}",
                "0.0",
                "[0]",
            ];
            let spaces = ["", "", " ", "\t", "\n", "\r\n "];
            let mut dice = Dice(12);
            let mut configs = Vec::new();
            for _ in 0..600 {
                let mut text = String::new();
                for _ in 0..dice.one_of(&["1", "1", "2", "3"]).parse().unwrap() {
                    let (before, behind) = (dice.one_of(&spaces), dice.one_of(&spaces));
                    let (key, value) = (dice.one_of(&keys), dice.one_of(&values));
                    text += &format!("\"{key}\"{before}:{behind}{value},");
                }
                let inside =
                    dice.one_of(&["", "", "", "\"args\": {\"cni\": {", "\"runtimeConfig\": {"]);
                let text = text.trim_end_matches(',');
                let text = match inside.matches('{').count() {
                    0 => text.to_owned(),
                    depth => format!("{inside}{text}{}", "}".repeat(depth)),
                };
                configs.push(with(&text));
            }
            let requests: Vec<_> = configs
                .iter()
                .map(|config| create(TENANT, nad("ai", config)))
                .collect();
            let admitted: Vec<_> = configs
                .iter()
                .zip(judge(&requests))
                .filter(|(_, told)| told.is_empty())
                .map(|(config, _)| config)
                .collect();
            // Neither all nor none.
            assert!((60..400).contains(&admitted.len()), "{}", admitted.len());
            for config in admitted {
                // There is no namespace: ADD judges the configuration, and goes no further.
                let told = add(config);
                assert!(!told.contains("policy"), "{told}: {config}");
            }
        },
    );
}

/// The pods as deploy/label makes them.
fn mutate(pods: &[Value]) -> Vec<Value> {
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/label/policy.yaml");
    let mut command = Command::new(executable(CALLER, "mutation"));
    let texts = Value::from(pods.to_vec()).to_string();
    serde_json::from_value(json_of(&node::run(
        command.arg(policy),
        &BTreeMap::new(),
        &texts,
    )))
    .unwrap()
}

/// A pod without any YAML of rails becomes what conf/jobs/pod.yaml is.
#[test]
fn one_label_makes_the_pod_of_the_examples() {
    let mut wanted = documents("conf/jobs/pod.yaml").remove(0);
    let mut pod = wanted.clone();
    pod["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("annotations");
    pod["metadata"]["labels"] = json!({"rail-cni/rails": "8"});
    for key in ["initContainers", "volumes"] {
        pod["spec"].as_object_mut().unwrap().remove(key);
    }
    let container = pod["spec"]["containers"][0].as_object_mut().unwrap();
    container.remove("securityContext");
    container.remove("volumeMounts");
    container["resources"] = json!({"limits": {"nvidia.com/gpu": 8}});
    // The pod's own values stay.
    let mut more = pod.clone();
    more["metadata"]["annotations"] = json!({"a": "b"});
    more["spec"]["initContainers"] = json!([{"name": "first", "image": "i"}]);
    more["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    more["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    more["spec"]["containers"][0]["securityContext"] =
        json!({"capabilities": {"add": ["SYS_NICE"], "drop": ["ALL"]}});
    let mut two = pod.clone();
    two["metadata"]["labels"] = json!({"rail-cni/rails": "2"});
    two["spec"]["containers"][0]
        .as_object_mut()
        .unwrap()
        .remove("resources");
    let mut named = pod.clone();
    named["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/networks": "storage-a"});
    let mut wrong = pod.clone();
    wrong["metadata"]["labels"] = json!({"rail-cni/rails": "all"});
    let mut hosts = pod.clone();
    hosts["metadata"]["labels"]["rail-cni/hosts"] = json!("2");
    let mut wrong_hosts = pod.clone();
    wrong_hosts["metadata"]["labels"]["rail-cni/hosts"] = json!("0");
    let made = mutate(&[
        pod,
        more,
        two,
        hosts,
        named.clone(),
        wrong.clone(),
        wrong_hosts.clone(),
    ]);

    // As the API server writes numbers, and what it adds to nothing.
    wanted["metadata"]["labels"] = json!({"rail-cni/rails": "8"});
    let limits = wanted["spec"]["containers"][0]["resources"]["limits"]
        .as_object_mut()
        .unwrap();
    limits
        .values_mut()
        .for_each(|number| *number = json!(number.to_string()));
    let plain = |pod: &Value| {
        let mut pod = pod.clone();
        for path in [
            "/metadata/creationTimestamp",
            "/status",
            "/spec/initContainers/0/resources",
        ] {
            let (above, key) = path.rsplit_once('/').unwrap();
            pod.pointer_mut(above)
                .and_then(Value::as_object_mut)
                .and_then(|above| above.remove(key));
        }
        pod
    };
    assert_eq!(plain(&made[0]), plain(&wanted));
    let names = |pod: &Value, list: &str| -> Vec<String> {
        pod.pointer(list)
            .unwrap()
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(made[1]["metadata"]["annotations"]["a"], "b");
    assert_eq!(names(&made[1], "/spec/initContainers"), ["rails", "first"]);
    assert_eq!(names(&made[1], "/spec/volumes"), ["data", "rails"]);
    assert_eq!(
        names(&made[1], "/spec/containers/0/volumeMounts"),
        ["data", "rails"]
    );
    let capabilities = json!({"add": ["SYS_NICE", "IPC_LOCK"], "drop": ["ALL"]});
    assert_eq!(
        made[1]["spec"]["containers"][0]["securityContext"]["capabilities"],
        capabilities
    );
    assert_eq!(
        made[2]["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"],
        "rail-0, rail-1"
    );
    let two = json!({"nvidia.com/rail-0": "1", "nvidia.com/rail-1": "1"});
    assert_eq!(made[2]["spec"]["containers"][0]["resources"]["limits"], two);
    let added = ["--hostfile=/rails/hostfile", "--hosts=2"].map(Value::from);
    let command = |pod: &Value| {
        pod["spec"]["initContainers"][0]["command"]
            .as_array()
            .unwrap()
            .clone()
    };
    assert_eq!(command(&made[3]), [&command(&made[0])[..], &added].concat());
    let mount = &made[3]["spec"]["containers"][0]["volumeMounts"][1];
    assert_eq!(
        (&mount["mountPath"], &mount["subPath"]),
        (&json!("/job/hostfile"), &json!("hostfile"))
    );
    let labelled = |label: &str, count: Option<&str>| {
        let mut pod = named.clone();
        pod["metadata"]["labels"]["rail-cni/rails"] = json!(label);
        count
            .into_iter()
            .for_each(|count| pod["metadata"]["labels"]["rail-cni/hosts"] = json!(count));
        create(TENANT, pod)
    };
    for (count, is_good) in [
        ("1", true),
        ("512", true),
        ("0", false),
        ("two", false),
        ("-1", false),
    ] {
        let told = judge_by("deploy/label/policy.yaml", &[labelled("8", Some(count))]);
        assert_eq!(told[0].is_empty(), is_good, "{count:?}: {told:?}");
    }
    for (label, is_good) in [
        ("1", true),
        ("8", true),
        ("0", false),
        ("9", false),
        ("all", false),
        ("", false),
    ] {
        let told = judge_by("deploy/label/policy.yaml", &[labelled(label, None)]);
        assert_eq!(told[0].is_empty(), is_good, "{label:?}: {told:?}");
    }
    for (made, before) in made[4..].iter().zip([named, wrong, wrong_hosts]) {
        assert_eq!(
            made["metadata"]["annotations"],
            before["metadata"]["annotations"]
        );
        assert_eq!(made["spec"].get("initContainers"), None);
    }
}
