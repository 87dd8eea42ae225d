//! A device plugin: offers the devices of the rails to the kubelet as resources of the Node, as the
//! SR-IOV device plugin does. `railctl devices` lists them, and whether ADD would accept each.

use std::cmp::Reverse;
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

/// Placeholder for the number of the rail in a resource's name.
const RAIL_PATTERN: &str = "{rail}";
/// Interval of the checks of both sockets, the kubelet's and the agent's, if inotify reports no
/// change. A starting kubelet removes all sockets and makes its own again.
const KUBELET_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a kubelet before the log has it. A kubelet that starts anew takes some seconds.
const KUBELET_PATIENCE: Duration = Duration::from_secs(10);
/// Pause before the second registration.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Time for one registration.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);

/// Parses `--resource`: the name of a resource, or a pattern for one resource per rail.
pub fn parse_resource(text: &str) -> Result<String, String> {
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
    /// The directory of the kubelet's socket.
    kubelet_dir: PathBuf,
    /// Time that a PF must have its link again before its devices are healthy.
    patience: Duration,
    /// The link of each PF.
    links: HashMap<String, Steady>,
    /// The devices of each resource that was ever offered.
    offered: BTreeMap<String, watch::Sender<Devices>>,
    /// The last output of `railctl devices`.
    listing: watch::Sender<Arc<Listing>>,
}

impl Resources {
    /// Resources without devices.
    pub fn new(
        pattern: &str,
        plugins_dir: &Path,
        kubelet_root_dir: &Path,
        patience: Duration,
    ) -> Resources {
        Resources {
            pattern: pattern.to_owned(),
            railctl: plugins_dir.join(RAILCTL),
            kubelet_dir: kubelet_root_dir.join(kubelet::PLUGINS),
            patience,
            links: HashMap::new(),
            offered: BTreeMap::new(),
            listing: watch::Sender::default(),
        }
    }

    /// Offers these devices. A resource whose last device is gone stays, with none.
    pub fn offer(&mut self, listing: Listing) -> Result<()> {
        let mut wanted: BTreeMap<String, Devices> = self
            .offered
            .keys()
            .map(|resource| (resource.clone(), Devices::default()))
            .collect();
        for listed in &listing.devices {
            let device = self.device(listed, Instant::now());
            let resource = self.pattern.replace(RAIL_PATTERN, &listed.rail.to_string());
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
                    let plugin = Plugin {
                        host: Host::open()?,
                        railctl: self.railctl.clone(),
                        kubelet_dir: self.kubelet_dir.clone(),
                        resource: resource.clone(),
                        listing: self.listing.subscribe(),
                        devices: receiver,
                    };
                    tokio::spawn(Arc::new(plugin).keep_offering());
                    self.offered.insert(resource, sender);
                }
            }
        }
        Ok(())
    }

    /// The device as the kubelet sees it. A device in a pod stays healthy: health decides about new
    /// pods.
    fn device(&mut self, listed: &Listed, now: Instant) -> Device {
        let has_link = match listed.link.as_str() {
            "up" | "in-pod" | "userspace" => true,
            // ADD brings up a PF that is attached itself.
            "down" => !listed.is_vf,
            _ => false,
        };
        let steady = self.links.entry(listed.pf.clone()).or_default();
        let steady_link = steady.look(has_link, now, self.patience);
        let is_healthy = steady_link.unwrap_or(has_link) && listed.state != "refused";
        let health = if is_healthy {
            kubelet::HEALTHY
        } else {
            kubelet::UNHEALTHY
        };
        let topology = listed.numa_node.map(|id| Topology {
            nodes: vec![NumaNode { id: id.into() }],
        });
        Device {
            id: listed.device.clone(),
            health: health.to_owned(),
            topology,
        }
    }
}

/// The outcome of an offer.
enum Offered {
    /// A kubelet took the devices, and has ended.
    UntilItsEnd,
    /// There is no kubelet.
    ToNobody,
}

/// The device plugin of one resource.
#[derive(Debug)]
struct Plugin {
    host: Host,
    railctl: PathBuf,
    kubelet_dir: PathBuf,
    resource: String,
    devices: watch::Receiver<Devices>,
    listing: watch::Receiver<Arc<Listing>>,
}

