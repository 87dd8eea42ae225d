//! All that a person types: the commands of both programs. Each is read from its `run` function; what a runtime calls is
//! in [`crate::attach`] and [`crate::ipam`].

mod change;
mod check;
mod doctor;
mod import;
mod inventory;
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
