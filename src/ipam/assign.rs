//! Changes of the table of leases by the verbs: an address is taken, given back, or collected.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;

use anyhow::Result;

use super::lease::{Ask, Holder, Lease};
use super::names::{Entry, key};
use super::table::{Table, held_by};
use crate::cni::Attachment;
use crate::files::Lock;
use crate::netns::{Life, NetnsId};
use crate::node::Node;
use crate::{fail, failure};

/// Takes leases for all of `asks`, or none. Returns the addresses in the order of the asks; `None`
/// if `is_current` says that their allocations are those of an old plan by now: whoever writes a
/// plan has the lock meanwhile. What a device of a claim holds already, it keeps: the kubelet
/// prepares a claim as often as it likes.
pub fn take(
    node: &Node,
    node_name: &str,
    asks: &[Ask],
    holder: &Holder,
    is_current: impl FnOnce() -> Result<bool>,
) -> Result<Option<Vec<IpAddr>>> {
    let table = Table::create(node)?;
    let _lock = table.lock()?;
    if !is_current()? {
        return Ok(None);
    }
    let (own, mut held) = table.list(&holder.key())?;
    let own = table.own_leases(own, holder, node)?;
    let mut dead = own.dead;
    let mut chosen = Vec::new();
    let mut addresses = Vec::new();
    for ask in asks {
        if let Some(lease) = own.kept.iter().find(|lease| lease.pool == ask.pool) {
            lease
                .is_as_asked(ask)
                .map_err(|why| failure!(TryAgain, "pool {}: {why}", ask.pool))?;
            addresses.push(lease.address);
            continue;
        }
        let choice = table.choose(ask, holder, &mut held, node)?;
        held.push(choice.address);
        addresses.push(choice.address);
        dead.extend(choice.dead);
        chosen.push(Lease::new(
            holder.clone(),
            choice.address,
            node_name,
            &ask.pool,
        )?);
    }
    table.replace(&dead, &chosen)?;
    Ok(Some(addresses))
}

/// Locks the table: no lease is taken while this exists.
pub fn hold(node: &Node) -> Result<Lock> {
    Table::create(node)?.lock()
}

/// Releases the leases of an attachment. Returns whether there were any. Without the name of the
/// network, which only a DEL can lack, it releases those in every network.
pub fn release(node: &Node, network: &str, attachment: &Attachment) -> Result<bool> {
    let Some(table) = Table::existing(node)? else {
        return Ok(false);
    };
    let key = key(network, attachment);
    // This waits for an ADD that its runtime gave up.
    let lock = table.lock();
    let is_meant = |entry: &Entry| network.is_empty() || entry.key() == key;
    let held = table.select(lock.is_ok(), is_meant)?;
    if held.is_empty() {
        return Ok(false);
    }
    let _lock = lock?;
    let mut held_any = false;
    for entry in held {
        let lease = table.read(&entry);
        if !is_to_be_given_back(&entry, &lease, network, attachment) {
            continue;
        }
        table.remove(&entry)?;
        held_any = true;
        crate::log::addresses([entry.address]);
        let pool = match &lease {
            Ok(Some(lease)) => format!("pool {}: ", lease.pool),
            _ => String::new(),
        };
        log::info!("{pool}{} is free again", entry.address);
    }
    Ok(held_any)
}

/// Whether a lease is one of the attachment. For a file that cannot be read, its name is enough if
/// the network's name is known and thus in the key.
fn is_to_be_given_back(
    entry: &Entry,
    lease: &Result<Option<Lease>, String>,
    network: &str,
    attachment: &Attachment,
) -> bool {
    match lease {
        Ok(None) => true,
        Ok(Some(lease)) if network.is_empty() => {
            lease.holder.claim.is_none() && lease.holder.is_of(attachment)
        }
        Ok(Some(lease)) => lease.holder.is(network, attachment),
        Err(why) if network.is_empty() => {
            log::warn!("{} is kept: {why}", entry.address);
            false
        }
        Err(_) => true,
    }
}

