//! Why a plan is refused: a line for each fault, those of one cause together, ten of each and how many more.
//!
//! A doubt is what can be meant and hardly ever is: one wrong digit in a topology gives other hosts other addresses.
//! It refuses the plan like a fault, unless `--allow` names its kind.

use std::collections::BTreeMap;

use clap::ValueEnum;

use crate::output::Lines;
use crate::pool::cidrpool::SHOWN;

/// What can be meant, and hardly ever is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Doubt {
    /// A leaf of another SU or pod than its host
    OtherSu,
    /// A host with links in two SUs or pods
    TwoSus,
    /// A host without an SU, while others have one: it counts as 0
    MissingSu,
    /// A leaf that is not for the host's rail
    OtherRail,
    /// A second link of a host on one rail
    SecondLink,
    /// A node without a rail that others have
    MissingRail,
    /// A name that stands twice among the nodes
    SameName,
    /// A host that is not among the nodes
    UnknownHost,
    /// Routes that take Services and pods of the cluster away
    ClusterNetworks,
}

impl Doubt {
    fn what(self) -> &'static str {
        match self {
            Doubt::OtherSu => "host and leaf of a link are in different SUs or pods",
            Doubt::TwoSus => "a host is in two SUs or pods",
            Doubt::MissingSu => "a host has no su, where others have one",
            Doubt::OtherRail => "a host is linked to a leaf that is not for its rail",
            Doubt::SecondLink => "a host has two links on one rail: they have one address",
            Doubt::MissingRail => "a node lacks a rail that others have",
            Doubt::SameName => "a name stands twice in nodes",
            Doubt::UnknownHost => "a host with links is not in nodes",
            Doubt::ClusterNetworks => "routes of rails cover the cluster's own networks",
        }
    }

    /// As `--allow` takes it.
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// Doubts by their kind.
#[derive(Clone, Debug, Default)]
pub struct Doubts(BTreeMap<Doubt, Few>);

/// The first lines, and how many there are.
#[derive(Clone, Debug, Default)]
struct Few {
    first: Vec<String>,
    count: usize,
}

impl Few {
    fn push(&mut self, line: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < SHOWN {
            self.first.push(line());
        }
    }

    fn lines(self, more: &str) -> impl Iterator<Item = String> {
        let rest = self.count.saturating_sub(self.first.len());
        self.first.into_iter().chain((rest > 0).then(|| format!("and {rest} more {more}")))
    }
}

impl Doubts {
    /// `line` is asked for where it is shown.
    pub fn push(&mut self, doubt: Doubt, line: impl FnOnce() -> String) {
        self.0.entry(doubt).or_default().push(line);
    }

    /// Is there any of this kind?
    pub fn has(&self, doubt: Doubt) -> bool {
        self.0.contains_key(&doubt)
    }

    /// Takes out what is meant, as warnings.
    pub fn allow(&mut self, allowed: &[Doubt]) -> Vec<String> {
        let meant = allowed.iter().filter_map(|doubt| self.0.remove(doubt));
        meant.flat_map(|few| few.lines("of these")).collect()
    }

    /// All as warnings.
    pub fn into_warnings(self) -> Vec<String> {
        self.0.into_values().flat_map(|few| few.lines("of these")).collect()
    }

    /// An error, if there are any.
    pub fn refuse(self) -> Result<(), Refusal> {
        if self.0.is_empty() { Ok(()) } else { Err(Refusal { doubts: self, faults: Vec::new() }) }
    }
}

/// All that is wrong with a plan.
#[derive(Debug, Default)]
pub struct Refusal {
    /// First, for what comes of them may be among the faults.
    pub doubts: Doubts,
    /// In the order of the files.
    pub faults: Vec<String>,
}

impl Refusal {
    /// The lines that are printed.
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
            (format!("{} (--allow {}, if it is meant):", doubt.what(), doubt.name()), few)
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
            lines.extend(few.lines("like these").map(|line| format!("{indent}{below}{line}")));
        }
        if left > 0 {
            lines.push(format!("  and {of_left} more, of {left} other kinds"));
        }
        lines
    }
}

impl From<Vec<String>> for Refusal {
    fn from(faults: Vec<String>) -> Refusal {
        Refusal { faults, ..Refusal::default() }
    }
}

impl From<Refusal> for anyhow::Error {
    fn from(refusal: Refusal) -> anyhow::Error {
        Lines(refusal.lines()).into()
    }
}

/// Faults that differ in numbers and quoted words alone have one cause.
fn shape(fault: &str) -> String {
    let mut shape = String::with_capacity(fault.len());
    let (mut is_quoted, mut last) = (false, ' ');
    for c in fault.chars() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_one_cause_stand_together_and_none_hides_another() {
        let mut faults: Vec<_> =
            (0..12).map(|n| format!("t.json:{}: links[{n}].rail: is missing", 7 * n)).collect();
        faults.insert(3, "t.json:9: links[4]: \"a\" is no end".into());
        faults.push("t.json:99: links[5]: \"bc\" is no end".into());
        let lines = Refusal::from(faults).lines();
        assert_eq!(lines.len(), 1 + 10 + 1 + 2, "{lines:#?}");
        assert_eq!(lines[0], "14 faults:");
        assert_eq!(lines[1], "  t.json:0: links[0].rail: is missing");
        assert_eq!(lines[11], "  and 2 more like these");
        assert_eq!(
            lines[12..],
            ["  t.json:9: links[4]: \"a\" is no end", "  t.json:99: links[5]: \"bc\" is no end"]
        );
        assert_eq!(Refusal::from(vec!["one".to_owned()]).lines(), ["one"]);
        let words: Vec<_> = ('a'..='m').map(|c| format!("fault {c}")).collect();
        let lines = Refusal::from(words).lines();
        assert_eq!((lines.len(), lines[11].as_str()), (12, "  and 3 more, of 3 other kinds"));
    }

    #[test]
    fn a_doubt_says_how_it_is_allowed() {
        let mut doubts = Doubts::default();
        doubts.push(Doubt::TwoSus, || "w1".into());
        let alone = Refusal { doubts: doubts.clone(), faults: vec![] }.lines();
        assert_eq!(alone, ["a host is in two SUs or pods (--allow two-sus, if it is meant):", "  w1"]);
        (0..12).for_each(|n| doubts.push(Doubt::OtherSu, || format!("w{n}")));
        let lines = Refusal { doubts: doubts.clone(), faults: vec!["x".into()] }.lines();
        assert_eq!(lines[0], "14 faults:");
        assert_eq!(
            lines[1],
            "  host and leaf of a link are in different SUs or pods (--allow other-su, if it is meant):"
        );
        assert_eq!(lines[12], "    and 2 more like these");
        assert_eq!(lines.last().unwrap(), "  x");
        assert_eq!(doubts.allow(&[Doubt::OtherSu, Doubt::SameName]).len(), 11);
        assert!(doubts.refuse().is_err());
    }
}
