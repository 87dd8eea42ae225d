//! The metrics in the text format of Prometheus. [`METRICS`] lists them. Every label has few values;
//! no label has text from a tenant, except names of pods if the operator wants them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::calls::Call;
use crate::preflight::Tested;
use crate::ready::{Condition, Plan};
use crate::refusals::Refusals;
use crate::report::{Cable, Doctor, Show, Status};
use crate::revision::Revision;

/// Name, type and help of each metric.
pub const METRICS: [(&str, &str, &str); 31] = [
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
        "rail_cni_flapping",
        "gauge",
        "1 while the carrier of the rail's PF comes and goes.",
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
        "rail_cni_reattached_total",
        "counter",
        "Devices that running pods had lost to the host, and the agent attached again.",
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

/// Upper bounds of the histogram's buckets, in seconds. An ADD takes about 20 ms, and at most
/// callTimeout.
const BUCKETS: [f64; 12] = [
    0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];
const VERBS: [&str; 5] = ["ADD", "DEL", "CHECK", "GC", "STATUS"];
const PLUGINS: [&str; 2] = ["rail-cni", "rail-ipam"];
/// Error codes from here on share the label `other`; CNI and the plugins use smaller ones.
const CODE_LIMIT: u32 = 1000;
/// Counters per PF; railctl reads fewer.
const MAX_COUNTERS: usize = 20;
/// PCI functions per rail with RDMA counters.
const MAX_FUNCTIONS: usize = 64;
/// RDMA counters per function.
const MAX_RDMA_COUNTERS: usize = 40;
/// Pods with a series of their own.
const MAX_PODS: usize = 512;
/// Series of calls; further codes share the label `other`.
const MAX_CALL_SERIES: usize = 200;

#[derive(Clone, Debug, Default)]
struct Histogram {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

/// Counters since the start of the agent, and the last output of railctl's commands.
#[derive(Debug, Default)]
pub struct Metrics {
    calls: BTreeMap<(&'static str, &'static str, String), u64>,
    durations: BTreeMap<(&'static str, &'static str), Histogram>,
    heals: u64,
    /// The revisions of node.json and plan on the node.
    pub revision: Revision,
    /// Refused pods.
    pub refusals: Refusals,
    /// Devices that `railctl reap` restored.
    pub reaped: u64,
    /// Devices that `railctl reap` attached again.
    pub reattached: u64,
    /// Dropped Events.
    pub events_dropped: u64,
    /// Failures to run programs of the host, by program.
    pub host_errors: BTreeMap<&'static str, u64>,
    /// Whether the last request to the API server succeeded; `None` before the first.
    pub api_up: Option<bool>,
    /// Time at which the store was last equal to the cluster's plan, in seconds since 1970.
    pub plan_written: Option<u64>,
    /// The state of the plan.
    pub plan: Option<Plan>,
    /// The condition RailsReady.
    pub ready: Option<Condition>,
    /// Whether the names of pods are labels.
    pub names_pods: bool,
    /// The last `railctl doctor`.
    pub doctor: Option<Doctor>,
    /// The last `railctl status`.
    pub status: Option<Status>,
    /// The last `railctl cables`.
    pub cables: Option<Vec<Cable>>,
    /// The PFs of the rails whose carrier comes and goes.
    pub flapping: BTreeSet<String>,
    /// The last `railctl preflight`.
    pub tested: Tested,
    /// The last `railctl leases`.
    pub show: Option<Show>,
}

/// The word if it is one of `words`, else `other`, so that a label has few values.
fn among(word: &str, words: &[&'static str]) -> &'static str {
    let known = words.iter().find(|known| **known == word);
    known.copied().unwrap_or("other")
}

impl Metrics {
    /// Counts a call.
    pub fn count(&mut self, call: &Call) {
        let plugin = among(&call.plugin, &PLUGINS);
        let verb = among(&call.verb, &VERBS);
        let mut key = (plugin, verb, call.code.to_string());
        let has_room = call.code < CODE_LIMIT && self.calls.len() < MAX_CALL_SERIES;
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

    /// The text for Prometheus. A metric without a value is absent.
    pub fn text(&self) -> String {
        let mut page = Page::default();
        let revision = &self.revision;
        let labels = [
            ("version", env!("CARGO_PKG_VERSION")),
            (
                "node_json",
                revision.node_json.as_deref().unwrap_or_default(),
            ),
            ("plan", revision.plan.as_deref().unwrap_or_default()),
        ];
        page.add("rail_cni_agent_info", &labels, 1);
        if let Some(ready) = &self.ready {
            page.add("rail_cni_ready", &[], u64::from(ready.is_true));
        }
        if let Some(doctor) = &self.doctor {
            page.of_doctor(doctor);
        }
        if let Some(status) = &self.status {
            page.of_status(status, &self.flapping);
            if self.names_pods {
                page.of_pods(status);
            }
        }
        for cable in self.cables.iter().flatten() {
            page.of_cable(cable);
        }
        for (rail, has_passed) in self.tested.rails() {
            let number = rail.rail.to_string();
            let labels = [("rail", number.as_str()), ("pf", rail.pf.as_str())];
            page.add("rail_cni_preflight", &labels, u64::from(has_passed));
        }
        let last_preflight = self.tested.last();
        if let Some(seconds) = last_preflight.and_then(|time| u64::try_from(time.as_second()).ok())
        {
            page.add("rail_cni_preflight_timestamp_seconds", &[], seconds);
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
        page.add("rail_cni_reattached_total", &[], self.reattached);
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
        let mut failed = BTreeSet::new();
        let mut warnings = 0;
        for check in &doctor.checks {
            if check.verdict == "fail" {
                failed.insert((check.check.as_str(), number_label(check.rail)));
            }
            if check.verdict == "warn" {
                warnings += 1;
            }
        }
        for (check, rail) in &failed {
            let labels = [("check", *check), ("rail", rail)];
            self.add("rail_cni_check_failed", &labels, 1);
        }
        self.add("rail_cni_check_warnings", &[], warnings);
    }

    fn of_status(&mut self, status: &Status, flapping: &BTreeSet<String>) {
        for rail in &status.rails {
            let number = number_label(rail.rail);
            let labels = [("rail", number.as_str()), ("pf", rail.pf.name.as_str())];
            let has_carrier = matches!(rail.pf.link.as_str(), "up" | "in-pod");
            self.add("rail_cni_carrier", &labels, u64::from(has_carrier));
            let is_flapping = flapping.contains(&rail.pf.name);
            self.add("rail_cni_flapping", &labels, u64::from(is_flapping));
            for (counter, count) in rail.pf.counted.iter().flatten().take(MAX_COUNTERS) {
                self.add(
                    "rail_cni_pf_faults_total",
                    &[labels[0], labels[1], ("counter", counter)],
                    *count,
                );
            }
            for (function, counters) in rail.rdma_counted.iter().take(MAX_FUNCTIONS) {
                for (counter, count) in counters.iter().take(MAX_RDMA_COUNTERS) {
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
        // With zeros: an alert on an absent series stays silent.
        let mut states = BTreeMap::from(
            [
                "live",
                "tapped",
                "busy",
                "dead",
                "cut-off",
                "lost",
                "on-host",
                "returned",
                "missing",
                "elsewhere",
                "unknown",
            ]
            .map(|state| (state, 0)),
        );
        let mut without_carrier = 0;
        for attachment in &status.attachments {
            *states.entry(attachment.state.as_str()).or_default() += 1;
            let is_down = attachment.link.as_deref().is_some_and(|link| link != "up");
            if attachment.is_in_pod() && is_down {
                without_carrier += 1;
            }
        }
        for (state, number) in states {
            self.add("rail_cni_attachments", &[("state", state)], number);
        }
        self.add("rail_cni_attachments_without_carrier", &[], without_carrier);
        self.add("rail_cni_pending", &[], count(status.pending.len()));
        self.add("rail_cni_lost_devices", &[], count(status.lost.len()));
        self.add(
            "rail_cni_unreadable_records",
            &[],
            count(status.unreadable.len()),
        );
    }

    /// The pods with rails. Names that the API server would not accept, as a runtime without
    /// Kubernetes may give, are left out.
    fn of_pods(&mut self, status: &Status) {
        let mut pods = BTreeSet::new();
        for attachment in &status.attachments {
            let Some(pod) = &attachment.pod else {
                continue;
            };
            let Some((namespace, name)) = pod.split_once('/') else {
                continue;
            };
            if attachment.is_in_pod() && is_object_name(namespace) && is_object_name(name) {
                let rail = number_label(attachment.rail);
                let pf = attachment.pf.as_deref().unwrap_or_default();
                pods.insert((rail, pf, namespace, name));
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
        const STATES: [&str; 7] = [
            "right",
            "wrong",
            "unplanned",
            "unnamed",
            "two-neighbours",
            "silent",
            "no-link",
        ];
        let number = number_label(cable.rail);
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

/// The label of a rail; empty without a number.
fn number_label(rail: Option<u8>) -> String {
    rail.map(|rail| rail.to_string()).unwrap_or_default()
}

/// Whether Kubernetes accepts this name of a namespace or pod.
fn is_object_name(name: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    (1..=253).contains(&name.len()) && name.bytes().all(is_allowed)
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
            metrics.calls.len() <= MAX_CALL_SERIES + 1,
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
