//! Attaches a rail to a pod, or, under the name rail-ipam, leases the rail's address. See the
//! crate's documentation.

use std::path::Path;
use std::process::ExitCode;

use rail_cni::attach::Attach;
use rail_cni::cni;
use rail_cni::ipam::{self, Ipam};

fn main() -> ExitCode {
    let program = std::env::args_os().next().unwrap_or_default();
    if ipam::is_named_by(Path::new(&program)) {
        cni::main(&Ipam::default())
    } else {
        cni::main(&Attach)
    }
}
