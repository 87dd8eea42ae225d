//! `gid`: the source of an RDMA connection is a GID, an entry that the RDMA device makes of each address of its netdev,
//! shortly after the address is set. ADD waits for the entries of type RoCE v2 and records their indexes.

use std::net::{IpAddr, Ipv6Addr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Changes, function_of};
use crate::attach::config::{NetConf, Probe};
use crate::attach::record::{Gid, Record};
use crate::fail;
use crate::netns::Netns;
use crate::node::Node;
use crate::sysfs::{self, Function};

/// The pauses between two looks: each is twice as long as the one before.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Refuses a network that requires GIDs where the pod gets no RDMA device.
pub fn refuse_without_device(conf: &NetConf, what: &str, changes: &Changes) -> Result<()> {
    if conf.gid.is_some_and(|gid| gid.required) && changes.names.is_empty() {
        fail!(UnsupportedField, "gid: require, and the pod gets no RDMA device of {what}");
    }
    Ok(())
}

/// Waits for the GIDs of the record's addresses, for the time of `probe` counted from `start`. Returns those that exist,
/// and the addresses that have none; both are empty for a device without RoCE.
pub fn wait(
    record: &Record,
    probe: Probe,
    start: Instant,
    ifname: &str,
    netns: &Netns,
    node: &Node,
) -> Result<(Vec<Gid>, Vec<IpAddr>)> {
    let Some((function, _mounted)) = function_of(record, netns, node)? else { return Ok(Default::default()) };
    if !function.has_roce() {
        return Ok(Default::default());
    }
    let mut pause = SHORTEST_PAUSE;
    loop {
        let addresses = record.applied.addresses.iter().map(ipnet::IpNet::addr);
        let (found, missing) = look(&function, addresses, ifname);
        if missing.is_empty() || start.elapsed() >= probe.timeout {
            return Ok((found, missing));
        }
        sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Waits for the GIDs in ADD and records them. An error names the addresses that have none.
pub fn run(record: &mut Record, probe: Probe, start: Instant, netns: &Netns, node: &Node) -> Result<()> {
    let ifname = record.interface().to_owned();
    let (found, missing) = wait(record, probe, start, &ifname, netns, node)?;
    record.gids = found;
    if missing.is_empty() {
        return Ok(());
    }
    let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
    fail!(
        GidMissing,
        "the RDMA device of {ifname} ({}) has no RoCE v2 GID of {} within {:?}: is RoCE enabled on it \
         (`devlink dev param`), and its table not full (`rdma link`, docs/roce.md)?",
        record.device.id,
        missing.join(" and "),
        probe.timeout
    )
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

/// What CHECK finds about the recorded GIDs: programs of the pod use their indexes.
pub fn differences(record: &Record, netns: &Netns, ifname: &str, node: &Node) -> Result<Vec<String>> {
    if record.gids.is_empty() {
        return Ok(Vec::new());
    }
    let Some((function, _mounted)) = function_of(record, netns, node)? else { return Ok(Vec::new()) };
    let (now, _) = look(&function, record.gids.iter().map(|gid| gid.address), ifname);
    let mut differences = Vec::new();
    for Gid { device, port, index, address } in &record.gids {
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
