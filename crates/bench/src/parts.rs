//! The parts of the page: what is measured for each.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::Api;
use crate::bed::{self, Bed, DIR, Tools, ip_batch, routes};
use crate::contender::{Contender, Subject, Way, by_multus};
use crate::run::{Counts, Lens, NOTHING, Process, Runner, timed};
use crate::samples::{Counted, Key, Sample};

/// A part of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// One rail by all contenders and callers, and what their calls do.
    One,
    /// Eight rails of a pod, in turn and at once, and what the calls do.
    Eight,
    /// An ADD with gatewayProbe off and require.
    Probe,
    /// VERSION and STATUS.
    Short,
    /// Rails of a pod, 1 to 16.
    Rails,
    /// Pods that start at once, 1 to 32.
    Pods,
    /// Routes of a rail, 1 to 256.
    Routes,
    /// Leases in a pool, 0 to 5,000.
    Leases,
    /// Nodes in the plan, 1 to 1,000,000.
    Nodes,
    /// Netdevs of the host, 10 to 5,000.
    Netdevs,
    /// Other pods on the node, 0 and 64, with their processes, links and mounts.
    Crowd,
    /// Queues of the device, 1 to 64.
    Queues,
    /// VFs of a PF, 1 to 127: where there is netdevsim, as in the lab.
    Vfs,
}

/// All results.
#[derive(Debug, Default)]
pub struct Results {
    pub samples: Vec<Sample>,
    pub counted: Vec<Counted>,
    pub left_out: Vec<LeftOut>,
}

/// A missing measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    pub part: String,
    pub what: String,
    pub reason: String,
}

/// Number and order of the calls.
#[derive(Debug)]
pub struct Plan {
    pub rounds: usize,
    pub random: fastrand::Rng,
}

impl Part {
    pub fn name(self) -> &'static str {
        match self {
            Part::One => "one",
            Part::Eight => "eight",
            Part::Probe => "probe",
            Part::Short => "short",
            Part::Rails => "rails",
            Part::Pods => "pods",
            Part::Routes => "routes",
            Part::Leases => "leases",
            Part::Nodes => "nodes",
            Part::Netdevs => "netdevs",
            Part::Crowd => "crowd",
            Part::Queues => "queues",
            Part::Vfs => "vfs",
        }
    }

    pub fn measure(
        self,
        tools: &Tools,
        plan: &mut Plan,
        results: &mut Results,
    ) -> Result<(), String> {
        match self {
            Part::One => bed::inside(tools, |bed| one(bed, plan, results)),
            Part::Eight => bed::inside(tools, |bed| eight(bed, plan, results)),
            Part::Probe => bed::inside(tools, |bed| probe(bed, plan, results)),
            Part::Short => bed::inside(tools, |bed| short(bed, plan, results)),
            Part::Rails => bed::inside(tools, |bed| rails(bed, plan, results)),
            Part::Pods => bed::inside(tools, |bed| pods(bed, plan, results)),
            Part::Routes => bed::inside(tools, |bed| many_routes(bed, plan, results)),
            Part::Leases => bed::inside(tools, |bed| leases(bed, plan, results)),
            Part::Nodes => bed::inside(tools, |bed| nodes(bed, plan, results)),
            Part::Netdevs => bed::inside(tools, |bed| netdevs(bed, plan, results)),
            Part::Crowd => bed::inside(tools, |bed| crowd(bed, plan, results)),
            Part::Queues => bed::inside(tools, |bed| queues(bed, plan, results)),
            Part::Vfs => bed::inside(tools, |bed| vfs(bed, plan, results)),
        }
    }
}

fn key(part: Part, contender: &str, way: &str, shape: &str, x: usize) -> Key {
    Key {
        part: part.name().to_owned(),
        contender: contender.to_owned(),
        way: way.to_owned(),
        shape: shape.to_owned(),
        x: u64::try_from(x).unwrap_or(u64::MAX),
    }
}

impl Results {
    fn leave_out(&mut self, part: Part, what: &str, reason: &str) {
        let told = LeftOut {
            part: part.name().to_owned(),
            what: what.to_owned(),
            reason: reason.to_owned(),
        };
        if !self.left_out.contains(&told) {
            self.left_out.push(told);
        }
    }

