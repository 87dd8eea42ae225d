//! `railctl env --check`: the variables of a process, and of NCCL's files, compared with those of
//! its rails.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::pod::{Pod, Port};
use super::variables::{GID_INDEX, HCA, MOST_DEVICES, NVSHMEM_DEVICES, UCX_DEVICES, Variable};
use rail_cni::fail;
use rail_cni::netns;

/// A variable that is not as the rails are.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub variable: &'static str,
    /// The expected value; `None`: not set.
    pub expected: Option<String>,
    /// The value found; `None`: not set.
    pub found: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<String>| {
            value
                .as_ref()
                .map_or("not set".to_owned(), |value| format!("{value:?}"))
        };
        write!(
            f,
            "{}: {}, expected {}",
            self.variable,
            shown(&self.found),
            shown(&self.expected)
        )
    }
}

/// The environment of a process at its start, with NCCL's files.
#[derive(Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

/// An environment and a file of NCCL are small.
const LARGEST: u64 = 4 << 20;

impl Environment {
    /// The environment of the process `pid`, or of this one.
    pub fn of(pid: Option<u32>) -> Result<Environment> {
        let process = pid.map_or(PathBuf::from("/proc/self"), |pid| {
            format!("/proc/{pid}").into()
        });
        if !netns::is_same(&process.join("ns/net"), Path::new("/proc/self/ns/net")) {
            fail!(
                InvalidConfig,
                "{} is gone, or in another network namespace with other rails: run this command there",
                process.display()
            );
        }
        let bytes = read(&process.join("environ"))
            .with_context(|| format!("cannot read the environment of {}", process.display()))?;
        let mut all = BTreeMap::new();
        for entry in bytes.split(|byte| *byte == 0) {
            if let Some((name, value)) = String::from_utf8_lossy(entry).split_once('=') {
                // The first one counts, as for getenv.
                all.entry(name.to_owned())
                    .or_insert_with(|| value.to_owned());
            }
        }
        let mut environment = Environment(all);
        let root = process.join("root");
        for file in environment.files() {
            let below = root.join(file.strip_prefix("/").unwrap_or(&file));
            environment.add(&read(&below).unwrap_or_default());
        }
        Ok(environment)
    }

    /// The files that NCCL reads, in its order. A variable that is set stays as it is.
    fn files(&self) -> Vec<PathBuf> {
        let set = |name: &str| self.0.get(name).filter(|value| !value.is_empty());
        let of_user = set("NCCL_CONF_FILE").map(PathBuf::from);
        let of_home = || set("HOME").map(|home| Path::new(home).join(".nccl.conf"));
        of_user
            .or_else(of_home)
            .into_iter()
            .chain([PathBuf::from("/etc/nccl.conf")])
            .collect()
    }

    /// Takes what a file of NCCL sets.
    fn add(&mut self, file: &[u8]) {
        let text = String::from_utf8_lossy(file);
        let lines = text.split('\n').filter(|line| !line.starts_with('#'));
        for (name, value) in lines.filter_map(|line| line.split_once('=')) {
            self.0
                .entry(name.to_owned())
                .or_insert_with(|| value.to_owned());
        }
    }
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(LARGEST)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Each difference. A variable of NCCL has to be set; one of another library only has to be right
/// where it is.
pub fn compare(expected: &[Variable], pod: &Pod, environment: &Environment) -> Vec<Difference> {
    let mut differences = Vec::new();
    for variable in expected {
        let found = environment.0.get(variable.name);
        let is_right = match (variable.name, found) {
            (_, None) => !variable.is_of_nccl(),
            (HCA, Some(found)) => is_same_hca(&variable.value, found, pod),
            // With and without the = of an exact name.
            (_, Some(found)) if variable.value.starts_with('=') => {
                found.trim_start_matches('=') == variable.value.trim_start_matches('=')
            }
            (NVSHMEM_DEVICES | UCX_DEVICES, Some(found)) => set(&variable.value) == set(found),
            (_, Some(found)) => *found == variable.value,
        };
        if !is_right {
            let expected = Some(variable.value.clone());
            differences.push(Difference {
                variable: variable.name,
                expected,
                found: found.cloned(),
            });
        }
    }
    let is_expected = expected.iter().any(|one| one.name == GID_INDEX);
    let index = environment.0.get(GID_INDEX).filter(|_| !is_expected);
    // -1 is how NCCL is told to look by itself.
    if let Some(index) = index.filter(|index| index.parse() != Ok(-1)) {
        let is_its = |port: &Port| port.gid.is_some_and(|gid| Ok(gid) == index.parse());
        if !pod
            .rails
            .iter()
            .filter_map(|rail| rail.port.as_ref())
            .all(is_its)
        {
            differences.push(Difference {
                variable: GID_INDEX,
                expected: None,
                found: Some(index.clone()),
            });
        }
    }
    differences
}

/// Whether NCCL takes the same ports of the pod by both. Rail and plane have to be right where they
/// are said.
fn is_same_hca(expected: &str, found: &str, pod: &Pod) -> bool {
    let expected = Filter::parse(expected);
    let found = Filter::parse(found);
    pod.ports.iter().all(|(device, port)| {
        match (expected.take(device, *port), found.take(device, *port)) {
            (None, None) => true,
            (Some(ours), Some(theirs)) => ours.is_empty() || theirs.is_empty() || ours == theirs,
            _ => false,
        }
    })
}

/// NCCL's reading of NCCL_IB_HCA (parseStringList, matchIfList and ncclIbInitDevices of 2.21 to
/// 2.32): ^ takes all others, = compares whole names, and otherwise an entry is a prefix; an entry
/// without a port means all of the device.
struct Filter<'a> {
    is_excluding: bool,
    is_exact: bool,
    entries: Vec<Entry<'a>>,
}

