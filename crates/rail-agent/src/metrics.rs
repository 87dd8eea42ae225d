//! The metrics, as Prometheus reads them. Every name is in [`METRICS`], and every label has few
//! values: nothing that a tenant chooses is a label, unless the operator wants the names of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::calls::Call;
use crate::preflight::Tested;
use crate::ready::{Condition, Plan};
use crate::refusals::Refusals;
use crate::report::{Cable, Doctor, Show, Status};
use crate::revision::Revision;

/// Name, type and help of each metric.
pub const METRICS: [(&str, &str, &str); 29] = [
    (
        "rail_cni_agent_info",
        "gauge",
        "1, labeled with the agent's version and the revisions of node.json and plan.",
    ),
    (
        "rail_cni_ready",
        "gauge",
        "1 if pods with rails can start on this node (condition RailsReady).",
    ),
    (
        "rail_cni_check_failed",
        "gauge",
        "1 for each failed check of railctl doctor, with its rail.",
    ),
    (
        "rail_cni_check_warnings",
        "gauge",
        "Warnings of railctl doctor.",
    ),
    (
        "rail_cni_carrier",
        "gauge",
        "1 if the PF of the rail is up and has a carrier, or if a pod has the PF itself.",
    ),
    (
        "rail_cni_cable",
        "gauge",
        "1 for the state of the rail's cable, as railctl cables heard it last.",
    ),
    (
        "rail_cni_preflight",
        "gauge",
        "1 if the rail passed its last railctl preflight.",
    ),
    (
        "rail_cni_preflight_timestamp_seconds",
        "gauge",
        "When railctl preflight last tested a rail.",
    ),
    (
        "rail_cni_pf_faults_total",
        "counter",
        "Errors, discards, pause frames and losses of the carrier of the rail's PF, by the kernel's name.",
    ),
    (
        "rail_cni_rdma_faults_total",
        "counter",
        "Errors, repetitions and congestion of RDMA on the rail's PF and VFs, by the driver's name.",
    ),
    (
        "rail_cni_pod",
        "gauge",
        "1 for each pod and rail, with --metrics-pods.",
    ),
    (
        "rail_cni_vfs",
        "gauge",
        "VFs of the rail's PF, by state: attached, dead, free or other.",
    ),
    (
        "rail_cni_attachments",
        "gauge",
        "Devices in pods, by the state that railctl status shows.",
    ),
    (
        "rail_cni_attachments_without_carrier",
        "gauge",
        "Devices in living pods whose link is not up.",
    ),
    (
        "rail_cni_pending",
        "gauge",
        "Attachments with pending steps, whose pods are gone.",
    ),
    (
        "rail_cni_lost_devices",
        "gauge",
        "Devices in a namespace without a record.",
    ),
    (
        "rail_cni_unreadable_records",
        "gauge",
        "Records that cannot be read.",
    ),
    ("rail_cni_leases", "gauge", "Leases of rail-ipam, by state."),
    (
        "rail_cni_allocations",
        "gauge",
        "Pools in which this node has a prefix.",
    ),
    (
        "rail_cni_calls_total",
        "counter",
        "Calls of the plugins, by verb and CNI error code; 0 is success.",
    ),
    (
        "rail_cni_call_duration_seconds",
        "histogram",
        "Duration of the calls, by verb.",
    ),
    (
        "rail_cni_heals_total",
        "counter",
        "Devices left behind by an earlier pod that a call restored.",
    ),
    (
        "rail_cni_reaped_total",
        "counter",
        "Devices that the agent restored after DELs were lost.",
    ),
    (
        "rail_cni_plan_held_back",
        "gauge",
        "1 while a plan is held back because it would take addresses from running pods.",
    ),
    (
        "rail_cni_plan_refused",
        "gauge",
        "1 while the cluster's plan or node.json is invalid, so the last valid one is kept.",
    ),
    (
        "rail_cni_plan_written_timestamp_seconds",
        "gauge",
        "When the plan was last written, or found equal to the store.",
    ),
    (
        "rail_cni_api_up",
        "gauge",
        "1 if the last request to the API server succeeded.",
    ),
    (
        "rail_cni_events_dropped_total",
        "counter",
        "Events dropped because there were too many or the API server refused them.",
    ),
    (
        "rail_cni_host_errors_total",
        "counter",
        "Programs that could not be run on the host, by program.",
    ),
];

