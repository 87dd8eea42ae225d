//! The commands that a person types, of both programs. Each has one function that runs it; [`crate::attach`]
//! and [`crate::ipam`] serve the calls of a runtime.

mod change;
mod check;
mod doctor;
mod import;
mod inventory;
mod lease;
mod lint;
mod out;
mod plan;
pub mod rail_cni;
pub mod rail_ipam;
mod reap;
mod release;
mod report;
mod show;
mod status;

/// A number with a noun: `1 VF`, `2 VFs`.
fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
