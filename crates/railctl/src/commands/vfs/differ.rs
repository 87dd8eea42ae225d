//! In what a PF and its VFs are not as node.json wants them.

use serde_json::{Value, json};

use crate::commands::inventory::{Inventory, Rail, Vf};
use rail_cni::device::is_away;
use rail_cni::failure;
use rail_cni::node::{Driver, Vfs};
use rail_cni::sysfs::Function;
use rail_netlink::Socket;
use rail_netlink::link::Link;
use rail_netlink::vf::{self, Report, VfState};

use anyhow::Result;

/// Something to change.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The number of VFs.
    Number { from: u32, to: u16 },
    /// The MTU of the PF.
    Mtu { from: u32, to: u32 },
    /// The PF is down: its VFs have no carrier.
    Up,
    /// A PF's setting of a VF.
    Setting {
        vf: String,
        number: u32,
        key: &'static str,
        from: VfState,
        to: VfState,
    },
    /// The driver of a VF.
    Driver {
        vf: String,
        from: Option<String>,
        to: Driver,
    },
    /// A VF whose RDMA device has no node GUID gets one from its MAC when its driver is bound
    /// again.
    NodeGuid {
        vf: String,
        number: u32,
        mac: String,
    },
}

impl Change {
    /// Whether it ends, resets or replaces VFs that there are.
    pub fn disturbs(&self, rail: &Rail) -> bool {
        match self {
            Change::Number { .. } | Change::Mtu { .. } => !rail.vfs.is_empty(),
            Change::Driver { from, .. } => from.is_some(),
            Change::NodeGuid { .. } => true,
            Change::Up | Change::Setting { .. } => false,
        }
    }

    /// Whether it is of the PF, and so of all VFs.
    pub fn is_of_pf(&self) -> bool {
        matches!(
            self,
            Change::Number { .. } | Change::Mtu { .. } | Change::Up
        )
    }

    /// The VF that it changes.
    pub fn vf(&self) -> Option<&str> {
        match self {
            Change::Setting { vf, .. }
            | Change::Driver { vf, .. }
            | Change::NodeGuid { vf, .. } => Some(vf),
            Change::Number { .. } | Change::Mtu { .. } | Change::Up => None,
        }
    }

    /// The name of the change, with the values before and after.
    fn parts(&self) -> (&'static str, String, String) {
        match self {
            Change::Number { from, to } => ("number", from.to_string(), to.to_string()),
            Change::Mtu { from, to } => ("mtu", from.to_string(), to.to_string()),
            Change::Up => ("link", "down".to_owned(), "up".to_owned()),
            Change::Setting { key, from, to, .. } => (*key, from.to_string(), to.to_string()),
            Change::Driver { from, to, .. } => {
                let to = match to {
                    Driver::Netdev => "netdev",
                    Driver::Vfio => VFIO,
                };
                (
                    "driver",
                    from.clone().unwrap_or_else(|| "none".to_owned()),
                    to.to_owned(),
                )
            }
            Change::NodeGuid { mac, .. } => {
                ("nodeGuid", "none".to_owned(), format!("of the MAC {mac}"))
            }
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let (what, from, to) = self.parts();
        let vf = self.vf().map_or_else(String::new, |vf| format!("{vf} "));
        format!("{vf}{what} {from} -> {to}")
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let (what, from, to) = self.parts();
        json!({"what": what, "vf": self.vf(), "from": from, "to": to})
    }
}

/// The driver of functions for programs in user space.
pub const VFIO: &str = "vfio-pci";

/// All differences on the PF `pf` of `rail`. VFs of pods are theirs, and are not compared.
pub fn differences(
    (rail, pf): (&Rail, &Link),
    wanted: &Vfs,
    inventory: &Inventory,
    host: &mut Socket,
) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    if let Some(to) = wanted.mtu.filter(|mtu| pf.mtu < *mtu) {
        changes.push(Change::Mtu { from: pf.mtu, to });
    }
    if !pf.up && wanted.number > 0 {
        changes.push(Change::Up);
    }
    let from = rail.function.as_ref().map_or(0, Function::vf_count);
    if from != u32::from(wanted.number) {
        changes.push(Change::Number {
            from,
            to: wanted.number,
        });
        return Ok(changes);
    }
    for vf in &rail.vfs {
        if !inventory.is_held(&vf.function) && !is_away(&vf.function)? {
            of_vf(vf, (rail, pf), wanted, host, &mut changes)?;
        }
    }
    Ok(changes)
}

fn of_vf(
    vf: &Vf,
    (rail, pf): (&Rail, &Link),
    wanted: &Vfs,
    host: &mut Socket,
    changes: &mut Vec<Change>,
) -> Result<()> {
    let Vf { function, link } = vf;
    let Some(number) = function.vf_number() else {
        return Ok(());
    };
    let settings = wanted.settings().settings();
    if !settings.is_empty() {
        let found = match vf::state(host, pf.index, number)? {
            Report::Known(found) => found,
            report => {
                return Err(failure!(
                    UnsupportedField,
                    "the driver of {} does not say what is set for its VF {number} ({report:?}): leave trust, spoofchk and \
                     linkState out of node.json",
                    pf.name
                ));
            }
        };
        for (key, to) in settings {
            let from = found.masked_by(&to);
            if from == VfState::default() {
                return Err(failure!(
                    UnsupportedField,
                    "the driver of {} knows no {key} of VFs: leave it out of node.json",
                    pf.name
                ));
            }
            if from != to {
                changes.push(Change::Setting {
                    vf: function.id.clone(),
                    number,
                    key,
                    from,
                    to,
                });
            }
        }
    }
    if let Some(to) = other_driver(function, rail, wanted) {
        changes.push(Change::Driver {
            vf: function.id.clone(),
            from: function.driver(),
            to,
        });
    } else if let Some(link) = link.as_ref().filter(|_| function.lacks_node_guid()) {
        changes.push(Change::NodeGuid {
            vf: function.id.clone(),
            number,
            mac: link.mac.clone(),
        });
    }
    Ok(())
}

/// The driver that a VF should have, if it has another. One that was left without, by a call that was
/// killed, gets that of its netdev, unless the PF binds none or somebody means another.
fn other_driver(vf: &Function, rail: &Rail, wanted: &Vfs) -> Option<Driver> {
    let driver = vf.driver();
    let is_as_wanted = match wanted.driver {
        Some(Driver::Vfio) => driver.as_deref() == Some(VFIO),
        Some(Driver::Netdev) => driver.is_some() && !vf.is_userspace(),
        None => {
            let is_bound = rail.function.as_ref().is_none_or(Function::binds_vfs);
            driver.is_some() || !is_bound || vf.driver_override().is_some()
        }
    };
    let to = wanted.driver.unwrap_or(Driver::Netdev);
    (!is_as_wanted).then_some(to)
}
