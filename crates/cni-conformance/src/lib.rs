//! cni-conformance: judges any CNI plugin, main, meta or IPAM, by the CNI specification.
//!
//! A [`description`] says in a few lines what the plugin is and which devices it needs. Each of the
//! [`checks`] runs in a [`world`] of its own: a network and a mount namespace with empty state
//! directories, the devices, and pods. The plugin is [`call`]ed there as a runtime calls it, with a
//! program [`beside`] it if it needs one, such as a double of an API server that keeps [`objects`].
//! [`report`] writes what was seen, [`replay`] a script for each failure, and [`baseline`] what is
//! new.

pub mod baseline;
pub mod beside;
pub mod call;
pub mod checks;
pub mod description;
pub mod objects;
pub mod replay;
pub mod report;
pub mod run;
pub mod sandbox;
pub mod tracer;
pub mod world;
