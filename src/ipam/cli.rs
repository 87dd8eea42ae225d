//! The operator's commands.

use std::process::ExitCode;

/// Runs the command in the arguments.
pub fn run() -> ExitCode {
    ExitCode::FAILURE
}
