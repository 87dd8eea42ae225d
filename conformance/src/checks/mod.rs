//! The checks: what each asks, which items of docs/cni-contract.md it judges, and how binding they are.

mod add;
mod check;
mod configuration;
mod del;
mod delegation;
mod environment;
mod parallel;
mod process;
mod result;
mod space;
mod status_gc;
mod sweep;
mod version;

use serde::Serialize;

use crate::world::{Stop, World};

/// How binding it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
pub enum Level {
    /// The specification demands it.
    #[serde(rename = "MUST")]
    Must,
    /// The specification recommends it.
    #[serde(rename = "SHOULD")]
    Should,
    /// Runtimes rely on it, or a node survives by it.
    #[serde(rename = "quality")]
    Quality,
}

/// One question to a plugin.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// The items of docs/cni-contract.md that it judges.
    pub items: &'static [u32],
    /// How binding they are.
    pub level: Level,
    /// What has to hold.
    pub asks: &'static str,
    /// How many attachments it has at the same time.
    pub attachments: usize,
    /// Finds out.
    pub run: fn(&World<'_>) -> Result<(), Stop>,
}

/// All checks, in the order of the contract.
pub fn all() -> Vec<Check> {
    [
        process::CHECKS,
        environment::CHECKS,
        configuration::CHECKS,
        version::CHECKS,
        add::CHECKS,
        result::CHECKS,
        del::CHECKS,
        check::CHECKS,
        status_gc::CHECKS,
        delegation::CHECKS,
        parallel::CHECKS,
        space::CHECKS,
        sweep::CHECKS,
    ]
    .concat()
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Level::Must => "MUST",
            Level::Should => "SHOULD",
            Level::Quality => "quality",
        })
    }
}

/// Shortens the tables of checks.
const fn check(
    name: &'static str,
    items: &'static [u32],
    level: Level,
    asks: &'static str,
    run: fn(&World<'_>) -> Result<(), Stop>,
) -> Check {
    Check { name, items, level, asks, attachments: 1, run }
}

impl Check {
    /// The same with so many attachments at the same time. It is left out where the pool or the devices of the description do
    /// not suffice for them.
    const fn with_attachments(self, attachments: usize) -> Check {
        Check { attachments, ..self }
    }
}

use Level::{Must, Quality, Should};
