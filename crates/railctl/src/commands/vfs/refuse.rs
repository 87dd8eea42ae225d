//! Why a PF and its VFs are not changed.

use std::fs;
use std::path::Path;

use super::differ::{Change, VFIO};
use crate::commands::inventory::{Inventory, Rail};
use crate::commands::rebuild;
use rail_cni::device::allowed::{refuse_addresses, refuse_parts, refuse_what_the_host_needs};
use rail_cni::device::is_away;
use rail_cni::device::userspace;
use rail_cni::node::{Driver, Node, Vfs};
use rail_cni::sysfs::Function;
use rail_netlink::Socket;
use rail_netlink::link::Link;
use serde_json::Value;

/// Why something is not changed: a word for programs, and a text.
#[derive(Debug)]
pub struct Refusal {
    /// Documented in docs/operations.md.
    pub reason: &'static str,
    /// The obstacle and its remedy.
    pub text: String,
}

impl Refusal {
    /// A refusal for this reason.
    pub fn new(reason: &'static str, text: String) -> Refusal {
        Refusal { reason, text }
    }
}

/// The facts for the judgement of a change.
pub struct Judge<'a> {
    /// The node.
    pub node: &'a Node,
    /// The node's present state.
    pub inventory: &'a Inventory,
    /// A socket of the host's namespace.
    pub host: &'a mut Socket,
    /// Whether the kubelet may be handing out VFs.
    pub is_undrained: bool,
}

impl Judge<'_> {
    /// Refuses changes that would take a device from its user, or that cannot succeed.
    pub fn refuse_impossible(
        &mut self,
        (rail, pf): (&Rail, &Link),
        wanted: &Vfs,
        changes: &[Change],
    ) -> Result<(), Refusal> {
        let Some(function) = &rail.function else {
            return Err(Refusal::new(
                "no-sriov",
                format!("{} is not a PCI function", pf.name),
            ));
        };
        refuse_operators(function, Path::new(OPERATOR))?;
        refuse_beyond_firmware(function, wanted)?;
        self.refuse_without_vfio(rail, wanted)?;
        let what = format!("the PF {} ({})", function.id, pf.name);
        refuse_parts(&what, pf, self.node, self.host)
            .and_then(|()| refuse_addresses(&what, pf, self.host))
            .map_err(|error| Refusal::new("host-use", format!("{error:#}")))?;
        let disturbing: Vec<&Change> = changes
            .iter()
            .filter(|change| change.disturbs(rail))
            .collect();
        for vf in &rail.vfs {
            // A change without a VF is one of the PF, which disturbs all VFs.
            let is_disturbed = disturbing
                .iter()
                .any(|change| change.vf().is_none_or(|id| id == vf.function.id));
            if is_disturbed {
                self.refuse_used(&vf.function, vf.link.as_ref())?;
            }
        }
        if self.is_undrained && !disturbing.is_empty() {
            let text = format!(
                "{} has VFs that pods may be getting: drain the node first (`kubectl drain`), because their number, driver or \
                 MTU changes",
                function.id
            );
            return Err(Refusal::new("not-drained", text));
        }
        Ok(())
    }

    /// Refuses a VF that somebody has.
    fn refuse_used(&mut self, vf: &Function, link: Option<&Link>) -> Result<(), Refusal> {
        let in_use = |text: String| Refusal::new("in-use", text);
        if let Some(holder) = self
            .inventory
            .holder(vf)
            .filter(|holder| !holder.is_left_over())
        {
            let who = holder.record.owner.describe();
            return Err(in_use(format!(
                "{} belongs to {who}: drain the node first",
                vf.id
            )));
        }
        if let Some(holder) = self.inventory.holder(vf) {
            let who = holder.record.owner.describe();
            let text = format!(
                "{} was left behind by {who}: run `railctl reap` first",
                vf.id
            );
            return Err(in_use(text));
        }
        if self.inventory.claimed.contains(&vf.id) {
            return Err(in_use(format!(
                "a resource claim has {}: drain the node first",
                vf.id
            )));
        }
        if let Some(lost) = self.inventory.lost(vf) {
            return Err(in_use(format!("{}: {}", lost.describe(), rebuild::REMEDY)));
        }
        if is_away(vf).unwrap_or(true) {
            let text = format!(
                "{} has no netdev that can be seen from here, so a pod or a container may have it: end that first",
                vf.id
            );
            return Err(in_use(text));
        }
        let what = format!("the VF {}", vf.id);
        let used = match link {
            Some(link) => refuse_what_the_host_needs(&what, link, self.node, self.host)
                .and_then(|()| refuse_addresses(&what, link, self.host)),
            None => userspace::refuse_held(&what, vf),
        };
        used.map_err(|error| in_use(format!("{error:#}")))
    }

    fn refuse_without_vfio(&self, rail: &Rail, wanted: &Vfs) -> Result<(), Refusal> {
        if wanted.driver != Some(Driver::Vfio) {
            return Ok(());
        }
        if !self
            .node
            .sysfs_root
            .join("bus/pci/drivers")
            .join(VFIO)
            .exists()
        {
            let text = "this kernel has no driver vfio-pci: run `modprobe vfio-pci`, now and at every boot (modules-load.d)";
            return Err(Refusal::new("no-vfio", text.to_owned()));
        }
        // New VFs are in the groups of the same IOMMU.
        let mut functions = rail
            .function
            .iter()
            .chain(rail.vfs.iter().map(|vf| &vf.function));
        match functions.find(|function| function.iommu_group().is_none()) {
            Some(function) => {
                let text = format!(
                    "{} is in no IOMMU group, which vfio-pci needs: switch the IOMMU on in BIOS and kernel (intel_iommu=on, \
                     amd_iommu=on)",
                    function.id
                );
                Err(Refusal::new("no-iommu", text))
            }
            None => Ok(()),
        }
    }
}

