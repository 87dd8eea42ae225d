//! `rail-agent run --dranet`, asked as DRANET asks: each connection is one request of a Go client.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::Command;

use serde_json::{Value, json};

use crate::api::Api;
use crate::node::{
    NAME, Running, call, end_pod, in_container, on_a_node, pool, ready, sh, start_pod, text_of,
};

const DIRECTORY: &str = "/run/rail-cni/dranet";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/ai/resourceclaims";
const POOLS: &str = crate::node::POOLS;

/// The status and the body of an answer.
fn ask(method: &str, path: &str, body: &str) -> (u16, Value) {
    let mut stream = UnixStream::connect(format!("{DIRECTORY}/provider.sock")).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: {}\r\n\
         Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // A body that is too large is not read to its end.
    let _ = stream.write_all(body.as_bytes());
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (
        head.split(' ').nth(1).unwrap().parse().unwrap(),
        serde_json::from_str(body).unwrap(),
    )
}

fn vf(rail: u8) -> Value {
    let address = ["0000:1a:00.2", "0000:3c:00.2"][usize::from(rail)];
    let name = format!("pci-{}", address.replace([':', '.'], "-"));
    json!({"mac_address": "02:00:00:00:00:01", "pci_address": address, "name": name})
}

fn claim(uid: &str, name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ai", "uid": uid, "resourceVersion": "7",
            "managedFields": [{"manager": "kube-scheduler", "operation": "Update", "fieldsV1": {"f:status": {}}}]},
        "spec": {"devices": {"requests": [{"name": "rail", "exactly": {"deviceClassName": "rails"}}]}},
        "status": {
            "allocation": {"devices": {"results": [
                {"request": "rail", "driver": "dra.net", "pool": NAME, "device": vf(0)["name"]},
                {"request": "rail", "driver": "dra.net", "pool": NAME, "device": vf(1)["name"]}]}},
            "reservedFor": [{"resource": "pods", "name": "trainer-0", "uid": format!("pod-of-{uid}")}]}})
}

/// GetProfileConfig of the present DRANET, which sends the whole claim.
fn give(rail: u8, uid: &str, config: &Value) -> (u16, Value) {
    let body = json!({"device": vf(rail), "claim": claim(uid, uid), "config": config});
    ask("POST", "/GetProfileConfig", &body.to_string())
}

/// Like [`give`], as DRANET's version before, which sends the UID alone.
fn give_by_uid(rail: u8, uid: &str) -> (u16, Value) {
    let body = json!({"device": vf(rail), "claim_uid": uid, "config": {"profile": "rail", "interface": {}}});
    ask("POST", "/GetProfileConfig", &body.to_string())
}

fn take_back(rail: u8, uid: &str) -> (u16, Value) {
    let body = json!({"device": vf(rail), "claim_uid": uid,
        "config": {"profile": "rail", "interface": {"addresses": ["172.16.0.0/31"]}}});
    ask("POST", "/ReleaseProfileConfig", &body.to_string())
}

fn profile(name: &str) -> Value {
    json!({"profile": name, "interface": {"mtu": 9000}})
}

/// The addresses that claims hold.
fn held() -> Vec<String> {
    let shown: Value =
        serde_json::from_str(&sh("/opt/cni/bin/railctl leases --output json")).unwrap();
    let leases = shown["pools"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|pool| pool["leases"].as_array().unwrap());
    let claimed = leases.filter(|lease| lease["claim"].is_object());
    claimed
        .map(|lease| format!("{} {}", lease["claim"]["uid"], lease["address"]).replace('"', ""))
        .collect()
}

fn begin(more: &[&str]) -> (Api, Running) {
    ready(&[&["--dranet", "--claim-interval", "1"], more].concat())
}

/// The netdev of the VF of rail 0 goes to a pod, or comes back.
fn is_in_pod(is_in_pod: bool) {
    let net = "/run/sys/devices/0000:1a:00.2/net";
    sh(&if is_in_pod {
        format!("mv {net} {net}.away")
    } else {
        format!("mv {net}.away {net}")
    });
}

