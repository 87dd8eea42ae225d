//! rail-cni: the CNI plugins of a GPU cluster's rails.

pub mod attach;
pub mod cni;
pub mod files;
pub mod ipam;
pub mod log;
pub mod netlink;
pub mod netns;
pub mod node;
pub mod sysfs;
