//! The hostfile of a job: the DNS names of its pods, by the numbers that JobSet, LeaderWorkerSet,
//! Indexed Job, StatefulSet and the MPI operator give them. No server is asked, so pods that have
//! not started are listed too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::num::NonZeroU32;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, Result};

use rail_cni::failure;

/// The kubelet writes the pod's own name there.
const HOSTS: &str = "/etc/hosts";
/// Its beginning in a pod with `hostNetwork: true`.
const OF_NODE: &str = "# Kubernetes-managed hosts file (host network)";
const LARGEST: u64 = 1 << 20;
/// A name in DNS, without the dots at its ends (RFC 1035).
const LONGEST_NAME: usize = 253;
/// A part of it between dots.
const LONGEST_LABEL: usize = 63;
/// More pods than a cluster has.
const MOST: u32 = 200_000;
// Variables of a pod of a LeaderWorkerSet.
const LEADER: &str = "LWS_LEADER_ADDRESS";
const SIZE: &str = "LWS_GROUP_SIZE";

/// The number of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Count {
    /// In the pod's own Job, or what else numbers its pods in one row.
    Own(NonZeroU32),
    /// In the replicated jobs of a JobSet.
    JobSet(Vec<Replicated>),
}

/// A replicated job of a JobSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicated {
    name: String,
    jobs: NonZeroU32,
    pods: NonZeroU32,
}

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Count, String> {
        let replicated = |text: &str| {
            let (name, (jobs, pods)) = text
                .split_once('=')
                .and_then(|(name, of)| Some((name, of.split_once('x')?)))?;
            let (jobs, pods) = (jobs.parse().ok()?, pods.parse().ok()?);
            (is_name(name) && !name.contains('.')).then(|| Replicated {
                name: name.to_owned(),
                jobs,
                pods,
            })
        };
        let own = text.parse().map(Count::Own).ok();
        let count = own.or_else(|| {
            text.split(',')
                .map(replicated)
                .collect::<Option<_>>()
                .map(Count::JobSet)
        });
        let count = count.filter(|count| count.total().is_some_and(|total| total <= MOST));
        count.ok_or_else(|| {
            format!(
                "{text:?} is neither a number from 1 to {MOST}, nor NAME=JOBSxPODS,... of as many"
            )
        })
    }
}

impl Count {
    fn total(&self) -> Option<u32> {
        match self {
            Count::Own(count) => Some(count.get()),
            Count::JobSet(all) => all.iter().try_fold(0_u32, |total, one| {
                total.checked_add(one.jobs.get().checked_mul(one.pods.get())?)
            }),
        }
    }
}

/// A pod's knowledge of the others.
#[derive(Debug, Default)]
pub struct Known {
    /// The host name.
    host: String,
    /// The content of /etc/hosts.
    hosts: String,
    /// The variables of LeaderWorkerSet.
    variables: BTreeMap<&'static str, String>,
}

impl Known {
    /// Reads this pod's.
    pub fn look() -> Result<Known> {
        let host = nix::unistd::gethostname().context("cannot read the host name")?;
        let mut hosts = Vec::new();
        let path = Path::new(HOSTS);
        let read = fs::File::open(path).and_then(|file| file.take(LARGEST).read_to_end(&mut hosts));
        read.with_context(|| format!("cannot read {HOSTS}"))?;
        let set = |name| {
            Some((
                name,
                std::env::var(name).ok().filter(|value| !value.is_empty())?,
            ))
        };
        Ok(Known {
            host: host.to_string_lossy().into_owned(),
            hosts: String::from_utf8_lossy(&hosts).into_owned(),
            variables: [LEADER, SIZE].into_iter().filter_map(set).collect(),
        })
    }

    /// The names of all pods of the job, in the order of their numbers. `count` is how many there
    /// are.
    pub fn names(&self, count: Option<&Count>) -> Result<Vec<String>> {
        let names = match (self.variables.get(LEADER), count) {
            (Some(leader), _) => self.of_group(leader, count)?,
            (None, Some(Count::JobSet(jobs))) => self.of_job_set(jobs)?,
            (None, Some(Count::Own(count))) => self.of_numbered(Some(*count))?,
            (None, None) => self.of_numbered(None)?,
        };
        match names.iter().find(|name| !is_name(name)) {
            Some(bad) => Err(failure!(
                InvalidConfig,
                "{bad:?} is not a name that DNS could have"
            )),
            None => Ok(names),
        }
    }

