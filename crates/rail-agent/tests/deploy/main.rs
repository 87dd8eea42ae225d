//! deploy/: what kustomize and Helm render is what the API accepts, what the agent asks for, and
//! the same. tests/deploy.sh gets the tools and the schemas.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod monitoring;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use serde::Deserialize as _;
use serde_json::{Value, json};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn skip(test: &str, reason: &str) {
    eprintln!("skipped {test}: {reason}");
    if let Some(path) = std::env::var_os("RAIL_TEST_SKIPS") {
        let mut file = fs::File::options()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        writeln!(file, "{test}: {reason}").unwrap();
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn documents(text: &str) -> Vec<Value> {
    let all =
        yaml_serde::Deserializer::from_str(text).map(|each| Value::deserialize(each).unwrap());
    all.filter(|each| !each.is_null()).collect()
}

/// The path of a tool or of files, from an environment variable.
fn given(variable: &str) -> Option<String> {
    std::env::var(variable)
        .ok()
        .filter(|value| !value.is_empty())
}

fn render(command: &mut Command) -> Vec<Value> {
    let output = command.current_dir(ROOT).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    documents(&String::from_utf8(output.stdout).unwrap())
}

fn kustomized(folder: &str) -> Option<Vec<Value>> {
    Some(render(
        Command::new(given("RAIL_KUSTOMIZE")?).args(["build", folder]),
    ))
}

fn helm(more: &[&str]) -> Option<Vec<Value>> {
    let home = tempfile::tempdir().unwrap();
    Some(render(helm_command(more)?.env("HOME", home.path())))
}

/// Helm's error for values that it refuses.
fn refusal(more: &[&str]) -> Option<String> {
    let home = tempfile::tempdir().unwrap();
    let output = helm_command(more)?
        .current_dir(ROOT)
        .env("HOME", home.path())
        .output()
        .unwrap();
    assert!(!output.status.success(), "{more:?} is accepted");
    Some(String::from_utf8(output.stderr).unwrap())
}

fn helm_command(more: &[&str]) -> Option<Command> {
    let arguments = [
        "template",
        "rail-cni",
        "deploy/chart",
        "--namespace",
        "kube-system",
        "--kube-version",
        "1.34.2",
    ];
    let mut command = Command::new(given("RAIL_HELM")?);
    command.args(arguments).args(more);
    Some(command)
}

fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let name = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
    objects
        .into_iter()
        .map(|object| (name(&object), object))
        .collect()
}

/// The policy for pods is an option; with `Deny` it is the one of conf/.
#[test]
fn the_chart_has_the_policy_for_pods() {
    const TEST: &str = "the_chart_has_the_policy_for_pods";
    let Some(chart) = helm(&["--set", "admissionPods.action=Deny"]) else {
        return skip(TEST, "helm is not here");
    };
    let without = by_name(helm(&[]).unwrap());
    let mut added = by_name(chart);
    added.retain(|name, _| !without.contains_key(name));
    let added = json!(added).to_string();
    let named = added.replace("rail-agent-pods", "rail-cni-pods");
    let of_conf = by_name(documents(&read("conf/admission-pods.yaml")));
    assert_eq!(named, json!(of_conf).to_string());
    let values = "admissionPods.action=Warn,admissionPods.exempt={ours}";
    let warns = by_name(helm(&["--set", values]).unwrap());
    let binding = &warns["\"ValidatingAdmissionPolicyBinding\" \"rail-agent-pods\""]["spec"];
    assert_eq!(binding["validationActions"], json!(["Warn", "Audit"]));
    let selector = &binding["matchResources"]["namespaceSelector"]["matchExpressions"][0];
    assert_eq!(selector["values"], json!(["ours"]));
}

fn manifests() -> Vec<Value> {
    let files = [
        "config",
        "rbac",
        "own-node",
        "rights",
        "agent",
        "dranet/rbac",
        "uninstall/uninstall",
    ];
    files
        .iter()
        .flat_map(|file| documents(&read(&format!("deploy/{file}.yaml"))))
        .collect()
}

/// The parts of an object that the schema of its kind does not have, or has in another form.
fn faults(schema: &Value, object: &Value) -> Vec<String> {
    let (group, version) = object["apiVersion"]
        .as_str()
        .unwrap()
        .rsplit_once('/')
        .unwrap_or(("", "v1"));
    let kind = json!({"group": group, "version": version, "kind": object["kind"]});
    let of_kind = schema["definitions"]
        .as_object()
        .unwrap()
        .values()
        .find(|one| {
            one["x-kubernetes-group-version-kind"]
                .as_array()
                .is_some_and(|kinds| kinds.contains(&kind))
        });
    let Some(definition) = of_kind else {
        return vec![format!("no kind {kind}")];
    };
    let mut faults = Vec::new();
    compare(
        schema,
        definition,
        object,
        &object["kind"].to_string(),
        &mut faults,
    );
    faults
}

fn compare(
    schema: &Value,
    definition: &Value,
    value: &Value,
    path: &str,
    faults: &mut Vec<String>,
) {
    if let Some(reference) = definition["$ref"].as_str() {
        let name = reference.trim_start_matches("#/definitions/");
        return compare(schema, &schema["definitions"][name], value, path, faults);
    }
    let is_of_type = match definition["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        // IntOrString, Quantity, Time.
        Some("string") => {
            value.is_string() || (definition["format"] == "int-or-string" && value.is_number())
        }
        Some("integer") => value.is_i64(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    };
    if !is_of_type {
        faults.push(format!("{path}: {value} is no {}", definition["type"]));
    }
    for required in definition["required"].as_array().into_iter().flatten() {
        if value.get(required.as_str().unwrap()).is_none() {
            faults.push(format!("{path}: {required} is missing"));
        }
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        match (
            definition["properties"].get(key),
            definition.get("additionalProperties"),
        ) {
            (Some(property), _) | (None, Some(property)) => {
                compare(schema, property, value, &path, faults)
            }
            (None, None) if definition["properties"].is_object() => {
                faults.push(format!("{path} is not known"))
            }
            (None, None) => (),
        }
    }
    for (index, value) in value.as_array().into_iter().flatten().enumerate() {
        compare(
            schema,
            &definition["items"],
            value,
            &format!("{path}[{index}]"),
            faults,
        );
    }
}

#[test]
fn what_is_rendered_is_what_two_versions_of_kubernetes_know() {
    const TEST: &str = "what_is_rendered_is_what_two_versions_of_kubernetes_know";
    let Some(files) = given("RAIL_SCHEMAS") else {
        return skip(TEST, "no schemas: scripts/test deploy gets them");
    };
    let mut all = manifests();
    match (kustomized("deploy"), kustomized("deploy/uninstall")) {
        (Some(one), Some(other)) => all.extend(one.into_iter().chain(other)),
        _ => skip(
            TEST,
            "kustomize is not here: the files were checked as they are",
        ),
    }
    let options = [
        "--set",
        "metricsSecret=s,monitoring.dashboard=true,openshift=true,dranet=true,admissionPods.action=Warn",
    ];
    match (
        helm(&options),
        helm(&["--set", "uninstall=true,fullnameOverride=second"]),
    ) {
        (Some(one), Some(other)) => all.extend(one.into_iter().chain(other)),
        _ => skip(TEST, "helm is not here: the chart was not checked"),
    }
    for file in files.split(':') {
        let schema: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        for object in &all {
            assert_eq!(faults(&schema, object), Vec::<String>::new(), "{file}");
        }
        // The check sees what is wrong.
        let mut wrong = all
            .iter()
            .find(|object| object["kind"] == "DaemonSet")
            .unwrap()
            .clone();
        wrong["spec"]["template"]["spec"]["hostPid"] = json!(true);
        wrong["spec"]["template"]["spec"]["hostNetwork"] = json!("true");
        wrong["spec"].as_object_mut().unwrap().remove("selector");
        assert_eq!(
            faults(&schema, &wrong).len(),
            3,
            "{:?}",
            faults(&schema, &wrong)
        );
    }
    assert_eq!(
        files.split(':').count(),
        2,
        "one of the versions could not be had"
    );
}
#[test]
fn the_chart_renders_the_same_objects_as_the_kustomization() {
    const TEST: &str = "the_chart_renders_the_same_objects_as_the_kustomization";
    let Some(chart) = helm(&[]) else {
        return skip(TEST, "helm is not here: scripts/test deploy gets it");
    };
    let Some(kustomized) = kustomized("deploy") else {
        return skip(TEST, "kustomize is not here");
    };
    let (chart, kustomized) = (by_name(chart), by_name(kustomized));
    assert_eq!(
        chart.keys().collect::<Vec<_>>(),
        kustomized.keys().collect::<Vec<_>>()
    );
    for (name, object) in &kustomized {
        assert_eq!(&chart[name], object, "{name}");
    }
}

/// A kustomization that has ours in `resources`, as an operator writes one; DEPLOY is the path of
/// deploy/.
fn within(text: &str) -> Option<Vec<Value>> {
    let own = tempfile::tempdir().unwrap();
    // Kustomize wants relative paths.
    let depth = own.path().canonicalize().unwrap().components().count() - 1;
    let deploy = format!(
        "{}{}",
        "../".repeat(depth),
        Path::new(ROOT)
            .canonicalize()
            .unwrap()
            .join("deploy")
            .display()
    );
    let deploy = deploy.replace("//", "/");
    fs::write(
        own.path().join("kustomization.yaml"),
        text.replace("DEPLOY", &deploy),
    )
    .unwrap();
    kustomized(own.path().to_str().unwrap())
}

/// The policies know the account by a right, which the account of the DaemonSet has under whatever
/// name.
#[test]
fn the_policies_of_the_agent_hold_in_any_namespace_and_with_any_prefix() {
    const TEST: &str = "the_policies_of_the_agent_hold_in_any_namespace_and_with_any_prefix";
    let more = "resources: [DEPLOY]\nnamespace: gpu\nnamePrefix: our-\n";
    let Some(moved) = within(more) else {
        return skip(TEST, "kustomize is not here");
    };
    let Some(chart) = helm(&["--namespace", "gpu", "--set", "fullnameOverride=our"]) else {
        return skip(TEST, "helm is not here");
    };
    let plain = kustomized("deploy").unwrap();
    for (objects, name) in [(moved, "rail-agent"), (chart, "our"), (plain, "rail-agent")] {
        let of_kind = |kind: &str| {
            let is_it = move |object: &&Value| object["kind"] == kind;
            objects.iter().filter(is_it).collect::<Vec<_>>()
        };
        let [set] = of_kind("DaemonSet")[..] else {
            panic!("{objects:?}")
        };
        let [binding] = of_kind("ClusterRoleBinding")[..] else {
            panic!("{objects:?}")
        };
        let [role] = of_kind("ClusterRole")[..] else {
            panic!("{objects:?}")
        };
        let account = &set["spec"]["template"]["spec"]["serviceAccountName"];
        let subject = json!({"kind": "ServiceAccount", "name": account,
            "namespace": set["metadata"]["namespace"]});
        assert_eq!(binding["subjects"], json!([subject]));
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
        let right = json!({"apiGroups": ["rail-cni"], "resources": ["agents"],
            "resourceNames": [name], "verbs": ["limited"]});
        let rules = role["rules"].as_array().unwrap();
        assert!(rules.contains(&right), "{rules:?}");

        let mut names = Vec::new();
        for policy in of_kind("ValidatingAdmissionPolicy") {
            let Some(conditions) = policy["spec"]["matchConditions"].as_array() else {
                continue;
            };
            let text = conditions[0]["expression"].as_str().unwrap();
            let asked = r#"authorizer.group("rail-cni").resource("agents")"#;
            let check = format!(r#"{asked}.name("{name}").check("limited").allowed()"#);
            assert!(conditions.len() == 1 && text.contains(&check), "{text}");
            assert!(!text.contains("endsWith"), "{text}");
            names.push(&policy["metadata"]["name"]);
        }
        assert_eq!(names.len(), 3, "node, events and pause");
        let bindings = of_kind("ValidatingAdmissionPolicyBinding");
        let is_bound = |name: &&Value| {
            bindings
                .iter()
                .any(|one| one["spec"]["policyName"] == **name)
        };
        assert!(names.iter().all(is_bound), "{names:?}");
    }
}

/// In the place of the agent comes the DaemonSet of deploy/uninstall/, in the namespace of the
/// chart.
#[test]
fn the_chart_takes_rail_cni_off_the_nodes_as_the_kustomization_does() {
    const TEST: &str = "the_chart_takes_rail_cni_off_the_nodes_as_the_kustomization_does";
    let Some(chart) = helm(&["--set", "uninstall=true"]) else {
        return skip(TEST, "helm is not here");
    };
    let Some(kustomized) = kustomized("deploy/uninstall") else {
        return skip(TEST, "kustomize is not here");
    };
    let (chart, kustomized) = (by_name(chart), by_name(kustomized));
    let sets = chart
        .iter()
        .filter(|(_, object)| object["kind"] == "DaemonSet");
    assert_eq!(
        sets.collect::<Vec<_>>(),
        kustomized.iter().collect::<Vec<_>>()
    );
    assert!(chart.contains_key("\"ServiceAccount\" \"rail-agent\""));
}

#[test]
fn dranet_is_an_option_of_chart_and_kustomization_and_off_by_default() {
    const TEST: &str = "dranet_is_an_option_of_chart_and_kustomization_and_off_by_default";
    let Some(chart) = helm(&["--set", "dranet=true"]) else {
        return skip(TEST, "helm is not here");
    };
    let text = "resources: [DEPLOY]\ncomponents: [DEPLOY/dranet]\n";
    let Some(component) = within(text) else {
        return skip(TEST, "kustomize is not here");
    };
    let (chart, component) = (by_name(chart), by_name(component));
    assert_eq!(
        chart.keys().collect::<Vec<_>>(),
        component.keys().collect::<Vec<_>>()
    );
    for (name, object) in &component {
        assert_eq!(&chart[name], object, "{name}");
    }
    let args = |objects: &BTreeMap<String, Value>| {
        let set = &objects["\"DaemonSet\" \"rail-agent\""];
        set["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
    };
    assert!(
        args(&component).contains("--dranet")
            && component.contains_key("\"ClusterRole\" \"rail-agent-claims\"")
    );
    let without = by_name(helm(&[]).unwrap());
    assert!(!args(&without).contains("--dranet") && without.len() + 2 == component.len());
}

#[test]
fn the_values_of_the_chart_take_effect() {
    const TEST: &str = "the_values_of_the_chart_take_effect";
    let values = [
        "--set",
        "image.repository=r.example.com/rail-cni,image.tag=v1,args={--plan-from=config-map},pluginsDir=/home/cni/bin,cidrpoolsNamespace=n",
        "--set-json",
        "nodeSelector={\"gpu\":\"yes\"}",
        "--set-json",
        "imagePullSecrets=[{\"name\":\"s\"}]",
        "--set-json",
        "config={\"cluster\":\"u\"}",
    ];
    let Some(objects) = helm(&values) else {
        return skip(TEST, "helm is not here: scripts/test deploy gets it");
    };
    let objects = by_name(objects);
    let pod = &objects["\"DaemonSet\" \"rail-agent\""]["spec"]["template"]["spec"];
    assert_eq!(pod["nodeSelector"], json!({"gpu": "yes"}));
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "s"}]));
    assert_eq!(pod["containers"][0]["args"][3], "--cidrpools-namespace=n");
    assert_eq!(pod["containers"][0]["args"][4], "--plan-from=config-map");
    assert_eq!(
        objects["\"ConfigMap\" \"rail-cni\""]["data"]["cluster"],
        "u"
    );
    let off = by_name(helm(&[&values[..], &["--set", "uninstall=true"]].concat()).unwrap());
    let off = &off["\"DaemonSet\" \"rail-uninstall\""]["spec"]["template"]["spec"];
    for key in ["nodeSelector", "imagePullSecrets"] {
        assert_eq!(off[key], pod[key]);
    }
    for pod in [pod, off] {
        for container in ["containers", "initContainers"] {
            assert_eq!(pod[container][0]["image"], "r.example.com/rail-cni:v1");
            let arguments = pod[container][0]["args"].as_array().unwrap();
            assert!(
                arguments.contains(&json!("--plugins-dir=/home/cni/bin")),
                "{arguments:?}"
            );
        }
    }
}