impl Plugin {
    async fn keep_offering(self: Arc<Plugin>) {
        let mut last_problem = None;
        let mut absent_since = Instant::now();
        loop {
            let offered = self.offer().await;
            if !matches!(offered, Ok(Offered::ToNobody)) {
                absent_since = Instant::now();
            }
            let is_error = offered.is_err();
            let problem = match offered {
                Err(error) => Some(error_text(&error)),
                Ok(Offered::ToNobody) if absent_since.elapsed() > KUBELET_PATIENCE => {
                    Some(self.without_kubelet())
                }
                Ok(_) => None,
            };
            if let Some(problem) = &problem
                && last_problem.as_ref() != Some(problem)
            {
                log(
                    "warn",
                    &format!("the resource {} is not offered: {problem}", self.resource),
                );
            }
            if is_error {
                // A kubelet makes its socket shortly before it listens.
                let delay = if last_problem.is_none() {
                    FIRST_RETRY_DELAY
                } else {
                    KUBELET_CHECK_INTERVAL
                };
                tokio::time::sleep(delay).await;
            }
            last_problem = problem;
        }
    }

    fn without_kubelet(&self) -> String {
        format!(
            "there is no {} on the host: does kubelet run, and is its --root-dir the agent's --kubelet-root-dir?",
            self.kubelet_dir.join(kubelet::KUBELET_SOCKET).display()
        )
    }

    /// Offers the resource to the present kubelet until that ends. Returns after a while if there is
    /// none.
    async fn offer(self: &Arc<Plugin>) -> Result<Offered> {
        let Some(dir) = self.host.dir(&self.kubelet_dir)? else {
            tokio::time::sleep(KUBELET_CHECK_INTERVAL).await;
            return Ok(Offered::ToNobody);
        };
        let changes = Changes::open(&dir);
        let Some(kubelet_socket) = socket_identity(&dir) else {
            changes.wait().await;
            return Ok(Offered::ToNobody);
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
        let path = dir.at(kubelet::KUBELET_SOCKET);
        let registered = kubelet::register(&path, &socket, &self.resource);
        tokio::time::timeout(REGISTER_TIMEOUT, registered)
            .await
            .context("the kubelet did not answer")??;
        log(
            "info",
            &format!("the kubelet has the resource {}", self.resource),
        );
        while dir.is_linked()
            && dir.at(&socket).exists()
            && socket_identity(&dir) == Some(kubelet_socket)
        {
            changes.wait().await;
        }
        Ok(Offered::UntilItsEnd)
    }

    async fn accept(self: Arc<Plugin>, listener: UnixListener) {
        let mut open = JoinSet::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // For example, no free file descriptor.
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
                let listing = self.list_again().await;
                let mut all_given = Vec::new();
                for ids in &containers {
                    match give(&listing, &self.resource, ids) {
                        Ok(given) => all_given.push(given),
                        Err(why) => {
                            let resource = &self.resource;
                            log(
                                "warn",
                                &format!("the kubelet is refused devices of {resource}: {why}"),
                            );
                            return Answer::Refused(why);
                        }
                    }
                }
                Answer::Given(all_given)
            }
        }
    }

    /// The devices with their present files: those of a device change when it returns from a pod.
    /// The last listing if railctl fails.
    async fn list_again(&self) -> Arc<Listing> {
        let arguments = ["devices", "--output", "json"];
        if let Ok(output) = self.host.run(&self.railctl, &arguments, b"").await
            && let Ok(listing) = serde_json::from_str(&output.stdout)
        {
            return Arc::new(listing);
        }
        self.listing.borrow().clone()
    }
}

/// Changes in the kubelet's directory, by inotify: a pod that starts with a new kubelet fails for
/// good if its devices are offered too late. Tokio reads the inotify file as a pipe.
struct Changes(Option<pipe::Receiver>);