    /// The leader of a LeaderWorkerSet has the name of the group, and a worker that name and a
    /// number.
    fn of_group(&self, leader: &str, count: Option<&Count>) -> Result<Vec<String>> {
        let size = self
            .variables
            .get(SIZE)
            .and_then(|size| size.parse::<NonZeroU32>().ok());
        let Some(size) = size.filter(|size| size.get() <= MOST) else {
            return Err(failure!(
                InvalidConfig,
                "{LEADER} is set, and {SIZE} is not a number of pods"
            ));
        };
        if count.is_some_and(|count| *count != Count::Own(size)) {
            return Err(failure!(
                InvalidConfig,
                "--hosts: the LeaderWorkerSet has {size} pods ({SIZE})"
            ));
        }
        let Some((group, domain)) = leader.split_once('.') else {
            return Err(failure!(
                InvalidConfig,
                "{LEADER} has no domain: {leader:?}"
            ));
        };
        let workers = (1..size.get()).map(|number| format!("{group}-{number}.{domain}"));
        Ok([leader.to_owned()].into_iter().chain(workers).collect())
    }

    /// All others count their pods from 0 at the end of the host name.
    fn of_numbered(&self, count: Option<NonZeroU32>) -> Result<Vec<String>> {
        let host = &self.host;
        let numbered = host
            .rsplit_once('-')
            .and_then(|(job, number)| Some((job, number.parse::<u32>().ok()?)));
        let Some((job, own)) = numbered.filter(|(job, own)| format!("{job}-{own}") == *host) else {
            return Err(failure!(
                InvalidConfig,
                "the host name {host:?} does not end with the number of the pod, so those of the others are not known: use a \
                 JobSet, a LeaderWorkerSet, a StatefulSet, or a Job with `completionMode: Indexed` (a launcher of the MPI \
                 operator has /etc/mpi/hostfile)"
            ));
        };
        let domain = self.domain()?;
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
        Ok((0..count.get())
            .map(|number| format!("{job}-{number}.{domain}"))
            .collect())
    }

    /// A JobSet names its pods JOBSET-NAME-JOB-POD.
    fn of_job_set(&self, jobs: &[Replicated]) -> Result<Vec<String>> {
        let domain = self.domain()?;
        let own = |job: &Replicated| {
            let (rest, pod) = self.host.rsplit_once('-')?;
            let (rest, number) = rest.rsplit_once('-')?;
            let is_below = |text: &str, most: NonZeroU32| {
                text.parse::<u32>()
                    .is_ok_and(|number| number < most.get() && number.to_string() == text)
            };
            let set = rest
                .strip_suffix(&job.name)?
                .strip_suffix('-')
                .filter(|set| !set.is_empty())?;
            (is_below(number, job.jobs) && is_below(pod, job.pods)).then_some(set)
        };
        let sets: BTreeSet<_> = jobs.iter().filter_map(own).collect();
        // By default, the service has the name of the JobSet.
        let is_named = |set: &&&str| domain.split('.').next() == Some(**set);
        let set = match sets.len() {
            1 => sets.first(),
            _ => sets.iter().find(is_named),
        };
        let Some(set) = set else {
            return Err(failure!(
                InvalidConfig,
                "--hosts: this pod is {}, which is none of the JobSet's: name its replicated jobs, and count Jobs and pods",
                self.host
            ));
        };
        let names = jobs.iter().flat_map(|job| {
            let Replicated { name, jobs, pods } = job;
            let all = (0..jobs.get()).flat_map(|job| (0..pods.get()).map(move |pod| (job, pod)));
            all.map(move |(job, pod)| format!("{set}-{name}-{job}-{pod}.{domain}"))
        });
        Ok(names.collect())
    }

    /// The domain of the pod's own name.
    fn domain(&self) -> Result<&str> {
        self.own_domain().ok_or_else(|| {
            failure!(
                InvalidConfig,
                "{HOSTS} has no domain for {}, so DNS does not have the other pods: set `subdomain` in the pod's \
                 template to the name of a headless service",
                self.host
            )
        })
    }

    /// The domain in the first full name that /etc/hosts has for the host name.
    fn own_domain(&self) -> Option<&str> {
        // Of a pod in the node's network it is the node's file, and so is the name.
        if self.hosts.starts_with(OF_NODE) {
            return None;
        }
        let lines = self
            .hosts
            .lines()
            .map(|line| line.split('#').next().unwrap_or_default());
        let mut names = lines.flat_map(|line| line.split_whitespace().skip(1));
        let full = names.find_map(|name| name.strip_prefix(&self.host)?.strip_prefix('.'))?;
        // A dot at the end means nothing else.
        Some(full.strip_suffix('.').unwrap_or(full)).filter(|domain| !domain.is_empty())
    }
}

/// The lines of Open MPI and DeepSpeed. Without slots, the launcher decides.
pub fn file(names: &[String], slots: Option<NonZeroU32>) -> String {
    let slots = slots
        .map(|slots| format!(" slots={slots}"))
        .unwrap_or_default();
    names
        .iter()
        .map(|name| format!("{name}{slots}\n"))
        .collect()
}