fn schema() -> Value {
    serde_json::from_str(&read("deploy/chart/values.schema.json")).unwrap()
}

/// The keys that `values` has and the schema does not, and the other way round.
fn differing_keys(schema: &Value, values: &Value, path: &str, differing: &mut Vec<String>) {
    let (Some(known), Some(values)) = (schema["properties"].as_object(), values.as_object()) else {
        return;
    };
    for key in known.keys().chain(values.keys()).collect::<BTreeSet<_>>() {
        match (known.get(key), values.get(key)) {
            (Some(known), Some(value)) => {
                differing_keys(known, value, &format!("{path}.{key}"), differing)
            }
            _ => differing.push(format!("{path}.{key}")),
        }
    }
}

#[test]
fn the_values_and_their_schema_name_the_same_keys() {
    let schema = schema();
    let mut differing = Vec::new();
    differing_keys(
        &schema,
        &documents(&read("deploy/chart/values.yaml"))[0],
        "",
        &mut differing,
    );
    // `global` is what Helm gives to each chart that is part of another one. The others are absent
    // by default, as is said where their parents are documented.
    let expected = [
        ".affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution",
        ".config.cluster",
        ".config.fabric.yaml",
        ".global",
    ];
    assert_eq!(differing, expected);
}

#[test]
fn no_object_of_the_values_takes_keys_that_nobody_reads() {
    let mut objects = 0;
    let mut todo = vec![(String::new(), schema())];
    while let Some((path, one)) = todo.pop() {
        if one["type"] == "object" && path != ".properties.global" {
            objects += 1;
            let others = &one["additionalProperties"];
            assert!(
                *others == json!(false) || others.get("type").is_some(),
                "{path}"
            );
        }
        let Some(members) = one.as_object() else {
            continue;
        };
        todo.extend(
            members
                .iter()
                .map(|(key, value)| (format!("{path}.{key}"), value.clone())),
        );
    }
    assert!(objects > 8, "{objects}");
}

