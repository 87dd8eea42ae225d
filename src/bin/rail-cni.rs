//! rail-cni: attaches a rail to a pod. See the crate's documentation.

use std::process::ExitCode;

use rail_cni::attach::Attach;
use rail_cni::cni;

fn main() -> ExitCode {
    cni::main(&Attach)
}
