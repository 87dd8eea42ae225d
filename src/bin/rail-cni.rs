//! Attaches a rail to a pod. See the crate's documentation.

use std::process::ExitCode;

fn main() -> ExitCode {
    rail_cni::cni::main(&rail_cni::attach::Attach, rail_cni::attach::cli)
}