    /// Keeps the mean duration of the calls that were made at once, beside the last one.
    fn keep_mean(&mut self, subject: &Subject, verb: &str) {
        let Some(last) = self.samples.last().filter(|_| subject.is_at_once).cloned() else {
            return;
        };
        let wall_us = u64::try_from(subject.mean().as_micros()).unwrap_or(u64::MAX);
        let contender = format!("{}: mean", last.contender);
        self.samples.push(Sample {
            contender,
            verb: verb.to_owned(),
            wall_us,
            ..last
        });
    }

    fn keep<T>(
        &mut self,
        key: &Key,
        verb: &str,
        round: usize,
        work: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let (done, wall, cpu) = timed(work)?;
        let micros =
            |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let Key {
            part,
            contender,
            way,
            shape,
            x,
        } = key.clone();
        let (verb, wall_us, cpu_us) = (verb.to_owned(), micros(wall), micros(cpu));
        self.samples.push(Sample {
            part,
            contender,
            way,
            shape,
            x,
            verb,
            round,
            wall_us,
            cpu_us,
        });
        Ok(done)
    }
}

// --- attachments
// ---------------------------------------------------------------------------------------------------

/// Measures each of them once in every round, in a new order. Who fails is left out from then on,
/// and said so.
fn measure(
    bed: &mut Bed,
    mut subjects: Vec<Subject>,
    rounds: usize,
    is_counted: bool,
    plan: &mut Plan,
    results: &mut Results,
) -> Result<(), String> {
    let plain = Runner::new(Lens::None, Path::new(DIR));
    for round in 0..=rounds {
        plan.random.shuffle(&mut subjects);
        let mut failed = Vec::new();
        for (at, subject) in subjects.iter().enumerate() {
            // Once unmeasured: caches, modules, directories.
            let kept = if round == 0 { None } else { Some(round) };
            let mut ran = once(bed, subject, &plain, kept, results);
            if round == 0 && is_counted && ran.is_ok() {
                ran = count(bed, subject, results);
            }
            if let Err(reason) = ran {
                results.samples.retain(|sample| sample.key() != subject.key);
                let what = format!(
                    "{}, {}, {}",
                    subject.key.contender, subject.key.way, subject.key.shape
                );
                let part = subject.key.part.clone();
                results.left_out.push(LeftOut { part, what, reason });
                failed.push(at);
                // The other contenders must not meet its leftovers.
                let _ = subject.del(bed, &plain);
                bed.make_again()?;
            }
        }
        for at in failed.into_iter().rev() {
            subjects.remove(at);
        }
    }
    Ok(())
}

/// Microseconds: three ticks of a kernel with 250 a second.
const PAUSE: u64 = 12_000;

/// An ADD and a DEL. Multus gives the API server a quarter of a second: on a busy machine that is
/// tried again.
fn once(
    bed: &Bed,
    subject: &Subject,
    runner: &Runner,
    round: Option<usize>,
    results: &mut Results,
) -> Result<(), String> {
    for _ in 0..5 {
        let mut seen = Results::default();
        // Calls that follow one another run in step with the kernel's timer, which the moves wait
        // for.
        std::thread::sleep(Duration::from_micros(fastrand::u64(..PAUSE)));
        let added = seen.keep(&subject.key, "ADD", round.unwrap_or(0), || {
            subject.add(bed, runner)
        });
        if added
            .as_ref()
            .is_err_and(|error| error.contains("context deadline exceeded"))
        {
            subject.del(bed, runner)?;
            bed.restore()?;
            continue;
        }
        added?;
        seen.keep_mean(subject, "ADD");
        std::thread::sleep(Duration::from_micros(fastrand::u64(..PAUSE)));
        seen.keep(&subject.key, "DEL", round.unwrap_or(0), || {
            subject.del(bed, runner)
        })?;
        seen.keep_mean(subject, "DEL");
        bed.restore()?;
        if round.is_some() {
            results.samples.append(&mut seen.samples);
        }
        return Ok(());
    }
    Err("it gave up on the API server five times".to_owned())
}

/// Counts the work of its programs, through each lens in a call of its own.
fn count(bed: &Bed, subject: &Subject, results: &mut Results) -> Result<(), String> {
    let mut lenses = vec![Lens::Memory];
    if bed.tools.lacks_strace.is_none() {
        lenses.push(Lens::Trace);
    }
    if bed.tools.lacks_instructions.is_none() {
        lenses.push(Lens::Instructions);
    }
    let mut counts = [Counts::default(), Counts::default()];
    for lens in lenses {
        let runner = Runner::new(lens, Path::new(DIR));
        let mut tries = 0;
        while let Err(error) = subject.add(bed, &runner) {
            tries += 1;
            if tries > 5 || !error.contains("context deadline exceeded") {
                return Err(error);
            }
            subject.del(bed, &runner)?;
            runner.counts()?;
        }
        counts[0] = counts[0].clone().and(&runner.counts()?);
        subject.del(bed, &runner)?;
        counts[1] = counts[1].clone().and(&runner.counts()?);
        bed.restore()?;
    }
    for (verb, counts) in ["ADD", "DEL"].into_iter().zip(&counts) {
        results
            .counted
            .push(Counted::new(&subject.key, verb, counts));
    }
    Ok(())
}

