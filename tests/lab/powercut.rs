//! Cuts the power of a disk at every moment that a recording has, and looks at what the file system
//! makes of it.
//!
//! `powercut CUTS FOLDER BACKING MOUNTPOINT TYPE OPTIONS DEVICE` tries up to CUTS different cuts
//! and prints what it found. tests/lab/power-cut.sh makes the FOLDER:
//!
//! | file | what it is |
//! | --- | --- |
//! | `base` | the image of the file system before the recording |
//! | `log` | all writes since then, as the kernel's dm-log-writes records them, with marks `begin-N` and `end-N` |
//! | `change-N` | the command that made change N of the store, which is below MOUNTPOINT |
//! | `plan-N` | a copy of the store after change N; `plan-0` is the one before all |
//!
//! After a cut, the disk has everything up to the last flush that had ended. Of the writes since
//! then it has any part, in units of 4 KiB, but a write with FUA that had ended is there before any
//! later one. Each such disk is written to the file BACKING, which is that of the loop device
//! DEVICE, and mounted. The store must then have, for each node, the plan before the change or the
//! one after it, and only the latter once `end-N` was reached; and the change, made once more, must
//! give its plan exactly.
#![allow(clippy::unwrap_used, clippy::panic, clippy::exit, clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::rc::Rc;

use nix::mount::{MsFlags, mount, umount};

const PAGE: u64 = 4096;
const PAGE_SIZE: usize = 4096;
/// Include/uapi of dm-log-writes: the first sector of the log, and the flags of an entry.
const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [cuts, folder, backing, mountpoint, kind, options, device] = &arguments[..] else {
        panic!("usage: powercut CUTS FOLDER BACKING MOUNTPOINT TYPE OPTIONS DEVICE")
    };
    let folder = PathBuf::from(folder);
    let judge = Judge {
        backing: OpenOptions::new().write(true).open(backing).unwrap(),
        device: device.into(),
        mountpoint: mountpoint.into(),
        kind: kind.clone(),
        options: options.clone(),
        plans: (0..)
            .map_while(|number| Tree::read(&folder.join(format!("plan-{number}"))))
            .collect(),
        folder: folder.clone(),
        known: HashMap::new(),
    };
    let log = Log::read(&folder.join("log"));
    let disk = Disk::read(&folder.join("base"));
    exit(run(cuts.parse().unwrap(), &log, disk, judge));
}

/// Tries the cuts in the order of the recording, and returns the exit status.
fn run(most: usize, log: &Log, mut disk: Disk, mut judge: Judge) -> i32 {
    let mut budget = Budget::new(most, log);
    let (mut prefixes, mut reordered, mut faults) = (0, 0, Vec::new());
    for epoch in &log.epochs {
        for cut in budget.cuts(log, epoch) {
            if cut.is_prefix {
                prefixes += 1
            } else {
                reordered += 1
            }
            let writes = cut.units.iter().map(|unit| &log.units[*unit]);
            if let Err(why) = judge.judge(&disk.with(writes), cut.moment) {
                faults.push(format!("{}: {why}", cut.describe(log, epoch)));
            }
        }
        disk.write(log.units[epoch.units.clone()].iter());
    }
    let seen: BTreeSet<_> = judge.known.keys().map(|(_, tree)| tree).collect();
    println!(
        "{} writes in {} flushes, {} changes; {} cuts: {prefixes} in order, {reordered} out of order; {} different \
         stores; {} wrong",
        log.units.len(),
        log.epochs.len(),
        judge.plans.len() - 1,
        prefixes + reordered,
        seen.len(),
        faults.len()
    );
    for fault in faults.iter().take(20) {
        println!("wrong: {fault}");
    }
    i32::from(!faults.is_empty())
}

// --- the recording
// ------------------------------------------------------------------------------------------------

/// At most a page of a write: what a disk writes whole or not at all.
#[derive(Debug)]
struct Unit {
    page: u64,
    offset: usize,
    bytes: Vec<u8>,
    /// The write has FUA, and ends before later ones begin.
    is_forced: bool,
}

/// The writes between two flushes.
#[derive(Debug)]
struct Epoch {
    units: Range<usize>,
    /// The moment before each of its units, and after the last.
    moments: Vec<Moment>,
}

/// A moment in the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Moment {
    /// Changes of the store that have begun.
    begun: usize,
    /// Changes that have ended.
    ended: usize,
}

