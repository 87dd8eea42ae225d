//! The names of leases and their directory: a lease is a file `ADDRESS@KEY.json`, where KEY is a hash
//! of the holder. So one listing has all addresses and keys that are held, and a file is opened only
//! if its content matters.

use std::net::IpAddr;

use crate::cni::Attachment;
use crate::files;

/// The directory of leases in the run directory.
pub const FOLDER: &str = "leases";
/// A directory in that of leases, from its first use on. The `*` of a shell matches it.
pub const BEGUN: &str = "_table";
/// The lock in the run directory, for the first use of a boot.
pub const BEGUN_LOCK: &str = "begun.lock";
/// The lock in the directory of leases.
pub const LOCK: &str = "lock";

/// The key in the file names of this attachment's leases.
pub fn key(network: &str, attachment: &Attachment) -> String {
    files::hash(&[network, &attachment.container_id, &attachment.ifname])
}

/// The file of a lease, as far as its name describes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The address that is held.
    pub address: IpAddr,
    /// The name of the file.
    pub name: String,
}

impl Entry {
    /// The entry of the file `name`; `None` if that is not one of a lease.
    pub fn parse(name: &str) -> Option<Entry> {
        let (address, _) = parts(name)?;
        Some(Entry {
            address,
            name: name.to_owned(),
        })
    }

    /// The key, which is not a field because there may be thousands of entries.
    pub fn key(&self) -> &str {
        parts(&self.name).map_or("", |(_, key)| key)
    }
}

/// The address and the key in the name of a lease's file.
pub fn parts(name: &str) -> Option<(IpAddr, &str)> {
    let (address, key) = name.strip_suffix(".json")?.split_once('@')?;
    Some((address.parse().ok()?, key))
}
