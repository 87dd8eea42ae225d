//! What a check did, as a script that does it again without the suite.

use std::path::PathBuf;

use serde_json::Value;

use crate::call::{Call, Stdin};
use crate::sandbox::{self, DIR};
use crate::settings::Settings;
use crate::value::quoted;

/// A thing that was done.
#[derive(Clone, Debug)]
pub enum Step {
    /// A line of bash.
    Shell(String),
    /// Calls of the plugin at the same time, with their numbers.
    Calls(Vec<(usize, Call)>),
    /// A look at the host, or at the pod of this name, with its number.
    Look(String, usize),
}

/// All that was done, and what does not hold at its end.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    /// In the order in which they were done.
    pub steps: Vec<Step>,
    /// What the calls answered.
    pub answers: Vec<(usize, Value)>,
    /// A condition of bash, with the functions of the script. Empty if only the suite can judge.
    pub holds: String,
}

/// The condition that the answer of the last call is as this filter of jq says.
pub fn answer(filter: &str) -> String {
    format!("answer {}", quoted(filter))
}

/// What is judged, in words.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The name of the check.
    pub check: &'a str,
    /// Its level.
    pub level: &'a str,
    /// What it asks.
    pub asks: &'a str,
    /// What was seen.
    pub seen: &'a str,
}

const HEAD: &str = include_str!("replay.sh");

impl Replay {
    /// The last call, or the last line, as a person types it.
    pub fn last(&self) -> String {
        let text = |step: &Step| match step {
            Step::Shell(text) => Some(text.clone()),
            Step::Calls(calls) => calls.last().map(|(_, call)| call.shell()),
            Step::Look(..) => None,
        };
        self.steps.iter().rev().find_map(text).unwrap_or_default()
    }

    /// The script.
    pub fn script(&self, settings: &Settings, about: About<'_>) -> String {
        let About {
            check,
            level,
            asks,
            seen,
        } = about;
        let plugin = &settings.description.name;
        let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut text = format!(
            "#!/usr/bin/env bash\n# {plugin}: {check} ({level}): {asks}\n# Seen by cni-conformance {}: {}\n",
            env!("CARGO_PKG_VERSION"),
            line(seen)
        );
        let program = quoted(&settings.program.to_string_lossy());
        let path = quoted(&joined(&settings.path));
        text.push_str(&format!(
            "export PLUGIN=${{PLUGIN:-{program}}} PLUGINS=${{CNI_PATH:-{path}}}\n"
        ));
        if self.holds.is_empty() {
            text.push_str(&by_the_suite(settings, check));
            return text;
        }
        let hidden: Vec<_> = sandbox::hidden()
            .iter()
            .map(|path| quoted(&path.to_string_lossy()))
            .collect();
        let beside: Vec<_> = settings
            .description
            .files
            .keys()
            .map(|path| path.replace("{DIR}", DIR))
            .collect();
        let ours = [
            &["/run/netns".to_owned(), format!("{DIR}/bin")][..],
            &beside,
        ]
        .concat();
        text.push_str(&format!(
            "limit={} hidden=({})\nours() {{ case $1 in {}) return 0 ;; esac; return 1; }}\nstays() {{ case $1 in {}) return 0 ;; esac; return 1; }}\nsees_firewall={}\n",
            settings.limit.as_secs(),
            hidden.join(" "),
            ours.iter().map(|path| format!("{0} | {0}/*", quoted(path))).collect::<Vec<_>>().join(" | "),
            patterns(&settings.description.stays),
            u8::from(settings.sees_firewall),
        ));
        text.push_str(HEAD);
        for step in &self.steps {
            match step {
                Step::Shell(line) => text.push_str(&format!("{line}\n")),
                Step::Look(space, id) => text.push_str(&format!("look {space} {id}\n")),
                Step::Calls(calls) => text.push_str(&self.calls(settings, calls)),
            }
        }
        text.push_str(&format!(
            "\nif {}; then\n    echo 'it holds'\n    exit 0\nfi\n",
            self.holds
        ));
        text.push_str(&format!(
            "echo {}\nexit 1\n",
            quoted(&format!("it does not hold: {asks}"))
        ));
        text
    }

