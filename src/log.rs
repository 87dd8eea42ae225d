//! The log: stderr, and a file where node.json names one. Never stdout, which belongs to the answer.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use log::{LevelFilter, Log, Metadata, Record};

struct Sink {
    /// What is going on: put before every line.
    what: Mutex<String>,
    file: Mutex<Option<File>>,
}

static SINK: OnceLock<Sink> = OnceLock::new();

fn sink() -> &'static Sink {
    SINK.get_or_init(|| Sink { what: Mutex::default(), file: Mutex::default() })
}

impl Log for Sink {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let what = self.what.lock().map(|what| what.clone()).unwrap_or_default();
        let level = record.level().as_str().to_ascii_lowercase();
        let now = humantime::format_rfc3339_millis(std::time::SystemTime::now());
        let line = format!("{now} {level:<5} {what}{}\n", record.args());
        // A log that cannot be written must not fail a pod.
        if let Ok(mut file) = self.file.lock()
            && let Some(file) = file.as_mut()
        {
            let _ = file.write_all(line.as_bytes());
        }
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

/// Says what the following lines are about, and starts the log.
pub fn describe(plugin: &str, verb: &str, network: &str) {
    let sink = sink();
    if let Ok(mut what) = sink.what.lock() {
        *what = format!("{plugin} {verb} {network}: ");
    }
    if log::set_logger(sink).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}

/// Sets level and file. `file` is opened for appending, one write a line, so that processes can share it.
pub fn configure(level: LevelFilter, file: Option<&Path>) {
    log::set_max_level(level);
    let Some(path) = file else { return };
    let opened = File::options().append(true).create(true).open(path);
    match (opened, sink().file.lock()) {
        (Ok(opened), Ok(mut file)) => *file = Some(opened),
        (Err(error), _) => log::warn!("cannot write the log {}: {error}", path.display()),
        (_, Err(_)) => (),
    }
}

/// The level written as in sriov-cni: `panic` is `error` here.
pub fn parse_level(text: &str) -> Option<LevelFilter> {
    match text {
        "panic" | "error" => Some(LevelFilter::Error),
        "warning" | "warn" => Some(LevelFilter::Warn),
        "info" => Some(LevelFilter::Info),
        "debug" => Some(LevelFilter::Debug),
        _ => None,
    }
}
