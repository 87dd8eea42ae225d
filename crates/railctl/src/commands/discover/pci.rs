//! Finds the NICs near each GPU, by the PCI tree in sysfs.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use rail_cni::sysfs::DeviceId;

const NVIDIA: u16 = 0x10de;
const AMD: u16 = 0x1002;
const INTEL: u16 = 0x8086;
const MELLANOX: u16 = 0x15b3;
/// Of the function by which a ConnectX-8 reaches the GPU past the CPU
/// (drivers/infiniband/hw/mlx5/data_direct.c).
const DATA_DIRECT: u16 = 0x2100;

/// A function of PCI.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// PCI address.
    pub id: String,
    /// The bridges above it, from the host bridge on.
    above: Vec<String>,
    numa: Option<u32>,
    vendor: u16,
}

/// The distance of two functions, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Near {
    /// Behind one PCIe switch; with the number of bridges between them.
    Switch(usize),
    /// At one root complex.
    Root,
    /// At one NUMA node, which eight GPUs may share.
    Numa,
    /// Neither.
    Apart,
}

impl Near {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Near::Switch(_) => "one PCIe switch",
            Near::Root => "one PCIe root",
            Near::Numa => "one NUMA node",
            Near::Apart => "nothing in common",
        }
    }
}

impl Device {
    /// The distance of another function.
    pub fn near(&self, other: &Device) -> Near {
        let common = self
            .above
            .iter()
            .zip(&other.above)
            .take_while(|(one, other)| one == other)
            .count();
        if common > 1 {
            Near::Switch(self.above.len() + other.above.len() - 2 * common)
        } else if common == 1 {
            Near::Root
        } else if self.numa.is_some() && self.numa == other.numa {
            Near::Numa
        } else {
            Near::Apart
        }
    }

    /// Whether both are ports of one card.
    pub fn is_same_card(&self, other: &Device) -> bool {
        let slot = |device: &Device| device.id.rsplit_once('.').map(|(slot, _)| slot.to_owned());
        slot(self) == slot(other)
    }

    /// Whether it may have a way to the GPU that the tree does not show.
    pub fn has_hidden_ways(&self, pci: &Pci) -> bool {
        pci.has_data_direct && self.vendor == MELLANOX
    }
}

/// The functions that matter, in the order of their addresses.
#[derive(Debug)]
pub struct Pci {
    /// GPUs, without those on a mainboard.
    pub gpus: Vec<Device>,
    /// NICs of Ethernet and InfiniBand, without VFs.
    pub nics: Vec<Device>,
    /// Whether there are functions of ConnectX-8 for data direct.
    has_data_direct: bool,
}

/// Reads the tree.
pub fn scan(sysfs: &Path) -> Result<Pci> {
    let folder = sysfs.join("bus/pci/devices");
    let mut pci = Pci {
        gpus: Vec::new(),
        nics: Vec::new(),
        has_data_direct: false,
    };
    let entries =
        fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let number = |file: &str| {
            let text = fs::read_to_string(path.join(file)).ok()?;
            u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
        };
        let (Some(class), Some(vendor)) = (number("class"), number("vendor")) else {
            continue;
        };
        let Ok(vendor) = u16::try_from(vendor) else {
            continue;
        };
        if vendor == MELLANOX && number("device") == Some(DATA_DIRECT.into()) {
            pci.has_data_direct = true;
        } else if path.join("physfn").is_symlink() {
            continue;
        } else if matches!(class >> 8, 0x0200 | 0x0207) {
            pci.nics.extend(device(&path, vendor));
        } else if is_gpu(class >> 8, vendor) {
            // A function at the root itself is part of the CPU.
            pci.gpus
                .extend(device(&path, vendor).filter(|gpu| gpu.above.len() > 1));
        }
    }
    pci.gpus.sort();
    pci.nics.sort();
    Ok(pci)
}

/// By class, VGA (0300), 3D (0302), other displays (0380) and accelerators (1200): AMD's and
/// Intel's are of the latter two. The display of a BMC is another vendor's.
fn is_gpu(class: u32, vendor: u16) -> bool {
    [NVIDIA, AMD, INTEL].contains(&vendor) && matches!(class, 0x0300 | 0x0302 | 0x0380 | 0x1200)
}

fn device(path: &Path, vendor: u16) -> Option<Device> {
    let real = path.canonicalize().ok()?;
    let id = real.file_name()?.to_str()?.to_owned();
    let is_bridge = |name: &str| matches!(DeviceId::parse(name), Some(DeviceId::Pci(_)));
    let mut above: Vec<String> = real
        .ancestors()
        .skip(1)
        .filter_map(|path| path.file_name()?.to_str())
        .take_while(|name| is_bridge(name) || name.starts_with("pci"))
        .map(str::to_owned)
        .collect();
    above.reverse();
    let numa = fs::read_to_string(path.join("numa_node"))
        .ok()
        .and_then(|text| text.trim().parse().ok());
    Some(Device {
        id,
        above,
        numa,
        vendor,
    })
}
