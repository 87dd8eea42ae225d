//! railctl: the rails of this node, for people. See the crate's documentation.

use std::process::ExitCode;

fn main() -> ExitCode {
    railctl::commands::run()
}