/// Whether it is a name of letters, digits, dashes and dots.
fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=LONGEST_LABEL).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
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
            variables: variables
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned()))
                .collect(),
        }
    }

    fn slots(number: u32) -> Option<NonZeroU32> {
        NonZeroU32::new(number)
    }

    fn names(known: &Known, count: u32) -> Result<Vec<String>> {
        known.names(slots(count).map(Count::Own).as_ref())
    }

    #[test]
    fn each_controller_names_its_pods() {
        let of = |host: &str, domain: &str| {
            names(&known(host, &format!("{host}.{domain}"), &[]), 2).unwrap()
        };
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
        for asked in [0, 3] {
            let expected = [
                "lws-0.lws.default",
                "lws-0-1.lws.default",
                "lws-0-2.lws.default",
            ];
            assert_eq!(names(&worker, asked).unwrap(), expected);
        }
        assert!(names(&worker, 2).is_err());
    }

    #[test]
    fn all_jobs_of_a_job_set_are_named_in_the_order_that_is_asked_for() {
        let of = |host: &str, service: &str, count: &str| {
            known(host, &format!("{host}.{service}.ns.svc"), &[])
                .names(Some(&count.parse().unwrap()))
        };
        let both = "leader=1x1,workers=2x2";
        for host in ["train-workers-1-0", "train-leader-0-0"] {
            let expected = [
                "leader-0-0",
                "workers-0-0",
                "workers-0-1",
                "workers-1-0",
                "workers-1-1",
            ];
            assert_eq!(
                of(host, "s", both).unwrap(),
                expected.map(|name| format!("train-{name}.s.ns.svc"))
            );
        }
        // Two JobSets could have this pod, and the service says which.
        assert_eq!(
            of("x-b-a-0-0", "x", "a=1x1,b-a=1x1").unwrap()[1],
            "x-b-a-0-0.x.ns.svc"
        );
        assert!(of("x-b-a-0-0", "s", "a=1x1,b-a=1x1").is_err());
        for host in [
            "train-workers-2-0",
            "train-workers-0-2",
            "train-other-0-0",
            "workers-0-0",
            "train-workers-00-0",
        ] {
            assert!(of(host, "s", both).is_err(), "{host}");
        }
        for bad in [
            "",
            "0",
            "a=1",
            "a=0x1",
            "a=1x1,",
            "=1x1",
            "a.b=1x1",
            "a=1000x201",
            "a=99999x99999",
            "200001",
        ] {
            assert!(bad.parse::<Count>().is_err(), "{bad}");
        }
        let group = [(LEADER, "lws-0.lws"), (SIZE, "2")];
        assert!(
            known("lws-0-1", "lws-0-1", &group)
                .names(Some(&both.parse().unwrap()))
                .is_err()
        );
    }

    #[test]
    fn without_number_domain_or_count_there_are_no_names() {
        let good = ("job-1", "job-1.job.ns.svc");
        assert!(names(&known(good.0, good.1, &[]), 2).is_ok());
        for (host, full, asked) in [
            (good.0, good.1, 0),
            (good.0, good.1, 1),
            (good.0, good.0, 2),
            (good.0, "job-1.", 2),
            (good.0, "other-1.job.ns.svc", 2),
            ("job-01", "job-01.job.ns.svc", 2),
            ("job-+1", "job-+1.job.ns.svc", 2),
            ("launcher", "launcher.job.ns.svc", 2),
            ("-1", "-1.job.ns.svc", 2),
            ("job-1", "job-1.job slots=9", 2),
            ("job-1", "job-1.a;b", 2),
            ("job-1", "job-1.a..b", 2),
        ] {
            let names = names(&known(host, full, &[]), asked);
            // A word ends the name; what follows it is another one.
            let is_cut =
                full.contains(' ') && names.as_ref().is_ok_and(|names| names[1] == "job-1.job");
            assert!(names.is_err() || is_cut, "{host} {full}: {names:?}");
        }
        let mut on_node = known(good.0, good.1, &[]);
        on_node
            .hosts
            .insert_str(0, "# Kubernetes-managed hosts file (host network).\n");
        assert!(names(&on_node, 2).is_err());
        for variables in [
            vec![(LEADER, "lws-0.lws")],
            vec![(LEADER, "lws-0.lws"), (SIZE, "0")],
            vec![(LEADER, "lws-0.lws"), (SIZE, "4000000000")],
            vec![(LEADER, "lws-0"), (SIZE, "2")],
            vec![(LEADER, "lws 0.lws\nx"), (SIZE, "2")],
        ] {
            assert!(
                known("lws-0", "lws-0", &variables).names(None).is_err(),
                "{variables:?}"
            );
        }
    }

    #[test]
    fn slots_are_left_out_where_nobody_says_them() {
        let names = ["a.b".to_owned(), "c.d".to_owned()];
        assert_eq!(file(&names, slots(8)), "a.b slots=8\nc.d slots=8\n");
        assert_eq!(file(&names, None), "a.b\nc.d\n");
    }
}
