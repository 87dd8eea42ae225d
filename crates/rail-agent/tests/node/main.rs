//! The real rail-agent on a node in namespaces, with the real plugins at their default paths, and
//! an API server of some lines.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

mod api;
mod dranet;
mod install;
mod node;
mod real;
mod run;
