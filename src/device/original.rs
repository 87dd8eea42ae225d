//! A device as it was on the host.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::node::Node;
use crate::sysfs::{DeviceId, Function};
use rail_netlink::link::Link;

/// A device and what it was before ADD.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Original {
    /// Unique on the node: PCI address or auxiliary name, of further ports with `-port1`; or the
    /// name of a netdev that is no function's.
    pub id: String,
    /// PCI address or auxiliary name, where it has one.
    #[serde(rename = "pciID", default, skip_serializing_if = "Option::is_none")]
    pub pci_id: Option<String>,
    /// PCI address of the PF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pf: Option<String>,
    /// The number of the netdev's port, where its driver counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u32>,
    /// Whether the function had further netdevs at ADD.
    #[serde(default)]
    pub siblings: bool,
    /// The netdev; none for userspace drivers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
}

impl Original {
    /// Its function in the sysfs of the host; `None` where it has none, or that is gone.
    pub fn function(&self, node: &Node) -> Result<Option<Function>> {
        let id = self.pci_id.as_deref().and_then(DeviceId::parse);
        Ok(id
            .map(|id| Function::find(&node.sysfs_root, &id))
            .transpose()?
            .flatten())
    }

    /// Is it the function with this PCI address or auxiliary name, by whichever port?
    pub fn is_of(&self, function: &str) -> bool {
        self.id
            .strip_prefix(function)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("-port"))
    }

    /// Is it the PF that a row of node.json names, by its PCI address or by the name that its
    /// netdev has on the host?
    pub fn is_pf(&self, pf: &str) -> bool {
        let is_its = |link: &Link| link.name == pf || link.altnames.iter().any(|name| name == pf);
        self.pci_id
            .as_ref()
            .is_some_and(|id| id.eq_ignore_ascii_case(pf))
            || self.link.as_ref().is_some_and(is_its)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_of_node_json_means_a_pf_by_address_name_or_altname() {
        let named = |id: &str, link: serde_json::Value| -> Original {
            serde_json::from_value(json!({"id": id, "pciID": id, "link": link})).unwrap()
        };
        let original = named("0000:0a:00.0", json!(null));
        assert!(original.is_pf("0000:0a:00.0") && original.is_pf("0000:0A:00.0"));
        assert!(!original.is_pf("0000:0a:00.1") && !original.is_pf("ens1f0"));
    }
}
