//! tests/contract-items, item 51: a plugin that is killed at any moment leaves what the next call
//! puts right. ADD and DEL are killed before each of their system calls, those of the pod thread
//! and of rail-ipam included.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::harness::{self, Call, Host, Sleeper, rail, sample, vf_address, with};
use crate::host_address;
use crate::trace::{self, Traced};

/// `railctl reap --reattach`, as a verb of the sweep.
const REATTACH: &str = "REATTACH";

/// A host with one VF and two pods, and everything that there was before the first call.
pub struct Bench {
    pub host: Host,
    /// Whether the addresses are the host's.
    is_of_host: bool,
    /// The namespaces of c1 and c2.
    pub pods: [PathBuf; 2],
    pub config: Value,
    /// Files with the ToS and with the traffic class.
    qos: [PathBuf; 2],
    /// The state before the first call.
    pub before: Value,
}

impl Bench {
    /// The device has an altname that the pod has no room for, and nothing is left at its default.
    pub fn new(test: &str, is_of_host: bool) -> Option<Bench> {
        let host = Host::new(test)?;
        host.add_rail(0);
        host.plan("rail-0-v6", "fd00:10::/127", "fd00:10::1", &["fd00::/16"]);
        host.make_vf(0, "mlx5_core");
        let rdma = host.path(&format!("sys/devices/{}/infiniband/mlx5_4", vf_address(0)));
        let tos = host.path("sys/kernel/config/rdma_cm/mlx5_4/ports/1/default_roce_tos");
        let files = [
            (rdma.join("node_type"), "1: CA"),
            (rdma.join("ports/1/link_layer"), "Ethernet"),
        ];
        let qos = [(tos, "104"), (rdma.join("tc/1/traffic_class"), "106")];
        for (file, text) in files.iter().chain(&qos) {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let qos = qos.map(|(file, _)| file);
        host.ip("link property add dev vf0 altname enp1s0v0");
        host.ip("link property add dev vf0 altname net1");
        let more = json!({
            "device": "", "deviceID": vf_address(0), "mac": "02:00:00:00:00:77",
            "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"},
            "routes": [{"dst": "10.9.0.0/16"}],
            "ipam": {"type": "rail-ipam", "pool": "rail-0,rail-0-v6"},
            "gid": "off", "rdmaQoS": {"tos": 96, "tc": 96},
            "runtimeConfig": {"CNIDeviceInfoFile": host.path("devinfo/info")},
        });
        let mut config = with(rail(0), more);
        if is_of_host {
            host.set_node(json!({"policy": {"hostAddresses": true}}));
            host_address::set_up(&host);
            config["ipam"] = host_address::config()["ipam"].clone();
        }
        let pods = [host.add_netns("c1"), host.add_netns("c2")];
        // The index changes on the way, and cannot tell what the device is.
        let index = &host.json(None, "link show vf0")[0]["ifindex"];
        let peer = pods[1].display();
        host.ip_in(
            &pods[0],
            &format!("link add other index {index} type veth peer name other netns {peer}"),
        );
        // The call that is swept is not the first ever: the folders are there.
        let mut bench = Bench {
            host,
            is_of_host,
            pods,
            config,
            qos,
            before: Value::Null,
        };
        bench.call("ADD", 0).ok();
        bench.call("DEL", 0).ok();
        bench.before = bench.state();
        Some(bench)
    }

    pub fn call(&self, verb: &str, pod: usize) -> crate::harness::Ran {
        self.host
            .cni(verb, ["c1", "c2"][pod], &self.pods[pod], &self.config)
    }

    fn killed(&self, verb: &str, victim: Option<usize>) -> Traced {
        let call = match verb {
            REATTACH => self.reattaching(),
            _ => self.host.call(verb, "c1", &self.pods[0]),
        };
        trace::run(&call, &self.config, |point| Some(point.count) == victim)
    }

    fn reattaching(&self) -> Call {
        let call = self.host.call("ADD", "c1", &self.pods[0]);
        call.without("CNI_COMMAND")
            .program(harness::railctl())
            .args(&["reap", "--reattach"])
    }