struct Entry<'a> {
    device: &'a str,
    port: Option<u32>,
    /// Rail and plane, as they are written.
    place: &'a str,
}

impl<'a> Filter<'a> {
    fn parse(value: &'a str) -> Filter<'a> {
        let (is_excluding, value) = match value.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, value),
        };
        let (is_exact, value) = match value.strip_prefix('=') {
            Some(rest) => (true, rest),
            None => (false, value),
        };
        let mut entries = Vec::new();
        for entry in value.split(',') {
            let (device, rest) = entry.split_once(':').unwrap_or((entry, ""));
            let (port, place) = rest.split_once(':').unwrap_or((rest, ""));
            if !device.is_empty() && entries.len() < MOST_DEVICES {
                entries.push(Entry {
                    device,
                    port: port.parse().ok(),
                    place: place.trim_end_matches(':'),
                });
            }
        }
        Filter {
            is_excluding,
            is_exact,
            entries,
        }
    }

    /// Rail and plane of a port that NCCL takes, by the first entry that means it.
    fn take(&self, device: &str, port: u32) -> Option<&'a str> {
        let is_meant = |entry: &&Entry<'a>| {
            let is_device = if self.is_exact {
                device == entry.device
            } else {
                device.starts_with(entry.device)
            };
            is_device && entry.port.is_none_or(|number| number == port)
        };
        let entry = self.entries.iter().find(is_meant);
        let is_listed = entry.is_some() || self.entries.is_empty();
        (is_listed != self.is_excluding).then(|| entry.map_or("", |entry| entry.place))
    }
}

fn set(list: &str) -> BTreeSet<&str> {
    list.split(',').collect()
}

#[cfg(test)]
mod tests {
    use super::super::pod::tests::{pod, rail};
    use super::super::variables::{self, SOCKET_IFNAME};
    use super::*;

    #[test]
    fn a_job_differs_where_nccl_would_do_something_else() {
        let rails = (0..2).map(|n| {
            rail(
                &format!("rail {n} plane 0"),
                "10.0.0.0/31",
                &format!("mlx5_{n}:1"),
                Some(3),
            )
        });
        let mut pod = pod(rails.collect());
        pod.ports.push(("mlx5_10".to_owned(), 1));
        let (expected, _) = variables::of(&pod, "2.30".parse().unwrap());
        let good = ["NCCL_IB_HCA==mlx5_1:1,mlx5_0:1", "NCCL_SOCKET_IFNAME=eth0"];
        let differs = |lines: &[&str]| -> Vec<&str> {
            let mut environment = Environment::default();
            environment.add(lines.join("\n").as_bytes());
            compare(&expected, &pod, &environment)
                .into_iter()
                .map(|one| one.variable)
                .collect()
        };
        assert_eq!(differs(&good), [""; 0]);
        assert_eq!(
            differs(&["#NCCL_IB_HCA=mlx5", good[0], good[1], "NCCL_IB_HCA=mlx5"]),
            [""; 0]
        );
        assert_eq!(differs(&[]), [HCA, SOCKET_IFNAME]);
        for (line, variable) in [
            ("NCCL_IB_HCA=mlx5", HCA),
            ("NCCL_IB_HCA=mlx5_0:1,mlx5_1:1", HCA),
            ("NCCL_IB_HCA==mlx5_0:1", HCA),
            ("NCCL_IB_HCA=", HCA),
            ("NCCL_IB_HCA=^=mlx5_0", HCA),
            ("NCCL_IB_HCA==mlx5_0:2,mlx5_1:1", HCA),
            ("NCCL_IB_HCA==mlx5_0:1:1:0,mlx5_0:1:0:0,mlx5_1:1", HCA),
            ("NCCL_IB_HCA==mlx5_0:1:1:0,mlx5_1:1:0:0", HCA),
            ("NCCL_SOCKET_IFNAME==net1", SOCKET_IFNAME),
            ("UCX_NET_DEVICES=all", UCX_DEVICES),
            ("GLOO_SOCKET_IFNAME=net1", "GLOO_SOCKET_IFNAME"),
            // As PyTorch passes NCCL_IB_HCA on.
            ("NVSHMEM_HCA_LIST==mlx5_0:1,mlx5_1:1", NVSHMEM_DEVICES),
            ("CCL_KVS_IFACE=net1", "CCL_KVS_IFACE"),
            ("NCCL_IB_GID_INDEX=0", GID_INDEX),
        ] {
            assert_eq!(differs(&[line, good[0], good[1]]), [variable], "{line}");
        }
        for line in [
            "NCCL_IB_HCA==mlx5_0:1:0:0,mlx5_1:1:1:0",
            "NCCL_IB_HCA==mlx5_0,mlx5_1",
            "NCCL_IB_HCA=^mlx5_10",
            "NCCL_IB_HCA=^=mlx5_10:1",
            "NCCL_IB_HCA==mlx5_0:1:0:0,mlx5_0:1:1:0,mlx5_1:1",
            "NCCL_IB_GID_INDEX=3",
            "NCCL_IB_GID_INDEX=-1",
            "UCX_NET_DEVICES=mlx5_1:1,mlx5_0:1",
            "NVSHMEM_HCA_LIST=mlx5_1:1,mlx5_0:1",
            "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=eth0",
        ] {
            assert_eq!(differs(&[line, good[0], good[1]]), [""; 0], "{line}");
        }
    }
}
