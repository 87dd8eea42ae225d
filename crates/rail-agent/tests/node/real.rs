//! The agent with a real API server: kube-apiserver and etcd, if `scripts/cluster get` has built
//! them, with deploy/ applied by kubectl. So the roles are what the agent needs.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::node::{
    NAME, Running, allocation, config_map, install, node_json, on_a_node, pool, sh, skip, text_of,
    write,
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const CRD: &str = r#"{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "cidrpools.nv-ipam.nvidia.com"},
    "spec": {"group": "nv-ipam.nvidia.com", "scope": "Namespaced",
        "names": {"kind": "CIDRPool", "listKind": "CIDRPoolList", "plural": "cidrpools", "singular": "cidrpool"},
        "versions": [{"name": "v1alpha1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}"#;

/// The executable that has etcd, kube-apiserver and kubectl.
fn kube() -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("RAIL_KUBE").filter(|value| !value.is_empty())?);
    path.is_file().then_some(path)
}

fn kubectl(arguments: &[&str]) -> Output {
    let mut command = Command::new(kube().unwrap());
    command.args([
        "kubectl",
        "--server",
        "https://127.0.0.1:6443",
        "--certificate-authority",
        "/run/pki/ca.crt",
    ]);
    if !arguments
        .iter()
        .any(|argument| argument.starts_with("--token"))
    {
        command.args(["--token", "admin"]);
    }
    // The cache of kubectl belongs below a home that ends with the test.
    command
        .args(arguments)
        .env("HOME", "/run")
        .output()
        .unwrap()
}

#[track_caller]
fn kubectl_ok(arguments: &[&str]) -> String {
    let output = kubectl(arguments);
    assert!(
        output.status.success(),
        "kubectl {arguments:?}: {}",
        text_of(&output)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn apply(object: &Value) {
    write("/run/object.json", object.to_string());
    kubectl_ok(&[
        "apply",
        "--server-side",
        "--force-conflicts",
        "-f",
        "/run/object.json",
    ]);
}

fn node() -> Value {
    serde_json::from_str(&kubectl_ok(&["get", "node", NAME, "-o", "json"])).unwrap()
}

fn start_api_server() {
    sh("mkdir -p /run/pki /run/etcd && cd /run/pki
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout ca.key -out ca.crt -subj /CN=ca -days 1
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout api.key -out api.csr -subj /CN=api
        openssl x509 -req -in api.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out api.crt -days 1 \
            -extfile <(echo subjectAltName=IP:127.0.0.1)
        openssl genrsa -out accounts.key 2048
        echo 'admin,admin,admin,system:masters' >tokens
        ip addr add 192.0.2.1/32 dev lo");
    let start = |arguments: &str| {
        let log =
            fs::File::create(format!("/var/log/{}", arguments.split(' ').next().unwrap())).unwrap();
        let mut command = Command::new(kube().unwrap());
        command
            .args(arguments.split_whitespace())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        // It ends with the namespaces of the test.
        drop(command.spawn().unwrap());
    };
    start("etcd --data-dir /run/etcd --unsafe-no-fsync --log-level warn");
    start(
        "kube-apiserver --etcd-servers http://127.0.0.1:2379 --advertise-address 192.0.2.1 --bind-address 127.0.0.1 \
         --secure-port 6443 --tls-cert-file /run/pki/api.crt --tls-private-key-file /run/pki/api.key \
         --token-auth-file /run/pki/tokens --authorization-mode Node,RBAC --allow-privileged --service-cluster-ip-range 10.96.0.0/12 \
         --service-account-issuer https://kubernetes.default.svc --service-account-key-file /run/pki/accounts.key \
         --service-account-signing-key-file /run/pki/accounts.key --cert-dir /run/pki",
    );
    let begun = std::time::Instant::now();
    while !kubectl(&["get", "--raw", "/readyz"]).status.success() {
        let log = || fs::read_to_string("/var/log/kube-apiserver").unwrap();
        assert!(
            begun.elapsed().as_secs() < 120,
            "the API server does not start:\n{}",
            log()
        );
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

#[test]
fn with_the_roles_of_deploy_a_node_gets_ready_and_the_agent_can_change_no_other() {
    const TEST: &str =
        "real::with_the_roles_of_deploy_a_node_gets_ready_and_the_agent_can_change_no_other";
    if kube().is_none() {
        return skip(TEST, "no kube-apiserver 1.34.2 was built on this machine");
    }
    on_a_node(TEST, || {
        start_api_server();
        apply(&serde_json::from_str(CRD).unwrap());
        kubectl_ok(&[
            "wait",
            "--for=condition=Established",
            "crd/cidrpools.nv-ipam.nvidia.com",
            "--timeout=60s",
        ]);
        for name in [NAME, "another"] {
            apply(&json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": {"node-restriction.kubernetes.io/tenant": "a"}},
                "spec": {"taints": [{"key": "rail-cni/not-ready", "effect": "NoSchedule"},
                    {"key": "tenant", "value": "a", "effect": "NoSchedule"}]}}));
        }
        // The command of README.md.
        kubectl_ok(&["apply", "-k", &format!("{ROOT}/deploy/")]);
        kubectl_ok(&[
            "apply",
            "--dry-run=server",
            "-k",
            &format!("{ROOT}/deploy/uninstall/"),
        ]);
        apply(&config_map(&json!({"node.json": node_json().to_string()})));
        kubectl_ok(&["create", "namespace", "nvidia-network-operator"]);
        for rail in 0..2 {
            let mut pool = pool(rail, None);
            pool["apiVersion"] = json!("nv-ipam.nvidia.com/v1alpha1");
            pool["kind"] = json!("CIDRPool");
            apply(&pool);
        }
        // As the kubelet asks for the pod's token: it names the node.
        let token = kubectl_ok(&[
            "create",
            "token",
            "rail-agent",
            "-n",
            "kube-system",
            "--bound-object-kind=Node",
            "--bound-object-name",
            NAME,
        ]);
        let token = token.trim();
        let authority = sh("base64 -w 0 /run/pki/ca.crt");
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443", "certificate-authority-data": authority}}],
            "users": [{"name": "c", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]});
        install();
        let agent = Running::start_with(&config, &[]);
        let condition = |kind: &str| {
            let conditions = node()["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            conditions
                .into_iter()
                .find(|one| one["type"] == kind)
                .unwrap_or_default()
        };
        agent.until("ready", || condition("RailsReady")["status"] == "True");
        agent.until("the label", || {
            node()["metadata"]["labels"]["rail-cni/ready"] == "true"
        });
        assert!(
            !node()["spec"].to_string().contains("rail-cni/not-ready"),
            "{}",
            node()["spec"]
        );
        agent.until("the plan", || {
            condition("RailsPlanCurrent")["status"] == "True"
        });
        assert!(allocation(1).contains("172.18.0.0/31"));
        // A refusal by the API server would be in the log.
        let mut wrong = config_map(&json!({"node.json": "{}", "cluster": "another"}));
        wrong["apiVersion"] = json!("v1");
        apply(&wrong);
        agent.until("refused", || {
            condition("RailsPlanCurrent")["reason"] == "Refused"
        });
        agent.until("an Event", || {
            kubectl_ok(&[
                "get",
                "events",
                "-A",
                "--field-selector",
                "involvedObject.kind=Node",
            ])
            .contains("ConfigRefused")
        });
        let log = agent.log();
        assert!(!log.contains("orbidden"), "{log}");
        // Its token is good for its own Node alone.
        let label = |name: &str| kubectl(&["--token", token, "label", "node", name, "a=b"]);
        let output = label("another");
        assert!(
            text_of(&output).contains("ValidatingAdmissionPolicy"),
            "{}",
            text_of(&output)
        );
        assert!(label(NAME).status.success());
        // And of its own Node it changes nothing that draws or keeps away pods of others.
        let labels = "may change no label of the domains kubernetes.io and k8s.io";
        let taints = "may change the taint rail-cni/not-ready, and no other";
        for (verb, change, told) in [
            ("label", "node-restriction.kubernetes.io/other=b", labels),
            (
                "label",
                "sub.node-restriction.kubernetes.io/other=b",
                labels,
            ),
            ("label", "node-role.kubernetes.io/control-plane=", labels),
            ("label", "x.k8s.io/y=b", labels),
            ("label", "node-restriction.kubernetes.io/tenant=b", labels),
            ("label", "node-restriction.kubernetes.io/tenant-", labels),
            ("taint", "tenant-", taints),
            ("taint", "tenant=b:NoSchedule", taints),
            ("taint", "other=:NoExecute", taints),
        ] {
            let output = kubectl(&["--token", token, verb, "--overwrite", "node", NAME, change]);
            assert!(
                !output.status.success() && text_of(&output).contains(told),
                "{change}: {}",
                text_of(&output)
            );
        }
        // Nor whether the garbage collector deletes it, or what keeps it.
        let owner = r#"{"apiVersion":"v1","kind":"ConfigMap","name":"none","uid":"00000000-0000-0000-0000-000000000001"}"#;
        for (key, list) in [
            ("ownerReferences", owner),
            ("finalizers", r#""example.com/mine""#),
        ] {
            let change = format!(r#"{{"metadata":{{"{key}":[{list}]}}}}"#);
            let output = kubectl(&[
                "--token", token, "patch", "node", NAME, "--type", "merge", "--patch", &change,
            ]);
            let told = format!("may change no metadata.{key}");
            assert!(
                !output.status.success() && text_of(&output).contains(&told),
                "{key}: {}",
                text_of(&output)
            );
        }
        let patch = r#"{"metadata":{"labels":{"node-restriction.kubernetes.io/tenant":"b"}}}"#;
        // kubectl would have to read nodes/status before, which is no right of the agent.
        let by_status = sh(&format!(
            "curl -sS --cacert /run/pki/ca.crt -X PATCH -H 'authorization: Bearer {token}' -d '{patch}' \
             -H 'content-type: application/merge-patch+json' https://127.0.0.1:6443/api/v1/nodes/{NAME}/status"
        ));
        assert!(by_status.contains(labels), "{by_status}");
        for (verb, change) in [
            ("label", "mykubernetes.io/a=b"),
            ("taint", "rail-cni/not-ready=:NoSchedule"),
        ] {
            let output = kubectl(&["--token", token, verb, "--overwrite", "node", NAME, change]);
            assert!(output.status.success(), "{change}: {}", text_of(&output));
        }
        // Of the ConfigMap it changes only that its own node pauses a rollout.
        let paused =
            |by: &str| json!({"metadata": {"annotations": {"rail-cni/rollout-paused": by}}});
        let change = |body: &Value| {
            sh(&format!(
                "curl -sS --cacert /run/pki/ca.crt -X PATCH -H 'authorization: Bearer {token}' -d '{body}' \
                 -H 'content-type: application/merge-patch+json' \
                 https://127.0.0.1:6443/api/v1/namespaces/kube-system/configmaps/rail-cni"
            ))
        };
        let mut both = paused(NAME);
        both["data"] = json!({"node.json": "[]"});
        for (body, is_allowed) in [
            (
                json!({"metadata": {"annotations": {"rail-cni/rollout-percent": "100"}}}),
                false,
            ),
            (json!({"metadata": {"labels": {"a": "b"}}}), false),
            (both, false),
            (paused("another"), false),
            (paused(NAME), true),
            (paused("another"), false),
            (
                json!({"metadata": {"annotations": {"rail-cni/rollout-paused": null}}}),
                false,
            ),
        ] {
            let said = change(&body);
            let told = if is_allowed {
                r#""kind": "ConfigMap""#
            } else {
                "ValidatingAdmissionPolicy"
            };
            assert!(said.contains(told), "{body}: {said}");
        }
        agent.until("the taint away again", || {
            !node()["spec"].to_string().contains("rail-cni/not-ready")
        });
        for asked in [
            ["list", "pods"],
            ["get", "secrets"],
            ["delete", "nodes"],
            ["create", "pods"],
        ] {
            let output = kubectl(&["--token", token, "auth", "can-i", asked[0], asked[1], "-A"]);
            assert_eq!(
                String::from_utf8_lossy(&output.stdout).trim(),
                "no",
                "{asked:?}"
            );
        }
        // A rollout leaves the Node as it is; labels and conditions go with the DaemonSet.
        assert!(agent.stop());
        assert_eq!(node()["metadata"]["labels"]["rail-cni/ready"], "true");
        kubectl_ok(&["delete", "daemonset", "rail-agent", "-n", "kube-system"]);
        let agent = Running::start_with(&config, &[]);
        agent.until("looking", || {
            crate::node::served("/metrics").contains("rail_cni_api_up 1")
        });
        let (is_well, log) = agent.stopped();
        assert!(is_well, "{log}");
        assert!(
            node()["metadata"]["labels"]["rail-cni/ready"].is_null(),
            "{log}"
        );
        assert!(condition("RailsReady").is_null(), "{log}");
        // In another namespace, by a kustomization of an operator, its token is good for no more.
        kubectl_ok(&["create", "namespace", "gpu"]);
        write(
            "/run/own/kustomization.yaml",
            format!("resources: [../..{ROOT}/deploy]\nnamespace: gpu\n"),
        );
        kubectl_ok(&["apply", "-k", "/run/own"]);
        let of_node = ["--bound-object-kind=Node", "--bound-object-name", NAME];
        let moved = kubectl_ok(
            &[
                &["create", "token", "rail-agent", "-n", "gpu"][..],
                &of_node,
            ]
            .concat(),
        );
        let label = |name: &str| kubectl(&["--token", moved.trim(), "label", "node", name, "c=d"]);
        let output = label(NAME);
        assert!(output.status.success(), "{}", text_of(&output));
        let told = text_of(&label("another"));
        assert!(told.contains("ValidatingAdmissionPolicy"), "{told}");
        all_at_once(&config);
    });
}

/// Rights and DaemonSet are deleted by one command, and the agent takes its word off the Node all
/// the same.
fn all_at_once(config: &Value) {
    let deploy = format!("{ROOT}/deploy/");
    kubectl_ok(&["apply", "-k", &deploy]);
    apply(&config_map(&json!({"node.json": node_json().to_string()})));
    let agent = Running::start_with(config, &[]);
    agent.until("the label", || {
        node()["metadata"]["labels"]["rail-cni/ready"] == "true"
    });
    apply(
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "rail-agent-x", "namespace": "kube-system",
            "labels": {"app.kubernetes.io/name": "rail-agent"}},
        "spec": {"nodeName": NAME, "serviceAccountName": "rail-agent", "automountServiceAccountToken": false,
            "containers": [{"name": "agent", "image": "rail-cni"}]}}),
    );
    // The policy judges from a moment on.
    let refused = |kind: &str| {
        let output = kubectl(&[
            "delete",
            kind,
            "rail-agent",
            "-n",
            "kube-system",
            "--dry-run=server",
        ]);
        !output.status.success() && text_of(&output).contains("ValidatingAdmissionPolicy")
    };
    agent.until("the policy", || {
        refused("clusterrole") && refused("serviceaccount")
    });
    let output = kubectl(&["delete", "-k", &deploy, "--wait=false"]);
    let told = text_of(&output);
    assert!(
        !output.status.success() && told.contains("kube-system/rail-agent-x"),
        "{told}"
    );
    for (kind, stays) in [
        ("daemonset", false),
        ("clusterrole", true),
        ("clusterrolebinding", true),
        ("serviceaccount", true),
        ("role", true),
        ("rolebinding", true),
    ] {
        let found = kubectl(&["get", kind, "rail-agent", "-n", "kube-system"])
            .status
            .success();
        assert_eq!(found, stays, "{kind}: {told}");
    }
    let (is_well, log) = agent.stopped();
    assert!(
        is_well && node()["metadata"]["labels"]["rail-cni/ready"].is_null(),
        "{log}"
    );
    kubectl_ok(&[
        "delete",
        "pod",
        "rail-agent-x",
        "-n",
        "kube-system",
        "--force",
        "--grace-period=0",
    ]);
    kubectl_ok(&[
        "delete",
        "-k",
        &deploy,
        "--wait=false",
        "--ignore-not-found",
    ]);
    assert!(
        !kubectl(&["get", "clusterrole", "rail-agent"])
            .status
            .success()
    );
}
