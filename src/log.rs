//! The log: lines on stderr, and in a file where node.json names one. stdout belongs to the answer
//! and is never used.
//!
//! A line has the time, the level, the call that it is about, and the message. As text it always
//! has all columns; `-` means that the value is not known or does not apply:
//!
//! ```text
//! TIME LEVEL PLUGIN VERB NETWORK POD INTERFACE ADDRESS: MESSAGE
//! ```

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use log::{Level, LevelFilter, Log, Metadata, Record};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::watchdog;

/// The format of the log's lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Columns, for people.
    #[default]
    Text,
    /// One JSON object per line; a key whose value is not known is absent.
    Json,
    /// On stderr a line has no time, and its level is as journald reads it: `<4>` (sd-daemon(3)).
    /// The file has text.
    Journal,
}

/// The call that the lines are about.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// The name of the executable.
    pub plugin: &'static str,
    /// The CNI verb, such as `ADD`, or the command that a person typed.
    pub verb: String,
    /// The name of the network.
    pub network: String,
    /// The pod, as `namespace/name`.
    pub pod: Option<String>,
    /// The UID of the pod.
    pub pod_uid: Option<String>,
    /// The value of CNI_CONTAINERID.
    pub container: Option<String>,
    /// The value of CNI_IFNAME.
    pub interface: Option<String>,
}

impl Call {
    fn clipped(mut self) -> Call {
        let Call {
            plugin: _,
            verb,
            network,
            pod,
            pod_uid,
            container,
            interface,
        } = &mut self;
        let optional = [pod, pod_uid, container, interface].into_iter().flatten();
        for column in [verb, network].into_iter().chain(optional) {
            *column = clipped_to(column, LONGEST_COLUMN);
        }
        self
    }
}

#[derive(Default)]
struct Sink {
    state: Mutex<State>,
    file: Mutex<Option<File>>,
    stderr: Mutex<Stderr>,
    warnings: Mutex<Vec<String>>,
    room: Mutex<Room>,
}

#[derive(Clone, Debug, Default)]
struct State {
    call: Call,
    addresses: String,
    format: Format,
}

/// Limit of the warnings of a call that are kept for [`told`]. A tenant's configuration can cause
/// any number.
const MOST_WARNINGS: usize = 32;

/// Bytes of a message that are shown. A tenant's value may have any length.
const LONGEST: usize = 2 << 10;
/// Bytes of a column that are shown.
const LONGEST_COLUMN: usize = 320;

/// The room that is left for lines. A call has some room, whatever its configuration causes; a
/// command that a person typed has no end of it.
struct Room {
    lines: usize,
    bytes: usize,
    errors: usize,
}

impl Default for Room {
    fn default() -> Room {
        Room {
            lines: usize::MAX,
            bytes: usize::MAX,
            errors: usize::MAX,
        }
    }
}

impl Room {
    const OF_A_CALL: Room = Room {
        lines: 64,
        bytes: 32 << 10,
        errors: 8,
    };

    /// `message` if it has room. The first that has none is replaced, and `None` comes of those
    /// behind it. Errors have room of their own: the last one says why the call failed.
    fn take(&mut self, level: Level, message: String) -> Option<String> {
        if level == Level::Error {
            self.errors = self.errors.checked_sub(1)?;
            return Some(message);
        }
        self.lines = self.lines.checked_sub(1)?;
        match self.bytes.checked_sub(escaped(&message).len()) {
            Some(bytes) if self.lines > 0 => {
                self.bytes = bytes;
                Some(message)
            }
            _ => {
                self.lines = 0;
                Some("this call has reached its limit of log lines; only errors follow".to_owned())
            }
        }
    }
}

static SINK: OnceLock<Sink> = OnceLock::new();

fn sink() -> &'static Sink {
    SINK.get_or_init(Sink::default)
}

