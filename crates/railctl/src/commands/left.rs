//! The pending steps of an attachment, as `reap` and `status` print them.

use serde_json::{Value, json};

use rail_cni::attach::attachments::{Attachment, Owner};

/// For programs.
pub fn json(attachment: &Attachment) -> Value {
    let Owner {
        device,
        network,
        container_id,
        ifname,
        pod,
        since,
        ..
    } = &attachment.owner;
    let mut steps = Vec::new();
    for step in attachment.pending_steps() {
        steps.push(
            json!({"step": step.name, "why": step.why, "tries": step.tries, "since": step.since}),
        );
    }
    json!({"device": device.id, "network": network, "containerID": container_id, "ifname": ifname,
        "pod": pod, "since": since, "steps": steps})
}

/// For people: a line each.
pub fn lines(attachment: &Attachment) -> Vec<String> {
    let holder = attachment.owner.describe();
    let mut lines = Vec::new();
    for step in attachment.pending_steps() {
        let why = if step.why.is_empty() {
            "not tried yet"
        } else {
            &step.why
        };
        lines.push(format!("{holder}: {}: {why}", step.description));
    }
    lines
}
