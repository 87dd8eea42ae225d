//! The key `vfs` of node.json: the VFs that a rail's PF must have. `railctl vfs` makes them; ADD
//! makes none.

use anyhow::Result;
use serde::Deserialize;

use super::{Node, RailPf};
use crate::fail;
use rail_netlink::vf::{LinkState, VfState};

/// The required state of a rail's PF and its VFs. An absent key is left as it is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Vfs {
    /// The exact number of the PF's VFs.
    pub number: u16,
    /// The MTU in bytes that the PF has at least: its VFs can have no larger one.
    pub mtu: Option<u32>,
    /// The driver of the VFs.
    pub driver: Option<Driver>,
    trust: Option<bool>,
    spoofchk: Option<bool>,
    link_state: Option<LinkState>,
}

/// The driver of a VF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Driver {
    /// The kernel, with the NIC's own driver.
    #[serde(rename = "netdev")]
    Netdev,
    /// A program in user space.
    #[serde(rename = "vfio-pci")]
    Vfio,
}

impl Vfs {
    /// The settings that the PF must have for each of its VFs.
    pub fn settings(&self) -> VfState {
        let Vfs {
            trust,
            spoofchk,
            link_state,
            ..
        } = *self;
        VfState {
            trust,
            spoofchk,
            link_state,
            ..VfState::default()
        }
    }

    fn check(&self, key: &str) -> Result<()> {
        // As for the networks of pods: IPv6 needs 1280, and no NIC has more than 65535.
        if let Some(mtu) = self.mtu.filter(|mtu| !(1280..=65535).contains(mtu)) {
            fail!(
                InvalidConfig,
                "{key}.mtu: {mtu} must be 1280 to 65535 bytes"
            );
        }
        let is_of_vfs = self.driver.is_some() || self.settings() != VfState::default();
        if self.number == 0 && is_of_vfs {
            fail!(
                InvalidConfig,
                "{key}: with \"number\": 0 there are no VFs to configure"
            );
        }
        Ok(())
    }
}

impl Node {
    /// The requirements for the PF of this rail; `None` where node.json has none.
    pub fn vfs_of<'a>(&'a self, rail: &'a RailPf) -> Option<&'a Vfs> {
        rail.vfs.as_ref().or(self.vfs.as_ref())
    }

    /// Does `railctl vfs` have something to do on this node?
    pub fn has_vfs_to_make(&self) -> bool {
        self.rails.iter().any(|rail| self.vfs_of(rail).is_some())
    }
}

/// Fails if a value is out of its range, or if one PF is to be two things.
pub(super) fn check(node: &Node) -> Result<()> {
    node.vfs.iter().try_for_each(|vfs| vfs.check("vfs"))?;
    for (index, one) in node.rails.iter().enumerate() {
        one.vfs
            .iter()
            .try_for_each(|vfs| vfs.check(&format!("rails[{index}].vfs")))?;
        let other = node.rails[..index].iter().find(|other| other.pf == one.pf);
        if other.is_some_and(|other| node.vfs_of(other) != node.vfs_of(one)) {
            fail!(
                InvalidConfig,
                "rails[{index}].vfs: another row has other VFs for {}",
                one.pf
            );
        }
    }
    if node.vfs.is_some() && node.rails.is_empty() {
        fail!(
            InvalidConfig,
            "vfs: there are no PFs to create them on: list the rails"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;

    fn parsed(node: &Value) -> Result<Node> {
        Node::parse(Path::new("node.json"), node.to_string().as_bytes())
    }

    #[test]
    fn the_vfs_of_a_rail_stand_before_those_of_the_node() {
        let node = parsed(&json!({"vfs": {"number": 1, "mtu": 9216, "driver": "netdev"}, "rails": [
            {"rail": 0, "pf": "p0"},
            {"rail": 1, "pf": "p1", "vfs": {"number": 2, "driver": "vfio-pci", "trust": true, "linkState": "auto"}}]}))
        .unwrap();
        let of = |rail: usize| node.vfs_of(&node.rails[rail]).unwrap();
        assert_eq!(
            (of(0).number, of(0).mtu, of(0).driver),
            (1, Some(9216), Some(Driver::Netdev))
        );
        assert_eq!(of(0).settings(), VfState::default());
        assert_eq!(
            (of(1).number, of(1).mtu, of(1).driver),
            (2, None, Some(Driver::Vfio))
        );
        let wanted = VfState {
            trust: Some(true),
            link_state: Some(LinkState::Auto),
            ..VfState::default()
        };
        assert_eq!(of(1).settings(), wanted);
        assert!(node.has_vfs_to_make());
        assert!(
            !parsed(&json!({"rails": [{"rail": 0, "pf": "p0"}]}))
                .unwrap()
                .has_vfs_to_make()
        );
    }

    #[test]
    fn vfs_that_cannot_be_are_refused_by_their_key() {
        let rails = json!([{"rail": 0, "pf": "p0"}]);
        let twice = |one: u8, other: u8| json!([{"rail": 0, "pf": "p0", "vfs": {"number": one}}, {"rail": 1, "pf": "p0", "vfs": {"number": other}}]);
        assert!(parsed(&json!({"rails": twice(1, 1)})).is_ok());
        let mut said = Vec::new();
        for (node, told) in [
            (
                json!({"rails": rails, "vfs": {"number": 1, "mtu": 900}}),
                "vfs.mtu: 900",
            ),
            (
                json!({"rails": rails, "vfs": {"number": 0, "trust": true}}),
                "vfs: with \"number\": 0",
            ),
            (
                json!({"rails": rails, "vfs": {"number": 1, "driver": "mlx5_core"}}),
                "vfs.driver",
            ),
            (
                json!({"rails": rails, "vfs": {"number": 1, "Trust": true}}),
                " trust?",
            ),
            (json!({"rails": rails, "vfs": {"mtu": 9000}}), "`number`"),
            (json!({"vfs": {"number": 1}}), "vfs: "),
            (json!({"rails": twice(1, 2)}), "rails[1].vfs: "),
        ] {
            let error = format!("{:#}", parsed(&node).unwrap_err());
            assert!(error.contains(told), "{told}: {error}");
            said.push(error);
        }
        golden::says("plugins", "node.json: vfs", said.join("\n"));
    }
}
