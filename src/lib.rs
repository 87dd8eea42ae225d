//! rail-cni: the CNI plugins of a GPU cluster's rails. `rail-cni` moves a device of the host into a
//! pod and makes it a rail; `rail-ipam` leases the rail's address. Each is an executable of a few
//! lines; commands for people are in the crate railctl.
//!
//! The modules, from what is called to what is used. A module uses those below it and those of its
//! own line; `tests/layers.rs` checks that. ARCHITECTURE.md has the picture and the journal of an
//! attachment.
//!
//! | module | content |
//! | --- | --- |
//! | [`attach`] | rail-cni: ADD, DEL, CHECK, STATUS and GC of a device, by a journal of steps |
//! | [`ipam`] | rail-ipam: configuration, leases, and recovery of addresses whose leases were removed |
//! | [`device`] | the devices of the host: which one a network means, and whether the host can do without it |
//! | [`netconf`] | what a network of rail-cni asks for |
//! | [`pool`] | pools, allocations of nodes, and the store on disk |
//! | [`node`] | node.json, the only source of paths, and whether the run directory is the host's |
//! | [`cni`] | the protocol: [`cni::main`] runs a plugin's process, [`cni::Plugin`] has its verbs; environment,
//! keys, results, calls of other plugins |
//! | [`neighbours`] | ARP and neighbour discovery in a pod |
//! | [`every_netns`] | all network namespaces of the node, one after the other |
//! | [`netns`] | one network namespace: opening, entering and comparing it, and whether it is alive |
//! | [`sysfs`] | PCI functions, PFs and VFs, auxiliary devices |
//! | `rdma_cm` | the ToS and the traffic class of an RDMA device |
//! | [`confine`] | what the kernel allows a call to do: seccomp |
//! | [`files`] | directories without links, atomic writes, locks with a deadline |
//! | [`cluster_networks`] | networks of Services and pods, which no route of a rail may cover |
//! | `calls` | one line per finished call, for rail-agent |
//! | [`log`] | stderr and a file |
//! | [`nearest`] | what a mistyped key may have meant |
//! | [`fault`] | what is wrong with a file: where, at which key, what, and what to do |
//! | [`watchdog`] | ends a call that hangs |
//! | [`error`] | errors with a CNI code; `fail!` and `failure!` |

pub mod attach;
mod calls;
pub mod cluster_networks;
pub mod cni;
pub mod confine;
pub mod device;
pub mod error;
pub mod every_netns;
pub mod fault;
pub mod files;
pub mod ipam;
pub mod log;
pub mod nearest;
pub mod neighbours;
pub mod netconf;
pub mod netns;
pub mod node;
pub mod pool;
mod rdma_cm;
pub mod sysfs;
pub mod watchdog;