/// Upper bounds of the histogram's buckets, in seconds. An ADD takes some 20 ms, and hangs for at
/// most callTimeout.
const BUCKETS: [f64; 12] = [
    0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];
const VERBS: [&str; 5] = ["ADD", "DEL", "CHECK", "GC", "STATUS"];
const PLUGINS: [&str; 2] = ["rail-cni", "rail-ipam"];
/// Error codes of CNI, and of plugins, are below this; others share a label.
const CODES: u32 = 1000;
/// More than railctl knows names of.
const MOST_COUNTERS: usize = 20;
/// Functions of a rail whose RDMA is counted, counters of each, and pods.
const MOST_FUNCTIONS: usize = 64;
const MOST_RDMA_COUNTERS: usize = 40;
const MAX_PODS: usize = 512;
/// The most codes that get a label of their own.
const MOST_SERIES: usize = 200;

#[derive(Clone, Debug, Default)]
struct Histogram {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

/// What was counted since the agent began, and what the plugins said last.
#[derive(Debug, Default)]
pub struct Metrics {
    calls: BTreeMap<(&'static str, &'static str, String), u64>,
    durations: BTreeMap<(&'static str, &'static str), Histogram>,
    heals: u64,
    /// What of the rollouts the node has.
    pub revision: Revision,
    /// What the node refuses to pods.
    pub refusals: Refusals,
    /// Devices that `railctl reap` restored.
    pub reaped: u64,
    /// Events that are lost.
    pub events_dropped: u64,
    /// Failures to run programs of the host, by program.
    pub host_errors: BTreeMap<&'static str, u64>,
    /// Whether the last request to the API server succeeded; `None` before the first.
    pub api_up: Option<bool>,
    /// When the store last had what the cluster says, in seconds since 1970.
    pub plan_written: Option<u64>,
    /// The state of the plan.
    pub plan: Option<Plan>,
    /// The condition RailsReady.
    pub ready: Option<Condition>,
    /// Whether pods are named.
    pub names_pods: bool,
    /// The last `railctl doctor`.
    pub doctor: Option<Doctor>,
    /// The last `railctl status`.
    pub status: Option<Status>,
    /// What `railctl cables` heard last.
    pub cables: Option<Vec<Cable>>,
    /// What `railctl preflight` found last.
    pub tested: Tested,
    /// The last `railctl leases`.
    pub show: Option<Show>,
}

/// The word if it is one of `known`: a label has few values.
fn among(word: &str, known: &[&'static str]) -> &'static str {
    known
        .iter()
        .find(|known| **known == word)
        .copied()
        .unwrap_or("other")
}

impl Metrics {
    /// Counts a call.
    pub fn count(&mut self, call: &Call) {
        let (plugin, verb) = (among(&call.plugin, &PLUGINS), among(&call.verb, &VERBS));
        let mut key = (plugin, verb, call.code.to_string());
        let has_room = call.code < CODES && self.calls.len() < MOST_SERIES;
        if !has_room && !self.calls.contains_key(&key) {
            key.2 = "other".to_owned();
        }
        *self.calls.entry(key).or_default() += 1;
        let histogram = self.durations.entry((plugin, verb)).or_default();
        let seconds = std::time::Duration::from_micros(call.micros).as_secs_f64();
        for (bucket, bound) in histogram.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(seconds <= bound);
        }
        histogram.count += 1;
        histogram.sum += seconds;
        self.heals += count(call.restored.len());
    }

    /// The text that Prometheus reads. A metric whose value is not known is absent.
    pub fn text(&self) -> String {
        let mut page = Page::default();
        let known = |one: &Option<String>| one.clone().unwrap_or_default();
        let (node_json, plan) = (known(&self.revision.node_json), known(&self.revision.plan));
        let labels = [
            ("version", env!("CARGO_PKG_VERSION")),
            ("node_json", node_json.as_str()),
            ("plan", plan.as_str()),
        ];
        page.add("rail_cni_agent_info", &labels, 1);
        if let Some(ready) = &self.ready {
            page.add("rail_cni_ready", &[], u64::from(ready.is_true));
        }
        if let Some(doctor) = &self.doctor {
            page.of_doctor(doctor);
        }
        if let Some(status) = &self.status {
            page.of_status(status);
            if self.names_pods {
                page.of_pods(status);
            }
        }
        for cable in self.cables.iter().flatten() {
            page.of_cable(cable);
        }
        for (rail, is_fine) in self.tested.rails() {
            let labels = [("rail", rail.rail.to_string()), ("pf", rail.pf.clone())];
            let labels = labels.each_ref().map(|(key, value)| (*key, value.as_str()));
            page.add("rail_cni_preflight", &labels, u64::from(is_fine));
        }
        if let Some(last) = self
            .tested
            .last()
            .and_then(|last| u64::try_from(last.as_second()).ok())
        {
            page.add("rail_cni_preflight_timestamp_seconds", &[], last);
        }
        if let Some(show) = &self.show {
            page.of_show(show);
        }
        for ((plugin, verb, code), count) in &self.calls {
            let labels = [
                ("plugin", *plugin),
                ("verb", *verb),
                ("code", code.as_str()),
            ];
            page.add("rail_cni_calls_total", &labels, *count);
        }
        for ((plugin, verb), histogram) in &self.durations {
            page.histogram(
                "rail_cni_call_duration_seconds",
                &[("plugin", *plugin), ("verb", *verb)],
                histogram,
            );
        }
        page.add("rail_cni_heals_total", &[], self.heals);
        page.add("rail_cni_reaped_total", &[], self.reaped);
        if let Some(plan) = &self.plan {
            page.add(
                "rail_cni_plan_held_back",
                &[],
                u64::from(matches!(plan, Plan::HeldBack(_))),
            );
            page.add(
                "rail_cni_plan_refused",
                &[],
                u64::from(matches!(plan, Plan::Refused(_) | Plan::NotNamed(_))),
            );
        }
        if let Some(written) = self.plan_written {
            page.add("rail_cni_plan_written_timestamp_seconds", &[], written);
        }
        if let Some(is_up) = self.api_up {
            page.add("rail_cni_api_up", &[], u64::from(is_up));
        }
        page.add("rail_cni_events_dropped_total", &[], self.events_dropped);
        for (program, count) in &self.host_errors {
            page.add(
                "rail_cni_host_errors_total",
                &[("program", *program)],
                *count,
            );
        }
        page.text()
    }
}

/// Samples, by metric.
#[derive(Default)]
struct Page(BTreeMap<&'static str, String>);

impl Page {
    fn add(&mut self, name: &'static str, labels: &[(&str, &str)], value: u64) {
        let samples = self.0.entry(name).or_default();
        let _ = writeln!(samples, "{name}{} {value}", braces(labels));
    }

    fn histogram(&mut self, name: &'static str, labels: &[(&str, &str)], histogram: &Histogram) {
        let samples = self.0.entry(name).or_default();
        let bounds = BUCKETS
            .iter()
            .map(f64::to_string)
            .chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(histogram.buckets.iter().chain([&histogram.count])) {
            let with_bound: Vec<_> = labels
                .iter()
                .copied()
                .chain([("le", bound.as_str())])
                .collect();
            let _ = writeln!(samples, "{name}_bucket{} {count}", braces(&with_bound));
        }
        let labels = braces(labels);
        let _ = writeln!(
            samples,
            "{name}_sum{labels} {}\n{name}_count{labels} {}",
            histogram.sum, histogram.count
        );
    }

    fn of_doctor(&mut self, doctor: &Doctor) {
        let mut failed = BTreeMap::new();
        for check in doctor.checks.iter().filter(|check| check.verdict == "fail") {
            let rail = check.rail.map(|rail| rail.to_string()).unwrap_or_default();
            failed.insert((check.check.as_str(), rail), ());
        }
        for (check, rail) in failed.keys() {
            self.add(
                "rail_cni_check_failed",
                &[("check", *check), ("rail", rail)],
                1,
            );
        }
        let warnings = doctor
            .checks
            .iter()
            .filter(|check| check.verdict == "warn")
            .count();
        self.add("rail_cni_check_warnings", &[], count(warnings));
    }

    fn of_status(&mut self, status: &Status) {
        for rail in &status.rails {
            let number = rail.rail.map(|rail| rail.to_string()).unwrap_or_default();
            let labels = [("rail", number.as_str()), ("pf", rail.pf.name.as_str())];
            let has_carrier = matches!(rail.pf.link.as_str(), "up" | "in-pod");
            self.add("rail_cni_carrier", &labels, u64::from(has_carrier));
            for (counter, count) in rail.pf.counted.iter().flatten().take(MOST_COUNTERS) {
                self.add(
                    "rail_cni_pf_faults_total",
                    &[labels[0], labels[1], ("counter", counter)],
                    *count,
                );
            }
            for (function, counters) in rail.rdma_counted.iter().take(MOST_FUNCTIONS) {
                for (counter, count) in counters.iter().take(MOST_RDMA_COUNTERS) {
                    let labels = [
                        labels[0],
                        labels[1],
                        ("function", function),
                        ("counter", counter),
                    ];
                    self.add("rail_cni_rdma_faults_total", &labels, *count);
                }
            }
            let known = rail.vfs.attached + rail.vfs.dead + rail.vfs.free;
            for (state, number) in [
                ("attached", rail.vfs.attached),
                ("dead", rail.vfs.dead),
                ("free", rail.vfs.free),
                ("other", rail.vfs.enabled.saturating_sub(known)),
            ] {
                self.add(
                    "rail_cni_vfs",
                    &[labels[0], labels[1], ("state", state)],
                    number,
                );
            }
        }
        // Zeros too, for the states that somebody is called for: an alert on a series that is
        // absent is silent.
        let mut states = BTreeMap::from(
            [
                "live",
                "busy",
                "dead",
                "cut-off",
                "on-host",
                "returned",
                "missing",
                "elsewhere",
                "unknown",
            ]
            .map(|state| (state, 0)),
        );
        let mut dark = 0;
        for one in &status.attachments {
            *states.entry(one.state.as_str()).or_default() += 1;
            dark += u64::from(
                one.state == "live" && one.link.as_deref().is_some_and(|link| link != "up"),
            );
        }
        for (state, number) in states {
            self.add("rail_cni_attachments", &[("state", state)], number);
        }
        self.add("rail_cni_attachments_without_carrier", &[], dark);
        self.add("rail_cni_pending", &[], count(status.pending.len()));
        self.add("rail_cni_lost_devices", &[], count(status.lost.len()));
        self.add(
            "rail_cni_unreadable_records",
            &[],
            count(status.unreadable.len()),
        );
    }

    /// Who has the rails. The API server accepts only short names of a few signs, and a node has as
    /// many as devices; what a runtime without it may say is left out.
    fn of_pods(&mut self, status: &Status) {
        let is_sign =
            |sign: u8| sign.is_ascii_lowercase() || sign.is_ascii_digit() || b"-.".contains(&sign);
        let is_name = |name: &str| (1..=253).contains(&name.len()) && name.bytes().all(is_sign);
        let mut pods = BTreeSet::new();
        for one in status.attachments.iter().filter(|one| one.state == "live") {
            let pod = one.pod.as_deref().and_then(|pod| pod.split_once('/'));
            if let Some((namespace, pod)) =
                pod.filter(|(namespace, pod)| is_name(namespace) && is_name(pod))
            {
                let rail = one.rail.map(|rail| rail.to_string()).unwrap_or_default();
                pods.insert((rail, one.pf.as_deref().unwrap_or_default(), namespace, pod));
            }
        }
        for (rail, pf, namespace, pod) in pods.iter().take(MAX_PODS) {
            let labels = [
                ("rail", rail.as_str()),
                ("pf", pf),
                ("pod_namespace", namespace),
                ("pod_name", pod),
            ];
            self.add("rail_cni_pod", &labels, 1);
        }
    }

    fn of_cable(&mut self, cable: &Cable) {
        const STATES: [&str; 6] = [
            "right",
            "wrong",
            "unplanned",
            "unnamed",
            "silent",
            "no-link",
        ];
        let number = cable.rail.map(|rail| rail.to_string()).unwrap_or_default();
        let labels = [
            ("rail", number.as_str()),
            ("pf", cable.pf.as_str()),
            ("state", among(&cable.state, &STATES)),
        ];
        self.add("rail_cni_cable", &labels, 1);
    }

    fn of_show(&mut self, show: &Show) {
        let mut states =
            BTreeMap::from(["live", "dead", "unknown", "unreadable"].map(|state| (state, 0)));
        for lease in show.pools.iter().flat_map(|pool| &pool.leases) {
            *states.entry(lease.state.as_str()).or_default() += 1;
        }
        for (state, number) in states {
            self.add("rail_cni_leases", &[("state", state)], number);
        }
        let allocations = show
            .pools
            .iter()
            .filter(|pool| pool.prefix.is_some())
            .count();
        self.add("rail_cni_allocations", &[], count(allocations));
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, kind, help) in METRICS {
            let Some(samples) = self.0.get(name) else {
                continue;
            };
            let _ = write!(
                text,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{samples}"
            );
        }
        text
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn braces(labels: &[(&str, &str)]) -> String {
    let escaped = |value: &str| {
        value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n")
    };
    let pairs: Vec<_> = labels
        .iter()
        .map(|(key, value)| format!("{key}=\"{}\"", escaped(value)))
        .collect();
    if pairs.is_empty() {
        String::new()
    } else {
        format!("{{{}}}", pairs.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(verb: &str, code: u32, micros: u64) -> Call {
        Call {
            plugin: "rail-cni".to_owned(),
            verb: verb.to_owned(),
            code,
            micros,
            ..Call::default()
        }
    }

    #[test]
    fn calls_are_counted_by_verb_and_code_and_measured() {
        let mut metrics = Metrics::default();
        for one in [
            call("ADD", 0, 20_000),
            call("ADD", 11, 30_001),
            call("DEL", 0, 70_000_000),
        ] {
            metrics.count(&one);
        }
        assert!(metrics.text().contains("\nrail_cni_heals_total 0\n"));
        metrics.count(&Call {
            restored: vec!["a VF".to_owned()],
            ..call("CHECK", 0, 1)
        });
        let text = metrics.text();
        for line in [
            r#"rail_cni_calls_total{plugin="rail-cni",verb="ADD",code="0"} 1"#,
            r#"rail_cni_calls_total{plugin="rail-cni",verb="ADD",code="11"} 1"#,
            r#"rail_cni_call_duration_seconds_bucket{plugin="rail-cni",verb="ADD",le="0.02"} 1"#,
            r#"rail_cni_call_duration_seconds_bucket{plugin="rail-cni",verb="ADD",le="0.03"} 1"#,
            r#"rail_cni_call_duration_seconds_bucket{plugin="rail-cni",verb="ADD",le="0.05"} 2"#,
            r#"rail_cni_call_duration_seconds_bucket{plugin="rail-cni",verb="DEL",le="60"} 0"#,
            r#"rail_cni_call_duration_seconds_bucket{plugin="rail-cni",verb="DEL",le="+Inf"} 1"#,
            r#"rail_cni_call_duration_seconds_count{plugin="rail-cni",verb="ADD"} 2"#,
            "rail_cni_heals_total 1",
        ] {
            assert!(
                text.lines().any(|other| other == line),
                "{line} is not in\n{text}"
            );
        }
    }

    #[test]
    fn no_caller_can_make_series_without_end() {
        let mut metrics = Metrics::default();
        for code in 0..5000 {
            let mut one = call(&format!("VERB{code}"), code, 1);
            one.plugin = format!("plugin-{code}");
            one.pod = Some(format!("ns/pod-{code}"));
            metrics.count(&one);
        }
        assert!(
            metrics.calls.len() <= MOST_SERIES + 1,
            "{}",
            metrics.calls.len()
        );
        assert_eq!(metrics.durations.len(), 1);
        assert!(!metrics.text().contains("pod-"));
    }

    #[test]
    fn a_series_that_is_there_goes_on_counting_when_no_other_can_be_made() {
        let mut metrics = Metrics::default();
        for code in 0..5000 {
            metrics.count(&call("ADD", code, 1));
        }
        metrics.count(&call("ADD", 0, 1));
        metrics.count(&call("DEL", 7, 1));
        let text = metrics.text();
        for line in [
            r#"rail_cni_calls_total{plugin="rail-cni",verb="ADD",code="0"} 2"#,
            r#"rail_cni_calls_total{plugin="rail-cni",verb="DEL",code="other"} 1"#,
        ] {
            assert!(
                text.lines().any(|other| other == line),
                "{line} is not in\n{text}"
            );
        }
    }

    #[test]
    fn every_metric_that_is_written_is_listed_and_every_one_that_is_listed_can_be_written() {
        let status = serde_json::json!({
            "rails": [{"rail": 3, "pf": {"name": "a\"b", "link": "no-carrier", "counted": {"rx_pause": 7}}, "vfs": {"enabled": 3, "attached": 1, "free": 1},
                "rdmaCounted": {"0000:1a:00.2": {"out_of_sequence": 5}}}],
            "attachments": [{"state": "live", "link": "no-carrier", "rail": 3, "pf": "p", "pod": "ai/trainer-0"},
                {"state": "dead", "pod": "ai/gone"}, {"state": "live", "pod": "ai/No\"Name"}],
            "pending": [{}], "lost": [], "unreadable": ["x"]
        });
        let show = serde_json::json!({"pools": [{"pool": "rail-0", "prefix": "10.0.0.0/31", "leases": [{"state": "live"}]}]});
        let doctor = serde_json::json!({"ready": false, "checks": [{"check": "pf-link", "verdict": "fail", "rail": 3}]});
        let mut metrics = Metrics {
            status: serde_json::from_value(status).unwrap(),
            show: serde_json::from_value(show).unwrap(),
            doctor: serde_json::from_value(doctor).unwrap(),
            ready: Some(crate::ready::rails_ready(&Err(String::new()))),
            plan: Some(Plan::HeldBack(String::new())),
            plan_written: Some(1),
            cables: Some(vec![Cable {
                rail: Some(3),
                state: "wrong".to_owned(),
                ..Cable::default()
            }]),
            api_up: Some(false),
            names_pods: true,
            ..Metrics::default()
        };
        let tested = serde_json::json!({"rails": [{"rail": 3, "pf": "a", "state": "wrong"}]});
        metrics.tested.add(
            serde_json::from_value(tested).unwrap(),
            "2026-01-01T00:00:00Z".parse().unwrap(),
        );
        metrics.host_errors.insert("railctl", 1);
        metrics.count(&call("ADD", 0, 1));
        let text = metrics.text();
        let written: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .collect();
        let listed: Vec<_> = METRICS
            .iter()
            .map(|(name, kind, _)| format!("{name} {kind}"))
            .collect();
        assert_eq!(written, listed);
        for line in [
            r#"rail_cni_carrier{rail="3",pf="a\"b"} 0"#,
            r#"rail_cni_vfs{rail="3",pf="a\"b",state="other"} 1"#,
            r#"rail_cni_pf_faults_total{rail="3",pf="a\"b",counter="rx_pause"} 7"#,
            r#"rail_cni_cable{rail="3",pf="",state="wrong"} 1"#,
            r#"rail_cni_preflight{rail="3",pf="a"} 0"#,
            r#"rail_cni_check_failed{check="pf-link",rail="3"} 1"#,
            r#"rail_cni_attachments{state="live"} 2"#,
            r#"rail_cni_rdma_faults_total{rail="3",pf="a\"b",function="0000:1a:00.2",counter="out_of_sequence"} 5"#,
            r#"rail_cni_pod{rail="3",pf="p",pod_namespace="ai",pod_name="trainer-0"} 1"#,
            r#"rail_cni_attachments{state="missing"} 0"#,
            "rail_cni_attachments_without_carrier 1",
            "rail_cni_pending 1",
            "rail_cni_plan_held_back 1",
            "rail_cni_plan_refused 0",
            "rail_cni_ready 0",
            r#"rail_cni_leases{state="live"} 1"#,
        ] {
            assert!(
                text.lines().any(|other| other == line),
                "{line} is not in\n{text}"
            );
        }
        let pods = text
            .lines()
            .filter(|line| line.starts_with("rail_cni_pod{"))
            .count();
        assert_eq!(pods, 1, "neither one that is gone, nor what is no name");
        metrics.names_pods = false;
        assert!(!metrics.text().contains("trainer-0"));
    }

    /// The words of the dashboard's queries that could be metrics, without the suffixes of
    /// histograms.
    #[test]
    fn the_dashboard_queries_metrics_that_exist_and_shows_all_of_them() {
        let dashboard: serde_json::Value =
            serde_json::from_str(include_str!("../../../deploy/grafana/rails.json")).unwrap();
        let mut queried = std::collections::BTreeSet::new();
        for target in dashboard["panels"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|panel| panel["targets"].as_array().unwrap())
        {
            let query = target["expr"].as_str().unwrap();
            for word in query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                if word.starts_with("rail_") {
                    queried.insert(word.trim_end_matches("_bucket").to_owned());
                }
            }
        }
        let listed = METRICS
            .iter()
            .map(|(name, ..)| (*name).to_owned())
            .collect();
        assert_eq!(queried, listed);
    }
}