#[test]
fn a_device_of_a_claim_gets_the_address_and_the_routes_of_its_rail() {
    on_a_node(
        "dranet::a_device_of_a_claim_gets_the_address_and_the_routes_of_its_rail",
        || {
            let (api, agent) = begin(&[]);
            let health = json!({"cloudProvider": false, "profileProvider": true, "deviceLifecycleProvider": false});
            assert_eq!(ask("GET", "/health", ""), (200, health));
            for rail in 0..2 {
                let mut with_aggregate = pool(rail, None);
                with_aggregate["spec"]["routes"]
                    .as_array_mut()
                    .unwrap()
                    .push(json!({"dst": "172.16.0.0/12"}));
                api.put(&format!("{POOLS}/rail-{rail}"), with_aggregate);
            }
            agent.until("the plan", || {
                crate::node::allocation(1).contains("172.16.0.0/12")
            });
            let expected = json!({
            "interface": {"addresses": ["172.18.0.0/31"]},
            "routes": [{"destination": "172.18.0.0/15", "gateway": "172.18.0.1"},
                {"destination": "172.16.0.0/12", "gateway": "172.18.0.1", "table": 101}],
            "rules": [{"priority": 1001, "source": "172.18.0.0/32", "table": 101}]});
            api.put(&format!("{CLAIMS}/u-1"), claim("u-1", "u-1"));
            assert_eq!(give(1, "u-1", &profile("rail")), (200, expected.clone()));
            // The kubelet prepares it again, by the name of its pool, and after the agent was
            // killed.
            assert_eq!(give(1, "u-1", &profile("rail-1")), (200, expected.clone()));
            drop(agent);
            let agent = Running::start(&api, &["--dranet"]);
            agent.until("served", || agent.log().contains(" DRANET "));
            assert_eq!(give(1, "u-1", &profile("rail")), (200, expected));
            assert_eq!(held(), ["u-1 172.18.0.0"]);
            assert_eq!(take_back(1, "u-1"), (200, json!({})));
            assert_eq!(take_back(1, "u-1"), (200, json!({})), "a second time");
            assert_eq!(held(), Vec::<String>::new());
        },
    );
}

/// The output is a list that `ip` accepts, in the order in which DRANET sets it: so it does what
/// the routes of rail-cni do.
#[test]
fn the_kernel_accepts_the_answers_of_two_rails_in_one_pod_and_each_address_leaves_by_its_own() {
    on_a_node(
        "dranet::the_kernel_accepts_the_answers_of_two_rails_in_one_pod_and_each_address_leaves_by_its_own",
        || {
            let (api, agent) = begin(&[]);
            for rail in 0..2 {
                let mut with_aggregate = pool(rail, None);
                with_aggregate["spec"]["routes"]
                    .as_array_mut()
                    .unwrap()
                    .push(json!({"dst": "172.16.0.0/12"}));
                api.put(&format!("{POOLS}/rail-{rail}"), with_aggregate);
            }
            agent.until("the plan", || {
                crate::node::allocation(1).contains("172.16.0.0/12")
            });
            sh("ip netns add pod");
            for rail in 0..2 {
                let (status, config) = give(rail, "u-1", &profile("rail"));
                assert_eq!(status, 200, "{config}");
                sh(&format!("ip link set vf{rail} netns pod"));
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let mut batch = String::new();
                for address in config["interface"]["addresses"].as_array().unwrap() {
                    batch += &format!(
                        "addr add {} dev vf{rail}\nlink set vf{rail} up\n",
                        text(address)
                    );
                }
                for route in config["routes"].as_array().unwrap() {
                    let table = route["table"].as_u64().unwrap_or(254);
                    let (to, via) = (text(&route["destination"]), text(&route["gateway"]));
                    batch += &format!("route add {to} via {via} dev vf{rail} table {table}\n");
                }
                for rule in config["rules"].as_array().unwrap() {
                    let (from, table, priority) =
                        (text(&rule["source"]), &rule["table"], &rule["priority"]);
                    batch += &format!("rule add from {from} table {table} priority {priority}\n");
                }
                sh(&format!("ip -n pod -batch - <<< '{batch}'"));
            }
            // The other rail's subnet from each address, a third subnet of the fabric, and no
            // address yet.
            for (to, from, dev) in [
                ("172.18.0.9", "from 172.16.0.0", "vf0"),
                ("172.16.0.9", "from 172.16.0.0", "vf0"),
                ("172.16.0.9", "from 172.18.0.0", "vf1"),
                ("172.20.0.9", "from 172.18.0.0", "vf1"),
                ("172.16.0.9", "", "vf0"),
                ("172.18.0.9", "", "vf1"),
            ] {
                let route = sh(&format!("ip -n pod route get {to} {from}"));
                assert!(
                    route.contains(&format!("dev {dev} ")),
                    "{to} {from}: {route}"
                );
            }
        },
    );
}

