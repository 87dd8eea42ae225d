//! Carriers of the host's links: a rail that loses its own is looked at without waiting for the next
//! look.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use rail_netlink::carriers::{News, Watch};
use tokio::sync::Notify;

use crate::host;
use crate::text::{error_text, log};

/// Interval of the tries to listen. The kernel's list of links cannot be read while links come and go.
const RETRY_INTERVAL: Duration = Duration::from_secs(15);

/// The changes of carriers that were not looked at yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Wake {
    seen: Arc<Mutex<Changes>>,
    told: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Changes {
    links: BTreeSet<String>,
    /// Whether any link may have changed.
    is_any: bool,
}

impl Wake {
    /// Listens in a thread of its own, in the host's network namespace. While it cannot, the next look
    /// finds what has changed.
    pub(super) fn begin() -> Wake {
        let wake = Wake::default();
        let theirs = wake.clone();
        let listen = move || {
            let mut is_logged = false;
            loop {
                let Err(error) = theirs.listen();
                if !is_logged {
                    log(
                        "warn",
                        &format!(
                            "changes of carriers are found only by the next look: {}",
                            error_text(&error)
                        ),
                    );
                }
                is_logged = true;
                std::thread::sleep(RETRY_INTERVAL);
            }
        };
        let begun = std::thread::Builder::new()
            .name("carriers".to_owned())
            .spawn(listen);
        if let Err(error) = begun {
            log(
                "warn",
                &format!("no thread for changes of carriers: {error}"),
            );
        }
        wake
    }

    /// Waits until the carrier of one of these links has changed.
    pub(super) async fn of(&self, links: &[String]) {
        loop {
            self.told.notified().await;
            let seen = std::mem::take(&mut *self.lock());
            if seen.is_any || links.iter().any(|link| seen.links.contains(link)) {
                return;
            }
        }
    }

    fn listen(&self) -> Result<Infallible> {
        host::enter_network()?;
        let mut watch = Watch::open()?;
        loop {
            let news = watch.wait()?;
            let mut seen = self.lock();
            match news {
                News::Of(links) => seen.links.extend(links),
                News::Lost => seen.is_any = true,
            }
            drop(seen);
            self.told.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Changes> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
