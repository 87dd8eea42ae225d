//! What is pending of an attachment, as `reap` and `status` print it.

use serde_json::{Value, json};

use rail_cni::attach::owner::Owner;
use rail_cni::attach::record::{Entry, Failed, Record};

/// For programs.
pub fn json(record: &Record) -> Value {
    let Owner {
        device,
        network,
        container_id,
        ifname,
        pod,
        since,
        ..
    } = &record.owner;
    let steps = record.left().map(|step| {
        let Failed {
            why, tries, since, ..
        } = step.failed();
        json!({"step": step.change.name(), "why": why, "tries": tries, "since": since})
    });
    json!({"device": device.id, "network": network, "containerID": container_id, "ifname": ifname, "pod": pod,
        "since": since, "steps": steps.collect::<Vec<_>>()})
}

/// For people: a line each.
pub fn lines(record: &Record) -> Vec<String> {
    let line = |step: &Entry| {
        let why = step.failed().why;
        let why = if why.is_empty() {
            "not tried yet".to_owned()
        } else {
            why
        };
        format!(
            "{}: {}: {why}",
            record.owner.describe(),
            step.change.step().describe()
        )
    };
    record.left().map(line).collect()
}
