//! Devices as sysfs describes them: their netdev, their driver, their PF.
//!
//! The root is the host's mount of sysfs, also while pods have the netdevs: the directory `net` of
//! a function lists only the netdevs in the network namespace that the mount belongs to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write as _};
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::{fail, failure};
use rail_netlink::all_of;

/// Drivers that give the function to a program in user space: it then has no netdev.
const USERSPACE_DRIVERS: [&str; 4] = ["vfio-pci", "uio_pci_generic", "igb_uio", "uio"];

// The link layers of RDMA ports (ib_core).
/// The link layer of a port of RoCE.
pub const ETHERNET: &str = "Ethernet";
const INFINIBAND: &str = "InfiniBand";

/// Names of the files for verbs, without their numbers.
const UVERBS: &str = "uverbs";

/// A PCI function or an auxiliary device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// PCI address in lower case, or the name on the auxiliary bus.
    pub id: String,
    path: PathBuf,
    is_auxiliary: bool,
}

/// The physical function that a VF or SF belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pf {
    /// PCI address.
    pub address: String,
    /// The PF's netdev, while it is in the host's namespace.
    pub netdev: Option<String>,
}

impl Pf {
    /// Whether `text`, a PCI address or a name from node.json, means this PF.
    pub fn is(&self, text: &str) -> bool {
        self.address.eq_ignore_ascii_case(text) || self.netdev.as_deref() == Some(text)
    }
}

/// A device id that is well-formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceId {
    /// A PCI address, such as `0000:3b:00.2`.
    Pci(String),
    /// A name on the auxiliary bus, such as `mlx5_core.sf.4`.
    Auxiliary(String),
}

