//! The variables of the libraries. The rules are those of their parsers, as their sources have
//! them: NCCL's setEnvFile, parseStringList and ncclIbInitDevices, NVSHMEM's
//! nvshmemt_parse_hca_list, oneCCL's internal_kvs::fill_local_host_ip.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::pod::{Pod, Port, Rail};

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Its value: letters, digits and `=:,._-`.
    pub value: String,
}

pub const HCA: &str = "NCCL_IB_HCA";
pub const GID_INDEX: &str = "NCCL_IB_GID_INDEX";
pub const SOCKET_IFNAME: &str = "NCCL_SOCKET_IFNAME";
pub const ADDRESS_FAMILY: &str = "NCCL_IB_ADDR_FAMILY";
pub const UCX_DEVICES: &str = "UCX_NET_DEVICES";
pub const NVSHMEM_DEVICES: &str = "NVSHMEM_HCA_LIST";

/// NCCL reads as many bytes of a value.
const LONGEST: usize = 1023;
/// NCCL looks at as many entries of a list (MAX_IB_DEVS).
pub const MOST_DEVICES: usize = 32;
/// NVSHMEM passes over devices with other names, unless a variable of 3.4.5 and later has another
/// prefix.
const NVSHMEM_DEFAULT_PREFIX: &str = "mlx5";
const NVSHMEM_PREFIX: &str = "NVSHMEM_HCA_PREFIX";
/// For GIDs that NVSHMEM finds itself; its env_defs.h has it since 2024.
const NVSHMEM_ADDRESS_FAMILY: &str = "NVSHMEM_IB_ADDR_FAMILY";
/// It refuses more planes.
const MOST_PLANES: usize = 12;

impl Variable {
    /// Whether NCCL reads it, also from nccl.conf.
    pub fn is_of_nccl(&self) -> bool {
        self.name.starts_with("NCCL_")
    }
}

/// A version of NCCL, such as 2.30.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion(u32, u32);

impl NcclVersion {
    /// It finds the GID of each device by itself from here on.
    const FINDS_GIDS: NcclVersion = NcclVersion(2, 21);
    /// It reads rail and plane in NCCL_IB_HCA from here on. Older ones pass over what follows the
    /// port.
    const KNOWS_RAILS: NcclVersion = NcclVersion(2, 30);
}

impl FromStr for NcclVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<NcclVersion, String> {
        let mut parts = text.split('.').map(|part| part.parse::<u32>());
        match (parts.next(), parts.next(), parts.all(|part| part.is_ok())) {
            (Some(Ok(major)), Some(Ok(minor)), true) => Ok(NcclVersion(major, minor)),
            _ => Err(format!("{text:?} is not a version such as 2.30 or 2.21.5")),
        }
    }
}

/// The variables of a pod, and what is left out because it is not known.
pub fn of(pod: &Pod, nccl: NcclVersion) -> (Vec<Variable>, Vec<String>) {
    let (mut all, mut unknown) = (Vec::new(), Vec::new());
    let mut put = |name, value| all.push(Variable { name, value });
    let ports: Vec<(&Rail, &Port)> = pod
        .rails
        .iter()
        .filter_map(|rail| Some((rail, rail.port.as_ref()?)))
        .collect();
    match hca(&ports, nccl) {
        Ok(value) => {
            put(HCA, value);
            let names = list(ports.iter().map(|(_, port)| port.to_string()));
            // It compares whole names, and a = would be part of one.
            let devices = ports.iter().map(|(_, port)| port.device.as_str());
            let prefix = common_prefix(devices);
            if prefix.starts_with(NVSHMEM_DEFAULT_PREFIX) {
                put(NVSHMEM_DEVICES, names.clone());
            } else if !prefix.is_empty() {
                put(NVSHMEM_PREFIX, prefix.to_owned());
                put(NVSHMEM_DEVICES, names.clone());
            } else {
                unknown.push(format!(
                    "{NVSHMEM_DEVICES} is omitted: NVSHMEM takes devices whose names begin alike"
                ));
            }
            put(UCX_DEVICES, names);
        }
        Err(why) => unknown.push(format!("{HCA} and {UCX_DEVICES} are omitted: {why}")),
    }
    let has_v4 = |rail: &Rail| rail.addresses.iter().any(|net| net.addr().is_ipv4());
    let is_v6_alone = ports
        .iter()
        .all(|(rail, _)| !rail.addresses.is_empty() && !has_v4(rail));
    if !ports.is_empty() && is_v6_alone && nccl >= NcclVersion::FINDS_GIDS {
        put(ADDRESS_FAMILY, "AF_INET6".to_owned());
    }
    if !ports.is_empty() && is_v6_alone {
        put(NVSHMEM_ADDRESS_FAMILY, "AF_INET6".to_owned());
    }
    if nccl < NcclVersion::FINDS_GIDS && !ports.is_empty() {
        let indexes: BTreeSet<_> = ports.iter().map(|(_, port)| port.gid).collect();
        match (indexes.first(), indexes.len()) {
            (Some(Some(index)), 1) => put(GID_INDEX, index.to_string()),
            _ => unknown.push(format!(
                "{GID_INDEX} is omitted: the rails have different GID indexes, or \
                none. NCCL 2.21 finds them itself"
            )),
        }
    }
    match &pod.interface {
        Some(name) => {
            put(SOCKET_IFNAME, format!("={name}"));
            put("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", format!("={name}"));
            put("GLOO_SOCKET_IFNAME", name.clone());
            // It takes every interface whose name has this in it.
            if !pod
                .rails
                .iter()
                .any(|rail| rail.interface.contains(name.as_str()))
            {
                put("CCL_KVS_IFACE", name.clone());
            }
        }
        None => unknown.push(format!(
            "{SOCKET_IFNAME} and the like are omitted: no single interface has the default route"
        )),
    }
    (all, unknown)
}

