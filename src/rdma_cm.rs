//! The defaults for connections of an RDMA device: the ToS of those by the RDMA CM, in configfs,
//! and the traffic class of a port, which only the driver of MLNX_OFED has.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::sysfs::Mounted;

/// The RDMA CM in configfs. A directory that is made there, with the name of an RDMA device, has
/// the settings of that device (make_cma_dev). It holds no reference to the device.
#[derive(Debug)]
pub struct Cm {
    directory: PathBuf,
    /// Must live as long as the path.
    _mounted: Option<Mounted>,
}

impl Cm {
    /// Opens configfs below `sysfs`, or else in a mount at no path. An error is the reason for
    /// people.
    pub fn open(sysfs: &Path) -> Result<Cm, String> {
        Cm::find(sysfs)?.ok_or_else(|| {
            "configfs has no rdma_cm: run `modprobe rdma_cm` (CONFIG_INFINIBAND_ADDR_TRANS_CONFIGFS)"
                .to_owned()
        })
    }

    /// Like [`Cm::open`]; `None` where configfs has no rdma_cm.
    pub fn find(sysfs: &Path) -> Result<Option<Cm>, String> {
        let is_there = |directory: &Path| match directory.metadata() {
            Ok(found) => Ok(found.is_dir()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(format!("cannot inspect {}: {error}", directory.display())),
        };
        let directory = sysfs.join("kernel/config/rdma_cm");
        if is_there(&directory)? {
            return Ok(Some(Cm {
                directory,
                _mounted: None,
            }));
        }
        let mounted = Mounted::configfs().map_err(|error| {
            format!("configfs is not mounted on /sys/kernel/config, and cannot be mounted: {error}")
        })?;
        let directory = mounted.path().join("rdma_cm");
        Ok(is_there(&directory)?.then_some(Cm {
            directory,
            _mounted: Some(mounted),
        }))
    }

    /// Whether somebody has made the directory of this device.
    pub fn has_group(&self, name: &str) -> bool {
        is_listed(name) && self.directory.join(name).is_dir()
    }

    /// Removes the directory of this device.
    pub fn remove_group(&self, name: &str) {
        if is_listed(name) {
            // As a rule it is not there.
            fs::remove_dir(self.directory.join(name)).ok();
        }
    }

    /// The default ToS of each port of the device.
    pub fn tos(&self, name: &str) -> io::Result<Vec<(u32, i16)>> {
        let mut found = Vec::new();
        self.in_group(name, &mut |ports| {
            let read = ports_in(ports)?
                .into_iter()
                .map(|port| Ok((port, tos_in(&tos_file(ports, port))?)));
            found = read.collect::<io::Result<_>>()?;
            Ok(())
        })?;
        Ok(found)
    }

    /// Gives all ports of the device this default ToS.
    pub fn set_tos(&self, name: &str, tos: u8) -> io::Result<()> {
        self.in_group(name, &mut |ports| {
            ports_in(ports)?
                .into_iter()
                .try_for_each(|port| put(&tos_file(ports, port), tos.into()))
        })
    }

    /// Gives ports of the device the default ToS that they had.
    pub fn restore_tos(&self, name: &str, before: &[(u32, i16)]) -> io::Result<()> {
        self.in_group(name, &mut |ports| {
            for (port, before) in before {
                let file = tos_file(ports, *port);
                if tos_in(&file)? != *before {
                    put(&file, *before)?;
                }
            }
            Ok(())
        })
    }

    /// Does `work` in the directory `ports` of the group, which is made and removed where it is
    /// missing.
    fn in_group(
        &self,
        name: &str,
        work: &mut dyn FnMut(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        /// Another call, a CHECK for example, may remove the group that this one found.
        const MAX_TRIES: u32 = 16;
        if !is_listed(name) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let group = self.directory.join(name);
        let mut done = Ok(());
        for _ in 0..MAX_TRIES {
            let is_ours = match fs::create_dir(&group) {
                Ok(()) => true,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
                Err(error) => return Err(error),
            };
            done = work(&group.join("ports"));
            if is_ours {
                self.remove_group(name);
            }
            match &done {
                Err(error) if error.kind() == ErrorKind::NotFound => (),
                _ => break,
            }
        }
        done
    }
}

/// Can sysfs list this name of an RDMA device? A pod can choose one like `../x` or `..`, which no
/// program of the host uses.
pub fn is_listed(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && name != "." && name != ".."
}

/// The traffic class in a file of the driver; -1 for none. The first line is `Global tclass=96`;
/// other lines are rules for single peers.
pub fn traffic_class(file: &Path) -> Result<i16> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let first = text.lines().next().unwrap_or_default();
    Ok(first
        .strip_prefix("Global tclass=")
        .unwrap_or(first)
        .trim()
        .parse()
        .unwrap_or(-1))
}

/// Writes the traffic class to a file of the driver.
pub fn set_traffic_class(file: &Path, value: i16) -> Result<()> {
    put(file, value).with_context(|| format!("cannot write {value} to {}", file.display()))
}

/// In one system call, so that a call that is killed has written all or nothing.
fn put(file: &Path, value: i16) -> io::Result<()> {
    File::options()
        .write(true)
        .open(file)?
        .write_all(format!("{value}\n").as_bytes())
}

fn tos_in(file: &Path) -> io::Result<i16> {
    let text = fs::read_to_string(file)?;
    text.lines()
        .next()
        .unwrap_or_default()
        .parse::<u8>()
        .map(i16::from)
        .map_err(io::Error::other)
}

fn tos_file(ports: &Path, port: u32) -> PathBuf {
    ports.join(port.to_string()).join("default_roce_tos")
}

fn ports_in(ports: &Path) -> io::Result<Vec<u32>> {
    let names = fs::read_dir(ports)?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<io::Result<Vec<_>>>()?;
    let mut numbers: Vec<u32> = names
        .iter()
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    // A group of this kernel has at least one.
    if numbers.is_empty() {
        Err(ErrorKind::NotFound.into())
    } else {
        Ok(numbers)
    }
}
