//! railctl: the commands of people for the rails of a node. The planner of a fabric is the crate
//! [`rail_plan`], the CNI plugins are the crate [`rail_cni`]; this crate uses both.
//!
//! | module | content |
//! | --- | --- |
//! | [`commands`] | the verbs: `status`, `check`, `doctor`, `wait`, `cables`, `discover`, `preflight`, `vfs`, `reap`, `lint`, `plan`, `import`, `leases`, `lease`, `release`, `env` |
//! | `store` | the write side of the store: all changes of a plan, or none |
//! | [`output`], `progress` | what the commands print: tables, JSON, exit status; a bar on a terminal |

pub mod commands;
pub mod output;
mod progress;
mod store;
