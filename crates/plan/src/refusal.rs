//! Why a plan is refused: a line for each fault. Faults of one cause are listed together, the first
//! ten of each cause with the number of the others.
//!
//! A doubt is something that can be meant and hardly ever is: one wrong digit in a topology gives
//! other hosts other addresses. It refuses the plan like a fault, unless `--allow` names its kind.

use std::collections::BTreeMap;
use std::fmt;

use clap::ValueEnum;

use rail_cni::fault::{Fault, SHOWN};
use rail_cni::log::printable;

/// A kind of doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Doubt {
    /// A leaf of another SU or pod than its host
    OtherSu,
    /// A host with links in two SUs or pods
    TwoSus,
    /// A host without an SU, although others have one: it counts as 0
    MissingSu,
    /// A leaf that is not for the host's rail
    OtherRail,
    /// A second link of a host on one rail
    SecondLink,
    /// A node without a rail that others have
    MissingRail,
    /// Two nodes with the same name
    SameName,
    /// A host that is not among the nodes
    UnknownHost,
    /// Routes that cover Services or pods of the cluster
    ClusterNetworks,
}

impl Doubt {
    fn what(self) -> &'static str {
        match self {
            Doubt::OtherSu => "host and leaf of a link are in different SUs or pods",
            Doubt::TwoSus => "a host is in two SUs or pods",
            Doubt::MissingSu => "a host has no su, although others have one",
            Doubt::OtherRail => "a host is linked to a leaf that is not for its rail",
            Doubt::SecondLink => "a host has two links on one rail, which get one address",
            Doubt::MissingRail => "a node lacks a rail that others have",
            Doubt::SameName => "two nodes have one name",
            Doubt::UnknownHost => "a host with links is not in nodes",
            Doubt::ClusterNetworks => "routes of rails cover the cluster's own networks",
        }
    }

    /// As `--allow` takes it.
    fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }
}

/// Doubts by their kind.
#[derive(Clone, Debug, Default)]
pub struct Doubts(BTreeMap<Doubt, Few>);

/// The first faults of a cause, and the number of all.
#[derive(Clone, Debug, Default)]
struct Few {
    first: Vec<Fault>,
    count: usize,
}

impl Few {
    fn push(&mut self, fault: impl FnOnce() -> Fault) {
        self.count += 1;
        if self.first.len() < SHOWN {
            self.first.push(fault());
        }
    }

    fn lines(self, more: &str) -> impl Iterator<Item = String> {
        let rest = self.count.saturating_sub(self.first.len());
        self.first
            .into_iter()
            .map(|fault| fault.to_string())
            .chain((rest > 0).then(|| format!("and {rest} more {more}")))
    }
}

impl Doubts {
    /// Adds a doubt. `fault` is called only for those that will be shown.
    pub fn push(&mut self, doubt: Doubt, fault: impl FnOnce() -> Fault) {
        self.0.entry(doubt).or_default().push(fault);
    }

    /// Whether there is any of this kind.
    pub fn has(&self, doubt: Doubt) -> bool {
        self.0.contains_key(&doubt)
    }

    /// Removes the doubts of the allowed kinds, and returns them as warnings.
    pub fn allow(&mut self, allowed: &[Doubt]) -> Vec<String> {
        let meant = allowed.iter().filter_map(|doubt| self.0.remove(doubt));
        meant.flat_map(|few| few.lines("of these")).collect()
    }

    /// All as warnings.
    pub fn into_warnings(self) -> Vec<String> {
        self.0
            .into_values()
            .flat_map(|few| few.lines("of these"))
            .collect()
    }

    /// Fails if there are any.
    pub fn refuse(self) -> Result<(), Refusal> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Refusal {
                doubts: self,
                faults: Vec::new(),
            })
        }
    }
}

/// All faults of a plan.
#[derive(Debug, Default)]
pub struct Refusal {
    /// These are listed first, because some of the faults may follow from them.
    pub doubts: Doubts,
    /// In the order of the files.
    pub faults: Vec<Fault>,
}

impl Refusal {
    /// The lines to print.
    pub fn lines(self) -> Vec<String> {
        let Refusal { doubts, faults } = self;
        let mut groups: Vec<(String, Few)> = Vec::new();
        let mut of_shape: BTreeMap<String, usize> = BTreeMap::new();
        let count = faults.len() + doubts.0.values().map(|few| few.count).sum::<usize>();
        for fault in faults {
            let group = *of_shape.entry(shape(&fault)).or_insert_with(|| {
                groups.push(Default::default());
                groups.len() - 1
            });
            groups[group].1.push(|| fault);
        }
        let of_doubts = doubts.0.into_iter().map(|(doubt, few)| {
            (
                format!(
                    "{} (--allow {} if this is intended):",
                    doubt.what(),
                    doubt.name()
                ),
                few,
            )
        });
        let groups: Vec<_> = of_doubts.chain(groups).collect();
        // A head, or a line, needs no number above it.
        let (mut lines, indent) = match groups.as_slice() {
            [(head, few)] if !head.is_empty() || few.count == 1 => (Vec::new(), ""),
            _ => (vec![format!("{count} faults:")], "  "),
        };
        let left = groups.len().saturating_sub(SHOWN);
        let of_left: usize = groups.iter().skip(SHOWN).map(|(_, few)| few.count).sum();
        for (head, few) in groups.into_iter().take(SHOWN) {
            let below = if head.is_empty() { "" } else { "  " };
            lines.extend((!head.is_empty()).then(|| format!("{indent}{head}")));
            lines.extend(
                few.lines("like these")
                    .map(|line| format!("{indent}{below}{line}")),
            );
        }
        if left > 0 {
            lines.push(format!("  and {of_left} more, of {left} other kinds"));
        }
        lines
    }
}