impl DeviceId {
    /// Parses a device id. Everything else is refused, because the id becomes part of a path.
    pub fn parse(text: &str) -> Option<DeviceId> {
        let is_hex = |text: &str, digits: usize| {
            text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let is_pci = || {
            let (slot, function) = text.split_once('.')?;
            let [domain, bus, device] = slot.split(':').collect::<Vec<_>>()[..] else {
                return None;
            };
            // Behind some bridges a domain has more than four digits (Intel VMD).
            let is_domain = (4..=8).contains(&domain.len()) && is_hex(domain, domain.len());
            (is_domain
                && is_hex(bus, 2)
                && is_hex(device, 2)
                && matches!(function.as_bytes(), [b'0'..=b'7']))
            .then_some(())
        };
        let is_auxiliary = || {
            let parts: Vec<_> = text.split('.').collect();
            let is_word = |word: &&str| {
                !word.is_empty()
                    && word
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
            };
            let is_number =
                |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
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

    /// The id as text.
    pub fn as_str(&self) -> &str {
        match self {
            DeviceId::Pci(id) | DeviceId::Auxiliary(id) => id,
        }
    }
}

impl Function {
    /// The device with this id; `None` when the host does not have it, because it was unplugged or
    /// its VFs were removed.
    pub fn find(sysfs: &Path, id: &DeviceId) -> Result<Option<Function>> {
        let (bus, is_auxiliary) = match id {
            DeviceId::Pci(_) => ("pci", false),
            DeviceId::Auxiliary(_) => ("auxiliary", true),
        };
        let path = sysfs
            .join("bus")
            .join(bus)
            .join("devices")
            .join(id.as_str());
        let exists = path
            .try_exists()
            .with_context(|| format!("cannot look at {}", path.display()))?;
        Ok(exists.then(|| Function {
            id: id.as_str().to_owned(),
            path,
            is_auxiliary,
        }))
    }

    /// The function that the netdev `name` belongs to; `None` for a virtual netdev.
    pub fn of_netdev(sysfs: &Path, name: &str) -> Result<Option<Function>> {
        let device = sysfs.join("class/net").join(name).join("device");
        let read = device.read_link().and_then(|link| match is_virtio(&link) {
            // The device of a virtio NIC is virtioN below the function.
            true => device.canonicalize(),
            false => Ok(link),
        });
        let link = match read {
            Ok(link) => link,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", device.display()));
            }
        };
        // A directory further below is not the function: a NIC on USB is below the USB controller.
        let at = link.ancestors().find(|path| !is_virtio(path));
        let id = at.and_then(|path| DeviceId::parse(path.file_name()?.to_str()?));
        id.map_or(Ok(None), |id| Function::find(sysfs, &id))
    }

    /// The netdev in the host's namespace; the one of the first port where the function has
    /// several.
    pub fn netdev(&self) -> Result<Option<String>> {
        Ok(self.netdevs()?.into_iter().next())
    }

    /// The netdevs in the host's namespace, in the order of the ports: mlx4 and cxgb4 have one
    /// function for two or more ports. Other netdevs of the function are left out: the VF
    /// representors of a PF in switchdev mode, and the children of an IPoIB device.
    pub fn netdevs(&self) -> Result<Vec<String>> {
        let mut dir = self.path.join("net");
        let mut names = names(&dir)?;
        if names.is_empty() {
            if let Some(virtio) = names_starting_with(&self.path, "virtio")?.first() {
                dir = self.path.join(virtio).join("net");
                names = self::names(&dir)?;
            }
        }
        names.retain(|name| !is_representor(&dir.join(name)));
        if names.len() > 1 {
            names.retain(|name| !is_stacked(&dir.join(name)));
            names.sort_by_cached_key(|name| (port(&dir.join(name)), name.clone()));
        }
        Ok(names)
    }

    /// Whether the netdev `name` is a port of this function, and not a representor or child.
    pub fn has_port(&self, sysfs: &Path, name: &str) -> Result<bool> {
        let is_there = self.netdevs()?.iter().any(|netdev| netdev == name);
        Ok(is_there && !is_stacked(&sysfs.join("class/net").join(name)))
    }

    /// This function in the sysfs at `root`.
    pub fn seen_in(&self, root: &Path) -> Function {
        let bus = if self.is_auxiliary {
            "auxiliary"
        } else {
            "pci"
        };
        Function {
            path: root.join("bus").join(bus).join("devices").join(&self.id),
            ..self.clone()
        }
    }

    /// Has this sysfs the function?
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// The name of the driver that is bound to the function.
    pub fn driver(&self) -> Option<String> {
        link_name(&self.path.join("driver"))
    }

    /// Whether a driver for programs in user space is bound to the function.
    pub fn is_userspace(&self) -> bool {
        self.driver()
            .is_some_and(|driver| USERSPACE_DRIVERS.contains(&driver.as_str()))
    }

    /// The IOMMU group, as /dev/vfio names it; `noiommu-4` where the device is used without an
    /// IOMMU.
    pub fn iommu_group(&self) -> Option<String> {
        let group = self.path.join("iommu_group");
        let number = link_name(&group)?;
        let is_unsafe = read(&group.join("name")).is_some_and(|name| name == "vfio-noiommu");
        Some(if is_unsafe {
            format!("noiommu-{number}")
        } else {
            number
        })
    }

    /// The NUMA node that it is next to, if the machine says so.
    pub fn numa_node(&self) -> Option<u32> {
        read(&self.path.join("numa_node"))?.parse().ok()
    }

    /// The files in /dev by which a program uses it besides its netdev: verbs and connections of
    /// RDMA, or VFIO. Not those for management datagrams, with which a pod could speak for the
    /// node. Those that do not exist are left out: a container with one does not start.
    ///
    /// `is_to_move`: the RDMA devices are on the host, and ADD will move them. The kernel then
    /// numbers their files anew.
    pub fn char_devices(&self, sysfs: &Path, is_to_move: bool) -> Result<Vec<PathBuf>> {
        let dev = Path::new("/dev");
        if self.is_userspace() {
            let group = self.iommu_group().map(|group| dev.join("vfio").join(group));
            let files = [Some(dev.join("vfio/vfio")), group].into_iter().flatten();
            return Ok(files.filter(|file| file.exists()).collect());
        }
        let dev = dev.join("infiniband");
        let mut verbs = names_starting_with(&self.path.join("infiniband_verbs"), UVERBS)?;
        verbs.retain(|name| dev.join(name).exists());
        verbs.sort();
        let cm = (!verbs.is_empty()).then(|| "rdma_cm".to_owned());
        let cm = cm.filter(|name| dev.join(name).exists());
        if is_to_move {
            let all = names_starting_with(&sysfs.join("class/infiniband_verbs"), UVERBS)?;
            verbs = uverbs_after_move(&all, &verbs);
        }
        let files = verbs.into_iter().chain(cm);
        Ok(files.map(|name| dev.join(name)).collect())
    }

    /// Whether the function is a VF.
    pub fn is_vf(&self) -> bool {
        self.path.join("physfn").is_symlink()
    }

    /// The number of the VF among those of its PF, as netlink counts them from 0; `None` for other
    /// functions.
    pub fn vf_number(&self) -> Option<u32> {
        let pf = self.path.join("physfn");
        let entries = names_starting_with(&pf, "virtfn").ok()?;
        let ours = |entry: &&String| link_name(&pf.join(entry)).is_some_and(|id| id == self.id);
        entries
            .iter()
            .find(ours)?
            .strip_prefix("virtfn")?
            .parse()
            .ok()
    }

    /// The number of VFs that the function has now.
    pub fn vf_count(&self) -> u32 {
        read(&self.path.join("sriov_numvfs"))
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }

    /// The number of VFs that the function can have; 0 when it has no SR-IOV, or when the firmware
    /// has switched it off.
    pub fn max_vf_count(&self) -> u32 {
        let max = read(&self.path.join("sriov_totalvfs")).and_then(|text| text.parse().ok());
        max.unwrap_or(0).max(self.vf_count())
    }

    /// Makes so many VFs. From one number to another the kernel goes only by way of none.
    pub fn set_vf_count(&self, count: u16) -> Result<()> {
        let file = self.path.join("sriov_numvfs");
        let write = |count: u16| {
            let text = count.to_string();
            let written = fs::File::options()
                .write(true)
                .open(&file)
                .and_then(|mut file| file.write_all(text.as_bytes()));
            written.with_context(|| format!("cannot write {count} to {}", file.display()))
        };
        if self.vf_count() > 0 {
            write(0)?;
        }
        if count > 0 { write(count) } else { Ok(()) }
    }

    /// Whether the kernel looks for a driver for new VFs.
    pub fn binds_vfs(&self) -> bool {
        read(&self.path.join("sriov_drivers_autoprobe")).is_none_or(|text| text != "0")
    }

    /// The PCI addresses of the function's VFs, in the order of their numbers.
    pub fn vfs(&self) -> Result<Vec<String>> {
        let mut vfs = Vec::new();
        for entry in names_starting_with(&self.path, "virtfn")? {
            let number = entry
                .strip_prefix("virtfn")
                .and_then(|number| number.parse::<u32>().ok());
            vfs.extend(number.zip(link_name(&self.path.join(entry))));
        }
        vfs.sort();
        Ok(vfs.into_iter().map(|(_, address)| address).collect())
    }

    /// The PF of a VF or SF. Every other function is its own PF.
    pub fn pf(&self, sysfs: &Path) -> Result<Option<Pf>> {
        let address = if self.is_vf() {
            link_name(&self.path.join("physfn"))
        } else if self.is_auxiliary {
            // The device of an SF is below its PF: …/0000:3b:00.0/mlx5_core.sf.4
            let real = self
                .path
                .canonicalize()
                .with_context(|| format!("cannot read {}", self.path.display()))?;
            let parts = real
                .ancestors()
                .skip(1)
                .filter_map(|path| path.file_name()?.to_str().map(str::to_owned));
            parts
                .into_iter()
                .find(|part| matches!(DeviceId::parse(part), Some(DeviceId::Pci(_))))
        } else {
            Some(self.id.clone())
        };
        let Some(address) = address else {
            return Ok(None);
        };
        let function = Function::find(sysfs, &DeviceId::Pci(address.clone()))?;
        let netdev = function
            .map(|function| function.netdev())
            .transpose()?
            .flatten();
        Ok(Some(Pf { address, netdev }))
    }

    /// Whether the function can be reset without the others of its bus. The file lists the methods
    /// that the kernel would try in turn (Linux 5.15); only `flr` is sure to leave the other
    /// functions alone.
    pub fn has_flr(&self) -> bool {
        let methods = read(&self.path.join("reset_method")).unwrap_or_default();
        methods
            .split_ascii_whitespace()
            .any(|method| method == "flr")
    }

    /// Performs a function-level reset, which removes what the former owner left in the hardware.
    /// The kernel notifies a driver that has `reset_prepare` and `reset_done`, which sets the
    /// device up again (pci_reset_function): igbvf, i40e and ice have them. Others, as mlx5_core
    /// and bnxt_en, must not be bound meanwhile. Fails where the kernel would have to use another
    /// method.
    pub fn flr(&self) -> Result<()> {
        if !self.has_flr() {
            fail!(
                UnsupportedField,
                "{} has no function-level reset (reset_method does not list flr)",
                self.id
            );
        }
        // The kernel tries the methods in turn, and skips one that the function turns out not to
        // have.
        let methods = self.path.join("reset_method");
        let before = read(&methods).unwrap_or_default();
        let write = |file: &Path, text: &str| {
            fs::write(file, text)
                .with_context(|| format!("cannot write {text} to {}", file.display()))
        };
        let is_alone = before == "flr";
        if !is_alone {
            write(&methods, "flr")?;
        }
        let reset = write(&self.path.join("reset"), "1");
        let restored = if is_alone {
            Ok(())
        } else {
            write(&methods, &before)
        };
        all_of([reset, restored])
    }

    /// The RDMA devices of the function that are in the host's namespace.
    pub fn list_rdma_devices(&self) -> Result<Vec<String>> {
        // A pod can choose a name that no directory can list: getdents(2) fails with EIO.
        let listed = names(&self.path.join("infiniband"));
        let mut names = listed.context(
            "if an RDMA device has a name with a slash (`rdma dev`), rename it with `rdma dev set`",
        )?;
        names.sort();
        Ok(names)
    }

    /// Does it have an RDMA device, in whatever namespace? The folder is there as long as one is,
    /// and lists those of the namespace of this sysfs (drivers/base/core.c:
    /// class_dir_child_ns_type, cleanup_glue_dir).
    pub fn has_rdma_somewhere(&self) -> Result<bool> {
        let folder = self.path.join("infiniband");
        folder
            .try_exists()
            .with_context(|| format!("cannot look for {}", folder.display()))
    }

    /// The RDMA devices for messages: empty if they cannot be listed.
    pub fn rdma_devices(&self) -> Vec<String> {
        self.list_rdma_devices().unwrap_or_default()
    }

    /// The counters of its RDMA devices in the namespace of this sysfs, by the driver's names
    /// (Linux has them in hw_counters), all devices and ports together.
    pub fn rdma_counters(&self) -> BTreeMap<String, u64> {
        let mut counters = BTreeMap::new();
        for device in self.rdma_devices() {
            let directory = self.path.join("infiniband").join(device);
            let ports = names(&directory.join("ports")).unwrap_or_default();
            let ports = ports.iter().map(|port| directory.join("ports").join(port));
            for folder in ports
                .chain([directory.clone()])
                .map(|folder| folder.join("hw_counters"))
            {
                for name in names(&folder).unwrap_or_default() {
                    let Some(value) =
                        read(&folder.join(&name)).and_then(|text| text.parse::<u64>().ok())
                    else {
                        continue;
                    };
                    let sum = counters.entry(name).or_insert(0_u64);
                    *sum = sum.saturating_add(value);
                }
            }
        }
        counters
    }

    /// The files with the traffic class of each port of its RDMA device `device`, by number of the
    /// port. Only the driver of MLNX_OFED has them.
    pub fn traffic_classes(&self, device: &str) -> Result<Vec<(u32, PathBuf)>> {
        let directory = self.path.join("infiniband").join(device).join("tc");
        let ports = names(&directory)?;
        let file = |port: String| {
            Some((
                port.parse().ok()?,
                directory.join(&port).join("traffic_class"),
            ))
        };
        let mut files: Vec<_> = ports.into_iter().filter_map(file).collect();
        files.sort();
        Ok(files)
    }

    /// The ports of its RDMA devices with this link layer: directories in sysfs, with the name of
    /// the device and the number of the port.
    fn ports(&self, link_layer: &str) -> Vec<(PathBuf, String, u32)> {
        let mut ports = Vec::new();
        for device in self.rdma_devices() {
            let directory = self.path.join("infiniband").join(&device);
            // 1: a channel adapter. iWARP (4) has no GIDs of this kind.
            if !read(&directory.join("node_type")).is_some_and(|kind| kind.starts_with("1:")) {
                continue;
            }
            for name in names(&directory.join("ports")).unwrap_or_default() {
                let port = directory.join("ports").join(&name);
                let is_meant =
                    read(&port.join("link_layer")).is_some_and(|layer| layer == link_layer);
                if let (true, Ok(number)) = (is_meant, name.parse()) {
                    ports.push((port, device.clone(), number));
                }
            }
        }
        ports
    }

    /// The ports of its RDMA devices, of every kind, in the namespace that this sysfs shows.
    pub fn rdma_ports(&self) -> Vec<RdmaPort> {
        let mut ports = Vec::new();
        for device in self.rdma_devices() {
            let directory = self.path.join("infiniband").join(&device).join("ports");
            let mut numbers = names(&directory).unwrap_or_default();
            numbers.sort();
            for number in numbers {
                let port = directory.join(&number);
                let text = |file: &str| read(&port.join(file)).unwrap_or_default();
                let state = text("state");
                let mut found = RdmaPort {
                    name: format!("{device}/{number}"),
                    layer: text("link_layer"),
                    state: state
                        .split_once(": ")
                        .map_or(&*state, |(_, word)| word)
                        .to_owned(),
                    netdevs: Vec::new(),
                };
                for index in names(&port.join("gid_attrs/types")).unwrap_or_default() {
                    let attribute =
                        |kind: &str| read(&port.join("gid_attrs").join(kind).join(&index));
                    if attribute("types").is_some_and(|kind| kind == "RoCE v2") {
                        found.netdevs.extend(attribute("ndevs"));
                    }
                }
                found.netdevs.sort();
                found.netdevs.dedup();
                ports.push(found);
            }
        }
        ports
    }

    /// The number of its RDMA devices that speak RoCE, in the namespace that this sysfs shows.
    pub fn roce_devices(&self) -> usize {
        let ports = self.ports(ETHERNET);
        let devices: BTreeSet<&str> = ports.iter().map(|(_, device, _)| device.as_str()).collect();
        devices.len()
    }

    /// Has it an RDMA device with a port on InfiniBand, in the namespace that this sysfs shows?
    pub fn has_infiniband(&self) -> bool {
        !self.ports(INFINIBAND).is_empty()
    }

    /// The GUIDs that its RDMA devices on InfiniBand have taken from the hardware.
    pub fn node_guids(&self) -> Vec<u64> {
        let on_infiniband: BTreeSet<_> = self
            .ports(INFINIBAND)
            .into_iter()
            .map(|(_, device, _)| device)
            .collect();
        let guid = |device: &String| {
            let text = read(&self.path.join("infiniband").join(device).join("node_guid"))?;
            u64::from_str_radix(&text.replace(':', ""), 16).ok()
        };
        on_infiniband.iter().filter_map(guid).collect()
    }

    /// Has it an RDMA device for RoCE whose node GUID is 0, so that the RDMA CM fails on it?
    pub fn lacks_node_guid(&self) -> bool {
        let is_zero = |device: &String| {
            let guid = read(&self.path.join("infiniband").join(device).join("node_guid"));
            guid.is_some_and(|guid| guid.bytes().all(|byte| b"0:".contains(&byte)))
        };
        self.ports(ETHERNET)
            .iter()
            .any(|(_, device, _)| is_zero(device))
    }

    /// The P_Keys that the ports of its RDMA devices on InfiniBand have; 0 means an empty place.
    pub fn pkeys(&self) -> Vec<u16> {
        let mut found = Vec::new();
        for (port, ..) in self.ports(INFINIBAND) {
            let places = names(&port.join("pkeys")).unwrap_or_default();
            let texts = places
                .iter()
                .filter_map(|name| read(&port.join("pkeys").join(name)));
            found
                .extend(texts.filter_map(|text| {
                    u16::from_str_radix(text.trim_start_matches("0x"), 16).ok()
                }));
        }
        found
    }

    /// The only driver that may be bound to the function (driver_override), if set.
    pub fn driver_override(&self) -> Option<String> {
        read(&self.path.join("driver_override")).filter(|text| !text.is_empty() && text != "(null)")
    }

    /// Says which driver alone may be bound to the function; `None` for any.
    pub fn set_driver_override(&self, driver: Option<&str>) -> Result<()> {
        let file = self.path.join("driver_override");
        let text = format!("{}\n", driver.unwrap_or_default());
        let write = || {
            fs::File::options()
                .write(true)
                .open(&file)?
                .write_all(text.as_bytes())
        };
        write().with_context(|| format!("cannot write to {}", file.display()))
    }

    /// Takes the function from its driver, which removes its netdev and its RDMA device.
    pub fn unbind(&self) -> Result<()> {
        self.write_id(&self.path.join("driver/unbind"))
    }

    /// Gives the function to the driver of this name.
    pub fn bind(&self, driver: &str) -> Result<()> {
        let bus = self.path.ancestors().nth(2).unwrap_or(&self.path);
        let bound = self.write_id(&bus.join("drivers").join(driver).join("bind"));
        // Another process may have been faster.
        if self.driver().as_deref() == Some(driver) {
            Ok(())
        } else {
            bound
        }
    }

    /// Lets the kernel choose a driver for the function, which has none.
    pub fn probe(&self) -> Result<()> {
        let bus = self.path.ancestors().nth(2).unwrap_or(&self.path);
        self.write_id(&bus.join("drivers_probe"))
    }

    /// These files act on the device whose id is written to them.
    fn write_id(&self, file: &Path) -> Result<()> {
        let write = || {
            fs::File::options()
                .write(true)
                .open(file)?
                .write_all(self.id.as_bytes())
        };
        write().with_context(|| format!("cannot write {} to {}", self.id, file.display()))
    }

    /// The GIDs of the kind RoCE v2 that its RDMA devices have for one of `wanted`.
    pub fn gids(&self, wanted: &[Ipv6Addr]) -> Vec<Gid> {
        let mut found = Vec::new();
        for (port, device, number) in self.ports(ETHERNET) {
            for name in names(&port.join("gids")).unwrap_or_default() {
                let gid = read(&port.join("gids").join(&name)).and_then(|text| text.parse().ok());
                let (Some(gid), Ok(index)) = (gid.filter(|gid| wanted.contains(gid)), name.parse())
                else {
                    continue;
                };
                let attribute = |kind: &str| read(&port.join("gid_attrs").join(kind).join(&name));
                if attribute("types").is_some_and(|kind| kind == "RoCE v2") {
                    let netdev = attribute("ndevs").unwrap_or_default();
                    found.push(Gid {
                        device: device.clone(),
                        port: number,
                        index,
                        gid,
                        netdev,
                    });
                }
            }
        }
        found.sort_by(|one, other| {
            (&one.device, one.port, one.index).cmp(&(&other.device, other.port, other.index))
        });
        found
    }
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaPort {
    /// Device and number: `mlx5_0/1`.
    pub name: String,
    /// `Ethernet` or `InfiniBand`.
    pub layer: String,
    /// `ACTIVE`, `DOWN`, `INIT`.
    pub state: String,
    /// The netdevs of its GIDs of the kind RoCE v2, each once.
    pub netdevs: Vec<String>,
}

/// An entry of the GID table of an RDMA device, of the kind RoCE v2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Name of the RDMA device.
    pub device: String,
    /// Its port, from 1 on.
    pub port: u32,
    /// Place in the port's table: what NCCL_IB_GID_INDEX and `ib_write_bw -x` name.
    pub index: u32,
    /// IPv4 as `::ffff:172.16.0.0`.
    pub gid: Ipv6Addr,
    /// The netdev that it belongs to, by the name that this has in its namespace.
    pub netdev: String,
}

/// The sysfs of a network namespace, or configfs, mounted at no path. In the exclusive mode of
/// RDMA, a device is in the sysfs of its namespace only.
#[derive(Debug)]
pub struct Mounted(OwnedFd);

impl Mounted {
    /// Mounts the sysfs of this thread's namespace: inside of [`crate::netns::Netns::run`], a
    /// pod's.
    pub fn here() -> Result<Mounted> {
        let mounted = Mounted::of("sysfs", MountAttrFlags::MOUNT_ATTR_RDONLY);
        mounted.context("cannot mount the sysfs of a network namespace (fsmount, Linux 5.2)")
    }

    /// configfs, which is one for all namespaces.
    pub fn configfs() -> io::Result<Mounted> {
        Mounted::of("configfs", MountAttrFlags::empty())
    }

    fn of(kind: &str, attributes: MountAttrFlags) -> io::Result<Mounted> {
        let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&fs)?;
        let attributes = attributes
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        Ok(Mounted(fsmount(
            &fs,
            FsMountFlags::FSMOUNT_CLOEXEC,
            attributes,
        )?))
    }

    /// Leads there from any thread of this process, as long as `self` lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// The PCI functions that have or can have VFs, in the order of their addresses. Not all of them
/// are NICs.
pub fn functions_with_sriov(sysfs: &Path) -> Result<Vec<Function>> {
    let mut found = Vec::new();
    for name in names(&sysfs.join("bus/pci/devices"))? {
        let Some(id @ DeviceId::Pci(_)) = DeviceId::parse(&name) else {
            continue;
        };
        found.extend(Function::find(sysfs, &id)?.filter(|function| function.max_vf_count() > 0));
    }
    found.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(found)
}

/// The netdev at `kernelpath`, a directory below /sys/devices. The path selects a device and is not
/// opened.
pub fn netdev_at(sysfs: &Path, kernelpath: &str) -> Result<Option<String>> {
    let Some(below) = kernelpath.strip_prefix("/sys/devices/") else {
        fail!(
            InvalidConfig,
            "kernelpath {kernelpath:?} does not begin with /sys/devices/"
        );
    };
    let wanted = sysfs.join("devices").join(below);
    if Path::new(below)
        .components()
        .any(|part| !matches!(part, std::path::Component::Normal(_)))
    {
        fail!(
            InvalidConfig,
            "kernelpath {kernelpath:?} must name a directory below /sys/devices without `..`"
        );
    }
    let class = sysfs.join("class/net");
    for name in names(&class)? {
        let real = class.join(&name).canonicalize();
        let at = |path: &Path| {
            path == wanted
                || path
                    .parent()
                    .is_some_and(|parent| parent == wanted.join("net"))
        };
        if real.is_ok_and(|path| at(&path)) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn is_virtio(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"virtio"))
}

/// The netdevs that are stacked on the netdev `name`, such as VLANs or macvlans: they go down with
/// it.
pub fn upper_devices(sysfs: &Path, name: &str) -> Result<Vec<String>> {
    let entries = names_starting_with(&sysfs.join("class/net").join(name), "upper_")?;
    Ok(entries
        .iter()
        .filter_map(|entry| entry.strip_prefix("upper_"))
        .map(str::to_owned)
        .collect())
}

/// Whether the netdev `name` is the representor of another function.
pub fn represents(sysfs: &Path, name: &str) -> bool {
    is_representor(&sysfs.join("class/net").join(name))
}

/// The bus of the device that the netdev `name` belongs to: `pci`, `usb`, `vmbus`.
pub fn bus_of(sysfs: &Path, name: &str) -> Option<String> {
    link_name(&sysfs.join("class/net").join(name).join("device/subsystem"))
}

/// The device on a bus that the netdev `name` is directly below. Unlike [`Function::of_netdev`], it
/// resolves no path: the one of [`Mounted`] cannot be.
pub fn device_of(sysfs: &Path, name: &str) -> Option<DeviceId> {
    DeviceId::parse(&link_name(
        &sysfs.join("class/net").join(name).join("device"),
    )?)
}

/// The port number of the netdev `name`, where its driver counts ports: mlx4, cxgb4, IPoIB.
pub fn port_of(sysfs: &Path, name: &str) -> Option<u32> {
    port(&sysfs.join("class/net").join(name))
}

/// Whether the InfiniBand netdev `name` is in connected mode, which has larger packets than the
/// datagram mode.
pub fn is_connected(sysfs: &Path, name: &str) -> bool {
    read(&sysfs.join("class/net").join(name).join("mode")).is_some_and(|mode| mode == "connected")
}

fn port(netdev: &Path) -> Option<u32> {
    read(&netdev.join("dev_port"))?.parse().ok()
}

/// Whether a port name such as `pf0vf3`, `c1pf0vf3` or `pf0sf4` is that of a representor: a port of
/// a switch that stands for a VF, SF or PF (devlink-port(8)).
fn is_representor(netdev: &Path) -> bool {
    let is_one = |port: String| port.contains("vf") || port.contains("sf") || port.contains("pf");
    read(&netdev.join("phys_port_name")).is_some_and(is_one)
}

/// Whether the netdev is an IPoIB child or a port of a switch chip (DSA): its traffic goes through
/// another netdev.
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

/// The names of the uverbs devices `own`, of `all` on the node, after their RDMA devices have moved
/// to another namespace one by one: the kernel frees the number of each, and then takes the lowest
/// free one (ib_uverbs_add_one).
fn uverbs_after_move(all: &[String], own: &[String]) -> Vec<String> {
    let number_of = |name: &String| -> Option<u32> { name.strip_prefix(UVERBS)?.parse().ok() };
    let mut taken: BTreeSet<u32> = all.iter().filter_map(number_of).collect();
    let mut after = Vec::new();
    for name in own {
        if let Some(number) = number_of(name) {
            taken.remove(&number);
        }
        let lowest = (0..).find(|number| !taken.contains(number));
        taken.extend(lowest);
        after.extend(lowest.map(|number| format!("{UVERBS}{number}")));
    }
    after
}

fn names_starting_with(dir: &Path, prefix: &str) -> Result<Vec<String>> {
    Ok(names(dir)?
        .into_iter()
        .filter(|name| name.starts_with(prefix))
        .collect())
}

fn link_name(link: &Path) -> Option<String> {
    fs::read_link(link)
        .ok()?
        .file_name()?
        .to_str()
        .map(str::to_owned)
}

fn read(file: &Path) -> Option<String> {
    fs::read_to_string(file)
        .ok()
        .map(|text| text.trim().to_owned())
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
        assert_eq!(
            DeviceId::parse("mlx5_core.sf.4"),
            Some(DeviceId::Auxiliary("mlx5_core.sf.4".into()))
        );
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

    #[test]
    fn a_move_gives_a_verbs_device_the_lowest_free_number() {
        let named = |numbers: &[u32]| -> Vec<String> {
            let names = numbers.iter().map(|number| format!("uverbs{number}"));
            names.collect()
        };
        let after = |all: &[u32], own: &[u32]| uverbs_after_move(&named(all), &named(own));
        assert_eq!(after(&[0, 1, 2], &[1]), named(&[1]));
        assert_eq!(after(&[1, 2, 3], &[3]), named(&[0]));
        assert_eq!(after(&[0, 3, 4], &[3, 4]), named(&[1, 2]));
        assert_eq!(after(&[0, 1], &[]), named(&[]));
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
        file(
            "devices/pci0/0000:3b:00.0/net/a_rep0/phys_port_name",
            "pf0vf0\n",
        );
        file(
            "devices/pci0/0000:3b:00.0/net/ens1f0/phys_port_name",
            "p0\n",
        );
        file("devices/pci0/0000:3b:00.0/sriov_numvfs", "1\n");
        symlink("../0000:3b:00.0", at("devices/pci0/0000:3b:00.2/physfn")).unwrap();
        symlink("../0000:3b:00.2", at("devices/pci0/0000:3b:00.0/virtfn0")).unwrap();
        for id in ["0000:3b:00.0", "0000:3b:00.2"] {
            symlink(at("devices/pci0").join(id), at("bus/pci/devices").join(id)).unwrap();
        }
        symlink(
            at("devices/pci0/0000:3b:00.0/mlx5_core.sf.4"),
            at("bus/auxiliary/devices/mlx5_core.sf.4"),
        )
        .unwrap();
        symlink(
            at("devices/pci0/0000:3b:00.2"),
            at("class/net/ens1f0v0/device"),
        )
        .unwrap();
        root
    }

    /// sriov-cni#247: the first netdev of the PF may be a representor.
    #[test]
    fn the_pf_of_vf_and_sf_is_the_uplink() {
        let root = tree();
        for id in ["0000:3b:00.2", "mlx5_core.sf.4", "0000:3b:00.0"] {
            let function = Function::find(root.path(), &DeviceId::parse(id).unwrap())
                .unwrap()
                .unwrap();
            let pf = function.pf(root.path()).unwrap().unwrap();
            assert_eq!(
                (pf.address.as_str(), pf.netdev.as_deref()),
                ("0000:3b:00.0", Some("ens1f0")),
                "{id}"
            );
        }
    }

    #[test]
    fn what_rdma_counts_is_the_sum_of_devices_and_ports() {
        let root = tree();
        let device = root
            .path()
            .join("devices/pci0/0000:3b:00.2/infiniband/mlx5_2");
        let find = || {
            Function::find(root.path(), &DeviceId::parse("0000:3b:00.2").unwrap())
                .unwrap()
                .unwrap()
        };
        assert!(find().rdma_counters().is_empty());
        for (folder, name, text) in [
            ("ports/1/hw_counters", "out_of_sequence", "3\n"),
            ("ports/2/hw_counters", "out_of_sequence", "4\n"),
            ("ports/1/hw_counters", "lifespan", "N/A (no such counter)\n"),
            ("hw_counters", "np_cnp_sent", "18446744073709551615\n"),
        ] {
            fs::create_dir_all(device.join(folder)).unwrap();
            fs::write(device.join(folder).join(name), text).unwrap();
        }
        let expected = [("np_cnp_sent", u64::MAX), ("out_of_sequence", 7)]
            .map(|(name, value)| (name.to_owned(), value));
        assert_eq!(find().rdma_counters(), BTreeMap::from(expected));
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
            files
                .iter()
                .for_each(|(file, text)| fs::write(dir.join(file), format!("{text}\n")).unwrap());
        };
        fs::remove_dir_all(root.path().join("class/net/ens1f0v0")).unwrap();
        net(
            "ens1f0v0",
            &[("dev_port", "1"), ("ifindex", "7"), ("iflink", "7")],
        );
        net(
            "ib9",
            &[("dev_port", "0"), ("ifindex", "5"), ("iflink", "5")],
        );
        net(
            "ib9.8001",
            &[("dev_port", "0"), ("ifindex", "6"), ("iflink", "5")],
        );
        net("rep", &[("phys_port_name", "c1pf0sf4"), ("dev_port", "0")]);
        let vf = Function::find(root.path(), &DeviceId::parse("0000:3b:00.2").unwrap())
            .unwrap()
            .unwrap();
        assert_eq!(vf.netdevs().unwrap(), ["ib9", "ens1f0v0"]);
        assert_eq!(vf.netdev().unwrap().as_deref(), Some("ib9"));
        for (name, is_port) in [
            ("ib9", true),
            ("ens1f0v0", true),
            ("ib9.8001", false),
            ("rep", false),
        ] {
            assert_eq!(vf.has_port(root.path(), name).unwrap(), is_port, "{name}");
        }
        assert_eq!(port_of(root.path(), "ens1f0v0"), Some(1));
        assert!(represents(root.path(), "rep") && !represents(root.path(), "ib9"));
    }

    #[test]
    fn a_vf_knows_its_netdev_its_number_and_its_driver() {
        let root = tree();
        let vf = Function::of_netdev(root.path(), "ens1f0v0")
            .unwrap()
            .unwrap();
        assert_eq!(
            (vf.id.as_str(), vf.is_vf(), vf.vf_number()),
            ("0000:3b:00.2", true, Some(0))
        );
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
        let vf = Function::find(root.path(), &DeviceId::parse("0000:3b:00.2").unwrap())
            .unwrap()
            .unwrap();
        fs::write(at("reset"), "").unwrap();
        for methods in [None, Some("pm bus\n"), Some("")] {
            methods
                .into_iter()
                .for_each(|methods| fs::write(at("reset_method"), methods).unwrap());
            assert!(!vf.has_flr() && vf.flr().is_err(), "{methods:?}");
            assert_eq!(fs::read_to_string(at("reset")).unwrap(), "");
        }
        for methods in ["flr\n", "device_specific flr bus\n"] {
            fs::write(at("reset"), "").unwrap();
            fs::write(at("reset_method"), methods).unwrap();
            vf.flr().unwrap();
            assert_eq!(fs::read_to_string(at("reset")).unwrap(), "1");
            assert_eq!(
                fs::read_to_string(at("reset_method")).unwrap().trim(),
                methods.trim()
            );
        }
    }
}
