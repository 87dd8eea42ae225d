//! The list of the checks.

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
mod version;

use crate::check::Check;

/// Which checks there are: raised with each check that is new, gone, or asks something else.
pub const CHECK_SET: u32 = 3;

/// Names of checks that are gone, or ask something else by now under another name. None is used
/// again.
pub const RETIRED: &[&str] = &[
    "addresses_are_whole",
    "cni_path_is_required",
    "del_takes_any_previous_result",
    "gc_and_status_need_no_container",
    "gc_asks_the_ipam",
    "gc_reads_the_key_of_libcni",
    "interface_is_of_the_pod",
    "ipam_gets_the_same",
    "killed_add_is_added_again",
    "killed_add_is_put_right",
    "killed_child_of_add_is_put_right",
    "killed_child_of_del_is_put_right",
    "killed_del_is_put_right",
    "missing_variables_are_named",
    "status_asks_the_ipam",
];

/// All checks, in the order of the specification.
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
    ]
    .concat()
}
