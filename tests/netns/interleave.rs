//! Two processes in every order: each is stopped at every system call, and the other one goes on
//! for a while. A model that knows who may have what judges how both ended, and what they left.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::ops::Range;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::harness::{self, Call, Host, Ran, Sleeper, pf_address, rail, sample, vf_address, with};
use crate::schedule::{self, Outcome, Schedule};
use crate::store::{self, Store};
use crate::trace;

/// The two calls that meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pair {
    /// Two pods want one device.
    AddAdd,
    /// A runtime calls ADD twice.
    AddTwice,
    /// Two pods with a VF each of one PF, and addresses of one pool.
    OnePool,
    /// A pod wants a PF, another one its VF.
    PfAndVf,
    AddDel,
    DelTwice,
    /// The next pod's ADD meets the DEL of the last.
    DelAdd,
    /// The last pod's device was taken out, and its DEL never came.
    ReapAdd,
    GcAdd,
    ReapGc,
    /// A driver that started anew took the device out of a pod that lives; the pod ends.
    ReattachDel,
    /// The same, and another pod wants the device.
    ReattachAdd,
    ReattachTwice,
    /// The plan changes while an address is leased.
    ImportAdd,
    ImportImport,
    PlanImport,
    /// The leases of a dead pod are released while another pod takes them over.
    ReleaseAdd,
}

use Pair::*;

const PAIRS: [Pair; 17] = [
    AddAdd,
    AddTwice,
    OnePool,
    PfAndVf,
    AddDel,
    DelTwice,
    DelAdd,
    ReapAdd,
    GcAdd,
    ReapGc,
    ReattachDel,
    ReattachAdd,
    ReattachTwice,
    ImportAdd,
    ImportImport,
    PlanImport,
    ReleaseAdd,
];

/// The environment of a schedule, before and after it.
enum World {
    Pods(Pods),
    Plans(Store),
}

/// A host with a PF and two VFs of it, and two pods.
struct Pods {
    host: Host,
    pods: [PathBuf; 2],
    before: Value,
}

const NAMES: [&str; 2] = ["c1", "c2"];

impl Pods {
    fn new(test: &str) -> Option<Pods> {
        let host = Host::new(test)?;
        host.set_node(json!({"policy": {"pfsWithVfs": true}}));
        host.add_rail(0);
        host.add_rail(1);
        host.plan("wide", "172.30.0.0/29", "172.30.0.1", &["172.30.0.0/15"]);
        host.make_vf(0, "mlx5_core");
        host.make_vf(1, "mlx5_core");
        // Both of one PF.
        let at = |path: &str| host.path("sys/devices").join(path);
        fs::remove_file(at(&format!("{}/physfn", vf_address(1)))).unwrap();
        symlink(
            format!("../{}", pf_address(0)),
            at(&format!("{}/physfn", vf_address(1))),
        )
        .unwrap();
        symlink(
            format!("../{}", vf_address(1)),
            at(&format!("{}/virtfn1", pf_address(0))),
        )
        .unwrap();
        fs::write(at(&format!("{}/sriov_numvfs", pf_address(0))), "2\n").unwrap();
        host.ip("link add pf0 mtu 9000 type veth peer name leaf-pf");
        host.ip("link property add dev vf0 altname enp1s0v0");
        let pods = [host.add_netns("c1"), host.add_netns("c2")];
        let mut world = Pods {
            host,
            pods,
            before: Value::Null,
        };
        world.call("ADD", 0, 0).run(&world.config(0)).ok();
        world.call("DEL", 0, 0).run(&world.config(0)).ok();
        world.before = world.state();
        Some(world)
    }

    /// Of VF `vf`; the second one is not of a rail.
    fn config(&self, vf: u8) -> Value {
        with(
            rail(vf),
            json!({"device": null, "deviceID": vf_address(vf), "cni.dev/valid-attachments": []}),
        )
    }

    fn call(&self, verb: &str, pod: usize, _vf: u8) -> Call {
        self.host.call(verb, NAMES[pod], &self.pods[pod])
    }

    fn links(&self, pod: usize) -> Vec<Value> {
        let links = self.host.json(Some(&self.pods[pod]), "addr show");
        let mut links = links.as_array().unwrap().clone();
        links.retain(|link| link["ifname"] != "lo");
        links
    }

