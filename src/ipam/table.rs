//! The leases of this node: one table, keyed by the address alone, whatever node name, pool or
//! network an ADD comes with. It is the directory `leases/` of the run directory.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;

use super::emptied;
use super::lease::{Lease, VERSION};
use super::migrate::migrate;
use super::names::{Entry, FOLDER, LOCK, key, parts};
use crate::cni::Attachment;
use crate::fail;
use crate::files::{Dir, Lock};
use crate::node::Node;

/// An ADD holds the lock for less than a millisecond.
const PATIENCE: Duration = Duration::from_secs(10);

/// All leases of this node, in the order of their addresses, without those that end meanwhile. The
/// error of an entry is that of [`Table::read`].
pub fn read_all(node: &Node) -> Result<Vec<(Entry, Result<Lease, String>)>> {
    let Some(table) = Table::existing(node)? else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for entry in table.entries()? {
        let lease = table.read(&entry).transpose();
        all.extend(lease.map(|lease| (entry, lease)));
    }
    Ok(all)
}

/// The leases of an attachment, in any state. Fails if one of them cannot be read.
pub fn held_by(node: &Node, network: &str, attachment: &Attachment) -> Result<Vec<Lease>> {
    let Some(table) = Table::existing(node)? else {
        return Ok(Vec::new());
    };
    let key = key(network, attachment);
    let mut held = Vec::new();
    for entry in table.entries()?.iter().filter(|entry| entry.key() == key) {
        match table.read(entry) {
            Ok(lease) => held.extend(lease.filter(|lease| lease.holder.is(network, attachment))),
            Err(why) => fail!(CheckFailed, "{why}"),
        }
    }
    Ok(held)
}

/// Fails if no lease could be written. It is no failure if living pods hold every address: the
/// runtime would call the node not ready, and after a while evict the pod that has the rail.
pub fn serves(node: &Node) -> Result<()> {
    match node.existing_run(FOLDER)? {
        Some(dir) => dir.writable(),
        None => Ok(()),
    }
}

/// The table of leases.
#[derive(Debug)]
pub struct Table {
    dir: Dir,
}

impl Table {
    /// Opens the table, and makes it at the first use of a boot. Fails if it was emptied.
    pub fn create(node: &Node) -> Result<Table> {
        emptied::begin(node).map(|dir| Table { dir })
    }

    /// The table, if it exists.
    pub fn existing(node: &Node) -> Result<Option<Table>> {
        let Some(run) = node.existing_run_dir()? else {
            return Ok(None);
        };
        let Some(dir) = run.sub(FOLDER)? else {
            return Ok(None);
        };
        migrate(&run, &dir)?;
        Ok(Some(Table { dir }))
    }

    /// Excludes every other process that changes leases.
    pub fn lock(&self) -> Result<Lock> {
        self.dir.lock(LOCK, PATIENCE)
    }

    /// All leases, in the order of their addresses.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.dir.visit(|name| entries.extend(Entry::parse(name)))?;
        entries.sort();
        Ok(entries)
    }

    /// The lease of an entry; `None` if it is gone by now. The error says why the file is damaged:
    /// leases are renamed into place, so rail-ipam never writes a file that is cut or does not
    /// match its name.
    pub fn read(&self, entry: &Entry) -> Result<Option<Lease>, String> {
        let file = self.dir.path().join(&entry.name);
        let damaged = |why: String| {
            format!(
                "{} cannot be read ({why}), so its holder is unknown: if no pod has the address, \
                 `railctl release --address {}`",
                file.display(),
                entry.address,
            )
        };
        let Some(content) = self
            .dir
            .read(&entry.name)
            .map_err(|error| damaged(format!("{error:#}")))?
        else {
            return Ok(None);
        };
        let lease: Lease =
            serde_json::from_slice(&content).map_err(|error| damaged(error.to_string()))?;
        if lease.version != VERSION {
            return Err(damaged(format!("version {}", lease.version)));
        }
        if lease.file_name() != entry.name {
            return Err(damaged("it is about another lease".to_owned()));
        }
        Ok(Some(lease))
    }

    /// Removes an entry.
    pub fn remove(&self, entry: &Entry) -> Result<()> {
        self.dir.remove(&entry.name)
    }

    /// The leases with this key, and the addresses of all others. The table is locked.
    pub fn list(&self, key: &str) -> Result<(Vec<Entry>, Vec<IpAddr>)> {
        let mut own = Vec::new();
        // For other holders the addresses are enough, as long as one is free.
        let mut held = Vec::new();
        self.dir.remove_half_written("", |name| match parts(name) {
            Some((_, of)) if of == key => own.extend(Entry::parse(name)),
            Some((address, _)) => held.push(address),
            None => (),
        })?;
        Ok((own, held))
    }

    /// Every entry but those with this key.
    pub fn entries_but(&self, key: &str) -> Result<Vec<Entry>> {
        let mut entries = self.entries()?;
        entries.retain(|entry| entry.key() != key);
        Ok(entries)
    }

    /// The entries that `is_meant` selects. Removes half-written files, those of killed ADDs, if the
    /// table is locked.
    pub fn select(&self, is_locked: bool, is_meant: impl Fn(&Entry) -> bool) -> Result<Vec<Entry>> {
        let mut selected = Vec::new();
        let mut look = |name: &str| selected.extend(Entry::parse(name).filter(&is_meant));
        if !is_locked || self.dir.remove_half_written("", &mut look).is_err() {
            self.dir.visit(look)?;
        }
        selected.sort();
        selected.dedup();
        Ok(selected)
    }

    /// Writes a lease.
    pub fn write(&self, lease: &Lease) -> Result<()> {
        let content = serde_json::to_vec(lease)?;
        self.dir.write(&lease.file_name(), &content)
    }
}
