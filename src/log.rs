//! The log: stderr, and a file where node.json names one. Never stdout, which belongs to the answer.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use log::{LevelFilter, Log, Metadata, Record};
use nix::fcntl::OFlag;

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
        let line = line(&format!("{now} {level:<5} {what}{}", record.args()));
        // A log that cannot be written must not fail a pod.
        if let Ok(mut file) = self.file.lock()
            && let Some(file) = file.as_mut()
        {
            let _ = file.write_all(line.as_bytes());
        }
        let _ = io::stderr().lock().write_all(line.as_bytes());
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

/// Sets level and file. The file is opened for appending, one write a line, so that processes can share it.
pub fn configure(level: LevelFilter, file: Option<&Path>) {
    log::set_max_level(level);
    let Some(path) = file else { return };
    match open(path) {
        Ok(opened) => {
            if let Ok(mut file) = sink().file.lock() {
                *file = Some(opened);
            }
        }
        // Nobody may hold the file's lock here: the warning takes it.
        Err(error) => log::warn!("cannot write the log {}: {error}", path.display()),
    }
}

/// A regular file or /dev/null, for on what else there is a call may have to wait.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = File::options().append(true).create(true).mode(0o600).custom_flags(flags.bits()).open(path)?;
    let meta = file.metadata()?;
    let is_null = meta.file_type().is_char_device() && meta.rdev() == nix::sys::stat::makedev(1, 3);
    if meta.is_file() || is_null { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

/// Writes a line of another plugin's log to ours.
pub fn relay(text: &[u8]) {
    let _ = io::stderr().lock().write_all(line(&String::from_utf8_lossy(text)).as_bytes());
}

/// `text` as one line, whoever wrote it: nothing in it ends the line or steers a terminal.
fn line(text: &str) -> String {
    let mut line = String::with_capacity(text.len() + 1);
    for letter in text.chars() {
        match letter {
            letter if letter.is_control() => line.extend(letter.escape_default()),
            letter if is_unprintable(letter) => line.extend(letter.escape_unicode()),
            letter => line.push(letter),
        }
    }
    line.push('\n');
    line
}

/// Could it end a line or steer a terminal? Beside control characters: what Unicode ends lines with, and what
/// reverses the order of letters.
pub fn is_unprintable(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_tenant_wrote_stays_in_its_line() {
        let text = "a\nroot: b\r\t\u{1b}[2J\u{7f}\u{9b}1m\u{2028}\u{202e}é";
        let told = "a\\nroot: b\\r\\t\\u{1b}[2J\\u{7f}\\u{9b}1m\\u{2028}\\u{202e}é\n";
        assert_eq!(line(text), told);
    }

    /// A FIFO waits for its reader, and a link or a device may be anything.
    #[test]
    fn only_a_regular_file_takes_a_log() {
        use std::os::unix::fs::PermissionsExt as _;
        let temp = tempfile::tempdir().unwrap();
        let path = |name: &str| temp.path().join(name);
        nix::unistd::mkfifo(&path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _reader = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path("fifo"));
        nix::unistd::mkfifo(&path("silent"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(path("new"), path("link")).unwrap();
        for bad in [path("fifo"), path("silent"), path("link"), path(""), path("no/folder")] {
            assert!(open(&bad).is_err(), "{}", bad.display());
        }
        assert!(open(Path::new("/dev/zero")).is_err() && open(Path::new("/dev/null")).is_ok());
        let mode = open(&path("new")).unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    proptest! {
        #[test]
        fn a_line_is_a_line(text: String) {
            let line = line(&text);
            prop_assert_eq!(line.chars().filter(|letter| letter.is_control()).count(), 1);
            prop_assert!(line.ends_with('\n'));
        }
    }
}