    fn state(&self) -> Value {
        let rules = self.pods.each_ref().map(|pod| self.host.ip_in(pod, "rule"));
        json!({"host": self.host.snapshot(), "pods": [self.links(0), self.links(1)], "rules": rules})
    }

    /// The pod ended without a DEL, and the kernel returned its device. Another namespace has its
    /// path.
    fn take_out(&self) {
        self.host.hand_back(&self.pods[0], "net1");
        assert_eq!(self.host.add_netns(NAMES[0]), self.pods[0]);
    }

    /// The containers that are on record, which has to say what the kernel has and what is leased.
    fn attached(&self) -> Vec<String> {
        let records = self
            .host
            .records()
            .into_iter()
            .map(|file| fs::read_to_string(file).unwrap());
        let records: Vec<Value> = records
            .map(|text| serde_json::from_str(&text).unwrap())
            .collect();
        let leases = self
            .host
            .leases()
            .into_iter()
            .map(|file| fs::read_to_string(file).unwrap());
        let leases: Vec<Value> = leases
            .map(|text| serde_json::from_str(&text).unwrap())
            .collect();
        let given: BTreeSet<_> = leases
            .iter()
            .map(|lease| lease["address"].to_string())
            .collect();
        assert_eq!(given.len(), leases.len(), "an address twice: {leases:?}");
        let devices: BTreeSet<_> = records
            .iter()
            .map(|record| record["owner"]["device"]["id"].to_string())
            .collect();
        assert_eq!(devices.len(), records.len(), "a device twice: {records:?}");
        assert_eq!(leases.len(), records.len(), "{leases:?}, {records:?}");
        let mut attached = Vec::new();
        for record in &records {
            assert!(harness::is_attached(record), "{record}");
            let pod = NAMES
                .iter()
                .position(|name| record["owner"]["containerID"] == *name)
                .unwrap();
            let lease = leases
                .iter()
                .find(|lease| lease["containerID"] == NAMES[pod]);
            let lease = lease.unwrap_or_else(|| panic!("no lease of {record}: {leases:?}"));
            let links = self.links(pod);
            let link = links.iter().find(|link| link["ifname"] == "net1");
            let link = link.unwrap_or_else(|| panic!("not in its pod: {record}"));
            let addresses = link["addr_info"].as_array().unwrap();
            assert!(
                addresses.iter().any(|one| one["local"] == lease["address"]),
                "{link}, {lease}"
            );
            attached.push(NAMES[pod].to_owned());
        }
        for (pod, name) in NAMES.iter().enumerate() {
            let has = !self.links(pod).is_empty();
            assert_eq!(
                has,
                attached.iter().any(|one| one == name),
                "{name}: {:?}",
                self.links(pod)
            );
        }
        // An ADD does not wait for the lease of a dead pod whose end is under way.
        for file in self.host.pending() {
            let pending: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
            assert_eq!(harness::left(&pending), ["lease"], "{pending}");
        }
        attached
    }

    fn begin(&self, pair: Pair) {
        let is_lost = [ReattachDel, ReattachAdd, ReattachTwice].contains(&pair);
        let needs = [DelTwice, DelAdd, ReapAdd, GcAdd, ReapGc];
        if needs.contains(&pair) || is_lost {
            self.call("ADD", 0, 0).run(&self.config(0)).ok();
        }
        if is_lost {
            let process = Sleeper::new(None);
            let pid = process.pid();
            self.host
                .ip_in(&self.pods[0], &format!("link set net1 down netns {pid}"));
            self.host.ip("link set net1 name vf0");
        }
        if [ReapAdd, GcAdd, ReapGc].contains(&pair) {
            self.take_out();
        }
    }

