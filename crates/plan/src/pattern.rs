//! Names with numbers in them: `worker-gpu-{node}`, `leaf-su{su+1:02}-r{rail}`,
//! `swp{host/2+1}s{host%2}`.
//!
//! Braces enclose the name of a number. Behind it may follow, in this order and each at most once,
//! `*N`, `/N` (rounded down), `%N` (the remainder), `+N`, and `:0W` for at least W digits. Only
//! this order is allowed, so that no rule of precedence is needed.

use anyhow::Result;

use rail_cni::fail;
use rail_cni::nearest::nearest;

/// The largest number in a pattern; no switch counts further.
const MAX_NUMBER: u64 = 999_999;

/// A name that is made from `N` numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern<const N: usize> {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Number(Number),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Number {
    /// The index in the list of numbers.
    index: usize,
    times: u64,
    by: u64,
    remainder_of: Option<u64>,
    plus: u64,
    /// The least number of digits.
    width: usize,
}

impl<const N: usize> Pattern<N> {
    /// Parses a pattern that may use numbers of these names.
    pub fn parse(text: &str, known: &[&str; N]) -> Result<Pattern<N>> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, braces) = rest.split_at(at);
            let inner = braces
                .strip_prefix('{')
                .and_then(|inner| inner.split_once('}'));
            let Some((inner, after)) = inner.filter(|(inner, _)| !inner.contains('{')) else {
                fail!(InvalidConfig, "{text:?}: unbalanced brace");
            };
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            pieces.push(Piece::Number(Number::parse(inner, known)?));
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        if pieces.is_empty() {
            fail!(InvalidConfig, "the pattern is empty");
        }
        Ok(Pattern { pieces })
    }

    /// Whether the pattern has the number of this name.
    pub fn uses(&self, name: &str, known: &[&str; N]) -> bool {
        let has = |piece: &Piece| match piece {
            Piece::Text(_) => false,
            Piece::Number(number) => known.get(number.index) == Some(&name),
        };
        self.pieces.iter().any(has)
    }

    /// The name for these numbers, in the order of their names.
    pub fn render(&self, numbers: &[u64; N]) -> String {
        let mut name = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => name.push_str(text),
                Piece::Number(number) => {
                    let digits = number
                        .of(numbers.get(number.index).copied().unwrap_or(0))
                        .to_string();
                    let zeros = number.width.saturating_sub(digits.len());
                    name.extend(std::iter::repeat_n('0', zeros));
                    name.push_str(&digits);
                }
            }
        }
        name
    }
}

impl Number {
    fn parse(inner: &str, known: &[&str]) -> Result<Number> {
        let end = inner
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(inner.len());
        let (word, mut rest) = inner.split_at(end);
        let Some(index) = known.iter().position(|one| *one == word) else {
            let meant = nearest(word, known.iter().copied())
                .map(|meant| format!(": did you mean {meant}?"));
            let list = known
                .iter()
                .map(|one| format!("{{{one}}}"))
                .collect::<Vec<_>>()
                .join(", ");
            fail!(
                InvalidConfig,
                "{{{inner}}} is not one of {list}{}",
                meant.unwrap_or_default()
            );
        };
        let mut number = |sign: char| {
            let digits = rest.strip_prefix(sign)?;
            let end = digits
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(digits.len());
            let value = digits[..end]
                .parse()
                .ok()
                .filter(|value| *value <= MAX_NUMBER)?;
            rest = &digits[end..];
            Some(value)
        };
        let (times, by, remainder_of, plus) = (number('*'), number('/'), number('%'), number('+'));
        let width = match rest.strip_prefix(":0").map(str::as_bytes) {
            Some([digit @ b'1'..=b'9']) => {
                rest = "";
                usize::from(digit - b'0')
            }
            _ => 0,
        };
        if !rest.is_empty() || times == Some(0) || by == Some(0) || remainder_of == Some(0) {
            fail!(
                InvalidConfig,
                "{{{inner}}} cannot be parsed: behind {word} may follow, in this order, *N, /N, %N, +N and :0W, \
                 as in {{{word}/2+1:02}}"
            );
        }
        Ok(Number {
            index,
            times: times.unwrap_or(1),
            by: by.unwrap_or(1),
            remainder_of,
            plus: plus.unwrap_or(0),
            width,
        })
    }

    fn of(&self, number: u64) -> u64 {
        let product = number.saturating_mul(self.times);
        let quotient = product.checked_div(self.by).unwrap_or(0);
        let rest = self
            .remainder_of
            .map_or(Some(quotient), |of| quotient.checked_rem(of));
        rest.unwrap_or(0).saturating_add(self.plus)
    }
}

#[cfg(test)]
mod tests;
