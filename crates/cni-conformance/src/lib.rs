//! cni-conformance: judges any CNI plugin, main, meta or IPAM, by the CNI specification.
//!
//! A [`description`] says in a few lines what the plugin is and which devices it needs. Each of the
//! [`checks`] runs in a [`world`] of its own: a network and a mount namespace with empty state
//! directories, the devices, and pods. The plugin is [`call`]ed there as a runtime calls it, with a
//! program [`beside`] it if it needs one. [`report`] writes what was seen, [`replay`] a script for each failure, and [`baseline`] what is
//! new.

pub mod baseline;
pub mod beside;
pub mod call;
pub mod check;
pub mod checks;
pub mod description;
pub mod look;
pub mod replay;
pub mod report;
pub mod run;
pub mod sandbox;
pub mod settings;
pub mod value;
pub mod world;

/// Ends a check if what is asked does not hold. In a script that replays it, a condition of bash
/// says the same.
#[macro_export]
macro_rules! ensure {
    ($world:expr, $holds:expr, $shell:expr, $($seen:tt)+) => {
        if !$holds {
            return Err($world.fails_by($shell, format!($($seen)+)));
        }
    };
}