#[test]
fn a_rail_is_with_a_claim_or_with_a_pod_of_rail_cni_and_the_other_is_refused_by_name() {
    on_a_node(
        "dranet::a_rail_is_with_a_claim_or_with_a_pod_of_rail_cni_and_the_other_is_refused_by_name",
        || {
            let (api, _agent) = begin(&[]);
            start_pod("pod-a", 0);
            let (status, answer) = give(0, "u-1", &profile("rail"));
            assert_eq!(status, 409, "{answer}");
            assert!(
                answer["error"]
                    .as_str()
                    .unwrap()
                    .contains("net1 of pod ai/pod-a"),
                "{answer}"
            );
            end_pod("pod-a", 0);
            api.put(&format!("{CLAIMS}/u-1"), claim("u-1", "u-1"));
            assert_eq!(give(0, "u-1", &profile("rail")).0, 200);
            sh("ip netns add pod-b");
            let text = text_of(&call("ADD", "pod-b", 0));
            let holder = "held by device pci-0000-1a-00-2 of pod ai/trainer-0 (resource claim ai/u-1, UID u-1)";
            assert!(text.contains(holder), "{text}");
            let (status, answer) = give(0, "u-2", &profile("rail"));
            assert!(
                status == 409 && answer["error"].as_str().unwrap().contains(holder),
                "{answer}"
            );
            // A plan that closes the node gives no further claim an address, and the pod of this
            // one may be prepared again.
            sh("echo no more >/var/lib/rail-cni/store/.closed.worker-gpu-0");
            let (status, answer) = give(1, "u-3", &profile("rail"));
            assert!(
                status == 409 && answer["error"].as_str().unwrap().contains("no more"),
                "{answer}"
            );
            assert_eq!(give(0, "u-1", &profile("rail")).0, 200);
            sh("rm /var/lib/rail-cni/store/.closed.worker-gpu-0");
            // The programs that look after pods leave the claim alone.
            sh("/opt/cni/bin/railctl reap; /opt/cni/bin/railctl release --dead");
            let doctor: Value =
                serde_json::from_str(&sh("/opt/cni/bin/railctl doctor --output json")).unwrap();
            let named = |check: &&Value| check.to_string().contains("UID u-1");
            let named: Vec<_> = doctor["checks"]
                .as_array()
                .unwrap()
                .iter()
                .filter(named)
                .collect();
            assert!(
                named.is_empty() && doctor["ready"] == true,
                "doctor finds nothing wrong: {doctor}"
            );
            let release = ["release", "--address", "172.16.0.0"];
            let refused = Command::new("/opt/cni/bin/railctl")
                .args(release)
                .output()
                .unwrap();
            assert!(
                text_of(&refused).contains("172.16.0.0"),
                "{}",
                text_of(&refused)
            );
            assert_eq!(held(), ["u-1 172.16.0.0"]);
        },
    );
}

