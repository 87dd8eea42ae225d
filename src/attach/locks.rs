//! The locks of rail-cni, files in `/run/rail-cni/locks` that are never removed while they matter.
//! A call takes them in this order, and never waits for one that precedes a lock that it holds. Of
//! other attachments or devices than its own it takes only locks that are free.
//!
//! 1. `attachment-CONTAINER:IFNAME`, during a call
//! 2. `device-DEVICE`, from the claim on; in a DEL, until the device is free
//! 3. `netns-INODE`, while an ADD without a rail chooses a routing table
//! 4. `turn`, while a device moves and is set up, or restored
//! 5. `pending`, while a pending record is written
//! 6. `binding`, while a driver is bound, until netdev and RDMA device exist; and while an RDMA
//!    device moves
//! 7. `pf-ADDRESS`, while the PF sets something, or its VF's driver is bound

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::owner::{Key, Part};
use crate::error::{self, Code};
use crate::fail;
use crate::files::{self, Dir, Lock, name_part};
use crate::netns::NetnsId;

/// Longer than an ADD with its IPAM takes, shorter than a runtime waits for a DEL (CRI-O: one
/// minute).
const PATIENCE: Duration = Duration::from_secs(35);
/// As long as some fifty moves take.
const TURN: Duration = Duration::from_secs(1);
/// As long as 64 VFs of a PF take whose driver resets each of them with each setting.
const PF_PATIENCE: Duration = Duration::from_secs(120);
/// Lock files are pruned when there are more than these, so many in a call. Those with the time of
/// a DEL that is younger stay.
const MAX_LOCKS: usize = 256;
const PRUNED: usize = 64;
const OLD_NOTE: Duration = Duration::from_secs(300);

const ATTACHMENT: &str = "attachment-";
const NETNS: &str = "netns-";
const DEVICE: &str = "device-";

/// The directory of locks.
#[derive(Debug)]
pub struct Locks(Dir);

/// The lock of an attachment, which also remembers when its last DEL was.
#[derive(Debug)]
pub struct AttachmentLock {
    lock: Lock,
    key: Key,
}

/// The lock of a device. It keeps a second copy of the record, for records that are removed by
/// hand.
#[derive(Debug)]
pub struct DeviceLock(Lock);

impl Locks {
    /// The locks in `dir`.
    pub fn new(dir: Dir) -> Locks {
        Locks(dir)
    }

    /// Locks the attachment, after every other call for it has ended.
    pub fn attachment(&self, key: &Key) -> Result<AttachmentLock> {
        let lock = self.0.lock(&name_of(key), PATIENCE);
        let lock = lock.with_context(|| format!("waiting for another call for {key}"))?;
        Ok(AttachmentLock {
            lock,
            key: key.clone(),
        })
    }

    /// Like [`Locks::attachment`], or `None` while another call for it is at work.
    pub fn try_attachment(&self, key: &Key) -> Result<Option<AttachmentLock>> {
        let lock = self.0.try_lock(&name_of(key))?;
        Ok(lock.map(|lock| AttachmentLock {
            lock,
            key: key.clone(),
        }))
    }

    /// Like [`Locks::attachment`], or `None` if another call for it is at work for longer than
    /// `patience`.
    pub fn attachment_within(
        &self,
        key: &Key,
        patience: Duration,
    ) -> Result<Option<AttachmentLock>> {
        match self.0.lock(&name_of(key), patience) {
            Err(error) if error::code_of(&error) == Code::TryAgain as u32 => Ok(None),
            lock => Ok(Some(AttachmentLock {
                lock: lock?,
                key: key.clone(),
            })),
        }
    }

    /// Is a call for it at work now?
    pub fn is_busy(&self, key: &Key) -> Result<bool> {
        self.0.is_locked(&name_of(key))
    }

    /// The attachment of another container than `own` for which a call is at work now, for people.
    pub fn busy_but(&self, own: &str) -> Result<Option<String>> {
        let own = name_part(own);
        for name in self.0.names()? {
            let Some(attachment) = name.strip_prefix(ATTACHMENT) else {
                continue;
            };
            if attachment.split(':').next() != Some(&own) && self.0.is_locked(&name)? {
                return Ok(Some(attachment.to_owned()));
            }
        }
        Ok(None)
    }

    /// Locks the pod's namespace against other networks that choose a routing table in it.
    pub fn netns(&self, netns: &NetnsId) -> Result<Lock> {
        let lock = self.0.lock(&format!("{NETNS}{}", netns.ino), PATIENCE);
        lock.with_context(|| format!("waiting for another network of {}", netns.path.display()))
    }

    /// Locks the device, after every other call that holds it has ended.
    pub fn device(&self, id: &str) -> Result<DeviceLock> {
        let lock = self.0.lock(&format!("{DEVICE}{id}"), PATIENCE);
        Ok(DeviceLock(
            lock.with_context(|| format!("waiting for the device {id}"))?,
        ))
    }

