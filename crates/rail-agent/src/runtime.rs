//! The asynchronous runtime, the signals that end it, and intervals.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use anyhow::Result;

/// A runtime with one thread.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

/// Waits for SIGTERM or SIGINT.
pub fn until_stopped() -> Result<()> {
    runtime()?.block_on(stopped())
}

/// Like [`until_stopped`], within a runtime.
pub async fn stopped() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    tokio::select! {
        _ = term.recv() => (),
        _ = int.recv() => (),
    }
    Ok(())
}

/// The interval with random jitter of a tenth: a thousand nodes that start together spread out.
pub fn jittered(interval: Duration) -> Duration {
    // Its random keys make the hash of nothing random.
    let [a, b, c, d, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
    let part = f64::from(u32::from_ne_bytes([a, b, c, d])) / f64::from(u32::MAX);
    interval.mul_f64(0.9 + 0.2 * part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_differ_by_a_tenth_in_both_directions() {
        let second = Duration::from_secs(1);
        let all: Vec<_> = (0..1000).map(|_| jittered(second).as_secs_f64()).collect();
        assert!(
            all.iter().all(|one| (0.899..=1.101).contains(one)),
            "{all:?}"
        );
        // A tenth of the range without any of the 1000 happens once in 10^45 runs.
        for tenth in 0..10 {
            let from = 0.9 + 0.02 * f64::from(tenth);
            assert!(
                all.iter().any(|one| (from..from + 0.02).contains(one)),
                "{from}: {all:?}"
            );
        }
    }
}