/// Releases the leases of `network` that are not in `keep`, but none whose namespace lives or may
/// live: the list of CRI-O lacks what Multus attached under the same name. For a lease without a
/// namespace, the list decides.
pub fn collect(node: &Node, network: &str, keep: &HashSet<String>) -> Result<()> {
    let Some(table) = Table::existing(node)? else {
        return Ok(());
    };
    let _lock = table.lock()?;
    for entry in table.entries()? {
        if keep.contains(entry.key()) {
            continue;
        }
        let lease = match table.read(&entry) {
            Ok(Some(lease)) if lease.holder.network == network => lease,
            Ok(_) => continue,
            Err(why) => {
                log::warn!("{} is kept: {why}", entry.address);
                continue;
            }
        };
        let holder = &lease.holder;
        let pool = &lease.pool;
        let kept = format!("pool {pool}: {} is kept", entry.address);
        match lease.life(node)? {
            Life::Alive => log::warn!("{kept}: {holder} is alive"),
            Life::Unknown(why) if holder.netns.is_some() => {
                log::warn!("{kept}: cannot tell whether {holder} is alive: {why}");
            }
            Life::Dead | Life::Unknown(_) => {
                table.remove(&entry)?;
                log::info!(
                    "pool {pool}: {} is released, which {holder} held",
                    entry.address
                );
            }
        }
    }
    Ok(())
}

/// Releases the rebuilt leases of an interface in this namespace. Returns whether there were any.
pub fn release_rebuilt(node: &Node, netns: &Path, ifname: &str) -> Result<bool> {
    let Some(netns) = NetnsId::of(netns).ok().flatten() else {
        return Ok(false);
    };
    let holder = Holder::rebuilt(&netns, ifname);
    let attachment = Attachment {
        container_id: holder.container_id,
        ifname: holder.ifname,
    };
    // An attachment without a network would be released in all of them.
    if held_by(node, "", &attachment)?.is_empty() {
        return Ok(false);
    }
    release(node, "", &attachment)
}

/// The lease of a dead holder.
type Dead = (Entry, Lease);

/// An address, and the leases of its dead holders.
struct Choice {
    address: IpAddr,
    dead: Vec<Dead>,
}

/// The leases that the holder of an ADD has already.
struct Own {
    /// Dead, or of an earlier sandbox: the new leases replace these.
    dead: Vec<Dead>,
    /// Of a claim that is prepared again.
    kept: Vec<Lease>,
}

impl Table {
    /// The leases that the holder has already. Fails if one of them is of this same sandbox, and not
    /// of a claim: then a DEL is missing.
    fn own_leases(&self, entries: Vec<Entry>, holder: &Holder, node: &Node) -> Result<Own> {
        let mut own = Own {
            dead: Vec::new(),
            kept: Vec::new(),
        };
        for entry in entries {
            let lease = match self.read(&entry) {
                Ok(Some(lease)) => lease,
                Ok(None) => continue,
                Err(why) => fail!(TryAgain, "{} is held: {why}", entry.address),
            };
            if lease.is_dead(node)? || lease.is_of_another_sandbox(holder) {
                own.dead.push((entry, lease));
            } else if lease.holder.claim.is_some() {
                own.kept.push(lease);
            } else {
                fail!(
                    TryAgain,
                    "pool {}: {} already holds {} since {}: DEL comes before the next ADD",
                    lease.pool,
                    lease.holder,
                    lease.address,
                    lease.since
                );
            }
        }
        Ok(own)
    }

    /// The address that an ADD gets. `held` are those of other holders.
    fn choose(
        &self,
        ask: &Ask,
        holder: &Holder,
        held: &mut Vec<IpAddr>,
        node: &Node,
    ) -> Result<Choice> {
        let Some(address) = ask.requested else {
            return self.any_address(ask, holder, held, node);
        };
        let others = self.entries_but(&holder.key())?;
        match self.dead_holders(address, &others, holder, node)? {
            Ok(dead) => Ok(Choice { address, dead }),
            Err(alive) => fail!(TryAgain, "pool {}: requested address {alive}", ask.pool),
        }
    }

