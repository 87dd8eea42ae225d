//! The plan of a fabric: the prefix of each node on each rail, and the leaf port of its cable.
//!
//! A plan is a list of pools as NVIDIA's CIDRPools describe them. It is read from one of several
//! sources, checked as a whole, and written as one of several targets. Begin with [`Plan`].
//!
//! | module | content |
//! | --- | --- |
//! | [`topology`], [`fabric`], [`netplan`], [`manifest`] | sources: topology.json and topology.dot, the fabric file, netplan files of hosts, CIDRPools |
//! | [`scheme`], [`pattern`] | the address formulas; names and prefixes with numbers in them |
//! | [`manifest`], [`nads`], [`nics`], [`netplan`], [`template`], [`csv`], [`cables`], [`html`], [`volcano`], [`slurm`] | targets: CIDRPools, networks, NicClusterPolicies, netplan files, switches, a table, JSON, a page, schedulers |
//! | `plan` | the plan with its checks |
//! | [`networks`] | the check against the cluster's own networks |
//! | [`refusal`] | faults and doubts, which refuse a plan |
//! | [`leaves`] | leaves with their ports, as templates have them |
//! | [`groups`], `rails`, [`natural`] | nodes by their leaves; the rail of a pool; numbers in names |
//! | [`document`] | files that people write, YAML or JSON, with the line of each value |
//! | [`page`], [`yaml`] | how pages for a browser and YAML are written |

pub mod cables;
pub mod csv;
pub mod document;
pub mod fabric;
pub mod groups;
pub mod html;
pub mod leaves;
pub mod manifest;
pub mod nads;
pub mod natural;
pub mod netplan;
pub mod networks;
pub mod nics;
pub mod page;
pub mod pattern;
mod plan;
mod rails;
pub mod refusal;
pub mod scheme;
pub mod slurm;
pub mod template;
pub mod topology;
pub mod volcano;
pub mod yaml;

pub use plan::{Cable, Ethernet, File, Link, Plan, Pool, Pools, Position, is_namespace, refused};
