//! The output of the commands: tables for people, JSON for programs, and an exit status for
//! scripts.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use comfy_table::{Table, presets};
use serde_json::Value;

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
    done.unwrap_or_else(|error| {
        let text = format!("{error:#}");
        match text
            .split_once('\n')
            .filter(|_| error.downcast_ref::<Lines>().is_some())
        {
            Some((first, more)) => {
                say(first);
                more.lines()
                    .for_each(|line| drop(writeln!(io::stderr().lock(), "{}", printable(line))));
            }
            None => say(&text),
        }
        ExitCode::FAILURE
    })
}

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
    let _ = writeln!(io::stderr().lock(), "{PROGRAM}: {}", printable(text));
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
}
