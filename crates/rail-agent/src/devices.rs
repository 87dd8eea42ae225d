//! The devices of the rails as resources of the Node: what an SR-IOV device plugin would do.
//! `railctl devices` says which there are, as ADD judges them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::fs::inotify;
use tokio::net::UnixListener;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::host::{Host, HostDir, RAILCTL};
use crate::kubelet::{
    self, Answer, Asked, Choice, Device, DeviceFile, Devices, Given, NumaNode, Topology,
};
use crate::ready::Steady;
use crate::report::{Listed, Listing};
use crate::text::{error_text, log};

/// The part of a resource's name that stands for the number of the rail.
const RAIL_PATTERN: &str = "{rail}";
/// How often the kubelet's socket and the own one are looked at, if no change is seen. A kubelet
/// that starts removes all, and makes its own anew.
const KUBELET_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The time after which a first failure is tried again.
const REGISTER_DELAY: Duration = Duration::from_millis(50);
/// The longest registration.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);

/// The name of a resource, or a pattern of one for each rail.
pub fn resource(text: &str) -> Result<String, String> {
    let is_part = |part: &str| {
        let ends = [part.chars().next(), part.chars().next_back()];
        part.len() <= 63
            && ends
                .into_iter()
                .all(|end| end.is_some_and(|end| end.is_ascii_alphanumeric()))
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    match text.replace(RAIL_PATTERN, "0").split_once('/') {
        _ if text.is_empty() => Ok(String::new()),
        Some((domain, name)) if domain.contains('.') && is_part(domain) && is_part(name) => {
            Ok(text.to_owned())
        }
        _ => Err(
            "must be like nvidia.com/rails, or nvidia.com/rail-{rail} for one resource per rail"
                .to_owned(),
        ),
    }
}

/// All resources that the agent offers.
#[derive(Debug)]
pub struct Resources {
    pattern: String,
    railctl: PathBuf,
    /// How long the link of a PF must be away before its devices are.
    patience: Duration,
    /// Of each PF.
    links: HashMap<String, Steady>,
    offered: BTreeMap<String, watch::Sender<Devices>>,
    /// What `railctl devices` said last.
    listing: watch::Sender<Arc<Listing>>,
}

impl Resources {
    /// Offers nothing yet.
    pub fn new(pattern: &str, plugins_dir: &Path, patience: Duration) -> Resources {
        Resources {
            pattern: pattern.to_owned(),
            railctl: plugins_dir.join(RAILCTL),
            patience,
            links: HashMap::new(),
            offered: BTreeMap::new(),
            listing: watch::Sender::default(),
        }
    }

    /// Offers these devices. A resource that has none any more stays, so that the kubelet knows it.
    pub fn offer(&mut self, listing: Listing) -> Result<()> {
        let mut wanted: BTreeMap<String, Devices> = self
            .offered
            .keys()
            .map(|resource| (resource.clone(), Devices::default()))
            .collect();
        for one in &listing.devices {
            let device = self.device(one, Instant::now());
            let resource = self.pattern.replace(RAIL_PATTERN, &one.rail.to_string());
            wanted.entry(resource).or_default().devices.push(device);
        }
        self.listing.send_replace(Arc::new(listing));
        for (resource, devices) in wanted {
            match self.offered.get(&resource) {
                Some(sender) => drop(sender.send_if_modified(|old| {
                    let is_new = *old != devices;
                    *old = devices;
                    is_new
                })),
                None => {
                    let (sender, receiver) = watch::channel(devices);
                    let railctl = self.railctl.clone();
                    let (host, listing) = (Host::open()?, self.listing.subscribe());
                    let plugin = Plugin {
                        host,
                        railctl,
                        resource: resource.clone(),
                        listing,
                        devices: receiver,
                    };
                    tokio::spawn(Arc::new(plugin).keep_offering());
                    self.offered.insert(resource, sender);
                }
            }
        }
        Ok(())
    }

    /// A device that a pod has stays healthy: its health is about those that come.
    fn device(&mut self, one: &Listed, now: Instant) -> Device {
        let is_there = match one.link.as_str() {
            "up" | "in-pod" | "userspace" => true,
            // A PF that is handed out itself is brought up by ADD.
            "down" => !one.is_vf,
            _ => false,
        };
        let steady = self.links.entry(one.pf.clone()).or_default();
        let is_there = steady
            .look(is_there, now, self.patience)
            .unwrap_or(is_there);
        let is_healthy = is_there && one.state != "refused";
        let health = if is_healthy {
            kubelet::HEALTHY
        } else {
            kubelet::UNHEALTHY
        };
        let topology = one.numa_node.map(|id| Topology {
            nodes: vec![NumaNode { id: id.into() }],
        });
        Device {
            id: one.device.clone(),
            health: health.to_owned(),
            topology,
        }
    }
}

/// What answers for one resource.
#[derive(Debug)]
struct Plugin {
    host: Host,
    railctl: PathBuf,
    resource: String,
    devices: watch::Receiver<Devices>,
    listing: watch::Receiver<Arc<Listing>>,
}

impl Plugin {
    async fn keep_offering(self: Arc<Plugin>) {
        let mut told = None;
        loop {
            let error = self.offer().await.err().map(|error| error_text(&error));
            // A kubelet makes its socket shortly before it listens.
            let pause = if told.is_none() {
                REGISTER_DELAY
            } else {
                KUBELET_CHECK_INTERVAL
            };
            if let Some(text) = error.as_ref().filter(|_| error != told) {
                log(
                    "warn",
                    &format!("the resource {} is not offered: {text}", self.resource),
                );
            }
            told = error;
            if told.is_some() {
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// Offers the resource to the kubelet that runs now, if one does, for as long as it does.
    async fn offer(self: &Arc<Plugin>) -> Result<()> {
        let Some(dir) = self.host.dir(Path::new(kubelet::FOLDER))? else {
            tokio::time::sleep(KUBELET_CHECK_INTERVAL).await;
            return Ok(());
        };
        let changes = Changes::of(&dir);
        let Some(began) = began(&dir) else {
            changes.wait().await;
            return Ok(());
        };
        let socket = format!("rail-agent_{}.sock", self.resource.replace('/', "_"));
        dir.remove(&socket)?;
        let listener = UnixListener::bind(dir.at(&socket)).with_context(|| {
            format!("cannot make the socket {} on the host", dir.shown(&socket))
        })?;
        dir.restrict(&socket, 0o600)?;
        // The kubelet asks for the devices before it answers.
        let mut tasks = JoinSet::new();
        tasks.spawn(self.clone().accept(listener));
        let path = dir.at(kubelet::KUBELET);
        let registered = kubelet::register(&path, &socket, &self.resource);
        tokio::time::timeout(REGISTER_TIMEOUT, registered)
            .await
            .context("the kubelet did not answer")??;
        log(
            "info",
            &format!("the kubelet has the resource {}", self.resource),
        );
        while dir.is_linked() && dir.at(&socket).exists() && self::began(&dir) == Some(began) {
            changes.wait().await;
        }
        Ok(())
    }

    async fn accept(self: Arc<Plugin>, listener: UnixListener) {
        let mut open = JoinSet::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // No file descriptor is free, for example.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            while open.try_join_next().is_some() {}
            let plugin = self.clone();
            open.spawn(kubelet::serve(stream, move |asked| {
                plugin.clone().answer(asked)
            }));
        }
    }

    async fn answer(self: Arc<Plugin>, asked: Asked) -> Answer {
        match asked {
            Asked::Watch => Answer::Devices(self.devices.clone()),
            Asked::Prefer(choices) => {
                let listing = self.listing.borrow().clone();
                Answer::Preferred(
                    choices
                        .iter()
                        .map(|choice| preferred(&listing, choice))
                        .collect(),
                )
            }
            Asked::Allocate(containers) => {
                let listing = self.look_again().await;
                let given = containers
                    .iter()
                    .map(|ids| give(&listing, &self.resource, ids));
                match given.collect() {
                    Ok(given) => Answer::Given(given),
                    Err(why) => {
                        log(
                            "warn",
                            &format!("the kubelet is refused devices of {}: {why}", self.resource),
                        );
                        Answer::Refused(why)
                    }
                }
            }
        }
    }

    /// The files of a device are those of this moment: that of a pod which has just ended came back
    /// with it.
    async fn look_again(&self) -> Arc<Listing> {
        match self
            .host
            .run(&self.railctl, &["devices", "--output", "json"], b"")
            .await
        {
            Ok(said) => serde_json::from_str(&said.stdout).map(Arc::new).ok(),
            Err(_) => None,
        }
        .unwrap_or_else(|| self.listing.borrow().clone())
    }
}

/// What happens in the kubelet's folder: a pod that starts with a new kubelet fails for good if its
/// devices come too late. Tokio has no type for inotify, and a file that is read like a pipe is one
/// to it.
struct Changes(Option<pipe::Receiver>);

impl Changes {
    /// A node may have no watch left.
    fn of(dir: &HostDir) -> Changes {
        let watch = || -> Result<pipe::Receiver> {
            let inotify =
                inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
            let changes = inotify::WatchFlags::CREATE
                | inotify::WatchFlags::DELETE
                | inotify::WatchFlags::MOVED_TO;
            inotify::add_watch(&inotify, dir.at("."), changes)?;
            Ok(pipe::Receiver::from_owned_fd_unchecked(inotify)?)
        };
        Changes(watch().ok())
    }

    /// Waits for the next change, or for a while.
    async fn wait(&self) {
        let change = async {
            let Some(inotify) = &self.0 else {
                return std::future::pending().await;
            };
            if inotify.readable().await.is_ok() {
                while inotify
                    .try_read(&mut [0; 4096])
                    .is_ok_and(|count| count > 0)
                {}
            }
        };
        let _ = tokio::time::timeout(KUBELET_CHECK_INTERVAL, change).await;
    }
}

/// Tells one kubelet from the next: an inode number may be given again.
fn began(dir: &HostDir) -> Option<(u64, i64, i64)> {
    let found = dir.at(kubelet::KUBELET).symlink_metadata().ok()?;
    Some((found.ino(), found.ctime(), found.ctime_nsec()))
}

/// One device of each rail before a second of any, of few NUMA nodes.
fn preferred(listing: &Listing, choice: &Choice) -> Vec<String> {
    let size = usize::try_from(choice.size).unwrap_or_default();
    let find = |id: &String| listing.devices.iter().find(|one| one.device == *id);
    let must: Vec<&Listed> = choice.must_include.iter().filter_map(find).collect();
    let free: Vec<&Listed> = choice.available.iter().filter_map(find).collect();
    let nodes: BTreeSet<Option<u32>> = free.iter().map(|one| one.numa_node).collect();
    let sets = nodes
        .into_iter()
        .map(|first| fill(must.clone(), &free, size, first));
    let rank = |set: &Vec<&Listed>| {
        let rails: BTreeSet<u8> = set.iter().map(|one| one.rail).collect();
        let nodes: BTreeSet<Option<u32>> = set.iter().map(|one| one.numa_node).collect();
        (usize::MAX - rails.len(), nodes.len())
    };
    let best = sets.min_by_key(rank).unwrap_or(must);
    best.into_iter().map(|one| one.device.clone()).collect()
}

/// Adds free devices, those of the NUMA node `first` before others.
fn fill<'a>(
    mut set: Vec<&'a Listed>,
    free: &[&'a Listed],
    size: usize,
    first: Option<u32>,
) -> Vec<&'a Listed> {
    while set.len() < size {
        let is_left = |one: &&&Listed| set.iter().all(|taken| taken.device != one.device);
        let rank = |one: &&&Listed| {
            let count = |is_like: fn(&Listed, &Listed) -> bool| {
                set.iter().filter(|taken| is_like(taken, one)).count()
            };
            let of_rail = count(|taken, one| taken.rail == one.rail);
            let of_pf = count(|taken, one| taken.pf == one.pf);
            let is_near =
                one.numa_node == first || count(|taken, one| taken.numa_node == one.numa_node) > 0;
            (of_rail, of_pf, !is_near, one.rail, one.device.clone())
        };
        let Some(next) = free.iter().filter(is_left).min_by_key(rank) else {
            break;
        };
        set.push(next);
    }
    set
}

/// What a container with these devices is given. Fails if the node does not hand one of them out.
fn give(listing: &Listing, resource: &str, ids: &[String]) -> Result<Given, String> {
    let mut files = BTreeSet::new();
    for id in ids {
        let found = listing.devices.iter().find(|one| one.device == *id);
        let found = found
            .ok_or_else(|| format!("this node hands out no device {id}: `railctl devices`"))?;
        files.extend(&found.files);
    }
    let file = |path: &String| DeviceFile {
        in_container: path.clone(),
        on_host: path.clone(),
        permissions: "rw".to_owned(),
    };
    Ok(Given {
        variables: BTreeMap::from([(variable(resource), ids.join(","))]),
        files: files.into_iter().map(file).collect(),
    })
}

/// `PCIDEVICE_NVIDIA_COM_RAIL_0`, as the SR-IOV device plugin calls it.
fn variable(resource: &str) -> String {
    let name = resource.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    format!("PCIDEVICE_{}", name.to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_comes_or_goes_is_seen_at_once() {
        crate::runtime::runtime().unwrap().block_on(async {
            let temp = tempfile::tempdir().unwrap();
            let changes = Changes::of(&HostDir::here(temp.path()));
            let socket = temp.path().join(kubelet::KUBELET);
            let begun = Instant::now();
            for _ in 0..100 {
                std::fs::write(&socket, "").unwrap();
                changes.wait().await;
                std::fs::remove_file(&socket).unwrap();
                changes.wait().await;
            }
            assert!(
                begun.elapsed() < 100 * KUBELET_CHECK_INTERVAL,
                "{:?}",
                begun.elapsed()
            );
        });
    }

    fn listing(all: &[(&str, u8, u32)]) -> Listing {
        let one = |(device, rail, numa): &(&str, u8, u32)| Listed {
            device: (*device).to_owned(),
            rail: *rail,
            pf: format!("pf{rail}"),
            numa_node: Some(*numa),
            is_vf: true,
            state: "free".to_owned(),
            link: "up".to_owned(),
            files: vec![
                format!("/dev/infiniband/{device}"),
                "/dev/infiniband/rdma_cm".to_owned(),
            ],
        };
        Listing {
            devices: all.iter().map(one).collect(),
        }
    }

    #[test]
    fn a_container_gets_one_device_of_each_rail_and_those_of_one_numa_node_first() {
        let all = listing(&[
            ("0a", 0, 0),
            ("0b", 0, 0),
            ("1a", 1, 0),
            ("1b", 1, 0),
            ("2a", 2, 1),
            ("2b", 2, 1),
            ("3a", 3, 1),
        ]);
        let of = |available: &str, must: &str, size| {
            let split = |text: &str| {
                text.split_whitespace()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            preferred(
                &all,
                &Choice {
                    available: split(available),
                    must_include: split(must),
                    size,
                },
            )
            .join(" ")
        };
        assert_eq!(of("0a 0b 1a 1b 2a 2b 3a", "", 4), "0a 1a 2a 3a");
        assert_eq!(of("0a 0b 1a 1b 2a 2b 3a", "", 5), "0a 1a 2a 3a 0b");
        // Two rails of one NUMA node, though another begins with a smaller number.
        assert_eq!(of("1a 1b 2a 3a", "", 2), "2a 3a");
        assert_eq!(of("0a 0b 1a 2a 3a", "2a", 2), "2a 3a");
        assert_eq!(of("0b 2b 3a", "0b", 2), "0b 2b");
        // More rails count more than fewer NUMA nodes; what nobody knows is left out.
        assert_eq!(of("0a 0b 2a", "", 2), "0a 2a");
        assert_eq!(of("0a x", "", 2), "0a");
        assert_eq!(of("0a", "", -1), "");
    }

    #[test]
    fn a_container_is_told_its_devices_and_gets_their_files_once() {
        let all = listing(&[("0000:1a:00.2", 0, 0), ("0000:3c:00.2", 1, 0)]);
        let ids = all
            .devices
            .iter()
            .map(|one| one.device.clone())
            .collect::<Vec<_>>();
        let given = give(&all, "nvidia.com/rail-0", &ids).unwrap();
        assert_eq!(
            given.variables["PCIDEVICE_NVIDIA_COM_RAIL_0"],
            "0000:1a:00.2,0000:3c:00.2"
        );
        let files: Vec<_> = given
            .files
            .iter()
            .map(|file| file.on_host.as_str())
            .collect();
        assert_eq!(
            files,
            [
                "/dev/infiniband/0000:1a:00.2",
                "/dev/infiniband/0000:3c:00.2",
                "/dev/infiniband/rdma_cm"
            ]
        );
        assert!(give(&all, "nvidia.com/rail-0", &["0000:ff:00.0".to_owned()]).is_err());
    }

    #[test]
    fn a_device_is_healthy_while_its_link_is_there_and_add_accepts_it_or_a_pod_has_it() {
        let begun = Instant::now();
        let mut all = Resources::new("a.b/c", Path::new("/"), Duration::from_secs(60));
        let mut of = |state: &str, link: &str, is_vf: bool, second: u64| {
            let mut one = listing(&[("0a", 0, 0)]).devices.remove(0);
            (one.state, one.link, one.is_vf, one.pf) =
                (state.to_owned(), link.to_owned(), is_vf, link.to_owned());
            if second > 0 {
                one.pf = "same".to_owned();
            }
            all.device(&one, begun + Duration::from_secs(second)).health == kubelet::HEALTHY
        };
        for (state, link, is_vf, expected) in [
            ("free", "up", true, true),
            ("held", "up", true, true),
            ("refused", "up", true, false),
            ("free", "no-carrier", true, false),
            ("held", "in-pod", false, true),
            ("free", "down", false, true),
            ("free", "missing", true, false),
        ] {
            assert_eq!(
                of(state, link, is_vf, 0),
                expected,
                "{state} {link} {is_vf}"
            );
        }
        // A link that flaps is there until it stays away.
        let looks = [
            ("up", 1),
            ("no-carrier", 10),
            ("up", 20),
            ("no-carrier", 30),
            ("no-carrier", 80),
            ("no-carrier", 90),
        ];
        let told: Vec<_> = looks
            .iter()
            .map(|(link, second)| of("free", link, true, *second))
            .collect();
        assert_eq!(told, [true, true, true, true, true, false]);
    }

    #[test]
    fn the_name_of_a_resource_is_one_that_the_kubelet_takes() {
        for good in ["", "nvidia.com/rails", "example.com/rail-{rail}"] {
            assert_eq!(resource(good).as_deref(), Ok(good));
        }
        for bad in [
            "rails",
            "nvidia/rails",
            "nvidia.com/",
            "nvidia.com/a/b",
            "nvidia.com/{tier}",
            "nvidia.com/-a",
        ] {
            assert!(resource(bad).is_err(), "{bad}");
        }
    }
}