    /// The lowest address that is not `held`; without one, the first whose holder is dead.
    fn any_address(
        &self,
        ask: &Ask,
        holder: &Holder,
        held: &mut Vec<IpAddr>,
        node: &Node,
    ) -> Result<Choice> {
        held.sort_unstable();
        held.dedup();
        let is_held = |address| held.binary_search(&address).is_ok();
        match ask.allocation.first_free(is_held) {
            Some(address) => Ok(Choice {
                address,
                dead: Vec::new(),
            }),
            None => self.address_of_the_dead(ask, holder, held, node),
        }
    }

    /// The first address of an allocation that is `held` whole whose holder is dead. Fails with the
    /// holder of its first address if all of them live.
    fn address_of_the_dead(
        &self,
        ask: &Ask,
        holder: &Holder,
        held: &[IpAddr],
        node: &Node,
    ) -> Result<Choice> {
        let others = self.entries_but(&holder.key())?;
        let mut first_alive = None;
        let mut count_alive = 0;
        for address in held.iter().copied() {
            if ask.allocation.check_host(address).is_err() {
                continue;
            }
            match self.dead_holders(address, &others, holder, node)? {
                Ok(dead) => return Ok(Choice { address, dead }),
                Err(alive) => first_alive = first_alive.or(Some(alive)),
            }
            count_alive += 1;
        }
        let Some(first) = first_alive else {
            return Err(ask.allocation.no_host(&ask.pool));
        };
        let more = match count_alive {
            1 => String::new(),
            count => format!("; the other {} addresses are held as well", count - 1),
        };
        Err(failure!(
            TryAgain,
            "pool {}: no address of {} is free: {first}{more}",
            ask.pool,
            ask.allocation.prefix
        ))
    }

    /// The leases of `address`, if all of them are dead or of an older sandbox of the asking pod;
    /// else a message with the holder and what to do.
    fn dead_holders(
        &self,
        address: IpAddr,
        entries: &[Entry],
        asking: &Holder,
        node: &Node,
    ) -> Result<Result<Vec<Dead>, String>> {
        let mut dead = Vec::new();
        for entry in entries.iter().filter(|entry| entry.address == address) {
            let lease = match self.read(entry) {
                Ok(None) => continue,
                Ok(Some(lease)) => lease,
                Err(why) => return Ok(Err(format!("{address} is held: {why}"))),
            };
            let life = lease.life(node)?;
            let is_replaced = lease.holder.sandbox().is_replaced_by(&asking.sandbox());
            if life == Life::Dead || is_replaced && !lease.may_answer(node)? {
                dead.push((entry.clone(), lease));
                continue;
            }
            let unsure = match life {
                Life::Unknown(why) => format!(" (cannot tell whether it is alive: {why})"),
                Life::Alive | Life::Dead => String::new(),
            };
            let Lease { holder, since, .. } = lease;
            // To delete a pod of the same name would delete the one that asks.
            let remedy = if holder.pod.is_some() && holder.pod == asking.pod {
                format!("stop that sandbox (`crictl stopp {}`)", holder.container_id)
            } else {
                "delete that pod".to_owned()
            };
            return Ok(Err(format!(
                "{address} is held by {holder} since {since}{unsure}: {remedy} or, if it is gone, \
                 `railctl release --address {address} --force`"
            )));
        }
        Ok(Ok(dead))
    }

    /// Removes the leases of the dead, and writes the new ones, all or none.
    fn replace(&self, dead: &[Dead], leases: &[Lease]) -> Result<()> {
        for (entry, lease) in dead {
            log::warn!(
                "pool {}: {} taken over from {}, which is gone and held it since {}",
                lease.pool,
                entry.address,
                lease.holder,
                lease.since
            );
            self.remove(entry)?;
        }
        for (count, lease) in leases.iter().enumerate() {
            let Err(error) = self.write(lease) else {
                continue;
            };
            for lease in &leases[..count] {
                let entry = Entry::parse(&lease.file_name());
                if let Err(error) = entry.map_or(Ok(()), |entry| self.remove(&entry)) {
                    log::error!("cannot release {}: {error:#}", lease.address);
                }
            }
            return Err(error);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
