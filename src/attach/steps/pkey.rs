//! `pkey`: the partition of an InfiniBand port. The subnet manager writes the P_Key into the port's
//! table, some time after ib-kubernetes or the fabric's operator added the GUID to the partition.
//! ADD waits for it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::rdma::function_in_pod;
use crate::attach::context::Cx;
use crate::attach::step::{Asked, Made, Step, UndoneAt};
use crate::cni::AddResult;
use crate::fail;
use crate::netconf::Probe;

const PAUSE: Duration = Duration::from_millis(20);
/// The other bits of a P_Key; the highest one says whether the membership is full.
const PARTITION: u16 = 0x7fff;

/// The partition, without the membership bit.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pkey(pub u16);

impl Step for Pkey {
    fn describe(&self) -> &'static str {
        "its P_Key"
    }

    fn undone_at(&self) -> UndoneAt {
        UndoneAt::Nowhere
    }

    fn plan(asked: &Asked<'_>, _cx: &mut Cx<'_>) -> Result<Option<Pkey>> {
        Ok(asked.conf.pkey.map(Pkey))
    }

    fn make(&mut self, asked: &Asked<'_>, made: &mut Made, cx: &mut Cx<'_>) -> Result<()> {
        let Some(probe) = asked.conf.gid.filter(|_| !cx.facts.rdma_names.is_empty()) else {
            return Ok(());
        };
        wait(self.0, probe, made.up_since, cx)
            .or_else(|error| asked.conf.or_warn(asked.conf.gid, error))
    }

    fn undo(&self, _cx: &mut Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn check(&self, _previous: &AddResult, cx: &mut Cx<'_>) -> Result<Vec<String>> {
        Ok(difference(self.0, cx)?.into_iter().collect())
    }
}

/// Waits for the P_Key in ADD, for the time of `probe` counted from `start`.
fn wait(pkey: u16, probe: Probe, start: Instant, cx: &Cx<'_>) -> Result<()> {
    loop {
        let Some(problem) = difference(pkey, cx)? else {
            return Ok(());
        };
        if start.elapsed() >= probe.timeout {
            fail!(
                GidMissing,
                "{problem} within {:?}: does the subnet manager have the VF's GUID in that partition?",
                probe.timeout
            );
        }
        sleep(PAUSE);
    }
}

fn difference(pkey: u16, cx: &Cx<'_>) -> Result<Option<String>> {
    let Some((function, _mounted)) = function_in_pod(cx)? else {
        return Ok(None);
    };
    let has_it = function.pkeys().iter().any(|one| one & PARTITION == pkey);
    let id = &cx.owner.device.id;
    Ok((!has_it).then(|| format!("the RDMA device of {id} does not have the P_Key {pkey:#06x}")))
}
