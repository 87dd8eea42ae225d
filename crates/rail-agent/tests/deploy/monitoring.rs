//! PodMonitor, alerts and dashboard: of chart and kustomization the same, known to the Prometheus
//! Operator, and the alerts fire for what an agent serves.
//!
//! metrics.txt is the page of an agent of tests/node, on a node whose second PF is down, without
//! help and histograms.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::{by_name, compare, documents, given, helm, read, skip, within};

const ON: &str =
    "metricsSecret=rail-agent-metrics,monitoring.enabled=true,monitoring.dashboard=true";

fn rules() -> Vec<Value> {
    let alerts = documents(&read("deploy/chart/monitoring/alerts.yaml"));
    alerts[0]["spec"]["groups"][0]["rules"]
        .as_array()
        .unwrap()
        .clone()
}

#[test]
fn monitoring_is_the_same_in_chart_and_kustomization() {
    const TEST: &str = "monitoring_is_the_same_in_chart_and_kustomization";
    let Some(chart) = helm(&["--set", ON]) else {
        return skip(TEST, "helm is not here");
    };
    let text = "resources: [DEPLOY, DEPLOY/chart/monitoring]\ncomponents: [DEPLOY/metrics]\n";
    let Some(kustomized) = within(text) else {
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
    let dashboard = &chart["\"ConfigMap\" \"rail-agent-dashboard\""]["data"]["rails.json"];
    assert_eq!(
        dashboard.as_str().unwrap(),
        read("deploy/grafana/rails.json")
    );
}

#[test]
fn the_prometheus_operator_knows_all_of_it() {
    const TEST: &str = "the_prometheus_operator_knows_all_of_it";
    let Some(folder) = given("RAIL_CRDS") else {
        return skip(TEST, "no CRDs: scripts/test deploy gets them");
    };
    for (file, of) in [
        ("pod-monitor", "podmonitors"),
        ("alerts", "prometheusrules"),
    ] {
        let object = documents(&read(&format!("deploy/chart/monitoring/{file}.yaml"))).remove(0);
        let path = format!("{folder}/monitoring.coreos.com_{of}.yaml");
        let crd = documents(&fs::read_to_string(path).unwrap()).remove(0);
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let faults = |object: &Value| {
            let mut faults = Vec::new();
            compare(&json!({}), schema, object, of, &mut faults);
            faults
        };
        assert_eq!(faults(&object), Vec::<String>::new());
        let mut wrong = object.clone();
        wrong["spec"]["group"] = json!([]);
        assert_eq!(faults(&wrong).len(), 1);
    }
}

#[test]
fn each_alert_has_a_section_in_the_runbooks_and_each_section_an_alert() {
    let page = read("docs/runbooks.md");
    let sections = page
        .split("\n## Alerts\n")
        .nth(1)
        .unwrap()
        .split("\n## ")
        .next()
        .unwrap();
    let sections: Vec<_> = sections
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .collect();
    let names: Vec<_> = rules()
        .iter()
        .map(|rule| rule["alert"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(sections, names);
    for rule in rules() {
        let anchor = rule["alert"].as_str().unwrap().to_lowercase();
        assert_eq!(
            rule["annotations"]["runbook_url"],
            format!("docs/runbooks.md#{anchor}")
        );
        assert!(
            ["warning", "critical"].contains(&rule["labels"]["severity"].as_str().unwrap()),
            "{rule}"
        );
    }
}

/// The samples of an agent: `name{labels}` and value.
fn samples() -> Vec<(String, String)> {
    let page = read("crates/rail-agent/tests/deploy/metrics.txt");
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

/// A metric that is renamed is renamed in metrics.txt, too.
#[test]
fn the_samples_are_of_metrics_that_the_agent_has() {
    let source = read("crates/rail-agent/src/metrics.rs");
    let list = source
        .split("pub const METRICS")
        .nth(1)
        .unwrap()
        .split("];")
        .next()
        .unwrap();
    let listed: BTreeSet<_> = list
        .split('"')
        .filter(|word| word.starts_with("rail_cni_"))
        .collect();
    let page = read("crates/rail-agent/tests/deploy/metrics.txt");
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let mut written: BTreeSet<_> = types.map(|line| line.split(' ').next().unwrap()).collect();
    // It is absent while there is none.
    written.insert("rail_cni_host_errors_total");
    assert_eq!(written, listed);
}

/// An alert, the minutes for which it waits, the sample of a node that makes it fire, and the value
/// that does, with what a minute adds.
const ALERTS: [(&str, u32, &str, &str); 20] = [
    ("RailNodeNotReady", 10, "rail_cni_ready", "0"),
    (
        "RailLinkDown",
        5,
        r#"rail_cni_carrier{rail="1",pf="0000:3c:00.0"}"#,
        "0",
    ),
    (
        "RailPodLinkDown",
        5,
        "rail_cni_attachments_without_carrier",
        "1",
    ),
    (
        "RailFlapping",
        3,
        r#"rail_cni_pf_faults_total{rail="1",pf="0000:3c:00.0",counter="carrier_down"}"#,
        "1+1",
    ),
    (
        "RailCableWrong",
        60,
        r#"rail_cni_cable{rail="1",pf="0000:3c:00.0",state="wrong"}"#,
        "1",
    ),
    (
        "RailPodsRefused",
        10,
        r#"rail_cni_calls_total{plugin="rail-cni",verb="ADD",code="11"}"#,
        "1+1",
    ),
    (
        "RailPreflightFailed",
        60,
        r#"rail_cni_preflight{rail="1",pf="0000:3c:00.0"}"#,
        "0",
    ),
    (
        "RailTapped",
        1,
        r#"rail_cni_attachments{state="tapped"}"#,
        "0 1",
    ),
    ("RailLost", 2, r#"rail_cni_attachments{state="lost"}"#, "1"),
    ("RailReattached", 1, "rail_cni_reattached_total", "0 1"),
    (
        "RailDeviceMisplaced",
        10,
        r#"rail_cni_attachments{state="on-host"}"#,
        "1",
    ),
    ("RailDevicesLost", 10, "rail_cni_lost_devices", "1"),
    (
        "RailRecordsUnreadable",
        10,
        "rail_cni_unreadable_records",
        "1",
    ),
    ("RailStepsPending", 60, "rail_cni_pending", "1"),
    ("RailPlanHeldBack", 60, "rail_cni_plan_held_back", "1"),
    ("RailPlanRefused", 10, "rail_cni_plan_refused", "1"),
    ("RailAgentAway", 10, "up", "0"),
    ("RailApiServerAway", 15, "rail_cni_api_up", "0"),
    (
        "RailVersionsDiffer",
        360,
        r#"rail_cni_agent_info{version="0.1.0",node_json="34a5311fac",plan="a3327453d9"}"#,
        "1",
    ),
    (
        "RailPlansDiffer",
        360,
        r#"rail_cni_agent_info{version="0.2.0",node_json="34a5311fac",plan="other"}"#,
        "1",
    ),
];

/// The series of ten nodes that are well, but for `bad` of them, where this sample has another
/// value.
fn fleet(minutes: u32, bad: usize, sample: &str, value: &str) -> Value {
    let mut series = Vec::new();
    for node in 0..10 {
        let mut samples = samples();
        samples.push(("up".to_owned(), "1".to_owned()));
        // The page is of a node with a PF that is down.
        samples.retain(|(name, _)| !name.starts_with("rail_cni_check_failed"));
        for (name, value) in &mut samples {
            if name == "rail_cni_ready" || name.starts_with("rail_cni_carrier") {
                "1".clone_into(value);
            }
        }
        if node < bad {
            assert!(
                samples
                    .iter()
                    .any(|(name, _)| without_values(name) == without_values(sample)),
                "no agent serves {sample}"
            );
            samples.retain(|(name, _)| name != sample);
            samples.push((sample.to_owned(), value.to_owned()));
        }
        series.extend(samples.into_iter().map(|(name, value)| {
            let labels = format!(r#"job="rail-agent",node="worker-{node}"}}"#);
            let name = match name.strip_suffix('}') {
                Some(start) => format!("{start},{labels}"),
                None => format!("{name}{{{labels}"),
            };
            let step = if value.contains('+') { "" } else { "+0" };
            json!({"series": name, "values": format!("{value}{step}x{minutes}")})
        }));
    }
    json!(series)
}

/// A metric with the names of its labels.
fn without_values(sample: &str) -> String {
    sample.split('"').step_by(2).collect()
}

/// The alerts that fire at a minute, by name.
fn firing(minute: u32, alerts: &[(&str, usize)]) -> Value {
    let samples = alerts.iter().map(
        |(name, count)| json!({"labels": format!("{{alertname=\"{name}\"}}"), "value": count}),
    );
    json!({
        "expr": "count by (alertname) (ALERTS{alertstate=\"firing\"})",
        "eval_time": format!("{minute}m"),
        "exp_samples": samples.collect::<Vec<_>>(),
    })
}

fn promtool(tool: &str, command: &[&str], file: &str, content: &Value, rules: &Value) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rules.json"), rules.to_string()).unwrap();
    fs::write(folder.path().join(file), content.to_string()).unwrap();
    let output = Command::new(tool)
        .args(command)
        .arg(file)
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{text}");
}

#[test]
fn each_alert_fires_for_what_an_agent_serves_and_no_other_does() {
    const TEST: &str = "each_alert_fires_for_what_an_agent_serves_and_no_other_does";
    let Some(tool) = given("RAIL_PROMTOOL") else {
        return skip(TEST, "no promtool: scripts/test deploy gets it");
    };
    let spec = documents(&read("deploy/chart/monitoring/alerts.yaml")).remove(0)["spec"].clone();
    promtool(&tool, &["check", "rules"], "same.json", &spec, &spec);
    let case = |series: Value, firing: Vec<Value>| json!({"interval": "1m", "input_series": series, "promql_expr_test": firing});
    let mut cases = vec![case(fleet(70, 0, "", ""), vec![firing(70, &[])])];
    for (alert, minutes, sample, value) in ALERTS {
        let firing = vec![firing(minutes - 1, &[]), firing(minutes + 1, &[(alert, 1)])];
        cases.push(case(fleet(minutes + 1, 1, sample, value), firing));
    }
    // A tenth of the nodes is not yet more than a tenth.
    let both = firing(11, &[("RailNodeNotReady", 2), ("RailNodesNotReady", 1)]);
    let many = vec![firing(4, &[]), firing(6, &[("RailNodesNotReady", 1)]), both];
    cases.push(case(fleet(11, 2, "rail_cni_ready", "0"), many));
    // The targets disappear after five minutes.
    let gone =
        json!([{"series": r#"up{job="rail-agent",node="worker-0"}"#, "values": "1x5 stale"}]);
    let firing_once = firing(17, &[("RailAgentsGone", 1)]);
    cases.push(case(gone, vec![firing(15, &[]), firing_once]));
    let names: BTreeSet<_> = rules()
        .iter()
        .map(|rule| rule["alert"].as_str().unwrap().to_owned())
        .collect();
    let tried = ALERTS.iter().map(|(alert, ..)| *alert);
    let with_own_cases = ["RailNodesNotReady", "RailAgentsGone"];
    let tried: BTreeSet<_> = tried.chain(with_own_cases).map(str::to_owned).collect();
    assert_eq!(names, tried);
    let tests = json!({"rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": cases});
    promtool(&tool, &["test", "rules"], "tests.json", &tests, &spec);
}