/// The contender without any rail.
pub const ETH0: &str = "eth0 alone";

const ALL: [Contender; 5] = [
    Contender::Floor,
    Contender::Batch,
    Contender::Rail,
    Contender::HostDeviceStatic,
    Contender::HostDeviceChain,
];

fn one(bed: &mut Bed, plan: &mut Plan, results: &mut Results) -> Result<(), String> {
    bed.make_devices(8)?;
    bed.make_pods(1)?;
    let mut subjects = by_direct_callers(bed, Part::One, "one rail", 1, false)?;
    if bed.tools.multus.is_some() {
        subjects.append(&mut by_multus_of(Part::One, "one rail", 1)?);
    }
    leave_out_what_is_missing(bed, Part::One, results);
    // A p99 wants a hundred.
    measure(bed, subjects, plan.rounds * 5, true, plan, results)
}

fn eight(bed: &mut Bed, plan: &mut Plan, results: &mut Results) -> Result<(), String> {
    bed.make_devices(8)?;
    bed.make_pods(1)?;
    let mut in_turn = by_direct_callers(bed, Part::Eight, "eight in turn", 8, false)?;
    if bed.tools.multus.is_some() {
        in_turn.append(&mut by_multus_of(Part::Eight, "eight in turn", 8)?);
    }
    leave_out_what_is_missing(bed, Part::Eight, results);
    results.leave_out(
        Part::Eight,
        "Multus, eight at once",
        "Multus attaches the networks of a pod in turn",
    );
    measure(bed, in_turn, plan.rounds, true, plan, results)?;
    let at_once = by_direct_callers(bed, Part::Eight, "eight at once", 8, true)?;
    measure(bed, at_once, plan.rounds, false, plan, results)
}

fn leave_out_what_is_missing(bed: &Bed, part: Part, results: &mut Results) {
    let tools = bed.tools;
    let missing =
        |tool: &Option<std::path::PathBuf>| tool.is_none().then(|| "it is not here".to_owned());
    let reasons = [
        ("cnitool", missing(&tools.cnitool)),
        ("Multus", missing(&tools.multus)),
        (
            "system calls, moves, programs run",
            tools.lacks_strace.clone(),
        ),
        ("instructions", tools.lacks_instructions.clone()),
        (
            "sriov-cni and rdma-cni",
            Some("they need an SR-IOV VF, and these devices are veth".to_owned()),
        ),
    ];
    for (what, reason) in reasons {
        if let Some(reason) = reason {
            results.leave_out(part, what, &reason);
        }
    }
}

fn by_direct_callers(
    bed: &Bed,
    part: Part,
    shape: &str,
    rails: usize,
    is_at_once: bool,
) -> Result<Vec<Subject>, String> {
    let mut subjects = Vec::new();
    for contender in ALL {
        for (way, name) in [(Way::Direct, "direct"), (Way::Cnitool, "cnitool")] {
            if way == Way::Cnitool && (contender.is_program() || bed.tools.cnitool.is_none()) {
                continue;
            }
            let attachment =
                |rail| contender.attachment(way, rail, 0, rail, &routes(rail, rail == 0));
            let attachments = (0..rails).map(attachment).collect::<Result<_, _>>()?;
            let key = key(part, contender.title(), name, shape, rails);
            subjects.push(Subject {
                key,
                attachments,
                is_at_once,
            });
        }
    }
    Ok(subjects)
}

/// A pod with eth0 alone, and pods with rails beside it.
fn by_multus_of(part: Part, shape: &str, rails: usize) -> Result<Vec<Subject>, String> {
    let api = Api::start();
    let subject = |pod: &Value, contender: &str| {
        api.apply(pod);
        let attachments = vec![by_multus(pod, &api.url)?];
        let key = key(part, contender, "Multus", shape, rails);
        Ok::<_, String>(Subject {
            key,
            attachments,
            is_at_once: false,
        })
    };
    let mut subjects = vec![subject(&Contender::Floor.pod(0), ETH0)?];
    for contender in ALL.into_iter().filter(|&contender| !contender.is_program()) {
        for rail in 0..rails {
            api.apply(&contender.nad(rail, &routes(rail, rail == 0))?);
        }
        subjects.push(subject(&contender.pod(rails), contender.title())?);
    }
    Ok(subjects)
}

