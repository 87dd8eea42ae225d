//! `railctl doctor`: VFs on InfiniBand without a GUID.

use super::super::inventory::Rail;
use super::{Check, Findings};
use rail_cni::device::gid::NO_GUIDS;
use rail_cni::sysfs::Function;

/// Looks at the functions of a rail that no pod has.
pub fn check<'a>(
    name: &'static str,
    rail: &Rail,
    functions: impl Iterator<Item = &'a Function>,
    found: &mut Findings,
) {
    let has_none = |function: &&Function| {
        function.is_vf()
            && function
                .node_guids()
                .iter()
                .any(|guid| NO_GUIDS.contains(guid))
    };
    let ids: Vec<_> = functions
        .filter(has_none)
        .map(|function| function.id.as_str())
        .collect();
    if ids.is_empty() {
        return;
    }
    let text = format!(
        "without an InfiniBand GUID: {}; a pod that requests none has no RDMA there",
        ids.join(", ")
    );
    let remedy = "give each VF a GUID, and bind its driver again (docs/infiniband.md), or let pods request GUIDs (infinibandGUID)";
    found.add(Check::warn(name, text, remedy).on(rail));
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use rail_cni::sysfs::DeviceId;
    use std::fs;

    #[test]
    fn a_vf_without_guid_is_named() {
        let root = tempfile::tempdir().unwrap();
        let functions = [
            ("1", "0000:0000:0000:0000"),
            ("2", "0200:0000:0000:0001"),
            ("3", "ffff:ffff:ffff:ffff"),
        ];
        let functions = functions.map(|(number, guid)| {
            let id = format!("0000:3b:00.{number}");
            let path = root.path().join("bus/pci/devices").join(&id);
            let rdma = path.join("infiniband/mlx5_0");
            fs::create_dir_all(rdma.join("ports/1")).unwrap();
            std::os::unix::fs::symlink("../0000:3b:00.0", path.join("physfn")).unwrap();
            fs::write(rdma.join("node_type"), "1: CA\n").unwrap();
            fs::write(rdma.join("node_guid"), format!("{guid}\n")).unwrap();
            fs::write(rdma.join("ports/1/link_layer"), "InfiniBand\n").unwrap();
            Function::find(root.path(), &DeviceId::parse(&id).unwrap())
                .unwrap()
                .unwrap()
        });
        let rail = Rail {
            rail: Some(0),
            named: String::new(),
            function: None,
            link: None,
            rdma: Vec::new(),
            vfs: Vec::new(),
        };
        let told = |functions: &[Function]| {
            let mut found = Findings::default();
            check("rdma", &rail, functions.iter(), &mut found);
            found
                .0
                .into_iter()
                .map(|check| (check.verdict, check.text))
                .collect::<Vec<_>>()
        };
        let [(verdict, text)] = &told(&functions)[..] else {
            panic!("one finding")
        };
        assert!(
            *verdict == Verdict::Warn && text.contains("0000:3b:00.1, 0000:3b:00.3;"),
            "{text}"
        );
        assert_eq!(told(&functions[1..2]), []);
        // On Ethernet a GUID of zero means nothing.
        let layer = root
            .path()
            .join("bus/pci/devices/0000:3b:00.1/infiniband/mlx5_0/ports/1/link_layer");
        fs::write(layer, "Ethernet\n").unwrap();
        assert_eq!(told(&functions[..1]), []);
    }
}
