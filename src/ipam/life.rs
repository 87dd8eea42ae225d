//! Whether the holder of a lease lives: as long as its device may answer for the address.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use anyhow::Result;
use rail_netlink::{Socket, address};

use super::lease::{Holder, Lease};
use super::table;
use crate::files;
use crate::netns::{Keeper, Life, Netns, NetnsId};
use crate::node::Node;
use crate::sysfs::{DeviceId, Function};

impl Lease {
    /// Whether the holder lives. A reboot ends every namespace, and the kubelet prepares each claim
    /// again. Until then the lease of a claim ends with the claim, which has no namespace when it
    /// is made. A namespace without a path may live on, kept by a process: the device tells, and
    /// without one the processes do.
    pub fn life(&self, node: &Node) -> Result<Life> {
        if self.boot_id != files::boot_id()? {
            return Ok(Life::Dead);
        }
        if self.holder.claim.is_some() {
            return Ok(Life::Alive);
        }
        let nothing = || Life::Unknown("it had no namespace at ADD".to_owned());
        let life = self
            .holder
            .netns
            .as_ref()
            .map_or_else(nothing, NetnsId::life);
        if life == Life::Dead && self.holder.device.is_some() {
            if let Some(device) = self.holder.device_away(node)? {
                return Ok(Life::Unknown(format!(
                    "its device {device} has not returned: a process keeps its namespace (`lsns -t net`)"
                )));
            }
        } else if life == Life::Dead {
            match self.keeper() {
                Ok(None) => (),
                Ok(Some(Keeper { id, name, .. })) => {
                    let why = format!(
                        "process {id} ({name}) keeps its namespace, where the address still is"
                    );
                    return Ok(Life::Unknown(why));
                }
                Err(error) => {
                    return Ok(Life::Unknown(format!(
                        "cannot find the process that keeps its namespace: \
                        {error}"
                    )));
                }
            }
        }
        Ok(life)
    }

    /// A process that keeps the holder's namespace, with the address, although its path is gone.
    /// The kernel gives the inode number of a namespace that ended to the next one, so it is looked
    /// into.
    fn keeper(&self) -> io::Result<Option<Keeper>> {
        let Some(netns) = self.holder.netns.clone() else {
            return Ok(None);
        };
        let wanted = self.address;
        let keeps_it = |keeper: &Keeper| has_address(&keeper.path, wanted).unwrap_or(false);
        Ok(netns.keepers().into_iter().find(keeps_it))
    }

    /// Whether a NIC in the namespace of a holder that is not dead may answer for the address.
    pub fn may_answer(&self, node: &Node) -> Result<bool> {
        if self.holder.device.is_some() {
            return Ok(self.holder.device_away(node)?.is_some());
        }
        match &self.holder.netns {
            Some(netns) if netns.life() == Life::Alive => {
                Ok(has_address(&netns.path, self.address).unwrap_or(true))
            }
            _ => Ok(true),
        }
    }

    /// Whether the address is certainly unused.
    pub fn is_dead(&self, node: &Node) -> Result<bool> {
        Ok(self.life(node)? == Life::Dead)
    }
}

/// Whether an interface of the namespace at `path` has the address.
fn has_address(path: &Path, wanted: IpAddr) -> Result<bool> {
    let mut socket = Netns::open(path)?.run(Socket::open)?;
    let all = address::in_namespace(&mut socket)?;
    Ok(all.iter().any(|(_, one)| one.net.addr() == wanted))
}

impl Holder {
    /// The device, unless it is back on the host, gone from the node, or in a later lease.
    fn device_away(&self, node: &Node) -> Result<Option<&str>> {
        let Some(id) = self.device.as_deref().and_then(DeviceId::parse) else {
            return Ok(None);
        };
        let Some(function) = Function::find(&node.sysfs_root, &id)? else {
            return Ok(None);
        };
        let can_come_back = function.driver().is_some() && !function.is_userspace();
        if !can_come_back || !function.netdevs()?.is_empty() || self.is_succeeded(node)? {
            return Ok(None);
        }
        Ok(self.device.as_deref())
    }

    /// Whether another living holder has a lease for the device: it got the device after this one.
    fn is_succeeded(&self, node: &Node) -> Result<bool> {
        for (_, lease) in table::read_all(node)? {
            let Ok(Lease { holder, .. }) = lease else {
                continue;
            };
            let is_alive = holder
                .netns
                .as_ref()
                .is_some_and(|netns| netns.life() == Life::Alive);
            let is_other = holder.key() != self.key();
            if is_alive && is_other && holder.device == self.device {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
