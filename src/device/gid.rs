//! The GIDs that an RDMA device has of the addresses of its netdev.

use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::sysfs::{self, Function};

/// The GUIDs that a port without one reports; the second is what the PF's driver takes for it.
pub const NO_GUIDS: [u64; 2] = [0, u64::MAX];

/// The GID of an address, of the kind RoCE v2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Name that the RDMA device had at ADD.
    pub device: String,
    /// Its port, from 1 on.
    pub port: u32,
    /// Place in the port's table.
    pub index: u32,
    /// The address.
    pub address: IpAddr,
}

/// The first GID of each address on the netdev `ifname`, and which addresses have none.
pub fn gids_of(
    function: &Function,
    addresses: impl Iterator<Item = IpAddr>,
    ifname: &str,
) -> (Vec<Gid>, Vec<IpAddr>) {
    let addresses: Vec<_> = addresses.collect();
    let wanted: Vec<_> = addresses.iter().copied().map(as_gid).collect();
    let entries = function.gids(&wanted);
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for address in addresses {
        let is_its = |entry: &&sysfs::Gid| entry.gid == as_gid(address) && entry.netdev == ifname;
        match entries.iter().find(is_its) {
            Some(sysfs::Gid {
                device,
                port,
                index,
                ..
            }) => {
                found.push(Gid {
                    device: device.clone(),
                    port: *port,
                    index: *index,
                    address,
                });
            }
            None => missing.push(address),
        }
    }
    (found, missing)
}

fn as_gid(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}
