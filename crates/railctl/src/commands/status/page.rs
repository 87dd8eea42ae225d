//! `railctl status --html`: the same for a browser, in one file that can be attached to a ticket.

use std::time::SystemTime;

use crate::commands::inventory::Inventory;
use crate::commands::status::{
    ATTACHMENTS, NO_RAILS, RAILS, gid_indexes, json, rail_row, rdma_mode, row,
};
use crate::output;
use rail_plan::page::{self, Script, escape, table};

const STYLE: &str = "\
.todo { border-left: 4px solid var(--bad); padding: .1rem 1rem; background: var(--panel); border-radius: 0 6px 6px 0; }
.todo.done { border-color: var(--good); }
.todo li { overflow-wrap: anywhere; margin: .3rem 0; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
.warn { color: var(--warn); font-weight: 600; }
";

/// The page. A ticket is read later and elsewhere, so that it has time, version and kernel.
pub fn page(node_name: &str, inventory: &Inventory, todo: &[String], now: SystemTime) -> String {
    let title = format!("Rails of node {node_name}");
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut body = format!(
        "<h1>{}</h1>\n<p class=\"dim\">{}, rail-cni {}, Linux {}, {}</p>\n",
        escape(&title),
        humantime::format_rfc3339_seconds(now),
        escape(&rail_cni::cni::RELEASE),
        escape(kernel.trim()),
        rdma_mode(inventory)
    );
    if todo.is_empty() {
        body.push_str(
            "<div class=\"todo done\"><p class=\"good\">There is nothing to do.</p></div>\n",
        );
    } else {
        let lines: String = todo
            .iter()
            .map(|line| format!("<li>{}</li>\n", escape(line)))
            .collect();
        body.push_str(&format!(
            "<div class=\"todo\"><p class=\"bad\">What to do</p>\n<ul>\n{lines}</ul></div>\n"
        ));
    }
    body.push_str("<h2>Rails</h2>\n");
    if inventory.rails.is_empty() {
        body.push_str(&format!("<p>{NO_RAILS}</p>\n"));
    } else {
        let rows = inventory
            .rails
            .iter()
            .map(|rail| rail_row(rail, inventory))
            .collect();
        body.push_str(&table(&RAILS, rows, class));
    }
    body.push_str("<h2>Pods</h2>\n");
    if inventory.attachments.is_empty() {
        body.push_str("<p>No pod has a rail.</p>\n");
    } else {
        let rows = inventory
            .attachments
            .iter()
            .map(|one| row(one, inventory, now))
            .collect();
        body.push_str(&table(&ATTACHMENTS, rows, class));
    }
    for line in gid_indexes(&inventory.attachments) {
        body.push_str(&format!("<p>{}</p>\n", escape(&line)));
    }
    let json = output::pretty(&json(node_name, inventory, todo));
    // Line feeds are the only control characters of JSON.
    let lines: Vec<_> = json.lines().map(escape).collect();
    body.push_str(&format!(
        "<details><summary>All of this as JSON</summary>\n<pre>{}</pre></details>\n",
        lines.join("\n")
    ));
    page::render(&title, STYLE, &body, Script::None)
}

/// The class of a cell whose text is a word of the columns LINK and STATE.
fn class(column: &str, text: &str) -> &'static str {
    match (column, text) {
        ("LINK", "up") | ("STATE", "live") => "good",
        ("LINK", "in-pod" | "userspace") => "",
        ("STATE", "busy" | "unknown") => "warn",
        ("DEAD", "0") => "",
        ("LINK" | "STATE" | "DEAD", _) if !text.is_empty() => "bad",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    use crate::commands::inventory::{Attached, RdmaMode};
    use rail_cni::attach::attachments::{Attachment, State};

    #[test]
    fn nothing_that_a_tenant_named_is_code() {
        const HOSTILE: &str =
            "<img src=x onerror=alert(1)>\"</pre><script>alert(1)</script>\u{1b}[2J";
        let template = include_str!("../../../../../tests/netns/upgrade/record.json");
        let numbers = ["{dev}", "{ino}", "{created}", "{home}", "{index}"];
        let template = template.replace("{folder}", "[1, 2]");
        let record = numbers
            .iter()
            .fold(template, |text, name| text.replace(name, "1"));
        let mut record: Value =
            serde_json::from_str(&record.replace("{progress}", "done")).unwrap();
        for key in ["pod", "network", "containerID", "ifname"] {
            record["owner"][key] = HOSTILE.into();
        }
        let gids = json!([{"device": HOSTILE, "port": 1, "index": 3, "address": "172.16.0.0"}]);
        let step = json!({"change": {"gids": {"found": gids}}, "state": "done"});
        record["steps"].as_array_mut().unwrap().push(step);
        let attached = Attached {
            record: Attachment::parse(record.to_string().as_bytes()).unwrap(),
            state: State::Live(None),
            is_busy: false,
            addresses: vec![HOSTILE.to_owned()],
            rdma: vec![HOSTILE.to_owned()],
            tapped: None,
            away: None,
        };
        let inventory = Inventory {
            rdma: RdmaMode::Absent,
            rails: Vec::new(),
            attachments: vec![attached],
            pending: Vec::new(),
            unreadable: Vec::new(),
            lost: Vec::new(),
            claimed: Default::default(),
            is_emptied: false,
        };
        let text = page(
            HOSTILE,
            &inventory,
            &[HOSTILE.to_owned()],
            SystemTime::UNIX_EPOCH,
        );
        for code in ["<script", "<img", "\u{1b}"] {
            assert!(!text.contains(code), "{code}: {text}");
        }
        assert_eq!(text.matches("</pre>").count(), 1);
        assert!(text.contains("NCCL_IB_GID_INDEX=3"), "{text}");
        assert!(
            text.contains("1970-01-01T00:00:00Z, rail-cni ") && text.contains("<ul>"),
            "{text}"
        );
        let done = page("n", &inventory, &[], SystemTime::UNIX_EPOCH);
        assert!(!done.contains("<ul>"), "{done}");
    }

    #[test]
    fn words_have_colours_where_they_are_states() {
        for (column, text, expected) in [
            ("LINK", "up", "good"),
            ("LINK", "no-carrier", "bad"),
            ("LINK", "", ""),
            ("STATE", "dead", "bad"),
            ("STATE", "unknown", "warn"),
            ("POD", "dead", ""),
            ("DEAD", "0", ""),
            ("DEAD", "1", "bad"),
        ] {
            assert_eq!(class(column, text), expected, "{column} {text}");
        }
    }
}