impl Log for Sink {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let state = self
            .state
            .lock()
            .map(|state| state.clone())
            .unwrap_or_default();
        let now = humantime::format_rfc3339_millis(std::time::SystemTime::now()).to_string();
        let message = clipped(&record.args().to_string());
        let Some(message) = self.with_room(record.level(), message) else {
            return;
        };
        if record.level() == Level::Warn {
            if let Ok(mut warnings) = self.warnings.lock() {
                if warnings.len() < MOST_WARNINGS {
                    warnings.push(message.clone());
                }
            }
        }
        // A pod must not fail because its log cannot be written.
        if let Ok(mut file) = self.file.lock() {
            if let Some(file) = file.as_mut() {
                let _step = watchdog::during("writing the log");
                let _ = file.write_all(state.for_file(&now, record.level(), &message).as_bytes());
            }
        }
        if let Ok(mut stderr) = self.stderr.lock() {
            stderr.write(&state.for_stderr(&now, record.level(), &message));
        }
    }

    fn flush(&self) {}
}

impl Sink {
    fn with_room(&self, level: Level, message: String) -> Option<String> {
        self.room
            .lock()
            .map_or(None, |mut room| room.take(level, message))
    }
}

impl State {
    fn for_file(&self, now: &str, level: Level, message: &str) -> String {
        match self.format {
            Format::Json => self.json(now, level, message),
            Format::Text | Format::Journal => line(&format!(
                "{now} {:<5} {}: {message}",
                named(level),
                self.columns()
            )),
        }
    }

    fn for_stderr(&self, now: &str, level: Level, message: &str) -> String {
        // The priorities of syslog(3).
        let priority = match level {
            Level::Error => 3,
            Level::Warn => 4,
            Level::Info => 6,
            Level::Debug | Level::Trace => 7,
        };
        match self.format {
            Format::Journal => line(&format!("<{priority}>{}: {message}", self.columns())),
            Format::Text | Format::Json => self.for_file(now, level, message),
        }
    }

    fn columns(&self) -> String {
        let Call {
            plugin,
            verb,
            network,
            pod,
            container,
            interface,
            ..
        } = &self.call;
        let pod = pod
            .as_ref()
            .or(container.as_ref())
            .map_or("", String::as_str);
        let interface = interface.as_deref().unwrap_or_default();
        let columns = [
            plugin,
            verb.as_str(),
            network,
            pod,
            interface,
            &self.addresses,
        ];
        // CNI_ARGS may contain anything: a name with spaces must not become two columns.
        let columns = columns.map(|column| column.replace(char::is_whitespace, "_"));
        columns
            .map(|column| {
                if column.is_empty() {
                    "-".to_owned()
                } else {
                    column
                }
            })
            .join(" ")
    }

    fn json(&self, now: &str, level: Level, message: &str) -> String {
        let Call {
            plugin,
            verb,
            network,
            pod,
            container,
            interface,
            ..
        } = &self.call;
        let known = [
            ("time", now),
            ("level", named(level)),
            ("plugin", plugin),
            ("verb", verb),
            ("network", network),
            ("pod", pod.as_deref().unwrap_or_default()),
            ("container", container.as_deref().unwrap_or_default()),
            ("interface", interface.as_deref().unwrap_or_default()),
            ("address", &self.addresses),
            ("message", message),
        ];
        let known = known.into_iter().filter(|(_, value)| !value.is_empty());
        let object: Map<_, _> = known
            .map(|(key, value)| (key.to_owned(), Value::from(value)))
            .collect();
        escaped_json(&Value::Object(object).to_string()) + "\n"
    }
}

/// The name of the level, as in node.json.
fn named(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug | Level::Trace => "debug",
    }
}

/// The stderr of the process, which may be a pipe without a reader.
#[derive(Default)]
struct Stderr {
    waited: Duration,
}

