//! The executable rail-agent.

use std::process::ExitCode;

fn main() -> ExitCode {
    rail_agent::run()
}
