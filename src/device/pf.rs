//! The report of a PF about its VFs.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::Device;
use crate::fail;
use crate::node::Node;
use crate::sysfs::{DeviceId, Function};
use rail_netlink::Socket;
use rail_netlink::link::{self, Link};
use rail_netlink::vf::{self, Report, VfState};

/// Patience with a VF in a reset, in which its PF does not report it.
const IN_RESET: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// The settings that a PF makes of its VF, and its report before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VfSettings {
    /// PCI address of the PF.
    pub pf: String,
    /// The MAC that the PF has from its maker: another one at this address is another card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pf_permanent_mac: Option<String>,
    /// Number of the VF.
    pub number: u32,
    /// The settings of ADD.
    pub wanted: VfState,
    /// The driver's earlier report of these settings, as far as a step restores them.
    pub before: VfState,
}

impl VfSettings {
    /// Whether the PF, which is `pf` now, is a card that was put in the place of the one before.
    pub fn is_of_another_card(&self, pf: &Link) -> bool {
        pf.is_not_port(self.pf_permanent_mac.as_deref())
    }
}

/// The PF's netdev, under whatever name it has by now; `None` when the PF is gone, and its VFs with
/// it.
pub fn link(pf: &str, number: u32, node: &Node, host: &mut Socket) -> Result<Option<Link>> {
    let Some(id) = DeviceId::parse(pf) else {
        return Ok(None);
    };
    let Some(function) = Function::find(&node.sysfs_root, &id)? else {
        return Ok(None);
    };
    let link = function
        .netdev()?
        .map(|name| link::by_name(host, &name))
        .transpose()?
        .flatten();
    if link.is_none() {
        fail!(
            Internal,
            "the PF {pf} has no netdev on the host, so nothing can be set for its VF {number}"
        );
    }
    Ok(link)
}

/// Reads the PF's report of its VF, once the VF is no longer being reset. Fails if the PF says
/// nothing of a VF that it has.
pub fn report(
    pf: &Link,
    address: &str,
    number: u32,
    node: &Node,
    host: &mut Socket,
) -> Result<Report> {
    let begun = Instant::now();
    loop {
        let report = report_now(pf, address, number, node, host)?;
        if report != Report::Silent {
            return Ok(report);
        }
        if begun.elapsed() > IN_RESET {
            let name = &pf.name;
            fail!(
                TryAgain,
                "the PF {name} ({address}) does not report its VF {number} now: is {name} up? (On a DPU, it \
                 never does)"
            );
        }
        sleep(PAUSE);
    }
}

/// Like [`report`], without patience: [`Report::Silent`] means that there is such a VF.
pub fn report_now(
    pf: &Link,
    address: &str,
    number: u32,
    node: &Node,
    host: &mut Socket,
) -> Result<Report> {
    let virtfn = node
        .sysfs_root
        .join(format!("bus/pci/devices/{address}/virtfn{number}"));
    Ok(match vf::state(host, pf.index, number)? {
        Report::Silent if !virtfn.exists() => Report::NoSuchVf,
        report => report,
    })
}

/// The MAC that the PF prescribes to a VF whose driver is in user space: only the PF knows it.
pub fn prescribed_mac(device: &Device, host: &mut Socket) -> Result<Option<String>> {
    let Some((number, pf)) = device.vf() else {
        return Ok(None);
    };
    let link = pf
        .netdev
        .as_ref()
        .map(|name| link::by_name(host, name))
        .transpose()?
        .flatten();
    let state = match link
        .map(|link| vf::state(host, link.index, number))
        .transpose()?
    {
        Some(Report::Known(state)) => state,
        _ => return Ok(None),
    };
    Ok(state
        .mac
        .filter(|mac| mac.bytes().any(|byte| !b"0:".contains(&byte))))
}

/// The speed of the PF's link in Mbit/s, while it is up.
pub fn speed(node: &Node, pf: &str) -> Option<u32> {
    let text = fs::read_to_string(node.sysfs_root.join("class/net").join(pf).join("speed")).ok()?;
    text.trim().parse().ok().filter(|speed| *speed > 0)
}
