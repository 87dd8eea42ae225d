//! Properties of every error, every message and every allocation.

use std::collections::HashSet;
use std::sync::Once;

use anyhow::Error;
use rail_cni::cni::answer;
use rail_cni::error::code_of;
use rail_cni::log::printable;
use rail_cni::pool::Allocation;

/// Formats every line that is logged, as the log does. Without a logger none of them is ever made.
struct Listener;

impl log::Log for Listener {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let text = record.args().to_string();
        assert!(
            text.len() < LONGEST,
            "a line of the log has {} bytes",
            text.len()
        );
    }

    fn flush(&self) {}
}

/// No message that a person reads is longer. Inputs have up to 16 KiB, and a message quotes some
/// values of them.
const LONGEST: usize = 256 << 10;

/// Begins to look at what is logged.
pub fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if log::set_logger(&Listener).is_ok() {
            log::set_max_level(log::LevelFilter::Debug);
        }
    });
}

/// Panics unless `error` is one that a runtime may get, with one of these codes.
pub fn refused(error: &Error, codes: &[u32]) {
    let code = code_of(error);
    assert!(codes.contains(&code), "code {code}: {error:#}");
    let json = answer("1.1.0", error, true);
    message(&json.msg);
    let text = serde_json::to_string(&json).expect("an error is JSON");
    assert!(!text.contains('\n'));
    assert_eq!(
        printable(&json.msg),
        json.msg,
        "an answer controls a terminal"
    );
    for line in json.details.lines() {
        assert_eq!(printable(line), line, "an answer controls a terminal");
    }
    for text in [&json.msg, &json.details] {
        let lower = text.to_ascii_lowercase();
        let looks_done = ["not found", "no such file or directory"]
            .iter()
            .any(|text| lower.contains(text));
        assert!(!looks_done, "a DEL that looks done: {text}");
    }
}

/// Panics unless the text says something, and not too much.
pub fn message(text: &str) {
    assert!(!text.is_empty(), "an error says nothing");
    assert!(text.len() < LONGEST, "an error has {} bytes", text.len());
}

/// Panics unless the allocation can be handed out: it has no default route, and a host that is not
/// the leaf.
pub fn allocation(allocation: &Allocation) {
    allocation
        .check()
        .expect("an allocation that was accepted is sound");
    assert!(
        allocation
            .routes
            .iter()
            .all(|route| route.dst.prefix_len() > 0)
    );
    let mut given = HashSet::new();
    for _ in 0..4 {
        let Some(host) = allocation.first_free(|address| given.contains(&address)) else {
            break;
        };
        assert!(
            allocation.prefix.contains(&host),
            "{host} is outside of {}",
            allocation.prefix
        );
        assert_ne!(Some(host), allocation.gateway);
        assert!(
            !allocation
                .exclusions
                .iter()
                .any(|range| range.contains(host)),
            "{host} is excluded"
        );
        assert_eq!(allocation.check_host(host), Ok(()));
        assert!(given.insert(host));
    }
}
