//! The plugins' state of pods in the run directory, by the names of its files: for when the plugins
//! cannot be asked, and for when nothing at all may be there.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::host::{Host, HostDir};

/// The names of files.
#[derive(Debug, Default)]
pub struct Held {
    /// Records of devices that pods have.
    pub attachments: Vec<String>,
    /// Records of pods that are gone, of which something is still to be undone.
    pub pending: Vec<String>,
    /// Addresses that are held, as `ADDRESS@KEY.json`.
    pub leases: Vec<String>,
}

impl Held {
    /// Lists the run directory of this host.
    pub fn of(host: &Host, run_dir: &Path) -> Result<Held> {
        let Some(dir) = host.dir(run_dir)? else {
            return Ok(Held::default());
        };
        Ok(Held {
            attachments: files(&dir, "attachments")?,
            pending: files(&dir, "pending")?,
            leases: files(&dir, "leases")?,
        })
    }

    /// Numbers of each kind; `None` if there is nothing.
    pub fn shown(&self) -> Option<String> {
        let counts = [
            (self.attachments.len(), "records of devices"),
            (self.pending.len(), "records of pods that are gone"),
            (self.leases.len(), "leases of addresses"),
        ];
        let shown: Vec<_> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        (!shown.is_empty()).then(|| shown.join(", "))
    }
}

/// The files of the plugins in a folder. What is half-written, and a lock, has another ending.
fn files(dir: &HostDir, folder: &str) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(dir.at(folder)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => {
            entries.with_context(|| format!("cannot list {} of the host", dir.shown(folder)))?
        }
    };
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter(|name| name.ends_with(".json")).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pods_have_and_what_is_pending_is_found_and_locks_are_not() {
        let temp = tempfile::tempdir().unwrap();
        let dir = HostDir::here(temp.path());
        let list = |folder| files(&dir, folder).unwrap();
        assert!(list("attachments").is_empty() && list("leases").is_empty());
        for path in [
            "attachments/a.json",
            "attachments/.tmp.1",
            "leases/10.0.0.0@k.json",
            "leases/lock",
            "leases/x",
        ] {
            let path = temp.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        assert_eq!(list("attachments"), ["a.json"]);
        assert_eq!(list("leases"), ["10.0.0.0@k.json"]);
        let held = Held {
            leases: list("leases"),
            ..Held::default()
        };
        golden::says("agent", "uninstall: what is held", held.shown().unwrap());
        assert!(Held::default().shown().is_none());
    }
}