/// Subjects with `rails` rails of one pod, or of a pod each.
fn subject_of(
    part: Part,
    contender: Contender,
    x: usize,
    rails: usize,
    is_at_once: bool,
    routes: impl Fn(usize) -> Vec<String>,
) -> Result<Subject, String> {
    let attachment = |rail| {
        let (pod, ifname) = if is_at_once { (rail, 0) } else { (0, rail) };
        contender.attachment(Way::Direct, rail, pod, ifname, &routes(rail))
    };
    let attachments = (0..rails).map(attachment).collect::<Result<_, _>>()?;
    let shape = if is_at_once { "at once" } else { "in turn" };
    Ok(Subject {
        key: key(part, contender.title(), "direct", shape, x),
        attachments,
        is_at_once,
    })
}

/// A growing part needs fewer rounds, for its points support each other.
fn fewer(rounds: usize) -> usize {
    (rounds / 3).max(1)
}

fn rails(bed: &mut Bed, plan: &mut Plan, results: &mut Results) -> Result<(), String> {
    bed.make_devices(16)?;
    bed.make_pods(1)?;
    for count in [1, 2, 4, 8, 16] {
        let subject = |contender| {
            subject_of(Part::Rails, contender, count, count, false, |rail| {
                routes(rail, rail == 0)
            })
        };
        let subjects = ALL.into_iter().map(subject).collect::<Result<_, _>>()?;
        measure(bed, subjects, fewer(plan.rounds), false, plan, results)?;
    }
    Ok(())
}

fn pods(bed: &mut Bed, plan: &mut Plan, results: &mut Results) -> Result<(), String> {
    bed.make_devices(32)?;
    bed.make_pods(32)?;
    let contenders = [
        Contender::Floor,
        Contender::Batch,
        Contender::Rail,
        Contender::HostDeviceLocal,
    ];
    for count in [1, 2, 4, 8, 16, 32] {
        let subject = |contender| {
            subject_of(Part::Pods, contender, count, count, true, |rail| {
                routes(rail, true)
            })
        };
        let subjects = contenders
            .into_iter()
            .map(subject)
            .collect::<Result<_, _>>()?;
        measure(bed, subjects, fewer(plan.rounds), false, plan, results)?;
    }
    Ok(())
}

fn many_routes(bed: &mut Bed, plan: &mut Plan, results: &mut Results) -> Result<(), String> {
    bed.make_devices(1)?;
    bed.make_pods(1)?;
    let contenders = [
        Contender::Floor,
        Contender::Rail,
        Contender::HostDeviceLocal,
    ];
    for count in [1, 4, 16, 64, 256] {
        let of_rail = |_| {
            (0..count)
                .map(|route| format!("11.0.{route}.0/24"))
                .collect()
        };
        let subject = |contender| subject_of(Part::Routes, contender, count, 1, false, of_rail);
        let subjects = contenders
            .into_iter()
            .map(subject)
            .collect::<Result<_, _>>()?;
        measure(bed, subjects, fewer(plan.rounds), true, plan, results)?;
    }
    Ok(())
}

fn netdevs(bed: &mut Bed, plan: &mut Plan, results: &mut Results) -> Result<(), String> {
    bed.make_devices(1)?;
    bed.make_pods(1)?;
    let contenders = [
        Contender::Floor,
        Contender::Rail,
        Contender::HostDeviceStatic,
        Contender::HostDeviceLocal,
    ];
    let mut there = 0;
    for count in [10, 100, 1000, 5000] {
        // Two at a time. Not every kernel has dummies.
        let pair = |number: usize| {
            format!("link add some{number} group 7 type veth peer name other{number}\n")
        };
        ip_batch(&(there / 2..count / 2).map(pair).collect::<String>())?;
        there = count;
        let subject = |contender| {
            subject_of(Part::Netdevs, contender, count, 1, false, |rail| {
                routes(rail, true)
            })
        };
        let subjects = contenders
            .into_iter()
            .map(subject)
            .collect::<Result<_, _>>()?;
        measure(bed, subjects, fewer(plan.rounds), true, plan, results)?;
    }
    // At once. One by one, when the namespace ends, would take long.
    ip_batch("link del group 7\n")
}

