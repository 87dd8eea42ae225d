//! What is the same for all checks of a plugin, and how a check ends.

use std::path::PathBuf;
use std::time::Duration;

use crate::description::Description;

/// Why a check ended before its end.
#[derive(Clone, Debug)]
pub enum Stop {
    /// The plugin does not do what is asked; what was seen.
    Fails(String),
    /// A call did not end. On a busy machine, that says nothing unless it happens again.
    Hung(String),
    /// It cannot be asked; why.
    LeftOut(String),
    /// The plugin, or what runs beside it, cannot be executed, or a line of its description fails.
    Unusable(String),
}

/// What is the same for all checks of a plugin.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The plugin.
    pub description: Description,
    /// Its executable.
    pub program: PathBuf,
    /// CNI_PATH.
    pub path: Vec<PathBuf>,
    /// How long a call may take.
    pub limit: Duration,
    /// How long a check may take.
    pub check_limit: Duration,
    /// Are firewall rules compared? `nft` must work here.
    pub sees_firewall: bool,
    /// Did the plainest ADD change anything that the suite sees, on the host or in the pod? If not,
    /// nothing can be left or be missing.
    pub changes: bool,
    /// Did its DEL succeed?
    pub dels: bool,
}