/// The devices of the rails in the form of NCCL_IB_HCA, with the = of exact names.
fn hca(ports: &[(&Rail, &Port)], nccl: NcclVersion) -> Result<String, String> {
    let distinct: BTreeSet<String> = ports.iter().map(|(_, port)| port.to_string()).collect();
    if ports.is_empty() {
        return Err("no rail has an RDMA device".to_owned());
    }
    if distinct.len() < ports.len() {
        return Err("two rails have the same RDMA device".to_owned());
    }
    let planes: BTreeSet<_> = ports
        .iter()
        .filter_map(|(rail, _)| rail.alias.plane)
        .collect();
    let entry = |(rail, port): &(&Rail, &Port)| match rail.alias.plane {
        _ if nccl < NcclVersion::KNOWS_RAILS => port.to_string(),
        Some(plane) if planes.len() <= MOST_PLANES => format!("{port}:{}:{plane}", rail.alias.rail),
        _ => format!("{port}:{}", rail.alias.rail),
    };
    let value = format!("={}", list(ports.iter().map(entry)));
    if ports.len() > MOST_DEVICES || value.len() > LONGEST {
        return Err(format!(
            "NCCL reads {MOST_DEVICES} devices and {LONGEST} bytes: select the job's rails with --rails"
        ));
    }
    Ok(value)
}

/// The letters with which all names begin.
fn common_prefix<'a>(mut names: impl Iterator<Item = &'a str>) -> &'a str {
    let mut prefix = names.next().unwrap_or_default();
    for name in names {
        while !name.starts_with(prefix) {
            let shorter = prefix.char_indices().next_back().map_or(0, |(at, _)| at);
            prefix = &prefix[..shorter];
        }
    }
    prefix
}