    fn calls(&self, pair: Pair) -> [(Call, Value); 2] {
        let of = |verb: &str, pod, vf| (self.call(verb, pod, vf), self.config(vf));
        let reap = || (self.call("", 0, 0).args(&["reap"]), Value::Null);
        let reattach = || {
            let reap = self.call("", 0, 0).args(&["reap", "--reattach"]);
            (reap, Value::Null)
        };
        match pair {
            AddAdd => [of("ADD", 0, 0), of("ADD", 1, 0)],
            AddTwice => [of("ADD", 0, 0), of("ADD", 0, 0)],
            OnePool => [0, 1].map(|vf| {
                let more =
                    json!({"name": "wide", "rail": null, "ipam": {"type": "rail-ipam", "pool": "wide"}});
                (self.call("ADD", usize::from(vf), vf), with(self.config(vf), more))
            }),
            PfAndVf => {
                let of_pf = json!({"deviceID": pf_address(0), "name": "wide", "rail": null,
                    "ipam": {"type": "rail-ipam", "pool": "wide"}});
                [(self.call("ADD", 0, 0), with(self.config(0), of_pf)), of("ADD", 1, 0)]
            }
            AddDel => [of("ADD", 0, 0), of("DEL", 0, 0)],
            DelTwice => [of("DEL", 0, 0), of("DEL", 0, 0)],
            DelAdd => [of("DEL", 0, 0), of("ADD", 1, 0)],
            ReapAdd => [reap(), of("ADD", 1, 0)],
            GcAdd => [of("GC", 0, 0), of("ADD", 1, 0)],
            ReattachDel => [reattach(), of("DEL", 0, 0)],
            ReattachAdd => [reattach(), of("ADD", 1, 0)],
            ReattachTwice => [reattach(), reattach()],
            _ => [reap(), of("GC", 0, 0)],
        }
    }

    fn judge(&self, pair: Pair, outcome: &Outcome) {
        let attached = self.attached();
        let is_ok = outcome.ran.each_ref().map(|ran| ran.status == 0);
        let (won, count) = (is_ok.iter().filter(|ok| **ok).count(), attached.len());
        let has = |pod: usize| attached.iter().any(|one| one == NAMES[pod]);
        match pair {
            AddAdd => {
                assert_eq!((won, count), (1, 1));
                assert_eq!([has(0), has(1)], is_ok);
                let [winner, loser] = if is_ok[0] { [0, 1] } else { [1, 0] };
                let said = &outcome.ran[loser].stdout;
                let whose = format!("container {} ", NAMES[winner]);
                assert!(said.contains(&whose), "{whose}: {said}");
            }
            AddTwice => assert_eq!((won, count), (1, 1)),
            OnePool => assert_eq!((won, count), (2, 2)),
            PfAndVf => {
                assert_eq!([has(0), has(1)], is_ok);
                // The PF is refused if the VF is attached by then.
                assert!(is_ok[1], "{:?}", outcome.ran);
            }
            AddDel => {
                assert!(is_ok[1]);
                assert!(outcome.emptied_at[1] > 0, "the DEL noted no time");
                // An ADD that had begun when the DEL noted its time must not leave anything.
                let may_stay = outcome.begun_after[0] >= outcome.emptied_at[1];
                assert!(!has(0) || (is_ok[0] && may_stay));
            }
            DelTwice => assert_eq!((won, count), (2, 0)),
            DelAdd | ReapAdd | GcAdd => {
                // A step that the next pod's ADD could not undo a moment ago is reported, too. So
                // is a search whose time was over: it passes while the process is stopped.
                let told = ["not tried yet", "ended before every namespace was examined"];
                let is_late =
                    pair == ReapAdd && told.iter().any(|text| outcome.ran[0].stdout.contains(text));
                assert!(is_ok[0] || is_late, "the cleaner: {:?}", outcome.ran);
                assert!(!has(0), "the last pod");
                assert!(is_ok[1] && has(1), "the next pod: {:?}", outcome.ran);
            }
            ReattachDel => {
                assert!(is_ok[1], "{:?}", outcome.ran);
                assert_eq!(count, 0);
            }
            ReattachAdd => {
                assert_eq!(count, 1, "{:?}", outcome.ran);
                assert_eq!(is_ok[1], has(1), "{:?}", outcome.ran);
            }
            ReattachTwice => assert_eq!((won, count, has(0)), (2, 1, true)),
            _ => assert_eq!((won, count), (2, 0)),
        }
        // Each DEL gives back the pod's own device.
        for (pod, name) in NAMES.iter().enumerate() {
            let calls = self.calls(pair);
            let config = if pair == AddTwice || pod == 1 {
                &calls[1].1
            } else {
                &calls[0].1
            };
            let config = if config.is_null() {
                self.config(0)
            } else {
                config.clone()
            };
            self.host.cni("DEL", name, &self.pods[pod], &config).ok();
        }
        assert_eq!(self.state(), self.before);
    }
}

