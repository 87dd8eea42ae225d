//! `gid`: the source of an RDMA connection is a GID, an entry that the RDMA device makes of each address of its netdev,
//! shortly after the address is set. ADD waits for the entries of type RoCE v2 and records their indexes.

use std::net::{IpAddr, Ipv6Addr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::rdma::function_in_pod;
use crate::attach::context::Cx;
use crate::fail;
use crate::netconf::Probe;
use crate::sysfs::{self, Function};

/// The GIDs that ADD waits for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Gids {
    /// Where the RDMA device has the GIDs of the addresses.
    pub found: Vec<Gid>,
}

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

/// The pauses between two looks: each is twice as long as the one before.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

impl Gids {
    /// Waits for the GIDs of the addresses and notes them. An error names the addresses that have none. `start` is when the
    /// link came up.
    pub fn apply(&mut self, probe: Probe, start: Instant, cx: &Cx<'_>) -> Result<()> {
        let missing;
        (self.found, missing) = wait(probe, start, cx)?;
        if missing.is_empty() {
            return Ok(());
        }
        let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
        fail!(
            GidMissing,
            "the RDMA device of {} ({}) has no RoCE v2 GID of {} within {:?}: is RoCE enabled on it \
             (`devlink dev param`), and its table not full (`rdma link`, docs/roce.md)?",
            cx.owner.ifname,
            cx.owner.device.id,
            missing.join(" and "),
            probe.timeout
        )
    }

    /// What CHECK finds about the GIDs: programs of the pod use their indexes.
    pub fn check(&self, cx: &Cx<'_>) -> Result<Vec<String>> {
        let mut differences = Vec::new();
        if self.found.is_empty() {
            return Ok(differences);
        }
        let ifname = cx.link_in_pod().map_or_else(|| cx.owner.ifname.clone(), |link| link.name);
        let Some((function, _mounted)) = function_in_pod(cx)? else { return Ok(differences) };
        let (now, _) = look(&function, self.found.iter().map(|gid| gid.address), &ifname);
        for Gid { device, port, index, address } in &self.found {
            match now.iter().find(|gid| gid.address == *address) {
                Some(gid) if (gid.port, gid.index) == (*port, *index) => (),
                Some(gid) => differences.push(format!(
                    "the GID of {address} has the index {} of port {}, and had {index} of port {port}",
                    gid.index, gid.port
                )),
                None => differences
                    .push(format!("the RDMA device {device} has no RoCE v2 GID of {address} on {ifname}")),
            }
        }
        Ok(differences)
    }
}

/// Waits for the time of `probe`, counted from `start`. Returns the GIDs that exist, and the addresses that have none; both
/// are empty for a device without RoCE.
fn wait(probe: Probe, start: Instant, cx: &Cx<'_>) -> Result<(Vec<Gid>, Vec<IpAddr>)> {
    let Some((function, _mounted)) = function_in_pod(cx)? else { return Ok(Default::default()) };
    if !function.has_roce() {
        return Ok(Default::default());
    }
    let mut pause = SHORTEST_PAUSE;
    loop {
        let (found, missing) = look(&function, cx.facts.addresses.iter().map(IpNet::addr), &cx.owner.ifname);
        if missing.is_empty() || start.elapsed() >= probe.timeout {
            return Ok((found, missing));
        }
        sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The first GID of each address on the netdev `ifname`, and which addresses have none.
fn look(
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
            Some(sysfs::Gid { device, port, index, .. }) => {
                found.push(Gid { device: device.clone(), port: *port, index: *index, address });
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
