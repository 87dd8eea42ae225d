//! The checks: what each asks, how binding it is, and the sentence that says so.

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

use crate::description::VERSIONS;
use crate::world::{Stop, World};

/// Which checks there are: raised with each check that is new, gone, or asks something else.
pub const CHECK_SET: u32 = 2;

/// Names of checks that are gone, or ask something else by now under another name. None is used
/// again.
pub const RETIRED: &[&str] = &[
    "addresses_are_whole",
    "cni_path_is_required",
    "gc_and_status_need_no_container",
    "gc_asks_the_ipam",
    "interface_is_of_the_pod",
    "ipam_gets_the_same",
    "missing_variables_are_named",
    "status_asks_the_ipam",
];

/// How binding it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
pub enum Level {
    /// The specification demands it.
    #[serde(rename = "MUST")]
    Must,
    /// The specification recommends it.
    #[serde(rename = "SHOULD")]
    Should,
    /// Runtimes or nodes depend on it, or the specification can be read both ways.
    #[serde(rename = "quality")]
    Quality,
}

/// Who asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// The specification demands or recommends it.
    Spec,
    /// Runtimes send it, do it or rely on it, or the specification can be read to demand it.
    Runtimes,
    /// Nobody but this suite: killed calls, full disks, what a failed ADD leaves.
    Extra,
}

/// What the specification says, from one of its versions on.
#[derive(Clone, Copy, Debug)]
pub struct Basis {
    /// The first version that says so.
    pub since: &'static str,
    /// How binding it is there.
    pub level: Level,
    /// The heading above it, as an address has it.
    pub section: &'static str,
    /// The text, with ` … ` between sentences that are not beside each other.
    pub text: &'static str,
}

impl Basis {
    /// The text without its own links, which lead nowhere from another page.
    pub fn quoted(&self) -> String {
        let mut parts = self.text.split("](#");
        let first = parts.next().unwrap_or_default().to_owned();
        let rest = parts.map(|part| part.split_once(')').map_or(part, |(_, rest)| rest));
        rest.fold(first, |text, rest| {
            let at = text.rfind('[').unwrap_or(text.len());
            let word = text.get(at + 1..).unwrap_or_default();
            format!("{}{word}{rest}", &text[..at])
        })
    }

    /// Where it is.
    pub fn address(&self) -> String {
        let (version, section) = (self.since, self.section);
        format!("https://github.com/containernetworking/cni/blob/spec-v{version}/SPEC.md#{section}")
    }
}

/// One question to a plugin.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// What has to hold.
    pub asks: &'static str,
    /// What the specification says of it, the oldest version first. Before the first, it is a
    /// matter of quality.
    pub basis: &'static [Basis],
    /// Who asks for it where the specification does not.
    pub otherwise: Profile,
    /// Why it is asked though no version demands it, or how else its text can be read.
    pub why: &'static str,
    /// The version of the specification that it is about, if it is about one.
    pub of: Option<&'static str>,
    /// How many attachments it has at the same time.
    pub attachments: usize,
    /// Finds out.
    pub run: fn(&World<'_>) -> Result<(), Stop>,
}

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

const fn must(since: &'static str, section: &'static str, text: &'static str) -> Basis {
    Basis {
        since,
        level: Level::Must,
        section,
        text,
    }
}

const fn should(since: &'static str, section: &'static str, text: &'static str) -> Basis {
    Basis {
        since,
        level: Level::Should,
        section,
        text,
    }
}

/// From this version on, no text says it any more.
const fn ends(since: &'static str) -> Basis {
    Basis {
        since,
        level: Level::Quality,
        section: "",
        text: "",
    }
}

/// A check of what the specification says.
const fn spec(
    name: &'static str,
    asks: &'static str,
    basis: &'static [Basis],
    run: fn(&World<'_>) -> Result<(), Stop>,
) -> Check {
    Check {
        name,
        asks,
        basis,
        otherwise: Profile::Runtimes,
        why: "",
        of: None,
        attachments: 1,
        run,
    }
}

/// A check of what it does not say, or not clearly, and runtimes depend on.
const fn quality(
    name: &'static str,
    asks: &'static str,
    why: &'static str,
    run: fn(&World<'_>) -> Result<(), Stop>,
) -> Check {
    Check {
        why,
        ..spec(name, asks, &[], run)
    }
}

/// A check of what only this suite asks.
const fn extra(
    name: &'static str,
    asks: &'static str,
    why: &'static str,
    run: fn(&World<'_>) -> Result<(), Stop>,
) -> Check {
    Check {
        otherwise: Profile::Extra,
        ..quality(name, asks, why, run)
    }
}

fn age(version: &str) -> usize {
    VERSIONS
        .iter()
        .position(|known| *known == version)
        .unwrap_or(VERSIONS.len())
}

impl Check {
    /// The same with so many attachments at the same time. It is left out where the pool or the
    /// devices of the description do not suffice for them.
    const fn with_attachments(self, attachments: usize) -> Check {
        Check {
            attachments,
            ..self
        }
    }

    /// The same, about one version of the specification, whichever others a plugin claims.
    const fn of(self, version: &'static str) -> Check {
        Check {
            of: Some(version),
            ..self
        }
    }

    /// The same, with how else the text can be read.
    const fn but(self, why: &'static str) -> Check {
        Check { why, ..self }
    }

    /// What the specification says to a plugin whose newest version is `newest`.
    pub fn basis_in(&self, newest: &str) -> Option<&'static Basis> {
        let version = age(self.of.unwrap_or(newest));
        self.basis
            .iter()
            .rfind(|basis| age(basis.since) <= version)
            .filter(|basis| !basis.text.is_empty())
    }

    /// Who asks it of such a plugin.
    pub fn profile_in(&self, newest: &str) -> Profile {
        if self.basis_in(newest).is_some() {
            Profile::Spec
        } else {
            self.otherwise
        }
    }

    /// How binding it is to such a plugin.
    pub fn level_in(&self, newest: &str) -> Level {
        self.basis_in(newest)
            .map_or(Level::Quality, |basis| basis.level)
    }
}