impl Stderr {
    /// Limit of the total time that the lines of this process may wait.
    const PATIENCE: Duration = Duration::from_secs(1);
    /// A pipe that poll(2) reports as writable has room for this many bytes (PIPE_BUF in pipe(7)).
    const ROOM: usize = 4096;

    /// Writes `text`, or drops it if stderr has no reader: no pod waits for its log.
    fn write(&mut self, text: &str) {
        let mut stderr = io::stderr().lock();
        for part in text.as_bytes().chunks(Stderr::ROOM) {
            let left = Stderr::PATIENCE.saturating_sub(self.waited);
            let began = Instant::now();
            let ready = {
                let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
                let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
                poll(&mut fds, left).is_ok_and(|ready| ready > 0)
            };
            self.waited += began.elapsed();
            if !ready || stderr.write_all(part).is_err() {
                return;
            }
        }
    }
}

/// Says that the following lines are about a command that a person typed, and starts the log.
pub fn describe_command(plugin: &'static str, command: &str) {
    describe(Call {
        plugin,
        verb: command.to_owned(),
        ..Call::default()
    });
    if let Ok(mut room) = sink().room.lock() {
        *room = Room::default();
    }
}

/// Says which call the following lines are about, and starts the log.
pub fn describe(call: Call) {
    let sink = sink();
    if let Ok(mut room) = sink.room.lock() {
        *room = Room::OF_A_CALL;
    }
    if let Ok(mut state) = sink.state.lock() {
        state.call = call.clipped();
    }
    if log::set_logger(sink).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}

/// Says that the following lines are about `call`, of another plugin that this one calls as a
/// function, until the value is dropped.
pub fn speaking_as(call: Call) -> Speaking {
    let call = call.clipped();
    let mut state = sink().state.lock().unwrap_or_else(PoisonError::into_inner);
    let during = State {
        call,
        addresses: String::new(),
        format: state.format,
    };
    Speaking {
        before: std::mem::replace(&mut state, during),
    }
}

/// See [`speaking_as`].
#[derive(Debug)]
pub struct Speaking {
    before: State,
}

impl Drop for Speaking {
    fn drop(&mut self) {
        let mut state = sink().state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = std::mem::take(&mut self.before);
    }
}

/// The call, and what it was warned of first.
pub fn told() -> (Call, Vec<String>) {
    let call = sink()
        .state
        .lock()
        .map(|state| state.call.clone())
        .unwrap_or_default();
    (
        call,
        sink()
            .warnings
            .lock()
            .map(|warnings| warnings.clone())
            .unwrap_or_default(),
    )
}

/// Sets the addresses that the following lines are about.
pub fn addresses(addresses: impl IntoIterator<Item = std::net::IpAddr>) {
    let addresses: Vec<_> = addresses
        .into_iter()
        .map(|address| address.to_string())
        .collect();
    if let Ok(mut state) = sink().state.lock() {
        state.addresses = addresses.join(",");
    }
}

/// Sets the level, the format and the file. The file is opened for appending and each line is one
/// write, so several processes can share it.
pub fn configure(level: LevelFilter, format: Format, file: Option<&Path>) {
    log::set_max_level(level);
    if let Ok(mut state) = sink().state.lock() {
        state.format = format;
    }
    let Some(path) = file else { return };
    watchdog::step(|| format!("opening the log {}", path.display()));
    match open(path) {
        Ok(opened) => {
            if let Ok(mut file) = sink().file.lock() {
                *file = Some(opened);
            }
        }
        // The lock of the file must not be held here, because the warning takes it.
        Err(error) => log::warn!("cannot open the log file {}: {error}", path.display()),
    }
}

/// Opens a regular file or /dev/null. Writing to anything else, such as a FIFO, might wait.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = File::options()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(flags.bits())
        .open(path)?;
    let meta = file.metadata()?;
    let is_null = meta.file_type().is_char_device() && meta.rdev() == nix::sys::stat::makedev(1, 3);
    if meta.is_file() || is_null {
        Ok(file)
    } else {
        Err(io::Error::other("it is not a regular file"))
    }
}

