//! What sysfs says of a device: its netdev, its driver, its PF.
//!
//! The root is the host's mount, also while pods have the netdevs: the folder `net` of a function lists
//! only netdevs that are in the namespace which that mount belongs to.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::error::all_of;
use crate::{fail, failure};

/// Drivers that hand the function to a program in user space: there is no netdev.
const USERSPACE_DRIVERS: [&str; 4] = ["vfio-pci", "uio_pci_generic", "igb_uio", "uio"];

/// A PCI function or an auxiliary device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// PCI address, lower case, or the name on the auxiliary bus.
    pub id: String,
    path: PathBuf,
    is_auxiliary: bool,
}

/// The physical function that a VF or SF is part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pf {
    /// PCI address.
    pub address: String,
    /// Its netdev, when the host has it.
    pub netdev: Option<String>,
}

impl Pf {
    /// Does `text` of node.json, an address or a name, mean this PF?
    pub fn is(&self, text: &str) -> bool {
        self.address.eq_ignore_ascii_case(text) || self.netdev.as_deref() == Some(text)
    }
}

/// What a device id looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceId {
    /// `0000:3b:00.2`.
    Pci(String),
    /// `mlx5_core.sf.4`.
    Auxiliary(String),
}

impl DeviceId {
    /// Reads a device id; anything else is refused, for it becomes part of a path.
    pub fn parse(text: &str) -> Option<DeviceId> {
        let is_hex = |text: &str, digits: usize| {
            text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let is_pci = || {
            let (slot, function) = text.split_once('.')?;
            let [domain, bus, device] = slot.split(':').collect::<Vec<_>>()[..] else { return None };
            // Domains have more than four digits behind some bridges (Intel VMD).
            let is_domain = (4..=8).contains(&domain.len()) && is_hex(domain, domain.len());
            (is_domain && is_hex(bus, 2) && is_hex(device, 2) && matches!(function.as_bytes(), [b'0'..=b'7']))
                .then_some(())
        };
        let is_auxiliary = || {
            let parts: Vec<_> = text.split('.').collect();
            let is_word = |word: &&str| {
                !word.is_empty()
                    && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
            };
            let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
            parts.len() == 3 && parts.iter().all(is_word) && is_number(parts[2])
        };
        if is_pci().is_some() {
            Some(DeviceId::Pci(text.to_ascii_lowercase()))
        } else if text.len() <= 64 && is_auxiliary() {
            Some(DeviceId::Auxiliary(text.to_owned()))
        } else {
            None
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        match self {
            DeviceId::Pci(id) | DeviceId::Auxiliary(id) => id,
        }
    }
}

impl Function {
    /// The device with this id; `None` when the host has none (unplugged, or VFs taken away).
    pub fn find(sysfs: &Path, id: &DeviceId) -> Result<Option<Function>> {
        let (bus, is_auxiliary) = match id {
            DeviceId::Pci(_) => ("pci", false),
            DeviceId::Auxiliary(_) => ("auxiliary", true),
        };
        let path = sysfs.join("bus").join(bus).join("devices").join(id.as_str());
        let exists = path.try_exists().with_context(|| format!("cannot look at {}", path.display()))?;
        Ok(exists.then(|| Function { id: id.as_str().to_owned(), path, is_auxiliary }))
    }

    /// The function that the netdev `name` belongs to; `None` for virtual devices.
    pub fn of_netdev(sysfs: &Path, name: &str) -> Result<Option<Function>> {
        let device = sysfs.join("class/net").join(name).join("device");
        let real = match device.canonicalize() {
            Ok(real) => real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", device.display())),
        };
        // A virtio NIC's device is virtioN below the function. What is further below is not the function: a NIC
        // on USB has the controller above it.
        let mut parts = real.ancestors().filter_map(|path| path.file_name()?.to_str());
        let id = parts.find(|part| !part.starts_with("virtio")).and_then(DeviceId::parse);
        id.map_or(Ok(None), |id| Function::find(sysfs, &id))
    }

    /// Its netdev in the host's namespace; that of its first port, where it has several.
    pub fn netdev(&self) -> Result<Option<String>> {
        Ok(self.netdevs()?.into_iter().next())
    }

    /// Its netdevs in the host's namespace, in the order of its ports: mlx4 and cxgb4 have a function for two
    /// ports and more. Not those beside them: the representors that a PF in switchdev mode has of its VFs, and
    /// the children of an IPoIB device.
    pub fn netdevs(&self) -> Result<Vec<String>> {
        let mut dir = self.path.join("net");
        let mut names = names(&dir)?;
        if names.is_empty()
            && let Some(virtio) = names_starting_with(&self.path, "virtio")?.first()
        {
            dir = self.path.join(virtio).join("net");
            names = self::names(&dir)?;
        }
        names.retain(|name| !is_representor(&dir.join(name)));
        if names.len() > 1 {
            names.retain(|name| !is_stacked(&dir.join(name)));
            names.sort_by_cached_key(|name| (port(&dir.join(name)), name.clone()));
        }
        Ok(names)
    }

    /// Is the netdev `name` that of one of its ports, and no representor or child?
    pub fn has_port(&self, sysfs: &Path, name: &str) -> Result<bool> {
        let is_there = self.netdevs()?.iter().any(|netdev| netdev == name);
        Ok(is_there && !is_stacked(&sysfs.join("class/net").join(name)))
    }

    /// The driver that is bound to it.
    pub fn driver(&self) -> Option<String> {
        link_name(&self.path.join("driver"))
    }

    /// Is a program in user space to drive it?
    pub fn is_userspace(&self) -> bool {
        self.driver().is_some_and(|driver| USERSPACE_DRIVERS.contains(&driver.as_str()))
    }

    /// Its group, as /dev/vfio names it; `noiommu-4` where it is used without an IOMMU.
    pub fn iommu_group(&self) -> Option<String> {
        let group = self.path.join("iommu_group");
        let number = link_name(&group)?;
        let is_unsafe = read(&group.join("name")).is_some_and(|name| name == "vfio-noiommu");
        Some(if is_unsafe { format!("noiommu-{number}") } else { number })
    }

    /// Is it a VF?
    pub fn is_vf(&self) -> bool {
        self.path.join("physfn").is_symlink()
    }

    /// Its number among the VFs of its PF, as netlink counts them.
    pub fn vf_number(&self) -> Option<u32> {
        let pf = self.path.join("physfn");
        let entries = names_starting_with(&pf, "virtfn").ok()?;
        let ours = |entry: &&String| link_name(&pf.join(entry)).is_some_and(|id| id == self.id);
        entries.iter().find(ours)?.strip_prefix("virtfn")?.parse().ok()
    }

    /// Number of VFs that exist below it.
    pub fn vf_count(&self) -> u32 {
        read(&self.path.join("sriov_numvfs")).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Number of VFs that it could have; 0: no SR-IOV, or switched off in firmware.
    pub fn max_vf_count(&self) -> u32 {
        let max = read(&self.path.join("sriov_totalvfs")).and_then(|text| text.parse().ok());
        max.unwrap_or(0).max(self.vf_count())
    }

    /// PCI addresses of its VFs, in the order of their numbers.
    pub fn vfs(&self) -> Result<Vec<String>> {
        let mut vfs = Vec::new();
        for entry in names_starting_with(&self.path, "virtfn")? {
            let number = entry.strip_prefix("virtfn").and_then(|number| number.parse::<u32>().ok());
            vfs.extend(number.zip(link_name(&self.path.join(entry))));
        }
        vfs.sort();
        Ok(vfs.into_iter().map(|(_, address)| address).collect())
    }

    /// The PF of a VF or SF; a PF, or any other function, is its own.
    pub fn pf(&self, sysfs: &Path) -> Result<Option<Pf>> {
        let address = if self.is_vf() {
            link_name(&self.path.join("physfn"))
        } else if self.is_auxiliary {
            // The device of an SF is below its PF: …/0000:3b:00.0/mlx5_core.sf.4
            let real =
                self.path.canonicalize().with_context(|| format!("cannot read {}", self.path.display()))?;
            let parts =
                real.ancestors().skip(1).filter_map(|path| path.file_name()?.to_str().map(str::to_owned));
            parts.into_iter().find(|part| matches!(DeviceId::parse(part), Some(DeviceId::Pci(_))))
        } else {
            Some(self.id.clone())
        };
        let Some(address) = address else { return Ok(None) };
        let function = Function::find(sysfs, &DeviceId::Pci(address.clone()))?;
        let netdev = function.map(|function| function.netdev()).transpose()?.flatten();
        Ok(Some(Pf { address, netdev }))
    }

    /// Can it be reset alone? The file lists the ways that the kernel would take, one after the other (Linux 5.15);
    /// only `flr` is sure to leave the other functions of the bus alone.
    pub fn has_flr(&self) -> bool {
        let methods = read(&self.path.join("reset_method")).unwrap_or_default();
        methods.split_ascii_whitespace().any(|method| method == "flr")
    }

    /// A function-level reset: what the former owner left in the hardware is gone. Its driver is told and sets it up
    /// again (pci_reset_function). Refused where the kernel would have to take another way.
    pub fn flr(&self) -> Result<()> {
        if !self.has_flr() {
            fail!(
                UnsupportedField,
                "{} has no function-level reset (reset_method does not list flr)",
                self.id
            );
        }
        // The kernel tries them in turn, and goes on from one that the function turns out not to have.
        let methods = self.path.join("reset_method");
        let before = read(&methods).unwrap_or_default();
        let write = |file: &Path, text: &str| {
            fs::write(file, text).with_context(|| format!("cannot write {text} to {}", file.display()))
        };
        let is_alone = before == "flr";
        if !is_alone {
            write(&methods, "flr")?;
        }
        let reset = write(&self.path.join("reset"), "1");
        let restored = if is_alone { Ok(()) } else { write(&methods, &before) };
        all_of([reset, restored])
    }

    /// Its RDMA devices, as long as they are in the host's namespace.
    pub fn rdma_devices(&self) -> Vec<String> {
        let mut names = names(&self.path.join("infiniband")).unwrap_or_default();
        names.sort();
        names
    }
}

/// PCI functions that have or could have VFs, in the order of their addresses: NICs, and other things too.
pub fn functions_with_sriov(sysfs: &Path) -> Result<Vec<Function>> {
    let mut found = Vec::new();
    for name in names(&sysfs.join("bus/pci/devices"))? {
        let Some(id @ DeviceId::Pci(_)) = DeviceId::parse(&name) else { continue };
        found.extend(Function::find(sysfs, &id)?.filter(|function| function.max_vf_count() > 0));
    }
    found.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(found)
}

/// The netdev at `kernelpath`, a folder under /sys/devices: the path selects, it is not opened.
pub fn netdev_at(sysfs: &Path, kernelpath: &str) -> Result<Option<String>> {
    let Some(below) = kernelpath.strip_prefix("/sys/devices/") else {
        fail!(InvalidConfig, "kernelpath {kernelpath:?} does not begin with /sys/devices/");
    };
    let wanted = sysfs.join("devices").join(below);
    if Path::new(below).components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
        fail!(InvalidConfig, "kernelpath {kernelpath:?} is no plain path");
    }
    let class = sysfs.join("class/net");
    for name in names(&class)? {
        let real = class.join(&name).canonicalize();
        let at =
            |path: &Path| path == wanted || path.parent().is_some_and(|parent| parent == wanted.join("net"));
        if real.is_ok_and(|path| at(&path)) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Devices stacked on the netdev `name`, as VLANs or macvlans: they go down with it.
pub fn upper_devices(sysfs: &Path, name: &str) -> Result<Vec<String>> {
    let entries = names_starting_with(&sysfs.join("class/net").join(name), "upper_")?;
    Ok(entries.iter().filter_map(|entry| entry.strip_prefix("upper_")).map(str::to_owned).collect())
}

/// Does the netdev `name` stand for another function?
pub fn represents(sysfs: &Path, name: &str) -> bool {
    is_representor(&sysfs.join("class/net").join(name))
}

/// The bus that the device of the netdev `name` is on: `pci`, `usb`, `vmbus`.
pub fn bus_of(sysfs: &Path, name: &str) -> Option<String> {
    link_name(&sysfs.join("class/net").join(name).join("device/subsystem"))
}

/// The number of the port that the netdev `name` is, where its driver counts them: mlx4, cxgb4, IPoIB.
pub fn port_of(sysfs: &Path, name: &str) -> Option<u32> {
    port(&sysfs.join("class/net").join(name))
}

fn port(netdev: &Path) -> Option<u32> {
    read(&netdev.join("dev_port"))?.parse().ok()
}

/// `pf0vf3`, `c1pf0vf3`, `pf0sf4`: ports of a switch that stand for a VF, SF or PF (devlink-port(8)).
fn is_representor(netdev: &Path) -> bool {
    let is_one = |port: String| port.contains("vf") || port.contains("sf") || port.contains("pf");
    read(&netdev.join("phys_port_name")).is_some_and(is_one)
}

/// An IPoIB child, or a port of a switch chip (DSA): its traffic goes through another netdev.
fn is_stacked(netdev: &Path) -> bool {
    read(&netdev.join("iflink")).is_some_and(|link| Some(link) != read(&netdev.join("ifindex")))
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", dir.display())),
    };
    entries
        .map(|entry| {
            let name = entry.map(|entry| entry.file_name().to_string_lossy().into_owned());
            name.map_err(|error| failure!(Io, "cannot list {}: {error}", dir.display()))
        })
        .collect()
}

fn names_starting_with(dir: &Path, prefix: &str) -> Result<Vec<String>> {
    Ok(names(dir)?.into_iter().filter(|name| name.starts_with(prefix)).collect())
}

fn link_name(link: &Path) -> Option<String> {
    fs::read_link(link).ok()?.file_name()?.to_str().map(str::to_owned)
}

fn read(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn ids_are_pci_addresses_or_names_on_the_auxiliary_bus() {
        let pci = |text: &str| Some(DeviceId::Pci(text.to_owned()));
        assert_eq!(DeviceId::parse("0000:3B:00.2"), pci("0000:3b:00.2"));
        assert_eq!(DeviceId::parse("10000:01:00.0"), pci("10000:01:00.0"));
        assert_eq!(DeviceId::parse("mlx5_core.sf.4"), Some(DeviceId::Auxiliary("mlx5_core.sf.4".into())));
        for bad in [
            "",
            "..",
            "0000:3b:00",
            "0000:3b:00.8",
            "3b:00.2",
            "../../x.sf.1",
            "a.b.c",
            "0000:3b:00.2\n",
            "é.sf.1",
        ] {
            assert_eq!(DeviceId::parse(bad), None, "{bad:?}");
        }
    }

    /// A PF in switchdev mode with a VF and an SF.
    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let dir = |path: &str| fs::create_dir_all(at(path)).unwrap();
        let file = |path: &str, text: &str| fs::write(at(path), text).unwrap();
        dir("devices/pci0/0000:3b:00.0/net/a_rep0");
        dir("devices/pci0/0000:3b:00.0/net/ens1f0");
        dir("devices/pci0/0000:3b:00.0/mlx5_core.sf.4/net/ens1f0s4");
        dir("devices/pci0/0000:3b:00.2/net/ens1f0v0");
        dir("bus/pci/devices");
        dir("bus/pci/drivers/vfio-pci");
        dir("bus/auxiliary/devices");
        dir("class/net/ens1f0v0");
        file("devices/pci0/0000:3b:00.0/net/a_rep0/phys_port_name", "pf0vf0\n");
        file("devices/pci0/0000:3b:00.0/net/ens1f0/phys_port_name", "p0\n");
        file("devices/pci0/0000:3b:00.0/sriov_numvfs", "1\n");
        symlink("../0000:3b:00.0", at("devices/pci0/0000:3b:00.2/physfn")).unwrap();
        symlink("../0000:3b:00.2", at("devices/pci0/0000:3b:00.0/virtfn0")).unwrap();
        for id in ["0000:3b:00.0", "0000:3b:00.2"] {
            symlink(at("devices/pci0").join(id), at("bus/pci/devices").join(id)).unwrap();
        }
        symlink(at("devices/pci0/0000:3b:00.0/mlx5_core.sf.4"), at("bus/auxiliary/devices/mlx5_core.sf.4"))
            .unwrap();
        symlink(at("devices/pci0/0000:3b:00.2"), at("class/net/ens1f0v0/device")).unwrap();
        root
    }

    /// sriov-cni#247: the first netdev of the PF may be a representor.
    #[test]
    fn the_pf_of_vf_and_sf_is_the_uplink() {
        let root = tree();
        for id in ["0000:3b:00.2", "mlx5_core.sf.4", "0000:3b:00.0"] {
            let function = Function::find(root.path(), &DeviceId::parse(id).unwrap()).unwrap().unwrap();
            let pf = function.pf(root.path()).unwrap().unwrap();
            assert_eq!((pf.address.as_str(), pf.netdev.as_deref()), ("0000:3b:00.0", Some("ens1f0")), "{id}");
        }
    }

    /// The PCI function above a NIC on USB is the controller of everything that is plugged in.
    #[test]
    fn a_netdev_below_a_function_is_not_the_function() {
        let root = tree();
        let at = |path: &str| root.path().join(path);
        let usb = at("devices/pci0/0000:3b:00.0/usb1/1-1/1-1:1.0");
        fs::create_dir_all(&usb).unwrap();
        fs::create_dir_all(at("class/net/enx0")).unwrap();
        fs::create_dir_all(at("bus/usb")).unwrap();
        symlink(&usb, at("class/net/enx0/device")).unwrap();
        symlink(at("bus/usb"), usb.join("subsystem")).unwrap();
        assert_eq!(Function::of_netdev(root.path(), "enx0").unwrap(), None);
        assert_eq!(bus_of(root.path(), "enx0").as_deref(), Some("usb"));
        // virtio has a device of its own between.
        let virtio = at("devices/pci0/0000:3b:00.2/virtio3");
        fs::create_dir_all(virtio.join("net/eth7")).unwrap();
        fs::remove_dir_all(at("devices/pci0/0000:3b:00.2/net")).unwrap();
        fs::create_dir_all(at("class/net/eth7")).unwrap();
        symlink(&virtio, at("class/net/eth7/device")).unwrap();
        let function = Function::of_netdev(root.path(), "eth7").unwrap().unwrap();
        assert_eq!(
            (function.id.as_str(), function.netdevs().unwrap()),
            ("0000:3b:00.2", vec!["eth7".to_owned()])
        );
        assert!(function.has_port(root.path(), "eth7").unwrap());
    }

    #[test]
    fn ports_are_in_their_order_without_representors_and_children() {
        let root = tree();
        let net = |name: &str, files: &[(&str, &str)]| {
            let dir = root.path().join("devices/pci0/0000:3b:00.2/net").join(name);
            fs::create_dir_all(&dir).unwrap();
            fs::create_dir_all(root.path().join("class/net")).unwrap();
            let _ = symlink(&dir, root.path().join("class/net").join(name));
            files.iter().for_each(|(file, text)| fs::write(dir.join(file), format!("{text}\n")).unwrap());
        };
        fs::remove_dir_all(root.path().join("class/net/ens1f0v0")).unwrap();
        net("ens1f0v0", &[("dev_port", "1"), ("ifindex", "7"), ("iflink", "7")]);
        net("ib9", &[("dev_port", "0"), ("ifindex", "5"), ("iflink", "5")]);
        net("ib9.8001", &[("dev_port", "0"), ("ifindex", "6"), ("iflink", "5")]);
        net("rep", &[("phys_port_name", "c1pf0sf4"), ("dev_port", "0")]);
        let vf = Function::find(root.path(), &DeviceId::parse("0000:3b:00.2").unwrap()).unwrap().unwrap();
        assert_eq!(vf.netdevs().unwrap(), ["ib9", "ens1f0v0"]);
        assert_eq!(vf.netdev().unwrap().as_deref(), Some("ib9"));
        for (name, is_port) in [("ib9", true), ("ens1f0v0", true), ("ib9.8001", false), ("rep", false)] {
            assert_eq!(vf.has_port(root.path(), name).unwrap(), is_port, "{name}");
        }
        assert_eq!(port_of(root.path(), "ens1f0v0"), Some(1));
        assert!(represents(root.path(), "rep") && !represents(root.path(), "ib9"));
    }

    #[test]
    fn a_vf_knows_its_netdev_its_number_and_its_driver() {
        let root = tree();
        let vf = Function::of_netdev(root.path(), "ens1f0v0").unwrap().unwrap();
        assert_eq!((vf.id.as_str(), vf.is_vf(), vf.vf_number()), ("0000:3b:00.2", true, Some(0)));
        assert_eq!(vf.netdev().unwrap().as_deref(), Some("ens1f0v0"));
        assert!(!vf.is_userspace());
        let driver = root.path().join("devices/pci0/0000:3b:00.2/driver");
        symlink(root.path().join("bus/pci/drivers/vfio-pci"), driver).unwrap();
        assert!(vf.is_userspace());
    }

    /// The other ways reset a slot or a bus, with functions that other pods have.
    #[test]
    fn only_a_function_that_can_be_reset_alone_is_reset() {
        let root = tree();
        let at = |name: &str| root.path().join("devices/pci0/0000:3b:00.2").join(name);
        let vf = Function::find(root.path(), &DeviceId::parse("0000:3b:00.2").unwrap()).unwrap().unwrap();
        fs::write(at("reset"), "").unwrap();
        for methods in [None, Some("pm bus\n"), Some("")] {
            methods.into_iter().for_each(|methods| fs::write(at("reset_method"), methods).unwrap());
            assert!(!vf.has_flr() && vf.flr().is_err(), "{methods:?}");
            assert_eq!(fs::read_to_string(at("reset")).unwrap(), "");
        }
        for methods in ["flr\n", "device_specific flr bus\n"] {
            fs::write(at("reset"), "").unwrap();
            fs::write(at("reset_method"), methods).unwrap();
            vf.flr().unwrap();
            assert_eq!(fs::read_to_string(at("reset")).unwrap(), "1");
            assert_eq!(fs::read_to_string(at("reset_method")).unwrap().trim(), methods.trim());
        }
    }
}
