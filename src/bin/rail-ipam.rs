//! rail-ipam: the CNI plugin that leases a rail's address, and its commands.

use std::process::ExitCode;

use rail_cni::ipam::Ipam;
use rail_cni::{cni, commands};

fn main() -> ExitCode {
    cni::main(&Ipam, commands::rail_ipam::run)
}
