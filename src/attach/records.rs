//! The files of the records. One is `CONTAINER:IFNAME:DEVICE.json` in `attachments/`, so that one
//! listing shows all keys and all devices. Once the device is on the host, and something else is
//! still to be undone, the file moves to `pending/`, in one step: from then on the device is free.

use std::sync::OnceLock;

use anyhow::{Context as _, Result};

use super::locks::{DeviceLock, Locks};
use super::owner::{Key, Part};
use super::record::{Entry, Record, to_json};
use super::steps::Kind as _;
use super::steps::lease::IpamLease;
use super::steps::moved::Move;
use crate::fail;
use crate::files::{Dir, name_part};
use crate::node::Node;

const RECORDS: &str = "attachments";
const PENDING: &str = "pending";
const LOCKS: &str = "locks";

/// The directories of records and locks.
#[derive(Debug)]
pub struct Records {
    run: Dir,
    records: Dir,
    /// Made for the first one.
    pending: OnceLock<Dir>,
    /// The locks.
    pub locks: Locks,
}

/// The names of all records, as they were when they were listed.
#[derive(Clone, Debug)]
pub struct Listed {
    attached: Vec<String>,
    pending: Vec<String>,
}

impl Listed {
    /// Whether anything is pending of an attachment.
    pub fn has_pending_of(&self, key: &Key) -> bool {
        let prefix = prefix(key);
        self.pending
            .iter()
            .any(|name| without_number(name).starts_with(&prefix))
    }

    /// The interfaces of a container that are on record.
    pub fn interfaces_of(&self, container_id: &str) -> Vec<String> {
        let prefix = format!("{}:", name_part(container_id));
        let ours = self
            .attached
            .iter()
            .filter_map(|name| name.strip_prefix(&prefix)?.split(':').next());
        ours.map(str::to_owned).collect()
    }

    /// Whether anything is pending of a device.
    pub fn has_pending_on(&self, id: &str) -> bool {
        let suffix = format!(":{id}.json");
        self.pending.iter().any(|name| name.ends_with(&suffix))
    }
}

/// A record in the directory of pending steps.
#[derive(Debug)]
pub struct Pending {
    name: String,
    /// The record.
    pub record: Record,
}

/// Pending records above this number are dropped, the oldest first: a plugin that is gone for good
/// fails for every pod.
const MOST: usize = 1000;
/// The bytes of network configurations that all of them together may keep.
const MOST_BYTES: usize = 16 << 20;

impl Records {
    /// Opens the directories, and makes those that are missing.
    pub fn open(node: &Node) -> Result<Records> {
        let run = Dir::create(&node.run_dir)?;
        let (records, locks) = (run.create_sub(RECORDS)?, Locks::new(run.create_sub(LOCKS)?));
        Ok(Records {
            records,
            pending: OnceLock::new(),
            locks,
            run,
        })
    }

    /// Opens the directories; `None` where they are missing and cannot be made, because then
    /// nothing was ever attached.
    pub fn open_for_del(node: &Node) -> Result<Option<Records>> {
        match Records::open(node) {
            Ok(records) => Ok(Some(records)),
            Err(error) => {
                log::warn!("{error:#}");
                Records::open_existing(node)
            }
        }
    }

    /// Opens the directories if they exist; if not, nothing was ever attached.
    pub fn open_existing(node: &Node) -> Result<Option<Records>> {
        let Some(run) = node.existing_run_dir()? else {
            return Ok(None);
        };
        let (Some(records), Some(locks)) = (run.sub(RECORDS)?, run.sub(LOCKS)?) else {
            return Ok(None);
        };
        let pending = run.sub(PENDING)?.map(OnceLock::from).unwrap_or_default();
        Ok(Some(Records {
            records,
            pending,
            locks: Locks::new(locks),
            run,
        }))
    }

    /// The record of an attachment. A file that cannot be read, or that is about another
    /// attachment, is replaced by the copy in the device's lock file. Fails if there is no copy
    /// either: a later version may have written it.
    pub fn find(&self, key: &Key) -> Result<Option<Record>> {
        let on_file = self.on_file(key);
        if matches!(on_file, Ok(Some(_))) {
            return on_file;
        }
        let copy = self
            .copies()?
            .into_iter()
            .find(|copy| copy.owner.key() == *key);
        if copy.is_none() {
            return on_file;
        }
        log::warn!("the record of {key} is lost: using its copy");
        Ok(copy)
    }