fn refuse_beyond_firmware(pf: &Function, wanted: &Vfs) -> Result<(), Refusal> {
    let (id, number, most) = (&pf.id, wanted.number, pf.max_vf_count());
    if u32::from(number) <= most {
        return Ok(());
    }
    let remedy = format!(
        "`mlxconfig -d {id} set SRIOV_EN=1 NUM_OF_VFS={number}`, or the vendor's tool, then reboot"
    );
    Err(if most == 0 {
        let text = format!(
            "{id} has no SR-IOV (sriov_totalvfs): switch it on in BIOS and firmware: {remedy}"
        );
        Refusal::new("no-sriov", text)
    } else {
        let text = format!(
            "the firmware of {id} allows {most} VFs (sriov_totalvfs), not {number}: {remedy}"
        );
        Refusal::new("too-many", text)
    })
}

/// Directory in which the daemon of sriov-network-operator keeps, on each host, what it applied to
/// each PF.
const OPERATOR: &str = "/etc/sriov-operator";

/// Refuses a PF that sriov-network-operator manages: it would take back what is made here. Its
/// policies can say that somebody else makes the VFs (externallyManaged).
fn refuse_operators(pf: &Function, operator: &Path) -> Result<(), Refusal> {
    let refusal = |file: &Path| {
        let text = format!(
            "sriov-network-operator makes the VFs of {} ({}): leave them to its SriovNetworkNodePolicy, or give that \
             `externallyManaged: true`; after the operator was removed, remove the file",
            pf.id,
            file.display()
        );
        Err(Refusal::new("sriov-operator", text))
    };
    let applied = operator.join("pci").join(&pf.id);
    if let Ok(text) = fs::read_to_string(&applied) {
        let is_ours =
            serde_json::from_str::<Value>(&text).is_ok_and(|pf| pf["externallyManaged"] == true);
        return if is_ours { Ok(()) } else { refusal(&applied) };
    }
    // Its service at boot has them all in one file (configurationMode: systemd).
    let service = operator.join("sriov-interface-config.yaml");
    let is_there = fs::read_to_string(&service).is_ok_and(|text| text.contains(&pf.id));
    if is_there { refusal(&service) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rail_cni::sysfs::DeviceId;

    fn pf(root: &Path, most: &str) -> Function {
        let path = root.join("bus/pci/devices/0000:1a:00.0");
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("sriov_totalvfs"), most).unwrap();
        Function::find(root, &DeviceId::parse("0000:1a:00.0").unwrap())
            .unwrap()
            .unwrap()
    }

    #[test]
    fn a_pf_of_the_operator_is_refused_unless_it_leaves_the_vfs_to_others() {
        let root = tempfile::tempdir().unwrap();
        let pf = pf(root.path(), "8");
        let reason = || {
            refuse_operators(&pf, root.path())
                .err()
                .map(|refusal| refusal.reason)
        };
        assert_eq!(reason(), None);
        fs::create_dir_all(root.path().join("pci")).unwrap();
        fs::write(
            root.path().join("sriov-interface-config.yaml"),
            "- pciaddress: 0000:1b:00.0\n",
        )
        .unwrap();
        assert_eq!(reason(), None);
        fs::write(
            root.path().join("sriov-interface-config.yaml"),
            "- pciaddress: 0000:1a:00.0\n",
        )
        .unwrap();
        assert_eq!(reason(), Some("sriov-operator"));
        for (applied, told) in [
            (
                r#"{"pciAddress":"0000:1a:00.0","numVfs":4}"#,
                Some("sriov-operator"),
            ),
            (
                r#"{"pciAddress":"0000:1a:00.0","numVfs":4,"externallyManaged":true}"#,
                None,
            ),
            ("half", Some("sriov-operator")),
        ] {
            fs::write(root.path().join("pci/0000:1a:00.0"), applied).unwrap();
            assert_eq!(reason(), told, "{applied}");
        }
    }

    #[test]
    fn more_vfs_than_the_firmware_allows_are_refused_with_its_limit() {
        let root = tempfile::tempdir().unwrap();
        let node = |number: u16| {
            let json = format!(
                r#"{{"rails": [{{"rail": 0, "pf": "p", "vfs": {{"number": {number}}}}}]}}"#
            );
            Node::parse(Path::new("node.json"), json.as_bytes()).unwrap()
        };
        for (most, number, reason) in [
            ("8", 8, None),
            ("8", 9, Some("too-many")),
            ("0", 1, Some("no-sriov")),
            ("0", 0, None),
        ] {
            let (pf, node) = (pf(root.path(), most), node(number));
            let wanted = node.vfs_of(&node.rails[0]).unwrap();
            let refused = refuse_beyond_firmware(&pf, wanted);
            assert_eq!(refused.as_ref().err().map(|refusal| refusal.reason), reason);
            if let Err(refusal) = refused {
                assert!(
                    refusal.text.contains(&format!("NUM_OF_VFS={number}")),
                    "{}",
                    refusal.text
                );
            }
        }
    }
}