    fn calls(&self, settings: &Settings, calls: &[(usize, Call)]) -> String {
        let mut text = String::new();
        for (id, call) in calls {
            text.push_str(&self.input(*id, call));
        }
        let is_alone = calls.len() == 1;
        let ids: Vec<_> = calls.iter().map(|(id, _)| id.to_string()).collect();
        text.push_str(&format!("group=({})\n", ids.join(" ")));
        for (id, call) in calls {
            let run = if call.is_stdout_broken() {
                "lost"
            } else {
                "run"
            };
            let vars = call
                .vars()
                .iter()
                .filter(|(name, _)| *name != "PATH" || call.path_is_changed());
            let vars: Vec<_> = vars
                .map(|(name, value)| format!("{name}={}", with_plugins(value, settings)))
                .collect();
            let path = if call.path_is_changed() {
                ""
            } else {
                "PATH=\"$PATH\" "
            };
            let words: Vec<_> = call.arguments().iter().map(|word| quoted(word)).collect();
            let stdin = match call.input() {
                Stdin::Bytes(_) => format!("< <(cat \"$T/{id}.in\")"),
                Stdin::Silent => "< <(exec sleep $((limit + 5)))".to_owned(),
                Stdin::Closed => "<&-".to_owned(),
                Stdin::File(path) => format!("<{}", quoted(&path.to_string_lossy())),
            };
            let mute = if call.is_stderr_null() { "mute=1 " } else { "" };
            let end = if is_alone { "" } else { " &" };
            text.push_str(&format!(
                "{mute}{run} {id} env -i {path}{} \"$PLUGIN\" {} {stdin}{end}\n",
                vars.join(" "),
                words.join(" ")
            ));
        }
        if !is_alone {
            text.push_str("wait \"${pids[@]}\" 2>/dev/null || wait\n");
        }
        text.push_str(&format!(
            "last={}\n",
            ids.last().cloned().unwrap_or_default()
        ));
        text
    }

    /// What is on stdin, with the previous result of a call of this run.
    fn input(&self, id: usize, call: &Call) -> String {
        let Some(bytes) = call.bytes() else {
            return String::new();
        };
        let conf: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        for key in ["prevResult", "PREVRESULT"] {
            let previous = &conf[key];
            let from = self
                .answers
                .iter()
                .rfind(|(from, answer)| *from < id && answer == previous);
            if let (true, Some((from, _))) = (previous.is_object(), from) {
                let mut rest = conf.clone();
                rest[key] = Value::Null;
                return format!(
                    "printf %s {} | jq -c --slurpfile r \"$T/{from}.out\" '.{key} = $r[0]' >\"$T/{id}.in\"\n",
                    quoted(&rest.to_string())
                );
            }
        }
        match String::from_utf8(bytes.clone()) {
            Ok(text) if !text.contains('\0') => {
                format!("printf %s {} >\"$T/{id}.in\"\n", quoted(&text))
            }
            _ => {
                let octal: String = bytes.iter().map(|byte| format!("\\{byte:03o}")).collect();
                format!("printf '{octal}' >\"$T/{id}.in\"\n")
            }
        }
    }
}

fn joined(path: &[PathBuf]) -> String {
    path.iter()
        .map(|one| one.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(":")
}

/// A value in which CNI_PATH is that of the script.
fn with_plugins(value: &str, settings: &Settings) -> String {
    let path = joined(&settings.path);
    match value.split_once(&path) {
        Some((before, behind)) if !path.is_empty() => {
            format!(
                "{}\"$PLUGINS\"{}",
                quoted_or_none(before),
                quoted_or_none(behind)
            )
        }
        _ => quoted(value),
    }
}

fn quoted_or_none(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        quoted(text)
    }
}

/// Names, and beginnings that end in `*`, as patterns of `case`.
fn patterns(stays: &[String]) -> String {
    let one = |pattern: &String| {
        let pattern = pattern.replace("{DIR}", DIR);
        match pattern.strip_suffix('*') {
            Some("") => "*".to_owned(),
            Some(begin) => format!("{}*", quoted(begin)),
            None => format!("{0} | */{0}", quoted(&pattern)),
        }
    };
    if stays.is_empty() {
        "''".to_owned()
    } else {
        stays.iter().map(one).collect::<Vec<_>>().join(" | ")
    }
}

/// A check whose condition no shell can say: the suite repeats it, with the same description.
fn by_the_suite(settings: &Settings, check: &str) -> String {
    let description = serde_json::to_string_pretty(&settings.description).unwrap_or_default();
    format!(
        "# It needs the suite, which CNI_CONFORMANCE names. Exit status: 0 it holds, 1 it does not, 2 it cannot be asked here.\n\
         description=$(mktemp) || exit 2\ntrap 'rm -f \"$description\"' EXIT\ncat >\"$description\" <<'END'\n{description}\nEND\n\
         \"${{CNI_CONFORMANCE:-cni-conformance}}\" --level quality --exactly --only {check} --limit {} \\\n    \
         --describe \"$description\" --plugin \"$PLUGIN\" --path \"$PLUGINS\"\nstatus=$?\n[ \"$status\" -le 1 ] || exit 2\nexit \"$status\"\n",
        settings.limit.as_secs()
    )
}