/// Writes a line from another plugin's stderr to this process's stderr.
pub fn relay(text: &[u8]) {
    let text = clipped(&String::from_utf8_lossy(text));
    let Some(text) = sink().with_room(Level::Info, text) else {
        return;
    };
    if let Ok(mut stderr) = sink().stderr.lock() {
        stderr.write(&line(&text));
    }
}

/// `text`, or its begin and its end if it is too long: a message begins with where, and ends with
/// what to do.
pub fn clipped(text: &str) -> String {
    clipped_to(text, LONGEST)
}

fn clipped_to(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    // A letter has at most four bytes.
    let is_end = |at: &usize| text.is_char_boundary(*at);
    let from = (0..=most / 2).rev().find(is_end).unwrap_or_default();
    let until = (text.len() - most / 4..text.len())
        .find(is_end)
        .unwrap_or(text.len());
    format!(
        "{} […{} bytes…] {}",
        &text[..from],
        until - from,
        &text[until..]
    )
}

/// `text` as one line: nothing in it ends the line or controls a terminal, whoever wrote it.
pub fn escaped(text: &str) -> String {
    let mut line = String::with_capacity(text.len() + 1);
    for letter in text.chars() {
        match letter {
            letter if letter.is_control() => line.extend(letter.escape_default()),
            letter if is_unprintable(letter) => line.extend(letter.escape_unicode()),
            letter => line.push(letter),
        }
    }
    line
}

/// JSON text that controls no terminal and means the same. Unprintable characters occur only within
/// strings, and serde_json escapes those below 0x20: what there is of them is its own.
pub fn escaped_json(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match u32::from(letter) {
            // Each of them has four hexadecimal digits.
            code if code >= 0x20 && is_unprintable(letter) => escaped += &format!("\\u{code:04x}"),
            _ => escaped.push(letter),
        }
    }
    escaped
}

fn line(text: &str) -> String {
    escaped(text) + "\n"
}

