//! JSON, with the line of every value; serde_json gives none.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::budget::{Budget, weight};
use super::{Lines, Part, Placed, fault_at, number, object};
use rail_cni::fault::Fault;

/// Parses a text; the items of a list may be set aside.
pub(super) fn json(text: &str, aside: Option<&mut Aside<'_>>) -> Result<Placed, Fault> {
    let line = Cell::new(1);
    let mut json = serde_json::Deserializer::from_reader(Counted {
        left: text.as_bytes(),
        line: &line,
    });
    let mut budget = Budget::of(text);
    let parsed = Seed {
        line: &line,
        budget: &mut budget,
        aside: aside.map(|aside| (Level::Root, aside)),
    }
    .deserialize(&mut json)
    .and_then(|placed| json.end().map(|()| placed));
    parsed.map_err(|error| {
        // The fault has line and column of its own.
        let message = error.to_string();
        let problem = match message.rsplit_once(" at line ") {
            Some((problem, _)) => problem,
            None => &message,
        };
        fault_at(
            number(error.line()),
            number(error.column()),
            format!("JSON: {problem}"),
        )
    })
}

/// Counts lines. serde_json takes single bytes and looks one ahead at most, which is the first of
/// the value that it turns to: then the count is that value's line.
struct Counted<'a> {
    left: &'a [u8],
    line: &'a Cell<u32>,
}

impl Read for Counted<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let (Some((first, left)), Some(to)) = (self.left.split_first(), to.first_mut()) else {
            return Ok(0);
        };
        if *first == b'\n' {
            self.line.set(self.line.get() + 1);
        }
        self.left = left;
        *to = *first;
        Ok(1)
    }
}

/// A list whose items are not kept.
pub(super) struct Aside<'a> {
    pub(super) file: &'a str,
    /// The key of the list.
    pub(super) list: &'a str,
    /// Gets each item with its number, counted from 0.
    pub(super) take: &'a mut dyn FnMut(usize, Part<'_>),
}

/// The distance of a value from such a list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    InRoot,
    List,
}

/// Builds a value, whose first line is the current one.
struct Seed<'a, 'b> {
    line: &'a Cell<u32>,
    budget: &'a mut Budget,
    aside: Option<(Level, &'a mut Aside<'b>)>,
}

struct Builder<'a, 'b> {
    begins: u32,
    seed: Seed<'a, 'b>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Placed;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Placed, D::Error> {
        from.deserialize_any(Builder {
            begins: self.line.get(),
            seed: self,
        })
    }
}

impl Builder<'_, '_> {
    fn leaf<E: serde::de::Error>(self, value: Value) -> Result<Placed, E> {
        self.seed.budget.spend(weight(&value)).map_err(E::custom)?;
        Ok((value, Lines::of(self.begins, Vec::new())))
    }
}

impl<'de> Visitor<'de> for Builder<'_, '_> {
    type Value = Placed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Placed, E> {
        self.leaf(value.into())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Placed, E> {
        self.leaf(value.into())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Placed, E> {
        self.leaf(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Placed, E> {
        self.leaf(value.into())
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Placed, E> {
        self.leaf(value.into())
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Placed, E> {
        self.leaf(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Placed, A::Error> {
        let Builder {
            begins,
            seed:
                Seed {
                    line,
                    budget,
                    aside,
                },
        } = self;
        if let Some((Level::List, aside)) = aside {
            let (all, mut number) = (budget.left, 0);
            while let Some((value, lines)) = from.next_element_seed(Seed {
                line,
                budget,
                aside: None,
            })? {
                budget.left = all;
                (aside.take)(
                    number,
                    Part {
                        file: aside.file,
                        value: &value,
                        lines: &lines,
                    },
                );
                number += 1;
            }
            return Ok((Value::Array(Vec::new()), Lines::of(begins, Vec::new())));
        }
        let (mut values, mut lines) = (Vec::new(), Vec::new());
        while let Some((value, place)) = from.next_element_seed(Seed {
            line,
            budget,
            aside: None,
        })? {
            values.push(value);
            lines.push(place);
        }
        let list = (values.into(), Lines::of(begins, lines));
        budget.spend(weight(&list.0)).map_err(A::Error::custom)?;
        Ok(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Placed, A::Error> {
        let Builder {
            begins,
            seed:
                Seed {
                    line,
                    budget,
                    mut aside,
                },
        } = self;
        let mut entries = BTreeMap::new();
        while let Some(key) = from.next_key::<String>()? {
            let at = line.get();
            if entries.contains_key(&key) {
                return Err(A::Error::custom(format!("the key {key:?} is given twice")));
            }
            let inner = aside.as_mut().and_then(|(level, aside)| match *level {
                Level::List => None,
                _ if key == aside.list => Some((Level::List, &mut **aside)),
                Level::Root => Some((Level::InRoot, &mut **aside)),
                Level::InRoot => None,
            });
            let (value, mut place) = from.next_value_seed(Seed {
                line,
                budget,
                aside: inner,
            })?;
            place.line = at;
            entries.insert(key, (value, place));
        }
        let object = object(entries, begins);
        budget.spend(weight(&object.0)).map_err(A::Error::custom)?;
        Ok(object)
    }
}
