//! `pkey`: the partition of an InfiniBand port. The subnet manager writes the P_Key into the port's
//! table, some time after ib-kubernetes or the fabric's operator added the GUID to the partition.
//! ADD waits for it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::rdma::function_in_pod;
use crate::attach::context::Cx;
use crate::fail;
use crate::netconf::Probe;

const PAUSE: Duration = Duration::from_millis(20);
/// The other bits of a P_Key; the highest one says whether the membership is full.
const PARTITION: u16 = 0x7fff;

/// Waits for the P_Key in ADD, for the time of `probe` counted from `start`.
pub fn apply(pkey: u16, probe: Probe, start: Instant, cx: &Cx<'_>) -> Result<()> {
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

/// What CHECK finds about the P_Key.
pub fn difference(pkey: u16, cx: &Cx<'_>) -> Result<Option<String>> {
    let Some((function, _mounted)) = function_in_pod(cx)? else {
        return Ok(None);
    };
    let has_it = function.pkeys().iter().any(|one| one & PARTITION == pkey);
    let id = &cx.owner.device.id;
    Ok((!has_it).then(|| format!("the RDMA device of {id} does not have the P_Key {pkey:#06x}")))
}