/// The values that values.yaml describes, sorted: those below a comment `# -- DESCRIPTION`.
fn described_values() -> Vec<String> {
    let text = read("deploy/chart/values.yaml");
    let (mut values, mut path, mut is_described) = (Vec::new(), Vec::new(), false);
    for line in text.lines() {
        let word = line.trim_start();
        if word.starts_with('#') {
            is_described |= word.starts_with("# -- ");
            continue;
        }
        if let Some((key, _)) = word.split_once(':').filter(|_| !word.starts_with('-')) {
            path.truncate((line.len() - word.len()) / 2);
            path.push(key);
            if is_described {
                values.push(path.join("."));
            }
        }
        is_described = false;
    }
    values.sort();
    values
}

#[test]
fn every_value_of_the_chart_is_described() {
    let described = described_values();
    for key in documents(&read("deploy/chart/values.yaml"))[0]
        .as_object()
        .unwrap()
        .keys()
    {
        let is_of_key = |value: &String| value.split('.').next() == Some(key);
        assert!(described.iter().any(is_of_key), "{key}");
    }
}

/// Each value with another one than the default, and what shows it.
const CHANGES: [(&str, &str, &str); 34] = [
    ("admissionPods.action", r#""Deny""#, r#""rail-agent-pods""#),
    ("admissionPods.exempt", r#"["ours"]"#, r#"["ours"]"#),
    ("affinity", "null", ""),
    ("args", r#"["--claim-interval=7"]"#, "--claim-interval=7"),
    (
        "cidrpoolsNamespace",
        r#""ours""#,
        "--cidrpools-namespace=ours",
    ),
    ("config", r#"{"cluster":"the-uid"}"#, "the-uid"),
    ("dranet", "true", "--dranet"),
    ("fullnameOverride", r#""second""#, "--daemon-set=second"),
    (
        "image.digest",
        r#""sha256:0000000000000000000000000000000000000000000000000000000000000000""#,
        "@sha256:0",
    ),
    (
        "image.pullPolicy",
        r#""Always""#,
        r#""imagePullPolicy":"Always""#,
    ),
    (
        "image.repository",
        r#""r.example.com/rail-cni""#,
        "r.example.com/rail-cni:",
    ),
    ("image.tag", r#""v9""#, "rail-cni:v9"),
    (
        "imagePullSecrets",
        r#"[{"name":"our-secret"}]"#,
        "our-secret",
    ),
    ("metricsPort", "9999", "--listen=127.0.0.1:9999"),
    (
        "metricsSecret",
        r#""our-secret""#,
        r#""secretName":"our-secret""#,
    ),
    ("minReadySeconds", "7", r#""minReadySeconds":7"#),
    ("monitoring.dashboard", "true", "grafana_dashboard"),
    ("monitoring.enabled", "true", "PodMonitor"),
    (
        "monitoring.labels",
        r#"{"release":"ours"}"#,
        r#""release":"ours""#,
    ),
    (
        "monitoring.runbooks",
        r#""https://ours/runbooks""#,
        "https://ours/runbooks#rail",
    ),
    (
        "monitoring.serverName",
        r#""ours""#,
        r#""serverName":"ours""#,
    ),
    (
        "nodeSelector",
        r#"{"gpu":"yes"}"#,
        r#""nodeSelector":{"gpu":"yes"}"#,
    ),
    ("openshift", "true", "system:openshift:scc:privileged"),
    (
        "pluginsDir",
        r#""/home/cni/bin""#,
        "--plugins-dir=/home/cni/bin",
    ),
    (
        "podAnnotations",
        r#"{"our/annotation":"a"}"#,
        r#""our/annotation":"a""#,
    ),
    ("podLabels", r#"{"our/label":"a"}"#, r#""our/label":"a""#),
    ("preflightInterval", "3600", "--preflight-interval=3600"),
    (
        "priorityClassName",
        r#""ours""#,
        r#""priorityClassName":"ours""#,
    ),
    (
        "resource",
        r#""ours.example.com/rail-{rail}""#,
        "--resource=ours.example.com/rail-{rail}",
    ),
    (
        "resources",
        r#"{"limits":{"memory":"1Gi"}}"#,
        r#""memory":"1Gi""#,
    ),
    ("taint", r#""ours/taint""#, "--taint=ours/taint"),
    (
        "tolerations",
        r#"[{"key":"gpu","operator":"Exists"}]"#,
        r#""tolerations":[{"key":"gpu""#,
    ),
    ("uninstall", "true", "--wait=86400"),
    (
        "updateStrategy",
        r#"{"rollingUpdate":{"maxUnavailable":3}}"#,
        r#""updateStrategy":{"rollingUpdate":{"maxUnavailable":3},"type":"RollingUpdate"}"#,
    ),
];

#[test]
fn every_value_of_the_chart_does_something() {
    const TEST: &str = "every_value_of_the_chart_does_something";
    if helm(&[]).is_none() {
        return skip(TEST, "helm is not here");
    }
    assert_eq!(described_values(), CHANGES.map(|(key, ..)| key));
    for (key, value, shown) in CHANGES {
        // Values of optional objects are tried with these objects.
        let with: &[&str] = match key {
            "admissionPods.exempt" => &["--set", "admissionPods.action=Deny"],
            "monitoring.enabled" => &["--set", "metricsSecret=s"],
            key if key.starts_with("monitoring.") => {
                &["--set", "metricsSecret=s,monitoring.enabled=true"]
            }
            _ => &[],
        };
        let changed = helm(&[with, &["--set-json", &format!("{key}={value}")]].concat()).unwrap();
        let default = helm(with).unwrap();
        assert_ne!(changed, default, "{key}");
        let (changed, default) = (json!(changed).to_string(), json!(default).to_string());
        assert!(
            shown.is_empty() || (changed.contains(shown) && !default.contains(shown)),
            "{key}: {changed}"
        );
    }
}

/// Two releases in one cluster share nothing, and each agent asks for what is its own.
#[test]
fn with_another_name_no_object_of_the_chart_has_the_default_one() {
    const TEST: &str = "with_another_name_no_object_of_the_chart_has_the_default_one";
    let second = [
        "--set",
        "fullnameOverride=second,openshift=true,dranet=true,admissionPods.action=Deny",
    ];
    for more in [&[][..], &["--set", "uninstall=true"]] {
        let Some(objects) = helm(&[&second[..], more].concat()) else {
            return skip(TEST, "helm is not here");
        };
        for object in &objects {
            let name = object["metadata"]["name"].as_str().unwrap();
            assert!(name == "second" || name.starts_with("second-"), "{name}");
            for subject in object["subjects"].as_array().into_iter().flatten() {
                assert_eq!(subject["name"], "second");
            }
            if object["kind"] == "Role" {
                for rule in object["rules"].as_array().unwrap() {
                    assert_eq!(rule["resourceNames"], json!(["second"]));
                }
            }
            // The policy for pods is about nobody's rights.
            let is_about_pods = object["metadata"]["name"] == "second-pods";
            if object["kind"] == "ValidatingAdmissionPolicy" && !is_about_pods {
                let text = object["spec"].to_string();
                let is_its = text.contains(r#".name(\"second\")"#)
                    || text.contains(r#""resourceNames":["second"]"#);
                assert!(is_its && !text.contains("[\"rail-agent\"]"), "{text}");
            }
            if object["kind"] == "DaemonSet" {
                let template = &object["spec"]["template"];
                assert_eq!(template["spec"]["serviceAccountName"], "second");
                assert_eq!(
                    object["spec"]["selector"]["matchLabels"],
                    template["metadata"]["labels"]
                );
            }
        }
        let text = json!(objects).to_string();
        assert!(
            !more.is_empty() || text.contains(r#""--daemon-set=second","--config-map=second""#),
            "{text}"
        );
    }
}

#[test]
fn helm_finds_no_fault_in_the_chart_and_it_asks_for_a_kubernetes_that_has_its_objects() {
    const TEST: &str =
        "helm_finds_no_fault_in_the_chart_and_it_asks_for_a_kubernetes_that_has_its_objects";
    let Some(tool) = given("RAIL_HELM") else {
        return skip(TEST, "helm is not here");
    };
    let home = tempfile::tempdir().unwrap();
    let mut lint = Command::new(tool);
    lint.args(["lint", "--strict", "deploy/chart"])
        .current_dir(ROOT)
        .env("HOME", home.path());
    let output = lint.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    let of = |version: &str| helm(&["--kube-version", version]).unwrap();
    assert_eq!(of("1.32.0"), of("1.34.2"));
    assert!(
        refusal(&["--kube-version", "1.31.9"])
            .unwrap()
            .contains("kubeVersion")
    );
}

#[test]
fn values_that_nobody_reads_or_of_another_type_are_refused() {
    const TEST: &str = "values_that_nobody_reads_or_of_another_type_are_refused";
    for (value, key) in [
        // A text is true for a template, whatever it says.
        (["--set-string", "uninstall=false"], "uninstall"),
        (["--set", "image.tg=x"], "tg"),
        (["--set-json", "image.tag=1.20"], "tag"),
        (["--set", "image.digest=abc"], "digest"),
        (["--set", "imagePullSecrets={s}"], "imagePullSecrets"),
        (["--set", "tain=x"], "tain"),
        (["--set", "taint=x'y"], "taint"),
        (["--set", "resource=rails"], "resource"),
        (["--set", "args=--dranet"], "args"),
        (["--set", "image.pullPolicy=always"], "pullPolicy"),
        (["--set", "fullnameOverride=Rails"], "fullnameOverride"),
        (
            ["--set", r"podLabels.app\.kubernetes\.io/name=x"],
            "podLabels",
        ),
        (
            [
                "--set-json",
                r#"tolerations=[{"key":"a","effects":"NoSchedule"}]"#,
            ],
            "effects",
        ),
        (["--set", "resources.request.cpu=1"], "request"),
        (["--set", "updateStrategy.type=Rolling"], "updateStrategy"),
        (
            ["--set", "updateStrategy.rollingUpdate.maxUnavailable=0"],
            "maxUnavailable",
        ),
        (["--set-string", "metricsPort=1"], "metricsPort"),
        (["--set", "monitoring.enabled=true"], "metricsSecret"),
        (["--set", "monitoring.enable=true"], "enable"),
        (["--set", r"config.node\.jsn=x"], "node.jsn"),
        (["--set", "admissionPods.action=deny"], "action"),
        (
            ["--set-json", r#"affinity={"nodeAffinty":{}}"#],
            "nodeAffinty",
        ),
        // `helm upgrade --reuse-values` leaves this value out, after an upgrade from a chart that
        // did not have it.
        (["--set", "taint=null"], "taint"),
    ] {
        let Some(text) = refusal(&value) else {
            return skip(TEST, "helm is not here");
        };
        assert!(text.contains(key), "{value:?}: {text}");
    }
    // Documented with its parent.
    let accepted = [
        "--set-json",
        r#"config={"node.json":"{}","node.h200.json":"{}","fabric.yaml":"rails: 8","cluster":"u"}"#,
        "--set-json",
        r#"global={"registry":"of-a-parent"}"#,
        "--set",
        "affinity=null,resources=null",
    ];
    assert!(helm(&accepted).is_some());
}

/// Otherwise each node would keep its taint.
#[test]
fn the_taint_of_the_chart_is_that_of_agent_and_policy() {
    const TEST: &str = "the_taint_of_the_chart_is_that_of_agent_and_policy";
    for (value, taint, argument) in [
        (
            "ours/no-rails",
            "ours/no-rails",
            Some("--taint=ours/no-rails"),
        ),
        ("", "", Some("--taint=")),
        ("rail-cni/not-ready", "rail-cni/not-ready", None),
    ] {
        let Some(chart) = helm(&["--set", &format!("taint={value}")]) else {
            return skip(TEST, "helm is not here");
        };
        let chart = by_name(chart);
        let policy = &chart["\"ValidatingAdmissionPolicy\" \"rail-agent-own-node\""]["spec"];
        let mut variables = policy["variables"].as_array().unwrap().iter();
        let variable = variables.find(|one| one["name"] == "taint").unwrap();
        assert_eq!(variable["expression"], format!("'{taint}'"));
        let pod = &chart["\"DaemonSet\" \"rail-agent\""]["spec"]["template"]["spec"];
        let arguments = pod["containers"][0]["args"].as_array().unwrap();
        let mut arguments = arguments.iter().map(|one| one.as_str().unwrap());
        assert_eq!(arguments.find(|one| one.starts_with("--taint")), argument);
    }
    // In `args` the policy would not know it.
    let text = refusal(&["--set", "args={--taint=ours/no-rails}"]).unwrap();
    assert!(text.contains("value taint"), "{text}");
    assert!(helm(&["--set", "args={--taint-after=30}"]).is_some());
}

/// Of nodes that have the label of the control plane, both DaemonSets have to be.
#[test]
fn the_affinity_of_the_chart_is_that_of_agent_and_uninstall() {
    const TEST: &str = "the_affinity_of_the_chart_is_that_of_agent_and_uninstall";
    let expression = json!({"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]});
    let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
    let affinity =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
    let value = format!("affinity={affinity}");
    for more in [&[][..], &["--set", "uninstall=true"]] {
        let Some(chart) = helm(&[&["--set-json", value.as_str()][..], more].concat()) else {
            return skip(TEST, "helm is not here");
        };
        let set = chart
            .iter()
            .find(|object| object["kind"] == "DaemonSet")
            .unwrap();
        assert_eq!(set["spec"]["template"]["spec"]["affinity"], affinity);
    }
    // docs/agent.md has this patch.
    let path = "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution\
                /nodeSelectorTerms/0/matchExpressions/1";
    assert!(read("docs/agent.md").contains(&format!("path: {path}")));
    for folder in ["DEPLOY", "DEPLOY/uninstall"] {
        let text = format!(
            "resources: [{folder}]\npatches:\n- target: {{kind: DaemonSet}}\n  patch: |-\n    - op: remove\n      path: {path}\n"
        );
        let Some(patched) = within(&text) else {
            return skip(TEST, "kustomize is not here");
        };
        let set = patched
            .iter()
            .find(|object| object["kind"] == "DaemonSet")
            .unwrap();
        assert_eq!(set["spec"]["template"]["spec"]["affinity"], affinity);
    }
}

#[test]
fn on_openshift_the_chart_lets_the_account_be_privileged() {
    const TEST: &str = "on_openshift_the_chart_lets_the_account_be_privileged";
    let Some(chart) = helm(&["--set", "openshift=true"]) else {
        return skip(TEST, "helm is not here");
    };
    let (chart, without) = (by_name(chart), by_name(helm(&[]).unwrap()));
    let name = "\"RoleBinding\" \"rail-agent-privileged\"";
    let binding = &chart[name];
    assert!(!without.contains_key(name) && without.len() + 1 == chart.len());
    assert_eq!(
        binding["roleRef"]["name"],
        "system:openshift:scc:privileged"
    );
    assert_eq!(binding["metadata"]["namespace"], "kube-system");
    let account =
        chart["\"DaemonSet\" \"rail-agent\""]["spec"]["template"]["spec"]["serviceAccountName"]
            .clone();
    assert_eq!(
        binding["subjects"],
        json!([{"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}])
    );
    // docs/agent.md shows the same one for kustomize.
    let text = read("docs/agent.md");
    let shown = text
        .split("```")
        .filter_map(|block| block.strip_prefix("yaml\n"));
    let mut shown = shown.filter(|block| block.contains("rail-agent-privileged"));
    assert!(
        shown.any(|block| documents(block) == [binding.clone()]),
        "docs/agent.md"
    );
}

#[test]
fn the_config_map_has_a_node_json_that_the_plugins_accept() {
    let text = documents(&read("deploy/config.yaml"))[0]["data"]["node.json"]
        .as_str()
        .unwrap()
        .to_owned();
    rail_cni::node::Node::parse(Path::new("node.json"), text.as_bytes()).unwrap();
    let of = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(of(&text), of(&read("conf/node.json")));
    let values = documents(&read("deploy/chart/values.yaml"));
    assert_eq!(
        of(values[0]["config"]["node.json"].as_str().unwrap()),
        of(&text)
    );
}

/// tests/node/run.rs has the requests of a running agent; these are the rights that they need.
#[test]
fn the_roles_are_as_small_as_what_the_agent_asks() {
    let rights: BTreeSet<String> = manifests()
        .iter()
        .filter(|object| ["Role", "ClusterRole"].contains(&object["kind"].as_str().unwrap()))
        .flat_map(|role| {
            role["rules"]
                .as_array()
                .unwrap()
                .clone()
                .into_iter()
                .map(|rule| (role["kind"].clone(), rule))
        })
        .map(|(kind, rule)| {
            let list = |key: &str| {
                let words = rule[key]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|word| word.as_str().unwrap());
                words.collect::<Vec<_>>().join(",")
            };
            let names = list("resourceNames");
            let kind = kind.as_str().unwrap();
            format!(
                "{kind} {}/{}[{names}] {}",
                list("apiGroups"),
                list("resources"),
                list("verbs")
            )
        })
        .collect();
    let expected = [
        "ClusterRole /namespaces[kube-system] get",
        "ClusterRole /nodes/status[] patch",
        "ClusterRole /nodes[] get,list,watch,patch",
        "ClusterRole events.k8s.io/events[] create,patch",
        "ClusterRole nv-ipam.nvidia.com/cidrpools[] list,watch",
        "ClusterRole rail-cni/agents[rail-agent] limited",
        "ClusterRole resource.k8s.io/resourceclaims[] get,list",
        "Role /configmaps[rail-cni] list,watch,patch",
        "Role apps/daemonsets[rail-agent] get",
    ];
    assert_eq!(
        rights.iter().map(String::as_str).collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn the_pods_call_the_agent_with_arguments_that_it_has_and_see_the_hosts_processes() {
    let (mut seen, mut probes) = (0, 0);
    for set in manifests()
        .iter()
        .filter(|object| object["kind"] == "DaemonSet")
    {
        let pod = &set["spec"]["template"]["spec"];
        assert_eq!(
            (&pod["hostPID"], &pod["hostNetwork"]),
            (&json!(true), &json!(true))
        );
        for container in ["initContainers", "containers"]
            .iter()
            .flat_map(|key| pod[key].as_array().unwrap())
        {
            assert_eq!(container["image"], "rail-cni");
            assert_eq!(container["securityContext"]["privileged"], true);
            let args = container["args"].as_array().unwrap().iter();
            let args = args.map(|one| one.as_str().unwrap().replace("$(HOST_IP)", "192.0.2.1"));
            knows(args.collect());
            for kind in ["startupProbe", "livenessProbe", "readinessProbe"] {
                let Some(probe) = container[kind]["exec"]["command"].as_array() else {
                    continue;
                };
                assert_eq!(probe[0], "/rail-agent");
                // A node that is not ready is no reason to start its agent anew.
                let asks_for_rails = probe.contains(&json!("--ready"));
                assert_eq!(
                    asks_for_rails,
                    kind == "readinessProbe" && container["name"] == "agent",
                    "{kind}"
                );
                knows(
                    probe[1..]
                        .iter()
                        .map(|one| one.as_str().unwrap().to_owned())
                        .collect(),
                );
                probes += 1;
            }
            seen += 1;
        }
    }
    assert_eq!((seen, probes), (4, 3));
}

#[track_caller]
fn knows(arguments: Vec<String>) {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_rail-agent"));
    let output = agent.args(arguments).arg("--help").output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A process that breaks out of another container, or reads its files, finds no token there.
#[test]
fn the_token_is_in_the_containers_alone_that_ask_the_api_server() {
    let mut with_token = Vec::new();
    for set in manifests()
        .iter()
        .filter(|object| object["kind"] == "DaemonSet")
    {
        let pod = &set["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], false);
        let all = ["initContainers", "containers"]
            .iter()
            .flat_map(|key| pod[key].as_array().unwrap());
        let mounts = |container: &&Value| {
            container["volumeMounts"]
                .to_string()
                .contains("serviceaccount")
        };
        with_token.extend(
            all.filter(mounts)
                .map(|container| container["name"].as_str().unwrap().to_owned()),
        );
    }
    assert_eq!(with_token, ["agent", "uninstall"]);
}

/// No port is open at an address that pods reach, unless an operator has made a Secret.
#[test]
fn the_metrics_are_an_option_of_chart_and_kustomization_and_off_by_default() {
    const TEST: &str = "the_metrics_are_an_option_of_chart_and_kustomization_and_off_by_default";
    for set in manifests()
        .iter()
        .filter(|object| object["kind"] == "DaemonSet")
    {
        let args = set["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
        assert!(
            !args.contains("listen") || args.contains("--listen=127.0.0.1:9810"),
            "{args}"
        );
    }
    let Some(chart) = helm(&["--set", "metricsSecret=rail-agent-metrics"]) else {
        return skip(TEST, "helm is not here");
    };
    let text = "resources: [DEPLOY]\ncomponents: [DEPLOY/metrics]\n";
    let Some(component) = within(text) else {
        return skip(TEST, "kustomize is not here");
    };
    let (chart, component) = (by_name(chart), by_name(component));
    for (name, object) in &component {
        assert_eq!(&chart[name], object, "{name}");
    }
    let set =
        &component["\"DaemonSet\" \"rail-agent\""]["spec"]["template"]["spec"]["containers"][0];
    let args = set["args"].as_array().unwrap().iter();
    knows(
        args.map(|one| one.as_str().unwrap().replace("$(HOST_IP)", "192.0.2.1"))
            .collect(),
    );
    assert!(
        set["args"].to_string().contains("--metrics-secret"),
        "{set}"
    );
    let digest = format!("sha256:{}", "0f".repeat(32));
    let objects = helm(&["--set", &format!("image.digest={digest}")]).unwrap();
    assert!(
        json!(objects)
            .to_string()
            .contains(&format!("\"rail-cni@{digest}\""))
    );
}

#[test]
fn all_files_name_the_version_of_the_agent() {
    let version = env!("CARGO_PKG_VERSION");
    for (file, line) in [
        ("deploy/kustomization.yaml", format!("  newTag: {version}")),
        (
            "deploy/uninstall/kustomization.yaml",
            format!("  newTag: {version}"),
        ),
        ("deploy/chart/Chart.yaml", format!("version: {version}")),
        ("deploy/chart/Chart.yaml", format!("appVersion: {version}")),
        ("Cargo.toml", format!("version = \"{version}\"")),
    ] {
        assert!(
            read(file).lines().any(|other| other == line),
            "{file} has no line {line:?}"
        );
    }
}
