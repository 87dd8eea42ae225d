//! Divides an input where a target needs more than one text. The corpora stay readable that way.

/// The line between two parts.
const BETWEEN: &[u8] = b"\n%%\n";

/// The first line, and the rest.
pub fn line(data: &[u8]) -> (&[u8], &[u8]) {
    match data.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &[]),
    }
}

/// The choice that the nth character of a line makes, among so many.
pub fn choice(line: &[u8], nth: usize, of: usize) -> usize {
    usize::from(line.get(nth).copied().unwrap_or(b'0').wrapping_sub(b'0')) % of
}

/// As text, in which bytes that are no UTF-8 are replaced.
pub fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}

/// The parts between lines of `%%`, at most so many; the last one has the rest.
pub fn parts(data: &[u8], most: usize) -> Vec<&[u8]> {
    let (mut parts, mut rest) = (Vec::new(), data);
    while parts.len() + 1 < most {
        let Some(end) = rest
            .windows(BETWEEN.len())
            .position(|window| window == BETWEEN)
        else {
            break;
        };
        parts.push(&rest[..end]);
        rest = &rest[end + BETWEEN.len()..];
    }
    parts.push(rest);
    parts
}
