//! The output of the commands: tables for people, JSON for programs, and an exit status for
//! scripts.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use comfy_table::{Table, presets};
use serde_json::Value;
use terminal_size::{Width, terminal_size_of};
use textwrap::{Options, WordSeparator, WordSplitter};

use rail_cni::fault::SHOWN;
use rail_cni::log::printable;
use rail_cni::watchdog;
use rail_plan::refusal::Lines;

/// The name of the program.
pub const PROGRAM: &str = "railctl";

/// The value of `--output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table for people.
    Table,
    /// JSON for programs.
    Json,
}

/// Parses the arguments. Prints a usage error or the help, and then returns the exit status.
pub fn parse<C: Parser>(command: clap::Command) -> Result<C, ExitCode> {
    let matches = command.try_get_matches();
    let arguments = matches.and_then(|matches| C::from_arg_matches(&matches));
    arguments.map_err(|error| {
        let _ = error.print();
        if error.use_stderr() {
            ExitCode::from(2)
        } else {
            ExitCode::SUCCESS
        }
    })
}

/// Prints the error of a command, and returns the exit status.
pub fn end(done: Result<ExitCode>) -> ExitCode {
    match done {
        Ok(status) => status,
        Err(error) => {
            let text = format!("{error:#}");
            if error.is::<Lines>() {
                let mut lines = text.lines();
                say(lines.next().unwrap_or_default());
                for line in lines {
                    let line = wrapped(line, INDENT, width_of(io::stderr()));
                    let _ = io::stderr().lock().write_all(line.as_bytes());
                }
            } else {
                say(&text);
            }
            ExitCode::FAILURE
        }
    }
}

/// A message of a report, about one thing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finding {
    /// Severity or verdict.
    pub kind: String,
    /// Position in a file, or name of a check.
    pub place: String,
    /// The thing, such as a rail or a network; empty where the text is about none.
    pub subject: String,
    /// The finding.
    pub text: String,
    /// The remedy.
    pub remedy: Option<String>,
}

/// Findings that are alike become one from this number on.
const MERGED_FROM: usize = 3;