impl From<Vec<Fault>> for Refusal {
    fn from(faults: Vec<Fault>) -> Refusal {
        Refusal {
            faults,
            ..Refusal::default()
        }
    }
}

impl From<Refusal> for anyhow::Error {
    fn from(refusal: Refusal) -> anyhow::Error {
        Lines(refusal.lines()).into()
    }
}

/// Faults at one key, whose problems differ in numbers and quoted words alone, have one cause. The
/// file, the line and the object that they are of do not count.
fn shape(Fault { path, problem, .. }: &Fault) -> String {
    let mut shape = String::with_capacity(path.len() + problem.len());
    let (mut is_quoted, mut last) = (false, ' ');
    for c in path.chars().chain([' ']).chain(problem.chars()) {
        let as_shape = if c.is_ascii_digit() { '0' } else { c };
        if c == '"' {
            is_quoted = !is_quoted;
        } else if is_quoted || (as_shape == '0' && last == '0') {
            continue;
        }
        shape.push(as_shape);
        last = as_shape;
    }
    shape
}

/// An error of several lines. A line feed within a line, which may come from a tenant, is replaced.
#[derive(Debug)]
pub struct Lines(pub Vec<String>);

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            &self
                .0
                .iter()
                .map(|line| printable(line))
                .collect::<Vec<_>>()
                .join("\n"),
        )
    }
}

impl std::error::Error for Lines {}

#[cfg(test)]
mod tests {
    use super::*;
    use rail_cni::fault::Place;

    fn fault(line: u32, path: &str, problem: &str) -> Fault {
        Fault::new(path, problem).at(Place {
            file: "t.json".into(),
            line,
            column: 0,
        })
    }

    #[test]
    fn faults_of_one_cause_are_together_and_none_hides_another() {
        let mut faults: Vec<_> = (0..12)
            .map(|n| fault(7 * n + 1, &format!("links[{n}].rail"), "r"))
            .collect();
        faults.insert(3, fault(9, "links[4]", "\"a\" e"));
        faults.push(fault(99, "links[5]", "\"bc\" e"));
        let lines = Refusal::from(faults).lines();
        golden::says("plan", "faults of one cause", lines.join("\n"));
        assert_eq!(lines.len(), 1 + 10 + 1 + 2, "{lines:#?}");
        assert!(
            lines[0].starts_with("14 ") && lines[11].contains(" 2 "),
            "{lines:#?}"
        );
        assert_eq!(lines[1], "  t.json:1: links[0].rail: r");
        assert_eq!(
            lines[12..],
            [
                "  t.json:9: links[4]: \"a\" e",
                "  t.json:99: links[5]: \"bc\" e"
            ]
        );
        assert_eq!(Refusal::from(vec![Fault::whole("one")]).lines(), ["one"]);
        let words: Vec<_> = ('a'..='m')
            .map(|c| Fault::whole(format!("fault {c}")))
            .collect();
        let lines = Refusal::from(words).lines();
        golden::says("plan", "faults of many causes", lines.join("\n"));
        assert!(lines.len() == 12 && lines[11].contains(" 3 "), "{lines:#?}");
    }

    /// A directory of files may have the same mistake in each.
    #[test]
    fn files_and_objects_do_not_make_causes_of_their_own() {
        let of = |name: char| {
            Fault::new("spec.cidr", "is missing")
                .at(Place::file(name))
                .of(format!("CIDRPool {name}"))
        };
        let lines = Refusal::from(('a'..='z').map(of).collect::<Vec<_>>()).lines();
        assert!(
            lines.len() == 12 && lines[11].contains(" 16 "),
            "{lines:#?}"
        );
    }

    #[test]
    fn a_doubt_says_how_it_is_allowed() {
        let mut doubts = Doubts::default();
        doubts.push(Doubt::TwoSus, || Fault::whole("w1"));
        let alone = Refusal {
            doubts: doubts.clone(),
            faults: vec![],
        }
        .lines();
        assert!(
            alone.len() == 2 && alone[0].contains("--allow two-sus") && alone[1] == "  w1",
            "{alone:?}"
        );
        (0..12).for_each(|n| doubts.push(Doubt::OtherSu, || Fault::whole(format!("w{n}"))));
        let lines = Refusal {
            doubts: doubts.clone(),
            faults: vec![Fault::whole("x")],
        }
        .lines();
        golden::says("plan", "doubts", lines.join("\n"));
        assert!(
            lines[0].starts_with("14 ") && lines[12].contains(" 2 "),
            "{lines:#?}"
        );
        assert!(lines[1].contains("--allow other-su"), "{lines:#?}");
        assert_eq!(lines.last().unwrap(), "  x");
        assert_eq!(doubts.allow(&[Doubt::OtherSu, Doubt::SameName]).len(), 11);
        assert!(doubts.refuse().is_err());
    }
}
