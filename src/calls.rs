//! The file `calls` of the run directory: one line of JSON per finished call, from which rail-agent
//! makes metrics and Events. `end` lists the keys.
//!
//! The agent creates the file, and replaces it before it is full. A plugin only appends to it, with
//! one write, and never waits: if the file is missing, full or not a regular file, the line is
//! dropped.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use nix::fcntl::OFlag;
use serde_json::json;

/// Name of the file in the run directory.
pub const FILE: &str = "calls";
/// Bytes above which nothing is appended. The run directory is in memory, and the agent may be
/// gone.
const MOST: u64 = 4 << 20;
/// Characters that are kept of a text. Most of them come from a pod's manifest.
const LONGEST: usize = 1024;
/// Limit of the warnings, and of the restored devices, that are kept of a call.
const MOST_TEXTS: usize = 8;

struct Call {
    began: Option<Instant>,
    run_dir: Option<PathBuf>,
    rail: Option<u8>,
    restored: Vec<String>,
}

static CALL: Mutex<Call> = Mutex::new(Call {
    began: None,
    run_dir: None,
    rail: None,
    restored: Vec::new(),
});

fn call() -> MutexGuard<'static, Call> {
    CALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The call begins now.
pub fn begin() {
    call().began = Some(Instant::now());
}

/// Says where the file is. A call that ends before this leaves no line, because the file is not
/// known yet.
pub fn is_below(run_dir: &Path) {
    call().run_dir = Some(run_dir.to_owned());
}

/// Says which rail the call is about.
pub fn rail(number: Option<u8>) {
    let mut call = call();
    call.rail = number.or(call.rail);
}

/// Logs, and says to the agent, that something was restored that an earlier pod had left behind.
pub fn restored(what: String) {
    log::warn!("{what}");
    let mut call = call();
    if call.restored.len() < MOST_TEXTS {
        call.restored.push(cut(&what));
    }
}

/// Appends the line of the call, which ended with this code of CNI and this message; 0 is success.
pub fn end(code: u32, message: &str) {
    let Call {
        began,
        run_dir,
        rail,
        restored,
    } = &*call();
    let (call, mut warnings) = crate::log::told();
    let (Some(began), Some(run_dir)) = (began, run_dir) else {
        return;
    };
    // Runtimes ask for the status every few seconds.
    if call.verb == "STATUS" && code == 0 {
        return;
    }
    let Some(mut file) = open(&run_dir.join(FILE)) else {
        return;
    };
    warnings.retain(|warning| !restored.contains(&cut(warning)));
    let warnings: Vec<_> = warnings
        .iter()
        .take(MOST_TEXTS)
        .map(|warning| cut(warning))
        .collect();
    let mut line = json!({
        "time": humantime::format_rfc3339_micros(SystemTime::now()).to_string(),
        "plugin": call.plugin,
        "verb": call.verb,
        "network": cut(&call.network),
        "pod": call.pod.as_deref().map(cut),
        "podUid": call.pod_uid.as_deref().map(cut),
        "container": call.container.as_deref().map(cut),
        "interface": call.interface.as_deref().map(cut),
        "rail": rail,
        "micros": u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
        "code": code,
        "message": cut(message),
        "restored": restored,
        "warnings": warnings,
    });
    if let Some(object) = line.as_object_mut() {
        let is_empty = |value: &serde_json::Value| value.as_array().is_some_and(Vec::is_empty);
        object.retain(|_, value| !value.is_null() && value != "" && !is_empty(value));
    }
    // One write: lines of several processes do not mix. It begins with the end of a line, because a
    // full file system may have cut the last one off. The pod has its rail already, and an error
    // could not be reported any more.
    let _ = file.write_all(format!("\n{line}\n").as_bytes());
}

fn open(path: &Path) -> Option<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = File::options()
        .append(true)
        .custom_flags(flags.bits())
        .open(path)
        .ok()?;
    let meta = file.metadata().ok()?;
    (meta.is_file() && meta.len() < MOST).then_some(file)
}

fn cut(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}
