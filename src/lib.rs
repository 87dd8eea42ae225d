//! rail-cni: the CNI plugins of a GPU cluster's rails. `rail-cni` moves a device of the host into a pod and makes
//! it a rail; `rail-ipam` leases the rail's address. Each executable is a few lines over this crate, and what people type is in
//! the crate railctl.
//!
//! The modules, from what is called to what is used. A module uses those below it and those of its own line, but
//! [`attach`] and [`ipam`] do not know each other: `tests/layers.rs` holds that. ARCHITECTURE.md has the picture, the way of an ADD and of a DEL, and where the state is.
//!
//! | module | what is there |
//! | --- | --- |
//! | [`attach`] | rail-cni: the story of a device, in ADD, DEL, CHECK, STATUS and GC |
//! | [`ipam`] | rail-ipam: the story of an address: its configuration, leases, and the addresses of pods whose leases somebody removed |
//! | [`pool`] | what a pool and a node's allocation are, and what the store on disk says |
//! | [`node`] | node.json, the only source of paths, and whether the run directory is the host's |
//! | [`cni`] | the protocol: [`cni::main`] is the whole life of a plugin's process, [`cni::Plugin`] its verbs; environment, keys, results, calls of other plugins |
//! | [`every_netns`] | all network namespaces of the node, one after the other |
//! | [`netns`] | one network namespace: opening it, entering it, telling one from another, and whether it lives |
//! | [`sysfs`] | PCI functions, PFs and VFs, auxiliary devices |
//! | [`confine`] | what a call may do, said to the kernel: seccomp, Landlock |
//! | [`files`] | directories without links, atomic writes, locks with a deadline |
//! | [`cluster_networks`] | networks of Services and pods, which no route of a rail may cover |
//! | `calls` | one line for every call that ended, for the agent of the node |
//! | [`log`] | stderr and a file |
//! | [`nearest`] | what a mistyped key may have meant |
//! | [`fault`] | what is wrong with a file: where, at which key, what, and what to do |
//! | [`watchdog`] | ends a call that hangs |
//! | [`error`] | errors with a code of CNI; `fail!` and `failure!`, used everywhere |

pub mod attach;
mod calls;
pub mod cluster_networks;
pub mod cni;
pub mod confine;
pub mod error;
pub mod every_netns;
pub mod fault;
pub mod files;
pub mod ipam;
pub mod log;
pub mod nearest;
pub mod netns;
pub mod node;
pub mod pool;
pub mod sysfs;
pub mod watchdog;
