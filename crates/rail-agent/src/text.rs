//! Text for people: the log of the agent, and messages that may contain what a tenant wrote.

use std::io::Write as _;

use k8s_openapi::jiff::Timestamp;

/// The longest text that is put into a condition, an Event or a line of the log, in bytes.
const MAX_BYTES: usize = 900;

/// Writes a line to stderr, which the runtime keeps: time, level, message.
pub fn log(level: &str, message: &str) {
    let now = Timestamp::now();
    let _ = writeln!(
        std::io::stderr().lock(),
        "{now:.3} {level:<5} {}",
        clean(message)
    );
}

/// The text on one line, without what could control a terminal, and not too long: a pod's name or a
/// network's error may be whatever a tenant wrote.
pub fn clean(text: &str) -> String {
    let is_unsafe = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let text: String = text
        .chars()
        .map(|c| if is_unsafe(c) { ' ' } else { c })
        .collect();
    let mut clean = text.trim().to_owned();
    if clean.len() > MAX_BYTES {
        let end = (0..=MAX_BYTES)
            .rev()
            .find(|end| clean.is_char_boundary(*end))
            .unwrap_or(0);
        clean.truncate(end);
        clean.push('…');
    }
    clean
}

/// Turns an error and its causes into one line.
pub fn error_text(error: &anyhow::Error) -> String {
    clean(&format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_a_tenant_is_one_short_line() {
        assert_eq!(clean(" a\nb\x1b[2Jc\u{202e}\u{2066}\u{9b} "), "a b [2Jc");
        let long = clean(&"é".repeat(1000));
        assert!(
            long.len() <= MAX_BYTES + '…'.len_utf8() && long.ends_with("é…"),
            "{}",
            long.len()
        );
    }
}