    /// Like [`Locks::device`], or `None` while another call holds it.
    pub fn try_device(&self, id: &str) -> Result<Option<DeviceLock>> {
        Ok(self.0.try_lock(&format!("{DEVICE}{id}"))?.map(DeviceLock))
    }

    /// Waits until no other call of this node moves a device. The kernel makes one move at a time,
    /// and each request that a call makes after its move would queue behind the moves of all
    /// others. Nothing depends on it: who has waited for long goes on without.
    pub fn turn(&self) -> Option<Lock> {
        self.0
            .lock("turn", TURN)
            .inspect_err(|error| log::debug!("{error:#}"))
            .ok()
    }

    /// Locks the files of pending steps, which a DEL of their attachment and an ADD of their device
    /// may change at a time.
    pub fn pending(&self) -> Result<Lock> {
        self.0.lock("pending", PATIENCE)
    }

    /// Locks the binding of drivers and the moves of RDMA devices on this node: one at a time. The
    /// kernel frees names and numbers (`mlx5_4`, `uverbs4`), and then takes the lowest free ones.
    pub fn binding(&self) -> Result<Lock> {
        let lock = self.0.lock("binding", PATIENCE);
        lock.context("waiting for another device whose driver is being bound again")
    }

    /// Locks the PF: its driver may refuse two changes at a time.
    pub fn pf(&self, address: &str) -> Result<Lock> {
        let lock = self.0.lock(&format!("pf-{address}"), PF_PATIENCE);
        lock.with_context(|| format!("waiting for the PF {address}"))
    }

    /// The content of a device's lock; `None` if the device was never locked.
    pub fn copy_of(&self, id: &str) -> Result<Option<Vec<u8>>> {
        self.0.read(&format!("{DEVICE}{id}"))
    }

    /// The contents of the locks of all devices.
    pub fn copies(&self) -> Result<Vec<Vec<u8>>> {
        let devices = self.0.names_where(|name| name.starts_with(DEVICE))?;
        Ok(devices
            .iter()
            .filter_map(|name| self.0.read(name).ok()?)
            .collect())
    }

    /// Keeps the number of lock files small. There is no ADD any more that such an old time of a
    /// DEL could stop. The time of the file does not say how old it is: the clock may have been
    /// set.
    pub fn prune(&self) -> Result<()> {
        let names = self.0.names()?;
        if names.len() <= MAX_LOCKS {
            return Ok(());
        }
        let now = files::since_boot();
        let recent = now.saturating_sub(OLD_NOTE)..=now;
        let is_old =
            |note: &[u8]| deleted_at(note).is_none_or(|deleted| !recent.contains(&deleted));
        // To look at all of them would take longer than the call, where a thousand pods end in five
        // minutes.
        for name in files::some_of(names, PRUNED) {
            if name.starts_with(ATTACHMENT) {
                self.0.prune_lock(&name, is_old)?;
            } else if name.starts_with(NETNS) {
                self.0.prune_lock(&name, |_| true)?;
            }
        }
        Ok(())
    }
}

fn name_of(key: &Key) -> String {
    let Key { attachment, part } = key;
    // No name of a netdev has a space.
    let part = if *part == Part::Rdma { " (rdma)" } else { "" };
    format!(
        "{ATTACHMENT}{}:{}{part}",
        name_part(&attachment.container_id),
        attachment.ifname
    )
}

/// The time since boot that a DEL noted in its lock file.
fn deleted_at(note: &[u8]) -> Option<Duration> {
    std::str::from_utf8(note)
        .ok()?
        .parse()
        .ok()
        .map(Duration::from_nanos)
}

impl AttachmentLock {
    /// An ADD whose runtime gave up may continue after the DEL that was sent for it: no DEL would
    /// come for what it then attaches. DEL writes its time here, and an ADD that began before that
    /// time must not go on.
    pub fn refuse_if_deleted(&mut self) -> Result<()> {
        // A time that is still to come is of another boot, whose /run was restored.
        let waited = files::started()..=files::since_boot();
        if deleted_at(&self.lock.note()?).is_some_and(|deleted| waited.contains(&deleted)) {
            fail!(
                TryAgain,
                "{} was deleted while this ADD was waiting",
                self.key
            );
        }
        Ok(())
    }

    /// Writes down the time of a DEL.
    pub fn set_deleted(&mut self) -> Result<()> {
        self.lock
            .set_note(files::since_boot().as_nanos().to_string().as_bytes())
    }
}

impl DeviceLock {
    /// The copy of the record.
    pub fn copy(&mut self) -> Result<Vec<u8>> {
        self.0.note()
    }

    /// Writes the copy.
    pub fn set_copy(&mut self, copy: &[u8]) -> Result<()> {
        self.0.set_note(copy)
    }
}
