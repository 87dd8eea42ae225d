//! `rail-agent run`.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::api::Api;
use crate::node::{
    CONFIG_MAP, DAEMON_SET, NAME, NODE, POOLS, Running, agent as agent_command, allocation, call,
    call_behind_macvlan, call_with_mtu, cluster, condition, config_map, end_pod, in_container,
    install, last_look, node_json, on_a_node, pool, ready, served, sh, start_pod, text_of,
};

fn taints(node: &Value) -> Vec<&str> {
    node["spec"]["taints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|taint| taint["key"].as_str().unwrap())
        .collect()
}

#[test]
fn a_new_node_gets_its_plan_and_is_ready() {
    on_a_node("run::a_new_node_gets_its_plan_and_is_ready", || {
        let (api, agent) = ready(&[]);
        agent.until("the taint away", || taints(&api.get(NODE)) == ["other"]);
        agent.until("the label", || {
            api.get(NODE)["metadata"]["labels"]["rail-cni/ready"] == "true"
        });
        // The taint goes with the same look as the condition comes: its own write is no conflict.
        assert!(
            !agent.log().contains("Node worker-gpu-0"),
            "{}",
            agent.log()
        );
        let written: Value =
            serde_json::from_str(&fs::read_to_string("/etc/rail-cni/node.json").unwrap()).unwrap();
        assert_eq!(
            (&written["nodeName"], &written["rails"]),
            (&json!("worker-gpu-0"), &node_json()["rails"])
        );
        assert!(allocation(1).contains("172.18.0.0/31"), "{}", allocation(1));
        // The annotations of the pools have the rail, and the leaf.
        assert!(
            allocation(1).replace(' ', "").contains(r#""rail":1"#),
            "{}",
            allocation(1)
        );
        let tier = || api.get(NODE)["metadata"]["labels"]["fabric.topograph.run/tier-1"].clone();
        agent.until("the leaf", || tier() == "leaf-su01-r1");
        // The node's revisions.
        let revision =
            |key: &str| api.get(NODE)["metadata"]["labels"][format!("rail-cni/{key}")].clone();
        let version = sh("/opt/cni/bin/rail-cni --version");
        let told = revision("version").as_str().unwrap().to_owned();
        assert!(
            told.split('_').all(|word| version.contains(word)),
            "{told} of {version}"
        );
        let (old_json, old_plan) = (revision("node-json"), revision("plan"));
        let mut other = pool(1, None);
        other["spec"]["routes"] = json!([]);
        api.put(&format!("{POOLS}/rail-1"), other);
        agent.until("the next plan", || revision("plan") != old_plan);
        let mut other = node_json();
        other["policy"]["rails"] = json!([0, 1, 2]);
        api.put(
            CONFIG_MAP,
            config_map(&json!({"node.dgx.json": other.to_string(), "cluster": "cluster-1"})),
        );
        agent.until("the next node.json", || revision("node-json") != old_json);
        let mode = fs::metadata("/run/rail-cni").unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "the run directory is as the plugins make it");
        start_pod("pod-a", 0);
        agent.until("counted", || {
            let text = served("/metrics");
            text.contains(r#"rail_cni_calls_total{plugin="rail-cni",verb="ADD",code="0"} 1"#)
                && text.contains(r#"rail_cni_attachments{state="live"} 1"#)
                && text.contains(r#"rail_cni_leases{state="live"} 1"#)
                && text.contains(r#"rail_cni_carrier{rail="1",pf="0000:3c:00.0"} 1"#)
                && text.contains("rail_cni_ready 1")
                && text.contains("rail_cni_allocations 2")
        });
        assert!(agent_command(&["health"]).status.success());
        assert!(served("/").starts_with("HTTP/1.1 404"));
        end_pod("pod-a", 0);
        assert!(agent.stop());
    });
}

#[test]
fn a_watch_that_is_behind_what_the_agent_wrote_undoes_nothing() {
    on_a_node(
        "run::a_watch_that_is_behind_what_the_agent_wrote_undoes_nothing",
        || {
            let api = cluster();
            install();
            api.freeze(NODE);
            let agent = Running::start(&api, &[]);
            agent.until("the taint away", || taints(&api.get(NODE)) == ["other"]);
            agent.until_condition(&api, "RailsPlanCurrent", "True", "Written");
            agent.until_looks(1);
            let writes =
                || api.count(&format!("PATCH {NODE}")) + api.count(&format!("PATCH {NODE}/status"));
            let before = writes();
            agent.until_looks(3);
            assert_eq!(writes(), before, "what the agent has written, it knows");
            assert_eq!(api.count(&format!("GET {NODE}")), 0, "it watches");
            // After a write that is refused, it asks.
            api.refuse(&format!("{NODE}/status"), &[409]);
            let mut node = api.get(NODE);
            node["spec"]["taints"] = json!([{"key": "third", "effect": "NoExecute"}]);
            api.put(NODE, node);
            api.delete(&format!("{POOLS}/rail-0"));
            api.put(&format!("{POOLS}/rail-1"), of_another(1));
            agent.until("a question", || api.count(&format!("GET {NODE}")) == 1);
            agent.until("closed", || {
                taints(&api.get(NODE)) == ["third", "rail-cni/not-ready"]
            });
            assert_eq!(api.quorum_reads(NODE), 0);
        },
    );
}

/// A pool that has the prefixes of this node for another machine.
fn of_another(rail: u8) -> Value {
    let mut pool = pool(rail, None);
    pool["spec"]["staticAllocations"][0]["nodeName"] = json!("worker-gpu-7");
    pool
}

/// The next look is an hour away.
#[test]
fn what_others_change_of_the_node_acts_at_once() {
    on_a_node("run::what_others_change_of_the_node_acts_at_once", || {
        let (api, agent) = ready(&[]);
        agent.until("open", || taints(&api.get(NODE)) == ["other"]);
        for rail in 0..2 {
            api.put(&format!("{POOLS}/rail-{rail}"), of_another(rail));
        }
        agent.until_condition(&api, "RailsReady", "False", "ClosedByPlan");
        assert!(agent.stop());
        let agent = Running::start(&api, &["--interval", "3600"]);
        agent.until_condition(&api, "RailsPlanCurrent", "False", "NotNamed");
        agent.until("closed", || {
            taints(&api.get(NODE)) == ["other", "rail-cni/not-ready"]
        });
        // The agent's own writes cause no look.
        std::thread::sleep(std::time::Duration::from_secs(3));
        let change = |with: &dyn Fn(&mut Value)| {
            let mut node = api.get(NODE);
            with(&mut node);
            api.put(NODE, node);
        };
        let before = last_look();
        change(&|node| node["status"]["images"] = json!([{"sizeBytes": 1}]));
        std::thread::sleep(std::time::Duration::from_secs(3));
        assert_eq!(
            last_look(),
            before,
            "the kubelet writes the status all the time"
        );
        change(&|node| node["spec"]["taints"] = json!([]));
        agent.until("the taint again", || {
            taints(&api.get(NODE)) == ["rail-cni/not-ready"]
        });
        change(&|node| node["metadata"]["labels"]["rail-cni/ready"] = json!("true"));
        agent.until("the label again", || {
            api.get(NODE)["metadata"]["labels"]["rail-cni/ready"] == "false"
        });
        change(&|node| node["metadata"]["labels"]["rail-cni/node-class"] = json!("hgx"));
        agent.until("the class", || {
            condition(&api, "RailsPlanCurrent")["message"]
                .as_str()
                .unwrap()
                .contains("node.hgx.json")
        });
    });
}

#[test]
fn a_node_without_node_json_is_not_ready_and_says_what_to_do() {
    on_a_node(
        "run::a_node_without_node_json_is_not_ready_and_says_what_to_do",
        || {
            let api = cluster();
            let of_other_class = || config_map(&json!({"node.hgx.json": node_json().to_string()}));
            api.put(CONFIG_MAP, of_other_class());
            install();
            let agent = Running::start(&api, &[]);
            let until_told = |agent: &Running, told: &str| {
                agent.until(told, || {
                    let ready = condition(&api, "RailsReady");
                    ready["reason"] == "NoNodeJson"
                        && ready["message"].as_str().unwrap().contains(told)
                });
            };
            until_told(&agent, "\"node.dgx.json\"");
            until_told(&agent, "(rail-cni/node-class=CLASS)");
            agent.until_condition(&api, "RailsPlanCurrent", "False", "NotJudged");
            api.delete(CONFIG_MAP);
            until_told(&agent, "ConfigMap kube-system/rail-cni");
            agent.until("metric", || served("/metrics").contains("rail_cni_ready 0"));
            assert_eq!(
                api.get(NODE)["metadata"]["labels"]["rail-cni/ready"],
                "false"
            );
            assert_eq!(taints(&api.get(NODE)), ["other", "rail-cni/not-ready"]);
            // The next look finds any change, whoever makes it.
            let mut by_hand = node_json();
            by_hand["nodeName"] = json!("worker-gpu-0");
            sh(&format!(
                "mkdir -p /etc/rail-cni; echo '{by_hand}' >/etc/rail-cni/node.json"
            ));
            agent.until_condition(&api, "RailsReady", "True", "DoctorPassed");
            agent.until("the taint away", || taints(&api.get(NODE)) == ["other"]);
            // The last good one stays when the key goes.
            api.put(CONFIG_MAP, of_other_class());
            agent.until_condition(&api, "RailsPlanCurrent", "False", "Refused");
            assert_eq!(condition(&api, "RailsReady")["status"], "True");
        },
    );
}

#[test]
fn a_run_directory_that_cannot_be_made_is_refused_and_corrected() {
    on_a_node(
        "run::a_run_directory_that_cannot_be_made_is_refused_and_corrected",
        || {
            let (api, agent) = ready(&[]);
            sh("mkdir /run/fixed; mount -t tmpfs -o ro tmpfs /run/fixed");
            let with = |run_dir: &str| {
                let mut node = node_json();
                node["runDir"] = json!(run_dir);
                node.to_string()
            };
            let good = fs::read_to_string("/etc/rail-cni/node.json").unwrap();
            for (run_dir, why) in [
                ("/dev/null/x", "Not a directory"),
                ("/run/fixed/x", "Read-only file system"),
                ("/run/fixed", "Read-only file system"),
            ] {
                api.put(
                    CONFIG_MAP,
                    config_map(&json!({"node.dgx.json": with(run_dir)})),
                );
                agent.until(run_dir, || {
                    let current = condition(&api, "RailsPlanCurrent")["message"]
                        .as_str()
                        .unwrap()
                        .to_owned();
                    current.contains(&format!("runDir {run_dir} ")) && current.contains(why)
                });
                assert_eq!(fs::read_to_string("/etc/rail-cni/node.json").unwrap(), good);
            }
            assert!(agent.stop());
            // An older agent, or somebody by hand, has written it.
            for run_dir in ["/dev/null/x", "/run/fixed"] {
                sh(&format!(
                    "echo '{}' >/etc/rail-cni/node.json",
                    with(run_dir)
                ));
                api.put(
                    CONFIG_MAP,
                    config_map(&json!({"node.dgx.json": with(run_dir)})),
                );
                let agent = Running::start(&api, &[]);
                agent.until("told", || agent.log().contains("runDir"));
                agent.until_looks(2);
                api.put(
                    CONFIG_MAP,
                    config_map(&json!({"node.dgx.json": node_json().to_string()})),
                );
                agent.until("corrected", || {
                    fs::read_to_string("/etc/rail-cni/node.json").unwrap_or_default() == good
                });
                drop(agent);
                let agent = Running::start(&api, &[]);
                agent.until_condition(&api, "RailsReady", "True", "DoctorPassed");
                agent.until_condition(&api, "RailsPlanCurrent", "True", "Written");
            }
        },
    );
}

#[test]
fn a_node_whose_plugins_are_gone_is_not_ready_with_the_next_look() {
    on_a_node(
        "run::a_node_whose_plugins_are_gone_is_not_ready_with_the_next_look",
        || {
            let (api, agent) = ready(&[]);
            // No start of a pod with rails goes without either plugin, and without railctl nobody
            // knows.
            for (name, reason) in [
                ("rail-cni", "PluginDidNotRun"),
                ("rail-ipam", "PluginDidNotRun"),
                ("railctl", "DoctorDidNotRun"),
            ] {
                for break_it in ["true", "echo exit 1 >"] {
                    sh(&format!(
                        "cd /opt/cni/bin; mv {name} /run/good; {break_it} {name}; chmod 755 {name} || true"
                    ));
                    let message = agent.until_condition(&api, "RailsReady", "False", reason);
                    assert!(message.contains(name), "{message}");
                    sh(&format!("mv /run/good /opt/cni/bin/{name}"));
                    agent.until_condition(&api, "RailsReady", "True", "DoctorPassed");
                }
            }
        },
    );
}

/// A node that is registered anew, with its taint and without its labels.
fn register_anew(api: &Api) {
    let mut node = api.get(NODE);
    node["spec"]["taints"] = json!([{"key": "rail-cni/not-ready", "effect": "NoSchedule"}]);
    node["metadata"]["labels"] = json!({"rail-cni/node-class": "dgx"});
    node["metadata"]["annotations"] = json!({});
    node["status"] = json!({});
    api.put(NODE, node);
}

/// Its prefixes may be on the cable of another node by now.
#[test]
fn a_repaired_node_with_its_old_disk_is_not_opened_before_the_plan_is_known() {
    on_a_node(
        "run::a_repaired_node_with_its_old_disk_is_not_opened_before_the_plan_is_known",
        || {
            let (api, agent) = ready(&[]);
            let ready_label = || api.get(NODE)["metadata"]["labels"]["rail-cni/ready"].clone();
            agent.until("the label", || ready_label() == "true");
            assert!(agent.stop());
            // For as long as the list is refused, nothing is opened.
            register_anew(&api);
            api.refuse("/cidrpools?", &[403; 1000]);
            let agent = Running::start(&api, &[]);
            let message = agent.until_condition(&api, "RailsPlanCurrent", "False", "NotRead");
            assert!(
                message.contains("403") || message.contains("orbidden"),
                "{message}"
            );
            agent.until("the label", || ready_label() == "false");
            assert_eq!(condition(&api, "RailsReady")["status"], "True");
            assert_eq!(taints(&api.get(NODE)), ["rail-cni/not-ready"]);
            api.relent();
            agent.until("the taint away", || taints(&api.get(NODE)).is_empty());
            agent.until("the label", || ready_label() == "true");
            assert!(agent.stop());
            // A node that was open stays so, and its plan is not called current.
            api.refuse("/cidrpools?", &[429; 1000]);
            let agent = Running::start(&api, &[]);
            agent.until_condition(&api, "RailsPlanCurrent", "False", "NotRead");
            agent.until_looks(2);
            assert_eq!(
                (
                    ready_label(),
                    condition(&api, "RailsReady")["status"].clone()
                ),
                ("true".into(), "True".into())
            );
            assert!(taints(&api.get(NODE)).is_empty());
            start_pod("pod-a", 0);
        },
    );
}

#[test]
fn a_node_with_prefixes_that_the_plan_does_not_name_is_not_opened() {
    on_a_node(
        "run::a_node_with_prefixes_that_the_plan_does_not_name_is_not_opened",
        || {
            let (api, agent) = ready(&[]);
            assert!(agent.stop());
            register_anew(&api);
            let all_of_another = || {
                for rail in 0..2 {
                    api.put(&format!("{POOLS}/rail-{rail}"), of_another(rail));
                }
            };
            all_of_another();
            let agent = Running::start(&api, &[]);
            let until_told = |agent: &Running, reason: &str, text: &str| {
                agent.until(text, || {
                    let current = condition(&api, "RailsPlanCurrent");
                    current["reason"] == reason
                        && current["message"].as_str().unwrap().contains(text)
                });
            };
            until_told(&agent, "NotNamed", "worker-gpu-0");
            let closed = |agent: &Running| {
                agent.until("the label", || {
                    api.get(NODE)["metadata"]["labels"]["rail-cni/ready"] == "false"
                });
                assert_eq!(taints(&api.get(NODE)), ["rail-cni/not-ready"]);
            };
            closed(&agent);
            agent.until_condition(&api, "RailsReady", "False", "ClosedByPlan");
            // A plan that cannot be judged opens no node that was closed.
            let mut wrong = pool(1, None);
            wrong["spec"]["staticAllocations"][0]["prefix"] = json!("172.18.0.1/31");
            api.put(&format!("{POOLS}/rail-1"), wrong);
            until_told(&agent, "NotNamed", "172.18.0.1/31");
            closed(&agent);
            // Nor does the next agent open it, nor one that finds the Node registered anew.
            let again = |reason: &str| {
                let agent = Running::start(&api, &[]);
                agent.until_looks(3);
                until_told(&agent, reason, "172.18.0.1/31");
                closed(&agent);
                agent
            };
            assert!(agent.stop());
            assert!(again("NotNamed").stop());
            register_anew(&api);
            let agent = again("NotJudged");
            for rail in 0..2 {
                api.put(&format!("{POOLS}/rail-{rail}"), pool(rail, None));
            }
            agent.until("the taint away", || taints(&api.get(NODE)).is_empty());
        },
    );
}

/// The prefixes of an open node go to another machine: no new pod may have their addresses.
#[test]
fn a_node_that_was_open_closes_when_its_prefixes_are_another_machines() {
    on_a_node(
        "run::a_node_that_was_open_closes_when_its_prefixes_are_another_machines",
        || {
            let (api, agent) = ready(&[]);
            agent.until("open", || taints(&api.get(NODE)) == ["other"]);
            start_pod("pod-a", 0);
            for rail in 0..2 {
                api.put(&format!("{POOLS}/rail-{rail}"), of_another(rail));
            }
            let message = agent.until_condition(&api, "RailsReady", "False", "ClosedByPlan");
            assert!(message.contains("worker-gpu-0"), "{message}");
            let is_closed = || {
                api.get(NODE)["metadata"]["labels"]["rail-cni/ready"] == "false"
                    && taints(&api.get(NODE)) == ["other", "rail-cni/not-ready"]
            };
            agent.until("label and taint", is_closed);
            let refused = |pod: &str| {
                sh(&format!("ip netns add {pod}"));
                let output = call("ADD", pod, 1);
                let error: Value = serde_json::from_slice(&output.stdout).unwrap();
                assert_eq!(error["code"], 11, "{error}");
                assert!(
                    error["msg"].as_str().unwrap().contains("worker-gpu-0"),
                    "{error}"
                );
                assert!(!call_behind_macvlan("ADD", pod, 1).status.success());
                sh(&format!("ip netns del {pod}"));
            };
            refused("pod-b");
            // Also after a boot on which nobody answers, and no agent runs.
            assert!(agent.stop());
            refused("pod-c");
            api.refuse("/cidrpools?", &[403; 1000]);
            let agent = Running::start(&api, &[]);
            agent.until_condition(&api, "RailsPlanCurrent", "False", "NotRead");
            assert_eq!(condition(&api, "RailsReady")["reason"], "ClosedByPlan");
            assert!(is_closed());
            refused("pod-d");
            // A running pod goes on, and ends.
            let addresses = sh("ip netns exec pod-a ip -br address show net1");
            assert!(addresses.contains("172.16.0.0/31"), "{addresses}");
            end_pod("pod-a", 0);
            for rail in 0..2 {
                api.put(&format!("{POOLS}/rail-{rail}"), pool(rail, None));
            }
            api.relent();
            agent.until_condition(&api, "RailsReady", "True", "DoctorPassed");
            agent.until("open", || taints(&api.get(NODE)) == ["other"]);
            start_pod("pod-e", 1);
        },
    );
}

#[test]
fn a_rollout_comes_to_the_node_when_its_share_does_and_a_prefix_of_another_closes_it_before() {
    on_a_node(
        "run::a_rollout_comes_to_the_node_when_its_share_does_and_a_prefix_of_another_closes_it_before",
        || {
            let (api, agent) = ready(&[]);
            agent.until("open", || taints(&api.get(NODE)) == ["other"]);
            let roll = |percent: &str, rails: &Value| {
                let mut node = node_json();
                node["policy"]["rails"] = rails.clone();
                let data = json!({"node.dgx.json": node.to_string(), "cluster": "cluster-1"});
                let mut map = config_map(&data);
                map["metadata"]["annotations"] = json!({"rail-cni/rollout-percent": percent});
                api.put(CONFIG_MAP, map);
            };
            let written = || -> Value {
                let text = fs::read_to_string("/etc/rail-cni/node.json").unwrap();
                serde_json::from_str::<Value>(&text).unwrap()["policy"]["rails"].clone()
            };
            roll("0", &json!([0, 1, 2]));
            // Another prefix of the same node waits, and pods come as before.
            api.put(&format!("{POOLS}/rail-1"), pool(1, Some("172.18.4.0/31")));
            let message = agent.until_condition(&api, "RailsPlanCurrent", "False", "Waits");
            assert!(message.contains("0 %"), "{message}");
            assert_ne!(written(), json!([0, 1, 2]));
            assert!(allocation(1).contains("172.18.0.0/31"), "{}", allocation(1));
            assert_eq!(condition(&api, "RailsReady")["status"], "True");
            // An agent that begins does not forget it.
            assert!(agent.stop());
            let agent = Running::start(&api, &[]);
            agent.until("its first looks", || {
                served("/metrics").contains("rail_cni_ready 1")
            });
            assert!(allocation(1).contains("172.18.0.0/31"), "{}", allocation(1));
            // The new plan gives the old prefix to another node: no pod may come with it.
            let mut moved = pool(1, Some("172.18.4.0/31"));
            moved["spec"]["staticAllocations"].as_array_mut().unwrap().push(
                json!({"nodeName": "worker-gpu-7", "prefix": "172.18.0.0/31", "gateway": "172.18.0.1"}),
            );
            api.put(&format!("{POOLS}/rail-1"), moved);
            let message = agent.until_condition(&api, "RailsReady", "False", "ClosedByPlan");
            assert!(message.contains("worker-gpu-7"), "{message}");
            roll("100", &json!([0, 1, 2]));
            agent.until_condition(&api, "RailsPlanCurrent", "True", "Written");
            agent.until_condition(&api, "RailsReady", "True", "DoctorPassed");
            assert_eq!(written(), json!([0, 1, 2]));
            assert!(allocation(1).contains("172.18.4.0/31"), "{}", allocation(1));
        },
    );
}

/// A node without an agent must not call itself ready; a rollout takes no node away.
#[test]
fn a_node_that_is_not_ready_after_it_took_a_rollout_pauses_it() {
    on_a_node(
        "run::a_node_that_is_not_ready_after_it_took_a_rollout_pauses_it",
        || {
            let (api, agent) = ready(&["--taint-after", "0"]);
            let roll = |paused: &Value, pf: &str| {
                let mut node = node_json();
                node["rails"][1]["pf"] = json!(pf);
                let mut map =
                    config_map(&json!({"node.dgx.json": node.to_string(), "cluster": "cluster-1"}));
                map["metadata"]["annotations"] =
                    json!({"rail-cni/rollout-percent": "100", "rail-cni/rollout-paused": paused});
                map["metadata"]["annotations"]
                    .as_object_mut()
                    .unwrap()
                    .retain(|_, value| !value.is_null());
                api.put(CONFIG_MAP, map);
            };
            let paused = || {
                api.get(CONFIG_MAP)["metadata"]["annotations"]["rail-cni/rollout-paused"].clone()
            };
            roll(&Value::Null, "0000:77:00.0");
            agent.until("paused", || paused() == "worker-gpu-0");
            agent.until("an Event", || api.events("RolloutPaused").len() == 1);
            let node_json = || fs::read_to_string("/etc/rail-cni/node.json").unwrap();
            // A repair waits, too: a person decides the time.
            roll(&json!("worker-gpu-0"), "0000:3c:00.0");
            agent.until("waiting", || {
                agent.until_looks(2);
                node_json().contains("0000:77:00.0")
            });
            roll(&Value::Null, "0000:3c:00.0");
            agent.until_condition(&api, "RailsReady", "True", "DoctorPassed");
            assert!(!node_json().contains("0000:77:00.0"));
            // It is no rollout's fault.
            sh("ip -n leaf link set cable1 down");
            agent.until_condition(&api, "RailsReady", "False", "PfLink");
            std::thread::sleep(std::time::Duration::from_secs(3));
            assert!(paused().is_null(), "{}", agent.log());
        },
    );
}

#[test]
fn labels_and_conditions_end_with_the_last_agent_and_not_with_one_that_is_replaced() {
    on_a_node(
        "run::labels_and_conditions_end_with_the_last_agent_and_not_with_one_that_is_replaced",
        || {
            let (api, agent) = ready(&[]);
            let labels = || {
                api.get(NODE)["metadata"]["labels"]
                    .as_object()
                    .unwrap()
                    .len()
            };
            agent.until("the labels", || {
                labels() == 6 && taints(&api.get(NODE)) == ["other"]
            });
            let set = |change: Value| {
                let mut set = api.get(DAEMON_SET);
                for (key, value) in change.as_object().unwrap() {
                    set[key] = value.clone();
                }
                api.put(DAEMON_SET, set);
            };
            let selector = |class: &str| {
                json!({"spec": {"selector": {}, "template": {"spec": {"containers": [],
            "nodeSelector": {"rail-cni/node-class": class}}}}})
            };
            // A rollout; one of a DaemonSet that has this node; what cannot be known.
            assert!(agent.stop());
            set(selector("dgx"));
            let looking = || {
                let agent = Running::start(&api, &[]);
                agent.until_looks(1);
                agent
            };
            assert!(looking().stop());
            api.refuse("/daemonsets/", &[403; 10]);
            let (is_well, log) = looking().stopped();
            assert!(is_well && log.contains("warn"), "{log}");
            api.relent();
            assert_eq!(
                (labels(), condition(&api, "RailsReady")["status"].clone()),
                (6, "True".into())
            );
            // Other nodes; one that goes, with its pods before it; one that is gone.
            let last: [&dyn Fn(); 3] = [
                &|| set(selector("hgx")),
                &|| {
                    set(
                        json!({"metadata": {"name": "rail-agent", "deletionTimestamp": "2026-01-01T00:00:00Z"}}),
                    )
                },
                &|| api.delete(DAEMON_SET),
            ];
            for end in last {
                let agent = looking();
                agent.until("the labels", || {
                    labels() == 6 && condition(&api, "RailsReady")["status"] == "True"
                });
                end();
                let (is_well, log) = agent.stopped();
                assert!(is_well, "{log}");
                assert_eq!(
                    (labels(), taints(&api.get(NODE))),
                    (1, vec!["other"]),
                    "{log}"
                );
                for kind in ["RailsReady", "RailsPlanCurrent"] {
                    assert!(condition(&api, kind).is_null(), "{kind}: {log}");
                }
                set(selector("dgx"));
            }
            // Pods start all the same.
            start_pod("pod-a", 0);
        },
    );
}

/// The kubelet would fail them for good.
#[test]
fn pods_stay_away_from_devices_until_the_next_agent_offers_them() {
    on_a_node(
        "run::pods_stay_away_from_devices_until_the_next_agent_offers_them",
        || {
            let offering = ["--resource", "nvidia.com/rails"];
            let (api, agent) = ready(&offering);
            let taints = || taints(&api.get(NODE)).join(" ");
            agent.until("the taint away", || taints() == "other");
            assert!(agent.stop());
            assert_eq!(taints(), "other rail-cni/not-ready");
            let agent = Running::start(&api, &offering);
            agent.until("the taint away again", || taints() == "other");
            // No later agent would remove it.
            api.delete(DAEMON_SET);
            assert!(agent.stop());
            assert_eq!(taints(), "other");
        },
    );
}

#[test]
fn what_the_api_server_refuses_of_labels_and_taint_does_not_keep_the_other() {
    on_a_node(
        "run::what_the_api_server_refuses_of_labels_and_taint_does_not_keep_the_other",
        || {
            let api = cluster();
            install();
            api.forbid("\"spec\"");
            let agent = Running::start(&api, &[]);
            agent.until("the label", || {
                api.get(NODE)["metadata"]["labels"]["rail-cni/ready"] == "true"
            });
            assert_eq!(taints(&api.get(NODE)), ["other", "rail-cni/not-ready"]);
            assert!(agent.stop());
            register_anew(&api);
            api.forbid("\"labels\"");
            let agent = Running::start(&api, &[]);
            agent.until("the taint away", || taints(&api.get(NODE)).is_empty());
            assert!(api.get(NODE)["metadata"]["labels"]["rail-cni/ready"].is_null());
            agent.until("told", || agent.log().contains("forbidden by a policy"));
        },
    );
}

/// The DEL of each pod would find no record.
#[test]
fn another_run_or_store_directory_waits_until_no_pod_has_anything_in_the_old_one() {
    on_a_node(
        "run::another_run_or_store_directory_waits_until_no_pod_has_anything_in_the_old_one",
        || {
            let (api, agent) = ready(&[]);
            let good = fs::read_to_string("/etc/rail-cni/node.json").unwrap();
            start_pod("pod-a", 0);
            for key in ["storeDir", "runDir"] {
                let mut node = node_json();
                node[key] = json!("/run/elsewhere");
                api.put(
                    CONFIG_MAP,
                    config_map(&json!({"node.dgx.json": node.to_string()})),
                );
                let told = format!("{key} /run/elsewhere");
                agent.until(&told, || {
                    let message = condition(&api, "RailsPlanCurrent")["message"]
                        .as_str()
                        .unwrap()
                        .to_owned();
                    message.contains(&told) && message.contains("/run/rail-cni")
                });
                assert_eq!(fs::read_to_string("/etc/rail-cni/node.json").unwrap(), good);
                assert!(!std::path::Path::new("/run/elsewhere").exists());
            }
            agent.until("an Event", || !api.events("ConfigRefused").is_empty());
            // Another name of the same directory is no other directory.
            sh("ln -s /run/rail-cni /run/same");
            let mut same = node_json();
            same["runDir"] = json!("/run/same");
            api.put(
                CONFIG_MAP,
                config_map(&json!({"node.dgx.json": same.to_string()})),
            );
            agent.until("written", || {
                fs::read_to_string("/etc/rail-cni/node.json")
                    .unwrap()
                    .contains("/run/same")
            });
            let mut other = node_json();
            other["runDir"] = json!("/run/elsewhere");
            api.put(
                CONFIG_MAP,
                config_map(&json!({"node.dgx.json": other.to_string()})),
            );
            agent.until_condition(&api, "RailsPlanCurrent", "False", "Refused");
            // Its end is what the change waits for.
            end_pod("pod-a", 0);
            let log = agent.ended();
            assert!(log.contains("/run/elsewhere is now"), "{log}");
        },
    );
}

/// A node that was installed by hand under another name. The plan may give its addresses away.
#[test]
fn another_name_of_the_node_waits_until_no_pod_has_an_address_by_the_old_one() {
    on_a_node(
        "run::another_name_of_the_node_waits_until_no_pod_has_an_address_by_the_old_one",
        || {
            let (api, agent) = ready(&[]);
            start_pod("pod-a", 0);
            assert!(agent.stop());
            let path = "/etc/rail-cni/node.json";
            let ours = fs::read_to_string(path).unwrap();
            fs::write(path, ours.replace("worker-gpu-0", "by-hand")).unwrap();
            let agent = Running::start(&api, &[]);
            let message = agent.until_condition(&api, "RailsPlanCurrent", "False", "Refused");
            assert!(
                message.contains("nodeName worker-gpu-0 is another name than by-hand"),
                "{message}"
            );
            assert!(fs::read_to_string(path).unwrap().contains("by-hand"));
            end_pod("pod-a", 0);
            agent.until("written", || fs::read_to_string(path).unwrap() == ours);
        },
    );
}

#[test]
fn pools_without_end_are_refused_and_not_kept() {
    on_a_node("run::pools_without_end_are_refused_and_not_kept", || {
        let (api, agent) = ready(&[]);
        for name in ["a", "b"] {
            let mut large = pool(0, None);
            large["metadata"]["name"] = json!(name);
            large["spec"]["x"] = json!("x".repeat(9 << 20));
            api.put(&format!("{POOLS}/{name}"), large);
        }
        agent.until("refused", || {
            let current = condition(&api, "RailsPlanCurrent");
            let message = current["message"].as_str().unwrap_or_default().to_owned();
            current["reason"] == "Refused" && message.contains("16 MiB")
        });
        assert!(allocation(0).contains("172.16.0.0/31"));
        assert_eq!(condition(&api, "RailsReady")["status"], "True");
        assert!(agent.stop());
        for name in ["a", "b"] {
            api.delete(&format!("{POOLS}/{name}"));
        }
        let agent = Running::start(&api, &[]);
        agent.until_condition(&api, "RailsPlanCurrent", "True", "Written");
    });
}

#[test]
fn an_event_that_the_api_server_refused_is_sent_when_it_happens_again() {
    on_a_node(
        "run::an_event_that_the_api_server_refused_is_sent_when_it_happens_again",
        || {
            let (api, agent) = ready(&[]);
            start_pod("pod-a", 0);
            sh("ip netns add pod-b");
            api.refuse("/events", &[403]);
            assert!(!call("ADD", "pod-b", 0).status.success());
            agent.until("refused", || agent.log().contains("the Event RailRefused"));
            assert!(api.events("RailRefused").is_empty());
            assert!(!call("ADD", "pod-b", 0).status.success());
            agent.until("sent", || api.events("RailRefused").len() == 1);
        },
    );
}

#[test]
fn status_says_that_the_run_directory_was_emptied_under_a_pod() {
    on_a_node(
        "run::status_says_that_the_run_directory_was_emptied_under_a_pod",
        || {
            let (_api, _agent) = ready(&[]);
            start_pod("pod-a", 0);
            let is_emptied = || {
                let status = sh("/opt/cni/bin/railctl status --output json || true");
                serde_json::from_str::<Value>(&status).unwrap()["emptied"].clone()
            };
            assert_eq!(is_emptied(), false);
            sh("rm -r /run/rail-cni/*");
            assert_eq!(is_emptied(), true);
        },
    );
}

#[test]
fn the_agent_asks_the_api_server_for_nothing_that_its_roles_do_not_have() {
    on_a_node(
        "run::the_agent_asks_the_api_server_for_nothing_that_its_roles_do_not_have",
        || {
            let (api, agent) = ready(&[]);
            api.put(
                &format!("{POOLS}/rail-0"),
                json!({"metadata": {"name": "rail-0"}, "spec": {}}),
            );
            agent.until("an Event", || !api.events("PlanRefused").is_empty());
            assert!(agent.stop());
            assert_eq!(
                api.requests(),
                [
                    "GET /api/v1/namespaces/kube-system",
                    "GET /api/v1/namespaces/kube-system/configmaps",
                    "GET /api/v1/nodes",
                    "GET /apis/apps/v1/namespaces/kube-system/daemonsets/rail-agent",
                    "GET /apis/nv-ipam.nvidia.com/v1alpha1/cidrpools",
                    "PATCH /api/v1/nodes/worker-gpu-0",
                    "PATCH /api/v1/nodes/worker-gpu-0/status",
                    "POST /apis/events.k8s.io/v1/namespaces/default/events",
                ]
            );
        },
    );
}

#[test]
fn a_plan_that_would_take_an_address_from_a_pod_waits_for_it() {
    on_a_node(
        "run::a_plan_that_would_take_an_address_from_a_pod_waits_for_it",
        || {
            let (api, agent) = ready(&[]);
            start_pod("pod-a", 0);
            api.put(&format!("{POOLS}/rail-0"), pool(0, Some("172.16.7.0/31")));
            let message = agent.until_condition(&api, "RailsPlanCurrent", "False", "HeldBack");
            assert!(
                message.contains("172.16.0.0") && message.contains("pod ai/pod-a"),
                "{message}"
            );
            assert!(allocation(0).contains("172.16.0.0/31"));
            agent.until("metric and Event", || {
                served("/metrics").contains("rail_cni_plan_held_back 1")
                    && api.events("PlanHeldBack").len() == 1
            });
            assert_eq!(api.events("PlanHeldBack")[0]["regarding"]["kind"], "Node");
            // Another pod would only make the plan wait for longer.
            let message = agent.until_condition(&api, "RailsReady", "False", "ClosedByPlan");
            assert!(message.contains("pod ai/pod-a"), "{message}");
            agent.until("the taint", || {
                taints(&api.get(NODE)) == ["other", "rail-cni/not-ready"]
            });
            sh("ip netns add pod-b");
            let refused = text_of(&call("ADD", "pod-b", 1));
            assert!(refused.contains("pod ai/pod-a"), "{refused}");
            end_pod("pod-a", 0);
            // A change brings the next try; without one it comes within a minute.
            api.put(&format!("{POOLS}/rail-0"), pool(0, Some("172.16.8.0/31")));
            agent.until_condition(&api, "RailsPlanCurrent", "True", "Written");
            assert!(allocation(0).contains("172.16.8.0/31"));
            assert!(served("/metrics").contains("rail_cni_plan_held_back 0"));
            agent.until("the taint away", || taints(&api.get(NODE)) == ["other"]);
            start_pod("pod-c", 1);
        },
    );
}

#[test]
fn what_is_wrong_in_the_cluster_leaves_the_last_good_state() {
    on_a_node(
        "run::what_is_wrong_in_the_cluster_leaves_the_last_good_state",
        || {
            let (api, agent) = ready(&[]);
            let good = fs::read_to_string("/etc/rail-cni/node.json").unwrap();
            let data = |text: &str, cluster: &str| {
                config_map(&json!({"node.dgx.json": text, "cluster": cluster}))
            };
            for (data, told) in [
                (data("{\"rail\": 1}", "cluster-1"), "rails?"),
                (data("{", "cluster-1"), "EOF"),
                (data(&node_json().to_string(), "cluster-2"), "\"cluster-2\""),
                (config_map(&json!({"node.json": "{}"})), "\"node.dgx.json\""),
            ] {
                api.put(CONFIG_MAP, data);
                agent.until(told, || {
                    condition(&api, "RailsPlanCurrent")["message"]
                        .as_str()
                        .unwrap()
                        .contains(told)
                });
                assert_eq!(condition(&api, "RailsPlanCurrent")["reason"], "Refused");
                assert_eq!(fs::read_to_string("/etc/rail-cni/node.json").unwrap(), good);
            }
            assert_eq!(
                condition(&api, "RailsReady")["status"],
                "True",
                "pods start as before"
            );
            api.put(CONFIG_MAP, data(&node_json().to_string(), "cluster-1"));
            agent.until_condition(&api, "RailsPlanCurrent", "True", "Written");

            // A CIDRPool that does not validate, and none at all.
            let mut wrong = pool(1, None);
            wrong["spec"]["staticAllocations"][0]["prefix"] = json!("172.18.0.1/31");
            api.put(&format!("{POOLS}/rail-1"), wrong);
            let message = agent.until_condition(&api, "RailsPlanCurrent", "False", "Refused");
            assert!(message.contains("172.18.0.1/31"), "{message}");
            for rail in 0..2 {
                api.delete(&format!("{POOLS}/rail-{rail}"));
            }
            agent.until("none", || {
                condition(&api, "RailsPlanCurrent")["message"]
                    .as_str()
                    .unwrap()
                    .contains("CIDRPool")
            });
            assert!(allocation(1).contains("172.18.0.0/31"));
            api.delete(CONFIG_MAP);
            agent.until("no ConfigMap", || {
                agent.log().contains("ConfigMap kube-system/rail-cni")
            });
            assert_eq!(fs::read_to_string("/etc/rail-cni/node.json").unwrap(), good);
            start_pod("pod-a", 1);
        },
    );
}

/// The right to write CIDRPools in any namespace can stop the plan of the fleet, unless the agent
/// reads one namespace.
#[test]
fn a_pool_of_another_namespace_is_no_part_of_the_plan_of_one_namespace() {
    on_a_node(
        "run::a_pool_of_another_namespace_is_no_part_of_the_plan_of_one_namespace",
        || {
            let (api, agent) = ready(&[]);
            let mut second = pool(0, Some("172.16.4.0/31"));
            second["metadata"]["namespace"] = json!("tenant");
            api.put(
                "/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/tenant/cidrpools/rail-0",
                second,
            );
            agent.until_condition(&api, "RailsPlanCurrent", "False", "Refused");
            assert!(agent.stop());
            let begun = api.requests().len();
            let of_one = ["--cidrpools-namespace", "nvidia-network-operator"];
            let agent = Running::start(&api, &of_one);
            agent.until_condition(&api, "RailsPlanCurrent", "True", "Written");
            // Its own pools are watched.
            api.put(&format!("{POOLS}/rail-1"), pool(1, Some("172.18.6.0/31")));
            agent.until("the new prefix", || allocation(1).contains("172.18.6.0/31"));
            assert!(allocation(0).contains("172.16.0.0/31"));
            assert_eq!(api.requests().len(), begun + 1, "{:?}", api.requests());
            for rail in 0..2 {
                api.delete(&format!("{POOLS}/rail-{rail}"));
            }
            let told = "nvidia-network-operator";
            agent.until("none", || {
                condition(&api, "RailsPlanCurrent")["message"]
                    .as_str()
                    .unwrap()
                    .contains(told)
            });
        },
    );
}

#[test]
fn a_node_that_the_plan_does_not_name_any_more_is_told_so_and_keeps_its_store() {
    on_a_node(
        "run::a_node_that_the_plan_does_not_name_any_more_is_told_so_and_keeps_its_store",
        || {
            let api = cluster();
            install();
            let agent = Running::start(&api, &[]);
            agent.until_condition(&api, "RailsPlanCurrent", "True", "Written");
            let before = [allocation(0), allocation(1)];
            // The warnings of railctl are reported with a plan that is written, too.
            let mut with_default = pool(0, None);
            with_default["spec"]["defaultGateway"] = json!(true);
            api.put(&format!("{POOLS}/rail-0"), with_default);
            agent.until("the warning", || {
                let message = condition(&api, "RailsPlanCurrent")["message"]
                    .as_str()
                    .unwrap()
                    .to_owned();
                message.contains("in 2 pools") && message.contains("defaultGateway: ")
            });
            assert!(agent.log().contains("defaultGateway: "), "{}", agent.log());
            for rail in 0..2 {
                api.put(&format!("{POOLS}/rail-{rail}"), of_another(rail));
            }
            let message = agent.until_condition(&api, "RailsPlanCurrent", "False", "NotNamed");
            assert!(message.contains("worker-gpu-0"), "{message}");
            assert!(message.contains("(2 pools)"), "{message}");
            assert_eq!([allocation(0), allocation(1)], before);
            agent.until("metric and Event", || {
                served("/metrics").contains("rail_cni_plan_refused 1")
                    && !api.events("PlanRefused").is_empty()
            });
            for rail in 0..2 {
                api.put(&format!("{POOLS}/rail-{rail}"), pool(rail, None));
            }
            let message = agent.until_condition(&api, "RailsPlanCurrent", "True", "Written");
            assert!(!message.contains("warns"), "{message}");
            // Also if its pools have other names there.
            for rail in 0..2 {
                let mut renamed = pool(rail, None);
                renamed["metadata"]["name"] = json!(format!("new-{rail}"));
                renamed["spec"]["staticAllocations"][0]["nodeName"] = json!("worker-gpu-7");
                api.put(&format!("{POOLS}/new-{rail}"), renamed);
                api.delete(&format!("{POOLS}/rail-{rail}"));
            }
            let message = agent.until_condition(&api, "RailsPlanCurrent", "False", "NotNamed");
            assert!(message.contains("worker-gpu-0"), "{message}");
            assert_eq!([allocation(0), allocation(1)], before);
        },
    );
}

/// The node in its place may have the prefixes by now, whatever the pods do that still run here.
#[test]
fn a_node_that_another_one_replaces_gets_no_new_pods() {
    on_a_node(
        "run::a_node_that_another_one_replaces_gets_no_new_pods",
        || {
            let api = cluster();
            install();
            let fabric = |nodes: &str| {
                let fabric = format!(
                    "fabric: spectrum-x\ntiers: 2\nmode: none\nfamily: ipv4\nfirstOctet: 172\npolarity: leaf-odd\n\
                rails: 2\nsus: 2\nhostsPerSU: 2\nnodeName: worker-gpu-{{node}}\n{nodes}"
                );
                config_map(
                    &json!({"node.dgx.json": node_json().to_string(), "fabric.yaml": fabric}),
                )
            };
            api.put(CONFIG_MAP, fabric(""));
            let from = ["--plan-from", "config-map"];
            let agent = Running::start(&api, &from);
            let ready_label = || api.get(NODE)["metadata"]["labels"]["rail-cni/ready"].clone();
            agent.until("the label", || ready_label() == "true");
            let before = [allocation(0), allocation(1)];
            assert!(before.iter().all(|one| one.contains("172.1")), "{before:?}");
            start_pod("pod-a", 0);
            api.put(
                CONFIG_MAP,
                fabric("nodes:\n- {name: spare-7, replaces: worker-gpu-0}\n"),
            );
            let closed = |agent: &Running| {
                let message = agent.until_condition(&api, "RailsPlanCurrent", "False", "NotNamed");
                assert!(message.contains("worker-gpu-0"), "{message}");
                assert!(message.contains("ai/pod-a"), "{message}");
                agent.until("no label", || ready_label() == "false");
            };
            closed(&agent);
            assert_eq!([allocation(0), allocation(1)], before);
            assert!(agent.stop());
            // The next agent knows it as well.
            let agent = Running::start(&api, &from);
            agent.until_looks(3);
            closed(&agent);
            end_pod("pod-a", 0);
            agent.until("removed", || [allocation(0), allocation(1)] == ["", ""]);
            // It has no prefix that is another node's any more, but none of its own either.
            agent.until_looks(3);
            assert_eq!(ready_label(), "false");
            assert_eq!(condition(&api, "RailsPlanCurrent")["reason"], "NotNamed");
            api.put(CONFIG_MAP, fabric(""));
            agent.until_condition(&api, "RailsPlanCurrent", "True", "Written");
            agent.until("the label", || ready_label() == "true");
            assert_eq!([allocation(0), allocation(1)], before);
        },
    );
}

/// The condition of the agent before is older than what this one found in the plan.
#[test]
fn a_node_that_is_read_after_the_plan_is_judged_by_the_plan() {
    on_a_node(
        "run::a_node_that_is_read_after_the_plan_is_judged_by_the_plan",
        || {
            let (api, agent) = ready(&[]);
            assert!(agent.stop());
            let mut node = api.get(NODE);
            node["spec"]["taints"] = json!([{"key": "rail-cni/not-ready", "effect": "NoSchedule"}]);
            api.put(NODE, node);
            assert_eq!(condition(&api, "RailsPlanCurrent")["reason"], "Written");
            for rail in 0..2 {
                api.put(&format!("{POOLS}/rail-{rail}"), of_another(rail));
            }
            api.refuse("/nodes?", &[403; 1000]);
            let agent = Running::start(&api, &[]);
            agent.until("judged", || agent.log().contains("worker-gpu-0"));
            api.relent();
            agent.until_condition(&api, "RailsPlanCurrent", "False", "NotNamed");
            agent.until("no label", || {
                api.get(NODE)["metadata"]["labels"]["rail-cni/ready"] == "false"
            });
            assert_eq!(taints(&api.get(NODE)), ["rail-cni/not-ready"]);
        },
    );
}

#[test]
fn pods_start_while_the_api_server_is_away_and_its_changes_come_when_it_is_back() {
    on_a_node(
        "run::pods_start_while_the_api_server_is_away_and_its_changes_come_when_it_is_back",
        || {
            let (api, agent) = ready(&[]);
            api.go_away(true);
            agent.until("seen", || served("/metrics").contains("rail_cni_api_up 0"));
            start_pod("pod-a", 0);
            end_pod("pod-a", 0);
            assert!(agent.stop());
            // An agent that starts meanwhile leaves all as it is.
            let agent = Running::start(&api, &[]);
            agent.until("looking", || {
                served("/metrics").contains("rail_cni_ready 1")
            });
            agent.until("seen", || served("/metrics").contains("rail_cni_api_up 0"));
            start_pod("pod-b", 1);
            end_pod("pod-b", 1);
            api.put(&format!("{POOLS}/rail-0"), pool(0, Some("172.16.9.0/31")));
            api.go_away(false);
            agent.until("the new plan", || allocation(0).contains("172.16.9.0/31"));
            agent.until("up", || served("/metrics").contains("rail_cni_api_up 1"));
        },
    );
}

#[test]
fn pods_and_node_are_told_of_what_happens_to_their_rails() {
    on_a_node(
        "run::pods_and_node_are_told_of_what_happens_to_their_rails",
        || {
            let (api, agent) = ready(&[]);
            start_pod("pod-a", 0);
            // Refused: the rail is with the other pod.
            sh("ip netns add pod-b");
            assert!(!call("ADD", "pod-b", 0).status.success());
            agent.until("RailRefused", || api.events("RailRefused").len() == 1);
            let event = &api.events("RailRefused")[0];
            let regarding = &event["regarding"];
            assert_eq!(
                (&regarding["name"], &regarding["uid"]),
                (&json!("pod-b"), &json!("uid-of-pod-b"))
            );
            assert!(
                event["note"]
                    .as_str()
                    .unwrap()
                    .starts_with("rail 0, network rail-0, interface net1: "),
                "{event}"
            );
            // The cable is pulled, and plugged again.
            agent.until("seen", || {
                served("/metrics").contains(r#"rail_cni_attachments{state="live"} 1"#)
            });
            sh("ip -n leaf link set leaf0 down");
            agent.until("RailCarrierLost", || {
                api.events("RailCarrierLost").len() == 1
            });
            assert_eq!(
                api.events("RailCarrierLost")[0]["regarding"]["uid"],
                "uid-of-pod-a"
            );
            agent.until("metric", || {
                served("/metrics").contains("rail_cni_attachments_without_carrier 1")
            });
            sh("ip -n leaf link set leaf0 up");
            agent.until("RailCarrierBack", || {
                api.events("RailCarrierBack").len() == 1
            });
            // A pod that starts without one is told, too.
            sh("ip -n leaf link set leaf1 down");
            start_pod("pod-c", 1);
            agent.until("told", || api.events("RailCarrierLost").len() == 2);
            assert_eq!(
                api.events("RailCarrierLost")[1]["regarding"]["uid"],
                "uid-of-pod-c"
            );
            end_pod("pod-c", 1);
            sh("ip -n leaf link set leaf1 up");
            // The PF is down: the node is not ready, and its pods stay where they are.
            sh("ip link set pf1 down");
            let message = agent.until_condition(&api, "RailsReady", "False", "PfLink");
            assert!(message.contains("ip link set pf1 up"), "{message}");
            agent.until("the label", || {
                api.get(NODE)["metadata"]["labels"]["rail-cni/ready"] == "false"
            });
            let metric = r#"rail_cni_carrier{rail="1",pf="0000:3c:00.0"} 0"#;
            agent.until("metric", || served("/metrics").contains(metric));
            agent.until("the taint", || {
                taints(&api.get(NODE)) == ["other", "rail-cni/not-ready"]
            });
            assert_eq!(
                api.get(NODE)["metadata"]["annotations"]["rail-cni/had-taint"],
                "rail-cni/not-ready"
            );
            sh("ip link set pf1 up");
            agent.until_condition(&api, "RailsReady", "True", "DoctorPassed");
            // Pod a dies without a DEL, and its device comes back, as a VF does: the next pod heals
            // the rail.
            sh("ip -n pod-a link set net1 netns 1 name vf0 && ip netns del pod-a");
            let output = call("ADD", "pod-b", 0);
            assert!(output.status.success(), "{}", text_of(&output));
            agent.until("RailHealed", || api.events("RailHealed").len() == 1);
            assert!(served("/metrics").contains("rail_cni_heals_total 1"));
        },
    );
}

/// The doctor knows no network of this rail, and finds nothing wrong.
#[test]
fn a_node_that_refuses_pods_again_and_again_is_not_ready_until_one_starts() {
    on_a_node(
        "run::a_node_that_refuses_pods_again_and_again_is_not_ready_until_one_starts",
        || {
            let (api, agent) = ready(&["--taint-after", "0"]);
            agent.until("open", || taints(&api.get(NODE)) == ["other"]);
            let is_ready = || agent_command(&["health", "--ready"]).status.success();
            agent.until("ready", is_ready);
            sh("ip netns add pod-b");
            let refuse = |mtu: u32, text: &str| {
                for _ in 0..2 {
                    let told = text_of(&call_with_mtu("ADD", "pod-b", 1, mtu));
                    assert!(told.contains(text), "{told}");
                }
            };
            // The network is wrong wherever the pod is.
            refuse(10, "mtu: 10 ");
            agent.until_looks(3);
            assert_eq!(condition(&api, "RailsReady")["status"], "True");
            // The PF is smaller here.
            refuse(9500, "mtu: 9500 ");
            start_pod("pod-a", 0);
            let message = agent.until_condition(&api, "RailsReady", "False", "PodsRefused");
            assert!(
                message.contains("rail 1, network rail-1: ") && message.contains("mtu: 9500 "),
                "{message}"
            );
            agent.until("the label", || {
                api.get(NODE)["metadata"]["labels"]["rail-cni/ready"] == "false"
            });
            assert!(is_ready(), "the agent is");
            sh("ip link set pf1 mtu 9600");
            let output = call_with_mtu("ADD", "pod-b", 1, 9500);
            assert!(output.status.success(), "{}", text_of(&output));
            agent.until_condition(&api, "RailsReady", "True", "DoctorPassed");
            assert_eq!(taints(&api.get(NODE)), ["other"]);
        },
    );
}

/// A rollout would wait for a rail that only a technician can repair.
#[test]
fn a_dead_rail_leaves_the_agent_ready_and_a_broken_plugin_does_not() {
    on_a_node(
        "run::a_dead_rail_leaves_the_agent_ready_and_a_broken_plugin_does_not",
        || {
            let (api, agent) = ready(&["--taint-after", "3"]);
            let is_ready = || agent_command(&["health", "--ready"]).status.success();
            agent.until("ready", is_ready);
            sh("ip -n leaf link set cable1 down");
            agent.until_condition(&api, "RailsReady", "False", "PfLink");
            agent.until("the taint", || {
                taints(&api.get(NODE)).contains(&"rail-cni/not-ready")
            });
            agent.until_looks(3);
            assert!(is_ready(), "the agent is");
            sh("ip -n leaf link set cable1 up");
            agent.until_condition(&api, "RailsReady", "True", "DoctorPassed");

            sh("cp -p /opt/cni/bin/rail-ipam /run/kept && chmod -x /opt/cni/bin/rail-ipam");
            agent.until("not ready", || !is_ready());
            assert!(agent_command(&["health"]).status.success(), "it runs");
            sh("mv /run/kept /opt/cni/bin/rail-ipam && chmod +x /opt/cni/bin/rail-ipam");
            agent.until("ready again", is_ready);

            api.delete(CONFIG_MAP);
            agent.until("no ConfigMap", || agent.log().contains("no ConfigMap"));
            assert!(is_ready(), "node.json stays");
            sh("echo { >/etc/rail-cni/node.json");
            agent.until("not ready", || !is_ready());
        },
    );
}

/// The link is there at each look.
#[test]
fn a_rail_that_flaps_between_looks_closes_the_node_and_is_an_event() {
    on_a_node(
        "run::a_rail_that_flaps_between_looks_closes_the_node_and_is_an_event",
        || {
            let (api, agent) = ready(&["--taint-after", "3"]);
            agent.until("open", || taints(&api.get(NODE)) == ["other"]);
            for _ in 0..3 {
                sh("ip -n leaf link set cable1 down && ip -n leaf link set cable1 up");
            }
            let message = agent.until_condition(&api, "RailsReady", "False", "RailFlapping");
            assert!(message.starts_with("rail 1 (0000:3c:00.0)"), "{message}");
            agent.until("the taint", || {
                taints(&api.get(NODE)).contains(&"rail-cni/not-ready")
            });
            agent.until("the Event", || api.events("RailFlapping").len() == 1);
            let metric = r#"rail_cni_flapping{rail="1",pf="0000:3c:00.0"} 1"#;
            assert!(served("/metrics").contains(metric));
            agent.until_looks(3);
            assert_eq!(api.events("RailFlapping").len(), 1, "it is told once");
        },
    );
}

/// A pod with CAP_NET_ADMIN makes a macvlan on the rail of another.
#[test]
fn node_and_both_pods_are_told_of_a_tapped_rail() {
    on_a_node("run::node_and_both_pods_are_told_of_a_tapped_rail", || {
        let (api, agent) = ready(&[]);
        start_pod("pod-a", 0);
        start_pod("pod-b", 1);
        sh("ip -n pod-a link add mv link net1 type macvlan mode source");
        sh("ip -n pod-a link set mv netns pod-b");
        agent.until("the Events", || api.events("RailTapped").len() == 3);
        let mut about = BTreeSet::new();
        for event in api.events("RailTapped") {
            about.insert(event["regarding"]["uid"].as_str().unwrap().to_owned());
        }
        let expected = ["uid-of-pod-a", "uid-of-pod-b", NAME];
        assert_eq!(about, expected.map(str::to_owned).into());
        let metric = r#"rail_cni_attachments{state="tapped"} 1"#;
        assert!(served("/metrics").contains(metric));
        sh("ip -n pod-b link del mv");
        agent.until("live again", || {
            served("/metrics").contains(r#"rail_cni_attachments{state="live"} 2"#)
        });
        assert_eq!(api.events("RailTapped").len(), 3, "each is told once");
    });
}

/// A driver that started anew made the netdev on the host, under a pod that runs.
#[test]
fn node_and_pod_are_told_of_a_rail_that_a_running_pod_lost() {
    on_a_node(
        "run::node_and_pod_are_told_of_a_rail_that_a_running_pod_lost",
        || {
            let (api, agent) = ready(&["--no-reattach"]);
            start_pod("pod-a", 0);
            agent.until_looks(2);
            sh("ip -n pod-a link set net1 down netns 1");
            agent.until("the Events", || api.events("RailLost").len() == 2);
            let metric = r#"rail_cni_attachments{state="lost"} 1"#;
            agent.until("the metric", || served("/metrics").contains(metric));
            // Its reap leaves the pod what is the pod's.
            agent.until_looks(4);
            assert!(served("/metrics").contains(metric));
            end_pod("pod-a", 0);
            agent.until("nothing lost", || {
                served("/metrics").contains(r#"rail_cni_attachments{state="lost"} 0"#)
            });
            assert_eq!(api.events("RailLost").len(), 2, "each is told once");
        },
    );
}

/// Its address, routes and rules are there again, and node and pod are told.
#[test]
fn a_rail_that_a_running_pod_lost_is_attached_again() {
    on_a_node(
        "run::a_rail_that_a_running_pod_lost_is_attached_again",
        || {
            let (api, agent) = ready(&[]);
            start_pod("pod-a", 0);
            agent.until_looks(2);
            let network = || sh("ip -n pod-a -4 -br address show dev net1; ip -n pod-a rule");
            let before = network();
            sh("ip -n pod-a link set net1 down netns 1");
            // The sysfs of files does not know it by that name.
            agent.until("the reason", || api.events("RailNotReattached").len() == 2);
            sh("ip link set net1 name vf0");
            agent.until("back", || api.events("RailBack").len() == 2);
            assert_eq!(
                api.events("RailNotReattached").len(),
                2,
                "each is told once"
            );
            assert_eq!(network(), before);
            assert_eq!(api.events("RailLost").len(), 2);
            assert!(served("/metrics").contains("rail_cni_reattached_total 1"));
            assert!(served("/metrics").contains(r#"rail_cni_attachments{state="live"} 1"#));
            end_pod("pod-a", 0);
        },
    );
}

/// k0s, MicroK8s and others give kubelet another directory.
#[test]
fn a_kubelet_in_another_directory_is_named_or_missed() {
    on_a_node(
        "run::a_kubelet_in_another_directory_is_named_or_missed",
        || {
            let offering = ["--resource", "nvidia.com/rails"];
            let elsewhere = ["--kubelet-root-dir", "/var/lib/k0s/kubelet"];
            let (_api, agent) = ready(&[offering, elsewhere].concat());
            let missed = "there is no /var/lib/k0s/kubelet/device-plugins/kubelet.sock";
            agent.until("missed", || agent.log().contains(missed));
            let dir = Path::new("/var/lib/k0s/kubelet/device-plugins");
            fs::create_dir_all(dir).unwrap();
            let _kubelet = UnixListener::bind(dir.join("kubelet.sock")).unwrap();
            let own = dir.join("rail-agent_nvidia.com_rails.sock");
            agent.until("its socket", || own.exists());
        },
    );
}

/// The next look is an hour away.
#[test]
fn a_cable_that_is_cut_closes_the_node_at_once() {
    on_a_node("run::a_cable_that_is_cut_closes_the_node_at_once", || {
        let (api, agent) = ready(&[]);
        agent.until("open", || taints(&api.get(NODE)) == ["other"]);
        assert!(agent.stop());
        let agent = Running::start(&api, &["--interval", "3600"]);
        agent.until_looks(0);
        // The watches begin with a look.
        std::thread::sleep(std::time::Duration::from_secs(3));
        let before = last_look();
        sh("ip -n leaf link set leaf0 down");
        std::thread::sleep(std::time::Duration::from_secs(3));
        assert_eq!(last_look(), before, "a VF is no PF");
        sh("ip -n leaf link set cable1 down");
        agent.until_condition(&api, "RailsReady", "False", "PfLink");
        agent.until("the taint", || {
            taints(&api.get(NODE)) == ["other", "rail-cni/not-ready"]
        });
    });
}

/// NoSchedule moves no pod that runs.
#[test]
fn a_rail_that_goes_keeps_new_pods_away_until_it_stays_also_under_running_pods() {
    on_a_node(
        "run::a_rail_that_goes_keeps_new_pods_away_until_it_stays_also_under_running_pods",
        || {
            let (api, agent) = ready(&["--taint-after", "3"]);
            agent.until("open", || taints(&api.get(NODE)) == ["other"]);
            start_pod("pod-a", 0);
            let cable = |state: &str| sh(&format!("ip -n leaf link set cable1 {state}"));
            cable("down");
            agent.until_condition(&api, "RailsReady", "False", "PfLink");
            agent.until("the taint", || {
                taints(&api.get(NODE)) == ["other", "rail-cni/not-ready"]
            });
            assert!(sh("ip -n pod-a -br address show net1").contains("172.16.0.0/31"));
            cable("up");
            agent.until_condition(&api, "RailsReady", "True", "DoctorPassed");
            assert_eq!(taints(&api.get(NODE)), ["other", "rail-cni/not-ready"]);
            agent.until("open", || taints(&api.get(NODE)) == ["other"]);
        },
    );
}

#[test]
fn rails_are_tried_on_a_schedule_while_no_pod_has_one() {
    on_a_node(
        "run::rails_are_tried_on_a_schedule_while_no_pod_has_one",
        || {
            let (api, agent) = ready(&["--preflight-interval", "1"]);
            // A leaf that does not answer is told, and refuses no pod that does not ask it.
            let message = agent.until_condition(&api, "RailsPreflight", "False", "RailsFailed");
            assert!(
                message.contains("rail 0: ") && message.contains("rail 1: "),
                "{message}"
            );
            agent.until("the metric", || {
                served("/metrics").contains(r#"rail_cni_preflight{rail="1",pf="0000:3c:00.0"} 0"#)
            });
            sh(
                "ip -n leaf addr add 172.16.0.1/31 dev leaf0; ip -n leaf addr add 172.18.0.1/31 dev leaf1",
            );
            agent.until_condition(&api, "RailsPreflight", "True", "AllPassed");
            assert_eq!(condition(&api, "RailsReady")["status"], "True");
            // A pod gets its rail though it may come in the middle, and then nothing is tried.
            sh("ip netns add pod-a");
            agent.until("a pod with a rail", || {
                call("ADD", "pod-a", 0).status.success()
            });
            agent.until("seen", || {
                served("/metrics").contains(r#"rail_cni_attachments{state="live"} 1"#)
            });
            let last = || {
                let text = served("/metrics");
                let line = text
                    .lines()
                    .find(|line| line.starts_with("rail_cni_preflight_timestamp_seconds "));
                line.map(str::to_owned)
            };
            let before = last();
            assert!(before.is_some());
            std::thread::sleep(std::time::Duration::from_secs(3));
            assert_eq!(last(), before);
            end_pod("pod-a", 0);
            agent.until("tried again", || last() != before);
            assert!(agent.stop());
            let agent = Running::start(&api, &[]);
            agent.until("the condition away", || {
                condition(&api, "RailsPreflight").is_null()
            });
        },
    );
}

#[test]
fn what_was_left_before_the_agent_began_is_restored_at_once() {
    on_a_node(
        "run::what_was_left_before_the_agent_began_is_restored_at_once",
        || {
            let (api, agent) = ready(&[]);
            start_pod("pod-a", 0);
            assert!(agent.stop());
            sh("ip netns del pod-a");
            let agent = Running::start(&api, &[]);
            agent.until("reaped", || {
                served("/metrics").contains("rail_cni_reaped_total 1")
            });
        },
    );
}

/// A user of the node without any rights, in the network of the node.
const NOBODY: &str =
    "setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --no-new-privs";

#[test]
fn whoever_holds_connections_open_takes_the_metrics_from_nobody() {
    on_a_node(
        "run::whoever_holds_connections_open_takes_the_metrics_from_nobody",
        || {
            let (_api, agent) = ready(&[]);
            let connect = || {
                let mut stream = TcpStream::connect("127.0.0.1:9810").unwrap();
                stream.write_all(b"GET / HTTP/1.1\r\nx: ").unwrap();
                stream
            };
            let mut silent: Vec<_> = (0..200).map(|_| connect()).collect();
            for _ in 0..20 {
                assert!(
                    served("/metrics").contains("rail_cni_ready 1"),
                    "{}",
                    agent.log()
                );
                silent.push(connect());
            }
            assert!(served("/nothing").starts_with("HTTP/1.1 404"));
            assert!(agent_command(&["health"]).status.success());
        },
    );
}

#[test]
fn whoever_has_the_address_of_the_metrics_does_not_stop_the_agent() {
    on_a_node(
        "run::whoever_has_the_address_of_the_metrics_does_not_stop_the_agent",
        || {
            let listen = "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 9810)); s.listen(); time.sleep(600)";
            let mut words = NOBODY.split(' ');
            let mut thief = Command::new(words.next().unwrap())
                .args(words)
                .args(["/usr/bin/python3", "-c", listen])
                .spawn()
                .unwrap();
            while TcpStream::connect("127.0.0.1:9810").is_err() {
                std::thread::yield_now();
            }
            let (api, agent) = ready(&[]);
            agent.until("the taint away", || taints(&api.get(NODE)) == ["other"]);
            assert!(agent.log().contains("127.0.0.1:9810"), "{}", agent.log());
            assert!(agent_command(&["health"]).status.success());
            thief.kill().unwrap();
            thief.wait().unwrap();
            agent.until("metrics", || {
                served("/metrics").contains("rail_cni_ready 1")
            });
        },
    );
}

#[test]
fn an_agent_that_has_looked_at_nothing_for_long_is_not_well() {
    on_a_node(
        "run::an_agent_that_has_looked_at_nothing_for_long_is_not_well",
        || {
            install();
            let health = agent_command(&["health"]);
            assert!(!health.status.success());
            golden::says(
                "agent",
                "health: no agent",
                text_of(&health).split_once("Z ").unwrap().1,
            );
            let (_api, agent) = ready(&[]);
            assert!(agent_command(&["health"]).status.success());
            assert!(agent.stop());
            let uptime = fs::read_to_string("/proc/uptime").unwrap();
            let now: i64 = uptime.split('.').next().unwrap().parse().unwrap();
            // A file on a disk, of an earlier boot that was longer, says nothing.
            for (ago, is_well) in [(590, true), (610, false), (-600, false)] {
                fs::write("/run/rail-cni/agent.alive", format!("{}\n", now - ago)).unwrap();
                let output = agent_command(&["health"]);
                assert_eq!(
                    output.status.success(),
                    is_well,
                    "{ago}: {}",
                    text_of(&output)
                );
            }
            let mode = fs::metadata("/run/rail-cni/agent.alive")
                .unwrap()
                .permissions()
                .mode()
                & 0o777;
            assert_eq!(mode, 0o600);
        },
    );
}

/// Pods reach the address of the host.
#[test]
fn an_address_that_others_reach_is_served_by_tls_and_to_who_has_the_token() {
    on_a_node(
        "run::an_address_that_others_reach_is_served_by_tls_and_to_who_has_the_token",
        || {
            let api = cluster();
            install();
            let ended = Running::start(&api, &["--listen", "0.0.0.0:9810"]).ended();
            assert!(ended.contains("--metrics-secret"), "{ended}");
            let make = "mkdir -p /var/lib/secret && cd /var/lib/secret && \
            openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout tls.key -out tls.crt \
            -subj /CN=agent -addext subjectAltName=IP:127.0.0.1 -days 1 2>/dev/null && chmod 600 *";
            sh(make);
            let start = || {
                Running::start(
                    &api,
                    &[
                        "--listen",
                        "0.0.0.0:9810",
                        "--metrics-secret",
                        "/var/lib/secret",
                    ],
                )
            };
            for (token, problem) in [
                (None, "cannot read /var/lib/secret/token"),
                (Some("short"), "16 characters"),
            ] {
                token
                    .into_iter()
                    .for_each(|token| fs::write("/var/lib/secret/token", token).unwrap());
                let ended = start().ended();
                assert!(ended.contains(problem), "{ended}");
            }
            fs::write("/var/lib/secret/token", "a-token-of-24-characters\n").unwrap();
            let agent = start();
            let get = |token: &str| {
                let command = "curl -sS -m 10 --cacert /var/lib/secret/tls.crt -w '%{http_code}' https://127.0.0.1:9810/metrics";
                let output = Command::new("bash")
                    .args([
                        "-c",
                        &format!("{command} -H 'authorization: Bearer {token}'"),
                    ])
                    .output()
                    .unwrap();
                text_of(&output)
            };
            agent.until("metrics", || {
                get("a-token-of-24-characters").ends_with("\n200")
            });
            for wrong in [
                "",
                "a",
                "a-token-of-24-character",
                "a-token-of-24-characterS",
            ] {
                let told = get(wrong);
                assert!(
                    told.ends_with("\n401") && !told.contains("rail_cni"),
                    "{wrong}: {told}"
                );
            }
            assert!(!served("/metrics").contains("rail_cni"), "without TLS");
            // A Secret that is renewed needs no restart.
            sh(make);
            fs::write("/var/lib/secret/token", "another-token-of-some-length").unwrap();
            assert!(get("another-token-of-some-length").ends_with("\n200"));
            assert!(get("a-token-of-24-characters").ends_with("\n401"));
        },
    );
}

#[test]
fn a_label_of_somebody_else_stays() {
    on_a_node("run::a_label_of_somebody_else_stays", || {
        const TIER: &str = "fabric.topograph.run/tier-1";
        let api = cluster();
        let mut node = api.get(NODE);
        node["metadata"]["labels"][TIER] = json!("of-topograph");
        api.put(NODE, node);
        install();
        let agent = Running::start(&api, &["--plan-from", "none"]);
        agent.until("the label", || {
            api.get(NODE)["metadata"]["labels"]["rail-cni/ready"] == "false"
        });
        assert_eq!(
            api.get(NODE)["metadata"]["labels"][TIER],
            "of-topograph",
            "without a plan"
        );
        assert!(agent.stop());
        let agent = Running::start(&api, &[]);
        agent.until("the label", || {
            api.get(NODE)["metadata"]["labels"]["rail-cni/ready"] == "true"
        });
        assert_eq!(
            api.get(NODE)["metadata"]["labels"][TIER],
            "of-topograph",
            "with a plan"
        );
        // Its own goes with the name.
        assert!(agent.stop());
        let agent = Running::start(&api, &["--tier-label", "ours/{tier}"]);
        agent.until("the leaf", || {
            api.get(NODE)["metadata"]["labels"]["ours/1"] == "leaf-su01-r1"
        });
        assert!(agent.stop());
        let agent = Running::start(&api, &["--tier-label", ""]);
        agent.until("no leaf", || {
            api.get(NODE)["metadata"]["labels"]["ours/1"].is_null()
        });
        assert!(agent.stop());
        let kubeconfig = crate::node::kubeconfig(&format!("http://{}", api.address));
        let mut inside =
            in_container(&[crate::node::AGENT, "uninstall", "--node", crate::node::NAME]);
        let output = inside.env("KUBECONFIG", kubeconfig).output().unwrap();
        assert!(output.status.success(), "{}", text_of(&output));
        let node = api.get(NODE);
        assert_eq!(
            node["metadata"]["labels"],
            json!({"rail-cni/node-class": "dgx", TIER: "of-topograph"}),
            "{node}"
        );
        assert_eq!(node["metadata"]["annotations"], json!({}), "{node}");
    });
}

#[test]
fn a_plan_that_the_host_could_not_take_is_tried_again_soon() {
    on_a_node(
        "run::a_plan_that_the_host_could_not_take_is_tried_again_soon",
        || {
            let api = cluster();
            install();
            sh("mkdir -p /var/lib/rail-cni; mount -t tmpfs -o ro tmpfs /var/lib/rail-cni");
            let agent = Running::start(&api, &[]);
            let message = agent.until_condition(&api, "RailsPlanCurrent", "False", "NotJudged");
            assert!(message.contains("Read-only file system"), "{message}");
            sh("mount -o remount,rw /var/lib/rail-cni");
            agent.until_condition(&api, "RailsPlanCurrent", "True", "Written");
        },
    );
}

#[test]
fn the_condition_of_the_plan_is_true_again_when_the_store_is_somebody_elses() {
    on_a_node(
        "run::the_condition_of_the_plan_is_true_again_when_the_store_is_somebody_elses",
        || {
            let api = cluster();
            install();
            let data = |cluster: &str| {
                config_map(&json!({"node.dgx.json": node_json().to_string(), "cluster": cluster}))
            };
            api.put(CONFIG_MAP, data("cluster-2"));
            let agent = Running::start(&api, &["--plan-from", "none"]);
            agent.until_condition(&api, "RailsPlanCurrent", "False", "Refused");
            api.put(CONFIG_MAP, data("cluster-1"));
            agent.until_condition(&api, "RailsPlanCurrent", "True", "Written");
        },
    );
}

#[test]
fn the_fabric_of_another_cluster_is_not_written() {
    on_a_node("run::the_fabric_of_another_cluster_is_not_written", || {
        let api = cluster();
        install();
        let data = |cluster: &str, leaf: &str| {
            let fabric = format!(
                "fabric: spectrum-x\ntiers: 2\nmode: none\nfamily: ipv4\nfirstOctet: 172\npolarity: {leaf}\n\
                rails: 2\nsus: 2\nhostsPerSU: 2\nnodeName: worker-gpu-{{node}}\n"
            );
            config_map(
                &json!({"node.dgx.json": node_json().to_string(), "cluster": cluster, "fabric.yaml": fabric}),
            )
        };
        api.put(CONFIG_MAP, data("cluster-2", "leaf-odd"));
        let agent = Running::start(&api, &["--plan-from", "config-map"]);
        agent.until_condition(&api, "RailsPlanCurrent", "False", "NotJudged");
        assert_eq!(allocation(0), "", "nothing of another cluster");
        api.put(CONFIG_MAP, data("cluster-1", "leaf-odd"));
        agent.until_condition(&api, "RailsPlanCurrent", "True", "Written");
        let ours = allocation(0);
        assert!(ours.contains("172.16.0.0/31"), "{ours}");
        // The ConfigMap of another cluster comes later.
        api.put(CONFIG_MAP, data("cluster-2", "leaf-even"));
        agent.until_condition(&api, "RailsPlanCurrent", "False", "Refused");
        assert_eq!(allocation(0), ours);
        // And the one before is back: it is current at once.
        api.put(CONFIG_MAP, data("cluster-1", "leaf-odd"));
        agent.until_condition(&api, "RailsPlanCurrent", "True", "Written");
    });
}

#[test]
fn an_agent_whose_run_directory_is_not_the_plugins_ends_and_begins_there() {
    on_a_node(
        "run::an_agent_whose_run_directory_is_not_the_plugins_ends_and_begins_there",
        || {
            let api = cluster();
            let mut node = node_json();
            node["runDir"] = json!("/run/elsewhere");
            api.put(
                CONFIG_MAP,
                config_map(&json!({"node.dgx.json": node.to_string()})),
            );
            install();
            // A new node, which has no node.json yet.
            let log = Running::start(&api, &[]).ended();
            assert!(log.contains("/run/elsewhere is now"), "{log}");
            assert_eq!(fs::read_dir("/run/rail-cni").unwrap().count(), 0);
            let agent = Running::start(&api, &[]);
            // The condition may be that of the first one.
            agent.until("looking", || {
                served("/metrics").contains("rail_cni_ready 1")
            });
            // It looks at the node and writes the plan side by side.
            agent.until("written", || allocation(0).contains("172.16.0.0/31"));
            start_pod("pod-a", 0);
            let added = r#"rail_cni_calls_total{plugin="rail-cni",verb="ADD",code="0"} 1"#;
            agent.until("counted", || served("/metrics").contains(added));
            // Somebody removes the directory with all that is in it.
            end_pod("pod-a", 0);
            sh("rm -r /run/elsewhere");
            let log = agent.ended();
            assert!(log.contains("/run/elsewhere"), "{log}");
        },
    );
}

#[test]
fn what_the_api_server_refuses_for_a_while_comes_later() {
    on_a_node(
        "run::what_the_api_server_refuses_for_a_while_comes_later",
        || {
            let (api, agent) = ready(&[]);
            api.go_away(true);
            agent.until("seen", || served("/metrics").contains("rail_cni_api_up 0"));
            // The version that it watched from is too old, and the list is refused.
            api.refuse("/cidrpools?", &[410, 429, 403]);
            api.go_away(false);
            agent.until("refused", || api.left_to_refuse() == 0);
            api.put(&format!("{POOLS}/rail-0"), pool(0, Some("172.16.9.0/31")));
            agent.until("the new plan", || allocation(0).contains("172.16.9.0/31"));
        },
    );
}

#[test]
fn a_second_agent_on_a_node_refuses_and_names_the_first() {
    on_a_node(
        "run::a_second_agent_on_a_node_refuses_and_names_the_first",
        || {
            let (api, _first) = ready(&[]);
            let log = Running::start(&api, &[]).ended();
            assert!(log.contains("pod rail-agent-x"), "{log}");
        },
    );
}

#[test]
fn an_agent_that_sees_only_its_container_judges_nothing() {
    on_a_node(
        "run::an_agent_that_sees_only_its_container_judges_nothing",
        || {
            let mut alone = in_container(&[
                "unshare",
                "-pf",
                "--mount-proc",
                crate::node::AGENT,
                "run",
                "--node",
                "x",
            ]);
            let output = alone.env("KUBECONFIG", "/nonexistent").output().unwrap();
            assert_eq!(output.status.code(), Some(1));
            let text = text_of(&output);
            assert!(text.contains("hostPID: true"), "{text}");
        },
    );
}

#[test]
fn a_wrong_certificate_is_named_and_changes_nothing() {
    on_a_node(
        "run::a_wrong_certificate_is_named_and_changes_nothing",
        || {
            // A server of TLS whose certificate nobody signed.
            sh("cd /run && openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -subj /CN=x -days 1 \
            -addext subjectAltName=IP:127.0.0.1 2>/dev/null
            openssl s_server -accept 127.0.0.1:6443 -key key -cert cert -www >/dev/null 2>&1 &");
            install();
            let agent = Running::start_at("https://127.0.0.1:6443", &[]);
            agent.until("told", || agent.log().contains("ca.crt"));
            assert!(!std::path::Path::new("/etc/rail-cni").exists());
            assert!(agent.stop());
        },
    );
}

#[test]
fn the_labels_say_leaf_and_su_of_a_fabric_file_and_names_are_configurable() {
    on_a_node(
        "run::the_labels_say_leaf_and_su_of_a_fabric_file_and_names_are_configurable",
        || {
            let api = cluster();
            let fabric = "fabric: spectrum-x\ntiers: 2\nmode: none\nfamily: ipv4\nfirstOctet: 172\npolarity: leaf-odd\n\
            rails: 2\nsus: 2\nhostsPerSU: 2\nnodeName: worker-gpu-{node}\n\
            leafName: leaf-su{su+1:02}-r{rail+1}\nleafPort: swp{host+1}\n";
            api.put(
                CONFIG_MAP,
                config_map(
                    &json!({"node.dgx.json": node_json().to_string(), "fabric.yaml": fabric}),
                ),
            );
            install();
            let names = ["--tier-label", "ours/tier{tier}", "--taint", ""];
            let agent =
                Running::start(&api, &[&["--plan-from", "config-map"], &names[..]].concat());
            agent.until("the labels", || {
                let labels = api.get(NODE)["metadata"]["labels"].clone();
                labels["ours/tier1"] == "leaf-su01-r1"
                    && labels["ours/tier2"] == "su0"
                    && labels["ours/tier3"].is_null()
                    && labels["rail-cni/ready"] == "true"
            });
            // A plan that has this node elsewhere takes its labels along.
            let moved = fabric.replace("nodeName: worker-gpu-{node}", "nodeName: other-{node}")
                + "nodes:\n- {name: worker-gpu-0, su: 1, host: 0}\n";
            api.put(
                CONFIG_MAP,
                config_map(
                    &json!({"node.dgx.json": node_json().to_string(), "fabric.yaml": moved}),
                ),
            );
            agent.until("the other SU", || {
                let labels = api.get(NODE)["metadata"]["labels"].clone();
                labels["ours/tier1"] == "leaf-su02-r1" && labels["ours/tier2"] == "su1"
            });
            api.put(
                CONFIG_MAP,
                config_map(
                    &json!({"node.dgx.json": node_json().to_string(), "fabric.yaml": fabric}),
                ),
            );
            agent.until("back again", || {
                api.get(NODE)["metadata"]["labels"]["ours/tier2"] == "su0"
            });
            assert!(allocation(1).contains("172.18.0.0/31"), "{}", allocation(1));
            assert_eq!(taints(&api.get(NODE)), ["other", "rail-cni/not-ready"]);
        },
    );
}

#[test]
fn vfs_that_pods_may_have_change_only_on_a_node_that_gets_no_pods() {
    on_a_node(
        "run::vfs_that_pods_may_have_change_only_on_a_node_that_gets_no_pods",
        || {
            let (api, agent) = ready(&[]);
            let numvfs = || {
                sh("cat /run/sys/devices/0000:1a:00.0/sriov_numvfs")
                    .trim()
                    .to_owned()
            };
            let mut asked = node_json();
            asked["vfs"] = json!({"number": 1});
            let put = |asked: &Value| {
                api.put(
                    CONFIG_MAP,
                    config_map(&json!({"node.dgx.json": asked.to_string()})),
                );
            };
            put(&asked);
            agent.until("node.json", || {
                sh("cat /etc/rail-cni/node.json").contains("\"vfs\"")
            });
            asked["vfs"] = json!({"number": 2});
            put(&asked);
            agent.until("the refusal", || !api.events("VfsRefused").is_empty());
            let told = api.events("VfsRefused").remove(0)["note"]
                .as_str()
                .unwrap()
                .to_owned();
            assert!(told.contains("kubectl drain") && numvfs() == "1", "{told}");
            let mut node = api.get(NODE);
            node["spec"]["unschedulable"] = json!(true);
            api.put(NODE, node);
            // A file is no PF: railctl writes to it, and finds no VFs.
            agent.until("the number", || numvfs() == "2");
            assert!(agent.stop());
        },
    );
}
