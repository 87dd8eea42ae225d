//! The real executables in throw-away network namespaces. `scripts/test` runs these as root and in a user
//! namespace.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod attach;
mod badinput;
mod contract;
mod failures;
mod harness;
mod ipam;
mod killsweep;
mod operator;
mod probe;
mod rails;
mod result;
mod store;
mod trace;
