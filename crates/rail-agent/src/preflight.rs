//! `railctl preflight` on a schedule, on a node without pods that have rails: it takes the devices
//! for some seconds, and gives them back as soon as a pod wants one.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use crate::ready::Condition;
use crate::report::{Preflight, TriedRail};
use crate::text::clean;

/// The type of the condition that says what the last tests of the rails found.
pub const KIND: &str = "RailsPreflight";
/// Railctl's prefix for the networks of its ADDs, without the number of the rail.
pub const NETWORK: &str = "preflight-rail-";
const FINE: &str = "fine";
const WRONG: &str = "wrong";

/// The last result of each rail that could be tested, with its time.
#[derive(Debug, Default)]
pub struct Tested(BTreeMap<u8, TriedRail>, Option<Timestamp>);

impl Tested {
    /// Takes over what is new: of a rail that a pod had meanwhile, the former result stays. Returns
    /// whether all rails were tested.
    pub fn add(&mut self, preflight: Preflight, now: Timestamp) -> bool {
        let mut is_whole = true;
        for rail in preflight.rails {
            match rail.state.as_str() {
                FINE | WRONG => {
                    self.1 = Some(now);
                    self.0.insert(rail.rail, rail);
                }
                "no-pool" => drop(self.0.remove(&rail.rail)),
                _ => is_whole = false,
            }
        }
        is_whole
    }

    /// The rails, and whether each was fine.
    pub fn rails(&self) -> impl Iterator<Item = (&TriedRail, bool)> {
        self.0.values().map(|rail| (rail, rail.state == FINE))
    }

    /// Time of the last test of a rail.
    pub fn last(&self) -> Option<Timestamp> {
        self.1
    }

    /// The condition [`KIND`]; none before anything was tested.
    pub fn condition(&self) -> Option<Condition> {
        let last = self.1?.round(k8s_openapi::jiff::Unit::Second).ok()?;
        let wrong: Vec<_> = self
            .rails()
            .filter(|(_, is_fine)| !is_fine)
            .map(|(rail, _)| rail)
            .collect();
        let told = wrong.iter().map(|rail| {
            let problems: Vec<_> = rail
                .problems
                .iter()
                .map(|problem| problem.text.as_str())
                .collect();
            format!("rail {}: {}", rail.rail, problems.join(", "))
        });
        let (reason, message) = match wrong.is_empty() {
            true => (
                "AllPassed",
                format!(
                    "{} rails reach their leaves with full-size packets",
                    self.0.len()
                ),
            ),
            false => ("RailsFailed", told.collect::<Vec<_>>().join("; ")),
        };
        let message = clean(&format!("tested at {last}: {message}"));
        Some(Condition {
            kind: KIND,
            is_true: wrong.is_empty(),
            reason: reason.to_owned(),
            message,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn said(rails: &Value) -> Preflight {
        serde_json::from_value(json!({ "rails": rails })).unwrap()
    }

    #[test]
    fn a_rail_that_a_pod_had_meanwhile_keeps_its_former_result() {
        let now = "2026-01-02T03:04:05.6Z".parse().unwrap();
        let mut tested = Tested::default();
        assert!(!tested.add(
            said(&json!([{"rail": 0, "state": "in-use", "problems": []}])),
            now
        ));
        assert!(tested.condition().is_none(), "nothing was tested");
        let wrong = json!([{"rail": 0, "state": "fine", "problems": []},
            {"rail": 1, "state": "wrong", "problems": [{"text": "no carrier"}]}, {"rail": 2, "state": "no-pool"}]);
        assert!(tested.add(said(&wrong), now));
        let condition = tested.condition().unwrap();
        assert_eq!(
            (condition.is_true, condition.reason.as_str()),
            (false, "RailsFailed")
        );
        assert!(
            condition
                .message
                .ends_with("2026-01-02T03:04:06Z: rail 1: no carrier"),
            "{condition:?}"
        );
        let later = "2026-01-02T04:00:00Z".parse().unwrap();
        assert!(!tested.add(
            said(&json!([{"rail": 1, "state": "in-use", "why": "a pod"}])),
            later
        ));
        assert_eq!(tested.condition().unwrap(), condition);
        assert!(tested.add(said(&json!([{"rail": 1, "state": "fine"}])), later));
        let condition = tested.condition().unwrap();
        assert!(
            condition.is_true && condition.reason == "AllPassed",
            "{condition:?}"
        );
        assert!(
            condition.message.contains("04:00:00Z: 2 rails"),
            "{condition:?}"
        );
    }
}
