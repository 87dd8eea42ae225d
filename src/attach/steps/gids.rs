//! `gid`: the source of an RDMA connection is a GID, an entry that the RDMA device makes of each
//! address of its netdev, shortly after the address is set. ADD waits for the entries of type RoCE
//! v2 and records their indexes.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::rdma::function_in_pod;
use crate::attach::context::Cx;
use crate::attach::step::{Asked, Made, Phase, Step, UndoneAt};
use crate::cni::AddResult;
use crate::device::gid::{Gid, gids_of};
use crate::netconf::Probe;
use crate::{fail, watchdog};

/// The GIDs that ADD waits for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Gids {
    /// The indexes that the RDMA device has for the GIDs of the addresses.
    pub found: Vec<Gid>,
}

/// The pauses between two looks: each is twice as long as the one before.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

impl Step for Gids {
    fn describe(&self) -> &'static str {
        "its GIDs"
    }

    fn undone_at(&self) -> UndoneAt {
        UndoneAt::Nowhere
    }

    fn phase() -> Phase {
        Phase::AfterLease
    }

    fn plan(asked: &Asked<'_>, cx: &mut Cx<'_>) -> Result<Option<Gids>> {
        let has_addresses = asked.device.original.link.is_some() || cx.owner.is_rdma_alone();
        let is_asked = asked.conf.gid.is_some() && !cx.facts.rdma_names.is_empty();
        Ok((is_asked && has_addresses).then(Gids::default))
    }

    fn make(&mut self, asked: &Asked<'_>, made: &mut Made, cx: &mut Cx<'_>) -> Result<()> {
        watchdog::step(|| "waiting for GIDs".to_owned());
        let Some(probe) = asked.conf.gid else {
            return Ok(());
        };
        self.await_all(probe, made.up_since, cx)
            .or_else(|error| asked.conf.or_warn(asked.conf.gid, error))?;
        made.gids.clone_from(&self.found);
        Ok(())
    }

    fn undo(&self, _cx: &mut Cx<'_>) -> Result<()> {
        Ok(())
    }

    /// Programs of the pod use the indexes of the GIDs.
    fn check(&self, _previous: &AddResult, cx: &mut Cx<'_>) -> Result<Vec<String>> {
        self.differences(cx)
    }
}

impl Gids {
    /// Waits for the GIDs of the addresses and notes them, for the time of `probe`, counted from
    /// `start`, when the link came up. An error names the addresses that have none, or says that
    /// the RDMA device went away meanwhile.
    fn await_all(&mut self, probe: Probe, start: Instant, cx: &Cx<'_>) -> Result<()> {
        // Only RoCE has GIDs of addresses.
        if cx.facts.roce_devices == 0 {
            return Ok(());
        }
        let Some((function, _mounted)) = function_in_pod(cx)? else {
            return gone(cx);
        };
        let mut pause = SHORTEST_PAUSE;
        let missing = loop {
            let addresses = cx.facts.addresses.iter().map(IpNet::addr);
            let (found, missing) = gids_of(&function, addresses, &cx.owner.ifname);
            self.found = found;
            if missing.is_empty() || start.elapsed() >= probe.timeout {
                break missing;
            }
            sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        if function.roce_devices() < cx.facts.roce_devices {
            return gone(cx);
        }
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

    fn differences(&self, cx: &Cx<'_>) -> Result<Vec<String>> {
        let mut differences = Vec::new();
        if self.found.is_empty() {
            return Ok(differences);
        }
        let ifname = cx
            .link_in_pod()
            .map_or_else(|| cx.owner.ifname.clone(), |link| link.name);
        let Some((function, _mounted)) = function_in_pod(cx)? else {
            return Ok(differences);
        };
        let (now, _) = gids_of(&function, self.found.iter().map(|gid| gid.address), &ifname);
        for Gid {
            device,
            port,
            index,
            address,
        } in &self.found
        {
            match now.iter().find(|gid| gid.address == *address) {
                Some(gid) if (gid.port, gid.index) == (*port, *index) => (),
                Some(gid) => differences.push(format!(
                    "the GID of {address} is at index {} of port {}, not at index {index} of port {port} as after ADD",
                    gid.index, gid.port
                )),
                None => differences
                    .push(format!("the RDMA device {device} has no RoCE v2 GID of {address} on {ifname}")),
            }
        }
        Ok(differences)
    }
}

/// An RDMA device that was there when ADD began is none of the function now.
fn gone(cx: &Cx<'_>) -> Result<()> {
    fail!(
        GidMissing,
        "the RDMA device of {} ({}) was there when ADD began, and is gone: its driver starts anew (`dmesg`), or takes \
         the device away when the netdev leaves the host (bnxt_re before Linux 6.3, rxe): docs/roce.md",
        cx.owner.ifname,
        cx.owner.device.id
    )
}
