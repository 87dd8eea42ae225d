//! railctl: all that a person types at a node's rails, and the planner of a fabric. What runs at
//! the start of a pod is in the crate [`rail_cni`], and this crate stands on it.
//!
//! | module | content |
//! | --- | --- |
//! | [`commands`] | the verbs: `status`, `check`, `doctor`, `wait`, `cables`, `discover`, `preflight`, `vfs`, `reap`, `lint`, `plan`, `import`, `leases`, `lease`, `release`, `env` |
//! | [`plan`] | the plan of a fabric: its sources and targets |
//! | `netplan` | which interfaces of a host are rails, by its netplan files |
//! | `store` | the write side of the store: all changes of a plan, or none |
//! | [`document`] | files that people write, YAML or JSON, with the line of everything |
//! | `html` | pages for a browser: escaping, style, tables |
//! | [`output`], `progress` | what the commands print: tables, JSON, exit status; a bar on a terminal |

pub mod commands;
pub mod document;
mod html;
mod netplan;
pub mod output;
pub mod plan;
mod progress;
mod store;