    /// Like [`Records::find`], without the copies, of which there is one for each attached device.
    pub fn on_file(&self, key: &Key) -> Result<Option<Record>> {
        let prefix = prefix(key);
        let names = self.records.names_where(|name| name.starts_with(&prefix))?;
        self.first_of(key, names.iter())
    }

    /// Like [`Records::on_file`], among the names that were listed.
    pub fn on_file_in(&self, listed: &Listed, key: &Key) -> Result<Option<Record>> {
        let prefix = prefix(key);
        let names = listed.attached.iter();
        self.first_of(key, names.filter(|name| name.starts_with(&prefix)))
    }

    fn first_of<'n>(
        &self,
        key: &Key,
        names: impl Iterator<Item = &'n String>,
    ) -> Result<Option<Record>> {
        let mut unreadable = None;
        for name in names {
            let why = match read(&self.records, name) {
                Ok(Some(record)) if record.owner.key() == *key => return Ok(Some(record)),
                Ok(Some(record)) => format!("{name} is the record of {}", record.owner.key()),
                Ok(None) => continue,
                Err(error) => format!("{error:#}"),
            };
            log::warn!("{why}");
            unreadable = Some((name, why));
        }
        match unreadable {
            None => Ok(None),
            Some((name, why)) => fail!(
                Io,
                "{why}: device and address of {key} stay as they are. If another version of \
                 rail-cni wrote it, install that version again; if no pod has the device, \
                 `railctl reap --forget {name}`"
            ),
        }
    }

    /// Lists the names of all records once: they have the key and the device of each.
    pub fn list(&self) -> Result<Listed> {
        Ok(Listed {
            attached: self.records.names()?,
            pending: self.pending_names()?,
        })
    }

    /// The attachments among the names that were listed, other than `but`, that claim the device,
    /// and the one in the copy of its lock.
    pub fn claims_in(&self, listed: &Listed, id: &str, but: &Key) -> Result<Vec<Record>> {
        let suffix = format!(":{id}.json");
        let names = listed.attached.iter();
        let mut claims = self.read_named(id, names.filter(|name| name.ends_with(&suffix)));
        let copy = self.locks.copy_of(id)?.and_then(|copy| parse_copy(&copy));
        add_missing(&mut claims, copy);
        claims.retain(|claim| claim.owner.key() != *but);
        Ok(claims)
    }

    /// Every record that can be read, and the names of the files that cannot.
    pub fn all(&self) -> Result<(Vec<Record>, Vec<String>)> {
        let (mut records, mut unreadable) = (Vec::<Record>::new(), Vec::new());
        for name in self.records.names()? {
            match read(&self.records, &name) {
                Ok(record) => records.extend(record),
                Err(error) => {
                    log::warn!("{error:#}");
                    unreadable.push(name);
                }
            }
        }
        for copy in self.copies()? {
            if !records
                .iter()
                .any(|record| record.owner.key() == copy.owner.key())
            {
                records.push(copy);
            }
        }
        Ok((records, unreadable))
    }

    /// The attachments, other than `but`, that claim the device, judged by the names of the files
    /// and by the copy that `lock` carries.
    pub fn claims_on(
        &self,
        id: &str,
        lock: &mut DeviceLock,
        but: Option<&Key>,
    ) -> Result<Vec<Record>> {
        let mut claims = self.named(id)?;
        add_missing(&mut claims, parse_copy(&lock.copy()?));
        claims.retain(|claim| but != Some(&claim.owner.key()));
        Ok(claims)
    }

    /// The records whose file name ends in the device `id`.
    pub fn named(&self, id: &str) -> Result<Vec<Record>> {
        let suffix = format!(":{id}.json");
        let names = self.records.names_where(|name| name.ends_with(&suffix))?;
        Ok(self.read_named(id, names.iter()))
    }

    fn read_named<'n>(&self, id: &str, names: impl Iterator<Item = &'n String>) -> Vec<Record> {
        let mut records = Vec::new();
        for name in names {
            match read(&self.records, name) {
                Ok(record) => records.extend(record.filter(|record| record.owner.device.id == id)),
                Err(error) => log::warn!("{error:#}"),
            }
        }
        records
    }

    /// Writes the record and its copy. Call it before doing what it describes.
    pub fn write(&self, record: &Record, device: &mut DeviceLock) -> Result<()> {
        let json = to_json(record)?;
        device.set_copy(&json)?;
        self.records.write(&file_name(record), &json)
    }

    /// Removes the record, its copy, and the temporary files of a killed ADD.
    pub fn remove(&self, record: &Record, device: &mut DeviceLock) -> Result<()> {
        self.remove_half_written(&record.owner.key())?;
        self.records.remove(&file_name(record))?;
        device.set_copy(b"")
    }

    /// Removes the temporary files of a killed ADD.
    pub fn remove_half_written(&self, key: &Key) -> Result<()> {
        self.records.remove_half_written(&prefix(key), |_| ())
    }

    /// Removes a file that [`Records::all`] could not read. Only an operator may ask for that: a
    /// later version may have written it, for a pod that lives.
    pub fn remove_unreadable(&self, name: &str) -> Result<()> {
        self.records.remove(name)
    }

    /// Moves the record to the pending ones: from then on the device is free, and what is left to
    /// do blocks no other call.
    pub fn end(&self, record: &Record, device: &mut DeviceLock) -> Result<Pending> {
        if self.pending_dir()?.is_none() {
            self.run.create_sub(PENDING)?;
        }
        let pending = self
            .pending_dir()?
            .context("no directory of pending steps")?;
        let on_file = file_name(record);
        let json = to_json(record)?;
        // The progress of the steps is on file before the device is free, because the next ADD of
        // the device reads it. On a full /run, that ADD takes every step for unfinished, and looks.
        self.records
            .write(&on_file, &json)
            .unwrap_or_else(|error| log::warn!("{error:#}"));
        let name = match pending.receive(&self.records, &on_file)? {
            Some(name) => name,
            // This file system cannot rename between the two directories.
            None => {
                let name = pending.free_name(&on_file)?;
                pending.write(&name, &json)?;
                self.records.remove(&on_file)?;
                name
            }
        };
        self.remove_half_written(&record.owner.key())?;
        device.set_copy(b"")?;
        Ok(Pending {
            name,
            record: record.clone(),
        })
    }

    /// Every pending record that can be read.
    pub fn pending(&self) -> Result<Vec<Pending>> {
        self.pending_named(|_| true)
    }

    /// The pending records of the device `id`.
    pub fn pending_of(&self, id: &str) -> Result<Vec<Pending>> {
        let suffix = format!(":{id}.json");
        self.pending_named(|name| name.ends_with(&suffix))
    }

    /// The pending records of an attachment.
    pub fn pending_by(&self, key: &Key) -> Result<Vec<Pending>> {
        let prefix = prefix(key);
        self.pending_named(|name| without_number(name).starts_with(&prefix))
    }

    /// The directory of pending steps. Another call may have made it since this one began.
    fn pending_dir(&self) -> Result<Option<&Dir>> {
        if self.pending.get().is_none() {
            self.run.sub(PENDING)?.map(|dir| self.pending.set(dir));
        }
        Ok(self.pending.get())
    }

    /// The names of the files of all pending records.
    pub fn pending_names(&self) -> Result<Vec<String>> {
        self.pending_dir()?.map_or(Ok(Vec::new()), Dir::names)
    }

    fn pending_named(&self, is_meant: impl Fn(&str) -> bool) -> Result<Vec<Pending>> {
        let names = self
            .pending_dir()?
            .map_or(Ok(Vec::new()), |pending| pending.names_where(is_meant))?;
        self.pending_at(names)
    }

    /// The pending records in these files, as far as they can be read.
    pub fn pending_at(&self, names: Vec<String>) -> Result<Vec<Pending>> {
        let Some(pending) = self.pending_dir()? else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for name in names {
            match read_pending(pending, &name) {
                Ok(record) => found.extend(record.map(|record| Pending { name, record })),
                Err(error) => log::warn!("{error:#}"),
            }
        }
        Ok(found)
    }

    /// Drops what is above the limits. Every pending record holds its network's configuration,
    /// which a tenant wrote: it must not fill /run. The original state of a device is kept.
    pub fn limit_pending(&self) -> Result<()> {
        let mut all = self.pending()?;
        all.sort_by(|one, other| other.record.owner.since.cmp(&one.record.owner.since));
        let (mut size, mut kept) = (0, 0);
        for pending in all.iter().take(MOST) {
            size += pending
                .record
                .find::<IpamLease>()
                .map_or(0, |lease| lease.config.len());
            if size > MOST_BYTES {
                break;
            }
            kept += 1;
        }
        for mut pending in all.drain(kept..) {
            log::error!(
                "too much is pending: dropping the steps of {}",
                pending.record.owner.describe()
            );
            for step in &mut pending.record.steps {
                if let Some(lease) = IpamLease::of_mut(&mut step.change) {
                    lease.config.clear();
                }
                if !step.is_of_device() {
                    step.undone(Ok(()));
                }
            }
            self.note(&mut pending, |step| !step.is_of_device())?;
        }
        Ok(())
    }

    /// The pending record as it is on file now; `None` if another call has undone it all.
    pub fn pending_now(&self, pending: &Pending) -> Option<Pending> {
        let dir = self.pending_dir().ok().flatten()?;
        let record = read_pending(dir, &pending.name).unwrap_or_else(|error| {
            log::warn!("{error:#}: it is replaced");
            Some(pending.record.clone())
        });
        record.map(|record| Pending {
            name: pending.name.clone(),
            record,
        })
    }

    /// Writes what became of the steps that `tried` names to the record as it is on file now, and
    /// removes it when nothing is left: a DEL of the attachment and an ADD of the device may both
    /// be at work on it. What another call has undone meanwhile stays undone.
    pub fn note(&self, pending: &mut Pending, tried: impl Fn(&Entry) -> bool) -> Result<()> {
        let _lock = self.locks.pending()?;
        let Some(mut now) = self.pending_now(pending) else {
            pending.record.steps.clear();
            return Ok(());
        };
        for step in now.record.steps.iter_mut().filter(|step| step.is_left()) {
            let name = step.change.name();
            let ours = pending
                .record
                .steps
                .iter()
                .find(|ours| ours.change.name() == name);
            // A full /run may have kept the end of the attachment off the file.
            if let Some(ours) = ours.filter(|ours| tried(ours) || !ours.is_left()) {
                step.clone_from(ours);
            }
        }
        *pending = now;
        if !pending.record.is_left() {
            return self.remove_pending(pending);
        }
        let dir = self.pending.get();
        dir.map_or(Ok(()), |dir| {
            dir.write(&pending.name, &to_json(&pending.record)?)
        })
    }

    /// Removes a pending record, whatever is left.
    pub fn forget(&self, pending: &Pending) -> Result<()> {
        let _lock = self.locks.pending()?;
        self.remove_pending(pending)
    }

    fn remove_pending(&self, pending: &Pending) -> Result<()> {
        let Some(dir) = self.pending.get() else {
            return Ok(());
        };
        dir.discard(&pending.name);
        dir.remove(&pending.name)
    }

    fn copies(&self) -> Result<Vec<Record>> {
        Ok(self
            .locks
            .copies()?
            .iter()
            .filter_map(|copy| parse_copy(copy))
            .collect())
    }
}

