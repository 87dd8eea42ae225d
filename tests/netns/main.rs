//! The real executables in throw-away network namespaces. `scripts/test` runs these as root and in
//! a user namespace. Items are those of tests/contract-items.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

mod attach;
mod badinput;
#[path = "../bpf.rs"]
mod bpf;
mod calls;
mod clock;
mod confine;
mod contract;
mod emptied;
mod errno;
mod failures;
mod free;
mod frugal;
mod harness;
mod hidden;
mod host_address;
mod infiniband;
mod inherit;
mod interleave;
mod ipam;
mod killsweep;
mod liveness;
mod log;
mod operator;
mod owed;
mod place;
mod planes;
mod probe;
mod programs;
mod rails;
mod result;
mod sandbox;
mod schedule;
mod skew;
mod soak;
mod store;
mod tenant;
mod trace;
mod tracer;
mod traces;
mod upgrade;
mod watchdog;