    /// The driver of the device started anew, under a pod that lives.
    fn lose(&self) {
        let process = Sleeper::new(None);
        let pid = process.pid();
        self.host
            .ip_in(&self.pods[0], &format!("link set net1 down netns {pid}"));
        self.host.ip("link set net1 name vf0");
    }

    /// Of the host, of the pods, and of the folders.
    pub fn state(&self) -> Value {
        let pods = self.pods.iter().map(|pod| {
            let show = |what| self.host.ip_in(pod, what);
            // Without IPv6's own, which come and go with its duplicate detection.
            json!([
                show("-br link"),
                show("-4 route show table all"),
                show("rule"),
                show("-6 rule")
            ])
        });
        let devinfo: Vec<_> = fs::read_dir(self.host.path("devinfo"))
            .into_iter()
            .flatten()
            .flatten()
            .collect();
        let mut host = self.host.snapshot();
        if self.is_of_host {
            host_address::without_link_local(&mut host);
            host["of vf0"] = host_address::of_host(&self.host);
        }
        json!({
            "host": host, "pods": pods.collect::<Vec<_>>(),
            "devinfo": devinfo.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>(),
            "qos": self.qos.each_ref().map(|file| fs::read_to_string(file).unwrap().lines().next().unwrap().to_owned()),
            "locked": locked(&self.host.path("run")),
        })
    }

    #[track_caller]
    fn is_as_before(&self, traced: &Traced) {
        // Why something is owed is in the file of the debt.
        let debts = fs::read_dir(self.host.path("run/pending"))
            .into_iter()
            .flatten()
            .flatten();
        let debts: Vec<_> = debts.map(|file| fs::read_to_string(file.path())).collect();
        assert_eq!(
            self.state(),
            self.before,
            "after {:?}: {debts:?}",
            traced.killed
        );
    }

    /// Is the attachment whole, by its record and by what the pod has? Then only its answer was
    /// lost.
    fn is_attached(&self) -> bool {
        let record = self
            .host
            .records()
            .first()
            .map(|path| fs::read_to_string(path).unwrap());
        let record = record.and_then(|record| serde_json::from_str(&record).ok());
        record.is_some_and(|record| harness::is_attached(&record))
            && self.host.ip_in(&self.pods[0], "link").contains("net1")
    }
}

/// Lock files that somebody holds.
fn locked(dir: &Path) -> Vec<PathBuf> {
    let mut held = Vec::new();
    for path in fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
    {
        let is_lock = dir.ends_with("locks") || path.ends_with("lock");
        if path.is_dir() {
            held.append(&mut locked(&path));
        } else if is_lock && fs4::FileExt::try_lock_shared(&fs::File::open(&path).unwrap()).is_err()
        {
            held.push(path);
        }
    }
    held
}

/// Kills `verb` before each of its system calls, on as many hosts at once as there are processors.
fn sweep(test: &str, verb: &str, is_of_host: bool) {
    let Some(bench) = Bench::new(test, is_of_host) else {
        return;
    };
    if !trace::is_allowed(test) {
        return;
    }
    begin(&bench, verb);
    let whole = bench.killed(verb, None);
    assert_eq!(whole.ran.status, 0, "{whole:?}");
    drop(bench);
    // The number of the plugin's looks for its IPAM's answer varies a little.
    let last = whole.calls + 5;
    // With the host's addresses the link is up, and ADD looks into the namespaces of all processes.
    let is_nightly = std::env::var("RAIL_TEST_MODE").is_ok_and(|mode| mode == "nightly");
    let step = if is_of_host && !is_nightly { 3 } else { 1 };
    let victims = sample((1..=last).step_by(step));
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let (hits, fewest) = (Mutex::new(Vec::new()), AtomicUsize::new(whole.calls));
    let worker = || {
        let mut bench = Bench::new(test, is_of_host).unwrap();
        while let Some(victim) = victims.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            let work = AssertUnwindSafe(|| {
                begin(&bench, verb);
                let traced = bench.killed(verb, Some(victim));
                println!("{verb} {victim}/{last}: {:?}", traced.killed);
                if traced.killed.is_some() {
                    hits.lock().unwrap().push(victim);
                } else {
                    fewest.fetch_min(traced.calls, Ordering::Relaxed);
                }
                aftermath(&bench, verb, &traced, victim);
            });
            if catch_unwind(work).is_err() {
                failures.lock().unwrap().push(victim);
                bench = Bench::new(test, is_of_host).unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(worker);
        }
    });
    let (hits, failures, fewest) = (
        hits.into_inner().unwrap(),
        failures.into_inner().unwrap(),
        fewest.into_inner(),
    );
    println!(
        "{verb}: {} system calls, killed before {} of {} of them",
        whole.calls,
        hits.len(),
        victims.len()
    );
    assert!(
        failures.is_empty(),
        "killed before the calls {failures:?} of {verb}: see above"
    );
    // Other steps of scripts/test run processes, and later fewer than at first. What every run
    // reaches was killed.
    let within = |victims: &[usize]| victims.iter().filter(|victim| **victim <= fewest).count();
    let (hit, all) = (within(&hits), within(&victims));
    assert!(
        all > 0 && hit * 10 >= all * 9,
        "only {hit} of {all} kills of {verb} came about"
    );
}