#[derive(Debug, Default)]
struct Log {
    units: Vec<Unit>,
    epochs: Vec<Epoch>,
}

impl Log {
    fn read(path: &Path) -> Log {
        let file = File::open(path).unwrap();
        let bytes = |from: u64, length: u64| {
            let mut bytes = vec![0; usize::try_from(length).unwrap()];
            file.read_exact_at(&mut bytes, from).unwrap();
            bytes
        };
        let number = |from: u64| u64::from_le_bytes(bytes(from, 8).try_into().unwrap());
        assert_eq!(
            (number(0), number(8)),
            (MAGIC, 1),
            "no log of dm-log-writes"
        );
        let entries = number(16);
        let sector = number(24) & u64::from(u32::MAX);
        let (mut log, mut moment, mut at) = (Log::default(), Moment::default(), sector);
        let (mut start, mut moments) = (0, vec![moment]);
        for _ in 0..entries {
            let [first, count, flags, length] = [0, 8, 16, 24].map(|field| number(at + field));
            let mark = bytes(at + 32, if flags & MARK == 0 { 0 } else { length });
            at += sector;
            if flags & MARK != 0 {
                let text = String::from_utf8_lossy(&mark);
                match text.trim_end_matches(['\0', '\n']).split_once('-') {
                    Some(("begin", number)) => moment.begun = number.parse().unwrap(),
                    Some(("end", number)) => moment.ended = number.parse().unwrap(),
                    _ => (),
                }
                // A cut may be before the mark or after it: the later one asks for more.
                *moments.last_mut().unwrap() = moment;
                continue;
            }
            assert_eq!(flags & DISCARD, 0, "mount it without discard");
            if flags & FLUSH != 0 {
                log.epochs.push(Epoch {
                    units: start..log.units.len(),
                    moments,
                });
                (start, moments) = (log.units.len(), vec![moment]);
            }
            let data = bytes(at, count * sector);
            at += count * sector;
            let (mut position, mut rest) = (first * sector, &data[..]);
            while !rest.is_empty() {
                let offset = usize::try_from(position % PAGE).unwrap();
                let (written, more) = rest.split_at(rest.len().min(PAGE_SIZE - offset));
                let is_forced = flags & FUA != 0;
                log.units.push(Unit {
                    page: position / PAGE,
                    offset,
                    bytes: written.to_vec(),
                    is_forced,
                });
                moments.push(moment);
                position += written.len() as u64;
                rest = more;
            }
        }
        log.epochs.push(Epoch {
            units: start..log.units.len(),
            moments,
        });
        log
    }
}

// --- the cuts
// -----------------------------------------------------------------------------------------------------

#[derive(Debug)]
struct Cut {
    units: Vec<usize>,
    moment: Moment,
    is_prefix: bool,
}

impl Cut {
    fn describe(&self, log: &Log, epoch: &Epoch) -> String {
        let has = self
            .units
            .iter()
            .map(|unit| (unit - epoch.units.start).to_string())
            .collect::<Vec<_>>();
        let number = log
            .epochs
            .iter()
            .position(|one| one.units == epoch.units)
            .unwrap();
        let of = epoch.units.len();
        format!(
            "flush {number}, writes {} of {of}, {:?}",
            has.join(" "),
            self.moment
        )
    }
}

/// Shares the cuts that may be tried among the epochs. The same ones in every run.
#[derive(Debug)]
struct Budget {
    /// Of so many prefixes one is tried.
    step: usize,
    /// Prefixes that were passed.
    passed: usize,
    /// Cuts out of order that are left, and the units whose epochs are still to come.
    left: usize,
    units: usize,
    random: u64,
}

