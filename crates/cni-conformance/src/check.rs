//! A check: what it asks, how binding it is and by which sentence, and what its failure costs.

use serde::Serialize;

use crate::description::VERSIONS;
use crate::settings::Stop;
use crate::world::World;

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

/// What a failure costs, the worst first: a second axis, whatever the specification says. An error
/// that is seen and leaves nothing behind is cosmetic, however often it is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Harm {
    /// An address is lost, or two pods have it.
    Address,
    /// A living pod is cut off, or has no interface.
    Pod,
    /// Something stays after the DEL or GC that should release it.
    Leak,
    /// People or programs are told what is not so.
    Misleads,
    /// None of these.
    Cosmetic,
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

    /// The tags whose text binds a plugin that claims `newest`. Quotations of 1.0.0 stand in 1.1.0
    /// unless a check has another one of that version.
    pub fn tags(&self, newest: &str) -> String {
        if age(newest) > age(self.since) {
            format!("spec-v{} to spec-v{newest}", self.since)
        } else {
            format!("spec-v{}", self.since)
        }
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
    /// What a failure costs.
    pub harm: Harm,
    /// Why it is asked though no version demands it, or how else its text can be read.
    pub why: &'static str,
    /// The version of the specification that it is about, if it is about one.
    pub of: Option<&'static str>,
    /// How many attachments it has at the same time.
    pub attachments: usize,
    /// Finds out.
    pub run: fn(&World<'_>) -> Result<(), Stop>,
}

impl std::fmt::Display for Harm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Harm::Address => "address",
            Harm::Pod => "pod",
            Harm::Leak => "leak",
            Harm::Misleads => "misleads",
            Harm::Cosmetic => "cosmetic",
        })
    }
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

/// The specification demands it from this version on.
pub const fn must(since: &'static str, section: &'static str, text: &'static str) -> Basis {
    Basis {
        since,
        level: Level::Must,
        section,
        text,
    }
}

/// The specification recommends it from this version on.
pub const fn should(since: &'static str, section: &'static str, text: &'static str) -> Basis {
    Basis {
        since,
        level: Level::Should,
        section,
        text,
    }
}

/// From this version on, no text says it any more.
pub const fn ends(since: &'static str) -> Basis {
    Basis {
        since,
        level: Level::Quality,
        section: "",
        text: "",
    }
}

/// A check of what the specification says.
pub const fn spec(
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
        harm: Harm::Cosmetic,
        why: "",
        of: None,
        attachments: 1,
        run,
    }
}

/// A check of what it does not say, or not clearly, and runtimes depend on.
pub const fn quality(
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
pub const fn extra(
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
    pub const fn with_attachments(self, attachments: usize) -> Check {
        Check {
            attachments,
            ..self
        }
    }

    /// The same, about one version of the specification, whichever others a plugin claims.
    pub const fn of(self, version: &'static str) -> Check {
        Check {
            of: Some(version),
            ..self
        }
    }

    /// The same, with what a failure costs.
    pub const fn harm(self, harm: Harm) -> Check {
        Check { harm, ..self }
    }

    /// The same, with how else the text can be read.
    pub const fn but(self, why: &'static str) -> Check {
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
