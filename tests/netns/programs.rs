//! The executables that are tested.

use std::path::{Path, PathBuf};

/// rail-cni.
pub const RAIL_CNI: &str = env!("CARGO_BIN_EXE_rail-cni");

/// rail-ipam.
pub const RAIL_IPAM: &str = env!("CARGO_BIN_EXE_rail-ipam");

/// The tool for people, which is a package of its own beside the plugins.
pub fn railctl() -> PathBuf {
    let path = Path::new(RAIL_CNI).with_file_name("railctl");
    assert!(
        path.exists(),
        "no {}: run `cargo build --package railctl` first",
        path.display()
    );
    path
}
