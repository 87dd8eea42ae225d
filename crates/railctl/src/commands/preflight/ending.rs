//! The early end of a preflight: by a signal, or for a pod that wants a rail. It looks between two
//! steps, and gives back what it took.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::{SigSet, Signal};

use rail_cni::attach::attachments::Attachments;
use rail_cni::node::Node;

/// Pause between looks for a pod that wants a rail. ADD waits for a device that is given back for a
/// few seconds.
const LOOK: Duration = Duration::from_millis(50);

/// Whether it ends early.
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_near: AtomicBool,
    /// The call of rail-cni that wants a rail.
    wanted: OnceLock<String>,
}

impl Ending {
    /// From here on, signals only ask.
    pub fn begin() -> Result<Ending> {
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        signals.thread_block()?;
        let ending = Ending::default();
        let other = ending.clone();
        thread::Builder::new().spawn(move || {
            while signals.wait().is_err() {}
            other.come();
        })?;
        Ok(ending)
    }

    /// Ends it when a runtime calls rail-cni for another container: a pod starts or ends here, and
    /// starting ones want what this holds, devices and addresses.
    pub fn watch(&self, node: &Node, own: &str) -> Result<()> {
        let Some(records) = Attachments::open_existing(node)? else {
            return Ok(());
        };
        let (other, own) = (self.clone(), own.to_owned());
        thread::Builder::new().spawn(move || {
            while !other.is_near() {
                if let Ok(Some(call)) = records.busy_but(&own) {
                    let _ = other.0.wanted.set(format!("rail-cni is called for {call}"));
                    other.come();
                }
                thread::sleep(LOOK);
            }
        })?;
        Ok(())
    }

    fn come(&self) {
        self.0.is_near.store(true, Ordering::Relaxed);
    }

    /// Whether it ends.
    pub fn is_near(&self) -> bool {
        self.0.is_near.load(Ordering::Relaxed)
    }

    /// The pod that wants a rail.
    pub fn wanted(&self) -> Option<String> {
        self.0.wanted.get().cloned()
    }

    /// Waits until then, or for the end.
    pub fn wait(&self, until: Instant) {
        while !self.is_near() && Instant::now() < until {
            thread::sleep(LOOK);
        }
    }
}
