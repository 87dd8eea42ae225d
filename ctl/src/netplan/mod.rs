//! netplan files of hosts, as far as they say which interfaces are rails. [`files`] finds the files of each host,
//! [`host`] finds the rails among its interfaces.

pub mod files;
pub mod host;

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use serde_json::Value;

use files::Host;
use host::Notes;

/// Whether the file is a netplan file.
pub fn is_netplan(value: &Value) -> bool {
    value.get("network").is_some_and(Value::is_object)
}

/// The netdev and the address of each rail in the files of this host's own directory. Empty if the files cannot be
/// read.
pub fn of_this_host(directory: &Path) -> Vec<(String, IpAddr)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.filter_map(|entry| entry.path().to_str().map(str::to_owned)).collect();
    files.retain(|file| file.ends_with(".yaml"));
    files.sort();
    let mut notes = Notes::default();
    let host = Host::read(String::new(), &files, &mut notes.faults);
    let rails = host::rails(&host, &mut notes).into_iter();
    rails.map(|rail| (rail.interface.unwrap_or(rail.id), rail.address)).collect()
}