fn begin(bench: &Bench, verb: &str) {
    if verb != "ADD" {
        bench.call("ADD", 0).ok();
    }
    if verb == REATTACH {
        bench.lose();
    }
}

/// DEL twice, then a whole life of the same attachment. The sweep of DEL begins each round with an
/// ADD anyway.
fn del_and_add_again(bench: &Bench, verb: &str, traced: &Traced) {
    bench.call("DEL", 0).ok();
    bench.is_as_before(traced);
    bench.call("DEL", 0).ok();
    if verb == "ADD" {
        bench.call("ADD", 0).ok();
        bench.call("DEL", 0).ok();
    }
    bench.is_as_before(traced);
}

/// No DEL came: the next ADD puts right what is there, unless the pod still has the device.
fn add_heals(bench: &Bench, traced: &Traced, pod: usize, refused: u32) {
    let is_attached = bench.is_attached();
    let added = bench.call("ADD", pod);
    if added.status != 0 {
        added.error(refused);
        assert!(is_attached, "after {:?}: {added:?}", traced.killed);
    }
    bench.call("DEL", pod).ok();
    bench.call("DEL", 0).ok();
    bench.is_as_before(traced);
}

/// The calls after each kill, and more after every fifth.
fn aftermath(bench: &Bench, verb: &str, traced: &Traced, victim: usize) {
    if verb == REATTACH {
        return reattach_and_end(bench, traced, victim);
    }
    del_and_add_again(bench, verb, traced);
    if victim % 5 == 0 {
        for (pod, refused) in [(0, 7), (1, 11)] {
            begin(bench, verb);
            add_heals(bench, &bench.killed(verb, Some(victim)), pod, refused);
        }
    }
}

/// The next try completes what was begun, and DEL ends it, however far it is.
fn reattach_and_end(bench: &Bench, traced: &Traced, victim: usize) {
    if victim % 2 == 0 {
        bench.reattaching().run(&bench.config).ok();
        assert!(bench.is_attached(), "after {:?}", traced.killed);
        let rules = bench.host.ip_in(&bench.pods[0], "rule");
        assert!(
            rules.contains("from 172.16.0.0"),
            "after {:?}",
            traced.killed
        );
    }
    bench.call("DEL", 0).ok();
    bench.is_as_before(traced);
}

#[test]
fn what_a_reattachment_killed_at_any_call_left_is_put_right() {
    sweep("killsweep::reattach", REATTACH, false);
}

/// tests/contract-items, items 51, 123.
#[test]
fn what_an_add_killed_at_any_call_left_is_put_right() {
    sweep("killsweep::add", "ADD", false);
}

#[test]
fn what_a_del_killed_at_any_call_left_is_put_right() {
    sweep("killsweep::del", "DEL", false);
}

#[test]
fn what_an_add_with_addresses_of_the_host_left_is_put_right() {
    sweep("killsweep::host_add", "ADD", true);
}

#[test]
fn what_a_del_with_addresses_of_the_host_left_is_put_right() {
    sweep("killsweep::host_del", "DEL", true);
}