/// Merges findings that differ in place and subject alone, at the place of the first: its subject
/// becomes `8 networks (rail-0, rail-1, ...)`.
pub fn merged(findings: Vec<Finding>, noun: &str) -> Vec<Finding> {
    let mut groups: Vec<Vec<Finding>> = Vec::new();
    let mut group_of: HashMap<(String, String, Option<String>), usize> = HashMap::new();
    for finding in findings {
        if finding.subject.is_empty() {
            groups.push(vec![finding]);
            continue;
        }
        let key = (
            finding.kind.clone(),
            finding.text.clone(),
            finding.remedy.clone(),
        );
        let group = *group_of.entry(key).or_insert(groups.len());
        match groups.get_mut(group) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    let mut merged = Vec::new();
    for mut group in groups {
        let mut subjects: Vec<String> = Vec::new();
        for finding in &group {
            if !subjects.contains(&finding.subject) {
                subjects.push(finding.subject.clone());
            }
        }
        if subjects.len() >= MERGED_FROM {
            group.truncate(1);
            for finding in &mut group {
                finding.subject = several(&subjects, noun);
            }
        }
        merged.append(&mut group);
    }
    merged
}

/// `8 rails (0, 1, 2, 3, 4, 5, 6, 7)`.
fn several(subjects: &[String], noun: &str) -> String {
    let title = format!("{noun} ");
    let mut names = Vec::new();
    for subject in subjects.iter().take(SHOWN) {
        names.push(subject.strip_prefix(&title).unwrap_or(subject));
    }
    if subjects.len() > SHOWN {
        names.push("...");
    }
    format!("{} {noun}s ({})", subjects.len(), names.join(", "))
}

/// Indent of the lines behind the first of a message.
const INDENT: &str = "    ";

/// A message for stdout, broken at the width of a terminal.
pub fn line(text: &str) -> String {
    indented_line(text, INDENT)
}

/// Like [`line()`], with another indent of the lines behind the first.
pub fn indented_line(text: &str, indent: &str) -> String {
    wrapped(text, indent, width_of(io::stdout()))
}

/// The columns of a terminal; `None` for a file or a pipe, where grep wants whole lines.
fn width_of(stream: impl AsFd) -> Option<usize> {
    let (Width(columns), _) = terminal_size_of(stream)?;
    (columns > 0).then_some(columns.into())
}

/// The text without control characters, in lines of at most `width` columns. A command in
/// backquotes stays in one line, so that it can be copied.
fn wrapped(text: &str, indent: &str, width: Option<usize>) -> String {
    let text = printable(text);
    let Some(width) = width else {
        return text + "\n";
    };
    // A no-break space in the text itself would come back as a space, which looks alike.
    let mut whole_commands = String::new();
    for (number, part) in text.split('`').enumerate() {
        if number > 0 {
            whole_commands.push('`');
        }
        let is_command = number % 2 == 1;
        if is_command {
            whole_commands += &part.replace(' ', NO_BREAK);
        } else {
            whole_commands += part;
        }
    }
    let options = Options::new(width)
        .subsequent_indent(indent)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(&whole_commands, options).replace(NO_BREAK, " ") + "\n"
}

/// A space at which no line ends.
const NO_BREAK: &str = "\u{a0}";

/// A table whose columns are as wide as their widest cell. An empty cell is a dash, so that scripts
/// can count columns.
pub fn table(headers: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let clean = |cell: String| {
        if cell.is_empty() {
            "-".to_owned()
        } else {
            printable(&cell)
        }
    };
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(headers);
    table.add_rows(rows.map(|row| row.into_iter().map(clean).collect::<Vec<_>>()));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt() + "\n"
}

/// JSON with a line for each key. A text of a tenant in it controls no terminal.
pub fn pretty(json: &Value) -> String {
    rail_cni::log::escaped_json(&format!("{json:#}\n"))
}

/// Prints to stdout. `println!` panics if the reader is gone; this ignores it.
pub fn print(text: &str) -> Result<()> {
    watchdog::end();
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Ends a command that hangs and changes nothing: a monitor that runs it every minute must get an
/// answer.
pub fn watch() {
    watchdog::start(move |why: String| say(&format!("this {why}")));
    watchdog::allow(watchdog::LIMIT);
}

/// Prints a message to stderr.
pub fn say(text: &str) {
    let message = format!("{PROGRAM}: {text}");
    let lines = wrapped(&message, INDENT, width_of(io::stderr()));
    let _ = io::stderr().lock().write_all(lines.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_controls_no_terminal_and_says_the_same() {
        let value = serde_json::json!({"a\u{9b}b": ["\u{7f}\u{61c}\u{200f}\u{2028}\u{202e}\u{2069}\u{1b}\n é"]});
        let text = pretty(&value);
        assert_eq!(
            text.matches(|letter| letter != '\n' && rail_cni::log::is_unprintable(letter))
                .count(),
            0,
            "{text}"
        );
        assert_eq!(
            (
                serde_json::from_str::<Value>(&text).unwrap(),
                text.lines().count()
            ),
            (value, 5)
        );
    }

    #[test]
    fn a_table_is_aligned_has_no_holes_and_no_control_characters() {
        let rows = [
            vec!["é".to_owned(), String::new()],
            vec!["long".to_owned(), "a\x1bb".to_owned()],
        ];
        assert_eq!(
            table(&["A", "B"], rows.into_iter()),
            "A     B\né     -\nlong  a?b\n"
        );
    }

    fn finding(place: &str, subject: &str, text: &str) -> Finding {
        Finding {
            kind: "error".to_owned(),
            place: place.to_owned(),
            subject: subject.to_owned(),
            text: text.to_owned(),
            remedy: None,
        }
    }

    #[test]
    fn findings_that_are_alike_become_one() {
        let mut findings = vec![finding("f:1", "", "no name"), finding("f:1", "", "no name")];
        for rail in 0..12 {
            findings.push(finding(
                &format!("f:{rail}"),
                &format!("rail {rail}"),
                "no link",
            ));
        }
        findings.push(finding("f:40", "rail 1", "no VFs"));
        findings.push(finding("f:41", "rail 2", "no VFs"));
        let mut lines = Vec::new();
        for Finding {
            place,
            subject,
            text,
            ..
        } in merged(findings, "rail")
        {
            lines.push(format!("{place}: {subject}: {text}"));
        }
        assert_eq!(
            lines,
            [
                "f:1: : no name",
                "f:1: : no name",
                "f:0: 12 rails (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...): no link",
                "f:40: rail 1: no VFs",
                "f:41: rail 2: no VFs",
            ]
        );
    }

    #[test]
    fn lines_are_broken_on_a_terminal_and_commands_are_not() {
        let text = "the link of rail 3 is down: run `ip link set ens3f0 up`, or else";
        assert_eq!(wrapped(text, "  ", None), format!("{text}\n"));
        assert_eq!(
            wrapped(text, "  ", Some(30)),
            "the link of rail 3 is down:\n  run `ip link set ens3f0 up`,\n  or else\n"
        );
    }
}
