//! The output of `plan`, `import` and `lease` for a program when they refuse: the reason in one
//! word, and the facts.

use anyhow::{Error, Result};
use serde_json::{Value, json};

use super::change::{Obstacle, Outside, Taken};
use crate::output::{Output, pretty, print};
use rail_cni::error::{Code, code_of};
use rail_plan::refusal::Lines;

/// Prints why a command that a program runs has failed, and leaves the error for people to the
/// caller.
pub fn told<T>(done: Result<T>, output: Output) -> Result<T> {
    if let (Err(error), Output::Json) = (&done, output) {
        print(&pretty(&json!({ "refused": refused(error) })))?;
    }
    done
}

fn refused(error: &Error) -> Value {
    let mut refused = json!({"reason": reason(error), "message": format!("{error:#}")});
    match error.downcast_ref() {
        Some(Obstacle::Held(leases)) => {
            refused["leases"] = leases.iter().map(Outside::json).collect();
        }
        Some(Obstacle::Taken(taken)) => {
            refused["taken"] = taken.iter().map(Taken::json).collect();
        }
        None => (),
    }
    refused
}

/// The reason, by the program's reaction to it.
fn reason(error: &Error) -> &'static str {
    match error.downcast_ref() {
        Some(Obstacle::Held(_)) => return "held",
        Some(Obstacle::Taken(_)) => return "taken",
        None => (),
    }
    match code_of(error) {
        _ if error.is::<Lines>() => "invalid",
        code if code == Code::InvalidConfig as u32 => "invalid",
        code if code == Code::TryAgain as u32 => "held",
        code if code == Code::NotAvailable as u32 => "no-pool",
        _ => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;
    use rail_cni::failure;
    use rail_cni::fault::Fault;

    #[test]
    fn a_program_learns_from_one_word_what_to_do() {
        let faults = || rail_plan::refused(vec![Fault::whole("a"), Fault::whole("b")]);
        for (error, expected) in [
            (Obstacle::Held(Vec::new()).into(), "held"),
            (Obstacle::Taken(Vec::new()).into(), "taken"),
            (
                Err::<(), _>(faults())
                    .context("nothing was imported")
                    .unwrap_err(),
                "invalid",
            ),
            (failure!(InvalidConfig, "x"), "invalid"),
            (failure!(TryAgain, "x"), "held"),
            (failure!(NotAvailable, "x"), "no-pool"),
            (std::io::Error::other("x").into(), "failed"),
        ] {
            assert_eq!(refused(&error)["reason"], expected, "{error:#}");
        }
    }
}