impl Budget {
    fn new(most: usize, log: &Log) -> Budget {
        let of_epochs = log.epochs.iter().filter(|epoch| is_tried(epoch));
        let units: usize = of_epochs.clone().map(|epoch| epoch.units.len()).sum();
        let prefixes: usize = of_epochs.map(|epoch| epoch.units.len() + 1).sum();
        let step = (2 * prefixes).div_ceil(most.max(1)).max(1);
        Budget {
            step,
            passed: 0,
            left: most.saturating_sub(prefixes / step),
            units,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Xorshift.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Prefixes, then others: each write alone missing, each alone there, and random choices.
    fn cuts(&mut self, log: &Log, epoch: &Epoch) -> Vec<Cut> {
        if !is_tried(epoch) {
            return Vec::new();
        }
        let Range { start, end: last } = epoch.units;
        let moment = |end: usize| epoch.moments[end - start];
        let mut cuts = Vec::new();
        for end in start..=last {
            self.passed += 1;
            if self.passed % self.step == 0 {
                cuts.push(Cut {
                    units: (start..end).collect(),
                    moment: moment(end),
                    is_prefix: true,
                });
            }
        }
        let length = last - start;
        let share = if length == 0 {
            0
        } else {
            self.left * length / self.units
        };
        self.units -= length;
        let mut tried = BTreeSet::new();
        let mut add = |end: usize, has: &dyn Fn(usize) -> bool| {
            let units: Vec<_> = (start..end)
                .filter(|unit| log.units[*unit].is_forced || has(*unit))
                .collect();
            let is_prefix = units.len() == units.last().map_or(0, |unit| unit + 1 - start);
            if tried.len() < share && !is_prefix && tried.insert(units.clone()) {
                cuts.push(Cut {
                    units,
                    moment: moment(end),
                    is_prefix,
                });
            }
        };
        for one in start..last {
            // In a short run, not all of the first epoch's and none of the others'.
            if length <= share || one % (length / share.max(1) + 1) == 0 {
                add(last, &|unit| unit != one);
                add(last, &|unit| unit == one);
            }
        }
        for _ in 0..share * 4 {
            let (place, seed, density) = (self.random(), self.random(), self.random() % 15 + 1);
            // Half of them at the end of the epoch, where most is still on its way.
            let earlier = usize::try_from(place % (2 * length as u64))
                .unwrap()
                .saturating_sub(length);
            let mixed = |unit: usize| {
                let mut bits = (unit as u64).wrapping_add(1).wrapping_mul(seed | 1);
                bits ^= bits >> 29;
                bits.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 60
            };
            add(last - earlier, &|unit| mixed(unit) < density);
        }
        self.left -= tried.len();
        cuts.retain(|cut| cut.moment.begun > 0);
        cuts
    }
}

/// Before the first change there is nothing to lose.
fn is_tried(epoch: &Epoch) -> bool {
    epoch.moments.last().is_some_and(|moment| moment.begun > 0)
}

// --- the disk
// -----------------------------------------------------------------------------------------------------

type Page = Rc<[u8; PAGE_SIZE]>;

/// The pages that are not zero.
#[derive(Clone, Debug)]
struct Disk {
    pages: BTreeMap<u64, Page>,
    size: u64,
}

impl Disk {
    fn read(path: &Path) -> Disk {
        let mut file = File::open(path).unwrap();
        let size = file.metadata().unwrap().len();
        let mut disk = Disk {
            pages: BTreeMap::new(),
            size,
        };
        let mut chunk = vec![0; 256 * PAGE_SIZE];
        let nothing = chunk.clone();
        for first in (0..size / PAGE).step_by(256) {
            let length = file.read(&mut chunk).unwrap();
            if chunk[..length] == nothing[..length] {
                continue;
            }
            for (number, page) in chunk[..length].chunks_exact(PAGE_SIZE).enumerate() {
                if page != &nothing[..PAGE_SIZE] {
                    disk.pages
                        .insert(first + number as u64, Rc::new(page.try_into().unwrap()));
                }
            }
        }
        disk
    }

    fn write<'a>(&mut self, units: impl Iterator<Item = &'a Unit>) {
        for unit in units {
            let page = self
                .pages
                .entry(unit.page)
                .or_insert_with(|| Rc::new([0; PAGE_SIZE]));
            Rc::make_mut(page)[unit.offset..unit.offset + unit.bytes.len()]
                .copy_from_slice(&unit.bytes);
        }
    }

    fn with<'a>(&self, units: impl Iterator<Item = &'a Unit>) -> Disk {
        let mut disk = self.clone();
        disk.write(units);
        disk
    }

    fn write_to(&self, file: &File) {
        file.set_len(0).unwrap();
        file.set_len(self.size).unwrap();
        let (mut start, mut run) = (0, Vec::new());
        for (number, page) in &self.pages {
            if start + run.len() as u64 != number * PAGE {
                file.write_all_at(&run, start).unwrap();
                run.clear();
                start = number * PAGE;
            }
            run.extend_from_slice(&page[..]);
        }
        file.write_all_at(&run, start).unwrap();
    }
}

