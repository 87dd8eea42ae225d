//! The ends of a link, and the fields that both forms of a topology have there.

use serde_json::Value;

use crate::document::Part;
use crate::scheme::{Origin, Scheme};
use rail_cni::fault::Fault;
use rail_cni::pool::is_name;

/// An end of a link.
#[derive(Clone, Copy)]
pub struct End<'a> {
    /// The object that describes it.
    pub part: Part<'a>,
    /// The path of the list of links.
    list: &'static str,
    /// The index of the link in the list.
    link: usize,
    /// 0 or 1.
    end: usize,
    /// The first number in the names of AIR's nodes.
    pub base: Base,
}

/// The first number in the names of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// `su00`, as in NVIDIA's reference designs.
    Zero,
    /// `su1`, as AIR exports them.
    One,
}

/// Both ends of a link; `None` for a link without ends, with an unconnected one, or out of the
/// fabric.
pub fn both_ends<'a>(
    link: Part<'a>,
    list: &'static str,
    number: usize,
) -> Result<Option<[End<'a>; 2]>, Fault> {
    let wrong = |rest: &str, problem: String| {
        Err(Fault::new(format!("{list}[{number}]{rest}"), problem).at(link.place("")))
    };
    if !link.value.is_array() {
        return wrong("", "is not a list of two ends".to_owned());
    }
    let parts: Vec<Part<'a>> = link.items().collect();
    for (index, part) in parts.iter().enumerate() {
        match part.value {
            Value::Object(_) => (),
            // AIR calls the world outside of the fabric exit.
            Value::String(text) if text == "unconnected" || text == "exit" => (),
            other => {
                return wrong(
                    &format!("[{index}]"),
                    format!("{} is not an end of a link", short(other)),
                );
            }
        }
    }
    match parts[..] {
        [] => Ok(None),
        [one] if one.value.is_string() => Ok(None),
        [one, other] if one.value.is_string() || other.value.is_string() => Ok(None),
        [one, other] => {
            let end = |part, end| End {
                part,
                list,
                link: number,
                end,
                base: Base::One,
            };
            Ok(Some([end(one, 0), end(other, 1)]))
        }
        _ => wrong("", format!("a link has two ends, not {}", parts.len())),
    }
}

/// A number that counts from 1, as one that counts from 0.
pub fn from_one(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits
        .parse::<u64>()
        .ok()
        .filter(|_| is_number)?
        .checked_sub(1)
}

/// A value for a message.
fn short(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::String(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
        other => other.to_string(),
    }
}

impl<'a> End<'a> {
    /// This end, its name counted from `base`.
    pub fn counting_from(self, base: Base) -> End<'a> {
        End { base, ..self }
    }

    /// The place of a field in the file.
    pub fn at(&self, field: &str) -> Origin {
        let End {
            part,
            list,
            link,
            end,
            ..
        } = self;
        let path = format!("{list}[{link}][{end}].{field}");
        Origin {
            place: part.place(field),
            path,
            ..Origin::default()
        }
    }

    /// A fault of a field.
    pub fn fault(&self, field: &str, problem: impl Into<String>) -> Fault {
        self.at(field).fault(problem)
    }

    /// The name of the node.
    pub fn node(&self) -> Result<&'a str, Fault> {
        match self.part.get("node").map(|part| part.value) {
            Some(Value::String(name)) if is_name(name) => Ok(name),
            Some(other) => Err(self.fault(
                "node",
                format!("{} is not a valid name of a node", short(other)),
            )),
            None => Err(self.fault("node", "is missing")),
        }
    }

    /// The role of an end of spcx-gen.
    pub fn role(&self) -> Result<Option<&'a str>, Fault> {
        match self.part.get("attributes").map(|part| part.value) {
            None | Some(Value::Null | Value::Object(_)) => (),
            Some(other) => {
                return Err(self.fault("attributes", format!("{} is not an object", short(other))));
            }
        }
        let wrong = |problem: String| Err(self.fault("attributes.role", problem));
        match self.part.get("attributes.role").map(|part| part.value) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(role)) => {
                match ["host", "leaf"]
                    .into_iter()
                    .find(|known| role.eq_ignore_ascii_case(known))
                {
                    Some(known) if role != known => {
                        wrong(format!("{role:?}: did you mean {known}?"))
                    }
                    _ => Ok(Some(role)),
                }
            }
            Some(other) => wrong(format!("{} is not a role", short(other))),
        }
    }

    /// A number, at most `last`. A field that is null counts as absent.
    pub fn number(&self, scheme: &Scheme, field: &str, last: u64) -> Result<Option<u64>, Fault> {
        match self.part.get(field).map(|part| part.value) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) if number <= last => Ok(Some(number)),
                Some(number) => {
                    let name = field.trim_start_matches("attributes.");
                    Err(self.fault(field, scheme.outside(name, number, last)))
                }
                None => Err(self.fault(field, format!("{} is not a number from 0", short(value)))),
            },
        }
    }

    /// A number that must be there.
    pub fn needed(&self, scheme: &Scheme, field: &str, last: u64) -> Result<u64, Fault> {
        self.number(scheme, field, last)?
            .ok_or_else(|| self.fault(field, format!("is missing: 0 to {last}")))
    }

    /// The number behind `prefix` in the name of a node of AIR, as one that counts from 0.
    pub fn token(&self, prefix: &str, last: u64) -> Result<Option<u64>, Fault> {
        let name = self.node()?;
        let is_digits =
            |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let mut tokens = name
            .split('-')
            .filter_map(|token| token.strip_prefix(prefix).filter(is_digits));
        let Some(digits) = tokens.next() else {
            return Ok(None);
        };
        if tokens.next().is_some() {
            return Err(self.fault("node", format!("{name} has two tokens {prefix}<N>")));
        }
        let (number, first) = match self.base {
            Base::Zero => (digits.parse().ok(), 0),
            Base::One => (from_one(digits), 1),
        };
        match number {
            Some(number) if number <= last => Ok(Some(number)),
            _ => {
                let last = last.saturating_add(first);
                let what = format!("{prefix}{digits} is not {first} to {last}");
                Err(self.fault(
                    "node",
                    format!("{what}, the range with these tiers, mode and family"),
                ))
            }
        }
    }
}