/// A busy node: each of the other pods has eight links, mounts and processes.
fn crowd(bed: &mut Bed, plan: &mut Plan, results: &mut Results) -> Result<(), String> {
    const PODS: usize = 64;
    bed.make_devices(1)?;
    bed.make_pods(1)?;
    let mut processes = Vec::new();
    let mut measured = Ok(());
    for count in [0, PODS] {
        bed.make_pods(1 + count)?;
        for pod in 1..=count {
            fill(pod, &mut processes)?;
        }
        let subject = |contender| {
            subject_of(Part::Crowd, contender, count, 1, false, |rail| {
                routes(rail, true)
            })
        };
        let contenders = [
            Contender::Floor,
            Contender::Rail,
            Contender::HostDeviceStatic,
        ];
        let subjects = contenders
            .into_iter()
            .map(subject)
            .collect::<Result<_, _>>()?;
        measured = measure(bed, subjects, plan.rounds, true, plan, results);
    }
    for mut process in processes {
        let _ = process.kill();
        let _ = process.wait();
    }
    measured
}

/// Gives a pod what pods have.
fn fill(pod: usize, processes: &mut Vec<Child>) -> Result<(), String> {
    const MOUNTS: usize = 23;
    const PROCESSES: usize = 24;
    let pairs = (0..4).map(|pair| format!("link add one{pair} type veth peer name other{pair}\n"));
    bed::ip_batch_in(&format!("pod{pod}"), &pairs.collect::<String>())?;
    for number in 0..MOUNTS {
        let path = Path::new(DIR).join(format!("mounts/{pod}/{number}"));
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        bed::mount_memory(&path)?;
    }
    let pod = format!("--net=/run/netns/pod{pod}");
    for _ in 0..PROCESSES {
        let started = Command::new("nsenter")
            .args([&pod, "sleep", "infinity"])
            .spawn();
        processes.push(started.map_err(|error| format!("nsenter: {error}"))?);
    }
    Ok(())
}

fn queues(bed: &mut Bed, plan: &mut Plan, results: &mut Results) -> Result<(), String> {
    bed.make_pods(1)?;
    bed.adopt("dev0");
    for count in [1, 8, 64] {
        let many = format!("numtxqueues {count} numrxqueues {count}");
        ip_batch(&format!(
            "link add dev0 mtu 1500 {many} type veth peer name leaf0 {many}\nlink set leaf0 mtu 9216 up\n"
        ))?;
        let subject = |contender| {
            subject_of(Part::Queues, contender, count, 1, false, |rail| {
                routes(rail, true)
            })
        };
        let contenders = [
            Contender::Floor,
            Contender::Rail,
            Contender::HostDeviceStatic,
        ];
        let subjects = contenders
            .into_iter()
            .map(subject)
            .collect::<Result<_, _>>()?;
        measure(bed, subjects, fewer(plan.rounds), true, plan, results)?;
        ip_batch("link del leaf0\n")?;
    }
    Ok(())
}