/// The record in the file `name`; `None` when there is none.
fn read(folder: &Dir, name: &str) -> Result<Option<Record>> {
    let Some(content) = folder.read(name)? else {
        return Ok(None);
    };
    let path = folder.path().join(name);
    let record =
        Record::parse(&content).with_context(|| format!("{} is not a record", path.display()))?;
    Ok(Some(record))
}

/// Reads a pending record, whose device is home, or gone: also where a full /run kept that off the
/// file.
fn read_pending(folder: &Dir, name: &str) -> Result<Option<Record>> {
    let mut record = read(folder, name)?;
    for step in record.iter_mut().flat_map(|record| &mut record.steps) {
        if step.is::<Move>() {
            step.undone(Ok(()));
        }
    }
    Ok(record)
}

/// The name of a pending record without the number that keeps two of one key apart.
fn without_number(name: &str) -> &str {
    match name.split_once('~') {
        Some((number, rest)) if number.parse::<u32>().is_ok() => rest,
        _ => name,
    }
}

/// Adds the copy of a record whose file is lost.
fn add_missing(claims: &mut Vec<Record>, copy: Option<Record>) {
    let Some(copy) = copy else { return };
    let key = copy.owner.key();
    if !claims.iter().any(|claim| claim.owner.key() == key) {
        claims.push(copy);
    }
}

/// The prefix of the names of an attachment's records.
fn prefix(key: &Key) -> String {
    let Key { attachment, part } = key;
    // Neither part contains a colon, and no name of a netdev has a space.
    let part = if *part == Part::Rdma { " (rdma)" } else { "" };
    format!(
        "{}:{}{part}:",
        name_part(&attachment.container_id),
        attachment.ifname
    )
}

fn file_name(record: &Record) -> String {
    format!(
        "{}{}.json",
        prefix(&record.owner.key()),
        record.owner.device.id
    )
}

/// A copy whose writer was killed says nothing: the record would have been written after it.
fn parse_copy(copy: &[u8]) -> Option<Record> {
    let copy = Record::parse(copy).ok()?;
    copy.owner
        .is_of_this_boot()
        .is_ok_and(|is| is)
        .then_some(copy)
}