#[test]
fn what_a_claim_may_not_ask_is_refused_with_the_status_that_dranet_knows() {
    on_a_node(
        "dranet::what_a_claim_may_not_ask_is_refused_with_the_status_that_dranet_knows",
        || {
            let (_api, agent) = begin(&[]);
            let of = |body: &Value| ask("POST", "/GetProfileConfig", &body.to_string());
            let with = |config: Value| give(0, "u-1", &config);
            let no_pci =
                json!({"device": {"name": "d"}, "claim_uid": "u", "config": {"profile": "rail"}});
            let elsewhere = json!({"device": {"name": "d", "pci_address": "0000:ff:00.0"}, "claim_uid": "u",
            "config": {"profile": "rail"}});
            let path = json!({"device": {"name": "../../x", "pci_address": "0000:1a:00.2"}, "claim_uid": "u"});
            let address =
                |address: &str| json!({"profile": "rail", "interface": {"addresses": [address]}});
            for ((status, answer), (expected, told)) in [
                (ask("POST", "/GetProfileConfig", "{"), (400, "DRANET")),
                (ask("POST", "/ReleaseProfileConfig", "{}"), (400, "")),
                (
                    of(&json!({"device": vf(0), "config": profile("rail")})),
                    (400, "claim"),
                ),
                (of(&no_pci), (400, "PCI")),
                (of(&elsewhere), (400, "0000:ff:00.0")),
                (of(&path), (400, "")),
                (with(profile("overlay")), (404, "\"overlay\"")),
                (with(profile("../x")), (404, "\"../x\"")),
                (with(profile("")), (404, "\"\"")),
                (with(profile("rail-1")), (400, "rail-1")),
                (with(address("172.20.0.0/31")), (400, "172.16.0.0/31")),
                (with(address("172.16.0.1/31")), (400, "172.16.0.1")),
                (with(address("172.16.0.0/12")), (400, "/31")),
                (
                    with(json!({"profile": "rail", "routes": [{"destination": "0.0.0.0/0"}]})),
                    (400, "a rail "),
                ),
                (ask("POST", "/GetDeviceConfig", "{}"), (404, "GET /health")),
                (
                    ask("GET", "/ReleaseProfileConfig", ""),
                    (404, "GET /health"),
                ),
                (
                    ask("POST", "/GetProfileConfig", &"x".repeat(3 << 20)),
                    (400, ""),
                ),
            ] {
                let why = answer["error"]
                    .as_str()
                    .unwrap_or_else(|| panic!("{status} {answer}, and not {expected} {told}"));
                assert!(
                    status == expected && why.contains(told),
                    "{status} {why}, and not {expected} {told}"
                );
            }
            assert_eq!(held(), Vec::<String>::new());
            assert_eq!(with(address("172.16.0.0/31")).0, 200);
            // A user who is not root finds no socket.
            let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(
                (mode(DIRECTORY), mode(&format!("{DIRECTORY}/provider.sock"))),
                (0o700, 0o600)
            );
            // It comes again after somebody emptied the run directory.
            fs::remove_dir_all(DIRECTORY).unwrap();
            agent.until("the socket", || {
                UnixStream::connect(format!("{DIRECTORY}/provider.sock")).is_ok()
            });
            // A client in a container reaches it through the directory that is mounted there.
            let script = format!("test -S /proc/1/root{DIRECTORY}/provider.sock");
            assert!(
                in_container(&["bash", "-c", &script])
                    .status()
                    .unwrap()
                    .success()
            );
        },
    );
}

#[test]
fn a_claim_that_has_ended_is_released_and_no_other() {
    on_a_node(
        "dranet::a_claim_that_has_ended_is_released_and_no_other",
        || {
            let (api, agent) = begin(&[]);
            let path = format!("{CLAIMS}/c-1");
            api.put(&path, claim("u-1", "c-1"));
            api.put(&format!("{CLAIMS}/other"), claim("u-9", "other"));
            let first =
                json!({"device": vf(0), "claim": claim("u-1", "c-1"), "config": profile("rail")});
            let again = || ask("POST", "/GetProfileConfig", &first.to_string()).0;
            let asked = || api.count(&format!("GET {path}"));
            let after_two_looks = || {
                let before = asked();
                agent.until("two looks", || asked() >= before + 2);
            };
            assert_eq!(again(), 200);
            after_two_looks();
            assert_eq!(held(), ["u-1 172.16.0.0"], "its pod runs");
            // Deleted while nobody answers: nothing is known.
            api.go_away(true);
            api.delete(&path);
            agent.until("told", || agent.log().contains("resource claims"));
            assert_eq!(held(), ["u-1 172.16.0.0"]);
            // The pod still has the device, as after a forced deletion.
            is_in_pod(true);
            api.go_away(false);
            agent.until("kept", || {
                agent.log().contains("pci-0000-1a-00-2 of ai/c-1")
            });
            assert_eq!(take_back(0, "u-1").0, 500, "DRANET is told, too");
            assert_eq!(held(), ["u-1 172.16.0.0"]);
            is_in_pod(false);
            agent.until("released", || held().is_empty());
            // Each other end of a claim.
            let without_a_device =
                json!({"metadata": {"uid": "u-1", "name": "c-1", "namespace": "ai"}, "status": {}});
            for (found, what) in [
                (claim("u-2", "c-1"), "a claim of the same name"),
                (without_a_device, "a claim without a device"),
            ] {
                api.put(&path, claim("u-1", "c-1"));
                assert_eq!(again(), 200);
                api.put(&path, found);
                agent.until(what, || held().is_empty());
            }
        },
    );
}