/// The plans of the store are 1 before, and 2 and 3 are written.
fn plans_begin(plans: &Store, pair: Pair) {
    plans.import(1, &["--force"]).ok();
    if pair == ReleaseAdd {
        // Its pod is gone: nobody but the file knows of the namespace.
        let dead = plans.host.add_netns("dead");
        let call = plans
            .call("ADD", "c1")
            .var("CNI_NETNS", dead.to_str().unwrap());
        call.run(&store::network()).ok();
        plans.host.delete_netns(&dead);
    }
}

fn plans_calls(plans: &Store, pair: Pair) -> [(Call, Value); 2] {
    let import = |number| (plans.importer(number, &[]), Value::Null);
    let add = || (plans.call("ADD", "c2"), store::network());
    let of_commands = |args: &[&str]| (plans.call("", "").args(args), Value::Null);
    match pair {
        ImportAdd => [import(2), add()],
        ImportImport => [import(2), import(3)],
        PlanImport => {
            let file = plans.manifests(2).display().to_string();
            let args = [
                "plan",
                &file,
                "--all-nodes",
                "--allow",
                "missing-rail",
                "--prune",
                "--to",
                "store",
            ];
            [of_commands(&args), import(3)]
        }
        _ => [of_commands(&["release", "--dead"]), add()],
    }
}

fn plans_judge(plans: &Store, pair: Pair, outcome: &Outcome) {
    let is_ok = outcome.ran.each_ref().map(|ran| ran.status == 0);
    let held: Vec<_> = plans
        .host
        .leases()
        .iter()
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    let held: Vec<Value> = held
        .iter()
        .map(|text| serde_json::from_str(text).unwrap())
        .collect();
    let now = plans.files();
    let is_ours = |lease: &Value| lease["containerID"] == "c2";
    if pair == ImportAdd || pair == ReleaseAdd {
        assert!(
            is_ok[1] && held.len() == 2 && held.iter().all(is_ours),
            "{held:?}"
        );
    }
    plans.call("DEL", "c2").run(&store::network()).ok();
    let is_plan = |number| {
        plans.import(number, &["--force"]).ok();
        plans.files() == now
    };
    match pair {
        ImportAdd => {
            // A plan that was written has the addresses that are held.
            let (old, new) = (is_plan(1), is_plan(2));
            assert!(old || new, "{now:?}");
            assert_eq!(is_ok[0], new);
            let number = if new { 2 } else { 1 };
            let has = |lease: &Value| {
                now.values()
                    .any(|text| text.contains(lease["address"].as_str().unwrap()))
            };
            assert!(held.iter().all(has), "plan {number}: {held:?}");
        }
        ImportImport | PlanImport => {
            // The last one's plan, whole.
            assert!(is_ok.iter().any(|ok| *ok));
            let is = [is_plan(2), is_plan(3)];
            assert!(is[0] || is[1], "a mixture: {now:?}");
            assert!((!is[0] || is_ok[0]) && (!is[1] || is_ok[1]));
        }
        _ => assert!(is_ok[0]),
    }
    assert!(plans.host.leases().is_empty());
}

impl World {
    fn new(test: &str, pair: Pair) -> Option<World> {
        match pair {
            ImportAdd | ImportImport | PlanImport | ReleaseAdd => {
                Store::new(test).map(World::Plans)
            }
            _ => Pods::new(test).map(World::Pods),
        }
    }

    /// Makes what a pair meets, and its two processes.
    fn begin(&self, pair: Pair) -> [(Call, Value); 2] {
        match self {
            World::Pods(pods) => {
                pods.begin(pair);
                pods.calls(pair)
            }
            World::Plans(plans) => {
                plans_begin(plans, pair);
                plans_calls(plans, pair)
            }
        }
    }

    fn judge(&self, pair: Pair, calls: &[(Call, Value); 2], outcome: &Outcome) {
        for ((call, _), ran) in calls.iter().zip(&outcome.ran) {
            is_clean(call.verb(), ran);
        }
        match self {
            World::Pods(pods) => pods.judge(pair, outcome),
            World::Plans(plans) => plans_judge(plans, pair, outcome),
        }
    }
}

