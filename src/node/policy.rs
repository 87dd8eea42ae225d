//! node.json's `policy`: which devices this node hands out, and what a network may ask for. What it
//! says of a device is asked here by ADD and by `railctl lease`.

use anyhow::Result;
use serde::Deserialize;

use super::VF_KEYS;
use crate::nearest::nearest;
use crate::sysfs::{DeviceId, Function, Pf};
use crate::{cni, fail};

/// Limits for networks. An absent list allows everything; `kinds`, `pfs_with_vfs` and
/// `host_addresses` allow what is refused without them.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Policy {
    /// PCI addresses or netdev names of the PFs that may be attached, themselves or as VFs.
    pub pfs: Option<Vec<String>>,
    /// Values of `rail` that networks may use.
    pub rails: Option<Vec<u8>>,
    /// Drivers of the devices that may be attached.
    pub drivers: Option<Vec<String>>,
    /// Whether only VFs may be attached: no PF, no SF, no other device.
    pub vfs_only: bool,
    /// The keys of [`VF_KEYS`](super::VF_KEYS) that networks may use.
    pub vf_keys: Option<Vec<String>>,
    /// Kinds of netdevs that may be attached besides functions of a bus: `veth`, `netdevsim`,
    /// `representor`.
    pub kinds: Vec<String>,
    /// Whether a PF that has VFs may be attached itself.
    pub pfs_with_vfs: bool,
    /// Whether a network may define its pool inline; true by default.
    pub inline_pools: bool,
    /// Whether a network may take a device with the host's addresses, and these with it.
    pub host_addresses: bool,
    /// The IPAM plugins that networks may name; by default those that are known to be no more than
    /// that.
    pub ipam: Vec<String>,
    /// Whether each network needs an IPAM; by default, where only VFs may be attached.
    #[serde(rename = "requireIPAM")]
    pub require_ipam: Option<bool>,
}

/// The IPAM plugins that are known to be no more than that, and to work with a device that comes
/// after its address.
const IPAM: [&str; 9] = [
    "rail-ipam",
    "host-local",
    "static",
    "whereabouts",
    "nv-ipam",
    "spiderpool",
    "calico-ipam",
    "kube-ovn",
    "antrea",
];

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            pfs: None,
            rails: None,
            drivers: None,
            vfs_only: false,
            vf_keys: None,
            kinds: Vec::new(),
            pfs_with_vfs: false,
            inline_pools: true,
            host_addresses: false,
            ipam: IPAM.map(str::to_owned).to_vec(),
            require_ipam: None,
        }
    }
}

/// A device, as the policy judges it.
#[derive(Debug)]
pub struct Judged<'a> {
    /// The device's name in messages.
    pub what: String,
    /// The function on its bus.
    pub function: Option<&'a Function>,
    /// Its PF, or itself.
    pub pf: Option<&'a Pf>,
    /// Its kind, if it is not a PCI or auxiliary function, but stands for one or is made by
    /// software.
    pub kind: Option<&'a str>,
}

/// Refuses what can be neither a device of PCI nor a netdev: nothing would ever be on that PF.
pub fn check_pf(key: &str, pf: &str) -> Result<()> {
    if DeviceId::parse(pf).is_none() && cni::check_ifname(pf).is_err() {
        fail!(
            InvalidConfig,
            "{key}: {pf:?} is neither a PCI address, such as 0000:3b:00.0, nor the name of a netdev"
        );
    }
    Ok(())
}

impl Policy {
    /// Checks what types do not.
    pub fn check(&self) -> Result<()> {
        for pf in self.pfs.iter().flatten() {
            check_pf("policy.pfs", pf)?;
        }
        if let Some(name) = self
            .ipam
            .iter()
            .find(|name| name.is_empty() || name.contains('/'))
        {
            fail!(
                InvalidConfig,
                "policy.ipam: {name:?} is not the name of a plugin"
            );
        }
        let mut vf_keys = self.vf_keys.iter().flatten();
        if let Some(key) = vf_keys.find(|key| !VF_KEYS.contains(&key.as_str())) {
            let known = VF_KEYS.join(", ");
            let meant = nearest(key, VF_KEYS)
                .map_or(String::new(), |meant| format!(": did you mean {meant}?"));
            fail!(
                InvalidConfig,
                "policy.vfKeys: {key:?} is not one of {known}{meant}"
            );
        }
        Ok(())
    }

    /// Whether each network needs an IPAM. VFs of one PF hear each other's ARP inside the NIC, so a
    /// pod without an address of its own could answer for the gateway of another.
    pub fn requires_ipam(&self) -> bool {
        self.require_ipam.unwrap_or(self.vfs_only)
    }

    /// Refuses a device that this node does not hand out.
    pub fn check_device(&self, device: &Judged<'_>) -> Result<()> {
        let what = &device.what;
        if let Some(kind) = device
            .kind
            .filter(|kind| !self.kinds.iter().any(|allowed| allowed == kind))
        {
            fail!(
                InvalidConfig,
                "{what} is a {kind} device, not a PCI or auxiliary function: this node hands it out only if policy.kinds of \
                 node.json names \"{kind}\""
            );
        }
        if self.vfs_only && !device.function.is_some_and(Function::is_vf) {
            fail!(
                InvalidConfig,
                "{what} is not a VF: this node's policy allows VFs only"
            );
        }
        if let Some(allowed) = &self.pfs {
            if !device
                .pf
                .is_some_and(|pf| allowed.iter().any(|text| pf.is(text)))
            {
                fail!(
                    InvalidConfig,
                    "{what} is not on one of the PFs {allowed:?} of this node's policy"
                );
            }
        }
        if let Some(allowed) = &self.drivers {
            let driver = device.function.and_then(Function::driver);
            if !driver
                .as_ref()
                .is_some_and(|driver| allowed.contains(driver))
            {
                let driver = driver.as_deref().unwrap_or("no driver");
                fail!(
                    InvalidConfig,
                    "{what} has {driver}: this node's policy allows the drivers {allowed:?}"
                );
            }
        }
        let vfs = if device.kind.is_none() {
            device.function.map_or(0, Function::vf_count)
        } else {
            0
        };
        if vfs > 0 && !self.pfs_with_vfs {
            fail!(
                InvalidConfig,
                "{what} is in use by the host: it has VFs ({vfs}): take one of them, or allow this with \
                 policy.pfsWithVfs of node.json"
            );
        }
        Ok(())
    }

    /// Refuses a rail that this node does not hand out. `rail` is the device's, `None` if unknown.
    pub fn check_rail(&self, what: &str, rail: Option<u8>) -> Result<()> {
        let Some(allowed) = &self.rails else {
            return Ok(());
        };
        if !rail.is_some_and(|rail| allowed.contains(&rail)) {
            let rail =
                rail.map_or_else(|| "no known rail".to_owned(), |rail| format!("rail {rail}"));
            fail!(
                InvalidConfig,
                "{what} is on {rail}, and this node's policy allows the rails {allowed:?}"
            );
        }
        Ok(())
    }
}