#[test]
fn a_node_whose_rails_are_with_claims_is_ready_and_nothing_is_lost() {
    on_a_node(
        "dranet::a_node_whose_rails_are_with_claims_is_ready_and_nothing_is_lost",
        || {
            let (api, agent) = begin(&[]);
            api.put(&format!("{CLAIMS}/u-1"), claim("u-1", "u-1"));
            for rail in 0..2 {
                assert_eq!(give(rail, "u-1", &profile("rail")).0, 200);
            }
            is_in_pod(true);
            let of = |command: &str| -> Value {
                let command = format!("/opt/cni/bin/railctl {command} --output json || true");
                serde_json::from_str(&sh(&command)).unwrap()
            };
            let vfs = |status: &Value| {
                let vfs = &status["rails"][0]["vfs"];
                (vfs["attached"].clone(), vfs["free"].clone())
            };
            let status = of("status");
            assert_eq!(vfs(&status), (json!(1), json!(0)), "{status}");
            assert_eq!((&status["lost"], &status["todo"]), (&json!([]), &json!([])));
            let doctor = of("doctor");
            assert_eq!(doctor["ready"], true, "{doctor}");
            let free = doctor["checks"]
                .as_array()
                .unwrap()
                .iter()
                .find(|check| check["check"] == "vfs")
                .unwrap();
            assert!(
                free["text"].as_str().unwrap().contains("2 VFs, 0 free"),
                "{free}"
            );
            // One claim has both, and is read once in a round, which comes with a look at most.
            let claims = || api.count(&format!("GET {CLAIMS}/u-1"));
            let before = claims();
            agent.until_looks(6);
            let claims = claims() - before;
            assert!((3..=8).contains(&claims), "{claims} questions in six looks");
            is_in_pod(false);
            for rail in 0..2 {
                assert_eq!(take_back(rail, "u-1").0, 200);
            }
            let status = of("status");
            assert_eq!(vfs(&status), (json!(0), json!(1)), "{status}");
        },
    );
}

#[test]
fn a_claim_of_an_older_dranet_is_found_by_its_uid_in_all_pages_of_the_list() {
    on_a_node(
        "dranet::a_claim_of_an_older_dranet_is_found_by_its_uid_in_all_pages_of_the_list",
        || {
            let (api, agent) = begin(&[]);
            for name in ["a", "b", "c"] {
                api.put(
                    &format!("{CLAIMS}/{name}"),
                    claim(&format!("u-{name}"), name),
                );
            }
            assert_eq!(give_by_uid(0, "u-c").0, 200);
            assert_eq!(give_by_uid(1, "u-x").0, 200);
            // A lease without a claim goes, and the one of the last page stays.
            agent.until("released", || held() == ["u-c 172.16.0.0"]);
            api.delete(&format!("{CLAIMS}/c"));
            agent.until("released", || held().is_empty());
        },
    );
}

#[test]
fn an_api_server_that_does_not_know_claims_ends_none() {
    on_a_node(
        "dranet::an_api_server_that_does_not_know_claims_ends_none",
        || {
            let (api, agent) = begin(&[]);
            api.forget("resourceclaims");
            assert_eq!(give(0, "u-1", &profile("rail")).0, 200);
            agent.until("told", || agent.log().contains("resource claims"));
            assert_eq!(held(), ["u-1 172.16.0.0"]);
        },
    );
}

#[test]
fn without_the_option_there_is_no_socket_and_no_question_about_claims() {
    on_a_node(
        "dranet::without_the_option_there_is_no_socket_and_no_question_about_claims",
        || {
            let (api, agent) = ready(&["--claim-interval", "1"]);
            assert!(fs::metadata(DIRECTORY).is_err());
            // A claim that nobody knows holds an address: with the option it would be asked for,
            // and released.
            sh(
                "/opt/cni/bin/railctl lease --claim=u-1 --device=pci-0000-1a-00-2 --function=0000:1a:00.2 --name=ai/c-1",
            );
            agent.until_looks(3);
            assert_eq!(held(), ["u-1 172.16.0.0"]);
            assert!(
                api.requests()
                    .iter()
                    .all(|request| !request.contains("resourceclaims"))
            );
        },
    );
}
