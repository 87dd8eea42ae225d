//! What the commands print: tables for people, JSON for programs, and an exit status that a script can use.

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::LazyLock;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use serde_json::Value;

use crate::watchdog;

/// The release, and the commit that `scripts/build` named: `0.1.0 (71c319b3c2d1)`.
pub static VERSION: LazyLock<String> = LazyLock::new(|| {
    let commit = option_env!("RAIL_CNI_COMMIT").filter(|commit| !commit.is_empty());
    format!("{} ({})", env!("CARGO_PKG_VERSION"), commit.unwrap_or("commit unknown"))
});

/// `--output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Reads the arguments; what is wrong with them, or the help that they ask for, is printed.
pub fn parse<C: Parser>() -> Result<C, ExitCode> {
    C::try_parse().map_err(|error| {
        let _ = error.print();
        if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS }
    })
}

/// An error that takes several lines. None of them has a line feed of its own, whoever wrote what is in it.
#[derive(Debug)]
pub struct Lines(pub Vec<String>);

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(|line| printable(line)).collect::<Vec<_>>().join("\n"))
    }
}

impl std::error::Error for Lines {}

/// The exit status of a command, when what failed has been said.
pub fn end(program: &str, done: Result<ExitCode>) -> ExitCode {
    done.unwrap_or_else(|error| {
        let text = format!("{error:#}");
        match text.split_once('\n').filter(|_| error.downcast_ref::<Lines>().is_some()) {
            Some((first, more)) => {
                say(program, first);
                more.lines().for_each(|line| drop(writeln!(io::stderr().lock(), "{}", printable(line))));
            }
            None => say(program, &text),
        }
        ExitCode::FAILURE
    })
}

/// Columns as wide as their widest cell; an empty one is a dash, so that scripts can count.
pub fn table(headers: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let headers = headers.iter().map(|header| (*header).to_owned()).collect();
    let clean = |cell: String| if cell.is_empty() { "-".to_owned() } else { printable(&cell) };
    let rows: Vec<Vec<String>> = std::iter::once(headers)
        .chain(rows)
        .map(|row: Vec<String>| row.into_iter().map(clean).collect())
        .collect();
    let mut widths = vec![0; rows[0].len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// What a runtime or a tenant wrote must not steer a terminal.
pub fn printable(text: &str) -> String {
    text.replace(crate::log::is_unprintable, "?")
}

/// JSON, a line for each key.
pub fn pretty(json: &Value) -> String {
    format!("{json:#}\n")
}

/// Not `println!`, which panics when the reader is gone: then nobody is left to be told.
pub fn print(text: &str) -> Result<()> {
    watchdog::end();
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Ends a command that only looks if it hangs: who asks a node's state every minute must get an answer.
pub fn watch(program: &'static str) {
    watchdog::start(move |why: String| say(program, &format!("this {why}")));
    watchdog::allow(watchdog::LIMIT);
}

/// A line beside the answer, on stderr.
pub fn say(program: &str, text: &str) {
    let _ = writeln!(io::stderr().lock(), "{program}: {}", printable(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_has_no_holes_and_no_control_characters() {
        let rows = [vec!["é".to_owned(), String::new()], vec!["long".to_owned(), "a\x1bb".to_owned()]];
        assert_eq!(table(&["A", "B"], rows.into_iter()), "A     B\né     -\nlong  a?b\n");
    }
}