/// A verb that fails answers with one error object, an ADD that succeeds with a result, and every
/// other verb with nothing. A command says something when it fails.
#[track_caller]
fn is_clean(verb: Option<&str>, ran: &Ran) {
    assert!(ran.status == 0 || ran.status == 1, "{ran:?}");
    assert!(!ran.stderr.contains("panicked"), "{ran:?}");
    match (verb, ran.status) {
        (None, 0) => (),
        (None, _) => assert!(!ran.stdout.is_empty() || !ran.stderr.is_empty(), "{ran:?}"),
        (Some("ADD"), 0) => {
            let result = ran.json();
            let addresses: Vec<&str> = result["ips"]
                .as_array()
                .unwrap()
                .iter()
                .map(|ip| ip["address"].as_str().unwrap())
                .collect();
            assert!(!addresses.is_empty(), "{ran:?}");
            for address in addresses {
                let (address, length) = address.split_once('/').unwrap();
                assert!(
                    address.parse::<IpAddr>().is_ok() && length.parse::<u8>().is_ok(),
                    "{ran:?}"
                );
            }
            assert_eq!(result["cniVersion"], "1.1.0", "{ran:?}");
        }
        (Some(_), 0) => assert_eq!(ran.stdout, "", "{ran:?}"),
        (Some(_), _) => {
            let error = ran.json();
            assert!(
                error["code"].as_u64().is_some_and(|code| code > 0),
                "{ran:?}"
            );
            assert!(
                error["msg"].as_str().is_some_and(|msg| !msg.is_empty()),
                "{ran:?}"
            );
            assert_eq!(error["cniVersion"], "1.1.0", "{ran:?}");
        }
    }
}

/// Numbers without a pattern, the same for the same seed: splitmix64.
fn random(seed: usize) -> usize {
    let mut number = (seed as u64)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    usize::try_from((number ^ (number >> 31)) >> 1).unwrap()
}

/// Schedule `number` of a pair whose processes make `lengths` calls where they do not meet.
fn schedule(number: usize, lengths: [usize; 2]) -> Schedule {
    let seed = |index| random(number * 4 + index);
    let first = seed(0) % 2;
    let at = |side: usize, index| 1 + seed(index) % lengths[side];
    Schedule {
        first,
        until: [at(first, 1), at(1 - first, 2)],
    }
}

/// The schedules of each pair: those of RAIL_INTERLEAVINGS, or else the first `few`, and with
/// `--nightly` the first of ten thousand in all. The variable has the number for all pairs, or a
/// range: 14000..50000 goes on where 14000 ended.
fn numbers(few: usize) -> Range<usize> {
    let each = |all: &str| all.parse::<usize>().unwrap().div_ceil(PAIRS.len());
    let is_nightly = std::env::var("RAIL_TEST_MODE").is_ok_and(|mode| mode == "nightly");
    let wanted = std::env::var("RAIL_INTERLEAVINGS").ok();
    match wanted
        .as_deref()
        .or(is_nightly.then_some("10000"))
        .map(|all| all.split_once("..").unwrap_or(("0", all)))
    {
        Some((from, to)) => each(from)..each(to),
        None => 0..few,
    }
}

/// Most of the time a process waits: for the other one to end, or for the kernel to remove a
/// namespace.
const WORKERS_PER_PROCESSOR: usize = 4;

/// The orders that occurred.
#[derive(Default)]
struct Seen {
    orders: BTreeSet<Vec<(usize, usize)>>,
    /// Of them, those with both switches of their schedule.
    whole: BTreeSet<Vec<(usize, usize)>>,
    /// Number of schedules with at least one of their switches.
    switched: usize,
    waited: usize,
}

impl Seen {
    fn note(&mut self, outcome: &Outcome) {
        let order = outcome.order();
        if outcome.went_as_planned() {
            self.whole.insert(order.clone());
        }
        self.orders.insert(order);
        self.switched += usize::from(outcome.has_switched());
        self.waited += usize::from(outcome.has_waited());
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, whole) = (self.orders.len(), self.whole.len());
        let Seen {
            switched, waited, ..
        } = self;
        write!(
            f,
            "{all} distinct orders, {whole} of them with both switches; "
        )?;
        write!(f, "{switched} had one at least, and in {waited} one waited")
    }
}

