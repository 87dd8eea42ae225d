//! rail-ipam: leases the address of a rail. See the crate's documentation.

use std::process::ExitCode;

use rail_cni::cni;
use rail_cni::ipam::Ipam;

fn main() -> ExitCode {
    cni::main(&Ipam::default())
}