/// Whether `letter` could end a line or control a terminal: the control characters, the line
/// separators of Unicode, and the characters that change the direction of text.
pub fn is_unprintable(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text without control characters: a text of a tenant must not control the terminal.
pub fn printable(text: &str) -> String {
    text.replace(is_unprintable, "?")
}

/// The level with the given name. The names are those of sriov-cni; `panic` means `error`.
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

    fn state(format: Format) -> State {
        let call = Call {
            plugin: "rail-cni",
            verb: "ADD".into(),
            network: "rail-0".into(),
            pod: Some("ai/trainer 0".into()),
            pod_uid: None,
            container: Some("c1".into()),
            interface: Some("net1".into()),
        };
        State {
            call,
            addresses: "172.16.0.2".into(),
            format,
        }
    }

    #[test]
    fn a_line_has_what_when_and_for_whom() {
        let told = |format| {
            let state = state(format);
            [
                state.for_file("T", Level::Warn, "a\nb"),
                state.for_stderr("T", Level::Warn, "a\nb"),
            ]
        };
        let text = "T warn  rail-cni ADD rail-0 ai/trainer_0 net1 172.16.0.2: a\\nb\n";
        assert_eq!(told(Format::Text), [text, text]);
        let journal = "<4>rail-cni ADD rail-0 ai/trainer_0 net1 172.16.0.2: a\\nb\n";
        assert_eq!(told(Format::Journal), [text, journal]);
        for line in told(Format::Json) {
            let value: Value = serde_json::from_str(&line).unwrap();
            let expected = serde_json::json!({"time": "T", "level": "warn", "plugin": "rail-cni", "verb": "ADD",
                "network": "rail-0", "pod": "ai/trainer 0", "container": "c1", "interface": "net1",
                "address": "172.16.0.2", "message": "a\nb"});
            assert_eq!(value, expected);
        }
        let nobodys = State {
            call: Call {
                plugin: "rail-ipam",
                verb: "GC".into(),
                ..Call::default()
            },
            ..State::default()
        };
        assert_eq!(
            nobodys.for_file("T", Level::Info, "m"),
            "T info  rail-ipam GC - - - -: m\n"
        );
        let json = serde_json::json!({"time": "T", "level": "info", "plugin": "rail-ipam", "verb": "GC", "message": "m"});
        let nobodys = State {
            format: Format::Json,
            ..nobodys
        };
        assert_eq!(
            serde_json::from_str::<Value>(&nobodys.for_file("T", Level::Info, "m")).unwrap(),
            json
        );
    }

    /// A FIFO waits for its reader, and a link or a device may be anything.
    #[test]
    fn only_a_regular_file_takes_a_log() {
        use std::os::unix::fs::PermissionsExt as _;
        let temp = tempfile::tempdir().unwrap();
        let path = |name: &str| temp.path().join(name);
        nix::unistd::mkfifo(&path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _reader = File::options()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(path("fifo"));
        nix::unistd::mkfifo(&path("silent"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(path("new"), path("link")).unwrap();
        for bad in [
            path("fifo"),
            path("silent"),
            path("link"),
            path(""),
            path("no/directory"),
        ] {
            assert!(open(&bad).is_err(), "{}", bad.display());
        }
        assert!(open(Path::new("/dev/zero")).is_err() && open(Path::new("/dev/null")).is_ok());
        let mode = open(&path("new"))
            .unwrap()
            .metadata()
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_call_has_room_for_some_lines_and_for_its_error() {
        let mut room = Room::OF_A_CALL;
        let taken: Vec<_> = (0..1000)
            .map_while(|_| room.take(Level::Warn, "x".to_owned()))
            .collect();
        assert_eq!((taken.len(), taken[62].as_str()), (64, "x"));
        assert_ne!(taken[63], "x");
        assert_eq!(
            room.take(Level::Error, "why".to_owned()).as_deref(),
            Some("why")
        );
        let mut room = Room::OF_A_CALL;
        // Six bytes each when they are shown.
        let long = || "\u{1b}".repeat(2000);
        assert_eq!(
            (0..9)
                .filter(|_| room
                    .take(Level::Warn, long())
                    .is_some_and(|text| text == long()))
                .count(),
            2
        );
        let mut room = Room::default();
        assert!((0..1000).all(|_| room.take(Level::Error, long()).is_some()
            && room.take(Level::Warn, long()).is_some()));
    }

    proptest! {
        #[test]
        fn what_is_clipped_keeps_its_begin_and_its_end(text in ".{0,40}", most in 4_usize..32) {
            let shown = clipped_to(&text, most);
            let parts = shown.split_once(" […").and_then(|(begin, rest)| Some((begin, rest.split_once("…] ")?.1)));
            match parts {
                Some((begin, end)) if text.len() > most => {
                    prop_assert!(text.starts_with(begin) && text.ends_with(end), "{}", shown);
                    prop_assert!(begin.len() + end.len() <= most && begin.len() + 3 >= most / 2);
                }
                _ => prop_assert!(text.len() <= most && shown == text, "{}", shown),
            }
        }

        #[test]
        fn a_line_is_a_line(text: String) {
            let line = line(&text);
            prop_assert_eq!(line.chars().filter(|letter| letter.is_control()).count(), 1);
            prop_assert!(line.ends_with('\n'));
        }

        #[test]
        fn a_line_of_json_is_a_line_and_says_the_same(text: String) {
            let line = state(Format::Json).for_file("T", Level::Info, &text);
            prop_assert_eq!(line.chars().filter(|letter| is_unprintable(*letter)).count(), 1);
            let value: Value = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(value.get("message").and_then(Value::as_str).unwrap_or_default(), text);
        }
    }
}
