//! The order in which people count names: `swp2` before `swp10`.

/// A part of a name, so that `swp2` comes before `swp10`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Chunk<'a> {
    /// The value, and the digits, because `01` is not `1`.
    Number(u64, &'a str),
    /// Anything else.
    Text(&'a str),
}

/// The parts of a name.
pub fn chunks(mut name: &str) -> Vec<Chunk<'_>> {
    let mut chunks = Vec::new();
    while let Some(first) = name.chars().next() {
        let is_number = first.is_ascii_digit();
        let end = name.find(|c: char| c.is_ascii_digit() != is_number).unwrap_or(name.len());
        let (chunk, rest) = name.split_at(end);
        chunks.push(match chunk.parse() {
            Ok(number) if is_number => Chunk::Number(number, chunk),
            _ => Chunk::Text(chunk),
        });
        name = rest;
    }
    chunks
}
