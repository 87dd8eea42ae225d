//! The order in which people count names: `swp2` before `swp10`.

use std::cmp::Ordering;

/// A part of a name, so that `swp2` comes before `swp10`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Chunk<'a> {
    /// The value, and the digits, because `01` is not `1`.
    Number(u64, &'a str),
    /// Anything else.
    Text(&'a str),
}

/// The first part of a name and the rest of it; `None` at the end.
fn first(name: &str) -> Option<(Chunk<'_>, &str)> {
    let is_number = name.chars().next()?.is_ascii_digit();
    let end = name
        .find(|c: char| c.is_ascii_digit() != is_number)
        .unwrap_or(name.len());
    let (chunk, rest) = name.split_at(end);
    let chunk = match chunk.parse() {
        Ok(number) if is_number => Chunk::Number(number, chunk),
        _ => Chunk::Text(chunk),
    };
    Some((chunk, rest))
}

/// Sorts names.
pub fn sort(names: &mut [&str]) {
    names.sort_unstable_by(|one, other| compare(one, other));
}

/// The order of two names.
pub fn compare(mut one: &str, mut other: &str) -> Ordering {
    loop {
        match (first(one), first(other)) {
            (Some((chunk, rest)), Some((other_chunk, other_rest))) => match chunk.cmp(&other_chunk)
            {
                Ordering::Equal => (one, other) = (rest, other_rest),
                order => return order,
            },
            (chunk, other_chunk) => return chunk.is_some().cmp(&other_chunk.is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_counted() {
        let mut names = [
            "n10",
            "n9",
            "n",
            "n9-2",
            "m11",
            "n09",
            "n99999999999999999999",
        ];
        sort(&mut names);
        assert_eq!(
            names,
            [
                "m11",
                "n",
                "n09",
                "n9",
                "n9-2",
                "n10",
                "n99999999999999999999"
            ]
        );
    }
}
