//! Devices that have not returned from an ended pod, or that a pod has given away: the namespace
//! that has them, its pod, and the remedy.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::locate::{Sighting, search};
use super::owner::Owner;
use super::records::Records;
use crate::every_netns::Which;
use crate::netns::{Keeper, NetnsId, is_same};
use rail_netlink::link;

/// The place of a device that is neither in its pod nor on the host.
#[derive(Clone, Debug)]
pub struct Away {
    /// Name of the netdev there.
    pub ifname: String,
    /// A path that leads to the namespace.
    pub netns: PathBuf,
    /// The pod of that namespace, as `namespace/name`, or its UID, if a record or a process shows
    /// it.
    pub pod: Option<String>,
    /// The processes that keep the namespace.
    keepers: Vec<Keeper>,
}

/// Searches all namespaces for the devices of `lost`. `holders` are the owners on record, which name
/// the pods. A device is not found in a namespace that is out of sight, or that the search does not
/// reach in time.
pub fn find(lost: &[&Owner], holders: &[&Owner]) -> Result<Vec<Option<Away>>> {
    if lost.is_empty() {
        return Ok(Vec::new());
    }
    let sightings = search(lost, Which::Kept)?;
    let mut places = Vec::new();
    for (owner, sighting) in lost.iter().zip(sightings) {
        places.push(sighting.map(|sighting| Away::new(sighting, owner, holders)));
    }
    Ok(places)
}

/// The place of the device of `owner` and the remedy, for people.
pub fn how_to_end(owner: &Owner, records: &Records) -> String {
    let away = find_one(owner, records).unwrap_or_else(|error| {
        log::warn!("cannot search for {}: {error:#}", owner.device.id);
        None
    });
    describe(away.as_ref())
}

/// The place and the remedy, for people.
pub fn describe(away: Option<&Away>) -> String {
    match away {
        Some(away) => format!("{}: {}", away.place(), away.remedy()),
        None => {
            "a process keeps it open (`lsns -t net`); end it, then run `railctl reap`".to_owned()
        }
    }
}

fn find_one(owner: &Owner, records: &Records) -> Result<Option<Away>> {
    let (holders, _) = records.all()?;
    let holders: Vec<_> = holders.iter().map(|record| &record.owner).collect();
    let places = find(&[owner], &holders)?;
    Ok(places.into_iter().next().flatten())
}

impl Away {
    fn new(sighting: Sighting, owner: &Owner, holders: &[&Owner]) -> Away {
        let netns = sighting.netns;
        let id = NetnsId::of(&netns).ok().flatten();
        let keepers = id.as_ref().map(NetnsId::keepers).unwrap_or_default();
        // The pod of a namespace that is left of its own has ended.
        let is_its_own =
            id.is_some_and(|id| (id.dev, id.ino) == (owner.netns.dev, owner.netns.ino));
        let pod = if is_its_own {
            None
        } else {
            pod_of(&netns, &keepers, holders)
        };
        Away {
            ifname: sighting.link.name,
            netns,
            pod,
            keepers,
        }
    }

    /// Whether only processes lead to the namespace, and nothing shows their pod.
    fn is_of_processes(&self) -> bool {
        self.pod.is_none() && self.netns.starts_with("/proc") && !self.keepers.is_empty()
    }

    /// The place, for people.
    pub fn place(&self) -> String {
        if self.is_of_processes() {
            let mut named = Vec::new();
            for keeper in &self.keepers {
                named.push(format!("{} ({})", keeper.id, keeper.name));
            }
            return format!(
                "it is {} in the namespace of process {}",
                self.ifname,
                named.join(", ")
            );
        }
        let pod = self.pod.as_ref();
        let of_pod = pod.map_or_else(String::new, |pod| format!(" of pod {pod}"));
        format!(
            "it is {} in the namespace {}{of_pod}",
            self.ifname,
            self.netns.display()
        )
    }

    fn remedy(&self) -> String {
        if self.is_of_processes() {
            let ids: Vec<_> = self.keepers.iter().map(|one| one.id.to_string()).collect();
            return format!("`kill {}`, then `railctl reap`", ids.join(" "));
        }
        if !link::is_plain_name(&self.ifname) {
            return "end the pod of that namespace, then run `railctl reap`".to_owned();
        }
        format!(
            "end the pod of that namespace, or run `nsenter --net={} ip link set {} netns 1`; then run `railctl reap`",
            self.netns.display(),
            self.ifname
        )
    }
}

/// The pod in whose namespace a device is: by a record with that namespace, or by the cgroups of the
/// processes in it.
fn pod_of(netns: &Path, keepers: &[Keeper], holders: &[&Owner]) -> Option<String> {
    let by_record = holders
        .iter()
        .find(|holder| is_same(&holder.netns.path, netns));
    if let Some(holder) = by_record {
        if holder.pod.is_some() {
            return holder.pod.clone();
        }
    }
    for keeper in keepers {
        let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", keeper.id)).unwrap_or_default();
        let Some(uid) = pod_uid(&cgroup) else {
            continue;
        };
        let holder = holders
            .iter()
            .find(|holder| holder.pod_uid.as_deref() == Some(&*uid));
        let pod = holder.and_then(|holder| holder.pod.clone());
        return Some(pod.unwrap_or_else(|| format!("UID {uid}")));
    }
    None
}

/// The pod's UID in the text of /proc/PID/cgroup, where kubelet writes it as
/// `kubepods-besteffort-pod3f8a…_….slice` (systemd) or `kubepods/besteffort/pod3f8a…-…` (cgroupfs).
fn pod_uid(cgroup: &str) -> Option<String> {
    const LENGTH: usize = 36;
    let (_, kubelets) = cgroup.split_once("kubepods")?;
    for (start, word) in kubelets.match_indices("pod") {
        let uid = kubelets.get(start + word.len()..)?.get(..LENGTH);
        let uid = uid.map(|uid| uid.replace('_', "-")).unwrap_or_default();
        let parts: Vec<_> = uid.split('-').map(str::len).collect();
        let is_hex = uid
            .chars()
            .all(|sign| sign.is_ascii_hexdigit() || sign == '-');
        if is_hex && parts == [8, 4, 4, 4, 12] {
            return Some(uid);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_of_a_process_shows_its_pod() {
        let uid = "3f8a1b2c-0d1e-4f5a-8b9c-0a1b2c3d4e5f";
        let systemd = "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod3f8a1b2c_0d1e_4f5a_8b9c_0a1b2c3d4e5f.slice/cri-containerd-9a.scope\n";
        let cgroupfs = format!("0::/kubepods/burstable/pod{uid}/9a\n");
        assert_eq!(pod_uid(systemd).as_deref(), Some(uid));
        assert_eq!(pod_uid(&cgroupfs).as_deref(), Some(uid));
        for other in ["", "0::/user.slice\n", "0::/kubepods.slice/podman\n"] {
            assert_eq!(pod_uid(other), None, "{other}");
        }
    }
}