// --- what is left
// -------------------------------------------------------------------------------------------------

/// The store's files by path; directories end in a slash.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Tree(BTreeMap<String, Vec<u8>>);

impl Tree {
    /// `None` when there is no such directory.
    fn read(path: &Path) -> Option<Tree> {
        let mut tree = Tree(BTreeMap::new());
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(path.join(&folder)).ok()? {
                let entry = entry.ok()?;
                let name = format!("{folder}{}", entry.file_name().to_str()?);
                if entry.file_type().ok()?.is_dir() {
                    tree.0.insert(format!("{name}/"), Vec::new());
                    folders.push(format!("{name}/"));
                } else {
                    tree.0.insert(name, fs::read(entry.path()).ok()?);
                }
            }
        }
        Some(tree)
    }

    /// The files of each node: hidden files and directories are of no node.
    fn nodes(&self) -> BTreeMap<&str, Vec<(&String, &Vec<u8>)>> {
        let mut nodes = BTreeMap::<_, Vec<_>>::new();
        for entry in self.0.iter().filter(|(path, _)| !path.starts_with('.')) {
            nodes
                .entry(entry.0.split('/').next().unwrap())
                .or_default()
                .push(entry);
        }
        nodes
    }
}

struct Judge {
    backing: File,
    device: PathBuf,
    mountpoint: PathBuf,
    kind: String,
    options: String,
    folder: PathBuf,
    plans: Vec<Tree>,
    /// Earlier verdicts: one store at one moment has one verdict.
    known: HashMap<(Moment, Tree), Result<(), String>>,
}

impl Judge {
    fn judge(&mut self, disk: &Disk, moment: Moment) -> Result<(), String> {
        disk.write_to(&self.backing);
        let (kind, options) = (Some(self.kind.as_str()), Some(self.options.as_str()));
        mount(
            Some(&self.device),
            &self.mountpoint,
            kind,
            MsFlags::empty(),
            options,
        )
        .map_err(|errno| format!("the file system cannot be mounted: {errno}"))?;
        let judged = self.look(moment);
        umount(&self.mountpoint).unwrap();
        judged
    }

    fn look(&mut self, moment: Moment) -> Result<(), String> {
        let path = self.mountpoint.join("store");
        // It may be missing, before the first plan is whole.
        let tree = if path.exists() {
            Tree::read(&path).ok_or("the store cannot be read")?
        } else {
            Tree(BTreeMap::new())
        };
        let key = (moment, tree);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let judged = self
            .compare(&key.1, moment)
            .and_then(|()| self.repeat(moment));
        self.known.insert(key, judged.clone());
        judged
    }

    /// Each node has the old plan or the new one.
    fn compare(&self, tree: &Tree, moment: Moment) -> Result<(), String> {
        let allowed: Vec<_> = BTreeSet::from([moment.begun, moment.ended])
            .into_iter()
            .map(|plan| self.plans[plan].nodes())
            .collect();
        let now = tree.nodes();
        let names = allowed
            .iter()
            .flat_map(|plan| plan.keys())
            .chain(now.keys())
            .collect::<BTreeSet<_>>();
        for name in names {
            if !allowed.iter().any(|plan| plan.get(*name) == now.get(*name)) {
                let files: Vec<_> = now
                    .get(*name)
                    .into_iter()
                    .flatten()
                    .map(|(path, content)| (path, content.len()))
                    .collect();
                return Err(format!("{name} has neither plan, but {files:?}"));
            }
        }
        Ok(())
    }

    /// A repeated change ends in its plan, with nothing left over.
    fn repeat(&self, moment: Moment) -> Result<(), String> {
        let change = Command::new("bash")
            .arg(self.folder.join(format!("change-{}", moment.begun)))
            .output()
            .unwrap();
        if !change.status.success() {
            let why = String::from_utf8_lossy(&change.stderr);
            return Err(format!("the change cannot be made again: {}", why.trim()));
        }
        let Some(mut now) = Tree::read(&self.mountpoint.join("store")) else {
            return Err("the change left no store".to_owned());
        };
        now.0.remove(".lock");
        let mut wanted = self.plans[moment.begun].clone();
        wanted.0.remove(".lock");
        if now == wanted {
            Ok(())
        } else {
            Err(format!("made again, it left {:?}", now.0.keys()))
        }
    }
}
