//! rail-cni: the CNI plugins of a GPU cluster's rails.

pub mod cni;
pub mod files;
pub mod ipam;
pub mod log;
pub mod netns;
pub mod node;