fn list(entries: impl Iterator<Item = String>) -> String {
    entries.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::pod::tests::{pod, rail};
    use super::*;

    fn nccl(text: &str) -> NcclVersion {
        text.parse().unwrap()
    }

    fn value(name: &str, all: &[Variable]) -> Option<String> {
        all.iter()
            .find(|one| one.name == name)
            .map(|one| one.value.clone())
    }

    /// Reads an entry as NCCL does: name, port, and since 2.30 rail and plane. Before, it passed
    /// over all that follows the port.
    fn read(value: &str, knows_rails: bool) -> Vec<(String, i32, i32, i32)> {
        let list = value.strip_prefix('=').unwrap();
        let entry = |entry: &str| {
            let words: Vec<_> = entry.split(':').collect();
            let number = |at: usize| words.get(at).map_or(-1, |word| word.parse().unwrap());
            let rest = |at| if knows_rails { number(at) } else { -1 };
            (words[0].to_owned(), number(1), rest(2), rest(3))
        };
        list.split(',').map(entry).collect()
    }

    #[test]
    fn nccl_reads_exact_ports_and_from_2_30_on_rail_and_plane() {
        let rails = [("rail 0 plane 1", "mlx5_3:1"), ("rail 1", "mlx5_13:2")];
        let pod = pod(rails
            .map(|(alias, port)| rail(alias, "10.0.0.0/31", port, Some(3)))
            .into());
        let hca = |version: &str| value(HCA, &of(&pod, nccl(version)).0).unwrap();
        let exact = [
            ("mlx5_3".to_owned(), 1, -1, -1),
            ("mlx5_13".to_owned(), 2, -1, -1),
        ];
        for version in ["2.4.7", "2.21", "2.29.3"] {
            assert_eq!(hca(version), "=mlx5_3:1,mlx5_13:2");
            assert_eq!(read(&hca(version), false), exact);
        }
        for version in ["2.30", "2.32.3", "3.0"] {
            assert_eq!(hca(version), "=mlx5_3:1:0:1,mlx5_13:2:1");
            let known = [
                ("mlx5_3".to_owned(), 1, 0, 1),
                ("mlx5_13".to_owned(), 2, 1, -1),
            ];
            assert_eq!(read(&hca(version), true), known);
            // An older one that gets it by mistake takes the same ports.
            assert_eq!(read(&hca(version), false), exact);
        }
        assert_eq!(
            value(UCX_DEVICES, &of(&pod, nccl("2.21")).0).unwrap(),
            "mlx5_3:1,mlx5_13:2"
        );
    }

    #[test]
    fn nvshmem_and_oneccl_are_told_what_they_cannot_misread() {
        let told = |devices: [&str; 2], names: [&str; 2]| {
            let rails = [0, 1].map(|n| {
                let mut rail = rail(&format!("rail {n}"), "10.0.0.0/31", devices[n], Some(3));
                names[n].clone_into(&mut rail.interface);
                rail
            });
            let (all, unknown) = of(&pod(rails.into()), nccl("2.30"));
            (
                value(NVSHMEM_DEVICES, &all),
                value("CCL_KVS_IFACE", &all),
                unknown.len(),
            )
        };
        let (devices, names) = (["mlx5_3:1", "mlx5_13:2"], ["net1", "net2"]);
        let (list, eth0) = (
            Some("mlx5_3:1,mlx5_13:2".to_owned()),
            Some("eth0".to_owned()),
        );
        assert_eq!(told(devices, names), (list.clone(), eth0.clone(), 0));
        assert_eq!(told(["mlx5_3:1", "rocep1s0:1"], names), (None, eth0, 1));
        assert_eq!(told(devices, ["net1", "roceth01"]), (list, None, 0));
    }

    #[test]
    fn a_gid_index_is_for_an_nccl_that_does_not_find_it_and_only_where_all_have_the_same() {
        let with = |gids: [Option<u32>; 2]| {
            let rails = gids.iter().enumerate();
            pod(rails
                .map(|(n, gid)| {
                    rail(
                        &format!("rail {n}"),
                        "10.0.0.0/31",
                        &format!("mlx5_{n}:1"),
                        *gid,
                    )
                })
                .collect())
        };
        for (gids, version, index) in [
            ([Some(3), Some(3)], "2.20", Some("3")),
            ([Some(3), Some(3)], "2.21", None),
            ([Some(3), Some(5)], "2.20", None),
            ([Some(3), None], "2.20", None),
        ] {
            let (all, unknown) = of(&with(gids), nccl(version));
            assert_eq!(
                value(GID_INDEX, &all).as_deref(),
                index,
                "{gids:?} {version}"
            );
            assert_eq!(unknown.is_empty(), index.is_some() || version == "2.21");
        }
    }

    #[test]
    fn nvshmem_is_told_how_other_devices_are_called() {
        for (devices, prefix, has_list) in [
            (["mlx5_0:1", "mlx5_1:1"], None, true),
            (["rocep1s0:1", "rocep2s0:1"], Some("rocep"), true),
            (["bnxt_re0:1", "mlx5_1:1"], None, false),
        ] {
            let rails = [(0, devices[0]), (1, devices[1])];
            let rails =
                rails.map(|(n, port)| rail(&format!("rail {n}"), "10.0.0.0/31", port, None));
            let (all, _) = of(&pod(rails.into()), nccl("2.30"));
            assert_eq!(value(NVSHMEM_PREFIX, &all).as_deref(), prefix);
            assert_eq!(value(NVSHMEM_DEVICES, &all).is_some(), has_list);
        }
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let without = pod(vec![rail("rail 0", "10.0.0.0/31", "", None)]);
        let (all, unknown) = of(&without, nccl("2.30"));
        let of_eth0 = [
            SOCKET_IFNAME,
            "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME",
            "GLOO_SOCKET_IFNAME",
            "CCL_KVS_IFACE",
        ];
        assert_eq!(all.iter().map(|one| one.name).collect::<Vec<_>>(), of_eth0);
        assert_eq!(unknown.len(), 1);
        let twice = pod(vec![
            rail("rail 0", "10.0.0.0/31", "a:1", None),
            rail("rail 1", "10.0.0.2/31", "a:1", None),
        ]);
        assert_eq!(value(HCA, &of(&twice, nccl("2.30")).0), None);
        let many = (0..33)
            .map(|n| {
                rail(
                    &format!("rail {n}"),
                    "10.0.0.0/31",
                    &format!("mlx5_{n}:1"),
                    None,
                )
            })
            .collect();
        assert_eq!(value(HCA, &of(&pod(many), nccl("2.30")).0), None);
        let long = (0..20).map(|n| {
            rail(
                &format!("rail {n}"),
                "10.0.0.0/31",
                &format!("{}{n}:1", "a".repeat(60)),
                None,
            )
        });
        assert_eq!(value(HCA, &of(&pod(long.collect()), nccl("2.30")).0), None);
        let mut alone = pod(vec![rail("rail 0", "fd00::/127", "mlx5_0:1", None)]);
        alone.interface = None;
        let (all, unknown) = of(&alone, nccl("2.30"));
        assert_eq!(
            value("NCCL_IB_ADDR_FAMILY", &all).as_deref(),
            Some("AF_INET6")
        );
        assert_eq!(
            value(NVSHMEM_ADDRESS_FAMILY, &all).as_deref(),
            Some("AF_INET6")
        );
        assert_eq!((value(SOCKET_IFNAME, &all), unknown.len()), (None, 1));
    }
}
