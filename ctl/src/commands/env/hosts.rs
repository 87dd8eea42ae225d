//! The hostfile of a job: the DNS names of its pods, by the numbers that JobSet, LeaderWorkerSet, Indexed Job, StatefulSet and
//! the MPI operator give them. Nobody is asked, so a pod that is not there yet has its line.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::num::NonZeroU32;
use std::path::Path;

use anyhow::{Context as _, Result};

use rail_cni::failure;

/// The kubelet writes the pod's own name there.
const HOSTS: &str = "/etc/hosts";
/// How it begins in a pod with `hostNetwork: true`.
const OF_NODE: &str = "# Kubernetes-managed hosts file (host network)";
const LARGEST: u64 = 1 << 20;
/// A name in DNS, without the dots at its ends (RFC 1035).
const LONGEST_NAME: usize = 253;
/// A part of it between dots.
const LONGEST_LABEL: usize = 63;
/// More pods than a cluster has.
pub const MOST: u32 = 200_000;
// Variables of a pod of a LeaderWorkerSet.
const LEADER: &str = "LWS_LEADER_ADDRESS";
const SIZE: &str = "LWS_GROUP_SIZE";

/// What a pod knows of the others.
#[derive(Debug, Default)]
pub struct Known {
    /// The host name.
    host: String,
    /// What is in /etc/hosts.
    hosts: String,
    /// Those of LeaderWorkerSet.
    variables: BTreeMap<&'static str, String>,
}

impl Known {
    /// That of this pod.
    pub fn look() -> Result<Known> {
        let host = nix::unistd::gethostname().context("cannot read the host name")?;
        let mut hosts = Vec::new();
        let path = Path::new(HOSTS);
        let read = fs::File::open(path).and_then(|file| file.take(LARGEST).read_to_end(&mut hosts));
        read.with_context(|| format!("cannot read {HOSTS}"))?;
        let set = |name| Some((name, std::env::var(name).ok().filter(|value| !value.is_empty())?));
        Ok(Known {
            host: host.to_string_lossy().into_owned(),
            hosts: String::from_utf8_lossy(&hosts).into_owned(),
            variables: [LEADER, SIZE].into_iter().filter_map(set).collect(),
        })
    }

    /// The names of all pods of the job, in the order of their numbers. `count` is how many there are.
    pub fn names(&self, count: Option<NonZeroU32>) -> Result<Vec<String>> {
        let names = match self.variables.get(LEADER) {
            Some(leader) => self.of_group(leader, count)?,
            None => self.of_numbered(count)?,
        };
        match names.iter().find(|name| !is_name(name)) {
            Some(bad) => Err(failure!(InvalidConfig, "{bad:?} is not a name that DNS could have")),
            None => Ok(names),
        }
    }

    /// The leader of a LeaderWorkerSet has the name of the group, and a worker that name and a number.
    fn of_group(&self, leader: &str, count: Option<NonZeroU32>) -> Result<Vec<String>> {
        let size = self.variables.get(SIZE).and_then(|size| size.parse::<NonZeroU32>().ok());
        let Some(size) = size.filter(|size| size.get() <= MOST) else {
            return Err(failure!(InvalidConfig, "{LEADER} is set, and {SIZE} is not a number of pods"));
        };
        if count.is_some_and(|count| count != size) {
            return Err(failure!(InvalidConfig, "--hosts: the LeaderWorkerSet has {size} pods ({SIZE})"));
        }
        let Some((group, domain)) = leader.split_once('.') else {
            return Err(failure!(InvalidConfig, "{LEADER} has no domain: {leader:?}"));
        };
        let workers = (1..size.get()).map(|number| format!("{group}-{number}.{domain}"));
        Ok([leader.to_owned()].into_iter().chain(workers).collect())
    }

    /// All others count their pods from 0 at the end of the host name.
    fn of_numbered(&self, count: Option<NonZeroU32>) -> Result<Vec<String>> {
        let host = &self.host;
        let numbered =
            host.rsplit_once('-').and_then(|(job, number)| Some((job, number.parse::<u32>().ok()?)));
        let Some((job, own)) = numbered.filter(|(job, own)| format!("{job}-{own}") == *host) else {
            return Err(failure!(
                InvalidConfig,
                "the host name {host:?} does not end with the number of the pod, so those of the others are not known: use a \
                 JobSet, a LeaderWorkerSet, a StatefulSet, or a Job with `completionMode: Indexed` (a launcher of the MPI \
                 operator has /etc/mpi/hostfile)"
            ));
        };
        let Some(domain) = self.domain() else {
            return Err(failure!(
                InvalidConfig,
                "{HOSTS} has no domain for {host}, so DNS does not have the other pods: set `subdomain` in the pod's \
                 template to the name of a headless service"
            ));
        };
        let Some(count) = count else {
            return Err(failure!(
                InvalidConfig,
                "nothing in the pod says how many pods the job has: use --hosts"
            ));
        };
        if own >= count.get() {
            return Err(failure!(
                InvalidConfig,
                "--hosts {count}: this pod is {host}, and they count from 0"
            ));
        }
        Ok((0..count.get()).map(|number| format!("{job}-{number}.{domain}")).collect())
    }