/// A PF of netdevsim has as many VFs as one likes, and none of them is a device: a port of another
/// one, `dev0`, is in the place of VF 0 in a sysfs that says so.
fn vfs(bed: &mut Bed, plan: &mut Plan, results: &mut Results) -> Result<(), String> {
    let bus = Path::new("/sys/bus/netdevsim");
    let simulated = |number: u32| bus.join(format!("devices/netdevsim{number}"));
    let told = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let put = |path: &Path, text: &str| fs::write(path, text).map_err(|error| told(path, error));
    if !bus.exists() {
        return Err("there is no netdevsim here: scripts/bench --lab has it".to_owned());
    }
    let debug = Path::new("/sys/kernel/debug");
    let none = None::<&str>;
    mount(
        Some("debugfs"),
        debug,
        Some("debugfs"),
        MsFlags::empty(),
        none,
    )
    .map_err(|errno| format!("debugfs: {errno}"))?;
    for (number, name) in [(1, "pf0"), (2, "dev0")] {
        put(&bus.join("new_device"), &format!("{number} 1"))?;
        let ports = simulated(number).join("net");
        let port = fs::read_dir(&ports)
            .map_err(|error| told(&ports, error))?
            .flatten()
            .next();
        let port = port.ok_or("a device of netdevsim has no port")?.file_name();
        bed::ip(&format!("link set {} name {name}", port.to_string_lossy()))?;
    }
    bed::ip("link set pf0 mtu 9000 up")?;
    put(&debug.join("netdevsim/netdevsim1/max_vfs"), "127")?;
    bed.adopt("dev0");
    bed.make_pods(1)?;
    for count in [1, 8, 32, 127] {
        let vfs = simulated(1).join("sriov_numvfs");
        put(&vfs, "0")?;
        put(&vfs, &count.to_string())?;
        write_sysfs(count)?;
        let subject = |contender| {
            subject_of(Part::Vfs, contender, count, 1, false, |rail| {
                routes(rail, true)
            })
        };
        let mut subjects = [
            Contender::Floor,
            Contender::Rail,
            Contender::HostDeviceStatic,
        ]
        .into_iter()
        .map(subject)
        .collect::<Result<Vec<_>, _>>()?;
        // By its address, as a device plugin names it.
        let by_address = |plugin: &mut Value| {
            if plugin["type"] == json!("rail-cni") {
                plugin["deviceID"] = json!(VF0);
                if let Some(plugin) = plugin.as_object_mut() {
                    plugin.remove("device");
                    plugin.remove("rail");
                }
            }
        };
        subjects
            .iter_mut()
            .flat_map(|subject| &mut subject.attachments)
            .for_each(|one| one.change(by_address));
        measure(bed, subjects, fewer(plan.rounds), true, plan, results)?;
    }
    put(&bus.join("del_device"), "2")?;
    put(&bus.join("del_device"), "1")
}

const VF0: &str = "0000:21:10.0";

/// A sysfs of files in which `pf0` has these VFs, and a node.json that names it.
fn write_sysfs(vfs: usize) -> Result<(), String> {
    let pf = "0000:21:00.0";
    let root = Path::new(DIR).join(format!("sys-{vfs}"));
    let [devices, bus] = [root.join("devices"), root.join("bus/pci/devices")];
    let driver = root.join("bus/pci/drivers/netdevsim");
    let make = || {
        for (directory, name) in [(devices.join(pf), "pf0"), (devices.join(VF0), "dev0")] {
            fs::create_dir_all(directory.join("net").join(name))?;
            let class = root.join("class/net").join(name);
            fs::create_dir_all(&class)?;
            symlink(directory, class.join("device"))?;
        }
        for directory in [&bus, &driver, &root.join("bus/auxiliary/devices")] {
            fs::create_dir_all(directory)?;
        }
        symlink(devices.join(pf), bus.join(pf))?;
        fs::write(devices.join(pf).join("sriov_numvfs"), vfs.to_string())?;
        for number in 0..vfs {
            let vf = format!("0000:21:{:02x}.{}", 16 + number / 8, number % 8);
            fs::create_dir_all(devices.join(&vf))?;
            symlink(format!("../{pf}"), devices.join(&vf).join("physfn"))?;
            symlink(
                format!("../{vf}"),
                devices.join(pf).join(format!("virtfn{number}")),
            )?;
            symlink(&driver, devices.join(&vf).join("driver"))?;
            symlink(devices.join(&vf), bus.join(&vf))?;
        }
        Ok(())
    };
    make().map_err(|error: std::io::Error| format!("{}: {error}", root.display()))?;
    let node = json!({"nodeName": "bench", "runDir": format!("{DIR}/run"), "storeDir": format!("{DIR}/store"), "sysfsRoot": root});
    bed::write("node.json", &node.to_string())
}

// --- single calls
// --------------------------------------------------------------------------------------------------

/// Times calls of one program, in a new order each round.
fn calls(
    mut all: Vec<(Key, &str, Process)>,
    rounds: usize,
    plan: &mut Plan,
    results: &mut Results,
) -> Result<(), String> {
    let runner = Runner::new(Lens::None, Path::new(DIR));
    for round in 0..=rounds {
        plan.random.shuffle(&mut all);
        for (key, verb, process) in &all {
            if round == 0 {
                runner.run(process)?;
            } else {
                results.keep(key, verb, round, || runner.run(process))?;
            }
        }
    }
    Ok(())
}

