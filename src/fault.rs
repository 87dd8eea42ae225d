//! A fault of a file or a configuration: place, key, problem, and remedy. A fault is kept as a
//! value; [`Fault`]'s `Display` is the only place that makes a line of it.

use std::fmt;

/// A message lists this many faults of one kind: ten lines describe a mistake as well as ten
/// thousand.
pub const SHOWN: usize = 10;

/// A position in a file, written as `pools.yaml:17`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The file as the user named it; empty for a position in no file.
    pub file: String,
    /// Counted from 1; 0 for the file as a whole.
    pub line: u32,
    /// Counted from 1; 0 where it is not known.
    pub column: u32,
}

impl Place {
    /// A file as a whole.
    pub fn file(name: impl Into<String>) -> Place {
        Place {
            file: name.into(),
            line: 0,
            column: 0,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        let mut known = [self.line, self.column]
            .into_iter()
            .take_while(|number| *number != 0);
        known.try_for_each(|number| write!(f, ":{number}"))
    }
}

/// Something that is wrong. As an error it has the code of a wrong configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// The position of the value; [`Place::default`] where there is none.
    pub place: Place,
    /// The object that the file describes there, such as `CIDRPool rail-0`; empty where the place
    /// is enough.
    pub subject: String,
    /// The key, such as `spec.routes[0].dst`; empty for the whole.
    pub path: String,
    /// The problem.
    pub problem: String,
    /// The remedy; empty where the problem tells it. It is a box so that a result with a fault
    /// stays small.
    pub remedy: Box<str>,
}

impl Fault {
    /// A fault of the value at `path`.
    pub fn new(path: impl Into<String>, problem: impl Into<String>) -> Fault {
        Fault {
            path: path.into(),
            problem: problem.into(),
            ..Fault::default()
        }
    }

    /// A fault of something that has no path of keys, such as a file or a node.
    pub fn whole(problem: impl Into<String>) -> Fault {
        Fault::new("", problem)
    }

    /// Adds the position.
    #[must_use]
    pub fn at(self, place: Place) -> Fault {
        Fault { place, ..self }
    }

    /// Adds the object that the fault is of.
    #[must_use]
    pub fn of(self, subject: impl Into<String>) -> Fault {
        Fault {
            subject: subject.into(),
            ..self
        }
    }

    /// Adds what to do.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<Box<str>>) -> Fault {
        Fault {
            remedy: remedy.into(),
            ..self
        }
    }

    /// The fault without its position.
    pub fn message(&self) -> String {
        let parts: [&str; 4] = [&self.subject, &self.path, &self.problem, &self.remedy];
        let given: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        given.join(": ")
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place != Place::default() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.message())
    }
}

impl std::error::Error for Fault {}

/// The first warnings, and the number of the others.
pub fn few(mut warnings: Vec<String>) -> Vec<String> {
    if warnings.len() > SHOWN {
        let more = warnings.len() - SHOWN;
        warnings.truncate(SHOWN);
        warnings.push(format!("and {more} more of these"));
    }
    warnings
}

/// The first of `count` faults that are alike, and the number of the others.
pub fn with_others(first: &Fault, count: usize) -> String {
    match count {
        ..=1 => first.to_string(),
        2 => format!("{first}; and 1 other like this"),
        _ => format!("{first}; and {} others like this", count - 1),
    }
}

/// Faults or names in one message: the first ones, and the number of the others.
pub fn some_of<T: fmt::Display>(all: &[T]) -> String {
    let shown = all
        .iter()
        .take(SHOWN)
        .map(T::to_string)
        .collect::<Vec<_>>()
        .join("; ");
    match all.len().checked_sub(SHOWN) {
        None | Some(0) => shown,
        Some(more) => format!("{shown}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_one_line_of_the_parts_that_are_known() {
        let place = Place {
            file: "pools.yaml".into(),
            line: 17,
            column: 0,
        };
        let fault = Fault::new("spec.cidr", "a")
            .at(place)
            .of("CIDRPool r")
            .remedy("b");
        assert_eq!(
            fault.to_string(),
            "pools.yaml:17: CIDRPool r: spec.cidr: a: b"
        );
        assert_eq!(fault.message(), "CIDRPool r: spec.cidr: a: b");
        assert_eq!(Fault::whole("no file").to_string(), "no file");
        assert_eq!(
            Fault::whole("no rail")
                .at(Place::file("w0.yaml"))
                .to_string(),
            "w0.yaml: no rail"
        );
    }
}