    /// What follows the host name in the first full name that /etc/hosts has of it.
    fn domain(&self) -> Option<&str> {
        // Of a pod in the node's network it is the node's file, and so is the name.
        if self.hosts.starts_with(OF_NODE) {
            return None;
        }
        let lines = self.hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
        let mut names = lines.flat_map(|line| line.split_whitespace().skip(1));
        let full = names.find_map(|name| name.strip_prefix(&self.host)?.strip_prefix('.'))?;
        // A dot at the end means nothing else.
        Some(full.strip_suffix('.').unwrap_or(full)).filter(|domain| !domain.is_empty())
    }
}

/// The lines of Open MPI and DeepSpeed. Without slots, the launcher decides.
pub fn file(names: &[String], slots: Option<NonZeroU32>) -> String {
    let slots = slots.map(|slots| format!(" slots={slots}")).unwrap_or_default();
    names.iter().map(|name| format!("{name}{slots}\n")).collect()
}

/// Whether it is a name of letters, digits, dashes and dots.
fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=LONGEST_LABEL).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    name.len() <= LONGEST_NAME && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(host: &str, full: &str, variables: &[(&'static str, &str)]) -> Known {
        Known {
            host: host.to_owned(),
            hosts: format!(
                "# Kubernetes-managed\n127.0.0.1 localhost\n10.244.0.7\t{full}\t{host} # {host}.x\n"
            ),
            variables: variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
        }
    }

    fn count(number: u32) -> Option<NonZeroU32> {
        NonZeroU32::new(number)
    }

    #[test]
    fn each_controller_names_its_pods() {
        let of =
            |host: &str, domain: &str| known(host, &format!("{host}.{domain}"), &[]).names(count(2)).unwrap();
        let cluster = "default.svc.cluster.local";
        for (host, domain, base) in [
            ("train-workers-0-1", "train", "train-workers-0"),
            ("job-0", "job", "job"),
            ("web-1", "web-headless", "web"),
            ("train-worker-1", "train", "train-worker"),
        ] {
            // A kubelet without a cluster domain ends the name with a dot.
            assert_eq!(of(host, "a.b.svc."), of(host, "a.b.svc"));
            let expected = [0, 1].map(|number| format!("{base}-{number}.{domain}.{cluster}"));
            assert_eq!(of(host, &format!("{domain}.{cluster}")), expected);
        }
        let group = [(LEADER, "lws-0.lws.default"), (SIZE, "3")];
        // The names of workers are no numbers of one row, and their domain is the leader's.
        let worker = known("lws-0-2", "lws-0-2", &group);
        for asked in [None, count(3)] {
            let expected = ["lws-0.lws.default", "lws-0-1.lws.default", "lws-0-2.lws.default"];
            assert_eq!(worker.names(asked).unwrap(), expected);
        }
        assert!(worker.names(count(2)).is_err());
    }

    #[test]
    fn without_number_domain_or_count_there_are_no_names() {
        let good = ("job-1", "job-1.job.ns.svc");
        assert!(known(good.0, good.1, &[]).names(count(2)).is_ok());
        for (host, full, asked) in [
            (good.0, good.1, None),
            (good.0, good.1, count(1)),
            (good.0, good.0, count(2)),
            (good.0, "job-1.", count(2)),
            (good.0, "other-1.job.ns.svc", count(2)),
            ("job-01", "job-01.job.ns.svc", count(2)),
            ("job-+1", "job-+1.job.ns.svc", count(2)),
            ("launcher", "launcher.job.ns.svc", count(2)),
            ("-1", "-1.job.ns.svc", count(2)),
            ("job-1", "job-1.job slots=9", count(2)),
            ("job-1", "job-1.a;b", count(2)),
            ("job-1", "job-1.a..b", count(2)),
        ] {
            let names = known(host, full, &[]).names(asked);
            // A word ends the name; what follows it is another one.
            let is_cut = full.contains(' ') && names.as_ref().is_ok_and(|names| names[1] == "job-1.job");
            assert!(names.is_err() || is_cut, "{host} {full}: {names:?}");
        }
        let mut on_node = known(good.0, good.1, &[]);
        on_node.hosts.insert_str(0, "# Kubernetes-managed hosts file (host network).\n");
        assert!(on_node.names(count(2)).is_err());
        for variables in [
            vec![(LEADER, "lws-0.lws")],
            vec![(LEADER, "lws-0.lws"), (SIZE, "0")],
            vec![(LEADER, "lws-0.lws"), (SIZE, "4000000000")],
            vec![(LEADER, "lws-0"), (SIZE, "2")],
            vec![(LEADER, "lws 0.lws\nx"), (SIZE, "2")],
        ] {
            assert!(known("lws-0", "lws-0", &variables).names(None).is_err(), "{variables:?}");
        }
    }

    #[test]
    fn slots_are_left_out_where_nobody_says_them() {
        let names = ["a.b".to_owned(), "c.d".to_owned()];
        assert_eq!(file(&names, count(8)), "a.b slots=8\nc.d slots=8\n");
        assert_eq!(file(&names, None), "a.b\nc.d\n");
    }
}
