//! A progress bar on a terminal. If stderr is a file or a pipe, nothing is printed.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Work that ends within this time gets no bar.
const PATIENCE: Duration = Duration::from_millis(200);
const PERIOD: Duration = Duration::from_millis(100);
const WIDTH: usize = 20;

/// A progress bar, which disappears when it is dropped.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    total: usize,
    done: usize,
    /// The time of the next drawing; `None` without a terminal.
    next: Option<Instant>,
    is_drawn: bool,
}

impl Progress {
    /// A bar for `total` steps of `what`.
    pub fn new(what: &'static str, total: usize) -> Progress {
        let is_seen = io::stderr().is_terminal()
            && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Progress {
            what,
            total,
            done: 0,
            next: is_seen.then(|| Instant::now() + PATIENCE),
            is_drawn: false,
        }
    }

    /// A bar for one step, which is drawn at once.
    pub fn wait(what: &'static str) -> Progress {
        let mut progress = Progress::new(what, 0);
        if progress.next.is_some() {
            progress.draw();
        }
        progress
    }

    /// Counts a step that is done.
    pub fn step(&mut self) {
        self.done += 1;
        if let Some(next) = self.next {
            let now = Instant::now();
            if now >= next {
                self.next = Some(now + PERIOD);
                self.draw();
            }
        }
    }

    fn draw(&mut self) {
        self.is_drawn = true;
        let _ = write!(
            io::stderr().lock(),
            "\r{}\x1b[K",
            line(self.what, self.done, self.total)
        );
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_drawn {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}

fn line(what: &str, done: usize, total: usize) -> String {
    if total == 0 {
        return format!("{what} ...");
    }
    let (done, filled) = (done.min(total), done.min(total) * WIDTH / total);
    let (bar, percent) = ("#".repeat(filled), done * 100 / total);
    format!("{what} [{bar:-<WIDTH$}] {percent:3} % of {total}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_fills_and_never_overflows() {
        assert_eq!(
            line("writing", 0, 8192),
            "writing [--------------------]   0 % of 8192"
        );
        assert_eq!(
            line("writing", 4096, 8192),
            "writing [##########----------]  50 % of 8192"
        );
        assert_eq!(
            line("writing", 9000, 8192),
            "writing [####################] 100 % of 8192"
        );
        assert_eq!(line("waiting", 0, 0), "waiting ...");
    }
}
