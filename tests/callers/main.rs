//! The plugins under the programs that call them on a node, at the real default paths: see
//! `node.rs`. scripts/callers builds those programs; a test whose caller is not there is skipped.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

mod admission;
mod api;
mod cgroups;
mod containerd;
mod migration;
mod multus;
mod node;
mod objects;
mod ocicni;
mod podman;
mod thick;
mod upstream;
mod whereabouts;