fn short(bed: &mut Bed, plan: &mut Plan, results: &mut Results) -> Result<(), String> {
    bed.make_devices(1)?;
    bed.make_pods(1)?;
    let conf = |plugins: Vec<Value>| {
        let mut conf = plugins.into_iter().next().unwrap_or_default();
        conf["cniVersion"] = json!("1.1.0");
        conf["name"] = json!("rail-0");
        conf
    };
    let rail = conf(Contender::Rail.plugins(0, &routes(0, true))?);
    let peer = conf(Contender::HostDeviceLocal.plugins(0, &routes(0, true))?);
    let asked = [
        ("rail-cni", "VERSION", &rail),
        ("rail-ipam", "VERSION", &rail),
        ("host-device", "VERSION", &peer),
        ("host-local", "VERSION", &peer),
        ("rail-cni", "STATUS", &rail),
        ("host-device", "STATUS", &peer),
    ];
    let call = |(program, verb, conf): (&str, &'static str, &Value)| {
        let process = bed.call_of(&bed.program(program), verb, conf, "pod0", "pod0", "net1");
        (
            key(Part::Short, program, "direct", "one call", 1),
            verb,
            process,
        )
    };
    let nothing = Process {
        program: std::env::current_exe().map_err(|error| format!("the own executable: {error}"))?,
        arguments: vec![NOTHING.to_owned()],
        ..Process::default()
    };
    let start = (
        key(
            Part::Short,
            "a static program that does nothing",
            "direct",
            "one call",
            1,
        ),
        "start",
        nothing,
    );
    calls(
        asked.into_iter().map(call).chain([start]).collect(),
        plan.rounds * 5,
        plan,
        results,
    )
}

fn probe(bed: &mut Bed, plan: &mut Plan, results: &mut Results) -> Result<(), String> {
    bed.make_devices(1)?;
    bed.make_pods(1)?;
    // The leaf port answers.
    ip_batch("address add 10.0.0.1/31 dev leaf0\naddress add fd00:10::2/64 dev leaf0 nodad\n")?;
    let six = json!({"version": 1, "prefix": "fd00:10::/64", "gateway": "fd00:10::2", "routes": [{"dst": "fd00::/16"}]});
    bed::write("store/bench/rail-0-v6.json", &six.to_string())?;
    let mut subjects = Vec::new();
    for (shape, pools) in [("IPv4", "rail-0"), ("IPv4 and IPv6", "rail-0,rail-0-v6")] {
        for asked in ["off", "require"] {
            let name = format!("gatewayProbe: {asked}");
            let mut subject = subject_of(Part::Probe, Contender::Rail, 1, 1, false, |rail| {
                routes(rail, true)
            })?;
            subject.key = key(Part::Probe, &name, "direct", shape, 1);
            for attachment in &mut subject.attachments {
                attachment.change(|plugin| {
                    plugin["gatewayProbe"] = json!(asked);
                    plugin["ipam"]["pool"] = json!(pools);
                });
            }
            subjects.push(subject);
        }
    }
    measure(bed, subjects, plan.rounds, false, plan, results)
}

/// Times ADD and DEL of IPAM plugins alone.
fn ipam(
    bed: &Bed,
    part: Part,
    x: usize,
    confs: &[(&str, Value)],
    rounds: usize,
    plan: &mut Plan,
    results: &mut Results,
) -> Result<(), String> {
    let mut order: Vec<usize> = (0..confs.len()).collect();
    let runner = Runner::new(Lens::None, Path::new(DIR));
    for round in 0..=rounds {
        plan.random.shuffle(&mut order);
        for (title, conf) in order.iter().filter_map(|&at| confs.get(at)) {
            let program = bed.program(conf["ipam"]["type"].as_str().unwrap_or_default());
            let key = key(part, title, "direct", "one call", x);
            for verb in ["ADD", "DEL"] {
                let call = bed.call_of(&program, verb, conf, "measured", "pod0", "net1");
                if round == 0 {
                    runner.run(&call)?;
                } else {
                    results.keep(&key, verb, round, || runner.run(&call))?;
                }
            }
        }
    }
    if bed.tools.lacks_strace.is_some() {
        return Ok(());
    }
    let tracer = Runner::new(Lens::Trace, Path::new(DIR));
    for (title, conf) in confs {
        let program = bed.program(conf["ipam"]["type"].as_str().unwrap_or_default());
        let key = key(part, title, "direct", "one call", x);
        for verb in ["ADD", "DEL"] {
            tracer.run(&bed.call_of(&program, verb, conf, "measured", "pod0", "net1"))?;
            results
                .counted
                .push(Counted::new(&key, verb, &tracer.counts()?));
        }
    }
    Ok(())
}

