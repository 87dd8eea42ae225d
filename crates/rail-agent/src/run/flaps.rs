//! Rails whose carrier comes and goes, by the losses that the PF counts between two looks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::report::Rail;

/// Losses of the carrier within [`WINDOW`] with which a rail flaps.
const BUDGET: usize = 3;
/// Time for which a loss counts.
const WINDOW: Duration = Duration::from_secs(1800);
/// The shortest time without a loss after which a rail no longer flaps.
const MIN_QUIET: Duration = Duration::from_secs(45);
/// The kernel's name of the counter.
const COUNTER: &str = "carrier_down";

/// The losses of the carrier of each PF.
#[derive(Debug, Default)]
pub(super) struct Flaps {
    pfs: BTreeMap<String, Losses>,
}

/// A rail that has begun to flap.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Begun {
    pub(super) title: String,
    pub(super) losses: usize,
}

#[derive(Debug)]
struct Losses {
    title: String,
    counted: u64,
    times: VecDeque<Instant>,
    is_flapping: bool,
}

impl Flaps {
    /// Counts the losses since the last look. Returns the rails that flap since this look.
    pub(super) fn look(&mut self, rails: &[Rail], now: Instant) -> Vec<Begun> {
        let mut begun = Vec::new();
        for rail in rails {
            let counters = rail.pf.counted.as_ref();
            let Some(counted) = counters.and_then(|counters| counters.get(COUNTER)) else {
                continue;
            };
            let losses = self
                .pfs
                .entry(rail.pf.name.clone())
                .or_insert_with(|| Losses::new(rail, *counted));
            if losses.look(*counted, now) {
                begun.push(Begun {
                    title: losses.title.clone(),
                    losses: losses.times.len(),
                });
            }
        }
        begun
    }

    /// The PFs of the rails that flap.
    pub(super) fn pfs(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for (name, losses) in &self.pfs {
            if losses.is_flapping {
                names.insert(name.clone());
            }
        }
        names
    }

    /// Text of the condition about the rails that flap. Without numbers: each change of the text is
    /// a write.
    pub(super) fn message(&self) -> Option<String> {
        let flapping = self.pfs.values().filter(|losses| losses.is_flapping);
        let titles: Vec<&str> = flapping.map(|losses| losses.title.as_str()).collect();
        if titles.is_empty() {
            return None;
        }
        Some(format!(
            "{} lost the carrier again and again: check cable, transceiver and leaf port (`railctl cables`)",
            titles.join(", ")
        ))
    }
}

impl Losses {
    fn new(rail: &Rail, counted: u64) -> Losses {
        let title = match rail.rail {
            Some(number) => format!("rail {number} ({})", rail.pf.name),
            None => rail.pf.name.clone(),
        };
        Losses {
            title,
            counted,
            times: VecDeque::new(),
            is_flapping: false,
        }
    }

    /// Whether the rail flaps since this look. It flaps until it was quiet for twice the usual time
    /// between two losses.
    fn look(&mut self, counted: u64, now: Instant) -> bool {
        // A driver that is loaded anew counts from 0.
        let new = counted.saturating_sub(self.counted);
        self.counted = counted;
        for _ in 0..new.min(100) {
            self.times.push_back(now);
        }
        while self
            .times
            .front()
            .is_some_and(|time| now.duration_since(*time) >= WINDOW)
        {
            self.times.pop_front();
        }
        let was_flapping = self.is_flapping;
        self.is_flapping = if new > 0 {
            was_flapping || self.times.len() >= BUDGET
        } else {
            was_flapping && !self.is_quiet(now)
        };
        if was_flapping && !self.is_flapping {
            // One more loss is a new beginning.
            self.times.clear();
        }
        self.is_flapping && !was_flapping
    }

    fn is_quiet(&self, now: Instant) -> bool {
        let (Some(first), Some(last)) = (self.times.front(), self.times.back()) else {
            return true;
        };
        let gaps = u32::try_from(self.times.len() - 1).unwrap_or(u32::MAX);
        let usual_gap = last.duration_since(*first) / gaps.max(1);
        now.duration_since(*last) >= MIN_QUIET.max(usual_gap * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look each 15 seconds with the losses since the last one; below, `!` where the rail begins
    /// to flap, `~` while it does, and `.` otherwise.
    #[test]
    fn a_rail_flaps_from_the_third_loss_until_it_is_quiet_for_twice_the_usual_gap() {
        for (losses, expected) in [
            ("0000", "...."),
            ("010000", "......"),
            ("0110000", "......."),
            ("01110000", "...!~~.."),
            // The link was there at each look.
            ("0300000", ".!~~..."),
            // After the end, one loss is not yet another beginning.
            ("03000100", ".!~~...."),
            // A minute between two losses: two minutes of quiet end it.
            ("01000100010000000000", ".........!~~~~~~~..."),
        ] {
            let begun = Instant::now();
            let mut flaps = Flaps::default();
            let mut counted = 7;
            let mut told = String::new();
            for (look, new) in (0u64..).zip(losses.chars()) {
                counted += u64::from(new.to_digit(10).unwrap());
                let rail = rail(counted);
                let now = begun + Duration::from_secs(15 * look);
                let is_new = !flaps.look(&[rail], now).is_empty();
                told.push(match (is_new, flaps.pfs().is_empty()) {
                    (true, _) => '!',
                    (false, false) => '~',
                    (false, true) => '.',
                });
            }
            assert_eq!(told, expected, "{losses}");
        }
    }

    #[test]
    fn losses_before_the_agent_or_of_another_driver_do_not_count() {
        let mut flaps = Flaps::default();
        let now = Instant::now();
        assert_eq!(flaps.look(&[rail(900)], now), []);
        assert_eq!(flaps.look(&[rail(1)], now), []);
        assert_eq!(flaps.message(), None);
        let begun = flaps.look(&[rail(5)], now);
        let title = "rail 3 (p)".to_owned();
        assert_eq!(begun, [Begun { title, losses: 4 }]);
        assert!(flaps.message().unwrap().starts_with("rail 3 (p) lost"));
    }

    fn rail(counted: u64) -> Rail {
        let mut rail = Rail {
            rail: Some(3),
            ..Rail::default()
        };
        "p".clone_into(&mut rail.pf.name);
        rail.pf.counted = Some(BTreeMap::from([(COUNTER.to_owned(), counted)]));
        rail
    }
}
