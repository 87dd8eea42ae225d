//! netplan files of hosts, as far as they say which interfaces are rails. [`files`] finds the files
//! of each host, [`host`] finds the rails among its interfaces.

pub mod files;
pub mod host;

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use crate::document::Part;
use files::Host;
use host::Notes;

/// The network of a netplan file, of cloud-init's network-config, which may begin with what is in
/// it, or of an installer's file (`autoinstall`), which holds such a file.
pub fn network(root: Part<'_>) -> Option<Part<'_>> {
    let object = |part: &Part<'_>| part.value.is_object();
    let root = root.get("autoinstall").filter(object).unwrap_or(root);
    match root.get("network").filter(object) {
        Some(network) => Some(network.get("network").filter(object).unwrap_or(network)),
        None => Some(root).filter(|root| root.get("ethernets").is_some_and(|part| object(&part))),
    }
}

/// The netdev and the address of each rail in the files of this host's own directory. Empty if the
/// files cannot be read.
pub fn of_this_host(directory: &Path) -> Vec<(String, IpAddr)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| entry.path().to_str().map(str::to_owned))
        .collect();
    files.retain(|file| file.ends_with(".yaml"));
    files.sort();
    let mut notes = Notes::default();
    let host = Host::read(String::new(), &files, &mut notes.faults);
    let rails = host::rails(&host, &mut notes).into_iter();
    rails
        .map(|rail| (rail.interface.unwrap_or(rail.id), rail.address))
        .collect()
}