fn leases(bed: &mut Bed, plan: &mut Plan, results: &mut Results) -> Result<(), String> {
    bed.make_pods(1)?;
    let pool = json!({"version": 1, "prefix": "10.64.0.0/16", "gateway": "10.64.0.1", "routes": [{"dst": "10.0.0.0/8"}]});
    bed::write("store/bench/many.json", &pool.to_string())?;
    let own = json!({"cniVersion": "1.0.0", "name": "many", "type": "x", "ipam": {"type": "rail-ipam", "pool": "many"}});
    let local = json!({"cniVersion": "1.0.0", "name": "many", "type": "x",
        "ipam": {"type": "host-local", "dataDir": format!("{DIR}/host-local"),
            "ranges": [[{"subnet": "10.64.0.0/16", "gateway": "10.64.0.1"}]], "routes": [{"dst": "10.0.0.0/8"}]}});
    let runner = Runner::new(Lens::None, Path::new(DIR));
    let mut there = 0;
    for count in [0, 10, 100, 1000, 5000] {
        for number in there..count {
            let program = bed.program("rail-ipam");
            runner.run(&bed.call_of(
                &program,
                "ADD",
                &own,
                &format!("other-{number}"),
                "pod0",
                "net1",
            ))?;
            // As host-local writes them: it reads each of them in an ADD, and 5,000 ADDs would take
            // minutes.
            let address = format!("10.64.{}.{}", (number + 2) / 256, (number + 2) % 256);
            bed::write(
                &format!("host-local/many/{address}"),
                &format!("other-{number}\r\nnet1"),
            )?;
            if number + 1 == count {
                bed::write("host-local/many/last_reserved_ip.0", &address)?;
            }
        }
        there = count;
        let confs = [("rail-ipam", own.clone()), ("host-local", local.clone())];
        ipam(bed, Part::Leases, count, &confs, plan.rounds, plan, results)?;
    }
    Ok(())
}

fn nodes(bed: &mut Bed, plan: &mut Plan, results: &mut Results) -> Result<(), String> {
    bed.make_pods(1)?;
    let pool = json!({"version": 1, "prefix": "10.64.0.0/31", "gateway": "10.64.0.1", "routes": [{"dst": "10.0.0.0/8"}]});
    let own = json!({"cniVersion": "1.0.0", "name": "rail-0", "type": "x", "ipam": {"type": "rail-ipam", "pool": "rail-0"}});
    bed::write("store/bench/rail-0.json", &pool.to_string())?;
    let store = Path::new(DIR).join("store");
    let mut there = 1;
    for count in [1, 1_000, 10_000, 100_000, 1_000_000] {
        for number in there..count {
            let node = store.join(format!("node-{number}"));
            // The file is never read: one of them is enough, by many names.
            fs::create_dir(&node)
                .and_then(|()| {
                    fs::hard_link(store.join("node-1/rail-0.json"), node.join("rail-0.json"))
                })
                .or_else(|_| fs::write(node.join("rail-0.json"), pool.to_string()))
                .map_err(|error| format!("{}: {error}", node.display()))?;
        }
        there = count;
        let confs = [("rail-ipam", own.clone())];
        ipam(bed, Part::Nodes, count, &confs, plan.rounds, plan, results)?;
        if count > 1 {
            missing(bed, count, &own, fewer(plan.rounds), results)?;
        }
    }
    Ok(())
}

/// An ADD on a node that the plan does not have: it looks for a name that is similar.
fn missing(
    bed: &Bed,
    count: usize,
    conf: &Value,
    rounds: usize,
    results: &mut Results,
) -> Result<(), String> {
    let runner = Runner::new(Lens::None, Path::new(DIR));
    let node = json!({"nodeName": "Node-1.example.com", "runDir": format!("{DIR}/run"), "storeDir": format!("{DIR}/store")});
    bed::write("missing.json", &node.to_string())?;
    let mut call = bed.call_of(
        &bed.program("rail-ipam"),
        "ADD",
        conf,
        "measured",
        "pod0",
        "net1",
    );
    call.vars.push((
        "RAIL_CNI_NODE_CONFIG".to_owned(),
        format!("{DIR}/missing.json"),
    ));
    let key = key(
        Part::Nodes,
        "rail-ipam, node not in the plan",
        "direct",
        "one call",
        count,
    );
    for round in 1..=rounds {
        results.keep(&key, "ADD", round, || match runner.run(&call) {
            Ok(_) => Err("a node that is not in the plan got an address".to_owned()),
            Err(text) if text.contains("has no allocation") => Ok(()),
            Err(text) => Err(text),
        })?;
    }
    Ok(())
}