impl Changes {
    /// Watches the directory. Without a free inotify watch, [`Changes::wait`] only waits.
    fn open(dir: &HostDir) -> Changes {
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

    /// Waits for the next change, for at most [`KUBELET_CHECK_INTERVAL`].
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

/// Inode and ctime of the kubelet's socket, which differ from those of the next kubelet: an inode
/// number alone may be reused.
fn socket_identity(dir: &HostDir) -> Option<(u64, i64, i64)> {
    let metadata = dir.at(kubelet::KUBELET_SOCKET).symlink_metadata().ok()?;
    Some((metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

/// The devices that a container should get: as many rails as possible, on few NUMA nodes.
fn preferred(listing: &Listing, choice: &Choice) -> Vec<String> {
    let size = usize::try_from(choice.size).unwrap_or_default();
    let required = find_all(listing, &choice.must_include);
    let free = find_all(listing, &choice.available);
    let numa_nodes: BTreeSet<Option<u32>> = free.iter().map(|device| device.numa_node).collect();
    // One candidate for each NUMA node to begin with.
    let mut candidates = Vec::new();
    for first_node in numa_nodes {
        candidates.push(fill(required.clone(), &free, size, first_node));
    }
    let best = candidates
        .into_iter()
        .min_by_key(|devices| rank(devices))
        .unwrap_or(required);
    best.iter().map(|device| device.device.clone()).collect()
}

/// The rank of a set of devices, the best first: most rails, then fewest NUMA nodes.
fn rank(devices: &[&Listed]) -> (Reverse<usize>, usize) {
    let rails: BTreeSet<u8> = devices.iter().map(|device| device.rail).collect();
    let numa_nodes: BTreeSet<Option<u32>> = devices.iter().map(|device| device.numa_node).collect();
    (Reverse(rails.len()), numa_nodes.len())
}

/// The listed devices among `ids`.
fn find_all<'a>(listing: &'a Listing, ids: &[String]) -> Vec<&'a Listed> {
    ids.iter().filter_map(|id| listing.find(id)).collect()
}

/// Fills the set up with free devices: rails and PFs that it lacks first, then those near its NUMA
/// nodes or `first_node`.
fn fill<'a>(
    mut set: Vec<&'a Listed>,
    free: &[&'a Listed],
    size: usize,
    first_node: Option<u32>,
) -> Vec<&'a Listed> {
    while set.len() < size {
        let rank = |device: &Listed| {
            let rails = set.iter().filter(|other| other.rail == device.rail);
            let pfs = set.iter().filter(|other| other.pf == device.pf);
            let is_near = device.numa_node == first_node
                || set.iter().any(|other| other.numa_node == device.numa_node);
            let id = device.device.clone();
            (rails.count(), pfs.count(), !is_near, device.rail, id)
        };
        let next = free
            .iter()
            .filter(|device| set.iter().all(|other| other.device != device.device))
            .min_by_key(|device| rank(device));
        let Some(next) = next else {
            break;
        };
        set.push(next);
    }
    set
}

/// Variables and files for a container with these devices. Fails if the node does not offer one of
/// them.
fn give(listing: &Listing, resource: &str, ids: &[String]) -> Result<Given, String> {
    let mut paths = BTreeSet::new();
    for id in ids {
        let Some(device) = listing.find(id) else {
            return Err(format!(
                "this node hands out no device {id}: `railctl devices`"
            ));
        };
        paths.extend(&device.files);
    }
    let mut files = Vec::new();
    for path in paths {
        files.push(DeviceFile {
            in_container: path.clone(),
            on_host: path.clone(),
            permissions: "rw".to_owned(),
        });
    }
    Ok(Given {
        variables: BTreeMap::from([(variable(resource), ids.join(","))]),
        files,
    })
}

/// The variable with a container's devices, named as by the SR-IOV device plugin:
/// `PCIDEVICE_NVIDIA_COM_RAIL_0`.
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
            let changes = Changes::open(&HostDir::here(temp.path()));
            let socket = temp.path().join(kubelet::KUBELET_SOCKET);
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
        // More rails count more than fewer NUMA nodes; unknown devices are left out.
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
        let mut all = Resources::new(
            "a.b/c",
            Path::new("/"),
            Path::new("/"),
            Duration::from_secs(60),
        );
        let mut of = |state: &str, link: &str, is_vf: bool, second: u64| {
            let mut device = listing(&[("0a", 0, 0)]).devices.remove(0);
            device.state = state.to_owned();
            device.link = link.to_owned();
            device.is_vf = is_vf;
            let pf = if second > 0 { "same" } else { link };
            device.pf = pf.to_owned();
            all.device(&device, begun + Duration::from_secs(second))
                .health
                == kubelet::HEALTHY
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
        // A link that flaps is away until it stays.
        let looks = [
            ("up", 1),
            ("no-carrier", 10),
            ("up", 20),
            ("no-carrier", 30),
            ("up", 40),
            ("up", 99),
            ("up", 100),
        ];
        let told: Vec<_> = looks
            .iter()
            .map(|(link, second)| of("free", link, true, *second))
            .collect();
        assert_eq!(told, [true, false, false, false, false, false, true]);
    }

    #[test]
    fn the_name_of_a_resource_is_one_that_the_kubelet_takes() {
        for good in ["", "nvidia.com/rails", "example.com/rail-{rail}"] {
            assert_eq!(parse_resource(good).as_deref(), Ok(good));
        }
        for bad in [
            "rails",
            "nvidia/rails",
            "nvidia.com/",
            "nvidia.com/a/b",
            "nvidia.com/{tier}",
            "nvidia.com/-a",
        ] {
            assert!(parse_resource(bad).is_err(), "{bad}");
        }
    }
}
