//! rail-ipam: the CNI plugin that leases a rail's address, and its commands.

use std::process::ExitCode;

use rail_cni::ipam::{Ipam, cli};

fn main() -> ExitCode {
    rail_cni::cni::main(&Ipam, cli::run)
}