/// Tries schedules of a pair, on several hosts at once.
fn meet(pair: Pair, few: usize) {
    let test = &format!("interleave::{pair:?}");
    let Some(world) = World::new(test, pair) else {
        return;
    };
    if !trace::is_allowed(test) {
        return;
    }
    // The second one may do less, or wait and do more.
    let lengths = [0, 1].map(|first| {
        let calls = world.begin(pair);
        let whole = schedule::run(
            &calls,
            Schedule {
                first,
                until: [usize::MAX; 2],
            },
        );
        world.judge(pair, &calls, &whole);
        whole.calls[first]
    });
    drop(world);
    let only = std::env::var("RAIL_INTERLEAVING")
        .ok()
        .map(|text| text.parse::<usize>().unwrap());
    let numbers: Vec<usize> = only.map_or_else(|| sample(numbers(few)), |only| vec![only]);
    let (next, failures, seen) = (
        AtomicUsize::new(0),
        Mutex::new(Vec::new()),
        Mutex::new(Seen::default()),
    );
    let worker = || {
        let mut world = World::new(test, pair).unwrap();
        while let Some(number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            let schedule = schedule(number, lengths);
            let mut ended = String::new();
            let work = AssertUnwindSafe(|| {
                let calls = world.begin(pair);
                let outcome = schedule::run(&calls, schedule);
                ended = format!("{outcome:?}");
                seen.lock().unwrap().note(&outcome);
                world.judge(pair, &calls, &outcome);
            });
            if catch_unwind(work).is_err() {
                failures
                    .lock()
                    .unwrap()
                    .push(format!("{number}: {schedule:?}: {ended}"));
                world = World::new(test, pair).unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        for _ in 0..numbers.len().min(processors * WORKERS_PER_PROCESSOR) {
            scope.spawn(worker);
        }
    });
    let (seen, failures) = (seen.into_inner().unwrap(), failures.into_inner().unwrap());
    let all = numbers.len();
    println!("{pair:?}: {all} schedules of {lengths:?} calls: {seen}");
    assert!(
        failures.is_empty(),
        "{} of {all}:\n{}",
        failures.len(),
        failures.join("\n")
    );
    // The first switch nearly always comes. The second one does not if the other process has to
    // wait, or has nothing to do.
    assert!(
        seen.switched * 10 >= all * 9,
        "{pair:?}: of {all} schedules only {} had a switch",
        seen.switched
    );
    // Release and ADD have the one lock of the table for most of their calls.
    let is_excluded = pair == ReleaseAdd;
    let both = seen.whole.len();
    assert!(
        both * 10 >= all || is_excluded || only.is_some(),
        "{pair:?}: of {all} schedules only {both} had both switches"
    );
}

#[test]
fn of_two_adds_of_a_device_one_gets_it() {
    // The one that does not get it waits for three seconds.
    meet(AddAdd, 24);
    meet(AddTwice, 72);
}

#[test]
fn two_devices_with_one_pool_and_one_pf_go_to_two_pods() {
    meet(OnePool, 72);
}

#[test]
fn a_vf_is_attached_beside_an_add_of_its_pf() {
    meet(PfAndVf, 24);
}

#[test]
fn a_del_leaves_nothing_of_an_add_or_del_beside_it() {
    meet(AddDel, 72);
    meet(DelTwice, 72);
}

#[test]
fn the_next_pod_starts_beside_the_end_of_the_last() {
    meet(DelAdd, 72);
    meet(ReapAdd, 72);
    meet(GcAdd, 72);
    meet(ReapGc, 72);
}

#[test]
fn a_lost_rail_comes_back_beside_other_calls_or_not_at_all() {
    meet(ReattachDel, 72);
    meet(ReattachAdd, 48);
    meet(ReattachTwice, 48);
}

#[test]
fn a_plan_is_written_whole_beside_another_and_beside_an_add() {
    meet(ImportAdd, 72);
    meet(ImportImport, 72);
    meet(PlanImport, 72);
}

#[test]
fn leases_of_the_dead_are_released_beside_an_add_that_takes_them() {
    meet(ReleaseAdd, 72);
}
