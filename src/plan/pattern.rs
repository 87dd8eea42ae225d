//! Names with numbers in them: `worker-gpu-{node}`, `leaf-su{su+1:02}-r{rail}`, `swp{host/2+1}s{host%2}`.
//!
//! Between braces stands the name of a number; behind it, in this order and each at most once, `*N`, `/N` (rounded
//! down), `%N` (the remainder), `+N`, and `:0W` for at least W digits. One order, so that no reader has to know
//! which of two signs goes first.

use anyhow::Result;

use crate::fail;
use crate::nearest::nearest;

/// No switch counts further.
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
    /// Which of the numbers.
    index: usize,
    times: u64,
    by: u64,
    remainder_of: Option<u64>,
    plus: u64,
    /// Digits, at least.
    width: usize,
}

impl<const N: usize> Pattern<N> {
    /// Parses a pattern that may use the numbers of these names.
    pub fn parse(text: &str, known: &[&str; N]) -> Result<Pattern<N>> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, braces) = rest.split_at(at);
            let inner = braces.strip_prefix('{').and_then(|inner| inner.split_once('}'));
            let Some((inner, after)) = inner.filter(|(inner, _)| !inner.contains('{')) else {
                fail!(InvalidConfig, "{text:?}: a brace without the other one");
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
            fail!(InvalidConfig, "an empty pattern names nothing");
        }
        Ok(Pattern { pieces })
    }

    /// The name for these numbers, in the order of their names.
    pub fn render(&self, numbers: &[u64; N]) -> String {
        let mut name = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => name.push_str(text),
                Piece::Number(number) => {
                    let digits = number.of(numbers.get(number.index).copied().unwrap_or(0)).to_string();
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
        let end = inner.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(inner.len());
        let (word, mut rest) = inner.split_at(end);
        let Some(index) = known.iter().position(|one| *one == word) else {
            let meant = nearest(word, known.iter().copied()).map(|meant| format!(": did you mean {meant}?"));
            let list = known.iter().map(|one| format!("{{{one}}}")).collect::<Vec<_>>().join(", ");
            fail!(InvalidConfig, "{{{inner}}} is not one of {list}{}", meant.unwrap_or_default());
        };
        let mut number = |sign: char| {
            let digits = rest.strip_prefix(sign)?;
            let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            let value = digits[..end].parse().ok().filter(|value| *value <= MAX_NUMBER)?;
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
                "{{{inner}}} cannot be read: behind {word}, in this order, may stand *N, /N, %N, +N and :0W, \
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
        let rest = self.remainder_of.map_or(Some(quotient), |of| quotient.checked_rem(of));
        rest.unwrap_or(0).saturating_add(self.plus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KNOWN: [&str; 3] = ["rail", "plane", "host"];

    fn rendered(pattern: &str, numbers: [u64; 3]) -> String {
        Pattern::parse(pattern, &KNOWN).unwrap().render(&numbers)
    }

    #[test]
    fn numbers_are_counted_as_the_pattern_says() {
        for (pattern, name) in [
            ("rail-{rail}-plane-{plane}", "rail-7-plane-1"),
            ("rail-{rail+1}", "rail-8"),
            ("r{rail:03}", "r007"),
            ("h{host:01}", "h37"),
            ("swp{host/2+1}s{host%2}", "swp19s1"),
            ("swp{host*2}", "swp74"),
            ("swp{host*4/8%16+1:04}x", "swp0003x"),
            ("{host}", "37"),
            ("fixed", "fixed"),
        ] {
            assert_eq!(rendered(pattern, [7, 1, 37]), name, "{pattern}");
        }
        assert_eq!(rendered("{rail*999999+999999}", [u64::MAX, 0, 0]), u64::MAX.to_string());
    }

    #[test]
    fn what_is_wrong_with_a_pattern_is_told() {
        for (pattern, told) in [
            ("", "an empty pattern"),
            ("w{", "\"w{\": a brace without the other one"),
            ("w}", "a brace without the other one"),
            ("w{rail{plane}}", "a brace without the other one"),
            ("{}", "{} is not one of {rail}, {plane}, {host}"),
            ("{hots}", "{hots} is not one of {rail}, {plane}, {host}: did you mean host?"),
            ("{Rail}", "did you mean rail?"),
            ("{su}", "{su} is not one of"),
            ("{rail-1}", "{rail-1} cannot be read: behind rail, in this order"),
            ("{rail+1/2}", "as in {rail/2+1:02}"),
            ("{rail+}", "cannot be read"),
            ("{rail/0}", "cannot be read"),
            ("{rail%0}", "cannot be read"),
            ("{rail*0}", "cannot be read"),
            ("{rail+1000000}", "cannot be read"),
            ("{rail:2}", "cannot be read"),
            ("{rail:00}", "cannot be read"),
            ("{rail:010}", "cannot be read"),
            ("{rail:0+2}", "cannot be read"),
            ("{rail }", "cannot be read"),
        ] {
            let error = Pattern::parse(pattern, &KNOWN).unwrap_err().to_string();
            assert!(error.contains(told), "{pattern}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_pattern_makes_it_panic(
            pattern in "([a-z{}:*/%+0-9é]|rail|\\{rail){0,12}", number in any::<u64>(),
        ) {
            if let Ok(pattern) = Pattern::parse(&pattern, &KNOWN) {
                pattern.render(&[number, 0, number]);
            }
        }
    }
}
