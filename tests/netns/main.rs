//! The real executables in throw-away network namespaces. `scripts/test` runs these as root and in a user
//! namespace.
#![allow(missing_docs)]

mod attach;
mod badinput;
mod contract;
mod failures;
mod harness;
mod ipam;
mod killsweep;
mod rails;
mod result;
mod trace;
