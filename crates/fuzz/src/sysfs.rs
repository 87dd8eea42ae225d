//! sysfs: a tree of files and links, and all questions to it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Component, Path};

use rail_cni::sysfs::{self, DeviceId, Function};

use crate::directory::Directory;
use crate::input::text;

/// The tree has at most this many files.
const MOST: usize = 64;

/// Lines: `PATH=CONTENT` makes a file, `PATH>TARGET` a link, which leads nowhere outside.
pub fn sysfs(data: &[u8]) {
    let text = text(data);
    let root = Directory::new();
    let mut names = vec!["ens1".to_owned(), "ens1f0".to_owned()];
    let mut ids = vec![
        "0000:3b:00.0".to_owned(),
        "0000:3b:00.2".to_owned(),
        "mlx5_core.sf.4".to_owned(),
    ];
    for line in text.lines().take(MOST) {
        let Some(at) = line.find(['=', '>']) else {
            continue;
        };
        let (path, value) = (&line[..at], &line[at + 1..]);
        if !is_inside(path, path) || path.is_empty() {
            continue;
        }
        let path = Path::new(path);
        let whole = root.path(&path.display().to_string());
        if whole
            .parent()
            .is_none_or(|parent| fs::create_dir_all(parent).is_err())
        {
            continue;
        }
        if line[at..].starts_with('=') {
            // Files of sysfs may have anything in them, also lines.
            let _ = fs::write(&whole, value.replace("\\n", "\n"));
        } else if is_inside(&path.display().to_string(), value) {
            let _ = symlink(value, &whole);
        }
        let parts = path
            .components()
            .filter_map(|part| part.as_os_str().to_str());
        for part in parts {
            if DeviceId::parse(part).is_some() && !ids.iter().any(|id| id == part) {
                ids.push(part.to_owned());
            }
        }
        if let Some(name) = path
            .strip_prefix("class/net")
            .ok()
            .and_then(|rest| rest.iter().next()?.to_str())
        {
            names.push(name.to_owned());
        }
    }
    let root = root.path("");
    names.dedup();
    names.iter().take(8).for_each(|name| of_netdev(&root, name));
    for id in ids.iter().take(8) {
        let id = DeviceId::parse(id).expect("an id");
        assert_eq!(DeviceId::parse(id.as_str()), Some(id.clone()));
        if let Ok(Some(function)) = Function::find(&root, &id) {
            assert_eq!(function.id, id.as_str());
            of_function(&root, &function);
        }
    }
    let functions = sysfs::functions_with_sriov(&root).unwrap_or_default();
    assert!(functions.is_sorted_by_key(|function| function.id.clone()));
    assert!(functions.iter().all(|function| function.max_vf_count() > 0));
    for path in [
        "/sys/devices/pci/0000:3b:00.0",
        "/sys/devices/../class",
        "/sys/class/net/ens1",
    ] {
        if let Ok(Some(name)) = sysfs::netdev_at(&root, path) {
            assert!(root.join("class/net").join(name).exists());
        }
    }
}

/// Whether a link at `path` to `target` stays in the tree: relative, with no more `..` than
/// directories above it.
fn is_inside(path: &str, target: &str) -> bool {
    let mut depth = Path::new(path).components().count().saturating_sub(1);
    let is_link = path != target;
    !target.is_empty()
        && !target.contains('\0')
        && target.len() < 200
        && Path::new(target).components().all(|part| match part {
            Component::Normal(_) => true,
            Component::ParentDir if is_link && depth > 0 => {
                depth -= 1;
                true
            }
            _ => false,
        })
}

fn of_netdev(root: &Path, name: &str) {
    if let Ok(Some(function)) = Function::of_netdev(root, name) {
        of_function(root, &function);
    }
    let _ = (
        sysfs::represents(root, name),
        sysfs::is_connected(root, name),
        sysfs::port_of(root, name),
    );
    let _ = (sysfs::bus_of(root, name), sysfs::upper_devices(root, name));
    if let Some(id) = sysfs::device_of(root, name) {
        assert_eq!(DeviceId::parse(id.as_str()), Some(id.clone()));
    }
}

fn of_function(root: &Path, function: &Function) {
    let netdevs = function.netdevs().unwrap_or_default();
    assert_eq!(function.netdev().ok().flatten(), netdevs.first().cloned());
    for name in &netdevs {
        assert!(!name.contains('/'), "{name}");
        let _ = function.has_port(root, name);
    }
    let vfs = function.vfs().unwrap_or_default();
    assert!(vfs.iter().all(|address| !address.contains('/')));
    assert!(function.max_vf_count() >= function.vf_count());
    // A PF is looked up by this address, which becomes a path and the name of a lock.
    if let Ok(Some(pf)) = function.pf(root) {
        assert!(!pf.address.contains('/'), "{}", pf.address);
        assert!(pf.is(&pf.address));
    }
    assert!(function.vf_number().is_none() || function.is_vf());
    let ports = function.rdma_ports();
    assert!(function.roce_devices() == 0 || ports.iter().any(|port| port.layer == sysfs::ETHERNET));
    let wanted = [
        "::ffff:172.16.0.0".parse().expect("a GID"),
        "fd00::1".parse().expect("a GID"),
    ];
    let gids = function.gids(&wanted);
    assert!(gids.iter().all(|gid| wanted.contains(&gid.gid)));
    assert!(gids.is_sorted_by_key(|gid| (gid.device.clone(), gid.port, gid.index)));
    for device in function.rdma_devices() {
        let _ = function.traffic_classes(&device);
    }
    let _ = (
        function.driver(),
        function.is_userspace(),
        function.iommu_group(),
        function.has_flr(),
    );
    let _ = (
        function.node_guids(),
        function.pkeys(),
        function.driver_override(),
        function.has_infiniband(),
    );
    assert!(function.seen_in(root).exists() == function.exists());
}
